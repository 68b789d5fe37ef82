/*-------------------------------------------------------------------------
 *
 * write_set.c
 *	  What this transaction changed: operations in order, and keys.
 *
 * A transaction has one buffer of operations and one array of keys, and only
 * appends to them.  A savepoint notes how long they are, and rolling back to it
 * shortens them to that length, so changes, keys and the numbers of relations
 * disappear together.  Notifications are kept apart from the other operations,
 * since each of them is in the write set once, however often it is asked for
 * (write_set_notes.c).  Keys are in write_set_keys.c.
 *
 * Runs in backends.  Everything is in one memory context below
 * TopMemoryContext, which is reset at the end of the transaction: COMMIT reads
 * it after portals are gone.  Errors: 54000 when the write set grows past
 * onetrip.max_write_set, 40001 when the transaction was evicted before it
 * recorded its first change, 25006 on a read replica.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "capture/slots_allocator.h"
#include "shmem/shmem.h"

/* The lengths of everything in the write set when a savepoint was set. */
typedef struct Mark
{
	int			nest_level;
	int			ops_len;
	int			notes_len;
	int			nkeys;
	int			nrelations;
	int			first_relation;
	int			nobjects;
	int			first_object;
	int			nstatements;
	int			nlookups;
	int			ncounts;
	OtNotedSettings settings;
} Mark;

/* A number of rows in sequence, of one table, written by the access method. */
typedef struct RowCount
{
	Oid			relid;
	uint64		rows;
} RowCount;

/* Where in the operations a statement is. */
typedef struct StatementPlace
{
	int			begin;
	int			end;
} StatementPlace;

/* An object that values refer to, as this server identifies it. */
typedef struct ObjectId
{
	uint32		kind;			/* OtObjectKind */
	Oid			oid;
	bool		named;			/* by a value that may name any object */
} ObjectId;

typedef struct ObjectSlot
{
	ObjectId	id;
	uint32		number;
	char		status;			/* simplehash's */
} ObjectSlot;

#define SH_PREFIX objects
#define SH_ELEMENT_TYPE ObjectSlot
#define SH_KEY_TYPE ObjectId
#define SH_KEY id
#define SH_HASH_KEY(tb, key) murmurhash32((key).oid ^ ((key).kind << 24))
#define SH_EQUAL(tb, a, b) ((a).oid == (b).oid && (a).kind == (b).kind)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#define SH_USE_NONDEFAULT_ALLOCATOR
#include "lib/simplehash.h"
SLOTS_ALLOCATOR(objects, ObjectSlot)

static struct
{
	bool		active;
	MemoryContext context;
	StringInfoData ops;
	bool		appending;		/* an operation, which is not whole yet */
	/*
	 * Introduced by 'R', by number.  Those below first_relation were introduced
	 * before a statement that may have changed them, and are introduced again.
	 */
	Oid		   *relids;
	int			first_relation;
	int			nrelations;
	int			max_relations;
	/* introduced by 'O', likewise */
	ObjectId   *objects;
	int			first_object;
	int			nobjects;
	int			max_objects;
	objects_hash *object_numbers;
	StatementPlace *statements; /* 'S' operations in ops */
	int			nstatements;
	int			max_statements;
	int			nlookups;		/* operations whose reader looks names up */
	Mark		before_statement;	/* where the last 'S' began */
	int			statement_end;	/* and where it ended; -1: it is gone */
	Mark	   *marks;
	int			nmarks;
	int			max_marks;
	RowCount   *counts;
	int			ncounts;
	int			max_counts;
	bool		sets_sequence;	/* setval() was called, perhaps in a subtransaction
								 * that was rolled back */
	OtEntryKind kind;
	StringInfo	wrapped;		/* if not NULL, in place of the operations */
}			ws;

/* COMMIT is done with it, or needs none. */
static bool closed = false;

static void write_set_start(void);

static void
write_set_raise_closed(void)
{
	ereport(ERROR,
			(errcode(OT_ERR_NOT_REPLICATED),
			 errmsg("cannot replicate a change that C code makes at COMMIT, after onetrip"),
			 errdetail("Other regions would not get it."),
			 errhint("Name onetrip first in shared_preload_libraries: libraries before it are called after it at COMMIT.")));
}

/* Starts the write set, if this is the transaction's first change. */
void
ot_write_set_touch(void)
{
	if (unlikely(closed))
		write_set_raise_closed();
	if (likely(ws.active))
		return;
	write_set_start();
}

