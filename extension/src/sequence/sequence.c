/*-------------------------------------------------------------------------
 *
 * sequence.c
 *	  Sequences that never give two regions the same value.
 *
 * No hook can change what nextval returns, and nextval must cost nothing.  So
 * the *definition* differs between nodes: in this node's pg_sequence a sequence
 * steps by increment x stride and starts at this node's slot.  The owner's
 * definition is kept beside it, in the reloptions of the sequence's pg_class
 * row (PostgreSQL has none for sequences), so it is created and dropped with
 * the sequence, in the same transaction.  Definitions are adjusted around
 * CREATE SEQUENCE and ALTER SEQUENCE, alone or as part of another statement, in
 * backends as in the apply worker.  In between, pg_sequence has the owner's
 * definition, with which nextval would give values of other nodes; so no code of
 * users runs then, and event triggers fire before and after.  This hook is inside of
 * that of ddl: what it looks up and locks comes after the schema lock.
 *
 * Why no two nodes give out the same value
 * ----------------------------------------
 * Number the values k = (value - anchor) / increment.  The values with k mod
 * stride = slot are the own values of the node with that slot, and it gives out
 * no others.  Slots are distinct, so it is enough that (1) every position to
 * which a node's sequence is set is one of its own values, (2) nextval moves by
 * a multiple of increment x stride, from own value to own value, (3) anchor,
 * increment and stride are the same on every node.
 *
 * (1) Positions are written by: CREATE (the start is moved to an own value),
 *	   ALTER ... RESTART and TRUNCATE ... RESTART IDENTITY (to the start in
 *	   pg_sequence, an own value; a given value is moved to the next own one),
 *	   setval (redirected to onetrip.setval, which does the same; a call that
 *	   cannot be redirected is an error), 'Q' operations (own values only) and
 *	   nextval.  CYCLE wraps to the near bound, which is made an own value.
 *	   After a crash the position is one that was written before, or some whole
 *	   steps ahead.
 * (2) pg_sequence.seqincrement is increment x stride.
 * (3) START, bounds, CYCLE, CACHE and type do not change the anchor.  A change
 *	   of INCREMENT gives the values new numbers, so that a value may belong to
 *	   another node than before.  It is therefore accepted only with RESTART,
 *	   by which the owner says from which value on.  All nodes carry it out at
 *	   the same log index, and the statement takes the sequence's key, so a
 *	   transaction that used the old numbers commits before it or not at all.
 *	   Without RESTART it is refused, unless nobody can have used the sequence
 *	   yet.
 *
 * A data folder may come from another node, or be given another slot.  Then
 * all definitions are rewritten before clients are let in, and each sequence
 * goes on above all values that may be in use (sequence_reshare.c).
 *
 * A sequence that is restarted below values in use gives them out again, as in
 * PostgreSQL, but each in the region that gave it out before.
 *
 * With stride 1 (dense) definitions stay as written, and the log sees to it
 * that values are unique: the position of a sequence is part of the entry of a
 * transaction that used it, and a region that takes over goes on above it.
 *
 * Short sequences
 * ---------------
 * A sequence that has not one value for each slot is short: its definition stays
 * as written on every node, and its values are unique because they are
 * certified.  Every transaction that draws from it gets an entry with a key of
 * the sequence and its position, which other nodes take over as it is.  A node
 * that applies such an entry locks the sequence against those that have drawn
 * from it, so they are evicted if they have not proposed, and lose by the key if
 * they have: a transaction that commits has seen every draw before its own.
 * Transactions of one node wait for each other at COMMIT, so that they do not
 * lose to each other.  No session may keep values in its cache that another
 * node may give out, so CACHE is 1 in pg_sequence.
 * (docs/decisions/2026-11-25-short-sequences.md)
 *
 * Runs in backends and in the apply worker.  Locks: those that the statement
 * itself takes, but a little earlier; the sequence's page, exclusively, for
 * each change of position.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "sequence/sequence_internal.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_language.h"
#include "catalog/pg_class.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_sequence.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "commands/event_trigger.h"
#include "commands/sequence.h"
#include "commands/tablecmds.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/planner.h"
#include "parser/parse_func.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/formatting.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "ddl/ddl.h"

/* pg_proc.dat's numbers of currval, lastval and pg_prepared_xact */
#define CURRVAL_OID 1575
#define LASTVAL_OID 2559
#define PREPARED_XACT_OID 1065

