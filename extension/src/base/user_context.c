/*-------------------------------------------------------------------------
 *
 * user_context.c
 *	  Runs users' functions as another role, under restricted rules, and goes back.
 *
 * The rules are those of SECURITY DEFINER functions and of maintenance commands:
 * a function can neither return to the role of before with SET ROLE nor leave
 * anything behind for what runs next, such as temporary tables.
 *
 * A process of ours has no client.  Its session user is a superuser, and that is
 * what session_user tells a function, and others' functions and policies that ask
 * for it.  So the role becomes the session user as well.  That is done by the
 * setting, since the end of a (sub)transaction that fails puts back settings, but
 * not what miscinit.c keeps.  In a session of a client the session user stays who
 * has logged in.
 *
 * Runs in every process that runs users' functions for somebody else.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_proc.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

/*
 * Called once in a process of ours.  PostgreSQL starts it with a session user and
 * without a value of the setting, to which nothing could be put back.
 */
void
ot_user_set_up(void)
{
	StartTransactionCommand();
	SetConfigOption("session_authorization", GetUserNameFromId(BOOTSTRAP_SUPERUSERID, false),
					PGC_SUSET, PGC_S_OVERRIDE);
	CommitTransactionCommand();
}

/*
 * Makes the role the session user, until the caller's nest level of settings ends.
 * The current user stays.
 */
void
ot_user_log_in(Oid role)
{
	Oid			user;
	int			security_context;

	if (GetSessionUserId() == role || !(ot_is_apply_worker || ot_builds_indexes))
		return;
	OT_ASSERT(GetConfigOption("session_authorization", false, false) != NULL);
	GetUserIdAndSecContext(&user, &security_context);
	/* the setting cannot be changed under restricted rules, and takes the current user with it */
	SetUserIdAndSecContext(user, 0);
	(void) set_config_option("session_authorization", GetUserNameFromId(role, false), PGC_SUSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, ERROR, false);
	SetUserIdAndSecContext(user, security_context);
}

/* Ends a nest level in which the session user may have been changed. */
void
ot_user_log_out(int nest_level)
{
	Oid			user;
	int			security_context;

	GetUserIdAndSecContext(&user, &security_context);
	SetUserIdAndSecContext(user, 0);
	AtEOXact_GUC(false, nest_level);
	SetUserIdAndSecContext(user, security_context);
}

/*
 * The role becomes the current user, and can change nothing.  own_settings: what it
 * sets is undone, and it becomes the session user, too.  After an ERROR, the end of
 * the transaction restores all this.
 */
void
ot_user_enter(OtUserContext *saved, Oid role, bool own_settings)
{
	GetUserIdAndSecContext(&saved->user, &saved->security_context);
	saved->read_only = XactReadOnly;
	saved->nest_level = 0;
	if (own_settings)
	{
		saved->nest_level = NewGUCNestLevel();
		ot_user_log_in(role);
	}
	SetUserIdAndSecContext(role, saved->security_context | OT_USER_RESTRICTED);
	XactReadOnly = true;
}

void
ot_user_leave(const OtUserContext *saved)
{
	/* it may put back a transaction_read_only that was ours */
	if (saved->nest_level > 0)
		ot_user_log_out(saved->nest_level);
	XactReadOnly = saved->read_only;
	SetUserIdAndSecContext(saved->user, saved->security_context);
}

/* For a function of ours to which calls of this one go: who may not call the one may not call the other. */
void
ot_user_check_may_call(Oid function)
{
	if (OT_FUNCTION_ACLCHECK(function, GetUserId()) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, get_func_name(function));
}
