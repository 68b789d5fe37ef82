/*-------------------------------------------------------------------------
 *
 * ddl_index.c
 *	  CREATE INDEX CONCURRENTLY as a job in every region.
 *
 * CREATE INDEX CONCURRENTLY is recorded as it is written.  What it does in log
 * order, in the session and in the apply worker alike, takes no time: the
 * index gets its entry in the catalogs, under its name, with no contents and
 * neither ready nor valid, as after PostgreSQL's own first transaction.  A row
 * in onetrip.job_here says that this server is to build it.  So later
 * statements in the log find the index in every region, whether it is built
 * there or not.  The building is local: the job worker (apply/jobs.c) does it in
 * each region, and the session waits for that of its own.  A job may begin anew
 * at any time.
 *
 * Where an index is not built yet, rows are written that it could not take (an
 * expression that fails, a value that is too long), and they arrive where it is
 * built.  The apply worker then takes the index out of use (ot_index_job_undo()),
 * rather than stand still; its job fails as it does in the region of the row.
 *
 * This cannot be done for uniqueness once somebody relies on it.  So a unique
 * index that its job has built is not valid yet: it refuses duplicates of this
 * region, and the apply worker writes those that come from others, and takes it
 * out of use.  A second entry of the log makes it valid, in all regions at once
 * (ot_index_propose_valid()).  Its region has found no duplicate, under a lock
 * that is also a key, so there is none in the rows that all regions have at that
 * point of the log; and all later ones are refused where they are written.
 * Where the index is not built by then, it is built within the entry.
 *
 * A few statements do something else if an index is not valid.  Before one of
 * them, in every region, indexes that are not built yet are built at once
 * (ot_index_jobs_finish()).
 *
 * REINDEX CONCURRENTLY makes another index in the same way, whose second entry
 * puts it in the place of the first (ddl_reindex.c).
 *
 * ddl_concurrently.c has what comes before the entry of a new index: it waits for
 * its locks politely.
 *
 * Runs in backends, in the apply worker and in the job worker.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "commands/event_trigger.h"
#include "commands/progress.h"
#include "commands/tablecmds.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_utilcmd.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "capture/capture.h"
#include "shmem/shmem.h"

/* How often a job looks whether those whom it waits for are there. */
#define WAIT_MS 50
/* The pause after it has held others up for a moment, to lock a table alone. */
#define PAUSE_MS 500
#define LONG_ATTEMPT_EVERY 10

/* Columns of onetrip.job_here. */
#define JOB_ERROR 5
#define JOB_SQLSTATE 6

/* The level whose libraries know what becomes of a unique index that is a job. */
#define UNIQUE_LEVEL 1

/* ---- the index's entry in the catalogs ---- */

bool
ot_index_read_state(Oid index, Form_pg_index state)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));

	if (!HeapTupleIsValid(tuple))
		return false;
	memcpy(state, GETSTRUCT(tuple), offsetof(FormData_pg_index, indkey));
	ReleaseSysCache(tuple);
	return state->indislive;
}

/*
 * Makes it valid, or neither valid nor ready.  It may have been taken out of use
 * meanwhile; then it does not become valid.
 */
static void
ddl_index_set_valid(Oid index, bool valid)
{
	Relation	catalog = table_open(IndexRelationId, RowExclusiveLock);
	HeapTuple	tuple = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", index);
	form = (Form_pg_index) GETSTRUCT(tuple);
	if (valid && !form->indisready)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("index \"%s\" was taken out of use while it was built", get_rel_name(index))));
	form->indisready = valid;
	form->indisvalid = valid;
	/* raises ERROR if somebody has changed it since it was read */
	CatalogTupleUpdate(catalog, &tuple->t_self, tuple);
	CacheInvalidateRelcacheByRelid(form->indrelid);
	heap_freetuple(tuple);
	table_close(catalog, RowExclusiveLock);
	CommandCounterIncrement();
}

/* ---- its row in onetrip.job_here ---- */

/*
 * Is there a job for the index?  Also tells, who asks for it, how its last attempt
 * ended: the strings are NULL, or palloc'd.
 */
