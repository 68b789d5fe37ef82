/*-------------------------------------------------------------------------
 *
 * rel_info.c
 *	  The cache of what capture and apply need to know of a table.
 *
 * An entry is built from the relation cache on first use and not used any more
 * when the relation or one of its indexes has changed.  Then it is built anew, or
 * thrown away between two transactions once there are many: nobody uses the table
 * again if it was dropped.
 *
 * What goes into the hash of a key must be the same on every node, and must
 * not change while the key is held.  So it is made of
 *
 *	the table's schema and name		a rename takes the table's keys
 *	an index's column numbers		fixed for the index's life; whether it has
 *									a predicate is, too
 *	values							of the columns, or of expressions
 *
 * and not of the index's name, which may change while the table is written.
 * So two indexes of a table that are on the same columns, but have different
 * predicates or expressions, share their keys: values may conflict that are in
 * no common index, but no conflict is missed.  A function that an expression
 * calls is replaced only by a statement that holds the keys of the tables that
 * use it (ddl_lock.c).
 *
 * A table's identity, by which other regions find a row that is changed, must be
 * the same on every node as well.  It is the replica identity index or else the
 * primary key; else a unique index that every row has its own value in; else
 * there is none, and the whole row counts (whole_row.c).  An index that is
 * checked late is none: in the midst of a transaction two rows may have the
 * same value.
 *
 * The values of a unique index are hashed with the extended hash function that
 * belongs to the index's equality.  Where there is none that gives the same
 * result on every node, the index is coarse: it has a single key, so any two
 * changes of it conflict, which is slow but never wrong.  An index under a
 * nondeterministic collation is coarse as well: which strings are equal, and
 * their sort keys, depend on the version of ICU.
 *
 * Runs in backends and in the apply worker.  Each entry has a memory context
 * of its own, below CacheMemoryContext.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include <float.h>

#include "access/brin_internal.h"
#include "access/genam.h"
#include "access/hash.h"
#include "access/nbtree.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/index.h"
#include "catalog/partition.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_statistic.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "common/hashfn.h"
#include "access/sysattr.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/partcache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

/* These keep the keys of different kinds of index apart. */
#define SEED_EXCLUSION	1
#define SEED_PARTIAL	2

/*
 * An index with more rows for each value is not searched for whole rows.  To
 * read on in the table is better, since an entry that changes many rows changes
 * them in the order of the table.
 */
#define ROWS_PER_VALUE_MAX 100

/* From so many entries on, those of tables that may be gone are thrown away. */
#define ENTRIES_MANY 1000

static HTAB *infos = NULL;
static long entries_many = ENTRIES_MANY;

static bool
rel_info_has_index(OtRelInfo *info, Oid relid)
{
	if (info->building)
		return true;
	for (int i = 0; info->valid && info->context && i < info->nindexes; i++)
	{
		if (info->indexes[i].oid == relid)
			return true;
	}
	return false;
}

static void
rel_info_invalidate_relation(Datum arg, Oid relid)
{
	OtRelInfo  *info = NULL;

	if (OidIsValid(relid))
	{
		info = hash_search(infos, &relid, HASH_FIND, NULL);
		if (info)
			info->valid = false;
	}
	if (!OidIsValid(relid) || info == NULL)
	{
		HASH_SEQ_STATUS status;

		hash_seq_init(&status, infos);
		while ((info = hash_seq_search(&status)) != NULL)
		{
			if (!OidIsValid(relid) || rel_info_has_index(info, relid))
				info->valid = false;
		}
	}
	ot_type_forget_all();
}

/*
 * A table's hash depends on its schema's name, the wire form of a column on its
 * type, and the hash of a unique value on its type's default operator classes.
 * Each may change without an invalidation of the relation.
 */
static void
rel_info_invalidate_all(Datum arg, int cacheid, uint32 hashvalue)
{
	rel_info_invalidate_relation((Datum) 0, InvalidOid);
}

/*
 * Called before anything is kept here or in the cache of types, and again: what
 * changes before that need not be heard of.
 */
