/*-------------------------------------------------------------------------
 *
 * ddl_detach.c
 *	  ALTER TABLE ... DETACH PARTITION ... CONCURRENTLY, in every region.
 *
 * PostgreSQL does it in two transactions.  The first one marks the partition, so
 * that later queries leave it out.  Then whoever may have seen it without the mark
 * is waited for, and the second one takes it off, as FINALIZE does.  Both are
 * entries of the log here (ddl_detach_entry.c has the first one).  In between, a
 * worker of each region waits for those who have a lock on the partitioned table or
 * the partition there, and tells the others in onetrip.job_report when they are gone
 * (apply/detach_users.c).  The session waits until all regions have told so, also
 * those that are away; if it gives up, the partition stays as it is until somebody
 * runs FINALIZE, as in PostgreSQL.
 *
 * The first entry conflicts with DDL and not with writers; the second one with
 * those who use the partition, too (ot_held_lock_is_to_finalize()).  If that one
 * loses, it is tried again.
 *
 * Runs in backends; ot_detach_apply() in the apply worker.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "commands/event_trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "partitioning/partdesc.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "capture/capture.h"
#include "shmem/shmem.h"

/*
 * How often the session looks whether the other regions are ready, at first and
 * later, when it names one that is not, and when it gives up if they may wait for its
 * own transaction.
 */
#define WAIT_MS 200
#define WAIT_LATER_MS 2000
#define LOOKS_AT_FIRST 25
#define LOOKS_UNTIL_SAID 15
#define LOOKS_IN_BLOCK 25
/* The pause after a second entry has lost gets longer each time, up to the longest one; when that is said. */
#define LOST_MS 100
#define LOST_MAX_MS 1000
#define LOSSES_UNTIL_SAID 10
/* Each so manieth attempt to lock the tables waits longer than deadlock_timeout, by so much. */
#define ATTEMPTS_OF_LONG 10
#define LONGER_MS 200

/* The level whose libraries know the first entry. */
#define LEVEL 1

/* What the text of a first entry begins with, which no statement does. */
#define FIRST "DETACH CONCURRENTLY: "

/* A partition that is being detached. */
typedef struct Detaching
{
	Oid			parent;
	Oid			partition;
	/* for messages, when they are gone; in PortalContext */
	char	   *parent_name;
	char	   *partition_name;
	OtDetachSecond run;			/* the second entry */
	const OtUtility *call;		/* the statement */
	char	   *text;			/* what was run last */
} Detaching;

/* The session runs the second entry of a statement. */
static bool in_second = false;
static unsigned int attempts = 0;	/* to lock the tables for one */

/* The mark for which all regions are known to be ready. */
static Oid	ready_partition = InvalidOid;
static TransactionId ready_xmin = InvalidTransactionId;

static void (*launch_worker) (void) = NULL;

/* ---- the statements ---- */

static PartitionCmd *
ddl_detach_of(Node *stmt, AlterTableType subtype)
{
	ListCell   *lc;

	if (!IsA(stmt, AlterTableStmt) || ((AlterTableStmt *) stmt)->objtype != OBJECT_TABLE)
		return NULL;
	foreach(lc, ((AlterTableStmt *) stmt)->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);

		if (command->subtype == subtype)
			return (PartitionCmd *) command->def;
	}
	return NULL;
}

/* What DETACH PARTITION ... CONCURRENTLY detaches; NULL if it is another statement. */
PartitionCmd *
ot_detach_concurrently_of(Node *stmt)
{
	PartitionCmd *detach = ddl_detach_of(stmt, AT_DetachPartition);

	return detach != NULL && detach->concurrent ? detach : NULL;
}

bool
ot_detach_is_finalize(Node *stmt)
{
	return ddl_detach_of(stmt, AT_DetachPartitionFinalize) != NULL;
}

