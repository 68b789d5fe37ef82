/*-------------------------------------------------------------------------
 *
 * catalog_digest.c
 *	  What the transaction has changed in the system catalogs, as a digest that is
 *	  the same in every region if the change is.
 *
 * The rows that it has written and those that it has removed are found by their
 * xmin and xmax, whatever has written them, and are printed with names in the
 * place of OIDs.  An object's row that was removed and written again as it was counts
 * as nothing, since a table that is rewritten here need not be elsewhere; so what is
 * done to a table's rows alone does not show.  Nor does what refers to large objects,
 * which travel with the rows.
 *
 * What is left out is what onetrip check does not compare either
 * (docs/census/catalogs.tsv), what differs between regions on purpose, temporary
 * objects, and TOAST tables, which are made anew where a table is rewritten.
 *
 * Stored expressions are printed by the server, with the schemas of all names.  Of a
 * row that was removed they cannot be, as what they refer to may be gone: there the
 * numbers, OIDs among them, are left out.
 *
 * It reads all catalogs, but for pages that are all-visible: what a transaction in
 * progress has written, or removed, is in none of these.
 *
 * Runs in backends.  Raises ERROR.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include <ctype.h>

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/visibilitymap.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_database.h"
#include "catalog/pg_index.h"
#include "catalog/pg_largeobject.h"
#include "catalog/pg_largeobject_metadata.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_partitioned_table.h"
#include "catalog/pg_policy.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_publication_rel.h"
#include "catalog/pg_replication_origin.h"
#include "catalog/pg_rewrite.h"
#include "catalog/pg_sequence.h"
#include "catalog/pg_statistic.h"
#include "catalog/pg_statistic_ext.h"
#include "catalog/pg_statistic_ext_data.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "catalog/system_fk_info.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "capture/capture.h"

/*
 * How much of its columns' names is kept at least in the name that PostgreSQL makes
 * up for an index: of 63 bytes, the name of the table gets half of what "__idx" and
 * a number leave.
 */
#define NAME_BYTES_KEPT 24

/* What is left out: a column, or the whole catalog. */
static const struct
{
	Oid			catalog;
	const char *column;			/* NULL: all */
}			left_out[] =
{
	{AttributeRelationId, "attcacheoff"},
	{AttributeRelationId, "atthasmissing"},
	{AttributeRelationId, "attmissingval"},
	{RelationRelationId, "relallfrozen"},
	{RelationRelationId, "relallvisible"},
	{RelationRelationId, "relfilenode"},
	{RelationRelationId, "relfrozenxid"},
	/* rows that follow the statement set it */
	{RelationRelationId, "relispopulated"},
	{RelationRelationId, "relhasindex"},
	{RelationRelationId, "relhasrules"},
	{RelationRelationId, "relhassubclass"},
	{RelationRelationId, "relhastriggers"},
	{RelationRelationId, "relminmxid"},
	{RelationRelationId, "relpages"},
	{RelationRelationId, "reltoastrelid"},
	{RelationRelationId, "reltuples"},
	{CollationRelationId, "collversion"},
	{DatabaseRelationId, "datcollversion"},
	{DatabaseRelationId, "datfrozenxid"},
	{DatabaseRelationId, "datminmxid"},
	{IndexRelationId, "indcheckxmin"},
	{IndexRelationId, "indisclustered"},
	{LargeObjectRelationId, NULL},
	{LargeObjectMetadataRelationId, NULL},
	{ReplicationOriginRelationId, NULL},
	/* each region counts from a start of its own, unless dense; the owner's words are in reloptions */
	{SequenceRelationId, "seqstart"},
	{SequenceRelationId, "seqmin"},
	{SequenceRelationId, "seqmax"},
	{StatisticRelationId, NULL},
	{StatisticExtDataRelationId, NULL},
	{SubscriptionRelationId, NULL},
	{SubscriptionRelRelationId, NULL},
};

typedef enum ColumnKind
{
	COLUMN_LEFT_OUT,
	COLUMN_TEXT,
	COLUMN_TREE,				/* a stored expression */
	COLUMN_TRIGGER,				/* ... of a trigger, or a rule, which are printed as a whole */
	COLUMN_RULE,
	COLUMN_FUNCTION,			/* ... of a function, which is not printed */
	COLUMN_TRIGGER_NAME,
	COLUMN_OPTIONS,				/* of a column of a table */
	COLUMN_REFERENCE,			/* the OID of a row of another catalog */
	COLUMN_REFERENCES,			/* several */
	COLUMN_OBJECT				/* the OID of an object, whose catalog another column names */
} ColumnKind;

