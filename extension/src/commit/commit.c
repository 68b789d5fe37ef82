/*-------------------------------------------------------------------------
 *
 * commit.c
 *	  A transaction's way through COMMIT: the transaction callback.
 *
 *	event		may error	verdict				what is done
 *	PRE_COMMIT	yes			not known			keys of held locks and of reads, rehearse
 *											statements, propose, wait
 *				as 08007	commit				wait for the turn, take the origin
 *	(the server's own steps up to the commit record; whoever changes what is
 *	replicated there gets an ERROR, since nobody would send it)
 *				as 08007	commit				nothing of ours
 *	COMMIT		no			commit				publish, release the origin; after the
 *											locks: perhaps wait for the other regions
 *											(everywhere.c)
 *	ABORT		no			none, abort			forget
 *				no			not known, commit	close the connection: the node then
 *											leaves the entry to the apply worker
 *				no			none, not known		if the client may ask for the outcome,
 *											the worker also has it settled
 *	PRE_PREPARE	yes			none				refuse if something was captured
 *
 * PREPARE TRANSACTION of such a transaction, COMMIT PREPARED and ROLLBACK
 * PREPARED of it (prepared.c) propose their entry while the statement runs.
 * The apply worker commits it here, too: the phase is HANDED_OVER, and the
 * local transaction ends without a change.
 *
 * Until PROPOSE has been sent completely, any interrupt ends the transaction
 * as in PostgreSQL.  After that the entry may be in the log: on a cancel, a
 * timeout or a termination we may only report that the outcome is not known
 * (08007), with the transaction id, and only after a short time in which the
 * verdict may still come.  The same goes for any other ERROR, for example if
 * memory runs out while the proposal is encoded again: it is reworded before
 * anybody sees it (session.c).
 *
 * After a verdict of commit the transaction is committed, whatever happens to
 * this backend.  From then until the local commit, interrupts are held and our
 * code allocates nothing.  An ERROR of the server (for example a full disk
 * during ON COMMIT DELETE ROWS) is reworded likewise:
 * SQLSTATE 08007, "outcome ...: committed at N".  The local transaction aborts,
 * the apply worker takes the entry over, and the session continues.
 *
 * A session that is told to end after the verdict (pg_terminate_backend, a
 * shutdown) waits a moment for its turn, commits, and then ends.  Only if its
 * turn does not come does it leave the entry to the worker and report the same
 * 08007.  Either way, it does not end before the client has the answer to its
 * COMMIT (ot_session_end_later): when a FATAL is followed by the end of the
 * connection, libpq drops its SQLSTATE, and any answer that it has not yet
 * handed to the client.
 *
 * A region that cannot apply an entry commits nothing that comes after it.  A
 * COMMIT in such a region waits before it proposes, and fails after
 * onetrip.commit_timeout with an error that says that nothing was committed.  A
 * transaction that was proposed before that gets its verdict, waits as long for
 * its turn, and gets 08007.
 *
 * The local commit record is not flushed: the log is durable on a majority,
 * and the node sends again what was lost in a crash.  It is flushed if the
 * transaction also wrote tables that are not replicated.  Such a transaction
 * must commit here itself, since the entry contains only its other half: it
 * waits longer for its turn, and if it is ended nevertheless, the client is
 * told which half is lost.
 *
 * To send a message may raise an ERROR as well, of any level: a word of it, which
 * lc_messages translates, may be none in the client's encoding.  So from the proposal
 * on messages go to the server's log only (LOG_SERVER_ONLY), or are sent in PG_TRY.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "storage/ipc.h"
#include "storage/predicate.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "capture/capture.h"
#include "ddl/ddl.h"
#include "sequence/sequence.h"
#include "shmem/shmem.h"

/*
 * How long a decided COMMIT that is told to end waits for its turn, if it
 * wrote tables that are not replicated.  The node gives its server more time
 * than this to stop.
 */
#define OTHER_TABLES_GRACE_MS 10000

static OtAgent *agent = NULL;

