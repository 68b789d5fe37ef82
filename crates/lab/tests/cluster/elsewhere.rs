//! Expressions that a statement evaluates in every region and whose values it stores there: each function of the server
//! that is STABLE, or takes values with OIDs in them, gives the same everywhere, or the rows travel.
//!
//! The list of functions comes from the server, so those that a new version of PostgreSQL brings are tried here, or
//! named as not covered.

use std::collections::{BTreeMap, BTreeSet};

use onetrip_lab::values::catalog::Catalog;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::lab::{bounded, start, told, Lab, Session};

/// Settings that may differ from server to server, with the values for regions a, b and c.
const OWN: [(&str, [&str; 3]); 12] = [
    ("TimeZone", ["UTC", "America/St_Johns", "Asia/Kolkata"]),
    ("DateStyle", ["ISO, MDY", "German, DMY", "SQL, DMY"]),
    ("IntervalStyle", ["postgres", "iso_8601", "sql_standard"]),
    ("bytea_output", ["hex", "escape", "hex"]),
    ("extra_float_digits", ["1", "0", "-3"]),
    ("xmlbinary", ["base64", "hex", "base64"]),
    ("default_text_search_config", ["pg_catalog.simple", "pg_catalog.german", "pg_catalog.english"]),
    ("timezone_abbreviations", ["Default", "Australia", "India"]),
    ("work_mem", ["4MB", "5MB", "6MB"]),
    ("log_min_duration_statement", ["-1", "60000", "50000"]),
    ("array_nulls", ["on", "on", "off"]),
    ("random_page_cost", ["4", "3", "2"]),
];
/// The settings with which the results are compared.
const SAME: &str =
    "set timezone = 'UTC'; set datestyle = 'ISO, MDY'; set intervalstyle = 'postgres'; set bytea_output = 'hex';
    set extra_float_digits = 1; set xmlbinary = 'base64'; set timezone_abbreviations = 'Default'; set array_nulls = on";

/// What test values are made of: an enum, types that contain it, and types that name objects.  Every test table has the
/// columns of `like_this`, and `ROWS`.
const OBJECTS: &str = "
    create role tester superuser; create schema tester;
    create type en as enum ('b', 'a'); create type comp as (e en, r regclass, n int); create type en_range as range (subtype = en);
    create domain en_domain as en;
    create table named (id int primary key); create table named_too (id int primary key);
    create table like_this (id int primary key, e en, ea en[], ed en_domain, er en_range, em en_multirange, c comp, r regclass, ra regclass[],
        ac aclitem, tx text, n int, ts timestamptz, by bytea, js jsonb)";
const ROWS: &str =
    "values (1, 'a', '{a,b}', 'a', '[b,a)', '{[b,a)}', '(a,named,1)', 'named', '{named,named_too}', 'tester=r/tester',
        U&'\\00e4', 2, '2020-01-02 03:04:05+06', '\\x00c3', '{\"a\": \"2020-01-02\"}'),
    (2, 'b', '{b}', 'b', '[b,b]', '{[b,b]}', '(b,named_too,2)', 'named_too', '{named_too,named}', '=r/tester',
        'b', 3, '2021-07-02 03:04:05+06', '\\xff', '[1]')";

