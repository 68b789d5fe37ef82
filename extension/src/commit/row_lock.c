/*-------------------------------------------------------------------------
 *
 * row_lock.c
 *	  onetrip.concurrency = locking: before a transaction changes or locks a row
 *	  it waits in line for the row's lock, at the leader.
 *
 * The node passes the request on to the leader, which has one table of such
 * locks for all regions, and finds deadlocks in it.  When the lock is granted,
 * this server waits until it shows what the last holder committed.  Then heap
 * is asked to change the row, and finds either that nobody has changed it or
 * that it has to be read again, as after any wait for a row.
 *
 * What the leader grants is no promise: the lock may be lost with a connection
 * or a leader, and transactions that do not ask do not know of it.  COMMIT is
 * certified as ever.  So whatever goes wrong here, the transaction goes on
 * without, and may lose at COMMIT.
 *
 * Deadlocks that the leader cannot see.  A transaction in line may hold up
 * another one by a lock of PostgreSQL's own (a unique value that both insert, a
 * table, a row by way of a transaction that does not ask), and that one may have
 * what the first one waits for.  Such a circle always has a transaction in line,
 * on the server of the wait that the leader does not see.  After
 * deadlock_timeout, and again each time that this has passed, a transaction in
 * line looks whether another one of this server with locks at the leader waits
 * for it, directly or not.  If so it gives up with 40P01, although there need
 * not be a circle.
 *
 * DDL stands in the same line, for the schema key, while other regions carry out
 * DDL too.  Otherwise statements of two regions would hold up each other's
 * rehearsals, and all but one would lose, each time.  It does not wait for long,
 * since a session may do nothing for hours after its DDL: then it goes on without
 * the lock, as before there was a line, and the first COMMIT wins.
 *
 * Runs in backends.  Interrupts are served while it waits.  Raises ERROR before
 * the row is touched.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/proc.h"
#include "utils/array.h"
#include "utils/fmgrprotos.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "capture/capture.h"
#include "ddl/ddl.h"
#include "shmem/shmem.h"

/* DDL stands in line for so long at most. */
#define DDL_LINE_MS 5000
/* For how long a node that cannot be reached, or does not say anything, is tried. */
#define UNREACHABLE_MS 5000
/* How often it is asked something that it answers at once. */
#define PROBE_MS 2000
/* The locks of one request, at most. */
#define LOCKS_AT_ONCE 10000
/* A request is sent on so many connections at most. */
#define ASKED_MAX 20

/* A lock that this transaction has. */
typedef struct HeldLock
{
	uint64		hash;			/* of the row's key */
	OtKeyMode	mode;
	uint64		number;			/* of the request that got it */
} HeldLock;

/* The present transaction. */
static struct
{
	bool		has_asked;
	bool		goes_without;	/* nobody answers, or it wants too many: it asks no more */
	OtTxnId		txn;
	HTAB	   *held;			/* HeldLock, in TopTransactionContext */
	uint64		schema;			/* number of the request for the schema key; 0: none */
	uint64		row;			/* of the one for the row that is locked now; 0: it had
								 * the lock, or has none */
	int64		nasked;			/* locks that it has asked for, whatever the answer */
	uint64		connection;		/* on which it got what it has */
}			present;

/* Of the requests of this session. */
static uint64 last_number = 0;

/* The last one before each open subtransaction began, by nesting level. */
static uint64 *before_subxact = NULL;
static int	before_subxact_room = 0;

/* ---- the request ---- */

typedef struct RowLockRequest
{
	Relation	rel;			/* NULL: the lock is the schema key's */
	char		table[2 * NAMEDATALEN]; /* for onetrip.row_lock_waits */
	const OtRowLock *locks;
	int			nlocks;
	bool		waits;
	uint64		number;
	TimestampTz deadline;		/* of lock_timeout, or for the schema key; 0: none */
} RowLockRequest;

static void
row_lock_send(OtAgent *agent, const RowLockRequest *request)
{
	StringInfo	frame = ot_agent_frame(agent, OT_FRAME_LOCK);

	ot_put_txn(frame, present.txn);
	ot_put_u64(frame, request->number);
	ot_put_u8(frame, request->waits);
	ot_put_u32(frame, request->nlocks);
	for (int i = 0; i < request->nlocks; i++)
	{
		ot_put_u64(frame, request->locks[i].hash);
		ot_put_u8(frame, request->locks[i].mode);
	}
	ot_put_str(frame, request->table);
	ot_agent_frame_end(agent);
}

