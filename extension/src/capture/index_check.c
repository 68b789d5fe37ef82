/*-------------------------------------------------------------------------
 *
 * index_check.c
 *	  Finds rows that are missing from an index.
 *
 * For `onetrip check --indexes`; for B-trees amcheck checks more.  There are
 * two ways, depending on the scans that the access method supports:
 *
 *	everything		(gin, gist, spgist, bloom, btree) A scan without a condition
 *					returns all rows that are in the index.
 *	equal values	(hash) Each value of the table is looked up.
 *
 * An access method that returns whole ranges of pages (brin) cannot lack a row
 * in this sense; the result for such an index is NULL.
 *
 * The table may be written meanwhile: a snapshot is taken before the index is
 * read, and only rows that it shows are compared.  None of these can lose its
 * index entry while the snapshot is in use.  The table is read as CREATE INDEX
 * reads it: expressions and predicate are computed again, as the table's owner,
 * and every row comes with the TID that an index has for it, that of the root
 * of its HOT chain.
 *
 * Runs in backends.  Locks: AccessShareLock on both, to the end of the
 * transaction.  Memory: the caller's; the bitmap takes at most
 * maintenance_work_mem.  If that is too little, it contains some pages without
 * their rows, and all rows of these count as found.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture.h"

#include "access/amapi.h"
#include "access/genam.h"
#include "access/hash.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "nodes/tidbitmap.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

typedef struct Search
{
	Relation	heap;
	Relation	index;
	Snapshot	snapshot;
	int64		missing;
	MemoryContext memory;		/* lives as long as the search */

	/* everything: the page of the bitmap that the table's scan has reached */
	OtBitmapIterator *iterator;
	bool		ended;
	bool		lossy;
	BlockNumber block;
	int			noffsets;
	OffsetNumber offsets[MaxHeapTuplesPerPage];

	/* equal values */
	FmgrInfo	hash;
	RegProcedure equal;
	HTAB	   *looked_up;		/* hashes of values */
	HTAB	   *found;			/* TIDs found when another row's value was looked up */
} Search;

PG_FUNCTION_INFO_V1(ot_rows_not_in_index);

/* ---- everything ---- */

static void
index_check_next_page(Search *search)
{
	search->ended = !ot_bitmap_next_page(search->iterator, &search->block, &search->lossy, search->offsets, &search->noffsets);
}

static void
index_check_is_in_bitmap(Relation index, ItemPointer tid, Datum *values, bool *nulls, bool alive, void *state)
{
	Search	   *search = state;

	while (!search->ended && search->block < ItemPointerGetBlockNumber(tid))
		index_check_next_page(search);
	if (!search->ended && search->block == ItemPointerGetBlockNumber(tid))
	{
		if (search->lossy)
			return;
		for (int i = 0; i < search->noffsets; i++)
		{
			if (search->offsets[i] == ItemPointerGetOffsetNumber(tid))
				return;
		}
	}
	search->missing++;
}

static TIDBitmap *
index_check_all_rows(Search *search)
{
	TIDBitmap  *bitmap = tbm_create(maintenance_work_mem * 1024L, NULL);
	IndexScanDesc scan = OT_INDEX_BEGINSCAN_BITMAP(search->index, search->snapshot, 0);

	index_rescan(scan, NULL, 0, NULL, 0);
	(void) index_getbitmap(scan, bitmap);
	index_endscan(scan);
	search->iterator = OT_BITMAP_BEGIN(bitmap);
	index_check_next_page(search);
	return bitmap;
}

/* ---- equal values ---- */

