/*-------------------------------------------------------------------------
 *
 * session.c
 *	  What happens at each statement and at each error of a session.
 *
 * Errors: some errors of the server must say something that the server does not
 * know.  Once a COMMIT may be in the log, no error may look like its failure
 * (commit.c); a cancel that was sent by an eviction must say who was first
 * (eviction.c); and an error that stops the apply worker is kept for
 * onetrip.status (apply.c, through a callback).  One error context callback
 * serves all three.  errfinish() calls it for every error before anybody can
 * catch, log or send it, and errcode(), errmsg() and similar functions, called
 * from it, change the error itself.  emit_log_hook would not do: it is only
 * called for errors that are logged.
 *
 * The callback is at the bottom of error_context_stack, below the frames of
 * whatever runs, and remains when they are popped.  PostgreSQL empties the
 * stack after each ERROR, and PG_CATCH restores it to what it was at PG_TRY.
 * So the callback is looked for, and put back if it is gone, when a session
 * begins, at each statement, and at the beginning and end of each transaction
 * and subtransaction.
 *
 * Statements: a transaction that was evicted notices it here (eviction.c).
 *
 * Ends of sessions: a session that is told to end while its COMMIT cannot be
 * interrupted would end before the client has the complete answer to COMMIT.
 * libpq then drops the answer and shows the FATAL.  So the termination is
 * postponed by END_LATER_MS, by which time the session is idle again, or is in
 * another COMMIT, which postpones it once more.  So a session also ends when it
 * begins a statement that its client has sent since, who has the answer then, or
 * goes to commit there.  Within what the client has sent with that COMMIT (a
 * procedure, several statements in one string) it goes on for END_LATER_MS.
 *
 * Runs in every process that runs statements.  The callback allocates in a
 * memory context of its own, which keeps 8 kB and may be used in a critical
 * section; the texts that it sets are in ErrorContext, like everything else of
 * an error.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include <signal.h>

#include "access/xact.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/memutils.h"
#include "utils/timeout.h"

#include "ddl/ddl.h"
#include "shmem/shmem.h"

/* Far more than it takes to send an answer. */
#define END_LATER_MS 100

static ExecutorRun_hook_type prev_executor_run = NULL;
static ProcessUtility_hook_type prev_process_utility = NULL;

static OtFailureCallback note_failure = NULL;

static void session_reword_error(void *arg);

static ErrorContextCallback callback = {.callback = session_reword_error};
static MemoryContext error_copy = NULL;

static volatile bool ends_later = false;	/* cleared in a signal handler */
static TimestampTz end_at = 0;	/* END_LATER_MS after it was first postponed */
static TimestampTz postponed_in;	/* when the statement that did so last has come */
static bool end_timeout_known = false;
static TimeoutId end_timeout;

/* ---- errors ---- */

static void
session_reword_error(void *arg)
{
	MemoryContext old;
	ErrorData  *edata;

	if (!ot_is_apply_worker && !ot_commit_minds_errors() && !ot_eviction_minds_errors())
		return;

	/* Messages of all levels come here; only a copy tells the level. */
	MemoryContextReset(error_copy);
	old = MemoryContextSwitchTo(error_copy);
	edata = CopyErrorData();
	MemoryContextSwitchTo(old);
	if (edata->elevel < ERROR)
		return;
	if (!ot_commit_reword(edata) && !ot_eviction_reword(edata) && ot_is_apply_worker &&
		note_failure != NULL)
		note_failure(edata);
}

/* Registers what the apply worker does with an ERROR that is not reworded. */
void
ot_session_note_failures(OtFailureCallback callback_of_worker)
{
	note_failure = callback_of_worker;
}

/* ---- ends ---- */

static void
session_end_now(void)
{
	ends_later = false;
	(void) kill(MyProcPid, SIGTERM);
}

/* An ERROR disables all timeouts; enables this one again if it is needed. */
static void
session_keep_end_timeout(void)
{
	if (unlikely(ends_later) && !get_timeout_active(end_timeout))
		enable_timeout_after(end_timeout, END_LATER_MS);
}

