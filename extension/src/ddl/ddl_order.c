/*-------------------------------------------------------------------------
 *
 * ddl_order.c
 *	  The order in which ALTER COLUMN TYPE makes indexes and statistics anew, and in
 *	  which a new partition gets its foreign keys.
 *
 * PostgreSQL drops what depends on the column, and makes it again in the order in
 * which it finds that in pg_depend.  Rows of one column are found in the order in
 * which they are stored, which is each server's own, and the new OIDs come in that
 * order.  Later statements choose by OIDs: LIKE for the names of its copies, and a
 * foreign key among unique indexes of the same columns.  So these rows are put into
 * the order of the names before, which are the same in every region.
 *
 * The same with the foreign keys that refer to a table which gets a partition: each
 * gets a copy that refers to the partition, PostgreSQL makes up its name, and it
 * looks for them through all of pg_constraint.
 *
 * Runs in backends and in the apply worker, under the lock that stands for the
 * schema key, or with a share of it and with the lock on the table that its statement
 * takes: nobody else changes these rows.
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
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_statistic_ext.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "capture/capture.h"

/* A row of pg_depend, what depends on a column, or of pg_constraint. */
typedef struct Dependent
{
	HeapTuple	row;
	int32		column;			/* of a foreign key: 0 */
	char	   *name;
} Dependent;

typedef List *(*Find) (Relation catalog, Oid relid);

static bool
ddl_order_matters(Form_pg_depend form)
{
	switch (form->classid)
	{
		case RelationRelationId:
			return get_rel_relkind(form->objid) == RELKIND_INDEX ||
				get_rel_relkind(form->objid) == RELKIND_PARTITIONED_INDEX;
		case ConstraintRelationId:
			return OidIsValid(get_constraint_index(form->objid));
		case StatisticExtRelationId:
			return true;
		default:
			return false;
	}
}

static int
ddl_order_compare(const ListCell *a, const ListCell *b)
{
	Dependent  *one = lfirst(a);
	Dependent  *other = lfirst(b);

	if (one->column != other->column)
		return one->column < other->column ? -1 : 1;
	return strcmp(one->name, other->name);
}

static Dependent *
ddl_order_make(HeapTuple row, int32 column, ObjectAddress object)
{
	Dependent  *dependent = palloc(sizeof(Dependent));

	dependent->row = heap_copytuple(row);
	dependent->column = column;
	dependent->name = getObjectIdentity(&object, false);
	return dependent;
}

