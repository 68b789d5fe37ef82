/*-------------------------------------------------------------------------
 *
 * apply_row.c
 *	  Applies the row operations of one entry.
 *
 * Rows go in below the level of triggers, constraints and generated columns:
 * all of these ran in the transaction's own region, and what they did is part
 * of the entry.  Running them again would do it twice.
 *
 * A row is found by the identity index.  If an undecided local transaction
 * holds it, that transaction is evicted before the worker waits for it.  The
 * search uses a dirty snapshot, so it also sees rows that are being written.
 *
 * Tables stay open, with their indexes and an index scan, from their first
 * row in the entry to the end of the entry or the next statement of DDL.
 *
 * Runs in the apply worker.  Raises ERROR if a row is missing or a table does
 * not look as it must: this server then differs from the others.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "evict.h"
#include "rel_info.h"
#include "turn.h"

typedef struct OpenTable
{
	char	   *schema;
	char	   *name;
	uint16		natts;
	/* the rest only while open */
	Relation	rel;
	OtRelInfo  *info;
	EState	   *estate;
	ResultRelInfo *result_rel;
	TupleTableSlot *new_row;
	TupleTableSlot *old_row;
	Relation	identity;
	IndexScanDesc scan;
	SnapshotData dirty;
	ScanKeyData keys[INDEX_MAX_KEYS];
} OpenTable;

static OpenTable **tables = NULL;
static int	ntables;
static int	max_tables;
static MemoryContext row_context = NULL;
static MemoryContext rows_context = NULL;

/* Where functions of index expressions look names up; NULL: not told. */
static char *search_path = NULL;

/* Something was written since the last CommandCounterIncrement(). */
static bool written;

void
ot_apply_rows_begin(void)
{
	rows_context = CurrentMemoryContext;
	row_context = AllocSetContextCreate(CurrentMemoryContext, "onetrip applied row",
										ALLOCSET_DEFAULT_SIZES);
	ntables = 0;
	max_tables = 8;
	tables = palloc(sizeof(OpenTable *) * max_tables);
	written = false;
	search_path = NULL;
}

void
ot_apply_search_path(OtReader *r)
{
	search_path = ot_get_str(r);
}

void
ot_apply_relation(OtReader *r)
{
	OpenTable  *table = palloc0(sizeof(OpenTable));

	table->schema = ot_get_str(r);
	table->name = ot_get_str(r);
	table->natts = ot_get_u16(r);
	if (ntables == max_tables)
	{
		max_tables *= 2;
		tables = repalloc(tables, sizeof(OpenTable *) * max_tables);
	}
	tables[ntables++] = table;
}

/* ---- functions of users ---- */

/*
 * An index with expressions or a predicate runs functions, already when it is
 * opened, since they may be inlined or folded; so does the input of a value
 * with a domain in it (info->runs_functions tells of both).  They run not as
 * the superuser that the worker is, but as the table's owner, under the rules
 * of maintenance commands, with the schemas in their search path that they had
 * in the transaction's own region, and may change nothing: nobody would
 * capture it.  An ERROR leaves all that to the end of the transaction.
 */
typedef struct Disguise
{
	Oid			user;
	int			security_context;
	int			nest_level;
	bool		read_only;
} Disguise;

