/*-------------------------------------------------------------------------
 *
 * outcome.c
 *	  SQL functions that tell what became of a transaction: outcome() and
 *	  current_transaction_id(); also advance() and local_status().
 *
 * The functions run in backends and talk to the node over the backend's own
 * connection.  The last part runs in the apply worker: it asks the node to
 * settle transactions that backends have given up on (docs/agent-protocol.md,
 * "What nobody waits for any more").
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "capture/capture.h"
#include "shmem/shmem.h"

PG_FUNCTION_INFO_V1(ot_outcome);
PG_FUNCTION_INFO_V1(ot_outcome_settle);
PG_FUNCTION_INFO_V1(ot_current_transaction_id);
PG_FUNCTION_INFO_V1(ot_advance);
PG_FUNCTION_INFO_V1(ot_local_status);

static void
outcome_put_question(StringInfo frame, void *state)
{
	ot_put_txn(frame, ((OtOutcomeIs *) state)->txn);
}

static OtTaken
outcome_take_answer(OtReader *body, void *state)
{
	OtOutcomeIs *asked = state;
	OtOutcomeIs answer;

	if (!ot_agent_get_outcome_is(body, &answer))
		return OT_TAKEN_DAMAGED;
	if (answer.txn.node != asked->txn.node ||
		answer.txn.incarnation != asked->txn.incarnation ||
		answer.txn.sequence != asked->txn.sequence)
		return OT_TAKEN_OTHER;
	*asked = answer;
	return OT_TAKEN_ANSWER;
}

static void
outcome_raise_no_answer(OtFrameType type, OtTxnId txn)
{
	OtAgent    *agent = ot_commit_agent();
	char		text[OT_TXN_ID_TEXT_MAX];

	if (type == OT_FRAME_SETTLE && ot_agent_is_open(agent))
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("transaction %s could not be settled within onetrip.commit_timeout", ot_txn_to_text(txn, text)),
				 errdetail("The node of region \"%s\" answers once a majority of regions has settled it.", ot_region),
				 errhint("Ask in another region, or again later. onetrip status says which regions are missing.")));
	ereport(ERROR,
			(errcode(OT_ERR_NOT_NOW),
			 errmsg("the node of region \"%s\" does not answer", ot_region),
			 ot_agent_is_open(agent) ?
			 errdetail("It did not within onetrip.commit_timeout.") :
			 errdetail("%s.", ot_agent_error(agent)),
			 ot_agent_is_open(agent) ?
			 errhint("See what its log says, or ask in another region.") :
			 errhint("Start the node (onetrip start), or ask in another region.")));
}

/*
 * Asks the node for an outcome, with an OUTCOME or SETTLE frame.  Raises ERROR
 * if it does not answer within onetrip.commit_timeout.
 */
static uint8
outcome_ask_outcome(OtFrameType type, OtTxnId txn, OtLogIndex *at)
{
	OtOutcomeIs outcome = {.txn = txn};
	OtQuestion	question = {
		.type = type,
		.answer = OT_FRAME_OUTCOME_IS,
		.put = outcome_put_question,
		.take = outcome_take_answer,
		.state = &outcome,
	};

	if (!ot_ask(&question, TimestampTzPlusMilliseconds(ot_now(), ot_commit_timeout_ms)))
		outcome_raise_no_answer(type, txn);
	*at = outcome.at;
	return outcome.state;
}

static Datum
outcome_of_text(char *id, bool settle)
{
	OtTxnId		txn;
	OtLogIndex	at;

	ot_check_running();
	if (!ot_txn_from_text(id, &txn))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
				 errmsg("\"%s\" is not a transaction id of Onetrip", id),
				 errhint("A transaction id looks like 2-9f1c0a77d2e45b60-1a; the error with SQLSTATE 08007 contains it.")));
	/* If a made-up id were settled, the transaction that gets it would fail. */
	if (settle && txn.node == (uint32) ot_node_id &&
		txn.incarnation == ot_incarnation() &&
		txn.sequence > ot_last_drawn_sequence())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("transaction id %s has not been given out", id)));
	if (settle)
		ot_trips_take("settle a transaction", 1);
	switch (outcome_ask_outcome(settle ? OT_FRAME_SETTLE : OT_FRAME_OUTCOME, txn, &at))
	{
		case OT_STATE_NOT_SO_FAR:
			PG_RETURN_TEXT_P(cstring_to_text("unknown"));
		case OT_STATE_COMMITTED:
			PG_RETURN_TEXT_P(cstring_to_text(psprintf("committed at " UINT64_FORMAT, at.value)));
		case OT_STATE_PREPARED:
			PG_RETURN_TEXT_P(cstring_to_text(psprintf("prepared at " UINT64_FORMAT, at.value)));
		case OT_STATE_LEFT_OUT:
			PG_RETURN_TEXT_P(cstring_to_text(psprintf("left out at " UINT64_FORMAT, at.value)));
		case OT_STATE_ABORTED:
			PG_RETURN_TEXT_P(cstring_to_text("aborted"));
		default:
			PG_RETURN_TEXT_P(cstring_to_text("forgotten"));
	}
}

/* onetrip.outcome(text) returns text */
Datum
ot_outcome(PG_FUNCTION_ARGS)
{
	return outcome_of_text(text_to_cstring(PG_GETARG_TEXT_PP(0)), false);
}

/* onetrip.outcome(text, settle boolean) returns text */
Datum
ot_outcome_settle(PG_FUNCTION_ARGS)
{
	return outcome_of_text(text_to_cstring(PG_GETARG_TEXT_PP(0)), PG_GETARG_BOOL(1));
}

static void
outcome_check_capturing(void)
{
	if (!ot_capturing())
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("this process does not capture changes"),
				 errdetail("Sessions of the replicated database do, outside of the script of an extension.")));
}

