/*-------------------------------------------------------------------------
 *
 * ddl_apply.c
 *	  Runs a statement that another region has recorded.
 *
 * Runs in the apply worker, in the transaction of the entry, with
 * session_replication_role = replica and the origin's transaction time.  The
 * statement runs as the role that ran it, with the settings that it had.  An
 * ERROR leaves role and settings to the end of the transaction; the entry is
 * then tried again, since it is decided and cannot be left out.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_inherits.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/analyze.h"
#include "tcop/dest.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

#include "capture/capture.h"

/* How much of a statement an error context shows. */
#define CONTEXT_BYTES 200

static void
ddl_apply_say_statement(void *arg)
{
	const char *text = arg;

	errcontext("replaying the statement \"%.*s%s\"", CONTEXT_BYTES, text,
			   strlen(text) > CONTEXT_BYTES ? "..." : "");
}

/*
 * The session's own user is a superuser, and a function of a user that the
 * statement runs must neither SET ROLE its way back to it nor leave anything
 * behind for later entries, temporary tables for example.  Parsing runs
 * functions already (the CHECK of a domain within a constant).  The rules of
 * SECURITY DEFINER functions and of maintenance commands apply.
 */
#define NOT_TRUSTED (SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION)

/* These rules also forbid some statements to say what they are about. */
static int
ddl_apply_security_context(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_AlterFunctionStmt:
		case T_AlterRoleSetStmt:
		case T_AlterDatabaseSetStmt:
			/* SET role = ... as a definition; they run no functions */
			return 0;
		case T_CreateExtensionStmt:
		case T_AlterExtensionStmt:
			/* scripts may use temporary tables */
			return SECURITY_LOCAL_USERID_CHANGE;
		default:
			return NOT_TRUSTED;
	}
}

static bool
ddl_apply_sets_role(DefElem *option)
{
	const char *name;

	if (strcmp(option->defname, "set") != 0)
		return false;
	name = ((VariableSetStmt *) option->arg)->name;
	return name != NULL && (pg_strcasecmp(name, "role") == 0 ||
							pg_strcasecmp(name, "session_authorization") == 0);
}

/*
 * CREATE FUNCTION may set a role for the function, and it runs functions, in
 * the defaults of arguments.  So that setting is left to an ALTER FUNCTION, to
 * be run behind, which makes all of them again, in the order that they have.
 * NULL: there is none.
 */
static Node *
ddl_apply_take_role_out(Node *stmt)
{
	CreateFunctionStmt *create = (CreateFunctionStmt *) stmt;
	AlterFunctionStmt *alter;
	VariableSetStmt *reset = makeNode(VariableSetStmt);
	bool		found = false;
	ListCell   *lc;

	if (!IsA(stmt, CreateFunctionStmt))
		return NULL;
	alter = makeNode(AlterFunctionStmt);
	foreach(lc, create->options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, "set") == 0)
			alter->actions = lappend(alter->actions, copyObject(option));
		if (!ddl_apply_sets_role(option))
			continue;
		found = true;
		create->options = foreach_delete_current(create->options, lc);
	}
	if (!found)
		return NULL;
	reset->kind = VAR_RESET_ALL;
	alter->actions = lcons(makeDefElem("set", (Node *) reset, -1), alter->actions);

	alter->objtype = create->is_procedure ? OBJECT_PROCEDURE : OBJECT_FUNCTION;
	alter->func = ot_ddl_created_function(create);
	return (Node *) alter;
}

/*
 * Does all that the table and its children hold come from the log?  What is in
 * tables of another access method, and in unlogged ones, is this region's own.
 */
static bool
ddl_apply_has_rows_of_log_only(RangeVar *name)
{
	Oid			relid = RangeVarGetRelid(name, NoLock, true);
	ListCell   *lc;

	if (!OidIsValid(relid))
		return false;
	foreach(lc, find_all_inheritors(relid, NoLock, NULL))
	{
		if (!ot_contents_of_travel(lfirst_oid(lc)))
			return false;
	}
	return true;
}

/* Rows that are there pass a new constraint; NOT VALID stays what it is. */
static void
ddl_apply_leave_unchecked(RangeVar *table, Node *node)
{
	Constraint *constraint = (Constraint *) node;

	if (!IsA(node, Constraint) || constraint->skip_validation ||
		(constraint->contype != CONSTR_CHECK && constraint->contype != CONSTR_FOREIGN))
		return;
	if (!ddl_apply_has_rows_of_log_only(table) ||
		(constraint->contype == CONSTR_FOREIGN && !ddl_apply_has_rows_of_log_only(constraint->pktable)))
		return;
	constraint->skip_validation = true;
	constraint->initially_valid = true;
}

