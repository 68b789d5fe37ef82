/*-------------------------------------------------------------------------
 *
 * bill.c
 *	  EXPLAIN (ANALYZE, DIST): what a statement adds to the bill of its
 *	  transaction.
 *
 * The server's EXPLAIN does not know the option, so it is taken out of the
 * statement before that reads it, and what it stands for is printed behind each
 * plan, as a group of its own.
 *
 * Runs in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "access/xact.h"
#include "commands/defrem.h"
#include "commands/explain.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "capture/capture.h"
#include "ddl/ddl.h"
#include "shmem/shmem.h"

static ProcessUtility_hook_type prev_process_utility = NULL;
static ExplainOneQuery_hook_type prev_explain_one_query = NULL;

/* The EXPLAIN that runs. */
static struct
{
	bool		dist;			/* has the option */
	OtLogIndex	position;		/* what its snapshot shows at least; 0: not known */
}			explaining;

/* ---- what is printed ---- */

static const char *const key_modes[OT_KEY_MODES] = {
	[OT_KEY_SHARE] = "KEY SHARE",
	[OT_SHARE] = "SHARE",
	[OT_NO_KEY_UPDATE] = "NO KEY UPDATE",
	[OT_UPDATE] = "UPDATE",
};

/* A group; in text, a heading and lines below it. */
static void
bill_open(const char *name, ExplainState *es)
{
	ExplainOpenGroup(name, name, true, es);
	if (es->format == EXPLAIN_FORMAT_TEXT)
	{
		appendStringInfoSpaces(es->str, es->indent * 2);
		appendStringInfo(es->str, "%s:\n", name);
		es->indent++;
	}
}

static void
bill_close(const char *name, ExplainState *es)
{
	if (es->format == EXPLAIN_FORMAT_TEXT)
		es->indent--;
	ExplainCloseGroup(name, name, true, es);
}

static void
bill_keys(const int64 *keys, ExplainState *es)
{
	StringInfoData text;
	int64		sum = 0;

	if (es->format != EXPLAIN_FORMAT_TEXT)
	{
		ExplainOpenGroup("Keys", "Keys", true, es);
		for (int mode = 0; mode < OT_KEY_MODES; mode++)
			ExplainPropertyInteger(key_modes[mode], NULL, keys[mode], es);
		ExplainCloseGroup("Keys", "Keys", true, es);
		return;
	}
	initStringInfo(&text);
	for (int mode = 0; mode < OT_KEY_MODES; mode++)
	{
		if (keys[mode] == 0)
			continue;
		appendStringInfo(&text, "%s%s " INT64_FORMAT, sum > 0 ? ", " : "", key_modes[mode], keys[mode]);
		sum += keys[mode];
	}
	ExplainPropertyText("Keys", sum == 0 ? "none" : text.data, es);
	pfree(text.data);
}

static void
bill_snapshot(const OtFreshCost *fresh, ExplainState *es)
{
	OtLogIndex	position = explaining.position;

	if (fresh->at.value > position.value)
		position = fresh->at;
	if (position.value == 0)
		return;
	ExplainPropertyInteger("Snapshot Position", NULL, (int64) position.value, es);
	/* times differ from run to run, so they obey the option that leaves them out */
	if (es->timing && ot_applied_at() != 0)
		ExplainPropertyFloat("Shown For", "ms",
							 TimestampDifferenceMilliseconds(ot_applied_at(), ot_now()), 0, es);
}

/* What the transaction has by now. */
typedef struct Bill
{
	OtWriteSetSizes sizes;
	int			trips;
	int64		row_locks;
} Bill;

static void
bill_read(Bill *bill)
{
	ot_write_set_sizes(&bill->sizes);
	bill->trips = ot_trips_taken();
	bill->row_locks = ot_row_locks_asked();
}

static void
bill_print(const Bill *before, ExplainState *es)
{
	Bill		now;
	OtFreshCost fresh = ot_fresh_cost();

	bill_read(&now);
	for (int mode = 0; mode < OT_KEY_MODES; mode++)
		now.sizes.keys[mode] -= before->sizes.keys[mode];

	ExplainOpenGroup("Query", NULL, true, es);
	bill_open("Distribution", es);
	ExplainPropertyInteger("Rows Captured", NULL, now.sizes.rows - before->sizes.rows, es);
	ExplainPropertyInteger("Write Set", "bytes", now.sizes.bytes - before->sizes.bytes, es);
	bill_keys(now.sizes.keys, es);
	/* a transaction in the other mode asks for none, as a plan without JIT has no line about it */
	if (now.row_locks > 0)
		ExplainPropertyInteger("Row Locks Asked For", NULL, now.row_locks - before->row_locks, es);
	bill_snapshot(&fresh, es);
	if (fresh.asked && es->timing)
	{
		bill_open("Fresh Read", es);
		ExplainPropertyFloat("Asked Other Regions", "ms", fresh.asked_ms, 3, es);
		ExplainPropertyFloat("Waited Until Shown", "ms", fresh.shown_ms, 3, es);
		bill_close("Fresh Read", es);
	}
	ExplainPropertyInteger("Round Trips", NULL, now.trips - before->trips, es);
	ExplainPropertyInteger("Round Trips at COMMIT", NULL, ot_commit_trips(), es);
	bill_close("Distribution", es);
	ExplainCloseGroup("Query", NULL, true, es);
}

