/*-------------------------------------------------------------------------
 *
 * held_locks.c
 *	  Takes a key for each relation that this transaction holds a lock on.
 *
 * An applied entry may have to wait for any of these locks (own_locks.c lists
 * them), so each becomes a key.
 *
 * The locks also tell what the transaction has used that no entry contains, which
 * PREPARE TRANSACTION must know.
 *
 * Runs in backends, at PRE_COMMIT and PREPARE TRANSACTION, and after each statement
 * that locks rows.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/index.h"
#include "catalog/pg_class.h"
#include "catalog/pg_largeobject.h"
#include "executor/execdesc.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "nodes/plannodes.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "capture/capture.h"
#include "ddl/ddl.h"
#include "sequence/sequence.h"
#include "shmem/shmem.h"

/* The table of an index or TOAST table; InvalidOid if it is gone. */
static Oid
held_locks_held_table_of(Oid relid, char relkind)
{
	unsigned int table;
	char	   *name;
	HeapTuple	tuple;
	bool		is_it;

	if (relkind != RELKIND_TOASTVALUE)
		return IndexGetRelation(relid, true);
	/* The name contains the table's OID; the table's own row confirms it. */
	name = get_rel_name(relid);
	if (name == NULL || sscanf(name, "pg_toast_%u", &table) != 1)
		return InvalidOid;
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
	is_it = HeapTupleIsValid(tuple) &&
		((Form_pg_class) GETSTRUCT(tuple))->reltoastrelid == relid;
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return is_it ? table : InvalidOid;
}

static int
held_locks_compare(const void *a, const void *b)
{
	Oid			left = ((const OtHeldLock *) a)->relid;
	Oid			right = ((const OtHeldLock *) b)->relid;

	return (left > right) - (left < right);
}

/* The table's name is as new as the base of its key, at least. */
static void
held_locks_take_key(Oid relid, LOCKMODE mode)
{
	OtLogIndex	base = ot_position_base_of_names();

	AcceptInvalidationMessages();
	ot_write_set_touch();
	ot_write_set_key(ot_hash_relation(relid), ot_table_lock_to_mode(mode), base, relid);
}

/*
 * An entry that alters one of these tables locks its temporary children as well, and
 * no entry that only writes rows does.
 */
static void
held_locks_take_keys_of_parents(List *parents, LOCKMODE mode)
{
	ListCell   *lc;

	foreach(lc, parents)
	{
		/* else its key was taken when this transaction dropped it */
		if (get_rel_name(lfirst_oid(lc)) != NULL)
			held_locks_take_key(lfirst_oid(lc), Min(mode, RowExclusiveLock));
	}
}

/*
 * Analyzing a statement locks its tables before anybody asks whether the role may run
 * it (PREPARE q AS UPDATE ...), and what is prepared would hold that for ever.  So it
 * holds what the role's own LOCK TABLE could, except on tables where it has changed or
 * locked a row: by way of a view, a function or a foreign key, it may do that.
 */
static LOCKMODE
held_locks_mode_to_hold(Oid relid, LOCKMODE mode)
{
	AclMode		writes = ACL_UPDATE | ACL_DELETE | ACL_TRUNCATE | ACL_USAGE;

	if (mode <= RowExclusiveLock)
		writes |= ACL_INSERT;
	if (pg_class_aclcheck(relid, GetUserId(), writes) == ACLCHECK_OK)
		return mode;
	return pg_class_aclcheck(relid, GetUserId(), ACL_SELECT) == ACLCHECK_OK ? AccessShareLock : NoLock;
}

/*
 * Whatever lock an applied entry may need and this transaction holds must be a
 * key of both ("What holds, always" in docs/architecture.md).
 *
 * In one order, since for a short sequence it waits for others who are here too.
 */
