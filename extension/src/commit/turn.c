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
 * Runs in backends, the apply worker and the evictor.  One spinlock guards
 * the queue and the applied index; it is held for a few instructions, never
 * across a call that can fail.  ERROR is raised only by
 * ot_turn_begin_proposing(), before anything was proposed, and by the function
 * for SQL.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/spin.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "shmem/shmem.h"

#define GATES_MAX 8
/* More than these stay unknown until somebody settles them by hand. */
#define LEFT_OPEN_MAX 16384

/* A session that wants a snapshot at an exact position (onetrip check). */
typedef struct TurnGate
{
	bool		used;
	OtLogIndex	target;
	int			proc;
} TurnGate;

/* A process that is on its way through COMMIT, by slot number. */
typedef struct TurnMember
{
	pg_atomic_uint32 handover;	/* decided, but must leave the entry to the worker */
	OtTxnId		txn;			/* PROPOSED and DECIDED */
	OtLogIndex	index;			/* DECIDED */
	OtLogIndex	previous;		/* DECIDED: the turn comes when this is applied */
	int			next;			/* next waiter by index, -1 at the end */
	bool		waiting;		/* is in the queue */
} TurnMember;

typedef struct TurnShared
{
	slock_t		mutex;			/* everything below but the atomics */
	OtLogIndex	holder;			/* entry whose commit is under way, or 0 */
	int			gates_closed;	/* gates that hold up the next turn */
	TurnGate	gates[GATES_MAX];
	int			first_waiter;	/* slot number, -1 if none */
	OtLogIndex	worker_wants;	/* wake the worker at this applied index; 0: no */
	pg_atomic_uint64 handovers;

	/* given up on: transactions of this incarnation that the worker settles */
	int			nleft_open;
	uint64		left_open[LEFT_OPEN_MAX];	/* sequences */

	TurnMember	members[FLEXIBLE_ARRAY_MEMBER];
} TurnShared;

static TurnShared *turn = NULL;

static int	my_number = -1;		/* once this process has been a member */

static Size
turn_size(void)
{
	return add_size(offsetof(TurnShared, members), mul_size(sizeof(TurnMember), ot_slot_count()));
}

static void
turn_attach_memory(void *memory, bool found)
{
	turn = memory;
	if (found)
		return;
	SpinLockInit(&turn->mutex);
	pg_atomic_init_u64(&turn->handovers, 0);
	turn->first_waiter = -1;
	for (int i = 0; i < ot_slot_count(); i++)
	{
		pg_atomic_init_u32(&turn->members[i].handover, 0);
		turn->members[i].next = -1;
	}
}

void
ot_turn_init(void)
{
	static const OtShmemPart part = {"onetrip turn", turn_size, turn_attach_memory};

	ot_shmem_add(&part);
}

/*
 * A process that ends leaves nothing behind.  By now its transaction has been
 * aborted, and the origin let go: the next holder of the turn needs both.
 */
static void
turn_release(int code, Datum arg)
{
	ot_turn_forget(false);
}

static TurnMember *
turn_myself(void)
{
	if (unlikely(my_number < 0))
	{
		my_number = ot_my_slot_number();
		on_shmem_exit(turn_release, (Datum) 0);
	}
	return &turn->members[my_number];
}

/* ---- the way of this process ---- */

/* From here on nobody may evict this transaction. */
void
ot_turn_begin_proposing(OtTxnId txn)
{
	TurnMember *myself = turn_myself();

	SpinLockAcquire(&turn->mutex);
	myself->txn = txn;
	SpinLockRelease(&turn->mutex);
	pg_atomic_write_u32(&myself->handover, 0);

	ot_slot_advance(OT_SLOT_WRITING, OT_SLOT_PROPOSED);
}

void
ot_turn_decided(OtLogIndex index, OtLogIndex previous)
{
	TurnMember *myself = turn_myself();

	SpinLockAcquire(&turn->mutex);
	myself->index = index;
	myself->previous = previous;
	pg_atomic_write_u32(&ot_my_slot()->state, OT_SLOT_DECIDED);
	SpinLockRelease(&turn->mutex);
}

/* The evictor's answer to a decided transaction that is in the way. */
bool
ot_turn_is_handed_over(void)
{
	return pg_atomic_read_u32(&turn_myself()->handover) != 0;
}

static void
turn_dequeue(int number)
{
	TurnMember *member = &turn->members[number];
	int		   *link = &turn->first_waiter;

	if (!member->waiting)
		return;
	while (*link != number)
		link = &turn->members[*link].next;
	*link = member->next;
	member->next = -1;
	member->waiting = false;
}