/*
 * How far the COMMIT of this process has come.
 *
 *	IDLE		none is under way, or not proposed yet: any interrupt ends it
 *	PROPOSING	interrupts are held; PROPOSE has not been sent completely
 *	DECIDING	the entry may be in the log; the verdict is not known
 *	REFUSED		a verdict other than commit; it is reported by an ERROR
 *	DECIDED		verdict commit; waits for its turn, or got an ERROR since
 *	HANDED_OVER	committed, by the apply worker; nothing more is done about it
 *				here, but wait until it is visible
 *	READY		verdict commit; has the turn and the replication origin
 *	APPLYING	in the apply or arrival worker: has the turn and the origin for an
 *				entry
 *
 * The end of the transaction leads back to IDLE, whether it commits or aborts.
 */
typedef enum CommitPhase
{
	COMMIT_IDLE = 0,
	COMMIT_PROPOSING,
	COMMIT_DECIDING,
	COMMIT_REFUSED,
	COMMIT_HANDED_OVER,
	COMMIT_DECIDED,
	COMMIT_READY,
	COMMIT_APPLYING
} CommitPhase;

#define PHASE(phase) (1 << COMMIT_##phase)

/* The phases from which each of them may be entered. */
static const int phase_before[] = {
	[COMMIT_IDLE] = ~0,
	[COMMIT_PROPOSING] = PHASE(IDLE),
	[COMMIT_DECIDING] = PHASE(PROPOSING),
	[COMMIT_REFUSED] = PHASE(PROPOSING) | PHASE(DECIDING),
	[COMMIT_HANDED_OVER] = PHASE(DECIDING),
	[COMMIT_DECIDED] = PHASE(DECIDING) | PHASE(READY),
	[COMMIT_READY] = PHASE(DECIDED),
	[COMMIT_APPLYING] = PHASE(IDLE)
};

/* State of the transaction that is committing, reset at its end. */
static struct
{
	CommitPhase phase;
	OtWrittenHere written;
	bool		everywhere;		/* its client waits until all regions show it */
	OtLogIndex	index;			/* of its entry after a verdict of commit, or of
								 * the worker's entry */
	OtEntryKind kind;			/* of the entry */
	bool		is_compared;	/* its DDL was carried out beside that of others */
	bool		lost_to_prepared;	/* to a transaction that is prepared and not ended */
	Oid			user;			/* if it is handed over: as whom the session goes on */
	int			security;
}			committing;

/* How many connections to the node were tried. */
static uint64 nconnections = 0;
/* The last transaction with a verdict of commit on this connection. */
static OtTxnId last_txn;
/* Has it committed here? */
static bool last_is_done = true;
/* The last entry of this session, whatever connection its verdict came on. */
static OtLogIndex last_index;

/*
 * A statement has been committed before its end (retry.c), and the transaction
 * that is open now only brings its client the answer.
 */
static struct
{
	bool		is_open;
	bool		has_entry;		/* it has changed something replicated */
	bool		holds_interrupts;
}			answer;

static void commit_xact_callback(XactEvent event, void *arg);
static void commit_subxact_callback(SubXactEvent event, SubTransactionId my_subid,
									SubTransactionId parent_subid, void *arg);

void
ot_commit_init(void)
{
	RegisterXactCallback(commit_xact_callback, NULL);
	RegisterSubXactCallback(commit_subxact_callback, NULL);
	ot_show_own_init();
	/* called in the opposite order: the notice comes once the wait is over */
	ot_cost_init();
	ot_traced_init();
	ot_everywhere_init();
	ot_unread_init();
	ot_row_lock_init();
}

/* ---- states ---- */

static void
commit_enter(CommitPhase next)
{
	OT_ASSERT(phase_before[next] & (1 << committing.phase));
	committing.phase = next;
}

/* May the entry be in the log, and is its verdict not known? */
static inline bool
commit_is_undecided(void)
{
	return committing.phase == COMMIT_DECIDING;
}

