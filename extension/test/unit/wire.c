/*-------------------------------------------------------------------------
 *
 * wire.c
 *	  Frames of the agent protocol, written and read by the extension's functions.
 *
 * They go through a real Unix socket, both of whose ends are in this process.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

PG_FUNCTION_INFO_V1(unit_write_frame);
PG_FUNCTION_INFO_V1(unit_read_frame);
PG_FUNCTION_INFO_V1(unit_decode_body);
PG_FUNCTION_INFO_V1(unit_read_prefixes);
PG_FUNCTION_INFO_V1(unit_send_behind);
PG_FUNCTION_INFO_V1(unit_keeps);
PG_FUNCTION_INFO_V1(unit_connect);
PG_FUNCTION_INFO_V1(unit_connect_with);

/* The values in the frames of testdata/agent/. */
static const OtTxnId golden_txn = {2, UINT64CONST(0x1122334455667788), 77};

/* ---- a connection to ourselves ---- */

typedef struct Pair
{
	OtAgent    *agent;
	int			peer;
} Pair;

static void
disconnect_pair(Pair *pair)
{
	if (pair->peer >= 0)
		close(pair->peer);
	pair->peer = -1;
	ot_agent_close(pair->agent);
}

/*
 * Connects to ourselves.  There is one pair for all tests; if an ERROR has left
 * it open, it is closed first.
 */
static Pair *
connect_pair(OtRole role, OtLogIndex applied, OtLogIndex durable)
{
	static Pair pair = {.peer = -1};
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	char	   *real_path = ot_agent_socket;
	int			listener;
	bool		open;

	if (pair.agent == NULL)
		pair.agent = ot_agent_create(TopMemoryContext);
	disconnect_pair(&pair);

	/* A relative path: the server's current directory is its data directory. */
	snprintf(addr.sun_path, sizeof(addr.sun_path), "onetrip_unit.%d.sock", MyProcPid);
	unlink(addr.sun_path);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *) &addr, sizeof(addr)) < 0 ||
		listen(listener, 1) < 0)
		elog(ERROR, "could not listen on \"%s\": %m", addr.sun_path);

	ot_agent_socket = addr.sun_path;
	open = ot_agent_open(pair.agent, role, applied, durable);
	ot_agent_socket = real_path;
	if (open)
		pair.peer = accept(listener, NULL, NULL);
	close(listener);
	unlink(addr.sun_path);
	if (!open)
		elog(ERROR, "could not open: %s", ot_agent_error(pair.agent));
	if (pair.peer < 0)
		elog(ERROR, "could not accept");
	return &pair;
}

/* Everything the agent has sent; our frames fit into the socket's buffer. */
static bytea *
take_sent(Pair *pair)
{
	char		buffer[8192];
	ssize_t		n;
	bytea	   *result;

	if (!ot_agent_flush(pair->agent) || !ot_agent_all_sent(pair->agent))
		elog(ERROR, "could not send all: %s", ot_agent_error(pair->agent));
	n = recv(pair->peer, buffer, sizeof(buffer), MSG_DONTWAIT);
	if (n < 0)
		elog(ERROR, "nothing was sent: %m");
	result = palloc(VARHDRSZ + n);
	SET_VARSIZE(result, VARHDRSZ + n);
	memcpy(VARDATA(result), buffer, n);
	return result;
}

static Pair *
connect_quietly(void)
{
	OtLogIndex	none = {0};
	Pair	   *pair = connect_pair(OT_ROLE_BACKEND, none, none);

	(void) take_sent(pair);		/* HELLO */
	return pair;
}

static void
feed(Pair *pair, const char *bytes, size_t len)
{
	if (len > 0 && send(pair->peer, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t) len)
		elog(ERROR, "could not feed: %m");
	/* Once it has read everything, the agent must wait before it reads again. */
	ot_agent_wait(pair->agent, 0);
}

/* ---- writing ---- */