void
ot_rel_info_init_cache(void)
{
	HASHCTL		ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(OtRelInfo)};

	if (likely(infos != NULL))
		return;
	ctl.hcxt = CacheMemoryContext;
	infos = hash_create("onetrip tables", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	CacheRegisterRelcacheCallback(rel_info_invalidate_relation, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, rel_info_invalidate_all, (Datum) 0);
	CacheRegisterSyscacheCallback(TYPEOID, rel_info_invalidate_all, (Datum) 0);
	CacheRegisterSyscacheCallback(CLAOID, rel_info_invalidate_all, (Datum) 0);
}

/* ---- columns ---- */

static bool
rel_info_is_builtin(Oid type)
{
	return type < FirstGenbkiObjectId;
}

static void
rel_info_describe_column(OtColumn *column, Form_pg_attribute att)
{
	memset(column, 0, sizeof(*column));
	column->dropped = att->attisdropped;
	column->is_varlena = (att->attlen == -1);
	if (column->dropped)
		return;
	column->type = att->atttypid;
	column->can_move_out = TypeIsToastable(column->type);
	column->contains_names = ot_type_contains_names(column->type);
}

/*
 * A hash of what is needed to take the bytes of a row apart.  A server where it
 * differs must not read the row.  Of the types only built-in ones count, since
 * the OIDs of others differ from server to server.
 */
static uint32
rel_info_hash_layout(TupleDesc desc)
{
	uint32		hash = desc->natts;

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		hash = hash_combine(hash, (uint16) att->attlen);
		hash = hash_combine(hash, (att->attbyval << 16) | (att->attisdropped << 8) |
							(uint8) att->attalign);
		hash = hash_combine(hash, rel_info_is_builtin(att->atttypid) ? att->atttypid : 0);
	}
	return hash;
}

/* ---- unique indexes ---- */

/* Finds how to hash a column of an index; false: the index is coarse. */
static bool
rel_info_describe_hash(OtIndex *index, int i, Relation index_rel)
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
	 * Composite values, ranges and arrays may contain OIDs further down.  The
	 * reg* types are indexed as plain oid, so look at the column's own type.
	 */
	if (ot_type_names_object(column) || ot_type_names_object(type) ||
		(!rel_info_is_builtin(type) && get_typtype(type) != TYPTYPE_BASE))
		return false;
	{
		Oid			element = get_element_type(type);

		if (OidIsValid(element) &&
			(ot_type_names_object(element) ||
			 (!rel_info_is_builtin(element) && get_typtype(element) != TYPTYPE_BASE)))
			return false;
	}

	if (OidIsValid(index->collations[i]) &&
		!get_collation_isdeterministic(index->collations[i]))
		return false;

	/* Values that are equal for the index must have the same hash. */
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

/* A user's function, or one that returns a setting? */
static bool
rel_info_is_not_builtin(Oid function, void *context)
{
	return !rel_info_is_builtin(function) || function == F_CURRENT_SETTING_TEXT ||
		function == F_CURRENT_SETTING_TEXT_BOOL;
}

static bool
rel_info_runs_users_code(Node *node, void *context)
{
	if (node == NULL)
		return false;
	/* Casts run functions of types, and domains' CHECKs: not in the tree. */
	if (IsA(node, Const) && ot_type_contains_names(((Const *) node)->consttype))
		return true;
	if (IsA(node, CoerceToDomain) || IsA(node, CoerceViaIO) || IsA(node, ArrayCoerceExpr) ||
		ot_json_calls_unseen(node) ||
		check_functions_in_node(node, rel_info_is_not_builtin, context))
		return true;
	return expression_tree_walker(node, rel_info_runs_users_code, context);
}

static bool
rel_info_index_runs_users_code(Relation index_rel)
{
	return rel_info_runs_users_code((Node *) RelationGetIndexExpressions(index_rel), NULL) ||
		rel_info_runs_users_code((Node *) RelationGetIndexPredicate(index_rel), NULL);
}

