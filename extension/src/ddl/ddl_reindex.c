/*-------------------------------------------------------------------------
 *
 * ddl_reindex.c
 *	  REINDEX CONCURRENTLY as a job in every region.
 *
 * A first entry of the log, one for each table, makes a copy of each index: an
 * index with the same definition and the name ..._reindex, with no contents, which
 * depends on the first one and is dropped with it.  Each region's job worker builds
 * it, as it does those of CREATE INDEX CONCURRENTLY (ddl_index.c).  When all regions
 * have built it, a second entry puts it in the place of the first in all of them:
 * the two exchange their files, and the copy is dropped with the old one.  So the
 * index keeps its OID, and what depends on it.  Where the copy is not built by then,
 * on a read replica, it is dropped, and the index stays as it is: nothing that other
 * entries rely on has changed.
 *
 * Both entries have the same effect on the catalogs of every region, so DDL in
 * between comes out alike.
 *
 * The index of a TOAST table, whose names and OIDs are each region's own, gets a copy
 * by an entry that names its table, and each region puts its copy to use by itself, as
 * soon as it is built (ot_index_build()): no other entry can meet it, and nothing that
 * travels depends on it.  The session waits for that of its own region.
 *
 * Stays local, as maintenance without CONCURRENTLY: what is temporary or
 * PostgreSQL's own, and a TOAST table or its index that is named itself.  An index that
 * is not valid is passed over; if it is named, its job tries again at once, and the
 * session waits for that, or it is refused if it has none.
 *
 * Runs in backends, in the apply worker and in the job worker.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include <ctype.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/toast_internals.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "commands/tablecmds.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/predicate.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "capture/capture.h"
#include "shmem/shmem.h"

/* The end of a copy's name. */
#define LABEL "reindex"
/* How often the session looks whether the copy has taken its place, and whether other regions fail. */
#define WAIT_MS 50
#define LOOKS_UNTIL_ASKED 40

/* The level whose libraries know both entries. */
#define LEVEL 1

/* An index that the session waits for. */
typedef struct Awaited
{
	Oid			index;
	Oid			copy;
	Oid			file;			/* of the index, before */
	bool		of_toast;
} Awaited;

bool
ot_reindex_is_concurrent(ReindexStmt *stmt)
{
	ListCell   *lc;
	bool		concurrently = false;

	foreach(lc, stmt->params)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, "concurrently") == 0)
			concurrently = defGetBoolean(option);
	}
	return concurrently;
}

static bool
ddl_reindex_is_index(Oid relid)
{
	char		relkind = get_rel_relkind(relid);

	return relkind == RELKIND_INDEX || relkind == RELKIND_PARTITIONED_INDEX;
}

static bool
ddl_reindex_knows_options(ReindexStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->params)
	{
		const char *name = lfirst_node(DefElem, lc)->defname;

		if (strcmp(name, "concurrently") != 0 && strcmp(name, "verbose") != 0 && strcmp(name, "tablespace") != 0)
			return false;
	}
	return true;
}

/* ---- the copy ---- */

/*
 * Reads pg_depend for one end of the dependency between a copy and its index,
 * and returns the other one; InvalidOid if there is none.
 */