/* Adds the write set of testdata/agent/propose.hex to this transaction's. */
static void
note_golden_write_set(void)
{
	static const struct
	{
		uint64		hash;
		OtKeyMode	mode;
		uint64		base;
	}			keys[] = {
		{UINT64CONST(0xdeadbeefcafef00d), OT_KEY_SHARE, 0},
		{UINT64CONST(0x1), OT_SHARE, 1000},
		{UINT64CONST(0x8000000000000000), OT_NO_KEY_UPDATE, 1001},
		{UINT64CONST(0xffffffffffffffff), OT_UPDATE, UINT64CONST(72623859790382856)},
	};

	for (int i = 0; i < lengthof(keys); i++)
		ot_write_set_key((OtHash) {keys[i].hash}, keys[i].mode,
						 (OtLogIndex) {keys[i].base}, InvalidOid);
	appendBinaryStringInfo(ot_write_set_append(), "\x52\x01\x02\xff", 4);
}

/*
 * Replaces a field that the test cannot choose by the golden value, after a
 * check that it has the right value.
 */
static void
replace_field(unsigned char *at, int bytes, uint64 is, uint64 golden)
{
	for (int i = 0; i < bytes; i++)
	{
		if (at[i] != (unsigned char) (is >> (8 * i)))
			elog(ERROR, "HELLO does not contain " UINT64_FORMAT, is);
		at[i] = (unsigned char) (golden >> (8 * i));
	}
}

static bytea *
write_hello(OtRole role, uint64 applied, uint64 durable, uint32 golden_pid)
{
	Pair	   *pair = connect_pair(role, (OtLogIndex) {applied}, (OtLogIndex) {durable});
	bytea	   *sent = take_sent(pair);
	unsigned char *pid = (unsigned char *) VARDATA(sent) + 4 + 1 + 4 + 2 + 1;

	disconnect_pair(pair);
	replace_field(pid, 4, (uint32) MyProcPid, golden_pid);
	replace_field(pid + 4, 8, ot_incarnation(), golden_txn.incarnation);
	return sent;
}

