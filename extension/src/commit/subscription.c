/*-------------------------------------------------------------------------
 *
 * subscription.c
 *	  Subscriptions of the replicated database: where they are, and how far.
 *
 * A subscription is its server's own.  What PostgreSQL's workers for it write is
 * captured, and becomes one entry for each transaction of the publisher.  How far
 * the subscription has come must be in the same entry: it is a row of
 * onetrip.subscription_position, a replicated table, which is written last in
 * each of these transactions.
 *
 *	relid 0		the subscription: which node it is at, its OID there, its
 *				position, and the tables that are still being copied
 *	others		a table's own worker, by the table's OID at that node; at 0/0
 *				until the table's first rows are copied
 *
 * How it can be made at another node, if this one is lost, is in
 * onetrip.subscription_definition (subscription_elsewhere.c).
 *
 * A worker begins with an entry that writes the row.  An entry of an earlier
 * worker that is still under way loses against that one, or is decided before it;
 * then the worker begins once more.  So what the row says is how far the
 * subscription has come, also if the server has crashed between a verdict and its
 * own commit, or another node has begun where this one ends.  From then on the
 * worker changes the row only if it is as it has left it: of two that write it
 * from the same position, the log lets one commit.
 *
 * The row also says who may apply.  CREATE SUBSCRIPTION writes it, and may take a
 * subscription of the same name from another node.  From then on nothing of the
 * former node's commits, and its worker disables the subscription there.
 *
 * PostgreSQL takes a table's worker and the main worker apart by positions that
 * are only in the server's own catalog.  While a table is being copied, the
 * subscription cannot be taken over, therefore.  When a table is handed to the
 * main worker, the row's position is at least the one at which that happens.
 *
 * Locks are taken in one order: the subscription, pg_subscription_rel, the row.
 *
 * Runs in PostgreSQL's workers, at PRE_COMMIT, in backends, around the statements
 * about subscriptions, and in the apply worker, which ends the workers of a
 * subscription that has been taken over.  All of it may raise ERROR, but for what
 * is called at COMMIT and ABORT.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/subscription_internal.h"

#include <signal.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_replication_origin.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "replication/logicalworker.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/pg_lsn.h"
#include "utils/snapmgr.h"

#include "ddl/ddl.h"

static ProcessUtility_hook_type prev_process_utility = NULL;

/* What a worker knows. */
static struct
{
	bool		has_begun;
	bool		is_elsewhere;	/* ends without having done anything */
	bool		has_row;
	XLogRecPtr	position;		/* in its row */
	bool		wrote_here;		/* since its last entry it has committed what is in
								 * no entry */
	bool		has_failed;		/* and at most disables its subscription now */
}			worker;

/* What a statement has found before it ran. */
typedef struct Before
{
	Oid			subscription;
	bool		has_row;		/* of its name */
	bool		is_here;		/* and it is that of its subscription */
	int			node;			/* where that is */
	Oid			there;			/* and its OID there */
} Before;

/* The statement is given by ot_subscription_take_over(). */
bool		ot_subscription_taking_over = false;

/* In the apply worker: entries have changed the table. */
static bool table_has_changed = false;

/* In the apply worker: subscriptions that these entries have left without a row. */
static List *taken_over = NIL;

/* In the apply worker: those whose workers it has ended, which is enough. */
static List *ended = NIL;

/* ---- the table ---- */

/*
 * The table belongs to the extension, and the subscription to somebody else, whose
 * names must mean nothing here.
 */
void
ot_subscription_begin(OtSubscriptionContext *saved)
{
	GetUserIdAndSecContext(&saved->user, &saved->security_context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, saved->security_context | SECURITY_LOCAL_USERID_CHANGE);
	saved->nest_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	/* the default may be a read-only transaction, which stops no worker */
	saved->read_only = XactReadOnly;
	if (IsLogicalWorker())
		XactReadOnly = false;
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) SPI_connect();
}

void
ot_subscription_end(const OtSubscriptionContext *saved)
{
	SPI_finish();
	PopActiveSnapshot();
	XactReadOnly = saved->read_only;
	AtEOXact_GUC(false, saved->nest_level);
	SetUserIdAndSecContext(saved->user, saved->security_context);
}

/*
 * Runs a statement with the parameters $1, a subscription's name, $2, a relid,
 * $3, this node's number, $4, a position, and $5, the subscription's OID.
 */
