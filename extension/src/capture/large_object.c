/*-------------------------------------------------------------------------
 *
 * large_object.c
 *	  Captures changes of large objects.
 *
 * A large object is a row of pg_largeobject_metadata and rows ("pages") of
 * pg_largeobject.  PostgreSQL writes both as catalogs, by functions in C that
 * clients also call by the protocol's fast path, so no table access method and
 * no rewriting of SQL hears of it.  But whoever writes a page inserts into each
 * index of pg_largeobject.  The extension's script makes one there with an index
 * access method that stores nothing and only listens (ot_large_object_handler).
 * A system column is among the index's columns, so that no update is heap-only,
 * not even one that changes nothing: a heap-only update inserts into no index.
 *
 *	change			operation	keys
 *	creation		c			UPDATE on the object; KEY SHARE on all of them
 *	page			p			UPDATE on the page, KEY SHARE on the object
 *	truncation		p, t		the same, and UPDATE on the object
 *	unlink			u			UPDATE on the object; KEY SHARE on all of them
 *
 * "All of them" is the key that DDL about large objects takes in mode UPDATE.
 * Where the object's own key is held in mode UPDATE, its pages need none.
 *
 * The index hears of pages that are written, not of those that are deleted.
 * A page is deleted with its object, or by a truncation, which first writes the
 * page that becomes the last one, less than full.  So whoever writes such a page
 * of an object that has later ones may be about to delete those: at COMMIT the
 * write set says which later ones there are.
 *
 * Creation and unlink are heard of by ddl's hook for access to objects.
 *
 * Runs in backends; the index access method also in the apply worker, where it
 * does nothing.  Errors: those of write_set.c, and 0A000 while some members of
 * the cluster might not know these operations.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/amapi.h"
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_largeobject.h"
#include "catalog/pg_largeobject_metadata.h"
#include "catalog/pg_namespace.h"
#include "commands/extension.h"
#include "commands/vacuum.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "parser/parse_relation.h"
#include "parser/parsetree.h"
#include "storage/large_object.h"
#include "tcop/utility.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

/* The index, in pg_catalog as its table is. */
#define INDEX_NAME "onetrip_large_objects"
/* Which of its columns is which. */
#define INDEX_LOID 0
#define INDEX_PAGENO 1
#define INDEX_DATA 2

#define SEED_OBJECT (UINT64CONST(0x6f6e657472697010) ^ ot_key_seed)
#define SEED_PAGE	(UINT64CONST(0x6f6e657472697011) ^ ot_key_seed)

PG_FUNCTION_INFO_V1(ot_large_object_handler);

/* A truncation, perhaps. */
typedef struct Cut
{
	Oid			loid;
	int32		pageno;			/* later pages may have been deleted */
	int			nest_level;		/* of the subtransaction to which it belongs */
} Cut;

/* In TopTransactionContext. */
static Cut *cuts = NULL;
static int	ncuts = 0;
static int	max_cuts = 0;

/*
 * Where the write set's last operation is, if that is a page and no savepoint
 * was set, released or rolled back since.  If the same page is written again, as
 * by a client that sends small pieces, the new contents take its place.
 */
static struct
{
	Oid			loid;			/* InvalidOid: none */
	int32		pageno;
	int			at;
	int			end;
}			last_page;

/* ---- keys ---- */

/* The key for what the large objects are, and for their owners and privileges. */
OtHash
ot_hash_large_objects(void)
{
	OtHash		hash = {hash_bytes_extended((const unsigned char *) "large objects", 13, SEED_OBJECT)};

	return hash;
}

static OtHash
large_object_hash(Oid loid)
{
	OtHash		hash = {hash_bytes_uint32_extended(loid, SEED_OBJECT)};

	return hash;
}

static OtHash
large_object_hash_page(Oid loid, int32 pageno)
{
	OtHash		hash = {hash_bytes_uint32_extended((uint32) pageno, hash_bytes_uint32_extended(loid, SEED_PAGE))};

	return hash;
}

/* ---- may they change ---- */

/*
 * Refuses what the other regions could not be told.  The index is missing where
 * the extension has not been updated so far.
 */
void
ot_large_object_check(void)
{
	bool		known = ot_format_level >= 1;

	if (likely(known && OidIsValid(get_relname_relid(INDEX_NAME, PG_CATALOG_NAMESPACE))))
		return;
	ereport(ERROR,
			(errcode(OT_ERR_NOT_REPLICATED),
			 errmsg("cannot replicate a large object"),
			 known ? errdetail("Index %s of pg_largeobject is missing.", INDEX_NAME) :
			 errdetail("Members of the cluster might run a release that does not know how."),
			 known ? errhint("Run ALTER EXTENSION onetrip UPDATE.") :
			 errhint("Finish the upgrade (onetrip upgrade --finish), and restart each server.")));
}

