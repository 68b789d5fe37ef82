/*-------------------------------------------------------------------------
 *
 * ddl_make_way.c
 *	  Ends sessions of this server whose temporary objects are in the way of a
 *	  statement that another region has recorded.
 *
 * A temporary view, a column of a temporary table or a temporary function
 * depends on permanent objects, and keeps them from being dropped or
 * altered, in this server only.  If an entry has failed in a way that does not
 * pass by itself, the worker first ends the sessions
 *	- of all functions that depend on temporary objects (ddl_function.c);
 *	- of all temporary tables with a permanent parent (ddl_child.c);
 *	- of the temporary objects that depend on those that the statement names.
 * They drop their temporary objects as they end.  What a crash has left behind
 * is dropped here, in the transaction of the entry.
 *
 * Runs in the apply worker.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include <ctype.h>
#include <signal.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_cast.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_statistic_ext.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_type.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

/* How long the worker waits for sessions that it has told to end. */
#define END_MS 5000
#define LOOK_AGAIN_MS 10

/* The present entry has failed before. */
static bool making_way = false;

/* ---- sessions ---- */

/* Tells the session of this temporary schema to end.  Returns false if none has it. */
static bool
ddl_make_way_end_session(Oid schema, bool first)
{
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];
		int			pid = proc->pid;

		if (proc->tempNamespaceId != schema || proc->databaseId != MyDatabaseId ||
			pid == 0 || pid == MyProcPid || BackendPidGetProc(pid) != proc)
			continue;
		if (first)
			ereport(LOG,
					(errmsg("process %d is ended, since its temporary objects are in the way of an entry", pid),
					 errdetail("They depend on what a statement of another region drops or alters, or may do so.")));
		(void) kill(pid, SIGTERM);
		return true;
	}
	return false;
}

