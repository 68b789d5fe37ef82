/*-------------------------------------------------------------------------
 *
 * contents.h
 *	  All rows of a relation at once.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_CONTENTS_H
#define ONETRIP_CONTENTS_H

#include "node/node.h"

#define OT_EMPTIED_POPULATED	0x01	/* a materialized view that may be read */
#define OT_EMPTIED_RESTART		0x02	/* its sequences restart */
#define OT_EMPTIED_BY_ROWS		0x04	/* readers go on: REFRESH ... CONCURRENTLY */
#define OT_EMPTIED_OWN			0x08	/* until now its rows were each region's own */
#define OT_EMPTIED_TRUNCATED	0x10	/* by TRUNCATE: to be decoded as such */
#define OT_EMPTIED_CASCADE		0x20	/* ... CASCADE */
#define OT_EMPTIED_LAST			0x40	/* the last table of that TRUNCATE */

extern void ot_contents_emptied(Oid relid, uint8 flags);
extern void ot_contents_note(Oid relid, uint8 flags);
extern void ot_contents_note_matview(Oid relid, bool concurrently);
extern void ot_contents_apply_begin(void);
extern void ot_contents_apply_emptied(OtReader *r); /* after the op byte 'E' */

#endif							/* ONETRIP_CONTENTS_H */
