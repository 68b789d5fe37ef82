/*-------------------------------------------------------------------------
 *
 * ddl.c
 *	  Records utility statements, in order with the transaction's rows.
 *
 * The utility hook sees every statement that is not a plain query, whether a
 * client sent it or a function runs it.  A statement that is to run in every
 * region is recorded in the write set, as text, before it runs here: an ERROR
 * then removes the record together with the (sub)transaction.  Sub-commands
 * are part of the statement that runs them and are not recorded again.  What
 * happens inside a statement is the matter of ddl_objects.c and
 * ddl_event_trigger.c, what travels as its results that of ddl_results.c.
 *
 * IMPORT FOREIGN SCHEMA is recorded as each CREATE FOREIGN TABLE that the foreign
 * server's wrapper has answered with.
 *
 * Runs in backends.  In the apply worker, the utility hook only runs
 * statements that are replayed (ddl_apply.c).  Everything here may raise ERROR.
 * What describes the statements under way is put back in PG_FINALLY.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_running.h"

#include "access/xact.h"
#include "commands/event_trigger.h"
#include "commands/extension.h"
#include "commands/user.h"
#include "miscadmin.h"
#include "tcop/cmdtag.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/snapmgr.h"

#include "capture/capture.h"

OtDdlNow	ot_ddl_now;

static ProcessUtility_hook_type prev_process_utility = NULL;

static void ot_ddl_process_utility(PlannedStmt *pstmt, const char *query, bool read_only_tree,
								   ProcessUtilityContext context, ParamListInfo params,
								   QueryEnvironment *env, DestReceiver *dest,
								   QueryCompletion *completion);

/*
 * Records the statement, and in *noted what it has recorded.  Returns the parse tree to
 * run, which differs from the given one if CONCURRENTLY was left out, a password was
 * replaced by its verifier, LIKE by columns, an extension got its version, a
 * partition's bound was computed, or a query was analyzed again.
 */
static Node *
ddl_record_statement(const OtUtility *call, OtRecorded *noted)
{
	Node	   *stmt = ot_index_without_concurrently(call->node);
	Node	   *given = stmt;
	int			offset;
	char	   *text = ot_ddl_statement_text(call->pstmt, call->query, &offset);

	ot_ddl_check_text(text, stmt);
	if (IsA(stmt, CreateRoleStmt) || IsA(stmt, AlterRoleStmt))
	{
		stmt = ot_ddl_hide_password(stmt, &text, offset);
		noted->password_checked = stmt != given;
		ot_ddl_check_text(text, stmt);
	}
	/* what an event trigger runs meanwhile is none of the wrapper's statements */
	if (ot_ddl_now.imports && call->context == PROCESS_UTILITY_SUBCOMMAND && IsA(stmt, CreateForeignTableStmt))
		ot_ddl_name_schema((CreateForeignTableStmt *) stmt, &text);
	else
		stmt = ot_ddl_write_like(stmt, &text, offset);
	stmt = ot_ddl_analyze_again(stmt, text);
	stmt = ot_ddl_name_version(stmt, &text);
	stmt = ot_ddl_compute_bound(stmt, &text, offset, call->query);
	ot_ddl_name_session_user(&text);
	if (ot_ddl_may_change_code(stmt))
		ot_write_set_key_now(ot_hash_code(), OT_UPDATE, InvalidOid);
	ot_ddl_lock_relations(stmt);
	ot_setting_write_reset_all(stmt, &text);
	ot_ddl_leave_out_missing_roles(stmt, &text);
	if (text[0] == '\0')
		return stmt;
	ot_write_set_statement(text, ot_ddl_runs_script(stmt));
	noted->text = text;
	return stmt;
}

static bool
ddl_makes_type(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_CreateStmt:
		case T_CreateForeignTableStmt:
		case T_CreateTableAsStmt:
		case T_ExplainStmt:
		case T_ViewStmt:
		case T_CompositeTypeStmt:
		case T_CreateEnumStmt:
		case T_CreateRangeStmt:
		case T_CreateDomainStmt:
		case T_DefineStmt:
			return true;
		default:
			return false;
	}
}

/*
 * CREATE INDEX CONCURRENTLY, up to its first COMMIT.  Its event triggers fire
 * here, in one transaction with the index's entry in the catalogs.
 */
static Oid
ddl_define_index(IndexStmt *stmt, const char *query)
{
	bool		cleanup = EventTriggerBeginCompleteQuery();
	Oid			index;

	PG_TRY();
	{
		EventTriggerDDLCommandStart((Node *) stmt);
		index = ot_index_define(stmt, query);
		EventTriggerSQLDrop((Node *) stmt);
		EventTriggerDDLCommandEnd((Node *) stmt);
	}
	PG_FINALLY();
	{
		if (cleanup)
			EventTriggerEndCompleteQuery();
	}
	PG_END_TRY();
	return index;
}