static bool
ddl_index_has_job(Relation jobs, Oid index, char **error, char **sqlstate)
{
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	job;
	bool		found;

	if (error != NULL)
		*error = *sqlstate = NULL;
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(index));
	scan = systable_beginscan(jobs, InvalidOid, false, NULL, 1, &key);
	job = systable_getnext(scan);
	found = HeapTupleIsValid(job);
	if (found && error != NULL)
	{
		bool		no_error;
		bool		no_code;
		Datum		of_error = heap_getattr(job, JOB_ERROR, RelationGetDescr(jobs), &no_error);
		Datum		of_code = heap_getattr(job, JOB_SQLSTATE, RelationGetDescr(jobs), &no_code);

		*error = no_error ? NULL : TextDatumGetCString(of_error);
		*sqlstate = no_code ? NULL : TextDatumGetCString(of_code);
	}
	systable_endscan(scan);
	return found;
}

static bool
ddl_index_read_job(Oid index, char **error, char **sqlstate)
{
	Relation	jobs = table_openrv(makeRangeVar("onetrip", "job_here", -1), AccessShareLock);
	bool		found = ddl_index_has_job(jobs, index, error, sqlstate);

	table_close(jobs, AccessShareLock);
	return found;
}

/*
 * An index with all rows of this server, if it is unique each with its own
 * value, that waits for its second entry.
 */
bool
ot_index_is_built(Oid index, Form_pg_index state)
{
	char	   *error;
	char	   *sqlstate;

	return state->indisready && ddl_index_read_job(index, &error, &sqlstate) &&
		sqlstate != NULL && strcmp(sqlstate, OT_JOB_DONE) == 0;
}

/* Notes in the job worker that the index is built, or that it will be built anew. */
static void
ddl_index_note_built(Oid index, bool built)
{
	/* under the search_path of a user */
	char	   *query = psprintf("UPDATE onetrip.job_here SET error = NULL, sqlstate = %s "
								 "WHERE index OPERATOR(pg_catalog.=) '%u'::pg_catalog.oid",
								 built ? "'" OT_JOB_DONE "'" : "NULL", index);

	PushActiveSnapshot(GetTransactionSnapshot());
	(void) SPI_connect();
	if (SPI_execute(query, false, 0) != SPI_OK_UPDATE)
		elog(ERROR, "cannot write onetrip.job_here");
	SPI_finish();
	PopActiveSnapshot();
}

/*
 * Writes onetrip.job_here, as a superuser.  The statement contains no names that a
 * user's search_path could give another meaning.
 */
static void
ddl_index_write_jobs(const char *statement, int nargs, Oid *types, Datum *args, int expected)
{
	Oid			user;
	int			sec_context;

	GetUserIdAndSecContext(&user, &sec_context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, sec_context | SECURITY_LOCAL_USERID_CHANGE);
	(void) SPI_connect();
	if (SPI_execute_with_args(statement, nargs, types, args, NULL, false, 0) != expected)
		elog(ERROR, "cannot write onetrip.job_here");
	SPI_finish();
	SetUserIdAndSecContext(user, sec_context);
}

void
ot_index_note_job(Oid index, const char *statement)
{
	Oid			types[] = {OIDOID, TEXTOID, TEXTOID};
	Datum		args[] = {
		ObjectIdGetDatum(index), CStringGetTextDatum(statement),
		CStringGetTextDatum(namespace_search_path)
	};

	/* a partition may have been detached before */
	ddl_index_write_jobs("INSERT INTO onetrip.job_here AS j (index, statement, search_path) VALUES ($1, $2, $3) "
						 "ON CONFLICT (index) DO UPDATE SET statement = excluded.statement, "
						 "search_path = excluded.search_path, attempts = 0, error = NULL, sqlstate = NULL, "
						 "since = pg_catalog.now()",
						 3, types, args, SPI_OK_INSERT);
}

/* Has the job of an index that is not valid begin anew at once, when this transaction has committed. */
void
ot_index_try_again(Oid index)
{
	Oid			types[] = {OIDOID};
	Datum		args[] = {ObjectIdGetDatum(index)};

	PushActiveSnapshot(GetTransactionSnapshot());
	/* one that is built stays so */
	ddl_index_write_jobs("UPDATE onetrip.job_here SET attempts = 0, error = NULL, "
						 "sqlstate = CASE WHEN sqlstate OPERATOR(pg_catalog.=) '" OT_JOB_DONE "' THEN sqlstate END "
						 "WHERE index OPERATOR(pg_catalog.=) $1",
						 1, types, args, SPI_OK_UPDATE);
	PopActiveSnapshot();
}

