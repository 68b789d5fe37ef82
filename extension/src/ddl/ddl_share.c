/*-------------------------------------------------------------------------
 *
 * ddl_share.c
 *	  The lock that stands for the schema key, and how DDL of several sessions of
 *	  one region shares it.
 *
 * All DDL takes the schema key, and in each server a lock on the access method,
 * which nothing else locks: a key that is taken for something held until COMMIT
 * needs a lock behind it, here and in the apply worker.
 *
 * Most statements about tables take it in SHARE mode, so that sessions need not
 * wait for each other's transactions; all other DDL, and the apply worker, take
 * it for themselves (EXCLUSIVE mode).  COMMITs of those that share come one after
 * the other, under a second lock, and the key gets the base of COMMIT there: while
 * a transaction shares, only those that share too can have got in between.
 *
 * Other regions carry out such transactions one after the other, each as a whole,
 * in the order of their COMMITs, and not as they ran here: a name that PostgreSQL
 * makes up, or one that a statement looks up, may come out otherwise then.
 * PostgreSQL's locks keep nothing of this out.  So a transaction that has met
 * another one may only commit if one other region has carried out its statements
 * for trial, in their place, and has come to the same change of the catalogs
 * (catalog_digest.c, commit/rehearse.c).  Statements that call users' functions on rows
 * in other regions do not share, and neither do those that change functions.
 *
 * Before a transaction goes on next to another one it asks whether anybody could
 * say so at all.  If not, and after a COMMIT that failed because of this, it takes
 * the lock for itself.  If the question at COMMIT was left unanswered, all sessions
 * do for a while.
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
#include "catalog/pg_am.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_partitioned_table.h"
#include "catalog/pg_type.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parse_coerce.h"
#include "parser/parse_expr.h"
#include "parser/parse_type.h"
#include "parser/parse_utilcmd.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/partcache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "capture/capture.h"
#include "shmem/shmem.h"

/* The level whose libraries can say how a transaction's statements come out. */
#define LEVEL 1

/*
 * Further locks on the access method: under the first, those commit that share; who
 * has the second stands in line for all sessions of this region that share.
 */
#define COMMITS_OF_SHARERS 1
#define PLACE_IN_LINE 2

typedef struct Shared
{
	pg_atomic_uint64 shares;	/* how many shares there have been */
	pg_atomic_uint64 unanswered;	/* when a COMMIT last gave up its question; 0: never */
} Shared;

static Shared *shared = NULL;

/* The share of this transaction. */
static struct
{
	LocalTransactionId lxid;	/* InvalidLocalTransactionId: there is none */
	uint64		number;			/* of this one, among all shares */
	bool		met;			/* another transaction had one at the same time */
	uint64		unanswered;		/* as in shared memory when its COMMIT began */
}			share;

/* A transaction has failed because of what it has met: the next one goes alone. */
static bool goes_alone = false;

static const OtDdlLine *ddl_line = NULL;

static void
ddl_share_attach_memory(void *memory, bool found)
{
	shared = memory;
	if (!found)
	{
		pg_atomic_init_u64(&shared->shares, 0);
		pg_atomic_init_u64(&shared->unanswered, 0);
	}
}

void
ot_ddl_share_init(void)
{
	static const OtShmemPart part = {"onetrip shares of the schema lock", sizeof(Shared), ddl_share_attach_memory};

	ot_shmem_add(&part);
}

/* How long no session shares after a COMMIT that nobody answered. */
#define UNANSWERED_MS (60 * 1000)

static bool
ddl_share_is_unanswered(void)
{
	TimestampTz at = (TimestampTz) pg_atomic_read_u64(&shared->unanswered);
	TimestampTz now = ot_now();

	/* the clock may have been set back */
	return at != 0 && at <= now && !TimestampDifferenceExceeds(at, now, UNANSWERED_MS);
}

/* ---- which statements ---- */

