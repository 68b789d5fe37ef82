/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Small macros for what differs between PostgreSQL 15 and 18.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_COMPAT_H
#define ONETRIP_COMPAT_H

#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "commands/explain.h"
#include "commands/prepare.h"
#include "miscadmin.h"
#include "nodes/tidbitmap.h"
#include "storage/proc.h"
#include "utils/guc_tables.h"
#include "utils/timeout.h"
#if PG_VERSION_NUM >= 180000
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#endif
#if PG_VERSION_NUM < 170000
#include "executor/instrument.h"
#include "portability/instr_time.h"
#include "tcop/tcopprot.h"
#endif

#if PG_VERSION_NUM < 150000
#error "Onetrip needs PostgreSQL 15 or later"
#endif

/* 16: replorigin_session_setup() takes the pid of a parallel apply leader. */
#if PG_VERSION_NUM >= 160000
#define ot_replorigin_session_setup(origin) replorigin_session_setup((origin), 0)
#else
#define ot_replorigin_session_setup(origin) replorigin_session_setup(origin)
#endif

/* 18: how many origins there may be became a setting of its own. */
#if PG_VERSION_NUM >= 180000
#define OT_ORIGINS_MAX max_active_replication_origins
#define OT_ORIGINS_SETTING "max_active_replication_origins"
#else
#define OT_ORIGINS_MAX max_replication_slots
#define OT_ORIGINS_SETTING "max_replication_slots"
#endif

/*
 * 16: the function that names a table's origin became one for both kinds, and a
 * subscription may have parallel workers.
 */
#if PG_VERSION_NUM >= 160000
#define OT_TABLE_ORIGIN_NAME(subscription, relid, name) \
	ReplicationOriginNameForLogicalRep(subscription, relid, name, sizeof(name))
#define OT_STREAMS_IN_PARALLEL(subscription) ((subscription)->stream == LOGICALREP_STREAM_PARALLEL)
#else
#define OT_TABLE_ORIGIN_NAME(subscription, relid, name) \
	ReplicationOriginNameForTablesync(subscription, relid, name, sizeof(name))
#define OT_STREAMS_IN_PARALLEL(subscription) false
#endif
#define OT_STREAMS_IN_PARALLEL_BY_DEFAULT (PG_VERSION_NUM >= 180000)

/* 18: it can be told that the lock is held already. */
#if PG_VERSION_NUM >= 180000
#define OT_SUBSCRIPTION_WORKERS(subscription) logicalrep_workers_find(subscription, true, false)
#else
#define OT_SUBSCRIPTION_WORKERS(subscription) logicalrep_workers_find(subscription, true)
#endif

/* 16: whether a password must be asked for, which the worker to come does; 17: whether it replicates. */
#if PG_VERSION_NUM >= 170000
#define OT_CONNECT_TO_PUBLISHER(conninfo, name, why) walrcv_connect(conninfo, true, true, false, name, why)
#define OT_ADD_SUBSCRIPTION_TABLE(subscription, relid) \
	AddSubscriptionRelState(subscription, relid, SUBREL_STATE_READY, InvalidXLogRecPtr, false)
#else
#if PG_VERSION_NUM >= 160000
#define OT_CONNECT_TO_PUBLISHER(conninfo, name, why) walrcv_connect(conninfo, true, false, name, why)
#else
#define OT_CONNECT_TO_PUBLISHER(conninfo, name, why) walrcv_connect(conninfo, true, name, why)
#endif
#define OT_ADD_SUBSCRIPTION_TABLE(subscription, relid) \
	AddSubscriptionRelState(subscription, relid, SUBREL_STATE_READY, InvalidXLogRecPtr)
#endif

/* 18: it can be told that the subscription's table is locked already. */
#if PG_VERSION_NUM >= 180000
#define OT_UPDATE_SUBSCRIPTION_TABLE(subscription, relid, state, lsn) \
	UpdateSubscriptionRelState(subscription, relid, state, lsn, false)
