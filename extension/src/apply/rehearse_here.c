/*-------------------------------------------------------------------------
 *
 * rehearse_here.c
 *	  Tries a write set of another region, and rolls it back.
 *
 * rehearse.c explains the purpose.  An ordinary session of the node does this
 * in the way of the apply worker: nothing is captured, and user functions run
 * as they would in the worker.  But it evicts nobody and is evicted itself if
 * it is in the worker's way, and it omits what cannot be rolled back (a
 * sequence's position).
 *
 * A write set with OT_COMPARE in front contains statements only, and they find
 * tables without rows, so that it takes little time.  The answer is what they have
 * changed in the catalogs (ddl/ddl_share.c says what for).  It is given as an error,
 * so that the node hands it on like one.
 *
 * Runs in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include <signal.h>

#include "access/xact.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

#include "capture/capture.h"
#include "commit/commit.h"
#include "ddl/ddl.h"
#include "sequence/sequence.h"
#include "shmem/shmem.h"

/* An error of a function may be as long as memory allows. */
#define TEXT_BYTES_MAX (64 * 1024 - 1)
/* How long after statement_timeout the session ends. */
#define END_LATER_MS 1000

/*
 * Where an error says that it was raised if the rehearsal has failed, which is what
 * nodes go by.  Those of the first release know no other place of a function's error.
 */
#define ROUTINE_OF_FAILURE "exec_stmt_raise"

PG_FUNCTION_INFO_V1(ot_rehearse);

/* The answer is ours, and not an error of a function that says the same. */
static bool answers = false;

static void
rehearse_say_what_came(void)
{
	OtCatalogDigest digest;

	ot_catalog_digest(&digest);
	answers = true;
	ereport(ERROR,
			(errcode(OT_ERR_CAME_TO),
			 errmsg_internal("%s", ot_catalog_digest_text(&digest))));
}

/*
 * Whoever asks wants to know whether this region could say what statements come
 * to.  It could not if a session holds DDL open, or the worker stands still; if it
 * is behind, it could later.
 */
static void
rehearse_say_whether_busy(OtLogIndex base)
{
	if (!ot_position_wait_shown(base, TimestampTzPlusMilliseconds(ot_now(), SHOWN_MS)))
	{
		bool		stands = ot_worker_stands_at(0).value != 0;

		ereport(ERROR,
				(errcode(stands ? ERRCODE_LOCK_NOT_AVAILABLE : OT_ERR_CAME_TO),
				 errmsg_internal(OT_COMPARE_BUSY)));
	}
	/* within lock_timeout */
	ot_ddl_lock_schema();
}

/* The last error while the write set was carried out, caught or not. */
static int	noted_code;
static OtFault noted_fault;

static void
rehearse_note_failure(const ErrorData *edata)
{
	noted_code = edata->sqlerrcode;
	noted_fault = ot_apply_fault(edata);
}

/*
 * Tells the node whether the rehearsal has failed.  Else the error has a SQLSTATE of
 * those that a node takes for one that passes.
 */
static void
rehearse_say_whether_failed(ErrorData *error)
{
	/* it gives way to the worker */
	if (error->sqlerrcode != noted_code)
		return;
	if (noted_fault == OT_FAULT_LACKS || noted_fault == OT_FAULT_OF_WRITE_SET)
		error->funcname = ROUTINE_OF_FAILURE;
	else if (error->sqlerrcode == ERRCODE_INTERNAL_ERROR || error->sqlerrcode == ERRCODE_INSUFFICIENT_PRIVILEGE)
		error->sqlerrcode = ERRCODE_DISK_FULL;
}

static void
rehearse_cut(char *text)
{
	if (text != NULL)
		text[pg_mbcliplen(text, strlen(text), TEXT_BYTES_MAX)] = '\0';
}

/* Cuts all that the node is sent of an error. */
static void
rehearse_cut_error(ErrorData *error)
{
	rehearse_cut(error->message);
	rehearse_cut(error->detail);
	rehearse_cut(error->hint);
	rehearse_cut(error->context);
	rehearse_cut(error->internalquery);
	rehearse_cut(error->schema_name);
	rehearse_cut(error->table_name);
	rehearse_cut(error->column_name);
	rehearse_cut(error->datatype_name);
	rehearse_cut(error->constraint_name);
}

