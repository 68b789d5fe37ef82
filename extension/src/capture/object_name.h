/*-------------------------------------------------------------------------
 *
 * object_name.h
 *	  Objects that stored values refer to, by name.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_OBJECT_NAME_H
#define ONETRIP_OBJECT_NAME_H

#include "node/node.h"

/* As in the wire format. */
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
 * In the place of a reference: a composite begins here, after its length word.
 * Its header may contain the version of its type that it was made with.
 * Versions are WAL positions of one server.
 */
#define OT_OBJECT_VERSION UINT32_C(0xffffffff)

/* in the region of the transaction */
extern OtObjectRef ot_object_ref(OtObjectKind kind, Oid oid);
extern void ot_object_check_may_hold(void);
extern void ot_object_share_key(OtObjectKind kind, Oid oid);
extern void ot_object_take_key(Oid class_id, Oid oid);
extern uint64 ot_object_name_hash(OtObjectKind kind, Oid oid);

/* where a write set is read */
extern void ot_object_names_begin(void);
extern void ot_object_read(OtReader *r);	/* after the op byte 'O' */
extern Oid	ot_object_resolve(OtObjectRef ref);

#endif							/* ONETRIP_OBJECT_NAME_H */