/* An ALTER SEQUENCE under way. */
typedef struct Alteration
{
	Oid			relid;			/* InvalidOid: nothing to do */
	OtSequence	before;
	OtPosition	position;
	bool		restart;
	bool		restart_value_given;
	int64		restart_value;
	bool		new_increment;
	bool		fresh;			/* made in this transaction, and not used yet */
} Alteration;

static ProcessUtility_hook_type prev_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;
static planner_hook_type prev_planner = NULL;
static needs_fmgr_hook_type prev_needs_fmgr = NULL;

/* While CREATE SEQUENCE runs: where to put the new relation's oid. */
static Oid *created_sequence = NULL;

/* While CREATE TABLE (LIKE ... INCLUDING IDENTITY) runs: what it has yet to copy. */
static List *like_elements = NIL;	/* of the statement as written; NIL: it is known */
static List *like_sources = NIL;

bool
ot_sequence_is_active(void)
{
	return ot_preloaded && IsUnderPostmaster && !IsBinaryUpgrade &&
		ot_in_replicated_database();
}

OtShare
ot_sequence_own_share(const OtSequence *seq)
{
	OtShare		share = {0, 1};

	if (ot_sequence_stride > 1 && !ot_sequence_is_short(seq, ot_sequence_stride))
	{
		share.stride = ot_sequence_stride;
		share.slot = ot_sequence_slot;
	}
	return share;
}

/* Is it a sequence whose values are certified? */
bool
ot_sequence_relation_is_short(Oid relid)
{
	OtSequenceLoaded seq;

	return ot_sequence_stride > 1 && get_rel_persistence(relid) == RELPERSISTENCE_PERMANENT &&
		ot_sequence_load(relid, &seq) && ot_sequence_is_short(&seq.user, ot_sequence_stride);
}

/* ---- catalogs ---- */

static bool
sequence_read_option(const char *option, const char *name, int64 *value)
{
	size_t		len = strlen(name);

	if (strncmp(option, name, len) != 0 || option[len] != '=')
		return false;
	*value = pg_strtoint64(option + len + 1);
	return true;
}

/* Reads both definitions; false if relid is not a sequence (any more). */
bool
ot_sequence_load(Oid relid, OtSequenceLoaded *seq)
{
	HeapTuple	tuple;
	Form_pg_sequence form;
	Datum		options;
	bool		isnull;

	tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(relid));
	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_sequence) GETSTRUCT(tuple);
	seq->here.start = seq->user.start = seq->user.anchor = form->seqstart;
	seq->here.increment = seq->user.increment = form->seqincrement;
	seq->here.minimum = seq->user.minimum = form->seqmin;
	seq->here.maximum = seq->user.maximum = form->seqmax;
	seq->here.cache = seq->user.cache = form->seqcache;
	seq->user.cycle = form->seqcycle;
	seq->adjusted = false;
	ReleaseSysCache(tuple);

	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	if (!HeapTupleIsValid(tuple))
		return false;
	options = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_reloptions, &isnull);
	if (!isnull)
	{
		Datum	   *items;
		int			nitems;

		deconstruct_array(DatumGetArrayTypeP(options), TEXTOID, -1, false,
						  TYPALIGN_INT, &items, NULL, &nitems);
		for (int i = 0; i < nitems; i++)
		{
			char	   *option = TextDatumGetCString(items[i]);

			(void) (sequence_read_option(option, "start", &seq->user.start) ||
					sequence_read_option(option, "increment", &seq->user.increment) ||
					sequence_read_option(option, "minimum", &seq->user.minimum) ||
					sequence_read_option(option, "maximum", &seq->user.maximum) ||
					sequence_read_option(option, "anchor", &seq->user.anchor) ||
					sequence_read_option(option, "cache", &seq->user.cache));
		}
		seq->adjusted = true;
	}
	ReleaseSysCache(tuple);
	return true;
}

