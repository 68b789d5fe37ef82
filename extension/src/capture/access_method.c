/*-------------------------------------------------------------------------
 *
 * access_method.c
 *	  Table access method "onetrip": PostgreSQL's heap, watched.
 *
 * The routine table is a copy of heap's, in which the callbacks that change or
 * lock a row are replaced.  Each of these has heap do the work first and then
 * records the change, so that a key's base is read while the row lock is held.
 * The on-disk format is heap's to the byte.  (If the transaction or the
 * table says "locking", a row's lock is asked from the leader before heap does
 * anything: access_method_lock_first().)
 *
 * Some code of heap insists that a relation's routine table is heap's own
 * (heap_getnext() does, in index builds and CLUSTER).  Around such code the
 * relation is given heap's table.  This is undone after an error too: the
 * relation cache entry outlives the failed statement, and if it kept heap's
 * table, this backend's later writes would not be captured.
 *
 * Runs in every process that touches a table.  Errors: those of heap, and
 * those of capture.c.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/heapam.h"
#include "access/xact.h"
#include "catalog/pg_am_d.h"
#include "commands/extension.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "storage/ipc.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(ot_access_method_handler);

static TableAmRoutine ot_methods;
static const TableAmRoutine *heap_methods = NULL;

static void
access_method_unwatched(Relation rel)
{
}

static OtTableWatch watch = {
	access_method_unwatched, access_method_unwatched, access_method_unwatched, access_method_unwatched
};

/*
 * The relations that have heap's routine table now.  A function of an index
 * may start such work on other relations in between, hence the list.  When an
 * invalidation rebuilds the relation cache entry, the relation gets its own
 * routine table back; a callback then gives it heap's again.
 */
typedef struct AsHeap
{
	Relation	rels[2];
	const TableAmRoutine *saved[2];
	struct AsHeap *outer;
} AsHeap;

static AsHeap *as_heap = NULL;

static void
access_method_keep_as_heap(Datum arg, Oid relid)
{
	/* FATAL ends no AS_HEAP, and frees the relations */
	if (proc_exit_inprogress)
		as_heap = NULL;
	for (AsHeap *at = as_heap; at != NULL; at = at->outer)
	{
		for (int i = 0; i < 2; i++)
			at->rels[i]->rd_tableam = heap_methods;
	}
}

static void
access_method_begin_as_heap(AsHeap *begun, Relation rel, Relation other)
{
	static bool registered = false;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(access_method_keep_as_heap, (Datum) 0);
		registered = true;
	}
	begun->rels[0] = rel;
	begun->rels[1] = other;
	for (int i = 0; i < 2; i++)
		begun->saved[i] = begun->rels[i]->rd_tableam;
	begun->outer = as_heap;
	as_heap = begun;
	access_method_keep_as_heap((Datum) 0, InvalidOid);
}

static void
access_method_end_as_heap(AsHeap *begun)
{
	as_heap = begun->outer;
	for (int i = 0; i < 2; i++)
		begun->rels[i]->rd_tableam = begun->saved[i];
}

#define AS_HEAPS(rel, other) \
	do { \
		AsHeap		begun; \
		access_method_begin_as_heap(&begun, rel, other); \
		PG_TRY()

#define AS_HEAP(rel) AS_HEAPS(rel, rel)

#define AS_HEAP_END() \
		PG_FINALLY(); \
		{ \
			access_method_end_as_heap(&begun); \
		} \
		PG_END_TRY(); \
	} while (0)

void
ot_access_method_watch(const OtTableWatch *watcher)
{
	watch = *watcher;
}

/* Before a row changes that this access method does not write. */
void
ot_access_method_check_write(Relation rel)
{
	watch.check_row_write(rel);
}

bool
ot_is_onetrip_table(Relation rel)
{
	return rel->rd_tableam == &ot_methods;
}

Oid
ot_access_method_oid(void)
{
	return get_table_am_oid("onetrip", true);
}

/*
 * Are the contents of such a relation replicated?  A partitioned table has no
 * rows of its own, but that it was emptied is replicated.  Relations for which
 * the answer is no, even children of one that is replicated, have contents
 * that belong to their region.
 */
bool
ot_contents_travel(Form_pg_class form)
{
	if (form->relkind == RELKIND_PARTITIONED_TABLE)
		return form->relpersistence != RELPERSISTENCE_TEMP;
	return form->relkind == RELKIND_RELATION &&
		form->relpersistence == RELPERSISTENCE_PERMANENT &&
		form->relam == ot_access_method_oid();
}