/* unit_write_frame(name text) returns bytea: the golden frame, written by C */
Datum
unit_write_frame(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	Pair	   *pair;
	StringInfo	frame;
	bytea	   *sent;

	if (strcmp(name, "hello_backend") == 0)
		PG_RETURN_BYTEA_P(write_hello(OT_ROLE_BACKEND, 0, 0, 4242));
	if (strcmp(name, "hello_apply_worker") == 0)
		PG_RETURN_BYTEA_P(write_hello(OT_ROLE_APPLY_WORKER, 1000, 990, 4243));
	if (strcmp(name, "hello_arrival_worker") == 0)
		PG_RETURN_BYTEA_P(write_hello(OT_ROLE_ARRIVAL_WORKER, 0, 0, 4244));

	pair = connect_quietly();
	if (strcmp(name, "propose") == 0 || strcmp(name, "propose_empty") == 0)
	{
		if (!ot_write_set_is_empty())
			elog(ERROR, "call this first in a transaction");
		ot_write_set_touch();
		if (strcmp(name, "propose") == 0)
			note_golden_write_set();
		frame = ot_agent_frame(pair->agent, OT_FRAME_PROPOSE);
		ot_write_set_encode(golden_txn, frame);
		ot_write_set_reset();
	}
	else if (strcmp(name, "outcome") == 0)
	{
		frame = ot_agent_frame(pair->agent, OT_FRAME_OUTCOME);
		ot_put_txn(frame, golden_txn);
	}
	else if (strcmp(name, "settle") == 0)
	{
		frame = ot_agent_frame(pair->agent, OT_FRAME_SETTLE);
		ot_put_txn(frame, golden_txn);
	}
	else if (strcmp(name, "done") == 0)
	{
		frame = ot_agent_frame(pair->agent, OT_FRAME_DONE);
		ot_put_txn(frame, golden_txn);
	}
	else if (strcmp(name, "position") == 0)
	{
		frame = ot_agent_frame(pair->agent, OT_FRAME_POSITION);
		ot_put_u64(frame, 1000);
		ot_put_u64(frame, 990);
	}
	else if (strcmp(name, "stuck") == 0)
	{
		frame = ot_agent_frame(pair->agent, OT_FRAME_STUCK);
		ot_put_u64(frame, 1001);
		ot_put_str(frame, "role \"nowhere\" does not exist");
	}
	else if (strcmp(name, "read") == 0 || strcmp(name, "read_alone") == 0)
	{
		frame = ot_agent_frame(pair->agent, OT_FRAME_READ);
		ot_put_u64(frame, 7);
		ot_put_u8(frame, strcmp(name, "read") == 0);
	}
	else if (strcmp(name, "look") == 0)
	{
		frame = ot_agent_frame(pair->agent, OT_FRAME_LOOK);
		ot_put_u64(frame, 8);
	}
	else if (strcmp(name, "await") == 0)
	{
		frame = ot_agent_frame(pair->agent, OT_FRAME_AWAIT);
		ot_put_u64(frame, 1006);
	}
	else if (strcmp(name, "lock") == 0)
	{
		frame = ot_agent_frame(pair->agent, OT_FRAME_LOCK);
		ot_put_txn(frame, golden_txn);
		ot_put_u64(frame, 3);
		ot_put_u8(frame, 1);
		ot_put_u32(frame, 2);
		ot_put_u64(frame, UINT64CONST(0xdeadbeefcafef00d));
		ot_put_u8(frame, OT_NO_KEY_UPDATE);
		ot_put_u64(frame, 1);
		ot_put_u8(frame, OT_SHARE);
		ot_put_str(frame, "public.t");
	}
	else if (strcmp(name, "unlock") == 0)
	{
		frame = ot_agent_frame(pair->agent, OT_FRAME_UNLOCK);
		ot_put_txn(frame, golden_txn);
		ot_put_u64(frame, 3);
	}
	else if (strcmp(name, "more") == 0 || strcmp(name, "more_of_next") == 0)
	{
		OtTxnId		none = {0};

		frame = ot_agent_frame(pair->agent, OT_FRAME_MORE);
		ot_put_txn(frame, strcmp(name, "more") == 0 ? golden_txn : none);
		ot_put_u64(frame, strcmp(name, "more") == 0 ? 131072 : 0);
	}
	else if (strcmp(name, "written") == 0 || strcmp(name, "written_given_up") == 0)
	{
		frame = ot_agent_frame(pair->agent, OT_FRAME_WRITTEN);
		ot_put_txn(frame, golden_txn);
		ot_put_u8(frame, strcmp(name, "written") == 0);
	}
	else if (strcmp(name, "rehearse") == 0)
	{
		frame = ot_agent_frame(pair->agent, OT_FRAME_REHEARSE);
		ot_put_txn(frame, golden_txn);
		ot_put_u64(frame, 1000);
		ot_put_u32(frame, 2000);
		ot_put_u32(frame, 100);
		appendBinaryStringInfo(frame, "\x02\x52\x01\x02\xff", 5);
	}
	else
		elog(ERROR, "C does not write a frame \"%s\"", name);
	ot_agent_frame_end(pair->agent);
	sent = take_sent(pair);
	disconnect_pair(pair);
	PG_RETURN_BYTEA_P(sent);
}

/* ---- reading ---- */

static char *
bytes_to_hex(const char *at, const char *end)
{
	int			len = end - at;
	char	   *hex = palloc(2 * len + 1);

	hex[hex_encode(at, len, hex)] = '\0';
	return hex;
}

pg_noreturn static void
refuse_body(OtFrameType type)
{
	ereport(ERROR,
			(errcode(OT_ERR_PROTOCOL),
			 errmsg("not the body of a frame of type 0x%02x", type)));
}