/* What PostgreSQL refuses for DETACH PARTITION CONCURRENTLY. */
void
ot_detach_check(Oid parent)
{
	Relation	rel;
	Oid			by_default;

	if (!OidIsValid(parent) || get_rel_relkind(parent) != RELKIND_PARTITIONED_TABLE)
		return;
	rel = table_open(parent, AccessShareLock);
	by_default = get_default_oid_from_partdesc(RelationGetPartitionDesc(rel, true));
	table_close(rel, AccessShareLock);
	if (OidIsValid(by_default))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot detach partitions concurrently when a default partition exists"),
				 errdetail("Table \"%s\" has the default partition \"%s\".", get_rel_name(parent), get_rel_name(by_default))));
	if (get_rel_relispartition(parent) && PartitionHasPendingDetach(parent))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot alter partition \"%s\" with an incomplete detach", get_rel_name(parent)),
				 errhint("Use ALTER TABLE ... DETACH PARTITION ... FINALIZE to complete the pending detach operation.")));
}

/*
 * Finds the tables that the statement names.  false: they are no partitioned table
 * and a partition of it that this user may detach in every region; the statement may
 * run as any other, and fail.
 */
static bool
ddl_detach_find(Node *stmt, Oid *parent, Oid *partition)
{
	PartitionCmd *begin = ot_detach_concurrently_of(stmt);
	PartitionCmd *finalize = ddl_detach_of(stmt, AT_DetachPartitionFinalize);
	bool		marked;
	TransactionId xmin;

	*parent = RangeVarGetRelid(((AlterTableStmt *) stmt)->relation, NoLock, true);
	*partition = RangeVarGetRelid(begin != NULL ? begin->name : finalize->name, NoLock, true);
	return OidIsValid(*parent) && OidIsValid(*partition) &&
		get_rel_relkind(*parent) == RELKIND_PARTITIONED_TABLE && OT_OWNS_RELATION(*parent) &&
		get_rel_persistence(*parent) != RELPERSISTENCE_TEMP && get_rel_relispartition(*partition) &&
		ot_detach_parent_of(*partition, &marked, &xmin) == *parent;
}

/* NULL: it is gone */
static const char *
ddl_detach_qualified_name(Oid relid)
{
	const char *name = get_rel_name(relid);
	const char *schema = name != NULL ? get_namespace_name(get_rel_namespace(relid)) : NULL;

	return schema != NULL ? quote_qualified_identifier(schema, name) : NULL;
}

static void
ddl_detach_check_there(const Detaching *detaching)
{
	bool		no_parent = get_rel_name(detaching->parent) == NULL;

	if (no_parent || get_rel_name(detaching->partition) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s \"%s\" was removed concurrently", no_parent ? "partitioned table" : "partition",
						no_parent ? detaching->parent_name : detaching->partition_name)));
}

/* ---- the wait between the entries ---- */

/*
 * The region that is not ready for the second entry, one of them; NULL: all are.
 * Which regions there are is asked only when all that have told something are ready,
 * since all nodes are asked for that.
 */
