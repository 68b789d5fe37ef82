/*-------------------------------------------------------------------------
 *
 * apply.c
 *	  The apply worker: makes committed entries visible in this PostgreSQL.
 *
 * The worker is a background worker, one in each server.  It asks its node for
 * all entries past the applied index and applies them in log order, in
 * transactions that commit when their turn comes.  If a backend of this server
 * is going to commit an entry by itself, the worker leaves it to that backend;
 * docs/agent-protocol.md ("Who commits an entry here") describes how the two
 * agree.
 *
 * Entries that have already arrived share a transaction (a group) if they
 * follow each other and only change rows.  They become visible together, and
 * the commit record contains the position of the last one.  Only one of them
 * sends notifications, since PostgreSQL sends equal ones of a transaction once,
 * but those of two transactions twice.  The worker never waits for more entries
 * to make a group larger, and a group ends before it would delay its first
 * entry noticeably: its entries, bytes and time are limited, and an entry that
 * has to wait long for a lock does so in its own transaction.  With wal_level =
 * logical there are no groups, so that logical decoding gives the same
 * transactions in every region.  If anything goes
 * wrong in a group, it is rolled back and its entries are applied one by one.
 * One that fails before its turn is applied once more in its turn: what it needs
 * may be part of an earlier entry, whose session has not committed it yet or gives
 * it up.  So an entry that cannot be applied fails alone, after all earlier ones
 * have become visible.
 *
 * The worker cannot refuse an entry, since it is decided.  Rows are written
 * below the level of triggers and constraints: these ran where the transaction
 * ran, and their effects are in the entry.  If an entry fails by itself, this
 * server differs from the others, or lacks something (an extension, disk
 * space).  The worker then ends, is started again and tries again, and this
 * server stands still at the last good entry rather than diverge.
 *
 * Memory: entry_context lives for one transaction; rows and all other operations
 * have children of it, since an entry may have millions of them.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "capture/capture.h"
#include "commit/commit.h"
#include "ddl/ddl.h"
#include "sequence/sequence.h"
#include "shmem/shmem.h"

/* How often the node is told the position when nothing else happens. */
#define POSITION_MS 100
/*
 * It is told no more often than this, unless POSITION_ENTRIES have come: a worker
 * that keeps up would tell it after each entry, which wakes two threads of the
 * node each time.
 */
#define POSITION_GAP_MS 5
/* Finding the durable index flushes the WAL: not more often than this. */
#define DURABLE_MS 500
/* The node is told the position at the latest after so many entries. */
#define POSITION_ENTRIES 128
/* The time between attempts to reach the node. */
#define RECONNECT_MS 100
/* How often to check again for a backend, in case a wake-up was missed. */
#define RECHECK_MS 20

/*
 * The limits of a group.  Its first entry becomes visible later by the time
 * that the others take, so no further entry is begun after GROUP_MS, and none
 * waits for a lock for longer than GROUP_LOCK_WAIT_MS.
 */
#define GROUP_ENTRIES_MAX 64
#define GROUP_BYTES_MAX (256 * 1024)
#define GROUP_MS 5
#define GROUP_LOCK_WAIT_MS 10
/* An entry larger than this goes alone. */
#define GROUP_ENTRY_BYTES_MAX (32 * 1024)

static OtAgent *agent = NULL;
static bool welcomed;			/* on this connection */
static MemoryContext entry_context = NULL;
static OtLogIndex told_applied;
static OtLogIndex told_durable;
static int	untold_entries = 0;
static TimestampTz told_at = 0;
static char told_trouble[256] = "";
/* The last error while the present entry was applied, caught or not. */
static char failure[sizeof(((OtWorkerStatus *) NULL)->failure)] = "";
static bool failure_passes = false;

/* For messages: the entry being applied. */
static void
apply_entry_error_context(void *arg)
{
	OtEntry    *entry = arg;
	char		text[OT_TXN_ID_TEXT_MAX];

	errcontext("applying log index " UINT64_FORMAT ", transaction %s of region \"%s\"",
			   entry->at.value, ot_txn_to_text(entry->txn, text), entry->region);
}

