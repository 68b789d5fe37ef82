/*-------------------------------------------------------------------------
 *
 * ddl_apply.c
 *	  Runs a statement that another region has recorded.
 *
 * Runs in the apply worker, in the transaction of the entry, with the transaction
 * time of the original transaction.  The statement runs as the role that ran it
 * there, with the settings that it had there.  It fires no event triggers
 * (ddl_event_trigger.c); but what its functions write, into tables whose rows are
 * this server's own, fires triggers as everywhere, since only superusers may switch
 * them off.  So does what the script of an extension writes, since triggers fill in
 * columns.  After an ERROR, the end of the transaction restores role and settings;
 * the entry is then tried again, since it is decided.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_inherits.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "commands/user.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/analyze.h"
#include "parser/parse_type.h"
#include "storage/bufmgr.h"
#include "tcop/cmdtag.h"
#include "tcop/dest.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "capture/capture.h"

/* How much of a statement an error context shows. */
#define CONTEXT_BYTES 200

bool		ot_ddl_replaying = false;	/* a statement is run, as opposed to rows being
										 * written */
static bool next_is_entry = false;	/* the next statement is the one that is replayed:
									 * all others are those of functions, which it may
									 * run before it runs itself, while it is parsed */

static void
ddl_apply_say_statement(void *arg)
{
	const char *text = arg;

	errcontext("replaying the statement \"%.*s%s\"", CONTEXT_BYTES, text,
			   strlen(text) > CONTEXT_BYTES ? "..." : "");
}

/* Is this the context of a statement, and not of a function that it runs? */
bool
ot_ddl_says_statement(const ErrorContextCallback *context)
{
	return context->callback == ddl_apply_say_statement;
}

/*
 * The restricted rules (user_context.c) apply from parsing on, which may run
 * functions too: the CHECK of a domain, for a constant.  They are relaxed for
 * scripts, which may use temporary tables.
 */
bool
ot_ddl_runs_script(Node *stmt)
{
	return IsA(stmt, CreateExtensionStmt) || IsA(stmt, AlterExtensionStmt);
}

/*
 * Deferred triggers, of what a script has written, fire at its end: as its role, in a
 * rehearsal too, and before the rows that travel take the place of the script's.
 */
static void
ddl_apply_fire_deferred(void)
{
	ConstraintsSetStmt *all_immediate = makeNode(ConstraintsSetStmt);

	AfterTriggerSetState(all_immediate);
}

static void
ddl_apply_set(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, ERROR, false);
}

/* PostgreSQL lets nobody rename the session user; a SECURITY DEFINER function may rename the role that it runs as. */
static bool
ddl_apply_renames(Node *stmt, Oid roleid)
{
	RenameStmt *rename = (RenameStmt *) stmt;

	return IsA(stmt, RenameStmt) && rename->renameType == OBJECT_ROLE &&
		get_role_oid(rename->subname, true) == roleid;
}

/*
 * Do all rows of the table and its children come from the log?  Rows of
 * unlogged tables, and of tables with another access method, are this server's
 * own.
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

/*
 * Marks a new constraint as valid without checking the rows that are there.
 * One that is NOT VALID stays so.
 */
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
 * Is the column new to the table and its children, and has none of them a row?
 * So it is if the values may differ between regions: the write set says first
 * that they are empty.
 */
static bool
ddl_apply_adds_to_empty(List *commands, RangeVar *table, const char *column)
{
	Oid			relid = RangeVarGetRelid(table, AccessExclusiveLock, true);
	bool		answer = OidIsValid(relid);
	ListCell   *lc;

	if (!answer)
		return false;
	foreach(lc, find_all_inheritors(relid, AccessExclusiveLock, NULL))
	{
		Relation	rel = relation_open(lfirst_oid(lc), NoLock);

		/* of a temporary child the file may be gone with a crash */
		if (rel->rd_rel->relpersistence != RELPERSISTENCE_TEMP)
			/* of a child the column may stay, with its own default, where it goes from the parent */
			answer &= !ot_ddl_keeps_column(lfirst_oid(lc) == relid ? commands : NIL, lfirst_oid(lc), column) &&
				(!RELKIND_HAS_STORAGE(rel->rd_rel->relkind) || RelationGetNumberOfBlocks(rel) == 0);
		relation_close(rel, NoLock);
	}
	return answer;
}

/*
 * Takes the default out of ADD COLUMN.  Returns the command that sets it, which
 * computes nothing; NULL if there is no default.
 */
static AlterTableCmd *
ddl_apply_take_default_out(ColumnDef *column)
{
	ListCell   *lc;

	foreach(lc, column->constraints)
	{
		Constraint *constraint = lfirst_node(Constraint, lc);

		if (constraint->contype == CONSTR_DEFAULT && constraint->raw_expr)
		{
			AlterTableCmd *set = makeNode(AlterTableCmd);

			set->subtype = AT_ColumnDefault;
			set->name = column->colname;
			set->def = constraint->raw_expr;
			column->constraints = foreach_delete_current(column->constraints, lc);
			return set;
		}
	}
	return NULL;
}

