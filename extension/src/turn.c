/*-------------------------------------------------------------------------
 *
 * turn.c
 *	  The order of local commits, kept in shared memory.
 *
 * Entries become visible here in log order: whoever commits entry i first
 * waits until the applied index is the committed entry before i, and publishes
 * i once its transaction is visible to new snapshots.  Between the two it
 * holds the turn.  So a snapshot is always a prefix of the log.
 *
 * The waiters form a queue sorted by index; publishing looks at the first one
 * only and wakes that process, nobody else.
 *
 * Where this server stands after a crash is in its commit records: each was
 * written under the replication origin "onetrip" with the log index as its
 * position.  The first process that needs the applied index reads it there.
 *
 * Runs in backends, the apply worker and the evictor.  One spinlock guards
 * the queue and the applied index; it is held for a few instructions, never
 * across a call that can fail.  ERROR is raised only by ot_turn_attach(),
 * ot_turn_begin_writing() and ot_turn_begin_proposing(), all before anything was
 * proposed.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "turn.h"

#include "access/xact.h"
#include "catalog/pg_replication_origin.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/origin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "evict.h"

/* How long a new session waits for the state from before the server's start. */
#define CATCH_UP_MS 10000
#define CATCH_UP_POLL_MS 5
/* A backend is between its publishing and its locks for some microseconds. */
#define ANNOUNCED_POLL_US 100

OtShared   *ot_shared = NULL;

static int	my_slot_number = -1;

static int
slot_count(void)
{
	/* auxiliary processes never come here, but their numbers are in between */
	return MaxBackends + NUM_AUXILIARY_PROCS;
}

Size
ot_turn_shmem_size(void)
{
	return add_size(offsetof(OtShared, slots), mul_size(sizeof(OtSlot), slot_count()));
}

void
ot_turn_shmem_init(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	ot_shared = ShmemInitStruct("onetrip", ot_turn_shmem_size(), &found);
	if (!found)
	{
		memset(ot_shared, 0, ot_turn_shmem_size());
		SpinLockInit(&ot_shared->mutex);
		SpinLockInit(&ot_shared->evict_mutex);
		SpinLockInit(&ot_shared->used_sequences.mutex);
		pg_atomic_init_u64(&ot_shared->applied, 0);
		pg_atomic_init_u64(&ot_shared->next_sequence, 0);
		pg_atomic_init_u32(&ot_shared->applying_table, InvalidOid);
		pg_atomic_init_u64(&ot_shared->evictions, 0);
		pg_atomic_init_u64(&ot_shared->handovers, 0);
		ot_shared->first_waiter = -1;
		ot_shared->worker = -1;
		ot_shared->evictor = -1;
		ot_shared->nslots = slot_count();
		for (int i = 0; i < ot_shared->nslots; i++)
		{
			pg_atomic_init_u32(&ot_shared->slots[i].state, OT_SLOT_IDLE);
			pg_atomic_init_u32(&ot_shared->slots[i].handover, 0);
			ot_shared->slots[i].next = -1;
		}
		/* Two starts of one server must not share transaction ids. */
		if (!pg_strong_random(&ot_shared->incarnation, sizeof(ot_shared->incarnation)))
			ot_shared->incarnation = ((uint64) GetCurrentTimestamp()) ^ ((uint64) MyProcPid << 48);
	}
	LWLockRelease(AddinShmemInitLock);
}

static void announced(ResourceReleasePhase phase, bool is_commit, bool is_top_level, void *arg);

/*
 * A process that ends leaves nothing behind.  By now its transaction has been
 * aborted, and the origin let go: the next holder of the turn needs both.
 */
static void
release_slot(int code, Datum arg)
{
	announced(RESOURCE_RELEASE_AFTER_LOCKS, false, true, NULL);
	ot_turn_forget(false);
}

OtSlot *
ot_my_slot(void)
{
	if (unlikely(my_slot_number < 0))
	{
		int			number = OT_PROC_NUMBER(MyProc);

		if (number < 0 || number >= ot_shared->nslots)
			elog(ERROR, "process number %d is outside of onetrip's shared memory", number);
		/* IDLE, or EVICTED: this transaction, or one that is over */
		my_slot_number = number;
		on_shmem_exit(release_slot, (Datum) 0);
	}
	return &ot_shared->slots[my_slot_number];
}

