/*-------------------------------------------------------------------------
 *
 * prepared.c
 *	  PREPARE TRANSACTION of a transaction that has used onetrip tables, COMMIT
 *	  PREPARED and ROLLBACK PREPARED of it.
 *
 * Nothing of a prepared transaction stays in this PostgreSQL but a row of the
 * table onetrip.prepared, as in every other.  PREPARE TRANSACTION proposes an
 * entry with the transaction's keys, which the certifier holds from then on, and
 * with its write set, which the apply worker of every region keeps in that
 * table; the local transaction is rolled back.  COMMIT PREPARED, in any region,
 * proposes an entry with which every worker applies what it has kept.  So a
 * prepared transaction outlives whatever server or region it came from.
 *
 * A transaction that has used no onetrip table is prepared by PostgreSQL, on
 * this server alone, if it is set up to prepare any.
 *
 * Runs in backends, where the statement is run: its transaction can still be
 * rolled back then.  docs/decisions/2026-11-25-prepared-transactions.md says why.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "access/twophase.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/async.h"
#include "commands/trigger.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "replication/origin.h"
#include "storage/proc.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/relmapper.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "capture/capture.h"
#include "ddl/ddl.h"
#include "sequence/sequence.h"
#include "shmem/shmem.h"

/* A row of onetrip.prepared must be a value that PostgreSQL can read and write. */
#define PREPARED_BYTES_MAX (256 * 1024 * 1024)
/* PostgreSQL's limit, with the zero at the end (twophase.c). */
#define GID_BYTES_MAX 200

/* pg_proc.dat's numbers of both pg_logical_emit_message() */
#define EMIT_MESSAGE_TEXT_OID 3577
#define EMIT_MESSAGE_BYTEA_OID 3578

static ProcessUtility_hook_type prev_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;

/* The last transaction that called pg_logical_emit_message(). */
static LocalTransactionId emitted_in = InvalidLocalTransactionId;

/* The statement that is running: for messages, and for prepared_wrap(). */
static struct
{
	OtEntryKind kind;			/* OT_ENTRY_TRANSACTION: none */
	const char *gid;
	OtLogIndex	base;			/* read before it was looked for */
	int			positions_at;	/* where in the write set those of sequences begin */
	StringInfoData operations;
}			ending;

/* ---- names ---- */

static OtHash
prepared_name(const char *gid)
{
	char	   *text = psprintf("prepared %s", gid);
	OtHash		hash = {hash_bytes_extended((const unsigned char *) text, strlen(text), ot_key_seed)};

	pfree(text);
	return hash;
}

static void
prepared_raise_in_use(const char *gid)
{
	ereport(ERROR,
			(errcode(ERRCODE_DUPLICATE_OBJECT),
			 errmsg("transaction identifier \"%s\" is already in use", gid)));
}

/*
 * Called when the entry has lost.  If that is because of its name, says so in
 * PostgreSQL's words.
 */
void
ot_prepared_raise_name(const OtVerdict *verdict)
{
	if (ending.kind == OT_ENTRY_PREPARE && verdict->key_number == 0 &&
		(verdict->outcome == OT_OUTCOME_CONFLICT || verdict->outcome == OT_OUTCOME_HELD))
		prepared_raise_in_use(ending.gid);
	if (ending.kind == OT_ENTRY_COMMIT_PREPARED && verdict->outcome == OT_OUTCOME_HELD)
		ereport(ERROR,
				(errcode(ERRCODE_TRANSACTION_ROLLBACK),
				 errmsg("prepared transaction with identifier \"%s\" cannot be committed any more", ending.gid),
				 errdetail("An operator has had an entry left out (onetrip skip) whose changes it may have seen."),
				 errhint("Use ROLLBACK PREPARED.")));
	if ((ending.kind == OT_ENTRY_COMMIT_PREPARED || ending.kind == OT_ENTRY_ROLLBACK_PREPARED) &&
		(verdict->outcome == OT_OUTCOME_CONFLICT || verdict->outcome == OT_OUTCOME_CANCELLED))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("prepared transaction with identifier \"%s\" does not exist", ending.gid),
				 errdetail("Another session, perhaps in another region, has committed it or rolled it back.")));
}