static void
put_on(Disguise *saved, Relation rel)
{
	GetUserIdAndSecContext(&saved->user, &saved->security_context);
	SetUserIdAndSecContext(rel->rd_rel->relowner,
						   saved->security_context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION);
	saved->read_only = XactReadOnly;
	saved->nest_level = NewGUCNestLevel();
	if (search_path)
		(void) set_config_option("search_path", search_path, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	XactReadOnly = true;
}

static void
take_off(Disguise *saved)
{
	XactReadOnly = saved->read_only;
	AtEOXact_GUC(false, saved->nest_level);
	SetUserIdAndSecContext(saved->user, saved->security_context);
}

/* ---- opening and closing ---- */

static void
open_identity(OpenTable *table)
{
	OtIndex    *identity = &table->info->indexes[table->info->identity];

	table->identity = index_open(identity->oid, RowExclusiveLock);
	InitDirtySnapshot(table->dirty);
	table->scan = index_beginscan(table->rel, table->identity, &table->dirty,
								  identity->nkeys, 0);
	for (int i = 0; i < identity->nkeys; i++)
	{
		Oid			type = table->identity->rd_opcintype[i];
		Oid			equality = get_opfamily_member(table->identity->rd_opfamily[i], type, type,
												   BTEqualStrategyNumber);

		if (!OidIsValid(equality))
			elog(ERROR, "index \"%s\" has no equality operator for column %d",
				 RelationGetRelationName(table->identity), i + 1);
		ScanKeyEntryInitialize(&table->keys[i], 0, i + 1, BTEqualStrategyNumber, InvalidOid,
							   table->identity->rd_indcollation[i], get_opcode(equality),
							   (Datum) 0);
	}
}

static void
open_table(OpenTable *table)
{
	MemoryContext old = MemoryContextSwitchTo(rows_context);
	RangeVar   *name = makeRangeVar(table->schema, table->name, -1);
	RangeTblEntry *rte = makeNode(RangeTblEntry);
	Oid			relid = RangeVarGetRelid(name, RowExclusiveLock, true);
	Disguise	disguise;

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table \"%s.%s\" does not exist in region \"%s\"",
						table->schema, table->name, ot_region),
				 errhint("This region differs from the others; compare them with onetrip check.")));
	table->rel = table_open(relid, NoLock);
	if (table->rel->rd_rel->relkind != RELKIND_RELATION || !ot_is_onetrip_table(table->rel))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s.%s\" is not a onetrip table in region \"%s\"",
						table->schema, table->name, ot_region),
				 errhint("This region differs from the others; compare them with onetrip check.")));
	if (RelationGetNumberOfAttributes(table->rel) != table->natts)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("table \"%s.%s\" has %d columns in region \"%s\", the entry has %d",
						table->schema, table->name, RelationGetNumberOfAttributes(table->rel),
						ot_region, table->natts),
				 errhint("This region differs from the others; compare them with onetrip check.")));
	put_on(&disguise, table->rel);
	table->info = ot_rel_info(table->rel);

	table->estate = CreateExecutorState();
	rte->rtekind = RTE_RELATION;
	rte->relid = relid;
	rte->relkind = table->rel->rd_rel->relkind;
	rte->rellockmode = RowExclusiveLock;
	OT_INIT_RANGE_TABLE(table->estate, rte);
	table->result_rel = makeNode(ResultRelInfo);
	InitResultRelInfo(table->result_rel, table->rel, 1, NULL, 0);
	ExecOpenIndices(table->result_rel, false);
	take_off(&disguise);
	table->new_row = MakeSingleTupleTableSlot(RelationGetDescr(table->rel), &TTSOpsVirtual);
	table->old_row = table_slot_create(table->rel, NULL);
	if (table->info->identity >= 0)
		open_identity(table);
	MemoryContextSwitchTo(old);
}

static OpenTable *
get_table(OtReader *r)
{
	uint16		number = ot_get_u16(r);

	if (number >= ntables)
		ereport(ERROR,
				(errcode(OT_ERR_PROTOCOL),
				 errmsg("a write set refers to table %u of %d", number, ntables)));
	if (tables[number]->rel == NULL)
		open_table(tables[number]);
	/* Waits below this level know only a transaction; the evictor names the table. */
	pg_atomic_write_u32(&ot_shared->applying_table, RelationGetRelid(tables[number]->rel));
	return tables[number];
}

