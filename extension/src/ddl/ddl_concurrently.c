/*-------------------------------------------------------------------------
 *
 * ddl_concurrently.c
 *	  Statements with CONCURRENTLY wait for their locks without holding others
 *	  up.
 *
 * A statement that is recorded needs the schema key, and a lock of the table that
 * keeps writers out.  One that waits for this lock would hold up all who come
 * after it.  So those with CONCURRENTLY try for a moment, give back what they
 * got, and try again later, until they get it (ot_index_wait_politely()).
 *
 * DROP INDEX CONCURRENTLY is recorded, and runs, without CONCURRENTLY; this is what
 * is left of it.  CREATE INDEX CONCURRENTLY becomes a job (ddl_index.c), whose entry
 * waits in the same way, and so do those of DETACH PARTITION CONCURRENTLY
 * (ddl_detach.c), which otherwise (before the upgrade is finished) runs as DROP
 * INDEX does.
 *
 * Runs in backends; ot_index_pause() and ot_index_try_lock() in the job worker,
 * too.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "tcop/cmdtag.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

/*
 * An attempt to lock a table holds up those who come after it, so it is given up
 * after this time, and the next one is made later.
 */
#define ATTEMPT_MS 100
#define PAUSE_MS 500

/* Waits this long, or shorter; serves interrupts. */
void
ot_index_pause(int ms)
{
	ot_wait_latch(ms);
	CHECK_FOR_INTERRUPTS();
}

static bool
ddl_concurrently_is_drop(Node *stmt)
{
	return IsA(stmt, DropStmt) && ((DropStmt *) stmt)->removeType == OBJECT_INDEX &&
		((DropStmt *) stmt)->concurrent;
}

/* Is it a CREATE INDEX CONCURRENTLY? */
bool
ot_index_is_job(Node *stmt)
{
	return IsA(stmt, IndexStmt) && ((IndexStmt *) stmt)->concurrent;
}

/*
 * The same statement without CONCURRENTLY, if it is one that runs without it in
 * every region; else the statement itself.
 */
Node *
ot_index_without_concurrently(Node *stmt)
{
	if (ddl_concurrently_is_drop(stmt))
	{
		stmt = copyObject(stmt);
		((DropStmt *) stmt)->concurrent = false;
	}
	else if (ot_detach_concurrently_of(stmt) != NULL)
	{
		stmt = copyObject(stmt);
		ot_detach_concurrently_of(stmt)->concurrent = false;
	}
	return stmt;
}

/* What PostgreSQL refuses for DROP INDEX CONCURRENTLY, it refuses here too. */
static void
ddl_concurrently_check_drop(DropStmt *stmt, Oid index)
{
	if (list_length(stmt->objects) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("DROP INDEX CONCURRENTLY does not support dropping multiple objects")));
	if (stmt->behavior == DROP_CASCADE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("DROP INDEX CONCURRENTLY does not support CASCADE")));
	if (OidIsValid(index) && get_rel_relkind(index) == RELKIND_PARTITIONED_INDEX &&
		get_rel_persistence(index) != RELPERSISTENCE_TEMP)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot drop partitioned index \"%s\" concurrently", get_rel_name(index))));
}

/* Finds the relation that the statement locks, and in which mode. */
static Oid
ddl_concurrently_table_of(Node *stmt, LOCKMODE *mode)
{
	Oid			relid;

	*mode = AccessExclusiveLock;
	if (ot_index_is_job(stmt))
	{
		*mode = ShareLock;
		return RangeVarGetRelid(((IndexStmt *) stmt)->relation, NoLock, true);
	}
	if (ddl_concurrently_is_drop(stmt))
	{
		DropStmt   *drop = (DropStmt *) stmt;

		relid = RangeVarGetRelid(makeRangeVarFromNameList(linitial(drop->objects)), NoLock, true);
		ddl_concurrently_check_drop(drop, relid);
		return OidIsValid(relid) && (get_rel_relkind(relid) == RELKIND_INDEX) ?
			IndexGetRelation(relid, true) : InvalidOid;
	}
	relid = RangeVarGetRelid(((AlterTableStmt *) stmt)->relation, NoLock, true);
	ot_detach_check(relid);
	return relid;
}

/*
 * One attempt to get the lock that stands for the schema key, and then those of
 * tables, each within so many ms (0: a moment).  What was acquired is given back if it
 * fails.
 */
bool
ot_index_try_locks(List *relids, List *modes, int ms)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	const int	own_timeout = LockTimeout;
	const volatile int attempt = ms > 0 ? ms : ATTEMPT_MS;
	volatile bool got = true;
	ListCell   *relid;
	ListCell   *mode;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		LockTimeout = own_timeout > 0 ? Min(own_timeout, attempt) : attempt;
		ot_ddl_lock_schema();
		forboth(relid, relids, mode, modes)
			LockRelationOid(lfirst_oid(relid), lfirst_int(mode));
		LockTimeout = own_timeout;
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		LockTimeout = own_timeout;
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		/* before any other error leaves: at the top level nobody else would end it */
		RollbackAndReleaseCurrentSubTransaction();
		if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
			error->sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED)
		{
			MemoryContextSwitchTo(context);
			CurrentResourceOwner = owner;
			ReThrowError(error);
		}
		FreeErrorData(error);
		got = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return got;
}

bool
ot_index_try_lock(Oid relid, LOCKMODE mode)
{
	return ot_index_try_locks(list_make1_oid(relid), list_make1_int(mode), 0);
}

/* Between two attempts of a statement that has waited since then. */
void
ot_index_pause_politely(TimestampTz since)
{
	if (LockTimeout > 0 && TimestampDifferenceExceeds(since, ot_now(), LockTimeout))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("canceling statement due to lock timeout")));
	ot_index_pause(PAUSE_MS);
}

/*
 * Called before a statement with CONCURRENTLY is recorded: waits until the locks
 * that it needs can be had at once, or nearly so.  Those of a table of another
 * owner are not asked for: the statement will fail.
 */
void
ot_index_wait_politely(Node *stmt, ProcessUtilityContext context)
{
	TimestampTz since = ot_now();
	const char *what;
	LOCKMODE	mode;
	Oid			relid;

	if (ot_index_is_job(stmt))
		what = "CREATE INDEX CONCURRENTLY";
	else if (ddl_concurrently_is_drop(stmt))
		what = "DROP INDEX CONCURRENTLY";
	else if (ot_detach_concurrently_of(stmt) != NULL)
		what = "ALTER TABLE ... DETACH CONCURRENTLY";
	else
		return;
	/* PostgreSQL's standard_ProcessUtility() would say so later, or not at all */
	PreventCommandIfReadOnly(GetCommandTagName(CreateCommandTag(stmt)));
	PreventInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL, what);
	relid = ddl_concurrently_table_of(stmt, &mode);
	if (!OidIsValid(relid) || !OT_OWNS_RELATION(relid) ||
		get_rel_persistence(relid) == RELPERSISTENCE_TEMP)
		return;
	while (ot_ddl_stand_in_line(), !ot_index_try_lock(relid, mode))
	{
		/* it may wait for hours, which is no reason for others to wait */
		ot_ddl_leave_line();
		ot_index_pause_politely(since);
		/* by now the name may be another table's */
		relid = ddl_concurrently_table_of(stmt, &mode);
		if (!OidIsValid(relid) || !OT_OWNS_RELATION(relid))
			return;
	}
}