/*
 * Carries out what CREATE INDEX CONCURRENTLY does in log order.  Returns the
 * index, or InvalidOid if there is one already (IF NOT EXISTS).
 */
Oid
ot_index_define(IndexStmt *stmt, const char *query)
{
	IndexStmt  *plain = copyObject(stmt);
	Oid			relid = RangeVarGetRelidExtended(stmt->relation, ShareLock, 0,
												 RangeVarCallbackOwnsRelation, NULL);
	ObjectAddress address;

	if (get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot create index on partitioned table \"%s\" concurrently",
						get_rel_name(relid))));
	plain->concurrent = false;
	plain = transformIndexStmt(relid, plain, query);
	EventTriggerAlterTableStart((Node *) stmt);
	address = OT_DEFINE_INDEX_UNBUILT(relid, plain);
	EventTriggerCollectSimpleCommand(address, InvalidObjectAddress, (Node *) stmt);
	EventTriggerAlterTableEnd();
	if (!OidIsValid(address.objectId))
		return InvalidOid;
	CommandCounterIncrement();
	ddl_index_set_valid(address.objectId, false);
	ot_index_note_job(address.objectId, stmt->unique ? "CREATE UNIQUE INDEX CONCURRENTLY" :
					  "CREATE INDEX CONCURRENTLY");
	return address.objectId;
}

/* ---- building it ---- */

/* Another attempt may have ended in the midst, and left something in the file. */
static void
ddl_index_empty(Oid index)
{
	Relation	rel = index_open(index, ShareUpdateExclusiveLock);

	if (RelationGetNumberOfBlocks(rel) > 0)
		OT_SET_NEW_FILE(rel);
	index_close(rel, NoLock);
	CommandCounterIncrement();
}

static bool
ddl_index_waits_for_lock(VirtualTransactionId transaction)
{
	PGPROC	   *proc = OT_PROC_OF_TRANSACTION(transaction);

	return proc != NULL && proc->waitLock != NULL && !VirtualXactLock(transaction, false);
}

/*
 * The job worker does not wait for a transaction that waits for a lock itself,
 * perhaps for the job's: a session of a client would be the victim of the
 * deadlock.  The job gives up, and begins anew later.
 */
static void
ddl_index_check_no_deadlock(VirtualTransactionId transaction)
{
	if (ddl_index_waits_for_lock(transaction))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("a transaction in region \"%s\" that the job has to wait for waits for a lock", ot_region),
				 errhint("The job begins anew by itself.")));
}

/* Waits for those who may change rows of the table, as of now. */
static void
ddl_index_wait_for_writers(LOCKTAG tag)
{
	int			count;
	VirtualTransactionId *writers = GetLockConflicts(&tag, ShareLock, &count);

	for (int i = 0; i < count; i++)
	{
		while (!VirtualXactLock(writers[i], false))
		{
			ddl_index_check_no_deadlock(writers[i]);
			ot_index_pause(WAIT_MS);
		}
	}
	pfree(writers);
}

static VirtualTransactionId *
ddl_index_old_snapshots(TransactionId xmin, int *count)
{
	return GetCurrentVirtualXIDs(xmin, true, false,
								 PROC_IS_AUTOVACUUM | PROC_IN_VACUUM | PROC_IN_SAFE_IC, count);
}

static bool
ddl_index_has(VirtualTransactionId *list, int count, VirtualTransactionId which)
{
	for (int i = 0; i < count; i++)
	{
		if (VirtualTransactionIdEquals(list[i], which))
			return true;
	}
	return false;
}

/*
 * Waits for those who have a snapshot from before the index had all rows.  Later
 * ones are none of them, even if their xmin is as old.
 */