/* The caller has no locks on anything that they drop. */
static void
ddl_make_way_end_sessions(List *schemas)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(ot_now(), END_MS);
	bool		first = true;

	for (;;)
	{
		bool		left = false;
		ListCell   *lc;

		foreach(lc, schemas)
			left |= ddl_make_way_end_session(lfirst_oid(lc), first);
		if (!left || ot_ms_until(deadline) == 0)
			return;
		first = false;
		ot_wait_latch(LOOK_AGAIN_MS);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Called in the transaction of each entry, before anything of it is applied.
 */
void
ot_ddl_make_way(bool has_failed)
{
	making_way = has_failed;
	if (!has_failed)
		return;
	ot_ddl_lock_schema();
	ddl_make_way_end_sessions(list_concat_unique_oid(ot_functions_schemas(), ot_children_schemas()));
	ot_functions_drop();
	ot_children_drop();
}

/* ---- what depends on the objects that a statement names ---- */

typedef struct Dependents
{
	List	   *temporary;		/* pointers to ObjectAddress */
	List	   *schemas;		/* theirs */
	HTAB	   *seen;
} Dependents;

/* Of statistics, the one of their table. */
static Oid
ddl_make_way_temporary_schema(ObjectAddress object)
{
	Oid			schema;

	if (object.classId == CastRelationId)
		return ot_ddl_temporary_schema_of_cast(object.objectId);
	if (object.classId == StatisticExtRelationId)
		schema = get_rel_namespace(ot_ddl_table_of_statistics(object.objectId));
	else
		schema = is_objectclass_supported(object.classId) ? get_object_namespace(&object) : InvalidOid;

	return OidIsValid(schema) && isAnyTempNamespace(schema) ? schema : InvalidOid;
}

/* Notes the object if it is temporary, and looks at what depends on it if not. */
static void
ddl_make_way_look_at(Dependents *dependents, ObjectAddress object)
{
	Relation	catalog;
	SysScanDesc scan;
	ScanKeyData key[2];
	HeapTuple	tuple;
	Oid			schema;
	uint64		id;
	bool		found;

	check_stack_depth();
	CHECK_FOR_INTERRUPTS();
	if (!ot_ddl_find_whole(&object))
		return;
	object.objectSubId = 0;
	id = ((uint64) object.classId << 32) | object.objectId;
	hash_search(dependents->seen, &id, HASH_ENTER, &found);
	if (found)
		return;
	schema = ddl_make_way_temporary_schema(object);
	if (OidIsValid(schema))
	{
		ObjectAddress *copy = palloc(sizeof(ObjectAddress));

		*copy = object;
		dependents->temporary = lappend(dependents->temporary, copy);
		dependents->schemas = list_append_unique_oid(dependents->schemas, schema);
		return;
	}
	catalog = table_open(DependRelationId, AccessShareLock);
	ScanKeyInit(&key[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(object.classId));
	ScanKeyInit(&key[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(object.objectId));
	scan = systable_beginscan(catalog, DependReferenceIndexId, true, NULL, 2, key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);

		ddl_make_way_look_at(dependents, (ObjectAddress) {form->classid, form->objid, 0});
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	/* the row type depends on its table, but a composite type's relation on the type */
	if (object.classId == RelationRelationId && OidIsValid(get_rel_type_id(object.objectId)))
		ddl_make_way_look_at(dependents, (ObjectAddress) {TypeRelationId, get_rel_type_id(object.objectId), 0});
}

static void
ddl_make_way_look_at_owned(ObjectAddress object, void *dependents)
{
	ddl_make_way_look_at(dependents, object);
}

static void
ddl_make_way_look_at_temporary(ObjectAddress object, void *dependents)
{
	if (ot_ddl_find_whole(&object) && OidIsValid(ddl_make_way_temporary_schema(object)))
		ddl_make_way_look_at(dependents, object);
}

static void
ddl_make_way_look_at_named(Dependents *dependents, ObjectType type, Node *name)
{
	Relation	rel = NULL;
	ObjectAddress object = get_object_address(type, name, &rel, AccessShareLock, true);

	if (rel != NULL)
		relation_close(rel, NoLock);
	if (!OidIsValid(object.objectId))
		return;
	/* it may be temporary itself, and its session must be able to drop it */
	if (rel == NULL)
		UnlockDatabaseObject(object.classId, object.objectId, 0, AccessShareLock);
	ddl_make_way_look_at(dependents, object);
}

static void
ddl_make_way_look_at_relation(Dependents *dependents, RangeVar *name)
{
	Oid			relid = name != NULL ? RangeVarGetRelid(name, NoLock, true) : InvalidOid;

	if (OidIsValid(relid))
		ddl_make_way_look_at(dependents, (ObjectAddress) {RelationRelationId, relid, 0});
}

/*
 * A table becomes a view (PostgreSQL 15) only if it seems never to have had an
 * index, a trigger or a child, and each server's own VACUUM and ANALYZE find out
 * that these are gone.  A child may have been a temporary one of this server.
 */
static void
ddl_make_way_forget_what_is_gone(RangeVar *name)
{
	Relation	catalog = table_open(RelationRelationId, RowExclusiveLock);
	Relation	rel = relation_openrv_extended(name, AccessExclusiveLock, true);

	if (rel != NULL)
	{
		HeapTuple	tuple = SearchSysCacheCopy1(RELOID, ObjectIdGetDatum(RelationGetRelid(rel)));
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		form->relhasindex = RelationGetIndexList(rel) != NIL;
		form->relhastriggers = rel->trigdesc != NULL;
		form->relhassubclass = find_inheritance_children(RelationGetRelid(rel), NoLock) != NIL;
		CatalogTupleUpdate(catalog, &tuple->t_self, tuple);
		heap_freetuple(tuple);
		relation_close(rel, NoLock);
		CommandCounterIncrement();
	}
	table_close(catalog, RowExclusiveLock);
}

/*
 * The table for whose statistics the statement makes up names, which begin with its
 * name; NULL: there is none.  *schema is where they will be.
 */
static RangeVar *
ddl_make_way_names_for(Node *stmt, Oid *schema)
{
	CreateStatsStmt *statistics = (CreateStatsStmt *) stmt;
	RangeVar   *table = NULL;
	Oid			relid;
	ListCell   *lc;

	if (IsA(stmt, CreateStatsStmt) && statistics->defnames == NIL && IsA(linitial(statistics->relations), RangeVar))
	{
		table = linitial(statistics->relations);
		relid = RangeVarGetRelid(table, NoLock, true);
		*schema = OidIsValid(relid) ? get_rel_namespace(relid) : InvalidOid;
	}
	foreach(lc, IsA(stmt, CreateStmt) || IsA(stmt, CreateForeignTableStmt) ? ((CreateStmt *) stmt)->tableElts : NIL)
	{
		TableLikeClause *like = lfirst(lc);

		if (table != NULL || !IsA(like, TableLikeClause) || (like->options & CREATE_TABLE_LIKE_STATISTICS) == 0)
			continue;
		table = ((CreateStmt *) stmt)->relation;
		*schema = RangeVarGetCreationNamespace(table);
	}
	return table;
}

/* Of the table's name, what is kept at least in a name that is made up. */
#define NAME_BYTES_KEPT 20

/* Could the name be made up for statistics of the table, "table_columns_stat1"? */
static bool
ddl_make_way_may_be_made_up(const char *name, RangeVar *table)
{
	static const char label[] = "_stat";
	int			len = strlen(name);

	while (len > 0 && isdigit((unsigned char) name[len - 1]))
		len--;
	len -= strlen(label);
	return len > 0 && strncmp(name + len, label, strlen(label)) == 0 &&
		strncmp(name, table->relname, Min(strlen(table->relname), NAME_BYTES_KEPT)) == 0;
}

/*
 * The statistics of temporary tables that have such a name, and keep the statement from
 * making it up.  They may be in any schema.
 */
static List *
ddl_make_way_of_made_up_name(Node *stmt)
{
	List	   *found = NIL;
	Oid			schema;
	RangeVar   *table = ddl_make_way_names_for(stmt, &schema);
	Relation	catalog;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (table == NULL)
		return NIL;
	catalog = table_open(StatisticExtRelationId, AccessShareLock);
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_statistic_ext form = (Form_pg_statistic_ext) GETSTRUCT(tuple);

		if (form->stxnamespace == schema && ddl_make_way_may_be_made_up(NameStr(form->stxname), table) &&
			get_rel_persistence(form->stxrelid) == RELPERSISTENCE_TEMP)
			found = lappend_oid(found, form->oid);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return found;
}

static void
ddl_make_way_look_at_statement(Dependents *dependents, Node *stmt)
{
	ListCell   *lc;

	foreach(lc, ddl_make_way_of_made_up_name(stmt))
		ddl_make_way_look_at(dependents, (ObjectAddress) {StatisticExtRelationId, lfirst_oid(lc), 0});
	switch (nodeTag(stmt))
	{
		case T_DropStmt:
			foreach(lc, ((DropStmt *) stmt)->objects)
				ddl_make_way_look_at_named(dependents, ((DropStmt *) stmt)->removeType, lfirst(lc));
			break;
		case T_DropRoleStmt:
			foreach(lc, ((DropRoleStmt *) stmt)->roles)
				ot_ddl_each_of_role(get_rolespec_oid(lfirst(lc), true), MyDatabaseId, SHARED_DEPENDENCY_INVALID,
									ddl_make_way_look_at_temporary, dependents);
			break;
		case T_DropOwnedStmt:
			foreach(lc, ((DropOwnedStmt *) stmt)->roles)
				ot_ddl_each_of_role(get_rolespec_oid(lfirst(lc), true), MyDatabaseId, SHARED_DEPENDENCY_INVALID,
									ddl_make_way_look_at_owned, dependents);
			break;
		case T_AlterExtensionStmt:
			ddl_make_way_look_at_named(dependents, OBJECT_EXTENSION,
									   (Node *) makeString(((AlterExtensionStmt *) stmt)->extname));
			break;
		case T_AlterTableStmt:
			ddl_make_way_look_at_relation(dependents, ((AlterTableStmt *) stmt)->relation);
			break;
		case T_RenameStmt:
			ddl_make_way_look_at_relation(dependents, ((RenameStmt *) stmt)->relation);
			break;
		case T_CreateStatsStmt:
			if (((CreateStatsStmt *) stmt)->defnames != NIL)
				ddl_make_way_look_at_named(dependents, OBJECT_STATISTIC_EXT,
										   (Node *) ((CreateStatsStmt *) stmt)->defnames);
			break;
		case T_AlterStatsStmt:
			ddl_make_way_look_at_named(dependents, OBJECT_STATISTIC_EXT, (Node *) ((AlterStatsStmt *) stmt)->defnames);
			break;
		case T_AlterDomainStmt:
			ddl_make_way_look_at_named(dependents, OBJECT_DOMAIN,
									   (Node *) makeTypeNameFromNameList(((AlterDomainStmt *) stmt)->typeName));
			break;
		default:
			break;
	}
}

/*
 * Refuses statistics whose name those of a temporary table have.  With IF NOT EXISTS
 * there would be no error, and no statistics here; a name that is made up would be
 * another one.  After the error, the session makes way.
 */
void
ot_ddl_check_statistics(Node *stmt)
{
	CreateStatsStmt *statistics = (CreateStatsStmt *) stmt;
	List	   *found = ddl_make_way_of_made_up_name(stmt);
	ObjectAddress object = {StatisticExtRelationId};

	if (found != NIL)
		object.objectId = linitial_oid(found);
	else if (IsA(stmt, CreateStatsStmt) && statistics->if_not_exists && statistics->defnames != NIL)
		object.objectId = get_statistics_object_oid(statistics->defnames, true);
	if (OidIsValid(object.objectId) && OidIsValid(ddl_make_way_temporary_schema(object)))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("statistics \"%s\" are those of a temporary table in region \"%s\"",
						getObjectIdentity(&object, false), ot_region)));
}

/* Called before a statement is replayed, or rehearsed. */
void
ot_ddl_make_way_for(Node *stmt)
{
	HASHCTL		ctl = {.keysize = sizeof(uint64), .entrysize = sizeof(uint64),
	.hcxt = CurrentMemoryContext};
	Dependents	dependents = {NIL};
	Oid			roleid;
	int			sec_context;
	ListCell   *lc;

	if (IsA(stmt, RuleStmt) && ((RuleStmt *) stmt)->event == CMD_SELECT)
		ddl_make_way_forget_what_is_gone(((RuleStmt *) stmt)->relation);
	if (likely(!making_way))
	{
		ot_ddl_check_statistics(stmt);
		return;
	}
	dependents.seen = hash_create("onetrip temporary dependents", 64, &ctl,
								  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	ddl_make_way_look_at_statement(&dependents, stmt);
	hash_destroy(dependents.seen);
	ddl_make_way_end_sessions(dependents.schemas);

	/* not as the role of the statement */
	GetUserIdAndSecContext(&roleid, &sec_context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, sec_context);
	foreach(lc, dependents.temporary)
	{
		ObjectAddress *object = lfirst(lc);

		if (ot_ddl_object_exists(object))
			performDeletion(object, DROP_CASCADE,
							PERFORM_DELETION_INTERNAL | PERFORM_DELETION_QUIETLY | PERFORM_DELETION_SKIP_EXTENSIONS);
		CommandCounterIncrement();
	}
	SetUserIdAndSecContext(roleid, sec_context);
}
