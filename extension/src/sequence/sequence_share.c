/*-------------------------------------------------------------------------
 *
 * sequence_share.c
 *	  Computes which values of a sequence are this node's own.
 *
 * A sequence's values are numbered k = (value - anchor) / increment; those
 * with k mod stride = slot are own values of the node with that slot.  "After"
 * and "before" follow the direction of the sequence: all is computed with
 * direction * value, so that a descending sequence needs no separate case.
 *
 * With stride 1 (dense) every integer is an own value, whatever the increment,
 * as in plain PostgreSQL: setval may go to any value.
 *
 * Nothing here raises ERROR, allocates, or looks at a catalog.  128-bit
 * integers make overflow impossible: all inputs are 64 bits, stride at most
 * 1024.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "sequence/sequence_internal.h"

#define DIRECTION(seq) ((seq)->increment > 0 ? 1 : -1)

/* The bounds in the direction of the sequence: first <= last. */
#define FIRST(seq) ((int128) ((seq)->increment > 0 ? (seq)->minimum : -(int128) (seq)->maximum))
#define LAST(seq) ((int128) ((seq)->increment > 0 ? (seq)->maximum : -(int128) (seq)->minimum))

static int128
sequence_share_floor_mod(int128 a, int128 m)
{
	int128		r = a % m;

	return r < 0 ? r + m : r;
}

/* The distance from a, which is a value * direction, to the next own value. */
static int128
sequence_share_steps_ahead(const OtSequence *seq, OtShare share, int128 a)
{
	int128		increment = (int128) seq->increment * DIRECTION(seq);
	int128		own = (int128) seq->anchor * DIRECTION(seq) + increment * share.slot;

	if (share.stride == 1)
		return 0;
	return sequence_share_floor_mod(own - a, increment * share.stride);
}

static int128
sequence_share_own_at_or_after(const OtSequence *seq, OtShare share, int128 a)
{
	return a + sequence_share_steps_ahead(seq, share, a);
}

static int128
sequence_share_own_at_or_before(const OtSequence *seq, OtShare share, int128 a)
{
	int128		distance = sequence_share_steps_ahead(seq, share, a);
	int128		step = (int128) seq->increment * DIRECTION(seq) * share.stride;

	return distance == 0 ? a : a + distance - step;
}

/*
 * Is there, for some slot, no value between start and the end?  The answer is
 * the same on every node.
 */
bool
ot_sequence_is_short(const OtSequence *seq, int stride)
{
	int			direction = DIRECTION(seq);
	int128		increment = (int128) seq->increment * direction;
	int128		first;

	if (stride == 1)
		return false;
	first = (int128) seq->start * direction;
	first += sequence_share_floor_mod((int128) seq->anchor * direction - first, increment);
	return first + increment * (stride - 1) > LAST(seq) || increment * stride > PG_INT64_MAX;
}

/*
 * The definition for this node's pg_sequence.  nextval only compares with the
 * far bound, so that one is kept as it is; but it wraps around *to* the near
 * bound, which must therefore be an own value if the sequence cycles.
 */
OtSequenceHere
ot_sequence_here(const OtSequence *seq, OtShare share)
{
	int			direction = DIRECTION(seq);
	OtSequenceHere here;

	here.start = (int64) (sequence_share_own_at_or_after(seq, share, (int128) seq->start * direction) * direction);
	here.increment = (int64) ((int128) seq->increment * share.stride);
	here.minimum = seq->minimum;
	here.maximum = seq->maximum;
	here.cache = seq->cache;
	if (seq->cycle)
	{
		int64		near = (int64) (sequence_share_own_at_or_after(seq, share, FIRST(seq)) * direction);

		if (direction > 0)
			here.minimum = near;
		else
			here.maximum = near;
	}
	return here;
}

/*
 * The position on this node after setval(value, is_called) or RESTART WITH
 * value: nextval then returns the first own value after `value`, or at or after
 * it if is_called is false.  If there is none before the end, the position is
 * the last own value, already called, and nextval says that the end is reached
 * (or wraps around).
 */
OtPosition
ot_sequence_place(const OtSequence *seq, OtShare share, int64 value, bool is_called)
{
	int			direction = DIRECTION(seq);
	int128		a = (int128) value * direction;
	OtPosition	position;
	int128		own;

	if (is_called)
	{
		own = sequence_share_own_at_or_before(seq, share, a);
		if (own < FIRST(seq))
		{
			own = sequence_share_own_at_or_after(seq, share, FIRST(seq));
			is_called = false;
		}
	}
	else
	{
		own = sequence_share_own_at_or_after(seq, share, a);
		if (own > LAST(seq))
		{
			own = sequence_share_own_at_or_before(seq, share, LAST(seq));
			is_called = true;
		}
	}
	position.last_value = (int64) (own * direction);
	position.is_called = is_called;
	return position;
}

/*
 * Another node has given out `value`: moves the position so that nextval goes
 * on after it, but never back.  Returns whether the position changed.
 *
 * The new position is the next own value, not yet given out.  That is what a
 * dump of this server must contain: whoever restores it elsewhere, without
 * shares, goes on there, above all values of all nodes.
 */
bool
ot_sequence_raise(const OtSequence *seq, OtShare share, OtPosition *position, int64 value)
{
	int			direction = DIRECTION(seq);
	int128		here = (int128) position->last_value * direction;
	int128		there = (int128) value * direction;
	int128		own;

	if (there > LAST(seq))
		there = LAST(seq);
	if (there < FIRST(seq) || there < here || (there == here && position->is_called))
		return false;
	own = share.stride == 1 ? there : sequence_share_own_at_or_after(seq, share, there + 1);
	position->is_called = share.stride == 1 || own > LAST(seq);
	if (own > LAST(seq))
		own = sequence_share_own_at_or_before(seq, share, LAST(seq));
	position->last_value = (int64) (own * direction);
	return true;
}

/* The position after the bounds were changed: moved if it is outside them. */
OtPosition
ot_sequence_clamp(const OtSequence *seq, OtShare share, OtPosition position)
{
	int			direction = DIRECTION(seq);
	int128		here = (int128) position.last_value * direction;
	int128		own;

	if (here > LAST(seq))
	{
		own = sequence_share_own_at_or_before(seq, share, LAST(seq));
		position.is_called = true;
	}
	else if (here < FIRST(seq))
	{
		own = sequence_share_own_at_or_after(seq, share, FIRST(seq));
		position.is_called = false;
	}
	else
		return position;
	position.last_value = (int64) (own * direction);
	return position;
}

/*
 * The position from which a node with this share goes on, after a node with
 * another share, which stepped by `step`, has left `position`.  All values
 * before that node's next own value may be in use, even some of this share, but
 * its position only shows its own last one.  So this share goes on with its
 * first value from that next one on.
 */
OtPosition
ot_sequence_hand_over(const OtSequence *seq, OtShare share, int64 step, OtPosition position)
{
	int			direction = DIRECTION(seq);
	int128		next = (int128) position.last_value * direction;
	int128		own;

	if (position.is_called)
		next += (int128) step * direction;
	own = sequence_share_own_at_or_after(seq, share, Max(next, FIRST(seq)));
	position.is_called = own > LAST(seq);
	if (position.is_called)
		own = sequence_share_own_at_or_before(seq, share, LAST(seq));
	position.last_value = (int64) (own * direction);
	return position;
}
