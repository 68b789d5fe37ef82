/*-------------------------------------------------------------------------
 *
 * ddl_lock.c
 *	  Keys of statements; locks on relations that a statement affects although
 *	  PostgreSQL does not lock them.
 *
 * Every lock that the applied statement may need, and that a decided local
 * transaction may hold, must be a key of both:
 *	- the schema key, in mode UPDATE, against all other DDL, and a lock that
 *	  stands for it in each server;
 *	- the relations that the statement locks: taken at COMMIT from the locks
 *	  that the transaction holds by then (held_locks.c), under the names that
 *	  the relations have at that time;
 *	- names that a relation loses by DROP, RENAME or SET SCHEMA: taken just
 *	  before the catalogs change (ddl_objects.c);
 *	- what functions compute (ot_hash_code()), for statements that may change
 *	  it, or who may call them (ddl.c);
 *	- the names of other objects that values refer to (object_name.c), if an
 *	  object loses its name: likewise;
 *	- relations that PostgreSQL does not lock.
 *
 * After most statements of the last kind, a row that was written before them has
 * another meaning:
 *	- ALTER SCHEMA ... RENAME: tables have other names;
 *	- NOT NULL that is found to hold (PostgreSQL 18), by which a unique index may
 *	  become what tells rows apart: they have other keys;
 *	- changes of types that have values (a renamed label of an enum, a domain's
 *	  constraint, a composite's attributes);
 *	- replacing or altering a function that computes values of an index, or a
 *	  text search configuration or dictionary: the same row has another value,
 *	  hence another key;
 *	- GRANT, for another reason: it writes the relation's row in pg_class, as
 *	  TRUNCATE does;
 *	- changes of publications: a row that is written before them is published
 *	  otherwise than one that is written after them, and may be refused (UPDATE
 *	  without a replica identity), so it has to be before them, or after them, in
 *	  every region.
 *
 * A key alone would not suffice.  Keys of held locks are taken at COMMIT, with
 * the applied index of that time as their base, which is right only because
 * the lock has kept conflicting entries out until then.  So these relations
 * are locked, here and where the statement is applied, and what sessions have
 * cached about them is invalidated.
 *
 * If a function calls another one, PostgreSQL does not know that, unless the
 * body is SQL that was parsed when the function was created; only then is the
 * dependency followed here.
 *
 * Runs in backends and in the apply worker.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_shdepend.h"
#include "catalog/pg_ts_config.h"
#include "catalog/pg_ts_dict.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_func.h"
#include "parser/parse_type.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "capture/capture.h"

/* ---- keys ---- */

bool
ot_ddl_has_table_key(char relkind)
{
	return relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE ||
		relkind == RELKIND_VIEW || relkind == RELKIND_MATVIEW ||
		relkind == RELKIND_SEQUENCE || relkind == RELKIND_FOREIGN_TABLE;
}

/*
 * Takes the key for the relation's name in the catalogs as the current command
 * sees them, that is, before its own changes.
 */
void
ot_ddl_take_relation_key(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class form;
	bool		take;

	if (!HeapTupleIsValid(tuple))
		return;
	form = (Form_pg_class) GETSTRUCT(tuple);
	take = ot_ddl_has_table_key(form->relkind) &&
		(!OidIsValid(form->relrewrite) || form->relrewrite == relid) &&
		form->relpersistence != RELPERSISTENCE_TEMP;
	ReleaseSysCache(tuple);
	if (take)
		ot_write_set_key_now(ot_hash_relation(relid), OT_UPDATE, relid);
}

/* ---- locks ---- */

/*
 * What a walk over dependencies has visited, since many paths may lead to the
 * same object.
 */
static List *seen_types = NIL;
static List *seen_objects = NIL;	/* two OIDs each: class, object */

static bool
ddl_lock_first_sight_of_type(Oid type)
{
	check_stack_depth();
	CHECK_FOR_INTERRUPTS();
	if (list_member_oid(seen_types, type))
		return false;
	seen_types = lappend_oid(seen_types, type);
	return true;
}