void
ot_prepared_raise_no_room(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("no more can be prepared: 10000 transactions, or 1000000 keys of all of them together, are held"),
			 errhint("Commit or roll back some of those in onetrip.prepared_xacts.")));
}

/* ---- what is prepared ---- */

/*
 * Runs a query with one parameter as superuser: the table contains rows of
 * others.  The query has up to one row with one column.
 */
static bool
prepared_query(const char *query, Oid type, Datum parameter, Datum *result)
{
	bool		found;
	bool		isnull;
	Oid			user;
	int			security;

	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, security | SECURITY_LOCAL_USERID_CHANGE);
	/* not that of a REPEATABLE READ transaction: it may have looked before */
	PushActiveSnapshot(GetLatestSnapshot());
	(void) SPI_connect();
	if (SPI_execute_with_args(query, 1, &type, &parameter, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "cannot read what is prepared");
	found = SPI_processed == 1;
	if (found)
	{
		Form_pg_attribute column = TupleDescAttr(SPI_tuptable->tupdesc, 0);

		*result = SPI_datumTransfer(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull),
									column->attbyval, column->attlen);
	}
	SPI_finish();
	PopActiveSnapshot();
	SetUserIdAndSecContext(user, security);
	return found;
}

/*
 * Is it prepared in the cluster, as far as this region shows, and whose is it?
 * Others see its row before the applied index says so, which is read first: then
 * the row's own index is the base.
 */
static bool
prepared_find(const char *gid, Oid *owner)
{
	Datum		found;
	ArrayType  *both;

	ending.base = ot_applied_index();
	if (!prepared_query("SELECT ARRAY[owner::pg_catalog.int8, log_index] FROM onetrip.prepared WHERE gid OPERATOR(pg_catalog.=) $1",
						TEXTOID, CStringGetTextDatum(gid), &found))
		return false;
	both = DatumGetArrayTypeP(found);
	*owner = (Oid) ((int64 *) ARR_DATA_PTR(both))[0];
	ending.base.value = Max(ending.base.value, ((uint64 *) ARR_DATA_PTR(both))[1]);
	return true;
}

/* Is it prepared by PostgreSQL, on this server only? */
static bool
prepared_find_local(const char *gid)
{
	Datum		owner;

	return max_prepared_xacts > 0 &&
		prepared_query("SELECT ownerid FROM onetrip.local_prepared_xact() WHERE gid OPERATOR(pg_catalog.=) $1",
					   TEXTOID, CStringGetTextDatum(gid), &owner);
}

/* ---- PREPARE TRANSACTION ---- */

static void
prepared_refuse(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot PREPARE a transaction that has %s", what)));
}

/* What PostgreSQL refuses to prepare, in its words. */
static void
prepared_check_as_postgresql(void)
{
	Datum		found;

	if (MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE)
		prepared_refuse("operated on temporary objects");
	if (XactHasExportedSnapshots())
		prepared_refuse("exported snapshots");
	AtPrepare_RelationMap();
	if (ot_write_set_has_notifications())
		prepared_refuse("executed LISTEN, UNLISTEN, or NOTIFY");
	AtPrepare_Notify();
	if (prepared_query("SELECT 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid FROM pg_catalog.pg_cursors WHERE is_holdable "
					   "AND creation_time OPERATOR(pg_catalog.>=) pg_catalog.transaction_timestamp() AND $1", BOOLOID, BoolGetDatum(true), &found))
		prepared_refuse("created a cursor WITH HOLD");
}

/*
 * What the transaction has done that is in no entry, and that only PostgreSQL's own
 * PREPARE TRANSACTION would keep.  Names are NULL, and the rest false, if there is
 * no such thing.
 *
 * Not here are, for they may be lost: statistics (ANALYZE) and counts, which are
 * made again; the time and the id of PostgreSQL's transaction, which are those of
 * the worker's in each region; advisory locks, which protect nothing in other
 * regions; locks of who has only read a table, since its definition is held by a
 * key.  What takes effect at once is not lost: positions of sequences, replication
 * slots, restore points, messages and locks that belong to no transaction.
 */
