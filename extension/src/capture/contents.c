/*-------------------------------------------------------------------------
 *
 * contents.c
 *	  All rows of a relation at once: emptied, and filled again.
 *
 * The rows that a statement has put into a relation are replicated themselves
 * where running the statement again could give other rows:
 *	- in a materialized view, because of other snapshots, other sessions, or
 *	  random();
 *	- in what the script of an extension has inserted, because of serial keys;
 *	- in a table that ALTER TABLE has given volatile values;
 *	- in one whose rows were each region's own before (SET LOGGED).
 * The entry then says that the relation is empty, and after that its rows.  Of
 * a TRUNCATE the entry only says which tables it has emptied: triggers, CASCADE
 * and privileges are dealt with where it ran.
 *
 * Logical decoding shows a TRUNCATE in every region.  It does not show rows that
 * a statement has put into a table as a whole: where the statement ran, they are
 * written into a new file, which is not decoded either.
 *
 * Keys: the callers hold a lock on the relation that keeps writers out until
 * the end of the transaction, and COMMIT makes a key of it.  So the rows need
 * no keys.
 *
 * Runs in backends, and in the apply worker.  Every function may raise ERROR.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/genam.h"
#include "access/heapam_xlog.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xloginsert.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/matview.h"
#include "commands/sequence.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "pgstat.h"
#include "storage/lmgr.h"
#include "storage/predicate.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* ---- in the region of the transaction ---- */

/* Records that the relation is empty now; flags are OT_EMPTIED_... */
void
ot_contents_emptied(Oid relid, uint8 flags)
{
	StringInfo	ops = ot_write_set_append();

	ot_put_u8(ops, 'E');
	ot_put_str(ops, get_namespace_name(get_rel_namespace(relid)));
	ot_put_str(ops, get_rel_name(relid));
	ot_put_u8(ops, flags);
	ot_write_set_looks_names_up();
	ot_write_set_check_size();
}

/* Records the rows that the relation contains now as all that it contains. */
void
ot_contents_note(Oid relid, uint8 flags)
{
	Relation	rel;
	Snapshot	snapshot;
	TableScanDesc scan;
	TupleTableSlot *slot;
	OtUserContext owner;

	CommandCounterIncrement();
	rel = relation_open(relid, NoLock);
	ot_contents_emptied(relid, flags);
	ot_all_writes_seen(rel);
	/*
	 * Functions of its indexes run as its owner, as in the statement that has
	 * filled it: here, and in the other regions, which are told the role that
	 * recorded the rows.  The role that runs REFRESH may be a superuser, for whom
	 * they must leave no setting behind.
	 */
	ot_user_enter(&owner, rel->rd_rel->relowner, true);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = table_beginscan(rel, snapshot, 0, NULL);
	slot = table_slot_create(rel, NULL);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		ot_capture_contents(rel, slot);
	}
	ExecDropSingleTupleTableSlot(slot);
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	ot_user_leave(&owner);
	relation_close(rel, NoLock);
}

/* Records a materialized view that has just been filled, or emptied. */
void
ot_contents_note_matview(Oid relid, bool concurrently)
{
	Relation	rel;
	bool		populated;

	CommandCounterIncrement();
	rel = relation_open(relid, NoLock);
	populated = RelationIsPopulated(rel);
	relation_close(rel, NoLock);
	if (populated)
		ot_contents_note(relid, OT_EMPTIED_POPULATED |
						 (concurrently ? OT_EMPTIED_BY_ROWS : 0));
	else
		ot_contents_emptied(relid, 0);
}

/* ---- in the apply worker ---- */

/*
 * Gives the relation's indexes new files, without rows, as reindex_relation() does
 * in TRUNCATE.  That would simplify their expressions, and call functions of users
 * for it, where they could do what they do not do in the region of the TRUNCATE; for
 * no rows there is nothing to compute.
 */
static void
contents_empty_indexes(Relation rel)
{
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(lc), AccessExclusiveLock);

		TransferPredicateLocksToHeapRelation(index);
		OT_SET_NEW_FILE(index);
		index_build(rel, index, BuildDummyIndexInfo(index), true, false);
		/* those that compare values stay as they are, for no comparison was made */
		if (!index->rd_index->indisvalid && !index->rd_index->indisunique && !index->rd_index->indisexclusion)
		{
			if (!index->rd_index->indisready)
			{
				index_set_state_flags(lfirst_oid(lc), INDEX_CREATE_SET_READY);
				CommandCounterIncrement();
			}
			index_set_state_flags(lfirst_oid(lc), INDEX_CREATE_SET_VALID);
			CacheInvalidateRelcache(rel);
		}
		index_close(index, NoLock);
		CommandCounterIncrement();
	}
}

/* Empties the relation as TRUNCATE does, without its checks and triggers. */
static void
contents_give_new_file(Relation rel)
{
	OT_SET_NEW_FILE(rel);
	contents_empty_indexes(rel);
	if (OidIsValid(rel->rd_rel->reltoastrelid))
	{
		Relation	toast = relation_open(rel->rd_rel->reltoastrelid, AccessExclusiveLock);

		OT_SET_NEW_FILE(toast);
		contents_empty_indexes(toast);
		relation_close(toast, NoLock);
	}
	pgstat_count_truncate(rel);
}

