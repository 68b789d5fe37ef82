/*-------------------------------------------------------------------------
 *
 * fresh.c
 *	  Fresh reads: a transaction that sees at least everything that was
 *	  acknowledged anywhere before it asked (onetrip.read = fresh), or some time
 *	  before it began (onetrip.max_staleness).
 *
 * Such a transaction asks its node once which entry this server must show, and
 * waits until it does.  Snapshots taken after that are new enough, so it does
 * not ask again.  When it asks:
 *
 *	READ COMMITTED		when its first query starts to run.  By then PostgreSQL
 *						has taken the query's snapshot, and no hook is called
 *						before that, so the snapshot is replaced by a newer one
 *	REPEATABLE READ		before its only snapshot: when its block begins, or
 *						when a SET in the block turns this on.  It is too late
 *						once a query has run: ERROR
 *
 * Queries of nothing but catalogs, built-in functions and what the extension
 * itself offers do not ask.  So onetrip.status can be read without a majority.
 * Whatever is about to call a function that reads large objects does ask, also
 * when a query is made ready to run.
 *
 * With onetrip.max_staleness, a transaction that would ask looks first whether a
 * session of this server has asked lately enough.  The answer to that question
 * will do, and this server shows it already, or soon.
 *
 * Replacing the snapshot of a query.  The query has a reference to it, and it
 * usually is the active one, which functions that the query calls use too.  Of
 * the active snapshots only the first can be replaced, and only by whoever
 * knows the transaction level that it belongs to: an aborting subtransaction
 * removes those of its level.  Those of portals and of most commands belong to
 * the present level.  A function that is not volatile uses its caller's.  If no
 * subtransaction is open there is only one level.  In all other cases the query
 * gets a new snapshot and the active one stays.  It is recognized as older when
 * the next query is about to use it, by the transactions that it does not show.
 *
 * Plans that are out of date.  The plan of the query that asks is older than the
 * answer.  If what it waited for changed names, and a table or type that the plan
 * depends on or any function was invalidated meanwhile, the query fails with
 * 40001: it would miss the rows of a partition that is attached now.
 *
 * Runs in backends.  ERROR is raised before the query has done anything.  The
 * locks of a statement were taken when it was planned.  If an entry that the
 * server must show needs them, this transaction is evicted (apply/evict.c).
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/parallel.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_largeobject.h"
#include "catalog/pg_largeobject_metadata.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/plannodes.h"
#include "portability/instr_time.h"
#include "tcop/pquery.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "ddl/ddl.h"
#include "shmem/shmem.h"

static object_access_hook_type prev_object_access = NULL;
static ExecutorStart_hook_type prev_executor_start = NULL;
static ProcessUtility_hook_type prev_process_utility = NULL;

/* The transaction that has asked last, and from which snapshot on it is fresh. */
static struct
{
	LocalTransactionId lxid;
	int			bound_ms;		/* 0: it has asked itself; else another session's
								 * question was no older than that */
	TransactionId xmax;			/* of that snapshot; invalid: there was none before */
	TransactionId *running;		/* and those in it, sorted */
	uint32		nrunning;
}			asked;

/* The question of this server that was asked last, and the answer to it. */
typedef struct LastAsked
{
	slock_t		mutex;
	int64		at_us;			/* of fresh_clock_us(); 0: none yet */
	OtLogIndex	index;
} LastAsked;

static LastAsked *last_asked = NULL;

/* What it cost the transaction that has waited last. */
static struct
{
	LocalTransactionId lxid;
	OtFreshCost cost;
}			waited;

/* The plan of a query that asks, and what was invalidated since it was made. */
static struct
{
	PlannedStmt *plan;			/* NULL: none */
	bool		is_outdated;
	Oid			relation;		/* because of this table; InvalidOid: a function or
								 * type */
}			asking;

/* ---- plans ---- */

static void
fresh_relation_changed(Datum arg, Oid relid)
{
	if (asking.plan == NULL ||
		(OidIsValid(relid) && !list_member_oid(asking.plan->relationOids, relid)))
		return;
	asking.is_outdated = true;
	asking.relation = relid;
}

