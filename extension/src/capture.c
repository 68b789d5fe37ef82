/*-------------------------------------------------------------------------
 *
 * capture.c
 *	  Turns a row change or row lock into operations and keys.
 *
 *	change			operation	keys
 *	insert			I			UPDATE on each unique value
 *	update			U			the row's identity, in the mode of its row lock;
 *								UPDATE on each unique value that came or went
 *	delete			D			UPDATE on each unique value, the identity among them
 *	row lock		-			the row's identity, in the lock's mode
 *
 * The identity is the value of the primary key, else of the replica identity
 * index.  Two transactions collide on these keys if and only if their row
 * locks, or their index insertions, would have met in one PostgreSQL.
 *
 * A key's base is read with the row lock held.  A row that is being inserted
 * is nobody else's to lock; its base is read before the unique indexes are
 * searched, which is earlier than needed, hence safe.
 *
 * Runs in backends, called by access_method.c after heap has done its work.
 * Temporary memory: a context of its own, reset after each row.  May raise
 * ERROR; the statement then fails as if heap had.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "onetrip.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "common/hashfn.h"
#include "executor/executor.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "rel_info.h"

static MemoryContext row_context = NULL;

void
ot_capture_init(void)
{
	row_context = AllocSetContextCreate(TopMemoryContext, "onetrip captured row",
										ALLOCSET_DEFAULT_SIZES);
}

/* ---- hashes ---- */

/* Seeds keep keys of different kinds apart. */
#define SEED_TABLE	UINT64CONST(0x6f6e65747269700a)
#define SEED_SCHEMA UINT64CONST(0x6f6e65747269700b)
#define SEED_ROWS	UINT64CONST(0x6f6e65747269700c)

OtHash
ot_hash_table(const char *schema, const char *name)
{
	OtHash		hash;

	hash.value = hash_bytes_extended((const unsigned char *) schema, strlen(schema), SEED_TABLE);
	hash.value = hash_bytes_extended((const unsigned char *) name, strlen(name), hash.value);
	return hash;
}

/* The one key that every statement of DDL takes. */
OtHash
ot_hash_schema(void)
{
	OtHash		hash;

	hash.value = hash_bytes_extended((const unsigned char *) "schema", 6, SEED_SCHEMA);
	return hash;
}

/* By OID; the relation must exist. */
OtHash
ot_hash_relation(Oid relid)
{
	char	   *schema = get_namespace_name(get_rel_namespace(relid));
	char	   *name = get_rel_name(relid);
	OtHash		hash;

	if (schema == NULL || name == NULL)
		elog(ERROR, "cache lookup failed for relation %u", relid);
	hash = ot_hash_table(schema, name);
	pfree(schema);
	pfree(name);
	return hash;
}

/*
 * PostgreSQL's table locks in the four modes.  Readers meet nothing but
 * ACCESS EXCLUSIVE, writers meet each other in no mode; the self-conflicting
 * ones below EXCLUSIVE are taken a little stronger than they are.
 */
OtKeyMode
ot_table_lock_to_mode(LOCKMODE lockmode)
{
	switch (lockmode)
	{
		case AccessShareLock:
		case RowShareLock:
			return OT_KEY_SHARE;
		case RowExclusiveLock:
			return OT_SHARE;
		case AccessExclusiveLock:
			return OT_UPDATE;
		default:
			return OT_NO_KEY_UPDATE;
	}
}

static OtKeyMode
row_lock_to_mode(LockTupleMode mode)
{
	switch (mode)
	{
		case LockTupleKeyShare:
			return OT_KEY_SHARE;
		case LockTupleShare:
			return OT_SHARE;
		case LockTupleNoKeyExclusive:
			return OT_NO_KEY_UPDATE;
		case LockTupleExclusive:
			break;
	}
	return OT_UPDATE;
}

/*
 * The hash of the row's value in this index.  false: the row is not in the
 * index, or collides with nothing there.
 */
