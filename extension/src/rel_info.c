/*-------------------------------------------------------------------------
 *
 * rel_info.c
 *	  The cache of what capture and apply need to know of a table.
 *
 * An entry is built from the relation cache on first use and thrown away when
 * the relation changes.  Names, not OIDs, go into hashes, since OIDs differ
 * between nodes; whoever renames holds the old and the new key.
 *
 * Values of built-in types travel in their binary form.  Types with OIDs
 * above the built-in range travel as text, and so do the reg* types: their
 * binary forms hold OIDs of this node.
 *
 * A unique index hashes each value with the extended hash function that goes
 * with the index's equality.  Where there is none that gives the same result
 * on every node, the index is coarse: any two changes of it collide, which is
 * slow and never wrong.
 *
 * Runs in backends and in the apply worker.  Entries live in a context each,
 * below CacheMemoryContext.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "rel_info.h"

#include "access/genam.h"
#include "access/hash.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "port/pg_bswap.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

static HTAB *infos = NULL;

static void
invalidate(Datum arg, Oid relid)
{
	if (OidIsValid(relid))
	{
		OtRelInfo  *info = hash_search(infos, &relid, HASH_FIND, NULL);

		if (info)
			info->valid = false;
	}
	else
	{
		HASH_SEQ_STATUS status;
		OtRelInfo  *info;

		hash_seq_init(&status, infos);
		while ((info = hash_seq_search(&status)) != NULL)
			info->valid = false;
	}
}

/*
 * A table's hash holds its schema's name, a column's way of travelling its
 * type's: either may change without a message for the relation.
 */
static void
invalidate_all(Datum arg, int cacheid, uint32 hashvalue)
{
	invalidate((Datum) 0, InvalidOid);
}

static void
init_cache(void)
{
	HASHCTL		ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(OtRelInfo)};

	ctl.hcxt = CacheMemoryContext;
	infos = hash_create("onetrip tables", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	CacheRegisterRelcacheCallback(invalidate, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, invalidate_all, (Datum) 0);
	CacheRegisterSyscacheCallback(TYPEOID, invalidate_all, (Datum) 0);
}

/* ---- columns ---- */

static bool
is_builtin(Oid type)
{
	return type < FirstGenbkiObjectId;
}

/* Types whose values are OIDs of objects, which differ between nodes. */
static bool
holds_oids(Oid type)
{
	switch (type)
	{
		case REGPROCOID:
		case REGPROCEDUREOID:
		case REGOPEROID:
		case REGOPERATOROID:
		case REGCLASSOID:
		case REGTYPEOID:
		case REGROLEOID:
		case REGNAMESPACEOID:
		case REGCONFIGOID:
		case REGDICTIONARYOID:
		case REGCOLLATIONOID:
			return true;
		default:
			return false;
	}
}

/* Types of the system's own that no input or receive function takes. */
static bool
is_output_only(Oid type)
{
	switch (type)
	{
		case PG_NODE_TREEOID:
		case PG_NDISTINCTOID:
		case PG_DEPENDENCIESOID:
		case PG_MCV_LISTOID:
		case PG_BRIN_BLOOM_SUMMARYOID:
		case PG_BRIN_MINMAX_MULTI_SUMMARYOID:
		case GTSVECTOROID:
			return true;
		default:
			return false;
	}
}

/* A binary form that means the same on every node; aclitem has none at all. */
static bool
has_binary_form(Oid type)
{
	HeapTuple	tuple;
	Form_pg_type form;
	bool		answer;

	if (holds_oids(type))
		return false;
	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for type %u", type);
	form = (Form_pg_type) GETSTRUCT(tuple);
	answer = OidIsValid(form->typsend) && OidIsValid(form->typreceive);
	ReleaseSysCache(tuple);
	return answer;
}

/* May the input function of this type come to the CHECK of a domain? */
static bool
may_hold_domain(Oid type, Oid element)
{
	switch (get_typtype(OidIsValid(element) ? element : type))
	{
		case TYPTYPE_DOMAIN:
		case TYPTYPE_COMPOSITE:
		case TYPTYPE_RANGE:
		case TYPTYPE_MULTIRANGE:
			return true;
		default:
			return false;
	}
}

