/*-------------------------------------------------------------------------
 *
 * apply.h
 *	  The worker that applies entries from other regions.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_APPLY_H
#define ONETRIP_APPLY_H

#include "onetrip.h"

/* apply.c */
extern void ot_apply_register(void);
extern PGDLLEXPORT void ot_apply_main(Datum arg);
extern void ot_apply_operations(OtReader *r);
extern void ot_apply_let_locks_go(void);
extern void ot_apply_set_up_session(void);
extern bool ot_apply_take_turn(void);

/* left_out.c */
struct OtEntry;
extern void ot_left_out_apply(const struct OtEntry *entry, OtReader *r);

/* apply_row.c: all in one transaction, between begin and end */
extern void ot_apply_rows_begin(void);
extern void ot_apply_relation(OtReader *r);
extern void ot_apply_insert(OtReader *r);
extern void ot_apply_update(OtReader *r);
extern void ot_apply_delete(OtReader *r);
extern void ot_apply_rows_close(void);

#endif							/* ONETRIP_APPLY_H */
