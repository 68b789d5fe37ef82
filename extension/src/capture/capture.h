/*-------------------------------------------------------------------------
 *
 * capture.h
 *	  What a transaction has changed: capturing it, its wire form, reading it.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_CAPTURE_H
#define ONETRIP_CAPTURE_H

#include "capture/contents.h"
#include "capture/object_name.h"
#include "capture/rel_info.h"
#include "capture/row_image.h"
#include "capture/session_settings.h"
#include "capture/stored_type.h"
#include "node/node.h"
#include "shmem/shmem.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "nodes/lockoptions.h"
#include "nodes/parsenodes.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

/* PostgreSQL's four row-lock modes, with their numbers in an entry. */
typedef enum OtKeyMode
{
	OT_KEY_SHARE = 0,
	OT_SHARE = 1,
	OT_NO_KEY_UPDATE = 2,
	OT_UPDATE = 3
} OtKeyMode;

#define OT_KEY_MODES (OT_UPDATE + 1)

/* How much a transaction has captured so far. */
typedef struct OtWriteSetSizes
{
	int64		rows;			/* written by way of the access method */
	int64		bytes;			/* of operations */
	int64		keys[OT_KEY_MODES];
} OtWriteSetSizes;

/*
 * How ddl, a wing above, learns of writes to tables.  It registers these
 * callbacks once, while the library is loaded.
 */
typedef struct OtTableWatch
{
	void		(*check_row_write) (Relation rel);	/* before it; may raise ERROR */
	void		(*script_writes) (Relation rel);	/* an extension's script does */
	void		(*before_file) (Relation rel);	/* before the table gets an empty file */
	void		(*before_build) (Relation index);	/* before an index that is not valid is filled anew */
} OtTableWatch;

/*
 * How commit, a wing above, gets a row's lock at the leader before the row is
 * changed or locked here.  false: somebody else has it, and the policy says not
 * to wait.
 */
typedef bool (*OtRowLockCallback) (Relation rel, OtHash hash, OtKeyMode mode, LockWaitPolicy policy);

/* access_method.c */
extern void ot_access_method_watch(const OtTableWatch *watch);
extern Oid	ot_access_method_oid(void);
extern bool ot_is_onetrip_table(Relation rel);
/*
 * Is this the new heap that a rewrite of another table fills?  The extension's
 * own tables carry their own number there, so that logical decoding leaves them
 * out as it leaves out such heaps.
 */
#define OT_FILLS_FOR_REWRITE(rel) \
	(OidIsValid((rel)->rd_rel->relrewrite) && (rel)->rd_rel->relrewrite != RelationGetRelid(rel))

extern bool ot_contents_travel(Form_pg_class form);
extern bool ot_contents_of_travel(Oid relid);

/* write_set.c */
/* What an entry is, in the log. */
typedef enum OtEntryKind
{
	OT_ENTRY_TRANSACTION = 0,
	OT_ENTRY_PREPARE = 7,
	OT_ENTRY_COMMIT_PREPARED = 8,
	OT_ENTRY_ROLLBACK_PREPARED = 9
} OtEntryKind;

/* The first byte of a write set. */
#define OT_WRITE_SET_FORMAT	2

#define OT_SEQUENCE_EXACT		0x01	/* set to the value, even if it is lower */
#define OT_SEQUENCE_IS_CALLED	0x02

extern StringInfo ot_write_set_append(void);
extern void ot_write_set_touch(void);
extern uint64 ot_write_set_rows(Oid relid);
extern int64 ot_write_set_all_rows(int64 *bytes);
extern void ot_write_set_sizes(OtWriteSetSizes *sizes);
extern bool ot_write_set_is_empty(void);
extern bool ot_write_set_has_statements(void);
extern void ot_write_set_statement(const char *text, bool is_script);
extern bool ot_write_set_take_statement_back(void);
extern void ot_write_set_sequence(const char *schema, const char *name, int64 last_value, uint8 flags);
extern bool ot_write_set_sets_sequence(void);
extern void ot_write_set_wrap(OtEntryKind kind, OtHash name, OtLogIndex base, StringInfo operations);
extern void ot_write_set_encode(OtTxnId txn, StringInfo out);
extern int	ot_write_set_operations_length(void);
extern void ot_write_set_operations_from(int at, StringInfo out);
extern void ot_write_set_operations(StringInfo out);
extern void ot_write_set_statements(StringInfo out);
extern List *ot_write_set_key_tables(void);
extern void ot_write_set_note_named(uint32 number);
extern int	ot_write_set_tables(Oid *relids, int max);
extern void ot_write_set_subxact_start(int nest_level);
extern void ot_write_set_subxact_end(int nest_level, bool committed);
extern void ot_write_set_close(void);
extern void ot_write_set_reset(void);

