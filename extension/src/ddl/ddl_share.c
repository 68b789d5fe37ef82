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
 * (catalog_digest.c, commit/rehearse.c).  Statements that change what functions
 * compute do not share, so what other regions compute is the same too.
 *
 * Before a transaction goes on next to another one it asks whether anybody could
 * say so at all.  If not, and after a COMMIT that failed because of this, it takes
 * the lock for itself.
 *
 * Runs in backends and in the apply worker.  Raises ERROR.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "catalog/pg_am.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/inval.h"

#include "capture/capture.h"
#include "shmem/shmem.h"

/* The level whose libraries can say how a transaction's statements come out. */
#define LEVEL 1

/* Part of the access method: under this lock those commit that share the other one. */
#define COMMITS_OF_SHARERS 1

typedef struct Shared
{
	pg_atomic_uint64 shares;	/* how often a transaction has asked for its share */
} Shared;

static Shared *shared = NULL;

/* The share of this transaction. */
static struct
{
	LocalTransactionId lxid;	/* InvalidLocalTransactionId: there is none */
	uint64		number;			/* what `shares` was then */
	bool		met;			/* another transaction had one at the same time */
	bool		alone;			/* since then it has the lock for itself */
}			share;

/* A COMMIT failed because of what it has met: the next one goes alone. */
static bool goes_alone = false;

static const OtDdlLine *ddl_line = NULL;

static Size
ddl_share_size(void)
{
	return sizeof(Shared);
}

static void
ddl_share_attach_memory(void *memory, bool found)
{
	shared = memory;
	if (!found)
		pg_atomic_init_u64(&shared->shares, 0);
}

void
ot_ddl_share_init(void)
{
	static const OtShmemPart part = {"onetrip shares of the schema lock", ddl_share_size, ddl_share_attach_memory};

	ot_shmem_add(&part);
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

static bool
ddl_share_alter_table(AlterTableStmt *stmt)
{
	ListCell   *lc;

	if (!ddl_share_object(stmt->objtype))
		return false;
	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);

		if (command->behavior == DROP_CASCADE)
			return false;
		switch (command->subtype)
		{
			case AT_AttachPartition:
			case AT_DetachPartition:
			case AT_DetachPartitionFinalize:
			case AT_ReplicaIdentity:
			case AT_ChangeOwner:
			case AT_SetTableSpace:	/* copies files, also for trial */
			case AT_SetIdentity:	/* a new position does not show in the catalogs */
				return false;
			default:
				break;
		}
		/* nor do new values of the same type */
		if (OT_MAKES_INDEXES_ANEW(command->subtype))
			return false;
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
			return true;
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
			return ((GrantStmt *) stmt)->objtype == OBJECT_TABLE &&
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

/* Does another transaction hold the lock, in any mode? */
static bool
ddl_share_others_hold(void)
{
	LOCKTAG		tag;
	int			count;

	ddl_share_set_tag(&tag);
	pfree(GetLockConflicts(&tag, ExclusiveLock, &count));
	return count > 0;
}

/* Has this transaction a share?  A rollback to a savepoint takes it back. */
static bool
ddl_share_is_there(void)
{
	return share.lxid == OT_LXID(MyProc) && share.lxid != InvalidLocalTransactionId && ddl_share_holds(ShareLock);
}

static bool
ddl_share_has_met(void)
{
	return share.met || (!share.alone && pg_atomic_read_u64(&shared->shares) != share.number);
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
	if (ddl_share_is_there())
	{
		share.met = ddl_share_has_met();
		share.alone = true;
	}
}

/*
 * Takes a share of the lock.  Returns false if it had to go on next to others, and
 * nobody could say how that comes out.
 */
static bool
ddl_share_take(void)
{
	bool		met = share.lxid == OT_LXID(MyProc) && share.met;
	bool		others;
	LOCKTAG		tag;

	ot_position_names_change();
	/* first this, so that whoever shares now finds out at COMMIT */
	share.number = pg_atomic_add_fetch_u64(&shared->shares, 1);
	share.lxid = OT_LXID(MyProc);
	share.met = met;
	share.alone = false;
	LockDatabaseObject(AccessMethodRelationId, ot_access_method_oid(), 0, ShareLock);
	others = ddl_share_others_hold();
	share.met |= others;
	if (!others || ddl_line->is_compared())
		return true;
	ddl_share_set_tag(&tag);
	LockRelease(&tag, ShareLock, false);
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
 * who has that keeps other regions from trying their statements here.  Nor if
 * another session has, whose place in line is this one's too.
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
	ot_ddl_lock_schema();
	goes_alone = false;
	ot_write_set_key_now(ot_hash_schema(), OT_UPDATE, InvalidOid);
}

/* The same before this statement, with a share of the lock if that will do. */
void
ot_ddl_take_schema_key_for(Node *stmt)
{
	if (goes_alone || ot_format_level < LEVEL || ot_temporary_functions_possible() ||
		!ddl_share_statement(stmt) || !ddl_line->may_be_compared())
	{
		ot_ddl_take_schema_key();
		return;
	}
	if (!ddl_share_holds(ExclusiveLock) && !ddl_share_is_there())
	{
		if (!ddl_share_others_hold())
			ot_ddl_stand_in_line();
		if (!ddl_share_take())
		{
			ot_ddl_take_schema_key();
			return;
		}
	}
	ot_write_set_key_now(ot_hash_schema(), OT_UPDATE, InvalidOid);
}

/* ---- COMMIT ---- */

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
	LockDatabaseObject(AccessMethodRelationId, ot_access_method_oid(), COMMITS_OF_SHARERS, ExclusiveLock);
	AcceptInvalidationMessages();
	share.met = ddl_share_has_met();
	share.alone = true;
	/* a function with a temporary type takes the same key, for another lock (ddl_function.c) */
	if (!ot_temporary_functions_possible())
		ot_write_set_raise_base(ot_hash_schema(), OT_UPDATE, ot_applied_index());
	return share.met;
}

/* COMMIT fails because of what the transaction has met. */
void
ot_ddl_share_lost(void)
{
	goes_alone = true;
}
