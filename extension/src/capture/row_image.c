/*-------------------------------------------------------------------------
 *
 * row_image.c
 *	  A row as it travels: the heap's own bytes.
 *
 * A row is sent as it is stored in the table's page: null bitmap and data, with
 * in-line values as they are, compressed or not.  A value that cannot be sent
 * this way becomes a part, and its column is null in the bitmap:
 *
 *	- a value out of line: its bytes as TOAST stores them, compressed or not;
 *	- a compressed value with OIDs in it: decompressed, and to be compressed
 *	  again with the same method where it is applied.
 *
 * The bytes are followed by a list of the places at which they contain OIDs,
 * and of the objects that these mean (object_name.c).  The reader puts its own
 * OIDs there.
 *
 * What is read has a checksum on its way, and comes from a member, which is
 * trusted with everything.  Nevertheless every length in it is checked: a
 * damaged row is an ERROR, not a read past its end.  The inside of a value is
 * not checked; its type's functions deal with that, as for a row in a heap.
 *
 * Temporary memory: the caller's current context.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "access/toast_internals.h"
#include "access/tupmacs.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/typcache.h"

/* What a row has: the flags in its first byte. */
#define ROW_HAS_NULLS	0x01
#define ROW_HAS_VARLENA 0x02	/* HEAP_HASVARWIDTH */
#define ROW_HAS_NAMES	0x04
#define ROW_HAS_PARTS	0x08
#define ROW_FLAGS		0x0f

/* ---- writing ---- */

static bool
row_image_is_external(OtColumn *column, Datum value)
{
	return column->is_varlena && VARATT_IS_EXTERNAL(DatumGetPointer(value));
}

static bool
row_image_is_compressed(Datum value)
{
	struct varlena *v = (struct varlena *) DatumGetPointer(value);

	if (VARATT_IS_EXTERNAL_ONDISK(v))
	{
		struct varatt_external pointer;

		VARATT_EXTERNAL_GET_POINTER(pointer, v);
		return VARATT_EXTERNAL_IS_COMPRESSED(pointer);
	}
	return VARATT_IS_COMPRESSED(v);
}

static char
row_image_compression_method(Datum value)
{
	switch (toast_get_compression_id((struct varlena *) DatumGetPointer(value)))
	{
		case TOAST_PGLZ_COMPRESSION_ID:
			return TOAST_PGLZ_COMPRESSION;
		case TOAST_LZ4_COMPRESSION_ID:
			return TOAST_LZ4_COMPRESSION;
		default:
			return '\0';
	}
}

typedef struct ValueAt
{
	OtRelInfo  *info;
	int			column;
} ValueAt;

/* Says where the value is that cannot be replicated.  Looks up nothing after other errors. */
static void
row_image_error_context(void *arg)
{
	ValueAt    *at = arg;
	char	   *table = geterrcode() == OT_ERR_NOT_REPLICATED ? get_rel_name(at->info->relid) : NULL;

	if (table != NULL)
		errcontext("column \"%s\" of table \"%s\"",
				   NameStr(TupleDescAttr(at->info->as_given, at->column)->attname), table);
}

/* As ot_type_find_names(). */
static bool
row_image_find_names_in(OtRelInfo *info, int column, char *value, uint32 offset, OtNames *names)
{
	ValueAt		at = {.info = info, .column = column};
	ErrorContextCallback context = {
		.callback = row_image_error_context, .arg = &at, .previous = error_context_stack
	};
	bool		found;

	error_context_stack = &context;
	found = ot_type_find_names(info->columns[column].type, value, offset, names);
	error_context_stack = context.previous;
	return found;
}

static void
row_image_add_part(OtRowImage *image, int column, OtRelInfo *info, Datum value, bool decompress)
{
	OtPart	   *part;
	Oid			type = info->columns[column].type;
	bool		contains_names = info->columns[column].contains_names;

	image->parts = image->parts ?
		repalloc(image->parts, sizeof(OtPart) * (image->nparts + 1)) :
		palloc(sizeof(OtPart));
	part = &image->parts[image->nparts++];
	memset(part, 0, sizeof(*part));
	part->column = column;
	part->out_of_line = VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(value));
	if (!contains_names)
	{
		part->value = detoast_external_attr((struct varlena *) DatumGetPointer(value));
		return;
	}
	part->compress = row_image_is_compressed(value) ? row_image_compression_method(value) : '\0';
	part->value = PG_DETOAST_DATUM(value);
	if (decompress)
		part->value = (struct varlena *) DatumGetPointer(ot_type_decompress(type, value));
	/* Offsets count from the end of the header. */
	if (!row_image_find_names_in(info, column, (char *) part->value, (uint32) -VARHDRSZ, &part->names) &&
		!decompress)
	{
		/* A value inside this one is compressed. */
		image->nparts--;
		row_image_add_part(image, column, info, value, true);
	}
}