typedef struct Column
{
	ColumnKind	kind;
	Oid			catalog;		/* that it refers to */
	AttrNumber	class_column;	/* or the column that names it */
	AttrNumber	relid_column;	/* of an expression's table; InvalidAttrNumber: it has none */
	FmgrInfo	output;
} Column;

/* The column in which the table of a catalog's expressions is. */
static const struct
{
	Oid			catalog;
	AttrNumber	column;
}			tables[] =
{
	{AttrDefaultRelationId, Anum_pg_attrdef_adrelid},
	{RelationRelationId, Anum_pg_class_oid},
	{ConstraintRelationId, Anum_pg_constraint_conrelid},
	{IndexRelationId, Anum_pg_index_indrelid},
	{PartitionedRelationId, Anum_pg_partitioned_table_partrelid},
	{PolicyRelationId, Anum_pg_policy_polrelid},
	{PublicationRelRelationId, Anum_pg_publication_rel_prrelid},
	{StatisticExtRelationId, Anum_pg_statistic_ext_stxrelid},
};

typedef struct Row
{
	StringInfoData text;
	bool		of_nothing;		/* it refers to what is gone, or to a TOAST table */
	bool		of_temporary;	/* it refers to something in a temporary schema */
	bool		of_large_object;	/* ... or to a large object */
} Row;

/* What the transaction has made of one object's row. */
typedef struct Object
{
	Oid			oid;			/* hash key */
	HeapTuple	removed;		/* NULL: it is new */
	HeapTuple	written;		/* NULL: it is gone */
} Object;

/* ---- columns ---- */

static bool
catalog_digest_leaves_out(Oid catalog, const char *column)
{
	if (catalog == SequenceRelationId && ot_sequence_stride == 1)
		return false;
	for (int i = 0; i < lengthof(left_out); i++)
	{
		if (left_out[i].catalog == catalog &&
			(left_out[i].column == NULL || (column != NULL && strcmp(left_out[i].column, column) == 0)))
			return true;
	}
	return false;
}

/* The column refers to one row by its OID, or is an array of such. */
static const SysFKRelationship *
catalog_digest_reference(Oid catalog, const char *column)
{
	size_t		len = strlen(column);

	for (int i = 0; i < lengthof(sys_fk_relationships); i++)
	{
		const SysFKRelationship *fk = &sys_fk_relationships[i];

		if (fk->fk_table == catalog && strcmp(fk->pk_columns, "{oid}") == 0 &&
			strncmp(fk->fk_columns + 1, column, len) == 0 && strcmp(fk->fk_columns + 1 + len, "}") == 0)
			return fk;
	}
	return NULL;
}

/* objid belongs to classid, objoid to classoid, and refobjid to refclassid. */
static AttrNumber
catalog_digest_class_column(Relation catalog, const char *column)
{
	const char *obj = strstr(column, "obj");
	char	   *class;

	if (obj == NULL)
		return InvalidAttrNumber;
	class = psprintf("%.*sclass%s", (int) (obj - column), column, obj + strlen("obj"));
	return get_attnum(RelationGetRelid(catalog), class);
}

static void
catalog_digest_describe_tree(Oid catalog, Column *column)
{
	column->kind = catalog == TriggerRelationId ? COLUMN_TRIGGER :
		catalog == RewriteRelationId ? COLUMN_RULE :
		catalog == ProcedureRelationId ? COLUMN_FUNCTION : COLUMN_TREE;
	for (int i = 0; i < lengthof(tables); i++)
	{
		if (tables[i].catalog == catalog)
			column->relid_column = tables[i].column;
	}
}

