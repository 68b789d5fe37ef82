/*-------------------------------------------------------------------------
 *
 * evict.c
 *	  Makes a local transaction give way to an entry that is already decided.
 *
 * There are two cases.  When the apply worker is about to wait for a row, it
 * finds out which transaction has locked or written it and evicts that at once
 * (ot_evict_xid).  Everything else that the worker may wait for (table locks,
 * for DDL; a unique value that is being inserted) is found by the evictor, a
 * separate process that checks every few milliseconds whether the worker waits
 * in the lock manager, and for which processes.  It looks after whoever holds the
 * turn in the same way, since all others wait for that one: a NOTIFY waits for a
 * session of any database that sends one.
 *
 *	the one in the way		what happens
 *	IDLE, waits for client	evicted after doing so for IDLE_READER_MS
 *	IDLE, runs a statement	evicted once the entry has waited max_apply_delay
 *	IDLE, waits until the	evicted at once: it would wait for ever
 *	entry is shown
 *	WRITING					evicted at once: it would fail certification anyway
 *	PROPOSED				left alone: its verdict can only be abort
 *	DECIDED, earlier		left alone: it commits before the entry does
 *	prepared by PostgreSQL	left alone: only who ends it can help.  Once the
 *							entry has waited max_apply_delay, this server
 *							says that it stands still, and for what
 *	DECIDED, later			must not happen (a lock without a key).  Its entry
 *							is handed over to the worker, and its COMMIT reports
 *							that it is committed: a deadlock would be worse
 *
 * Eviction begins with a mark: from then on the transaction cannot commit, and
 * its next statement fails (ot_eviction_check).  As long as it is still in the
 * way, it is also sent signals:
 *
 *	when						what			what it does
 *	waits inside a statement:	SIGINT			the statement gets an ERROR; a
 *	at once; else GRACE_MS						session that is idle, or waits
 *	after the mark								for its client, ignores it
 *	likewise, if it waits for	conflict		ends an idle session, as on a hot
 *	its client to send							standby; the protocol has no
 *												other way to tell it
 *	END_MS after the mark		SIGTERM			ends the session whatever it does:
 *												COPY with a client that neither
 *												sends nor reads, an ERROR that is
 *												not read (unread.c), or a loop
 *												that catches all errors
 *
 * A session that runs a statement gets a plain cancel rather than the
 * conflict, which would end a session inside a savepoint or an exception block
 * even in the middle of a statement.  Cancelling an idle session does no harm,
 * so processes need not publish how deep their subtransactions are.  The
 * client always gets SQLSTATE 40001 and our own message (session.c).
 *
 * One case more: if the server's lock table is full, the worker fails, or cannot
 * even start, and waits for nobody.  Advisory locks fill it, which need no
 * privilege.  Once it has been so for max_apply_delay, the evictor ends the session
 * that holds most locks, one each second until the worker goes on.
 *
 * And one that has nothing to do with entries: a job (jobs.c) that somebody waits for
 * is cancelled.
 *
 * Runs in the apply worker and the evictor; what the evicted transaction does
 * is in eviction.c.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include <signal.h>

#include "access/subtrans.h"
#include "access/transam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/procarray.h"
#include "storage/procsignal.h"
#include "tcop/tcopprot.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "commit/commit.h"
#include "shmem/shmem.h"

/* How often the evictor looks: while entries are applied, and otherwise. */
#define BUSY_MS 3
#define IDLE_MS 50
/* An entry must have been under way for this long before the evictor acts. */
#define PATIENCE_MS 2
/* How long an evicted transaction has to notice with its next statement. */
#define GRACE_MS 25
/* The time between one signal and the next. */
#define REPEAT_MS 100
/* How long after the mark a session is ended that has not given way. */
#define END_MS 1000
/* A reader that itself waits for a lock is not given max_apply_delay. */
#define LOCKED_READER_MS 1000
/* Nor is a reader that waits for its client this long. */
#define IDLE_READER_MS 1000
/* How often the evictor looks whether the lock table is full, while the worker stands. */
#define LOCK_TABLE_MS 1000
/* How often it looks whether somebody waits for a job, and how long one has to give way. */
#define JOB_LOOK_MS 200
#define JOB_END_MS 1000