/* The fields of a frame from the node, read by the extension's decoders. */
static char *
decode(OtFrameType type, OtReader *body)
{
	char		txn[OT_TXN_ID_TEXT_MAX];

	switch (type)
	{
		case OT_FRAME_WELCOME:
			return psprintf("WELCOME committed " UINT64_FORMAT,
							ot_agent_get_welcome(body).value);
		case OT_FRAME_VERDICT:
			{
				OtVerdict	v;

				if (!ot_agent_get_verdict(body, &v))
					refuse_body(type);
				return psprintf("VERDICT %s outcome %d at " UINT64_FORMAT " other " UINT64_FORMAT
								" key %u region %s message \"%s\"%s",
								ot_txn_to_text(v.txn, txn), v.outcome, v.at.value,
								v.other.value, v.key_number, v.region, v.message,
								!v.has_times ? "" : psprintf(" replicate " UINT64_FORMAT " certify " UINT64_FORMAT,
															 v.replicate_us, v.certify_us));
			}
		case OT_FRAME_OUTCOME_IS:
			{
				OtOutcomeIs is;

				if (!ot_agent_get_outcome_is(body, &is))
					refuse_body(type);
				return psprintf("OUTCOME_IS %s state %d at " UINT64_FORMAT,
								ot_txn_to_text(is.txn, txn), is.state, is.at.value);
			}
		case OT_FRAME_ENTRY:
			{
				OtEntry		entry;

				ot_agent_get_entry(body, &entry);
				return psprintf("ENTRY at " UINT64_FORMAT " previous " UINT64_FORMAT
								" flags %u region %s %s write set %s",
								entry.at.value, entry.previous.value, entry.flags, entry.region,
								ot_txn_to_text(entry.txn, txn),
								bytes_to_hex(body->at, body->end));
			}
		case OT_FRAME_REHEARSED:
			{
				OtRehearsed said;

				if (!ot_agent_get_rehearsed(body, &said))
					refuse_body(type);
				if (!said.failed)
					return psprintf("REHEARSED %s untried \"%s\"",
									ot_txn_to_text(said.txn, txn), said.untried);
				return psprintf("REHEARSED %s fails in %s at " UINT64_FORMAT
								" with %s \"%s\" detail \"%s\" hint \"%s\" context \"%s\" untried \"%s\"",
								ot_txn_to_text(said.txn, txn), said.region, said.at.value,
								said.sqlstate, said.message, said.detail, said.hint,
								said.context, said.untried);
			}
		case OT_FRAME_READ_AT:
			{
				OtReadAt	read;

				if (!ot_agent_get_read_at(body, &read))
					refuse_body(type);
				return psprintf("READ_AT number " UINT64_FORMAT " at " UINT64_FORMAT " %s",
								read.number, read.at.value,
								read.asked == OT_ASKED_NOT_YET ? "not asked yet" :
								read.asked == OT_ASKED_OTHERS ? "asked others" : "asked nobody");
			}
		case OT_FRAME_SEEN:
			{
				OtSeen		seen;

				if (!ot_agent_get_seen(body, &seen))
					refuse_body(type);
				return psprintf("SEEN number " UINT64_FORMAT " cluster %.*s",
								seen.number, (int) seen.length, seen.cluster);
			}
		case OT_FRAME_SHOWN:
			{
				OtShown		shown;

				if (!ot_agent_get_shown(body, &shown))
					refuse_body(type);
				return psprintf("SHOWN at " UINT64_FORMAT " missing \"%s\"",
								shown.at.value, shown.missing);
			}
		case OT_FRAME_LOCKED:
			{
				OtLocked	locked;
				char		other[OT_TXN_ID_TEXT_MAX];

				if (!ot_agent_get_locked(body, &locked))
					refuse_body(type);
				return psprintf("LOCKED number " UINT64_FORMAT " outcome %u at " UINT64_FORMAT " other %s region \"%s\" %s",
								locked.number, locked.outcome, locked.at.value,
								ot_txn_to_text(locked.other, other), locked.region,
								locked.others_asked ? "asked others" : "asked nobody");
			}
		case OT_FRAME_ARRIVING:
			{
				OtArriving	arriving;

				ot_agent_get_arriving(body, &arriving);
				return psprintf("ARRIVING %s total " UINT64_FORMAT " from " UINT64_FORMAT " bytes %s",
								ot_txn_to_text(arriving.txn, txn), arriving.total, arriving.from,
								bytes_to_hex(arriving.bytes, arriving.bytes + arriving.length));
			}
		default:
			elog(ERROR, "the node does not send frames of type 0x%02x", type);
	}
}

