/*-------------------------------------------------------------------------
 *
 * unseen.c
 *	  Detects rows that were changed without the access method.
 *
 * An extension may call simple_heap_delete() or the like on a table of its own,
 * as the server does on catalogs.  The access method does not notice that, and
 * other regions would keep the row.  But PostgreSQL counts all rows that a
 * transaction changes, by table, and takes savepoints into account.  If it has
 * counted more rows than went through the access method, the COMMIT fails.
 *
 * Nothing is detected while track_counts is off; only a superuser can turn it
 * off.
 *
 * Runs in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/lsyscache.h"
#include "utils/pgstat_internal.h"

/*
 * Called when all contents of the table are captured, so that what the
 * transaction wrote before, while they did not travel, counts as seen.
 */
void
ot_all_writes_seen(Relation rel)
{
	uint64		seen = ot_write_set_rows(RelationGetRelid(rel));
	uint64		all = 0;

	if (!pgstat_should_count_relation(rel))
		return;
	for (PgStat_TableXactStatus *counts = rel->pgstat_info->trans; counts != NULL; counts = counts->upper)
		all += counts->tuples_inserted + counts->tuples_updated + counts->tuples_deleted;
	if (all > seen)
		ot_write_set_note_rows(RelationGetRelid(rel), all - seen);
}

/* Called at PRE_COMMIT. */
void
ot_check_unseen_writes(void)
{
	/* A transaction without a transaction id has written nothing. */
	if (ot_is_apply_worker || !TransactionIdIsValid(GetTopTransactionIdIfAny()) ||
		!ot_in_replicated_database())
		return;
	for (PgStat_TableXactStatus *counts = pgstat_get_xact_stack_level(1)->first;
		 counts != NULL; counts = counts->next)
	{
		Oid			relid = OT_COUNTED_TABLE(counts->parent);
		uint64		all = counts->tuples_inserted + counts->tuples_updated + counts->tuples_deleted;

		/* TRUNCATE resets the counts */
		if (all == 0 || counts->truncdropped || !ot_contents_of_travel(relid) ||
			all <= ot_write_set_rows(relid))
			continue;
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot replicate changes of table \"%s\" that did not go through its access method",
						get_rel_name(relid)),
				 errdetail(UINT64_FORMAT " rows were changed, " UINT64_FORMAT " of them were seen. Code of an extension changes this table as if it were a catalog.",
						   all, ot_write_set_rows(relid)),
				 errhint("Make it local to each region: create the extension under SET onetrip.new_tables = local.")));
	}
}