static void
catalog_digest_describe(Relation catalog, Form_pg_attribute attr, Column *column)
{
	const char *name = NameStr(attr->attname);
	const SysFKRelationship *fk = catalog_digest_reference(RelationGetRelid(catalog), name);
	Oid			output;
	bool		varlena;

	memset(column, 0, sizeof(*column));
	if (attr->attisdropped || strcmp(name, "oid") == 0 ||
		catalog_digest_leaves_out(RelationGetRelid(catalog), name))
		return;
	if (fk != NULL)
	{
		column->kind = fk->is_array ? COLUMN_REFERENCES : COLUMN_REFERENCE;
		column->catalog = fk->pk_table;
		return;
	}
	if (attr->atttypid == OIDOID &&
		(column->class_column = catalog_digest_class_column(catalog, name)) != InvalidAttrNumber)
	{
		column->kind = COLUMN_OBJECT;
		return;
	}
	if (strcmp(name, "attoptions") == 0)
	{
		column->kind = COLUMN_OPTIONS;
		return;
	}
	if (strcmp(name, "tgname") == 0)
	{
		column->kind = COLUMN_TRIGGER_NAME;
		return;
	}
	column->kind = COLUMN_TEXT;
	if (attr->atttypid == PG_NODE_TREEOID)
		catalog_digest_describe_tree(RelationGetRelid(catalog), column);
	getTypeOutputInfo(attr->atttypid, &output, &varlena);
	fmgr_info(output, &column->output);
}

/* ---- values ---- */

/* Is it in a temporary schema, or part of what is, or a function that depends on that? */
static bool
catalog_digest_is_temporary(ObjectAddress object)
{
	Oid			schema;

	if (!ot_ddl_find_whole(&object))
		return false;
	if (object.classId == ProcedureRelationId && ot_function_is_temporary(object.objectId))
		return true;
	if (object.classId == NamespaceRelationId)
		schema = object.objectId;
	else
		schema = is_objectclass_supported(object.classId) ? get_object_namespace(&object) : InvalidOid;
	return OidIsValid(schema) && isAnyTempNamespace(schema);
}

static void catalog_digest_put_object(Row *row, Oid catalog, Oid oid);

/* The name of a trigger that a constraint has made ends with an OID. */
static void
catalog_digest_put_trigger_name(StringInfo out, HeapTuple tuple)
{
	Form_pg_trigger form = (Form_pg_trigger) GETSTRUCT(tuple);
	int			len = strlen(NameStr(form->tgname));

	while (form->tgisinternal && len > 0 && isdigit((unsigned char) NameStr(form->tgname)[len - 1]))
		len--;
	appendBinaryStringInfo(out, NameStr(form->tgname), len);
}

/* Puts the name and the table of such a trigger; returns false if it is another one. */
static bool
catalog_digest_put_internal_trigger(Row *row, Oid oid)
{
	Relation	catalog = table_open(TriggerRelationId, AccessShareLock);
	HeapTuple	tuple = get_catalog_object_by_oid(catalog, Anum_pg_trigger_oid, oid);
	bool		is_internal = HeapTupleIsValid(tuple) && ((Form_pg_trigger) GETSTRUCT(tuple))->tgisinternal;

	if (is_internal)
	{
		catalog_digest_put_trigger_name(&row->text, tuple);
		appendStringInfoString(&row->text, " on ");
		catalog_digest_put_object(row, RelationRelationId, ((Form_pg_trigger) GETSTRUCT(tuple))->tgrelid);
	}
	table_close(catalog, AccessShareLock);
	return is_internal;
}

/* Objects that initdb makes have the same OIDs everywhere. */
static void
catalog_digest_put_object(Row *row, Oid catalog, Oid oid)
{
	ObjectAddress address = {catalog, oid, 0};
	char	   *identity;

	row->of_large_object |= catalog == LargeObjectRelationId;
	if (oid < FirstNormalObjectId || catalog == LargeObjectRelationId)
	{
		appendStringInfo(&row->text, "%u", oid);
		return;
	}
	if (catalog == TriggerRelationId && catalog_digest_put_internal_trigger(row, oid))
		return;
	/* what the transaction has dropped has no name any more; its own row has */
	identity = getObjectIdentity(&address, true);
	row->of_temporary |= identity != NULL && catalog_digest_is_temporary(address);
	row->of_nothing |= identity == NULL ||
		(catalog == RelationRelationId && get_rel_namespace(oid) == PG_TOAST_NAMESPACE);
	appendStringInfoString(&row->text, identity ? identity : "?");
}

