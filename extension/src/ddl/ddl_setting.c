/*-------------------------------------------------------------------------
 *
 * ddl_setting.c
 *	  Statements that store settings with a role, a database or a function.
 *
 * PostgreSQL checks what is to be stored, and whether the role may store it, by
 * what the session knows.  A setting with a dot in its name is known where its
 * library is loaded, perhaps only since a function of it was called.  Elsewhere
 * it is a placeholder: that takes any value, but one only, and from superusers
 * only, and RESET ALL of anybody else keeps it.  The checks of some settings of
 * the server look at the session, too.  So
 *	- for these settings the checks of the origin count, and other regions store
 *	  what was given there;
 *	- RESET ALL that keeps some of the settings is recorded as RESET of the others.
 *
 * GRANT ON PARAMETER of a name that is known nowhere yet makes a row for it, which
 * PostgreSQL checks likewise; so the worker makes that.
 *
 * Other settings are checked in every region.  So a value that one of them does
 * not accept, such as a time zone that it does not know, is refused at COMMIT.
 *
 * Runs in backends and in the apply worker.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_parameter_acl.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "parser/parse_func.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/formatting.h"
#include "utils/guc.h"
#include "utils/syscache.h"

/* The settings of an array, and room for one more. */
typedef struct Items
{
	int			count;
	Datum	   *items;
} Items;

static Items
ddl_setting_items(ArrayType *array)
{
	Items		result = {0, NULL};
	Datum	   *items;

	if (array != NULL)
		deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &items, NULL, &result.count);
	result.items = palloc((result.count + 1) * sizeof(Datum));
	if (result.count > 0)
		memcpy(result.items, items, result.count * sizeof(Datum));
	return result;
}

/*
 * The name under which a setting is stored that every region may check
 * differently.  NULL: it is another one.
 */
static const char *
ddl_setting_unchecked_name(const char *name)
{
	static const char *const of_session[] = {"role", "session_authorization", "temp_tablespaces", "transaction_isolation",
	"log_parser_stats", "log_planner_stats", "log_executor_stats", "log_statement_stats"};

	if (strchr(name, '.') != NULL)
		return name;
	for (int i = 0; i < lengthof(of_session); i++)
	{
		if (pg_strcasecmp(name, of_session[i]) == 0)
			return of_session[i];
	}
	return NULL;
}

/* The value as PostgreSQL stores it; NULL: RESET. */
static char *
ddl_setting_value(VariableSetStmt *set)
{
	VariableSetStmt one = *set;
	StringInfoData value;
	ListCell   *lc;

	if (list_length(set->args) <= 1)
		return ExtractSetVariableArgs(set);
	/* it would not take several where the library is not loaded */
	initStringInfo(&value);
	foreach(lc, set->args)
	{
		one.args = list_make1(lfirst(lc));
		appendStringInfo(&value, "%s%s", foreach_current_index(lc) > 0 ? ", " : "",
						 ExtractSetVariableArgs(&one));
	}
	return value.data;
}

static ArrayType *
ddl_setting_change(ArrayType *array, VariableSetStmt *set)
{
	const char *name;
	char	   *value;
	Items		items;
	Datum		changed = (Datum) 0;
	int			kept = 0;

	if (set->kind == VAR_RESET_ALL)
		return NULL;
	name = ddl_setting_unchecked_name(set->name);
	if (name == NULL)
	{
		value = ExtractSetVariableArgs(set);
		return value != NULL ? GUCArrayAdd(array, set->name, value) : GUCArrayDelete(array, set->name);
	}
	value = ddl_setting_value(set);
	items = ddl_setting_items(array);
	if (value != NULL)
		changed = CStringGetTextDatum(psprintf("%s=%s", name, value));
	for (int i = 0; i < items.count; i++)
	{
		char	   *item = TextDatumGetCString(items.items[i]);

		/* the library may spell it otherwise */
		if (pg_strncasecmp(item, name, strlen(name)) != 0 || item[strlen(name)] != '=')
			items.items[kept++] = items.items[i];
		else if (value != NULL)
		{
			/* in the same place */
			items.items[kept++] = changed;
			value = NULL;
		}
	}
	if (value != NULL)
		items.items[kept++] = changed;
	return kept > 0 ? construct_array(items.items, kept, TEXTOID, -1, false, TYPALIGN_INT) : NULL;
}