/* What the evictor knows about a process that waits for its client. */
typedef struct Watch
{
	int			pid;
	uint32		statements;
	OtLogIndex	applying;		/* the entry that it was in the way of */
	TimestampTz since;			/* has waited for its client at least since then */
	int			decided_pid;	/* a transaction that was decided, and perhaps in the
								 * way */
	LocalTransactionId decided;
} Watch;

static Watch *watches = NULL;	/* one for each slot */

/* ---- in the process that evicts ---- */

/*
 * Signals a process and its children (COPY ... PROGRAM), as
 * pg_cancel_backend() does.  The pid must be the one that was marked, not the
 * one in the PGPROC: that is 0 once the process has ended, and kill(0) would
 * signal our own group.
 */
static void
evict_signal_process(int pid, int sig)
{
#ifdef HAVE_SETSID
	(void) kill(-pid, sig);
#else
	(void) kill(pid, sig);
#endif
}

/*
 * Sends a signal to a process that has been marked, at most every REPEAT_MS.
 * Unless it waits inside a statement it gets a moment first: most sessions
 * send their next statement at once, which fails because of the mark, and the
 * session survives.
 */
static void
evict_press_process(PGPROC *proc, OtSlot *slot)
{
	OtEviction *eviction = &slot->eviction;
	TimestampTz now = ot_now();
	uint32		wait_event = *(volatile uint32 *) &proc->wait_event_info;
	uint32		wait_class = wait_event & 0xFF000000;
	bool		conflict = false;
	bool		end = false;
	bool		due;

	SpinLockAcquire(&ot_slots->evict_mutex);
	if (eviction->asked_at == 0)
		due = wait_class == PG_WAIT_LOCK || wait_class == PG_WAIT_TIMEOUT ||
			TimestampDifferenceExceeds(eviction->marked_at, now, GRACE_MS);
	else
		due = TimestampDifferenceExceeds(eviction->asked_at, now, REPEAT_MS);
	if (due)
	{
		eviction->asked_at = now;
		if (TimestampDifferenceExceeds(eviction->marked_at, now, END_MS))
			eviction->ended = end = true;
		else if (wait_event == WAIT_EVENT_CLIENT_READ)
			eviction->conflict = conflict = true;
		else
			slot->cancels_sent++;
	}
	SpinLockRelease(&ot_slots->evict_mutex);
	if (!due)
		return;
	if (conflict)
		(void) SendProcSignal(eviction->pid, PROCSIG_RECOVERY_CONFLICT_LOCK, OT_BACKEND_ID(proc));
	else if (end)
		evict_signal_process(eviction->pid, SIGTERM);
	else
	{
		evict_signal_process(eviction->pid, SIGINT);
		SpinLockAcquire(&ot_slots->evict_mutex);
		slot->cancels_arrived++;
		SpinLockRelease(&ot_slots->evict_mutex);
	}
}

/* Is the process marked, and for its present transaction? */
static bool
evict_is_marked(PGPROC *proc)
{
	OtSlot	   *slot = &ot_slots->slots[OT_PROC_NUMBER(proc)];

	return pg_atomic_read_u32(&slot->state) == OT_SLOT_EVICTED &&
		slot->eviction.pid == proc->pid && slot->eviction.lxid == OT_LXID(proc);
}

/* In the evictor: it makes way for who has the turn, and not for the worker. */
static bool for_holder = false;

/* Marks and signals one process.  Returns false if it must be left alone. */
static bool
evict_proc(PGPROC *proc, OtEvictionWhy why, Oid relid, const char *table)
{
	OtSlot	   *slot = &ot_slots->slots[OT_PROC_NUMBER(proc)];
	uint32		state = pg_atomic_read_u32(&slot->state);
	OtEviction	eviction;
	bool		is_first;
	bool		marked = false;

	memset(&eviction, 0, sizeof(eviction));
	eviction.pid = proc->pid;
	eviction.lxid = OT_LXID(proc);
	if (eviction.pid == 0 || eviction.lxid == InvalidLocalTransactionId)
		return false;
	if (evict_is_marked(proc))
	{
		evict_press_process(proc, slot);
		return true;
	}
	if (state == OT_SLOT_PROPOSED || state == OT_SLOT_DECIDED)
		return false;

	eviction.marked_at = ot_now();
	eviction.why = why;
	if (for_holder)
	{
		(void) ot_turn_holder(&eviction.index);
		strlcpy(eviction.region, ot_region, sizeof(eviction.region));
	}
	else
	{
		SpinLockAcquire(&ot_worker->mutex);
		eviction.index = ot_worker->applying;
		memcpy(eviction.region, ot_worker->applying_region, sizeof(eviction.region));
		SpinLockRelease(&ot_worker->mutex);
	}
	eviction.relid = relid;
	strlcpy(eviction.table, table, sizeof(eviction.table));

	SpinLockAcquire(&ot_slots->evict_mutex);
	is_first = !evict_is_marked(proc);
	if (is_first)
	{
		slot->eviction = eviction;
		marked = pg_atomic_compare_exchange_u32(&slot->state, &state, OT_SLOT_EVICTED);
	}
	SpinLockRelease(&ot_slots->evict_mutex);
	if (is_first && !marked)
		return false;			/* it moved on; the caller looks again */

	/* Else another evictor was first; what that one noted stays. */
	if (is_first)
	{
		pg_atomic_fetch_add_u64(&ot_slots->evictions, 1);
		/* the arrival worker looks whenever it wakes */
		SetLatch(&proc->procLatch);
	}
	evict_press_process(proc, slot);
	return true;
}

