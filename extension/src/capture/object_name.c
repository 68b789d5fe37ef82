/*-------------------------------------------------------------------------
 *
 * object_name.c
 *	  Objects that stored values refer to, by name.
 *
 * OIDs differ between servers.  If a stored value contains the OID of an object
 * (the label of an enum, the element type of an array, the relation of a
 * regclass), the write set introduces the object by its name, once, and gives
 * it a number; values then refer to the number.  OIDs below
 * FirstGenbkiObjectId are fixed in PostgreSQL's sources and need no name.
 *
 * A name is valid as long as nobody renames or drops the object.  So a
 * transaction takes a key in mode KEY SHARE for each object that it introduces,
 * and DDL that renames, moves or drops an object takes that key in mode UPDATE.
 * The key's base is read first, then invalidations are accepted, then the name
 * is looked up: a rename that the name does not show yet has a log index above
 * the base.
 *
 * Objects that exist on this server only are refused: temporary ones, TOAST
 * tables, and OIDs of no object.
 *
 * The first part runs in backends, called by stored_type.c and others; the
 * second where a write set is read, mostly in the apply worker, and the objects are
 * known until its end.  Errors: 0A000 for an object that other regions do not have; 42704 in
 * the worker for one that does not exist there.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "capture/capture_internal.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_ts_config.h"
#include "catalog/pg_ts_dict.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "shmem/shmem.h"

/* ---- in the region of the transaction ---- */

/* What identifies an object; fields that its kind lacks are empty. */
typedef struct Identity
{
	Oid			schema;
	Oid			owner;			/* a role is its own */
	char		name[NAMEDATALEN];
	Oid			type;			/* of an enum's label */
	int			nargs;			/* of a function, or 2 of an operator */
	Oid			args[FUNC_MAX_ARGS];
	int32		encoding;		/* of a collation */
} Identity;

/* Reads the object's catalog row into `identity`.  false: no such object. */
static bool
object_name_look_up_identity(OtObjectKind kind, Oid oid, Identity *identity)
{
	HeapTuple	tuple = NULL;

	memset(identity, 0, offsetof(Identity, args));
	identity->encoding = -1;

#define WITH_TUPLE(cache, Form) \
	tuple = SearchSysCache1(cache, ObjectIdGetDatum(oid)); \
	if (!HeapTupleIsValid(tuple)) \
		return false; \
	for (Form form = (Form) GETSTRUCT(tuple); form != NULL; form = NULL)

	switch (kind)
	{
		case OT_OBJECT_TYPE:
			WITH_TUPLE(TYPEOID, Form_pg_type)
			{
				identity->schema = form->typnamespace;
				identity->owner = form->typowner;
				strlcpy(identity->name, NameStr(form->typname), NAMEDATALEN);
			}
			break;
		case OT_OBJECT_ENUM_LABEL:
			WITH_TUPLE(ENUMOID, Form_pg_enum)
			{
				identity->type = form->enumtypid;
				strlcpy(identity->name, NameStr(form->enumlabel), NAMEDATALEN);
			}
			break;
		case OT_OBJECT_RELATION:
			WITH_TUPLE(RELOID, Form_pg_class)
			{
				identity->schema = form->relnamespace;
				identity->owner = form->relowner;
				strlcpy(identity->name, NameStr(form->relname), NAMEDATALEN);
			}
			break;
		case OT_OBJECT_FUNCTION:
			WITH_TUPLE(PROCOID, Form_pg_proc)
			{
				identity->schema = form->pronamespace;
				identity->owner = form->proowner;
				strlcpy(identity->name, NameStr(form->proname), NAMEDATALEN);
				identity->nargs = form->pronargs;
				memcpy(identity->args, form->proargtypes.values, sizeof(Oid) * form->pronargs);
			}
			break;
		case OT_OBJECT_OPERATOR:
			WITH_TUPLE(OPEROID, Form_pg_operator)
			{
				identity->schema = form->oprnamespace;
				identity->owner = form->oprowner;
				strlcpy(identity->name, NameStr(form->oprname), NAMEDATALEN);
				identity->nargs = 2;
				identity->args[0] = form->oprleft;
				identity->args[1] = form->oprright;
			}
			break;
		case OT_OBJECT_ROLE:
			WITH_TUPLE(AUTHOID, Form_pg_authid)
			{
				identity->owner = oid;
				strlcpy(identity->name, NameStr(form->rolname), NAMEDATALEN);
			}
			break;
		case OT_OBJECT_NAMESPACE:
			WITH_TUPLE(NAMESPACEOID, Form_pg_namespace)
			{
				identity->owner = form->nspowner;
				strlcpy(identity->name, NameStr(form->nspname), NAMEDATALEN);
			}
			break;
		case OT_OBJECT_TS_CONFIG:
			WITH_TUPLE(TSCONFIGOID, Form_pg_ts_config)
			{
				identity->schema = form->cfgnamespace;
				identity->owner = form->cfgowner;
				strlcpy(identity->name, NameStr(form->cfgname), NAMEDATALEN);
			}
			break;
		case OT_OBJECT_TS_DICTIONARY:
			WITH_TUPLE(TSDICTOID, Form_pg_ts_dict)
			{
				identity->schema = form->dictnamespace;
				identity->owner = form->dictowner;
				strlcpy(identity->name, NameStr(form->dictname), NAMEDATALEN);
			}
			break;
		case OT_OBJECT_COLLATION:
			WITH_TUPLE(COLLOID, Form_pg_collation)
			{
				identity->schema = form->collnamespace;
				identity->owner = form->collowner;
				strlcpy(identity->name, NameStr(form->collname), NAMEDATALEN);
				identity->encoding = form->collencoding;
			}
			break;
		case OT_OBJECT_NONE:
			return false;
	}
	ReleaseSysCache(tuple);
	return true;
}