static void
ddl_index_wait_for_snapshots(TransactionId xmin)
{
	int			count;
	VirtualTransactionId *old = ddl_index_old_snapshots(xmin, &count);

	for (int i = 0; i < count; i++)
	{
		for (;;)
		{
			int			now_count;
			VirtualTransactionId *now = ddl_index_old_snapshots(xmin, &now_count);
			bool		there = ddl_index_has(now, now_count, old[i]);

			pfree(now);
			if (!there)
				break;
			ddl_index_check_no_deadlock(old[i]);
			ot_index_pause(WAIT_MS);
		}
	}
	pfree(old);
}

/* Does one of those who have the table locked wait for a lock, perhaps for the job's? */
static bool
ddl_index_others_wait(LOCKTAG tag)
{
	int			count;
	VirtualTransactionId *others = GetLockConflicts(&tag, AccessExclusiveLock, &count);
	bool		any = false;

	for (int i = 0; i < count && !any; i++)
		any = ddl_index_waits_for_lock(others[i]);
	pfree(others);
	return any;
}

/*
 * Puts what has just been built into the place of the index of a TOAST table, in this
 * region only, as soon as nobody else has that table locked.  The caller must have had
 * its lock since the building began: TRUNCATE empties the table, and leaves an index of
 * it that is not valid as it is.
 */
static void
ddl_index_finish_toast(Oid toast, Oid copy, LOCKTAG tag)
{
	int			attempts = 0;

	/* a writer's COMMIT takes a round trip, which may be longer than an attempt */
	while (ddl_index_others_wait(tag) ||
		   !ot_index_try_locks(list_make1_oid(toast), list_make1_int(AccessExclusiveLock),
							   ++attempts % LONG_ATTEMPT_EVERY == 0 ? DeadlockTimeout / 2 : 0))
	{
		CommitTransactionCommand();
		ot_index_pause(PAUSE_MS);
		StartTransactionCommand();
	}
	ddl_index_note_built(copy, true);
	PushActiveSnapshot(GetTransactionSnapshot());
	ot_reindex_finish(toast, ot_reindex_original(copy), copy);
	PopActiveSnapshot();
}

/* PostgreSQL runs the functions of an index as the owner of its table, who is the session user here, too. */
static void
ddl_index_enter_owner(OtUserContext *saved, Oid table)
{
	Relation	rel = table_open(table, NoLock);

	ot_user_enter(saved, rel->rd_rel->relowner, true);
	table_close(rel, NoLock);
}

/*
 * Builds the index of a job, in transactions as PostgreSQL's CREATE INDEX
 * CONCURRENTLY does; the functions that do the work are PostgreSQL's.  One that
 * gets a second entry is not made valid; one of a TOAST table gets none, and is put to
 * use.  Called in a transaction that has no snapshot and holds no lock; returns in
 * another one.  The caller holds a lock for its session on the table, which keeps out
 * other DDL and maintenance.
 *
 * The index's functions run as those of a row do: in a read-only transaction, for
 * they run in every region, and what they write would be an entry of each.
 */
