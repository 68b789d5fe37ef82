/*-------------------------------------------------------------------------
 *
 * errors.h
 *	  The SQLSTATEs by which Onetrip's own errors can be told apart, all of
 *	  them standard ones.
 *
 *	40001	another transaction committed first: retry this one
 *	40000	the transaction was settled before it reached the log: it is aborted
 *	08007	proposed, and the outcome is not known yet: ask onetrip.outcome()
 *	0A000	cannot be replicated (yet): the hint says what to do instead
 *	25001	a fresh read, and the transaction already has its snapshot
 *	25006	this server is a read replica
 *	53000	the node has no room for the transaction now: retry it
 *	54000	too large, such as a write set above onetrip.max_write_set
 *	08P01	the node or an entry broke the agent protocol
 *	55000	not possible now, such as a COMMIT, or a fresh read, while the node is away
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_ERRORS_H
#define ONETRIP_ERRORS_H

#define OT_ERR_LOST				ERRCODE_T_R_SERIALIZATION_FAILURE
#define OT_ERR_OUTCOME_UNKNOWN	ERRCODE_TRANSACTION_RESOLUTION_UNKNOWN
#define OT_ERR_NOT_REPLICATED	ERRCODE_FEATURE_NOT_SUPPORTED
#define OT_ERR_TOO_LARGE		ERRCODE_PROGRAM_LIMIT_EXCEEDED
#define OT_ERR_PROTOCOL			ERRCODE_PROTOCOL_VIOLATION
#define OT_ERR_NOT_NOW			ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE
/* No error, and no client gets it: how a rehearsal says what it has come to. */
#define OT_ERR_CAME_TO			MAKE_SQLSTATE('O', 'T', 'C', 'A', 'M')

#endif							/* ONETRIP_ERRORS_H */
