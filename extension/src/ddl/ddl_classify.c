/*-------------------------------------------------------------------------
 *
 * ddl_classify.c
 *	  Decides which utility statements are recorded and which stay local.
 *
 * Every kind of statement is named below.  A kind that is not, because it is
 * new in a later PostgreSQL, is refused if PostgreSQL itself classifies it as
 * DDL, so that no DDL silently stays local.
 *
 * Runs in backends that capture; may look at catalogs and raise 0A000.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "commands/prepare.h"
#include "miscadmin.h"
#include "nodes/primnodes.h"
#include "tcop/cmdtag.h"
#include "tcop/utility.h"

#include "capture/capture.h"

static bool
ddl_classify_is_this_database(const char *name)
{
	return strcmp(name, ot_database) == 0;
}

/* The utility statement that EXPLAIN ANALYZE runs, without another utility call; NULL: none. */
static Node *
ddl_classify_explained(ExplainStmt *explain)
{
	bool		analyze = false;
	ListCell   *lc;

	foreach(lc, explain->options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, "analyze") == 0)
			analyze = defGetBoolean(option);
	}
	if (!analyze)
		return NULL;
	return IsA(explain->query, Query) ? ((Query *) explain->query)->utilityStmt : explain->query;
}

/*
 * Returns the CREATE TABLE AS that this statement runs, or NULL: the statement
 * itself, or the one under EXPLAIN ANALYZE.
 */
CreateTableAsStmt *
ot_ddl_create_as(Node *stmt)
{
	if (IsA(stmt, ExplainStmt))
		stmt = ddl_classify_explained((ExplainStmt *) stmt);
	if (stmt == NULL || !IsA(stmt, CreateTableAsStmt))
		return NULL;
	return (CreateTableAsStmt *) stmt;
}

static OtStatementKind
ddl_classify_create_as(CreateTableAsStmt *stmt, const char *query)
{
	/* a materialized view, too, is temporary if search_path puts it there */
	if (ot_ddl_creates_temporary(stmt->into->rel))
		return OT_STATEMENT_LOCAL;
	if (stmt->objtype == OBJECT_MATVIEW)
	{
		ot_ddl_take_schema_key();
		return OT_STATEMENT_SCHEMA;
	}
	ot_ddl_take_schema_key_for((Node *) stmt, query);
	return OT_STATEMENT_CREATE_AS;
}

/* The INTO of a statement as it was parsed, or NULL. */
static IntoClause *
ddl_classify_into(Node *parsed)
{
	SelectStmt *select = (SelectStmt *) parsed;

	if (IsA(parsed, CreateTableAsStmt))
		return ((CreateTableAsStmt *) parsed)->into;
	if (!IsA(parsed, SelectStmt))
		return NULL;
	/* of a UNION the first SELECT has it */
	while (select->op != SETOP_NONE)
		select = select->larg;
	return select->intoClause;
}

/*
 * EXPLAIN ANALYZE EXECUTE runs a prepared statement as it was analyzed, and
 * without another utility call.  So one that makes a permanent table, which would
 * be in no entry, is refused.  With the protocol, what is prepared may be any
 * statement, also EXECUTE of another one.  stmt is what is explained.
 */
static void
ddl_classify_check_explained(Node *stmt)
{
	PreparedStatement *prepared;
	IntoClause *into;

	/* CREATE TABLE AS EXECUTE */
	if (stmt != NULL && IsA(stmt, CreateTableAsStmt))
		stmt = castNode(Query, ((CreateTableAsStmt *) stmt)->query)->utilityStmt;
	if (stmt == NULL || !IsA(stmt, ExecuteStmt))
		return;
	prepared = FetchPreparedStatement(((ExecuteStmt *) stmt)->name, false);
	if (prepared == NULL || prepared->plansource->raw_parse_tree == NULL)
		return;
	stmt = prepared->plansource->raw_parse_tree->stmt;
	into = ddl_classify_into(stmt);
	if (IsA(stmt, ExecuteStmt) || (into != NULL && !ot_ddl_creates_temporary(into->rel)))
		ot_ddl_refuse("EXPLAIN ANALYZE EXECUTE of CREATE ... AS, SELECT INTO or EXECUTE",
					  "EXPLAIN the statement itself.");
}