static void
evict_table_name(Relation rel, char *out, size_t size)
{
	char	   *schema = get_namespace_name(RelationGetNamespace(rel));

	snprintf(out, size, "%s.%s", schema ? schema : "?", RelationGetRelationName(rel));
}

/*
 * Evicts the transaction that the worker is about to wait for because of a row
 * of rel.  The caller does the waiting.
 */
void
ot_evict_xid(TransactionId xid, Relation rel)
{
	PGPROC	   *proc;
	int			pid;
	char		table[NAMEDATALEN * 2];

	if (!TransactionIdIsValid(xid) || TransactionIdIsCurrentTransactionId(xid) || ot_is_rehearsing)
		return;
	if (TransactionIdPrecedes(xid, TransactionXmin))
		return;					/* it ended long ago */
	xid = SubTransGetTopmostTransaction(xid);
	pid = BackendXidGetPid(xid);
	if (pid == 0 || pid == MyProcPid)
		return;
	proc = BackendPidGetProc(pid);
	if (proc == NULL || proc->xid != xid)
		return;
	evict_table_name(rel, table, sizeof(table));
	(void) evict_proc(proc, OT_EVICTED_WRITER, RelationGetRelid(rel), table);
}

/* ---- the evictor ---- */

/*
 * The table that the worker waits for, if that is known, and its name for
 * messages.
 */
static Oid
evict_describe_wait(const LOCKTAG *tag, char *out, size_t size)
{
	char	   *name = NULL;
	char	   *schema = NULL;

	Oid			relid = InvalidOid;

	if (tag->locktag_type == LOCKTAG_RELATION || tag->locktag_type == LOCKTAG_TUPLE)
		relid = tag->locktag_field2;
	/* It waits for a transaction that inserted the same unique value. */
	else if (tag->locktag_type == LOCKTAG_TRANSACTION ||
			 tag->locktag_type == LOCKTAG_SPECULATIVE_TOKEN)
		relid = pg_atomic_read_u32(&ot_worker->applying_table);
	if (OidIsValid(relid))
	{
		name = get_rel_name(relid);
		schema = name ? get_namespace_name(get_rel_namespace(relid)) : NULL;
	}
	if (name && schema)
		snprintf(out, size, "%s.%s", schema, name);
	else
		strlcpy(out, "(unknown)", size);
	return relid;
}

static void
evict_give_up_decided(PGPROC *proc, const char *table)
{
	ereport(LOG,
			(errmsg("a decided transaction holds a lock on \"%s\" that an earlier entry needs",
					table),
			 errdetail("Its COMMIT, in process %d, ends, and its entry is applied from the log.", proc->pid),
			 errhint("This is a defect: a lock without a key.  Please report it.")));
	SetLatch(&proc->procLatch);
}

/*
 * Has the process waited for its client for so long, without beginning a
 * statement?  Counts from when the evictor first saw it so while this entry
 * waits.
 */
