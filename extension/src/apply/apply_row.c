/*-------------------------------------------------------------------------
 *
 * apply_row.c
 *	  Applies the row operations of one or several entries.
 *
 * Rows are written below the level of triggers, constraints and generated
 * columns: all of these ran in the transaction's own region, and their effects
 * are part of the entry.  Running them again would apply these effects twice.
 *
 * If an undecided local transaction has locked or changed a row, that
 * transaction is evicted before the worker waits for it (find_row.c).
 *
 * Tables stay open, with their indexes and an index scan, from their first row
 * in the transaction to its end or to the next DDL statement, so that entries
 * that are applied together share them.
 *
 * Where many new rows of one table follow one another, heap gets some of them at
 * once, as from COPY, and their index entries are made after that, row by row in
 * the same order.  Such a batch ends with whatever else comes in the write set.
 *
 * Runs in the apply worker, the arrival worker, and backends that rehearse.  Raises ERROR if a
 * row is missing or a table does not look as it must: this server then differs
 * from the others.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/detoast.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "capture/capture.h"
#include "commit/commit.h"
#include "ddl/ddl.h"
#include "shmem/shmem.h"

typedef struct OpenTable
{
	char	   *schema;
	char	   *name;
	uint16		natts;
	uint32		layout;
	/* the rest is valid only while the table is open */
	Relation	rel;
	OtRelInfo  *info;
	TupleDesc	desc;			/* pinned by given_row: an invalidation may replace rel's */
	EState	   *estate;
	ResultRelInfo *result_rel;
	List	   *unchecked;		/* unique indexes that may get duplicates */
	TupleTableSlot *given_row;	/* a row as it came in the entry */
	TupleTableSlot *new_row;	/* built from parts in the entry, or from changes
								 * and the old row */
	TupleTableSlot *old_row;
	bool		in_batches;		/* may new rows be written many at a time? */
	TupleTableSlot **batch_rows;	/* made as they are needed */
	int			nbatch_rows;
	OtRowFinder finder;
} OpenTable;

typedef struct Tables
{
	OpenTable **list;
	int			count;
	int			max;
} Tables;

static Tables known;			/* all of this transaction, open or not */
static Tables numbered;			/* those of the present write set, by its numbers */
static int	nearlier;			/* how many of `known` are of earlier write sets */
static MemoryContext row_context = NULL;
static MemoryContext rows_context = NULL;

/* Has something been written since the last CommandCounterIncrement()? */
static bool written;

/* Heap changes or deletes a row; still set after an ERROR. */
static bool in_heap;

/* Has an index been taken out of use, so that tables must be opened again? */
static bool open_again;

/*
 * No further entry joins a transaction that has so many tables, since each is
 * locked.
 */
#define KEPT_MAX 64

/*
 * So many new rows of one table, one after another, are written one by one before
 * a batch begins: what has few rows is none the slower for batches.  A batch has
 * no more rows and bytes than one of COPY.
 */
#define BATCH_AFTER 8
#define BATCH_ROWS_MAX 1000
#define BATCH_BYTES_MAX (64 * 1024)

/* New rows that heap does not have yet, in batch_context. */
static struct
{
	OpenTable  *table;			/* of the last rows that were inserted; or NULL */
	int			before;			/* rows of it in sequence that were written one by one */
	int			rows;
	Size		bytes;
}			batch;
static MemoryContext batch_context = NULL;	/* made for the first batch */

static void
apply_row_make_list(Tables *to)
{
	to->count = 0;
	to->max = 8;
	to->list = palloc(sizeof(OpenTable *) * to->max);
}

static void
apply_row_append(Tables *to, OpenTable *table)
{
	if (to->count == to->max)
		to->list = ot_make_room(to->list, &to->max, sizeof(OpenTable *));
	to->list[to->count++] = table;
}

/* Called before the first write set of a transaction. */
void
ot_apply_rows_begin(void)
{
	rows_context = CurrentMemoryContext;
	row_context = AllocSetContextCreate(CurrentMemoryContext, "onetrip applied row",
										ALLOCSET_DEFAULT_SIZES);
	memset(&batch, 0, sizeof(batch));
	batch_context = NULL;
	apply_row_make_list(&known);
	apply_row_make_list(&numbered);
	written = false;
	in_heap = false;
	open_again = false;
}