static bool
ddl_share_object(ObjectType type)
{
	switch (type)
	{
		case OBJECT_TABLE:
		case OBJECT_INDEX:
		case OBJECT_VIEW:
		case OBJECT_SEQUENCE:
		case OBJECT_COLUMN:
		case OBJECT_TABCONSTRAINT:
		case OBJECT_TRIGGER:
		case OBJECT_RULE:
		case OBJECT_POLICY:
		case OBJECT_STATISTIC_EXT:
			return true;
		default:
			return false;
	}
}

/* Those of the TOAST table do not show in the digest. */
static bool
ddl_share_options(List *options)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		if (lfirst_node(DefElem, lc)->defnamespace != NULL)
			return false;
	}
	return true;
}

/*
 * Sequences are given a position anew, which does not show in the digest either.
 * Each region has its own shares of the values, but a definition is the same
 * everywhere, and shows.
 */
static bool
ddl_share_sequence(List *options)
{
	return ot_ddl_find_option(options, "restart") == NULL;
}

static bool
ddl_share_has(AlterTableStmt *stmt, AlterTableType subtype)
{
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		if (lfirst_node(AlterTableCmd, lc)->subtype == subtype)
			return true;
	}
	return false;
}

static bool
ddl_share_alter_table(AlterTableStmt *stmt)
{
	bool		validates = ddl_share_has(stmt, AT_ValidateConstraint);
	bool		converts = ddl_share_has(stmt, AT_AlterColumnType);
	ListCell   *lc;

	if (!ddl_share_object(stmt->objtype))
		return false;
	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);

		if (command->behavior == DROP_CASCADE)
			return false;
		/* other commands may change what is looked at */
		if (validates && command->subtype != AT_ValidateConstraint)
			return false;
		if (converts && command->subtype != AT_AlterColumnType && command->subtype != AT_ColumnDefault &&
			command->subtype != AT_SetNotNull && command->subtype != AT_DropNotNull)
			return false;
		switch (command->subtype)
		{
			case AT_AddConstraint:
				if (!IsA(command->def, Constraint) || ((Constraint *) command->def)->contype == CONSTR_EXCLUSION)
					return false;
				break;
			case AT_SetRelOptions:
			case AT_ResetRelOptions:
				if (!ddl_share_options(castNode(List, command->def)))
					return false;
				break;
			case AT_SetIdentity:
				if (!ddl_share_sequence(castNode(List, command->def)))
					return false;
				break;
			case AT_DetachPartition:
				if (((PartitionCmd *) command->def)->concurrent)
					return false;
				break;
			case AT_AddColumn:
			case AT_AttachPartition:
			case AT_ValidateConstraint:
			case AT_AlterColumnType:
			case AT_ColumnDefault:
			case AT_DropNotNull:
			case AT_SetNotNull:
			case AT_SetStatistics:
			case AT_SetOptions:
			case AT_ResetOptions:
			case AT_SetStorage:
			case AT_SetCompression:
			case AT_DropColumn:
			case AT_AlterConstraint:
			case AT_DropConstraint:
			case AT_EnableTrig:
			case AT_EnableAlwaysTrig:
			case AT_EnableReplicaTrig:
			case AT_DisableTrig:
			case AT_EnableTrigAll:
			case AT_DisableTrigAll:
			case AT_EnableTrigUser:
			case AT_DisableTrigUser:
			case AT_EnableRule:
			case AT_EnableAlwaysRule:
			case AT_EnableReplicaRule:
			case AT_DisableRule:
			case AT_AddInherit:
			case AT_DropInherit:
			case AT_EnableRowSecurity:
			case AT_DisableRowSecurity:
			case AT_ForceRowSecurity:
			case AT_NoForceRowSecurity:
			case AT_AddIdentity:
			case AT_DropIdentity:
				break;

				/*
				 * Among the others are those that may change only what does not show in the
				 * digest (RESTART, CLUSTER ON), that copy files, and what later versions bring.
				 */
			default:
				return false;
		}
	}
	return true;
}