static bool
evict_is_idle_for(PGPROC *proc, OtLogIndex applying, TimestampTz now, int ms)
{
	int			number = OT_PROC_NUMBER(proc);
	Watch	   *watch = &watches[number];
	uint32		statements = *(volatile uint32 *) &ot_slots->slots[number].statements;

	if (*(volatile uint32 *) &proc->wait_event_info != WAIT_EVENT_CLIENT_READ)
	{
		watch->pid = 0;
		return false;
	}
	if (watch->pid != proc->pid || watch->statements != statements ||
		watch->applying.value != applying.value)
	{
		watch->pid = proc->pid;
		watch->statements = statements;
		watch->applying = applying;
		watch->since = now;
	}
	return TimestampDifferenceExceeds(watch->since, now, ms);
}

/*
 * May this reader or maintenance command delay the entry for some more time?
 * If not, *why is the reason.
 */
static bool
evict_may_stay(PGPROC *proc, OtLogIndex applying, TimestampTz since, OtEvictionWhy *why)
{
	TimestampTz now = ot_now();

	*why = OT_EVICTED_WAITING_READER;
	if (pg_atomic_read_u64(&ot_slots->slots[OT_PROC_NUMBER(proc)].waits_for) > ot_applied_index().value)
		return false;
	*why = OT_EVICTED_READER;
	if ((proc->statusFlags & PROC_IS_AUTOVACUUM) &&
		!(proc->statusFlags & PROC_VACUUM_FOR_WRAPAROUND))
		return false;
	if (TimestampDifferenceExceeds(since, now, ot_max_apply_delay_ms))
		return false;
	*why = OT_EVICTED_LOCKED_READER;
	if (proc->waitLock != NULL && TimestampDifferenceExceeds(since, now, LOCKED_READER_MS))
		return false;
	*why = OT_EVICTED_IDLE_READER;
	return !evict_is_idle_for(proc, applying, now, IDLE_READER_MS);
}

/*
 * Was this transaction decided already when evict_clear_the_way() last looked?
 * Only then does it hold what it holds now until it commits: one that was seen in
 * the way first may have given the lock back, by ROLLBACK TO, and have been
 * decided since.
 */
static bool
evict_was_decided(PGPROC *proc)
{
	Watch	   *watch = &watches[OT_PROC_NUMBER(proc)];
	LocalTransactionId lxid = OT_LXID(proc);

	if (watch->decided_pid == proc->pid && watch->decided == lxid)
		return true;
	pg_read_barrier();
	if (pg_atomic_read_u32(&ot_slots->slots[OT_PROC_NUMBER(proc)].state) == OT_SLOT_DECIDED)
	{
		watch->decided_pid = proc->pid;
		watch->decided = lxid;
	}
	return false;
}

/* The identifier, quoted, of the transaction that PostgreSQL has prepared and that was this one. */
static char *
evict_find_prepared(VirtualTransactionId vxid)
{
	static Oid	types[] = {XIDOID};
	bool		more;
	Datum		values[1];
	MemoryContext caller = CurrentMemoryContext;
	char	   *gid = NULL;

	values[0] = TransactionIdGetDatum(VirtualTransactionIdIsRecoveredPreparedXact(vxid) ?
									  vxid.localTransactionId : TwoPhaseGetXidByVirtualXID(vxid, &more));
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) SPI_connect();
	if (SPI_execute_with_args("SELECT pg_catalog.quote_literal(gid) FROM onetrip.local_prepared_xact() WHERE transaction OPERATOR(pg_catalog.=) $1",
							  1, types, values, NULL, true, 1) == SPI_OK_SELECT && SPI_processed == 1)
	{
		gid = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
		gid = gid ? MemoryContextStrdup(caller, gid) : NULL;
	}
	SPI_finish();
	PopActiveSnapshot();
	return gid;
}

/*
 * The worker waits for a transaction that PostgreSQL has prepared here: nothing but
 * COMMIT PREPARED or ROLLBACK PREPARED on this server ends that.  It is as if the
 * entry could not be applied.
 */
static void
evict_tell_prepared(const LockInstanceData *holder, OtLogIndex applying, TimestampTz since, const char *table)
{
	static OtLogIndex told;
	char	   *gid;

	if (told.value == applying.value || !TimestampDifferenceExceeds(since, ot_now(), ot_max_apply_delay_ms))
		return;
	gid = evict_find_prepared(OT_LOCK_VXID(holder));
	if (gid == NULL)
		return;					/* it has been ended since */
	told = applying;
	ereport(LOG,
			(errmsg("log index " UINT64_FORMAT " waits for prepared transaction %s of this server, which holds a lock on \"%s\"",
					applying.value, gid, table),
			 errhint("Connect to this server and use COMMIT PREPARED or ROLLBACK PREPARED.")));
	SpinLockAcquire(&ot_worker->mutex);
	if (ot_worker->applying.value == applying.value && ot_worker->failing.value != applying.value)
	{
		ot_worker->failing = applying;
		ot_worker->failing_passes = true;
		ot_worker->failing_since = since;
		/* as many as it takes to stand still */
		ot_worker->failures = 2;
		snprintf(ot_worker->failure, sizeof(ot_worker->failure),
				 "it waits for prepared transaction %s of this server, which holds a lock on \"%s\"", gid, table);
	}
	SpinLockRelease(&ot_worker->mutex);
}

