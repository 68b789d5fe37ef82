/*-------------------------------------------------------------------------
 *
 * rehearse.c
 *	  Has a transaction's statements tried in the other regions before they are
 *	  proposed.
 *
 * A statement that succeeds here and fails in another region would make that
 * region stand still: because an extension is not installed there, because a
 * role or a tablespace exists here only, or because a function reads something
 * that is different there.  So a COMMIT with statements first has the other
 * regions that can be reached carry out its whole write set and roll it back.
 * An error there becomes the error of the COMMIT here, before anything is
 * proposed.
 *
 * This helps, but guarantees nothing.  COMMIT does not wait for a region that
 * is away or busy; if the entry fails there after all, the region has to be
 * healed.  A region counts as busy if the failure goes away by itself, for
 * example if a lock is in the way.
 *
 * The other region may show entries that this server does not show yet.  If one
 * of them makes the write set fail, this transaction will find that out here,
 * as a conflict.  So before it believes a failure, it waits until this server
 * shows as much as the other did, and asks again, a few times at most.  If this
 * server does not get there, the failure says nothing, and the transaction has
 * to be repeated.
 *
 * rehearse_here.c tries the write set in the other region.
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
#include "utils/timestamp.h"

#include "capture/capture.h"
#include "ddl/ddl.h"
#include "shmem/shmem.h"

/*
 * After this many attempts, a failure is believed even if the other region has
 * got ahead again, but not before this server is there, too.
 */
#define ATTEMPTS 3
/* How much longer than the rehearsal itself the node's answer may take. */
#define NODE_GRACE_MS 3000
/*
 * A region that cannot say yet what statements come to is asked again, for so long
 * if it is not busy with entries.
 */
#define COMPARE_AGAIN_MS 100
#define COMPARE_PATIENCE_MS 3000

/* Sends the operations and reads the answer.  Returns false if none came. */
static bool
rehearse_send_and_read(OtAgent *agent, OtTxnId txn, OtLogIndex base, void (*put_operations) (StringInfo out),
					   OtRehearsed *answer)
{
	TimestampTz deadline =
		TimestampTzPlusMilliseconds(ot_now(), (int64) ot_rehearse_timeout_ms + NODE_GRACE_MS);
	StringInfo	frame;

	if (!ot_agent_is_open(agent) && !ot_commit_connect())
		return false;
	frame = ot_agent_frame(agent, OT_FRAME_REHEARSE);
	ot_put_txn(frame, txn);
	ot_put_u64(frame, base.value);
	ot_put_u32(frame, ot_rehearse_timeout_ms);
	ot_put_u32(frame, ot_rehearse_lock_timeout_ms);
	put_operations(frame);
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
				if (!ot_agent_get_rehearsed(&body, answer))
				{
					memset(answer, 0, sizeof(*answer));
					ot_agent_close_damaged(agent, type);
					return false;
				}
				ot_agent_consume(agent);
				if (answer->txn.sequence == txn.sequence)
					return true;
			}
			else
			{
				/* It is too large, or there is no room: COMMIT says so. */
				ot_agent_consume(agent);
				if (type == OT_FRAME_VERDICT)
					return false;
			}
		}
		wait_ms = ot_ms_until(deadline);
		if (!ot_agent_is_open(agent) || wait_ms == 0)
		{
			/* A late answer must not be taken for that to a later question. */
			ot_agent_close(agent);
			return false;
		}
		ot_agent_wait(agent, wait_ms);
		CHECK_FOR_INTERRUPTS();
	}
}

