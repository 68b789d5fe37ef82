/*-------------------------------------------------------------------------
 *
 * row_fits.c
 *	  May a row be replicated, and does it fit into the indexes everywhere?
 *
 * Runs in backends, called by capture.c for each row that has been written, in
 * its temporary memory.  Raises ERROR if not.
 *
 * An index may get a value in another form here than elsewhere.  How much of it that
 * changes depends on what the index stores:
 *
 *	B-tree		the values, in that form
 *	GiST		those of INCLUDE columns and of types without a compression function,
 *				in that form; or what such a function makes of the whole value, which
 *				is the same everywhere unless there are OIDs in it
 *	BRIN		the values, in that form, but in a bloom filter
 *	GIN			keys, made of the whole value: the same everywhere, but for OIDs
 *	SP-GiST		the values, never compressed: the same size everywhere
 *	hash		hashes
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/gin_private.h"
#include "access/gist_private.h"
#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/sysattr.h"
#include "access/toast_compression.h"
#include "access/toast_internals.h"
#include "catalog/pg_am_d.h"
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

	if (info->computes_names)
		return true;
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

/*
 * The largest tuple that a B-tree takes, as in BTMaxItemSize(); GIN takes as much.
 * GiST and BRIN would take more, but it must not come to that: a page of GiST with
 * one tuple only makes its parent large, and a summary of BRIN has two ends.
 */
#define ROOM \
	(MAXALIGN_DOWN((BLCKSZ - MAXALIGN(SizeOfPageHeaderData + 3 * sizeof(ItemIdData)) - \
					MAXALIGN(sizeof(BTPageOpaqueData))) / 3) - MAXALIGN(sizeof(ItemPointerData)))

/* The value in the form that an index gives it, as in index_form_tuple(). */
static Datum
row_fits_form(Form_pg_attribute att, Datum value)
{
	Datum		compressed;

	if (VARATT_IS_EXTERNAL(DatumGetPointer(value)))
		value = PointerGetDatum(detoast_external_attr((struct varlena *) DatumGetPointer(value)));
	if (VARATT_IS_EXTENDED(DatumGetPointer(value)) || VARSIZE(DatumGetPointer(value)) <= TOAST_INDEX_TARGET ||
		(att->attstorage != TYPSTORAGE_EXTENDED && att->attstorage != TYPSTORAGE_MAIN))
		return value;
	compressed = toast_compress_datum(value, att->attcompression);
	return DatumGetPointer(compressed) != NULL ? compressed : value;
}

/*
 * The size of an index's tuple with these values; they are changed to what it
 * contains.  With other OIDs: of that in the region where it is largest.
 */
static Size
row_fits_tuple_size(TupleDesc desc, const Oid *names, Datum *values, bool *nulls, bool other_oids)
{
	bool		has_nulls = false;
	Size		size = 0;

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		has_nulls |= nulls[i];
		if (nulls[i] || att->attlen != -1)
			continue;
		values[i] = row_fits_form(att, values[i]);
		if (other_oids && OidIsValid(names[i]) && VARATT_IS_COMPRESSED(DatumGetPointer(values[i])))
			size += MAXALIGN(ot_type_size_elsewhere(names[i], values[i])) - VARSIZE_ANY(DatumGetPointer(values[i]));
	}
	return size + MAXALIGN(IndexInfoFindDataOffset(has_nulls ? INDEX_NULL_MASK : 0) +
						   heap_compute_data_size(desc, values, nulls));
}

/* The size of the largest of the tuples, one for each key. */
static Size
row_fits_size_in_gin(OtWholeIndex *index, Relation rel, Datum *values, bool *nulls, bool other_oids)
{
	GinState   *state = palloc(sizeof(GinState));
	Size		largest = 0;

	initGinState(state, rel);
	for (int i = 0; i < index->desc->natts; i++)
	{
		TupleDesc	desc = state->tupdesc[i];
		GinNullCategory *categories;
		int32		nkeys;
		Datum	   *keys;

		if (nulls[i])
			continue;
		keys = ginExtractEntries(state, i + 1, values[i], false, &nkeys, &categories);
		for (int k = 0; k < nkeys; k++)
		{
			/* an index of several columns has the column's number before the key */
			Datum		in_tuple[] = {UInt16GetDatum(i + 1), keys[k]};
			Oid			names[] = {InvalidOid, index->names[i]};
			bool		no_nulls[] = {false, false};
			int			from = 2 - desc->natts;

			if (categories[k] == GIN_CAT_NORM_KEY)
				largest = Max(largest, row_fits_tuple_size(desc, names + from, in_tuple + from, no_nulls, other_oids));
		}
	}
	return largest;
}

/* What the index's tuple takes of the values that it stores of this row; 0: none. */
static Size
row_fits_size_in_index(OtWholeIndex *index, TupleTableSlot *slot, bool other_oids)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];
	EState	   *estate = CreateExecutorState();
	Size		size = 0;

	if (ot_capture_compute_index_value(index->oid, index->info, slot, estate, values, nulls))
	{
		Relation	rel = index_open(index->oid, AccessShareLock);

		for (int i = 0; i < index->desc->natts; i++)
			nulls[i] |= !index->is_whole[i];
		if (index->method == GIST_AM_OID)
		{
			GISTSTATE  *state = initGISTstate(rel);

			gistCompressValues(state, rel, values, nulls, true, values);
			freeGISTstate(state);
		}
		size = index->method == GIN_AM_OID ?
			row_fits_size_in_gin(index, rel, values, nulls, other_oids) :
			row_fits_tuple_size(index->desc, index->names, values, nulls, other_oids);
		index_close(rel, AccessShareLock);
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
		Size		size = row_fits_size_in_index(index, slot, true);

		/* if it is as large here, PostgreSQL says whether it fits */
		if (size > ROOM && size > row_fits_size_in_index(index, given, false))
			ereport(ERROR,
					(errcode(OT_ERR_TOO_LARGE),
					 errmsg("cannot replicate a row of table \"%s\": a value fits into index \"%s\" only in the form that it has here",
							RelationGetRelationName(rel), get_rel_name(index->oid)),
					 errdetail("It is compressed here. In other regions, where it is as in the table or holds other OIDs, it may take up to %zu bytes in the index; %zu are safe.",
							   size, (Size) ROOM),
					 errhint("Index something shorter, such as a hash of the value, or drop the index.")));
	}
	ExecDropSingleTupleTableSlot(slot);
}
