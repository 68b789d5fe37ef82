/*-------------------------------------------------------------------------
 *
 * commit.h
 *	  A transaction's way through COMMIT, and the order of local commits.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_COMMIT_H
#define ONETRIP_COMMIT_H

#include "node/node.h"

/* commit.c */
extern void ot_commit_init(void);
extern void ot_commit_hold_turn(OtLogIndex index, bool flush);

/* bill.c */
extern void ot_explain_init(void);

/* fresh.c */
extern void ot_fresh_init(void);

/* prepared.c */
extern void ot_prepared_init(void);

/* retry.c */
extern void ot_retry_init(void);

/* outcome.c: in the apply worker */
extern void ot_settle_connected(void);
extern void ot_settle_ask(OtAgent *agent);
extern bool ot_settle_heard(OtReader *body);

/* subscription.c */
extern void ot_subscription_init(void);
extern void ot_subscription_table_changes(const char *schema, const char *table);
extern void ot_subscription_look_for_taken_over(void);
extern void ot_subscription_end_taken_over(void);
/* subscription_elsewhere.c */
extern void ot_subscription_note_definitions(const char *name);
extern bool ot_subscription_take_over(const char *name, int node, Oid subscription);
extern void ot_subscription_remove(const char *name);

/* turn.c */
extern void ot_turn_init(void);
extern void ot_turn_begin_arriving(OtTxnId txn);
extern void ot_turn_may_be_decided(void);
extern bool ot_turn_is_arriving(void);
extern void ot_turn_decided(OtLogIndex index, OtLogIndex previous);
extern bool ot_turn_is_handed_over(void);
extern bool ot_turn_extend(OtLogIndex index);
extern bool ot_turn_try(void);
extern void ot_turn_forget(bool committed);
extern bool ot_turn_backend_has(OtTxnId txn);
extern bool ot_turn_someone_before(void);
extern void ot_turn_worker_wants(OtLogIndex index);
extern bool ot_turn_hand_over(int number, OtLogIndex index);
extern int	ot_turn_holder(OtLogIndex *index);

/*
 * session.c: what happens at each statement and at each error of a session.
 * In the apply worker, the callback gets each ERROR that was not reworded, to
 * keep it for onetrip.status.
 */
typedef void (*OtFailureCallback) (const ErrorData *edata);

extern void ot_session_init(void);
extern void ot_session_watch_errors(void);
extern void ot_session_note_failures(OtFailureCallback callback);

/* unread.c */
extern void ot_unread_watch(void);

#endif							/* ONETRIP_COMMIT_H */
