/*-------------------------------------------------------------------------
 *
 * apply_fault.c
 *	  Whose fault an error is that a write set meets here.
 *
 * Where the server itself raises the error, its file tells what happened better
 * than the SQLSTATE, which a user's function may choose.
 *
 * Runs in the apply worker, in the arrival worker, and in backends that rehearse,
 * while the error is raised.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include "ddl/ddl.h"

/* Is it the server's own code that raises this, whatever runs above it? */
static bool
apply_fault_is_below(const char *file)
{
	/*
	 * Those of PostgreSQL 15 to 18 that raise SQLSTATEs of resources, files and interrupts, and run
	 * below a function.  Some are not in each version.
	 */
	static const char *const files[] = {
		"aset.c", "buffile.c", "bufmgr.c", "bump.c", "copydir.c", "deadlock.c", "dfmgr.c", "dsa.c", "dshash.c",
		"dsm.c", "dsm_impl.c", "dynahash.c", "fd.c", "file_utils.c", "fileset.c", "generation.c", "ipc.c",
		"localbuf.c", "lock.c", "logtape.c", "mcxt.c", "md.c", "multixact.c", "nodeAgg.c", "nodeHashjoin.c",
		"parallel.c", "pgstat_shmem.c", "postgres.c", "predicate.c", "procarray.c", "relmapper.c", "rewriteheap.c",
		"sharedfileset.c", "sharedtuplestore.c", "shm_toc.c", "shmem.c", "slab.c", "slru.c", "smgr.c", "sync.c",
		"tuplestore.c", "varsup.c", "xlog.c"
	};

	for (int i = 0; i < lengthof(files); i++)
	{
		if (strcmp(file, files[i]) == 0)
			return true;
	}
	return false;
}

/*
 * Whose fault is an error that a write set meets here?  Called while it is raised.  A
 * function that the write set runs can raise what it likes: something of it, or of
 * the server below it, is on top of the context then.
 */
OtFault
ot_apply_fault(const ErrorData *edata)
{
	const char *file = edata->filename ? edata->filename : "";
	bool		below = apply_fault_is_below(file);
	ErrorContextCallback *context = error_context_stack;

	if (!below && context != NULL && !ot_apply_is_around_operations(context) &&
		!ot_apply_says_entry(context) && !ot_ddl_says_statement(context) && !ot_apply_rows_in_heap())
		return OT_FAULT_OF_WRITE_SET;
	switch (ERRCODE_TO_CATEGORY(edata->sqlerrcode))
	{
		case ERRCODE_CONNECTION_EXCEPTION:
			return edata->sqlerrcode == OT_ERR_PROTOCOL ? OT_FAULT_OF_WRITE_SET : OT_FAULT_PASSES;
		case ERRCODE_TRANSACTION_ROLLBACK:
		case ERRCODE_OPERATOR_INTERVENTION:
			return OT_FAULT_PASSES;
		case ERRCODE_INSUFFICIENT_RESOURCES:
			return edata->sqlerrcode == ERRCODE_CONFIGURATION_LIMIT_EXCEEDED ? OT_FAULT_LACKS : OT_FAULT_PASSES;
		case ERRCODE_SYSTEM_ERROR:
			if (edata->sqlerrcode != ERRCODE_UNDEFINED_FILE && edata->sqlerrcode != ERRCODE_DUPLICATE_FILE)
				return OT_FAULT_PASSES;
			/* a C library, or a file of an extension */
			if (!below || strcmp(file, "dfmgr.c") == 0)
				return OT_FAULT_LACKS;
			/* of a tablespace, its disk may not be there */
			return edata->message && strstr(edata->message, "pg_tblspc/") ? OT_FAULT_PASSES : OT_FAULT_OF_DATA;
	}
	/* another version of the library, or one that cannot be loaded */
	if (strcmp(file, "dfmgr.c") == 0)
		return OT_FAULT_LACKS;
	switch (edata->sqlerrcode)
	{
		case ERRCODE_LOCK_NOT_AVAILABLE:
			return OT_FAULT_PASSES;
			/* what errcode_for_file_access() makes of these errors */
		case ERRCODE_INSUFFICIENT_PRIVILEGE:
			if (below && (edata->saved_errno == EACCES || edata->saved_errno == EPERM || edata->saved_errno == EROFS))
				return OT_FAULT_PASSES;
			break;
			/* transaction ids have run out, until an operator vacuums */
		case ERRCODE_PROGRAM_LIMIT_EXCEEDED:
			if (strcmp(file, "varsup.c") == 0 || strcmp(file, "multixact.c") == 0)
				return OT_FAULT_PASSES;
			break;
		case ERRCODE_INTERNAL_ERROR:
			if (below && edata->saved_errno == EDQUOT)
				return OT_FAULT_PASSES;
			break;
	}
	return OT_FAULT_OF_WRITE_SET;
}
