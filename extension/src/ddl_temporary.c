/*-------------------------------------------------------------------------
 *
 * ddl_temporary.c
 *	  Is this statement about objects of this session alone?
 *
 * Temporary tables and what hangs on them exist in one session, so statements
 * about them stay local.  Asked before the statement runs; looks up names as
 * the statement will, takes no lock that it would not take, and raises only
 * errors that it would raise.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "onetrip.h"

#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "nodes/makefuncs.h"
#include "parser/analyze.h"
#include "parser/parse_relation.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "ddl.h"

/* How many of a statement's objects are temporary. */
typedef struct Count
{
	int			temporary;
	int			other;
} Count;

bool
ot_ddl_session_has_temporary(void)
{
	Oid			schema;
	Oid			toast_schema;

	GetTempNamespaceState(&schema, &toast_schema);
	return OidIsValid(schema);
}

/* Would a relation of this name be created as a temporary one? */
static bool
creates_temporary(RangeVar *name)
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
creates_temporary_object(List *name)
{
	char	   *object;

	return isTempNamespace(QualifiedNameGetCreationNamespace(name, &object));
}

static bool
relation_is_temporary(RangeVar *name)
{
	Oid			relid;

	if (name == NULL || !ot_ddl_session_has_temporary())
		return false;
	relid = RangeVarGetRelid(name, NoLock, true);
	return OidIsValid(relid) && get_rel_persistence(relid) == RELPERSISTENCE_TEMP;
}

static bool
object_is_temporary(ObjectType type, Node *object)
{
	Relation	rel = NULL;
	ObjectAddress address;

	if (object == NULL || !ot_ddl_session_has_temporary())
		return false;
	switch (type)
	{
		case OBJECT_TABLE:
		case OBJECT_VIEW:
		case OBJECT_INDEX:
		case OBJECT_SEQUENCE:
		case OBJECT_MATVIEW:
		case OBJECT_FOREIGN_TABLE:
			return relation_is_temporary(makeRangeVarFromNameList((List *) object));
		case OBJECT_AGGREGATE:
		case OBJECT_COLLATION:
		case OBJECT_COLUMN:
		case OBJECT_CONVERSION:
		case OBJECT_DOMAIN:
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
			return false;		/* belongs to no schema */
	}

	/* COMMENT and DROP name a type by a TypeName, RENAME and OWNER by a list */
	if ((type == OBJECT_TYPE || type == OBJECT_DOMAIN) && IsA(object, List))
		object = (Node *) makeTypeNameFromNameList((List *) object);
	address = get_object_address(type, object, &rel, AccessShareLock, true);
	if (rel != NULL)
	{
		bool		temporary = rel->rd_rel->relpersistence == RELPERSISTENCE_TEMP;

		relation_close(rel, NoLock);
		return temporary;
	}
	return OidIsValid(address.objectId) &&
		isTempNamespace(get_object_namespace(&address));
}

static void
count(Count *c, bool temporary)
{
	if (temporary)
		c->temporary++;
	else
		c->other++;
}

static bool
all_temporary(const Count *c, const char *what)
{
	if (c->temporary > 0 && c->other > 0)
		ot_ddl_refuse(psprintf("%s of temporary and other objects in one statement", what),
					  "Use one statement for the temporary objects and another for the rest.");
	return c->temporary > 0;
}

static bool
drops_temporary(DropStmt *stmt)
{
	Count		c = {0, 0};
	ListCell   *lc;

	if (!ot_ddl_session_has_temporary())
		return false;
	foreach(lc, stmt->objects)
		count(&c, object_is_temporary(stmt->removeType, lfirst(lc)));
	return all_temporary(&c, "DROP");
}

static bool
truncates_temporary(TruncateStmt *stmt)
{
	Count		c = {0, 0};
	ListCell   *lc;

	if (!ot_ddl_session_has_temporary())
		return false;
	foreach(lc, stmt->relations)
		count(&c, relation_is_temporary(lfirst_node(RangeVar, lc)));
	return all_temporary(&c, "TRUNCATE");
}

static bool
grants_temporary(GrantStmt *stmt)
{
	Count		c = {0, 0};
	ListCell   *lc;

	if (stmt->targtype != ACL_TARGET_OBJECT || !ot_ddl_session_has_temporary())
		return false;
	foreach(lc, stmt->objects)
	{
		Node	   *object = lfirst(lc);

		if (IsA(object, RangeVar))
			count(&c, relation_is_temporary((RangeVar *) object));
		else if (stmt->objtype == OBJECT_TYPE || stmt->objtype == OBJECT_DOMAIN)
			count(&c, object_is_temporary(OBJECT_TYPE,
										  (Node *) makeTypeNameFromNameList((List *) object)));
		else
			count(&c, object_is_temporary(stmt->objtype, object));
	}
	return all_temporary(&c, "GRANT");
}

/* CREATE VIEW makes a temporary view if its query uses anything temporary. */
static bool
view_is_temporary(ViewStmt *stmt, const char *query)
{
	RawStmt    *raw;

	if (creates_temporary(stmt->view))
		return true;
	if (!ot_ddl_session_has_temporary())
		return false;
	raw = makeNode(RawStmt);
	raw->stmt = copyObject(stmt->query);
	raw->stmt_location = -1;
	return isQueryUsingTempRelation(parse_analyze_fixedparams(raw, query, NULL, 0, NULL));
}