static const char *
object_name_kind_name(OtObjectKind kind)
{
	switch (kind)
	{
		case OT_OBJECT_TYPE:
			return "type";
		case OT_OBJECT_ENUM_LABEL:
			return "enum label";
		case OT_OBJECT_RELATION:
			return "relation";
		case OT_OBJECT_FUNCTION:
			return "function";
		case OT_OBJECT_OPERATOR:
			return "operator";
		case OT_OBJECT_ROLE:
			return "role";
		case OT_OBJECT_NAMESPACE:
			return "schema";
		case OT_OBJECT_TS_CONFIG:
			return "text search configuration";
		case OT_OBJECT_TS_DICTIONARY:
			return "text search dictionary";
		case OT_OBJECT_COLLATION:
			return "collation";
		case OT_OBJECT_NONE:
			break;
	}
	return "object";
}

static void
object_name_refuse_object(OtObjectKind kind, const char *what, const char *name)
{
	ereport(ERROR,
			(errcode(OT_ERR_NOT_REPLICATED),
			 errmsg("cannot replicate a value that refers to %s", what),
			 errdetail("No other region knows %s %s by this name.", object_name_kind_name(kind), name),
			 errhint("Keep its name in a column of type text.")));
}

/* Objects in these schemas are this server's own. */
static void
object_name_refuse_local(OtObjectKind kind, const Identity *identity, Oid oid)
{
	Oid			schema = kind == OT_OBJECT_NAMESPACE ? oid : identity->schema;

	if (!OidIsValid(schema))
		return;
	if (isAnyTempNamespace(schema))
		object_name_refuse_object(kind, kind == OT_OBJECT_NAMESPACE ? "a temporary schema" : "a temporary object",
								  quote_identifier(identity->name));
	if (kind == OT_OBJECT_FUNCTION && ot_function_is_temporary(oid))
		object_name_refuse_object(kind, "a temporary function", quote_identifier(identity->name));
	if (IsToastNamespace(schema) && kind != OT_OBJECT_NAMESPACE)
		object_name_refuse_object(kind, "a TOAST table", quote_identifier(identity->name));
}

static uint64
object_name_hash_names(OtObjectKind kind, const char *schema, const char *name, uint64 key_seed)
{
	unsigned char letter = (unsigned char) kind;
	uint64		hash = OT_SEED_TABLE ^ key_seed;

	if (kind != OT_OBJECT_RELATION)
		hash = hash_bytes_extended(&letter, 1, UINT64CONST(0x6f6e65747269700d) ^ key_seed);
	hash = hash_bytes_extended((const unsigned char *) schema, strlen(schema), hash);
	return hash_bytes_extended((const unsigned char *) name, strlen(name), hash);
}

/*
 * The hash of the object's key, made without any OID, so that it is the same in
 * every region.  The arguments of a function are not part of it: their types
 * have keys of their own.
 */
