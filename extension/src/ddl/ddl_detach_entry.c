/*-------------------------------------------------------------------------
 *
 * ddl_detach_entry.c
 *	  What the first entry of DETACH PARTITION CONCURRENTLY does in every region.
 *
 * It marks the partition (pg_inherits.inhdetachpending), as PostgreSQL's first
 * transaction does, gives it a CHECK with its bounds, and notes a job.  What comes
 * before and after it is in ddl_detach.c.
 *
 * PostgreSQL locks both tables in mode SHARE UPDATE EXCLUSIVE for that, whose key
 * would conflict with those of writers.  Here it is ROW EXCLUSIVE: the lock of the
 * schema keeps out other DDL.
 *
 * Whether a statement sees a marked partition depends on its snapshot.  Where DDL is
 * replayed, that one sees all marks that come before it in the log; where it comes
 * from, it is made to (ot_detach_see_marks()).
 *
 * PostgreSQL's output plugin takes for granted that a partition has ancestors if it
 * publishes all tables by their roots.  One that is marked has none, and whoever
 * decodes a row of it crashes (seen with a plain 15.20).  So the two exclude each
 * other.
 *
 * Runs in backends and in the apply worker.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/heap.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_publication.h"
#include "commands/tablecmds.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "partitioning/partdesc.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/partcache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "capture/capture.h"

/* A column of onetrip.job_here. */
#define JOB_STATEMENT 2

/* ---- the mark ---- */

/*
 * The table that this is a partition or child of; InvalidOid if there is none.
 * *marked: it is being detached; *xmin is the transaction that has written that.
 */
Oid
ot_detach_parent_of(Oid partition, bool *marked, TransactionId *xmin)
{
	Relation	catalog = table_open(InheritsRelationId, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	Oid			parent = InvalidOid;

	*marked = false;
	ScanKeyInit(&key, Anum_pg_inherits_inhrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(partition));
	scan = systable_beginscan(catalog, InheritsRelidSeqnoIndexId, true, NULL, 1, &key);
	if (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		parent = ((Form_pg_inherits) GETSTRUCT(tuple))->inhparent;
		*marked = ((Form_pg_inherits) GETSTRUCT(tuple))->inhdetachpending;
		*xmin = HeapTupleHeaderGetXmin(tuple->t_data);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return parent;
}

bool
ot_detach_is_marked(Oid parent, Oid partition)
{
	bool		marked;
	TransactionId xmin;

	return ot_detach_parent_of(partition, &marked, &xmin) == parent && marked;
}

/* Marks it.  Raises the errors that PostgreSQL raises. */
static void
ddl_detach_entry_mark(Relation parent, Relation partition)
{
	Relation	catalog = table_open(InheritsRelationId, RowExclusiveLock);
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyInit(&key, Anum_pg_inherits_inhparent, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationGetRelid(parent)));
	scan = systable_beginscan(catalog, InheritsParentIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_inherits form = (Form_pg_inherits) GETSTRUCT(tuple);
		HeapTuple	marked;

		if (form->inhdetachpending)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("partition \"%s\" already pending detach in partitioned table \"%s.%s\"",
							get_rel_name(form->inhrelid), get_namespace_name(RelationGetNamespace(parent)),
							RelationGetRelationName(parent)),
					 errhint("Use ALTER TABLE ... DETACH PARTITION ... FINALIZE to complete the pending detach operation.")));
		if (form->inhrelid != RelationGetRelid(partition))
			continue;
		found = true;
		marked = heap_copytuple(tuple);
		((Form_pg_inherits) GETSTRUCT(marked))->inhdetachpending = true;
		CatalogTupleUpdate(catalog, &tuple->t_self, marked);
		heap_freetuple(marked);
	}
	systable_endscan(scan);
	table_close(catalog, RowExclusiveLock);
	if (!found)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s\" is not a partition of relation \"%s\"",
						RelationGetRelationName(partition), RelationGetRelationName(parent))));
	CacheInvalidateRelcache(parent);
	CommandCounterIncrement();
}

/* ---- the constraint that takes the place of the bounds ---- */

/*
 * VACUUM writes the relation's row in pg_class, too, and is not kept out by a lock
 * on the table; it locks the row.
 */
static void
ddl_detach_entry_lock_row(Relation catalog, Oid relid, ItemPointer place)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	*place = tuple->t_self;
	ReleaseSysCache(tuple);
	LockTuple(catalog, place, ExclusiveLock);
	/* what it has written meanwhile */
	AcceptInvalidationMessages();
}

static void
ddl_detach_entry_add_check_to(Oid relid, Constraint *check, bool is_child)
{
	Relation	rel = relation_open(relid, RowExclusiveLock);
	Relation	catalog = table_open(RelationRelationId, RowExclusiveLock);
	ItemPointerData place;
	List	   *added;

	if (is_child && !ot_is_apply_worker && !OT_OWNS_RELATION(relid))
		aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(rel->rd_rel->relkind), RelationGetRelationName(rel));
	ddl_detach_entry_lock_row(catalog, relid, &place);
	added = AddRelationNewConstraints(rel, NIL, list_make1(copyObject(check)), true, !is_child, true, NULL);
	UnlockTuple(catalog, &place, ExclusiveLock);
	table_close(catalog, RowExclusiveLock);
	/* the children's has the same name */
	if (added != NIL && check->conname == NULL)
		check->conname = pstrdup(((CookedConstraint *) linitial(added))->name);
	relation_close(rel, NoLock);
	CommandCounterIncrement();
}

