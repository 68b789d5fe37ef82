/*-------------------------------------------------------------------------
 *
 * stored_type.h
 *	  Where a stored value contains OIDs of this server.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_STORED_TYPE_H
#define ONETRIP_STORED_TYPE_H

#include "capture/object_name.h"

/* At this offset there is an OID; it is this object's. */
typedef struct OtName
{
	uint32		offset;
	OtObjectRef object;
} OtName;

typedef struct OtNames
{
	OtName	   *items;
	uint32		count;
	uint32		max;
} OtNames;

extern bool ot_type_names_object(Oid type);
extern bool ot_type_contains_names(Oid type);
extern bool ot_json_calls_unseen(Node *node);
extern bool ot_type_is_by_oid(Oid type);
extern bool ot_type_is_comparable(Oid type);
extern bool ot_type_find_names(Oid type, char *value, uint32 offset, OtNames *names);
extern Size ot_type_size_elsewhere(Oid type, Datum compressed);
extern Datum ot_type_decompress(Oid type, Datum value);
extern bool ot_type_name_hashes(Oid type, char *value, Size len);
extern void ot_type_remove_versions(Oid type, char *value);
extern void ot_type_forget_all(void);

#endif							/* ONETRIP_STORED_TYPE_H */