/*
 * Classifies a statement by the kind of its object: objects of the whole
 * server, and others that cannot be replicated, need special treatment.
 */
static OtStatementKind
ddl_classify_shared(ObjectType type, const char *name)
{
	switch (type)
	{
		case OBJECT_DATABASE:
			return ddl_classify_is_this_database(name) ? OT_STATEMENT_SCHEMA : OT_STATEMENT_LOCAL;
		case OBJECT_LARGEOBJECT:
			ot_large_object_check();
			break;
		case OBJECT_SUBSCRIPTION:	/* its server's own (commit/subscription.c) */
			return OT_STATEMENT_LOCAL;
		default:
			break;
	}
	return OT_STATEMENT_SCHEMA;
}

static const char *
ddl_classify_object_name(Node *object)
{
	return object != NULL && IsA(object, String) ? strVal(object) : "";
}

static OtStatementKind
ddl_classify_grant(GrantStmt *stmt)
{
	int			here = 0;
	ListCell   *lc;

	if (stmt->objtype != OBJECT_DATABASE || stmt->targtype != ACL_TARGET_OBJECT)
		return ddl_classify_shared(stmt->objtype, "");
	foreach(lc, stmt->objects)
	{
		if (ddl_classify_is_this_database(strVal(lfirst(lc))))
			here++;
	}
	if (here > 0 && here < list_length(stmt->objects))
		ot_ddl_refuse("GRANT on the replicated database together with others",
					  "Use one statement for each database.");
	return here > 0 ? OT_STATEMENT_SCHEMA : OT_STATEMENT_LOCAL;
}

/* Does the statement take away from a role what others have lent it? */
static bool
ddl_classify_alters_rights(AlterRoleStmt *stmt)
{
	return ot_ddl_find_option(stmt->options, "superuser") != NULL ||
		ot_ddl_find_option(stmt->options, "inherit") != NULL ||
		ot_ddl_find_option(stmt->options, "rolemembers") != NULL;
}

/*
 * May the statement change what functions compute, because they would call
 * other code or resolve their names to other objects, or whether a role may call
 * them?  Statements about relations, publications, and privileges on relations do
 * not.
 */
bool
ot_ddl_may_change_code(Node *stmt)
{
	ObjectType	type;

	switch (nodeTag(stmt))
	{
		case T_CreateStmt:
		case T_CreateTableAsStmt:
		case T_ExplainStmt:
		case T_CreateForeignTableStmt:
		case T_IndexStmt:
		case T_ViewStmt:
		case T_RefreshMatViewStmt:
		case T_CreateSeqStmt:
		case T_AlterSeqStmt:
		case T_CreateTrigStmt:
		case T_RuleStmt:
		case T_CreatePolicyStmt:
		case T_AlterPolicyStmt:
		case T_CreateStatsStmt:
		case T_AlterStatsStmt:
		case T_CommentStmt:
		case T_CreateRoleStmt:
		case T_AlterDefaultPrivilegesStmt:
		case T_CreatePublicationStmt:
		case T_AlterPublicationStmt:
		case T_AlterTableSpaceOptionsStmt:
		case T_AlterTableMoveAllStmt:
			return false;
		case T_GrantStmt:
			return !((GrantStmt *) stmt)->is_grant && ((GrantStmt *) stmt)->objtype != OBJECT_TABLE &&
				((GrantStmt *) stmt)->objtype != OBJECT_SEQUENCE;
		case T_GrantRoleStmt:
			return !((GrantRoleStmt *) stmt)->is_grant || OT_HAS_GRANT_OPTIONS((GrantRoleStmt *) stmt);
		case T_AlterRoleStmt:
			return ddl_classify_alters_rights((AlterRoleStmt *) stmt);
		case T_AlterTableStmt:
			return ((AlterTableStmt *) stmt)->objtype == OBJECT_TYPE;
		case T_AlterOwnerStmt:
			return ((AlterOwnerStmt *) stmt)->objectType != OBJECT_LARGEOBJECT;
		case T_DropStmt:
			type = ((DropStmt *) stmt)->removeType;
			break;
		case T_RenameStmt:
			type = ((RenameStmt *) stmt)->renameType;
			break;
		default:
			return true;
	}
	switch (type)
	{
		case OBJECT_TABLE:
		case OBJECT_INDEX:
		case OBJECT_VIEW:
		case OBJECT_MATVIEW:
		case OBJECT_SEQUENCE:
		case OBJECT_FOREIGN_TABLE:
		case OBJECT_COLUMN:
		case OBJECT_TABCONSTRAINT:
		case OBJECT_TRIGGER:
		case OBJECT_RULE:
		case OBJECT_POLICY:
		case OBJECT_STATISTIC_EXT:
		case OBJECT_PUBLICATION:
		case OBJECT_TABLESPACE:
			return false;
		default:
			return true;
	}
}

