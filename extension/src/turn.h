/*-------------------------------------------------------------------------
 *
 * turn.h
 *	  Shared memory: the applied index, the turn, and who is doing what.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_TURN_H
#define ONETRIP_TURN_H

#include "onetrip.h"

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/proc.h"
#include "storage/spin.h"

/*
 * How far a process has come with its transaction.
 *
 *	IDLE		nothing noted; may read
 *	WRITING		has noted a change or a row lock; may be evicted
 *	EVICTED		must fail, if the eviction names the present transaction: set by
 *				the evicting process, by compare-and-swap from IDLE, WRITING or
 *				an older EVICTED only, so never once the entry may be in the log
 *	PROPOSED	the entry may be in the log; the verdict is not known
 *	DECIDED		verdict commit at `index`; waits for its turn, or has it
 *
 * Every other change is made by the process itself.  The end of the
 * transaction, whichever, leads back to IDLE.
 */
typedef enum OtSlotState
{
	OT_SLOT_IDLE = 0,
	OT_SLOT_WRITING,
	OT_SLOT_EVICTED,
	OT_SLOT_PROPOSED,
	OT_SLOT_DECIDED
} OtSlotState;

/* What was in the way: a decided entry is ahead of it, or it stayed too long. */
typedef enum OtEvictionWhy
{
	OT_EVICTED_WRITER = 0,
	OT_EVICTED_READER,			/* for onetrip.max_apply_delay */
	OT_EVICTED_LOCKED_READER,	/* waits for a lock itself */
	OT_EVICTED_IDLE_READER		/* waits for its client */
} OtEvictionWhy;

/*
 * The last eviction that was meant for the process with this slot, or for one
 * before it: `pid` and `lxid` say which transaction it was.
 */
typedef struct OtEviction
{
	int			pid;			/* 0: none yet */
	LocalTransactionId lxid;
	OtEvictionWhy why;
	OtLogIndex	index;			/* what it was in the way of */
	TimestampTz marked_at;
	TimestampTz asked_at;		/* last signal, or noticed by itself; 0: neither */
	bool		conflict;		/* was sent a conflict, which it has to take */
	bool		ended;			/* was told to end */
	char		region[NAMEDATALEN];
	char		table[NAMEDATALEN * 2];
} OtEviction;

/* One for each process that can run transactions, by PGPROC number. */
typedef struct OtSlot
{
	pg_atomic_uint32 state;		/* OtSlotState */
	pg_atomic_uint32 handover;	/* decided, but must leave the entry to the worker */
	OtTxnId		txn;			/* PROPOSED and DECIDED; under the turn's mutex */
	OtLogIndex	index;			/* DECIDED */
	OtLogIndex	previous;		/* DECIDED: the turn comes when this is applied */
	int			next;			/* next waiter by index, -1 at the end */
	bool		waiting;		/* is in the queue */
	uint32		statements;		/* how many were begun; the process's own */
	OtEviction	eviction;		/* written before state becomes EVICTED */
} OtSlot;

#define OT_MAX_GATES 8
/* More than these stay unknown until somebody settles them by hand. */
#define OT_MAX_LEFT_OPEN 16384

/* A session that wants a snapshot at an exact position (onetrip check). */
typedef struct OtGate
{
	bool		used;
	OtLogIndex	target;
	int			proc;
} OtGate;

#define OT_USED_SEQUENCES_MAX 256

/* Sequences that were drawn from without an entry (sequence_used.c). */
typedef struct OtUsedSequence
{
	Oid			relid;
	uint64		version;		/* another one each time it is noted */
} OtUsedSequence;

typedef struct OtUsedSequences
{
	slock_t		mutex;
	int			count;
	uint64		versions;
	OtUsedSequence items[OT_USED_SEQUENCES_MAX];
} OtUsedSequences;

typedef struct OtShared
{
	slock_t		mutex;			/* everything below but the atomics */
	bool		known;			/* applied was read from the origin */
	bool		welcomed;		/* the node has said how far the log was */
	OtLogIndex	catch_up_to;	/* ... at this server's start */
	pg_atomic_uint64 applied;	/* the applied index */
	OtLogIndex	holder;			/* entry whose commit is under way, or 0 */
	OtLogIndex	unannounced;	/* applied, but others may still see names from before; 0: none */
	int			gates_closed;	/* gates that hold up the next turn */
	OtGate		gates[OT_MAX_GATES];
	int			first_waiter;	/* slot number, -1 if none */
	OtLogIndex	worker_wants;	/* wake the worker at this applied index; 0: no */
	int			worker;			/* its slot number, -1 if it does not run */
	int			evictor;		/* likewise */
	uint64		incarnation;	/* of this shared memory */
	pg_atomic_uint64 next_sequence;

	/* given up on: transactions of this incarnation that the worker settles */
	int			nleft_open;
	uint64		left_open[OT_MAX_LEFT_OPEN];	/* sequences */

	/* what the worker is doing, for the evictor and for views */
	OtLogIndex	applying;		/* 0: nothing */
	TimestampTz applying_since;
	char		applying_region[NAMEDATALEN];
	OtLogIndex	failing;		/* the entry of the worker's last ERROR */
	int			failures;		/* of that entry, with the same SQLSTATE */
	int			failing_with;	/* that SQLSTATE */
	TimestampTz failing_since;
	char		failure[256];	/* the last one's message */
	pg_atomic_uint32 applying_table;	/* of the row at hand, InvalidOid if none */

	slock_t		evict_mutex;	/* writers of OtSlot.eviction */
	pg_atomic_uint64 evictions;
	pg_atomic_uint64 handovers;

	OtUsedSequences used_sequences;

	int			nslots;
	OtSlot		slots[FLEXIBLE_ARRAY_MEMBER];
} OtShared;

extern OtShared *ot_shared;
extern OtSlot *ot_my_slot(void);
extern void ot_turn_attach(void);
extern bool ot_turn_is_welcomed(void);
extern void ot_turn_welcome(OtLogIndex committed);
extern void ot_turn_wait_caught_up(void);
extern void ot_turn_begin_writing(void);
extern OtTxnId ot_turn_draw_txn(void);
extern void ot_turn_begin_proposing(OtTxnId txn);
extern void ot_turn_leave_open(OtTxnId txn);
extern int	ot_turn_left_open(OtTxnId *txns, int max);
extern void ot_turn_settled(int count);
extern void ot_turn_decided(OtLogIndex index, OtLogIndex previous);
extern bool ot_turn_try(OtLogIndex index, OtLogIndex previous);
extern void ot_turn_enqueue(void);
extern void ot_turn_publish(OtLogIndex index);
extern void ot_turn_wait_announced(void);
extern void ot_turn_forget(bool committed);
extern bool ot_turn_backend_has(OtTxnId txn);
extern bool ot_turn_someone_before(OtLogIndex index);
extern void ot_turn_worker_wants(OtLogIndex index);
extern OtLogIndex ot_turn_stands_at(int for_ms);
extern int	ot_turn_hint_retry(const char *hint);
extern OtLogIndex ot_durable_index(void);
extern RepOriginId ot_origin(void);

#endif							/* ONETRIP_TURN_H */
