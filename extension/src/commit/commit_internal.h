/*-------------------------------------------------------------------------
 *
 * commit_internal.h
 *	  What the files of commit offer each other.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_COMMIT_INTERNAL_H
#define ONETRIP_COMMIT_INTERNAL_H

#include "commit/commit.h"

#include "nodes/plannodes.h"
#include "utils/timestamp.h"

#include "capture/capture.h"

/*
 * How long a cancelled COMMIT still waits for a verdict that may be on its way,
 * or for its turn.
 */
#define CANCEL_GRACE_MS 1000

/* How often a waiting COMMIT checks whether this region still stands still. */
#define STANDSTILL_POLL_MS 100

/* The time between attempts to reach a node that does not answer. */
#define RECONNECT_MS 20

typedef enum OtTaken
{
	OT_TAKEN_DAMAGED,			/* it cannot be read */
	OT_TAKEN_OTHER,				/* it is to another question, for example one that a cancel has ended */
	OT_TAKEN_ANSWER
} OtTaken;

/* A question to the node and its answer, which `take` reads. */
typedef struct OtQuestion
{
	OtFrameType type;
	OtFrameType answer;
	void		(*put) (StringInfo frame, void *state);
	OtTaken		(*take) (OtReader *body, void *state);
	void	   *state;
} OtQuestion;

/* ask.c */
extern bool ot_ask(const OtQuestion *question, TimestampTz deadline);

/* trips.c */
/* What DDL takes anyhow: a rehearsal and COMMIT. */
#define OT_DDL_TRIPS (2 + (ot_ack == OT_ACK_APPLIED_EVERYWHERE))

extern bool ot_trips_are_left(int trips);
pg_noreturn extern void ot_trips_refuse(const char *what, int trips);
extern void ot_trips_take(const char *what, int trips);
extern void ot_trips_give_back(int trips);
extern int	ot_trips_taken(void);

/* fresh.c: what it cost this transaction to read fresh */
typedef struct OtFreshCost
{
	bool		asked;			/* it has asked other regions */
	OtLogIndex	at;				/* what this server had to show; 0: has not asked */
	double		asked_ms;		/* until the answer came */
	double		shown_ms;		/* from then until this server showed that */
} OtFreshCost;

extern OtFreshCost ot_fresh_cost(void);
extern void ot_fresh_wait(void);

/* commit.c */
extern bool ot_commit_connect(void);
extern uint64 ot_commit_connection(void);
extern void ot_commit_proposed(void);
extern int	ot_commit_trips(void);
extern void ot_commit_hand_over(const char *what, OtEntryKind kind, void (*wrap) (void));
extern void ot_commit_keep_user(void);
extern bool ot_commit_lost_to_prepared(void);
extern OtLogIndex ot_commit_last_entry(void);
pg_noreturn extern void ot_commit_raise_unknown(OtTxnId txn);
extern OtAgent *ot_commit_agent(void);
extern void ot_commit_begin_answer(bool waits_for_client, bool has_entry);
extern bool ot_commit_minds_errors(void);
extern bool ot_commit_reword(const ErrorData *edata);

/* own_id.c */
extern OtTxnId ot_commit_own_txn(void);
extern OtTxnId ot_commit_tell_id(void);
extern bool ot_commit_id_is_told(void);
extern void ot_own_id_take_key(void);
extern void ot_own_id_is_final(void);
extern bool ot_own_id_needs_outcome(bool proposed);
extern void ot_own_id_reset(void);

/* show_own.c */
extern void ot_show_own_init(void);
extern void ot_show_own_later(OtLogIndex index, bool handed_over);

/* verdict.c: those that say are for ereport() and error context callbacks; why is a sentence without its full stop */
extern void ot_say_unknown(OtTxnId txn);
extern void ot_say_committed(OtTxnId txn, OtLogIndex index, bool other_tables, const char *why);
extern void ot_say_committed_here(const char *why);
extern void ot_say_handed_over(OtTxnId txn, OtLogIndex index, bool prepared, const char *why);
pg_noreturn extern void ot_verdict_raise(OtTxnId txn, OtVerdict *verdict);

/* everywhere.c */
extern void ot_everywhere_init(void);
extern void ot_everywhere_begin(OtLogIndex at);

/* traced.c */
extern void ot_traced_init(void);
extern void ot_traced_note(OtTxnId txn, OtLogIndex entry, uint64 bytes, const uint64 *us, bool everywhere);