static Oid
ddl_reindex_other_end(Oid index, bool is_copy)
{
	Relation	catalog = table_open(DependRelationId, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData key[2];
	HeapTuple	tuple;
	Oid			found = InvalidOid;

	ScanKeyInit(&key[0], is_copy ? Anum_pg_depend_classid : Anum_pg_depend_refclassid,
				BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(RelationRelationId));
	ScanKeyInit(&key[1], is_copy ? Anum_pg_depend_objid : Anum_pg_depend_refobjid,
				BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(index));
	scan = systable_beginscan(catalog, is_copy ? DependDependerIndexId : DependReferenceIndexId, true, NULL, 2, key);
	while (!OidIsValid(found) && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);
		Oid			other = is_copy ? form->refobjid : form->objid;

		if (form->deptype == DEPENDENCY_AUTO &&
			form->classid == RelationRelationId && form->refclassid == RelationRelationId &&
			get_rel_relkind(other) == RELKIND_INDEX)
			found = other;
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return found;
}

/* The index of which this one is a copy; InvalidOid: it is none. */
Oid
ot_reindex_original(Oid index)
{
	return ddl_reindex_other_end(index, true);
}

bool
ot_reindex_is_of_toast(Oid index)
{
	return get_rel_namespace(index) == PG_TOAST_NAMESPACE;
}

static Oid
ddl_reindex_copy_of(Oid index)
{
	return ddl_reindex_other_end(index, false);
}

/*
 * A name that is not taken.  All regions find the same, since what has names in a
 * schema is the same in all of them at this point of the log.
 */
static char *
ddl_reindex_choose_name(Relation original)
{
	Oid			schema = RelationGetNamespace(original);
	char	   *name = makeObjectName(RelationGetRelationName(original), NULL, LABEL);

	for (int i = 1; OidIsValid(get_relname_relid(name, schema)); i++)
		name = makeObjectName(RelationGetRelationName(original), NULL, psprintf(LABEL "%d", i));
	return name;
}

/*
 * The copy compares values when the index does.  One of an index that is
 * DEFERRABLE has no constraint of its own that would say so.
 */
static void
ddl_reindex_compare_later(Oid copy)
{
	Relation	catalog = table_open(IndexRelationId, RowExclusiveLock);
	HeapTuple	tuple = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(copy));

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", copy);
	((Form_pg_index) GETSTRUCT(tuple))->indimmediate = false;
	CatalogTupleUpdate(catalog, &tuple->t_self, tuple);
	heap_freetuple(tuple);
	table_close(catalog, RowExclusiveLock);
}

/*
 * The caller has a lock on the table, which keeps out what changes it without the
 * schema key; no writer need wait for it.  PostgreSQL simplifies the expressions of
 * the index, and runs functions for that, which must not be done by whoever has
 * asked for this.
 */
static Oid
ddl_reindex_make_copy(Oid table, Oid index)
{
	Relation	rel = table_open(table, NoLock);
	Relation	original;
	ObjectAddress depender;
	ObjectAddress referenced;
	Oid			copy;
	OtUserContext owner;

	ot_user_enter(&owner, rel->rd_rel->relowner, true);
	OT_RESTRICT_SEARCH_PATH();
	original = index_open(index, AccessShareLock);
	copy = index_concurrently_create_copy(rel, index, original->rd_rel->reltablespace,
										  ddl_reindex_choose_name(original));
	/* nobody else can know of it before the transaction ends, and then there is no key of its table for it */
	UnlockRelationOid(copy, AccessExclusiveLock);
	CommandCounterIncrement();
	if (!original->rd_index->indimmediate)
		ddl_reindex_compare_later(copy);
	index_close(original, NoLock);
	ObjectAddressSet(depender, RelationRelationId, copy);
	ObjectAddressSet(referenced, RelationRelationId, index);
	recordDependencyOn(&depender, &referenced, DEPENDENCY_AUTO);
	table_close(rel, NoLock);
	CommandCounterIncrement();
	ot_user_leave(&owner);
	ot_index_note_job(copy, "REINDEX INDEX CONCURRENTLY");
	return copy;
}

/*
 * The index of the table's TOAST table, if it has one.  The TOAST table stays locked:
 * PostgreSQL's own REINDEX CONCURRENTLY of it waits for whoever may have found the
 * index that it replaces.
 */
static Oid
ddl_reindex_toast_index(Relation table)
{
	Oid			toast = table->rd_rel->reltoastrelid;

	return OidIsValid(toast) ? toast_get_valid_index(toast, AccessShareLock) : InvalidOid;
}

/* The first entry about a TOAST table.  What an earlier one has asked for may not be done here yet. */
static void
ddl_reindex_define_toast(Oid table)
{
	Relation	rel = relation_open(table, AccessShareLock);
	Oid			index = ddl_reindex_toast_index(rel);

	if (OidIsValid(index) && !OidIsValid(ddl_reindex_copy_of(index)))
		(void) ddl_reindex_make_copy(rel->rd_rel->reltoastrelid, index);
	relation_close(rel, NoLock);
}

