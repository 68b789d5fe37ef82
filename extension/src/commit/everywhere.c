/*-------------------------------------------------------------------------
 *
 * everywhere.c
 *	  onetrip.ack = applied_everywhere: COMMIT is answered once the servers of
 *	  all regions that are connected show the change.
 *
 * The node knows who is connected, and asks the other members for their
 * positions; for how long it does is up to it, but for onetrip.commit_timeout.
 * When the wait begins, the transaction is committed, visible here, and has
 * released its locks: whatever happens in the wait, COMMIT succeeds.  The client
 * gets a WARNING if a region may not show the change yet.  A cancel and a
 * termination end the wait.
 *
 * Runs in backends, in the middle of CommitTransaction() with interrupts held.
 * An ERROR here would be a PANIC, so whatever is raised becomes a WARNING; and if that
 * cannot be sent, it is in the server's log alone.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

/* The entry that the present COMMIT waits for; 0: none. */
static OtLogIndex awaited;

/* The present transaction is committed here, and waits once it has no locks. */
void
ot_everywhere_begin(OtLogIndex at)
{
	awaited = at;
}

/* why: a sentence without its full stop */
static void
everywhere_warn(const char *why)
{
	ereport(WARNING,
			(errmsg("the transaction is committed, but some regions may not show it yet"),
			 errdetail("%s.", why),
			 errhint("They will show it without further ado; a fresh read (onetrip.read = fresh) sees it everywhere.")));
}

static void
everywhere_told(const OtShown *shown)
{
	if (shown->missing[0] != '\0')
		everywhere_warn(psprintf("Region %s", shown->missing));
}

/* Reads until the answer has come; false: not yet. */
static bool
everywhere_read(OtAgent *agent, OtLogIndex at)
{
	OtFrameType type;
	OtReader	body;

	while (ot_agent_read(agent, &type, &body))
	{
		OtShown		shown;

		if (type == OT_FRAME_SHOWN && !ot_agent_get_shown(&body, &shown))
		{
			ot_agent_close_damaged(agent, type);
			return false;
		}
		ot_agent_consume(agent);
		if (type == OT_FRAME_SHOWN && shown.at.value == at.value)
		{
			everywhere_told(&shown);
			return true;
		}
	}
	return false;
}

static void
everywhere_wait(OtLogIndex at)
{
	OtAgent    *agent = ot_commit_agent();
	TimestampTz deadline = TimestampTzPlusMilliseconds(ot_now(), ot_commit_timeout_ms);

	/* if the connection is lost, another one knows nothing of this entry */
	if (ot_agent_is_open(agent))
	{
		ot_put_u64(ot_agent_frame(agent, OT_FRAME_AWAIT), at.value);
		ot_agent_frame_end(agent);
	}
	for (;;)
	{
		(void) ot_agent_flush(agent);
		if (everywhere_read(agent, at))
			return;
		if (ProcDiePending || QueryCancelPending)
		{
			QueryCancelPending = false;
			everywhere_warn(ProcDiePending ?
							"The session was ended while COMMIT waited until they do" :
							"COMMIT was canceled while it waited until they do");
			return;
		}
		if (!ot_agent_is_open(agent))
		{
			everywhere_warn("The connection to this region's node was lost while COMMIT waited until they do");
			return;
		}
		if (ot_ms_until(deadline) == 0)
		{
			everywhere_warn("COMMIT has waited until they do for onetrip.commit_timeout");
			return;
		}
		ot_agent_wait(agent, ot_ms_until(deadline));
	}
}

static void
everywhere_wait_or_warn(OtLogIndex at)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;

	PG_TRY();
	{
		everywhere_wait(at);
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		ot_swallow_error(context, holdoff);
		everywhere_warn(edata->message);
	}
	PG_END_TRY();
}

static void
everywhere_after_locks(ResourceReleasePhase phase, bool is_commit, bool is_top_level, void *arg)
{
	OtLogIndex	at = awaited;
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;

	if (likely(at.value == 0) || phase != RESOURCE_RELEASE_AFTER_LOCKS || !is_top_level || !is_commit)
		return;
	awaited.value = 0;
	PG_TRY();
	{
		everywhere_wait_or_warn(at);
	}
	PG_CATCH();
	{
		ot_swallow_error(context, holdoff);
	}
	PG_END_TRY();
	ot_cost_end(true);
	/* the client gets its answer first */
	ot_session_end_later();
}

void
ot_everywhere_init(void)
{
	RegisterResourceReleaseCallback(everywhere_after_locks, NULL);
}
