//! A region that cannot apply an entry stands still and reports it, also to its sessions.  It goes on by itself, either
//! when the cause is removed or with a copy of a region that could apply the entry.

use std::time::Duration;

use onetrip_client::http::get_json;

use crate::lab::{fragile, number, start, text, told_db, until, Lab, Session, HEALED, SOON};
use crate::large_objects::FastPath;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_that_cannot_apply_an_entry_says_why_and_goes_on_once_mended() {
    let lab =
        start("stuck_worker", "an index function that fails in one region only: seen in status, mended, gone").await;
    let [a, b, _] = lab.sessions().await;
    // A table with the access method heap is not replicated: each region has its own rows.
    a.must("create table mended (here int) using heap; create role plain login").await;
    fragile(&lab, "if not exists (select from public.mended) then raise 'not in this region: %', v; end if;").await;
    lab.session(2).await.must("insert into mended values (1)").await;
    // Not while this waits for clients to be refused.
    b.must("alter system set onetrip.rebuild_after = 0").await;
    b.must("select pg_reload_conf()").await;
    a.must("insert into fragile values (1, 'x')").await;
    until("region b says what is wrong", SOON, || async {
        Ok(number(&b, "select count(*) from onetrip.status where failing > applied and failure like '%not in this region: x (% times)'").await? == 1)
    })
    .await
    .unwrap();
    until("its node does", SOON, || async {
        let status = lab.node(1).status().await?;
        Ok(status["problems"].to_string().contains("comes no further"))
    })
    .await
    .unwrap();
    // The others go on.
    a.must("insert into fragile values (2, 'y')").await;
    let c = lab.session(2).await;
    until("region c goes on", SOON, || async { Ok(number(&c, "select count(*) from fragile").await? == 2) })
        .await
        .unwrap();
    assert_eq!(number(&b, "select count(*) from fragile").await.unwrap(), 0);
    // If its server is restarted, only who may mend it gets in: a superuser through the socket, such as the node.
    lab.node(1).kill9_postgres().unwrap();
    let by_socket = lab.node(1).conninfo().replace("127.0.0.1", &lab.node(1).folder().display().to_string());
    until("a superuser is let in by the socket", SOON, || async {
        let session = Session::open(&by_socket).await?;
        Ok(text(&session, "select failing is not null from onetrip.status").await? == "t")
    })
    .await
    .unwrap();
    let psql = onetrip_lab::postgres_bin().join("psql");
    let said = std::process::Command::new(psql).args(["-XAtc", "select 1", "-c", "select 2", &by_socket]).output();
    let warned = String::from_utf8(said.unwrap().stderr).unwrap();
    assert_eq!(warned.matches("may show less than before this server started").count(), 1, "{warned}");
    until("the node asks its server", SOON, || async {
        let view = get_json(lab.node(1).http(), "/cluster", SOON).await?;
        Ok(view["members"][1]["report"]["counts"]["failing"].is_number())
    })
    .await
    .unwrap();
    let (by_address, plain) = (lab.node(1).conninfo(), by_socket.replace("user=postgres", "user=plain"));
    let (by_address, plain) = tokio::join!(Session::open(&by_address), Session::open(&plain));
    for opened in [by_address, plain] {
        let refused = format!("{:#}", opened.err().expect("it is let in"));
        assert!(refused.contains("does not show yet"), "{refused}");
    }
    let b = Session::open(&by_socket).await.unwrap();
    b.must("insert into mended values (1)").await;
    lab.everywhere().await;
    assert_eq!(
        text(&b, "select count(*) || ' ' || count(s.failing) from fragile, onetrip.status s").await.unwrap(),
        "2 0"
    );
    lab.check_equal(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_that_cannot_apply_an_entry_is_copied_from_another() {
    let lab =
        start("healing", "an entry that one region never applies: it copies another's PostgreSQL, once an hour").await;
    let [a, b, c] = lab.sessions().await;
    // The message is longer than what the worker's status keeps of it, which is all that its node is told.  A function
    // has chosen the SQLSTATE, which is that of a shutdown.
    fragile_in_b(&lab, "raise 'not in this region: % %', v, repeat('-', 1000) using errcode = '57P01'").await;
    a.must("create table here (v text) using heap; create table lost (id int); insert into lost values (1)").await;
    lab.everywhere().await;
    b.must("alter system set onetrip.rebuild_after = '2s'").await;
    b.must("select pg_reload_conf()").await;
    b.must("insert into here values ('of b alone')").await;
    drop(b);
    a.must("insert into fragile values (1, 'x')").await;
    shows(&lab, 1, 1).await;
    lab.everywhere().await;
    let old = lab.node(1).folder().join("postgres.kept/PG_VERSION");
    assert!(old.is_file(), "the old data folder was not kept");

    // There is no second copy within the hour, unless the file that notes the first one is removed.
    c.must("insert into fragile values (2, 'y')").await;
    until("region b says why it stands still", HEALED, || async {
        let status = lab.node(1).status().await?;
        Ok(status["problems"].to_string().contains("is not copied anew: that was done within the last hour"))
    })
    .await
    .unwrap();
    std::fs::remove_file(lab.node(1).folder().join("healed")).unwrap();
    shows(&lab, 1, 2).await;
    lab.everywhere().await;

    // A file of a table is lost.
    std::fs::remove_file(lab.node(1).folder().join("healed")).unwrap();
    let file = text(&lab.session(1).await.client, "select pg_relation_filepath('lost')").await.unwrap();
    lab.node(1).stop().await.unwrap();
    std::fs::remove_file(lab.node(1).postgres_data().join(file)).unwrap();
    lab.node(1).start().unwrap();
    a.must("insert into lost values (2)").await;
    until("region b has it again", HEALED, || async {
        Ok(number(&lab.connect(1).await?, "select count(*) from lost").await? == 2)
    })
    .await
    .unwrap();
    lab.everywhere().await;
    lab.check_equal(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_whose_server_ends_at_an_entry_is_copied_from_another() {
    let lab =
        start("healing_crash", "an entry at which one region's server ends three times: it copies another's").await;
    let [a, b, _] = lab.sessions().await;
    fragile_in_b(&lab, "perform pg_sleep(600)").await;
    drop(b);
    a.must("insert into fragile values (1, 'x')").await;
    until("region b is at the entry", HEALED, || async {
        let b = lab.connect(1).await?;
        Ok(number(&b, "select count(applying) from onetrip.status").await? == 1)
    })
    .await
    .unwrap();
    // From now on the server lets no client in, so the test counts in its log how often the worker has started.
    let begun = || lab.node(1).postgres_log_tail(10_000).matches("onetrip apply worker starts at log index").count();
    let healed = || lab.node(1).log_tail(10_000).contains("cannot apply an entry: its data folder is made anew");
    // The first crash may only lose what was applied and not flushed yet, so it need not count as an attempt.
    for _ in 0..5 {
        let before = begun();
        lab.node(1).kill9_postgres().unwrap();
        until("it has begun again, or is being copied", HEALED, || async { Ok(begun() > before || healed()) })
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        if healed() {
            break;
        }
    }
    assert!(healed(), "region b's server crashes again and again, and is not replaced by a copy");
    shows(&lab, 1, 1).await;
    lab.everywhere().await;
    lab.check_equal(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_a_region_that_stands_still_are_told_so() {
    let lab = start("standstill", "what sessions of a region that cannot apply an entry are told").await;
    let a = lab.session(0).await;
    a.must("create table mended (here int) using heap; create table t (id int primary key, v int); insert into t values (1, 0)").await;
    fragile_in_b(
        &lab,
        "if v = 'poison' and not exists (select from public.mended) then
             perform pg_sleep(5);
             raise 'not in this region: %', v;
         end if",
    )
    .await;
    let [a, b, _] = lab.sessions().await;
    b.must("alter system set onetrip.rebuild_after = 0").await;
    b.must("select pg_reload_conf()").await;
    b.must("set onetrip.commit_timeout = '1s'").await;
    b.must("begin; insert into t values (5, 5); prepare transaction 'five'").await;
    let (mut writer, mut ender) = (FastPath::open(&lab, 1).await, FastPath::open(&lab, 1).await);
    writer.query("set onetrip.commit_timeout = '1s'").await;
    ender.query("set onetrip.commit_timeout = '1s'").await;
    a.must("begin; update t set v = 1 where id = 1; insert into fragile values (1, 'poison'); commit").await;
    let at = number(&a, "select onetrip.position()").await.unwrap();
    until("the worker of b is at it", SOON, || async {
        Ok(number(&b, "select count(*) from onetrip.status where applying is not null").await? == 1)
    })
    .await
    .unwrap();

    // These are proposed before the worker has failed: they are committed, but not shown here.
    let (refused, written, ended) = tokio::join!(
        b.refused("insert into t values (2, 2)"),
        writer.execute("insert into t values (4, 4)"),
        ender.execute("commit prepared 'five'")
    );
    let told = told_db(&refused);
    assert!(told.contains("08007") && told.contains("committed at "), "{told}");
    assert!(told.contains("cannot apply a change that comes before it") && told.contains("Do not repeat it"), "{told}");
    // The answer is complete before the session ends, which for drivers would be the last word.
    let told = written.expect_err("it is not shown here");
    assert!(told.contains("08007") && told.contains("Do not repeat it"), "{told}");
    ended.unwrap_or_else(|e| panic!("{e}"));
    let b = lab.session(1).await;
    b.must("set onetrip.commit_timeout = '1s'").await;
    // Later ones are not proposed.
    let told = told_db(&b.refused("insert into t values (3, 3)").await);
    assert!(told.contains("55000 region \"b\" stands still at log index"), "{told}");
    assert!(
        told.contains("nothing was committed") && told.contains(&format!("cannot apply log index {at},")),
        "{told}"
    );
    // Reads go on, and an evicted session is told why a retry in this region would not help.
    assert_eq!(text(&b, "select count(*) || ' ' || sum(v) from t").await.unwrap(), "1 0");
    b.must("begin; update t set v = 5 where id = 1").await;
    until("the session is evicted", SOON, || async {
        match b.run("select 1").await {
            Ok(()) => Ok(false),
            Err(e) => {
                let told = told_db(e.as_db_error().expect("an error of the server"));
                assert!(told.contains("40001") && told.contains("Retry in another region"), "{told}");
                Ok(true)
            }
        }
    })
    .await
    .unwrap();
    assert_eq!(text(&a, "select string_agg(id || ':' || v, ' ' order by id) from t").await.unwrap(), "1:1 2:2 4:4 5:5");

    lab.session(1).await.must("insert into mended values (1)").await;
    lab.everywhere().await;
    lab.shows("select string_agg(id || ':' || v, ' ' order by id) from t", "1:1 2:2 4:4 5:5").await;
    lab.session(1).await.must("insert into t values (3, 3)").await;
    lab.check_equal(2).await;
}

/// `fragile`, but the function fails in region b only.
async fn fragile_in_b(lab: &Lab, what: &str) {
    fragile(lab, &format!("if current_setting('onetrip.region') = 'b' then {what}; end if;")).await;
}

async fn shows(lab: &Lab, region: usize, rows: i64) {
    until("the region is healed", HEALED, || async {
        let client = lab.connect(region).await?;
        Ok(number(&client, "select count(*) from fragile").await? == rows)
    })
    .await
    .unwrap_or_else(|e| panic!("{rows} rows: {e:#}"));
}