/*
 * CREATE or ALTER ROLE, whose password was checked before it became a verifier; the
 * check may refuse that.
 */
static void
ddl_run_with_verifier(const OtUtility *call)
{
	check_password_hook_type check_password = check_password_hook;

	check_password_hook = NULL;
	PG_TRY();
	{
		ot_call_process_utility(call);
	}
	PG_FINALLY();
	{
		check_password_hook = check_password;
	}
	PG_END_TRY();
}

/*
 * Runs the statement with ot_ddl_now set up for it.  `statement`,
 * `running`, `truncating` and `made` are NULL if it is no recorded statement, no
 * CREATE TABLE AS, no TRUNCATE or not about temporary objects, respectively.
 */
static void
ddl_run_statement(const OtUtility *call, OtRecorded *statement, OtCreateAs *running,
				  OtTruncation *truncating, List **made)
{
	Node	   *node = call->node;
	/* the tree of a CALL may be gone once it has ended a transaction */
	RefreshMatViewStmt *refresh = IsA(node, RefreshMatViewStmt) ? (RefreshMatViewStmt *) node : NULL;
	OtDdlNow	outer = ot_ddl_now;

	PG_TRY();
	{
		ot_ddl_now.depth++;
		ot_ddl_now.renames = IsA(node, RenameStmt) || IsA(node, AlterObjectSchemaStmt);
		ot_ddl_now.makes_type = ddl_makes_type(node);
		ot_ddl_now.imports = IsA(node, ImportForeignSchemaStmt) && ot_capturing();
		ot_ddl_now.reindexes = IsA(node, ReindexStmt);
		ot_ddl_now.truncation = truncating;
		if (call->context != PROCESS_UTILITY_SUBCOMMAND)
			ot_ddl_now.made = made;
		if (statement)
		{
			statement->begun = GetCurrentCommandId(false);
			ot_ddl_now.recorded = statement;
			ot_ddl_now.filling = list_concat_copy(outer.filling, statement->emptied);
		}
		if (running)
		{
			running->depth = ot_ddl_now.depth;
			ot_ddl_now.create_as = running;
		}

		if (statement && ot_index_is_job(node))
			statement->index = ddl_define_index((IndexStmt *) node, call->query);
		else if (statement && statement->password_checked)
			ddl_run_with_verifier(call);
		else
			ot_call_process_utility(call);
		ot_ddl_note_results(refresh, statement, running);
	}
	PG_FINALLY();
	{
		ot_ddl_now = outer;
	}
	PG_END_TRY();
}

/*
 * PostgreSQL lets these run in a read-only transaction, in which the functions of
 * indexes run, in the apply worker and where the row is written.  But indexes and
 * locks are this server's own.
 */
static void
ddl_check_function_of_index(Node *stmt)
{
	if (XactReadOnly && InSecurityRestrictedOperation() &&
		(IsA(stmt, ReindexStmt) || IsA(stmt, ClusterStmt) || IsA(stmt, LockStmt)))
		PreventCommandIfReadOnly(GetCommandTagName(CreateCommandTag(stmt)));
}

static uint8
ddl_truncate_flags(TruncateStmt *stmt)
{
	return OT_EMPTIED_TRUNCATED |
		(stmt->restart_seqs ? OT_EMPTIED_RESTART : 0) |
		(stmt->behavior == DROP_CASCADE ? OT_EMPTIED_CASCADE : 0);
}

