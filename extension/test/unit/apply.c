/*-------------------------------------------------------------------------
 *
 * apply.c
 *	  Applies write sets in a backend, as the apply worker would, so that tests
 *	  can pass it any bytes and look at the result.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply.h"

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/pgstat_internal.h"

PG_FUNCTION_INFO_V1(unit_apply);
PG_FUNCTION_INFO_V1(unit_damage);
PG_FUNCTION_INFO_V1(unit_fault);

static void
unit_failure_in_function(void *arg)
{
}

/*
 * unit_apply(operations bytea) returns void: applies them as the apply worker
 * does, in this transaction.  The bytes are in a block of their own, so that a
 * memory checker notices a read past their end; one more byte follows them, as
 * in the worker.
 */
Datum
unit_apply(PG_FUNCTION_ARGS)
{
	bytea	   *operations = PG_GETARG_BYTEA_PP(0);
	int			len = VARSIZE_ANY_EXHDR(operations);
	char	   *copy = malloc(len + 1);
	OtReader	r = {.at = copy, .end = copy + len};
	int			nest_level = NewGUCNestLevel();

	if (!superuser())
		elog(ERROR, "the apply worker is a superuser");
	memcpy(copy, VARDATA_ANY(operations), len);
	copy[len] = 'x';
	(void) set_config_option("session_replication_role", "replica", PGC_SUSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("search_path", "pg_catalog", PGC_SUSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	ot_is_apply_worker = true;
	PG_TRY();
	{
		ot_apply_operations(&r);
	}
	PG_FINALLY();
	{
		ot_is_apply_worker = false;
		free(copy);
	}
	PG_END_TRY();
	/* The counts of written rows are not this session's but the worker's. */
	for (PgStat_TableXactStatus *counts = pgstat_get_xact_stack_level(GetCurrentTransactionNestLevel())->first;
		 counts != NULL; counts = counts->next)
		counts->tuples_inserted = counts->tuples_updated = counts->tuples_deleted = 0;
	/* true: tests want to see what the entry leaves behind in the session */
	AtEOXact_GUC(true, nest_level);
	PG_RETURN_VOID();
}

/*
 * unit_fault(file text, sqlstate text, error int, message text) returns text: whose
 * fault would an ERROR be that this file of the server raises, below a function?
 */
Datum
unit_fault(PG_FUNCTION_ARGS)
{
	static const char *const faults[] = {"passes", "lacks", "data", "write set"};
	char	   *state = text_to_cstring(PG_GETARG_TEXT_PP(1));
	ErrorData	edata = {
		.elevel = ERROR, .filename = text_to_cstring(PG_GETARG_TEXT_PP(0)),
		.saved_errno = PG_GETARG_INT32(2), .message = text_to_cstring(PG_GETARG_TEXT_PP(3))
	};
	ErrorContextCallback callback = {.callback = unit_failure_in_function, .previous = error_context_stack};
	OtFault		fault;

	edata.sqlerrcode = MAKE_SQLSTATE(state[0], state[1], state[2], state[3], state[4]);
	error_context_stack = &callback;
	fault = ot_apply_fault(&edata);
	error_context_stack = callback.previous;
	PG_RETURN_TEXT_P(cstring_to_text(faults[fault]));
}

/*
 * unit_damage(bytes bytea, seed bigint) returns bytea: the bytes, changed in a
 * few places; the same changes for the same seed.
 */
Datum
unit_damage(PG_FUNCTION_ARGS)
{
	bytea	   *bytes = PG_GETARG_BYTEA_PP(0);
	uint64		x = (uint64) PG_GETARG_INT64(1) * UINT64CONST(0x9e3779b97f4a7c15) + 1;
	StringInfoData out;
	int			changes;

#define DRAW(n) (x ^= x << 13, x ^= x >> 7, x ^= x << 17, (int) ((x >> 16) % (n)))
	initStringInfo(&out);
	appendBinaryStringInfo(&out, VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes));
	changes = 1 + DRAW(3);
	for (int i = 0; i < changes && out.len > 0; i++)
	{
		static const unsigned char telling[] = {0, 1, 0x7f, 0x80, 0xff, 'R', 'I', 'C', 'U', 'D', 'M', 'S', 'E', 'N', 'Q', 'P', 'b', 't', 'n', 'u'};
		int			at = DRAW(out.len);
		int			n = 1 + DRAW(8);

		switch (DRAW(6))
		{
			case 0:				/* one bit */
				out.data[at] ^= 1 << DRAW(8);
				break;
			case 1:				/* a byte that is likely to have a meaning */
				out.data[at] = (char) telling[DRAW(lengthof(telling))];
				break;
			case 2:				/* a length that is too large, or negative */
				n = Min(4, out.len - at);
				memset(out.data + at, DRAW(2) ? 0xff : 0x7f, n);
				break;
			case 3:				/* the end cut off */
				out.len = at;
				break;
			case 4:				/* some bytes removed */
				n = Min(n, out.len - at);
				memmove(out.data + at, out.data + at + n, out.len - at - n);
				out.len -= n;
				break;
			case 5:				/* some bytes repeated */
				n = Min(4 * n, out.len - at);
				enlargeStringInfo(&out, n);
				memmove(out.data + at + n, out.data + at, out.len - at);
				out.len += n;
				break;
		}
	}
	PG_RETURN_BYTEA_P(cstring_to_text_with_len(out.data, out.len));
}
