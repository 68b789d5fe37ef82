/*-------------------------------------------------------------------------
 *
 * write_set_keys.c
 *	  The keys of this transaction's write set.
 *
 * A (hash, mode) pair is recorded once, with its first and therefore lowest
 * base: the lock has been held since then, so no other transaction can have
 * come in between.  Which pairs there are is looked up for some keys at a time:
 * where there are many, the table of them is larger than any cache, and memory
 * is asked for all of these places before the first is looked at.
 *
 * Runs in backends.  Everything is in the write set's memory context
 * (write_set.c), and there is none before the write set has been started.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "catalog/pg_authid.h"
#include "common/cryptohash.h"
#include "common/hashfn.h"
#include "common/sha2.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "capture/slots_allocator.h"
#include "shmem/shmem.h"

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

static struct
{
	Key		   *keys;
	int			nkeys;
	int			max_keys;
	keys_hash  *ids;			/* of the first nsettled keys; NULL: the write set has
								 * not been started */
	int			nsettled;
	int			first_waiting;	/* nsettled, unless a look-up has failed */
}			taken;

/* ---- what write_set.c calls ---- */

void
ot_write_set_keys_start(MemoryContext context)
{
	taken.max_keys = 32;
	taken.keys = MemoryContextAlloc(context, sizeof(Key) * taken.max_keys);
	taken.ids = keys_create(context, 32, NULL);
	taken.nkeys = taken.nsettled = taken.first_waiting = 0;
}

void
ot_write_set_keys_reset(void)
{
	memset(&taken, 0, sizeof(taken));
}

/*
 * Looks up the keys that wait, and drops those that had been recorded before.
 * Should that fail, the others go on waiting.
 */
void
ot_write_set_keys_settle(void)
{
	for (; taken.first_waiting < taken.nkeys; taken.first_waiting++)
	{
		KeyId		id = KEY_ID(&taken.keys[taken.first_waiting]);
		bool		found;

		keys_insert(taken.ids, id, &found);
		if (!found)
			taken.keys[taken.nsettled++] = taken.keys[taken.first_waiting];
	}
	taken.nkeys = taken.first_waiting = taken.nsettled;
}

/* With those that wait, which may have been recorded before. */
int
ot_write_set_keys_count(void)
{
	return taken.nkeys;
}

/* The table of the last one of a row; without any, of the last one that is not of a read; or InvalidOid. */
Oid
ot_write_set_keys_last_table(void)
{
	Oid			table = InvalidOid;

	for (int i = taken.nkeys - 1; i >= 0; i--)
	{
		if (taken.keys[i].read)
			continue;
		if (ItemPointerIsValid(&taken.keys[i].tid))
			return taken.keys[i].relid;
		if (!OidIsValid(table))
			table = taken.keys[i].relid;
	}
	return table;
}

/* The size that they have in the entry. */
int64
ot_write_set_keys_bytes(void)
{
	return (int64) taken.nkeys * KEY_BYTES;
}

/* Adds how many have been taken in each mode. */
void
ot_write_set_keys_by_mode(int64 *counts)
{
	ot_write_set_keys_settle();
	for (int i = 0; i < taken.nkeys; i++)
	{
		if (!taken.keys[i].read)
			counts[taken.keys[i].mode]++;
	}
}

/* The tables to which they belong. */
List *
ot_write_set_tables_of_keys(void)
{
	List	   *tables = NIL;

	ot_write_set_keys_settle();
	for (int i = 0; i < taken.nkeys; i++)
	{
		if (OidIsValid(taken.keys[i].relid) && (i == 0 || taken.keys[i].relid != taken.keys[i - 1].relid))
			tables = list_append_unique_oid(tables, taken.keys[i].relid);
	}
	return tables;
}

/* A savepoint, at which there were n of them, is rolled back. */
void
ot_write_set_keys_cut(int n)
{
	/* Keys that still wait are as good as recorded, unless they had been before. */
	for (int i = n; i < taken.nkeys; i++)
	{
		KeyId		id = KEY_ID(&taken.keys[i]);
		OtHash		hash = {id.hash};

		if (i < taken.nsettled ? keys_delete(taken.ids, id) : keys_lookup(taken.ids, id) == NULL)
			ot_reads_note_rolled_back(hash, taken.keys[i].relid);
	}
	taken.nkeys = taken.nsettled = taken.first_waiting = n;
}