uint64
ot_subscription_execute(int expected, const char *query, const char *name, Oid relid, XLogRecPtr position, Oid oid)
{
	Oid			types[] = {TEXTOID, OIDOID, INT4OID, PG_LSNOID, OIDOID};
	Datum		args[] = {
		CStringGetTextDatum(name), ObjectIdGetDatum(relid), Int32GetDatum(ot_node_id), LSNGetDatum(position),
		ObjectIdGetDatum(oid)
	};

	if (SPI_execute_with_args(query, lengthof(args), types, args, NULL, false, 0) != expected)
		elog(ERROR, "cannot execute \"%s\"", query);
	return SPI_processed;
}

#define NAMED "subscription OPERATOR(pg_catalog.=) $1 AND relid OPERATOR(pg_catalog.=) $2"
/* OIDs alone are not enough: in a copy of another server they may be other ones. */
#define HERE NAMED " AND node_id OPERATOR(pg_catalog.=) $3 AND subid OPERATOR(pg_catalog.=) $5"

/*
 * Reads the row of a subscription or a table: its own, or if there is none, that
 * of its name, which is another node's.  If it is locked, nobody else changes it
 * until the end of the transaction, which then becomes an entry.  Another node's
 * is locked only if there is no subscription here yet.
 */
bool
ot_subscription_read(const char *name, Oid subscription, Oid relid, bool lock, OtSubscriptionRow *row)
{
	HeapTuple	tuple;
	TupleDesc	desc;
	bool		isnull;

#define COLUMNS "SELECT node_id, region, position, pg_catalog.array_to_string(copying, ', '), subid FROM " TABLE " WHERE "
	row->is_here = OidIsValid(subscription) &&
		ot_subscription_execute(SPI_OK_SELECT, lock ? COLUMNS HERE " FOR UPDATE" : COLUMNS HERE,
								name, relid, 0, subscription) > 0;
	if (!row->is_here &&
		ot_subscription_execute(SPI_OK_SELECT, lock && !OidIsValid(subscription) ? COLUMNS NAMED " FOR UPDATE" : COLUMNS NAMED,
								name, relid, 0, InvalidOid) == 0)
		return false;
	tuple = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	row->node = DatumGetInt32(SPI_getbinval(tuple, desc, 1, &isnull));
	row->region = SPI_getvalue(tuple, desc, 2);
	row->position = DatumGetLSN(SPI_getbinval(tuple, desc, 3, &isnull));
	row->copying = SPI_getvalue(tuple, desc, 4);
	row->subscription = DatumGetObjectId(SPI_getbinval(tuple, desc, 5, &isnull));
	return true;
}

bool
ot_subscription_has_table(void)
{
	Oid			schema = get_namespace_oid("onetrip", true);

	return OidIsValid(schema) && OidIsValid(get_relname_relid("subscription_position", schema));
}

static void
subscription_check_table(void)
{
	if (!ot_subscription_has_table())
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("a subscription needs a newer version of extension onetrip in this database"),
				 errhint("ALTER EXTENSION onetrip UPDATE.")));
}

#define COPYING "ARRAY(SELECT r.srrelid::pg_catalog.regclass::pg_catalog.text " COPIED_FROM " ORDER BY 1)"
/* At what position the last of the others was handed to it. */
#define HANDED_OVER "COALESCE((SELECT pg_catalog.max(r.srsublsn) FROM pg_catalog.pg_subscription_rel AS r " \
	"WHERE r.srsubid OPERATOR(pg_catalog.=) $5 AND r.srsubstate OPERATOR(pg_catalog.=) 'r'::pg_catalog.\"char\"), '0/0')"
/* Rows of tables that are the main worker's, or nobody's. */
#define DELETE_COPIED "DELETE FROM " TABLE " AS p WHERE p.node_id OPERATOR(pg_catalog.=) $3 AND p.subid OPERATOR(pg_catalog.=) $5 " \
	"AND p.relid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid AND NOT EXISTS (SELECT " COPIED_FROM " AND r.srrelid OPERATOR(pg_catalog.=) p.relid)"

/* The OIDs of a query's rows, in the present memory context. */
List *
ot_subscription_oids(const char *query, const char *name, Oid subscription)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *oids = NIL;
	OtSubscriptionContext saved;

	ot_subscription_begin(&saved);
	(void) ot_subscription_execute(SPI_OK_SELECT, query, name, InvalidOid, 0, subscription);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		bool		isnull;
		Oid			oid = DatumGetObjectId(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull));
		MemoryContext old = MemoryContextSwitchTo(context);

		oids = lappend_oid(oids, oid);
		MemoryContextSwitchTo(old);
	}
	ot_subscription_end(&saved);
	return oids;
}

/*
 * The workers of subscriptions may write what their owner may, also as a member of
 * pg_write_all_data.  The tables of this extension are not for that
 * (capture/own_tables.c).
 */
