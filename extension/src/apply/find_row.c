/*-------------------------------------------------------------------------
 *
 * find_row.c
 *	  Finds the row that an operation of an entry changes.
 *
 * The row is found by its value in the identity index.  In a table without one
 * the entry contains the whole row (whole_row.c), and any row with these
 * contents will do; it is searched for by an index that is selective, or else by
 * reading the table from where the last one was found, since an entry usually
 * changes rows in the order in which they are stored.  If it does not, the places
 * of all rows are noted (row_places.c).  So they are if searches by the index have
 * passed over more than the table has rows: over those with the same value (NULL,
 * say) and other contents, or that the transaction has deleted.
 *
 * Each version of a row that a transaction has changed stays in the index until
 * the transaction ends, and a search goes through all of them.  So the places of
 * the last few rows with an identity are noted.
 *
 * The search uses a dirty snapshot, so it also sees rows that are being
 * written.  If an undecided local transaction has the row, that transaction is
 * evicted, and the worker waits for its end.
 *
 * Of several rows with the same contents, one that nobody is changing is taken.
 * A transaction that is changing another of them and is not decided before this
 * entry cannot commit, since it has the same key; it need not be evicted.  If
 * all are being changed, those who are decided before this entry are waited for
 * first: they may have changed, or made, one of the rows.
 *
 * Runs in the apply worker, and in backends that rehearse.  Raises ERROR if the
 * row is missing: this server then differs from the others.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* After so many scans of the table the places of its rows are noted. */
#define SCANS_MAX 4
/* Likewise after so many entries of the index that searches have passed over. */
#define PASSED_MIN 1000
#define PASSED_PER_PAGE 64
/* After so many rows with the same hash but other contents the table is read. */
#define PASSES_MAX 100

/* Begins a search in the index by equality with its first key columns. */
static void
find_row_open_index(OtRowFinder *finder, Oid index, int nkeys)
{
	finder->index = index_open(index, RowExclusiveLock);
	finder->nkeys = nkeys;
	finder->index_scan = OT_INDEX_BEGINSCAN(finder->rel, finder->index, &finder->dirty, nkeys);
	for (int i = 0; i < nkeys; i++)
	{
		Oid			type = finder->index->rd_opcintype[i];
		Oid			equality = get_opfamily_member(finder->index->rd_opfamily[i], type, type,
												   BTEqualStrategyNumber);

		if (!OidIsValid(equality))
			elog(ERROR, "index \"%s\" has no equality operator for column %d",
				 RelationGetRelationName(finder->index), i + 1);
		ScanKeyEntryInitialize(&finder->keys[i], 0, i + 1, BTEqualStrategyNumber, InvalidOid,
							   finder->index->rd_indcollation[i], get_opcode(equality),
							   (Datum) 0);
	}
}

/*
 * The finder's scans live in the current memory context, until it is closed, and until
 * then the caller has the descriptor pinned.
 */
void
ot_row_finder_open(OtRowFinder *finder, Relation rel, TupleDesc desc, OtRelInfo *info)
{
	memset(finder, 0, sizeof(*finder));
	finder->rel = rel;
	finder->desc = desc;
	finder->info = info;
	finder->context = CurrentMemoryContext;
	finder->whole_row = info->identity < 0;
	InitDirtySnapshot(finder->dirty);
	if (!finder->whole_row)
	{
		OtIndex    *identity = &info->indexes[info->identity];

		find_row_open_index(finder, identity->oid, identity->nkeys);
		return;
	}
	finder->candidate_context = AllocSetContextCreate(CurrentMemoryContext, "onetrip candidate row",
													  ALLOCSET_DEFAULT_SIZES);
	if (OidIsValid(info->search_index))
		find_row_open_index(finder, info->search_index, info->search_columns);
}

void
ot_row_finder_close(OtRowFinder *finder)
{
	if (finder->index_scan)
		index_endscan(finder->index_scan);
	if (finder->index)
		index_close(finder->index, NoLock);
	if (finder->table_scan)
		table_endscan(finder->table_scan);
	if (finder->candidate_context)
		MemoryContextDelete(finder->candidate_context);
	if (finder->places)
		ot_row_places_free(finder->places);
	memset(finder, 0, sizeof(*finder));
}

/* ---- the rows that were written last ---- */