static OtTextForm
text_form(Oid type)
{
	switch (type)
	{
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case NAMEOID:
		case JSONOID:
		case XMLOID:
		case REFCURSOROID:
			return OT_TEXT_WHOLE;
		case JSONBOID:
		case JSONPATHOID:
			return OT_TEXT_BEHIND_VERSION;
		default:
			return OT_TEXT_NONE;
	}
}

static void
describe_column(OtColumn *column, Form_pg_attribute att)
{
	Oid			function;
	Oid			element;
	bool		is_varlena;
	int32		typmod = att->atttypmod;

	memset(column, 0, sizeof(*column));
	column->dropped = att->attisdropped;
	if (column->dropped)
		return;

	column->type = getBaseTypeAndTypmod(att->atttypid, &typmod);
	column->typmod = typmod;
	column->is_varlena = (att->attlen == -1);

	element = get_element_type(column->type);
	column->element = element;
	column->names_objects = holds_oids(column->type) ||
		(OidIsValid(element) && holds_oids(element));
	column->output_only = is_output_only(OidIsValid(element) ? element : column->type);
	column->binary = is_builtin(column->type) && has_binary_form(column->type) &&
		(!OidIsValid(element) || has_binary_form(element));
	column->text = text_form(OidIsValid(element) ? element : column->type);
	if (OidIsValid(element) && column->text != OT_TEXT_NONE)
		column->text = column->text == OT_TEXT_WHOLE ? OT_TEXT_ARRAY : OT_TEXT_NONE;
	if (column->binary)
		getTypeBinaryOutputInfo(column->type, &function, &is_varlena);
	else
		getTypeOutputInfo(column->type, &function, &is_varlena);
	fmgr_info_cxt(function, &column->out, CurrentMemoryContext);
}

/*
 * Text forms must not hang on this session's settings.  Returns with a new
 * nest level of settings, to be ended by ot_rel_info_plain_text_end().
 */
void
ot_rel_info_plain_text_begin(int *nest_level)
{
	*nest_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("datestyle", "ISO", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("intervalstyle", "postgres", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("extra_float_digits", "3", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("bytea_output", "hex", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

void
ot_rel_info_plain_text_end(int nest_level)
{
	AtEOXact_GUC(true, nest_level);
}

/* Values of these types are names to others; a temporary object has none. */
static void
refuse_temporary(Oid type, Oid object)
{
	ObjectAddress address = {InvalidOid, object, 0};
	int			cache;

	switch (type)
	{
		case REGCLASSOID:
			address.classId = RelationRelationId;
			cache = RELOID;
			break;
		case REGTYPEOID:
			address.classId = TypeRelationId;
			cache = TYPEOID;
			break;
		case REGPROCOID:
		case REGPROCEDUREOID:
			address.classId = ProcedureRelationId;
			cache = PROCOID;
			break;
		default:
			return;
	}
	if (SearchSysCacheExists1(cache, ObjectIdGetDatum(object)) &&
		isAnyTempNamespace(get_object_namespace(&address)))
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot replicate a value of type %s that stands for a temporary object",
						format_type_be(type)),
				 errhint("Keep its name in a column of type text.")));
}

static void
refuse_temporaries(OtColumn *column, Datum value)
{
	Datum	   *elements;
	bool	   *nulls;
	int			nelements;

	if (holds_oids(column->type))
	{
		refuse_temporary(column->type, DatumGetObjectId(value));
		return;
	}
	deconstruct_array(DatumGetArrayTypeP(value), column->element, sizeof(Oid), true,
					  TYPALIGN_INT, &elements, &nulls, &nelements);
	for (int i = 0; i < nelements; i++)
	{
		if (!nulls[i])
			refuse_temporary(column->element, DatumGetObjectId(elements[i]));
	}
}

/*
 * Text that is not valid in the database's encoding (a cast without function
 * makes such) can be stored here, but no other region could read it.
 */
static void
check_text(OtColumn *column, const char *bytes, uint32 len)
{
	OtReader	r = {.at = bytes, .end = bytes + len};

	switch (column->text)
	{
		case OT_TEXT_NONE:
			break;
		case OT_TEXT_BEHIND_VERSION:
			(void) ot_get_u8(&r);
			/* FALLTHROUGH */
		case OT_TEXT_WHOLE:
			(void) pg_verify_mbstr(GetDatabaseEncoding(), r.at, r.end - r.at, false);
			break;
		case OT_TEXT_ARRAY:
			{
				/* array_send: dimensions, flags, element type, two numbers each; then length and bytes */
				uint32		ndim = pg_bswap32(ot_get_u32(&r));

				(void) ot_get_bytes(&r, 8 + 8 * ndim);
				while (r.at < r.end)
				{
					uint32		n = pg_bswap32(ot_get_u32(&r));

					if (n != PG_UINT32_MAX) /* -1: null */
						(void) pg_verify_mbstr(GetDatabaseEncoding(), ot_get_bytes(&r, n), n, false);
				}
				break;
			}
	}
}

/* Appends one value of a row or key. */
void
ot_column_put(StringInfo buf, OtColumn *column, Datum value, bool isnull)
{
	if (isnull)
		ot_put_u8(buf, 'n');
	else if (column->output_only)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot replicate a value of type %s", format_type_be(column->type)),
				 errdetail("The type has no input function."),
				 errhint("Keep its text in a column of type text.")));
	else if (column->binary)
	{
		bytea	   *bytes = SendFunctionCall(&column->out, value);

		check_text(column, VARDATA(bytes), VARSIZE(bytes) - VARHDRSZ);
		ot_put_u8(buf, 'b');
		ot_put_u32(buf, VARSIZE(bytes) - VARHDRSZ);
		appendBinaryStringInfo(buf, VARDATA(bytes), VARSIZE(bytes) - VARHDRSZ);
		pfree(bytes);
	}
	else
	{
		char	   *text;
		uint32		len;

		if (column->names_objects)
			refuse_temporaries(column, value);
		text = OutputFunctionCall(&column->out, value);
		len = strlen(text);

		ot_put_u8(buf, 't');
		ot_put_u32(buf, len);
		appendBinaryStringInfo(buf, text, len);
		pfree(text);
	}
}