static bool
rehearse_ask_node(OtAgent *agent, OtTxnId txn, OtLogIndex base, void (*put_operations) (StringInfo out),
				  OtRehearsed *answer)
{
	bool		answered;

	PG_TRY();
	{
		answered = rehearse_send_and_read(agent, txn, base, put_operations, answer);
	}
	PG_CATCH();
	{
		/* the transaction may go on, and ask again */
		ot_agent_close(agent);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return answered;
}

/*
 * `is_compared`: it was carried out beside other DDL, which may be why it fails there.
 * The next attempt shares with nobody, and so finds out.
 */
static void
rehearse_raise_failure(const OtRehearsed *answer, bool is_compared)
{
	const char *code = answer->sqlstate;

	if (is_compared)
	{
		ot_ddl_share_lost();
		ereport(ERROR,
				(errcode(OT_ERR_LOST),
				 errmsg("could not commit: a statement fails in region \"%s\", perhaps because of other DDL that was carried out at the same time in region \"%s\"",
						answer->region, ot_region),
				 errdetail("Region \"%s\": %s (SQLSTATE %s).", answer->region, answer->message, code),
				 errhint("Nothing was committed. Retry the transaction: it will wait for the DDL of other sessions.")));
	}
	ereport(ERROR,
			(errcode(strlen(code) == 5 ?
					 MAKE_SQLSTATE(code[0], code[1], code[2], code[3], code[4]) : ERRCODE_INTERNAL_ERROR),
			 errmsg("could not commit: a statement fails in region \"%s\": %s",
					answer->region, answer->message),
			 answer->detail[0] != '\0' ?
			 errdetail("%s", answer->detail) : 0,
			 answer->hint[0] != '\0' ?
			 errhint("In region \"%s\": %s", answer->region, answer->hint) :
			 errhint("Nothing was committed. Fix the cause in region \"%s\" and repeat the transaction.",
					 answer->region),
			 answer->context[0] != '\0' ?
			 errcontext("in region \"%s\": %s", answer->region, answer->context) : 0));
}

static void
rehearse_raise_behind(const OtRehearsed *answer)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not commit: region \"%s\" is behind region \"%s\", where a statement fails: %s",
					ot_region, answer->region, answer->message),
			 errdetail("It fails at log index " UINT64_FORMAT ", and region \"%s\" shows log index " UINT64_FORMAT " only.",
					   answer->at.value, ot_region, ot_applied_index().value),
			 errhint("Nothing was committed. Retry the transaction.")));
}

/*
 * Raises ERROR if another region says that the write set would fail there.
 * Interrupts are served: nothing has been proposed.  `is_compared`: another one will
 * be asked whether the statements come to the same.
 */
void
ot_rehearse_elsewhere(OtAgent *agent, OtTxnId txn, bool is_compared)
{
	for (int attempt = 1;; attempt++)
	{
		OtLogIndex	base = ot_applied_index();
		OtRehearsed answer;

		if (!rehearse_ask_node(agent, txn, base, ot_write_set_operations, &answer))
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
		if (answer.at.value > base.value)
		{
			if (!ot_position_wait_shown(answer.at, TimestampTzPlusMilliseconds(ot_now(), SHOWN_MS)))
				rehearse_raise_behind(&answer);
			ot_eviction_check();
			if (attempt < ATTEMPTS)
				continue;
		}
		rehearse_raise_failure(&answer, is_compared);
	}
}

/* ---- DDL next to that of other sessions ---- */

/* What this transaction's statements have come to in this server. */
static OtCatalogDigest came_to_here;

static void
rehearse_put_nothing(StringInfo out)
{
	ot_put_u8(out, OT_COMPARE);
}

static void
rehearse_put_statements(StringInfo out)
{
	ot_put_u8(out, OT_COMPARE);
	ot_write_set_statements(out);
}

/*
 * Asks what these statements come to.  Returns false if no other region says so;
 * *answer then tells why, if anything does.
 */
static bool
rehearse_ask_what_comes(OtTxnId txn, OtLogIndex base, void (*put_operations) (StringInfo out), OtRehearsed *answer)
{
	memset(answer, 0, sizeof(*answer));
	return rehearse_ask_node(ot_commit_agent(), txn, base, put_operations, answer) &&
		answer->failed && strlen(answer->sqlstate) == 5 &&
		MAKE_SQLSTATE(answer->sqlstate[0], answer->sqlstate[1], answer->sqlstate[2], answer->sqlstate[3],
					  answer->sqlstate[4]) == OT_ERR_CAME_TO;
}