/* Spells the key that is searched for, unless it is long. */
static void
find_row_spell_key(OtRowFinder *finder)
{
	OtRecentRow *row = &finder->to_find;

	row->size = 0;
	for (int i = 0; i < finder->nkeys; i++)
	{
		AttrNumber	column = finder->index->rd_index->indkey.values[i] - 1;
		Form_pg_attribute att = TupleDescAttr(finder->desc, column);
		Datum		value = finder->keys[i].sk_argument;
		const void *bytes = att->attbyval ? (const void *) &value : DatumGetPointer(value);
		uint32		size = att->attbyval ? sizeof(Datum) : att->attlen;

		if (att->attlen == -1)
		{
			bytes = VARDATA_ANY(DatumGetPointer(value));
			size = VARSIZE_ANY_EXHDR(DatumGetPointer(value));
		}
		else if (att->attlen == -2)
			size = strlen(DatumGetCString(value));
		if (row->size + sizeof(size) + size > OT_RECENT_KEY_MAX)
		{
			row->size = 0;
			return;
		}
		memcpy(row->key + row->size, &size, sizeof(size));
		memcpy(row->key + row->size + sizeof(size), bytes, size);
		row->size += sizeof(size) + size;
	}
}

static OtRecentRow *
find_row_recent(OtRowFinder *finder)
{
	const OtRecentRow *wanted = &finder->to_find;

	for (int i = 0; i < OT_RECENT_ROWS; i++)
	{
		OtRecentRow *row = &finder->recent[i];

		if (row->size == wanted->size && memcmp(row->key, wanted->key, row->size) == 0)
			return row;
	}
	return NULL;
}

static void
find_row_note_recent(OtRowFinder *finder, ItemPointer place)
{
	OtRecentRow *row = find_row_recent(finder);

	if (row == NULL)
	{
		row = &finder->recent[finder->oldest];
		finder->oldest = (finder->oldest + 1) % OT_RECENT_ROWS;
	}
	*row = finder->to_find;
	row->place = *place;
	finder->to_find.size = 0;
}

/* Is the row still where this transaction has put it? */
static bool
find_row_at_recent_place(OtRowFinder *finder, TupleTableSlot *slot)
{
	OtRecentRow *row = finder->to_find.size > 0 ? find_row_recent(finder) : NULL;

	if (likely(row == NULL))
		return false;
	if (!table_tuple_fetch_row_version(finder->rel, &row->place, (Snapshot) &finder->dirty, slot) ||
		TransactionIdIsValid(finder->dirty.xmin) || TransactionIdIsValid(finder->dirty.xmax))
		return false;
	/* its key may have changed */
	for (int i = 0; i < finder->nkeys; i++)
	{
		ScanKey		key = &finder->keys[i];
		bool		null;
		Datum		value = slot_getattr(slot, finder->index->rd_index->indkey.values[i], &null);

		if (null || !DatumGetBool(FunctionCall2Coll(&key->sk_func, key->sk_collation, value,
													key->sk_argument)))
			return false;
	}
	return true;
}

/* Reads the identity of the row that is to be found next. */
void
ot_row_finder_read(OtRowFinder *finder, OtReader *r)
{
	TupleDesc	desc = finder->desc;

	finder->values = palloc(sizeof(Datum) * desc->natts);
	finder->nulls = palloc(sizeof(bool) * desc->natts);
	ot_row_read(r, finder->info, desc, &finder->row);
	ot_row_deform(&finder->row, desc, finder->values, finder->nulls);
	finder->stored = finder->values;
	if (finder->whole_row)
	{
		finder->stored = palloc(sizeof(Datum) * desc->natts);
		memcpy(finder->stored, finder->values, sizeof(Datum) * desc->natts);
		ot_whole_row_prepare(finder->info, desc, finder->values, finder->nulls);
	}
	for (int i = 0; i < finder->nkeys; i++)
	{
		AttrNumber	column = finder->index->rd_index->indkey.values[i] - 1;
		ScanKey		key = &finder->keys[i];

		if (finder->nulls[column] && !finder->whole_row)
			ereport(ERROR,
					(errcode(OT_ERR_PROTOCOL),
					 errmsg("a row's key has no value for column %d", i + 1)));
		key->sk_flags = finder->nulls[column] ? SK_ISNULL | SK_SEARCHNULL : 0;
		key->sk_strategy = finder->nulls[column] ? InvalidStrategy : BTEqualStrategyNumber;
		if (finder->nulls[column])
			key->sk_argument = (Datum) 0;
		/* Detoasted once here, not in each call of the index's operator. */
		else
			key->sk_argument = finder->info->columns[column].is_varlena ?
				PointerGetDatum(PG_DETOAST_DATUM(finder->values[column])) : finder->values[column];
	}
	if (!finder->whole_row)
		find_row_spell_key(finder);
}

/*
 * Where a search looks.
 *
 *	INDEX	rows with the key
 *	REST	the table, from where the last search of it ended
 *	TABLE	all of the table
 */
typedef enum SearchPlace
{
	SEARCH_INDEX,
	SEARCH_REST,
	SEARCH_TABLE
} SearchPlace;

