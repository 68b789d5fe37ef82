/*-------------------------------------------------------------------------
 *
 * sequence_used.c
 *	  Sequence values drawn in one transaction and used in another.
 *
 * The entry of a transaction that changes something contains the positions of
 * the sequences that it drew from (ot_sequence_capture).  A transaction that
 * changes nothing, such as SELECT nextval() alone, has no entry and must not
 * cost a round trip; one that failed has no entry either.  But a later
 * transaction may use the value that it drew, and then others must know of it:
 * otherwise this server after a crash, or another node that is given this slot
 * later, would give it out again.
 *
 * So such sequences are noted in shared memory, and the next transaction of
 * this server that changes something, whichever it is, puts them into its entry
 * too.  So an entry of this region that uses a value never comes into the log
 * before the position that covers it.  If there is no room for more notes, the
 * transaction gets an entry itself.
 *
 * For a crash of this server, WAL matters.  The local commit of a transaction
 * with an entry is not flushed at once, since the log would bring it back,
 * together with its sequences; but the log would not bring back what others
 * drew in between.  So a transaction without an entry flushes the WAL of the
 * sequences that it drew from.  Since PostgreSQL logs 32 values ahead, there is
 * seldom anything to flush.  And an entry that made a sequence, or set it, must
 * not be applied again behind such a draw, so its commit record is flushed, too.
 *
 * Who may alter a sequence that is noted, in another region, can so make entries
 * lose that are about something else.  Once that has happened, nobody tells of that
 * sequence for a while.
 *
 * The notes are lost when this server stops.  When it starts, sequences that have
 * given a value are noted anew (sequence_reshare.c).
 *
 * Runs in backends.  Has a spinlock of its own, held for a few instructions.
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
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "capture/capture.h"
#include "shmem/shmem.h"

/* How long nobody tells of a sequence after an entry has lost by that. */
#define SILENT_MS 10000

/* nextval was called, or about to be called, in this transaction. */
static bool drew = false;

/* The same of currval or lastval, which take the lock that nextval takes. */
static bool looked = false;

/* This transaction is that of a rehearsal, whose draws are not used anywhere. */
static bool rehearses = false;

/* It has made a sequence, or set one's position, other than by raising it. */
static bool moved = false;

/* The notes that this transaction's entry contains; removed when it commits. */
static OtUsedSequence telling[OT_USED_SEQUENCES_MAX];
static int	ntelling = 0;

OtUsedSequences *ot_used_sequences = NULL;

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
	static const OtShmemPart part = {"onetrip used sequences", sizeof(OtUsedSequences), sequence_used_attach_memory};

	ot_shmem_add(&part);
}

void
ot_sequence_drew(void)
{
	drew = ot_sequence_is_active();
}

void
ot_sequence_looked(void)
{
	looked = true;
}

void
ot_sequence_moved(void)
{
	moved = true;
}

/*
 * Locks of sequences outlive the subtransaction that is rolled back, and must not
 * become an entry to which the rehearsed one would lose.
 */
void
ot_sequence_rehearses(void)
{
	rehearses = true;
}

/* Notes a sequence; false: there is no room.  Allocates nothing. */
bool
ot_sequence_note_one(Oid relid)
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
		{
			used->count++;
			used->items[i].silent_until = 0;
		}
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
	XLogRecPtr	commit;

	if (rel == NULL)
		return;
	SpinLockAcquire(&ot_used_sequences->mutex);
	commit = ot_used_sequences->moved;
	SpinLockRelease(&ot_used_sequences->mutex);
	buffer = ReadBuffer(rel, 0);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	lsn = PageGetLSN(BufferGetPage(buffer));
	UnlockReleaseBuffer(buffer);
	relation_close(rel, NoLock);
	XLogFlush(Max(lsn, commit));
}

static bool
sequence_used_wrote_table(const OtHeldLock *locks, int count)
{
	for (int i = 0; i < count; i++)
	{
		if (locks[i].mode >= RowExclusiveLock && get_rel_relkind(locks[i].relid) != RELKIND_SEQUENCE)
			return true;
	}
	return false;
}

/*
 * At PRE_COMMIT of a transaction that has no entry: notes the sequences that it
 * drew from.  Only their locks tell: no hook is called for an identity column, or
 * where C code draws.  But if it has called currval and not nextval, and has
 * written no table either, the locks are those of currval.  false: there is no
 * room for more notes, so it must get an entry.
 */