#else
#define OT_UPDATE_SUBSCRIPTION_TABLE(subscription, relid, state, lsn) \
	UpdateSubscriptionRelState(subscription, relid, state, lsn)
#endif

/* 18: constraints may be left unenforced. */
#if PG_VERSION_NUM >= 180000
#define OT_ENFORCE(constraint) ((constraint)->is_enforced = true)
#else
#define OT_ENFORCE(constraint) ((void) 0)
#endif

/* 16: update_indexes became an enum. */
#if PG_VERSION_NUM >= 160000
typedef TU_UpdateIndexes OtUpdateIndexes;
#define OT_INDEXES_CHANGED(u) ((u) != TU_None)
#else
typedef bool OtUpdateIndexes;
#define OT_INDEXES_CHANGED(u) (u)
#endif

/* 16: which columns a statement assigns, of a table that it changes, is in a list of its own. */
#if PG_VERSION_NUM >= 160000
#define OT_UPDATED_COLUMNS(stmt, rte) \
	((rte)->perminfoindex == 0 ? NULL : getRTEPermissionInfo((stmt)->permInfos, rte)->updatedCols)
#else
#define OT_UPDATED_COLUMNS(stmt, rte) ((rte)->updatedCols)
#endif

/* 16: RelFileNode became RelFileLocator. */
#if PG_VERSION_NUM >= 160000
typedef RelFileLocator OtRelFile;
#else
typedef RelFileNode OtRelFile;
#endif

/* 17: a partition's column has the sequence of its root's. */
#if PG_VERSION_NUM >= 170000
#define OT_IDENTITY_SEQUENCE(rel, attnum) getIdentitySequence(rel, attnum, true)
#else
#define OT_IDENTITY_SEQUENCE(rel, attnum) getIdentitySequence(RelationGetRelid(rel), attnum, true)
#endif

/* 17: PGPROC has no field pgprocno any more. */
#if PG_VERSION_NUM >= 170000
#define OT_PROC_NUMBER(proc) GetNumberFromPGProc(proc)
#else
#define OT_PROC_NUMBER(proc) ((proc)->pgprocno)
#endif

/*
 * 17: a WaitEventSet belongs to a resource owner, not to a memory context;
 * LockHeldByMe() can also accept a stronger mode.
 */
#if PG_VERSION_NUM >= 170000
#define OT_CREATE_WAIT_EVENT_SET(context, n) CreateWaitEventSet(NULL, n)
#define OT_LOCK_IS_HELD_BY_ME(tag, mode) LockHeldByMe(tag, mode, false)
#else
#define OT_CREATE_WAIT_EVENT_SET(context, n) CreateWaitEventSet(context, n)
#define OT_LOCK_IS_HELD_BY_ME(tag, mode) LockHeldByMe(tag, mode)
#endif

/* 18: pg_noreturn is written before a declaration; 64-bit formats are C99's. */
#if PG_VERSION_NUM >= 180000
#define OT_UINT64_HEX "%" PRIx64
#else
#define pg_noreturn pg_attribute_noreturn()
#define OT_UINT64_HEX "%" INT64_MODIFIER "x"
#endif

/* 17: the local transaction id moved into a struct. */
#if PG_VERSION_NUM >= 170000
#define OT_LXID(proc) ((proc)->vxid.lxid)
#else
#define OT_LXID(proc) ((proc)->lxid)
#endif

#if PG_VERSION_NUM >= 170000
#define OT_BACKEND_ID(proc) ((proc)->vxid.procNumber)
#define OT_PROC_OF_TRANSACTION(vxid) ProcNumberGetProc((vxid).procNumber)
#else
#define OT_BACKEND_ID(proc) ((proc)->backendId)
#define OT_PROC_OF_TRANSACTION(vxid) BackendIdGetProc((vxid).backendId)
#endif

