/*-------------------------------------------------------------------------
 *
 * onetrip.h
 *	  What the modules of the extension offer each other.
 *
 * The words are those of docs/architecture.md.  Positions and ids are
 * one-field structs so that the compiler keeps them apart.
 *
 *	module			runs in				what it does
 *	access_method	backends			wraps heap's callbacks
 *	capture			backends			turns a row change into operations and keys
 *	write_set		backends			the buffer of both, with savepoints
 *	ddl, sequence	backends, worker	statements and sequences, both directions
 *	contents		backends, worker	all rows of a relation, both directions
 *	session			backends, worker	each statement and each error
 *	commit			backends			the one transaction callback
 *	turn			both				order of local commits, in shared memory
 *	agent			both				the socket to the node
 *	apply			apply worker		entries from other regions
 *	evict			worker, evictor		make a local transaction give way
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_H
#define ONETRIP_H

#include "postgres.h"

#include <time.h>

#include "access/tableam.h"
#include "datatype/timestamp.h"
#include "lib/stringinfo.h"
#include "nodes/lockoptions.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

#include "compat.h"
#include "errors.h"

/* A position in the log; 0 is before the first entry. */
typedef struct OtLogIndex
{
	uint64		value;
} OtLogIndex;

/* What two transactions can collide on. */
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

#define OT_TXN_ID_BYTES 20
/* "4294967295-ffffffffffffffff-ffffffffffffffff" and the final zero */
#define OT_TXN_ID_TEXT_MAX 48

/* PostgreSQL's four row-lock modes, as they stand in an entry. */
typedef enum OtKeyMode
{
	OT_KEY_SHARE = 0,
	OT_SHARE = 1,
	OT_NO_KEY_UPDATE = 2,
	OT_UPDATE = 3
} OtKeyMode;

/* settings.c */
extern char *ot_database;
extern char *ot_region;
extern char *ot_agent_socket;
extern int	ot_node_id;
extern int	ot_sequence_slot;
extern int	ot_sequence_stride;
extern int	ot_commit_timeout_ms;
extern int	ot_max_apply_delay_ms;
extern int	ot_rebuild_after_ms;
extern int	ot_max_write_set_kb;
extern bool ot_read_only;
extern bool ot_rehearse_statements;
extern int	ot_rehearse_timeout_ms;
extern int	ot_rehearse_lock_timeout_ms;
extern void ot_settings_init(void);

/* onetrip.c */
extern bool ot_preloaded;		/* in shared_preload_libraries */
extern bool ot_is_apply_worker; /* this process applies: it is the worker, or rehearses */
extern bool ot_is_rehearsing;	/* ... what is rolled back */
extern bool ot_in_replicated_database(void);	/* needs a transaction */
extern bool ot_capturing(void);
extern void ot_check_running(void);
extern void ot_check_writable(void);

/* access_method.c */
extern Oid	ot_access_method_oid(void);
extern bool ot_is_onetrip_table(Relation rel);
extern bool ot_contents_travel(Form_pg_class form);
extern bool ot_contents_of_travel(Oid relid);
extern const TableAmRoutine *ot_heap_routine(void);

/* write_set.c */
extern void ot_write_set_key(OtHash hash, OtKeyMode mode, OtLogIndex base, Oid relid);
extern void ot_write_set_key_now(OtHash hash, OtKeyMode mode, Oid relid);
extern void ot_write_set_entry(OtLogIndex base);
extern uint16 ot_write_set_relation(Relation rel);
extern StringInfo ot_write_set_append(void);
extern void ot_write_set_check_size(void);
extern bool ot_write_set_find_object(uint32 kind, Oid oid, uint32 *number);
extern void ot_write_set_looks_names_up(void);
extern uint32 ot_write_set_number_object(uint32 kind, Oid oid);
extern void ot_write_set_touch(void);
extern void ot_write_set_advance(void);
extern void ot_write_set_note_rows(Oid relid, int rows);
extern uint64 ot_write_set_rows(Oid relid);
extern bool ot_write_set_is_empty(void);
extern bool ot_write_set_has_statements(void);
extern void ot_write_set_statement(const char *text, int len);
extern bool ot_write_set_take_statement_back(void);
extern void ot_write_set_sequence(const char *schema, const char *name, int64 last_value, uint8 flags);
extern void ot_write_set_encode(OtTxnId txn, StringInfo out);
extern void ot_write_set_operations(StringInfo out);
extern Oid	ot_write_set_key_table(uint32 key_number);
extern void ot_write_set_subxact_start(int nest_level);
extern void ot_write_set_subxact_end(int nest_level, bool committed);
extern void ot_write_set_reset(void);

