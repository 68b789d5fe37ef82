/*-------------------------------------------------------------------------
 *
 * elsewhere.c
 *	  Finds expressions that may give different values in different regions.
 *
 * A recorded statement that fills a column (ADD COLUMN with a default, ALTER
 * COLUMN TYPE with USING) computes its values in each region.  They are the
 * same if everything that they depend on is the same: arguments and columns
 * are, and so are the role, the transaction's time and the settings that
 * travel with a statement.
 *
 * This file lists what is known to give the same values; everything else is
 * taken to differ, including kinds of nodes and STABLE functions that are new
 * in a later PostgreSQL.  PostgreSQL's IMMUTABLE functions are trusted, except
 * those that show OIDs, which differ between servers, or that follow
 * client_encoding, which does not travel.  User functions are trusted if they
 * are declared IMMUTABLE, and only then.
 *
 * Each region also computes what is in its indexes, and which partition a row
 * belongs in.  So what a statement makes of that kind is refused if it may differ.
 *
 * The cluster test elsewhere.rs calls each function of the server and compares.
 *
 * It also knows expressions that depend on no definition that may change next to a
 * statement about a table, since all that they call is the server's own.
 *
 * Runs in backends.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "ddl/ddl_internal.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_language.h"
#include "catalog/pg_partitioned_table.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parse_coerce.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "capture/capture.h"

/*
 * PostgreSQL's STABLE functions that give the same values, by name.  None of
 * them treats OIDs as numbers, tells about the session, the server or its
 * catalogs, or follows a setting that does not travel.
 */
static const char *const alike[] = {
	/* the role, the transaction's time, the database, schemas by search_path */
	"current_database", "current_user", "getdatabaseencoding", "now",
	"transaction_timestamp",
	/* text from values and values from text; objects with an OID by name */
	"aclitemin", "aclitemout", "anytextcat", "array_in", "array_out", "array_to_string", "cash_in",
	"cash_out", "concat", "concat_ws", "date_in", "date_out", "domain_in", "enum_in", "enum_out",
	"format", "interval_in", "interval_out", "multirange_in", "multirange_out", "quote_literal",
	"quote_nullable", "range_in", "range_out", "record_in", "record_out", "regclassout",
	"regcollationout", "regconfigout", "regdictionaryout", "regnamespaceout", "regoperatorout",
	"regoperout", "regprocedureout", "regprocout", "regroleout", "regtypeout", "textanycat",
	"time_in", "timestamp_in", "timestamp_out", "timestamptz_in", "timestamptz_out", "timetz_in",
	"xml", "xml_in", "xml_is_well_formed",
	/* objects by name */
	"regclass", "to_regclass", "to_regcollation", "to_regnamespace", "to_regoper",
	"to_regoperator", "to_regproc", "to_regprocedure", "to_regrole", "to_regtype",
	/* labels of an enum, in their order */
	"enum_first", "enum_last", "enum_range",
	/* TimeZone, DateStyle, IntervalStyle, lc_time, lc_numeric, lc_monetary */
	"age", "date", "date_cmp_timestamptz", "date_eq_timestamptz", "date_ge_timestamptz",
	"date_gt_timestamptz", "date_le_timestamptz", "date_lt_timestamptz", "date_ne_timestamptz",
	"date_part", "date_trunc", "extract", "in_range", "interval_pl_timestamptz",
	"make_timestamptz", "money", "numeric", "overlaps", "time", "timestamp",
	"timestamp_cmp_timestamptz", "timestamp_eq_timestamptz", "timestamp_ge_timestamptz",
	"timestamp_gt_timestamptz", "timestamp_le_timestamptz", "timestamp_lt_timestamptz",
	"timestamp_ne_timestamptz", "timestamptz", "timestamptz_cmp_date",
	"timestamptz_cmp_timestamp", "timestamptz_eq_date", "timestamptz_eq_timestamp",
	"timestamptz_ge_date", "timestamptz_ge_timestamp", "timestamptz_gt_date",
	"timestamptz_gt_timestamp", "timestamptz_le_date", "timestamptz_le_timestamp",
	"timestamptz_lt_date", "timestamptz_lt_timestamp", "timestamptz_mi_interval",
	"timestamptz_ne_date", "timestamptz_ne_timestamp", "timestamptz_pl_interval", "timetz",
	"timezone", "to_char", "to_date", "to_number", "to_timestamp",
	/* JSON from values */
	"array_to_json", "json_build_array", "json_build_object", "json_populate_record",
	"jsonb_build_array", "jsonb_build_object", "jsonb_path_exists_tz", "jsonb_path_match_tz",
	"jsonb_path_query_array_tz", "jsonb_path_query_first_tz", "jsonb_populate_record",
	"row_to_json", "to_json", "to_jsonb",
	/* conversions of encodings */
	"convert", "convert_from", "convert_to", "length",
	/* default_text_search_config */
	"get_current_ts_config", "json_to_tsvector", "jsonb_to_tsvector", "phraseto_tsquery",
	"plainto_tsquery", "to_tsquery", "to_tsvector", "ts_headline", "ts_match_tq", "ts_match_tt",
	"websearch_to_tsquery",
};

