/*-------------------------------------------------------------------------
 *
 * locking_table.c
 *	  Tables whose rows are locked at the leader by whoever changes them:
 *	  SECURITY LABEL FOR onetrip ON TABLE t IS 'locking'.
 *
 * A label is a property of the table that PostgreSQL keeps, by OID, in
 * pg_seclabel.  So it follows the table's name, goes with the table, is dumped
 * by pg_dump, takes the table's owner to set, and travels as any DDL does.  One
 * of a partitioned table is for all partitions.
 *
 * PostgreSQL sends no invalidation for a label.  Here one is sent for the table,
 * and for the partitions below it, so that every session builds what it knows of
 * them again (rel_info.c).
 *
 * The check runs where the statement runs, and in each apply worker.  Errors:
 * before anything is written.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/seclabel.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#define PROVIDER	"onetrip"
#define LOCKING		"locking"

/* The format level since which every region's library knows the label. */
#define LEVEL		1

static void
locking_table_invalidate(Oid relid)
{
	List	   *relids = find_all_inheritors(relid, NoLock, NULL);
	ListCell   *lc;

	foreach(lc, relids)
	{
		HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(lfirst_oid(lc)));

		/* another session may have dropped a partition */
		if (!HeapTupleIsValid(tuple))
			continue;
		CacheInvalidateRelcacheByTuple(tuple);
		ReleaseSysCache(tuple);
	}
	list_free(relids);
}

/* May this object have this label?  NULL takes a label away. */
static void
locking_table_check(const ObjectAddress *object, const char *label)
{
	HeapTuple	tuple;
	bool		travels;

	if (object->classId != RelationRelationId || object->objectSubId != 0)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("labels of provider \"%s\" are for tables only", PROVIDER)));
	locking_table_invalidate(object->objectId);
	if (label == NULL)
		return;
	if (strcmp(label, LOCKING) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("label \"%s\" is not known to provider \"%s\"", label, PROVIDER),
				 errhint("Use '%s', or NULL for none.", LOCKING)));
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(object->objectId));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", object->objectId);
	travels = ot_contents_travel((Form_pg_class) GETSTRUCT(tuple));
	ReleaseSysCache(tuple);
	if (!travels)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("the rows of \"%s\" cannot be locked at the leader", get_rel_name(object->objectId)),
				 errdetail("Only those of tables that are replicated can.")));
	if (ot_format_level < LEVEL && ot_capturing())
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("\"%s\" cannot be labelled before the upgrade is finished", get_rel_name(object->objectId)),
				 errdetail("The library of another region may not know the label."),
				 errhint("Finish the upgrade (onetrip upgrade --finish) and restart this server.")));
}

/* Has the table the label, or one that it is a partition of? */
bool
ot_has_locking_label(Relation rel)
{
	ObjectAddress object = {.classId = RelationRelationId, .objectId = RelationGetRelid(rel)};
	List	   *ancestors = NIL;
	ListCell   *lc;
	bool		found = GetSecurityLabel(&object, PROVIDER) != NULL;

	if (!found && rel->rd_rel->relispartition)
		ancestors = get_partition_ancestors(RelationGetRelid(rel));
	foreach(lc, ancestors)
	{
		object.objectId = lfirst_oid(lc);
		found = found || GetSecurityLabel(&object, PROVIDER) != NULL;
	}
	list_free(ancestors);
	return found;
}

void
ot_locking_table_init(void)
{
	register_label_provider(PROVIDER, locking_table_check);
}
