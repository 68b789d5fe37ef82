/*-------------------------------------------------------------------------
 *
 * agent.c
 *	  The socket to the node: frames out, frames in.
 *
 * Non-blocking, with one buffer in each direction.  The caller loops: append
 * frames, flush, read what has come, wait for the latch or the socket.  So a
 * backend that waits for its verdict stays in charge of its interrupts.
 *
 * No function that connects, sends or reads frames raises ERROR for what the
 * node does: a connection that is broken, or on which the node sends garbage,
 * is closed, the reason is kept (ot_agent_error), and the caller decides, since
 * only it knows whether something was proposed.  The functions that decode the body
 * of a frame that a session reads return false if it is damaged, and the caller
 * closes the connection by ot_agent_close_damaged(), or would meet the frame again.
 * Those that only a worker reads raise ERROR 08P01, which ends it.  Memory is
 * allocated when a connection is opened, a frame is appended, or the input
 * buffer grows; a VERDICT fits into the buffer that is made at the start.  What a
 * large frame needs is given back once it is sent, or read.
 *
 * Runs in backends, in the apply worker and in the arrival worker.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "node/node.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "utils/memutils.h"

#include "shmem/shmem.h"

#define INPUT_BYTES_MIN (64 * 1024)

struct OtAgent
{
	MemoryContext context;
	pgsocket	fd;
	WaitEventSet *wait_set;
	int			socket_event;	/* position in wait_set */
	uint32		socket_interest;
	StringInfoData out;
	int			sent;			/* bytes of out already written */
	int			frame_start;	/* of the frame being appended */
	bool		proposes;		/* the last frame in out is PROPOSE */
	StringInfoData in;
	int			consumed;		/* bytes of in already handed out */
	int			handed_out;		/* bytes after these, in whole frames, that the caller uses */
	bool		drained;		/* the socket was read empty since ot_agent_wait() */
	char		error[256];
};

OtAgent *
ot_agent_create(MemoryContext context)
{
	OtAgent    *agent = MemoryContextAllocZero(context, sizeof(OtAgent));
	MemoryContext old = MemoryContextSwitchTo(context);

	agent->context = context;
	agent->fd = PGINVALID_SOCKET;
	initStringInfo(&agent->out);
	initStringInfo(&agent->in);
	enlargeStringInfo(&agent->in, INPUT_BYTES_MIN);
	MemoryContextSwitchTo(old);
	return agent;
}

bool
ot_agent_is_open(OtAgent *agent)
{
	return agent->fd != PGINVALID_SOCKET;
}

const char *
ot_agent_error(OtAgent *agent)
{
	return agent->error;
}

static void
agent_keep_error(OtAgent *agent, const char *what)
{
	snprintf(agent->error, sizeof(agent->error), "%s: %s", what, strerror(errno));
}

/*
 * Empties a buffer, and does not keep one that a large frame has made huge.  Raises
 * no ERROR for lack of memory: a transaction that aborts, or waits for its verdict,
 * calls this.
 */
static void
agent_empty(OtAgent *agent, StringInfo buffer)
{
	if (buffer->maxlen > 16 * INPUT_BYTES_MIN)
	{
		char	   *smaller = MemoryContextAllocExtended(agent->context, INPUT_BYTES_MIN,
														 MCXT_ALLOC_NO_OOM);

		if (smaller != NULL)
		{
			pfree(buffer->data);
			buffer->data = smaller;
			buffer->maxlen = INPUT_BYTES_MIN;
		}
	}
	resetStringInfo(buffer);
}

void
ot_agent_close(OtAgent *agent)
{
	if (agent->wait_set)
		FreeWaitEventSet(agent->wait_set);
	agent->wait_set = NULL;
	if (agent->fd != PGINVALID_SOCKET)
	{
		close(agent->fd);
		ReleaseExternalFD();
	}
	agent->fd = PGINVALID_SOCKET;
	agent_empty(agent, &agent->out);
	agent->sent = 0;
	agent_empty(agent, &agent->in);
	agent->consumed = agent->handed_out = 0;
}

