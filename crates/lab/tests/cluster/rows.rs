//! Rows of every kind, written in each region and read in the others.

use crate::lab::{number, psql, start, subjects, text, until, Lab, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_written_in_any_region_are_read_in_all() {
    let lab = start("rows", "rows of every kind, written in each region, are the same in all").await;
    subjects!(lab, 14;
        first_tables, every_way_to_write, every_kind_of_value, long_values, partitions, triggers_and_cascades,
        savepoints, clients_of_other_encodings, reading_sends_nothing, a_row_that_changes_many_times,
        a_row_that_moves_is_not_passed_over
    );
}

/// A table made in one region takes rows in all; each is seen elsewhere without anybody asking for it.
async fn first_tables(lab: &Lab) {
    let sessions = lab.sessions().await;
    sessions[1]
        .must(
            "create table city (id int primary key, name text unique not null);
             create table person (id int primary key, name text, city int references city);",
        )
        .await;
    lab.everywhere().await;
    for (i, session) in sessions.iter().enumerate() {
        session
            .must(&format!("insert into city values ({i}, 'city {i}'); insert into person values ({i}, 'p', {i})"))
            .await;
    }
    for session in &sessions {
        until("three rows", SOON, || async {
            Ok(number(session, "select count(*) from person join city on city = city.id").await? == 3)
        })
        .await
        .unwrap();
    }
    for (i, session) in sessions.iter().enumerate() {
        let other = (i + 1) % 3;
        assert_eq!(
            session.refused(&format!("insert into city values (9, 'city {other}')")).await.code().code(),
            "23505"
        );
        assert_eq!(session.refused("insert into person values (9, 'p', 77)").await.code().code(), "23503");
    }
}

async fn every_way_to_write(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must("create table ways (id int primary key, v text, n int default 0)").await;
    lab.everywhere().await;
    b.must("insert into ways select g, 'g' || g from generate_series(1, 20) g").await;
    lab.everywhere().await;
    c.must("update ways set v = upper(v) where id <= 5; delete from ways where id = 20").await;
    lab.everywhere().await;
    a.must("update ways set id = id + 100 where id between 6 and 8").await;
    lab.everywhere().await;
    b.must(
        "insert into ways values (1, 'again'), (21, 'new') on conflict (id) do update set v = excluded.v, n = ways.n + 1;
         insert into ways values (1, 'no'), (22, 'yes') on conflict do nothing",
    )
    .await;
    lab.everywhere().await;
    c.must(
        "merge into ways using (values (2, 'm2'), (23, 'm23'), (3, null)) as s(id, v) on ways.id = s.id
         when matched and s.v is null then delete
         when matched then update set v = s.v
         when not matched then insert (id, v) values (s.id, s.v)",
    )
    .await;
    lab.everywhere().await;
    drop(a);
    psql(lab, 0, "copy ways (id, v) from stdin;\n31\tcopied\n32\tcopied too\n\\.\n").await;
    lab.shows(
        "select count(*) || ' ' || sum(id) || ' ' || string_agg(v, ',' order by id) || ' ' || sum(n) from ways",
        "23 616 again,m2,G4,G5,g9,g10,g11,g12,g13,g14,g15,g16,g17,g18,g19,new,yes,m23,copied,copied too,g6,g7,g8 1",
    )
    .await;
    b.must("truncate ways").await;
    lab.shows("select count(*) from ways", "0").await;
    b.must("begin; insert into ways values (1, 'x'); truncate ways; insert into ways values (2, 'y'); commit").await;
    lab.shows("select string_agg(v, ',') from ways", "y").await;
}

async fn every_kind_of_value(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    // The OIDs of these types, and of the types built on them, differ between servers.
    a.must(
        "create type mood as enum ('sad', 'ok', 'happy');
         create type point3 as (x int, y numeric, z mood);
         create domain percent as int check (value between 0 and 100);
         create type span as range (subtype = float8);
         create table kinds (id int primary key, m mood, ms mood[], p point3, ps point3[], d percent, s span,
             i int2, big int8, f float4, n numeric(30, 10), t text, c char(5), vc varchar(10), by bytea, bo bool,
             da date, ti time, ts timestamp, tz timestamptz, iv interval, u uuid, j json, jb jsonb, ip inet,
             bi varbit, ar int[], at text[][], ir int4range, mr int4multirange, x xml, tv tsvector, g int generated always as (id * 2) stored);
         create unique index on kinds (lower(t)) where id > 0; create unique index on kinds (m, d);",
    )
    .await;
    lab.everywhere().await;
    b.must(
        "insert into kinds values (1, 'happy', '{sad,ok}', '(1,2.50,ok)', array['(1,2,sad)', '(3,4,happy)']::point3[], 42,
             '[1.5,2.5)', -3, 9007199254740993, 'NaN', 12345678901234567890.0123456789, 'größer ✓', 'ab', 'vc',
             '\\x00ff10', true, '2026-11-21', '12:34:56.789', '2026-11-21 01:02:03.000004', '2026-11-21 01:02:03+05',
             '1 year 2 mons -3 days 04:05:06.7', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\": [1, 2]}',
             '{\"b\": {\"c\": null}}', '10.1.0.0/16', b'10110', '{1,null,3}', '{{a,b},{c,d}}', '[1,5)', '{[1,2),[5,9)}',
             '<a>b</a>', 'fat:1 cat:2'),
         (2, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
             null, null, null, null, null, null, null, null, null, null, null, null, null, null)",
    )
    .await;
    let row = text(&b, "select (kinds.*)::text from kinds where id = 1").await.unwrap();
    lab.shows("select (kinds.*)::text from kinds where id = 1", &row).await;
    a.must("update kinds set m = 'sad', ps = ps || row(5, 6, 'ok')::point3, d = 99 where id = 1").await;
    let row = text(&a, "select (kinds.*)::text from kinds where id = 1").await.unwrap();
    lab.shows("select (kinds.*)::text from kinds where id = 1", &row).await;
    lab.shows("select num_nonnulls(m, t, tz, ar) || ' ' || g from kinds where id = 2", "0 4").await;
    assert_eq!(
        b.refused("insert into kinds (id, t) values (3, 'GRÖSSER ✓'), (4, 'Größer ✓')").await.code().code(),
        "23505"
    );
    assert_eq!(b.refused("insert into kinds (id, d) values (3, 101)").await.code().code(), "23514");
}