/*
 * Is it a lock that is released within the statement?  Its holder is busy and
 * will release it soon, so it is not in the way.
 */
static bool
evict_is_short_lock(const LOCKTAG *tag)
{
	switch (tag->locktag_type)
	{
		case LOCKTAG_RELATION_EXTEND:
		case LOCKTAG_DATABASE_FROZEN_IDS:
		case LOCKTAG_PAGE:
			return true;
		default:
			return false;
	}
}

/* Does this process of the same lock wait for it, and is it to have it before the one that is blocked? */
static bool
evict_waits_before(const BlockedProcsData *data, const BlockedProcData *blocked, int pid)
{
	for (int i = 0; i < blocked->num_waiters; i++)
	{
		if (data->waiter_pids[blocked->first_waiter + i] == pid)
			return true;
	}
	return false;
}

/* Called when the worker waits for a lock: deals with all who delay it. */
static void
evict_clear_the_way(PGPROC *worker, OtLogIndex applying, TimestampTz since)
{
	BlockedProcsData *data = GetBlockerStatusData(worker->pid);

	for (int i = 0; i < data->nprocs; i++)
	{
		BlockedProcData *blocked = &data->procs[i];
		LockInstanceData *instances = &data->locks[blocked->first_lock];
		LockInstanceData *mine = NULL;
		LOCKMASK	conflicts;
		char		table[NAMEDATALEN * 2];
		Oid			relid;

		for (int j = 0; j < blocked->num_locks; j++)
		{
			if (instances[j].pid == blocked->pid && instances[j].waitLockMode != NoLock)
				mine = &instances[j];
		}
		if (mine == NULL || evict_is_short_lock(&mine->locktag))
			continue;
		conflicts = GetLockTagsMethodTable(&mine->locktag)->conflictTab[mine->waitLockMode];
		relid = evict_describe_wait(&mine->locktag, table, sizeof(table));

		for (int j = 0; j < blocked->num_locks; j++)
		{
			LockInstanceData *other = &instances[j];
			PGPROC	   *proc;
			uint32		state;
			OtEvictionWhy why = OT_EVICTED_WRITER;

			/* Skip all but holders of conflicting modes and earlier waiters. */
			if (other == mine || other->leaderPid == mine->leaderPid)
				continue;
			if (!(conflicts & other->holdMask) &&
				!(other->waitLockMode != NoLock &&
				  (conflicts & LOCKBIT_ON(other->waitLockMode)) &&
				  evict_waits_before(data, blocked, other->pid)))
				continue;
			if (other->leaderPid == 0)
				evict_tell_prepared(other, applying, since, table);
			proc = BackendPidGetProc(other->leaderPid);
			if (proc == NULL)
				continue;
			state = pg_atomic_read_u32(&ot_slots->slots[OT_PROC_NUMBER(proc)].state);
			if (state == OT_SLOT_DECIDED)
			{
				/* One whose entry comes earlier will commit by itself soon. */
				if (evict_was_decided(proc) && ot_turn_hand_over(OT_PROC_NUMBER(proc), applying))
					evict_give_up_decided(proc, table);
			}
			else if (state != OT_SLOT_WRITING && !evict_is_marked(proc) &&
					 evict_may_stay(proc, applying, since, &why))
				continue;
			else
				(void) evict_proc(proc, why, relid, table);
		}
	}
}

/* Looks after who has the turn, if it has waited for a lock since the last look at least. */
static void
evict_for_holder(void)
{
	static OtLogIndex seen;
	static TimestampTz since;
	OtLogIndex	index;
	int			number = ot_turn_holder(&index);

	if (number < 0 || ProcGlobal->allProcs[number].waitLock == NULL)
		seen.value = 0;
	else if (seen.value != index.value)
	{
		seen = index;
		since = ot_now();
	}
	else
	{
		StartTransactionCommand();
		for_holder = true;
		evict_clear_the_way(&ProcGlobal->allProcs[number], index, since);
		for_holder = false;
		CommitTransactionCommand();
	}
}

