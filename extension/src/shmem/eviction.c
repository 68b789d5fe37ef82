/*-------------------------------------------------------------------------
 *
 * eviction.c
 *	  What an evicted transaction does, and what its client is told.
 *
 * Runs in the process that is evicted; evict.c describes when that happens.
 * The lock is a spinlock since it is also taken when an error is reworded, by
 * a process that may hold any LWLocks.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "shmem/shmem.h"

#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "utils/timestamp.h"

/* A cancel may arrive this long after the eviction that sent it. */
#define LATE_MS 1000
/*
 * How long a transaction that has noticed its eviction waits for the signal
 * that was sent to it: so many times so many ms.
 */
#define SIGNAL_WAIT_MS 10
#define SIGNAL_WAITS 100

/*
 * Copies the last eviction that was meant for this process.  Returns false if
 * there was none.  Sets *present if it was meant for the present transaction,
 * and *cancels to how many cancels of evictions have not been served.
 */
static bool
eviction_last_eviction(OtEviction *eviction, bool *present, uint32 *cancels)
{
	OtSlot	   *slot;

	if (ot_slots == NULL || MyProc == NULL || !IsUnderPostmaster)
		return false;
	slot = &ot_slots->slots[OT_PROC_NUMBER(MyProc)];
	if (likely(slot->eviction.pid != MyProcPid))
		return false;
	SpinLockAcquire(&ot_slots->evict_mutex);
	*eviction = slot->eviction;
	*cancels = slot->cancels_sent - slot->cancels_served;
	SpinLockRelease(&ot_slots->evict_mutex);
	*present = eviction->lxid == OT_LXID(MyProc);
	return eviction->pid == MyProcPid;
}

/* To be called inside ereport(), or in an error context callback. */
static void
eviction_say_evicted(const OtEviction *eviction, bool ends)
{
	const char *region = eviction->region;

	/* what the arrival worker has is not lost */
	if (!ot_writes_early)
		ot_conflict_note(OT_CONFLICT_EVICTED, eviction->relid, eviction->table, NULL, region,
						 eviction->index);
	errcode(OT_ERR_LOST);
	switch (eviction->why)
	{
		case OT_EVICTED_WRITER:
			errmsg("could not go on: a transaction in region \"%s\" was first", region);
			break;
		case OT_EVICTED_READER:
			errmsg("canceled: it held up a change from region \"%s\" for longer than onetrip.max_apply_delay",
				   region);
			break;
		case OT_EVICTED_LOCKED_READER:
			errmsg("canceled: it held up a change from region \"%s\" while it waited for a lock itself",
				   region);
			break;
		case OT_EVICTED_WAITING_READER:
			errmsg("canceled: it held up a change from region \"%s\" that it waited for itself",
				   region);
			break;
		case OT_EVICTED_IDLE_READER:
			errmsg("canceled: it held up a change from region \"%s\" while it waited for its client",
				   region);
			break;
	}
	errdetail("Both touched table \"%s\"; region \"%s\" committed at log index " UINT64_FORMAT ".",
			  eviction->table, region, eviction->index.value);
	if (!ends)
		ot_worker_hint_retry("Retry the transaction.");
	else if (eviction->ended)
		errhint("Connect again and retry the transaction; it did not give way when it was asked to, so the session had to end.");
	else
		errhint("Connect again and retry the transaction; it was idle, so the session had to end.");
}

/*
 * The transaction has noticed by itself that it was evicted.  A conflict that
 * was sent to it must be served here: if it stayed pending, it would end the
 * session as soon as that is idle, although the transaction is over by then.
 */
static void
eviction_raise_evicted(OtEviction *eviction)
{
	for (int i = 0; eviction->conflict && i < SIGNAL_WAITS; i++)
	{
		CHECK_FOR_INTERRUPTS();
		ot_wait_latch(SIGNAL_WAIT_MS);
	}
	ereport(ERROR, eviction_say_evicted(eviction, false));
}

/*
 * The slot of this process is marked as evicted.  Raises ERROR if that is about
 * the present transaction; if it is about an earlier one, removes the mark.
 */
