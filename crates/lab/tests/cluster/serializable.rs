//! SERIALIZABLE across regions: whoever has read what another region has changed since does not commit.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::lab::{number, start, text, told, told_db, Lab, Session};
use tokio_postgres::error::SqlState;

const TABLES: &str = "create table t (id bigint primary key, u int unique, v int);
    create index on t (v);
    create table pair (a int, b text, v int, primary key (a, b));
    create table plain (v int);
    create table parted (id int primary key, v int) partition by range (id);
    create table parted_1 partition of parted for values from (0) to (100);
    create table parted_2 partition of parted for values from (100) to (200);
    create table child (id int primary key, t bigint references t);
    create materialized view total as select sum(v) from t;
    create table note (n int primary key, what text);
    create function looks(which bigint) returns int language plpgsql as 'begin return v from t where id = which; end'";

const ROWS: &str = "truncate t, pair, plain, parted, child;
    insert into t select g, g, g % 4 from generate_series(1, 400) g;
    insert into pair select g / 2, case g % 2 when 0 then 'x' else 'y' end, g from generate_series(0, 19) g;
    insert into plain select g from generate_series(1, 10) g;
    insert into parted select g, g from generate_series(1, 199) g;
    insert into child values (1, 9), (2, 9)";

/// Each gives a text.
const READS: [&str; 27] = [
    "select v::text from t where id = 5",
    "select v::text from t where id = 5 and v + 0 = 1",
    "select string_agg(v::text, ' ' order by id) from t where id in (5, 6, 500)",
    "select coalesce((select 'there' from t where id = 500), 'not there')",
    "select id::text from t where u = 5",
    "select coalesce((select u::text from t where u = 500), 'not there')",
    "select coalesce((select 'there' from t where u = 5 and id = 5), 'not there')",
    "select count(*)::text from t where v = 1",
    "select count(*)::text from t where id between 4 and 8",
    "select count(*)::text from t where id > 450",
    "select max(id)::text from t",
    "select sum(v)::text from t",
    "select string_agg(v::text, ' ' order by b) from pair where a = 3",
    "select v::text from pair where a = 3 and b = 'x'",
    "select sum(v)::text from plain",
    "select count(*)::text from plain where v = 11",
    "select v::text from parted where id = 150",
    "select sum(v)::text from parted",
    "select count(*)::text from parted where id > 100",
    "select sum::text from total",
    "select (looks(5) + looks(6))::text",
    "with x as (insert into t values (500, 500, 0) on conflict do nothing returning 1) select count(*)::text from x",
    "with x as (insert into t values (5, 5, 0) on conflict (id) do nothing returning 1) select count(*)::text from x",
    "with x as (update t set v = v where u = 5 returning v) select coalesce(sum(v)::text, 'none') from x",
    "select coalesce((select v::text from t where id = 5 for share), 'none')",
    "select coalesce((select '1' from t x where id = 5 for key share of x), 'none')",
    "select count(*)::text from t a join t b on b.id = a.v where a.id = 5",
];

const CHANGES: [&str; 18] = [
    "update t set v = v + 10 where id = 5",
    "update t set v = v + 10 where id = 7",
    "update t set u = u + 1000 where id = 5",
    "update t set u = 500 where id = 399",
    "update t set id = 500 where id = 398",
    "delete from t where id = 5",
    "insert into t values (500, 501, 1)",
    "insert into t values (501, 500, 1)",
    "delete from t where id = 5; insert into t values (5, 5, 77)",
    "update pair set v = v + 1 where a = 3 and b = 'x'",
    "insert into pair values (3, 'z', 0)",
    "insert into plain values (11)",
    "update plain set v = v + 1 where v = 10",
    "delete from plain where v = 10",
    "update parted set id = 20000 - 19850 + 49, v = 0 where id = 199",
    "update parted set v = v + 1 where id = 150",
    "truncate plain",
    "refresh materialized view total; update t set v = 100 where id = 400; refresh materialized view total",
];

