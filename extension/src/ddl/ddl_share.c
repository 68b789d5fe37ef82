/*-------------------------------------------------------------------------
 *
 * ddl_share.c
 *	  The lock that stands for the schema key, and how DDL of several sessions of
 *	  one region shares it.
 *
 * All DDL takes the schema key, and in each server a lock on the access method,
 * which nothing else locks: a key that is taken for something held until COMMIT
 * needs a lock behind it, here and in the apply worker.
 *
 * Most statements about tables take it in SHARE mode, so that sessions need not
 * wait for each other's transactions; all other DDL, and the apply worker, take
 * it for themselves (EXCLUSIVE mode).  COMMITs of those that share come one after
 * the other, under a second lock, and the key gets the base of COMMIT there: while
 * a transaction shares, only those that share too can have got in between.
 *
 * Other regions carry out such transactions one after the other, each as a whole,
 * in the order of their COMMITs, and not as they ran here: a name that PostgreSQL
 * makes up, or one that a statement looks up, may come out otherwise then.
 * PostgreSQL's locks keep nothing of this out.  So a transaction that has met
 * another one may only commit if one other region has carried out its statements
 * for trial, in their place, and has come to the same change of the catalogs
 * (catalog_digest.c, commit/rehearse.c).  Statements that call users' functions on rows
 * in other regions do not share, and neither do those that change functions.
 *
 * Before a transaction goes on next to another one it asks whether anybody could
 * say so at all.  If not, and after a COMMIT that failed because of this, it takes
 * the lock for itself.  If the question at COMMIT was left unanswered, all sessions
 * do for a while.
 *
 * Runs in backends and in the apply worker.  Raises ERROR.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_type.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/inval.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "capture/capture.h"
#include "shmem/shmem.h"

/* The level whose libraries can say how a transaction's statements come out. */
#define LEVEL 1

/*
 * Further locks on the access method: under the first, those commit that share; who
 * has the second stands in line for all sessions of this region that share.
 */
#define COMMITS_OF_SHARERS 1
#define PLACE_IN_LINE 2

typedef struct Shared
{
	pg_atomic_uint64 shares;	/* how many shares there have been */
	pg_atomic_uint64 unanswered;	/* when a COMMIT last gave up its question; 0: never */
} Shared;

static Shared *shared = NULL;

/* The share of this transaction. */
static struct
{
	LocalTransactionId lxid;	/* InvalidLocalTransactionId: there is none */
	uint64		number;			/* of this one, among all shares */
	bool		met;			/* another transaction had one at the same time */
	uint64		unanswered;		/* as in shared memory when its COMMIT began */
}			share;

/* A transaction has failed because of what it has met: the next one goes alone. */
static bool goes_alone = false;

static const OtDdlLine *ddl_line = NULL;

static void
ddl_share_attach_memory(void *memory, bool found)
{
	shared = memory;
	if (!found)
	{
		pg_atomic_init_u64(&shared->shares, 0);
		pg_atomic_init_u64(&shared->unanswered, 0);
	}
}

void
ot_ddl_share_init(void)
{
	static const OtShmemPart part = {"onetrip shares of the schema lock", sizeof(Shared), ddl_share_attach_memory};

	ot_shmem_add(&part);
}

/* How long no session shares after a COMMIT that nobody answered. */
#define UNANSWERED_MS (60 * 1000)

static bool
ddl_share_is_unanswered(void)
{
	TimestampTz at = (TimestampTz) pg_atomic_read_u64(&shared->unanswered);
	TimestampTz now = ot_now();

	/* the clock may have been set back */
	return at != 0 && at <= now && !TimestampDifferenceExceeds(at, now, UNANSWERED_MS);
}

/* ---- which statements ---- */

static bool
ddl_share_object(ObjectType type)
{
	switch (type)
	{
		case OBJECT_TABLE:
		case OBJECT_INDEX:
		case OBJECT_VIEW:
		case OBJECT_SEQUENCE:
		case OBJECT_COLUMN:
		case OBJECT_TABCONSTRAINT:
		case OBJECT_TRIGGER:
		case OBJECT_RULE:
		case OBJECT_POLICY:
		case OBJECT_STATISTIC_EXT:
			return true;
		default:
			return false;
	}
}