/* May the statement share?  It is about relations that it names, and changes no code. */
static bool
ddl_share_statement(Node *stmt)
{
	if (ot_ddl_may_change_code(stmt))
		return false;
	switch (nodeTag(stmt))
	{
		case T_CreateStmt:
		case T_ViewStmt:
		case T_RuleStmt:
		case T_CreateTrigStmt:
		case T_CreatePolicyStmt:
		case T_AlterPolicyStmt:
		case T_CreateStatsStmt:
		case T_AlterStatsStmt:
		case T_CreateSeqStmt:
			return true;
		case T_AlterSeqStmt:
			return ddl_share_sequence(((AlterSeqStmt *) stmt)->options);
		case T_IndexStmt:
			return !((IndexStmt *) stmt)->concurrent;
		case T_CreateTableAsStmt:
			return ((CreateTableAsStmt *) stmt)->objtype == OBJECT_TABLE;
		case T_AlterTableStmt:
			return ddl_share_alter_table((AlterTableStmt *) stmt);
		case T_RenameStmt:
			return ddl_share_object(((RenameStmt *) stmt)->renameType);
		case T_CommentStmt:
			return ddl_share_object(((CommentStmt *) stmt)->objtype);
		case T_GrantStmt:
			return (((GrantStmt *) stmt)->objtype == OBJECT_TABLE ||
					((GrantStmt *) stmt)->objtype == OBJECT_SEQUENCE) &&
				((GrantStmt *) stmt)->targtype == ACL_TARGET_OBJECT;
		case T_DropStmt:
			return ddl_share_object(((DropStmt *) stmt)->removeType) && !((DropStmt *) stmt)->concurrent &&
				((DropStmt *) stmt)->behavior != DROP_CASCADE;
		default:
			return false;
	}
}

/* ---- what other regions compute from rows ---- */

/*
 * Rows do not show in the digest.  So what other regions compute from them, and for
 * them, must not depend on what is beside the statement, as what a user's function
 * gives may.  All this is asked with a share of the lock, which keeps functions and
 * types as they are, and with the lock on the table that the statement takes next.
 */

/* GiST calls a function of this type's (SUBTYPE_DIFF), which any role may choose. */
static bool
ddl_share_is_users_range(Oid type)
{
	/* a column that does not exist */
	if (!OidIsValid(type))
		return false;
	type = getBaseType(type);
	return type >= FirstNormalObjectId && (type_is_range(type) || type_is_multirange(type));
}

/* Indexes are built in each region. */
static bool
ddl_share_builds_alike(IndexStmt *stmt, const char *query)
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
			!ddl_share_is_users_range(get_atttype(relid, get_attnum(relid, column->name)));
	}
	if (!alike)
		UnlockRelationOid(relid, mode);
	return alike;
}

/* That of a generated column, or NULL. */
static Constraint *
ddl_share_generates(ColumnDef *column)
{
	ListCell   *lc;

	foreach(lc, column->constraints)
	{
		if (lfirst_node(Constraint, lc)->contype == CONSTR_GENERATED)
			return lfirst_node(Constraint, lc);
	}
	return NULL;
}

/*
 * The values of a new column for rows that are there.  If they differ by region, the
 * rows travel, and no region computes them (ddl_check.c).
 */
static bool
ddl_share_fills_alike(ColumnDef *column, const char *query)
{
	Type		type = LookupTypeName(NULL, column->typeName, NULL, true);
	bool		alike = type == NULL || ((Form_pg_type) GETSTRUCT(type))->typtype != TYPTYPE_DOMAIN;
	ListCell   *lc;

	if (type != NULL)
		ReleaseSysCache(type);
	foreach(lc, column->constraints)
	{
		Constraint *constraint = lfirst_node(Constraint, lc);
		ParseState *pstate;
		Node	   *value;

		if (constraint->contype != CONSTR_DEFAULT || type == NULL)
			continue;
		pstate = make_parsestate(NULL);
		pstate->p_sourcetext = query;
		value = transformExpr(pstate, copyObject(constraint->raw_expr), EXPR_KIND_COLUMN_DEFAULT);
		value = ot_ddl_as_column(pstate, value, column->typeName);
		alike &= value == NULL || ot_ddl_differs_elsewhere(value) || ot_ddl_is_built_in(value);
		free_parsestate(pstate);
	}
	return alike;
}

