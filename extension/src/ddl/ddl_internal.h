/*-------------------------------------------------------------------------
 *
 * ddl_internal.h
 *	  What the files of ddl offer each other.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_DDL_INTERNAL_H
#define ONETRIP_DDL_INTERNAL_H

#include "ddl/ddl.h"

#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_index.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"
#include "nodes/primnodes.h"
#include "parser/parse_node.h"
#include "storage/lockdefs.h"
#include "tcop/utility.h"
#include "utils/memutils.h"
#include "utils/relcache.h"

/* What becomes of a utility statement. */
typedef enum OtStatementKind
{
	OT_STATEMENT_LOCAL,			/* runs here and leaves no trace in the log */
	OT_STATEMENT_SCHEMA,		/* is recorded, with the schema key */
	OT_STATEMENT_TRUNCATE,		/* the tables it empties are captured, if their
								 * rows travel; the keys of its locks suffice */
	OT_STATEMENT_REFRESH,		/* the rows it makes are captured, likewise */
	OT_STATEMENT_CREATE_AS		/* its table is recorded, its rows are captured */
} OtStatementKind;

/* What a statement is about. */
typedef enum OtTemporary
{
	OT_TEMPORARY_NOTHING,
	OT_TEMPORARY_OBJECT,		/* of this session, in its own schema or part of
								 * something that is */
	OT_TEMPORARY_AND_MISSING,	/* likewise, and DROP names what is not there */
	OT_TEMPORARY_FUNCTION		/* in a permanent schema (ddl_function.c) */
} OtTemporary;

/* Adds to a list that lives until the end of the transaction, unless it is there already. */
static inline void
ot_ddl_note_oid(List **list, Oid oid)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	*list = list_append_unique_oid(*list, oid);
	MemoryContextSwitchTo(old);
}

/* ddl_call.c; more of it is in ddl.h */
extern void ot_ddl_keep_error_context(void);

/* ddl_share.c; more of it is in ddl.h */
extern void ot_ddl_share_init(void);
extern void ot_ddl_stand_in_line(void);
extern void ot_ddl_leave_line(void);
extern void ot_ddl_take_schema_key(void);
extern void ot_ddl_take_schema_key_for(Node *stmt, const char *query);
extern bool ot_ddl_alters(AlterTableStmt *stmt, AlterTableType subtype);

/* ddl_alike.c */
extern bool ot_ddl_computes_alike(Node *stmt, const char *query);
extern bool ot_ddl_index_is_built_in(Oid index);
extern bool ot_ddl_indexes_compute_alike(Oid one, Oid other);

/* ddl_lock.c */
extern bool ot_ddl_has_table_key(char relkind);
extern void ot_ddl_take_relation_key(Oid relid);
extern void ot_ddl_lock_relations(Node *stmt);
extern LOCKMODE ot_ddl_unique_index_lock(Oid table);
extern void ot_ddl_each_of_role(Oid role, Oid database, SharedDependencyType reason,
								void (*callback) (ObjectAddress object, void *context), void *context);

/* ddl_classify.c */
extern OtStatementKind ot_ddl_classify(Node *stmt, const char *query, bool *is_temporary);
extern CreateTableAsStmt *ot_ddl_create_as(Node *stmt);
extern bool ot_ddl_may_change_code(Node *stmt);

/* ddl_temporary.c */
extern bool ot_ddl_session_has_temporary(void);
extern bool ot_ddl_creates_temporary(RangeVar *name);
extern bool ot_ddl_is_temporary_schema(const char *name);
extern Oid	ot_ddl_table_of_statistics(Oid statistics);
extern Oid	ot_ddl_temporary_schema_of_cast(Oid cast);
extern OtTemporary ot_ddl_is_temporary(Node *stmt, const char *query);
extern void ot_ddl_note_temporary(Node *stmt);
extern void ot_ddl_check_like(Node *stmt);
extern void ot_ddl_check_dependencies(List *functions);
extern void ot_ddl_check_made(List *made);
extern bool ot_ddl_find_whole(ObjectAddress *object);
extern bool ot_ddl_object_exists(const ObjectAddress *object);

