/*-------------------------------------------------------------------------
 *
 * role_counts.c
 *	  What the sessions of each role have committed on this server, and how
 *	  often they lost.
 *
 * Roles are found by their OID in an array of fixed size; one that finds no
 * place there is not counted.  A COMMIT adds to three counters, and allocates
 * nothing.  A restart of the server begins anew.
 *
 * Runs in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "shmem/shmem.h"

#include "common/hashfn.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"

#define ROLES_MAX 512			/* a power of two */
/* Places that are looked at for a role. */
#define PROBES 32

typedef struct RoleCounts
{
	pg_atomic_uint32 role;		/* InvalidOid: free; never changed again */
	pg_atomic_uint64 commits;
	pg_atomic_uint64 lost;
	pg_atomic_uint64 rows;
	pg_atomic_uint64 bytes;
} RoleCounts;

static RoleCounts *roles = NULL;

PG_FUNCTION_INFO_V1(ot_count_roles);

static void
role_counts_attach_memory(void *memory, bool found)
{
	roles = memory;
	for (int i = 0; !found && i < ROLES_MAX; i++)
	{
		pg_atomic_init_u32(&roles[i].role, InvalidOid);
		pg_atomic_init_u64(&roles[i].commits, 0);
		pg_atomic_init_u64(&roles[i].lost, 0);
		pg_atomic_init_u64(&roles[i].rows, 0);
		pg_atomic_init_u64(&roles[i].bytes, 0);
	}
}

void
ot_role_counts_init(void)
{
	static const OtShmemPart part = {"onetrip role counts", sizeof(RoleCounts) * ROLES_MAX, role_counts_attach_memory};

	ot_shmem_add(&part);
}

/* NULL: there is no place for it. */
static RoleCounts *
role_counts_of(Oid role)
{
	uint32		at = murmurhash32(role);

	for (int probe = 0; probe < PROBES; probe++, at++)
	{
		RoleCounts *counts = &roles[at % ROLES_MAX];
		uint32		there = pg_atomic_read_u32(&counts->role);

		if (there == InvalidOid && pg_atomic_compare_exchange_u32(&counts->role, &there, role))
			return counts;
		if (there == role)
			return counts;
	}
	return NULL;
}

/* A COMMIT of this session has changed so many rows, in so many bytes of operations. */
void
ot_role_count_commit(int64 rows, int64 bytes)
{
	RoleCounts *counts = role_counts_of(GetSessionUserId());

	if (counts == NULL)
		return;
	pg_atomic_fetch_add_u64(&counts->commits, 1);
	pg_atomic_fetch_add_u64(&counts->rows, rows);
	pg_atomic_fetch_add_u64(&counts->bytes, bytes);
}

/* A transaction of this session got 40001 because another one was first. */
void
ot_role_count_lost(void)
{
	RoleCounts *counts = role_counts_of(GetSessionUserId());

	if (counts != NULL)
		pg_atomic_fetch_add_u64(&counts->lost, 1);
}

/* onetrip.count_roles() returns setof record. */
Datum
ot_count_roles(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	ot_check_running();
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < ROLES_MAX; i++)
	{
		RoleCounts *counts = &roles[i];
		Oid			role = pg_atomic_read_u32(&counts->role);
		Datum		values[5];
		bool		nulls[5] = {0};

		if (!OidIsValid(role))
			continue;
		values[0] = ObjectIdGetDatum(role);
		values[1] = Int64GetDatum((int64) pg_atomic_read_u64(&counts->commits));
		values[2] = Int64GetDatum((int64) pg_atomic_read_u64(&counts->lost));
		values[3] = Int64GetDatum((int64) pg_atomic_read_u64(&counts->rows));
		values[4] = Int64GetDatum((int64) pg_atomic_read_u64(&counts->bytes));
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