/* The expression in a catalog's row, or NULL. */
static Node *
ddl_share_stored(int cache, HeapTuple tuple, AttrNumber column)
{
	bool		isnull;
	Datum		tree = SysCacheGetAttr(cache, tuple, column, &isnull);

	return isnull ? NULL : stringToNode(TextDatumGetCString(tree));
}

/* ... calls nothing but what is built in. */
static bool
ddl_share_stored_is_built_in(int cache, HeapTuple tuple, AttrNumber column)
{
	return ot_ddl_is_built_in(ddl_share_stored(cache, tuple, column));
}

static bool
ddl_share_key_is_built_in(Relation partitioned)
{
	PartitionKey key;
	HeapTuple	tuple = SearchSysCache1(PARTRELID, ObjectIdGetDatum(RelationGetRelid(partitioned)));
	bool		answer;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for partition key of %u", RelationGetRelid(partitioned));
	answer = ddl_share_stored_is_built_in(PARTRELID, tuple, Anum_pg_partitioned_table_partexprs);
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
		ddl_share_stored_is_built_in(INDEXRELID, tuple, Anum_pg_index_indexprs) &&
		ddl_share_stored_is_built_in(INDEXRELID, tuple, Anum_pg_index_indpred);
	for (int i = 1; i <= form->indnkeyatts; i++)
		answer &= !ddl_share_is_users_range(get_atttype(index, i));
	ReleaseSysCache(tuple);
	return answer;
}

/* The expressions of an index that is built in, as PostgreSQL compares them. */
static Node *
ddl_share_simplified(Oid index)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	bool		isnull;
	Datum		tree = SysCacheGetAttr(INDEXRELID, tuple, Anum_pg_index_indexprs, &isnull);
	Node	   *expressions = isnull ? NULL : eval_const_expressions(NULL, stringToNode(TextDatumGetCString(tree)));

	ReleaseSysCache(tuple);
	return expressions;
}

/*
 * Might PostgreSQL take the expressions of these indexes for the same?  It simplifies
 * them before, which calls functions: if those may be of users, the answer is yes.
 */
bool
ot_ddl_indexes_compute_alike(Oid one, Oid other)
{
	return !ot_ddl_index_is_built_in(one) || !ot_ddl_index_is_built_in(other) ||
		equal(ddl_share_simplified(one), ddl_share_simplified(other));
}

static bool
ddl_share_indexes_are_built_in(Relation rel)
{
	bool		answer = true;
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
		answer &= ot_ddl_index_is_built_in(lfirst_oid(lc));
	return answer;
}

/*
 * Each region looks whether the rows of a new partition, and of the default one, are
 * where they belong, by the keys of all tables above, and builds the indexes.
 */