typedef struct Rest
{
	OtUsedHere	used;
	char	   *read;			/* by a SERIALIZABLE one, which minds who writes it */
	const char *definition;		/* the statement that changed one which this server alone has */
	bool		catalogs;
	bool		message;		/* of logical decoding */
	bool		origin;			/* how far its replication origin has come */
} Rest;

static void
prepared_find_rest(Rest *rest)
{
	Oid			unseen = ot_unseen_written_here();

	memset(rest, 0, sizeof(*rest));
	ot_held_locks_find_used(&rest->used);
	if (rest->used.written == NULL && OidIsValid(unseen))
		rest->used.written = psprintf("%s.%s", get_namespace_name(get_rel_namespace(unseen)),
									  get_rel_name(unseen));
	rest->read = XactIsoLevel == XACT_SERIALIZABLE ? rest->used.read : NULL;
	rest->definition = ot_ddl_changed_here_by();
	rest->catalogs = ot_unseen_catalog_rows() > 0;
	rest->message = emitted_in == OT_LXID(MyProc);
	rest->origin = replorigin_session_origin != InvalidRepOriginId &&
		replorigin_session_origin != DoNotReplicateId &&
		replorigin_session_origin_lsn != InvalidXLogRecPtr;
}

/*
 * At COMMIT: has the transaction done anything that is in no entry and that its locks
 * do not tell?  Rows of catalogs say nothing if it has run DDL, which is in the entry, or
 * has used temporary tables, which nobody misses.
 */
bool
ot_prepared_has_done_here(void)
{
	return ot_ddl_changed_here_by() != NULL || emitted_in == OT_LXID(MyProc) ||
		(!ot_write_set_has_statements() && (MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE) == 0 &&
		 ot_unseen_catalog_rows() > 0);
}

static bool
prepared_has_rest(const Rest *rest)
{
	return rest->used.foreign_table != NULL || rest->used.written != NULL ||
		rest->used.locked != NULL || rest->read != NULL || rest->definition != NULL ||
		rest->catalogs || rest->message || rest->origin;
}

static void
prepared_check_tables(const Rest *rest)
{
	/* its wrapper would roll it back at its server, and PostgreSQL's own refuses it */
	if (rest->used.foreign_table != NULL)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot PREPARE a transaction that has used onetrip tables and foreign table \"%s\"",
						rest->used.foreign_table),
				 errhint("Use a transaction of its own for each kind of table.")));
	if (rest->used.written != NULL)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot PREPARE a transaction that has used onetrip tables and written table \"%s\", which is not replicated",
						rest->used.written),
				 errhint("Use a transaction of its own for each kind of table.")));
	if (rest->used.locked != NULL)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot PREPARE a transaction that has used onetrip tables and locked rows of table \"%s\", which is not replicated",
						rest->used.locked),
				 errdetail("The locks would be gone before the transaction is committed. The checks of foreign keys take some, too."),
				 errhint("Use a transaction of its own for each kind of table.")));
	if (rest->read != NULL)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot PREPARE a transaction that has used onetrip tables and, as SERIALIZABLE, read table \"%s\", which is not replicated",
						rest->read),
				 errdetail("Nothing would keep others from changing what it has read before it is committed."),
				 errhint("Use REPEATABLE READ, or a transaction of its own for each kind of table.")));
}