/*
 * A CHECK with the bounds, unless another constraint says the same, or they name
 * the partitioned table (those of a hash).
 */
static void
ddl_detach_entry_add_check(Relation parent, Relation partition)
{
	List	   *bounds;
	Constraint *check;
	ListCell   *lc;

	if (RelationGetPartitionKey(parent)->strategy == PARTITION_STRATEGY_HASH)
		return;
	bounds = (List *) eval_const_expressions(NULL, (Node *) RelationGetPartitionQual(partition));
	if (PartConstraintImpliedByRelConstraint(partition, bounds))
		return;
	check = makeNode(Constraint);
	check->contype = CONSTR_CHECK;
	check->location = -1;
	check->cooked_expr = nodeToString(make_ands_explicit(bounds));
	check->initially_valid = true;
	check->skip_validation = true;
	OT_ENFORCE(check);
	foreach(lc, find_all_inheritors(RelationGetRelid(partition), RowExclusiveLock, NULL))
		ddl_detach_entry_add_check_to(lfirst_oid(lc), check, lfirst_oid(lc) != RelationGetRelid(partition));
}

/* ---- foreign keys ---- */

/*
 * Calls back for each foreign key from or to the partition that is a part of one
 * from or to its table.
 */
static void
ddl_detach_entry_each_foreign_key(Oid partition, void (*callback) (Form_pg_constraint form, void *context),
								  void *context)
{
	Relation	catalog = table_open(ConstraintRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_constraint_contype, BTEqualStrategyNumber, F_CHAREQ, CharGetDatum(CONSTRAINT_FOREIGN));
	scan = systable_beginscan(catalog, InvalidOid, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_constraint form = (Form_pg_constraint) GETSTRUCT(tuple);

		if (OidIsValid(form->conparentid) && (form->confrelid == partition || form->conrelid == partition))
			callback(form, context);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

/*
 * Raises ERROR if rows of other tables refer to rows of the partition, where the
 * statement comes from.  The locks, which are taken in all regions, keep out new ones.
 */
static void
ddl_detach_entry_check_referenced(Form_pg_constraint form, void *context)
{
	Relation	partition = context;
	Relation	referring;
	Trigger		trigger = {0};

	if (form->confrelid != RelationGetRelid(partition))
		return;
	referring = table_open(form->conrelid, ShareLock);
	trigger.tgname = NameStr(form->conname);
	trigger.tgenabled = TRIGGER_FIRES_ON_ORIGIN;
	trigger.tgisinternal = true;
	trigger.tgconstrrelid = RelationGetRelid(partition);
	trigger.tgconstrindid = form->conindid;
	trigger.tgconstraint = form->oid;
	if (!ot_is_apply_worker)
		RI_PartitionRemove_Check(&trigger, referring, partition);
	table_close(referring, NoLock);
}

/* ---- publications ---- */

/* Does one publish all tables by their roots? */
bool
ot_detach_all_by_root(void)
{
	Relation	catalog = table_open(PublicationRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;
	bool		found = false;

	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_publication form = (Form_pg_publication) GETSTRUCT(tuple);

		found = form->puballtables && form->pubviaroot;
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return found;
}

/*
 * What is published of the partition because it is one: a row that is written before
 * the mark, and comes after it in another region's log of its server, would be
 * published here and not there.
 */
static bool
ddl_detach_entry_is_published(Oid partition)
{
	ListCell   *lc;

	foreach(lc, get_partition_ancestors(partition))
	{
		if (GetRelationPublications(lfirst_oid(lc)) != NIL ||
			GetSchemaPublications(get_rel_namespace(lfirst_oid(lc))) != NIL)
			return true;
	}
	return false;
}

/* ---- the first entry ---- */

static void
ddl_detach_entry_add_lock(List **relids, List **modes, Oid relid, LOCKMODE mode)
{
	*relids = lappend_oid(*relids, relid);
	*modes = lappend_int(*modes, mode);
}

typedef struct Locks
{
	Oid			partition;
	LOCKMODE	referring;		/* of tables that refer to the partition */
	LOCKMODE	referenced;		/* NoLock: not needed */
	List	  **relids;
	List	  **modes;
} Locks;

static void
ddl_detach_entry_add_locks(Form_pg_constraint form, void *context)
{
	Locks	   *locks = context;

	if (form->confrelid == locks->partition)
		ddl_detach_entry_add_lock(locks->relids, locks->modes, form->conrelid, locks->referring);
	else if (locks->referenced != NoLock)
		ddl_detach_entry_add_lock(locks->relids, locks->modes, form->confrelid, locks->referenced);
}

/* What the first or the second entry locks, in this order, for an attempt to get all of it. */
void
ot_detach_locks(Oid parent, Oid partition, bool second, List **relids, List **modes)
{
	LOCKMODE	mode = second ? AccessExclusiveLock :
		ddl_detach_entry_is_published(partition) ? ShareRowExclusiveLock : RowExclusiveLock;
	Locks		locks = {
		.partition = partition,
		.referring = second ? AccessExclusiveLock : ShareLock,
		.referenced = second ? ShareRowExclusiveLock : NoLock,
		.relids = relids,
		.modes = modes,
	};
	ListCell   *lc;

	*relids = *modes = NIL;
	ddl_detach_entry_add_lock(relids, modes, parent, second ? ShareUpdateExclusiveLock : RowExclusiveLock);
	foreach(lc, find_all_inheritors(partition, NoLock, NULL))
		ddl_detach_entry_add_lock(relids, modes, lfirst_oid(lc), mode);
	ddl_detach_entry_each_foreign_key(partition, ddl_detach_entry_add_locks, &locks);
}

/* Called with the lock of the schema. */
void
ot_detach_begin(Oid parent_oid, Oid partition_oid)
{
	List	   *relids;
	List	   *modes;
	ListCell   *relid;
	ListCell   *mode;
	Relation	parent;
	Relation	partition;

	ot_detach_locks(parent_oid, partition_oid, false, &relids, &modes);
	forboth(relid, relids, mode, modes)
		LockRelationOid(lfirst_oid(relid), lfirst_int(mode));
	parent = table_open(parent_oid, NoLock);
	partition = table_open(partition_oid, NoLock);
	ddl_detach_entry_mark(parent, partition);
	ddl_detach_entry_each_foreign_key(partition_oid, ddl_detach_entry_check_referenced, partition);
	ddl_detach_entry_add_check(parent, partition);
	ot_index_note_job(partition_oid, OT_DETACH_JOB);
	table_close(partition, NoLock);
	table_close(parent, NoLock);
}

/* ---- what other statements see of a mark ---- */

/*
 * A snapshot for FINALIZE, which waits for all who have an older one: nobody has
 * one that is older than this.  What it sees is the same.
 */
void
ot_detach_push_snapshot(void)
{
	SnapshotData snapshot = *GetTransactionSnapshot();

	snapshot.xmin = GetOldestTransactionIdConsideredRunning();
	TransactionIdRetreat(snapshot.xmin);
	snapshot.copied = false;
	PushActiveSnapshot(&snapshot);
}

/* Calls back for each partition that is marked, until that says that it is enough. */
static bool
ddl_detach_entry_any(bool (*callback) (Oid partition, TransactionId xmin, void *context), void *context)
{
	Relation	jobs = table_openrv(makeRangeVar("onetrip", "job_here", -1), AccessShareLock);
	SysScanDesc scan = systable_beginscan(jobs, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	job;
	bool		enough = false;

	while (!enough && HeapTupleIsValid(job = systable_getnext(scan)))
	{
		bool		isnull;
		Oid			partition = DatumGetObjectId(heap_getattr(job, 1, RelationGetDescr(jobs), &isnull));
		char	   *statement = TextDatumGetCString(heap_getattr(job, JOB_STATEMENT, RelationGetDescr(jobs), &isnull));
		bool		marked;
		TransactionId xmin;

		enough = strcmp(statement, OT_DETACH_JOB) == 0 &&
			OidIsValid(ot_detach_parent_of(partition, &marked, &xmin)) && marked && callback(partition, xmin, context);
	}
	systable_endscan(scan);
	table_close(jobs, AccessShareLock);
	return enough;
}

static bool
ddl_detach_entry_is_missed(Oid partition, TransactionId xmin, void *snapshot)
{
	return XidInMVCCSnapshot(xmin, snapshot);
}

/*
 * Called before a statement that is recorded, once it has the lock of the schema.
 * Its snapshot may be from before a mark that was made meanwhile, by an entry that
 * comes before it in the log.  Returns whether it has pushed another one.
 */
bool
ot_detach_see_marks(void)
{
	if (!ActiveSnapshotSet() || !ddl_detach_entry_any(ddl_detach_entry_is_missed, GetActiveSnapshot()))
		return false;
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access due to a partition that is being detached"),
				 errdetail("Other regions would run the statement without it."),
				 errhint("Run the transaction again.")));
	PushActiveSnapshot(GetTransactionSnapshot());
	return true;
}

static bool
ddl_detach_entry_is_there(Oid partition, TransactionId xmin, void *found)
{
	*(Oid *) found = partition;
	return true;
}

/* Called after a statement about publications. */
void
ot_detach_check_marks(void)
{
	Oid			partition;

	CommandCounterIncrement();
	if (ddl_detach_entry_any(ddl_detach_entry_is_there, &partition) && ot_detach_all_by_root())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot publish all tables with publish_via_partition_root while partition \"%s\" is being detached",
						get_rel_name(partition)),
				 errdetail("PostgreSQL's WAL senders crash if they meet such a partition."),
				 errhint("Wait until it is detached, or run ALTER TABLE ... DETACH PARTITION ... FINALIZE.")));
}