static bool
ddl_share_checks_alike(Oid relid)
{
	Relation	parent = relation_open(relid, NoLock);
	bool		alike = true;
	ListCell   *lc;

	if (parent->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
	{
		alike = ddl_share_key_is_built_in(parent) && ddl_share_indexes_are_built_in(parent);
		foreach(lc, parent->rd_rel->relispartition ? get_partition_ancestors(relid) : NIL)
		{
			Relation	above = relation_open(lfirst_oid(lc), AccessShareLock);

			alike &= ddl_share_key_is_built_in(above);
			relation_close(above, AccessShareLock);
		}
	}
	relation_close(parent, NoLock);
	return alike;
}

/*
 * For CREATE TABLE ... PARTITION OF: a default partition's rows, and foreign keys that
 * have to be put in order.  Who may not do that need lock nothing.
 */
static bool
ddl_share_creates_alike(CreateStmt *stmt)
{
	Oid			parent = stmt->partbound != NULL && stmt->inhRelations != NIL ?
		RangeVarGetRelid(linitial_node(RangeVar, stmt->inhRelations), NoLock, true) : InvalidOid;
	bool		alike = true;

	if (!OidIsValid(parent) || !OT_OWNS_RELATION(parent))
		return true;
	LockRelationOid(parent, AccessExclusiveLock);
	if (get_rel_relkind(parent) != '\0')
		alike = ot_ddl_finds_order((Node *) stmt) &&
			(!OidIsValid(get_default_partition_oid(parent)) || ddl_share_checks_alike(parent));
	if (!alike)
		UnlockRelationOid(parent, AccessExclusiveLock);
	return alike;
}

/* ---- VALIDATE CONSTRAINT ---- */

/* A foreign key's columns are compared, without the cast that somebody may have made. */
static bool
ddl_share_key_is_compared_alike(HeapTuple tuple)
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
ddl_share_has_policies(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		answer = HeapTupleIsValid(tuple) && ((Form_pg_class) GETSTRUCT(tuple))->relrowsecurity;

	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return answer;
}

/*
 * Each region looks whether its rows are as they should be.  Those of a foreign key it
 * finds by a query, to which policies apply.
 */
static bool
ddl_share_validates_alike(Oid relid, const char *name)
{
	HeapTuple	tuple = SearchSysCache1(CONSTROID, ObjectIdGetDatum(get_relation_constraint_oid(relid, name, true)));
	Form_pg_constraint constraint;
	bool		alike;

	/* the statement will fail */
	if (!HeapTupleIsValid(tuple))
		return true;
	constraint = (Form_pg_constraint) GETSTRUCT(tuple);
	alike = ddl_share_stored_is_built_in(CONSTROID, tuple, Anum_pg_constraint_conbin) &&
		(constraint->contype != CONSTRAINT_FOREIGN ||
		 (ddl_share_key_is_compared_alike(tuple) && !ddl_share_has_policies(constraint->conrelid) &&
		  !ddl_share_has_policies(constraint->confrelid)));
	ReleaseSysCache(tuple);
	return alike;
}

/* ---- ALTER COLUMN TYPE, and new columns that are generated ---- */

/*
 * The schema in which names are looked up first after pg_catalog, where nobody makes
 * anything: what is in it is hidden by nothing.  InvalidOid: another one comes before
 * pg_catalog.
 */
static Oid
ddl_share_first_schema(void)
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
ddl_share_walk_for_hidden(Node *node, void *first_schema)
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
	return expression_tree_walker(node, ddl_share_walk_for_hidden, first_schema);
}

/*
 * Neither which table it was nor the expression is in the catalogs afterwards, and if
 * the type is the one that the column has, nothing shows at all.  So all names have to
 * mean the same whatever other sessions make.
 */
static bool
ddl_share_converts_alike(ParseState *pstate, Relation rel, AlterTableStmt *stmt, AlterTableCmd *command)
{
	Oid			first_schema = ddl_share_first_schema();
	Node	   *expression = ot_ddl_converted(pstate, rel, command);

	return expression == NULL ||
		(OidIsValid(first_schema) &&
		 (stmt->relation->schemaname != NULL || RelationGetNamespace(rel) == first_schema) &&
		 ot_ddl_is_built_in(expression) && !ddl_share_walk_for_hidden(expression, &first_schema));
}

/* Does the stored expression refer to such a column? */
static bool
ddl_share_uses(Node *expression, Bitmapset *columns)
{
	Bitmapset  *used = NULL;

	pull_varattnos(expression, 1, &used);
	return bms_overlap(used, columns);
}

