/*-------------------------------------------------------------------------
 *
 * position.c
 *	  How far this server is in the log: the applied index.
 *
 * The commit records tell, after a crash, how far this server is: each is
 * written under the replication origin "onetrip" with the log index as its
 * position.  The first process that needs the applied index reads it from the
 * origin; from then on the holder of the turn advances it (commit/turn.c).
 *
 * Runs in all processes.  ERROR is raised by ot_position_attach() and its
 * callers, by ot_origin() and by the waits.  Of these, only ot_origin() is
 * called between a verdict of commit and the local commit, and it has found the
 * origin by then.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "shmem/shmem.h"

#include "access/xact.h"
#include "catalog/pg_replication_origin.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "replication/slot.h"
#include "storage/ipc.h"
#include "utils/acl.h"
#include "utils/inval.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* How long a new session waits for what was committed before server start. */
#define CATCH_UP_MS 10000
#define CATCH_UP_POLL_MS 5
/* Of an entry that has failed for so long, nobody knows when it will be shown. */
#define CATCH_UP_STANDS_MS 1000
/* Whoever waits for an entry is woken; this is for the case that it is not. */
#define SHOWN_POLL_MS 100
/* Other regions are taken to carry out DDL for so long after they last did. */
#define DDL_ELSEWHERE_MS 10000
/* From publishing to the release of its locks, a backend takes microseconds. */
#define ANNOUNCED_POLL_US 100
#define ANNOUNCED_POLLS_MAX 100

static OtPositions *positions = NULL;

/* This session is to be told that it sees less than what was committed once. */
static bool let_in_behind = false;

/*
 * The transaction level that changes names, since it holds the lock for the schema
 * key, or shares it; 0: none.
 */
static int	names_change_level = 0;
static OtLogIndex announcing;
/* What this process knows of names is no older than this entry. */
static OtLogIndex names_known;

PG_FUNCTION_INFO_V1(ot_position);
PG_FUNCTION_INFO_V1(ot_wait_for);

static void
position_attach_memory(void *memory, bool found)
{
	positions = memory;
	if (found)
		return;
	SpinLockInit(&positions->mutex);
	pg_atomic_init_u64(&positions->applied, 0);
	pg_atomic_init_u64(&positions->applied_at, 0);
	pg_atomic_init_u64(&positions->ddl_elsewhere_at, 0);
	pg_atomic_init_u64(&positions->next_sequence, 0);
	pg_atomic_init_u32(&positions->nwaiting, 0);
	pg_atomic_init_u64(&positions->nshown, 0);
	for (int i = 0; i < OT_SHOWN_BY_MAX; i++)
	{
		pg_atomic_init_u64(&positions->shown[i].index, 0);
		pg_atomic_init_u32(&positions->shown[i].xid, InvalidTransactionId);
	}
	/* Two starts of one server must not share transaction ids. */
	if (!pg_strong_random(&positions->incarnation, sizeof(positions->incarnation)))
		positions->incarnation = ((uint64) GetCurrentTimestamp()) ^ ((uint64) MyProcPid << 48);
}

void
ot_position_init(void)
{
	static const OtShmemPart part = {"onetrip positions", sizeof(OtPositions), position_attach_memory};

	/* Without any, PostgreSQL does not read them, and says 0 of each. */
	if (OT_ORIGINS_MAX == 0)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("onetrip needs replication origins, and \"%s\" is 0", OT_ORIGINS_SETTING),
				 errdetail("The position of this server in the log is one, and would be forgotten."),
				 errhint("Set it to 10 or more.")));
	ot_shmem_add(&part);
}

/* The origin's local number.  The first call needs a transaction. */
RepOriginId
ot_origin(void)
{
	static RepOriginId origin = InvalidRepOriginId;

	if (origin == InvalidRepOriginId)
	{
		origin = replorigin_by_name("onetrip", true);
		if (origin == InvalidRepOriginId)
			ereport(ERROR,
					(errcode(OT_ERR_NOT_NOW),
					 errmsg("replication origin \"onetrip\" does not exist in this server"),
					 errhint("It holds the server's position in the log and is made by onetrip init; do not drop it.")));
	}
	return origin;
}