/// Values that PostgreSQL stores out of line are sent once: an update that does not change them does not send them
/// again.
async fn long_values(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must("create table long (id int primary key, v text, other int); alter table long alter v set storage external")
        .await;
    lab.everywhere().await;
    b.must("insert into long select g, repeat(md5(g::text), 4000), 0 from generate_series(1, 5) g").await;
    lab.everywhere().await;
    c.must("begin; update long set other = other + 1").await;
    let bytes = number(&c, "select onetrip.pending_bytes()").await.unwrap();
    assert!(bytes < 5_000, "an update that leaves 5 values of 128,000 bytes alone sends {bytes} bytes");
    c.must("commit").await;
    lab.everywhere().await;
    a.must("update long set v = v || 'tail' where id = 3; update long set id = 6 where id = 1").await;
    lab.shows(
        "select string_agg(id || ':' || length(v) || ':' || other || ':' || (left(v, 32) = md5((case id when 6 then 1 else id end)::text)), ' '
                           order by id) from long",
        "2:128000:1:true 3:128004:1:true 4:128000:1:true 5:128000:1:true 6:128000:1:true",
    )
    .await;
}

async fn partitions(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must(
        "create table parted (id int, region text, v int, primary key (id, region)) partition by list (region);
         create table parted_x partition of parted for values in ('x');
         create table parted_rest partition of parted default;",
    )
    .await;
    lab.everywhere().await;
    b.must("insert into parted values (1, 'x', 1), (2, 'y', 2), (3, 'x', 3)").await;
    lab.everywhere().await;
    c.must("update parted set region = 'y' where id = 1; update parted set v = v * 10 where region = 'x'").await;
    lab.everywhere().await;
    a.must("delete from parted where id = 2; create table parted_z partition of parted for values in ('z'); insert into parted values (4, 'z', 4)").await;
    lab.shows(
        "select string_agg(tableoid::regclass || ':' || id || ':' || v, ' ' order by id) from parted",
        "parted_rest:1:1 parted_x:3:30 parted_z:4:4",
    )
    .await;
}

/// Triggers and cascades run once, where the transaction runs, and their effects arrive in the other regions.
async fn triggers_and_cascades(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must(
        "create table parent (id int primary key);
         create table child (id int primary key, parent int references parent on delete cascade on update cascade);
         create table audit (at serial primary key, region text, what text);
         create function note() returns trigger language plpgsql as $$
             begin insert into audit (region, what) values (current_setting('onetrip.region'), tg_op || coalesce(old.id, 0)); return null; end $$;
         create trigger note after update or delete on child for each row execute function note();
         insert into parent values (1), (2); insert into child values (10, 1), (11, 1), (20, 2)",
    )
    .await;
    lab.everywhere().await;
    b.must("delete from parent where id = 1").await;
    lab.everywhere().await;
    c.must("update parent set id = 3 where id = 2").await;
    lab.shows("select string_agg(id || ':' || parent, ' ') from child", "20:3").await;
    lab.shows("select string_agg(region || what, ' ' order by what) from audit", "bDELETE10 bDELETE11 cUPDATE20").await;
}

async fn savepoints(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    a.must("create table saved (id int primary key)").await;
    lab.everywhere().await;
    b.must(
        "begin; insert into saved values (1); savepoint s; insert into saved values (2); rollback to s;
         insert into saved values (3); savepoint t; insert into saved values (4); release t; commit;
         begin; insert into saved values (5); rollback",
    )
    .await;
    lab.shows("select string_agg(id::text, ' ' order by id) from saved", "1 3 4").await;
}