static void
sequence_store_here(Oid relid, OtSequenceHere here)
{
	Relation	catalog = table_open(SequenceRelationId, RowExclusiveLock);
	HeapTuple	tuple = SearchSysCacheCopy1(SEQRELID, ObjectIdGetDatum(relid));
	Form_pg_sequence form;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for sequence %u", relid);
	form = (Form_pg_sequence) GETSTRUCT(tuple);
	form->seqstart = here.start;
	form->seqincrement = here.increment;
	form->seqmin = here.minimum;
	form->seqmax = here.maximum;
	form->seqcache = here.cache;
	CatalogTupleUpdate(catalog, &tuple->t_self, tuple);
	heap_freetuple(tuple);
	table_close(catalog, RowExclusiveLock);
}

/* Writes the owner's definition into the sequence's reloptions. */
static void
sequence_store_user(Oid relid, const OtSequence *user)
{
	Relation	catalog = table_open(RelationRelationId, RowExclusiveLock);
	HeapTuple	tuple = SearchSysCacheCopy1(RELOID, ObjectIdGetDatum(relid));
	HeapTuple	changed;
	Datum		items[6];
	Datum		values[Natts_pg_class] = {0};
	bool		nulls[Natts_pg_class] = {false};
	bool		replace[Natts_pg_class] = {false};

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	items[0] = CStringGetTextDatum(psprintf("start=" INT64_FORMAT, user->start));
	items[1] = CStringGetTextDatum(psprintf("increment=" INT64_FORMAT, user->increment));
	items[2] = CStringGetTextDatum(psprintf("minimum=" INT64_FORMAT, user->minimum));
	items[3] = CStringGetTextDatum(psprintf("maximum=" INT64_FORMAT, user->maximum));
	items[4] = CStringGetTextDatum(psprintf("anchor=" INT64_FORMAT, user->anchor));
	items[5] = CStringGetTextDatum(psprintf("cache=" INT64_FORMAT, user->cache));
	values[Anum_pg_class_reloptions - 1] =
		PointerGetDatum(construct_array(items, 6, TEXTOID, -1, false, TYPALIGN_INT));
	replace[Anum_pg_class_reloptions - 1] = true;
	changed = heap_modify_tuple(tuple, RelationGetDescr(catalog), values, nulls, replace);
	CatalogTupleUpdate(catalog, &tuple->t_self, changed);
	heap_freetuple(changed);
	heap_freetuple(tuple);
	table_close(catalog, RowExclusiveLock);
}

/* Writes the owner's definition, and this node's, into the catalogs. */
void
ot_sequence_adjust(Oid relid, const OtSequence *user)
{
	OtSequenceHere here = ot_sequence_here(user, ot_sequence_own_share(user));

	if (ot_sequence_is_short(user, ot_sequence_stride))
		here.cache = 1;
	sequence_store_user(relid, user);
	sequence_store_here(relid, here);
	CommandCounterIncrement();
}

/* ---- CREATE and ALTER SEQUENCE ---- */

/*
 * Sets a position after DDL.  A crash sets an unlogged sequence back to its
 * init fork, so that must contain an own value, too: the sequence is reset
 * first, which writes both forks.
 */
void
ot_sequence_set_position(Oid relid, const OtSequence *seq, OtPosition position)
{
	Relation	rel;

	if (get_rel_persistence(relid) == RELPERSISTENCE_UNLOGGED)
	{
		LockRelationOid(relid, AccessExclusiveLock);
		ResetSequence(relid);
		CommandCounterIncrement();
	}
	rel = relation_open(relid, NoLock);
	ot_sequence_page_write(rel, seq, position, false);
	relation_close(rel, NoLock);
}

static DefElem *
sequence_int64_option(const char *name, int64 value)
{
	return makeDefElem(pstrdup(name),
					   (Node *) makeFloat(psprintf(INT64_FORMAT, value)), -1);
}

