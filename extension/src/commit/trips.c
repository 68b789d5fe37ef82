/*-------------------------------------------------------------------------
 *
 * trips.c
 *	  How many round trips to other regions a transaction may take
 *	  (onetrip.max_trips).
 *
 * What has to be repeated, because a connection or a leader was lost or another
 * region was behind, is not counted again.
 *
 * Runs in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "storage/proc.h"

/* what this transaction has taken */
static struct
{
	LocalTransactionId lxid;
	int			trips;
}			taken;

/* How many round trips this transaction has taken so far. */
int
ot_trips_taken(void)
{
	return taken.lxid == OT_LXID(MyProc) ? taken.trips : 0;
}

/* May the transaction take so many more? */
bool
ot_trips_are_left(int trips)
{
	return ot_max_trips < 0 || ot_trips_taken() + trips <= ot_max_trips;
}

/* Raises ERROR: so many more would be too many. */
void
ot_trips_refuse(const char *what, int trips)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("cannot %s: the transaction would take more than %d round trips to other regions",
					what, ot_max_trips),
			 errdetail("It has taken %d, and would take %d more.", ot_trips_taken(), trips),
			 errhint("The limit is onetrip.max_trips. COMMIT of a change takes one, DDL another one, in which the other regions try it, and onetrip.ack = applied_everywhere another one; a fresh read takes one, and so do each row lock at the leader and each look at the whole cluster.")));
}

/* To be called before anything is sent.  Raises ERROR if that is too many. */
void
ot_trips_take(const char *what, int trips)
{
	if (!ot_trips_are_left(trips))
		ot_trips_refuse(what, trips);
	taken.trips = ot_trips_taken();
	taken.lxid = OT_LXID(MyProc);
	taken.trips += trips;
}

/* After ot_trips_take(), if so many were not needed. */
void
ot_trips_give_back(int trips)
{
	Assert(ot_trips_taken() >= trips);
	taken.trips -= trips;
}