/* Is it committed, whatever happens to this process? */
static inline bool
commit_is_decided(void)
{
	return committing.phase == COMMIT_DECIDED || committing.phase == COMMIT_READY;
}

static inline bool
commit_is_handed_over(void)
{
	return committing.phase == COMMIT_HANDED_OVER;
}

static inline bool
commit_has_origin(void)
{
	return committing.phase == COMMIT_READY || committing.phase == COMMIT_APPLYING;
}

/* The transaction is over. */
static void
commit_reset(void)
{
	commit_enter(COMMIT_IDLE);
	memset(&committing, 0, sizeof(committing));
	ot_own_id_reset();
}

/*
 * A session that ends normally tells the node that its last entry has committed
 * here.  Without DONE the node has to assume that it has not.
 */
static void
commit_say_done(int code, Datum arg)
{
	StringInfo	frame;

	/* a COMMIT that is under way ends with its connection (commit_at_abort) */
	if (agent == NULL || !ot_agent_is_open(agent) || !last_is_done ||
		last_txn.sequence == 0 || committing.phase != COMMIT_IDLE)
		return;
	frame = ot_agent_frame(agent, OT_FRAME_DONE);
	ot_put_txn(frame, last_txn);
	ot_agent_frame_end(agent);
	OT_STOP_POINT("before-done");
	(void) ot_agent_flush(agent);
}

OtAgent *
ot_commit_agent(void)
{
	if (agent == NULL)
	{
		agent = ot_agent_create(TopMemoryContext);
		before_shmem_exit(commit_say_done, (Datum) 0);
	}
	return agent;
}

/* ---- messages about an outcome ---- */

/* "code": of an error that this one replaces; 0: there is none */
pg_noreturn static void
commit_raise_unknown(OtTxnId txn, int code)
{
	QueryCancelPending = false;
	ot_session_end_later();
	ereport(ERROR,
			(ot_say_unknown(txn),
			 code ? errdetail_log("An error came after the transaction was proposed: SQLSTATE %s",
								  unpack_sql_state(code))
			 : 0));
}

void
ot_commit_raise_unknown(OtTxnId txn)
{
	commit_raise_unknown(txn, 0);
}

/* The apply worker takes the entry over. */
static void
commit_raise_handed_over(const char *why)
{
	ot_session_end_later();
	ereport(ERROR,
			ot_say_committed(ot_commit_own_txn(), committing.index, committing.written.any, why));
}

/* The entry of this session's last transaction that had one. */
OtLogIndex
ot_commit_last_entry(void)
{
	return last_index;
}

/*
 * The transaction of a statement has been committed, and the client has not been
 * told yet.  It must not be told anything else, so nothing may cancel what is
 * left of the statement.  Where that waits for the client, to take rows or to
 * send the rest of its Sync, the session can be ended: that may take any time.
 */
void
ot_commit_begin_answer(bool waits_for_client, bool has_entry)
{
	answer.is_open = true;
	answer.has_entry = has_entry;
	answer.holds_interrupts = !waits_for_client;
	if (waits_for_client)
		HOLD_CANCEL_INTERRUPTS();
	else
		HOLD_INTERRUPTS();
}

/* The transaction that brought the answer is over.  An ERROR let go by itself. */
static void
commit_end_answer(bool committed)
{
	if (likely(!answer.is_open))
		return;
	answer.is_open = false;
	if (!committed)
		return;
	/*
	 * An ERROR that somebody caught has let go too.  The server holds interrupts
	 * once more while it calls this.
	 */
	if (!answer.holds_interrupts)
	{
		if (QueryCancelHoldoffCount > 0)
			RESUME_CANCEL_INTERRUPTS();
	}
	else if (InterruptHoldoffCount > 1)
		RESUME_INTERRUPTS();
}

bool
ot_commit_minds_errors(void)
{
	return commit_is_undecided() || commit_is_decided() || commit_is_handed_over() || commit_has_origin() ||
		answer.is_open;
}

