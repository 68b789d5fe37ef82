//! An ordinary `pg_dump` of a database becomes replicated tables, or local ones if the session says so; and a dump of
//! the replicated database loads into another database of a server.

use onetrip_lab::postgres_bin;

use crate::lab::{bounded, number, psql, start, text, Lab, Session};

/// A database that knows nothing of Onetrip.
pub const SHOP: &str = "
    create schema shop;
    create type shop.mood as enum ('low', 'high');
    create domain shop.price as numeric(10, 2) check (value >= 0);
    create function shop.shout(v text) returns text language sql immutable as 'select upper(v)';
    create table shop.customer (id serial primary key, name text not null unique, mood shop.mood default 'low', tags text[]);
    create table shop.product (id bigint generated always as identity primary key, title text not null, price shop.price,
        shouted text generated always as (upper(title)) stored, check (length(title) > 1));
    create table shop.purchase (customer int not null references shop.customer on delete cascade,
        product bigint not null references shop.product, at date not null, n int default 1,
        primary key (customer, product, at)) partition by range (at);
    create table shop.purchase_2026 partition of shop.purchase for values from ('2026-01-01') to ('2027-01-01');
    create table shop.purchase_rest partition of shop.purchase default;
    create table shop.parent (v text);
    create table shop.child (extra int) inherits (shop.parent);
    create table shop.audit (what text, who int);
    create table shop.made as select g as id, repeat('x', g) as v from generate_series(1, 50) g;
    create unlogged table shop.scratch (id int primary key);
    create sequence shop.ticket start 100 increment 10;
    create index on shop.product (shop.shout(title));
    create index on shop.purchase (at);
    create materialized view shop.sold as select product, sum(n) as n from shop.purchase group by product;
    create unique index on shop.sold (product);
    create view shop.happy as select * from shop.customer where mood = 'high';
    create function shop.note() returns trigger language plpgsql as
        $$ begin insert into shop.audit values (tg_op, new.id); return new; end $$;
    create trigger noted after insert on shop.customer for each row execute function shop.note();
    comment on table shop.customer is 'people';
    insert into shop.customer (name, mood, tags) select 'name ' || g, 'high', array['a', g::text] from generate_series(1, 100) g;
    insert into shop.product (title, price) select 'title ' || g, g from generate_series(1, 20) g;
    insert into shop.purchase select g, 1 + g % 20, date '2026-11-01' + g, g from generate_series(1, 100) g;
    insert into shop.parent values ('twice'), ('twice');
    insert into shop.child values ('three', 3);
    insert into shop.scratch values (1);
    select nextval('shop.ticket'), nextval('shop.ticket');
    refresh materialized view shop.sold";

