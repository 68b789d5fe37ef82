/*-------------------------------------------------------------------------
 *
 * row_text.c
 *	  Values of a row in a write set, as text for `onetrip skip`.
 *
 * A row travels as the heap's own bytes, which only a server with the table can
 * read.  The node asks the one that stands still at the entry: its tables look as
 * they did to whoever wrote the row, unless the entry itself changes them.
 *
 * Runs in backends.  Only reads, and records nothing.  No function of a user is
 * called but those that rel_info.c may call for an index, as the table's owner.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/table.h"
#include "catalog/pg_class.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

/* Bytes that are shown of one value. */
#define ROW_TEXT_VALUE_MAX 1000

PG_FUNCTION_INFO_V1(ot_row_text);

static OtReader
row_text_reader(bytea *bytes)
{
	return (OtReader)
	{
		.at = VARDATA_ANY(bytes), .end = VARDATA_ANY(bytes) + VARSIZE_ANY_EXHDR(bytes)
	};
}

/* Opens the table of an operation 'R', if its rows can be read here. */
static Relation
row_text_open(OtReader *r, OtRelInfo **info)
{
	char	   *schema;
	char	   *name;
	uint16		natts;
	uint32		layout;
	Relation	rel;
	OtUserContext saved;

	(void) ot_get_u8(r);
	schema = ot_get_str(r);
	name = ot_get_str(r);
	natts = ot_get_u16(r);
	layout = ot_get_u32(r);
	rel = table_openrv(makeRangeVar(schema, name, -1), AccessShareLock);
	if (rel->rd_rel->relkind != RELKIND_MATVIEW &&
		(rel->rd_rel->relkind != RELKIND_RELATION || !ot_is_onetrip_table(rel)))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s.%s\" is not a onetrip table", schema, name)));
	ot_user_enter(&saved, rel->rd_rel->relowner, true);
	*info = ot_rel_info(rel);
	ot_user_leave(&saved);
	if (RelationGetNumberOfAttributes(rel) != natts || (*info)->layout != layout)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("columns of table \"%s.%s\" are not those that the row has", schema, name)));
	return rel;
}

static void
row_text_put_value(StringInfo text, Form_pg_attribute att, Datum value, bool isnull)
{
	Oid			output;
	bool		is_varlena;
	Datum		whole = value;
	char	   *shown;
	int			len;
	int			cut;

	if (text->len > 0)
		appendStringInfoString(text, ", ");
	appendStringInfo(text, "%s = ", quote_identifier(NameStr(att->attname)));
	if (isnull)
	{
		appendStringInfoString(text, "NULL");
		return;
	}
	getTypeOutputInfo(att->atttypid, &output, &is_varlena);
	if (is_varlena)
		whole = PointerGetDatum(PG_DETOAST_DATUM(value));
	shown = OidOutputFunctionCall(output, whole);
	len = strlen(shown);
	cut = pg_mbcliplen(shown, len, ROW_TEXT_VALUE_MAX);
	shown[cut] = '\0';
	appendStringInfo(text, "%s%s", quote_literal_cstr(shown), cut < len ? "..." : "");
	/* there may be many long ones */
	pfree(shown);
	if (whole != value)
		pfree(DatumGetPointer(whole));
}

/*
 * onetrip.row_text(objects bytea, relation bytea, changed bytea, "row" bytea): the
 * values of a row in a write set.  `objects` has its operations 'O' before the row,
 * `relation` is its operation 'R' of the table.  `changed` is the bitmap of the
 * columns to show; NULL: all that are not NULL.
 */
Datum
ot_row_text(PG_FUNCTION_ARGS)
{
	OtReader	r;
	OtRelInfo  *info;
	OtRowRead	row;
	Relation	rel;
	TupleDesc	desc;
	Datum	   *values;
	bool	   *nulls;
	bytea	   *changed = PG_ARGISNULL(2) ? NULL : PG_GETARG_BYTEA_PP(2);
	StringInfoData text;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) || PG_ARGISNULL(3))
		PG_RETURN_NULL();
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to read a row of a write set")));
	ot_object_names_begin();
	r = row_text_reader(PG_GETARG_BYTEA_PP(0));
	while (ot_has_more(&r))
	{
		(void) ot_get_u8(&r);
		ot_object_read(&r);
	}
	r = row_text_reader(PG_GETARG_BYTEA_PP(1));
	rel = row_text_open(&r, &info);
	desc = RelationGetDescr(rel);
	if (changed && VARSIZE_ANY_EXHDR(changed) != BITMAPLEN(desc->natts))
		ereport(ERROR,
				(errcode(OT_ERR_PROTOCOL),
				 errmsg("the columns to show are not those of the table")));
	r = row_text_reader(PG_GETARG_BYTEA_PP(3));
	ot_row_read(&r, info, desc, &row);
	values = palloc(sizeof(Datum) * desc->natts);
	nulls = palloc(sizeof(bool) * desc->natts);
	ot_row_deform(&row, desc, values, nulls);
	initStringInfo(&text);
	for (int i = 0; i < desc->natts; i++)
	{
		bool		wanted = changed ?
			(((uint8 *) VARDATA_ANY(changed))[i / 8] & (1 << (i % 8))) != 0 : !nulls[i];

		if (wanted && !TupleDescAttr(desc, i)->attisdropped)
			row_text_put_value(&text, TupleDescAttr(desc, i), values[i], nulls[i]);
	}
	table_close(rel, NoLock);
	PG_RETURN_TEXT_P(cstring_to_text_with_len(text.data, text.len));
}
