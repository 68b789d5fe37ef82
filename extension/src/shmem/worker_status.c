/*-------------------------------------------------------------------------
 *
 * worker_status.c
 *	  What the apply worker is doing, and whether this server stands still.
 *
 * Written by the worker (apply.c), read by whoever waits for it or tells of
 * it.  The lock is a spinlock since errors are put into words here, by
 * processes that may hold any LWLock then.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "shmem/shmem.h"

#include "utils/timestamp.h"

OtWorkerStatus *ot_worker = NULL;

static Size
worker_status_size(void)
{
	return sizeof(OtWorkerStatus);
}

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
}

void
ot_worker_init(void)
{
	static const OtShmemPart part = {"onetrip worker status", worker_status_size,
	worker_status_attach_memory};

	ot_shmem_add(&part);
}

void
ot_worker_wake(void)
{
	ot_slot_wake(ot_worker->worker);
}

/*
 * The entry that the worker has failed to apply, if it has done so again and
 * again for so long; for 0 ms, if it has failed at all.  0: there is none, or
 * it is applied by now.
 */
OtLogIndex
ot_worker_stands_at(int for_ms)
{
	OtLogIndex	failing = {0};
	TimestampTz since;
	int			failures;

	/* Nearly always; it may miss one that fails just now. */
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
 * To be called inside ereport(): the hint of an error that a retry mends,
 * unless this server stands still.  Then all that it does is based on an old
 * state, and loses again.
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
