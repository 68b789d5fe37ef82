/*-------------------------------------------------------------------------
 *
 * evict.c
 *	  Makes a local transaction give way to an entry that is already decided.
 *
 * Two ways lead here.  The apply worker, about to wait for a row, looks who
 * holds it and evicts that transaction at once (ot_evict_xid).  Whatever else
 * it may wait for (table locks under DDL, a unique value being inserted) is
 * found by the evictor, a process of its own, which looks every few
 * milliseconds whether the worker waits in the lock manager, and for whom.
 *
 *	the one in the way		what happens
 *	IDLE, only reads		evicted once the entry has waited max_apply_delay
 *	WRITING					evicted at once: it would fail certification anyway
 *	PROPOSED				left alone: its verdict can only be abort
 *	DECIDED, earlier		left alone: it commits before the entry does
 *	DECIDED, later			must not happen (a lock without a key).  Its entry is
 *							handed over to the worker and the session ended, saying
 *							that it committed: a deadlock would be worse
 *
 * Eviction uses the signal by which a hot standby cancels queries: a running
 * statement gets an ERROR, an idle transaction a FATAL, since the protocol
 * has no other way to tell it.  From the moment it is marked it cannot commit;
 * the signal follows a little later (signal_marked).  Both with
 * SQLSTATE 40001, and with the message put into our words on its way out
 * (emit_log_hook).
 *
 * Runs in the apply worker and the evictor; the message hook in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "evict.h"

#include "access/subtrans.h"
#include "access/transam.h"
#include "access/xact.h"
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
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "turn.h"

/* How often the evictor looks while entries are being applied, and else. */
#define BUSY_MS 3
#define IDLE_MS 50
/* A wait shorter than this is left to pass by itself. */
#define PATIENCE_MS 2
/* How long an evicted transaction may take to notice by its next statement. */
#define GRACE_MS 25
/* A signal that found the process inside an exception block is repeated. */
#define REPEAT_MS 100
/* How long an evicted transaction that noticed waits for its signal. */
#define SIGNAL_WAIT_MS 10
#define SIGNAL_WAITS 100
/* A reader that itself waits for a lock is not given max_apply_delay. */
#define LOCKED_READER_MS 1000

static emit_log_hook_type prev_emit_log_hook = NULL;

/* ---- in the backend that is evicted ---- */

/* On a primary nobody but our evictor signals a conflict. */
static OtEviction *
last_eviction(void)
{
	int			number;

	if (ot_shared == NULL || MyProc == NULL)
		return NULL;
	number = OT_PROC_NUMBER(MyProc);
	if (number < 0 || number >= ot_shared->nslots ||
		ot_shared->slots[number].eviction.marked_at == 0)
		return NULL;
	return &ot_shared->slots[number].eviction;
}

#define LOST_MESSAGE "could not go on: a transaction in region \"%s\" was first"
#define READER_MESSAGE "canceled: it held up a change from region \"%s\" for longer than onetrip.max_apply_delay"
#define LOST_DETAIL "Both touched table \"%s\"; region \"%s\" committed at log index " UINT64_FORMAT "."

/*
 * The transaction found out by itself that it has been evicted.  A signal that
 * was sent must be taken here: left pending, it would end the session once it
 * is idle, though the transaction is over.
 */