/* Is the first schema of search_path this session's own? */
static bool
elsewhere_schema_is_temporary(void)
{
	List	   *path = fetch_search_path(false);
	bool		answer = path != NIL && isTempNamespace(linitial_oid(path));

	list_free(path);
	return answer;
}

static bool
elsewhere_is_alike(Oid function)
{
	char	   *name = get_func_name(function);

	/* the age of a transaction id, under the name of a listed function */
	if (function == F_AGE_XID)
		return false;
	if (function == F_CURRENT_SCHEMA)
		return !elsewhere_schema_is_temporary();
	for (int i = 0; i < lengthof(alike); i++)
	{
		if (strcmp(name, alike[i]) == 0)
			return true;
	}
	return false;
}

static bool
elsewhere_name_starts(const char *name, const char *with)
{
	return strncmp(name, with, strlen(with)) == 0;
}

/* Send functions return what a client gets: in its encoding, with OIDs. */
static bool
elsewhere_is_send_function(const char *name)
{
	return strlen(name) > 4 && strcmp(name + strlen(name) - 4, "send") == 0;
}

/* Does it look at the bytes of a value, where an enum is an OID? */
static bool
elsewhere_looks_at_bytes(const char *name)
{
	return elsewhere_name_starts(name, "hash") || elsewhere_name_starts(name, "record_image_") ||
		strcmp(name, "btrecordimagecmp") == 0;
}

/* PostgreSQL's own functions use a configuration or a dictionary of text search, whatever its OID. */
static bool
elsewhere_is_number(Oid type)
{
	return type != REGCONFIGOID && type != REGDICTIONARYOID && ot_type_is_by_oid(type);
}

static bool
elsewhere_contains_names(Oid type)
{
	return type == RECORDOID || type == RECORDARRAYOID || ot_type_contains_names(type);
}

/* Does the text of its values contain names of objects, which may be hidden? */
static bool
elsewhere_shows_names(Oid type)
{
	return type == RECORDOID || type == RECORDARRAYOID || ot_type_is_by_oid(type);
}

static bool
elsewhere_any_argument_is(List *args, bool (*test) (Oid type))
{
	ListCell   *lc;

	foreach(lc, args)
	{
		if (test(exprType(lfirst(lc))))
			return true;
	}
	return false;
}

/*
 * The arguments that the function itself gets.  Empty for other nodes, such as
 * CoerceViaIO, which goes through text, where objects have their names.
 */
static List *
elsewhere_list_arguments(Node *node)
{
	switch (nodeTag(node))
	{
		case T_FuncExpr:
			return ((FuncExpr *) node)->args;
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
			return ((OpExpr *) node)->args;
		case T_ScalarArrayOpExpr:
			return ((ScalarArrayOpExpr *) node)->args;
		default:
			return NIL;
	}
}

/*
 * Does the function find an object by its name, or write down how one is found?  In
 * this session something temporary may hide what other regions find by that name.
 */
static bool
elsewhere_follows_visibility(Oid function, Node *node, List *args)
{
	const char *name = get_func_name(function);

	if (!ot_ddl_session_has_temporary() && !ot_temporary_functions_possible())
		return false;
	return elsewhere_name_starts(name, "reg") || elsewhere_name_starts(name, "to_reg") ||
		elsewhere_any_argument_is(args, elsewhere_shows_names) ||
		(IsA(node, CoerceViaIO) && elsewhere_shows_names(exprType((Node *) ((CoerceViaIO *) node)->arg)));
}

