/*-------------------------------------------------------------------------
 *
 * whole_row.c
 *	  Rows that only their whole contents identify.
 *
 * In a table without an identity (rel_info.c) a row is meant by its contents.
 * Of rows with equal contents one is as good as another: whichever is changed,
 * the table then holds the same rows.  Equal means the same bytes, in line and
 * decompressed, not what an operator calls equal: 1.0 and 1.00 differ.
 *
 * The key is a hash of these bytes.  Columns that may contain OIDs do not count
 * in it, since OIDs differ between servers, and names may change while the key
 * is held.  Rows that differ only there share a key: they may conflict without
 * need, but no conflict is missed.
 *
 * Memory: the caller's current context.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "access/tupmacs.h"
#include "common/hashfn.h"
#include "utils/datum.h"
#include "utils/rel.h"

/* Keeps these keys apart from those of other kinds. */
#define SEED_WHOLE_ROW	UINT64CONST(0x6f6e65747269700f)

OtHash
ot_whole_row_hash(OtRelInfo *info, TupleDesc desc, const Datum *values, const bool *nulls)
{
	OtHash		hash = {.value = hash_combine64(info->table.value, SEED_WHOLE_ROW)};

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped || info->columns[i].contains_names)
			continue;
		if (nulls[i])
			hash.value = hash_combine64(hash.value, (uint64) i + 1);
		else
			hash.value = ot_value_hash(att, values[i], hash.value);
	}
	return hash;
}

/*
 * Says once in a session, in the server's log, that changes of the table are
 * slow elsewhere.  Clients get no message: to many of them a warning is an
 * error, and PostgreSQL itself gives none.
 */
void
ot_whole_row_note_cost(OtRelInfo *info, Relation rel)
{
	static bool noted = false;

	if (noted || OidIsValid(info->search_index))
		return;
	noted = true;
	ereport(LOG,
			(errmsg("other regions read all of table \"%s\" for each row that is updated or deleted",
					RelationGetRelationName(rel)),
			 errdetail("It has neither a primary key nor an index through which a row can be found."),
			 errhint("Add a primary key, or a B-tree index on columns that have many different values.")));
}

/* The bytes of a value in which OIDs may occur, to be compared. */
static struct varlena *
whole_row_bytes_with_names(Form_pg_attribute att, Datum value)
{
	Datum		whole = ot_type_decompress(att->atttypid, value);
	struct varlena *bytes;

	if (att->attlen == -1)
		bytes = PG_DETOAST_DATUM_COPY(whole);
	else
	{
		Size		len = att->attlen == -2 ? strlen(DatumGetCString(whole)) + 1 : att->attlen;

		bytes = palloc(VARHDRSZ + MAXALIGN(Max(len, sizeof(Datum))));
		SET_VARSIZE(bytes, VARHDRSZ + len);
		if (att->attbyval)
			store_att_byval(VARDATA(bytes), whole, att->attlen);
		else
			memcpy(VARDATA(bytes), DatumGetPointer(whole), len);
		return bytes;
	}
	ot_type_remove_versions(att->atttypid, (char *) bytes);
	return bytes;
}

/* Fetches the values of a row that is to be looked for, so that it is done once. */
void
ot_whole_row_prepare(OtRelInfo *info, TupleDesc desc, Datum *values, const bool *nulls)
{
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped || nulls[i] || att->attlen != -1)
			continue;
		values[i] = PointerGetDatum(PG_DETOAST_DATUM(values[i]));
	}
}

/* How much of a long value is hashed where its place is noted. */
#define SHORT_BYTES 2048

/*
 * A hash of the row that is quickly computed: of a long value only its length and
 * its beginning count, or nothing if it may contain OIDs.
 */
uint64
ot_whole_row_short_hash(OtRelInfo *info, TupleDesc desc, const Datum *values, const bool *nulls)
{
	uint64		hash = 0;

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		Size		size;

		if (att->attisdropped)
			continue;
		if (nulls[i])
		{
			hash = hash_combine64(hash, (uint64) i + 1);
			continue;
		}
		/* an OID by itself is the same here and there, but a composite has versions */
		if (info->columns[i].contains_names && att->attlen == -1)
		{
			struct varlena *bytes = toast_raw_datum_size(values[i]) <= SHORT_BYTES ?
				whole_row_bytes_with_names(att, values[i]) : NULL;

			/* the value here may be compressed inside, and then its bytes are more */
			if (bytes != NULL && VARSIZE_ANY_EXHDR(bytes) <= SHORT_BYTES - VARHDRSZ)
				hash = hash_combine64(hash, hash_bytes_extended((const unsigned char *) VARDATA_ANY(bytes),
																VARSIZE_ANY_EXHDR(bytes), 0));
			continue;
		}
		size = att->attlen == -1 ? toast_raw_datum_size(values[i]) - VARHDRSZ : 0;
		hash = hash_combine64(hash, size);
		hash = ot_value_hash(att, size > SHORT_BYTES ?
							 PointerGetDatum(PG_DETOAST_DATUM_SLICE(values[i], 0, SHORT_BYTES)) : values[i],
							 hash);
	}
	return hash;
}

static bool
whole_row_value_equals(OtColumn *column, Form_pg_attribute att, Datum a, Datum b)
{
	struct varlena *va;
	struct varlena *vb;

	if (column->contains_names)
	{
		va = whole_row_bytes_with_names(att, a);
		vb = whole_row_bytes_with_names(att, b);
	}
	else if (att->attlen == -1)
	{
		va = PG_DETOAST_DATUM_PACKED(a);
		vb = PG_DETOAST_DATUM_PACKED(b);
	}
	else
		return datumIsEqual(a, b, att->attbyval, att->attlen);
	return VARSIZE_ANY_EXHDR(va) == VARSIZE_ANY_EXHDR(vb) &&
		memcmp(VARDATA_ANY(va), VARDATA_ANY(vb), VARSIZE_ANY_EXHDR(va)) == 0;
}

/* Is the row in the slot equal to the prepared one? */
bool
ot_whole_row_equals(OtRelInfo *info, TupleDesc desc, const Datum *values, const bool *nulls,
					TupleTableSlot *slot)
{
	/* values with OIDs last, since comparing them is slow */
	for (int with_names = 0; with_names <= info->contains_names; with_names++)
	{
		for (int i = 0; i < desc->natts; i++)
		{
			Form_pg_attribute att = TupleDescAttr(desc, i);
			bool		isnull;
			Datum		value;

			if (att->attisdropped || info->columns[i].contains_names != with_names)
				continue;
			value = slot_getattr(slot, i + 1, &isnull);
			if (isnull != nulls[i] ||
				(!isnull && !whole_row_value_equals(&info->columns[i], att, values[i], value)))
				return false;
		}
	}
	return true;
}