/// The tables with rows of their own that travel; `shop.scratch` is unlogged, and `shop.purchase` is partitioned.
const TABLES: [&str; 9] =
    ["audit", "child", "customer", "made", "parent", "product", "purchase_2026", "purchase_rest", "sold"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordinary_dump_is_restored_as_replicated_tables() {
    let lab =
        start("dump", "pg_dump of a plain database into region b, and of the replicated one into a plain one").await;
    lab.session(0).await.must("create database plain").await;
    let plain = Session::open(&database(&lab, 0, "plain")).await.unwrap();
    plain.must(SHOP).await;
    let dump = pg_dump(&lab, 0, "plain", &[]).await;
    assert!(dump.contains("\nSET default_table_access_method = heap;"), "{dump}");

    becomes_local_if_told(&lab, &dump).await;
    psql(&lab, 1, &dump).await;
    is_replicated(&lab, &plain).await;
    custom_format(&lab, &plain).await;
    goes_on_in_every_region(&lab).await;
    loads_elsewhere(&lab).await;
    lab.check_equal(TABLES.len()).await;
}

/// Also checks that nothing is left of it.
async fn becomes_local_if_told(lab: &Lab, dump: &str) {
    psql(lab, 0, &format!("set onetrip.new_tables = local;\n{dump}")).await;
    lab.shows(ACCESS_METHODS, "heap 10").await;
    // Contents of materialized views travel in any case.
    lab.shows("select count(*) from shop.sold", "20").await;
    let [a, b, _] = lab.sessions().await;
    let rows = "select count(*) from shop.purchase";
    assert_eq!((number(&a, rows).await.unwrap(), number(&b, rows).await.unwrap()), (100, 0));
    a.must("drop schema shop cascade").await;
    lab.everywhere().await;
}

async fn is_replicated(lab: &Lab, plain: &Session) {
    lab.shows(ACCESS_METHODS, "onetrip 10").await;
    for table in TABLES {
        let rows = format!("select string_agg(t::text, ';' order by t::text) from only shop.{table} t");
        lab.shows(&rows, &text(plain, &rows).await.unwrap()).await;
    }
    for definitions in [
        "select string_agg(conrelid::regclass || ' ' || pg_get_constraintdef(oid) || convalidated, ';' order by 1) from
            (select * from pg_constraint where connamespace = 'shop'::regnamespace order by conrelid::regclass::text, conname) c",
        "select string_agg(indexdef, ';' order by indexdef) from pg_indexes where schemaname = 'shop'",
        "select string_agg(viewname || definition, ';' order by viewname) from pg_views where schemaname = 'shop'",
        "select string_agg(tgname || ' ' || pg_get_triggerdef(oid), ';') from pg_trigger where not tgisinternal",
    ] {
        lab.shows(definitions, &text(plain, definitions).await.unwrap()).await;
    }
    let sequences =
        "select string_agg(sequencename || ' ' || start_value || ' ' || increment_by, ';' order by sequencename)
        from pg_sequences where schemaname = 'shop'";
    lab.shows(sequences, &text(plain, sequences).await.unwrap()).await;
}

/// The same with pg_restore, which runs several sessions at once.
async fn custom_format(lab: &Lab, plain: &Session) {
    lab.session(2).await.must("drop schema shop cascade").await;
    lab.everywhere().await;
    let file = lab.data().join("shop.dump");
    let file = file.to_str().expect("the path of the cluster is text");
    let from = database(lab, 0, "plain");
    program("pg_dump", &["--format=custom", "--file", file, "--dbname", &from]).await;
    let into = lab.node(2).conninfo();
    program("pg_restore", &["--exit-on-error", "--jobs=3", "--dbname", &into, file]).await;
    is_replicated(lab, plain).await;
}

async fn goes_on_in_every_region(lab: &Lab) {
    for (region, session) in lab.sessions().await.iter().enumerate() {
        let number = region + 1;
        session
            .must(&format!(
                "insert into shop.customer (name) values ('from region {number}');
                 insert into shop.product (title) values ('title from region {number}');
                 insert into shop.purchase select max(c.id), max(p.id), '2027-02-01' from shop.customer c, shop.product p"
            ))
            .await;
        let error = session.refused("insert into shop.purchase values (1, 999999, '2026-01-01')").await;
        assert_eq!(error.code().code(), "23503");
        lab.everywhere().await;
    }
    lab.shows("select count(*) || ' ' || count(distinct id) || ' ' || min(id) from shop.customer", "103 103 1").await;
    lab.shows("select count(*) from shop.purchase_rest", "43").await;
}

/// What docs/limits.md says of dumps of the replicated database.
async fn loads_elsewhere(lab: &Lab) {
    lab.session(0).await.must("create database back").await;
    let dump = pg_dump(lab, 1, "onetrip", &["--exclude-schema=onetrip", "--no-table-access-method"]).await;
    assert!(!dump.to_lowercase().contains("onetrip"), "{dump}");
    let file = lab.data().join("back.sql");
    std::fs::write(&file, &dump).unwrap();
    let file = file.to_str().expect("the path of the cluster is text");
    let back = database(lab, 0, "back");
    program("psql", &["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", &back, "-f", file]).await;
    let back = Session::open(&back).await.unwrap();
    assert_eq!(text(&back, ACCESS_METHODS).await.unwrap(), "heap 10");
    let rows = "select string_agg(t::text, ';' order by t::text) from shop.purchase t";
    lab.shows(rows, &text(&back, rows).await.unwrap()).await;
    let last = number(&back, "select max(id) from shop.customer").await.unwrap();
    let next = "select nextval('shop.customer_id_seq')";
    let first = number(&back, next).await.unwrap();
    assert!(first > last, "{first} after {last}");
    assert_eq!(number(&back, next).await.unwrap(), first + 1);

    // Into a cluster; a local table becomes a replicated one there.
    lab.session(2).await.must("create table shop.here (id int) using heap").await;
    lab.everywhere().await;
    let dump = pg_dump(lab, 1, "onetrip", &["--exclude-schema=onetrip"]).await;
    assert!(dump.contains("\nSET default_table_access_method = onetrip;"), "{dump}");
    let a = lab.session(0).await;
    a.must("drop schema shop cascade").await;
    psql(lab, 0, &dump).await;
    lab.shows(ACCESS_METHODS, "onetrip 11").await;
    lab.shows(rows, &text(&back, rows).await.unwrap()).await;
    let mut given = Vec::new();
    for session in lab.sessions().await {
        given.push(number(&session, next).await.unwrap());
    }
    given.sort_unstable();
    given.dedup();
    assert!(given.len() == 3 && given.iter().all(|n| (last + 1..last + 30).contains(n)), "{given:?} after {last}");
}

/// The access methods of what has rows, with how many there are of each.
const ACCESS_METHODS: &str = "
    select string_agg(am || ' ' || n, ';' order by am) from (
        select amname as am, count(*) as n from pg_class join pg_am a on a.oid = relam
        where relnamespace = 'shop'::regnamespace and relkind in ('r', 'm') group by amname) x";

fn database(lab: &Lab, region: usize, name: &str) -> String {
    lab.node(region).conninfo().replace("dbname=onetrip", &format!("dbname={name}"))
}

async fn pg_dump(lab: &Lab, region: usize, name: &str, more: &[&str]) -> String {
    program("pg_dump", &[&["--dbname", &database(lab, region, name)], more].concat()).await
}

/// Runs one of PostgreSQL's programs, which must succeed; returns what it printed.
async fn program(name: &str, args: &[&str]) -> String {
    let run = tokio::process::Command::new(postgres_bin().join(name)).args(args).kill_on_drop(true).output();
    let output = bounded(name, run).await.unwrap_or_else(|e| panic!("run {name}: {e}"));
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
