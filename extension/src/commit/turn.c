/*-------------------------------------------------------------------------
 *
 * turn.c
 *	  The order of local commits, kept in shared memory.
 *
 * Entries become visible here in log order.  A process that commits entry i
 * first waits until the applied index is that of the last committed entry
 * before i, and it publishes i once its transaction is visible to new
 * snapshots.  Between the two it holds the turn.  So every snapshot shows a
 * prefix of the log.
 *
 * The worker may commit several entries together, if they follow each other in
 * the log with no other committed entry between them (ot_turn_extend).  It
 * waits for the entry before the first and publishes the last.  No other
 * process commits anything between them, so the only difference that can be
 * noticed is that there are no snapshots in between.
 *
 * Processes whose entry is decided are in a queue sorted by index; publishing
 * looks at the first one only, and wakes no other.  Verdicts arrive nearly in
 * log order, so a place in the queue is searched for from its end.  A process
 * on its way through COMMIT can also be found by its transaction id, and the
 * number of proposed transactions is counted, so that the worker's questions
 * are answered without a loop over all processes.
 *
 * Runs in backends, the apply worker, the arrival worker and the evictor.  One
 * LWLock guards the whole struct.  It can be an LWLock rather than a spinlock because
 *	- it is not taken in signal handlers or in code that rewords errors, which
 *	  uses the spinlocks of shmem/;
 *	- when a transaction ends, the server has released its own LWLocks before
 *	  our callback takes this one: XACT_EVENT_COMMIT comes after the commit,
 *	  XACT_EVENT_ABORT after LWLockReleaseAll();
 *	- an exit callback may take it while the process still holds LWLocks of the
 *	  server, since a background worker that fails outside of a transaction does
 *	  not release them first.  This cannot deadlock: under this lock no other
 *	  LWLock is taken and no error is raised, so it is not one of those that the
 *	  process still holds, and its holder releases it without waiting.  Our
 *	  exit callback runs before ProcKill(), while there is still a PGPROC to
 *	  wait with;
 *	- interrupts are not served while waiting for it, so it cannot fail between
 *	  a verdict and the local commit.
 * ERROR is raised only by ot_turn_begin_proposing(), before anything was
 * proposed, and by the SQL function.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "fmgr.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "shmem/shmem.h"

#define GATES_MAX 8
/* Of each kind; any more than these stay unknown until somebody settles them by hand. */
#define LEFT_OPEN_MAX 16384

/* Sequences of transactions of this incarnation, in the order in which they came. */
typedef struct TurnLeftOpen
{
	uint64		taken;			/* how many have ever been taken out */
	uint64		added;			/* ... and added */
	uint64		ring[LEFT_OPEN_MAX];
} TurnLeftOpen;

/* A session that wants a snapshot at an exact position (onetrip check). */
typedef struct TurnGate
{
	bool		used;
	OtLogIndex	target;
	int			proc;
} TurnGate;

/* Where a process is on its way through COMMIT; it changes only its own. */
typedef enum TurnStage
{
	TURN_AWAY = 0,
	TURN_PROPOSED,				/* the entry may be in the log */
	TURN_QUEUED,				/* decided: in the queue */
	TURN_HELD,					/* has the turn */
	TURN_PASSED					/* has published; its transaction is not over */
} TurnStage;

/* A process that is on its way through COMMIT, by slot number. */
typedef struct TurnMember
{
	pg_atomic_uint32 handover;	/* 1: decided, but must leave its entry to the
								 * worker */
	TurnStage	stage;
	uint64		sequence;		/* of its transaction id; 0 for the workers, whose
								 * entries have ids of others */
	OtLogIndex	index;			/* of its entry, or the last of several; valid
								 * from QUEUED on */
	OtLogIndex	previous;		/* likewise; its turn comes when this is applied */
	dlist_node	link;			/* in the queue, while QUEUED */
	int			next_in_bucket; /* next member with a sequence; -1 at the end */
} TurnMember;