static int
evict_compare_pids(const void *a, const void *b)
{
	return *(const int *) a - *(const int *) b;
}

static int
evict_compare_tags(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(LOCKTAG));
}

/* May this process be ended?  A server process is no client's; who is decided commits by itself soon. */
static bool
evict_may_end(int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);
	uint32		state;

	if (proc == NULL || !OidIsValid(proc->roleId))
		return false;
	state = pg_atomic_read_u32(&ot_slots->slots[OT_PROC_NUMBER(proc)].state);
	return state != OT_SLOT_PROPOSED && state != OT_SLOT_DECIDED;
}

/*
 * Is there no room for another lock?  There is for so many things that are locked,
 * and for twice as many holders of all of them.  Finds the session that holds most
 * of the server's locks.  Looks at no catalog, since that needs a lock.
 */
static bool
evict_is_lock_table_full(int *most_pid, int *most)
{
	LockData   *data = GetLockStatusData();
	int		   *pids = palloc(sizeof(int) * (data->nelements + 1));
	LOCKTAG    *tags = palloc(sizeof(LOCKTAG) * (data->nelements + 1));
	int			room = max_locks_per_xact * (MaxBackends + max_prepared_xacts);
	int			count = 0;
	int			things = 0;
	int			same = 0;

	*most_pid = *most = 0;
	for (int i = 0; i < data->nelements; i++)
	{
		if (data->locks[i].fastpath)
			continue;
		tags[count] = data->locks[i].locktag;
		pids[count++] = data->locks[i].leaderPid;
	}
	qsort(pids, count, sizeof(int), evict_compare_pids);
	qsort(tags, count, sizeof(LOCKTAG), evict_compare_tags);
	for (int i = 0; i < count; i++)
	{
		if (i == 0 || evict_compare_tags(&tags[i], &tags[i - 1]) != 0)
			things++;
		same = i > 0 && pids[i] == pids[i - 1] ? same + 1 : 1;
		if ((i + 1 == count || pids[i + 1] != pids[i]) && same > *most && evict_may_end(pids[i]))
		{
			*most_pid = pids[i];
			*most = same;
		}
	}
	pfree(pids);
	pfree(tags);
	pfree(data->locks);
	pfree(data);
	return things >= room || count >= 2 * room;
}

/* `stands`: the worker has failed, or is not there. */
static void
evict_from_full_lock_table(bool stands)
{
	static TimestampTz next = 0;
	static TimestampTz since = 0;	/* 0: the lock table is not known to be full */
	TimestampTz now = ot_now();
	int			pid;
	int			locks;

	if (!stands)
	{
		since = 0;
		return;
	}
	if (now < next)
		return;
	next = TimestampTzPlusMilliseconds(now, LOCK_TABLE_MS);
	if (!evict_is_lock_table_full(&pid, &locks))
	{
		since = 0;
		return;
	}
	if (since == 0)
		since = now;
	if (pid == 0 || !TimestampDifferenceExceeds(since, now, ot_max_apply_delay_ms))
		return;
	ereport(LOG,
			(errmsg("ending process %d, which holds %d locks: the server's lock table is full, and changes from other regions cannot be applied",
					pid, locks),
			 errhint("You might need to increase max_locks_per_transaction.")));
	evict_signal_process(pid, SIGTERM);
}

/* Does the process wait for this one in the lock manager? */
static bool
evict_waits_for(int waiter, int pid)
{
	Datum	   *pids;
	int			npids;

	deconstruct_array(DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids, Int32GetDatum(waiter))),
					  INT4OID, sizeof(int32), true, TYPALIGN_INT, &pids, NULL, &npids);
	for (int i = 0; i < npids; i++)
	{
		if (DatumGetInt32(pids[i]) == pid)
			return true;
	}
	return false;
}

/*
 * A process that has waited for this one for as long as PostgreSQL lets one wait for
 * autovacuum, or 0.  The apply worker and who has the turn are looked after above.
 */
