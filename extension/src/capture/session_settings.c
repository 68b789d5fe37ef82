/*-------------------------------------------------------------------------
 *
 * session_settings.c
 *	  Settings of a session that affect what is computed from values.
 *
 * An index with an expression or a predicate computes the same in every region
 * only under the same settings: for example, bytea_output decides what b::text
 * is.  So the apply worker has a fixed value for each of these settings, called
 * plain here, whatever an operator sets for clients; and a write set contains
 * those that had another value when a row was written.  Settings with a dot in
 * their name, which users' functions may read, are included if the index runs
 * such functions.
 *
 * A DDL statement is recorded with all of them, and with the value to which
 * RESET search_path would go, which scripts of extensions (PostGIS) look up.
 *
 * docs/census says for every setting of the server whether it is one of these,
 * and if not, why.
 *
 * Runs in backends, and in the apply worker.  Static state: which settings the
 * current write set contains so far.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/toast_compression.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "commands/defrem.h"
#include "commands/tablespace.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "shmem/shmem.h"

typedef struct Setting
{
	const char *name;
	const char *plain;			/* the worker's value; NULL: always sent */
	struct config_generic *record;
} Setting;

/* search_path is first; session_settings_put_search_path() makes its value. */
static Setting settings[] = {
	{"search_path", NULL},
	{"DateStyle", "ISO, MDY"},
	{"IntervalStyle", "postgres"},
	{"TimeZone", "GMT"},
	{"timezone_abbreviations", "Default"},
	{"lc_monetary", "C"},
	{"lc_numeric", "C"},
	{"lc_time", "C"},
	{"bytea_output", "hex"},
	{"extra_float_digits", "1"},
	{"xmlbinary", "base64"},
	{"xmloption", "content"},
	{"default_text_search_config", "pg_catalog.simple"},
	{"default_toast_compression", "pglz"},
	{"array_nulls", "on"},
	{"quote_all_identifiers", "off"},
	{"transform_null_equals", "off"},
	{"standard_conforming_strings", "on"},
	{"backslash_quote", "safe_encoding"},
	{"row_security", "on"},
	{"escape_string_warning", "on"},
};

/*
 * These matter to statements only, which are recorded with all settings, except
 * for those that this server does not have.
 */
static const char *const statement_settings[] = {
	"allow_system_table_mods",
	"createrole_self_grant",
	"default_table_access_method",
	"default_tablespace",
	"icu_validation_level",
	"lo_compat_privileges",
	"onetrip.new_tables",
};

/*
 * Settings that are at their most permissive in the worker: a function that ran
 * in the transaction's own region must not fail where the row is applied.  The
 * worker ignores those that its server does not know.
 */
static const char *const widest[][2] = {
	{"composite_type_mismatch", "disabled"},
	{"restrict_nonsystem_relation_kind", ""},
};

static OtNotedSettings noted;

/* Limits for one set of settings, with a row or a statement. */
#define SETTINGS_MAX		128
#define SETTINGS_BYTES_MAX	32768
/* New names are never forgotten: after so many of them the worker restarts. */
#define NEW_NAMES_MAX		2000

/*
 * Is it a setting of an extension or a user's own, which functions may read?
 * Those of onetrip are not among them: most describe the server.
 */
static bool
session_settings_is_custom(struct config_generic *record)
{
	return record->group == CUSTOM_OPTIONS && record->source > PGC_S_DEFAULT &&
		((record->flags & GUC_CUSTOM_PLACEHOLDER) || record->context == PGC_USERSET) &&
		strncmp(record->name, "onetrip.", 8) != 0;
}

/* Is the setting sent with statements? */
bool
ot_session_settings_travel(const char *name)
{
	int			count;
	struct config_generic **all = OT_GUC_VARIABLES(&count);

	for (int i = 0; i < lengthof(settings); i++)
	{
		if (pg_strcasecmp(settings[i].name, name) == 0)
			return true;
	}
	for (int i = 0; i < lengthof(statement_settings); i++)
	{
		if (pg_strcasecmp(statement_settings[i], name) == 0)
			return true;
	}
	/* a custom one only if it is set here; else it is each server's own */
	for (int i = 0; i < count; i++)
	{
		if (pg_strcasecmp(all[i]->name, name) == 0)
			return session_settings_is_custom(all[i]);
	}
	return false;
}

