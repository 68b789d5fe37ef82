/*-------------------------------------------------------------------------
 *
 * shmem.h
 *	  Shared memory, and the structs in it that several wings read.
 *
 * Each struct has one owner.  More than one wing reads these:
 *
 *	struct			file		what it says
 *	OtPositions		position.c	how far this server is in the log
 *	OtSlots			slots.c		how far each process is with its transaction
 *	OtWorkerStatus	worker_status.c	what the apply worker is doing
 *
 * The others are private to their owner: the turn (commit/turn.c) and used
 * sequences (sequence/sequence_used.c).
 *
 * The locks here are spinlocks, since they are also taken when an error is
 * reworded (eviction.c, worker_status.c), by a process that may hold any
 * LWLocks at that time.  They are held for a few instructions without a loop,
 * and no other lock is taken meanwhile.
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
#include "utils/snapshot.h"

/* ---- shared_memory.c ---- */

/*
 * What one owner keeps in shared memory.  `attach` is called with the memory,
 * which is zeroed unless `found`.
 */
typedef struct OtShmemPart
{
	const char *name;
	Size		size;
	void		(*attach) (void *memory, bool found);
	Size		(*compute_size) (void); /* if it depends on the server's settings */
} OtShmemPart;

extern void ot_shmem_init(void);
extern void ot_shmem_add(const OtShmemPart *part);

/* ---- position.c ---- */

/* Which local transaction brought an entry, the last of those that it brought. */
typedef struct OtShownBy
{
	pg_atomic_uint64 index;
	pg_atomic_uint32 xid;
} OtShownBy;

/* So many are remembered. */
#define OT_SHOWN_BY_MAX 4096

typedef struct OtPositions
{
	slock_t		mutex;			/* protects everything but the atomics */
	bool		known;			/* applied has been read from the origin */
	bool		welcomed;		/* the node has told us catch_up_to */
	OtLogIndex	catch_up_to;	/* committed index after this server's start */
	OtLogIndex	unannounced;	/* applied, but other processes may still see the
								 * names from before it; 0: none */
	OtLogIndex	names_changed_at;	/* applied last of those that change names */
	pg_atomic_uint64 applied;	/* the applied index; once known, only the turn's
								 * holder writes it */
	pg_atomic_uint64 applied_at;	/* when applied moved last, a TimestampTz; 0: not
									 * since this server started */
	pg_atomic_uint64 ddl_elsewhere_at;	/* when a statement of another region last came
										 * here, also to be tried; a TimestampTz, 0: not
										 * since this server started */
	pg_atomic_uint32 nwaiting;	/* processes that wait until an index is shown */
	uint64		incarnation;	/* of this shared memory */
	pg_atomic_uint64 next_sequence;
	OtLogIndex	began;			/* the applied index when it became known */
	pg_atomic_uint64 nshown;	/* how many have been written to shown */
	OtShownBy	shown[OT_SHOWN_BY_MAX]; /* a ring; only the turn's holder writes it */
} OtPositions;

/* How long to wait for an entry that another region shows already. */
#define SHOWN_MS 500

extern void ot_position_init(void);
extern void ot_position_attach(void);
extern bool ot_position_is_welcomed(void);
extern void ot_position_welcome(OtLogIndex committed);
extern void ot_position_wait_caught_up(const char *by_socket);
extern void ot_position_warn_behind(void);
extern bool ot_position_wait_shown(OtLogIndex index, TimestampTz deadline);
extern void ot_position_wake_waiting(OtLogIndex index);
extern void ot_position_set_applied(OtLogIndex index);
extern void ot_position_names_change(void);
extern OtLogIndex ot_position_base_of_names(void);
extern bool ot_position_wait_announced(void);
extern void ot_position_note_ddl_elsewhere(void);
extern bool ot_position_is_ddl_elsewhere(void);
extern OtLogIndex ot_applied_index(void);
extern OtLogIndex ot_position_shown_by(Snapshot snapshot);
extern TimestampTz ot_applied_at(void);
extern OtLogIndex ot_durable_index(void);
extern RepOriginId ot_origin(void);
extern uint64 ot_incarnation(void);
extern OtTxnId ot_draw_txn(void);
extern void ot_skip_txns(void);
extern uint64 ot_last_drawn_sequence(void);
extern void ot_check_running(void);

/* ---- slots.c ---- */

