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
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_database.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parse_coerce.h"
#include "parser/parse_expr.h"
#include "parser/parse_func.h"
#include "parser/parse_node.h"
#include "parser/parse_relation.h"
#include "parser/parse_type.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "capture/capture.h"

void
ot_ddl_refuse(const char *what, const char *hint)
{
	ereport(ERROR,
			(errcode(OT_ERR_NOT_REPLICATED),
			 errmsg("cannot replicate %s", what),
			 errhint("%s", hint)));
}

static void
ddl_check_warn_elsewhere(const char *what, const char *todo)
{
	if (!ot_in_replicated_database())
		ereport(WARNING,
				(errmsg("this change of %s stays on this server", what),
				 errhint("%s in database \"%s\", and every region follows.", todo, ot_database)));
}

static void
ddl_check_warn_of_database(const char *name)
{
	if (strcmp(name, ot_database) == 0)
		ddl_check_warn_elsewhere("the replicated database", "Change it");
}

/* A statement about an object that all databases of the server have in common. */
static void
ddl_check_shared_object(ObjectType type, Node *name)
{
	if (type == OBJECT_TABLESPACE)
		ddl_check_warn_elsewhere("a tablespace", "Change it");
	else if (type == OBJECT_ROLE)
		ddl_check_warn_elsewhere("roles", "Change roles");
	else if (type == OBJECT_PARAMETER_ACL)
		ddl_check_warn_elsewhere("privileges on settings", "Change them");
	else if (type == OBJECT_DATABASE)
		ddl_check_warn_of_database(strVal(name));
}

/*
 * The first superuser is who the apply worker is, and PostgreSQL lets nobody
 * rename himself.
 */
static void
ddl_check_renamed_role(const char *name)
{
	if (ot_in_replicated_database() && get_role_oid(name, true) == BOOTSTRAP_SUPERUSERID)
		ot_ddl_refuse(psprintf("another name of role \"%s\", as which other regions carry out what is committed", name),
					  "Create another superuser with that name.");
	ddl_check_warn_elsewhere("roles", "Change roles");
}

/*
 * Nodes are that superuser in their servers, and without one a region cannot even
 * be copied anew.
 */
static void
ddl_check_altered_role(const RoleSpec *role, const char *what)
{
	if (what != NULL && ot_in_replicated_database() && get_rolespec_oid(role, true) == BOOTSTRAP_SUPERUSERID)
		ot_ddl_refuse(psprintf("%s of role \"%s\", as which nodes connect to their servers", what,
							   GetUserNameFromId(BOOTSTRAP_SUPERUSERID, false)),
					  "Keep clients from using that role in pg_hba.conf.");
	ddl_check_warn_elsewhere("roles", "Change roles");
}

/* Is it something else than another database? */
static void
ddl_check_note_shared(ObjectAddress object, void *found)
{
	*(bool *) found |= object.classId != DatabaseRelationId ||
		object.objectId == get_database_oid(ot_database, true);
}

/*
 * REASSIGN OWNED changes the owner of what all databases have in common, too, and DROP
 * OWNED revokes privileges on it.
 */
static void
ddl_check_owned(List *roles, SharedDependencyType reason)
{
	bool		found = false;
	ListCell   *lc;

	foreach(lc, roles)
		ot_ddl_each_of_role(get_rolespec_oid(lfirst(lc), true), InvalidOid, reason, ddl_check_note_shared, &found);
	if (found)
		ddl_check_warn_elsewhere("what roles own or may do", "Run it");
}

/* What of the statement would cut nodes off, or NULL. */
static const char *
ddl_check_shuts_out(const AlterRoleStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, "canlogin") == 0 && !boolVal(option->arg))
			return "NOLOGIN";
		if (strcmp(option->defname, "superuser") == 0 && !boolVal(option->arg))
			return "NOSUPERUSER";
	}
	return NULL;
}

/* Without such a library, no session of the role begins. */
static const char *
ddl_check_preloads(const AlterRoleSetStmt *stmt)
{
	const char *name = stmt->setstmt->kind == VAR_SET_VALUE || stmt->setstmt->kind == VAR_SET_CURRENT ?
		stmt->setstmt->name : "";

	return stmt->role != NULL && (pg_strcasecmp(name, "session_preload_libraries") == 0 ||
								  pg_strcasecmp(name, "local_preload_libraries") == 0) ? "preloaded libraries" : NULL;
}