/*
 * Removes from the statement what its own region has already computed or
 * checked for all regions.  The contents of a materialized view follow as
 * rows.  Constraints were found to hold there for the same rows, under that
 * region's privileges and row security.
 */
static void
ddl_apply_leave_to_results(Node *stmt)
{
	RangeVar   *table;
	List	   *defaults = NIL;
	ListCell   *lc;

	if (IsA(stmt, CreateTableAsStmt))
		((CreateTableAsStmt *) stmt)->into->skipData = true;
	/* it has taken all its locks there; here the worker evicts whoever is in its way */
	if (IsA(stmt, AlterTableMoveAllStmt))
		((AlterTableMoveAllStmt *) stmt)->nowait = false;
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
			ColumnDef  *column = castNode(ColumnDef, command->def);

			foreach(of_column, column->constraints)
				ddl_apply_leave_unchecked(table, lfirst(of_column));
			if ((((AlterTableStmt *) stmt)->objtype == OBJECT_TABLE ||
				 ((AlterTableStmt *) stmt)->objtype == OBJECT_FOREIGN_TABLE) &&
				ddl_apply_adds_to_empty(((AlterTableStmt *) stmt)->cmds, table, column->colname))
			{
				AlterTableCmd *set = ddl_apply_take_default_out(column);

				if (set != NULL)
					defaults = lappend(defaults, set);
			}
		}
	}
	/* the statement itself may go on to change a default */
	((AlterTableStmt *) stmt)->cmds = list_concat(defaults, ((AlterTableStmt *) stmt)->cmds);
}

/*
 * Looks up the column's type and collation, as whoever calls.  Only names with a
 * schema, which mean the same for every role that may look them up.
 */
void
ot_ddl_resolve_column(Node *element)
{
	ColumnDef  *column = (ColumnDef *) element;
	TypeName   *type = IsA(column, ColumnDef) ? column->typeName : NULL;

	if (type == NULL)
		return;
	if (list_length(type->names) > 1 && !type->pct_type)
	{
		/* no function for a modifier is run */
		TypeName   *name = makeTypeNameFromNameList(type->names);

		name->arrayBounds = type->arrayBounds;
		type->typeOid = LookupTypeNameOid(NULL, name, true);
		if (OidIsValid(type->typeOid))
			type->names = NIL;
	}
	if (column->collClause != NULL && list_length(column->collClause->collname) > 1)
	{
		column->collOid = get_collation_oid(column->collClause->collname, true);
		if (OidIsValid(column->collOid))
			column->collClause = NULL;
	}
}

/*
 * What a query has made a table of (CREATE TABLE AS), or LIKE, may be of types in a
 * schema that the role may not use.  What the role has named itself was checked where
 * the statement ran.
 */
static void
ddl_apply_resolve_columns(CreateStmt *stmt, int sec_context)
{
	Oid			roleid = GetUserId();
	ListCell   *lc;

	if (!IsA(stmt, CreateStmt) && !IsA(stmt, CreateForeignTableStmt))
		return;
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, sec_context | OT_USER_RESTRICTED);
	foreach(lc, stmt->tableElts)
		ot_ddl_resolve_column(lfirst(lc));
	SetUserIdAndSecContext(roleid, sec_context | OT_USER_RESTRICTED);
}

/*
 * Carries out the entry's own statement, if it is one that does something else here
 * than where it comes from.
 */
static bool
ddl_apply_otherwise(const OtUtility *call)
{
	Node	   *stmt = call->node;

	if (ot_index_is_job(stmt))
		(void) ot_index_define((IndexStmt *) stmt, call->query);
	else if (!IsA(stmt, ReindexStmt))
		return ot_setting_apply(stmt);
	else if (ot_reindex_is_concurrent((ReindexStmt *) stmt))
		ot_reindex_define((ReindexStmt *) stmt);
	else
		ot_index_apply_second((ReindexStmt *) stmt);
	return true;
}

/*
 * What the utility hook does in the apply worker: runs a statement that is replayed,
 * or one of a function or a script.  It runs as a sub-command so that it fires no
 * event triggers: those fired where the statement comes from, and what they did was
 * captured.
 */
void
ot_ddl_replay_statement(OtUtility *call)
{
	List	   *access_methods = NIL;
	bool		of_entry;		/* the entry's own statement, and none of a function or a script */
	bool		finalizes;

	if (IsTransactionState())
		call->node = ot_ddl_choose_access_method(call->node, &access_methods);
	of_entry = ot_ddl_replaying && next_is_entry;
	next_is_entry = false;
	if (ot_ddl_replaying && !of_entry && call->context != PROCESS_UTILITY_SUBCOMMAND && !creating_extension &&
		(GetCommandLogLevel(call->node) == LOGSTMT_DDL || IsA(call->node, ReindexStmt)))
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("a function that the statement calls runs %s in region \"%s\"",
						GetCommandTagName(CreateCommandTag(call->node)), ot_region),
				 IsA(call->node, ReindexStmt) ?
				 errdetail("The region that the statement comes from lets a function do so, and other regions do not.") :
				 errdetail("It did not do so in the region that the statement comes from.")));
	if (IsTransactionState())
	{
		ot_ddl_lock_relations(call->node);
		ot_index_jobs_finish(call->node);
	}
	if (of_entry && ddl_apply_otherwise(call))
		return;
	if (ot_ddl_replaying)
		call->context = PROCESS_UTILITY_SUBCOMMAND;
	finalizes = ot_detach_is_finalize(call->node);
	if (finalizes)
		ot_detach_push_snapshot();
	ot_call_process_utility(call);
	if (finalizes)
		PopActiveSnapshot();
}