/* ---- in the region of the transaction ---- */

static void
session_settings_find_records(void)
{
	int			count;
	struct config_generic **all;

	if (settings[0].record != NULL)
		return;
	all = OT_GUC_VARIABLES(&count);
	for (int i = 0; i < count; i++)
	{
		for (int j = 0; j < lengthof(settings); j++)
		{
			if (strcmp(all[i]->name, settings[j].name) == 0)
				settings[j].record = all[i];
		}
	}
	for (int j = 0; j < lengthof(settings); j++)
	{
		if (settings[j].record == NULL)
			elog(ERROR, "setting \"%s\" does not exist in this server", settings[j].name);
	}
}

static uint64
session_settings_hash_string(const char *value, uint64 seed)
{
	if (value == NULL)
		return hash_combine64(seed, 1);
	return hash_bytes_extended((const unsigned char *) value, strlen(value), seed);
}

static uint64
session_settings_hash_setting(struct config_generic *record, uint64 seed)
{
	switch (record->vartype)
	{
		case PGC_BOOL:
			return hash_combine64(seed, *((struct config_bool *) record)->variable);
		case PGC_INT:
			return hash_combine64(seed, *((struct config_int *) record)->variable);
		case PGC_ENUM:
			return hash_combine64(seed, *((struct config_enum *) record)->variable);
		case PGC_STRING:
			return session_settings_hash_string(*((struct config_string *) record)->variable, seed);
		case PGC_REAL:
			break;
	}
	elog(ERROR, "setting \"%s\" is of an unexpected type", record->name);
	return seed;
}

/* A hash of all that ot_session_settings_note() may write; never 0. */
static uint64
session_settings_fingerprint(bool custom_too)
{
	uint64		hash = hash_combine64(GetUserId(), custom_too);

	for (int i = 0; i < lengthof(settings); i++)
		hash = session_settings_hash_setting(settings[i].record, hash);
	if (custom_too)
	{
		int			count;
		struct config_generic **all = OT_GUC_VARIABLES(&count);

		for (int i = 0; i < count; i++)
		{
			if (session_settings_is_custom(all[i]))
				hash += session_settings_hash_string(GetConfigOption(all[i]->name, true, false),
													 session_settings_hash_string(all[i]->name, 1));
		}
	}
	return hash | 1;
}

/* Appends the schemas in which names are looked up, without temporary ones. */
static void
session_settings_put_search_path(StringInfo ops)
{
	StringInfoData path;
	List	   *schemas = fetch_search_path(false);
	ListCell   *lc;

	initStringInfo(&path);
	foreach(lc, schemas)
	{
		char	   *schema = get_namespace_name(lfirst_oid(lc));

		if (schema == NULL || isTempNamespace(lfirst_oid(lc)))
			continue;
		/* no other schema may get this name before the entry is applied */
		if (lfirst_oid(lc) != PG_CATALOG_NAMESPACE)
			ot_object_share_key(OT_OBJECT_NAMESPACE, lfirst_oid(lc));
		appendStringInfo(&path, "%s%s", path.len > 0 ? ", " : "", quote_identifier(schema));
	}
	list_free(schemas);
	ot_put_str(ops, "search_path");
	ot_put_str(ops, path.data);
	pfree(path.data);
}

static void
session_settings_put_one(StringInfo ops, const char *name, int *count)
{
	const char *value = GetConfigOption(name, true, false);

	ot_put_str(ops, name);
	ot_put_str(ops, value ? value : "");
	(*count)++;
}