static OtHash
object_name_hash_identity(OtObjectKind kind, const char *schema, const char *name)
{
	OtHash		hash = {object_name_hash_names(kind, schema, name, ot_key_seed)};

	return hash;
}

static char *
object_name_schema_name(Oid schema)
{
	char	   *name = OidIsValid(schema) ? get_namespace_name(schema) : pstrdup("");

	if (name == NULL)
		elog(ERROR, "cache lookup failed for schema %u", schema);
	return name;
}

static OtObjectRef
object_name_introduce(OtObjectKind kind, Oid oid, const Identity *identity, OtLogIndex base)
{
	OtObjectRef type = 0;
	OtObjectRef args[FUNC_MAX_ARGS];
	char	   *schema = object_name_schema_name(identity->schema);
	StringInfo	ops;

	/* Types that its name contains are introduced first. */
	if (OidIsValid(identity->type))
		type = ot_object_ref(OT_OBJECT_TYPE, identity->type);
	for (int i = 0; i < identity->nargs; i++)
		args[i] = ot_object_ref(OT_OBJECT_TYPE, identity->args[i]);
	if (OidIsValid(identity->schema))
		ot_write_set_key(object_name_hash_identity(OT_OBJECT_NAMESPACE, "", schema), OT_KEY_SHARE, base,
						 InvalidOid);
	/* Labels have no key: changing one locks the tables that use the enum. */
	if (kind != OT_OBJECT_ENUM_LABEL)
		ot_write_set_key(object_name_hash_identity(kind, schema, identity->name), OT_KEY_SHARE, base,
						 kind == OT_OBJECT_RELATION ? oid : InvalidOid);

	ops = ot_write_set_append();
	ot_put_u8(ops, 'O');
	ot_put_u8(ops, kind);
	ot_put_str(ops, schema);
	ot_put_str(ops, identity->name);
	switch (kind)
	{
		case OT_OBJECT_ENUM_LABEL:
			ot_put_u32(ops, type);
			break;
		case OT_OBJECT_FUNCTION:
		case OT_OBJECT_OPERATOR:
			ot_put_u8(ops, identity->nargs);
			for (int i = 0; i < identity->nargs; i++)
				ot_put_u32(ops, args[i]);
			break;
		case OT_OBJECT_COLLATION:
			ot_put_u32(ops, (uint32) identity->encoding);
			break;
		default:
			break;
	}
	pfree(schema);
	return ot_write_set_number_object(kind, oid);
}

/* How this write set refers to the object; introduces it on first use. */
OtObjectRef
ot_object_ref(OtObjectKind kind, Oid oid)
{
	OtObjectRef ref;
	Identity	identity;
	OtLogIndex	base;
	char		number[16];

	if (oid < FirstGenbkiObjectId)
		return OT_OBJECT_FIXED | oid;
	if (ot_write_set_find_object(kind, oid, &ref))
		return ref;

	base = ot_position_base_of_names();
	AcceptInvalidationMessages();
	if (!object_name_look_up_identity(kind, oid, &identity))
	{
		snprintf(number, sizeof(number), "%u", oid);
		object_name_refuse_object(kind, "an object that does not exist", number);
	}
	object_name_refuse_local(kind, &identity, oid);
	return object_name_introduce(kind, oid, &identity, base);
}

/*
 * What is prepared holds the definition of all that its values name, and such a value
 * may name anything.  So it has to be what the role could hold by itself: its own, or
 * a relation that it may read.
 */
void
ot_object_check_may_hold(void)
{
	Identity	identity;
	uint32		kind;
	Oid			oid;

	for (int at = 0; ot_write_set_next_named(&at, &kind, &oid);)
	{
		if (!object_name_look_up_identity(kind, oid, &identity) ||
			has_privs_of_role(GetUserId(), identity.owner) ||
			(kind == OT_OBJECT_RELATION && pg_class_aclcheck(oid, GetUserId(), ACL_SELECT) == ACLCHECK_OK))
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot PREPARE a transaction that has stored a reference to %s %s",
						object_name_kind_name(kind), quote_identifier(identity.name)),
				 errdetail("Nobody could drop it until the transaction is ended, and it does not belong to role \"%s\".",
						   GetUserNameFromId(GetUserId(), false)),
				 errhint("Use COMMIT, or keep its name in a column of type text.")));
	}
}

