/*-------------------------------------------------------------------------
 *
 * ddl_check.c
 *	  Refuses statements that must not be recorded as they are written.
 *
 * A recorded statement must do the same in every region.  A statement that
 * would not, for example a rewrite with random(), is refused here, before it has
 * done anything, with SQLSTATE 0A000 and a hint that says what to do instead.
 *
 * Runs in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parse_coerce.h"
#include "parser/parse_expr.h"
#include "parser/parse_node.h"
#include "parser/parse_relation.h"
#include "parser/parse_type.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "capture/capture.h"

void
ot_ddl_refuse(const char *what, const char *hint)
{
	ereport(ERROR,
			(errcode(OT_ERR_NOT_REPLICATED),
			 errmsg("cannot replicate %s", what),
			 errhint("%s", hint)));
}

/*
 * Checks statements in every database of the server: the replicated database
 * must be neither dropped nor renamed, and changes of roles in other databases
 * get a warning, since they are not replicated.
 */
void
ot_ddl_check_everywhere(Node *stmt)
{
	const char *database = NULL;

	switch (nodeTag(stmt))
	{
		case T_DropdbStmt:
			database = ((DropdbStmt *) stmt)->dbname;
			break;
		case T_RenameStmt:
			if (((RenameStmt *) stmt)->renameType == OBJECT_DATABASE)
				database = ((RenameStmt *) stmt)->subname;
			break;
		case T_CreateRoleStmt:
		case T_AlterRoleStmt:
		case T_AlterRoleSetStmt:
		case T_DropRoleStmt:
		case T_GrantRoleStmt:
			if (!ot_in_replicated_database())
				ereport(WARNING,
						(errmsg("this change of roles stays on this server"),
						 errhint("Change roles in database \"%s\", and every region follows.",
								 ot_database)));
			return;
		default:
			return;
	}
	if (database != NULL && strcmp(database, ot_database) == 0)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("database \"%s\" is replicated and can be neither dropped nor renamed",
						database),
				 errhint("Its name belongs to the cluster, see onetrip init.")));
}

/* ---- ALTER TABLE ---- */

/* What an expression gives in other regions, in the order of what is worse. */
typedef enum Values
{
	VALUES_SAME,
	VALUES_VOLATILE,			/* other ones each time, so rows are rewritten */
	VALUES_DIFFER
} Values;

/* Does the relation, or a child of it, have rows that travel? */
static bool
ddl_check_has_replicated_rows(Oid relid, LOCKMODE lockmode)
{
	ListCell   *lc;

	foreach(lc, find_all_inheritors(relid, lockmode, NULL))
	{
		Relation	rel = relation_open(lfirst_oid(lc), NoLock);
		bool		rows = rel->rd_rel->relkind == RELKIND_RELATION &&
			ot_contents_travel(rel->rd_rel) && RelationGetNumberOfBlocks(rel) > 0;

		relation_close(rel, NoLock);
		if (rows)
			return true;
	}
	return false;
}

static bool
ddl_check_is_serial(TypeName *type)
{
	static const char *const names[] = {"serial", "serial2", "serial4", "serial8",
	"smallserial", "bigserial", NULL};

	if (type == NULL || list_length(type->names) != 1 || OidIsValid(type->typeOid))
		return false;
	for (int i = 0; names[i] != NULL; i++)
	{
		if (strcmp(strVal(linitial(type->names)), names[i]) == 0)
			return true;
	}
	return false;
}

static const char *
ddl_check_column_name(Node *node)
{
	Node	   *last = IsA(node, ColumnRef) ? llast(((ColumnRef *) node)->fields) : NULL;

	return last != NULL && IsA(last, String) ? strVal(last) : NULL;
}

/*
 * Does the expression of a generated column use an OID?  PostgreSQL regards
 * tableoid, and the OID that a constant name stands for, as immutable.  Looks
 * at the raw parse tree, since columns that the expression refers to may be
 * new themselves.
 */
