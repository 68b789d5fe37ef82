/*-------------------------------------------------------------------------
 *
 * ddl_temporary.c
 *	  Finds statements about temporary objects, and permanent objects that
 *	  depend on temporary ones.
 *
 * Temporary tables, and the objects that belong to them, exist in one session
 * only, so statements about them stay local, and so do those about functions
 * that depend on them (ddl_function.c).  This is decided before the
 * statement runs.  The code here looks up names as the statement will, takes no
 * lock that the statement would not take, and raises only errors that it would
 * raise.
 *
 * No name in a statement about permanent objects may refer to a temporary one:
 * in other regions the name would refer to another object, or to none.  Names
 * can be in too many places to search for them (a type, the text in
 * nextval('s')), so this is checked after the statement, in what it has written
 * to pg_depend.
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
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_amop.h"
#include "catalog/pg_amproc.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_cast.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_policy.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_rewrite.h"
#include "catalog/pg_statistic_ext.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/analyze.h"
#include "parser/parse_relation.h"
#include "parser/parse_type.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "capture/capture.h"

/* The statement that was looked at last is about a function in a permanent schema. */
static bool about_function;

/* ... names something temporary, and something that is not there. */
static bool about_missing;

/* How many of a statement's objects are temporary. */
typedef struct Count
{
	int			temporary;
	int			other;
} Count;

typedef enum Found
{
	FOUND_NOTHING,
	FOUND_TEMPORARY,
	FOUND_OTHER
} Found;

bool
ot_ddl_session_has_temporary(void)
{
	Oid			schema;
	Oid			toast_schema;

	GetTempNamespaceState(&schema, &toast_schema);
	return OidIsValid(schema);
}

/* Would a relation of this name be created as a temporary one? */
bool
ot_ddl_creates_temporary(RangeVar *name)
{
	if (name == NULL)
		return false;
	if (name->relpersistence == RELPERSISTENCE_TEMP)
		return true;
	if (name->schemaname && strcmp(name->schemaname, "pg_temp") == 0)
		return true;
	return isTempNamespace(RangeVarGetCreationNamespace(name));
}

static bool
ddl_temporary_creates_temporary_object(List *name)
{
	char	   *object;

	return isTempNamespace(QualifiedNameGetCreationNamespace(name, &object));
}

static Found
ddl_temporary_find_relation(RangeVar *name)
{
	Oid			relid = RangeVarGetRelid(name, NoLock, true);

	if (!OidIsValid(relid))
		return FOUND_NOTHING;
	return get_rel_persistence(relid) == RELPERSISTENCE_TEMP ? FOUND_TEMPORARY : FOUND_OTHER;
}

static bool
ddl_temporary_relation_is_temporary(RangeVar *name)
{
	return name != NULL && ot_ddl_session_has_temporary() && ddl_temporary_find_relation(name) == FOUND_TEMPORARY;
}

/*
 * Refuses the type of a temporary table's column, which in other regions is that
 * of another table, or of none; in pg_depend there is only what it stands for
 * here.
 */
static void
ddl_temporary_check_types(List *types)
{
	ListCell   *lc;

	foreach(lc, types)
	{
		TypeName   *type = lfirst(lc);

		/* an operator may lack an argument */
		if (type != NULL && type->pct_type &&
			ddl_temporary_relation_is_temporary(ot_function_table_of_type(type)))
			ot_ddl_refuse("the type of a temporary table's column",
						  "If a permanent table of that name is meant, write its schema before the name; else write the type itself.");
	}
}

/*
 * Is it the name of a schema of temporary objects?  Such a one is another in each
 * server, and what has no session any more may be dropped by hand.
 */
bool
ot_ddl_is_temporary_schema(const char *name)
{
	static const char *const starts[] = {"pg_temp_", "pg_toast_temp_"};

	for (int i = 0; i < lengthof(starts); i++)
	{
		const char *rest = name + strlen(starts[i]);

		if (strncmp(name, starts[i], strlen(starts[i])) == 0 &&
			rest[0] != '\0' && rest[strspn(rest, "0123456789")] == '\0')
			return true;
	}
	return strcmp(name, "pg_temp") == 0;
}

/* The table that extended statistics are about; InvalidOid: there are no such statistics. */
Oid
ot_ddl_table_of_statistics(Oid statistics)
{
	HeapTuple	tuple = SearchSysCache1(STATEXTOID, ObjectIdGetDatum(statistics));
	Oid			table;

	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	table = ((Form_pg_statistic_ext) GETSTRUCT(tuple))->stxrelid;
	ReleaseSysCache(tuple);
	return table;
}

