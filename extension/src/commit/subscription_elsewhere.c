/*-------------------------------------------------------------------------
 *
 * subscription_elsewhere.c
 *	  How a subscription is made, and how it is made again at another node.
 *
 * onetrip.subscription_definition, a replicated table, says how each of those is
 * made that can move, and which tables it follows.  It is written with the
 * statements that change it (subscription.c), and read by the worker that takes
 * subscriptions over (apply/move_subscription.c).
 *
 * Runs in backends and in that worker.  May raise ERROR.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/subscription_internal.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#define DEFINITION_TABLE "onetrip.subscription_definition"

/* Subscriptions of this database and node. */
#define ARE_HERE \
	"FROM pg_subscription AS s JOIN " TABLE " AS p ON p.relid = 0 AND p.node_id = $3 AND p.subid = s.oid AND p.subscription = s.subname " \
	"WHERE s.subdbid = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()) AND $1 IN ('', s.subname) "

/* How far one with local tables has come is not in the log, and other nodes have other rows. */
#define HAS_LOCAL_TABLES \
	"EXISTS (SELECT FROM pg_subscription_rel AS r CROSS JOIN LATERAL " \
	"(SELECT r.srrelid UNION SELECT t.relid FROM pg_partition_tree(r.srrelid) AS t) AS part (oid) " \
	"JOIN pg_class AS c ON c.oid = part.oid AND c.relkind = 'r' WHERE r.srsubid = s.oid AND (c.relpersistence <> 'p' " \
	"OR c.relam IS DISTINCT FROM (SELECT a.oid FROM pg_am AS a WHERE a.amname = 'onetrip')))"

/* Later versions of PostgreSQL have more options, each with a column of its own. */
#define DEFINITIONS \
	"(SELECT s.subname::text AS subscription, pg_get_userbyid(s.subowner)::text AS owner, s.subconninfo AS connection, " \
	"s.subpublications AS publications, s.subenabled AS enabled, " \
	"(SELECT jsonb_object_agg(o.name, c.value) FROM jsonb_each_text(to_jsonb(s)) AS c JOIN (VALUES ('binary', 'subbinary'), " \
	"('synchronous_commit', 'subsynccommit'), ('disable_on_error', 'subdisableonerr'), ('password_required', 'subpasswordrequired'), " \
	"('run_as_owner', 'subrunasowner'), ('origin', 'suborigin')) AS o (name, key) ON o.key = c.key) || " \
	"jsonb_build_object('slot_name', COALESCE(s.subslotname::text, 'none'), " \
	"'streaming', CASE WHEN s.substream::text IN ('t', 'true') THEN 'on' ELSE 'off' END) AS options, " \
	"ARRAY(SELECT format('%I.%I', n.nspname, c.relname) FROM pg_subscription_rel AS r JOIN pg_class AS c ON c.oid = r.srrelid " \
	"JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE r.srsubid = s.oid ORDER BY 1) AS tables " \
	ARE_HERE "AND NOT " HAS_LOCAL_TABLES ")"

#define IS_NEW "ROW(d.owner, d.connection, d.publications, d.enabled, d.options, d.tables) IS DISTINCT FROM " \
	"ROW(n.owner, n.connection, n.publications, n.enabled, n.options, n.tables)"

#define ARE_OLD \
	"FROM " DEFINITION_TABLE " AS d WHERE $1 IN ('', d.subscription) AND (EXISTS (SELECT " ARE_HERE "AND s.subname = d.subscription AND " \
	HAS_LOCAL_TABLES ") OR NOT EXISTS (SELECT FROM " TABLE " AS p WHERE p.relid = 0 AND p.subscription = d.subscription))"

/*
 * Lets the cluster know how the subscriptions of this node are made, or the one of
 * this name, so that another one can take them over.
 */
