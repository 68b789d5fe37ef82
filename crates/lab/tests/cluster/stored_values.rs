//! Values that a type can contain but its input function refuses, or that mean something only where they were made:
//! they are stored alike in every region, or are refused where they are written.  No region stands still.

use crate::lab::{apart, builder, is, start, start_from, subjects, told, Lab};
use onetrip_lab::Cluster;
use tokio_postgres::error::SqlState;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_region_stores_all_regions_store() {
    let lab = start("stored_values", "values that no input function takes are stored alike in all regions").await;
    subjects!(lab, 11;
        not_read_back, names, refused, compressed, identity_out_of_line, headers_made_shorter,
        settings_of_the_session, many_rolled_back_savepoints, computed_from_oids, partitioned_by_oids
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_hold_while_something_is_renamed() {
    let lab = start(
        "renamed_meanwhile",
        "a rename in one region and a use of the old name in another: one gives way, or both take effect",
    )
    .await;
    subjects!(lab, 4;
        index_renamed_while_written, object_renamed_while_named, function_replaced_while_indexed,
        index_moved_while_written, code_changed_while_computed, code_denied_while_computed,
        array_type_renamed_while_named, index_of_a_constraint_while_named
    );
}

/// Both statements update the relation's row in pg_class; one of them is DDL and the other is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn privileges_change_while_something_is_emptied() {
    let lab = start_from(
        "emptied_meanwhile",
        "GRANT and DROP OWNED in one region, TRUNCATE and REFRESH in another: one gives way, or both take effect",
        builder().topology(apart(30)),
    )
    .await;
    let a = lab.session(0).await;
    a.must(
        "create table emptied (id int generated always as identity primary key, v int);
         insert into emptied (v) values (1);
         create materialized view seen as select id, v from emptied; create unique index on seen (id);
         create role reader",
    )
    .await;
    lab.everywhere().await;
    let mut met = 0;
    for emptied in [
        "truncate emptied restart identity",
        "refresh materialized view seen",
        "refresh materialized view concurrently seen",
    ] {
        for change in [
            "grant select, update (v) on emptied, seen to reader",
            "grant all on all tables in schema public to reader; grant usage on all sequences in schema public to reader",
            "drop owned by reader",
            "grant update on sequence emptied_id_seq to public",
            "revoke all on emptied, emptied_id_seq, seen from public, reader",
        ] {
            // A rehearsal would delay the change until the other statement is over.
            let at_once = format!("set onetrip.rehearse = off; {change}");
            let (left, right) = both(&lab, (1, emptied), (2, &at_once)).await;
            for outcome in [&left, &right] {
                assert!(["ok", "40001"].contains(&outcome.as_str()), "{emptied}: {left}; {change}: {right}");
            }
            met += usize::from(left != right);
            lab.everywhere().await;
        }
    }
    assert!(met > 0, "they never met");
    lab.check_equal(1).await;
}

/// Functions, casts and aggregates can make values that the type's own input function refuses.
async fn not_read_back(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must("create table odd (id int primary key, ci circle, tt timetz, j json, x xml)").await;
    a.must("create type coin as (m money, n int); create table purse (id int primary key, c coin, cs coin[])").await;
    lab.everywhere().await;
    b.must("insert into odd (id, ci) values (1, circle(point(0,0), -1))").await;
    c.must("insert into odd (id, tt) values (2, timezone(interval '20 hours', timetz '12:00+00'))").await;
    a.must(
        "do $$ declare j json := '1'; begin
           for i in 1..20000 loop j := json_build_array(j); end loop;
           insert into odd (id, j) values (3, j);
         end $$",
    )
    .await;
    b.must("insert into odd (id, x) values (4, xmlelement(name a, E'\\x01'))").await;
    c.must(
        "do $$ declare x xml := xmlelement(name a); begin
           for i in 1..300 loop x := xmlelement(name a, x); end loop;
           insert into odd (id, x) values (5, x);
         end $$",
    )
    .await;
    a.must("insert into odd (id, x) values (6, '<?xml version=\"1.0\" encoding=\"latin1\"?><a/>')").await;
    b.must("set lc_monetary = 'C'; insert into purse values (1, row(1234.5::numeric::money, 1), array[row('-7'::money, 2)::coin])").await;
    lab.shows("select string_agg(id || ' ' || coalesce(ci::text, '') || coalesce(tt::text, ''), ',' order by id) from odd where id < 3",
        "1 <(0,0),-1>,2 08:00:00+20").await;
    lab.shows("select length(j::text)::text from odd where id = 3", "40001").await;
    lab.shows_alike(
        "select string_agg(md5(x::text) || xml_is_well_formed(x::text), ',' order by id) from odd where id in (4, 5)",
    )
    .await;
    // The XML declaration is part of the stored value; only the conversion for a client drops it.
    lab.shows_alike("select octet_length(x::text)::text || pg_column_size(x)::text from odd where id = 6").await;
    lab.shows("select (c).m::numeric || ' ' || (cs[1]).m::numeric from purse", "1234.50 -7.00").await;
}

/// OIDs differ between the servers, names do not.
async fn names(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    // Makes OIDs differ between the servers.
    for (region, session) in [&a, &b, &c].into_iter().enumerate() {
        for _ in 0..region * 3 {
            session.must("create temp table shift (a int); drop table shift").await;
        }
    }
    a.must(
        "create schema named; create role named_role;
         create function named.over(int) returns int language sql as 'select 1';
         create function named.over(text) returns int language sql as 'select 2';
         create operator named.=# (leftarg = int, rightarg = int, function = int4eq);
         create operator named.=# (leftarg = text, rightarg = text, function = texteq);
         create type named.mood as enum ('sad', 'ok');
         create domain named.moods as named.mood[];
         create type named.inner_row as (m named.mood, ms named.mood[], c regclass);
         create type named.outer_row as (i named.inner_row, is_ named.inner_row[], r regrole);
         create type named.mood_range as range (subtype = named.mood);
         create table named.all_kinds (id int primary key, p regproc, pp regprocedure, o regoper, oo regoperator, c regclass, t regtype,
           r regrole, n regnamespace, g regconfig, d regdictionary, l regcollation, ac aclitem, acs aclitem[],
           row_ named.outer_row, rng named.mood_range, mrng named.mood_multirange, ms named.moods, rows_ named.outer_row[], cs regclass[])",
    )
    .await;
    lab.everywhere().await;
    let columns = "('named.over(text)'::regprocedure)::oid::regproc, 'named.over(int)', ('named.=#(text,text)'::regoperator)::oid::regoper,
           'named.=#(int,int)', 'named.all_kinds_pkey', 'named.outer_row[]', 'named_role', 'named', 'english', 'simple', '\"C\"',
           makeaclitem('named_role'::regrole, 10, 'SELECT', true), array[makeaclitem(0, 'named_role'::regrole, 'INSERT', false)],
           row(row('ok', '{sad,ok}', 'named.all_kinds'), array[row('sad', '{}', null)::named.inner_row], 'named_role')::named.outer_row,
           '[sad,ok]', '{[sad,sad],[ok,ok]}', '{ok,sad,ok}',
           array[row(null, array[row('ok', array_fill('sad'::named.mood, array[700]), 'pg_class')::named.inner_row], 0)::named.outer_row],
           '{named.all_kinds,NULL,-,pg_type}'";
    for (region, session) in [&a, &b, &c].into_iter().enumerate() {
        session.must(&format!("insert into named.all_kinds select {region}, {columns}")).await;
        session.must(&format!("insert into named.all_kinds select {region} + 10, {columns}")).await;
        session.must(&format!("update named.all_kinds set c = 'named.all_kinds', cs = cs || 'pg_proc'::regclass where id = {region} + 10")).await;
    }
    let shown = "select md5(string_agg((k.*)::text, E'\\n' order by id)) || count(*) || bool_and((rows_[1]).is_[1].ms[700] = 'sad') from named.all_kinds k";
    lab.shows_alike(shown).await;
    // An object that was renamed has its new name everywhere.
    b.must("alter type named.mood rename value 'ok' to 'fine'; alter table named.all_kinds rename to every_kind").await;
    lab.shows(
        "select string_agg(distinct c::text || ms::text, ' ' order by c::text || ms::text) from named.every_kind",
        "named.all_kinds_pkey{fine,sad,fine} named.every_kind{fine,sad,fine}",
    )
    .await;
}

/// A value that no other region could make sense of is refused where it is written, and no region stands still.
async fn refused(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    a.must(
        "create table only_here (id int primary key, c regclass, t regtype, n regnamespace, ac aclitem, tree pg_node_tree);
         create type with_tree as (a int, tree pg_node_tree); create table trees (id int primary key, w with_tree);
         create table toasted (id int primary key, v text)",
    )
    .await;
    lab.everywhere().await;
    b.must("create temp table mine (a int)").await;
    for value in [
        "(1, 'mine')",
        "(1, (select reltoastrelid::regclass from pg_class where oid = 'toasted'::regclass))",
        "(1, null, 'mine')",
        "(1, null, null, pg_my_temp_schema()::regnamespace)",
        "(1, null, null, null, makeaclitem(987654, 10, 'SELECT', false))",
        "(1, 4000000000)",
        "(1, null, null, null, null, (select ev_action from pg_rewrite limit 1))",
    ] {
        let refusal = b.refused(&format!("insert into only_here values {value}")).await;
        assert_eq!(refusal.code().code(), "0A000", "{value}: {refusal}");
        assert!(refusal.hint().is_some(), "{value}: {refusal}");
    }
    let refusal = b.refused("insert into trees values (1, row(1, (select ev_action from pg_rewrite limit 1)))").await;
    assert_eq!(refusal.code().code(), "0A000", "{refusal}");
    lab.shows("select count(*) from only_here", "0").await;
}

/// A hash of OIDs would send the same row to another partition elsewhere.
async fn partitioned_by_oids(lab: &Lab) {
    let a = lab.session(0).await;
    a.must(
        "create type part_mood as enum ('x', 'y');
         create table by_hash (m part_mood, id int, primary key (m, id)) partition by hash (m);
         create table by_hash_0 partition of by_hash for values with (modulus 2, remainder 0);
         create table by_hash_1 partition of by_hash for values with (modulus 2, remainder 1);
         create table by_list (m part_mood, id int, primary key (m, id)) partition by list (m);
         create table by_list_x partition of by_list for values in ('x')",
    )
    .await;
    assert_eq!(a.refused("insert into by_hash values ('x', 1)").await.code().code(), "0A000");
    a.must("insert into by_list values ('x', 1)").await;
    lab.shows("select count(*) from by_list where m = 'x'", "1").await;
}

/// What an index computes from OIDs would differ between servers; two regions insert the same object at once.
async fn computed_from_oids(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("create table by_oid (id int primary key, r regclass)").await;
    for index in
        ["unique index on by_oid ((r::oid::int8))", "index on by_oid ((100 / ('by_oid'::regclass::oid::int - id)))"]
    {
        assert_eq!(a.refused(&format!("create {index}")).await.code().code(), "0A000", "{index}");
    }
    a.must("create unique index on by_oid (r) where r <> 'pg_class'::regclass").await;
    lab.everywhere().await;
    let outcomes =
        both(lab, (0, "insert into by_oid values (1, 'by_oid')"), (1, "insert into by_oid values (2, 'by_oid')")).await;
    for outcome in [&outcomes.0, &outcomes.1] {
        assert!(["ok", "40001", "23505"].contains(&outcome.as_str()), "{outcome}");
    }
    lab.shows("select count(*) from by_oid", "1").await;
    // A session with too many settings to send them along with a row.
    a.must(
        "create function plain(int) returns int language plpgsql immutable as 'begin return $1; end';
            create table by_plain (id int primary key); create index on by_plain (plain(id))",
    )
    .await;
    a.must("do $$ begin for i in 1..200 loop perform set_config('zz.k' || i, 'x', false); end loop; end $$").await;
    assert_eq!(a.refused("insert into by_plain values (1)").await.code().code(), "54000");
    lab.shows("select count(*) from by_plain", "0").await;
}

/// A value that fits where it is written fits everywhere, in indexes too.
async fn compressed(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must(
        "create table fits (id int primary key, v text); create index on fits (v);
         create table source (id int primary key, v text);
         create table as_is (id int primary key, e text, p text); alter table as_is alter e set storage external, alter p set storage plain;
         create index on as_is (e); create unique index on as_is (p);
         create table computed (id int primary key, v text); create index on computed ((v || v));
         create table only_in_index (id int primary key, v text) with (toast_tuple_target = 8160); create index on only_in_index (v)",
    )
    .await;
    lab.everywhere().await;
    // lz4 finds that the end repeats the beginning, which is too far away for pglz: only with lz4 it fits the index.
    b.must("set default_toast_compression = lz4;
            insert into fits select 1, n || repeat('x', 4000) || n from (select string_agg(md5(i::text), '') n from generate_series(1, 70) i) noise;
            insert into only_in_index select 1, n || repeat('x', 300)
                from (select string_agg(md5(i::text), '') n from generate_series(1, 81) i) noise;
            insert into computed select 1, repeat('0123456789abcdef', 100)").await;
    c.must("insert into source values (1, repeat('xyz', 3000)); insert into as_is select id, v, v from source").await;
    lab.everywhere().await;
    a.must("update as_is set id = 2; set default_toast_compression = lz4; update fits set v = v || 'x' where id = 1; update fits set id = 3").await;
    let shown = "select string_agg(md5(v) || coalesce(pg_column_compression(v), 'none'), '') from fits";
    lab.shows_alike(shown).await;
    lab.shows(
        "select pg_column_compression(e) || pg_column_compression(p) || length(e) || id from as_is",
        "pglzpglz90002",
    )
    .await;
}

/// A row whose identity is stored out of line is found, also by an update of other columns.
async fn identity_out_of_line(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must("create table d (k text primary key, v int, w text); alter table d alter k set storage external").await;
    lab.everywhere().await;
    b.must("insert into d select string_agg(md5(i::text), ''), 0, '' from generate_series(1, 70) i").await;
    lab.everywhere().await;
    c.must("update d set v = 1").await;
    lab.everywhere().await;
    a.must("update d set w = repeat('w', 5000), v = v + 1").await;
    lab.everywhere().await;
    b.must("update d set k = k || 'x'").await;
    lab.shows("select length(k) || ' ' || v || ' ' || length(w) from d", "2241 2 5000").await;
    c.must("delete from d").await;
    lab.shows("select count(*) from d", "0").await;
}

/// What some array functions return is stored with headers of four bytes.  The next UPDATE of the row shortens them
/// to one byte, which makes room for a longer value, in every region.
async fn headers_made_shorter(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    let columns: Vec<String> = (1..=200).map(|n| format!("a{n} int[]")).collect();
    let values = vec!["array_append(x, 2)"; 200].join(", ");
    a.must(&format!("create table wide (id int primary key, {}, t text)", columns.join(", "))).await;
    let main: Vec<String> = (1..=200).map(|n| format!("alter a{n} set storage main")).collect();
    a.must(&format!("alter table wide alter t set storage plain, {}", main.join(", "))).await;
    lab.everywhere().await;
    b.must(&format!("insert into wide select 1, {values}, '' from (select '{{}}'::int[] as x offset 0) as s")).await;
    lab.everywhere().await;
    let sizes = "select pg_column_size(a1) || ' ' || pg_column_size(a200) || ' ' || length(t) from wide";
    lab.shows(sizes, "28 28 0").await;
    c.must("update wide set t = repeat('t', 400)").await;
    lab.shows(sizes, "25 25 400").await;
}

/// An index evaluates its expressions with the settings of the session that wrote the row.
async fn settings_of_the_session(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must(
        "create function mine(int) returns text language plpgsql immutable as
           $$ begin return current_setting('my.x', true) || $1; end $$;
         create table by_settings (id int primary key, by bytea, n int, f float8);
         create unique index on by_settings ((by::text)); create unique index on by_settings (mine(n)); create unique index on by_settings ((f::text))",
    )
    .await;
    lab.everywhere().await;
    a.must("set bytea_output = hex; insert into by_settings values (1, '\\x61', 1, 0.1::float8 + 0.2)").await;
    lab.everywhere().await;
    b.must("set bytea_output = escape; set my.x = 'b'; set extra_float_digits = 0; insert into by_settings values (2, '\\x61', 1, 0.1::float8 + 0.2)").await;
    lab.everywhere().await;
    c.must("set my.x = 'c'; set extra_float_digits = 2; insert into by_settings values (3, '\\x62', 1, 0.7)").await;
    lab.shows("select count(*) from by_settings", "3").await;
    a.must("set my.x = 'a'; update by_settings set n = 2 where id = 1; delete from by_settings where id = 3").await;
    lab.shows("select string_agg(id || ' ' || n, ',' order by id) from by_settings", "1 2,2 1").await;
}

/// A savepoint that is rolled back leaves nothing behind, not even a table that has to be opened again.
async fn many_rolled_back_savepoints(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("create table taken (id int primary key); insert into taken select generate_series(1, 10)").await;
    a.must(
        "do $$ begin
           for i in 1..70000 loop
             begin
               insert into taken values (i % 10 + 1);
             exception when unique_violation then
               if i % 10 = 0 then insert into taken values (i + 100); end if;
             end;
           end loop;
         end $$",
    )
    .await;
    lab.shows("select count(*) from taken", "7010").await;
}

/// Runs both statements at once, each in its region; returns "ok" or the SQLSTATE of each.
async fn both(cluster: &Cluster, first: (usize, &str), second: (usize, &str)) -> (String, String) {
    let run = |(region, sql): (usize, &str)| {
        let conninfo = cluster.node(region).conninfo();
        let sql = sql.to_string();
        async move {
            let session = crate::lab::Session::open(&conninfo).await.expect("connect");
            // Who loses is to be seen.
            session.must("set onetrip.statement_retries = 0").await;
            match session.run(&sql).await {
                Ok(()) => "ok".to_string(),
                Err(error) => error.code().map_or_else(|| error.to_string(), |code| code.code().to_string()),
            }
        }
    };
    tokio::join!(run(first), run(second))
}

async fn index_renamed_while_written(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("create table renamed (id int primary key, v int, constraint v_is_unique unique (v), exclude using gist (box(point(id, id), point(id, id)) with &&))").await;
    lab.everywhere().await;
    // Conflicts on a value must be seen whatever the index is called on either side.
    let mut lost = 0;
    for i in 0..40 {
        let (from, to) = if i % 2 == 0 { ("v_is_unique", "v_was_unique") } else { ("v_was_unique", "v_is_unique") };
        let rename = format!("alter index {from} rename to {to}");
        let insert_b = format!("insert into renamed values ({}, {i})", 1000 + i);
        let insert_c = format!("insert into renamed values ({}, {i})", 2000 + i);
        let (renamed, (b, c)) = tokio::join!(
            async { both(lab, (0, &rename), (0, "select 1")).await.0 },
            both(lab, (1, &insert_b), (2, &insert_c))
        );
        for outcome in [&renamed, &b, &c] {
            assert!(["ok", "40001", "23505"].contains(&outcome.as_str()), "{outcome}");
        }
        assert!(!(b == "ok" && c == "ok"), "the unique value {i} was inserted twice");
        lost += [&b, &c].iter().filter(|o| *o == &"40001").count();
        if renamed != "ok" {
            // What it has lost to may not be shown here yet.
            lab.everywhere().await;
            a.must(&rename).await;
        }
        lab.everywhere().await;
    }
    assert!(lost > 0, "the regions never met");
    lab.shows("select (count(*) = count(distinct v))::text from renamed", "true").await;
}

async fn object_renamed_while_named(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("create type feeling as enum ('x'); create table foo (a int); create role renamed_role; create table naming (id int primary key, c regclass, ac aclitem, f feeling[])").await;
    lab.everywhere().await;
    let mut table = "foo";
    let mut role = "renamed_role";
    let mut label = "feeling";
    for i in 0..30 {
        let next_table = if table == "foo" { "bar" } else { "foo" };
        let next_role = if role == "renamed_role" { "role_renamed" } else { "renamed_role" };
        let next_label = if label == "feeling" { "sentiment" } else { "feeling" };
        let rename = format!("alter table {table} rename to {next_table}; alter role {role} rename to {next_role}; alter type {label} rename to {next_label}");
        let insert = format!(
            "insert into naming values ({i}, '{table}', makeaclitem('{role}'::regrole, 10, 'SELECT', false), '{{x}}')"
        );
        let (renamed, inserted) = both(lab, (0, &rename), (1 + i % 2, &insert)).await;
        assert!(["ok", "40001"].contains(&renamed.as_str()), "{renamed}");
        assert!(["ok", "40001", "42P01", "42704"].contains(&inserted.as_str()), "{inserted}");
        if renamed == "ok" {
            (table, role, label) = (next_table, next_role, next_label);
        }
        lab.everywhere().await;
    }
    let shown =
        "select count(*) || ' ' || coalesce(string_agg(distinct c::text || ac::text || f::text, ' '), '') from naming";
    let here = lab.shows_alike(shown).await;
    assert!(here.contains(&format!("{table}{role}=r")), "{here}");
    a.must(&format!("drop table {table}")).await;
    lab.everywhere().await;
}

async fn function_replaced_while_indexed(lab: &Lab) {
    let a = lab.session(0).await;
    let version = |n: i32| {
        format!("create or replace function f_of(int) returns int language sql immutable as 'select $1 % {n}'")
    };
    a.must(&format!(
        "{}; create table by_function (id int primary key, v int); create unique index on by_function (f_of(v))",
        version(1_000_000)
    ))
    .await;
    lab.everywhere().await;
    for i in 0..20 {
        let replace = version(1_000_000 + i);
        let (replaced, inserted) =
            both(lab, (0, &replace), (1, &format!("insert into by_function values ({i}, {i})"))).await;
        for outcome in [&replaced, &inserted] {
            assert!(["ok", "40001"].contains(&outcome.as_str()), "{outcome}");
        }
        lab.everywhere().await;
    }
    lab.shows("select (count(*) > 0)::text from by_function", "true").await;
}

/// SET TABLESPACE and other commands lock an index and not its table.
async fn index_moved_while_written(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("create table moved (id int primary key, v int); create index moved_v on moved (v)").await;
    lab.everywhere().await;
    for i in 0..30 {
        let alter = if i % 2 == 0 {
            "alter index moved_v set (fillfactor = 70)"
        } else {
            "alter index moved_v set tablespace pg_default"
        };
        let insert_b = format!("insert into moved values ({i}, {i})");
        let insert_a = format!("insert into moved values ({}, {i})", i + 100);
        let (altered, (b, c)) = tokio::join!(
            async { both(lab, (0, alter), (0, "select 1")).await.0 },
            both(lab, (1, &insert_b), (0, &insert_a))
        );
        for outcome in [&altered, &b, &c] {
            assert!(["ok", "40001"].contains(&outcome.as_str()), "{outcome}");
        }
        lab.everywhere().await;
    }
    for region in 0..3 {
        let session = lab.session(region).await;
        assert_eq!(
            crate::lab::number(&session, "select handovers from onetrip.status").await.unwrap(),
            0,
            "a lock without a key"
        );
    }
}

/// One region changes what an index computes, by changing what the index's function uses, while another computes it.
async fn code_changed_while_computed(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    a.must(
        "create function inner_f(int) returns int immutable language plpgsql as 'begin return $1; end';
         create function outer_f(int) returns int immutable language plpgsql as 'begin return public.inner_f($1); end';
         create table by_outer (id int primary key, v int); create unique index on by_outer (outer_f(v));
         create text search dictionary words (template = simple);
         create text search configuration texts (copy = simple);
         alter text search configuration texts alter mapping for asciiword with words;
         create table by_text (id int primary key, v text); create unique index on by_text (to_tsvector('texts', v));
         create table by_word (id int primary key, v text); create unique index on by_word (ts_lexize('words', v));
         create function allowed(text) returns bool immutable language plpgsql as 'begin return true; end';
         create domain checked as text check (allowed(value));
         create table by_domain (id int primary key, v text); create unique index on by_domain ((v::checked));
         create type letter as enum ('x', 'y');
         create function letter_of(int) returns letter immutable language plpgsql as $$ begin return case when $1 % 2 = 0 then 'x' else 'y' end; end $$;
         create table by_letter (id int primary key, v int); create index on by_letter (letter_of(v))",
    )
    .await;
    let cases = [
        ("insert into by_outer values (1, 5), (2, -5)", "create or replace function inner_f(int) returns int immutable language plpgsql as 'begin return abs($1); end'"),
        ("insert into by_text values (1, 'the'), (2, 'of')", "alter text search dictionary words (stopwords = english)"),
        ("insert into by_word values (1, 'the')", "alter text search dictionary words (stopwords)"),
        ("insert into by_domain values (1, 'bad')", "create or replace function allowed(text) returns bool immutable language plpgsql as 'begin return $1 <> ''bad''; end'"),
        ("insert into by_letter values (1, 1)", "alter type letter rename value 'y' to 'z'"),
    ];
    for (write, change) in cases {
        lab.everywhere().await;
        b.must(&format!("delete from {}", write.split(' ').nth(2).unwrap())).await;
        b.must(&format!("begin; {write}")).await;
        // The writer holds its lock in region b, so this does not wait in region a.
        let changed = a.run(change).await;
        let wrote = b.run("commit").await;
        assert!(changed.is_err() || wrote.is_err(), "{write} and {change} both went through");
        lost_if_any(&changed);
        lost_if_any(&wrote);
        if wrote.is_err() {
            let _ = b.run("rollback").await;
        }
        lab.everywhere().await;
    }
}

/// One region takes away the right to call what an index computes with, while another computes it, or has prepared it.
async fn code_denied_while_computed(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    a.must(
        "create schema code; create role callers; create role app in role callers; create role boss superuser;
         create function code.called(int) returns int immutable language plpgsql as 'begin return $1; end';
         create function code.calls(int) returns int immutable language plpgsql as 'begin return code.called($1); end';
         revoke all on function code.called(int), code.calls(int) from public;
         create table by_called (id int primary key, v int); create index on by_called (code.calls(v));
         grant all on by_called to app",
    )
    .await;
    a.must("grant usage on schema code to callers; grant execute on all functions in schema code to callers").await;
    lab.everywhere().await;
    let changes = [
        ("boss", "alter role boss nosuperuser"),
        ("app", "revoke execute on function code.calls(int) from callers"),
        ("app", "revoke execute on all functions in schema code from callers, public"),
        ("app", "revoke execute on routine code.called from callers"),
        ("app", "revoke usage on schema code from callers"),
        ("app", "revoke callers from app"),
        ("app", "alter group callers drop user app"),
        ("app", "drop owned by callers"),
        ("app", "alter role app noinherit"),
    ];
    b.must("set role app; begin; insert into by_called values (1, 1); prepare transaction 'of app'; reset role").await;
    b.must("set role boss; begin; insert into by_called values (2, 2); prepare transaction 'of boss'; reset role")
        .await;
    for (_, change) in changes {
        let error = a.run(change).await.expect_err(change);
        assert!(is(&error, &SqlState::T_R_SERIALIZATION_FAILURE), "{change}: {}", told(&error));
    }
    // What gives rights, or is not about calls, need not wait for that.
    a.must("grant execute on function code.calls(int) to app; alter role app password 'secret'").await;
    a.must("revoke insert on by_called from callers").await;
    a.must("commit prepared 'of app'").await;
    a.must("commit prepared 'of boss'").await;
    lab.shows("select count(*)::text from by_called", "2").await;
    a.must("revoke execute on function code.calls(int) from app").await;
    for (role, change) in [changes[0], changes[4]] {
        lab.everywhere().await;
        b.must(&format!("set role {role}; begin; insert into by_called values (3, 3)")).await;
        a.must(change).await;
        let wrote = b.run("commit").await;
        assert!(wrote.is_err(), "{change}: both went through");
        lost_if_any(&wrote);
        b.must("rollback; reset role").await;
    }
}

fn lost_if_any(result: &Result<(), tokio_postgres::Error>) {
    if let Err(error) = result {
        assert!(is(error, &SqlState::T_R_SERIALIZATION_FAILURE), "{}", told(error));
    }
}

/// PostgreSQL renames an array type when a new type takes its name.
async fn array_type_renamed_while_named(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    a.must("create type thing as enum ('x'); create table things (id int primary key, t regtype)").await;
    lab.everywhere().await;
    b.must("begin; insert into things values (1, 'thing[]')").await;
    let renamed = a.run("create type _thing as enum ('z')").await;
    let wrote = b.run("commit").await;
    assert!(renamed.is_err() || wrote.is_err(), "both went through");
    lost_if_any(&renamed);
    lost_if_any(&wrote);
    if wrote.is_err() {
        b.must("insert into things values (1, 'thing[]')").await;
    }
    lab.shows("select t::text from things", "thing[]").await;
}

/// A constraint gives the index that it is made of its own name.
async fn index_of_a_constraint_while_named(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    a.must(
        "create table constrained (id int not null); create unique index by_hand on constrained (id);
         create table watched (id int primary key, r regclass)",
    )
    .await;
    lab.everywhere().await;
    b.must("begin; insert into watched values (1, 'by_hand')").await;
    a.must("alter table constrained add constraint by_constraint unique using index by_hand").await;
    let wrote = b.run("commit").await;
    assert!(wrote.is_err(), "both went through");
    lost_if_any(&wrote);
    lab.everywhere().await;
    b.must("insert into watched values (1, 'by_constraint')").await;
    lab.shows("select r::text from watched", "by_constraint").await;
}
