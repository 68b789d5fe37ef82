/*-------------------------------------------------------------------------
 *
 * reads.c
 *	  What a SERIALIZABLE transaction has read.
 *
 * Such a transaction commits only if what it has read is still so at its place
 * in the log, so it comes out as if it had run there as a whole.  It takes keys
 * of what it has read, with the last entry that its snapshot shows as their
 * base.  The certifier checks them like any other, and does not take them: a
 * reader is in nobody's way.  A transaction that has only read proposes nothing,
 * since its snapshot is a state between two entries.
 *
 *	how it reads					key
 *	unique index, all columns		the value, as SHARE: no other transaction may
 *	by =, or = ANY of an array		have inserted, deleted or changed the row that
 *									has it, or, if the index is not the identity
 *									index, have given it to a row or taken it away
 *									from one; and then the identity of the row
 *									that was found
 *	anything else					the table, as NO KEY UPDATE: no other
 *									transaction may have written to it
 *
 * A row that keeps another one out of a unique index is read, by its identity if
 * the statement said ON CONFLICT, else by the value: the keys of what a savepoint
 * changed become keys of reads when it is rolled back.  If a user's function computes
 * the value, the table is read, since who deletes the row has no key of the value.
 *
 * A row that is only looked for by its identity to be locked with FOR KEY SHARE,
 * as the checks of foreign keys do, is not read if it is found: its lock says
 * that it is to stay.
 *
 * The definition of each relation that it has used is read as well, as SHARE of
 * the table: no other transaction may have changed it, or truncated the table, or
 * given it another child.
 *
 * Scans are noticed in the access method, where none can be missed.  But an
 * index scan is not known there to be one for a single row, nor is one that
 * finds nothing, so these are noticed in the executor: its nodes for index scans
 * are wrapped.  The wrapper begins the scan itself, and the access method knows
 * it by its fetch descriptor.  C code that scans an index itself has read the
 * table if it finds anything.
 *
 * PostgreSQL's own checks (predicate.c) run as well, among the transactions of
 * this region, and may abort one of them earlier.
 *
 * Parallel workers could not say what they have read, so there are none.
 *
 * Runs in backends.  Everything is in one memory context below
 * TopTransactionContext, and belongs to the transaction with that lxid.  Errors:
 * 0A000 while the cluster's format level is too low for such keys.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/genam.h"
#include "access/nbtree.h"
#include "access/parallel.h"
#include "access/relscan.h"
#include "access/sysattr.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/partition.h"
#include "catalog/pg_am.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

/* The cluster's format level from which on there are keys of reads. */
#define LEVEL 1
/* Beyond that, the transaction is taken to have read the whole table. */
#define ROWS_MAX 1000

typedef struct ReadTable
{
	Oid			relid;			/* hash key, first */
	OtHash		hash;			/* by the name that it had then */
	bool		whole;
	int			nrows;
	Oid			reader;			/* who read from it first; InvalidOid: nobody has */
	bool		several_readers;
} ReadTable;

typedef struct ReadRow
{
	uint64		hash;			/* hash key, first */
	Oid			relid;
} ReadRow;

/* An index scan whose rows are noticed as such. */
typedef struct KnownFetch
{
	struct IndexFetchTableData *fetch;	/* hash key, first */
	bool		by_identity;
	bool		noted;			/* since the scan began, or began anew */
} KnownFetch;

static struct
{
	LocalTransactionId lxid;	/* whose reads these are */
	MemoryContext context;
	OtLogIndex	base;
	HTAB	   *tables;
	HTAB	   *rows;
	HTAB	   *fetches;		/* KnownFetch */
}			reads;

static ExecutorStart_hook_type prev_executor_start = NULL;
static ExecProcNodeMtd exec_index_scan = NULL;
static ExecProcNodeMtd exec_index_only_scan = NULL;

static bool
reads_are_wanted(void)
{
	return unlikely(XactIsoLevel == XACT_SERIALIZABLE) && ot_capturing() && !IsParallelWorker();
}

/* ---- what was read ---- */

