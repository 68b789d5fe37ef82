/*-------------------------------------------------------------------------
 *
 * look.c
 *	  How the whole cluster is, as this region's node sees it:
 *	  onetrip.cluster().
 *
 * The node asks the other members, and answers within a second or so.  The
 * answer is JSON (docs/status.md); views in SQL pick it to pieces.
 *
 * Runs in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "shmem/shmem.h"

/* The node gives the members one second, and its own disk three. */
#define LOOK_TIMEOUT_MS 5000

PG_FUNCTION_INFO_V1(ot_cluster_now);

typedef struct Look
{
	uint64		number;			/* of the question */
	char	   *cluster;		/* palloc'd */
} Look;

static void
look_put_question(StringInfo frame, void *state)
{
	ot_put_u64(frame, ((Look *) state)->number);
}

static OtTaken
look_take_answer(OtReader *body, void *state)
{
	Look	   *look = state;
	OtSeen		seen;

	if (!ot_agent_get_seen(body, &seen))
		return OT_TAKEN_DAMAGED;
	if (seen.number != look->number)
		return OT_TAKEN_OTHER;
	look->cluster = pnstrdup(seen.cluster, seen.length);
	return OT_TAKEN_ANSWER;
}

Datum
ot_cluster_now(PG_FUNCTION_ARGS)
{
	static uint64 last_number = 0;
	TimestampTz deadline = TimestampTzPlusMilliseconds(ot_now(), LOOK_TIMEOUT_MS);
	Look		look = {.number = ++last_number};
	OtQuestion	question = {
		.type = OT_FRAME_LOOK,
		.answer = OT_FRAME_SEEN,
		.put = look_put_question,
		.take = look_take_answer,
		.state = &look,
	};

	ot_trips_take("ask how the cluster is", 1);
	if (!ot_ask(&question, deadline))
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("the node of region \"%s\" does not say how the cluster is", ot_region),
				 ot_agent_is_open(ot_commit_agent()) ?
				 errdetail("It did not answer within %d seconds.", LOOK_TIMEOUT_MS / 1000) :
				 errdetail("%s.", ot_agent_error(ot_commit_agent())),
				 errhint("See whether the node runs, and what its log says.")));
	if (look.cluster[0] == '\0')
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("the node of region \"%s\" does not say how the cluster is", ot_region),
				 errdetail("It waits for the disk of its log."),
				 errhint("See the node's log.")));
	PG_RETURN_DATUM(DirectFunctionCall1(jsonb_in, CStringGetDatum(look.cluster)));
}
