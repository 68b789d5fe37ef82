/*-------------------------------------------------------------------------
 *
 * write_set_notes.c
 *	  The notifications of this transaction's write set, each once.
 *
 * Runs in backends.  Everything is in the write set's memory context
 * (write_set.c).
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "common/hashfn.h"

#include "capture/slots_allocator.h"

/* A notification, by where its operation is. */
typedef struct NoteSlot
{
	int			place;
	uint32		hash;
	char		status;			/* simplehash's */
} NoteSlot;

static uint32 write_set_notes_hash(int place);
static bool write_set_notes_equal(int a, int b);

#define SH_PREFIX notes
#define SH_ELEMENT_TYPE NoteSlot
#define SH_KEY_TYPE int
#define SH_KEY place
#define SH_HASH_KEY(tb, place) write_set_notes_hash(place)
#define SH_EQUAL(tb, a, b) write_set_notes_equal(a, b)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, slot) (slot)->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#define SH_USE_NONDEFAULT_ALLOCATOR
#include "lib/simplehash.h"
SLOTS_ALLOCATOR(notes, NoteSlot)

static struct
{
	MemoryContext context;
	StringInfoData notes;		/* 'N' operations, all different */
	notes_hash *places;			/* NULL: there is none */
}			all;

/* ---- what write_set.c calls ---- */

void
ot_write_set_notes_start(MemoryContext context)
{
	memset(&all, 0, sizeof(all));
	all.context = context;
}

void
ot_write_set_notes_reset(void)
{
	memset(&all, 0, sizeof(all));
}

static int
write_set_notes_len(int place)
{
	const unsigned char *data = (const unsigned char *) all.notes.data;
	int			at = place + 1;

	for (int i = 0; i < 2; i++)
		at += 2 + (data[at] | data[at + 1] << 8);
	return at - place;
}

static uint32
write_set_notes_hash(int place)
{
	return hash_bytes((const unsigned char *) all.notes.data + place, write_set_notes_len(place));
}

static bool
write_set_notes_equal(int a, int b)
{
	int			len = write_set_notes_len(a);

	return len == write_set_notes_len(b) && memcmp(all.notes.data + a, all.notes.data + b, len) == 0;
}

/* A savepoint, at which they had this length, is rolled back. */
void
ot_write_set_notes_cut(int len)
{
	for (int place = len; place < all.notes.len; place += write_set_notes_len(place))
		notes_delete(all.places, place);
	all.notes.len = len;
}

/* Appends them as operations. */
void
ot_write_set_notes_put(StringInfo out)
{
	if (all.notes.len > 0)
		appendBinaryStringInfo(out, all.notes.data, all.notes.len);
}

/* ---- what others call ---- */

/* Records a notification, unless the transaction has sent the same one before. */
void
ot_write_set_notification(const char *channel, const char *payload)
{
	int			place;
	bool		found;

	ot_write_set_touch();
	if (all.places == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(all.context);

		initStringInfo(&all.notes);
		all.places = notes_create(all.context, 16, NULL);
		MemoryContextSwitchTo(old);
	}
	place = all.notes.len;
	ot_put_u8(&all.notes, 'N');
	ot_put_str(&all.notes, channel);
	ot_put_str(&all.notes, payload);
	notes_insert(all.places, place, &found);
	if (found)
		all.notes.len = place;
	ot_write_set_check_size();
}

bool
ot_write_set_has_notifications(void)
{
	return all.notes.len > 0;
}

/* How many bytes the notifications take in the write set. */
int64
ot_write_set_notification_bytes(void)
{
	return all.notes.len;
}