/* Reads the applied index from the origin, once after each server start. */
void
ot_position_attach(void)
{
	uint64		progress;

	if (likely(positions->known))
	{
		(void) ot_origin();
		return;
	}
	progress = (uint64) replorigin_get_progress(ot_origin(), false);
	SpinLockAcquire(&positions->mutex);
	if (!positions->known)
	{
		pg_atomic_write_u64(&positions->applied, progress);
		positions->began.value = progress;
		positions->known = true;
	}
	SpinLockRelease(&positions->mutex);
}

/* For SQL functions that only make sense in the database of a running node. */
void
ot_check_running(void)
{
	if (!ot_preloaded || !IsUnderPostmaster || !ot_in_replicated_database())
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("this is not the replicated database of a running node"),
				 ot_database ? errhint("Connect to database \"%s\" of a server that a node runs.", ot_database) : 0));
	ot_position_attach();
}

OtLogIndex
ot_applied_index(void)
{
	OtLogIndex	index = {pg_atomic_read_u64(&positions->applied)};

	return index;
}

/* When this server came to show that; 0: before it started. */
TimestampTz
ot_applied_at(void)
{
	return (TimestampTz) pg_atomic_read_u64(&positions->applied_at);
}

/* The index up to which entries would survive a crash of this server now. */
OtLogIndex
ot_durable_index(void)
{
	OtLogIndex	index = {(uint64) replorigin_get_progress(ot_origin(), true)};

	return index;
}

/*
 * Called by the holder of the turn: the entry is visible to new snapshots.  Its
 * local transaction is the one that ends now.
 */
void
ot_position_set_applied(OtLogIndex index)
{
	uint64		n = pg_atomic_read_u64(&positions->nshown);
	OtShownBy  *shown = &positions->shown[n % OT_SHOWN_BY_MAX];

	pg_atomic_write_u64(&shown->index, index.value);
	pg_atomic_write_u32(&shown->xid, GetTopTransactionIdIfAny());
	pg_write_barrier();
	pg_atomic_write_u64(&positions->nshown, n + 1);

	SpinLockAcquire(&positions->mutex);
	Assert(pg_atomic_read_u64(&positions->applied) < index.value);
	if (names_change_level > 0)
		positions->names_changed_at = positions->unannounced = announcing = index;
	pg_atomic_write_u64(&positions->applied, index.value);
	SpinLockRelease(&positions->mutex);
	pg_atomic_write_u64(&positions->applied_at, (uint64) ot_now());
}

/*
 * An index up to which the snapshot shows all entries, and no older one than
 * necessary.  Entries become visible in the order of the log, so this is that of
 * the last one whose local transaction the snapshot shows.  0 if the snapshot is
 * older than what is remembered.
 */
OtLogIndex
ot_position_shown_by(Snapshot snapshot)
{
	uint64		end = pg_atomic_read_u64(&positions->nshown);
	OtLogIndex	index = {0};

	pg_read_barrier();
	for (uint64 n = end; n > 0; n--)
	{
		OtShownBy  *shown = &positions->shown[(n - 1) % OT_SHOWN_BY_MAX];
		TransactionId xid = pg_atomic_read_u32(&shown->xid);

		index.value = pg_atomic_read_u64(&shown->index);
		pg_read_barrier();
		/* by then, its place may have got another one */
		if (pg_atomic_read_u64(&positions->nshown) >= n - 1 + OT_SHOWN_BY_MAX)
		{
			index.value = 0;
			return index;
		}
		if (TransactionIdIsValid(xid) && !XidInMVCCSnapshot(xid, snapshot))
			return index;
	}
	/* what was there when the server started is in every snapshot */
	return positions->began;
}

/* ---- transaction ids ---- */

uint64
ot_incarnation(void)
{
	return positions->incarnation;
}

OtTxnId
ot_draw_txn(void)
{
	OtTxnId		txn;

	txn.node = (uint32) ot_node_id;
	txn.incarnation = positions->incarnation;
	txn.sequence = pg_atomic_add_fetch_u64(&positions->next_sequence, 1);
	return txn;
}

/*
 * An id was refused, perhaps as one of which nothing is known any more: whoever
 * may settle transactions may have settled some that come next.  The node allows
 * ids that are not as far above (UNUSED_MAX in certifier/outcomes.rs).
 */
