/*-------------------------------------------------------------------------
 *
 * detach_users.c
 *	  The detach worker: waits, in each region, for the transactions that may use
 *	  a partition which is being detached (ddl/ddl_detach.c).
 *
 * They are those that have a lock on the partitioned table, or on the partition,
 * when the worker sees the mark: whoever comes later knows of it.  The worker looks
 * now and then whether they are gone, waits for nobody otherwise, and tells the other
 * regions in onetrip.job_report.  If it ends, the next one lists them anew, which are
 * more than it needs.
 *
 * It is started by whoever carries out a first entry, or by the job worker, and ends
 * when nothing has been detached for a while.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include "access/xact.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "apply/apply.h"
#include "ddl/ddl.h"
#include "shmem/shmem.h"

#define WORKER "onetrip detach worker"

/* How often it looks while somebody is waited for, or may soon be, and otherwise. */
#define WAITING_MS 200
#define LOOK_MS 1000
/* It ends when there has been nothing to do for so long. */
#define IDLE_MS 60000
/* The pause after a failure. */
#define RETRY_MS 5000

/* A row of onetrip.job_here. */
typedef struct Job
{
	Oid			partition;
	Oid			parent;			/* InvalidOid: it is not being detached any more */
	bool		done;
	TimestampTz since;
	TransactionId written;		/* by whom */
} Job;

/* The transactions that may use a partition as one of its table. */
typedef struct Users
{
	Oid			partition;
	TimestampTz since;			/* of the job: it may be detached again */
	int			count;
	VirtualTransactionId *users;
} Users;

static HTAB *users = NULL;

/* What is to be read, and where. */
typedef struct Reading
{
	MemoryContext context;
	List	   *jobs;
} Reading;

static void
detach_users_read(void *what)
{
	Reading    *reading = what;

	ot_sql_worker_begin();
	ot_sql_worker_execute("SELECT j.index, h.inhparent, " OT_IS_DONE("j") ", j.since, j.xmin "
						  "FROM onetrip.job_here j LEFT JOIN pg_inherits h ON h.inhrelid = j.index AND h.inhdetachpending "
						  "WHERE " OT_IS_DETACH("j") " ORDER BY j.since, j.index", SPI_OK_SELECT);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		MemoryContext old = MemoryContextSwitchTo(reading->context);
		Job		   *job = palloc0(sizeof(Job));
		bool		gone;
		bool		isnull;

		job->partition = DatumGetObjectId(SPI_getbinval(row, desc, 1, &isnull));
		job->parent = DatumGetObjectId(SPI_getbinval(row, desc, 2, &gone));
		if (gone)
			job->parent = InvalidOid;
		job->done = DatumGetBool(SPI_getbinval(row, desc, 3, &isnull));
		job->since = DatumGetTimestampTz(SPI_getbinval(row, desc, 4, &isnull));
		job->written = DatumGetTransactionId(SPI_getbinval(row, desc, 5, &isnull));
		reading->jobs = lappend(reading->jobs, job);
		MemoryContextSwitchTo(old);
	}
	ot_sql_worker_end();
}

/* Changes the row of this job, and not that of a later one of the same partition. */
static void
detach_users_write(const Job *job, const char *query, int expected)
{
	Oid			types[] = {OIDOID, TIMESTAMPTZOID};
	Datum		args[] = {ObjectIdGetDatum(job->partition), TimestampTzGetDatum(job->since)};

	if (SPI_execute_with_args(query, 2, types, args, NULL, false, 0) != expected)
		elog(ERROR, "cannot write onetrip.job_here");
}

static void
detach_users_forget_list(Oid partition)
{
	Users	   *entry = hash_search(users, &partition, HASH_FIND, NULL);

	if (entry == NULL)
		return;
	if (entry->users != NULL)
		pfree(entry->users);
	(void) hash_search(users, &partition, HASH_REMOVE, NULL);
}