static bool
hash_index_value(OtIndex *index, TupleTableSlot *slot, OtHash *hash)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];
	EState	   *estate = NULL;
	bool		in_index = true;
	uint64		h = index->hash;

	if (index->computed)
	{
		ExprContext *econtext;

		/* The expression states live in the estate, not in the cache. */
		index->info->ii_ExpressionsState = NIL;
		index->info->ii_PredicateState = NULL;
		estate = CreateExecutorState();
		econtext = GetPerTupleExprContext(estate);
		econtext->ecxt_scantuple = slot;
		if (index->info->ii_Predicate != NIL)
			in_index = ExecQual(ExecPrepareQual(index->info->ii_Predicate, estate), econtext);
		if (in_index)
			FormIndexDatum(index->info, slot, estate, values, nulls);
	}
	else if (!index->coarse)
	{
		for (int i = 0; i < index->nkeys; i++)
			values[i] = slot_getattr(slot, index->attnums[i], &nulls[i]);
	}

	for (int i = 0; i < index->nkeys && in_index && !index->coarse; i++)
	{
		Datum		value;

		if (nulls[i])
		{
			if (!index->nulls_equal)
				in_index = false;
			h = hash_combine64(h, 1);
			continue;
		}
		if (index->hash_kinds[i] == OT_HASH_LABEL)
		{
			char	   *label = OutputFunctionCall(&index->hash_functions[i], values[i]);

			h = hash_combine64(h, hash_bytes_extended((const unsigned char *) label,
													  strlen(label), 0));
			continue;
		}
		value = FunctionCall2Coll(&index->hash_functions[i], index->collations[i],
								  values[i], Int64GetDatum(0));
		h = hash_combine64(h, DatumGetUInt64(value));
	}

	if (estate)
	{
		FreeExecutorState(estate);
		index->info->ii_ExpressionsState = NIL;
		index->info->ii_PredicateState = NULL;
	}
	hash->value = h;
	return in_index;
}

/* Takes the key of every unique value of the row, exclusively. */
static void
take_unique_values(OtRelInfo *info, TupleTableSlot *slot)
{
	for (int i = 0; i < info->nindexes; i++)
	{
		OtHash		hash;

		if (hash_index_value(&info->indexes[i], slot, &hash))
			ot_write_set_key_now(hash, OT_UPDATE, info->relid);
	}
}

static void
take_identity(OtRelInfo *info, TupleTableSlot *slot, OtKeyMode mode)
{
	OtHash		hash;

	if (info->identity < 0)
	{
		/* All rows of a table without identity share one key for row locks. */
		hash.value = hash_combine64(info->table.value, SEED_ROWS);
		ot_write_set_key_now(hash, mode, info->relid);
	}
	else if (hash_index_value(&info->indexes[info->identity], slot, &hash))
		ot_write_set_key_now(hash, mode, info->relid);
}

/* ---- operations ---- */

static bool
is_toasted_on_disk(OtColumn *column, Datum value)
{
	return column->is_varlena && VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(value));
}

/* The same out-of-line value, by its pointer? */
static bool
same_toast_pointer(Datum a, Datum b)
{
	struct varlena *pa = (struct varlena *) DatumGetPointer(a);
	struct varlena *pb = (struct varlena *) DatumGetPointer(b);

	return VARATT_IS_EXTERNAL_ONDISK(pb) &&
		memcmp(pa, pb, VARSIZE_EXTERNAL(pa)) == 0;
}

/*
 * Send functions turn text into the client's encoding; on its way to other
 * regions it stays in the database's.  Begins that; answers what to put back.
 */
static int
begin_own_encoding(void)
{
	int			client = pg_get_client_encoding();

	if (client != GetDatabaseEncoding())
		(void) SetClientEncoding(GetDatabaseEncoding());
	return client;
}

static void
end_own_encoding(int client)
{
	if (client != GetDatabaseEncoding() && SetClientEncoding(client) < 0)
		elog(FATAL, "could not go back to client encoding %s",
			 pg_encoding_to_char(client));
}