/* Those of all columns of the table, in the order that they should have. */
static List *
ddl_order_find_dependents(Relation catalog, Oid relid)
{
	List	   *dependents = NIL;
	SysScanDesc scan;
	ScanKeyData key[2];
	HeapTuple	tuple;

	ScanKeyInit(&key[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationRelationId));
	ScanKeyInit(&key[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(catalog, DependReferenceIndexId, true, NULL, 2, key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);

		if (form->refobjsubid != 0 && ddl_order_matters(form))
			dependents = lappend(dependents, ddl_order_make(tuple, form->refobjsubid,
															(ObjectAddress) {form->classid, form->objid, form->objsubid}));
	}
	systable_endscan(scan);
	list_sort(dependents, ddl_order_compare);
	return dependents;
}

/* The foreign keys that refer to the table, in the order that they should have. */
static List *
ddl_order_find_foreign_keys(Relation catalog, Oid relid)
{
	List	   *keys = NIL;
	SysScanDesc scan;
	ScanKeyData key[2];
	HeapTuple	tuple;

	ScanKeyInit(&key[0], Anum_pg_constraint_confrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	ScanKeyInit(&key[1], Anum_pg_constraint_contype, BTEqualStrategyNumber, F_CHAREQ,
				CharGetDatum(CONSTRAINT_FOREIGN));
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, 2, key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		keys = lappend(keys, ddl_order_make(tuple, 0, (ObjectAddress) {ConstraintRelationId,
								  ((Form_pg_constraint) GETSTRUCT(tuple))->oid, 0}));
	systable_endscan(scan);
	list_sort(keys, ddl_order_compare);
	return keys;
}

static bool
ddl_order_is_kept(List *dependents, int first, int end)
{
	for (int i = first + 1; i < end; i++)
	{
		Dependent  *before = list_nth(dependents, i - 1);
		Dependent  *dependent = list_nth(dependents, i);

		if (ItemPointerCompare(&before->row->t_self, &dependent->row->t_self) > 0)
			return false;
	}
	return true;
}

/*
 * Stores those of one column, from first to before end, anew if their order is
 * another one.  Returns whether it was: where they come to be is not known.
 */
static bool
ddl_order_column(Relation catalog, List *dependents, int first, int end)
{
	if (ddl_order_is_kept(dependents, first, end))
		return false;
	for (int i = first; i < end; i++)
		CatalogTupleDelete(catalog, &((Dependent *) list_nth(dependents, i))->row->t_self);
	for (int i = first; i < end; i++)
		CatalogTupleInsert(catalog, ((Dependent *) list_nth(dependents, i))->row);
	return true;
}

static void
ddl_order_table(Relation catalog, Oid relid, Find find)
{
	bool		changed;

	/* nearly always the second look finds them in order */
	do
	{
		List	   *dependents = find(catalog, relid);
		int			first = 0;

		CHECK_FOR_INTERRUPTS();
		changed = false;
		for (int i = 1; i <= list_length(dependents); i++)
		{
			if (i < list_length(dependents) && ((Dependent *) list_nth(dependents, i))->column ==
				((Dependent *) list_nth(dependents, first))->column)
				continue;
			changed |= ddl_order_column(catalog, dependents, first, i);
			first = i;
		}
		CommandCounterIncrement();
	} while (changed);
}

/*
 * Called before a statement that makes anew what depends on columns of the table, or
 * of its children.
 */
void
ot_ddl_order_dependents(RangeVar *name)
{
	Relation	catalog = table_open(DependRelationId, RowExclusiveLock);
	ListCell   *lc;

	foreach(lc, ot_reindex_tables_of(name))
	{
		/* a temporary child is its session's, which needs no schema key */
		if (get_rel_persistence(lfirst_oid(lc)) != RELPERSISTENCE_TEMP)
			ddl_order_table(catalog, lfirst_oid(lc), ddl_order_find_dependents);
	}
	table_close(catalog, RowExclusiveLock);
}

/* The table that the statement gives a partition; InvalidOid: none. */
static Oid
ddl_order_parent(Node *stmt)
{
	RangeVar   *name = NULL;
	ListCell   *lc;
	Oid			relid;

	if (IsA(stmt, CreateStmt) && ((CreateStmt *) stmt)->partbound != NULL)
		name = linitial_node(RangeVar, ((CreateStmt *) stmt)->inhRelations);
	foreach(lc, IsA(stmt, AlterTableStmt) ? ((AlterTableStmt *) stmt)->cmds : NIL)
	{
		if (lfirst_node(AlterTableCmd, lc)->subtype == AT_AttachPartition)
			name = ((AlterTableStmt *) stmt)->relation;
	}
	relid = name != NULL ? RangeVarGetRelid(name, NoLock, true) : InvalidOid;
	/* without, the statement will fail, or it is about the session's own */
	return OidIsValid(relid) && (ot_is_apply_worker || OT_OWNS_RELATION(relid)) &&
		get_rel_persistence(relid) != RELPERSISTENCE_TEMP ? relid : InvalidOid;
}

/* Does the statement find the foreign keys that it copies in order? */
bool
ot_ddl_finds_order(Node *stmt)
{
	Oid			parent = ddl_order_parent(stmt);
	Relation	catalog;
	List	   *keys;

	if (!OidIsValid(parent))
		return true;
	catalog = table_open(ConstraintRelationId, AccessShareLock);
	keys = ddl_order_find_foreign_keys(catalog, parent);
	table_close(catalog, AccessShareLock);
	return ddl_order_is_kept(keys, 0, list_length(keys));
}

/* Called before any statement, in case it gives a table a partition. */
void
ot_ddl_order_foreign_keys(Node *stmt)
{
	Oid			parent = ddl_order_parent(stmt);
	Relation	catalog;

	if (!OidIsValid(parent))
		return;
	catalog = table_open(ConstraintRelationId, RowExclusiveLock);
	ddl_order_table(catalog, parent, ddl_order_find_foreign_keys);
	table_close(catalog, RowExclusiveLock);
}