static int
evict_find_waiter(int pid, int worker)
{
	OtLogIndex	turn;
	int			holder = ot_turn_holder(&turn);
	TimestampTz now = GetCurrentTimestamp();	/* as waitStart is */
	int			found = 0;

	StartTransactionCommand();
	for (int i = 0; i < ProcGlobal->allProcCount && found == 0; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];
		int			waiter = *(volatile int *) &proc->pid;
		TimestampTz since = pg_atomic_read_u64(&proc->waitStart);

		/* it stays as it is after a wait, until the next one */
		if (i != worker && i != holder && waiter != 0 && since != 0 &&
			*(LOCK *volatile *) &proc->waitLock != NULL &&
			TimestampDifferenceExceeds(since, now, DeadlockTimeout) && evict_waits_for(waiter, pid) &&
			(TimestampTz) pg_atomic_read_u64(&proc->waitStart) == since)
			found = waiter;
	}
	CommitTransactionCommand();
	return found;
}

/* Cancels the job that runs, if somebody has waited for it, and it gives way. */
static void
evict_job(int worker)
{
	static TimestampTz next = 0;
	TimestampTz now = ot_now();
	TimestampTz from;
	int			pid;
	int			waiter;

	SpinLockAcquire(&ot_worker->mutex);
	from = ot_worker->job_gives_way_at;
	pid = from == 0 ? 0 : ProcGlobal->allProcs[ot_worker->job_worker].pid;
	SpinLockRelease(&ot_worker->mutex);
	if (pid == 0 || from > now || next > now)
		return;
	next = TimestampTzPlusMilliseconds(now, JOB_LOOK_MS);
	waiter = evict_find_waiter(pid, worker);
	if (waiter == 0)
		return;
	SpinLockAcquire(&ot_worker->mutex);
	if (ot_worker->job_gives_way_at != from)
		waiter = 0;
	else
	{
		ot_worker->job_gives_way = true;
		ot_worker->job_cancel_arrived = false;
		/* a function may have caught it */
		ot_worker->job_gives_way_at = TimestampTzPlusMilliseconds(now, JOB_END_MS);
	}
	SpinLockRelease(&ot_worker->mutex);
	if (waiter == 0)
		return;
	/* a job that ends just now waits for the signal */
	evict_signal_process(pid, SIGINT);
	SpinLockAcquire(&ot_worker->mutex);
	ot_worker->job_cancel_arrived = true;
	SpinLockRelease(&ot_worker->mutex);
	ereport(LOG,
			(errmsg("the onetrip job worker gives way to process %d, which has waited for it", waiter)));
}

/* Has the worker failed at an entry, without having applied it since, or is it not there? */
static bool
evict_worker_stands(int worker, OtLogIndex failing)
{
	return worker < 0 || failing.value > ot_applied_index().value;
}

void
ot_evictor_main(Datum arg)
{
	OtLogIndex	seen = {0};

	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(ot_database, NULL, BGWORKER_BYPASS_ALLOWCONN);
	(void) ot_my_slot();
	watches = MemoryContextAllocZero(TopMemoryContext, sizeof(Watch) * ot_slots->nslots);

	for (;;)
	{
		OtLogIndex	applying;
		OtLogIndex	failing;
		TimestampTz since;
		int			worker;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}

		SpinLockAcquire(&ot_worker->mutex);
		applying = ot_worker->applying;
		since = ot_worker->applying_since;
		worker = ot_worker->worker;
		failing = ot_worker->failing;
		SpinLockRelease(&ot_worker->mutex);

		if (applying.value != 0 && worker >= 0)
		{
			PGPROC	   *proc = &ProcGlobal->allProcs[worker];

			if (proc->waitLock != NULL &&
				TimestampDifferenceExceeds(since, ot_now(), PATIENCE_MS))
			{
				StartTransactionCommand();
				evict_clear_the_way(proc, applying, since);
				CommitTransactionCommand();
			}
			seen = applying;
		}
		evict_for_holder();
		evict_from_full_lock_table(evict_worker_stands(worker, failing));
		evict_job(worker);

		ot_wait_latch(applying.value != 0 || seen.value != 0 ? BUSY_MS : IDLE_MS);
		if (applying.value == 0)
			seen.value = 0;
	}
}

void
ot_evict_init(void)
{
	BackgroundWorker worker;

	ot_sql_worker_describe(&worker, "onetrip evictor", "ot_evictor_main");
	RegisterBackgroundWorker(&worker);
}
