//! `onetrip check` reports equal regions as equal, and names what differs where they are not.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::lab::{start, Lab};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_a_row_changed_behind_its_back() {
    let lab = start("check_finds", "equal is equal; a row changed in one region's files is found and named").await;
    lab.session(1)
        .await
        .must("create table t (id int primary key, v text); create table s (a int, b text, primary key (b, a)); create table bag (x int)")
        .await;
    lab.everywhere().await;
    for region in 0..3 {
        let rows = format!(
            "insert into t select g * 3 + {region}, 'v' || g from generate_series(1, 1000) g;
             insert into s select g, 'k' || {region} from generate_series(1, 10) g; insert into bag values ({region}), ({region})"
        );
        lab.session(region).await.must(&rows).await;
    }
    lab.check_equal(3).await;
    let (code, output) = lab.check(&[]).await;
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("equal"), "{output}");

    behind_its_back(&lab, 1, "update t set v = 'tampered' where id = 1501").await;
    names_it(&lab, &["public.t", "b", "1501", "tampered"], "public.t").await;
    behind_its_back(&lab, 1, "update t set v = 'v500' where id = 1501").await;
    lab.check_equal(3).await;

    behind_its_back(&lab, 2, "delete from s where a = 7 and b = 'k1'").await;
    names_it(&lab, &["public.s", "c", "k1", "7", "no such row"], "public.s").await;
    behind_its_back(&lab, 2, "insert into s values (7, 'k1')").await;
    lab.check_equal(3).await;

    calls_no_function_of_a_users(&lab).await;
    refuses_an_extension_that_is_not_updated(&lab).await;

    behind_its_back(&lab, 0, "update bag set x = 99 where ctid = (select min(ctid) from bag)").await;
    names_it(&lab, &["public.bag", "a", "(0)", "no such row"], "public.bag").await;
}