/*
 * Before PostgreSQL 16 such a transaction may change large objects.  Functions
 * of indexes run as in one, in each region, and must not.
 */
void
ot_large_object_check_read_only(void)
{
	PreventCommandIfReadOnly("a change of a large object");
}

/* Is this change to be captured?  Refuses one that would be another in each region. */
static bool
large_object_is_captured(Relation rel)
{
	if (ot_is_apply_worker)
	{
		ot_large_object_check_read_only();
		ot_access_method_check_write(rel);
		return false;
	}
	if (ot_capturing())
	{
		ot_large_object_check();
		ot_large_object_check_read_only();
		ot_access_method_check_write(rel);
		return true;
	}
	if (!IsUnderPostmaster)
		return false;
	if (!ot_preloaded)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("large objects cannot be changed: onetrip is not in shared_preload_libraries"),
				 errhint("Let the node configure and start this server (onetrip start).")));
	if (creating_extension && ot_in_replicated_database())
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot replicate a large object that the script of an extension changes"),
				 errdetail("The script runs in every region, and each would have its own."),
				 errhint("Make or change it outside of the script.")));
	return false;
}

/*
 * Called before a plan runs that changes tables.  The index would hear of the new
 * page, and not of the one that is there no more.
 */
void
ot_large_object_check_update(const PlannedStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->resultRelations)
	{
		RangeTblEntry *rte = rt_fetch(lfirst_int(lc), stmt->rtable);
		Bitmapset  *columns;

		if (likely(rte->relid != LargeObjectRelationId) || !ot_capturing())
			continue;
		columns = OT_UPDATED_COLUMNS(stmt, rte);
		if (bms_is_member(Anum_pg_largeobject_loid - FirstLowInvalidHeapAttributeNumber, columns) ||
			bms_is_member(Anum_pg_largeobject_pageno - FirstLowInvalidHeapAttributeNumber, columns))
			ereport(ERROR,
					(errcode(OT_ERR_NOT_REPLICATED),
					 errmsg("cannot replicate an UPDATE of loid or pageno of pg_largeobject"),
					 errhint("Use lo_put() and lo_truncate().")));
	}
}

/* ---- operations ---- */

static StringInfo
large_object_operation(char kind, Oid loid)
{
	StringInfo	ops = ot_write_set_append();

	last_page.loid = InvalidOid;
	ot_put_u8(ops, 'L');
	ot_put_u8(ops, kind);
	ot_put_u32(ops, loid);
	/* the object is what all earlier entries have made of it */
	ot_write_set_looks_names_up();
	return ops;
}

/*
 * The transaction has made the object.  The number has been compared with those
 * of all objects that this server shows, so the key's base may be read now.
 */
void
ot_large_object_created(Oid loid)
{
	OtLogIndex	base = ot_position_base_of_names();
	OtObjectRef owner = ot_object_ref(OT_OBJECT_ROLE, GetUserId());
	StringInfo	ops;

	ot_write_set_key(ot_hash_large_objects(), OT_KEY_SHARE, base, LargeObjectMetadataRelationId);
	ot_write_set_key_now(large_object_hash(loid), OT_UPDATE, LargeObjectRelationId);
	ops = large_object_operation('c', loid);
	ot_put_u32(ops, owner);
	ot_write_set_check_size();
}

/* The transaction is about to delete the object. */
void
ot_large_object_unlinked(Oid loid)
{
	ot_write_set_key_now(ot_hash_large_objects(), OT_KEY_SHARE, LargeObjectMetadataRelationId);
	ot_write_set_key_now(large_object_hash(loid), OT_UPDATE, LargeObjectRelationId);
	(void) large_object_operation('u', loid);
	ot_write_set_check_size();
}

/*
 * The object's pages whose numbers are as said compared with `pageno`, in order, as
 * the next command sees them.
 */
SysScanDesc
ot_large_object_scan(Relation rel, Relation index, Oid loid, int32 pageno, StrategyNumber strategy,
					 RegProcedure compare)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], Anum_pg_largeobject_loid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(loid));
	ScanKeyInit(&keys[1], Anum_pg_largeobject_pageno, strategy, compare, Int32GetDatum(pageno));
	return systable_beginscan_ordered(rel, index, NULL, 2, keys);
}

static bool
large_object_has_pages_behind(Oid loid, int32 pageno)
{
	Relation	rel = table_open(LargeObjectRelationId, AccessShareLock);
	Relation	index = index_open(LargeObjectLOidPNIndexId, AccessShareLock);
	SysScanDesc scan = ot_large_object_scan(rel, index, loid, pageno, BTGreaterStrategyNumber, F_INT4GT);
	bool		found = HeapTupleIsValid(systable_getnext_ordered(scan, ForwardScanDirection));

	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return found;
}

