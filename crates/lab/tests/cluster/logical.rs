//! Publications: a consumer of any region's server gets each change once, in the same transactions.
//!
//! A consumer here is a slot with PostgreSQL's own output plugin, pgoutput, or a subscription.

use std::collections::HashMap;
use std::fmt::Write;

use onetrip_lab::postgres_bin;
use onetrip_lab::torture::random::Random;
use onetrip_lab::values::{catalog::Catalog, expression::Generator};

use crate::census::Census;
use crate::lab::{bounded, builder, number, psql, start_from, subjects, text, told, until, Lab, Session, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn a_consumer_in_any_region_gets_each_change_once() {
    let name = "logical";
    let about = "what slots and subscriptions of three regions get, of everything that changes rows";
    let lab = start_from(name, about, builder().postgres_setting("wal_level", "logical")).await;
    lab.session(0).await.must("create publication whole for all tables").await;
    lab.everywhere().await;
    subjects!(lab, 1;
        regions_that_write_at_once,
        rows_as_they_were,
        tables_emptied_and_written_anew,
        every_kind_of_statement,
        values_of_every_type,
        what_a_publication_leaves_out,
        updates_without_a_replica_identity,
        a_publication_made_while_its_table_is_written,
        a_consumer_that_moves,
        pg_recvlogical_reads_what_a_slot_gives,
        a_subscription,
    );
}

// ---- what a slot gives ----

/// A transaction, as pgoutput tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Transaction {
    /// The origin's name and position: Onetrip's, and the log index.
    origin: String,
    at: u64,
    changes: Vec<String>,
}

struct Message<'a>(&'a [u8]);

impl Message<'_> {
    fn take(&mut self, n: usize) -> &[u8] {
        let (head, rest) = self.0.split_at(n);
        self.0 = rest;
        head
    }

    fn number(&mut self, bytes: usize) -> u64 {
        self.take(bytes).iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
    }

    fn string(&mut self) -> String {
        let end = self.0.iter().position(|b| *b == 0).expect("the end of a string");
        let text = String::from_utf8_lossy(self.take(end)).into_owned();
        self.take(1);
        text
    }

    fn row(&mut self, into: &mut String) {
        for _ in 0..self.number(2) {
            match self.number(1) as u8 {
                b't' => {
                    let length = self.number(4) as usize;
                    let _ = write!(into, " {}", String::from_utf8_lossy(self.take(length)));
                }
                kind => into.extend([' ', '<', kind as char, '>']),
            }
        }
    }
}

/// Reads what has come to the slot.  A commit is decoded once its WAL is on disk, which COMMIT need not wait for.
async fn read(session: &Session, slot: &str, publication: &str) -> Vec<Transaction> {
    let query = format!(
        "select data from pg_logical_slot_get_binary_changes('{slot}', null, null, 'proto_version', '1', 'publication_names', '{publication}')"
    );
    let written = text(session, "select pg_current_wal_insert_lsn()").await.unwrap();
    let flushed = format!("select (pg_current_wal_flush_lsn() >= '{written}')::int");
    until("the WAL is flushed", SOON, async || Ok(number(session, &flushed).await? == 1)).await.unwrap();
    let rows = bounded(&query, session.query(&query, &[])).await.unwrap_or_else(|e| panic!("{query}: {}", told(&e)));
    let (mut transactions, mut relations) = (Vec::new(), HashMap::new());
    for row in &rows {
        let mut message = Message(row.get(0));
        let kind = message.number(1) as u8;
        if kind == b'B' {
            transactions.push(Transaction { origin: String::new(), at: 0, changes: Vec::new() });
            continue;
        }
        let Some(transaction) = transactions.last_mut() else { panic!("{} comes first", kind as char) };
        let change = match kind {
            b'C' | b'Y' => continue,
            b'O' => {
                transaction.at = message.number(8);
                transaction.origin = message.string();
                continue;
            }
            b'R' => {
                let oid = message.number(4);
                relations.insert(oid, format!("{}.{}", message.string(), message.string()));
                continue;
            }
            b'T' => {
                let (count, options) = (message.number(4), message.number(1));
                let names: Vec<String> = (0..count).map(|_| relations[&message.number(4)].clone()).collect();
                format!("T{options} {}", names.join(" "))
            }
            b'I' | b'U' | b'D' => {
                let mut change = format!("{} {}", kind as char, relations[&message.number(4)]);
                while !message.0.is_empty() {
                    change.extend([' ', message.number(1) as u8 as char]);
                    message.row(&mut change);
                }
                change
            }
            other => panic!("pgoutput sends {}", other as char),
        };
        transaction.changes.push(change);
    }
    transactions
}