/* The origin's local number; needs a transaction the first time. */
RepOriginId
ot_origin(void)
{
	static RepOriginId origin = InvalidRepOriginId;

	if (origin == InvalidRepOriginId)
	{
		origin = replorigin_by_name("onetrip", true);
		if (origin == InvalidRepOriginId)
			ereport(ERROR,
					(errcode(OT_ERR_NOT_NOW),
					 errmsg("replication origin \"onetrip\" does not exist in this server"),
					 errhint("It holds the server's position in the log and is made by onetrip init; do not drop it.")));
	}
	return origin;
}

/* Learns where this server stands, once per start of the server. */
void
ot_turn_attach(void)
{
	uint64		progress;

	if (likely(ot_shared->known))
	{
		(void) ot_origin();
		return;
	}
	progress = (uint64) replorigin_get_progress(ot_origin(), false);
	SpinLockAcquire(&ot_shared->mutex);
	if (!ot_shared->known)
	{
		pg_atomic_write_u64(&ot_shared->applied, progress);
		ot_shared->known = true;
	}
	SpinLockRelease(&ot_shared->mutex);
}

/* The worker met its node; the first time since the server's start counts. */
void
ot_turn_welcome(OtLogIndex committed)
{
	SpinLockAcquire(&ot_shared->mutex);
	if (!ot_shared->welcomed)
	{
		ot_shared->catch_up_to = committed;
		ot_shared->welcomed = true;
	}
	SpinLockRelease(&ot_shared->mutex);
}

bool
ot_turn_is_welcomed(void)
{
	bool		welcomed;

	SpinLockAcquire(&ot_shared->mutex);
	welcomed = ot_shared->welcomed;
	SpinLockRelease(&ot_shared->mutex);
	return welcomed;
}

static bool
caught_up(void)
{
	bool		answer;

	SpinLockAcquire(&ot_shared->mutex);
	answer = ot_shared->known && ot_shared->welcomed &&
		pg_atomic_read_u64(&ot_shared->applied) >= ot_shared->catch_up_to.value;
	SpinLockRelease(&ot_shared->mutex);
	return answer;
}

/*
 * For a session that begins.  A crash takes away what was committed here and
 * not flushed yet, until the node has fed it again; a client that connects in
 * between would miss what it was told was committed.
 */
