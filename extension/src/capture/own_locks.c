/*-------------------------------------------------------------------------
 *
 * own_locks.c
 *	  On which relations this transaction holds a lock, and how strong.
 *
 * The lock manager is asked, rather than locks collected along the way: so
 * none is missed, whether a plan, a trigger, LOCK TABLE or a utility command
 * took it.
 *
 * A lock is either in one of this process's fast-path slots, or in the shared
 * lock table, which has a list of this process's locks for each partition.
 * Another process may move one from the first place to the second at any time;
 * while it does so, it holds fpInfoLock and the partition's lock.  Therefore
 * the slots are read first, then the lists: a lock may be seen twice, but it is
 * never missed.  A list that was empty when the slots were read need not be.
 *
 * Runs in backends, at PRE_COMMIT and ABORT.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture.h"

#include "access/transam.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "shmem/shmem.h"

/* How lock.c packs the modes of a fast-path slot: three bits, from mode 1. */
#define FAST_PATH_BITS 3
#define FAST_PATH_FIRST_MODE AccessShareLock
#define FAST_PATH_SLOT_BITS(n) \
	((OT_FAST_PATH_GROUP_BITS(n) >> (FAST_PATH_BITS * OT_FAST_PATH_SLOT_IN_GROUP(n))) & \
	 ((1 << FAST_PATH_BITS) - 1))

StaticAssertDecl(NUM_LOCK_PARTITIONS <= 32, "a bit for each partition");

typedef struct LockList
{
	bool		catalogs;		/* those on catalogs, else those on other relations */
	uint32		shared;			/* the partitions in which this process had locks */
	OtHeldLock *locks;
	int			count;
	int			max;
} LockList;

static void
own_locks_note_lock(LockList *list, Oid relid, LOCKMODE mode)
{
	if ((relid < FirstNormalObjectId) != list->catalogs)
		return;
	for (int i = 0; i < list->count; i++)
	{
		if (list->locks[i].relid == relid)
		{
			list->locks[i].mode = Max(list->locks[i].mode, mode);
			return;
		}
	}
	if (list->count == list->max)
		list->locks = ot_make_room(list->locks, &list->max, sizeof(OtHeldLock));
	list->locks[list->count].relid = relid;
	list->locks[list->count++].mode = mode;
}

static void
own_locks_note_fast_path(LockList *list)
{
	LWLockAcquire(&MyProc->fpInfoLock, LW_SHARED);
	for (int i = 0; i < OT_FAST_PATH_SLOTS; i++)
	{
		uint32		bits = FAST_PATH_SLOT_BITS(i);

		for (int bit = FAST_PATH_BITS - 1; bit >= 0; bit--)
		{
			if (bits & (1 << bit))
			{
				own_locks_note_lock(list, MyProc->fpRelId[i], FAST_PATH_FIRST_MODE + bit);
				break;
			}
		}
	}
	for (int i = 0; i < NUM_LOCK_PARTITIONS; i++)
	{
		if (!OT_HAS_NO_SHARED_LOCKS(i))
			list->shared |= UINT32_C(1) << i;
	}
	LWLockRelease(&MyProc->fpInfoLock);
}

static void
own_locks_note_shared(LockList *list, PROCLOCK *proclock)
{
	const LOCKTAG *tag = &proclock->tag.myLock->tag;

	/* a shared catalog belongs to no database */
	if (tag->locktag_type != LOCKTAG_RELATION ||
		tag->locktag_lockmethodid != DEFAULT_LOCKMETHOD ||
		(tag->locktag_field1 != MyDatabaseId && tag->locktag_field1 != InvalidOid))
		return;
	for (LOCKMODE mode = MaxLockMode; mode >= AccessShareLock; mode--)
	{
		if (proclock->holdMask & LOCKBIT_ON(mode))
		{
			own_locks_note_lock(list, tag->locktag_field2, mode);
			break;
		}
	}
}

/*
 * Might this transaction hold RowExclusiveLock or a stronger lock on a relation?
 * Cheap: true for anything that is in the shared lock table.  Whoever moves a
 * lock there holds fpInfoLock all the while.
 */
bool
ot_may_hold_write_lock(void)
{
	uint64		modes = 0;
	bool		found = false;

	LWLockAcquire(&MyProc->fpInfoLock, LW_SHARED);
	for (int i = 0; i < OT_FAST_PATH_SLOTS; i++)
		modes |= FAST_PATH_SLOT_BITS(i);
	for (int i = 0; i < NUM_LOCK_PARTITIONS && !found; i++)
		found = !OT_HAS_NO_SHARED_LOCKS(i);
	LWLockRelease(&MyProc->fpInfoLock);
	return found || (modes & (1 << (RowExclusiveLock - FAST_PATH_FIRST_MODE))) != 0;
}

/* The partitioned tables of which this transaction finalizes the detaching of a partition. */
static List *finalized = NIL;
static LocalTransactionId finalized_in = InvalidLocalTransactionId;

/*
 * The lock of one is SHARE UPDATE EXCLUSIVE, whose key would conflict with those of
 * writers.  That of ROW EXCLUSIVE does not, and does conflict with the keys of all
 * locks that this one conflicts with, unless both are such: then the key of the
 * schema does.
 */
