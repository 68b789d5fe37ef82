/*-------------------------------------------------------------------------
 *
 * stored_type.c
 *	  Where a stored value contains OIDs of this server.
 *
 * Values travel as the heap stores them, and nearly all bytes mean the same
 * on every server.  OIDs do not.  They occur
 *
 *	in an enum			the value is the OID of its label
 *	in a reg* type		the value is the OID of what it names
 *	in an aclitem		grantee and grantor
 *	in an array			the element type, then the elements'
 *	in a composite		the row type, and its version; then the columns'
 *	in a range			the range type, then the bounds'
 *	in a multirange		the multirange type, then the bounds'
 *
 * and in domains over these.  This file knows those layouts, and finds every
 * OID and its offset.  The values of an extension's or a user's base type are
 * assumed to contain no OIDs, as pg_upgrade assumes it.
 *
 * Some of the system's own types contain OIDs in forms that only the server
 * can read (pg_node_tree); they are refused.  So is a range over a type that is
 * ordered by OID: elsewhere its upper bound could be below the lower one.
 *
 * The cache of types is below CacheMemoryContext, and is emptied when a type or
 * a relation changes.  Runs in backends and in the apply worker.
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
#include "access/transam.h"
#include "access/tupmacs.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/multirangetypes.h"
#include "utils/rangetypes.h"
#include "utils/typcache.h"

typedef enum Layout
{
	LAYOUT_PLAIN,				/* no OIDs that need a name */
	LAYOUT_REFUSED,
	LAYOUT_OBJECT,				/* an OID, of the kind `object` */
	LAYOUT_ACLITEM,
	LAYOUT_ARRAY,
	LAYOUT_COMPOSITE,
	LAYOUT_RANGE,
	LAYOUT_MULTIRANGE
} Layout;

typedef struct StoredType
{
	Oid			type;			/* hash key, first */
	Layout		layout;
	OtObjectKind object;
	bool		by_oid;			/* contains something whose order is that of OIDs */
	bool		comparable;		/* any two values can be compared for an order */
	Oid			inner;			/* of elements or bounds; InvalidOid: none to look into */
} StoredType;

/* Added to the estimated size of a compressed value elsewhere, in bytes. */
#define SIZE_SLACK 64

static HTAB *types = NULL;
static uint64 times_forgotten = 0;

/* ---- the cache ---- */

void
ot_type_forget_all(void)
{
	if (types)
		hash_destroy(types);
	types = NULL;
	times_forgotten++;
}

static OtObjectKind
stored_type_object_of_reg_type(Oid type)
{
	switch (type)
	{
		case REGPROCOID:
		case REGPROCEDUREOID:
			return OT_OBJECT_FUNCTION;
		case REGOPEROID:
		case REGOPERATOROID:
			return OT_OBJECT_OPERATOR;
		case REGCLASSOID:
			return OT_OBJECT_RELATION;
		case REGTYPEOID:
			return OT_OBJECT_TYPE;
		case REGROLEOID:
			return OT_OBJECT_ROLE;
		case REGNAMESPACEOID:
			return OT_OBJECT_NAMESPACE;
		case REGCONFIGOID:
			return OT_OBJECT_TS_CONFIG;
		case REGDICTIONARYOID:
			return OT_OBJECT_TS_DICTIONARY;
		case REGCOLLATIONOID:
			return OT_OBJECT_COLLATION;
		default:
			return OT_OBJECT_NONE;
	}
}

/* Are its values OIDs of objects, which differ between servers? */
bool
ot_type_names_object(Oid type)
{
	return stored_type_object_of_reg_type(type) != OT_OBJECT_NONE;
}

static bool
stored_type_is_refused(Oid type)
{
	switch (type)
	{
		case PG_NODE_TREEOID:
		case PG_MCV_LISTOID:
		case PG_BRIN_MINMAX_MULTI_SUMMARYOID:
			return true;
		default:
			return false;
	}
}

static StoredType stored_type_describe_known(Oid type);

