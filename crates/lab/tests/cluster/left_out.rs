//! An entry that no reachable region can apply is left out everywhere (`onetrip skip`); a region that shows it
//! already is copied from another one.

use std::time::Duration;

use crate::lab::{fragile, number, onetrip, start, text, told_db, until, Lab, Output, Session, HEALED, SOON};

const PROPOSALS: &str = "select proposals from onetrip.status";

async fn skip(lab: &Lab, region: usize, index: i64, args: &[&str]) -> Output {
    let (index, folder) = (index.to_string(), lab.node(region).folder().display().to_string());
    onetrip(&[&["skip", &index, "--data", &folder], args].concat()).await
}

/// `onetrip skip` is refused, and its message contains `why`.
async fn not_skipped(lab: &Lab, region: usize, index: i64, args: &[&str], why: &str) {
    let said = skip(lab, region, index, args).await;
    assert!(said.code == Some(1) && said.stderr.contains(why), "{:?} {}", said.code, said.stderr);
}

/// Repeats `onetrip skip` until it succeeds: it is refused as long as a region may still apply the entry by itself, and
/// while there is no leader.
async fn skipped(lab: &Lab, region: usize, index: i64, args: &[&str]) -> String {
    let mut said = skip(lab, region, index, args).await;
    for _ in 0..60 {
        if said.code == Some(0) {
            return said.stdout;
        }
        let may_pass = ["does not stand still", "has not come to", "ask again", "Ask again"]
            .iter()
            .any(|why| said.stderr.contains(why));
        assert!(may_pass, "{}", said.stderr);
        tokio::time::sleep(Duration::from_millis(500)).await;
        said = skip(lab, region, index, args).await;
    }
    panic!("{}", said.stderr);
}

async fn stands_at(session: &Session, index: i64) {
    until("the region stands still", SOON, || async {
        Ok(text(session, "select failing from onetrip.status").await? == index.to_string())
    })
    .await
    .unwrap_or_else(|e| panic!("{index}: {e:#}"));
}