/* Does this callback say which entry it is? */
bool
ot_apply_says_entry(const ErrorContextCallback *context)
{
	return context->callback == apply_entry_error_context;
}

static void
apply_set_applying(OtEntry *entry)
{
	TimestampTz now = entry ? ot_now() : 0;

	failure[0] = '\0';
	pg_atomic_write_u32(&ot_worker->applying_table, InvalidOid);
	SpinLockAcquire(&ot_worker->mutex);
	if (entry)
	{
		ot_worker->applying = entry->at;
		ot_worker->applying_since = now;
		strlcpy(ot_worker->applying_region, entry->region, NAMEDATALEN);
	}
	else
		ot_worker->applying.value = 0;
	SpinLockRelease(&ot_worker->mutex);
}

static void
apply_tell_position(void)
{
	static TimestampTz durable_at = 0;
	static OtLogIndex durable;
	OtLogIndex	applied = ot_applied_index();
	TimestampTz now = ot_now();
	StringInfo	frame;

	untold_entries = 0;
	if (!ot_agent_is_open(agent))
		return;
	if (durable.value != applied.value &&
		TimestampDifferenceExceeds(durable_at, now, DURABLE_MS))
	{
		durable = ot_durable_index();
		durable_at = now;
	}
	if (applied.value == told_applied.value && durable.value == told_durable.value)
		return;
	frame = ot_agent_frame(agent, OT_FRAME_POSITION);
	ot_put_u64(frame, applied.value);
	ot_put_u64(frame, durable.value);
	ot_agent_frame_end(agent);
	(void) ot_agent_flush(agent);
	told_applied = applied;
	told_durable = durable;
	told_at = now;
}

/*
 * There is nothing to apply now.  Tells the node the position, if it was not
 * told just before; returns after how many milliseconds to look again.
 */
static long
apply_rest(void)
{
	long		gap_ms = TimestampDifferenceMilliseconds(ot_now(),
													 TimestampTzPlusMilliseconds(told_at, POSITION_GAP_MS));

	/* the clock may have been set back */
	if (gap_ms == 0 || gap_ms > POSITION_GAP_MS)
	{
		apply_tell_position();
		return POSITION_MS;
	}
	return told_applied.value == ot_applied_index().value ? POSITION_MS : gap_ms;
}

