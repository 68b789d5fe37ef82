/*-------------------------------------------------------------------------
 *
 * ddl_call.c
 *	  Goes on with a utility statement, from any of our hooks.
 *
 * Runs in every process.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "tcop/utility.h"
#include "utils/memutils.h"

static MemoryContext kept_context = NULL;	/* was ErrorContext, in the innermost call */

/*
 * In PostgreSQL 15 xml_is_well_formed() leaves ErrorContext as the current
 * context if the text is not, and the default of a new column is computed without
 * a context of its own.  The statement goes on to allocate there, for instance the
 * context of an event trigger, and the next error that is caught frees all that
 * under its feet.  So what is in ErrorContext then is kept until the end of the
 * transaction, and there is a new one.
 *
 * Called in the hooks that run before any function that might catch an error.
 */
void
ot_ddl_keep_error_context(void)
{
	MemoryContext left = ErrorContext;

	if (likely(CurrentMemoryContext != left && left->firstchild == NULL) || TopTransactionContext == NULL)
		return;
	ErrorContext = AllocSetContextCreate(TopMemoryContext, "ErrorContext", 8 * 1024, 8 * 1024, 8 * 1024);
	/* as PostgreSQL makes it */
	MemoryContextAllowInCriticalSection(ErrorContext, true);
	MemoryContextSetParent(left, TopTransactionContext);
	kept_context = left;
}

/*
 * Calls the previous hook, or standard_ProcessUtility().  Then leaves
 * ErrorContext, if it has become the current one: only a portal switches back to
 * its own.
 */
void
ot_call_process_utility(const OtUtility *call)
{
	MemoryContext context_before = CurrentMemoryContext;
	MemoryContext outer_kept = kept_context;
	PlannedStmt *pstmt = call->pstmt;
	bool		read_only_tree = call->read_only_tree;

	if (call->node != pstmt->utilityStmt)
	{
		pstmt = makeNode(PlannedStmt);
		*pstmt = *call->pstmt;
		pstmt->utilityStmt = call->node;
		read_only_tree = false;
	}
	kept_context = NULL;
	if (call->prev)
		call->prev(pstmt, call->query, read_only_tree, call->context, call->params, call->env,
				   call->dest, call->completion);
	else
		standard_ProcessUtility(pstmt, call->query, read_only_tree, call->context, call->params, call->env,
								call->dest, call->completion);
	/* other changes are intended: VACUUM ends transactions */
	if (CurrentMemoryContext == ErrorContext || CurrentMemoryContext == kept_context)
		MemoryContextSwitchTo(context_before);
	kept_context = outer_kept;
}
