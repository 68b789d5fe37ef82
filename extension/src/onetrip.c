/*-------------------------------------------------------------------------
 *
 * onetrip.c
 *	  Entry point of the library: installs the hooks and the workers.
 *
 * The library works only from shared_preload_libraries.  Loaded in any other
 * way, it lets its tables be read, but a write to one is an error, since
 * nobody would capture it.  In single-user mode nothing is captured either,
 * on purpose: that is how a node's server is made, and how one is repaired by
 * hand.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"

/*
 * Without ENABLE_GSS struct Port can be used where Kerberos' headers are not
 * installed.  Only its first fields are read, which are the same either way.
 */
#undef ENABLE_GSS
#include "libpq/auth.h"

#include "apply/apply.h"
#include "capture/capture.h"
#include "commit/commit.h"
#include "ddl/ddl.h"
#include "sequence/sequence.h"
#include "shmem/shmem.h"

PG_MODULE_MAGIC;

static ClientAuthentication_hook_type prev_client_authentication_hook = NULL;

void		_PG_init(void);

static void
onetrip_client_authentication(Port *port, int status)
{
	if (prev_client_authentication_hook)
		prev_client_authentication_hook(port, status);
	ot_session_watch_errors();
	ot_unread_watch();
	if (status == STATUS_OK && port->database_name != NULL &&
		strcmp(port->database_name, ot_database) == 0)
		ot_position_wait_caught_up(port->raddr.addr.ss_family == AF_UNIX ? port->user_name : NULL);
}

void
_PG_init(void)
{
	/* whatever loads it: a dump names the provider */
	ot_locking_table_init();
	if (!process_shared_preload_libraries_in_progress)
		return;

	ot_preloaded = true;
	ot_settings_init();

	prev_client_authentication_hook = ClientAuthentication_hook;
	ClientAuthentication_hook = onetrip_client_authentication;

	ot_shmem_init();
	ot_position_init();
	ot_slot_init();
	ot_conflict_init();
	ot_crossing_init();
	ot_commit_times_init();
	ot_table_counts_init();
	ot_role_counts_init();
	ot_worker_init();
	ot_temporary_function_init();
	ot_capture_init();
	ot_reads_init();
	ot_own_tables_init();
	ot_turn_init();
	ot_commit_init();
	/* inside of ddl: it looks names up and locks, for which the schema lock must be held */
	ot_sequence_init();
	ot_ddl_init();
	ot_evict_init();
	ot_jobs_init();
	ot_detach_users_init();
	ot_fresh_init();
	ot_prepared_init();
	ot_subscription_init();
	ot_explain_init();
	/* the hook that is installed last is called first */
	ot_session_init();
	ot_retry_init();
	ot_apply_register();
	ot_arrival_register();
}