/* The key that was taken last changes places with the first one. */
void
ot_write_set_keys_last_first(void)
{
	Key			first;

	ot_write_set_keys_settle();
	first = taken.keys[0];
	taken.keys[0] = taken.keys[taken.nkeys - 1];
	taken.keys[taken.nkeys - 1] = first;
}

/* Appends them to an entry: how many there are, and each of them. */
void
ot_write_set_keys_put(StringInfo out)
{
	ot_write_set_keys_settle();
	ot_put_u32(out, taken.nkeys);
	for (int i = 0; i < taken.nkeys; i++)
	{
		KeyId		id = KEY_ID(&taken.keys[i]);

		ot_put_u64(out, id.hash);
		ot_put_u8(out, id.mode);
		ot_put_u64(out, taken.keys[i].base);
	}
}

/* ---- taking them ---- */

/* The key waits to be looked up; whoever uses keys has that done first. */
static void
write_set_keys_add(const Key *new)
{
	KeyId		id = KEY_ID(new);

	ot_write_set_touch();
	if (taken.nkeys == taken.max_keys)
		taken.keys = ot_make_room(taken.keys, &taken.max_keys, sizeof(Key));
	taken.keys[taken.nkeys++] = *new;
#ifdef __GNUC__
	__builtin_prefetch(&taken.ids->data[(uint32) (id.hash ^ id.mode) & taken.ids->sizemask]);
#endif
	if (taken.nkeys - taken.first_waiting >= WAITING_MAX)
	{
		ot_write_set_keys_settle();
		ot_write_set_check_size();
	}
}

static void
write_set_keys_take(OtHash hash, OtKeyMode mode, OtLogIndex base, Oid relid, const ItemPointerData *tid)
{
	Key			key = {.hash = hash.value, .mode = mode, .base = base.value, .relid = relid};

	if (tid != NULL)
		key.tid = *tid;
	else
		ItemPointerSetInvalid(&key.tid);
	write_set_keys_add(&key);
}

void
ot_write_set_key(OtHash hash, OtKeyMode mode, OtLogIndex base, Oid relid)
{
	write_set_keys_take(hash, mode, base, relid, NULL);
}

void
ot_write_set_key_now(OtHash hash, OtKeyMode mode, Oid relid)
{
	ot_write_set_touch();
	ot_write_set_key(hash, mode, ot_applied_index(), relid);
}

/* A key of the row at tid. */
void
ot_write_set_row_key(OtHash hash, OtKeyMode mode, OtLogIndex base, Oid relid, const ItemPointerData *tid)
{
	ot_write_set_touch();
	write_set_keys_take(hash, mode, base, relid, tid);
}

/* A key of what the transaction has only read, in a snapshot that shows `base`. */
void
ot_write_set_read_key(OtHash hash, OtKeyMode mode, OtLogIndex base, Oid relid)
{
	Key			key = {.hash = hash.value, .mode = mode, .base = base.value, .relid = relid, .read = true};

	ItemPointerSetInvalid(&key.tid);
	write_set_keys_add(&key);
}

bool
ot_write_set_key_is_read(uint32 key_number)
{
	return key_number < (uint32) taken.nsettled && taken.keys[key_number].read;
}

/* Gives a key that the transaction has taken a later base. */
void
ot_write_set_raise_base(OtHash hash, OtKeyMode mode, OtLogIndex base)
{
	ot_write_set_keys_settle();
	for (int i = 0; i < taken.nkeys; i++)
	{
		if (taken.keys[i].hash == hash.value && taken.keys[i].mode == mode && !taken.keys[i].read)
			taken.keys[i].base = Max(taken.keys[i].base, base.value);
	}
}

/* Has the transaction taken this key in this mode? */
bool
ot_write_set_has_key(OtHash hash, OtKeyMode mode)
{
	KeyId		id = {hash.value, mode};

	if (taken.ids == NULL)
		return false;
	ot_write_set_keys_settle();
	return keys_lookup(taken.ids, id) != NULL;
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

/* Which table the key belongs to; InvalidOid: none (such as the schema's). */
Oid
ot_write_set_key_table(uint32 key_number)
{
	return key_number < (uint32) taken.nsettled ? taken.keys[key_number].relid : InvalidOid;
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
	if (key_number >= (uint32) taken.nsettled)
		return none;
	hash->value = taken.keys[key_number].hash;
	return taken.keys[key_number].tid;
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
	ot_write_set_keys_settle();
	for (int i = 0; i < taken.nkeys; i++)
	{
		Key		   *key = &taken.keys[i];
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
