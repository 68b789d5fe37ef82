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
 * The same counts tell whether the transaction has changed catalogs, whoever did
 * it and by whatever means.  Most statements that do are in the entry; those that
 * are not, such as REINDEX, have only this server's own things to change.
 *
 * Runs in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_description.h"
#include "catalog/pg_init_privs.h"
#include "catalog/pg_largeobject.h"
#include "catalog/pg_largeobject_metadata.h"
#include "catalog/pg_seclabel.h"
#include "catalog/pg_shdepend.h"
#include "catalog/pg_statistic.h"
#include "catalog/pg_statistic_ext_data.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/lsyscache.h"
#include "utils/pgstat_internal.h"

/* How many rows of the table the (sub)transaction has changed. */
static uint64
unseen_rows(const PgStat_TableXactStatus *counts)
{
	return counts->tuples_inserted + counts->tuples_updated + counts->tuples_deleted;
}

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
		all += unseen_rows(counts);
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
		uint64		all = unseen_rows(counts);

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

/* ---- what is in no entry ---- */

/* Of a table, not of its TOAST table, whose rows do not travel, or of a catalog. */
static bool
unseen_is_of_here(Oid relid)
{
	return get_rel_relkind(relid) == RELKIND_RELATION &&
		get_rel_persistence(relid) != RELPERSISTENCE_TEMP && !ot_contents_of_travel(relid);
}

/*
 * Is a row of this catalog either in the entry or not missed?  Large objects
 * travel, with what is kept about them elsewhere, which nothing writes alone but
 * statements that are in the entry.  Statistics are each server's own, and are
 * made again.
 */
static bool
unseen_is_not_missed(Oid catalog)
{
	switch (catalog)
	{
		case LargeObjectRelationId:
		case LargeObjectMetadataRelationId:
		case DependRelationId:
		case SharedDependRelationId:
		case DescriptionRelationId:
		case SecLabelRelationId:
		case InitPrivsRelationId:
		case StatisticRelationId:
		case StatisticExtDataRelationId:
			return true;
		default:
			return false;
	}
}

/* How many rows of catalogs has this transaction changed that no entry will change? */
uint64
ot_unseen_catalog_rows(void)
{
	uint64		all = 0;
	uint64		seen = ot_write_set_rows(InvalidOid);

	for (PgStat_SubXactStatus *level = pgstat_get_xact_stack_level(GetCurrentTransactionNestLevel());
		 level != NULL; level = level->prev)
	{
		for (PgStat_TableXactStatus *counts = level->first; counts != NULL; counts = counts->next)
		{
			Oid			relid = OT_COUNTED_TABLE(counts->parent);

			if (relid < FirstNormalObjectId && unseen_rows(counts) > 0 &&
				!unseen_is_not_missed(relid) && unseen_is_of_here(relid))
				all += unseen_rows(counts);
		}
	}
	return all > seen ? all - seen : 0;
}

/*
 * A statement has run whose results travel: so do the rows of catalogs that it has
 * changed.  `before`: what ot_unseen_catalog_rows() said before it.
 */
void
ot_unseen_catalog_rows_travel(uint64 before)
{
	uint64		rows = ot_unseen_catalog_rows();

	if (rows > before)
		ot_write_set_note_rows(InvalidOid, (int) (rows - before));
}

/* A table that is not replicated and whose rows were changed, or InvalidOid. */
Oid
ot_unseen_written_here(void)
{
	for (PgStat_TableXactStatus *counts = pgstat_get_xact_stack_level(1)->first;
		 counts != NULL; counts = counts->next)
	{
		Oid			relid = OT_COUNTED_TABLE(counts->parent);

		if (relid >= FirstNormalObjectId && unseen_rows(counts) > 0 && unseen_is_of_here(relid))
			return relid;
	}
	return InvalidOid;
}
