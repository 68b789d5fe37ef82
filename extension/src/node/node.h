/*-------------------------------------------------------------------------
 *
 * node.h
 *	  A connection to the node, and the wire format (docs/agent-protocol.md).
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_NODE_H
#define ONETRIP_NODE_H

#include "base/base.h"

#include "lib/stringinfo.h"
#include "storage/latch.h"

#define OT_TXN_ID_BYTES 20
/* "4294967295-ffffffffffffffff-ffffffffffffffff" and the final zero */
#define OT_TXN_ID_TEXT_MAX 48

/*
 * Bytes to read; the ot_get functions raise ERROR 08P01 at the end of them.  If
 * they are still arriving, `more` waits until so many are there, and moves `end`;
 * false: there are no more.
 */
typedef struct OtReader
{
	const char *at;
	const char *end;
	bool		(*more) (struct OtReader *r, uint32 len);
} OtReader;

/* ---- wire.c: the types of the wire format, little-endian ---- */

extern void ot_put_u8(StringInfo buf, uint8 v);
extern void ot_put_u16(StringInfo buf, uint16 v);
extern void ot_put_u32(StringInfo buf, uint32 v);
extern void ot_put_u64(StringInfo buf, uint64 v);
extern void ot_put_str(StringInfo buf, const char *s);
extern void ot_put_txn(StringInfo buf, OtTxnId txn);
extern bool ot_has_more(OtReader *r);
extern uint8 ot_get_u8(OtReader *r);
extern uint16 ot_get_u16(OtReader *r);
extern uint32 ot_get_u32(OtReader *r);
extern uint64 ot_get_u64(OtReader *r);
extern char *ot_get_str(OtReader *r);	/* palloc'd, zero-terminated */
extern const char *ot_get_bytes(OtReader *r, uint32 len);
extern OtTxnId ot_get_txn(OtReader *r);
extern char *ot_txn_to_text(OtTxnId txn, char *out);
extern bool ot_txn_from_text(const char *text, OtTxnId *txn);

/* ---- agent.c ---- */

#define OT_AGENT_MAGIC		0x3154544f
#define OT_AGENT_VERSION	2
#define OT_AGENT_TAKES_TIMES 1	/* in a backend's HELLO, in the place of the applied index */
#define OT_FRAME_BYTES_MAX	(1024 * 1024 * 1024 - 1024)

typedef enum OtFrameType
{
	OT_FRAME_HELLO = 0x01,
	OT_FRAME_PROPOSE = 0x02,
	OT_FRAME_OUTCOME = 0x03,
	OT_FRAME_POSITION = 0x04,
	OT_FRAME_DONE = 0x05,
	OT_FRAME_SETTLE = 0x06,
	OT_FRAME_STUCK = 0x07,
	OT_FRAME_REHEARSE = 0x08,
	OT_FRAME_READ = 0x09,
	OT_FRAME_AWAIT = 0x0a,
	OT_FRAME_LOOK = 0x0b,
	OT_FRAME_LOCK = 0x0c,
	OT_FRAME_UNLOCK = 0x0d,
	OT_FRAME_MORE = 0x0e,
	OT_FRAME_WRITTEN = 0x0f,
	OT_FRAME_WELCOME = 0x81,
	OT_FRAME_VERDICT = 0x82,
	OT_FRAME_OUTCOME_IS = 0x83,
	OT_FRAME_ENTRY = 0x84,
	OT_FRAME_REHEARSED = 0x85,
	OT_FRAME_READ_AT = 0x86,
	OT_FRAME_SHOWN = 0x87,
	OT_FRAME_SEEN = 0x88,
	OT_FRAME_LOCKED = 0x89,
	OT_FRAME_ARRIVING = 0x8a
} OtFrameType;

typedef enum OtRole
{
	OT_ROLE_BACKEND = 0,
	OT_ROLE_APPLY_WORKER = 1,
	OT_ROLE_ARRIVAL_WORKER = 2
} OtRole;

typedef enum OtOutcome
{
	OT_OUTCOME_COMMIT = 1,
	OT_OUTCOME_CONFLICT = 2,
	OT_OUTCOME_WINDOW = 3,
	OT_OUTCOME_REFUSED = 4,
	OT_OUTCOME_CANCELLED = 5,
	OT_OUTCOME_FULL = 6,
	OT_OUTCOME_RESERVED = 7,
	OT_OUTCOME_HELD = 8,
	OT_OUTCOME_BY_WORKER = 9,
	OT_OUTCOME_NO_ROOM = 10
} OtOutcome;

typedef struct OtVerdict
{
	OtTxnId		txn;
	OtOutcome	outcome;
	OtLogIndex	at;
	OtLogIndex	other;
	uint32		key_number;
	char		region[NAMEDATALEN];
	char		message[256];
	bool		has_times;		/* how long, in microseconds */
	uint64		replicate_us;	/* until the node knew that a majority has it */
	uint64		certify_us;		/* from then to the verdict */
} OtVerdict;

#define OT_ENTRY_LEFT_OUT	1	/* applied as an empty transaction at its index */
#define OT_ENTRY_LEAVES_OUT	2	/* leaves out another one: its index is the write set */