static void
rehearse_end_session(void)
{
	(void) kill(MyProcPid, SIGTERM);
}

/*
 * A function may catch statement_timeout, which fires once, and may switch off what
 * ends a session whose client has gone.  It cannot catch this.
 */
static TimeoutId
rehearse_limit_time(void)
{
	static TimeoutId limit = MAX_TIMEOUTS;

	if (limit == MAX_TIMEOUTS)
		limit = RegisterTimeout(USER_TIMEOUT, rehearse_end_session);
	if (StatementTimeout > 0)
		enable_timeout_after(limit, StatementTimeout + END_LATER_MS);
	return limit;
}

/* Rolls the subtransaction back.  The session is an ordinary one again. */
static void
rehearse_end(MemoryContext context, ResourceOwner owner, TimeoutId limit)
{
	MemoryContextSwitchTo(context);
	disable_timeout(limit, false);
	ot_is_apply_worker = ot_is_rehearsing = ot_is_comparing = false;
	RollbackAndReleaseCurrentSubTransaction();
	ot_apply_let_locks_go();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
}

/* Applies the write set in a subtransaction, and rolls that back. */
static void
rehearse_carry_out_and_roll_back(OtReader *r, bool compare)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	TimeoutId	limit = rehearse_limit_time();

	noted_code = 0;
	ot_session_note_failures(rehearse_note_failure);
	ot_session_watch_errors();
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	ot_is_apply_worker = ot_is_rehearsing = true;
	ot_is_comparing = compare;
	PG_TRY();
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		/* as the worker may have to; it would count as a change */
		if (!compare)
			ot_functions_drop();
		(void) ot_apply_operations(r);
		if (compare)
			rehearse_say_what_came();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		/* before any other error leaves, such as that there is no memory for a copy of this one */
		rehearse_end(context, owner, limit);
		error = CopyErrorData();
		FlushErrorState();
		rehearse_say_whether_failed(error);
		if (error->sqlerrcode == OT_ERR_CAME_TO && !answers)
			error->sqlerrcode = ERRCODE_INTERNAL_ERROR;
		answers = false;
		rehearse_cut_error(error);
		ReThrowError(error);
	}
	PG_END_TRY();
	rehearse_end(context, owner, limit);
}

/*
 * onetrip.rehearse(base bigint, write_set bytea) returns void.  Raises ERROR if
 * the write set fails here.  The node calls it in a separate session, whose
 * settings become those of the apply worker; statement_timeout and lock_timeout
 * of the session limit how long it may take and wait for locks.
 */
Datum
ot_rehearse(PG_FUNCTION_ARGS)
{
	OtLogIndex	base = {(uint64) PG_GETARG_INT64(0)};
	bytea	   *operations = PG_GETARG_BYTEA_PP(1);
	OtReader	r = {.at = VARDATA_ANY(operations),
	.end = VARDATA_ANY(operations) + VARSIZE_ANY_EXHDR(operations)};
	bool		compare;

	ot_check_running();
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("only the node of region \"%s\" may rehearse a write set", ot_region)));
	compare = ot_has_more(&r) && (uint8) *r.at == OT_COMPARE;
	if (compare)
	{
		(void) ot_get_u8(&r);
		if (!ot_has_more(&r))
			rehearse_say_whether_busy(base);
	}
	if (!ot_position_wait_shown(base, TimestampTzPlusMilliseconds(ot_now(), SHOWN_MS)))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("region \"%s\" does not show log index " UINT64_FORMAT " yet",
						ot_region, base.value)));
	ot_apply_set_up_session();
	/* As a writer, it is evicted at once if it is in the worker's way. */
	ot_slot_begin_writing();
	ot_sequence_rehearses();
	rehearse_carry_out_and_roll_back(&r, compare);
	PG_RETURN_VOID();
}
