/*-------------------------------------------------------------------------
 *
 * arrival.c
 *	  The arrival worker: writes the rows of a large entry while it arrives.
 *
 * A large entry of another region arrives in parts, before it is decided
 * (crates/core/src/parts.rs).  While the apply worker applied all of it, no
 * COMMIT of this server could come after it, which takes seconds.  So this
 * worker gets the bytes as they come and writes the rows in a transaction that
 * it leaves open; the region that the entry comes from waits a moment for that.
 * Once the entry is decided, this process commits in its turn, as a session
 * would that had proposed it, and that takes no longer than any other commit.
 *
 * To the others it is a session that has run the same statements:
 *	- It begins once this server shows what the entry's keys are based on.  What
 *	  is decided between that and the entry does not conflict with it, or the
 *	  entry loses; but for the deletion of a value that a user's function computes
 *	  (capture.c), which may raise ERROR here, or make it wait.
 *	- Until the verdict it is evicted if it is in the way of an entry that is
 *	  decided first, and it evicts nobody itself.
 *	- After a verdict of commit it commits, or closes its connection to the node
 *	  without DONE: the apply worker then gets the entry (docs/agent-protocol.md,
 *	  "Who commits an entry here").
 * So whatever happens to it, nothing is lost but time: an ERROR rolls its
 * transaction back, and the entry is applied as any other one.
 *
 * It takes rows only.  Whatever has to be looked up in the entry's turn, or
 * cannot be rolled back, makes it give the entry up; positions of sequences are
 * set in the turn.  It does not wait long for a lock, either.
 *
 * Memory: arrival_context has the entry's bytes, all of them at one place since
 * rows refer to them, and lives as long as the entry's transaction.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include "access/xact.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "capture/capture.h"
#include "commit/commit.h"
#include "sequence/sequence.h"
#include "shmem/shmem.h"

/* The time between attempts to reach the node, and after one that an earlier release has refused. */
#define RECONNECT_MS 100
#define REFUSED_MS 15000
/* So long it waits for a lock. */
#define LOCK_TIMEOUT "200ms"
/* How often to look whether this server shows the entry's base. */
#define BASE_POLL_MS 5
/* ... and for how long, once all of the entry is there. */
#define BASE_WAIT_MS 500
/* How often to check again for the turn, in case a wake-up was missed. */
#define RECHECK_MS 20
/* It gives up if the node says nothing for so long. */
#define SILENCE_MS 60000
/*
 * Whether a verdict has come, and more bytes, is looked at once in so many operations
 * or bytes.  They may run functions of users, and must not take longer than this.
 */
#define POLL_OPERATIONS 256
#define POLL_BYTES (64 * 1024)
#define OPERATIONS_MS 60000

/* What became of an entry that this worker began to write. */
typedef enum Outcome
{
	OUTCOME_COMMITTED = 0,
	OUTCOME_NOT_COMMITTED,		/* the entry lost, or its region has proposed it anew */
	OUTCOME_LATE,				/* decided before all of it was here */
	OUTCOME_NOT_EARLY,			/* something in it is done in its turn only */
	OUTCOME_LOCK,
	OUTCOME_EVICTED,
	OUTCOME_CANCELED,
	OUTCOME_CONNECTION,
	OUTCOME_ERROR
} Outcome;

#define OUTCOMES (OUTCOME_ERROR + 1)

static const char *const outcome_names[OUTCOMES] = {
	[OUTCOME_COMMITTED] = "committed",
	[OUTCOME_NOT_COMMITTED] = "not committed",
	[OUTCOME_LATE] = "late",
	[OUTCOME_NOT_EARLY] = "not done early",
	[OUTCOME_LOCK] = "lock",
	[OUTCOME_EVICTED] = "evicted",
	[OUTCOME_CANCELED] = "canceled",
	[OUTCOME_CONNECTION] = "connection",
	[OUTCOME_ERROR] = "error",
};

/* In shared memory, since the server started. */
static pg_atomic_uint64 *counts = NULL;

PG_FUNCTION_INFO_V1(ot_count_early_writes);

static OtAgent *agent = NULL;
static MemoryContext arrival_context = NULL;
static bool welcomed;			/* on this connection */