/* ---- unique indexes ---- */

/* Finds how to hash a column of an index; false: the index is coarse. */
static bool
describe_hash(OtIndex *index, int i, Relation index_rel)
{
	Oid			opfamily = index_rel->rd_opfamily[i];
	Oid			type = index_rel->rd_opcintype[i];
	Oid			column = getBaseType(TupleDescAttr(RelationGetDescr(index_rel), i)->atttypid);
	Oid			equality;
	TypeCacheEntry *cache;

	if (IsPolymorphicType(type) || type == RECORDOID)
		type = column;

	index->collations[i] = index_rel->rd_indcollation[i];
	if (type_is_enum(type))
	{
		Oid			output;
		bool		is_varlena;

		getTypeOutputInfo(type, &output, &is_varlena);
		fmgr_info_cxt(output, &index->hash_functions[i], CurrentMemoryContext);
		index->hash_kinds[i] = OT_HASH_LABEL;
		return true;
	}

	/*
	 * Composite values, ranges and arrays may hold OIDs further down.  The
	 * reg* types are indexed as plain oid, so ask for the column's own type.
	 */
	if (holds_oids(column) || holds_oids(type) ||
		(!is_builtin(type) && get_typtype(type) != TYPTYPE_BASE))
		return false;
	{
		Oid			element = get_element_type(type);

		if (OidIsValid(element) &&
			(holds_oids(element) ||
			 (!is_builtin(element) && get_typtype(element) != TYPTYPE_BASE)))
			return false;
	}

	/* Values that the index takes for equal must hash alike. */
	if (index_rel->rd_rel->relam == HASH_AM_OID)
		return false;
	equality = get_opfamily_member(opfamily, index_rel->rd_opcintype[i],
								   index_rel->rd_opcintype[i], BTEqualStrategyNumber);
	cache = lookup_type_cache(type, TYPECACHE_EQ_OPR | TYPECACHE_HASH_EXTENDED_PROC_FINFO);
	if (!OidIsValid(cache->hash_extended_proc) ||
		!OidIsValid(equality) || cache->eq_opr != equality)
		return false;
	fmgr_info_copy(&index->hash_functions[i], &cache->hash_extended_proc_finfo,
				   CurrentMemoryContext);
	index->hash_kinds[i] = OT_HASH_FUNCTION;
	return true;
}

