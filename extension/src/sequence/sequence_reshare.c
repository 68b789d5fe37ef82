/*-------------------------------------------------------------------------
 *
 * sequence_reshare.c
 *	  Makes the sequences of a data folder that came from another node this
 *	  node's own.
 *
 * A folder made by base backup, or of a node that was given another slot, has
 * the definitions of the node that it comes from: two nodes would give out
 * the same values.  So when the server starts, each definition is compared
 * with onetrip.sequence_slot and onetrip.sequence_stride, and written anew
 * where it is another's.
 *
 * Where such a sequence goes on: the position that was copied is the other
 * node's last own value.  Any value below its next one may have been used by
 * somebody, by an earlier holder of this slot too, and reached this folder as
 * a 'Q' operation which moved the position no further than the other node's
 * value before it.  So this node starts with its first own value from there
 * on (ot_sequence_hand_over).  Entries that are applied later raise it as
 * always.  A crash in the middle is repaired by the next start: positions are
 * not transactional, and moving one twice only moves it further.
 *
 * Runs in the apply worker, before it says HELLO; clients are let in after
 * that (position.c).  Local: nothing of it is captured.
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

static List *
sequence_reshare_all_sequences(void)
{
	Relation	catalog = table_open(SequenceRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;
	List	   *sequences = NIL;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		sequences = lappend_oid(sequences, ((Form_pg_sequence) GETSTRUCT(tuple))->seqrelid);
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return sequences;
}

static bool
sequence_reshare_one(Oid relid, OtShare share)
{
	OtSequenceLoaded seq;
	OtSequenceHere mine;
	OtPosition	position;
	Relation	rel;
	int64		needed;

	/* temporary ones have no share; what is left of another server's is dropped some time */
	if (get_rel_persistence(relid) == RELPERSISTENCE_TEMP ||
		!ot_sequence_load(relid, &seq) || !seq.adjusted)
		return false;
	if (ot_sequence_fits(&seq.user, share, &needed))
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

/* Once per start of the server; settings of the slot do not change later. */
void
ot_sequence_reshare(void)
{
	OtShare		share = ot_sequence_own_share();
	int			changed = 0;
	int			total = 0;
	ListCell   *lc;

	if (share.stride == 1)
		return;
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	foreach(lc, sequence_reshare_all_sequences())
	{
		total++;
		if (sequence_reshare_one(lfirst_oid(lc), share))
			changed++;
	}
	PopActiveSnapshot();
	/* else a crash could take it away together with values given out since */
	ForceSyncCommit();
	CommitTransactionCommand();
	if (changed > 0)
		ereport(LOG,
				(errmsg("%d of %d sequences were of another node and now give the values of slot %d of %d",
						changed, total, share.slot, share.stride)));
}