/* unit_read_frame(bytes bytea) returns text: sends it to us and decodes it */
Datum
unit_read_frame(PG_FUNCTION_ARGS)
{
	bytea	   *bytes = PG_GETARG_BYTEA_PP(0);
	Pair	   *pair = connect_quietly();
	OtFrameType type;
	OtReader	body;
	char	   *result;

	feed(pair, VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes));
	if (!ot_agent_read(pair->agent, &type, &body))
		result = ot_agent_is_open(pair->agent) ? pstrdup("no whole frame yet") :
			psprintf("closed: %s", ot_agent_error(pair->agent));
	else
	{
		result = decode(type, &body);
		ot_agent_consume(pair->agent);
		if (ot_agent_read(pair->agent, &type, &body))
			result = psprintf("%s, and another frame", result);
	}
	disconnect_pair(pair);
	PG_RETURN_TEXT_P(cstring_to_text(result));
}

/* unit_decode_body(type int, body bytea) returns text: may raise 08P01 */
Datum
unit_decode_body(PG_FUNCTION_ARGS)
{
	bytea	   *bytes = PG_GETARG_BYTEA_PP(1);
	int			len = VARSIZE_ANY_EXHDR(bytes);
	OtReader	body;
	char	   *copy = palloc(Max(len, 1));

	/* A copy of that exact size, so that a memory checker sees any overrun. */
	memcpy(copy, VARDATA_ANY(bytes), len);
	body.at = copy;
	body.end = copy + len;
	body.more = NULL;
	PG_RETURN_TEXT_P(cstring_to_text(decode(PG_GETARG_INT32(0), &body)));
}

/*
 * unit_read_prefixes(bytes bytea) returns int: feeds the frame byte by byte and
 * checks that there is no frame before the last byte, and that the connection
 * stays open.  Then feeds every proper prefix, after which the peer closes, and
 * checks that the connection is closed without a frame.
 */
Datum
unit_read_prefixes(PG_FUNCTION_ARGS)
{
	bytea	   *bytes = PG_GETARG_BYTEA_PP(0);
	const char *at = VARDATA_ANY(bytes);
	int			len = VARSIZE_ANY_EXHDR(bytes);
	Pair	   *pair = connect_quietly();
	OtFrameType type;
	OtReader	body;

	for (int i = 0; i < len; i++)
	{
		feed(pair, at + i, 1);
		if (ot_agent_read(pair->agent, &type, &body) != (i == len - 1) ||
			!ot_agent_is_open(pair->agent))
			elog(ERROR, "wrong answer after %d of %d bytes", i + 1, len);
	}
	disconnect_pair(pair);

	for (int i = 0; i < len; i++)
	{
		bool		found;

		CHECK_FOR_INTERRUPTS();
		pair = connect_quietly();
		feed(pair, at, i);
		close(pair->peer);
		pair->peer = -1;
		found = ot_agent_read(pair->agent, &type, &body);
		if (!found && ot_agent_is_open(pair->agent))
		{
			ot_agent_wait(pair->agent, 0);
			found = ot_agent_read(pair->agent, &type, &body);
		}
		if (found || ot_agent_is_open(pair->agent))
			elog(ERROR, "a frame out of the first %d of %d bytes", i, len);
		disconnect_pair(pair);
	}
	PG_RETURN_INT32(len);
}

/*
 * unit_send_behind(sent bool) returns int: how many bytes arrive of an UNLOCK, and
 * of a PROPOSE before it unless that has been sent; 0 if the connection is closed.
 */
Datum
unit_send_behind(PG_FUNCTION_ARGS)
{
	Pair	   *pair = connect_quietly();
	char		buffer[256];
	ssize_t		n;

	ot_put_txn(ot_agent_frame(pair->agent, OT_FRAME_PROPOSE), golden_txn);
	ot_agent_frame_end(pair->agent);
	if (PG_GETARG_BOOL(0))
		(void) take_sent(pair);
	ot_put_txn(ot_agent_frame(pair->agent, OT_FRAME_UNLOCK), golden_txn);
	ot_agent_frame_end(pair->agent);
	(void) ot_agent_flush(pair->agent);
	n = recv(pair->peer, buffer, sizeof(buffer), MSG_DONTWAIT);
	disconnect_pair(pair);
	PG_RETURN_INT32((int) n);
}