void
ot_subscription_note_definitions(const char *name)
{
	const char *filter = name ? name : "";
	OtSubscriptionContext saved;

	if (!ot_subscription_has_table())
		return;
	ot_subscription_begin(&saved);
	if (ot_subscription_execute(SPI_OK_SELECT, "SELECT FROM " DEFINITIONS " AS n LEFT JOIN " DEFINITION_TABLE " AS d USING (subscription) WHERE " IS_NEW,
								filter, InvalidOid, 0, InvalidOid) > 0)
		(void) ot_subscription_execute(SPI_OK_INSERT, "INSERT INTO " DEFINITION_TABLE " SELECT n.* FROM " DEFINITIONS " AS n "
									   "LEFT JOIN " DEFINITION_TABLE " AS d USING (subscription) WHERE " IS_NEW
									   " ON CONFLICT (subscription) DO UPDATE SET owner = excluded.owner, connection = excluded.connection, "
									   "publications = excluded.publications, enabled = excluded.enabled, options = excluded.options, tables = excluded.tables",
									   filter, InvalidOid, 0, InvalidOid);
	if (ot_subscription_execute(SPI_OK_SELECT, "SELECT " ARE_OLD, filter, InvalidOid, 0, InvalidOid) > 0)
		(void) ot_subscription_execute(SPI_OK_DELETE, "DELETE " ARE_OLD, filter, InvalidOid, 0, InvalidOid);
	ot_subscription_end(&saved);
}

/*
 * PostgreSQL takes all tables that are published now for complete.  Those that the
 * former node did not follow are not: a REFRESH copies them.
 */
void
ot_subscription_forget_others(const char *name, Oid subscription)
{
	ListCell   *lc;

	foreach(lc, ot_subscription_oids("SELECT r.srrelid FROM pg_subscription_rel AS r JOIN " DEFINITION_TABLE " AS d ON d.subscription = $1 "
									 "WHERE r.srsubid = $5 AND NOT EXISTS (SELECT FROM unnest(d.tables) AS t WHERE to_regclass(t) = r.srrelid)",
									 name, subscription))
		RemoveSubscriptionRel(subscription, lfirst_oid(lc));
}

/* Runs a statement about subscriptions, without what it says about it to a client. */
static void
subscription_run(const char *statement)
{
	int			level = NewGUCNestLevel();

	(void) set_config_option("log_min_messages", "error", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	if (SPI_execute(statement, false, 0) != SPI_OK_UTILITY)
		elog(ERROR, "cannot execute a statement about a subscription");
	AtEOXact_GUC(false, level);
}

/*
 * Takes the subscription over from the node that has it under this OID, with the
 * tables that it follows there, and without a word to its publisher.  Returns false
 * if it is not there any more, or cannot be taken over.  Called in a transaction of
 * a superuser, with SPI.
 */
bool
ot_subscription_take_over(const char *name, int node, Oid subscription)
{
	const char *quoted = quote_identifier(name);
	char	   *owner;
	char	   *create;
	bool		enabled;
	bool		isnull;
	Oid			here;
	List	   *tables;
	ListCell   *lc;
	OtSubscriptionRow row;
	OtSubscriptionContext saved;
	bool		found;

	/* the catalog comes before the row, as in a statement */
	LockRelationOid(SubscriptionRelationId, ShareRowExclusiveLock);
	ot_subscription_begin(&saved);
	found = ot_subscription_read(name, InvalidOid, InvalidOid, true, &row) && row.node == node && row.subscription == subscription &&
		(row.copying == NULL || row.copying[0] == '\0');
	ot_subscription_end(&saved);
	if (!found)
		return false;
	tables = ot_subscription_oids("SELECT to_regclass(t)::oid FROM " DEFINITION_TABLE " AS d CROSS JOIN unnest(d.tables) AS t "
								  "WHERE d.subscription = $1 AND to_regclass(t) IS NOT NULL", name, InvalidOid);
	if (ot_subscription_execute(SPI_OK_SELECT, "SELECT d.owner, d.enabled, format('CREATE SUBSCRIPTION %I CONNECTION %L PUBLICATION %s "
								"WITH (connect = false, create_slot = false, copy_data = false, enabled = false, %s)', d.subscription, d.connection, "
								"(SELECT string_agg(quote_ident(p.name), ', ' ORDER BY p.number) FROM unnest(d.publications) WITH ORDINALITY AS p (name, number)), "
								"(SELECT string_agg(format('%I = %L', o.key, o.value), ', ' ORDER BY o.key) FROM jsonb_each_text(d.options) AS o)) "
								"FROM " DEFINITION_TABLE " AS d WHERE d.subscription = $1", name, InvalidOid, 0, InvalidOid) != 1)
		return false;
	owner = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	enabled = DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &isnull));
	create = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 3);

	ot_subscription_taking_over = true;
	PG_TRY();
	{
		subscription_run(create);
	}
	PG_FINALLY();
	{
		ot_subscription_taking_over = false;
	}
	PG_END_TRY();
	CommandCounterIncrement();
	here = get_subscription_oid(name, false);
	foreach(lc, tables)
		OT_ADD_SUBSCRIPTION_TABLE(here, lfirst_oid(lc));
	CommandCounterIncrement();
	if (ot_subscription_oids("SELECT s.oid FROM pg_subscription AS s WHERE s.oid = $5 AND " HAS_LOCAL_TABLES, name, here) != NIL)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("subscription \"%s\" does not move by itself, since a table that it follows has become local", name)));
	if (strcmp(owner, GetUserNameFromId(BOOTSTRAP_SUPERUSERID, false)) != 0)
		subscription_run(psprintf("ALTER SUBSCRIPTION %s OWNER TO %s", quoted, quote_identifier(owner)));
	if (enabled)
		subscription_run(psprintf("ALTER SUBSCRIPTION %s ENABLE", quoted));
	CommandCounterIncrement();
	ot_subscription_note_definitions(name);
	return true;
}

