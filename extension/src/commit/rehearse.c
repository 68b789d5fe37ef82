/*-------------------------------------------------------------------------
 *
 * rehearse.c
 *	  Has a transaction's statements tried in the other regions before they are
 *	  proposed.
 *
 * A statement that succeeds here and fails in another region would make that
 * region stand still: because an extension is not installed there, because a
 * role or a tablespace exists here only, or because a function reads something
 * that is different there.  So a COMMIT with statements first has the other
 * regions that can be reached carry out its whole write set and roll it back.
 * An error there becomes the error of the COMMIT here, before anything is
 * proposed.
 *
 * This helps, but guarantees nothing.  COMMIT does not wait for a region that
 * is away or busy; if the entry fails there after all, the region has to be
 * healed.  A region counts as busy if the failure goes away by itself, for
 * example if a lock is in the way.
 *
 * The other region may show entries that this server does not show yet.  If one
 * of them makes the write set fail, this transaction will find that out here,
 * as a conflict.  So before it believes a failure, it waits until this server
 * shows as much as the other did, and asks again, a few times at most.  If this
 * server does not get there, the failure says nothing, and the transaction has
 * to be repeated.
 *
 * rehearse_here.c tries the write set in the other region.
 *
 * Runs in backends, at PRE_COMMIT.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/timestamp.h"

#include "capture/capture.h"
#include "shmem/shmem.h"

/*
 * After this many attempts, a failure is believed even if the other region has
 * got ahead again, but not before this server is there, too.
 */
#define ATTEMPTS 3
/* How much longer than the rehearsal itself the node's answer may take. */
#define NODE_GRACE_MS 3000

/* Sends the write set and reads the answer.  Returns false if none came. */
static bool
rehearse_ask_node(OtAgent *agent, OtTxnId txn, OtLogIndex base, OtRehearsed *answer)
{
	TimestampTz deadline =
		TimestampTzPlusMilliseconds(ot_now(), (int64) ot_rehearse_timeout_ms + NODE_GRACE_MS);
	StringInfo	frame;

	if (!ot_agent_is_open(agent) && !ot_commit_connect())
		return false;
	frame = ot_agent_frame(agent, OT_FRAME_REHEARSE);
	ot_put_txn(frame, txn);
	ot_put_u64(frame, base.value);
	ot_put_u32(frame, ot_rehearse_timeout_ms);
	ot_put_u32(frame, ot_rehearse_lock_timeout_ms);
	ot_write_set_operations(frame);
	ot_agent_frame_end(agent);

	for (;;)
	{
		OtFrameType type;
		OtReader	body;
		long		wait_ms;

		(void) ot_agent_flush(agent);
		while (ot_agent_read(agent, &type, &body))
		{
			if (type == OT_FRAME_REHEARSED)
			{
				ot_agent_get_rehearsed(&body, answer);
				ot_agent_consume(agent);
				if (answer->txn.sequence == txn.sequence)
					return true;
			}
			else
			{
				/* It is too large, or there is no room: COMMIT says so. */
				ot_agent_consume(agent);
				if (type == OT_FRAME_VERDICT)
					return false;
			}
		}
		wait_ms = TimestampDifferenceMilliseconds(ot_now(), deadline);
		if (!ot_agent_is_open(agent) || wait_ms <= 0)
		{
			/* A late answer must not be taken for that to a later question. */
			ot_agent_close(agent);
			return false;
		}
		if (ot_agent_wait(agent, wait_ms, PG_WAIT_EXTENSION) & WL_LATCH_SET)
			ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

static void
rehearse_raise_failure(const OtRehearsed *answer)
{
	const char *code = answer->sqlstate;

	ereport(ERROR,
			(errcode(strlen(code) == 5 ?
					 MAKE_SQLSTATE(code[0], code[1], code[2], code[3], code[4]) : ERRCODE_INTERNAL_ERROR),
			 errmsg("could not commit: a statement fails in region \"%s\": %s",
					answer->region, answer->message),
			 answer->detail[0] != '\0' ?
			 errdetail("%s", answer->detail) : 0,
			 answer->hint[0] != '\0' ?
			 errhint("In region \"%s\": %s", answer->region, answer->hint) :
			 errhint("Nothing was committed. Fix the cause in region \"%s\" and repeat the transaction.",
					 answer->region),
			 answer->context[0] != '\0' ?
			 errcontext("in region \"%s\": %s", answer->region, answer->context) : 0));
}

static void
rehearse_raise_behind(const OtRehearsed *answer)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not commit: region \"%s\" is behind region \"%s\", where a statement fails: %s",
					ot_region, answer->region, answer->message),
			 errdetail("It fails at log index " UINT64_FORMAT ", and region \"%s\" shows log index " UINT64_FORMAT " only.",
					   answer->at.value, ot_region, ot_applied_index().value),
			 errhint("Nothing was committed. Retry the transaction.")));
}

/*
 * Raises ERROR if another region says that the write set would fail there.
 * Interrupts are served: nothing has been proposed.
 */
void
ot_rehearse_elsewhere(OtAgent *agent, OtTxnId txn)
{
	for (int attempt = 1;; attempt++)
	{
		OtLogIndex	base = ot_applied_index();
		OtRehearsed answer;

		if (!rehearse_ask_node(agent, txn, base, &answer))
		{
			ereport(DEBUG1,
					(errmsg("the node of region \"%s\" could not have the statements rehearsed", ot_region)));
			return;
		}
		if (answer.untried[0] != '\0')
			ereport(DEBUG1,
					(errmsg("not every region has rehearsed the transaction"),
					 errdetail("%s.", answer.untried)));
		if (!answer.failed)
			return;
		if (answer.at.value > base.value)
		{
			if (!ot_position_wait_shown(answer.at, TimestampTzPlusMilliseconds(ot_now(), SHOWN_MS)))
				rehearse_raise_behind(&answer);
			ot_eviction_check();
			if (attempt < ATTEMPTS)
				continue;
		}
		rehearse_raise_failure(&answer);
	}
}