/*
 * Checks statements in every database of the server: the replicated database
 * must be neither dropped nor renamed, and changes in other databases of it, of
 * roles and of tablespaces get a warning, since they are not replicated.
 */
void
ot_ddl_check_everywhere(Node *stmt)
{
	const char *database = NULL;
	ListCell   *lc;

	switch (nodeTag(stmt))
	{
		case T_DropdbStmt:
			database = ((DropdbStmt *) stmt)->dbname;
			break;
		case T_RenameStmt:
			if (((RenameStmt *) stmt)->renameType == OBJECT_DATABASE)
				database = ((RenameStmt *) stmt)->subname;
			else if (((RenameStmt *) stmt)->renameType == OBJECT_ROLE)
				ddl_check_renamed_role(((RenameStmt *) stmt)->subname);
			else if (((RenameStmt *) stmt)->renameType == OBJECT_TABLESPACE)
				ddl_check_warn_elsewhere("a tablespace", "Change it");
			break;
		case T_AlterTableSpaceOptionsStmt:
			ddl_check_warn_elsewhere("a tablespace", "Change it");
			return;
		case T_AlterDatabaseStmt:
			ddl_check_warn_of_database(((AlterDatabaseStmt *) stmt)->dbname);
			return;
		case T_AlterDatabaseRefreshCollStmt:
			ddl_check_warn_of_database(((AlterDatabaseRefreshCollStmt *) stmt)->dbname);
			return;
		case T_AlterDatabaseSetStmt:
			ddl_check_warn_of_database(((AlterDatabaseSetStmt *) stmt)->dbname);
			return;
		case T_AlterOwnerStmt:
			ddl_check_shared_object(((AlterOwnerStmt *) stmt)->objectType, ((AlterOwnerStmt *) stmt)->object);
			return;
		case T_CommentStmt:
			ddl_check_shared_object(((CommentStmt *) stmt)->objtype, ((CommentStmt *) stmt)->object);
			return;
		case T_SecLabelStmt:
			ddl_check_shared_object(((SecLabelStmt *) stmt)->objtype, ((SecLabelStmt *) stmt)->object);
			return;
		case T_GrantStmt:
			foreach(lc, ((GrantStmt *) stmt)->objects)
				ddl_check_shared_object(((GrantStmt *) stmt)->objtype, lfirst(lc));
			return;
		case T_AlterRoleStmt:
			ddl_check_altered_role(((AlterRoleStmt *) stmt)->role, ddl_check_shuts_out((AlterRoleStmt *) stmt));
			return;
		case T_AlterRoleSetStmt:
			ddl_check_altered_role(((AlterRoleSetStmt *) stmt)->role, ddl_check_preloads((AlterRoleSetStmt *) stmt));
			return;
		case T_CreateRoleStmt:
		case T_DropRoleStmt:
		case T_GrantRoleStmt:
			ddl_check_warn_elsewhere("roles", "Change roles");
			return;
		case T_ReassignOwnedStmt:
			ddl_check_owned(((ReassignOwnedStmt *) stmt)->roles, SHARED_DEPENDENCY_OWNER);
			return;
		case T_DropOwnedStmt:
			ddl_check_owned(((DropOwnedStmt *) stmt)->roles, SHARED_DEPENDENCY_ACL);
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
	/* of a cast, or what JSON_VALUE returns */
	if (IsA(node, TypeName) && ot_type_is_by_oid(typenameTypeId(NULL, (TypeName *) node)))
		return true;
	return raw_expression_tree_walker(node, ddl_check_generates_from_oids, context);
}

/*
 * Is the column there, and does it stay?  PostgreSQL drops columns before it adds
 * others, in whatever order the statement has its commands.
 */
bool
ot_ddl_keeps_column(List *commands, Oid relid, const char *name)
{
	ListCell   *lc;

	foreach(lc, commands)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);

		if (command->subtype == AT_DropColumn && strcmp(command->name, name) == 0)
			return false;
	}
	return get_attnum(relid, name) != InvalidAttrNumber;
}

typedef struct Altered
{
	List	   *commands;
	Oid			relid;
} Altered;

