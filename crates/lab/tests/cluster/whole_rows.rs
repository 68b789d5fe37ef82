//! Tables without a primary key take updates and deletes: a row is found by its whole contents, and of equal rows any
//! one will do.

use std::time::{Duration, Instant};

use onetrip_lab::torture::random::Random;

use crate::lab::{duration, start, subjects, Lab, Session};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_without_a_key_are_updated_in_any_region() {
    let lab = start("whole_rows", "tables without a primary key take updates and deletes in any region").await;
    subjects!(lab, 13;
        equal_rows, every_kind_of_column, changed_tables, changed_row_types, other_forms, few_values, own_rows, many_rows, deferred_keys, moved_rows, nobody_is_evicted_in_vain,
        equal_rows_conflict, everybody_moves_rows
    );
}

async fn equal_rows(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must("create table equal (v int, t text); insert into equal select 1, 'x' from generate_series(1, 5)").await;
    lab.everywhere().await;
    b.must("delete from equal where ctid = (select max(ctid) from equal)").await;
    lab.everywhere().await;
    c.must("update equal set v = 2 where ctid = (select min(ctid) from equal)").await;
    lab.everywhere().await;
    a.must("update equal set t = null where ctid = (select ctid from equal where v = 1 limit 1 offset 1)").await;
    lab.everywhere().await;
    b.must("delete from equal where t is null").await;
    lab.shows("select string_agg(v || t, ' ' order by v) from equal", "1x 1x 2x").await;
}

/// Values of every layout: long ones, compressed ones, OIDs at any depth, and those that an operator calls equal.
async fn every_kind_of_column(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    for (region, session) in [&a, &b, &c].into_iter().enumerate() {
        for _ in 0..region * 3 {
            session.must("create temp table shift (a int); drop table shift").await;
        }
    }
    a.must(
        "create type feeling as enum ('sad', 'ok');
         create type felt as (f feeling, fs feeling[], c regclass);
         create table columns (n int, gone int, f float8, d numeric, t text, plain text, j jsonb, e feeling, r regclass,
             w felt, ws felt[], u uuid, b bytea, i interval, ts timestamptz, bp char(8), ft felt,
             made int generated always as (n * 2) stored);
         alter table columns alter plain set storage external; alter table columns drop gone",
    )
    .await;
    lab.everywhere().await;
    let value = "'columns'::regclass, row('ok', '{sad,ok}', 'columns')::felt, array[row('sad', '{}', null)::felt]";
    b.must(&format!(
        "insert into columns select g, case g % 3 when 0 then 0.0 when 1 then '-0'::float8 else 'nan' end,
            ('1.' || repeat('0', g % 5))::numeric, repeat('long ' || g % 4, 1000 * (g % 4)), repeat('out', 2000 * (g % 3)),
            jsonb_build_object('a', g % 2), 'ok'::feeling, {value}, null::uuid, sha256('x'::bytea), interval '1 mon', timestamptz 'epoch', 'x', null::felt from generate_series(1, 60) g;
         insert into columns select * from (select n, f, d, t, plain, j, e, r, w, ws, u, b, i, ts, bp, ft from columns) s"
    ))
    .await;
    lab.everywhere().await;
    // One of each two, then a column of each kind.
    c.must("delete from columns k where ctid = (select min(ctid) from columns o where o.n = k.n)").await;
    lab.shows("select count(*)::text from columns", "60").await;
    for (n, change) in [
        "t = t || '!'",
        "plain = 'short'",
        "j = j || '{\"b\": 1}'",
        "e = 'sad'",
        "r = 'pg_class'",
        "w.f = 'sad'",
        "ws = ws || row('ok', null, 'columns')::felt",
        "ft = row('ok', null, 'columns')::felt",
        "f = -f, d = d + 0.0",
        "n = n + 100",
        "t = null",
    ]
    .iter()
    .enumerate()
    {
        [&a, &b, &c][n % 3].must(&format!("update columns set {change} where n % 3 = {}", n % 3)).await;
        lab.everywhere().await;
        lab.check_equal(1).await;
    }
    a.must("delete from columns where n % 2 = 0").await;
    lab.everywhere().await;
    b.must("delete from columns").await;
    lab.shows("select count(*)::text from columns", "0").await;
}

