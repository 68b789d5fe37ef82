/*-------------------------------------------------------------------------
 *
 * capture.c
 *	  Turns a row change or row lock into operations and keys.
 *
 *	change			operation	keys
 *	insert			I			UPDATE on each unique value
 *	update			U			the row's identity, in the mode of its row lock;
 *								UPDATE on each unique value that came or went
 *	delete			D			UPDATE on each unique value and on the identity
 *								(of values that go, not those that a user's
 *								function computes: capture_hash_value_before())
 *	row lock		-			the row's identity, in the lock's mode
 *	contents		I each		none: the lock on the relation is a key
 *
 * The identity is the row's value in the identity index, or all of the row if
 * there is none (rel_info.c, whole_row.c).  Two transactions collide
 * on these keys if their row locks, or their index insertions, would have
 * collided in one PostgreSQL.  (Some collide more often: see rel_info.c.)
 *
 * A key's base is read while the row lock is held.  Nobody else can lock a row
 * that is being inserted; its base is read before the executor searches the
 * unique indexes, which is earlier than necessary and therefore safe.  The row of
 * an INSERT ... ON CONFLICT is captured after that, with a base from before.
 *
 * Runs in backends, called by access_method.c after heap has done its work, but
 * for ot_capture_lock_first().  Temporary memory: a context of its own, reset
 * after each row.  May raise ERROR; the statement then fails as if heap had
 * raised it.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/detoast.h"
#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "common/hashfn.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

static MemoryContext row_context = NULL;
static OtRowLockCallback lock_first = NULL;
static void (*lock_refused) (void) = NULL;

/* Has ot_capture_lock_first() asked for the row at hand? */
static bool lock_was_asked = false;

void
ot_capture_init(void)
{
	row_context = AllocSetContextCreate(TopMemoryContext, "onetrip captured row",
										ALLOCSET_DEFAULT_SIZES);
}

void
ot_capture_lock_first_with(OtRowLockCallback callback, void (*refused) (void))
{
	lock_first = callback;
	lock_refused = refused;
}

/* ---- hashes ---- */

/*
 * Seeds keep keys of different kinds apart.  The cluster's own, which is secret, keeps
 * roles from choosing values whose key would be that of something else.
 */
#define SEED_SCHEMA (UINT64CONST(0x6f6e65747269700b) ^ ot_key_seed)
#define SEED_CODE	(UINT64CONST(0x6f6e65747269700e) ^ ot_key_seed)

OtHash
ot_hash_table(const char *schema, const char *name)
{
	OtHash		hash;

	hash.value = hash_bytes_extended((const unsigned char *) schema, strlen(schema), OT_SEED_TABLE ^ ot_key_seed);
	hash.value = hash_bytes_extended((const unsigned char *) name, strlen(name), hash.value);
	return hash;
}

/* The key that every DDL statement takes. */
OtHash
ot_hash_schema(void)
{
	OtHash		hash;

	hash.value = hash_bytes_extended((const unsigned char *) "schema", 6, SEED_SCHEMA);
	return hash;
}

/*
 * The key for what users' functions compute.  A row of a table whose indexes
 * run such functions takes it in mode KEY SHARE.  DDL that may change what they
 * compute, directly or by way of another function, or takes away a right to call
 * them, takes it in mode UPDATE.
 */
OtHash
ot_hash_code(void)
{
	OtHash		hash;

	hash.value = hash_bytes_extended((const unsigned char *) "code", 4, SEED_CODE);
	return hash;
}

/* The table's hash, by OID; the relation must exist. */
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
 * Maps PostgreSQL's table locks to the four modes of keys.  As in PostgreSQL,
 * readers conflict with ACCESS EXCLUSIVE only, and writers do not conflict with
 * each other.  All other modes become NO KEY UPDATE.  With that, SHARE and
 * SHARE UPDATE EXCLUSIVE conflict with more than in PostgreSQL, and EXCLUSIVE
 * does not conflict with ROW SHARE.
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

OtKeyMode
ot_row_lock_to_mode(LockTupleMode mode)
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

