/*-------------------------------------------------------------------------
 *
 * jobs.c
 *	  The job worker: builds in this server what CREATE INDEX CONCURRENTLY and
 *	  REINDEX CONCURRENTLY of any region have left to it, and tells the other regions
 *	  how far it is.
 *
 * What there is to do stands in onetrip.job_here, a local table with the OIDs of
 * this server; an index is done when it is valid (ddl/ddl_index.c).  So nothing
 * is lost with the worker, and a server that is a copy of another one goes on
 * where that one was.  What has failed is tried again, after a pause that grows.
 *
 * Each region tells the others about its jobs in onetrip.job_report, a
 * replicated table, in transactions like a client's.  Each writes its own rows
 * only.  While the region is cut off it builds all the same, and tells later.
 *
 * The worker is an ordinary process to the evictor: an entry that needs a lock
 * which a job holds has it cancelled after onetrip.max_apply_delay.  It is never
 * in the way of a turn.  The evictor also cancels a job for which another process of
 * this server has waited for deadlock_timeout, as PostgreSQL does with autovacuum.
 * So that it ends, each time leaves it alone for longer than the one before.
 *
 * Some indexes get a second entry of the log: a unique one becomes valid, once it
 * is built in all regions which are there, and one of REINDEX CONCURRENTLY takes the
 * place of the first, once it is built in all (ddl/ddl_reindex.c).  One of the
 * regions proposes it.  It does not matter which one does that, or whether it has
 * heard of all others: what makes it safe is in the entry.  Others are waited for so
 * that they need not build the index in their turn, or do without it.  The index of a
 * TOAST table gets none: each region's job puts it to use by itself.
 *
 * Partitions of DETACH CONCURRENTLY are jobs of another worker (detach_users.c),
 * which need not wait while an index is built.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include <unistd.h>

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "ddl/ddl.h"
#include "shmem/shmem.h"

/* How often the worker looks for something to do, and for rows of removed members. */
#define LOOK_MS 1000
#define REMOVED_MS 600000
/* The pause after a failure: doubled each time, up to the longest one. */
#define RETRY_MS 1000
#define RETRY_MAX_MS 60000
/* After it has given way, a job is left alone for so long, and for twice as long each time. */
#define LEFT_ALONE_MS 60000
/*
 * How often it looks while an index waits for its second entry, and how long the
 * pauses get between questions whether others have built it, which all nodes
 * answer, and between attempts to lock its table: a part of how long it has waited.
 */
#define WAITING_MS 200
#define ASK_PART 4
#define ASK_MAX_MS 10000
/*
 * If nobody has made a unique index valid for so long, the next region does, in the
 * order of their nodes' numbers: two at once would be in each other's way.
 */
#define TAKE_OVER_MS 3000

typedef struct Job
{
	Oid			index;
	Oid			table;			/* InvalidOid: the index is gone */
	bool		second;			/* gets a second entry */
	bool		copy;			/* of REINDEX CONCURRENTLY */
	bool		built;			/* and waits for it */
	int			attempts;		/* that failed, since somebody has asked for it */
	char	   *statement;
	char	   *search_path;
} Job;

/* What this process knows of a job that has failed. */
typedef struct Failed
{
	Oid			index;
	int			attempts;
	int			gave_way;		/* how many of them were cancelled for others */
	TimestampTz next;
} Failed;

static HTAB *failed = NULL;

/* What this process knows of an index that is built, and waits for its second entry. */
typedef struct Waiting
{
	Oid			index;
	TimestampTz here;			/* since when it is known to be built here */
	TimestampTz everywhere;		/* and everywhere; 0: it is not */
	TimestampTz next;			/* when to ask again */
} Waiting;

static HTAB *waiting = NULL;

/* Is there something to do or to report, or may there be? */
static bool
jobs_may_be_there(void)
{
	static const char *const tables[] = {"job_here", "job_report"};

	return ot_sql_worker_may_have_rows(tables, lengthof(tables));
}

/* An index that waits for its second entry (ddl/ddl_index.c). */
#define BUILT "(i.indisready AND " OT_IS_DONE("j") ")"
/* An index of REINDEX CONCURRENTLY, which VACUUM FULL may have made valid. */
#define IS_COPY "j.statement ^@ 'REINDEX'"