/*
 * Closes the connection because a frame's body cannot be read.  To the caller that
 * is as if the connection were lost.
 */
void
ot_agent_close_damaged(OtAgent *agent, OtFrameType type)
{
	snprintf(agent->error, sizeof(agent->error),
			 "the node sent a frame of type 0x%02x that cannot be read", type);
	ot_agent_close(agent);
	ereport(LOG_SERVER_ONLY,
			(errcode(OT_ERR_PROTOCOL),
			 errmsg_internal("%s", agent->error)));
}

/*
 * The process that listens on the socket gets the transactions of this server
 * and says what is committed.  So it must run as this server's user, or root.
 */
static bool
agent_peer_is_trusted(OtAgent *agent, pgsocket fd)
{
	uid_t		uid;
	gid_t		gid;

	if (getpeereid(fd, &uid, &gid) != 0)
	{
		agent_keep_error(agent, "could not determine the user of the node");
		return false;
	}
	if (uid == geteuid() || uid == 0)
		return true;
	snprintf(agent->error, sizeof(agent->error),
			 "the process that listens on \"%s\" runs as user %u, not as this server's user %u",
			 ot_agent_socket, (unsigned) uid, (unsigned) geteuid());
	return false;
}

/*
 * Raises no ERROR when no file descriptor is left: the session may be waiting
 * for its verdict.
 */
static bool
agent_make_wait_set(OtAgent *agent)
{
	MemoryContext old = CurrentMemoryContext;
	uint32		held = InterruptHoldoffCount;
	sig_atomic_t cancelled = QueryCancelPending;
	volatile bool made = false;

	PG_TRY();
	{
		agent->wait_set = OT_CREATE_WAIT_EVENT_SET(agent->context, 3);
		AddWaitEventToSet(agent->wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
		AddWaitEventToSet(agent->wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
		agent->socket_event = AddWaitEventToSet(agent->wait_set, WL_SOCKET_READABLE,
												agent->fd, NULL, NULL);
		agent->socket_interest = WL_SOCKET_READABLE;
		made = true;
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(old);
		edata = CopyErrorData();
		ot_swallow_error(old, held);
		/* rewording the ERROR took it away (commit.c) */
		QueryCancelPending = QueryCancelPending || cancelled;
		strlcpy(agent->error, edata->message, sizeof(agent->error));
		FreeErrorData(edata);
	}
	PG_END_TRY();
	return made;
}

/*
 * Connects and queues HELLO.  false: that failed, see ot_agent_error().  Does
 * not wait: a Unix socket connects at once, or not at all if the node's queue
 * of connections is full.
 */
bool
ot_agent_open(OtAgent *agent, OtRole role, OtLogIndex applied, OtLogIndex durable)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	StringInfo	frame;
	pgsocket	fd;

	Assert(agent->fd == PGINVALID_SOCKET);
	if (ot_agent_socket[0] == '\0' || strlen(ot_agent_socket) >= sizeof(addr.sun_path))
	{
		snprintf(agent->error, sizeof(agent->error),
				 "onetrip.agent_socket is not the path of a Unix socket: \"%s\"", ot_agent_socket);
		return false;
	}
	strlcpy(addr.sun_path, ot_agent_socket, sizeof(addr.sun_path));

	if (!AcquireExternalFD())
	{
		agent_keep_error(agent, "could not reserve a file descriptor");
		return false;
	}
	/* A connect() that waits in a full queue could not be interrupted. */
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd == PGINVALID_SOCKET)
	{
		agent_keep_error(agent, "could not make a socket");
		ReleaseExternalFD();
		return false;
	}
	if (connect(fd, (struct sockaddr *) &addr, sizeof(addr)) < 0)
	{
		agent_keep_error(agent, "could not connect to the node");
		close(fd);
		ReleaseExternalFD();
		return false;
	}
	if (!agent_peer_is_trusted(agent, fd))
	{
		close(fd);
		ReleaseExternalFD();
		return false;
	}

	agent->fd = fd;
	agent->drained = false;
	/* a frame that was appended without a connection */
	resetStringInfo(&agent->out);
	if (!agent_make_wait_set(agent))
	{
		ot_agent_close(agent);
		return false;
	}

	frame = ot_agent_frame(agent, OT_FRAME_HELLO);
	ot_put_u32(frame, OT_AGENT_MAGIC);
	ot_put_u16(frame, OT_AGENT_VERSION);
	ot_put_u8(frame, role);
	ot_put_u32(frame, MyProcPid);
	ot_put_u64(frame, ot_incarnation());
	ot_put_u64(frame, role == OT_ROLE_BACKEND ? OT_AGENT_TAKES_TIMES : applied.value);
	ot_put_u64(frame, durable.value);
	ot_agent_frame_end(agent);
	return true;
}

