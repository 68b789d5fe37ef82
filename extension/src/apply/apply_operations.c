/*-------------------------------------------------------------------------
 *
 * apply_operations.c
 *	  Carries out the operations of a write set.
 *
 * Runs in the apply worker, in the arrival worker, and in backends that rehearse:
 * whose write set it is, and whether the transaction commits, is the caller's.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "storage/lock.h"
#include "utils/memutils.h"

#include "capture/capture.h"
#include "ddl/ddl.h"
#include "sequence/sequence.h"

/* May the write set that was applied last have run user functions? */
static bool ran_functions = false;

/* The context of errors in which ot_apply_operations() was called last. */
static ErrorContextCallback *context_of_operations = NULL;

/*
 * Does the entry look up names, of objects that values refer to or in
 * statements?  Such a write set begins with the time at which its transaction
 * started.
 */
bool
ot_apply_looks_names_up(const OtReader *r, TimestampTz *started)
{
	OtReader	peek = *r;

	if (peek.end - peek.at < 2)
		return false;
	(void) ot_get_u8(&peek);	/* the format */
	if (ot_get_u8(&peek) != 'T')
		return false;
	*started = (TimestampTz) ot_get_u64(&peek);
	return true;
}

/*
 * Gives this transaction the start time that it had in its own region, so that
 * now() in a statement is the same everywhere.
 */
void
ot_apply_take_over_start_time(TimestampTz started)
{
#ifndef USE_ASSERT_CHECKING		/* it asserts that this is a parallel worker */
	SetParallelStartTimestamps(started, started);
#endif
}

/* COMMIT PREPARED and ROLLBACK PREPARED, in a transaction of their own. */
static void
apply_operations_prepared(OtReader *r, const OtEntry *entry)
{
	OtReader	prepared;
	TimestampTz started;

	if (!ot_prepared_end(r, &prepared))
		return;
	if (ot_apply_looks_names_up(&prepared, &started))
		ot_apply_take_over_start_time(started);
	ot_apply_write_set(&prepared, entry);
}

/*
 * Applies a write set, in a transaction that may apply others as well.  What an
 * operation allocates lasts until the next one.  `entry` is the one that it is of;
 * NULL: it is rehearsed, or not decided yet.
 */
void
ot_apply_write_set(OtReader *r, const OtEntry *entry)
{
	MemoryContext old = CurrentMemoryContext;
	MemoryContext context;
	uint8		format;

	ran_functions = false;
	if (!ot_has_more(r))
		return;
	format = ot_get_u8(r);
	if (format != OT_WRITE_SET_FORMAT)
		ereport(ERROR,
				(errcode(OT_ERR_PROTOCOL),
				 errmsg("entry is in format %u, but this version of Onetrip reads format %u",
						format, OT_WRITE_SET_FORMAT),
				 errhint("Another version of Onetrip wrote it: run that version until every region has applied the entry.")));
	ot_apply_rows_begin_write_set();
	ot_object_names_begin();
	ot_contents_apply_begin();
	ot_session_settings_begin();
	context = AllocSetContextCreate(old, "onetrip operation", ALLOCSET_DEFAULT_SIZES);
	while (ot_has_more(r))
	{
		uint8		op = ot_get_u8(r);

		MemoryContextReset(context);
		MemoryContextSwitchTo(context);
		if (unlikely(ot_writes_early))
			ot_arrival_operation(op, r);
		if (op != 'I')
			ot_apply_rows_end_batch();
		switch (op)
		{
			case 'R':
				ot_apply_relation(r);
				break;
			case 'O':
				ot_object_read(r);
				break;
			case 'G':
				ran_functions = true;
				ot_session_settings_read(r);
				break;
			case 'I':
				ot_apply_insert(r, 0);
				break;
			case 'C':
				ot_apply_insert(r, TABLE_INSERT_NO_LOGICAL);
				break;
			case 'U':
				ot_apply_update(r);
				break;
			case 'D':
				ot_apply_delete(r, false);
				break;
			case 'M':
				ot_apply_delete(r, true);
				break;
			case 'L':
				ot_apply_rows_close();
				ot_apply_large_object(r);
				break;
			case 'T':
				(void) ot_get_u64(r);
				break;
			case 'S':
				/* It may change or drop tables that are open. */
				ran_functions = true;
				ot_apply_rows_close();
				ot_session_settings_end();
				CommandCounterIncrement();
				ot_ddl_apply_statement(r);
				break;
			case 'E':
				ot_apply_rows_close();
				CommandCounterIncrement();
				ot_contents_apply_emptied(r);
				break;
			case 'N':
				ot_notify_apply(r);
				break;
			case 'Q':
				CommandCounterIncrement();
				ot_sequence_apply(r);
				break;
			case 'P':
				ot_apply_rows_close();
				ot_prepared_keep(r, entry);
				break;
			case 'X':
				ot_apply_rows_close();
				/* it has operations of its own */
				MemoryContextSwitchTo(old);
				apply_operations_prepared(r, entry);
				break;
			default:
				ereport(ERROR,
						(errcode(OT_ERR_PROTOCOL),
						 errmsg("unknown operation 0x%02x in a write set", op)));
		}
	}
	ot_apply_rows_end_batch();
	ot_session_settings_end();
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/*
 * Applies one write set in the present transaction.  Returns whether it may have
 * run user functions.
 */
bool
ot_apply_operations(OtReader *r)
{
	context_of_operations = error_context_stack;
	ot_apply_rows_begin();
	ot_apply_write_set(r, NULL);
	ot_apply_rows_close();
	return ran_functions;
}

bool
ot_apply_ran_functions(void)
{
	return ran_functions;
}

/* Is this the context of errors in which ot_apply_operations() was called last? */
bool
ot_apply_is_around_operations(const ErrorContextCallback *context)
{
	return context == context_of_operations;
}

/*
 * Called after user functions may have run: releases session-level advisory
 * locks, which outlive the transaction that took them even if it is rolled
 * back.
 */
void
ot_apply_let_locks_go(void)
{
	LockReleaseSession(USER_LOCKMETHOD);
}
