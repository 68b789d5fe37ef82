/*-------------------------------------------------------------------------
 *
 * write_set.c
 *	  What this transaction changed: operations in order, and keys.
 *
 * A transaction has one buffer of operations and one array of keys, and only
 * appends to them.  A savepoint notes how long they are, and rolling back to it
 * shortens them to that length, so changes, keys and the numbers of relations
 * disappear together.  Notifications are kept apart from the other operations,
 * since each of them is in the write set once, however often it is asked for.
 *
 * A (hash, mode) pair is recorded once, with its first and therefore lowest
 * base: the lock has been held since then, so no other transaction can have
 * come in between.  Which pairs there are is looked up for some keys at a time:
 * where there are many, the table of them is larger than any cache, and memory
 * is asked for all of these places before the first is looked at.
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
#include "catalog/pg_authid.h"
#include "common/cryptohash.h"
#include "common/hashfn.h"
#include "common/sha2.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

typedef struct KeyId
{
	uint64		hash;
	uint32		mode;			/* as on the wire */
} KeyId;

typedef struct KeySlot
{
	KeyId		id;
	char		status;			/* simplehash's */
} KeySlot;

/* On the wire: hash, mode, base; and in the mode: it was only read. */
#define KEY_BYTES 17
#define KEY_READ 4

/*
 * An allocator for a simplehash.  In PostgreSQL 15 that notes the new size of a
 * table before it has the memory, so that after an ERROR, which a savepoint may
 * catch, it would write where nothing is.  There is one table of each kind.
 */
#define SLOTS_ALLOCATOR(prefix, Slot) \
static inline void * \
prefix##_allocate(prefix##_hash *table, Size size) \
{ \
	static uint64 nslots; \
	void	   *slots = MemoryContextAllocExtended(table->ctx, size, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO | MCXT_ALLOC_NO_OOM); \
\
	if (slots == NULL) \
	{ \
		if (table->data != NULL) \
		{ \
			table->size = nslots; \
			table->sizemask = nslots - 1; \
			table->grow_threshold = nslots * 0.9; \
		} \
		ereport(ERROR, \
				(errcode(ERRCODE_OUT_OF_MEMORY), \
				 errmsg("out of memory"), \
				 errdetail("Failed on request of size %zu.", size))); \
	} \
	nslots = size / sizeof(Slot); \
	return slots; \
} \
static inline void \
prefix##_free(prefix##_hash *table, void *slots) \
{ \
	pfree(slots); \
}

#define SH_PREFIX keys
#define SH_ELEMENT_TYPE KeySlot
#define SH_KEY_TYPE KeyId
#define SH_KEY id
#define SH_HASH_KEY(tb, key) ((uint32) ((key).hash ^ (key).mode))
#define SH_EQUAL(tb, a, b) ((a).hash == (b).hash && (a).mode == (b).mode)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#define SH_USE_NONDEFAULT_ALLOCATOR
#include "lib/simplehash.h"
SLOTS_ALLOCATOR(keys, KeySlot)

typedef struct Key
{
	uint64		hash;
	uint64		base;
	Oid			relid;			/* for messages; InvalidOid: the schema */
	ItemPointerData tid;		/* likewise: a row that has it; or invalid */
	uint8		mode;
	bool		read;			/* of what a SERIALIZABLE transaction has read: it is
								 * checked and not taken */
} Key;

#define KEY_ID(key) {(key)->hash, (key)->mode | ((key)->read ? KEY_READ : 0)}

/* So many keys may wait to be looked up. */
#define WAITING_MAX 64

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

/* A notification, by where its operation is. */
typedef struct NoteSlot
{
	int			place;
	uint32		hash;
	char		status;			/* simplehash's */
} NoteSlot;

static uint32 write_set_note_hash(int place);
static bool write_set_note_equal(int a, int b);

#define SH_PREFIX notes
#define SH_ELEMENT_TYPE NoteSlot
#define SH_KEY_TYPE int
#define SH_KEY place
#define SH_HASH_KEY(tb, place) write_set_note_hash(place)
#define SH_EQUAL(tb, a, b) write_set_note_equal(a, b)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, slot) (slot)->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#define SH_USE_NONDEFAULT_ALLOCATOR
#include "lib/simplehash.h"
SLOTS_ALLOCATOR(notes, NoteSlot)

