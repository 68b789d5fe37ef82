/*-------------------------------------------------------------------------
 *
 * apply_large_object.c
 *	  Changes large objects as an entry says.
 *
 * The entry is applied in its turn: everything before it is visible.  A local
 * transaction that has a page or an object in its way has the same key and is
 * not decided, so it cannot commit.  PostgreSQL's functions wait for it, and the
 * evictor ends it.
 *
 * Runs in the apply worker, and in backends that rehearse.  Raises ERROR if
 * this server differs from the others.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_largeobject.h"
#include "miscadmin.h"
#include "storage/large_object.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"

#include "shmem/shmem.h"

static void
large_object_apply_page(Relation rel, Relation index, CatalogIndexState indexes, OtReader *r, Oid loid)
{
	int32		pageno = (int32) ot_get_u32(r);
	uint32		length = ot_get_u32(r);
	const char *bytes = ot_get_bytes(r, length);
	union
	{
		bytea		header;
		char		bytes[VARHDRSZ + LOBLKSIZE];
		int32		align;
	}			data;
	Datum		values[Natts_pg_largeobject];
	bool		nulls[Natts_pg_largeobject] = {false};
	bool		replace[Natts_pg_largeobject] = {false};
	SysScanDesc scan;
	HeapTuple	before;
	HeapTuple	after;

	if (pageno < 0 || length > LOBLKSIZE)
		ereport(ERROR,
				(errcode(OT_ERR_PROTOCOL),
				 errmsg("page %d of large object %u in a write set has %u bytes", pageno, loid, length)));
	SET_VARSIZE(&data.header, VARHDRSZ + length);
	memcpy(VARDATA(&data.header), bytes, length);
	values[Anum_pg_largeobject_loid - 1] = ObjectIdGetDatum(loid);
	values[Anum_pg_largeobject_pageno - 1] = Int32GetDatum(pageno);
	values[Anum_pg_largeobject_data - 1] = PointerGetDatum(&data);
	replace[Anum_pg_largeobject_data - 1] = true;

	scan = ot_large_object_scan(rel, index, loid, pageno, BTEqualStrategyNumber, F_INT4EQ);
	before = systable_getnext_ordered(scan, ForwardScanDirection);
	if (HeapTupleIsValid(before))
	{
		after = heap_modify_tuple(before, RelationGetDescr(rel), values, nulls, replace);
		CatalogTupleUpdateWithInfo(rel, &after->t_self, after, indexes);
	}
	else
	{
		after = heap_form_tuple(RelationGetDescr(rel), values, nulls);
		CatalogTupleInsertWithInfo(rel, after, indexes);
	}
	systable_endscan_ordered(scan);
	heap_freetuple(after);
	/* the same page may come again */
	CommandCounterIncrement();
}

/* A page, and those that follow it in the write set: an object may have many. */
static void
large_object_apply_pages(OtReader *r, Oid loid)
{
	Relation	rel = table_open(LargeObjectRelationId, RowExclusiveLock);
	Relation	index = index_open(LargeObjectLOidPNIndexId, RowExclusiveLock);
	CatalogIndexState indexes = CatalogOpenIndexes(rel);

	pg_atomic_write_u32(&ot_worker->applying_table, LargeObjectRelationId);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		large_object_apply_page(rel, index, indexes, r, loid);
		if (r->end - r->at < 2 || r->at[0] != 'L' || r->at[1] != 'p')
			break;
		(void) ot_get_u8(r);
		(void) ot_get_u8(r);
		loid = ot_get_u32(r);
	}
	CatalogCloseIndexes(indexes);
	index_close(index, NoLock);
	table_close(rel, NoLock);
}

/* Deletes all pages behind one but those in the runs that are named, in order. */
static void
large_object_apply_cut(OtReader *r, Oid loid)
{
	int32		pageno = (int32) ot_get_u32(r);
	uint32		left = ot_get_u32(r);
	int32		first = -1;
	int32		last = -1;
	Relation	rel = table_open(LargeObjectRelationId, RowExclusiveLock);
	Relation	index = index_open(LargeObjectLOidPNIndexId, RowExclusiveLock);
	SysScanDesc scan = ot_large_object_scan(rel, index, loid, pageno, BTGreaterStrategyNumber, F_INT4GT);
	HeapTuple	page;

	while (HeapTupleIsValid(page = systable_getnext_ordered(scan, ForwardScanDirection)))
	{
		int32		at = ((Form_pg_largeobject) GETSTRUCT(page))->pageno;

		CHECK_FOR_INTERRUPTS();
		for (; last < at && left > 0; left--)
		{
			first = (int32) ot_get_u32(r);
			last = (int32) ot_get_u32(r);
		}
		if (at < first || at > last)
			CatalogTupleDelete(rel, &page->t_self);
	}
	(void) ot_get_bytes(r, left * 8);
	systable_endscan_ordered(scan);
	index_close(index, NoLock);
	table_close(rel, NoLock);
}

/* As its owner, who also gets what default privileges say. */
static void
large_object_apply_creation(Oid loid, Oid owner)
{
	Oid			user;
	int			security;

	pg_atomic_write_u32(&ot_worker->applying_table, LargeObjectRelationId);
	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(owner, security | SECURITY_LOCAL_USERID_CHANGE);
	(void) inv_create(loid);
	SetUserIdAndSecContext(user, security);
}

/* After the op byte 'L'. */
void
ot_apply_large_object(OtReader *r)
{
	uint8		kind = ot_get_u8(r);
	Oid			loid = ot_get_u32(r);

	if (!ot_apply_has_turn())
		ereport(ERROR,
				(errcode(OT_ERR_PROTOCOL),
				 errmsg("a write set changes large object %u without saying so at its beginning", loid)));
	CommandCounterIncrement();
	switch (kind)
	{
		case 'c':
			large_object_apply_creation(loid, ot_object_resolve(ot_get_u32(r)));
			break;
		case 'p':
			large_object_apply_pages(r, loid);
			break;
		case 't':
			large_object_apply_cut(r, loid);
			break;
		case 'u':
			(void) inv_drop(loid);
			break;
		default:
			ereport(ERROR,
					(errcode(OT_ERR_PROTOCOL),
					 errmsg("unknown operation 0x%02x on a large object in a write set", kind)));
	}
	CommandCounterIncrement();
}