/*
 * 16: permissions are no longer part of the range table, and there are
 * summarizing indexes.  18: ExecInitRangeTable() takes the relations that are
 * not pruned.
 *
 * Of the `unchecked` indexes, which are unique, duplicates are no error: those
 * that may have one are in the result.
 */
#if PG_VERSION_NUM >= 180000
#define OT_INIT_RANGE_TABLE(estate, rte) \
	ExecInitRangeTable(estate, list_make1(rte), NIL, bms_make_singleton(1))
#elif PG_VERSION_NUM >= 160000
#define OT_INIT_RANGE_TABLE(estate, rte) ExecInitRangeTable(estate, list_make1(rte), NIL)
#else
#define OT_INIT_RANGE_TABLE(estate, rte) ExecInitRangeTable(estate, list_make1(rte))
#endif
#if PG_VERSION_NUM >= 160000
#define OT_ONLY_SUMMARIZING(u) ((u) == TU_Summarizing)
#define OT_INSERT_INDEX_TUPLES(rel, slot, estate, update, unchecked, summarizing) \
	ExecInsertIndexTuples(rel, slot, estate, update, (unchecked) != NIL, NULL, unchecked, summarizing)
#else
#define OT_ONLY_SUMMARIZING(u) false
#define OT_INSERT_INDEX_TUPLES(rel, slot, estate, update, unchecked, summarizing) \
	ExecInsertIndexTuples(rel, slot, estate, update, (unchecked) != NIL, NULL, unchecked)
#endif

/* Minor releases of 2026 write the type's version into a composite value. */
#ifdef HEAP_IS_DATUM
#define OT_SET_ROW_VERSION(header, desc) \
	do { \
		HeapTupleHeaderSetDatum(header); \
		HeapTupleHeaderSetVersion(header, TupleDescGetVersion(desc)); \
	} while (0)
#define OT_CHECK_ROW_VERSION(header, desc) \
	do { \
		if (HeapTupleHeaderIsVersionedDatum(header)) \
			heap_datum_check(header, desc); \
	} while (0)
#else
#define OT_CHECK_ROW_VERSION(header, desc) ((void) 0)
#define OT_SET_ROW_VERSION(header, desc) \
	do { \
		(header)->t_infomask &= ~HEAP_XACT_MASK; \
		(header)->t_choice.t_datum.datum_typmod = -1; \
		ItemPointerSetInvalid(&(header)->t_ctid); \
	} while (0)
#endif

/* 16: values of settings have a memory context of their own */
#if PG_VERSION_NUM < 160000
#define guc_malloc(elevel, size) malloc(size)
#define guc_strdup(elevel, text) strdup(text)
#define guc_free(value) free(value)
#endif

/* 16: get_guc_variables() makes its list of all settings anew, with palloc(). */
#if PG_VERSION_NUM >= 160000
#define OT_GUC_VARIABLES(count) get_guc_variables(count)
#else
#define OT_GUC_VARIABLES(count) (*(count) = GetNumConfigOptions(), get_guc_variables())
#endif

/*
 * 18: a tuple descriptor also contains a compact copy of each attribute, which
 * forming a row uses; it has to follow a change of the attribute.
 */
#if PG_VERSION_NUM >= 180000
#define OT_ATTRIBUTE_CHANGED(desc, i) populate_compact_attribute(desc, i)
#else
#define OT_ATTRIBUTE_CHANGED(desc, i) ((void) 0)
#endif

/*
 * 18: where a tuple descriptor's attributes are depends on natts, since their
 * compact copies come before them; so natts cannot just be lowered.
 */
#if PG_VERSION_NUM >= 180000
#define OT_FIRST_ATTRIBUTES(desc, n) CreateTupleDescTruncatedCopy(desc, n)
#else
static inline TupleDesc
OT_FIRST_ATTRIBUTES(TupleDesc desc, int n)
{
	TupleDesc	copy = CreateTupleDescCopy(desc);

	copy->natts = n;
	return copy;
}
#endif