static void
stored_type_describe_composite(StoredType *stored, Oid type)
{
	TupleDesc	desc = lookup_rowtype_tupdesc(type, -1);

	stored->layout = LAYOUT_COMPOSITE;
	stored->comparable = true;
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		StoredType	column;

		if (att->attisdropped)
			continue;
		column = stored_type_describe_known(att->atttypid);
		stored->by_oid |= column.by_oid;
		stored->comparable &= column.comparable;
	}
	ReleaseTupleDesc(desc);
}

/* Has the range a comparison for its bounds that looks up no other one? */
static bool
stored_type_range_compares(Oid range)
{
	switch (lookup_type_cache(range, TYPECACHE_RANGE_INFO)->rng_cmp_proc_finfo.fn_oid)
	{
		case F_BTARRAYCMP:
		case F_BTRECORDCMP:
		case F_RANGE_CMP:
		case F_MULTIRANGE_CMP:
			return false;
		default:
			return true;
	}
}

static void
stored_type_describe_new(StoredType *stored, Oid type)
{
	Oid			base = getBaseType(type);
	Oid			element = get_element_type(base);
	char		typtype = get_typtype(base);

	stored->layout = LAYOUT_PLAIN;
	stored->object = OT_OBJECT_NONE;
	stored->by_oid = false;
	stored->comparable = OidIsValid(lookup_type_cache(base, TYPECACHE_CMP_PROC)->cmp_proc);
	stored->inner = InvalidOid;

	if (stored_type_is_refused(base))
		stored->layout = LAYOUT_REFUSED;
	else if (base == ACLITEMOID)
	{
		stored->layout = LAYOUT_ACLITEM;
		stored->by_oid = true;
	}
	else if (ot_type_names_object(base))
	{
		stored->layout = LAYOUT_OBJECT;
		stored->object = stored_type_object_of_reg_type(base);
		stored->by_oid = true;
	}
	else if (typtype == TYPTYPE_ENUM)
	{
		stored->layout = LAYOUT_OBJECT;
		stored->object = OT_OBJECT_ENUM_LABEL;
	}
	else if (typtype == TYPTYPE_COMPOSITE)
		stored_type_describe_composite(stored, base);
	else if (OidIsValid(element) || typtype == TYPTYPE_RANGE || typtype == TYPTYPE_MULTIRANGE)
	{
		StoredType	inner;

		if (typtype == TYPTYPE_MULTIRANGE)
			element = get_range_subtype(get_multirange_range(base));
		else if (typtype == TYPTYPE_RANGE)
			element = get_range_subtype(base);
		inner = stored_type_describe_known(element);
		stored->by_oid = inner.by_oid;
		stored->comparable = inner.comparable ||
			(typtype == TYPTYPE_MULTIRANGE && stored_type_range_compares(get_multirange_range(base))) ||
			(typtype == TYPTYPE_RANGE && stored_type_range_compares(base));
		if (inner.layout != LAYOUT_PLAIN)
			stored->inner = element;
		if (typtype == TYPTYPE_MULTIRANGE || typtype == TYPTYPE_RANGE)
		{
			if (inner.by_oid || inner.layout == LAYOUT_REFUSED)
				stored->layout = LAYOUT_REFUSED;
			else if (base >= FirstGenbkiObjectId || inner.layout != LAYOUT_PLAIN)
				stored->layout = typtype == TYPTYPE_RANGE ? LAYOUT_RANGE : LAYOUT_MULTIRANGE;
		}
		/* An array contains the OID of its element type, not of its own. */
		else if (element >= FirstGenbkiObjectId || inner.layout != LAYOUT_PLAIN)
			stored->layout = LAYOUT_ARRAY;
	}
}