/*
 * What the statement would compute, call or check, and what its own region has
 * computed, called or checked: the contents of a materialized view follow as
 * rows; constraints were found to hold for rows that are the same here, under
 * the privileges and row security of there.
 */
static void
ddl_apply_leave_to_results(Node *stmt)
{
	RangeVar   *table;
	ListCell   *lc;

	if (IsA(stmt, CreateTableAsStmt))
		((CreateTableAsStmt *) stmt)->into->skipData = true;
	if (!IsA(stmt, AlterTableStmt))
		return;
	table = ((AlterTableStmt *) stmt)->relation;
	foreach(lc, ((AlterTableStmt *) stmt)->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);
		ListCell   *of_column;

		if (command->subtype == AT_AddConstraint)
			ddl_apply_leave_unchecked(table, command->def);
		else if (command->subtype == AT_AddColumn)
		{
			foreach(of_column, castNode(ColumnDef, command->def)->constraints)
				ddl_apply_leave_unchecked(table, lfirst(of_column));
		}
	}
}

static void
ddl_apply_run_statement(PlannedStmt *pstmt, const char *text, Oid roleid, int sec_context)
{
	/* some statements use up the snapshot they are given */
	if (!ActiveSnapshotSet())
		PushActiveSnapshot(GetTransactionSnapshot());
	SetUserIdAndSecContext(roleid, sec_context | ddl_apply_security_context(pstmt->utilityStmt));
	ProcessUtility(pstmt, text, false, PROCESS_UTILITY_QUERY, NULL, NULL,
				   None_Receiver, NULL);
	SetUserIdAndSecContext(roleid, sec_context | NOT_TRUSTED);
	CommandCounterIncrement();
}

static void
ddl_apply_run_text(const char *text, Oid roleid, int sec_context)
{
	ListCell   *lc;

	foreach(lc, pg_parse_query(text))
	{
		RawStmt    *raw = lfirst_node(RawStmt, lc);
		List	   *planned;
		ListCell   *plan;

		CHECK_FOR_INTERRUPTS();
		PushActiveSnapshot(GetTransactionSnapshot());
		planned = pg_plan_queries(pg_analyze_and_rewrite_fixedparams(raw, text, NULL, 0, NULL),
								  text, 0, NULL);
		foreach(plan, planned)
		{
			PlannedStmt *pstmt = lfirst_node(PlannedStmt, plan);
			Node	   *behind;

			if (pstmt->commandType != CMD_UTILITY)
				ereport(ERROR,
						(errcode(OT_ERR_PROTOCOL),
						 errmsg("entry holds a statement that is not a utility statement")));
			ot_ddl_lock_schema();
			ddl_apply_leave_to_results(pstmt->utilityStmt);
			behind = ddl_apply_take_role_out(pstmt->utilityStmt);
			ddl_apply_run_statement(pstmt, text, roleid, sec_context);
			if (behind)
			{
				pstmt->utilityStmt = behind;
				ddl_apply_run_statement(pstmt, text, roleid, sec_context);
			}
		}
		if (ActiveSnapshotSet())
			PopActiveSnapshot();
	}
}

/* Applies an 'S' operation; r stands behind the op byte. */
void
ot_ddl_apply_statement(OtReader *r)
{
	uint32		len = ot_get_u32(r);
	char	   *text = pnstrdup(ot_get_bytes(r, len), len);
	char	   *role = ot_get_str(r);
	ErrorContextCallback context;
	Oid			roleid;
	Oid			saved_user;
	int			saved_sec_context;
	int			guc_level = NewGUCNestLevel();

	context.callback = ddl_apply_say_statement;
	context.arg = text;
	context.previous = error_context_stack;
	error_context_stack = &context;

	roleid = get_role_oid(role, true);
	if (!OidIsValid(roleid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role \"%s\" does not exist on this node", role),
				 errhint("It was made outside of the replicated database. Create it here, and the statement goes on.")));

	PG_TRY();
	{
		/* Role first: search_path may say "$user". */
		GetUserIdAndSecContext(&saved_user, &saved_sec_context);
		SetUserIdAndSecContext(roleid, saved_sec_context | NOT_TRUSTED);
		ot_session_settings_apply(r, roleid);

		ot_ddl_set_replaying(true);
		ddl_apply_run_text(text, roleid, saved_sec_context);

		/* false: what its functions have set ends here too */
		AtEOXact_GUC(false, guc_level);
	}
	PG_FINALLY();
	{
		ot_ddl_set_replaying(false);
		ot_session_settings_end_statement();
	}
	PG_END_TRY();
	SetUserIdAndSecContext(saved_user, saved_sec_context);
	error_context_stack = context.previous;
	pfree(role);
	pfree(text);
}