/* A cast is in no schema.  Who has not got one of its types never meets it. */
static bool
ddl_temporary_cast_is_temporary(TypeName *source, TypeName *target)
{
	return ot_type_is_temporary(LookupTypeNameOid(NULL, source, true)) ||
		ot_type_is_temporary(LookupTypeNameOid(NULL, target, true));
}

/* The schema of a temporary type that the cast is about; InvalidOid if there is none. */
Oid
ot_ddl_temporary_schema_of_cast(Oid cast)
{
	Relation	catalog = table_open(CastRelationId, AccessShareLock);
	HeapTuple	tuple = get_catalog_object_by_oid(catalog, Anum_pg_cast_oid, cast);
	Oid			schema = InvalidOid;

	if (HeapTupleIsValid(tuple))
	{
		Form_pg_cast form = (Form_pg_cast) GETSTRUCT(tuple);

		schema = ot_temporary_schema(&(ObjectAddress) {TypeRelationId, form->castsource, 0});
		if (!OidIsValid(schema))
			schema = ot_temporary_schema(&(ObjectAddress) {TypeRelationId, form->casttarget, 0});
	}
	table_close(catalog, AccessShareLock);
	return schema;
}

/*
 * Would what is not there be about something temporary: a part of a temporary table,
 * a function of a temporary type?  In another region, where nothing hides them, the
 * names may be those of a permanent one.
 */
static bool
ddl_temporary_would_be(ObjectType type, Node *object)
{
	bool		is_part = type == OBJECT_TRIGGER || type == OBJECT_RULE || type == OBJECT_POLICY;
	List	   *table = is_part ? list_copy(castNode(List, object)) : NIL;
	ListCell   *lc;

	if (is_part)
		return ddl_temporary_find_relation(makeRangeVarFromNameList(list_delete_last(table))) == FOUND_TEMPORARY;
	/* an operator may have one operand only */
	foreach(lc, IsA(object, ObjectWithArgs) ? ((ObjectWithArgs *) object)->objargs : NIL)
	{
		if (lfirst(lc) != NULL && ot_type_is_temporary(LookupTypeNameOid(NULL, lfirst_node(TypeName, lc), true)))
			return true;
	}
	return false;
}

static Found
ddl_temporary_find(ObjectType type, Node *object)
{
	Relation	rel = NULL;
	ObjectAddress address;

	switch (type)
	{
		case OBJECT_TABLE:
		case OBJECT_VIEW:
		case OBJECT_INDEX:
		case OBJECT_SEQUENCE:
		case OBJECT_MATVIEW:
		case OBJECT_FOREIGN_TABLE:
			return ddl_temporary_find_relation(makeRangeVarFromNameList((List *) object));
		case OBJECT_SCHEMA:
			if (ot_ddl_is_temporary_schema(strVal(object)))
				return FOUND_TEMPORARY;
			return OidIsValid(get_namespace_oid(strVal(object), true)) ? FOUND_OTHER : FOUND_NOTHING;
		case OBJECT_CAST:
			return ddl_temporary_cast_is_temporary(linitial_node(TypeName, (List *) object),
												   lsecond_node(TypeName, (List *) object)) ?
				FOUND_TEMPORARY : FOUND_OTHER;
		case OBJECT_AGGREGATE:
		case OBJECT_COLLATION:
		case OBJECT_COLUMN:
		case OBJECT_CONVERSION:
		case OBJECT_DOMAIN:
		case OBJECT_DOMCONSTRAINT:
		case OBJECT_FUNCTION:
		case OBJECT_OPCLASS:
		case OBJECT_OPERATOR:
		case OBJECT_OPFAMILY:
		case OBJECT_POLICY:
		case OBJECT_PROCEDURE:
		case OBJECT_ROUTINE:
		case OBJECT_RULE:
		case OBJECT_STATISTIC_EXT:
		case OBJECT_TABCONSTRAINT:
		case OBJECT_TRIGGER:
		case OBJECT_TSCONFIGURATION:
		case OBJECT_TSDICTIONARY:
		case OBJECT_TSPARSER:
		case OBJECT_TSTEMPLATE:
		case OBJECT_TYPE:
			break;
		default:
			return FOUND_OTHER; /* belongs to no schema */
	}

	/* COMMENT and DROP have a TypeName for a type, RENAME and OWNER a list */
	if ((type == OBJECT_TYPE || type == OBJECT_DOMAIN) && IsA(object, List))
		object = (Node *) makeTypeNameFromNameList((List *) object);
	address = get_object_address(type, object, &rel, AccessShareLock, true);
	if (rel != NULL)
	{
		bool		temporary = rel->rd_rel->relpersistence == RELPERSISTENCE_TEMP;

		relation_close(rel, NoLock);
		if (temporary)
			return FOUND_TEMPORARY;
	}
	if (!OidIsValid(address.objectId))
		return ddl_temporary_would_be(type, object) ? FOUND_TEMPORARY : FOUND_NOTHING;
	if (rel != NULL)
		return FOUND_OTHER;
	if (isTempNamespace(get_object_namespace(&address)))
		return FOUND_TEMPORARY;
	/* those of a temporary table may be in any schema */
	if (type == OBJECT_STATISTIC_EXT)
		return get_rel_persistence(ot_ddl_table_of_statistics(address.objectId)) == RELPERSISTENCE_TEMP ?
			FOUND_TEMPORARY : FOUND_OTHER;
	if (address.classId != ProcedureRelationId || !ot_function_is_temporary(address.objectId))
		return FOUND_OTHER;
	about_function = true;
	return FOUND_TEMPORARY;
}

