/*-------------------------------------------------------------------------
 *
 * ask.c
 *	  Asks the node a question that can be repeated, on as many connections as
 *	  it takes.
 *
 * For questions that change nothing if they are asked twice; a proposal has
 * rules of its own (proposal.c).
 *
 * Runs in backends.  Interrupts are served.  An interrupt leaves the connection
 * as it is: the answer that comes later is passed over by whoever reads next.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

/*
 * Asks, again on each new connection, until the answer has come.  Returns false
 * at the deadline.
 */
bool
ot_ask(const OtQuestion *question, TimestampTz deadline)
{
	OtAgent    *agent = ot_commit_agent();
	bool		asked = false;

	for (;;)
	{
		OtFrameType type;
		OtReader	body;
		long		left;

		if (!ot_agent_is_open(agent))
		{
			asked = false;
			(void) ot_commit_connect();
		}
		if (ot_agent_is_open(agent) && !asked)
		{
			question->put(ot_agent_frame(agent, question->type), question->state);
			ot_agent_frame_end(agent);
			asked = true;
		}
		(void) ot_agent_flush(agent);
		while (ot_agent_read(agent, &type, &body))
		{
			OtTaken		taken = type == question->answer ?
				question->take(&body, question->state) : OT_TAKEN_OTHER;

			if (taken == OT_TAKEN_DAMAGED)
				ot_agent_close_damaged(agent, type);
			else
				ot_agent_consume(agent);
			if (taken == OT_TAKEN_ANSWER)
				return true;
		}
		CHECK_FOR_INTERRUPTS();
		left = ot_ms_until(deadline);
		if (left == 0)
			return false;
		if (!ot_agent_is_open(agent))
			left = Min(left, RECONNECT_MS);
		ot_agent_wait(agent, left);
	}
}