/* Both an oidvector and an array of OIDs are arrays. */
static void
catalog_digest_put_objects(Row *row, Oid catalog, Datum value)
{
	ArrayType  *array = DatumGetArrayTypePCopy(value);
	Oid		   *oids = (Oid *) ARR_DATA_PTR(array);
	int			count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));

	if (ARR_HASNULL(array) || ARR_ELEMTYPE(array) != OIDOID)
		elog(ERROR, "a list of references is no array of OIDs");
	for (int i = 0; i < count; i++)
	{
		catalog_digest_put_object(row, catalog, oids[i]);
		appendStringInfoChar(&row->text, ',');
	}
}

/* Each number becomes one mark, with its sign: a constant is there byte by byte. */
static void
catalog_digest_put_masked(StringInfo out, const char *tree)
{
	while (*tree != '\0')
	{
		size_t		number = strspn(tree + (*tree == '-'), "0123456789");

		appendStringInfoChar(out, number > 0 ? '#' : *tree);
		tree += number > 0 ? number + (*tree == '-') : 1;
	}
}

/* The function may find that what the expression is about is gone. */
static void
catalog_digest_put_printed(StringInfo out, PGFunction print, int nargs, Datum first, Datum second)
{
	LOCAL_FCINFO(fcinfo, 2);
	Datum		printed;

	InitFunctionCallInfoData(*fcinfo, NULL, nargs, InvalidOid, NULL, NULL);
	fcinfo->args[0] = (NullableDatum) {first, false};
	fcinfo->args[1] = (NullableDatum) {second, false};
	printed = print(fcinfo);
	appendStringInfoString(out, fcinfo->isnull ? "?" : TextDatumGetCString(printed));
}

static void
catalog_digest_put_tree(StringInfo out, Column *column, HeapTuple tuple, TupleDesc desc, Datum value, bool written)
{
	bool		isnull;
	Datum		relid = column->relid_column != InvalidAttrNumber ?
		heap_getattr(tuple, column->relid_column, desc, &isnull) : ObjectIdGetDatum(InvalidOid);

	/* the bound of a partition refers to nothing */
	if (column->kind == COLUMN_FUNCTION || (!written && column->relid_column != Anum_pg_class_oid))
		catalog_digest_put_masked(out, OutputFunctionCall(&column->output, value));
	else if (column->kind == COLUMN_TREE)
		catalog_digest_put_printed(out, pg_get_expr, 2, value, relid);
	else
		catalog_digest_put_printed(out, column->kind == COLUMN_RULE ? pg_get_ruledef : pg_get_triggerdef, 1,
								   heap_getattr(tuple, Anum_pg_trigger_oid, desc, &isnull), (Datum) 0);
}

/* Minor releases of 2026 keep a place in the server's own WAL among them. */
static void
catalog_digest_put_options(StringInfo out, Datum value)
{
	Datum	   *options;
	int			count;

	deconstruct_array(DatumGetArrayTypeP(value), TEXTOID, -1, false, TYPALIGN_INT, &options, NULL, &count);
	for (int i = 0; i < count; i++)
	{
		char	   *option = TextDatumGetCString(options[i]);

		if (strncmp(option, "pg_attver=", strlen("pg_attver=")) != 0)
			appendStringInfo(out, "%s,", option);
	}
}

static void
catalog_digest_put_value(Row *row, Column *column, HeapTuple tuple, TupleDesc desc, AttrNumber attnum, bool written)
{
	StringInfo	out = &row->text;
	bool		isnull;
	Datum		value = heap_getattr(tuple, attnum, desc, &isnull);

	appendStringInfoChar(out, '\x1f');
	if (isnull)
		return;
	switch (column->kind)
	{
		case COLUMN_LEFT_OUT:
			break;
		case COLUMN_TEXT:
			appendStringInfoString(out, OutputFunctionCall(&column->output, value));
			break;
		case COLUMN_TREE:
		case COLUMN_TRIGGER:
		case COLUMN_RULE:
		case COLUMN_FUNCTION:
			catalog_digest_put_tree(out, column, tuple, desc, value, written);
			break;
		case COLUMN_TRIGGER_NAME:
			catalog_digest_put_trigger_name(out, tuple);
			break;
		case COLUMN_OPTIONS:
			catalog_digest_put_options(out, value);
			break;
		case COLUMN_REFERENCE:
			catalog_digest_put_object(row, column->catalog, DatumGetObjectId(value));
			break;
		case COLUMN_REFERENCES:
			catalog_digest_put_objects(row, column->catalog, value);
			break;
		case COLUMN_OBJECT:
			catalog_digest_put_object(row,
									  DatumGetObjectId(heap_getattr(tuple, column->class_column, desc, &isnull)),
									  DatumGetObjectId(value));
			break;
	}
}