/* Postpones a requested termination until the client has its answer. */
void
ot_session_end_later(void)
{
	if (!ProcDiePending || !end_timeout_known)
		return;
	ProcDiePending = false;
	ends_later = true;
	if (end_at == 0)
		end_at = TimestampTzPlusMilliseconds(ot_now(), END_LATER_MS);
	postponed_in = GetCurrentStatementStartTimestamp();
	session_keep_end_timeout();
}

/* Nothing is decided and not answered: ends the session, if that was postponed. */
void
ot_session_end_if_told(void)
{
	if (likely(!ends_later) || ot_commit_minds_errors() ||
		(GetCurrentStatementStartTimestamp() == postponed_in && ot_now() < end_at))
		return;
	session_end_now();
	CHECK_FOR_INTERRUPTS();
}

/* ---- watching ---- */

/*
 * Makes sure that the callback is at the bottom of the stack, if this process
 * watches errors.  Allocates nothing, since it is also called at the end of a
 * transaction.
 */
void
ot_session_keep_watching(void)
{
	ErrorContextCallback **link = &error_context_stack;

	if (error_copy == NULL)
		return;
	while (*link != NULL && *link != &callback)
		link = &(*link)->previous;
	*link = &callback;
	session_keep_end_timeout();
}

void
ot_session_watch_errors(void)
{
	if (unlikely(error_copy == NULL))
	{
		error_copy = AllocSetContextCreate(TopMemoryContext, "onetrip error",
										   8 * 1024, 8 * 1024, 8 * 1024);
		MemoryContextAllowInCriticalSection(error_copy, true);
	}
	/* only a client waits for an answer */
	if (unlikely(!end_timeout_known) && whereToSendOutput == DestRemote && IsTransactionState())
	{
		end_timeout = RegisterTimeout(USER_TIMEOUT, session_end_now);
		end_timeout_known = true;
	}
	ot_session_keep_watching();
}

/* ---- statements ---- */

static void
session_begin_statement(void)
{
	if (!IsUnderPostmaster)
		return;
	ot_session_watch_errors();
	ot_session_end_if_told();
	ot_eviction_check();
	ot_position_warn_behind();
}

static void
ot_session_executor_run(QueryDesc *query, ScanDirection direction,
						uint64 count OT_EXECUTE_ONCE_PARAMETER)
{
	session_begin_statement();
	if (prev_executor_run)
		prev_executor_run(query, direction, count OT_EXECUTE_ONCE_ARGUMENT);
	else
		standard_ExecutorRun(query, direction, count OT_EXECUTE_ONCE_ARGUMENT);
	/* PREPARE TRANSACTION can only follow in a block */
	if (unlikely(query->plannedstmt->rowMarks != NIL) && IsTransactionBlock() && query->estate != NULL)
		ot_held_locks_note_run(query);
}

/*
 * Transaction statements of an evicted transaction are let through: ROLLBACK is
 * what it should do, COMMIT of a reader releases its locks as well, and COMMIT
 * of a writer fails later (ot_turn_begin_proposing).
 */
static void
ot_session_process_utility(PlannedStmt *pstmt, const char *query,
						   bool read_only_tree, ProcessUtilityContext context,
						   ParamListInfo params, QueryEnvironment *env,
						   DestReceiver *dest, QueryCompletion *completion)
{
	OtUtility	call = {prev_process_utility, pstmt, pstmt->utilityStmt, query, read_only_tree,
		context, params, env, dest, completion};

	if (IsA(pstmt->utilityStmt, TransactionStmt))
		ot_session_watch_errors();
	else
		session_begin_statement();
	ot_call_process_utility(&call);
}

void
ot_session_init(void)
{
	prev_executor_run = ExecutorRun_hook;
	ExecutorRun_hook = ot_session_executor_run;
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = ot_session_process_utility;
}
