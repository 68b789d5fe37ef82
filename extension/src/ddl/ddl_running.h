/*-------------------------------------------------------------------------
 *
 * ddl_running.h
 *	  The statements under way in this backend.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_DDL_RUNNING_H
#define ONETRIP_DDL_RUNNING_H

#include "ddl/ddl_internal.h"

/* A recorded statement under way. */
typedef struct OtRecorded
{
	Node	   *stmt;
	char	   *text;			/* as recorded; NULL if it was not */
	CommandId	begun;			/* command id before it has changed anything */
	bool		results;		/* its results travel: its functions are not
								 * called again */
	List	   *filled;			/* tables that an extension's script wrote to */
	Oid			fills;			/* the table whose rows travel; InvalidOid: none */
	bool		fills_children; /* and those of its children */
	List	   *emptied;		/* those that other regions have emptied before */
	List	   *access_methods; /* where in the tree they are, if the statement
								 * did not name them */
	Oid			index;			/* that CREATE INDEX CONCURRENTLY has made */
	List	   *functions;		/* that it has made */
	List	   *relations;		/* likewise */
	bool		password_checked;	/* a password, before it became a verifier */
} OtRecorded;

/* A TRUNCATE under way. */
typedef struct OtTruncation
{
	List	   *relids;
	uint8		flags;
	bool		told;			/* has been recorded */
	bool		all_travel;		/* the rows of all of them travel */
} OtTruncation;

/* A CREATE TABLE AS under way. */
typedef struct OtCreateAs
{
	IntoClause *into;
	int			depth;			/* of nested utility calls, where it runs */
	Oid			relid;			/* the relation it makes, once that exists */
	bool		matview;		/* a materialized view, whose statement is
								 * recorded as it was written */
} OtCreateAs;

/* A statement sets what is about it, and puts back what was there when it is over. */
typedef struct OtDdlNow
{
	int			depth;			/* of nested utility calls */
	OtRecorded *recorded;		/* the innermost recorded statement */
	OtCreateAs *create_as;		/* the innermost CREATE TABLE AS */
	List	   *filling;		/* tables that other regions have emptied, and
								 * whose rows have not been captured again */
	List	  **made;			/* what the innermost statement that is no
								 * sub-command has made, if it is about temporary
								 * objects */
	/* the innermost statement ... */
	OtTruncation *truncation;	/* ... if it is a TRUNCATE */
	bool		renames;		/* ... renames or moves an object */
	bool		makes_type;		/* ... makes a type: PostgreSQL renames an array
								 * type that has the new type's name */
	bool		imports;		/* ... is IMPORT FOREIGN SCHEMA, whose
								 * sub-commands are recorded */
	bool		reindexes;		/* ... is REINDEX */
} OtDdlNow;

extern OtDdlNow ot_ddl_now;

/* ddl_event_trigger.c */
extern void ot_ddl_event_trigger_init(void);

/* ddl_objects.c */
extern void ot_ddl_objects_init(void);

/* ddl_results.c; more of it is in ddl.h */
extern void ot_ddl_results_init(void);
extern void ot_ddl_check_may_travel(const char *tag);
extern void ot_ddl_empty_first(OtRecorded *statement);
extern void ot_ddl_note_results(RefreshMatViewStmt *refresh, OtRecorded *statement, OtCreateAs *running);

#endif							/* ONETRIP_DDL_RUNNING_H */