static HTAB *
reads_create(const char *name, Size key, Size entry)
{
	HASHCTL		control = {.keysize = key, .entrysize = entry, .hcxt = reads.context};

	return hash_create(name, 32, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* The first read of the transaction: what is there belongs to an earlier one. */
static void
reads_begin(void)
{
	if (ot_format_level < LEVEL)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("isolation level SERIALIZABLE is not available on onetrip tables before format level %d", LEVEL),
				 errdetail("Conflicts with readers in other regions would go unseen."),
				 errhint("Finish the upgrade (onetrip upgrade --finish), or use REPEATABLE READ.")));
	ot_position_attach();
	reads.context = AllocSetContextCreate(TopTransactionContext, "onetrip reads", ALLOCSET_DEFAULT_SIZES);
	reads.base = ot_position_shown_by(GetTransactionSnapshot());
	reads.tables = reads_create("onetrip tables read", sizeof(Oid), sizeof(ReadTable));
	reads.rows = reads_create("onetrip rows read", sizeof(uint64), sizeof(ReadRow));
	reads.fetches = reads_create("onetrip index scans", sizeof(void *), sizeof(KnownFetch));
	reads.lxid = OT_LXID(MyProc);
}

static inline bool
reads_have_begun(void)
{
	return reads.lxid == OT_LXID(MyProc) && reads.lxid != InvalidLocalTransactionId;
}

static ReadTable *
reads_table(Oid relid)
{
	ReadTable  *table;
	bool		found;

	if (!reads_have_begun())
		reads_begin();
	table = hash_search(reads.tables, &relid, HASH_FIND, NULL);
	if (table == NULL)
	{
		/* this may read catalogs, and so come here again */
		OtHash		hash = ot_hash_relation(relid);

		table = hash_search(reads.tables, &relid, HASH_ENTER, &found);
		if (!found)
		{
			memset((char *) table + sizeof(Oid), 0, sizeof(ReadTable) - sizeof(Oid));
			table->hash = hash;
		}
	}
	return table;
}

/* The same, for a table from which something is read. */
static ReadTable *
reads_table_read(Oid relid)
{
	ReadTable  *table = reads_table(relid);

	if (!OidIsValid(table->reader))
		table->reader = GetUserId();
	else if (table->reader != GetUserId())
		table->several_readers = true;
	return table;
}

/* Are changes of this relation in the log?  The extension's own tables do not count. */
static bool
reads_are_certified(Relation rel)
{
	return rel->rd_rel->relpersistence == RELPERSISTENCE_PERMANENT && ot_is_onetrip_table(rel) &&
		!OidIsValid(rel->rd_rel->relrewrite);
}

void
ot_reads_note_table(Relation rel)
{
	if (reads_are_wanted() && reads_are_certified(rel))
		reads_table_read(RelationGetRelid(rel))->whole = true;
}

/*
 * A row is put in.  Whether that succeeds says something of the table, also if it
 * is rolled back to a savepoint, and COPY is no query.
 */
void
ot_reads_note_insert(Relation rel)
{
	if (reads_are_wanted() && reads_are_certified(rel) && ot_format_level >= LEVEL)
		(void) reads_table(RelationGetRelid(rel));
}

static void
reads_note_row(Oid relid, OtHash hash)
{
	ReadTable  *table = reads_table_read(relid);
	ReadRow    *row;
	bool		found;

	if (table->whole)
		return;
	row = hash_search(reads.rows, &hash.value, HASH_ENTER, &found);
	row->relid = relid;
	if (!found && ++table->nrows > ROWS_MAX)
		table->whole = true;
}

/*
 * Notes as read whether any row has this value: an INSERT ... ON CONFLICT that fails
 * because one has tells its transaction so, if that catches the error.
 */
void
ot_reads_note_value(Relation rel, OtHash hash)
{
	if (reads_are_wanted() && reads_are_certified(rel) && ot_format_level >= LEVEL)
		reads_note_row(RelationGetRelid(rel), hash);
}

/*
 * A key that was taken in a savepoint which is rolled back.  The transaction may
 * still know from it what was there, as when it catches a violation of a unique
 * constraint.
 */