/*
 * Removes what is left here of a subscription that is at another node, if there is
 * a row that says so, and the cluster knows how it is made.  Nothing at the
 * publisher is removed with it: the slots are the other node's.  Called in a
 * transaction of a superuser, with SPI.
 */
void
ot_subscription_remove(const char *name)
{
	const char *quoted = quote_identifier(name);
	Oid			subscription;
	ListCell   *lc;
	OtSubscriptionRow row;
	OtSubscriptionContext saved;
	bool		found;

	/* or a statement could take it back meanwhile */
	LockRelationOid(SubscriptionRelationId, AccessExclusiveLock);
	subscription = get_subscription_oid(name, true);
	if (!OidIsValid(subscription))
		return;
	ot_subscription_begin(&saved);
	found = ot_subscription_read(name, subscription, InvalidOid, false, &row) && !row.is_here &&
		ot_subscription_execute(SPI_OK_SELECT, "SELECT FROM " DEFINITION_TABLE " WHERE subscription = $1", name, InvalidOid, 0, InvalidOid) > 0;
	if (found)
		ereport(LOG,
				(errmsg("removing what is left here of subscription \"%s\"", name),
				 ot_subscription_say_elsewhere(name, &row)));
	ot_subscription_end(&saved);
	if (!found)
		return;
	subscription_run(psprintf("ALTER SUBSCRIPTION %s DISABLE", quoted));
	subscription_run(psprintf("ALTER SUBSCRIPTION %s SET (slot_name = NONE)", quoted));
	/* for tables that are not complete, DROP would go to the publisher */
	foreach(lc, ot_subscription_oids("SELECT r.srrelid " COPIED_FROM, name, subscription))
	{
		char		origin[NAMEDATALEN];

		OT_TABLE_ORIGIN_NAME(subscription, lfirst_oid(lc), origin);
		replorigin_drop_by_name(origin, true, true);
	}
	RemoveSubscriptionRel(subscription, InvalidOid);
	CommandCounterIncrement();
	subscription_run(psprintf("DROP SUBSCRIPTION %s", quoted));
}