/*
 * How far a process has come with its transaction.
 *
 *	IDLE		has captured nothing; may read
 *	WRITING		has captured a change or a row lock; may be evicted
 *	EVICTED		must fail, if the eviction names the present transaction; set by
 *				the evicting process, by compare-and-swap from IDLE, WRITING or
 *				an older EVICTED only, so never once the entry may be in the log
 *	PROPOSED	the entry may be in the log; the verdict is not known
 *	DECIDED		verdict commit; waits for its turn, or has it
 *
 * All other changes are made by the process itself.  The end of the transaction
 * leads back to IDLE, whether it commits or aborts.
 */
typedef enum OtSlotState
{
	OT_SLOT_IDLE = 0,
	OT_SLOT_WRITING,
	OT_SLOT_EVICTED,
	OT_SLOT_PROPOSED,
	OT_SLOT_DECIDED
} OtSlotState;

/* Why it was evicted: as a writer, or because it was in the way for too long. */
typedef enum OtEvictionWhy
{
	OT_EVICTED_WRITER = 0,
	OT_EVICTED_READER,			/* for onetrip.max_apply_delay */
	OT_EVICTED_LOCKED_READER,	/* waits for a lock itself */
	OT_EVICTED_WAITING_READER,	/* waits until the entry is shown */
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
	OtLogIndex	index;			/* of the entry that it was in the way of */
	TimestampTz marked_at;
	TimestampTz asked_at;		/* when it was last signaled, or noticed the mark
								 * by itself; 0: neither */
	bool		conflict;		/* was sent a conflict, which it has to serve */
	bool		ended;			/* was told to end */
	Oid			relid;			/* of the table; or InvalidOid */
	char		region[NAMEDATALEN];
	char		table[NAMEDATALEN * 2];
} OtEviction;

/* One for each process that can run transactions, by PGPROC number. */
typedef struct OtSlot
{
	pg_atomic_uint32 state;		/* OtSlotState */
	pg_atomic_uint64 waits_for; /* the process waits until this index is shown;
								 * 0: it does not */
	pg_atomic_uint32 has_row_locks; /* its transaction has asked the leader for
									 * row locks */
	uint32		statements;		/* number begun; only the process writes it */
	uint32		cancels_sent;	/* SIGINTs of evictions, to all that had the slot;
								 * counted before they are sent, */
	uint32		cancels_arrived;	/* and afterwards */
	uint32		cancels_served; /* those that came of it; only the process writes it */
	OtEviction	eviction;		/* written before state becomes EVICTED */
} OtSlot;

