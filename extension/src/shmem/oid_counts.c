/*-------------------------------------------------------------------------
 *
 * oid_counts.c
 *	  Counters for each object of some kind, in an array of fixed size.
 *
 * The object's OID says where to look; one that finds no place there is not
 * counted.  Nothing is allocated, and no lock is taken.  A restart of the server
 * begins anew.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "shmem/shmem.h"

#include "common/hashfn.h"

/* Places that are looked at for an object. */
#define PROBES 32

void
ot_oid_counts_init(OtOidCounts *places, int nplaces)
{
	for (int i = 0; i < nplaces; i++)
	{
		pg_atomic_init_u32(&places[i].oid, InvalidOid);
		for (int k = 0; k < OT_OID_COUNTS_MAX; k++)
			pg_atomic_init_u64(&places[i].counts[k], 0);
	}
}

/* NULL: there is no place for it. */
OtOidCounts *
ot_oid_counts_of(OtOidCounts *places, int nplaces, Oid oid)
{
	uint32		at = murmurhash32(oid);

	for (int probe = 0; probe < PROBES; probe++, at++)
	{
		OtOidCounts *place = &places[at % nplaces];
		uint32		there = pg_atomic_read_u32(&place->oid);

		if (there == InvalidOid && pg_atomic_compare_exchange_u32(&place->oid, &there, oid))
			return place;
		if (there == oid)
			return place;
	}
	return NULL;
}