void
ot_skip_txns(void)
{
	pg_atomic_fetch_add_u64(&positions->next_sequence, 8192);
}

uint64
ot_last_drawn_sequence(void)
{
	return pg_atomic_read_u64(&positions->next_sequence);
}

/* ---- waiting until this server shows something ---- */

/*
 * Called when the worker has connected to its node.  Only the first time since
 * server start counts.
 */
void
ot_position_welcome(OtLogIndex committed)
{
	SpinLockAcquire(&positions->mutex);
	if (!positions->welcomed)
	{
		positions->catch_up_to = committed;
		positions->welcomed = true;
	}
	SpinLockRelease(&positions->mutex);
}

bool
ot_position_is_welcomed(void)
{
	bool		welcomed;

	SpinLockAcquire(&positions->mutex);
	welcomed = positions->welcomed;
	SpinLockRelease(&positions->mutex);
	return welcomed;
}

static bool
position_caught_up(void)
{
	bool		answer;

	SpinLockAcquire(&positions->mutex);
	answer = positions->known && positions->welcomed &&
		pg_atomic_read_u64(&positions->applied) >= positions->catch_up_to.value;
	SpinLockRelease(&positions->mutex);
	return answer;
}

/*
 * Called when a session begins.  In a crash, this server loses entries that
 * were committed here and not flushed yet, until the node sends them again.  A
 * client that connects in between would not see what it was told was
 * committed.
 *
 * If an entry cannot be applied, that may last until somebody has mended the
 * cause in this database.  So superusers get in then, through the Unix socket:
 * an operator, and the node.  They are warned that rows may be older than those
 * that this server has shown.  What they write is certified against the position
 * that it shows now, as always.
 *
 * by_socket: the role, if it comes through the Unix socket; else NULL.
 */
void
ot_position_wait_caught_up(const char *by_socket)
{
	for (int waited = 0; !position_caught_up(); waited += CATCH_UP_POLL_MS)
	{
		OtLogIndex	failing = ot_worker_stands_at(CATCH_UP_STANDS_MS);

		if (failing.value != 0 && by_socket != NULL &&
			superuser_arg(get_role_oid(by_socket, true)))
		{
			let_in_behind = true;
			break;
		}
		if (waited >= CATCH_UP_MS)
			ereport(FATAL,
					(errcode(ERRCODE_CANNOT_CONNECT_NOW),
					 errmsg("database \"%s\" of region \"%s\" does not show yet what was committed before this server started",
							ot_database, ot_region),
					 failing.value != 0 ?
					 errdetail("It cannot apply log index " UINT64_FORMAT ".", failing.value) :
					 errdetail("It gets that from its node, which may have to wait for a majority of regions."),
					 failing.value != 0 ?
					 errhint("Connect to another region. A superuser is let in through this server's Unix socket; SELECT failing, failure FROM onetrip.status says what to mend.") :
					 errhint("Start the node (onetrip start); if it runs, its log and the server's log say why the changes are not applied.")));
		CHECK_FOR_INTERRUPTS();
		ot_wait_latch(CATCH_UP_POLL_MS);
	}
	SpinLockAcquire(&positions->mutex);
	if (positions->unannounced.value == 0)
		names_known = positions->names_changed_at;
	SpinLockRelease(&positions->mutex);
}

/* Called when a statement begins: no client is sent a warning before it is let in. */
void
ot_position_warn_behind(void)
{
	if (likely(!let_in_behind))
		return;
	let_in_behind = false;
	if (!position_caught_up())
		ereport(WARNING_CLIENT_ONLY,
				(errmsg("database \"%s\" of region \"%s\" may show less than before this server started",
						ot_database, ot_region),
				 errhint("SELECT failing, failure FROM onetrip.status says which entry it cannot apply, and why.")));
}

static void
position_stop_waiting(int code, Datum arg)
{
	pg_atomic_write_u64(&ot_my_slot()->waits_for, 0);
	pg_atomic_fetch_sub_u32(&positions->nwaiting, 1);
}

