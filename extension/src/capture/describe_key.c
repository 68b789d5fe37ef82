/*-------------------------------------------------------------------------
 *
 * describe_key.c
 *	  What a key of this transaction was of, for a message.
 *
 * Runs in backends whose transaction has lost.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/*
 * The unique index that has this key of the row at tid, and the row's values in
 * it.  Only those that are columns: this runs no functions of users.
 */
static OtIndex *
describe_key_find_index(Relation rel, ItemPointer tid, OtHash hash, Datum *values, bool *nulls)
{
	OtRelInfo  *info = ot_rel_info(rel);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsVirtual);
	HeapTupleData stored;
	Buffer		buffer;

	stored.t_self = *tid;
	/* it need not be there any more, nor be the row that it was */
	if (!heap_fetch(rel, SnapshotAny, &stored, &buffer, false))
		return NULL;
	heap_deform_tuple(heap_copytuple(&stored), slot->tts_tupleDescriptor, slot->tts_values, slot->tts_isnull);
	ReleaseBuffer(buffer);
	ExecStoreVirtualTuple(slot);
	for (int i = 0; i < info->nindexes; i++)
	{
		OtIndex    *index = &info->indexes[i];
		OtHash		found;

		if (index->coarse || index->computed ||
			!ot_capture_hash_index_value(index, slot, &found) || found.value != hash.value)
			continue;
		for (int k = 0; k < index->nkeys; k++)
			values[k] = slot_getattr(slot, index->attnums[k], &nulls[k]);
		return index;
	}
	return NULL;
}

static void
describe_key_of_row(Relation rel, ItemPointer tid, OtHash hash, OtConflictKey *key)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];
	OtIndex    *index = describe_key_find_index(rel, tid, hash, values, nulls);
	Relation	index_rel;
	char	   *text;

	if (index == NULL)
		return;
	index_rel = index_open(index->oid, AccessShareLock);
	/* NULL if the user may not see them */
	text = BuildIndexValueDescription(index_rel, values, nulls);
	index_close(index_rel, NoLock);
	if (text == NULL)
		return;
	strlcpy(key->text, text, sizeof(key->text));
	key->ncolumns = index->nkeys;
	memcpy(key->columns, index->attnums, sizeof(AttrNumber) * index->nkeys);
}

/*
 * The columns and values of a key of this transaction, as PostgreSQL prints
 * those of a unique violation; empty if they are not known, or this user may not
 * see them.  For a transaction that is about to fail: an ERROR in here, of a
 * type's output function for example, is passed over.
 */
void
ot_describe_key(uint32 key_number, OtConflictKey *key)
{
	OtHash		hash;
	ItemPointerData tid = ot_write_set_key_row(key_number, &hash);
	Oid			relid = ot_write_set_key_table(key_number);
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;

	memset(key, 0, sizeof(*key));
	if (!ItemPointerIsValid(&tid) || !OidIsValid(relid))
		return;
	PG_TRY();
	{
		Relation	rel = table_open(relid, AccessShareLock);

		describe_key_of_row(rel, &tid, hash, key);
		table_close(rel, NoLock);
	}
	PG_CATCH();
	{
		ot_swallow_error(context, holdoff);
		memset(key, 0, sizeof(*key));
	}
	PG_END_TRY();
}