/*
 * JSON or text, for a function of the server that turns values of any type into that by
 * the cast that it finds, which no tree shows, or InvalidOid.  Those for text are
 * written in SQL.
 */
static Oid
elsewhere_casts_to(Oid function)
{
	char	   *name = get_func_name(function);

	if (elsewhere_name_starts(name, "to_json") || elsewhere_name_starts(name, "json_build_") ||
		elsewhere_name_starts(name, "jsonb_build_") || strcmp(name, "array_to_json") == 0 ||
		strcmp(name, "row_to_json") == 0)
		return JSONOID;
	return strcmp(name, "anytextcat") == 0 || strcmp(name, "textanycat") == 0 ||
		strcmp(name, "quote_literal") == 0 || strcmp(name, "quote_nullable") == 0 ? TEXTOID : InvalidOid;
}

typedef bool (*TestCast) (Oid type, Oid function);

static bool
elsewhere_cast_differs(Oid type, Oid function)
{
	return func_volatile(function) != PROVOLATILE_IMMUTABLE || ot_type_is_by_oid(type);
}

static bool
elsewhere_cast_is_foreign(Oid type, Oid function)
{
	return true;
}

/* Is there such a cast of a user's?  JSON is made of elements and columns, which have their own. */
static bool
elsewhere_type_is_cast(Oid type, Oid to, TestCast test)
{
	bool		answer = false;
	Oid			function;
	TupleDesc	columns;

	type = getBaseType(type);
	if (to == JSONOID && OidIsValid(get_element_type(type)))
		return elsewhere_type_is_cast(get_element_type(type), to, test);
	/* nobody knows what it is made of */
	if (to == JSONOID && type == RECORDOID)
		return true;
	if (to != JSONOID || !type_is_rowtype(type))
		return find_coercion_pathway(to, type, COERCION_EXPLICIT, &function) == COERCION_PATH_FUNC &&
			function >= FirstNormalObjectId && test(type, function);
	columns = lookup_rowtype_tupdesc_copy(type, -1);
	for (int i = 0; i < columns->natts; i++)
		answer |= !TupleDescAttr(columns, i)->attisdropped &&
			elsewhere_type_is_cast(TupleDescAttr(columns, i)->atttypid, to, test);
	FreeTupleDesc(columns);
	return answer;
}

static bool
elsewhere_any_is_cast(List *args, Oid to, TestCast test)
{
	ListCell   *lc;

	foreach(lc, args)
	{
		Node	   *arg = lfirst(lc);

		if (IsA(arg, RowExpr) && exprType(arg) == RECORDOID && to == JSONOID ?
			elsewhere_any_is_cast(((RowExpr *) arg)->args, to, test) :
			elsewhere_type_is_cast(exprType(arg), to, test))
			return true;
	}
	return false;
}

/* Does a function of the server, with these arguments, call such a cast? */
static bool
elsewhere_calls_cast(Oid function, List *args, TestCast test)
{
	Oid			to = elsewhere_casts_to(function);

	return OidIsValid(to) && elsewhere_any_is_cast(args, to, test);
}

static bool
elsewhere_function_differs(Oid function, void *context)
{
	List	   *args = elsewhere_list_arguments(context);
	char	   *name;

	if (func_volatile(function) != PROVOLATILE_IMMUTABLE)
		return function >= FirstNormalObjectId || !elsewhere_is_alike(function) ||
			elsewhere_follows_visibility(function, context, args) ||
			elsewhere_calls_cast(function, args, elsewhere_cast_differs);
	if (function >= FirstNormalObjectId)
		return elsewhere_any_argument_is(args, ot_type_is_by_oid);
	if (elsewhere_any_argument_is(args, elsewhere_is_number))
		return true;
	name = get_func_name(function);
	return elsewhere_is_send_function(name) ||
		(elsewhere_looks_at_bytes(name) && elsewhere_any_argument_is(args, elsewhere_contains_names));
}

