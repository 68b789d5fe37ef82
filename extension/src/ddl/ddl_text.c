/*-------------------------------------------------------------------------
 *
 * ddl_text.c
 *	  The text with which a statement goes into the log.
 *
 * Runs in backends; allocates in the current context.  The text is the
 * statement's own part of the query string, with some exceptions: a clear-text
 * password is replaced by its verifier, SESSION_USER by the role's name, CREATE
 * TABLE AS becomes the equivalent CREATE TABLE, DROP ROLE IF EXISTS loses roles that
 * are not here, extensions get their version (ddl_extension.c) and partitions the
 * values of their bounds (ddl_bounds.c).
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include <ctype.h>

#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/tablespace.h"
#include "commands/user.h"
#include "libpq/crypt.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "parser/analyze.h"
#include "parser/parser.h"
#include "parser/scanner.h"
#include "parser/scansup.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

/* Returns one of a statement's options, or NULL if it was not given. */
DefElem *
ot_ddl_find_option(List *options, const char *name)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, name) == 0)
			return option;
	}
	return NULL;
}

/*
 * Returns the statement's part of a query string that may contain several
 * statements.  *offset is where in the string it starts.
 */
char *
ot_ddl_statement_text(PlannedStmt *pstmt, const char *query, int *offset)
{
	const char *start = query;
	int			len;

	if (pstmt->stmt_location > 0)
		start += pstmt->stmt_location;
	len = pstmt->stmt_location >= 0 && pstmt->stmt_len > 0 ?
		pstmt->stmt_len : (int) strlen(start);
	while (len > 0 && scanner_isspace(start[0]))
	{
		start++;
		len--;
	}
	while (len > 0 && scanner_isspace(start[len - 1]))
		len--;
	*offset = start - query;
	return pnstrdup(start, len);
}

/*
 * Is it the name of a TOAST table, or of a trigger that PostgreSQL makes for a
 * constraint?
 */
static bool
ddl_text_is_name_with_oid(const char *name)
{
	static const char *const starts[] = {"pg_toast_", "RI_ConstraintTrigger_a_",
	"RI_ConstraintTrigger_c_", "PK_ConstraintTrigger_", "Unique_ConstraintTrigger_"};

	for (int i = 0; i < lengthof(starts); i++)
	{
		int			len = strlen(starts[i]);

		if (pg_strncasecmp(name, starts[i], len) == 0 && isdigit((unsigned char) name[len]))
			return true;
	}
	return false;
}

/* The name that U&"..." stands for, with its UESCAPE if it has one. */
static const char *
ddl_text_unicode_name(const char *text)
{
	RawStmt    *raw = linitial_node(RawStmt, raw_parser(psprintf("SELECT %s", text), RAW_PARSE_DEFAULT));
	ResTarget  *target = linitial_node(ResTarget, castNode(SelectStmt, raw->stmt)->targetList);

	return strVal(linitial(castNode(ColumnRef, target->val)->fields));
}

/*
 * Returns the SQLSTATE with which the parser refuses this, or 0, and where it does, in
 * bytes.  Any other error than one about the text is raised.
 */