static void
large_object_note_cut(Oid loid, int32 pageno)
{
	int			nest_level = GetCurrentTransactionNestLevel();

	if (ncuts > 0 && cuts[ncuts - 1].loid == loid && cuts[ncuts - 1].nest_level == nest_level)
	{
		cuts[ncuts - 1].pageno = Min(cuts[ncuts - 1].pageno, pageno);
		return;
	}
	if (cuts == NULL)
	{
		max_cuts = 8;
		cuts = MemoryContextAlloc(TopTransactionContext, sizeof(Cut) * max_cuts);
	}
	else if (ncuts == max_cuts)
	{
		cuts = ot_make_room(cuts, &max_cuts, sizeof(Cut));
	}
	cuts[ncuts].loid = loid;
	cuts[ncuts].pageno = pageno;
	cuts[ncuts++].nest_level = nest_level;
}

static void
large_object_capture_page(Oid loid, int32 pageno, bytea *data)
{
	OtHash		object = large_object_hash(loid);
	int			length = VARSIZE_ANY_EXHDR(data);
	StringInfo	ops;
	int			at;

	/* only SQL about the table itself writes such a page, and no region could apply it */
	if (pageno < 0 || length > LOBLKSIZE)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot replicate a row of pg_largeobject that is no page of a large object"),
				 errdetail("Its number is %d, and it has %d bytes; pages have numbers from 0 on, and up to %d bytes.",
						   pageno, length, LOBLKSIZE),
				 errhint("Use lo_put().")));

	/* Other changes that may be under way are this command's, and not seen. */
	if (length < LOBLKSIZE && large_object_has_pages_behind(loid, pageno))
	{
		ot_write_set_key_now(object, OT_UPDATE, LargeObjectRelationId);
		large_object_note_cut(loid, pageno);
	}
	if (!ot_write_set_has_key(object, OT_UPDATE))
	{
		ot_write_set_key_now(object, OT_KEY_SHARE, LargeObjectRelationId);
		ot_write_set_key_now(large_object_hash_page(loid, pageno), OT_UPDATE, LargeObjectRelationId);
	}
	if (last_page.loid == loid && last_page.pageno == pageno &&
		last_page.end == ot_write_set_operations_length())
		ot_write_set_take_back_from(last_page.at);
	at = ot_write_set_operations_length();
	ops = large_object_operation('p', loid);
	ot_put_u32(ops, (uint32) pageno);
	ot_put_u32(ops, length);
	appendBinaryStringInfo(ops, VARDATA_ANY(data), length);
	last_page.loid = loid;
	last_page.pageno = pageno;
	last_page.at = at;
	last_page.end = ops->len;
	ot_write_set_check_size();
}

/* Appends which pages there are behind that one: the first and last of each run. */
static void
large_object_capture_cut(Oid loid, int32 pageno)
{
	Relation	rel = table_open(LargeObjectRelationId, AccessShareLock);
	Relation	index = index_open(LargeObjectLOidPNIndexId, AccessShareLock);
	SysScanDesc scan = ot_large_object_scan(rel, index, loid, pageno, BTGreaterStrategyNumber, F_INT4GT);
	StringInfo	ops = large_object_operation('t', loid);
	int			count_at;
	uint32		count = 0;
	int32		last = -1;
	HeapTuple	tuple;

	ot_put_u32(ops, (uint32) pageno);
	count_at = ops->len;
	ot_put_u32(ops, 0);
	while (HeapTupleIsValid(tuple = systable_getnext_ordered(scan, ForwardScanDirection)))
	{
		int32		at = ((Form_pg_largeobject) GETSTRUCT(tuple))->pageno;

		if (count > 0 && at == last + 1)
			ops->len -= 4;
		else
		{
			ot_put_u32(ops, (uint32) at);
			count++;
		}
		ot_put_u32(ops, (uint32) at);
		last = at;
		ot_write_set_check_size();
	}
	for (int i = 0; i < 4; i++)
		ops->data[count_at + i] = (char) (count >> (8 * i));
	ot_write_set_appended();
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
}

static int
large_object_compare_cuts(const void *a, const void *b)
{
	const Cut  *left = a;
	const Cut  *right = b;

	if (left->loid != right->loid)
		return left->loid > right->loid ? 1 : -1;
	return (left->pageno > right->pageno) - (left->pageno < right->pageno);
}