/* onetrip.current_transaction_id() returns text: the id that COMMIT will use */
Datum
ot_current_transaction_id(PG_FUNCTION_ARGS)
{
	char		id[OT_TXN_ID_TEXT_MAX];

	ot_check_running();
	PreventCommandIfReadOnly("onetrip.current_transaction_id()");
	outcome_check_capturing();
	PG_RETURN_TEXT_P(cstring_to_text(ot_txn_to_text(ot_commit_tell_id(), id)));
}

/* onetrip.advance(): makes this transaction an entry, even without changes. */
Datum
ot_advance(PG_FUNCTION_ARGS)
{
	ot_check_running();
	PreventCommandIfReadOnly("onetrip.advance()");
	outcome_check_capturing();
	ot_write_set_advance();
	PG_RETURN_VOID();
}

/* onetrip.local_status(): one row about this server. */
Datum
ot_local_status(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[13];
	bool		nulls[13] = {0};
	OtLogIndex	applying;
	OtLogIndex	failing;
	int			failures;
	char		failure[sizeof(ot_worker->failure)];

	ot_check_running();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	SpinLockAcquire(&ot_worker->mutex);
	applying = ot_worker->applying;
	failing = ot_worker->failing;
	failures = ot_worker->failures;
	memcpy(failure, ot_worker->failure, sizeof(failure));
	SpinLockRelease(&ot_worker->mutex);

	values[0] = CStringGetTextDatum(ot_region);
	values[1] = Int32GetDatum(ot_node_id);
	values[2] = Int64GetDatum((int64) ot_applied_index().value);
	values[3] = Int64GetDatum((int64) ot_durable_index().value);
	values[4] = Int64GetDatum((int64) applying.value);
	nulls[4] = applying.value == 0;
	values[5] = BoolGetDatum(ot_worker->worker >= 0);
	values[6] = Int64GetDatum((int64) ot_last_drawn_sequence());
	values[7] = Int64GetDatum((int64) pg_atomic_read_u64(&ot_slots->evictions));
	values[8] = Int64GetDatum((int64) ot_turn_handovers());
	if (failing.value > ot_applied_index().value)
	{
		values[9] = Int64GetDatum((int64) failing.value);
		/* a message that was cut may end within a character */
		failure[pg_mbcliplen(failure, strlen(failure), sizeof(failure) - 1)] = '\0';
		/* it may contain values of rows */
		nulls[10] = !has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
		values[10] = CStringGetTextDatum(psprintf("%s (%d times)", failure, failures));
	}
	else
		nulls[9] = nulls[10] = true;
	values[11] = Int64GetDatum((int64) pg_atomic_read_u64(&ot_worker->entries));
	values[12] = Int64GetDatum((int64) pg_atomic_read_u64(&ot_worker->transactions));
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/* ---- in the apply worker ---- */

/* How many are asked for at a time; the rest follows when these are decided. */
#define SETTLE_AT_ONCE 256
/* How long to wait for proposals that may still be on their way to the log. */
#define SETTLE_GRACE_MS 500

/*
 * The transactions that ot_turn_left_open() gives are first asked for with
 * OUTCOME: by the time the node answers, it has read what was proposed before.
 * If not all are decided, they are asked for with SETTLE a while later.  Those that
 * were proposed come first.
 */
static struct
{
	OtFrameType question;
	bool		proposed;		/* those that are asked for */
	int			asked;			/* how many, on this connection */
	int			heard;			/* how many of these have been answered */
	bool		all_decided;	/* ... each with a final outcome */
	TimestampTz settle_at;
}			settling;

static void
outcome_ask_for_left_open(OtAgent *agent, OtFrameType question, bool proposed, int max)
{
	OtTxnId		txns[SETTLE_AT_ONCE];

	settling.question = question;
	settling.proposed = proposed;
	settling.asked = ot_turn_left_open(proposed, txns, max);
	settling.heard = 0;
	settling.all_decided = true;
	for (int i = 0; i < settling.asked; i++)
	{
		ot_put_txn(ot_agent_frame(agent, question), txns[i]);
		ot_agent_frame_end(agent);
	}
}

/*
 * Called for a new connection to the node: everything that was asked on an
 * earlier one is asked again.
 */
void
ot_settle_connected(void)
{
	settling.asked = 0;
}

void
ot_settle_ask(OtAgent *agent)
{
	if (!ot_agent_is_open(agent))
		return;
	if (settling.asked == 0)
		outcome_ask_for_left_open(agent, OT_FRAME_OUTCOME, true, SETTLE_AT_ONCE);
	if (settling.asked == 0)
		outcome_ask_for_left_open(agent, OT_FRAME_OUTCOME, false, SETTLE_AT_ONCE);
	else if (settling.heard == settling.asked && ot_now() >= settling.settle_at)
		outcome_ask_for_left_open(agent, OT_FRAME_SETTLE, settling.proposed, settling.asked);
}

/* Takes the answer to one of the questions.  false: it cannot be read. */
bool
ot_settle_heard(OtReader *body)
{
	OtOutcomeIs is;

	if (!ot_agent_get_outcome_is(body, &is))
		return false;
	settling.all_decided = settling.all_decided && is.state != OT_STATE_NOT_SO_FAR;
	if (++settling.heard < settling.asked)
		return true;
	if (settling.all_decided)
		ot_turn_settled(settling.proposed, settling.asked);
	if (settling.all_decided || settling.question == OT_FRAME_SETTLE)
		settling.asked = 0;
	else
		settling.settle_at = TimestampTzPlusMilliseconds(ot_now(),
														 SETTLE_GRACE_MS);
	return true;
}
