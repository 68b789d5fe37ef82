/*-------------------------------------------------------------------------
 *
 * lock_ahead.c
 *	  Where rows are locked at the leader first (onetrip.concurrency = locking,
 *	  or a table with that label): asks for the locks of all rows that a statement
 *	  is going to change or lock, at once, before it begins.
 *
 * The table access method is handed rows one by one, and to wait for each one's
 * lock would cost a round trip each.  So the statement's scan is run once before
 * the statement, for the rows' places only, and the locks of the rows that it
 * finds are asked for together.  A row that the statement finds later, because
 * another transaction has changed it meanwhile, is asked for by itself
 * (row_lock.c).
 *
 * The scan must do nothing but look.  So this is for an UPDATE or DELETE of one
 * table, or SELECT ... FOR UPDATE and its like, whose rows come straight from a
 * scan of that table, with conditions that call no volatile function and no
 * subquery.  All others ask row by row, and so does a cursor, from which only
 * some of the rows may be fetched, and SERIALIZABLE, where to look is to read.
 *
 * Runs in backends, before the executor starts a statement.  Memory: a context
 * of its own, deleted at the end.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "access/parallel.h"
#include "access/relation.h"
#include "access/sysattr.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/plannodes.h"
#include "optimizer/optimizer.h"
#include "parser/parsetree.h"
#include "tcop/dest.h"
#include "tcop/pquery.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/rel.h"

static ExecutorStart_hook_type prev_executor_start = NULL;

/* More rows than this are not locked ahead: there is room for about a million locks. */
#define ROWS_MAX 100000

/* Where the scan's rows go. */
typedef struct Found
{
	DestReceiver pub;
	ItemPointerData *tids;
	int			ntids;
	int			room;
} Found;

static bool
lock_ahead_receive(TupleTableSlot *slot, DestReceiver *self)
{
	Found	   *found = (Found *) self;
	bool		isnull;
	ItemPointer tid = (ItemPointer) DatumGetPointer(slot_getattr(slot, 1, &isnull));

	if (isnull)
		return true;
	if (found->ntids > ROWS_MAX)
		return false;
	if (found->ntids == found->room)
	{
		Size		room = Max(64, (Size) found->room * 2);

		found->tids = found->tids == NULL ?
			MemoryContextAllocHuge(GetMemoryChunkContext(self), sizeof(ItemPointerData) * room) :
			repalloc_huge(found->tids, sizeof(ItemPointerData) * room);
		found->room = room;
	}
	found->tids[found->ntids++] = *tid;
	return true;
}

static void
lock_ahead_startup(DestReceiver *self, int operation, TupleDesc desc)
{
}

static void
lock_ahead_nothing(DestReceiver *self)
{
}

/* ---- which statements ---- */

/* The conditions of a scan that looks at one table and does nothing else. */
static bool
lock_ahead_conditions(Plan *plan, List **conditions)
{
	switch (nodeTag(plan))
	{
		case T_SeqScan:
			*conditions = NIL;
			return true;
		case T_IndexScan:
			*conditions = list_copy(((IndexScan *) plan)->indexqualorig);
			return ((IndexScan *) plan)->indexorderby == NIL;
		case T_BitmapHeapScan:
			*conditions = list_copy(((BitmapHeapScan *) plan)->bitmapqualorig);
			return true;
		case T_TidScan:
			*conditions = list_copy(((TidScan *) plan)->tidquals);
			return true;
		default:
			return false;
	}
}

/* Only unnamed portals of clients are not visible. */
static bool
lock_ahead_is_cursor(void)
{
	return ActivePortal != NULL && ActivePortal->visible;
}

/*
 * The one table of which this statement changes or locks rows, and the mode of
 * their locks; 0: it does something else.
 */
static Index
lock_ahead_target(PlannedStmt *stmt, OtKeyMode *mode)
{
	Plan	   *plan = stmt->planTree;

	if (stmt->subplans != NIL || stmt->hasModifyingCTE)
		return 0;
	if (IsA(plan, ModifyTable))
	{
		ModifyTable *modify = (ModifyTable *) plan;

		if ((modify->operation != CMD_UPDATE && modify->operation != CMD_DELETE) ||
			list_length(modify->resultRelations) != 1)
			return 0;
		*mode = modify->operation == CMD_UPDATE ? OT_NO_KEY_UPDATE : OT_UPDATE;
		return linitial_int(modify->resultRelations);
	}
	else if (IsA(plan, LockRows) && list_length(((LockRows *) plan)->rowMarks) == 1)
	{
		PlanRowMark *mark = linitial_node(PlanRowMark, ((LockRows *) plan)->rowMarks);

		if (mark->waitPolicy != LockWaitBlock || mark->isParent || lock_ahead_is_cursor())
			return 0;
		switch (mark->markType)
		{
			case ROW_MARK_EXCLUSIVE:
				*mode = OT_UPDATE;
				break;
			case ROW_MARK_NOKEYEXCLUSIVE:
				*mode = OT_NO_KEY_UPDATE;
				break;
			case ROW_MARK_SHARE:
				*mode = OT_SHARE;
				break;
			default:
				return 0;
		}
		return mark->rti;
	}
	return 0;
}