/* Those of the TOAST table do not show in the digest. */
static bool
ddl_share_options(List *options)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		if (lfirst_node(DefElem, lc)->defnamespace != NULL)
			return false;
	}
	return true;
}

/*
 * Sequences are given a position anew, which does not show in the digest either.
 * Each region has its own shares of the values, but a definition is the same
 * everywhere, and shows.
 */
static bool
ddl_share_sequence(List *options)
{
	return ot_ddl_find_option(options, "restart") == NULL;
}

bool
ot_ddl_alters(AlterTableStmt *stmt, AlterTableType subtype)
{
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		if (lfirst_node(AlterTableCmd, lc)->subtype == subtype)
			return true;
	}
	return false;
}

static bool
ddl_share_alter_table(AlterTableStmt *stmt)
{
	bool		validates = ot_ddl_alters(stmt, AT_ValidateConstraint);
	bool		converts = ot_ddl_alters(stmt, AT_AlterColumnType);
	ListCell   *lc;

	if (!ddl_share_object(stmt->objtype))
		return false;
	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);

		if (command->behavior == DROP_CASCADE)
			return false;
		/* other commands may change what is looked at */
		if (validates && command->subtype != AT_ValidateConstraint)
			return false;
		if (converts && command->subtype != AT_AlterColumnType && command->subtype != AT_ColumnDefault &&
			command->subtype != AT_SetNotNull && command->subtype != AT_DropNotNull)
			return false;
		switch (command->subtype)
		{
			case AT_AddConstraint:
				if (!IsA(command->def, Constraint) || ((Constraint *) command->def)->contype == CONSTR_EXCLUSION)
					return false;
				break;
			case AT_SetRelOptions:
			case AT_ResetRelOptions:
				if (!ddl_share_options(castNode(List, command->def)))
					return false;
				break;
			case AT_SetIdentity:
				if (!ddl_share_sequence(castNode(List, command->def)))
					return false;
				break;
			case AT_DetachPartition:
				if (((PartitionCmd *) command->def)->concurrent)
					return false;
				break;
			case AT_AddColumn:
			case AT_AttachPartition:
			case AT_ValidateConstraint:
			case AT_AlterColumnType:
			case AT_ColumnDefault:
			case AT_DropNotNull:
			case AT_SetNotNull:
			case AT_SetStatistics:
			case AT_SetOptions:
			case AT_ResetOptions:
			case AT_SetStorage:
			case AT_SetCompression:
			case AT_DropColumn:
			case AT_AlterConstraint:
			case AT_DropConstraint:
			case AT_EnableTrig:
			case AT_EnableAlwaysTrig:
			case AT_EnableReplicaTrig:
			case AT_DisableTrig:
			case AT_EnableTrigAll:
			case AT_DisableTrigAll:
			case AT_EnableTrigUser:
			case AT_DisableTrigUser:
			case AT_EnableRule:
			case AT_EnableAlwaysRule:
			case AT_EnableReplicaRule:
			case AT_DisableRule:
			case AT_AddInherit:
			case AT_DropInherit:
			case AT_EnableRowSecurity:
			case AT_DisableRowSecurity:
			case AT_ForceRowSecurity:
			case AT_NoForceRowSecurity:
			case AT_AddIdentity:
			case AT_DropIdentity:
				break;

				/*
				 * Among the others are those that may change only what does not show in the
				 * digest (RESTART, CLUSTER ON), that copy files, and what later versions bring.
				 */
			default:
				return false;
		}
	}
	return true;
}