typedef struct TurnShared
{
	LWLock		lock;			/* everything below but the atomics */
	int			tranche;
	OtLogIndex	holder;			/* entry whose commit is under way, or 0 */
	int			holder_number;	/* of the process that commits it */
	int			gates_closed;	/* number of gates that delay the next turn */
	TurnGate	gates[GATES_MAX];
	OtTxnId		arriving;		/* what the arrival worker has; sequence 0: nothing */
	bool		may_be_decided; /* that */
	int			arrival_worker; /* its number, while it has something */
	OtLogIndex	unseen_after;	/* the worker is about to pass over the positions */
	OtLogIndex	unseen_up_to;	/* ... after the first, up to this one; 0: none */
	int			nproposed;		/* members that are PROPOSED */
	dlist_head	queue;			/* members that are QUEUED, by index */
	OtLogIndex	worker_wants;	/* wake the worker at this applied index; 0: no */
	pg_atomic_uint64 handovers;

	/* transactions that nobody waits for any more, by whether they were proposed */
	TurnLeftOpen left_open[2];

	TurnMember	members[FLEXIBLE_ARRAY_MEMBER];
} TurnShared;

static TurnShared *turn = NULL;

/*
 * In shared memory after the members: for each hash of a sequence, the number
 * of the first member in that bucket, or -1.
 */
static int *buckets = NULL;
static uint32 bucket_mask = 0;

static int	my_number = -1;		/* once this process has been a member */

static uint32
turn_bucket_count(void)
{
	return pg_nextpower2_32((uint32) ot_slot_count());
}

static Size
turn_members_size(void)
{
	return MAXALIGN(add_size(offsetof(TurnShared, members),
							 mul_size(sizeof(TurnMember), ot_slot_count())));
}

static Size
turn_size(void)
{
	return add_size(turn_members_size(), mul_size(sizeof(int), turn_bucket_count()));
}

static void
turn_attach_memory(void *memory, bool found)
{
	turn = memory;
	buckets = (int *) ((char *) memory + turn_members_size());
	bucket_mask = turn_bucket_count() - 1;
	if (!found)
	{
		turn->tranche = LWLockNewTrancheId();
		LWLockInitialize(&turn->lock, turn->tranche);
		dlist_init(&turn->queue);
		pg_atomic_init_u64(&turn->handovers, 0);
		for (int i = 0; i < ot_slot_count(); i++)
			pg_atomic_init_u32(&turn->members[i].handover, 0);
		for (uint32 i = 0; i <= bucket_mask; i++)
			buckets[i] = -1;
	}
	LWLockRegisterTranche(turn->tranche, "onetrip_turn");
}

void
ot_turn_init(void)
{
	static const OtShmemPart part = {"onetrip turn", 0, turn_attach_memory, turn_size};

	ot_shmem_add(&part);
}

/*
 * Removes a process that ends.  By now its transaction has been aborted and the
 * origin released, both of which the next holder of the turn relies on.
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

/* ---- members in buckets and in the queue; the caller holds the lock ---- */

static void
turn_add_to_bucket(int number)
{
	int		   *bucket = &buckets[turn->members[number].sequence & bucket_mask];

	turn->members[number].next_in_bucket = *bucket;
	*bucket = number;
}

static void
turn_take_from_bucket(int number)
{
	int		   *link = &buckets[turn->members[number].sequence & bucket_mask];

	while (*link != number)
		link = &turn->members[*link].next_in_bucket;
	*link = turn->members[number].next_in_bucket;
}

/*
 * Sequences are drawn one after another, so those under way at the same time
 * hardly ever share a bucket.
 */
static bool
turn_is_in_bucket(uint64 sequence)
{
	int			number = buckets[sequence & bucket_mask];

	while (number >= 0 && turn->members[number].sequence != sequence)
		number = turn->members[number].next_in_bucket;
	return number >= 0;
}

static void
turn_queue(TurnMember *member)
{
	dlist_node *before = turn->queue.head.prev;

	while (before != &turn->queue.head &&
		   dlist_container(TurnMember, link, before)->index.value > member->index.value)
		before = before->prev;
	dlist_insert_after(before, &member->link);
}

/* The first one in the queue, NULL if there is none. */
static TurnMember *
turn_first_in_queue(void)
{
	return dlist_is_empty(&turn->queue) ? NULL :
		dlist_head_element(TurnMember, link, &turn->queue);
}

/* The number of the member that can take the turn now; -1 if none can. */
static int
turn_next(void)
{
	TurnMember *first = turn_first_in_queue();

	if (first != NULL && turn->gates_closed == 0 && turn->holder.value == 0 &&
		first->previous.value == ot_applied_index().value)
		return (int) (first - turn->members);
	return -1;
}

/* ---- the way of this process ---- */