/* The entry at hand. */
static struct
{
	OtTxnId		txn;			/* sequence 0: there is none */
	char	   *bytes;
	uint64		total;
	uint64		got;			/* how many bytes are there */
	bool		last_asked;		/* the node may send all that is left, and then a verdict */
	bool		begun;			/* the turn knows of it */
	bool		let_go;			/* the node does not count on this worker any more */
	bool		late;			/* ... since the entry is committed, and not all of it was here */
	bool		decided;		/* a verdict of commit has come */
	OtLogIndex	at;				/* then: the entry's index */
	OtLogIndex	previous;
	int			operations;		/* since it last looked */
	const char *looked_at;		/* where it was then; NULL: it has not looked */
	List	   *sequences;		/* OtReader *: 'Q' operations, after the op byte */
	TimestampTz heard;			/* the node, last */
}			arrival;

/* ---- talking to the node ---- */

static void
arrival_ask(OtTxnId txn, uint64 from)
{
	StringInfo	frame = ot_agent_frame(agent, OT_FRAME_MORE);

	ot_put_txn(frame, txn);
	ot_put_u64(frame, from);
	ot_agent_frame_end(agent);
}

static void
arrival_ask_for_next(void)
{
	OtTxnId		none = {0};

	arrival_ask(none, 0);
}

static void
arrival_say_written(bool kept)
{
	StringInfo	frame = ot_agent_frame(agent, OT_FRAME_WRITTEN);

	ot_put_txn(frame, arrival.txn);
	ot_put_u8(frame, kept);
	ot_agent_frame_end(agent);
}

/*
 * The node has sent what it may not send.  Unlike an entry that cannot be read,
 * which would come again, this ends the connection.
 */
pg_noreturn static void
arrival_distrust(const char *why)
{
	ot_agent_close(agent);
	ereport(ERROR,
			(errcode(OT_ERR_PROTOCOL),
			 errmsg("the node sent the arrival worker %s", why)));
}

static bool
arrival_is_present(OtTxnId txn)
{
	return arrival.txn.sequence != 0 && txn.sequence == arrival.txn.sequence &&
		txn.incarnation == arrival.txn.incarnation && txn.node == arrival.txn.node;
}

/* Bytes of the entry at hand, or the first ones of the next. */
static void
arrival_take_bytes(const OtArriving *part)
{
	if (arrival.txn.sequence == 0 && part->from == 0 && part->length > 0 &&
		part->total <= OT_FRAME_BYTES_MAX)
	{
		arrival.txn = part->txn;
		arrival.total = part->total;
		arrival.bytes = MemoryContextAllocHuge(arrival_context, part->total);
	}
	if (!arrival_is_present(part->txn))
		return;					/* of one that was given up */
	if (part->from != arrival.got || part->length > arrival.total - arrival.got)
		arrival_distrust("other bytes of an entry than it asked for");
	memcpy(arrival.bytes + arrival.got, part->bytes, part->length);
	arrival.got += part->length;
	/* The next ones come while these are read. */
	if (arrival.got == arrival.total)
		return;
	arrival.last_asked = arrival.total - arrival.got <= OT_ARRIVING_BYTES_MAX;
	if (arrival.last_asked && arrival.begun)
		ot_turn_may_be_decided();
	arrival_ask(arrival.txn, arrival.got);
}

/* From now on it is committed, and nobody may evict it. */
static void
arrival_take_verdict(const OtVerdict *verdict)
{
	if (verdict->outcome != OT_OUTCOME_COMMIT)
	{
		arrival.let_go = true;
		arrival.late = verdict->at.value != 0;
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("the entry is not to be committed by the arrival worker")));
	}
	if (!arrival.begun || arrival.decided)
		arrival_distrust("a VERDICT that may not come yet, or a second one");
	arrival.decided = true;
	arrival.at = verdict->at;
	arrival.previous = verdict->other;
	if (ot_applied_index().value >= arrival.at.value)
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("this server shows the entry already")));
	/* ERROR if it was evicted just now */
	ot_slot_advance(OT_SLOT_WRITING, OT_SLOT_PROPOSED);
	ot_turn_decided(arrival.at, arrival.previous);
}

