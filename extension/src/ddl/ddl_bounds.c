/*-------------------------------------------------------------------------
 *
 * ddl_bounds.c
 *	  Computes the bounds of partitions, once for all regions.
 *
 * FOR VALUES takes expressions: random(), now(), user functions.  They are
 * computed here, before the statement runs or is recorded, and are replaced by
 * their values in both.  Whatever such a function writes is an ordinary change
 * of the transaction, captured before the statement is recorded.
 *
 * Runs in backends; allocates in the current context.  Raises the errors that
 * the statement itself would raise, and 0A000.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_expr.h"
#include "parser/parse_node.h"
#include "parser/parse_utilcmd.h"
#include "parser/parser.h"
#include "parser/scanner.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/partcache.h"
#include "utils/rel.h"
#include "utils/ruleutils.h"

/* Returns where the statement keeps its bound, or NULL if it has none. */
static PartitionBoundSpec **
ddl_bounds_find_bound(Node *stmt, RangeVar **parent)
{
	if (IsA(stmt, CreateStmt) || IsA(stmt, CreateForeignTableStmt))
	{
		CreateStmt *create = (CreateStmt *) stmt;

		if (create->partbound == NULL || create->inhRelations == NIL)
			return NULL;
		*parent = linitial_node(RangeVar, create->inhRelations);
		return &create->partbound;
	}
	if (IsA(stmt, AlterTableStmt))
	{
		ListCell   *lc;

		foreach(lc, ((AlterTableStmt *) stmt)->cmds)
		{
			AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);

			if (command->subtype == AT_AttachPartition &&
				((PartitionCmd *) command->def)->bound != NULL)
			{
				*parent = ((AlterTableStmt *) stmt)->relation;
				return &((PartitionCmd *) command->def)->bound;
			}
		}
	}
	return NULL;
}

static bool
ddl_bounds_is_written_out(Node *datum)
{
	return IsA(datum, A_Const) || IsA(datum, ColumnRef);
}

static bool
ddl_bounds_all_written_out(PartitionBoundSpec *bound)
{
	List	   *lists[] = {bound->listdatums, bound->lowerdatums, bound->upperdatums};

	for (int i = 0; i < lengthof(lists); i++)
	{
		ListCell   *lc;

		foreach(lc, lists[i])
		{
			if (!ddl_bounds_is_written_out(lfirst(lc)))
				return false;
		}
	}
	return true;
}

/* Raises 0A000 for a bound in the script of an extension, which each region computes. */
void
ot_ddl_check_bound_of_script(Node *stmt, const char *query)
{
	RangeVar   *parent;
	PartitionBoundSpec **place = ddl_bounds_find_bound(stmt, &parent);
	List	   *datums;
	ListCell   *lc;
	Oid			relid;

	if (place == NULL)
		return;
	/* what is the session's own, like its parent */
	relid = RangeVarGetRelid(parent, NoLock, true);
	if (OidIsValid(relid) && get_rel_persistence(relid) == RELPERSISTENCE_TEMP)
		return;
	datums = list_concat(list_concat_copy((*place)->listdatums, (*place)->lowerdatums), (*place)->upperdatums);
	foreach(lc, datums)
	{
		ParseState *pstate;

		if (ddl_bounds_is_written_out(lfirst(lc)))
			continue;
		pstate = make_parsestate(NULL);
		pstate->p_sourcetext = query;
		if (ot_ddl_differs_elsewhere(transformExpr(pstate, copyObject(lfirst(lc)), EXPR_KIND_PARTITION_BOUND)))
			ot_ddl_refuse("a partition's bound that may differ between regions",
						  "Write the bound as a constant, or create the partition after CREATE EXTENSION.");
		free_parsestate(pstate);
	}
}

/* Does the relation exist, so that IF NOT EXISTS skips the statement? */
static bool
ddl_bounds_is_passed_over(Node *stmt)
{
	CreateStmt *create = (CreateStmt *) stmt;
	Oid			schema;

	if (IsA(stmt, AlterTableStmt) || !create->if_not_exists)
		return false;
	schema = RangeVarGetCreationNamespace(create->relation);
	return OidIsValid(get_relname_relid(create->relation->relname, schema));
}

/*
 * Called before the lock is taken, so that a user without the right to alter
 * the parent cannot make others wait.
 */
static void
ddl_bounds_check_parent(const RangeVar *parent, Oid relid, Oid old_relid, void *arg)
{
	char		relkind = OidIsValid(relid) ? get_rel_relkind(relid) : '\0';

	/* if it is gone meanwhile, the caller looks it up again */
	if (relkind != '\0' && !OT_OWNS_RELATION(relid))
		aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(relkind), parent->relname);
}

/*
 * Returns the parent, locked; NULL if it is not suitable: PostgreSQL will say
 * what is wrong.
 */
static Relation
ddl_bounds_open_parent(RangeVar *parent, char strategy)
{
	Oid			relid = RangeVarGetRelidExtended(parent, ShareUpdateExclusiveLock, RVR_MISSING_OK,
												 ddl_bounds_check_parent, NULL);
	Relation	rel;

	if (!OidIsValid(relid))
		return NULL;
	rel = relation_open(relid, NoLock);
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE &&
		RelationGetPartitionKey(rel)->strategy == strategy)
		return rel;
	relation_close(rel, NoLock);
	return NULL;
}

/* Returns the bound with its expressions computed. */
static PartitionBoundSpec *
ddl_bounds_compute_values(PartitionBoundSpec *bound, Relation parent, const char *query)
{
	ParseState *pstate = make_parsestate(NULL);

	pstate->p_sourcetext = query;
	bound = transformPartitionBound(pstate, parent, copyObject(bound));
	free_parsestate(pstate);
	return bound;
}

