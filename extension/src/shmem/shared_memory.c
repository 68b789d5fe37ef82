/*-------------------------------------------------------------------------
 *
 * shared_memory.c
 *	  Requests and initializes the shared memory of all wings.
 *
 * Each owner adds its part while the library is loaded; the two hooks here
 * do the rest.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "shmem/shmem.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#define PARTS_MAX 16

static OtShmemPart parts[PARTS_MAX];
static int	nparts = 0;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

void
ot_shmem_add(const OtShmemPart *part)
{
	if (nparts == PARTS_MAX)
		elog(ERROR, "onetrip has too many parts of shared memory");
	parts[nparts++] = *part;
}

static Size
shmem_size_of(const OtShmemPart *part)
{
	return part->compute_size != NULL ? part->compute_size() : part->size;
}

static void
shmem_request_all(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	for (int i = 0; i < nparts; i++)
		RequestAddinShmemSpace(MAXALIGN(shmem_size_of(&parts[i])));
}

static void
shmem_start_all(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (int i = 0; i < nparts; i++)
	{
		bool		found;
		Size		size = shmem_size_of(&parts[i]);
		void	   *memory = ShmemInitStruct(parts[i].name, size, &found);

		if (!found)
			memset(memory, 0, size);
		parts[i].attach(memory, found);
	}
	LWLockRelease(AddinShmemInitLock);
}

void
ot_shmem_init(void)
{
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = shmem_request_all;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = shmem_start_all;
}