/* Refuses a function that tried what the apply worker would not let it do. */
pg_noreturn static void
refuse_function(Oid index, const ErrorData *why)
{
	/* `why` contains the context of the error already */
	error_context_stack = NULL;
	ereport(ERROR,
			(errcode(OT_ERR_NOT_REPLICATED),
			 errmsg("a function of index \"%s\" of table \"%s\" does more than compute",
					get_rel_name(index), get_rel_name(IndexGetRelation(index, false))),
			 errdetail("It runs in every region, and everywhere as in a read-only transaction: %s.",
					   why->message),
			 errhint("Functions in index expressions and predicates must only compute."),
			 why->context ? errcontext("%s", why->context) : 0));
}

/*
 * Computes what an index with expressions or a predicate contains of the row.
 * false: the row is not in the index.  Users' functions run here under the same
 * rules as in the apply worker (apply_row.c): what they may not do there, they
 * may do nowhere.
 */
bool
ot_capture_compute_index_value(Oid index, IndexInfo *info, TupleTableSlot *slot, EState *estate,
							   Datum *values, bool *nulls)
{
	ExprContext *econtext = GetPerTupleExprContext(estate);
	MemoryContext context = CurrentMemoryContext;
	OtUserContext user;
	volatile bool in_index = true;
	ErrorData  *volatile why = NULL;

	/* Expression states belong to the estate and must not stay in the cache. */
	info->ii_ExpressionsState = NIL;
	info->ii_PredicateState = NULL;
	econtext->ecxt_scantuple = slot;
	ot_user_enter(&user, GetUserId(), false);
	PG_TRY();
	{
		if (info->ii_Predicate != NIL)
			in_index = ExecQual(ExecPrepareQual(info->ii_Predicate, estate), econtext);
		if (in_index)
			FormIndexDatum(info, slot, estate, values, nulls);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		why = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	ot_user_leave(&user);
	info->ii_ExpressionsState = NIL;
	info->ii_PredicateState = NULL;
	if (why != NULL)
	{
		if (why->sqlerrcode == ERRCODE_READ_ONLY_SQL_TRANSACTION)
			refuse_function(index, why);
		ReThrowError(why);
	}
	return in_index;
}

/*
 * The hash of these values of the index's columns.  false: they cannot collide
 * with others (NULLs are distinct).
 */
static bool
capture_hash_values(OtIndex *index, Datum *values, bool *nulls, OtHash *hash)
{
	uint64		h = index->hash;
	bool		can_collide = true;

	for (int i = 0; i < index->nkeys && can_collide && !index->coarse; i++)
	{
		Datum		value;

		if (nulls[i])
		{
			if (!index->nulls_equal)
				can_collide = false;
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
	hash->value = h;
	return can_collide;
}

/*
 * The hash of the row's value in this index.  false: the row is not in the
 * index, or cannot collide with another one there.
 */
bool
ot_capture_hash_index_value(OtIndex *index, TupleTableSlot *slot, OtHash *hash)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];
	EState	   *estate = NULL;
	bool		in_index = true;

	if (index->computed)
	{
		estate = CreateExecutorState();
		in_index = ot_capture_compute_index_value(index->oid, index->info, slot, estate, values, nulls);
	}
	else if (!index->coarse)
	{
		for (int i = 0; i < index->nkeys; i++)
			values[i] = slot_getattr(slot, index->attnums[i], &nulls[i]);
	}
	in_index = in_index && capture_hash_values(index, values, nulls, hash);
	if (estate)
		FreeExecutorState(estate);
	return in_index;
}

/* The hash of a row that has these values, none of them null, in the index's columns. */
bool
ot_capture_values_hash(OtIndex *index, Datum *values, OtHash *hash)
{
	bool		nulls[INDEX_MAX_KEYS] = {0};

	return capture_hash_values(index, values, nulls, hash);
}

/* The hash of the row's identity; false: the table has no identity index. */
bool
ot_capture_identity_hash(OtRelInfo *info, TupleTableSlot *slot, OtHash *hash)
{
	return info->identity >= 0 && ot_capture_hash_index_value(&info->indexes[info->identity], slot, hash);
}

/*
 * Runs the functions of the indexes that are not unique, too.  The executor
 * will run them soon, but there nothing would stop them from doing what they
 * may not do.
 */
static void
capture_check_functions(OtRelInfo *info, TupleTableSlot *slot)
{
	for (int i = 0; i < info->nrunning_indexes; i++)
	{
		OtRunningIndex *index = &info->running_indexes[i];
		EState	   *estate = CreateExecutorState();
		Datum		values[INDEX_MAX_KEYS];
		bool		nulls[INDEX_MAX_KEYS];

		(void) ot_capture_compute_index_value(index->oid, index->info, slot, estate, values, nulls);
		FreeExecutorState(estate);
	}
}

/*
 * The same of a row that goes.  false also for what users' functions compute: they
 * are not run for it, as PostgreSQL does not.  By now they may fail for such a row,
 * or not be this role's to call.
 *
 * Such a value needs no key.  Who puts it in anew has seen that the row has gone, by
 * an entry that is earlier in the log, since until then the index has it.
 */
static bool
capture_hash_value_before(OtIndex *index, TupleTableSlot *before, OtHash *hash)
{
	return !index->runs_users_code && ot_capture_hash_index_value(index, before, hash);
}

/* May a SERIALIZABLE transaction go on, and know of a unique value that has kept a row out? */
static bool
capture_may_catch_violation(void)
{
	return XactIsoLevel == XACT_SERIALIZABLE && GetCurrentTransactionNestLevel() > 1 && ot_format_level >= 1;
}

/* Takes the keys of the unique values that came or went.  One of both rows may be NULL. */
static void
capture_take_unique_values(OtRelInfo *info, Relation rel, TupleTableSlot *before, TupleTableSlot *after,
						   OtLogIndex base)
{
	for (int i = 0; i < info->nindexes; i++)
	{
		OtIndex    *index = &info->indexes[i];
		OtHash		hash_before;
		OtHash		hash_after;
		bool		was = before != NULL && capture_hash_value_before(index, before, &hash_before);
		bool		is = after != NULL && ot_capture_hash_index_value(index, after, &hash_after);

		/* A coarse index cannot tell whether its value changed, nor does one that was not asked before. */
		if (was && is && hash_before.value == hash_after.value && !index->coarse)
			continue;
		/* if it is there, and a savepoint rolled back, that was read: by the table, since who deletes it has no key */
		if (is && index->runs_users_code && unlikely(capture_may_catch_violation()))
			ot_reads_note_table(rel);
		if (was)
			ot_write_set_row_key(hash_before, OT_UPDATE, base, info->relid, &before->tts_tid);
		if (is)
			ot_write_set_row_key(hash_after, OT_UPDATE, base, info->relid, &after->tts_tid);
	}
}

/*
 * Takes the key of all of the row.  Any update changes it, so there is no lock
 * that an update could leave alone: KEY SHARE becomes SHARE.
 *
 * But PostgreSQL gives KEY SHARE on a version of the row that has been updated
 * since, if its keys are the same, and then the row as it is now has another key
 * than this version.  What foreign keys refer to is the same in both: the unique
 * values, which are keys of who deletes the row or changes one of them.
 */
static void
capture_take_whole_row(OtRelInfo *info, TupleTableSlot *slot, OtKeyMode mode)
{
	OtHash		hash;

	slot_getallattrs(slot);
	hash = ot_whole_row_hash(info, slot->tts_tupleDescriptor, slot->tts_values, slot->tts_isnull);
	ot_write_set_key_now(hash, mode <= OT_SHARE ? OT_SHARE : OT_UPDATE, info->relid);
	for (int i = 0; i < info->nindexes && mode == OT_KEY_SHARE; i++)
	{
		if (info->indexes[i].unique && !info->indexes[i].computed &&
			ot_capture_hash_index_value(&info->indexes[i], slot, &hash))
			ot_write_set_key_now(hash, OT_KEY_SHARE, info->relid);
	}
}

static void
capture_take_identity(OtRelInfo *info, TupleTableSlot *slot, OtKeyMode mode)
{
	OtHash		hash;

	if (info->identity < 0)
		capture_take_whole_row(info, slot, mode);
	else if (ot_capture_hash_index_value(&info->indexes[info->identity], slot, &hash))
		ot_write_set_row_key(hash, mode, ot_applied_index(), info->relid, &slot->tts_tid);
}

/* ---- rows ---- */

/*
 * The row at tid as it is stored in the table.  This transaction has written
 * or superseded it, so it cannot be removed.  The page stays pinned.
 */
static void
capture_fetch_stored(Relation rel, ItemPointer tid, HeapTuple tuple, Buffer *buffer)
{
	tuple->t_self = *tid;
	if (!heap_fetch(rel, SnapshotAny, tuple, buffer, false))
		elog(ERROR, "row (%u,%u) of table \"%s\" has gone while it was being changed",
			 ItemPointerGetBlockNumber(tid), ItemPointerGetOffsetNumber(tid),
			 RelationGetRelationName(rel));
}

/*
 * The row that has just been inserted from the slot, as it is stored.  *buffer:
 * its page, which stays pinned, or InvalidBuffer.  A slot that still has the
 * tuple which heap was given need not be read from the page again, unless heap
 * may have moved values out of line.
 */
static void
capture_inserted(Relation rel, TupleTableSlot *slot, HeapTuple stored, Buffer *buffer)
{
	if (TTS_IS_HEAPTUPLE(slot) || TTS_IS_BUFFERTUPLE(slot))
	{
		HeapTuple	given = ((HeapTupleTableSlot *) slot)->tuple;

		if (given != NULL && given->t_len <= TOAST_TUPLE_THRESHOLD && !HeapTupleHasExternal(given))
		{
			*stored = *given;
			*buffer = InvalidBuffer;
			return;
		}
	}
	capture_fetch_stored(rel, &slot->tts_tid, stored, buffer);
}

/* Are the values the same bytes, apart from the length of their headers? */
static bool
capture_same_value(Form_pg_attribute att, Datum a, Datum b)
{
	struct varlena *va;
	struct varlena *vb;

	if (att->attlen != -1)
		return datumIsEqual(a, b, att->attbyval, att->attlen);
	va = (struct varlena *) DatumGetPointer(a);
	vb = (struct varlena *) DatumGetPointer(b);
	if (VARATT_IS_EXTERNAL(va) || VARATT_IS_EXTERNAL(vb))
		return VARATT_IS_EXTERNAL_ONDISK(va) && VARATT_IS_EXTERNAL_ONDISK(vb) &&
			memcmp(va, vb, VARSIZE_EXTERNAL(va)) == 0;
	return VARATT_IS_COMPRESSED(va) == VARATT_IS_COMPRESSED(vb) &&
		VARSIZE_ANY_EXHDR(va) == VARSIZE_ANY_EXHDR(vb) &&
		memcmp(VARDATA_ANY(va), VARDATA_ANY(vb), VARSIZE_ANY_EXHDR(va)) == 0;
}

/*
 * The row's identity, as a row that has NULL in all other columns.  `values` are
 * those of the row that is `stored`.
 */
static void
capture_image_of_key(OtRowImage *key, OtRelInfo *info, Relation rel, TupleDesc desc,
					 HeapTuple stored, const Datum *values)
{
	OtIndex    *identity = &info->indexes[info->identity];
	Datum	   *key_values;
	bool	   *key_nulls;

	if (info->identity < 0)
	{
		ot_whole_row_note_cost(info, rel);
		ot_row_image_of_tuple(key, info, desc, stored);
		return;
	}
	key_values = palloc(sizeof(Datum) * desc->natts);
	key_nulls = palloc(sizeof(bool) * desc->natts);
	memset(key_nulls, true, sizeof(bool) * desc->natts);
	for (int i = 0; i < identity->nkeys; i++)
	{
		AttrNumber	column = identity->attnums[i] - 1;

		key_values[column] = values[column];
		key_nulls[column] = false;
	}
	ot_row_image_of_values(key, info, desc, key_values, key_nulls);
}

/* Do both have a header of one byte, or both one of four? */
static bool
capture_same_header(Form_pg_attribute att, Datum a, Datum b)
{
	return att->attlen != -1 ||
		VARATT_IS_SHORT(DatumGetPointer(a)) == VARATT_IS_SHORT(DatumGetPointer(b));
}

/*
 * Is the value stored in the form that it had?  The toaster may have compressed
 * it or moved it out of line, or heap may have given it a shorter header, to
 * make the row smaller.  Then it counts as changed, since the row must get
 * smaller in every region: in the old form it might not fit into a page there.
 */
static bool
capture_is_unchanged(Form_pg_attribute att, Datum stored, Datum old)
{
	return capture_same_value(att, stored, old) && capture_same_header(att, stored, old);
}

/*
 * The columns that an update has changed.  A column that is stored as before is
 * not among them: elsewhere the row keeps the value that is stored there.  So the
 * row is stored in the same bytes as here.  Returns those that were given to heap
 * as they were, and are stored in another form.
 */
static Bitmapset *
capture_image_of_changes(OtRowImage *image, bits8 *changed, OtRelInfo *info, TupleDesc desc,
						 TupleTableSlot *given, HeapTuple stored, const Datum *old_values,
						 const bool *old_nulls)
{
	Datum	   *values = palloc(sizeof(Datum) * desc->natts);
	bool	   *nulls = palloc(sizeof(bool) * desc->natts);
	Bitmapset  *other_forms = NULL;

	heap_deform_tuple(stored, desc, values, nulls);
	memset(changed, 0, BITMAPLEN(desc->natts));
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped)
			nulls[i] = true;
		else if (nulls[i] != old_nulls[i] ||
				 (!nulls[i] && !capture_is_unchanged(att, values[i], old_values[i])))
		{
			changed[i >> 3] |= 1 << (i & 7);
			if (!nulls[i] && !old_nulls[i] && capture_same_value(att, given->tts_values[i], old_values[i]))
				other_forms = bms_add_member(other_forms, i + 1 - FirstLowInvalidHeapAttributeNumber);
		}
		else
			nulls[i] = true;
	}
	ot_row_image_of_values(image, info, desc, values, nulls);
	return other_forms;
}