/* The type of what is put into the index: the index's own column may have another. */
static Oid
rel_info_indexed_type(Relation rel, Relation index_rel, int key)
{
	AttrNumber	attnum = index_rel->rd_index->indkey.values[key];
	int			nexpressions = 0;

	if (attnum > 0)
		return TupleDescAttr(RelationGetDescr(rel), attnum - 1)->atttypid;
	for (int i = 0; i < key; i++)
		nexpressions += index_rel->rd_index->indkey.values[i] == 0;
	return exprType(list_nth(RelationGetIndexExpressions(index_rel), nexpressions));
}

/*
 * In the apply worker: GiST asks how far two values of a range are apart, by a
 * function that any role may name for a type of its own, and replace later.  That
 * only makes the index a better one, and GiST does without it where a type has no
 * such function.  So this process forgets those that are not built in.  (Only a
 * superuser can make the other functions of a type, and operator classes.)
 */
static void
rel_info_forget_differences(Relation rel, Relation index_rel)
{
	if (!ot_is_apply_worker || index_rel->rd_rel->relam == BTREE_AM_OID ||
		index_rel->rd_rel->relam == HASH_AM_OID)
		return;
	for (int i = 0; i < index_rel->rd_index->indnkeyatts; i++)
	{
		Oid			type = getBaseType(rel_info_indexed_type(rel, index_rel, i));
		TypeCacheEntry *cache;

		if (type_is_multirange(type))
			type = get_multirange_range(type);
		if (!type_is_range(type))
			continue;
		cache = lookup_type_cache(type, TYPECACHE_RANGE_INFO);
		if (!rel_info_is_builtin(cache->rng_subdiff_finfo.fn_oid))
			cache->rng_subdiff_finfo.fn_oid = InvalidOid;
	}
}

/* Is it a user's function in another language than C?  C is trusted. */
static bool
rel_info_is_interpreted(Oid function, void *context)
{
	HeapTuple	tuple;
	Oid			language;

	if (rel_info_is_builtin(function))
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return false;
	language = ((Form_pg_proc) GETSTRUCT(tuple))->prolang;
	ReleaseSysCache(tuple);
	return language != INTERNALlanguageId && language != ClanguageId;
}

/* Might the expression do more than compute? */
static bool
rel_info_may_run_anything(Node *node, void *context)
{
	if (node == NULL)
		return false;
	/* a domain has CHECKs, even one in a composite that is read from text */
	if (IsA(node, CoerceToDomain) || ot_json_calls_unseen(node) ||
		(IsA(node, CoerceViaIO) && !rel_info_is_builtin(((CoerceViaIO *) node)->resulttype)) ||
		check_functions_in_node(node, rel_info_is_interpreted, context))
		return true;
	return expression_tree_walker(node, rel_info_may_run_anything, context);
}

/*
 * Notes an index on a type that has no comparison, such as an array of points.
 * It accepts a first value, but no second one; and two regions could each
 * insert a first one, or another region still have one that was rolled back.
 * A hash index compares nothing when a value is put in.
 */
static void
rel_info_note_incomparable(OtRelInfo *info, Relation rel, Relation index_rel)
{
	if (index_rel->rd_rel->relam == HASH_AM_OID)
		return;
	for (int i = 0; i < index_rel->rd_index->indnkeyatts; i++)
	{
		switch (index_rel->rd_opcintype[i])
		{
			case ANYARRAYOID:
			case RECORDOID:
			case ANYRANGEOID:
			case ANYMULTIRANGEOID:
				if (ot_type_is_comparable(rel_info_indexed_type(rel, index_rel, i)))
					break;
				info->incomparable = RelationGetRelid(index_rel);
				info->incomparable_column = index_rel->rd_index->indkey.values[i];
				break;
			default:
				break;
		}
	}
}

/*
 * An ancestor of this table that chooses the partition by OIDs of this server:
 * by the hash of an enum, or by the order of a regclass.  In other regions the
 * same row would belong in another partition.
 */