/* Takes what the node has sent.  ERROR if the entry at hand cannot go on. */
static void
arrival_listen(void)
{
	OtFrameType type;
	OtReader	body;

	if (!ot_agent_flush(agent))
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the arrival worker has lost its connection to the node")));
	while (ot_agent_read(agent, &type, &body))
	{
		OtArriving	part;
		OtVerdict	verdict;

		arrival.heard = ot_now();
		switch (type)
		{
			case OT_FRAME_WELCOME:
				welcomed = true;
				ot_agent_consume(agent);
				break;
			case OT_FRAME_ARRIVING:
				/* the frame stays where it is until more is read */
				ot_agent_consume(agent);
				ot_agent_get_arriving(&body, &part);
				arrival_take_bytes(&part);
				break;
			case OT_FRAME_VERDICT:
				ot_agent_consume(agent);
				if (!ot_agent_get_verdict(&body, &verdict))
					arrival_distrust("a VERDICT that cannot be read");
				if (arrival_is_present(verdict.txn))
					arrival_take_verdict(&verdict);
				else if (verdict.outcome == OT_OUTCOME_COMMIT)
					/* it has crossed that this one was given up */
					arrival_distrust("a VERDICT on an entry that was given up");
				break;
			default:
				arrival_distrust("a frame of another type");
		}
	}
	if (!ot_agent_is_open(agent))
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the arrival worker has lost its connection to the node"),
				 errdetail("%s.", ot_agent_error(agent))));
	(void) ot_agent_flush(agent);
}

/* Waits for the node, or for so long (-1: until it says something), and takes what it has sent. */
static void
arrival_wait(long ms)
{
	if (ms < 0 && arrival.txn.sequence != 0)
		ms = SILENCE_MS;
	ot_agent_wait(agent, ms);
	CHECK_FOR_INTERRUPTS();
	ot_eviction_check();
	arrival_listen();
	if (arrival.decided)
	{
		if (ot_turn_is_handed_over() || ot_applied_index().value >= arrival.at.value)
			ereport(ERROR,
					(errcode(ERRCODE_QUERY_CANCELED),
					 errmsg("the arrival worker leaves the entry to the apply worker")));
	}
	else if (arrival.txn.sequence != 0 && TimestampDifferenceExceeds(arrival.heard, ot_now(), SILENCE_MS))
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("nothing more has come of the entry for %d s", SILENCE_MS / 1000)));
}

/* ---- reading the entry ---- */

/* OtReader.more: waits for the bytes. */
static bool
arrival_more(OtReader *r, uint32 len)
{
	uint64		wanted = (uint64) (r->at - arrival.bytes) + len;

	if (wanted > arrival.total)
		return false;
	if (arrival.got < wanted)
	{
		while (arrival.got < wanted)
			arrival_wait(-1);
		/* what the links take is not the operations' time */
		if (get_timeout_active(STATEMENT_TIMEOUT))
			enable_timeout_after(STATEMENT_TIMEOUT, OPERATIONS_MS);
	}
	r->end = arrival.bytes + arrival.got;
	return true;
}

/* The highest base of the entry's keys.  Leaves r at the write set. */
static OtLogIndex
arrival_read_head(OtReader *r)
{
	OtLogIndex	base = {0};
	uint64		of_key;
	uint32		nkeys;

	(void) ot_get_txn(r);
	if (ot_get_u8(r) != OT_ENTRY_TRANSACTION)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the entry prepares or ends a transaction")));
	nkeys = ot_get_u32(r);
	for (uint32 i = 0; i < nkeys; i++)
	{
		(void) ot_get_u64(r);	/* hash */
		(void) ot_get_u8(r);	/* mode */
		of_key = ot_get_u64(r);
		base.value = Max(base.value, of_key);
	}
	return base;
}

/*
 * Called before each operation of the write set; r is behind the op byte.  ERROR
 * for what is not done early.
 */
void
ot_arrival_operation(uint8 op, OtReader *r)
{
	OtReader	peek;
	OtReader   *sequence;
	MemoryContext old;

	switch (op)
	{
		case 'R':
		case 'O':
		case 'G':
		case 'I':
		case 'U':
		case 'D':
		case 'M':
			break;
		case 'T':
			/* what is looked up by name has a key, and all that the key is based on is shown */
			peek = *r;
			ot_apply_take_over_start_time((TimestampTz) ot_get_u64(&peek));
			break;
		case 'Q':
			/* read now, and carried out in the turn: no rollback undoes it */
			peek = *r;
			pfree(ot_get_str(&peek));
			pfree(ot_get_str(&peek));
			(void) ot_get_u64(&peek);
			if (ot_get_u8(&peek) & OT_SEQUENCE_EXACT)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("a sequence is not set before its entry is decided")));
			old = MemoryContextSwitchTo(arrival_context);
			sequence = palloc(sizeof(OtReader));
			*sequence = *r;
			arrival.sequences = lappend(arrival.sequences, sequence);
			MemoryContextSwitchTo(old);
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("operation 0x%02x is not carried out before its entry is decided", op)));
	}
	if (arrival.looked_at == NULL)
		arrival.looked_at = r->at;
	if (++arrival.operations >= POLL_OPERATIONS || r->at - arrival.looked_at >= POLL_BYTES)
	{
		OT_STOP_POINT("arrival-rows");
		arrival.operations = 0;
		arrival.looked_at = r->at;
		arrival_wait(0);
		enable_timeout_after(STATEMENT_TIMEOUT, OPERATIONS_MS);
	}
}

