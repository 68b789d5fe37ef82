/*-------------------------------------------------------------------------
 *
 * ddl_function.c
 *	  Functions that depend on a temporary object, which exist in the region of
 *	  its session only.
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
 * Nothing permanent may depend on them (ddl_temporary.c), and none becomes
 * permanent, or was before: only this region would have it, or lose it.
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
#include "commands/defrem.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_node.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
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

static void
ddl_function_set(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, ERROR, false);
}

static Oid
ddl_function_carry_out(Node *stmt, const char *query)
{
	ParseState *pstate = make_parsestate(NULL);
	ObjectAddress function;

	pstate->p_sourcetext = query;
	stmt = copyObject(stmt);
	if (IsA(stmt, DefineStmt))
	{
		DefineStmt *define = (DefineStmt *) stmt;

		function = DefineAggregate(pstate, define->defnames, define->args, define->oldstyle, define->definition,
								   define->replace);
	}
	else if (IsA(stmt, AlterFunctionStmt))
		function = AlterFunction(pstate, (AlterFunctionStmt *) stmt);
	else
		function = CreateFunction(pstate, (CreateFunctionStmt *) stmt);
	CommandCounterIncrement();
	return function.objectId;
}

/*
 * What the function will depend on is known once the statement has run, and
 * whether it is recorded must be known before.  So it is tried, without its event
 * triggers and notices, and rolled back.  Returns whether the function, whose
 * OID it stores, is temporary then.
 */
static bool
ddl_function_try(Node *stmt, const char *query, Oid *function)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;
	volatile bool temporary = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		ddl_function_set("client_min_messages", "error");
		ddl_function_set("check_function_bodies", "off");
		*function = ddl_function_carry_out(stmt, query);
		temporary = OidIsValid(ot_function_temporary_schema(*function, NULL));
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (error)
		ReThrowError(error);
	return temporary;
}

/*
 * Will the function in a permanent schema that the statement makes, replaces or
 * alters be a temporary one?  Called with the schema lock held.
 */
bool
ot_function_will_be_temporary(Node *stmt, const char *query)
{
	Oid			function = InvalidOid;
	bool		temporary;

	if (!ot_ddl_session_has_temporary() && !ot_temporary_functions_possible())
		return false;
	temporary = ddl_function_try(stmt, query, &function);
	/* one that is replaced keeps its privileges, and what depends on it */
	if (SearchSysCacheExists1(PROCOID, ObjectIdGetDatum(function)) &&
		temporary != ot_function_is_temporary(function))
	{
		if (temporary)
			ot_ddl_refuse("a permanent function that becomes temporary", "Drop the function, and create it anew.");
		ot_ddl_refuse("a temporary function that becomes permanent", "Drop the function, and create it anew.");
	}
	return temporary;
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
				 errmsg("cannot create more than %d functions that depend on temporary objects", FUNCTIONS_MAX),
				 errdetail("Those of all sessions of this server count."),
				 errhint("Drop some, or use permanent objects.")));
}

/* This transaction's keys are on their way: ON COMMIT DROP comes after that. */
static bool commit_begun = false;

/* It has dropped one, which is there again if it is rolled back. */
static bool dropped_some = false;

/* It has dropped one whose session is gone. */
static bool dropped_left_behind = false;

/* Called at COMMIT, before it is certain, and when the transaction is over. */
void
ot_functions_commit_begins(bool begins)
{
	commit_begun = begins;
	if (!begins)
		dropped_some = dropped_left_behind = false;
}

#define HIDDEN "onetrip_hidden_"

/*
 * One that is in a temporary schema and was not hidden there, is in nobody's way:
 * it is found by no name without that schema.
 */
static bool
ddl_function_can_be_met(Oid function)
{
	Oid			schema = get_func_namespace(function);
	char	   *name = get_func_name(function);

	return !isAnyTempNamespace(schema) || (name != NULL && strncmp(name, HIDDEN, strlen(HIDDEN)) == 0);
}

/*
 * Called before a function is dropped, also because of what it depends on, with
 * its lock held.  The worker may need this lock for an entry that comes first in
 * the log, so the transaction has to lose against that one.  What a COMMIT drops
 * needs no key: it happens in the transaction's turn, and without one its locks
 * are let go at once.
 *
 * What a session has left behind in a crash is dropped by the one that gets its
 * place, before that makes something temporary, or by autovacuum.  Neither may need
 * an entry for it: that would fail on a read replica, and without a majority.
 */
void
ot_function_before_drop(Oid function, bool is_recorded)
{
	if (!ot_function_is_temporary(function) || !ddl_function_can_be_met(function))
		return;
	dropped_some = true;
	if (is_recorded || commit_begun || proc_exit_inprogress || !ot_capturing())
		return;
	if (checkTempNamespaceStatus(ot_function_temporary_schema(function, NULL)) == TEMP_NAMESPACE_IDLE)
		dropped_left_behind = true;
	else
		ot_write_set_key_now(ot_hash_schema(), OT_UPDATE, InvalidOid);
}

/*
 * Called at COMMIT of a transaction that has an entry.  If the worker waits for the
 * lock, its entry is not applied yet: a key that is taken now still loses against it.
 */
void
ot_functions_take_key(void)
{
	if (unlikely(dropped_left_behind))
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
		Oid			function = ((Form_pg_proc) GETSTRUCT(tuple))->oid;

		if (ot_function_is_temporary(function) && ddl_function_can_be_met(function))
			functions = lappend_oid(functions, function);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	if (functions == NIL && !dropped_some)
		ot_temporary_functions_note(false);
	return functions;
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
		Oid			schema = ot_function_temporary_schema(lfirst_oid(lc), NULL);

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
		Oid			schema = ot_function_temporary_schema(lfirst_oid(lc), NULL);
		Hidden	   *one;

		if (!OidIsValid(schema) || isAnyTempNamespace(form->pronamespace))
			continue;
		one = palloc(sizeof(Hidden));
		one->function = form->oid;
		one->schema = form->pronamespace;
		one->name = form->proname;
		hidden = lappend(hidden, one);
		ddl_function_move(tuple, psprintf(HIDDEN "%u", form->oid), schema);
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
		Oid			schema = ot_function_temporary_schema(lfirst_oid(lc), NULL);

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