/* write_set_keys.c */
extern void ot_write_set_key(OtHash hash, OtKeyMode mode, OtLogIndex base, Oid relid);
extern void ot_write_set_key_now(OtHash hash, OtKeyMode mode, Oid relid);
extern void ot_write_set_raise_base(OtHash hash, OtKeyMode mode, OtLogIndex base);
extern void ot_write_set_row_key(OtHash hash, OtKeyMode mode, OtLogIndex base, Oid relid,
								 const ItemPointerData *tid);
extern void ot_write_set_read_key(OtHash hash, OtKeyMode mode, OtLogIndex base, Oid relid);
extern void ot_write_set_entry(OtLogIndex base);
extern void ot_write_set_advance(void);
extern bool ot_write_set_key_is_read(uint32 key_number);
extern Oid	ot_write_set_key_table(uint32 key_number);
extern ItemPointerData ot_write_set_key_row(uint32 key_number, OtHash *hash);

/* write_set_notes.c */
extern void ot_write_set_notification(const char *channel, const char *payload);
extern bool ot_write_set_has_notifications(void);
extern int64 ot_write_set_notification_bytes(void);

/* locking_table.c */
extern void ot_locking_table_init(void);

/* capture.c */
extern bool ot_locks_rows_first(Relation rel);
extern void ot_capture_init(void);
extern void ot_capture_lock_first_with(OtRowLockCallback callback, void (*refused) (void));
#define OT_SEED_TABLE	UINT64CONST(0x6f6e65747269700a)

extern OtHash ot_hash_table(const char *schema, const char *name);
extern OtHash ot_hash_schema(void);
extern OtHash ot_hash_code(void);
extern OtHash ot_hash_relation(Oid relid);
extern OtKeyMode ot_table_lock_to_mode(LOCKMODE lockmode);
extern OtKeyMode ot_row_lock_to_mode(LockTupleMode mode);
extern bool ot_capture_row_key(Relation rel, ItemPointer tid, OtKeyMode *mode, OtHash *hash);

/* describe_key.c */
extern void ot_describe_key(uint32 key_number, OtConflictKey *key);

/* whole_row.c */
extern void ot_whole_row_prepare(OtRelInfo *info, TupleDesc desc, Datum *values, const bool *nulls);
extern uint64 ot_whole_row_short_hash(OtRelInfo *info, TupleDesc desc, const Datum *values, const bool *nulls);
extern bool ot_whole_row_equals(OtRelInfo *info, TupleDesc desc, const Datum *values,
								const bool *nulls, TupleTableSlot *slot);

/* large_object.c */
extern OtHash ot_hash_large_objects(void);
extern void ot_large_object_check(void);
extern void ot_large_object_check_read_only(void);
extern void ot_large_object_created(Oid loid);
extern void ot_large_object_unlinked(Oid loid);
extern void ot_large_object_capture_cuts(void);
extern SysScanDesc ot_large_object_scan(Relation rel, Relation index, Oid loid, int32 pageno,
										StrategyNumber strategy, RegProcedure compare);

/* temporary_function.c */
extern void ot_temporary_function_init(void);
extern bool ot_temporary_functions_possible(void);
extern void ot_temporary_functions_note(bool possible);
extern bool ot_type_is_temporary(Oid type);
extern Oid	ot_temporary_schema(const ObjectAddress *object);
extern Oid	ot_function_temporary_schema(Oid function, ObjectAddress *found);
extern bool ot_function_is_temporary(Oid function);

/* own_locks.c */
typedef struct OtHeldLock
{
	Oid			relid;
	LOCKMODE	mode;			/* the strongest one held */
} OtHeldLock;

extern OtHeldLock *ot_held_locks(int *count);
extern void ot_lock_table_note(LockStmt *stmt);
extern void ot_lock_table_take_keys(void);
extern OtHeldLock *ot_held_catalog_locks(int *count);
extern void ot_held_lock_is_to_finalize(Oid relid);
extern bool ot_may_hold_write_lock(void);

/* unseen.c */
extern void ot_check_unseen_writes(void);
extern uint64 ot_unseen_catalog_rows(void);
extern void ot_unseen_catalog_rows_travel(uint64 before);
extern Oid	ot_unseen_written_here(void);

/* reads.c */
extern void ot_reads_init(void);

/* own_tables.c */
extern void ot_own_tables_init(void);
extern void ot_own_tables_check_statement(Node *stmt);
extern void ot_reads_check_may_hold(void);
extern void ot_reads_take_keys(void);

#endif							/* ONETRIP_CAPTURE_H */