/* ---- EXECUTE ---- */

/*
 * The server explains EXECUTE without calling the hook for queries.  So a query
 * stands in for it until the hook is called: a SELECT of nothing, which is the
 * only one that has a utility statement.
 */
static bool
bill_stands_for_execute(const Query *query)
{
	return query->commandType == CMD_SELECT && query->utilityStmt != NULL;
}

static Query *
bill_execute_as_query(const Query *query)
{
	Query	   *select = makeNode(Query);

	select->commandType = CMD_SELECT;
	select->querySource = query->querySource;
	select->canSetTag = query->canSetTag;
	select->utilityStmt = query->utilityStmt;
	select->jointree = makeFromExpr(NIL, NULL);
	select->stmt_location = query->stmt_location;
	select->stmt_len = query->stmt_len;
	return select;
}

/* Returns the query of an EXPLAIN in which EXECUTE, also that of CREATE TABLE AS, is such a query. */
static Node *
bill_with_execute(Node *node)
{
	Query	   *query = (Query *) node;

	if (!IsA(node, Query) || query->commandType != CMD_UTILITY)
		return node;
	if (IsA(query->utilityStmt, ExecuteStmt))
		return (Node *) bill_execute_as_query(query);
	if (IsA(query->utilityStmt, CreateTableAsStmt))
	{
		CreateTableAsStmt *create = makeNode(CreateTableAsStmt);

		*create = *(CreateTableAsStmt *) query->utilityStmt;
		create->query = bill_with_execute(create->query);
		query = makeNode(Query);
		*query = *(Query *) node;
		query->utilityStmt = (Node *) create;
	}
	return (Node *) query;
}

static void
ot_explain_one_query(Query *query, int cursor_options, IntoClause *into, ExplainState *es,
					 const char *text, ParamListInfo params, QueryEnvironment *env)
{
	Bill		before;

	bill_read(&before);
	if (bill_stands_for_execute(query))
		ot_explain_execute((ExecuteStmt *) query->utilityStmt, into, es, text, params, env);
	else if (prev_explain_one_query)
		prev_explain_one_query(query, cursor_options, into, es, text, params, env);
	else
		ot_standard_explain_one_query(query, cursor_options, into, es, text, params, env);
	if (unlikely(explaining.dist))
		bill_print(&before, es);
}

/* ---- the option ---- */

/*
 * Returns the statement without the option, and whether it asks for what the
 * option stands for.  The statement itself stays as it is.
 */
static ExplainStmt *
bill_take_option(ExplainStmt *stmt, bool *dist)
{
	ExplainStmt *copy;
	List	   *options = NIL;
	bool		analyze = false;
	ListCell   *lc;

	*dist = false;
	foreach(lc, stmt->options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, "dist") == 0)
		{
			*dist = defGetBoolean(option);
			continue;
		}
		if (strcmp(option->defname, "analyze") == 0)
			analyze = defGetBoolean(option);
		options = lappend(options, option);
	}
	if (list_length(options) == list_length(stmt->options))
		return stmt;
	if (*dist && !analyze)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("EXPLAIN option DIST requires ANALYZE")));
	copy = makeNode(ExplainStmt);
	*copy = *stmt;
	copy->options = options;
	if (*dist)
		copy->query = bill_with_execute(copy->query);
	return copy;
}

/*
 * What the client's own statement reads is known exactly if its snapshot is
 * taken after the position was read.  In REPEATABLE READ it may be older.
 */
static bool
bill_renew_snapshot(ProcessUtilityContext context)
{
	if (context != PROCESS_UTILITY_TOPLEVEL || IsolationUsesXactSnapshot())
		return false;
	explaining.position = ot_applied_index();
	PushActiveSnapshot(GetTransactionSnapshot());
	return true;
}

static void
bill_run(OtUtility *call)
{
	bool		pushed;

	explaining.position.value = 0;
	call->node = (Node *) bill_take_option((ExplainStmt *) call->node, &explaining.dist);
	pushed = explaining.dist && bill_renew_snapshot(call->context);
	ot_call_process_utility(call);
	if (pushed)
		PopActiveSnapshot();
}

static void
ot_explain_process_utility(PlannedStmt *pstmt, const char *query,
						   bool read_only_tree, ProcessUtilityContext context,
						   ParamListInfo params, QueryEnvironment *env,
						   DestReceiver *dest, QueryCompletion *completion)
{
	OtUtility	call = {prev_process_utility, pstmt, pstmt->utilityStmt, query, read_only_tree,
		context, params, env, dest, completion};
	bool		outer_dist = explaining.dist;
	OtLogIndex	outer_position = explaining.position;

	if (likely(!IsA(pstmt->utilityStmt, ExplainStmt)))
	{
		ot_call_process_utility(&call);
		return;
	}
	PG_TRY();
	{
		bill_run(&call);
	}
	PG_FINALLY();
	{
		explaining.dist = outer_dist;
		explaining.position = outer_position;
	}
	PG_END_TRY();
}

void
ot_explain_init(void)
{
	prev_explain_one_query = ExplainOneQuery_hook;
	ExplainOneQuery_hook = ot_explain_one_query;
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = ot_explain_process_utility;
}