/*
 * Does heap change a row?  It runs no function then, whatever it adds to the
 * context of an error while it waits for others.
 */
bool
ot_apply_rows_in_heap(void)
{
	return in_heap;
}

/* Does this transaction have so many tables that no further entry may join? */
bool
ot_apply_rows_are_many(void)
{
	return known.count >= KEPT_MAX;
}

/* Called before each write set, which numbers its tables from 0. */
void
ot_apply_rows_begin_write_set(void)
{
	nearlier = known.count;
	numbered.count = 0;
}

/*
 * Returns the same table of an earlier write set, or NULL.  The lock that was
 * taken to open it is still held, and entries that are applied together only
 * change rows, so the name still refers to the same table.
 */
static OpenTable *
apply_row_find_earlier(const char *schema, const char *name, uint16 natts, uint32 layout)
{
	/* usually it has them in the same order as the previous write set */
	for (int i = 0; i < nearlier; i++)
	{
		OpenTable  *table = known.list[(numbered.count + i) % nearlier];

		if (table->natts == natts && table->layout == layout &&
			strcmp(table->name, name) == 0 && strcmp(table->schema, schema) == 0)
			return table;
	}
	return NULL;
}

void
ot_apply_relation(OtReader *r)
{
	char	   *schema = ot_get_str(r);
	char	   *name = ot_get_str(r);
	uint16		natts = ot_get_u16(r);
	uint32		layout = ot_get_u32(r);
	OpenTable  *table = apply_row_find_earlier(schema, name, natts, layout);

	if (table == NULL)
	{
		table = MemoryContextAllocZero(rows_context, sizeof(OpenTable));
		table->schema = MemoryContextStrdup(rows_context, schema);
		table->name = MemoryContextStrdup(rows_context, name);
		table->natts = natts;
		table->layout = layout;
		apply_row_append(&known, table);
	}
	apply_row_append(&numbered, table);
}

/* ---- user functions ---- */

/*
 * An index with expressions or a predicate runs functions, even while it is
 * opened, since calls may be inlined or folded.  The functions do not run as
 * the worker's superuser but as the role that wrote the row, with the settings
 * that it had (session_settings.c), under the rules for maintenance commands.
 * The table's owner would be wrong: with the writer's search_path, it would run
 * the writer's functions.  They must not change anything, since that would not
 * be captured.  After an ERROR, the end of the transaction restores all this.
 *
 * No index runs as the superuser, whether we know of functions in it or not.
 * What those that we know of have set is undone; for them the role is the
 * session user, too.
 */
static void
apply_row_enter_user_context(OtUserContext *saved, Relation rel, bool own_settings)
{
	ot_user_enter(saved,
				  OidIsValid(ot_session_settings_role()) ? ot_session_settings_role() : rel->rd_rel->relowner,
				  own_settings);
}

/* ---- opening and closing ---- */

/*
 * The unique indexes that jobs have built, or are about to, and that are not
 * valid yet.  Their region must not insist that others keep to them.  Nor does the
 * worker wait for a value in them: who is in its way there may have a verdict of
 * commit to come, since who deletes a value that a user's function computes has no
 * key of it (evict.c).
 */
static List *
apply_row_find_unchecked(OpenTable *table)
{
	List	   *jobs = NIL;
	List	   *found = NIL;

	for (int i = 0; i < table->result_rel->ri_NumIndices; i++)
	{
		Relation	index = table->result_rel->ri_IndexRelationDescs[i];

		if (!index->rd_index->indisunique || index->rd_index->indisvalid)
			continue;
		if (jobs == NIL)
			jobs = ot_index_jobs_of(table->rel, true);
		if (list_member_oid(jobs, RelationGetRelid(index)))
			found = lappend_oid(found, RelationGetRelid(index));
	}
	return found;
}