static bool
ddl_check_generates_from_oids(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, ColumnRef))
		return ddl_check_column_name(node) != NULL && strcmp(ddl_check_column_name(node), "tableoid") == 0;
	if (IsA(node, TypeCast))
	{
		Oid			type = typenameTypeId(NULL, ((TypeCast *) node)->typeName);

		if (ot_type_is_by_oid(type))
			return true;
	}
	return raw_expression_tree_walker(node, ddl_check_generates_from_oids, context);
}

/* Does the expression refer to a column that does not exist yet? */
static bool
ddl_check_refers_to_new(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, ColumnRef))
		return ddl_check_column_name(node) != NULL &&
			get_attnum(*(Oid *) context, ddl_check_column_name(node)) == InvalidAttrNumber;
	return raw_expression_tree_walker(node, ddl_check_refers_to_new, context);
}

/* Includes the cast to the column's type, which may call a user function. */
static Values
ddl_check_computes(ParseState *pstate, Node *expression, TypeName *column_type)
{
	Oid			type;
	int32		typmod;

	typenameTypeIdAndMod(pstate, column_type, &type, &typmod);
	expression = coerce_to_target_type(pstate, expression, exprType(expression), type, typmod,
									   COERCION_ASSIGNMENT, COERCE_IMPLICIT_CAST, -1);
	if (expression == NULL)		/* there is no cast: the server will say so */
		return VALUES_SAME;
	if (contain_volatile_functions(expression))
		return VALUES_VOLATILE;
	return ot_ddl_differs_elsewhere(expression) ? VALUES_DIFFER : VALUES_SAME;
}

/*
 * The same, for the expression of a generated column.  PostgreSQL itself
 * enforces that it is IMMUTABLE.
 */
static bool
ddl_check_generates_same(ParseState *pstate, Relation rel, Node *raw, TypeName *column_type)
{
	Oid			relid = RelationGetRelid(rel);

	if (ddl_check_generates_from_oids(raw, NULL))
		return false;
	if (ddl_check_refers_to_new(raw, &relid))
		return true;
	addNSItemToQuery(pstate, addRangeTableEntryForRelation(pstate, rel, AccessShareLock, NULL,
														   false, true),
					 false, true, true);
	return ddl_check_computes(pstate,
							  transformExpr(pstate, copyObject(raw), EXPR_KIND_GENERATED_COLUMN),
							  column_type) == VALUES_SAME;
}

/* What values would ADD COLUMN give existing rows in other regions? */
static Values
ddl_check_adds(ParseState *pstate, Relation rel, AlterTableCmd *command)
{
	ColumnDef  *column = castNode(ColumnDef, command->def);
	Values		worst = VALUES_SAME;
	bool		has_default = false;
	ListCell   *lc;

	if (command->missing_ok && get_attnum(RelationGetRelid(rel), column->colname) != InvalidAttrNumber)
		return VALUES_SAME;
	if (ddl_check_is_serial(column->typeName))
		worst = VALUES_VOLATILE;
	foreach(lc, column->constraints)
	{
		Constraint *constraint = lfirst_node(Constraint, lc);

		if (constraint->contype == CONSTR_IDENTITY)
			worst = Max(worst, VALUES_VOLATILE);
		if (constraint->contype == CONSTR_GENERATED)
		{
			has_default = true;
			if (!ddl_check_generates_same(pstate, rel, constraint->raw_expr, column->typeName))
				return VALUES_DIFFER;
		}
		if (constraint->contype == CONSTR_DEFAULT && constraint->raw_expr)
		{
			Values		values = ddl_check_computes(pstate,
													transformExpr(pstate, copyObject(constraint->raw_expr),
																  EXPR_KIND_COLUMN_DEFAULT),
													column->typeName);

			has_default = true;
			worst = Max(worst, values);
		}
	}
	if (!has_default && column->typeName && !ddl_check_is_serial(column->typeName))
	{
		Node	   *def = get_typdefault(typenameTypeId(pstate, column->typeName));

		if (def != NULL)
		{
			Values		values = ddl_check_computes(pstate, def, column->typeName);

			worst = Max(worst, values);
		}
	}
	return worst;
}