/* A plan does not say which functions were computed when it was made. */
static void
fresh_function_changed(Datum arg, int cache, uint32 hash)
{
	asking.is_outdated |= asking.plan != NULL;
}

static void
fresh_type_changed(Datum arg, int cache, uint32 hash)
{
	ListCell   *lc;

	if (asking.plan == NULL)
		return;
	foreach(lc, asking.plan->invalItems)
	{
		PlanInvalItem *item = lfirst_node(PlanInvalItem, lc);

		if (item->cacheId == cache && (hash == 0 || item->hashValue == hash))
			asking.is_outdated = true;
	}
}

static void
fresh_watch_plan(PlannedStmt *plan)
{
	static bool registered = false;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(fresh_relation_changed, (Datum) 0);
		CacheRegisterSyscacheCallback(PROCOID, fresh_function_changed, (Datum) 0);
		CacheRegisterSyscacheCallback(TYPEOID, fresh_type_changed, (Datum) 0);
	}
	registered = true;
	asking.plan = plan;
	asking.is_outdated = false;
	asking.relation = InvalidOid;
}

static void
fresh_raise_outdated(void)
{
	char	   *name = OidIsValid(asking.relation) ? get_rel_name(asking.relation) : NULL;

	ereport(ERROR,
			(errcode(OT_ERR_LOST),
			 name != NULL ?
			 errmsg("could not read fresh: the definition of table \"%s\" has changed", name) :
			 errmsg("could not read fresh: the definition of a function or type has changed"),
			 errdetail("The query was planned before the server of region \"%s\" showed the change.", ot_region),
			 errhint("Repeat the transaction.")));
}

/* ---- what is new enough ---- */

static inline bool
fresh_is_wanted(void)
{
	return ot_read == OT_READ_FRESH || ot_max_staleness_ms >= 0;
}