/// A plan would call the function of the index with the superuser's rights, in order to simplify its expression; and a
/// cast would call that of the type's owner.
async fn calls_no_function_of_a_users(lab: &Lab) {
    let springs = "returns text language plpgsql immutable \
         as $$ begin raise log 'trap as %', current_user; return 'sprung'; end $$";
    let trap = format!(
        "create role trapper; create schema trap authorization trapper; set role trapper;
         create function trap.f(int) returns int language plpgsql immutable
             as $$ begin raise log 'trap as %', current_user; return $1; end $$;
         create table trap.t (id int primary key, v int); insert into trap.t values (1, 1);
         create index on trap.t ((v + trap.f(1)));
         create type trap.label as enum ('x'); create type trap.pair as (a int, b text);
         create table trap.k (label trap.label, pair trap.pair, v int, primary key (label, pair));
         insert into trap.k values ('x', (1, null), 1);
         create function trap.f(trap.label) {springs}; create cast (trap.label as text) with function trap.f(trap.label);
         create function trap.f(trap.pair) {springs}; create cast (trap.pair as text) with function trap.f(trap.pair);
         create function trap.f(trap.k) {springs}; create cast (trap.k as text) with function trap.f(trap.k);
         reset role"
    );
    lab.session(1).await.must(&trap).await;
    lab.everywhere().await;
    let sprung = || {
        let log = |node: &onetrip_lab::Node| std::fs::read(node.folder().join("postgres.log")).unwrap();
        let logs: Vec<u8> = lab.nodes().iter().flat_map(log).collect();
        String::from_utf8_lossy(&logs).matches("trap as postgres").count()
    };
    let before = sprung();
    behind_its_back(lab, 0, "update trap.t set v = 2").await;
    names_it(lab, &["trap.t", "(1,2)"], "trap.t").await;
    all_behind_its_back(lab, 0, &["update trap.t set v = 1", "update trap.k set v = 2"]).await;
    names_it(lab, &["trap.k", "(label, pair) = (x, (1,))", r#"(x,"(1,)",2)"#], "trap.k").await;
    assert_eq!(sprung(), before, "onetrip check called a user's function as superuser");
    let mut session = before;
    for query in [
        "select count(*) from trap.t where v + trap.f(1) > 0",
        "select label::text from trap.k",
        "select pair::text from trap.k",
        "select k::text from trap.k",
    ] {
        lab.session(0).await.must(query).await;
        let now = sprung();
        assert!(now > session, "the trap works: {query}");
        session = now;
    }
    behind_its_back(lab, 0, "update trap.k set v = 1").await;
    lab.check_equal(5).await;
}

/// Goal: where `onetrip.rows_of()` is missing, as before `ALTER EXTENSION onetrip UPDATE`, nothing is compared by
/// plans.  Method: hide the function from one server.
async fn refuses_an_extension_that_is_not_updated(lab: &Lab) {
    let c = lab.session(2).await;
    c.must("update pg_proc set proname = 'hidden' where oid = 'onetrip.rows_of'::regproc").await;
    let (code, output) = lab.check(&[]).await;
    assert!(code == Some(1) && output.contains("extension of c") && output.contains("ALTER EXTENSION"), "{output}");
    c.must("update pg_proc set proname = 'rows_of' where oid = 'onetrip.hidden'::regproc").await;
    lab.check_equal(5).await;
}

/// Goal: every region gets the version of an extension, and of those it requires, that the creating region has; `check`
/// tells which region has another one, or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_an_extension_of_another_version() {
    let lab = start("check_extensions", "extensions are of one version everywhere, or check names the regions").await;
    lab.session(1).await.must("create extension earthdistance cascade; create extension citext version '1.5'").await;
    lab.everywhere().await;
    lab.session(2).await.must("alter extension citext update").await;
    lab.check_equal(0).await;
    let installed =
        "select string_agg(extname || coalesce(nullif(extversion, default_version), ''), ' ' order by extname)
                     from pg_extension join pg_available_extensions on name = extname";
    lab.shows(installed, "citext cube earthdistance onetrip plpgsql").await;

    behind_its_back(&lab, 1, "drop extension citext; create extension citext version '1.5'").await;
    behind_its_back(&lab, 2, "drop extension earthdistance").await;
    let (code, output) = lab.check(&[]).await;
    assert_eq!(code, Some(1), "{output}");
    let (citext, earthdistance) =
        output.split_once("\nextension citext\n").expect(&output).1.split_once("extension").unwrap();
    assert!(output.starts_with("different") && citext.contains("  b: version 1.5\n"), "{output}");
    assert!(citext.contains("  a: version") && !citext.contains("  a: version 1.5"), "{output}");
    assert!(earthdistance.contains("  b: version") && earthdistance.contains("  c: not installed"), "{output}");
    let (code, output) = lab.check(&["--json"]).await;
    assert_eq!(code, Some(1), "{output}");
    let report: serde_json::Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!((&report["equal"], &report["different"]), (&false.into(), &serde_json::json!([])), "{output}");
    assert_eq!(report["extensions"][0]["versions"][1], "1.5", "{output}");
    assert_eq!(report["extensions"][1]["versions"][2], serde_json::Value::Null, "{output}");
}

/// One of each kind of object that PostgreSQL has.  The three regions create them in turn.
const RICH: &[&str] = &[
    "create role owner_of_all; create role reader login password 'secret' connection limit 7 valid until '2030-01-01'",
    "create role group_role; grant group_role to reader with admin option; alter role reader set work_mem = '8MB'",
    "alter role reader in database onetrip set statement_timeout = '1h'; alter database onetrip set application_name = 'all'",
    "grant set on parameter log_min_duration_statement to reader; grant connect on database onetrip to reader",
    "create schema rich; create schema \"Odd, one\"; grant usage on schema rich to reader; create extension hstore; create extension citext",
    "create type rich.mood as enum ('sad', 'ok', 'happy'); alter type rich.mood add value 'fine' before 'happy'",
    "create domain rich.positive as int default 1 check (value > 0); create type rich.floats as range (subtype = float8)",
    "create type rich.pair as (a int, b rich.mood[]); grant usage on type rich.mood to reader",
    "create function rich.add(a int, b int default 2) returns int language sql immutable as 'select a + b'",
    "create function rich.body(a int) returns int begin atomic select rich.add(a, 1); end",
    "create procedure rich.nothing() language plpgsql as 'begin end' ; create function rich.lonely() returns int language sql as 'select 1'",
    "create aggregate rich.total(int) (sfunc = int4pl, stype = int, initcond = '0')",
    "create table rich.t (id int generated by default as identity primary key, v varchar(10) default 'x' not null,
        w text compression pglz collate \"C\", g int generated always as (id * 2) stored, m rich.mood, p rich.positive,
        gone int, constraint w_check check (length(w) < 100)) with (fillfactor = 70, toast.autovacuum_enabled = off)",
    "alter table rich.t alter w set storage main; alter table rich.t drop column gone; alter table rich.t add column later int default 7; alter table rich.t alter v set statistics 33",
    "alter table rich.t add constraint late check (id > 0) not valid; create table rich.child (c int) inherits (rich.t)",
    "create table rich.refers (id int primary key, t int references rich.t on delete cascade, e int, exclude using btree (e with =))",
    "create index t_v on rich.t (lower(v)) where id > 3; create unique index t_m on rich.t (id, v) include (w); alter table rich.t cluster on t_m",
    "create table rich.plain (a int not null, b int); create unique index plain_a on rich.plain (a); alter table rich.plain replica identity using index plain_a",
    "create table rich.parts (k int, at date, primary key (k, at)) partition by range (at)",
    "create table rich.part_1 partition of rich.parts for values from ('2026-01-01') to ('2026-02-01'); create table rich.part_rest partition of rich.parts default",
    "create sequence rich.s start 5 increment 3 maxvalue 100000 cache 2 cycle; create sequence rich.own owned by rich.plain.b; select nextval('rich.s')",
    "create view rich.v with (security_barrier) as select t.id, rich.add(t.id) as more from rich.t; grant select (id) on rich.v to reader",
    "insert into rich.t (v) values ('a'), ('b'); create materialized view rich.mv as select id, v from rich.t; create unique index on rich.mv (id)",
    "create materialized view rich.empty as select 1 as one with no data; create rule noted as on insert to rich.plain do also notify plain",
    "create function rich.fires() returns trigger language plpgsql as 'begin return new; end'",
    "create trigger before_t before insert or update of v on rich.t for each row when (new.id > 5) execute function rich.fires()",
    "create trigger of_parts after insert on rich.parts for each row execute function rich.fires(); alter table rich.t enable replica trigger before_t",
    "create function rich.on_ddl() returns event_trigger language plpgsql as 'begin end'; create event trigger ddl on ddl_command_end when tag in ('CREATE CAST') execute function rich.on_ddl()",
    "alter table rich.plain enable row level security; create policy mine on rich.plain to reader using (a in (select id from rich.t)) with check (b > 0)",
    "create function rich.first(rich.pair) returns int language sql immutable as 'select ($1).a'; create cast (rich.pair as int) with function rich.first as assignment",
    "create function rich.equal(rich.pair, rich.pair) returns boolean language sql immutable as 'select ($1).a = ($2).a'",
    "create operator rich.=== (leftarg = rich.pair, rightarg = rich.pair, function = rich.equal, commutator = operator(rich.===), restrict = eqsel)",
    "create operator family rich.family using btree; create operator class rich.class for type rich.pair using hash as operator 1 rich.===",
    "create collation rich.german (provider = icu, locale = 'de'); create conversion rich.latin for 'LATIN1' to 'UTF8' from iso8859_1_to_utf8",
    "create text search dictionary rich.dict (template = simple, accept = false); create text search configuration rich.config (copy = simple)",
    "alter text search configuration rich.config alter mapping for word with rich.dict; create text search parser rich.parser (start = prsd_start, gettoken = prsd_nexttoken, end = prsd_end, lextypes = prsd_lextype)",
    "create text search template rich.template (lexize = dsimple_lexize); create access method other type index handler hashhandler",
    "create foreign data wrapper wrapper options (a 'b'); create server there foreign data wrapper wrapper options (host 'h')",
    "create user mapping for reader server there options (password 'hidden'); create foreign table rich.far (a int options (x 'y')) server there options (q 'r')",
    "create language other handler plpgsql_call_handler; create transform for rich.pair language sql (from sql with function prsd_lextype(internal))",
    "create statistics rich.stats (dependencies) on id, v from rich.t; comment on table rich.t is 'a table'; comment on column rich.t.v is 'a column'; comment on role reader is 'a role'",
    "alter default privileges in schema rich grant select on tables to reader; grant select on rich.t to reader with grant option; grant update (v) on rich.t to reader",
    "alter table rich.refers owner to owner_of_all; create unlogged table rich.quick (a int); create table rich.heap (a int) using heap",
    "grant execute on function rich.lonely() to reader; alter function rich.lonely() set work_mem = '1MB' cost 5 stable parallel safe",
    "create table \"Odd, one\".\"T.(1)\" (\"A b\" int primary key, n numeric, f float8, i interval, j jsonb, r regclass, c rich.pair, cs rich.pair[], h hstore)",
    "insert into \"Odd, one\".\"T.(1)\" values (1, 1.00, '-0', '24 hours', '{\"a\":1}', 'rich.t', '(1,\"{sad}\")', array[row(2, null)::rich.pair], 'a=>1')",
    "create table rich.like_t (like rich.t including all); alter table rich.like_t rename column w to ww; alter sequence rich.s restart with 50",
    // A dropped column leaves references to objects that do not exist any more.
    "create role gone; create collation rich.gone from \"C\"; create table rich.dropped (id int primary key, c text collate rich.gone)",
    "grant update (c) on rich.dropped to gone; alter table rich.dropped drop column c; drop collation rich.gone; drop role gone",
    "create publication everywhere; create publication alike for table rich.plain (a) where (a > 7)",
    "select lo_from_bytea(8000, 'large'); grant select on large object 8000 to reader; comment on large object 8000 is 'large'",
];

