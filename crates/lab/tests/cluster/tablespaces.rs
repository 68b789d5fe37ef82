//! A tablespace that exists on each server, in a folder of that server's, is used by statements of any region.

use crate::lab::{number, start, subjects, Lab, Session};

/// Where everything of the test is: the same in all regions.
const PLACES: &str =
    "select string_agg(concat_ws(' ', c.oid::regclass, coalesce(s.spcname, '-')), ', ' order by c.oid::regclass::text)
    from pg_class c left join pg_tablespace s on s.oid = c.reltablespace where relnamespace = 'placed'::regnamespace";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tablespaces_of_each_server_are_used_by_all() {
    let lab =
        start("tablespaces", "tables and indexes in tablespaces that each server has in a folder of its own").await;
    let folder = tempfile::tempdir().expect("a folder");
    for region in 0..3 {
        for name in ["quick", "slow"] {
            let path = folder.path().join(format!("{name}-{region}"));
            std::fs::create_dir(&path).expect("a folder");
            own(&lab, region, &path);
            let local = local(&lab, region).await;
            local.must(&format!("create tablespace {name} location '{}'", path.display())).await;
        }
    }
    lab.session(0)
        .await
        .must("create schema placed; create role placer; grant usage, create on schema placed to placer")
        .await;
    lab.everywhere().await;
    subjects!(lab, 6;
        every_way_to_use_one,
        whole_tablespaces_are_moved,
        what_travels_about_them,
        an_index_stays_where_others_have_it,
    );
    lab.session(0).await.must("drop schema placed cascade; reset role; drop owned by placer; drop role placer").await;
    lab.everywhere().await;
    for region in 0..3 {
        let local = local(&lab, region).await;
        local.must("drop tablespace slow").await;
    }
}

/// The server runs as the owner of its data folder.
fn own(lab: &Lab, region: usize, path: &std::path::Path) {
    use std::os::unix::fs::MetadataExt;
    let data = std::fs::metadata(lab.node(region).postgres_data()).expect("the data folder");
    std::os::unix::fs::chown(path, Some(data.uid()), Some(data.gid())).expect("give the folder to the server");
    for above in path.ancestors().skip(1).take(1) {
        std::os::unix::fs::chown(above, Some(data.uid()), Some(data.gid())).expect("let the server reach it");
    }
}

async fn local(lab: &Lab, region: usize) -> Session {
    Session::open(&lab.node(region).conninfo().replace("dbname=onetrip", "dbname=postgres")).await.expect("connect")
}

/// How many relations of the schema are in the tablespace, in every region.
async fn are_in(lab: &Lab, tablespace: &str, count: i64) {
    lab.shows_alike(PLACES).await;
    let query = format!(
        "select count(*) from pg_class c join pg_tablespace s on s.oid = c.reltablespace where relnamespace = 'placed'::regnamespace and spcname = '{tablespace}'"
    );
    assert_eq!(
        number(&lab.session(0).await.client, &query).await.unwrap(),
        count,
        "in {tablespace}: {}",
        lab.shows_alike(PLACES).await
    );
}

async fn every_way_to_use_one(lab: &Lab) {
    let statements = [
        "create table placed.t (id int primary key using index tablespace slow, v text) tablespace quick",
        "insert into placed.t select g, repeat('long', 3000) from generate_series(1, 50) g",
        "create index t_v on placed.t (left(v, 10)) tablespace quick",
        "create index concurrently t_c on placed.t (id, left(v, 2)) tablespace slow",
        "set default_tablespace = quick; create table placed.by_default (id int unique, v int); reset default_tablespace",
        "create table placed.parts (id int, primary key (id)) partition by range (id) tablespace quick",
        "create table placed.part_1 partition of placed.parts for values from (0) to (10)",
        "create table placed.part_2 partition of placed.parts for values from (10) to (20) tablespace slow",
        "create table placed.made tablespace slow as select id, v from placed.t",
        "create materialized view placed.seen tablespace quick as select count(*) as n from placed.t",
        "create unlogged table placed.own (id int) tablespace slow",
        "create table placed.plain (id int primary key) using heap tablespace quick",
        "alter table placed.made set tablespace quick",
        "alter index placed.t_pkey set tablespace quick",
        "alter materialized view placed.seen set tablespace slow; refresh materialized view placed.seen",
        "alter table placed.by_default add column r float default random(), set tablespace slow",
        "alter table placed.parts set tablespace slow",
        "create table placed.part_3 partition of placed.parts for values from (20) to (30)",
        "truncate placed.by_default; insert into placed.parts select g from generate_series(1, 25) g",
        "update placed.t set v = v || 'er'; delete from placed.t where id > 40; vacuum full placed.t",
    ];
    for (number, sql) in statements.iter().enumerate() {
        let session = lab.session(number % 3).await;
        for one in sql.split("; ") {
            session.must(one).await;
        }
        lab.everywhere().await;
    }
    let places = lab.shows_alike(PLACES).await;
    for expected in [
        "placed.t quick",
        "placed.t_pkey quick",
        "placed.t_c slow",
        "placed.made quick",
        "placed.seen slow",
        "placed.by_default slow",
        "placed.by_default_id_key quick",
        "placed.part_1 quick",
        "placed.part_3 slow",
        "placed.plain quick",
    ] {
        assert!(places.split(", ").any(|place| place == expected), "{expected}: {places}");
    }
    lab.shows("select count(*) || ' ' || sum(length(v)) from placed.t", "40 480080").await;
    lab.shows("select count(*) from placed.parts", "25").await;
}