void
ot_index_build(Oid table, Oid index)
{
	FormData_pg_index state;
	bool		is_copy;
	bool		waits;
	LOCKTAG		tag;
	Snapshot	snapshot;
	TransactionId xmin;
	OtUserContext owner;
	const int	params[] = {PROGRESS_CREATEIDX_COMMAND, PROGRESS_CREATEIDX_INDEX_OID};
	const int64 values[] = {PROGRESS_CREATEIDX_COMMAND_CREATE_CONCURRENTLY, index};

	if (!ot_index_read_state(index, &state) || state.indrelid != table)
		return;
	is_copy = OidIsValid(ot_reindex_original(index));
	if (state.indisvalid)
	{
		/* VACUUM FULL and CLUSTER have built it and, since it is not unique, made it valid */
		if (is_copy)
			ddl_index_note_built(index, true);
		return;
	}
	waits = is_copy || state.indisunique;
	pgstat_progress_start_command(PROGRESS_COMMAND_CREATE_INDEX, table);
	pgstat_progress_update_multi_param(2, params, values);
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, table);
	if (waits)
	{
		/*
		 * Each attempt begins anew: since the last one, VACUUM FULL may have filled
		 * the index without comparing values.  And before the index is ready again,
		 * nothing says any more that it is built.
		 */
		ddl_index_note_built(index, false);
		if (state.indisready)
			ddl_index_set_valid(index, false);
		CommitTransactionCommand();
		StartTransactionCommand();
		state.indisready = false;
	}
	if (!state.indisready)
	{
		/* Those who do not know of it yet might break a chain of heap-only updates. */
		ddl_index_wait_for_writers(tag);
		CommitTransactionCommand();
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		ddl_index_empty(index);
		ddl_index_enter_owner(&owner, table);
		/* whether the table is large enough for parallel workers is each server's own, and a function may fail in one */
		if (!ot_ddl_index_is_built_in(index))
			(void) set_config_option("max_parallel_maintenance_workers", "0", PGC_USERSET,
									 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
		index_concurrently_build(table, index);
		ot_user_leave(&owner);
		PopActiveSnapshot();
		CommitTransactionCommand();
		StartTransactionCommand();
	}
	OT_STOP_POINT("index-ready");
	ddl_index_wait_for_writers(tag);
	CommitTransactionCommand();
	StartTransactionCommand();
	snapshot = RegisterSnapshot(GetTransactionSnapshot());
	PushActiveSnapshot(snapshot);
	ddl_index_enter_owner(&owner, table);
	validate_index(table, index, snapshot);
	ot_user_leave(&owner);
	xmin = snapshot->xmin;
	PopActiveSnapshot();
	UnregisterSnapshot(snapshot);
	InvalidateCatalogSnapshot();
	CommitTransactionCommand();
	StartTransactionCommand();
	ddl_index_wait_for_snapshots(xmin);
	if (ot_reindex_is_of_toast(index))
		ddl_index_finish_toast(table, index, tag);
	else if (waits)
		ddl_index_note_built(index, true);
	else
		ddl_index_set_valid(index, true);
	CommitTransactionCommand();
	StartTransactionCommand();
	pgstat_progress_end_command();
}

/* ---- the second entry ---- */

/*
 * Proposes the second entry about an index: REINDEX INDEX, a statement that is not
 * recorded otherwise.  Called in the job worker, in a transaction that commits
 * next.  Does nothing if the lock cannot be had at once, or nearly so, or the index
 * is not built any more.
 *
 * A unique index becomes valid.  Nobody writes the table here until this
 * transaction ends, and a change from another region that comes before this entry
 * in the log has it abort.  So the rows that were found to have different values are
 * those that every region has at this point of the log.  A transaction that has
 * written the table without having seen this entry aborts if it comes later.
 */
void
ot_index_propose(Oid table, Oid index)
{
	FormData_pg_index state;
	Oid			original = ot_reindex_original(index);
	LOCKMODE	mode = OidIsValid(original) ? AccessExclusiveLock : ot_ddl_unique_index_lock(table);
	Relation	rel;
	Oid			user;
	int			sec_context;
	char	   *text;

	if (!ot_index_try_lock(table, mode))
		return;
	ot_ddl_take_schema_key();
	if (ot_reindex_original(index) != original || !ot_index_read_state(index, &state) || state.indrelid != table ||
		(state.indisvalid && !OidIsValid(original)) || !ot_index_is_built(index, &state) ||
		mode < ot_ddl_unique_index_lock(table))
		return;
	/* EXCLUSIVE keeps out those who have only locked rows, which the lock's own key does not */
	if (mode == ExclusiveLock)
		ot_ddl_take_relation_key(table);
	text = psprintf("REINDEX INDEX %s",
					quote_qualified_identifier(get_namespace_name(get_rel_namespace(index)), get_rel_name(index)));
	rel = relation_open(table, NoLock);
	GetUserIdAndSecContext(&user, &sec_context);
	SetUserIdAndSecContext(rel->rd_rel->relowner, sec_context | SECURITY_LOCAL_USERID_CHANGE);
	ot_write_set_statement(text, false);
	SetUserIdAndSecContext(user, sec_context);
	relation_close(rel, NoLock);
	if (OidIsValid(original))
		ot_reindex_finish(table, original, index);
	else
		ddl_index_set_valid(index, true);
}