/* Does the expression refer to a column that does not exist yet? */
static bool
ddl_check_refers_to_new(Node *node, void *context)
{
	Altered    *altered = context;
	const char *name;

	if (node == NULL)
		return false;
	if (!IsA(node, ColumnRef))
		return raw_expression_tree_walker(node, ddl_check_refers_to_new, context);
	name = ddl_check_column_name(node);
	return name != NULL && !ot_ddl_keeps_column(altered->commands, altered->relid, name);
}

/* Does the statement give the column another type, or another expression? */
static bool
ddl_check_converts(List *commands, const char *name)
{
	ListCell   *lc;

	foreach(lc, commands)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);

		if (OT_MAKES_INDEXES_ANEW(command->subtype) && strcmp(command->name, name) == 0)
			return true;
	}
	return false;
}

/* Does the expression refer to such a column? */
static bool
ddl_check_refers_to_converted(Node *node, void *context)
{
	const char *name;

	if (node == NULL)
		return false;
	if (!IsA(node, ColumnRef))
		return raw_expression_tree_walker(node, ddl_check_refers_to_converted, context);
	name = ddl_check_column_name(node);
	return name != NULL && ddl_check_converts(context, name);
}

/*
 * Refuses the expression of a column that another command of the statement may
 * replace: then nothing in pg_depend tells what it has used.
 */
static void
ddl_check_uses_nothing_temporary(Node *expression)
{
	if (ot_ddl_uses_temporary(expression))
		ot_ddl_refuse("a definition that uses a temporary object",
					  "If a permanent object of that name is meant, write its schema before the name; else create one.");
}

/*
 * The expression with the cast to the column's type, which may call a user function.
 * NULL: there is no cast, and the server will say so.
 */
Node *
ot_ddl_as_column(ParseState *pstate, Node *expression, TypeName *column_type)
{
	Oid			type;
	int32		typmod;

	typenameTypeIdAndMod(pstate, column_type, &type, &typmod);
	return coerce_to_target_type(pstate, expression, exprType(expression), type, typmod,
								 COERCION_ASSIGNMENT, COERCE_IMPLICIT_CAST, -1);
}

/* Does the expression give the same in every region? */
static bool
ddl_check_computes_same(ParseState *pstate, Node *expression, TypeName *column_type)
{
	expression = ot_ddl_as_column(pstate, expression, column_type);
	return expression == NULL || !ot_ddl_differs_elsewhere(expression);
}

/* The expression of a generated column, likewise. */
static Node *
ddl_check_generated(ParseState *pstate, Relation rel, Node *raw, TypeName *column_type)
{
	Node	   *expression;

	addNSItemToQuery(pstate, addRangeTableEntryForRelation(pstate, rel, AccessShareLock, NULL,
														   false, true),
					 false, true, true);
	expression = transformExpr(pstate, copyObject(raw), EXPR_KIND_GENERATED_COLUMN);
	ddl_check_uses_nothing_temporary(expression);
	return ot_ddl_as_column(pstate, expression, column_type);
}

/* Does the expression of a generated column call nothing but what is built in, as far as can be seen yet? */
bool
ot_ddl_generates_built_in(ParseState *pstate, Relation rel, List *commands, Node *raw, TypeName *column_type)
{
	Altered		altered = {commands, RelationGetRelid(rel)};
	Node	   *expression;

	if (ddl_check_refers_to_converted(raw, commands) || ddl_check_refers_to_new(raw, &altered))
		return false;
	expression = ddl_check_generated(pstate, rel, raw, column_type);
	return expression == NULL || ot_ddl_is_built_in(expression);
}

/*
 * Does the expression of a generated column give the same in every region?
 * PostgreSQL itself enforces that it is IMMUTABLE.
 */
static bool
ddl_check_generates_same(ParseState *pstate, Relation rel, List *commands, Node *raw, TypeName *column_type)
{
	Altered		altered = {commands, RelationGetRelid(rel)};
	Node	   *expression;

	/* what it computes then cannot be looked at yet */
	if (ddl_check_generates_from_oids(raw, NULL) || ddl_check_refers_to_converted(raw, commands))
		return false;
	if (ddl_check_refers_to_new(raw, &altered))
		return true;
	expression = ddl_check_generated(pstate, rel, raw, column_type);
	return expression == NULL || !ot_ddl_differs_elsewhere(expression);
}