/*
 * Takes the turn for `index` if it has come.  The worker may call this
 * without being DECIDED, since it gets its entries in order.
 */
bool
ot_turn_try(OtLogIndex index, OtLogIndex previous)
{
	bool		taken = false;

	(void) turn_myself();
	SpinLockAcquire(&turn->mutex);
	if (ot_applied_index().value == previous.value &&
		turn->holder.value == 0 && turn->gates_closed == 0)
	{
		turn->holder = index;
		turn_dequeue(my_number);
		taken = true;
	}
	SpinLockRelease(&turn->mutex);
	return taken;
}

/* Lines up, so that the process before wakes this one; then try again. */
void
ot_turn_enqueue(void)
{
	TurnMember *myself = turn_myself();
	int		   *link = &turn->first_waiter;

	SpinLockAcquire(&turn->mutex);
	if (!myself->waiting)
	{
		while (*link >= 0 && turn->members[*link].index.value < myself->index.value)
			link = &turn->members[*link].next;
		myself->next = *link;
		myself->waiting = true;
		*link = my_number;
	}
	SpinLockRelease(&turn->mutex);
}

/* The waiter whose turn it is now, -1 if it has not arrived; mutex held. */
static int
turn_next_waiter(void)
{
	int			first = turn->first_waiter;

	if (first >= 0 && turn->gates_closed == 0 && turn->holder.value == 0 &&
		turn->members[first].previous.value == ot_applied_index().value)
		return first;
	return -1;
}

/* The entry is visible to new snapshots: hands the turn on. */
void
ot_turn_publish(OtLogIndex index)
{
	int			next;
	bool		wake_worker;
	int			gate_procs[GATES_MAX];
	int			ngates = 0;

	SpinLockAcquire(&turn->mutex);
	Assert(turn->holder.value == index.value);
	ot_position_set_applied(index);
	turn->holder.value = 0;
	for (int i = 0; i < GATES_MAX; i++)
	{
		if (turn->gates[i].used && turn->gates[i].target.value <= index.value)
		{
			turn->gates_closed++;
			gate_procs[ngates++] = turn->gates[i].proc;
		}
	}
	next = turn_next_waiter();
	wake_worker = turn->worker_wants.value != 0 && turn->worker_wants.value <= index.value;
	SpinLockRelease(&turn->mutex);

	ot_slot_wake(next);
	if (wake_worker)
		ot_worker_wake();
	for (int i = 0; i < ngates; i++)
		ot_slot_wake(gate_procs[i]);
}

/*
 * The transaction is over: leaves the queue and, if it did not commit, gives
 * the turn back unused and tells the worker that its entry may be left over.
 * Safe to call at any time.
 */
void
ot_turn_forget(bool committed)
{
	TurnMember *myself;
	uint32		state;
	int			next = -1;

	if (my_number < 0)
	{
		(void) ot_slot_end();
		return;
	}
	myself = &turn->members[my_number];
	SpinLockAcquire(&turn->mutex);
	state = ot_slot_end();
	turn_dequeue(my_number);
	if (state == OT_SLOT_DECIDED && turn->holder.value == myself->index.value)
	{
		turn->holder.value = 0;
		next = turn_next_waiter();
	}
	myself->txn.sequence = 0;
	myself->index.value = 0;
	SpinLockRelease(&turn->mutex);

	ot_slot_wake(next);
	if (state >= OT_SLOT_PROPOSED && !committed)
		ot_worker_wake();
}

/*
 * A transaction of this server ended without its outcome being known, and
 * nobody waits for it any more: the worker is to have it decided.
 */
void
ot_turn_leave_open(OtTxnId txn)
{
	SpinLockAcquire(&turn->mutex);
	if (turn->nleft_open < LEFT_OPEN_MAX)
		turn->left_open[turn->nleft_open++] = txn.sequence;
	SpinLockRelease(&turn->mutex);
	ot_worker_wake();
}

/* ---- for the apply worker ---- */

/* The first ones of those; they stay the first until ot_turn_settled(). */
int
ot_turn_left_open(OtTxnId *txns, int max)
{
	int			count;

	if (likely(turn->nleft_open == 0))
		return 0;
	SpinLockAcquire(&turn->mutex);
	count = Min(turn->nleft_open, max);
	for (int i = 0; i < count; i++)
	{
		txns[i].node = (uint32) ot_node_id;
		txns[i].incarnation = ot_incarnation();
		txns[i].sequence = turn->left_open[i];
	}
	SpinLockRelease(&turn->mutex);
	return count;
}