/// Made while the server runs, since a server that starts puts its shares of sequences right.  It stays in its region:
/// changes of catalogs do not travel.
const LIVE: &str = "update pg_sequence set seqstart = seqstart + 1 where seqrelid = 'rich.own'::regclass";

/// Members of the publication `everywhere`, written into the catalogs of one region.
const PUBLISHED: &str =
    "insert into pg_publication_rel (oid, prpubid, prrelid) select 90002, oid, 'rich.refers'::regclass from pg_publication where pubname = 'everywhere';
    insert into pg_publication_namespace (oid, pnpubid, pnnspid) select 90003, oid, 'rich'::regnamespace from pg_publication where pubname = 'everywhere'";

/// Changes made in one region only, and what `onetrip check` must report: catalog, object, and column (empty: the
/// object is missing somewhere).
const CHANGES: &[(&str, &str, &str, &str)] = &[
    ("alter table rich.t alter v set default 'y'", "pg_attrdef", "default (rich.t, 2)", "adbin"),
    ("alter table rich.like_t alter v type varchar(20)", "pg_attribute", "column v (rich.like_t)", "atttypmod"),
    ("alter table rich.t alter v set statistics 34", "pg_attribute", "column v (rich.t)", "attstattarget"),
    ("alter table rich.t alter w set storage external", "pg_attribute", "column w (rich.t)", "attstorage"),
    ("alter table rich.t alter w set compression default", "pg_attribute", "column w (rich.t)", "attcompression"),
    ("alter table rich.t alter id set generated always", "pg_attribute", "column id (rich.t)", "attidentity"),
    ("alter table rich.t alter g drop expression", "pg_attribute", "column g (rich.t)", "attgenerated"),
    ("alter table rich.child alter c set not null", "pg_attribute", "column c (rich.child)", "attnotnull"),
    ("revoke update (v) on rich.t from reader", "pg_attribute", "column v (rich.t)", "attacl"),
    ("alter table rich.t validate constraint late", "pg_constraint", "constraint late (rich.t)", "convalidated"),
    ("alter table rich.like_t drop constraint w_check", "pg_constraint", "constraint w_check (rich.like_t)", ""),
    ("alter table rich.plain add constraint extra check (b > 1)", "pg_constraint", "constraint extra (rich.plain)", ""),
    ("drop index rich.like_t_id_v_w_idx", "pg_class", "index rich.like_t_id_v_w_idx", ""),
    ("update pg_index set indisvalid = false where indexrelid = 'rich.t_v'::regclass", "pg_index", "definition of index (rich.t_v)", "indisvalid"),
    ("alter table rich.t set without cluster", "", "", ""),
    ("alter table rich.plain replica identity full", "pg_class", "table rich.plain", "relreplident"),
    ("alter table rich.t set (fillfactor = 80)", "pg_class", "table rich.t", "reloptions"),
    ("alter table rich.t set (toast.autovacuum_enabled = on)", "pg_class", "table TOAST of rich.t", "reloptions"),
    ("revoke select on rich.t from reader", "pg_class", "table rich.t", "relacl"),
    ("alter table rich.refers owner to postgres", "pg_class", "table rich.refers", "relowner"),
    ("alter table rich.plain force row level security", "pg_class", "table rich.plain", "relforcerowsecurity"),
    ("alter view rich.v set (security_invoker)", "pg_class", "view rich.v", "reloptions"),
    ("refresh materialized view rich.empty", "pg_class", "materialized view rich.empty", "relispopulated"),
    ("alter table rich.parts detach partition rich.part_1; alter table rich.parts attach partition rich.part_1 for values from ('2026-01-01') to ('2026-01-31')",
     "pg_class", "table rich.part_1", "relpartbound"),
    ("alter table rich.child no inherit rich.t", "pg_inherits", "inheritance (rich.child, 1)", ""),
    ("alter sequence rich.s cache 3", "pg_sequence", "definition of sequence (rich.s)", "seqcache"),
    (LIVE, "pg_sequence", "definition of sequence (rich.own)", "seqstart"),
    ("create or replace view rich.v with (security_invoker) as select t.id, rich.add(t.id, 3) as more from rich.t", "pg_rewrite", "rule _RETURN (rich.v)", "ev_action"),
    ("alter table rich.plain disable rule noted", "pg_rewrite", "rule noted (rich.plain)", "ev_enabled"),
    ("create or replace function rich.add(a int, b int default 2) returns int language sql immutable as 'select a + b + 0'", "pg_proc", "function rich.add (pg_catalog.int4, pg_catalog.int4)", "prosrc"),
    ("create or replace function rich.body(a int) returns int begin atomic select rich.add(a, 2); end", "pg_proc", "function rich.body (pg_catalog.int4)", "prosqlbody"),
    ("alter procedure rich.nothing() security definer", "pg_proc", "function rich.nothing ()", "prosecdef"),
    ("alter function rich.lonely() reset work_mem", "pg_proc", "function rich.lonely ()", "proconfig"),
    ("revoke execute on function rich.lonely() from reader", "pg_proc", "function rich.lonely ()", "proacl"),
    ("update pg_aggregate set agginitval = '1' where aggfnoid = 'rich.total'::regproc", "pg_aggregate", "aggregate (rich.total (pg_catalog.int4))", "agginitval"),
    ("alter table rich.t disable trigger before_t", "pg_trigger", "trigger before_t (rich.t)", "tgenabled"),
    ("drop trigger of_parts on rich.parts", "pg_trigger", "trigger of_parts (rich.parts)", ""),
    ("alter event trigger ddl disable", "pg_event_trigger", "event trigger ddl", "evtenabled"),
    ("alter policy mine on rich.plain using (true)", "pg_policy", "policy mine (rich.plain)", "polqual"),
    ("alter type rich.mood rename value 'ok' to 'okay'", "pg_enum", "label ok (rich.mood)", ""),
    ("alter domain rich.positive set default 2", "pg_type", "type rich.positive", "typdefaultbin"),
    ("revoke usage on type rich.mood from reader", "pg_type", "type rich.mood", "typacl"),
    ("update pg_range set rngsubdiff = 'float8mi'::regproc where rngtypid = 'rich.floats'::regtype", "pg_range", "range (rich.floats)", "rngsubdiff"),
    ("drop cast (rich.pair as int)", "pg_cast", "cast (rich.pair, pg_catalog.int4)", ""),
    ("alter operator rich.=== (rich.pair, rich.pair) set (restrict = none)", "pg_operator", "operator rich.=== (rich.pair, rich.pair)", "oprrest"),
    ("alter operator family rich.family using btree add operator 1 =(int2, int8), function 1 btint28cmp(int2, int8)", "pg_amop", "operator of a family (rich.family (btree), pg_catalog.int2, pg_catalog.int8, 1)", ""),
    ("select 1", "pg_amproc", "function of a family (rich.family (btree), pg_catalog.int2, pg_catalog.int8, 1)", ""),
    ("alter operator family rich.family using btree owner to reader", "pg_opfamily", "operator family rich.family (btree)", "opfowner"),
    ("alter operator class rich.class using hash owner to reader", "pg_opclass", "operator class rich.class (hash)", "opcowner"),
    ("drop collation rich.german", "pg_collation", "collation rich.german (-1)", ""),
    ("alter conversion rich.latin owner to reader", "pg_conversion", "conversion rich.latin", "conowner"),
    ("alter text search dictionary rich.dict (accept = true)", "pg_ts_dict", "text search dictionary rich.dict", "dictinitoption"),
    ("alter text search configuration rich.config owner to reader", "pg_ts_config", "text search configuration rich.config", "cfgowner"),
    ("alter text search configuration rich.config drop mapping for email", "pg_ts_config_map", "text search mapping (rich.config, 4, 1)", ""),
    ("update pg_ts_parser set prsheadline = 'prsd_headline'::regproc where prsname = 'parser'", "pg_ts_parser", "text search parser rich.parser", "prsheadline"),
    ("update pg_ts_template set tmplinit = 'dsimple_init'::regproc where tmplname = 'template'", "pg_ts_template", "text search template rich.template", "tmplinit"),
    ("update pg_am set amhandler = 'bthandler'::regproc where amname = 'other'", "pg_am", "access method other", "amhandler"),
    ("alter foreign data wrapper wrapper options (set a 'c')", "pg_foreign_data_wrapper", "foreign data wrapper wrapper", "fdwoptions"),
    ("alter server there options (set host 'i')", "pg_foreign_server", "foreign server there", "srvoptions"),
    ("alter user mapping for reader server there options (set password 'another')", "pg_user_mapping", "user mapping (reader, there)", "umoptions"),
    ("alter foreign table rich.far options (set q 's')", "pg_foreign_table", "foreign table (rich.far)", "ftoptions"),
    ("alter language other owner to reader", "pg_language", "language other", "lanowner"),
    ("drop transform for rich.pair language sql", "pg_transform", "transform (rich.pair, sql)", ""),
    ("alter statistics rich.stats set statistics 9", "pg_statistic_ext", "statistics rich.stats", "stxstattarget"),
    ("comment on column rich.t.v is 'another'", "pg_description", "comment (rich.t, pg_catalog.pg_class, 2)", "description"),
    ("comment on role reader is 'another'", "pg_shdescription", "comment (reader, pg_catalog.pg_authid)", "description"),
    ("alter default privileges in schema rich revoke select on tables from reader", "pg_default_acl", "default privileges (postgres, rich, r)", ""),
    ("alter role reader connection limit 8", "pg_authid", "role reader", "rolconnlimit"),
    ("alter role reader password 'changed'", "pg_authid", "role reader", "rolpassword"),
    ("revoke admin option for group_role from reader", "pg_auth_members", "membership (group_role, reader)", "admin_option"),
    ("alter role reader in database onetrip set statement_timeout = '2h'", "pg_db_role_setting", "settings of (onetrip, reader)", "setconfig"),
    ("revoke set on parameter log_min_duration_statement from reader", "pg_parameter_acl", "privileges on parameter log_min_duration_statement", ""),
    ("revoke usage on schema rich from reader", "pg_namespace", "schema rich", "nspacl"),
    ("revoke connect on database onetrip from reader", "pg_database", "database onetrip", "datacl"),
    ("alter database onetrip connection limit 50", "pg_database", "database onetrip", "datconnlimit"),
    ("alter extension hstore set schema rich", "pg_extension", "extension hstore", "extnamespace"),
    ("create publication published for table rich.plain where (a > 1)", "pg_publication", "publication published", ""),
    ("create publication of_schema for tables in schema rich", "pg_publication", "publication of_schema", ""),
    ("create subscription subscribed connection 'password=hidden' publication p with (connect = false)", "", "", ""),
    ("insert into pg_seclabel values ('rich.t'::regclass, 'pg_class'::regclass, 0, 'dummy', 'label')", "pg_seclabel", "security label dummy (rich.t, pg_catalog.pg_class, 0)", ""),
    ("insert into pg_shseclabel values ('reader'::regrole, 'pg_authid'::regclass, 'dummy', 'label')", "pg_shseclabel", "security label dummy (reader, pg_catalog.pg_authid)", ""),
    ("update pg_init_privs set privtype = 'e' where objoid = 'pg_authid'::regclass", "pg_init_privs", "first privileges (pg_catalog.pg_authid, pg_catalog.pg_class, 0)", "privtype"),
    ("alter function rich.on_ddl() depends on extension citext", "pg_depend", "dependency (pg_catalog.pg_proc, rich.on_ddl (), 0, pg_catalog.pg_extension, citext, 0, x)", ""),
    ("delete from pg_shdepend where classid = 'pg_class'::regclass and objid = 'rich.heap'::regclass or refobjid = 'owner_of_all'::regrole",
     "", "", ""),
    ("update pg_partitioned_table set partdefid = 0 where partrelid = 'rich.parts'::regclass", "pg_partitioned_table", "partitioned table (rich.parts)", "partdefid"),
    ("update pg_largeobject_metadata set lomowner = 'reader'::regrole where oid = 8000", "pg_largeobject_metadata", "large object (8000)", "lomowner"),
    ("update pg_description set description = 'small' where classoid = 'pg_largeobject'::regclass", "pg_description", "comment ((8000), pg_catalog.pg_largeobject, 0)", "description"),
    ("set allow_in_place_tablespaces = on", "", "", ""),
    ("create tablespace only_here location ''", "pg_tablespace", "tablespace only_here", ""),
];