/* Is the node a current_setting() of a setting that travels? */
static bool
elsewhere_asks_for_setting_that_travels(Node *node)
{
	FuncExpr   *call = (FuncExpr *) node;
	Const	   *name;

	if (!IsA(node, FuncExpr) || (call->funcid != F_CURRENT_SETTING_TEXT &&
								 call->funcid != F_CURRENT_SETTING_TEXT_BOOL))
		return false;
	name = linitial(call->args);
	return IsA(name, Const) && !name->constisnull &&
		ot_session_settings_travel(TextDatumGetCString(name->constvalue));
}

static bool
elsewhere_value_differs(SQLValueFunction *value)
{
	switch (value->op)
	{
		case SVFOP_CURRENT_DATE:
		case SVFOP_CURRENT_TIME:
		case SVFOP_CURRENT_TIME_N:
		case SVFOP_CURRENT_TIMESTAMP:
		case SVFOP_CURRENT_TIMESTAMP_N:
		case SVFOP_LOCALTIME:
		case SVFOP_LOCALTIME_N:
		case SVFOP_LOCALTIMESTAMP:
		case SVFOP_LOCALTIMESTAMP_N:
		case SVFOP_CURRENT_ROLE:
		case SVFOP_CURRENT_USER:
		case SVFOP_USER:
		case SVFOP_CURRENT_CATALOG:
			return false;
		case SVFOP_CURRENT_SCHEMA:
			return elsewhere_schema_is_temporary();
		case SVFOP_SESSION_USER:	/* who has logged in */
			return true;
	}
	return true;
}

/*
 * Does this node by itself differ?  Its children and the functions that it
 * calls are checked separately.
 */
static bool
elsewhere_node_differs(Node *node)
{
	if (ot_json_calls_unseen(node))
		return true;
	switch (nodeTag(node))
	{
		case T_Var:
			/* a system column */
			return ((Var *) node)->varattno < 0;
		case T_SQLValueFunction:
			return elsewhere_value_differs((SQLValueFunction *) node);
		case T_RelabelType:
			/* from an OID type to a number, or back */
			return ot_type_is_by_oid(exprType((Node *) ((RelabelType *) node)->arg)) !=
				ot_type_is_by_oid(((RelabelType *) node)->resulttype);
		case T_CoerceViaIO:
			/* the text may be an OID as a number */
			return ot_type_is_by_oid(((CoerceViaIO *) node)->resulttype);
		case T_XmlExpr:
			/* it writes values down by itself */
			return elsewhere_any_argument_is(((XmlExpr *) node)->args, elsewhere_shows_names) ||
				elsewhere_any_argument_is(((XmlExpr *) node)->named_args, elsewhere_shows_names);
		case T_MinMaxExpr:
			return elsewhere_any_argument_is(((MinMaxExpr *) node)->args, ot_type_is_by_oid);
		case T_RowCompareExpr:
			return elsewhere_any_argument_is(((RowCompareExpr *) node)->largs, ot_type_is_by_oid);

		case T_ArrayCoerceExpr:
		case T_ArrayExpr:
		case T_BoolExpr:
		case T_BooleanTest:
		case T_CaseExpr:
		case T_CaseTestExpr:
		case T_CoalesceExpr:
		case T_CoerceToDomain:
		case T_CoerceToDomainValue:
		case T_CollateExpr:
		case T_Const:
		case T_ConvertRowtypeExpr:
		case T_DistinctExpr:
		case T_FieldSelect:
		case T_FieldStore:
		case T_FuncExpr:
		case T_List:
		case T_NamedArgExpr:
		case T_NullIfExpr:
		case T_NullTest:
		case T_OpExpr:
		case T_RowExpr:
		case T_ScalarArrayOpExpr:
		case T_SubscriptingRef:
		OT_CASES_OF_JSON
			return false;
		default:
			return true;
	}
}

static bool
elsewhere_function_is_temporary(Oid function, void *context)
{
	return ot_function_is_temporary(function);
}

/*
 * Does the node use a temporary type or function, or a constant that stands for
 * something temporary?  In other regions their names refer to something else.
 */