/* old: the row's old version in an update, for unchanged TOASTed values. */
static void
put_columns(StringInfo ops, OtRelInfo *info, TupleTableSlot *slot, TupleTableSlot *old)
{
	int			nest_level = 0;

	slot_getallattrs(slot);
	if (!info->all_binary)
		ot_rel_info_plain_text_begin(&nest_level);
	for (int i = 0; i < info->natts; i++)
	{
		OtColumn   *column = &info->columns[i];
		Datum		value = slot->tts_values[i];

		if (column->dropped)
			continue;
		if (old && !slot->tts_isnull[i] && is_toasted_on_disk(column, value))
		{
			bool		isnull;
			Datum		before = slot_getattr(old, i + 1, &isnull);

			if (!isnull && same_toast_pointer(value, before))
			{
				ot_put_u8(ops, 'u');
				continue;
			}
		}
		ot_column_put(ops, column, value, slot->tts_isnull[i]);
	}
	if (!info->all_binary)
		ot_rel_info_plain_text_end(nest_level);
}

static void
put_row(StringInfo ops, OtRelInfo *info, TupleTableSlot *slot, TupleTableSlot *old)
{
	int			client = begin_own_encoding();

	PG_TRY();
	{
		put_columns(ops, info, slot, old);
	}
	PG_FINALLY();
	{
		end_own_encoding(client);
	}
	PG_END_TRY();
}

static void
put_key_columns(StringInfo ops, OtRelInfo *info, TupleTableSlot *slot)
{
	OtIndex    *identity = &info->indexes[info->identity];
	int			nest_level = 0;

	if (!info->all_binary)
		ot_rel_info_plain_text_begin(&nest_level);
	for (int i = 0; i < identity->nkeys; i++)
	{
		bool		isnull;
		Datum		value = slot_getattr(slot, identity->attnums[i], &isnull);

		ot_column_put(ops, &info->columns[identity->attnums[i] - 1], value, isnull);
	}
	if (!info->all_binary)
		ot_rel_info_plain_text_end(nest_level);
}

static void
put_key(StringInfo ops, OtRelInfo *info, TupleTableSlot *slot)
{
	int			client = begin_own_encoding();

	PG_TRY();
	{
		put_key_columns(ops, info, slot);
	}
	PG_FINALLY();
	{
		end_own_encoding(client);
	}
	PG_END_TRY();
}

static bool
same_identity(OtRelInfo *info, TupleTableSlot *a, TupleTableSlot *b)
{
	OtIndex    *identity = &info->indexes[info->identity];
	StringInfoData key_a;
	StringInfoData key_b;

	if (identity->nkeys == 0)
		return true;
	initStringInfo(&key_a);
	initStringInfo(&key_b);
	put_key(&key_a, info, a);
	put_key(&key_b, info, b);
	return key_a.len == key_b.len && memcmp(key_a.data, key_b.data, key_a.len) == 0;
}

/* The version of the row at tid that this transaction has just superseded. */
static TupleTableSlot *
fetch_old(Relation rel, ItemPointer tid)
{
	TupleTableSlot *old = table_slot_create(rel, NULL);

	if (!table_tuple_fetch_row_version(rel, tid, SnapshotAny, old))
		elog(ERROR, "row (%u,%u) of table \"%s\" has gone while it was being changed",
			 ItemPointerGetBlockNumber(tid), ItemPointerGetOffsetNumber(tid),
			 RelationGetRelationName(rel));
	return old;
}

/* ---- what access_method.c calls ---- */

/* Before heap does anything: may this table be written? */
void
ot_capture_check_writable(Relation rel, bool needs_identity)
{
	ot_write_set_touch();
	if (needs_identity && ot_rel_info(rel)->identity < 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot update or delete rows of table \"%s\": it has no primary key",
						RelationGetRelationName(rel)),
				 errdetail("Other regions could not tell which row is meant."),
				 errhint("Add a primary key, or choose a unique index with ALTER TABLE ... REPLICA IDENTITY USING INDEX.")));
}