/* What the entry could not bring back here, where it is rolled back. */
static void
prepared_check_own(const Rest *rest)
{
	if (rest->definition != NULL)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot PREPARE a transaction that has used onetrip tables and changed a definition that this server alone has"),
				 errdetail("The statement was %s.", rest->definition),
				 errhint("Change it in a transaction of its own, with COMMIT.")));
	if (ot_write_set_has_statements())
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot PREPARE a transaction that has run a statement which all regions run"),
				 errdetail("Changes of definitions are not kept for later."),
				 errhint("Run DDL in a transaction of its own, with COMMIT.")));
	if (ot_write_set_sets_sequence())
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot PREPARE a transaction that has called setval()"),
				 errdetail("It takes effect at once, and must not do so a second time."),
				 errhint("Call setval() in a transaction of its own.")));
	prepared_check_tables(rest);
	if (rest->message)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot PREPARE a transaction that has used onetrip tables and called pg_logical_emit_message()"),
				 errhint("Call it in a transaction of its own, with COMMIT.")));
	if (rest->origin)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot PREPARE a transaction that has used onetrip tables and set a replication origin's position"),
				 errhint("Use COMMIT.")));
	if (rest->catalogs)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot PREPARE a transaction that has used onetrip tables and changed catalogs of this server"),
				 errdetail("REINDEX and CLUSTER do that, and functions such as pg_replication_origin_create()."),
				 errhint("Do that in a transaction of its own, with COMMIT.")));
}

/* What is prepared is kept, and ended, in all regions. */
static void
prepared_check_writable(const char *statement)
{
	if (ot_read_only)
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot run %s: this server of region \"%s\" is a read replica", statement, ot_region),
				 errdetail("Every region would keep the transaction."),
				 errhint("Connect to a region with a voter; onetrip status names them.")));
}

/*
 * One role must not take all places of the cluster.  Counted is what this region
 * shows, so sessions that prepare at the same time may go beyond it by one each.
 */
static void
prepared_check_room(void)
{
	Datum		count;

	if (ot_max_prepared_transactions == 0)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("prepared transactions are disabled"),
				 errhint("Set onetrip.max_prepared_transactions to a nonzero value.")));
	if (!prepared_query("SELECT pg_catalog.count(*) FROM onetrip.prepared WHERE owner OPERATOR(pg_catalog.=) $1",
						OIDOID, ObjectIdGetDatum(GetUserId()), &count))
		elog(ERROR, "cannot count what is prepared");
	if (DatumGetInt64(count) >= ot_max_prepared_transactions)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("role \"%s\" has prepared as many transactions as it may have at a time (%d)",
						GetUserNameFromId(GetUserId(), false), ot_max_prepared_transactions),
				 errhint("Commit or roll back some of those in onetrip.prepared_xacts, or increase onetrip.max_prepared_transactions.")));
}

/* The write set becomes what every worker keeps. */
static void
prepared_wrap_prepare(void)
{
	StringInfo	out = &ending.operations;
	int			length_at;

	initStringInfo(out);
	ot_put_u8(out, OT_WRITE_SET_FORMAT);
	ot_put_u8(out, 'T');		/* the owner's name is looked up */
	ot_put_u64(out, (uint64) GetCurrentTransactionStartTimestamp());
	/*
	 * Values that it drew are given to nobody else, whatever becomes of it.  So
	 * their positions take effect now, and are not part of what is kept: by its end
	 * the sequence may have been set to another.
	 */
	ot_write_set_operations_from(ending.positions_at, out);
	ot_put_u8(out, 'P');
	ot_put_str(out, ending.gid);
	ot_put_str(out, GetUserNameFromId(GetUserId(), false));
	ot_put_u64(out, (uint64) GetCurrentTimestamp());
	length_at = out->len;
	ot_put_u32(out, 0);
	ot_write_set_operations(out);
	out->len -= ot_write_set_operations_length() - ending.positions_at;
	for (int i = 0; i < 4; i++)
		out->data[length_at + i] = (char) ((uint32) (out->len - length_at - 4) >> (8 * i));
	if (out->len > PREPARED_BYTES_MAX)
		ereport(ERROR,
				(errcode(OT_ERR_TOO_LARGE),
				 errmsg("cannot PREPARE a transaction that changes more than %d MB", PREPARED_BYTES_MAX / 1024 / 1024),
				 errhint("Split the work into several transactions.")));
	ot_write_set_wrap(OT_ENTRY_PREPARE, prepared_name(ending.gid), ending.base, out);
}