static bool
ddl_share_index_uses(Oid index, Bitmapset *columns)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	bool		answer;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", index);
	answer = ddl_share_uses(ddl_share_stored(INDEXRELID, tuple, Anum_pg_index_indexprs), columns) ||
		ddl_share_uses(ddl_share_stored(INDEXRELID, tuple, Anum_pg_index_indpred), columns);
	ReleaseSysCache(tuple);
	return answer;
}

/*
 * Each region builds the indexes of the table, or of a child, anew.  A CHECK or an
 * index that computes with a column of another type may call another function then.
 */
static bool
ddl_share_rewrites_alike(Oid relid, List *commands)
{
	Relation	rel = relation_open(relid, NoLock);
	TupleConstr *constraints = RelationGetDescr(rel)->constr;
	Bitmapset  *converted = NULL;
	bool		alike = ddl_share_indexes_are_built_in(rel) && ot_index_jobs_of(rel, false) == NIL;
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
		alike &= !ddl_share_uses(stringToNode(constraints->check[i].ccbin), converted);
	foreach(lc, RelationGetIndexList(rel))
		alike &= !ddl_share_index_uses(lfirst_oid(lc), converted);
	relation_close(rel, NoLock);
	return alike;
}

/* ---- ALTER TABLE ---- */

static bool
ddl_share_command_is_alike(Oid relid, AlterTableStmt *stmt, AlterTableCmd *command, const char *query)
{
	ColumnDef  *column = (ColumnDef *) command->def;
	bool		adds = command->subtype == AT_AddColumn &&
		!(command->missing_ok && OidIsValid(relid) && ot_ddl_keeps_column(stmt->cmds, relid, column->colname));
	Constraint *generated = adds ? ddl_share_generates(column) : NULL;
	ParseState *pstate;
	Relation	rel;
	bool		alike;

	if (adds && !ddl_share_fills_alike(column, query))
		return false;
	/* if another session's table is there by then, the catalogs may not show what TYPE has done to its rows */
	if (!OidIsValid(relid))
		return command->subtype != AT_AlterColumnType;
	if (command->subtype == AT_AttachPartition)
		return ot_ddl_finds_order((Node *) stmt) && ddl_share_checks_alike(relid);
	if (command->subtype == AT_ValidateConstraint)
		return ddl_share_validates_alike(relid, command->name);
	if (command->subtype != AT_AlterColumnType && generated == NULL)
		return true;
	pstate = make_parsestate(NULL);
	pstate->p_sourcetext = query;
	rel = relation_open(relid, NoLock);
	alike = generated != NULL ?
		ot_ddl_generates_built_in(pstate, rel, stmt->cmds, generated->raw_expr, column->typeName) :
		ddl_share_converts_alike(pstate, rel, stmt, command);
	relation_close(rel, NoLock);
	free_parsestate(pstate);
	return alike;
}

static bool
ddl_share_alters_alike(AlterTableStmt *stmt, const char *query)
{
	LOCKMODE	mode = AlterTableGetLockLevel(stmt->cmds);
	bool		rewrites = ddl_share_has(stmt, AT_AlterColumnType);
	bool		locks = rewrites || ddl_share_has(stmt, AT_AttachPartition) ||
		ddl_share_has(stmt, AT_ValidateConstraint);
	List	   *rewritten = NIL;
	List	   *times_locked = NIL;
	bool		alike = true;
	Oid			relid;
	ListCell   *lc;
	ListCell   *times;

	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);

		rewrites |= command->subtype == AT_AddColumn && ddl_share_generates((ColumnDef *) command->def) != NULL;
	}
	locks |= rewrites;
	relid = locks ? AlterTableLookupRelation(stmt, mode) : RangeVarGetRelid(stmt->relation, NoLock, true);
	foreach(lc, stmt->cmds)
		alike = alike && ddl_share_command_is_alike(relid, stmt, lfirst_node(AlterTableCmd, lc), query);
	if (alike && rewrites && OidIsValid(relid))
	{
		rewritten = find_all_inheritors(relid, mode, &times_locked);
		foreach(lc, rewritten)
			alike &= ddl_share_rewrites_alike(lfirst_oid(lc), stmt->cmds);
		alike = alike && !ot_ddl_converts_foreign_key(rewritten, stmt->cmds, true);
	}
	if (!alike && locks && OidIsValid(relid))
	{
		/* a child is locked once for each of its parents */
		forboth(lc, rewritten, times, times_locked)
		{
			for (int i = 0; i < lfirst_int(times); i++)
				UnlockRelationOid(lfirst_oid(lc), mode);
		}
		UnlockRelationOid(relid, mode);
	}
	return alike;
}