void
ot_eviction_take_mark(void)
{
	OtSlot	   *slot = ot_my_slot();
	TimestampTz now = ot_now();
	uint32		state = OT_SLOT_EVICTED;
	OtEviction	eviction;
	bool		present;

	SpinLockAcquire(&ot_slots->evict_mutex);
	present = slot->eviction.pid == MyProcPid && slot->eviction.lxid == OT_LXID(MyProc);
	if (!present)
		(void) pg_atomic_compare_exchange_u32(&slot->state, &state,
											  ot_slot_is_writing() ? OT_SLOT_WRITING : OT_SLOT_IDLE);
	else if (slot->eviction.asked_at == 0)
		slot->eviction.asked_at = now;
	eviction = slot->eviction;
	SpinLockRelease(&ot_slots->evict_mutex);
	if (present)
		eviction_raise_evicted(&eviction);
}

/*
 * Unless a cancel is pending, those that have arrived are served: they have
 * ended a statement, or a session that was idle has ignored them.  Whoever
 * cancels a statement later is somebody else.
 */
static void
eviction_serve_cancels(OtSlot *slot)
{
	uint32		arrived;

	SpinLockAcquire(&ot_slots->evict_mutex);
	arrived = slot->cancels_arrived;
	SpinLockRelease(&ot_slots->evict_mutex);
	(void) getppid();			/* at the end of a system call signals are there */
	if (!QueryCancelPending)
		slot->cancels_served = arrived;
}

/* Called at the beginning of each statement. */
void
ot_eviction_check(void)
{
	OtSlot	   *slot = &ot_slots->slots[OT_PROC_NUMBER(MyProc)];

	slot->statements++;
	if (unlikely(slot->cancels_sent != slot->cancels_served))
		eviction_serve_cancels(slot);
	if (unlikely(pg_atomic_read_u32(&slot->state) == OT_SLOT_EVICTED))
		ot_eviction_take_mark();
}

/* An evicted transaction ends: a cancel of its eviction is not for the next one. */
void
ot_eviction_end(void)
{
	OtSlot	   *slot = ot_my_slot();

	if (slot->cancels_sent == slot->cancels_served)
		return;					/* if one is pending, it is the client's */
	QueryCancelPending = false;
	eviction_serve_cancels(slot);
}

bool
ot_eviction_minds_errors(void)
{
	return ot_slots != NULL && MyProc != NULL && IsUnderPostmaster &&
		ot_slots->slots[OT_PROC_NUMBER(MyProc)].eviction.pid == MyProcPid;
}

static bool
eviction_is_message(const ErrorData *edata, const char *part)
{
	return edata->message_id != NULL && strstr(edata->message_id, part) != NULL;
}

/*
 * Rewords an error that comes from a signal of an eviction.  Returns whether it
 * did.
 */
bool
ot_eviction_reword(const ErrorData *edata)
{
	OtEviction	eviction;
	bool		present;
	bool		recent;
	uint32		cancels;

	if (!eviction_last_eviction(&eviction, &present, &cancels) || eviction.asked_at == 0)
		return false;
	recent = !TimestampDifferenceExceeds(eviction.asked_at, ot_now(), LATE_MS);

	switch (edata->sqlerrcode)
	{
		case ERRCODE_T_R_SERIALIZATION_FAILURE:
			/* on a primary nobody else signals a conflict */
			if (!eviction_is_message(edata, "due to conflict with recovery"))
				return false;
			break;
		case ERRCODE_QUERY_CANCELED:
			if (!eviction_is_message(edata, "due to user request") || !(present || recent) ||
				cancels == 0)
				return false;
			eviction_serve_cancels(&ot_slots->slots[OT_PROC_NUMBER(MyProc)]);
			break;
		case ERRCODE_ADMIN_SHUTDOWN:
			if (!eviction.ended || !(present || recent))
				return false;
			break;
		default:
			return false;
	}
	if (present)
		eviction_say_evicted(&eviction, edata->elevel >= FATAL);
	else
	{
		errcode(OT_ERR_LOST);
		errmsg("canceled by a signal that was meant for the previous transaction");
		errdetail("The previous transaction was in the way of a change from region \"%s\", and ended before the signal arrived.",
				  eviction.region);
		ot_worker_hint_retry("Retry the transaction.");
	}
	return true;
}
