/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The settings onetrip.*, all registered here.
 *
 * docs/settings.md describes them for users; keep the two alike.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <limits.h>
#include <unistd.h>

#include "access/xlog.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/guc.h"

char	   *ot_database = NULL;
char	   *ot_region = NULL;
char	   *ot_agent_socket = NULL;
int			ot_node_id = 0;
int			ot_format_level = 0;
uint64		ot_key_seed = 0;
int			ot_trace_every = 0;
int			ot_sequence_slot = 0;
int			ot_sequence_stride = 1;
bool		ot_show_sequence_shares = false;
int			ot_commit_timeout_ms = 10000;
int			ot_ack = OT_ACK_QUORUM;
int			ot_max_prepared_transactions = 1000;
int			ot_max_trips = -1;
int			ot_statement_retries = 3;
bool		ot_commit_notices = false;
bool		ot_retry_procedures = false;
int			ot_max_staleness_ms = -1;
int			ot_read = OT_READ_LOCAL;
int			ot_new_tables = OT_NEW_TABLES_REPLICATED;
int			ot_concurrency = OT_CONCURRENCY_OPTIMISTIC;
int			ot_max_apply_delay_ms = 5000;
int			ot_rebuild_after_ms = 60000;
int			ot_subscription_move_after_s = 60;
int			ot_max_write_set_kb = 256 * 1024;
bool		ot_read_only = false;
bool		ot_rehearse_statements = true;
int			ot_rehearse_timeout_ms = 2000;
int			ot_rehearse_lock_timeout_ms = 100;

/*
 * A read replica says to drivers that it is a standby (target_session_attrs), as
 * they are told what this setting shows when they connect.
 */
static const char *
settings_show_in_hot_standby(void)
{
	return ot_read_only || RecoveryInProgress() ? "on" : "off";
}

static const struct config_enum_entry read_values[] = {
	{"local", OT_READ_LOCAL, false},
	{"fresh", OT_READ_FRESH, false},
	{NULL, 0, false}
};

static const struct config_enum_entry concurrency_values[] = {
	{"optimistic", OT_CONCURRENCY_OPTIMISTIC, false},
	{"locking", OT_CONCURRENCY_LOCKING, false},
	{NULL, 0, false}
};

static const struct config_enum_entry ack_values[] = {
	{"quorum", OT_ACK_QUORUM, false},
	{"applied_everywhere", OT_ACK_APPLIED_EVERYWHERE, false},
	{NULL, 0, false}
};

static const struct config_enum_entry new_tables_values[] = {
	{"replicated", OT_NEW_TABLES_REPLICATED, false},
	{"local", OT_NEW_TABLES_LOCAL, false},
	{NULL, 0, false}
};

/* In the data folder, where the server works. */
#define OT_NODE_SETTINGS_FILE "onetrip.conf"

static char *key_seed_shown = NULL;

/* Sixteen hexadecimal digits, which nobody is to see. */
static bool
settings_check_key_seed(char **value, void **extra, GucSource source)
{
	uint64	   *seed = guc_malloc(LOG, sizeof(uint64));
	char	   *end;

	*extra = seed;
	if (seed == NULL)
		return false;
	*seed = strtou64(*value, &end, 16);
	if (*end != '\0')
	{
		GUC_check_errdetail("It is a hexadecimal number.");
		return false;
	}
	if (**value != '\0')
	{
		guc_free(*value);
		*value = guc_strdup(LOG, "***");
	}
	return *value != NULL;
}

static void
settings_assign_key_seed(const char *value, void *extra)
{
	ot_key_seed = *(uint64 *) extra;
}

/* What the node tells its server, and what counts where it says nothing. */
static const char *const settings_of_node[][2] = {
	{"onetrip.database", "onetrip"},
	{"onetrip.region", ""},
	{"onetrip.agent_socket", ""},
	{"onetrip.node_id", "0"},
	{"onetrip.format_level", "0"},
	{"onetrip.key_seed", ""},
	{"onetrip.trace_every", "0"},
	{"onetrip.sequence_slot", "0"},
	{"onetrip.sequence_stride", "1"},
	{"onetrip.read_only", "off"},
};

/*
 * What the node has written into its file counts over every other file, over ALTER
 * SYSTEM, and over a postgresql.conf that does not include that file any more.  A
 * server with another seed, for one, would take keys that no other region knows.  A
 * server without such a file is not started by a node.
 */
static void
settings_take_from_node(void)
{
	ConfigVariable *first = NULL;
	ConfigVariable *last = NULL;

	if (access(OT_NODE_SETTINGS_FILE, F_OK) != 0)
		return;
	if (!ParseConfigFile(OT_NODE_SETTINGS_FILE, true, NULL, 0, 0, LOG, &first, &last))
		ereport(FATAL,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("could not read what the node says in \"%s\"", OT_NODE_SETTINGS_FILE),
				 errhint("Start the node, which writes the file and starts this server.")));
	for (int i = 0; i < lengthof(settings_of_node); i++)
	{
		const char *name = settings_of_node[i][0];
		ConfigVariable *item = first;

		while (item != NULL && strcmp(item->name, name) != 0)
			item = item->next;
		SetConfigOption(name, settings_of_node[i][1], PGC_POSTMASTER, PGC_S_OVERRIDE);
		/* of a level that this library does not know the lowest counts */
		if (item != NULL)
			(void) set_config_option(name, item->value, PGC_POSTMASTER, PGC_S_OVERRIDE, GUC_ACTION_SET, true,
									 strcmp(name, "onetrip.format_level") == 0 ? WARNING : FATAL, false);
	}
	FreeConfigVariables(first);
}

