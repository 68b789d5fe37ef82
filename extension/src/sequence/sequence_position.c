/*-------------------------------------------------------------------------
 *
 * sequence_position.c
 *	  The position of a sequence on this node: its page, setval, 'Q' operations.
 *
 * sequence.c says why positions must be own values of this node.  For each
 * change, sequence_share.c computes the new position.
 *
 * Runs in backends and in the apply worker.  A change of position locks the
 * sequence's page exclusively and is, like PostgreSQL's, not transactional.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "sequence/sequence_internal.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "capture/capture.h"
#include "ddl/ddl.h"

/* in the special space of a sequence's page, as in commands/sequence.c */
#define OT_SEQUENCE_MAGIC 0x1717

PG_FUNCTION_INFO_V1(ot_setval);
PG_FUNCTION_INFO_V1(ot_nextval);

/* ---- the sequence's page ---- */

static Form_pg_sequence_data
sequence_page_open(Relation rel, Buffer *buffer, HeapTupleData *tuple, int lock)
{
	Page		page;
	ItemId		item;

	*buffer = ReadBuffer(rel, 0);
	LockBuffer(*buffer, lock);
	page = BufferGetPage(*buffer);
	if (*(uint32 *) PageGetSpecialPointer(page) != OT_SEQUENCE_MAGIC)
		elog(ERROR, "bad magic number in sequence \"%s\"", RelationGetRelationName(rel));
	item = PageGetItemId(page, FirstOffsetNumber);
	tuple->t_data = (HeapTupleHeader) PageGetItem(page, item);
	tuple->t_len = ItemIdGetLength(item);
	return (Form_pg_sequence_data) GETSTRUCT(tuple);
}

OtPosition
ot_sequence_page_read(Relation rel)
{
	Buffer		buffer;
	HeapTupleData tuple;
	Form_pg_sequence_data data = sequence_page_open(rel, &buffer, &tuple, BUFFER_LOCK_SHARE);
	OtPosition	position = {data->last_value, data->is_called};

	UnlockReleaseBuffer(buffer);
	return position;
}

/*
 * Sets or raises the position.  The page stays locked between reading and
 * writing, so that raising it does not undo a concurrent nextval.
 */
void
ot_sequence_page_write(Relation rel, const OtSequence *seq, OtPosition target, bool raise)
{
	Buffer		buffer;
	HeapTupleData tuple;
	Form_pg_sequence_data data;

	if (!raise)
		ot_sequence_moved();
	/* the WAL record below must be flushed by this transaction's commit */
	if (RelationNeedsWAL(rel))
		GetTopTransactionId();

	data = sequence_page_open(rel, &buffer, &tuple, BUFFER_LOCK_EXCLUSIVE);
	if (raise)
	{
		OtPosition	now = {data->last_value, data->is_called};

		if (!ot_sequence_raise(seq, ot_sequence_own_share(seq), &now, target.last_value))
		{
			UnlockReleaseBuffer(buffer);
			return;
		}
		target = now;
	}

	START_CRIT_SECTION();
	MarkBufferDirty(buffer);
	data->last_value = target.last_value;
	data->is_called = target.is_called;
	data->log_cnt = 0;
	if (RelationNeedsWAL(rel))
	{
		xl_seq_rec	record;
		XLogRecPtr	lsn;

		XLogBeginInsert();
		XLogRegisterBuffer(0, buffer, REGBUF_WILL_INIT);
		OT_SEQUENCE_RECORD_SET_FILE(record, rel);
		XLogRegisterData((char *) &record, sizeof(record));
		XLogRegisterData((char *) tuple.t_data, tuple.t_len);
		/* PageSetLSN is a macro that evaluates its argument twice */
		lsn = XLogInsert(RM_SEQ_ID, XLOG_SEQ_LOG);
		PageSetLSN(BufferGetPage(buffer), lsn);
	}
	END_CRIT_SECTION();
	UnlockReleaseBuffer(buffer);
}

/* ---- setval ---- */

/*
 * onetrip.setval(regclass, bigint [, boolean]): setval for every region.
 * Takes effect here at once and elsewhere at COMMIT; like PostgreSQL's it is
 * not undone by ROLLBACK here.
 */
