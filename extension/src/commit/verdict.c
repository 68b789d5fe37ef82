/*-------------------------------------------------------------------------
 *
 * verdict.c
 *	  What a session says of the outcome of its transaction: the errors of
 *	  verdicts other than commit, and what an error has to say once the entry
 *	  may be in the log.
 *
 * Runs in backends.  Nothing here changes the state of a COMMIT (commit.c).
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit_internal.h"

#include "utils/lsyscache.h"

#include "capture/capture.h"
#include "sequence/sequence.h"
#include "shmem/shmem.h"

/* ---- what may be in the log ---- */

/* To be called inside ereport(), or in an error context callback. */
void
ot_say_unknown(OtTxnId txn)
{
	char		text[OT_TXN_ID_TEXT_MAX];

	ot_txn_to_text(txn, text);
	errcode(OT_ERR_OUTCOME_UNKNOWN);
	errmsg("outcome of transaction %s is not known yet", text);
	errdetail("It was proposed in region \"%s\", and no majority of regions has decided it in time. It will commit once or not at all.",
			  ot_region);
	errhint("Ask SELECT onetrip.outcome('%s') in any region before you repeat it.", text);
}

/* The same.  `why` is a sentence without its full stop. */
void
ot_say_committed(OtTxnId txn, OtLogIndex index, bool wrote_here, const char *why)
{
	char		text[OT_TXN_ID_TEXT_MAX];

	ot_txn_to_text(txn, text);
	errcode(OT_ERR_OUTCOME_UNKNOWN);
	if (wrote_here)
	{
		errmsg("outcome of transaction %s: committed at " UINT64_FORMAT ", but for its changes of what is not replicated",
			   text, index.value);
		errdetail("%s. The changes of onetrip tables become visible here shortly, or once this region goes on; those of other tables and definitions, which this server alone has, are lost.",
				  why);
		errhint("Repeat those other changes, and nothing else.");
	}
	else
	{
		errmsg("outcome of transaction %s: committed at " UINT64_FORMAT, text, index.value);
		if (ot_worker_stands_at(0).value == 0)
			errdetail("%s. The transaction becomes visible here shortly.", why);
		else
			errdetail("%s. The transaction becomes visible here once this region goes on.", why);
		errhint("Do not repeat it.");
	}
}

/* The same, of a transaction that has no entry; it may have changed local tables. */
void
ot_say_committed_here(const char *why)
{
	errcode(OT_ERR_OUTCOME_UNKNOWN);
	errmsg("the statement has been carried out in region \"%s\", and its transaction has committed", ot_region);
	errdetail("%s. It has changed nothing that is replicated.", why);
	errhint("Do not repeat it.");
}

/* The same, of PREPARE TRANSACTION, COMMIT PREPARED or ROLLBACK PREPARED. */
void
ot_say_handed_over(OtTxnId txn, OtLogIndex index, bool prepared, const char *why)
{
	char		text[OT_TXN_ID_TEXT_MAX];

	errcode(OT_ERR_OUTCOME_UNKNOWN);
	errmsg("outcome of transaction %s: %s at " UINT64_FORMAT, ot_txn_to_text(txn, text),
		   prepared ? "prepared" : "committed", index.value);
	errdetail("%s. onetrip.prepared_xacts shows it shortly.", why);
	errhint("Do not repeat the statement.");
}

/* ---- verdicts other than commit ---- */