static Oid
rel_info_find_misrouting(Relation rel)
{
	Oid			found = InvalidOid;
	List	   *ancestors;
	ListCell   *lc;

	/* The worker must not wait for a lock for which there is no key. */
	if (!rel->rd_rel->relispartition || ot_is_apply_worker)
		return InvalidOid;
	ancestors = get_partition_ancestors(RelationGetRelid(rel));
	foreach(lc, ancestors)
	{
		Relation	above = table_open(lfirst_oid(lc), AccessShareLock);
		PartitionKey key = RelationGetPartitionKey(above);

		for (int i = 0; key != NULL && i < key->partnatts; i++)
		{
			Oid			type = key->parttypid[i];

			if (key->strategy == PARTITION_STRATEGY_HASH ? ot_type_contains_names(type) :
				key->strategy == PARTITION_STRATEGY_RANGE && ot_type_is_by_oid(type))
				found = RelationGetRelid(above);
		}
		table_close(above, AccessShareLock);
	}
	list_free(ancestors);
	return found;
}

/*
 * Does an expression of the index read OIDs of this server, or return an enum?
 * Its result may then differ elsewhere, or change when a label is renamed.
 */
static bool
rel_info_computes_with_names(Relation rel, Relation index_rel)
{
	Bitmapset  *columns = NULL;
	int			column = -1;

	pull_varattnos((Node *) RelationGetIndexExpressions(index_rel), 1, &columns);
	while ((column = bms_next_member(columns, column)) >= 0)
	{
		AttrNumber	attnum = column + FirstLowInvalidHeapAttributeNumber;

		/* The whole row, or a system column. */
		if (attnum <= 0 ||
			ot_type_contains_names(TupleDescAttr(RelationGetDescr(rel), attnum - 1)->atttypid))
			return true;
	}
	for (int i = 0; i < index_rel->rd_index->indnkeyatts; i++)
	{
		if (index_rel->rd_index->indkey.values[i] == 0 &&
			type_is_enum(getBaseType(TupleDescAttr(RelationGetDescr(index_rel), i)->atttypid)))
			return true;
	}
	return false;
}

static void
rel_info_describe_index(OtIndex *index, OtRelInfo *info, Relation rel, Relation index_rel)
{
	Form_pg_index form = index_rel->rd_index;
	memset(index, 0, sizeof(*index));
	index->oid = RelationGetRelid(index_rel);
	index->unique = form->indisunique;
	index->exclusion = form->indisexclusion;
	index->coarse = form->indisexclusion || rel_info_computes_with_names(rel, index_rel);
	index->nulls_equal = form->indnullsnotdistinct;
	index->nkeys = form->indnkeyatts;
	index->hash = hash_combine64(info->table.value, (form->indisexclusion ? SEED_EXCLUSION : 0) |
								 (RelationGetIndexPredicate(index_rel) != NIL ? SEED_PARTIAL : 0));
	for (int i = 0; i < index->nkeys; i++)
	{
		index->attnums[i] = form->indkey.values[i];
		index->hash = hash_combine64(index->hash, (uint16) index->attnums[i]);
	}

	index->computed = RelationGetIndexExpressions(index_rel) != NIL ||
		RelationGetIndexPredicate(index_rel) != NIL;
	if (index->computed)
		index->info = BuildIndexInfo(index_rel);
	index->runs_users_code = rel_info_index_runs_users_code(index_rel);
	for (int i = 0; i < index->nkeys && !index->coarse; i++)
		index->coarse = !rel_info_describe_hash(index, i, index_rel);
}

/*
 * Does the index store the values of its column, in the form in which it gets them?
 * What an operator class makes of a value, it makes of the whole one, so that is the
 * same everywhere, unless it contains OIDs (`names`).
 */
static bool
rel_info_is_whole(Relation rel, Relation index_rel, int i, Oid names)
{
	switch (index_rel->rd_rel->relam)
	{
		case BTREE_AM_OID:
			return true;
		case GIST_AM_OID:
			return i >= index_rel->rd_index->indnkeyatts || OidIsValid(names) ||
				TupleDescAttr(RelationGetDescr(index_rel), i)->atttypid == rel_info_indexed_type(rel, index_rel, i);
		case BRIN_AM_OID:
			/* a filter contains hashes */
			return index_getprocid(index_rel, i + 1, BRIN_PROCNUM_OPCINFO) != F_BRIN_BLOOM_OPCINFO;
		default:				/* GIN */
			return OidIsValid(names);
	}
}

