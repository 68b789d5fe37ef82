/*-------------------------------------------------------------------------
 *
 * rehearse_here.c
 *	  Tries a write set of another region, and rolls it back.
 *
 * rehearse.c says what for.  An ordinary session of the node's does it, with
 * the eyes of the apply worker: nothing is captured, and users' functions run
 * as they would there.  But it evicts nobody and gives way to everybody, and
 * what does not roll back (a sequence's position) is left out.
 *
 * Runs in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "capture/capture.h"
#include "shmem/shmem.h"

PG_FUNCTION_INFO_V1(ot_rehearse);

/* In a transaction of its own within the present one, which it does not outlive. */
static void
rehearse_carry_out_and_roll_back(OtReader *r)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	ot_is_apply_worker = ot_is_rehearsing = true;
	PG_TRY();
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		ot_apply_operations(r);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	ot_is_apply_worker = ot_is_rehearsing = false;
	RollbackAndReleaseCurrentSubTransaction();
	ot_apply_let_locks_go();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (error)
		ReThrowError(error);
}

/*
 * onetrip.rehearse(base bigint, write_set bytea) returns void: ERROR if it
 * fails here.  For the node, in a session of its own, whose settings become the
 * apply worker's; how long it may take and wait for locks is the session's
 * statement_timeout and lock_timeout.
 */
Datum
ot_rehearse(PG_FUNCTION_ARGS)
{
	OtLogIndex	base = {(uint64) PG_GETARG_INT64(0)};
	bytea	   *operations = PG_GETARG_BYTEA_PP(1);
	OtReader	r = {.at = VARDATA_ANY(operations),
	.end = VARDATA_ANY(operations) + VARSIZE_ANY_EXHDR(operations)};

	ot_check_running();
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("only the node of region \"%s\" may rehearse a write set", ot_region)));
	if (!ot_position_wait_shown(base))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("region \"%s\" does not show log index " UINT64_FORMAT " yet",
						ot_region, base.value)));
	ot_apply_set_up_session();
	/* Whoever is in the worker's way as a writer is evicted at once. */
	ot_slot_begin_writing();
	rehearse_carry_out_and_roll_back(&r);
	PG_RETURN_VOID();
}