static bool
elsewhere_uses_temporary(Node *node)
{
	Const	   *value = (Const *) node;
	Oid			type = OT_JSON_RESULT(node);

	if (!ot_ddl_session_has_temporary() && !ot_temporary_functions_possible())
		return false;
	if (check_functions_in_node(node, elsewhere_function_is_temporary, NULL))
		return true;
	switch (nodeTag(node))
	{
		case T_Const:
			if ((value->consttype == REGPROCOID || value->consttype == REGPROCEDUREOID) &&
				!value->constisnull &&
				elsewhere_function_is_temporary(DatumGetObjectId(value->constvalue), NULL))
				return true;
			if (value->consttype == REGCLASSOID && !value->constisnull &&
				get_rel_persistence(DatumGetObjectId(value->constvalue)) == RELPERSISTENCE_TEMP)
				return true;
			type = value->consttype == REGTYPEOID && !value->constisnull ?
				DatumGetObjectId(value->constvalue) : value->consttype;
			break;
		case T_RelabelType:
		case T_CoerceViaIO:
		case T_ArrayCoerceExpr:
		case T_ConvertRowtypeExpr:
		case T_CoerceToDomain:
		case T_RowExpr:
		case T_FuncExpr:
			type = exprType(node);
			break;
		default:
			break;
	}
	return ot_type_is_temporary(type);
}

static bool
elsewhere_walk_for_temporary(Node *node, void *context)
{
	if (node == NULL)
		return false;
	return elsewhere_uses_temporary(node) ||
		expression_tree_walker(node, elsewhere_walk_for_temporary, context);
}

/*
 * Would other regions fail to find what the expression names?  For those that
 * leave nothing in pg_depend.
 */
bool
ot_ddl_uses_temporary(Node *expression)
{
	return elsewhere_walk_for_temporary(expression, NULL);
}

/* The object of a reg* type whose OID it is, or NULL. */
static Node *
elsewhere_named_object(Node *node)
{
	RelabelType *relabel = (RelabelType *) node;

	return IsA(node, RelabelType) && relabel->resulttype == OIDOID &&
		ot_type_is_by_oid(exprType((Node *) relabel->arg)) ? (Node *) relabel->arg : NULL;
}

/* Two objects, of which it asks whether they are the same, as in every region; NIL: it does not. */
static List *
elsewhere_compared_objects(Node *node)
{
	OpExpr	   *compare = (OpExpr *) node;
	Node	   *left;
	Node	   *right;

	if (!IsA(node, OpExpr) || (compare->opfuncid != F_OIDEQ && compare->opfuncid != F_OIDNE))
		return NIL;
	left = elsewhere_named_object(linitial(compare->args));
	right = elsewhere_named_object(lsecond(compare->args));
	return left != NULL && right != NULL ? list_make2(left, right) : NIL;
}

static bool
elsewhere_walk_differs(Node *node, void *context)
{
	List	   *objects;

	if (node == NULL)
		return false;
	objects = elsewhere_compared_objects(node);
	if (objects != NIL)
		return expression_tree_walker((Node *) objects, elsewhere_walk_differs, context);
	if (elsewhere_node_differs(node) || elsewhere_uses_temporary(node) ||
		(!elsewhere_asks_for_setting_that_travels(node) &&
		 check_functions_in_node(node, elsewhere_function_differs, node)))
		return true;
	return expression_tree_walker(node, elsewhere_walk_differs, context);
}

/*
 * May the expression give different values in different regions, or from row to
 * row?
 */
bool
ot_ddl_differs_elsewhere(Node *expression)
{
	return contain_volatile_functions(expression) || elsewhere_walk_differs(expression, NULL);
}

/* ---- built in ---- */

/*
 * Do the server's own functions call no others for values of this type, and look up
 * no relation, function or type?  Those of an enum are the server's, but for a cast of
 * it, which elsewhere_function_is_foreign() looks for.
 */
bool
ot_ddl_type_is_built_in(Oid type)
{
	Oid			base = getBaseType(type);
	Oid			element = get_element_type(base);

	if (OidIsValid(element))
		return ot_ddl_type_is_built_in(element);
	if (base == REGCONFIGOID || base == REGDICTIONARYOID || type_is_enum(base))
		return true;
	return base < FirstUnpinnedObjectId && base != RECORDOID && !ot_type_is_by_oid(base);
}