static void
apply_row_open_table(OpenTable *table)
{
	MemoryContext old = MemoryContextSwitchTo(rows_context);
	RangeVar   *name;
	RangeTblEntry *rte;
	Oid			relid;
	OtUserContext context;

	/* what is open is in its context: other operations may close the table again and again */
	table->estate = CreateExecutorState();
	MemoryContextSwitchTo(table->estate->es_query_cxt);
	name = makeRangeVar(table->schema, table->name, -1);
	relid = RangeVarGetRelid(name, RowExclusiveLock, true);
	/* An earlier entry that creates it may still be on its way. */
	if (!OidIsValid(relid) && ot_apply_take_turn())
		relid = RangeVarGetRelid(name, RowExclusiveLock, true);
	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table \"%s.%s\" does not exist in region \"%s\"",
						table->schema, table->name, ot_region),
				 errhint("This region differs from the others; compare them with onetrip check.")));
	table->rel = table_open(relid, NoLock);
	if (table->rel->rd_rel->relkind != RELKIND_MATVIEW &&
		(table->rel->rd_rel->relkind != RELKIND_RELATION || !ot_is_onetrip_table(table->rel)))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s.%s\" is not a onetrip table in region \"%s\"",
						table->schema, table->name, ot_region),
				 errhint("This region differs from the others; compare them with onetrip check.")));
	if (RelationGetNumberOfAttributes(table->rel) != table->natts)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("table \"%s.%s\" has %d columns in region \"%s\", but the entry has %d",
						table->schema, table->name, RelationGetNumberOfAttributes(table->rel),
						ot_region, table->natts),
				 errhint("This region differs from the others; compare them with onetrip check.")));
	if (unlikely(ot_apply_has_failed()))
		ot_index_job_undo(table->rel);
	ot_subscription_table_changes(table->schema, table->name);
	apply_row_enter_user_context(&context, table->rel, true);
	table->info = ot_rel_info(table->rel);
	if (table->info->layout != table->layout)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("columns of table \"%s.%s\" are of other types in region \"%s\"",
						table->schema, table->name, ot_region),
				 errhint("This region differs from the others; compare them with onetrip check.")));

	rte = makeNode(RangeTblEntry);
	rte->rtekind = RTE_RELATION;
	rte->relid = relid;
	rte->relkind = table->rel->rd_rel->relkind;
	rte->rellockmode = RowExclusiveLock;
	OT_INIT_RANGE_TABLE(table->estate, rte);
	table->result_rel = makeNode(ResultRelInfo);
	InitResultRelInfo(table->result_rel, table->rel, 1, NULL, 0);
	ExecOpenIndices(table->result_rel, false);
	ot_user_leave(&context);

	/*
	 * Otherwise PostgreSQL looks up which columns an UPDATE changes, and
	 * simplifies the expressions of generated columns for that, which may call
	 * any function.  It is a hint for B-trees only.
	 */
	for (int i = 0; i < table->result_rel->ri_NumIndices; i++)
	{
		IndexInfo  *info = table->result_rel->ri_IndexRelationInfo[i];

		info->ii_CheckedUnchanged = true;
		info->ii_IndexUnchanged = true;
	}
	table->unchecked = apply_row_find_unchecked(table);
	if (ot_writes_early && (table->unchecked != NIL || strcmp(table->schema, "onetrip") == 0))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("rows of table \"%s.%s\" are not written before they are decided",
						table->schema, table->name)));
	table->desc = RelationGetDescr(table->rel);
	table->given_row = MakeSingleTupleTableSlot(table->desc, &TTSOpsHeapTuple);
	/* A copy, since the cached one may be freed while the table is open. */
	table->new_row = MakeSingleTupleTableSlot(CreateTupleDescCopy(table->info->as_given),
											  &TTSOpsVirtual);
	table->old_row = table_slot_create(table->rel, NULL);
	/*
	 * A user's function in an index may look at the table, which then must have all
	 * rows before its own and no others.  If a value occurs twice where a job builds
	 * a unique index, the table is opened again.
	 */
	table->in_batches = ot_is_onetrip_table(table->rel) && !table->info->runs_users_code &&
		table->unchecked == NIL;
	table->batch_rows = NULL;
	table->nbatch_rows = 0;
	ot_row_finder_open(&table->finder, table->rel, table->desc, table->info);
	MemoryContextSwitchTo(old);
}

