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

#include "utils/relcache.h"

/* apply.c */
extern void ot_apply_let_locks_go(void);
extern void ot_apply_set_up_session(void);
extern bool ot_apply_take_turn(void);

/* left_out.c */
extern void ot_left_out_apply(const OtEntry *entry, OtReader *r);

/* apply_row.c: all called in one transaction, between begin and close */
extern void ot_apply_rows_begin(void);
extern void ot_apply_rows_begin_write_set(void);
extern bool ot_apply_rows_are_many(void);
extern void ot_apply_relation(OtReader *r);
extern void ot_apply_insert(OtReader *r);
extern void ot_apply_update(OtReader *r);
extern void ot_apply_delete(OtReader *r);
extern void ot_apply_rows_close(void);

/* evict.c */
extern void ot_evict_xid(TransactionId xid, Relation rel);

#endif							/* ONETRIP_APPLY_INTERNAL_H */