/* Runs a statement: what is recorded of it comes first, what is checked of its work follows. */
static void
ddl_run_as(OtUtility *call, OtStatementKind kind, bool is_temporary)
{
	bool		is_recorded = kind == OT_STATEMENT_SCHEMA;
	OtRecorded	statement = {NULL};
	OtCreateAs	new_table = {NULL};
	OtTruncation emptied = {NIL};
	List	   *made = NIL;
	CreateTableAsStmt *makes;
	bool		pushed = false;
	uint64		catalog_rows = 0;
	NodeTag		tag;

	if (kind != OT_STATEMENT_LOCAL && kind != OT_STATEMENT_TRUNCATE)
		ot_ddl_check_may_travel(GetCommandTagName(CreateCommandTag(call->node)));
	if (is_recorded)
	{
		pushed = ot_detach_under_lock(call->node);
		statement.fills = ot_ddl_fills(call->node, call->query, &statement.emptied, &statement.fills_children);
		ot_ddl_empty_first(&statement);
		call->node = ddl_record_statement(call, &statement);
		ot_index_jobs_finish(call->node);
	}
	call->node = ot_ddl_choose_access_method(call->node, &statement.access_methods);
	makes = kind != OT_STATEMENT_LOCAL ? ot_ddl_create_as(call->node) : NULL;
	if (makes != NULL)
	{
		new_table.into = makes->into;
		new_table.matview = kind != OT_STATEMENT_CREATE_AS;
	}
	if (is_recorded)
	{
		statement.stmt = call->node;
		statement.results = makes != NULL;
		ot_ddl_check_like(call->node);
	}
	if (kind == OT_STATEMENT_TRUNCATE)
		emptied.flags = ddl_truncate_flags((TruncateStmt *) call->node);
	if (kind == OT_STATEMENT_TRUNCATE || kind == OT_STATEMENT_REFRESH)
		catalog_rows = ot_unseen_catalog_rows();
	/* the tree of a CALL may be gone once it has ended a transaction */
	tag = nodeTag(call->node);

	ddl_run_statement(call, is_recorded ? &statement : NULL, makes ? &new_table : NULL,
					  kind == OT_STATEMENT_TRUNCATE ? &emptied : NULL, is_temporary ? &made : NULL);

	if (kind == OT_STATEMENT_REFRESH || emptied.all_travel)
		ot_unseen_catalog_rows_travel(catalog_rows);
	if (tag == T_LockStmt)
	{
		ot_own_tables_check_statement(call->node);
		if (ot_capturing())
			ot_lock_table_note((LockStmt *) call->node);
	}
	if (pushed)
		PopActiveSnapshot();
	if (is_recorded && (tag == T_CreatePublicationStmt || tag == T_AlterPublicationStmt))
		ot_detach_check_marks();
	if (is_recorded || kind == OT_STATEMENT_CREATE_AS)
		ot_ddl_check_dependencies(statement.functions);
	if (is_temporary)
		ot_ddl_check_made(made);
	ot_ddl_check_relations(statement.relations);
	if (OidIsValid(statement.index))
		ot_index_await(statement.index);
}

/* Runs a statement of ours, as if the client had sent it next. */
static void
ddl_run_second(const char *text, const OtUtility *first)
{
	PlannedStmt *pstmt = makeNode(PlannedStmt);

	pstmt->commandType = CMD_UTILITY;
	pstmt->canSetTag = true;
	pstmt->utilityStmt = linitial_node(RawStmt, pg_parse_query(text))->stmt;
	ot_ddl_process_utility(pstmt, text, false, first->context, first->params, first->env,
						   first->dest, first->completion);
}

static void
ot_ddl_process_utility(PlannedStmt *pstmt, const char *query,
					   bool read_only_tree, ProcessUtilityContext context,
					   ParamListInfo params, QueryEnvironment *env,
					   DestReceiver *dest, QueryCompletion *completion)
{
	OtUtility	call = {prev_process_utility, pstmt, pstmt->utilityStmt, query, read_only_tree,
		context, params, env, dest, completion};
	Node	   *node = call.node;
	OtStatementKind kind = OT_STATEMENT_LOCAL;
	bool		is_temporary = false;
	bool		may_travel;

	ddl_check_function_of_index(node);
	if (ot_is_apply_worker)
	{
		ot_ddl_replay_statement(&call);
		return;
	}
	ot_own_tables_check_statement(node);

	/* Also for statements that an extension's script runs. */
	if (ot_ddl_now.recorded != NULL && IsTransactionState())
	{
		ot_ddl_lock_relations(node);
		if (creating_extension)
		{
			ot_ddl_check_script(node, query);
			ot_index_jobs_finish(node);
		}
		else
			ot_ddl_order_foreign_keys(node);
	}

	/* Nothing below may look at catalogs in a failed transaction. */
	if (IsA(node, TransactionStmt) || !IsTransactionState() ||
		!ot_preloaded || !IsUnderPostmaster)
	{
		ot_call_process_utility(&call);
		return;
	}

	ot_ddl_check_everywhere(node);
	may_travel = (context != PROCESS_UTILITY_SUBCOMMAND || ot_ddl_now.imports) && ot_capturing();
	if (IsA(node, ReindexStmt))
	{
		if (may_travel && ot_reindex_run((ReindexStmt *) node, context))
			return;
		ot_index_check_reindex((ReindexStmt *) node);
	}
	if (may_travel)
	{
		if (ot_detach_run(&call, ddl_run_second))
			return;
		ot_detach_before_finalize(node);
		ot_index_wait_politely(node, context);
		kind = ot_ddl_classify(node, query, &is_temporary);
	}
	ddl_run_as(&call, kind, is_temporary);
}

void
ot_ddl_init(void)
{
	ot_ddl_results_init();
	ot_ddl_objects_init();
	ot_ddl_event_trigger_init();
	ot_ddl_share_init();
	ot_notify_init();
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = ot_ddl_process_utility;
}