static bool
ddl_lock_first_sight_of_object(Oid class_id, Oid oid)
{
	check_stack_depth();
	CHECK_FOR_INTERRUPTS();
	for (int i = 0; i < list_length(seen_objects); i += 2)
	{
		if (list_nth_oid(seen_objects, i) == class_id && list_nth_oid(seen_objects, i + 1) == oid)
			return false;
	}
	seen_objects = lappend_oid(lappend_oid(seen_objects, class_id), oid);
	return true;
}

static void ddl_lock_table_of_index(Oid index);

/*
 * How strongly: ShareRowExclusiveLock keeps out writers.  Where keys of rows change
 * (the name of their schema, or of a label in them), those who have only locked
 * rows are kept out, too.
 */
static LOCKMODE lock_mode;

/*
 * Locks a relation that the statement affects.  The lock stops writers here,
 * and gets them evicted where the statement is applied.  Since it is held
 * until COMMIT, it also becomes a key then, for the name that the relation has
 * by that time.  The key for its present name is taken here, where the
 * statement comes from.
 */
static void
ddl_lock_relation(Oid relid)
{
	char		relkind;

	if (get_rel_persistence(relid) == RELPERSISTENCE_TEMP)
		return;
	LockRelationOid(relid, lock_mode);
	relkind = get_rel_relkind(relid);
	if (relkind == '\0' || !ot_ddl_has_table_key(relkind))
		UnlockRelationOid(relid, lock_mode);
	else if (!ot_is_apply_worker)
		ot_ddl_take_relation_key(relid);
}

/*
 * The lock that makes a unique index of the table valid, or its columns NOT NULL.
 * If rows have neither a primary key nor a replica identity, the index may become
 * what tells them apart (rel_info.c), and their keys change.
 */
LOCKMODE
ot_ddl_unique_index_lock(Oid table)
{
	Relation	rel = try_relation_open(table, AccessShareLock);
	LOCKMODE	mode = ShareLock;

	if (rel == NULL)
		return mode;
	if (!OidIsValid(ot_rel_defined_identity(rel)))
		mode = ExclusiveLock;
	relation_close(rel, AccessShareLock);
	return mode;
}

/* Locks the table and its children, those of them whose rows may be told apart otherwise. */
static void
ddl_lock_where_keys_change(Oid relid)
{
	ListCell   *lc;

	foreach(lc, find_all_inheritors(relid, NoLock, NULL))
	{
		lock_mode = ot_ddl_unique_index_lock(lfirst_oid(lc));
		if (lock_mode == ExclusiveLock)
			ddl_lock_relation(lfirst_oid(lc));
	}
}

static void
ddl_lock_for_unique_index(IndexStmt *stmt)
{
	Oid			relid = stmt->relation ? RangeVarGetRelid(stmt->relation, NoLock, true) : InvalidOid;

	if (stmt->unique && !stmt->concurrent && stmt->whereClause == NULL && OidIsValid(relid) &&
		OT_OWNS_RELATION(relid))
		ddl_lock_where_keys_change(relid);
}

/* From VALIDATE CONSTRAINT of a NOT NULL on, a unique index counts that did not before. */
static void
ddl_lock_for_validation(AlterTableStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *command = lfirst_node(AlterTableCmd, lc);
		Oid			relid = command->subtype == AT_ValidateConstraint ?
			RangeVarGetRelid(stmt->relation, NoLock, true) : InvalidOid;
		HeapTuple	tuple;
		bool		is_not_null;

		if (!OidIsValid(relid) || !OT_OWNS_RELATION(relid))
			continue;
		tuple = SearchSysCache1(CONSTROID,
								ObjectIdGetDatum(get_relation_constraint_oid(relid, command->name, true)));
		if (!HeapTupleIsValid(tuple))
			continue;
		is_not_null = ((Form_pg_constraint) GETSTRUCT(tuple))->contype == OT_CONSTRAINT_NOT_NULL;
		ReleaseSysCache(tuple);
		if (is_not_null)
			ddl_lock_where_keys_change(relid);
	}
}