/* A node that hangs keeps the connection open, and a wait in line may be long. */
static void
row_lock_probe(OtAgent *agent)
{
	StringInfo	frame = ot_agent_frame(agent, OT_FRAME_OUTCOME);

	ot_put_txn(frame, present.txn);
	ot_agent_frame_end(agent);
}

/* Reads until the answer has come; false: not yet.  Sets *heard if anything has. */
static bool
row_lock_read(OtAgent *agent, uint64 number, OtLocked *answer, bool *heard)
{
	OtFrameType type;
	OtReader	body;

	while (ot_agent_read(agent, &type, &body))
	{
		bool		answered = false;

		if (type == OT_FRAME_LOCKED)
		{
			if (!ot_agent_get_locked(&body, answer))
			{
				ot_agent_close_damaged(agent, type);
				return false;
			}
			/* or it is to a request that a cancel has ended */
			answered = answer->number == number;
		}
		ot_agent_consume(agent);
		*heard = true;
		if (answered)
			return true;
	}
	return false;
}

/* Gives back what requests from this number on have got, or still want. */
static void
row_lock_give_back(uint64 from)
{
	OtAgent    *agent = ot_commit_agent();
	StringInfo	frame;

	/* if the connection is lost, the node knows what that means */
	if (!ot_agent_is_open(agent))
		return;
	frame = ot_agent_frame(agent, OT_FRAME_UNLOCK);
	ot_put_txn(frame, present.txn);
	ot_put_u64(frame, from);
	ot_agent_frame_end(agent);
	(void) ot_agent_flush(agent);
}

static void
row_lock_raise_timeout(Relation rel)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("canceling statement due to lock timeout"),
			 errdetail("It waited in line for the lock of a row of table \"%s\".",
					   RelationGetRelationName(rel))));
}

/* ---- deadlocks that the leader cannot see ---- */

/* Does this process wait, for a lock of PostgreSQL's, until this transaction ends? */
static bool
row_lock_is_waited_for_by(int pid)
{
	List	   *open = list_make1_int(pid);

	for (int i = 0; i < list_length(open); i++)
	{
		ArrayType  *blockers = DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids,
																	  Int32GetDatum(list_nth_int(open, i))));
		int			n = ArrayGetNItems(ARR_NDIM(blockers), ARR_DIMS(blockers));
		int32	   *pids = (int32 *) ARR_DATA_PTR(blockers);

		for (int k = 0; k < n; k++)
		{
			if (pids[k] == MyProcPid)
				return true;
			if (pids[k] != 0)
				open = list_append_unique_int(open, pids[k]);
		}
	}
	return false;
}

static void
row_lock_check_deadlock(Relation rel)
{
	static MemoryContext context = NULL;
	MemoryContext old;
	int			waits = 0;

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "onetrip row lock deadlock",
										ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(context);
	for (int i = 0; i < ot_slots->nslots && waits == 0; i++)
	{
		volatile PGPROC *proc = &ProcGlobal->allProcs[i];
		int			pid = proc->pid;

		if (i != ot_my_slot_number() && pid != 0 &&
			pg_atomic_read_u32(&ot_slots->slots[i].has_row_locks) != 0 &&
			(proc->wait_event_info & 0xFF000000) == PG_WAIT_LOCK &&
			row_lock_is_waited_for_by(pid))
			waits = pid;
	}
	MemoryContextSwitchTo(old);
	MemoryContextReset(context);
	if (waits != 0)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
				 errmsg("deadlock detected"),
				 errdetail("Process %d, which has row locks at the leader, waits for this one, which waits in line for the lock of a row of table \"%s\".",
						   waits, RelationGetRelationName(rel)),
				 errhint("Retry the transaction.")));
}

/* ---- the wait ---- */

/*
 * Asks, again on each new connection, until the answer has come.  Returns false
 * if the node cannot be reached, or hangs, or closes each connection on which it
 * is asked, or the time for the schema key's lock is over.
 */