/* ---- with a role or a database ---- */

/* Returns the setting of ALTER ROLE or ALTER DATABASE, NULL for other statements. */
static VariableSetStmt *
ddl_setting_of(Node *stmt, const RoleSpec **role, const char **database)
{
	*role = NULL;
	*database = NULL;
	if (IsA(stmt, AlterRoleSetStmt))
	{
		*role = ((AlterRoleSetStmt *) stmt)->role;
		*database = ((AlterRoleSetStmt *) stmt)->database;
		return ((AlterRoleSetStmt *) stmt)->setstmt;
	}
	if (IsA(stmt, AlterDatabaseSetStmt))
	{
		*database = ((AlterDatabaseSetStmt *) stmt)->dbname;
		return ((AlterDatabaseSetStmt *) stmt)->setstmt;
	}
	return NULL;
}

/* Returns a copy of the row, or NULL. */
static HeapTuple
ddl_setting_row(Relation catalog, Oid database, Oid role)
{
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	row;

	ScanKeyInit(&keys[0], Anum_pg_db_role_setting_setdatabase, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(database));
	ScanKeyInit(&keys[1], Anum_pg_db_role_setting_setrole, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(role));
	scan = systable_beginscan(catalog, DbRoleSettingDatidRolidIndexId, true, NULL, 2, keys);
	row = systable_getnext(scan);
	if (HeapTupleIsValid(row))
		row = heap_copytuple(row);
	systable_endscan(scan);
	return row;
}

static ArrayType *
ddl_setting_stored(Relation catalog, HeapTuple row)
{
	bool		is_null = true;
	Datum		array = (Datum) 0;

	if (HeapTupleIsValid(row))
		array = heap_getattr(row, Anum_pg_db_role_setting_setconfig, RelationGetDescr(catalog), &is_null);
	return is_null ? NULL : DatumGetArrayTypePCopy(array);
}

static void
ddl_setting_store(Oid database, Oid role, VariableSetStmt *set)
{
	Relation	catalog = table_open(DbRoleSettingRelationId, RowExclusiveLock);
	HeapTuple	row = ddl_setting_row(catalog, database, role);
	ArrayType  *array = ddl_setting_change(ddl_setting_stored(catalog, row), set);
	Datum		values[Natts_pg_db_role_setting] = {
		[Anum_pg_db_role_setting_setdatabase - 1] = ObjectIdGetDatum(database),
		[Anum_pg_db_role_setting_setrole - 1] = ObjectIdGetDatum(role),
		[Anum_pg_db_role_setting_setconfig - 1] = PointerGetDatum(array)
	};
	bool		nulls[Natts_pg_db_role_setting] = {false};

	if (array == NULL)
	{
		if (HeapTupleIsValid(row))
			CatalogTupleDelete(catalog, &row->t_self);
	}
	else if (HeapTupleIsValid(row))
	{
		bool		replace[Natts_pg_db_role_setting] = {[Anum_pg_db_role_setting_setconfig - 1] = true};

		CatalogTupleUpdate(catalog, &row->t_self,
						   heap_modify_tuple(row, RelationGetDescr(catalog), values, nulls, replace));
	}
	else
		CatalogTupleInsert(catalog, heap_form_tuple(RelationGetDescr(catalog), values, nulls));
	/* as PostgreSQL, which keeps the lock */
	table_close(catalog, NoLock);
}

/*
 * In the apply worker: stores the setting of ALTER ROLE or ALTER DATABASE.
 * Returns false for other statements.
 */