/* Takes only the key, for an object that the write set names in another way. */
void
ot_object_share_key(OtObjectKind kind, Oid oid)
{
	OtLogIndex	base = ot_position_base_of_names();
	Identity	identity;
	char	   *schema;

	AcceptInvalidationMessages();
	if (!object_name_look_up_identity(kind, oid, &identity))
		return;
	schema = object_name_schema_name(identity.schema);
	ot_write_set_key(object_name_hash_identity(kind, schema, identity.name), OT_KEY_SHARE, base, InvalidOid);
	pfree(schema);
}

/*
 * A hash of the object's name: the same in every region, and one for all OIDs
 * that mean nothing (any more).  Takes no key: for readers only.
 */
uint64
ot_object_name_hash(OtObjectKind kind, Oid oid)
{
	Identity	identity;
	char	   *schema;
	uint64		hash;

	if (oid < FirstGenbkiObjectId)
		return oid;
	if (!object_name_look_up_identity(kind, oid, &identity))
		return kind;
	schema = object_name_schema_name(identity.schema);
	hash = object_name_hash_names(kind, schema, identity.name, 0);
	pfree(schema);
	hash = hash_combine64(hash, (uint64) identity.encoding);
	if (OidIsValid(identity.type))
		hash = hash_combine64(hash, ot_object_name_hash(OT_OBJECT_TYPE, identity.type));
	for (int i = 0; i < identity.nargs; i++)
		hash = hash_combine64(hash, ot_object_name_hash(OT_OBJECT_TYPE, identity.args[i]));
	return hash;
}

static OtObjectKind
object_name_kind_of_class(Oid class_id)
{
	switch (class_id)
	{
		case TypeRelationId:
			return OT_OBJECT_TYPE;
		case RelationRelationId:
			return OT_OBJECT_RELATION;
		case ProcedureRelationId:
			return OT_OBJECT_FUNCTION;
		case OperatorRelationId:
			return OT_OBJECT_OPERATOR;
		case AuthIdRelationId:
			return OT_OBJECT_ROLE;
		case NamespaceRelationId:
			return OT_OBJECT_NAMESPACE;
		case TSConfigRelationId:
			return OT_OBJECT_TS_CONFIG;
		case TSDictionaryRelationId:
			return OT_OBJECT_TS_DICTIONARY;
		case CollationRelationId:
			return OT_OBJECT_COLLATION;
		default:
			return OT_OBJECT_NONE;
	}
}

/*
 * Takes the key of an object that is about to be dropped, renamed or moved.
 * The name is the one that the catalogs show to this command: the one before
 * its own changes.
 */
void
ot_object_take_key(Oid class_id, Oid oid)
{
	OtObjectKind kind = object_name_kind_of_class(class_id);
	Identity	identity;
	char	   *schema;

	if (kind == OT_OBJECT_NONE || !object_name_look_up_identity(kind, oid, &identity) ||
		(OidIsValid(identity.schema) && isAnyTempNamespace(identity.schema)))
		return;
	schema = object_name_schema_name(identity.schema);
	ot_write_set_key_now(object_name_hash_identity(kind, schema, identity.name), OT_UPDATE,
						 kind == OT_OBJECT_RELATION ? oid : InvalidOid);
	pfree(schema);
}

/* ---- where a write set is read ---- */

static Oid *objects = NULL;
static uint32 nobjects;
static uint32 max_objects;

/* An entry begins.  The list of objects is in the current memory context. */
void
ot_object_names_begin(void)
{
	nobjects = 0;
	max_objects = 16;
	objects = palloc(sizeof(Oid) * max_objects);
}

Oid
ot_object_resolve(OtObjectRef ref)
{
	if (ref & OT_OBJECT_FIXED)
	{
		Oid			oid = ref & ~OT_OBJECT_FIXED;

		if (oid < FirstGenbkiObjectId)
			return oid;
	}
	else if (ref < nobjects)
		return objects[ref];
	ereport(ERROR,
			(errcode(OT_ERR_PROTOCOL),
			 errmsg("a write set refers to object %u of %u", ref, nobjects)));
	return InvalidOid;
}

static Oid
object_name_find_function(Oid schema, const char *name, const Oid *args, int nargs)
{
	return GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(name),
						   PointerGetDatum(buildoidvector(args, nargs)),
						   ObjectIdGetDatum(schema));
}