/* The type of what the index stores of a column, if that is of variable length and contains OIDs. */
static Oid
rel_info_stored_names(Relation rel, Relation index_rel, int i)
{
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(index_rel), i);
	Oid			type = att->atttypid;

	/* a range, whose type is not in the catalog, in the place of itself or of a multirange */
	if (type == ANYRANGEOID)
	{
		type = getBaseType(rel_info_indexed_type(rel, index_rel, i));
		if (type_is_multirange(type))
			type = get_multirange_range(type);
	}
	return att->attlen == -1 && ot_type_contains_names(type) ? type : InvalidOid;
}

static void
rel_info_note_whole_index(OtRelInfo *info, Relation rel, Relation index_rel)
{
	OtWholeIndex *index = &info->whole_indexes[info->nwhole_indexes];
	Oid			method = index_rel->rd_rel->relam;
	TupleDesc	desc;
	bool		any = false;

	/* SP-GiST compresses nothing, and a hash index contains hashes. */
	if (method != BTREE_AM_OID && method != GIST_AM_OID && method != BRIN_AM_OID && method != GIN_AM_OID)
		return;
	desc = CreateTupleDescCopy(RelationGetDescr(index_rel));
	index->oid = RelationGetRelid(index_rel);
	index->method = method;
	index->desc = desc;
	index->info = BuildIndexInfo(index_rel);
	index->is_whole = palloc0(sizeof(bool) * desc->natts);
	index->names = palloc0(sizeof(Oid) * desc->natts);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		AttrNumber	attnum = index->info->ii_IndexAttrNumbers[i];

		index->names[i] = rel_info_stored_names(rel, index_rel, i);
		index->is_whole[i] = rel_info_is_whole(rel, index_rel, i, index->names[i]);
		if (!index->is_whole[i] || att->attlen != -1)
			continue;
		any = true;
		if (method == BRIN_AM_OID)
		{
			/* whether it compresses does not depend on the column */
			att->attstorage = get_typstorage(att->atttypid);
			OT_ATTRIBUTE_CHANGED(desc, i);
		}
		if (attnum != 0)
			info->in_whole_indexes = bms_add_member(info->in_whole_indexes,
													attnum - FirstLowInvalidHeapAttributeNumber);
		else
			info->computes_names |= OidIsValid(index->names[i]);
	}
	if (!any)
		return;
	pull_varattnos((Node *) index->info->ii_Expressions, 1, &info->in_whole_indexes);
	info->nwhole_indexes++;
}

/* ---- identity ---- */

/*
 * The index, unless it is a key WITHOUT OVERLAPS, of PostgreSQL 18.  Such a one is
 * a GiST index, which finds more than one row for a value, or none if that is an
 * empty range.
 */
static Oid
rel_info_identity_by_equality(Oid index)
{
	Relation	rel;
	bool		is_btree;

	if (!OidIsValid(index))
		return InvalidOid;
	rel = index_open(index, AccessShareLock);
	is_btree = rel->rd_rel->relam == BTREE_AM_OID;
	index_close(rel, AccessShareLock);
	return is_btree ? index : InvalidOid;
}

/* The index that tells the table's rows apart because of its definition, or InvalidOid. */
Oid
ot_rel_defined_identity(Relation rel)
{
	Oid			identity = rel_info_identity_by_equality(RelationGetReplicaIndex(rel));

	return OidIsValid(identity) ? identity : rel_info_identity_by_equality(OT_PRIMARY_KEY_INDEX(rel));
}

/* Has every row its own value in this unique index, at any time? */
static bool
rel_info_tells_rows_apart(Relation rel, Relation index_rel)
{
	Form_pg_index form = index_rel->rd_index;

	if (!form->indisunique || !form->indimmediate || !form->indisvalid ||
		RelationGetIndexPredicate(index_rel) != NIL)
		return false;
	for (int i = 0; i < form->indnkeyatts; i++)
	{
		AttrNumber	attnum = form->indkey.values[i];
		Form_pg_attribute att;
		Oid			opclass;

		if (attnum <= 0 || !OT_IS_NOT_NULL(RelationGetDescr(rel), attnum - 1))
			return false;
		/* of two indexes on the same columns, both then mean the same by equal */
		att = TupleDescAttr(RelationGetDescr(rel), attnum - 1);
		if (index_rel->rd_indcollation[i] != att->attcollation)
			return false;
		opclass = GetDefaultOpClass(att->atttypid, BTREE_AM_OID);
		if (!OidIsValid(opclass) || get_opclass_family(opclass) != index_rel->rd_opfamily[i])
			return false;
	}
	return true;
}