/*
 * unit_keeps(len int) returns int: sends a frame of so many bytes, and reads it.  The
 * MiB that are taken then, beyond those from before.
 */
Datum
unit_keeps(PG_FUNCTION_ARGS)
{
	int			len = PG_GETARG_INT32(0);
	Pair	   *pair = connect_quietly();
	Size		before = MemoryContextMemAllocated(TopMemoryContext, true);
	char	   *buffer = palloc(len + 5);
	StringInfo	frame;
	OtFrameType type;
	OtReader	body;
	int			got = 0;
	int			given = 0;
	ssize_t		n;

	memset(buffer, 0, len);
	frame = ot_agent_frame(pair->agent, OT_FRAME_PROPOSE);
	appendBinaryStringInfo(frame, buffer, len);
	ot_agent_frame_end(pair->agent);
	while (got < len + 5)
	{
		if (!ot_agent_flush(pair->agent))
			elog(ERROR, "could not send: %s", ot_agent_error(pair->agent));
		n = recv(pair->peer, buffer + got, len + 5 - got, MSG_DONTWAIT);
		got += Max(n, 0);
		CHECK_FOR_INTERRUPTS();
	}
	for (;;)
	{
		n = send(pair->peer, buffer + given, len + 5 - given, MSG_DONTWAIT | MSG_NOSIGNAL);
		given += Max(n, 0);
		ot_agent_wait(pair->agent, 0);
		if (ot_agent_read(pair->agent, &type, &body))
			break;
		CHECK_FOR_INTERRUPTS();
	}
	if (body.end - body.at != len)
		elog(ERROR, "%d bytes have come, not %d", (int) (body.end - body.at), len);
	ot_agent_consume(pair->agent);
	ot_agent_wait(pair->agent, 0);
	(void) ot_agent_read(pair->agent, &type, &body);
	pfree(buffer);
	PG_RETURN_INT32((int) ((MemoryContextMemAllocated(TopMemoryContext, true) - before) >> 20));
}

/* ---- connecting ---- */

/*
 * unit_connect(path text) returns text: "connected", or the error of connecting
 * to a node at that path.
 */
Datum
unit_connect(PG_FUNCTION_ARGS)
{
	OtAgent    *agent = ot_agent_create(CurrentMemoryContext);
	char	   *real_path = ot_agent_socket;
	OtLogIndex	none = {0};
	bool		open;

	ot_agent_socket = text_to_cstring(PG_GETARG_TEXT_PP(0));
	open = ot_agent_open(agent, OT_ROLE_BACKEND, none, none);
	ot_agent_socket = real_path;
	ot_agent_close(agent);
	PG_RETURN_TEXT_P(cstring_to_text(open ? "connected" : ot_agent_error(agent)));
}

/*
 * unit_connect_with(n int) returns text: the same with only n file descriptors
 * left; a connection takes two.
 */
Datum
unit_connect_with(PG_FUNCTION_ARGS)
{
	int			left = PG_GETARG_INT32(0);
	OtAgent    *agent = ot_agent_create(CurrentMemoryContext);
	OtLogIndex	none = {0};
	int			taken = 0;
	uint32		before = InterruptHoldoffCount;
	uint32		held;
	bool		open;

	while (AcquireExternalFD())
		taken++;
	for (int i = 0; i < left; i++)
		ReleaseExternalFD();
	/* like a session that waits for its verdict */
	HOLD_INTERRUPTS();
	open = ot_agent_open(agent, OT_ROLE_BACKEND, none, none);
	held = InterruptHoldoffCount;
	InterruptHoldoffCount = before;
	if (held != before + 1)
		elog(ERROR, "interrupts are held %u times, not %u times", held, before + 1);
	if (open != ot_agent_is_open(agent))
		elog(ERROR, "open, and says that it is not");
	ot_agent_close(agent);
	for (int i = left; i < taken; i++)
		ReleaseExternalFD();
	PG_RETURN_TEXT_P(cstring_to_text(open ? "connected" : ot_agent_error(agent)));
}
