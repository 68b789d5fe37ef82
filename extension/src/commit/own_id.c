/*-------------------------------------------------------------------------
 *
 * own_id.c
 *	  The id of this transaction: from when on it has one, and who knows it.
 *
 * Runs in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "capture/capture.h"
#include "shmem/shmem.h"

/*
 * The id that this transaction's COMMIT uses.
 *
 *	NONE		it has none yet
 *	DRAWN		it has one, and nobody else knows it
 *	TOLD		the client knows it and may ask, so it must get an outcome
 *	FINAL		the log has decided it
 */
typedef enum OwnIdState
{
	OWN_ID_NONE = 0,
	OWN_ID_DRAWN,
	OWN_ID_TOLD,
	OWN_ID_FINAL
} OwnIdState;

/* Reset at the transaction's end. */
static struct
{
	OwnIdState	state;
	OtTxnId		txn;
	OtLogIndex	base;			/* the applied index when it was told */
}			own;

static void
own_id_enter(OwnIdState next)
{
	OT_ASSERT(own.state < next);
	own.state = next;
}

OtTxnId
ot_commit_own_txn(void)
{
	if (own.state == OWN_ID_NONE)
	{
		own.txn = ot_draw_txn();
		own_id_enter(OWN_ID_DRAWN);
	}
	return own.txn;
}

/*
 * Returns the id, for the client to remember.  From now on the transaction
 * gets an outcome, whatever happens to it: it becomes an entry even if it
 * changes nothing.  It gets a key with the present applied index as its base,
 * so that it is too old to commit by the time that the log may have forgotten
 * that it was settled.
 */
OtTxnId
ot_commit_tell_id(void)
{
	ot_write_set_touch();
	if (own.state != OWN_ID_TOLD)
		own.base = ot_applied_index();
	ot_write_set_entry(own.base);
	(void) ot_commit_own_txn();
	if (own.state == OWN_ID_DRAWN)
		own_id_enter(OWN_ID_TOLD);
	return own.txn;
}

/* May somebody ask for the outcome of this transaction by its id? */
bool
ot_commit_id_is_told(void)
{
	return own.state == OWN_ID_TOLD;
}

/* The transaction that has told its id commits: it becomes an entry. */
void
ot_own_id_take_key(void)
{
	if (own.state == OWN_ID_TOLD)
		ot_write_set_entry(own.base);
}

/* The log has decided it. */
void
ot_own_id_is_final(void)
{
	own_id_enter(OWN_ID_FINAL);
}

/*
 * The transaction aborts.  Must its id get an outcome nevertheless?  proposed: the
 * entry may be in the log.
 */
bool
ot_own_id_needs_outcome(bool proposed)
{
	return own.state == OWN_ID_TOLD || (own.state == OWN_ID_DRAWN && proposed);
}

/* The transaction is over. */
void
ot_own_id_reset(void)
{
	memset(&own, 0, sizeof(own));
}