/* Orders indexes by what is the same on every node. */
static bool
rel_info_is_before(const OtIndex *a, const OtIndex *b)
{
	if (a->nkeys != b->nkeys)
		return a->nkeys < b->nkeys;
	for (int i = 0; i < a->nkeys; i++)
	{
		if (a->attnums[i] != b->attnums[i])
			return a->attnums[i] < b->attnums[i];
	}
	return false;
}

/*
 * How likely it is that two rows have the same value, where NULL counts as one.
 * Common values weigh more than how many there are.
 */
static double
rel_info_likeness(HeapTuple stats, double distinct)
{
	double		common = ((Form_pg_statistic) GETSTRUCT(stats))->stanullfrac;
	double		likeness = common * common;
	AttStatsSlot slot;

	if (get_attstatsslot(&slot, stats, STATISTIC_KIND_MCV, InvalidOid, ATTSTATSSLOT_NUMBERS))
	{
		for (int i = 0; i < slot.nnumbers; i++)
		{
			common += slot.numbers[i];
			likeness += slot.numbers[i] * slot.numbers[i];
		}
		distinct -= slot.nnumbers;
		free_attstatsslot(&slot);
	}
	return likeness + Max(1 - common, 0) * Max(1 - common, 0) / Max(distinct, 1);
}

/* Does no other row have the same value in this index? */
static bool
rel_info_is_unlike(Relation rel, Relation index_rel)
{
	Form_pg_index form = index_rel->rd_index;

	for (int i = 0; i < form->indnkeyatts && !form->indnullsnotdistinct; i++)
	{
		if (!OT_IS_NOT_NULL(RelationGetDescr(rel), form->indkey.values[i] - 1))
			return false;
	}
	return form->indisunique;
}

/*
 * How well rows are told apart by the first `columns` columns of the index: as by
 * so many different values; 0 if there are many rows for each.
 */
static double
rel_info_estimate_values(Relation rel, Relation index_rel, int columns)
{
	double		rows = Max(rel->rd_rel->reltuples, 1);
	double		values = 1;
	double		evenly = 1;		/* if all were equally common */
	bool		whole = columns == index_rel->rd_index->indnkeyatts;

	if (whole && rel_info_is_unlike(rel, index_rel))
		return DBL_MAX;
	for (int i = 0; i < columns; i++)
	{
		HeapTuple	stats = SearchSysCache3(STATRELATTINH, ObjectIdGetDatum(RelationGetRelid(rel)),
											Int16GetDatum(index_rel->rd_index->indkey.values[i]),
											BoolGetDatum(false));
		double		distinct = rows;
		double		likeness = 1 / rows;

		/* without statistics an index is trusted */
		if (HeapTupleIsValid(stats))
		{
			distinct = ((Form_pg_statistic) GETSTRUCT(stats))->stadistinct;
			if (distinct <= 0)
				distinct = -distinct * rows;
			likeness = rel_info_likeness(stats, distinct);
			ReleaseSysCache(stats);
		}
		values /= likeness;
		evenly *= Max(distinct, 1);
	}
	/* a value that is not NULL is found by a unique index, however many are NULL */
	if (!(whole && index_rel->rd_index->indisunique) && rows / evenly > ROWS_PER_VALUE_MAX)
		return 0;
	return values;
}

/*
 * How many of the index's columns can be searched for by equality, from the
 * first one on.  Users' functions are not run for this.
 */