bool
ot_sequence_note_used(void)
{
	OtHeldLock *locks;
	int			count;
	bool		noted = true;

	if (likely(!ot_may_hold_write_lock()) || ot_is_apply_worker || rehearses || !ot_sequence_is_active())
		return true;
	locks = ot_held_locks(&count);
	if (looked && !drew && !sequence_used_wrote_table(locks, count))
		count = 0;
	for (int i = 0; i < count && noted; i++)
	{
		if (locks[i].mode < RowExclusiveLock ||
			get_rel_relkind(locks[i].relid) != RELKIND_SEQUENCE ||
			get_rel_persistence(locks[i].relid) != RELPERSISTENCE_PERMANENT)
			continue;
		if (ot_sequence_relation_is_short(locks[i].relid))
		{
			noted = false;		/* its values are certified */
			break;
		}
		if (synchronous_commit > SYNCHRONOUS_COMMIT_OFF)
			sequence_used_flush_position(locks[i].relid);
		noted = ot_sequence_note_one(locks[i].relid);
	}
	pfree(locks);
	return noted;
}

/*
 * At ABORT: the catalogs cannot be read to find the sequences, so everything
 * that was locked like one is noted, and ot_sequence_lock_used() sorts out the
 * rest.  If there is no room, it is not noted: nobody can rely on a value of a
 * failed transaction.
 */
void
ot_sequence_note_aborted(void)
{
	OtHeldLock *locks;
	int			count;

	ntelling = 0;
	looked = rehearses = moved = false;
	if (likely(!drew))
		return;
	drew = false;
	locks = ot_held_locks(&count);
	for (int i = 0; i < count; i++)
	{
		if (locks[i].mode >= RowExclusiveLock)
			(void) ot_sequence_note_one(locks[i].relid);
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
			/* unless another transaction has drawn from it since */
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
 * At PRE_COMMIT of a transaction that gets an entry: locks the sequences that
 * are noted, as if it had drawn from them, so that they become part of its
 * entry.  A sequence that is just being altered or dropped is left to the next
 * transaction.
 */
void
ot_sequence_lock_used(void)
{
	OtUsedSequences *used = ot_used_sequences;
	OtUsedSequence items[OT_USED_SEQUENCES_MAX];
	TimestampTz now;
	int			count;

	ntelling = 0;
	if (likely(used->count == 0))
		return;
	now = ot_now();
	SpinLockAcquire(&used->mutex);
	count = used->count;
	memcpy(items, used->items, sizeof(OtUsedSequence) * count);
	SpinLockRelease(&used->mutex);

	for (int i = 0; i < count; i++)
	{
		LOCKTAG		tag;
		TimestampTz until = items[i].silent_until;

		/* if it is later than that, the clock was set back */
		if (now < until && until <= TimestampTzPlusMilliseconds(now, SILENT_MS))
			continue;
		SET_LOCKTAG_RELATION(tag, MyDatabaseId, items[i].relid);
		items[i].only_noted = !OT_LOCK_IS_HELD_BY_ME(&tag, RowExclusiveLock);
		if (get_rel_relkind(items[i].relid) != RELKIND_SEQUENCE ||
			ot_sequence_relation_is_short(items[i].relid))
			sequence_used_forget_items(&items[i], 1);	/* dropped, never one, or certified */
		else if (ConditionalLockRelationOid(items[i].relid, RowExclusiveLock))
			telling[ntelling++] = items[i];
	}
}

/* This transaction's entry has lost on the key of that relation. */
void
ot_sequence_lost_on(Oid relid)
{
	for (int i = 0; i < ntelling; i++)
	{
		if (telling[i].relid == relid && telling[i].only_noted)
		{
			TimestampTz until = TimestampTzPlusMilliseconds(ot_now(), SILENT_MS);

			SpinLockAcquire(&ot_used_sequences->mutex);
			for (int j = 0; j < ot_used_sequences->count; j++)
			{
				if (ot_used_sequences->items[j].relid == relid)
					ot_used_sequences->items[j].silent_until = until;
			}
			SpinLockRelease(&ot_used_sequences->mutex);
		}
	}
}

/*
 * After the commit, or after PostgreSQL has prepared the transaction, before the
 * locks are released: removes the notes.  Allocates nothing, cannot fail.
 */
void
ot_sequence_told_used(void)
{
	if (moved)
	{
		SpinLockAcquire(&ot_used_sequences->mutex);
		ot_used_sequences->moved = Max(ot_used_sequences->moved, XactLastCommitEnd);
		SpinLockRelease(&ot_used_sequences->mutex);
	}
	drew = looked = rehearses = moved = false;
	if (likely(ntelling == 0))
		return;
	sequence_used_forget_items(telling, ntelling);
	ntelling = 0;
}
