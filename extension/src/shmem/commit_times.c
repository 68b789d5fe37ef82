/*-------------------------------------------------------------------------
 *
 * commit_times.c
 *	  How long the COMMITs of this server took, by part, as histograms.
 *
 * Bucket n has the times of at most 2^(n/4) microseconds that are longer than
 * those of the bucket before it, so a time is known to a fifth.  A COMMIT adds
 * to two counters for each part, and allocates nothing.  A restart of the
 * server begins anew.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "shmem/shmem.h"

#include <math.h>

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/float.h"

#define BUCKETS_EACH_OCTAVE 4
#define BUCKETS (BUCKETS_EACH_OCTAVE * 32 + 1)	/* to more than an hour */

typedef struct Histogram
{
	pg_atomic_uint64 sum;		/* microseconds */
	pg_atomic_uint64 counts[BUCKETS];
} Histogram;

typedef struct CommitTimes
{
	Histogram	parts[OT_COMMIT_PARTS];
} CommitTimes;

static const char *const names[OT_COMMIT_PARTS] = {
	[OT_COMMIT_PREPARE] = "prepare",
	[OT_COMMIT_VERDICT] = "verdict",
	[OT_COMMIT_TURN] = "turn",
	[OT_COMMIT_LOCAL] = "local",
	[OT_COMMIT_EVERYWHERE] = "everywhere",
	[OT_COMMIT_WHOLE] = "whole",
	[OT_COMMIT_PROPOSE] = "propose",
	[OT_COMMIT_REPLICATE] = "replicate",
	[OT_COMMIT_CERTIFY] = "certify",
};

static CommitTimes *times = NULL;

PG_FUNCTION_INFO_V1(ot_count_commits);

static void
commit_times_attach_memory(void *memory, bool found)
{
	times = memory;
	for (int part = 0; !found && part < OT_COMMIT_PARTS; part++)
	{
		pg_atomic_init_u64(&times->parts[part].sum, 0);
		for (int bucket = 0; bucket < BUCKETS; bucket++)
			pg_atomic_init_u64(&times->parts[part].counts[bucket], 0);
	}
}

void
ot_commit_times_init(void)
{
	static const OtShmemPart part = {"onetrip commit times", sizeof(CommitTimes), commit_times_attach_memory};

	ot_shmem_add(&part);
}

void
ot_commit_time_note(OtCommitPart part, uint64 microseconds)
{
	Histogram  *histogram = &times->parts[part];
	int			bucket = microseconds <= 1 ? 0 :
		(int) ceil(BUCKETS_EACH_OCTAVE * log2((double) microseconds));

	pg_atomic_fetch_add_u64(&histogram->counts[Min(bucket, BUCKETS - 1)], 1);
	pg_atomic_fetch_add_u64(&histogram->sum, microseconds);
}

/* onetrip.count_commits() returns setof record: buckets that are not empty. */
Datum
ot_count_commits(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	ot_check_running();
	InitMaterializedSRF(fcinfo, 0);
	for (int part = 0; part < OT_COMMIT_PARTS; part++)
	{
		Histogram  *histogram = &times->parts[part];
		uint64		sum = pg_atomic_read_u64(&histogram->sum);

		for (int bucket = 0; bucket < BUCKETS; bucket++)
		{
			uint64		count = pg_atomic_read_u64(&histogram->counts[bucket]);
			Datum		values[4];
			bool		nulls[4] = {0};

			if (count == 0)
				continue;
			values[0] = CStringGetTextDatum(names[part]);
			values[1] = Float8GetDatum(bucket == BUCKETS - 1 ? get_float8_infinity() :
									   exp2((double) bucket / BUCKETS_EACH_OCTAVE) / 1000);
			values[2] = Int64GetDatum((int64) count);
			values[3] = Float8GetDatum((double) sum / 1000);
			tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
		}
	}
	return (Datum) 0;
}