/* Closes what is open; the numbers stay. */
void
ot_apply_rows_close(void)
{
	for (int i = 0; i < ntables; i++)
	{
		OpenTable  *table = tables[i];

		if (table->rel == NULL)
			continue;
		if (table->scan)
			index_endscan(table->scan);
		if (table->identity)
			index_close(table->identity, NoLock);
		ExecDropSingleTupleTableSlot(table->new_row);
		ExecDropSingleTupleTableSlot(table->old_row);
		ExecCloseIndices(table->result_rel);
		FreeExecutorState(table->estate);
		table_close(table->rel, NoLock);
		table->rel = NULL;
		table->scan = NULL;
		table->identity = NULL;
	}
}

/* ---- values ---- */

static Datum
receive(OtColumn *column, const char *bytes, uint32 len)
{
	/* Receive functions want a zero behind the value; the buffer has room. */
	char	   *end = unconstify(char *, bytes) + len;
	char		saved = *end;
	StringInfoData buf = {.data = unconstify(char *, bytes), .len = len, .maxlen = len + 1};
	Datum		value;

	*end = '\0';
	value = ReceiveFunctionCall(&column->in, &buf, column->in_param, column->typmod);
	*end = saved;
	if (buf.cursor != (int) len)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
				 errmsg("binary value of %u bytes is too long for its type", len)));
	return value;
}

static void
learn_input(OtColumn *column, OtRelInfo *info)
{
	Oid			function;

	if (column->in_known)
		return;
	if (column->binary)
		getTypeBinaryInputInfo(column->type, &function, &column->in_param);
	else
		getTypeInputInfo(column->type, &function, &column->in_param);
	fmgr_info_cxt(function, &column->in, info->context);
	column->in_known = true;
}

/* Reads one value.  Returns false for an unchanged TOASTed one. */
static bool
get_value(OtReader *r, OtRelInfo *info, OtColumn *column, Datum *value, bool *isnull)
{
	uint8		kind = ot_get_u8(r);
	uint32		len;

	*isnull = true;
	*value = (Datum) 0;
	switch (kind)
	{
		case 'n':
			return true;
		case 'u':
			return false;
		case 'b':
		case 't':
			if ((kind == 'b') != column->binary)
				break;
			learn_input(column, info);
			len = ot_get_u32(r);
			*isnull = false;
			if (kind == 'b')
				*value = receive(column, ot_get_bytes(r, len), len);
			else
				*value = InputFunctionCall(&column->in, pnstrdup(ot_get_bytes(r, len), len),
										   column->in_param, column->typmod);
			return true;
	}
	ereport(ERROR,
			(errcode(OT_ERR_PROTOCOL),
			 errmsg("unexpected value of kind 0x%02x in a write set", kind),
			 errdetail("The column's type is \"%s\".", format_type_be(column->type))));
	return false;
}

/*
 * Reads a row into new_row.  `unchanged` collects the columns that keep their
 * TOASTed value; NULL where there can be none.
 */
static void
get_row(OtReader *r, OpenTable *table, Bitmapset **unchanged)
{
	TupleTableSlot *slot = table->new_row;
	Disguise	disguise;

	if (table->info->runs_functions)
		put_on(&disguise, table->rel);
	ExecClearTuple(slot);
	for (int i = 0; i < table->info->natts; i++)
	{
		OtColumn   *column = &table->info->columns[i];

		slot->tts_values[i] = (Datum) 0;
		slot->tts_isnull[i] = true;
		if (column->dropped)
			continue;
		if (get_value(r, table->info, column, &slot->tts_values[i], &slot->tts_isnull[i]))
			continue;
		if (unchanged == NULL)
			ereport(ERROR,
					(errcode(OT_ERR_PROTOCOL),
					 errmsg("an inserted row refers to an old value")));
		*unchanged = bms_add_member(*unchanged, i);
	}
	ExecStoreVirtualTuple(slot);
	if (table->info->runs_functions)
		take_off(&disguise);
}