/*
 * Whatever goes wrong once the entry may be in the log, the client must not take
 * it for a failure of its transaction.
 */
bool
ot_commit_reword(const ErrorData *edata)
{
	/*
	 * The transaction is going to abort.  With an origin set, its abort record
	 * would, from PostgreSQL 16 on, mark the origin's position as applied.
	 */
	if (commit_has_origin())
		replorigin_session_origin = InvalidRepOriginId;

	if (answer.is_open)
	{
		const char *why = edata->message ? edata->message : "An error came between";

		if (answer.has_entry)
			ot_say_committed(last_txn, last_index, false, why);
		else
			ot_say_committed_here(why);
		return true;
	}
	if (commit_is_handed_over())
	{
		ot_say_handed_over(ot_commit_own_txn(), committing.index, committing.kind == OT_ENTRY_PREPARE,
						   edata->message ? edata->message : "An error came between");
		return true;
	}
	if (!commit_is_undecided() && !commit_is_decided())
		return false;
	if (edata->sqlerrcode == OT_ERR_OUTCOME_UNKNOWN)
		return true;
	ot_session_end_later();
	if (commit_is_undecided())
	{
		/* it would be served on the way to the client, and say that nothing was committed */
		QueryCancelPending = false;
		ot_say_unknown(ot_commit_own_txn());
		errdetail_log("An error came after the transaction was proposed: %s",
					  edata->message ? edata->message : "without a message");
	}
	else
		ot_say_committed(ot_commit_own_txn(), committing.index, committing.written.any,
						 edata->message ? edata->message : "An error came between");
	return true;
}

/* ---- a region that stands still ---- */

/*
 * A transaction proposed now would come after the entry that this region
 * cannot apply, so it would not become visible here before that entry does.
 * As long as it is not proposed, the transaction can still be cancelled, and
 * evicted.  Raises ERROR once the region has stood still for
 * onetrip.commit_timeout; a transaction that comes later than that fails at
 * once.
 */
static void
commit_wait_while_standing_still(void)
{
	OtLogIndex	at;

	while (unlikely((at = ot_worker_stands_at(0)).value != 0))
	{
		if (ot_worker_stands_at(ot_commit_timeout_ms).value != 0)
			ereport(ERROR,
					(errcode(OT_ERR_NOT_NOW),
					 errmsg("region \"%s\" stands still at log index " UINT64_FORMAT ", nothing was committed",
							ot_region, ot_applied_index().value),
					 errdetail("Its server cannot apply log index " UINT64_FORMAT ", which was committed before; it shows nothing newer until it can.",
							   at.value),
					 errhint("Repeat the transaction in another region. SELECT failing, failure FROM onetrip.status says what to fix here; see \"A region shows nothing new\" in docs/operations.md.")));
		CHECK_FOR_INTERRUPTS();
		ot_wait_latch(STANDSTILL_POLL_MS);
	}
}

/* ---- the proposal ---- */

/*
 * Makes a new connection to the node.  Returns false if that failed, see
 * ot_agent_error().
 */
bool
ot_commit_connect(void)
{
	OtLogIndex	none = {0};

	/* DONE must only name a transaction whose verdict came on this connection. */
	last_txn.sequence = 0;
	nconnections++;
	return ot_agent_open(ot_commit_agent(), OT_ROLE_BACKEND, none, none);
}

/* The number of the connection that is open, from 1; 0: none. */
uint64
ot_commit_connection(void)
{
	return ot_agent_is_open(ot_commit_agent()) ? nconnections : 0;
}

/* Called when PROPOSE has been sent: now the entry may be in the log. */
void
ot_commit_proposed(void)
{
	commit_enter(COMMIT_DECIDING);
}

/*
 * An ERROR has been reworded, unless it came while another message was handled:
 * PostgreSQL then passes callbacks over.  It is replaced here, without allocating
 * anything.
 */
