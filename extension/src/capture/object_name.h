/*-------------------------------------------------------------------------
 *
 * object_name.h
 *	  Objects that stored values point at, by name.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_OBJECT_NAME_H
#define ONETRIP_OBJECT_NAME_H

#include "node/node.h"

/* As they stand on the wire. */
typedef enum OtObjectKind
{
	OT_OBJECT_NONE = 0,
	OT_OBJECT_TYPE = 't',
	OT_OBJECT_ENUM_LABEL = 'e',
	OT_OBJECT_RELATION = 'c',
	OT_OBJECT_FUNCTION = 'f',
	OT_OBJECT_OPERATOR = 'o',
	OT_OBJECT_ROLE = 'r',
	OT_OBJECT_NAMESPACE = 'n',
	OT_OBJECT_TS_CONFIG = 'g',
	OT_OBJECT_TS_DICTIONARY = 'd',
	OT_OBJECT_COLLATION = 'l'
} OtObjectKind;

/*
 * An object in a write set: its number there, or, with this bit set, an OID
 * that PostgreSQL has fixed for all servers.
 */
typedef uint32 OtObjectRef;

#define OT_OBJECT_FIXED UINT32_C(0x80000000)

/*
 * In the place of a reference: here, behind its length word, begins a composite,
 * whose header says which version of its type it was made with.  Versions are positions in the WAL of
 * one server.
 */
#define OT_OBJECT_VERSION UINT32_C(0xffffffff)

/* where the value comes from */
extern OtObjectRef ot_object_ref(OtObjectKind kind, Oid oid);
extern void ot_object_share_key(OtObjectKind kind, Oid oid);
extern void ot_object_take_key(Oid class_id, Oid oid);
extern uint64 ot_object_name_hash(OtObjectKind kind, Oid oid);

/* where it goes to */
extern void ot_object_names_begin(void);
extern void ot_object_read(OtReader *r);	/* behind the op byte 'O' */
extern Oid	ot_object_resolve(OtObjectRef ref);

#endif							/* ONETRIP_OBJECT_NAME_H */