static void
write_set_start(void)
{
	static MemoryContext context = NULL;
	MemoryContext old;

	ot_check_writable();
	ot_slot_begin_writing();	/* ERROR if evicted meanwhile */

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "onetrip write set",
										ALLOCSET_DEFAULT_SIZES);
	memset(&ws, 0, sizeof(ws));
	ws.context = context;
	old = MemoryContextSwitchTo(context);
	initStringInfo(&ws.ops);
	ws.max_relations = 8;
	ws.relids = palloc(sizeof(Oid) * ws.max_relations);
	ws.max_objects = 8;
	ws.objects = palloc(sizeof(ObjectId) * ws.max_objects);
	ws.max_marks = 8;
	ws.marks = palloc(sizeof(Mark) * ws.max_marks);
	ws.max_statements = 4;
	ws.statements = palloc(sizeof(StatementPlace) * ws.max_statements);
	ws.max_counts = 8;
	ws.counts = palloc(sizeof(RowCount) * ws.max_counts);
	ws.statement_end = -1;
	ot_write_set_keys_start(context);
	ot_write_set_notes_start(context);
	ot_session_settings_forget((OtNotedSettings) {0});
	MemoryContextSwitchTo(old);

	ws.active = true;
	/* Savepoints that were set before the first change get a mark now. */
	for (int level = 2; level <= GetCurrentTransactionNestLevel(); level++)
		ot_write_set_subxact_start(level);
}

bool
ot_write_set_is_empty(void)
{
	return !ws.active || (ws.ops.len == 0 && !ot_write_set_has_notifications() && ot_write_set_keys_count() == 0);
}

bool
ot_write_set_has_statements(void)
{
	return ws.active && ws.nstatements > 0;
}

/*
 * Called when PRE_COMMIT is over.  From then until the end of the transaction nothing
 * of ours changes what is replicated.
 */
void
ot_write_set_close(void)
{
	closed = true;
}

void
ot_write_set_reset(void)
{
	closed = false;
	if (!ws.active)
		return;
	ws.active = false;
	ot_large_object_reset();
	ot_write_set_keys_reset();
	ot_write_set_notes_reset();
	MemoryContextReset(ws.context);
}

/* ---- savepoints ---- */

static void
write_set_mark_place(Mark *mark)
{
	mark->ops_len = ws.ops.len;
	mark->notes_len = ot_write_set_notification_bytes();
	mark->nkeys = ot_write_set_keys_count();
	mark->nrelations = ws.nrelations;
	mark->first_relation = ws.first_relation;
	mark->nobjects = ws.nobjects;
	mark->first_object = ws.first_object;
	mark->settings = ot_session_settings_noted();
	mark->nstatements = ws.nstatements;
	mark->nlookups = ws.nlookups;
	mark->ncounts = ws.ncounts;
}

/*
 * Removes the operations since the mark.  What was introduced before it has the
 * name again that it had then.
 */
static void
write_set_cut_operations(const Mark *mark)
{
	ws.ops.len = mark->ops_len;
	ws.ops.data[ws.ops.len] = '\0';
	ws.nstatements = mark->nstatements;
	ws.nlookups = mark->nlookups;
	ws.nrelations = mark->nrelations;
	ws.first_relation = mark->first_relation;
	for (int i = mark->nobjects; i < ws.nobjects; i++)
		objects_delete(ws.object_numbers, ws.objects[i]);
	ws.nobjects = mark->nobjects;
	ws.first_object = mark->first_object;
	ot_session_settings_forget(mark->settings);
	ws.statement_end = -1;
}

void
ot_write_set_subxact_start(int nest_level)
{
	Mark	   *mark;

	if (!ws.active)
		return;
	ot_large_object_subxact_start();
	if (ws.nmarks == ws.max_marks)
		ws.marks = ot_make_room(ws.marks, &ws.max_marks, sizeof(Mark));
	ot_write_set_keys_settle();
	mark = &ws.marks[ws.nmarks++];
	mark->nest_level = nest_level;
	write_set_mark_place(mark);
}

void
ot_write_set_subxact_end(int nest_level, bool committed)
{
	Mark	   *mark;

	if (!committed)
		ws.appending = false;
	if (!ws.active || ws.nmarks == 0)
		return;
	mark = &ws.marks[ws.nmarks - 1];
	/* An ERROR at its beginning: it has no mark, and has changed nothing. */
	if (mark->nest_level < nest_level)
		return;
	Assert(mark->nest_level == nest_level);
	ws.nmarks--;
	ot_large_object_subxact_end(nest_level, committed);
	if (committed)
		return;

	ot_write_set_keys_cut(mark->nkeys);
	ot_write_set_notes_cut(mark->notes_len);
	ws.ncounts = mark->ncounts;
	write_set_cut_operations(mark);
}