/*
 * Waits until this server shows an entry.  Returns false if the deadline passes
 * before that; 0: there is none.  Serves interrupts.
 *
 * If this process holds a lock that the entry needs, or one before it, it is
 * evicted (apply/evict.c).
 */
bool
ot_position_wait_shown(OtLogIndex index, TimestampTz deadline)
{
	bool		shown;

	if (ot_applied_index().value >= index.value)
		return true;
	pg_atomic_write_u64(&ot_my_slot()->waits_for, index.value);
	/* a full barrier: whoever publishes the index from here on sees us */
	pg_atomic_fetch_add_u32(&positions->nwaiting, 1);

	PG_ENSURE_ERROR_CLEANUP(position_stop_waiting, (Datum) 0);
	{
		while (!(shown = ot_applied_index().value >= index.value))
		{
			long		wait_ms = SHOWN_POLL_MS;

			if (deadline != 0)
				wait_ms = Min(wait_ms, ot_ms_until(deadline));
			if (wait_ms == 0)
				break;
			ot_wait_latch(wait_ms);
			CHECK_FOR_INTERRUPTS();
		}
	}
	PG_END_ENSURE_ERROR_CLEANUP(position_stop_waiting, (Datum) 0);
	position_stop_waiting(0, (Datum) 0);
	return shown;
}

/* Called when the index has been published: wakes those that wait for it. */
void
ot_position_wake_waiting(OtLogIndex index)
{
	/* the lock under which it was published is released: a full barrier */
	if (likely(pg_atomic_read_u32(&positions->nwaiting) == 0))
		return;
	for (int i = 0; i < ot_slot_count(); i++)
	{
		uint64		waits_for = pg_atomic_read_u64(&ot_slots->slots[i].waits_for);

		if (waits_for != 0 && waits_for <= index.value)
			ot_slot_wake(i);
	}
}

/* ---- DDL of other regions ---- */

/* Called where a statement of another region is carried out here, or tried. */
void
ot_position_note_ddl_elsewhere(void)
{
	pg_atomic_write_u64(&positions->ddl_elsewhere_at, (uint64) ot_now());
}

/* Have other regions carried out DDL lately? */
bool
ot_position_is_ddl_elsewhere(void)
{
	TimestampTz at = (TimestampTz) pg_atomic_read_u64(&positions->ddl_elsewhere_at);

	return at != 0 && !TimestampDifferenceExceeds(at, ot_now(), DDL_ELSEWHERE_MS);
}

/* ---- names ---- */

/*
 * PostgreSQL sends invalidations of the catalogs to other processes only after
 * our callback has published the entry.  In between, their caches are older
 * than the applied index says.  So the entry is marked as unannounced until
 * its locks are released, which happens after the invalidations.  Transactions
 * that change names commit one after the other, because of the locks in
 * ddl/ddl_share.c, so one mark is enough.
 */
static void
position_announced(ResourceReleasePhase phase, bool is_commit, bool is_top_level, void *arg)
{
	if (phase != RESOURCE_RELEASE_AFTER_LOCKS || !is_top_level || names_change_level == 0)
		return;
	names_change_level = 0;
	SpinLockAcquire(&positions->mutex);
	if (positions->unannounced.value == announcing.value)
		positions->unannounced.value = 0;
	SpinLockRelease(&positions->mutex);
	announcing.value = 0;
}

static void
position_announced_at_exit(int code, Datum arg)
{
	position_announced(RESOURCE_RELEASE_AFTER_LOCKS, false, true, NULL);
}

/* Going back to a savepoint undoes the changes of names, and releases their lock. */
static void
position_subxact_callback(SubXactEvent event, SubTransactionId my_subid, SubTransactionId parent_subid, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (names_change_level < level)
		return;
	if (event == SUBXACT_EVENT_ABORT_SUB)
		names_change_level = 0;
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
		names_change_level = level - 1;
}

void
ot_position_names_change(void)
{
	static bool registered = false;

	if (!registered)
	{
		RegisterSubXactCallback(position_subxact_callback, NULL);
		RegisterResourceReleaseCallback(position_announced, NULL);
		on_shmem_exit(position_announced_at_exit, (Datum) 0);
	}
	registered = true;
	if (names_change_level == 0)
		names_change_level = GetCurrentTransactionNestLevel();
}

