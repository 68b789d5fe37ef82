/*-------------------------------------------------------------------------
 *
 * onetrip.c
 *	  Entry point of the library: installs the hooks and the workers.
 *
 * The library works only from shared_preload_libraries.  Loaded any other
 * way it can describe itself, and its tables can be read, but a write to one
 * is an error, since nobody would capture it.  In single-user mode nothing
 * is captured either, on purpose: that is how a node is made, and how one is
 * repaired by hand.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "onetrip.h"

#include "commands/dbcommands.h"
#include "access/xact.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/builtins.h"

/* Only the head of struct Port is read; Kerberos' headers need not be here. */
#undef ENABLE_GSS
#include "libpq/auth.h"

#include "apply.h"
#include "session.h"
#include "turn.h"

PG_MODULE_MAGIC;

bool		ot_preloaded = false;
bool		ot_is_apply_worker = false;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static ClientAuthentication_hook_type prev_client_authentication_hook = NULL;

void		_PG_init(void);

static void
ot_shmem_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(ot_turn_shmem_size());
}

static void
ot_shmem_startup(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();
	ot_turn_shmem_init();
}

static void
ot_client_authentication(Port *port, int status)
{
	if (prev_client_authentication_hook)
		prev_client_authentication_hook(port, status);
	ot_session_watch_errors();
	if (status == STATUS_OK && port->database_name != NULL &&
		strcmp(port->database_name, ot_database) == 0)
		ot_turn_wait_caught_up();
}

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;

	ot_preloaded = true;
	ot_settings_init();

	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = ot_shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = ot_shmem_startup;
	prev_client_authentication_hook = ClientAuthentication_hook;
	ClientAuthentication_hook = ot_client_authentication;

	ot_capture_init();
	ot_commit_init();
	ot_ddl_init();
	ot_sequence_init();
	ot_evict_init();
	/* last, so that it is asked first */
	ot_session_init();
	ot_apply_register();
}

/*
 * Is this backend connected to the replicated database?  Asked once: neither
 * the setting nor the backend's database can change.
 */
bool
ot_in_replicated_database(void)
{
	static int	answer = -1;

	if (answer < 0)
	{
		char	   *name;

		if (!OidIsValid(MyDatabaseId) || !IsTransactionState())
			return false;
		name = get_database_name(MyDatabaseId);
		answer = (name != NULL && ot_database != NULL &&
				  strcmp(name, ot_database) == 0) ? 1 : 0;
		if (name)
			pfree(name);
	}
	return answer == 1;
}

/* Do changes made by this process, now, belong into a write set? */
bool
ot_capturing(void)
{
	return ot_preloaded && IsUnderPostmaster && !ot_is_apply_worker &&
		(!creating_extension || ot_ddl_in_event_trigger) && ot_in_replicated_database();
}

/* For SQL functions that make no sense anywhere else. */
void
ot_check_running(void)
{
	if (!ot_preloaded || !IsUnderPostmaster || !ot_in_replicated_database())
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("this is not the replicated database of a running node"),
				 ot_database ? errhint("Connect to database \"%s\" of a server that a node runs.", ot_database) : 0));
	ot_turn_attach();
}

/*
 * A read replica takes no change of what is replicated.  It is no setting of
 * transactions or sessions, so nothing that a client says can get around it.
 */
void
ot_check_writable(void)
{
	if (unlikely(ot_read_only) && !ot_is_apply_worker)
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot change what is replicated: this server of region \"%s\" is a read replica", ot_region),
				 errdetail("Temporary tables may be written, and tables of another access method."),
				 errhint("Connect to a region with a voter; onetrip status names them.")));
}