/* The sequences that LIKE ... INCLUDING IDENTITY among these elements copies, in that order. */
static List *
sequence_find_like_sources(List *elements)
{
	List	   *sources = NIL;
	ListCell   *lc;

	foreach(lc, elements)
	{
		TableLikeClause *like = (TableLikeClause *) lfirst(lc);
		Relation	rel;

		if (!IsA(like, TableLikeClause) || !(like->options & CREATE_TABLE_LIKE_IDENTITY))
			continue;
		rel = relation_openrv_extended(like->relation, AccessShareLock, true);
		if (rel == NULL)
			continue;
		for (AttrNumber n = 1; n <= RelationGetNumberOfAttributes(rel); n++)
		{
			Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), n - 1);
			OtSequenceLoaded *source;

			if (att->attisdropped || att->attidentity == '\0')
				continue;
			source = palloc(sizeof(OtSequenceLoaded));
			if (ot_sequence_load(OT_IDENTITY_SEQUENCE(rel, n), source))
				sources = lappend(sources, source);
		}
		relation_close(rel, NoLock);
	}
	return sources;
}

/*
 * LIKE ... INCLUDING IDENTITY copies the source sequence's definition from
 * pg_sequence, that is, in the form that it has on this node.  Such options
 * have no location in the statement; they are replaced by the owner's.  Which
 * source it is follows from the order of the columns alone: the numbers of two
 * sources may be the same here, and not in another region.  PostgreSQL has read all
 * of them when it makes the first sequence, and has run no code of users since.
 */
static Node *
sequence_undo_like(CreateSeqStmt *stmt)
{
	DefElem    *start = ot_ddl_find_option(stmt->options, "start");
	DefElem    *increment = ot_ddl_find_option(stmt->options, "increment");
	DefElem    *minimum = ot_ddl_find_option(stmt->options, "minvalue");
	DefElem    *maximum = ot_ddl_find_option(stmt->options, "maxvalue");
	OtSequenceLoaded *source;
	List	   *options = NIL;
	ListCell   *lc;

	if ((like_elements == NIL && like_sources == NIL) ||
		start == NULL || increment == NULL || minimum == NULL || maximum == NULL ||
		start->location >= 0 || minimum->arg == NULL || maximum->arg == NULL)
		return (Node *) stmt;

	if (like_elements != NIL)
	{
		like_sources = sequence_find_like_sources(like_elements);
		like_elements = NIL;
	}
	source = like_sources != NIL ? linitial(like_sources) : NULL;
	if (source == NULL ||
		source->here.start != defGetInt64(start) ||
		source->here.increment != defGetInt64(increment) ||
		source->here.minimum != defGetInt64(minimum) ||
		source->here.maximum != defGetInt64(maximum))
		ereport(ERROR,
				(errcode(OT_ERR_LOST),
				 errmsg("a sequence was altered while its definition was copied"),
				 errdetail("Sequence \"%s\" was to be made like it.", stmt->sequence->relname),
				 errhint("Retry the transaction.")));
	like_sources = list_delete_first(like_sources);
	if (!source->adjusted)
		return (Node *) stmt;

	stmt = copyObject(stmt);
	foreach(lc, stmt->options)
	{
		DefElem    *kept = lfirst_node(DefElem, lc);

		if (strcmp(kept->defname, "start") != 0 &&
			strcmp(kept->defname, "increment") != 0 &&
			strcmp(kept->defname, "minvalue") != 0 &&
			strcmp(kept->defname, "maxvalue") != 0 &&
			strcmp(kept->defname, "cache") != 0)
			options = lappend(options, kept);
	}
	options = lappend(options, sequence_int64_option("start", source->user.start));
	options = lappend(options, sequence_int64_option("increment", source->user.increment));
	options = lappend(options, sequence_int64_option("minvalue", source->user.minimum));
	options = lappend(options, sequence_int64_option("maxvalue", source->user.maximum));
	options = lappend(options, sequence_int64_option("cache", source->user.cache));
	stmt->options = options;
	return (Node *) stmt;
}