/// Values for arguments of each type: a constant, and an expression with a column where there is one.
const ARGUMENTS: &[(&str, &[(&str, &str)])] = &[
    ("any", &[("'a'::public.en", "e"), ("'public.named'::regclass", "r"), ("U&'\\00e4'::text", "tx")]),
    ("anyelement", &[("'a'::public.en", "e"), ("'(a,public.named,1)'::public.comp", "c"), ("now()", "ts")]),
    ("anynonarray", &[("'a'::public.en", "e"), ("'public.named'::regclass", "r"), ("now()", "ts")]),
    ("anyenum", &[("'a'::public.en", "e")]),
    (
        "anyarray",
        &[("'{a,b}'::public.en[]", "ea"), ("'{public.named}'::regclass[]", "ra"), ("array[1, 2]", "array[n, 3]")],
    ),
    ("anyrange", &[("'[b,a)'::public.en_range", "er"), ("int4range(1, 3)", "int4range(n, 4)")]),
    ("anymultirange", &[("'{[b,a)}'::public.en_multirange", "em")]),
    ("anycompatible", &[("'a'::public.en", "e"), ("'public.named'::regclass", "r"), ("1", "n")]),
    ("anycompatiblenonarray", &[("'a'::public.en", "e"), ("1", "n")]),
    (
        "anycompatiblearray",
        &[("'{a,b}'::public.en[]", "ea"), ("'{public.named}'::regclass[]", "ra"), ("array[1, 2]", "array[n, 3]")],
    ),
    ("anycompatiblerange", &[("'[b,a)'::public.en_range", "er")]),
    ("anycompatiblemultirange", &[("'{[b,a)}'::public.en_multirange", "em")]),
    (
        "record",
        &[("'(a,public.named,1)'::public.comp", "c"), ("row('a'::public.en, 'public.named'::regclass)", "row(e, r)")],
    ),
    (
        "cstring",
        &[
            ("'1'", "'1'"),
            ("'now'", "'now'"),
            ("'<a/>'", "'<a/>'"),
            ("'2020-01-02 03:04:05'", "'2020-01-02 03:04:05'"),
            ("'postgres=r/postgres'", "'=r/postgres'"),
        ],
    ),
    (
        "oid",
        &[
            ("'public.named'::regclass::oid", "r::oid"),
            ("'public.en'::regtype::oid", "1247::oid"),
            ("0::oid", "1259::oid"),
        ],
    ),
    ("regclass", &[("'public.named'::regclass", "r")]),
    ("aclitem", &[("'tester=r/tester'::aclitem", "ac")]),
    (
        "text",
        &[
            ("U&'\\00e4 b'", "tx"),
            ("'public.named'", "'named'"),
            ("'YYYY Month TMDay HH24 L 9D9'", "'FMTMMonth'"),
            ("'day'", "'hour'"),
            ("'Europe/Berlin'", "'Asia/Kolkata'"),
            ("'1'", "'2'"),
            ("'{}'", "'{}'"),
            ("'02.03.2020'", "'02/03/2020'"),
            ("'select'", "'usage'"),
            ("'postgres'", "'tester'"),
            ("'<a>b</a>'", "'b'"),
            ("'public'", "'tester'"),
            ("'int4'", "'en'"),
            ("'C'", "'\"C\"'"),
            ("'+(int4,int4)'", "'abs(int4)'"),
            ("'||/'", "'now'"),
            ("'work_mem'", "'TimeZone'"),
            ("'work'", "'TimeZone'"),
            ("'=r/postgres'", "'MaxFragments=1'"),
        ],
    ),
    (
        "name",
        &[
            ("'tester'::name", "'LATIN1'::name"),
            ("'UTF8'::name", "'LATIN1'::name"),
            ("'LATIN1'::name", "'UTF8'::name"),
            ("'postgres'::name", "'pg_class'::name"),
        ],
    ),
    ("timestamp with time zone", &[("'2020-01-02 03:04:05+06'::timestamptz", "ts"), ("now()", "now()")]),
    ("timestamp without time zone", &[("'2020-01-02 03:04:05'::timestamp", "ts::timestamp")]),
    ("date", &[("'2020-01-02'::date", "ts::date")]),
    ("interval", &[("'1 mon 2 days 03:00'::interval", "n * '1 day'::interval")]),
    (
        "jsonb",
        &[
            ("'{\"a\": \"2020-01-02\"}'::jsonb", "js"),
            ("'[\"a\"]'::jsonb", "'[\"string\"]'::jsonb"),
            ("'{}'::jsonb", "'{}'::jsonb"),
        ],
    ),
    ("json", &[("'{\"n\": 1}'::json", "'{\"n\": 2}'::json")]),
    (
        "jsonpath",
        &[
            ("'$.a.datetime() < \"2020-01-03 00:00:00+01\".datetime()'::jsonpath", "'$.a'::jsonpath"),
            ("'$.a.datetime()'::jsonpath", "'$.a'::jsonpath"),
        ],
    ),
    ("integer", &[("1", "n"), ("2020", "2020"), ("-1", "-1"), ("6", "12")]),
    ("double precision", &[("1.5::float8", "n::float8"), ("0.1::float8 + 0.2", "n / 3.0::float8")]),
    ("integer[]", &[("array[2]", "array[n]")]),
    ("character", &[("U&'\\00e4'::bpchar", "tx::bpchar")]),
    ("boolean", &[("true", "n > 2")]),
    ("bytea", &[("'\\x00c3'::bytea", "by"), ("'\\x61'::bytea", "'\\xc3a4'::bytea")]),
];

