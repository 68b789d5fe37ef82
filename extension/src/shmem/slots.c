/*-------------------------------------------------------------------------
 *
 * slots.c
 *	  How far each process is with its transaction.
 *
 * Runs in all processes.  ERROR is raised by ot_slot_begin_writing(), and by
 * ot_slot_advance() in a transaction that was evicted, both before anything
 * was proposed.
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

OtSlots    *ot_slots = NULL;

static int	my_slot_number = -1;
static bool is_writing = false; /* the present transaction, since it was WRITING first */

int
ot_slot_count(void)
{
	/* auxiliary processes have numbers as well, but never come here */
	return MaxBackends + NUM_AUXILIARY_PROCS;
}

static Size
slot_size(void)
{
	return add_size(offsetof(OtSlots, slots), mul_size(sizeof(OtSlot), ot_slot_count()));
}

static void
slot_attach_memory(void *memory, bool found)
{
	ot_slots = memory;
	if (found)
		return;
	SpinLockInit(&ot_slots->evict_mutex);
	pg_atomic_init_u64(&ot_slots->evictions, 0);
	ot_slots->nslots = ot_slot_count();
	for (int i = 0; i < ot_slots->nslots; i++)
	{
		pg_atomic_init_u32(&ot_slots->slots[i].state, OT_SLOT_IDLE);
		pg_atomic_init_u64(&ot_slots->slots[i].waits_for, 0);
		pg_atomic_init_u32(&ot_slots->slots[i].has_row_locks, 0);
	}
}

void
ot_slot_init(void)
{
	static const OtShmemPart part = {"onetrip slots", 0, slot_attach_memory, slot_size};

	ot_shmem_add(&part);
}

/* The transaction or the process ends.  Safe to call at any time. */
void
ot_slot_end(void)
{
	OtSlot	   *slot;
	uint32		state;

	is_writing = false;
	if (my_slot_number < 0)
		return;
	slot = &ot_slots->slots[my_slot_number];
	state = pg_atomic_read_u32(&slot->state);
	if (state == OT_SLOT_IDLE)
		return;
	if (state == OT_SLOT_EVICTED)
		ot_eviction_end();
	pg_atomic_write_u32(&slot->state, OT_SLOT_IDLE);
}

/* Frees the slot of a process that ends; its transaction has been aborted. */
static void
slot_release(int code, Datum arg)
{
	ot_slot_end();
}

OtSlot *
ot_my_slot(void)
{
	if (unlikely(my_slot_number < 0))
	{
		int			number = OT_PROC_NUMBER(MyProc);

		if (number < 0 || number >= ot_slots->nslots)
			elog(ERROR, "process number %d is outside of onetrip's shared memory", number);
		/* it is IDLE, or EVICTED for this transaction or an earlier one */
		my_slot_number = number;
		on_shmem_exit(slot_release, (Datum) 0);
	}
	return &ot_slots->slots[my_slot_number];
}

int
ot_my_slot_number(void)
{
	(void) ot_my_slot();
	return my_slot_number;
}

/* Goes on to the next state, unless the transaction was evicted. */
void
ot_slot_advance(OtSlotState from, OtSlotState to)
{
	OtSlot	   *slot = ot_my_slot();
	uint32		state = from;

	while (!pg_atomic_compare_exchange_u32(&slot->state, &state, to))
	{
		/* raises ERROR, or removes a mark that was for another transaction */
		if (state == OT_SLOT_EVICTED)
			ot_eviction_take_mark();
		state = pg_atomic_read_u32(&slot->state);
	}
}

void
ot_slot_begin_writing(void)
{
	ot_position_attach();
	ot_slot_advance(OT_SLOT_IDLE, OT_SLOT_WRITING);
	is_writing = true;
}

bool
ot_slot_is_writing(void)
{
	return is_writing;
}

void
ot_slot_wake(int number)
{
	if (number >= 0)
		SetLatch(&ProcGlobal->allProcs[number].procLatch);
}