/// Goal: at SERIALIZABLE, a transaction whose reads would come out otherwise after what another region has committed
/// since does not commit, however it has read and whatever was changed.  Method: ways of reading with changes; one pair
/// in four, another one each time, or all of them with ONETRIP_ALL_PAIRS=1.  Whether they come out otherwise, the
/// database itself says: the same query, before and after.
#[tokio::test]
async fn whoever_has_read_what_has_changed_since_loses() {
    let lab = start("serializable", "each way of reading, and each change in another region meanwhile").await;
    let writer = lab.session(0).await;
    writer.must(TABLES).await;
    let (mut lost, mut in_vain, mut committed, mut n) = (0, 0, 0, 0);
    let share = if std::env::var_os("ONETRIP_ALL_PAIRS").is_some() { 1 } else { 4 };
    let first = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as usize % share;
    println!("serializable: one pair in {share}, from number {first}");
    for read in READS {
        for change in CHANGES {
            n += 1;
            if n % share != first {
                continue;
            }
            // What the reader of the pair before has committed.
            lab.everywhere().await;
            writer.must(ROWS).await;
            writer.must("refresh materialized view total; analyze t, pair, plain, parted").await;
            lab.everywhere().await;
            let outcome = meet(&lab, &writer, read, change, n).await;
            match outcome {
                Outcome::Lost { needed: true } => lost += 1,
                Outcome::Lost { needed: false } => in_vain += 1,
                Outcome::Committed => committed += 1,
            }
        }
    }
    println!("serializable: {lost} lost as they had to, {in_vain} in vain, {committed} committed");
    assert!(lost * share > 20 && committed * share > 150, "{lost} lost, {in_vain} in vain, {committed} committed");
    lab.shows("select count(*) from note", &committed.to_string()).await;
    lab.check_equal(8).await;
}

enum Outcome {
    Lost { needed: bool },
    Committed,
}

async fn read_text(session: &Session, read: &str) -> String {
    let all = format!("with answer (a) as ({read}) select coalesce(string_agg(a, ' '), 'no row') from answer");
    // INSERT and UPDATE have to be at the top.
    let query = if read.starts_with("with ") || read.contains(" for ") { read } else { &all };
    match text(session, query).await {
        Ok(answer) => answer,
        Err(why) if why.to_string() == "no row" => why.to_string(),
        Err(why) => panic!("{why:#}: {read}"),
    }
}