/* After CREATE SEQUENCE. */
static void
sequence_after_create(Oid relid)
{
	OtSequenceLoaded		seq;

	ot_sequence_moved();
	CommandCounterIncrement();
	if (get_rel_persistence(relid) == RELPERSISTENCE_TEMP ||
		ot_sequence_stride == 1 || !ot_sequence_load(relid, &seq))
		return;
	seq.user.anchor = seq.user.start;
	ot_sequence_adjust(relid, &seq.user);
	ot_sequence_set_position(relid, &seq.user,
				 ot_sequence_place(&seq.user, ot_sequence_own_share(&seq.user), seq.user.start, false));
	CommandCounterIncrement();
}

/*
 * Before ALTER SEQUENCE: its options are about the owner's definition, so that
 * one is put into pg_sequence while the statement runs.  Takes the lock that
 * the statement would take, with the same checks.
 */
static Node *
sequence_before_alter(AlterSeqStmt *stmt, Alteration *alteration)
{
	DefElem    *increment = ot_ddl_find_option(stmt->options, "increment");
	DefElem    *restart = ot_ddl_find_option(stmt->options, "restart");
	OtSequenceLoaded		seq;
	Relation	rel;
	Oid			relid;

	if (list_length(stmt->options) == (ot_ddl_find_option(stmt->options, "owned_by") ? 1 : 0))
		return (Node *) stmt;
	relid = RangeVarGetRelidExtended(stmt->sequence, ShareRowExclusiveLock,
									 stmt->missing_ok ? RVR_MISSING_OK : 0,
									 RangeVarCallbackOwnsRelation, NULL);
	if (!OidIsValid(relid) || get_rel_relkind(relid) != RELKIND_SEQUENCE ||
		get_rel_persistence(relid) == RELPERSISTENCE_TEMP || !ot_sequence_load(relid, &seq))
		return (Node *) stmt;

	rel = relation_open(relid, NoLock);
	alteration->position = ot_sequence_page_read(rel);
	alteration->fresh = rel->rd_createSubid != InvalidSubTransactionId &&
		!alteration->position.is_called &&
		alteration->position.last_value == seq.here.start;
	relation_close(rel, NoLock);

	alteration->relid = relid;
	alteration->before = seq.user;
	alteration->restart = restart != NULL;
	alteration->restart_value_given = restart != NULL && restart->arg != NULL;
	if (alteration->restart_value_given)
		alteration->restart_value = defGetInt64(restart);
	alteration->new_increment = increment != NULL &&
		defGetInt64(increment) != seq.user.increment;

	if (alteration->new_increment && !restart && !alteration->fresh &&
		ot_sequence_own_share(&seq.user).stride > 1 && ot_capturing())
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot change the INCREMENT of sequence \"%s\" without RESTART",
						get_rel_name(relid)),
				 errdetail("Regions share the values by increment, and another region may be ahead of this one."),
				 errhint("Add RESTART WITH a value beyond all that are in use: ALTER SEQUENCE ... INCREMENT BY ... RESTART WITH ....")));

	if (seq.adjusted)
	{
		OtSequenceHere as_written = {seq.user.start, seq.user.increment,
		seq.user.minimum, seq.user.maximum, seq.user.cache};

		sequence_store_here(relid, as_written);
		CommandCounterIncrement();
	}

	/*
	 * Positions differ between nodes, so PostgreSQL's check of the position
	 * against new bounds could fail here although it did not in the region of
	 * the statement.  With RESTART it checks the start value instead; the
	 * position is put back afterwards.
	 */
	if (ot_is_apply_worker && !restart)
	{
		stmt = copyObject(stmt);
		stmt->options = lappend(stmt->options, makeDefElem("restart", NULL, -1));
	}
	return (Node *) stmt;
}

