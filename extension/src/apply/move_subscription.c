/*-------------------------------------------------------------------------
 *
 * move_subscription.c
 *	  The subscription worker: takes over the subscriptions of a node that is
 *	  lost, and removes here what other nodes have taken over.
 *
 * Where each subscription is, and how it is made, stands in two replicated tables
 * (commit/subscription.c).  To take one over is safe whoever does it, and when: a
 * transaction that finds the row as it was lost changes it, the log lets one of two
 * commit, and the former node applies nothing from then on.  So nothing here has to
 * be right about who is lost.  It only has to be slow enough that a subscription
 * does not move for nothing, and that nodes do not try at once.
 *
 * A node is lost if no member that answers is connected to it, or if its
 * PostgreSQL does not run, for onetrip.subscription_move_after; and only if a
 * majority answers here.  The first of the others, in the order of their numbers,
 * takes its subscriptions; the next one, if they have not moved after that time
 * once more.
 *
 * A server that is a copy of another member's, or has lost the end of its
 * catalogs in a crash, makes what the cluster says that it has.
 *
 * What belongs to a node that is no member stays where it is: a cluster that was
 * restored from a backup has such rows, and must not take the slot away from the
 * one that the backup is of.
 *
 * The job worker starts this one if there is any subscription in the cluster,
 * between two jobs.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "replication/walreceiver.h"
#include "storage/ipc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "commit/commit.h"
#include "shmem/shmem.h"

#define WORKER "onetrip subscription worker"

/* How often the worker looks, and how often the job worker looks after it. */
#define LOOK_MS 5000
/* The pause after a failure, such as a publisher that cannot be reached. */
#define RETRY_MS 30000

/* A statement that waits for a publisher holds the catalog, and who waits for that holds up all workers. */
#define LOCK_TIMEOUT_MS "2000"

/*
 * How long the publisher may take to answer.  Each time that it takes longer, the
 * connection stays with the process, which therefore ends after some times, and is
 * started anew.
 */
#define PUBLISHER_MS 10000
#define TIMEOUTS_MAX 20

/* A subscription that is at another node, or that this server does not have. */
typedef struct Elsewhere
{
	char	   *name;
	int			node;
	Oid			subscription;	/* its OID there */
	char	   *region;
	bool		copying;
	bool		member;			/* that node is a member of this cluster */
	char	   *connection;		/* NULL: the cluster does not know how it is made */
	bool		lost;
	int			before;			/* how many nodes are to take it before this one */
} Elsewhere;

/* What this process knows of one that is lost, or of one that is left over here. */
typedef struct Known
{
	struct
	{
		char		name[NAMEDATALEN];
		int			node;		/* 0: left over */
	}			key;
	TimestampTz since;
	TimestampTz seen;			/* when it looked last */
	TimestampTz next;			/* when to try again */
	bool		told;			/* that it cannot move */
} Known;

static HTAB *known = NULL;

#define IS_HERE "p.node_id = current_setting('onetrip.node_id')::integer AND p.subid = s.oid AND p.subscription = s.subname"
#define OF_THIS_DATABASE "s.subdbid = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())"

/*
 * What is known of it.  If nobody has looked for a while, because the node did not
 * say how the cluster is, for example, that is forgotten.
 */
static Known *
move_subscription_known(const char *name, int node)
{
	TimestampTz now = ot_now();
	Known		key = {0};
	Known	   *entry;
	bool		found;

	strlcpy(key.key.name, name, NAMEDATALEN);
	key.key.node = node;
	entry = hash_search(known, &key.key, HASH_ENTER, &found);
	if (!found || TimestampDifferenceExceeds(entry->seen, now, 4 * LOOK_MS + PUBLISHER_MS))
	{
		entry->since = now;
		entry->next = 0;
		entry->told = false;
	}
	entry->seen = now;
	return entry;
}