static void
commit_propose_and_wait(OtTxnId txn, OtVerdict *verdict)
{
	PG_TRY();
	{
		ot_propose(agent, txn, verdict);
	}
	PG_CATCH();
	{
		int			code = geterrcode();

		if (!commit_is_undecided() || code == OT_ERR_OUTCOME_UNKNOWN)
			PG_RE_THROW();
		FlushErrorState();
		commit_raise_unknown(txn, code);
	}
	PG_END_TRY();
}

/* Then it loses again until somebody ends what is prepared. */
bool
ot_commit_lost_to_prepared(void)
{
	return committing.lost_to_prepared;
}

/* ---- after a verdict of commit ---- */

static void
commit_wait_for_turn(void)
{
	int			grace_ms = committing.written.logged ? OTHER_TABLES_GRACE_MS : CANCEL_GRACE_MS;
	TimestampTz give_up = 0;	/* 0: the session was not told to end */
	TimestampTz patience = 0;	/* until when it waits in a region that stands
								 * still */

	for (;;)
	{
		long		wait_ms;

		if (ot_turn_try())
			return;

		if (ot_turn_is_handed_over())
			commit_raise_handed_over("It held a lock that an earlier change needs");
		if (ProcDiePending)
		{
			if (give_up == 0)
				give_up = TimestampTzPlusMilliseconds(ot_now(), grace_ms);
			wait_ms = ot_ms_until(give_up);
			if (wait_ms == 0)
				commit_raise_handed_over("The session was ended before its turn came");
		}
		else
		{
			if (patience == 0)
				patience = TimestampTzPlusMilliseconds(ot_now(), Max(ot_commit_timeout_ms, grace_ms));
			wait_ms = ot_ms_until(patience);
			if (wait_ms == 0 && ot_worker_stands_at(ot_commit_timeout_ms).value != 0)
				commit_raise_handed_over("This region cannot apply a change that comes before it (SELECT failing, failure FROM onetrip.status)");
			wait_ms = Max(wait_ms, STANDSTILL_POLL_MS);
		}
		ot_wait_latch(wait_ms);
	}
}

/*
 * Prepares the local commit of the turn's holder, whose commit record is to
 * contain `index`.  Also used by the apply worker.
 */
void
ot_commit_hold_turn(OtLogIndex index, bool flush)
{
	committing.index = index;
	ot_origin_take();
	commit_enter(committing.phase == COMMIT_DECIDED ? COMMIT_READY : COMMIT_APPLYING);
	ot_origin_mark(index, flush);
}

static void
commit_let_go_of_origin(void)
{
	if (!commit_has_origin())
		return;
	commit_enter(committing.phase == COMMIT_READY ? COMMIT_DECIDED : COMMIT_IDLE);
	ot_origin_let_go();
}

/* ---- the events ---- */

static bool
commit_is_rehearsed(void)
{
	return ot_rehearse_statements && ot_write_set_has_statements();
}

/* How many round trips a COMMIT would take now. */
int
ot_commit_trips(void)
{
	if (ot_write_set_is_empty() && !ot_commit_id_is_told())
		return 0;
	return 1 + commit_is_rehearsed() + committing.is_compared + (ot_ack == OT_ACK_APPLIED_EVERYWHERE);
}

/* is_final: the transaction's id has an outcome in the log. */
pg_noreturn static void
commit_refused(OtTxnId txn, OtVerdict *verdict, bool is_final)
{
	commit_enter(COMMIT_REFUSED);
	if (is_final)
		ot_own_id_is_final();
	committing.lost_to_prepared = verdict->outcome == OT_OUTCOME_HELD;
	ot_verdict_raise(txn, verdict);
}

/*
 * Rehearses and proposes the write set, and waits for the verdict.  Returns if
 * that is commit: the phase is then DECIDED or HANDED_OVER.
 */
