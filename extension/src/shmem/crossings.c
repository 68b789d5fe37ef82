/*-------------------------------------------------------------------------
 *
 * crossings.c
 *	  How often something that this server did had to ask other regions, by
 *	  cause.
 *
 * Each is a message to the node that the node cannot answer by itself.  A
 * message that is sent again on a new connection counts again.  A restart of
 * the server begins anew.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "shmem/shmem.h"

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"

typedef struct Crossings
{
	pg_atomic_uint64 counts[OT_CROSSINGS];
} Crossings;

static const char *const names[OT_CROSSINGS] = {
	[OT_CROSSING_COMMIT] = "commit",
	[OT_CROSSING_FRESH_READ] = "fresh read",
	[OT_CROSSING_REHEARSAL] = "rehearsal",
	[OT_CROSSING_SETTLE] = "outcome settled",
	[OT_CROSSING_AWAIT] = "applied everywhere",
	[OT_CROSSING_ROW_LOCK] = "row lock",
	[OT_CROSSING_LOOK] = "whole cluster",
};

static Crossings *crossings = NULL;

PG_FUNCTION_INFO_V1(ot_count_crossings);

static void
crossing_attach_memory(void *memory, bool found)
{
	crossings = memory;
	for (int cause = 0; !found && cause < OT_CROSSINGS; cause++)
		pg_atomic_init_u64(&crossings->counts[cause], 0);
}

void
ot_crossing_init(void)
{
	static const OtShmemPart part = {"onetrip crossings", sizeof(Crossings), crossing_attach_memory};

	ot_shmem_add(&part);
}

void
ot_crossing_note(OtCrossing cause)
{
	pg_atomic_fetch_add_u64(&crossings->counts[cause], 1);
}

/* onetrip.count_crossings() returns setof record */
Datum
ot_count_crossings(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	ot_check_running();
	InitMaterializedSRF(fcinfo, 0);
	for (int cause = 0; cause < OT_CROSSINGS; cause++)
	{
		Datum		values[2];
		bool		nulls[2] = {0};

		values[0] = CStringGetTextDatum(names[cause]);
		values[1] = Int64GetDatum((int64) pg_atomic_read_u64(&crossings->counts[cause]));
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