static StoredType
stored_type_describe_known(Oid type)
{
	StoredType *found;
	StoredType	stored = {.type = type};
	uint64		before;

	check_stack_depth();
	if (types == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(StoredType)};

		ot_rel_info_init_cache();
		ctl.hcxt = CacheMemoryContext;
		types = hash_create("onetrip types", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	found = hash_search(types, &type, HASH_FIND, NULL);
	if (found)
		return *found;
	before = times_forgotten;
	stored_type_describe_new(&stored, type);
	/* If something has changed meanwhile, the result is used but not kept. */
	if (before == times_forgotten)
	{
		found = hash_search(types, &type, HASH_ENTER, NULL);
		*found = stored;
	}
	return stored;
}

/* May a value of this type contain an OID that needs a name, or be refused? */
bool
ot_type_contains_names(Oid type)
{
	return stored_type_describe_known(type).layout != LAYOUT_PLAIN;
}

/* Does the order of its values depend on OIDs? */
bool
ot_type_is_by_oid(Oid type)
{
	return stored_type_describe_known(type).by_oid;
}

/*
 * JSON_VALUE and its like turn what they find into their result by casts that no tree
 * shows.  Are there some that may be a user's, or give other values elsewhere?
 */
bool
ot_json_calls_unseen(Node *node)
{
	switch (OT_JSON_RESULT(node))
	{
		case InvalidOid:
		case BOOLOID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case FLOAT4OID:
		case FLOAT8OID:
		case NUMERICOID:
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case JSONOID:
		case JSONBOID:
			return false;
		default:
			return true;
	}
}

/*
 * Can any two values be compared?  PostgreSQL has one comparison for all arrays,
 * and one for all composite types and ranges; it looks up that of the elements
 * when it compares two, and finds none for an array of points.
 */
bool
ot_type_is_comparable(Oid type)
{
	return stored_type_describe_known(type).comparable;
}

/* ---- finding OIDs ---- */

/* Bytes in memory, and their offset in the bytes that will be sent. */
typedef struct Place
{
	char	   *start;
	uint32		offset;
	OtNames    *names;
	bool		compressed;		/* a compressed value that may contain OIDs was found */
	bool		hashes;			/* names are hashes, and no object is introduced */
	bool		versions_only;	/* the versions of composites, no names */
} Place;

static void
stored_type_add_reference(Place *place, char *at, OtObjectRef ref)
{
	OtNames    *names = place->names;

	if (names->count == names->max)
	{
		uint32		room = Max(names->max * 2, 8);

		names->items = names->items ?
			repalloc(names->items, sizeof(OtName) * room) :
			palloc(sizeof(OtName) * room);
		names->max = room;
	}
	names->items[names->count].offset = place->offset + (at - place->start);
	names->items[names->count++].object = ref;
}

/* `any`: a value of this type may name any object of this kind, and is not of it. */
static void
stored_type_add_name(Place *place, char *at, OtObjectKind kind, bool any)
{
	Oid			oid;
	OtObjectRef ref;

	if (place->versions_only)
		return;
	memcpy(&oid, at, sizeof(oid));
	/* A fixed OID has that bit, and a hash does not, so that they differ. */
	if (place->hashes)
		ref = oid < FirstGenbkiObjectId ? OT_OBJECT_FIXED | oid :
			(uint32) ot_object_name_hash(kind, oid) & ~OT_OBJECT_FIXED;
	else
		ref = ot_object_ref(kind, oid);
	if (any && !place->hashes && !(ref & OT_OBJECT_FIXED))
		ot_write_set_note_named(ref);
	if (ref != (OT_OBJECT_FIXED | oid))
		stored_type_add_reference(place, at, ref);
}

static void stored_type_find_names(Place *place, Oid type, char *at);

static void
stored_type_find_in_array(Place *place, ArrayType *array)
{
	Oid			element = ARR_ELEMTYPE(array);
	int			nitems = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	bits8	   *nulls = ARR_NULLBITMAP(array);
	char	   *at = ARR_DATA_PTR(array);
	int16		typlen;
	bool		typbyval;
	char		typalign;

	stored_type_add_name(place, (char *) &array->elemtype, OT_OBJECT_TYPE, false);
	if (!ot_type_contains_names(element))
		return;
	get_typlenbyvalalign(element, &typlen, &typbyval, &typalign);
	for (int i = 0; i < nitems; i++)
	{
		if (nulls && att_isnull(i, nulls))
			continue;
		stored_type_find_names(place, element, at);
		at = att_addlength_pointer(at, typlen, at);
		at = (char *) att_align_nominal(at, typalign);
	}
}

static void
stored_type_find_in_composite(Place *place, HeapTupleHeader row)
{
	TupleDesc	desc = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(row), -1);
	int			natts = Min(HeapTupleHeaderGetNatts(row), desc->natts);
	char	   *data = (char *) row + row->t_hoff;
	uint32		off = 0;

	/* A value from before its type was altered cannot be read: ERROR. */
	OT_CHECK_ROW_VERSION(row, desc);
	stored_type_add_name(place, (char *) &row->t_choice.t_datum.datum_typeid, OT_OBJECT_TYPE, false);
	/* After its type, which the reader needs first. */
	stored_type_add_reference(place, (char *) row + VARHDRSZ, OT_OBJECT_VERSION);
	for (int i = 0; i < natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if ((row->t_infomask & HEAP_HASNULL) && att_isnull(i, row->t_bits))
			continue;
		off = att_align_pointer(off, att->attalign, att->attlen, data + off);
		if (!att->attisdropped && ot_type_contains_names(att->atttypid))
			stored_type_find_names(place, att->atttypid, data + off);
		off = att_addlength_pointer(off, att->attlen, data + off);
	}
	ReleaseTupleDesc(desc);
}