static void
detach_users_forget(void *what)
{
	const Job  *job = what;

	ot_sql_worker_begin();
	detach_users_write(job, "DELETE FROM onetrip.job_here WHERE index = $1 AND since = $2", SPI_OK_DELETE);
	ot_sql_worker_end();
	detach_users_forget_list(job->partition);
}

static void
detach_users_add(Users *entry, Oid relid)
{
	LOCKTAG		tag;
	VirtualTransactionId *list;
	int			count;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	list = GetLockConflicts(&tag, AccessExclusiveLock, &count);
	if (entry->users == NULL)
		entry->users = MemoryContextAlloc(TopMemoryContext, Max(count, 1) * sizeof(VirtualTransactionId));
	else
		entry->users = repalloc(entry->users, Max(entry->count + count, 1) * sizeof(VirtualTransactionId));
	for (int i = 0; i < count; i++)
	{
		PGPROC	   *proc = VirtualTransactionIdIsValid(list[i]) ? OT_PROC_OF_TRANSACTION(list[i]) : NULL;

		/* VACUUM reads no rows through another table */
		if (proc == NULL || !(proc->statusFlags & (PROC_IS_AUTOVACUUM | PROC_IN_VACUUM)))
			entry->users[entry->count++] = list[i];
	}
	pfree(list);
}

static Users *
detach_users_list(const Job *job)
{
	Users	   *entry;
	List	   *relids;
	ListCell   *lc;

	/* until its locks are gone, not all have been told that they have to look again */
	XactLockTableWait(job->written, NULL, NULL, XLTW_None);
	relids = lcons_oid(job->parent, find_all_inheritors(job->partition, NoLock, NULL));
	entry = hash_search(users, &job->partition, HASH_ENTER, NULL);
	entry->since = 0;
	entry->count = 0;
	entry->users = NULL;
	foreach(lc, relids)
		detach_users_add(entry, lfirst_oid(lc));
	/* it is complete */
	entry->since = job->since;
	return entry;
}

/* Notes that nobody here uses the partition any more, if it is so. */
static void
detach_users_look(void *what)
{
	const Job  *job = what;
	Users	   *entry = hash_search(users, &job->partition, HASH_FIND, NULL);
	int			left = 0;

	ot_sql_worker_begin();
	if (entry != NULL && entry->since != job->since)
	{
		detach_users_forget_list(job->partition);
		entry = NULL;
	}
	if (entry == NULL)
		entry = detach_users_list(job);
	for (int i = 0; i < entry->count; i++)
	{
		if (!VirtualXactLock(entry->users[i], false))
			entry->users[left++] = entry->users[i];
	}
	entry->count = left;
	if (left == 0)
		detach_users_write(job, "UPDATE onetrip.job_here SET sqlstate = '" OT_JOB_DONE "' WHERE index = $1 AND since = $2", SPI_OK_UPDATE);
	ot_sql_worker_end();
}

static void
detach_users_report(void *nothing)
{
	ot_jobs_report("SELECT current_setting('onetrip.node_id')::integer AS node_id, format('%I.%I', n.nspname, c.relname) AS index, "
				   "current_setting('onetrip.region') AS region, format('%I.%I', tn.nspname, t.relname) AS \"table\", j.statement, "
				   "CASE WHEN " OT_IS_DONE("j") " THEN 'done' ELSE 'waiting' END AS state, "
				   "j.attempts, j.error, j.since "
				   "FROM onetrip.job_here j JOIN pg_inherits h ON h.inhrelid = j.index AND h.inhdetachpending "
				   "JOIN pg_class c ON c.oid = h.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
				   "JOIN pg_class t ON t.oid = h.inhparent JOIN pg_namespace tn ON tn.oid = t.relnamespace "
				   "WHERE " OT_IS_DETACH("j"), OT_IS_DETACH("r"));
}