static void
commit_decide(void (*wrap) (void), OtVerdict *verdict)
{
	OtTxnId		txn;

	(void) ot_commit_agent();
	txn = ot_commit_own_txn();
	ot_cost_begin(txn, ot_trips_taken());
	if (commit_is_rehearsed())
		ot_rehearse_elsewhere(agent, txn, committing.is_compared);
	if (committing.is_compared)
		ot_compare_elsewhere(txn);
	if (wrap != NULL)
		wrap();
	/*
	 * The server checks this itself, but only after the verdict.  From here on its
	 * check finds nothing: as with PREPARE TRANSACTION, others give way.
	 */
	if (IsolationIsSerializable())
		PreCommit_CheckForSerializationFailure();
	ot_disable_transaction_timeout();
	OT_STOP_POINT("before-propose");
	ot_session_end_if_told();
	/* raises ERROR if the transaction was evicted */
	ot_turn_begin_proposing(txn);
	HOLD_INTERRUPTS();
	ot_unread_is_waited_for();
	commit_enter(COMMIT_PROPOSING);
	ot_cost_mark(OT_COST_PROPOSED);
	commit_propose_and_wait(txn, verdict);
	ot_cost_mark(OT_COST_DECIDED);

	switch (verdict->outcome)
	{
		case OT_OUTCOME_COMMIT:
			commit_enter(COMMIT_DECIDED);
			break;
		case OT_OUTCOME_BY_WORKER:
			commit_enter(COMMIT_HANDED_OVER);
			break;
		case OT_OUTCOME_CONFLICT:
		case OT_OUTCOME_WINDOW:
		case OT_OUTCOME_RESERVED:
		case OT_OUTCOME_HELD:
			/* if it lost before it was in the log, it has no outcome yet */
			commit_refused(txn, verdict, verdict->at.value != 0);
			break;
		case OT_OUTCOME_CANCELLED:
		case OT_OUTCOME_NO_ROOM:
			commit_refused(txn, verdict, true);
			break;
		case OT_OUTCOME_REFUSED:
			ot_skip_txns();
			/* FALLTHROUGH */
		case OT_OUTCOME_FULL:
			commit_refused(txn, verdict, false);
			break;
		default:
			ot_commit_raise_unknown(txn);
	}

	/* Committed, from here on. */
	committing.index = verdict->at;
	ot_own_id_is_final();
	ot_cost_decided(verdict);
	OT_STOP_POINT("verdict-received");
}

/*
 * The way through PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED.
 * `wrap` makes the write set the entry's (ot_write_set_wrap).  When this
 * returns, the entry is committed, and interrupts are held until the transaction
 * ends, which must change nothing here.
 */
void
ot_commit_hand_over(const char *what, OtEntryKind kind, void (*wrap) (void))
{
	bool		everywhere = kind == OT_ENTRY_COMMIT_PREPARED && ot_ack == OT_ACK_APPLIED_EVERYWHERE;
	int			trips = 1 + commit_is_rehearsed() + everywhere;
	OtVerdict	verdict;

	ot_check_writable();
	ot_trips_take(what, trips);
	committing.everywhere = everywhere;
	committing.kind = kind;
	commit_wait_while_standing_still();
	commit_decide(wrap, &verdict);
	ot_write_set_reset();
}

/*
 * The settings of the transaction that was handed over have been kept, and those
 * of SET LOCAL taken back.  It is going to be rolled back, which takes the role
 * back too, but not what says so.
 */
void
ot_commit_keep_user(void)
{
	GetUserIdAndSecContext(&committing.user, &committing.security);
}