/* The first entry, in another region. */
void
ot_reindex_define(ReindexStmt *stmt)
{
	Oid			relid = ot_index_named(stmt);
	Oid			table;

	if (stmt->kind == REINDEX_OBJECT_TABLE)
	{
		ddl_reindex_define_toast(relid);
		return;
	}
	table = IndexGetRelation(relid, false);
	LockRelationOid(table, AccessShareLock);
	(void) ddl_reindex_make_copy(table, relid);
}

/* ---- the second entry ---- */

static Oid
ddl_reindex_file_of(Oid index)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(index));
	Oid			file = InvalidOid;

	if (HeapTupleIsValid(tuple))
	{
		file = ((Form_pg_class) GETSTRUCT(tuple))->relfilenode;
		ReleaseSysCache(tuple);
	}
	return file;
}

/*
 * Exchanges the files of two indexes with the same definition, which this
 * transaction has locked exclusively.
 */
static void
ddl_reindex_exchange_files(Oid index, Oid copy)
{
	Relation	catalog = table_open(RelationRelationId, RowExclusiveLock);
	HeapTuple	tuples[2];
	Form_pg_class forms[2];
	FormData_pg_class first;

	tuples[0] = SearchSysCacheCopy1(RELOID, ObjectIdGetDatum(index));
	tuples[1] = SearchSysCacheCopy1(RELOID, ObjectIdGetDatum(copy));
	for (int i = 0; i < 2; i++)
	{
		if (!HeapTupleIsValid(tuples[i]))
			elog(ERROR, "cache lookup failed for index %u", i == 0 ? index : copy);
		forms[i] = (Form_pg_class) GETSTRUCT(tuples[i]);
	}
	memcpy(&first, forms[0], CLASS_TUPLE_SIZE);
	forms[0]->relfilenode = forms[1]->relfilenode;
	forms[0]->relpages = forms[1]->relpages;
	forms[0]->reltuples = forms[1]->reltuples;
	forms[1]->relfilenode = first.relfilenode;
	forms[1]->relpages = first.relpages;
	forms[1]->reltuples = first.reltuples;
	for (int i = 0; i < 2; i++)
	{
		CatalogTupleUpdate(catalog, &tuples[i]->t_self, tuples[i]);
		heap_freetuple(tuples[i]);
	}
	table_close(catalog, RowExclusiveLock);
	CommandCounterIncrement();
}

/* Are they in one place, so that an exchange of files is all that it takes? */
static bool
ddl_reindex_may_exchange(Relation index, Relation copy)
{
	return index->rd_rel->reltablespace == copy->rd_rel->reltablespace &&
		index->rd_rel->relpersistence == copy->rd_rel->relpersistence;
}

/* Values may contain the copy's name, which is a key of the entry that drops it. */
static void
ddl_reindex_drop(Oid copy)
{
	ObjectAddress address;

	if (!ot_is_apply_worker && !ot_reindex_is_of_toast(copy))
		ot_object_take_key(RelationRelationId, copy);
	ObjectAddressSet(address, RelationRelationId, copy);
	performDeletion(&address, DROP_RESTRICT, PERFORM_DELETION_INTERNAL);
	CommandCounterIncrement();
}

/*
 * Puts the copy in the place of its index, in this transaction, and drops it.  An
 * index that is not valid itself is left to the job that builds it.
 */
void
ot_reindex_finish(Oid table, Oid original, Oid copy)
{
	FormData_pg_index of_original;
	FormData_pg_index of_copy;
	bool		exchange = false;

	LockRelationOid(table, AccessExclusiveLock);
	if (ot_index_read_state(original, &of_original) && of_original.indisvalid &&
		ot_index_read_state(copy, &of_copy))
	{
		Relation	index = index_open(original, AccessExclusiveLock);
		Relation	other = index_open(copy, AccessExclusiveLock);

		exchange = ot_index_is_built(copy, &of_copy) && ddl_reindex_may_exchange(index, other);
		CheckTableNotInUse(index, "REINDEX INDEX");
		CheckTableNotInUse(other, "REINDEX INDEX");
		/* what others have read in the old file */
		TransferPredicateLocksToHeapRelation(index);
		index_close(other, NoLock);
		index_close(index, NoLock);
		if (exchange)
			ddl_reindex_exchange_files(original, copy);
	}
	if (!exchange)
		ereport(LOG,
				(errmsg("index \"%s\" of table \"%s\" was not built anew here",
						get_rel_name(original), get_rel_name(table)),
				 errdetail("It was not ready by then, or has another tablespace than before; the old one stays in use.")));
	ddl_reindex_drop(copy);
}