/*
 * 18: an index scan takes counters for EXPLAIN; RelationGetPrimaryKeyIndex() is
 * told whether a deferrable primary key is wanted.
 */
#if PG_VERSION_NUM >= 180000
#define OT_INDEX_BEGINSCAN(rel, index, snapshot, nkeys) \
	index_beginscan(rel, index, snapshot, NULL, nkeys, 0)
#define OT_PRIMARY_KEY_INDEX(rel) RelationGetPrimaryKeyIndex(rel, false)
#else
#define OT_INDEX_BEGINSCAN(rel, index, snapshot, nkeys) \
	index_beginscan(rel, index, snapshot, nkeys, 0)
#define OT_PRIMARY_KEY_INDEX(rel) RelationGetPrimaryKeyIndex(rel)
#endif

/* 16: what has to be permitted has a list of its own. */
#if PG_VERSION_NUM >= 160000
typedef RTEPermissionInfo OtPermissions;
#define OT_CHECK_PERMS_PARAMETERS List *range_table, List *permissions, bool raise
#define OT_CHECK_PERMS_ARGUMENTS range_table, permissions, raise
#define OT_CHECK_PERMS_LIST permissions
#else
typedef RangeTblEntry OtPermissions;
#define OT_CHECK_PERMS_PARAMETERS List *range_table, bool raise
#define OT_CHECK_PERMS_ARGUMENTS range_table, raise
#define OT_CHECK_PERMS_LIST range_table
#endif

/* 16: GRANT of a role may also take something away from who has it already. */
#if PG_VERSION_NUM >= 160000
#define OT_HAS_GRANT_OPTIONS(stmt) ((stmt)->opt != NIL)
#else
#define OT_HAS_GRANT_OPTIONS(stmt) false
#endif

/*
 * 16: an entry of the range table that was a view keeps its OID, by which
 * permissions are checked; before, it must be without one.
 */
#if PG_VERSION_NUM >= 160000
#define OT_MAKE_SUBQUERY_OF_VIEW(rte) ((void) (rte))
#else
#define OT_MAKE_SUBQUERY_OF_VIEW(rte) \
	((rte)->relid = InvalidOid, (rte)->relkind = 0, (rte)->rellockmode = 0, \
	 (rte)->requiredPerms = 0)
#endif

/*
 * 18: a NOT NULL may be NOT VALID: rows from before may have NULL.  It is a
 * constraint with a name, of a kind that tables have none of before.
 */
#if PG_VERSION_NUM >= 180000
#define OT_IS_NOT_NULL(desc, i) \
	(TupleDescCompactAttr(desc, i)->attnullability == ATTNULLABLE_VALID)
#else
#define OT_IS_NOT_NULL(desc, i) (TupleDescAttr(desc, i)->attnotnull)
#endif
#define OT_CONSTRAINT_NOT_NULL 'n'

/*
 * 18: a bitmap scan takes counters for EXPLAIN as well; a bitmap's iterator
 * fills a struct of the caller's, which extracts a page's rows on demand.  The
 * function takes the next page, whose rows are not known if it is lossy; offsets
 * has room for MaxHeapTuplesPerPage.
 */
#if PG_VERSION_NUM >= 180000
#define OT_INDEX_BEGINSCAN_BITMAP(index, snapshot, nkeys) \
	index_beginscan_bitmap(index, snapshot, NULL, nkeys)
typedef TBMPrivateIterator OtBitmapIterator;
#define OT_BITMAP_BEGIN(bitmap) tbm_begin_private_iterate(bitmap)
#define OT_BITMAP_END(iterator) tbm_end_private_iterate(iterator)
static inline bool
ot_bitmap_next_page(OtBitmapIterator *iterator, BlockNumber *block, bool *lossy, OffsetNumber *offsets, int *noffsets)
{
	TBMIterateResult page;

	if (!tbm_private_iterate(iterator, &page))
		return false;
	*block = page.blockno;
	*lossy = page.lossy;
	*noffsets = page.lossy ? 0 : tbm_extract_page_tuple(&page, offsets, MaxHeapTuplesPerPage);
	return true;
}
#else
#define OT_INDEX_BEGINSCAN_BITMAP(index, snapshot, nkeys) \
	index_beginscan_bitmap(index, snapshot, nkeys)