/* The first byte of a write set; 1 had none, and values in their text or binary form. */
#define OT_WRITE_SET_FORMAT	2

#define OT_SEQUENCE_EXACT		0x01	/* set, do not only raise */
#define OT_SEQUENCE_IS_CALLED	0x02

/* helpers of the wire format, little-endian */
extern void ot_put_u8(StringInfo buf, uint8 v);
extern void ot_put_u16(StringInfo buf, uint16 v);
extern void ot_put_u32(StringInfo buf, uint32 v);
extern void ot_put_u64(StringInfo buf, uint64 v);
extern void ot_put_str(StringInfo buf, const char *s);
extern void ot_put_txn(StringInfo buf, OtTxnId txn);

/* A reader that never reads past its end: it raises ERROR 08P01 instead. */
typedef struct OtReader
{
	const char *at;
	const char *end;
} OtReader;

extern uint8 ot_get_u8(OtReader *r);
extern uint16 ot_get_u16(OtReader *r);
extern uint32 ot_get_u32(OtReader *r);
extern uint64 ot_get_u64(OtReader *r);
extern char *ot_get_str(OtReader *r);	/* palloc'd, zero-terminated */
extern const char *ot_get_bytes(OtReader *r, uint32 len);
extern OtTxnId ot_get_txn(OtReader *r);
extern char *ot_txn_to_text(OtTxnId txn, char *out);
extern bool ot_txn_from_text(const char *text, OtTxnId *txn);

/* capture.c */
extern OtHash ot_hash_table(const char *schema, const char *name);
extern OtHash ot_hash_schema(void);
extern OtHash ot_hash_code(void);
extern OtHash ot_hash_relation(Oid relid);
extern void ot_capture_insert(Relation rel, TupleTableSlot *slot);
extern void ot_capture_update(Relation rel, ItemPointer otid, TupleTableSlot *slot,
							  LockTupleMode lockmode, bool indexes_changed);
extern void ot_capture_delete(Relation rel, ItemPointer tid);
extern void ot_capture_lock(Relation rel, TupleTableSlot *slot, LockTupleMode mode);
extern void ot_capture_contents(Relation rel, TupleTableSlot *slot);
extern void ot_capture_check_writable(Relation rel, bool needs_identity);
extern void ot_capture_init(void);
extern OtKeyMode ot_table_lock_to_mode(LOCKMODE lockmode);

/* ddl.c */
extern void ot_ddl_init(void);
extern void ot_ddl_apply_statement(OtReader *r);	/* behind the op byte 'S' */
extern void ot_ddl_before_file(Relation rel);
extern void ot_ddl_script_writes(Relation rel);
extern void ot_ddl_check_row_write(Relation rel);
extern bool ot_ddl_in_event_trigger;
extern void ot_ddl_check_function(const char *what);

/* sequence.c */
extern void ot_sequence_init(void);
/* a sequence this transaction has used, at commit */
extern void ot_sequence_capture(Oid relid);
extern void ot_sequence_apply(OtReader *r); /* behind the op byte 'Q' */
extern void ot_sequence_reshare(void);
/* values drawn without an entry */
extern void ot_sequence_drew(void);
extern bool ot_sequence_note_used(void);
extern void ot_sequence_note_aborted(void);
extern void ot_sequence_hold_used(void);
extern void ot_sequence_told_used(void);

/* unseen.c */
extern void ot_check_unseen_writes(void);

/* held_locks.c */
typedef struct OtHeldLock
{
	Oid			relid;
	LOCKMODE	mode;			/* the strongest one held */
} OtHeldLock;

extern OtHeldLock *ot_held_locks(int *count);
extern bool ot_held_locks_take_keys(void);
extern bool ot_held_locks_hold_up(void);
extern Oid	ot_table_of(Oid relid, char relkind);

/*
 * For waits and deadlines: microseconds on the clock that nobody sets, the same
 * in all processes of a server.  A wall clock that is set back would make
 * a deadline wait for hours.
 */
static inline TimestampTz
ot_now(void)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_MONOTONIC, &now);
	return (TimestampTz) now.tv_sec * USECS_PER_SEC + now.tv_nsec / 1000;
}

/* turn.c */
extern Size ot_turn_shmem_size(void);
extern void ot_turn_shmem_init(void);
extern OtLogIndex ot_applied_index(void);
extern OtLogIndex ot_turn_base_of_names(void);
extern void ot_turn_names_change(void);

/* commit.c */
extern void ot_commit_init(void);
extern void ot_commit_hold_turn(OtLogIndex index, bool flush);
extern struct OtAgent *ot_commit_agent(void);
extern OtTxnId ot_commit_tell_id(void);

/* evict.c */
extern void ot_evict_init(void);

#endif							/* ONETRIP_H */
