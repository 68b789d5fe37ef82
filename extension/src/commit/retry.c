/*-------------------------------------------------------------------------
 *
 * retry.c
 *	  Runs a statement again that is a transaction of its own and lost against
 *	  another one (onetrip.statement_retries).
 *
 * PostgreSQL commits such a statement after its portal has run, where an ERROR
 * can only go to the client.  So the transaction is committed here, while the
 * portal still runs, as a procedure commits: PostgreSQL keeps an active portal
 * through the end of its transaction.  If the statement or its COMMIT fails with
 * 40001, the transaction is rolled back, and the statement is parsed, planned and
 * executed again in a new transaction, just as if the client had sent it again.
 * A client cannot tell the difference, since it has been sent nothing: the
 * number of rows is counted anew, and rows of RETURNING are still in the portal's
 * store.
 *
 * What follows a commit, up to the end of the statement, is a transaction that
 * does nothing.  Until its end, cancels are held: the client must not be told
 * that the statement failed (ot_commit_begin_answer() in commit.c).
 *
 * Which statements: INSERT, UPDATE, DELETE and MERGE, also WITH them, DDL, and
 * CALL and DO if onetrip.retry_procedures is on; of a client, outside of a transaction
 * block, alone in their query string, or followed by Sync.  Whether a Sync follows
 * is known if it has arrived with its Execute, as drivers send it; without it
 * another statement may join the transaction.  A procedure that has ended a
 * transaction itself is not run again.
 *
 * The executor's state of a statement that was committed stays in memory until
 * ExecutorEnd, because other extensions look at it before that (auto_explain,
 * pg_stat_statements); what it has open is closed before the commit.
 *
 * Runs in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_proc.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "executor/tstoreReceiver.h"
#include "jit/jit.h"
#include "miscadmin.h"
#include "partitioning/partdesc.h"
#include "replication/slot.h"
#include "storage/ipc.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

/* as in onetrip.c: Kerberos' headers need not be installed */
#undef ENABLE_GSS
#include "libpq/libpq.h"

#include "capture/capture.h"
#include "ddl/ddl.h"
#include "shmem/shmem.h"

/* How long a statement lets another region go first before it is run again. */
#define GO_FIRST_MS 100

static ExecutorRun_hook_type prev_executor_run = NULL;
static ExecutorFinish_hook_type prev_executor_finish = NULL;
static ExecutorEnd_hook_type prev_executor_end = NULL;
static ProcessUtility_hook_type prev_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;

static void ot_retry_executor_end(QueryDesc *query);

/* The statement whose ExecutorFinish, and perhaps whose commit, is over. */
static struct
{
	QueryDesc  *query;			/* NULL: none */
	bool		committed;
}			done;

/* The last one that called a function whose effect outlives it and changes the next call. */
static LocalTransactionId called_once = InvalidLocalTransactionId;

/* A statement, and the tries to run it. */
typedef struct Retry
{
	QueryDesc  *query;			/* the portal's; NULL: CALL, DO or DDL */
	QueryDesc  *running;		/* the same, or one that was made here */
	PlannedStmt *utility;		/* then this; it may be gone after the first try */
	NodeTag		utility_tag;
	bool		defines;		/* it is DDL */
	QueryCompletion *completion;
	LocalTransactionId lxid;	/* of the try */
	DestReceiver *dest;
	const char *text;
	ParamListInfo params;
	MemoryContext context;		/* the portal's */
	TimestampTz timeout_at;		/* of the statement; 0: none */
	int			losses;
	bool		ends;			/* it was committed, or there is no use in it */
	bool		commits;		/* its triggers have run, and COMMIT has begun */
	ErrorData  *loss;			/* the last one */
} Retry;

/* ---- which statements ---- */

/*
 * Has the client sent a Sync already?  Then nothing can join the transaction of
 * the Execute that runs.
 */
static bool
retry_sync_follows(void)
{
	int			next;

	if (!OT_CLIENT_DATA_IS_BUFFERED())
		return false;
	pq_startmsgread();
	next = pq_peekbyte();
	pq_endmsgread();
	return next == 'S';
}

/* auto_explain looks up names of a plan whose locks are gone by then. */
static bool
retry_is_explained(void)
{
	const char *value;

	if (likely(ExecutorEnd_hook == ot_retry_executor_end && prev_executor_end == NULL))
		return false;
	value = GetConfigOption("auto_explain.log_min_duration", true, false);
	return value != NULL && strcmp(value, "-1") != 0;
}