static int
rel_info_count_searchable(Relation rel, Relation index_rel)
{
	int			n = 0;

	if (index_rel->rd_rel->relam != BTREE_AM_OID || !index_rel->rd_index->indisvalid ||
		RelationGetIndexPredicate(index_rel) != NIL)
		return 0;
	for (; n < index_rel->rd_index->indnkeyatts; n++)
	{
		AttrNumber	attnum = index_rel->rd_index->indkey.values[n];
		Oid			type = index_rel->rd_opcintype[n];
		Oid			column;
		Oid			equality;

		if (attnum <= 0)
			break;
		column = getBaseType(TupleDescAttr(RelationGetDescr(rel), attnum - 1)->atttypid);
		equality = get_opfamily_member(index_rel->rd_opfamily[n], type, type,
									   BTEqualStrategyNumber);
		if (!OidIsValid(equality) || !rel_info_is_builtin(get_opcode(equality)) ||
			!rel_info_is_builtin(index_getprocid(index_rel, n + 1, BTORDER_PROC)) ||
			(!rel_info_is_builtin(column) && !type_is_enum(column)) || column == RECORDOID ||
			(OidIsValid(get_element_type(column)) &&
			 !OidIsValid(lookup_type_cache(column, TYPECACHE_CMP_PROC)->cmp_proc)))
			break;
	}
	return n;
}

/* Keeps the index if whole rows are found faster by it than by earlier ones. */
static void
rel_info_note_search_index(OtRelInfo *info, Relation rel, Relation index_rel, double *best)
{
	int			columns = rel_info_count_searchable(rel, index_rel);
	double		values;

	if (columns == 0)
		return;
	values = rel_info_estimate_values(rel, index_rel, columns);
	if (values <= *best)
		return;
	*best = values;
	info->search_index = RelationGetRelid(index_rel);
	info->search_columns = columns;
}

/* ---- entries ---- */

/* Fills an entry that is empty but for its context. */
static void
rel_info_build_entry(OtRelInfo *info, Relation rel)
{
	MemoryContext old = MemoryContextSwitchTo(info->context);
	List	   *index_oids;
	Oid			identity;
	double		search_best = 0;
	ListCell   *lc;

	info->table = ot_hash_table(get_namespace_name(RelationGetNamespace(rel)),
								RelationGetRelationName(rel));

	identity = ot_rel_defined_identity(rel);
	info->identity = -1;
	info->misrouted_by = rel_info_find_misrouting(rel);
	info->locking = !ot_is_apply_worker && ot_has_locking_label(rel);
	index_oids = RelationGetIndexList(rel);
	info->indexes = palloc(sizeof(OtIndex) * Max(list_length(index_oids), 1));
	info->whole_indexes = palloc(sizeof(OtWholeIndex) * Max(list_length(index_oids), 1));
	info->running_indexes = palloc(sizeof(OtRunningIndex) * Max(list_length(index_oids), 1));
	foreach(lc, index_oids)
	{
		Relation	index_rel = index_open(lfirst_oid(lc), AccessShareLock);

		rel_info_note_incomparable(info, rel, index_rel);
		rel_info_note_whole_index(info, rel, index_rel);
		rel_info_note_search_index(info, rel, index_rel, &search_best);
		rel_info_forget_differences(rel, index_rel);
		if (RelationGetIndexExpressions(index_rel) != NIL ||
			RelationGetIndexPredicate(index_rel) != NIL)
		{
			info->runs_functions = true;
			info->runs_users_code |= rel_info_index_runs_users_code(index_rel);
		}
		if (index_rel->rd_index->indisunique || index_rel->rd_index->indisexclusion)
		{
			OtIndex    *index = &info->indexes[info->nindexes];

			rel_info_describe_index(index, info, rel, index_rel);
			if (lfirst_oid(lc) == identity ||
				(!OidIsValid(identity) && !index->coarse &&
				 rel_info_tells_rows_apart(rel, index_rel) &&
				 (info->identity < 0 ||
				  rel_info_is_before(index, &info->indexes[info->identity]))))
				info->identity = info->nindexes;
			info->nindexes++;
		}
		else if (rel_info_may_run_anything((Node *) RelationGetIndexExpressions(index_rel), NULL) ||
				 rel_info_may_run_anything((Node *) RelationGetIndexPredicate(index_rel), NULL))
		{
			OtRunningIndex *running = &info->running_indexes[info->nrunning_indexes++];

			running->oid = lfirst_oid(lc);
			running->info = BuildIndexInfo(index_rel);
		}
		index_close(index_rel, AccessShareLock);
	}

	info->natts = RelationGetNumberOfAttributes(rel);
	info->layout = rel_info_hash_layout(RelationGetDescr(rel));
	info->as_given = CreateTupleDescCopy(RelationGetDescr(rel));
	for (int i = 0; i < info->natts; i++)
	{
		TupleDescAttr(info->as_given, i)->attstorage = TYPSTORAGE_PLAIN;
		OT_ATTRIBUTE_CHANGED(info->as_given, i);
	}
	info->columns = palloc(sizeof(OtColumn) * Max(info->natts, 1));
	for (int i = 0; i < info->natts; i++)
	{
		rel_info_describe_column(&info->columns[i], TupleDescAttr(info->as_given, i));
		info->contains_names |= info->columns[i].contains_names;
	}
	MemoryContextSwitchTo(old);
}

