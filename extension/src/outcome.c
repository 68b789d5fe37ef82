/*-------------------------------------------------------------------------
 *
 * outcome.c
 *	  SQL functions about the log: outcome(), advance(), status.
 *
 * Runs in backends; talks to the node over the backend's own connection.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "onetrip.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "agent.h"
#include "turn.h"

PG_FUNCTION_INFO_V1(ot_outcome);
PG_FUNCTION_INFO_V1(ot_advance);
PG_FUNCTION_INFO_V1(ot_local_status);

/* Asks the node; ERROR if it does not answer within onetrip.commit_timeout. */
static uint8
ask_outcome(OtTxnId txn, OtLogIndex *at)
{
	OtAgent    *agent = ot_commit_agent();
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													   ot_commit_timeout_ms);
	bool		asked = false;

	for (;;)
	{
		OtFrameType type;
		OtReader	body;
		long		left;

		if (!ot_agent_is_open(agent))
		{
			OtLogIndex	none = {0};

			asked = false;
			(void) ot_agent_open(agent, OT_ROLE_BACKEND, none, none);
		}
		if (ot_agent_is_open(agent) && !asked)
		{
			StringInfo	frame = ot_agent_frame(agent, OT_FRAME_OUTCOME);

			ot_put_txn(frame, txn);
			ot_agent_frame_end(agent);
			asked = true;
		}
		(void) ot_agent_flush(agent);
		while (ot_agent_read(agent, &type, &body))
		{
			if (type == OT_FRAME_OUTCOME_IS)
			{
				OtOutcomeIs answer;

				ot_agent_get_outcome_is(&body, &answer);
				ot_agent_consume(agent);
				if (answer.txn.node == txn.node &&
					answer.txn.incarnation == txn.incarnation &&
					answer.txn.sequence == txn.sequence)
				{
					*at = answer.at;
					return answer.state;
				}
			}
			else
				ot_agent_consume(agent);
		}
		CHECK_FOR_INTERRUPTS();
		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);
		if (left <= 0)
			ereport(ERROR,
					(errcode(OT_ERR_NOT_NOW),
					 errmsg("the node of region \"%s\" does not answer", ot_region),
					 errdetail("%s.", ot_agent_error(agent)),
					 errhint("Start the node (onetrip start), or ask in another region.")));
		if (ot_agent_wait(agent, ot_agent_is_open(agent) ? left : Min(left, 50),
						  PG_WAIT_EXTENSION) & WL_LATCH_SET)
			ResetLatch(MyLatch);
	}
}

/* onetrip.outcome(text) returns text */
Datum
ot_outcome(PG_FUNCTION_ARGS)
{
	char	   *id = text_to_cstring(PG_GETARG_TEXT_PP(0));
	OtTxnId		txn;
	OtLogIndex	at;

	ot_check_running();
	if (!ot_txn_from_text(id, &txn))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
				 errmsg("\"%s\" is not a transaction id of Onetrip", id),
				 errhint("It looks like 2-9f1c0a77d2e45b60-1a, as the error with SQLSTATE 08007 said.")));
	switch (ask_outcome(txn, &at))
	{
		case 0:
			PG_RETURN_TEXT_P(cstring_to_text("unknown"));
		case 1:
			PG_RETURN_TEXT_P(cstring_to_text(psprintf("committed at " UINT64_FORMAT, at.value)));
		case 2:
			PG_RETURN_TEXT_P(cstring_to_text("aborted"));
		default:
			PG_RETURN_TEXT_P(cstring_to_text("forgotten"));
	}
}

/* onetrip.advance(): makes this transaction an entry though it changes nothing. */
Datum
ot_advance(PG_FUNCTION_ARGS)
{
	ot_check_running();
	PreventCommandIfReadOnly("onetrip.advance()");
	if (!ot_capturing())
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("this process does not capture changes")));
	ot_write_set_advance();
	PG_RETURN_VOID();
}

/* onetrip.local_status(): one row about this server. */
Datum
ot_local_status(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[9];
	bool		nulls[9] = {0};
	OtLogIndex	applying;

	ot_check_running();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	SpinLockAcquire(&ot_shared->mutex);
	applying = ot_shared->applying;
	SpinLockRelease(&ot_shared->mutex);

	values[0] = CStringGetTextDatum(ot_region);
	values[1] = Int32GetDatum(ot_node_id);
	values[2] = Int64GetDatum((int64) ot_applied_index().value);
	values[3] = Int64GetDatum((int64) ot_durable_index().value);
	values[4] = Int64GetDatum((int64) applying.value);
	nulls[4] = applying.value == 0;
	values[5] = BoolGetDatum(ot_shared->worker >= 0);
	values[6] = Int64GetDatum((int64) pg_atomic_read_u64(&ot_shared->next_sequence));
	values[7] = Int64GetDatum((int64) pg_atomic_read_u64(&ot_shared->evictions));
	values[8] = Int64GetDatum((int64) pg_atomic_read_u64(&ot_shared->handovers));
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
