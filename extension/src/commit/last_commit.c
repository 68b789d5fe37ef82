/*-------------------------------------------------------------------------
 *
 * last_commit.c
 *	  What the last COMMIT of this session cost: onetrip.last_commit(), and the
 *	  notice of onetrip.commit_notices; each adds to the server's histograms
 *	  (shmem/commit_times.c).
 *
 * The parts of a COMMIT, as this process sees them:
 *
 *	prepare		locks' keys, rehearsal of statements in other regions
 *	verdict		from PROPOSE to the verdict: the one crossing of regions, the log.
 *				The node says how long two parts of it took, on its own clock,
 *				which goes as fast as this one; the third is the rest:
 *		propose		to the node, and its answer's way back
 *		replicate	until the node knew that a majority has the entry
 *		certify		until it had decided it
 *	turn		until all earlier entries are committed here
 *	local		PostgreSQL's own commit, until it is published
 *	everywhere	with onetrip.ack = applied_everywhere, until the other regions
 *				show it too
 *
 * Runs in backends.  What is called between the verdict and the local commit
 * reads a clock and allocates nothing.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "access/htup_details.h"
#include "catalog/pg_collation.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "shmem/shmem.h"

PG_FUNCTION_INFO_V1(ot_last_commit);
PG_FUNCTION_INFO_V1(ot_last_commit_parts);

#define LAST_COMMIT_COLUMNS 10	/* of version 0.1 of the objects */
#define LAST_COMMIT_PARTS 3

typedef struct CommitCost
{
	OtTxnId		txn;
	OtLogIndex	entry;
	uint64		bytes;
	int			trips;
	char		held_by[256];	/* regions, as the VERDICT says */
	bool		has_times;		/* the VERDICT says these, in microseconds */
	uint64		replicate_us;
	uint64		certify_us;
	bool		everywhere;		/* waited for the other regions to show it */
	instr_time	marks[OT_COST_MARKS];
} CommitCost;

static CommitCost present;		/* of the COMMIT under way */
static CommitCost last;			/* entry 0: none yet */
static bool notice_due;			/* the client wants to be told what "last" cost, and has not been */

/* A COMMIT that crosses regions begins. */
void
ot_cost_begin(OtTxnId txn, int trips)
{
	memset(&present, 0, sizeof(present));
	present.txn = txn;
	present.trips = trips;
	ot_cost_mark(OT_COST_BEGUN);
}

void
ot_cost_mark(OtCostMark mark)
{
	INSTR_TIME_SET_CURRENT(present.marks[mark]);
}

/* The size of its PROPOSE frame. */
void
ot_cost_bytes(uint64 bytes)
{
	present.bytes = bytes;
}

static uint64
cost_microseconds(const CommitCost *cost, OtCostMark from, OtCostMark to)
{
	instr_time	part = cost->marks[to];

	INSTR_TIME_SUBTRACT(part, cost->marks[from]);
	return INSTR_TIME_GET_MICROSEC(part);
}

/*
 * It was decided: whose disks had it by then, and how long that took.  A clock
 * that counts while the machine sleeps may have more than this process saw.
 */
void
ot_cost_decided(const OtVerdict *verdict)
{
	uint64		whole = cost_microseconds(&present, OT_COST_PROPOSED, OT_COST_DECIDED);

	strlcpy(present.held_by, verdict->message, sizeof(present.held_by));
	present.has_times = verdict->has_times && verdict->replicate_us <= whole &&
		verdict->certify_us <= whole - verdict->replicate_us;
	if (!present.has_times)
		return;
	present.replicate_us = verdict->replicate_us;
	present.certify_us = verdict->certify_us;
}

/* It is committed here. */
void
ot_cost_committed(OtLogIndex entry)
{
	ot_cost_mark(OT_COST_PUBLISHED);
	present.entry = entry;
}

/* What is left of the verdict's time. */
static uint64
cost_propose_us(const CommitCost *cost)
{
	return cost_microseconds(cost, OT_COST_PROPOSED, OT_COST_DECIDED) - cost->replicate_us - cost->certify_us;
}

/* Its client is going to be answered; has it waited for the other regions? */
void
ot_cost_end(bool everywhere)
{
	uint64		us[OT_COMMIT_PARTS];

	if (everywhere)
		ot_cost_mark(OT_COST_EVERYWHERE);
	present.everywhere = everywhere;
	last = present;
	notice_due = ot_commit_notices;
	memset(us, 0, sizeof(us));
	us[OT_COMMIT_PREPARE] = cost_microseconds(&last, OT_COST_BEGUN, OT_COST_PROPOSED);
	us[OT_COMMIT_VERDICT] = cost_microseconds(&last, OT_COST_PROPOSED, OT_COST_DECIDED);
	us[OT_COMMIT_TURN] = cost_microseconds(&last, OT_COST_DECIDED, OT_COST_TURN);
	us[OT_COMMIT_LOCAL] = cost_microseconds(&last, OT_COST_TURN, OT_COST_PUBLISHED);
	if (everywhere)
		us[OT_COMMIT_EVERYWHERE] = cost_microseconds(&last, OT_COST_PUBLISHED, OT_COST_EVERYWHERE);
	us[OT_COMMIT_WHOLE] = cost_microseconds(&last, OT_COST_BEGUN,
											everywhere ? OT_COST_EVERYWHERE : OT_COST_PUBLISHED);
	us[OT_COMMIT_PROPOSE] = cost_propose_us(&last);
	us[OT_COMMIT_REPLICATE] = last.replicate_us;
	us[OT_COMMIT_CERTIFY] = last.certify_us;
	for (int part = 0; part < OT_COMMIT_PARTS; part++)
	{
		if (part == OT_COMMIT_EVERYWHERE ? everywhere : part <= OT_COMMIT_WHOLE || last.has_times)
			ot_commit_time_note(part, us[part]);
	}
	if (unlikely(ot_trace_every > 0) && last.txn.sequence % ot_trace_every == 0)
		ot_traced_note(last.txn, last.entry, last.bytes, us, everywhere);
}