/* Drops the copies of a table.  The lock is a key, as any other. */
static void
ddl_reindex_drop_copies_of(Oid table)
{
	Relation	rel = try_relation_open(table, AccessShareLock);
	List	   *jobs;
	ListCell   *lc;

	if (rel == NULL)
		return;
	jobs = rel->rd_rel->relhasindex ? ot_index_jobs_of(rel, false) : NIL;
	relation_close(rel, NoLock);
	foreach(lc, jobs)
	{
		if (!OidIsValid(ot_reindex_original(lfirst_oid(lc))))
			continue;
		LockRelationOid(table, AccessExclusiveLock);
		ddl_reindex_drop(lfirst_oid(lc));
	}
}

/* The tables of a composite type (CREATE TABLE OF). */
static List *
ddl_reindex_tables_of_type(Oid type)
{
	List	   *tables = NIL;
	Relation	catalog = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (form->reloftype == type)
			tables = lappend_oid(tables, form->oid);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return tables;
}

/*
 * The named table, or the table of the named index, and its children; of a composite
 * type, its tables.
 */
List *
ot_reindex_tables_of(RangeVar *name)
{
	Oid			relid = name ? RangeVarGetRelid(name, NoLock, true) : InvalidOid;

	/* the statement will fail */
	if (!OidIsValid(relid) || (!ot_is_apply_worker && !OT_OWNS_RELATION(relid)))
		return NIL;
	if (ddl_reindex_is_index(relid))
		relid = IndexGetRelation(relid, true);
	return get_rel_relkind(relid) == RELKIND_COMPOSITE_TYPE ? ddl_reindex_tables_of_type(get_rel_type_id(relid)) :
		find_all_inheritors(relid, NoLock, NULL);
}

/*
 * Called before a statement that would make copies anew, as indexes like any other,
 * or put one to use, in a backend or in the apply worker: drops those of the tables.
 */
void
ot_reindex_drop_copies(RangeVar *name)
{
	ListCell   *lc;

	foreach(lc, ot_reindex_tables_of(name))
		ddl_reindex_drop_copies_of(lfirst_oid(lc));
}

/* ---- the statement ---- */

/* Is it a table or materialized view with the same indexes in every region? */
static bool
ddl_reindex_is_everywhere(Oid relid)
{
	char		relkind = get_rel_relkind(relid);
	Oid			schema = get_rel_namespace(relid);

	return (relkind == RELKIND_RELATION || relkind == RELKIND_MATVIEW) &&
		relid >= FirstNormalObjectId && schema != get_namespace_oid("onetrip", true) &&
		get_rel_persistence(relid) != RELPERSISTENCE_TEMP;
}

/* The relation, or the leaves of a partitioned one that have a file. */
static List *
ddl_reindex_leaves(Oid relid)
{
	List	   *leaves = NIL;
	ListCell   *lc;

	if (RELKIND_HAS_STORAGE(get_rel_relkind(relid)))
		return list_make1_oid(relid);
	foreach(lc, find_all_inheritors(relid, NoLock, NULL))
	{
		if (RELKIND_HAS_STORAGE(get_rel_relkind(lfirst_oid(lc))))
			leaves = lappend_oid(leaves, lfirst_oid(lc));
	}
	return leaves;
}

/* All tables of a schema, or of the database if it is InvalidOid. */
static List *
ddl_reindex_tables_of(Oid schema)
{
	List	   *tables = NIL;
	Relation	catalog = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_class_relnamespace, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(schema));
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, OidIsValid(schema) ? 1 : 0, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if ((form->relhasindex || OidIsValid(form->reltoastrelid)) && ddl_reindex_is_everywhere(form->oid))
			tables = lappend_oid(tables, form->oid);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	list_sort(tables, list_oid_cmp);
	return tables;
}