bool
ot_setting_apply(Node *stmt)
{
	const RoleSpec *role_name;
	const char *database_name;
	VariableSetStmt *set = ddl_setting_of(stmt, &role_name, &database_name);
	Oid			role = InvalidOid;
	Oid			database = InvalidOid;

	if (set == NULL)
		return false;
	if (role_name != NULL)
	{
		role = get_rolespec_oid(role_name, false);
		shdepLockAndCheckObject(AuthIdRelationId, role);
	}
	if (database_name != NULL)
	{
		database = get_database_oid(database_name, false);
		shdepLockAndCheckObject(DatabaseRelationId, database);
	}
	ddl_setting_store(database, role, set);
	return true;
}

/* The name as SQL, part by part: a part is as long as an identifier may be. */
static void
ddl_setting_append_name(StringInfo text, const char *name)
{
	for (;;)
	{
		size_t		length = strcspn(name, ".");

		appendStringInfoString(text, quote_identifier(pnstrdup(name, length)));
		if (name[length] == '\0')
			return;
		appendStringInfoChar(text, '.');
		name += length + 1;
	}
}

/*
 * Writes RESET ALL out if it will keep what the role may not set, as seen from
 * this session.  The text is empty if nothing is left of it.
 */
void
ot_setting_write_reset_all(Node *stmt, char **recorded)
{
	const RoleSpec *role_name;
	const char *database_name;
	VariableSetStmt *set = ddl_setting_of(stmt, &role_name, &database_name);
	Oid			role;
	Oid			database;
	Relation	catalog;
	ArrayType  *array;
	ArrayType  *kept;
	Items		all;
	Items		rest;
	StringInfoData resets;

	if (set == NULL || set->kind != VAR_RESET_ALL || superuser())
		return;
	role = role_name != NULL ? get_rolespec_oid(role_name, true) : InvalidOid;
	database = database_name != NULL ? get_database_oid(database_name, true) : InvalidOid;
	catalog = table_open(DbRoleSettingRelationId, RowExclusiveLock);
	array = ddl_setting_stored(catalog, ddl_setting_row(catalog, database, role));
	table_close(catalog, NoLock);
	kept = GUCArrayReset(array);
	if (kept == NULL)
		return;
	all = ddl_setting_items(array);
	rest = ddl_setting_items(kept);
	initStringInfo(&resets);
	for (int i = 0, j = 0; i < all.count; i++)
	{
		char	   *item = TextDatumGetCString(all.items[i]);

		/* they are in the same order */
		if (j < rest.count && strcmp(item, TextDatumGetCString(rest.items[j])) == 0)
		{
			j++;
			continue;
		}
		if (resets.len > 0)
			appendStringInfoString(&resets, "; ");
		if (role_name != NULL)
			appendStringInfo(&resets, "ALTER ROLE %s ", quote_identifier(GetUserNameFromId(role, false)));
		if (database_name != NULL)
			appendStringInfo(&resets, "%s DATABASE %s ", role_name != NULL ? "IN" : "ALTER",
							 quote_identifier(database_name));
		appendStringInfoString(&resets, "RESET ");
		ddl_setting_append_name(&resets, pnstrdup(item, strcspn(item, "=")));
	}
	*recorded = resets.data;
}

/* ---- with a function ---- */

/* The function that the statement has made; who may create one need not be allowed to look it up. */
static Oid	made = InvalidOid;

/* In the apply worker: the statement, or after that an event trigger, has made or replaced a function. */
void
ot_setting_note_function(Oid function)
{
	if (!OidIsValid(made))
		made = function;
}

/*
 * Takes SET and RESET out of CREATE or ALTER FUNCTION: they are stored when it
 * has run.  Otherwise the function would also be made under SET role, which the
 * worker must not allow.
 */