void
ot_turn_wait_caught_up(void)
{
	for (int waited = 0; !caught_up(); waited += CATCH_UP_POLL_MS)
	{
		if (waited >= CATCH_UP_MS)
			ereport(FATAL,
					(errcode(ERRCODE_CANNOT_CONNECT_NOW),
					 errmsg("database \"%s\" of region \"%s\" does not show yet what was committed before this server started",
							ot_database, ot_region),
					 errdetail("It gets that from its node, which may have to wait for a majority of regions."),
					 errhint("Start the node (onetrip start); if it runs, its log and the server's tell why the changes are not applied.")));
		CHECK_FOR_INTERRUPTS();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 CATCH_UP_POLL_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

OtLogIndex
ot_applied_index(void)
{
	OtLogIndex	index = {pg_atomic_read_u64(&ot_shared->applied)};

	return index;
}

/* ---- names ---- */

/* This transaction changes names: it has the lock that stands for the schema. */
static bool names_change = false;
static OtLogIndex announcing;

/*
 * PostgreSQL tells other processes that the catalogs have changed only after
 * our callback has published the entry.  In between, what they remember of
 * the catalogs is older than the applied index says.  So the entry is marked
 * until its locks are gone, which is after that.  Transactions that change
 * names follow each other, by the lock on the schema: one mark is enough.
 */
static void
announced(ResourceReleasePhase phase, bool is_commit, bool is_top_level, void *arg)
{
	if (phase != RESOURCE_RELEASE_AFTER_LOCKS || !is_top_level || !names_change)
		return;
	names_change = false;
	SpinLockAcquire(&ot_shared->mutex);
	if (ot_shared->unannounced.value == announcing.value)
		ot_shared->unannounced.value = 0;
	SpinLockRelease(&ot_shared->mutex);
	announcing.value = 0;
}

void
ot_turn_names_change(void)
{
	static bool registered = false;

	if (!registered)
		RegisterResourceReleaseCallback(announced, NULL);
	registered = true;
	names_change = true;
}

/*
 * The base for a key on an object whose name is about to be looked up: the
 * catalogs, once invalidations have been taken, are at least as new.
 */
OtLogIndex
ot_turn_base_of_names(void)
{
	OtLogIndex	base;

	ot_turn_attach();
	SpinLockAcquire(&ot_shared->mutex);
	base.value = pg_atomic_read_u64(&ot_shared->applied);
	if (ot_shared->unannounced.value != 0 && ot_shared->unannounced.value <= base.value)
		base.value = ot_shared->unannounced.value - 1;
	SpinLockRelease(&ot_shared->mutex);
	return base;
}

/* Until the names of all that has been applied are there to be seen. */
void
ot_turn_wait_announced(void)
{
	for (;;)
	{
		bool		done;

		SpinLockAcquire(&ot_shared->mutex);
		done = ot_shared->unannounced.value == 0;
		SpinLockRelease(&ot_shared->mutex);
		if (done)
			break;
		CHECK_FOR_INTERRUPTS();
		pg_usleep(ANNOUNCED_POLL_US);
	}
	AcceptInvalidationMessages();
}

/* Up to where this server would still be after a crash now. */
OtLogIndex
ot_durable_index(void)
{
	OtLogIndex	index = {(uint64) replorigin_get_progress(ot_origin(), true)};

	return index;
}

/* ---- the state of this process ---- */

/* Goes on to the next state, unless the transaction was evicted. */
static void
advance(OtSlot *slot, OtSlotState from, OtSlotState to)
{
	uint32		state = from;

	while (!pg_atomic_compare_exchange_u32(&slot->state, &state, to))
	{
		/* ERROR, or takes a mark away that was meant for another one */
		if (state == OT_SLOT_EVICTED)
			ot_evict_take_mark();
		state = pg_atomic_read_u32(&slot->state);
	}
}

void
ot_turn_begin_writing(void)
{
	ot_turn_attach();
	advance(ot_my_slot(), OT_SLOT_IDLE, OT_SLOT_WRITING);
}

OtTxnId
ot_turn_draw_txn(void)
{
	OtTxnId		txn;

	txn.node = (uint32) ot_node_id;
	txn.incarnation = ot_shared->incarnation;
	txn.sequence = pg_atomic_add_fetch_u64(&ot_shared->next_sequence, 1);
	return txn;
}

/* From here on nobody may evict this transaction. */
void
ot_turn_begin_proposing(OtTxnId txn)
{
	OtSlot	   *slot = ot_my_slot();

	SpinLockAcquire(&ot_shared->mutex);
	slot->txn = txn;
	SpinLockRelease(&ot_shared->mutex);
	pg_atomic_write_u32(&slot->handover, 0);

	advance(slot, OT_SLOT_WRITING, OT_SLOT_PROPOSED);
}

void
ot_turn_decided(OtLogIndex index, OtLogIndex previous)
{
	OtSlot	   *slot = ot_my_slot();

	SpinLockAcquire(&ot_shared->mutex);
	slot->index = index;
	slot->previous = previous;
	pg_atomic_write_u32(&slot->state, OT_SLOT_DECIDED);
	SpinLockRelease(&ot_shared->mutex);
}

static void
dequeue(int number)
{
	OtSlot	   *slot = &ot_shared->slots[number];
	int		   *link = &ot_shared->first_waiter;

	if (!slot->waiting)
		return;
	while (*link != number)
		link = &ot_shared->slots[*link].next;
	*link = slot->next;
	slot->next = -1;
	slot->waiting = false;
}

/*
 * Takes the turn for `index` if it has come.  The worker may call this
 * without being DECIDED, since it gets its entries in order.
 */
bool
ot_turn_try(OtLogIndex index, OtLogIndex previous)
{
	bool		taken = false;

	(void) ot_my_slot();
	SpinLockAcquire(&ot_shared->mutex);
	if (pg_atomic_read_u64(&ot_shared->applied) == previous.value &&
		ot_shared->holder.value == 0 && ot_shared->gates_closed == 0)
	{
		ot_shared->holder = index;
		dequeue(my_slot_number);
		taken = true;
	}
	SpinLockRelease(&ot_shared->mutex);
	return taken;
}

/* Lines up, so that the process before wakes this one; then try again. */
void
ot_turn_enqueue(void)
{
	OtSlot	   *slot = ot_my_slot();
	int		   *link = &ot_shared->first_waiter;

	SpinLockAcquire(&ot_shared->mutex);
	if (!slot->waiting)
	{
		while (*link >= 0 && ot_shared->slots[*link].index.value < slot->index.value)
			link = &ot_shared->slots[*link].next;
		slot->next = *link;
		slot->waiting = true;
		*link = my_slot_number;
	}
	SpinLockRelease(&ot_shared->mutex);
}

static void
wake(int number)
{
	if (number >= 0)
		SetLatch(&ProcGlobal->allProcs[number].procLatch);
}

/* The waiter whose turn it is now, -1 if it has not arrived; mutex held. */
static int
next_waiter(void)
{
	int			first = ot_shared->first_waiter;

	if (first >= 0 && ot_shared->gates_closed == 0 && ot_shared->holder.value == 0 &&
		ot_shared->slots[first].previous.value == pg_atomic_read_u64(&ot_shared->applied))
		return first;
	return -1;
}

/* The entry is visible to new snapshots: hands the turn on. */
void
ot_turn_publish(OtLogIndex index)
{
	int			next;
	int			worker = -1;
	int			gate_procs[OT_MAX_GATES];
	int			ngates = 0;

	SpinLockAcquire(&ot_shared->mutex);
	Assert(ot_shared->holder.value == index.value);
	Assert(pg_atomic_read_u64(&ot_shared->applied) < index.value);
	if (names_change)
		ot_shared->unannounced = announcing = index;
	pg_atomic_write_u64(&ot_shared->applied, index.value);
	ot_shared->holder.value = 0;
	for (int i = 0; i < OT_MAX_GATES; i++)
	{
		if (ot_shared->gates[i].used && ot_shared->gates[i].target.value <= index.value)
		{
			ot_shared->gates_closed++;
			gate_procs[ngates++] = ot_shared->gates[i].proc;
		}
	}
	next = next_waiter();
	if (ot_shared->worker_wants.value != 0 &&
		ot_shared->worker_wants.value <= index.value)
		worker = ot_shared->worker;
	SpinLockRelease(&ot_shared->mutex);

	wake(next);
	if (worker >= 0 && worker != next)
		wake(worker);
	for (int i = 0; i < ngates; i++)
		wake(gate_procs[i]);
}

/*
 * The transaction is over: leaves the queue and, if it did not commit, gives
 * the turn back unused and tells the worker that its entry may be left over.
 * Safe to call at any time.
 */
void
ot_turn_forget(bool committed)
{
	OtSlot	   *slot;
	uint32		state;
	int			next = -1;

	if (my_slot_number < 0)
		return;
	slot = &ot_shared->slots[my_slot_number];
	state = pg_atomic_read_u32(&slot->state);
	if (state == OT_SLOT_IDLE)
		return;
	/* The evictor's cancel is not for the next transaction. */
	if (state == OT_SLOT_EVICTED)
		QueryCancelPending = false;

	SpinLockAcquire(&ot_shared->mutex);
	dequeue(my_slot_number);
	if (state == OT_SLOT_DECIDED && ot_shared->holder.value == slot->index.value)
	{
		ot_shared->holder.value = 0;
		next = next_waiter();
	}
	slot->txn.sequence = 0;
	slot->index.value = 0;
	pg_atomic_write_u32(&slot->state, OT_SLOT_IDLE);
	SpinLockRelease(&ot_shared->mutex);

	wake(next);
	if (state >= OT_SLOT_PROPOSED && !committed)
		wake(ot_shared->worker);
}

/*
 * A transaction of this server ended without its outcome being known, and
 * nobody waits for it any more: the worker is to have it decided.
 */
void
ot_turn_leave_open(OtTxnId txn)
{
	SpinLockAcquire(&ot_shared->mutex);
	if (ot_shared->nleft_open < OT_MAX_LEFT_OPEN)
		ot_shared->left_open[ot_shared->nleft_open++] = txn.sequence;
	SpinLockRelease(&ot_shared->mutex);
	wake(ot_shared->worker);
}

/* ---- for the apply worker ---- */

/* The first ones of those; they stay the first until ot_turn_settled(). */
int
ot_turn_left_open(OtTxnId *txns, int max)
{
	int			count;

	if (likely(ot_shared->nleft_open == 0))
		return 0;
	SpinLockAcquire(&ot_shared->mutex);
	count = Min(ot_shared->nleft_open, max);
	for (int i = 0; i < count; i++)
	{
		txns[i].node = (uint32) ot_node_id;
		txns[i].incarnation = ot_shared->incarnation;
		txns[i].sequence = ot_shared->left_open[i];
	}
	SpinLockRelease(&ot_shared->mutex);
	return count;
}

/* The first so many are decided. */
void
ot_turn_settled(int count)
{
	SpinLockAcquire(&ot_shared->mutex);
	ot_shared->nleft_open -= count;
	/* In any order: the last ones take their places. */
	for (int i = 0; i < count && i < ot_shared->nleft_open; i++)
		ot_shared->left_open[i] = ot_shared->left_open[ot_shared->nleft_open + count - 1 - i];
	SpinLockRelease(&ot_shared->mutex);
}

/* Is a backend of this server going to commit this entry by itself? */
bool
ot_turn_backend_has(OtTxnId txn)
{
	bool		has = false;

	if (txn.node != (uint32) ot_node_id || txn.incarnation != ot_shared->incarnation)
		return false;

	SpinLockAcquire(&ot_shared->mutex);
	for (int i = 0; i < ot_shared->nslots && !has; i++)
	{
		OtSlot	   *slot = &ot_shared->slots[i];
		uint32		state = pg_atomic_read_u32(&slot->state);

		has = (state == OT_SLOT_PROPOSED || state == OT_SLOT_DECIDED) &&
			slot->txn.sequence == txn.sequence;
	}
	SpinLockRelease(&ot_shared->mutex);
	return has;
}

/*
 * Is some backend still on its way to commit an entry before this one?  A
 * proposed one may be: it learns its index with the verdict.
 */
bool
ot_turn_someone_before(OtLogIndex index)
{
	bool		found = false;

	SpinLockAcquire(&ot_shared->mutex);
	for (int i = 0; i < ot_shared->nslots && !found; i++)
	{
		OtSlot	   *slot = &ot_shared->slots[i];
		uint32		state = pg_atomic_read_u32(&slot->state);

		found = i != my_slot_number &&
			(state == OT_SLOT_PROPOSED ||
			 (state == OT_SLOT_DECIDED && slot->index.value < index.value));
	}
	/* the turn may be somewhere between two of them */
	found = found || ot_shared->holder.value != 0 || ot_shared->gates_closed != 0;
	SpinLockRelease(&ot_shared->mutex);
	return found;
}

void
ot_turn_worker_wants(OtLogIndex index)
{
	SpinLockAcquire(&ot_shared->mutex);
	ot_shared->worker_wants = index;
	SpinLockRelease(&ot_shared->mutex);
}

/* ---- a server that stands still ---- */

/*
 * The entry that the worker has failed to apply, if it has done so again and
 * again for so long; for 0 ms, if it has failed at all.  0: there is none, or
 * it is applied by now.
 */
OtLogIndex
ot_turn_stands_at(int for_ms)
{
	OtLogIndex	failing = {0};
	TimestampTz since;
	int			failures;

	/* Nearly always; it may miss one that fails just now. */
	if (likely(ot_shared->failures == 0))
		return failing;
	SpinLockAcquire(&ot_shared->mutex);
	failing = ot_shared->failing;
	since = ot_shared->failing_since;
	failures = ot_shared->failures;
	SpinLockRelease(&ot_shared->mutex);
	if (failing.value <= ot_applied_index().value ||
		(for_ms > 0 && (failures < 2 ||
						!TimestampDifferenceExceeds(since, ot_now(), for_ms))))
		failing.value = 0;
	return failing;
}

/*
 * To be called inside ereport(): the hint of an error that a retry mends,
 * unless this server stands still.  Then all that it does is based on an old
 * state, and loses again.
 */
int
ot_turn_hint_retry(const char *hint)
{
	OtLogIndex	at = ot_turn_stands_at(0);

	if (at.value == 0)
		return errhint("%s", hint);
	return errhint("Region \"%s\" cannot apply log index " UINT64_FORMAT " and shows nothing newer, so what is changed here loses. Retry in another region; SELECT failing, failure FROM onetrip.status says why.",
				   ot_region, at.value);
}

/* ---- functions for SQL ---- */

PG_FUNCTION_INFO_V1(ot_position);
PG_FUNCTION_INFO_V1(ot_export_snapshot_at);

Datum
ot_position(PG_FUNCTION_ARGS)
{
	ot_check_running();
	PG_RETURN_INT64((int64) ot_applied_index().value);
}

static void
open_gate(int code, Datum arg)
{
	OtGate	   *gate = &ot_shared->gates[DatumGetInt32(arg)];
	int			next = -1;

	SpinLockAcquire(&ot_shared->mutex);
	if (gate->used)
	{
		gate->used = false;
		if (pg_atomic_read_u64(&ot_shared->applied) >= gate->target.value &&
			ot_shared->gates_closed > 0)
		{
			ot_shared->gates_closed--;
			next = next_waiter();
		}
	}
	SpinLockRelease(&ot_shared->mutex);
	wake(next);
}

/* Asks that the turn be held up once `target` is applied. */
static pg_noinline int
arm_gate(int64 target)
{
	int			number = -1;
	bool		passed;

	if (target < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("log position must be positive")));
	(void) ot_my_slot();

	SpinLockAcquire(&ot_shared->mutex);
	passed = pg_atomic_read_u64(&ot_shared->applied) >= (uint64) target;
	for (int i = 0; i < OT_MAX_GATES && !passed && number < 0; i++)
	{
		OtGate	   *gate = &ot_shared->gates[i];

		if (!gate->used)
		{
			gate->used = true;
			gate->target.value = (uint64) target;
			gate->proc = my_slot_number;
			number = i;
		}
	}
	SpinLockRelease(&ot_shared->mutex);

	if (passed)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("log position " INT64_FORMAT " has passed here", target),
				 errhint("Ask for a later one.")));
	if (number < 0)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("%d sessions wait for a snapshot at a position already", OT_MAX_GATES)));
	return number;
}

/*
 * Exports a snapshot of exactly the entries up to the first committed one at
 * or after the given position.  While it is taken nobody gets the turn.
 */
Datum
ot_export_snapshot_at(PG_FUNCTION_ARGS)
{
	int64		target = PG_GETARG_INT64(0);
	char	   *name = NULL;
	int			number;

	ot_check_running();
	number = arm_gate(target);

	PG_ENSURE_ERROR_CLEANUP(open_gate, Int32GetDatum(number));
	{
		while (ot_applied_index().value < (uint64) target)
		{
			CHECK_FOR_INTERRUPTS();
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, -1,
							 PG_WAIT_EXTENSION);
			ResetLatch(MyLatch);
		}
		name = ExportSnapshot(GetLatestSnapshot());
	}
	PG_END_ENSURE_ERROR_CLEANUP(open_gate, Int32GetDatum(number));
	open_gate(0, Int32GetDatum(number));

	PG_RETURN_TEXT_P(cstring_to_text(name));
}