/* Empties the relation row by row: readers go on and see the old rows. */
static void
contents_delete_rows(Relation rel)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);
	TupleTableSlot *slot = table_slot_create(rel, NULL);

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		simple_table_tuple_delete(rel, &slot->tts_tid, snapshot);
	}
	ExecDropSingleTupleTableSlot(slot);
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
}

static void
contents_restart_sequences(Oid relid)
{
	ListCell   *lc;

	foreach(lc, getOwnedSequences(relid))
	{
		LockRelationOid(lfirst_oid(lc), AccessExclusiveLock);
		ResetSequence(lfirst_oid(lc));
	}
}

/*
 * The region's own rows are about to be replaced by those of another region.
 * Nobody is asked once that is decided, but before, while this can be the error
 * of the statement's COMMIT.
 */
static void
contents_check_own_rows(Relation rel)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	bool		any = table_scan_getnextslot(scan, ForwardScanDirection, slot);

	ExecDropSingleTupleTableSlot(slot);
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	if (any)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has rows of its own in region \"%s\"",
						RelationGetRelationName(rel), ot_region),
				 errdetail("The statement would replace them by the rows of the region where it runs."),
				 errhint("Remove them in region \"%s\" first, after copying those that are to be kept.",
						 ot_region)));
}

/*
 * The tables that a TRUNCATE has emptied so far.  Logical decoding shows them
 * together, as a subscriber with foreign keys needs them.
 */
static List *truncated = NIL;

/* Called before each write set. */
void
ot_contents_apply_begin(void)
{
	truncated = NIL;
}

/* Writes what TRUNCATE itself writes for logical decoding. */
static void
contents_log_truncate(uint8 flags)
{
	xl_heap_truncate record = {.dbId = MyDatabaseId, .nrelids = list_length(truncated)};
	Oid		   *relids = palloc(sizeof(Oid) * list_length(truncated));

	if (flags & OT_EMPTIED_CASCADE)
		record.flags |= XLH_TRUNCATE_CASCADE;
	if (flags & OT_EMPTIED_RESTART)
		record.flags |= XLH_TRUNCATE_RESTART_SEQS;
	for (int i = 0; i < list_length(truncated); i++)
		relids[i] = list_nth_oid(truncated, i);
	XLogBeginInsert();
	XLogRegisterData((char *) &record, SizeOfHeapTruncate);
	XLogRegisterData((char *) relids, sizeof(Oid) * list_length(truncated));
	XLogSetRecordFlags(XLOG_INCLUDE_ORIGIN);
	(void) XLogInsert(RM_HEAP_ID, XLOG_HEAP_TRUNCATE);
	pfree(relids);
}

/* Applies an 'E' operation; r is after the op byte. */
void
ot_contents_apply_emptied(OtReader *r)
{
	char	   *schema = ot_get_str(r);
	char	   *name = ot_get_str(r);
	uint8		flags = ot_get_u8(r);
	LOCKMODE	lockmode = flags & OT_EMPTIED_BY_ROWS ? ExclusiveLock : AccessExclusiveLock;
	Oid			relid = RangeVarGetRelid(makeRangeVar(schema, name, -1), lockmode, true);
	Relation	rel;

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table \"%s.%s\" does not exist in region \"%s\"", schema, name, ot_region),
				 errhint("This region differs from the others; compare them with onetrip check.")));
	rel = relation_open(relid, NoLock);
	if ((flags & OT_EMPTIED_OWN) && ot_is_rehearsing)
		contents_check_own_rows(rel);
	switch (rel->rd_rel->relkind)
	{
		case RELKIND_RELATION:
		case RELKIND_MATVIEW:
			if (flags & OT_EMPTIED_BY_ROWS)
			{
				contents_delete_rows(rel);
				break;
			}
			contents_give_new_file(rel);
			if (rel->rd_rel->relkind == RELKIND_MATVIEW)
				SetMatViewPopulatedState(rel, (flags & OT_EMPTIED_POPULATED) != 0);
			break;
		case RELKIND_PARTITIONED_TABLE:
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_WRONG_OBJECT_TYPE),
					 errmsg("\"%s.%s\" is not a table in region \"%s\"", schema, name, ot_region),
					 errhint("This region differs from the others; compare them with onetrip check.")));
	}
	if (flags & OT_EMPTIED_RESTART)
		contents_restart_sequences(relid);
	relation_close(rel, NoLock);
	if ((flags & OT_EMPTIED_TRUNCATED) && XLogLogicalInfoActive())
	{
		MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

		truncated = lappend_oid(truncated, relid);
		MemoryContextSwitchTo(old);
		if (flags & OT_EMPTIED_LAST)
		{
			contents_log_truncate(flags);
			truncated = NIL;
		}
	}
	CommandCounterIncrement();
	pfree(schema);
	pfree(name);
}
