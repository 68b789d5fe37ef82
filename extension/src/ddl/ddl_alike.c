/*-------------------------------------------------------------------------
 *
 * ddl_alike.c
 *	  Whether what other regions compute from rows depends on DDL that a statement has
 *	  met.
 *
 * Rows do not show in the digest of the catalogs (ddl_share.c, catalog_digest.c).  So
 * what other regions compute from them, and for them, must not depend on what is beside
 * the statement, as what a user's function gives may.  All this is asked with a share
 * of the lock, which keeps functions and types as they are, and with the lock on the
 * table that the statement takes next.  What is not certain is answered with no.
 *
 * Runs in backends and in the apply worker.  Raises ERROR.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/transam.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/partition.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_partitioned_table.h"
#include "catalog/pg_type.h"
#include "commands/tablecmds.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parse_coerce.h"
#include "parser/parse_expr.h"
#include "parser/parse_type.h"
#include "parser/parse_utilcmd.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/partcache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

/* GiST calls a function of this type's (SUBTYPE_DIFF), which any role may choose. */
static bool
ddl_alike_is_users_range(Oid type)
{
	/* a column that does not exist */
	if (!OidIsValid(type))
		return false;
	type = getBaseType(type);
	return type >= FirstNormalObjectId && (type_is_range(type) || type_is_multirange(type));
}

/* Indexes are built in each region. */
static bool
ddl_alike_builds(IndexStmt *stmt, const char *query)
{
	LOCKMODE	mode = ShareLock;
	bool		computes = stmt->whereClause != NULL || strcmp(stmt->accessMethod, DEFAULT_INDEX_TYPE) != 0;
	bool		alike;
	Oid			relid;
	ListCell   *lc;

	foreach(lc, stmt->indexParams)
		computes |= lfirst_node(IndexElem, lc)->expr != NULL;
	if (!computes)
		return true;
	relid = RangeVarGetRelid(stmt->relation, NoLock, true);
	if (OidIsValid(relid) && stmt->unique && stmt->whereClause == NULL)
		mode = ot_ddl_unique_index_lock(relid);
	relid = RangeVarGetRelidExtended(stmt->relation, mode, RVR_MISSING_OK, RangeVarCallbackOwnsRelation, NULL);
	if (!OidIsValid(relid))
		return true;
	stmt = transformIndexStmt(relid, copyObject(stmt), query);
	alike = stmt->whereClause == NULL || ot_ddl_is_built_in(stmt->whereClause);
	foreach(lc, stmt->indexParams)
	{
		IndexElem  *column = lfirst_node(IndexElem, lc);

		alike &= column->expr != NULL ? ot_ddl_is_built_in(column->expr) :
			!ddl_alike_is_users_range(get_atttype(relid, get_attnum(relid, column->name)));
	}
	if (!alike)
		UnlockRelationOid(relid, mode);
	return alike;
}

/* That of a generated column, or NULL. */
static Constraint *
ddl_alike_generated(ColumnDef *column)
{
	ListCell   *lc;

	foreach(lc, column->constraints)
	{
		if (lfirst_node(Constraint, lc)->contype == CONSTR_GENERATED)
			return lfirst_node(Constraint, lc);
	}
	return NULL;
}

/* The expression in a catalog's row, or NULL. */
static Node *
ddl_alike_stored(int cache, HeapTuple tuple, AttrNumber column)
{
	bool		isnull;
	Datum		tree = SysCacheGetAttr(cache, tuple, column, &isnull);

	return isnull ? NULL : stringToNode(TextDatumGetCString(tree));
}

/* ... calls nothing but what is built in. */
static bool
ddl_alike_stored_is_built_in(int cache, HeapTuple tuple, AttrNumber column)
{
	return ot_ddl_is_built_in(ddl_alike_stored(cache, tuple, column));
}