/* Would ADD COLUMN give existing rows the same values in every region? */
static bool
ddl_check_adds_same(ParseState *pstate, Relation rel, List *commands, AlterTableCmd *command)
{
	ColumnDef  *column = castNode(ColumnDef, command->def);
	bool		has_default = false;
	Node	   *of_type;
	ListCell   *lc;

	if (command->missing_ok && ot_ddl_keeps_column(commands, RelationGetRelid(rel), column->colname))
		return true;
	if (ddl_check_is_serial(column->typeName))
		return false;
	foreach(lc, column->constraints)
	{
		Constraint *constraint = lfirst_node(Constraint, lc);

		if (constraint->contype == CONSTR_IDENTITY)
			return false;
		if (constraint->contype == CONSTR_GENERATED)
		{
			has_default = true;
			if (!ddl_check_generates_same(pstate, rel, commands, constraint->raw_expr, column->typeName))
				return false;
		}
		if (constraint->contype == CONSTR_DEFAULT && constraint->raw_expr)
		{
			has_default = true;
			if (!ddl_check_computes_same(pstate,
										 transformExpr(pstate, copyObject(constraint->raw_expr),
													   EXPR_KIND_COLUMN_DEFAULT),
										 column->typeName))
				return false;
		}
	}
	if (has_default || column->typeName == NULL)
		return true;
	of_type = get_typdefault(typenameTypeId(pstate, column->typeName));
	return of_type == NULL || ddl_check_computes_same(pstate, of_type, column->typeName);
}

/* Would SET EXPRESSION give existing rows the same values in every region? */
static bool
ddl_check_sets_same(ParseState *pstate, Relation rel, List *commands, AlterTableCmd *command)
{
	AttrNumber	attnum = get_attnum(RelationGetRelid(rel), command->name);
	Form_pg_attribute att;

	if (attnum <= 0)
		return true;
	att = TupleDescAttr(RelationGetDescr(rel), attnum - 1);
	return ddl_check_generates_same(pstate, rel, commands, command->def,
									makeTypeNameFromOid(att->atttypid, att->atttypmod));
}

/*
 * What ALTER COLUMN TYPE makes of the column's values.  NULL: there is no such column,
 * or no cast, and the server will say so.
 */
Node *
ot_ddl_converted(ParseState *pstate, Relation rel, AlterTableCmd *command)
{
	ColumnDef  *column = castNode(ColumnDef, command->def);
	AttrNumber	attnum = get_attnum(RelationGetRelid(rel), command->name);
	ParseNamespaceItem *item;
	Node	   *expression;

	if (attnum <= 0)
		return NULL;
	item = addRangeTableEntryForRelation(pstate, rel, AccessShareLock, NULL, false, true);
	addNSItemToQuery(pstate, item, false, true, true);
	if (column->raw_default)
	{
		expression = transformExpr(pstate, copyObject(column->raw_default),
								   EXPR_KIND_ALTER_COL_TRANSFORM);
		if (ot_ddl_uses_temporary(expression))
			ot_ddl_refuse("a USING expression that uses a temporary object",
						  "If a permanent object of that name is meant, write its schema before the name; else fill a new column with UPDATE.");
	}
	else
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), attnum - 1);

		expression = (Node *) makeVar(1, attnum, att->atttypid, att->atttypmod,
									  att->attcollation, 0);
	}
	return ot_ddl_as_column(pstate, expression, column->typeName);
}

static bool
ddl_check_converts_same(ParseState *pstate, Relation rel, AlterTableCmd *command)
{
	Node	   *expression = ot_ddl_converted(pstate, rel, command);

	return expression == NULL || !ot_ddl_differs_elsewhere(expression);
}

/* Is such a column of the table one of the foreign key's, of those that it has or refers to? */
static bool
ddl_check_converts_key(HeapTuple tuple, TupleDesc desc, AttrNumber key, Oid relid, List *commands)
{
	bool		isnull;
	ArrayType  *columns = DatumGetArrayTypeP(heap_getattr(tuple, key, desc, &isnull));
	int			count = ARR_DIMS(columns)[0];

	for (int i = 0; i < count; i++)
	{
		if (ddl_check_converts(commands, get_attname(relid, ((int16 *) ARR_DATA_PTR(columns))[i], false)))
			return true;
	}
	return false;
}