/*
 * Whether the cluster is to keep the transaction.  One with tables of its own is
 * PostgreSQL's, and so is one that has done nothing, unless PostgreSQL prepares
 * nothing: managers of transactions (XA) prepare whatever took part in one.  Any
 * other would keep its locks, which DDL of other regions waits for.  With a
 * transaction id it has done something that would be lost, unless it has drawn from
 * a sequence: PostgreSQL gives it an id for some of the values only.
 *
 * What PostgreSQL prepares has no entry, so the sequences that it drew from are
 * noted, as at COMMIT; one whose values are certified needs an entry.
 */
static bool
prepared_is_of_cluster(const Rest *rest)
{
	if (ot_commit_id_is_told())
		return false;
	if (!ot_write_set_is_empty() || ot_held_locks_need_keys())
		return true;
	if ((max_prepared_xacts == 0 || ot_held_locks_any()) && !prepared_has_rest(rest) &&
		(rest->used.sequence || !TransactionIdIsValid(GetTopTransactionIdIfAny())))
		return true;
	return max_prepared_xacts > 0 && !ot_sequence_note_used();
}

/*
 * Prepares the transaction in the cluster and rolls it back here.  false: it is
 * none that the cluster needs to know of.
 */
static bool
prepared_try(const char *gid)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	OtWrittenHere written;
	Rest		rest;
	Oid			found;

	/* As in PostgreSQL, open savepoints are released, and triggers run first. */
	while (GetCurrentTransactionNestLevel() > 1)
	{
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
	}
	AfterTriggerFireDeferred();
	ot_check_unseen_writes();
	ot_check_unseen_notifications();
	prepared_find_rest(&rest);
	if (!prepared_is_of_cluster(&rest))
	{
		if (max_prepared_xacts > 0 && prepared_find(gid, &found))
			prepared_raise_in_use(gid);
		return false;
	}
	prepared_check_writable("PREPARE TRANSACTION");
	ot_write_set_advance();		/* there may be nothing in it */

	if (strlen(gid) >= GID_BYTES_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("transaction identifier \"%s\" is too long", gid)));
	prepared_check_as_postgresql();
	prepared_check_own(&rest);
	prepared_check_room();
	ot_reads_check_may_hold();
	ot_object_check_may_hold();
	if (prepared_find(gid, &found) || prepared_find_local(gid))
		prepared_raise_in_use(gid);

	ot_sequence_lock_used();
	ot_large_object_capture_cuts();
	ending.positions_at = ot_write_set_operations_length();
	ot_held_locks_take_keys(&written, true);
	ot_reads_take_keys();
	ending.kind = OT_ENTRY_PREPARE;
	ending.gid = gid;
	ot_commit_hand_over("prepare", ending.kind, prepared_wrap_prepare);

	/* SET takes effect as with PostgreSQL's own PREPARE TRANSACTION. */
	AtEOXact_GUC(true, 1);
	ot_commit_keep_user();
	UserAbortTransactionBlock(false);
	return true;
}

