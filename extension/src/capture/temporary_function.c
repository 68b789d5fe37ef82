/*-------------------------------------------------------------------------
 *
 * temporary_function.c
 *	  Functions with a temporary type in their signature.
 *
 * Such a function (or procedure, or aggregate) lives in a permanent schema, but
 * no longer than the type: PostgreSQL drops it with the type, when the session
 * of the type ends at the latest.  It exists in one region only, like the type.
 * Whether a function is one follows from its row in pg_proc.  Arrays of a
 * temporary type, and whatever else is made of it, are in the session's schema
 * as well, so the schema of each type tells.
 *
 * Whether there may be any is noted in shared memory, so that statements need
 * not look.  It is written by those who hold the lock that stands for the schema
 * key (ddl.c).
 *
 * Runs in backends and in the apply worker.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/namespace.h"
#include "catalog/pg_aggregate.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/syscache.h"

#include "shmem/shmem.h"

typedef struct TemporaryFunctions
{
	pg_atomic_uint32 none;		/* 1: there is certainly none in this server */
} TemporaryFunctions;

static TemporaryFunctions *functions = NULL;

static Size
temporary_function_size(void)
{
	return sizeof(TemporaryFunctions);
}

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
	static const OtShmemPart part = {"onetrip temporary functions", temporary_function_size,
	temporary_function_attach_memory};

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

/* The state of an aggregate is part of its signature here. */
static Oid
temporary_function_state_type(Oid aggregate)
{
	HeapTuple	tuple = SearchSysCache1(AGGFNOID, ObjectIdGetDatum(aggregate));
	Form_pg_aggregate form;
	Oid			type = InvalidOid;

	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	form = (Form_pg_aggregate) GETSTRUCT(tuple);
	if (ot_type_is_temporary(form->aggtranstype))
		type = form->aggtranstype;
	else if (ot_type_is_temporary(form->aggmtranstype))
		type = form->aggmtranstype;
	ReleaseSysCache(tuple);
	return type;
}

/*
 * The first temporary type in the signature of the function with this row of
 * pg_proc; InvalidOid if there is none.
 */
Oid
ot_function_row_temporary_type(HeapTuple tuple)
{
	Form_pg_proc form = (Form_pg_proc) GETSTRUCT(tuple);
	Datum		all;
	bool		isnull;

	if (form->oid < FirstNormalObjectId)
		return InvalidOid;
	if (ot_type_is_temporary(form->prorettype))
		return form->prorettype;
	for (int i = 0; i < form->pronargs; i++)
	{
		if (ot_type_is_temporary(form->proargtypes.values[i]))
			return form->proargtypes.values[i];
	}
	/* with those of OUT arguments and of the columns of a table */
	all = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_proallargtypes, &isnull);
	if (!isnull)
	{
		ArrayType  *array = DatumGetArrayTypeP(all);
		Oid		   *types = (Oid *) ARR_DATA_PTR(array);
		int			ntypes = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));

		for (int i = 0; i < ntypes; i++)
		{
			if (ot_type_is_temporary(types[i]))
				return types[i];
		}
	}
	return form->prokind == PROKIND_AGGREGATE ? temporary_function_state_type(form->oid) : InvalidOid;
}

Oid
ot_function_temporary_type(Oid function)
{
	HeapTuple	tuple;
	Oid			type;

	if (function < FirstNormalObjectId)
		return InvalidOid;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	type = ot_function_row_temporary_type(tuple);
	ReleaseSysCache(tuple);
	return type;
}
