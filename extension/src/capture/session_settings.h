/*-------------------------------------------------------------------------
 *
 * session_settings.h
 *	  Settings of a session that affect what is computed from values.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_SESSION_SETTINGS_H
#define ONETRIP_SESSION_SETTINGS_H

#include "node/node.h"

#include "utils/guc.h"

/* Which settings the write set has told its reader so far. */
typedef struct OtNotedSettings
{
	uint64		all;			/* a hash of the last ones; 0: none */
	int			compression;	/* default_toast_compression; 0: the reader's own */
} OtNotedSettings;

/* in the region of the transaction */
extern bool ot_session_settings_travel(const char *name);
extern void ot_session_settings_put_all(StringInfo ops, bool of_script);
extern void ot_session_settings_note(bool functions, bool custom_too);
extern OtNotedSettings ot_session_settings_noted(void);
extern void ot_session_settings_forget(OtNotedSettings before);
extern void ot_session_settings_be_plain(void);

/* in the apply worker */
extern void ot_session_settings_set_up(void);
extern void ot_session_settings_begin(void);
extern void ot_session_settings_read(OtReader *r);	/* after the op byte 'G' */
extern Oid	ot_session_settings_role(void);
extern void ot_session_settings_end(void);
extern void ot_session_settings_apply(OtReader *r, Oid as, bool of_statement);
extern void ot_session_settings_end_statement(void);
extern bool ot_session_settings_worn_out(void);

#endif							/* ONETRIP_SESSION_SETTINGS_H */