/* The bounds of one range, at most two, one after the other. */
static void
stored_type_find_in_bounds(Place *place, Oid subtype, uint8 flags, char *at)
{
	int16		typlen;
	bool		typbyval;
	char		typalign;

	get_typlenbyvalalign(subtype, &typlen, &typbyval, &typalign);
	if (RANGE_HAS_LBOUND(flags))
	{
		at = (char *) att_align_pointer(at, typalign, typlen, at);
		stored_type_find_names(place, subtype, at);
		at = (char *) att_addlength_pointer(at, typlen, at);
	}
	if (RANGE_HAS_UBOUND(flags))
	{
		at = (char *) att_align_pointer(at, typalign, typlen, at);
		stored_type_find_names(place, subtype, at);
	}
}

static void
stored_type_find_in_range(Place *place, RangeType *range, Oid subtype)
{
	uint8		flags = *((uint8 *) range + VARSIZE(range) - 1);

	stored_type_add_name(place, (char *) &range->rangetypid, OT_OBJECT_TYPE, false);
	if (OidIsValid(subtype))
		stored_type_find_in_bounds(place, subtype, flags, (char *) (range + 1));
}

/* This layout is private to PostgreSQL's multirangetypes.c. */
static void
stored_type_find_in_multirange(Place *place, MultirangeType *multirange, Oid subtype)
{
	uint32		nranges = multirange->rangeCount;
	uint32	   *items = (uint32 *) (multirange + 1);
	uint8	   *flags;
	char	   *bounds;
	uint32		offset = 0;
	int16		typlen;
	bool		typbyval;
	char		typalign;

	stored_type_add_name(place, (char *) &multirange->multirangetypid, OT_OBJECT_TYPE, false);
	if (!OidIsValid(subtype) || nranges == 0)
		return;
	get_typlenbyvalalign(subtype, &typlen, &typbyval, &typalign);
	flags = (uint8 *) (items + nranges - 1);
	bounds = (char *) multirange +
		att_align_nominal((char *) (flags + nranges) - (char *) multirange, typalign);
	for (uint32 i = 0; i < nranges; i++)
	{
		if (i > 0)
		{
			uint32		item = items[i - 1];

			/* Every fourth item is an offset, the others are lengths. */
			offset = (item & 0x80000000) ? (item & 0x7fffffff) : offset + item;
		}
		stored_type_find_in_bounds(place, subtype, flags[i], bounds + offset);
	}
}