static void
ddl_apply_run_statement(PlannedStmt *pstmt, const char *text, Oid roleid, int sec_context)
{
	bool		is_script = ot_ddl_runs_script(pstmt->utilityStmt);

	/* some statements pop the snapshot they are given */
	if (!ActiveSnapshotSet())
		PushActiveSnapshot(GetTransactionSnapshot());
	if (is_script)
		SetUserIdAndSecContext(roleid, sec_context | SECURITY_LOCAL_USERID_CHANGE);
	else if (ddl_apply_renames(pstmt->utilityStmt, roleid))
		ot_user_log_in(BOOTSTRAP_SUPERUSERID);
	next_is_entry = true;
	ProcessUtility(pstmt, text, false, PROCESS_UTILITY_QUERY, NULL, NULL,
				   None_Receiver, NULL);
	if (is_script)
		ddl_apply_fire_deferred();
	SetUserIdAndSecContext(roleid, sec_context | OT_USER_RESTRICTED);
	CommandCounterIncrement();
}

static void
ddl_apply_run_text(const char *text, Oid roleid, int sec_context)
{
	ListCell   *lc;

	if (ot_detach_apply(text))
		return;
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
			List	   *settings;

			if (pstmt->commandType != CMD_UTILITY ||
				(IsA(pstmt->utilityStmt, ExplainStmt) && ot_ddl_create_as(pstmt->utilityStmt) == NULL))
				ereport(ERROR,
						(errcode(OT_ERR_PROTOCOL),
						 errmsg("entry contains a statement that is not a utility statement")));
			/* EXPLAIN ANALYZE CREATE MATERIALIZED VIEW: nobody looks at the plan */
			if (IsA(pstmt->utilityStmt, ExplainStmt))
				pstmt->utilityStmt = (Node *) ot_ddl_create_as(pstmt->utilityStmt);
			pstmt->utilityStmt = ot_index_without_concurrently(pstmt->utilityStmt);
			ot_ddl_make_way_for(pstmt->utilityStmt);
			ddl_apply_leave_to_results(pstmt->utilityStmt);
			ot_ddl_forget_places_of_bounds(pstmt->utilityStmt);
			ddl_apply_resolve_columns((CreateStmt *) pstmt->utilityStmt, sec_context);
			ot_setting_prepare_grant(pstmt->utilityStmt);
			settings = ot_setting_take_out(pstmt->utilityStmt);
			ddl_apply_run_statement(pstmt, text, roleid, sec_context);
			ot_setting_store_of_function(pstmt->utilityStmt, settings);
		}
		if (ActiveSnapshotSet())
			PopActiveSnapshot();
	}
}

/* Applies an 'S' operation; r is past the op byte. */
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
	List	   *hidden;
	check_password_hook_type check_password = check_password_hook;

	context.callback = ddl_apply_say_statement;
	context.arg = text;
	context.previous = error_context_stack;
	error_context_stack = &context;

	roleid = get_role_oid(role, true);
	if (!OidIsValid(roleid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role \"%s\" does not exist in region \"%s\"", role, ot_region),
				 errhint("It was created outside of the replicated database. Create it in another database of this server (CREATE ROLE in database postgres), and the statement will be applied.")));

	ot_position_note_ddl_elsewhere();
	ot_ddl_lock_schema();
	hidden = ot_functions_hide();
	PG_TRY();
	{
		/* The role first: search_path may contain "$user". */
		GetUserIdAndSecContext(&saved_user, &saved_sec_context);
		ot_user_log_in(roleid);
		SetUserIdAndSecContext(roleid, saved_sec_context | OT_USER_RESTRICTED);
		ot_session_settings_apply(r, roleid, true);
		/* they may use temporary objects, and were checked where they were written */
		ddl_apply_set("check_function_bodies", "off");
		ddl_apply_set("session_replication_role", "origin");
		/* passwords were checked there, too; this may refuse their verifiers */
		check_password_hook = NULL;

		ot_ddl_replaying = true;
		ddl_apply_run_text(text, roleid, saved_sec_context);

		/* false: undoes what its functions have set, too */
		ot_user_log_out(guc_level);
	}
	PG_FINALLY();
	{
		check_password_hook = check_password;
		ot_ddl_replaying = next_is_entry = false;
		ot_session_settings_end_statement();
	}
	PG_END_TRY();
	SetUserIdAndSecContext(saved_user, saved_sec_context);
	ot_functions_show(hidden);
	error_context_stack = context.previous;
	pfree(role);
	pfree(text);
}
