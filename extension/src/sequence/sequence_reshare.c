/*-------------------------------------------------------------------------
 *
 * sequence_reshare.c
 *	  Adjusts the sequences of a data folder that came from elsewhere.
 *
 * A data folder that is a base backup of another node, or whose node was given
 * another slot, contains the definitions of another slot: two nodes would give
 * out the same values.  One that was a server without Onetrip (onetrip adopt)
 * contains sequences with no share at all, which is the share of slot 0 with
 * stride 1.  So when the server starts, each definition is compared
 * with onetrip.sequence_slot and onetrip.sequence_stride, and rewritten if it
 * does not match them.
 *
 * Where such a sequence goes on: the position in the folder is the last own
 * value of the slot that it had.  Any value before the next own value of that
 * slot may be in use, even one of the slot that the folder has now, from an
 * earlier node: the 'Q' operation that told of it moved the position here no
 * further than to the last own value before it.  So the sequence goes on with
 * the first value of the new slot from that next own value on
 * (ot_sequence_hand_over).  Entries that are applied later raise it as always.
 * After a crash in the middle, the next start repeats this: positions are not
 * transactional, and moving one twice only moves it further.
 *
 * The notes of values drawn without an entry (sequence_used.c) do not outlive the
 * server.  So at each start the sequences that have given a value are noted, as
 * many as there is room for.
 *
 * Runs in the apply worker, before it sends HELLO; clients are let in after
 * that (position.c).  Nothing of it is captured.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "sequence/sequence_internal.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_sequence.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* Each transaction rewrites so many, since it locks them all. */
#define SEQUENCES_PER_TRANSACTION 1000

/* In TopMemoryContext. */
static List *
sequence_reshare_all_sequences(void)
{
	MemoryContext old;
	Relation	catalog = table_open(SequenceRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;
	List	   *sequences = NIL;

	old = MemoryContextSwitchTo(TopMemoryContext);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		sequences = lappend_oid(sequences, ((Form_pg_sequence) GETSTRUCT(tuple))->seqrelid);
	MemoryContextSwitchTo(old);
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return sequences;
}

static bool
sequence_reshare_one(Oid relid)
{
	OtSequenceLoaded seq;
	OtSequenceHere mine;
	OtPosition	position;
	OtShare		share;
	Relation	rel;

	/* Temporary ones are not shared; another server's are dropped some time. */
	if (get_rel_persistence(relid) == RELPERSISTENCE_TEMP || !ot_sequence_load(relid, &seq))
		return false;
	share = ot_sequence_own_share(&seq.user);
	if (seq.adjusted)
	{
		mine = ot_sequence_here(&seq.user, share);
		if (mine.start == seq.here.start && mine.increment == seq.here.increment &&
			mine.minimum == seq.here.minimum && mine.maximum == seq.here.maximum)
			return false;
	}

	rel = relation_open(relid, ShareRowExclusiveLock);
	position = ot_sequence_page_read(rel);
	relation_close(rel, NoLock);
	ot_sequence_adjust(relid, &seq.user);
	ot_sequence_set_position(relid, &seq.user,
							 ot_sequence_hand_over(&seq.user, share, seq.here.increment,
												   position));
	CommandCounterIncrement();
	return true;
}

/* Notes it, if it has given a value; false: there is no room. */
static bool
sequence_reshare_note(Oid relid)
{
	OtPosition	position;
	Relation	rel;

	if (get_rel_persistence(relid) != RELPERSISTENCE_PERMANENT || ot_sequence_relation_is_short(relid))
		return true;
	rel = relation_open(relid, AccessShareLock);
	position = ot_sequence_page_read(rel);
	relation_close(rel, AccessShareLock);
	return !position.is_called || ot_sequence_note_one(relid);
}

static void
sequence_reshare_begin(void)
{
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
}

static void
sequence_reshare_commit(void)
{
	PopActiveSnapshot();
	/* else a crash could undo this after values have been given out */
	ForceSyncCommit();
	CommitTransactionCommand();
}

/* Once per start of the server; the slot cannot change later. */
void
ot_sequence_reshare(void)
{
	int			changed = 0;
	bool		room = true;
	List	   *sequences;
	ListCell   *lc;

	sequence_reshare_begin();
	sequences = sequence_reshare_all_sequences();
	foreach(lc, sequences)
	{
		if (ot_sequence_stride > 1 && sequence_reshare_one(lfirst_oid(lc)) &&
			++changed % SEQUENCES_PER_TRANSACTION == 0)
		{
			sequence_reshare_commit();
			sequence_reshare_begin();
		}
		room = room && sequence_reshare_note(lfirst_oid(lc));
	}
	sequence_reshare_commit();
	if (changed > 0)
		ereport(LOG,
				(errmsg("%d of %d sequences had another share or none, and now give the values of slot %d of %d",
						changed, list_length(sequences), ot_sequence_slot, ot_sequence_stride)));
	list_free(sequences);
}