static void
sequence_after_alter(const Alteration *alteration)
{
	Oid			relid = alteration->relid;
	bool		was_short = ot_sequence_is_short(&alteration->before, ot_sequence_stride);
	bool		is_short;
	int64		restart_at;
	OtShare		share;
	OtPosition	position = alteration->position;
	OtSequenceLoaded		seq;

	CommandCounterIncrement();
	if (!ot_sequence_load(relid, &seq))
		return;
	restart_at = alteration->restart_value_given ? alteration->restart_value : seq.here.start;
	if (ot_sequence_stride > 1)
	{
		/* pg_sequence now has the owner's new definition, reloptions the old */
		seq.user.start = seq.here.start;
		seq.user.increment = seq.here.increment;
		seq.user.minimum = seq.here.minimum;
		seq.user.maximum = seq.here.maximum;
		seq.user.cache = seq.here.cache;
		seq.user.anchor = alteration->new_increment ? restart_at : alteration->before.anchor;
		ot_sequence_adjust(relid, &seq.user);
	}
	share = ot_sequence_own_share(&seq.user);
	is_short = ot_sequence_is_short(&seq.user, ot_sequence_stride);
	if (is_short && !was_short && !alteration->restart && !alteration->fresh && ot_capturing())
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot make sequence \"%s\" this short without RESTART", get_rel_name(relid)),
				 errdetail("It gets fewer values than there are places for regions, and another region may be ahead of this one."),
				 errhint("Add RESTART WITH a value beyond all that are in use.")));

	/* without RESTART, one that gets new numbers, or becomes short, is not in use yet */
	if (alteration->restart ||
		(ot_sequence_stride > 1 && !was_short && (alteration->new_increment || is_short)))
		position = ot_sequence_place(&seq.user, share, restart_at, false);
	else if (was_short)
	{
		position = ot_sequence_clamp(&seq.user, ot_sequence_own_share(&alteration->before), position);
		position = ot_sequence_place(&seq.user, share, position.last_value, position.is_called);
	}
	else
		position = ot_sequence_clamp(&seq.user, share, position);
	if (ot_sequence_stride > 1 || ot_is_apply_worker)
		ot_sequence_set_position(relid, &seq.user, position);
	CommandCounterIncrement();
}

/* CREATE TABLE, whose sequences are made by sub-commands. */
static void
sequence_create_table(const OtUtility *call)
{
	List	   *outer_elements = like_elements;
	List	   *outer_sources = like_sources;

	PG_TRY();
	{
		/* PostgreSQL puts columns into their place */
		like_elements = list_copy(castNode(CreateStmt, call->node)->tableElts);
		like_sources = NIL;
		ot_call_process_utility(call);
	}
	PG_FINALLY();
	{
		like_elements = outer_elements;
		like_sources = outer_sources;
	}
	PG_END_TRY();
}

static void
sequence_create(OtUtility call)
{
	Oid			relid = InvalidOid;

	call.node = sequence_undo_like((CreateSeqStmt *) call.node);
	PG_TRY();
	{
		created_sequence = &relid;
		ot_call_process_utility(&call);
	}
	PG_FINALLY();
	{
		created_sequence = NULL;
	}
	PG_END_TRY();
	if (OidIsValid(relid))
		sequence_after_create(relid);
}

static void
sequence_alter(OtUtility call)
{
	Alteration	alteration = {InvalidOid};

	call.node = sequence_before_alter((AlterSeqStmt *) call.node, &alteration);
	ot_call_process_utility(&call);
	if (OidIsValid(alteration.relid))
		sequence_after_alter(&alteration);
}

/*
 * Event triggers may draw from the sequence.  They fire here, when it gives values of
 * this node only; to PostgreSQL, the statement is a sub-command, which fires none.
 */
static void
sequence_create_or_alter(OtUtility call)
{
	bool		fires = call.context != PROCESS_UTILITY_SUBCOMMAND;
	bool		cleanup = fires && EventTriggerBeginCompleteQuery();

	call.context = PROCESS_UTILITY_SUBCOMMAND;
	PG_TRY();
	{
		if (fires)
			EventTriggerDDLCommandStart(call.node);
		if (IsA(call.node, CreateSeqStmt))
			sequence_create(call);
		else
			sequence_alter(call);
		if (fires)
		{
			EventTriggerSQLDrop(call.node);
			EventTriggerDDLCommandEnd(call.node);
		}
	}
	PG_FINALLY();
	{
		if (cleanup)
			EventTriggerEndCompleteQuery();
	}
	PG_END_TRY();
}

