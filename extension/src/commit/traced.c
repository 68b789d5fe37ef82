/*-------------------------------------------------------------------------
 *
 * traced.c
 *	  The last COMMITs of this server of which the node makes traces: one in
 *	  onetrip.trace_every, by the number of the transaction, so that the node
 *	  knows without being told which ones it should time, too.
 *
 * A COMMIT notes itself in a ring in shared memory after it is published, under
 * a spinlock, and allocates nothing; the node reads the ring once a second
 * (onetrip.traced_commits()).  What is overwritten before it is read has no
 * trace.  A restart of the server empties the ring.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "shmem/shmem.h"

#define TRACED_KEPT 4096

/* The node has timed the parts of the verdict itself. */
#define TRACED_PARTS (OT_COMMIT_WHOLE + 1)

typedef struct Trace
{
	OtTxnId		txn;
	OtLogIndex	entry;
	TimestampTz end;			/* of the whole */
	uint64		us[TRACED_PARTS];	/* microseconds */
	bool		everywhere;		/* it has that part */
	uint64		bytes;
	Oid			role;
	char		application[NAMEDATALEN];
} Trace;

typedef struct Traced
{
	slock_t		mutex;
	uint64		count;			/* since the server started */
	Trace		items[TRACED_KEPT]; /* number n, from 1, is at n % TRACED_KEPT */
} Traced;

static Traced *traced = NULL;

PG_FUNCTION_INFO_V1(ot_traced_commits);

static void
traced_attach_memory(void *memory, bool found)
{
	traced = memory;
	if (found)
		return;
	SpinLockInit(&traced->mutex);
	traced->count = 0;
}

void
ot_traced_init(void)
{
	static const OtShmemPart part = {"onetrip traced commits", sizeof(Traced), traced_attach_memory};

	ot_shmem_add(&part);
}

/* This session's COMMIT is over, and took that long; `us` as in the histograms. */
void
ot_traced_note(OtTxnId txn, OtLogIndex entry, uint64 bytes, const uint64 *us, bool everywhere)
{
	Trace		trace;
	uint64		n;

	memset(&trace, 0, sizeof(trace));
	trace.txn = txn;
	trace.entry = entry;
	trace.end = GetCurrentTimestamp();
	memcpy(trace.us, us, sizeof(trace.us));
	trace.everywhere = everywhere;
	trace.bytes = bytes;
	trace.role = GetSessionUserId();
	strlcpy(trace.application, application_name ? application_name : "", sizeof(trace.application));
	SpinLockAcquire(&traced->mutex);
	n = ++traced->count;
	traced->items[n % TRACED_KEPT] = trace;
	SpinLockRelease(&traced->mutex);
}

/* Copies number n; false if it is not there any more, or not yet. */
static bool
traced_read(uint64 n, Trace *trace)
{
	bool		there;

	SpinLockAcquire(&traced->mutex);
	there = n > 0 && n <= traced->count && n + TRACED_KEPT > traced->count;
	if (there)
		*trace = traced->items[n % TRACED_KEPT];
	SpinLockRelease(&traced->mutex);
	return there;
}

/* onetrip.traced_commits(after bigint) returns setof record. */
Datum
ot_traced_commits(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	uint64		n = (uint64) Max(PG_GETARG_INT64(0), 0) + 1;
	uint64		count;

	ot_check_running();
	InitMaterializedSRF(fcinfo, 0);
	SpinLockAcquire(&traced->mutex);
	count = traced->count;
	SpinLockRelease(&traced->mutex);
	if (count > TRACED_KEPT)
		n = Max(n, count - TRACED_KEPT + 1);
	for (; n <= count; n++)
	{
		Trace		trace;
		Datum		values[4 + TRACED_PARTS + 3];
		bool		nulls[4 + TRACED_PARTS + 3] = {0};
		char		id[OT_TXN_ID_TEXT_MAX];
		int			at = 0;

		/* it may be overwritten meanwhile */
		if (!traced_read(n, &trace))
			continue;
		/* a name that was cut may end within a character */
		trace.application[pg_mbcliplen(trace.application, strlen(trace.application),
									   sizeof(trace.application) - 1)] = '\0';
		values[at++] = Int64GetDatum((int64) n);
		values[at++] = CStringGetTextDatum(ot_txn_to_text(trace.txn, id));
		values[at++] = Int64GetDatum((int64) trace.entry.value);
		values[at++] = TimestampTzGetDatum(trace.end);
		for (int part = 0; part < TRACED_PARTS; part++)
		{
			nulls[at] = part == OT_COMMIT_EVERYWHERE && !trace.everywhere;
			values[at++] = Int64GetDatum((int64) trace.us[part]);
		}
		values[at++] = Int64GetDatum((int64) trace.bytes);
		values[at++] = ObjectIdGetDatum(trace.role);
		values[at++] = CStringGetTextDatum(trace.application);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
