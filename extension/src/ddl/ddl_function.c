/*-------------------------------------------------------------------------
 *
 * ddl_function.c
 *	  Functions with a temporary type in their signature, which exist in the
 *	  region of the type's session only.
 *
 * Such a function (capture/temporary_function.c) is in a permanent schema, where
 * all sessions of this server see it, and no other region does.  Statements
 * about it stay local.  No statement that another region has recorded may meet
 * it: it could resolve a name to it, find its name taken, or fail to drop what it
 * depends on.  Therefore
 *	- statements about it take the schema key and its lock.  So whoever has made,
 *	  changed or dropped one has committed before the worker replays a statement,
 *	  or loses against it;
 *	- the worker hides them while it replays a statement: they get another name,
 *	  in the temporary schema of the type, and have their own again afterwards.
 *	  One whose name or schema is gone by then stays hidden until its session
 *	  ends;
 *	- after an error that does not pass by itself the worker ends their sessions
 *	  (ddl_make_way.c), and drops those that are left, in the transaction of the
 *	  entry: the statement may be one that drops what they depend on;
 *	- a rehearsal drops them, too, and is rolled back.
 * Nothing permanent may depend on them (ddl_temporary.c).
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
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_type.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "capture/capture.h"

/* ---- statements that make one ---- */

/* The table whose column's type this is, with %TYPE; NULL: not a valid name. */
RangeVar *
ot_function_table_of_type(TypeName *name)
{
	int			parts = list_length(name->names);

	if (parts < 2 || parts > 4)
		return NULL;
	return makeRangeVarFromNameList(list_truncate(list_copy(name->names), parts - 1));
}

/* The same as the statement will find, but without its NOTICE about %TYPE. */
static bool
ddl_function_type_is_temporary(TypeName *name)
{
	RangeVar   *table;
	Oid			relid;
	AttrNumber	attnum;

	if (name == NULL)
		return false;
	if (!name->pct_type)
		return ot_type_is_temporary(LookupTypeNameOid(NULL, name, true));
	table = ot_function_table_of_type(name);
	relid = table != NULL ? RangeVarGetRelid(table, NoLock, true) : InvalidOid;
	attnum = OidIsValid(relid) ? get_attnum(relid, strVal(llast(name->names))) : InvalidAttrNumber;
	return attnum != InvalidAttrNumber && ot_type_is_temporary(get_atttype(relid, attnum));
}

static bool
ddl_function_any_argument_is_temporary(List *parameters)
{
	ListCell   *lc;

	foreach(lc, parameters)
	{
		if (ddl_function_type_is_temporary(lfirst_node(FunctionParameter, lc)->argType))
			return true;
	}
	return false;
}

static bool
ddl_function_aggregate_is_temporary(DefineStmt *stmt)
{
	ListCell   *lc;

	/* the list of arguments comes with how many of them are direct */
	if (!stmt->oldstyle && ddl_function_any_argument_is_temporary(linitial_node(List, stmt->args)))
		return true;
	foreach(lc, stmt->definition)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if ((strcmp(option->defname, "stype") == 0 || strcmp(option->defname, "mstype") == 0 ||
			 (stmt->oldstyle && strcmp(option->defname, "basetype") == 0)) &&
			option->arg != NULL && ddl_function_type_is_temporary(defGetTypeName(option)))
			return true;
	}
	return false;
}

/*
 * Will CREATE FUNCTION, PROCEDURE or AGGREGATE make one?  What this does not see
 * (an aggregate whose final function returns a temporary type) is refused after
 * the statement.
 */
bool
ot_function_will_be_temporary(Node *stmt)
{
	CreateFunctionStmt *create = (CreateFunctionStmt *) stmt;

	if (IsA(stmt, DefineStmt))
		return ((DefineStmt *) stmt)->kind == OBJECT_AGGREGATE &&
			ddl_function_aggregate_is_temporary((DefineStmt *) stmt);
	return ddl_function_type_is_temporary(create->returnType) ||
		ddl_function_any_argument_is_temporary(create->parameters);
}