static void
apply_process_interrupts(void)
{
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/*
 * Waits for the backend of this server that is about to commit the entry.
 * Returns true once it has done so, false if it no longer will.
 */
static bool
apply_wait_for_backend(OtEntry *entry)
{
	OtLogIndex	none = {0};

	ot_turn_worker_wants(entry->at);
	while (ot_applied_index().value < entry->at.value && ot_turn_backend_has(entry->txn))
	{
		ot_wait_latch(RECHECK_MS);
		apply_process_interrupts();
	}
	ot_turn_worker_wants(none);
	return ot_applied_index().value >= entry->at.value;
}

/*
 * Waits until everything before the entry is visible.  Returns false if an
 * earlier entry was given up by its backend, so that the node must send it.
 */
static bool
apply_wait_for_turn(void)
{
	for (;;)
	{
		if (ot_turn_try())
			return true;
		if (!ot_turn_someone_before() || ot_agent_peer_closed(agent))
			return ot_turn_try();
		ot_wait_latch(RECHECK_MS);
		apply_process_interrupts();
	}
}

/* The entry being applied, and whether its turn has come. */
static OtEntry *current = NULL;
static bool has_turn;

/*
 * Takes the turn now, if it is not taken yet, and waits until the names that
 * earlier entries have changed can be seen.  Returns false if it was taken
 * already, or if it will not come.
 */
bool
ot_apply_take_turn(void)
{
	if (current == NULL || has_turn)
		return false;
	has_turn = apply_wait_for_turn();
	if (has_turn)
		(void) ot_position_wait_announced();
	return has_turn;
}

/* Has the worker the turn?  A rehearsal needs none. */
bool
ot_apply_has_turn(void)
{
	return current == NULL || has_turn;
}

/*
 * Has the entry failed before, in a way that will not pass by itself?
 */
bool
ot_apply_has_failed(void)
{
	OtLogIndex	failing;
	bool		passes;

	if (likely(current == NULL))
		return false;
	SpinLockAcquire(&ot_worker->mutex);
	failing = ot_worker->failing;
	passes = ot_worker->failing_passes;
	SpinLockRelease(&ot_worker->mutex);
	return failing.value == current->at.value && !passes;
}

/* ---- entries that are applied together ---- */

/* Up to here each entry gets its own transaction, since a group has failed. */
static OtLogIndex singly_up_to;
/* Up to here each entry waits for its turn first, since one has failed before it. */
static OtLogIndex in_turn_up_to;

/* The present transaction's group. */
static struct
{
	int			entries;
	Size		bytes;
	TimestampTz since;
	bool		open;			/* more entries may join */
	bool		looks;			/* the next entry is being read */
	bool		notifies;		/* one of its entries does */
}			group;

/* Notifications come first in a write set that may share a transaction. */
static bool
apply_notifies(const OtReader *r)
{
	OtReader	operations = {.at = r->at + 1, .end = r->end};

	return r->at < r->end && ot_notify_comes_next(&operations);
}

static bool
apply_may_share(const OtEntry *entry, const OtReader *r)
{
	TimestampTz started;

	/* decoded, each transaction is to be the one that it was in its own region */
	return entry->flags == 0 && entry->at.value > singly_up_to.value && !XLogLogicalInfoActive() &&
		r->end - r->at <= GROUP_ENTRY_BYTES_MAX && !ot_apply_looks_names_up(r, &started);
}

/*
 * Adds the next entry to the group, if it may join; *entry and *r are then that
 * one.  If a backend commits an entry in between, the next entry's previous one
 * is not the last of the group, so the group ends before it.
 */
static bool
apply_take_next(OtEntry *entry, OtReader *r)
{
	OtFrameType type;
	OtReader	body;
	OtEntry		next;

	if (!group.open || has_turn || group.entries >= GROUP_ENTRIES_MAX ||
		TimestampDifferenceExceeds(group.since, ot_now(), GROUP_MS) ||
		ot_apply_rows_are_many() ||
		!ot_agent_peek(agent, &type, &body) || type != OT_FRAME_ENTRY)
		return false;
	group.looks = true;
	ot_agent_get_entry(&body, &next);
	group.looks = false;
	if (next.previous.value != entry->at.value || !apply_may_share(&next, &body) ||
		(group.notifies && apply_notifies(&body)) ||
		group.bytes + (body.end - body.at) > GROUP_BYTES_MAX ||
		ot_turn_backend_has(next.txn) || !ot_turn_extend(next.at))
		return false;
	ot_agent_keep(agent, &body);
	group.entries++;
	group.bytes += body.end - body.at;
	group.notifies |= apply_notifies(&body);
	/* The other entries must not wait long for a lock that this one needs. */
	LockTimeout = GROUP_LOCK_WAIT_MS;
	*entry = next;
	*r = body;
	apply_set_applying(entry);
	return true;
}

/*
 * The group, or an entry before its turn, has failed, for whatever reason.  The
 * frames are still in the buffer, so the entries are now applied one by one, or
 * that one in its turn.
 */
static void
apply_give_up(const OtEntry *entry)
{
	bool		single = group.entries == 1 && !group.looks;
	ErrorData  *edata;

	MemoryContextSwitchTo(entry_context);
	edata = CopyErrorData();
	FlushErrorState();
	LockTimeout = 0;
	AbortCurrentTransaction();
	/* it may have failed before it had a transaction */
	ot_turn_forget(false);
	if (ot_apply_ran_functions())
		ot_apply_let_locks_go();
	/* No timeout is active any more; one that fired late was for the group. */
	(void) get_timeout_indicator(LOCK_TIMEOUT, true);
	QueryCancelPending = false;
	*(single ? &in_turn_up_to : &singly_up_to) = entry->at;
	ereport(edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ? DEBUG1 : LOG,
			(errcode(edata->sqlerrcode),
			 single ? errmsg("an entry is applied once more in its turn: %s", edata->message) :
			 errmsg("%d entries are applied one by one: %s", group.entries, edata->message),
			 edata->detail ? errdetail_internal("%s", edata->detail) : 0));
}

/*
 * Commits when the turn comes.  Returns false if it will not come on this
 * connection.
 */
static bool
apply_commit(const OtEntry *entry)
{
	if (!has_turn)
		has_turn = apply_wait_for_turn();
	if (!has_turn)
	{
		AbortCurrentTransaction();
		return false;
	}
	ot_commit_hold_turn(entry->at, false);
	CommitTransactionCommand();
	ot_subscription_end_taken_over();
	pg_atomic_fetch_add_u64(&ot_worker->entries, group.entries);
	pg_atomic_fetch_add_u64(&ot_worker->transactions, 1);
	/* An entry that may run functions is never in a group with others. */
	OT_ASSERT(group.entries == 1 || !ot_apply_ran_functions());
	if (ot_apply_ran_functions())
		ot_apply_let_locks_go();
	return true;
}

/* Takes the turn before the entry's transaction begins.  Returns false if it will not come. */
static bool
apply_begin_in_turn(void)
{
	if (ot_apply_take_turn())
		return true;
	ot_turn_forget(false);
	return false;
}

/*
 * Applies the entry, and those after it that may join its group; *entry is then
 * the last one.  Returns false if the turn will not come on this connection.
 */
static bool
apply_transaction(OtEntry *entry, OtReader *r)
{
	TimestampTz started;
	bool		has_failed = entry->flags == 0 && ot_apply_has_failed();

	SetCurrentStatementStartTimestamp();
	ot_turn_decided(entry->at, entry->previous);
	if (entry->flags == 0 && ot_apply_looks_names_up(r, &started))
	{
		/* Names have the meaning that they have after all earlier entries. */
		if (!apply_begin_in_turn())
			return false;
		ot_apply_take_over_start_time(started);
	}
	/*
	 * What the arrival worker has may come before this entry, and need not be
	 * written yet, as what a session has is.
	 */
	if (unlikely(ot_turn_is_arriving()) && ot_applied_index().value < entry->previous.value && !has_turn)
	{
		if (!apply_begin_in_turn())
			return false;
		/* nobody has held it up so far */
		apply_set_applying(entry);
	}
	if ((has_failed || entry->at.value <= in_turn_up_to.value) && !has_turn && !apply_begin_in_turn())
		return false;
	StartTransactionCommand();
	MemoryContextSwitchTo(entry_context);
	(void) GetTopTransactionId();
	PushActiveSnapshot(GetTransactionSnapshot());
	ot_ddl_make_way(has_failed);
	if (entry->flags == 0)
	{
		ot_apply_rows_begin();
		do
			ot_apply_write_set(r, entry);
		while (apply_take_next(entry, r));
		ot_apply_rows_close();
		ot_subscription_look_for_taken_over();
	}
	else
		ot_left_out_apply(entry, r);
	PopActiveSnapshot();
	/* The group's lock timeout may have fired just as the lock was acquired. */
	CHECK_FOR_INTERRUPTS();
	LockTimeout = 0;
	return apply_commit(entry);
}

/* Applies an entry, and those after it that may share its transaction. */
static void
apply_entry(OtReader *r)
{
	OtEntry		entry;
	ErrorContextCallback callback = {
		.callback = apply_entry_error_context, .arg = &entry, .previous = error_context_stack
	};
	MemoryContext old = MemoryContextSwitchTo(entry_context);

	memset(&group, 0, sizeof(group));
	ot_agent_get_entry(r, &entry);
	error_context_stack = &callback;

	/* in this order: a backend publishes before it is no longer on its way */
	if ((ot_turn_backend_has(entry.txn) && apply_wait_for_backend(&entry)) ||
		ot_applied_index().value >= entry.at.value)
	{
		untold_entries++;
		ot_agent_consume(agent);
		goto done;
	}

	apply_set_applying(&entry);
	current = &entry;
	has_turn = false;
	group.entries = 1;
	group.bytes = r->end - r->at;
	group.notifies = apply_notifies(r);
	group.since = ot_now();
	group.open = apply_may_share(&entry, r);
	PG_TRY();
	{
		if (apply_transaction(&entry, r))
		{
			untold_entries += group.entries;
			ot_agent_consume(agent);
		}
		else
			ot_agent_close(agent);
	}
	PG_CATCH();
	{
		/* A next entry that cannot be read is no failure of this one. */
		if (group.entries == 1 && !group.looks && has_turn)
			PG_RE_THROW();
		apply_give_up(&entry);
	}
	PG_END_TRY();
	apply_set_applying(NULL);

done:
	current = NULL;
	error_context_stack = callback.previous;
	MemoryContextSwitchTo(old);
	MemoryContextReset(entry_context);
}

/*
 * Keeps an error's message for onetrip.status.  If the worker ends because of
 * it, this server stands still until the cause is gone.
 */
static void
apply_note_failure(const ErrorData *edata)
{
	OtFault		fault;

	if (edata->elevel >= FATAL && edata->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
		failure[0] = '\0';
	else
	{
		strlcpy(failure, edata->message ? edata->message : "an error", sizeof(failure));
		fault = ot_apply_fault(edata);
		failure_passes = fault == OT_FAULT_PASSES || fault == OT_FAULT_LACKS;
	}
}

/*
 * Tells the node, at the beginning of each attempt, about an entry that has
 * failed for too long, in a way that does not pass.  Probably only a copy of another server
 * that shows the entry will help.
 */
static void
apply_tell_stuck(void)
{
	OtLogIndex	failing;
	TimestampTz since;
	bool		passes;
	int			failures;
	char		message[sizeof(failure)];
	StringInfo	frame;

	SpinLockAcquire(&ot_worker->mutex);
	failing = ot_worker->failing;
	since = ot_worker->failing_since;
	passes = ot_worker->failing_passes;
	failures = ot_worker->failures;
	memcpy(message, ot_worker->failure, sizeof(message));
	SpinLockRelease(&ot_worker->mutex);

	if (ot_rebuild_after_ms == 0 || failing.value <= ot_applied_index().value || failures < 2 ||
		passes || !TimestampDifferenceExceeds(since, ot_now(), ot_rebuild_after_ms))
		return;
	message[pg_mbcliplen(message, strlen(message), sizeof(message) - 1)] = '\0';
	/* A file name in it, for example, may not be valid in the encoding. */
	if (!pg_verifymbstr(message, strlen(message), true))
		strlcpy(message, "see its log", sizeof(message));
	frame = ot_agent_frame(agent, OT_FRAME_STUCK);
	ot_put_u64(frame, failing.value);
	ot_put_str(frame, message);
	ot_agent_frame_end(agent);
}

static void
apply_leave(int code, Datum arg)
{
	TimestampTz now = ot_now();

	SpinLockAcquire(&ot_worker->mutex);
	if (ot_worker->applying.value != 0 && failure[0] != '\0')
	{
		if (ot_worker->failing.value != ot_worker->applying.value ||
			ot_worker->failing_passes != failure_passes)
		{
			ot_worker->failures = 0;
			ot_worker->failing_since = now;
		}
		ot_worker->failing = ot_worker->applying;
		ot_worker->failing_passes = failure_passes;
		ot_worker->failures++;
		memcpy(ot_worker->failure, failure, sizeof(failure));
	}
	ot_worker->worker = -1;
	ot_worker->applying.value = 0;
	SpinLockRelease(&ot_worker->mutex);
}

/* Settings that an operator makes for clients must not affect the worker. */
void
ot_apply_set_up_session(void)
{
	ot_settings_set_up_worker();
	ot_sql_worker_set("session_replication_role", "replica");
	/*
	 * Parallel workers do not know for whom they work; and whether there are any, in which
	 * a function may fail that is declared to be safe there, is each server's own.
	 */
	ot_sql_worker_set("max_parallel_maintenance_workers", "0");
	ot_session_settings_set_up();
}

static void
apply_set_up_worker(void)
{
	OtLogIndex	none = {0};

	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(ot_database, NULL, BGWORKER_BYPASS_ALLOWCONN);
	ot_is_apply_worker = true;

	ot_user_set_up();
	ot_apply_set_up_session();
	/* The evictor resolves deadlocks; the worker must not fail in one. */
	ot_sql_worker_set("deadlock_timeout", "1h");

	entry_context = AllocSetContextCreate(TopMemoryContext, "onetrip entry",
										  ALLOCSET_DEFAULT_SIZES);
	agent = ot_agent_create(TopMemoryContext);

	StartTransactionCommand();
	ot_position_attach();
	CommitTransactionCommand();
	if (!ot_position_is_welcomed())
		ot_sequence_reshare();
	/* forget what a previous worker was waiting for */
	ot_turn_worker_wants(none);
	before_shmem_exit(apply_leave, (Datum) 0);
	ot_session_note_failures(apply_note_failure);
	ot_session_watch_errors();
	SpinLockAcquire(&ot_worker->mutex);
	ot_worker->worker = OT_PROC_NUMBER(MyProc);
	SpinLockRelease(&ot_worker->mutex);
	pgstat_report_appname("onetrip apply worker");
}

/* Logs why there is no connection to the node, once for each cause. */
static void
apply_tell_trouble(void)
{
	if (strcmp(told_trouble, ot_agent_error(agent)) == 0)
		return;
	strlcpy(told_trouble, ot_agent_error(agent), sizeof(told_trouble));
	ereport(LOG,
			(errmsg("onetrip apply worker is not connected to its node: %s", told_trouble)));
}

static void
apply_frame(OtFrameType type, OtReader *body)
{
	switch (type)
	{
		case OT_FRAME_ENTRY:
			apply_entry(body);
			if (ot_session_settings_worn_out())
			{
				ereport(LOG,
						(errmsg("onetrip apply worker restarts: sessions have used too many different custom settings")));
				proc_exit(1);
			}
			if (untold_entries >= POSITION_ENTRIES ||
				TimestampDifferenceExceeds(told_at, ot_now(), POSITION_MS))
				apply_tell_position();
			break;
		case OT_FRAME_WELCOME:
			ot_position_welcome(ot_agent_get_welcome(body));
			told_trouble[0] = '\0';
			ot_agent_consume(agent);
			welcomed = true;
			ot_settle_connected();
			apply_tell_stuck();
			break;
		case OT_FRAME_OUTCOME_IS:
			if (ot_settle_heard(body))
				ot_agent_consume(agent);
			else
			{
				ot_agent_close_damaged(agent, type);
				ot_wait_latch(RECONNECT_MS);
			}
			break;
		default:
			ereport(LOG,
					(errcode(OT_ERR_PROTOCOL),
					 errmsg("the node sent the apply worker a frame of type 0x%02x", type)));
			ot_agent_close(agent);
			ot_wait_latch(RECONNECT_MS);
	}
}

void
ot_apply_main(Datum arg)
{
	apply_set_up_worker();
	ereport(LOG,
			(errmsg("onetrip apply worker starts at log index " UINT64_FORMAT,
					ot_applied_index().value)));

	for (;;)
	{
		OtFrameType type;
		OtReader	body;
		long		rest_ms;

		apply_process_interrupts();
		if (!ot_agent_is_open(agent))
		{
			OtLogIndex	applied = ot_applied_index();
			OtLogIndex	durable = ot_durable_index();

			if (!ot_agent_open(agent, OT_ROLE_APPLY_WORKER, applied, durable))
			{
				apply_tell_trouble();
				ot_wait_latch(RECONNECT_MS);
				continue;
			}
			told_applied = applied;
			told_durable = durable;
			welcomed = false;
		}
		/* A node that has just started answers no questions before WELCOME. */
		if (welcomed)
			ot_settle_ask(agent);
		(void) ot_agent_flush(agent);

		if (ot_agent_read(agent, &type, &body))
		{
			apply_frame(type, &body);
			continue;
		}
		if (!ot_agent_is_open(agent))
			apply_tell_trouble();

		rest_ms = apply_rest();
		pgstat_report_stat(false);
		ot_agent_wait(agent, rest_ms);
	}
}

void
ot_apply_register(void)
{
	BackgroundWorker worker;

	ot_sql_worker_describe(&worker, "onetrip apply worker", "ot_apply_main");
	RegisterBackgroundWorker(&worker);
}