/* Makes the index of a job valid in this transaction, and builds it before if it is not built. */
static void
ddl_index_finish(Oid table, Oid index)
{
	FormData_pg_index state;
	ReindexParams params = {0};

	LockRelationOid(table, ot_index_read_state(index, &state) && state.indisunique ?
					ot_ddl_unique_index_lock(table) : ShareLock);
	if (!ot_index_read_state(index, &state) || state.indisvalid)
		return;
	if (ot_index_is_built(index, &state))
		ddl_index_set_valid(index, true);
	else
	{
		bool		read_only = XactReadOnly;

		XactReadOnly = true;
		OT_REINDEX_INDEX(index, get_rel_persistence(table), &params);
		XactReadOnly = read_only;
	}
}

/*
 * The index that an entry names.  Its role need not be allowed to look it up: the
 * second entry has that of the owner, who may not use the schema.
 */
Oid
ot_index_named(ReindexStmt *stmt)
{
	Oid			index;

	if (stmt->relation == NULL || stmt->relation->schemaname == NULL)
		ereport(ERROR,
				(errcode(OT_ERR_PROTOCOL),
				 errmsg("entry contains REINDEX without an index and its schema")));
	index = get_relname_relid(stmt->relation->relname, get_namespace_oid(stmt->relation->schemaname, false));
	if (!OidIsValid(index))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s.%s\" does not exist", stmt->relation->schemaname, stmt->relation->relname)));
	return index;
}

/* The second entry about an index, in another region. */
void
ot_index_apply_second(ReindexStmt *stmt)
{
	Oid			index = ot_index_named(stmt);
	Oid			original = ot_reindex_original(index);

	if (OidIsValid(original))
		ot_reindex_finish(IndexGetRelation(index, false), original, index);
	else
		ddl_index_finish(IndexGetRelation(index, false), index);
}

/* Is it an index that a job of CREATE INDEX CONCURRENTLY has still to make valid? */
bool
ot_index_is_unfinished(Oid index)
{
	FormData_pg_index state;

	return ot_index_read_state(index, &state) && !state.indisvalid && ddl_index_read_job(index, NULL, NULL) &&
		!OidIsValid(ot_reindex_original(index));
}

/* Is it an index of a job that gets a second entry, and is not valid yet? */
static bool
ddl_index_waits_for_entry(Oid index)
{
	FormData_pg_index state;

	return ot_in_replicated_database() && ot_index_read_state(index, &state) && !state.indisvalid &&
		ddl_index_read_job(index, NULL, NULL) &&
		(state.indisunique || OidIsValid(ot_reindex_original(index)));
}

pg_noreturn static void
ddl_index_refuse_to_build(Oid index)
{
	Oid			original = ot_reindex_original(index);

	if (OidIsValid(original))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is being built anew in all regions", get_rel_name(original)),
				 errhint("Wait until that is over (onetrip.jobs shows how far it is), or give it up with DROP INDEX %s.",
						 quote_identifier(get_rel_name(index)))));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("index \"%s\" is not valid yet", get_rel_name(index)),
			 errdetail("It has to become valid in all regions at once."),
			 errhint("Wait until it is valid, or drop it; onetrip.jobs shows how far it is.")));
}

/*
 * Called before a REINDEX of an index runs that is no job.  It would make the index
 * valid in this region alone.
 */
void
ot_index_check_reindex(ReindexStmt *stmt)
{
	Oid			index;

	if (stmt->kind != REINDEX_OBJECT_INDEX || stmt->relation == NULL)
		return;
	index = RangeVarGetRelid(stmt->relation, NoLock, true);
	if (OidIsValid(index) && ddl_index_waits_for_entry(index))
		ddl_index_refuse_to_build(index);
}

/*
 * Called before an index that is there already is filled anew, by REINDEX of a
 * table or more, or because ALTER TABLE rewrites the table: the region would take
 * it for valid then.  VACUUM FULL, CLUSTER and TRUNCATE do not.
 */
void
ot_index_check_build(Relation index)
{
	if (ddl_index_waits_for_entry(RelationGetRelid(index)))
		ddl_index_refuse_to_build(RelationGetRelid(index));
}

/*
 * Called before CREATE UNIQUE INDEX CONCURRENTLY is recorded.  Where each region
 * has rows of its own, or fills the relation anew, one region cannot find out for
 * all that there are no duplicates.
 */
