/*-------------------------------------------------------------------------
 *
 * ddl_large_object.c
 *	  Large objects that are made and deleted, their numbers, and statements
 *	  about them.
 *
 * Statements (GRANT, ALTER LARGE OBJECT, COMMENT, DROP OWNED) run in every
 * region, since an object has the same number there.  What functions do is
 * captured (capture/large_object.c).
 *
 * Numbers.  PostgreSQL takes the number of a new object from the counter from
 * which all catalogs take theirs.  The counters of two servers may be anywhere,
 * and that of a copied server is where it was in the original.  So that two
 * regions seldom take the same number, each node has a remainder of its own:
 * before it gives a number to a large object, its counter goes on to the next
 * number with that remainder.  Numbers that are in use are passed over.  The
 * number's key makes sure that two objects never get the same one.  The counter
 * is never set back: PostgreSQL walks through some objects in the order of their
 * OIDs, the indexes of a table for instance, which is the order in which they
 * were made and therefore the same in every region.
 *
 * Runs in backends; everything may raise ERROR.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/transam.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/fmgroids.h"

#include "capture/capture.h"

/* How many nodes have remainders of their own. */
#define REMAINDERS 64

/* Takes the counter of OIDs on to the next number with this node's remainder. */
static void
ddl_large_object_choose_number(void)
{
	uint32		skip;

	LWLockAcquire(OidGenLock, LW_EXCLUSIVE);
	skip = ((uint32) ot_node_id - OT_OID_COUNTER->nextOid) % REMAINDERS;
	OT_OID_COUNTER->nextOid += skip;
	/* what has been set aside in the WAL */
	OT_OID_COUNTER->oidCount -= Min(skip, OT_OID_COUNTER->oidCount);
	LWLockRelease(OidGenLock);
}

/*
 * A function is going to run, once or several times, as part of a query or by
 * the fast path.
 */
void
ot_ddl_large_object_function(Oid function)
{
	switch (function)
	{
		case F_LO_CREAT:
		case F_LO_CREATE:
		case F_LO_FROM_BYTEA:
		case F_LO_IMPORT_TEXT:
		case F_LO_IMPORT_TEXT_OID:
			if (!ot_capturing())
				return;
			ot_large_object_check();
			ddl_large_object_choose_number();
			break;
		case F_LOWRITE:
		case F_LO_PUT:
		case F_LO_TRUNCATE:
		case F_LO_TRUNCATE64:
		case F_LO_UNLINK:
			if (ot_capturing())
				ot_large_object_check();
			break;
		default:
			break;
	}
}

/*
 * An object has been made, or is about to be deleted.  by_statement: a recorded
 * statement deletes it, and does so in every region.
 */
void
ot_ddl_large_object_access(ObjectAccessType access, Oid loid, bool by_statement)
{
	bool		create = access == OAT_POST_CREATE;

	if (!create && access != OAT_DROP)
		return;
	if (ot_is_apply_worker)
	{
		ot_large_object_check_read_only();
		if (ot_ddl_replaying && create)
			ereport(ERROR,
					(errcode(OT_ERR_NOT_REPLICATED),
					 errmsg("a function that the statement calls runs %s in region \"%s\"", "lo_create()",
							ot_region),
					 errdetail("It did not do so in the region that the statement comes from.")));
		return;
	}
	if (creating_extension && ot_preloaded && ot_in_replicated_database())
		ereport(ERROR,
				(errcode(OT_ERR_NOT_REPLICATED),
				 errmsg("cannot replicate a large object that the script of an extension changes"),
				 errdetail("The script runs in every region, and each would have its own."),
				 errhint("Make or change it outside of the script.")));
	if (!ot_capturing())
		return;
	ot_large_object_check();
	ot_large_object_check_read_only();
	if (by_statement)
		return;
	ot_ddl_check_function(create ? "create a large object" : "delete a large object");
	if (create)
	{
		ot_large_object_created(loid);
		/* for the next one, if this one was made by C code */
		ddl_large_object_choose_number();
	}
	else
		ot_large_object_unlinked(loid);
}

/* Does the statement change what large objects there are, or whose they are? */
static bool
ddl_large_object_concerns(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_GrantStmt:
			return ((GrantStmt *) stmt)->objtype == OBJECT_LARGEOBJECT;
		case T_AlterOwnerStmt:
			return ((AlterOwnerStmt *) stmt)->objectType == OBJECT_LARGEOBJECT;
		case T_CommentStmt:
			return ((CommentStmt *) stmt)->objtype == OBJECT_LARGEOBJECT;
		case T_SecLabelStmt:
			return ((SecLabelStmt *) stmt)->objtype == OBJECT_LARGEOBJECT;
		case T_AlterDefaultPrivilegesStmt:
		case T_DropOwnedStmt:
		case T_ReassignOwnedStmt:
			return true;
		default:
			return false;
	}
}

/* Called before a recorded statement runs. */
void
ot_ddl_take_large_object_key(Node *stmt)
{
	if (ddl_large_object_concerns(stmt))
		ot_write_set_key_now(ot_hash_large_objects(), OT_UPDATE, InvalidOid);
}