static bool
ddl_alike_key_is_built_in(Relation partitioned)
{
	PartitionKey key;
	HeapTuple	tuple = SearchSysCache1(PARTRELID, ObjectIdGetDatum(RelationGetRelid(partitioned)));
	bool		answer;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for partition key of %u", RelationGetRelid(partitioned));
	answer = ddl_alike_stored_is_built_in(PARTRELID, tuple, Anum_pg_partitioned_table_partexprs);
	ReleaseSysCache(tuple);
	/* PostgreSQL simplifies the expressions, and would call others' functions for that */
	if (!answer)
		return false;
	key = RelationGetPartitionKey(partitioned);
	for (int i = 0; i < key->partnatts; i++)
		answer &= key->partopfamily[i] < FirstUnpinnedObjectId && ot_ddl_type_is_built_in(key->parttypid[i]);
	return answer;
}

/*
 * Do its expressions, and its condition, call nothing but what is built in?  What an
 * exclusion constraint compares with is not looked at.
 */
bool
ot_ddl_index_is_built_in(Oid index)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form;
	bool		answer;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", index);
	form = (Form_pg_index) GETSTRUCT(tuple);
	answer = !form->indisexclusion &&
		ddl_alike_stored_is_built_in(INDEXRELID, tuple, Anum_pg_index_indexprs) &&
		ddl_alike_stored_is_built_in(INDEXRELID, tuple, Anum_pg_index_indpred);
	for (int i = 1; i <= form->indnkeyatts; i++)
		answer &= !ddl_alike_is_users_range(get_atttype(index, i));
	ReleaseSysCache(tuple);
	return answer;
}

/* The expressions of an index that is built in, as PostgreSQL compares them. */
static Node *
ddl_alike_simplified(Oid index)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Node	   *expressions = ddl_alike_stored(INDEXRELID, tuple, Anum_pg_index_indexprs);

	ReleaseSysCache(tuple);
	return expressions == NULL ? NULL : eval_const_expressions(NULL, expressions);
}

/*
 * Might PostgreSQL take the expressions of these indexes for the same?  It simplifies
 * them before, which calls functions: if those may be of users, the answer is yes.
 */
bool
ot_ddl_indexes_compute_alike(Oid one, Oid other)
{
	return !ot_ddl_index_is_built_in(one) || !ot_ddl_index_is_built_in(other) ||
		equal(ddl_alike_simplified(one), ddl_alike_simplified(other));
}

static bool
ddl_alike_indexes_are_built_in(Relation rel)
{
	bool		answer = true;
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
		answer &= ot_ddl_index_is_built_in(lfirst_oid(lc));
	return answer;
}

/* Gives back the locks of find_all_inheritors(): a child is locked once for each of its parents. */
static void
ddl_alike_unlock(List *relids, List *times_locked, LOCKMODE mode)
{
	ListCell   *lc;
	ListCell   *times;

	forboth(lc, relids, times, times_locked)
	{
		for (int i = 0; i < lfirst_int(times); i++)
			UnlockRelationOid(lfirst_oid(lc), mode);
	}
}

/* A foreign key's columns are compared, without the cast that somebody may have made. */
static bool
ddl_alike_compares_key(HeapTuple tuple)
{
	Form_pg_constraint form = (Form_pg_constraint) GETSTRUCT(tuple);
	int			count;
	int			count_set;
	AttrNumber	columns[INDEX_MAX_KEYS];
	AttrNumber	referred_to[INDEX_MAX_KEYS];
	AttrNumber	set[INDEX_MAX_KEYS];
	Oid			operators[INDEX_MAX_KEYS];
	Oid			others[2][INDEX_MAX_KEYS];

	DeconstructFkConstraintRow(tuple, &count, columns, referred_to, operators, others[0], others[1], &count_set, set);
	for (int i = 0; i < count; i++)
	{
		Oid			type = get_atttype(form->conrelid, columns[i]);
		Oid			type_referred_to = get_atttype(form->confrelid, referred_to[i]);
		Oid			left;
		Oid			right;

		op_input_types(operators[i], &left, &right);
		if (operators[i] >= FirstUnpinnedObjectId || !ot_ddl_type_is_built_in(type) ||
			!ot_ddl_type_is_built_in(type_referred_to) || !IsBinaryCoercible(type_referred_to, left) ||
			!IsBinaryCoercible(type, right))
			return false;
	}
	return true;
}