static void
commit_at_pre_commit(void)
{
	OtVerdict	verdict;

	/* it may have become a read replica since the first change */
	ot_check_writable();
	committing.is_compared = ot_ddl_share_commits();
	if (committing.is_compared)
		ot_compare_here();
	ot_trips_take("commit", ot_commit_trips());
	committing.everywhere = ot_ack == OT_ACK_APPLIED_EVERYWHERE;
	commit_wait_while_standing_still();
	ot_sequence_lock_used();
	ot_own_id_take_key();
	ot_functions_take_key();
	ot_large_object_capture_cuts();
	ot_held_locks_take_keys(&committing.written, false);
	if (ot_prepared_has_done_here())
		committing.written.any = committing.written.logged = true;
	ot_reads_take_keys();
	if (ot_write_set_has_notifications())
	{
		ot_notify_check_queue();
		/* there may be no other key, and each entry has a base */
		ot_write_set_advance();
	}
	/* The commit record contains the position, so there must be one. */
	(void) GetTopTransactionId();
	ot_origin_put_own_aside();
	commit_decide(NULL, &verdict);
	last_is_done = false;
	last_txn = ot_commit_own_txn();
	last_index = verdict.at;
	ot_turn_decided(verdict.at, verdict.other);
	OT_STOP_POINT("turn-waiting");
	commit_wait_for_turn();
	ot_cost_mark(OT_COST_TURN);
	ot_commit_hold_turn(verdict.at, committing.written.logged);
	OT_STOP_POINT("turn-held");
}

/*
 * Counts this COMMIT for its role, and for the tables that it has changed, or
 * the first of them.
 */
static void
commit_count(void)
{
	Oid			relids[64];
	int64		bytes;
	int64		rows = ot_write_set_all_rows(&bytes);

	ot_table_count_commit(relids, ot_write_set_tables(relids, lengthof(relids)));
	ot_role_count_commit(rows, bytes);
}

/*
 * The transaction that has handed its entry over ends.  Interrupts have been
 * held since the proposal, unless an ERROR has reset the count; the server holds
 * them once more while it calls this.
 */
static void
commit_end_handed_over(bool committed)
{
	if (!proc_exit_inprogress)
		ot_show_own_later(committing.index, true);
	if (!committed && OidIsValid(committing.user))
		SetUserIdAndSecContext(committing.user, committing.security);
	ot_cost_mark(OT_COST_TURN);
	ot_cost_committed(committing.index);
	if (committed && committing.everywhere)
		ot_everywhere_begin(committing.index);
	else
		ot_cost_end(false);
	if (InterruptHoldoffCount > 1)
		RESUME_INTERRUPTS();
	ot_session_end_later();
}

static void
commit_at_commit(void)
{
	bool		decided = commit_is_decided();
	bool		handed_over = commit_is_handed_over();

	if (handed_over)
		commit_end_handed_over(true);
	if (decided)
		OT_STOP_POINT("committed");
	if (commit_has_origin())
	{
		commit_let_go_of_origin();
		ot_turn_publish();
	}
	ot_origin_restore_own(true);
	if (decided)
	{
		commit_count();
		ot_cost_committed(committing.index);
		if (committing.everywhere)
			ot_everywhere_begin(committing.index);
		else
			ot_cost_end(false);
		OT_STOP_POINT("published");
	}
	ot_row_lock_end(decided);
	/* the worker may wait for this session to commit an entry that is the worker's */
	ot_turn_forget(!handed_over);
	last_is_done = true;
	if (decided)
	{
		/*
		 * Interrupts have been held since the proposal, unless an ERROR has
		 * reset the count and was caught.  The server holds them once more
		 * while it calls this.
		 */
		if (InterruptHoldoffCount > 1)
			RESUME_INTERRUPTS();
		ot_session_end_later();
	}
	commit_reset();
	ot_sequence_told_used();
	ot_ddl_forget_truncated_by_worker();
	ot_write_set_reset();
	ot_rel_info_tidy();
}

static void
commit_at_abort(void)
{
	bool		undecided = commit_is_undecided();
	bool		decided = commit_is_decided();
	bool		left_open = ot_own_id_needs_outcome(undecided);

	if (decided && !proc_exit_inprogress)
		ot_show_own_later(committing.index, false);
	if (commit_is_handed_over())
		commit_end_handed_over(false);
	ot_sequence_note_aborted();
	commit_let_go_of_origin();
	ot_origin_restore_own(false);
	if (undecided || decided ||
		(agent && !ot_agent_all_sent(agent)))
	{
		/*
		 * The node must not count on this backend any more, and the rest of a
		 * proposal that was sent in part must not be sent with the next frame.
		 */
		ot_agent_close(agent);
		last_txn.sequence = 0;
	}
	ot_row_lock_end(false);
	ot_turn_forget(false);
	if (left_open)
		ot_turn_leave_open(ot_commit_own_txn(), undecided);
	commit_reset();
	ot_ddl_forget_truncated_by_worker();
	ot_write_set_reset();
	ot_rel_info_tidy();
}