/*
 * Adds the OIDs among the row's bytes to the image's names.  If a column has a
 * compressed value inside its value, returns the number of that column, which
 * has to become a part; else -1.
 */
static int
row_image_find_names(OtRowImage *image, OtRelInfo *info, TupleDesc desc)
{
	HeapTupleHeader header = image->tuple->t_data;
	char	   *data = (char *) header + header->t_hoff;
	int			natts = Min(HeapTupleHeaderGetNatts(header), desc->natts);
	uint32		off = 0;

	image->names.count = 0;
	for (int i = 0; i < natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (HeapTupleHasNulls(image->tuple) && att_isnull(i, header->t_bits))
			continue;
		off = att_align_pointer(off, att->attalign, att->attlen, data + off);
		if (info->columns[i].contains_names &&
			!row_image_find_names_in(info, i, data + off, off, &image->names))
			return i;
		off = att_addlength_pointer(off, att->attlen, data + off);
	}
	return -1;
}

/*
 * Makes the image from stored values.  Changes `nulls`.  A row that was stored
 * before a column was dropped still has its value, which nobody needs.
 */
void
ot_row_image_of_values(OtRowImage *image, OtRelInfo *info, TupleDesc desc,
					   Datum *values, bool *nulls)
{
	memset(image, 0, sizeof(*image));
	for (int i = 0; i < info->natts; i++)
	{
		OtColumn   *column = &info->columns[i];

		if (column->dropped)
			nulls[i] = true;
		if (nulls[i] || !column->is_varlena)
			continue;
		if (row_image_is_external(column, values[i]) ||
			(column->contains_names && row_image_is_compressed(values[i])))
		{
			row_image_add_part(image, i, info, values[i], false);
			nulls[i] = true;
		}
	}
	image->tuple = heap_form_tuple(info->as_given, values, nulls);
	while (info->contains_names)
	{
		int			deep = row_image_find_names(image, info, desc);

		if (deep < 0)
			break;
		row_image_add_part(image, deep, info, values[deep], true);
		nulls[deep] = true;
		image->tuple = heap_form_tuple(info->as_given, values, nulls);
	}
}

/*
 * Makes the image from a row in the table.  The caller keeps its page pinned
 * until the image has been written.
 */
void
ot_row_image_of_tuple(OtRowImage *image, OtRelInfo *info, TupleDesc desc, HeapTuple stored)
{
	if (!HeapTupleHasExternal(stored) &&
		HeapTupleHeaderGetNatts(stored->t_data) == desc->natts)
	{
		memset(image, 0, sizeof(*image));
		image->tuple = stored;
		if (!info->contains_names || row_image_find_names(image, info, desc) < 0)
			return;
	}
	{
		Datum	   *values = palloc(sizeof(Datum) * desc->natts);
		bool	   *nulls = palloc(sizeof(bool) * desc->natts);

		heap_deform_tuple(stored, desc, values, nulls);
		ot_row_image_of_values(image, info, desc, values, nulls);
	}
}

static void
row_image_put_names(StringInfo ops, OtNames *names)
{
	ot_put_u32(ops, names->count);
	for (uint32 i = 0; i < names->count; i++)
	{
		ot_put_u32(ops, names->items[i].offset);
		ot_put_u32(ops, names->items[i].object);
	}
}

void
ot_row_image_put(StringInfo ops, OtRowImage *image, int natts)
{
	HeapTupleHeader header = image->tuple->t_data;
	uint32		len = image->tuple->t_len - header->t_hoff;
	uint8		flags = 0;

	if (HeapTupleHasNulls(image->tuple))
		flags |= ROW_HAS_NULLS;
	if (HeapTupleHasVarWidth(image->tuple))
		flags |= ROW_HAS_VARLENA;
	if (image->names.count > 0)
		flags |= ROW_HAS_NAMES;
	if (image->nparts > 0)
		flags |= ROW_HAS_PARTS;

	ot_put_u8(ops, flags);
	if (flags & ROW_HAS_NULLS)
		appendBinaryStringInfo(ops, (char *) header->t_bits, BITMAPLEN(natts));
	ot_put_u32(ops, len);
	appendBinaryStringInfo(ops, (char *) header + header->t_hoff, len);
	if (flags & ROW_HAS_NAMES)
		row_image_put_names(ops, &image->names);
	if (flags & ROW_HAS_PARTS)
	{
		ot_put_u16(ops, image->nparts);
		for (int i = 0; i < image->nparts; i++)
		{
			OtPart	   *part = &image->parts[i];

			ot_put_u16(ops, part->column);
			ot_put_u8(ops, part->out_of_line);
			ot_put_u8(ops, part->compress);
			ot_put_u32(ops, VARSIZE(part->value));
			appendBinaryStringInfo(ops, (char *) part->value, VARSIZE(part->value));
			row_image_put_names(ops, &part->names);
		}
	}
}

