/*-------------------------------------------------------------------------
 *
 * sql_worker.c
 *	  What background workers have in common that run SQL of their own, in
 *	  transactions like a client's.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/bufmgr.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"

static const char *worker_name;
static MemoryContext context_before;	/* of the present transaction */

/* For RegisterBackgroundWorker() and RegisterDynamicBackgroundWorker(). */
void
ot_sql_worker_describe(BackgroundWorker *worker, const char *name, const char *function)
{
	memset(worker, 0, sizeof(*worker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = 1;
	strlcpy(worker->bgw_name, name, BGW_MAXLEN);
	strlcpy(worker->bgw_type, name, BGW_MAXLEN);
	strlcpy(worker->bgw_library_name, "onetrip", BGW_MAXLEN);
	strlcpy(worker->bgw_function_name, function, BGW_MAXLEN);
}

/* Starts a worker that ends by itself.  What does not go on without it is told once: *told. */
void
ot_sql_worker_launch(const char *name, const char *function, const char *without, bool *told)
{
	BackgroundWorker worker;

	ot_sql_worker_describe(&worker, name, function);
	if (RegisterDynamicBackgroundWorker(&worker, NULL) || *told)
		return;
	ereport(LOG,
			(errmsg("cannot start the %s: no background worker is free", name),
			 errhint("Raise max_worker_processes. Without it, %s.", without)));
	*told = true;
}

/* Connects the process, as a superuser, and without what an operator sets for clients. */
void
ot_sql_worker_start(const char *name)
{
	static const char *const settings[][2] = {
		{"search_path", "pg_catalog"},
		/* relations are told by their names, as text */
		{"quote_all_identifiers", "off"},
		{"session_replication_role", "origin"},
		{"onetrip.read", "local"},
		{"onetrip.max_staleness", "-1"},
		{"onetrip.max_trips", "-1"},
	};

	pqsignal(SIGTERM, die);
	pqsignal(SIGINT, StatementCancelHandler);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(ot_database, NULL, BGWORKER_BYPASS_ALLOWCONN);
	ot_settings_set_up_worker();
	for (int i = 0; i < lengthof(settings); i++)
		ot_sql_worker_set(settings[i][0], settings[i][1]);
	/* PostgreSQL 17 has it */
	if (GetConfigOption("event_triggers", true, false) != NULL)
		ot_sql_worker_set("event_triggers", "off");
	ot_user_set_up();
	pgstat_report_appname(name);
	worker_name = name;
}

void
ot_sql_worker_set(const char *name, const char *value)
{
	SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

/* At the beginning of each round. */
void
ot_sql_worker_check(void)
{
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/* Until the next round. */
void
ot_sql_worker_wait(long ms)
{
	pgstat_report_stat(false);
	ot_wait_latch(ms);
}

/* ---- transactions ---- */

static void
sql_worker_start_transaction(void)
{
	context_before = CurrentMemoryContext;
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	ot_session_watch_errors();
}

/* The commit would leave the process in TopMemoryContext. */
static void
sql_worker_commit(void)
{
	CommitTransactionCommand();
	MemoryContextSwitchTo(context_before);
}

void
ot_sql_worker_begin(void)
{
	sql_worker_start_transaction();
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) SPI_connect();
}

void
ot_sql_worker_end(void)
{
	SPI_finish();
	PopActiveSnapshot();
	sql_worker_commit();
}

void
ot_sql_worker_execute(const char *query, int expected)
{
	if (SPI_execute(query, false, 0) != expected)
		elog(ERROR, "cannot execute \"%s\"", query);
}

/*
 * May one of these tables of schema onetrip have rows?  One without a page has
 * none, and a query would be planned each time for nothing.  Nor has one that is
 * not there because the extension has not been updated yet.
 */
bool
ot_sql_worker_may_have_rows(const char *const *tables, int ntables)
{
	bool		may_have = false;
	Oid			schema;

	sql_worker_start_transaction();
	schema = get_namespace_oid("onetrip", true);
	for (int i = 0; i < ntables; i++)
	{
		Oid			relid = get_relname_relid(tables[i], schema);
		Relation	rel = OidIsValid(relid) ? try_relation_open(relid, AccessShareLock) : NULL;

		if (rel == NULL)
			continue;
		may_have = may_have || RelationGetNumberOfBlocks(rel) > 0;
		relation_close(rel, AccessShareLock);
	}
	sql_worker_commit();
	return may_have;
}

/* What is told of an error.  A file name in it, for example, may not be valid text. */
static char *
sql_worker_message(const ErrorData *edata)
{
	char	   *message = pnstrdup(edata->message, pg_mbcliplen(edata->message, strlen(edata->message), 1000));

	return pg_verifymbstr(message, strlen(message), true) ? message : pstrdup("see the server's log");
}

/*
 * Runs a step, which may fail.  Returns the error's message, in the context of
 * the caller, and its SQLSTATE, or NULL.
 */
char *
ot_sql_worker_try(OtStep step, void *what, int *code)
{
	MemoryContext old = CurrentMemoryContext;
	char	   *volatile message = NULL;

	PG_TRY();
	{
		step(what);
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(old);
		edata = CopyErrorData();
		FlushErrorState();
		/* releases what the session has locked as well */
		AbortCurrentTransaction();
		pgstat_report_activity(STATE_IDLE, NULL);
		/* ereport() would serve a cancel that comes now, outside of PG_TRY() */
		HOLD_INTERRUPTS();
		ereport(LOG,
				(errcode(edata->sqlerrcode),
				 errmsg("%s: %s", worker_name, edata->message)));
		RESUME_INTERRUPTS();
		QueryCancelPending = false;
		message = sql_worker_message(edata);
		*code = edata->sqlerrcode;
	}
	PG_END_TRY();
	/* a user's function may have taken advisory locks, which outlive the transaction */
	ot_apply_let_locks_go();
	MemoryContextSwitchTo(old);
	return message;
}