static OpenTable *
apply_row_get_table(OtReader *r)
{
	uint16		number = ot_get_u16(r);
	OpenTable  *table;

	if (number >= numbered.count)
		ereport(ERROR,
				(errcode(OT_ERR_PROTOCOL),
				 errmsg("a write set refers to table %u of %d", number, numbered.count)));
	table = numbered.list[number];
	if (table != batch.table)
		ot_apply_rows_end_batch();
	if (table->rel == NULL)
		apply_row_open_table(table);
	/* If the worker waits for a transaction, the evictor names this table. */
	if (!ot_is_rehearsing)
		pg_atomic_write_u32(&ot_worker->applying_table, RelationGetRelid(table->rel));
	return table;
}

/* Closes all tables; their numbers remain valid. */
void
ot_apply_rows_close(void)
{
	for (int i = 0; i < known.count; i++)
	{
		OpenTable  *table = known.list[i];

		if (table->rel == NULL)
			continue;
		ot_row_finder_close(&table->finder);
		ExecDropSingleTupleTableSlot(table->given_row);
		ExecDropSingleTupleTableSlot(table->new_row);
		ExecDropSingleTupleTableSlot(table->old_row);
		for (int k = 0; k < table->nbatch_rows; k++)
			ExecDropSingleTupleTableSlot(table->batch_rows[k]);
		ExecCloseIndices(table->result_rel);
		FreeExecutorState(table->estate);
		table_close(table->rel, NoLock);
		table->rel = NULL;
	}
}

/* ---- storing values out of line as in the row's own region ---- */

/*
 * The toaster decides by sizes, and they differ from those in the row's own
 * region, since values arrive compressed.  So while a row is stored some of
 * whose values were out of line there, the descriptor is changed so that the
 * toaster may move out these columns and no others, and the target size is so
 * small that it moves them all.
 *
 * What an update leaves alone may be in line here although it was out of line
 * there: VACUUM FULL and CLUSTER store each value as the column's storage now
 * says.  If the row would not fit into a page, the toaster may move out other
 * columns, too, as far as it must.
 *
 * An invalidation in that time rebuilds the relation: it then has a new
 * descriptor and new options.  Its old descriptor survives, since it is pinned;
 * its old options are freed, so the forced options are allocated as the
 * relation's own are, which later ones may be in the place of.  The toaster then
 * decides by sizes again.
 */
typedef struct Storage
{
	TupleDesc	desc;
	char	   *attstorage;
	bytea	   *options;
	StdRdOptions *forced;
	int			target;			/* of the forced options, and no others */
} Storage;

static void
apply_row_force_storage(Storage *saved, OpenTable *table, const OtRowRead *row, bool fits)
{
	Relation	rel = table->rel;
	TupleDesc	desc = RelationGetDescr(rel);

	PinTupleDesc(desc);
	saved->desc = desc;
	saved->options = rel->rd_options;
	saved->attstorage = palloc(desc->natts);
	saved->forced = MemoryContextAllocZero(CacheMemoryContext, sizeof(StdRdOptions));
	if (rel->rd_options)
		memcpy(saved->forced, rel->rd_options, sizeof(StdRdOptions));
	SET_VARSIZE(saved->forced, sizeof(StdRdOptions));
	/* Smaller than any row with a TOAST pointer, larger than its header. */
	saved->target = MAXALIGN(SizeofHeapTupleHeader + BITMAPLEN(desc->natts)) + 1;
	saved->forced->toast_tuple_target = saved->target;
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		saved->attstorage[i] = att->attstorage;
		if (att->attlen == -1)
			att->attstorage = fits || !table->info->columns[i].can_move_out ?
				TYPSTORAGE_PLAIN : TYPSTORAGE_MAIN;
		OT_ATTRIBUTE_CHANGED(desc, i);
	}
	for (int i = 0; i < row->nparts; i++)
	{
		if (row->parts[i].out_of_line)
			TupleDescAttr(desc, row->parts[i].column)->attstorage = TYPSTORAGE_EXTERNAL;
		OT_ATTRIBUTE_CHANGED(desc, row->parts[i].column);
	}
	rel->rd_options = (bytea *) saved->forced;
}