static void
ot_sequence_process_utility(PlannedStmt *pstmt, const char *query,
							bool read_only_tree, ProcessUtilityContext context,
							ParamListInfo params, QueryEnvironment *env,
							DestReceiver *dest, QueryCompletion *completion)
{
	OtUtility	call = {prev_process_utility, pstmt, pstmt->utilityStmt, query, read_only_tree,
		context, params, env, dest, completion};

	if (!(IsA(call.node, CreateSeqStmt) || IsA(call.node, AlterSeqStmt) || IsA(call.node, CreateStmt)) ||
		!ot_sequence_is_active())
		ot_call_process_utility(&call);
	else if (IsA(call.node, CreateStmt))
		sequence_create_table(&call);
	else
		sequence_create_or_alter(call);
}

/*
 * ---- setval and pg_notify: redirected to onetrip.setval and .pg_notify ----
 * pg_sequence is replaced, too (sequence_shown.c), pg_prepared_xact(), which
 * the view pg_prepared_xacts calls (commit/prepared.c), and
 * pg_get_publication_tables(), by which subscribers learn what is published: not
 * the extension's own tables.
 * On a read replica nextval is redirected, too: onetrip.nextval knows which
 * sequence is meant, and refuses it unless it is temporary.
 */

static Oid
sequence_own_function(const char *function, int nargs)
{
	Oid			types[3] = {REGCLASSOID, INT8OID, BOOLOID};
	List	   *name = list_make2(makeString("onetrip"), makeString(pstrdup(function)));

	return LookupFuncName(name, nargs, types, true);
}

static Oid
sequence_own_notify(void)
{
	Oid			types[2] = {TEXTOID, TEXTOID};

	return LookupFuncName(list_make2(makeString("onetrip"), makeString("pg_notify")), 2, types, true);
}

/*
 * Replaces the function by ours, if it is one that is redirected, and the role may
 * call it: else PostgreSQL is to refuse it.
 */
static void
sequence_redirect_call(Oid *function)
{
	Oid			ours = InvalidOid;

	if (unlikely(*function == F_PG_GET_PUBLICATION_TABLES))
		ours = LookupFuncName(list_make2(makeString("onetrip"), makeString("publication_tables")), -1, NULL, true);
	else if (unlikely(*function == PREPARED_XACT_OID))
		ours = LookupFuncName(list_make2(makeString("onetrip"), makeString("pg_prepared_xact")), 0, NULL, true);
	else if (unlikely(*function == OT_SETVAL_OID || *function == OT_SETVAL3_OID))
		ours = sequence_own_function("setval", *function == OT_SETVAL_OID ? 2 : 3);
	else if (unlikely(*function == OT_PG_NOTIFY_OID))
		ours = sequence_own_notify();
	else if (unlikely(*function == OT_NEXTVAL_OID && ot_read_only))
		ours = sequence_own_function("nextval", 1);
	else if (unlikely(*function == OT_LAST_VALUE_OID && ot_sequence_stride > 1))
		ours = sequence_own_function("sequence_last_value", 1);
	if (OidIsValid(ours) && OT_FUNCTION_ACLCHECK(*function, GetUserId()) == ACLCHECK_OK)
		*function = ours;
}

/* In a parsed body the numbers are those of functions, and of operators' functions. */
static bool
sequence_tree_calls(const char *tree, Oid function)
{
	char		call[32];

	snprintf(call, sizeof(call), "funcid %u ", function);
	return strstr(tree, call) != NULL;
}

/*
 * Does the body of an SQL function seem to call setval or pg_notify?  If it
 * were inlined, that would be after calls have been redirected, so it is not
 * (PostgreSQL inlines nothing that a hook wants to see).
 */
