/*-------------------------------------------------------------------------
 *
 * rows_of.c
 *	  Reads a table for `onetrip check`, without a plan.
 *
 * To plan a query, PostgreSQL simplifies the expressions of the table's indexes,
 * and for that calls functions of the table's owner as whoever asks; and the
 * comparison of regions asks as superuser.
 *
 * Runs in backends.  Only reads, and records nothing: neither in the write set
 * nor as a read of a SERIALIZABLE transaction.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/table.h"
#include "access/tableam.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

typedef struct Rows
{
	Relation	rel;
	Snapshot	snapshot;
	TableScanDesc scan;
	TupleTableSlot *row;
} Rows;

PG_FUNCTION_INFO_V1(ot_rows_of);

/* Also called if the query ends before the last row.  The lock is kept. */
static void
rows_of_close(Datum arg)
{
	Rows	   *rows = (Rows *) DatumGetPointer(arg);

	table_endscan(rows->scan);
	ExecDropSingleTupleTableSlot(rows->row);
	UnregisterSnapshot(rows->snapshot);
	table_close(rows->rel, NoLock);
}

static Rows *
rows_of_open(Oid type)
{
	Oid			relid = OidIsValid(type) ? get_typ_typrelid(type) : InvalidOid;
	char		relkind = OidIsValid(relid) ? get_rel_relkind(relid) : '\0';
	Rows	   *rows;

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to read a table without its policies")));
	if (relkind != RELKIND_RELATION && relkind != RELKIND_MATVIEW)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("type %s is not the row type of a table", format_type_be(type))));
	rows = palloc(sizeof(Rows));
	rows->rel = table_open(relid, AccessShareLock);
	if (RELATION_IS_OTHER_TEMP(rows->rel))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot access temporary tables of other sessions")));
	rows->snapshot = RegisterSnapshot(GetActiveSnapshot());
	rows->scan = table_beginscan(rows->rel, rows->snapshot, 0, NULL);
	rows->row = table_slot_create(rows->rel, NULL);
	return rows;
}

/*
 * onetrip.rows_of(anyelement): the rows of the table that the argument's type
 * comes from, one by one; not those of its children.
 */
Datum
ot_rows_of(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	FuncCallContext *call;
	Rows	   *rows;

	if (SRF_IS_FIRSTCALL())
	{
		MemoryContext caller;

		call = SRF_FIRSTCALL_INIT();
		caller = MemoryContextSwitchTo(call->multi_call_memory_ctx);
		rows = rows_of_open(get_fn_expr_argtype(fcinfo->flinfo, 0));
		call->user_fctx = rows;
		RegisterExprContextCallback(result->econtext, rows_of_close, PointerGetDatum(rows));
		MemoryContextSwitchTo(caller);
	}
	call = SRF_PERCALL_SETUP();
	rows = call->user_fctx;
	if (table_scan_getnextslot(rows->scan, ForwardScanDirection, rows->row))
		SRF_RETURN_NEXT(call, ExecFetchSlotHeapTupleDatum(rows->row));
	UnregisterExprContextCallback(result->econtext, rows_of_close, PointerGetDatum(rows));
	rows_of_close(PointerGetDatum(rows));
	SRF_RETURN_DONE(call);
}