/* Reads a key into the scan keys. */
static void
get_key(OtReader *r, OpenTable *table)
{
	OtIndex    *identity = &table->info->indexes[table->info->identity];
	Disguise	disguise;

	if (table->info->runs_functions)
		put_on(&disguise, table->rel);
	for (int i = 0; i < identity->nkeys; i++)
	{
		OtColumn   *column = &table->info->columns[identity->attnums[i] - 1];
		bool		isnull;

		if (!get_value(r, table->info, column, &table->keys[i].sk_argument, &isnull) || isnull)
			ereport(ERROR,
					(errcode(OT_ERR_PROTOCOL),
					 errmsg("a row's key has no value for column %d", i + 1)));
	}
	if (table->info->runs_functions)
		take_off(&disguise);
}

/* ---- finding a row, and getting it ---- */

static void
check_identity(OpenTable *table)
{
	if (table->info->identity < 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s.%s\" has no primary key in region \"%s\"",
						table->schema, table->name, ot_region),
				 errhint("This region differs from the others; compare them with onetrip check.")));
}

/* Finds the row of the scan keys into old_row, past all undecided writers. */
static void
find_row(OpenTable *table)
{
	OtIndex    *identity = &table->info->indexes[table->info->identity];

	for (;;)
	{
		TransactionId writer;
		MemoryContext old;
		bool		found;

		CHECK_FOR_INTERRUPTS();
		/* What the scan allocates as it goes (dead items) lives as long as the scan. */
		old = MemoryContextSwitchTo(rows_context);
		index_rescan(table->scan, table->keys, identity->nkeys, NULL, 0);
		found = index_getnext_slot(table->scan, ForwardScanDirection, table->old_row);
		MemoryContextSwitchTo(old);
		if (!found)
			ereport(ERROR,
					(errcode(ERRCODE_NO_DATA_FOUND),
					 errmsg("row to change is missing in table \"%s.%s\" of region \"%s\"",
							table->schema, table->name, ot_region),
					 errhint("This region differs from the others; compare them with onetrip check.")));
		writer = TransactionIdIsValid(table->dirty.xmin) ?
			table->dirty.xmin : table->dirty.xmax;
		if (!TransactionIdIsValid(writer))
			return;
		ExecClearTuple(table->old_row);
		ot_evict_xid(writer, table->rel);
		XactLockTableWait(writer, NULL, NULL, XLTW_None);
	}
}

/* Evicts whoever holds a row lock on old_row that stands in the way. */
static void
evict_lockers(OpenTable *table, bool key_changes)
{
	BufferHeapTupleTableSlot *slot = (BufferHeapTupleTableSlot *) table->old_row;
	HeapTupleHeader header = slot->base.tuple->t_data;
	TransactionId xmax;
	uint16		infomask;

	LockBuffer(slot->buffer, BUFFER_LOCK_SHARE);
	xmax = HeapTupleHeaderGetRawXmax(header);
	infomask = header->t_infomask;
	LockBuffer(slot->buffer, BUFFER_LOCK_UNLOCK);

	if (!TransactionIdIsValid(xmax) || (infomask & HEAP_XMAX_INVALID))
		return;
	if (infomask & HEAP_XMAX_IS_MULTI)
	{
		MultiXactMember *members;
		int			n = GetMultiXactIdMembers(xmax, &members, false,
											  HEAP_XMAX_IS_LOCKED_ONLY(infomask));

		for (int i = 0; i < n; i++)
		{
			if (members[i].status != MultiXactStatusForKeyShare || key_changes)
				ot_evict_xid(members[i].xid, table->rel);
		}
	}
	else
		ot_evict_xid(xmax, table->rel);
}

/*
 * After one attempt: true if it is done, false to find the row again.  `wait`
 * says whether the attempt was ready to wait for lockers.
 */