/// Calls of functions that need other values than those above: one with constants, one with columns.
const CALLS: &[(&str, &str, &str)] = &[
    (
        "json_build_object(any)",
        "json_build_object('k', 'a'::public.en, 'r', 'public.named'::regclass)",
        "json_build_object('k', ts, 'r', r)",
    ),
    (
        "jsonb_build_object(any)",
        "jsonb_build_object('k', 'a'::public.en, 'r', 'public.named'::regclass)",
        "jsonb_build_object('k', ts, 'r', r)",
    ),
    (
        "date_trunc(text,timestamp with time zone,text)",
        "date_trunc('day', now(), 'Asia/Kolkata')",
        "date_trunc('day', ts, 'UTC')",
    ),
    (
        "make_timestamptz(integer,integer,integer,integer,integer,double precision,text)",
        "make_timestamptz(2020, 1, 2, 3, 4, 5.5, 'Asia/Kolkata')",
        "make_timestamptz(2020, n, 2, 3, 4, 5.5, 'Australia/Eucla')",
    ),
    (
        "make_timestamptz(integer,integer,integer,integer,integer,double precision)",
        "make_timestamptz(2020, 1, 2, 3, 4, 5.5)",
        "make_timestamptz(2020, n, 2, 3, 4, 5.5)",
    ),
    ("to_number(text,text)", "to_number('12,454.8-', '99G999D9S')", "to_number(n::text, '9L')"),
    (
        "ts_headline(text,tsquery,text)",
        "ts_headline('the fat cats', 'cat', 'MaxWords=3, MinWords=1')",
        "ts_headline(tx, 'cat', 'MaxFragments=1')",
    ),
    ("current_schema()", "current_schema()", "current_schema()"),
];

/// Functions that no expression can call successfully, and why.
const NOT_COVERED: &[(&str, &str)] = &[
    ("any_out(any)", "always raises an error"),
    ("anycompatible_out(anycompatible)", "always raises an error"),
    ("anycompatiblenonarray_out(anycompatiblenonarray)", "always raises an error"),
    ("anyelement_out(anyelement)", "always raises an error"),
    ("anynonarray_out(anynonarray)", "always raises an error"),
    ("multirange_intersect_agg_transfn(anymultirange,anymultirange)", "only within an aggregate"),
    ("range_intersect_agg_transfn(anyrange,anyrange)", "only within an aggregate"),
];