/* The same, by OID; false if the relation has been dropped meanwhile. */
bool
ot_contents_of_travel(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		answer;

	if (!HeapTupleIsValid(tuple))
		return false;
	answer = ot_contents_travel((Form_pg_class) GETSTRUCT(tuple));
	ReleaseSysCache(tuple);
	return answer;
}

/*
 * Is a row of this table captured?  Not in the new heap that a rewrite fills:
 * other regions make those rows themselves when they run the statement.  Nor
 * in a materialized view, whose contents are replicated as a whole
 * (contents.c), nor in a TOAST table, whose rows travel in the values.
 */
static bool
access_method_is_captured(Relation rel)
{
	if (rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT ||
		rel->rd_rel->relkind != RELKIND_RELATION ||
		OT_FILLS_FOR_REWRITE(rel) || ot_is_apply_worker)
		return false;
	if (ot_capturing())
		return true;
	if (creating_extension || !IsUnderPostmaster)
		return false;

	if (!ot_preloaded)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("table \"%s\" cannot be changed: onetrip is not in shared_preload_libraries",
						RelationGetRelationName(rel)),
				 errhint("Let the node configure and start this server (onetrip start).")));
	ereport(ERROR,
			(errcode(OT_ERR_NOT_REPLICATED),
			 errmsg("table \"%s\" cannot be changed: database \"%s\" is the replicated one, this database is local",
					RelationGetRelationName(rel), ot_database),
			 errhint("Create local tables with USING heap.")));
	return false;
}

/* ---- reading ---- */

static TableScanDesc
ot_scan_begin(Relation rel, Snapshot snapshot, int nkeys, struct ScanKeyData *key,
			  ParallelTableScanDesc pscan, uint32 flags)
{
	if (unlikely(XactIsoLevel == XACT_SERIALIZABLE) && snapshot != NULL && IsMVCCSnapshot(snapshot))
		ot_reads_note_table(rel);
	return heap_methods->scan_begin(rel, snapshot, nkeys, key, pscan, flags);
}

static struct IndexFetchTableData *
ot_index_fetch_begin(Relation rel)
{
	struct IndexFetchTableData *fetch = heap_methods->index_fetch_begin(rel);

	if (unlikely(XactIsoLevel == XACT_SERIALIZABLE))
		ot_reads_fetch_begun(fetch);
	return fetch;
}

static void
ot_index_fetch_reset(struct IndexFetchTableData *fetch)
{
	if (unlikely(XactIsoLevel == XACT_SERIALIZABLE))
		ot_reads_fetch_reset(fetch);
	heap_methods->index_fetch_reset(fetch);
}

static bool
ot_index_fetch_tuple(struct IndexFetchTableData *fetch, ItemPointer tid, Snapshot snapshot,
					 TupleTableSlot *slot, bool *call_again, bool *all_dead)
{
	bool		found = heap_methods->index_fetch_tuple(fetch, tid, snapshot, slot, call_again, all_dead);

	if (unlikely(XactIsoLevel == XACT_SERIALIZABLE))
	{
		if (IsMVCCSnapshot(snapshot))
			ot_reads_fetched(fetch, found ? slot : NULL);
		else if (found && snapshot->snapshot_type == SNAPSHOT_DIRTY)
			ot_reads_found_in_the_way(fetch->rel, slot);
	}
	return found;
}

/* ---- writing ---- */

/*
 * Before a row is written that is not captured.  If the script of an extension
 * writes it, the rows may differ from region to region, so ddl is told of it.
 * In the apply worker ddl checks that no function of a statement writes it.
 */