static bool
ddl_temporary_object_is_temporary(ObjectType type, Node *object)
{
	if (type == OBJECT_SCHEMA && object != NULL && IsA(object, String))
		return ot_ddl_is_temporary_schema(strVal(object));
	if (object == NULL || (type != OBJECT_STATISTIC_EXT && !ot_ddl_session_has_temporary() &&
						   !ot_temporary_functions_possible()))
		return false;
	if (ddl_temporary_find(type, object) == FOUND_TEMPORARY)
		return true;
	if (IsA(object, ObjectWithArgs))
		ddl_temporary_check_types(((ObjectWithArgs *) object)->objargs);
	return false;
}

static void
ddl_temporary_count_one(Count *c, bool temporary)
{
	if (temporary)
		c->temporary++;
	else
		c->other++;
}

static bool
ddl_temporary_all_temporary(const Count *c, const char *what)
{
	if (c->temporary > 0 && c->other > 0)
		ot_ddl_refuse(psprintf("%s of temporary and other objects in one statement", what),
					  "Use one statement for the temporary objects and another for the rest.");
	return c->temporary > 0;
}

/*
 * Does the name say that the object is temporary?  With DROP ... IF EXISTS there
 * need not be one.
 */
static bool
ddl_temporary_is_named_temporary(Node *object)
{
	List	   *name = NIL;

	if (IsA(object, List))
		name = (List *) object;
	else if (IsA(object, TypeName))
		name = ((TypeName *) object)->names;
	else if (IsA(object, ObjectWithArgs))
		name = ((ObjectWithArgs *) object)->objname;
	return list_length(name) > 1 && IsA(linitial(name), String) &&
		strcmp(strVal(linitial(name)), "pg_temp") == 0;
}

/*
 * What is not there counts as neither, so that IF EXISTS passes over it.  The caller
 * sees to it that it stays away until the statement has run.
 */
static bool
ddl_temporary_drops_temporary(DropStmt *stmt)
{
	Count		c = {0, 0};
	bool		named = false;
	ListCell   *lc;

	foreach(lc, stmt->objects)
		named |= ddl_temporary_is_named_temporary(lfirst(lc));
	if (!named && stmt->removeType != OBJECT_STATISTIC_EXT && stmt->removeType != OBJECT_SCHEMA &&
		!ot_ddl_session_has_temporary() && !ot_temporary_functions_possible())
		return false;
	foreach(lc, stmt->objects)
	{
		Node	   *object = lfirst(lc);
		Found		found = ddl_temporary_find(stmt->removeType, object);
		bool		temporary = found == FOUND_TEMPORARY || ddl_temporary_is_named_temporary(object);

		if (temporary || found == FOUND_OTHER)
			ddl_temporary_count_one(&c, temporary);
		else
			about_missing = true;
		if (!temporary && IsA(object, ObjectWithArgs))
			ddl_temporary_check_types(((ObjectWithArgs *) object)->objargs);
	}
	return ddl_temporary_all_temporary(&c, "DROP");
}

