/*-------------------------------------------------------------------------
 *
 * table_counts.c
 *	  How many COMMITs of this server have changed rows of each table, and how
 *	  many transactions lost because of it.
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
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#define TABLES_MAX 1024			/* a power of two */

enum
{
	TABLE_COMMITS = 0,
	TABLE_LOST,					/* and after it those of the other kinds */
	TABLE_COUNTS = TABLE_LOST + OT_CONFLICT_KINDS
};

StaticAssertDecl(TABLE_COUNTS <= OT_OID_COUNTS_MAX, "too many counts of a table");

static OtOidCounts *tables = NULL;

PG_FUNCTION_INFO_V1(ot_count_conflicts);

static void
table_counts_attach_memory(void *memory, bool found)
{
	tables = memory;
	if (!found)
		ot_oid_counts_init(tables, TABLES_MAX);
}

void
ot_table_counts_init(void)
{
	static const OtShmemPart part = {"onetrip table counts", sizeof(OtOidCounts) * TABLES_MAX, table_counts_attach_memory};

	ot_shmem_add(&part);
}

/* A COMMIT has changed rows of these tables. */
void
ot_table_count_commit(const Oid *relids, int n)
{
	for (int i = 0; i < n; i++)
	{
		OtOidCounts *table = ot_oid_counts_of(tables, TABLES_MAX, relids[i]);

		if (table != NULL)
			pg_atomic_fetch_add_u64(&table->counts[TABLE_COMMITS], 1);
	}
}

/* A transaction has lost because of this table; InvalidOid: of none, or it is not known. */
void
ot_table_count_lost(OtConflictKind kind, Oid relid)
{
	OtOidCounts *table = OidIsValid(relid) ? ot_oid_counts_of(tables, TABLES_MAX, relid) : NULL;

	if (table != NULL)
		pg_atomic_fetch_add_u64(&table->counts[TABLE_LOST + kind], 1);
}

/*
 * onetrip.count_conflicts() returns setof record: the counts in their order.
 * Dropped tables are left out, and elsewhere than in the replicated database all
 * are.
 */
Datum
ot_count_conflicts(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	ot_check_running();
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < TABLES_MAX && ot_in_replicated_database(); i++)
	{
		Oid			relid = pg_atomic_read_u32(&tables[i].oid);
		char	   *name = OidIsValid(relid) ? get_rel_name(relid) : NULL;
		char	   *schema = name ? get_namespace_name(get_rel_namespace(relid)) : NULL;
		Datum		values[1 + TABLE_COUNTS];
		bool		nulls[1 + TABLE_COUNTS] = {0};

		if (schema == NULL)
			continue;
		values[0] = CStringGetTextDatum(psprintf("%s.%s", schema, name));
		for (int k = 0; k < TABLE_COUNTS; k++)
			values[1 + k] = Int64GetDatum((int64) pg_atomic_read_u64(&tables[i].counts[k]));
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