static bool
ddl_alike_has_policies(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		answer = HeapTupleIsValid(tuple) && ((Form_pg_class) GETSTRUCT(tuple))->relrowsecurity;

	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return answer;
}

/* What a foreign key refers to is found by a query that depends on nothing of users. */
static bool
ddl_alike_finds_keys(Oid foreign_key)
{
	HeapTuple	tuple = SearchSysCache1(CONSTROID, ObjectIdGetDatum(foreign_key));
	bool		alike;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for constraint %u", foreign_key);
	alike = ddl_alike_compares_key(tuple) &&
		!ddl_alike_has_policies(((Form_pg_constraint) GETSTRUCT(tuple))->confrelid);
	ReleaseSysCache(tuple);
	return alike;
}

/*
 * A partition gets the foreign keys of its parent, and each region looks whether its
 * rows are as they should be.
 */
static bool
ddl_alike_refers(Oid relid, RangeVar *name)
{
	Relation	parent = relation_open(relid, NoLock);
	List	   *keys = copyObject(RelationGetFKeyList(parent));
	List	   *partitions = NIL;
	List	   *times_locked = NIL;
	Oid			partition;
	bool		alike = true;
	ListCell   *lc;

	relation_close(parent, NoLock);
	foreach(lc, keys)
		alike &= ddl_alike_finds_keys(lfirst_node(ForeignKeyCacheInfo, lc)->conoid);
	if (keys == NIL || !alike)
		return alike;
	/* as ATTACH PARTITION does next */
	partition = RangeVarGetRelid(name, AccessExclusiveLock, true);
	if (!OidIsValid(partition))
		return true;
	partitions = find_all_inheritors(partition, AccessExclusiveLock, &times_locked);
	foreach(lc, partitions)
		alike &= !ddl_alike_has_policies(lfirst_oid(lc));
	if (!alike)
	{
		ddl_alike_unlock(partitions, times_locked, AccessExclusiveLock);
		UnlockRelationOid(partition, AccessExclusiveLock);
	}
	return alike;
}

/*
 * Each region looks whether the rows of a new partition, and of the default one, are
 * where they belong, by the keys of all tables above, and builds the indexes.
 */
static bool
ddl_alike_checks(Oid relid)
{
	Relation	parent = relation_open(relid, NoLock);
	bool		alike = true;
	ListCell   *lc;

	if (parent->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
	{
		alike = ddl_alike_key_is_built_in(parent) && ddl_alike_indexes_are_built_in(parent);
		foreach(lc, parent->rd_rel->relispartition ? get_partition_ancestors(relid) : NIL)
		{
			Relation	above = relation_open(lfirst_oid(lc), AccessShareLock);

			alike &= ddl_alike_key_is_built_in(above);
			relation_close(above, AccessShareLock);
		}
	}
	relation_close(parent, NoLock);
	return alike;
}

/* Who does not own the relation must not lock it. */
static void
ddl_alike_owns(const RangeVar *name, Oid relid, Oid old_relid, void *arg)
{
	if (OidIsValid(relid) && !OT_OWNS_RELATION(relid))
		aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(get_rel_relkind(relid)), name->relname);
}

/*
 * For CREATE TABLE ... PARTITION OF: a default partition's rows, and foreign keys that
 * have to be put in order.  Who may not do that need lock nothing.
 */