static void
session_settings_put_custom(StringInfo ops, int *put_so_far)
{
	int			count;
	struct config_generic **all = OT_GUC_VARIABLES(&count);

	for (int i = 0; i < count; i++)
	{
		if (session_settings_is_custom(all[i]))
			session_settings_put_one(ops, all[i]->name, put_so_far);
	}
}

/* Fills in the number of settings, which comes before them, and checks it. */
static void
session_settings_put_count(StringInfo ops, int at, int count)
{
	if (count > SETTINGS_MAX || ops->len - at > SETTINGS_BYTES_MAX)
		ereport(ERROR,
				(errcode(OT_ERR_TOO_LARGE),
				 errmsg("this session has more settings than can be replicated"),
				 errdetail("It has %d settings with %d bytes; at most %d with %d bytes can be replicated.", count,
						   ops->len - at, SETTINGS_MAX, SETTINGS_BYTES_MAX),
				 errhint("RESET custom settings that are not needed, or begin a new session.")));
	ops->data[at] = (char) count;
	ops->data[at + 1] = (char) (count >> 8);
}

/*
 * Of a statement.  A session may outlive what its setting names: that is then like
 * the one which everybody has, and other regions would not take the name.
 */
static void
session_settings_put_of_statement(StringInfo ops, const char *name, int *count)
{
	const char *value = GetConfigOption(name, true, false);

	if (value == NULL)
		return;
	if (strcmp(name, "default_tablespace") == 0 && value[0] != '\0' && !OidIsValid(get_tablespace_oid(value, true)))
		value = "";
	else if (strcmp(name, "default_table_access_method") == 0 && !OidIsValid(get_table_am_oid(value, true)))
		value = "onetrip";
	ot_put_str(ops, name);
	ot_put_str(ops, value);
	(*count)++;
}

/* The name under which the value that RESET search_path would set is sent. */
#define RESET_SEARCH_PATH "=search_path"

static const char *
session_settings_reset_search_path(void)
{
	const char *value;

	session_settings_find_records();
	value = ((struct config_string *) settings[0].record)->reset_val;
	return value ? value : "";
}

/*
 * The name under which the session user of an extension's script is sent, which the
 * script calls SESSION_USER, if that is not the role that runs it.  Releases that do
 * not know this name warn, and take that role.
 */
#define SESSION_USER_OF_SCRIPT "=session_user"

static void
session_settings_put_session_user(StringInfo ops, int *count)
{
	char	   *name = GetSessionUserId() != GetUserId() ? GetUserNameFromId(GetSessionUserId(), true) : NULL;

	if (name == NULL)
		return;
	ot_put_str(ops, SESSION_USER_OF_SCRIPT);
	ot_put_str(ops, name);
	(*count)++;
}

/* For a statement: all settings, with the values that they have now. */
void
ot_session_settings_put_all(StringInfo ops, bool of_script)
{
	int			at = ops->len;
	int			count = 1;

	ot_put_u16(ops, 0);
	ot_put_str(ops, RESET_SEARCH_PATH);
	ot_put_str(ops, session_settings_reset_search_path());
	for (int i = 0; i < lengthof(settings); i++)
		session_settings_put_one(ops, settings[i].name, &count);
	for (int i = 0; i < lengthof(statement_settings); i++)
		session_settings_put_of_statement(ops, statement_settings[i], &count);
	session_settings_put_custom(ops, &count);
	if (of_script)
		session_settings_put_session_user(ops, &count);
	session_settings_put_count(ops, at, count);
}

static void
session_settings_put_settings(bool custom_too)
{
	StringInfo	ops;
	int			at;
	int			count = 1;

	/* The role is sent by name: DDL that renames or drops it must conflict. */
	ot_object_share_key(OT_OBJECT_ROLE, GetUserId());
	ops = ot_write_set_append();
	ot_write_set_looks_names_up();
	ot_put_u8(ops, 'G');
	ot_put_str(ops, GetUserNameFromId(GetUserId(), false));
	at = ops->len;
	ot_put_u16(ops, 0);
	session_settings_put_search_path(ops);
	for (int i = 1; i < lengthof(settings); i++)
	{
		const char *value = GetConfigOption(settings[i].name, true, false);

		if (value == NULL || strcmp(value, settings[i].plain) != 0)
			session_settings_put_one(ops, settings[i].name, &count);
	}
	if (custom_too)
		session_settings_put_custom(ops, &count);
	session_settings_put_count(ops, at, count);
	ot_write_set_appended();
}