void
ot_evict_raise(void)
{
	OtSlot	   *slot = ot_my_slot();
	TimestampTz now = ot_now();
	bool		signalled;

	SpinLockAcquire(&ot_shared->evict_mutex);
	signalled = slot->eviction.signalled_at != 0;
	if (!signalled)
		slot->eviction.signalled_at = now;
	SpinLockRelease(&ot_shared->evict_mutex);
	for (int i = 0; signalled && i < SIGNAL_WAITS; i++)
	{
		CHECK_FOR_INTERRUPTS();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 SIGNAL_WAIT_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
	ereport(ERROR,
			(errcode(OT_ERR_LOST),
			 errmsg(LOST_MESSAGE, slot->eviction.region),
			 errdetail(LOST_DETAIL, slot->eviction.table, slot->eviction.region,
					   slot->eviction.index.value),
			 errhint("Retry the transaction.")));
}

/* Says what happened instead of "conflict with recovery". */
static void
reword(ErrorData *edata)
{
	OtEviction *eviction;

	if (edata->elevel >= ERROR && edata->sqlerrcode == OT_ERR_LOST &&
		edata->message_id != NULL &&
		strstr(edata->message_id, "due to conflict with recovery") != NULL &&
		(eviction = last_eviction()) != NULL)
	{
		edata->message = psprintf(eviction->was_reading ? READER_MESSAGE : LOST_MESSAGE,
								  eviction->region);
		edata->detail = psprintf(LOST_DETAIL, eviction->table, eviction->region,
								 eviction->index.value);
		edata->hint = edata->elevel >= FATAL ?
			pstrdup("Connect again and retry the transaction; it was idle, so the session had to end.") :
			pstrdup("Retry the transaction.");
	}
	if (prev_emit_log_hook)
		prev_emit_log_hook(edata);
}

/* ---- in the process that evicts ---- */

/*
 * Signals a process that has been marked, at most every REPEAT_MS.  Unless it
 * waits inside a statement it is left a moment: most sessions go on with their
 * next statement at once, notice there that they are marked, and live on.  A
 * signal might find them between two statements, which ends the session.
 */
static void
signal_marked(PGPROC *proc, OtEviction *eviction)
{
	TimestampTz now = ot_now();
	uint32		wait_class = *(volatile uint32 *) &proc->wait_event_info & 0xFF000000;
	bool		due;

	SpinLockAcquire(&ot_shared->evict_mutex);
	if (eviction->signalled_at == 0)
		due = wait_class == PG_WAIT_LOCK || wait_class == PG_WAIT_TIMEOUT ||
			TimestampDifferenceExceeds(eviction->marked_at, now, GRACE_MS);
	else
		/* An exception block may have caught the error. */
		due = TimestampDifferenceExceeds(eviction->signalled_at, now, REPEAT_MS);
	if (due)
		eviction->signalled_at = now;
	SpinLockRelease(&ot_shared->evict_mutex);
	if (due)
		(void) SendProcSignal(proc->pid, PROCSIG_RECOVERY_CONFLICT_LOCK, OT_BACKEND_ID(proc));
}

/* Marks and signals one process.  Returns false if it must be left alone. */
static bool
evict_proc(PGPROC *proc, const char *table)
{
	OtSlot	   *slot = &ot_shared->slots[OT_PROC_NUMBER(proc)];
	uint32		state = pg_atomic_read_u32(&slot->state);
	LocalTransactionId lxid = OT_LXID(proc);
	OtEviction	eviction;
	bool		marked;

	if (proc->pid == 0 || lxid == InvalidLocalTransactionId)
		return false;
	if (state == OT_SLOT_EVICTED && slot->eviction.lxid == lxid)
	{
		signal_marked(proc, &slot->eviction);
		return true;
	}
	if (state == OT_SLOT_PROPOSED || state == OT_SLOT_DECIDED)
		return false;

	memset(&eviction, 0, sizeof(eviction));
	eviction.lxid = lxid;
	eviction.marked_at = ot_now();
	eviction.was_reading = (state == OT_SLOT_IDLE);
	SpinLockAcquire(&ot_shared->mutex);
	eviction.index = ot_shared->applying;
	memcpy(eviction.region, ot_shared->applying_region, sizeof(eviction.region));
	SpinLockRelease(&ot_shared->mutex);
	strlcpy(eviction.table, table, sizeof(eviction.table));

	SpinLockAcquire(&ot_shared->evict_mutex);
	slot->eviction = eviction;
	marked = pg_atomic_compare_exchange_u32(&slot->state, &state, OT_SLOT_EVICTED);
	SpinLockRelease(&ot_shared->evict_mutex);
	if (!marked)
		return false;			/* it moved on; the caller looks again */

	pg_atomic_fetch_add_u64(&ot_shared->evictions, 1);
	signal_marked(proc, &slot->eviction);
	return true;
}

static void
table_name(Relation rel, char *out, size_t size)
{
	char	   *schema = get_namespace_name(RelationGetNamespace(rel));

	snprintf(out, size, "%s.%s", schema ? schema : "?", RelationGetRelationName(rel));
}

/*
 * The worker is about to wait for this transaction over a row of rel.  The
 * wait itself is the caller's.
 */
void
ot_evict_xid(TransactionId xid, Relation rel)
{
	PGPROC	   *proc;
	int			pid;
	char		table[NAMEDATALEN * 2];

	if (!TransactionIdIsValid(xid) || TransactionIdIsCurrentTransactionId(xid))
		return;
	if (TransactionIdPrecedes(xid, TransactionXmin))
		return;					/* over long ago */
	xid = SubTransGetTopmostTransaction(xid);
	pid = BackendXidGetPid(xid);
	if (pid == 0 || pid == MyProcPid)
		return;
	proc = BackendPidGetProc(pid);
	if (proc == NULL || proc->xid != xid)
		return;
	table_name(rel, table, sizeof(table));
	(void) evict_proc(proc, table);
}

/* ---- the evictor ---- */

/* What the worker waits for, in words. */
static void
describe_wait(const LOCKTAG *tag, char *out, size_t size)
{
	char	   *name = NULL;
	char	   *schema = NULL;

	Oid			relid = InvalidOid;

	if (tag->locktag_type == LOCKTAG_RELATION || tag->locktag_type == LOCKTAG_TUPLE)
		relid = tag->locktag_field2;
	/* For the end of a transaction: the one that took the same unique value. */
	else if (tag->locktag_type == LOCKTAG_TRANSACTION ||
			 tag->locktag_type == LOCKTAG_SPECULATIVE_TOKEN)
		relid = pg_atomic_read_u32(&ot_shared->applying_table);
	if (OidIsValid(relid))
	{
		name = get_rel_name(relid);
		schema = name ? get_namespace_name(get_rel_namespace(relid)) : NULL;
	}
	if (name && schema)
		snprintf(out, size, "%s.%s", schema, name);
	else
		strlcpy(out, "(unknown)", size);
}

static void
give_up_decided(PGPROC *proc, const char *table)
{
	OtSlot	   *slot = &ot_shared->slots[OT_PROC_NUMBER(proc)];

	if (pg_atomic_exchange_u32(&slot->handover, 1) != 0)
		return;
	pg_atomic_fetch_add_u64(&ot_shared->handovers, 1);
	ereport(LOG,
			(errmsg("a decided transaction holds a lock on \"%s\" that an earlier entry needs",
					table),
			 errdetail("Process %d is ended and its entry applied from the log.", proc->pid),
			 errhint("This is a defect: a lock without a key.  Please report it.")));
	SetLatch(&proc->procLatch);
}

static bool
decided_after(PGPROC *proc, OtLogIndex applying)
{
	OtSlot	   *slot = &ot_shared->slots[OT_PROC_NUMBER(proc)];
	bool		after;

	SpinLockAcquire(&ot_shared->mutex);
	after = slot->index.value > applying.value;
	SpinLockRelease(&ot_shared->mutex);
	return after;
}

/* May this reader or maintenance command hold up the entry a while longer? */
static bool
may_stay(PGPROC *proc, TimestampTz since)
{
	TimestampTz now = ot_now();

	if ((proc->statusFlags & PROC_IS_AUTOVACUUM) &&
		!(proc->statusFlags & PROC_VACUUM_FOR_WRAPAROUND))
		return false;
	if (proc->waitLock != NULL && TimestampDifferenceExceeds(since, now, LOCKED_READER_MS))
		return false;
	return !TimestampDifferenceExceeds(since, now, ot_max_apply_delay_ms);
}

/*
 * Locks that are let go within a statement, whatever becomes of the
 * transaction: their holder is busy, not in the way.
 */
static bool
is_short_lock(const LOCKTAG *tag)
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

/* The worker waits in the lock manager: deals with each process it waits for. */
static void
clear_the_way(PGPROC *worker, OtLogIndex applying, TimestampTz since)
{
	BlockedProcsData *data = GetBlockerStatusData(worker->pid);

	for (int i = 0; i < data->nprocs; i++)
	{
		BlockedProcData *blocked = &data->procs[i];
		LockInstanceData *instances = &data->locks[blocked->first_lock];
		LockInstanceData *mine = NULL;
		LOCKMASK	conflicts;
		char		table[NAMEDATALEN * 2];

		for (int j = 0; j < blocked->num_locks; j++)
		{
			if (instances[j].pid == blocked->pid && instances[j].waitLockMode != NoLock)
				mine = &instances[j];
		}
		if (mine == NULL || is_short_lock(&mine->locktag))
			continue;
		conflicts = GetLockTagsMethodTable(&mine->locktag)->conflictTab[mine->waitLockMode];
		describe_wait(&mine->locktag, table, sizeof(table));

		for (int j = 0; j < blocked->num_locks; j++)
		{
			LockInstanceData *other = &instances[j];
			PGPROC	   *proc;
			uint32		state;

			/* Holders of a conflicting mode, and those ahead in the queue. */
			if (other == mine || other->leaderPid == mine->leaderPid)
				continue;
			if (!(conflicts & other->holdMask) &&
				!(other->waitLockMode != NoLock &&
				  (conflicts & LOCKBIT_ON(other->waitLockMode))))
				continue;
			proc = BackendPidGetProc(other->leaderPid);
			if (proc == NULL)
				continue;
			state = pg_atomic_read_u32(&ot_shared->slots[OT_PROC_NUMBER(proc)].state);
			if (state == OT_SLOT_DECIDED)
			{
				/* One that comes before this entry commits by itself soon. */
				if (decided_after(proc, applying))
					give_up_decided(proc, table);
			}
			else if (state == OT_SLOT_IDLE && may_stay(proc, since))
				continue;
			else
				(void) evict_proc(proc, table);
		}
	}
}

void
ot_evictor_main(Datum arg)
{
	OtLogIndex	seen = {0};

	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(ot_database, NULL, 0);
	(void) ot_my_slot();
	SpinLockAcquire(&ot_shared->mutex);
	ot_shared->evictor = OT_PROC_NUMBER(MyProc);
	SpinLockRelease(&ot_shared->mutex);

	for (;;)
	{
		OtLogIndex	applying;
		TimestampTz since;
		int			worker;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}

		SpinLockAcquire(&ot_shared->mutex);
		applying = ot_shared->applying;
		since = ot_shared->applying_since;
		worker = ot_shared->worker;
		SpinLockRelease(&ot_shared->mutex);

		if (applying.value != 0 && worker >= 0)
		{
			PGPROC	   *proc = &ProcGlobal->allProcs[worker];

			if (proc->waitLock != NULL &&
				TimestampDifferenceExceeds(since, ot_now(), PATIENCE_MS))
			{
				StartTransactionCommand();
				clear_the_way(proc, applying, since);
				CommitTransactionCommand();
			}
			seen = applying;
		}

		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 applying.value != 0 || seen.value != 0 ? BUSY_MS : IDLE_MS,
						 PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		if (applying.value == 0)
			seen.value = 0;
	}
}

static void
register_evictor(void)
{
	BackgroundWorker worker = {
		.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = 1,
	};

	strlcpy(worker.bgw_name, "onetrip evictor", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "onetrip evictor", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "onetrip", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "ot_evictor_main", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

void
ot_evict_init(void)
{
	prev_emit_log_hook = emit_log_hook;
	emit_log_hook = reword;
	register_evictor();
}