/* ---- what became of it ---- */

static Outcome
arrival_outcome(int sqlerrcode)
{
	if (arrival.let_go)
		return arrival.late ? OUTCOME_LATE : OUTCOME_NOT_COMMITTED;
	switch (sqlerrcode)
	{
		case ERRCODE_FEATURE_NOT_SUPPORTED:
			return OUTCOME_NOT_EARLY;
		case ERRCODE_LOCK_NOT_AVAILABLE:
			return OUTCOME_LOCK;
		case OT_ERR_LOST:
			return OUTCOME_EVICTED;
		case ERRCODE_QUERY_CANCELED:
			return OUTCOME_CANCELED;
	}
	return ERRCODE_TO_CATEGORY(sqlerrcode) == ERRCODE_CONNECTION_EXCEPTION ? OUTCOME_CONNECTION : OUTCOME_ERROR;
}

static void
arrival_count(Outcome outcome)
{
	pg_atomic_fetch_add_u64(&counts[outcome], 1);
}

/* onetrip.count_early_writes() returns setof record */
Datum
ot_count_early_writes(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	ot_check_running();
	InitMaterializedSRF(fcinfo, 0);
	for (int outcome = 0; outcome < OUTCOMES; outcome++)
	{
		Datum		values[2];
		bool		nulls[2] = {0};

		values[0] = CStringGetTextDatum(outcome_names[outcome]);
		values[1] = Int64GetDatum((int64) pg_atomic_read_u64(&counts[outcome]));
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* ---- the transaction ---- */

static void
arrival_wait_for_turn(void)
{
	while (!ot_turn_try())
	{
		/* where this server stands still, its turn may not come for hours */
		if (ot_turn_is_handed_over() || ot_applied_index().value >= arrival.at.value ||
			ot_worker_stands_at(0).value != 0 || ot_agent_peer_closed(agent))
			ereport(ERROR,
					(errcode(ERRCODE_QUERY_CANCELED),
					 errmsg("the arrival worker leaves the entry to the apply worker")));
		CHECK_FOR_INTERRUPTS();
		ot_wait_latch(RECHECK_MS);
	}
}

/* Reads, writes and commits the entry of which the first bytes are there. */
static void
arrival_carry_out(void)
{
	OtReader	r = {.at = arrival.bytes, .end = arrival.bytes + arrival.got, .more = arrival_more};
	MemoryContext old;
	OtLogIndex	base;
	bool		ran_functions;
	ListCell   *lc;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	old = MemoryContextSwitchTo(arrival_context);
	ot_slot_begin_writing();
	/* Before the node has sent all of it, so before it can send a verdict. */
	ot_turn_begin_arriving(arrival.txn);
	arrival.begun = true;
	if (arrival.last_asked)
		ot_turn_may_be_decided();

	base = arrival_read_head(&r);
	for (int waited = 0; ot_applied_index().value < base.value; waited += BASE_POLL_MS)
	{
		if (arrival.got < arrival.total)
			waited = 0;
		if (waited > BASE_WAIT_MS)
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("this server does not show log index " UINT64_FORMAT " yet", base.value)));
		arrival_wait(BASE_POLL_MS);
	}
	(void) ot_position_wait_announced();
	(void) GetTopTransactionId();
	PushActiveSnapshot(GetTransactionSnapshot());
	ot_is_rehearsing = true;
	enable_timeout_after(STATEMENT_TIMEOUT, OPERATIONS_MS);
	ran_functions = ot_apply_operations(&r);
	disable_timeout(STATEMENT_TIMEOUT, false);
	ot_is_rehearsing = false;
	if (!arrival.decided)
		arrival_say_written(true);
	OT_STOP_POINT("arrival-written");
	while (!arrival.decided)
		arrival_wait(-1);

	OT_STOP_POINT("arrival-decided");
	arrival_wait_for_turn();
	foreach(lc, arrival.sequences)
	{
		CommandCounterIncrement();
		ot_sequence_apply(lfirst(lc));
	}
	PopActiveSnapshot();
	CHECK_FOR_INTERRUPTS();
	MemoryContextSwitchTo(old);
	ot_commit_hold_turn(arrival.at, false);
	CommitTransactionCommand();
	OT_STOP_POINT("arrival-committed");
	pg_atomic_fetch_add_u64(&ot_worker->entries, 1);
	pg_atomic_fetch_add_u64(&ot_worker->transactions, 1);
	arrival_count(OUTCOME_COMMITTED);
	if (ran_functions)
		ot_apply_let_locks_go();
}

