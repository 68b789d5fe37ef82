/*-------------------------------------------------------------------------
 *
 * ddl_results.c
 *	  What travels as a statement's results, and what the functions that it calls
 *	  may change.
 *
 * A recorded statement runs again in the other regions, and with it every user
 * function that it calls.  Such a function must therefore not change anything
 * replicated; this is checked here and, as a second line of defence, in the apply
 * worker.  The rule does not apply where the results travel and no function is
 * called again:
 *	- materialized views and CREATE TABLE AS: their rows travel;
 *	- TRUNCATE: the fact that tables are empty travels; its triggers fire here
 *	  only;
 *	- event triggers, which fire here only.  Whatever a ddl_command_start
 *	  trigger does happens before its statement, so the statement is then
 *	  recorded anew, after those changes;
 *	- bounds of partitions (ddl_bounds.c).
 * ALTER TABLE that fills a table with rows that other regions could not compute,
 * or do not have, also travels with its results: other regions empty the table
 * first, so that they compute nothing and check nothing, and all its rows follow
 * the statement.
 *
 * The script of an extension runs everywhere.  The contents of the tables that
 * it has filled travel as well (contents.c), since they may differ by region.
 *
 * Runs in backends; what is asked before a row changes, in the apply worker too.
 * Everything here may raise ERROR.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_running.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "tcop/cmdtag.h"
#include "tcop/utility.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "capture/capture.h"

/* ---- what functions may change ---- */

/*
 * Called before something replicated changes: raises an ERROR if that happens
 * in a function that a recorded statement calls.  `what` completes the message
 * "cannot ...".
 */
void
ot_ddl_check_function(const char *what)
{
	OtRecorded *recorded = ot_ddl_now.recorded;

	/* the script of an extension does the same in every region */
	if (likely(recorded == NULL) || recorded->results || creating_extension)
		return;
	ereport(ERROR,
			(errcode(OT_ERR_NOT_REPLICATED),
			 errmsg("cannot %s in a function that %s calls", what,
					GetCommandTagName(CreateCommandTag(recorded->stmt))),
			 errdetail("The statement runs in every region, and what the function does would be done in each of them."),
			 errhint("Let the function only compute a value, and change the rows in a separate statement.")));
}

/* Called before a statement takes effect that travels, or whose results do. */
void
ot_ddl_check_may_travel(const char *tag)
{
	ot_ddl_check_function(psprintf("run %s", tag));
	/* what it makes would belong to the extension here and nowhere else */
	if (creating_extension)
		ot_ddl_refuse(psprintf("%s in an event trigger while the script of an extension runs", tag),
					  "Let the event trigger write rows only, or disable it for the time being.");
}

/* Called before a row changes, in a backend or in the apply worker. */
static void
ddl_results_check_row_write(Relation rel)
{
	ot_ddl_note_truncated_by_worker();
	if (unlikely(ot_ddl_now.filling != NIL) && list_member_oid(ot_ddl_now.filling, RelationGetRelid(rel)))
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot change rows of table \"%s\" in an event trigger of the statement that fills it",
						RelationGetRelationName(rel)),
				 errdetail("All rows of the table travel once the statement is over."),
				 errhint("Change the rows in a separate statement.")));
	if (unlikely(ot_ddl_now.recorded != NULL) && !ot_ddl_now.recorded->results)
		ot_ddl_check_function(psprintf("change rows of table \"%s\"",
									   RelationGetRelationName(rel)));
	if (unlikely(ot_ddl_replaying) && !creating_extension)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("a function that the statement calls changes rows of table \"%s\" in region \"%s\"",
						RelationGetRelationName(rel), ot_region),
				 errdetail("It did not do so in the region that the statement comes from.")));
}

/* ---- tables that are emptied, and filled anew ---- */

/* Called when the tables of a TRUNCATE are locked, and none of them is empty yet. */
static void
ddl_results_note_truncated(void)
{
	OtTruncation *truncation = ot_ddl_now.truncation;
	List	   *travelling = NIL;
	ListCell   *lc;

	truncation->told = true;
	truncation->all_travel = true;
	foreach(lc, truncation->relids)
	{
		LOCKTAG		tag;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, lfirst_oid(lc));
		/* while it waited, the name may have become another table's */
		if (!OT_LOCK_IS_HELD_BY_ME(&tag, AccessExclusiveLock))
			continue;
		if (ot_contents_of_travel(lfirst_oid(lc)))
			travelling = lappend_oid(travelling, lfirst_oid(lc));
		else
			truncation->all_travel = false;
	}
	if (travelling != NIL)
		ot_ddl_check_may_travel("TRUNCATE TABLE");
	foreach(lc, travelling)
		ot_contents_emptied(lfirst_oid(lc), truncation->flags |
							(lfirst_oid(lc) == llast_oid(travelling) ? OT_EMPTIED_LAST : 0));
}

