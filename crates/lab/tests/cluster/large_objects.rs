//! Large objects are the same in every region, whoever changes them: SQL, the protocol's fast path, triggers,
//! pg_restore.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use onetrip_lab::postgres_bin;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::Config;

use crate::lab::{bounded, builder, number, onetrip, start, start_prepared, subjects, text, told, Lab, Session};

/// All that there is to a region's large objects.
const STATE: &str = "
    select coalesce((select string_agg(format('%s %s %s', oid, lomowner::regrole, lomacl), ', ' order by oid) from pg_largeobject_metadata), '')
        || ' | ' || coalesce((select md5(string_agg(format('%s %s %s', loid, pageno, encode(data, 'hex')), ', ' order by loid, pageno)) from pg_largeobject), '')";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_objects_are_the_same_everywhere() {
    let lab =
        start("large_objects", "large objects by every function, in conflict, at random, dumped, and one of 100 MB")
            .await;
    lab.session(0).await.must("create extension lo; create role lo_owner").await;
    lab.everywhere().await;
    subjects!(lab, 1;
        every_function, conflicts, owners, numbers, as_in_plain_postgresql, all_at_once, managed_by_a_trigger, dumped, a_large_one
    );
}

// ---- every function, by SQL and by the fast path ----

#[derive(Clone)]
pub enum Value {
    Oid(u32),
    Int4(i32),
    Int8(i64),
    Bytea(&'static [u8]),
    Text(&'static str),
}
use Value::{Bytea, Int4, Int8, Oid, Text};

impl Value {
    fn sql(&self) -> String {
        match self {
            Oid(v) => format!("{v}::oid"),
            Int4(v) => format!("({v})::int4"),
            Int8(v) => format!("({v})::int8"),
            Bytea(v) => format!("convert_to('{}', 'UTF8')", String::from_utf8_lossy(v)),
            Text(v) => format!("'{v}'::text"),
        }
    }

    fn binary(&self) -> Vec<u8> {
        match self {
            Oid(v) => v.to_be_bytes().to_vec(),
            Int4(v) => v.to_be_bytes().to_vec(),
            Int8(v) => v.to_be_bytes().to_vec(),
            Bytea(v) => v.to_vec(),
            Text(v) => v.as_bytes().to_vec(),
        }
    }
}

const READ_WRITE: Value = Int4(0x20000 | 0x40000);
/// The first descriptor of a transaction.
const FD: Value = Int4(0);

/// A transaction that calls each function once or more; `n` is the first number of its objects.
fn calls(n: u32) -> Vec<(&'static str, Vec<Value>)> {
    vec![
        ("lo_create(oid)", vec![Oid(n)]),
        ("lo_open(oid, integer)", vec![Oid(n), READ_WRITE]),
        ("lowrite(integer, bytea)", vec![FD, Bytea(b"written in one piece, and then in another one")]),
        ("lo_lseek(integer, integer, integer)", vec![FD, Int4(5000), Int4(0)]),
        ("lowrite(integer, bytea)", vec![FD, Bytea(b"behind a hole")]),
        ("lo_lseek64(integer, bigint, integer)", vec![FD, Int8(10), Int4(0)]),
        ("lo_tell(integer)", vec![FD]),
        ("lo_tell64(integer)", vec![FD]),
        ("loread(integer, integer)", vec![FD, Int4(10)]),
        ("lo_truncate(integer, integer)", vec![FD, Int4(4500)]),
        ("lo_truncate64(integer, bigint)", vec![FD, Int8(4400)]),
        ("lo_close(integer)", vec![FD]),
        ("lo_put(oid, bigint, bytea)", vec![Oid(n), Int8(2040), Bytea(b"across two pages")]),
        ("lo_get(oid)", vec![Oid(n)]),
        ("lo_get(oid, bigint, integer)", vec![Oid(n), Int8(5), Int4(5)]),
        ("lo_from_bytea(oid, bytea)", vec![Oid(n + 1), Bytea(b"at once")]),
        ("lo_export(oid, text)", vec![Oid(n + 1), Text("large_object")]),
        ("lo_import(text, oid)", vec![Text("large_object"), Oid(n + 2)]),
        ("lo_import(text)", vec![Text("large_object")]),
        ("lo_creat(integer)", vec![Int4(-1)]),
        ("lo_unlink(oid)", vec![Oid(n + 1)]),
    ]
}

/// A client of the protocol's fast path, as libpq's and JDBC's functions for large objects are.
pub struct FastPath {
    stream: TcpStream,
}

impl FastPath {
    pub async fn open(lab: &Lab, region: usize) -> FastPath {
        let config: Config = lab.node(region).conninfo().parse().expect("a conninfo");
        let mut stream = TcpStream::connect(("127.0.0.1", config.get_ports()[0])).await.expect("connect");
        let mut body = 0x0003_0000_u32.to_be_bytes().to_vec();
        for word in ["user", "postgres", "database", config.get_dbname().expect("a database"), ""] {
            body.extend(word.as_bytes());
            body.push(0);
        }
        stream.write_all(&[&(body.len() as u32 + 4).to_be_bytes()[..], &body].concat()).await.expect("send");
        let mut client = FastPath { stream };
        client.answer().await.expect("log in");
        client
    }

    /// The messages up to ReadyForQuery: the value of FunctionCallResponse, or what the server says is wrong.
    async fn answer(&mut self) -> Result<Vec<u8>, String> {
        let mut result = Ok(Vec::new());
        loop {
            let mut head = [0; 5];
            self.stream.read_exact(&mut head).await.map_err(|e| e.to_string())?;
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize - 4;
            let mut body = vec![0; length];
            self.stream.read_exact(&mut body).await.map_err(|e| e.to_string())?;
            match head[0] {
                b'V' => result = result.map(|_| body.get(4..).unwrap_or_default().to_vec()),
                b'E' => result = Err(String::from_utf8_lossy(&body).into_owned()),
                b'Z' => return result,
                _ => {}
            }
        }
    }

    async fn send(&mut self, kind: u8, body: &[u8]) -> Result<Vec<u8>, String> {
        let message = [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat();
        self.stream.write_all(&message).await.map_err(|e| e.to_string())?;
        self.answer().await
    }

    pub async fn query(&mut self, sql: &str) {
        self.send(b'Q', &[sql.as_bytes(), &[0]].concat()).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    }

    /// As drivers do: Parse, Bind, Execute, and Sync, which the server comes to once it has answered the others.
    pub async fn execute(&mut self, sql: &str) -> Result<Vec<u8>, String> {
        let parse = [&[0], sql.as_bytes(), &[0, 0, 0]].concat();
        for (kind, body) in [(b'P', &parse[..]), (b'B', &[0; 8]), (b'E', &[0; 5])] {
            let message = [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat();
            self.stream.write_all(&message).await.map_err(|e| e.to_string())?;
        }
        self.send(b'S', &[]).await
    }

    pub async fn call(&mut self, function: u32, arguments: &[Value]) -> Result<Vec<u8>, String> {
        let mut body = function.to_be_bytes().to_vec();
        body.extend([0, 1, 0, 1]); // all arguments are binary
        body.extend((arguments.len() as u16).to_be_bytes());
        for value in arguments.iter().map(Value::binary) {
            body.extend((value.len() as u32).to_be_bytes());
            body.extend(value);
        }
        body.extend([0, 1]); // and so is the result
        self.send(b'F', &body).await
    }
}

/// Goal: no function escapes capture.  Method: the server lists them, so one of a later PostgreSQL makes this fail.
async fn every_function(lab: &Lab) {
    let b = lab.session(1).await;
    let listed = "select oid, format('%s(%s)', proname, pg_get_function_identity_arguments(oid)) from pg_proc where prosrc like 'be_lo%'";
    let functions: Vec<(u32, String)> =
        b.query(listed, &[]).await.expect(listed).iter().map(|row| (row.get(0), row.get(1))).collect();
    let there: BTreeSet<&str> = functions.iter().map(|(_, name)| name.as_str()).collect();
    let called: BTreeSet<&str> = calls(1).iter().map(|(name, _)| *name).collect();
    assert_eq!(there, called, "functions for large objects");

    b.must("begin").await;
    for (function, arguments) in calls(100) {
        let name = function.split('(').next().expect("a name");
        let arguments: Vec<String> = arguments.iter().map(Value::sql).collect();
        b.must(&format!("select {name}({})", arguments.join(", "))).await;
    }
    b.must("commit").await;
    let by_sql = lab.shows_alike(STATE).await;

    for in_block in [true, false] {
        let mut client = FastPath::open(lab, 2).await;
        if in_block {
            client.query("begin").await;
        }
        for (function, arguments) in calls(if in_block { 110 } else { 120 }) {
            let (oid, _) = functions.iter().find(|(_, name)| name == function).expect("listed");
            let answer = bounded(function, client.call(*oid, &arguments)).await;
            // Without a block a descriptor is gone with its transaction.
            let takes_descriptor = function.contains("(integer") && !function.starts_with("lo_creat");
            match answer {
                Err(why) if in_block || !takes_descriptor => panic!("{function}: {why}"),
                _ => {}
            }
        }
        if in_block {
            client.query("commit").await;
        }
        let by_fast_path = lab.shows_alike(STATE).await;
        assert_ne!(by_fast_path, by_sql);
    }
    lab.shows("select count(*) from pg_largeobject_metadata where oid in (100, 102, 110, 112, 120, 122)", "6").await;
    lab.shows("select md5(lo_get(100)) = md5(lo_get(110))", "t").await;
}

// ---- conflicts ----

/// In region b, and in region c before b's commit has come there; then `lost` says whether c gets 40001.
async fn race(lab: &Lab, first: &str, second: &str, lost: bool) {
    let [_, b, c] = lab.sessions().await;
    lab.everywhere().await;
    c.must("begin").await;
    c.must(second).await;
    // What cannot commit any more may be evicted before it asks.
    b.must(first).await;
    let why = match c.run("commit").await {
        Ok(()) => None,
        Err(e) => match e.as_db_error() {
            Some(db) => Some(db.clone()),
            None => Some(c.ended_by().await.unwrap_or_else(|e| panic!("{first}, then {second}: {e:#}"))),
        },
    };
    assert_eq!(why.is_some(), lost, "{first}, then {second}: {why:?}");
    assert!(why.iter().all(|db| *db.code() == SqlState::T_R_SERIALIZATION_FAILURE), "{first}, then {second}: {why:?}");
    lab.shows_alike(STATE).await;
}

const CUT: &str = "do $$ begin perform lo_truncate(lo_open(200, 131072), 100); end $$";

async fn conflicts(lab: &Lab) {
    let reset = "select lo_unlink(oid) from pg_largeobject_metadata where oid between 200 and 201; select lo_from_bytea(200, convert_to(repeat('x', 10000), 'UTF8'))";
    let whole_page = "select lo_put(200, 4096, convert_to(repeat('y', 2048), 'UTF8'))";
    for (first, second, lost) in [
        ("select lo_put(200, 10, 'one')", "select lo_put(200, 20, 'two')", true),
        ("select lo_put(200, 10, 'one')", "select lo_put(200, 9000, 'two')", false),
        ("select lo_put(200, 0, 'xxx')", "select lo_put(200, 0, 'two')", true),
        (CUT, whole_page, true),
        (whole_page, CUT, true),
        (CUT, CUT, true),
        ("select lo_unlink(200)", whole_page, true),
        (whole_page, "select lo_unlink(200)", true),
        ("select lo_unlink(200)", "select lo_unlink(200)", true),
        ("select lo_create(201)", "select lo_create(201)", true),
        ("select lo_create(201)", "select lo_create(202); select lo_unlink(202)", false),
        ("select lo_put(200, 10000, 'one')", "select lo_put(200, 10000, 'two')", true),
        ("grant select on large object 200 to lo_owner", "select lo_unlink(200)", true),
        ("select lo_unlink(200)", "comment on large object 200 is 'gone'", true),
        ("grant select on large object 200 to lo_owner", whole_page, false),
        ("select lo_get(200)", "select lo_unlink(200)", false),
    ] {
        lab.session(0).await.must(reset).await;
        race(lab, first, second, lost).await;
    }
    lab.session(0).await.must(reset).await;
    rolled_back_to_a_savepoint(lab).await;
}

async fn rolled_back_to_a_savepoint(lab: &Lab) {
    let [_, b, c] = lab.sessions().await;
    lab.everywhere().await;
    // What was rolled back conflicts with nothing, and does not come back with an old page.
    b.must("begin; savepoint s; select lo_put(200, 0, 'gone'); rollback to s; select lo_put(200, 9000, 'kept')").await;
    c.must("select lo_put(200, 0, 'new')").await;
    lab.everywhere().await;
    b.must("commit").await;
    lab.shows("select convert_from(lo_get(200, 0, 3) || lo_get(200, 9000, 4), 'UTF8')", "newkept").await;
}

/// Statements that concern all objects of a role, and a new object that they have not seen.
async fn owners(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("create role lo_old; create role lo_new; grant lo_old to lo_owner").await;
    let create = "set role lo_old; select lo_create(300); reset role";
    race(lab, create, "reassign owned by lo_old to lo_new", true).await;
    race(lab, "reassign owned by lo_old to lo_new", "set role lo_old; select lo_create(301); reset role", true).await;
    a.must("select lo_unlink(oid) from pg_largeobject_metadata where lomowner::regrole::text in ('lo_old', 'lo_new')")
        .await;
    race(lab, create, "drop role lo_old", true).await;
    a.must("drop owned by lo_old; select lo_create(302); alter large object 302 owner to lo_old").await;
    lab.shows("select lomowner::regrole from pg_largeobject_metadata where oid = 302", "lo_old").await;
    lab.session(2).await.must("drop owned by lo_old; drop role lo_old, lo_new").await;
    lab.shows("select count(*) from pg_largeobject_metadata where oid = 302", "0").await;
}

/// Goal: the server's own numbers are not given out in two regions.  No transaction may lose for it.
async fn numbers(lab: &Lab) {
    let sessions = lab.sessions().await;
    let before = number(&sessions[0], "select count(*) from pg_largeobject_metadata").await.unwrap();
    let work = sessions.iter().map(|session| async move {
        for _ in 0..20 {
            session.must("select lo_creat(-1), lo_from_bytea(0, 'x')").await;
            session.must("begin; select lo_create(0) from generate_series(1, 10); commit").await;
        }
    });
    futures_join(work).await;
    lab.shows("select count(*) from pg_largeobject_metadata", &(before + 3 * 20 * 12).to_string()).await;
    sessions[1].must("select lo_unlink(oid) from pg_largeobject_metadata where oid > 1000").await;
    lab.shows_alike(STATE).await;
}

async fn futures_join(work: impl Iterator<Item = impl std::future::Future<Output = ()>>) {
    let mut pending: Vec<_> = work.map(|work| Some(Box::pin(work))).collect();
    std::future::poll_fn(|cx| {
        for slot in &mut pending {
            if slot.as_mut().is_some_and(|work| work.as_mut().poll(cx).is_ready()) {
                *slot = None;
            }
        }
        match pending.iter().all(Option::is_none) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
}

// ---- at random ----

/// The same numbers each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % sides
    }
}

/// One change of one of the objects 400 to 403.  It does nothing if the object is not, or is already, there.
fn change(dice: &mut Dice) -> String {
    let n = 400 + dice.roll(4);
    let there = format!("exists (select from pg_largeobject_metadata where oid = {n})");
    let at = dice.roll(9000);
    let bytes = format!("convert_to(repeat('{}', {}), 'UTF8')", dice.roll(10), dice.roll(5000));
    match dice.roll(10) {
        0 => format!("select lo_unlink({n}) where {there}"),
        1 | 2 => {
            let at = if dice.roll(3) == 0 { at / 2048 * 2048 } else { at };
            format!("do $$ begin if {there} then perform lo_truncate(lo_open({n}, 131072), {at}); end if; end $$")
        }
        3 => format!("select lo_from_bytea({n}, {bytes}) where not {there}"),
        4 => format!("savepoint s; select lo_put({n}, {at}, {bytes}) where {there}; rollback to s"),
        _ => format!("select lo_put({n}, {at}, {bytes}) where {there}"),
    }
}

fn transaction(dice: &mut Dice) -> String {
    let changes: Vec<String> = (0..1 + dice.roll(6)).map(|_| change(dice)).collect();
    format!("begin; {}; {}", changes.join("; "), if dice.roll(8) == 0 { "rollback" } else { "commit" })
}

/// Goal: what regions agree on is what PostgreSQL does.  Method: the same transactions in a plain database.
async fn as_in_plain_postgresql(lab: &Lab) {
    lab.session(0).await.must("create database lo_plain").await;
    let plain = Session::open(&lab.node(0).conninfo().replace("dbname=onetrip", "dbname=lo_plain")).await.unwrap();
    let sessions = lab.sessions().await;
    let mut dice = Dice(26);
    let objects = "select string_agg(format('%s %s', oid, md5(lo_get(oid))), ', ' order by oid) from pg_largeobject_metadata where oid between 400 and 403";
    for round in 0..60 {
        let sql = transaction(&mut dice);
        plain.must(&sql).await;
        lab.everywhere().await;
        sessions[round % 3].must(&sql).await;
        if round % 10 == 9 {
            let expected = text(&plain, objects).await.unwrap_or_default();
            lab.shows(&format!("select coalesce(({objects}), '')"), &expected).await;
            let pages = "select coalesce(string_agg(format('%s %s %s', loid, pageno, length(data)), ', ' order by loid, pageno), '') from pg_largeobject where loid between 400 and 403";
            lab.shows(pages, &text(&plain, pages).await.unwrap()).await;
        }
    }
}

/// All regions change the same objects at the same time.  A transaction may lose; regions may not differ.
async fn all_at_once(lab: &Lab) {
    let until = Instant::now() + Duration::from_secs(8);
    let workers = (0..6_usize).map(|worker| async move {
        let mut session = lab.session(worker % 3).await;
        let mut dice = Dice(1000 + worker as u64);
        let (mut done, mut lost) = (0, 0);
        while Instant::now() < until {
            let sql = transaction(&mut dice);
            match session.run(&sql).await {
                Ok(()) => done += 1,
                // PostgreSQL's own words for two that write the same page, or that the object is gone or there.
                Err(e) => {
                    let known = |db: &DbError| match db.code().code() {
                        "XX000" => db.message().starts_with("tuple concurrently "),
                        code => ["40001", "40P01", "23505", "42704"].contains(&code),
                    };
                    assert!(e.as_db_error().is_none_or(known), "{sql}: {}", told(&e));
                    lost += 1;
                    // An idle one is ended.
                    if session.run("rollback").await.is_err() {
                        session = lab.session(worker % 3).await;
                    }
                }
            }
        }
        println!("large_objects: worker {worker}: {done} committed, {lost} failed");
        assert!(done > 0, "worker {worker} got nothing done");
    });
    futures_join(workers).await;
    lab.shows_alike(STATE).await;
    lab.check_equal(1).await;
}

// ---- what others do with them ----

async fn managed_by_a_trigger(lab: &Lab) {
    let [_, b, c] = lab.sessions().await;
    b.must("create table picture (id int primary key, body lo);
            create trigger body before update or delete on picture for each row execute function lo_manage(body);
            insert into picture select g, lo_from_bytea(0, convert_to('picture ' || g, 'UTF8')) from generate_series(1, 3) g")
        .await;
    lab.shows(
        "select string_agg(convert_from(lo_get(body), 'UTF8'), ', ' order by id) from picture",
        "picture 1, picture 2, picture 3",
    )
    .await;
    c.must("update picture set body = lo_from_bytea(0, 'another') where id = 1; delete from picture where id = 2")
        .await;
    let orphans =
        "select count(*) from pg_largeobject_metadata where oid > 1000 and oid not in (select body from picture)";
    lab.shows(orphans, "0").await;
    lab.shows("select count(*) from pg_largeobject_metadata where oid > 1000", "2").await;
    // vacuumlo removes what no column refers to, by the fast path.
    b.must("select lo_create(0)").await;
    lab.everywhere().await;
    // Who has lost the objects again and again is let through first, which takes a moment.
    for tries in 1.. {
        let vacuumlo = tokio::process::Command::new(postgres_bin().join("vacuumlo"))
            .args(["-h", "127.0.0.1", "-U", "postgres", "-p", &port(lab, 2), "onetrip"])
            .kill_on_drop(true)
            .output();
        let output = bounded("vacuumlo", vacuumlo).await.expect("run vacuumlo");
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            break;
        }
        assert!(tries < 10 && said.contains("is to go first"), "vacuumlo: {said}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    lab.shows("select count(*) from pg_largeobject_metadata", "2").await;
    lab.shows_alike(STATE).await;
}

fn port(lab: &Lab, region: usize) -> String {
    let config: Config = lab.node(region).conninfo().parse().expect("a conninfo");
    config.get_ports()[0].to_string()
}

/// pg_dump of a plain database, with its large objects, into region b.
async fn dumped(lab: &Lab) {
    lab.session(0).await.must("create database lo_dumped").await;
    let plain = Session::open(&lab.node(0).conninfo().replace("dbname=onetrip", "dbname=lo_dumped")).await.unwrap();
    plain
        .must("create table album (id int primary key, body oid);
               insert into album select g, lo_from_bytea(5000 + g, convert_to(repeat(g::text, 3000), 'UTF8')) from generate_series(1, 5) g;
               alter large object 5002 owner to lo_owner; grant select on large object 5003 to lo_owner; comment on large object 5004 is 'four'")
        .await;
    let file = lab.data().join("album.dump").display().to_string();
    let conninfo = lab.node(0).conninfo().replace("dbname=onetrip", "dbname=lo_dumped");
    run("pg_dump", &["-Fc", "--blobs", "-f", &file, "-d", &conninfo]).await;
    run("pg_restore", &["--exit-on-error", "-d", &lab.node(1).conninfo(), &file]).await;
    lab.shows("select string_agg(md5(lo_get(body)), ' ' order by id) = (select string_agg(md5(repeat(g::text, 3000)), ' ' order by g) from generate_series(1, 5) g) from album", "t").await;
    lab.shows("select lomowner::regrole from pg_largeobject_metadata where oid = 5002", "lo_owner").await;
    lab.shows(
        "select description from pg_description where objoid = 5004 and classoid = 'pg_largeobject'::regclass",
        "four",
    )
    .await;
    lab.check_equal(2).await;
}

async fn run(program: &str, args: &[&str]) {
    let output = tokio::process::Command::new(postgres_bin().join(program)).args(args).kill_on_drop(true).output();
    let output = bounded(program, output).await.expect(program);
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

async fn a_large_one(lab: &Lab) {
    let b = lab.session(1).await;
    let began = Instant::now();
    b.must("do $$ declare fd int := lo_open(lo_create(6000), 131072); piece bytea := decode(repeat('0123456789abcdef', 131072), 'hex');
            begin for i in 1 .. 100 loop perform lowrite(fd, piece); end loop; end $$")
        .await;
    let here = began.elapsed();
    lab.everywhere().await;
    println!("large_objects: 100 MB: {} ms, in all regions after {} ms", here.as_millis(), began.elapsed().as_millis());
    lab.shows("select count(*) || ' ' || sum(length(data)) from pg_largeobject where loid = 6000", "51200 104857600")
        .await;
    b.must("select lo_unlink(6000)").await;
    lab.shows("select count(*) from pg_largeobject where loid = 6000", "0").await;
}

/// Goal: while some members might not know large objects, each way to change one is refused.  Method: a cluster that
/// begins with level 0, as one does that an earlier release made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_level_1_large_objects_are_refused() {
    let about = "a cluster of level 0 refuses to change large objects, until its upgrade is finished";
    let lab = start_prepared("large_objects_level", about, builder(), |cluster| {
        for node in cluster.nodes() {
            let file = node.folder().join("node.toml");
            let text = std::fs::read_to_string(&file)?;
            assert!(text.contains("\nlevel = 1\n"), "{text}");
            std::fs::write(file, text.replace("\nlevel = 1\n", "\n"))?;
        }
        Ok(())
    })
    .await;
    let reads =
        ["lo_open", "lo_close", "loread", "lo_lseek", "lo_lseek64", "lo_tell", "lo_tell64", "lo_get", "lo_export"];
    let session = lab.session(1).await;
    for (function, arguments) in calls(1) {
        let name = function.split('(').next().expect("a name");
        let arguments: Vec<String> = arguments.iter().map(Value::sql).collect();
        if !reads.contains(&name) {
            let why = session.refused(&format!("select {name}({})", arguments.join(", "))).await;
            assert_eq!((why.code().code(), why.message()), ("0A000", "cannot replicate a large object"), "{function}");
            assert!(why.hint().is_some_and(|hint| hint.contains("--finish")), "{why:?}");
        }
    }
    for statement in ["alter large object 1 owner to postgres", "grant select on large object 1 to public"] {
        assert_eq!(session.refused(statement).await.code().code(), "0A000", "{statement}");
    }
    let finished = onetrip(&["upgrade", "--finish", "--data", &lab.node(0).folder().display().to_string()]).await;
    assert_eq!(finished.code, Some(0), "{}{}", finished.stdout, finished.stderr);
    for node in lab.nodes() {
        node.stop().await.unwrap_or_else(|e| panic!("{e:#}"));
        node.restart().await.unwrap_or_else(|e| panic!("{e:#}"));
    }
    lab.session(1).await.must("select lo_from_bytea(1, 'one')").await;
    lab.shows("select convert_from(lo_get(1), 'UTF8')", "one").await;
    lab.check_equal(1).await;
}