bool
ot_ddl_is_temporary(Node *stmt, const char *query)
{
	switch (nodeTag(stmt))
	{
		case T_CreateStmt:
			return creates_temporary(((CreateStmt *) stmt)->relation);
		case T_CreateForeignTableStmt:
			return creates_temporary(((CreateForeignTableStmt *) stmt)->base.relation);
		case T_CreateSeqStmt:
			return creates_temporary(((CreateSeqStmt *) stmt)->sequence);
		case T_CompositeTypeStmt:
			return creates_temporary(((CompositeTypeStmt *) stmt)->typevar);
		case T_ViewStmt:
			return view_is_temporary((ViewStmt *) stmt, query);
		case T_CreateEnumStmt:
			return creates_temporary_object(((CreateEnumStmt *) stmt)->typeName);
		case T_CreateRangeStmt:
			return creates_temporary_object(((CreateRangeStmt *) stmt)->typeName);
		case T_CreateDomainStmt:
			return creates_temporary_object(((CreateDomainStmt *) stmt)->domainname);
		case T_CreateFunctionStmt:
			return creates_temporary_object(((CreateFunctionStmt *) stmt)->funcname);
		case T_DefineStmt:
			return creates_temporary_object(((DefineStmt *) stmt)->defnames);
		case T_CreateConversionStmt:
			return creates_temporary_object(((CreateConversionStmt *) stmt)->conversion_name);
		case T_CreateOpClassStmt:
			return creates_temporary_object(((CreateOpClassStmt *) stmt)->opclassname);
		case T_CreateOpFamilyStmt:
			return creates_temporary_object(((CreateOpFamilyStmt *) stmt)->opfamilyname);

		case T_AlterTableStmt:
			return relation_is_temporary(((AlterTableStmt *) stmt)->relation);
		case T_AlterSeqStmt:
			return relation_is_temporary(((AlterSeqStmt *) stmt)->sequence);
		case T_IndexStmt:
			return relation_is_temporary(((IndexStmt *) stmt)->relation);
		case T_RuleStmt:
			return relation_is_temporary(((RuleStmt *) stmt)->relation);
		case T_CreateTrigStmt:
			return relation_is_temporary(((CreateTrigStmt *) stmt)->relation);
		case T_CreatePolicyStmt:
			return relation_is_temporary(((CreatePolicyStmt *) stmt)->table);
		case T_AlterPolicyStmt:
			return relation_is_temporary(((AlterPolicyStmt *) stmt)->table);
		case T_CreateStatsStmt:
			{
				List	   *name = ((CreateStatsStmt *) stmt)->defnames;
				List	   *relations = ((CreateStatsStmt *) stmt)->relations;

				if (name != NIL && creates_temporary_object(name))
					return true;
				return relations != NIL && IsA(linitial(relations), RangeVar) &&
					relation_is_temporary(linitial(relations));
			}

		case T_AlterFunctionStmt:
			return object_is_temporary(((AlterFunctionStmt *) stmt)->objtype,
									   (Node *) ((AlterFunctionStmt *) stmt)->func);
		case T_AlterTypeStmt:
			return object_is_temporary(OBJECT_TYPE,
									   (Node *) makeTypeNameFromNameList(((AlterTypeStmt *) stmt)->typeName));
		case T_AlterEnumStmt:
			return object_is_temporary(OBJECT_TYPE,
									   (Node *) makeTypeNameFromNameList(((AlterEnumStmt *) stmt)->typeName));
		case T_AlterDomainStmt:
			return object_is_temporary(OBJECT_TYPE,
									   (Node *) makeTypeNameFromNameList(((AlterDomainStmt *) stmt)->typeName));
		case T_AlterStatsStmt:
			return object_is_temporary(OBJECT_STATISTIC_EXT,
									   (Node *) ((AlterStatsStmt *) stmt)->defnames);
		case T_AlterOperatorStmt:
			return object_is_temporary(OBJECT_OPERATOR,
									   (Node *) ((AlterOperatorStmt *) stmt)->opername);
		case T_AlterTSDictionaryStmt:
			return object_is_temporary(OBJECT_TSDICTIONARY,
									   (Node *) ((AlterTSDictionaryStmt *) stmt)->dictname);
		case T_AlterTSConfigurationStmt:
			return object_is_temporary(OBJECT_TSCONFIGURATION,
									   (Node *) ((AlterTSConfigurationStmt *) stmt)->cfgname);

		case T_RenameStmt:
			{
				RenameStmt *rename = (RenameStmt *) stmt;

				return rename->relation ? relation_is_temporary(rename->relation) :
					object_is_temporary(rename->renameType, rename->object);
			}
		case T_AlterObjectSchemaStmt:
			{
				AlterObjectSchemaStmt *alter = (AlterObjectSchemaStmt *) stmt;

				return alter->relation ? relation_is_temporary(alter->relation) :
					object_is_temporary(alter->objectType, alter->object);
			}
		case T_AlterObjectDependsStmt:
			{
				AlterObjectDependsStmt *alter = (AlterObjectDependsStmt *) stmt;

				return alter->relation ? relation_is_temporary(alter->relation) :
					object_is_temporary(alter->objectType, alter->object);
			}
		case T_AlterOwnerStmt:
			{
				AlterOwnerStmt *alter = (AlterOwnerStmt *) stmt;

				return alter->relation ? relation_is_temporary(alter->relation) :
					object_is_temporary(alter->objectType, alter->object);
			}
		case T_CommentStmt:
			return object_is_temporary(((CommentStmt *) stmt)->objtype,
									   ((CommentStmt *) stmt)->object);
		case T_SecLabelStmt:
			return object_is_temporary(((SecLabelStmt *) stmt)->objtype,
									   ((SecLabelStmt *) stmt)->object);
		case T_DropStmt:
			return drops_temporary((DropStmt *) stmt);
		case T_TruncateStmt:
			return truncates_temporary((TruncateStmt *) stmt);
		case T_GrantStmt:
			return grants_temporary((GrantStmt *) stmt);
		default:
			return false;
	}
}
