/*-------------------------------------------------------------------------
 *
 * ddl_event_trigger.c
 *	  Functions of event triggers, which are not part of the statement.
 *
 * Such a function does not run where the statement is replayed, so its changes
 * are captured, even while the script of an extension runs.  If the statement has
 * not changed anything yet, the function's changes come first: the statement's
 * record is taken back and made again after them.
 *
 * Runs in backends.  Everything here may raise ERROR.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_running.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "capture/capture.h"

/* What is set aside while the function runs. */
typedef struct Outside
{
	OtDdlNow	now;
	bool		in_event_trigger;
	bool		note_again;
} Outside;

static needs_fmgr_hook_type prev_needs_fmgr = NULL;
static fmgr_hook_type prev_fmgr = NULL;

static bool
ddl_event_trigger_is_for_one(Oid function)
{
	return get_func_rettype(function) == EVENT_TRIGGEROID;
}

static bool
ot_ddl_needs_fmgr_hook(Oid function)
{
	ot_ddl_keep_error_context();
	if (prev_needs_fmgr && prev_needs_fmgr(function))
		return true;
	return unlikely(ot_ddl_now.recorded != NULL) && ddl_event_trigger_is_for_one(function);
}

/* Event triggers fire for no EXPLAIN, so it is CREATE MATERIALIZED VIEW that is analyzed. */
static void
ddl_event_trigger_analyze_in_place(OtRecorded *statement)
{
	CreateTableAsStmt *create_as = (CreateTableAsStmt *) statement->stmt;
	CreateTableAsStmt *again;
	MemoryContext old;

	if (!IsA(create_as, CreateTableAsStmt))
		return;
	old = MemoryContextSwitchTo(TopTransactionContext);
	again = castNode(CreateTableAsStmt, ot_ddl_analyze_again((Node *) create_as, statement->text));
	create_as->query = again->query;
	create_as->into->viewQuery = again->into->viewQuery;
	MemoryContextSwitchTo(old);
}

static void
ddl_event_trigger_record_again(OtRecorded *statement)
{
	CommandCounterIncrement();
	statement->begun = GetCurrentCommandId(false);
	/* the function may have changed settings, which are recorded anew */
	ot_ddl_name_access_method(statement->access_methods);
	ddl_event_trigger_analyze_in_place(statement);
	ot_write_set_statement(statement->text, ot_ddl_runs_script(statement->stmt));
}

/* Called before and after a function. */
static void
ot_ddl_fmgr(FmgrHookEventType event, FmgrInfo *flinfo, Datum *arg)
{
	Outside    *outside = (Outside *) DatumGetPointer(*arg);
	OtRecorded *recorded = ot_ddl_now.recorded;

	if (prev_fmgr && (!prev_needs_fmgr || prev_needs_fmgr(flinfo->fn_oid)))
	{
		/* there is room for one hook's argument only; leave it to that hook */
		prev_fmgr(event, flinfo, arg);
		return;
	}
	if (event == FHET_START)
	{
		*arg = (Datum) 0;
		if (recorded == NULL || !ddl_event_trigger_is_for_one(flinfo->fn_oid))
			return;
		outside = MemoryContextAlloc(TopTransactionContext, sizeof(Outside));
		outside->now = ot_ddl_now;
		outside->in_event_trigger = ot_in_event_trigger;
		outside->note_again = recorded->text != NULL && recorded->begun == GetCurrentCommandId(false) &&
			ot_write_set_take_statement_back();
		ot_ddl_now.recorded = NULL;
		ot_ddl_now.truncation = NULL;
		ot_ddl_now.create_as = NULL;
		ot_in_event_trigger = true;
		*arg = PointerGetDatum(outside);
		return;
	}
	if (outside == NULL)
		return;
	ot_ddl_now = outside->now;
	ot_in_event_trigger = outside->in_event_trigger;
	*arg = (Datum) 0;
	if (event == FHET_END && outside->note_again)
		ddl_event_trigger_record_again(ot_ddl_now.recorded);
	pfree(outside);
}

void
ot_ddl_event_trigger_init(void)
{
	prev_needs_fmgr = needs_fmgr_hook;
	needs_fmgr_hook = ot_ddl_needs_fmgr_hook;
	prev_fmgr = fmgr_hook;
	fmgr_hook = ot_ddl_fmgr;
}