/* May it change what a function depends on? */
static bool
ddl_classify_defines_function(Node *stmt)
{
	return IsA(stmt, CreateFunctionStmt) || IsA(stmt, AlterFunctionStmt) ||
		(IsA(stmt, DefineStmt) && ((DefineStmt *) stmt)->kind == OBJECT_AGGREGATE);
}

static OtStatementKind
ddl_classify(Node *stmt, const char *query, OtTemporary *temporary)
{
	OtStatementKind kind;

	switch (nodeTag(stmt))
	{
			/* always local: sessions, transactions, maintenance */
		case T_TransactionStmt:
		case T_DeclareCursorStmt:
		case T_ClosePortalStmt:
		case T_FetchStmt:
		case T_DoStmt:
		case T_CallStmt:
		case T_CopyStmt:
		case T_PrepareStmt:
		case T_ExecuteStmt:
		case T_DeallocateStmt:
		case T_NotifyStmt:
		case T_ListenStmt:
		case T_UnlistenStmt:
		case T_LoadStmt:
		case T_ClusterStmt:
		case T_VacuumStmt:
		case T_AlterSystemStmt:
		case T_VariableSetStmt:
		case T_VariableShowStmt:
		case T_DiscardStmt:
		case T_LockStmt:
		case T_ConstraintsSetStmt:
		case T_CheckPointStmt:
		case T_CreatedbStmt:
		case T_DropdbStmt:		/* ot_ddl_check_everywhere() protects ours */
		case T_ImportForeignSchemaStmt: /* its sub-commands are recorded */
		case T_AlterDatabaseRefreshCollStmt:	/* versions are each server's own */
		case T_AlterCollationStmt:
		case T_CreateSubscriptionStmt:
		case T_AlterSubscriptionStmt:
		case T_DropSubscriptionStmt:	/* their position is not (commit/subscription.c) */
			return OT_STATEMENT_LOCAL;

		case T_ExplainStmt:
		case T_CreateTableAsStmt:
			{
				CreateTableAsStmt *create_as = ot_ddl_create_as(stmt);

				if (IsA(stmt, ExplainStmt))
					ddl_classify_check_explained(ddl_classify_explained((ExplainStmt *) stmt));
				if (create_as == NULL)
					return OT_STATEMENT_LOCAL;
				return ddl_classify_create_as(create_as, query);
			}

		case T_ReindexStmt:
			ot_ddl_check_reindex((ReindexStmt *) stmt);
			return OT_STATEMENT_LOCAL;

			/* cannot be replicated */
		case T_CreateTableSpaceStmt:
		case T_DropTableSpaceStmt:
			/* they change files, which no rollback undoes */
			ot_ddl_refuse("CREATE or DROP TABLESPACE",
						  "Run it on each server, connected to another database.");
			break;
			/* about the server as a whole, or a database of it */
		case T_AlterDatabaseStmt:
			kind = ddl_classify_shared(OBJECT_DATABASE, ((AlterDatabaseStmt *) stmt)->dbname);
			break;
		case T_AlterDatabaseSetStmt:
			kind = ddl_classify_shared(OBJECT_DATABASE, ((AlterDatabaseSetStmt *) stmt)->dbname);
			break;
		case T_AlterRoleSetStmt:
			if (((AlterRoleSetStmt *) stmt)->database)
				kind = ddl_classify_shared(OBJECT_DATABASE, ((AlterRoleSetStmt *) stmt)->database);
			else
				kind = OT_STATEMENT_SCHEMA;
			break;
		case T_RenameStmt:
			kind = ddl_classify_shared(((RenameStmt *) stmt)->renameType,
									   ((RenameStmt *) stmt)->renameType == OBJECT_DATABASE ?
									   ((RenameStmt *) stmt)->subname : "");
			break;
		case T_AlterOwnerStmt:
			kind = ddl_classify_shared(((AlterOwnerStmt *) stmt)->objectType,
									   ddl_classify_object_name(((AlterOwnerStmt *) stmt)->object));
			break;
		case T_CommentStmt:
			kind = ddl_classify_shared(((CommentStmt *) stmt)->objtype,
									   ddl_classify_object_name(((CommentStmt *) stmt)->object));
			break;
		case T_SecLabelStmt:
			kind = ddl_classify_shared(((SecLabelStmt *) stmt)->objtype,
									   ddl_classify_object_name(((SecLabelStmt *) stmt)->object));
			break;
		case T_GrantStmt:
			kind = ddl_classify_grant((GrantStmt *) stmt);
			break;

		case T_TruncateStmt:
			/* which tables it empties, and whose rows travel, is known once they are locked */
			kind = OT_STATEMENT_TRUNCATE;
			break;

		case T_RefreshMatViewStmt:
			kind = OT_STATEMENT_REFRESH;
			break;

		case T_CreateExtensionStmt:
			/* each server has it from the start */
			if (strcmp(((CreateExtensionStmt *) stmt)->extname, "onetrip") == 0)
				return OT_STATEMENT_LOCAL;
			kind = OT_STATEMENT_SCHEMA;
			break;

			/* recorded */
		case T_CreateSchemaStmt:
		case T_CreateStmt:
		case T_CreateForeignTableStmt:
		case T_AlterExtensionStmt:
		case T_AlterExtensionContentsStmt:
		case T_CreateFdwStmt:
		case T_AlterFdwStmt:
		case T_CreateForeignServerStmt:
		case T_AlterForeignServerStmt:
		case T_CreateUserMappingStmt:
		case T_AlterUserMappingStmt:
		case T_DropUserMappingStmt:
		case T_DropStmt:
		case T_AlterObjectDependsStmt:
		case T_AlterObjectSchemaStmt:
		case T_AlterOperatorStmt:
		case T_AlterTypeStmt:
		case T_AlterTableStmt:
		case T_AlterDomainStmt:
		case T_GrantRoleStmt:
		case T_AlterDefaultPrivilegesStmt:
		case T_DefineStmt:
		case T_CompositeTypeStmt:
		case T_CreateEnumStmt:
		case T_CreateRangeStmt:
		case T_AlterEnumStmt:
		case T_ViewStmt:
		case T_CreateFunctionStmt:
		case T_AlterFunctionStmt:
		case T_IndexStmt:
		case T_RuleStmt:
		case T_CreateSeqStmt:
		case T_AlterSeqStmt:
		case T_CreateTrigStmt:
		case T_CreateEventTrigStmt:
		case T_AlterEventTrigStmt:
		case T_CreatePLangStmt:
		case T_CreateDomainStmt:
		case T_CreateRoleStmt:
		case T_AlterRoleStmt:
		case T_DropRoleStmt:
		case T_DropOwnedStmt:
		case T_ReassignOwnedStmt:
		case T_CreateConversionStmt:
		case T_CreateCastStmt:
		case T_CreateOpClassStmt:
		case T_CreateOpFamilyStmt:
		case T_AlterOpFamilyStmt:
		case T_CreateTransformStmt:
		case T_CreatePolicyStmt:
		case T_AlterPolicyStmt:
		case T_AlterTSDictionaryStmt:
		case T_AlterTSConfigurationStmt:
		case T_CreateAmStmt:
		case T_CreateStatsStmt:
		case T_AlterStatsStmt:
		case T_CreatePublicationStmt:
		case T_AlterPublicationStmt:
		case T_AlterTableSpaceOptionsStmt:
		case T_AlterTableMoveAllStmt:
			kind = OT_STATEMENT_SCHEMA;
			break;

		default:
			if (GetCommandLogLevel(stmt) != LOGSTMT_DDL)
				return OT_STATEMENT_LOCAL;
			ot_ddl_refuse(psprintf("%s", GetCommandTagName(CreateCommandTag(stmt))),
						  "This kind of statement is not known to this version of Onetrip.");
			return OT_STATEMENT_LOCAL;	/* not reached */
	}

	if (kind == OT_STATEMENT_LOCAL)
		return kind;
	/* PostgreSQL says so too, but after what follows, which may wait */
	PreventCommandIfReadOnly(GetCommandTagName(CreateCommandTag(stmt)));
	*temporary = ot_ddl_is_temporary(stmt, query);
	/* the schema lock comes before table locks, in this order everywhere */
	if (*temporary != OT_TEMPORARY_OBJECT && kind == OT_STATEMENT_SCHEMA)
	{
		if (*temporary == OT_TEMPORARY_NOTHING)
			ot_ddl_take_schema_key_for(stmt, query);
		else
			ot_ddl_take_schema_key();
		/* it may have waited for one who has made or dropped such a function, or what was not there */
		if (*temporary != OT_TEMPORARY_NOTHING || ot_temporary_functions_possible())
			*temporary = ot_ddl_is_temporary(stmt, query);
		if (*temporary == OT_TEMPORARY_AND_MISSING)
			*temporary = OT_TEMPORARY_OBJECT;
		if (ddl_classify_defines_function(stmt) && *temporary != OT_TEMPORARY_OBJECT)
			*temporary = ot_function_will_be_temporary(stmt, query) ? OT_TEMPORARY_FUNCTION : OT_TEMPORARY_NOTHING;
		if (*temporary == OT_TEMPORARY_FUNCTION)
		{
			ot_function_check_room(stmt);
			ot_temporary_functions_note(true);
		}
	}
	if (*temporary != OT_TEMPORARY_NOTHING)
	{
		ot_ddl_note_temporary(stmt);
		return OT_STATEMENT_LOCAL;
	}
	ot_ddl_take_large_object_key(stmt);
	ot_ddl_check_recorded(stmt, query);
	return kind;
}

