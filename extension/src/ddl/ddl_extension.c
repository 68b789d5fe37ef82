/*-------------------------------------------------------------------------
 *
 * ddl_extension.c
 *	  Adds versions to CREATE EXTENSION and ALTER EXTENSION ... UPDATE.
 *
 * If the statement names no version, PostgreSQL takes the default of the
 * server's control file, and CASCADE takes the defaults of all required
 * extensions.  Control files may differ between servers.  So this server's
 * version is written into the statement before it runs or is recorded, and
 * each required extension is created before it, by a separate statement.
 * Every other region then gets the same versions, or an error that names the
 * version that it lacks.
 *
 * The statement runs exactly as it is recorded, without CASCADE.  If this file
 * missed a required extension, the statement would fail here.
 *
 * Runs in backends; allocates in the current context.  Anything may raise
 * ERROR.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "tcop/dest.h"
#include "utils/array.h"
#include "utils/builtins.h"

/* An extension to be created. */
typedef struct Wanted
{
	char	   *name;
	char	   *version;		/* NULL if this server knows no default */
} Wanted;

/*
 * Returns the one value that the query gives for these arguments, allocated in
 * the caller's memory context.  Sets *isnull if there is none.
 */
static Datum
ddl_extension_look_up(const char *query, const char *name, const char *version, bool *isnull)
{
	MemoryContext context = CurrentMemoryContext;
	Oid			types[] = {TEXTOID, TEXTOID};
	Datum		args[] = {CStringGetTextDatum(name), (Datum) 0};
	char		nulls[] = {' ', 'n'};
	Datum		result = (Datum) 0;

	if (version)
	{
		args[1] = CStringGetTextDatum(version);
		nulls[1] = ' ';
	}
	(void) SPI_connect();
	/* read-only: it looks at files on the server's disk */
	if (SPI_execute_with_args(query, 2, types, args, nulls, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not look up extension \"%s\"", name);
	*isnull = true;
	if (SPI_processed == 1)
		result = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, isnull);
	if (!*isnull)
	{
		MemoryContext spi = MemoryContextSwitchTo(context);

		/* a text or an array */
		result = PointerGetDatum(PG_DETOAST_DATUM_COPY(result));
		MemoryContextSwitchTo(spi);
	}
	SPI_finish();
	return result;
}

/*
 * Returns NULL if the server does not have the extension, or if its control
 * file names no default.
 */
static char *
ddl_extension_default_version(const char *name)
{
	bool		isnull;
	Datum		version = ddl_extension_look_up("SELECT e.default_version::pg_catalog.text"
												" FROM pg_catalog.pg_available_extensions() e"
												" WHERE e.name OPERATOR(pg_catalog.=) $1::pg_catalog.name",
												name, NULL, &isnull);

	return isnull ? NULL : TextDatumGetCString(version);
}

/* The names of the extensions that this version requires. */
static List *
ddl_extension_list_required(const char *name, const char *version)
{
	List	   *names = NIL;
	bool		isnull;
	Datum	   *elements;
	int			count;
	Datum		requires = ddl_extension_look_up("SELECT v.requires"
												 " FROM pg_catalog.pg_available_extension_versions() v"
												 " WHERE v.name OPERATOR(pg_catalog.=) $1::pg_catalog.name"
												 " AND v.version OPERATOR(pg_catalog.=) $2",
												 name, version, &isnull);

	if (isnull)
		return NIL;
	deconstruct_array(DatumGetArrayTypeP(requires), NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR,
					  &elements, NULL, &count);
	for (int i = 0; i < count; i++)
		names = lappend(names, pstrdup(NameStr(*DatumGetName(elements[i]))));
	return names;
}

/*
 * Adds to the list, in order of creation, the extensions that `name` requires
 * and that do not exist yet.  Extensions that require each other in a circle
 * are in the list once each, and PostgreSQL refuses the first of them.
 */
static void
ddl_extension_add_required(List **wanted, const char *name, const char *version)
{
	ListCell   *lc;

	check_stack_depth();
	foreach(lc, ddl_extension_list_required(name, version))
	{
		char	   *other = lfirst(lc);
		Wanted	   *one;
		ListCell   *known;
		bool		is_known = OidIsValid(get_extension_oid(other, true));

		foreach(known, *wanted)
			is_known |= strcmp(((Wanted *) lfirst(known))->name, other) == 0;
		if (is_known)
			continue;
		one = palloc0(sizeof(Wanted));
		one->name = other;
		one->version = ddl_extension_default_version(other);
		/* in the list from now on, but moves behind what it requires itself */
		*wanted = lappend(*wanted, one);
		if (one->version)
			ddl_extension_add_required(wanted, one->name, one->version);
		*wanted = lappend(list_delete_ptr(*wanted, one), one);
	}
}

