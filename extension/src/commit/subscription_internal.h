/*-------------------------------------------------------------------------
 *
 * subscription_internal.h
 *	  What the files about subscriptions offer each other.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_SUBSCRIPTION_INTERNAL_H
#define ONETRIP_SUBSCRIPTION_INTERNAL_H

#include "commit/commit_internal.h"

#include "access/xlogdefs.h"
#include "nodes/pg_list.h"

#define TABLE "onetrip.subscription_position"

/* A row of the table. */
typedef struct Position
{
	int			node;
	Oid			subscription;	/* its OID there */
	char	   *region;
	XLogRecPtr	position;
	char	   *copying;		/* names of tables, or "" */
	bool		is_here;		/* of this node's subscription, not only of its name */
} OtSubscriptionRow;

/* What ot_subscription_begin() has set aside. */
typedef struct OtSubscriptionContext
{
	Oid			user;
	int			security_context;
	int			nest_level;
	bool		read_only;
} OtSubscriptionContext;

/* The tables that are not the main worker's yet. */
#define COPIED_FROM "FROM pg_catalog.pg_subscription_rel AS r " \
	"WHERE r.srsubid OPERATOR(pg_catalog.=) $5 AND r.srsubstate OPERATOR(pg_catalog.<>) 'r'::pg_catalog.\"char\""

/* subscription.c */
extern bool ot_subscription_taking_over;

extern void ot_subscription_begin(OtSubscriptionContext *saved);
extern void ot_subscription_end(const OtSubscriptionContext *saved);
extern uint64 ot_subscription_execute(int expected, const char *query, const char *name, Oid relid,
									  XLogRecPtr position, Oid oid);
extern bool ot_subscription_read(const char *name, Oid subscription, Oid relid, bool lock, OtSubscriptionRow *row);
extern bool ot_subscription_has_table(void);
extern List *ot_subscription_oids(const char *query, const char *name, Oid subscription);
extern int	ot_subscription_say_elsewhere(const char *name, const OtSubscriptionRow *row);

/* subscription_elsewhere.c; more of it is in commit.h */
extern void ot_subscription_forget_others(const char *name, Oid subscription);

#endif							/* ONETRIP_SUBSCRIPTION_INTERNAL_H */