/* ddl_function.c; more of it is in ddl.h */
extern RangeVar *ot_function_table_of_type(TypeName *name);
extern bool ot_function_will_be_temporary(Node *stmt, const char *query);
extern void ot_function_check_room(Node *stmt);
extern void ot_function_before_drop(Oid function, bool is_recorded);
extern List *ot_functions_list(void);
extern List *ot_functions_schemas(void);
extern List *ot_functions_hide(void);
extern void ot_functions_show(List *hidden);

/* ddl_child.c; more of it is in ddl.h */
extern void ot_child_leaves(Oid child);
extern List *ot_children_schemas(void);
extern void ot_children_drop(void);

/* ddl_make_way.c; more of it is in ddl.h */
extern void ot_ddl_make_way_for(Node *stmt);
extern void ot_ddl_check_statistics(Node *stmt);

/* ddl_check.c */
extern bool ot_ddl_keeps_column(List *commands, Oid relid, const char *name);
extern Node *ot_ddl_as_column(ParseState *pstate, Node *expression, TypeName *column_type);
extern bool ot_ddl_generates_built_in(ParseState *pstate, Relation rel, List *commands, Node *raw, TypeName *column_type);
extern Node *ot_ddl_converted(ParseState *pstate, Relation rel, AlterTableCmd *command);
extern bool ot_ddl_converts_foreign_key(List *relids, List *commands, bool own);
extern void ot_ddl_check_everywhere(Node *stmt);
extern Oid	ot_ddl_fills(Node *stmt, const char *query, List **fills, bool *children);
extern void ot_ddl_check_reindex(ReindexStmt *stmt);
extern void ot_ddl_check_access_method(Node *node);
extern void ot_ddl_check_recorded(Node *stmt, const char *query);
pg_noreturn extern void ot_ddl_refuse(const char *what, const char *hint);

/* ddl_large_object.c */
extern void ot_ddl_large_object_function(Oid function);
extern void ot_ddl_large_object_access(ObjectAccessType access, Oid loid, bool by_statement);
extern void ot_ddl_take_large_object_key(Node *stmt);

/* ddl_concurrently.c */
extern bool ot_index_is_job(Node *stmt);
extern Node *ot_index_without_concurrently(Node *stmt);
extern void ot_index_pause(int ms);
extern void ot_index_pause_politely(TimestampTz since);
extern bool ot_index_try_lock(Oid relid, LOCKMODE mode);
extern bool ot_index_try_locks(List *relids, List *modes, int ms);
extern void ot_index_wait_politely(Node *stmt, ProcessUtilityContext context);

/* ddl_index.c; more of it is in ddl.h */
extern Oid	ot_index_define(IndexStmt *stmt, const char *query);
extern void ot_index_try_again(Oid index);
extern bool ot_index_is_unfinished(Oid index);
extern void ot_index_await(Oid index);
extern void ot_index_jobs_finish(Node *stmt);
extern void ot_index_check_unique(IndexStmt *stmt);
extern void ot_index_check_reindex(ReindexStmt *stmt);
extern void ot_index_check_build(Relation index);
extern void ot_index_apply_second(ReindexStmt *stmt);
extern bool ot_index_read_state(Oid index, Form_pg_index state);
extern bool ot_index_is_built(Oid index, Form_pg_index state);
extern void ot_index_note_job(Oid index, const char *statement);
extern void ot_index_raise_failure(Oid index);
extern Oid	ot_index_named(ReindexStmt *stmt);

/* ddl_reindex.c */
extern bool ot_reindex_is_concurrent(ReindexStmt *stmt);
extern bool ot_reindex_run(ReindexStmt *stmt, ProcessUtilityContext context);
extern void ot_reindex_define(ReindexStmt *stmt);
extern Oid	ot_reindex_original(Oid index);
extern bool ot_reindex_is_of_toast(Oid index);
extern void ot_reindex_finish(Oid table, Oid original, Oid copy);
extern List *ot_reindex_tables_of(RangeVar *name);
extern void ot_reindex_drop_copies(RangeVar *name);