static bool
elsewhere_function_is_foreign(Oid function, void *context)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc form;
	bool		is_own;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", function);
	form = (Form_pg_proc) GETSTRUCT(tuple);
	/* an administrator may have replaced one */
	is_own = function < FirstUnpinnedObjectId &&
		(form->prolang == INTERNALlanguageId || form->prolang == ClanguageId) &&
		(form->provolatile == PROVOLATILE_IMMUTABLE ||
		 (form->provolatile == PROVOLATILE_STABLE && elsewhere_is_alike(function)));
	ReleaseSysCache(tuple);
	return !is_own || elsewhere_calls_cast(function, elsewhere_list_arguments(context), elsewhere_cast_is_foreign);
}

static bool
elsewhere_walk_for_foreign(Node *node, void *context)
{
	if (node == NULL)
		return false;
	/* this calls nothing */
	if (IsA(node, NullTest) && IsA(((NullTest *) node)->arg, Var))
		return elsewhere_node_differs((Node *) ((NullTest *) node)->arg);
	/* the constraints of a domain may be anything */
	if (elsewhere_node_differs(node) || IsA(node, CoerceToDomain) ||
		(!IsA(node, List) && !ot_ddl_type_is_built_in(exprType(node))) ||
		check_functions_in_node(node, elsewhere_function_is_foreign, node))
		return true;
	return expression_tree_walker(node, elsewhere_walk_for_foreign, context);
}

/*
 * Is everything that the expression calls the server's own, so that DDL about tables
 * which is carried out before it, or after it, makes no difference to its values?
 */
bool
ot_ddl_is_built_in(Node *expression)
{
	return !elsewhere_walk_for_foreign(expression, NULL);
}

/* Does the stored expression, of a column of a catalog, differ? */
static bool
elsewhere_stored_differs(int cache, HeapTuple tuple, AttrNumber column)
{
	bool		isnull;
	Datum		stored = SysCacheGetAttr(cache, tuple, column, &isnull);

	return !isnull && ot_ddl_differs_elsewhere(stringToNode(TextDatumGetCString(stored)));
}

static bool
elsewhere_index_differs(Oid index)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Oid			table;
	bool		differs;

	if (!HeapTupleIsValid(tuple))
		return false;
	table = ((Form_pg_index) GETSTRUCT(tuple))->indrelid;
	/* where rows are each region's own, so is what is computed from them */
	differs = (get_rel_relkind(table) == RELKIND_PARTITIONED_TABLE || ot_contents_of_travel(table)) &&
		(elsewhere_stored_differs(INDEXRELID, tuple, Anum_pg_index_indexprs) ||
		 elsewhere_stored_differs(INDEXRELID, tuple, Anum_pg_index_indpred));
	ReleaseSysCache(tuple);
	return differs;
}

static bool
elsewhere_partition_key_differs(Oid table)
{
	HeapTuple	tuple = SearchSysCache1(PARTRELID, ObjectIdGetDatum(table));
	bool		differs;

	if (!HeapTupleIsValid(tuple))
		return false;
	differs = elsewhere_stored_differs(PARTRELID, tuple, Anum_pg_partitioned_table_partexprs);
	ReleaseSysCache(tuple);
	return differs;
}

/* Called after a statement that is recorded, with the relations that it has made. */
void
ot_ddl_check_relations(List *relations)
{
	ListCell   *lc;

	if (relations != NIL)
		CommandCounterIncrement();
	foreach(lc, relations)
	{
		/* gone again, or what a script has made for itself */
		if (get_rel_relkind(lfirst_oid(lc)) == '\0' ||
			get_rel_persistence(lfirst_oid(lc)) == RELPERSISTENCE_TEMP)
			continue;
		if (elsewhere_index_differs(lfirst_oid(lc)))
			ot_ddl_refuse("an index of values that may differ between regions",
						  "Compute from what is the same in every region, such as the name of an object in a column of type text.");
		if (elsewhere_partition_key_differs(lfirst_oid(lc)))
			ot_ddl_refuse("a partition key that may differ between regions",
						  "Compute from what is the same in every region, such as the name of an object in a column of type text.");
	}
}
