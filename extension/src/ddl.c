/*-------------------------------------------------------------------------
 *
 * ddl.c
 *	  Records utility statements, in order with the transaction's rows.
 *
 * The utility hook sees every statement that is not a plain query, top-level
 * or run by a function.  What is to happen in every region is noted in the
 * write set as text before it runs, so that an ERROR rolls the note away with
 * the (sub)transaction.  Sub-commands are part of the statement that runs
 * them and are not noted again.
 *
 * Keys.  Whatever lock the applied statement may need, and a decided local
 * transaction may hold, must be a key of both:
 *	- the schema key, in mode UPDATE, against all other DDL, and a lock that
 *	  stands for it on each node;
 *	- the relations that the statement locks: found at COMMIT, in the locks
 *	  that the transaction then holds (commit.c), under their names of then;
 *	- names that a relation loses, by DROP, RENAME or SET SCHEMA: noted here,
 *	  when the catalogs are about to change;
 *	- what functions compute (ot_hash_code()), for statements that may change it;
 *	- what values refer to by its name (object_name.c), and loses that: noted
 *	  here too;
 *	- relations whose rows change their meaning without a lock (ddl_hold.c).
 *
 * CREATE TABLE AS is noted as the CREATE TABLE that it amounts to, before its
 * first row is captured; its rows travel as rows.
 *
 * Runs in backends; the hooks stand aside in the apply worker.  Everything
 * here may raise ERROR.  Static state is that of statements under way, put
 * back in PG_FINALLY.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "onetrip.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_largeobject.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "tcop/utility.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "ddl.h"
#include "object_name.h"

/* A CREATE TABLE AS under way. */
typedef struct CreateAs
{
	IntoClause *into;
	int			depth;			/* of utility calls, where it runs */
	Oid			relid;			/* its table, once that exists */
	bool		recorded;
} CreateAs;

static ProcessUtility_hook_type prev_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;

static int	utility_depth = 0;	/* nested utility calls in this process */
static int	recording_depth = 0;	/* of those, being recorded */
static bool renaming = false;	/* the innermost one renames or moves something */
static bool creating = false;	/* ... or makes a type, whose name an array's may give way to */
static CreateAs *create_as = NULL;

/* ---- keys ---- */

bool
ot_ddl_has_table_key(char relkind)
{
	return relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE ||
		relkind == RELKIND_VIEW || relkind == RELKIND_MATVIEW ||
		relkind == RELKIND_SEQUENCE || relkind == RELKIND_FOREIGN_TABLE;
}

/*
 * Takes the key of the name that the relation has in the catalogs as this
 * command sees them, that is, before its own changes.
 */
void
ot_ddl_take_relation_key(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class form;
	bool		take;

	if (!HeapTupleIsValid(tuple))
		return;
	form = (Form_pg_class) GETSTRUCT(tuple);
	take = ot_ddl_has_table_key(form->relkind) && !OidIsValid(form->relrewrite) &&
		form->relpersistence != RELPERSISTENCE_TEMP;
	ReleaseSysCache(tuple);
	if (take)
		ot_write_set_key_now(ot_hash_relation(relid), OT_UPDATE, relid);
}

/*
 * The schema key as a lock, so that DDL here and DDL that is applied here
 * follow each other.  Beyond the rule above there is a reason of its own:
 * names that PostgreSQL makes up (of a serial's sequence, of a constraint)
 * avoid those of transactions that have not committed, so a statement would
 * get other names where such a transaction happens to be open.  The lock is
 * on the access method, which nothing else locks.
 */
void
ot_ddl_lock_schema(void)
{
	ot_turn_names_change();
	LockDatabaseObject(AccessMethodRelationId, ot_access_method_oid(), 0, ExclusiveLock);
}

/*
 * Behind the lock, so that the base is not below what it waited for; and at
 * once, since whoever holds the lock and has noted nothing passes for a
 * reader, whom an applied entry gives time.
 */
void
ot_ddl_take_schema_key(void)
{
	ot_ddl_lock_schema();
	ot_write_set_key_now(ot_hash_schema(), OT_UPDATE, InvalidOid);
}

/* ---- recording ---- */

/*
 * While a definition is made that every region will repeat, names must not
 * resolve to temporary objects, which no other session has: the statement
 * then fails here, as it would there.  Only for statements that run no
 * functions of users, since a function's own SET search_path would not work.
 */
