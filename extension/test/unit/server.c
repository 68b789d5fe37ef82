/*-------------------------------------------------------------------------
 *
 * server.c
 *	  Brings this session or the server into a state that tests need, or does what
 *	  C code of another extension may do.
 *
 * The library is loaded into a server that has onetrip in
 * shared_preload_libraries, and calls the functions of that loaded library: so
 * the tests cover the code that runs.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include <sys/resource.h>

#include "access/heapam.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/async.h"
#include "commands/tablecmds.h"
#include "commands/user.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "shmem/shmem.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(unit_use_socket);
PG_FUNCTION_INFO_V1(unit_use_level);
PG_FUNCTION_INFO_V1(unit_use_read_only);
PG_FUNCTION_INFO_V1(unit_leave_temporary);
PG_FUNCTION_INFO_V1(unit_refuse_verifiers);
PG_FUNCTION_INFO_V1(unit_refuse_messages);
PG_FUNCTION_INFO_V1(unit_evict_last);
PG_FUNCTION_INFO_V1(unit_lag_in_queue);
PG_FUNCTION_INFO_V1(unit_skip_oids);
PG_FUNCTION_INFO_V1(unit_limit_memory);
PG_FUNCTION_INFO_V1(unit_lack_memory_to_log);
PG_FUNCTION_INFO_V1(unit_read_behind_end);
PG_FUNCTION_INFO_V1(unit_delete_unseen);
PG_FUNCTION_INFO_V1(unit_write_at_drop);
PG_FUNCTION_INFO_V1(unit_make_table);
PG_FUNCTION_INFO_V1(unit_truncate);

/* ---- this session ---- */

/*
 * unit_use_socket(path text) returns void: from now on this session's node is
 * the one that listens there; NULL: its own one again.
 */