static void
subscription_check_tables(const char *name, Oid subscription)
{
	List	   *own = ot_subscription_oids("SELECT r.srrelid FROM pg_subscription_rel AS r JOIN pg_class AS c ON c.oid = r.srrelid "
										   "WHERE r.srsubid = $5 AND c.relnamespace = 'onetrip'::regnamespace", name, subscription);

	if (own != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("subscription \"%s\" cannot follow table \"onetrip.%s\", which is the server's own", name, get_rel_name(linitial_oid(own))),
				 errhint("Take it out of the publication.")));
}

/* ---- in a worker ---- */

#define HINT_ELSEWHERE \
	errhint("To remove what is left of it here: ALTER SUBSCRIPTION %s DISABLE; ALTER SUBSCRIPTION %s SET (slot_name = NONE); DROP SUBSCRIPTION %s.", \
			quote_identifier(name), quote_identifier(name), quote_identifier(name))

int
ot_subscription_say_elsewhere(const char *name, const OtSubscriptionRow *row)
{
	if (row == NULL)
		return errdetail("The cluster knows of no subscription of this name.");
	if (row->node == ot_node_id)
		return errdetail("The one that the cluster knows was made in an earlier server of this node.");
	return errdetail("It has been taken over by node %d, region \"%s\".", row->node, row->region);
}

pg_noreturn static void
subscription_refuse_elsewhere(const char *name, const OtSubscriptionRow *row)
{
	ereport(ERROR,
			(errcode(OT_ERR_NOT_NOW),
			 errmsg("subscription \"%s\" is not at this node any more", name),
			 ot_subscription_say_elsewhere(name, row),
			 HINT_ELSEWHERE));
}

pg_noreturn static void
subscription_refuse_option(const char *option, const char *instead)
{
	ereport(ERROR,
			(errcode(OT_ERR_NOT_REPLICATED),
			 errmsg("cannot replicate what a subscription with %s applies", option),
			 errhint("Set %s.", instead)));
}

/* Lets the worker begin at the position, unless it would begin later by itself. */
static void
subscription_advance(const char *origin_name, XLogRecPtr position)
{
	RepOriginId origin = replorigin_by_name(origin_name, true);
	bool		is_new = origin == InvalidRepOriginId;

	if (is_new)
		origin = replorigin_create(origin_name);
	if (!is_new && replorigin_get_progress(origin, false) >= position)
		return;
	LockRelationOid(ReplicationOriginRelationId, RowExclusiveLock);
	replorigin_advance(origin, position, InvalidXLogRecPtr, is_new, true);
	UnlockRelationOid(ReplicationOriginRelationId, RowExclusiveLock);
}

/* Before the row is locked.  Returns the name that the subscription has now. */
static const char *
subscription_lock_catalogs(void)
{
	LockSharedObject(SubscriptionRelationId, MySubscription->oid, 0, AccessShareLock);
	LockRelationOid(SubscriptionRelRelationId, RowExclusiveLock);
	return get_subscription_name(MySubscription->oid, false);
}

/*
 * A table's worker.  If its first rows are in the log, they are not copied once
 * more, whatever this server's catalog says: it may have lost the end of it.
 */
static void
subscription_begin_table(const char *name)
{
	Oid			subscription = MySubscription->oid;
	Oid			relid = MyLogicalRepWorker->relid;
	XLogRecPtr	since;
	char		state = GetSubscriptionRelState(subscription, relid, &since);
	char		origin[NAMEDATALEN];
	OtSubscriptionRow row;

	/* it has nothing left to do but to end */
	if (state == SUBREL_STATE_UNKNOWN || state == SUBREL_STATE_SYNCDONE || state == SUBREL_STATE_READY)
		return;
	worker.has_row = true;
	if (!ot_subscription_read(name, subscription, relid, true, &row) || !row.is_here)
	{
		(void) ot_subscription_execute(SPI_OK_INSERT, "INSERT INTO " TABLE " (subscription, relid, node_id, region, subid, position) "
									   "VALUES ($1, $2, $3, pg_catalog.current_setting('onetrip.region'), $5, '0/0')",
									   name, relid, InvalidXLogRecPtr, subscription);
		return;
	}
	(void) ot_subscription_execute(SPI_OK_UPDATE, "UPDATE " TABLE " SET changed = pg_catalog.now() WHERE " HERE,
								   name, relid, InvalidXLogRecPtr, subscription);
	worker.position = row.position;
	if (worker.position == InvalidXLogRecPtr)
		return;
	OT_TABLE_ORIGIN_NAME(subscription, relid, origin);
	subscription_advance(origin, worker.position);
	if (state == SUBREL_STATE_INIT || state == SUBREL_STATE_DATASYNC)
		OT_UPDATE_SUBSCRIPTION_TABLE(subscription, relid, SUBREL_STATE_FINISHEDCOPY, InvalidXLogRecPtr);
}

