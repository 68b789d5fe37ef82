/*-------------------------------------------------------------------------
 *
 * row_places.c
 *	  Where the rows of a table are, by a hash of their contents.
 *
 * An entry that changes many rows of a table without a usable index, in another
 * order than the table's, would take a scan of the table for each, and one that
 * deletes many with the same value of an index a search through all of those.  After
 * some of that the worker notes the places of all rows in one, and looks there first
 * (find_row.c).  A place is only a hint: the row may have gone from it, or be
 * somewhere else.
 *
 * Rows with the same hash form a chain.  All is in one memory context, and takes
 * no more than maintenance_work_mem.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include "miscadmin.h"
#include "storage/itemptr.h"
#include "utils/memutils.h"

#define PLACES_MIN 1024
#define NO_PLACE (-1)

typedef struct Place
{
	uint64		hash;
	ItemPointerData tid;
	int32		next;			/* of the same bucket; NO_PLACE: none */
} Place;

struct OtRowPlaces
{
	MemoryContext context;
	uint32		max;			/* a power of two, also the number of buckets */
	uint32		count;
	Place	   *places;
	int32	   *buckets;
};

OtRowPlaces *
ot_row_places_make(MemoryContext parent)
{
	MemoryContext context = AllocSetContextCreate(parent, "onetrip row places", ALLOCSET_DEFAULT_SIZES);
	OtRowPlaces *places = MemoryContextAllocZero(context, sizeof(OtRowPlaces));

	places->context = context;
	return places;
}

void
ot_row_places_free(OtRowPlaces *places)
{
	MemoryContextDelete(places->context);
}

static void
row_places_link(OtRowPlaces *places, uint32 i)
{
	uint32		bucket = places->places[i].hash & (places->max - 1);

	places->places[i].next = places->buckets[bucket];
	places->buckets[bucket] = i;
}

static bool
row_places_grow(OtRowPlaces *places)
{
	uint32		max = places->max == 0 ? PLACES_MIN : places->max * 2;

	if (max > PG_INT32_MAX || max * (sizeof(Place) + sizeof(int32)) > (Size) maintenance_work_mem * 1024)
		return false;
	if (places->max == 0)
	{
		places->places = MemoryContextAlloc(places->context, max * sizeof(Place));
		places->buckets = MemoryContextAlloc(places->context, max * sizeof(int32));
	}
	else
	{
		places->places = repalloc_huge(places->places, max * sizeof(Place));
		places->buckets = repalloc_huge(places->buckets, max * sizeof(int32));
	}
	places->max = max;
	for (uint32 i = 0; i < max; i++)
		places->buckets[i] = NO_PLACE;
	for (uint32 i = 0; i < places->count; i++)
	{
		if (ItemPointerIsValid(&places->places[i].tid))
			row_places_link(places, i);
	}
	return true;
}

/* Returns false if there is no room for more. */
bool
ot_row_places_add(OtRowPlaces *places, uint64 hash, ItemPointer tid)
{
	if (places->count == places->max && !row_places_grow(places))
		return false;
	places->places[places->count].hash = hash;
	places->places[places->count].tid = *tid;
	row_places_link(places, places->count++);
	return true;
}

/*
 * The first place of a row with this hash, from *link on, which is NULL at first,
 * and then leads to the place: it is valid until another one is added.  Returns
 * NULL if there is none.
 */
ItemPointer
ot_row_places_find(OtRowPlaces *places, uint64 hash, int32 **link)
{
	if (places->count == 0)
		return NULL;
	if (*link == NULL)
		*link = &places->buckets[hash & (places->max - 1)];
	while (**link != NO_PLACE && places->places[**link].hash != hash)
		*link = &places->places[**link].next;
	return **link == NO_PLACE ? NULL : &places->places[**link].tid;
}

/* Leaves the place alone; the next one is to be found. */
void
ot_row_places_pass(OtRowPlaces *places, int32 **link)
{
	*link = &places->places[**link].next;
}

/* The row is there no more; the next one is to be found. */
void
ot_row_places_forget(OtRowPlaces *places, int32 **link)
{
	Place	   *place = &places->places[**link];

	ItemPointerSetInvalid(&place->tid);
	**link = place->next;
}
