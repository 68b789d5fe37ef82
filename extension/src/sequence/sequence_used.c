/*-------------------------------------------------------------------------
 *
 * sequence_used.c
 *	  Values drawn in one transaction and used in another.
 *
 * A transaction that changes something tells the log how far the sequences
 * have come that it drew from (ot_sequence_capture).  One that changes
 * nothing, SELECT nextval() alone, has no entry and must not cost a round
 * trip; nor has one that failed.  But its value may be used by a later
 * transaction, and then others must know of it: a crash, or another node that
 * is given this slot after this one is gone, would give it out again.
 *
 * So such sequences are noted in shared memory, and the next transaction of
 * this server that changes something, whichever, tells about them too.  The
 * use of a value in this region thereby never comes into the log without it.
 * If there are too many to note, the transaction becomes an entry itself.
 *
 * A crash of this server is a matter of WAL: a commit here is flushed late,
 * since the log gives the transaction back, and with it the sequence; but not
 * what somebody else has drawn in between.  So a transaction without an entry
 * flushes what PostgreSQL logged of the sequence, which is seldom any more.
 *
 * Runs in backends.  A spinlock of its own; held for a few instructions.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "sequence/sequence_internal.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "capture/capture.h"
#include "shmem/shmem.h"

/* nextval was about to be called in this transaction. */
static bool drew = false;

/* What this transaction tells about: forgotten once it is committed. */
static OtUsedSequence telling[OT_USED_SEQUENCES_MAX];
static int	ntelling = 0;

OtUsedSequences *ot_used_sequences = NULL;

static Size
sequence_used_size(void)
{
	return sizeof(OtUsedSequences);
}

static void
sequence_used_attach_memory(void *memory, bool found)
{
	ot_used_sequences = memory;
	if (!found)
		SpinLockInit(&ot_used_sequences->mutex);
}

void
ot_sequence_used_init(void)
{
	static const OtShmemPart part = {"onetrip used sequences", sequence_used_size,
	sequence_used_attach_memory};

	ot_shmem_add(&part);
}

void
ot_sequence_drew(void)
{
	drew = ot_sequence_is_active();
}

/* false: no room.  Allocates nothing. */
static bool
sequence_used_note_one(Oid relid)
{
	OtUsedSequences *used = ot_used_sequences;
	int			i;
	bool		noted = false;

	SpinLockAcquire(&used->mutex);
	for (i = 0; i < used->count && used->items[i].relid != relid; i++)
		;
	if (i < OT_USED_SEQUENCES_MAX)
	{
		if (i == used->count)
			used->count++;
		used->items[i].relid = relid;
		used->items[i].version = ++used->versions;
		noted = true;
	}
	SpinLockRelease(&used->mutex);
	return noted;
}

static void
sequence_used_flush_position(Oid relid)
{
	Relation	rel = try_relation_open(relid, NoLock);
	Buffer		buffer;
	XLogRecPtr	lsn;

	if (rel == NULL)
		return;
	buffer = ReadBuffer(rel, 0);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	lsn = PageGetLSN(BufferGetPage(buffer));
	UnlockReleaseBuffer(buffer);
	relation_close(rel, NoLock);
	XLogFlush(lsn);
}

/*
 * At PRE_COMMIT of a transaction that has no entry: notes what it drew from.
 * false: it must get an entry, since there is no room for more notes.
 */
bool
ot_sequence_note_used(void)
{
	OtHeldLock *locks;
	int			count;
	bool		noted = true;

	if (likely(!drew))
		return true;
	locks = ot_held_locks(&count);
	for (int i = 0; i < count && noted; i++)
	{
		if (locks[i].mode < RowExclusiveLock ||
			get_rel_relkind(locks[i].relid) != RELKIND_SEQUENCE ||
			get_rel_persistence(locks[i].relid) != RELPERSISTENCE_PERMANENT)
			continue;
		if (synchronous_commit > SYNCHRONOUS_COMMIT_OFF)
			sequence_used_flush_position(locks[i].relid);
		noted = sequence_used_note_one(locks[i].relid);
	}
	pfree(locks);
	return noted;
}

/*
 * At ABORT: catalogs cannot be asked what is a sequence, so everything that
 * was locked like one is noted; whoever tells about it finds out.  Without
 * room it is left: a value of a failed transaction is promised to nobody.
 */
void
ot_sequence_note_aborted(void)
{
	OtHeldLock *locks;
	int			count;

	ntelling = 0;
	if (likely(!drew))
		return;
	drew = false;
	locks = ot_held_locks(&count);
	for (int i = 0; i < count; i++)
	{
		if (locks[i].mode >= RowExclusiveLock)
			(void) sequence_used_note_one(locks[i].relid);
	}
	pfree(locks);
}

static void
sequence_used_forget_items(const OtUsedSequence *items, int count)
{
	OtUsedSequences *used = ot_used_sequences;

	SpinLockAcquire(&used->mutex);
	for (int i = 0; i < count; i++)
	{
		for (int j = 0; j < used->count; j++)
		{
			/* unless somebody has drawn from it again */
			if (used->items[j].relid == items[i].relid &&
				used->items[j].version == items[i].version)
			{
				used->items[j] = used->items[--used->count];
				break;
			}
		}
	}
	SpinLockRelease(&used->mutex);
}

/*
 * At PRE_COMMIT of a transaction that gets an entry: locks what was noted, as
 * if it had drawn from it, so that it becomes part of the entry like its own.
 * One that somebody is altering or dropping is left for the next one.
 */
void
ot_sequence_lock_used(void)
{
	OtUsedSequences *used = ot_used_sequences;
	OtUsedSequence items[OT_USED_SEQUENCES_MAX];
	int			count;

	ntelling = 0;
	if (likely(used->count == 0))
		return;
	SpinLockAcquire(&used->mutex);
	count = used->count;
	memcpy(items, used->items, sizeof(OtUsedSequence) * count);
	SpinLockRelease(&used->mutex);

	for (int i = 0; i < count; i++)
	{
		if (get_rel_relkind(items[i].relid) != RELKIND_SEQUENCE)
			sequence_used_forget_items(&items[i], 1);	/* dropped, or never one */
		else if (ConditionalLockRelationOid(items[i].relid, RowExclusiveLock))
			telling[ntelling++] = items[i];
	}
}

/* The transaction is committed.  Allocates nothing, cannot fail. */
void
ot_sequence_told_used(void)
{
	drew = false;
	if (likely(ntelling == 0))
		return;
	sequence_used_forget_items(telling, ntelling);
	ntelling = 0;
}