/*
 * Does a foreign key refer to a table in the list by a column that gets another type,
 * or has it one, with `own`?  Then it is made anew, and its rows are checked.  Without,
 * those of other tables only.
 */
bool
ot_ddl_converts_foreign_key(List *relids, List *commands, bool own)
{
	Relation	catalog = table_open(ConstraintRelationId, AccessShareLock);
	TupleDesc	desc = RelationGetDescr(catalog);
	SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	bool		found = false;
	HeapTuple	tuple;

	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_constraint form = (Form_pg_constraint) GETSTRUCT(tuple);
		bool		has = list_member_oid(relids, form->conrelid);

		if (form->contype != CONSTRAINT_FOREIGN)
			continue;
		found = ((own || !has) && list_member_oid(relids, form->confrelid) &&
				 ddl_check_converts_key(tuple, desc, Anum_pg_constraint_confkey, form->confrelid, commands)) ||
			(own && has && ddl_check_converts_key(tuple, desc, Anum_pg_constraint_conkey, form->conrelid, commands));
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return found;
}

/* Does the table have rows that travel, once the statement is over? */
static bool
ddl_check_will_travel(Relation rel, List *commands)
{
	char		persistence = rel->rd_rel->relpersistence;
	bool		onetrip = ot_is_onetrip_table(rel);
	ListCell   *lc;

	if (rel->rd_rel->relkind != RELKIND_RELATION)
		return false;
	foreach(lc, commands)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);

		if (command->subtype == AT_SetLogged)
			persistence = RELPERSISTENCE_PERMANENT;
		else if (command->subtype == AT_SetUnLogged)
			persistence = RELPERSISTENCE_UNLOGGED;
		else if (command->subtype == AT_SetAccessMethod)
			onetrip = strcmp(command->name ? command->name : ot_ddl_default_access_method(),
							 "onetrip") == 0;
	}
	return onetrip && persistence == RELPERSISTENCE_PERMANENT;
}

/*
 * Refuses commands of ALTER TYPE ... CASCADE for what they would do to the rows
 * of a table OF the type, or of its children.
 */
static void
ddl_check_typed_table(AlterTableStmt *stmt, Oid relid, LOCKMODE lockmode, const char *query)
{
	Relation	rel = relation_open(relid, NoLock);
	const char *what = NULL;
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);
		ParseState *pstate;

		if (command->behavior != DROP_CASCADE)
			continue;
		pstate = make_parsestate(NULL);
		pstate->p_sourcetext = query;
		if (command->subtype == AT_AddColumn && !ddl_check_adds_same(pstate, rel, stmt->cmds, command))
			what = "ADD ATTRIBUTE with a default that may differ between regions";
		else if (command->subtype == AT_AlterColumnType && !ddl_check_converts_same(pstate, rel, command))
			what = "ALTER ATTRIBUTE with a conversion that may differ between regions";
		free_parsestate(pstate);
	}
	if (what != NULL && ddl_check_has_replicated_rows(relid, lockmode))
		ot_ddl_refuse(what,
					  psprintf("Take table \"%s\" out of the type (ALTER TABLE ... NOT OF), change both, and put it back (ALTER TABLE ... OF).",
							   RelationGetRelationName(rel)));
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
			ddl_check_typed_table(stmt, relid, lockmode, query);
	}
}

/* May the statement change what rows there are, or their values? */
static bool
ddl_check_concerns_rows(AlterTableStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		AlterTableType subtype = lfirst_node(AlterTableCmd, lc)->subtype;

		if (OT_MAKES_INDEXES_ANEW(subtype))
			return true;
		switch (subtype)
		{
			case AT_AddColumn:
			case AT_SetAccessMethod:
			case AT_SetLogged:
				return true;
			default:
				break;
		}
	}
	return false;
}

static void
ddl_check_alter_type(AlterTableStmt *stmt, const char *query)
{
	LOCKMODE	lockmode = AlterTableGetLockLevel(stmt->cmds);
	Oid			relid;

	if (stmt->objtype != OBJECT_TYPE || !ddl_check_concerns_rows(stmt))
		return;
	/* takes the lock, with the checks, that the statement itself takes next */
	relid = AlterTableLookupRelation(stmt, lockmode);
	if (OidIsValid(relid))
		ddl_check_typed_tables(stmt, get_rel_type_id(relid), lockmode, query);
}