static bool
ddl_alike_creates(CreateStmt *stmt)
{
	Oid			parent = stmt->partbound != NULL && stmt->inhRelations != NIL ?
		RangeVarGetRelid(linitial_node(RangeVar, stmt->inhRelations), NoLock, true) : InvalidOid;
	bool		alike;

	if (!OidIsValid(parent) || !OT_OWNS_RELATION(parent))
		return true;
	/* the name may mean another table by then */
	parent = RangeVarGetRelidExtended(linitial_node(RangeVar, stmt->inhRelations), AccessExclusiveLock,
									  RVR_MISSING_OK, ddl_alike_owns, NULL);
	if (!OidIsValid(parent))
		return true;
	alike = ot_ddl_finds_order((Node *) stmt) &&
		(!OidIsValid(get_default_partition_oid(parent)) || ddl_alike_checks(parent));
	if (!alike)
		UnlockRelationOid(parent, AccessExclusiveLock);
	return alike;
}

/* ---- VALIDATE CONSTRAINT ---- */

/*
 * Each region looks whether its rows are as they should be.  Those of a foreign key it
 * finds by a query, to which policies apply.
 */
static bool
ddl_alike_validates(Oid relid, const char *name)
{
	HeapTuple	tuple = SearchSysCache1(CONSTROID, ObjectIdGetDatum(get_relation_constraint_oid(relid, name, true)));
	Form_pg_constraint constraint;
	bool		alike;

	/* the statement will fail */
	if (!HeapTupleIsValid(tuple))
		return true;
	constraint = (Form_pg_constraint) GETSTRUCT(tuple);
	alike = ddl_alike_stored_is_built_in(CONSTROID, tuple, Anum_pg_constraint_conbin) &&
		(constraint->contype != CONSTRAINT_FOREIGN ||
		 (ddl_alike_finds_keys(constraint->oid) && !ddl_alike_has_policies(constraint->conrelid)));
	ReleaseSysCache(tuple);
	return alike;
}

/* ---- ALTER COLUMN TYPE, and new columns ---- */

/*
 * The schema in which names are looked up first after pg_catalog, where nobody makes
 * anything: what is in it is hidden by nothing.  InvalidOid: another one comes before
 * pg_catalog.
 */
static Oid
ddl_alike_first_schema(void)
{
	Oid			first = InvalidOid;
	ListCell   *lc;

	foreach(lc, fetch_search_path(true))
	{
		/* what is temporary is hidden in other regions */
		if (isTempNamespace(lfirst_oid(lc)))
			continue;
		if (OidIsValid(first) || lfirst_oid(lc) != PG_CATALOG_NAMESPACE)
			return OidIsValid(first) ? lfirst_oid(lc) : InvalidOid;
		first = PG_CATALOG_NAMESPACE;
	}
	return first;
}

/* Is it of a type whose name may come to mean a new table's? */
static bool
ddl_alike_walk_for_hidden(Node *node, void *first_schema)
{
	ObjectAddress type = {TypeRelationId, InvalidOid, 0};

	if (node == NULL || IsA(node, Var))
		return false;
	if (!IsA(node, List))
	{
		Oid			element = get_element_type(exprType(node));

		type.objectId = OidIsValid(element) ? element : exprType(node);
		if (type.objectId >= FirstUnpinnedObjectId && get_object_namespace(&type) != *(Oid *) first_schema)
			return true;
	}
	return expression_tree_walker(node, ddl_alike_walk_for_hidden, first_schema);
}

/*
 * The values of a new column for rows that are there.  If they differ by region, the
 * rows travel, and no region computes them (ddl_check.c).  The default itself may be
 * gone again by COMMIT, so that it does not show in the catalogs; the column's type does.
 */