/* May the statement share?  It is about relations that it names, and changes no code. */
static bool
ddl_share_statement(Node *stmt)
{
	if (ot_ddl_may_change_code(stmt))
		return false;
	switch (nodeTag(stmt))
	{
		case T_CreateStmt:
		case T_ViewStmt:
		case T_RuleStmt:
		case T_CreateTrigStmt:
		case T_CreatePolicyStmt:
		case T_AlterPolicyStmt:
		case T_CreateStatsStmt:
		case T_AlterStatsStmt:
		case T_CreateSeqStmt:
			return true;
		case T_AlterSeqStmt:
			return ddl_share_sequence(((AlterSeqStmt *) stmt)->options);
		case T_IndexStmt:
			return !((IndexStmt *) stmt)->concurrent;
		case T_CreateTableAsStmt:
			return ((CreateTableAsStmt *) stmt)->objtype == OBJECT_TABLE;
		case T_AlterTableStmt:
			return ddl_share_alter_table((AlterTableStmt *) stmt);
		case T_RenameStmt:
			return ddl_share_object(((RenameStmt *) stmt)->renameType);
		case T_CommentStmt:
			return ddl_share_object(((CommentStmt *) stmt)->objtype);
		case T_GrantStmt:
			return (((GrantStmt *) stmt)->objtype == OBJECT_TABLE ||
					((GrantStmt *) stmt)->objtype == OBJECT_SEQUENCE) &&
				((GrantStmt *) stmt)->targtype == ACL_TARGET_OBJECT;
		case T_DropStmt:
			return ddl_share_object(((DropStmt *) stmt)->removeType) && !((DropStmt *) stmt)->concurrent &&
				((DropStmt *) stmt)->behavior != DROP_CASCADE;
		default:
			return false;
	}
}

/* ---- the lock ---- */

static void
ddl_share_set_tag(LOCKTAG *tag)
{
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, AccessMethodRelationId, ot_access_method_oid(), 0);
}

static bool
ddl_share_holds(LOCKMODE mode)
{
	LOCKTAG		tag;

	ddl_share_set_tag(&tag);
	return OT_LOCK_IS_HELD_BY_ME(&tag, mode);
}

/*
 * Does another transaction hold the lock, or wait for it for itself?  Until its
 * locks are released, so what it has changed is known here once the answer is no.
 */
