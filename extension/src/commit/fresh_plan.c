/*-------------------------------------------------------------------------
 *
 * fresh_plan.c
 *	  Does a plan read large objects?  They are replicated, although the functions
 *	  that read them are PostgreSQL's own.
 *
 * Runs in backends, before a query that would otherwise not have to be fresh, and
 * whenever a function is about to be called.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "nodes/nodeFuncs.h"
#include "nodes/plannodes.h"
#include "utils/fmgroids.h"

bool
ot_fresh_reads_large_object(Oid function)
{
	return function == F_LO_OPEN || function == F_LO_GET_OID || function == F_LO_GET_OID_INT8_INT4 ||
		function == F_LO_EXPORT;
}

static bool
fresh_plan_expression_reads(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, FuncExpr) && ot_fresh_reads_large_object(((FuncExpr *) node)->funcid))
		return true;
	return expression_tree_walker(node, fresh_plan_expression_reads, context);
}

static bool fresh_plan_reads(Plan *plan);

static bool
fresh_plan_one_reads(List *plans)
{
	ListCell   *lc;

	foreach(lc, plans)
	{
		if (fresh_plan_reads(lfirst(lc)))
			return true;
	}
	return false;
}

/* What a node has besides its output and its filter, where a call may be. */
static bool
fresh_plan_rest_reads(Plan *plan)
{
	switch (nodeTag(plan))
	{
		case T_Result:
			return fresh_plan_expression_reads(((Result *) plan)->resconstantqual, NULL);
		case T_FunctionScan:
			return fresh_plan_expression_reads((Node *) ((FunctionScan *) plan)->functions, NULL);
		case T_ValuesScan:
			return fresh_plan_expression_reads((Node *) ((ValuesScan *) plan)->values_lists, NULL);
		case T_NestLoop:
		case T_MergeJoin:
		case T_HashJoin:
			return fresh_plan_expression_reads((Node *) ((Join *) plan)->joinqual, NULL);
		case T_SubqueryScan:
			return fresh_plan_reads(((SubqueryScan *) plan)->subplan);
		case T_Append:
			return fresh_plan_one_reads(((Append *) plan)->appendplans);
		case T_MergeAppend:
			return fresh_plan_one_reads(((MergeAppend *) plan)->mergeplans);
		default:
			return false;
	}
}

static bool
fresh_plan_reads(Plan *plan)
{
	return plan != NULL &&
		(fresh_plan_expression_reads((Node *) plan->targetlist, NULL) ||
		 fresh_plan_expression_reads((Node *) plan->qual, NULL) ||
		 fresh_plan_rest_reads(plan) ||
		 fresh_plan_reads(plan->lefttree) || fresh_plan_reads(plan->righttree));
}

bool
ot_fresh_reads_large_objects(PlannedStmt *plan)
{
	return fresh_plan_reads(plan->planTree) || fresh_plan_one_reads(plan->subplans);
}