/* As in PostgreSQL, PREPARE TRANSACTION ends the transaction even if it fails. */
static bool
prepared_prepare(const char *gid)
{
	bool		done;

	PG_TRY();
	{
		done = prepared_try(gid);
	}
	PG_CATCH();
	{
		UserAbortTransactionBlock(false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return done;
}

/* ---- COMMIT PREPARED, ROLLBACK PREPARED ---- */

static void
prepared_wrap_end(void)
{
	StringInfo	out = &ending.operations;

	initStringInfo(out);
	ot_put_u8(out, OT_WRITE_SET_FORMAT);
	ot_put_u8(out, 'T');		/* so may what was prepared look names up */
	ot_put_u64(out, (uint64) GetCurrentTransactionStartTimestamp());
	ot_put_u8(out, 'X');
	ot_put_str(out, ending.gid);
	ot_put_u8(out, ending.kind == OT_ENTRY_COMMIT_PREPARED);
	ot_write_set_touch();
	ot_write_set_wrap(ending.kind, prepared_name(ending.gid), ending.base, out);
}

/* false: the cluster does not know it, but perhaps PostgreSQL does. */
static bool
prepared_end(const char *gid, bool commit)
{
	Oid			owner;
	Oid			user = GetUserId();

	if (!prepared_find(gid, &owner))
	{
		/* It may have been prepared in another region just now. */
		if (prepared_find_local(gid))
			return false;
		ot_fresh_wait();
		if (!prepared_find(gid, &owner))
			return false;
	}
	if (user != owner && !superuser_arg(user))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to finish prepared transaction"),
				 errhint("Must be superuser or the user that prepared the transaction.")));
	prepared_check_writable(commit ? "COMMIT PREPARED" : "ROLLBACK PREPARED");
	ending.kind = commit ? OT_ENTRY_COMMIT_PREPARED : OT_ENTRY_ROLLBACK_PREPARED;
	ending.gid = gid;
	ot_commit_hand_over(commit ? "commit a prepared transaction" : "roll back a prepared transaction",
						ending.kind, prepared_wrap_end);
	return true;
}

/* ---- the hook ---- */

static bool
prepared_run(const TransactionStmt *stmt, ProcessUtilityContext context)
{
	if (!ot_preloaded || !IsUnderPostmaster || ot_is_apply_worker || !IsTransactionState() ||
		RecoveryInProgress() || !ot_in_replicated_database() || !OidIsValid(ot_access_method_oid()))
		return false;
	switch (stmt->kind)
	{
		case TRANS_STMT_PREPARE:
			if (!IsTransactionBlock())
				return false;
			return prepared_prepare(stmt->gid);
		case TRANS_STMT_COMMIT_PREPARED:
			PreventInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL, "COMMIT PREPARED");
			return prepared_end(stmt->gid, true);
		case TRANS_STMT_ROLLBACK_PREPARED:
			PreventInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL, "ROLLBACK PREPARED");
			return prepared_end(stmt->gid, false);
		default:
			return false;
	}
}

static bool
prepared_is_one(Node *node)
{
	TransactionStmt *stmt = (TransactionStmt *) node;

	return IsA(node, TransactionStmt) &&
		(stmt->kind == TRANS_STMT_PREPARE || stmt->kind == TRANS_STMT_COMMIT_PREPARED ||
		 stmt->kind == TRANS_STMT_ROLLBACK_PREPARED);
}

static void
ot_prepared_process_utility(PlannedStmt *pstmt, const char *query, bool read_only_tree,
							ProcessUtilityContext context, ParamListInfo params,
							QueryEnvironment *env, DestReceiver *dest,
							QueryCompletion *completion)
{
	OtUtility	call = {prev_process_utility, pstmt, pstmt->utilityStmt, query, read_only_tree,
		context, params, env, dest, completion};

	if (unlikely(prepared_is_one(pstmt->utilityStmt)))
	{
		bool		done;

		PG_TRY();
		{
			done = prepared_run((TransactionStmt *) pstmt->utilityStmt, context);
		}
		PG_FINALLY();
		{
			memset(&ending, 0, sizeof(ending));
		}
		PG_END_TRY();
		if (done)
			return;
	}
	ot_call_process_utility(&call);
}

/*
 * Heard of before the call, and without its arguments: a message that belongs to no
 * transaction, or to a savepoint that is rolled back, counts as well.
 */
static void
ot_prepared_object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, class_id, object_id, sub_id, arg);
	if (unlikely((object_id == EMIT_MESSAGE_TEXT_OID || object_id == EMIT_MESSAGE_BYTEA_OID) &&
				 access == OAT_FUNCTION_EXECUTE && class_id == ProcedureRelationId))
		emitted_in = OT_LXID(MyProc);
}

void
ot_prepared_init(void)
{
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = ot_prepared_process_utility;
	prev_object_access = object_access_hook;
	object_access_hook = ot_prepared_object_access;
}