List *
ot_setting_take_out(Node *stmt)
{
	List	  **options;
	List	   *settings = NIL;
	ListCell   *lc;

	made = InvalidOid;
	if (IsA(stmt, CreateFunctionStmt))
		options = &((CreateFunctionStmt *) stmt)->options;
	else if (IsA(stmt, AlterFunctionStmt))
		options = &((AlterFunctionStmt *) stmt)->actions;
	else
		return NIL;
	foreach(lc, *options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, "set") != 0)
			continue;
		settings = lappend(settings, option->arg);
		*options = foreach_delete_current(*options, lc);
	}
	return settings;
}

/* Stores what was taken out of the statement. */
void
ot_setting_store_of_function(Node *stmt, List *settings)
{
	AlterFunctionStmt *alter = (AlterFunctionStmt *) stmt;
	Oid			function = made;
	Relation	catalog;
	HeapTuple	row;
	ArrayType  *array;
	Datum		values[Natts_pg_proc] = {0};
	bool		nulls[Natts_pg_proc] = {false};
	bool		replace[Natts_pg_proc] = {[Anum_pg_proc_proconfig - 1] = true};
	ListCell   *lc;

	if (settings == NIL)
		return;
	if (IsA(stmt, AlterFunctionStmt))
		function = LookupFuncWithArgs(alter->objtype, alter->func, false);
	catalog = table_open(ProcedureRelationId, RowExclusiveLock);
	row = SearchSysCacheCopy1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(row))
		elog(ERROR, "cache lookup failed for function %u", function);
	values[Anum_pg_proc_proconfig - 1] = SysCacheGetAttr(PROCOID, row, Anum_pg_proc_proconfig,
														 &nulls[Anum_pg_proc_proconfig - 1]);
	array = nulls[Anum_pg_proc_proconfig - 1] ? NULL :
		DatumGetArrayTypePCopy(values[Anum_pg_proc_proconfig - 1]);
	foreach(lc, settings)
		array = ddl_setting_change(array, lfirst_node(VariableSetStmt, lc));
	values[Anum_pg_proc_proconfig - 1] = PointerGetDatum(array);
	nulls[Anum_pg_proc_proconfig - 1] = array == NULL;
	CatalogTupleUpdate(catalog, &row->t_self,
					   heap_modify_tuple(row, RelationGetDescr(catalog), values, nulls, replace));
	CommandCounterIncrement();
	table_close(catalog, NoLock);
}

/* ---- privileges on settings ---- */

static void
ddl_setting_make_grantable(const char *name)
{
	Relation	catalog = table_open(ParameterAclRelationId, RowExclusiveLock);
	Datum		values[Natts_pg_parameter_acl] = {
		[Anum_pg_parameter_acl_oid - 1] =
		ObjectIdGetDatum(GetNewOidWithIndex(catalog, ParameterAclOidIndexId, Anum_pg_parameter_acl_oid)),
		/* in small letters, as PostgreSQL */
		[Anum_pg_parameter_acl_parname - 1] = CStringGetTextDatum(asc_tolower(name, strlen(name)))
	};
	bool		nulls[Natts_pg_parameter_acl] = {[Anum_pg_parameter_acl_paracl - 1] = true};

	CatalogTupleInsert(catalog, heap_form_tuple(RelationGetDescr(catalog), values, nulls));
	CommandCounterIncrement();
	table_close(catalog, NoLock);
}

/* In the apply worker, before GRANT. */
void
ot_setting_prepare_grant(Node *stmt)
{
	GrantStmt  *grant = (GrantStmt *) stmt;
	ListCell   *lc;

	if (!IsA(stmt, GrantStmt) || grant->objtype != OBJECT_PARAMETER_ACL || !grant->is_grant)
		return;
	foreach(lc, grant->objects)
	{
		const char *name = strVal(lfirst(lc));

		if (ddl_setting_unchecked_name(name) != NULL && !OidIsValid(ParameterAclLookup(name, true)))
			ddl_setting_make_grantable(name);
	}
}