/* A clock that nobody sets, and that goes on while the machine is suspended. */
static int64
fresh_clock_us(void)
{
	struct timespec now;

#ifdef CLOCK_BOOTTIME
	(void) clock_gettime(CLOCK_BOOTTIME, &now);
#else
	(void) clock_gettime(CLOCK_MONOTONIC, &now);
#endif
	return (int64) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void
fresh_attach_memory(void *memory, bool found)
{
	last_asked = memory;
	if (!found)
		SpinLockInit(&last_asked->mutex);
}

/*
 * A server that shows `index` shows all that was acknowledged before `asked_us`,
 * when the question was about to be sent.
 */
static void
fresh_note_answer(int64 asked_us, OtLogIndex index)
{
	SpinLockAcquire(&last_asked->mutex);
	if (asked_us > last_asked->at_us)
	{
		last_asked->at_us = asked_us;
		last_asked->index = index;
	}
	SpinLockRelease(&last_asked->mutex);
}

/*
 * Has a session of this server been told what it must show, and asked for it so
 * lately that this is enough for onetrip.max_staleness?
 */
static bool
fresh_is_known(OtLogIndex *index)
{
	int64		now_us = fresh_clock_us();
	int64		asked_us;

	if (ot_read == OT_READ_FRESH)
		return false;
	SpinLockAcquire(&last_asked->mutex);
	asked_us = last_asked->at_us;
	*index = last_asked->index;
	SpinLockRelease(&last_asked->mutex);
	return asked_us != 0 && now_us - asked_us < (int64) ot_max_staleness_ms * 1000;
}

/* ---- the question ---- */

typedef struct FreshQuestion
{
	uint64		number;
	bool		may_ask;		/* the node may ask others */
	OtReadAt	answer;
} FreshQuestion;

static void
fresh_put_question(StringInfo frame, void *state)
{
	FreshQuestion *question = state;

	ot_put_u64(frame, question->number);
	ot_put_u8(frame, question->may_ask);
}

static OtTaken
fresh_take_answer(OtReader *body, void *state)
{
	FreshQuestion *question = state;

	if (!ot_agent_get_read_at(body, &question->answer))
		return OT_TAKEN_DAMAGED;
	return question->answer.number == question->number ? OT_TAKEN_ANSWER : OT_TAKEN_OTHER;
}

static void
fresh_raise_no_answer(void)
{
	OtAgent    *agent = ot_commit_agent();

	ereport(ERROR,
			(errcode(OT_ERR_NOT_NOW),
			 ot_agent_is_open(agent) ?
			 errmsg("cannot read fresh in region \"%s\": no answer within onetrip.commit_timeout", ot_region) :
			 errmsg("cannot read fresh: the node of region \"%s\" does not answer", ot_region),
			 ot_agent_is_open(agent) ?
			 errdetail("The region's node answers once a majority of regions has told it what is committed.") :
			 errdetail("%s.", ot_agent_error(agent)),
			 errhint("Repeat the transaction later or in another region, or read what this server shows: SET onetrip.read = local, and onetrip.max_staleness = -1.")));
}

static void
fresh_raise_behind(OtLogIndex at)
{
	ereport(ERROR,
			(errcode(OT_ERR_NOT_NOW),
			 errmsg("cannot read fresh: the server of region \"%s\" is behind", ot_region),
			 errdetail("It shows log index " UINT64_FORMAT " and must show " UINT64_FORMAT ".",
					   ot_applied_index().value, at.value),
			 errhint("Repeat the transaction later or in another region, or read what this server shows: SET onetrip.read = local, and onetrip.max_staleness = -1.")));
}

/* And starts the clock again. */
static double
fresh_ms_since(instr_time *begun)
{
	instr_time	now;
	instr_time	passed;

	INSTR_TIME_SET_CURRENT(now);
	passed = now;
	INSTR_TIME_SUBTRACT(passed, *begun);
	*begun = now;
	return INSTR_TIME_GET_MILLISEC(passed);
}

/*
 * Waits until this server shows all that was acknowledged before now.  Returns
 * whether names have changed since this session waited last, and so perhaps
 * since the present query was planned.
 */
static bool
fresh_wait(void)
{
	static uint64 last_number = 0;
	TimestampTz deadline = TimestampTzPlusMilliseconds(ot_now(), ot_commit_timeout_ms);
	FreshQuestion read = {.number = ++last_number};
	OtLogIndex	at;
	instr_time	begun;
	bool		names_changed;
	bool		asks;
	OtQuestion	question = {
		.type = OT_FRAME_READ,
		.answer = OT_FRAME_READ_AT,
		.put = fresh_put_question,
		.take = fresh_take_answer,
		.state = &read,
	};

	asks = !fresh_is_known(&at);
	/* if there is no room for a round trip, a read lease can still do without */
	read.may_ask = asks && ot_trips_are_left(1);
	if (read.may_ask)
		ot_trips_take("read fresh", 1);
	/* a cancel by the evictor must say what it is */
	ot_session_watch_errors();
	ot_eviction_check();
	ot_position_attach();
	waited.lxid = InvalidLocalTransactionId;
	INSTR_TIME_SET_CURRENT(begun);
	if (asks)
	{
		int64		asked_us = fresh_clock_us();

		if (!ot_ask(&question, deadline))
		{
			if (read.may_ask)
				ot_crossing_note(OT_CROSSING_FRESH_READ);
			fresh_raise_no_answer();
		}
		if (read.answer.asked == OT_ASKED_NOT_YET)
			ot_trips_refuse("read fresh", 1);
		if (read.answer.asked == OT_ASKED_OTHERS)
			ot_crossing_note(OT_CROSSING_FRESH_READ);
		else if (read.may_ask)
			ot_trips_give_back(1);
		at = read.answer.at;
		fresh_note_answer(asked_us, at);
	}
	waited.cost.asked_ms = fresh_ms_since(&begun);
	if (!ot_position_wait_shown(at, deadline))
		fresh_raise_behind(at);
	names_changed = ot_position_wait_announced();
	waited.cost.shown_ms = fresh_ms_since(&begun);
	waited.cost.at = at;
	waited.cost.asked = asks;
	waited.lxid = OT_LXID(MyProc);
	return names_changed;
}

/* All zero if this transaction has not asked. */
OtFreshCost
ot_fresh_cost(void)
{
	static const OtFreshCost none = {0};

	return waited.lxid == OT_LXID(MyProc) ? waited.cost : none;
}

/* ---- who asks ---- */

/* Whether this transaction has asked, for what the settings want by now. */
static bool
fresh_is_asked(void)
{
	int			wanted_ms = ot_read == OT_READ_FRESH ? 0 : ot_max_staleness_ms;

	return asked.lxid == OT_LXID(MyProc) && asked.bound_ms <= wanted_ms;
}

/* After fresh_wait(): what is not fresh shows less than this snapshot, if any. */
static void
fresh_note_asked(Snapshot fresh)
{
	asked.xmax = fresh ? fresh->xmax : InvalidTransactionId;
	if (fresh && fresh->xcnt > 0)
	{
		asked.running = MemoryContextAlloc(TopTransactionContext, fresh->xcnt * sizeof(TransactionId));
		memcpy(asked.running, fresh->xip, fresh->xcnt * sizeof(TransactionId));
		qsort(asked.running, fresh->xcnt, sizeof(TransactionId), xidComparator);
	}
	asked.nrunning = fresh ? fresh->xcnt : 0;
	asked.lxid = OT_LXID(MyProc);
	asked.bound_ms = waited.cost.asked ? 0 : ot_max_staleness_ms;
}

/* The same, whatever onetrip.read and onetrip.max_staleness are. */
void
ot_fresh_wait(void)
{
	int			read = ot_read;

	PG_TRY();
	{
		ot_read = OT_READ_FRESH;
		(void) fresh_wait();
	}
	PG_FINALLY();
	{
		ot_read = read;
	}
	PG_END_TRY();
}

/* Are onetrip.read and onetrip.max_staleness to be heeded in this process? */
static bool
fresh_applies(void)
{
	return ot_preloaded && IsUnderPostmaster && !ot_is_apply_worker && !IsParallelWorker() &&
		MyBackendType != B_AUTOVAC_WORKER && ot_in_replicated_database();
}

static int
fresh_compare_hashes(const void *a, const void *b)
{
	uint32		left = *(const uint32 *) a;
	uint32		right = *(const uint32 *) b;

	return (left > right) - (left < right);
}

/* Hash values in a catalog cache, by which a plan names what it depends on. */
typedef struct KnownObjects
{
	uint32	   *hashes;			/* NULL: not looked up yet; sorted */
	int			count;
} KnownObjects;

/*
 * Those functions (PROCOID) or types (TYPEOID) that come with a database without
 * a fixed OID, as of PostgreSQL's information_schema, and the extension's own.
 */
static void
fresh_find_known(KnownObjects *known, int cache)
{
	int			room = 64;
	int			nfound = 0;
	uint32	   *found = MemoryContextAlloc(TopMemoryContext, sizeof(uint32) * room);
	Oid			namespace = get_namespace_oid("onetrip", true);
	Relation	rel = table_open(cache == PROCOID ? ProcedureRelationId : TypeRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Oid			oid = cache == PROCOID ? ((Form_pg_proc) GETSTRUCT(tuple))->oid :
			((Form_pg_type) GETSTRUCT(tuple))->oid;
		Oid			within = cache == PROCOID ? ((Form_pg_proc) GETSTRUCT(tuple))->pronamespace :
			((Form_pg_type) GETSTRUCT(tuple))->typnamespace;

		if (oid < FirstUnpinnedObjectId || (oid >= FirstNormalObjectId && within != namespace))
			continue;
		if (nfound == room)
			found = ot_make_room(found, &room, sizeof(uint32));
		found[nfound++] = GetSysCacheHashValue1(cache, ObjectIdGetDatum(oid));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	qsort(found, nfound, sizeof(uint32), fresh_compare_hashes);
	known->count = nfound;
	known->hashes = found;
}

/*
 * Is this one of those that read no table that is replicated, although it has no
 * fixed OID?  The constraints of any other domain may call any function.
 */
static bool
fresh_is_known_object(PlanInvalItem *item)
{
	static KnownObjects functions = {0};
	static KnownObjects types = {0};
	KnownObjects *known = item->cacheId == PROCOID ? &functions : &types;

	if (item->cacheId != PROCOID && item->cacheId != TYPEOID)
		return false;
	if (known->hashes == NULL)
		fresh_find_known(known, item->cacheId);
	return bsearch(&item->hashValue, known->hashes, known->count, sizeof(uint32), fresh_compare_hashes) != NULL;
}

static bool
fresh_is_known_relation(Oid relid)
{
	return (relid < FirstNormalObjectId &&
			relid != LargeObjectRelationId && relid != LargeObjectMetadataRelationId) ||
		get_rel_namespace(relid) == get_namespace_oid("onetrip", true);
}

/*
 * Does the query use nothing but what reads no table that is replicated?  Among
 * its relationOids are also those that it only names, as in 't'::regclass.
 */
static bool
fresh_is_of_catalogs(PlannedStmt *plan)
{
	ListCell   *lc;

	foreach(lc, plan->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, lc);

		/* from 16 on, a view is a subquery with its OID */
		if ((rte->rtekind == RTE_RELATION || rte->rtekind == RTE_SUBQUERY) &&
			OidIsValid(rte->relid) && !fresh_is_known_relation(rte->relid))
			return false;
	}
	foreach(lc, plan->invalItems)
	{
		if (!fresh_is_known_object(lfirst_node(PlanInvalItem, lc)))
			return false;
	}
	return true;
}

/* ---- snapshots ---- */

/*
 * Does the snapshot show less than the first one that was fresh?  PostgreSQL does
 * not number snapshots, but of two with the same xmax the later one has fewer
 * transactions running.
 */
static bool
fresh_is_old(Snapshot snapshot)
{
	if (snapshot->snapshot_type != SNAPSHOT_MVCC || !TransactionIdIsValid(asked.xmax))
		return false;
	if (snapshot->xmax != asked.xmax)
		return TransactionIdPrecedes(snapshot->xmax, asked.xmax);
	for (uint32 i = 0; i < snapshot->xcnt; i++)
	{
		if (asked.nrunning == 0 ||
			bsearch(&snapshot->xip[i], asked.running, asked.nrunning, sizeof(TransactionId), xidComparator) == NULL)
			return true;
	}
	return false;
}

/*
 * Asks, at a point where this transaction has a snapshot already.  The caller
 * replaces it.  plan: of the query that is about to run; NULL: what runs is
 * planned later.
 */
static void
fresh_ask_with_snapshot(PlannedStmt *plan)
{
	bool		names_changed = false;

	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("cannot read fresh: the transaction already has its snapshot"),
				 errdetail("In REPEATABLE READ, a transaction waits for what was acknowledged elsewhere before it takes its only snapshot."),
				 errhint("Begin it with BEGIN, and set onetrip.read or onetrip.max_staleness before its first query.")));
	fresh_watch_plan(plan);
	PG_TRY();
	{
		names_changed = fresh_wait();
	}
	PG_FINALLY();
	{
		asking.plan = NULL;
	}
	PG_END_TRY();
	if (names_changed && asking.is_outdated)
		fresh_raise_outdated();
	fresh_note_asked(GetTransactionSnapshot());
}

