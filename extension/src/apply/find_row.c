/*-------------------------------------------------------------------------
 *
 * find_row.c
 *	  Finds the row that an operation of an entry changes.
 *
 * The row is found by its value in the identity index.  In a table without one
 * the entry contains the whole row (whole_row.c), and any row with these
 * contents will do; it is searched for by another index, or else by reading the
 * table from where the last one was found, since an entry usually changes rows
 * in the order in which they are stored.
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

#include "access/stratnum.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

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

/* The finder's scans live in the current memory context, until it is closed. */
void
ot_row_finder_open(OtRowFinder *finder, Relation rel, OtRelInfo *info)
{
	memset(finder, 0, sizeof(*finder));
	finder->rel = rel;
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
	memset(finder, 0, sizeof(*finder));
}

/* Reads the identity of the row that is to be found next. */
void
ot_row_finder_read(OtRowFinder *finder, OtReader *r)
{
	TupleDesc	desc = RelationGetDescr(finder->rel);
	OtRowRead	row;

	finder->values = palloc(sizeof(Datum) * desc->natts);
	finder->nulls = palloc(sizeof(bool) * desc->natts);
	ot_row_read(r, finder->info, desc, &row);
	ot_row_deform(&row, desc, finder->values, finder->nulls);
	if (finder->whole_row)
		ot_whole_row_prepare(finder->info, desc, finder->values, finder->nulls);
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
}

/*
 * Begins the search.  A table without an index is read on from where the last
 * search ended; if that is in its midst, the search is only of a part.
 */
static void
find_row_begin(OtRowFinder *finder, bool resume)
{
	if (finder->index_scan)
		index_rescan(finder->index_scan, finder->keys, finder->nkeys, NULL, 0);
	else if (finder->table_scan == NULL)
		finder->table_scan = table_beginscan_strat(finder->rel, &finder->dirty, 0, NULL, false, false);
	else if (!resume)
		table_rescan(finder->table_scan, NULL);
}

static bool
find_row_next(OtRowFinder *finder, TupleTableSlot *slot)
{
	if (finder->index_scan)
		return index_getnext_slot(finder->index_scan, ForwardScanDirection, slot);
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
	bool		equal = ot_whole_row_equals(finder->info, RelationGetDescr(finder->rel),
											finder->values, finder->nulls, slot);

	MemoryContextSwitchTo(old);
	MemoryContextReset(finder->candidate_context);
	return equal;
}

/*
 * Looks for a row with the whole contents that nobody is changing.  If all with
 * these contents are being changed, *changed_by is one who does.
 */
static bool
find_row_search_whole(OtRowFinder *finder, TupleTableSlot *slot, bool resume,
					  TransactionId *changed_by)
{
	MemoryContext old;
	bool		found = false;

	*changed_by = InvalidTransactionId;
	/* What the scan allocates (dead items) must live as long as it does. */
	old = MemoryContextSwitchTo(finder->context);
	find_row_begin(finder, resume);
	while (!found && find_row_next(finder, slot))
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
			continue;
		if (TransactionIdIsValid(writer))
			*changed_by = writer;
		else
			found = true;
	}
	MemoryContextSwitchTo(old);
	return found;
}

static bool
find_row_by_contents(OtRowFinder *finder, TupleTableSlot *slot)
{
	TransactionId changed_by;

	if (finder->table_scan != NULL && find_row_search_whole(finder, slot, true, &changed_by))
		return true;
	for (;;)
	{
		if (find_row_search_whole(finder, slot, false, &changed_by))
			return true;
		if (ot_apply_take_turn())
			continue;
		if (!TransactionIdIsValid(changed_by))
			return false;
		find_row_wait_for(finder, changed_by, slot);
	}
}

static bool
find_row_by_identity(OtRowFinder *finder, TupleTableSlot *slot)
{
	for (;;)
	{
		TransactionId writer;
		MemoryContext old;
		bool		found;

		CHECK_FOR_INTERRUPTS();
		old = MemoryContextSwitchTo(finder->context);
		find_row_begin(finder, false);
		found = find_row_next(finder, slot);
		MemoryContextSwitchTo(old);
		if (!found)
			return false;
		writer = TransactionIdIsValid(finder->dirty.xmin) ? finder->dirty.xmin : finder->dirty.xmax;
		if (!TransactionIdIsValid(writer))
			return true;
		find_row_wait_for(finder, writer, slot);
	}
}

/* Puts the row into the slot. */
void
ot_row_finder_find(OtRowFinder *finder, TupleTableSlot *slot)
{
	if (finder->whole_row ? find_row_by_contents(finder, slot) : find_row_by_identity(finder, slot))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_NO_DATA_FOUND),
			 errmsg("row to change is missing in table \"%s.%s\" of region \"%s\"",
					get_namespace_name(RelationGetNamespace(finder->rel)),
					RelationGetRelationName(finder->rel), ot_region),
			 errhint("This region differs from the others; compare them with onetrip check.")));
}