static bool
ddl_share_others_hold(void)
{
	LOCKTAG		tag;

	ddl_share_set_tag(&tag);
	if (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return true;
	LockRelease(&tag, ExclusiveLock, false);
	AcceptInvalidationMessages();
	return false;
}

/* Has this transaction a share?  A rollback to a savepoint takes it back. */
static bool
ddl_share_is_there(void)
{
	return share.lxid == OT_LXID(MyProc) && share.lxid != InvalidLocalTransactionId && ddl_share_holds(ShareLock);
}

/*
 * The lock for itself, so that local DDL and DDL that is applied here run one
 * after the other.
 */
void
ot_ddl_lock_schema(void)
{
	ot_position_names_change();
	LockDatabaseObject(AccessMethodRelationId, ot_access_method_oid(), 0, ExclusiveLock);
}

static void
ddl_share_give_back(void)
{
	LOCKTAG		tag;

	ddl_share_set_tag(&tag);
	LockRelease(&tag, ShareLock, false);
}

/*
 * Takes a share of the lock.  Returns false if it had to go on next to others, and
 * nobody could say how that comes out.
 *
 * Of two that share at the same time each finds out about the other: the later
 * one here, before it has done anything, and the earlier one at COMMIT, by the
 * number.
 */
static bool
ddl_share_take(void)
{
	bool		met = share.lxid == OT_LXID(MyProc) && share.met;
	bool		others;

	ot_position_names_change();
	LockDatabaseObject(AccessMethodRelationId, ot_access_method_oid(), 0, ShareLock);
	share.number = pg_atomic_add_fetch_u64(&shared->shares, 1);
	share.lxid = OT_LXID(MyProc);
	others = ddl_share_others_hold();
	share.met = met || others;
	if (!others || ddl_line->is_compared())
		return true;
	ddl_share_give_back();
	share.met = met;
	return false;
}

void
ot_ddl_line_is(const OtDdlLine *line)
{
	ddl_line = line;
}

/*
 * Waits for DDL of other regions that is under way.  Not once it has the lock:
 * who has that keeps other regions from trying their statements here.
 */
void
ot_ddl_stand_in_line(void)
{
	if (!ddl_share_holds(ExclusiveLock) && !ddl_share_holds(ShareLock))
		ddl_line->stand(ot_hash_schema());
}

/* It cannot go on now: others go first, and it stands in line again. */
void
ot_ddl_leave_line(void)
{
	ddl_line->leave();
}

/*
 * Takes the key after the lock, so that its base includes what the lock waited
 * for, and immediately after it: a transaction that holds the lock and has not
 * captured anything looks like a reader to the evictor, which would let it
 * delay an entry for a while.
 */
void
ot_ddl_take_schema_key(void)
{
	ot_ddl_stand_in_line();
	/* another one that shares may want the same */
	goes_alone |= ddl_share_is_there();
	ot_ddl_lock_schema();
	goes_alone = false;
	ot_write_set_key_now(ot_hash_schema(), OT_UPDATE, InvalidOid);
}

/* The place of one session that shares is that of all of this region. */
static void
ddl_share_stand_in_line(void)
{
	if (ConditionalLockDatabaseObject(AccessMethodRelationId, ot_access_method_oid(), PLACE_IN_LINE, ExclusiveLock))
		ot_ddl_stand_in_line();
}

/* The same before this statement, with a share of the lock if that will do. */
void
ot_ddl_take_schema_key_for(Node *stmt, const char *query)
{
	bool		taken = false;
	bool		may = !goes_alone && !ddl_share_is_unanswered() && ot_format_level >= LEVEL && !ot_temporary_functions_possible() &&
		ddl_share_statement(stmt);

	if (may && !ddl_share_is_there() && !ddl_share_holds(ExclusiveLock))
	{
		may = ddl_line->may_be_compared();
		if (may)
		{
			ddl_share_stand_in_line();
			may = taken = ddl_share_take();
		}
	}
	if (may && !ddl_share_holds(ExclusiveLock) && !ot_ddl_computes_alike(stmt, query))
	{
		may = false;
		if (taken)
			ddl_share_give_back();
	}
	if (may)
		ot_write_set_key_now(ot_hash_schema(), OT_UPDATE, InvalidOid);
	else
		ot_ddl_take_schema_key();
}

/* ---- COMMIT ---- */

/* lock_timeout is not for COMMIT, which in PostgreSQL waits for no lock. */
static void
ddl_share_lock_commits(void)
{
	const int	own_timeout = LockTimeout;

	PG_TRY();
	{
		LockTimeout = 0;
		LockDatabaseObject(AccessMethodRelationId, ot_access_method_oid(), COMMITS_OF_SHARERS, ExclusiveLock);
	}
	PG_FINALLY();
	{
		LockTimeout = own_timeout;
	}
	PG_END_TRY();
}

/*
 * Called at COMMIT, before keys of locks are taken.  If the transaction shares, it
 * waits for the COMMITs of others that do, and its schema key gets a base that
 * includes them.  Returns whether it has met another one, so that its statements
 * have to be compared.
 */
bool
ot_ddl_share_commits(void)
{
	if (!ddl_share_is_there())
		return false;
	share.unanswered = pg_atomic_read_u64(&shared->unanswered);
	ddl_share_lock_commits();
	AcceptInvalidationMessages();
	/* a temporary function takes the same key, for another lock (ddl_function.c) */
	if (!ot_temporary_functions_possible())
		ot_write_set_raise_base(ot_hash_schema(), OT_UPDATE, ot_applied_index());
	return share.met || pg_atomic_read_u64(&shared->shares) != share.number;
}

/* COMMIT fails because of what the transaction has met. */
void
ot_ddl_share_lost(void)
{
	goes_alone = true;
}

/* COMMIT gives up its question what its statements come to. */
void
ot_ddl_share_unanswered(void)
{
	pg_atomic_write_u64(&shared->unanswered, (uint64) ot_now());
}

/* Has another COMMIT given up its question while this one waited? */
bool
ot_ddl_share_has_waited(void)
{
	return pg_atomic_read_u64(&shared->unanswered) != share.unanswered;
}