static bool
ddl_check_converts_volatile(ParseState *pstate, Relation rel, AlterTableCmd *command)
{
	ColumnDef  *column = castNode(ColumnDef, command->def);
	AttrNumber	attnum = get_attnum(RelationGetRelid(rel), command->name);
	ParseNamespaceItem *item;
	Node	   *expression;

	if (attnum <= 0)
		return false;
	item = addRangeTableEntryForRelation(pstate, rel, AccessShareLock, NULL, false, true);
	addNSItemToQuery(pstate, item, false, true, true);
	if (column->raw_default)
		expression = transformExpr(pstate, copyObject(column->raw_default),
								   EXPR_KIND_ALTER_COL_TRANSFORM);
	else
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), attnum - 1);

		expression = (Node *) makeVar(1, attnum, att->atttypid, att->atttypmod,
									  att->attcollation, 0);
	}
	return ddl_check_computes(pstate, expression, column->typeName) != VALUES_SAME;
}

/* Does the statement do nothing but add columns? */
static bool
ddl_check_only_adds(AlterTableStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		if (lfirst_node(AlterTableCmd, lc)->subtype != AT_AddColumn)
			return false;
	}
	return true;
}

/*
 * Refuses commands of ALTER TABLE for what they would do to the rows of the
 * relation, or of its children.
 */
static void
ddl_check_commands(AlterTableStmt *stmt, Oid relid, LOCKMODE lockmode, const char *query)
{
	Relation	rel = relation_open(relid, NoLock);
	bool		typed = stmt->objtype == OBJECT_TYPE;
	const char *of_type = typed ?
		psprintf("Take table \"%s\" out of the type (ALTER TABLE ... NOT OF), change both, and put it back (ALTER TABLE ... OF).",
				 RelationGetRelationName(rel)) : NULL;
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);
		ParseState *pstate;

		if (typed && command->behavior != DROP_CASCADE)
			continue;
		pstate = make_parsestate(NULL);
		pstate->p_sourcetext = query;
		switch (command->subtype)
		{
			case AT_AddColumn:
				{
					Values		values = ddl_check_adds(pstate, rel, command);

					if (values == VALUES_SAME || !ddl_check_has_replicated_rows(relid, lockmode))
						break;
					if (values == VALUES_DIFFER || typed)
						ot_ddl_refuse("ADD COLUMN with a default that may differ between regions",
									  of_type ? of_type :
									  "Add the column without default, fill it with UPDATE, then use ALTER COLUMN ... SET DEFAULT.");
					if (!ddl_check_only_adds(stmt))
						ot_ddl_refuse("ADD COLUMN with a volatile default together with other commands",
									  "Use an ALTER TABLE of its own for ADD COLUMN.");
					break;
				}
			case AT_AlterColumnType:
				if (ddl_check_converts_volatile(pstate, rel, command) &&
					ddl_check_has_replicated_rows(relid, lockmode))
					ot_ddl_refuse("ALTER COLUMN TYPE with a USING expression that is volatile or may differ between regions",
								  of_type ? of_type :
								  "Add a new column, fill it with UPDATE, drop the old one and rename the new one.");
				break;
			case AT_SetAccessMethod:
				{
					const char *to = command->name ? command->name : ot_ddl_default_access_method();
					bool		from_onetrip = ot_is_onetrip_table(rel);

					if (from_onetrip != (strcmp(to, "onetrip") == 0))
						ot_ddl_refuse("SET ACCESS METHOD to or from onetrip",
									  "Create a table with the other access method and copy the rows with INSERT ... SELECT.");
					break;
				}
			case AT_SetLogged:
			case AT_SetUnLogged:
				if (ot_is_onetrip_table(rel))
					ot_ddl_refuse("SET LOGGED or SET UNLOGGED of a onetrip table",
								  "Create a new table and copy the rows with INSERT ... SELECT.");
				break;
			default:
				break;
		}
		free_parsestate(pstate);
	}
	relation_close(rel, NoLock);
}