typedef TBMIterator OtBitmapIterator;
#define OT_BITMAP_BEGIN(bitmap) tbm_begin_iterate(bitmap)
#define OT_BITMAP_END(iterator) tbm_end_iterate(iterator)
static inline bool
ot_bitmap_next_page(OtBitmapIterator *iterator, BlockNumber *block, bool *lossy, OffsetNumber *offsets, int *noffsets)
{
	TBMIterateResult *page = tbm_iterate(iterator);

	if (page == NULL)
		return false;
	*block = page->blockno;
	*lossy = page->ntuples < 0;
	*noffsets = Max(page->ntuples, 0);
	memcpy(offsets, page->offsets, sizeof(OffsetNumber) * *noffsets);
	return true;
}
#endif

/* 16: range_serialize() can report a soft error. */
#if PG_VERSION_NUM >= 160000
#define OT_RANGE_SERIALIZE(cache, lower, upper, empty) \
	range_serialize(cache, lower, upper, empty, NULL)
#else
#define OT_RANGE_SERIALIZE(cache, lower, upper, empty) range_serialize(cache, lower, upper, empty)
#endif

/* 16: one function checks the owner of objects of every kind. */
#if PG_VERSION_NUM >= 160000
#define OT_OWNS_SCHEMA(oid) object_ownercheck(NamespaceRelationId, oid, GetUserId())
#define OT_OWNS_DATABASE(oid) object_ownercheck(DatabaseRelationId, oid, GetUserId())
#define OT_OWNS_TYPE(oid) object_ownercheck(TypeRelationId, oid, GetUserId())
#define OT_OWNS_RELATION(oid) object_ownercheck(RelationRelationId, oid, GetUserId())
#define OT_OWNS_FUNCTION(oid) object_ownercheck(ProcedureRelationId, oid, GetUserId())
#define OT_OWNS_TS_CONFIG(oid) object_ownercheck(TSConfigRelationId, oid, GetUserId())
#define OT_OWNS_TS_DICTIONARY(oid) object_ownercheck(TSDictionaryRelationId, oid, GetUserId())
#define OT_OWNS_PUBLICATION(oid) object_ownercheck(PublicationRelationId, oid, GetUserId())
#else
#define OT_OWNS_SCHEMA(oid) pg_namespace_ownercheck(oid, GetUserId())
#define OT_OWNS_DATABASE(oid) pg_database_ownercheck(oid, GetUserId())
#define OT_OWNS_TYPE(oid) pg_type_ownercheck(oid, GetUserId())
#define OT_OWNS_RELATION(oid) pg_class_ownercheck(oid, GetUserId())
#define OT_OWNS_FUNCTION(oid) pg_proc_ownercheck(oid, GetUserId())
#define OT_OWNS_TS_CONFIG(oid) pg_ts_config_ownercheck(oid, GetUserId())
#define OT_OWNS_TS_DICTIONARY(oid) pg_ts_dict_ownercheck(oid, GetUserId())
#define OT_OWNS_PUBLICATION(oid) pg_publication_ownercheck(oid, GetUserId())
#endif

/* 17: functions of indexes run under a search_path of their own. */
#if PG_VERSION_NUM >= 170000
#define OT_RESTRICT_SEARCH_PATH() RestrictSearchPath()
#else
#define OT_RESTRICT_SEARCH_PATH() ((void) 0)
#endif

/* 17: the privilege MAINTAIN, and the role pg_maintain. */
#if PG_VERSION_NUM >= 170000
#define OT_MAY_MAINTAIN(table) (pg_class_aclcheck(table, GetUserId(), ACL_MAINTAIN) == ACLCHECK_OK)
#define OT_MAY_MAINTAIN_ALL() has_privs_of_role(GetUserId(), ROLE_PG_MAINTAIN)
#else
#define OT_MAY_MAINTAIN(table) OT_OWNS_RELATION(table)
#define OT_MAY_MAINTAIN_ALL() false
#endif

