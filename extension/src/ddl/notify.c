/*-------------------------------------------------------------------------
 *
 * notify.c
 *	  NOTIFY: notifications of a transaction, for listeners in every region.
 *
 * PostgreSQL keeps the notifications of a transaction in a list that belongs to
 * async.c alone, and queues them for the listeners of its own server at COMMIT.
 * That part stays as it is.  The write set contains them as well, and the apply
 * worker of each other region sends them in the transaction of the entry: in
 * log order, and if and when the transaction commits there.  If the worker
 * commits an entry in place of its session, the session's own notifications
 * have been rolled back, so each listener gets them once.
 *
 * They are noted where SQL can ask for them: NOTIFY in the utility hook,
 * pg_notify() in a function of ours to which the planner redirects it
 * (sequence/sequence.c).  C code can call Async_Notify() past both of them.  If
 * it does so in a transaction that has not run NOTIFY by way of SQL, the COMMIT
 * fails: only then can it be told.
 *
 * A function that the worker runs for a statement or an index sends nothing,
 * since what it sent where the transaction ran is in the entry.
 *
 * A queue that is full, because a listener has not read for a long time, makes
 * PostgreSQL fail the COMMIT.  An entry that is decided must not fail, so it is
 * checked beforehand: where the transaction runs before it is proposed, with
 * much room to spare, and in the worker, which then sends nothing and logs it.
 *
 * Runs in backends and in the apply worker.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl.h"

#include "access/slru.h"
#include "access/xact.h"
#include "catalog/pg_proc.h"
#include "commands/async.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "capture/capture.h"

/* PostgreSQL's limits, which async.c does not export; both without the end. */
#define CHANNEL_BYTES NAMEDATALEN
#define PAYLOAD_BYTES (BLCKSZ - NAMEDATALEN - 128)

/* In the queue a notification has a header, and both its strings end with 0. */
#define QUEUED_BYTES(strings) ((strings) + 2 + 16 + sizeof(int))

/* The part of the queue that is left free for entries of other regions. */
#define RESERVED_PART 16

PG_FUNCTION_INFO_V1(ot_notify);

static ProcessUtility_hook_type prev_process_utility = NULL;

/* The transaction in which LISTEN or UNLISTEN ran last. */
static LocalTransactionId listened_in = InvalidLocalTransactionId;

/* ---- where the transaction runs ---- */

static bool
notify_is_captured(void)
{
	return ot_preloaded && IsUnderPostmaster && !ot_is_apply_worker && ot_in_replicated_database();
}

/*
 * Does it run in every region?  Then what it notifies is told where the row or the
 * statement comes from, or nowhere.
 */
static bool
notify_is_left_out(void)
{
	return ot_is_apply_worker || ot_builds_indexes;
}

/*
 * onetrip.pg_notify(text, text): pg_notify() for every region.  Calls of
 * pg_notify() are redirected here.
 */
Datum
ot_notify(PG_FUNCTION_ARGS)
{
	const char *channel = PG_ARGISNULL(0) ? "" : text_to_cstring(PG_GETARG_TEXT_PP(0));
	const char *payload = PG_ARGISNULL(1) ? "" : text_to_cstring(PG_GETARG_TEXT_PP(1));

	ot_user_check_may_call(OT_PG_NOTIFY_OID);
	PreventCommandDuringRecovery("NOTIFY");
	if (notify_is_left_out())
		PG_RETURN_VOID();
	/* it checks what it is given */
	Async_Notify(channel, payload);
	if (notify_is_captured())
		ot_write_set_notification(channel, payload);
	PG_RETURN_VOID();
}

static void
ot_notify_process_utility(PlannedStmt *pstmt, const char *query, bool read_only_tree,
						  ProcessUtilityContext context, ParamListInfo params,
						  QueryEnvironment *env, DestReceiver *dest, QueryCompletion *completion)
{
	OtUtility	call = {prev_process_utility, pstmt, pstmt->utilityStmt, query, read_only_tree,
		context, params, env, dest, completion};
	Node	   *node = pstmt->utilityStmt;
	/* that of a CALL with parameters may be gone once it has ended a transaction */
	NodeTag		tag = nodeTag(node);

	if (tag == T_NotifyStmt && notify_is_left_out())
		return;
	ot_call_process_utility(&call);
	switch (tag)
	{
		case T_NotifyStmt:
			if (notify_is_captured())
			{
				NotifyStmt *notify = (NotifyStmt *) node;

				ot_write_set_notification(notify->conditionname,
										  notify->payload ? notify->payload : "");
			}
			break;
		case T_ListenStmt:
		case T_UnlistenStmt:
		case T_DiscardStmt:
			listened_in = OT_LXID(MyProc);
			break;
		default:
			break;
	}
}