/* held_locks.c */
/* What a transaction has written that is in no entry. */
typedef struct OtWrittenHere
{
	bool		logged;			/* whose COMMIT has to be flushed */
	bool		any;			/* that, an unlogged or a temporary table */
} OtWrittenHere;

/* What it has used besides: names, or NULL. */
typedef struct OtUsedHere
{
	char	   *foreign_table;
	char	   *written;		/* a table that is not replicated, or a catalog */
	char	   *locked;			/* the same, of which rows may be locked */
	char	   *read;			/* a table that is not replicated */
	bool		sequence;		/* may have drawn from one */
} OtUsedHere;

extern void ot_held_locks_take_keys(OtWrittenHere *written, bool to_be_prepared);
extern bool ot_held_locks_write_foreign(bool defines);
extern bool ot_held_locks_any(void);
extern bool ot_held_locks_need_keys(void);
extern char *ot_held_locks_written_here(void);
extern void ot_held_locks_note_run(const QueryDesc *query);
extern void ot_held_locks_find_used(OtUsedHere *used);

/* last_commit.c: the points in time between which the parts of a COMMIT lie */
typedef enum OtCostMark
{
	OT_COST_BEGUN = 0,
	OT_COST_PROPOSED,
	OT_COST_DECIDED,
	OT_COST_TURN,
	OT_COST_PUBLISHED,
	OT_COST_EVERYWHERE,			/* or its wait ended otherwise */
	OT_COST_MARKS
} OtCostMark;

extern void ot_cost_begin(OtTxnId txn, int trips);
extern void ot_cost_mark(OtCostMark mark);
extern void ot_cost_bytes(uint64 bytes);
extern void ot_cost_decided(const OtVerdict *verdict);
extern void ot_cost_committed(OtLogIndex entry);
extern void ot_cost_end(bool everywhere);
extern void ot_cost_init(void);

/* origin.c */
extern void ot_origin_put_own_aside(void);
extern void ot_origin_take(void);
extern void ot_origin_mark(OtLogIndex index, bool flush);
extern void ot_origin_let_go(void);
extern void ot_origin_restore_own(bool committed);

/* prepared.c */
pg_noreturn extern void ot_prepared_raise_no_room(void);
extern bool ot_prepared_has_done_here(void);
extern void ot_prepared_raise_name(const OtVerdict *verdict);

/* proposal.c */
extern void ot_propose(OtAgent *agent, OtTxnId txn, OtVerdict *verdict);

/* rehearse.c */
extern void ot_rehearse_elsewhere(OtAgent *agent, OtTxnId txn, bool is_compared);
extern bool ot_compare_is_possible(void);
extern bool ot_compare_is_answered(void);
extern void ot_compare_here(void);
extern void ot_compare_elsewhere(OtTxnId txn);

/* retry.c */
extern void ot_retry_at_end(void);

/* subscription.c; more of it is in commit.h */
extern void ot_subscription_at_pre_commit(bool has_changes);
extern void ot_subscription_at_commit(void);
extern void ot_subscription_at_abort(void);

/* lock_ahead.c */
extern void ot_lock_ahead_init(void);

/* row_lock.c */
typedef struct OtRowLock
{
	uint64		hash;
	OtKeyMode	mode;
} OtRowLock;

extern void ot_row_lock_all(Relation rel, OtRowLock *locks, int nlocks);
extern void ot_row_lock_too_many(int nrows);
extern bool ot_row_lock_goes_without(void);
extern int64 ot_row_locks_asked(void);
extern void ot_row_lock_init(void);
extern void ot_row_lock_end(bool decided);
extern void ot_row_lock_subxact_start(int nest_level);
extern void ot_row_lock_subxact_abort(int nest_level);

/* session.c */
extern void ot_session_keep_watching(void);
extern void ot_session_end_later(void);
extern void ot_session_end_if_told(void);

/* unread.c; one more is in commit.h */
extern void ot_unread_init(void);
extern void ot_unread_is_waited_for(void);

/* turn.c */
extern void ot_turn_begin_proposing(OtTxnId txn);
extern void ot_turn_publish(void);
extern void ot_turn_leave_open(OtTxnId txn, bool proposed);
extern int	ot_turn_left_open(bool proposed, OtTxnId *txns, int max);
extern void ot_turn_settled(bool proposed, int count);
extern uint64 ot_turn_handovers(void);

#endif							/* ONETRIP_COMMIT_INTERNAL_H */
