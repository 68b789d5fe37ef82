/*-------------------------------------------------------------------------
 *
 * rehearse.c
 *	  Tries a transaction's statements in the other regions before they are
 *	  proposed.
 *
 * A statement that succeeds here and fails elsewhere would hold that region up
 * for good: an extension that is not installed there, a role or a tablespace
 * of that server alone, a function that reads what is different there.  So a
 * COMMIT with statements first has its whole write set carried out and rolled
 * back in every other region that can be reached.  An error there is the
 * COMMIT's error here; nothing has been proposed then.
 *
 * It is a help, not a promise.  A region that is away or busy is not waited
 * for, and an entry that fails there all the same is a matter of healing.
 * Whatever passes by itself, such as a lock that is held there, counts as busy.
 *
 * That region may be ahead of this one.  If what came in between makes the
 * write set fail, this server learns it too, as a conflict: so before a failure
 * is believed this server goes as far as that one was, and asks again.
 *
 * How the write set is tried there: rehearse_here.c.
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

/* A failure is believed at the latest after so many attempts. */
#define ATTEMPTS 3
/* The node answers in its own time; past this it is taken for away. */
#define NODE_GRACE_MS 3000

/* Sends the write set and reads the answer.  false: none came. */
static bool
rehearse_ask_node(OtAgent *agent, OtTxnId txn, OtLogIndex base, OtRehearsed *answer)
{
	TimestampTz deadline =
		TimestampTzPlusMilliseconds(ot_now(), (int64) ot_rehearse_timeout_ms + NODE_GRACE_MS);
	OtLogIndex	none = {0};
	StringInfo	frame;

	if (!ot_agent_is_open(agent) && !ot_agent_open(agent, OT_ROLE_BACKEND, none, none))
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
				/* No room for it, or it is too large: COMMIT says so itself. */
				ot_agent_consume(agent);
				if (type == OT_FRAME_VERDICT)
					return false;
			}
		}
		wait_ms = TimestampDifferenceMilliseconds(ot_now(), deadline);
		if (!ot_agent_is_open(agent) || wait_ms <= 0)
		{
			/* What still comes must not be taken for the answer to something else. */
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
			 errhint("Nothing was committed. Mend the cause in region \"%s\" and repeat the transaction.",
					 answer->region),
			 answer->context[0] != '\0' ?
			 errcontext("in region \"%s\": %s", answer->region, answer->context) : 0));
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
		if (answer.at.value <= base.value || attempt == ATTEMPTS || !ot_position_wait_shown(answer.at))
			rehearse_raise_failure(&answer);
		ot_eviction_check();
	}
}