/*
 * The first transaction in which the worker has its subscription, before it looks
 * where to begin.
 */
static void
subscription_begin_worker(void)
{
	Oid			subscription = MySubscription->oid;
	const char *name;
	OtSubscriptionRow row;
	OtSubscriptionContext saved;
	bool		found;

	subscription_check_table();
	if (MySubscription->twophasestate != LOGICALREP_TWOPHASE_STATE_DISABLED)
		subscription_refuse_option("two_phase = true", "two_phase = false");
	if (OT_STREAMS_IN_PARALLEL(MySubscription))
		subscription_refuse_option("streaming = parallel", "streaming = on");

	name = subscription_lock_catalogs();
	subscription_check_tables(name, subscription);
	ot_subscription_begin(&saved);
	found = ot_subscription_read(name, subscription, InvalidOid, true, &row);
	if (!found || !row.is_here)
	{
		ereport(LOG,
				(errmsg("disabling subscription \"%s\", which is not at this node", name),
				 ot_subscription_say_elsewhere(name, found ? &row : NULL)));
		DisableSubscription(subscription);
		worker.is_elsewhere = true;
	}
	else if (OidIsValid(MyLogicalRepWorker->relid))
		subscription_begin_table(name);
	else
	{
		char		origin[NAMEDATALEN];

		(void) ot_subscription_execute(SPI_OK_UPDATE, "UPDATE " TABLE " SET changed = pg_catalog.now() WHERE " HERE,
									   name, InvalidOid, InvalidXLogRecPtr, subscription);
		worker.has_row = true;
		worker.position = row.position;
		snprintf(origin, sizeof(origin), "pg_%u", subscription);
		if (worker.position != InvalidXLogRecPtr)
			subscription_advance(origin, worker.position);
	}
	ot_subscription_end(&saved);
	worker.has_begun = true;
}

/* Writes how far the worker has come with what it commits now. */
static void
subscription_write(bool has_changes)
{
	const char *name = MySubscription->name;
	Oid			subscription = MySubscription->oid;
	Oid			relid = MyLogicalRepWorker->relid;
	RepOriginId origin = replorigin_session_origin;
	XLogRecPtr	position = replorigin_session_origin_lsn;
	char	   *table;
	OtSubscriptionRow row;
	OtSubscriptionContext saved;
	bool		found;

	/* nothing may commit after a failure that has cost the worker its origin */
	if (origin == InvalidRepOriginId)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("the worker of subscription \"%s\" has no replication origin", name),
				 errhint("It starts again by itself.")));
	/* if the server crashed before its own commit, the log would bring only a part */
	table = has_changes ? ot_held_locks_written_here() : NULL;
	if (table != NULL)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("subscription \"%s\" has got a transaction about onetrip tables and about table \"%s\", which is not replicated",
						name, table),
				 errhint("ALTER TABLE %s SET ACCESS METHOD onetrip, or subscribe to it by a subscription of its own.", table)));
	/* the first rows of a table: its worker begins where they were copied */
	if (position == InvalidXLogRecPtr)
		position = replorigin_session_get_progress(false);
	/* the log will say that all before this has been done */
	if (worker.wrote_here)
		XLogFlush(XactLastCommitEnd);
	worker.wrote_here = false;

	/* an abort record with the origin would mark the position as reached */
	replorigin_session_origin = InvalidRepOriginId;
	name = subscription_lock_catalogs();
	ot_subscription_begin(&saved);
	found = ot_subscription_read(name, subscription, InvalidOid, true, &row);
	if (!found || !row.is_here)
		subscription_refuse_elsewhere(name, found ? &row : NULL);
	if (OidIsValid(relid))
		found = ot_subscription_read(name, subscription, relid, true, &row) && row.is_here;
	/* somebody has changed it by hand, or has dropped the table's part */
	if (!found || !worker.has_row || row.position != worker.position ||
		(has_changes && position <= worker.position))
		ereport(ERROR,
				(errcode(OT_ERR_LOST),
				 errmsg("subscription \"%s\" has already come further", name),
				 errdetail("Its worker was at %X/%X and came to %X/%X, the cluster is at %X/%X.",
						   LSN_FORMAT_ARGS(worker.position), LSN_FORMAT_ARGS(position),
						   LSN_FORMAT_ARGS(found ? row.position : InvalidXLogRecPtr)),
				 errhint("The worker starts again by itself. If this is repeated, see onetrip.subscription_position.")));
	position = Max(position, worker.position);
	if (OidIsValid(relid))
		(void) ot_subscription_execute(SPI_OK_UPDATE, "UPDATE " TABLE " SET position = $4, changed = pg_catalog.now() WHERE " HERE,
									   name, relid, position, subscription);
	else
	{
		bool		isnull;

		if (ot_subscription_execute(SPI_OK_UPDATE_RETURNING, "UPDATE " TABLE " SET position = GREATEST($4, " HANDED_OVER "), copying = " COPYING
									", changed = pg_catalog.now() WHERE " HERE " RETURNING position",
									name, relid, position, subscription) != 1)
			elog(ERROR, "cannot write the row of subscription \"%s\"", name);
		position = DatumGetLSN(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
		(void) ot_subscription_execute(SPI_OK_DELETE, DELETE_COPIED, name, relid, position, subscription);
	}
	ot_subscription_end(&saved);
	replorigin_session_origin = origin;
	worker.position = position;
}

