/*-------------------------------------------------------------------------
 *
 * base.h
 *	  What every wing of the extension uses.
 *
 * The extension is built in wings, one folder each.  A wing includes its own
 * headers and the public ones, folder/folder.h, of wings below it:
 *
 *	wing		runs in				what it does
 *	apply		worker, evictor		entries from other regions; eviction
 *	commit		backends, worker	the way through COMMIT; the order of local commits
 *	sequence	backends, worker	sequences, both directions
 *	ddl			backends, worker	utility statements, both directions
 *	capture		backends, worker	what a transaction changed, both directions of a row
 *	node		backends, worker	the socket to the node, and the wire format
 *	shmem		all					how far each process is, in shared memory
 *	base		all					settings, ids, errors, PostgreSQL's versions
 *
 * onetrip.c is above them all.  Where a call has to go up, the upper wing
 * registers a callback, as extensions do with PostgreSQL's hooks: the table
 * watch (capture.h), the session's failure callback (commit.h).
 * scripts/include-direction.sh checks the order of this table.
 *
 * The terms are those of docs/glossary.md.  Positions and hashes are
 * one-field structs so that the compiler keeps them apart.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_BASE_H
#define ONETRIP_BASE_H

#include "postgres.h"

#include <time.h>

#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/errors.h"
#include "base/stop_point.h"

/* A log index; 0 is before the first entry. */
typedef struct OtLogIndex
{
	uint64		value;
} OtLogIndex;

/* Of what two transactions can collide on: a key without mode and base. */
typedef struct OtHash
{
	uint64		value;
} OtHash;

typedef struct OtTxnId
{
	uint32		node;
	uint64		incarnation;
	uint64		sequence;
} OtTxnId;

/* The values of onetrip.read. */
typedef enum OtRead
{
	OT_READ_LOCAL = 0,
	OT_READ_FRESH
} OtRead;

/* The values of onetrip.concurrency. */
typedef enum OtConcurrency
{
	OT_CONCURRENCY_OPTIMISTIC = 0,
	OT_CONCURRENCY_LOCKING
} OtConcurrency;

/* The values of onetrip.ack. */
typedef enum OtAck
{
	OT_ACK_QUORUM = 0,
	OT_ACK_APPLIED_EVERYWHERE
} OtAck;

/* The values of onetrip.new_tables. */
typedef enum OtNewTables
{
	OT_NEW_TABLES_REPLICATED = 0,
	OT_NEW_TABLES_LOCAL
} OtNewTables;

/*
 * The highest format level that this library knows.  The node asks for it as
 * the largest value of onetrip.format_level, so a library of any release can
 * be asked.
 */
#define OT_FORMAT_LEVEL_KNOWN	1

/* settings.c */
extern char *ot_database;
extern char *ot_region;
extern char *ot_agent_socket;
extern int	ot_node_id;
extern int	ot_format_level;
extern uint64 ot_key_seed;
extern int	ot_trace_every;
extern int	ot_sequence_slot;
extern int	ot_sequence_stride;
extern bool ot_show_sequence_shares;
extern int	ot_commit_timeout_ms;
extern int	ot_ack;
extern int	ot_max_prepared_transactions;
extern int	ot_max_trips;
extern int	ot_statement_retries;
extern bool ot_commit_notices;
extern bool ot_retry_procedures;
extern int	ot_max_staleness_ms;
extern int	ot_read;			/* OtRead */
extern int	ot_new_tables;		/* OtNewTables */
extern int	ot_concurrency;		/* OtConcurrency */
extern int	ot_max_apply_delay_ms;
extern int	ot_rebuild_after_ms;
extern int	ot_subscription_move_after_s;
extern int	ot_max_write_set_kb;
extern bool ot_read_only;
extern bool ot_rehearse_statements;
extern int	ot_rehearse_timeout_ms;
extern int	ot_rehearse_lock_timeout_ms;
extern void ot_settings_init(void);
extern void ot_settings_set_up_worker(void);

/*
 * Doubles the room of an array.  After an ERROR, which a savepoint may catch, the
 * array and its room are what they were.
 */
static inline void *
ot_make_room(void *array, int *max, Size element)
{
	array = repalloc_huge(array, element * *max * 2);
	*max *= 2;
	return array;
}

/* process.c */
extern bool ot_preloaded;		/* in shared_preload_libraries */
extern bool ot_is_apply_worker; /* this process applies: it is a worker, or rehearses */
extern bool ot_builds_indexes;	/* this is the job worker: what it runs of a user's are
								 * functions of indexes */
extern bool ot_is_rehearsing;	/* this process rehearses: all is rolled back; or it
								 * writes early, and it may have to be */
extern bool ot_is_comparing;	/* it rehearses for the change of the catalogs alone:
								 * tables seem to have no rows */
extern bool ot_writes_early;	/* this is the arrival worker */
extern bool ot_in_event_trigger;	/* its function runs, in a recorded statement */
extern bool ot_in_replicated_database(void);	/* needs a transaction */
extern bool ot_capturing(void);
extern void ot_check_writable(void);
extern void ot_swallow_error(MemoryContext context, uint32 holdoff);
extern void ot_wait_latch(long ms);

/* user_context.c */
#define OT_USER_RESTRICTED		(SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION)

typedef struct OtUserContext
{
	Oid			user;
	int			security_context;
	int			nest_level;		/* 0: settings are not undone */
	bool		read_only;
} OtUserContext;

extern void ot_user_set_up(void);
extern void ot_user_enter(OtUserContext *saved, Oid role, bool own_settings);
extern void ot_user_leave(const OtUserContext *saved);
extern void ot_user_log_in(Oid role);
extern void ot_user_log_out(int nest_level);
extern void ot_user_check_may_call(Oid function);

/*
 * Checked in builds with stop points, and for a PostgreSQL that was built with
 * assertions.  Debian's was not.
 */
#if defined(ONETRIP_STOP_POINTS) || defined(USE_ASSERT_CHECKING)
#define OT_ASSERT(condition) \
	do { \
		if (!(condition)) \
			elog(PANIC, "onetrip: %s:%d: not so: %s", __FILE__, __LINE__, #condition); \
	} while (0)
#else
#define OT_ASSERT(condition) ((void) sizeof(condition))
#endif

/*
 * For waits and deadlines: microseconds on the monotonic clock, which is the
 * same in all processes of a server.  With a wall clock that is set back, a
 * deadline could be hours away.
 */
static inline TimestampTz
ot_now(void)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_MONOTONIC, &now);
	return (TimestampTz) now.tv_sec * USECS_PER_SEC + now.tv_nsec / 1000;
}

/* Milliseconds left until the deadline; 0 if it has passed. */
static inline long
ot_ms_until(TimestampTz deadline)
{
	return Max(TimestampDifferenceMilliseconds(ot_now(), deadline), 0);
}

#endif							/* ONETRIP_BASE_H */