/*
 * Takes the key on which a row and DDL that changes users' functions conflict,
 * before such functions are run.
 */
static void
session_settings_take_code_key(void)
{
	OtLogIndex	base = ot_position_base_of_names();

	AcceptInvalidationMessages();
	ot_write_set_key(ot_hash_code(), OT_KEY_SHARE, base, InvalidOid);
}

/*
 * Before a row: records under which settings, and as which role, functions of
 * the table's indexes run, unless the write set's last settings are the same.
 * Without functions only the compression of what goes into an index matters.
 */
void
ot_session_settings_note(bool functions, bool custom_too)
{
	uint64		all;
	int			compression = default_toast_compression == TOAST_PGLZ_COMPRESSION ?
		0 : default_toast_compression;

	if (!functions && likely(noted.compression == compression))
		return;
	session_settings_find_records();
	all = session_settings_fingerprint(custom_too);
	if (noted.all == all)
		return;
	if (custom_too)
		session_settings_take_code_key();
	session_settings_put_settings(custom_too);
	noted.all = all;
	noted.compression = compression;
}

/* What the write set contains now; for a savepoint. */
OtNotedSettings
ot_session_settings_noted(void)
{
	return noted;
}

/* What was recorded since is no longer in the write set, or no longer valid. */
void
ot_session_settings_forget(OtNotedSettings before)
{
	noted = before;
}