static void
apply_row_put_storage_back(Storage *saved, OpenTable *table)
{
	Relation	rel = table->rel;

	for (int i = 0; i < saved->desc->natts; i++)
	{
		TupleDescAttr(saved->desc, i)->attstorage = saved->attstorage[i];
		OT_ATTRIBUTE_CHANGED(saved->desc, i);
	}
	if (rel->rd_options == (bytea *) saved->forced && saved->forced->toast_tuple_target == saved->target)
	{
		rel->rd_options = saved->options;
		pfree(saved->forced);
	}
	else if (saved->options)
		pfree(saved->options);
	ReleaseTupleDesc(saved->desc);
}

static void
apply_row_insert_row(OpenTable *table, TupleTableSlot *row, const OtRowRead *read, int options)
{
	Storage		storage;

	if (!read->out_of_line)
	{
		table_tuple_insert(table->rel, row, GetCurrentCommandId(true), options, NULL);
		return;
	}
	apply_row_force_storage(&storage, table, read, true);
	PG_TRY();
	{
		table_tuple_insert(table->rel, row, GetCurrentCommandId(true), options, NULL);
	}
	PG_FINALLY();
	{
		apply_row_put_storage_back(&storage, table);
	}
	PG_END_TRY();
}

/* Does new_row fit into a page, if what is in line in it stays there? */
static bool
apply_row_fits(OpenTable *table, const OtRowRead *read)
{
	TupleTableSlot *row = table->new_row;
	TupleDesc	desc = row->tts_tupleDescriptor;
	Size		size = MAXALIGN(SizeofHeapTupleHeader + BITMAPLEN(desc->natts)) +
		heap_compute_data_size(desc, row->tts_values, row->tts_isnull);

	/* what is out of line in the entry is counted as a shorter pointer */
	return size + read->nparts * TOAST_POINTER_SIZE <= MaxHeapTupleSize;
}

static TM_Result
apply_row_update_row(OpenTable *table, const OtRowRead *read, OtUpdateIndexes *update_indexes)
{
	TM_FailureData failure;
	LockTupleMode lockmode;
	Storage		storage;
	volatile TM_Result result = TM_Ok;
	bool		fits = apply_row_fits(table, read);

	if (!read->out_of_line && fits)
		return table_tuple_update(table->rel, &table->old_row->tts_tid, table->new_row,
								  GetCurrentCommandId(true), GetActiveSnapshot(),
								  InvalidSnapshot, true, &failure, &lockmode, update_indexes);
	apply_row_force_storage(&storage, table, read, fits);
	PG_TRY();
	{
		result = table_tuple_update(table->rel, &table->old_row->tts_tid, table->new_row,
									GetCurrentCommandId(true), GetActiveSnapshot(),
									InvalidSnapshot, true, &failure, &lockmode, update_indexes);
	}
	PG_FINALLY();
	{
		apply_row_put_storage_back(&storage, table);
	}
	PG_END_TRY();
	return result;
}

/* ---- reading rows and changes from an entry ---- */

/* Puts a whole row that has been read into a slot, and returns that. */
static TupleTableSlot *
apply_row_store(OpenTable *table, OtRowRead *row)
{
	if (row->nparts == 0)
	{
		ExecStoreHeapTuple(row->tuple, table->given_row, true);
		return table->given_row;
	}
	ExecClearTuple(table->new_row);
	ot_row_deform(row, table->desc, table->new_row->tts_values, table->new_row->tts_isnull);
	ExecStoreVirtualTuple(table->new_row);
	return table->new_row;
}

/* What an update changes: columns, and their new values. */
typedef struct Changes
{
	const bits8 *changed;
	Datum	   *values;
	bool	   *nulls;
	OtRowRead	row;
	int			nparts;			/* those in the entry; more may be added */
	bool		out_of_line;	/* one of those is */
} Changes;