/* Locks every relation in the schema. */
static void
ddl_lock_relations_of_schema(const char *schema, const char *new_name)
{
	Oid			schema_oid = get_namespace_oid(schema, true);
	Relation	catalog;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	if (!OidIsValid(schema_oid) || !OT_OWNS_SCHEMA(schema_oid))
		return;
	catalog = table_open(RelationRelationId, AccessShareLock);
	ScanKeyInit(&key, Anum_pg_class_relnamespace, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(schema_oid));
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (!ot_ddl_has_table_key(form->relkind))
			continue;
		ddl_lock_relation(form->oid);
		/* what we cache about a relation contains the schema's name */
		CacheInvalidateRelcacheByRelid(form->oid);
		if (!ot_is_apply_worker)
			ot_write_set_key_now(ot_hash_table(new_name, NameStr(form->relname)),
								 OT_UPDATE, form->oid);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

/* Locks every relation with a column of this type, or of one built on it. */
static void
ddl_lock_relations_of_type(Oid typid)
{
	Relation	catalog;
	SysScanDesc scan;
	ScanKeyData key[2];
	HeapTuple	tuple;
	Oid			array = get_array_type(typid);

	if (!ddl_lock_first_sight_of_type(typid))
		return;
	if (OidIsValid(array) && array != typid)
		ddl_lock_relations_of_type(array);

	catalog = table_open(DependRelationId, AccessShareLock);
	ScanKeyInit(&key[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(TypeRelationId));
	ScanKeyInit(&key[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(typid));
	scan = systable_beginscan(catalog, DependReferenceIndexId, true, NULL, 2, key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);

		if (form->classid == TypeRelationId && form->objid != array)
			ddl_lock_relations_of_type(form->objid);
		else if (form->classid == RelationRelationId)
		{
			Oid			row_type = get_rel_type_id(form->objid);

			if (get_rel_relkind(form->objid) == RELKIND_INDEX)
				ddl_lock_table_of_index(form->objid);
			else
				ddl_lock_relation(form->objid);
			if (OidIsValid(row_type) && row_type != typid)
				ddl_lock_relations_of_type(row_type);
		}
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

static void
ddl_lock_relations_of_type_name(List *name)
{
	Oid			typid = LookupTypeNameOid(NULL, makeTypeNameFromNameList(name), true);

	if (OidIsValid(typid) && OT_OWNS_TYPE(typid))
		ddl_lock_relations_of_type(typid);
}

/* ---- functions behind indexes ---- */

static void
ddl_lock_table_of_index(Oid index)
{
	Oid			table = IndexGetRelation(index, true);

	if (!OidIsValid(table))
		return;
	ddl_lock_relation(table);
	/* Cached expressions of the index or the table may have it inlined. */
	CacheInvalidateRelcacheByRelid(index);
	CacheInvalidateRelcacheByRelid(table);
}

/* Locks the tables with an index whose values this object computes. */
static void
ddl_lock_tables_computing_with(Oid class_id, Oid oid)
{
	Relation	catalog;
	SysScanDesc scan;
	ScanKeyData key[2];
	HeapTuple	tuple;

	if (!ddl_lock_first_sight_of_object(class_id, oid))
		return;
	catalog = table_open(DependRelationId, AccessShareLock);
	ScanKeyInit(&key[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(class_id));
	ScanKeyInit(&key[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(oid));
	scan = systable_beginscan(catalog, DependReferenceIndexId, true, NULL, 2, key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);

		switch (form->classid)
		{
			case RelationRelationId:
				if (get_rel_relkind(form->objid) == RELKIND_INDEX)
					ddl_lock_table_of_index(form->objid);
				break;
			case ProcedureRelationId:
			case OperatorRelationId:
			case OperatorClassRelationId:
			case OperatorFamilyRelationId:
			case TSConfigRelationId:
			case TSDictionaryRelationId:
				ddl_lock_tables_computing_with(form->classid, form->objid);
				break;
			default:
				break;
		}
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

/*
 * Returns the function that this statement would replace, or InvalidOid.  It is
 * looked up by its key, as CREATE FUNCTION does: who may create in a schema need
 * not be allowed to look names up there.
 */
static Oid
ddl_lock_find_replaced(CreateFunctionStmt *create)
{
	Oid			types[FUNC_MAX_ARGS];
	int			count = 0;
	char	   *name;
	Oid			schema = QualifiedNameGetCreationNamespace(create->funcname, &name);
	ListCell   *lc;

	foreach(lc, create->parameters)
	{
		FunctionParameter *parameter = lfirst_node(FunctionParameter, lc);

		if (parameter->mode == FUNC_PARAM_OUT || parameter->mode == FUNC_PARAM_TABLE)
			continue;
		if (count == FUNC_MAX_ARGS)
			return InvalidOid;
		types[count] = LookupTypeNameOid(NULL, parameter->argType, true);
		if (!OidIsValid(types[count++]))
			return InvalidOid;
	}
	return GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(name),
						   PointerGetDatum(buildoidvector(types, count)), ObjectIdGetDatum(schema));
}

/* Locks the tables that compute with the function that is altered or replaced. */
static void
ddl_lock_tables_computing_with_function(Node *stmt)
{
	int			guc_level = NewGUCNestLevel();
	Oid			function;

	/* the statement itself will say what becomes of %TYPE */
	(void) set_config_option("client_min_messages", "error", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	if (IsA(stmt, CreateFunctionStmt))
		function = ddl_lock_find_replaced((CreateFunctionStmt *) stmt);
	else
		function = LookupFuncWithArgs(((AlterFunctionStmt *) stmt)->objtype,
									  ((AlterFunctionStmt *) stmt)->func, true);
	AtEOXact_GUC(true, guc_level);
	if (OidIsValid(function) && OT_OWNS_FUNCTION(function))
		ddl_lock_tables_computing_with(ProcedureRelationId, function);
}

/* ---- publications ---- */

/* Locks a table that is or will be published, with its partitions and children. */
static void
ddl_lock_published(Oid relid)
{
	ListCell   *lc;

	if (!OidIsValid(relid))
		return;
	foreach(lc, find_all_inheritors(relid, NoLock, NULL))
		ddl_lock_relation(lfirst_oid(lc));
}

static void
ddl_lock_all_published(List *relids)
{
	ListCell   *lc;

	foreach(lc, relids)
		ddl_lock_relation(lfirst_oid(lc));
}

/* What a statement names, if its user may publish it. */
static void
ddl_lock_named_for_publication(List *objects)
{
	ListCell   *lc;

	foreach(lc, objects)
	{
		PublicationObjSpec *object = lfirst_node(PublicationObjSpec, lc);
		Oid			schema = InvalidOid;
		List	   *path;

		switch (object->pubobjtype)
		{
			case PUBLICATIONOBJ_TABLE:
				{
					Oid			relid = RangeVarGetRelid(object->pubtable->relation, NoLock, true);

					if (OidIsValid(relid) && OT_OWNS_RELATION(relid))
						ddl_lock_published(relid);
					break;
				}
			case PUBLICATIONOBJ_TABLES_IN_SCHEMA:
				schema = get_namespace_oid(object->name, true);
				break;
			case PUBLICATIONOBJ_TABLES_IN_CUR_SCHEMA:
				path = fetch_search_path(false);
				schema = path != NIL ? linitial_oid(path) : InvalidOid;
				break;
			default:
				break;
		}
		if (OidIsValid(schema) && superuser())
			ddl_lock_all_published(GetSchemaPublicationRelations(schema, PUBLICATION_PART_ALL));
	}
}

/* What it publishes now. */
static void
ddl_lock_publication(Oid publication)
{
	if (GetPublication(publication)->alltables)
		ddl_lock_all_published(GetAllTablesPublicationRelations(false));
	else
	{
		ddl_lock_all_published(GetPublicationRelations(publication, PUBLICATION_PART_ALL));
		ddl_lock_all_published(GetAllSchemaPublicationRelations(publication, PUBLICATION_PART_ALL));
	}
}

static void
ddl_lock_publication_name(const char *name)
{
	Oid			publication = get_publication_oid(name, true);

	if (OidIsValid(publication) && OT_OWNS_PUBLICATION(publication))
		ddl_lock_publication(publication);
}

/* ---- privileges ---- */

/*
 * GRANT writes the relation's row in pg_class, and so do TRUNCATE and
 * REFRESH.  Those two do not take the schema key, so the only thing that they
 * can conflict on is their lock on the relation, which is weaker for REFRESH
 * CONCURRENTLY.  PostgreSQL's GRANT takes no lock on it; we take the weakest
 * that keeps both out.
 */
static void
ddl_lock_against_truncate(Oid relid)
{
	if (OidIsValid(relid) && relid >= FirstNormalObjectId &&
		get_rel_persistence(relid) != RELPERSISTENCE_TEMP)
		LockRelationOid(relid, get_rel_relkind(relid) == RELKIND_MATVIEW ?
						RowExclusiveLock : AccessShareLock);
}

/*
 * GRANT by somebody who may not grant anything there is only a warning, so its
 * lock would be kept until the end of the transaction.
 */
static void
ddl_lock_granted_relation(Oid relid)
{
	AclMode		any = ACL_GRANT_OPTION_FOR(ACL_ALL_RIGHTS_RELATION | ACL_ALL_RIGHTS_SEQUENCE);

	if (OidIsValid(relid) &&
		(pg_class_aclmask(relid, GetUserId(), any, ACLMASK_ANY) != 0 ||
		 pg_attribute_aclcheck_all(relid, GetUserId(), any, ACLMASK_ANY) == ACLCHECK_OK))
		ddl_lock_against_truncate(relid);
}

static void
ddl_lock_schema_against_truncate(const char *schema)
{
	Oid			schema_oid = get_namespace_oid(schema, true);
	Relation	catalog = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_class_relnamespace, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(schema_oid));
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (ot_ddl_has_table_key(form->relkind) || form->relkind == RELKIND_SEQUENCE)
			ddl_lock_granted_relation(form->oid);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

static void
ddl_lock_granted(GrantStmt *stmt)
{
	ListCell   *lc;

	if (stmt->objtype != OBJECT_TABLE && stmt->objtype != OBJECT_SEQUENCE)
		return;
	foreach(lc, stmt->objects)
	{
		if (stmt->targtype == ACL_TARGET_OBJECT)
			ddl_lock_granted_relation(RangeVarGetRelid(lfirst_node(RangeVar, lc), NoLock, true));
		else if (stmt->targtype == ACL_TARGET_ALL_IN_SCHEMA)
			ddl_lock_schema_against_truncate(strVal(lfirst(lc)));
	}
}

/*
 * Each object of the database that the role owns or has a privilege on, or is recorded
 * with for that one reason; InvalidOid: each one that all databases have in common.
 */
void
ot_ddl_each_of_role(Oid role, Oid database, SharedDependencyType reason,
					void (*callback) (ObjectAddress object, void *context), void *context)
{
	Relation	catalog = table_open(SharedDependRelationId, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData key[2];
	HeapTuple	tuple;

	ScanKeyInit(&key[0], Anum_pg_shdepend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(AuthIdRelationId));
	ScanKeyInit(&key[1], Anum_pg_shdepend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(role));
	scan = systable_beginscan(catalog, SharedDependReferenceIndexId, true, NULL, 2, key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_shdepend form = (Form_pg_shdepend) GETSTRUCT(tuple);

		if (form->dbid == database && (reason == SHARED_DEPENDENCY_INVALID || form->deptype == reason))
			callback((ObjectAddress) {form->classid, form->objid, 0}, context);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

static void
ddl_lock_object_granted_to(ObjectAddress object, void *context)
{
	if (object.classId == RelationRelationId)
		ddl_lock_against_truncate(object.objectId);
	else if (object.classId == PublicationRelationId)
		ddl_lock_publication(object.objectId);
}

/*
 * DROP OWNED revokes privileges that were granted to the roles, and drops their
 * publications.
 */
static void
ddl_lock_granted_to(List *roles)
{
	ListCell   *lc;

	foreach(lc, roles)
	{
		Oid			role = get_rolespec_oid(lfirst_node(RoleSpec, lc), true);

		if (has_privs_of_role(GetUserId(), role))
			ot_ddl_each_of_role(role, MyDatabaseId, SHARED_DEPENDENCY_INVALID, ddl_lock_object_granted_to, NULL);
	}
}

/*
 * Called before a statement runs, in a backend or in the apply worker: locks
 * the relations that it affects but does not lock itself.  A user who may not
 * run the statement must not make others wait, so objects of other owners are
 * left alone; the statement will fail on them, or warn, as GRANT does.
 */
void
ot_ddl_lock_relations(Node *stmt)
{
	seen_types = seen_objects = NIL;
	lock_mode = (IsA(stmt, RenameStmt) && ((RenameStmt *) stmt)->renameType == OBJECT_SCHEMA) ||
		(IsA(stmt, AlterEnumStmt) && ((AlterEnumStmt *) stmt)->oldVal != NULL) ?
		ExclusiveLock : ShareRowExclusiveLock;
	switch (nodeTag(stmt))
	{
		case T_GrantStmt:
			ddl_lock_granted((GrantStmt *) stmt);
			break;
		case T_DropOwnedStmt:
			ddl_lock_granted_to(((DropOwnedStmt *) stmt)->roles);
			break;
		case T_IndexStmt:
			ddl_lock_for_unique_index((IndexStmt *) stmt);
			break;
		case T_RenameStmt:
			if (((RenameStmt *) stmt)->renameType == OBJECT_SCHEMA)
				ddl_lock_relations_of_schema(((RenameStmt *) stmt)->subname,
											 ((RenameStmt *) stmt)->newname);
			else if (((RenameStmt *) stmt)->renameType == OBJECT_PUBLICATION)
				ddl_lock_publication_name(strVal(((RenameStmt *) stmt)->object));
			break;
		case T_CreateFunctionStmt:
			if (((CreateFunctionStmt *) stmt)->replace)
				ddl_lock_tables_computing_with_function(stmt);
			break;
		case T_AlterFunctionStmt:
			ddl_lock_tables_computing_with_function(stmt);
			break;
		case T_CreatePublicationStmt:
			if (!((CreatePublicationStmt *) stmt)->for_all_tables)
				ddl_lock_named_for_publication(((CreatePublicationStmt *) stmt)->pubobjects);
			else if (superuser())
				ddl_lock_all_published(GetAllTablesPublicationRelations(false));
			break;
		case T_AlterPublicationStmt:
			{
				AlterPublicationStmt *alter = (AlterPublicationStmt *) stmt;
				Oid			publication = get_publication_oid(alter->pubname, true);

				if (!OidIsValid(publication) || !OT_OWNS_PUBLICATION(publication))
					break;
				if (alter->options != NIL || alter->action == AP_SetObjects)
					ddl_lock_publication(publication);
				ddl_lock_named_for_publication(alter->pubobjects);
				break;
			}
		case T_DropStmt:
			if (((DropStmt *) stmt)->removeType == OBJECT_PUBLICATION)
			{
				ListCell   *lc;

				foreach(lc, ((DropStmt *) stmt)->objects)
					ddl_lock_publication_name(strVal(lfirst(lc)));
			}
			break;
		case T_AlterTSDictionaryStmt:
			{
				Oid			oid = get_ts_dict_oid(((AlterTSDictionaryStmt *) stmt)->dictname, true);

				if (OidIsValid(oid) && OT_OWNS_TS_DICTIONARY(oid))
					ddl_lock_tables_computing_with(TSDictionaryRelationId, oid);
				break;
			}
		case T_AlterTSConfigurationStmt:
			{
				Oid			oid = get_ts_config_oid(((AlterTSConfigurationStmt *) stmt)->cfgname, true);

				if (OidIsValid(oid) && OT_OWNS_TS_CONFIG(oid))
					ddl_lock_tables_computing_with(TSConfigRelationId, oid);
				break;
			}
		case T_AlterEnumStmt:
			if (((AlterEnumStmt *) stmt)->oldVal != NULL)
				ddl_lock_relations_of_type_name(((AlterEnumStmt *) stmt)->typeName);
			break;
		case T_AlterDomainStmt:
			ddl_lock_relations_of_type_name(((AlterDomainStmt *) stmt)->typeName);
			break;
		case T_AlterTableStmt:
			if (((AlterTableStmt *) stmt)->objtype == OBJECT_TYPE)
			{
				RangeVar   *name = ((AlterTableStmt *) stmt)->relation;
				Oid			relid = RangeVarGetRelid(name, NoLock, true);

				if (OidIsValid(relid) && OT_OWNS_RELATION(relid))
					ddl_lock_relations_of_type(get_rel_type_id(relid));
			}
			else
				ddl_lock_for_validation((AlterTableStmt *) stmt);
			break;
		default:
			break;
	}
}