/* From here on nobody may evict this transaction. */
void
ot_turn_begin_proposing(OtTxnId txn)
{
	TurnMember *myself = turn_myself();

	pg_atomic_write_u32(&myself->handover, 0);
	/* nothing is sent yet, so nobody asks for it before it is in its bucket */
	ot_slot_advance(OT_SLOT_WRITING, OT_SLOT_PROPOSED);

	LWLockAcquire(&turn->lock, LW_EXCLUSIVE);
	OT_ASSERT(myself->stage == TURN_AWAY && myself->sequence == 0);
	/* a member that was linked twice would make its list endless */
	if (myself->sequence == 0)
	{
		myself->stage = TURN_PROPOSED;
		myself->sequence = txn.sequence;
		turn_add_to_bucket(my_number);
		turn->nproposed++;
	}
	LWLockRelease(&turn->lock);
}

/*
 * The arrival worker has a transaction of another region, which it may have to
 * commit.  It may be evicted until that is decided.
 */
void
ot_turn_begin_arriving(OtTxnId txn)
{
	TurnMember *myself = turn_myself();

	pg_atomic_write_u32(&myself->handover, 0);
	LWLockAcquire(&turn->lock, LW_EXCLUSIVE);
	OT_ASSERT(myself->stage == TURN_AWAY && myself->sequence == 0 && turn->arriving.sequence == 0);
	myself->stage = TURN_PROPOSED;
	turn->nproposed++;
	turn->arriving = txn;
	turn->may_be_decided = false;
	turn->arrival_worker = my_number;
	LWLockRelease(&turn->lock);
}

/* Called before the node can send a verdict on it. */
void
ot_turn_may_be_decided(void)
{
	LWLockAcquire(&turn->lock, LW_EXCLUSIVE);
	turn->may_be_decided = true;
	LWLockRelease(&turn->lock);
}

/*
 * Has the arrival worker something that may come before an entry which the apply
 * worker has?
 */
bool
ot_turn_is_arriving(void)
{
	return turn->arriving.sequence != 0 && turn->may_be_decided;
}

/*
 * Joins the queue, so that the process before this one wakes it.  The worker
 * does so for entries of others, without having proposed them.
 */
void
ot_turn_decided(OtLogIndex index, OtLogIndex previous)
{
	TurnMember *myself = turn_myself();

	LWLockAcquire(&turn->lock, LW_EXCLUSIVE);
	OT_ASSERT(myself->stage == TURN_PROPOSED || (ot_is_apply_worker && myself->stage == TURN_AWAY));
	if (myself->stage == TURN_PROPOSED)
		turn->nproposed--;
	myself->stage = TURN_QUEUED;
	myself->index = index;
	myself->previous = previous;
	turn_queue(myself);
	pg_atomic_write_u32(&ot_my_slot()->state, OT_SLOT_DECIDED);
	LWLockRelease(&turn->lock);
}

/*
 * Called by the worker before its turn: the next committed entry is to become
 * visible together with those that it has already.  Returns false if a session
 * wants a snapshot between them.
 */
bool
ot_turn_extend(OtLogIndex index)
{
	TurnMember *myself = turn_myself();
	bool		extended = true;

	LWLockAcquire(&turn->lock, LW_EXCLUSIVE);
	OT_ASSERT(myself->stage == TURN_QUEUED && myself->index.value < index.value);
	for (int i = 0; i < GATES_MAX; i++)
	{
		if (turn->gates[i].used && turn->gates[i].target.value > myself->previous.value &&
			turn->gates[i].target.value <= myself->index.value)
			extended = false;
	}
	if (extended)
	{
		turn->unseen_after = myself->previous;
		turn->unseen_up_to = myself->index;
		/* it stays where it is in the queue: nobody is between the two */
		myself->index = index;
	}
	LWLockRelease(&turn->lock);
	return extended;
}

/* Was this decided transaction told to leave its entry to the worker? */
bool
ot_turn_is_handed_over(void)
{
	return pg_atomic_read_u32(&turn_myself()->handover) != 0;
}

/* Takes the turn if it has come. */
bool
ot_turn_try(void)
{
	TurnMember *myself = turn_myself();
	bool		taken = false;

	LWLockAcquire(&turn->lock, LW_EXCLUSIVE);
	OT_ASSERT(myself->stage == TURN_QUEUED);
	if (myself->stage == TURN_QUEUED &&
		ot_applied_index().value == myself->previous.value &&
		turn->holder.value == 0 && turn->gates_closed == 0)
	{
		dlist_delete(&myself->link);
		myself->stage = TURN_HELD;
		turn->holder = myself->index;
		turn->holder_number = my_number;
		taken = true;
	}
	LWLockRelease(&turn->lock);
	return taken;
}

