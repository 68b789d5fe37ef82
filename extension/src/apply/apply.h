/*-------------------------------------------------------------------------
 *
 * apply.h
 *	  Applies entries from other regions, and evicts what is in their way.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_APPLY_H
#define ONETRIP_APPLY_H

#include "node/node.h"

/* apply.c */
extern void ot_apply_register(void);
extern PGDLLEXPORT void ot_apply_main(Datum arg);
extern bool ot_apply_operations(OtReader *r);
extern bool ot_apply_failure_passes(const ErrorData *edata);

/* arrival.c */
extern void ot_arrival_register(void);
extern PGDLLEXPORT void ot_arrival_main(Datum arg);

/* evict.c */
extern void ot_evict_init(void);
extern PGDLLEXPORT void ot_evictor_main(Datum arg);

/* jobs.c */
extern void ot_jobs_init(void);
extern PGDLLEXPORT void ot_jobs_main(Datum arg);

/* detach_users.c */
extern void ot_detach_users_init(void);
extern PGDLLEXPORT void ot_detach_users_main(Datum arg);

/* move_subscription.c */
extern PGDLLEXPORT void ot_move_subscription_main(Datum arg);

#endif							/* ONETRIP_APPLY_H */