/*
 * The worker locks all of them while it replays a statement, in the table that all
 * sessions share.
 */
#define FUNCTIONS_MAX 300

/* Called before a statement that makes one, with the schema lock held. */
void
ot_function_check_room(Node *stmt)
{
	if ((IsA(stmt, CreateFunctionStmt) || IsA(stmt, DefineStmt)) &&
		list_length(ot_functions_list()) >= FUNCTIONS_MAX)
		ereport(ERROR,
				(errcode(OT_ERR_TOO_LARGE),
				 errmsg("cannot create more than %d functions with a temporary type", FUNCTIONS_MAX),
				 errdetail("Those of all sessions of this server count."),
				 errhint("Drop some, or use a permanent type.")));
}

/* This transaction's keys are on their way: ON COMMIT DROP comes after that. */
static bool commit_begun = false;

/* It has dropped one, which is there again if it is rolled back. */
static bool dropped_some = false;

/* Called at COMMIT, before it is certain, and when the transaction is over. */
void
ot_functions_commit_begins(bool begins)
{
	commit_begun = begins;
	if (!begins)
		dropped_some = false;
}

/*
 * Called before a function is dropped, also because of what it depends on, with
 * its lock held.  The worker may need this lock for an entry that comes first in
 * the log, so the transaction has to lose against that one.  What a COMMIT drops
 * needs no key: it happens in the transaction's turn, and without one its locks
 * are let go at once.
 */
void
ot_function_before_drop(Oid function, bool is_recorded)
{
	if (!ot_temporary_functions_possible() || !OidIsValid(ot_function_temporary_type(function)))
		return;
	dropped_some = true;
	if (is_recorded || commit_begun || proc_exit_inprogress || !ot_capturing())
		return;
	ot_write_set_key_now(ot_hash_schema(), OT_UPDATE, InvalidOid);
}

/* ---- all of them ---- */

/*
 * Those of all sessions, including hidden ones.  The caller holds the schema
 * lock, so there are no others that will commit.
 */
List *
ot_functions_list(void)
{
	Relation	catalog;
	SysScanDesc scan;
	List	   *functions = NIL;
	HeapTuple	tuple;

	if (!ot_temporary_functions_possible())
		return NIL;
	catalog = table_open(ProcedureRelationId, AccessShareLock);
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		if (OidIsValid(ot_function_row_temporary_type(tuple)))
			functions = lappend_oid(functions, ((Form_pg_proc) GETSTRUCT(tuple))->oid);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	if (functions == NIL && !dropped_some)
		ot_temporary_functions_note(false);
	return functions;
}

/* The temporary schema that the function goes with; InvalidOid if it is gone. */
static Oid
ddl_function_temporary_schema(Oid function)
{
	ObjectAddress type = {TypeRelationId, ot_function_temporary_type(function), 0};

	return OidIsValid(type.objectId) ? get_object_namespace(&type) : InvalidOid;
}

/*
 * Locks all of them, in the order of a session that ends: the schema comes
 * first.
 */
static List *
ddl_function_lock_all(void)
{
	List	   *functions = ot_functions_list();
	ListCell   *lc;

	foreach(lc, functions)
	{
		Oid			schema = ddl_function_temporary_schema(lfirst_oid(lc));

		if (OidIsValid(schema))
			LockDatabaseObject(NamespaceRelationId, schema, 0, AccessShareLock);
		LockDatabaseObject(ProcedureRelationId, lfirst_oid(lc), 0, AccessExclusiveLock);
		/* its session may have ended meanwhile */
		if (!SearchSysCacheExists1(PROCOID, ObjectIdGetDatum(lfirst_oid(lc))))
			functions = foreach_delete_current(functions, lc);
	}
	return functions;
}

/* ---- hidden while a statement is replayed ---- */

typedef struct Hidden
{
	Oid			function;
	Oid			schema;
	NameData	name;
} Hidden;