/*
 * Only the portals of a client have no name: those of EXECUTE and of cursors in
 * functions get one.  A portal of the simple protocol is not visible; if its
 * query string had other statements, there would be an implicit block.
 */
static bool
retry_applies(PlannedStmt *stmt)
{
	Portal		portal = ActivePortal;

	return ot_statement_retries > 0 && portal != NULL && portal->name[0] == '\0' &&
		portal->status == PORTAL_ACTIVE && portal->strategy != PORTAL_ONE_SELECT &&
		list_length(portal->stmts) == 1 && linitial(portal->stmts) == stmt &&
		MyBackendType == B_BACKEND && whereToSendOutput == DestRemote &&
		!IsTransactionBlock() && GetCurrentTransactionNestLevel() == 1 &&
		(MyXactFlags & XACT_FLAGS_PIPELINING) == 0 &&
		ot_in_replicated_database() &&
		(!portal->visible || retry_sync_follows());
}

/*
 * A procedure is, if somebody has said so.  DDL is: what it loses to is mostly
 * other DDL, about something else.  (The definition of an index by CREATE INDEX
 * CONCURRENTLY is committed before the index is built; that is the try.)
 */
static bool
retry_applies_to_utility(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_CallStmt:
		case T_DoStmt:
			return ot_retry_procedures;

		/* what they contain decides their log level, and they are not DDL */
		case T_ExplainStmt:
		case T_PrepareStmt:
		case T_ExecuteStmt:
			return false;
		/* what they have done at the publisher stays done */
		case T_CreateSubscriptionStmt:
		case T_AlterSubscriptionStmt:
		case T_DropSubscriptionStmt:
			return false;
		case T_TruncateStmt:
			return true;
		default:
			return GetCommandLogLevel(stmt) == LOGSTMT_DDL;
	}
}

/* ---- one try ---- */

/*
 * Ends what standard_ExecutorEnd() ends, but keeps the memory, and leaves nothing
 * for it to end but that: it is still called, with the hooks of other extensions.
 */
static void
retry_close(QueryDesc *query)
{
	EState	   *estate = query->estate;
	MemoryContext old = MemoryContextSwitchTo(estate->es_query_cxt);
	ListCell   *lc;

	ExecEndNode(query->planstate);
	foreach(lc, estate->es_subplanstates)
		ExecEndNode(lfirst(lc));
	ExecResetTupleTable(estate->es_tupleTable, false);
	ExecCloseResultRelations(estate);
	ExecCloseRangeTableRelations(estate);
	estate->es_subplanstates = NIL;
	estate->es_tupleTable = NIL;
	estate->es_opened_result_relations = NIL;
	estate->es_tuple_routing_result_relations = NIL;
	estate->es_trig_target_relations = NIL;
	estate->es_range_table_size = 0;
	UnregisterSnapshot(estate->es_snapshot);
	estate->es_snapshot = InvalidSnapshot;
	MemoryContextSwitchTo(old);
	while (estate->es_exprcontexts)
		FreeExprContext(linitial(estate->es_exprcontexts), true);
	if (estate->es_jit)
	{
		jit_release_context(estate->es_jit);
		estate->es_jit = NULL;
	}
	if (estate->es_partition_directory)
	{
		DestroyPartitionDirectory(estate->es_partition_directory);
		estate->es_partition_directory = NULL;
	}
	UnregisterSnapshot(query->snapshot);
	query->snapshot = InvalidSnapshot;
}

/*
 * Makes the statement's plan anew, in the present transaction.  Returns NULL if
 * it has become more than one statement.
 */
static PlannedStmt *
retry_plan(Retry *retry)
{
	List	   *list = pg_parse_query(retry->text);
	int			nparams = retry->params ? retry->params->numParams : 0;
	Oid		   *types = palloc(sizeof(Oid) * Max(nparams, 1));

	for (int i = 0; i < nparams; i++)
		types[i] = retry->params->params[i].ptype;
	if (list_length(list) != 1)
		return NULL;
	PushActiveSnapshot(GetTransactionSnapshot());
	list = pg_analyze_and_rewrite_fixedparams(linitial_node(RawStmt, list), retry->text,
											  types, nparams, NULL);
	list = pg_plan_queries(list, retry->text, CURSOR_OPT_PARALLEL_OK, retry->params);
	PopActiveSnapshot();
	return list_length(list) == 1 ? linitial_node(PlannedStmt, list) : NULL;
}