/* ---- reading ---- */

static void
row_image_bad_row(const char *what)
{
	ereport(ERROR,
			(errcode(OT_ERR_PROTOCOL),
			 errmsg("a row in a write set is damaged: %s", what)));
}

/* Returns the length of the varlena at `at`, where `left` bytes are left. */
static uint32
row_image_check_varlena(const char *at, uint32 left)
{
	uint32		size;

	if (VARATT_IS_1B_E(at))
		row_image_bad_row("a value is a pointer to another place");
	if (VARATT_IS_1B(at))
		size = VARSIZE_1B(at);
	else
	{
		if (left < VARHDRSZ)
			row_image_bad_row("a value has no length");
		size = VARSIZE_4B(at);
		if (size < (VARATT_IS_4B_C(at) ? VARHDRSZ_COMPRESSED : VARHDRSZ))
			row_image_bad_row("a value is shorter than its header");
	}
	if (size > left)
		row_image_bad_row("a value is longer than the row");
	return size;
}

/* Checks that all columns that are not NULL are within the bytes. */
static void
row_image_check_columns(TupleDesc desc, HeapTuple tuple)
{
	HeapTupleHeader header = tuple->t_data;
	const char *data = (char *) header + header->t_hoff;
	uint32		len = tuple->t_len - header->t_hoff;
	uint32		off = 0;

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		uint32		size;

		if (HeapTupleHasNulls(tuple) && att_isnull(i, header->t_bits))
			continue;
		/* att_align_pointer() reads a byte here, so there must be one. */
		if (off >= len)
			row_image_bad_row("it ends too early");
		off = att_align_pointer(off, att->attalign, att->attlen, data + off);
		if (off >= len)
			row_image_bad_row("it ends too early");
		if (att->attlen > 0)
			size = att->attlen;
		else if (att->attlen == -1)
			size = row_image_check_varlena(data + off, len - off);
		else
			size = strnlen(data + off, len - off) + 1;
		if (size > len - off)
			row_image_bad_row("it ends too early");
		off += size;
	}
	if (off != len)
		row_image_bad_row("it is too long");
}

/*
 * Puts this server's version of the type into a composite's header; `offset` is
 * after the header's length word.  The type has the same columns here as it
 * had for the writer, since this is the same place in the order of entries.
 */
static void
row_image_put_version(char *bytes, uint32 len, uint32 offset)
{
	const uint32 size = SizeofHeapTupleHeader - VARHDRSZ;
	HeapTupleHeaderData header;
	TupleDesc	desc;

	if (len < size || offset > len - size)
		row_image_bad_row("a composite is beyond its end");
	memset(&header, 0, sizeof(header));
	memcpy((char *) &header + VARHDRSZ, bytes + offset, size);
	desc = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(&header), -1);
	OT_SET_ROW_VERSION(&header, desc);
	ReleaseTupleDesc(desc);
	memcpy(bytes + offset, (char *) &header + VARHDRSZ, size);
}

/* Replaces the writer's OIDs in the bytes by this server's. */
static void
row_image_read_names(OtReader *r, char *bytes, uint32 len)
{
	uint32		count = ot_get_u32(r);

	for (uint32 i = 0; i < count; i++)
	{
		uint32		offset = ot_get_u32(r);
		OtObjectRef ref = ot_get_u32(r);
		Oid			oid;

		if (ref == OT_OBJECT_VERSION)
		{
			row_image_put_version(bytes, len, offset);
			continue;
		}
		oid = ot_object_resolve(ref);
		if (len < sizeof(Oid) || offset > len - sizeof(Oid))
			row_image_bad_row("an OID is beyond its end");
		memcpy(bytes + offset, &oid, sizeof(Oid));
	}
}