void
ot_reads_note_rolled_back(OtHash hash, Oid relid)
{
	ReadRow    *row;

	if (!reads_are_wanted() || !OidIsValid(relid) || !FirstSnapshotSet || ot_format_level < LEVEL)
		return;
	if (!reads_have_begun())
		reads_begin();
	/* catalogs cannot be read now, so this does without the table */
	row = hash_search(reads.rows, &hash.value, HASH_ENTER, NULL);
	row->relid = relid;
}

/* What each key of what was read is handed to. */
typedef void (*ReadKeyCallback) (OtHash hash, OtKeyMode mode, Oid relid, bool of_table, void *context);

static void
reads_for_each(ReadKeyCallback callback, void *context)
{
	HASH_SEQ_STATUS status;
	ReadTable  *table;
	ReadRow    *row;

	if (likely(!reads_have_begun()))
		return;
	hash_seq_init(&status, reads.tables);
	while ((table = hash_seq_search(&status)) != NULL)
		callback(table->hash, table->whole ? OT_NO_KEY_UPDATE : OT_SHARE, table->relid, true, context);
	hash_seq_init(&status, reads.rows);
	while ((row = hash_seq_search(&status)) != NULL)
	{
		OtHash		hash = {row->hash};

		table = hash_search(reads.tables, &row->relid, HASH_FIND, NULL);
		if (table == NULL || !table->whole)
			callback(hash, OT_SHARE, row->relid, false, context);
	}
}

static void
reads_take_key(OtHash hash, OtKeyMode mode, Oid relid, bool of_table, void *context)
{
	ot_write_set_read_key(hash, mode, reads.base, relid);
}

/* May this role keep writers away from the table, as by LOCK TABLE? */
static bool
reads_may_hold(Oid relid, Oid role)
{
	const AclMode any = ACL_UPDATE | ACL_DELETE | ACL_TRUNCATE;
	List	   *ancestors;
	ListCell   *lc;

	if (pg_class_aclcheck(relid, role, any) == ACLCHECK_OK)
		return true;
	ancestors = get_rel_relispartition(relid) ? get_partition_ancestors(relid) : NIL;
	foreach(lc, ancestors)
	{
		if (pg_class_aclcheck(lfirst_oid(lc), role, any) == ACLCHECK_OK)
			return true;
	}
	return false;
}

/*
 * What a prepared transaction has read is kept as it is until it is ended, so
 * who has read it must be a role that could lock these tables.  Raises ERROR if
 * not.  What the check of a foreign key reads, the table's owner has read.
 */
void
ot_reads_check_may_hold(void)
{
	HASH_SEQ_STATUS status;
	ReadTable  *table;

	if (likely(!reads_have_begun()))
		return;
	hash_seq_init(&status, reads.tables);
	while ((table = hash_seq_search(&status)) != NULL)
	{
		char	   *name = get_rel_name(table->relid);

		if (name != NULL && OidIsValid(table->reader) &&
			(!reads_may_hold(table->relid, table->reader) ||
			 (table->several_readers && !reads_may_hold(table->relid, GetUserId()))))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("cannot PREPARE a SERIALIZABLE transaction that has read table \"%s\"", name),
					 errdetail("Nobody could change what it has read until it is ended, and role \"%s\" may not keep writers away from that table.",
							   GetUserNameFromId(reads_may_hold(table->relid, table->reader) ? GetUserId() : table->reader, false)),
					 errhint("Use COMMIT or REPEATABLE READ, or grant the role UPDATE, DELETE or TRUNCATE on the table.")));
	}
}

/* Makes keys of what was read.  To be called once, at PRE_COMMIT. */
void
ot_reads_take_keys(void)
{
	reads_for_each(reads_take_key, NULL);
}