/*
 * The relations that the statement names: tables, or one index or the leaves of a
 * partitioned one.  NIL: the statement is PostgreSQL's own affair, perhaps since
 * it will fail.
 */
static List *
ddl_reindex_named(ReindexStmt *stmt)
{
	bool		is_index = stmt->kind == REINDEX_OBJECT_INDEX;
	Oid			oid;

	switch (stmt->kind)
	{
		case REINDEX_OBJECT_INDEX:
		case REINDEX_OBJECT_TABLE:
			oid = RangeVarGetRelid(stmt->relation, NoLock, true);
			if (!OidIsValid(oid) || ddl_reindex_is_index(oid) != is_index ||
				!OT_MAY_MAINTAIN(is_index ? IndexGetRelation(oid, false) : oid))
				return NIL;
			return ddl_reindex_leaves(oid);
		case REINDEX_OBJECT_SCHEMA:
			oid = get_namespace_oid(stmt->name, true);
			return OidIsValid(oid) && (OT_OWNS_SCHEMA(oid) || OT_MAY_MAINTAIN_ALL()) ? ddl_reindex_tables_of(oid) : NIL;
		case REINDEX_OBJECT_DATABASE:
			if ((stmt->name != NULL && strcmp(stmt->name, ot_database) != 0) ||
				!(OT_OWNS_DATABASE(MyDatabaseId) || OT_MAY_MAINTAIN_ALL()))
				return NIL;
			return ddl_reindex_tables_of(InvalidOid);
		default:
			return NIL;
	}
}

static Oid
ddl_reindex_table_of(Oid relid)
{
	return get_rel_relkind(relid) == RELKIND_INDEX ? IndexGetRelation(relid, true) : relid;
}

/* Has a REINDEX CONCURRENTLY of this server alone left it behind, to judge by its name? */
static bool
ddl_reindex_is_left_over(Oid index)
{
	FormData_pg_index state;
	const char *name = get_rel_name(index);
	int			len = strlen(name);

	if (ot_index_read_state(index, &state) && state.indisvalid)
		return false;
	while (len > 0 && isdigit((unsigned char) name[len - 1]))
		len--;
	return len >= 6 && (strncmp(name + len - 6, "_ccnew", 6) == 0 || strncmp(name + len - 6, "_ccold", 6) == 0);
}

/* Can the index be built anew in this way?  One that cannot is passed over with a warning, as in PostgreSQL. */
static bool
ddl_reindex_is_possible(Oid index, int elevel)
{
	FormData_pg_index state;

	if (!ot_index_read_state(index, &state) || OidIsValid(ot_reindex_original(index)))
		return false;
	if (state.indisvalid && !state.indisexclusion && !ddl_reindex_is_left_over(index))
		return true;
	if (elevel == 0)
		return false;
	if (ddl_reindex_is_left_over(index))
		ereport(elevel,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s.%s\" may exist in this region only, skipping",
						get_namespace_name(get_rel_namespace(index)), get_rel_name(index)),
				 errhint("An earlier REINDEX CONCURRENTLY has left it. Drop it.")));
	else if (!state.indisvalid)
		ereport(elevel,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("cannot reindex invalid index \"%s.%s\" concurrently, skipping",
						get_namespace_name(get_rel_namespace(index)), get_rel_name(index))));
	else
		ereport(elevel,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot reindex exclusion constraint index \"%s.%s\" concurrently, skipping",
						get_namespace_name(get_rel_namespace(index)), get_rel_name(index))));
	return false;
}

