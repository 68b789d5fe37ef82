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

#include "node/node.h"

#include "fmgr.h"
#include "nodes/execnodes.h"

typedef struct OtColumn
{
	bool		dropped;
	bool		is_varlena;
	bool		can_move_out;	/* its values may be stored out of line, whatever its
								 * own storage */
	bool		contains_names;	/* its values may contain OIDs, or be refused */
	Oid			type;
} OtColumn;

typedef enum OtHashKind
{
	OT_HASH_FUNCTION,			/* the type's extended hash function */
	OT_HASH_LABEL				/* a hash of the text form: enums, whose values are OIDs */
} OtHashKind;

typedef struct OtIndex
{
	Oid			oid;
	uint64		hash;			/* of the table and what the index is on */
	bool		unique;
	bool		exclusion;
	bool		coarse;			/* one key for the whole index (rel_info.c) */
	bool		computed;		/* expressions or a predicate */
	bool		runs_users_code;	/* some of them are not built in */
	bool		nulls_equal;	/* NULLS NOT DISTINCT */
	int			nkeys;
	AttrNumber	attnums[INDEX_MAX_KEYS];
	OtHashKind	hash_kinds[INDEX_MAX_KEYS];
	FmgrInfo	hash_functions[INDEX_MAX_KEYS];
	Oid			collations[INDEX_MAX_KEYS];
	IndexInfo  *info;			/* if computed */
} OtIndex;

/*
 * An index that is not unique, and has an expression or a predicate that may
 * do more than compute.
 */
typedef struct OtRunningIndex
{
	Oid			oid;
	IndexInfo  *info;
} OtRunningIndex;

/* An index that stores values of variable length, as they are or compressed, in some of its columns. */
typedef struct OtWholeIndex
{
	Oid			oid;
	Oid			method;
	TupleDesc	desc;			/* stored and compressed as in the index */
	bool	   *is_whole;		/* of its columns: does it store their values? */
	Oid		   *names;			/* of its columns: the type of what it stores, if that contains OIDs */
	IndexInfo  *info;
} OtWholeIndex;

typedef struct OtRelInfo
{
	Oid			relid;			/* hash key, first */
	bool		valid;
	bool		building;		/* the rest is old or empty */
	MemoryContext context;
	OtHash		table;
	bool		locking;		/* its rows are locked at the leader first (locking_table.c) */
	int			identity;		/* which one of indexes is it; -1: the whole row */
	Oid			search_index;	/* to find whole rows by, or InvalidOid */
	int			search_columns; /* how many of its key columns help */
	int			nindexes;		/* unique and exclusion ones only */
	OtIndex    *indexes;
	int			nrunning_indexes;
	OtRunningIndex *running_indexes;
	int			natts;
	int			nwhole_indexes;
	OtWholeIndex *whole_indexes;
	Bitmapset  *in_whole_indexes;	/* columns, numbered as pull_varattnos() does */
	bool		computes_names; /* an expression of theirs does, perhaps of columns without */
	TupleDesc	as_given;		/* forms rows without making headers shorter */
	uint32		layout;			/* hash of how the bytes of a row are laid out */
	bool		contains_names;	/* some column does */
	bool		runs_functions; /* an index has an expression or a predicate */
	bool		runs_users_code;	/* some of them are not built in */
	Oid			misrouted_by;	/* an ancestor partitioned by OIDs, or InvalidOid */
	Oid			incomparable;	/* an index that cannot compare two values, or InvalidOid */
	AttrNumber	incomparable_column;	/* 0: computed */
	OtColumn   *columns;
} OtRelInfo;

extern OtRelInfo *ot_rel_info(Relation rel);
extern void ot_rel_info_init_cache(void);
extern Oid	ot_rel_defined_identity(Relation rel);
extern bool ot_rel_info_is_being_built(Relation rel);
extern void ot_rel_info_tidy(void);
#endif							/* ONETRIP_REL_INFO_H */
