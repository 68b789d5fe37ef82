/*-------------------------------------------------------------------------
 *
 * process.c
 *	  What kind of process this is, and what that lets it do.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"

bool		ot_preloaded = false;
bool		ot_is_apply_worker = false;
bool		ot_builds_indexes = false;
bool		ot_is_rehearsing = false;
bool		ot_is_comparing = false;
bool		ot_writes_early = false;
bool		ot_in_event_trigger = false;

/*
 * Is this backend connected to the replicated database?  The answer is kept:
 * neither the setting nor the backend's database can change.
 */
bool
ot_in_replicated_database(void)
{
	static int	answer = -1;

	if (answer < 0)
	{
		char	   *name;

		if (!OidIsValid(MyDatabaseId) || !IsTransactionState())
			return false;
		name = get_database_name(MyDatabaseId);
		answer = (name != NULL && ot_database != NULL &&
				  strcmp(name, ot_database) == 0) ? 1 : 0;
		if (name)
			pfree(name);
	}
	return answer == 1;
}

/* Do the changes that this process makes now belong in a write set? */
bool
ot_capturing(void)
{
	return ot_preloaded && IsUnderPostmaster && !ot_is_apply_worker &&
		(!creating_extension || ot_in_event_trigger) && ot_in_replicated_database();
}

/*
 * A read replica refuses changes of what is replicated.  onetrip.read_only is
 * the server's, not a session's or a transaction's, so no client can get around
 * it.
 */
void
ot_check_writable(void)
{
	if (unlikely(ot_read_only) && !ot_is_apply_worker)
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot change what is replicated: this server of region \"%s\" is a read replica", ot_region),
				 errdetail("Temporary and unlogged tables may be written, and tables of another access method."),
				 errhint("Connect to a region with a voter; onetrip status names them.")));
}

/*
 * In PG_CATCH: lets the ERROR go.  It has also let interrupts through, which are held
 * again as before.
 */
void
ot_swallow_error(MemoryContext context, uint32 holdoff)
{
	MemoryContextSwitchTo(context);
	FlushErrorState();
	InterruptHoldoffCount = holdoff;
}

/* Waits for this process' latch, which it resets, or so long; -1: without a limit. */
void
ot_wait_latch(long ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | (ms >= 0 ? WL_TIMEOUT : 0),
					 ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
}