/*
 * ALTER TYPE ... CASCADE changes the tables OF the type like the type itself.
 * A table of another owner is skipped: the statement will fail on it.
 */
static void
ddl_check_typed_tables(AlterTableStmt *stmt, Oid type, LOCKMODE lockmode, const char *query)
{
	Relation	catalog = table_open(RelationRelationId, AccessShareLock);
	List	   *typed = NIL;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	ListCell   *lc;

	ScanKeyInit(&key, Anum_pg_class_reloftype, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(type));
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		typed = lappend_oid(typed, ((Form_pg_class) GETSTRUCT(tuple))->oid);
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);

	foreach(lc, typed)
	{
		Oid			relid = lfirst_oid(lc);

		if (!OT_OWNS_RELATION(relid) || get_rel_persistence(relid) == RELPERSISTENCE_TEMP)
			continue;
		LockRelationOid(relid, lockmode);
		if (get_rel_relkind(relid) != '\0')
			ddl_check_commands(stmt, relid, lockmode, query);
	}
}

static void
ddl_check_alter_table(AlterTableStmt *stmt, const char *query)
{
	LOCKMODE	lockmode = AlterTableGetLockLevel(stmt->cmds);
	bool		interesting = false;
	Oid			relid;
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);

		switch (command->subtype)
		{
			case AT_AddColumn:
			case AT_AlterColumnType:
			case AT_SetAccessMethod:
			case AT_SetLogged:
			case AT_SetUnLogged:
				interesting = true;
				break;
			default:
				break;
		}
	}
	if (!interesting || (stmt->objtype != OBJECT_TABLE && stmt->objtype != OBJECT_TYPE))
		return;

	/* takes the lock, with the checks, that the statement itself takes next */
	relid = AlterTableLookupRelation(stmt, lockmode);
	if (!OidIsValid(relid))
		return;
	if (stmt->objtype == OBJECT_TABLE)
		ddl_check_commands(stmt, relid, lockmode, query);
	else
		ddl_check_typed_tables(stmt, get_rel_type_id(relid), lockmode, query);
}

/*
 * The table that the statement fills with values that other regions could not
 * compute as well, so that its rows and those of its children have to travel;
 * InvalidOid if it fills none so.  The statement has been checked.
 */
Oid
ot_ddl_fills(Node *node, const char *query)
{
	AlterTableStmt *stmt = (AlterTableStmt *) node;
	LOCKMODE	lockmode;
	Oid			relid;
	Relation	rel;
	Values		worst = VALUES_SAME;
	ListCell   *lc;

	if (!IsA(node, AlterTableStmt) || stmt->objtype != OBJECT_TABLE || !ddl_check_only_adds(stmt))
		return InvalidOid;
	lockmode = AlterTableGetLockLevel(stmt->cmds);
	relid = AlterTableLookupRelation(stmt, lockmode);
	if (!OidIsValid(relid))
		return InvalidOid;
	rel = relation_open(relid, NoLock);
	foreach(lc, stmt->cmds)
	{
		ParseState *pstate = make_parsestate(NULL);
		Values		values;

		pstate->p_sourcetext = query;
		values = ddl_check_adds(pstate, rel, lfirst_node(AlterTableCmd, lc));
		worst = Max(worst, values);
		free_parsestate(pstate);
	}
	relation_close(rel, NoLock);
	return worst != VALUES_SAME && ddl_check_has_replicated_rows(relid, lockmode) ? relid : InvalidOid;
}

/* ---- other statements ---- */

/*
 * SET ... FROM CURRENT takes its value from this session.  Other regions have
 * that value only if the setting travels.
 */
