/*-------------------------------------------------------------------------
 *
 * ddl_objects.c
 *	  What a statement makes, changes and drops, heard of as it happens.
 *
 * A relation that is made without a recorded statement is refused when it is
 * there: no other region would have it.
 *
 * CREATE TABLE AS is recorded as the equivalent CREATE TABLE, at the moment
 * when the table is made.  That is before its query runs, which may change the
 * role and settings, and even rename the table.  Its rows travel as rows.
 *
 * Runs in backends, and in the apply worker.  Everything here may raise ERROR.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_running.h"

#include "access/relation.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_amop.h"
#include "catalog/pg_amproc.h"
#include "catalog/pg_class.h"
#include "catalog/pg_largeobject.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_statistic_ext.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "capture/capture.h"

static object_access_hook_type prev_object_access = NULL;

/*
 * Called when the table exists, without its TOAST table so far; it is empty,
 * and no function has seen it.
 */
static void
ddl_objects_record_table(OtCreateAs *made)
{
	Relation	rel = relation_open(made->relid, NoLock);
	char	   *text = ot_ddl_create_table_text(rel, made->into);

	relation_close(rel, NoLock);
	ot_write_set_statement(text, false);
	pfree(text);
}

/*
 * Called when a relation exists, and no recorded statement is under way: C code
 * has made it, and other regions would have neither it nor a place for its rows.
 * What PostgreSQL makes by itself, to fill a relation anew, becomes that
 * relation's file.
 */
static void
ddl_objects_check_made(Oid relid, ObjectAccessPostCreate *made)
{
	/* nobody has locked it yet */
	Relation	rel = RelationIdGetRelation(relid);
	bool		is_definition = ot_ddl_has_table_key(rel->rd_rel->relkind) &&
		rel->rd_rel->relpersistence != RELPERSISTENCE_TEMP && !made->is_internal;

	RelationClose(rel);
	if (is_definition)
		ot_ddl_refuse("a relation that C code makes by itself",
					  "Let the code run CREATE, as a statement.");
}

/*
 * Notes what a statement about temporary objects has made or changed, of those
 * kinds of which it can make permanent ones by the way: a shell for the commutator
 * of an operator, or what becomes part of a permanent operator family or table.
 */
static void
ddl_objects_note_made(Oid class_id, Oid object_id)
{
	MemoryContext old;
	ObjectAddress *object;

	if (class_id != OperatorRelationId && class_id != OperatorClassRelationId &&
		class_id != AccessMethodOperatorRelationId && class_id != AccessMethodProcedureRelationId &&
		class_id != StatisticExtRelationId)
		return;
	old = MemoryContextSwitchTo(TopTransactionContext);
	object = palloc(sizeof(ObjectAddress));
	ObjectAddressSet(*object, class_id, object_id);
	*ot_ddl_now.made = lappend(*ot_ddl_now.made, object);
	MemoryContextSwitchTo(old);
}

/*
 * May the object get another name, or another schema?  ADD CONSTRAINT ... USING INDEX
 * names an index like the constraint.
 */
static bool
ddl_objects_may_rename(Oid class_id, Oid object_id)
{
	char		relkind;

	if (ot_ddl_now.renames || (ot_ddl_now.makes_type && class_id == TypeRelationId))
		return true;
	relkind = class_id == RelationRelationId ? get_rel_relkind(object_id) : '\0';
	return relkind == RELKIND_INDEX || relkind == RELKIND_PARTITIONED_INDEX;
}

static void
ddl_objects_call_function(Oid function)
{
	/* the only function of the server's that makes what is in definitions */
	if (function == F_PG_IMPORT_SYSTEM_COLLATIONS && ot_capturing())
		ot_ddl_refuse("pg_import_system_collations()",
					  "Use CREATE COLLATION for those that are needed.");
	ot_ddl_large_object_function(function);
}

static void
ddl_objects_function(ObjectAccessType access, Oid function)
{
	OtRecorded *recorded = ot_ddl_now.recorded;

	if (access == OAT_DROP)
		ot_function_before_drop(function, recorded != NULL);
	else if (access == OAT_POST_CREATE)
	{
		if (ot_ddl_replaying)
			ot_setting_note_function(function);
		if (recorded != NULL)
			ot_ddl_note_oid(&recorded->functions, function);
	}
}

static void
ddl_objects_made_relation(Oid relid, ObjectAccessPostCreate *made)
{
	OtRecorded *recorded = ot_ddl_now.recorded;
	OtCreateAs *create_as = ot_ddl_now.create_as;

	if (recorded != NULL)
		ot_ddl_note_oid(&recorded->relations, relid);
	/* the first relation at this depth is the table; TOAST follows */
	if (create_as != NULL && create_as->depth == ot_ddl_now.depth && !OidIsValid(create_as->relid))
	{
		create_as->relid = relid;
		if (!create_as->matview)
			ddl_objects_record_table(create_as);
	}
	else if (recorded == NULL && ot_capturing())
		ddl_objects_check_made(relid, made);
}

static void
ddl_objects_relation(ObjectAccessType access, Oid relid, void *arg)
{
	OtRecorded *recorded = ot_ddl_now.recorded;
	OtTruncation *truncation = ot_ddl_now.truncation;
	LOCKTAG		tag;

	switch (access)
	{
		case OAT_POST_CREATE:
			ddl_objects_made_relation(relid, arg);
			break;
		case OAT_TRUNCATE:
			if (truncation != NULL && !truncation->told)
				ot_ddl_note_oid(&truncation->relids, relid);
			break;
		case OAT_DROP:
			if (ot_is_apply_worker)
				ot_ddl_drops_subscribed(relid);
			ot_child_leaves(relid);
			if (recorded != NULL)
				ot_ddl_take_relation_key(relid);
			break;
		case OAT_POST_ALTER:
			/* the catalog cache still has the old name */
			SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
			if (recorded != NULL && OT_LOCK_IS_HELD_BY_ME(&tag, AccessExclusiveLock))
				ot_ddl_take_relation_key(relid);
			break;
		default:
			break;
	}
}

static void
ot_ddl_object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	OtRecorded *recorded;

	ot_ddl_keep_error_context();
	/* the session's temporary objects are dropped after FATAL, where no PG_FINALLY has run */
	if (proc_exit_inprogress)
	{
		ot_ddl_now.recorded = NULL;
		ot_ddl_now.made = NULL;
	}
	if (prev_object_access)
		prev_object_access(access, class_id, object_id, sub_id, arg);

	recorded = ot_ddl_now.recorded;
	if (access == OAT_FUNCTION_EXECUTE)
	{
		ddl_objects_call_function(object_id);
		return;
	}
	if (sub_id != 0)
		return;
	if (class_id == LargeObjectRelationId)
	{
		ot_ddl_large_object_access(access, object_id, recorded != NULL && IsA(recorded->stmt, DropOwnedStmt));
		return;
	}
	if ((access == OAT_POST_CREATE || access == OAT_POST_ALTER) && unlikely(ot_ddl_now.made != NULL))
		ddl_objects_note_made(class_id, object_id);
	if (class_id == ProcedureRelationId)
		ddl_objects_function(access, object_id);
	if (recorded != NULL &&
		(access == OAT_DROP || (access == OAT_POST_ALTER && ddl_objects_may_rename(class_id, object_id))))
		ot_object_take_key(class_id, object_id);
	if (class_id == RelationRelationId)
		ddl_objects_relation(access, object_id, arg);
}

void
ot_ddl_objects_init(void)
{
	prev_object_access = object_access_hook;
	object_access_hook = ot_ddl_object_access;
}