/* Has a table been handed to the main worker, or have tables been added? */
static bool
subscription_copies_others(void)
{
	OtSubscriptionContext saved;
	bool		differs;

	ot_subscription_begin(&saved);
	differs = ot_subscription_execute(SPI_OK_SELECT, "SELECT FROM " TABLE " WHERE " HERE " AND copying OPERATOR(pg_catalog.<>) " COPYING,
									  MySubscription->name, InvalidOid, 0, MySubscription->oid) > 0;
	ot_subscription_end(&saved);
	return differs;
}

/*
 * The first thing at PRE_COMMIT: the row is captured as any other.  `has_changes`:
 * the transaction becomes an entry in any case.
 */
void
ot_subscription_at_pre_commit(bool has_changes)
{
	if (likely(!IsLogicalWorker()) || MySubscription == NULL || !ot_capturing())
		return;
	if (!worker.has_begun)
	{
		subscription_begin_worker();
		return;
	}
	if (worker.is_elsewhere)
	{
		if (has_changes)
			subscription_refuse_elsewhere(MySubscription->name, NULL);
		return;
	}
	if (!has_changes)
	{
		if (!TransactionIdIsValid(GetTopTransactionIdIfAny()) || worker.has_failed)
			return;
		if (OidIsValid(MyLogicalRepWorker->relid))
		{
			/* it drops its slot when it notes that the table is complete */
			ForceSyncCommit();
			return;
		}
		if (replorigin_session_origin == InvalidRepOriginId)
			return;
		CommandCounterIncrement();
		/*
		 * What it has done to local tables is in no entry.  ALTER SUBSCRIPTION ...
		 * SKIP: nobody is to apply that one.
		 */
		if (ot_held_locks_written_here() != NULL ||
			(!(in_remote_transaction && MySubscription->skiplsn != InvalidXLogRecPtr) &&
			 !subscription_copies_others()))
		{
			worker.wrote_here = true;
			return;
		}
	}
	else
		CommandCounterIncrement();
	subscription_write(has_changes);
}

/* Ends a worker that has nothing to do here, once its subscription is disabled. */
void
ot_subscription_at_commit(void)
{
	if (unlikely(worker.is_elsewhere))
		(void) kill(MyProcPid, SIGTERM);
}

/*
 * The worker has noted where the transaction would have ended.  If it goes on to
 * disable its subscription (disable_on_error), that must not be noted as reached.
 */
void
ot_subscription_at_abort(void)
{
	if (unlikely(IsLogicalWorker()))
	{
		replorigin_session_origin_lsn = InvalidXLogRecPtr;
		replorigin_session_origin_timestamp = 0;
		worker.has_failed = true;
	}
}

/* ---- in the apply worker ---- */

/* An entry of another region writes the table. */
void
ot_subscription_table_changes(const char *schema, const char *table)
{
	if (unlikely(strcmp(schema, "onetrip") == 0) && strcmp(table, "subscription_position") == 0)
		table_has_changed = true;
}

/*
 * Looks, in the transaction that has applied the entries, for subscriptions that
 * they have taken from this node.  If a statement about one holds the catalog, the
 * next entry of this kind will do: nothing waits for this.
 */