void
ot_held_locks_take_keys(OtWrittenHere *written, bool to_be_prepared)
{
	int			count;
	OtHeldLock *locks = ot_held_locks(&count);
	List	   *used = to_be_prepared ? ot_write_set_key_tables() : NIL;

	memset(written, 0, sizeof(*written));
	qsort(locks, count, sizeof(OtHeldLock), held_locks_compare);
	for (int i = 0; i < count; i++)
	{
		HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(locks[i].relid));
		Form_pg_class form;
		char		relkind;
		char		persistence;

		/* Dropped by this transaction: its key was taken at the drop. */
		if (!HeapTupleIsValid(tuple))
			continue;
		form = (Form_pg_class) GETSTRUCT(tuple);
		relkind = form->relkind;
		persistence = form->relpersistence;
		if (locks[i].mode >= RowExclusiveLock && relkind == RELKIND_RELATION && !ot_contents_travel(form))
		{
			written->any = true;
			written->logged |= persistence == RELPERSISTENCE_PERMANENT;
		}
		ReleaseSysCache(tuple);

		if (persistence == RELPERSISTENCE_TEMP)
		{
			if (relkind == RELKIND_RELATION)
				held_locks_take_keys_of_parents(ot_child_parents(locks[i].relid), locks[i].mode);
			continue;
		}
		/*
		 * Who locks an index or a TOAST table has locked its table as well,
		 * except in a few commands that take a strong lock on it alone.
		 */
		if (relkind == RELKIND_INDEX || relkind == RELKIND_PARTITIONED_INDEX ||
			relkind == RELKIND_TOASTVALUE)
		{
			Oid			table = locks[i].mode > RowExclusiveLock ?
				held_locks_held_table_of(locks[i].relid, relkind) : InvalidOid;

			if (OidIsValid(table))
				held_locks_take_key(table, locks[i].mode);
			continue;
		}
		if (relkind == RELKIND_SEQUENCE && locks[i].mode >= RowExclusiveLock)
			ot_sequence_capture(locks[i].relid);
		/* the position of a sequence has its key, whoever drew from it */
		if (to_be_prepared && relkind != RELKIND_SEQUENCE && !list_member_oid(used, locks[i].relid))
			locks[i].mode = held_locks_mode_to_hold(locks[i].relid, locks[i].mode);
		if (locks[i].mode != NoLock)
			held_locks_take_key(locks[i].relid, locks[i].mode);
	}
	pfree(locks);
	held_locks_take_keys_of_parents(ot_child_left_parents(), AccessExclusiveLock);
	ot_lock_table_take_keys();
}

/*
 * Has this transaction written a foreign table, whose server commits before this one?
 * `defines`: its statement is DDL, which takes stronger locks than writers without
 * writing anything.  A table that it has dropped is not found.
 */
bool
ot_held_locks_write_foreign(bool defines)
{
	int			count;
	OtHeldLock *locks = ot_held_locks(&count);
	bool		found = false;

	for (int i = 0; i < count && !found; i++)
		found = (defines ? locks[i].mode == RowExclusiveLock : locks[i].mode >= RowExclusiveLock) &&
			get_rel_relkind(locks[i].relid) == RELKIND_FOREIGN_TABLE;
	pfree(locks);
	return found;
}

/* Does this transaction hold a lock that an applied entry may wait for? */
bool
ot_held_locks_need_keys(void)
{
	int			count;
	OtHeldLock *locks = ot_held_locks(&count);
	Oid			onetrip_am = ot_access_method_oid();
	bool		found = false;

	for (int i = 0; i < count && !found; i++)
	{
		HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(locks[i].relid));

		if (!HeapTupleIsValid(tuple))
			continue;
		found = ((Form_pg_class) GETSTRUCT(tuple))->relam == onetrip_am;
		ReleaseSysCache(tuple);
		found |= locks[i].mode >= RowExclusiveLock && get_rel_relkind(locks[i].relid) == RELKIND_SEQUENCE &&
			ot_sequence_relation_is_short(locks[i].relid);
	}
	return found;
}

/* Does it hold a lock on anything that is no catalog? */
bool
ot_held_locks_any(void)
{
	int			count;

	pfree(ot_held_locks(&count));
	return count > 0;
}

/*
 * The name of a table that the transaction may have written and that is not
 * replicated, or NULL.
 */
char *
ot_held_locks_written_here(void)
{
	int			count;
	OtHeldLock *locks = ot_held_locks(&count);
	char	   *name = NULL;

	for (int i = 0; i < count && name == NULL; i++)
	{
		HeapTuple	tuple;
		Form_pg_class form;

		if (locks[i].mode < RowExclusiveLock)
			continue;
		tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(locks[i].relid));
		if (!HeapTupleIsValid(tuple))
			continue;
		form = (Form_pg_class) GETSTRUCT(tuple);
		if (form->relkind == RELKIND_RELATION && form->relpersistence != RELPERSISTENCE_TEMP &&
			!ot_contents_travel(form))
			name = psprintf("%s.%s", get_namespace_name(form->relnamespace), NameStr(form->relname));
		ReleaseSysCache(tuple);
	}
	return name;
}