void
ot_held_lock_is_to_finalize(Oid relid)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	if (finalized_in != OT_LXID(MyProc))
		finalized = NIL;
	finalized_in = OT_LXID(MyProc);
	finalized = list_append_unique_oid(finalized, relid);
	MemoryContextSwitchTo(old);
}

static void
own_locks_weaken(LockList *list)
{
	if (finalized_in != OT_LXID(MyProc))
		return;
	for (int i = 0; i < list->count; i++)
	{
		if (list->locks[i].mode == ShareUpdateExclusiveLock && list_member_oid(finalized, list->locks[i].relid))
			list->locks[i].mode = RowExclusiveLock;
	}
}

static OtHeldLock *
own_locks_collect(bool catalogs, int *count)
{
	LockList	list = {.catalogs = catalogs, .count = 0, .max = 32};

	list.locks = palloc(sizeof(OtHeldLock) * list.max);
	own_locks_note_fast_path(&list);
	for (int i = 0; i < NUM_LOCK_PARTITIONS; i++)
	{
		LWLock	   *partition = LockHashPartitionLockByIndex(i);
		PROCLOCK   *proclock = NULL;

		if ((list.shared & (UINT32_C(1) << i)) == 0)
			continue;
		LWLockAcquire(partition, LW_SHARED);
		while ((proclock = ot_next_shared_lock(i, proclock)) != NULL)
			own_locks_note_shared(&list, proclock);
		LWLockRelease(partition);
	}
	own_locks_weaken(&list);
	*count = list.count;
	return list.locks;
}

/* The result is palloc'd, and contains each relation once. */
OtHeldLock *
ot_held_locks(int *count)
{
	return own_locks_collect(false, count);
}

/*
 * The same of catalogs, and of what else has been there since before the server's
 * first start.  Whoever changes a catalog by way of PostgreSQL's functions lets
 * go of its lock at once.
 */
OtHeldLock *
ot_held_catalog_locks(int *count)
{
	return own_locks_collect(true, count);
}

/* ---- LOCK TABLE ---- */

/*
 * Whoever has only locked a table in another region has nothing to apply that would
 * wait for a lock here.  So the key that a held lock becomes at COMMIT does not
 * exclude him, unless he comes while it is certified.  LOCK TABLE therefore has a
 * key of its own, with the base of when it was run, on which only transactions that
 * have run it conflict.
 */
typedef struct LockedTable
{
	Oid			relid;
	LOCKMODE	mode;
	OtLogIndex	base;
} LockedTable;

/* Keeps these keys apart from those of the tables themselves. */
#define SEED_LOCK_TABLE	UINT64CONST(0x6c6f636b7461626c)

static List *locked_tables = NIL;	/* pointers to LockedTable */
static LocalTransactionId locked_tables_in = InvalidLocalTransactionId;

static void
own_locks_note_table(Oid relid, LOCKMODE mode)
{
	LockedTable *table = palloc(sizeof(LockedTable));

	table->relid = relid;
	table->mode = mode;
	table->base = ot_applied_index();
	locked_tables = lappend(locked_tables, table);
}

/*
 * After the statement.  Of a view it has locked all that is below: then whatever
 * the transaction has locked counts, and COMMIT looks which of it in this mode.
 */
void
ot_lock_table_note(LockStmt *stmt)
{
	MemoryContext old;
	bool		has_view = false;
	OtHeldLock *held;
	int			count;
	ListCell   *lc;

	/* readers, such as pg_dump, which locks many tables */
	if (stmt->mode < RowExclusiveLock)
		return;
	if (locked_tables_in != OT_LXID(MyProc))
		locked_tables = NIL;
	locked_tables_in = OT_LXID(MyProc);
	old = MemoryContextSwitchTo(TopTransactionContext);
	foreach(lc, stmt->relations)
	{
		RangeVar   *name = lfirst_node(RangeVar, lc);
		Oid			relid = RangeVarGetRelid(name, NoLock, true);
		List	   *relids = !OidIsValid(relid) ? NIL : name->inh ? find_all_inheritors(relid, NoLock, NULL) :
			list_make1_oid(relid);
		ListCell   *of_table;

		has_view |= get_rel_relkind(relid) == RELKIND_VIEW;
		foreach(of_table, relids)
			own_locks_note_table(lfirst_oid(of_table), stmt->mode);
	}
	if (has_view)
	{
		held = ot_held_locks(&count);
		for (int i = 0; i < count; i++)
			own_locks_note_table(held[i].relid, stmt->mode);
	}
	MemoryContextSwitchTo(old);
}

/* At COMMIT: takes the keys of LOCK TABLE, unless the lock has gone with a savepoint. */
void
ot_lock_table_take_keys(void)
{
	ListCell   *lc;

	if (likely(locked_tables_in != OT_LXID(MyProc)))
		return;
	foreach(lc, locked_tables)
	{
		LockedTable *table = lfirst(lc);
		LOCKTAG		tag;
		OtHash		hash;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, table->relid);
		if (!OT_LOCK_IS_HELD_BY_ME(&tag, table->mode) || get_rel_name(table->relid) == NULL ||
			get_rel_persistence(table->relid) == RELPERSISTENCE_TEMP)
			continue;
		hash = ot_hash_relation(table->relid);
		hash.value = hash_combine64(hash.value, SEED_LOCK_TABLE);
		ot_write_set_key(hash, ot_table_lock_to_mode(table->mode), table->base, table->relid);
	}
}