static bool
row_lock_wait(const RowLockRequest *request, OtLocked *answer)
{
	OtAgent    *agent = ot_commit_agent();
	TimestampTz unreachable_at = TimestampTzPlusMilliseconds(ot_now(), UNREACHABLE_MS);
	TimestampTz check_at = TimestampTzPlusMilliseconds(ot_now(), DeadlockTimeout);
	TimestampTz probe_at = TimestampTzPlusMilliseconds(ot_now(), PROBE_MS);
	bool		asked = false;
	int			nasked = 0;

	for (;;)
	{
		long		left = ot_ms_until(check_at);
		bool		heard = false;

		if (!ot_agent_is_open(agent))
		{
			/* a node that closes the connection again and again does not want it */
			if (nasked == ASKED_MAX)
				return false;
			asked = false;
			(void) ot_commit_connect();
		}
		if (ot_agent_is_open(agent) && !asked)
		{
			row_lock_send(agent, request);
			asked = true;
			nasked++;
		}
		if (ot_agent_is_open(agent) && ot_ms_until(probe_at) == 0)
		{
			row_lock_probe(agent);
			probe_at = TimestampTzPlusMilliseconds(ot_now(), PROBE_MS);
		}
		(void) ot_agent_flush(agent);
		if (row_lock_read(agent, request->number, answer, &heard))
			return true;
		if (heard)
			unreachable_at = TimestampTzPlusMilliseconds(ot_now(), UNREACHABLE_MS);
		CHECK_FOR_INTERRUPTS();
		if (request->deadline != 0)
		{
			if (ot_ms_until(request->deadline) == 0)
			{
				if (request->rel == NULL)
					return false;
				row_lock_raise_timeout(request->rel);
			}
			left = Min(left, ot_ms_until(request->deadline));
		}
		if (left == 0)
		{
			if (request->rel != NULL)
				row_lock_check_deadlock(request->rel);
			check_at = TimestampTzPlusMilliseconds(ot_now(), DeadlockTimeout);
			continue;
		}
		if (ot_ms_until(unreachable_at) == 0)
			return false;
		left = Min(left, ot_ms_until(unreachable_at));
		left = Min(left, ot_agent_is_open(agent) ? ot_ms_until(probe_at) : RECONNECT_MS);
		ot_agent_wait(agent, left);
	}
}

/* The lock is granted: waits until this server shows its last holder's changes. */
static void
row_lock_wait_shown(const RowLockRequest *request, OtLogIndex at)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(ot_now(), ot_commit_timeout_ms);

	if (request->deadline != 0)
		deadline = Min(deadline, request->deadline);
	if (ot_position_wait_shown(at, deadline))
		return;
	if (request->deadline != 0 && ot_ms_until(request->deadline) == 0)
		row_lock_raise_timeout(request->rel);
	ereport(ERROR,
			(errcode(OT_ERR_NOT_NOW),
			 errmsg("cannot change a row of table \"%s\": the server of region \"%s\" is behind",
					RelationGetRelationName(request->rel), ot_region),
			 errdetail("It shows log index " UINT64_FORMAT ", and the row was changed at " UINT64_FORMAT ".",
					   ot_applied_index().value, at.value),
			 errhint("Repeat the transaction later or in another region.")));
}

static void
row_lock_go_without(bool node_answers)
{
	present.goes_without = true;
	ereport(WARNING,
			(errcode(OT_ERR_NOT_NOW),
			 errmsg("row locks are not available now, the transaction goes on without"),
			 node_answers ?
			 errdetail("No leader answers the node of region \"%s\", or there are too many locks.", ot_region) :
			 errdetail("The node of region \"%s\" does not answer.", ot_region),
			 errhint("If another region changes the same rows, COMMIT may fail with 40001.")));
}

/* A statement changes so many rows that their locks would leave no room for others. */
void
ot_row_lock_too_many(int nrows)
{
	present.goes_without = true;
	ereport(WARNING,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("the transaction goes on without row locks"),
			 errdetail("A statement is about to change or lock more than %d rows.", nrows),
			 errhint("If another region changes the same rows, COMMIT may fail with 40001. Change fewer rows in each statement to wait in line for them.")));
}

/* How many locks this transaction has asked for. */
int64
ot_row_locks_asked(void)
{
	return present.nasked;
}

bool
ot_row_lock_goes_without(void)
{
	return present.goes_without;
}

/* ---- what capture calls ---- */

/* Knows no more of what requests from this number on have got. */
static void
row_lock_drop(uint64 from)
{
	HASH_SEQ_STATUS seq;
	HeldLock   *held;

	hash_seq_init(&seq, present.held);
	while ((held = hash_seq_search(&seq)) != NULL)
	{
		if (held->number >= from)
			(void) hash_search(present.held, &held->hash, HASH_REMOVE, NULL);
	}
	if (present.schema >= from)
		present.schema = 0;
}