static bool
ddl_temporary_grants_temporary(GrantStmt *stmt)
{
	Count		c = {0, 0};
	ListCell   *lc;

	if (stmt->targtype == ACL_TARGET_ALL_IN_SCHEMA)
	{
		foreach(lc, stmt->objects)
			ddl_temporary_count_one(&c, ot_ddl_is_temporary_schema(strVal(lfirst(lc))));
		return ddl_temporary_all_temporary(&c, "GRANT");
	}
	if (stmt->targtype != ACL_TARGET_OBJECT ||
		(stmt->objtype != OBJECT_SCHEMA && !ot_ddl_session_has_temporary() && !ot_temporary_functions_possible()))
		return false;
	foreach(lc, stmt->objects)
	{
		Node	   *object = lfirst(lc);

		if (IsA(object, RangeVar))
			ddl_temporary_count_one(&c, ddl_temporary_relation_is_temporary((RangeVar *) object));
		else if (stmt->objtype == OBJECT_TYPE || stmt->objtype == OBJECT_DOMAIN)
			ddl_temporary_count_one(&c, ddl_temporary_object_is_temporary(OBJECT_TYPE,
																		  (Node *) makeTypeNameFromNameList((List *) object)));
		else
			ddl_temporary_count_one(&c, ddl_temporary_object_is_temporary(stmt->objtype, object));
	}
	return ddl_temporary_all_temporary(&c, "GRANT");
}

/* PostgreSQL lets anyone set those of a schema, whoever owns it. */
static void
ddl_temporary_check_default_privileges(AlterDefaultPrivilegesStmt *stmt)
{
	DefElem    *schemas = ot_ddl_find_option(stmt->options, "schemas");
	ListCell   *lc;

	foreach(lc, schemas ? (List *) schemas->arg : NIL)
	{
		if (ot_ddl_is_temporary_schema(strVal(lfirst(lc))))
			ot_ddl_refuse("default privileges in a temporary schema",
						  "Use GRANT for each temporary object.");
	}
}

/* CREATE VIEW makes a temporary view if its query uses anything temporary. */
static bool
ddl_temporary_view_is_temporary(ViewStmt *stmt, const char *query)
{
	RawStmt    *raw;

	if (ot_ddl_creates_temporary(stmt->view))
		return true;
	if (!ot_ddl_session_has_temporary())
		return false;
	raw = makeNode(RawStmt);
	raw->stmt = copyObject(stmt->query);
	raw->stmt_location = -1;
	return isQueryUsingTempRelation(parse_analyze_fixedparams(raw, query, NULL, 0, NULL));
}