/* The scan that the rows of this statement come from; NULL: they come from something else. */
static Scan *
lock_ahead_scan(PlannedStmt *stmt, Index target)
{
	Plan	   *plan = outerPlan(stmt->planTree);
	List	   *conditions;

	while (plan != NULL && IsA(plan, Sort))
		plan = outerPlan(plan);
	if (plan == NULL || !lock_ahead_conditions(plan, &conditions) ||
		((Scan *) plan)->scanrelid != target ||
		contain_volatile_functions((Node *) list_concat(conditions, plan->qual)))
		return NULL;
	return (Scan *) plan;
}

/* Is it a table whose rows are locked at the leader? */
static bool
lock_ahead_is_for(Relation rel)
{
	return rel->rd_rel->relpersistence == RELPERSISTENCE_PERMANENT &&
		rel->rd_rel->relkind == RELKIND_RELATION &&
		ot_in_replicated_database() && ot_is_onetrip_table(rel) && ot_locks_rows_first(rel);
}

/* ---- the scan ---- */

/* Runs the scan for the places of its rows. */
static void
lock_ahead_find(QueryDesc *query, Scan *scan, Found *found)
{
	PlannedStmt *stmt = makeNode(PlannedStmt);
	Scan	   *copy = copyObject(scan);
	Var		   *tid = makeVar(copy->scanrelid, SelfItemPointerAttributeNumber, TIDOID, -1, InvalidOid, 0);
	QueryDesc  *looks;

	*stmt = *query->plannedstmt;
	stmt->commandType = CMD_SELECT;
	stmt->hasReturning = false;
	stmt->parallelModeNeeded = false;
	stmt->resultRelations = NIL;
	stmt->rowMarks = NIL;
	copy->plan.targetlist = list_make1(makeTargetEntry((Expr *) tid, 1, NULL, false));
	stmt->planTree = (Plan *) copy;
	looks = CreateQueryDesc(stmt, query->sourceText, query->snapshot, InvalidSnapshot, &found->pub,
							query->params, query->queryEnv, 0);
	/* other extensions need not see this one */
	standard_ExecutorStart(looks, 0);
	standard_ExecutorRun(looks, ForwardScanDirection, 0 OT_EXECUTE_ONCE(true));
	standard_ExecutorFinish(looks);
	standard_ExecutorEnd(looks);
	FreeQueryDesc(looks);
}

static void
lock_ahead(QueryDesc *query, Index target, OtKeyMode mode)
{
	RangeTblEntry *rte = rt_fetch(target, query->plannedstmt->rtable);
	Relation	rel = relation_open(rte->relid, NoLock);
	Scan	   *scan = NULL;
	MemoryContext context;
	MemoryContext old;

	if (lock_ahead_is_for(rel))
		scan = lock_ahead_scan(query->plannedstmt, target);
	if (scan == NULL)
	{
		relation_close(rel, NoLock);
		return;
	}
	context = AllocSetContextCreate(CurrentMemoryContext, "onetrip lock ahead", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	{
		Found	   *found = palloc0(sizeof(Found));
		OtRowLock  *locks;
		int			nlocks = 0;

		found->pub.receiveSlot = lock_ahead_receive;
		found->pub.rStartup = lock_ahead_startup;
		found->pub.rShutdown = lock_ahead_nothing;
		found->pub.rDestroy = lock_ahead_nothing;
		found->pub.mydest = DestNone;
		lock_ahead_find(query, scan, found);
		if (found->ntids > ROWS_MAX)
		{
			ot_row_lock_too_many(ROWS_MAX);
			found->ntids = 0;
		}
		locks = MemoryContextAllocHuge(context, sizeof(OtRowLock) * Max(found->ntids, 1));
		for (int i = 0; i < found->ntids; i++)
		{
			OtHash		hash;
			OtKeyMode	row_mode = mode;

			if (ot_capture_row_key(rel, &found->tids[i], &row_mode, &hash))
				locks[nlocks++] = (OtRowLock)
			{
				.hash = hash.value, .mode = row_mode
			};
		}
		/* one row is asked for when it is changed, if it still is */
		if (nlocks > 1)
			ot_row_lock_all(rel, locks, nlocks);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	relation_close(rel, NoLock);
}

static void
ot_lock_ahead_executor_start(QueryDesc *query, int eflags)
{
	OtKeyMode	mode;
	Index		target = lock_ahead_target(query->plannedstmt, &mode);

	if (target != 0 && !(eflags & EXEC_FLAG_EXPLAIN_ONLY) &&
		ot_preloaded && IsUnderPostmaster && !ot_is_apply_worker && !IsParallelWorker() &&
		!IsolationIsSerializable() && !XactReadOnly && !ot_row_lock_goes_without())
		lock_ahead(query, target, mode);
	if (prev_executor_start)
		prev_executor_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
}

void
ot_lock_ahead_init(void)
{
	prev_executor_start = ExecutorStart_hook;
	ExecutorStart_hook = ot_lock_ahead_executor_start;
}
