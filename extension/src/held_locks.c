/*-------------------------------------------------------------------------
 *
 * held_locks.c
 *	  Which relations this transaction holds a lock on, and how strong.
 *
 * An applied entry may have to wait for any of them, so each becomes a key.
 * Asking the lock manager rather than collecting along the way misses none:
 * plans, triggers, LOCK TABLE and utility commands all end up here.
 *
 * A lock is either in one of this process's fast-path slots, or in the shared
 * table, where it hangs in a list for each partition.  Another process may
 * move one of ours from the first place to the second at any time; it does so
 * holding fpInfoLock and the partition's lock, so the slots are read first,
 * then the lists: a lock may be seen twice, never not at all.
 *
 * Runs in backends, at PRE_COMMIT.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "onetrip.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/index.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

/* How lock.c packs the modes of a fast-path slot: three bits, from mode 1. */
#define FAST_PATH_BITS 3
#define FAST_PATH_FIRST_MODE AccessShareLock

typedef struct LockList
{
	OtHeldLock *locks;
	int			count;
	int			max;
} LockList;

static void
note(LockList *list, Oid relid, LOCKMODE mode)
{
	if (relid < FirstNormalObjectId)
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
	{
		list->max *= 2;
		list->locks = repalloc(list->locks, sizeof(OtHeldLock) * list->max);
	}
	list->locks[list->count].relid = relid;
	list->locks[list->count++].mode = mode;
}

static void
note_fast_path(LockList *list)
{
#if PG_VERSION_NUM >= 180000
	int			nslots = FastPathLockGroupsPerBackend * FP_LOCK_SLOTS_PER_GROUP;
#define FAST_PATH_SLOT_BITS(n) \
	(MyProc->fpLockBits[(n) / FP_LOCK_SLOTS_PER_GROUP] >> \
	 (FAST_PATH_BITS * ((n) % FP_LOCK_SLOTS_PER_GROUP)))
#else
	int			nslots = FP_LOCK_SLOTS_PER_BACKEND;
#define FAST_PATH_SLOT_BITS(n) (MyProc->fpLockBits >> (FAST_PATH_BITS * (n)))
#endif

	LWLockAcquire(&MyProc->fpInfoLock, LW_SHARED);
	for (int i = 0; i < nslots; i++)
	{
		uint32		bits = FAST_PATH_SLOT_BITS(i) & ((1 << FAST_PATH_BITS) - 1);

		for (int bit = FAST_PATH_BITS - 1; bit >= 0; bit--)
		{
			if (bits & (1 << bit))
			{
				note(list, MyProc->fpRelId[i], FAST_PATH_FIRST_MODE + bit);
				break;
			}
		}
	}
	LWLockRelease(&MyProc->fpInfoLock);
}

static void
note_shared(LockList *list, PROCLOCK *proclock)
{
	const LOCKTAG *tag = &proclock->tag.myLock->tag;

	if (tag->locktag_type != LOCKTAG_RELATION ||
		tag->locktag_lockmethodid != DEFAULT_LOCKMETHOD ||
		tag->locktag_field1 != MyDatabaseId)
		return;
	for (LOCKMODE mode = MaxLockMode; mode >= AccessShareLock; mode--)
	{
		if (proclock->holdMask & LOCKBIT_ON(mode))
		{
			note(list, tag->locktag_field2, mode);
			break;
		}
	}
}

/* Whose index or TOAST table that is; InvalidOid if it is gone. */
Oid
ot_table_of(Oid relid, char relkind)
{
	unsigned int table;
	char	   *name;
	HeapTuple	tuple;
	bool		is_it;

	if (relkind != RELKIND_TOASTVALUE)
		return IndexGetRelation(relid, true);
	/* The name says it, and the table confirms it. */
	name = get_rel_name(relid);
	if (name == NULL || sscanf(name, "pg_toast_%u", &table) != 1)
		return InvalidOid;
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
	is_it = HeapTupleIsValid(tuple) &&
		((Form_pg_class) GETSTRUCT(tuple))->reltoastrelid == relid;
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return is_it ? table : InvalidOid;
}