static void
ddl_function_move(HeapTuple tuple, const char *name, Oid schema)
{
	Relation	catalog = table_open(ProcedureRelationId, RowExclusiveLock);
	Form_pg_proc form = (Form_pg_proc) GETSTRUCT(tuple);
	Oid			before = form->pronamespace;

	namestrcpy(&form->proname, name);
	form->pronamespace = schema;
	CatalogTupleUpdate(catalog, &tuple->t_self, tuple);
	(void) changeDependencyFor(ProcedureRelationId, form->oid, NamespaceRelationId, before, schema);
	table_close(catalog, RowExclusiveLock);
	CommandCounterIncrement();
}

/* Returns what ot_functions_show() needs. */
List *
ot_functions_hide(void)
{
	List	   *hidden = NIL;
	ListCell   *lc;

	foreach(lc, ddl_function_lock_all())
	{
		HeapTuple	tuple = SearchSysCacheCopy1(PROCOID, ObjectIdGetDatum(lfirst_oid(lc)));
		Form_pg_proc form = (Form_pg_proc) GETSTRUCT(tuple);
		Oid			schema = ddl_function_temporary_schema(lfirst_oid(lc));
		Hidden	   *one;

		if (!OidIsValid(schema) || isAnyTempNamespace(form->pronamespace))
			continue;
		one = palloc(sizeof(Hidden));
		one->function = form->oid;
		one->schema = form->pronamespace;
		one->name = form->proname;
		hidden = lappend(hidden, one);
		ddl_function_move(tuple, psprintf("onetrip_hidden_%u", form->oid), schema);
		heap_freetuple(tuple);
	}
	return hidden;
}

void
ot_functions_show(List *hidden)
{
	ListCell   *lc;

	foreach(lc, hidden)
	{
		Hidden	   *one = lfirst(lc);
		HeapTuple	tuple = SearchSysCacheCopy1(PROCOID, ObjectIdGetDatum(one->function));
		Form_pg_proc form;

		/* the statement may have dropped it, with what it depends on */
		if (!HeapTupleIsValid(tuple))
			continue;
		form = (Form_pg_proc) GETSTRUCT(tuple);
		if (SearchSysCacheExists1(NAMESPACEOID, ObjectIdGetDatum(one->schema)) &&
			!SearchSysCacheExists3(PROCNAMEARGSNSP, NameGetDatum(&one->name),
								   PointerGetDatum(&form->proargtypes), ObjectIdGetDatum(one->schema)))
			ddl_function_move(tuple, NameStr(one->name), one->schema);
		heap_freetuple(tuple);
	}
	list_free_deep(hidden);
}

/* ---- in the way (ddl_make_way.c) ---- */

/* The temporary schemas of all of them. */
List *
ot_functions_schemas(void)
{
	List	   *schemas = NIL;
	ListCell   *lc;

	foreach(lc, ot_functions_list())
	{
		Oid			schema = ddl_function_temporary_schema(lfirst_oid(lc));

		if (OidIsValid(schema))
			schemas = list_append_unique_oid(schemas, schema);
	}
	return schemas;
}

/*
 * Drops all of them in this transaction, with what depends on them: temporary
 * objects only.  The caller has ended their sessions, or will roll back.
 */
void
ot_functions_drop(void)
{
	ListCell   *lc;

	ot_ddl_lock_schema();
	foreach(lc, ddl_function_lock_all())
	{
		ObjectAddress function = {ProcedureRelationId, lfirst_oid(lc), 0};

		/* it may have gone with another one */
		if (SearchSysCacheExists1(PROCOID, ObjectIdGetDatum(function.objectId)))
		{
			performDeletion(&function, DROP_CASCADE,
							PERFORM_DELETION_INTERNAL | PERFORM_DELETION_QUIETLY | PERFORM_DELETION_SKIP_EXTENSIONS);
			CommandCounterIncrement();
		}
	}
}