static bool
hides_temporary(Node *stmt)
{
#ifdef OT_HAVE_OVERRIDE_SEARCH_PATH
	return (IsA(stmt, CreateStmt) || IsA(stmt, CreateFunctionStmt) ||
			IsA(stmt, CreateDomainStmt) || IsA(stmt, CompositeTypeStmt) ||
			IsA(stmt, CreatePolicyStmt) || IsA(stmt, AlterPolicyStmt) ||
			IsA(stmt, RuleStmt)) && ot_ddl_session_has_temporary();
#else
	return false;
#endif
}

static void
hide_temporary(void)
{
#ifdef OT_HAVE_OVERRIDE_SEARCH_PATH
	OverrideSearchPath *path = GetOverrideSearchPath(CurrentMemoryContext);
	Oid			temporary;
	Oid			toast;

	GetTempNamespaceState(&temporary, &toast);
	path->schemas = list_delete_oid(path->schemas, temporary);
	path->addTemp = false;
	PushOverrideSearchPath(path);
#endif
}

static void
show_temporary(void)
{
#ifdef OT_HAVE_OVERRIDE_SEARCH_PATH
	PopOverrideSearchPath();
#endif
}

/*
 * Notes the statement.  Answers the parse tree to run, which differs from
 * the given one where a password was hidden.
 */
static Node *
record(PlannedStmt *pstmt, Node *stmt, const char *query, OtStatementKind kind)
{
	int			offset;
	char	   *text = ot_ddl_statement_text(pstmt, query, &offset);

	ot_ddl_check_text(text, stmt);
	if (IsA(stmt, CreateRoleStmt) || IsA(stmt, AlterRoleStmt))
	{
		stmt = ot_ddl_hide_password(stmt, &text, offset);
		ot_ddl_check_text(text, stmt);
	}
	stmt = ot_ddl_name_version(stmt, &text);
	stmt = ot_ddl_compute_bound(stmt, &text, offset, query);
	if (kind == OT_STATEMENT_SCHEMA)
	{
		if (ot_ddl_may_change_code(stmt))
			ot_write_set_key_now(ot_hash_code(), OT_UPDATE, InvalidOid);
		ot_ddl_hold_relations(stmt);
	}
	ot_write_set_statement(text, strlen(text));
	pfree(text);
	return stmt;
}

static void
record_create_as(Relation rel)
{
	char	   *text = ot_ddl_create_table_text(rel, create_as->into);

	ot_write_set_statement(text, strlen(text));
	pfree(text);
	create_as->recorded = true;
}

/* Before a row is captured: the table it goes into must be known first. */
void
ot_ddl_before_row(Relation rel)
{
	if (unlikely(create_as != NULL) && !create_as->recorded &&
		create_as->relid == RelationGetRelid(rel))
		record_create_as(rel);
}

/*
 * Goes on to the hook before, `prev`, with `node` in the place of the
 * statement's own tree.
 */
void
ot_call_process_utility(ProcessUtility_hook_type prev, PlannedStmt *pstmt,
						Node *node, const char *query, bool read_only_tree,
						ProcessUtilityContext context, ParamListInfo params,
						QueryEnvironment *env, DestReceiver *dest,
						QueryCompletion *completion)
{
	if (node != pstmt->utilityStmt)
	{
		PlannedStmt *copy = makeNode(PlannedStmt);

		*copy = *pstmt;
		copy->utilityStmt = node;
		pstmt = copy;
		read_only_tree = false;
	}
	if (prev)
		prev(pstmt, query, read_only_tree, context, params, env, dest, completion);
	else
		standard_ProcessUtility(pstmt, query, read_only_tree, context, params,
								env, dest, completion);
}