Datum
unit_use_socket(PG_FUNCTION_ARGS)
{
	static char *real_path = NULL;

	if (real_path == NULL)
		real_path = ot_agent_socket;
	ot_agent_close(ot_commit_agent());
	ot_agent_socket = PG_ARGISNULL(0) ? real_path :
		MemoryContextStrdup(TopMemoryContext, text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}

/*
 * unit_use_level(level int) returns void: from now on this is the format level
 * for this session.
 */
Datum
unit_use_level(PG_FUNCTION_ARGS)
{
	ot_format_level = PG_GETARG_INT32(0);
	PG_RETURN_VOID();
}

/*
 * unit_use_read_only(on bool) returns void: from now on the server is a read
 * replica, for this session.
 */
Datum
unit_use_read_only(PG_FUNCTION_ARGS)
{
	ot_read_only = PG_GETARG_BOOL(0);
	PG_RETURN_VOID();
}

/*
 * unit_leave_temporary() returns void: this session has not used its temporary
 * schema yet, as if another one had left behind in a crash what is in it.
 */
Datum
unit_leave_temporary(PG_FUNCTION_ARGS)
{
	SetTempNamespaceState(InvalidOid, InvalidOid);
	MyProc->tempNamespaceId = InvalidOid;
	PG_RETURN_VOID();
}

static void
check_no_verifier(const char *username, const char *shadow_pass, PasswordType password_type, Datum validuntil_time,
				  bool validuntil_null)
{
	if (password_type != PASSWORD_TYPE_PLAINTEXT)
		elog(ERROR, "no password can be seen in a verifier");
}

/*
 * unit_refuse_verifiers() returns void: from now on this session has a check of
 * passwords that takes none that is encrypted already.
 */
Datum
unit_refuse_verifiers(PG_FUNCTION_ARGS)
{
	check_password_hook = check_no_verifier;
	PG_RETURN_VOID();
}

static void
refuse_message(ErrorData *edata)
{
	if (edata->elevel < ERROR && edata->output_to_client)
		elog(ERROR, "the client's encoding has no such character");
}

/*
 * unit_refuse_messages(refuse boolean) returns void: while true, no message below an
 * ERROR can be sent to the client of this session, as if its encoding lacked a character.
 * The server's log must get it as well (log_min_messages).
 */
Datum
unit_refuse_messages(PG_FUNCTION_ARGS)
{
	emit_log_hook = PG_GETARG_BOOL(0) ? refuse_message : NULL;
	PG_RETURN_VOID();
}

/* ---- shared memory ---- */

/*
 * unit_evict_last() returns int: this process is marked as evicted, and the mark was
 * meant for its previous transaction.  Its state after it has noticed.
 */
Datum
unit_evict_last(PG_FUNCTION_ARGS)
{
	OtSlot	   *slot = ot_my_slot();

	SpinLockAcquire(&ot_slots->evict_mutex);
	slot->eviction.pid = MyProcPid;
	slot->eviction.lxid = OT_LXID(MyProc) - 1;
	pg_atomic_write_u32(&slot->state, OT_SLOT_EVICTED);
	SpinLockRelease(&ot_slots->evict_mutex);
	ot_eviction_check();
	PG_RETURN_INT32((int) pg_atomic_read_u32(&slot->state));
}

/* What async.c has in shared memory. */
#if PG_VERSION_NUM >= 170000
typedef int64 QueuePage;
#define QUEUE_SELF MyProcNumber
#define QUEUE_LISTENERS MaxBackends
#else
typedef int QueuePage;
#define QUEUE_SELF MyBackendId
#define QUEUE_LISTENERS (MaxBackends + 1)
#endif

typedef struct QueuePlace
{
	QueuePage	page;
	int			offset;
} QueuePlace;

typedef struct QueueListener
{
	int32		pid;
	Oid			dboid;
	int			next;
	QueuePlace	pos;
} QueueListener;

typedef struct Queue
{
	QueuePlace	head;
	QueuePlace	tail;
	QueuePage	stop_page;
	int			first;
	TimestampTz warned_at;
	QueueListener listeners[FLEXIBLE_ARRAY_MEMBER];
} Queue;

/*
 * unit_lag_in_queue(pages int) returns void: makes this session, which must
 * have run LISTEN, a listener that is so many pages of the NOTIFY queue behind.
 * These pages do not exist, so nothing may be sent before it is 0 again.
 */
Datum
unit_lag_in_queue(PG_FUNCTION_ARGS)
{
	const QueuePage all_pages = 2 * OT_NOTIFY_QUEUE_PAGES;
	bool		found;
	Queue	   *queue = ShmemInitStruct("Async Queue Control",
										offsetof(Queue, listeners) +
										QUEUE_LISTENERS * sizeof(QueueListener), &found);
	QueueListener *own = &queue->listeners[QUEUE_SELF];

	if (!found || own->pid != MyProcPid)
		elog(ERROR, "this session does not listen");
	LWLockAcquire(NotifyQueueTailLock, LW_EXCLUSIVE);
	LWLockAcquire(NotifyQueueLock, LW_EXCLUSIVE);
	own->pos = queue->head;
	own->pos.page -= PG_GETARG_INT32(0);
	/* numbers of pages begin anew before PostgreSQL 17 */
	if (PG_VERSION_NUM < 170000)
		own->pos.page = (own->pos.page + all_pages) % all_pages;
	LWLockRelease(NotifyQueueLock);
	LWLockRelease(NotifyQueueTailLock);
	PG_RETURN_VOID();
}

/* unit_skip_oids(count bigint) returns void: as if so many OIDs had been given out. */
Datum
unit_skip_oids(PG_FUNCTION_ARGS)
{
	LWLockAcquire(OidGenLock, LW_EXCLUSIVE);
	OT_OID_COUNTER->nextOid += PG_GETARG_INT64(0);
	OT_OID_COUNTER->oidCount = 0;
	LWLockRelease(OidGenLock);
	PG_RETURN_VOID();
}

/* ---- this process's memory ---- */

/*
 * Lets this process have so many bytes more than it has now; NULL: as many as it
 * wants.  The stack does not count.
 */
Datum
unit_limit_memory(PG_FUNCTION_ARGS)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_DATA, &limit) != 0)
		elog(ERROR, "getrlimit: %m");
	limit.rlim_cur = limit.rlim_max;
	if (!PG_ARGISNULL(0))
	{
		FILE	   *status = AllocateFile("/proc/self/status", "r");
		char		line[256];
		unsigned long has = 0;

		while (status != NULL && fgets(line, sizeof(line), status) != NULL && sscanf(line, "VmData: %lu kB", &has) != 1)
			 /* the next line */ ;
		if (has == 0)
			elog(ERROR, "cannot read how much memory this process has");
		FreeFile(status);
		limit.rlim_cur = has * 1024 + PG_GETARG_INT64(0);
	}
	if (setrlimit(RLIMIT_DATA, &limit) != 0)
		elog(ERROR, "setrlimit: %m");
	PG_RETURN_VOID();
}