/* Replaces the first active snapshot, whose level the caller knows. */
static void
fresh_replace_active(void)
{
	Snapshot	old = GetActiveSnapshot();
	CommandId	curcid = old->curcid;
	Portal		portal = ActivePortal;
	bool		of_portal = portal != NULL && portal->portalSnapshot == old && old->active_count == 1;

	PopActiveSnapshot();
	PushActiveSnapshotWithLevel(GetTransactionSnapshot(),
								of_portal ? portal->createLevel : GetCurrentTransactionNestLevel());
	/* whoever uses it must not see more of this transaction's own changes */
	GetActiveSnapshot()->curcid = curcid;
	if (of_portal)
		portal->portalSnapshot = GetActiveSnapshot();
}

/*
 * Does the active snapshot belong to the present transaction level, if it is
 * the query's?  It may belong to another one only if the query is in a function
 * that is not volatile: those of SQL and of SPI come with these destinations.
 */
static bool
fresh_knows_level(QueryDesc *query)
{
	if (GetCurrentTransactionNestLevel() == 1)
		return true;
	switch (query->dest->mydest)
	{
		case DestSPI:
		case DestSQLFunction:
		case DestTuplestore:
			return false;
		case DestNone:

			/*
			 * A portal that is starting.  EXPLAIN ANALYZE cannot be told from a
			 * statement of an SQL function that other extensions instrument.
			 */
			return ActivePortal != NULL && ActivePortal->status == PORTAL_DEFINED &&
				linitial(ActivePortal->stmts) == query->plannedstmt;
		default:
			return true;
	}
}

