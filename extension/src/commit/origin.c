/*-------------------------------------------------------------------------
 *
 * origin.c
 *	  The replication origin of a local commit.
 *
 * The commit record of whoever has the turn contains the log index, as the
 * position of Onetrip's origin: after a crash the server tells from it how far
 * it has come.
 *
 * A session may have an origin of its own: the worker of a subscription does.
 * The record has room for one, so the session's own is put aside before it
 * proposes, and comes back when its transaction is over.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include <signal.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "storage/lwlock.h"

#include "shmem/shmem.h"

/* The session's own origin while that is put aside. */
static struct
{
	RepOriginId id;				/* InvalidRepOriginId: it has none */
	XLogRecPtr	lsn;
	TimestampTz timestamp;
	bool		is_free;		/* this process has let go of it */
}			aside;

static int	saved_synchronous_commit;

/* An abort record of this transaction gets no origin. */
void
ot_origin_put_own_aside(void)
{
	if (replorigin_session_origin == InvalidRepOriginId || replorigin_session_origin == DoNotReplicateId)
		return;
	aside.id = replorigin_session_origin;
	aside.lsn = replorigin_session_origin_lsn;
	aside.timestamp = replorigin_session_origin_timestamp;
	replorigin_session_origin = InvalidRepOriginId;
}

/* Takes Onetrip's origin, which only the holder of the turn has. */
void
ot_origin_take(void)
{
	saved_synchronous_commit = synchronous_commit;
	if (aside.id != InvalidRepOriginId)
	{
		replorigin_session_reset();
		aside.is_free = true;
	}
	ot_replorigin_session_setup(ot_origin());
}

/*
 * The commit record to come contains `index`, and is flushed if it has to be: also with
 * synchronous_commit = off, since after a crash the log would bring back the replicated
 * half of the transaction alone.  No standby is waited for: whoever has the turn would
 * wait, and all others with it.
 */
void
ot_origin_mark(OtLogIndex index, bool flush)
{
	replorigin_session_origin = ot_origin();
	replorigin_session_origin_lsn = (XLogRecPtr) index.value;
	replorigin_session_origin_timestamp = GetCurrentTimestamp();
	synchronous_commit = flush ? SYNCHRONOUS_COMMIT_LOCAL_FLUSH : SYNCHRONOUS_COMMIT_OFF;
}

void
ot_origin_let_go(void)
{
	replorigin_session_origin = InvalidRepOriginId;
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = 0;
	replorigin_session_reset();
	synchronous_commit = saved_synchronous_commit;
}

/*
 * Takes the session's own origin again.  Nobody else has taken it meanwhile,
 * unless a superuser did so by hand.  Raises no ERROR.
 */
static bool
origin_take_own(void)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;
	volatile bool is_back = false;

	PG_TRY();
	{
		ot_replorigin_session_setup(aside.id);
		is_back = true;
	}
	PG_CATCH();
	{
		/* an ERROR leaves them */
		LWLockReleaseAll();
		ot_swallow_error(context, holdoff);
	}
	PG_END_TRY();
	return is_back;
}

/*
 * The transaction is over: gives the session its origin back, and notes how far
 * it has come.  That is not in the WAL: after a crash, a subscription begins
 * where its row says.
 */
void
ot_origin_restore_own(bool committed)
{
	if (aside.id == InvalidRepOriginId)
		return;
	if (aside.is_free && !origin_take_own())
	{
		ereport(LOG_SERVER_ONLY,
				(errmsg("ending a session whose replication origin was taken by another one")));
		(void) kill(MyProcPid, SIGTERM);
		ot_session_end_later();
	}
	else
	{
		if (committed && aside.is_free && aside.lsn != InvalidXLogRecPtr)
			replorigin_session_advance(aside.lsn, XactLastCommitEnd);
		replorigin_session_origin = aside.id;
		replorigin_session_origin_lsn = aside.lsn;
		replorigin_session_origin_timestamp = aside.timestamp;
	}
	memset(&aside, 0, sizeof(aside));
}
