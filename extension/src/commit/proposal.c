/*-------------------------------------------------------------------------
 *
 * proposal.c
 *	  Sends PROPOSE and waits for the verdict, over as many connections to the
 *	  node as it takes.
 *
 * What may be done if something goes wrong depends on whether PROPOSE has ever
 * been sent completely: commit.c is told at that moment, and the table at its
 * top says what follows.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "capture/capture.h"

/*
 * An entry that travels in parts (1 MiB and more) is given so many milliseconds
 * more than onetrip.commit_timeout for each MiB.
 */
#define MS_PER_MB 250
/* One that other regions write while it arrives waits for them, too (crates/core/src/parts.rs). */
#define EARLY_MB 8
#define EARLY_MS 5000

static void
proposal_raise_unreachable(OtAgent *a)
{
	ereport(ERROR,
			(errcode(OT_ERR_NOT_NOW),
			 errmsg("the node of region \"%s\" does not answer, nothing was committed", ot_region),
			 ot_agent_is_open(a) ?
			 errdetail("It has not taken the transaction within onetrip.commit_timeout.") :
			 errdetail("%s.", ot_agent_error(a)),
			 ot_agent_is_open(a) ?
			 errhint("See what its log says, then repeat the transaction.") :
			 errhint("Start the node (onetrip start), then repeat the transaction.")));
}

/*
 * A proposal, made on one connection after another until the verdict has come.
 *
 *	UNCONNECTED		there is no connection, and nothing in its buffer
 *	CONNECTED		PROPOSE is not in the connection's buffer
 *	SENDING			it is, but not completely sent: nothing can be in the log
 *	SENT			completely sent for the first time
 *	RESENDING		like SENDING, but completely sent on an earlier connection
 *	RESENT			completely sent once more
 *	ANSWERED		the verdict has come
 */
typedef enum ProposalState
{
	PROPOSAL_UNCONNECTED = 0,
	PROPOSAL_CONNECTED,
	PROPOSAL_SENDING,
	PROPOSAL_SENT,
	PROPOSAL_RESENDING,
	PROPOSAL_RESENT,
	PROPOSAL_ANSWERED
} ProposalState;

#define FROM(state) (1 << PROPOSAL_##state)

/*
 * The states from which each of them may be entered.  A connection may end at
 * any time before the answer.
 */
static const int proposal_before[] = {
	[PROPOSAL_UNCONNECTED] = ~FROM(ANSWERED),
	[PROPOSAL_CONNECTED] = FROM(UNCONNECTED),
	[PROPOSAL_SENDING] = FROM(CONNECTED),
	[PROPOSAL_SENT] = FROM(SENDING),
	[PROPOSAL_RESENDING] = FROM(CONNECTED),
	[PROPOSAL_RESENT] = FROM(RESENDING),
	/* a node without room may answer before it has got all of PROPOSE */
	[PROPOSAL_ANSWERED] = FROM(SENDING) | FROM(SENT) | FROM(RESENDING) | FROM(RESENT)
};

typedef struct Proposal
{
	OtAgent    *agent;
	ProposalState state;
	bool		may_be_logged;	/* it was completely sent, on this connection or
								 * an earlier one */
	OtTxnId		txn;
	TimestampTz deadline;
	int			size_mb;		/* of the entry, rounded down */
	TimestampTz cut_short_at;	/* when an interrupt came that can no longer end
								 * the transaction; 0: none has come */
	OtVerdict  *verdict;
} Proposal;

static void
proposal_enter(Proposal *proposal, ProposalState next)
{
	OT_ASSERT(proposal_before[next] & (1 << proposal->state));
	proposal->state = next;
}

static void
proposal_connect(Proposal *proposal)
{
	if (ot_commit_connect())
		proposal_enter(proposal, PROPOSAL_CONNECTED);
}

/* Puts PROPOSE into the connection's buffer. */
static void
proposal_queue(Proposal *proposal)
{
	StringInfo	frame;
	int			before;

	if (proposal->may_be_logged)
		OT_STOP_POINT("propose-again");
	frame = ot_agent_frame(proposal->agent, OT_FRAME_PROPOSE);
	before = frame->len;
	ot_write_set_encode(proposal->txn, frame);
	ot_cost_bytes(frame->len - before);
	proposal->size_mb = (frame->len - before) >> 20;
	ot_agent_frame_end(proposal->agent);
	proposal_enter(proposal, proposal->may_be_logged ? PROPOSAL_RESENDING : PROPOSAL_SENDING);
	OT_STOP_POINT_AFTER("propose-half", (void) ot_agent_flush_half(proposal->agent));
}

/*
 * Nothing is proposed yet, so any interrupt ends the transaction as in
 * PostgreSQL.
 */
static void
proposal_serve_interrupts(void)
{
	RESUME_INTERRUPTS();
	CHECK_FOR_INTERRUPTS();
	HOLD_INTERRUPTS();
}