static bool
settled(OpenTable *table, TM_Result result, bool key_changes, bool *wait)
{
	switch (result)
	{
		case TM_Ok:
			return true;
		case TM_BeingModified:
		case TM_WouldBlock:
			evict_lockers(table, key_changes);
			*wait = true;
			return false;
		case TM_Updated:
		case TM_Deleted:
			return false;		/* by a local commit in between */
		case TM_Invisible:
		case TM_SelfModified:
			break;
	}
	elog(ERROR, "unexpected result %d of changing a row of table \"%s.%s\"",
		 result, table->schema, table->name);
	return false;
}

/* ---- the operations ---- */

static void
begin_change(void)
{
	if (written)
		CommandCounterIncrement();
	written = true;
}

static void
insert_index_tuples(OpenTable *table, bool update, bool only_summarizing)
{
	Disguise	disguise;

	if (table->result_rel->ri_NumIndices == 0)
		return;
	if (table->info->runs_functions)
		put_on(&disguise, table->rel);
	list_free(OT_INSERT_INDEX_TUPLES(table->result_rel, table->new_row, table->estate,
									 update, only_summarizing));
	if (table->info->runs_functions)
		take_off(&disguise);
}

static void
end_row(OpenTable *table, MemoryContext old)
{
	ResetPerTupleExprContext(table->estate);
	ExecClearTuple(table->new_row);
	ExecClearTuple(table->old_row);
	MemoryContextSwitchTo(old);
	MemoryContextReset(row_context);
}

void
ot_apply_insert(OtReader *r)
{
	OpenTable  *table = get_table(r);
	MemoryContext old = MemoryContextSwitchTo(row_context);

	get_row(r, table, NULL);
	/* A deleted row with the same key must be seen as gone. */
	begin_change();
	simple_table_tuple_insert(table->rel, table->new_row);
	insert_index_tuples(table, false, false);
	end_row(table, old);
}

void
ot_apply_update(OtReader *r)
{
	OpenTable  *table = get_table(r);
	MemoryContext old = MemoryContextSwitchTo(row_context);
	bool		key_changes;
	bool		wait = false;
	Bitmapset  *unchanged = NULL;
	TM_Result	result;
	OtUpdateIndexes update_indexes;

	check_identity(table);
	key_changes = ot_get_u8(r) != 0;
	if (key_changes)
		get_key(r, table);
	get_row(r, table, &unchanged);
	if (!key_changes)
	{
		OtIndex    *identity = &table->info->indexes[table->info->identity];

		for (int i = 0; i < identity->nkeys; i++)
			table->keys[i].sk_argument = table->new_row->tts_values[identity->attnums[i] - 1];
	}

	begin_change();
	do
	{
		int			column = -1;
		TM_FailureData failure;
		LockTupleMode lockmode;

		find_row(table);
		while ((column = bms_next_member(unchanged, column)) >= 0)
			table->new_row->tts_values[column] =
				slot_getattr(table->old_row, column + 1, &table->new_row->tts_isnull[column]);
		result = table_tuple_update(table->rel, &table->old_row->tts_tid, table->new_row,
									GetCurrentCommandId(true), GetActiveSnapshot(),
									InvalidSnapshot, wait, &failure, &lockmode,
									&update_indexes);
	} while (!settled(table, result, key_changes, &wait));

	if (OT_INDEXES_CHANGED(update_indexes))
		insert_index_tuples(table, true, OT_ONLY_SUMMARIZING(update_indexes));
	bms_free(unchanged);
	end_row(table, old);
}

void
ot_apply_delete(OtReader *r)
{
	OpenTable  *table = get_table(r);
	MemoryContext old = MemoryContextSwitchTo(row_context);
	bool		wait = false;
	TM_Result	result;

	check_identity(table);
	get_key(r, table);
	begin_change();
	do
	{
		TM_FailureData failure;

		find_row(table);
		result = table_tuple_delete(table->rel, &table->old_row->tts_tid,
									GetCurrentCommandId(true), GetActiveSnapshot(),
									InvalidSnapshot, wait, &failure, false);
	} while (!settled(table, result, true, &wait));
	end_row(table, old);
}