static bool
sequence_calls_redirected(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	bool		found = false;
	bool		in_text;
	bool		isnull;
	Datum		body;
	char	   *source;

	if (!HeapTupleIsValid(tuple))
		return false;
	if (((Form_pg_proc) GETSTRUCT(tuple))->prolang == SQLlanguageId)
	{
		body = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosqlbody, &isnull);
		in_text = isnull;
		if (in_text)
			body = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &isnull);
		source = TextDatumGetCString(body);
		if (in_text)
		{
			char	   *lower = asc_tolower(source, strlen(source));

			found = strstr(lower, "setval") != NULL || strstr(lower, "pg_notify") != NULL;
			pfree(lower);
		}
		else
			found = sequence_tree_calls(source, OT_SETVAL_OID) || sequence_tree_calls(source, OT_SETVAL3_OID) ||
				sequence_tree_calls(source, OT_PG_NOTIFY_OID);
		pfree(source);
	}
	ReleaseSysCache(tuple);
	return found;
}

static bool
ot_sequence_needs_fmgr_hook(Oid function)
{
	if (prev_needs_fmgr && prev_needs_fmgr(function))
		return true;
	return ot_sequence_is_active() && sequence_calls_redirected(function);
}

static bool
sequence_redirect_calls(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, FuncExpr))
		sequence_redirect_call(&((FuncExpr *) node)->funcid);
	else if (IsA(node, OpExpr))
		sequence_redirect_call(&((OpExpr *) node)->opfuncid);
	else if (IsA(node, Query))
	{
		/* queries inside it first: what is put in its place stays as it is */
		(void) query_tree_walker((Query *) node, sequence_redirect_calls, context, 0);
		ot_sequence_show_definitions((Query *) node);
		return false;
	}
	return expression_tree_walker(node, sequence_redirect_calls, context);
}

/* The planner may scribble on its input, and this is part of the planner. */
static PlannedStmt *
ot_planner(Query *parse, const char *query, int cursor_options, ParamListInfo params)
{
	if (ot_sequence_is_active())
		sequence_redirect_calls((Node *) parse, NULL);
	if (prev_planner)
		return prev_planner(parse, query, cursor_options, params);
	return standard_planner(parse, query, cursor_options, params);
}

static void
ot_sequence_object_access(ObjectAccessType access, Oid class_id, Oid object_id,
						  int sub_id, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, class_id, object_id, sub_id, arg);

	if (access == OAT_POST_CREATE && created_sequence != NULL &&
		class_id == RelationRelationId && sub_id == 0 &&
		!OidIsValid(*created_sequence))
		*created_sequence = object_id;
	if (access != OAT_FUNCTION_EXECUTE || class_id != ProcedureRelationId)
		return;
	if ((object_id == OT_SETVAL_OID || object_id == OT_SETVAL3_OID || object_id == OT_PG_NOTIFY_OID) &&
		ot_sequence_is_active())
	{
		const char *function = object_id == OT_PG_NOTIFY_OID ? "pg_notify" : "setval";

		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("%s() cannot be called from here", function),
				 errdetail("The call is in no query, for example in the default of a column that COPY fills."),
				 errhint("Call onetrip.%s(), which takes the same arguments.", function)));
	}
	else if (object_id == OT_NEXTVAL_OID)
	{
		ot_sequence_drew();
		if (ot_read_only && ot_sequence_is_active())
			ot_check_writable();
	}
	else if (object_id == CURRVAL_OID || object_id == LASTVAL_OID)
		ot_sequence_looked();
}

void
ot_sequence_init(void)
{
	ot_sequence_used_init();
	if (ot_sequence_stride > 1 && ot_sequence_slot >= ot_sequence_stride)
		ereport(FATAL,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("onetrip.sequence_slot (%d) must be less than onetrip.sequence_stride (%d)",
						ot_sequence_slot, ot_sequence_stride)));

	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = ot_sequence_process_utility;
	prev_object_access = object_access_hook;
	object_access_hook = ot_sequence_object_access;
	prev_planner = planner_hook;
	planner_hook = ot_planner;
	prev_needs_fmgr = needs_fmgr_hook;
	needs_fmgr_hook = ot_sequence_needs_fmgr_hook;
}