async fn meet(lab: &Lab, writer: &Session, read: &str, change: &str, n: usize) -> Outcome {
    let reader = lab.session(1).await;
    reader.must("begin isolation level serializable; set local enable_seqscan = off").await;
    let before = read_text(&reader, read).await;
    writer.must(change).await;
    writer.must("begin; set local enable_seqscan = off").await;
    let after = read_text(writer, read).await;
    writer.must("rollback").await;
    // It does not see the change, which is on its way or has arrived; if it has locked a row, it may have been told.
    let result = match reader.run(&format!("insert into note values ({n}, 'note')")).await {
        Ok(()) => reader.run("commit").await,
        told => told,
    };
    let what = format!("{read}\n{change}\n{before} and then {after}");
    match result {
        Ok(()) => {
            assert_eq!(before, after, "committed although what it had read had changed: {what}");
            Outcome::Committed
        }
        Err(why) => {
            let lost = match why.as_db_error() {
                Some(db) => db.clone(),
                // Evicted while it was idle.
                None => reader.ended_by().await.unwrap_or_else(|e| panic!("{e:#} ({why}): {what}")),
            };
            assert_eq!(lost.code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{}: {what}", told_db(&lost));
            Outcome::Lost { needed: before != after }
        }
    }
}

/// Goal: the anomalies that REPEATABLE READ allows do not happen, whichever region commits first, and whoever only
/// reads is never told of a conflict.
#[tokio::test]
async fn anomalies_of_snapshots_do_not_happen() {
    let lab = start("serializable_anomalies", "write skew and its kin between two regions").await;
    let [a, mut b, c] = lab.sessions().await;
    a.must(
        "create table doctor (name text primary key, on_call bool);
         create table batch (n int primary key); create table receipt (id bigserial primary key, batch int, amount int);
         create table other (id int primary key, v int)",
    )
    .await;
    // On each side: what it reads and what it writes, so that the other one's write matters to it.
    let skews = [
        [
            "select count(*) from doctor where on_call; update doctor set on_call = false where name = 'ann'",
            "select count(*) from doctor where on_call; update doctor set on_call = false where name = 'bob'",
        ],
        [
            "select on_call from doctor where name = 'bob'; update doctor set on_call = false where name = 'ann'",
            "select on_call from doctor where name = 'ann'; update doctor set on_call = false where name = 'bob'",
        ],
        [
            "select count(*) from other; insert into other values (1, 1)",
            "select count(*) from other; insert into other values (2, 2)",
        ],
        [
            "select from other where id = 1; insert into other values (2, 2)",
            "select from other where id = 2; insert into other values (1, 1)",
        ],
        [
            "select count(*) from other; insert into doctor values ('eve', true)",
            "select count(*) from doctor; insert into other values (1, 1)",
        ],
    ];
    for (at, [one, other]) in skews.iter().enumerate() {
        for isolation in ["serializable", "repeatable read"] {
            lab.everywhere().await;
            a.must("truncate doctor, other; insert into doctor values ('ann', true), ('bob', true)").await;
            lab.everywhere().await;
            for (side, body) in [(&a, one), (&b, other)] {
                side.must(&format!("begin isolation level {isolation}; {body}")).await;
            }
            let results = tokio::join!(a.run("commit"), b.run("commit"));
            let losses: Vec<_> = [results.0, results.1].into_iter().filter_map(Result::err).collect();
            for loss in &losses {
                assert_eq!(loss.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{}", told(loss));
            }
            let expected = usize::from(isolation == "serializable");
            assert_eq!(
                losses.len(),
                expected,
                "pair {at}, {isolation}: {:?}",
                losses.iter().map(told).collect::<Vec<_>>()
            );
        }
    }
    // Who only reads sees a state between two entries, and needs to ask nobody.
    lab.everywhere().await;
    a.must("truncate batch, receipt; insert into batch values (1)").await;
    lab.everywhere().await;
    a.must("begin isolation level serializable; insert into receipt (batch, amount) select max(n), 100 from batch")
        .await;
    b.must("begin isolation level serializable; update batch set n = n + 1; commit").await;
    lab.everywhere().await;
    c.must("begin isolation level serializable; set local onetrip.max_trips = 0").await;
    let closed = number(&c, "select sum(amount) from receipt where batch < (select max(n) from batch)").await;
    c.must("commit").await;
    let late = a.run("commit").await;
    // The report has shown the batch as closed, so nothing may be added to it.
    assert!(closed.is_err() || closed.unwrap() == 0);
    let late = late.expect_err("a receipt was added to a batch that was shown as closed");
    assert_eq!(late.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{}", told(&late));
    let detail = late.as_db_error().and_then(|db| db.detail()).unwrap_or_default().to_string();
    assert!(detail.contains("table \"public.batch\"") && detail.contains("region \"b\""), "{detail}");
    lab.shows("select count(*) from receipt", "0").await;

    // What was done to a table as a whole, after the snapshot: before it was used, and after.
    a.must(
        "create table range (id int primary key) partition by range (id); create table range_1 partition of range for \
         values from (0) to (9); insert into range values (1); insert into other values (7, 7) on conflict do nothing",
    )
    .await;
    for (before, change, after) in [
        ("select count(*) from range", ATTACH, "select 1"),
        ("select 1 from batch", "truncate other", "select from other where id = 7"),
        ("select from other where id = 7", "alter table other add w int default 5", "select 1"),
        (
            "select 1 from batch",
            "drop table range_2; create table range_2 partition of range for values from (9) to (20)",
            "select count(*) from range",
        ),
        ("savepoint s; select from other where id = 7; rollback to s", "truncate other", "select 1"),
        (
            "insert into receipt (batch, amount) select v, v from other",
            "insert into other values (70, 70, 7)",
            "alter table other rename to renamed",
        ),
    ] {
        lab.everywhere().await;
        b.must(&format!("begin isolation level serializable; {before}")).await;
        // If the table is locked there, the session is ended, or it loses at COMMIT.
        a.must(change).await;
        let lost = match b.run(&format!("{after}; insert into receipt (batch, amount) values (1, 1); commit")).await {
            Err(why) => why,
            Ok(()) => panic!("{before}; {change}; {after}: committed"),
        };
        assert!(lost.code().is_none_or(|code| *code == SqlState::T_R_SERIALIZATION_FAILURE), "{}", told(&lost));
        b = lab.session(1).await;
    }
    lab.check_equal(7).await;
}

const ATTACH: &str = "create table range_2 (id int primary key); insert into range_2 values (10); \
    alter table range attach partition range_2 for values from (9) to (20)";
