/*-------------------------------------------------------------------------
 *
 * ddl_child.c
 *	  Temporary tables that inherit from a permanent one, which exist in the
 *	  region of their session only.
 *
 * ALTER TABLE of the parent alters its children as well, so the worker needs
 * their locks where another region has recorded it.  Therefore
 *	- who holds a lock on such a child takes a key of its parent at COMMIT
 *	  (held_locks.c), also if the child is one no longer;
 *	- after an error that does not pass by itself the worker ends the sessions
 *	  (ddl_make_way.c), and drops those that are left, in the transaction of the
 *	  entry: no session can alter another one's temporary table, and some statements
 *	  take no table with children.
 * A rehearsal fails where the statement would.
 *
 * Runs in backends and in the apply worker.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

/* Permanent parents of what this transaction has dropped or detached. */
static List *left_parents = NIL;
static LocalTransactionId left_in = InvalidLocalTransactionId;

/* '\0' if the relation is gone */
static char
ddl_child_persistence(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	char		persistence = '\0';

	if (HeapTupleIsValid(tuple))
	{
		persistence = ((Form_pg_class) GETSTRUCT(tuple))->relpersistence;
		ReleaseSysCache(tuple);
	}
	return persistence;
}

/* ---- in their own session ---- */

/* Of a temporary table, the permanent parents, also those of temporary parents. */
List *
ot_child_parents(Oid child)
{
	Relation	catalog = table_open(InheritsRelationId, AccessShareLock);
	List	   *parents = NIL;
	List	   *permanent = NIL;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	ListCell   *lc;

	check_stack_depth();
	ScanKeyInit(&key, Anum_pg_inherits_inhrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(child));
	scan = systable_beginscan(catalog, InheritsRelidSeqnoIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		parents = lappend_oid(parents, ((Form_pg_inherits) GETSTRUCT(tuple))->inhparent);
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);

	foreach(lc, parents)
	{
		char		persistence = ddl_child_persistence(lfirst_oid(lc));

		if (persistence == RELPERSISTENCE_TEMP)
			permanent = list_concat_unique_oid(permanent, ot_child_parents(lfirst_oid(lc)));
		else if (persistence != '\0')
			permanent = list_append_unique_oid(permanent, lfirst_oid(lc));
	}
	return permanent;
}

/* Called before the table is dropped, or loses a parent, with its lock held. */
void
ot_child_leaves(Oid child)
{
	MemoryContext old;

	if (ddl_child_persistence(child) != RELPERSISTENCE_TEMP)
		return;
	old = MemoryContextSwitchTo(TopTransactionContext);
	if (left_in != OT_LXID(MyProc))
		left_parents = NIL;
	left_in = OT_LXID(MyProc);
	left_parents = list_concat_unique_oid(left_parents, ot_child_parents(child));
	MemoryContextSwitchTo(old);
}

/* The permanent parents that children of this transaction's have left. */
List *
ot_child_left_parents(void)
{
	return left_in == OT_LXID(MyProc) ? left_parents : NIL;
}

/* ---- in the way (ddl_make_way.c) ---- */

/* Those of all sessions of this server. */
static List *
ddl_child_list(void)
{
	Relation	catalog = table_open(InheritsRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	List	   *children = NIL;
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_inherits form = (Form_pg_inherits) GETSTRUCT(tuple);

		if (ddl_child_persistence(form->inhrelid) == RELPERSISTENCE_TEMP &&
			ddl_child_persistence(form->inhparent) != RELPERSISTENCE_TEMP)
			children = list_append_unique_oid(children, form->inhrelid);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return children;
}

/* The temporary schemas of all of them. */
List *
ot_children_schemas(void)
{
	List	   *schemas = NIL;
	ListCell   *lc;

	foreach(lc, ddl_child_list())
	{
		Oid			schema = get_rel_namespace(lfirst_oid(lc));

		if (OidIsValid(schema))
			schemas = list_append_unique_oid(schemas, schema);
	}
	return schemas;
}

/*
 * Drops all of them in this transaction, with what depends on them: temporary
 * objects only.  The caller has ended their sessions.
 */
void
ot_children_drop(void)
{
	ListCell   *lc;

	foreach(lc, ddl_child_list())
	{
		ObjectAddress child = {RelationRelationId, lfirst_oid(lc), 0};

		LockRelationOid(child.objectId, AccessExclusiveLock);
		/* its session may have dropped it, or it has gone with another one */
		if (ddl_child_persistence(child.objectId) != RELPERSISTENCE_TEMP)
		{
			UnlockRelationOid(child.objectId, AccessExclusiveLock);
			continue;
		}
		performDeletion(&child, DROP_CASCADE,
						PERFORM_DELETION_INTERNAL | PERFORM_DELETION_QUIETLY | PERFORM_DELETION_SKIP_EXTENSIONS);
		CommandCounterIncrement();
	}
}