/* ---- what access_method.c calls ---- */

/*
 * The table's descriptor, until ReleaseTupleDesc().  An invalidation, which may come
 * whenever something is looked up, replaces the table's, and who pins the old one only
 * then frees it twice.
 */
static TupleDesc
capture_pin_desc(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	PinTupleDesc(desc);
	return desc;
}

/*
 * Before the row of an INSERT ... ON CONFLICT is compared with others, and functions of
 * indexes run for it.  The row is captured once it is there to stay, with the base
 * that this returns.  What keeps it out, if that is caught, has been read.
 */
OtLogIndex
ot_capture_speculative(Relation rel, TupleTableSlot *slot)
{
	OtRelInfo  *info = ot_rel_info(rel);
	MemoryContext old = MemoryContextSwitchTo(row_context);

	ot_session_settings_note(info->runs_functions, info->runs_users_code);
	for (int i = 0; i < info->nindexes && unlikely(capture_may_catch_violation()); i++)
	{
		OtHash		hash;

		if (info->indexes[i].runs_users_code)
			ot_reads_note_table(rel);
		else if (ot_capture_hash_index_value(&info->indexes[i], slot, &hash))
			ot_reads_note_value(rel, hash);
	}
	MemoryContextSwitchTo(old);
	MemoryContextReset(row_context);
	return ot_applied_index();
}