static void
agent_count(OtFrameType type)
{
	switch (type)
	{
		case OT_FRAME_PROPOSE:
			ot_crossing_note(OT_CROSSING_COMMIT);
			break;
		case OT_FRAME_REHEARSE:
			ot_crossing_note(OT_CROSSING_REHEARSAL);
			break;
		case OT_FRAME_SETTLE:
			ot_crossing_note(OT_CROSSING_SETTLE);
			break;
		case OT_FRAME_AWAIT:
			ot_crossing_note(OT_CROSSING_AWAIT);
			break;
		case OT_FRAME_LOOK:
			ot_crossing_note(OT_CROSSING_LOOK);
			break;
		default:				/* the node answers by itself, or says whether it did */
			break;
	}
}

/*
 * Begins a frame; append its body to the result, then ot_agent_frame_end().
 *
 * Nothing may follow a PROPOSE that is not completely sent: whoever made it has
 * given it up, and has told the client so, and to send another frame would send
 * the rest of it, too.  So that closes the connection, and the frame goes nowhere.
 */
StringInfo
ot_agent_frame(OtAgent *agent, OtFrameType type)
{
	agent_count(type);
	if (agent->proposes && agent->sent < agent->out.len)
		ot_agent_close(agent);
	agent->proposes = type == OT_FRAME_PROPOSE;
	agent->frame_start = agent->out.len;
	ot_put_u32(&agent->out, 0);
	ot_put_u8(&agent->out, type);
	return &agent->out;
}

void
ot_agent_frame_end(OtAgent *agent)
{
	uint32		len = agent->out.len - agent->frame_start - 4;
	unsigned char *at = (unsigned char *) agent->out.data + agent->frame_start;

	for (int i = 0; i < 4; i++)
		at[i] = (unsigned char) (len >> (8 * i));
}

static bool
agent_flush_up_to(OtAgent *agent, int end)
{
	if (agent->fd == PGINVALID_SOCKET)
		return false;
	while (agent->sent < end)
	{
		ssize_t		n = send(agent->fd, agent->out.data + agent->sent,
							 end - agent->sent, MSG_NOSIGNAL);

		if (n > 0)
			agent->sent += n;
		else if (n < 0 && errno == EINTR)
			continue;
		else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return true;
		else
		{
			agent_keep_error(agent, "could not send to the node");
			ot_agent_close(agent);
			return false;
		}
	}
	if (agent->sent == agent->out.len)
	{
		agent_empty(agent, &agent->out);
		agent->sent = 0;
	}
	return true;
}

/* Sends what the socket takes.  false: the connection failed, and is closed. */
bool
ot_agent_flush(OtAgent *agent)
{
	return agent_flush_up_to(agent, agent->out.len);
}

#ifdef ONETRIP_STOP_POINTS
bool
ot_agent_flush_half(OtAgent *agent)
{
	return agent_flush_up_to(agent, agent->out.len - (agent->out.len - agent->frame_start) / 2);
}
#endif

bool
ot_agent_all_sent(OtAgent *agent)
{
	return agent->sent == agent->out.len;
}

static uint32
agent_frame_length(OtAgent *agent, int begin)
{
	const unsigned char *at = (const unsigned char *) agent->in.data + begin;

	return (uint32) at[0] | (uint32) at[1] << 8 | (uint32) at[2] << 16 | (uint32) at[3] << 24;
}

