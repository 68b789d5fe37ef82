/*-------------------------------------------------------------------------
 *
 * own_tables.c
 *	  Who may read and write the tables of this extension.
 *
 * The server does what these tables say, as a superuser: it takes over the
 * subscriptions that are named there, and applies what is prepared.  Nobody but a
 * superuser has been granted to write them.  But a role may also write because it
 * is a member of pg_write_all_data, and read because it is one of
 * pg_read_all_data.  Here that is not enough, nor for the views on these tables.
 *
 * Nor does it let a role lock them, as a query or as LOCK TABLE does: the server
 * would wait.  The weakest lock is excepted.  The same goes for what members of
 * pg_maintain may run in a transaction block.
 *
 * (Row level security would not do: PostgreSQL ignores it for tables with the OIDs
 * of the time before the server's first start, which these have.)
 *
 * Runs in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "rewrite/rewriteHandler.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

static ExecutorCheckPerms_hook_type prev_check_perms = NULL;

/* Is it a relation of this extension, or a table's TOAST table? */
static bool
own_tables_contain(Oid relid, Oid schema)
{
	Oid			namespace = get_rel_namespace(relid);

	if (namespace == PG_TOAST_NAMESPACE)
	{
		char	   *name = get_rel_name(relid);
		Oid			of;

		return name != NULL && sscanf(name, "pg_toast_%u", &of) == 1 && get_rel_namespace(of) == schema;
	}
	return namespace == schema;
}

/* Does it own the relation, or has that been granted to it, or to everybody?  Grants of columns do not count. */
static bool
own_tables_is_granted(Oid relid, Oid role, AclMode mode)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		is_granted = false;
	bool		isnull;
	Datum		acl;

	if (!HeapTupleIsValid(tuple))
		return false;
	acl = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_relacl, &isnull);
	if (has_privs_of_role(role, ((Form_pg_class) GETSTRUCT(tuple))->relowner))
		is_granted = true;
	else if (!isnull)
		is_granted = aclmask(DatumGetAclP(acl), role, ((Form_pg_class) GETSTRUCT(tuple))->relowner, mode, ACLMASK_ALL) == mode;
	ReleaseSysCache(tuple);
	return is_granted;
}

static bool
ot_own_tables_check(OT_CHECK_PERMS_PARAMETERS)
{
	Oid			schema = InvalidOid;
	ListCell   *lc;

	foreach(lc, OT_CHECK_PERMS_LIST)
	{
		OtPermissions *each = lfirst(lc);
		Oid			role = OidIsValid(each->checkAsUser) ? each->checkAsUser : GetUserId();

		if (each->requiredPerms == 0 || superuser_arg(role))
			continue;
		if (!OidIsValid(schema))
			schema = get_namespace_oid("onetrip", true);
		if (!OidIsValid(schema) || !own_tables_contain(each->relid, schema) ||
			own_tables_is_granted(each->relid, role, each->requiredPerms))
			continue;
		if (raise)
			aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLE, get_rel_name(each->relid));
		return false;
	}
	return prev_check_perms == NULL || prev_check_perms(OT_CHECK_PERMS_ARGUMENTS);
}

/* What a LOCK of a view locks is looked for. */
typedef struct Locked
{
	Oid			schema;
	List	   *views;			/* those that have been looked into */
} Locked;

static void own_tables_check_lock(Oid relid, Locked *locked);

static bool
own_tables_check_lock_in_query(Node *node, void *locked)
{
	ListCell   *lc;

	if (node == NULL)
		return false;
	if (!IsA(node, Query))
		return expression_tree_walker(node, own_tables_check_lock_in_query, locked);
	foreach(lc, ((Query *) node)->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, lc);

		if (rte->rtekind == RTE_RELATION)
			own_tables_check_lock(rte->relid, locked);
	}
	return query_tree_walker((Query *) node, own_tables_check_lock_in_query, locked, QTW_IGNORE_JOINALIASES);
}

static void
own_tables_check_lock(Oid relid, Locked *locked)
{
	Relation	view;

	if (own_tables_contain(relid, locked->schema))
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLE, get_rel_name(relid));
	if (get_rel_relkind(relid) != RELKIND_VIEW || list_member_oid(locked->views, relid))
		return;
	locked->views = lappend_oid(locked->views, relid);
	/* LOCK ... NOWAIT does not wait; once it holds the lock, the view is looked into again */
	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		return;
	view = try_relation_open(relid, NoLock);
	if (view != NULL && view->rd_rel->relkind == RELKIND_VIEW)
		(void) own_tables_check_lock_in_query((Node *) get_view_query(view), locked);
	if (view != NULL)
		relation_close(view, NoLock);
	UnlockRelationOid(relid, AccessShareLock);
}

/*
 * Called before a utility statement, and after LOCK: in between, others may have
 * changed a view.  Not where one is replayed: it was allowed where it ran, and its
 * role may lack USAGE of the schema (a job's REINDEX runs as the table's owner).
 */
void
ot_own_tables_check_statement(Node *stmt)
{
	Locked		locked = {InvalidOid, NIL};
	List	   *names = NIL;
	ListCell   *lc;

	if (IsA(stmt, LockStmt) && ((LockStmt *) stmt)->mode > AccessShareLock)
		names = ((LockStmt *) stmt)->relations;
	else if (IsA(stmt, ClusterStmt) && ((ClusterStmt *) stmt)->relation != NULL)
		names = list_make1(((ClusterStmt *) stmt)->relation);
	else if (IsA(stmt, ReindexStmt) && ((ReindexStmt *) stmt)->relation != NULL)
		names = list_make1(((ReindexStmt *) stmt)->relation);
	if (names == NIL || !IsTransactionState() || superuser() || !ot_in_replicated_database())
		return;
	locked.schema = get_namespace_oid("onetrip", true);
	if (!OidIsValid(locked.schema))
		return;
	foreach(lc, names)
	{
		Oid			relid = RangeVarGetRelid(lfirst_node(RangeVar, lc), NoLock, true);

		if (OidIsValid(relid))
			own_tables_check_lock(relid, &locked);
	}
}

void
ot_own_tables_init(void)
{
	prev_check_perms = ExecutorCheckPerms_hook;
	ExecutorCheckPerms_hook = ot_own_tables_check;
}