void
ot_capture_insert(Relation rel, TupleTableSlot *slot, OtLogIndex base)
{
	OtRelInfo  *info = ot_rel_info(rel);
	uint16		number = ot_write_set_relation(rel, info->layout);
	TupleDesc	desc = capture_pin_desc(rel);
	MemoryContext old = MemoryContextSwitchTo(row_context);
	OtRowImage	image;
	HeapTupleData stored;
	Buffer		buffer;
	StringInfo	ops;

	ot_row_check_replicable(info, rel, slot);
	ot_session_settings_note(info->runs_functions, info->runs_users_code);
	capture_take_unique_values(info, rel, NULL, slot, base);
	capture_check_functions(info, slot);
	capture_inserted(rel, slot, &stored, &buffer);
	ot_row_check_fits_everywhere(info, rel, slot, &stored);
	ot_row_image_of_tuple(&image, info, desc, &stored);
	ops = ot_write_set_append();
	ot_put_u8(ops, 'I');
	ot_put_u16(ops, number);
	ot_row_image_put(ops, &image, info->natts);
	ReleaseTupleDesc(desc);
	if (BufferIsValid(buffer))
		ReleaseBuffer(buffer);
	MemoryContextSwitchTo(old);
	MemoryContextReset(row_context);
	ot_write_set_check_size();
}