/* ---- rows that were seen ---- */

/*
 * Counts rows that were written by way of the access method.  InvalidOid stands for
 * all catalogs: rows of theirs that whatever is in the write set writes anew.
 */
void
ot_write_set_note_rows(Oid relid, int rows)
{
	/* A count from before the last savepoint must stay as it is. */
	int			first = ws.active && ws.nmarks > 0 ? ws.marks[ws.nmarks - 1].ncounts : 0;

	if (!ws.active)
		return;
	if (ws.ncounts > first && ws.counts[ws.ncounts - 1].relid == relid)
	{
		ws.counts[ws.ncounts - 1].rows += rows;
		return;
	}
	if (ws.ncounts == ws.max_counts)
		ws.counts = ot_make_room(ws.counts, &ws.max_counts, sizeof(RowCount));
	ws.counts[ws.ncounts].relid = relid;
	ws.counts[ws.ncounts++].rows = rows;
}

uint64
ot_write_set_rows(Oid relid)
{
	uint64		rows = 0;

	for (int i = 0; ws.active && i < ws.ncounts; i++)
	{
		if (ws.counts[i].relid == relid)
			rows += ws.counts[i].rows;
	}
	return rows;
}

/* How many rows it has, and in how many bytes of operations. */
int64
ot_write_set_all_rows(int64 *bytes)
{
	int64		rows = 0;

	*bytes = ws.active ? ws.ops.len + ot_write_set_notification_bytes() : 0;
	for (int i = 0; ws.active && i < ws.ncounts; i++)
	{
		if (OidIsValid(ws.counts[i].relid))
			rows += ws.counts[i].rows;
	}
	return rows;
}

void
ot_write_set_sizes(OtWriteSetSizes *sizes)
{
	memset(sizes, 0, sizeof(*sizes));
	if (!ws.active)
		return;
	sizes->rows = ot_write_set_all_rows(&sizes->bytes);
	ot_write_set_keys_by_mode(sizes->keys);
}

/* ---- tables ---- */

/*
 * The tables to which keys that have been taken so far belong, and those of its rows:
 * a row without unique values has no key.
 */
List *
ot_write_set_key_tables(void)
{
	List	   *tables;

	if (!ws.active)
		return NIL;
	tables = ot_write_set_tables_of_keys();
	for (int i = 0; i < ws.nrelations; i++)
		tables = list_append_unique_oid(tables, ws.relids[i]);
	return tables;
}

/* Copies the tables whose rows were changed, each once, and returns how many. */
int
ot_write_set_tables(Oid *relids, int max)
{
	int			n = 0;

	for (int i = 0; ws.active && i < ws.nrelations && n < max; i++)
	{
		int			seen = 0;

		while (seen < n && relids[seen] != ws.relids[i])
			seen++;
		if (seen == n)
			relids[n++] = ws.relids[i];
	}
	return n;
}

/* ---- operations ---- */

static void
write_set_raise_too_large(void)
{
	Oid			last = ot_write_set_keys_last_table();
	char	   *table = OidIsValid(last) ? get_rel_name(last) : NULL;

	ereport(ERROR,
			(errcode(OT_ERR_TOO_LARGE),
			 errmsg("transaction changes more than onetrip.max_write_set (%d kB)",
					ot_max_write_set_kb),
			 table ? errdetail("The last row that it has changed or locked is in table \"%s\".", table) : 0,
			 errhint("Split the work into several transactions (COPY in parts, INSERT ... SELECT by ranges). A superuser may raise onetrip.max_write_set, up to max_entry_bytes in node.toml.")));
}

/*
 * Raises ERROR if the entry has grown past onetrip.max_write_set.  Keys count,
 * too: a row lock adds nothing else.
 */
void
ot_write_set_check_size(void)
{
	ot_write_set_appended();
	if (unlikely(ws.ops.len / 1024 + ot_write_set_notification_bytes() / 1024 + ot_write_set_keys_bytes() / 1024 >
				 ot_max_write_set_kb))
		write_set_raise_too_large();
}

/*
 * The buffer to append one operation to.  Then call ot_write_set_check_size.  Until
 * then nothing may run a user's function, which may append operations of its own.
 */
StringInfo
ot_write_set_append(void)
{
	ot_write_set_touch();
	OT_ASSERT(!ws.appending);
	ws.appending = true;
	return &ws.ops;
}

/* The operation is whole, and whoever appended it checks the size later. */
void
ot_write_set_appended(void)
{
	ws.appending = false;
}