static bool
ddl_temporary_is(Node *stmt, const char *query)
{
	switch (nodeTag(stmt))
	{
		case T_CreateStmt:
			return ot_ddl_creates_temporary(((CreateStmt *) stmt)->relation);
		case T_CreateForeignTableStmt:
			return ot_ddl_creates_temporary(((CreateForeignTableStmt *) stmt)->base.relation);
		case T_CreateSeqStmt:
			return ot_ddl_creates_temporary(((CreateSeqStmt *) stmt)->sequence);
		case T_CompositeTypeStmt:
			return ot_ddl_creates_temporary(((CompositeTypeStmt *) stmt)->typevar);
		case T_ViewStmt:
			return ddl_temporary_view_is_temporary((ViewStmt *) stmt, query);
		case T_CreateEnumStmt:
			return ddl_temporary_creates_temporary_object(((CreateEnumStmt *) stmt)->typeName);
		case T_CreateRangeStmt:
			return ddl_temporary_creates_temporary_object(((CreateRangeStmt *) stmt)->typeName);
		case T_CreateDomainStmt:
			return ddl_temporary_creates_temporary_object(((CreateDomainStmt *) stmt)->domainname);
		case T_CreateFunctionStmt:
			return ddl_temporary_creates_temporary_object(((CreateFunctionStmt *) stmt)->funcname);
		case T_DefineStmt:
			return ddl_temporary_creates_temporary_object(((DefineStmt *) stmt)->defnames);
		case T_CreateCastStmt:
			return ot_ddl_session_has_temporary() &&
				ddl_temporary_cast_is_temporary(((CreateCastStmt *) stmt)->sourcetype,
												((CreateCastStmt *) stmt)->targettype);
		case T_CreateConversionStmt:
			return ddl_temporary_creates_temporary_object(((CreateConversionStmt *) stmt)->conversion_name);
		case T_CreateOpClassStmt:
			return ddl_temporary_creates_temporary_object(((CreateOpClassStmt *) stmt)->opclassname);
		case T_CreateOpFamilyStmt:
			return ddl_temporary_creates_temporary_object(((CreateOpFamilyStmt *) stmt)->opfamilyname);

		case T_AlterTableStmt:
			return ddl_temporary_relation_is_temporary(((AlterTableStmt *) stmt)->relation);
		case T_RefreshMatViewStmt:
			return ddl_temporary_relation_is_temporary(((RefreshMatViewStmt *) stmt)->relation);
		case T_AlterSeqStmt:
			return ddl_temporary_relation_is_temporary(((AlterSeqStmt *) stmt)->sequence);
		case T_IndexStmt:
			return ddl_temporary_relation_is_temporary(((IndexStmt *) stmt)->relation);
		case T_RuleStmt:
			return ddl_temporary_relation_is_temporary(((RuleStmt *) stmt)->relation);
		case T_CreateTrigStmt:
			return ddl_temporary_relation_is_temporary(((CreateTrigStmt *) stmt)->relation);
		case T_CreatePolicyStmt:
			return ddl_temporary_relation_is_temporary(((CreatePolicyStmt *) stmt)->table);
		case T_AlterPolicyStmt:
			return ddl_temporary_relation_is_temporary(((AlterPolicyStmt *) stmt)->table);
		case T_CreateStatsStmt:
			{
				List	   *name = ((CreateStatsStmt *) stmt)->defnames;
				List	   *relations = ((CreateStatsStmt *) stmt)->relations;

				if (name != NIL && ddl_temporary_creates_temporary_object(name))
					return true;
				return relations != NIL && IsA(linitial(relations), RangeVar) &&
					ddl_temporary_relation_is_temporary(linitial(relations));
			}

		case T_AlterFunctionStmt:
			return ddl_temporary_object_is_temporary(((AlterFunctionStmt *) stmt)->objtype,
													 (Node *) ((AlterFunctionStmt *) stmt)->func);
		case T_AlterTypeStmt:
			return ddl_temporary_object_is_temporary(OBJECT_TYPE,
													 (Node *) makeTypeNameFromNameList(((AlterTypeStmt *) stmt)->typeName));
		case T_AlterEnumStmt:
			return ddl_temporary_object_is_temporary(OBJECT_TYPE,
													 (Node *) makeTypeNameFromNameList(((AlterEnumStmt *) stmt)->typeName));
		case T_AlterDomainStmt:
			return ddl_temporary_object_is_temporary(OBJECT_TYPE,
													 (Node *) makeTypeNameFromNameList(((AlterDomainStmt *) stmt)->typeName));
		case T_AlterStatsStmt:
			return ddl_temporary_object_is_temporary(OBJECT_STATISTIC_EXT,
													 (Node *) ((AlterStatsStmt *) stmt)->defnames);
		case T_AlterOperatorStmt:
			return ddl_temporary_object_is_temporary(OBJECT_OPERATOR,
													 (Node *) ((AlterOperatorStmt *) stmt)->opername);
		case T_AlterTSDictionaryStmt:
			return ddl_temporary_object_is_temporary(OBJECT_TSDICTIONARY,
													 (Node *) ((AlterTSDictionaryStmt *) stmt)->dictname);
		case T_AlterTSConfigurationStmt:
			return ddl_temporary_object_is_temporary(OBJECT_TSCONFIGURATION,
													 (Node *) ((AlterTSConfigurationStmt *) stmt)->cfgname);

		case T_RenameStmt:
			{
				RenameStmt *rename = (RenameStmt *) stmt;

				if (rename->relation)
					return ddl_temporary_relation_is_temporary(rename->relation);
				if (rename->renameType == OBJECT_SCHEMA)
					return ot_ddl_is_temporary_schema(rename->subname);
				/* for a constraint of a domain, object is the domain's name */
				return ddl_temporary_object_is_temporary(rename->renameType == OBJECT_DOMCONSTRAINT ?
														 OBJECT_DOMAIN : rename->renameType, rename->object);
			}
		case T_AlterObjectSchemaStmt:
			{
				AlterObjectSchemaStmt *alter = (AlterObjectSchemaStmt *) stmt;

				return alter->relation ? ddl_temporary_relation_is_temporary(alter->relation) :
					ddl_temporary_object_is_temporary(alter->objectType, alter->object);
			}
		case T_AlterObjectDependsStmt:
			{
				AlterObjectDependsStmt *alter = (AlterObjectDependsStmt *) stmt;

				return alter->relation ? ddl_temporary_relation_is_temporary(alter->relation) :
					ddl_temporary_object_is_temporary(alter->objectType, alter->object);
			}
		case T_AlterOwnerStmt:
			{
				AlterOwnerStmt *alter = (AlterOwnerStmt *) stmt;

				return alter->relation ? ddl_temporary_relation_is_temporary(alter->relation) :
					ddl_temporary_object_is_temporary(alter->objectType, alter->object);
			}
		case T_CommentStmt:
			return ddl_temporary_object_is_temporary(((CommentStmt *) stmt)->objtype,
													 ((CommentStmt *) stmt)->object);
		case T_AlterExtensionContentsStmt:
			if (ddl_temporary_object_is_temporary(((AlterExtensionContentsStmt *) stmt)->objtype,
												  ((AlterExtensionContentsStmt *) stmt)->object))
				ot_ddl_refuse("a temporary object of an extension",
							  "If a permanent object of that name is meant, write its schema before the name.");
			return false;
		case T_SecLabelStmt:
			return ddl_temporary_object_is_temporary(((SecLabelStmt *) stmt)->objtype,
													 ((SecLabelStmt *) stmt)->object);
		case T_AlterDefaultPrivilegesStmt:
			ddl_temporary_check_default_privileges((AlterDefaultPrivilegesStmt *) stmt);
			return false;
		case T_DropStmt:
			return ddl_temporary_drops_temporary((DropStmt *) stmt);
		case T_GrantStmt:
			return ddl_temporary_grants_temporary((GrantStmt *) stmt);
		default:
			return false;
	}
}