void
ot_subscription_look_for_taken_over(void)
{
	OtSubscriptionContext saved;

	if (likely(!table_has_changed) ||
		!ConditionalLockRelationOid(SubscriptionRelationId, AccessShareLock))
		return;
	table_has_changed = false;
	if (taken_over != ended)
		list_free(taken_over);
	taken_over = NIL;
	ot_subscription_begin(&saved);
	(void) ot_subscription_execute(SPI_OK_SELECT, "SELECT s.oid FROM pg_catalog.pg_subscription AS s WHERE s.subenabled "
								   "AND s.subdbid OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database AS d "
								   "WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()) "
								   "AND NOT EXISTS (SELECT FROM " TABLE " AS p WHERE p.relid OPERATOR(pg_catalog.=) $2 "
								   "AND p.node_id OPERATOR(pg_catalog.=) $3 AND p.subid OPERATOR(pg_catalog.=) s.oid "
								   "AND p.subscription OPERATOR(pg_catalog.=) s.subname::pg_catalog.text)",
								   "", InvalidOid, 0, InvalidOid);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
		bool		isnull;

		taken_over = lappend_oid(taken_over, DatumGetObjectId(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull)));
		MemoryContextSwitchTo(old);
	}
	ot_subscription_end(&saved);
}

/*
 * Ends their workers, after the commit.  Those that PostgreSQL starts instead find
 * that they have nothing to do here.  Without this, they would hold the slot until
 * the publisher sends the next change.
 */
void
ot_subscription_end_taken_over(void)
{
	ListCell   *lc;

	if (likely(taken_over == ended))
		return;
	LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
	foreach(lc, taken_over)
	{
		List	   *workers = list_member_oid(ended, lfirst_oid(lc)) ? NIL : OT_SUBSCRIPTION_WORKERS(lfirst_oid(lc));
		ListCell   *each;

		foreach(each, workers)
			(void) kill(((LogicalRepWorker *) lfirst(each))->proc->pid, SIGTERM);
		list_free(workers);
	}
	LWLockRelease(LogicalRepWorkerLock);
	list_free(ended);
	ended = taken_over;
}

/* ---- around statements ---- */

static bool
subscription_option_is(List *options, const char *name, bool otherwise)
{
	DefElem    *option = ot_ddl_find_option(options, name);

	return option ? defGetBoolean(option) : otherwise;
}

static void
subscription_check_options(List *options)
{
	DefElem    *streaming = ot_ddl_find_option(options, "streaming");

	if (streaming && streaming->arg != NULL && pg_strcasecmp(defGetString(streaming), "parallel") == 0)
		subscription_refuse_option("streaming = parallel", "streaming = on");
	if (subscription_option_is(options, "two_phase", false))
		subscription_refuse_option("two_phase = true", "two_phase = false");
}

/* Who does not say how to stream gets parallel workers in newer versions; here, the nearest to that. */
static void
subscription_stream(CreateSubscriptionStmt *stmt)
{
	MemoryContext old;

	if (!OT_STREAMS_IN_PARALLEL_BY_DEFAULT || ot_ddl_find_option(stmt->options, "streaming") != NULL)
		return;
	/* the statement may be run again, and lives as long as it did */
	old = MemoryContextSwitchTo(GetMemoryChunkContext(stmt));
	stmt->options = lappend(stmt->options, makeDefElem("streaming", (Node *) makeString("on"), -1));
	MemoryContextSwitchTo(old);
}

/*
 * CREATE SUBSCRIPTION of a name that the cluster knows takes it over.  Its options
 * must say that nothing is begun anew.  What pg_dump writes (connect = false) does
 * not say so.  Whose it is, is known to the other server only.
 */
static void
subscription_check_takeover(CreateSubscriptionStmt *stmt, Oid user, const OtSubscriptionRow *row)
{
	if (!subscription_option_is(stmt->options, "connect", true) ||
		subscription_option_is(stmt->options, "create_slot", true) ||
		subscription_option_is(stmt->options, "copy_data", true))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("subscription \"%s\" is already at node %d, region \"%s\"", stmt->subname, row->node, row->region),
				 errhint("To take it over from there, give it WITH (create_slot = false, copy_data = false, slot_name = ...). To begin anew, drop it there first, or DELETE FROM onetrip.subscription_position WHERE subscription = %s if that server is gone.",
						 quote_literal_cstr(stmt->subname))));
	if (!superuser_arg(user))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to take over subscription \"%s\" from region \"%s\"", stmt->subname, row->region)));
	if (row->copying != NULL && row->copying[0] != '\0')
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("subscription \"%s\" cannot be taken over from region \"%s\": its tables have not been copied",
						stmt->subname, row->region),
				 errdetail("Not complete: %s.", row->copying),
				 errhint("Empty these tables, DELETE FROM onetrip.subscription_position WHERE subscription = %s, and create a subscription with another slot.",
						 quote_literal_cstr(stmt->subname))));
}