static void
ddl_check_from_current(VariableSetStmt *stmt)
{
	if (stmt->kind != VAR_SET_CURRENT)
		return;
	if (ot_session_settings_travel(stmt->name))
		return;
	ot_ddl_refuse(psprintf("SET %s FROM CURRENT", stmt->name),
				  "Write the value into the statement.");
}

/* Our code looks up the extension, its schema and its objects by name. */
static void
ddl_check_own_extension(Node *stmt)
{
	static const char own[] = "onetrip";
	const char *what = NULL;
	ListCell   *lc;

	switch (nodeTag(stmt))
	{
		case T_DropStmt:
			if (((DropStmt *) stmt)->removeType != OBJECT_EXTENSION &&
				((DropStmt *) stmt)->removeType != OBJECT_SCHEMA)
				break;
			foreach(lc, ((DropStmt *) stmt)->objects)
			{
				if (strcmp(strVal(lfirst(lc)), own) == 0)
					what = "DROP of the extension or the schema onetrip";
			}
			break;
		case T_RenameStmt:
			if (((RenameStmt *) stmt)->renameType == OBJECT_SCHEMA &&
				strcmp(((RenameStmt *) stmt)->subname, own) == 0)
				what = "ALTER SCHEMA onetrip RENAME";
			break;
		case T_AlterExtensionContentsStmt:
			if (strcmp(((AlterExtensionContentsStmt *) stmt)->extname, own) == 0)
				what = "ALTER EXTENSION onetrip ADD or DROP";
			break;
		case T_AlterObjectSchemaStmt:
			if (((AlterObjectSchemaStmt *) stmt)->objectType == OBJECT_EXTENSION &&
				strcmp(strVal(((AlterObjectSchemaStmt *) stmt)->object), own) == 0)
				what = "ALTER EXTENSION onetrip SET SCHEMA";
			break;
		default:
			break;
	}
	if (what != NULL)
		ot_ddl_refuse(what, "The extension and its schema belong to the cluster. To leave it, dump the database and stop the nodes.");
}

/* Raises 0A000 for a statement that would be recorded but must not be. */
void
ot_ddl_check_recorded(Node *stmt, const char *query)
{
	ListCell   *lc;

	ddl_check_own_extension(stmt);
	switch (nodeTag(stmt))
	{
		case T_AlterTableStmt:
			ddl_check_alter_table((AlterTableStmt *) stmt, query);
			break;
		case T_IndexStmt:
			/* regions that have built it would enforce it, and others not yet */
			if (((IndexStmt *) stmt)->concurrent && ((IndexStmt *) stmt)->unique)
				ot_ddl_refuse("CREATE UNIQUE INDEX CONCURRENTLY",
							  "Use CREATE UNIQUE INDEX without CONCURRENTLY.");
			break;
		case T_DropStmt:
			{
				DropStmt   *drop = (DropStmt *) stmt;

				if (drop->removeType == OBJECT_PUBLICATION)
					ot_ddl_refuse("a publication",
								  "Logical replication out of a replicated database is not supported yet.");
				break;
			}
		case T_CreateFunctionStmt:
			foreach(lc, ((CreateFunctionStmt *) stmt)->options)
			{
				DefElem    *option = lfirst_node(DefElem, lc);

				if (strcmp(option->defname, "set") == 0)
					ddl_check_from_current((VariableSetStmt *) option->arg);
			}
			break;
		case T_AlterFunctionStmt:
			foreach(lc, ((AlterFunctionStmt *) stmt)->actions)
			{
				DefElem    *option = lfirst_node(DefElem, lc);

				if (strcmp(option->defname, "set") == 0)
					ddl_check_from_current((VariableSetStmt *) option->arg);
			}
			break;
		case T_AlterRoleSetStmt:
			ddl_check_from_current(((AlterRoleSetStmt *) stmt)->setstmt);
			break;
		case T_AlterDatabaseSetStmt:
			ddl_check_from_current(((AlterDatabaseSetStmt *) stmt)->setstmt);
			break;
		default:
			break;
	}
}