/* At COMMIT and PREPARE: what is left of the objects that may have been truncated. */
void
ot_large_object_capture_cuts(void)
{
	if (likely(ncuts == 0))
		return;
	qsort(cuts, ncuts, sizeof(Cut), large_object_compare_cuts);
	for (int i = 0; i < ncuts; i++)
	{
		if (i == 0 || cuts[i].loid != cuts[i - 1].loid)
			large_object_capture_cut(cuts[i].loid, cuts[i].pageno);
	}
	ncuts = 0;
}

/* A savepoint is set. */
void
ot_large_object_subxact_start(void)
{
	last_page.loid = InvalidOid;
}

/* A savepoint is released, or the transaction is rolled back to it. */
void
ot_large_object_subxact_end(int nest_level, bool committed)
{
	last_page.loid = InvalidOid;
	for (int i = ncuts - 1; i >= 0 && cuts[i].nest_level >= nest_level; i--)
	{
		if (committed)
			cuts[i].nest_level = nest_level - 1;
		else
			ncuts--;
	}
}

/* The transaction is over. */
void
ot_large_object_reset(void)
{
	last_page.loid = InvalidOid;
	cuts = NULL;
	ncuts = 0;
}

/* ---- the index access method ---- */

static IndexBuildResult *
large_object_build(Relation heap, Relation index, IndexInfo *info)
{
	IndexBuildResult *result = palloc0(sizeof(IndexBuildResult));

	if (RelationGetRelid(heap) != LargeObjectRelationId)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("access method \"onetrip_large_object\" is for pg_largeobject only"),
				 errhint("Use another access method.")));
	/* becomes the table's number of rows, which is not known here */
	result->heap_tuples = heap->rd_rel->reltuples;
	return result;
}

static void
large_object_build_empty(Relation index)
{
}

static bool
large_object_insert(Relation index, Datum *values, bool *isnull, ItemPointer tid, Relation heap,
					IndexUniqueCheck check, bool unchanged, IndexInfo *info)
{
	bytea	   *data;

	if (!large_object_is_captured(heap))
		return false;
	if (isnull[INDEX_LOID] || isnull[INDEX_PAGENO] || isnull[INDEX_DATA])
		elog(ERROR, "null field found in pg_largeobject");
	data = PG_DETOAST_DATUM_PACKED(values[INDEX_DATA]);
	large_object_capture_page(DatumGetObjectId(values[INDEX_LOID]), DatumGetInt32(values[INDEX_PAGENO]), data);
	if ((Pointer) data != DatumGetPointer(values[INDEX_DATA]))
		pfree(data);
	return false;
}

static IndexBulkDeleteResult *
large_object_bulk_delete(IndexVacuumInfo *info, IndexBulkDeleteResult *stats,
						 IndexBulkDeleteCallback callback, void *state)
{
	return stats ? stats : palloc0(sizeof(IndexBulkDeleteResult));
}

static IndexBulkDeleteResult *
large_object_vacuum_cleanup(IndexVacuumInfo *info, IndexBulkDeleteResult *stats)
{
	return stats;
}

/* It has no scans, so no path costs anything. */
static void
large_object_cost(struct PlannerInfo *root, struct IndexPath *path, double loops, Cost *startup,
				  Cost *total, Selectivity *selectivity, double *correlation, double *pages)
{
	*startup = *total = 1e10;
	*selectivity = 1;
	*correlation = 0;
	*pages = 0;
}

static bytea *
large_object_options(Datum options, bool validate)
{
	return NULL;
}

static bool
large_object_validate(Oid opclass)
{
	return true;
}

static IndexScanDesc
large_object_begin_scan(Relation index, int nkeys, int norderbys)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("index \"%s\" cannot be searched", RelationGetRelationName(index))));
	return NULL;
}

static void
large_object_rescan(IndexScanDesc scan, ScanKey keys, int nkeys, ScanKey orderbys, int norderbys)
{
}

static void
large_object_end_scan(IndexScanDesc scan)
{
}

Datum
ot_large_object_handler(PG_FUNCTION_ARGS)
{
	IndexAmRoutine *methods = makeNode(IndexAmRoutine);

	methods->amsupport = 0;
	methods->amcaninclude = true;
	methods->ambuild = large_object_build;
	methods->ambuildempty = large_object_build_empty;
	methods->aminsert = large_object_insert;
	methods->ambulkdelete = large_object_bulk_delete;
	methods->amvacuumcleanup = large_object_vacuum_cleanup;
	methods->amcostestimate = large_object_cost;
	methods->amoptions = large_object_options;
	methods->amvalidate = large_object_validate;
	methods->ambeginscan = large_object_begin_scan;
	methods->amrescan = large_object_rescan;
	methods->amendscan = large_object_end_scan;
	PG_RETURN_POINTER(methods);
}