/*
 * The base for a key of an object whose name is about to be looked up: once
 * invalidations have been accepted, the catalogs are at least as new.
 *
 * Whoever has waited for a lock behind a change of names gets it a moment before
 * that is marked as announced.  So this waits a little: with an older base it would
 * lose to what it has waited for.
 */
OtLogIndex
ot_position_base_of_names(void)
{
	OtLogIndex	base;

	ot_position_attach();
	for (int waited = 0;; waited++)
	{
		bool		announced;

		SpinLockAcquire(&positions->mutex);
		base.value = pg_atomic_read_u64(&positions->applied);
		announced = positions->unannounced.value == 0 || positions->unannounced.value > base.value;
		if (!announced)
			base.value = positions->unannounced.value - 1;
		SpinLockRelease(&positions->mutex);
		if (likely(announced) || waited == ANNOUNCED_POLLS_MAX)
			return base;
		pg_usleep(ANNOUNCED_POLL_US);
	}
}

/*
 * Waits until the names that applied entries have changed can be seen here.
 * Returns whether any have changed since the last call, or since the session
 * began.
 */
bool
ot_position_wait_announced(void)
{
	OtLogIndex	changed_at;
	bool		changed;

	for (;;)
	{
		bool		done;

		SpinLockAcquire(&positions->mutex);
		done = positions->unannounced.value == 0;
		changed_at = positions->names_changed_at;
		SpinLockRelease(&positions->mutex);
		if (done)
			break;
		CHECK_FOR_INTERRUPTS();
		pg_usleep(ANNOUNCED_POLL_US);
	}
	AcceptInvalidationMessages();
	changed = changed_at.value > names_known.value;
	names_known = changed_at;
	return changed;
}

/* ---- functions for SQL ---- */

Datum
ot_position(PG_FUNCTION_ARGS)
{
	ot_check_running();
	PG_RETURN_INT64((int64) ot_applied_index().value);
}

/*
 * The deadline after this time from now; 0 if it is so far away that it does
 * not matter.
 */
static TimestampTz
position_deadline(const Interval *timeout)
{
	double		ms = timeout->time / 1000.0 +
		(timeout->day + timeout->month * (double) DAYS_PER_MONTH) * SECS_PER_DAY * 1000.0;

	if (ms < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("timeout must not be negative")));
	if (ms > PG_INT32_MAX * 1000.0)
		return 0;
	return TimestampTzPlusMilliseconds(ot_now(), (int64) ms);
}

/*
 * onetrip.wait_for(position bigint, timeout interval) returns bigint: waits
 * until this server shows the position, and returns its own.
 */
Datum
ot_wait_for(PG_FUNCTION_ARGS)
{
	OtLogIndex	index;
	TimestampTz deadline = 0;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	ot_check_running();
	if (PG_GETARG_INT64(0) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("log position must not be negative")));
	index.value = (uint64) PG_GETARG_INT64(0);
	if (!PG_ARGISNULL(1))
		deadline = position_deadline(PG_GETARG_INTERVAL_P(1));

	/*
	 * What the worker has carried out before the entry at hand is shown with it
	 * at the latest.  A rehearsal cannot know what that will be, so it fails
	 * where the worker might: before the entry is proposed.
	 */
	if (ot_is_apply_worker && index.value > ot_applied_index().value)
	{
		if (ot_is_rehearsing || index.value >= ot_worker->applying.value)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("onetrip.wait_for() cannot wait while an entry is applied"),
					 errdetail("The apply worker would wait for log position " UINT64_FORMAT ", and so for itself.",
							   index.value),
					 errhint("Call it in a query of its own, not in a default, a trigger or a function that an index or a constraint uses.")));
		PG_RETURN_INT64((int64) ot_applied_index().value);
	}

	if (!ot_position_wait_shown(index, deadline))
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("region \"%s\" does not show log position " UINT64_FORMAT " within the timeout",
						ot_region, index.value),
				 errdetail("Its server shows " UINT64_FORMAT ".", ot_applied_index().value)));
	(void) ot_position_wait_announced();
	PG_RETURN_INT64((int64) ot_applied_index().value);
}