typedef struct OtSlots
{
	slock_t		evict_mutex;	/* protects OtSlot.eviction, cancels_sent and _arrived */
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
extern bool ot_slot_is_writing(void);
extern void ot_slot_end(void);
extern void ot_slot_wake(int number);

/* eviction.c: in the process that is evicted */
extern void ot_eviction_take_mark(void);
extern void ot_eviction_check(void);
extern void ot_eviction_end(void);
extern bool ot_eviction_minds_errors(void);
extern bool ot_eviction_reword(const ErrorData *edata);

/* ---- conflicts.c ---- */

/* Why a transaction got 40001. */
typedef enum OtConflictKind
{
	OT_CONFLICT_CERTIFIED = 0,	/* another one was first in the log */
	OT_CONFLICT_TOO_OLD,		/* too old to be checked */
	OT_CONFLICT_EVICTED,		/* it was in the way of an entry */
	OT_CONFLICT_RESERVED		/* a region that had lost often is to go first */
} OtConflictKind;

#define OT_CONFLICT_KINDS (OT_CONFLICT_RESERVED + 1)

/* A key's columns and its values in them, as text. */
typedef struct OtConflictKey
{
	int			ncolumns;		/* 0: not known, or its owner may not see it */
	AttrNumber	columns[INDEX_MAX_KEYS];
	char		text[256];		/* may be cut within a character */
} OtConflictKey;

extern void ot_conflict_init(void);
extern void ot_conflict_note(OtConflictKind kind, Oid relid, const char *table,
							 const OtConflictKey *key, const char *region, OtLogIndex entry);
extern OtLogIndex ot_conflict_own_last(void);
extern OtConflictKind ot_conflict_own_last_kind(void);

/* ---- crossings.c ---- */

/* Why something had to ask other regions. */
typedef enum OtCrossing
{
	OT_CROSSING_COMMIT = 0,
	OT_CROSSING_FRESH_READ,
	OT_CROSSING_REHEARSAL,
	OT_CROSSING_SETTLE,
	OT_CROSSING_AWAIT,
	OT_CROSSING_ROW_LOCK,
	OT_CROSSING_LOOK
} OtCrossing;

#define OT_CROSSINGS (OT_CROSSING_LOOK + 1)

extern void ot_crossing_init(void);
extern void ot_crossing_note(OtCrossing cause);

/* ---- oid_counts.c ---- */

#define OT_OID_COUNTS_MAX 5

/* What is counted of one object. */
typedef struct OtOidCounts
{
	pg_atomic_uint32 oid;		/* InvalidOid: free; never changed again */
	pg_atomic_uint64 counts[OT_OID_COUNTS_MAX];
} OtOidCounts;

extern void ot_oid_counts_init(OtOidCounts *places, int nplaces);
extern OtOidCounts *ot_oid_counts_of(OtOidCounts *places, int nplaces, Oid oid);

/* ---- table_counts.c ---- */

extern void ot_table_counts_init(void);
extern void ot_table_count_commit(const Oid *relids, int n);
extern void ot_table_count_lost(OtConflictKind kind, Oid relid);

/* ---- role_counts.c ---- */

extern void ot_role_counts_init(void);
extern void ot_role_count_commit(int64 rows, int64 bytes);
extern void ot_role_count_lost(void);

/* ---- commit_times.c ---- */

/* The parts of a COMMIT; last_commit.c says what they are. */
typedef enum OtCommitPart
{
	OT_COMMIT_PREPARE = 0,
	OT_COMMIT_VERDICT,
	OT_COMMIT_TURN,
	OT_COMMIT_LOCAL,
	OT_COMMIT_EVERYWHERE,
	OT_COMMIT_WHOLE,
	/* those of the verdict */
	OT_COMMIT_PROPOSE,
	OT_COMMIT_REPLICATE,
	OT_COMMIT_CERTIFY
} OtCommitPart;

#define OT_COMMIT_PARTS (OT_COMMIT_CERTIFY + 1)

extern void ot_commit_times_init(void);
extern void ot_commit_time_note(OtCommitPart part, uint64 microseconds);

/* ---- worker_status.c ---- */

/* What the apply worker is doing; only the worker writes it, and of its failures the evictor. */
typedef struct OtWorkerStatus
{
	slock_t		mutex;			/* protects everything but the atomics */
	int			worker;			/* its slot number, -1 if it does not run */
	int			job_worker;		/* that of the job worker that started last, or -1 */
	int			detach_worker;	/* of the detach worker, or -1 */
	TimestampTz job_gives_way_at;	/* from then on the job that runs gives way to who
									 * waits for it; 0: it does not */
	bool		job_gives_way;	/* it is cancelled for that */
	bool		job_cancel_arrived; /* the signal of that has been sent */
	OtLogIndex	applying;		/* 0: nothing */
	TimestampTz applying_since;
	char		applying_region[NAMEDATALEN];
	OtLogIndex	failing;		/* the entry of the worker's last ERROR */
	bool		failing_passes; /* may the cause go away by itself? */
	int			failures;		/* how often it failed since that changed */
	TimestampTz failing_since;
	char		failure[256];	/* message of the last failure */
	pg_atomic_uint32 applying_table;	/* table of the current row, or InvalidOid */
	pg_atomic_uint64 entries;	/* committed by the worker since server start */
	pg_atomic_uint64 transactions;	/* ... in this many transactions */
} OtWorkerStatus;

extern OtWorkerStatus *ot_worker;
extern void ot_worker_init(void);
extern void ot_worker_wake(void);
extern OtLogIndex ot_worker_stands_at(int for_ms);
extern int	ot_worker_hint_retry(const char *hint);
extern void ot_worker_is_for_jobs(void);
extern void ot_worker_job_begins(TimestampTz gives_way_at);
extern bool ot_worker_job_ends(void);
extern bool ot_worker_is_for_detaches(void);
extern void ot_worker_detaches_end(void);
extern bool ot_worker_for_detaches_is_there(void);
extern void ot_worker_wake_jobs(void);

#endif							/* ONETRIP_SHMEM_H */
