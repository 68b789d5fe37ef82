/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Small macros for what differs between PostgreSQL 15 and 18.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_COMPAT_H
#define ONETRIP_COMPAT_H

#if PG_VERSION_NUM < 150000
#error "Onetrip needs PostgreSQL 15 or later"
#endif

/* 16: a leader pid for parallel apply. */
#if PG_VERSION_NUM >= 160000
#define ot_replorigin_session_setup(origin) replorigin_session_setup((origin), 0)
#else
#define ot_replorigin_session_setup(origin) replorigin_session_setup(origin)
#endif

/* 16: update_indexes became an enum. */
#if PG_VERSION_NUM >= 160000
typedef TU_UpdateIndexes OtUpdateIndexes;
#define OT_INDEXES_CHANGED(u) ((u) != TU_None)
#else
typedef bool OtUpdateIndexes;
#define OT_INDEXES_CHANGED(u) (u)
#endif

/* 16: relfilenode became relfilenumber/locator. */
#if PG_VERSION_NUM >= 160000
typedef RelFileLocator OtRelFile;
#else
typedef RelFileNode OtRelFile;
#endif

/* 17: MyBackendId became MyProcNumber. */
#if PG_VERSION_NUM >= 170000
#define OT_PROC_NUMBER(proc) GetNumberFromPGProc(proc)
#else
#define OT_PROC_NUMBER(proc) ((proc)->pgprocno)
#endif

#endif							/* ONETRIP_COMPAT_H */
