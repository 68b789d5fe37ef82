/*-------------------------------------------------------------------------
 *
 * ddl_subscription.c
 *	  Tables of subscriptions: emptied without a statement, dropped elsewhere.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/pg_subscription_rel.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "storage/lock.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "capture/capture.h"

/* What the worker of a subscription has emptied and not recorded yet. */
static struct
{
	List	   *relids;
	uint8		flags;
	TimestampTz since;			/* when the publisher's statement came */
	List	   *locked;			/* sequences that it has locked in this transaction */
}			worker_truncation;

/*
 * The worker of a subscription empties tables without a statement.  Those of one
 * TRUNCATE of the publisher are recorded together, before the worker's next change:
 * tables that refer to each other must be.  Those of another one may keep their
 * sequences.
 */
void
ot_ddl_truncates_by_worker(Relation rel)
{
	ListCell   *lc;

	if (rel->rd_rel->relkind != RELKIND_RELATION || !ot_capturing() || !ot_contents_travel(rel->rd_rel))
		return;
	if (worker_truncation.since != GetCurrentStatementStartTimestamp())
		ot_ddl_note_truncated_by_worker();
	worker_truncation.since = GetCurrentStatementStartTimestamp();
	ot_ddl_note_oid(&worker_truncation.relids, RelationGetRelid(rel));
	/* it has locked the sequences that it is about to restart; those of an earlier TRUNCATE stay locked */
	foreach(lc, getOwnedSequences(RelationGetRelid(rel)))
	{
		LOCKTAG		tag;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, lfirst_oid(lc));
		if (OT_LOCK_IS_HELD_BY_ME(&tag, AccessExclusiveLock) &&
			!list_member_oid(worker_truncation.locked, lfirst_oid(lc)))
		{
			worker_truncation.flags |= OT_EMPTIED_RESTART;
			ot_ddl_note_oid(&worker_truncation.locked, lfirst_oid(lc));
		}
	}
}

void
ot_ddl_note_truncated_by_worker(void)
{
	List	   *relids = worker_truncation.relids;
	ListCell   *lc;

	if (likely(relids == NIL))
		return;
	worker_truncation.relids = NIL;
	foreach(lc, relids)
		ot_contents_emptied(lfirst_oid(lc), OT_EMPTIED_TRUNCATED | worker_truncation.flags |
							(lfirst_oid(lc) == llast_oid(relids) ? OT_EMPTIED_LAST : 0));
	worker_truncation.flags = 0;
}

void
ot_ddl_forget_truncated_by_worker(void)
{
	memset(&worker_truncation, 0, sizeof(worker_truncation));
}

/*
 * Another region drops a table that a subscription of this one is still copying.
 * PostgreSQL raises ERROR here, which would stop the region; so the subscription
 * forgets the table first.
 */
void
ot_ddl_drops_subscribed(Oid relid)
{
	Relation	rel = table_open(SubscriptionRelRelationId, RowExclusiveLock);
	List	   *subscriptions = NIL;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	ListCell   *lc;

	ScanKeyInit(&key, Anum_pg_subscription_rel_srrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	scan = systable_beginscan(rel, SubscriptionRelSrrelidSrsubidIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_subscription_rel form = (Form_pg_subscription_rel) GETSTRUCT(tuple);

		if (form->srsubstate != SUBREL_STATE_READY)
			subscriptions = lappend_oid(subscriptions, form->srsubid);
	}
	systable_endscan(scan);
	table_close(rel, NoLock);
	foreach(lc, subscriptions)
	{
		RemoveSubscriptionRel(lfirst_oid(lc), relid);
		ereport(LOG,
				(errmsg("table \"%s\" is dropped before its subscription has copied it", get_rel_name(relid)),
				 errdetail("Another region drops it."),
				 errhint("The publisher may have a slot left whose name begins with \"pg_%u_sync_%u_\".",
						 lfirst_oid(lc), relid)));
	}
	if (subscriptions != NIL)
		CommandCounterIncrement();
	list_free(subscriptions);
}
