/*-------------------------------------------------------------------------
 *
 * sequence_shown.c
 *	  Shows clients the definition of a sequence as its owner wrote it.
 *
 * pg_sequence contains this node's share (sequence.c), which is what the server
 * itself reads, from its cache of catalogs.  Clients read it by queries.  So
 * when a query is planned, pg_sequence in it is replaced by the view
 * onetrip.sequence_definitions, which has the same columns; psql, pg_dump,
 * information_schema and pg_sequences all get there.  The catalog itself is left
 * in place where a query changes or locks its rows or asks for system columns,
 * and where onetrip.show_sequence_shares is on.
 *
 * A position that was raised because of another region shows as a next value
 * that was not given yet: see ot_sequence_raise().
 *
 * Runs in every process that plans queries.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "sequence/sequence_internal.h"

#include "access/relation.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_sequence.h"
#include "common/int.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "parser/parsetree.h"
#include "rewrite/rewriteHandler.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#define DEFINITIONS_VIEW "sequence_definitions"

PG_FUNCTION_INFO_V1(ot_sequence_defined);
PG_FUNCTION_INFO_V1(ot_sequence_share_here);
PG_FUNCTION_INFO_V1(ot_sequence_last_value);

/* ---- what the views call ---- */

static int64
sequence_shown_field(const char *name, int64 start, int64 increment, int64 minimum, int64 maximum,
					 int64 cache)
{
	if (strcmp(name, "start") == 0)
		return start;
	if (strcmp(name, "increment") == 0)
		return increment;
	if (strcmp(name, "minimum") == 0)
		return minimum;
	if (strcmp(name, "maximum") == 0)
		return maximum;
	if (strcmp(name, "cache") == 0)
		return cache;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("a sequence's definition has no \"%s\"", name),
			 errhint("It has start, increment, minimum, maximum and cache.")));
}

/*
 * onetrip.sequence_defined(oid, text, bigint): a number of the definition, as
 * its owner wrote it; for a sequence that is just being dropped, the one given.
 */
Datum
ot_sequence_defined(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(1));
	OtSequenceLoaded seq;

	if (!ot_sequence_load(PG_GETARG_OID(0), &seq))
		PG_RETURN_INT64(PG_GETARG_INT64(2));
	PG_RETURN_INT64(sequence_shown_field(name, seq.user.start, seq.user.increment,
										 seq.user.minimum, seq.user.maximum, seq.user.cache));
}

/* onetrip.sequence_share_here(oid, text): the same of this node's share. */
Datum
ot_sequence_share_here(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(1));
	OtSequenceLoaded seq;

	if (!ot_sequence_load(PG_GETARG_OID(0), &seq))
		PG_RETURN_NULL();
	PG_RETURN_INT64(sequence_shown_field(name, seq.here.start, seq.here.increment,
										 seq.here.minimum, seq.here.maximum, seq.here.cache));
}

/*
 * onetrip.sequence_last_value(regclass): pg_sequence_last_value(), which says
 * of a sequence whose next value is known, but that gave out none here lately,
 * that it was never used.  Here the answer is then the last value before that, if
 * there is one.
 */
Datum
ot_sequence_last_value(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	Relation	rel;
	OtSequenceLoaded seq;
	OtPosition	position;
	int64		before;
	bool		may_read;

	ot_user_check_may_call(OT_LAST_VALUE_OID);
	rel = relation_open(relid, AccessShareLock);
	if (rel->rd_rel->relkind != RELKIND_SEQUENCE || !ot_sequence_load(relid, &seq))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a sequence", RelationGetRelationName(rel))));
	may_read = pg_class_aclcheck(relid, GetUserId(), ACL_SELECT | ACL_USAGE) == ACLCHECK_OK;
	if (!may_read && !ot_last_value_is_null_without_privilege())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for sequence %s", RelationGetRelationName(rel))));
	if (!may_read || RELATION_IS_OTHER_TEMP(rel))
	{
		relation_close(rel, AccessShareLock);
		PG_RETURN_NULL();
	}
	position = ot_sequence_page_read(rel);
	relation_close(rel, AccessShareLock);
	if (position.is_called)
		PG_RETURN_INT64(position.last_value);
	if (!seq.adjusted || position.last_value == seq.here.start ||
		ot_sequence_own_share(&seq.user).stride == 1)
		PG_RETURN_NULL();
	if (pg_sub_s64_overflow(position.last_value, seq.user.increment, &before) ||
		before < seq.user.minimum || before > seq.user.maximum)
		PG_RETURN_NULL();
	PG_RETURN_INT64(before);
}

/* ---- pg_sequence in queries ---- */

/* The query of the view, or NULL while the extension is not there. */
static Query *
sequence_shown_definitions(void)
{
	Oid			schema = get_namespace_oid("onetrip", true);
	Oid			view = OidIsValid(schema) ? get_relname_relid(DEFINITIONS_VIEW, schema) : InvalidOid;
	Relation	rel;
	Query	   *query;

	if (!OidIsValid(view))
		return NULL;
	rel = table_open(view, AccessShareLock);
	query = rel->rd_rel->relkind == RELKIND_VIEW ? copyObject(get_view_query(rel)) : NULL;
	table_close(rel, NoLock);
	return query;
}

typedef struct SystemColumn
{
	int			rte;			/* number in the range table */
	int			level;			/* how many queries further in we are */
} SystemColumn;

/* Is a system column of this entry of the range table used? */
static bool
sequence_shown_finds_system_column(Node *node, SystemColumn *of)
{
	if (node == NULL)
		return false;
	if (IsA(node, Var))
	{
		Var		   *var = (Var *) node;

		return var->varno == of->rte && var->varlevelsup == of->level && var->varattno < 0;
	}
	if (IsA(node, Query))
	{
		bool		found;

		of->level++;
		found = query_tree_walker((Query *) node, sequence_shown_finds_system_column, of, 0);
		of->level--;
		return found;
	}
	return expression_tree_walker(node, sequence_shown_finds_system_column, of);
}

/* Replaces pg_sequence in this query, but not in queries inside it. */
void
ot_sequence_show_definitions(Query *query)
{
	int			number = 0;
	ListCell   *lc;

	if (ot_sequence_stride == 1 || ot_show_sequence_shares)
		return;
	foreach(lc, query->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, lc);
		SystemColumn column = {.rte = ++number};
		Query	   *definitions;

		if (likely(rte->rtekind != RTE_RELATION || rte->relid != SequenceRelationId))
			continue;
		if (query->resultRelation == number || get_parse_rowmark(query, number) != NULL ||
			query_tree_walker(query, sequence_shown_finds_system_column, &column, 0))
			continue;
		definitions = sequence_shown_definitions();
		if (definitions == NULL)
			return;
		rte->rtekind = RTE_SUBQUERY;
		rte->subquery = definitions;
		rte->inh = false;
		OT_MAKE_SUBQUERY_OF_VIEW(rte);
	}
}