/* What the transaction got on a connection that has ended, it has no more. */
static void
row_lock_check_connection(void)
{
	if (likely(present.connection == ot_commit_connection()))
		return;
	present.connection = ot_commit_connection();
	if (hash_get_num_entries(present.held) == 0)
		return;
	row_lock_drop(0);
	ereport(WARNING,
			(errcode(OT_ERR_NOT_NOW),
			 errmsg("the transaction has lost its row locks"),
			 errdetail("The connection to the node of region \"%s\" has ended.", ot_region),
			 errhint("If another region changes the same rows, COMMIT may fail with 40001.")));
}

static void
row_lock_begin(void)
{
	HASHCTL		ctl = {.keysize = sizeof(uint64), .entrysize = sizeof(HeldLock), .hcxt = TopTransactionContext};

	if (present.has_asked)
	{
		row_lock_check_connection();
		return;
	}
	present.held = hash_create("onetrip row locks", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	present.txn = ot_commit_own_txn();
	present.has_asked = true;
}

static void
row_lock_take(const RowLockRequest *request)
{
	row_lock_check_connection();
	for (int i = 0; i < request->nlocks; i++)
	{
		HeldLock   *held = hash_search(present.held, &request->locks[i].hash, HASH_ENTER, NULL);

		held->mode = request->locks[i].mode;
		held->number = request->number;
	}
}

static bool
row_lock_is_held(const OtRowLock *lock)
{
	HeldLock   *held = hash_search(present.held, &lock->hash, HASH_FIND, NULL);

	return held != NULL && held->mode >= lock->mode;
}

/* For people, in ASCII if the database is not in UTF-8. */
static void
row_lock_name_table(RowLockRequest *request)
{
	char	   *schema = get_namespace_name(RelationGetNamespace(request->rel));

	snprintf(request->table, sizeof(request->table), "%s.%s", schema, RelationGetRelationName(request->rel));
	pfree(schema);
	if (GetDatabaseEncoding() != PG_UTF8)
	{
		for (char *c = request->table; *c != '\0'; c++)
		{
			if (IS_HIGHBIT_SET(*c))
				*c = '?';
		}
	}
}

/* Gets all of these locks.  false: somebody else has one, and the policy is to skip. */
static bool
row_lock_ask(Relation rel, const OtRowLock *locks, int nlocks, LockWaitPolicy policy)
{
	RowLockRequest request = {.rel = rel, .locks = locks, .nlocks = nlocks, .waits = policy == LockWaitBlock};
	OtLocked	answer = {0};
	bool		node_answers;

	ot_trips_take("lock a row", 1);
	/* a cancel by the evictor must say what it is */
	ot_session_watch_errors();
	ot_eviction_check();
	ot_position_attach();
	pg_atomic_write_u32(&ot_my_slot()->has_row_locks, 1);
	present.nasked += nlocks;
	request.number = ++last_number;
	row_lock_name_table(&request);
	if (LockTimeout > 0)
		request.deadline = TimestampTzPlusMilliseconds(ot_now(), LockTimeout);
	node_answers = row_lock_wait(&request, &answer);
	if (!node_answers)
	{
		row_lock_give_back(request.number);
		answer.outcome = OT_LOCK_NO_TABLE;
		answer.others_asked = false;
	}
	if (answer.others_asked)
		ot_crossing_note(OT_CROSSING_ROW_LOCK);
	else
		ot_trips_give_back(1);
	switch (answer.outcome)
	{
		case OT_LOCK_GRANTED:
			row_lock_take(&request);
			row_lock_wait_shown(&request, answer.at);
			return true;
		case OT_LOCK_BUSY:
			if (policy == LockWaitSkip)
				return false;
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not obtain lock on row in relation \"%s\"", RelationGetRelationName(rel)),
					 errdetail("A transaction in region \"%s\" has it.", answer.region)));
			break;
		case OT_LOCK_DEADLOCK:
			ereport(ERROR,
					(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
					 errmsg("deadlock detected"),
					 errdetail("This transaction would wait for the lock of a row of table \"%s\", and so for a transaction in region \"%s\" that waits for a row of this one.",
							   RelationGetRelationName(rel), answer.region),
					 errhint("Retry the transaction.")));
			break;
		default:
			row_lock_go_without(node_answers);
	}
	return true;
}

static bool
row_lock_first(Relation rel, OtHash hash, OtKeyMode mode, LockWaitPolicy policy)
{
	OtRowLock	lock = {.hash = hash.value, .mode = mode};

	present.row = 0;
	if (!ot_preloaded || !IsUnderPostmaster || present.goes_without)
		return true;
	row_lock_begin();
	if (row_lock_is_held(&lock))
		return true;
	if (!row_lock_ask(rel, &lock, 1, policy))
		return false;
	present.row = last_number;
	return true;
}

