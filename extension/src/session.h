/*-------------------------------------------------------------------------
 *
 * session.h
 *	  What happens at each statement and at each error of a session.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_SESSION_H
#define ONETRIP_SESSION_H

#include "onetrip.h"

extern void ot_session_init(void);
extern void ot_session_watch_errors(void);
extern void ot_session_keep_watching(void);
extern void ot_session_end_later(void);

/* What an error is asked, in this order; true: it has been put into words. */
extern bool ot_commit_reword(const ErrorData *edata);	/* commit.c */
extern bool ot_evict_reword(const ErrorData *edata);	/* evict.c */
extern void ot_apply_note_failure(const ErrorData *edata);	/* apply.c */

/* Would they look at an error now?  Cheap. */
extern bool ot_commit_minds_errors(void);
extern bool ot_evict_minds_errors(void);

#endif							/* ONETRIP_SESSION_H */