/*
 * The table whose rows have to travel with the statement, since other regions
 * could not compute them as well (a volatile expression), or do not have them:
 * rows of an unlogged table, or of one with another access method, are each
 * region's own until it becomes logged, or onetrip.  The opposite needs nothing:
 * all regions have the same rows then, and keep them.  InvalidOid: none.  *fills
 * is what other regions have to empty before; it includes the table's children
 * if *children.  The statement has been checked.
 */
Oid
ot_ddl_fills(Node *node, const char *query, List **fills, bool *children)
{
	AlterTableStmt *stmt = (AlterTableStmt *) node;
	LOCKMODE	lockmode;
	Oid			relid;
	Relation	rel;
	bool		will_travel;
	ListCell   *lc;

	*fills = NIL;
	*children = false;
	/* views, sequences and indexes have no children with rows */
	if (!IsA(node, AlterTableStmt) || (stmt->objtype != OBJECT_TABLE && stmt->objtype != OBJECT_FOREIGN_TABLE) ||
		!ddl_check_concerns_rows(stmt))
		return InvalidOid;
	lockmode = AlterTableGetLockLevel(stmt->cmds);
	relid = AlterTableLookupRelation(stmt, lockmode);
	if (!OidIsValid(relid))
		return InvalidOid;
	rel = relation_open(relid, NoLock);
	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);
		ParseState *pstate = make_parsestate(NULL);

		pstate->p_sourcetext = query;
		if (command->subtype == AT_AddColumn)
			*children |= !ddl_check_adds_same(pstate, rel, stmt->cmds, command);
		else if (command->subtype == AT_AlterColumnType)
			*children |= !ddl_check_converts_same(pstate, rel, command);
		else if (OT_SETS_EXPRESSION(command->subtype))
			*children |= !ddl_check_sets_same(pstate, rel, stmt->cmds, command);
		free_parsestate(pstate);
	}
	will_travel = ddl_check_will_travel(rel, stmt->cmds);
	if (will_travel && !ot_contents_travel(rel->rd_rel))
		*fills = list_make1_oid(relid);
	else
		*children &= ddl_check_has_replicated_rows(relid, lockmode);
	if (*children)
	{
		foreach(lc, find_all_inheritors(relid, lockmode, NULL))
		{
			Oid			child = lfirst_oid(lc);

			if (child == relid ? will_travel :
				get_rel_relkind(child) == RELKIND_RELATION && ot_contents_of_travel(child))
				*fills = list_append_unique_oid(*fills, child);
		}
	}
	/* a foreign key that is checked anew would not find what it refers to */
	if (*fills != NIL && ot_ddl_converts_foreign_key(*fills, stmt->cmds, false))
		ot_ddl_refuse("ALTER COLUMN TYPE with rows that travel, of a column that foreign keys of others refer to",
					  "Drop these foreign keys before, and add them again after it.");
	relation_close(rel, NoLock);
	return *fills != NIL ? relid : InvalidOid;
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

/* Likewise, among the options of a function. */
static void
ddl_check_from_current_of(List *options)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, "set") == 0)
			ddl_check_from_current((VariableSetStmt *) option->arg);
	}
}

/*
 * What has our handler and another name would not be taken for ours where only the
 * name is known, or the OID: its rows would be captured, and go nowhere.
 */
void
ot_ddl_check_access_method(Node *node)
{
	static const Oid arguments[] = {INTERNALOID};
	CreateAmStmt *stmt = (CreateAmStmt *) node;
	HeapTuple	tuple;
	bool		is_ours;

	if (!IsA(node, CreateAmStmt))
		return;
	tuple = SearchSysCache1(AMOID, ObjectIdGetDatum(ot_access_method_oid()));
	if (!HeapTupleIsValid(tuple))
		return;
	is_ours = ((Form_pg_am) GETSTRUCT(tuple))->amhandler == LookupFuncName(stmt->handler_name, 1, arguments, true);
	ReleaseSysCache(tuple);
	if (is_ours)
		ot_ddl_refuse("another access method with the handler of onetrip", "Use the access method onetrip.");
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
		ot_ddl_refuse(what, "The extension and its schema belong to the cluster. \"onetrip release\" makes a plain PostgreSQL of a node.");
}

/*
 * REINDEX is each server's own maintenance.  With TABLESPACE it also changes
 * where the index belongs, which is part of its definition.
 */
