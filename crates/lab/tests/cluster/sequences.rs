//! Sequences in three regions: never the same value twice, without a round trip.

use std::collections::HashMap;

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use tokio_postgres::error::SqlState;

use crate::lab::{bounded, is, number, psql_in, start, subjects, text, until, Lab, SOON};

const EACH: usize = 2_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_regions_never_draw_the_same_value() {
    let lab = start("sequences", "nextval, serial, identity and setval in three regions at once").await;
    subjects!(lab, 3;
        drawn_at_once, serial_and_identity, after_setval, drawn_alone, altered_elsewhere, after_restart_of_a_server, in_a_dump,
        short_ones
    );
}

/// Draws from one sequence in all regions at once; no value may come twice.
async fn draw_everywhere(lab: &Lab, sequence: &str, each: usize) -> Vec<i64> {
    let mut tasks = Vec::new();
    for region in 0..3 {
        for _ in 0..2 {
            let session = lab.session(region).await;
            let query = format!("select nextval('{sequence}') from generate_series(1, 10)");
            tasks.push(tokio::spawn(async move {
                let mut drawn: Vec<(i64, usize)> = Vec::new();
                for _ in 0..each / 20 {
                    let rows = session.query(&query, &[]).await.expect("nextval");
                    drawn.extend(rows.iter().map(|row| (row.get::<_, i64>(0), region)));
                }
                drawn
            }));
        }
    }
    let mut seen: HashMap<i64, usize> = HashMap::new();
    for task in tasks {
        for (value, region) in task.await.expect("a drawing task") {
            if let Some(other) = seen.insert(value, region) {
                panic!("{sequence}: {value} was given out in region {region} and in region {other}");
            }
        }
    }
    assert_eq!(seen.len(), 3 * 2 * (each / 20) * 10);
    seen.into_keys().collect()
}

async fn drawn_at_once(lab: &Lab) {
    let [_, b, c] = lab.sessions().await;
    b.must(
        "create sequence plain; create sequence by_three start 10 increment 3;
         create sequence down increment -1 cache 7; create sequence small as smallint minvalue 5 maxvalue 30000",
    )
    .await;
    lab.everywhere().await;
    let before = number(&c, "select proposals from onetrip.status").await.unwrap();
    for sequence in ["plain", "by_three", "down", "small"] {
        let drawn = draw_everywhere(lab, sequence, if sequence == "small" { 200 } else { EACH }).await;
        match sequence {
            "plain" => assert!(drawn.iter().all(|v| *v >= 1)),
            "by_three" => assert!(drawn.iter().all(|v| *v >= 10 && (v - 10) % 3 == 0)),
            "down" => assert!(drawn.iter().all(|v| *v <= -1)),
            _ => assert!(drawn.iter().all(|v| (5..=30_000).contains(v))),
        }
    }
    let after = number(&c, "select proposals from onetrip.status").await.unwrap();
    println!("sequences: {} values cost {} proposals in region c", 4 * EACH, after - before);
}