static bool
ddl_alike_fills(ColumnDef *column, const char *query)
{
	Type		type = LookupTypeName(NULL, column->typeName, NULL, true);
	Oid			first_schema = ddl_alike_first_schema();
	bool		alike = type == NULL || ((Form_pg_type) GETSTRUCT(type))->typtype != TYPTYPE_DOMAIN;
	ListCell   *lc;

	if (type != NULL)
		ReleaseSysCache(type);
	foreach(lc, column->constraints)
	{
		Constraint *constraint = lfirst_node(Constraint, lc);
		ParseState *pstate;
		Node	   *written;
		Node	   *value;

		if (constraint->contype != CONSTR_DEFAULT || type == NULL)
			continue;
		pstate = make_parsestate(NULL);
		pstate->p_sourcetext = query;
		written = transformExpr(pstate, copyObject(constraint->raw_expr), EXPR_KIND_COLUMN_DEFAULT);
		value = ot_ddl_as_column(pstate, written, column->typeName);
		alike &= value == NULL || ot_ddl_differs_elsewhere(value) ||
			(ot_ddl_is_built_in(value) && OidIsValid(first_schema) && !ddl_alike_walk_for_hidden(written, &first_schema));
		free_parsestate(pstate);
	}
	return alike;
}

/*
 * Neither which table it was nor the expression is in the catalogs afterwards, and if
 * the type is the one that the column has, nothing shows at all.  So all names have to
 * mean the same whatever other sessions make.
 */
static bool
ddl_alike_converts(ParseState *pstate, Relation rel, AlterTableStmt *stmt, AlterTableCmd *command)
{
	Oid			first_schema = ddl_alike_first_schema();
	Node	   *expression = ot_ddl_converted(pstate, rel, command);

	return expression == NULL ||
		(OidIsValid(first_schema) &&
		 (stmt->relation->schemaname != NULL || RelationGetNamespace(rel) == first_schema) &&
		 ot_ddl_is_built_in(expression) && !ddl_alike_walk_for_hidden(expression, &first_schema));
}

/* Does the stored expression refer to such a column? */
static bool
ddl_alike_uses(Node *expression, Bitmapset *columns)
{
	Bitmapset  *used = NULL;

	pull_varattnos(expression, 1, &used);
	return bms_overlap(used, columns);
}

static bool
ddl_alike_index_uses(Oid index, Bitmapset *columns)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	bool		answer;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", index);
	answer = ddl_alike_uses(ddl_alike_stored(INDEXRELID, tuple, Anum_pg_index_indexprs), columns) ||
		ddl_alike_uses(ddl_alike_stored(INDEXRELID, tuple, Anum_pg_index_indpred), columns);
	ReleaseSysCache(tuple);
	return answer;
}

/*
 * Each region builds the indexes of the table, or of a child, anew.  A CHECK or an
 * index that computes with a column of another type may call another function then.
 */
static bool
ddl_alike_rewrites(Oid relid, List *commands)
{
	Relation	rel = relation_open(relid, NoLock);
	TupleConstr *constraints = RelationGetDescr(rel)->constr;
	Bitmapset  *converted = NULL;
	bool		alike = ddl_alike_indexes_are_built_in(rel) && ot_index_jobs_of(rel, false) == NIL;
	ListCell   *lc;

	foreach(lc, commands)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);
		AttrNumber	attnum = command->subtype == AT_AlterColumnType ? get_attnum(relid, command->name) : InvalidAttrNumber;

		if (attnum <= 0)
			continue;
		/* an identity column's sequence is altered with it, a generated column's expression is written anew */
		alike &= TupleDescAttr(RelationGetDescr(rel), attnum - 1)->attidentity == '\0' &&
			TupleDescAttr(RelationGetDescr(rel), attnum - 1)->attgenerated == '\0';
		converted = bms_add_member(converted, attnum - FirstLowInvalidHeapAttributeNumber);
		/* the whole row */
		converted = bms_add_member(converted, -FirstLowInvalidHeapAttributeNumber);
	}
	for (int i = 0; constraints != NULL && i < constraints->num_check; i++)
		alike &= !ddl_alike_uses(stringToNode(constraints->check[i].ccbin), converted);
	foreach(lc, RelationGetIndexList(rel))
		alike &= !ddl_alike_index_uses(lfirst_oid(lc), converted);
	relation_close(rel, NoLock);
	return alike;
}