/* Runs a step, unless it has failed a moment ago.  Returns whether it has been done. */
static bool
move_subscription_try(OtStep step, void *what, TimestampTz *next)
{
	int			code;

	if (ot_now() < *next)
		return false;
	if (ot_sql_worker_try(step, what, &code) == NULL)
		return true;
	*next = TimestampTzPlusMilliseconds(ot_now(), RETRY_MS);
	return false;
}

/* ---- what others have taken over ---- */

/*
 * Those that have a row of their name, which is not their own.  One without such a
 * row stays, disabled: it may have been renamed there, or its row removed by hand.
 */
static void
move_subscription_read_left_over(void *names)
{
	MemoryContext context = CurrentMemoryContext;

	ot_sql_worker_begin();
	ot_sql_worker_execute("SELECT s.subname::text FROM pg_subscription AS s JOIN onetrip.subscription_position AS p "
						  "ON p.relid = 0 AND p.subscription = s.subname AND NOT (" IS_HERE ") WHERE " OF_THIS_DATABASE, SPI_OK_SELECT);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		char	   *name = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1);
		MemoryContext old = MemoryContextSwitchTo(context);

		*(List **) names = lappend(*(List **) names, pstrdup(name));
		MemoryContextSwitchTo(old);
	}
	ot_sql_worker_end();
}

static void
move_subscription_remove(void *name)
{
	ot_sql_worker_begin();
	ot_subscription_remove(name);
	ot_sql_worker_end();
}

static void
move_subscription_remove_left_over(void)
{
	List	   *names = NIL;
	ListCell   *lc;
	int			code;

	(void) ot_sql_worker_try(move_subscription_read_left_over, &names, &code);
	foreach(lc, names)
	{
		Known	   *entry = move_subscription_known(lfirst(lc), 0);

		if (entry->next > ot_now())
			continue;
		entry->next = TimestampTzPlusMilliseconds(ot_now(), RETRY_MS);
		(void) ot_sql_worker_try(move_subscription_remove, lfirst(lc), &code);
	}
}

/* ---- those of a lost node ---- */

#define ELSEWHERE \
	"FROM onetrip.subscription_position AS p LEFT JOIN onetrip.subscription_definition AS d USING (subscription) " \
	"WHERE p.relid = 0 AND NOT EXISTS (SELECT FROM pg_subscription AS s WHERE " OF_THIS_DATABASE " AND " IS_HERE ")"

/* Those of this node itself need not be waited for, and those of others only if a majority answers. */
#define QUERY \
	"WITH m AS MATERIALIZED (SELECT * FROM onetrip.members), l AS MATERIALIZED (SELECT * FROM onetrip.links), " \
	"me AS (SELECT current_setting('onetrip.node_id')::integer AS node_id) " \
	"SELECT p.subscription, p.node_id, p.subid, p.region, p.copying <> '{}', EXISTS (SELECT FROM m WHERE m.node_id = p.node_id), d.connection, " \
	"p.node_id = (SELECT node_id FROM me) OR (SELECT count(*) FILTER (WHERE m.heard = 'now') * 2 > count(*) FROM m WHERE m.voter) " \
	"AND NOT EXISTS (SELECT FROM m WHERE m.node_id = p.node_id AND m.heard = 'now' AND m.postgres_state = 'ready') " \
	"AND NOT EXISTS (SELECT FROM m JOIN l ON l.to_node_id = m.node_id WHERE m.node_id = p.node_id AND m.heard <> 'now' AND l.connected), " \
	"CASE WHEN p.node_id <> (SELECT node_id FROM me) THEN (SELECT 1 + count(*) FROM m WHERE m.role = 'voter' AND m.heard = 'now' " \
	"AND m.postgres_state = 'ready' AND m.node_id < (SELECT node_id FROM me) AND m.node_id <> p.node_id) ELSE 0 END "

