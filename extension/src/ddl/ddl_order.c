/*-------------------------------------------------------------------------
 *
 * ddl_order.c
 *	  The order in which ALTER COLUMN TYPE makes indexes and statistics anew.
 *
 * PostgreSQL drops what depends on the column, and makes it again in the order in
 * which it finds that in pg_depend.  Rows of one column are found in the order in
 * which they are stored, which is each server's own, and the new OIDs come in that
 * order.  Later statements choose by OIDs: LIKE for the names of its copies, and a
 * foreign key among unique indexes of the same columns.  So these rows are put into
 * the order of the names before, which are the same in every region.
 *
 * Runs in backends and in the apply worker, under the lock that stands for the
 * schema key: nobody else changes these rows.
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
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_statistic_ext.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

/* A row of pg_depend: what depends on a column. */
typedef struct Dependent
{
	HeapTuple	row;
	int32		column;
	char	   *name;
} Dependent;

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

/* Those of all columns of the table, in the order that they should have. */
static List *
ddl_order_dependents(Relation catalog, Oid relid)
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
		ObjectAddress object = {form->classid, form->objid, form->objsubid};
		Dependent  *dependent;

		if (form->refobjsubid == 0 || !ddl_order_matters(form))
			continue;
		dependent = palloc(sizeof(Dependent));
		dependent->row = heap_copytuple(tuple);
		dependent->column = form->refobjsubid;
		dependent->name = getObjectIdentity(&object, false);
		dependents = lappend(dependents, dependent);
	}
	systable_endscan(scan);
	list_sort(dependents, ddl_order_compare);
	return dependents;
}

/*
 * Stores those of one column, from first to before end, anew if their order is
 * another one.  Returns whether it was: where they come to be is not known.
 */
static bool
ddl_order_column(Relation catalog, List *dependents, int first, int end)
{
	bool		ordered = true;

	for (int i = first + 1; i < end; i++)
	{
		Dependent  *before = list_nth(dependents, i - 1);
		Dependent  *dependent = list_nth(dependents, i);

		ordered &= ItemPointerCompare(&before->row->t_self, &dependent->row->t_self) < 0;
	}
	if (ordered)
		return false;
	for (int i = first; i < end; i++)
		CatalogTupleDelete(catalog, &((Dependent *) list_nth(dependents, i))->row->t_self);
	for (int i = first; i < end; i++)
		CatalogTupleInsert(catalog, ((Dependent *) list_nth(dependents, i))->row);
	return true;
}

static void
ddl_order_table(Relation catalog, Oid relid)
{
	bool		changed;

	/* nearly always the second look finds them in order */
	do
	{
		List	   *dependents = ddl_order_dependents(catalog, relid);
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
			ddl_order_table(catalog, lfirst_oid(lc));
	}
	table_close(catalog, RowExclusiveLock);
}