/* 18: ExecutorRun() has no parameter execute_once any more. */
#if PG_VERSION_NUM >= 180000
#define OT_EXECUTE_ONCE_PARAMETER
#define OT_EXECUTE_ONCE_ARGUMENT
#define OT_EXECUTE_ONCE(value)
#else
#define OT_EXECUTE_ONCE_PARAMETER , bool execute_once
#define OT_EXECUTE_ONCE_ARGUMENT , execute_once
#define OT_EXECUTE_ONCE(value) , value
#endif

/* 17: it says how much has arrived. */
#if PG_VERSION_NUM >= 170000
#define OT_CLIENT_DATA_IS_BUFFERED() (pq_buffer_remaining_data() > 0)
#else
#define OT_CLIENT_DATA_IS_BUFFERED() pq_buffer_has_data()
#endif

/* 16: relfilenode became relfilenumber. */
#if PG_VERSION_NUM >= 160000
#define OT_SET_NEW_FILE(rel) RelationSetNewRelfilenumber(rel, (rel)->rd_rel->relpersistence)
#else
#define OT_SET_NEW_FILE(rel) RelationSetNewRelfilenode(rel, (rel)->rd_rel->relpersistence)
#endif

/*
 * 16: DefineIndex() takes the number of partitions.  17: reindex_index() takes
 * the statement that it is called for.
 */
#if PG_VERSION_NUM >= 160000
#define OT_DEFINE_INDEX_UNBUILT(relid, stmt) \
	DefineIndex(relid, stmt, InvalidOid, InvalidOid, InvalidOid, -1, false, true, true, true, false)
#else
#define OT_DEFINE_INDEX_UNBUILT(relid, stmt) \
	DefineIndex(relid, stmt, InvalidOid, InvalidOid, InvalidOid, false, true, true, true, false)
#endif
#if PG_VERSION_NUM >= 170000
#define OT_REINDEX_INDEX(index, persistence, params) \
	reindex_index(NULL, index, false, persistence, params)
#else
#define OT_REINDEX_INDEX(index, persistence, params) \
	reindex_index(index, false, persistence, params)
#endif

/* 17: the owner of a lock is named by a whole VirtualTransactionId. */
#if PG_VERSION_NUM >= 170000
#define OT_LOCK_VXID(lock) ((lock)->vxid)
#else
#define OT_LOCK_VXID(lock) ((VirtualTransactionId) {(lock)->backend, (lock)->lxid})
#endif

/* 16, 17: expressions of SQL's own JSON language, such as JSON_VALUE, as cases of a switch. */
#if PG_VERSION_NUM >= 170000
#define OT_CASES_OF_JSON case T_JsonValueExpr: case T_JsonIsPredicate: case T_JsonExpr: case T_JsonBehavior:
#elif PG_VERSION_NUM >= 160000
#define OT_CASES_OF_JSON case T_JsonValueExpr: case T_JsonIsPredicate:
#else
#define OT_CASES_OF_JSON
#endif

/* 17: SET EXPRESSION. */
#if PG_VERSION_NUM >= 170000
#define OT_SETS_EXPRESSION(subtype) ((subtype) == AT_SetExpression)
#else
#define OT_SETS_EXPRESSION(subtype) false
#endif

/*
 * 17: the type into which an expression of SQL's own JSON language turns what it has
 * found, by casts and CHECKs of domains that are not in the tree.
 */
#if PG_VERSION_NUM >= 170000
#define OT_JSON_RESULT(node) (IsA(node, JsonExpr) ? ((JsonExpr *) (node))->returning->typid : InvalidOid)
#else
#define OT_JSON_RESULT(node) InvalidOid
#endif

