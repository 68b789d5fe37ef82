/*-------------------------------------------------------------------------
 *
 * unread.c
 *	  What is sent while interrupts are held, to a client that may not read it.
 *
 * PostgreSQL waits until its client takes what it is sent.  A session that is told
 * to end does so in this wait, but not while interrupts are held, and they are when
 * an ERROR is sent (before its transaction is rolled back), in COMMIT, and when the
 * process exits.  Whoever waits for a lock of that session would wait as long as its
 * client pleases, and so would every change of another region.
 *
 * So what is sent then goes by here.  Its client is waited for as well, but not
 *	- once the session is told to end: by an eviction, pg_terminate_backend() or a
 *	  shutdown;
 *	- for longer than a moment where nobody would know that it is to be told: from
 *	  the proposal of an entry, whose turn comes before all later ones, until the locks
 *	  are released;
 *	- at all in a critical section, and when the process exits.
 *
 * The client has then got a part of a message, so nothing more is sent to it, and the
 * session ends as soon as it can.  A message is not copied whole: it may be large.
 *
 * Runs in backends that have a client, in any state: with locks, in the middle of an
 * error, in critical sections.  So it allocates nothing, waits for no latch and raises no
 * ERROR.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include <poll.h>
#include <signal.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_bswap.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "utils/resowner.h"

/* as in onetrip.c: Kerberos' headers need not be installed */
#undef ENABLE_GSS
#include "libpq/libpq.h"

/* A signal interrupts the wait, unless it comes just before that. */
#define LOOK_MS 100

static const PQcommMethods *socket_methods = NULL;

/* Others wait for this transaction, and nobody tells the session to end. */
static bool is_waited_for = false;
static TimestampTz give_up_at;	/* in all; 0: its client has taken everything at once */

/*
 * As in libpq, nothing is sent while something else is: what the library for TLS says,
 * and what a handler of SIGQUIT does.
 */
static bool is_sending = false;

/* ---- nobody ---- */

static int
unread_flush_nothing(void)
{
	return 0;
}

static bool
unread_nothing_pending(void)
{
	return false;
}

static int
unread_drop(char type, const char *message, size_t length)
{
	return 0;
}

static void
unread_drop_noblock(char type, const char *message, size_t length)
{
}

static void
unread_reset_nothing(void)
{
}

static const PQcommMethods nobody = {
	.comm_reset = unread_reset_nothing,
	.flush = unread_flush_nothing,
	.flush_if_writable = unread_flush_nothing,
	.is_send_pending = unread_nothing_pending,
	.putmessage = unread_drop,
	.putmessage_noblock = unread_drop_noblock,
};

/* ---- while interrupts are held ---- */

static bool
unread_is_enough(void)
{
	if (ProcDiePending || proc_exit_inprogress || CritSectionCount > 0 || !PostmasterIsAlive())
		return true;
	if (!is_waited_for)
		return false;
	if (give_up_at == 0)
		give_up_at = TimestampTzPlusMilliseconds(ot_now(), CANCEL_GRACE_MS);
	return ot_ms_until(give_up_at) == 0;
}

/* The client has no room.  Returns false if it is not to be waited for any more. */
static bool
unread_wait(void)
{
	struct pollfd client = {.fd = MyProcPort->sock, .events = POLLOUT};

	if (unread_is_enough())
	{
		PqCommMethods = &nobody;
		if (!ProcDiePending && !proc_exit_inprogress)
		{
			ereport(COMMERROR,
					(errmsg("ending a session whose client does not read while others wait for it")));
			(void) kill(MyProcPid, SIGTERM);
		}
		return false;
	}
	pgstat_report_wait_start(WAIT_EVENT_CLIENT_WRITE);
	(void) poll(&client, 1, LOOK_MS);
	pgstat_report_wait_end();
	return true;
}

/* What was to be sent before. */
static bool
unread_send_rest(void)
{
	for (;;)
	{
		if (socket_methods->flush_if_writable() != 0)
			return false;
		if (!socket_methods->is_send_pending())
			return true;
		if (!unread_wait())
			return false;
	}
}

static bool
unread_send(const char *bytes, size_t length)
{
	while (length > 0)
	{
		ssize_t		sent;

		MyProcPort->noblock = true;
		sent = secure_write(MyProcPort, unconstify(char *, bytes), length);
		if (sent > 0)
		{
			bytes += sent;
			length -= sent;
		}
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
		{
			if (!unread_wait())
				return false;
		}
		else if (errno != EINTR)
		{
			/* as in PostgreSQL, the session ends as soon as it can */
			PqCommMethods = &nobody;
			ClientConnectionLost = 1;
			InterruptPending = 1;
			return false;
		}
	}
	return true;
}

#define HEADER_LEN 5

static int
unread_put_held(char type, const char *message, size_t length)
{
	uint32		count = pg_hton32((uint32) length + 4);
	char		bytes[2048];
	size_t		with_header = Min(length, sizeof(bytes) - HEADER_LEN);

	/* most errors are as short as that, and leave at once; a message may be empty, and is NULL then */
	bytes[0] = type;
	memcpy(&bytes[1], &count, sizeof(count));
	if (with_header > 0)
		memcpy(&bytes[HEADER_LEN], message, with_header);
	return unread_send_rest() && unread_send(bytes, HEADER_LEN + with_header) &&
		(length == with_header || unread_send(message + with_header, length - with_header)) ? 0 : EOF;
}

/* ---- all that is sent ---- */

/* Does the server itself end the session while it waits for the client, if it is told to? */
static inline bool
unread_can_end(void)
{
	return likely((InterruptHoldoffCount | CritSectionCount) == 0);
}

static int
unread_put(char type, const char *message, size_t length)
{
	int			result;

	if (is_sending)
		return 0;
	is_sending = true;
	result = unread_can_end() ? socket_methods->putmessage(type, message, length) :
		unread_put_held(type, message, length);
	is_sending = false;
	return result;
}

static int
unread_flush(void)
{
	int			result;

	if (is_sending)
		return 0;
	is_sending = true;
	result = unread_can_end() ? socket_methods->flush() : unread_send_rest() ? 0 : EOF;
	is_sending = false;
	return result;
}

static int
unread_flush_if_writable(void)
{
	int			result;

	if (is_sending)
		return 0;
	is_sending = true;
	result = socket_methods->flush_if_writable();
	is_sending = false;
	return result;
}

/* Also after an error while something was sent. */
static void
unread_reset(void)
{
	is_sending = false;
	socket_methods->comm_reset();
}

/* This process has a client. */
void
ot_unread_watch(void)
{
	static PQcommMethods methods;

	socket_methods = PqCommMethods;
	methods = *socket_methods;
	methods.comm_reset = unread_reset;
	methods.flush = unread_flush;
	methods.flush_if_writable = unread_flush_if_writable;
	methods.putmessage = unread_put;
	PqCommMethods = &methods;
}

/* Until its locks are released, nobody can tell the present transaction to end, and others wait for it. */
void
ot_unread_is_waited_for(void)
{
	if (is_waited_for)
		return;
	is_waited_for = true;
	give_up_at = 0;
}

static void
unread_after_locks(ResourceReleasePhase phase, bool is_commit, bool is_top_level, void *arg)
{
	if (phase == RESOURCE_RELEASE_AFTER_LOCKS && is_top_level)
		is_waited_for = false;
}

void
ot_unread_init(void)
{
	RegisterResourceReleaseCallback(unread_after_locks, NULL);
}