static void
move_subscription_read(void *elsewhere)
{
	MemoryContext context = CurrentMemoryContext;

	ot_sql_worker_begin();
	ot_sql_worker_execute("SELECT " ELSEWHERE " LIMIT 1", SPI_OK_SELECT);
	if (SPI_processed > 0)
		ot_sql_worker_execute(QUERY ELSEWHERE, SPI_OK_SELECT);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		MemoryContext old = MemoryContextSwitchTo(context);
		Elsewhere  *each = palloc0(sizeof(Elsewhere));
		bool		isnull;

		each->name = SPI_getvalue(row, desc, 1);
		each->node = DatumGetInt32(SPI_getbinval(row, desc, 2, &isnull));
		each->subscription = DatumGetObjectId(SPI_getbinval(row, desc, 3, &isnull));
		each->region = SPI_getvalue(row, desc, 4);
		each->copying = DatumGetBool(SPI_getbinval(row, desc, 5, &isnull));
		each->member = DatumGetBool(SPI_getbinval(row, desc, 6, &isnull));
		each->connection = SPI_getvalue(row, desc, 7);
		each->lost = DatumGetBool(SPI_getbinval(row, desc, 8, &isnull));
		each->before = DatumGetInt64(SPI_getbinval(row, desc, 9, &isnull));
		*(List **) elsewhere = lappend(*(List **) elsewhere, each);
		MemoryContextSwitchTo(old);
	}
	ot_sql_worker_end();
}

/* Is it lost, and is it time for this node to take it over? */
static bool
move_subscription_is_due(const Elsewhere *it)
{
	Known	   *entry = move_subscription_known(it->name, it->node);
	TimestampTz now = ot_now();

	if (!it->lost)
	{
		(void) hash_search(known, &entry->key, HASH_REMOVE, NULL);
		return false;
	}
	if (now < TimestampTzPlusMilliseconds(entry->since, INT64CONST(1000) * it->before * ot_subscription_move_after_s) || now < entry->next)
		return false;
	if (it->member && !it->copying && it->connection != NULL)
		return true;
	if (!entry->told)
		ereport(LOG,
				(errmsg("subscription \"%s\" of node %d, region \"%s\", does not move by itself", it->name, it->node, it->region),
				 !it->member ? errdetail("That node is no member of this cluster.") :
				 it->copying ? errdetail("Its tables have not been copied.") :
				 errdetail("The cluster does not know how it is made, or it has local tables."),
				 errhint("See \"Subscribe to another PostgreSQL\" in docs/publications.md.")));
	entry->told = true;
	return false;
}

/* Does its publisher answer here?  If not, another node may be luckier. */
static void
move_subscription_ask_publisher(void *what)
{
	const Elsewhere *it = what;
	WalReceiverConn *connection;
	char	   *why;

	ot_sql_worker_begin();
	load_file("libpqwalreceiver", false);
	enable_timeout_after(STATEMENT_TIMEOUT, PUBLISHER_MS);
	connection = OT_CONNECT_TO_PUBLISHER(it->connection, it->name, &why);
	disable_timeout(STATEMENT_TIMEOUT, false);
	if (connection == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("subscription \"%s\" cannot move here: could not connect to its publisher: %s", it->name, why)));
	walrcv_disconnect(connection);
	ot_sql_worker_end();
}

static void
move_subscription_here(void *what)
{
	const Elsewhere *it = what;
	bool		moved;

	ot_sql_worker_begin();
	moved = ot_subscription_take_over(it->name, it->node, it->subscription);
	ot_sql_worker_end();
	if (moved)
		ereport(LOG,
				(errmsg("subscription \"%s\" has moved here from node %d, region \"%s\"", it->name, it->node, it->region)));
}

/*
 * Takes one over, if there is one to take.  The others have their turn in the next
 * rounds, with what is known then.
 */