static void
find_row_begin(OtRowFinder *finder, SearchPlace place)
{
	if (place == SEARCH_INDEX)
		index_rescan(finder->index_scan, finder->keys, finder->nkeys, NULL, 0);
	else if (finder->table_scan == NULL)
		finder->table_scan = table_beginscan_strat(finder->rel, &finder->dirty, 0, NULL, false, false);
	else if (place == SEARCH_TABLE)
		table_rescan(finder->table_scan, NULL);
}

static bool
find_row_next(OtRowFinder *finder, SearchPlace place, TupleTableSlot *slot)
{
	IndexScanDesc scan = finder->index_scan;

	/* as index_getnext_slot() does, which does not say what it passes over */
	while (place == SEARCH_INDEX)
	{
		if (!scan->xs_heap_continue && index_getnext_tid(scan, ForwardScanDirection) == NULL)
			return false;
		if (index_fetch_heap(scan, slot))
			return true;
		finder->passed++;
		CHECK_FOR_INTERRUPTS();
	}
	return table_scan_getnextslot(finder->table_scan, ForwardScanDirection, slot);
}

/* Evicts the transaction, unless it is decided already, and waits for its end. */
static void
find_row_wait_for(OtRowFinder *finder, TransactionId writer, TupleTableSlot *slot)
{
	ExecClearTuple(slot);
	ot_evict_xid(writer, finder->rel);
	XactLockTableWait(writer, NULL, NULL, XLTW_None);
}

static bool
find_row_is_equal(OtRowFinder *finder, TupleTableSlot *slot)
{
	MemoryContext old = MemoryContextSwitchTo(finder->candidate_context);
	bool		equal = ot_whole_row_equals(finder->info, finder->desc, finder->values, finder->nulls, slot);

	MemoryContextSwitchTo(old);
	MemoryContextReset(finder->candidate_context);
	return equal;
}

/*
 * Looks for a row with the whole contents that nobody is changing.  If all with
 * these contents are being changed, *changed_by is one who does.
 */
static bool
find_row_search_whole(OtRowFinder *finder, TupleTableSlot *slot, SearchPlace place,
					  TransactionId *changed_by)
{
	MemoryContext old;
	bool		found = false;

	*changed_by = InvalidTransactionId;
	/* What the scan allocates (dead items) must live as long as it does. */
	old = MemoryContextSwitchTo(finder->context);
	find_row_begin(finder, place);
	while (!found && find_row_next(finder, place, slot))
	{
		TransactionId writer = TransactionIdIsValid(finder->dirty.xmin) ?
			finder->dirty.xmin : finder->dirty.xmax;

		CHECK_FOR_INTERRUPTS();
		/* being inserted: by one who is decided later, or whose turn is before ours */
		if (TransactionIdIsValid(finder->dirty.xmin) && !ot_is_rehearsing)
			continue;
		if (TransactionIdIsValid(writer) && TransactionIdIsValid(*changed_by))
			continue;
		if (!find_row_is_equal(finder, slot))
		{
			finder->passed++;
			continue;
		}
		if (TransactionIdIsValid(writer))
			*changed_by = writer;
		else
			found = true;
	}
	MemoryContextSwitchTo(old);
	return found;
}

/* ---- by the places that were noted ---- */

static void
find_row_forget_places(OtRowFinder *finder)
{
	ot_row_places_free(finder->places);
	finder->places = NULL;
}

static uint64
find_row_short_hash(OtRowFinder *finder, const Datum *values, const bool *nulls)
{
	MemoryContext old = MemoryContextSwitchTo(finder->candidate_context);
	uint64		hash = ot_whole_row_short_hash(finder->info, finder->desc, values, nulls);

	MemoryContextSwitchTo(old);
	MemoryContextReset(finder->candidate_context);
	return hash;
}

/* Notes where a row of the entry is now, which the entry may change once more. */
void
ot_row_finder_written(OtRowFinder *finder, TupleTableSlot *row)
{
	if (finder->to_find.size > 0)
		find_row_note_recent(finder, &row->tts_tid);
	if (likely(finder->places == NULL))
		return;
	slot_getallattrs(row);
	if (!ot_row_places_add(finder->places, find_row_short_hash(finder, row->tts_values, row->tts_isnull),
						   &row->tts_tid))
		find_row_forget_places(finder);
}

/* Notes the places of all rows, unless there are too many. */
static void
find_row_note_places(OtRowFinder *finder, TupleTableSlot *slot)
{
	MemoryContext old = MemoryContextSwitchTo(finder->context);

	finder->places = ot_row_places_make(finder->context);
	find_row_begin(finder, SEARCH_TABLE);
	while (finder->places != NULL && find_row_next(finder, SEARCH_TABLE, slot))
	{
		CHECK_FOR_INTERRUPTS();
		/* one that is being inserted cannot be meant, and may go with its values */
		if (!TransactionIdIsValid(finder->dirty.xmin))
			ot_row_finder_written(finder, slot);
	}
	ExecClearTuple(slot);
	MemoryContextSwitchTo(old);
}