/* ddl_apply.c; more of it is in ddl.h */
extern bool ot_ddl_replaying;

extern void ot_ddl_replay_statement(OtUtility *call);
extern bool ot_ddl_runs_script(Node *stmt);
extern void ot_ddl_resolve_column(Node *element);

/* ddl_order.c */
extern void ot_ddl_order_dependents(RangeVar *name);
extern bool ot_ddl_finds_order(Node *stmt);
extern void ot_ddl_order_foreign_keys(Node *stmt);

/* ddl_detach.c; more of it is in ddl.h */
/* runs a statement as if the client had sent it after `first` */
typedef void (*OtDetachSecond) (const char *text, const OtUtility *first);

extern PartitionCmd *ot_detach_concurrently_of(Node *stmt);
extern bool ot_detach_is_finalize(Node *stmt);
extern void ot_detach_check(Oid parent);
extern bool ot_detach_run(const OtUtility *call, OtDetachSecond run);
extern void ot_detach_before_finalize(Node *stmt);
extern bool ot_detach_under_lock(Node *stmt);
extern bool ot_detach_apply(const char *text);

/* ddl_detach_entry.c */
extern Oid	ot_detach_parent_of(Oid partition, bool *marked, TransactionId *xmin);
extern bool ot_detach_is_marked(Oid parent, Oid partition);
extern void ot_detach_locks(Oid parent, Oid partition, bool second, List **relids, List **modes);
extern void ot_detach_begin(Oid parent_oid, Oid partition_oid);
extern bool ot_detach_all_by_root(void);
extern void ot_detach_push_snapshot(void);
extern bool ot_detach_see_marks(void);
extern void ot_detach_check_marks(void);

/* ddl_new_table.c */
extern const char *ot_ddl_default_access_method(void);
extern Node *ot_ddl_choose_access_method(Node *stmt, List **places);
extern void ot_ddl_name_access_method(List *places);

/* elsewhere.c */
extern bool ot_ddl_differs_elsewhere(Node *expression);
extern bool ot_ddl_uses_temporary(Node *expression);
extern bool ot_ddl_type_is_built_in(Oid type);
extern bool ot_ddl_is_built_in(Node *expression);
extern void ot_ddl_check_relations(List *relations);

/* ddl_subscription.c */
extern void ot_ddl_truncates_by_worker(Relation rel);
extern void ot_ddl_drops_subscribed(Oid relid);

/* ddl_extension.c */
extern Node *ot_ddl_name_version(Node *stmt, char **text);
extern void ot_ddl_check_script(Node *stmt, const char *query);

/* ddl_bounds.c */
extern Node *ot_ddl_compute_bound(Node *stmt, char **text, int offset, const char *query);
extern void ot_ddl_forget_places_of_bounds(Node *stmt);
extern void ot_ddl_check_bound_of_script(Node *stmt, const char *query);

/* ddl_setting.c */
extern bool ot_setting_apply(Node *stmt);
extern void ot_setting_prepare_grant(Node *stmt);
extern void ot_setting_write_reset_all(Node *stmt, char **recorded);
extern void ot_setting_note_function(Oid function);
extern List *ot_setting_take_out(Node *stmt);
extern void ot_setting_store_of_function(Node *stmt, List *settings);

/* ddl_text.c */
extern char *ot_ddl_statement_text(PlannedStmt *pstmt, const char *query, int *offset);
extern void ot_ddl_check_text(const char *text, Node *stmt);
extern void ot_ddl_name_session_user(char **text);
extern const char *ot_ddl_clear_password(Node *stmt);
extern Node *ot_ddl_hide_password(Node *stmt, char **text, int offset);
extern void ot_ddl_leave_out_missing_roles(Node *stmt, char **text);
extern Node *ot_ddl_analyze_again(Node *stmt, const char *text);
extern void ot_ddl_name_schema(CreateForeignTableStmt *stmt, char **text);
extern Node *ot_ddl_write_like(Node *stmt, char **text, int offset);
extern char *ot_ddl_create_table_text(Relation rel, IntoClause *into);

#endif							/* ONETRIP_DDL_INTERNAL_H */