/*
 * Prepares another try.  Returns false if the statement has become another kind
 * of statement, such as one with other result columns.
 */
static bool
retry_prepare(Retry *retry)
{
	PlannedStmt *plan = retry_plan(retry);
	TupleDesc	result = ActivePortal->tupDesc;

	if (plan == NULL)
		return false;
	if (retry->query == NULL)
	{
		if (plan->utilityStmt == NULL || nodeTag(plan->utilityStmt) != retry->utility_tag)
			return false;
		retry->utility = plan;
		if (result != NULL && !equalTupleDescs(UtilityTupleDescriptor(plan->utilityStmt), result))
			return false;
		InitializeQueryCompletion(retry->completion);
		EnsurePortalSnapshotExists();
		return true;
	}
	if (plan->commandType != retry->query->operation)
		return false;
	PushActiveSnapshot(GetTransactionSnapshot());
	retry->running = CreateQueryDesc(plan, retry->text, GetActiveSnapshot(), InvalidSnapshot,
									 retry->dest, retry->params, NULL, 0);
	ExecutorStart(retry->running, 0);
	return result == NULL || equalTupleDescs(retry->running->tupDesc, result);
}

/*
 * Waits until this server shows what the statement lost to, so that it does not
 * lose to the same again.  Returns false if it takes too long.
 */
static bool
retry_wait(void)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(ot_now(), ot_commit_timeout_ms);

	ot_session_watch_errors();
	if (ot_conflict_own_last_kind() == OT_CONFLICT_RESERVED)
	{
		/* That entry was the favoured region's last loss: its commit comes later, or does not come. */
		deadline = TimestampTzPlusMilliseconds(ot_now(), Min(GO_FIRST_MS, ot_commit_timeout_ms));
		(void) ot_position_wait_shown(ot_conflict_own_last(), deadline);
		return true;
	}
	return ot_position_wait_shown(ot_conflict_own_last(), deadline);
}

static void
retry_execute(Retry *retry)
{
	QueryDesc  *query = retry->running;

	if (query == NULL)
	{
		OtUtility	call = {prev_process_utility, retry->utility, retry->utility->utilityStmt, retry->text, true,
			PROCESS_UTILITY_TOPLEVEL, retry->params, NULL, retry->dest, retry->completion};

		ot_call_process_utility(&call);
		return;
	}
	if (query != retry->query)
		ExecutorRun(query, ForwardScanDirection, 0 OT_EXECUTE_ONCE(true));
	else if (prev_executor_run)
		prev_executor_run(query, ForwardScanDirection, 0 OT_EXECUTE_ONCE(true));
	else
		standard_ExecutorRun(query, ForwardScanDirection, 0 OT_EXECUTE_ONCE(true));
	ExecutorFinish(query);
}

/* Commits the transaction, and begins the one in which the client is answered. */
static void
retry_commit(Retry *retry)
{
	OtLogIndex	before = ot_commit_last_entry();

	if (retry->running)
	{
		retry_close(retry->running);
		PopActiveSnapshot();
	}
	else
		ForgetPortalSnapshots();
	/* as in PostgreSQL, it does not end a COMMIT */
	if (get_timeout_active(STATEMENT_TIMEOUT))
	{
		retry->timeout_at = get_timeout_finish_time(STATEMENT_TIMEOUT);
		disable_timeout(STATEMENT_TIMEOUT, false);
	}
	/* COMMIT would do it first; who loses meanwhile has committed nowhere */
	AfterTriggerFireDeferred();
	retry->commits = true;
	CommitTransactionCommand();
	retry->ends = true;
	ot_commit_begin_answer(ActivePortal->visible || ActivePortal->holdStore != NULL,
						   ot_commit_last_entry().value != before.value);
	StartTransactionCommand();
	MemoryContextSwitchTo(retry->context);
	/* the portal of a query removes it when it has run */
	if (retry->running)
		PushActiveSnapshot(GetTransactionSnapshot());
}

static void
retry_try(Retry *retry)
{
	if (retry->losses > 0 && !(retry_wait() && retry_prepare(retry)))
	{
		retry->ends = true;
		ReThrowError(retry->loss);
	}
	retry->lxid = OT_LXID(MyProc);
	retry_execute(retry);
	/* a procedure may have ended that transaction; the portal commits the rest */
	if (retry->lxid == OT_LXID(MyProc) && (retry->losses > 0 || !ot_write_set_is_empty()))
	{
		retry_commit(retry);
		done.committed = true;
	}
	done.query = retry->query;
}

