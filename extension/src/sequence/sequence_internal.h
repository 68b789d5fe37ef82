/*-------------------------------------------------------------------------
 *
 * sequence_internal.h
 *	  What the files of sequence offer each other.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_SEQUENCE_INTERNAL_H
#define ONETRIP_SEQUENCE_INTERNAL_H

#include "sequence/sequence.h"

#include "nodes/parsenodes.h"
#include "utils/relcache.h"

#ifndef HAVE_INT128
#error "Onetrip needs a compiler with 128-bit integers"
#endif

/* pg_proc.dat's numbers of functions to whose place ours come: nextval, both setval, pg_sequence_last_value */
#define OT_NEXTVAL_OID 1574
#define OT_SETVAL_OID 1576
#define OT_SETVAL3_OID 1765
#define OT_LAST_VALUE_OID 4032

/*
 * A sequence as its owner defined it.  anchor is an own value of slot 0: the
 * first start value, which is kept when START changes later.
 */
typedef struct OtSequence
{
	int64		start;
	int64		increment;
	int64		minimum;
	int64		maximum;
	int64		anchor;
	int64		cache;
	bool		cycle;
} OtSequence;

/* What one node's pg_sequence contains for it. */
typedef struct OtSequenceHere
{
	int64		start;
	int64		increment;
	int64		minimum;
	int64		maximum;
	int64		cache;
} OtSequenceHere;

/* What a sequence's own relation contains. */
typedef struct OtPosition
{
	int64		last_value;
	bool		is_called;
} OtPosition;

/*
 * One node's share: every stride'th increment, from the slot'th on.  With stride
 * 1 all values: in a dense cluster, and of a short sequence.
 */
typedef struct OtShare
{
	int			slot;
	int			stride;
} OtShare;

/* A sequence as the catalogs of this node have it. */
typedef struct OtSequenceLoaded
{
	OtSequence	user;			/* as its owner defined it */
	OtSequenceHere here;		/* as pg_sequence has it */
	bool		adjusted;		/* there are reloptions, so the two may differ */
} OtSequenceLoaded;

/* sequence_share.c: arithmetic, without catalogs */
extern bool ot_sequence_is_short(const OtSequence *seq, int stride);
extern OtSequenceHere ot_sequence_here(const OtSequence *seq, OtShare share);
extern OtPosition ot_sequence_place(const OtSequence *seq, OtShare share,
									int64 value, bool is_called);
extern bool ot_sequence_raise(const OtSequence *seq, OtShare share,
							  OtPosition *position, int64 value);
extern OtPosition ot_sequence_clamp(const OtSequence *seq, OtShare share,
									OtPosition position);
extern OtPosition ot_sequence_hand_over(const OtSequence *seq, OtShare share,
										int64 step, OtPosition position);

/* sequence.c */
extern bool ot_sequence_is_active(void);
extern OtShare ot_sequence_own_share(const OtSequence *seq);
extern bool ot_sequence_load(Oid relid, OtSequenceLoaded *seq);
extern void ot_sequence_adjust(Oid relid, const OtSequence *user);
extern void ot_sequence_set_position(Oid relid, const OtSequence *seq, OtPosition position);

/* sequence_position.c */
extern OtPosition ot_sequence_page_read(Relation rel);
extern void ot_sequence_page_write(Relation rel, const OtSequence *seq,
								   OtPosition target, bool raise);

/* sequence_shown.c */
extern void ot_sequence_show_definitions(Query *query);

/* sequence_used.c */
extern void ot_sequence_used_init(void);
extern void ot_sequence_drew(void);
extern void ot_sequence_looked(void);
extern void ot_sequence_moved(void);
extern bool ot_sequence_note_one(Oid relid);

#endif							/* ONETRIP_SEQUENCE_INTERNAL_H */
