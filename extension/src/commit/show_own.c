/*-------------------------------------------------------------------------
 *
 * show_own.c
 *	  A session waits until it is shown its own entry, if the apply worker
 *	  commits that in its place.
 *
 * Runs in backends, when the transaction has ended.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include <signal.h>

#include "miscadmin.h"
#include "utils/resowner.h"

#include "shmem/shmem.h"

/* How long a session waits until the worker has committed its entry for it. */
#define SHOW_OWN_MS 5000

/*
 * An entry of this session that the apply worker commits in its place.  The
 * session's next statement must see it.
 */
static OtLogIndex own_commit;
static bool own_is_handed_over; /* it was the worker's from the start */

/*
 * Waits until the worker has committed own_commit.  By now this transaction has
 * released the locks that the worker may need.  The client has its error
 * already; its next command waits here, so that it never sees a state from
 * before its own commit.
 *
 * The client of an entry that was handed over has no answer yet, so it waits as
 * long as COMMIT waits for its turn: until this region stands still, or until it
 * cancels the statement, which is then answered as having succeeded; after that
 * it waits no longer than others.
 */
static void
show_own_at_release(ResourceReleasePhase phase, bool is_commit, bool is_top_level, void *arg)
{
	OtLogIndex	index = own_commit;
	bool		handed_over = own_is_handed_over;
	int			ends_at = handed_over ? INT_MAX : SHOW_OWN_MS;

	if (phase != RESOURCE_RELEASE_AFTER_LOCKS || !is_top_level || index.value == 0)
		return;
	own_commit.value = 0;
	own_is_handed_over = false;
	for (int waited = 0; ot_applied_index().value < index.value; waited++)
	{
		if (ProcDiePending)
		{
			/* the client gets its answer first */
			if (handed_over)
				ot_session_end_later();
			return;
		}
		if (handed_over && QueryCancelPending)
		{
			QueryCancelPending = false;
			ends_at = Min(ends_at, waited + SHOW_OWN_MS);
		}
		if (waited == ends_at ||
			(handed_over && waited % STANDSTILL_POLL_MS == 0 && ot_worker_stands_at(ot_commit_timeout_ms).value != 0))
		{
			ereport(LOG_SERVER_ONLY,
					(errmsg("ending a session that cannot be shown its own commit at " UINT64_FORMAT,
							index.value)));
			(void) kill(MyProcPid, SIGTERM);
			ot_session_end_later();
			return;
		}
		pg_usleep(1000);
	}
}

/* The session's next statement waits for this entry. */
void
ot_show_own_later(OtLogIndex index, bool handed_over)
{
	own_commit = index;
	own_is_handed_over = handed_over;
}

void
ot_show_own_init(void)
{
	RegisterResourceReleaseCallback(show_own_at_release, NULL);
}