/*
 * Captures a row of a relation whose contents are replicated as a whole.  The
 * transaction holds a lock on the relation that keeps writers out, and the
 * lock's key is enough.
 */
void
ot_capture_contents(Relation rel, TupleTableSlot *slot)
{
	OtRelInfo  *info = ot_rel_info(rel);
	uint16		number = ot_write_set_relation(rel, info->layout);
	TupleDesc	desc = capture_pin_desc(rel);
	MemoryContext old = MemoryContextSwitchTo(row_context);
	HeapTuple	stored = ExecFetchSlotHeapTuple(slot, false, NULL);
	OtRowImage	image;
	StringInfo	ops;

	ot_row_check_replicable(info, rel, slot);
	ot_session_settings_note(info->runs_functions, info->runs_users_code);
	capture_check_functions(info, slot);
	ot_row_check_fits_everywhere(info, rel, slot, stored);
	ot_row_image_of_tuple(&image, info, desc, stored);
	ops = ot_write_set_append();
	/* before that level another region may not know it, and decodes these rows */
	ot_put_u8(ops, ot_format_level >= 1 ? 'C' : 'I');
	ot_put_u16(ops, number);
	ot_row_image_put(ops, &image, info->natts);
	ReleaseTupleDesc(desc);
	MemoryContextSwitchTo(old);
	MemoryContextReset(row_context);
	ot_write_set_check_size();
}