static Oid
object_name_find_object(OtObjectKind kind, Oid schema, const char *name, Oid type, const Oid *args, int nargs,
						int32 encoding)
{
	switch (kind)
	{
		case OT_OBJECT_TYPE:
			return GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum(name),
								   ObjectIdGetDatum(schema));
		case OT_OBJECT_ENUM_LABEL:
			return GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid, ObjectIdGetDatum(type),
								   CStringGetDatum(name));
		case OT_OBJECT_RELATION:
			return get_relname_relid(name, schema);
		case OT_OBJECT_FUNCTION:
			return object_name_find_function(schema, name, args, nargs);
		case OT_OBJECT_OPERATOR:
			if (nargs != 2)
				break;
			return GetSysCacheOid4(OPERNAMENSP, Anum_pg_operator_oid, CStringGetDatum(name),
								   ObjectIdGetDatum(args[0]), ObjectIdGetDatum(args[1]),
								   ObjectIdGetDatum(schema));
		case OT_OBJECT_ROLE:
			return get_role_oid(name, true);
		case OT_OBJECT_NAMESPACE:
			return get_namespace_oid(name, true);
		case OT_OBJECT_TS_CONFIG:
			return GetSysCacheOid2(TSCONFIGNAMENSP, Anum_pg_ts_config_oid, CStringGetDatum(name),
								   ObjectIdGetDatum(schema));
		case OT_OBJECT_TS_DICTIONARY:
			return GetSysCacheOid2(TSDICTNAMENSP, Anum_pg_ts_dict_oid, CStringGetDatum(name),
								   ObjectIdGetDatum(schema));
		case OT_OBJECT_COLLATION:
			return GetSysCacheOid3(COLLNAMEENCNSP, Anum_pg_collation_oid, CStringGetDatum(name),
								   Int32GetDatum(encoding), ObjectIdGetDatum(schema));
		case OT_OBJECT_NONE:
			break;
	}
	ereport(ERROR,
			(errcode(OT_ERR_PROTOCOL),
			 errmsg("unknown kind of object 0x%02x in a write set", (unsigned int) kind)));
	return InvalidOid;
}

void
ot_object_read(OtReader *r)
{
	OtObjectKind kind = (OtObjectKind) ot_get_u8(r);
	char	   *schema = ot_get_str(r);
	char	   *name = ot_get_str(r);
	Oid			type = InvalidOid;
	Oid			args[FUNC_MAX_ARGS];
	int			nargs = 0;
	int32		encoding = -1;
	Oid			schema_oid = InvalidOid;
	Oid			oid = InvalidOid;

	if (kind == OT_OBJECT_ENUM_LABEL)
		type = ot_object_resolve(ot_get_u32(r));
	else if (kind == OT_OBJECT_FUNCTION || kind == OT_OBJECT_OPERATOR)
	{
		nargs = ot_get_u8(r);
		if (nargs > FUNC_MAX_ARGS)
			ereport(ERROR,
					(errcode(OT_ERR_PROTOCOL),
					 errmsg("a function in a write set has %d arguments", nargs)));
		for (int i = 0; i < nargs; i++)
			args[i] = ot_object_resolve(ot_get_u32(r));
	}
	else if (kind == OT_OBJECT_COLLATION)
		encoding = (int32) ot_get_u32(r);

	if (schema[0] != '\0')
		schema_oid = get_namespace_oid(schema, true);
	if (schema[0] == '\0' || OidIsValid(schema_oid))
		oid = object_name_find_object(kind, schema_oid, name, type, args, nargs, encoding);
	if (!OidIsValid(oid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("%s %s does not exist in region \"%s\"", object_name_kind_name(kind),
						schema[0] ? quote_qualified_identifier(schema, name) :
						type ? psprintf("\"%s\" of %s", name, format_type_be(type)) :
						quote_identifier(name),
						ot_region),
				 errdetail("A value that was written in another region refers to it."),
				 errhint("This region differs from the others; compare them with onetrip check.")));

	if (nobjects == max_objects)
	{
		objects = repalloc(objects, sizeof(Oid) * max_objects * 2);
		max_objects *= 2;
	}
	objects[nobjects++] = oid;
	pfree(schema);
	pfree(name);
}