/* The entry is visible to new snapshots: hands the turn on. */
void
ot_turn_publish(void)
{
	TurnMember *myself = turn_myself();
	OtLogIndex	index;
	int			next;
	bool		wake_worker;
	int			gate_procs[GATES_MAX];
	int			ngates = 0;

	LWLockAcquire(&turn->lock, LW_EXCLUSIVE);
	OT_ASSERT(myself->stage == TURN_HELD && turn->holder.value == myself->index.value);
	index = myself->index;
	myself->stage = TURN_PASSED;
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
	next = turn_next();
	wake_worker = turn->worker_wants.value != 0 && turn->worker_wants.value <= index.value;
	LWLockRelease(&turn->lock);

	ot_slot_wake(next);
	if (wake_worker)
		ot_worker_wake();
	ot_position_wake_waiting(index);
	for (int i = 0; i < ngates; i++)
		ot_slot_wake(gate_procs[i]);
}

/*
 * The transaction is over: leaves the queue and, if it did not commit,
 * releases the turn unused and wakes the worker, which may have to apply the
 * entry.  Safe to call at any time.
 */
void
ot_turn_forget(bool committed)
{
	TurnMember *myself;
	int			next = -1;

	/* Nobody else changes the stage, so it may be read without the lock. */
	if (my_number < 0 || turn->members[my_number].stage == TURN_AWAY)
	{
		ot_slot_end();
		return;
	}
	myself = &turn->members[my_number];

	LWLockAcquire(&turn->lock, LW_EXCLUSIVE);
	switch (myself->stage)
	{
		case TURN_PROPOSED:
			turn->nproposed--;
			break;
		case TURN_QUEUED:
			dlist_delete(&myself->link);
			break;
		case TURN_HELD:
			turn->holder.value = 0;
			break;
		case TURN_AWAY:
		case TURN_PASSED:
			break;
	}
	if (myself->sequence != 0)
		turn_take_from_bucket(my_number);
	else if (turn->arriving.sequence != 0 && turn->arrival_worker == my_number)
		turn->arriving.sequence = 0;
	else
		turn->unseen_up_to.value = 0;
	/* one that left the head of the queue was in the others' way */
	if (myself->stage == TURN_HELD || myself->stage == TURN_QUEUED)
		next = turn_next();
	myself->stage = TURN_AWAY;
	myself->sequence = 0;
	myself->index.value = 0;
	ot_slot_end();
	LWLockRelease(&turn->lock);

	ot_slot_wake(next);
	if (!committed)
		ot_worker_wake();
}

/*
 * A transaction of this server ended without its outcome being known, and
 * nobody waits for it any more: the worker is to have it settled.  Sessions can
 * leave many open that they have not proposed, only asked for their ids, so
 * these take no places of those that may be in the log.
 */
void
ot_turn_leave_open(OtTxnId txn, bool proposed)
{
	TurnLeftOpen *open = &turn->left_open[proposed];

	LWLockAcquire(&turn->lock, LW_EXCLUSIVE);
	if (open->added - open->taken < LEFT_OPEN_MAX)
		open->ring[open->added++ % LEFT_OPEN_MAX] = txn.sequence;
	LWLockRelease(&turn->lock);
	ot_worker_wake();
}

/* ---- for the apply worker ---- */

/*
 * Returns the first of the transactions of this kind that were left open, at most
 * max.  They remain the first ones until ot_turn_settled().
 */
int
ot_turn_left_open(bool proposed, OtTxnId *txns, int max)
{
	TurnLeftOpen *open = &turn->left_open[proposed];
	int			count;

	if (likely(open->added == open->taken))
		return 0;
	LWLockAcquire(&turn->lock, LW_SHARED);
	count = Min(open->added - open->taken, max);
	for (int i = 0; i < count; i++)
	{
		txns[i].node = (uint32) ot_node_id;
		txns[i].incarnation = ot_incarnation();
		txns[i].sequence = open->ring[(open->taken + i) % LEFT_OPEN_MAX];
	}
	LWLockRelease(&turn->lock);
	return count;
}