/* The bound's values in SQL, in a form from which the same values are read. */
static char *
ddl_bounds_written_out(PartitionBoundSpec *bound)
{
	static const char start[] = "FOR VALUES ";
	int			guc_level = NewGUCNestLevel();
	char	   *text;

	(void) set_config_option("extra_float_digits", "3", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("DateStyle", "ISO", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	text = deparse_expression((Node *) bound, NIL, false, false);
	AtEOXact_GUC(true, guc_level);
	if (strncmp(text, start, strlen(start)) != 0)
		elog(ERROR, "unexpected form of a partition's bound: %s", text);
	return text + strlen(start);
}

/*
 * Returns the length of the bound's text, which begins with IN or FROM; 0 if
 * no complete bound is there.
 */
static int
ddl_bounds_length_of_bound(const char *text, char strategy)
{
	core_yyscan_t scanner;
	core_yy_extra_type extra;
	core_YYSTYPE value;
	YYLTYPE		location;
	int			groups = strategy == PARTITION_STRATEGY_LIST ? 1 : 2;
	int			depth = 0;
	int			length = 0;
	int			token;

	scanner = scanner_init(text, &extra, &ScanKeywords, ScanKeywordTokens);
	extra.escape_string_warning = false;
	while (length == 0 && (token = core_yylex(&value, &location, scanner)) != 0)
	{
		if (token == '(')
			depth++;
		else if (token == ')' && --depth == 0 && --groups == 0)
			length = location + 1;
	}
	scanner_finish(scanner);
	return length;
}

/*
 * PostgreSQL 15 and 16 store with each value where in the text it was written.  So many
 * digits hardly compress, pg_class has no TOAST table, and the row might be too big in
 * one region and not in another, whose text begins elsewhere.  The places are of no use
 * but in an error.
 */
static void
ddl_bounds_forget_places(PartitionBoundSpec *bound)
{
	List	   *lists[] = {bound->listdatums, bound->lowerdatums, bound->upperdatums};

	bound->location = -1;
	for (int i = 0; i < lengthof(lists); i++)
	{
		ListCell   *lc;

		foreach(lc, lists[i])
		{
			Node	   *datum = lfirst(lc);

			if (IsA(datum, A_Const))
				((A_Const *) datum)->location = -1;
			else if (IsA(datum, ColumnRef))
				((ColumnRef *) datum)->location = -1;
		}
	}
}

/* Forgets where the bounds in the statement, all of them written out, have their values. */
void
ot_ddl_forget_places_of_bounds(Node *stmt)
{
	RangeVar   *parent;
	PartitionBoundSpec **place;
	ListCell   *lc;

	if (IsA(stmt, CreateSchemaStmt))
	{
		foreach(lc, ((CreateSchemaStmt *) stmt)->schemaElts)
			ot_ddl_forget_places_of_bounds(lfirst(lc));
		return;
	}
	place = ddl_bounds_find_bound(stmt, &parent);
	if (place != NULL)
		ddl_bounds_forget_places(*place);
}

/*
 * Computes the bound of a new partition.  Returns the statement to run, and in
 * *text its equivalent to record.  offset is where *text starts in the query
 * string that locations in stmt refer to.
 */
Node *
ot_ddl_compute_bound(Node *stmt, char **text, int offset, const char *query)
{
	RangeVar   *parent;
	PartitionBoundSpec **place;
	PartitionBoundSpec *bound;
	PartitionBoundSpec *read;
	Relation	rel;
	int			location;
	int			begin;
	int			length;
	char	   *values;
	Node	   *again;

	if (IsA(stmt, CreateSchemaStmt))
	{
		ListCell   *lc;

		/* its tables do not exist yet */
		foreach(lc, ((CreateSchemaStmt *) stmt)->schemaElts)
		{
			place = ddl_bounds_find_bound(lfirst(lc), &parent);
			if (place != NULL && !ddl_bounds_all_written_out(*place))
				ot_ddl_refuse("CREATE SCHEMA with a partition whose bound is an expression",
							  "Create the partition by a statement of its own.");
		}
		stmt = copyObject(stmt);
		ot_ddl_forget_places_of_bounds(stmt);
		return stmt;
	}

	place = ddl_bounds_find_bound(stmt, &parent);
	if (place == NULL || (*place)->is_default ||
		(*place)->strategy == PARTITION_STRATEGY_HASH || ddl_bounds_is_passed_over(stmt))
		return stmt;
	location = (*place)->location;
	begin = location - offset;
	rel = ddl_bounds_open_parent(parent, (*place)->strategy);
	if (rel == NULL)
		return stmt;
	bound = ddl_bounds_compute_values(*place, rel, query);
	length = location >= offset && begin < (int) strlen(*text) ?
		ddl_bounds_length_of_bound(*text + begin, bound->strategy) : 0;
	if (length == 0)
		ot_ddl_refuse("a partition's bound at an unknown place in the statement",
					  "Run the statement on its own, as SQL text.");
	values = ddl_bounds_written_out(bound);
	*text = psprintf("%.*s%s%s", begin, *text, values, *text + begin + length);

	/* run exactly what is recorded */
	again = linitial_node(RawStmt, raw_parser(*text, RAW_PARSE_DEFAULT))->stmt;
	read = *ddl_bounds_find_bound(again, &parent);
	if (!equal(ddl_bounds_compute_values(read, rel, *text), bound))
		ot_ddl_refuse("a partition's bound that changes when its text is read again",
					  "Write the bound as a constant, or set array_nulls to on and other settings to their defaults.");
	relation_close(rel, NoLock);
	ddl_bounds_forget_places(read);
	stmt = copyObject(stmt);
	*ddl_bounds_find_bound(stmt, &parent) = read;
	return stmt;
}