/*
 * Asks what the statements of this transaction come to, until a region says so.
 * Returns false if none does.  All may be busy with what was committed before, an
 * index for example: that is waited for.  But who has waited while another COMMIT
 * asked in vain asks once.
 */
static bool
rehearse_await_what_comes(OtTxnId txn, OtRehearsed *answer)
{
	const int	patience_ms = Min(ot_commit_timeout_ms, COMPARE_PATIENCE_MS);
	TimestampTz deadline = TimestampTzPlusMilliseconds(ot_now(), patience_ms);

	while (!rehearse_ask_what_comes(txn, ot_applied_index(), rehearse_put_statements, answer))
	{
		OtRehearsed busy;

		/* a failure of the statements does not pass */
		if (answer->failed || ot_ddl_share_has_waited())
			return false;
		if (rehearse_ask_what_comes(txn, ot_applied_index(), rehearse_put_nothing, &busy) &&
			strcmp(busy.message, OT_COMPARE_BUSY) == 0)
			deadline = TimestampTzPlusMilliseconds(ot_now(), patience_ms);
		if (ot_now() >= deadline)
		{
			/* what one session is content with is not for all */
			if (patience_ms == COMPARE_PATIENCE_MS)
				ot_ddl_share_unanswered();
			return false;
		}
		ot_wait_latch(COMPARE_AGAIN_MS);
		CHECK_FOR_INTERRUPTS();
		ot_eviction_check();
	}
	return true;
}

/* To find out whether anybody answers takes a round trip, and so does the question at COMMIT. */
bool
ot_compare_is_possible(void)
{
	return ot_preloaded && MyBackendType == B_BACKEND && ot_rehearse_statements &&
		ot_trips_are_left(2 + OT_DDL_TRIPS);
}

/* Would anybody say what statements come to, once it is not busy? */
bool
ot_compare_is_answered(void)
{
	OtRehearsed answer;

	ot_trips_take("carry out DDL", 1);
	ot_session_watch_errors();
	ot_eviction_check();
	ot_position_attach();
	/* what it has locked must not hold up entries meanwhile */
	ot_slot_begin_writing();
	return rehearse_ask_what_comes(ot_commit_own_txn(), ot_applied_index(), rehearse_put_nothing, &answer);
}

/*
 * Notes what the statements have come to here.  To find out may lock what stored
 * queries read, so it comes before keys of locks are taken.
 */
void
ot_compare_here(void)
{
	PG_TRY();
	{
		ot_catalog_digest(&came_to_here);
	}
	PG_CATCH();
	{
		ot_ddl_share_lost();
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * Raises ERROR unless another region has come to the same with the statements of
 * this transaction, in their place in the log.
 */
void
ot_compare_elsewhere(OtTxnId txn)
{
	OtRehearsed answer;

	if (!rehearse_await_what_comes(txn, &answer))
	{
		ot_ddl_share_lost();
		ereport(ERROR,
				(errcode(OT_ERR_LOST),
				 errmsg("could not commit: no other region says whether this transaction's DDL is independent of other DDL in region \"%s\"",
						ot_region),
				 answer.failed ? errdetail("Region \"%s\": %s.", answer.region, answer.message) :
				 answer.untried && answer.untried[0] != '\0' ? errdetail("%s.", answer.untried) : 0,
				 errhint("Nothing was committed. Retry the transaction: it will wait for the DDL of other sessions.")));
	}
	if (strcmp(answer.message, ot_catalog_digest_text(&came_to_here)) != 0)
	{
		ot_ddl_share_lost();
		ereport(ERROR,
				(errcode(OT_ERR_LOST),
				 errmsg("could not commit: this transaction's DDL depends on other DDL that was carried out at the same time in region \"%s\"",
						ot_region),
				 errdetail("Region \"%s\" comes to something else, since it carries out one transaction after the other.",
						   answer.region),
				 errhint("Nothing was committed. Retry the transaction: it will wait for the DDL of other sessions.")));
	}
}