async fn shows_position(session: &Session, index: i64) {
    until("it is shown", SOON, || async { Ok(number(session, "select onetrip.position()").await? >= index) })
        .await
        .unwrap_or_else(|e| panic!("{index}: {e:#}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn what_only_a_lost_region_could_apply_is_left_out_and_it_is_copied_when_it_comes_back() {
    let lab =
        start("left_out", "two regions cannot apply an entry, the third is away: left out, and copied later").await;
    fragile(&lab, "if v = 'poison' then raise 'not here: %', v; end if;").await;
    let [a, b, c] = lab.sessions().await;
    a.must("alter system set onetrip.rebuild_after = '2s'").await;
    a.must("select pg_reload_conf()").await;
    a.must("insert into fragile values (1, 'x')").await;
    a.must("begin; insert into fragile values (2, 'poison')").await;
    let txn = text(&a, "select onetrip.current_transaction_id()").await.unwrap();
    a.must("commit").await;
    let at = number(&a, "select onetrip.position()").await.unwrap();
    stands_at(&b, at).await;
    stands_at(&c, at).await;

    // Region a still commits; and as long as it is there, the others can copy its PostgreSQL, so nothing is skipped.
    a.must("insert into fragile values (3, 'z')").await;
    until("it is refused because a shows it", SOON, || async {
        Ok(skip(&lab, 1, at, &["--force"]).await.stderr.contains(&format!("region a (node 1) shows log index {at}")))
    })
    .await
    .unwrap();
    not_skipped(&lab, 1, at + 1, &[], &format!("stands still at log index {at}, not at {}", at + 1)).await;
    not_skipped(&lab, 0, at, &[], &format!("region a shows log index {at}")).await;
    drop(a);
    lab.node(0).stop().await.unwrap();
    until("it is refused because a is away", SOON, || async {
        Ok(skip(&lab, 1, at, &[]).await.stderr.contains("region a (node 1) shows it and cannot be reached"))
    })
    .await
    .unwrap();

    let said = skipped(&lab, 1, at, &["--force"]).await;
    assert!(said.contains(&format!("transaction {txn} of region a")), "{said}");
    assert!(said.contains("\n  INSERT public.fragile: id = '2', v = 'poison'\n"), "{said}");
    let kept = lab.node(1).folder().join("skipped");
    assert!(kept.join(at.to_string()).is_file());
    let text_kept = std::fs::read_to_string(kept.join(format!("{at}.txt"))).unwrap();
    assert!(text_kept.contains("v = 'poison'"), "{text_kept}");
    not_skipped(&lab, 1, at, &["--force"], "already").await;
    until("b and c go on", SOON, || async {
        Ok(text(&b, "select string_agg(v, ' ' order by id) from fragile").await? == "x z"
            && text(&c, "select string_agg(v, ' ' order by id) from fragile").await? == "x z")
    })
    .await
    .unwrap();
    let outcome = text(&b, &format!("select onetrip.outcome('{txn}')")).await.unwrap();
    assert!(outcome.starts_with("left out at "), "{outcome}");
    // A new row with the same key would still lose to the entry where it is not yet shown that the entry is left out.
    let by: i64 = outcome["left out at ".len()..].parse().unwrap();
    until("b shows that it is", SOON, || async { Ok(number(&b, "select onetrip.position()").await? >= by) })
        .await
        .unwrap();
    b.must("insert into fragile values (2, 'instead')").await;

    // Region a shows the entry that was left out, so it cannot go on: it becomes a copy of another region.
    lab.node(0).restart().await.unwrap();
    until("region a is copied", HEALED, || async {
        let a = lab.connect(0).await?;
        Ok(text(&a, "select string_agg(v, ' ' order by id) from fragile").await? == "x instead z")
    })
    .await
    .unwrap_or_else(|e| panic!("{e:#}: {}", lab.node(0).postgres_log_tail(20)));
    assert!(lab.node(0).folder().join("postgres.kept/PG_VERSION").is_file(), "what only a had is gone");
    lab.everywhere().await;
    lab.shows(
        "select string_agg(log_index || ' ' || transaction_id, ' ') from onetrip.left_out",
        &format!("{at} {txn}"),
    )
    .await;
    lab.check_equal(1).await;
    // A restart of node and server changes nothing.
    lab.node(1).stop().await.unwrap();
    lab.node(1).restart().await.unwrap();
    lab.session(1).await.must("insert into fragile values (4, 'v')").await;
    lab.shows("select string_agg(v, ' ' order by id) from fragile", "x instead z v").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_region_can_apply_is_left_out() {
    let lab =
        start("left_out_by_all", "an entry whose own region cannot apply it either: left out without force").await;
    fragile(
        &lab,
        "if v = 'poison' then raise 'not here: %', v; end if;
         if v = 'slow' and current_setting('onetrip.region') = 'a' then perform pg_sleep(4); end if;",
    )
    .await;
    let [a, b, c] = lab.sessions().await;
    a.must(
        "create type mood as enum ('glad', 'sad'); create table told (id int primary key, mood mood, words text);
         alter table told alter words set storage external;
         insert into told values (1, 'glad', repeat('x', 3000)), (2, 'sad', 'y')",
    )
    .await;
    lab.everywhere().await;
    let pid = a.pid().await.unwrap();
    b.must("insert into fragile values (1, 'slow')").await;
    // The session is ended when its entry is decided and its turn has not come, so the apply worker has to commit it.
    let client = lab.session(0).await;
    let proposed = number(&client, PROPOSALS).await.unwrap();
    let end = async {
        until("the session has proposed", SOON, async || Ok(number(&client, PROPOSALS).await? > proposed))
            .await
            .unwrap_or_else(|e| panic!("{e:#}"));
        until("the session waits for its turn", SOON, || async {
            let status = lab.node(0).status().await?;
            Ok(status["last_committed"].as_u64() > status["applied"].as_u64().map(|at| at + 1))
        })
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
        // Entries of the cluster's own may be among these; the verdict arrives long before the slow one ends.
        tokio::time::sleep(Duration::from_millis(300)).await;
        client.must(&format!("select pg_terminate_backend({pid})")).await;
    };
    let changes = "insert into fragile values (2, 'poison'); delete from told where id = 2; \
        update told set mood = 'sad', words = null; insert into told values (3, 'glad', repeat('z', 3000))";
    let (told, ()) = tokio::join!(a.run(changes), end);
    let told = told_db(told.expect_err("it was ended").as_db_error().expect("an error of the server"));
    assert!(told.contains("08007") && told.contains("committed at "), "{told}");
    let at: i64 = told.split("committed at ").nth(1).and_then(|t| t.split(' ').next()?.parse().ok()).unwrap();
    let a = lab.session(0).await;
    for session in [&a, &b, &c] {
        stands_at(session, at).await;
    }
    let said = skipped(&lab, 2, at, &[]).await;
    assert!(said.contains("of region a"), "{said}");
    let inserted = format!("  INSERT public.told: id = '3', mood = 'glad', words = '{}'...\n", "z".repeat(1000));
    for change in [
        "  INSERT public.fragile: id = '2', v = 'poison'\n",
        "  DELETE public.told: id = '2'\n",
        "  UPDATE public.told: id = '1' to mood = 'sad', words = NULL\n",
        &inserted,
    ] {
        assert!(said.contains(change), "{said}");
    }
    let by = said.split("by log index ").nth(1).and_then(|t| t.lines().next()?.parse().ok()).unwrap();
    for session in [&a, &b, &c] {
        shows_position(session, by).await;
    }
    lab.shows("select string_agg(v, ' ' order by id) from fragile", "slow").await;
    for session in [&a, &b, &c] {
        session.must("insert into fragile select max(id) + 1, 'y' from fragile").await;
        lab.everywhere().await;
    }
    lab.shows("select count(*) || ' ' || max(id) from fragile", "4 4").await;
    lab.check_equal(1).await;
}