/* ---- rows ---- */

static bool
catalog_digest_is_own(TransactionId xid)
{
	return TransactionIdIsNormal(xid) &&
		TransactionIdFollowsOrEquals(xid, GetTopTransactionIdIfAny()) &&
		TransactionIdIsCurrentTransactionId(xid);
}

/* 1: the transaction has written the row; -1: it has removed it; 0: neither, or both. */
static int
catalog_digest_change(HeapTupleHeader row)
{
	bool		written = !HeapTupleHeaderXminFrozen(row) && catalog_digest_is_own(HeapTupleHeaderGetRawXmin(row));
	bool		removed = !(row->t_infomask & HEAP_XMAX_INVALID) &&
		!HEAP_XMAX_IS_LOCKED_ONLY(row->t_infomask) && catalog_digest_is_own(HeapTupleHeaderGetUpdateXid(row));

	return (int) written - (int) removed;
}

/*
 * A row without an OID of its own tells of what it belongs to, such as that
 * relation's columns, and so do those of parts of a table.  If that is gone, or a
 * TOAST table, they tell nothing.
 */
static bool
catalog_digest_counts(Relation catalog, const Row *row, HeapTuple tuple)
{
	/* they are this session's own, or travel with rows */
	if (row->of_temporary || row->of_large_object ||
		(RelationGetRelid(catalog) == NamespaceRelationId && isAnyTempNamespace(((Form_pg_namespace) GETSTRUCT(tuple))->oid)))
		return false;
	switch (RelationGetRelid(catalog))
	{
		case RelationRelationId:
			return ((Form_pg_class) GETSTRUCT(tuple))->relnamespace != PG_TOAST_NAMESPACE;
		case ProcedureRelationId:
			return !ot_function_is_temporary(((Form_pg_proc) GETSTRUCT(tuple))->oid);
		case AttrDefaultRelationId:
		case TriggerRelationId:
		case RewriteRelationId:
		case PolicyRelationId:
			return !row->of_nothing;
		default:
			return !row->of_nothing || get_attnum(RelationGetRelid(catalog), "oid") != InvalidAttrNumber;
	}
}

/* Copies of those that the transaction has written or removed. */
static List *
catalog_digest_own_rows(Relation catalog)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(catalog);
	Buffer		map = InvalidBuffer;
	List	   *rows = NIL;

	for (BlockNumber block = 0; block < blocks; block++)
	{
		Buffer		buffer;
		Page		page;

		CHECK_FOR_INTERRUPTS();
		if (VM_ALL_VISIBLE(catalog, block, &map))
			continue;
		buffer = ReadBuffer(catalog, block);
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		page = BufferGetPage(buffer);
		for (OffsetNumber offset = FirstOffsetNumber; offset <= PageGetMaxOffsetNumber(page); offset++)
		{
			ItemId		item = PageGetItemId(page, offset);
			HeapTupleData tuple;

			if (!ItemIdIsNormal(item))
				continue;
			tuple.t_tableOid = RelationGetRelid(catalog);
			tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
			tuple.t_len = ItemIdGetLength(item);
			ItemPointerSet(&tuple.t_self, block, offset);
			if (catalog_digest_change(tuple.t_data) != 0)
				rows = lappend(rows, heap_copytuple(&tuple));
		}
		UnlockReleaseBuffer(buffer);
	}
	if (BufferIsValid(map))
		ReleaseBuffer(map);
	return rows;
}

static void
catalog_digest_put_row(Row *row, Relation catalog, Column *columns, HeapTuple tuple, bool written)
{
	row->of_nothing = row->of_temporary = row->of_large_object = false;
	for (int i = 0; i < RelationGetDescr(catalog)->natts; i++)
		catalog_digest_put_value(row, &columns[i], tuple, RelationGetDescr(catalog), i + 1, written);
}

/*
 * May the order of these indexes of one table matter?  PostgreSQL goes through a
 * table's indexes in the order of their OIDs.  The copies of one of them that LIKE
 * and new partitions make are named after its columns, as long as there is room; a
 * foreign key and an index of a partitioned table take the first with their columns.
 */