/* Does the statement have other regions compute with nothing but what is built in? */
static bool
ddl_share_computes_alike(Node *stmt, const char *query)
{
	switch (nodeTag(stmt))
	{
		case T_IndexStmt:
			return ddl_share_builds_alike((IndexStmt *) stmt, query);
		case T_CreateStmt:
			return ddl_share_creates_alike((CreateStmt *) stmt);
		case T_AlterTableStmt:
			return ddl_share_alters_alike((AlterTableStmt *) stmt, query);
		default:
			return true;
	}
}

/* ---- the lock ---- */

static void
ddl_share_set_tag(LOCKTAG *tag)
{
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, AccessMethodRelationId, ot_access_method_oid(), 0);
}

static bool
ddl_share_holds(LOCKMODE mode)
{
	LOCKTAG		tag;

	ddl_share_set_tag(&tag);
	return OT_LOCK_IS_HELD_BY_ME(&tag, mode);
}

/*
 * Does another transaction hold the lock, or wait for it for itself?  Until its
 * locks are released, so what it has changed is known here once the answer is no.
 */
static bool
ddl_share_others_hold(void)
{
	LOCKTAG		tag;

	ddl_share_set_tag(&tag);
	if (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return true;
	LockRelease(&tag, ExclusiveLock, false);
	AcceptInvalidationMessages();
	return false;
}

/* Has this transaction a share?  A rollback to a savepoint takes it back. */
static bool
ddl_share_is_there(void)
{
	return share.lxid == OT_LXID(MyProc) && share.lxid != InvalidLocalTransactionId && ddl_share_holds(ShareLock);
}

/*
 * The lock for itself, so that local DDL and DDL that is applied here run one
 * after the other.
 */
void
ot_ddl_lock_schema(void)
{
	ot_position_names_change();
	LockDatabaseObject(AccessMethodRelationId, ot_access_method_oid(), 0, ExclusiveLock);
}

static void
ddl_share_give_back(void)
{
	LOCKTAG		tag;

	ddl_share_set_tag(&tag);
	LockRelease(&tag, ShareLock, false);
}

/*
 * Takes a share of the lock.  Returns false if it had to go on next to others, and
 * nobody could say how that comes out.
 *
 * Of two that share at the same time each finds out about the other: the later
 * one here, before it has done anything, and the earlier one at COMMIT, by the
 * number.
 */
static bool
ddl_share_take(void)
{
	bool		met = share.lxid == OT_LXID(MyProc) && share.met;
	bool		others;

	ot_position_names_change();
	LockDatabaseObject(AccessMethodRelationId, ot_access_method_oid(), 0, ShareLock);
	share.number = pg_atomic_add_fetch_u64(&shared->shares, 1);
	share.lxid = OT_LXID(MyProc);
	others = ddl_share_others_hold();
	share.met = met || others;
	if (!others || ddl_line->is_compared())
		return true;
	ddl_share_give_back();
	share.met = met;
	return false;
}

void
ot_ddl_line_is(const OtDdlLine *line)
{
	ddl_line = line;
}

/*
 * Waits for DDL of other regions that is under way.  Not once it has the lock:
 * who has that keeps other regions from trying their statements here.
 */
void
ot_ddl_stand_in_line(void)
{
	if (!ddl_share_holds(ExclusiveLock) && !ddl_share_holds(ShareLock))
		ddl_line->stand(ot_hash_schema());
}

/* It cannot go on now: others go first, and it stands in line again. */
void
ot_ddl_leave_line(void)
{
	ddl_line->leave();
}

/*
 * Takes the key after the lock, so that its base includes what the lock waited
 * for, and immediately after it: a transaction that holds the lock and has not
 * captured anything looks like a reader to the evictor, which would let it
 * delay an entry for a while.
 */
void
ot_ddl_take_schema_key(void)
{
	ot_ddl_stand_in_line();
	/* another one that shares may want the same */
	goes_alone |= ddl_share_is_there();
	ot_ddl_lock_schema();
	goes_alone = false;
	ot_write_set_key_now(ot_hash_schema(), OT_UPDATE, InvalidOid);
}

/* The place of one session that shares is that of all of this region. */
static void
ddl_share_stand_in_line(void)
{
	if (ConditionalLockDatabaseObject(AccessMethodRelationId, ot_access_method_oid(), PLACE_IN_LINE, ExclusiveLock))
		ot_ddl_stand_in_line();
}

/* The same before this statement, with a share of the lock if that will do. */
void
ot_ddl_take_schema_key_for(Node *stmt, const char *query)
{
	bool		taken = false;
	bool		may = !goes_alone && !ddl_share_is_unanswered() && ot_format_level >= LEVEL && !ot_temporary_functions_possible() &&
		ddl_share_statement(stmt);

	if (may && !ddl_share_is_there() && !ddl_share_holds(ExclusiveLock))
	{
		may = ddl_line->may_be_compared();
		if (may)
		{
			ddl_share_stand_in_line();
			may = taken = ddl_share_take();
		}
	}
	if (may && !ddl_share_holds(ExclusiveLock) && !ddl_share_computes_alike(stmt, query))
	{
		may = false;
		if (taken)
			ddl_share_give_back();
	}
	if (may)
		ot_write_set_key_now(ot_hash_schema(), OT_UPDATE, InvalidOid);
	else
		ot_ddl_take_schema_key();
}

/* ---- COMMIT ---- */

/* lock_timeout is not for COMMIT, which in PostgreSQL waits for no lock. */
static void
ddl_share_lock_commits(void)
{
	const int	own_timeout = LockTimeout;

	PG_TRY();
	{
		LockTimeout = 0;
		LockDatabaseObject(AccessMethodRelationId, ot_access_method_oid(), COMMITS_OF_SHARERS, ExclusiveLock);
	}
	PG_FINALLY();
	{
		LockTimeout = own_timeout;
	}
	PG_END_TRY();
}

/*
 * Called at COMMIT, before keys of locks are taken.  If the transaction shares, it
 * waits for the COMMITs of others that do, and its schema key gets a base that
 * includes them.  Returns whether it has met another one, so that its statements
 * have to be compared.
 */
bool
ot_ddl_share_commits(void)
{
	if (!ddl_share_is_there())
		return false;
	share.unanswered = pg_atomic_read_u64(&shared->unanswered);
	ddl_share_lock_commits();
	AcceptInvalidationMessages();
	/* a temporary function takes the same key, for another lock (ddl_function.c) */
	if (!ot_temporary_functions_possible())
		ot_write_set_raise_base(ot_hash_schema(), OT_UPDATE, ot_applied_index());
	return share.met || pg_atomic_read_u64(&shared->shares) != share.number;
}

/* COMMIT fails because of what the transaction has met. */
void
ot_ddl_share_lost(void)
{
	goes_alone = true;
}

/* COMMIT gives up its question what its statements come to. */
void
ot_ddl_share_unanswered(void)
{
	pg_atomic_write_u64(&shared->unanswered, (uint64) ot_now());
}

/* Has another COMMIT given up its question while this one waited? */
bool
ot_ddl_share_has_waited(void)
{
	return pg_atomic_read_u64(&shared->unanswered) != share.unanswered;
}