static void
verdict_raise_lost(OtTxnId txn, OtVerdict *verdict)
{
	char		text[OT_TXN_ID_TEXT_MAX];
	Oid			relid = ot_write_set_key_table(verdict->key_number);
	char	   *name = OidIsValid(relid) ? get_rel_name(relid) : NULL;
	char	   *schema = name ? get_namespace_name(get_rel_namespace(relid)) : NULL;
	OtConflictKey key;

	ot_sequence_lost_on(relid);
	ot_txn_to_text(txn, text);
	ot_describe_key(verdict->key_number, &key);
	ot_conflict_note(verdict->outcome == OT_OUTCOME_WINDOW ? OT_CONFLICT_TOO_OLD :
					 verdict->outcome == OT_OUTCOME_RESERVED ? OT_CONFLICT_RESERVED : OT_CONFLICT_CERTIFIED,
					 relid, name ? psprintf("%s.%s", schema, name) : "", &key,
					 verdict->outcome == OT_OUTCOME_WINDOW ? "" : verdict->region, verdict->other);
	if (verdict->outcome == OT_OUTCOME_WINDOW)
		ereport(ERROR,
				(errcode(OT_ERR_LOST),
				 errmsg("could not commit: the transaction is too old to be checked for conflicts"),
				 ot_write_set_key_is_read(verdict->key_number) ?
				 errdetail("Its snapshot is from before log index " UINT64_FORMAT ".", verdict->other.value) :
				 name ?
				 errdetail("Its lock in table \"%s.%s\" was taken before log index " UINT64_FORMAT ".",
						   schema, name, verdict->other.value) :
				 errdetail("Its oldest row lock was taken before log index " UINT64_FORMAT ".",
						   verdict->other.value),
				 ot_worker_hint_retry("Retry the transaction. Keep write transactions shorter, or see whether another one has changed millions of rows meanwhile.")));
	if (verdict->outcome == OT_OUTCOME_RESERVED)
		ereport(ERROR,
				(errcode(OT_ERR_LOST),
				 errmsg("could not commit: region \"%s\" is to go first", verdict->region),
				 name ?
				 errdetail("Transactions of region \"%s\" have lost again and again, at log index " UINT64_FORMAT " for the last time. What this one touched in table \"%s.%s\" is kept for their next try.",
						   verdict->region, verdict->other.value, schema, name) :
				 errdetail("Transactions of region \"%s\" have lost again and again, at log index " UINT64_FORMAT " for the last time. What this one changed in the schema is kept for their next try.",
						   verdict->region, verdict->other.value),
				 ot_worker_hint_retry("Retry the transaction.")));
	if (verdict->outcome == OT_OUTCOME_HELD)
		ereport(ERROR,
				(errcode(OT_ERR_LOST),
				 errmsg("could not commit: a prepared transaction of region \"%s\" holds what this one needs",
						verdict->region),
				 name ?
				 errdetail("Both touched table \"%s.%s\"; the other one was prepared at log index " UINT64_FORMAT " and is neither committed nor rolled back.",
						   schema, name, verdict->other.value) :
				 errdetail("Both touched the schema; the other one was prepared at log index " UINT64_FORMAT " and is neither committed nor rolled back.",
						   verdict->other.value),
				 errhint("Retry the transaction once that is done: COMMIT PREPARED or ROLLBACK PREPARED, in any region. See onetrip.prepared_xacts.")));
	if (ot_write_set_key_is_read(verdict->key_number) && name != NULL)
		ereport(ERROR,
				(errcode(OT_ERR_LOST),
				 errmsg("could not serialize access due to read/write dependencies among transactions"),
				 errdetail("What this transaction has read in table \"%s.%s\" was changed by a concurrent one in region \"%s\", which committed at log index " UINT64_FORMAT ".",
						   schema, name, verdict->region, verdict->other.value),
				 ot_worker_hint_retry("Retry the transaction.")));
	ereport(ERROR,
			(errcode(OT_ERR_LOST),
			 errmsg("could not commit: a concurrent transaction in region \"%s\" was first",
					verdict->region),
			 name ?
			 errdetail("Both touched table \"%s.%s\"; region \"%s\" committed at log index " UINT64_FORMAT ".",
					   schema, name, verdict->region, verdict->other.value) :
			 errdetail("Both changed the schema; region \"%s\" committed at log index " UINT64_FORMAT ".",
					   verdict->region, verdict->other.value),
			 ot_worker_hint_retry("Retry the transaction.")));
}

static void
verdict_raise_cancelled(OtTxnId txn)
{
	char		text[OT_TXN_ID_TEXT_MAX];

	ereport(ERROR,
			(errcode(ERRCODE_TRANSACTION_ROLLBACK),
			 errmsg("could not commit: transaction %s was settled before its COMMIT was decided",
					ot_txn_to_text(txn, text)),
			 errdetail("Somebody called onetrip.outcome() with settle => true and was told that it is aborted; or this region's node was removed from the cluster."),
			 errhint("Nothing was committed. Repeat the transaction; if the node was removed, in another region.")));
}

static void
verdict_raise_refused(const OtVerdict *verdict)
{
	if (verdict->outcome == OT_OUTCOME_REFUSED)
		ereport(ERROR,
				(errcode(OT_ERR_NOT_NOW),
				 errmsg("the node of region \"%s\" refused the transaction, nothing was committed", ot_region),
				 errdetail("%s.", verdict->message)));
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			 errmsg("the node of region \"%s\" has no room for the transaction now", ot_region),
			 errdetail("%s.", verdict->message),
			 errhint("Other transactions of this server are being committed; retry this one, or make them smaller.")));
}

/* The transaction is not committed: says why. */
void
ot_verdict_raise(OtTxnId txn, OtVerdict *verdict)
{
	/* an entry about a prepared transaction may have lost because of its name */
	ot_prepared_raise_name(verdict);
	switch (verdict->outcome)
	{
		case OT_OUTCOME_CANCELLED:
			verdict_raise_cancelled(txn);
			break;
		case OT_OUTCOME_NO_ROOM:
			ot_prepared_raise_no_room();
			break;
		case OT_OUTCOME_REFUSED:
		case OT_OUTCOME_FULL:
			verdict_raise_refused(verdict);
			break;
		default:
			verdict_raise_lost(txn, verdict);
	}
	pg_unreachable();
}
