/*-------------------------------------------------------------------------
 *
 * ddl.h
 *	  Utility statements: recorded in one region, replayed in the others.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_DDL_H
#define ONETRIP_DDL_H

#include "node/node.h"

#include "tcop/utility.h"

/* ddl.c */
extern void ot_ddl_init(void);

/* ddl_call.c */
/* What a ProcessUtility hook of ours was called with, and how it goes on. */
typedef struct OtUtility
{
	ProcessUtility_hook_type prev;	/* is called next; NULL: standard_ProcessUtility() */
	PlannedStmt *pstmt;
	Node	   *node;			/* is run in place of pstmt's own tree, which it may be */
	const char *query;
	bool		read_only_tree; /* of pstmt's own */
	ProcessUtilityContext context;
	ParamListInfo params;
	QueryEnvironment *env;
	DestReceiver *dest;
	QueryCompletion *completion;
} OtUtility;

extern void ot_call_process_utility(const OtUtility *call);

/* ddl_results.c */
extern void ot_ddl_check_function(const char *what);

/* ddl_apply.c */
extern void ot_ddl_apply_statement(OtReader *r);	/* r is past the op byte 'S' */
extern bool ot_ddl_says_statement(const ErrorContextCallback *context);

/* catalog_digest.c */
typedef struct OtCatalogDigest
{
	uint64		sums[2];
} OtCatalogDigest;

/* The byte in front of statements that asks for a digest. */
#define OT_COMPARE 0xC0
/* The answer of a region that is busy with entries, if there are no statements. */
#define OT_COMPARE_BUSY "busy"

extern void ot_catalog_digest(OtCatalogDigest *digest);
extern char *ot_catalog_digest_text(const OtCatalogDigest *digest);

/* ddl_share.c */
/* What commit, a wing above, does for DDL. */
typedef struct OtDdlLine
{
	/* waits for DDL of other regions, and waits no more */
	void		(*stand) (OtHash schema);
	void		(*leave) (void);
	/* may the transaction ask how its statements come out elsewhere? */
	bool		(*may_be_compared) (void);
	/* asks whether anybody could say so now */
	bool		(*is_compared) (void);
} OtDdlLine;

extern void ot_ddl_line_is(const OtDdlLine *line);
extern bool ot_ddl_share_commits(void);
extern void ot_ddl_share_lost(void);
extern void ot_ddl_share_unanswered(void);
extern bool ot_ddl_share_has_waited(void);
extern void ot_ddl_lock_schema(void);

/* ddl_classify.c */
extern const char *ot_ddl_changed_here_by(void);

/* ddl_function.c */
extern void ot_functions_commit_begins(bool begins);
extern void ot_functions_take_key(void);
extern void ot_functions_drop(void);

/* ddl_child.c */
extern List *ot_child_parents(Oid child);
extern List *ot_child_left_parents(void);

/* ddl_make_way.c */
extern void ot_ddl_make_way(bool has_failed);

/* notify.c */
/* pg_proc.dat's number of pg_notify */
#define OT_PG_NOTIFY_OID 3036

extern void ot_notify_init(void);
extern void ot_check_unseen_notifications(void);
extern void ot_notify_check_queue(void);
extern bool ot_notify_comes_next(const OtReader *r);
extern void ot_notify_apply(OtReader *r);	/* r is past the op byte 'N' */
/* ddl_index.c */
/*
 * What the SQLSTATE in onetrip.job_here says of an index that is built, and waits
 * for its second entry, and of a partition whose users are gone: successful
 * completion.
 */
#define OT_JOB_DONE "00000"

extern void ot_index_build(Oid table, Oid index);
extern void ot_index_propose(Oid table, Oid index);
extern List *ot_index_jobs_of(Relation rel, bool unbuilt);
extern void ot_index_job_undo(Relation rel);
extern void ot_index_job_has_duplicate(Relation rel, Oid index);

/* ddl_detach.c */
/* How onetrip.job_here calls it. */
#define OT_DETACH_JOB "ALTER TABLE ... DETACH PARTITION CONCURRENTLY"

extern void ot_detach_launcher_is(void (*launch) (void));

/* ddl_subscription.c */
extern void ot_ddl_note_truncated_by_worker(void);
extern void ot_ddl_forget_truncated_by_worker(void);

/* ddl_text.c */
extern DefElem *ot_ddl_find_option(List *options, const char *name);

#endif							/* ONETRIP_DDL_H */
