/*-------------------------------------------------------------------------
 *
 * stop_point.h
 *	  Named places where a test can pause a process, raise an error or end it.
 *
 * They exist only in builds with STOP_POINTS=1 (docs/testing.md); otherwise
 * the macros are empty.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_STOP_POINT_H
#define ONETRIP_STOP_POINT_H

#ifdef ONETRIP_STOP_POINTS
extern bool ot_stop_wanted(const char *point);
extern void ot_stop_point(const char *point);
#define OT_STOP_POINT(point) ot_stop_point(point)
/* If a test wants this stop, carries out the action and then stops. */
#define OT_STOP_POINT_AFTER(point, action) \
	do { \
		if (ot_stop_wanted(point)) \
		{ \
			action; \
			ot_stop_point(point); \
		} \
	} while (0)
#else
#define OT_STOP_POINT(point) ((void) 0)
#define OT_STOP_POINT_AFTER(point, action) ((void) 0)
#endif

#endif							/* ONETRIP_STOP_POINT_H */