static void
arrival_say_done(void)
{
	StringInfo	frame = ot_agent_frame(agent, OT_FRAME_DONE);

	ot_put_txn(frame, arrival.txn);
	ot_agent_frame_end(agent);
	(void) ot_agent_flush(agent);
}

/*
 * An ERROR has ended it.  If the node counts on this worker, it learns otherwise
 * from the end of the connection.
 */
static void
arrival_give_up(void)
{
	ErrorData  *edata;

	MemoryContextSwitchTo(arrival_context);
	edata = CopyErrorData();
	FlushErrorState();
	disable_timeout(STATEMENT_TIMEOUT, false);
	ot_is_rehearsing = false;
	AbortCurrentTransaction();
	ot_apply_let_locks_go();
	QueryCancelPending = false;
	ereport(arrival.decided ? LOG : DEBUG1,
			(errcode(edata->sqlerrcode),
			 errmsg("an entry is left to the apply worker: %s", edata->message)));
	if (arrival.begun)
		arrival_count(arrival_outcome(edata->sqlerrcode));
	if (arrival.decided)
		ot_agent_close(agent);
	else if (ot_agent_is_open(agent) && arrival.txn.sequence != 0 && !arrival.let_go)
		arrival_say_written(false);
}

/* Waits for an entry and carries it out. */
static void
arrival_round(void)
{
	PG_TRY();
	{
		if (arrival.txn.sequence == 0)
			arrival_wait(-1);
		if (arrival.txn.sequence != 0)
		{
			arrival_carry_out();
			arrival_say_done();
		}
	}
	PG_CATCH();
	{
		arrival_give_up();
	}
	PG_END_TRY();
	if (arrival.txn.sequence != 0 && ot_agent_is_open(agent))
		arrival_ask_for_next();
	memset(&arrival, 0, sizeof(arrival));
	MemoryContextReset(arrival_context);
}

static void
arrival_set_up(void)
{
	pqsignal(SIGTERM, die);
	pqsignal(SIGINT, StatementCancelHandler);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(ot_database, NULL, BGWORKER_BYPASS_ALLOWCONN);
	ot_session_watch_errors();
	ot_is_apply_worker = ot_writes_early = true;
	ot_user_set_up();
	ot_apply_set_up_session();
	ot_sql_worker_set("lock_timeout", LOCK_TIMEOUT);
	arrival_context = AllocSetContextCreate(TopMemoryContext, "onetrip arrival",
											ALLOCSET_DEFAULT_SIZES);
	agent = ot_agent_create(TopMemoryContext);
	ot_sql_worker_set("application_name", "onetrip arrival worker");
}

void
ot_arrival_main(Datum arg)
{
	OtLogIndex	none = {0};

	arrival_set_up();
	for (;;)
	{
		/* one that comes now was for the last entry */
		QueryCancelPending = false;
		ot_sql_worker_check();
		if (ot_session_settings_worn_out())
			proc_exit(1);
		if (!ot_agent_is_open(agent))
		{
			if (!ot_agent_open(agent, OT_ROLE_ARRIVAL_WORKER, none, none))
			{
				ot_sql_worker_wait(RECONNECT_MS);
				continue;
			}
			welcomed = false;
			arrival_ask_for_next();
		}
		arrival_round();
		pgstat_report_stat(false);
		if (!ot_agent_is_open(agent))
			ot_sql_worker_wait(welcomed ? RECONNECT_MS : REFUSED_MS);
	}
}

static void
arrival_attach_memory(void *memory, bool found)
{
	counts = memory;
	for (int outcome = 0; !found && outcome < OUTCOMES; outcome++)
		pg_atomic_init_u64(&counts[outcome], 0);
}

void
ot_arrival_register(void)
{
	static const OtShmemPart part = {"onetrip early writes", sizeof(pg_atomic_uint64) * OUTCOMES, arrival_attach_memory};
	BackgroundWorker worker;

	ot_shmem_add(&part);
	ot_sql_worker_describe(&worker, "onetrip arrival worker", "ot_arrival_main");
	RegisterBackgroundWorker(&worker);
}
