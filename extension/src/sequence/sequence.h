/*-------------------------------------------------------------------------
 *
 * sequence.h
 *	  Sequences that several regions draw from.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_SEQUENCE_H
#define ONETRIP_SEQUENCE_H

#include "node/node.h"

#include "storage/spin.h"

/* sequence.c */
extern void ot_sequence_init(void);
extern bool ot_sequence_relation_is_short(Oid relid);	/* its values are certified */

/* sequence_position.c */
extern void ot_sequence_capture(Oid relid); /* one that this transaction used */
extern void ot_sequence_apply(OtReader *r); /* after the op byte 'Q' */

/* sequence_reshare.c */
extern void ot_sequence_reshare(void);

/* sequence_used.c: values drawn without an entry */
#define OT_USED_SEQUENCES_MAX 256

typedef struct OtUsedSequence
{
	Oid			relid;
	uint64		version;		/* a new one each time it is noted */
	bool		only_noted;		/* by others than who is telling it */
	TimestampTz silent_until;	/* until then nobody tells it */
} OtUsedSequence;

/* In shared memory. */
typedef struct OtUsedSequences
{
	slock_t		mutex;
	int			count;
	uint64		versions;
	XLogRecPtr	moved;			/* where the last commit ends that made or set one */
	OtUsedSequence items[OT_USED_SEQUENCES_MAX];
} OtUsedSequences;

extern OtUsedSequences *ot_used_sequences;
extern bool ot_sequence_note_used(void);
extern void ot_sequence_note_aborted(void);
extern void ot_sequence_rehearses(void);
extern void ot_sequence_lock_used(void);
extern void ot_sequence_told_used(void);
extern void ot_sequence_lost_on(Oid relid);

#endif							/* ONETRIP_SEQUENCE_H */