/* A row that nobody is changing; false: none was found, which means nothing. */
static bool
find_row_at_noted_place(OtRowFinder *finder, TupleTableSlot *slot)
{
	uint64		hash = find_row_short_hash(finder, finder->values, finder->nulls);
	int32	   *link = NULL;
	int			passes = 0;
	ItemPointer tid;

	while ((tid = ot_row_places_find(finder->places, hash, &link)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		if (!table_tuple_fetch_row_version(finder->rel, tid, (Snapshot) &finder->dirty, slot))
			ot_row_places_forget(finder->places, &link);
		else if (TransactionIdIsValid(finder->dirty.xmin) || TransactionIdIsValid(finder->dirty.xmax) ||
				 !find_row_is_equal(finder, slot))
		{
			if (++passes > PASSES_MAX)
				break;
			ot_row_places_pass(finder->places, &link);
		}
		else
			return true;
	}
	return false;
}

/* Would it have been cheaper to note all places? */
static bool
find_row_passes_many(OtRowFinder *finder)
{
	return finder->passed > PASSED_MIN &&
		finder->passed / PASSED_PER_PAGE > RelationGetNumberOfBlocks(finder->rel);
}

static bool
find_row_by_contents(OtRowFinder *finder, TupleTableSlot *slot)
{
	SearchPlace place = finder->index_scan ? SEARCH_INDEX : SEARCH_TABLE;
	TransactionId changed_by;

	if (finder->places != NULL && find_row_at_noted_place(finder, slot))
		return true;
	if (finder->table_scan != NULL && place == SEARCH_TABLE &&
		find_row_search_whole(finder, slot, SEARCH_REST, &changed_by))
		return true;
	if (!finder->noted && (place == SEARCH_TABLE ? ++finder->scans >= SCANS_MAX : find_row_passes_many(finder)))
	{
		finder->noted = true;
		find_row_note_places(finder, slot);
		if (finder->places != NULL && find_row_at_noted_place(finder, slot))
			return true;
	}
	for (;;)
	{
		if (find_row_search_whole(finder, slot, place, &changed_by))
			return true;
		if (ot_apply_take_turn())
			continue;
		if (!ot_apply_has_turn())
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("the apply worker has lost its connection to the node while it looked for a row")));
		if (TransactionIdIsValid(changed_by))
			find_row_wait_for(finder, changed_by, slot);
		else if (place == SEARCH_INDEX)
			place = SEARCH_TABLE;	/* the index may be damaged */
		else
			return false;
	}
}

static bool
find_row_by_identity(OtRowFinder *finder, TupleTableSlot *slot)
{
	if (find_row_at_recent_place(finder, slot))
		return true;
	for (;;)
	{
		TransactionId writer;
		MemoryContext old;
		bool		found;

		CHECK_FOR_INTERRUPTS();
		old = MemoryContextSwitchTo(finder->context);
		find_row_begin(finder, SEARCH_INDEX);
		found = find_row_next(finder, SEARCH_INDEX, slot);
		MemoryContextSwitchTo(old);
		if (!found)
			return false;
		writer = TransactionIdIsValid(finder->dirty.xmin) ? finder->dirty.xmin : finder->dirty.xmax;
		if (!TransactionIdIsValid(writer))
			return true;
		find_row_wait_for(finder, writer, slot);
	}
}

static char *
find_row_describe_key(OtRowFinder *finder)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS] = {0};

	for (int i = 0; i < finder->nkeys; i++)
		values[i] = finder->keys[i].sk_argument;
	return BuildIndexValueDescription(finder->index, values, nulls);
}

/* Puts the row into the slot. */
void
ot_row_finder_find(OtRowFinder *finder, TupleTableSlot *slot)
{
	char	   *key;

	if (finder->whole_row ? find_row_by_contents(finder, slot) : find_row_by_identity(finder, slot))
		return;
	key = finder->whole_row ? NULL : find_row_describe_key(finder);
	ereport(ERROR,
			(errcode(ERRCODE_NO_DATA_FOUND),
			 errmsg("row to change is missing in table \"%s.%s\" of region \"%s\"",
					get_namespace_name(RelationGetNamespace(finder->rel)),
					RelationGetRelationName(finder->rel), ot_region),
			 key ? errdetail_log("Its key is %s.", key) : 0,
			 errhint("This region differs from the others; compare them with onetrip check.")));
}