/// Expressions other than function calls.  `true`: must be accepted and give the same everywhere; `false`:
/// computed in each region they would differ, so the rows have to travel.
const EXPRESSIONS: &[(&str, bool)] = &[
    ("current_date", true),
    ("current_time", true),
    ("current_time(0)", true),
    ("current_timestamp", true),
    ("current_timestamp(0)", true),
    ("localtime", true),
    ("localtime(0)", true),
    ("localtimestamp", true),
    ("localtimestamp(0)", true),
    ("current_role", true),
    ("current_user", true),
    ("user", true),
    ("session_user", false),
    ("current_catalog", true),
    ("current_schema", false),
    ("'now'::text::timestamptz", true),
    ("now()::text", true),
    ("array[now()]::text[]", true),
    ("xmlserialize(content xmlelement(name a, '\\x00c3'::bytea, now()) as text)", true),
    ("xmlforest(now() as a, 'a'::public.en as b)", true),
    ("xmlconcat('<a/>'::text::xml, '<b/>')", true),
    ("row(now(), 'public.named'::regclass)::text", true),
    ("case when now() > '2000-01-01'::timestamptz then to_char(now(), 'TMMonth') end", true),
    ("coalesce(null, now())", true),
    ("greatest(now(), '2000-01-01')", true),
    ("'public.named'::regclass", true),
    ("'public.named'::regclass::text", true),
    ("array['public.named'::regclass, 'public.named_too']", true),
    ("current_setting('timezone')", true),
    ("'public.named'::regclass::oid", false),
    ("'public.named'::regclass::bigint", false),
    ("'{public.named}'::regclass[]::oid[]", false),
    ("'public.named'::regclass < 'public.named_too'::regclass", false),
    ("greatest('public.named'::regclass, 'public.named_too')", false),
    ("array['public.named'::regclass] < array['public.named_too'::regclass]", false),
    ("('public.named'::regclass, 1) < ('public.named_too'::regclass, 2)", false),
    ("'(a,public.named,1)'::public.comp *< '(b,public.named,2)'::public.comp", false),
    ("('public.named'::regclass = any (array['public.named_too'::regclass]))", false),
    ("('16' || '385')::regtype", false),
    ("nullif('a'::public.en, 'b')", true),
    ("'a'::public.en < 'b'::public.en", true),
    ("'(a,public.named,1)'::public.comp", true),
    ("('(a,public.named,1)'::public.comp).r", true),
];
/// The same with columns, for ALTER COLUMN TYPE ... USING.
const WITH_COLUMNS: &[(&str, bool)] = &[
    ("tableoid::regclass", false),
    ("ctid::text", false),
    ("xmin::text", false),
    ("r::oid", false),
    ("r::bigint", false),
    ("ra::oid[]", false),
    ("(c).r::oid::text", false),
    ("least(r, 'public.named')", false),
    ("r::text", true),
    ("ra::text", true),
    ("c::text", true),
    ("ts::text", true),
    ("e::text", true),
    ("ea::text", true),
    ("(c).e", true),
    ("tx::regtype", false),
    ("array_append(ea, e)", true),
    ("ts::date", true),
];

async fn rows(client: &Client, query: &str) -> Result<Vec<Vec<String>>, tokio_postgres::Error> {
    let mut rows = Vec::new();
    for message in bounded(query, client.simple_query(query)).await? {
        if let SimpleQueryMessage::Row(row) = message {
            let cell = |i| row.try_get(i).map(|cell: Option<&str>| cell.unwrap_or("null").to_string());
            rows.push((0..row.len()).map(cell).collect::<Result<_, _>>()?);
        }
    }
    Ok(rows)
}

