/*-------------------------------------------------------------------------
 *
 * evict.h
 *	  Making a local transaction give way to an entry that is decided.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_EVICT_H
#define ONETRIP_EVICT_H

#include "onetrip.h"

extern void ot_evict_take_mark(void);
extern void ot_evict_check(void);
extern void ot_evict_xid(TransactionId xid, Relation rel);
extern PGDLLEXPORT void ot_evictor_main(Datum arg);

#endif							/* ONETRIP_EVICT_H */