async fn whole_tablespaces_are_moved(lab: &Lab) {
    let in_quick = "select count(*) from pg_class c join pg_tablespace s on s.oid = c.reltablespace
        where relnamespace = 'placed'::regnamespace and relkind in ('r', 'p', 'i', 'I', 'm') and spcname = 'quick'";
    lab.session(1).await.must("create temporary table mine (id int) tablespace quick").await;
    assert!(number(&lab.session(0).await.client, in_quick).await.unwrap() > 5);
    lab.session(2).await.must("alter table all in tablespace quick set tablespace slow").await;
    lab.everywhere().await;
    // in another region somebody is in the way, and gives way
    let reader = lab.session(0).await;
    reader.must("begin; select from placed.t").await;
    lab.session(1).await.must("alter index all in tablespace quick owned by postgres set tablespace slow nowait").await;
    lab.session(2).await.must("alter materialized view all in tablespace slow set tablespace quick").await;
    lab.everywhere().await;
    are_in(lab, "quick", 1).await;
    lab.session(0).await.must("alter materialized view all in tablespace quick set tablespace slow").await;
    are_in(lab, "quick", 0).await;
}

async fn what_travels_about_them(lab: &Lab) {
    let about = "select concat_ws(' ', spcname, spcowner::regrole, spcacl, spcoptions, shobj_description(oid, 'pg_tablespace')) from pg_tablespace where spcname like 'fast%'";
    let [a, b, c] = lab.sessions().await;
    let refused =
        a.refused("begin; set local role placer; create table placed.by_placer (id int) tablespace quick").await;
    assert_eq!(refused.code().code(), "42501", "{}", refused.message());
    a.must("rollback; alter tablespace quick rename to fast; grant create on tablespace fast to placer").await;
    lab.everywhere().await;
    b.must("alter tablespace fast set (random_page_cost = 1.5); comment on tablespace fast is 'an SSD'; alter tablespace fast owner to placer").await;
    lab.everywhere().await;
    c.must("set role placer; create table placed.by_placer (id int) tablespace fast; reset role").await;
    lab.shows(about, "fast placer {placer=C/placer} {random_page_cost=1.5} an SSD").await;
    c.must("drop table placed.by_placer; alter tablespace fast owner to postgres; alter tablespace fast reset (random_page_cost); revoke all on tablespace fast from placer")
        .await;
    lab.everywhere().await;
    // from another database: here only, with a warning
    let local = local(lab, 1).await;
    local.must("alter tablespace fast set (seq_page_cost = 3)").await;
    let (code, output) = lab.check(&[]).await;
    assert!(code == Some(1) && output.contains("tablespace fast"), "{output}");
    local.must("alter tablespace fast reset (seq_page_cost)").await;
    // one that a region does not have
    let local = self::local(lab, 2).await;
    local.must("drop tablespace fast").await;
    let why = a.refused("create table placed.nowhere (id int) tablespace fast").await;
    assert_eq!(why.code().code(), "42704", "{}", why.message());
    assert!(why.message().contains("\"c\""), "{}", why.message());
    // a name that may be stored where nobody knows it; elsewhere the role lacks the privilege
    c.must("set role placer; alter role placer set temp_tablespaces = fast; reset role").await;
    lab.everywhere().await;
    lab.shows(
        "select setconfig::text from pg_db_role_setting where setrole = 'placer'::regrole",
        "{temp_tablespaces=fast}",
    )
    .await;
    c.must("alter role placer reset all").await;
    // sessions outlive what their settings name
    a.must("create access method passing type table handler heap_tableam_handler").await;
    lab.everywhere().await;
    a.must("set default_tablespace = fast").await;
    b.must("set default_table_access_method = passing").await;
    for region in 0..2 {
        let local = self::local(lab, region).await;
        local.must("drop tablespace fast").await;
    }
    c.must("drop access method passing").await;
    lab.everywhere().await;
    a.must("create table placed.anywhere (id int primary key)").await;
    b.must("create index on placed.anywhere (id)").await;
    lab.everywhere().await;
    are_in(
        lab,
        "slow",
        number(&a, "select count(*) from pg_class where reltablespace <> 0 and relnamespace = 'placed'::regnamespace")
            .await
            .unwrap(),
    )
    .await;
}

async fn an_index_stays_where_others_have_it(lab: &Lab) {
    let session = lab.session(1).await;
    for sql in ["reindex (tablespace pg_default) index placed.t_pkey", "reindex (tablespace pg_default) table placed.t"]
    {
        assert_eq!(session.refused(sql).await.code().code(), "0A000");
    }
    session.must("reindex table placed.t").await;
    session.must("create temporary table mine (id int primary key); reindex (tablespace slow) table mine").await;
    lab.shows_alike(PLACES).await;
}