async fn serial_and_identity(lab: &Lab) {
    let b = lab.session(1).await;
    b.must(
        "create table numbered (id serial primary key, i bigint generated always as identity, region int, unique (i))",
    )
    .await;
    lab.everywhere().await;
    let mut tasks = Vec::new();
    for region in 0..3 {
        let session = lab.session(region).await;
        tasks.push(tokio::spawn(async move {
            for _ in 0..50 {
                session
                    .must(&format!("insert into numbered (region) select {region} from generate_series(1, 10)"))
                    .await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("no insert collides");
    }
    lab.shows(
        "select count(distinct id) || ' ' || count(distinct i) || ' ' || count(*) from numbered",
        "1500 1500 1500",
    )
    .await;
    b.must("truncate numbered restart identity").await;
    lab.everywhere().await;
    for region in 0..3 {
        lab.session(region).await.must("insert into numbered (region) select 0 from generate_series(1, 10)").await;
    }
    lab.shows("select count(distinct id) || ' ' || count(*) || ' ' || (max(id) < 500) from numbered", "30 30 true")
        .await;
}

async fn after_setval(lab: &Lab) {
    let [_, b, c] = lab.sessions().await;
    b.must("create sequence moved").await;
    lab.everywhere().await;
    draw_everywhere(lab, "moved", 200).await;
    assert_eq!(text(&c, "select setval('moved', 1000000)").await.unwrap(), "1000000");
    lab.everywhere().await;
    let drawn = draw_everywhere(lab, "moved", 200).await;
    assert!(drawn.iter().all(|v| *v > 1_000_000), "after setval no region goes on below it");
    b.must("select setval('moved', (select 5), false)").await;
    lab.everywhere().await;
    let drawn = draw_everywhere(lab, "moved", 200).await;
    assert!(drawn.iter().all(|v| *v >= 5 && *v < 100_000), "setval back is followed everywhere");
    b.must("alter sequence moved restart with 500000").await;
    lab.everywhere().await;
    let drawn = draw_everywhere(lab, "moved", 200).await;
    assert!(drawn.iter().all(|v| *v >= 500_000));
}

/// A value drawn in a transaction that changes nothing becomes known everywhere with the next change of its region.
async fn drawn_alone(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    a.must("create sequence alone; create table unrelated (id int primary key)").await;
    lab.everywhere().await;
    let drawn = number(&a, "select max(nextval('alone')) from generate_series(1, 20)").await.unwrap();
    assert!(number(&b, "select last_value from alone").await.unwrap() < drawn, "nobody has told region b yet");
    a.must("insert into unrelated values (1)").await;
    lab.everywhere().await;
    assert!(number(&b, "select nextval('alone')").await.unwrap() > drawn, "region b goes on above what was told");
    // Nor is a restart of the server in between a reason to forget it.
    let drawn = number(&a, "select max(nextval('alone')) from generate_series(1, 20)").await.unwrap();
    lab.node(0).kill9_postgres().expect("kill PostgreSQL");
    drop(a);
    lab.wait_ready().await.unwrap_or_else(|e| panic!("{e:#}"));
    lab.session(0).await.must("insert into unrelated values (2)").await;
    lab.everywhere().await;
    assert!(number(&b, "select nextval('alone')").await.unwrap() > drawn, "region b goes on above what was told late");
}

/// Who alters a sequence that somebody else has drawn from does not make a region's transactions lose again and again.
async fn altered_elsewhere(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must("create sequence noted; create table beside (id int primary key)").await;
    lab.everywhere().await;
    a.must("select nextval('noted')").await;
    let worker =
        number(&a, "select pid::bigint from pg_stat_activity where application_name = 'onetrip apply worker'").await;
    let worker = Pid::from_raw(worker.unwrap().try_into().unwrap());
    // Region a does not see the change before it proposes its own transactions.
    kill(worker, Signal::SIGSTOP).unwrap();
    b.must("alter sequence noted restart").await;
    let first = a.run("begin; insert into beside values (1); commit").await;
    a.run("rollback").await.unwrap();
    let goes_on = async {
        let shown =
            until("region c shows it", SOON, || async { Ok(number(&c, "select count(*) from beside").await? == 1) });
        let shown = shown.await;
        kill(worker, Signal::SIGCONT).unwrap();
        shown
    };
    let (second, shown) = tokio::join!(a.run("begin; insert into beside values (2); commit"), goes_on);
    assert!(is(&first.unwrap_err(), &SqlState::T_R_SERIALIZATION_FAILURE), "the first one tells of the sequence");
    second.expect("the second one does not");
    shown.unwrap();
    lab.everywhere().await;
}

/// A crash may skip values but never gives one out again, neither one used in a row nor one that a client was only
/// told.
async fn after_restart_of_a_server(lab: &Lab) {
    lab.session(0).await.must("create sequence lasting; create table drawn_before (id bigint primary key)").await;
    lab.everywhere().await;
    // These draws leave the sequence's WAL record unflushed: a transaction with an entry does not flush WAL at commit.
    for region in 0..3 {
        lab.session(region).await.must("insert into drawn_before select nextval('lasting')").await;
    }
    let before = draw_everywhere(lab, "lasting", 400).await;
    for region in 0..3 {
        lab.node(region).kill9_postgres().expect("kill PostgreSQL");
    }
    lab.wait_ready().await.unwrap_or_else(|e| panic!("{e:#}"));
    let used: Vec<i64> = {
        let rows = lab.session(0).await.query("select id from drawn_before", &[]).await.expect("read");
        rows.iter().map(|row| row.get(0)).collect()
    };
    assert_eq!(used.len(), 3);
    let after = draw_everywhere(lab, "lasting", 400).await;
    for value in used {
        assert!(!after.contains(&value), "{value} was used in a committed row and is given out again");
    }
    for value in before {
        assert!(!after.contains(&value), "{value} was given to a client and is given out again");
    }
}

/// A sequence with fewer values than there are places for regions gives each value once, in whichever region it is
/// drawn and whatever crashes; who draws at the same time as another region loses with 40001.
async fn short_ones(lab: &Lab) {
    lab.session(0)
        .await
        .must(
            "create sequence tokens maxvalue 6; create table taken (value bigint, region int);
             create table seat (id smallint generated always as identity (maxvalue 5), region int, who text primary key);
             create sequence turn minvalue 1 maxvalue 3 cycle",
        )
        .await;
    lab.everywhere().await;
    // One after the other, each region goes on where the one before has stopped; so does one that crashes in between.
    for (round, expected) in ["1", "2", "3", "1", "2", "3", "1"].into_iter().enumerate() {
        let region = round % 3;
        let session = lab.session(region).await;
        assert_eq!(number(&session, "select nextval('turn')").await.unwrap().to_string(), expected);
        lab.everywhere().await;
    }
    // All at once: everybody draws until nothing is left.
    let mut tasks = Vec::new();
    for region in 0..3 {
        for client in 0..2 {
            let session = lab.session(region).await;
            tasks.push(tokio::spawn(async move {
                let mut given = Vec::new();
                for n in 0..100 {
                    let insert = match client {
                        0 => format!("insert into taken select nextval('tokens'), {region} returning value"),
                        _ => format!(
                            "insert into seat (region, who) values ({region}, '{region} {n}') returning id::bigint"
                        ),
                    };
                    match session.query_one(&insert, &[]).await {
                        Ok(row) => given.push(row.get::<_, i64>(0)),
                        Err(error) => match error.code().map(|code| code.code()) {
                            Some("40001" | "40P01") => {}
                            Some("2200H") => break,
                            _ => panic!("{insert}: {error:?}"),
                        },
                    }
                }
                given
            }));
        }
    }
    for task in tasks {
        task.await.expect("a drawing task");
    }
    lab.everywhere().await;
    for table in ["taken", "seat"] {
        let column = if table == "taken" { "value" } else { "id" };
        let twice = format!("select count(*) - count(distinct {column}) from {table}");
        lab.shows(&format!("select ({twice})::text"), "0").await;
    }
    // A server that is killed, with draws that were not committed, gives nothing again that was.
    lab.session(1).await.must("truncate taken; alter sequence tokens restart").await;
    lab.everywhere().await;
    let [a, b, _] = lab.sessions().await;
    a.must("insert into taken select nextval('tokens'), 0").await;
    lab.everywhere().await;
    b.must("insert into taken select nextval('tokens'), 1").await;
    b.must("begin; select nextval('tokens')").await;
    lab.node(1).kill9_postgres().expect("kill PostgreSQL");
    drop(b);
    lab.wait_ready().await.unwrap_or_else(|e| panic!("{e:#}"));
    lab.everywhere().await;
    let b = lab.session(1).await;
    for session in [&a, &b, &a, &b] {
        match session.run("insert into taken select nextval('tokens'), 2").await {
            Ok(()) => {}
            Err(error) => assert_eq!(error.code().map(|code| code.code()), Some("2200H"), "{error:?}"),
        }
        lab.everywhere().await;
    }
    lab.shows("select (count(*) - count(distinct value))::text from taken", "0").await;
    lab.shows("select (count(*) >= 3)::text from taken", "true").await;
    a.must("drop table taken, seat; drop sequence tokens, turn").await;
    lab.everywhere().await;
}

/// A dump from any region has the definitions as they were written, and whoever loads it elsewhere goes on above all
/// values that any region has used.
async fn in_a_dump(lab: &Lab) {
    let sessions = lab.sessions().await;
    sessions[0]
        .must(
            "create schema dumped; create sequence dumped.few maxvalue 3 cache 2; create sequence dumped.down increment -5 start -7;
             create sequence dumped.blocks increment 50 minvalue -10 start 3 cache 3; create sequence dumped.unused;
             create table dumped.t (id serial, d int default nextval('dumped.down'), b int default nextval('dumped.blocks'),
                i int generated always as identity (start 100 increment 2), region int)",
        )
        .await;
    lab.everywhere().await;
    // In another order, with other numbers of values, so that another region is ahead of the others each time.
    for (round, order) in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]].into_iter().enumerate() {
        for region in order {
            let sql = format!(
                "insert into dumped.t (region) select {region} from generate_series(1, {})",
                1 + (round + region) % 3
            );
            sessions[region].must(&sql).await;
            lab.everywhere().await;
        }
        for region in 0..3 {
            let dumped = dump(lab, region).await;
            for part in [
                "START WITH -7\n    INCREMENT BY -5",
                "START WITH 3\n    INCREMENT BY 50\n    MINVALUE -10",
                "START WITH 100\n    INCREMENT BY 2",
                "CACHE 3",
                "MAXVALUE 3\n    CACHE 2",
            ] {
                assert!(dumped.contains(part), "{part}: {dumped}");
            }
            lab.session(region).await.must("create database elsewhere").await;
            psql_in(lab, region, "elsewhere", &dumped).await;
            let collisions = psql_in(
                lab,
                region,
                "elsewhere",
                "insert into dumped.t (region) select 9 from generate_series(1, 30);
                 select (select count(*) - count(distinct id) from dumped.t) + (select count(*) - count(distinct d) from dumped.t)
                     + (select count(*) - count(distinct b) from dumped.t) + (select count(*) - count(distinct i) from dumped.t)
                     + (select count(*) from dumped.t n join dumped.t o on n.region = 9 and o.region < 9
                        where n.id <= o.id or n.d >= o.d or n.b <= o.b or n.i <= o.i)",
            )
            .await;
            assert_eq!(collisions.trim(), "0", "round {round}, region {region}");
            lab.session(region).await.must("drop database elsewhere").await;
        }
    }
    assert_eq!(
        lab.shows_alike("select count(*) from pg_sequences where schemaname = 'dumped' and last_value is null").await,
        "2"
    );
}

async fn dump(lab: &Lab, region: usize) -> String {
    let mut command = tokio::process::Command::new(onetrip_lab::postgres_bin().join("pg_dump"));
    command.args(["--schema=dumped", "--no-table-access-method", "-d", &lab.node(region).conninfo()]);
    let output = bounded("pg_dump", command.kill_on_drop(true).output()).await.expect("run pg_dump");
    assert!(output.status.success(), "pg_dump: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