static void
row_image_read_part(OtReader *r, OtRelInfo *info, OtRowRead *row, OtPart *part)
{
	uint32		len;

	part->column = ot_get_u16(r);
	if (part->column >= info->natts || !info->columns[part->column].is_varlena ||
		!heap_attisnull(row->tuple, part->column + 1, NULL))
		row_image_bad_row("it has a part for no column");
	part->out_of_line = ot_get_u8(r) != 0;
	part->compress = (char) ot_get_u8(r);
	len = ot_get_u32(r);
	if (len < VARHDRSZ)
		row_image_bad_row("a part has no length");
	part->value = palloc(len);
	memcpy(part->value, ot_get_bytes(r, len), len);
	if (VARATT_IS_1B(part->value) || row_image_check_varlena((char *) part->value, len) != len)
		row_image_bad_row("a part and its value differ in length");
	row_image_read_names(r, (char *) part->value + VARHDRSZ, len - VARHDRSZ);
	if (part->compress != '\0')
	{
		Datum		compressed;

		if (part->compress != TOAST_PGLZ_COMPRESSION && part->compress != TOAST_LZ4_COMPRESSION)
			row_image_bad_row("a part is compressed by an unknown method");
		if (VARATT_IS_COMPRESSED(part->value))
			row_image_bad_row("a part is compressed twice");
		compressed = toast_compress_datum(PointerGetDatum(part->value), part->compress);
		if (DatumGetPointer(compressed) != NULL)
			part->value = (struct varlena *) DatumGetPointer(compressed);
	}
}

/* Reads a row for a table with this descriptor, into the current context. */
void
ot_row_read(OtReader *r, OtRelInfo *info, TupleDesc desc, OtRowRead *row)
{
	uint8		flags = ot_get_u8(r);
	uint32		bitmap_len = (flags & ROW_HAS_NULLS) ? BITMAPLEN(info->natts) : 0;
	const char *bitmap = ot_get_bytes(r, bitmap_len);
	uint32		len = ot_get_u32(r);
	const char *bytes = ot_get_bytes(r, len);
	uint32		header_len = MAXALIGN(SizeofHeapTupleHeader + bitmap_len);
	HeapTuple	tuple;

	if (flags & ~ROW_FLAGS)
		row_image_bad_row("it has unknown flags");
	if (len > MaxAllocSize / 2)
		row_image_bad_row("it is too long");
	tuple = palloc0(HEAPTUPLESIZE + header_len + len);
	tuple->t_len = header_len + len;
	ItemPointerSetInvalid(&tuple->t_self);
	tuple->t_tableOid = info->relid;
	tuple->t_data = (HeapTupleHeader) ((char *) tuple + HEAPTUPLESIZE);
	ItemPointerSetInvalid(&tuple->t_data->t_ctid);
	HeapTupleHeaderSetNatts(tuple->t_data, info->natts);
	tuple->t_data->t_hoff = header_len;
	if (flags & ROW_HAS_VARLENA)
		tuple->t_data->t_infomask |= HEAP_HASVARWIDTH;
	if (flags & ROW_HAS_NULLS)
	{
		tuple->t_data->t_infomask |= HEAP_HASNULL;
		memcpy(tuple->t_data->t_bits, bitmap, bitmap_len);
	}
	memcpy((char *) tuple->t_data + header_len, bytes, len);
	if (flags & ROW_HAS_NAMES)
		row_image_read_names(r, (char *) tuple->t_data + header_len, len);
	row_image_check_columns(desc, tuple);

	row->tuple = tuple;
	row->parts = NULL;
	row->nparts = 0;
	row->out_of_line = false;
	if (flags & ROW_HAS_PARTS)
	{
		int			nparts = ot_get_u16(r);

		row->parts = palloc0(sizeof(OtPart) * Max(nparts, 1));
		for (int i = 0; i < nparts; i++)
		{
			OtPart	   *part = &row->parts[row->nparts];

			row_image_read_part(r, info, row, part);
			/* earlier releases wrote values of dropped columns too */
			if (info->columns[part->column].dropped)
				continue;
			row->out_of_line |= part->out_of_line;
			row->nparts++;
		}
	}
}

/*
 * Makes a TOAST pointer to a value in memory.  It counts as out of line, so the
 * toaster processes the row and stores the value out of line again.
 */
static Datum
row_image_make_indirect(struct varlena *value)
{
	struct varatt_indirect target = {.pointer = value};
	struct varlena *pointer = palloc(INDIRECT_POINTER_SIZE);

	SET_VARTAG_EXTERNAL(pointer, VARTAG_INDIRECT);
	memcpy(VARDATA_EXTERNAL(pointer), &target, sizeof(target));
	return PointerGetDatum(pointer);
}

/* The row's column values, including the parts. */
void
ot_row_deform(OtRowRead *row, TupleDesc desc, Datum *values, bool *nulls)
{
	heap_deform_tuple(row->tuple, desc, values, nulls);
	for (int i = 0; i < row->nparts; i++)
	{
		values[row->parts[i].column] = row->parts[i].out_of_line ?
			row_image_make_indirect(row->parts[i].value) : PointerGetDatum(row->parts[i].value);
		nulls[row->parts[i].column] = false;
	}
}