/* Removes the first `count` transactions of this kind, which have an outcome now. */
void
ot_turn_settled(bool proposed, int count)
{
	LWLockAcquire(&turn->lock, LW_EXCLUSIVE);
	turn->left_open[proposed].taken += count;
	LWLockRelease(&turn->lock);
}

/*
 * Is a backend of this server, or the arrival worker, going to commit this entry
 * by itself?
 */
bool
ot_turn_backend_has(OtTxnId txn)
{
	bool		is_own = txn.node == (uint32) ot_node_id && txn.incarnation == ot_incarnation();
	bool		has;

	/* the arrival worker had it before the node could send it to the worker */
	if (!is_own && likely(turn->arriving.sequence != txn.sequence))
		return false;

	LWLockAcquire(&turn->lock, LW_SHARED);
	if (is_own)
		has = turn_is_in_bucket(txn.sequence);
	else
		has = turn->arriving.sequence == txn.sequence &&
			turn->arriving.incarnation == txn.incarnation && turn->arriving.node == txn.node;
	LWLockRelease(&turn->lock);
	return has;
}

/*
 * Called by the worker when it is in the queue: may a backend still be on its
 * way to commit an entry before the worker's own?  Every proposed one may be,
 * since it learns its index only with the verdict.
 */
bool
ot_turn_someone_before(void)
{
	TurnMember *myself = turn_myself();
	bool		found;

	LWLockAcquire(&turn->lock, LW_SHARED);
	OT_ASSERT(myself->stage == TURN_QUEUED);
	/*
	 * Or the turn is taken, or delayed by a gate.  While something arrives there is
	 * always one: then the end of the connection tells the worker.
	 */
	found = turn->nproposed > 0 || turn_first_in_queue() != myself ||
		turn->holder.value != 0 || turn->gates_closed != 0;
	LWLockRelease(&turn->lock);
	return found;
}

void
ot_turn_worker_wants(OtLogIndex index)
{
	LWLockAcquire(&turn->lock, LW_EXCLUSIVE);
	turn->worker_wants = index;
	LWLockRelease(&turn->lock);
}

/* ---- for the evictor ---- */

/*
 * Tells a process to leave its entry to the worker, if it is decided and its
 * entry comes after `index`.  Returns false if it is not so, or if it has been
 * told before.
 */
bool
ot_turn_hand_over(int number, OtLogIndex index)
{
	TurnMember *member = &turn->members[number];
	bool		told = false;

	LWLockAcquire(&turn->lock, LW_EXCLUSIVE);
	if (member->stage == TURN_QUEUED && member->index.value > index.value)
		told = pg_atomic_exchange_u32(&member->handover, 1) == 0;
	LWLockRelease(&turn->lock);
	if (told)
		pg_atomic_fetch_add_u64(&turn->handovers, 1);
	return told;
}

/* The number of the process that has the turn, and its entry; -1: none has. */
int
ot_turn_holder(OtLogIndex *index)
{
	int			number = -1;

	LWLockAcquire(&turn->lock, LW_SHARED);
	*index = turn->holder;
	if (index->value != 0)
		number = turn->holder_number;
	LWLockRelease(&turn->lock);
	return number;
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

	LWLockAcquire(&turn->lock, LW_EXCLUSIVE);
	if (gate->used)
	{
		gate->used = false;
		if (ot_applied_index().value >= gate->target.value &&
			turn->gates_closed > 0)
		{
			turn->gates_closed--;
			next = turn_next();
		}
	}
	LWLockRelease(&turn->lock);
	ot_slot_wake(next);
}

/* Asks that nobody gets the turn once `target` is applied. */
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

	LWLockAcquire(&turn->lock, LW_EXCLUSIVE);
	passed = ot_applied_index().value >= (uint64) target ||
		((uint64) target > turn->unseen_after.value &&
		 (uint64) target <= turn->unseen_up_to.value);
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
	LWLockRelease(&turn->lock);

	if (passed)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("log position " INT64_FORMAT " has already passed here", target),
				 errhint("Ask for a later one.")));
	if (number < 0)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("%d sessions are already waiting for a snapshot at a position", GATES_MAX)));
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
			ot_wait_latch(-1);
		}
		name = ExportSnapshot(GetLatestSnapshot());
	}
	PG_END_ENSURE_ERROR_CLEANUP(turn_open_gate, Int32GetDatum(number));
	turn_open_gate(0, Int32GetDatum(number));

	PG_RETURN_TEXT_P(cstring_to_text(name));
}