void
ot_ddl_check_reindex(ReindexStmt *stmt)
{
	Oid			relid;

	if (ot_ddl_find_option(stmt->params, "tablespace") == NULL)
		return;
	relid = stmt->relation ? RangeVarGetRelid(stmt->relation, NoLock, true) : InvalidOid;
	if (!OidIsValid(relid) || get_rel_persistence(relid) != RELPERSISTENCE_TEMP)
		ot_ddl_refuse("REINDEX with TABLESPACE",
					  "Use ALTER INDEX ... SET TABLESPACE, and REINDEX without TABLESPACE.");
}

/* The default that the command gives a column, and which column; NULL: none. */
static Node *
ddl_check_default_of(AlterTableCmd *command, const char **name)
{
	ColumnDef  *column = (ColumnDef *) command->def;
	ListCell   *lc;

	if (command->subtype == AT_ColumnDefault)
	{
		*name = command->name;
		return command->def;
	}
	if (command->subtype != AT_AddColumn)
		return NULL;
	*name = column->colname;
	foreach(lc, column->constraints)
	{
		if (lfirst_node(Constraint, lc)->contype == CONSTR_DEFAULT)
			return lfirst_node(Constraint, lc)->raw_expr;
	}
	return NULL;
}

/* Refuses what uses a temporary object, of several defaults of one column: only one of them stays. */
static void
ddl_check_defaults(AlterTableStmt *stmt, const char *query)
{
	ListCell   *lc;
	ListCell   *lc2;

	foreach(lc, stmt->cmds)
	{
		const char *column;
		Node	   *given = ddl_check_default_of(lfirst_node(AlterTableCmd, lc), &column);
		bool		replaced = false;
		ParseState *pstate;

		if (given == NULL)
			continue;
		foreach(lc2, stmt->cmds)
		{
			const char *other;

			replaced |= lc2 != lc && ddl_check_default_of(lfirst_node(AlterTableCmd, lc2), &other) != NULL &&
				strcmp(other, column) == 0;
		}
		if (!replaced)
			continue;
		pstate = make_parsestate(NULL);
		pstate->p_sourcetext = query;
		ddl_check_uses_nothing_temporary(transformExpr(pstate, copyObject(given), EXPR_KIND_COLUMN_DEFAULT));
		free_parsestate(pstate);
	}
}

/*
 * LIKE and new partitions name their copies of two indexes by the columns of these, in the
 * order of OIDs, which is compared when an index is made and may differ later.
 */
static void
ddl_check_index_column(RenameStmt *stmt)
{
	Oid			relid = stmt->renameType == OBJECT_COLUMN && stmt->relation ?
		RangeVarGetRelid(stmt->relation, NoLock, true) : InvalidOid;
	char		kind = OidIsValid(relid) ? get_rel_relkind(relid) : '\0';

	if (kind == RELKIND_INDEX || kind == RELKIND_PARTITIONED_INDEX)
		ot_ddl_refuse("another name of an index's column", "Only PostgreSQL uses it, to make up names of other indexes.");
}

/* Raises 0A000 for a statement that would be recorded but must not be. */
void
ot_ddl_check_recorded(Node *stmt, const char *query)
{
	ddl_check_own_extension(stmt);
	switch (nodeTag(stmt))
	{
		case T_AlterTableStmt:
			ddl_check_alter_type((AlterTableStmt *) stmt, query);
			ddl_check_defaults((AlterTableStmt *) stmt, query);
			break;
		case T_RenameStmt:
			ddl_check_index_column((RenameStmt *) stmt);
			break;
		case T_IndexStmt:
			if (((IndexStmt *) stmt)->concurrent && ((IndexStmt *) stmt)->unique)
				ot_index_check_unique((IndexStmt *) stmt);
			break;
		case T_CreateFunctionStmt:
			ddl_check_from_current_of(((CreateFunctionStmt *) stmt)->options);
			break;
		case T_AlterFunctionStmt:
			ddl_check_from_current_of(((AlterFunctionStmt *) stmt)->actions);
			break;
		case T_CreateStmt:
		case T_CreateForeignTableStmt:
		case T_CreateStatsStmt:
			ot_ddl_check_statistics(stmt);
			break;
		case T_CreateAmStmt:
			ot_ddl_check_access_method(stmt);
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