/*
 * Such a command of ALTER TABLE gives a column other values, and makes its indexes,
 * and foreign keys that refer to it, anew from their definitions.
 */
#define OT_MAKES_INDEXES_ANEW(subtype) ((subtype) == AT_AlterColumnType || OT_SETS_EXPRESSION(subtype))

/* 17: a partitioned table may have an access method, for its partitions. */
#if PG_VERSION_NUM >= 170000
#define OT_ACCESS_METHOD_FOR_PARTITIONS(relid) get_rel_relam(relid)
#else
#define OT_ACCESS_METHOD_FOR_PARTITIONS(relid) InvalidOid
#endif

/* 16: the table's OID in its statistics has another name. */
#if PG_VERSION_NUM >= 160000
#define OT_COUNTED_TABLE(status) ((status)->id)
#else
#define OT_COUNTED_TABLE(status) ((status)->t_id)
#endif

/* 16: one function checks the privileges on objects of all classes. */
#if PG_VERSION_NUM >= 160000
#define OT_FUNCTION_ACLCHECK(function, role) \
	object_aclcheck(ProcedureRelationId, function, role, ACL_EXECUTE)
#else
#define OT_FUNCTION_ACLCHECK(function, role) pg_proc_aclcheck(function, role, ACL_EXECUTE)
#endif

/*
 * 17: how many pages the NOTIFY queue may have is a setting.  Before that it is
 * full when it would reach the file that contains its oldest page.
 */
#if PG_VERSION_NUM >= 170000
#define OT_NOTIFY_QUEUE_PAGES max_notify_queue_pages
#define OT_NOTIFY_QUEUE_UNUSED 0
#else
#define OT_NOTIFY_QUEUE_PAGES 1048576
#define OT_NOTIFY_QUEUE_UNUSED SLRU_PAGES_PER_SEGMENT
#endif

/* 16: the callback for a new file has another name. */
#if PG_VERSION_NUM >= 160000
#define OT_SET_NEW_FILE_CALLBACK relation_set_new_filelocator
#else
#define OT_SET_NEW_FILE_CALLBACK relation_set_new_filenode
#endif

/* 16: the file in a sequence's WAL record is a locator. */
#if PG_VERSION_NUM >= 160000
#define OT_SEQUENCE_RECORD_SET_FILE(record, rel) ((record).locator = (rel)->rd_locator)
#else
#define OT_SEQUENCE_RECORD_SET_FILE(record, rel) ((record).node = (rel)->rd_node)
#endif

/* 17: what EXPLAIN does with a query, if no extension does otherwise, has a name. */
static inline void
ot_standard_explain_one_query(Query *query, int cursor_options, IntoClause *into, ExplainState *es,
							  const char *text, ParamListInfo params, QueryEnvironment *env)
{
#if PG_VERSION_NUM >= 170000
	standard_ExplainOneQuery(query, cursor_options, into, es, text, params, env);
#else
	BufferUsage used = pgBufferUsage;
	BufferUsage planning = {0};
	PlannedStmt *plan;
	instr_time	begun;
	instr_time	ended;

	INSTR_TIME_SET_CURRENT(begun);
	plan = pg_plan_query(query, text, cursor_options, params);
	INSTR_TIME_SET_CURRENT(ended);
	INSTR_TIME_SUBTRACT(ended, begun);
	BufferUsageAccumDiff(&planning, &pgBufferUsage, &used);
	ExplainOnePlan(plan, into, es, text, params, env, &ended, es->buffers ? &planning : NULL);
#endif
}

/* 18: what EXPLAIN EXECUTE needs from outside comes in a ParseState. */
static inline void
ot_explain_execute(ExecuteStmt *stmt, IntoClause *into, ExplainState *es, const char *text,
				   ParamListInfo params, QueryEnvironment *env)
{
#if PG_VERSION_NUM >= 180000
	ParseState *pstate = make_parsestate(NULL);

	pstate->p_sourcetext = text;
	pstate->p_queryEnv = env;
	ExplainExecuteQuery(stmt, into, es, pstate, params);
	free_parsestate(pstate);
#else
	ExplainExecuteQuery(stmt, into, es, text, params, env);
#endif
}