/* The last transaction that changed a definition which this server alone has, and how. */
static LocalTransactionId changed_here = InvalidLocalTransactionId;
static CommandTag changed_by;

OtStatementKind
ot_ddl_classify(Node *stmt, const char *query, bool *is_temporary)
{
	OtTemporary temporary = OT_TEMPORARY_NOTHING;
	OtStatementKind kind = ddl_classify(stmt, query, &temporary);

	/* CLUSTER changes files only, and CREATE TABLE AS is about a temporary table then */
	if (kind == OT_STATEMENT_LOCAL && (temporary != OT_TEMPORARY_OBJECT || IsA(stmt, CreateCastStmt)) &&
		GetCommandLogLevel(stmt) == LOGSTMT_DDL && !IsA(stmt, ClusterStmt) &&
		ot_ddl_create_as(stmt) == NULL)
	{
		changed_here = OT_LXID(MyProc);
		changed_by = CreateCommandTag(stmt);
	}
	*is_temporary = temporary != OT_TEMPORARY_NOTHING;
	return kind;
}

/*
 * The statement by which this transaction has changed a definition that is in no
 * entry: of another database, a subscription, a temporary function, a cast of a
 * temporary type.  NULL: there is none.
 */
const char *
ot_ddl_changed_here_by(void)
{
	return changed_here == OT_LXID(MyProc) ? GetCommandTagName(changed_by) : NULL;
}