OtTemporary
ot_ddl_is_temporary(Node *stmt, const char *query)
{
	about_function = about_missing = false;
	if (!ddl_temporary_is(stmt, query))
		return OT_TEMPORARY_NOTHING;
	if (about_function)
		return OT_TEMPORARY_FUNCTION;
	return about_missing ? OT_TEMPORARY_AND_MISSING : OT_TEMPORARY_OBJECT;
}

/* ---- statements about temporary objects that affect permanent ones ---- */

/* Notes what a statement does that stays local since it is about temporary objects. */
void
ot_ddl_note_temporary(Node *stmt)
{
	AlterTableStmt *alter = (AlterTableStmt *) stmt;
	ListCell   *lc;

	if (!IsA(stmt, AlterTableStmt))
		return;
	foreach(lc, alter->cmds)
	{
		Oid			child;

		if (lfirst_node(AlterTableCmd, lc)->subtype != AT_DropInherit)
			continue;
		child = RangeVarGetRelid(alter->relation, NoLock, true);
		if (OidIsValid(child))
			ot_child_leaves(child);
	}
}

/*
 * Checks a statement that is recorded and may see temporary objects.  CREATE
 * TABLE (LIKE ...) leaves nothing in pg_depend that tells where its columns
 * come from, and neither does an argument of a type with %TYPE, so the check
 * after the statement would not find it.
 */
static void
ddl_temporary_check_like(Node *stmt, bool in_schema)
{
	ListCell   *lc;

	if (IsA(stmt, CreateSchemaStmt))
	{
		foreach(lc, ((CreateSchemaStmt *) stmt)->schemaElts)
			ddl_temporary_check_like(lfirst(lc), true);
	}
	if (IsA(stmt, CreateFunctionStmt))
	{
		ddl_temporary_check_types(list_make1(((CreateFunctionStmt *) stmt)->returnType));
		foreach(lc, ((CreateFunctionStmt *) stmt)->parameters)
			ddl_temporary_check_types(list_make1(lfirst_node(FunctionParameter, lc)->argType));
	}
	if (!IsA(stmt, CreateStmt) && !IsA(stmt, CreateForeignTableStmt))
		return;
	foreach(lc, ((CreateStmt *) stmt)->tableElts)
	{
		TableLikeClause *like = lfirst(lc);

		/* without options its columns are written out (ot_ddl_write_like()) */
		if (IsA(like, TableLikeClause) && (in_schema || like->options != 0) &&
			ddl_temporary_relation_is_temporary(like->relation))
			ot_ddl_refuse(psprintf("a definition LIKE the temporary relation \"%s\"",
								   like->relation->relname),
						  "If a permanent one of that name is meant, write its schema before the name; else write out the columns.");
	}
}

void
ot_ddl_check_like(Node *stmt)
{
	ddl_temporary_check_like(stmt, false);
}

/* ---- permanent objects that depend on temporary ones ---- */

/* Catalogs of objects that are part of another object, and of which one. */
typedef struct Part
{
	Oid			class_id;
	AttrNumber	oid_column;
	AttrNumber	whole_column;
	Oid			whole_class;
} Part;