static void
reads_put_key(OtHash hash, OtKeyMode mode, Oid relid, bool of_table, void *context)
{
	ReturnSetInfo *result = context;
	Datum		values[4];
	bool		nulls[4] = {0};

	/* the definition of what was used is not shown */
	if (of_table && mode == OT_SHARE)
		return;
	values[0] = ObjectIdGetDatum(relid);
	values[1] = CStringGetTextDatum(of_table ? "READ TABLE" : "READ ROW");
	values[2] = Int64GetDatum((int64) ot_hash_to_show(hash.value));
	values[3] = Int64GetDatum((int64) reads.base.value);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/* Appends what onetrip.pending_keys() shows of it. */
void
ot_reads_put_pending(ReturnSetInfo *result)
{
	reads_for_each(reads_put_key, result);
}

/* ---- index scans ---- */

/* Its address may be that of one that is gone. */
void
ot_reads_fetch_begun(struct IndexFetchTableData *fetch)
{
	if (reads_are_wanted() && reads_have_begun())
		(void) hash_search(reads.fetches, &fetch, HASH_REMOVE, NULL);
}

/*
 * An index scan has fetched a row, or, if slot is NULL, has come upon one that
 * its snapshot does not show.
 */
void
ot_reads_fetched(struct IndexFetchTableData *fetch, TupleTableSlot *slot)
{
	KnownFetch *known;
	OtRelInfo  *info;
	OtHash		hash;

	if (!reads_are_wanted() || !reads_are_certified(fetch->rel))
		return;
	known = reads_have_begun() ? hash_search(reads.fetches, &fetch, HASH_FIND, NULL) : NULL;
	if (known == NULL)
		reads_table_read(RelationGetRelid(fetch->rel))->whole = true;
	if (known == NULL || known->by_identity || slot == NULL)
		return;
	info = ot_rel_info(fetch->rel);
	if (ot_capture_identity_hash(info, slot, &hash))
		reads_note_row(RelationGetRelid(fetch->rel), hash);
}

/*
 * A row with a value that a new row was to have: whoever has said ON CONFLICT
 * knows that it is there.
 *
 * The index itself looks as well, while it holds a lock on its page, where
 * nothing can be looked up; but then the new row has its keys already.
 */
void
ot_reads_found_in_the_way(Relation rel, TupleTableSlot *slot)
{
	OtHash		hash;
	bool		isnull;

	if (InterruptHoldoffCount > 0 || !reads_are_wanted() || !reads_are_certified(rel) ||
		TransactionIdIsCurrentTransactionId(DatumGetTransactionId(slot_getsysattr(slot, MinTransactionIdAttributeNumber,
																				  &isnull))))
		return;
	if (!ot_rel_info_is_being_built(rel) && ot_capture_identity_hash(ot_rel_info(rel), slot, &hash))
		reads_note_row(RelationGetRelid(rel), hash);
	else
		reads_table_read(RelationGetRelid(rel))->whole = true;
}

/* An index scan begins anew, perhaps with other values. */
void
ot_reads_fetch_reset(struct IndexFetchTableData *fetch)
{
	KnownFetch *known = reads_have_begun() ? hash_search(reads.fetches, &fetch, HASH_FIND, NULL) : NULL;

	if (known != NULL)
		known->noted = false;
}

/* The keys of an index scan for single rows. */
typedef struct PointScan
{
	Relation	rel;
	OtIndex    *index;
	bool		by_identity;
	ScanKey		keys;			/* one for each column, in their order */
	ScanKey		array;			/* the one that has several values, or NULL */
	Oid		   *types;			/* of the index's columns */
} PointScan;

static bool
reads_is_integer(Oid type)
{
	return type == INT2OID || type == INT4OID || type == INT8OID;
}

/* Is this scan one for single rows, by a unique index? */
static bool
reads_is_point_scan(PointScan *scan, Relation rel, Relation index, ScanKey keys, int nkeys, bool index_only)
{
	OtRelInfo  *info;
	int			i = 0;

	if (index->rd_rel->relam != BTREE_AM_OID)
		return false;
	if (ot_rel_info_is_being_built(rel))
		return false;
	info = ot_rel_info(rel);
	while (i < info->nindexes && info->indexes[i].oid != RelationGetRelid(index))
		i++;
	if (info->identity < 0 || i == info->nindexes || info->indexes[i].computed || info->indexes[i].exclusion ||
		nkeys != info->indexes[i].nkeys)
		return false;
	memset(scan, 0, sizeof(*scan));
	scan->rel = rel;
	scan->index = &info->indexes[i];
	scan->by_identity = i == info->identity;
	scan->keys = keys;
	scan->types = index->rd_opcintype;
	/*
	 * What else such an index has of the row, or a value that is equal and looks
	 * otherwise, may change without its key.
	 */
	if (index_only && !scan->by_identity && !_bt_allequalimage(index, false))
		return false;
	for (i = 0; i < nkeys; i++)
	{
		if (keys[i].sk_attno != i + 1 || keys[i].sk_strategy != BTEqualStrategyNumber ||
			(keys[i].sk_flags & ~(SK_ISNULL | SK_SEARCHARRAY)) != 0)
			return false;
		if (OidIsValid(keys[i].sk_subtype) && keys[i].sk_subtype != scan->types[i] &&
			!(reads_is_integer(keys[i].sk_subtype) && reads_is_integer(scan->types[i])))
			return false;
		if ((keys[i].sk_flags & SK_SEARCHARRAY) == 0)
			continue;
		if (scan->array != NULL)
			return false;
		scan->array = &keys[i];
	}
	return true;
}

/* Makes an integer one of another length; false: it has no place there. */
static bool
reads_fit_integer(Datum *value, Oid from, Oid to)
{
	int64		number;

	if (from == to || !OidIsValid(from) || !reads_is_integer(to))
		return true;
	number = from == INT2OID ? DatumGetInt16(*value) :
		from == INT4OID ? DatumGetInt32(*value) : DatumGetInt64(*value);
	if (to == INT8OID)
		*value = Int64GetDatum(number);
	else if (to == INT4OID && number >= PG_INT32_MIN && number <= PG_INT32_MAX)
		*value = Int32GetDatum((int32) number);
	else if (to == INT2OID && number >= PG_INT16_MIN && number <= PG_INT16_MAX)
		*value = Int16GetDatum((int16) number);
	else
		return false;
	return true;
}

/* Notes the row with these values; there is none if one of them is NULL or does not fit. */
static void
reads_note_values(const PointScan *scan, Datum element)
{
	Datum		values[INDEX_MAX_KEYS];
	OtHash		hash;

	for (int i = 0; i < scan->index->nkeys; i++)
	{
		ScanKey		key = &scan->keys[i];

		if (key != scan->array && (key->sk_flags & SK_ISNULL))
			return;
		values[i] = key == scan->array ? element : key->sk_argument;
		if (!reads_fit_integer(&values[i], key->sk_subtype, scan->types[i]))
			return;
	}
	if (ot_capture_values_hash(scan->index, values, &hash))
		reads_note_row(RelationGetRelid(scan->rel), hash);
}

static void
reads_note_point_scan(const PointScan *scan)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "onetrip rows to be read",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);

	if (scan->array == NULL)
		reads_note_values(scan, (Datum) 0);
	else if ((scan->array->sk_flags & SK_ISNULL) == 0)
	{
		ArrayType  *values = DatumGetArrayTypeP(scan->array->sk_argument);
		Oid			type = ARR_ELEMTYPE(values);
		int16		length;
		bool		by_value;
		char		align;
		Datum	   *elements;
		bool	   *nulls;
		int			count;

		get_typlenbyvalalign(type, &length, &by_value, &align);
		deconstruct_array(values, type, length, by_value, align, &elements, &nulls, &count);
		for (int i = 0; i < count; i++)
		{
			if (!nulls[i])
				reads_note_values(scan, elements[i]);
		}
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

static IndexScanDesc
reads_begin_point_scan(const PointScan *scan, Relation index, Snapshot snapshot, bool index_only)
{
	IndexScanDesc begun = OT_INDEX_BEGINSCAN(scan->rel, index, snapshot, scan->index->nkeys);
	struct IndexFetchTableData *fetch = begun->xs_heapfetch;
	KnownFetch *known;

	if (!reads_have_begun())
		reads_begin();
	known = hash_search(reads.fetches, &fetch, HASH_ENTER, NULL);
	known->by_identity = scan->by_identity;
	known->noted = false;
	begun->xs_want_itup = index_only;
	index_rescan(begun, scan->keys, scan->index->nkeys, NULL, 0);
	return begun;
}

/* Notes what the scan looks for, once each time that it begins. */
static void
reads_note_once(const PointScan *scan, IndexScanDesc begun)
{
	struct IndexFetchTableData *fetch = begun->xs_heapfetch;
	KnownFetch *known = hash_search(reads.fetches, &fetch, HASH_FIND, NULL);

	if (known != NULL && known->noted)
		return;
	reads_note_point_scan(scan);
	if (known != NULL)
		known->noted = true;
}

/*
 * In place of ExecIndexScan(): notes what it is about to read.  `only_locks`: a
 * row that it finds is not read.
 */
static TupleTableSlot *
reads_index_scan(IndexScanState *node, bool only_locks)
{
	PlanState  *state = &node->ss.ps;
	Relation	rel = node->ss.ss_currentRelation;
	PointScan	scan;
	TupleTableSlot *slot;

	if (!reads_is_point_scan(&scan, rel, node->iss_RelationDesc, node->iss_ScanKeys, node->iss_NumScanKeys, false))
	{
		ot_reads_note_table(rel);
		return exec_index_scan(state);
	}
	/* as ExecIndexScan() and IndexNext() begin */
	if (node->iss_NumRuntimeKeys != 0 && !node->iss_RuntimeKeysReady)
		ExecReScan(state);
	if (node->iss_ScanDesc == NULL)
		node->iss_ScanDesc = reads_begin_point_scan(&scan, node->iss_RelationDesc, state->state->es_snapshot, false);
	only_locks = only_locks && scan.by_identity;
	if (!only_locks)
		reads_note_once(&scan, node->iss_ScanDesc);
	slot = exec_index_scan(state);
	if (only_locks && TupIsNull(slot))
		reads_note_point_scan(&scan);
	return slot;
}

static TupleTableSlot *
reads_exec_index_scan(PlanState *state)
{
	return reads_index_scan(castNode(IndexScanState, state), false);
}

static TupleTableSlot *
reads_exec_locking_index_scan(PlanState *state)
{
	return reads_index_scan(castNode(IndexScanState, state), true);
}

/* In place of ExecIndexOnlyScan(), likewise. */
static TupleTableSlot *
reads_exec_index_only_scan(PlanState *state)
{
	IndexOnlyScanState *node = castNode(IndexOnlyScanState, state);
	Relation	rel = node->ss.ss_currentRelation;
	PointScan	scan;

	if (!reads_is_point_scan(&scan, rel, node->ioss_RelationDesc, node->ioss_ScanKeys, node->ioss_NumScanKeys, true))
	{
		ot_reads_note_table(rel);
		return exec_index_only_scan(state);
	}
	if (node->ioss_NumRuntimeKeys != 0 && !node->ioss_RuntimeKeysReady)
		ExecReScan(state);
	if (node->ioss_ScanDesc == NULL)
	{
		node->ioss_ScanDesc = reads_begin_point_scan(&scan, node->ioss_RelationDesc, state->state->es_snapshot, true);
		node->ioss_VMBuffer = InvalidBuffer;
	}
	reads_note_once(&scan, node->ioss_ScanDesc);
	return exec_index_only_scan(state);
}

/* ---- the executor ---- */

/*
 * SELECT of a constant from one table, by an index alone, FOR KEY SHARE: it
 * tells nothing of a row but that it is there, and locks it, however long that
 * takes.
 */
static bool
reads_only_locks(const PlannedStmt *stmt)
{
	Plan	   *plan = stmt->planTree;
	PlanRowMark *lock;
	ListCell   *lc;

	if (stmt->commandType != CMD_SELECT || list_length(stmt->rtable) != 1 || list_length(stmt->rowMarks) != 1)
		return false;
	lock = linitial_node(PlanRowMark, stmt->rowMarks);
	if (lock->strength != LCS_FORKEYSHARE || lock->waitPolicy != LockWaitBlock ||
		!IsA(plan, LockRows) || !IsA(outerPlan(plan), IndexScan) || outerPlan(plan)->qual != NIL)
		return false;
	foreach(lc, plan->targetlist)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, lc);

		/* LockRows passes on what the scan computes */
		if (!entry->resjunk)
		{
			TargetEntry *computed = list_nth_node(TargetEntry, outerPlan(plan)->targetlist, entry->resno - 1);

			if (!IsA(computed->expr, Const))
				return false;
		}
	}
	return true;
}