/// Columns that came later have a value that is not in the row; dropped ones still are.
async fn changed_tables(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must("create table changing (v int, w text); insert into changing select g, g from generate_series(1, 20) g")
        .await;
    a.must("alter table changing add column late text default 'late', add column none int").await;
    lab.everywhere().await;
    b.must("delete from changing where v > 15; update changing set w = 'b' where v < 3").await;
    lab.everywhere().await;
    c.must("alter table changing drop column w").await;
    lab.everywhere().await;
    c.must("vacuum full changing").await;
    b.must("delete from changing where v > 10; update changing set late = 'more' where v < 3").await;
    lab.everywhere().await;
    // In one region only: rows are elsewhere in the file, and an index is another one.
    c.must("create index changing_v on changing (v)").await;
    lab.everywhere().await;
    c.must("cluster changing using changing_v").await;
    c.must("reindex index concurrently changing_v").await;
    a.must("update changing set none = v; delete from changing where v > 8").await;
    lab.shows(
        "select string_agg(v || late || none, ',' order by v) from changing",
        "1more1,2more2,3late3,4late4,5late5,6late6,7late7,8late8",
    )
    .await;
}

/// Values of a row type from before and after a column was added to it or dropped from it.
async fn changed_row_types(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must(
        "create type part as (a int, b text); create table parts (n int, p part, ps part[]);
         insert into parts select g % 2, row(g / 3, 'x')::part, array[row(1, 'y')::part, null] from generate_series(1, 12) g",
    )
    .await;
    lab.everywhere().await;
    b.must("alter type part add attribute c int").await;
    lab.everywhere().await;
    c.must("insert into parts values (0, row(1, 'x', null), null), (0, row(1, 'x', 5), null), (0, null, null)").await;
    lab.everywhere().await;
    lab.check_equal(1).await;
    a.must("delete from parts where ctid = (select max(ctid) from parts where (p).c is null and (p).a = 1)").await;
    lab.everywhere().await;
    b.must("update parts set n = 2 where (p).a = 2; delete from parts where p is null").await;
    lab.everywhere().await;
    c.must("alter type part drop attribute b").await;
    lab.everywhere().await;
    a.must("insert into parts values (0, row(1, 5), null); delete from parts where n = 1").await;
    lab.everywhere().await;
    b.must("update parts set p.c = 6, ps = ps || row(1, 2)::part where (p).a = 1").await;
    lab.everywhere().await;
    lab.check_equal(1).await;

    // What was an attribute once contains OIDs, and they differ.
    for (region, session) in [&a, &b, &c].into_iter().enumerate() {
        for _ in 0..region * 3 {
            session.must("create temp table shift (a int); drop table shift").await;
        }
    }
    a.must(
        "create type hue as enum ('red', 'green'); create type toned as (h hue, n int); create table tones (t toned, ts toned[]);
         insert into tones select row('red', g)::toned, array[row('green', g)::toned] from generate_series(1, 3) g;
         alter type toned drop attribute h",
    )
    .await;
    lab.everywhere().await;
    lab.check_equal(1).await;
    b.must("delete from tones where (t).n = 1").await;
    lab.everywhere().await;
    c.must("update tones set t.n = 5 where (t).n = 2").await;
    lab.shows("select string_agg(t::text, ' ' order by t) from tones", "(3) (5)").await;
}

/// Equal rows are stored in different forms, and the changed one has room only in the form that it had there.
async fn other_forms(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must(
        "create table formed (k int, a text, b text); alter table formed alter a set storage plain, alter b set storage plain;
         insert into formed values (1, repeat('x', 7000), '');
         alter table formed alter a set storage main; insert into formed values (1, repeat('x', 7000), '');
         alter table formed alter a set storage plain",
    )
    .await;
    lab.everywhere().await;
    b.must("update formed set b = repeat('y', 1500) where ctid = (select max(ctid) from formed)").await;
    lab.everywhere().await;
    // Without any change of storage: other columns decide what is compressed.
    let names: Vec<String> = (1..99).map(|n| format!("n{n} name")).collect();
    let set: Vec<String> = (1..99).map(|n| format!("n{n} = 'set'")).collect();
    a.must(&format!("create table wide (a text, b text, c text, {})", names.join(", "))).await;
    a.must(
        "insert into wide values (repeat('x', 1900), null, null), (repeat('x', 1900), null, repeat('long ', 2000)); update wide set c = null where c is not null",
    )
    .await;
    lab.everywhere().await;
    c.must(&format!(
        "update wide set c = (select string_agg(md5(g::text), '') from generate_series(1, 300) g), {} where ctid = (select max(ctid) from wide)",
        set.join(", ")
    ))
    .await;
    lab.everywhere().await;
    b.must("delete from formed where b = ''; update wide set b = 'b'; delete from wide where c is null").await;
    lab.shows(
        "select length(a) || ' ' || length(b) || ' ' || (select length(c) || n98 from wide) from formed",
        "7000 1500 9600set",
    )
    .await;
}

