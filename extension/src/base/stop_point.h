/*-------------------------------------------------------------------------
 *
 * stop_point.h
 *	  Named places where a test can hold, fail or end a process.
 *
 * In builds with STOP_POINTS=1 only (docs/testing.md); otherwise nothing is
 * left of them.
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
#else
#define OT_STOP_POINT(point) ((void) 0)
#endif

#endif							/* ONETRIP_STOP_POINT_H */