void
ot_index_check_unique(IndexStmt *stmt)
{
	Oid			relid = RangeVarGetRelid(stmt->relation, NoLock, true);

	if (OidIsValid(relid) && (get_rel_relkind(relid) == RELKIND_MATVIEW ||
							  (get_rel_relkind(relid) == RELKIND_RELATION && !ot_contents_of_travel(relid))))
		ot_ddl_refuse("CREATE UNIQUE INDEX CONCURRENTLY on anything but a onetrip table",
					  "Use CREATE UNIQUE INDEX without CONCURRENTLY.");
	if (ot_format_level < UNIQUE_LEVEL)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("cannot run CREATE UNIQUE INDEX CONCURRENTLY before the upgrade is finished"),
				 errdetail("The library of another region may not know it."),
				 errhint("Finish the upgrade (onetrip upgrade --finish) and restart this server.")));
}

/* ---- the session that waits for it ---- */

/*
 * Raises the error with which the job has failed here, unless it is one that the
 * next attempt may not have: an entry that came first, or a lock.
 */
void
ot_index_raise_failure(Oid index)
{
	char	   *error;
	char	   *letters;
	int			code = 0;

	(void) ddl_index_read_job(index, &error, &letters);
	if (letters != NULL)
		code = MAKE_SQLSTATE(letters[0], letters[1], letters[2], letters[3], letters[4]);
	/* it is built, and its second entry has failed */
	if (code == 0)
		code = ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
	if (error == NULL || code == ERRCODE_LOCK_NOT_AVAILABLE || code == ERRCODE_QUERY_CANCELED ||
		ERRCODE_TO_CATEGORY(code) == ERRCODE_TRANSACTION_ROLLBACK)
		return;
	ereport(ERROR,
			(errcode(code),
			 errmsg("%s", error),
			 errdetail("Index \"%s\" is in the catalogs and not valid.", get_rel_name(index)),
			 ot_reindex_is_of_toast(index) ?
			 errhint("It is tried again until it succeeds or the table is rewritten (VACUUM FULL); onetrip.jobs shows it.") :
			 errhint("It is tried again until it succeeds or the index is dropped; onetrip.jobs shows it.")));
}

/*
 * Commits what CREATE INDEX CONCURRENTLY has recorded, or ot_index_try_again() has
 * noted, and waits until the job worker has built the index in this region.  Holds no
 * lock and no snapshot meanwhile, so it is in nobody's way.
 */
void
ot_index_await(Oid index)
{
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	CommitTransactionCommand();
	ot_worker_wake_jobs();
	for (;;)
	{
		FormData_pg_index state;

		StartTransactionCommand();
		if (!ot_index_read_state(index, &state))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("the index was dropped before it was built")));
		if (state.indisvalid)
			return;
		ot_index_raise_failure(index);
		CommitTransactionCommand();
		ot_index_pause(WAIT_MS);
	}
}

/* ---- statements that depend on whether an index is valid ---- */

/* The indexes of the table that are jobs, and not valid if `unbuilt`. */
List *
ot_index_jobs_of(Relation rel, bool unbuilt)
{
	List	   *found = NIL;
	Relation	jobs;
	ListCell   *lc;

	jobs = table_openrv(makeRangeVar("onetrip", "job_here", -1), AccessShareLock);
	foreach(lc, RelationGetIndexList(rel))
	{
		Oid			index = lfirst_oid(lc);
		FormData_pg_index state;

		if (ot_index_read_state(index, &state) && !(unbuilt && state.indisvalid) &&
			ddl_index_has_job(jobs, index, NULL, NULL))
			found = lappend_oid(found, index);
	}
	table_close(jobs, AccessShareLock);
	return found;
}