/* ---- ALTER TABLE ---- */

static bool
ddl_alike_command(Oid relid, AlterTableStmt *stmt, AlterTableCmd *command, const char *query)
{
	ColumnDef  *column = (ColumnDef *) command->def;
	/* with IF NOT EXISTS, too: the column that is there may be gone by then */
	bool		adds = command->subtype == AT_AddColumn;
	Constraint *generated = adds ? ddl_alike_generated(column) : NULL;
	ParseState *pstate;
	Relation	rel;
	bool		alike;

	if (adds && !ddl_alike_fills(column, query))
		return false;
	/* if another session's table is there by then, the catalogs may not show what TYPE has done to its rows */
	if (!OidIsValid(relid))
		return command->subtype != AT_AlterColumnType;
	if (command->subtype == AT_AttachPartition)
		return ot_ddl_finds_order((Node *) stmt) && ddl_alike_checks(relid) &&
			ddl_alike_refers(relid, castNode(PartitionCmd, command->def)->name);
	if (command->subtype == AT_ValidateConstraint)
		return ddl_alike_validates(relid, command->name);
	if (command->subtype != AT_AlterColumnType && generated == NULL)
		return true;
	pstate = make_parsestate(NULL);
	pstate->p_sourcetext = query;
	rel = relation_open(relid, NoLock);
	alike = generated != NULL ?
		ot_ddl_generates_built_in(pstate, rel, stmt->cmds, generated->raw_expr, column->typeName) :
		ddl_alike_converts(pstate, rel, stmt, command);
	relation_close(rel, NoLock);
	free_parsestate(pstate);
	return alike;
}

static bool
ddl_alike_alters(AlterTableStmt *stmt, const char *query)
{
	LOCKMODE	mode = AlterTableGetLockLevel(stmt->cmds);
	bool		rewrites = ot_ddl_alters(stmt, AT_AlterColumnType);
	bool		locks = rewrites || ot_ddl_alters(stmt, AT_AttachPartition) ||
		ot_ddl_alters(stmt, AT_ValidateConstraint);
	List	   *rewritten = NIL;
	List	   *times_locked = NIL;
	bool		alike = true;
	Oid			relid;
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);

		rewrites |= command->subtype == AT_AddColumn && ddl_alike_generated((ColumnDef *) command->def) != NULL;
	}
	locks |= rewrites;
	relid = locks ? AlterTableLookupRelation(stmt, mode) : RangeVarGetRelid(stmt->relation, NoLock, true);
	foreach(lc, stmt->cmds)
		alike = alike && ddl_alike_command(relid, stmt, lfirst_node(AlterTableCmd, lc), query);
	if (alike && rewrites && OidIsValid(relid))
	{
		rewritten = find_all_inheritors(relid, mode, &times_locked);
		foreach(lc, rewritten)
			alike &= ddl_alike_rewrites(lfirst_oid(lc), stmt->cmds);
		alike = alike && !ot_ddl_converts_foreign_key(rewritten, stmt->cmds, true);
	}
	if (!alike && locks && OidIsValid(relid))
	{
		ddl_alike_unlock(rewritten, times_locked, mode);
		UnlockRelationOid(relid, mode);
	}
	return alike;
}

/* Does the statement have other regions compute with nothing but what is built in? */
bool
ot_ddl_computes_alike(Node *stmt, const char *query)
{
	switch (nodeTag(stmt))
	{
		case T_IndexStmt:
			return ddl_alike_builds((IndexStmt *) stmt, query);
		case T_CreateStmt:
			return ddl_alike_creates((CreateStmt *) stmt);
		case T_AlterTableStmt:
			return ddl_alike_alters((AlterTableStmt *) stmt, query);
		default:
			return true;
	}
}