static void
lack_memory_to_log(ErrorData *edata)
{
	if (edata->elevel == LOG_SERVER_ONLY)
		ereport(ERROR, errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory"));
}

/*
 * unit_lack_memory_to_log(boolean) returns void: while true, what goes to the server's
 * log only finds no memory.
 */
Datum
unit_lack_memory_to_log(PG_FUNCTION_ARGS)
{
	emit_log_hook = PG_GETARG_BOOL(0) ? lack_memory_to_log : NULL;
	PG_RETURN_VOID();
}

/*
 * unit_read_behind_end() returns int: reads past the end on purpose, to show
 * that the memory checker notices it.
 */
Datum
unit_read_behind_end(PG_FUNCTION_ARGS)
{
	volatile int n = 100;
	char	   *bytes = malloc(n);
	int			result;

	memset(bytes, 1, n);
	result = ((volatile char *) bytes)[n];
	free(bytes);
	PG_RETURN_INT32(result);
}

/* ---- what another extension may do ---- */

/*
 * unit_delete_unseen(table regclass, tid) returns void: deletes a row below the
 * table access method, as some extensions do, and the server in its catalogs.
 */
Datum
unit_delete_unseen(PG_FUNCTION_ARGS)
{
	Relation	rel = table_open(PG_GETARG_OID(0), RowExclusiveLock);

	simple_heap_delete(rel, (ItemPointer) PG_GETARG_POINTER(1));
	CommandCounterIncrement();
	table_close(rel, RowExclusiveLock);
	PG_RETURN_VOID();
}

static object_access_hook_type prev_object_access = NULL;
static char *at_drop = NULL;

static void
write_at_drop(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	char	   *statement = at_drop;

	if (prev_object_access)
		prev_object_access(access, class_id, object_id, sub_id, arg);
	if (access != OAT_DROP || class_id != RelationRelationId || statement == NULL)
		return;
	at_drop = NULL;
	SPI_connect();
	if (SPI_execute(statement, false, 0) < 0)
		elog(ERROR, "cannot execute \"%s\"", statement);
	SPI_finish();
}

/*
 * unit_write_at_drop(statement text) returns void: it is run when this session drops
 * the next relation.  ON COMMIT DROP does so after the callbacks for PRE_COMMIT.
 */
Datum
unit_write_at_drop(PG_FUNCTION_ARGS)
{
	if (object_access_hook != write_at_drop)
	{
		prev_object_access = object_access_hook;
		object_access_hook = write_at_drop;
	}
	at_drop = MemoryContextStrdup(TopMemoryContext, text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}

/*
 * unit_make_table(name text, temporary boolean) returns void: makes a table
 * without a statement, as C code of an extension may.
 */
Datum
unit_make_table(PG_FUNCTION_ARGS)
{
	CreateStmt *stmt = makeNode(CreateStmt);

	stmt->relation = makeRangeVar(NULL, text_to_cstring(PG_GETARG_TEXT_PP(0)), -1);
	if (PG_GETARG_BOOL(1))
		stmt->relation->relpersistence = RELPERSISTENCE_TEMP;
	stmt->tableElts = list_make1(makeColumnDef("id", INT4OID, -1, InvalidOid));
	(void) DefineRelation(stmt, RELKIND_RELATION, GetUserId(), NULL, "");
	CommandCounterIncrement();
	PG_RETURN_VOID();
}

/* unit_truncate(name text) returns void: TRUNCATE ... CASCADE, likewise. */
Datum
unit_truncate(PG_FUNCTION_ARGS)
{
	TruncateStmt *stmt = makeNode(TruncateStmt);

	stmt->relations = list_make1(makeRangeVar(NULL, text_to_cstring(PG_GETARG_TEXT_PP(0)), -1));
	stmt->behavior = DROP_CASCADE;
	ExecuteTruncate(stmt);
	PG_RETURN_VOID();
}