/* All of them have the worker's values, until the caller's nest level of settings ends. */
void
ot_session_settings_be_plain(void)
{
	for (int i = 0; i < lengthof(settings); i++)
		(void) set_config_option(settings[i].name, settings[i].plain ? settings[i].plain : "pg_catalog",
								 PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/* ---- in the apply worker ---- */

static int	level = 0;			/* nest level of the settings read last; 0: none */
static Oid	role = InvalidOid;	/* as which functions run under them */

/* Once, when the worker starts: what is set for clients does not count here. */
void
ot_session_settings_set_up(void)
{
	char		kb[16];
	long		stack_kb = (get_stack_depth_rlimit() - STACK_DEPTH_SLOP) / 1024;

	for (int i = 1; i < lengthof(settings); i++)
		SetConfigOption(settings[i].name, settings[i].plain, PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("search_path", "pg_catalog", PGC_SUSET, PGC_S_OVERRIDE);
	for (int i = 0; i < lengthof(widest); i++)
	{
		if (GetConfigOption(widest[i][0], true, false) != NULL)
			SetConfigOption(widest[i][0], widest[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	}
	/* Recursion may be as deep as the system permits. */
	if (stack_kb > max_stack_depth)
	{
		snprintf(kb, sizeof(kb), "%ld", Min(stack_kb, (long) (MAX_KILOBYTES)));
		SetConfigOption("max_stack_depth", kb, PGC_SUSET, PGC_S_OVERRIDE);
	}
}

/* An entry begins, with the worker's own settings. */
void
ot_session_settings_begin(void)
{
	level = 0;
}

/* The value to go back to after a statement; NULL: it has not been changed. */
static char *saved_reset_search_path = NULL;

/*
 * PGC_S_OVERRIDE is a source that sets the default, which no rollback undoes.
 * The setting itself was set with PGC_S_SESSION, and does not change.
 */
static void
session_settings_set_reset_search_path(const char *value)
{
	(void) set_config_option("search_path", value, PGC_SUSET, PGC_S_OVERRIDE,
							 GUC_ACTION_SET, true, WARNING, false);
}

static void
session_settings_swap_reset_search_path(const char *value)
{
	if (saved_reset_search_path == NULL)
		saved_reset_search_path = MemoryContextStrdup(TopMemoryContext, session_settings_reset_search_path());
	(void) set_config_option("search_path", GetConfigOption("search_path", false, false),
							 PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, WARNING, false);
	session_settings_set_reset_search_path(value);
}

/* After a statement, even one that failed. */
void
ot_session_settings_end_statement(void)
{
	if (saved_reset_search_path == NULL)
		return;
	session_settings_set_reset_search_path(saved_reset_search_path);
	pfree(saved_reset_search_path);
	saved_reset_search_path = NULL;
}

/*
 * What it is if this server does not accept the value of a setting: a time zone
 * or a tablespace that is not here, for example.  A statement would then do
 * something else here, so it fails, in a rehearsal if possible.  A row goes in
 * all the same, since what an index computes should not depend on such settings.
 * The name of a text search configuration may be that of one which is gone.
 */
static int
session_settings_level_of_failure(const char *name, bool custom, bool of_statement)
{
	if (!of_statement || custom || strcmp(name, "default_text_search_config") == 0 ||
		GetConfigOption(name, true, false) == NULL)
		return WARNING;
	return ERROR;
}

/*
 * Reads settings and sets them, in the nest level that the caller has opened.
 * A setting that this server does not know is a WARNING.  Custom settings are set
 * with the rights of role `as`: one that the role may not set here is refused, as
 * in a session of that role.  If `as` is InvalidOid, custom settings are ignored.
 */
void
ot_session_settings_apply(OtReader *r, Oid as, bool of_statement)
{
	int			count = ot_get_u16(r);

	for (int i = 0; i < count; i++)
	{
		char	   *name = ot_get_str(r);
		char	   *value = ot_get_str(r);
		bool		custom = strchr(name, '.') != NULL;

		if (strcmp(name, RESET_SEARCH_PATH) == 0)
			session_settings_swap_reset_search_path(value);
		else if (strcmp(name, SESSION_USER_OF_SCRIPT) == 0)
			ot_user_log_in(get_role_oid(value, false));
		else if (!custom || OidIsValid(as))
			(void) set_config_option_ext(name, value, custom ? PGC_USERSET : PGC_SUSET,
										 PGC_S_SESSION, custom ? as : GetUserId(),
										 GUC_ACTION_SAVE, true,
										 session_settings_level_of_failure(name, custom, of_statement), false);
		pfree(name);
		pfree(value);
	}
}

static int
session_settings_count_settings(void)
{
	int			count;
	struct config_generic **all pg_attribute_unused() = OT_GUC_VARIABLES(&count);

	return count;
}

/* Have sessions used so many new names that looking settings up gets slow? */
bool
ot_session_settings_worn_out(void)
{
	static int	at_start = 0;

	if (at_start == 0)
		at_start = session_settings_count_settings();
	return session_settings_count_settings() - at_start > NEW_NAMES_MAX;
}

/* Reads the settings for the rows that follow, up to the next 'G'. */
void
ot_session_settings_read(OtReader *r)
{
	char	   *name;

	ot_session_settings_end();
	name = ot_get_str(r);
	role = get_role_oid(name, true);
	level = NewGUCNestLevel();
	ot_session_settings_apply(r, role, false);
	/*
	 * If the role does not exist here, functions run as the table's owner; no
	 * schema of a user may make them call something else.
	 */
	if (OidIsValid(role))
		ot_user_log_in(role);
	else
		(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_SUSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, WARNING, false);
	pfree(name);
}

/*
 * The role as which functions run: the one of the transaction's own region,
 * since its search_path decides what they find.  InvalidOid: there is no such
 * role here.
 */
Oid
ot_session_settings_role(void)
{
	return level == 0 ? InvalidOid : role;
}

/* Goes back to the worker's own settings, also from those set by functions. */
void
ot_session_settings_end(void)
{
	if (level == 0)
		return;
	ot_user_log_out(level);
	level = 0;
	role = InvalidOid;
}