/*
 * The slot of a subscription that has been taken over is the other node's.  DROP
 * would remove it at the publisher.
 */
static void
subscription_check_drop(const char *name, Oid oid, const OtSubscriptionRow *row)
{
	Subscription *subscription = GetSubscription(oid, false);

	if (subscription->slotname != NULL)
		subscription_refuse_elsewhere(name, row);
}

static const char *
subscription_named_by(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_CreateSubscriptionStmt:
			return ((CreateSubscriptionStmt *) stmt)->subname;
		case T_AlterSubscriptionStmt:
			return ((AlterSubscriptionStmt *) stmt)->subname;
		case T_DropSubscriptionStmt:
			return ((DropSubscriptionStmt *) stmt)->subname;
		case T_RenameStmt:
			if (((RenameStmt *) stmt)->renameType == OBJECT_SUBSCRIPTION)
				return strVal(((RenameStmt *) stmt)->object);
			return NULL;
		default:
			return NULL;
	}
}

/* May it change which tables are followed? */
static bool
subscription_changes_tables(Node *stmt)
{
	if (!IsA(stmt, AlterSubscriptionStmt))
		return IsA(stmt, CreateSubscriptionStmt);
	switch (((AlterSubscriptionStmt *) stmt)->kind)
	{
		case ALTER_SUBSCRIPTION_OPTIONS:
		case ALTER_SUBSCRIPTION_CONNECTION:
		case ALTER_SUBSCRIPTION_ENABLED:
		case ALTER_SUBSCRIPTION_SKIP:
			return false;
		default:
			return true;
	}
}

/* Before a statement runs.  Returns whether it concerns a subscription's row. */
static bool
subscription_before(Node *stmt, Before *before)
{
	const char *name = subscription_named_by(stmt);
	OtSubscriptionRow row;
	OtSubscriptionContext saved;

	if (likely(name == NULL) || !IsTransactionState() || !ot_capturing())
		return false;
	if (!ot_subscription_has_table())
	{
		if (IsA(stmt, CreateSubscriptionStmt))
			subscription_check_table();
		return false;
	}
	if (IsA(stmt, CreateSubscriptionStmt))
	{
		ot_check_writable();
		subscription_check_options(((CreateSubscriptionStmt *) stmt)->options);
		subscription_stream((CreateSubscriptionStmt *) stmt);
	}
	else if (IsA(stmt, AlterSubscriptionStmt))
		subscription_check_options(((AlterSubscriptionStmt *) stmt)->options);

	before->subscription = get_subscription_oid(name, true);
	ot_subscription_begin(&saved);
	before->has_row = ot_subscription_read(name, before->subscription, InvalidOid, false, &row);
	before->is_here = before->has_row && row.is_here;
	if (before->has_row)
	{
		before->node = row.node;
		before->there = row.subscription;
	}
	if (IsA(stmt, CreateSubscriptionStmt) && before->has_row && !OidIsValid(before->subscription) && !ot_subscription_taking_over)
		subscription_check_takeover((CreateSubscriptionStmt *) stmt, saved.user, &row);
	if (OidIsValid(before->subscription) && !before->is_here)
	{
		if (IsA(stmt, AlterSubscriptionStmt) && ((AlterSubscriptionStmt *) stmt)->kind == ALTER_SUBSCRIPTION_ENABLED &&
			subscription_option_is(((AlterSubscriptionStmt *) stmt)->options, "enabled", false))
			subscription_refuse_elsewhere(name, before->has_row ? &row : NULL);
		if (IsA(stmt, DropSubscriptionStmt))
			subscription_check_drop(name, before->subscription, before->has_row ? &row : NULL);
	}
	ot_subscription_end(&saved);
	return true;
}

