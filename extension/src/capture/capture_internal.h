/*-------------------------------------------------------------------------
 *
 * capture_internal.h
 *	  What the files of capture offer each other.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_CAPTURE_INTERNAL_H
#define ONETRIP_CAPTURE_INTERNAL_H

#include "capture/capture.h"

/* write_set.c */
extern uint16 ot_write_set_relation(Relation rel, uint32 layout);
extern void ot_write_set_check_size(void);
extern void ot_write_set_appended(void);
extern bool ot_write_set_is_appending(void);
extern bool ot_write_set_find_object(uint32 kind, Oid oid, uint32 *number);
extern void ot_write_set_looks_names_up(void);
extern bool ot_write_set_next_named(int *at, uint32 *kind, Oid *oid);
extern uint32 ot_write_set_number_object(uint32 kind, Oid oid);
extern void ot_write_set_note_rows(Oid relid, int rows);
extern void ot_write_set_take_back_from(int at);

/* write_set_keys.c; more of it is in capture.h */
extern void ot_write_set_keys_start(MemoryContext context);
extern void ot_write_set_keys_reset(void);
extern void ot_write_set_keys_settle(void);
extern int	ot_write_set_keys_count(void);
extern Oid	ot_write_set_keys_last_table(void);
extern int64 ot_write_set_keys_bytes(void);
extern void ot_write_set_keys_by_mode(int64 *counts);
extern List *ot_write_set_tables_of_keys(void);
extern void ot_write_set_keys_cut(int n);
extern void ot_write_set_keys_last_first(void);
extern void ot_write_set_keys_put(StringInfo out);
extern bool ot_write_set_has_key(OtHash hash, OtKeyMode mode);
extern uint64 ot_hash_to_show(uint64 hash);

/* write_set_notes.c; more of it is in capture.h */
extern void ot_write_set_notes_start(MemoryContext context);
extern void ot_write_set_notes_reset(void);
extern void ot_write_set_notes_cut(int len);
extern void ot_write_set_notes_put(StringInfo out);

/* access_method.c */
extern void ot_access_method_check_write(Relation rel);

/* large_object.c */
extern void ot_large_object_check_update(const PlannedStmt *stmt);
extern void ot_large_object_subxact_start(void);
extern void ot_large_object_subxact_end(int nest_level, bool committed);
extern void ot_large_object_reset(void);

/* unseen.c */
extern void ot_all_writes_seen(Relation rel);

/* reads.c */
extern void ot_reads_note_table(Relation rel);
extern void ot_reads_note_insert(Relation rel);
extern void ot_reads_note_value(Relation rel, OtHash hash);
extern void ot_reads_put_pending(ReturnSetInfo *result);
extern void ot_reads_fetch_begun(struct IndexFetchTableData *fetch);
extern void ot_reads_note_rolled_back(OtHash hash, Oid relid);
extern void ot_reads_fetch_reset(struct IndexFetchTableData *fetch);
extern void ot_reads_found_in_the_way(Relation rel, TupleTableSlot *slot);
extern void ot_reads_fetched(struct IndexFetchTableData *fetch, TupleTableSlot *slot);

/* row_hash.c */
extern uint64 ot_value_hash(Form_pg_attribute att, Datum value, uint64 before);

/* whole_row.c */
extern OtHash ot_whole_row_hash(OtRelInfo *info, TupleDesc desc, const Datum *values,
								const bool *nulls);
extern void ot_whole_row_note_cost(OtRelInfo *info, Relation rel);

/* locking_table.c */
extern bool ot_has_locking_label(Relation rel);

/* row_fits.c */
extern void ot_row_check_replicable(OtRelInfo *info, Relation rel, TupleTableSlot *slot);
extern void ot_row_check_fits_everywhere(OtRelInfo *info, Relation rel, TupleTableSlot *given, HeapTuple stored);

/* capture.c */
extern bool ot_capture_compute_index_value(Oid index, IndexInfo *info, TupleTableSlot *slot, EState *estate,
										   Datum *values, bool *nulls);
extern bool ot_capture_hash_index_value(OtIndex *index, TupleTableSlot *slot, OtHash *hash);
extern bool ot_capture_values_hash(OtIndex *index, Datum *values, OtHash *hash);
extern bool ot_capture_identity_hash(OtRelInfo *info, TupleTableSlot *slot, OtHash *hash);
extern bool ot_capture_lock_first(Relation rel, ItemPointer tid, OtKeyMode mode, LockWaitPolicy policy);
extern void ot_capture_lock_refused(void);
extern OtLogIndex ot_capture_speculative(Relation rel, TupleTableSlot *slot);
extern void ot_capture_insert(Relation rel, TupleTableSlot *slot, OtLogIndex base);
extern void ot_capture_update(Relation rel, ItemPointer otid, TupleTableSlot *slot,
							  LockTupleMode lockmode, bool indexes_changed);
extern void ot_capture_delete(Relation rel, ItemPointer tid, bool moves);
extern void ot_capture_lock(Relation rel, TupleTableSlot *slot, LockTupleMode mode);
extern void ot_capture_contents(Relation rel, TupleTableSlot *slot);

#endif							/* ONETRIP_CAPTURE_INTERNAL_H */