static HTAB *
index_check_make_set(const char *name, Size size, MemoryContext memory)
{
	HASHCTL		ctl = {.keysize = size, .entrysize = size, .hcxt = memory};

	return hash_create(name, 1024, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/*
 * Looks up all rows that the index has for this value.  Returns whether tid is
 * among them, and remembers the others.
 */
static bool
index_check_look_up_value(Search *search, ItemPointer tid, Datum value)
{
	IndexScanDesc scan = OT_INDEX_BEGINSCAN(search->heap, search->index, search->snapshot, 1);
	ScanKeyData key;
	ItemPointer other;
	bool		found = false;

	ScanKeyEntryInitialize(&key, 0, 1, HTEqualStrategyNumber, search->index->rd_opcintype[0],
						   search->index->rd_indcollation[0], search->equal, value);
	index_rescan(scan, &key, 1, NULL, 0);
	while ((other = index_getnext_tid(scan, ForwardScanDirection)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		if (ItemPointerEquals(other, tid))
			found = true;
		else
			(void) hash_search(search->found, other, HASH_ENTER, NULL);
	}
	index_endscan(scan);
	return found;
}

static void
index_check_is_found(Relation index, ItemPointer tid, Datum *values, bool *nulls, bool alive, void *state)
{
	Search	   *search = state;
	uint32		hash;
	bool		known;

	if (nulls[0])
		return;
	hash = DatumGetUInt32(FunctionCall1Coll(&search->hash, search->index->rd_indcollation[0],
											values[0]));
	(void) hash_search(search->looked_up, &hash, HASH_ENTER, &known);
	if (known)
	{
		/* a hash index finds all values of the same hash together */
		if (hash_search(search->found, tid, HASH_REMOVE, NULL) == NULL)
			search->missing++;
	}
	else if (!index_check_look_up_value(search, tid, values[0]))
		search->missing++;
}

static void
index_check_equal_values(Search *search)
{
	Oid			operator = get_opfamily_member(search->index->rd_opfamily[0],
											   search->index->rd_opcintype[0],
											   search->index->rd_opcintype[0],
											   HTEqualStrategyNumber);

	search->equal = get_opcode(operator);
	fmgr_info_copy(&search->hash, index_getprocinfo(search->index, 1, HASHSTANDARD_PROC),
				   search->memory);
	search->looked_up = index_check_make_set("onetrip values looked up", sizeof(uint32), search->memory);
	search->found = index_check_make_set("onetrip rows found", sizeof(ItemPointerData), search->memory);
}

/* ---- the table ---- */

static bool
index_check_search_index(Search *search)
{
	Relation	index = search->index;
	IndexInfo  *info = BuildIndexInfo(index);
	TIDBitmap  *bitmap = NULL;
	IndexBuildCallback callback;
	TableScanDesc scan;

	if (index->rd_rel->relam == HASH_AM_OID)
	{
		index_check_equal_values(search);
		callback = index_check_is_found;
	}
	else if (index->rd_indam->amoptionalkey && index->rd_indam->amgetbitmap != NULL &&
			 index->rd_rel->relam != BRIN_AM_OID)
	{
		bitmap = index_check_all_rows(search);
		callback = index_check_is_in_bitmap;
	}
	else
		return false;

	/* As in amcheck: only rows of the snapshot, and no check for duplicates. */
	info->ii_Concurrent = true;
	info->ii_Unique = false;
	info->ii_ExclusionOps = NULL;
	info->ii_ExclusionProcs = NULL;
	info->ii_ExclusionStrats = NULL;
	/* no synchronized scan: the bitmap starts at the first page too */
	scan = table_beginscan_strat(search->heap, search->snapshot, 0, NULL, true, false);
	table_index_build_scan(search->heap, index, info, false, false, callback, search, scan);
	if (bitmap != NULL)
	{
		OT_BITMAP_END(search->iterator);
		tbm_free(bitmap);
	}
	return true;
}

/* onetrip.rows_not_in_index(regclass) */
Datum
ot_rows_not_in_index(PG_FUNCTION_ARGS)
{
	Oid			indexid = PG_GETARG_OID(0);
	Oid			heapid = IndexGetRelation(indexid, true);
	Search	   *search = palloc0(sizeof(Search));
	OtUserContext owner;
	bool		looked;

	/* The table is locked first, as everywhere. */
	if (OidIsValid(heapid))
		search->heap = table_open(heapid, AccessShareLock);
	search->index = index_open(indexid, AccessShareLock);
	if (search->heap == NULL || IndexGetRelation(indexid, false) != heapid)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("the table of index \"%s\" does not exist",
						RelationGetRelationName(search->index))));
	if (RELATION_IS_OTHER_TEMP(search->heap) ||
		search->index->rd_rel->relkind != RELKIND_INDEX)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("rows of index \"%s\" cannot be checked here",
						RelationGetRelationName(search->index))));
	if (!search->index->rd_index->indisvalid)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is not valid",
						RelationGetRelationName(search->index)),
				 errhint("Rebuild it with REINDEX.")));

	/* Functions of the index run as the table's owner. */
	ot_user_enter(&owner, search->heap->rd_rel->relowner, true);
	search->memory = CurrentMemoryContext;
	search->snapshot = RegisterSnapshot(GetTransactionSnapshot());
	looked = index_check_search_index(search);
	UnregisterSnapshot(search->snapshot);
	ot_user_leave(&owner);

	index_close(search->index, NoLock);
	table_close(search->heap, NoLock);
	if (!looked)
		PG_RETURN_NULL();
	PG_RETURN_INT64(search->missing);
}