static void
fresh_replace_snapshot(QueryDesc *query)
{
	Snapshot	old = query->snapshot;
	CommandId	curcid = old->curcid;

	if (ActiveSnapshotSet() && GetActiveSnapshot() == old && fresh_knows_level(query))
	{
		fresh_replace_active();
		query->snapshot = RegisterSnapshot(GetActiveSnapshot());
	}
	else
	{
		query->snapshot = RegisterSnapshot(GetTransactionSnapshot());
		query->snapshot->curcid = curcid;
		/* parallel workers would be given the active one */
		if (query->plannedstmt->parallelModeNeeded)
		{
			PlannedStmt *copy = MemoryContextAlloc(GetMemoryChunkContext(query), sizeof(PlannedStmt));

			*copy = *query->plannedstmt;
			copy->parallelModeNeeded = false;
			query->plannedstmt = copy;
		}
	}
	UnregisterSnapshot(old);
}

/* ---- hooks ---- */

static pg_noinline void
fresh_before_query(QueryDesc *query, int eflags)
{
	if ((eflags & EXEC_FLAG_EXPLAIN_ONLY) || query->snapshot == InvalidSnapshot || !fresh_applies())
		return;
	if (!fresh_is_asked())
	{
		if (fresh_is_of_catalogs(query->plannedstmt))
			return;
		fresh_ask_with_snapshot(query->plannedstmt);
	}
	if (!IsolationUsesXactSnapshot() && fresh_is_old(query->snapshot))
		fresh_replace_snapshot(query);
}