static char *
ddl_extension_create_text(CreateExtensionStmt *stmt)
{
	DefElem    *schema = ot_ddl_find_option(stmt->options, "schema");
	DefElem    *version = ot_ddl_find_option(stmt->options, "new_version");
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfo(&text, "CREATE EXTENSION %s%s",
					 stmt->if_not_exists ? "IF NOT EXISTS " : "",
					 quote_identifier(stmt->extname));
	if (schema)
		appendStringInfo(&text, " SCHEMA %s", quote_identifier(defGetString(schema)));
	if (version)
		appendStringInfo(&text, " VERSION %s", quote_literal_cstr(defGetString(version)));
	return text.data;
}

static DefElem *
ddl_extension_version_option(char *version)
{
	return makeDefElem("new_version", (Node *) makeString(version), -1);
}

/* Creates what another extension requires, as a statement of its own. */
static void
ddl_extension_create_required(Wanted *one, DefElem *schema)
{
	CreateExtensionStmt *stmt = makeNode(CreateExtensionStmt);
	PlannedStmt *pstmt = makeNode(PlannedStmt);

	ereport(NOTICE,
			(errmsg("installing required extension \"%s\"", one->name)));
	stmt->extname = one->name;
	if (schema)
		stmt->options = lappend(stmt->options, copyObject(schema));
	if (one->version)
		stmt->options = lappend(stmt->options, ddl_extension_version_option(one->version));
	pstmt->commandType = CMD_UTILITY;
	pstmt->canSetTag = false;
	pstmt->utilityStmt = (Node *) stmt;
	pstmt->stmt_location = 0;
	ProcessUtility(pstmt, ddl_extension_create_text(stmt), false, PROCESS_UTILITY_QUERY, NULL, NULL,
				   None_Receiver, NULL);
	CommandCounterIncrement();
}

/*
 * Called before a statement in the script of an extension runs.  Every region runs the
 * script, so what the statement computes for the catalogs must be the same in each.
 * (What it computes for rows travels.)
 */
void
ot_ddl_check_script(Node *stmt, const char *query)
{
	if (ot_ddl_clear_password(stmt) != NULL)
		ot_ddl_refuse("a password in the script of an extension",
					  "Let the script give a verifier, or give the role its password after CREATE EXTENSION.");
	ot_ddl_check_bound_of_script(stmt, query);
	ot_ddl_check_access_method(stmt);
}

static Node *
ddl_extension_name_version_of_create(CreateExtensionStmt *stmt, char **text)
{
	DefElem    *given = ot_ddl_find_option(stmt->options, "new_version");
	DefElem    *cascade = ot_ddl_find_option(stmt->options, "cascade");
	List	   *wanted = NIL;
	char	   *version;
	ListCell   *lc;

	/* it exists, so nothing is going to be installed */
	if (OidIsValid(get_extension_oid(stmt->extname, true)))
		return (Node *) stmt;
	version = given ? defGetString(given) : ddl_extension_default_version(stmt->extname);
	/* PostgreSQL will say what is wrong */
	if (version == NULL)
		return (Node *) stmt;

	stmt = copyObject(stmt);
	if (given == NULL)
		stmt->options = lappend(stmt->options, ddl_extension_version_option(version));
	if (cascade && defGetBoolean(cascade))
	{
		Wanted	   *self = palloc0(sizeof(Wanted));

		self->name = stmt->extname;
		wanted = lappend(wanted, self);
		ddl_extension_add_required(&wanted, stmt->extname, version);
		foreach(lc, wanted)
		{
			if (lfirst(lc) != self)
				ddl_extension_create_required(lfirst(lc), ot_ddl_find_option(stmt->options, "schema"));
		}
		foreach(lc, stmt->options)
		{
			if (strcmp(lfirst_node(DefElem, lc)->defname, "cascade") == 0)
				stmt->options = foreach_delete_current(stmt->options, lc);
		}
	}
	*text = ddl_extension_create_text(stmt);
	return (Node *) stmt;
}

static Node *
ddl_extension_name_version_of_update(AlterExtensionStmt *stmt, char **text)
{
	char	   *version;

	if (ot_ddl_find_option(stmt->options, "new_version") ||
		(version = ddl_extension_default_version(stmt->extname)) == NULL)
		return (Node *) stmt;
	stmt = copyObject(stmt);
	stmt->options = lappend(stmt->options, ddl_extension_version_option(version));
	*text = psprintf("ALTER EXTENSION %s UPDATE TO %s", quote_identifier(stmt->extname),
					 quote_literal_cstr(version));
	return (Node *) stmt;
}

/*
 * Returns the statement to run, and in *text its equivalent to record.  May
 * create other extensions, and record that.
 */
Node *
ot_ddl_name_version(Node *stmt, char **text)
{
	if (IsA(stmt, CreateExtensionStmt))
		return ddl_extension_name_version_of_create((CreateExtensionStmt *) stmt, text);
	if (IsA(stmt, AlterExtensionStmt))
		return ddl_extension_name_version_of_update((AlterExtensionStmt *) stmt, text);
	return stmt;
}