void
ot_capture_update(Relation rel, ItemPointer otid, TupleTableSlot *slot,
				  LockTupleMode lockmode, bool indexes_changed)
{
	OtRelInfo  *info = ot_rel_info(rel);
	uint16		number = ot_write_set_relation(rel, info->layout);
	TupleDesc	desc = RelationGetDescr(rel);
	MemoryContext old = MemoryContextSwitchTo(row_context);
	OtRowImage	key;
	OtRowImage	image;
	HeapTupleData old_stored;
	HeapTupleData new_stored;
	Buffer		old_buffer;
	Buffer		new_buffer;
	/* pins the descriptor, as capture_pin_desc() does */
	TupleTableSlot *before = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	bits8	   *changed = palloc(BITMAPLEN(desc->natts));
	OtKeyMode	mode = ot_row_lock_to_mode(lockmode);
	Bitmapset  *other_forms;
	StringInfo	ops;

	slot_getallattrs(slot);
	ot_row_check_replicable(info, rel, slot);
	ot_session_settings_note(info->runs_functions, info->runs_users_code);
	capture_fetch_stored(rel, otid, &old_stored, &old_buffer);
	capture_fetch_stored(rel, &slot->tts_tid, &new_stored, &new_buffer);
	heap_deform_tuple(&old_stored, desc, before->tts_values, before->tts_isnull);
	ExecStoreVirtualTuple(before);
	before->tts_tid = *otid;
	other_forms = capture_image_of_changes(&image, changed, info, desc, slot, &new_stored,
										   before->tts_values, before->tts_isnull);
	/* a key in another form is another key to heap elsewhere, which then locks more */
	if (unlikely(other_forms != NULL) &&
		bms_overlap(other_forms, RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_KEY)))
		mode = OT_UPDATE;

	capture_take_identity(info, before, mode);
	/* A heap-only update leaves every indexed column as it was. */
	if (indexes_changed)
	{
		capture_take_unique_values(info, rel, before, slot, ot_applied_index());
		capture_check_functions(info, slot);
		ot_row_check_fits_everywhere(info, rel, slot, &new_stored);
	}
	capture_image_of_key(&key, info, rel, desc, &old_stored, before->tts_values);
	ops = ot_write_set_append();
	ot_put_u8(ops, 'U');
	ot_put_u16(ops, number);
	ot_put_u8(ops, mode);
	ot_row_image_put(ops, &key, info->natts);
	appendBinaryStringInfo(ops, (char *) changed, BITMAPLEN(info->natts));
	ot_row_image_put(ops, &image, info->natts);
	ExecDropSingleTupleTableSlot(before);
	ReleaseBuffer(new_buffer);
	ReleaseBuffer(old_buffer);
	MemoryContextSwitchTo(old);
	MemoryContextReset(row_context);
	ot_write_set_check_size();
}