/// Goal: definitions made in any region are equal in all; a change made in one region only is then named, for every
/// catalog that there is, and no secret is shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_every_kind_of_definition() {
    let lab =
        start("check_definitions", "definitions made anywhere are equal; what differs in one region is named").await;
    let temporary = lab.session(2).await;
    temporary.must("create temporary table passing (id serial primary key, w text)").await;
    for (number, sql) in RICH.iter().enumerate() {
        crate::lab::psql(&lab, number % 3, &format!("{sql};")).await;
        lab.everywhere().await;
    }
    let (code, output) = lab.check(&["--indexes"]).await;
    assert_eq!(code, Some(0), "{output}");
    for named in ["unlogged table rich.quick", "table rich.heap (access method heap)", "foreign table rich.far"] {
        assert!(output.contains(&format!("  {named}\n")), "{named} is not named: {output}");
    }
    let passing = output.lines().find(|line| line.contains(".passing")).expect(&output);
    assert!(passing.starts_with("  temporary table ") && passing.ends_with(", in c"), "{passing}");

    let changes: Vec<&str> = CHANGES.iter().map(|(sql, ..)| *sql).collect();
    all_behind_its_back(&lab, 1, &changes).await;
    lab.session(1).await.must(LIVE).await;
    lab.session(1).await.must(PUBLISHED).await;
    let (code, output) = lab.check(&["--json"]).await;
    assert_eq!(code, Some(1), "{output}");
    let report: serde_json::Value = serde_json::from_str(&output).expect("JSON");
    let found: Vec<[&str; 3]> = report["definitions"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|d| ["catalog", "object", "column"].map(|field| d[field].as_str().unwrap_or("")))
        .collect();
    for (sql, catalog, object, column) in CHANGES.iter().filter(|(_, catalog, ..)| !catalog.is_empty()) {
        assert!(found.contains(&[*catalog, *object, *column]), "{sql}: not in {found:#?}");
    }
    // A difference was reported for each catalog that is compared.
    let compared: Vec<&String> = report["catalogs"].as_object().expect("counts").keys().collect();
    assert!(compared.len() > 50, "{compared:?}");
    let silent: Vec<&&String> =
        compared.iter().filter(|name| !found.iter().any(|found| found[0] == name.as_str())).collect();
    assert!(silent.is_empty(), "in these no difference was seen: {silent:?}");
    for secret in ["hidden", "another'", "SCRAM", "md5"] {
        assert!(!output.contains(secret), "{secret} is shown: {output}");
    }
    let mark = serde_json::json!({"what": "mark of CLUSTER on index rich.t_m", "regions": ["a", "c"]});
    assert!(report["local"].as_array().expect("a list").contains(&mark), "{output}");
    let password = report["definitions"].as_array().expect("a list").iter().find(|d| d["column"] == "rolpassword");
    let values = &password.expect("named above")["values"];
    assert_eq!(*values, serde_json::json!(["secret 1 (not shown)", "secret 2 (not shown)", "secret 1 (not shown)"]));
}

