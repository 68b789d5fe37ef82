/*-------------------------------------------------------------------------
 *
 * row_hash.c
 *	  Hashes by which a row can be compared with that of another region.
 *
 * For `onetrip check`.  What is hashed is the bytes in which the values are
 * stored: different values can have the same text, such as two NaNs with
 * different payloads.  One region may store a value out of line or compressed
 * where another does not, so the value is fetched and decompressed first.  An
 * OID in it is replaced by a hash of the name that it stands for
 * (stored_type.c).
 *
 * Runs in any backend, also in a parallel worker, and only reads: it records
 * nothing in the write set.  Names are those that the catalogs show now, not
 * those of the transaction's snapshot.
 *
 * Memory: what a column needs lives until the next row; the description of the
 * row's type, as long as the call's expression.  In PL/pgSQL that is the whole
 * transaction, in which the type may change, so each row is taken apart by what
 * its type is by then.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/htup_details.h"
#include "access/tupmacs.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "utils/array.h"
#include "utils/memutils.h"
#include "utils/typcache.h"

typedef struct RowType
{
	uint64		identifier;		/* of the type as it was; PostgreSQL's */
	TupleDesc	desc;
	bool	   *contains_names;	/* by column */
	Datum	   *values;
	bool	   *nulls;
} RowType;

PG_FUNCTION_INFO_V1(ot_row_hash);
PG_FUNCTION_INFO_V1(ot_column_hashes);

static RowType *
row_hash_row_type(FunctionCallInfo fcinfo, HeapTupleHeader row)
{
	RowType    *known = fcinfo->flinfo->fn_extra;
	Oid			type = HeapTupleHeaderGetTypeId(row);
	int32		typmod = type == RECORDOID ? HeapTupleHeaderGetTypMod(row) : -1;
	uint64		identifier = assign_record_type_identifier(type, typmod);
	MemoryContext caller;
	TupleDesc	desc;

	if (known && known->identifier == identifier)
		return known;
	caller = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
	known = palloc(sizeof(RowType));
	known->identifier = identifier;
	desc = lookup_rowtype_tupdesc(type, typmod);
	known->desc = CreateTupleDescCopyConstr(desc);
	ReleaseTupleDesc(desc);
	known->contains_names = palloc(sizeof(bool) * known->desc->natts);
	known->values = palloc(sizeof(Datum) * known->desc->natts);
	known->nulls = palloc(sizeof(bool) * known->desc->natts);
	for (int i = 0; i < known->desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(known->desc, i);

		known->contains_names[i] = !att->attisdropped && ot_type_contains_names(att->atttypid);
	}
	MemoryContextSwitchTo(caller);
	fcinfo->flinfo->fn_extra = known;
	return known;
}

static uint64
row_hash_bytes_after(const char *bytes, Size len, uint64 before)
{
	return hash_bytes_extended((const unsigned char *) bytes, len, before);
}

/* A hash of the value's bytes, in line and decompressed. */
uint64
ot_value_hash(Form_pg_attribute att, Datum value, uint64 before)
{
	char		by_value[sizeof(Datum)];

	if (att->attlen == -1)
	{
		struct varlena *v = PG_DETOAST_DATUM_PACKED(value);
		uint64		hash = row_hash_bytes_after(VARDATA_ANY(v), VARSIZE_ANY_EXHDR(v), before);

		if ((Pointer) v != DatumGetPointer(value))
			pfree(v);
		return hash;
	}
	if (att->attlen == -2)
		return row_hash_bytes_after(DatumGetCString(value), strlen(DatumGetCString(value)), before);
	if (!att->attbyval)
		return row_hash_bytes_after(DatumGetPointer(value), att->attlen, before);
	store_att_byval(by_value, value, att->attlen);
	return row_hash_bytes_after(by_value, att->attlen, before);
}

/* The same for a value that may contain OIDs, which are replaced in a copy. */
static uint64
row_hash_with_names(Form_pg_attribute att, Datum value, uint64 before)
{
	Datum		whole = ot_type_decompress(att->atttypid, value);
	Size		len;
	char	   *copy;

	if (att->attlen == -1)
	{
		struct varlena *v = PG_DETOAST_DATUM_COPY(whole);

		len = VARSIZE(v);
		copy = (char *) v;
	}
	else
	{
		len = att->attlen;
		copy = palloc(Max(len, sizeof(Datum)));
		if (att->attbyval)
			store_att_byval(copy, whole, att->attlen);
		else
			memcpy(copy, DatumGetPointer(whole), len);
	}
	if (!ot_type_name_hashes(att->atttypid, copy, len))
		return ot_value_hash(att, value, before);
	return row_hash_bytes_after(copy, len, before);
}

static uint64
row_hash_column(RowType *type, int column, uint64 before)
{
	Form_pg_attribute att = TupleDescAttr(type->desc, column);

	if (att->attisdropped)
		return before;
	if (type->nulls[column])
		return hash_combine64(before, (uint64) column + 1);
	if (type->contains_names[column])
		return row_hash_with_names(att, type->values[column], before);
	return ot_value_hash(att, type->values[column], before);
}

static RowType *
row_hash_take_apart(FunctionCallInfo fcinfo)
{
	HeapTupleHeader row = PG_GETARG_HEAPTUPLEHEADER(0);
	RowType    *type = row_hash_row_type(fcinfo, row);
	HeapTupleData tuple = {.t_len = HeapTupleHeaderGetDatumLength(row), .t_data = row};

	ItemPointerSetInvalid(&tuple.t_self);
	heap_deform_tuple(&tuple, type->desc, type->values, type->nulls);
	return type;
}

/* onetrip.row_hash(record): a hash of all columns. */
Datum
ot_row_hash(PG_FUNCTION_ARGS)
{
	RowType    *type = row_hash_take_apart(fcinfo);
	uint64		hash = 0;

	for (int i = 0; i < type->desc->natts; i++)
		hash = row_hash_column(type, i, hash);
	PG_RETURN_INT64((int64) hash);
}

/* onetrip.column_hashes(record): a hash of each column that is not dropped. */
Datum
ot_column_hashes(PG_FUNCTION_ARGS)
{
	RowType    *type = row_hash_take_apart(fcinfo);
	Datum	   *hashes = palloc(sizeof(Datum) * Max(type->desc->natts, 1));
	int			n = 0;

	for (int i = 0; i < type->desc->natts; i++)
	{
		if (!TupleDescAttr(type->desc, i)->attisdropped)
			hashes[n++] = Int64GetDatum((int64) row_hash_column(type, i, 0));
	}
	PG_RETURN_ARRAYTYPE_P(construct_array(hashes, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL,
										  TYPALIGN_DOUBLE));
}