static void
commit_xact_callback(XactEvent event, void *arg)
{
	bool		needs_entry;

	if (!ot_preloaded || !IsUnderPostmaster)
		return;

	ot_session_keep_watching();
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			ot_ddl_note_truncated_by_worker();
			needs_entry = !ot_write_set_is_empty() || ot_commit_id_is_told() || !ot_sequence_note_used();
			ot_subscription_at_pre_commit(needs_entry);
			ot_functions_commit_begins(true);
			ot_check_unseen_writes();
			ot_check_unseen_notifications();
			if (needs_entry && ot_write_set_is_empty() && !ot_commit_id_is_told())
				ot_write_set_advance();
			if (!ot_write_set_is_empty() || ot_commit_id_is_told())
				commit_at_pre_commit();
			ot_write_set_close();
			break;
		case XACT_EVENT_COMMIT:
			ot_unread_is_waited_for();
			ot_functions_commit_begins(false);
			commit_at_commit();
			ot_subscription_at_commit();
			commit_end_answer(true);
			ot_retry_at_end();
			break;
		case XACT_EVENT_ABORT:
			ot_unread_is_waited_for();
			ot_functions_commit_begins(false);
			commit_at_abort();
			ot_subscription_at_abort();
			commit_end_answer(false);
			ot_retry_at_end();
			break;
		case XACT_EVENT_PRE_PREPARE:
			ot_check_unseen_writes();
			/* PostgreSQL refuses it as well, later and in the same words */
			if (ot_write_set_has_notifications())
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has executed LISTEN, UNLISTEN, or NOTIFY")));
			if (!ot_write_set_is_empty() || ot_commit_id_is_told() || ot_held_locks_need_keys())
				ereport(ERROR,
						(errcode(OT_ERR_NOT_REPLICATED),
						 errmsg("cannot PREPARE a transaction that has used onetrip tables"),
						 ot_commit_id_is_told() ?
						 errdetail("Its id was asked for (onetrip.current_transaction_id()), so it must have an outcome of its own.") :
						 errdetail("PREPARE TRANSACTION was not run as a statement of its own."),
						 errhint("Use COMMIT; one transaction may span all tables of all regions.")));
			ot_write_set_close();
			break;
		case XACT_EVENT_PREPARE:
			ot_row_lock_end(false);
			ot_turn_forget(false);
			commit_reset();
			ot_sequence_told_used();
			ot_ddl_forget_truncated_by_worker();
			ot_write_set_reset();
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			break;
	}
}

static void
commit_subxact_callback(SubXactEvent event, SubTransactionId my_subid,
						SubTransactionId parent_subid, void *arg)
{
	if (ot_preloaded && IsUnderPostmaster)
		ot_session_keep_watching();
	switch (event)
	{
		case SUBXACT_EVENT_START_SUB:
			/* if this one fails, the other has nothing to undo */
			ot_row_lock_subxact_start(GetCurrentTransactionNestLevel());
			ot_write_set_subxact_start(GetCurrentTransactionNestLevel());
			break;
		case SUBXACT_EVENT_COMMIT_SUB:
			ot_write_set_subxact_end(GetCurrentTransactionNestLevel(), true);
			break;
		case SUBXACT_EVENT_ABORT_SUB:
			ot_write_set_subxact_end(GetCurrentTransactionNestLevel(), false);
			ot_row_lock_subxact_abort(GetCurrentTransactionNestLevel());
			break;
		case SUBXACT_EVENT_PRE_COMMIT_SUB:
			break;
	}
}