/* Is an operation being appended, so that no other one may be? */
bool
ot_write_set_is_appending(void)
{
	return ws.active && ws.appending;
}

/* The number of rel in this write set; introduces it on first use. */
uint16
ot_write_set_relation(Relation rel, uint32 layout)
{
	Oid			relid = RelationGetRelid(rel);
	StringInfo	ops;
	char	   *schema;

	/* Most transactions change few relations, and mostly the last one again. */
	for (int i = ws.active ? ws.nrelations - 1 : -1; i >= ws.first_relation; i--)
	{
		if (ws.relids[i] == relid)
			return i;
	}

	ops = ot_write_set_append();
	if (ws.nrelations > PG_UINT16_MAX)
		ereport(ERROR,
				(errcode(OT_ERR_TOO_LARGE),
				 errmsg("transaction refers to tables more than %d times", PG_UINT16_MAX + 1),
				 errdetail("A table counts once, and once more after each statement that may change its definition."),
				 errhint("Split the work into several transactions.")));
	if (ws.nrelations == ws.max_relations)
		ws.relids = ot_make_room(ws.relids, &ws.max_relations, sizeof(Oid));

	schema = get_namespace_name(RelationGetNamespace(rel));
	ot_put_u8(ops, 'R');
	ot_put_str(ops, schema);
	ot_put_str(ops, RelationGetRelationName(rel));
	ot_put_u16(ops, RelationGetNumberOfAttributes(rel));
	ot_put_u32(ops, layout);
	ot_write_set_appended();
	pfree(schema);
	ws.relids[ws.nrelations] = relid;
	return ws.nrelations++;
}

/* Has this object been introduced, with no statement after that? */
bool
ot_write_set_find_object(uint32 kind, Oid oid, uint32 *number)
{
	ObjectId	id = {kind, oid};
	ObjectSlot *slot;

	if (!ws.active || ws.object_numbers == NULL)
		return false;
	slot = objects_lookup(ws.object_numbers, id);
	if (slot == NULL || slot->number < ws.first_object)
		return false;
	*number = slot->number;
	return true;
}

/*
 * Notes that the operation being appended makes its reader look names up, so
 * that the entry must be read in its turn.
 */
void
ot_write_set_looks_names_up(void)
{
	ws.nlookups++;
}

/* Numbers the object of the 'O' operation that has just been appended. */
uint32
ot_write_set_number_object(uint32 kind, Oid oid)
{
	ObjectId	id = {kind, oid};
	ObjectSlot *slot;
	bool		found;

	if (ws.object_numbers == NULL)
		ws.object_numbers = objects_create(ws.context, 16, NULL);
	if (ws.nobjects == ws.max_objects)
		ws.objects = ot_make_room(ws.objects, &ws.max_objects, sizeof(ObjectId));
	slot = objects_insert(ws.object_numbers, id, &found);
	slot->number = ws.nobjects;
	ws.objects[ws.nobjects] = id;
	ot_write_set_appended();
	ot_write_set_looks_names_up();
	return ws.nobjects++;
}

void
ot_write_set_note_named(uint32 number)
{
	ws.objects[number].named = true;
}

/* The next object from *at on that a value names which may name any; false: there is none. */
bool
ot_write_set_next_named(int *at, uint32 *kind, Oid *oid)
{
	if (!ws.active)
		return false;
	while (*at < ws.nobjects)
	{
		ObjectId   *object = &ws.objects[(*at)++];

		*kind = object->kind;
		*oid = object->oid;
		if (object->named)
			return true;
	}
	return false;
}

/* Removes what has been appended from there on, since the last savepoint. */
void
ot_write_set_take_back_from(int at)
{
	OT_ASSERT(ws.nmarks == 0 || at >= ws.marks[ws.nmarks - 1].ops_len);
	ws.ops.len = at;
	ws.ops.data[at] = '\0';
}

/* Records a statement, with the role and all settings that it depends on. */
void
ot_write_set_statement(const char *text, bool is_script)
{
	StringInfo	ops = ot_write_set_append();
	char	   *role = GetUserNameFromId(GetUserId(), false);
	int			len = strlen(text);
	int			begin = ops->len;

	if (ws.nstatements == ws.max_statements)
		ws.statements = ot_make_room(ws.statements, &ws.max_statements, sizeof(StatementPlace));
	write_set_mark_place(&ws.before_statement);
	ot_put_u8(ops, 'S');
	ot_put_u32(ops, len);
	appendBinaryStringInfo(ops, text, len);
	ot_put_str(ops, role);
	ot_session_settings_put_all(ops, is_script);
	pfree(role);
	ot_write_set_check_size();

	ws.statements[ws.nstatements++] = (StatementPlace) {begin, ops->len};
	ot_write_set_looks_names_up();
	/* It may rename tables or add columns to them: introduce them again. */
	ws.first_relation = ws.nrelations;
	ws.first_object = ws.nobjects;
	ot_session_settings_forget((OtNotedSettings) {0});
	ws.statement_end = ws.ops.len;
}