/* An ENTRY, up to its write set. */
typedef struct OtEntry
{
	OtLogIndex	at;
	OtLogIndex	previous;
	uint8		flags;			/* OT_ENTRY_* */
	char	   *region;			/* palloc'd */
	OtTxnId		txn;
} OtEntry;

typedef enum OtState
{
	OT_STATE_NOT_SO_FAR = 0,
	OT_STATE_COMMITTED = 1,
	OT_STATE_ABORTED = 2,
	OT_STATE_OLDER_THAN_KEPT = 3,
	OT_STATE_LEFT_OUT = 4,
	OT_STATE_PREPARED = 5
} OtState;

typedef struct OtOutcomeIs
{
	OtTxnId		txn;
	uint8		state;			/* OtState */
	OtLogIndex	at;
} OtOutcomeIs;

/* The result of a rehearsal in the other regions; texts are palloc'd. */
typedef struct OtRehearsed
{
	OtTxnId		txn;
	bool		failed;
	OtLogIndex	at;				/* applied index of the region in which it failed */
	char	   *region;
	char	   *sqlstate;
	char	   *message;
	char	   *detail;
	char	   *hint;
	char	   *context;
	char	   *untried;
} OtRehearsed;

/* Whom the answer to READ took. */
typedef enum OtAsked
{
	OT_ASKED_NOBODY = 0,		/* there is a read lease */
	OT_ASKED_OTHERS = 1,
	OT_ASKED_NOT_YET = 2,		/* others would have to be asked, and were not */
} OtAsked;

/* The answer to READ: what this server must show. */
typedef struct OtReadAt
{
	uint64		number;			/* of the question */
	OtLogIndex	at;				/* 0 if that is not known yet */
	OtAsked		asked;
} OtReadAt;

/* The answer to AWAIT. */
typedef struct OtShown
{
	OtLogIndex	at;
	char		missing[1024];	/* which regions may not show it, and why */
} OtShown;

/* The answer to LOOK. */
typedef struct OtSeen
{
	uint64		number;			/* of the question */
	const char *cluster;		/* JSON, within the frame and not terminated */
	uint32		length;			/* 0: the node cannot tell now */
} OtSeen;

typedef enum OtLockOutcome
{
	OT_LOCK_GRANTED = 1,
	OT_LOCK_BUSY = 2,
	OT_LOCK_DEADLOCK = 3,
	OT_LOCK_NO_TABLE = 4
} OtLockOutcome;

/* The answer to LOCK. */
typedef struct OtLocked
{
	uint64		number;			/* of the request */
	uint8		outcome;		/* OtLockOutcome */
	OtLogIndex	at;				/* what this server must show */
	OtTxnId		other;			/* which is in the way */
	bool		others_asked;	/* another region was */
	char		region[NAMEDATALEN];	/* of the other transaction */
} OtLocked;

/* Bytes of a transaction that is arriving, at most so many at once. */
#define OT_ARRIVING_BYTES_MAX (1024 * 1024)

typedef struct OtArriving
{
	OtTxnId		txn;
	uint64		total;			/* of the whole encoded entry */
	uint64		from;			/* where in it these belong */
	const char *bytes;			/* within the frame */
	uint32		length;
} OtArriving;

typedef struct OtAgent OtAgent;

extern OtAgent *ot_agent_create(MemoryContext context);
extern bool ot_agent_is_open(OtAgent *agent);
extern bool ot_agent_open(OtAgent *agent, OtRole role, OtLogIndex applied, OtLogIndex durable);
extern void ot_agent_close(OtAgent *agent);
extern void ot_agent_close_damaged(OtAgent *agent, OtFrameType type);
extern StringInfo ot_agent_frame(OtAgent *agent, OtFrameType type);
extern void ot_agent_frame_end(OtAgent *agent);
extern bool ot_agent_flush(OtAgent *agent);
#ifdef ONETRIP_STOP_POINTS
extern bool ot_agent_flush_half(OtAgent *agent);
#endif
extern bool ot_agent_all_sent(OtAgent *agent);
extern bool ot_agent_read(OtAgent *agent, OtFrameType *type, OtReader *body);
extern bool ot_agent_peek(OtAgent *agent, OtFrameType *type, OtReader *body);
extern void ot_agent_keep(OtAgent *agent, const OtReader *body);
extern void ot_agent_consume(OtAgent *agent);
extern void ot_agent_wait(OtAgent *agent, long timeout_ms);
extern bool ot_agent_peer_closed(OtAgent *agent);
extern const char *ot_agent_error(OtAgent *agent);
extern bool ot_agent_get_verdict(OtReader *body, OtVerdict *verdict);
extern OtLogIndex ot_agent_get_welcome(OtReader *body);
extern bool ot_agent_get_outcome_is(OtReader *body, OtOutcomeIs *outcome);
extern void ot_agent_get_entry(OtReader *body, OtEntry *entry);
extern bool ot_agent_get_rehearsed(OtReader *body, OtRehearsed *answer);
extern bool ot_agent_get_read_at(OtReader *body, OtReadAt *answer);
extern bool ot_agent_get_seen(OtReader *body, OtSeen *seen);
extern bool ot_agent_get_shown(OtReader *body, OtShown *shown);
extern bool ot_agent_get_locked(OtReader *body, OtLocked *locked);
extern void ot_agent_get_arriving(OtReader *body, OtArriving *arriving);

#endif							/* ONETRIP_NODE_H */