/*
 * The next whole frame, if one has come; its body stays valid until
 * ot_agent_consume().  false: none yet, or the connection is closed
 * (ot_agent_is_open() tells which).  In the first case call ot_agent_wait()
 * before the next try: until then the socket is not looked at again.
 */
bool
ot_agent_read(OtAgent *agent, OtFrameType *type, OtReader *body)
{
	for (;;)
	{
		int			have = agent->in.len - agent->consumed;
		ssize_t		n;
		int			room;
		int			want = 4;

		if (agent->fd == PGINVALID_SOCKET)
			return false;
		if (have >= 4)
		{
			uint32		len = agent_frame_length(agent, agent->consumed);

			if (len < 1 || len > OT_FRAME_BYTES_MAX)
			{
				snprintf(agent->error, sizeof(agent->error),
						 "the node sent a frame of %u bytes", len);
				ot_agent_close(agent);
				return false;
			}
			want = 4 + (int) len;
			if (have >= want)
			{
				const char *at = agent->in.data + agent->consumed;

				*type = (unsigned char) at[4];
				body->at = at + 5;
				body->end = at + want;
				body->more = NULL;
				agent->handed_out = want;
				return true;
			}
		}

		if (have == 0)
			agent_empty(agent, &agent->in);
		/* This saves a COMMIT that has just been proposed a recv(). */
		if (agent->drained)
			return false;

		/* Makes room for the rest of the frame. */
		if (agent->consumed > 0)
		{
			memmove(agent->in.data, agent->in.data + agent->consumed, have);
			agent->in.len = have;
			agent->consumed = 0;
		}
		if (agent->in.maxlen - agent->in.len < Max(want - have, 4096))
			enlargeStringInfo(&agent->in, Max(want - have, 4096));

		room = agent->in.maxlen - agent->in.len - 1;
		n = recv(agent->fd, agent->in.data + agent->in.len, room, 0);
		if (n > 0)
		{
			agent->in.len += n;
			agent->drained = n < room;
		}
		else if (n < 0 && errno == EINTR)
			continue;
		else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		{
			agent->drained = true;
			return false;
		}
		else
		{
			if (n == 0)
				strlcpy(agent->error, "the node closed the connection", sizeof(agent->error));
			else
				agent_keep_error(agent, "could not read from the node");
			ot_agent_close(agent);
			return false;
		}
	}
}

/*
 * The frame after those that are handed out, if it is in the buffer already.
 * Reads nothing from the socket, so that the others stay where they are.  The
 * frame counts as handed out only after ot_agent_keep().
 */
bool
ot_agent_peek(OtAgent *agent, OtFrameType *type, OtReader *body)
{
	int			begin = agent->consumed + agent->handed_out;
	int			have = agent->in.len - begin;
	uint32		len;

	if (agent->fd == PGINVALID_SOCKET || have < 4)
		return false;
	len = agent_frame_length(agent, begin);
	if (len < 1 || len > (uint32) (have - 4))
		return false;
	*type = (unsigned char) agent->in.data[begin + 4];
	body->at = agent->in.data + begin + 5;
	body->end = agent->in.data + begin + 4 + (int) len;
	body->more = NULL;
	return true;
}

/* Hands out the frame that ot_agent_peek() found, besides those before it. */
void
ot_agent_keep(OtAgent *agent, const OtReader *body)
{
	agent->handed_out = (int) (body->end - agent->in.data) - agent->consumed;
}

/* The caller is done with all frames that are handed out. */
void
ot_agent_consume(OtAgent *agent)
{
	agent->consumed += agent->handed_out;
	agent->handed_out = 0;
	if (agent->consumed == agent->in.len)
		agent->consumed = agent->in.len = 0;
}

/*
 * Waits for the latch, which it resets, the socket or the timeout; -1: no timeout.
 * Without a connection only the latch and the timeout count.
 */
