/*-------------------------------------------------------------------------
 *
 * operations.c
 *	  What this transaction has captured.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture.h"

#include "access/relation.h"
#include "catalog/namespace.h"
#include "fmgr.h"
#include "funcapi.h"
#include "nodes/makefuncs.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "sequence/sequence.h"

PG_FUNCTION_INFO_V1(unit_used_sequences);
PG_FUNCTION_INFO_V1(unit_write_set);
PG_FUNCTION_INFO_V1(unit_operations);

/*
 * unit_used_sequences() returns setof oid: sequences that were drawn from, if
 * that is not in the log yet.
 */
Datum
unit_used_sequences(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	for (int i = 0; i < ot_used_sequences->count; i++)
	{
		Datum		values[1] = {ObjectIdGetDatum(ot_used_sequences->items[i].relid)};
		bool		nulls[1] = {false};

		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* ---- the write set ---- */

/* What would be sent of this transaction, from its operations on. */
static OtReader
encode_operations(void)
{
	OtTxnId		txn = {1, 1, 1};
	StringInfoData entry;
	OtReader	r = {0};
	uint32		nkeys;

	ot_large_object_capture_cuts();
	initStringInfo(&entry);
	ot_write_set_encode(txn, &entry);
	r.at = entry.data;
	r.end = entry.data + entry.len;
	(void) ot_get_bytes(&r, OT_TXN_ID_BYTES + 1);
	nkeys = ot_get_u32(&r);
	(void) ot_get_bytes(&r, nkeys * 17);
	return r;
}

/*
 * unit_write_set() returns bytea: the operations of this transaction, as they
 * would be sent.
 */
Datum
unit_write_set(PG_FUNCTION_ARGS)
{
	OtReader	r = encode_operations();

	PG_RETURN_BYTEA_P(cstring_to_text_with_len(r.at, r.end - r.at));
}

typedef struct Described
{
	Oid			relid;
	char	   *name;
} Described;

/* Appends the value, and in what form it came. */
static void
put_value(StringInfo out, Form_pg_attribute att, Datum value, bool isnull, OtPart *part)
{
	Oid			output;
	bool		is_varlena;
	char	   *text;

	appendStringInfo(out, " %s=", NameStr(att->attname));
	if (isnull)
	{
		appendStringInfoString(out, "null");
		return;
	}
	if (part)
		appendStringInfoString(out, "part ");
	if (att->attlen == -1 && VARATT_IS_COMPRESSED(DatumGetPointer(value)))
		appendStringInfoString(out, "compressed ");
	getTypeOutputInfo(att->atttypid, &output, &is_varlena);
	text = OidOutputFunctionCall(output, value);
	if (strlen(text) > 60)
		appendStringInfo(out, "(%zu characters)", strlen(text));
	else
		appendStringInfo(out, "'%s'", text);
}

/*
 * Appends the values of a row.  A row of an update begins with a bitmap of the
 * columns that it contains.
 */
static void
put_row(StringInfo out, OtReader *r, Oid relid, bool of_update, bool key)
{
	Relation	rel = relation_open(relid, AccessShareLock);
	TupleDesc	desc = RelationGetDescr(rel);
	OtRelInfo  *info = ot_rel_info(rel);
	Datum	   *values = palloc(sizeof(Datum) * desc->natts);
	bool	   *nulls = palloc(sizeof(bool) * desc->natts);
	const bits8 *changed = NULL;
	OtRowRead	row;

	if (of_update)
		changed = (const bits8 *) ot_get_bytes(r, BITMAPLEN(desc->natts));
	ot_row_read(r, info, desc, &row);
	ot_row_deform(&row, desc, values, nulls);
	if (key)
		appendStringInfoString(out, " key(");
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		OtPart	   *part = NULL;

		if (att->attisdropped || (key && nulls[i]) ||
			(changed && !(changed[i >> 3] & (1 << (i & 7)))))
			continue;
		for (int j = 0; j < row.nparts; j++)
			part = row.parts[j].column == i ? &row.parts[j] : part;
		put_value(out, att, values[i], nulls[i], part);
	}
	if (key)
		appendStringInfoString(out, " )");
	relation_close(rel, NoLock);
}

/* Finds the table, since the rows that follow have only its number. */
static Described *
print_relation(StringInfo line, OtReader *r)
{
	Described  *relation = palloc(sizeof(Described));
	char	   *schema = ot_get_str(r);
	uint16		natts;

	relation->name = ot_get_str(r);
	natts = ot_get_u16(r);
	(void) ot_get_u32(r);		/* the layout */
	relation->relid = RangeVarGetRelid(makeRangeVar(schema, relation->name, -1), NoLock, true);
	appendStringInfo(line, " %s, %d attributes", relation->name, natts);
	return relation;
}

static void
print_row(StringInfo line, OtReader *r, char op, List *relations)
{
	uint16		number = ot_get_u16(r);
	Described  *relation;

	if (number >= list_length(relations))
		elog(ERROR, "relation %d was not introduced", number);
	relation = list_nth(relations, number);
	if (!OidIsValid(relation->relid))
		elog(ERROR, "relation \"%s\" is not there any more", relation->name);
	appendStringInfo(line, " %s", relation->name);
	if (op == 'U')
		appendStringInfo(line, " mode %d", ot_get_u8(r));
	if (op != 'I' && op != 'C')
		put_row(line, r, relation->relid, false, true);
	if (op != 'D' && op != 'M')
		put_row(line, r, relation->relid, op == 'U', false);
}

static void
print_object(StringInfo line, OtReader *r)
{
	OtReader	start = *r;

	appendStringInfo(line, " %c", ot_get_u8(&start));
	appendStringInfo(line, " %s", ot_get_str(&start));
	appendStringInfo(line, ".%s", ot_get_str(&start));
	ot_object_read(r);
}

static void
print_settings(StringInfo line, OtReader *r)
{
	int			nsettings;

	appendStringInfo(line, " as %s", ot_get_str(r));
	nsettings = ot_get_u16(r);
	for (int i = 0; i < nsettings; i++)
	{
		char	   *name = ot_get_str(r);
		char	   *value = ot_get_str(r);

		/* Not printed: values that depend on the machine's locale. */
		if (strncmp(name, "lc_", 3) != 0 && strcmp(name, "default_text_search_config") != 0)
			appendStringInfo(line, " %s=%s", name, value);
	}
}

static void
print_large_object(StringInfo line, OtReader *r)
{
	uint8		kind = ot_get_u8(r);

	appendStringInfo(line, "%c %u", kind, ot_get_u32(r));
	if (kind == 'c')
		(void) ot_get_u32(r);
	else if (kind != 'u')
		appendStringInfo(line, " page %d", (int) ot_get_u32(r));
	if (kind == 'p')
	{
		uint32		len = ot_get_u32(r);

		appendStringInfo(line, ", %u bytes", len);
		(void) ot_get_bytes(r, len);
	}
	if (kind == 't')
	{
		for (uint32 runs = ot_get_u32(r); runs > 0; runs--)
		{
			uint32		first = ot_get_u32(r);

			appendStringInfo(line, ", %u-%u", first, ot_get_u32(r));
		}
	}
}

static void
print_statement(StringInfo line, OtReader *r)
{
	uint32		len = ot_get_u32(r);
	const char *text = ot_get_bytes(r, len);
	int			nsettings;

	appendStringInfo(line, " %.*s", (int) len, text);
	appendStringInfo(line, " as %s", ot_get_str(r));
	nsettings = ot_get_u16(r);
	for (int i = 0; i < 2 * nsettings; i++)
		(void) ot_get_str(r);
}

static void
print_emptied(StringInfo line, OtReader *r)
{
	(void) ot_get_str(r);
	appendStringInfo(line, " %s", ot_get_str(r));
	appendStringInfo(line, " %d", ot_get_u8(r));
}

static void
print_notification(StringInfo line, OtReader *r)
{
	appendStringInfo(line, " %s", ot_get_str(r));
	appendStringInfo(line, " '%s'", ot_get_str(r));
}

static void
print_sequence(StringInfo line, OtReader *r)
{
	(void) ot_get_str(r);
	appendStringInfo(line, " %s", ot_get_str(r));
	(void) ot_get_u64(r);
	(void) ot_get_u8(r);
}

/* unit_operations() returns setof text: the write set so far, as text. */
Datum
unit_operations(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OtReader	r;
	List	   *relations = NIL;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	if (ot_write_set_is_empty())
		return (Datum) 0;
	r = encode_operations();
	ot_object_names_begin();
	if (r.at < r.end)
		(void) ot_get_u8(&r);	/* the format */

	while (r.at < r.end)
	{
		char		op = (char) ot_get_u8(&r);
		StringInfoData line;
		Datum		values[1];
		bool		nulls[1] = {false};

		initStringInfo(&line);
		appendStringInfoChar(&line, op);
		switch (op)
		{
			case 'R':
				relations = lappend(relations, print_relation(&line, &r));
				break;
			case 'I':
			case 'C':
			case 'U':
			case 'D':
			case 'M':
				print_row(&line, &r, op, relations);
				break;
			case 'O':
				print_object(&line, &r);
				break;
			case 'G':
				print_settings(&line, &r);
				break;
			case 'L':
				print_large_object(&line, &r);
				break;
			case 'T':
				(void) ot_get_u64(&r);
				break;
			case 'S':
				print_statement(&line, &r);
				break;
			case 'E':
				print_emptied(&line, &r);
				break;
			case 'N':
				print_notification(&line, &r);
				break;
			case 'Q':
				print_sequence(&line, &r);
				break;
			default:
				elog(ERROR, "unknown operation 0x%02x", (unsigned char) op);
		}
		values[0] = CStringGetTextDatum(line.data);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
