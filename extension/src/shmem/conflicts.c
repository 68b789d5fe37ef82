/*-------------------------------------------------------------------------
 *
 * conflicts.c
 *	  The transactions of this server that lost against others lately.
 *
 * A transaction that gets 40001 because another one was first notes it here, in
 * a ring in shared memory: a few hundred bytes, under a spinlock, since some do
 * it while an error is reported and may hold any LWLock.  Nothing is allocated
 * for it.  A restart of the server empties the ring.
 *
 * Runs in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "shmem/shmem.h"

#include "catalog/pg_authid.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rls.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#define CONFLICTS_KEPT 1000

typedef struct Conflict
{
	TimestampTz at;
	TimestampTz noted;			/* the same moment in ot_now(), for its age */
	OtConflictKind kind;
	Oid			role;
	Oid			relid;			/* InvalidOid: no table, or not known */
	OtConflictKey key;
	int			pid;
	OtLogIndex	entry;			/* that it lost to */
	char		region[NAMEDATALEN];	/* of that entry */
	char		table[NAMEDATALEN * 2];
	char		application[NAMEDATALEN];
} Conflict;

typedef struct Conflicts
{
	slock_t		mutex;
	uint64		count;			/* since the server started */
	Conflict	items[CONFLICTS_KEPT];	/* number n is at n % CONFLICTS_KEPT */
} Conflicts;

static Conflicts *conflicts = NULL;
static OtLogIndex own_last;
static OtConflictKind own_last_kind;

PG_FUNCTION_INFO_V1(ot_recent_conflicts);
PG_FUNCTION_INFO_V1(ot_recent_conflicts_by_age);

#define CONFLICT_COLUMNS 9		/* of version 0.1 of the objects */

static void
conflict_attach_memory(void *memory, bool found)
{
	conflicts = memory;
	if (!found)
		SpinLockInit(&conflicts->mutex);
}

void
ot_conflict_init(void)
{
	static const OtShmemPart part = {"onetrip conflicts", sizeof(Conflicts), conflict_attach_memory};

	ot_shmem_add(&part);
}

/*
 * This process' transaction has lost; `table` is the table's name with its
 * schema, and `key` may be NULL.
 */
void
ot_conflict_note(OtConflictKind kind, Oid relid, const char *table, const OtConflictKey *key,
				 const char *region, OtLogIndex entry)
{
	Conflict	conflict;

	memset(&conflict, 0, sizeof(conflict));
	conflict.at = GetCurrentTimestamp();
	conflict.noted = ot_now();
	conflict.kind = kind;
	conflict.role = GetSessionUserId();
	conflict.relid = relid;
	if (key != NULL)
		conflict.key = *key;
	conflict.pid = MyProcPid;
	conflict.entry = entry;
	strlcpy(conflict.region, region, sizeof(conflict.region));
	strlcpy(conflict.table, table, sizeof(conflict.table));
	strlcpy(conflict.application, application_name ? application_name : "",
			sizeof(conflict.application));
	SpinLockAcquire(&conflicts->mutex);
	conflicts->items[conflicts->count++ % CONFLICTS_KEPT] = conflict;
	SpinLockRelease(&conflicts->mutex);
	ot_table_count_lost(kind, relid);
	ot_role_count_lost();
	own_last = entry;
	own_last_kind = kind;
}

/* The entry that a transaction of this process lost to last; 0: none has lost. */
OtLogIndex
ot_conflict_own_last(void)
{
	return own_last;
}

/* Why it lost. */
OtConflictKind
ot_conflict_own_last_kind(void)
{
	return own_last_kind;
}

/* Copies number n; false if it is not there any more, or not yet. */
static bool
conflict_read(uint64 n, Conflict *conflict)
{
	bool		there;

	SpinLockAcquire(&conflicts->mutex);
	there = n < conflicts->count && n + CONFLICTS_KEPT >= conflicts->count;
	if (there)
		*conflict = conflicts->items[n % CONFLICTS_KEPT];
	SpinLockRelease(&conflicts->mutex);
	return there;
}

