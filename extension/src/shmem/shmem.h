/*-------------------------------------------------------------------------
 *
 * shmem.h
 *	  Shared memory, and what many wings read there.
 *
 * One struct for each owner.  Here stand those that more than one wing reads:
 *
 *	struct			file		what it says
 *	OtPositions		position.c	how far this server is in the log
 *	OtSlots			slots.c		how far each process is with its transaction
 *	OtWorkerStatus	worker_status.c	what the apply worker is doing
 *
 * The others are their owner's alone: the turn (commit/turn.c), used
 * sequences (sequence/sequence_used.c).
 *
 * The locks here are spinlocks, since they are also taken where an error is
 * put into words (eviction.c, worker_status.c), by whoever raises it and
 * whatever LWLocks it holds.  They are held for a few instructions and no
 * loop, and no other lock is taken meanwhile.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_SHMEM_H
#define ONETRIP_SHMEM_H

#include "base/base.h"

#include "access/xlogdefs.h"
#include "port/atomics.h"
#include "storage/proc.h"
#include "storage/spin.h"

/* ---- shared_memory.c ---- */

/* What one owner keeps there.  attach: finds it zeroed, unless `found`. */
typedef struct OtShmemPart
{
	const char *name;
	Size		(*size) (void);
	void		(*attach) (void *memory, bool found);
} OtShmemPart;

extern void ot_shmem_init(void);
extern void ot_shmem_add(const OtShmemPart *part);

/* ---- position.c ---- */

typedef struct OtPositions
{
	slock_t		mutex;			/* everything below but the atomics */
	bool		known;			/* applied was read from the origin */
	bool		welcomed;		/* the node has said how far the log was */
	OtLogIndex	catch_up_to;	/* ... at this server's start */
	OtLogIndex	unannounced;	/* applied, but others may still see names from before; 0: none */
	pg_atomic_uint64 applied;	/* the applied index; once known, the turn's holder alone writes it */
	uint64		incarnation;	/* of this shared memory */
	pg_atomic_uint64 next_sequence;
} OtPositions;

extern void ot_position_init(void);
extern void ot_position_attach(void);
extern bool ot_position_is_welcomed(void);
extern void ot_position_welcome(OtLogIndex committed);
extern void ot_position_wait_caught_up(void);
extern bool ot_position_wait_shown(OtLogIndex index);
extern void ot_position_set_applied(OtLogIndex index);
extern void ot_position_names_change(void);
extern OtLogIndex ot_position_base_of_names(void);
extern void ot_position_wait_announced(void);
extern OtLogIndex ot_applied_index(void);
extern OtLogIndex ot_durable_index(void);
extern RepOriginId ot_origin(void);
extern uint64 ot_incarnation(void);
extern OtTxnId ot_draw_txn(void);
extern uint64 ot_last_drawn_sequence(void);
extern void ot_check_running(void);

/* ---- slots.c ---- */

/*
 * How far a process has come with its transaction.
 *
 *	IDLE		nothing noted; may read
 *	WRITING		has noted a change or a row lock; may be evicted
 *	EVICTED		must fail, if the eviction names the present transaction: set by
 *				the evicting process, by compare-and-swap from IDLE, WRITING or
 *				an older EVICTED only, so never once the entry may be in the log
 *	PROPOSED	the entry may be in the log; the verdict is not known
 *	DECIDED		verdict commit; waits for its turn, or has it
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
	uint32		statements;		/* how many were begun; the process's own */
	OtEviction	eviction;		/* written before state becomes EVICTED */
} OtSlot;

typedef struct OtSlots
{
	slock_t		evict_mutex;	/* writers of OtSlot.eviction */
	pg_atomic_uint64 evictions;
	int			nslots;
	OtSlot		slots[FLEXIBLE_ARRAY_MEMBER];
} OtSlots;

extern OtSlots *ot_slots;
extern void ot_slot_init(void);
extern int	ot_slot_count(void);
extern int	ot_my_slot_number(void);
extern OtSlot *ot_my_slot(void);
extern void ot_slot_advance(OtSlotState from, OtSlotState to);
extern void ot_slot_begin_writing(void);
extern void ot_slot_end(void);
extern void ot_slot_wake(int number);

/* eviction.c: in the process that is evicted */
extern void ot_eviction_take_mark(void);
extern void ot_eviction_check(void);
extern bool ot_eviction_minds_errors(void);
extern bool ot_eviction_reword(const ErrorData *edata);

/* ---- worker_status.c ---- */

/* What the worker is doing: written by the worker, for everybody else. */
typedef struct OtWorkerStatus
{
	slock_t		mutex;			/* everything below but the atomics */
	int			worker;			/* its slot number, -1 if it does not run */
	OtLogIndex	applying;		/* 0: nothing */
	TimestampTz applying_since;
	char		applying_region[NAMEDATALEN];
	OtLogIndex	failing;		/* the entry of the worker's last ERROR */
	int			failures;		/* of that entry, with the same SQLSTATE */
	int			failing_with;	/* that SQLSTATE */
	TimestampTz failing_since;
	char		failure[256];	/* the last one's message */
	pg_atomic_uint32 applying_table;	/* of the row at hand, InvalidOid if none */
	pg_atomic_uint64 entries;	/* committed by the worker since the server's start */
	pg_atomic_uint64 transactions;	/* ... in so many transactions */
} OtWorkerStatus;

extern OtWorkerStatus *ot_worker;
extern void ot_worker_init(void);
extern void ot_worker_wake(void);
extern OtLogIndex ot_worker_stands_at(int for_ms);
extern int	ot_worker_hint_retry(const char *hint);

#endif							/* ONETRIP_SHMEM_H */