static char *
ddl_detach_not_ready(Oid partition)
{
	static const char *const queries[] = {
		/* told that it is not ready */
		"SELECT r.region FROM onetrip.job_here j JOIN pg_catalog.pg_class c ON c.oid = j.index "
		"JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
		"JOIN onetrip.job_report r ON r.index = format('%I.%I', n.nspname, c.relname) AND r.since = j.since "
		"WHERE j.index = $1 AND r.state <> 'done' LIMIT 1",
		/* has told nothing, or is not known since the node does not tell who is there */
		"SELECT m.region FROM onetrip.job_here j JOIN pg_catalog.pg_class c ON c.oid = j.index "
		"JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
		"CROSS JOIN (SELECT node_id, region FROM onetrip.members WHERE role = 'voter' UNION ALL "
		"SELECT 0, current_setting('onetrip.region') WHERE NOT EXISTS (SELECT FROM onetrip.members)) m "
		"WHERE j.index = $1 AND NOT EXISTS (SELECT FROM onetrip.job_report r WHERE r.node_id = m.node_id "
		"AND r.index = format('%I.%I', n.nspname, c.relname) AND r.since = j.since AND r.state = 'done') LIMIT 1"
	};
	static const char *const settings[][2] = {
		/* without pg_temp it would come first, with relations that the user has made */
		{"search_path", "pg_catalog, pg_temp"},
		{"quote_all_identifiers", "off"},
		{"onetrip.max_trips", "-1"},
		{"onetrip.read", "local"},
		{"onetrip.max_staleness", "-1"},
	};
	Oid			types[] = {OIDOID};
	Datum		args[] = {ObjectIdGetDatum(partition)};
	MemoryContext context = CurrentMemoryContext;
	Oid			user;
	int			sec_context;
	int			guc_level = NewGUCNestLevel();
	char	   *region = NULL;

	GetUserIdAndSecContext(&user, &sec_context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, sec_context | SECURITY_LOCAL_USERID_CHANGE);
	for (int i = 0; i < lengthof(settings); i++)
		(void) set_config_option(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	PushActiveSnapshot(GetLatestSnapshot());
	(void) SPI_connect();
	for (int i = 0; region == NULL && i < lengthof(queries); i++)
	{
		if (SPI_execute_with_args(queries[i], 1, types, args, NULL, true, 1) != SPI_OK_SELECT)
			elog(ERROR, "cannot read onetrip.job_report");
		if (SPI_processed > 0)
			region = MemoryContextStrdup(context, SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	}
	SPI_finish();
	PopActiveSnapshot();
	AtEOXact_GUC(false, guc_level);
	SetUserIdAndSecContext(user, sec_context);
	return region;
}

/* The same, if it is marked; notes that they are ready. */
static char *
ddl_detach_marked_not_ready(Oid parent, Oid partition)
{
	bool		marked;
	TransactionId xmin;
	char	   *region;

	if (ot_detach_parent_of(partition, &marked, &xmin) != parent || !marked)
		return NULL;
	region = ddl_detach_not_ready(partition);
	if (region == NULL)
	{
		ready_partition = partition;
		ready_xmin = xmin;
	}
	return region;
}

/* May it succeed the next time?  `committing`: it is an error of COMMIT, which every wait for the others may end with. */
static bool
ddl_detach_error_passes(int code, bool committing, bool looks)
{
	if (code == OT_ERR_LOST)
		return true;
	if (committing)
		return code == OT_ERR_NOT_NOW || ERRCODE_TO_CATEGORY(code) == ERRCODE_INSUFFICIENT_RESOURCES;
	/* the node does not answer; or something has another name by now, which the caller finds out */
	return looks ? code == OT_ERR_NOT_NOW :
		code == ERRCODE_T_R_DEADLOCK_DETECTED || code == ERRCODE_UNDEFINED_TABLE || code == ERRCODE_UNDEFINED_SCHEMA;
}

/*
 * Runs a step and commits, and begins a transaction.  Returns an error after which
 * the step may be tried again, in PortalContext; NULL: there was none.
 */
static ErrorData *
ddl_detach_try(void (*step) (Detaching *detaching, void *what), Detaching *detaching, void *what)
{
	ErrorData  *volatile error = NULL;
	volatile bool committing = false;

	PG_TRY();
	{
		step(detaching, what);
		if (ActiveSnapshotSet())
			PopActiveSnapshot();
		committing = true;
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(PortalContext);
		error = CopyErrorData();
		if (!ddl_detach_error_passes(error->sqlerrcode, committing, what != NULL))
			PG_RE_THROW();
		FlushErrorState();
		AbortCurrentTransaction();
	}
	PG_END_TRY();
	StartTransactionCommand();
	return error;
}

/* A signal that was meant for the transaction before may come only now. */
static void
ddl_detach_pause(Detaching *detaching, void *ms)
{
	ot_index_pause(*(int *) ms);
}

static void
ddl_detach_look(Detaching *detaching, void *what)
{
	char	  **region = what;
	char	   *found = ddl_detach_marked_not_ready(detaching->parent, detaching->partition);

	*region = found != NULL ? MemoryContextStrdup(PortalContext, found) : NULL;
}

/*
 * Waits until no transaction uses the partition as one of this table, in any
 * region.  Begins and ends in a transaction; holds no lock and no snapshot in
 * between.
 */
static void
ddl_detach_await(Detaching *detaching)
{
	for (int looks = 1;; looks++)
	{
		char	   *region;
		int			ms = looks < LOOKS_AT_FIRST ? WAIT_MS : WAIT_LATER_MS;

		launch_worker();
		if (ddl_detach_try(ddl_detach_look, detaching, &region) != NULL)
			region = ot_region;
		if (region == NULL)
			return;
		if (looks == LOOKS_UNTIL_SAID)
			ereport(NOTICE,
					(errmsg("waiting for region \"%s\"", region),
					 errdetail("Transactions there that began before may still use partition \"%s\", or the region is away or read-only.",
							   detaching->partition_name),
					 errhint("onetrip.jobs shows which regions are done. If you give up, the partition is left out of queries "
							 "all the same; run ALTER TABLE ... DETACH PARTITION ... FINALIZE later.")));
		(void) ddl_detach_try(ddl_detach_pause, detaching, &ms);
	}
}

/* ---- the second entry ---- */

/*
 * Called before FINALIZE is recorded: the second entry needs its locks at once, or
 * nearly so, else it is tried again later, without a snapshot in between.  Now and then
 * it waits for long enough to have autovacuum give way.  One within a transaction block
 * waits as any statement does, so that deadlocks are found.
 */
void
ot_detach_before_finalize(Node *stmt)
{
	Oid			parent;
	Oid			partition;
	List	   *relids;
	List	   *modes;

	if (!in_second || !ot_detach_is_finalize(stmt))
		return;
	/* it will fail */
	if (!ddl_detach_find(stmt, &parent, &partition) || !ot_detach_is_marked(parent, partition))
		return;
	ot_detach_locks(parent, partition, true, &relids, &modes);
	ot_ddl_stand_in_line();
	if (!ot_index_try_locks(relids, modes, ++attempts % ATTEMPTS_OF_LONG == 0 ? DeadlockTimeout + LONGER_MS : 0))
		ereport(ERROR,
				(errcode(OT_ERR_LOST),
				 errmsg("partition \"%s\" or a table that its foreign keys lead to is in use in region \"%s\"",
						get_rel_name(partition), ot_region),
				 errhint("It is tried again.")));
}

/*
 * Called before a statement is recorded, with the lock of the schema.  Returns whether
 * it has pushed a snapshot: one that sees all marks, and for FINALIZE one that it need
 * not wait with.  FINALIZE may meet another mark than the one that was waited for.
 */
bool
ot_detach_under_lock(Node *stmt)
{
	Oid			parent = InvalidOid;
	Oid			partition;
	bool		marked;
	TransactionId xmin;

	if (!ot_detach_is_finalize(stmt))
		return ot_detach_see_marks();
	if (ddl_detach_find(stmt, &parent, &partition) && ot_detach_parent_of(partition, &marked, &xmin) == parent &&
		marked && !(partition == ready_partition && TransactionIdEquals(xmin, ready_xmin)))
		ereport(ERROR,
				(errcode(in_second ? OT_ERR_LOST : ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("partition \"%s\" may still be in use in other regions", get_rel_name(partition)),
				 errhint("Run the statement again.")));
	if (OidIsValid(parent))
		ot_held_lock_is_to_finalize(parent);
	ot_detach_push_snapshot();
	return true;
}

/* In PortalContext; NULL: a table is gone */
static char *
ddl_detach_second_text(const Detaching *detaching)
{
	const char *parent = ddl_detach_qualified_name(detaching->parent);
	const char *partition = ddl_detach_qualified_name(detaching->partition);
	MemoryContext old;
	char	   *text;

	if (parent == NULL || partition == NULL)
		return NULL;
	old = MemoryContextSwitchTo(PortalContext);
	text = psprintf("ALTER TABLE %s DETACH PARTITION %s FINALIZE", parent, partition);
	MemoryContextSwitchTo(old);
	return text;
}

static void
ddl_detach_second(Detaching *detaching, void *what)
{
	detaching->text = ddl_detach_second_text(detaching);
	/* somebody else has done it */
	if (detaching->text == NULL || !ot_detach_is_marked(detaching->parent, detaching->partition))
		return;
	PushActiveSnapshot(GetTransactionSnapshot());
	/* others who write the tables meanwhile have it lose, so it takes no longer than it must */
	(void) set_config_option("onetrip.rehearse", "off", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	in_second = true;
	PG_TRY();
	{
		detaching->run(detaching->text, detaching->call);
	}
	PG_FINALLY();
	{
		in_second = false;
	}
	PG_END_TRY();
}

/*
 * Waits for all regions and carries out the second entry, until it is done.  Begins
 * and ends in a transaction.
 */
static void
ddl_detach_await_and_finish(Detaching *detaching)
{
	TimestampTz since = 0;
	LOCKTAG		tag;

	/* those of this region: a wait that others see */
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, detaching->parent);
	WaitForLockers(tag, AccessExclusiveLock, false);
	for (int losses = 1;; losses++)
	{
		ErrorData  *error;
		int			ms = Min(LOST_MS * losses, LOST_MAX_MS);

		ddl_detach_await(detaching);
		ddl_detach_check_there(detaching);
		error = ddl_detach_try(ddl_detach_second, detaching, NULL);
		if (error == NULL)
			return;
		if (error->sqlerrcode == ERRCODE_UNDEFINED_TABLE || error->sqlerrcode == ERRCODE_UNDEFINED_SCHEMA)
		{
			char	   *text = ddl_detach_second_text(detaching);

			/* not if somebody else has finished it meanwhile */
			if (text != NULL && strcmp(text, detaching->text) == 0 &&
				ot_detach_is_marked(detaching->parent, detaching->partition))
				ReThrowError(error);
		}
		if (losses == LOSSES_UNTIL_SAID)
			ereport(NOTICE,
					(errmsg("partition \"%s\" could not be detached so far: %s", detaching->partition_name, error->message),
					 errdetail("It is tried again.")));
		since = since == 0 ? ot_now() : since;
		if (LockTimeout > 0 && TimestampDifferenceExceeds(since, ot_now(), LockTimeout))
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("canceling statement due to lock timeout")));
		(void) ddl_detach_try(ddl_detach_pause, detaching, &ms);
	}
}

static void
ddl_detach_end_transaction(void)
{
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	CommitTransactionCommand();
	ot_worker_wake_jobs();
	StartTransactionCommand();
}

/*
 * FINALIZE of a user.  Waits as PostgreSQL does, which would have locks meanwhile,
 * and for all regions; within a transaction block for these only, and not for long,
 * since one of them may wait for this transaction.  Returns whether it is done.
 */
static bool
ddl_detach_finalize(Detaching *detaching, ProcessUtilityContext context)
{
	if (!ot_detach_is_marked(detaching->parent, detaching->partition))
		return false;
	if (!IsInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL))
	{
		TransactionId xmin = ActiveSnapshotSet() ? GetActiveSnapshot()->xmin : InvalidTransactionId;

		ddl_detach_end_transaction();
		if (TransactionIdIsValid(xmin))
			WaitForOlderSnapshots(xmin, false);
		ddl_detach_await_and_finish(detaching);
		return true;
	}
	for (int looks = 1;; looks++)
	{
		char	   *region = ddl_detach_marked_not_ready(detaching->parent, detaching->partition);

		if (region == NULL)
			return false;
		if (looks == LOOKS_IN_BLOCK)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("partition \"%s\" may still be in use in region \"%s\"", detaching->partition_name, region),
					 errhint("Run ALTER TABLE ... DETACH PARTITION ... FINALIZE outside of a transaction block, where it waits for that.")));
		ot_index_pause(WAIT_MS);
	}
}