/* moves: an UPDATE inserts the row into another partition. */
void
ot_capture_delete(Relation rel, ItemPointer tid, bool moves)
{
	OtRelInfo  *info = ot_rel_info(rel);
	uint16		number = ot_write_set_relation(rel, info->layout);
	TupleDesc	desc = RelationGetDescr(rel);
	MemoryContext old = MemoryContextSwitchTo(row_context);
	TupleTableSlot *before = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	HeapTupleData stored;
	Buffer		buffer;
	OtRowImage	key;
	StringInfo	ops;

	capture_fetch_stored(rel, tid, &stored, &buffer);
	heap_deform_tuple(&stored, desc, before->tts_values, before->tts_isnull);
	ExecStoreVirtualTuple(before);
	before->tts_tid = *tid;
	ot_session_settings_note(info->runs_functions, info->runs_users_code);
	capture_take_unique_values(info, rel, before, NULL, ot_applied_index());
	if (info->identity < 0)
		capture_take_whole_row(info, before, OT_UPDATE);
	capture_image_of_key(&key, info, rel, desc, &stored, before->tts_values);
	ops = ot_write_set_append();
	ot_put_u8(ops, moves && ot_format_level >= 1 ? 'M' : 'D');
	ot_put_u16(ops, number);
	ot_row_image_put(ops, &key, info->natts);
	ExecDropSingleTupleTableSlot(before);
	ReleaseBuffer(buffer);
	MemoryContextSwitchTo(old);
	MemoryContextReset(row_context);
	ot_write_set_check_size();
}

void
ot_capture_lock(Relation rel, TupleTableSlot *slot, LockTupleMode mode)
{
	OtRelInfo  *info = ot_rel_info(rel);
	MemoryContext old = MemoryContextSwitchTo(row_context);

	capture_take_identity(info, slot, ot_row_lock_to_mode(mode));
	MemoryContextSwitchTo(old);
	MemoryContextReset(row_context);
}

/*
 * The key by which the row at tid is locked at the leader; the mode may become
 * another one.  false: its lock need not be asked for.
 */
bool
ot_capture_row_key(Relation rel, ItemPointer tid, OtKeyMode *mode, OtHash *hash)
{
	OtRelInfo  *info;
	TupleDesc	desc;
	TupleTableSlot *slot;
	HeapTupleData stored;
	MemoryContext old;
	Buffer		buffer;
	bool		has_identity = true;

	stored.t_self = *tid;
	/* if it is not there, heap says so */
	if (!heap_fetch(rel, SnapshotAny, &stored, &buffer, false))
		return false;
	/* no other transaction can see it */
	if (TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(stored.t_data)))
	{
		ReleaseBuffer(buffer);
		return false;
	}
	info = ot_rel_info(rel);
	desc = RelationGetDescr(rel);
	old = MemoryContextSwitchTo(row_context);
	slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	heap_deform_tuple(&stored, desc, slot->tts_values, slot->tts_isnull);
	ExecStoreVirtualTuple(slot);
	if (info->identity < 0)
	{
		*hash = ot_whole_row_hash(info, desc, slot->tts_values, slot->tts_isnull);
		*mode = *mode <= OT_SHARE ? OT_SHARE : OT_UPDATE;
	}
	else
		has_identity = ot_capture_hash_index_value(&info->indexes[info->identity], slot, hash);
	ExecDropSingleTupleTableSlot(slot);
	ReleaseBuffer(buffer);
	MemoryContextSwitchTo(old);
	MemoryContextReset(row_context);
	return has_identity;
}

/* Does the transaction, or the table, want rows of it locked at the leader before they are changed? */
bool
ot_locks_rows_first(Relation rel)
{
	return ot_concurrency == OT_CONCURRENCY_LOCKING || ot_rel_info(rel)->locking;
}

/*
 * Gets the lock of the row at tid at the leader, before heap touches the row.
 * KEY SHARE is not asked for: foreign keys take it on every row that a new one
 * refers to, and only a DELETE or another value of the key is in its way.
 */
bool
ot_capture_lock_first(Relation rel, ItemPointer tid, OtKeyMode mode, LockWaitPolicy policy)
{
	OtHash		hash;

	lock_was_asked = mode != OT_KEY_SHARE && ot_capture_row_key(rel, tid, &mode, &hash);
	return !lock_was_asked || lock_first(rel, hash, mode, policy);
}

/* Another transaction of this server has the row: what was just got at the leader is of no use. */
void
ot_capture_lock_refused(void)
{
	if (lock_was_asked)
		lock_refused();
}