/* The indexes to build anew: this one, or those of the table and of its TOAST table. */
static List *
ddl_reindex_indexes_of(Oid relid, int elevel)
{
	List	   *found = NIL;
	List	   *all;
	Relation	rel;
	Oid			toast_index;
	ListCell   *lc;

	if (get_rel_relkind(relid) == RELKIND_INDEX)
		return ddl_reindex_is_possible(relid, 0) ? list_make1_oid(relid) : NIL;
	rel = try_relation_open(relid, AccessShareLock);
	if (rel == NULL)
		return NIL;
	all = RelationGetIndexList(rel);
	toast_index = ddl_reindex_toast_index(rel);
	if (OidIsValid(toast_index))
		all = lappend_oid(all, toast_index);
	relation_close(rel, NoLock);
	foreach(lc, all)
	{
		if (ddl_reindex_is_possible(lfirst_oid(lc), elevel))
			found = lappend_oid(found, lfirst_oid(lc));
	}
	return found;
}

/* Are they all ours to do, and is there anything to do? */
static bool
ddl_reindex_are_jobs(List *relids)
{
	bool		any = false;
	ListCell   *lc;

	foreach(lc, relids)
	{
		Oid			table = ddl_reindex_table_of(lfirst_oid(lc));

		if (!OidIsValid(table) || !ddl_reindex_is_everywhere(table))
			return false;
		any = any || ot_index_is_unfinished(lfirst_oid(lc)) || ddl_reindex_indexes_of(lfirst_oid(lc), 0) != NIL;
	}
	return any;
}

/*
 * PostgreSQL would build an index that is not valid anew, as another one, in this
 * region only.
 */
static void
ddl_reindex_check_valid(List *indexes)
{
	ListCell   *lc;

	foreach(lc, indexes)
	{
		FormData_pg_index state;

		if (ddl_reindex_is_everywhere(ddl_reindex_table_of(lfirst_oid(lc))) &&
			ot_index_read_state(lfirst_oid(lc), &state) && !state.indisvalid &&
			!OidIsValid(ot_reindex_original(lfirst_oid(lc))))
			ot_ddl_refuse("REINDEX CONCURRENTLY of an index that is not valid",
						  "Use REINDEX without CONCURRENTLY, or DROP INDEX.");
	}
}

/* Names a region whose job has failed, and is tried again, once. */
static void
ddl_reindex_say_failed(const Awaited *awaited, bool *said)
{
	Oid			types[] = {TEXTOID, TEXTOID};
	Datum		args[2];
	char	   *name = get_rel_name(awaited->copy);

	/* that of a TOAST table has the name of another one elsewhere */
	if (name == NULL || awaited->of_toast)
		return;
	args[0] = CStringGetTextDatum(get_namespace_name(get_rel_namespace(awaited->copy)));
	args[1] = CStringGetTextDatum(name);
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) SPI_connect();
	if (SPI_execute_with_args("SELECT region FROM onetrip.jobs WHERE pg_catalog.parse_ident(index) OPERATOR(pg_catalog.=) ARRAY[$1, $2] "
							  "AND state OPERATOR(pg_catalog.=) 'failed'::pg_catalog.text",
							  2, types, args, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "cannot read onetrip.jobs");
	if (SPI_processed > 0)
	{
		*said = true;
		ereport(NOTICE,
				(errmsg("index \"%s\" could not be built in region \"%s\" so far", name,
						SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1)),
				 errhint("It is tried again; onetrip.jobs shows why it failed. DROP INDEX gives it up.")));
	}
	SPI_finish();
	PopActiveSnapshot();
}

/*
 * Waits until the copy has taken the place of its index, or is gone otherwise.
 * Begins and ends in a transaction; holds no lock and no snapshot in between.
 */
static void
ddl_reindex_await(const Awaited *awaited)
{
	bool		said = false;

	for (int looks = 1;; looks++)
	{
		FormData_pg_index state;

		if (!ot_index_read_state(awaited->copy, &state))
			break;
		ot_index_raise_failure(awaited->copy);
		if (!said && looks % LOOKS_UNTIL_ASKED == 0)
			ddl_reindex_say_failed(awaited, &said);
		CommitTransactionCommand();
		ot_index_pause(WAIT_MS);
		StartTransactionCommand();
	}
	if (ddl_reindex_file_of(awaited->index) == InvalidOid)
	{
		/* the table was rewritten, or is gone itself */
		if (awaited->of_toast)
			return;
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("the index was dropped before it was built anew")));
	}
	if (ddl_reindex_file_of(awaited->index) == awaited->file)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("index \"%s\" was not built anew", get_rel_name(awaited->index)),
				 errdetail("What was being built in its place was dropped."),
				 errhint("Run the statement again.")));
}