/* ---- between two tries ---- */

/* Called in PG_CATCH. */
static bool
retry_may_go_on(Retry *retry)
{
	return geterrcode() == OT_ERR_LOST && !ot_commit_lost_to_prepared() &&
		!retry->ends && !ot_commit_id_is_told() &&
		(retry->lxid == InvalidLocalTransactionId ||
		 (retry->lxid == OT_LXID(MyProc) && called_once != OT_LXID(MyProc))) &&
		retry->losses < ot_statement_retries && !proc_exit_inprogress &&
		!(retry->commits && ot_held_locks_write_foreign(retry->defines));
}

/* The transaction has lost: begins another one.  Called in PG_CATCH. */
static void
retry_begin_anew(Retry *retry)
{
	Tuplestorestate *store = ActivePortal->holdStore;

	MemoryContextSwitchTo(retry->context);
	if (retry->loss)
		FreeErrorData(retry->loss);
	retry->loss = CopyErrorData();
	FlushErrorState();
	/* it is gone when the transaction has ended */
	if (retry->running)
		retry->running->snapshot = InvalidSnapshot;
	ActivePortal->portalSnapshot = NULL;
	AbortCurrentTransaction();
	/* it was decoding; temporary slots stay, since the client sees no error */
	if (MyReplicationSlot != NULL)
		ReplicationSlotRelease();
	StartTransactionCommand();
	MemoryContextSwitchTo(retry->context);
	if (store)
		tuplestore_clear(store);
	if (retry->timeout_at != 0)
		enable_timeout_at(STATEMENT_TIMEOUT, retry->timeout_at);
	retry->timeout_at = 0;
	retry->lxid = InvalidLocalTransactionId;
	retry->commits = false;
	retry->losses++;
}

/* Those who look at the portal's query from here on see the last try. */
static void
retry_show_last_try(Retry *retry)
{
	QueryDesc  *query = retry->query;

	query->plannedstmt = retry->running->plannedstmt;
	query->tupDesc = retry->running->tupDesc;
	query->estate = retry->running->estate;
	query->planstate = retry->running->planstate;
	/* what was measured of the first try may be incomplete */
	if (query->totaltime)
	{
		MemoryContext old = MemoryContextSwitchTo(query->estate->es_query_cxt);

		query->totaltime = InstrAlloc(1, INSTRUMENT_ALL, false);
		MemoryContextSwitchTo(old);
	}
}

/*
 * Rows of RETURNING, taken apart from the tables, which may lose the values that
 * they refer to once the transaction is over.
 */
static DestReceiver *
retry_store(void)
{
	DestReceiver *dest = CreateDestReceiver(DestTuplestore);

	SetTuplestoreDestReceiverParams(dest, ActivePortal->holdStore, ActivePortal->holdContext,
									true, NULL, NULL);
	return dest;
}

static void
retry_run(Retry *retry)
{
	volatile bool again;

	retry->context = CurrentMemoryContext;
	do
	{
		again = false;
		PG_TRY();
		{
			retry_try(retry);
		}
		PG_CATCH();
		{
			if (!retry_may_go_on(retry))
				PG_RE_THROW();
			retry_begin_anew(retry);
			again = true;
		}
		PG_END_TRY();
	} while (again);
	if (retry->running != retry->query)
		retry_show_last_try(retry);
	/* the statement itself may have turned it on */
	if (done.committed && retry->query && retry_is_explained())
		retry->query->totaltime = NULL;
}

/* The transaction is over, and so is every statement of it. */
void
ot_retry_at_end(void)
{
	done.query = NULL;
	done.committed = false;
}

/* ---- hooks ---- */

static void
ot_retry_executor_run(QueryDesc *query, ScanDirection direction,
					  uint64 count OT_EXECUTE_ONCE_PARAMETER)
{
	Retry	   *retry;

	if (!retry_applies(query->plannedstmt) || query->instrument_options != 0 || retry_is_explained())
	{
		if (prev_executor_run)
			prev_executor_run(query, direction, count OT_EXECUTE_ONCE_ARGUMENT);
		else
			standard_ExecutorRun(query, direction, count OT_EXECUTE_ONCE_ARGUMENT);
		return;
	}
	retry = palloc0(sizeof(Retry));
	if (query->dest->mydest == DestTuplestore)
		query->dest = retry_store();
	retry->query = query;
	retry->running = query;
	retry->text = query->sourceText;
	retry->params = query->params;
	retry->dest = query->dest;
	retry_run(retry);
}