/* ---- the first entry ---- */

/*
 * Carries out the first entry, up to its COMMIT.  Begins and ends in a transaction;
 * nothing has happened before in the one that it begins in.
 */
static void
ddl_detach_first(Node *stmt, Detaching *detaching)
{
	TimestampTz since = ot_now();
	List	   *relids;
	List	   *modes;
	Oid			parent;
	Oid			partition;
	char	   *text;
	bool		pushed;

	ddl_detach_end_transaction();
	for (;;)
	{
		ddl_detach_check_there(detaching);
		ot_detach_locks(detaching->parent, detaching->partition, false, &relids, &modes);
		ot_ddl_stand_in_line();
		if (ot_index_try_locks(relids, modes, 0))
			break;
		CommitTransactionCommand();
		ot_index_pause_politely(since);
		StartTransactionCommand();
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	ot_ddl_take_schema_key();
	EventTriggerDDLCommandStart(stmt);
	CommandCounterIncrement();
	ddl_detach_check_there(detaching);
	/* it may have waited for hours */
	if (!ddl_detach_find(stmt, &parent, &partition) || parent != detaching->parent || partition != detaching->partition)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("partition \"%s\" of table \"%s\" was changed concurrently",
						detaching->partition_name, detaching->parent_name),
				 errhint("Run the statement again.")));
	pushed = ot_detach_see_marks();
	ot_detach_check(parent);
	if (ot_detach_all_by_root())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot detach partitions concurrently while a publication FOR ALL TABLES has publish_via_partition_root"),
				 errhint("Detach it without CONCURRENTLY.")));
	text = psprintf(FIRST "ALTER TABLE %s DETACH PARTITION %s CONCURRENTLY",
					ddl_detach_qualified_name(parent), ddl_detach_qualified_name(partition));
	ot_write_set_statement(text, false);
	ot_detach_begin(parent, partition);
	if (pushed)
		PopActiveSnapshot();
	launch_worker();
}