/*
 * Called when a table is about to get an empty file.  In a TRUNCATE, the
 * BEFORE triggers have fired by then, and none of the AFTER triggers.
 */
static void
ddl_results_before_file(Relation rel)
{
	OtTruncation *truncation = ot_ddl_now.truncation;

	if (truncation != NULL && list_member_oid(truncation->relids, RelationGetRelid(rel)))
	{
		if (!truncation->told)
			ddl_results_note_truncated();
	}
	else if (IsLogicalWorker())
	{
		if (ot_ddl_now.depth == 0)
			ot_ddl_truncates_by_worker(rel);
	}
	else if (ot_ddl_now.recorded == NULL && rel->rd_createSubid == InvalidSubTransactionId && ot_capturing() &&
			 ot_contents_travel(rel->rd_rel))
		ot_ddl_refuse("TRUNCATE by C code without a statement",
					  "Let the code run TRUNCATE, as a statement.");
}

/* Called before an index that is not valid is filled anew. */
static void
ddl_results_before_build(Relation index)
{
	if (ot_ddl_now.reindexes || ot_ddl_now.recorded != NULL)
		ot_index_check_build(index);
}

/*
 * Called when the script of an extension writes a row: every region writes
 * one, but perhaps with other values.
 */
static void
ddl_results_script_writes(Relation rel)
{
	/* while a table or materialized view is rewritten, its own OID */
	Oid			relid = OT_FILLS_FOR_REWRITE(rel) ? rel->rd_rel->relrewrite :
		RelationGetRelid(rel);

	if (ot_ddl_now.recorded != NULL)
		ot_ddl_note_oid(&ot_ddl_now.recorded->filled, relid);
}

/*
 * Called after the script.  The lock is taken in place of keys for the rows:
 * it becomes a key at COMMIT.
 */
static void
ddl_results_note_filled(OtRecorded *statement)
{
	ListCell   *lc;

	foreach(lc, statement->filled)
	{
		Oid			relid = lfirst_oid(lc);

		LockRelationOid(relid, AccessExclusiveLock);
		if (get_rel_relkind(relid) == RELKIND_MATVIEW)
			ot_contents_note_matview(relid, false);
		else if (get_rel_relkind(relid) == RELKIND_RELATION)
			ot_contents_note(relid, 0);
	}
}

/*
 * Called before a statement is recorded that computes other values in each
 * region, and therefore is to find no rows in the other regions.
 */
void
ot_ddl_empty_first(OtRecorded *statement)
{
	ListCell   *lc;

	foreach(lc, statement->emptied)
		ot_contents_emptied(lfirst_oid(lc), ot_contents_of_travel(lfirst_oid(lc)) ? 0 : OT_EMPTIED_OWN);
}

/*
 * Called when it is over.  The tables may have other children by then, or be
 * gone: an event trigger can do that.
 */
static void
ddl_results_note_refilled(OtRecorded *statement)
{
	List	   *relids;
	ListCell   *lc;

	CommandCounterIncrement();
	if (get_rel_relkind(statement->fills) == '\0')
		return;
	relids = statement->fills_children ? find_all_inheritors(statement->fills, NoLock, NULL) :
		list_make1_oid(statement->fills);
	foreach(lc, relids)
	{
		if (get_rel_relkind(lfirst_oid(lc)) == RELKIND_RELATION && ot_contents_of_travel(lfirst_oid(lc)))
			ot_contents_note(lfirst_oid(lc), 0);
	}
}

/* Captures results that travel, once the statement has run, which may be any of these or none. */
void
ot_ddl_note_results(RefreshMatViewStmt *refresh, OtRecorded *statement, OtCreateAs *running)
{
	if (refresh && ot_in_replicated_database())
	{
		Oid			relid = RangeVarGetRelid(refresh->relation, NoLock, false);

		if (get_rel_persistence(relid) != RELPERSISTENCE_TEMP)
			ot_contents_note_matview(relid, refresh->concurrent);
	}
	else if (running && OidIsValid(running->relid) && running->matview)
	{
		/* an event trigger may have dropped it */
		CommandCounterIncrement();
		if (get_rel_relkind(running->relid) == RELKIND_MATVIEW)
			ot_contents_note_matview(running->relid, false);
	}
	if (ot_ddl_now.truncation && !ot_ddl_now.truncation->told)
		ddl_results_note_truncated();
	if (statement == NULL)
		return;
	if (OidIsValid(statement->fills))
		ddl_results_note_refilled(statement);
	ddl_results_note_filled(statement);
}

void
ot_ddl_results_init(void)
{
	static const OtTableWatch watch = {
		.check_row_write = ddl_results_check_row_write,
		.script_writes = ddl_results_script_writes,
		.before_file = ddl_results_before_file,
		.before_build = ddl_results_before_build,
	};

	ot_access_method_watch(&watch);
}