void
ot_settings_init(void)
{
	/*
	 * What the node tells its server; users do not set these, and no reload does.  A
	 * region that joins copies postgresql.auto.conf.
	 */
	DefineCustomStringVariable("onetrip.database",
							   "The replicated database of this server.",
							   "The server's other databases are local.",
							   &ot_database, "onetrip",
							   PGC_POSTMASTER, GUC_DISALLOW_IN_AUTO_FILE, NULL, NULL, NULL);
	DefineCustomStringVariable("onetrip.region",
							   "The region of this server.",
							   NULL,
							   &ot_region, "",
							   PGC_POSTMASTER, GUC_DISALLOW_IN_AUTO_FILE, NULL, NULL, NULL);
	DefineCustomStringVariable("onetrip.agent_socket",
							   "Path of the Unix socket of this server's node.",
							   NULL,
							   &ot_agent_socket, "",
							   PGC_POSTMASTER, GUC_SUPERUSER_ONLY | GUC_DISALLOW_IN_AUTO_FILE, NULL, NULL, NULL);
	DefineCustomIntVariable("onetrip.node_id",
							"Number of this server's node in the cluster.",
							NULL,
							&ot_node_id, 0, 0, INT_MAX,
							PGC_POSTMASTER, GUC_DISALLOW_IN_AUTO_FILE, NULL, NULL, NULL);
	DefineCustomIntVariable("onetrip.format_level",
							"Which formats the cluster may use in write sets.",
							"The node sets it from the level in force in the cluster.  The largest value is the highest level "
							"that this library knows.",
							&ot_format_level, 0, 0, OT_FORMAT_LEVEL_KNOWN,
							PGC_POSTMASTER, GUC_DISALLOW_IN_AUTO_FILE, NULL, NULL, NULL);
	DefineCustomStringVariable("onetrip.key_seed",
							   "Goes into the hash of every key: the cluster's secret, never shown.",
							   "The same on every node, fixed when the cluster is made.",
							   &key_seed_shown, "",
							   PGC_POSTMASTER, GUC_SUPERUSER_ONLY | GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_AUTO_FILE,
							   settings_check_key_seed, settings_assign_key_seed, NULL);
	DefineCustomIntVariable("onetrip.trace_every",
							"Of how many COMMITs the node makes a trace of one; 0 makes none.",
							"The node sets it from [traces] in node.toml.",
							&ot_trace_every, 0, 0, INT_MAX,
							PGC_POSTMASTER, GUC_DISALLOW_IN_AUTO_FILE, NULL, NULL, NULL);
	DefineCustomIntVariable("onetrip.sequence_slot",
							"Which of the interleaved sequence values are this server's.",
							NULL,
							&ot_sequence_slot, 0, 0, 1023,
							PGC_POSTMASTER, GUC_DISALLOW_IN_AUTO_FILE, NULL, NULL, NULL);
	DefineCustomIntVariable("onetrip.sequence_stride",
							"How many servers sequence values are interleaved for; 1 is dense.",
							"The same on every node, fixed when the cluster is made.",
							&ot_sequence_stride, 1, 1, 1024,
							PGC_POSTMASTER, GUC_DISALLOW_IN_AUTO_FILE, NULL, NULL, NULL);

	DefineCustomBoolVariable("onetrip.read_only",
							 "This server is a read replica: it refuses changes of what is replicated.",
							 "Temporary tables, and tables of another access method, may be written.",
							 &ot_read_only, false,
							 PGC_POSTMASTER, GUC_DISALLOW_IN_AUTO_FILE, NULL, NULL, NULL);

	/* What users and operators choose. */
	DefineCustomBoolVariable("onetrip.show_sequence_shares",
							 "Shows in pg_sequence this server's shares of the sequences.",
							 "If off, queries of pg_sequence show definitions as their owners wrote them.",
							 &ot_show_sequence_shares, false,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("onetrip.commit_timeout",
							"How long COMMIT of a change, or a fresh read, waits for a majority of regions.",
							"After that COMMIT ends with SQLSTATE 08007, outcome not known yet, and a fresh read with 55000.",
							&ot_commit_timeout_ms, 10000, 1, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomEnumVariable("onetrip.ack",
							 "When COMMIT of a change is answered.",
							 "quorum: once a majority of regions has it; applied_everywhere: once every region that is connected shows it.",
							 &ot_ack, OT_ACK_QUORUM, ack_values,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("onetrip.concurrency",
							 "What a transaction does about rows that other regions may be changing.",
							 "optimistic: changes them, and COMMIT finds out who was first; locking: first waits in line for their locks, at the leader.",
							 &ot_concurrency, OT_CONCURRENCY_OPTIMISTIC, concurrency_values,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("onetrip.read",
							 "What a transaction sees of other regions' changes.",
							 "local: what this server shows; fresh: at least everything that was acknowledged anywhere before.",
							 &ot_read, OT_READ_LOCAL, read_values,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("onetrip.max_staleness",
							"How old what a local read shows may be.",
							"Older than that, it asks other regions as a fresh read does; -1: any age.",
							&ot_max_staleness_ms, -1, -1, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("onetrip.max_trips",
							"How many round trips to other regions a transaction may take.",
							"COMMIT of a change takes one; DDL, a fresh read, a row lock at the leader, and onetrip.ack = applied_everywhere take another one each; -1: any number.",
							&ot_max_trips, -1, -1, INT_MAX,
							PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("onetrip.max_prepared_transactions",
							"How many transactions a role may have prepared in the cluster at a time.",
							"The cluster has room for 10000; 0: PREPARE TRANSACTION is refused.",
							&ot_max_prepared_transactions, 1000, 0, 10000,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("onetrip.statement_retries",
							"How often a statement that lost against another transaction is run again.",
							"Only one that is a transaction of its own, and of which the client has been sent nothing.",
							&ot_statement_retries, 3, 0, 100,
							PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("onetrip.retry_procedures",
							 "CALL and DO are run again as well.",
							 "What they do outside of the database, and the messages that they send, are repeated.",
							 &ot_retry_procedures, false,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("onetrip.commit_notices",
							 "Each COMMIT of a change tells its client what it has cost.",
							 "A notice, with the parts of its time as DETAIL.",
							 &ot_commit_notices, false,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("onetrip.new_tables",
							 "Whether a new table without USING is replicated.",
							 "replicated: its rows travel; local: it is a heap table, with rows of its own in each region.",
							 &ot_new_tables, OT_NEW_TABLES_REPLICATED, new_tables_values,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("onetrip.rehearse",
							 "COMMIT of statements such as DDL tries them in the other regions first.",
							 "One that would fail in another region fails here, instead of blocking that region.",
							 &ot_rehearse_statements, true,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("onetrip.rehearse_timeout",
							"How long the statements of a transaction are tried in another region.",
							"After that they are rolled back there, and the COMMIT goes on.",
							&ot_rehearse_timeout_ms, 2000, 1, 3600 * 1000,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("onetrip.rehearse_lock_timeout",
							"How long the statements of a transaction, tried in another region, wait there for a lock.",
							"If the wait takes longer, they are rolled back there, and the COMMIT goes on.",
							&ot_rehearse_lock_timeout_ms, 100, 1, 3600 * 1000,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("onetrip.max_apply_delay",
							"How long a local reader or maintenance command may delay changes from other regions.",
							"A transaction that only reads, or a command such as REINDEX, is evicted after this time; one whose client does nothing, after a second at most.",
							&ot_max_apply_delay_ms, 5000, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("onetrip.rebuild_after",
							"How long this server may fail to apply an entry before its node copies another member's PostgreSQL.",
							"0: never; the server stands still until the cause is repaired.",
							&ot_rebuild_after_ms, 60000, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("onetrip.subscription_move_after",
							"How long the node of a subscription may be lost before another one takes the subscription over.",
							"-1: subscriptions do not move by themselves.",
							&ot_subscription_move_after_s, 60, -1, 24 * 3600,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("onetrip.max_write_set",
							"Largest amount of changes one transaction may commit.",
							NULL,
							&ot_max_write_set_kb, 256 * 1024, 64, 1000 * 1024,
							PGC_SUSET, GUC_UNIT_KB, NULL, NULL, NULL);

	MarkGUCPrefixReserved("onetrip");
	settings_take_from_node();

	ot_set_show_hook("in_hot_standby", settings_show_in_hot_standby);
}

/*
 * Called in whatever carries something out for another session: what an operator
 * sets for clients neither limits nor ends it.
 */
void
ot_settings_set_up_worker(void)
{
	static const char *const settings[][2] = {
		{"idle_in_transaction_session_timeout", "0"},
		/* PostgreSQL 17 has it */
		{"transaction_timeout", "0"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"role", "none"},
		{"temp_file_limit", "-1"},
		/* it would end the process at an ERROR that a function catches */
		{"exit_on_error", "off"},
	};

	for (int i = 0; i < lengthof(settings); i++)
	{
		if (GetConfigOption(settings[i][0], true, false) != NULL)
			SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	}
	/* else it is a session of the node, which says how long a rehearsal may take */
	if (MyBackendType == B_BG_WORKER)
	{
		SetConfigOption("statement_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
		SetConfigOption("lock_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
		SetConfigOption("client_encoding", GetDatabaseEncodingName(), PGC_SUSET, PGC_S_OVERRIDE);
	}
}