static void
ddl_index_finish_of(RangeVar *name)
{
	Oid			relid = name ? RangeVarGetRelid(name, NoLock, true) : InvalidOid;
	ListCell   *lc;

	if (OidIsValid(relid) && (get_rel_relkind(relid) == RELKIND_INDEX ||
							  get_rel_relkind(relid) == RELKIND_PARTITIONED_INDEX))
		relid = IndexGetRelation(relid, true);
	/* the statement will fail */
	if (!OidIsValid(relid) || (!ot_is_apply_worker && !OT_OWNS_RELATION(relid)))
		return;
	ot_reindex_drop_copies(name);
	foreach(lc, find_all_inheritors(relid, NoLock, NULL))
	{
		Relation	rel = try_relation_open(lfirst_oid(lc), AccessShareLock);
		List	   *unbuilt;
		bool		jobs;
		ListCell   *index;

		if (rel == NULL)
			continue;
		jobs = ot_index_jobs_of(rel, false) != NIL;
		unbuilt = ot_index_jobs_of(rel, true);
		relation_close(rel, NoLock);
		/* where it is not built yet, its locks are stronger than the statement's */
		if (jobs && !ot_is_apply_worker)
			ot_ddl_take_relation_key(lfirst_oid(lc));
		foreach(index, unbuilt)
			ddl_index_finish(lfirst_oid(lc), lfirst_oid(index));
		CommandCounterIncrement();
	}
}

/*
 * Called before a statement runs, in a backend or in the apply worker.  CLUSTER
 * ON fails for an index that is not valid, and an index that is not valid
 * cannot become that of a partition: another one would be made.  So such indexes
 * are built now.  The statement waits for that, in every region where the job
 * is not done.  Indexes that REINDEX CONCURRENTLY has made are dropped, also before
 * ALTER COLUMN TYPE, which would make them anew as valid ones.
 */
void
ot_index_jobs_finish(Node *stmt)
{
	ListCell   *lc;

	if (IsA(stmt, IndexStmt))
	{
		RangeVar   *name = ((IndexStmt *) stmt)->relation;
		Oid			relid = name ? RangeVarGetRelid(name, NoLock, true) : InvalidOid;

		if (OidIsValid(relid) && get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE)
			ddl_index_finish_of(name);
	}
	ot_ddl_order_foreign_keys(stmt);
	if (!IsA(stmt, AlterTableStmt))
		return;
	foreach(lc, ((AlterTableStmt *) stmt)->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);

		if (command->subtype == AT_ClusterOn)
			ddl_index_finish_of(((AlterTableStmt *) stmt)->relation);
		else if (command->subtype == AT_AttachPartition)
			ddl_index_finish_of(((PartitionCmd *) command->def)->name);
		else if (OT_MAKES_INDEXES_ANEW(command->subtype) || command->subtype == AT_AddIndexConstraint ||
				 command->subtype == AT_ReplicaIdentity)
			ot_reindex_drop_copies(((AlterTableStmt *) stmt)->relation);
		if (OT_MAKES_INDEXES_ANEW(command->subtype))
			ot_ddl_order_dependents(((AlterTableStmt *) stmt)->relation);
	}
}

/* ---- indexes that cannot take a row ---- */

static void
ddl_index_take_out_of_use(Relation rel, Oid index, const char *why)
{
	ereport(LOG,
			(errmsg("index \"%s\" of table \"%s\" is taken out of use and built anew",
					get_rel_name(index), RelationGetRelationName(rel)),
			 errdetail("%s", why)));
	ddl_index_set_valid(index, false);
}

/*
 * Called in the apply worker, for a table of an entry that could not be applied
 * before: takes indexes that are jobs out of use, in case one of them is the
 * reason.  The job worker builds them anew.  A unique one that is valid is what
 * others rely on.
 */
void
ot_index_job_undo(Relation rel)
{
	ListCell   *lc;

	foreach(lc, ot_index_jobs_of(rel, false))
	{
		FormData_pg_index state;

		if (!ot_index_read_state(lfirst_oid(lc), &state) || !state.indisready ||
			(state.indisunique && state.indisvalid))
			continue;
		/* nobody may go on reading an index that gets no more rows, and another file */
		if (state.indisvalid)
			LockRelation(rel, AccessExclusiveLock);
		ddl_index_take_out_of_use(rel, lfirst_oid(lc),
								  "An entry could not be applied, perhaps because this index cannot take a row.");
	}
}

/* Called in the apply worker, which has put two rows with one value, or nearly so, into a unique index. */
void
ot_index_job_has_duplicate(Relation rel, Oid index)
{
	FormData_pg_index state;

	/* the first one has found that it is none */
	if (OidIsValid(ot_reindex_original(index)))
		return;
	if (ot_index_read_state(index, &state) && state.indisready && !state.indisvalid)
		ddl_index_take_out_of_use(rel, index, "Another region has written a value that may be there already.");
}