/* The first so many are decided. */
void
ot_turn_settled(int count)
{
	SpinLockAcquire(&turn->mutex);
	turn->nleft_open -= count;
	/* In any order: the last ones take their places. */
	for (int i = 0; i < count && i < turn->nleft_open; i++)
		turn->left_open[i] = turn->left_open[turn->nleft_open + count - 1 - i];
	SpinLockRelease(&turn->mutex);
}

/* Is a backend of this server going to commit this entry by itself? */
bool
ot_turn_backend_has(OtTxnId txn)
{
	bool		has = false;

	if (txn.node != (uint32) ot_node_id || txn.incarnation != ot_incarnation())
		return false;

	SpinLockAcquire(&turn->mutex);
	for (int i = 0; i < ot_slots->nslots && !has; i++)
	{
		TurnMember *member = &turn->members[i];
		uint32		state = pg_atomic_read_u32(&ot_slots->slots[i].state);

		has = (state == OT_SLOT_PROPOSED || state == OT_SLOT_DECIDED) &&
			member->txn.sequence == txn.sequence;
	}
	SpinLockRelease(&turn->mutex);
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

	SpinLockAcquire(&turn->mutex);
	for (int i = 0; i < ot_slots->nslots && !found; i++)
	{
		TurnMember *member = &turn->members[i];
		uint32		state = pg_atomic_read_u32(&ot_slots->slots[i].state);

		found = i != my_number &&
			(state == OT_SLOT_PROPOSED ||
			 (state == OT_SLOT_DECIDED && member->index.value < index.value));
	}
	/* the turn may be somewhere between two of them */
	found = found || turn->holder.value != 0 || turn->gates_closed != 0;
	SpinLockRelease(&turn->mutex);
	return found;
}

void
ot_turn_worker_wants(OtLogIndex index)
{
	SpinLockAcquire(&turn->mutex);
	turn->worker_wants = index;
	SpinLockRelease(&turn->mutex);
}

/* ---- for the evictor ---- */

/* Is this process decided, and its entry behind that one? */
bool
ot_turn_is_decided_after(int number, OtLogIndex index)
{
	bool		after;

	SpinLockAcquire(&turn->mutex);
	after = turn->members[number].index.value > index.value;
	SpinLockRelease(&turn->mutex);
	return after;
}

/* Tells a decided process to leave its entry to the worker; false: it has been told. */
bool
ot_turn_hand_over(int number)
{
	if (pg_atomic_exchange_u32(&turn->members[number].handover, 1) != 0)
		return false;
	pg_atomic_fetch_add_u64(&turn->handovers, 1);
	return true;
}

uint64
ot_turn_handovers(void)
{
	return pg_atomic_read_u64(&turn->handovers);
}

/* ---- functions for SQL ---- */

PG_FUNCTION_INFO_V1(ot_export_snapshot_at);

static void
turn_open_gate(int code, Datum arg)
{
	TurnGate   *gate = &turn->gates[DatumGetInt32(arg)];
	int			next = -1;

	SpinLockAcquire(&turn->mutex);
	if (gate->used)
	{
		gate->used = false;
		if (ot_applied_index().value >= gate->target.value &&
			turn->gates_closed > 0)
		{
			turn->gates_closed--;
			next = turn_next_waiter();
		}
	}
	SpinLockRelease(&turn->mutex);
	ot_slot_wake(next);
}

/* Asks that the turn be held up once `target` is applied. */
static pg_noinline int
turn_arm_gate(int64 target)
{
	int			number = -1;
	bool		passed;

	if (target < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("log position must be positive")));
	(void) turn_myself();

	SpinLockAcquire(&turn->mutex);
	passed = ot_applied_index().value >= (uint64) target;
	for (int i = 0; i < GATES_MAX && !passed && number < 0; i++)
	{
		TurnGate   *gate = &turn->gates[i];

		if (!gate->used)
		{
			gate->used = true;
			gate->target.value = (uint64) target;
			gate->proc = my_number;
			number = i;
		}
	}
	SpinLockRelease(&turn->mutex);

	if (passed)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("log position " INT64_FORMAT " has passed here", target),
				 errhint("Ask for a later one.")));
	if (number < 0)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("%d sessions wait for a snapshot at a position already", GATES_MAX)));
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
	number = turn_arm_gate(target);

	PG_ENSURE_ERROR_CLEANUP(turn_open_gate, Int32GetDatum(number));
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
	PG_END_ENSURE_ERROR_CLEANUP(turn_open_gate, Int32GetDatum(number));
	turn_open_gate(0, Int32GetDatum(number));

	PG_RETURN_TEXT_P(cstring_to_text(name));
}