/* `at` is the value itself, not a Datum; a varlena in any in-line form. */
static void
stored_type_find_names(Place *place, Oid type, char *at)
{
	StoredType	stored = stored_type_describe_known(type);
	struct varlena *value;
	Place		inside = *place;

	check_stack_depth();
	switch (stored.layout)
	{
		case LAYOUT_PLAIN:
			return;
		case LAYOUT_REFUSED:
			/* its OIDs cannot be found; it is compared as it is */
			if (place->hashes || place->versions_only)
				return;
			ereport(ERROR,
					(errcode(OT_ERR_NOT_REPLICATED),
					 errmsg("cannot replicate a value of type %s", format_type_be(type)),
					 errdetail("Its stored form means something on this server only."),
					 errhint("Keep its text in a column of type text.")));
			break;
		case LAYOUT_OBJECT:
			stored_type_add_name(place, at, stored.object, stored.object != OT_OBJECT_ENUM_LABEL);
			return;
		case LAYOUT_ACLITEM:
			/* 0 is PUBLIC */
			stored_type_add_name(place, at + offsetof(AclItem, ai_grantee), OT_OBJECT_ROLE, true);
			stored_type_add_name(place, at + offsetof(AclItem, ai_grantor), OT_OBJECT_ROLE, true);
			return;
		default:
			break;
	}

	value = (struct varlena *) at;
	if (VARATT_IS_COMPRESSED(value))
	{
		place->compressed = true;
		return;
	}
	/* An aligned copy, with a header of four bytes. */
	inside.start = palloc(VARHDRSZ + VARSIZE_ANY_EXHDR(value));
	SET_VARSIZE(inside.start, VARHDRSZ + VARSIZE_ANY_EXHDR(value));
	memcpy(VARDATA(inside.start), VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value));
	/* The header may be shorter in the bytes that are sent. */
	inside.offset = place->offset + (VARDATA_ANY(value) - place->start) - VARHDRSZ;
	inside.compressed = false;

	switch (stored.layout)
	{
		case LAYOUT_ARRAY:
			stored_type_find_in_array(&inside, (ArrayType *) inside.start);
			break;
		case LAYOUT_COMPOSITE:
			stored_type_find_in_composite(&inside, (HeapTupleHeader) inside.start);
			break;
		case LAYOUT_RANGE:
			stored_type_find_in_range(&inside, (RangeType *) inside.start, stored.inner);
			break;
		case LAYOUT_MULTIRANGE:
			stored_type_find_in_multirange(&inside, (MultirangeType *) inside.start, stored.inner);
			break;
		default:
			break;
	}
	pfree(inside.start);
	place->compressed |= inside.compressed;
}

/*
 * Adds the OIDs in a value to `names`.  `value` points at its bytes: a varlena
 * in line and not compressed, or a value of fixed length, even if its type is
 * passed by value.  `offset` is the offset of these bytes among those that will
 * be sent.
 *
 * Returns false if there is a compressed value inside it, in which OIDs cannot
 * be found: then call ot_type_decompress() first.  Introduces objects in the
 * write set, so no operation may be half written.
 */
bool
ot_type_find_names(Oid type, char *value, uint32 offset, OtNames *names)
{
	Place		place = {.start = value, .offset = offset, .names = names};

	stored_type_find_names(&place, type, value);
	return !place.compressed;
}

/* `at` is behind the length word of the composite's header. */
static void
stored_type_remove_version(char *at)
{
	char	   *row = at - VARHDRSZ;
	uint16		infomask;

	memset(at, 0, sizeof(int32));
	memset(row + offsetof(HeapTupleHeaderData, t_ctid), 0, sizeof(ItemPointerData));
	/* which of these bits are set differs between minor releases */
	if (ot_format_level < 1)
		return;
	memcpy(&infomask, row + offsetof(HeapTupleHeaderData, t_infomask), sizeof(infomask));
	infomask &= ~HEAP_XACT_MASK;
	memcpy(row + offsetof(HeapTupleHeaderData, t_infomask), &infomask, sizeof(infomask));
}

/*
 * Replaces each OID in a value's bytes by a hash of the object's name, and
 * removes the versions of composites, so that the bytes are the same in every
 * region.  The bytes must be the caller's own.  Returns false as
 * ot_type_find_names() does; then nothing has changed.
 */