void
ot_capture_insert(Relation rel, TupleTableSlot *slot)
{
	OtRelInfo  *info;
	StringInfo	ops;
	MemoryContext old;
	uint16		number;

	ot_ddl_before_row(rel);
	info = ot_rel_info(rel);
	number = ot_write_set_relation(rel);

	old = MemoryContextSwitchTo(row_context);
	take_unique_values(info, slot);
	if (info->runs_functions)
		ot_write_set_search_path();
	ops = ot_write_set_append();
	ot_put_u8(ops, 'I');
	ot_put_u16(ops, number);
	put_row(ops, info, slot, NULL);
	MemoryContextSwitchTo(old);
	MemoryContextReset(row_context);
	ot_write_set_check_size();
}

void
ot_capture_update(Relation rel, ItemPointer otid, TupleTableSlot *slot,
				  LockTupleMode lockmode, bool indexes_changed)
{
	OtRelInfo  *info = ot_rel_info(rel);
	uint16		number = ot_write_set_relation(rel);
	TupleTableSlot *before = NULL;
	bool		identity_changed = false;
	bool		toasted = false;
	StringInfo	ops;
	MemoryContext old = MemoryContextSwitchTo(row_context);

	slot_getallattrs(slot);
	for (int i = 0; i < info->natts && !toasted; i++)
		toasted = !info->columns[i].dropped && !slot->tts_isnull[i] &&
			is_toasted_on_disk(&info->columns[i], slot->tts_values[i]);

	/* A heap-only update leaves every indexed column as it was. */
	if (indexes_changed || toasted)
		before = fetch_old(rel, otid);
	if (indexes_changed)
	{
		identity_changed = !same_identity(info, before, slot);
		take_identity(info, before, row_lock_to_mode(lockmode));
		for (int i = 0; i < info->nindexes; i++)
		{
			OtHash		hash_before;
			OtHash		hash_after;
			bool		was = hash_index_value(&info->indexes[i], before, &hash_before);
			bool		is = hash_index_value(&info->indexes[i], slot, &hash_after);

			/* A coarse index cannot tell whether its value changed. */
			if (was && is && hash_before.value == hash_after.value &&
				!info->indexes[i].coarse)
				continue;
			if (was)
				ot_write_set_key_now(hash_before, OT_UPDATE, info->relid);
			if (is)
				ot_write_set_key_now(hash_after, OT_UPDATE, info->relid);
		}
	}
	else
		take_identity(info, slot, row_lock_to_mode(lockmode));

	if (info->runs_functions)
		ot_write_set_search_path();
	ops = ot_write_set_append();
	ot_put_u8(ops, 'U');
	ot_put_u16(ops, number);
	ot_put_u8(ops, identity_changed);
	if (identity_changed)
		put_key(ops, info, before);
	put_row(ops, info, slot, before);
	if (before)
		ExecDropSingleTupleTableSlot(before);
	MemoryContextSwitchTo(old);
	MemoryContextReset(row_context);
	ot_write_set_check_size();
}

void
ot_capture_delete(Relation rel, ItemPointer tid)
{
	OtRelInfo  *info = ot_rel_info(rel);
	uint16		number = ot_write_set_relation(rel);
	MemoryContext old = MemoryContextSwitchTo(row_context);
	TupleTableSlot *before = fetch_old(rel, tid);
	StringInfo	ops;

	take_unique_values(info, before);
	if (info->runs_functions)
		ot_write_set_search_path();
	ops = ot_write_set_append();
	ot_put_u8(ops, 'D');
	ot_put_u16(ops, number);
	put_key(ops, info, before);
	ExecDropSingleTupleTableSlot(before);
	MemoryContextSwitchTo(old);
	MemoryContextReset(row_context);
	ot_write_set_check_size();
}

void
ot_capture_lock(Relation rel, TupleTableSlot *slot, LockTupleMode mode)
{
	OtRelInfo  *info = ot_rel_info(rel);
	MemoryContext old = MemoryContextSwitchTo(row_context);

	take_identity(info, slot, row_lock_to_mode(mode));
	MemoryContextSwitchTo(old);
	MemoryContextReset(row_context);
}