/*
 * The jobs that are not done, or whose index is gone.  The list is in
 * `context`.
 */
static List *
jobs_read(MemoryContext context)
{
	List	   *jobs = NIL;

	ot_sql_worker_begin();
	ot_sql_worker_execute("SELECT j.index, i.indrelid, j.search_path, i.indisunique, " BUILT ", j.statement, " IS_COPY ", j.attempts "
				 "FROM onetrip.job_here j LEFT JOIN pg_index i ON i.indexrelid = j.index AND i.indislive "
				 "WHERE NOT " OT_IS_DETACH("j") " AND (i.indexrelid IS NULL OR NOT i.indisvalid OR " IS_COPY ") "
				 "ORDER BY j.since, j.index", SPI_OK_SELECT);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		MemoryContext old = MemoryContextSwitchTo(context);
		Job		   *job = palloc0(sizeof(Job));
		bool		gone;
		bool		isnull;

		job->index = DatumGetObjectId(SPI_getbinval(row, desc, 1, &isnull));
		job->table = DatumGetObjectId(SPI_getbinval(row, desc, 2, &gone));
		if (gone)
			job->table = InvalidOid;
		job->search_path = TextDatumGetCString(SPI_getbinval(row, desc, 3, &isnull));
		job->built = !gone && DatumGetBool(SPI_getbinval(row, desc, 5, &isnull));
		job->statement = TextDatumGetCString(SPI_getbinval(row, desc, 6, &isnull));
		job->copy = DatumGetBool(SPI_getbinval(row, desc, 7, &isnull));
		job->attempts = DatumGetInt32(SPI_getbinval(row, desc, 8, &isnull));
		job->second = !gone && (job->copy || DatumGetBool(SPI_getbinval(row, desc, 4, &isnull)));
		jobs = lappend(jobs, job);
		MemoryContextSwitchTo(old);
	}
	ot_sql_worker_end();
	return jobs;
}

static void
jobs_forget(const Job *job)
{
	ot_sql_worker_begin();
	ot_sql_worker_execute(psprintf("DELETE FROM onetrip.job_here j WHERE index = %u "
						  "AND NOT EXISTS (SELECT FROM pg_index WHERE indexrelid = j.index)",
						  job->index), SPI_OK_DELETE);
	ot_sql_worker_end();
	(void) hash_search(failed, &job->index, HASH_REMOVE, NULL);
	(void) hash_search(waiting, &job->index, HASH_REMOVE, NULL);
}

/* Keeps the error for the report, and when to try again. */
static void
jobs_note_failure(const Job *job, const char *message, int code, bool gave_way)
{
	bool		found;
	Failed	   *entry = hash_search(failed, &job->index, HASH_ENTER, &found);
	int			pause;
	Oid			types[] = {TEXTOID, TEXTOID};
	Datum		args[2];

	if (!found)
		entry->attempts = entry->gave_way = 0;
	if (gave_way)
		entry->gave_way++;
	pause = RETRY_MS << Min(entry->attempts, 16);
	entry->attempts++;
	entry->next = TimestampTzPlusMilliseconds(ot_now(), Min(pause, RETRY_MAX_MS));
	ot_sql_worker_begin();
	args[0] = CStringGetTextDatum(message);
	args[1] = CStringGetTextDatum(unpack_sql_state(code));
	/* one that is built stays so */
	if (SPI_execute_with_args(psprintf("UPDATE onetrip.job_here SET attempts = attempts + 1, error = $1, "
									   "sqlstate = CASE WHEN sqlstate = '" OT_JOB_DONE "' THEN sqlstate ELSE $2 END WHERE index = %u",
									   job->index), 2, types, args, NULL, false, 0) != SPI_OK_UPDATE)
		elog(ERROR, "cannot write onetrip.job_here");
	ot_sql_worker_end();
}

/* From when on an attempt that begins now gives way. */
static TimestampTz
jobs_gives_way_at(const Failed *entry)
{
	int			gave_way = entry == NULL ? 0 : entry->gave_way;

	return gave_way == 0 ? ot_now() :
		TimestampTzPlusMilliseconds(ot_now(), (int64) LEFT_ALONE_MS << Min(gave_way - 1, 16));
}

