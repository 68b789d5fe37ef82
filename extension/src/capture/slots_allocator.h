/*-------------------------------------------------------------------------
 *
 * slots_allocator.h
 *	  The memory of a simplehash, so that an ERROR leaves it whole.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_SLOTS_ALLOCATOR_H
#define ONETRIP_SLOTS_ALLOCATOR_H

#include "utils/memutils.h"

/*
 * An allocator for a simplehash.  In PostgreSQL 15 that notes the new size of a
 * table before it has the memory, so that after an ERROR, which a savepoint may
 * catch, it would write where nothing is.  There is one table of each kind.
 */
#define SLOTS_ALLOCATOR(prefix, Slot) \
static inline void * \
prefix##_allocate(prefix##_hash *table, Size size) \
{ \
	static uint64 nslots; \
	void	   *slots = MemoryContextAllocExtended(table->ctx, size, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO | MCXT_ALLOC_NO_OOM); \
\
	if (slots == NULL) \
	{ \
		if (table->data != NULL) \
		{ \
			table->size = nslots; \
			table->sizemask = nslots - 1; \
			table->grow_threshold = nslots * 0.9; \
		} \
		ereport(ERROR, \
				(errcode(ERRCODE_OUT_OF_MEMORY), \
				 errmsg("out of memory"), \
				 errdetail("Failed on request of size %zu.", size))); \
	} \
	nslots = size / sizeof(Slot); \
	return slots; \
} \
static inline void \
prefix##_free(prefix##_hash *table, void *slots) \
{ \
	pfree(slots); \
}

#endif							/* ONETRIP_SLOTS_ALLOCATOR_H */
