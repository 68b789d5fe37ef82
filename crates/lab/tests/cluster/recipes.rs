//! Every region gets what a statement made in its own region, even where the same words would make something else.

use crate::lab::{number, start, subjects, text, until, Lab, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn what_a_statement_made_at_home_is_in_every_region() {
    let lab = start("recipes", "bounds, contents and side effects of DDL that no region could compute again").await;
    subjects!(lab, 1;
        bounds_of_partitions, columns_with_volatile_defaults, columns_of_another_type, pairs_of_commands,
        rows_that_become_replicated, materialized_views, refreshed_while_others_write, functions, truncate,
        event_triggers, extensions
    );
}

/// Runs the statements in a region that does not lead; then the query must give in all regions what it gives there.
/// Returns that.
async fn alike(lab: &Lab, statements: &str, query: &str) -> String {
    lab.everywhere().await;
    let home = lab.session(1).await;
    home.must(statements).await;
    let made = text(&home, query).await.unwrap_or_else(|e| panic!("{query}: {e:#}"));
    lab.shows(query, &made).await;
    made
}

async fn bounds_of_partitions(lab: &Lab) {
    let bounds = "select string_agg(relname || ' ' || pg_get_expr(relpartbound, oid), '; ' order by relname)
                  from pg_class where relpartbound is not null";
    alike(
        lab,
        "create table drawn (id int, t timestamptz) partition by list (id);
         create table drawn_1 partition of drawn for values in ((random() * 1e6)::int);
         create table drawn_2 partition of drawn for values in (-(random() * 1e6)::int - 1) partition by range (t);
         create table drawn_2_1 partition of drawn_2 for values from (minvalue) to (clock_timestamp());
         set test.bound = '2000001';
         create table drawn_3 (id int, t timestamptz);
         alter table drawn attach partition drawn_3 for values in (current_setting('test.bound')::int + pg_backend_pid())",
        bounds,
    )
    .await;
    let made = alike(
        lab,
        "create table asked (id int) partition by range (id);
         create table asked_log (id serial primary key);
         create function ask(n int) returns int language plpgsql as $$ begin
             insert into asked_log default values;
             create table made_by_ask (id int primary key);
             insert into made_by_ask values (n);
             return n; end $$;
         create table asked_1 partition of asked for values from (1) to (ask(7))",
        "select (select count(*) from asked_log) || ' ' || (select id from made_by_ask) || ' '
             || (select pg_get_expr(relpartbound, oid) from pg_class where relname = 'asked_1')",
    )
    .await;
    assert_eq!(made, "1 7 FOR VALUES FROM (1) TO (7)");
}

/// The rows of the table travel, and no other region computes any.
async fn columns_with_volatile_defaults(lab: &Lab) {
    let all = "select string_agg(f::text, ' ' order by id) from filled f";
    let made = alike(
        lab,
        "create table filled (id int primary key, v text) partition by range (id);
         create table filled_1 partition of filled for values from (0) to (100);
         create table filled_2 partition of filled for values from (100) to (200);
         create function only_at_home() returns float language plpgsql as $$ begin
             if current_setting('onetrip.region') <> 'b' then raise 'not here'; end if; return random(); end $$;
         insert into filled select g, repeat(md5(g::text), 200) from generate_series(50, 149) g;
         update filled set v = 'changed' where id = 60;
         alter table filled add column u uuid not null default gen_random_uuid(), add column r float default only_at_home() check (r >= 0);
         update filled set v = 'changed again' where id = 61",
        all,
    )
    .await;
    alike(lab, "alter table filled add column s bigserial", all).await;
    // A default for the rows that are there, and another one for those to come, in either order.
    alike(
        lab,
        "create table to_come (id int primary key);
         alter table to_come add column a text default 'old', alter a set default 'new';
         alter table to_come alter b set default 'new', add column b text default 'old';
         alter table filled add column c float default random(), alter c set default 7",
        "select string_agg(attrelid::regclass || attname || pg_get_expr(adbin, adrelid), ' ' order by attrelid, attnum)
         from pg_attrdef join pg_attribute on attrelid = adrelid and attnum = adnum
         where attrelid in ('to_come'::regclass, 'filled'::regclass)",
    )
    .await;
    assert_ne!(
        made,
        alike(lab, "alter table filled alter r drop default; delete from filled where id = 70", all).await
    );
    let [a, _, c] = lab.sessions().await;
    a.must("insert into filled values (1, 'a')").await;
    c.must("insert into filled values (2, 'c'); update filled set v = 'of c' where s = (select s from filled where id = 149)").await;
    lab.shows(
        "select count(*) || ' ' || count(distinct u) || ' ' || count(distinct s) || ' ' || string_agg(v, ' ' order by id) filter (where length(v) < 100) from filled",
        "101 101 101 a c changed changed again of c",
    )
    .await;
}

/// USING and generated columns with values that only one region has, beside other commands.
async fn columns_of_another_type(lab: &Lab) {
    alike(
        lab,
        "create table turned (id int primary key, v float, w int references turned);
         insert into turned select g, g, 1 from generate_series(1, 200) g;
         alter table turned alter v type text using (v * only_at_home())::text, add unique (v), add column p int default 7,
             add column o regclass generated always as (tableoid) stored;
         alter table turned alter p type text using p || current_setting('onetrip.region')",
        "select string_agg(t::text, ' ' order by id) from turned t",
    )
    .await;
    let [a, ..] = lab.sessions().await;
    a.must("update turned set v = 'of a' where id = 7").await;
    lab.shows("select string_agg(id || v, ' ') from turned where v = 'of a'", "7of a").await;
}

/// What ALTER TABLE can do to two columns, one of them new.
const COMMANDS: [&str; 22] = [
    "add c int",
    "add c int default 1",
    "add c int default 1 not null",
    "add c float default random()",
    "add c int generated always as (a + 1) stored",
    "add c int generated by default as identity",
    "add c int unique",
    "add c int default 1 check (c > 0)",
    "add c int default 1 references pairs_other",
    "drop a",
    "drop if exists c",
    "alter a type bigint",
    "alter a type text using 'x' || random()",
    "alter a set default 5",
    "alter a drop default",
    "alter c set default 7",
    "alter c drop default",
    "alter c set not null",
    "alter c type text using 'y' || random()",
    "alter c add generated always as identity",
    "add check (a >= 0)",
    "add unique (a)",
];

/// Commands of one statement that are about the same columns, in either order, as PostgreSQL sorts them into passes:
/// all regions make of them what the first has made, with and without rows, and give new rows the same defaults.
async fn pairs_of_commands(lab: &Lab) {
    let home = lab.session(1).await;
    home.must("create table pairs_other (id int primary key); insert into pairs_other values (1), (7)").await;
    let (mut made, mut refused) = (0, 0);
    for (i, first) in COMMANDS.iter().enumerate() {
        for (j, second) in COMMANDS.iter().enumerate().filter(|(j, _)| *j != i) {
            for rows in [0, 3] {
                let table = format!("pair_{i}_{j}_{rows}");
                home.must(&format!(
                    "create table {table} (id int primary key, a int default 3);
                     insert into {table} (id) select g from generate_series(1, {rows}) g"
                ))
                .await;
                match home.run(&format!("alter table {table} {first}, {second}")).await {
                    Ok(_) => {
                        made += 1;
                        // It may not fit a constraint.
                        let _ = home.run(&format!("insert into {table} (id) values (100)")).await;
                    }
                    Err(_) => {
                        refused += 1;
                        home.must(&format!("drop table {table}")).await;
                    }
                }
            }
        }
    }
    assert!(made > 300 && refused > 100, "{made} pairs of commands made something, {refused} were refused");
}

/// SET LOGGED and SET ACCESS METHOD onetrip: all regions get the rows of the one where the statement runs.  It fails
/// while another region has rows of its own.
async fn rows_that_become_replicated(lab: &Lab) {
    let all = "select string_agg(id || v, ' ' order by id) from gathered";
    for (making, to, back) in [
        ("create unlogged table gathered", "set logged", "set unlogged"),
        ("create table gathered", "set access method onetrip", "set access method heap"),
    ] {
        let using = if back.contains("heap") { "using heap" } else { "" };
        let [a, b, c] = lab.sessions().await;
        b.must(&format!("{making} (id int generated always as identity primary key, v text) {using}")).await;
        b.must("insert into gathered (v) select 'b' from generate_series(1, 3)").await;
        lab.everywhere().await;
        c.must("insert into gathered (v) values ('c')").await;
        let why = b.refused(&format!("alter table gathered {to}")).await;
        assert_eq!(why.code().code(), "55000", "{}", why.message());
        assert_eq!(text(&c, "select string_agg(v, ' ') from gathered").await.unwrap(), "c");
        c.must("truncate gathered").await;
        let made = alike(
            lab,
            &format!("begin; insert into gathered (v) values ('too'); alter table gathered {to}; insert into gathered (v) values ('behind'); commit"),
            all,
        )
        .await;
        assert_eq!(made.split(' ').count(), 5, "{made}");
        a.must("insert into gathered (v) values ('a')").await;
        c.must("insert into gathered (v) values ('c'); update gathered set v = 'of c' where v = 'too'").await;
        lab.shows("select count(*) || ' ' || count(*) filter (where v = 'of c') from gathered", "7 1").await;
        alike(lab, &format!("alter table gathered {back}"), all).await;
        a.must("delete from gathered").await;
        assert_eq!(
            number(&c, "select count(*) from gathered").await.unwrap(),
            7,
            "the rows are each region's own again"
        );
        b.must("drop table gathered").await;
    }
}

const LOG: &str = "create table log (id serial primary key, what text);
    create function writes(n int) returns int language plpgsql as $$ begin insert into log (what) values ('writes'); return n; end $$;
    create function makes(n int) returns int language plpgsql as $$ begin
        execute format('create table made_%s (id int primary key)', n); return n; end $$;
    create function computes(n int) returns int language plpgsql immutable as $$ begin return writes(n); end $$";

async fn materialized_views(lab: &Lab) {
    let all = "select (select string_agg(v::text, ' ' order by v) from drawn_view v) || (select count(*) from log)
                   || coalesce(to_regclass('made_1')::text, '')";
    let made = alike(
        lab,
        &format!("{LOG}; create materialized view drawn_view as select g, random(), writes(g), case g when 1 then makes(g) end from generate_series(1, 3) g"),
        all,
    )
    .await;
    assert!(made.ends_with("3made_1"), "{made}");
    alike(lab, "drop table made_1; refresh materialized view drawn_view", all).await;
    alike(
        lab,
        "create unique index on drawn_view (g); drop table made_1; refresh materialized view concurrently drawn_view",
        all,
    )
    .await;
    alike(
        lab,
        "drop table made_1; begin; refresh materialized view drawn_view with no data; drop materialized view if exists none;
         create materialized view if not exists drawn_view as select 1; refresh materialized view drawn_view; commit",
        all,
    )
    .await;
    let none = "select relispopulated from pg_class where relname = 'drawn_view'";
    assert_eq!(alike(lab, "refresh materialized view drawn_view with no data", none).await, "f");

    // The policies apply to the owner too, with the settings of the owner's session.
    alike(
        lab,
        "create role keeper; create schema kept authorization keeper; set role keeper;
         create table kept.a (id int primary key, who text); insert into kept.a values (1, 'one'), (2, 'two');
         create table kept.b (id int primary key, a int); insert into kept.b values (1, 1);
         alter table kept.a enable row level security; alter table kept.a force row level security;
         alter table kept.b enable row level security; alter table kept.b force row level security;
         create policy p on kept.a using (who = current_setting('kept.who', true)); create policy p on kept.b using (true);
         set kept.who = 'one';
         create materialized view kept.seen as select * from kept.a;
         alter table kept.b add foreign key (a) references kept.a;
         set kept.who = 'two'; refresh materialized view kept.seen",
        "select string_agg(v::text, ' ' order by v) || (select string_agg(convalidated::text, '') from pg_constraint where conrelid = 'kept.b'::regclass)
         from kept.seen v",
    )
    .await;
}

/// A row that one region inserts while another has refreshed a view but not committed is in the view nowhere, or
/// everywhere.
async fn refreshed_while_others_write(lab: &Lab) {
    let [_, b, c] = lab.sessions().await;
    b.must(
        "create table counted (id int primary key); insert into counted values (1);
            create materialized view counts as select count(*), max(id) from counted",
    )
    .await;
    lab.everywhere().await;
    b.must("begin; refresh materialized view counts").await;
    c.must("insert into counted values (2)").await;
    lab.everywhere().await;
    b.must("commit").await;
    lab.shows("select counts::text from counts", "(1,1)").await;
    b.must("begin isolation level repeatable read; select 1 from counted").await;
    c.must("insert into counted values (3)").await;
    lab.everywhere().await;
    b.must("refresh materialized view counts; commit").await;
    let made = text(&b, "select counts::text from counts").await.unwrap();
    lab.shows("select counts::text from counts", &made).await;
}

/// A statement that runs again in every region is refused if a function that it calls changes something.
async fn functions(lab: &Lab) {
    let b = lab.session(1).await;
    b.must("create table subject (id int primary key, n int); insert into subject values (1, 1); create domain positive as int;
            create table subject_too (p positive); insert into subject_too values (1); create table computed (n int);
            create function computed(n int) returns int language plpgsql as $$ begin insert into computed values (n); return n; end $$;
            create function computes_too(n int) returns int language plpgsql immutable as $$ begin return computed(n); end $$")
        .await;
    for statement in [
        "create index on subject (computes_too(n))",
        "alter table subject add check (computes_too(n) > 0)",
        "alter table subject alter n type bigint using computes_too(n)",
        "alter table subject add column x int default computes_too(1)",
        "alter domain positive add check (computes_too(value) > 0)",
    ] {
        let why = b.refused(statement).await;
        assert_eq!(why.code().code(), "0A000", "{statement}: {}", why.message());
        assert!(why.message().contains("in a function that"), "{statement}: {}", why.message());
        assert!(why.hint().is_some_and(|hint| !hint.is_empty()), "{statement}: {} has no hint", why.message());
    }
}

/// What travels is that the tables are empty: elsewhere no trigger fires, and no privilege is checked.
async fn truncate(lab: &Lab) {
    alike(
        lab,
        "create table stock (id serial primary key, n int); create table stock_log (id serial primary key, what text);
         create function notes() returns trigger language plpgsql as $$ begin
             insert into stock_log (what) values (tg_when); insert into stock values (7, 7); return null; end $$;
         create trigger b before truncate on stock execute function notes();
         create trigger a after truncate on stock execute function notes();
         alter table stock enable always trigger a; alter table stock enable replica trigger b;
         insert into stock values (1, 1); truncate stock restart identity",
        "select (select string_agg(s::text, ' ' order by id) from stock s) || (select string_agg(what, ' ' order by id) from stock_log)",
    )
    .await;
    let [_, b, c] = lab.sessions().await;
    b.must("create role clearer; create schema room; create table room.t (id int primary key); insert into room.t values (1);
            create table room.part (id int) partition by list (id); create table room.part_1 partition of room.part for values in (1);
            insert into room.part values (1);
            grant usage on schema room to clearer; grant truncate on room.t, room.part to clearer")
        .await;
    lab.everywhere().await;
    b.must("begin; set role clearer; truncate room.t, room.part").await;
    c.must("revoke usage on schema room from clearer").await;
    lab.everywhere().await;
    b.must("commit").await;
    lab.shows("select (select count(*) from room.t) + (select count(*) from room.part)", "0").await;
    // By way of a local table: its children, and those that refer to it.
    b.must("reset role; create table own (id int primary key) using heap; create table child () inherits (own);
            create unlogged table notes (id int); create table note () inherits (notes);
            create table refers (id int primary key, own int references own);
            insert into own values (1); insert into child values (2); insert into note values (3); insert into refers values (4, 1)")
        .await;
    lab.everywhere().await;
    c.must("insert into own values (1); truncate own, notes cascade").await;
    lab.shows("select (select count(*) from child) + (select count(*) from note) + (select count(*) from refers)", "0")
        .await;
    assert_eq!(number(&b, "select count(*) from own").await.unwrap(), 1, "what is local to b is left");
}

/// Event triggers fire where a statement was given, also in the script of an extension, and their effects arrive in
/// order.
async fn event_triggers(lab: &Lab) {
    let made = alike(
        lab,
        "create table audit (id serial primary key, event text, tag text);
         create function audits() returns event_trigger language plpgsql as $$ begin
             insert into audit (event, tag) values (tg_event, tg_tag); end $$;
         create event trigger audit_start on ddl_command_start execute function audits();
         create event trigger audit_end on ddl_command_end execute function audits();
         create event trigger audit_drop on sql_drop execute function audits();
         alter event trigger audit_end enable always; alter event trigger audit_drop enable replica;
         create extension hstore;
         create or replace function audits() returns event_trigger language plpgsql as $$ begin
             insert into audit (event) values (tg_event); end $$;
         alter table audit drop column tag;
         alter event trigger audit_drop enable;
         drop extension hstore;
         drop event trigger audit_start; drop event trigger audit_end; drop event trigger audit_drop",
        "select count(*) || ' ' || md5(string_agg(a::text, ' ' order by id)) from audit a",
    )
    .await;
    assert!(made.split(' ').next().unwrap().parse::<u32>().unwrap() > 100, "{made}");
}

/// Extensions whose scripts fill tables with serial keys, or look at the session's `search_path`, as far as this server
/// offers them.
async fn extensions(lab: &Lab) {
    let b = lab.session(1).await;
    let rows = "select count(*) || ' ' || md5(string_agg(l::text, ' ' order by id)) from us_lex l";
    let path = "select coalesce((select setconfig::text from pg_db_role_setting where setrole = 0), '')";
    for (extension, query) in [
        ("address_standardizer_data_us", rows),
        ("postgis_topology cascade", path),
        ("postgis_tiger_geocoder cascade", path),
    ] {
        let name = extension.split(' ').next().unwrap();
        let offered = number(&b, &format!("select count(*) from pg_available_extensions where name = '{name}'")).await;
        if offered.unwrap() == 0 {
            println!("recipes: {name} is not available, so it is not tested");
            continue;
        }
        let made = alike(lab, &format!("create extension {extension}"), query).await;
        println!("recipes: {name}: {made}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn contents_are_put_in_as_their_owner_and_what_is_local_stays() {
    let lab =
        start("recipes_owner", "REFRESH by a superuser of an ordinary role's view; TRUNCATE of a local child").await;
    let [a, b, _] = lab.sessions().await;
    a.must(
        "create role poor; create schema poor authorization poor; set role poor;
         create function poor.who(i int) returns int immutable language plpgsql as $$
         begin
             if current_user <> 'poor' then raise 'run as %', current_user; end if;
             return i;
         end $$;
         create materialized view poor.mv as select g as id from generate_series(1, 3) g;
         create index on poor.mv (poor.who(id));
         create table poor.parent (id int); reset role",
    )
    .await;
    a.must("refresh materialized view poor.mv").await;
    lab.shows("select count(*) from poor.mv", "3").await;

    a.must("create table poor.local () inherits (poor.parent) using heap").await;
    lab.everywhere().await;
    b.must("insert into poor.local values (1); insert into poor.parent values (2)").await;
    lab.everywhere().await;
    a.must("truncate poor.parent").await;
    assert_eq!(number(&a, "select count(*) from poor.parent").await.unwrap(), 0);
    lab.everywhere().await;
    assert_eq!(number(&b, "select sum(id) from poor.parent").await.unwrap(), 1, "only what is local to b is left");
    lab.check_equal(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_statement_means_at_home_it_means_in_every_region() {
    let lab =
        start("recipes_meaning", "roles, names, functions and rows that a statement meets otherwise elsewhere").await;
    subjects!(lab, 1;
        functions_of_indexes, row_versions_in_indexes, parallel_builds, temporary_objects, create_table_as, typed_tables, rows_of_one_region,
        advisory_locks, settings_of_functions
    );
}

/// Functions of indexes of any kind: what the apply worker would not let them do is refused where the row is written,
/// and the regions go on.
async fn functions_of_indexes(lab: &Lab) {
    let b = lab.session(1).await;
    b.must(
        "create table did (id int primary key);
         create function did(what text) returns text language plpgsql as $$ begin
             case what when 'row' then insert into did values (1); when 'table' then create table by_did (id int);
                 when 'role' then set role pg_monitor; else null; end case;
             return what; end $$;
         create function indexed(what text) returns text language plpgsql immutable as 'begin return did(what); end';
         create table doing (id int primary key, what text); create index on doing (indexed(what));
         create table doing_some (id int primary key, what text); create index on doing_some (id) where indexed(what) = 'row'",
    )
    .await;
    for table in ["doing", "doing_some"] {
        for (what, code) in [("row", "0A000"), ("table", "0A000"), ("role", "42501")] {
            let why = b.refused(&format!("insert into {table} values (1, '{what}')")).await;
            assert_eq!(why.code().code(), code, "{table} {what}: {}", why.message());
        }
        b.must(&format!("insert into {table} values (1, 'nothing')")).await;
    }
    lab.shows("select (select count(*) from doing) || ' ' || (select count(*) from doing_some) || ' ' || (select count(*) from did)", "1 1 0")
        .await;
}

/// An index is built from the rows that there are, and not from versions that only an older snapshot of one region
/// sees.  That snapshot still sees them, also after CLUSTER in its region.
async fn row_versions_in_indexes(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    let old = lab.session(1).await;
    a.must(
        "create table versions (id int primary key, v int, long text);
         insert into versions select g, 1, 'x' from generate_series(1, 1000) g; insert into versions values (-1, 0, 'x')",
    )
    .await;
    lab.everywhere().await;
    // The row's page has room in a, where its update is heap-only, and none in b.
    b.must("cluster versions using versions_pkey").await;
    a.must("begin; update versions set v = 1 where v = 0; create index on versions ((1 / v)); commit").await;
    lab.everywhere().await;

    let random = "(select string_agg(md5(g::text), '') from generate_series(1, 1000) g)";
    a.must(&format!("drop index versions_expr_idx; insert into versions values (-2, 0, {random})")).await;
    lab.everywhere().await;
    b.must("cluster versions").await;
    old.must("begin isolation level repeatable read; select 1; set enable_seqscan = off").await;
    a.must("update versions set v = 2, long = 'short' where id = -2").await;
    a.must("create index on versions ((1 / v)); create index on versions (long); create index by_v on versions (v)")
        .await;
    a.must("drop index versions_expr_idx, versions_long_idx").await;
    lab.everywhere().await;
    b.must("set enable_sort = off").await;
    b.must("cluster versions using by_v").await;
    let dead = "select count(*) from versions where v = 0";
    assert_eq!(number(&old, dead).await.unwrap(), 1, "the old snapshot has lost a row");
    old.must("commit").await;
    lab.shows(dead, "0").await;
    lab.shows("set enable_seqscan = off; select id from versions where v = 2", "-2").await;
}

/// How large a table is built by parallel workers is each server's setting, and a function may say wrongly that it may
/// run there.
async fn parallel_builds(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    b.must("alter system set min_parallel_table_scan_size = 0").await;
    b.must("select pg_reload_conf()").await;
    a.must(
        "create table numbers (id int primary key, t text); insert into numbers select g, g from generate_series(1, 20000) g;
         create function as_number(t text) returns int language plpgsql immutable parallel safe as $$
         begin return t::int; exception when others then return null; end $$;
         set max_parallel_maintenance_workers = 0",
    )
    .await;
    a.must("create index on numbers (as_number(t))").await;
    a.must("create index concurrently numbers_job on numbers (as_number(t))").await;
    let built = "select count(*) from pg_index where indrelid = 'numbers'::regclass and indisvalid";
    until("b has built both", SOON, || async { Ok(number(&b, built).await? == 3) }).await.unwrap();
    b.must("alter system reset min_parallel_table_scan_size").await;
    b.must("select pg_reload_conf()").await;
}

/// Temporary objects hide permanent ones.  A statement that goes through uses the permanent object, which every region
/// has; the others are refused.
async fn temporary_objects(lab: &Lab) {
    let b = lab.session(1).await;
    b.must(
        "create table hidden (id int primary key, v text); create sequence hidden_seq; create type hidden_label as enum ('a', 'b');
         create table uses_hidden (id int primary key, n int); insert into uses_hidden values (1, 1);
         create temp table hidden (other int); create temp sequence hidden_seq; create type pg_temp.hidden_label as enum ('b', 'a')",
    )
    .await;
    let mut through = 0;
    for (number, statement) in [
        "alter table uses_hidden alter n set default nextval('hidden_seq')",
        "alter table uses_hidden alter n set default nextval('public.hidden_seq')",
        "alter table uses_hidden add column l hidden_label default 'a'",
        "alter table uses_hidden add column l public.hidden_label default 'a'",
        "alter table uses_hidden alter l type text using l::hidden_label::text",
        "alter table uses_hidden add column h hidden",
        "create table # (l hidden_label default 'a', n int default nextval('hidden_seq'), h hidden)",
        "create table # (like hidden)",
        "create schema # create table t (like hidden)",
        "create view # as select nextval('hidden_seq'), 'a'::hidden_label",
        "create view # as select * from public.hidden",
        "create materialized view # as select 'hidden'::regclass",
        "create table # as select * from hidden",
        "create domain # as hidden_label",
        "create type # as (h hidden[])",
        "create type # as range (subtype = hidden_label)",
        "create function #(h hidden, n bigint default nextval('hidden_seq')) returns setof hidden language sql as 'select null::hidden where false'",
        "create policy # on uses_hidden using (id in (select id from hidden))",
        "create rule # as on insert to uses_hidden where new.n = 2 do insert into hidden values (7)",
        "create index # on uses_hidden ((n::hidden_label::text))",
        "create statistics # on n, (n + 'hidden'::regclass::int) from uses_hidden",
        "create constraint trigger # after insert on uses_hidden from hidden for each row execute function suppress_redundant_updates_trigger()",
    ]
    .iter()
    .enumerate()
    {
        match b.run(&statement.replace('#', &format!("of_hidden_{number}"))).await {
            Ok(()) => through += 1,
            Err(e) => println!("recipes_meaning: {statement}: {}", crate::lab::told(&e)),
        }
    }
    assert!(through >= 5, "{through} statements went through");
    let used = "select count(*) from pg_depend where (pg_identify_object(refclassid, refobjid, 0)).identity ~ 'pg_temp'
                and (pg_identify_object(classid, objid, 0)).identity !~ 'pg_temp'";
    assert_eq!(number(&b, used).await.unwrap(), 0, "a permanent object depends on a temporary one");
    drop(b);
    lab.check_equal(1).await;
}

/// The query of CREATE TABLE AS changes the role or the table's name before there is a row, or an event trigger drops
/// the table.
async fn create_table_as(lab: &Lab) {
    alike(
        lab,
        "create role asking; create role asked; grant create on schema public to asking, asked;
         create function changes(what text) returns text language plpgsql as $$ begin
             case what when 'role' then set role asked; when 'name' then alter table asked_name rename to asked_renamed; else null; end case;
             return what; end $$;
         set role asking; create table asked_role as select changes('role') from generate_series(1, 2); reset role;
         create table asked_name as select changes(case g when 1 then 'name' end) from generate_series(1, 2) g;
         create function drops() returns event_trigger language plpgsql as $$ begin drop table asked_gone; end $$;
         create event trigger drops on ddl_command_end when tag in ('CREATE TABLE AS') execute function drops();
         create table asked_gone as select 1 as one; create table asked_gone as select 1 as one with no data;
         drop event trigger drops",
        "select (select tableowner from pg_tables where tablename = 'asked_role') || (select count(*) from asked_role)
             || (select count(*) from asked_renamed) || coalesce(to_regclass('asked_gone')::text, '')",
    )
    .await;
}

async fn typed_tables(lab: &Lab) {
    let b = lab.session(1).await;
    b.must(
        "create domain by_chance as float default random(); create domain by_rule as float default 7;
         create type of_row as (a int); create table of_type of of_row; insert into of_type values (1), (2)",
    )
    .await;
    let why = b.refused("alter type of_row add attribute b by_chance cascade").await;
    assert_eq!(why.code().code(), "0A000", "{}", why.message());
    alike(lab, "alter type of_row add attribute b by_rule cascade", "select string_agg(o::text, ' ') from of_type o")
        .await;
}

/// Where a table's rows are each region's own, its constraints are checked in every region.
async fn rows_of_one_region(lab: &Lab) {
    let [_, b, c] = lab.sessions().await;
    b.must("create table of_region (id int primary key) using heap; create table refers (id int primary key); insert into refers values (1);
            insert into of_region values (1)")
        .await;
    lab.everywhere().await;
    c.must("insert into of_region values (9)").await;
    for statement in [
        "alter table of_region add check (id < 5)",
        "alter table of_region add foreign key (id) references refers",
        "alter table refers add foreign key (id) references of_region",
    ] {
        let why = b.refused(statement).await;
        assert!(why.message().starts_with("could not commit"), "{statement}: {}", why.message());
    }
    let a = lab.session(0).await;
    a.must("insert into of_region values (1)").await;
    c.must("delete from of_region; insert into of_region values (1)").await;
    alike(
        lab,
        "alter table of_region add check (id < 5); alter table refers add foreign key (id) references of_region",
        "select string_agg(convalidated::text, ' ') from pg_constraint where conrelid in ('of_region'::regclass, 'refers'::regclass)",
    )
    .await;
}

/// A function of an index takes an advisory lock of the session.  Neither the apply worker nor a rehearsal keeps that
/// lock in another region.
async fn advisory_locks(lab: &Lab) {
    let b = lab.session(1).await;
    b.must(
        "create function locking(n int) returns int language plpgsql immutable as 'begin perform pg_advisory_lock(n); return n; end';
         create table locking (id int primary key); create index on locking (locking(id)); insert into locking values (1), (2);
         create index on locking (locking(id + 10)); select pg_advisory_unlock_all()",
    )
    .await;
    lab.shows("select count(*) from pg_locks where locktype = 'advisory' and objid in (1, 2, 11, 12)", "0").await;
}

async fn settings_of_functions(lab: &Lab) {
    let made = alike(
        lab,
        "create role acting;
         create function settled() returns int language plpgsql set work_mem = '1MB' set role = 'acting' set search_path = public, pg_catalog
             as 'begin return 1; end';
         create role spoken login password U&'d!0061t' uescape '!' valid until 'infinity'",
        "select proconfig || (select rolpassword from pg_authid where rolname = 'spoken') from pg_proc where proname = 'settled'",
    )
    .await;
    assert!(made.starts_with("{work_mem=1MB,role=acting,\"search_path=public, pg_catalog\",SCRAM-SHA-256$"), "{made}");
}