/* The table's role need not be allowed to look it up here: it was where the entry comes from. */
static Oid
ddl_detach_named(RangeVar *name)
{
	Oid			relid = get_relname_relid(name->relname, get_namespace_oid(name->schemaname, false));

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s.%s\" does not exist", name->schemaname, name->relname)));
	return relid;
}

/* In another region: carries out a first entry.  false: the text is another statement. */
bool
ot_detach_apply(const char *text)
{
	Node	   *stmt;

	if (strncmp(text, FIRST, strlen(FIRST)) != 0)
		return false;
	PushActiveSnapshot(GetTransactionSnapshot());
	stmt = linitial_node(RawStmt, pg_parse_query(text + strlen(FIRST)))->stmt;
	ot_detach_begin(ddl_detach_named(castNode(AlterTableStmt, stmt)->relation),
					ddl_detach_named(ot_detach_concurrently_of(stmt)->name));
	PopActiveSnapshot();
	CommandCounterIncrement();
	launch_worker();
	return true;
}

void
ot_detach_launcher_is(void (*launch) (void))
{
	launch_worker = launch;
}

/* ---- the statement ---- */

/*
 * Carries out DETACH PARTITION CONCURRENTLY, or FINALIZE.  false: the statement is to
 * run as any other.
 */
bool
ot_detach_run(const OtUtility *call, OtDetachSecond run)
{
	Node	   *stmt = call->node;
	ProcessUtilityContext context = call->context;
	bool		begins = ot_detach_concurrently_of(stmt) != NULL;
	Detaching  *detaching;
	MemoryContext old = CurrentMemoryContext;
	Oid			parent;
	Oid			partition;
	char	   *names[2];

	if (in_second || (!begins && !ot_detach_is_finalize(stmt)) || (begins && ot_format_level < LEVEL))
		return false;
	PreventCommandIfReadOnly("ALTER TABLE");
	if (begins)
		PreventInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL, "ALTER TABLE ... DETACH CONCURRENTLY");
	if (!ddl_detach_find(stmt, &parent, &partition))
		return false;
	names[0] = get_rel_name(parent);
	names[1] = get_rel_name(partition);
	if (names[0] == NULL || names[1] == NULL || (begins && ot_detach_all_by_root()))
		return false;
	/* a statement on its own comes from a portal */
	if (begins || !IsInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL))
		MemoryContextSwitchTo(PortalContext);
	detaching = palloc0(sizeof(Detaching));
	detaching->parent = parent;
	detaching->partition = partition;
	detaching->parent_name = pstrdup(names[0]);
	detaching->partition_name = pstrdup(names[1]);
	detaching->run = run;
	detaching->call = call;
	MemoryContextSwitchTo(old);
	if (!begins)
		return ddl_detach_finalize(detaching, context);
	ot_detach_check(parent);
	ddl_detach_first(stmt, detaching);
	ddl_detach_end_transaction();
	ddl_detach_await_and_finish(detaching);
	return true;
}