bool
ot_type_name_hashes(Oid type, char *value, Size len)
{
	OtNames		names = {0};
	Place		place = {.start = value, .names = &names, .hashes = true};

	stored_type_find_names(&place, type, value);
	if (place.compressed)
		return false;
	for (uint32 i = 0; i < names.count; i++)
	{
		char	   *at = value + names.items[i].offset;

		Assert(names.items[i].offset + sizeof(uint32) <= len);
		if (names.items[i].object == OT_OBJECT_VERSION)
			stored_type_remove_version(at);
		else
			memcpy(at, &names.items[i].object, sizeof(uint32));
	}
	return true;
}

/*
 * Removes the versions of composites from a value's bytes, so that equal values
 * of this server are the same bytes.  The bytes must be the caller's own, and
 * nothing in them compressed.
 */
void
ot_type_remove_versions(Oid type, char *value)
{
	OtNames		names = {0};
	Place		place = {.start = value, .names = &names, .versions_only = true};

	stored_type_find_names(&place, type, value);
	for (uint32 i = 0; i < names.count; i++)
		stored_type_remove_version(value + names.items[i].offset);
}

/* ---- sizes elsewhere ---- */

static void
stored_type_scramble_bytes(char *at, uint32 seed)
{
	uint32		word;

	memcpy(&word, at, sizeof(word));
	word = hash_bytes_uint32(word ^ seed);
	memcpy(at, &word, sizeof(word));
}

/*
 * How many bytes a value that is compressed in line here may need with the OIDs
 * of another server.  An estimate on the safe side: the size with OIDs that are
 * replaced by hashes of them, which have fewer bytes in common than the OIDs of
 * any server, plus SIZE_SLACK.  Introduces objects in the write set.
 */
Size
ot_type_size_elsewhere(Oid type, Datum compressed)
{
	char		method = toast_get_compression_id((struct varlena *) DatumGetPointer(compressed)) ==
		TOAST_LZ4_COMPRESSION_ID ? TOAST_LZ4_COMPRESSION : TOAST_PGLZ_COMPRESSION;
	struct varlena *value = PG_DETOAST_DATUM(compressed);
	OtNames		names = {0};
	Datum		elsewhere;
	Size		size;

	if (!ot_type_find_names(type, (char *) value, (uint32) -VARHDRSZ, &names))
		return VARSIZE(value);
	for (uint32 i = 0; i < names.count; i++)
	{
		char	   *at = VARDATA(value) + names.items[i].offset;

		stored_type_scramble_bytes(at, 0);
		/* the other half of a version comes after the type's OID */
		if (names.items[i].object == OT_OBJECT_VERSION)
			stored_type_scramble_bytes(at + 2 * sizeof(Oid), 1);
	}
	elsewhere = toast_compress_datum(PointerGetDatum(value), method);
	if (DatumGetPointer(elsewhere) == NULL)
		return VARSIZE(value);
	size = VARSIZE(DatumGetPointer(elsewhere)) + SIZE_SLACK;
	/* pglz does not compress if that saves less than a quarter. */
	if (size > VARSIZE(value) / 4 * 3)
		return VARSIZE(value);
	return size;
}

/* ---- compressed values inside a value ---- */

static Datum
stored_type_decompress_array(Oid type, ArrayType *array)
{
	Oid			element = ARR_ELEMTYPE(array);
	int16		typlen;
	bool		typbyval;
	char		typalign;
	Datum	   *values;
	bool	   *nulls;
	int			nitems;

	if (!ot_type_contains_names(element))
		return PointerGetDatum(array);
	get_typlenbyvalalign(element, &typlen, &typbyval, &typalign);
	deconstruct_array(array, element, typlen, typbyval, typalign, &values, &nulls, &nitems);
	for (int i = 0; i < nitems; i++)
	{
		if (!nulls[i])
			values[i] = ot_type_decompress(element, values[i]);
	}
	return PointerGetDatum(construct_md_array(values, nulls, ARR_NDIM(array), ARR_DIMS(array),
											  ARR_LBOUND(array), element, typlen, typbyval,
											  typalign));
}