/* Does what there is to do.  Returns for how long there may be nothing else, in ms; *any: there is something left. */
static long
detach_users_round(MemoryContext context, bool *any)
{
	Reading		reading = {context, NIL};
	long		pause = LOOK_MS;
	int			code;
	ListCell   *lc;

	*any = true;
	if (ot_sql_worker_try(detach_users_read, &reading, &code) != NULL)
		return LOOK_MS;
	/* first of all: who comes while the others are told is none of those who are waited for */
	foreach(lc, reading.jobs)
	{
		Job		   *job = lfirst(lc);

		if (OidIsValid(job->parent) && !job->done)
			pause = ot_sql_worker_try(detach_users_look, job, &code) == NULL ? Min(pause, WAITING_MS) : RETRY_MS;
		else if (!OidIsValid(job->parent))
			(void) ot_sql_worker_try(detach_users_forget, job, &code);
	}
	if (ot_sql_worker_try(detach_users_report, NULL, &code) != NULL)
		return Max(pause, LOOK_MS);
	*any = reading.jobs != NIL;
	return pause;
}

/*
 * Gives up its place, and waits for those who have found it taken and may not have
 * committed.  Returns whether there is nothing to do, or another worker for it.
 */
static bool
detach_users_may_end(MemoryContext context)
{
	bool		any;

	ot_worker_detaches_end();
	ot_sql_worker_wait(RETRY_MS);
	if (!ot_worker_is_for_detaches())
		return true;
	MemoryContextSwitchTo(context);
	(void) detach_users_round(context, &any);
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextReset(context);
	return !any;
}

void
ot_detach_users_main(Datum arg)
{
	HASHCTL		control = {.keysize = sizeof(Oid), .entrysize = sizeof(Users)};
	MemoryContext context;
	TimestampTz busy = ot_now();

	ot_sql_worker_start(WORKER);
	if (!ot_worker_is_for_detaches())
		proc_exit(0);
	users = hash_create(WORKER, 16, &control, HASH_ELEM | HASH_BLOBS);
	context = AllocSetContextCreate(TopMemoryContext, WORKER, ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		bool		any;
		long		pause;

		ot_sql_worker_check();
		MemoryContextSwitchTo(context);
		pause = detach_users_round(context, &any);
		MemoryContextSwitchTo(TopMemoryContext);
		MemoryContextReset(context);
		if (any)
			busy = ot_now();
		else if (TimestampDifferenceExceeds(busy, ot_now(), IDLE_MS) && detach_users_may_end(context))
			proc_exit(0);
		/* who has started this one has perhaps not committed yet */
		else if (!TimestampDifferenceExceeds(busy, ot_now(), IDLE_MS / 10))
			pause = WAITING_MS;
		ot_sql_worker_wait(pause);
	}
}

/* Starts the worker if it is not there.  Called in any process. */
static void
detach_users_launch(void)
{
	static bool told = false;

	if (!ot_worker_for_detaches_is_there())
		ot_sql_worker_launch(WORKER, "ot_detach_users_main",
							 "DETACH PARTITION CONCURRENTLY waits for this region", &told);
}

static void
detach_users_launch_if_wanted(void *nothing)
{
	bool		wanted;

	ot_sql_worker_begin();
	ot_sql_worker_execute("SELECT FROM onetrip.job_here j WHERE " OT_IS_DETACH("j") " UNION ALL SELECT FROM onetrip.job_report r "
						  "WHERE node_id = current_setting('onetrip.node_id')::integer AND " OT_IS_DETACH("r"), SPI_OK_SELECT);
	wanted = SPI_processed > 0;
	ot_sql_worker_end();
	if (wanted)
		detach_users_launch();
}

/* Called in the job worker: after a restart, nobody else starts it. */
void
ot_detach_users_launch_if_wanted(void)
{
	int			code;

	if (!ot_worker_for_detaches_is_there())
		(void) ot_sql_worker_try(detach_users_launch_if_wanted, NULL, &code);
}

void
ot_detach_users_init(void)
{
	ot_detach_launcher_is(detach_users_launch);
}