/* 17: the struct that contains the counter of OIDs has another name. */
#if PG_VERSION_NUM >= 170000
#define OT_OID_COUNTER TransamVariables
#else
#define OT_OID_COUNTER ShmemVariableCache
#endif

/* 18: a process has several groups of fast-path lock slots, each with a word of bits. */
#if PG_VERSION_NUM >= 180000
#define OT_FAST_PATH_SLOTS (FastPathLockGroupsPerBackend * FP_LOCK_SLOTS_PER_GROUP)
#define OT_FAST_PATH_GROUP_BITS(n) (MyProc->fpLockBits[(n) / FP_LOCK_SLOTS_PER_GROUP])
#define OT_FAST_PATH_SLOT_IN_GROUP(n) ((n) % FP_LOCK_SLOTS_PER_GROUP)
#else
#define OT_FAST_PATH_SLOTS FP_LOCK_SLOTS_PER_BACKEND
#define OT_FAST_PATH_GROUP_BITS(n) (MyProc->fpLockBits)
#define OT_FAST_PATH_SLOT_IN_GROUP(n) (n)
#endif

/* 16: lists in shared memory are dlists. */
#if PG_VERSION_NUM >= 160000
#define OT_HAS_NO_SHARED_LOCKS(partition) dlist_is_empty(&MyProc->myProcLocks[partition])
#else
#define OT_HAS_NO_SHARED_LOCKS(partition) SHMQueueEmpty(&MyProc->myProcLocks[partition])
#endif

/* The lock of this process in that partition that follows; the first one after NULL, NULL after the last one. */
static inline PROCLOCK *
ot_next_shared_lock(int partition, PROCLOCK *before)
{
#if PG_VERSION_NUM >= 160000
	dlist_head *locks = &MyProc->myProcLocks[partition];

	if (before == NULL)
		return dlist_is_empty(locks) ? NULL : dlist_head_element(PROCLOCK, procLink, locks);
	return dlist_has_next(locks, &before->procLink) ?
		dlist_container(PROCLOCK, procLink, dlist_next_node(locks, &before->procLink)) : NULL;
#else
	SHM_QUEUE  *locks = &MyProc->myProcLocks[partition];

	return (PROCLOCK *) SHMQueueNext(locks, before == NULL ? locks : &before->procLink,
									 offsetof(PROCLOCK, procLink));
#endif
}

/* 17: transaction_timeout, a FATAL that must not follow what has been committed. */
static inline void
ot_disable_transaction_timeout(void)
{
#if PG_VERSION_NUM >= 170000
	if (TransactionTimeout > 0)
		disable_timeout(TRANSACTION_TIMEOUT, false);
	/* if it has passed by now */
	CHECK_FOR_INTERRUPTS();
#endif
}

/* 16: a setting is found by its name. */
static inline void
ot_set_show_hook(const char *bool_setting, GucShowHook show)
{
#if PG_VERSION_NUM >= 160000
	struct config_generic *found = find_option(bool_setting, false, false, ERROR);
#else
	struct config_generic *found = NULL;

	for (int i = 0; i < GetNumConfigOptions() && found == NULL; i++)
		if (strcmp(get_guc_variables()[i]->name, bool_setting) == 0)
			found = get_guc_variables()[i];
#endif
	Assert(found != NULL && found->vartype == PGC_BOOL);
	((struct config_bool *) found)->show_hook = show;
}

/* 18: pg_sequences asks for the last value of sequences that the role may not read, too. */
static inline bool
ot_last_value_is_null_without_privilege(void)
{
#if PG_VERSION_NUM >= 180000
	return true;
#else
	return false;
#endif
}

#endif							/* ONETRIP_COMPAT_H */