/// A slot in each region.
struct Slots<'a> {
    lab: &'a Lab,
    name: String,
}

impl<'a> Slots<'a> {
    async fn make(lab: &'a Lab, name: &str) -> Slots<'a> {
        lab.everywhere().await;
        for session in lab.sessions().await {
            session.must(&format!("select pg_create_logical_replication_slot('{name}', 'pgoutput')")).await;
        }
        Slots { lab, name: name.to_string() }
    }

    /// What the slots give of this publication, which must be the same in all regions.
    async fn alike(&self, publication: &str) -> Vec<Transaction> {
        self.lab.everywhere().await;
        let mut all = Vec::new();
        for session in self.lab.sessions().await {
            all.push(read(&session, &self.name, publication).await);
        }
        for (region, given) in all.iter().enumerate().skip(1) {
            for (here, first) in given.iter().zip(&all[0]) {
                assert_eq!(here, first, "left: region {}, right: a", self.lab.node(region).region());
            }
            assert_eq!(given.len(), all[0].len(), "{:?}", &all[0].last());
        }
        let first = all.swap_remove(0);
        assert!(first.iter().all(|t| t.origin == "onetrip"), "{first:?}");
        assert!(first.windows(2).all(|pair| pair[0].at < pair[1].at), "{first:?}");
        first
    }

    /// The same, as the changes of all transactions.
    async fn changes(&self, publication: &str) -> Vec<String> {
        self.alike(publication).await.into_iter().flat_map(|t| t.changes).collect()
    }

    async fn drop(self) {
        for session in self.lab.sessions().await {
            session.must(&format!("select pg_drop_replication_slot('{}')", self.name)).await;
        }
    }
}

// ---- everything that changes rows ----

const WRITERS: i64 = 4;
const TRANSACTIONS: i64 = 60;

async fn regions_that_write_at_once(lab: &Lab) {
    lab.session(0)
        .await
        .must(
            "create table busy (id bigint primary key, v text, n int default 0) partition by hash (id);
             create table busy_0 partition of busy for values with (modulus 2, remainder 0);
             create table busy_1 partition of busy for values with (modulus 2, remainder 1);
             insert into busy select g, 'from the start' from generate_series(1, 10) g",
        )
        .await;
    let slots = Slots::make(lab, "busy").await;
    let mut writers = Vec::new();
    for writer in 0..3 * WRITERS {
        let session = lab.session((writer % 3) as usize).await;
        writers.push(tokio::spawn(async move {
            let mut committed = 0;
            for i in 0..TRANSACTIONS {
                let id = 1000 + writer * TRANSACTIONS + i;
                let sql = format!(
                    "begin; insert into busy values ({id}, repeat('v', {i})); savepoint s; update busy set v = 'undone';
                     rollback to s; update busy set n = n + 1 where id = {}; delete from busy where id = {}; commit",
                    1 + (writer + i) % 10,
                    id - 2
                );
                match session.run(&sql).await {
                    Ok(()) => committed += 1,
                    Err(_) => session.must("rollback").await,
                }
            }
            committed
        }));
    }
    let ddl = lab.session(2).await;
    for i in 0..5 {
        let _ = ddl.run(&format!("create table beside_{i} as select g as id from generate_series(1, 3) g")).await;
    }
    let mut committed = 0;
    for writer in writers {
        committed += writer.await.expect("a writer");
    }
    let transactions = slots.alike("whole").await;
    let made = transactions.iter().filter(|t| t.changes[0].starts_with("I public.busy")).count();
    assert_eq!(made, committed, "each committed transaction once");
    assert!(transactions.iter().any(|t| t.changes.len() == 3 && t.changes[0].starts_with("I public.beside_")));
    assert!(!transactions.iter().any(|t| t.changes.iter().any(|change| change.contains("undone"))));
    slots.drop().await;
}

/// The old row goes with the new one as the replica identity wants it, and what is stored out of line as well.
async fn rows_as_they_were(lab: &Lab) {
    let long = "(select string_agg(md5(g::text), '') from generate_series(1, 300) g)";
    lab.session(1)
        .await
        .must(&format!(
            "create table keyed (id int primary key, v text, w text);
             create table full_rows (id int primary key, v text, w text); alter table full_rows replica identity full;
             create table no_key (id int, v text, w text); alter table no_key replica identity full;
             create table by_index (id int, v text not null, w text); create unique index by_v on by_index (v);
             alter table by_index replica identity using index by_v;
             insert into keyed select g, 'v' || g, {long} from generate_series(1, 6) g;
             insert into full_rows select * from keyed; insert into no_key select * from keyed; insert into no_key select * from keyed;
             insert into by_index select * from keyed"
        ))
        .await;
    let slots = Slots::make(lab, "identity").await;
    for (region, table) in ["keyed", "full_rows", "no_key", "by_index"].iter().enumerate() {
        let session = lab.session(region % 3).await;
        session
            .must(&format!(
                "update {table} set v = v || 'x' where id = 1; update {table} set id = id + 100 where id = 2;
                 update {table} set w = w || 'longer' where id = 3; update {table} set v = v, w = w where id = 4;
                 update {table} set v = null, w = null where id = 5 and '{table}' <> 'by_index';
                 delete from {table} where id = 6;
                 begin; delete from {table} where id = 1; insert into {table} values (1, 'again', null); commit;
                 insert into {table} values (7, 'a', {long})"
            ))
            .await;
        lab.everywhere().await;
    }
    let changes = slots.changes("whole").await;
    assert!(changes.contains(&"U public.keyed N 1 v1x <u>".to_string()), "{changes:?}");
    assert!(changes.contains(&"U public.keyed K 2 <n> <n> N 102 v2 <u>".to_string()), "{changes:?}");
    assert!(changes.iter().any(|c| c.starts_with("D public.no_key O 6 v6 ")), "{changes:?}");
    assert!(changes.contains(&"U public.by_index K <n> v1 <n> N 1 v1x <u>".to_string()), "{changes:?}");
    slots.drop().await;
}

/// TRUNCATE is one change of all its tables; the rows of a table that is written anew are none.
async fn tables_emptied_and_written_anew(lab: &Lab) {
    lab.session(0)
        .await
        .must(
            "create table parent (id int primary key); create table child (id serial primary key, parent int references parent);
             create table split (id int, part int) partition by list (part); create table split_1 partition of split for values in (1);
             create table keeps (id int primary key, v text); create unlogged table own (id int primary key);
             create materialized view sums as select count(*) as n from keeps; create unique index on sums (n)",
        )
        .await;
    let slots = Slots::make(lab, "written").await;
    let [a, b, c] = lab.sessions().await;
    b.must("insert into parent values (1); insert into child (parent) values (1); insert into split values (1, 1); insert into keeps values (1, 'a')")
        .await;
    slots.lab.everywhere().await;
    c.must("begin; truncate parent, split restart identity cascade; truncate keeps; insert into keeps values (2, 'b'), (3, 'c'); commit").await;
    lab.everywhere().await;
    a.must(
        "begin; insert into keeps values (4, 'before'); alter table keeps add column drawn float default random();
         insert into keeps (id, v) values (5, 'after'); update keeps set v = 'changed' where id = 2; commit",
    )
    .await;
    lab.everywhere().await;
    b.must("alter table keeps alter column v type text using v || random(); refresh materialized view sums; refresh materialized view concurrently sums")
        .await;
    lab.everywhere().await;
    c.must("alter table keeps add column serial_too serial; create table copied as select id from keeps; insert into copied values (9)").await;
    lab.everywhere().await;
    a.must("insert into own values (1); alter table own set logged; insert into own values (2); cluster keeps using keeps_pkey")
        .await;
    a.must("vacuum full keeps").await;
    let changes = slots.changes("whole").await;
    let of = |table: &str| changes.iter().filter(|c| c.contains(&format!(" public.{table}"))).count();
    assert_eq!(of("parent") + of("child") + of("split"), 3 + 3, "{changes:?}");
    assert!(
        changes.iter().any(|c| c.starts_with("T3 ") && c.contains("public.child") && c.contains("public.split")),
        "{changes:?}"
    );
    assert_eq!(of("keeps"), 1 + 1 + 2 + 3, "{changes:?}");
    assert_eq!((of("copied"), of("own"), of("sums")), (4 + 1, 1, 0), "{changes:?}");
    slots.drop().await;
}

/// Whatever a statement of the census does to rows, consumers in all regions see the same.
async fn every_kind_of_statement(lab: &Lab) {
    let slots = Slots::make(lab, "statements").await;
    let session = lab.session(1).await;
    // the examples change rows of tables without a key, which a publication of updates does not allow
    session.must("alter publication whole set (publish = 'insert, truncate')").await;
    let mut ran = 0;
    for (tag, columns) in &Census::read("statements.tsv", 1).lines {
        if !["travels", "rows", "contents"].contains(&columns[1].as_str()) || tag.contains("PUBLICATION") {
            continue;
        }
        for statement in columns[3].split(" ;; ") {
            if let Err(error) = session.run(statement).await {
                println!("{tag}: {statement}: {}", told(&error));
                let _ = session.run("rollback").await;
            } else {
                ran += 1;
            }
        }
    }
    assert!(ran > 150, "{ran} statements ran");
    session.must("alter publication whole set (publish = 'insert, update, delete, truncate')").await;
    let transactions = slots.alike("whole").await;
    assert!(transactions.len() > 10, "{transactions:?}");
    slots.drop().await;
}

async fn values_of_every_type(lab: &Lab) {
    let client = lab.connect(0).await.unwrap();
    client.batch_execute("create schema made").await.unwrap();
    let catalog = Catalog::read(&client).await.unwrap();
    let slots = Slots::make(lab, "types").await;
    let mut generator = Generator::new(&catalog, Random::new(1));
    let (mut types, mut stored) = (0, 0);
    client.batch_execute("begin").await.unwrap();
    // What fails is undone, and the rest goes on.
    let tries = async |sql: String| {
        client.batch_execute("savepoint before").await.unwrap();
        let done = client.batch_execute(&sql).await.is_ok();
        client.batch_execute(if done { "release before" } else { "rollback to before" }).await.unwrap();
        done
    };
    for (number, kind) in catalog.types.values().enumerate() {
        if !tries(format!("create table made.t{number} (id int primary key, v {})", kind.name)).await {
            continue;
        }
        let before = stored;
        for id in 0..4 {
            let value = if id < 2 { generator.simple_value(kind.oid) } else { generator.value(kind.oid) };
            let insert =
                format!("insert into made.t{number} values ({id}, {value}); select v::text from made.t{number}");
            stored += usize::from(tries(insert).await);
        }
        types += usize::from(stored > before);
    }
    client.batch_execute("commit").await.unwrap();
    let changes = slots.changes("whole").await;
    assert!(types > 100 && changes.len() >= stored, "{types} types, {stored} values, {} changes", changes.len());
    slots.drop().await;
}

/// Row filters, lists of columns, partitions as their root, and the operations that are not published.
async fn what_a_publication_leaves_out(lab: &Lab) {
    lab.session(2)
        .await
        .must(
            "create table filtered (id int primary key, secret text, shown text);
             create table rooted (id int, part int, primary key (id, part)) partition by list (part);
             create table rooted_1 partition of rooted for values in (1); create table rooted_2 partition of rooted for values in (2);
             create schema of_schema; create table of_schema.t (id int primary key); create table local_rows (id int primary key) using heap;
             create publication part_of for table filtered (id, shown) where (id > 10), rooted with (publish_via_partition_root);
             create publication a_schema for tables in schema of_schema",
        )
        .await;
    let slots = Slots::make(lab, "some").await;
    let b = lab.session(1).await;
    b.must(
        "insert into filtered values (1, 'hidden', 'one'), (21, 'hidden', 'yes'); update filtered set id = id + 10;
         insert into rooted values (1, 1), (1, 2); update rooted set part = 2, id = 2 where part = 1; insert into of_schema.t values (1);
         insert into local_rows values (1)",
    )
    .await;
    let changes = slots.changes("part_of, a_schema").await;
    assert!(!changes.iter().any(|c| c.contains("hidden") || c.contains("rooted_")), "{changes:?}");
    assert!(changes.contains(&"I of_schema.t N 1".to_string()), "{changes:?}");
    b.must("alter publication part_of rename to fewer; alter publication fewer set (publish = 'insert')").await;
    lab.everywhere().await;
    lab.session(0).await.must("update rooted set id = id + 10; insert into rooted values (5, 1)").await;
    assert_eq!(slots.changes("fewer, a_schema").await, ["I public.rooted N 5 1"]);
    lab.shows(
        "select string_agg(concat_ws(' ', schemaname, tablename, attnames, rowfilter), ', ' order by tablename) from pg_publication_tables where pubname in ('fewer', 'a_schema')",
        "public filtered {id,shown} (id > 10), public rooted {id,part}, of_schema t {id}",
    )
    .await;
    lab.shows("select count(*) from pg_publication_tables where schemaname = 'onetrip'", "0").await;
    lab.session(0).await.must("drop publication fewer, a_schema").await;
    slots.drop().await;
}

/// As in PostgreSQL, in every region.
async fn updates_without_a_replica_identity(lab: &Lab) {
    lab.session(0).await.must("create table bare (id int); insert into bare values (1)").await;
    lab.everywhere().await;
    for session in lab.sessions().await {
        let why = session.refused("update bare set id = 2").await;
        assert_eq!(why.code().code(), "55000", "{}", why.message());
    }
    lab.session(1).await.must("alter publication whole set (publish = 'insert')").await;
    lab.everywhere().await;
    lab.session(2).await.must("update bare set id = 2").await;
    lab.everywhere().await;
    lab.session(1).await.must("alter table bare replica identity full; alter publication whole set (publish = 'insert, update, delete, truncate')").await;
    lab.everywhere().await;
    lab.session(0).await.must("update bare set id = 3").await;
}

/// A row is changed before the publication in every region, or after it in every region, where it is refused if the
/// table has no replica identity.
async fn a_publication_made_while_its_table_is_written(lab: &Lab) {
    lab.session(0)
        .await
        .must("drop publication whole; create table raced (id int, n int); insert into raced select g, 0 from generate_series(1, 20) g")
        .await;
    let slots = Slots::make(lab, "raced").await;
    lab.session(0).await.must("create publication raced for table raced with (publish = 'insert')").await;
    let mut writers = Vec::new();
    for region in 0..3 {
        let session = lab.session(region).await;
        writers.push(tokio::spawn(async move {
            let (mut changed, mut refused) = (0, 0);
            for i in 0..150 {
                match session.run(&format!("update raced set n = n + 1 where id = {}", 1 + region + 3 * (i % 6))).await
                {
                    Ok(()) => changed += 1,
                    Err(e) if e.code().is_some_and(|code| code.code() == "55000") => refused += 1,
                    Err(_) => {}
                }
            }
            (changed, refused)
        }));
    }
    let d = lab.session(1).await;
    let mut altered = 0;
    for i in 0..40 {
        let publish = if i % 2 == 0 { "insert, update" } else { "insert" };
        altered += usize::from(d.run(&format!("alter publication raced set (publish = '{publish}')")).await.is_ok());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let (mut changed, mut refused) = (0, 0);
    for writer in writers {
        let (c, r) = writer.await.expect("a writer");
        changed += c;
        refused += r;
    }
    println!("{altered} changes of the publication, {changed} of rows, {refused} refused");
    assert!(altered > 2 && changed > 10 && refused > 0, "{altered} {changed} {refused}");
    // a change that came after the publication without being refused would be one without the old row
    assert_eq!(slots.changes("raced").await, Vec::<String>::new());
    lab.session(0)
        .await
        .must("drop publication raced; drop table raced; create publication whole for all tables")
        .await;
    slots.drop().await;
}

// ---- consumers ----

/// By the position of the origin, which is the log index, a consumer goes on in another region without a gap or a
/// change twice, also one that has read from a region whose server is gone.
async fn a_consumer_that_moves(lab: &Lab) {
    lab.session(0).await.must("create table moves (id int primary key)").await;
    let slots = Slots::make(lab, "moves").await;
    let sessions = lab.sessions().await;
    let insert = async |from: i64| {
        for id in from..from + 30 {
            sessions[(id % 3) as usize].must(&format!("insert into moves values ({id})")).await;
        }
        lab.everywhere().await;
    };
    insert(0).await;
    let mut got = read(&sessions[0], "moves", "whole").await;
    insert(100).await;
    let at = got.last().expect("some").at;
    got.extend(read(&sessions[2], "moves", "whole").await.into_iter().filter(|t| t.at > at));
    assert_eq!(got, read(&sessions[1], "moves", "whole").await);
    assert_eq!(got.len(), 60);
    // the same number is what a transaction's COMMIT was
    assert_eq!(
        got.last().unwrap().at as i64,
        number(&sessions[(129 % 3) as usize], "select entry from onetrip.last_commit()").await.unwrap()
    );
    slots.drop().await;
}

/// The program, over the replication protocol, as docs/publications.md shows it.
async fn pg_recvlogical_reads_what_a_slot_gives(lab: &Lab) {
    let conninfo = lab.node(2).conninfo();
    let run = async |args: &[&str]| {
        let program = postgres_bin().join("pg_recvlogical");
        let run = tokio::process::Command::new(program)
            .args(["--dbname", &conninfo, "--slot", "program"])
            .args(args)
            .output();
        let output = bounded("pg_recvlogical", run).await.expect("pg_recvlogical");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    lab.session(0).await.must("create table received (id int primary key, v text)").await;
    lab.everywhere().await;
    run(&["--create-slot", "-P", "pgoutput"]).await;
    lab.session(1).await.must("insert into received values (1, 'to be received')").await;
    lab.everywhere().await;
    let end = text(&lab.session(2).await.client, "select pg_current_wal_insert_lsn()").await.unwrap();
    let options = ["-o", "proto_version=1", "-o", "publication_names=whole"];
    let stream = run(&[&["--start", "--endpos", &end, "-f", "-"], &options[..]].concat()).await;
    for expected in [&b"received"[..], b"to be received", b"onetrip"] {
        assert!(stream.windows(expected.len()).any(|part| part == expected), "{}", String::from_utf8_lossy(&stream));
    }
    run(&["--drop-slot"]).await;
}

/// In a local database of one region's server, from the server of another region.  The local database gets the
/// publication itself, too, by pg_dump; so does the replicated one, from there.
async fn a_subscription(lab: &Lab) {
    lab.session(0)
        .await
        .must(
            "create table subscribed (id int primary key, v text); create table referring (id int primary key references subscribed);
             insert into subscribed values (1, 'copied'); create publication wanted for table subscribed, referring",
        )
        .await;
    lab.everywhere().await;
    lab.session(1).await.must("create database target").await;
    let target = lab.node(1).conninfo().replace("dbname=onetrip", "dbname=target");
    let dump = std::process::Command::new(postgres_bin().join("pg_dump"))
        .args([
            "--dbname",
            &lab.node(0).conninfo(),
            "--schema-only",
            "--exclude-schema=onetrip",
            "--no-table-access-method",
        ])
        .output()
        .expect("pg_dump");
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let dump = String::from_utf8(dump.stdout).unwrap();
    let wanted =
        |line: &&str| line.starts_with("CREATE PUBLICATION wanted") || line.starts_with("ALTER PUBLICATION wanted");
    let publication: Vec<&str> = dump.lines().filter(wanted).collect();
    assert_eq!(publication.len(), 4, "with its owner and two tables: {publication:?}");
    let copy = Session::open(&target).await.unwrap();
    copy.must("create table subscribed (id int primary key, v text); create table referring (id int primary key references subscribed)").await;
    copy.must(&publication.join(" ")).await;
    copy.must(&format!("create subscription wants connection '{}' publication wanted", lab.node(0).conninfo())).await;
    let same = async |what: &str, expected: &str| {
        until(what, SOON, async || {
            let shown = text(&copy, "select coalesce(string_agg(concat_ws(' ', s.id, v, r.id), ', ' order by s.id), '') from subscribed s left join referring r using (id)").await?;
            anyhow::ensure!(shown == expected, "{shown}");
            Ok(true)
        })
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
    };
    same("the first copy", "1 copied").await;
    let [a, b, c] = lab.sessions().await;
    a.must("insert into subscribed values (2, 'a')").await;
    b.must("insert into subscribed values (3, 'b'); insert into referring values (1)").await;
    lab.everywhere().await;
    c.must("update subscribed set v = v || 'c'; delete from subscribed where id = 3").await;
    same("changes of all regions", "1 copiedc 1, 2 ac").await;
    c.must("truncate subscribed, referring; insert into subscribed values (7, 'seven')").await;
    same("both emptied", "7 seven").await;
    a.must("drop publication wanted").await;
    a.must(&publication.join(" ")).await;
    lab.shows(
        "select string_agg(tablename, ' ' order by tablename) from pg_publication_tables where pubname = 'wanted'",
        "referring subscribed",
    )
    .await;
    copy.must("drop subscription wants").await;
    drop(copy);
    psql(lab, 1, "drop database target").await;
}
