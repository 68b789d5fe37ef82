/*-------------------------------------------------------------------------
 *
 * prepared_here.c
 *	  What prepared transactions (commit/prepared.c) are going to change, kept in
 *	  this server until they are committed or rolled back.
 *
 * The table onetrip.prepared contains the write sets.  Each is written in the
 * transaction of the entry that prepared it, and deleted in that of the entry
 * that ends it; so after a crash, in a copy and in a backup it is there if and
 * only if the position says so.
 *
 * Runs in the apply worker, in the transaction of the entry at hand.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* PREPARE TRANSACTION */
void
ot_prepared_keep(OtReader *r, const OtEntry *entry)
{
	Oid			types[] = {TEXTOID, OIDOID, TEXTOID, TIMESTAMPTZOID, INT8OID, BYTEAOID};
	char	   *gid = ot_get_str(r);
	char	   *owner = ot_get_str(r);
	TimestampTz prepared = (TimestampTz) ot_get_u64(r);
	uint32		length = ot_get_u32(r);
	const char *write_set = ot_get_bytes(r, length);
	Size		size = VARHDRSZ + (Size) length;
	bytea	   *kept;

	if (entry == NULL || size > MaxAllocSize)
		ereport(ERROR,
				(errcode(OT_ERR_PROTOCOL),
				 errmsg("a prepared transaction of %u bytes cannot be kept", length)));
	kept = palloc(size);
	SET_VARSIZE(kept, size);
	memcpy(VARDATA(kept), write_set, length);
	(void) SPI_connect();
	{
		Datum		args[] = {
			CStringGetTextDatum(gid),
			/* if it was dropped meanwhile, only superusers can end it */
			ObjectIdGetDatum(get_role_oid(owner, true)),
			CStringGetTextDatum(entry->region),
			TimestampTzGetDatum(prepared),
			Int64GetDatum((int64) entry->at.value),
			PointerGetDatum(kept)
		};

		if (SPI_execute_with_args("INSERT INTO onetrip.prepared (gid, owner, region, prepared, log_index, write_set) "
								  "VALUES ($1, $2, $3, $4, $5, $6)",
								  6, types, args, NULL, false, 0) != SPI_OK_INSERT)
			elog(ERROR, "cannot write onetrip.prepared");
	}
	SPI_finish();
	pfree(kept);
}

/*
 * COMMIT PREPARED and ROLLBACK PREPARED: forgets it.  Returns whether it is to
 * be applied, and then what.
 */
bool
ot_prepared_end(OtReader *r, OtReader *prepared)
{
	Oid			types[] = {TEXTOID};
	MemoryContext context = CurrentMemoryContext;
	char	   *gid = ot_get_str(r);
	bool		commit = ot_get_u8(r) != 0;
	bytea	   *write_set;
	bool		isnull;

	(void) SPI_connect();
	{
		Datum		args[] = {CStringGetTextDatum(gid)};

		if (SPI_execute_with_args("DELETE FROM onetrip.prepared WHERE gid OPERATOR(pg_catalog.=) $1 RETURNING write_set",
								  1, types, args, NULL, false, 0) != SPI_OK_DELETE_RETURNING)
			elog(ERROR, "cannot write onetrip.prepared");
	}
	if (SPI_processed != 1)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("this server has not kept the prepared transaction \"%s\"", gid),
				 errdetail("Its table onetrip.prepared differs from those of the other regions."),
				 errhint("Compare them with onetrip check.")));
	if (commit)
	{
		MemoryContext spi = MemoryContextSwitchTo(context);

		write_set = DatumGetByteaPCopy(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
		MemoryContextSwitchTo(spi);
		prepared->at = VARDATA(write_set);
		prepared->end = VARDATA(write_set) + VARSIZE(write_set) - VARHDRSZ;
		prepared->more = NULL;
	}
	SPI_finish();
	return commit;
}
