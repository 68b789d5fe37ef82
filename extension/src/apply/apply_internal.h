/*-------------------------------------------------------------------------
 *
 * apply_internal.h
 *	  What the files of apply offer each other.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_APPLY_INTERNAL_H
#define ONETRIP_APPLY_INTERNAL_H

#include "apply/apply.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/tableam.h"
#include "postmaster/bgworker.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#include "capture/capture.h"

/* Where the rows of a table are (row_places.c). */
typedef struct OtRowPlaces OtRowPlaces;

/* The key of a row, and where the transaction has put the row. */
#define OT_RECENT_KEY_MAX 64
typedef struct OtRecentRow
{
	uint32		size;			/* of the key; 0: there is none */
	char		key[OT_RECENT_KEY_MAX];
	ItemPointerData place;
} OtRecentRow;

/* Finds rows of one table (find_row.c). */
#define OT_RECENT_ROWS 4
typedef struct OtRowFinder
{
	Relation	rel;
	TupleDesc	desc;
	OtRelInfo  *info;
	MemoryContext context;
	MemoryContext candidate_context;
	bool		whole_row;		/* the table has no identity */
	Relation	index;			/* NULL: the table is read */
	IndexScanDesc index_scan;
	TableScanDesc table_scan;
	int			scans;			/* of all of the table */
	int64		passed;			/* rows that were not the one, or entries of the index */
	bool		noted;			/* the places were to be noted */
	OtRowPlaces *places;		/* NULL: they are not, or there was no room */
	SnapshotData dirty;
	int			nkeys;
	ScanKeyData keys[INDEX_MAX_KEYS];
	Datum	   *values;			/* of the row to find */
	bool	   *nulls;
	Datum	   *stored;			/* the same, in the form that they had there */
	OtRowRead	row;
	OtRecentRow to_find;
	OtRecentRow recent[OT_RECENT_ROWS];
	int			oldest;			/* of `recent` */
} OtRowFinder;

/* apply.c */
extern void ot_apply_set_up_session(void);
extern bool ot_apply_says_entry(const ErrorContextCallback *context);
extern bool ot_apply_take_turn(void);
extern bool ot_apply_has_turn(void);
extern bool ot_apply_has_failed(void);

/* apply_operations.c; one more is in apply.h */
extern bool ot_apply_looks_names_up(const OtReader *r, TimestampTz *started);
extern void ot_apply_take_over_start_time(TimestampTz started);
extern void ot_apply_write_set(OtReader *r, const OtEntry *entry);
extern bool ot_apply_ran_functions(void);
extern bool ot_apply_is_around_operations(const ErrorContextCallback *context);
extern void ot_apply_let_locks_go(void);

/* arrival.c */
extern void ot_arrival_operation(uint8 op, OtReader *r);

/* left_out.c */
extern void ot_left_out_apply(const OtEntry *entry, OtReader *r);

/* prepared_here.c */
extern void ot_prepared_keep(OtReader *r, const OtEntry *entry);
extern bool ot_prepared_end(OtReader *r, OtReader *prepared);

/* apply_row.c: all called in one transaction, between begin and close */
extern void ot_apply_rows_begin(void);
extern void ot_apply_rows_begin_write_set(void);
extern bool ot_apply_rows_are_many(void);
extern bool ot_apply_rows_in_heap(void);
extern void ot_apply_relation(OtReader *r);
extern void ot_apply_insert(OtReader *r, int options);
extern void ot_apply_rows_end_batch(void);
extern void ot_apply_update(OtReader *r);
extern void ot_apply_delete(OtReader *r, bool moves);
extern void ot_apply_rows_close(void);

/* apply_large_object.c */
extern void ot_apply_large_object(OtReader *r);

/* find_row.c */
extern void ot_row_finder_open(OtRowFinder *finder, Relation rel, TupleDesc desc, OtRelInfo *info);
extern void ot_row_finder_read(OtRowFinder *finder, OtReader *r);
extern void ot_row_finder_find(OtRowFinder *finder, TupleTableSlot *slot);
extern void ot_row_finder_written(OtRowFinder *finder, TupleTableSlot *row);
extern void ot_row_finder_close(OtRowFinder *finder);

/* row_places.c */
extern OtRowPlaces *ot_row_places_make(MemoryContext parent);
extern bool ot_row_places_add(OtRowPlaces *places, uint64 hash, ItemPointer tid);
extern ItemPointer ot_row_places_find(OtRowPlaces *places, uint64 hash, int32 **link);
extern void ot_row_places_pass(OtRowPlaces *places, int32 **link);
extern void ot_row_places_forget(OtRowPlaces *places, int32 **link);
extern void ot_row_places_free(OtRowPlaces *places);

/* sql_worker.c: a step of a worker, which may raise ERROR, and what it is about */
typedef void (*OtStep) (void *what);

extern void ot_sql_worker_describe(BackgroundWorker *worker, const char *name, const char *function);
extern void ot_sql_worker_start(const char *name);
extern void ot_sql_worker_launch(const char *name, const char *function, const char *without, bool *told);
extern void ot_sql_worker_set(const char *name, const char *value);
extern void ot_sql_worker_check(void);
extern void ot_sql_worker_wait(long ms);
extern void ot_sql_worker_begin(void);
extern void ot_sql_worker_end(void);
extern void ot_sql_worker_execute(const char *query, int expected);
extern bool ot_sql_worker_may_have_rows(const char *const *tables, int ntables);
extern char *ot_sql_worker_try(OtStep step, void *what, int *code);

/* jobs.c */
extern void ot_jobs_report(const char *report, const char *which);

/* Has this row of onetrip.job_here been done, as far as this server goes by itself? */
#define OT_IS_DONE(row) row ".sqlstate IS NOT DISTINCT FROM '" OT_JOB_DONE "'"
/* Is this row of onetrip.job_here or job_report about a partition (detach_users.c)? */
#define OT_IS_DETACH(row) row ".statement ^@ 'ALTER TABLE'"

extern void ot_detach_users_launch_if_wanted(void);

/* move_subscription.c */
extern void ot_move_subscription_launch(void);

/* evict.c */
extern void ot_evict_xid(TransactionId xid, Relation rel);

#endif							/* ONETRIP_APPLY_INTERNAL_H */