#include "shmem/shmem.h"

static struct
{
	bool		active;
	MemoryContext context;
	StringInfoData ops;
	bool		appending;		/* an operation, which is not whole yet */
	StringInfoData notes;		/* 'N' operations, all different */
	notes_hash *note_places;	/* NULL: there is none */
	Key		   *keys;
	int			nkeys;
	int			max_keys;
	keys_hash  *key_ids;		/* of the first nsettled keys */
	int			nsettled;
	int			first_waiting;	/* nsettled, unless a look-up has failed */
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

static void write_set_start(void);
static void write_set_settle(void);

/* Starts the write set, if this is the transaction's first change. */
void
ot_write_set_touch(void)
{
	if (likely(ws.active))
		return;
	write_set_start();
}

static void
write_set_start(void)
{
	MemoryContext old;

	ot_check_writable();
	ot_slot_begin_writing();	/* ERROR if evicted meanwhile */

	if (ws.context == NULL)
		ws.context = AllocSetContextCreate(TopMemoryContext, "onetrip write set",
										   ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(ws.context);
	initStringInfo(&ws.ops);
	ws.appending = false;
	ws.max_keys = 32;
	ws.keys = palloc(sizeof(Key) * ws.max_keys);
	ws.key_ids = keys_create(ws.context, 32, NULL);
	ws.max_relations = 8;
	ws.relids = palloc(sizeof(Oid) * ws.max_relations);
	ws.max_objects = 8;
	ws.objects = palloc(sizeof(ObjectId) * ws.max_objects);
	ws.object_numbers = NULL;
	memset(&ws.notes, 0, sizeof(ws.notes));
	ws.note_places = NULL;
	ws.max_marks = 8;
	ws.marks = palloc(sizeof(Mark) * ws.max_marks);
	ws.max_statements = 4;
	ws.statements = palloc(sizeof(StatementPlace) * ws.max_statements);
	ws.max_counts = 8;
	ws.counts = palloc(sizeof(RowCount) * ws.max_counts);
	ws.ncounts = 0;
	ws.nkeys = ws.nsettled = ws.first_waiting = ws.nrelations = ws.nobjects = ws.nstatements = ws.nlookups = ws.nmarks = 0;
	ws.first_relation = ws.first_object = 0;
	ws.statement_end = -1;
	ws.sets_sequence = false;
	ws.kind = OT_ENTRY_TRANSACTION;
	ws.wrapped = NULL;
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
	return !ws.active || (ws.ops.len == 0 && ws.notes.len == 0 && ws.nkeys == 0);
}

bool
ot_write_set_has_statements(void)
{
	return ws.active && ws.nstatements > 0;
}

void
ot_write_set_reset(void)
{
	if (!ws.active)
		return;
	ws.active = false;
	ot_large_object_reset();
	MemoryContextReset(ws.context);
}

/* ---- savepoints ---- */

static void
write_set_mark_place(Mark *mark)
{
	mark->ops_len = ws.ops.len;
	mark->notes_len = ws.notes.len;
	mark->nkeys = ws.nkeys;
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

static int	write_set_note_len(int place);

static void
write_set_cut_notes(int len)
{
	for (int place = len; place < ws.notes.len; place += write_set_note_len(place))
		notes_delete(ws.note_places, place);
	ws.notes.len = len;
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
	write_set_settle();
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

	/* Keys that still wait are as good as recorded, unless they had been before. */
	for (int i = mark->nkeys; i < ws.nkeys; i++)
	{
		KeyId		id = KEY_ID(&ws.keys[i]);
		OtHash		hash = {id.hash};

		if (i < ws.nsettled ? keys_delete(ws.key_ids, id) : keys_lookup(ws.key_ids, id) == NULL)
			ot_reads_note_rolled_back(hash, ws.keys[i].relid);
	}
	ws.nkeys = ws.nsettled = ws.first_waiting = mark->nkeys;
	ws.ncounts = mark->ncounts;
	write_set_cut_notes(mark->notes_len);
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

	*bytes = ws.active ? ws.ops.len + ws.notes.len : 0;
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
	write_set_settle();
	sizes->rows = ot_write_set_all_rows(&sizes->bytes);
	for (int i = 0; i < ws.nkeys; i++)
	{
		if (!ws.keys[i].read)
			sizes->keys[ws.keys[i].mode]++;
	}
}

/* ---- keys ---- */

/*
 * Looks up the keys that wait, and drops those that had been recorded before.
 * Should that fail, the others go on waiting.
 */
static void
write_set_settle(void)
{
	for (; ws.first_waiting < ws.nkeys; ws.first_waiting++)
	{
		KeyId		id = KEY_ID(&ws.keys[ws.first_waiting]);
		bool		found;

		keys_insert(ws.key_ids, id, &found);
		if (!found)
			ws.keys[ws.nsettled++] = ws.keys[ws.first_waiting];
	}
	ws.nkeys = ws.first_waiting = ws.nsettled;
}

/* The key waits to be looked up; whoever uses keys has that done first. */
static void
write_set_add(const Key *new)
{
	KeyId		id = KEY_ID(new);

	ot_write_set_touch();
	if (ws.nkeys == ws.max_keys)
		ws.keys = ot_make_room(ws.keys, &ws.max_keys, sizeof(Key));
	ws.keys[ws.nkeys++] = *new;
#ifdef __GNUC__
	__builtin_prefetch(&ws.key_ids->data[(uint32) (id.hash ^ id.mode) & ws.key_ids->sizemask]);
#endif
	if (ws.nkeys - ws.first_waiting >= WAITING_MAX)
	{
		write_set_settle();
		ot_write_set_check_size();
	}
}

static void
write_set_add_key(OtHash hash, OtKeyMode mode, OtLogIndex base, Oid relid, const ItemPointerData *tid)
{
	Key			key = {.hash = hash.value, .mode = mode, .base = base.value, .relid = relid};

	if (tid != NULL)
		key.tid = *tid;
	else
		ItemPointerSetInvalid(&key.tid);
	write_set_add(&key);
}

void
ot_write_set_key(OtHash hash, OtKeyMode mode, OtLogIndex base, Oid relid)
{
	write_set_add_key(hash, mode, base, relid, NULL);
}

void
ot_write_set_key_now(OtHash hash, OtKeyMode mode, Oid relid)
{
	ot_write_set_touch();
	ot_write_set_key(hash, mode, ot_applied_index(), relid);
}

/* The same for a key of the row at tid. */
void
ot_write_set_row_key(OtHash hash, OtKeyMode mode, Oid relid, const ItemPointerData *tid)
{
	ot_write_set_touch();
	write_set_add_key(hash, mode, ot_applied_index(), relid, tid);
}

/* A key of what the transaction has only read, in a snapshot that shows `base`. */
void
ot_write_set_read_key(OtHash hash, OtKeyMode mode, OtLogIndex base, Oid relid)
{
	Key			key = {.hash = hash.value, .mode = mode, .base = base.value, .relid = relid, .read = true};

	ItemPointerSetInvalid(&key.tid);
	write_set_add(&key);
}

bool
ot_write_set_key_is_read(uint32 key_number)
{
	return key_number < (uint32) ws.nsettled && ws.keys[key_number].read;
}

/* Gives a key that the transaction has taken a later base. */
void
ot_write_set_raise_base(OtHash hash, OtKeyMode mode, OtLogIndex base)
{
	if (!ws.active)
		return;
	write_set_settle();
	for (int i = 0; i < ws.nkeys; i++)
	{
		if (ws.keys[i].hash == hash.value && ws.keys[i].mode == mode && !ws.keys[i].read)
			ws.keys[i].base = Max(ws.keys[i].base, base.value);
	}
}

/* Has the transaction taken this key in this mode? */
bool
ot_write_set_has_key(OtHash hash, OtKeyMode mode)
{
	KeyId		id = {hash.value, mode};

	if (!ws.active)
		return false;
	write_set_settle();
	return keys_lookup(ws.key_ids, id) != NULL;
}

/* Takes a key that conflicts with nothing, so that COMMIT proposes an entry. */
void
ot_write_set_entry(OtLogIndex base)
{
	OtHash		hash = {hash_bytes_extended((const unsigned char *) "advance", 7, ot_key_seed)};

	ot_write_set_key(hash, OT_KEY_SHARE, base, InvalidOid);
}

/* Makes COMMIT propose an entry although the transaction changes nothing. */
void
ot_write_set_advance(void)
{
	ot_write_set_touch();
	ot_write_set_entry(ot_applied_index());
}

/*
 * The tables to which keys that have been taken so far belong, and those of its rows:
 * a row without unique values has no key.
 */
List *
ot_write_set_key_tables(void)
{
	List	   *tables = NIL;

	if (!ws.active)
		return NIL;
	write_set_settle();
	for (int i = 0; i < ws.nkeys; i++)
	{
		if (OidIsValid(ws.keys[i].relid) && (i == 0 || ws.keys[i].relid != ws.keys[i - 1].relid))
			tables = list_append_unique_oid(tables, ws.keys[i].relid);
	}
	for (int i = 0; i < ws.nrelations; i++)
		tables = list_append_unique_oid(tables, ws.relids[i]);
	return tables;
}

/* Which table the key belongs to; InvalidOid: none (such as the schema's). */
Oid
ot_write_set_key_table(uint32 key_number)
{
	return key_number < (uint32) ws.nsettled ? ws.keys[key_number].relid : InvalidOid;
}

/*
 * A row that had the key when it was taken, or an invalid TID; and the key's
 * hash.
 */
ItemPointerData
ot_write_set_key_row(uint32 key_number, OtHash *hash)
{
	ItemPointerData none;

	ItemPointerSetInvalid(&none);
	if (key_number >= (uint32) ws.nsettled)
		return none;
	hash->value = ws.keys[key_number].hash;
	return ws.keys[key_number].tid;
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

/*
 * Raises ERROR if the entry has grown past onetrip.max_write_set.  Keys count,
 * too: a row lock adds nothing else.
 */
void
ot_write_set_check_size(void)
{
	ot_write_set_appended();
	if (unlikely(ws.ops.len / 1024 + ws.notes.len / 1024 + (int64) ws.nkeys * KEY_BYTES / 1024 >
				 ot_max_write_set_kb))
		ereport(ERROR,
				(errcode(OT_ERR_TOO_LARGE),
				 errmsg("transaction changes more than onetrip.max_write_set (%d kB)",
						ot_max_write_set_kb),
				 errhint("Split the work into several transactions, or raise onetrip.max_write_set.")));
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

/* ---- notifications ---- */

static int
write_set_note_len(int place)
{
	const unsigned char *data = (const unsigned char *) ws.notes.data;
	int			at = place + 1;

	for (int i = 0; i < 2; i++)
		at += 2 + (data[at] | data[at + 1] << 8);
	return at - place;
}

static uint32
write_set_note_hash(int place)
{
	return hash_bytes((const unsigned char *) ws.notes.data + place, write_set_note_len(place));
}

static bool
write_set_note_equal(int a, int b)
{
	int			len = write_set_note_len(a);

	return len == write_set_note_len(b) && memcmp(ws.notes.data + a, ws.notes.data + b, len) == 0;
}

/* Records a notification, unless the transaction has sent the same one before. */
void
ot_write_set_notification(const char *channel, const char *payload)
{
	int			place;
	bool		found;

	ot_write_set_touch();
	if (ws.note_places == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(ws.context);

		initStringInfo(&ws.notes);
		ws.note_places = notes_create(ws.context, 16, NULL);
		MemoryContextSwitchTo(old);
	}
	place = ws.notes.len;
	ot_put_u8(&ws.notes, 'N');
	ot_put_str(&ws.notes, channel);
	ot_put_str(&ws.notes, payload);
	notes_insert(ws.note_places, place, &found);
	if (found)
		ws.notes.len = place;
	ot_write_set_check_size();
}

bool
ot_write_set_has_notifications(void)
{
	return ws.active && ws.notes.len > 0;
}

/* How many bytes the notifications take in the write set. */
uint64
ot_write_set_notification_bytes(void)
{
	return ws.active ? ws.notes.len : 0;
}

/*
 * Makes this an entry of another kind, whose first key is `name` and which has
 * these operations in place of those recorded so far.  They are not copied.
 */
void
ot_write_set_wrap(OtEntryKind kind, OtHash name, OtLogIndex base, StringInfo operations)
{
	Key			first;

	ot_write_set_key(name, OT_UPDATE, base, InvalidOid);
	write_set_settle();
	first = ws.keys[0];
	ws.keys[0] = ws.keys[ws.nkeys - 1];
	ws.keys[ws.nkeys - 1] = first;
	ws.kind = kind;
	ws.wrapped = operations;
}

/* Appends the entry in the format of docs/agent-protocol.md. */
void
ot_write_set_encode(OtTxnId txn, StringInfo out)
{
	write_set_settle();
	enlargeStringInfo(out, OT_TXN_ID_BYTES + 5 + ws.nkeys * KEY_BYTES +
					  (ws.wrapped ? ws.wrapped->len : 10 + ws.notes.len + ws.ops.len));
	ot_put_txn(out, txn);
	ot_put_u8(out, ws.kind);
	ot_put_u32(out, ws.nkeys);
	for (int i = 0; i < ws.nkeys; i++)
	{
		KeyId		id = KEY_ID(&ws.keys[i]);

		ot_put_u64(out, id.hash);
		ot_put_u8(out, id.mode);
		ot_put_u64(out, ws.keys[i].base);
	}
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
	if (ws.ops.len == 0 && ws.notes.len == 0)
		return;
	ot_put_u8(out, OT_WRITE_SET_FORMAT);
	if (ws.nlookups > 0)
	{
		ot_put_u8(out, 'T');
		ot_put_u64(out, (uint64) GetCurrentTransactionStartTimestamp());
	}
	if (ws.notes.len > 0)
		appendBinaryStringInfo(out, ws.notes.data, ws.notes.len);
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

/*
 * From a key's hash and the value that it was made of, others could be computed.  So
 * who may not watch the cluster gets a number that is as good to compare, and no more.
 */
uint64
ot_hash_to_show(uint64 hash)
{
	uint64		both[2] = {ot_key_seed, hash};
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	pg_cryptohash_ctx *ctx;

	if (has_privs_of_role(GetUserId(), ROLE_PG_MONITOR))
		return hash;
	ctx = pg_cryptohash_create(PG_SHA256);
	if (pg_cryptohash_init(ctx) < 0 ||
		pg_cryptohash_update(ctx, (uint8 *) both, sizeof(both)) < 0 ||
		pg_cryptohash_final(ctx, digest, sizeof(digest)) < 0)
		elog(ERROR, "could not compute a hash: %s", pg_cryptohash_error(ctx));
	pg_cryptohash_free(ctx);
	memcpy(&hash, digest, sizeof(hash));
	return hash;
}

PG_FUNCTION_INFO_V1(ot_pending_keys);
PG_FUNCTION_INFO_V1(ot_pending_bytes);

/*
 * onetrip.pending_keys(): the keys that this transaction has taken so far, and
 * those of what it has read if it is SERIALIZABLE.
 */
Datum
ot_pending_keys(PG_FUNCTION_ARGS)
{
	static const char *const mode_names[] = {
		"KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE"
	};
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	if (ws.active)
		write_set_settle();
	for (int i = 0; ws.active && i < ws.nkeys; i++)
	{
		Key		   *key = &ws.keys[i];
		Datum		values[4];
		bool		nulls[4] = {0};

		values[0] = ObjectIdGetDatum(key->relid);
		nulls[0] = !OidIsValid(key->relid);
		values[1] = CStringGetTextDatum(mode_names[key->mode]);
		values[2] = Int64GetDatum((int64) ot_hash_to_show(key->hash));
		values[3] = Int64GetDatum((int64) key->base);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	ot_reads_put_pending(result);
	return (Datum) 0;
}

/* onetrip.pending_bytes(): the size of this transaction's operations so far. */
Datum
ot_pending_bytes(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(ws.active ? ws.ops.len + ws.notes.len : 0);
}