/*
 * A function of the query that reads large objects may have asked while it was
 * made ready.  It reads nothing else that is replicated, so what its scans of
 * catalogs have begun with may stay.
 */
static pg_noinline void
fresh_after_start(QueryDesc *query)
{
	if (query->snapshot != InvalidSnapshot && !IsolationUsesXactSnapshot() && fresh_applies() &&
		fresh_is_asked() && fresh_is_old(query->snapshot))
		fresh_replace_snapshot(query);
}

static inline void
fresh_executor_start(QueryDesc *query, int eflags)
{
	if (prev_executor_start)
		prev_executor_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
}

/* A plan is made ready to be shown: its functions are looked up, and not run. */
static bool explaining = false;

static pg_noinline void
fresh_explain(QueryDesc *query, int eflags)
{
	bool		before = explaining;

	explaining = (eflags & EXEC_FLAG_EXPLAIN_ONLY) != 0;
	PG_TRY();
	{
		fresh_executor_start(query, eflags);
	}
	PG_FINALLY();
	{
		explaining = before;
	}
	PG_END_TRY();
}

static void
ot_fresh_executor_start(QueryDesc *query, int eflags)
{
	if (unlikely(fresh_is_wanted()))
		fresh_before_query(query, eflags);
	if (unlikely(explaining || (eflags & EXEC_FLAG_EXPLAIN_ONLY)))
		fresh_explain(query, eflags);
	else
	{
		fresh_executor_start(query, eflags);
		if (unlikely(fresh_is_wanted()))
			fresh_after_start(query);
	}
}

static bool
fresh_reads_large_object(Oid function)
{
	return function == F_LO_OPEN || function == F_LO_GET_OID || function == F_LO_GET_OID_INT8_INT4 ||
		function == F_LO_EXPORT;
}

/*
 * A function that reads a large object is about to be called: by a query that is
 * made ready, as an argument of CALL, in an expression of PL/pgSQL, or by the
 * protocol's function call.  PL/pgSQL takes a snapshot after this, unless its
 * function uses its caller's.
 */
static pg_noinline void
fresh_before_large_object(void)
{
	if (!fresh_applies())
		return;
	if (!fresh_is_asked())
		fresh_ask_with_snapshot(NULL);
	if (!IsolationUsesXactSnapshot() && ActiveSnapshotSet() && fresh_is_old(GetActiveSnapshot()) &&
		(GetCurrentTransactionNestLevel() == 1 || ActivePortal == NULL ||
		 ActivePortal->portalSnapshot == GetActiveSnapshot()))
		fresh_replace_active();
}