static bool
makes_type(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_CreateStmt:
		case T_CreateForeignTableStmt:
		case T_CreateTableAsStmt:
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
 * Runs the statement with its static state in place.  `running` is where a
 * CREATE TABLE AS keeps its own, NULL for another statement.
 */
static void
run_statement(PlannedStmt *pstmt, Node *node, bool recorded, CreateAs *running,
			  const char *query, bool read_only_tree,
			  ProcessUtilityContext context, ParamListInfo params,
			  QueryEnvironment *env, DestReceiver *dest,
			  QueryCompletion *completion)
{
	CreateAs   *outer_create_as = create_as;
	int			outer_depth = utility_depth;
	int			outer_recording = recording_depth;
	bool		outer_renaming = renaming;
	bool		outer_creating = creating;

	PG_TRY();
	{
		utility_depth++;
		renaming = IsA(node, RenameStmt) || IsA(node, AlterObjectSchemaStmt);
		creating = makes_type(node);
		if (recorded)
			recording_depth++;
		if (running)
		{
			running->depth = utility_depth;
			create_as = running;
		}

		ot_call_process_utility(prev_process_utility, pstmt, node, query,
								read_only_tree, context, params,
								env, dest, completion);

		/* a table to which no row came */
		if (running && OidIsValid(running->relid) && !running->recorded)
		{
			Relation	rel;

			CommandCounterIncrement();
			rel = relation_open(running->relid, NoLock);
			record_create_as(rel);
			relation_close(rel, NoLock);
		}
	}
	PG_FINALLY();
	{
		utility_depth = outer_depth;
		recording_depth = outer_recording;
		renaming = outer_renaming;
		creating = outer_creating;
		create_as = outer_create_as;
	}
	PG_END_TRY();
}

static void
ot_ddl_process_utility(PlannedStmt *pstmt, const char *query,
					   bool read_only_tree, ProcessUtilityContext context,
					   ParamListInfo params, QueryEnvironment *env,
					   DestReceiver *dest, QueryCompletion *completion)
{
	Node	   *node = pstmt->utilityStmt;
	OtStatementKind kind = OT_STATEMENT_LOCAL;
	CreateAs	new_table = {NULL};
	bool		recorded;
	bool		hidden;

	/* Also what an extension's script runs. */
	if ((ot_is_apply_worker || recording_depth > 0) && IsTransactionState())
		ot_ddl_hold_relations(node);

	/* Nothing below may look at catalogs in a failed transaction. */
	if (IsA(node, TransactionStmt) || !IsTransactionState() ||
		!ot_preloaded || !IsUnderPostmaster || ot_is_apply_worker)
	{
		ot_call_process_utility(prev_process_utility, pstmt, node, query,
								read_only_tree, context, params,
								env, dest, completion);
		return;
	}

	ot_ddl_check_everywhere(node);
	if (context != PROCESS_UTILITY_SUBCOMMAND && ot_capturing())
		kind = ot_ddl_classify(node, query);
	recorded = kind == OT_STATEMENT_SCHEMA || kind == OT_STATEMENT_TRUNCATE;
	if (recorded)
		node = record(pstmt, node, query, kind);
	if (kind == OT_STATEMENT_CREATE_AS)
		new_table.into = ot_ddl_create_as(node)->into;

	/* after an ERROR the end of the (sub)transaction shows it again */
	hidden = recorded && hides_temporary(node);
	if (hidden)
		hide_temporary();
	run_statement(pstmt, node, recorded,
				  kind == OT_STATEMENT_CREATE_AS ? &new_table : NULL,
				  query, read_only_tree, context, params, env, dest, completion);
	if (hidden)
		show_temporary();
}

/* ---- what happens inside a statement ---- */

static void
ot_ddl_object_access(ObjectAccessType access, Oid class_id, Oid object_id,
					 int sub_id, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, class_id, object_id, sub_id, arg);

	if (access == OAT_POST_CREATE && class_id == LargeObjectRelationId && ot_capturing())
		ot_ddl_refuse("a large object", "Keep the data in a column of type bytea.");

	if (sub_id != 0)
		return;
	if (recording_depth > 0 && (access == OAT_DROP || (access == OAT_POST_ALTER &&
														 (renaming || (creating && class_id == TypeRelationId)))))
		ot_object_take_key(class_id, object_id);
	if (class_id != RelationRelationId)
		return;

	switch (access)
	{
		case OAT_POST_CREATE:
			/* the first relation made at that depth; its TOAST table follows */
			if (create_as != NULL && create_as->depth == utility_depth &&
				!OidIsValid(create_as->relid))
				create_as->relid = object_id;
			break;
		case OAT_DROP:
			if (recording_depth > 0)
				ot_ddl_take_relation_key(object_id);
			break;
		case OAT_POST_ALTER:
			/* the catalog cache still has the old name */
			if (recording_depth > 0)
			{
				LOCKTAG		tag;

				SET_LOCKTAG_RELATION(tag, MyDatabaseId, object_id);
				if (OT_LOCK_HELD_BY_ME(&tag, AccessExclusiveLock))
					ot_ddl_take_relation_key(object_id);
			}
			break;
		default:
			break;
	}
}

void
ot_ddl_init(void)
{
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = ot_ddl_process_utility;
	prev_object_access = object_access_hook;
	object_access_hook = ot_ddl_object_access;
}