/// Text arrives as it was written, whatever the client's encoding is, and whatever encoding the database's settings
/// give the apply worker.
async fn clients_of_other_encodings(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must("create table encoded (id int primary key, v text); alter database onetrip set client_encoding = 'LATIN1'")
        .await;
    lab.everywhere().await;
    lab.node(2).kill9_postgres().expect("kill PostgreSQL");
    lab.wait_ready().await.unwrap_or_else(|e| panic!("{e:#}"));
    drop(c);
    // An e with an accent, which is one byte in this client's encoding, and two characters that it does not have.
    b.must("set client_encoding = 'LATIN1'; insert into encoded values (1, 'caf' || chr(233)), (2, chr(26085) || chr(26412))").await;
    a.must("insert into encoded values (3, 'café'); alter database onetrip reset client_encoding").await;
    lab.shows("select string_agg(v, ' ' order by id) from encoded", "café 日本 café").await;
}

/// A transaction that changes nothing replicated proposes nothing, and neither does one on temporary tables.
async fn reading_sends_nothing(lab: &Lab) {
    let b = lab.session(1).await;
    b.must("create table read_only (id int primary key); insert into read_only values (1)").await;
    lab.everywhere().await;
    let before = number(&b, "select proposals from onetrip.status").await.unwrap();
    b.must(
        "select * from read_only; begin; select count(*) from read_only; commit;
         create temp table mine (id int primary key); insert into mine values (1); update mine set id = 2; drop table mine",
    )
    .await;
    assert_eq!(number(&b, "select proposals from onetrip.status").await.unwrap(), before);
    b.must("insert into read_only values (2)").await;
    assert_eq!(number(&b, "select proposals from onetrip.status").await.unwrap(), before + 1);
}

/// A transaction that changes few rows many times: elsewhere the search for one does not go through all that it was
/// before; and the right row is found when keys change, and come back on another row.
async fn a_row_that_changes_many_times(lab: &Lab) {
    const TIMES: i64 = 1_000;
    let sessions = lab.sessions().await;
    sessions[0]
        .must(
            "create table much (a text, b int, v int, primary key (a, b)); create index on much (v);
             insert into much select 'row', g, 0 from generate_series(1, 5) g",
        )
        .await;
    lab.everywhere().await;
    sessions[0]
        .must(&format!(
            "do $$ begin
               for i in 1..{TIMES} loop update much set v = v + 1 where b = 1 + i % 2; end loop;
               for i in 1..10 loop
                 update much set b = b + 10, v = v + 1;
                 delete from much where b = 13;
                 update much set b = b - 10;
                 insert into much values ('row', 3, 100 * i);
                 update much set v = v + 1 where b = 3;
               end loop;
             end $$"
        ))
        .await;
    lab.shows("select string_agg(concat_ws(' ', b, v), ', ' order by b) from much", "1 510, 2 510, 3 1001, 4 10, 5 10")
        .await;
    let read = "select coalesce(max(idx_tup_read), 0) from pg_stat_user_indexes where indexrelname = 'much_pkey'";
    let changed = "select coalesce(max(n_tup_upd), 0) from pg_stat_user_tables where relname = 'much'";
    // It tells them with an entry, once a second.
    until("the worker's statistics", SOON, || async {
        sessions[0].run("update much set v = v where b = 4").await?;
        Ok(number(&sessions[1], changed).await? > TIMES)
    })
    .await
    .unwrap();
    let read = number(&sessions[1], read).await.unwrap();
    assert!(read < 20 * TIMES, "{read} entries of the index were read for {TIMES} changes of two rows");
}

/// A statement that comes to the old version of a row which another region has moved to another partition fails, or is
/// run again; it does not pass the row over as if it had been deleted.  Method: its snapshot is older than the move.
async fn a_row_that_moves_is_not_passed_over(lab: &Lab) {
    let [a, b, holder] = [lab.session(0).await, lab.session(1).await, lab.session(1).await];
    a.must(
        "create table moving (id int, status text, n int default 0, primary key (id, status)) partition by list (status);
         create table moving_open partition of moving for values in ('open');
         create table moving_closed partition of moving for values in ('closed');
         insert into moving values (1, 'open'), (2, 'open')",
    )
    .await;
    lab.everywhere().await;
    let waiting = "select count(*) from pg_locks where locktype = 'advisory' and objid = 77 and not granted";
    for (id, retries, n) in [(1, 0, 0), (2, 3, 1)] {
        holder.must("select pg_advisory_lock(77)").await;
        b.must(&format!("set onetrip.statement_retries = {retries}")).await;
        let update = format!(
            "with w as materialized (select pg_advisory_lock_shared(77)) update moving set n = n + 1 from w where id = {id}"
        );
        let moves = async {
            until("the statement has begun", SOON, || async { Ok(number(&holder, waiting).await? == 1) })
                .await
                .unwrap();
            a.must(&format!("update moving set status = 'closed' where id = {id}")).await;
            lab.everywhere().await;
            holder.must("select pg_advisory_unlock(77)").await;
        };
        let (updated, ()) = tokio::join!(b.run(&update), moves);
        match retries {
            0 => assert_eq!(updated.unwrap_err().code().unwrap().code(), "40001"),
            _ => updated.unwrap(),
        }
        b.must("select pg_advisory_unlock_all()").await;
        lab.everywhere().await;
        lab.shows(&format!("select status || n from moving where id = {id}"), &format!("closed{n}")).await;
    }
}