/// Goal: values that print alike but are stored as other bytes are reported as different; and so are different contents
/// of materialized views.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_other_bytes_and_other_contents() {
    let lab = start("check_bytes", "rows are compared by bytes, materialized views by contents").await;
    lab.session(0)
        .await
        .must("create table bytes (id int primary key, r text, f float8); insert into bytes values (1, 'x', 'NaN'), (2, 'y', 0);
               create materialized view shown as select id, f from bytes")
        .await;
    lab.check_equal(2).await;
    // A NaN with a payload, in the form of COPY.
    let nan = "delete from bytes where id = 1; copy bytes from program 'printf \"PGCOPY\\012\\377\\015\\012\\000\\000\\000\\000\\000\\000\\000\\000\\000\
\\000\\003\\000\\000\\000\\004\\000\\000\\000\\001\\000\\000\\000\\001x\\000\\000\\000\\010\\177\\370\\000\\000\\000\\000\\000\\007\\377\\377\"' (format binary)";
    behind_its_back(&lab, 1, nan).await;
    names_it(&lab, &["public.bytes, row (id) = (1), in f\n", "look alike"], "public.bytes").await;
    behind_its_back(&lab, 1, "update bytes set f = 'NaN' where id = 1").await;
    lab.check_equal(2).await;
    behind_its_back(
        &lab,
        2,
        "update bytes set f = 7 where id = 2; refresh materialized view shown; update bytes set f = 0 where id = 2",
    )
    .await;
    names_it(&lab, &["table public.shown, row (2,0)", "c: no such row"], "public.shown").await;
    lab.session(1).await.must("refresh materialized view shown").await;
    lab.check_equal(2).await;
}