/*
 * Builds the index, unless somebody has a lock on the table that the job would
 * have to wait for, such as VACUUM.
 */
static void
jobs_build(void *what)
{
	const Job  *job = what;
	LockRelId	locked = {job->table, MyDatabaseId};
	LOCKTAG		tag;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	ot_session_watch_errors();
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, job->table);
	if (LockAcquire(&tag, ShareUpdateExclusiveLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
	{
		CommitTransactionCommand();
		return;
	}
	ot_sql_worker_set("search_path", job->search_path);
	pgstat_report_activity(STATE_RUNNING, job->statement);
	ot_index_build(job->table, job->index);
	UnlockRelationIdForSession(&locked, ShareUpdateExclusiveLock);
	CommitTransactionCommand();
	pgstat_report_activity(STATE_IDLE, NULL);
}

/* The name of a TOAST table is none elsewhere. */
#define TABLE_OF_TOAST \
	"(SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace " \
	"WHERE c.oid = substr(t.relname, 10)::oid AND c.reltoastrelid = t.oid)"

/* What this region should have told the others; its columns are those of onetrip.job_report. */
#define REPORT \
	"SELECT current_setting('onetrip.node_id')::integer AS node_id, " \
	"format('%I.%I', n.nspname, c.relname) AS index, current_setting('onetrip.region') AS region, " \
	"CASE WHEN t.relkind <> 't' THEN format('%I.%I', tn.nspname, t.relname) ELSE " TABLE_OF_TOAST " END AS \"table\", " \
	"j.statement, " \
	"CASE WHEN i.indisvalid AND NOT " IS_COPY " THEN 'done' WHEN " BUILT " THEN 'built' " \
	"WHEN j.error IS NOT NULL THEN 'failed' ELSE 'building' END AS state, " \
	"j.attempts, CASE WHEN NOT i.indisvalid OR " IS_COPY " THEN j.error END AS error, j.since " \
	"FROM onetrip.job_here j JOIN pg_index i ON i.indexrelid = j.index " \
	"JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace " \
	"JOIN pg_class t ON t.oid = i.indrelid JOIN pg_namespace tn ON tn.oid = t.relnamespace"

/* The columns that are compared, by their text. */
#define SAME \
	"ROW(r.node_id, r.index, r.region, r.\"table\", r.statement, r.state, r.attempts, r.error, r.since)::text = " \
	"ROW(n.node_id, n.index, n.region, n.\"table\", n.statement, n.state, n.attempts, n.error, n.since)::text"

/*
 * Tells the others what has changed.  `which`: about which jobs, in terms of a row
 * r of onetrip.job_report.
 */
void
ot_jobs_report(const char *report, const char *which)
{
	bool		differs;

	ot_sql_worker_begin();
	ot_sql_worker_execute(psprintf("WITH n AS (%s) SELECT FROM n FULL JOIN "
				 "(SELECT * FROM onetrip.job_report r WHERE node_id = current_setting('onetrip.node_id')::integer AND %s) r "
				 "ON r.index = n.index WHERE (" SAME ") IS NOT TRUE", report, which), SPI_OK_SELECT);
	differs = SPI_processed > 0;
	ot_sql_worker_end();
	if (!differs || ot_read_only)
		return;
	ot_sql_worker_begin();
	ot_sql_worker_execute(psprintf("WITH n AS (%s) DELETE FROM onetrip.job_report r "
				 "WHERE r.node_id = current_setting('onetrip.node_id')::integer AND %s "
				 "AND NOT EXISTS (SELECT FROM n WHERE n.index = r.index)", report, which), SPI_OK_DELETE);
	ot_sql_worker_execute(psprintf("WITH n AS (%s) INSERT INTO onetrip.job_report AS r "
				 "(node_id, index, region, \"table\", statement, state, attempts, error, since) SELECT * FROM n "
				 "ON CONFLICT (node_id, index) DO UPDATE SET region = excluded.region, \"table\" = excluded.\"table\", "
				 "statement = excluded.statement, state = excluded.state, attempts = excluded.attempts, "
				 "error = excluded.error, since = excluded.since, changed = now() "
				 "WHERE ROW(r.region, r.\"table\", r.statement, r.state, r.attempts, r.error, r.since)::text <> "
				 "ROW(excluded.region, excluded.\"table\", excluded.statement, excluded.state, excluded.attempts, "
				 "excluded.error, excluded.since)::text", report), SPI_OK_INSERT);
	ot_sql_worker_end();
}

static void
jobs_report(void *nothing)
{
	ot_jobs_report(REPORT " WHERE NOT " OT_IS_DETACH("j"), "NOT " OT_IS_DETACH("r"));
}

/*
 * Deletes what nodes have told that are no members any more.  It asks all members, so
 * it is not done often.
 */
static void
jobs_forget_removed(void *nothing)
{
	ot_sql_worker_begin();
	ot_sql_worker_execute("WITH m AS MATERIALIZED (SELECT node_id FROM onetrip.members) "
				 "DELETE FROM onetrip.job_report WHERE node_id NOT IN (SELECT node_id FROM m) AND EXISTS (SELECT FROM m)",
				 SPI_OK_DELETE);
	ot_sql_worker_end();
}

/*
 * Is the index built in all regions that are there and keep the table?  Those that
 * are away are waited for as well if the index would stay as it is there.  *before
 * is how many of the nodes whose servers are there have a lower number than this one.
 */
static bool
jobs_is_built_everywhere(const Job *job, int *before)
{
	bool		everywhere;
	bool		isnull;
	StringInfoData query;

	ot_sql_worker_begin();
	initStringInfo(&query);
	appendStringInfoString(&query, "WITH n AS (" REPORT);
	appendStringInfo(&query, " WHERE j.index = %u) ", job->index);
	appendStringInfoString(&query, "SELECT bool_and(r.node_id IS NOT NULL), "
						   "count(*) FILTER (WHERE m.node_id < n.node_id AND m.heard <> 'not_connected' AND m.postgres_state = 'ready') "
						   "FROM n CROSS JOIN onetrip.members m LEFT JOIN onetrip.job_report r "
						   "ON r.node_id = m.node_id AND r.index = n.index AND r.since = n.since AND r.state IN ('built', 'done') "
						   "WHERE m.role = 'voter'");
	if (!job->copy)
		appendStringInfoString(&query, " AND m.heard <> 'not_connected'");
	ot_sql_worker_execute(query.data, SPI_OK_SELECT);
	everywhere = DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	/* none, if the index is gone */
	everywhere = everywhere && !isnull;
	*before = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &isnull));
	ot_sql_worker_end();
	return everywhere;
}

