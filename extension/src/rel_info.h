/*-------------------------------------------------------------------------
 *
 * rel_info.h
 *	  What capture and apply need to know of a table, cached per process.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_REL_INFO_H
#define ONETRIP_REL_INFO_H

#include "onetrip.h"

#include "fmgr.h"
#include "nodes/execnodes.h"

/* How a column's values travel. */
/* Where text stands in a column's binary form, which nobody could read if it is not valid. */
typedef enum OtTextForm
{
	OT_TEXT_NONE,
	OT_TEXT_WHOLE,				/* the form is the text */
	OT_TEXT_BEHIND_VERSION,		/* jsonb: behind one byte */
	OT_TEXT_ARRAY				/* an array of such */
} OtTextForm;

typedef struct OtColumn
{
	bool		dropped;
	bool		binary;			/* send/receive, else output/input */
	OtTextForm	text;
	bool		output_only;	/* cannot travel at all */
	bool		names_objects;	/* reg*, or an array of it */
	Oid			element;		/* of an array, else InvalidOid */
	bool		is_varlena;
	Oid			type;			/* domains resolved */
	int32		typmod;
	FmgrInfo	out;			/* send or output */
	bool		in_known;
	FmgrInfo	in;				/* receive or input */
	Oid			in_param;
} OtColumn;

typedef enum OtHashKind
{
	OT_HASH_FUNCTION,			/* the type's extended hash function */
	OT_HASH_LABEL				/* the text form: enums, whose values are OIDs */
} OtHashKind;

typedef struct OtIndex
{
	Oid			oid;
	uint64		hash;			/* of table and index name */
	bool		exclusion;
	bool		coarse;			/* one key for the whole index */
	bool		computed;		/* expressions or a predicate */
	bool		nulls_equal;	/* NULLS NOT DISTINCT */
	int			nkeys;
	AttrNumber	attnums[INDEX_MAX_KEYS];
	OtHashKind	hash_kinds[INDEX_MAX_KEYS];
	FmgrInfo	hash_functions[INDEX_MAX_KEYS];
	Oid			collations[INDEX_MAX_KEYS];
	IndexInfo  *info;			/* if computed */
} OtIndex;

typedef struct OtRelInfo
{
	Oid			relid;			/* hash key, first */
	bool		valid;
	MemoryContext context;
	OtHash		table;
	int			identity;		/* of indexes, -1: none */
	int			nindexes;		/* unique and exclusion ones only */
	OtIndex    *indexes;
	int			natts;
	bool		all_binary;
	bool		runs_functions; /* of users: an index, or the input of a value */
	OtColumn   *columns;
} OtRelInfo;

extern OtRelInfo *ot_rel_info(Relation rel);
extern void ot_column_put(StringInfo buf, OtColumn *column, Datum value, bool isnull);
extern void ot_rel_info_plain_text_begin(int *nest_level);
extern void ot_rel_info_plain_text_end(int nest_level);

#endif							/* ONETRIP_REL_INFO_H */