static bool
catalog_digest_are_alike(Form_pg_index one, Form_pg_index other)
{
	Bitmapset  *keys[2] = {NULL, NULL};
	StringInfoData names[2];
	Form_pg_index indexes[2] = {one, other};

	for (int i = 0; i < 2; i++)
	{
		initStringInfo(&names[i]);
		for (AttrNumber column = 1; column <= indexes[i]->indnatts; column++)
		{
			appendStringInfo(&names[i], "%s_", get_attname(indexes[i]->indexrelid, column, false));
			if (column <= indexes[i]->indnkeyatts)
				keys[i] = bms_add_member(keys[i], indexes[i]->indkey.values[column - 1] -
										 FirstLowInvalidHeapAttributeNumber);
		}
	}
	return strncmp(names[0].data, names[1].data, NAME_BYTES_KEPT) == 0 ||
		(bms_equal(keys[0], keys[1]) && ot_ddl_indexes_compute_alike(one->indexrelid, other->indexrelid));
}

/* Puts the names of those that come before this new index. */
static void
catalog_digest_put_order(StringInfo out, Form_pg_index index)
{
	Relation	table = relation_open(index->indrelid, AccessShareLock);
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(table))
	{
		HeapTuple	tuple;

		if (lfirst_oid(lc) >= index->indexrelid)
			break;
		tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(lfirst_oid(lc)));
		if (!HeapTupleIsValid(tuple))
			elog(ERROR, "cache lookup failed for index %u", lfirst_oid(lc));
		if (catalog_digest_are_alike((Form_pg_index) GETSTRUCT(tuple), index))
			appendStringInfo(out, "%s,", get_rel_name(lfirst_oid(lc)));
		ReleaseSysCache(tuple);
	}
	relation_close(table, AccessShareLock);
}

static bool
catalog_digest_is_as_it_was(Relation catalog, Column *columns, const Object *object)
{
	TupleDesc	desc = RelationGetDescr(catalog);

	if (object->removed == NULL || object->written == NULL)
		return false;
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(desc, i);
		bool		was_null;
		bool		is_null;
		Datum		was = heap_getattr(object->removed, i + 1, desc, &was_null);
		Datum		is = heap_getattr(object->written, i + 1, desc, &is_null);

		if (columns[i].kind != COLUMN_LEFT_OUT &&
			(was_null != is_null || (!is_null && !datum_image_eq(was, is, attr->attbyval, attr->attlen))))
			return false;
	}
	return true;
}

/*
 * Objects with an OID may have the same text, so what each was and what it is count
 * as one.  The text of other rows tells what they are about, so that one that was
 * removed and written again cancels out.
 */