/*
 * Defines the copies of a table's indexes, of one, or of those that somebody else
 * has asked for already, in a transaction of its own, and waits for them.  Begins
 * and ends in a transaction.
 */
static void
ddl_reindex_relation_concurrently(Oid relid, MemoryContext context)
{
	TimestampTz since = ot_now();
	Oid			table = ddl_reindex_table_of(relid);
	List	   *all = NIL;
	ListCell   *lc;

	/* without a snapshot or a lock in between, which a job might wait for */
	while (OidIsValid(table) && (ot_ddl_stand_in_line(), !ot_index_try_lock(table, AccessShareLock)))
	{
		CommitTransactionCommand();
		ot_index_pause_politely(since);
		StartTransactionCommand();
		table = ddl_reindex_table_of(relid);
	}
	if (!OidIsValid(table))
		return;
	PushActiveSnapshot(GetTransactionSnapshot());
	ot_ddl_take_schema_key();
	foreach(lc, ddl_reindex_indexes_of(relid, WARNING))
	{
		Oid			index = lfirst_oid(lc);
		Awaited    *awaited = MemoryContextAlloc(context, sizeof(Awaited));
		MemoryContext old;

		awaited->index = index;
		awaited->file = ddl_reindex_file_of(index);
		awaited->of_toast = ot_reindex_is_of_toast(index);
		awaited->copy = ddl_reindex_copy_of(index);
		if (!OidIsValid(awaited->copy))
		{
			Oid			named = awaited->of_toast ? table : index;
			char	   *text = psprintf("REINDEX %s CONCURRENTLY %s", awaited->of_toast ? "TABLE" : "INDEX",
										quote_qualified_identifier(get_namespace_name(get_rel_namespace(named)),
																   get_rel_name(named)));

			ot_write_set_statement(text, false);
			awaited->copy = ddl_reindex_make_copy(IndexGetRelation(index, false), index);
		}
		old = MemoryContextSwitchTo(context);
		all = lappend(all, awaited);
		MemoryContextSwitchTo(old);
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	ot_worker_wake_jobs();
	StartTransactionCommand();
	foreach(lc, all)
		ddl_reindex_await(lfirst(lc));
}

/*
 * Carries out REINDEX CONCURRENTLY if it is to be a job in every region.  Returns
 * false if it is not.
 */
bool
ot_reindex_run(ReindexStmt *stmt, ProcessUtilityContext context)
{
	List	   *relids;
	List	   *kept;
	ListCell   *lc;
	MemoryContext lasting;
	MemoryContext old;

	if (!ot_reindex_is_concurrent(stmt) || !ddl_reindex_knows_options(stmt) || ot_format_level < LEVEL)
		return false;
	ot_ddl_check_reindex(stmt);
	relids = ddl_reindex_named(stmt);
	if (!ddl_reindex_are_jobs(relids))
	{
		if (stmt->kind == REINDEX_OBJECT_INDEX)
			ddl_reindex_check_valid(relids);
		return false;
	}
	PreventInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL, "REINDEX CONCURRENTLY");
	PreventCommandIfReadOnly("REINDEX CONCURRENTLY");
	if (stmt->kind == REINDEX_OBJECT_DATABASE)
		ereport(WARNING,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot reindex system catalogs concurrently, skipping all")));
	lasting = AllocSetContextCreate(PortalContext, "onetrip REINDEX", ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(lasting);
	kept = list_copy(relids);
	MemoryContextSwitchTo(old);
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	CommitTransactionCommand();
	StartTransactionCommand();
	foreach(lc, kept)
	{
		if (ot_index_is_unfinished(lfirst_oid(lc)))
		{
			ot_index_try_again(lfirst_oid(lc));
			ot_index_await(lfirst_oid(lc));
		}
		else
			ddl_reindex_relation_concurrently(lfirst_oid(lc), lasting);
	}
	MemoryContextDelete(lasting);
	return true;
}