static void
move_subscription_look(void)
{
	static int	timeouts = 0;
	static TimestampTz next = 0;
	List	   *before = NIL;
	List	   *now = NIL;
	Elsewhere  *due = NULL;
	ListCell   *lc;
	int			code;
	char	   *failure;

	if (!move_subscription_try(move_subscription_read, &before, &next))
		return;
	foreach(lc, before)
	{
		if (move_subscription_is_due(lfirst(lc)) && due == NULL)
			due = lfirst(lc);
	}
	if (due == NULL)
		return;
	failure = ot_sql_worker_try(move_subscription_ask_publisher, due, &code);
	disable_timeout(STATEMENT_TIMEOUT, false);
	if (failure != NULL && code == ERRCODE_QUERY_CANCELED && ++timeouts == TIMEOUTS_MAX)
		proc_exit(1);
	if (failure == NULL)
		(void) ot_sql_worker_try(move_subscription_read, &now, &code);
	/* the publisher may have taken long to answer */
	foreach(lc, now)
	{
		Elsewhere  *it = lfirst(lc);

		if (strcmp(it->name, due->name) == 0 && it->node == due->node && it->subscription == due->subscription && move_subscription_is_due(it))
			(void) ot_sql_worker_try(move_subscription_here, it, &code);
	}
	move_subscription_known(due->name, due->node)->next = TimestampTzPlusMilliseconds(ot_now(), RETRY_MS);
}

static void
move_subscription_note_definitions(void *nothing)
{
	ot_sql_worker_begin();
	ot_subscription_note_definitions(NULL);
	ot_sql_worker_end();
}

/*
 * Is there something to look after, and no other worker that does?  Of two, the one
 * with the lower pid stays.
 */
static void
move_subscription_find_out(void *wanted)
{
	ot_sql_worker_begin();
	ot_sql_worker_execute("SELECT FROM onetrip.subscription_position WHERE NOT EXISTS (SELECT FROM pg_stat_activity AS a "
						  "WHERE a.backend_type = '" WORKER "' AND (a.pid < pg_backend_pid() "
						  "OR NOT EXISTS (SELECT FROM pg_stat_activity AS me WHERE me.pid = pg_backend_pid() AND me.backend_type = '" WORKER "'))) LIMIT 1",
						  SPI_OK_SELECT);
	*(bool *) wanted = SPI_processed > 0;
	ot_sql_worker_end();
}

void
ot_move_subscription_main(Datum arg)
{
	HASHCTL		control = {.keysize = sizeof(((Known *) NULL)->key), .entrysize = sizeof(Known)};
	MemoryContext context;
	TimestampTz next_note = 0;
	int			code;

	ot_sql_worker_start(WORKER);
	ot_sql_worker_set("lock_timeout", LOCK_TIMEOUT_MS);
	known = hash_create("onetrip lost subscriptions", 16, &control, HASH_ELEM | HASH_BLOBS);
	context = AllocSetContextCreate(TopMemoryContext, "onetrip subscriptions", ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		bool		wanted = true;

		/* whoever cancels what it does means the step, not the worker */
		QueryCancelPending = false;
		ot_sql_worker_check();
		MemoryContextSwitchTo(context);
		(void) ot_sql_worker_try(move_subscription_find_out, &wanted, &code);
		if (!wanted)
			proc_exit(0);
		if (!ot_read_only)
		{
			(void) move_subscription_try(move_subscription_note_definitions, NULL, &next_note);
			if (ot_subscription_move_after_s >= 0)
			{
				move_subscription_remove_left_over();
				move_subscription_look();
			}
		}
		MemoryContextSwitchTo(TopMemoryContext);
		MemoryContextReset(context);
		ot_sql_worker_wait(LOOK_MS);
	}
}

/* ---- in the job worker ---- */

static void
move_subscription_launch(void *nothing)
{
	static bool told = false;
	bool		wanted;

	move_subscription_find_out(&wanted);
	if (wanted)
		ot_sql_worker_launch(WORKER, "ot_move_subscription_main",
							 "subscriptions do not move when their node is lost", &told);
}

/* Starts the worker if it is wanted and not there. */
void
ot_move_subscription_launch(void)
{
	static const char *const tables[] = {"subscription_position"};
	static TimestampTz next = 0;
	TimestampTz now = ot_now();
	int			code;

	if (ot_read_only || next > now)
		return;
	next = TimestampTzPlusMilliseconds(now, LOOK_MS);
	if (ot_sql_worker_may_have_rows(tables, lengthof(tables)))
		(void) ot_sql_worker_try(move_subscription_launch, NULL, &code);
}