static int
ddl_text_parse(const char *text, int *place)
{
	MemoryContext context = CurrentMemoryContext;
	MemoryContext own = AllocSetContextCreate(context, "onetrip trial", ALLOCSET_DEFAULT_SIZES);
	volatile int code = 0;
	volatile int position = 0;

	CHECK_FOR_INTERRUPTS();
	MemoryContextSwitchTo(own);
	PG_TRY();
	{
		(void) raw_parser(text, RAW_PARSE_DEFAULT);
	}
	PG_CATCH();
	{
		code = geterrcode();
		position = geterrposition();
		/* an escape may stand for what is no character */
		if (ERRCODE_TO_CATEGORY(code) != ERRCODE_SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION &&
			ERRCODE_TO_CATEGORY(code) != ERRCODE_DATA_EXCEPTION && code != ERRCODE_FEATURE_NOT_SUPPORTED)
			PG_RE_THROW();
		FlushErrorState();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	MemoryContextDelete(own);
	*place = pg_mbcharcliplen(text, strlen(text), Max(position - 1, 0));
	return code;
}

/* The text with the other standard_conforming_strings; NULL: it is no statement then. */
static Node *
ddl_text_read_otherwise(const char *text)
{
	Node	   *stmt = NULL;
	int			guc_level = NewGUCNestLevel();
	int			place;

	(void) set_config_option("standard_conforming_strings", standard_conforming_strings ? "off" : "on",
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	if (ddl_text_parse(text, &place) == 0)
		stmt = linitial_node(RawStmt, raw_parser(text, RAW_PARSE_DEFAULT))->stmt;
	AtEOXact_GUC(true, guc_level);
	return stmt;
}

/*
 * Was the statement parsed with another standard_conforming_strings than is set
 * now, and does that make a difference?  The SET may be in the same query string,
 * or have come after the statement was prepared.  The present value is recorded.
 * A materialized view comes here with its query analyzed, so that is analyzed
 * once more.
 */
static bool
ddl_text_has_other_strings(const char *text, RawStmt *parsed, Node *stmt)
{
	if (strchr(text, '\\') == NULL)
		return false;
	if (IsA(stmt, CreateTableAsStmt) || IsA(stmt, ExplainStmt))
		return !equal(parse_analyze_fixedparams(parsed, text, NULL, 0, NULL)->utilityStmt, stmt);
	return !equal(parsed->stmt, stmt) && equal(ddl_text_read_otherwise(text), stmt);
}

/*
 * Refuses texts that must not be recorded.  A statement may reach the hook
 * with a query string that is not its own, for example one built by another
 * extension.  Some words mean something only in this session or on this server
 * and are refused as well: names in the session's temporary schema, and names
 * that contain an OID.
 */
void
ot_ddl_check_text(const char *text, Node *stmt)
{
	List	   *parsed;
	core_yyscan_t scanner;
	core_yy_extra_type extra;
	core_YYSTYPE value;
	YYLTYPE		location;
	StringInfoData unicode;		/* U&"..." so far */
	bool		after_uescape = false;
	bool		after_pg_temp = false;
	const char *what = NULL;
	const char *hint = NULL;
	int			token;
	int			guc_level = NewGUCNestLevel();

	/* warnings of the parser were shown when the statement came in */
	(void) set_config_option("client_min_messages", "error", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	parsed = raw_parser(text, RAW_PARSE_DEFAULT);
	if (list_length(parsed) != 1 ||
		nodeTag(linitial_node(RawStmt, parsed)->stmt) != nodeTag(stmt))
		ot_ddl_refuse("a statement whose text is not known",
					  "Run the statement on its own, as SQL text.");
	if (ddl_text_has_other_strings(text, linitial_node(RawStmt, parsed), stmt))
		ot_ddl_refuse("a statement that was read before \"standard_conforming_strings\" was set",
					  "Run SET in a query of its own, before the statement is sent.");

	scanner = scanner_init(text, &extra, &ScanKeywords, ScanKeywordTokens);
	extra.escape_string_warning = false;
	initStringInfo(&unicode);
	do
	{
		const char *word;
		const char *name;

		/* while it is the last one read, each token is zero-terminated */
		token = core_yylex(&value, &location, scanner);
		word = token != 0 ? extra.scanbuf + location : "";
		/* it is known once the token behind it is not UESCAPE */
		if (unicode.len > 0 && (after_uescape || pg_strcasecmp(word, "uescape") == 0))
		{
			appendStringInfo(&unicode, " %s", word);
			after_uescape = !after_uescape;
			continue;
		}
		name = word[0] == '"' ? value.str : word;
		if (unicode.len > 0)
		{
			const char *before = ddl_text_unicode_name(unicode.data);

			after_pg_temp = ot_ddl_is_temporary_schema(before);
			if (ddl_text_is_name_with_oid(before))
				name = before;
			resetStringInfo(&unicode);
		}
		if (token == '.' && after_pg_temp)
		{
			what = "a definition that uses a temporary object";
			hint = "Use a permanent object: other regions cannot see this session's temporary ones.";
		}
		/* PostgreSQL itself refuses statistics of a TOAST table */
		else if (!IsA(stmt, CreateStatsStmt) && ddl_text_is_name_with_oid(name))
		{
			what = psprintf("a statement about \"%s\", a name that contains an OID of this server", name);
			hint = "Name the table or the constraint that it belongs to; privileges, options and storage of a TOAST table follow its table.";
		}
		if (pg_strncasecmp(word, "u&\"", 3) == 0)
			appendStringInfoString(&unicode, word);
		after_pg_temp = ot_ddl_is_temporary_schema(word[0] == '"' ? value.str :
												   downcase_identifier(word, strlen(word), false, false));
	} while (what == NULL && token != 0);
	scanner_finish(scanner);
	AtEOXact_GUC(true, guc_level);
	if (what != NULL)
		ot_ddl_refuse(what, hint);
}

static const char session_role[] = "session_user";
/* of the same length, so that places stay where they are */
static const char no_session_role[] = "\"none\"      ";

StaticAssertDecl(sizeof(session_role) == sizeof(no_session_role), "places move");

/*
 * Writes the name of the session's role in place of SESSION_USER as a role, which
 * in other regions would be the apply worker's.  In an expression it is part of the
 * definition.  PostgreSQL itself tells which it is: "none" may be the name of
 * anything else, but of no role.  It parses the text once more for each role.
 */
void
ot_ddl_name_session_user(char **text)
{
	core_yyscan_t scanner;
	core_yy_extra_type extra;
	core_YYSTYPE value;
	YYLTYPE		location;
	const size_t length = strlen(session_role);
	char	   *trial = pstrdup(*text);
	List	   *places = NIL;
	int			next = 0;
	int			code;
	int			place;
	StringInfoData named;
	int			copied = 0;
	int			guc_level = NewGUCNestLevel();

	(void) set_config_option("client_min_messages", "error", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	scanner = scanner_init(*text, &extra, &ScanKeywords, ScanKeywordTokens);
	extra.escape_string_warning = false;
	while (core_yylex(&value, &location, scanner) != 0)
	{
		if (pg_strcasecmp(extra.scanbuf + location, session_role) != 0)
			continue;
		places = lappend_int(places, location);
		memcpy(trial + location, no_session_role, length);
	}
	scanner_finish(scanner);
	initStringInfo(&named);
	while (next < list_length(places) && (code = ddl_text_parse(trial, &place)) != 0)
	{
		int			at = list_nth_int(places, next++);

		/* It is the last one before what the parser stumbles at; earlier ones are none. */
		while (next < list_length(places) && list_nth_int(places, next) <= place)
			at = list_nth_int(places, next++);
		memcpy(trial + at, session_role, length);
		if (code == ERRCODE_RESERVED_NAME)
		{
			appendBinaryStringInfo(&named, *text + copied, at - copied);
			appendStringInfoString(&named, quote_identifier(GetUserNameFromId(GetSessionUserId(), false)));
			copied = at + length;
		}
	}
	AtEOXact_GUC(true, guc_level);
	if (copied > 0)
	{
		appendStringInfoString(&named, *text + copied);
		*text = named.data;
	}
}

/* The password of CREATE or ALTER ROLE, or NULL. */
static DefElem *
ddl_text_password_of(Node *stmt)
{
	return ot_ddl_find_option(IsA(stmt, CreateRoleStmt) ? ((CreateRoleStmt *) stmt)->options :
							  castNode(AlterRoleStmt, stmt)->options, "password");
}

/* The password that CREATE or ALTER ROLE gives in clear text, or NULL. */
const char *
ot_ddl_clear_password(Node *stmt)
{
	DefElem    *password = IsA(stmt, CreateRoleStmt) || IsA(stmt, AlterRoleStmt) ? ddl_text_password_of(stmt) : NULL;
	const char *clear;

	if (password == NULL || password->arg == NULL)
		return NULL;
	clear = strVal(password->arg);
	return clear[0] != '\0' && get_password_type(clear) == PASSWORD_TYPE_PLAINTEXT ? clear : NULL;
}

/*
 * Replaces PASSWORD 'clear' in CREATE/ALTER ROLE by the verifier that this
 * server would store, in *text and in the statement that is returned (a copy
 * if anything changed).  So no log contains the password, and every server
 * stores the same verifier.  offset is where *text starts in the query string
 * that locations in stmt refer to.
 */
Node *
ot_ddl_hide_password(Node *stmt, char **text, int offset)
{
	const char *clear = ot_ddl_clear_password(stmt);
	DefElem    *password;
	const char *role;
	char	   *verifier;
	core_yyscan_t scanner;
	core_yy_extra_type extra;
	core_YYSTYPE value;
	YYLTYPE		location;
	int			begin = -1;
	int			end = -1;
	bool		uescape = false;

	if (clear == NULL)
		return stmt;
	password = ddl_text_password_of(stmt);
	role = IsA(stmt, CreateRoleStmt) ? ((CreateRoleStmt *) stmt)->role :
		get_rolespec_name(((AlterRoleStmt *) stmt)->role);

	/* check_password_hook is the last to see the password itself. */
	if (check_password_hook)
		check_password_hook(role, clear, PASSWORD_TYPE_PLAINTEXT, (Datum) 0, true);
	verifier = encrypt_password(Password_encryption, role, clear);

	/*
	 * The first string after the keyword is the password; UESCAPE with another
	 * string may follow.
	 */
	scanner = scanner_init(*text, &extra, &ScanKeywords, ScanKeywordTokens);
	extra.escape_string_warning = false;
	while (core_yylex(&value, &location, scanner) != 0)
	{
		const char *token = extra.scanbuf + location;

		if (begin >= 0 && !uescape)
		{
			if (pg_strcasecmp(token, "uescape") != 0)
				break;
			uescape = true;
		}
		else if (begin >= 0)
		{
			end = location + (int) strlen(token);
			break;
		}
		else if (location >= password->location - offset &&
				 (token[0] == '\'' || token[0] == '$' ||
				  (token[0] != '"' && strchr(token, '\'') != NULL)))
		{
			begin = location;
			end = location + (int) strlen(token);
		}
	}
	scanner_finish(scanner);
	if (begin < 0 || password->location < 0)
		ot_ddl_refuse("a password at an unknown place in the statement",
					  "Run CREATE ROLE or ALTER ROLE on its own.");

	*text = psprintf("%.*s %s %s", begin, *text, quote_literal_cstr(verifier),
					 *text + end);

	stmt = copyObject(stmt);
	ddl_text_password_of(stmt)->arg = (Node *) makeString(verifier);
	return stmt;
}

/*
 * DROP ROLE IF EXISTS: a role that is not here may be on another server, made in another
 * database, and stay there.  Records nothing if all of them are missing.
 */
void
ot_ddl_leave_out_missing_roles(Node *stmt, char **text)
{
	DropRoleStmt *drop = (DropRoleStmt *) stmt;
	StringInfoData names;
	bool		missing = false;
	ListCell   *lc;

	if (!IsA(stmt, DropRoleStmt) || !drop->missing_ok)
		return;
	initStringInfo(&names);
	foreach(lc, drop->roles)
	{
		RoleSpec   *role = lfirst_node(RoleSpec, lc);

		/* PostgreSQL refuses CURRENT_USER and the like */
		if (role->roletype != ROLESPEC_CSTRING)
			return;
		if (OidIsValid(get_role_oid(role->rolename, true)))
			appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "", quote_identifier(role->rolename));
		else
			missing = true;
	}
	if (missing)
		*text = names.len > 0 ? psprintf("DROP ROLE IF EXISTS %s", names.data) : "";
}

/* ---- CREATE MATERIALIZED VIEW ---- */

/*
 * Other utility statements are analyzed when they run.  This one comes with its
 * query analyzed, perhaps long ago and under other settings (by PL/pgSQL, or as a
 * prepared statement of the protocol): a constant has the value that its text had
 * then.  Other regions analyze the text as it is recorded.  Returns the statement
 * to run: that text, analyzed now.
 */
Node *
ot_ddl_analyze_again(Node *stmt, const char *text)
{
	int			guc_level = NewGUCNestLevel();

	if (IsA(stmt, CreateTableAsStmt) || IsA(stmt, ExplainStmt))
	{
		/* warnings were shown when the statement came in */
		(void) set_config_option("client_min_messages", "error", PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
		stmt = parse_analyze_fixedparams(linitial_node(RawStmt, raw_parser(text, RAW_PARSE_DEFAULT)),
										 text, NULL, 0, NULL)->utilityStmt;
	}
	AtEOXact_GUC(true, guc_level);
	return stmt;
}

/* ---- CREATE FOREIGN TABLE of IMPORT FOREIGN SCHEMA ---- */

/*
 * The foreign-data wrapper's text names no schema; PostgreSQL puts it into the
 * parse tree.
 */
void
ot_ddl_name_schema(CreateForeignTableStmt *stmt, char **text)
{
	RawStmt    *raw = linitial_node(RawStmt, raw_parser(*text, RAW_PARSE_DEFAULT));
	RangeVar   *written = castNode(CreateForeignTableStmt, raw->stmt)->base.relation;

	if (written->schemaname != NULL || stmt->base.relation->schemaname == NULL)
		ot_ddl_refuse("IMPORT FOREIGN SCHEMA where the foreign-data wrapper chooses the schema",
					  "Use CREATE FOREIGN TABLE for each table.");
	*text = psprintf("%.*s%s.%s", written->location, *text,
					 quote_identifier(stmt->base.relation->schemaname), *text + written->location);
}

/* ---- CREATE TABLE AS ---- */

/*
 * The type modifier as it is written after the name of a type without special
 * syntax: (10,2).
 */
static char *
ddl_text_modifier_text(Form_pg_type type, int32 typmod)
{
	char	   *text;
	char	   *end;

	if (typmod < 0)
		return "";
	if (type->oid == INTERVALARRAYOID)
		return INTERVAL_PRECISION(typmod) == INTERVAL_FULL_PRECISION ?
			psprintf("(%d)", INTERVAL_RANGE(typmod)) :
			psprintf("(%d, %d)", INTERVAL_RANGE(typmod), INTERVAL_PRECISION(typmod));
	if (!OidIsValid(type->typmodout))
		return psprintf("(%d)", typmod);
	text = DatumGetCString(OidFunctionCall1(type->typmodout, Int32GetDatum(typmod)));
	/* cut what follows, as in "(3) without time zone" */
	end = strchr(text, ')');
	if (end != NULL)
		end[1] = '\0';
	return text;
}

/*
 * Names an array type by its own name, such as _int4: with int4[],
 * pg_attribute.attndims would be 1, but it is 0 in a table made from a query.
 */
static char *
ddl_text_column_type_text(Form_pg_attribute column)
{
	HeapTuple	tuple;
	Form_pg_type form;
	char	   *text;

	if (!OidIsValid(get_element_type(column->atttypid)))
		return format_type_extended(column->atttypid, column->atttypmod,
									FORMAT_TYPE_TYPEMOD_GIVEN | FORMAT_TYPE_FORCE_QUALIFY);
	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(column->atttypid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for type %u", column->atttypid);
	form = (Form_pg_type) GETSTRUCT(tuple);
	text = psprintf("%s%s",
					quote_qualified_identifier(get_namespace_name(form->typnamespace),
											   NameStr(form->typname)),
					ddl_text_modifier_text(form, column->atttypmod));
	ReleaseSysCache(tuple);
	return text;
}

/* Returns how many there are. */
static int
ddl_text_append_columns(StringInfo text, TupleDesc desc, bool not_null)
{
	const char *separator = "";
	int			count = 0;

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(desc, i);

		if (column->attisdropped)
			continue;
		appendStringInfo(text, "%s%s %s", separator,
						 quote_identifier(NameStr(column->attname)), ddl_text_column_type_text(column));
		separator = ", ";
		count++;
		if (OidIsValid(column->attcollation) &&
			column->attcollation != get_typcollation(column->atttypid))
		{
			HeapTuple	tuple = SearchSysCache1(COLLOID, ObjectIdGetDatum(column->attcollation));
			Form_pg_collation form;

			if (!HeapTupleIsValid(tuple))
				elog(ERROR, "cache lookup failed for collation %u", column->attcollation);
			form = (Form_pg_collation) GETSTRUCT(tuple);
			appendStringInfo(text, " COLLATE %s",
							 quote_qualified_identifier(get_namespace_name(form->collnamespace),
														NameStr(form->collname)));
			ReleaseSysCache(tuple);
		}
		if (not_null && column->attnotnull)
			appendStringInfoString(text, " NOT NULL");
	}
	return count;
}

static void
ddl_text_append_options(StringInfo text, List *options)
{
	const char *separator = " WITH (";
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		appendStringInfoString(text, separator);
		if (option->defnamespace)
			appendStringInfo(text, "%s.", quote_identifier(option->defnamespace));
		appendStringInfoString(text, quote_identifier(option->defname));
		if (option->arg)
			appendStringInfo(text, " = %s", quote_literal_cstr(defGetString(option)));
		separator = ", ";
	}
	if (options != NIL)
		appendStringInfoChar(text, ')');
}

/* The CREATE TABLE for the table that CREATE TABLE AS or SELECT INTO made. */
char *
ot_ddl_create_table_text(Relation rel, IntoClause *into)
{
	StringInfoData text;
	/* the database's own may be named, in spite of default_tablespace */
	const char *tablespace = OidIsValid(rel->rd_rel->reltablespace) ?
		get_tablespace_name(rel->rd_rel->reltablespace) : into->tableSpaceName;

	initStringInfo(&text);
	appendStringInfo(&text, "CREATE %sTABLE %s (",
					 rel->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED ? "UNLOGGED " : "",
					 quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
												RelationGetRelationName(rel)));
	ddl_text_append_columns(&text, RelationGetDescr(rel), false);
	appendStringInfo(&text, ") USING %s",
					 quote_identifier(get_am_name(rel->rd_rel->relam)));
	ddl_text_append_options(&text, into->options);
	if (tablespace != NULL)
		appendStringInfo(&text, " TABLESPACE %s", quote_identifier(tablespace));
	return text.data;
}

/* ---- LIKE ---- */

/*
 * Finds LIKE and the name after it, which is at `name` in the text.  Returns
 * false if it is not there.
 */
static bool
ddl_text_find_like(const char *text, int name, int *begin, int *end)
{
	core_yyscan_t scanner;
	core_yy_extra_type extra;
	core_YYSTYPE value;
	YYLTYPE		location;
	bool		after_dot = true;
	int			token;

	*begin = *end = -1;
	scanner = scanner_init(text, &extra, &ScanKeywords, ScanKeywordTokens);
	extra.escape_string_warning = false;
	while ((token = core_yylex(&value, &location, scanner)) != 0)
	{
		const char *word = extra.scanbuf + location;

		if (location < name)
			*begin = pg_strcasecmp(word, "like") == 0 ? location : -1;
		else if (*begin < 0 || (token != '.' && !after_dot))
			break;
		else
		{
			after_dot = token == '.';
			*end = location + (int) strlen(word);
		}
	}
	scanner_finish(scanner);
	return *begin >= 0 && *end > 0;
}

/*
 * Looks up types and collations of columns that were written in the place of LIKE,
 * as the superuser: the role need not be allowed to.  columns is how many, for each
 * element of the statement; -1: it stands as it was.
 */
static void
ddl_text_resolve_written(List *elements, const int *columns, int count)
{
	int			at = 0;
	Oid			user;
	int			sec_context;

	GetUserIdAndSecContext(&user, &sec_context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, sec_context | SECURITY_LOCAL_USERID_CHANGE);
	for (int i = 0; i < count; i++)
	{
		if (columns[i] < 0)
			at++;
		for (int written = 0; written < columns[i]; written++)
			ot_ddl_resolve_column(list_nth(elements, at++));
	}
	SetUserIdAndSecContext(user, sec_context);
}

/*
 * Writes out the columns of LIKE with the name of a temporary relation, which
 * other regions do not have.  What INCLUDING adds cannot be written so.  Returns
 * the statement to run: what is recorded.
 */
Node *
ot_ddl_write_like(Node *stmt, char **text, int offset)
{
	List	   *elements = IsA(stmt, CreateStmt) || IsA(stmt, CreateForeignTableStmt) ?
		((CreateStmt *) stmt)->tableElts : NIL;
	int		   *written = palloc(sizeof(int) * (list_length(elements) + 1));
	bool		changed = false;

	/* the last one first, so that locations stay right */
	for (int i = list_length(elements) - 1; i >= 0; i--)
	{
		TableLikeClause *like = list_nth(elements, i);
		StringInfoData columns;
		Relation	rel;
		int			begin;
		int			end;

		written[i] = -1;
		if (!IsA(like, TableLikeClause) || like->options != 0)
			continue;
		rel = relation_openrv_extended(like->relation, AccessShareLock, true);
		if (rel == NULL)
			continue;
		if (rel->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
		{
			if (!ddl_text_find_like(*text, like->relation->location - offset, &begin, &end))
				ot_ddl_refuse("LIKE at an unknown place in the statement", "Run the statement on its own.");
			initStringInfo(&columns);
			written[i] = ddl_text_append_columns(&columns, RelationGetDescr(rel), true);
			if (columns.len == 0 && list_length(elements) > 1)
				ot_ddl_refuse("LIKE of a temporary relation without columns", "Leave it out.");
			changed = true;
			*text = psprintf("%.*s%s%s", begin, *text, columns.data, *text + end);
		}
		relation_close(rel, NoLock);
	}
	if (!changed)
		return stmt;
	stmt = linitial_node(RawStmt, raw_parser(*text, RAW_PARSE_DEFAULT))->stmt;
	ddl_text_resolve_written(((CreateStmt *) stmt)->tableElts, written, list_length(elements));
	return stmt;
}