static void
apply_row_get_changes(OtReader *r, OpenTable *table, Changes *changes)
{
	TupleDesc	desc = table->desc;

	changes->changed = (const bits8 *) ot_get_bytes(r, BITMAPLEN(desc->natts));
	changes->values = palloc(sizeof(Datum) * desc->natts);
	changes->nulls = palloc(sizeof(bool) * desc->natts);
	ot_row_read(r, table->info, desc, &changes->row);
	ot_row_deform(&changes->row, desc, changes->values, changes->nulls);
	changes->nparts = changes->row.nparts;
	changes->out_of_line = changes->row.out_of_line;
}

/* Are the values, which are equal, in the same form in the entry and here? */
static bool
apply_row_same_form(Datum there, Datum here)
{
	struct varlena *a = (struct varlena *) DatumGetPointer(there);
	struct varlena *b = (struct varlena *) DatumGetPointer(here);

	/* the size of a value that is stored out of line does not include a header */
	if (VARATT_IS_EXTERNAL(a) || VARATT_IS_EXTERNAL(b))
		return VARATT_IS_EXTERNAL(a) && VARATT_IS_EXTERNAL(b) &&
			toast_datum_size(there) == toast_datum_size(here) + VARHDRSZ;
	return VARATT_IS_COMPRESSED(a) == VARATT_IS_COMPRESSED(b) && VARSIZE_ANY(a) == VARSIZE_ANY(b);
}

/*
 * A column that an update leaves as it was, in a row that was found by its
 * whole contents.  The row that was found here may contain the same value in
 * another form than the one that was changed there, and in that form the new
 * row might not fit into a page.  So it gets the form from the entry.
 */
static Datum
apply_row_unchanged(OpenTable *table, Changes *changes, int column)
{
	OtRowFinder *finder = &table->finder;
	Datum		here = table->old_row->tts_values[column];

	if (!finder->whole_row || table->old_row->tts_isnull[column] ||
		!table->info->columns[column].is_varlena ||
		apply_row_same_form(finder->stored[column], here))
		return here;
	for (int i = 0; i < finder->row.nparts; i++)
	{
		if (finder->row.parts[i].column != column || !finder->row.parts[i].out_of_line)
			continue;
		changes->row.parts = changes->row.parts ?
			repalloc(changes->row.parts, sizeof(OtPart) * (changes->row.nparts + 1)) : palloc(sizeof(OtPart));
		changes->row.parts[changes->row.nparts++] = finder->row.parts[i];
		changes->row.out_of_line = true;
	}
	return finder->stored[column];
}

/* Puts into new_row the row in old_row with the changes. */
static void
apply_row_merge_changes(OpenTable *table, Changes *changes)
{
	TupleDesc	desc = table->desc;
	TupleTableSlot *to = table->new_row;

	changes->row.nparts = changes->nparts;
	changes->row.out_of_line = changes->out_of_line;

	ExecClearTuple(to);
	slot_getallattrs(table->old_row);
	for (int i = 0; i < desc->natts; i++)
	{
		if (TupleDescAttr(desc, i)->attisdropped)
			to->tts_isnull[i] = true;
		else if (changes->changed[i >> 3] & (1 << (i & 7)))
		{
			to->tts_values[i] = changes->values[i];
			to->tts_isnull[i] = changes->nulls[i];
		}
		else
		{
			to->tts_values[i] = apply_row_unchanged(table, changes, i);
			to->tts_isnull[i] = table->old_row->tts_isnull[i];
		}
	}
	ExecStoreVirtualTuple(to);
}

/* ---- evicting those who have locked a row ---- */

/*
 * Evicts all holders of a row lock on old_row that is in the way.  KEY SHARE is
 * not unless the key changes: heap does not wait for it, and it has no conflict
 * with the entry.
 */
static void
apply_row_evict_lockers(OpenTable *table, bool key_changes)
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
	else if (!HEAP_XMAX_IS_KEYSHR_LOCKED(infomask) || key_changes)
		ot_evict_xid(xmax, table->rel);
}