static void
describe_index(OtIndex *index, OtRelInfo *info, Relation index_rel)
{
	Form_pg_index form = index_rel->rd_index;
	const char *name = RelationGetRelationName(index_rel);

	memset(index, 0, sizeof(*index));
	index->oid = RelationGetRelid(index_rel);
	index->hash = hash_bytes_extended((const unsigned char *) name, strlen(name),
									  info->table.value);
	index->exclusion = form->indisexclusion;
	index->coarse = form->indisexclusion;
	index->nulls_equal = form->indnullsnotdistinct;
	index->nkeys = form->indnkeyatts;
	for (int i = 0; i < index->nkeys; i++)
		index->attnums[i] = form->indkey.values[i];

	index->computed = RelationGetIndexExpressions(index_rel) != NIL ||
		RelationGetIndexPredicate(index_rel) != NIL;
	if (index->computed)
		index->info = BuildIndexInfo(index_rel);
	for (int i = 0; i < index->nkeys && !index->coarse; i++)
		index->coarse = !describe_hash(index, i, index_rel);
}

/* ---- entries ---- */

static void
build(OtRelInfo *info, Relation rel)
{
	MemoryContext old;
	List	   *index_oids;
	Oid			identity;
	ListCell   *lc;

	if (info->context)
		MemoryContextDelete(info->context);
	info->context = NULL;
	/* While building, an invalidation must still be able to reach the entry. */
	info->valid = true;
	info->context = AllocSetContextCreate(CacheMemoryContext, "onetrip table",
										  ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(info->context);

	info->table = ot_hash_table(get_namespace_name(RelationGetNamespace(rel)),
								RelationGetRelationName(rel));

	identity = RelationGetReplicaIndex(rel);
	if (!OidIsValid(identity))
		identity = RelationGetPrimaryKeyIndex(rel);
	info->identity = -1;
	info->nindexes = 0;
	info->runs_functions = false;
	index_oids = RelationGetIndexList(rel);
	info->indexes = palloc(sizeof(OtIndex) * Max(list_length(index_oids), 1));
	foreach(lc, index_oids)
	{
		Relation	index_rel = index_open(lfirst_oid(lc), AccessShareLock);

		if (RelationGetIndexExpressions(index_rel) != NIL ||
			RelationGetIndexPredicate(index_rel) != NIL)
			info->runs_functions = true;
		if (index_rel->rd_index->indisunique || index_rel->rd_index->indisexclusion)
		{
			if (lfirst_oid(lc) == identity)
				info->identity = info->nindexes;
			describe_index(&info->indexes[info->nindexes++], info, index_rel);
		}
		index_close(index_rel, AccessShareLock);
	}

	info->natts = RelationGetNumberOfAttributes(rel);
	info->columns = palloc(sizeof(OtColumn) * Max(info->natts, 1));
	info->all_binary = true;
	for (int i = 0; i < info->natts; i++)
	{
		describe_column(&info->columns[i], TupleDescAttr(RelationGetDescr(rel), i));
		if (info->columns[i].dropped || info->columns[i].binary)
			continue;
		info->all_binary = false;
		if (may_hold_domain(info->columns[i].type, info->columns[i].element))
			info->runs_functions = true;
	}
	MemoryContextSwitchTo(old);
}

/* Valid until the next look-up; the relation must be open and locked. */
OtRelInfo *
ot_rel_info(Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	OtRelInfo  *info;
	bool		found;

	if (infos == NULL)
		init_cache();
	info = hash_search(infos, &relid, HASH_ENTER, &found);
	if (!found)
	{
		info->valid = false;
		info->context = NULL;
	}
	if (!info->valid)
	{
		/* An error half way leaves an entry that is built again. */
		PG_TRY();
		{
			build(info, rel);
		}
		PG_CATCH();
		{
			info->valid = false;
			PG_RE_THROW();
		}
		PG_END_TRY();
	}
	return info;
}
