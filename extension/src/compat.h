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

/* 17: the local transaction id moved into a struct. */
#if PG_VERSION_NUM >= 170000
#define OT_LXID(proc) ((proc)->vxid.lxid)
#else
#define OT_LXID(proc) ((proc)->lxid)
#endif

#if PG_VERSION_NUM >= 170000
#define OT_BACKEND_ID(proc) ((proc)->vxid.procNumber)
#else
#define OT_BACKEND_ID(proc) ((proc)->backendId)
#endif

/* 16: permission infos left the range table; summarizing indexes came. */
#if PG_VERSION_NUM >= 180000
#define OT_INIT_RANGE_TABLE(estate, rte) \
	ExecInitRangeTable(estate, list_make1(rte), NIL, bms_make_singleton(1))
#elif PG_VERSION_NUM >= 160000
#define OT_INIT_RANGE_TABLE(estate, rte) ExecInitRangeTable(estate, list_make1(rte), NIL)
#else
#define OT_INIT_RANGE_TABLE(estate, rte) ExecInitRangeTable(estate, list_make1(rte))
#endif
#if PG_VERSION_NUM >= 160000
#define OT_ONLY_SUMMARIZING(u) ((u) == TU_Summarizing)
#define OT_INSERT_INDEX_TUPLES(rel, slot, estate, update, summarizing) \
	ExecInsertIndexTuples(rel, slot, estate, update, false, NULL, NIL, summarizing)
#else
#define OT_ONLY_SUMMARIZING(u) false
#define OT_INSERT_INDEX_TUPLES(rel, slot, estate, update, summarizing) \
	ExecInsertIndexTuples(rel, slot, estate, update, false, NULL, NIL)
#endif

/* 16: one function asks who owns what. */
#if PG_VERSION_NUM >= 160000
#define OT_OWNS_SCHEMA(oid) object_ownercheck(NamespaceRelationId, oid, GetUserId())
#define OT_OWNS_TYPE(oid) object_ownercheck(TypeRelationId, oid, GetUserId())
#define OT_OWNS_RELATION(oid) object_ownercheck(RelationRelationId, oid, GetUserId())
#else
#define OT_OWNS_SCHEMA(oid) pg_namespace_ownercheck(oid, GetUserId())
#define OT_OWNS_TYPE(oid) pg_type_ownercheck(oid, GetUserId())
#define OT_OWNS_RELATION(oid) pg_class_ownercheck(oid, GetUserId())
#endif

/* 17: the stack of search paths is gone. */
#if PG_VERSION_NUM < 170000
#define OT_HAVE_OVERRIDE_SEARCH_PATH
#endif

/* 16: the file in a sequence's WAL record is a locator. */
#if PG_VERSION_NUM >= 160000
#define OT_SEQUENCE_RECORD_SET_FILE(record, rel) ((record).locator = (rel)->rd_locator)
#else
#define OT_SEQUENCE_RECORD_SET_FILE(record, rel) ((record).node = (rel)->rd_node)
#endif

#endif							/* ONETRIP_COMPAT_H */