static Datum
stored_type_decompress_composite(HeapTupleHeader row)
{
	Oid			type = HeapTupleHeaderGetTypeId(row);
	TupleDesc	cached = lookup_rowtype_tupdesc(type, -1);
	/* A row from before a column was added stays without it. */
	TupleDesc	desc = OT_FIRST_ATTRIBUTES(cached, Min(HeapTupleHeaderGetNatts(row), cached->natts));
	Datum	   *values = palloc(sizeof(Datum) * cached->natts);
	bool	   *nulls = palloc(sizeof(bool) * cached->natts);
	HeapTupleData tuple = {
		.t_len = HeapTupleHeaderGetDatumLength(row), .t_tableOid = InvalidOid, .t_data = row
	};
	HeapTuple	whole;

	ItemPointerSetInvalid(&tuple.t_self);
	heap_deform_tuple(&tuple, cached, values, nulls);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		/*
		 * Nobody can read it, and it may contain OIDs of the server that stored it.
		 * Keys of rows depend on this, so all releases have to do the same.
		 */
		if (att->attisdropped && ot_format_level >= 1)
			nulls[i] = true;
		if (!nulls[i] && !att->attisdropped && ot_type_contains_names(att->atttypid))
			values[i] = ot_type_decompress(att->atttypid, values[i]);
	}
	/* A copy of a descriptor lacks the versions of its columns, so it can make no row of the type. */
	desc->tdtypeid = RECORDOID;
	desc->tdtypmod = -1;
	whole = heap_form_tuple(desc, values, nulls);
	HeapTupleHeaderSetTypeId(whole->t_data, type);
	OT_SET_ROW_VERSION(whole->t_data, cached);
	ReleaseTupleDesc(cached);
	return HeapTupleGetDatum(whole);
}

static void
stored_type_decompress_bound(Oid subtype, RangeBound *bound)
{
	if (!bound->infinite)
		bound->val = ot_type_decompress(subtype, bound->val);
}

static RangeType *
stored_type_decompress_range(TypeCacheEntry *cache, RangeType *range, Oid subtype)
{
	RangeBound	lower;
	RangeBound	upper;
	bool		empty;

	range_deserialize(cache, range, &lower, &upper, &empty);
	if (empty)
		return range;
	stored_type_decompress_bound(subtype, &lower);
	stored_type_decompress_bound(subtype, &upper);
	return OT_RANGE_SERIALIZE(cache, &lower, &upper, empty);
}

/* The same value, in which nothing that may contain OIDs is compressed. */
Datum
ot_type_decompress(Oid type, Datum value)
{
	StoredType	stored = stored_type_describe_known(type);
	struct varlena *flat;

	check_stack_depth();
	switch (stored.layout)
	{
		case LAYOUT_ARRAY:
		case LAYOUT_COMPOSITE:
		case LAYOUT_RANGE:
		case LAYOUT_MULTIRANGE:
			break;
		default:
			return value;
	}

	flat = PG_DETOAST_DATUM(value);
	if (stored.layout == LAYOUT_ARRAY)
		return stored_type_decompress_array(type, (ArrayType *) flat);
	if (stored.layout == LAYOUT_COMPOSITE)
		return stored_type_decompress_composite((HeapTupleHeader) flat);
	if (!OidIsValid(stored.inner))
		return PointerGetDatum(flat);
	if (stored.layout == LAYOUT_RANGE)
		return PointerGetDatum(stored_type_decompress_range(lookup_type_cache(getBaseType(type), TYPECACHE_RANGE_INFO),
															(RangeType *) flat, stored.inner));
	else
	{
		TypeCacheEntry *cache = lookup_type_cache(getBaseType(type), TYPECACHE_MULTIRANGE_INFO);
		int32		nranges;
		RangeType **ranges;

		multirange_deserialize(cache->rngtype, (MultirangeType *) flat, &nranges, &ranges);
		for (int i = 0; i < nranges; i++)
			ranges[i] = stored_type_decompress_range(cache->rngtype, ranges[i], stored.inner);
		return PointerGetDatum(make_multirange(getBaseType(type), cache->rngtype, nranges, ranges));
	}
}