/* palloc'd; each relation once. */
OtHeldLock *
ot_held_locks(int *count)
{
	LockList	list = {.count = 0, .max = 32};

	list.locks = palloc(sizeof(OtHeldLock) * list.max);
	note_fast_path(&list);
	for (int i = 0; i < NUM_LOCK_PARTITIONS; i++)
	{
		LWLock	   *partition = LockHashPartitionLockByIndex(i);

		LWLockAcquire(partition, LW_SHARED);
#if PG_VERSION_NUM >= 160000
		{
			dlist_iter	iter;

			dlist_foreach(iter, &MyProc->myProcLocks[i])
				note_shared(&list, dlist_container(PROCLOCK, procLink, iter.cur));
		}
#else
		{
			SHM_QUEUE  *queue = &MyProc->myProcLocks[i];
			PROCLOCK   *proclock;

			for (proclock = (PROCLOCK *) SHMQueueNext(queue, queue, offsetof(PROCLOCK, procLink));
				 proclock != NULL;
				 proclock = (PROCLOCK *) SHMQueueNext(queue, &proclock->procLink,
													  offsetof(PROCLOCK, procLink)))
				note_shared(&list, proclock);
		}
#endif
		LWLockRelease(partition);
	}
	*count = list.count;
	return list.locks;
}

/*
 * Whatever lock an applied entry may need and this transaction holds must be
 * a key of both; see design rule in docs/architecture.md.  Returns whether
 * the transaction wrote a table that the log knows nothing of.
 */
bool
ot_held_locks_take_keys(void)
{
	int			count;
	OtHeldLock *locks = ot_held_locks(&count);
	bool		flush = false;

	for (int i = 0; i < count; i++)
	{
		HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(locks[i].relid));
		Form_pg_class form;
		char		relkind;
		char		persistence;
		bool		wrote_local;

		/* Dropped by this transaction: its key was noted at the drop. */
		if (!HeapTupleIsValid(tuple))
			continue;
		form = (Form_pg_class) GETSTRUCT(tuple);
		relkind = form->relkind;
		persistence = form->relpersistence;
		wrote_local = locks[i].mode >= RowExclusiveLock && relkind == RELKIND_RELATION &&
			persistence == RELPERSISTENCE_PERMANENT && !ot_contents_travel(form);
		ReleaseSysCache(tuple);

		if (persistence == RELPERSISTENCE_TEMP)
			continue;
		/*
		 * Locking an index or a TOAST table comes with locking its table, but
		 * for a few commands that lock it alone, and strongly.
		 */
		if (relkind == RELKIND_INDEX || relkind == RELKIND_PARTITIONED_INDEX ||
			relkind == RELKIND_TOASTVALUE)
		{
			Oid			table = locks[i].mode > RowExclusiveLock ?
				ot_table_of(locks[i].relid, relkind) : InvalidOid;

			if (OidIsValid(table))
				ot_write_set_key_now(ot_hash_relation(table),
									 ot_table_lock_to_mode(locks[i].mode), table);
			continue;
		}
		if (relkind == RELKIND_SEQUENCE && locks[i].mode >= RowExclusiveLock)
			ot_sequence_capture(locks[i].relid);
		flush |= wrote_local;
		ot_write_set_key_now(ot_hash_relation(locks[i].relid),
							 ot_table_lock_to_mode(locks[i].mode), locks[i].relid);
	}
	pfree(locks);
	return flush;
}

/* Does it hold a lock that an applied entry may have to wait for? */
bool
ot_held_locks_hold_up(void)
{
	int			count;
	OtHeldLock *locks = ot_held_locks(&count);
	Oid			onetrip_am = ot_access_method_oid();
	bool		holds = false;

	for (int i = 0; i < count && !holds; i++)
	{
		HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(locks[i].relid));

		if (!HeapTupleIsValid(tuple))
			continue;
		holds = ((Form_pg_class) GETSTRUCT(tuple))->relam == onetrip_am;
		ReleaseSysCache(tuple);
	}
	return holds;
}