/* After it has run. */
static void
subscription_after(Node *stmt, const Before *before)
{
	const char *name = subscription_named_by(stmt);
	Oid			subscription;
	LOCKTAG		tag;
	OtSubscriptionContext saved;

	/* the log has the row, but not what this server's catalog says */
	ForceSyncCommit();
	CommandCounterIncrement();
	/* an entry that drops a table needs the catalog too: one of the two loses */
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, SubscriptionRelRelationId);
	if (OT_LOCK_IS_HELD_BY_ME(&tag, AccessExclusiveLock))
		ot_write_set_key_now(ot_hash_schema(), OT_KEY_SHARE, InvalidOid);
	ot_subscription_begin(&saved);
	subscription = get_subscription_oid(name, true);
	if (IsA(stmt, CreateSubscriptionStmt))
	{
		OtSubscriptionRow row;

		/*
		 * The row was not locked while the publisher answered: each entry of the
		 * node that has it would have come in between.
		 */
		bool		has_row = ot_subscription_read(name, InvalidOid, InvalidOid, true, &row);

		if (has_row != before->has_row ||
			(has_row && (row.node != before->node || row.subscription != before->there)))
			ereport(ERROR,
					(errcode(OT_ERR_LOST),
					 errmsg("subscription \"%s\" has been made, taken over or dropped by another node meanwhile", name),
					 errhint("SELECT * FROM onetrip.subscription_position says where it is.")));
		if (has_row)
		{
			if (!ot_subscription_taking_over)
				subscription_check_takeover((CreateSubscriptionStmt *) stmt, saved.user, &row);
			(void) ot_subscription_execute(SPI_OK_UPDATE, "UPDATE " TABLE " SET node_id = $3, region = pg_catalog.current_setting('onetrip.region'), "
										   "subid = $5, copying = " COPYING ", changed = pg_catalog.now() WHERE " NAMED,
										   name, InvalidOid, 0, subscription);
		}
		else
			(void) ot_subscription_execute(SPI_OK_INSERT, "INSERT INTO " TABLE " (subscription, relid, node_id, region, subid, position, copying) "
										   "VALUES ($1, $2, $3, pg_catalog.current_setting('onetrip.region'), $5, '0/0', " COPYING ")",
										   name, InvalidOid, 0, subscription);
		(void) ot_subscription_execute(SPI_OK_DELETE, "DELETE FROM " TABLE " WHERE subscription OPERATOR(pg_catalog.=) $1 AND relid OPERATOR(pg_catalog.<>) $2",
									   name, InvalidOid, 0, InvalidOid);
	}
	else if (!before->is_here)
		 /* the row, if there is one, is another node's */ ;
	else if (IsA(stmt, DropSubscriptionStmt))
		(void) ot_subscription_execute(SPI_OK_DELETE, "DELETE FROM " TABLE " WHERE node_id OPERATOR(pg_catalog.=) $3 AND subid OPERATOR(pg_catalog.=) $5",
									   name, InvalidOid, 0, before->subscription);
	else if (IsA(stmt, RenameStmt))
		(void) ot_subscription_execute(SPI_OK_UPDATE, "UPDATE " TABLE " SET subscription = $1 WHERE node_id OPERATOR(pg_catalog.=) $3 AND subid OPERATOR(pg_catalog.=) $5",
									   ((RenameStmt *) stmt)->newname, InvalidOid, 0, before->subscription);
	else
	{
		/* whoever takes it over meanwhile does not know the tables */
		if (subscription_changes_tables(stmt))
			(void) ot_subscription_execute(SPI_OK_UPDATE, "UPDATE " TABLE " SET copying = " COPYING ", changed = pg_catalog.now() WHERE " HERE,
										   name, InvalidOid, 0, subscription);
		(void) ot_subscription_execute(SPI_OK_DELETE, DELETE_COPIED, name, InvalidOid, 0, subscription);
	}
	ot_subscription_end(&saved);
	if (ot_subscription_taking_over)
		return;
	/* what else has changed, the worker notes when it can */
	CommandCounterIncrement();
	if (subscription_changes_tables(stmt) && OidIsValid(subscription))
		subscription_check_tables(name, subscription);
	if (IsA(stmt, CreateSubscriptionStmt) && before->has_row)
	{
		ot_subscription_forget_others(name, subscription);
		CommandCounterIncrement();
	}
	if (subscription_changes_tables(stmt) || IsA(stmt, DropSubscriptionStmt) || IsA(stmt, RenameStmt))
		ot_subscription_note_definitions(name);
	if (IsA(stmt, RenameStmt))
		ot_subscription_note_definitions(((RenameStmt *) stmt)->newname);
}

static void
ot_subscription_process_utility(PlannedStmt *pstmt, const char *query, bool read_only_tree,
								ProcessUtilityContext context, ParamListInfo params,
								QueryEnvironment *env, DestReceiver *dest,
								QueryCompletion *completion)
{
	OtUtility	call = {prev_process_utility, pstmt, pstmt->utilityStmt, query, read_only_tree,
		context, params, env, dest, completion};
	Node	   *stmt = pstmt->utilityStmt;
	Before		before = {0};
	bool		concerns = subscription_before(stmt, &before);

	ot_call_process_utility(&call);
	if (concerns)
		subscription_after(stmt, &before);
}

void
ot_subscription_init(void)
{
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = ot_subscription_process_utility;
}