/* Proposes the second entry about an index that is built, if it is time for that. */
static void
jobs_propose(void *what)
{
	const Job  *job = what;
	TimestampTz now = ot_now();
	Waiting    *wait;
	bool		found;
	int			before;

	wait = hash_search(waiting, &job->index, HASH_ENTER, &found);
	if (!found)
	{
		wait->here = now;
		wait->everywhere = wait->next = 0;
	}
	if (wait->next > now)
		return;
	wait->next = now + Min((now - wait->here) / ASK_PART, ASK_MAX_MS * INT64CONST(1000));
	if (!jobs_is_built_everywhere(job, &before))
	{
		wait->everywhere = 0;
		return;
	}
	wait->next = 0;
	if (wait->everywhere == 0)
		wait->everywhere = now;
	/* an exchange waits for the sessions of the first region for as long as they take */
	if (job->copy ? before > 0 : !TimestampDifferenceExceeds(wait->everywhere, now, before * TAKE_OVER_MS))
		return;
	/* until the next attempt, if this one fails: each keeps out writers, of an exchange readers, too */
	wait->next = now + Min((now - wait->everywhere) / ASK_PART, ASK_MAX_MS * INT64CONST(1000));
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	ot_session_watch_errors();
	PushActiveSnapshot(GetTransactionSnapshot());
	/* it is in the entry */
	ot_sql_worker_set("search_path", job->search_path);
	ot_index_propose(job->table, job->index);
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/* Is this an error of a transaction that may succeed the next time? */
static bool
jobs_error_passes(int code)
{
	switch (ERRCODE_TO_CATEGORY(code))
	{
		case ERRCODE_TRANSACTION_ROLLBACK:
		case ERRCODE_CONNECTION_EXCEPTION:
		case ERRCODE_OPERATOR_INTERVENTION:
			return true;
		default:
			return code == ERRCODE_LOCK_NOT_AVAILABLE || code == OT_ERR_NOT_NOW;
	}
}

/* Does what there is to do.  Returns whether it should look again soon. */
static bool
jobs_look(MemoryContext context)
{
	static TimestampTz next_removed = 0;
	List	   *jobs;
	ListCell   *lc;
	bool		soon = false;
	int			code;

	if (!jobs_may_be_there())
		return false;
	ot_detach_users_launch_if_wanted();
	jobs = jobs_read(context);
	if (jobs != NIL)
		(void) ot_sql_worker_try(jobs_report, NULL, &code);
	foreach(lc, jobs)
	{
		Job		   *job = lfirst(lc);
		Failed	   *entry = hash_search(failed, &job->index, HASH_FIND, NULL);
		const char *message;
		bool		gave_way;

		CHECK_FOR_INTERRUPTS();
		if (!OidIsValid(job->table))
		{
			jobs_forget(job);
			continue;
		}
		/* a session has asked for the next one (ot_index_try_again()) */
		if (entry != NULL && job->attempts < entry->attempts)
			entry->attempts = entry->next = 0;
		if (entry != NULL && entry->next > ot_now())
			continue;
		if (job->built && ot_read_only)
			continue;
		soon = soon || job->second;
		if (!job->built)
		{
			(void) hash_search(waiting, &job->index, HASH_REMOVE, NULL);
			ot_worker_job_begins(jobs_gives_way_at(entry));
		}
		message = ot_sql_worker_try(job->built ? jobs_propose : jobs_build, job, &code);
		gave_way = ot_worker_job_ends() && message != NULL && code == ERRCODE_QUERY_CANCELED;
		/* it may have been told to give way when it was done; at the end of a system call signals are there */
		(void) getppid();
		QueryCancelPending = false;
		ot_sql_worker_set("search_path", "pg_catalog");
		if (gave_way)
			message = "it gave way to a session that waited for it";
		if (message != NULL && !(job->built && jobs_error_passes(code)))
			jobs_note_failure(job, message, code, gave_way);
	}
	(void) ot_sql_worker_try(jobs_report, NULL, &code);
	if (next_removed <= ot_now() && !ot_read_only)
	{
		bool		failed_now = ot_sql_worker_try(jobs_forget_removed, NULL, &code) != NULL;

		next_removed = TimestampTzPlusMilliseconds(ot_now(), failed_now ? RETRY_MS : REMOVED_MS);
	}
	return soon;
}

/* Another process may get its place, and must not be cancelled. */
static void
jobs_leave(int code, Datum arg)
{
	(void) ot_worker_job_ends();
}

void
ot_jobs_main(Datum arg)
{
	HASHCTL		control = {.keysize = sizeof(Oid), .entrysize = sizeof(Failed)};
	MemoryContext context;

	ot_sql_worker_start("onetrip job worker");
	/* of a second entry: the table is locked, and some regions would build the index for that */
	ot_sql_worker_set("onetrip.rehearse", "off");
	ot_builds_indexes = true;
	ot_worker_is_for_jobs();
	before_shmem_exit(jobs_leave, (Datum) 0);
	failed = hash_create("onetrip failed jobs", 16, &control, HASH_ELEM | HASH_BLOBS);
	control.entrysize = sizeof(Waiting);
	waiting = hash_create("onetrip jobs that wait", 16, &control, HASH_ELEM | HASH_BLOBS);
	context = AllocSetContextCreate(TopMemoryContext, "onetrip jobs", ALLOCSET_DEFAULT_SIZES);

	for (;;)
	{
		bool		soon;

		ot_sql_worker_check();
		MemoryContextSwitchTo(context);
		ot_move_subscription_launch();
		soon = jobs_look(context);
		MemoryContextSwitchTo(TopMemoryContext);
		MemoryContextReset(context);
		ot_sql_worker_wait(soon ? WAITING_MS : LOOK_MS);
	}
}

void
ot_jobs_init(void)
{
	BackgroundWorker worker;

	ot_sql_worker_describe(&worker, "onetrip job worker", "ot_jobs_main");
	RegisterBackgroundWorker(&worker);
}
