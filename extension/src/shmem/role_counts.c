/*-------------------------------------------------------------------------
 *
 * role_counts.c
 *	  What the sessions of each role have committed on this server, and how
 *	  often they lost.
 *
 * Runs in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "shmem/shmem.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"

#define ROLES_MAX 512			/* a power of two */

enum
{
	ROLE_COMMITS = 0,
	ROLE_LOST,
	ROLE_ROWS,
	ROLE_BYTES,
	ROLE_COUNTS
};

StaticAssertDecl(ROLE_COUNTS <= OT_OID_COUNTS_MAX, "too many counts of a role");

static OtOidCounts *roles = NULL;

PG_FUNCTION_INFO_V1(ot_count_roles);

static void
role_counts_attach_memory(void *memory, bool found)
{
	roles = memory;
	if (!found)
		ot_oid_counts_init(roles, ROLES_MAX);
}

void
ot_role_counts_init(void)
{
	static const OtShmemPart part = {"onetrip role counts", sizeof(OtOidCounts) * ROLES_MAX, role_counts_attach_memory};

	ot_shmem_add(&part);
}

/* A COMMIT of this session has changed so many rows, in so many bytes of operations. */
void
ot_role_count_commit(int64 rows, int64 bytes)
{
	OtOidCounts *role = ot_oid_counts_of(roles, ROLES_MAX, GetSessionUserId());

	if (role == NULL)
		return;
	pg_atomic_fetch_add_u64(&role->counts[ROLE_COMMITS], 1);
	pg_atomic_fetch_add_u64(&role->counts[ROLE_ROWS], rows);
	pg_atomic_fetch_add_u64(&role->counts[ROLE_BYTES], bytes);
}

/* A transaction of this session got 40001 because another one was first. */
void
ot_role_count_lost(void)
{
	OtOidCounts *role = ot_oid_counts_of(roles, ROLES_MAX, GetSessionUserId());

	if (role != NULL)
		pg_atomic_fetch_add_u64(&role->counts[ROLE_LOST], 1);
}

/* onetrip.count_roles() returns setof record: the counts in their order. */
Datum
ot_count_roles(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	ot_check_running();
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < ROLES_MAX; i++)
	{
		Oid			role = pg_atomic_read_u32(&roles[i].oid);
		Datum		values[1 + ROLE_COUNTS];
		bool		nulls[1 + ROLE_COUNTS] = {0};

		if (!OidIsValid(role))
			continue;
		values[0] = ObjectIdGetDatum(role);
		for (int k = 0; k < ROLE_COUNTS; k++)
			values[1 + k] = Int64GetDatum((int64) pg_atomic_read_u64(&roles[i].counts[k]));
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