/*
 * Raises ERROR if this transaction is going to send notifications that were not
 * seen.  PostgreSQL does not say what it is going to send, but it does say that
 * there is something, when it refuses to prepare such a transaction.  LISTEN and
 * UNLISTEN count there as well, and notifications that were seen, so nothing can
 * be told after one of these.
 */
void
ot_check_unseen_notifications(void)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool pending = false;

	if (listened_in == OT_LXID(MyProc) || ot_write_set_has_notifications() || !notify_is_captured())
		return;
	PG_TRY();
	{
		error_context_stack = NULL;
		AtPrepare_Notify();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
		pending = true;
	}
	PG_END_TRY();
	if (pending)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot replicate a notification that C code sends by itself"),
				 errdetail("A function written in C (such as the trigger function of the extension tcn) has sent it without NOTIFY and pg_notify(), so other regions would not get it."),
				 errhint("Call pg_notify() instead, for example in a trigger function in PL/pgSQL.")));
}

/* ---- the server's queue ---- */

/*
 * Has the queue room for so many bytes, and for a part of it besides (0: for
 * nothing else)?  A notification does not cross the end of a page.
 */
static bool
notify_queue_has_room(uint64 bytes, int reserved_part)
{
	double		pages = OT_NOTIFY_QUEUE_PAGES;
	double		used = DatumGetFloat8(DirectFunctionCall1(pg_notification_queue_usage, (Datum) 0));
	double		needed = 2.0 * bytes / BLCKSZ + 2 + OT_NOTIFY_QUEUE_UNUSED;

	if (reserved_part > 0)
		needed += pages / reserved_part;
	return (1.0 - used) * pages >= needed;
}

/* Raises ERROR, as PostgreSQL does, while nothing has been proposed yet. */
void
ot_notify_check_queue(void)
{
	/* the shortest one has 6 bytes there, and 20 in the queue */
	if (notify_queue_has_room(ot_write_set_notification_bytes() * 4, RESERVED_PART))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("too many notifications in the NOTIFY queue"),
			 errdetail("Nothing was committed. A session of region \"%s\" that listens has read nothing for a long time.",
					   ot_region),
			 errhint("End that session: it is in a transaction, see pg_stat_activity. SELECT pg_notification_queue_usage() says how full the queue is.")));
}

/* ---- in other regions ---- */

/* Is it the op byte of a notification that comes next? */
bool
ot_notify_comes_next(const OtReader *r)
{
	return r->at < r->end && *r->at == 'N';
}

static void
notify_read(OtReader *r, char **channel, char **payload)
{
	*channel = ot_get_str(r);
	*payload = ot_get_str(r);
	if (**channel == '\0' || strlen(*channel) >= CHANNEL_BYTES || strlen(*payload) >= PAYLOAD_BYTES)
		ereport(ERROR,
				(errcode(OT_ERR_PROTOCOL),
				 errmsg("a notification in a write set has no channel, or is too long")));
}

/* Sends this notification and those that follow it, after the op byte 'N'. */
void
ot_notify_apply(OtReader *r)
{
	OtReader	all = *r;
	uint64		bytes = 0;
	int			count = 0;
	bool		send;
	char	   *channel;
	char	   *payload;

	for (;;)
	{
		notify_read(&all, &channel, &payload);
		bytes += QUEUED_BYTES(strlen(channel) + strlen(payload));
		count++;
		pfree(channel);
		pfree(payload);
		if (!ot_notify_comes_next(&all))
			break;
		(void) ot_get_u8(&all);
	}
	send = !ot_is_rehearsing && notify_queue_has_room(bytes, 0);
	if (!send && !ot_is_rehearsing)
		ereport(LOG,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%d notifications of another region are not sent: the NOTIFY queue of this server is full", count),
				 errdetail("A session that listens has read nothing for a long time."),
				 errhint("End that session: it is in a transaction, see pg_stat_activity.")));
	for (int i = 0; i < count; i++)
	{
		if (i > 0)
			(void) ot_get_u8(r);
		notify_read(r, &channel, &payload);
		if (send)
			Async_Notify(channel, payload);
		pfree(channel);
		pfree(payload);
	}
}

void
ot_notify_init(void)
{
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = ot_notify_process_utility;
}