/* Puts our functions in place of those of the nodes that scan indexes. */
static bool
reads_wrap_node(PlanState *state, void *only_locks)
{
	if (state == NULL)
		return false;
	/* A subplan that several nodes share is visited for each of them. */
	if (state->ExecProcNodeReal == reads_exec_index_scan ||
		state->ExecProcNodeReal == reads_exec_locking_index_scan ||
		state->ExecProcNodeReal == reads_exec_index_only_scan)
		return false;
	if (IsA(state, IndexScanState) && reads_are_certified(((ScanState *) state)->ss_currentRelation))
	{
		exec_index_scan = state->ExecProcNodeReal;
		ExecSetExecProcNode(state, *(bool *) only_locks ? reads_exec_locking_index_scan : reads_exec_index_scan);
	}
	else if (IsA(state, IndexOnlyScanState) && reads_are_certified(((ScanState *) state)->ss_currentRelation))
	{
		exec_index_only_scan = state->ExecProcNodeReal;
		ExecSetExecProcNode(state, reads_exec_index_only_scan);
	}
	return planstate_tree_walker(state, reads_wrap_node, only_locks);
}

/*
 * The relations that a plan uses, with views and the parents of what it scans:
 * their definitions are read.
 */
static void
reads_note_used(const PlannedStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->relationOids)
	{
		Oid			relid = lfirst_oid(lc);
		HeapTuple	tuple;
		Form_pg_class form;
		bool		counts;

		if (relid < FirstNormalObjectId || hash_search(reads.tables, &relid, HASH_FIND, NULL) != NULL)
			continue;
		tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
		if (!HeapTupleIsValid(tuple))
			continue;
		form = (Form_pg_class) GETSTRUCT(tuple);
		counts = form->relpersistence == RELPERSISTENCE_PERMANENT && !OidIsValid(form->relrewrite) &&
			(form->relkind == RELKIND_RELATION || form->relkind == RELKIND_PARTITIONED_TABLE ||
			 form->relkind == RELKIND_VIEW || form->relkind == RELKIND_MATVIEW);
		ReleaseSysCache(tuple);
		if (counts)
			(void) reads_table(relid);
	}
}

static void
reads_executor_start(QueryDesc *query, int eflags)
{
	bool		wanted = reads_are_wanted() && !(eflags & EXEC_FLAG_EXPLAIN_ONLY);

	ot_large_object_check_update(query->plannedstmt);
	/* early, while it is remembered what the snapshot shows */
	if (unlikely(wanted) && FirstSnapshotSet && !reads_have_begun() && ot_format_level >= LEVEL)
		reads_begin();
	if (unlikely(wanted) && reads_have_begun())
		reads_note_used(query->plannedstmt);
	if (unlikely(wanted) && query->plannedstmt->parallelModeNeeded)
	{
		PlannedStmt *copy = MemoryContextAlloc(GetMemoryChunkContext(query), sizeof(PlannedStmt));

		*copy = *query->plannedstmt;
		copy->parallelModeNeeded = false;
		query->plannedstmt = copy;
	}
	if (prev_executor_start)
		prev_executor_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
	if (unlikely(wanted))
	{
		bool		only_locks = reads_only_locks(query->plannedstmt);

		(void) reads_wrap_node(query->planstate, &only_locks);
	}
}

void
ot_reads_init(void)
{
	prev_executor_start = ExecutorStart_hook;
	ExecutorStart_hook = reads_executor_start;
}