/// Goal: an index that lacks rows is named with its region and the way to mend it, whatever its kind; and without
/// `--indexes` that is no difference.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_indexes_that_lack_rows() {
    let lab = start("check_indexes", "an index that lacks rows in one region is found, and mended by REINDEX").await;
    lab.session(0)
        .await
        .must("create function lowered(text) returns text language sql immutable as 'select lower($1)';
               create table found (id int primary key, v text, a int[], b box);
               create index in_btree on found (v); create index in_expression on found (lowered(v)) where id > 10;
               create index in_hash on found using hash (v); create index in_gin on found using gin (a);
               create index in_gist on found using gist (b); create index in_spgist on found using spgist (b);
               create index in_brin on found using brin (id);
               insert into found select g, 'V' || g % 100, array[g, g % 7], box(point(g, g), point(g + 1, g + 1)) from generate_series(1, 5000) g;
               update found set v = v || 'x' where id % 3 = 0; delete from found where id % 5 = 0")
        .await;
    lab.everywhere().await;
    let (code, output) = lab.check(&["--indexes"]).await;
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("cannot be looked through: public.in_brin (brin)\n"), "{output}");
    assert!(!output.contains("without amcheck"), "{output}");

    // Rows that another region inserts now do not get into the indexes of region b.
    let kinds = ["btree", "expression", "hash", "gin", "gist", "spgist"];
    let not_ready = |ready| {
        format!("update pg_index set indisready = {ready} where indrelid = 'found'::regclass and indexrelid::regclass::text ~ '^in_'")
    };
    lab.session(1).await.must(&not_ready(false)).await;
    lab.session(0).await.must("insert into found select g, 'V7', array[7], box(point(7, 7), point(8, 8)) from generate_series(9001, 9003) g").await;
    lab.everywhere().await;
    lab.session(1).await.must(&not_ready(true)).await;
    lab.check_equal(1).await;
    let (code, output) = lab.check(&["--indexes"]).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(
        output.starts_with("different") && output.lines().next().expect("a line").ends_with(": 6 indexes"),
        "{output}"
    );
    for kind in kinds {
        assert!(output.contains(&format!("\nindex public.in_{kind} in b: ")), "{kind}: {output}");
        assert!(output.contains(&format!("REINDEX INDEX public.in_{kind}\n")), "{kind}: {output}");
    }
    let session = lab.session(1).await;
    for kind in kinds {
        session.must(&format!("reindex index in_{kind}")).await;
    }
    let (code, output) = lab.check(&["--indexes"]).await;
    assert_eq!(code, Some(0), "{output}");

    // The function of an index now returns something else than when the rows were written.
    behind_its_back(
        &lab,
        2,
        "create or replace function lowered(text) returns text language sql immutable as 'select upper($1)'",
    )
    .await;
    let (code, output) = lab.check(&["--indexes"]).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("function public.lowered (pg_catalog.text): pg_proc.prosrc\n"), "{output}");
    assert!(output.contains("\nindex public.in_expression in c: "), "{output}");
}