/*
 * Heap has waited for those who were in the way.  Returns false if the row must
 * be found again: a local commit in between has changed it.
 */
static bool
apply_row_is_changed(OpenTable *table, TM_Result result)
{
	if (result != TM_Ok && result != TM_Updated && result != TM_Deleted)
		elog(ERROR, "unexpected result %d of changing a row of table \"%s.%s\"",
			 result, table->schema, table->name);
	return result == TM_Ok;
}

/* ---- the operations ---- */

static void
apply_row_begin_change(void)
{
	if (written)
		CommandCounterIncrement();
	written = true;
}

static void
apply_row_insert_index_tuples(OpenTable *table, TupleTableSlot *row, bool update, bool only_summarizing)
{
	OtUserContext context;
	List	   *with_duplicates;
	ListCell   *lc;

	if (table->result_rel->ri_NumIndices == 0)
		return;
	apply_row_enter_user_context(&context, table->rel, table->info->runs_functions);
	with_duplicates = OT_INSERT_INDEX_TUPLES(table->result_rel, row, table->estate, update,
											 table->unchecked, only_summarizing);
	ot_user_leave(&context);
	foreach(lc, with_duplicates)
	{
		/* others are checked late, where the row was written */
		if (!list_member_oid(table->unchecked, lfirst_oid(lc)) || ot_is_rehearsing)
			continue;
		ot_index_job_has_duplicate(table->rel, lfirst_oid(lc));
		open_again = true;
	}
	list_free(with_duplicates);
}

static void
apply_row_end_row(OpenTable *table, MemoryContext old)
{
	ResetPerTupleExprContext(table->estate);
	ExecClearTuple(table->given_row);
	ExecClearTuple(table->new_row);
	ExecClearTuple(table->old_row);
	MemoryContextSwitchTo(old);
	MemoryContextReset(row_context);
	if (unlikely(open_again))
	{
		ot_apply_rows_close();
		open_again = false;
	}
}

/* ---- new rows ---- */

/* Writes the rows of the batch.  Others of the same table may follow. */
static void
apply_row_write_batch(void)
{
	OpenTable  *table = batch.table;
	int			nrows = batch.rows;
	MemoryContext old = MemoryContextSwitchTo(batch_context);

	batch.rows = 0;
	apply_row_begin_change();
	table_multi_insert(table->rel, table->batch_rows, nrows, GetCurrentCommandId(true), 0, NULL);
	MemoryContextSwitchTo(row_context);
	for (int i = 0; i < nrows; i++)
	{
		TupleTableSlot *row = table->batch_rows[i];

		CHECK_FOR_INTERRUPTS();
		ot_row_finder_written(&table->finder, row);
		apply_row_insert_index_tuples(table, row, false, false);
		ExecClearTuple(row);
		ResetPerTupleExprContext(table->estate);
		MemoryContextReset(row_context);
	}
	MemoryContextSwitchTo(old);
}

/* Called before anything else happens than another insertion of a row into the same table. */
void
ot_apply_rows_end_batch(void)
{
	if (batch.rows > 0)
		apply_row_write_batch();
	batch.table = NULL;
}

/* The context for the table's next row: batch_context if it is to go into a batch. */
static MemoryContext
apply_row_context_of_next(OpenTable *table, int options)
{
	if (batch.table != table)
	{
		batch.table = table;
		batch.before = 0;
	}
	if (likely(batch.before < BATCH_AFTER))
	{
		batch.before++;
		return row_context;
	}
	/* heap takes no options for many rows */
	if (!table->in_batches || options != 0)
		return row_context;
	if (batch_context == NULL)
		batch_context = AllocSetContextCreate(rows_context, "onetrip applied rows",
											  ALLOCSET_DEFAULT_SIZES);
	if (batch.rows == 0)
	{
		MemoryContextReset(batch_context);
		batch.bytes = 0;
	}
	return batch_context;
}