static void
proposal_send(Proposal *proposal)
{
	if (!ot_agent_flush(proposal->agent) || !ot_agent_all_sent(proposal->agent))
		return;
	if (proposal->state == PROPOSAL_RESENDING)
		proposal_enter(proposal, PROPOSAL_RESENT);
	else
	{
		proposal_enter(proposal, PROPOSAL_SENT);
		proposal->may_be_logged = true;
		if (proposal->cut_short_at == 0)
			proposal->deadline = TimestampTzPlusMilliseconds(proposal->deadline,
															 (int64) proposal->size_mb * MS_PER_MB +
															 (proposal->size_mb >= EARLY_MB ? EARLY_MS : 0));
		ot_commit_proposed();
		OT_STOP_POINT("propose-sent");
	}
}

/*
 * Takes a VERDICT frame, if it is for this transaction.  Closes the connection
 * if the proposal has to be sent again on another one.
 */
static void
proposal_take_verdict(Proposal *proposal, OtReader *body)
{
	OtVerdict  *verdict = proposal->verdict;
	bool		sent_before = proposal->state == PROPOSAL_RESENDING ||
		proposal->state == PROPOSAL_RESENT;

	if (!ot_agent_get_verdict(body, verdict))
	{
		/* It will come again on the next connection. */
		ot_agent_close_damaged(proposal->agent, OT_FRAME_VERDICT);
		return;
	}
	ot_agent_consume(proposal->agent);
	if (verdict->txn.sequence != proposal->txn.sequence)
		return;
	/* This attempt was refused, but what was sent before may be in the log. */
	if (sent_before && (verdict->outcome == OT_OUTCOME_REFUSED ||
						verdict->outcome == OT_OUTCOME_FULL))
		ot_agent_close(proposal->agent);
	else
		proposal_enter(proposal, PROPOSAL_ANSWERED);
}

static void
proposal_read(Proposal *proposal)
{
	OtFrameType type;
	OtReader	body;

	while (proposal->state != PROPOSAL_ANSWERED && ot_agent_read(proposal->agent, &type, &body))
	{
		if (type == OT_FRAME_VERDICT)
			proposal_take_verdict(proposal, &body);
		else if (type == OT_FRAME_WELCOME || type == OT_FRAME_OUTCOME_IS ||
				 type == OT_FRAME_REHEARSED || type == OT_FRAME_READ_AT ||
				 type == OT_FRAME_SHOWN || type == OT_FRAME_SEEN ||
				 type == OT_FRAME_LOCKED)
			ot_agent_consume(proposal->agent);
		else
			ot_agent_close(proposal->agent);
	}
	if (proposal->state != PROPOSAL_ANSWERED && !ot_agent_is_open(proposal->agent))
		proposal_enter(proposal, PROPOSAL_UNCONNECTED);
}

/* Waits for the node, and raises ERROR at the deadline. */
static void
proposal_wait(Proposal *proposal)
{
	long		wait_ms;

	/*
	 * It is proposed, so an interrupt can only lead to an unknown outcome, and
	 * only after a short time in which the verdict may come.
	 */
	if (proposal->cut_short_at == 0 && (ProcDiePending || QueryCancelPending))
	{
		proposal->cut_short_at = ot_now();
		proposal->deadline = Min(proposal->deadline,
								 TimestampTzPlusMilliseconds(proposal->cut_short_at, CANCEL_GRACE_MS));
	}

	wait_ms = ot_ms_until(proposal->deadline);
	if (wait_ms == 0)
	{
		if (!proposal->may_be_logged)
			proposal_raise_unreachable(proposal->agent);
		ot_commit_raise_unknown(proposal->txn);
	}
	if (proposal->state == PROPOSAL_UNCONNECTED)
		wait_ms = Min(wait_ms, RECONNECT_MS);
	ot_agent_wait(proposal->agent, wait_ms);
}

/*
 * Proposes the transaction, again on each new connection, until the verdict has
 * come.  The caller holds interrupts.
 */
void
ot_propose(OtAgent *agent, OtTxnId txn, OtVerdict *verdict)
{
	Proposal	proposal = {
		.agent = agent,
		.state = ot_agent_is_open(agent) ? PROPOSAL_CONNECTED : PROPOSAL_UNCONNECTED,
		.txn = txn,
		.deadline = TimestampTzPlusMilliseconds(ot_now(), ot_commit_timeout_ms),
		.verdict = verdict,
	};

	for (;;)
	{
		if (proposal.state == PROPOSAL_UNCONNECTED)
			proposal_connect(&proposal);
		if (proposal.state == PROPOSAL_CONNECTED)
			proposal_queue(&proposal);
		if (InterruptPending && !proposal.may_be_logged)
			proposal_serve_interrupts();
		if (proposal.state == PROPOSAL_SENDING || proposal.state == PROPOSAL_RESENDING)
			proposal_send(&proposal);
		if (proposal.state != PROPOSAL_UNCONNECTED)
			proposal_read(&proposal);
		if (proposal.state == PROPOSAL_ANSWERED)
			return;
		proposal_wait(&proposal);
	}
}