/// Both outputs of `onetrip check` say that the regions differ: the text contains `words`, the JSON names `table`.
async fn names_it(lab: &Lab, words: &[&str], table: &str) {
    let (code, output) = lab.check(&[]).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.starts_with("different"), "{output}");
    for word in words {
        assert!(output.contains(word), "{word} is not in: {output}");
    }
    let (code, output) = lab.check(&["--json"]).await;
    assert_eq!(code, Some(1), "{output}");
    let report: serde_json::Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!(report["equal"], false);
    assert_eq!(report["different"], serde_json::json!([table]));
    assert_eq!(report["difference"]["kind"], "row");
}

async fn behind_its_back(lab: &Lab, region: usize, sql: &str) {
    all_behind_its_back(lab, region, &[sql]).await;
}

/// Stops a node, changes its PostgreSQL's files through a single-user server, where Onetrip captures nothing, and
/// starts the node again.
async fn all_behind_its_back(lab: &Lab, region: usize, statements: &[&str]) {
    let node = lab.node(region);
    node.stop().await.unwrap_or_else(|e| panic!("{e:#}"));
    let data = node.postgres_data();
    let sql: String = statements.iter().map(|sql| sql.replace('\n', " ") + "\n").collect();
    let done = tokio::task::spawn_blocking(move || {
        use std::io::Write;
        let mut command = Command::new(onetrip_lab::postgres_bin().join("postgres"));
        command.args(["--single", "-D"]).arg(&data).arg("onetrip").current_dir("/");
        if nix::unistd::geteuid().is_root() {
            use std::os::unix::fs::MetadataExt;
            let owner = std::fs::metadata(&data).expect("the data folder");
            command.uid(owner.uid()).gid(owner.gid());
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start postgres --single");
        child.stdin.take().expect("piped").write_all(sql.as_bytes()).expect("write the statement");
        child.wait_with_output().expect("wait for postgres --single")
    });
    let output = done.await.expect("postgres --single");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("ERROR"), "postgres --single: {said}");
    node.restart().await.unwrap_or_else(|e| panic!("{e:#}"));
    lab.wait_ready().await.unwrap_or_else(|e| panic!("{e:#}"));
}