void
ot_agent_wait(OtAgent *agent, long timeout_ms)
{
	WaitEvent	event;
	uint32		interest = WL_SOCKET_READABLE;

	if (agent->fd == PGINVALID_SOCKET)
	{
		ot_wait_latch(timeout_ms);
		return;
	}

	if (!ot_agent_all_sent(agent))
		interest |= WL_SOCKET_WRITEABLE;
	if (interest != agent->socket_interest)
	{
		ModifyWaitEvent(agent->wait_set, agent->socket_event, interest, NULL);
		agent->socket_interest = interest;
	}
	if (WaitEventSetWait(agent->wait_set, timeout_ms, &event, 1, PG_WAIT_EXTENSION) == 0)
		return;
	/* for the latch too: one event is asked for, the socket may be ready */
	agent->drained = false;
	if (event.events & WL_LATCH_SET)
		ResetLatch(MyLatch);
}

/*
 * Has the node closed its end?  There may still be frames to read.  For a
 * caller that waits for something else and does not read for a while.
 */
bool
ot_agent_peer_closed(OtAgent *agent)
{
	struct pollfd poll_fd = {.fd = agent->fd, .events = POLLRDHUP};

	return agent->fd == PGINVALID_SOCKET ||
		(poll(&poll_fd, 1, 0) > 0 &&
		 (poll_fd.revents & (POLLRDHUP | POLLHUP | POLLERR)));
}

/* The part of a VERDICT before the region, which has a fixed length, and the one behind the message. */
#define VERDICT_BYTES_MIN (OT_TXN_ID_BYTES + 1 + 8 + 8 + 4)
#define VERDICT_TIMES_BYTES (8 + 8)

/* Reads the length of a str.  false: the body ends before the str does. */
static bool
agent_get_str_length(OtReader *r, uint16 *len)
{
	if (r->end - r->at < 2)
		return false;
	*len = ot_get_u16(r);
	return r->end - r->at >= *len;
}

/* Copies a str, cut to the buffer's size.  false: the body ends too early. */
static bool
agent_get_str_into(OtReader *r, char *out, size_t size)
{
	uint16		len;

	if (!agent_get_str_length(r, &len))
		return false;
	memcpy(out, ot_get_bytes(r, len), Min(len, size - 1));
	out[Min(len, size - 1)] = '\0';
	return true;
}

/* *out is palloc'd.  false: the body ends too early. */
static bool
agent_get_str(OtReader *r, char **out)
{
	uint16		len;

	if (!agent_get_str_length(r, &len))
		return false;
	*out = pnstrdup(ot_get_bytes(r, len), len);
	return true;
}

/*
 * false: not a VERDICT.  No ERROR, since the entry may be in the log by now,
 * and an ERROR would tell the client that it is not.
 */
bool
ot_agent_get_verdict(OtReader *body, OtVerdict *verdict)
{
	if (body->end - body->at < VERDICT_BYTES_MIN)
		return false;
	verdict->txn = ot_get_txn(body);
	verdict->outcome = ot_get_u8(body);
	verdict->at.value = ot_get_u64(body);
	verdict->other.value = ot_get_u64(body);
	verdict->key_number = ot_get_u32(body);
	if (!agent_get_str_into(body, verdict->region, sizeof(verdict->region)) ||
		!agent_get_str_into(body, verdict->message, sizeof(verdict->message)))
		return false;
	verdict->has_times = body->end - body->at >= VERDICT_TIMES_BYTES;
	verdict->replicate_us = verdict->has_times ? ot_get_u64(body) : 0;
	verdict->certify_us = verdict->has_times ? ot_get_u64(body) : 0;
	return body->at == body->end &&
		verdict->outcome >= OT_OUTCOME_COMMIT && verdict->outcome <= OT_OUTCOME_NO_ROOM;
}

/* Returns the last committed entry.  ERROR 08P01 if the body ends too early. */
OtLogIndex
ot_agent_get_welcome(OtReader *body)
{
	OtLogIndex	committed;

	(void) ot_get_u16(body);	/* version */
	(void) ot_get_u32(body);	/* node */
	(void) ot_get_str(body);	/* region */
	committed.value = ot_get_u64(body);
	return committed;
}

