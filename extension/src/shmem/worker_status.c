/*-------------------------------------------------------------------------
 *
 * worker_status.c
 *	  What the apply worker is doing, and whether this server stands still.
 *
 * Written by the worker (apply.c), read by processes that wait for it or report
 * about it.  The lock is a spinlock since it is also taken when an error is
 * reworded, by processes that may hold any LWLocks.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "shmem/shmem.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

OtWorkerStatus *ot_worker = NULL;

static void
worker_status_attach_memory(void *memory, bool found)
{
	ot_worker = memory;
	if (found)
		return;
	SpinLockInit(&ot_worker->mutex);
	pg_atomic_init_u32(&ot_worker->applying_table, InvalidOid);
	pg_atomic_init_u64(&ot_worker->entries, 0);
	pg_atomic_init_u64(&ot_worker->transactions, 0);
	ot_worker->worker = -1;
	ot_worker->job_worker = -1;
	ot_worker->detach_worker = -1;
}

void
ot_worker_init(void)
{
	static const OtShmemPart part = {"onetrip worker status", sizeof(OtWorkerStatus), worker_status_attach_memory};

	ot_shmem_add(&part);
}

void
ot_worker_wake(void)
{
	ot_slot_wake(ot_worker->worker);
}

/*
 * Returns the entry at which this server stands still: the one that the worker
 * has repeatedly failed to apply for at least for_ms, or, if for_ms is 0, has
 * failed to apply at all.  0 if there is none or if it is applied by now.
 */
OtLogIndex
ot_worker_stands_at(int for_ms)
{
	OtLogIndex	failing = {0};
	TimestampTz since;
	int			failures;

	/* The usual case; it may miss an entry that fails at this moment. */
	if (likely(ot_worker->failures == 0))
		return failing;
	SpinLockAcquire(&ot_worker->mutex);
	failing = ot_worker->failing;
	since = ot_worker->failing_since;
	failures = ot_worker->failures;
	SpinLockRelease(&ot_worker->mutex);
	if (failing.value <= ot_applied_index().value ||
		(for_ms > 0 && (failures < 2 ||
						!TimestampDifferenceExceeds(since, ot_now(), for_ms))))
		failing.value = 0;
	return failing;
}

/*
 * To be called inside ereport(): the hint of an error that can be retried.  If
 * this server stands still, all that it does is based on an old state and would
 * lose again, so the hint is to retry in another region.
 */
int
ot_worker_hint_retry(const char *hint)
{
	OtLogIndex	at = ot_worker_stands_at(0);

	if (at.value == 0)
		return errhint("%s", hint);
	return errhint("Region \"%s\" cannot apply log index " UINT64_FORMAT " and shows nothing newer, so changes made here will lose. Retry in another region; SELECT failing, failure FROM onetrip.status says why.",
				   ot_region, at.value);
}

/* Called in the job worker when it starts. */
void
ot_worker_is_for_jobs(void)
{
	SpinLockAcquire(&ot_worker->mutex);
	ot_worker->job_worker = OT_PROC_NUMBER(MyProc);
	SpinLockRelease(&ot_worker->mutex);
}

/* Called in the job worker: the job that begins gives way from then on (apply/evict.c). */
void
ot_worker_job_begins(TimestampTz gives_way_at)
{
	SpinLockAcquire(&ot_worker->mutex);
	ot_worker->job_gives_way_at = gives_way_at;
	ot_worker->job_gives_way = false;
	SpinLockRelease(&ot_worker->mutex);
}

/*
 * Returns whether it was made to give way.  The signal of that has been sent then: one
 * that came later would end what the worker does next.
 */
bool
ot_worker_job_ends(void)
{
	for (;;)
	{
		bool		gives_way;
		bool		arrived;

		SpinLockAcquire(&ot_worker->mutex);
		ot_worker->job_gives_way_at = 0;
		gives_way = ot_worker->job_gives_way;
		arrived = ot_worker->job_cancel_arrived;
		SpinLockRelease(&ot_worker->mutex);
		if (!gives_way || arrived)
			return gives_way;
		pg_usleep(1000L);
	}
}

/* Called in the detach worker, before it ends. */
void
ot_worker_detaches_end(void)
{
	SpinLockAcquire(&ot_worker->mutex);
	if (ot_worker->detach_worker == OT_PROC_NUMBER(MyProc))
		ot_worker->detach_worker = -1;
	SpinLockRelease(&ot_worker->mutex);
}

static void
worker_detaches_exit(int code, Datum arg)
{
	ot_worker_detaches_end();
}

/* Called in the detach worker when it starts.  false: there is another one already. */
bool
ot_worker_is_for_detaches(void)
{
	static bool registered = false;
	bool		first;

	SpinLockAcquire(&ot_worker->mutex);
	first = ot_worker->detach_worker < 0;
	if (first)
		ot_worker->detach_worker = OT_PROC_NUMBER(MyProc);
	SpinLockRelease(&ot_worker->mutex);
	if (first && !registered)
		before_shmem_exit(worker_detaches_exit, (Datum) 0);
	registered = registered || first;
	return first;
}

/* Is the detach worker there? */
bool
ot_worker_for_detaches_is_there(void)
{
	bool		there;

	SpinLockAcquire(&ot_worker->mutex);
	there = ot_worker->detach_worker >= 0;
	SpinLockRelease(&ot_worker->mutex);
	return there;
}

/* There is a new job.  If these workers are not there now, they look when they are. */
void
ot_worker_wake_jobs(void)
{
	int			numbers[2];

	SpinLockAcquire(&ot_worker->mutex);
	numbers[0] = ot_worker->job_worker;
	numbers[1] = ot_worker->detach_worker;
	SpinLockRelease(&ot_worker->mutex);
	for (int i = 0; i < lengthof(numbers); i++)
		ot_slot_wake(numbers[i]);
}