/* ---- what is in no entry ---- */

/*
 * The check of a foreign key looks for rows to lock, and may find none; the lock on
 * the table stays.  So statements that lock rows are watched: `found_none` are the
 * tables where one has found nothing, `found_some` those where one has.
 */
static List *found_none = NIL;
static List *found_some = NIL;
static LocalTransactionId noted_in = InvalidLocalTransactionId;

/* Called after each run of the executor, in a transaction block. */
void
ot_held_locks_note_run(const QueryDesc *query)
{
	bool		none = IsA(query->plannedstmt->planTree, LockRows) && query->estate->es_processed == 0;
	MemoryContext old;
	ListCell   *lc;

	if (noted_in != OT_LXID(MyProc))
		found_none = found_some = NIL;
	noted_in = OT_LXID(MyProc);
	old = MemoryContextSwitchTo(TopTransactionContext);
	foreach(lc, query->plannedstmt->rowMarks)
	{
		PlanRowMark *mark = lfirst_node(PlanRowMark, lc);
		Relation	rel = query->estate->es_relations[mark->rti - 1];

		if (!RowMarkRequiresRowShareLock(mark->markType) || rel == NULL || ot_is_onetrip_table(rel))
			continue;
		if (none)
			found_none = list_append_unique_oid(found_none, RelationGetRelid(rel));
		else
			found_some = list_append_unique_oid(found_some, RelationGetRelid(rel));
	}
	MemoryContextSwitchTo(old);
}

/* Nothing in it can be locked, as far as it is known where the lock comes from. */
static bool
held_locks_is_of_nothing(Oid relid)
{
	return noted_in == OT_LXID(MyProc) && list_member_oid(found_none, relid) &&
		!list_member_oid(found_some, relid);
}

/*
 * Large objects travel, and who uses them holds the lock of a writer, even to read.
 * But nothing of theirs locks rows.
 */
static LOCKMODE
held_locks_mode_of_large_objects(LOCKMODE mode)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, LargeObjectRelationId);
	if (mode == RowExclusiveLock)
		return OT_LOCK_IS_HELD_BY_ME(&tag, RowShareLock) ? RowShareLock : AccessShareLock;
	return mode;
}

static void
held_locks_find_used_one(Oid relid, LOCKMODE mode, OtUsedHere *used)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class form;
	char	   *name;

	if (!HeapTupleIsValid(tuple))
		return;
	form = (Form_pg_class) GETSTRUCT(tuple);
	name = psprintf("%s.%s", get_namespace_name(form->relnamespace), NameStr(form->relname));
	if (relid == LargeObjectRelationId)
		mode = held_locks_mode_of_large_objects(mode);
	if (form->relkind == RELKIND_FOREIGN_TABLE)
		used->foreign_table = name;
	else if (form->relkind == RELKIND_SEQUENCE)
		used->sequence |= mode >= RowExclusiveLock;
	else if (form->relkind == RELKIND_RELATION && form->relpersistence != RELPERSISTENCE_TEMP &&
			 !ot_contents_travel(form))
	{
		if (mode >= RowExclusiveLock)
			used->written = name;
		else if (mode == RowShareLock && !held_locks_is_of_nothing(relid))
			used->locked = name;
		if (relid >= FirstNormalObjectId)
			used->read = name;
	}
	ReleaseSysCache(tuple);
}

/* What has the transaction used, judged by the locks that it holds, that is in no entry? */
void
ot_held_locks_find_used(OtUsedHere *used)
{
	int			count;
	OtHeldLock *locks = ot_held_locks(&count);
	OtHeldLock *catalogs;

	memset(used, 0, sizeof(*used));
	for (int i = 0; i < count; i++)
		held_locks_find_used_one(locks[i].relid, locks[i].mode, used);
	catalogs = ot_held_catalog_locks(&count);
	for (int i = 0; i < count; i++)
		held_locks_find_used_one(catalogs[i].relid, catalogs[i].mode, used);
}
