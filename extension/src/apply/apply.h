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

/*
 * What is wrong if a write set cannot be carried out here.  A rehearsal fails if it
 * is the write set, or if the server lacks something.  The worker waits if it passes,
 * or if the server lacks something; else a copy of another server helps.
 */
typedef enum OtFault
{
	OT_FAULT_PASSES,			/* something that goes away by itself, or is an operator's to mend */
	OT_FAULT_LACKS,				/* the server has no such library, or a limit that is too low */
	OT_FAULT_OF_DATA,			/* the server's files are damaged */
	OT_FAULT_OF_WRITE_SET
} OtFault;

/* apply.c */
extern void ot_apply_register(void);
extern PGDLLEXPORT void ot_apply_main(Datum arg);

/* apply_operations.c */
extern bool ot_apply_operations(OtReader *r);

/* apply_fault.c */
extern OtFault ot_apply_fault(const ErrorData *edata);

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
