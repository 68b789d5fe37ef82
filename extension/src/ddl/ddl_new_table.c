/*-------------------------------------------------------------------------
 *
 * ddl_new_table.c
 *	  The access method of a new table whose statement does not name one.
 *
 * In the replicated database such a table is replicated.  That
 * default_table_access_method is heap does not say otherwise: it is what RESET
 * sets, and what every dump of another database sets.  Only onetrip.new_tables
 * = local, or USING heap, makes a table local.  Any other access method is
 * taken at its word.
 *
 * The access method is written into the parse tree just before it runs.  The
 * apply worker does the same, under the settings that were recorded with the
 * statement, also within the script of an extension.
 *
 * A table that C code makes without a statement does not come through here; it
 * is refused (ddl_objects.c).
 *
 * Runs in backends and in the apply worker.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/tableam.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "capture/capture.h"

/* What a table in the replicated database gets without USING. */
const char *
ot_ddl_default_access_method(void)
{
	if (strcmp(default_table_access_method, "onetrip") != 0 &&
		strcmp(default_table_access_method, DEFAULT_TABLE_ACCESS_METHOD) != 0)
		return default_table_access_method;
	return ot_new_tables == OT_NEW_TABLES_LOCAL ? DEFAULT_TABLE_ACCESS_METHOD : "onetrip";
}

/*
 * Does PostgreSQL take the access method from elsewhere, or need none?  A
 * partitioned table has no rows; if it has an access method, that is for its
 * partitions.
 */
static bool
ddl_new_table_needs_no_default(CreateStmt *stmt)
{
	Oid			parent;

	if (stmt->partspec != NULL)
		return true;
	if (stmt->partbound == NULL)
		return false;
	parent = RangeVarGetRelid(linitial_node(RangeVar, stmt->inhRelations), NoLock, true);
	return OidIsValid(parent) && OidIsValid(OT_ACCESS_METHOD_FOR_PARTITIONS(parent));
}

/*
 * The places in the parse tree (char **) where the statement could name an
 * access method and does not.
 */
static List *
ddl_new_table_find_places(Node *stmt)
{
	CreateTableAsStmt *create_as = ot_ddl_create_as(stmt);
	List	   *places = NIL;
	ListCell   *lc;

	if (create_as != NULL && create_as->into->accessMethod == NULL)
		places = list_make1(&create_as->into->accessMethod);
	else if (IsA(stmt, CreateStmt) && ((CreateStmt *) stmt)->accessMethod == NULL &&
			 !ddl_new_table_needs_no_default((CreateStmt *) stmt))
		places = list_make1(&((CreateStmt *) stmt)->accessMethod);
	else if (IsA(stmt, AlterTableStmt))
	{
		foreach(lc, ((AlterTableStmt *) stmt)->cmds)
		{
			AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);

			/* 17: SET ACCESS METHOD DEFAULT */
			if (command->subtype == AT_SetAccessMethod && command->name == NULL &&
				get_rel_relkind(RangeVarGetRelid(((AlterTableStmt *) stmt)->relation, NoLock, true)) !=
				RELKIND_PARTITIONED_TABLE)
				places = lappend(places, &command->name);
		}
	}
	return places;
}

/* Writes the access method of the settings as they are now into the places. */
void
ot_ddl_name_access_method(List *places)
{
	ListCell   *lc;

	foreach(lc, places)
		*(char **) lfirst(lc) = MemoryContextStrdup(TopTransactionContext, ot_ddl_default_access_method());
}

/*
 * Returns the statement to run: a copy that names the access method, if it
 * makes a table and does not name one.  *places is where.
 */
Node *
ot_ddl_choose_access_method(Node *stmt, List **places)
{
	if (!ot_in_replicated_database() || ddl_new_table_find_places(stmt) == NIL ||
		!OidIsValid(ot_access_method_oid()))
		return stmt;
	stmt = copyObject(stmt);
	*places = ddl_new_table_find_places(stmt);
	ot_ddl_name_access_method(*places);
	return stmt;
}
