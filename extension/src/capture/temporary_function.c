/*-------------------------------------------------------------------------
 *
 * temporary_function.c
 *	  Functions that depend on a temporary object.
 *
 * Such a function (or procedure, or aggregate) has a temporary type in its
 * signature, or uses something temporary in a body BEGIN ATOMIC, in a default or
 * as an aggregate's function, perhaps by way of another such function.  It lives
 * in a permanent schema, but no longer than what it depends on: PostgreSQL drops
 * both, when the session ends at the latest.  It exists in one region only.
 * Whether a function is one follows from pg_depend.
 *
 * Whether there may be any is noted in shared memory, so that statements need
 * not look.  It is written by those who hold the lock that stands for the schema
 * key (ddl_share.c).
 *
 * Runs in backends and in the apply worker.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/syscache.h"

#include "shmem/shmem.h"

typedef struct TemporaryFunctions
{
	pg_atomic_uint32 none;		/* 1: there is certainly none in this server */
} TemporaryFunctions;

static TemporaryFunctions *functions = NULL;

static void
temporary_function_attach_memory(void *memory, bool found)
{
	functions = memory;
	/* a crash may have left some behind */
	if (!found)
		pg_atomic_init_u32(&functions->none, 0);
}

void
ot_temporary_function_init(void)
{
	static const OtShmemPart part = {"onetrip temporary functions", sizeof(TemporaryFunctions), temporary_function_attach_memory};

	ot_shmem_add(&part);
}

bool
ot_temporary_functions_possible(void)
{
	return functions != NULL && pg_atomic_read_u32(&functions->none) == 0;
}

void
ot_temporary_functions_note(bool possible)
{
	pg_atomic_write_u32(&functions->none, possible ? 0 : 1);
}

bool
ot_type_is_temporary(Oid type)
{
	HeapTuple	tuple;
	bool		answer;

	if (type < FirstNormalObjectId)
		return false;
	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	if (!HeapTupleIsValid(tuple))
		return false;
	answer = isAnyTempNamespace(((Form_pg_type) GETSTRUCT(tuple))->typnamespace);
	ReleaseSysCache(tuple);
	return answer;
}

/* The temporary schema that the object is in; InvalidOid if it is in none, or gone. */
Oid
ot_temporary_schema(const ObjectAddress *object)
{
	AttrNumber	column = is_objectclass_supported(object->classId) ?
		get_object_attnum_namespace(object->classId) : InvalidAttrNumber;
	HeapTuple	tuple;
	bool		isnull;
	Oid			schema;

	if (column == InvalidAttrNumber || object->objectId < FirstNormalObjectId)
		return InvalidOid;
	tuple = SearchSysCache1(get_object_catcache_oid(object->classId), ObjectIdGetDatum(object->objectId));
	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	schema = DatumGetObjectId(SysCacheGetAttr(get_object_catcache_oid(object->classId), tuple, column, &isnull));
	ReleaseSysCache(tuple);
	return isAnyTempNamespace(schema) ? schema : InvalidOid;
}

/*
 * The schema of a temporary object that the function depends on; InvalidOid if
 * there is none.  Being in a temporary schema does not count.
 */
static Oid
temporary_function_find(Oid function, List **seen, ObjectAddress *found)
{
	Oid			schema = InvalidOid;
	Relation	catalog;
	SysScanDesc scan;
	ScanKeyData key[2];
	HeapTuple	tuple;

	check_stack_depth();
	*seen = lappend_oid(*seen, function);
	catalog = table_open(DependRelationId, AccessShareLock);
	ScanKeyInit(&key[0], Anum_pg_depend_classid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(ProcedureRelationId));
	ScanKeyInit(&key[1], Anum_pg_depend_objid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(function));
	scan = systable_beginscan(catalog, DependDependerIndexId, true, NULL, 2, key);
	while (!OidIsValid(schema) && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);

		ObjectAddressSet(*found, form->refclassid, form->refobjid);
		schema = ot_temporary_schema(found);
		if (!OidIsValid(schema) && form->refclassid == ProcedureRelationId &&
			form->refobjid >= FirstNormalObjectId && !list_member_oid(*seen, form->refobjid))
			schema = temporary_function_find(form->refobjid, seen, found);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return schema;
}

/*
 * The same, with the object in *found, if that is not NULL.  For functions that
 * may have been made without a note that there may be any.
 */
Oid
ot_function_temporary_schema(Oid function, ObjectAddress *found)
{
	ObjectAddress object;
	List	   *seen = NIL;
	Oid			schema;

	if (function < FirstNormalObjectId)
		return InvalidOid;
	schema = temporary_function_find(function, &seen, found != NULL ? found : &object);
	list_free(seen);
	return schema;
}

bool
ot_function_is_temporary(Oid function)
{
	return ot_temporary_functions_possible() && OidIsValid(ot_function_temporary_schema(function, NULL));
}