static const char *
conflict_kind_name(OtConflictKind kind)
{
	switch (kind)
	{
		case OT_CONFLICT_CERTIFIED:
			return "certification";
		case OT_CONFLICT_TOO_OLD:
			return "too old";
		case OT_CONFLICT_EVICTED:
			return "evicted";
		case OT_CONFLICT_RESERVED:
			return "reserved";
	}
	return "?";
}

/* A name that was cut may end within a character. */
static Datum
conflict_text(char *name, Size size)
{
	name[pg_mbcliplen(name, strlen(name), size - 1)] = '\0';
	return CStringGetTextDatum(name);
}

/*
 * May the user see the values of the key?  As with a unique violation: who may
 * SELECT these columns of the table, unless its rows are under row security.
 */
static bool
conflict_may_see_key(const Conflict *conflict)
{
	Oid			relid = conflict->relid;
	Oid			user = GetUserId();
	bool		missing = false;

	/* in another database the OID is another table's */
	if (conflict->key.ncolumns == 0 || !OidIsValid(relid) || !ot_in_replicated_database() ||
		!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)) ||
		check_enable_rls(relid, user, true) == RLS_ENABLED)
		return false;
	if (pg_class_aclcheck_ext(relid, user, ACL_SELECT, &missing) == ACLCHECK_OK)
		return true;
	for (int i = 0; i < conflict->key.ncolumns; i++)
	{
		if (pg_attribute_aclcheck_ext(relid, conflict->key.columns[i], user, ACL_SELECT,
									  &missing) != ACLCHECK_OK)
			return false;
	}
	return true;
}

static Datum
conflict_age(const Conflict *conflict)
{
	Interval   *age = palloc0(sizeof(Interval));

	age->time = ot_now() - conflict->noted;
	return IntervalPGetDatum(age);
}

/* Others' conflicts are for those who may read all statistics. */
static Datum
conflict_list(FunctionCallInfo fcinfo, bool with_age)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	bool		all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	uint64		n = 0;
	Conflict	conflict;

	ot_check_running();
	InitMaterializedSRF(fcinfo, 0);
	SpinLockAcquire(&conflicts->mutex);
	if (conflicts->count > CONFLICTS_KEPT)
		n = conflicts->count - CONFLICTS_KEPT;
	SpinLockRelease(&conflicts->mutex);
	/* some may be overwritten meanwhile */
	for (uint64 end = n + CONFLICTS_KEPT; n < end; n++)
	{
		Datum		values[CONFLICT_COLUMNS + 1];
		bool		nulls[CONFLICT_COLUMNS + 1] = {0};

		if (!conflict_read(n, &conflict) ||
			(!all && !has_privs_of_role(GetUserId(), conflict.role)))
			continue;
		values[0] = TimestampTzGetDatum(conflict.at);
		values[1] = CStringGetTextDatum(conflict_kind_name(conflict.kind));
		values[2] = conflict_text(conflict.table, sizeof(conflict.table));
		nulls[2] = conflict.table[0] == '\0';
		nulls[3] = !conflict_may_see_key(&conflict);
		if (!nulls[3])
			values[3] = conflict_text(conflict.key.text, sizeof(conflict.key.text));
		values[4] = CStringGetTextDatum(GetUserNameFromId(conflict.role, true) ?
										GetUserNameFromId(conflict.role, true) : "(dropped)");
		values[5] = conflict_text(conflict.application, sizeof(conflict.application));
		values[6] = Int32GetDatum(conflict.pid);
		values[7] = conflict_text(conflict.region, sizeof(conflict.region));
		nulls[7] = conflict.region[0] == '\0';
		values[8] = Int64GetDatum((int64) conflict.entry.value);
		if (with_age)
			values[9] = conflict_age(&conflict);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* onetrip.recent_conflicts_by_age() returns setof record. */
Datum
ot_recent_conflicts_by_age(PG_FUNCTION_ARGS)
{
	return conflict_list(fcinfo, true);
}

/* onetrip.recent_conflicts(), of version 0.1 of the objects. */
Datum
ot_recent_conflicts(PG_FUNCTION_ARGS)
{
	return conflict_list(fcinfo, false);
}