/// An index on few values helps nobody: the table is read on.
async fn few_values(lab: &Lab) {
    let b = lab.session(1).await;
    b.must("create table few (v int, flag bool); create index on few (flag)").await;
    b.must("insert into few select g, g % 2 = 0 from generate_series(1, 20000) g").await;
    lab.everywhere().await;
    for session in lab.sessions().await {
        session.must("analyze few").await;
    }
    let began = Instant::now();
    b.must("update few set v = v + 1; delete from few where flag").await;
    lab.shows("select count(*) || ' ' || sum(v) from few", "10000 100010000").await;
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// A transaction changes the rows that it made, some of which equal others.
async fn own_rows(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("create table own (v int); insert into own values (1), (1), (2)").await;
    a.must(
        "begin; insert into own values (1), (2), (3); update own set v = v + 1; update own set v = v - 1 where v = 2;
         savepoint s; delete from own; rollback to s; delete from own where ctid = (select max(ctid) from own where v = 1); commit",
    )
    .await;
    lab.shows("select string_agg(v::text, ',' order by v) from own", "1,1,3,3,4").await;
}

/// Rows are changed in the order in which they are stored, so that the table is not read anew for each one.
async fn many_rows(lab: &Lab) {
    let b = lab.session(1).await;
    b.must("create table many (v int, t text); insert into many select g, 'text' from generate_series(1, 30000) g")
        .await;
    lab.everywhere().await;
    let began = Instant::now();
    b.must("update many set t = 'new'").await;
    b.must("update many set v = -v where v % 3 = 0").await;
    b.must("delete from many where v > 0").await;
    lab.shows("select count(*) || ' ' || sum(v) from many", "10000 -150015000").await;
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

async fn deferred_keys(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must(
        "create table deferred (id int primary key deferrable, v text);
         create table told (id int not null unique, v text); create table of_told (id int references told (id));
         insert into deferred select g, g from generate_series(1, 10) g; insert into told select * from deferred",
    )
    .await;
    lab.everywhere().await;
    b.must("begin; set constraints all deferred; update deferred set id = 11 - id; commit; update told set v = 'b' where id = 2").await;
    lab.everywhere().await;
    c.must("update deferred set v = 'c' where id = 1; delete from deferred where id = 5; update told set id = 20 where id = 10").await;
    lab.everywhere().await;
    a.must("insert into of_told values (2); update deferred set id = id + 1").await;
    lab.shows(
        "select string_agg(id || v, ',' order by id) from deferred",
        "2c,3 9,4 8,5 7,7 5,8 4,9 3,10 2,11 1".replace(' ', "").as_str(),
    )
    .await;
    lab.shows("select string_agg(id || v, ',' order by id) from told", "11,2b,33,44,55,66,77,88,99,2010").await;
    assert_eq!(b.refused("insert into deferred values (2, 'twice')").await.code().code(), "23505");
}

async fn moved_rows(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must(
        "create table moved (k int, v text) partition by list (k);
         create table moved_1 partition of moved for values in (1);
         create table moved_2 partition of moved for values in (2);
         insert into moved values (1, 'a'), (1, 'a'), (2, 'a'), (2, 'b')",
    )
    .await;
    lab.everywhere().await;
    b.must("update moved set k = 3 - k where v = 'a'").await;
    lab.everywhere().await;
    c.must("delete from moved where k = 1; merge into moved using (values ('b'), ('c')) s(v) on moved.v = s.v when matched then update set v = 'B' when not matched then insert values (1, s.v)").await;
    lab.shows("select string_agg(k || v, ',' order by k, v) from moved", "1c,2B,2a,2a").await;
}

/// Who inserts a row that equals one that is deleted elsewhere is not in its way.
async fn nobody_is_evicted_in_vain(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    a.must("create table inserted (v int); insert into inserted values (1)").await;
    lab.everywhere().await;
    b.must("begin; insert into inserted values (1)").await;
    a.must("delete from inserted").await;
    lab.shows("select count(*)::text from inserted", "0").await;
    b.must("commit").await;
    lab.shows("select count(*)::text from inserted", "1").await;
}

/// Who has locked or changed one of two equal rows gives way to whoever changes one elsewhere.
async fn equal_rows_conflict(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("create table twins (v int, t text); insert into twins select 1, 'x' from generate_series(1, 30)").await;
    lab.everywhere().await;
    for held in [
        "select * from twins where ctid = (select min(ctid) from twins) for update",
        "select * from twins where ctid = (select min(ctid) from twins) for key share",
        "select * from twins for share",
        "update twins set t = 'y' where ctid = (select min(ctid) from twins)",
        "delete from twins where ctid = (select max(ctid) from twins)",
        "delete from twins",
    ] {
        let b = lab.session(1).await;
        b.must("begin").await;
        b.must(held).await;
        a.must("delete from twins where ctid = (select min(ctid) from twins)").await;
        lab.everywhere().await;
        let error = b.run("commit").await.expect_err(held);
        let code = match error.code() {
            Some(code) => code.clone(),
            // It was idle for too long and was ended.
            None => b.ended_by().await.expect(held).code().clone(),
        };
        assert_eq!(code.code(), "40001", "{held}");
    }
    lab.shows("select count(*)::text from twins where v = 1 and t = 'x'", "24").await;
}

/// Each transaction moves one row from one value to another, so the number of rows stays, and of each value there are
/// as many as were moved there.
async fn everybody_moves_rows(lab: &Lab) {
    const VALUES: usize = 6;
    const ROWS: usize = 60;
    let a = lab.session(0).await;
    for (table, more) in [
        ("heap_moves", ""),
        ("index_moves", "create index on index_moves (v, t)"),
        ("unique_moves", "alter table unique_moves add id int primary key deferrable"),
    ] {
        a.must(&format!("create table {table} (v int, t text); {more}")).await;
        let id = if table == "unique_moves" { ", g" } else { "" };
        a.must(&format!("insert into {table} select g % {VALUES}, 'row'{id} from generate_series(1, {ROWS}) g")).await;
    }
    lab.everywhere().await;
    let until = Instant::now() + duration(12);
    let clients = (0..9).map(|client| {
        let conninfo = lab.node(client % 3).conninfo();
        tokio::spawn(async move {
            let session = Session::open(&conninfo).await.expect("connect");
            let mut random = Random::new(77 + client as u64);
            let mut moved = vec![0i64; VALUES * 3];
            let mut done = 0;
            while Instant::now() < until {
                let table = random.index(3);
                let name = ["heap_moves", "index_moves", "unique_moves"][table];
                let (from, to) = (random.index(VALUES), random.index(VALUES));
                let sql = match random.draw(4) {
                    0 => format!("update {name} set v = {to} where ctid = (select ctid from {name} where v = {from} limit 1 for update skip locked)"),
                    1 => format!("update {name} set v = {to} where ctid = (select max(ctid) from {name} where v = {from})"),
                    2 if table < 2 => format!("with gone as (delete from {name} where ctid = (select min(ctid) from {name} where v = {from}) returning t) insert into {name} select {to}, t from gone"),
                    _ => format!("update {name} set v = {to}, t = t where ctid = (select ctid from {name} where v = {from} order by random() limit 1)"),
                };
                match session.client.execute(&sql, &[]).await {
                    Ok(1) => {
                        moved[table * VALUES + from] -= 1;
                        moved[table * VALUES + to] += 1;
                        done += 1;
                    }
                    Ok(n) => assert_eq!(n, 0, "{sql}"),
                    Err(error) => assert!(["40001", "40P01"].contains(&error.code().map_or("", |c| c.code())), "{sql}: {error:?}"),
                }
            }
            (moved, done)
        })
    });
    let (mut moved, mut done) = (vec![0i64; VALUES * 3], 0);
    for client in clients.collect::<Vec<_>>() {
        let (its, count) = client.await.expect("a client");
        moved.iter_mut().zip(its).for_each(|(sum, n)| *sum += n);
        done += count;
    }
    println!("whole_rows: {done} rows were moved");
    assert!(done > 100, "{done}");
    lab.everywhere().await;
    for (table, name) in ["heap_moves", "index_moves", "unique_moves"].iter().enumerate() {
        for value in 0..VALUES {
            let expected = (ROWS / VALUES) as i64 + moved[table * VALUES + value];
            lab.shows(&format!("select count(*)::text from {name} where v = {value}"), &expected.to_string()).await;
        }
    }
}
