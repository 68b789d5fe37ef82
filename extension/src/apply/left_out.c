/*-------------------------------------------------------------------------
 *
 * left_out.c
 *	  Entries that the cluster leaves out (onetrip skip).
 *
 * An entry that no region can apply may be left out by a later entry.  A
 * server that leaves an entry out records it in the table onetrip.left_out, in
 * the transaction that takes the entry's place in the order; so after a crash,
 * and in a copy or a backup, both are there or neither.  The later entry is
 * applied by looking it up in that table: a server that shows the changes of
 * the earlier entry cannot apply the later one, stands still there, and is
 * copied from a server that could (core_thread/healing.rs).  So all servers
 * become equal, even if some had applied the entry before it was left out.
 *
 * An entry that leaves another one out can be left out itself.  Then the
 * servers without the first entry's changes cannot go on.
 *
 * Runs in the apply worker, in the transaction of the entry at hand.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "apply/apply_internal.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"

static bool
left_out_is_left_out(OtLogIndex index)
{
	Oid			types[] = {INT8OID};
	Datum		args[] = {Int64GetDatum((int64) index.value)};
	bool		found;

	(void) SPI_connect();
	if (SPI_execute_with_args("SELECT FROM onetrip.left_out WHERE log_index = $1", 1, types,
							  args, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "cannot read onetrip.left_out");
	found = SPI_processed == 1;
	SPI_finish();
	return found;
}

static void
left_out_keep_left_out(const OtEntry *entry)
{
	Oid			types[] = {INT8OID, TEXTOID, TEXTOID};
	char		txn[OT_TXN_ID_TEXT_MAX];
	Datum		args[] = {
		Int64GetDatum((int64) entry->at.value),
		CStringGetTextDatum(ot_txn_to_text(entry->txn, txn)),
		CStringGetTextDatum(entry->region)
	};

	(void) SPI_connect();
	if (SPI_execute_with_args("INSERT INTO onetrip.left_out (log_index, transaction_id, region) VALUES ($1, $2, $3)",
							  3, types, args, NULL, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "cannot write onetrip.left_out");
	SPI_finish();
}

/* Applies an entry that is left out, or leaves another one out, or both. */
void
ot_left_out_apply(const OtEntry *entry, OtReader *r)
{
	bool		left_out = (entry->flags & OT_ENTRY_LEFT_OUT) != 0;

	if (entry->flags & OT_ENTRY_LEAVES_OUT)
	{
		OtLogIndex	other = {ot_get_u64(r)};

		if (left_out_is_left_out(other) == left_out)
			ereport(ERROR,
					(errcode(OT_ERR_NOT_NOW),
					 left_out ?
					 errmsg("this server has left out log index " UINT64_FORMAT ", which the cluster keeps",
							other.value) :
					 errmsg("this server shows log index " UINT64_FORMAT ", which the cluster has left out",
							other.value),
					 errhint("Its node copies the PostgreSQL of a region that agrees with the cluster. If there is none, leave out log index " UINT64_FORMAT " as well (onetrip skip).",
							 entry->at.value)));
	}
	if (left_out)
	{
		left_out_keep_left_out(entry);
		ereport(LOG,
				(errmsg("log index " UINT64_FORMAT " is left out", entry->at.value)));
	}
}