/*
 * Removes the last operation if it is a statement, but not its keys.  false: it
 * is not a statement.
 */
bool
ot_write_set_take_statement_back(void)
{
	if (!ws.active || ws.statement_end != ws.ops.len)
		return false;
	write_set_cut_operations(&ws.before_statement);
	return true;
}

void
ot_write_set_sequence(const char *schema, const char *name, int64 last_value,
					  uint8 flags)
{
	StringInfo	ops = ot_write_set_append();

	ot_put_u8(ops, 'Q');
	ot_put_str(ops, schema);
	ot_put_str(ops, name);
	ot_put_u64(ops, (uint64) last_value);
	ot_put_u8(ops, flags);
	ot_write_set_check_size();
	/*
	 * A rollback does not undo that a sequence was set.  So the worker must not
	 * set it twice: it applies this entry in its turn, in a transaction of its
	 * own.  Raising a sequence twice does no harm.
	 */
	if (flags & OT_SEQUENCE_EXACT)
	{
		ot_write_set_looks_names_up();
		ws.sets_sequence = true;
	}
}

/* Has the transaction called setval(), which no rollback undoes? */
bool
ot_write_set_sets_sequence(void)
{
	return ws.active && ws.sets_sequence;
}

/*
 * Makes this an entry of another kind, whose first key is `name` and which has
 * these operations in place of those recorded so far.  They are not copied.
 */
void
ot_write_set_wrap(OtEntryKind kind, OtHash name, OtLogIndex base, StringInfo operations)
{
	ot_write_set_key(name, OT_UPDATE, base, InvalidOid);
	ot_write_set_keys_last_first();
	ws.kind = kind;
	ws.wrapped = operations;
}

/* Appends the entry in the format of docs/agent-protocol.md. */
void
ot_write_set_encode(OtTxnId txn, StringInfo out)
{
	ot_write_set_keys_settle();
	enlargeStringInfo(out, OT_TXN_ID_BYTES + 5 + ot_write_set_keys_bytes() +
					  (ws.wrapped ? ws.wrapped->len : 10 + ot_write_set_notification_bytes() + ws.ops.len));
	ot_put_txn(out, txn);
	ot_put_u8(out, ws.kind);
	ot_write_set_keys_put(out);
	if (ws.wrapped)
		appendBinaryStringInfo(out, ws.wrapped->data, ws.wrapped->len);
	else
		ot_write_set_operations(out);
}

int
ot_write_set_operations_length(void)
{
	return ws.active ? ws.ops.len : 0;
}

/* Appends the operations from there on. */
void
ot_write_set_operations_from(int at, StringInfo out)
{
	if (ws.active)
		appendBinaryStringInfo(out, ws.ops.data + at, ws.ops.len - at);
}

/* Appends the operations, without the keys. */
void
ot_write_set_operations(StringInfo out)
{
	if (ws.ops.len == 0 && !ot_write_set_has_notifications())
		return;
	ot_put_u8(out, OT_WRITE_SET_FORMAT);
	if (ws.nlookups > 0)
	{
		ot_put_u8(out, 'T');
		ot_put_u64(out, (uint64) GetCurrentTransactionStartTimestamp());
	}
	ot_write_set_notes_put(out);
	appendBinaryStringInfo(out, ws.ops.data, ws.ops.len);
}

/* Appends the operations that are statements, as a write set of their own. */
void
ot_write_set_statements(StringInfo out)
{
	ot_put_u8(out, OT_WRITE_SET_FORMAT);
	ot_put_u8(out, 'T');
	ot_put_u64(out, (uint64) GetCurrentTransactionStartTimestamp());
	for (int i = 0; ws.active && i < ws.nstatements; i++)
		appendBinaryStringInfo(out, ws.ops.data + ws.statements[i].begin,
							   ws.statements[i].end - ws.statements[i].begin);
}

/* ---- functions for SQL ---- */

PG_FUNCTION_INFO_V1(ot_pending_bytes);

/* onetrip.pending_bytes(): the size of this transaction's operations so far. */
Datum
ot_pending_bytes(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(ws.active ? ws.ops.len + ot_write_set_notification_bytes() : 0);
}