static void
ot_retry_process_utility(PlannedStmt *pstmt, const char *query,
						 bool read_only_tree, ProcessUtilityContext context,
						 ParamListInfo params, QueryEnvironment *env,
						 DestReceiver *dest, QueryCompletion *completion)
{
	OtUtility	call = {prev_process_utility, pstmt, pstmt->utilityStmt, query, read_only_tree,
		context, params, env, dest, completion};
	Retry	   *retry;

	if (context != PROCESS_UTILITY_TOPLEVEL || completion == NULL ||
		IsA(pstmt->utilityStmt, TransactionStmt) || !IsTransactionState() ||
		!retry_applies_to_utility(pstmt->utilityStmt) || !retry_applies(pstmt))
	{
		ot_call_process_utility(&call);
		return;
	}
	retry = palloc0(sizeof(Retry));
	retry->utility = pstmt;
	retry->utility_tag = nodeTag(pstmt->utilityStmt);
	retry->defines = GetCommandLogLevel(pstmt->utilityStmt) == LOGSTMT_DDL;
	retry->text = query;
	retry->params = params;
	retry->completion = completion;
	retry->dest = dest->mydest == DestTuplestore ? retry_store() : dest;
	retry_run(retry);
}

static void
ot_retry_executor_finish(QueryDesc *query)
{
	/* it is over, and its relations are closed (retry_close()) */
	if (unlikely(query == done.query))
		return;
	if (prev_executor_finish)
		prev_executor_finish(query);
	else
		standard_ExecutorFinish(query);
}

static void
ot_retry_executor_end(QueryDesc *query)
{
	if (query == done.query)
	{
		done.query = NULL;
		/* its nodes have ended (retry_close()) */
		if (done.committed)
			query->planstate = NULL;
		done.committed = false;
	}
	if (prev_executor_end)
		prev_executor_end(query);
	else
		standard_ExecutorEnd(query);
}

/* Also sees calls in functions. */
static void
ot_retry_object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, class_id, object_id, sub_id, arg);
	if (likely(access != OAT_FUNCTION_EXECUTE) || class_id != ProcedureRelationId)
		return;
	switch (object_id)
	{
		case F_PG_LOGICAL_SLOT_GET_CHANGES:
		case F_PG_LOGICAL_SLOT_GET_BINARY_CHANGES:
		case F_PG_REPLICATION_SLOT_ADVANCE:
		case F_PG_CREATE_PHYSICAL_REPLICATION_SLOT:
		case F_PG_CREATE_LOGICAL_REPLICATION_SLOT:
		case F_PG_COPY_PHYSICAL_REPLICATION_SLOT_NAME_NAME_BOOL:
		case F_PG_COPY_PHYSICAL_REPLICATION_SLOT_NAME_NAME:
		case F_PG_COPY_LOGICAL_REPLICATION_SLOT_NAME_NAME_BOOL_NAME:
		case F_PG_COPY_LOGICAL_REPLICATION_SLOT_NAME_NAME_BOOL:
		case F_PG_COPY_LOGICAL_REPLICATION_SLOT_NAME_NAME:
		case F_PG_DROP_REPLICATION_SLOT:
		case F_PG_ADVISORY_UNLOCK_INT8:
		case F_PG_ADVISORY_UNLOCK_SHARED_INT8:
		case F_PG_ADVISORY_UNLOCK_INT4_INT4:
		case F_PG_ADVISORY_UNLOCK_SHARED_INT4_INT4:
		case F_PG_ADVISORY_UNLOCK_ALL:
			called_once = OT_LXID(MyProc);
			break;
		default:
			break;
	}
}

void
ot_retry_init(void)
{
	prev_object_access = object_access_hook;
	object_access_hook = ot_retry_object_access;
	prev_executor_run = ExecutorRun_hook;
	ExecutorRun_hook = ot_retry_executor_run;
	prev_executor_finish = ExecutorFinish_hook;
	ExecutorFinish_hook = ot_retry_executor_finish;
	prev_executor_end = ExecutorEnd_hook;
	ExecutorEnd_hook = ot_retry_executor_end;
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = ot_retry_process_utility;
}