static void
apply_row_add_to_batch(OpenTable *table, HeapTuple row)
{
	if (table->nbatch_rows <= batch.rows)
	{
		MemoryContext old = MemoryContextSwitchTo(table->estate->es_query_cxt);

		if (table->batch_rows == NULL)
			table->batch_rows = palloc(sizeof(TupleTableSlot *) * BATCH_ROWS_MAX);
		table->batch_rows[table->nbatch_rows++] =
			MakeSingleTupleTableSlot(table->desc, &TTSOpsHeapTuple);
		MemoryContextSwitchTo(old);
	}
	ExecStoreHeapTuple(row, table->batch_rows[batch.rows++], true);
	batch.bytes += row->t_len;
	if (batch.rows == BATCH_ROWS_MAX || batch.bytes >= BATCH_BYTES_MAX)
		apply_row_write_batch();
}

static void
apply_row_insert_alone(OpenTable *table, OtRowRead *read, int options)
{
	TupleTableSlot *row = apply_row_store(table, read);

	/* A deletion of a row with the same key must be visible by now. */
	apply_row_begin_change();
	apply_row_insert_row(table, row, read, options);
	ot_row_finder_written(&table->finder, row);
	apply_row_insert_index_tuples(table, row, false, false);
}

/* The options are those of table_tuple_insert(). */
void
ot_apply_insert(OtReader *r, int options)
{
	OpenTable  *table = apply_row_get_table(r);
	MemoryContext context = apply_row_context_of_next(table, options);
	MemoryContext old = MemoryContextSwitchTo(context);
	OtRowRead	read;

	ot_row_read(r, table->info, table->desc, &read);
	/* what is to be out of line is stored so row by row */
	if (context != row_context && read.nparts == 0)
	{
		apply_row_add_to_batch(table, read.tuple);
		MemoryContextSwitchTo(old);
		return;
	}
	if (batch.rows > 0)
		apply_row_write_batch();
	MemoryContextSwitchTo(row_context);
	apply_row_insert_alone(table, &read, options);
	apply_row_end_row(table, old);
}

void
ot_apply_update(OtReader *r)
{
	OpenTable  *table = apply_row_get_table(r);
	MemoryContext old = MemoryContextSwitchTo(row_context);
	/* whatever an update changes, it changes the key of a whole row */
	bool		key_changes = ot_get_u8(r) == OT_UPDATE || table->finder.whole_row;
	Changes		changes;
	TM_Result	result;
	OtUpdateIndexes update_indexes;

	ot_row_finder_read(&table->finder, r);
	apply_row_get_changes(r, table, &changes);

	apply_row_begin_change();
	do
	{
		ot_row_finder_find(&table->finder, table->old_row);
		apply_row_merge_changes(table, &changes);
		apply_row_evict_lockers(table, key_changes);
		in_heap = true;
		result = apply_row_update_row(table, &changes.row, &update_indexes);
		in_heap = false;
	} while (!apply_row_is_changed(table, result));

	ot_row_finder_written(&table->finder, table->new_row);
	if (OT_INDEXES_CHANGED(update_indexes))
		apply_row_insert_index_tuples(table, table->new_row, true, OT_ONLY_SUMMARIZING(update_indexes));
	apply_row_end_row(table, old);
}

/*
 * moves: the row goes to another partition, so a statement here that meets it
 * must fail with 40001 instead of passing over it.
 */
void
ot_apply_delete(OtReader *r, bool moves)
{
	OpenTable  *table = apply_row_get_table(r);
	MemoryContext old = MemoryContextSwitchTo(row_context);
	TM_Result	result;

	ot_row_finder_read(&table->finder, r);
	apply_row_begin_change();
	do
	{
		TM_FailureData failure;

		ot_row_finder_find(&table->finder, table->old_row);
		apply_row_evict_lockers(table, true);
		in_heap = true;
		result = table_tuple_delete(table->rel, &table->old_row->tts_tid,
									GetCurrentCommandId(true), GetActiveSnapshot(),
									InvalidSnapshot, true, &failure, moves);
		in_heap = false;
	} while (!apply_row_is_changed(table, result));
	apply_row_end_row(table, old);
}