fn quoted(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// An expression without columns, and one with them; the type of a column that can store their value.
type Call = (Option<String>, Option<String>, String);

/// A function or another kind of expression, and calls of it.
struct Subject {
    name: String,
    immutable: bool,
    calls: Vec<Call>,
    must_be_alike: Option<bool>,
}

#[derive(Default)]
struct Seen {
    alike: BTreeSet<String>,
    refused: BTreeSet<String>,
    /// Subjects that failed in another way, with the error.
    failed: BTreeMap<String, String>,
    differs: Vec<String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn what_a_statement_computes_in_every_region_is_alike_or_refused() {
    let lab = start("elsewhere", "each stable function in a default and in USING: the same everywhere, or 0A000").await;
    let home = prepare(&lab).await;
    let catalog = Catalog::read(&home).await.unwrap_or_else(|e| panic!("{e:#}"));
    home.must("set search_path = pg_temp, \"$user\", public").await;

    let mut subjects = functions(&home, &catalog).await;
    let functions: BTreeSet<String> = subjects.iter().map(|s| s.name.clone()).collect();
    subjects.extend(settings(&home).await);
    subjects.extend(casts(&home, &catalog).await);
    subjects.extend(expressions(&home).await);

    let mut seen = Seen::default();
    for (number, batch) in subjects.chunks(25).enumerate() {
        try_batch(&lab, &home, number, batch, &mut seen).await;
    }
    // With a `search_path` in which the session's own temporary schema does not come first.
    home.must(
        "set search_path = tester, public; alter table public.like_this add column s name default current_schema",
    )
    .await;
    lab.shows("select string_agg(s, ' ') from public.like_this", "tester tester").await;
    after_an_error_within_a_function(&lab, &home).await;
    report(&subjects, &functions, &seen);
}

/// `xml_is_well_formed` catches an error but leaves ErrorContext as the current memory context, and the next error
/// resets whatever is allocated there.
async fn after_an_error_within_a_function(lab: &Lab, home: &Session) {
    home.must("begin").await;
    for i in 0..3 {
        home.must(&format!("alter table public.like_this add column w{i} boolean default xml_is_well_formed('<')"))
            .await;
        home.must("alter table public.like_this alter column n type int using n + xml_is_well_formed(tx)::int").await;
    }
    home.must("commit").await;
    home.must(
        "do $$ begin
             for i in 3..5 loop
                 execute format('alter table public.like_this add column w%s boolean default xml_is_well_formed(''<'')', i);
                 begin perform 1 / 0; exception when division_by_zero then null; end;
             end loop;
         end $$",
    )
    .await;
    lab.shows("select string_agg(w0::text || w2, ' ') || count(*) from public.like_this", "falsefalse falsefalse2")
        .await;
    // The list of children is allocated between one such default and the next.
    home.must(
        "create table public.tree (id int) partition by list (id);
         do $$ begin
             for i in 1..9 loop execute format('create table public.tree_%s partition of public.tree for values in (%s)', i, i); end loop;
         end $$;
         alter table public.tree add column w boolean default xml_is_well_formed_content('<a>' || current_date),
             add column x boolean default xml_is_well_formed_content('<b>' || current_date)",
    )
    .await;
    lab.shows(
        "select count(*) from pg_attribute where attrelid::regclass::text ~ '^tree' and attname in ('w', 'x')",
        "20",
    )
    .await;
    home.must("drop table public.tree").await;
}

/// Makes the servers differ in their OIDs, and in settings that an operator may choose for each server.
async fn prepare(lab: &Lab) -> Session {
    for (region, session) in lab.sessions().await.iter().enumerate() {
        for (setting, values) in OWN {
            session.must(&format!("alter system set {setting} = '{}'", values[region])).await;
        }
        session.must("select pg_reload_conf()").await;
        for _ in 0..region * 40 {
            session.must("create temp table burnt (id int); drop table burnt").await;
        }
    }
    lab.session(1).await.must(OBJECTS).await;
    lab.everywhere().await;
    let home = lab.session(1).await;
    home.must(
        "set role tester; set client_encoding = 'LATIN1'; set lc_time = 'C.UTF-8'; set quote_all_identifiers = on;
         set my.own = 'x'; create temp table something (id int); set xmloption = 'document'",
    )
    .await;
    home.must(&format!("insert into public.like_this {ROWS}")).await;
    home
}

/// The type of an expression, and whether it is NULL; an error if it cannot be evaluated.
async fn type_of(home: &Session, expression: &str) -> Result<(String, bool), String> {
    let query = format!(
        "select pg_typeof(x), x is null from (select {expression} as x from public.like_this order by id limit 1) s"
    );
    let rows = rows(home, &query).await.map_err(|e| told(&e))?;
    let row = rows.first().ok_or("no row")?;
    Ok((row[0].clone(), row[1] == "t"))
}

/// A call, and whether it gives NULL; a value of a pseudo-type is cast to text.  None if it cannot be evaluated.
async fn call(
    home: &Session,
    constant: Option<String>,
    column: Option<String>,
) -> Option<(Option<String>, Option<String>, String, bool)> {
    let any = column.as_ref().or(constant.as_ref())?;
    let (found, null) = type_of(home, any).await.ok()?;
    let pseudo = ["cstring", "record", "unknown", "void", "record[]", "trigger", "pg_node_tree"]
        .contains(&found.replace('"', "").as_str());
    let cast = |e: Option<String>| e.map(|e| if pseudo { format!("({e})::text") } else { e });
    Some((cast(constant), cast(column), if pseudo { "text".into() } else { found }, null))
}

async fn functions(home: &Session, catalog: &Catalog) -> Vec<Subject> {
    let query = "
        select p.oid::regprocedure, quote_ident(p.proname), p.provolatile,
               coalesce((select string_agg(format_type(a, null), ';' order by n) from unnest(p.proargtypes) with ordinality u(a, n)), '')
        from pg_proc p
        where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f' and not p.proretset
            and not 'internal'::regtype = any (p.proargtypes)
            and not p.prorettype = any ('{internal,trigger,event_trigger,void,fdw_handler,index_am_handler,table_am_handler,tsm_handler,language_handler}'::regtype[])
            and not exists (select from unnest(p.proargtypes) a join pg_type t on t.oid = a
                            where t.typtype = 'p' and t.typname !~ '^(any.*|record|cstring)$')
            and (p.provolatile = 's' or (p.provolatile = 'i' and (p.proname ~ 'send$' or exists (
                select from unnest(p.proargtypes) a join pg_type t on t.oid = a
                where t.typtype = 'p' and t.typname <> 'cstring' or t.typname ~ '^reg' or t.typname in ('oid', 'aclitem', 'oidvector')))))
        order by p.provolatile desc, p.proname, 1";
    let mut subjects = Vec::new();
    for row in rows(home, query).await.unwrap() {
        let [name, function, volatility, types] = &row[..] else { unreachable!("four columns") };
        let types: Vec<&str> = if types.is_empty() { Vec::new() } else { types.split(';').collect() };
        let choices: Vec<Vec<(String, String)>> = types.iter().map(|t| values_of(catalog, t)).collect();
        let name = name.replace('"', "");
        let mut calls = Vec::new();
        let mut untried = None;
        for (_, constant, column) in CALLS.iter().filter(|(function, _, _)| *function == name) {
            let written = (Some(constant.to_string()), Some(column.to_string()));
            let (constant, column, kind, _) =
                call(home, written.0, written.1).await.unwrap_or_else(|| panic!("{column} fails"));
            calls.push((constant, column, kind));
        }
        for at in 0..60_usize {
            if calls.len() >= 2 {
                break;
            }
            let mut rest = at;
            // All values of the first argument in turn, each with varying values of the others.
            let picked: Vec<&(String, String)> = choices
                .iter()
                .enumerate()
                .filter_map(|(i, choice)| {
                    let pick = if i == 0 {
                        rest % choice.len().max(1)
                    } else {
                        (rest / choices[0].len().max(1) + i * at / 7) % choice.len().max(1)
                    };
                    rest = rest.wrapping_add(i);
                    choice.get(pick)
                })
                .collect();
            if picked.len() < types.len() {
                break;
            }
            let write = |column: bool| {
                let args: Vec<&str> = picked.iter().map(|(a, b)| if column { &**b } else { &**a }).collect();
                format!("pg_catalog.{function}({})", args.join(", "))
            };
            let (constant, column) = (write(false), write(true));
            if untried.is_none() {
                untried =
                    Some((Some(format!("({constant})::text")), Some(format!("({column})::text")), "text".to_string()));
            }
            for (constant, column) in [(Some(constant), None), (None, Some(column))] {
                if let Some((constant, column, kind, null)) = call(home, constant, column).await {
                    if !null {
                        calls.push((constant, column, kind));
                    }
                }
            }
            if types.is_empty() {
                break;
            }
        }
        // A call that cannot be evaluated may still be refused before it is evaluated.
        calls.extend(if calls.is_empty() { untried } else { None });
        subjects.push(Subject { name, immutable: volatility == "i", calls, must_be_alike: None });
    }
    subjects
}

fn values_of(catalog: &Catalog, name: &str) -> Vec<(String, String)> {
    let name = name.trim_matches('"');
    if let Some((_, values)) = ARGUMENTS.iter().find(|(t, _)| *t == name) {
        return values.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
    }
    let Some(written) = catalog.types.keys().find(|t| t.trim_matches('"') == name) else { return Vec::new() };
    let inputs = &catalog.types[written].inputs;
    let write = |input: &String| format!("{}::{written}", quoted(input));
    match inputs.is_empty() {
        true => vec![(format!("null::{written}"), format!("null::{written}"))],
        false => inputs.iter().rev().take(6).map(|input| (write(input), write(input))).collect(),
    }
}

async fn settings(home: &Session) -> Vec<Subject> {
    let names = rows(home, "select name from pg_settings union select 'my.own' order by 1").await.unwrap();
    let call = |name: &str| (Some(format!("current_setting({})", quoted(name))), None, "text".to_string());
    names
        .iter()
        .map(|row| Subject {
            name: format!("setting {}", row[0]),
            immutable: false,
            calls: vec![call(&row[0])],
            must_be_alike: None,
        })
        .collect()
}

/// To text and back, by the input and output functions of each type.
async fn casts(home: &Session, catalog: &Catalog) -> Vec<Subject> {
    let mut subjects = Vec::new();
    for (name, t) in &catalog.types {
        let mut calls = Vec::new();
        for input in t.inputs.iter().rev().take(2) {
            for expression in
                [format!("({}::{name})::text", quoted(input)), format!("({}::text)::{name}", quoted(input))]
            {
                if let Some((constant, column, kind, false)) = call(home, Some(expression), None).await {
                    calls.push((constant, column, kind));
                }
            }
        }
        subjects.push(Subject { name: format!("cast of {name}"), immutable: false, calls, must_be_alike: None });
    }
    subjects
}

async fn expressions(home: &Session) -> Vec<Subject> {
    let mut subjects = Vec::new();
    for (list, columns) in [(EXPRESSIONS, false), (WITH_COLUMNS, true)] {
        for (expression, alike) in list {
            let written = Some(expression.to_string());
            let (constant, column) = if columns { (None, written) } else { (written, None) };
            let (constant, column, kind, _) = match call(home, constant.clone(), column.clone()).await {
                Some(call) => call,
                None => (constant, column, "text".to_string(), false),
            };
            let name = format!("expression {expression}");
            subjects.push(Subject {
                name,
                immutable: false,
                calls: vec![(constant, column, kind)],
                must_be_alike: Some(*alike),
            });
        }
    }
    subjects
}

/// Runs all calls of a batch in one transaction, and compares their results in the regions.
async fn try_batch(lab: &Lab, home: &Session, number: usize, batch: &[Subject], seen: &mut Seen) {
    let table = format!("public.batch_{number}");
    let calls: Vec<(&Subject, &Call)> =
        batch.iter().flat_map(|subject| subject.calls.iter().map(move |call| (subject, call))).collect();
    let spare: String = (0..calls.len()).map(|i| format!(", u{i} text")).collect();
    home.must(&format!("create table {table} (like public.like_this{spare}, primary key (id))")).await;
    home.must(&format!("insert into {table} {ROWS}")).await;
    home.must("begin").await;
    let mut made = Vec::new();
    for (i, (subject, (constant, column, kind))) in calls.iter().enumerate() {
        let mut statements = Vec::new();
        if let Some(constant) = constant {
            statements.push((format!("a{i}"), constant, format!("add column a{i} {kind} default {constant}")));
        }
        if let Some(column) = column {
            statements.push((format!("u{i}"), column, format!("alter column u{i} type {kind} using {column}")));
            if subject.immutable {
                statements.push((
                    format!("g{i}"),
                    column,
                    format!("add column g{i} {kind} generated always as ({column}) stored"),
                ));
            }
        }
        for (result, expression, change) in statements {
            home.must("savepoint s").await;
            let Err(error) = home.run(&format!("alter table {table} {change}")).await else {
                home.must("release s").await;
                made.push((subject.name.clone(), result, expression.clone()));
                continue;
            };
            home.must("rollback to s").await;
            let refused = error.as_db_error().is_some_and(|db| {
                db.code().code() == "0A000" && db.message().starts_with("cannot replicate ") && db.hint().is_some()
            });
            match refused {
                true => drop(seen.refused.insert(subject.name.clone())),
                false => drop(seen.failed.insert(subject.name.clone(), format!("{change}: {}", told(&error)))),
            }
        }
    }
    if let Err(error) = home.run("commit").await {
        panic!("{table} {:?}: {}", made.iter().map(|(_, _, e)| e).collect::<Vec<_>>(), told(&error));
    }
    if made.is_empty() {
        return;
    }
    lab.everywhere().await;
    let columns: Vec<String> = made.iter().map(|(_, column, _)| format!("{column}::text")).collect();
    let query = format!("select {} from {table} order by id", columns.join(", "));
    let mut answers = Vec::new();
    for session in lab.sessions().await {
        session.must(SAME).await;
        answers.push(rows(&session, &query).await.unwrap_or_else(|e| panic!("{query}: {}", told(&e))));
    }
    for (i, (name, _, expression)) in made.iter().enumerate() {
        let of = |region: usize| answers[region].iter().map(|row| row[i].clone()).collect::<Vec<_>>();
        match of(0) == of(1) && of(1) == of(2) {
            true => drop(seen.alike.insert(name.clone())),
            false => seen.differs.push(format!("{name}: {expression}: {:?}", [of(0), of(1), of(2)])),
        }
    }
}

fn report(subjects: &[Subject], functions: &BTreeSet<String>, seen: &Seen) {
    let covered = |name: &String| seen.alike.contains(name) || seen.refused.contains(name);
    let count = |set: &BTreeSet<String>| set.iter().filter(|name| functions.contains(*name)).count();
    let uncovered: Vec<&String> = functions.iter().filter(|name| !covered(name)).collect();
    println!(
        "elsewhere: of {} functions {} are alike, {} refused, {} not covered; {} subjects in all",
        functions.len(),
        count(&seen.alike),
        count(&seen.refused),
        uncovered.len(),
        subjects.len()
    );
    let listed = |name: &String| NOT_COVERED.iter().any(|(listed, _)| listed == name);
    let mut wrong: Vec<String> = seen.differs.clone();
    for name in &uncovered {
        // What fails in its own region leaves nothing to compare.
        if !listed(name) && !seen.failed.contains_key(*name) {
            wrong.push(format!("{name} is not covered: no call"));
        }
    }
    for (name, _) in NOT_COVERED {
        if functions.contains(*name) && covered(&name.to_string()) {
            wrong.push(format!("{name} is covered, and listed as not covered"));
        }
    }
    for subject in subjects {
        let (alike, refused) = (seen.alike.contains(&subject.name), seen.refused.contains(&subject.name));
        match subject.must_be_alike {
            Some(true) if !alike || refused => {
                wrong.push(format!("{} is not taken: {:?}", subject.name, seen.failed.get(&subject.name)))
            }
            Some(false) if !alike && !refused && !seen.failed.contains_key(&subject.name) => {
                wrong.push(format!("{} was not tried", subject.name))
            }
            _ => {}
        }
    }
    println!("elsewhere: alike: {:?}", seen.alike);
    assert!(wrong.is_empty(), "{} findings:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count(&seen.alike) > 600, "the test has lost its calls");
}