static Datum
last_commit_part(OtCostMark from)
{
	return Float8GetDatum(cost_microseconds(&last, from, from + 1) / 1000.0);
}

static Datum
last_commit(FunctionCallInfo fcinfo, int columns)
{
	TupleDesc	desc;
	Datum		values[LAST_COMMIT_COLUMNS + LAST_COMMIT_PARTS];
	bool		nulls[LAST_COMMIT_COLUMNS + LAST_COMMIT_PARTS] = {0};
	char		id[OT_TXN_ID_TEXT_MAX];

	ot_check_running();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE || desc->natts != columns)
		elog(ERROR, "return type must be a row type");
	if (last.entry.value == 0)
		PG_RETURN_NULL();
	values[0] = CStringGetTextDatum(ot_txn_to_text(last.txn, id));
	values[1] = Int64GetDatum((int64) last.entry.value);
	values[2] = Int64GetDatum((int64) last.bytes);
	values[3] = Int32GetDatum(last.trips);
	values[4] = DirectFunctionCall2Coll(text_to_array, C_COLLATION_OID,
										CStringGetTextDatum(last.held_by), CStringGetTextDatum(", "));
	/* after a lost connection the node does not say it again */
	nulls[4] = last.held_by[0] == '\0';
	values[5] = last_commit_part(OT_COST_BEGUN);
	values[6] = last_commit_part(OT_COST_PROPOSED);
	values[7] = last_commit_part(OT_COST_DECIDED);
	values[8] = last_commit_part(OT_COST_TURN);
	nulls[9] = !last.everywhere;
	if (last.everywhere)
		values[9] = last_commit_part(OT_COST_PUBLISHED);
	nulls[10] = nulls[11] = nulls[12] = !last.has_times;
	if (last.has_times)
	{
		values[10] = Float8GetDatum(cost_propose_us(&last) / 1000.0);
		values[11] = Float8GetDatum(last.replicate_us / 1000.0);
		values[12] = Float8GetDatum(last.certify_us / 1000.0);
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/* onetrip.last_commit() returns record; null if this session has had none. */
Datum
ot_last_commit_parts(PG_FUNCTION_ARGS)
{
	return last_commit(fcinfo, LAST_COMMIT_COLUMNS + LAST_COMMIT_PARTS);
}

/* The same in version 0.1 of the objects. */
Datum
ot_last_commit(PG_FUNCTION_ARGS)
{
	return last_commit(fcinfo, LAST_COMMIT_COLUMNS);
}

/* ---- the notice ---- */

static double
cost_ms(OtCostMark from, OtCostMark to)
{
	return cost_microseconds(&last, from, to) / 1000.0;
}

static void
cost_notice(void)
{
	StringInfoData parts;

	initStringInfo(&parts);
	appendStringInfo(&parts, "Prepare %.1f ms, verdict %.1f ms", cost_ms(OT_COST_BEGUN, OT_COST_PROPOSED),
					 cost_ms(OT_COST_PROPOSED, OT_COST_DECIDED));
	if (last.has_times)
		appendStringInfo(&parts, " (propose %.1f ms, replicate %.1f ms, certify %.1f ms)",
						 cost_propose_us(&last) / 1000.0, last.replicate_us / 1000.0, last.certify_us / 1000.0);
	appendStringInfo(&parts, ", turn %.1f ms, local commit %.1f ms",
					 cost_ms(OT_COST_DECIDED, OT_COST_TURN), cost_ms(OT_COST_TURN, OT_COST_PUBLISHED));
	if (last.everywhere)
		appendStringInfo(&parts, ", everywhere %.1f ms", cost_ms(OT_COST_PUBLISHED, OT_COST_EVERYWHERE));
	if (last.held_by[0] != '\0')
		appendStringInfo(&parts, "; on disk in %s", last.held_by);
	ereport(NOTICE,
			(errmsg_plural("entry %llu is committed, with %d round trip, in %.1f ms",
						   "entry %llu is committed, with %d round trips, in %.1f ms",
						   last.trips, (unsigned long long) last.entry.value, last.trips,
						   cost_ms(OT_COST_BEGUN, last.everywhere ? OT_COST_EVERYWHERE : OT_COST_PUBLISHED)),
			 errdetail_internal("%s.", parts.data)));
	pfree(parts.data);
}

/*
 * The transaction is committed and has no locks.  This is the middle of
 * CommitTransaction(), where an ERROR would be a PANIC, so whatever is raised
 * is let go; then there is no notice.
 */
static void
cost_after_locks(ResourceReleasePhase phase, bool is_commit, bool is_top_level, void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;

	if (likely(!notice_due) || phase != RESOURCE_RELEASE_AFTER_LOCKS || !is_top_level)
		return;
	notice_due = false;
	PG_TRY();
	{
		cost_notice();
	}
	PG_CATCH();
	{
		ot_swallow_error(context, holdoff);
	}
	PG_END_TRY();
}

void
ot_cost_init(void)
{
	RegisterResourceReleaseCallback(cost_after_locks, NULL);
}