static const Part parts[] = {
	{RewriteRelationId, Anum_pg_rewrite_oid, Anum_pg_rewrite_ev_class, RelationRelationId},
	{TriggerRelationId, Anum_pg_trigger_oid, Anum_pg_trigger_tgrelid, RelationRelationId},
	{PolicyRelationId, Anum_pg_policy_oid, Anum_pg_policy_polrelid, RelationRelationId},
	/* it need not be in the schema of its table */
	{StatisticExtRelationId, Anum_pg_statistic_ext_oid, Anum_pg_statistic_ext_stxrelid, RelationRelationId},
	{AccessMethodOperatorRelationId, Anum_pg_amop_oid, Anum_pg_amop_amopfamily, OperatorFamilyRelationId},
	{AccessMethodProcedureRelationId, Anum_pg_amproc_oid, Anum_pg_amproc_amprocfamily, OperatorFamilyRelationId},
};

/*
 * Replaces *object, a part, by the object that it is a part of.  Returns false
 * if it is gone.
 */
static bool
ddl_temporary_find_whole(const Part *part, ObjectAddress *object)
{
	Relation	catalog = table_open(part->class_id, AccessShareLock);
	HeapTuple	tuple = get_catalog_object_by_oid(catalog, part->oid_column, object->objectId);
	bool		isnull;

	if (HeapTupleIsValid(tuple))
		ObjectAddressSet(*object, part->whole_class,
						 DatumGetObjectId(heap_getattr(tuple, part->whole_column,
													   RelationGetDescr(catalog), &isnull)));
	table_close(catalog, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

/*
 * Replaces *object by the object that it is a part of, if it is one.  Returns
 * false if it is gone.
 */
bool
ot_ddl_find_whole(ObjectAddress *object)
{
	if (object->classId == AttrDefaultRelationId)
		*object = GetAttrDefaultColumnAddress(object->objectId);
	for (int i = 0; i < lengthof(parts); i++)
	{
		if (parts[i].class_id == object->classId)
			return ddl_temporary_find_whole(&parts[i], object);
	}
	return true;
}

bool
ot_ddl_object_exists(const ObjectAddress *object)
{
	Relation	catalog;
	bool		exists;

	if (!is_objectclass_supported(object->classId))
		return false;
	catalog = table_open(object->classId, AccessShareLock);
	exists = HeapTupleIsValid(get_catalog_object_by_oid(catalog, get_object_attnum_oid(object->classId),
														object->objectId));
	table_close(catalog, AccessShareLock);
	return exists;
}

static bool
ddl_temporary_belongs_to_session(ObjectAddress object)
{
	/* if it is gone, there is nothing to refuse */
	if (!ot_ddl_find_whole(&object))
		return true;
	if (object.classId == ProcedureRelationId && ot_function_is_temporary(object.objectId))
		return true;
	if (object.classId == CastRelationId)
		return OidIsValid(ot_ddl_temporary_schema_of_cast(object.objectId));
	return is_objectclass_supported(object.classId) &&
		isTempOrTempToastNamespace(get_object_namespace(&object));
}

pg_noreturn static void
refuse_dependency(const ObjectAddress *permanent, const ObjectAddress *temporary)
{
	char	   *name = getObjectDescription(temporary, true);

	ereport(ERROR,
			(errcode(OT_ERR_NOT_REPLICATED),
			 errmsg("cannot replicate a definition that uses a temporary object: %s",
					name ? name : "one that is gone"),
			 errdetail("%s would depend on it, but no other session and no other region has it.",
					   getObjectDescription(permanent, false)),
			 errhint("If a permanent object of that name is meant, write its schema before the name; else create one.")));
}

/*
 * Walks over all that depends on the object, which is a temporary object of
 * this session or its temporary schema.  Refuses permanent objects that this
 * transaction has made dependent on it.
 */
static void
ddl_temporary_look_at_dependents(const ObjectAddress *object, HTAB *seen)
{
	Relation	catalog;
	SysScanDesc scan;
	ScanKeyData key[2];
	HeapTuple	tuple;
	uint64		id = ((uint64) object->classId << 32) | object->objectId;
	bool		found;

	check_stack_depth();
	CHECK_FOR_INTERRUPTS();
	hash_search(seen, &id, HASH_ENTER, &found);
	if (found)
		return;
	catalog = table_open(DependRelationId, AccessShareLock);
	ScanKeyInit(&key[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(object->classId));
	ScanKeyInit(&key[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(object->objectId));
	scan = systable_beginscan(catalog, DependReferenceIndexId, true, NULL, 2, key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);
		ObjectAddress dependent = {form->classid, form->objid, 0};

		if (ddl_temporary_belongs_to_session(dependent))
			ddl_temporary_look_at_dependents(&dependent, seen);
		else if (TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data)))
		{
			ObjectAddress temporary = {form->refclassid, form->refobjid, form->refobjsubid};

			dependent.objectSubId = form->objsubid;
			refuse_dependency(&dependent, &temporary);
		}
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

/*
 * Called after a statement that is recorded: refuses it if it has made a
 * permanent object depend on a temporary one, as one of the functions that it has
 * made may do.
 */
void
ot_ddl_check_dependencies(List *functions)
{
	HASHCTL		ctl = {.keysize = sizeof(uint64), .entrysize = sizeof(uint64),
	.hcxt = CurrentMemoryContext};
	ObjectAddress schema = {NamespaceRelationId, InvalidOid, 0};
	Oid			toast_schema;
	HTAB	   *seen;
	ListCell   *lc;

	GetTempNamespaceState(&schema.objectId, &toast_schema);
	if (!OidIsValid(schema.objectId) && !ot_temporary_functions_possible() && functions == NIL)
		return;
	CommandCounterIncrement();
	seen = hash_create("onetrip temporary objects", 64, &ctl,
					   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	if (OidIsValid(schema.objectId))
		ddl_temporary_look_at_dependents(&schema, seen);
	/* those of other sessions can be used as well */
	foreach(lc, ot_functions_list())
		ddl_temporary_look_at_dependents(&(ObjectAddress) {ProcedureRelationId, lfirst_oid(lc), 0}, seen);
	hash_destroy(seen);

	foreach(lc, functions)
	{
		ObjectAddress function = {ProcedureRelationId, lfirst_oid(lc), 0};
		ObjectAddress temporary;

		if (OidIsValid(ot_function_temporary_schema(function.objectId, &temporary)))
			refuse_dependency(&function, &temporary);
	}
}

/* ---- permanent objects that a statement about temporary ones makes ---- */

/*
 * An operator and its commutator or negator refer to each other, without pg_depend.
 * Adds them to the list, *object being an operator.
 */
static List *
ddl_temporary_add_partners(List *objects, Oid operator)
{
	HeapTuple	tuple = SearchSysCache1(OPEROID, ObjectIdGetDatum(operator));
	Form_pg_operator form;
	Oid			partners[2];

	if (!HeapTupleIsValid(tuple))
		return objects;
	form = (Form_pg_operator) GETSTRUCT(tuple);
	partners[0] = form->oprcom;
	partners[1] = form->oprnegate;
	ReleaseSysCache(tuple);
	for (int i = 0; i < lengthof(partners); i++)
	{
		if (OidIsValid(partners[i]))
		{
			ObjectAddress *partner = palloc(sizeof(ObjectAddress));

			ObjectAddressSet(*partner, OperatorRelationId, partners[i]);
			objects = lappend(objects, partner);
		}
	}
	return objects;
}

/* Is it the operator class that indexes on a permanent type use, whatever its schema? */
static bool
ddl_temporary_is_default(const ObjectAddress *object)
{
	HeapTuple	tuple = object->classId == OperatorClassRelationId ?
		SearchSysCache1(CLAOID, ObjectIdGetDatum(object->objectId)) : NULL;
	Form_pg_opclass form;
	bool		is;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_opclass) GETSTRUCT(tuple);
	is = form->opcdefault && !ot_type_is_temporary(form->opcintype);
	ReleaseSysCache(tuple);
	return is;
}

/*
 * Called after a statement that stays local since it is about temporary objects,
 * with what it has made: refuses it if any of that is permanent, or changes what
 * permanent objects are, since no other region would have it.
 */
void
ot_ddl_check_made(List *made)
{
	List	   *objects = NIL;
	ListCell   *lc;

	if (made == NIL)
		return;
	CommandCounterIncrement();
	foreach(lc, made)
	{
		ObjectAddress *object = lfirst(lc);

		objects = lappend(objects, object);
		if (object->classId == OperatorRelationId)
			objects = ddl_temporary_add_partners(objects, object->objectId);
	}
	foreach(lc, objects)
	{
		ObjectAddress *object = lfirst(lc);

		if (ddl_temporary_belongs_to_session(*object) && !ddl_temporary_is_default(object))
			continue;
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot replicate a permanent object that a statement about temporary ones makes or changes"),
				 errdetail("This is %s.", getObjectDescription(object, false)),
				 errhint("Make the permanent object first, or both in the schema pg_temp.")));
	}
}