/* Gets all of these locks, in as few requests as possible.  Changes the array. */
void
ot_row_lock_all(Relation rel, OtRowLock *locks, int nlocks)
{
	int			wanted = 0;

	row_lock_begin();
	for (int i = 0; i < nlocks; i++)
	{
		if (!row_lock_is_held(&locks[i]))
			locks[wanted++] = locks[i];
	}
	for (int begin = 0; begin < wanted && !present.goes_without; begin += LOCKS_AT_ONCE)
		(void) row_lock_ask(rel, locks + begin, Min(wanted - begin, LOCKS_AT_ONCE), LockWaitBlock);
}

/* ---- the end ---- */

/* Gives them back, and knows no more of them. */
static void
row_lock_forget(uint64 from)
{
	row_lock_drop(from);
	row_lock_give_back(from);
}

/* With SKIP LOCKED: heap does not give the row. */
static void
row_lock_refused(void)
{
	if (present.row != 0)
		row_lock_forget(present.row);
	present.row = 0;
}

/* ---- what DDL calls ---- */

/*
 * Waits in line for the schema key.  That it has waited for nothing, or in vain,
 * makes no difference: COMMIT is certified as ever.
 */
static void
row_lock_schema(OtHash schema)
{
	OtRowLock	lock = {.hash = schema.value, .mode = OT_UPDATE};
	RowLockRequest request = {.table = "schema key", .locks = &lock, .nlocks = 1, .waits = true};
	OtLocked	answer = {0};
	int			limit = LockTimeout > 0 ? Min(LockTimeout, DDL_LINE_MS) : DDL_LINE_MS;

	ot_check_writable();
	if (!ot_preloaded || MyBackendType != B_BACKEND || XactReadOnly || present.goes_without ||
		present.schema != 0 || !ot_position_is_ddl_elsewhere() ||
		!ot_trips_are_left(1 + OT_DDL_TRIPS))
		return;
	row_lock_begin();
	ot_trips_take("carry out DDL", 1);
	ot_session_watch_errors();
	ot_eviction_check();
	/* whatever it has locked by now must not hold up entries for all that time */
	ot_slot_begin_writing();
	request.number = present.schema = ++last_number;
	request.deadline = TimestampTzPlusMilliseconds(ot_now(), limit);
	if (!row_lock_wait(&request, &answer))
	{
		row_lock_give_back(request.number);
		return;
	}
	if (answer.others_asked)
		ot_crossing_note(OT_CROSSING_ROW_LOCK);
	else
		ot_trips_give_back(1);
	if (answer.outcome != OT_LOCK_GRANTED)
		return;
	row_lock_take(&request);
	present.schema = request.number;	/* also if others were lost */
	(void) ot_position_wait_shown(answer.at, request.deadline);
}

static void
row_lock_leave_schema(void)
{
	if (present.schema != 0)
		row_lock_forget(present.schema);
}

/* The transaction ends.  If an entry of it is decided, the leader knows. */
void
ot_row_lock_end(bool decided)
{
	if (likely(!present.has_asked))
	{
		present.goes_without = false;
		return;
	}
	if (!decided)
		row_lock_give_back(0);
	pg_atomic_write_u32(&ot_my_slot()->has_row_locks, 0);
	memset(&present, 0, sizeof(present));
}

void
ot_row_lock_subxact_start(int nest_level)
{
	if (nest_level >= before_subxact_room)
	{
		int			room = Max(nest_level + 1, 2 * before_subxact_room);

		before_subxact = before_subxact == NULL ?
			MemoryContextAlloc(TopMemoryContext, sizeof(uint64) * room) :
			repalloc(before_subxact, sizeof(uint64) * room);
		before_subxact_room = room;
	}
	before_subxact[nest_level] = last_number;
}

/* What the subtransaction has locked is free again, as in PostgreSQL. */
void
ot_row_lock_subxact_abort(int nest_level)
{
	if (likely(!present.has_asked) || nest_level >= before_subxact_room ||
		before_subxact[nest_level] == last_number)
		return;
	row_lock_forget(before_subxact[nest_level] + 1);
}

void
ot_row_lock_init(void)
{
	static const OtDdlLine line = {row_lock_schema, row_lock_leave_schema,
	ot_compare_is_possible, ot_compare_is_answered};

	ot_capture_lock_first_with(row_lock_first, row_lock_refused);
	ot_ddl_line_is(&line);
	ot_lock_ahead_init();
}