/*
 * Gives back what an entry had before it was built anew.  In a SERIALIZABLE
 * transaction a function of an index that reads its own table gets here while the
 * row that it is computed for is being captured, which needs it still.
 */
static void
rel_info_give_back(MemoryContext context)
{
	if (context == NULL)
		return;
	if (IsolationIsSerializable() && IsTransactionState())
		MemoryContextSetParent(context, TopTransactionContext);
	else
		MemoryContextDelete(context);
}

static void
rel_info_build(OtRelInfo *info, Relation rel)
{
	OtRelInfo	made = {.relid = info->relid};

	/* PostgreSQL runs functions of indexes to simplify their expressions */
	OT_ASSERT(!ot_write_set_is_appending());
	made.context = AllocSetContextCreate(CacheMemoryContext, "onetrip table",
										 ALLOCSET_SMALL_SIZES);
	/* While building, an invalidation must still be able to reach the entry. */
	info->valid = true;
	info->building = true;
	PG_TRY();
	{
		rel_info_build_entry(&made, rel);
	}
	PG_CATCH();
	{
		/* After an error the entry is built again. */
		info->valid = false;
		info->building = false;
		MemoryContextDelete(made.context);
		PG_RE_THROW();
	}
	PG_END_TRY();
	rel_info_give_back(info->context);
	made.valid = info->valid;
	*info = made;
}

/*
 * Called when a transaction has ended, and no result of ot_rel_info() is in use.
 * Looks at all entries only when there are twice as many as last time.
 */
void
ot_rel_info_tidy(void)
{
	HASH_SEQ_STATUS status;
	OtRelInfo  *info;

	if (likely(infos == NULL || hash_get_num_entries(infos) <= entries_many))
		return;
	hash_seq_init(&status, infos);
	while ((info = hash_seq_search(&status)) != NULL)
	{
		if (info->valid || info->building)
			continue;
		if (info->context != NULL)
			MemoryContextDelete(info->context);
		(void) hash_search(infos, &info->relid, HASH_REMOVE, NULL);
	}
	entries_many = Max(ENTRIES_MANY, 2 * hash_get_num_entries(infos));
}

/*
 * Does a function run that PostgreSQL calls to simplify an expression of one of the
 * table's indexes, while its entry is being built?
 */
bool
ot_rel_info_is_being_built(Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	OtRelInfo  *info = infos ? hash_search(infos, &relid, HASH_FIND, NULL) : NULL;

	return info != NULL && info->building;
}

/* The result is valid until the next call, or the transaction's end; rel must be open and locked. */
OtRelInfo *
ot_rel_info(Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	OtRelInfo  *info;
	bool		found;

	ot_rel_info_init_cache();
	info = hash_search(infos, &relid, HASH_ENTER, &found);
	if (!found)
	{
		MemSet(info, 0, sizeof(*info));
		info->relid = relid;
	}
	if (info->building)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("a function that an index of table \"%s\" uses changes the table",
						RelationGetRelationName(rel)),
				 errhint("Functions of indexes must not have side effects.")));
	if (!info->valid)
		rel_info_build(info, rel);
	return info;
}