static void
access_method_before_uncaptured_write(Relation rel)
{
	if (rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		return;
	if (!ot_is_apply_worker)
		watch.script_writes(rel);
	else if (!OT_FILLS_FOR_REWRITE(rel))
		watch.check_row_write(rel);
}

static inline void
access_method_before_write(Relation rel, bool captured)
{
	if (captured)
	{
		watch.check_row_write(rel);
		ot_write_set_touch();
	}
	else if (unlikely(creating_extension || ot_is_apply_worker))
		access_method_before_uncaptured_write(rel);
}

/*
 * Before a row is changed or locked: if the transaction or the table says so, its
 * lock is asked from the leader first.  heap finds out afterwards if somebody has changed the row, and
 * says so as if it had waited for the row itself: READ COMMITTED goes on with the
 * newest version, REPEATABLE READ fails with 40001.
 */
static inline bool
access_method_lock_first(Relation rel, ItemPointer tid, OtKeyMode mode, LockWaitPolicy policy)
{
	return likely(!ot_locks_rows_first(rel)) || ot_capture_lock_first(rel, tid, mode, policy);
}

static void
ot_tuple_insert(Relation rel, TupleTableSlot *slot, CommandId cid, int options,
				struct BulkInsertStateData *bistate)
{
	bool		captured = access_method_is_captured(rel);

	access_method_before_write(rel, captured);
	if (unlikely(XactIsoLevel == XACT_SERIALIZABLE))
		ot_reads_note_insert(rel);
	heap_methods->tuple_insert(rel, slot, cid, options, bistate);
	ot_write_set_note_rows(RelationGetRelid(rel), 1);
	if (captured)
		ot_capture_insert(rel, slot, ot_applied_index());
}

static void
ot_multi_insert(Relation rel, TupleTableSlot **slots, int nslots, CommandId cid,
				int options, struct BulkInsertStateData *bistate)
{
	bool		captured = access_method_is_captured(rel);

	access_method_before_write(rel, captured);
	if (unlikely(XactIsoLevel == XACT_SERIALIZABLE))
		ot_reads_note_insert(rel);
	heap_methods->multi_insert(rel, slots, nslots, cid, options, bistate);
	ot_write_set_note_rows(RelationGetRelid(rel), nslots);
	if (captured)
	{
		for (int i = 0; i < nslots; i++)
			ot_capture_insert(rel, slots[i], ot_applied_index());
	}
}

/* From before the last row of an INSERT ... ON CONFLICT was compared with others. */
static OtLogIndex speculative_base;

static void
ot_tuple_insert_speculative(Relation rel, TupleTableSlot *slot, CommandId cid,
							int options, struct BulkInsertStateData *bistate,
							uint32 token)
{
	bool		captured = access_method_is_captured(rel);

	access_method_before_write(rel, captured);
	if (captured)
		speculative_base = ot_capture_speculative(rel, slot);
	heap_methods->tuple_insert_speculative(rel, slot, cid, options, bistate, token);
	ot_write_set_note_rows(RelationGetRelid(rel), 1);
}

/* Only now is it known whether the row of an INSERT ... ON CONFLICT stays. */
static void
ot_tuple_complete_speculative(Relation rel, TupleTableSlot *slot, uint32 token,
							  bool succeeded)
{
	heap_methods->tuple_complete_speculative(rel, slot, token, succeeded);
	/* heap has deleted it again, which PostgreSQL counts as another change */
	if (!succeeded)
		ot_write_set_note_rows(RelationGetRelid(rel), 1);
	if (succeeded && access_method_is_captured(rel))
		ot_capture_insert(rel, slot, speculative_base);
}

static TM_Result
ot_tuple_delete(Relation rel, ItemPointer tid, CommandId cid, Snapshot snapshot,
				Snapshot crosscheck, bool wait, TM_FailureData *tmfd,
				bool changing_part)
{
	bool		captured = access_method_is_captured(rel);
	TM_Result	result;

	access_method_before_write(rel, captured);
	if (captured)
		(void) access_method_lock_first(rel, tid, OT_UPDATE, LockWaitBlock);
	result = heap_methods->tuple_delete(rel, tid, cid, snapshot, crosscheck, wait,
										tmfd, changing_part);
	if (result == TM_Ok)
		ot_write_set_note_rows(RelationGetRelid(rel), 1);
	if (captured && result == TM_Ok)
		ot_capture_delete(rel, tid, changing_part);
	return result;
}

static TM_Result
ot_tuple_update(Relation rel, ItemPointer otid, TupleTableSlot *slot,
				CommandId cid, Snapshot snapshot, Snapshot crosscheck, bool wait,
				TM_FailureData *tmfd, LockTupleMode *lockmode,
				OtUpdateIndexes *update_indexes)
{
	bool		captured = access_method_is_captured(rel);
	TM_Result	result;

	access_method_before_write(rel, captured);
	if (captured)
		(void) access_method_lock_first(rel, otid, OT_NO_KEY_UPDATE, LockWaitBlock);
	result = heap_methods->tuple_update(rel, otid, slot, cid, snapshot, crosscheck,
										wait, tmfd, lockmode, update_indexes);
	if (result == TM_Ok)
		ot_write_set_note_rows(RelationGetRelid(rel), 1);
	if (captured && result == TM_Ok)
		ot_capture_update(rel, otid, slot, *lockmode,
						  OT_INDEXES_CHANGED(*update_indexes));
	return result;
}

static TM_Result
ot_tuple_lock(Relation rel, ItemPointer tid, Snapshot snapshot,
			  TupleTableSlot *slot, CommandId cid, LockTupleMode mode,
			  LockWaitPolicy wait_policy, uint8 flags, TM_FailureData *tmfd)
{
	bool		captured = access_method_is_captured(rel);
	TM_Result	result;

	if (captured)
	{
		ot_write_set_touch();
		if (!access_method_lock_first(rel, tid, ot_row_lock_to_mode(mode), wait_policy))
			return TM_WouldBlock;
	}
	result = heap_methods->tuple_lock(rel, tid, snapshot, slot, cid, mode,
									  wait_policy, flags, tmfd);
	if (captured && result == TM_Ok)
		ot_capture_lock(rel, slot, mode);
	else if (captured && result == TM_WouldBlock && ot_locks_rows_first(rel))
		ot_capture_lock_refused();
	return result;
}

/* ---- files ---- */

static void
ot_set_new_file(Relation rel, const OtRelFile *file, char persistence,
				TransactionId *freeze_xid, MultiXactId *min_multi)
{
	watch.before_file(rel);
	heap_methods->OT_SET_NEW_FILE_CALLBACK(rel, file, persistence, freeze_xid, min_multi);
}

static void
ot_nontransactional_truncate(Relation rel)
{
	watch.before_file(rel);
	heap_methods->relation_nontransactional_truncate(rel);
}

/* ---- heap code that insists on heap's own routine ---- */

/* Rows that older snapshots see, of a table that has got the index since (access_method_has_dead_rows()). */
static bool
access_method_may_lack_dead_rows(Relation index, TransactionId oldest_xmin)
{
	return index->rd_index->indcheckxmin &&
		!TransactionIdPrecedes(HeapTupleHeaderGetXmin(index->rd_indextuple->t_data), oldest_xmin);
}

static void
ot_relation_copy_for_cluster(Relation old_rel, Relation new_rel, Relation old_index,
							 bool use_sort, TransactionId oldest_xmin,
							 TransactionId *xid_cutoff, MultiXactId *multi_cutoff,
							 double *num_tuples, double *tups_vacuumed,
							 double *tups_recently_dead)
{
	/* the index tells the order, and not which rows there are; only a B-tree can be sorted by */
	const bool	incomplete = old_index != NULL && access_method_may_lack_dead_rows(old_index, oldest_xmin);
	const bool	sortable = old_index != NULL && old_index->rd_rel->relam == BTREE_AM_OID;

	AS_HEAPS(old_rel, new_rel);
	{
		heap_methods->relation_copy_for_cluster(old_rel, new_rel,
												incomplete && !sortable ? NULL : old_index,
												use_sort || (incomplete && sortable), oldest_xmin,
												xid_cutoff, multi_cutoff,
												num_tuples, tups_vacuumed,
												tups_recently_dead);
	}
	AS_HEAP_END();
}

static void
access_method_note_dead(Relation index, ItemPointer tid, Datum *values, bool *nulls, bool alive, void *found)
{
	*(bool *) found |= !alive;
}

/*
 * Would heap put row versions into the index that only older snapshots see, or none?
 * It computes the index's expressions for these as well, and which ones there are is
 * each server's own: it depends on the snapshots in use there, and on the room in its
 * pages, since versions before a heap-only update are left out.
 */
static bool
access_method_has_dead_rows(Relation rel, Relation index_rel, const IndexInfo *index_info,
							bool allow_sync, BlockNumber start, BlockNumber nblocks)
{
	IndexInfo	bare = *index_info;
	bool		found = false;

	bare.ii_NumIndexAttrs = 0;
	bare.ii_Expressions = NIL;
	bare.ii_Predicate = NIL;
	bare.ii_Unique = false;
	bare.ii_ExclusionOps = NULL;
	(void) heap_methods->index_build_range_scan(rel, index_rel, &bare, allow_sync, false, false, start,
												nblocks, access_method_note_dead, &found, NULL);
	return found;
}

/*
 * Is the index one that this transaction makes usable?  Only such a one can be kept
 * from older snapshots, by pg_index.indcheckxmin.
 */
static bool
access_method_is_made_here(Relation index)
{
	return index->rd_createSubid != InvalidSubTransactionId || !index->rd_index->indisvalid;
}

/*
 * What another region's statement builds here must not fail for a row version that
 * is dead: it is built from a snapshot then, as CONCURRENTLY does, and older snapshots
 * do not use it.
 */
static double
ot_index_build_range_scan(Relation rel, Relation index_rel,
						  struct IndexInfo *index_info, bool allow_sync,
						  bool anyvisible, bool progress, BlockNumber start,
						  BlockNumber nblocks, IndexBuildCallback callback,
						  void *callback_state, TableScanDesc scan)
{
	volatile double result = 0;
	bool		concurrent = index_info->ii_Concurrent;

	/* -1: no statistics come of it, which a rollback would leave */
	if (unlikely(ot_is_comparing))
		return -1;
	if (unlikely(!index_rel->rd_index->indisvalid && !index_info->ii_Concurrent))
		watch.before_build(index_rel);
	AS_HEAP(rel);
	{
		if (unlikely(ot_is_apply_worker) && !concurrent && !anyvisible && scan == NULL &&
			access_method_is_made_here(index_rel) &&
			access_method_has_dead_rows(rel, index_rel, index_info, allow_sync, start, nblocks))
			index_info->ii_Concurrent = index_info->ii_BrokenHotChain = true;
		result = heap_methods->index_build_range_scan(rel, index_rel, index_info,
													  allow_sync, anyvisible,
													  progress, start, nblocks,
													  callback, callback_state,
													  scan);
		/* index_build() looks at this again */
		index_info->ii_Concurrent = concurrent;
	}
	AS_HEAP_END();
	return result;
}

static void
ot_index_validate_scan(Relation rel, Relation index_rel,
					   struct IndexInfo *index_info, Snapshot snapshot,
					   struct ValidateIndexState *state)
{
	AS_HEAP(rel);
	{
		heap_methods->index_validate_scan(rel, index_rel, index_info, snapshot, state);
	}
	AS_HEAP_END();
}

/* A scan of no blocks finds no rows. */
static uint64
ot_relation_size(Relation rel, ForkNumber fork)
{
	return unlikely(ot_is_comparing) ? 0 : heap_methods->relation_size(rel, fork);
}

/* TOAST tables are plain heaps: their rows travel in the values. */
static Oid
ot_relation_toast_am(Relation rel)
{
	return HEAP_TABLE_AM_OID;
}

Datum
ot_access_method_handler(PG_FUNCTION_ARGS)
{
	if (heap_methods == NULL)
	{
		heap_methods = GetHeapamTableAmRoutine();
		ot_methods = *heap_methods;

		ot_methods.scan_begin = ot_scan_begin;
		ot_methods.index_fetch_begin = ot_index_fetch_begin;
		ot_methods.index_fetch_tuple = ot_index_fetch_tuple;
		ot_methods.index_fetch_reset = ot_index_fetch_reset;
		ot_methods.tuple_insert = ot_tuple_insert;
		ot_methods.multi_insert = ot_multi_insert;
		ot_methods.tuple_insert_speculative = ot_tuple_insert_speculative;
		ot_methods.tuple_complete_speculative = ot_tuple_complete_speculative;
		ot_methods.tuple_delete = ot_tuple_delete;
		ot_methods.tuple_update = ot_tuple_update;
		ot_methods.tuple_lock = ot_tuple_lock;
		ot_methods.OT_SET_NEW_FILE_CALLBACK = ot_set_new_file;
		ot_methods.relation_nontransactional_truncate = ot_nontransactional_truncate;
		ot_methods.relation_copy_for_cluster = ot_relation_copy_for_cluster;
		ot_methods.index_build_range_scan = ot_index_build_range_scan;
		ot_methods.index_validate_scan = ot_index_validate_scan;
		ot_methods.relation_size = ot_relation_size;
		ot_methods.relation_toast_am = ot_relation_toast_am;
	}
	PG_RETURN_POINTER(&ot_methods);
}