Datum
ot_setval(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	int64		value = PG_GETARG_INT64(1);
	bool		is_called = PG_NARGS() > 2 ? PG_GETARG_BOOL(2) : true;
	OtPosition	position = {value, is_called};
	char		persistence = get_rel_persistence(relid);
	OtSequenceLoaded		seq;

	ot_user_check_may_call(PG_NARGS() > 2 ? OT_SETVAL3_OID : OT_SETVAL_OID);
	if (ot_sequence_is_active() && get_rel_relkind(relid) == RELKIND_SEQUENCE &&
		persistence != RELPERSISTENCE_TEMP &&
		pg_class_aclcheck(relid, GetUserId(), ACL_UPDATE) == ACLCHECK_OK)
	{
		PreventCommandIfReadOnly("setval()");
		ot_ddl_check_function("call setval()");
		PreventCommandIfParallelMode("setval()");
		/* no ROLLBACK would undo it, not even that of a rehearsal */
		if (ot_is_apply_worker && !creating_extension)
			ereport(ERROR,
					(errcode(OT_ERR_NOT_REPLICATED),
					 errmsg("a function that the statement calls runs %s in region \"%s\"", "setval()", ot_region),
					 errdetail("It did not do so in the region that the statement comes from.")));
		LockRelationOid(relid, RowExclusiveLock);
		ot_sequence_moved();
		if (!ot_sequence_load(relid, &seq))
			elog(ERROR, "cache lookup failed for sequence %u", relid);
		if (value < seq.user.minimum || value > seq.user.maximum)
			ereport(ERROR,
					(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
					 errmsg("setval: value %lld is out of bounds for sequence \"%s\" (%lld..%lld)",
							(long long) value, get_rel_name(relid),
							(long long) seq.user.minimum, (long long) seq.user.maximum)));
		position = ot_sequence_place(&seq.user, ot_sequence_own_share(&seq.user), value, is_called);

		/*
		 * After setvals in two regions at the same time, each would have the
		 * other's value.  So setval takes a key, which nextval does not take,
		 * and one of the two transactions loses.
		 */
		if (persistence == RELPERSISTENCE_PERMANENT && ot_capturing())
			ot_write_set_key_now(ot_hash_table(get_namespace_name(get_rel_namespace(relid)),
											   psprintf("%s\nsetval", get_rel_name(relid))),
								 OT_UPDATE, relid);
	}
	else
		persistence = '\0';		/* PostgreSQL's own raises the error, if any */

	DirectFunctionCall3(setval3_oid, ObjectIdGetDatum(relid),
						Int64GetDatum(position.last_value),
						BoolGetDatum(position.is_called));

	if (persistence == RELPERSISTENCE_PERMANENT && ot_capturing())
		ot_write_set_sequence(get_namespace_name(get_rel_namespace(relid)),
							  get_rel_name(relid), value,
							  OT_SEQUENCE_EXACT | (is_called ? OT_SEQUENCE_IS_CALLED : 0));
	PG_RETURN_INT64(value);
}

/* onetrip.nextval(regclass): on a read replica for temporary sequences only. */
Datum
ot_nextval(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);

	ot_user_check_may_call(OT_NEXTVAL_OID);
	if (ot_sequence_is_active() && get_rel_persistence(relid) != RELPERSISTENCE_TEMP)
		ot_check_writable();
	return DirectFunctionCall1(nextval_oid, ObjectIdGetDatum(relid));
}

/* ---- write sets ---- */

/*
 * A short sequence: nobody commits who has not seen this.  That the lock which
 * its draw took is still held means that no other region's draw was applied
 * since (ot_sequence_apply), so the base is as good as the draw's.  Others of
 * this server wait here, until this transaction's entry is visible.
 */
static void
sequence_capture_short(Oid relid)
{
	LockRelationOid(relid, ShareUpdateExclusiveLock);
	ot_write_set_key_now(ot_hash_relation(relid), OT_NO_KEY_UPDATE, relid);
}

/*
 * At COMMIT, for a sequence on which this transaction holds RowExclusiveLock:
 * records its position, so that other regions go on above it.  With interleaved
 * values this only keeps the regions near each other, which is not worth a
 * round trip for a transaction that has changed nothing else.
 */
void
ot_sequence_capture(Oid relid)
{
	char	   *schema;
	Relation	rel;
	OtPosition	position;
	bool		is_short;

	if (get_rel_relkind(relid) != RELKIND_SEQUENCE ||
		get_rel_persistence(relid) != RELPERSISTENCE_PERMANENT)
		return;
	is_short = ot_sequence_relation_is_short(relid);
	if (is_short)
		sequence_capture_short(relid);
	else if (ot_sequence_stride > 1 && ot_write_set_is_empty())
		return;
	schema = get_namespace_name(get_rel_namespace(relid));
	rel = try_relation_open(relid, NoLock);
	if (rel == NULL || schema == NULL)
		return;
	position = ot_sequence_page_read(rel);
	if (is_short)
		ot_write_set_sequence(schema, RelationGetRelationName(rel), position.last_value,
							  OT_SEQUENCE_EXACT | (position.is_called ? OT_SEQUENCE_IS_CALLED : 0));
	else if (position.is_called)
		ot_write_set_sequence(schema, RelationGetRelationName(rel),
							  position.last_value, OT_SEQUENCE_IS_CALLED);
	relation_close(rel, NoLock);
}

/* Applies a 'Q' operation; r is after the op byte. */
void
ot_sequence_apply(OtReader *r)
{
	char	   *schema = ot_get_str(r);
	char	   *name = ot_get_str(r);
	int64		value = (int64) ot_get_u64(r);
	uint8		flags = ot_get_u8(r);
	Relation	rel;
	OtSequenceLoaded		seq;

	rel = relation_openrv(makeRangeVar(schema, name, -1), RowExclusiveLock);
	if (rel->rd_rel->relkind != RELKIND_SEQUENCE || !ot_sequence_load(RelationGetRelid(rel), &seq))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s.%s\" is not a sequence", schema, name)));
	/* who has drawn from it here, and not committed, may have drawn the same value */
	if (!ot_is_rehearsing && ot_sequence_is_short(&seq.user, ot_sequence_stride))
		LockRelation(rel, ShareRowExclusiveLock);
	if (ot_is_rehearsing)
		;						/* a change of position is not rolled back */
	else if (flags & OT_SEQUENCE_EXACT)
		ot_sequence_page_write(rel, &seq.user,
				   ot_sequence_place(&seq.user, ot_sequence_own_share(&seq.user), value,
									 (flags & OT_SEQUENCE_IS_CALLED) != 0),
				   false);
	else
	{
		OtPosition	there = {value, true};

		ot_sequence_page_write(rel, &seq.user, there, true);
	}
	relation_close(rel, NoLock);
	pfree(schema);
	pfree(name);
}

