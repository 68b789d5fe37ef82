/*-------------------------------------------------------------------------
 *
 * row_fits.c
 *	  May a row be replicated, and does it fit into the indexes everywhere?
 *
 * Runs in backends, called by capture.c for each row that has been written, in
 * its temporary memory.  Raises ERROR if not.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/sysattr.h"
#include "access/toast_compression.h"
#include "executor/executor.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

/* Refuses a row that other regions might not put into its partition or index. */
void
ot_row_check_replicable(OtRelInfo *info, Relation rel, TupleTableSlot *slot)
{
	bool		isnull = false;

	if (unlikely(OidIsValid(info->misrouted_by)))
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot replicate rows of partition \"%s\" of table \"%s\"",
						RelationGetRelationName(rel), get_rel_name(info->misrouted_by)),
				 errdetail("The table is partitioned by OIDs, which differ between regions: a row would belong to another partition elsewhere."),
				 errhint("Partition by LIST, or by another column.")));
	/* The index takes a first value and then no other, from any region. */
	if (likely(!OidIsValid(info->incomparable)))
		return;
	if (info->incomparable_column > 0)
		(void) slot_getattr(slot, info->incomparable_column, &isnull);
	if (!isnull)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot replicate a value in index \"%s\" of table \"%s\"",
						get_rel_name(info->incomparable), RelationGetRelationName(rel)),
				 errdetail("The index cannot compare two values of its type, so another region could not add one."),
				 errhint("Drop the index.")));
}

/* Is it compressed, and not as this session compresses what it puts into an index of expressions? */
static bool
row_fits_is_compressed_otherwise(struct varlena *value)
{
	ToastCompressionId method = toast_get_compression_id(value);

	return method != TOAST_INVALID_COMPRESSION_ID &&
		(method == TOAST_LZ4_COMPRESSION_ID) != (default_toast_compression == TOAST_LZ4_COMPRESSION);
}

/*
 * Might an index get some value in another form elsewhere?  Here it gets the
 * value that the executor had, elsewhere the one that was stored, which the
 * column may compress by another method than an index of an expression does; and
 * a value with other OIDs in it compresses to another size.
 */
static bool
row_fits_may_take_another_form(OtRelInfo *info, TupleDesc desc, TupleTableSlot *given, HeapTuple stored)
{
	bool		whole_row = bms_is_member(0 - FirstLowInvalidHeapAttributeNumber,
										  info->in_whole_indexes);

	slot_getallattrs(given);
	for (int i = 0; i < info->natts; i++)
	{
		struct varlena *value = (struct varlena *) DatumGetPointer(given->tts_values[i]);
		bool		isnull;

		if (!info->columns[i].is_varlena || given->tts_isnull[i] ||
			(!whole_row && !bms_is_member(i + 1 - FirstLowInvalidHeapAttributeNumber,
										  info->in_whole_indexes)))
			continue;
		if (VARATT_IS_COMPRESSED(value) || VARATT_IS_EXTERNAL(value))
			return true;
		/* Shorter values are not compressed for an index. */
		if (VARSIZE_ANY(value) <= TOAST_INDEX_TARGET)
			continue;
		if (info->columns[i].contains_names)
			return true;
		value = (struct varlena *) DatumGetPointer(heap_getattr(stored, i + 1, desc, &isnull));
		if (row_fits_is_compressed_otherwise(value))
			return true;
	}
	return false;
}

/* The largest tuple that a B-tree takes, as in BTMaxItemSize(). */
#define BTREE_ROOM \
	(MAXALIGN_DOWN((BLCKSZ - MAXALIGN(SizeOfPageHeaderData + 3 * sizeof(ItemIdData)) - \
					MAXALIGN(sizeof(BTPageOpaqueData))) / 3) - MAXALIGN(sizeof(ItemPointerData)))

/* The size of the index's tuple in the region where it is largest; 0: none. */
static Size
row_fits_size_in_index(OtWholeIndex *index, TupleTableSlot *stored)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];
	EState	   *estate = CreateExecutorState();
	Size		size = 0;

	if (ot_capture_compute_index_value(index->oid, index->info, stored, estate, values, nulls))
	{
		IndexTuple	tuple = index_form_tuple(index->desc, values, nulls);

		size = IndexTupleSize(tuple);
		for (int i = 0; i < index->desc->natts; i++)
		{
			Datum		value = index_getattr(tuple, i + 1, index->desc, &nulls[i]);

			if (!nulls[i] && index->contains_names[i] && VARATT_IS_COMPRESSED(DatumGetPointer(value)))
				size += MAXALIGN(ot_type_size_elsewhere(TupleDescAttr(index->desc, i)->atttypid,
														value)) -
					VARSIZE_ANY(DatumGetPointer(value));
		}
	}
	FreeExecutorState(estate);
	return size;
}

/* Refuses a row that fits into the indexes here, but perhaps not elsewhere. */
void
ot_row_check_fits_everywhere(OtRelInfo *info, Relation rel, TupleTableSlot *given, HeapTuple stored)
{
	TupleTableSlot *slot;

	if (info->nwhole_indexes == 0 ||
		likely(!row_fits_may_take_another_form(info, RelationGetDescr(rel), given, stored)))
		return;
	slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);
	ExecStoreHeapTuple(stored, slot, false);
	for (int i = 0; i < info->nwhole_indexes; i++)
	{
		OtWholeIndex *index = &info->whole_indexes[i];
		Size		size = row_fits_size_in_index(index, slot);

		if (size > BTREE_ROOM)
			ereport(ERROR,
					(errcode(OT_ERR_TOO_LARGE),
					 errmsg("cannot replicate a row of table \"%s\": a value fits into index \"%s\" only in the form that it has here",
							RelationGetRelationName(rel), get_rel_name(index->oid)),
					 errdetail("It is compressed here. In other regions, where it is as in the table or holds other OIDs, it may take up to %zu bytes in the index; %zu are safe.",
							   size, (Size) BTREE_ROOM),
					 errhint("Index something shorter, such as a hash of the value, or drop the index.")));
	}
	ExecDropSingleTupleTableSlot(slot);
}