/* false: not an OUTCOME_IS. */
bool
ot_agent_get_outcome_is(OtReader *body, OtOutcomeIs *outcome)
{
	if (body->end - body->at < OT_TXN_ID_BYTES + 1 + 8)
		return false;
	outcome->txn = ot_get_txn(body);
	outcome->state = ot_get_u8(body);
	outcome->at.value = ot_get_u64(body);
	return true;
}

/* Leaves body at the write set.  ERROR 08P01 if it ends before that. */
void
ot_agent_get_entry(OtReader *body, OtEntry *entry)
{
	entry->at.value = ot_get_u64(body);
	entry->previous.value = ot_get_u64(body);
	entry->flags = ot_get_u8(body);
	if (entry->flags & ~(OT_ENTRY_LEFT_OUT | OT_ENTRY_LEAVES_OUT))
		ereport(ERROR,
				(errcode(OT_ERR_PROTOCOL),
				 errmsg("entry with unknown flags %u", entry->flags)));
	entry->region = ot_get_str(body);
	entry->txn = ot_get_txn(body);
}

/* false: not a REHEARSED; *answer may be filled in part. */
bool
ot_agent_get_rehearsed(OtReader *body, OtRehearsed *answer)
{
	memset(answer, 0, sizeof(*answer));
	if (body->end - body->at < OT_TXN_ID_BYTES + 1)
		return false;
	answer->txn = ot_get_txn(body);
	answer->failed = ot_get_u8(body) != 0;
	if (answer->failed)
	{
		if (!agent_get_str(body, &answer->region) || body->end - body->at < 8)
			return false;
		answer->at.value = ot_get_u64(body);
		if (!agent_get_str(body, &answer->sqlstate) || !agent_get_str(body, &answer->message) ||
			!agent_get_str(body, &answer->detail) || !agent_get_str(body, &answer->hint) ||
			!agent_get_str(body, &answer->context))
			return false;
	}
	return agent_get_str(body, &answer->untried);
}

/* false: not a READ_AT. */
bool
ot_agent_get_read_at(OtReader *body, OtReadAt *answer)
{
	if (body->end - body->at < 8 + 8 + 1)
		return false;
	answer->number = ot_get_u64(body);
	answer->at.value = ot_get_u64(body);
	answer->asked = ot_get_u8(body);
	return true;
}

/* false: not a SEEN. */
bool
ot_agent_get_seen(OtReader *body, OtSeen *seen)
{
	if (body->end - body->at < 8)
		return false;
	seen->number = ot_get_u64(body);
	seen->length = body->end - body->at;
	seen->cluster = ot_get_bytes(body, seen->length);
	return true;
}

/* false: not a SHOWN.  No ERROR, since the transaction is committed. */
bool
ot_agent_get_shown(OtReader *body, OtShown *shown)
{
	if (body->end - body->at < 8)
		return false;
	shown->at.value = ot_get_u64(body);
	return agent_get_str_into(body, shown->missing, sizeof(shown->missing)) &&
		body->at == body->end;
}

/* false: not a LOCKED. */
bool
ot_agent_get_locked(OtReader *body, OtLocked *locked)
{
	if (body->end - body->at < 8 + 1 + 8 + OT_TXN_ID_BYTES + 1)
		return false;
	locked->number = ot_get_u64(body);
	locked->outcome = ot_get_u8(body);
	locked->at.value = ot_get_u64(body);
	locked->other = ot_get_txn(body);
	locked->others_asked = ot_get_u8(body) != 0;
	return agent_get_str_into(body, locked->region, sizeof(locked->region));
}

/* ERROR 08P01 if the body ends too early. */
void
ot_agent_get_arriving(OtReader *body, OtArriving *arriving)
{
	arriving->txn = ot_get_txn(body);
	arriving->total = ot_get_u64(body);
	arriving->from = ot_get_u64(body);
	arriving->length = body->end - body->at;
	arriving->bytes = ot_get_bytes(body, arriving->length);
}