static void
ot_fresh_object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, class_id, object_id, sub_id, arg);
	if (unlikely(fresh_is_wanted()) && !explaining && access == OAT_FUNCTION_EXECUTE && class_id == ProcedureRelationId &&
		fresh_reads_large_object(object_id))
		fresh_before_large_object();
}

/* COPY of a table, which is not a query. */
static void
fresh_before_copy(CopyStmt *stmt)
{
	if (stmt->is_from || stmt->relation == NULL || !fresh_applies())
		return;
	if (!fresh_is_asked())
	{
		/* if there is none of this name, COPY says so */
		if (fresh_is_known_relation(RangeVarGetRelid(stmt->relation, NoLock, true)))
			return;
		fresh_ask_with_snapshot(NULL);
	}
	if (!IsolationUsesXactSnapshot() && ActiveSnapshotSet() && fresh_is_old(GetActiveSnapshot()))
		fresh_replace_active();
}

/*
 * CALL of a procedure in SQL, whose queries are all planned before the first one
 * runs.  In REPEATABLE READ that one says that it is too late.
 */
static void
fresh_before_call(CallStmt *stmt)
{
	HeapTuple	tuple;
	bool		in_sql;

	if (IsolationUsesXactSnapshot() || !fresh_applies() || fresh_is_asked())
		return;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(stmt->funcexpr->funcid));
	in_sql = HeapTupleIsValid(tuple) && ((Form_pg_proc) GETSTRUCT(tuple))->prolang == SQLlanguageId;
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	if (in_sql)
		fresh_ask_with_snapshot(NULL);
}

/*
 * May the statement be followed by the first snapshot of its transaction, and
 * turn on what this takes?
 */
static bool
fresh_begins_or_sets(Node *stmt)
{
	if (!IsA(stmt, TransactionStmt))
		return IsA(stmt, VariableSetStmt);
	switch (((TransactionStmt *) stmt)->kind)
	{
		case TRANS_STMT_COMMIT:
		case TRANS_STMT_ROLLBACK:
		case TRANS_STMT_PREPARE:
			/* what follows is another transaction */
			return false;
		default:
			return true;
	}
}

/*
 * Called after BEGIN or SET: in REPEATABLE READ, this is the time to ask.  A
 * SET outside of a block would ask in vain.
 */
static void
fresh_before_first_snapshot(ProcessUtilityContext context)
{
	if (!IsTransactionState() || FirstSnapshotSet || !IsolationUsesXactSnapshot() ||
		(!IsTransactionBlock() && context == PROCESS_UTILITY_TOPLEVEL) ||
		!fresh_applies() || fresh_is_asked())
		return;
	(void) fresh_wait();
	fresh_note_asked(NULL);
}

static void
ot_fresh_process_utility(PlannedStmt *pstmt, const char *query,
						 bool read_only_tree, ProcessUtilityContext context,
						 ParamListInfo params, QueryEnvironment *env,
						 DestReceiver *dest, QueryCompletion *completion)
{
	OtUtility	call = {prev_process_utility, pstmt, pstmt->utilityStmt, query, read_only_tree,
		context, params, env, dest, completion};
	/* the statement's tree may be gone afterwards: COMMIT in a procedure */
	bool		sets = fresh_begins_or_sets(pstmt->utilityStmt);

	if (unlikely(fresh_is_wanted()))
	{
		if (IsA(pstmt->utilityStmt, CopyStmt))
			fresh_before_copy((CopyStmt *) pstmt->utilityStmt);
		else if (IsA(pstmt->utilityStmt, CallStmt))
			fresh_before_call((CallStmt *) pstmt->utilityStmt);
	}
	ot_call_process_utility(&call);
	if (unlikely(fresh_is_wanted()) && sets)
		fresh_before_first_snapshot(context);
}

void
ot_fresh_init(void)
{
	static const OtShmemPart part = {"onetrip last asked", sizeof(LastAsked), fresh_attach_memory};

	ot_shmem_add(&part);
	prev_object_access = object_access_hook;
	object_access_hook = ot_fresh_object_access;
	prev_executor_start = ExecutorStart_hook;
	ExecutorStart_hook = ot_fresh_executor_start;
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = ot_fresh_process_utility;
}