static void
catalog_digest_add_object(Relation catalog, Column *columns, const Object *object, OtCatalogDigest *digest)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "onetrip catalog row", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	int			times = OidIsValid(object->oid) || object->written != NULL ? 1 : -1;
	Row			row;

	initStringInfo(&row.text);
	appendStringInfoString(&row.text, RelationGetRelationName(catalog));
	if (object->removed != NULL)
		catalog_digest_put_row(&row, catalog, columns, object->removed, false);
	if (OidIsValid(object->oid))
		appendStringInfoChar(&row.text, '\x1d');
	if (object->written != NULL)
		catalog_digest_put_row(&row, catalog, columns, object->written, true);
	if (RelationGetRelid(catalog) == IndexRelationId && object->removed == NULL)
		catalog_digest_put_order(&row.text, (Form_pg_index) GETSTRUCT(object->written));
	if (!catalog_digest_is_as_it_was(catalog, columns, object) &&
		catalog_digest_counts(catalog, &row, object->written ? object->written : object->removed))
	{
		for (int i = 0; i < lengthof(digest->sums); i++)
			digest->sums[i] += (uint64) times * hash_bytes_extended((unsigned char *) row.text.data, row.text.len, i);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/* The column with the OID that tells the catalog's objects apart, or InvalidAttrNumber. */
static AttrNumber
catalog_digest_key(Relation catalog)
{
	Bitmapset  *key = RelationGetIndexAttrBitmap(catalog, INDEX_ATTR_BITMAP_PRIMARY_KEY);
	int			member;
	AttrNumber	column;

	if (!bms_get_singleton_member(key, &member))
		return InvalidAttrNumber;
	column = member + FirstLowInvalidHeapAttributeNumber;
	return get_atttype(RelationGetRelid(catalog), column) == OIDOID ||
		get_atttype(RelationGetRelid(catalog), column) == REGPROCOID ? column : InvalidAttrNumber;
}

static HTAB *
catalog_digest_objects(Relation catalog, AttrNumber key, List *rows)
{
	HASHCTL		control = {.keysize = sizeof(Oid),.entrysize = sizeof(Object),.hcxt = CurrentMemoryContext};
	HTAB	   *objects = hash_create("onetrip catalog digest", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	ListCell   *lc;

	foreach(lc, rows)
	{
		HeapTuple	tuple = lfirst(lc);
		bool		found;
		Oid			oid = DatumGetObjectId(heap_getattr(tuple, key, RelationGetDescr(catalog), &found));
		Object	   *object = hash_search(objects, &oid, HASH_ENTER, &found);

		if (!found)
			object->removed = object->written = NULL;
		*(catalog_digest_change(tuple->t_data) > 0 ? &object->written : &object->removed) = tuple;
	}
	return objects;
}

static void
catalog_digest_add_rows(Relation catalog, List *rows, OtCatalogDigest *digest)
{
	TupleDesc	desc = RelationGetDescr(catalog);
	Column	   *columns = palloc(sizeof(Column) * desc->natts);
	AttrNumber	key = catalog_digest_key(catalog);
	HASH_SEQ_STATUS all;
	Object	   *object;
	ListCell   *lc;

	for (int i = 0; i < desc->natts; i++)
		catalog_digest_describe(catalog, TupleDescAttr(desc, i), &columns[i]);
	if (key != InvalidAttrNumber)
	{
		hash_seq_init(&all, catalog_digest_objects(catalog, key, rows));
		while ((object = hash_seq_search(&all)) != NULL)
			catalog_digest_add_object(catalog, columns, object, digest);
		return;
	}
	foreach(lc, rows)
	{
		HeapTuple	tuple = lfirst(lc);
		bool		written = catalog_digest_change(tuple->t_data) > 0;
		Object		row = {InvalidOid, written ? NULL : tuple, written ? tuple : NULL};

		catalog_digest_add_object(catalog, columns, &row, digest);
	}
}

static void
catalog_digest_add(Oid relid, OtCatalogDigest *digest)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "onetrip catalog", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Relation	catalog = table_open(relid, AccessShareLock);
	List	   *rows = catalog_digest_own_rows(catalog);

	if (rows != NIL)
		catalog_digest_add_rows(catalog, rows, digest);
	table_close(catalog, AccessShareLock);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

static List *
catalog_digest_catalogs(void)
{
	Relation	pg_class = table_open(RelationRelationId, AccessShareLock);
	TableScanDesc scan = table_beginscan_catalog(pg_class, 0, NULL);
	List	   *catalogs = NIL;
	HeapTuple	tuple;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (form->relkind == RELKIND_RELATION && form->relnamespace == PG_CATALOG_NAMESPACE &&
			form->oid < FirstNormalObjectId && !catalog_digest_leaves_out(form->oid, NULL))
			catalogs = lappend_oid(catalogs, form->oid);
	}
	table_endscan(scan);
	table_close(pg_class, AccessShareLock);
	return catalogs;
}

/*
 * Fills *digest.  Takes locks on catalogs until the end of the transaction at most.
 * What it prints calls no function of a user; if it did all the same, that could
 * neither change anything nor become somebody else.
 */
void
ot_catalog_digest(OtCatalogDigest *digest)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "onetrip catalog digest",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	OtUserContext user;
	int			guc_level = NewGUCNestLevel();
	ListCell   *lc;

	memset(digest, 0, sizeof(*digest));
	CommandCounterIncrement();
	ot_user_enter(&user, GetUserId(), false);
	PushActiveSnapshot(GetTransactionSnapshot());
	/* all names have their schema then */
	ot_session_settings_be_plain();
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
	{
		foreach(lc, catalog_digest_catalogs())
			catalog_digest_add(lfirst_oid(lc), digest);
	}
	AtEOXact_GUC(false, guc_level);
	ot_user_leave(&user);
	PopActiveSnapshot();
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

char *
ot_catalog_digest_text(const OtCatalogDigest *digest)
{
	return psprintf("%08x%08x%08x%08x", (uint32) (digest->sums[0] >> 32), (uint32) digest->sums[0],
					(uint32) (digest->sums[1] >> 32), (uint32) digest->sums[1]);
}
