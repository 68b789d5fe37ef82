//! Two regions change the same thing at once: only one of them commits, and the other is told what it lost to.

use std::time::Instant;

use crate::lab::{apart, builder, duration, is, lost, number, start_from, text, told, until, Lab, Session, SOON};
use tokio_postgres::error::SqlState;

const ROUNDS: usize = 12;

/// The distance between the regions makes two COMMITs cross each other on the way.
async fn far_apart(name: &'static str, about: &str, tables: &str) -> Lab {
    let lab = start_from(name, about, builder().topology(apart(40))).await;
    lab.session(0).await.must(tables).await;
    lab.everywhere().await;
    lab
}

#[derive(Default)]
struct Tally {
    wins: [usize; 3],
    /// Losses found at COMMIT, by certification; the others were evicted before.
    certified: usize,
    /// Rounds in which both gave way to the third region, which had lost before.
    gave_way: usize,
}

/// Runs each side's statements in its region, and then both COMMITs at once.  One succeeds; the other fails with 40001
/// and names the table and the winner.  Returns the winner.  If both have to give way to the third region, which had
/// lost before, that is repeated.
async fn meet(
    lab: &Lab,
    regions: [usize; 2],
    bodies: [&str; 2],
    isolation: &str,
    table: &str,
    tally: &mut Tally,
) -> usize {
    let (sides, results) = loop {
        let sides = [lab.session(regions[0]).await, lab.session(regions[1]).await];
        for (side, body) in sides.iter().zip(bodies) {
            side.must(&format!("begin isolation level {isolation}; {body}")).await;
        }
        let results = tokio::join!(sides[0].run("commit"), sides[1].run("commit"));
        let gave_way = |result: &Result<(), tokio_postgres::Error>| {
            let third = format!("region \"{}\" is to go first", lab.node(3 - regions[0] - regions[1]).region());
            result.as_ref().is_err_and(|e| told(e).contains(&third))
        };
        if !(gave_way(&results.0) && gave_way(&results.1)) {
            break (sides, results);
        }
        tally.gave_way += 1;
    };
    let winner = match (&results.0, &results.1) {
        (Ok(()), Err(_)) => 0,
        (Err(_), Ok(())) => 1,
        (Ok(()), Ok(())) => panic!("both regions committed: {bodies:?}"),
        (Err(x), Err(y)) => panic!("neither committed: {} and {}", told(x), told(y)),
    };
    let [first, second] = sides;
    let (result, loser) = if winner == 0 { (results.1, second) } else { (results.0, first) };
    let why = lost(result, loser).await;
    tally.certified += usize::from(why.message().starts_with("could not commit: a concurrent"));
    let detail = why.detail().unwrap_or_default();
    let winner_region = lab.node(regions[winner]).region();
    assert!(detail.contains(table), "{table} is not in the detail: {detail}");
    assert!(detail.contains(&format!("region \"{winner_region}\"")), "{winner_region} is not in the detail: {detail}");
    assert!(why.hint().is_some(), "no hint: {}", why.message());
    tally.wins[regions[winner]] += 1;
    regions[winner]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_changes_of_one_row_one_wins() {
    let lab = far_apart(
        "conflicts_row",
        "one row in two regions: one wins, the other gets 40001",
        "create table t (id int primary key, v int); insert into t select g, 0 from generate_series(1, 100) g",
    )
    .await;
    let mut tally = Tally::default();
    for round in 0..ROUNDS {
        lab.everywhere().await;
        let isolation = if round % 2 == 0 { "read committed" } else { "repeatable read" };
        let regions = [[0, 1], [1, 2], [2, 0]][round % 3];
        let bodies = ["update t set v = v + 1 where id = 1", "update t set v = v + 1 where id = 1"];
        meet(&lab, regions, bodies, isolation, "public.t", &mut tally).await;
    }
    println!("conflicts: one row: wins {:?}, {} found at COMMIT", tally.wins, tally.certified);
    assert!(tally.certified > 0, "no round met at certification");
    lab.shows("select v from t where id = 1", &ROUNDS.to_string()).await;

    // Update against delete, and against a change of the key.
    for (round, bodies) in [
        ["delete from t where id = 2", "update t set v = 5 where id = 2"],
        ["update t set id = 1003 where id = 3", "update t set v = 5 where id = 3"],
        ["update t set id = 1004 where id = 4", "insert into t values (1004, 5)"],
    ]
    .iter()
    .enumerate()
    {
        lab.everywhere().await;
        meet(&lab, [round % 3, (round + 1) % 3], *bodies, "read committed", "public.t", &mut tally).await;
    }
    lab.check_equal(1).await;
    seen_afterwards(&lab, &tally).await;
    keys_are_for_who_may_read_them(&lab).await;
}

/// What the views say of the conflicts, to whom, and of a COMMIT.
async fn seen_afterwards(lab: &Lab, tally: &Tally) {
    let (mut certified, mut lost) = (0, 0);
    for (region, session) in lab.sessions().await.iter().enumerate() {
        certified +=
            number(session, "select count(*) from onetrip.conflicts where kind = 'certification'").await.unwrap();
        let odd = number(
            session,
            "select count(*) from onetrip.conflicts where \"table\" <> 'public.t' or role <> 'postgres' or lost_to_region = current_setting('onetrip.region')
               or lost_to_entry > onetrip.position() or at not between now() - interval '1 h' and clock_timestamp() or ago not between '0' and '1 h' or region <> current_setting('onetrip.region')",
        );
        assert_eq!(odd.await.unwrap(), 0);
        let all = number(session, "select count(*) from onetrip.conflicts").await.unwrap();
        lost += all;
        if region == 0 {
            session.must("create role stranger; grant pg_monitor to stranger with admin option").await;
        }
        lab.everywhere().await;
        session.must("set role stranger").await;
        assert_eq!(
            number(session, "select count(*) from onetrip.conflicts").await.unwrap(),
            all,
            "pg_monitor sees all"
        );
        session.must("reset role; create role nobody; set role nobody").await;
        assert_eq!(number(session, "select count(*) from onetrip.conflicts").await.unwrap(), 0, "others' conflicts");
        session.must("reset role; drop role nobody").await;
        lab.everywhere().await;
    }
    let (mut counted, mut committed) = (0, 0);
    for session in lab.sessions().await {
        let of_t = "from onetrip.conflicts_by_table where \"table\" = 'public.t' and lost_share between 0 and 1";
        let sum = format!("select coalesce(sum(lost_at_commit + too_old + evicted + reserved)::bigint, 0) {of_t}");
        counted += number(&session, &sum).await.unwrap();
        committed += number(&session, &format!("select coalesce(sum(commits)::bigint, 0) {of_t}")).await.unwrap();
    }
    let wins = tally.wins.iter().sum::<usize>() as i64;
    // What filled the table counts too.
    assert_eq!((counted, committed), (lost, wins + 1));
    assert_eq!(certified, tally.certified as i64);
    assert_eq!(lost, (tally.wins.iter().sum::<usize>() + 2 * tally.gave_way) as i64);
    let c = lab.session(2).await;
    assert_eq!(number(&c, "select count(*) from onetrip.last_commit() where entry is null").await.unwrap(), 1);
    c.must("begin; insert into t select g, 0 from generate_series(2000, 2100) g; commit; begin; insert into t values (1, 1) on conflict do nothing; rollback").await;
    let said = text(
        &c,
        "select (entry = onetrip.position()) || ' ' || (bytes between 2000 and 20000) || ' ' || (verdict_ms between 39 and 5000)
            || ' ' || (prepare_ms >= 0 and turn_ms >= 0 and local_ms >= 0 and prepare_ms + turn_ms + local_ms < 5000)
            || ' ' || (replicate_ms between 39 and verdict_ms and propose_ms >= 0 and certify_ms >= 0
                       and abs(propose_ms + replicate_ms + certify_ms - verdict_ms) < 0.0005)
            || ' ' || onetrip.outcome(transaction_id) from onetrip.last_commit()",
    );
    let said = said.await.unwrap();
    assert!(said.starts_with("true true true true true committed at "), "{said}");
}

/// The values of a loser's key are for those who may read these columns, and the rows.
async fn keys_are_for_who_may_read_them(lab: &Lab) {
    const CERTIFIED: &str = "select count(*) from onetrip.conflicts where kind in ('certification', 'reserved')";
    const KEYS: &str = "select count(key) from onetrip.conflicts";
    let a = lab.session(0).await;
    let mut seen = 0;
    let sessions = lab.sessions().await;
    for session in &sessions {
        let keys =
            number(session, &format!("{KEYS} where key ~ '^\\(id\\)=\\((1|2|3|4|1003|1004)\\)$'")).await.unwrap();
        assert_eq!(keys, number(session, CERTIFIED).await.unwrap(), "every one that was certified has its key");
        assert_eq!(keys, number(session, KEYS).await.unwrap(), "no other has one");
        seen += keys;
    }
    assert!(seen > 0);
    for (change, may) in [
        ("grant select (v) on t to stranger", false),
        ("grant select (id) on t to stranger", true),
        ("alter table t enable row level security", false),
        ("alter table t disable row level security", true),
        ("revoke select (id) on t from stranger", false),
        ("grant select on t to stranger", true),
        ("drop table t", false),
    ] {
        a.must(change).await;
        lab.everywhere().await;
        let mut seen_now = 0;
        for session in &sessions {
            session.must("set role stranger").await;
            seen_now += number(session, KEYS).await.unwrap();
            session.must("reset role").await;
        }
        assert_eq!(seen_now, if may { seen } else { 0 }, "after {change}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_rows_with_one_unique_value_one_wins() {
    let lab = far_apart(
        "conflicts_unique",
        "one unique value in two regions: one wins, the other gets 40001",
        "create table u (id int primary key, v text unique)",
    )
    .await;
    let mut tally = Tally::default();
    for round in 0..ROUNDS / 2 {
        lab.everywhere().await;
        let bodies: [String; 2] =
            [0, 1].map(|side| format!("insert into u values ({}, 'same {round}')", 2 * round + side));
        meet(&lab, [round % 3, (round + 1) % 3], [&bodies[0], &bodies[1]], "read committed", "public.u", &mut tally)
            .await;
    }
    lab.shows("select count(*) || ' ' || count(distinct v) from u", &format!("{0} {0}", ROUNDS / 2)).await;
    a_value_comes_while_another_one_is_waited_for(&lab).await;
    lab.check_equal(2).await;
}

/// The row of an INSERT ... ON CONFLICT has been compared with those that have its value in an index that is checked
/// late, and waits for a row with its value in another one.  What comes meanwhile with the first value wins.
async fn a_value_comes_while_another_one_is_waited_for(lab: &Lab) {
    let (a, waits, b) = (lab.session(0).await, lab.session(0).await, lab.session(1).await);
    a.must("create table late (id int primary key, v int unique deferrable, u int unique)").await;
    lab.everywhere().await;
    a.must("begin; insert into late values (1, 1, 9)").await;
    let meanwhile = async {
        let watch = lab.session(0).await;
        let blocked =
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like 'insert into late%'";
        until("it waits", SOON, || async { Ok(number(&watch, blocked).await? == 1) }).await.unwrap();
        b.must("insert into late values (3, 7, 10)").await;
        lab.everywhere().await;
        a.must("rollback").await;
    };
    let (inserted, ()) =
        tokio::join!(waits.run("insert into late values (2, 7, 9) on conflict (id) do nothing"), meanwhile);
    let error = inserted.expect_err("both have the value");
    let lost = is(&error, &SqlState::T_R_SERIALIZATION_FAILURE) || is(&error, &SqlState::UNIQUE_VIOLATION);
    assert!(lost, "{}", told(&error));
    lab.shows("select string_agg(late::text, ' ') from late", "(3,7,10)").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_is_deleted_or_gets_a_child() {
    let lab = far_apart(
        "conflicts_parent",
        "a parent deleted in one region, its child inserted in another: one wins, the other gets 40001",
        "create table parent (id int primary key); create table child (id int primary key, parent int references parent)",
    )
    .await;
    let mut tally = Tally::default();
    for round in 0..ROUNDS / 2 {
        lab.session(0).await.must(&format!("insert into parent values ({round})")).await;
        lab.everywhere().await;
        let bodies =
            [format!("delete from parent where id = {round}"), format!("insert into child values ({round}, {round})")];
        meet(&lab, [round % 3, (round + 1) % 3], [&bodies[0], &bodies[1]], "read committed", "public.", &mut tally)
            .await;
        lab.shows(
            "select count(*) from child left join parent on parent.id = child.parent where parent.id is null",
            "0",
        )
        .await;
    }
    lab.check_equal(2).await;
}

/// Write skew: each transaction locks the row that the other one writes, FOR UPDATE or FOR SHARE; only one may commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_lock_what_the_other_writes_one_wins() {
    let lab = far_apart(
        "conflicts_skew",
        "write skew between two regions: one wins, the other gets 40001",
        "create table skew (id int primary key, on_call bool)",
    )
    .await;
    let mut tally = Tally::default();
    for round in 0..ROUNDS / 2 {
        let (x, y) = (2 * round, 2 * round + 1);
        lab.session(0).await.must(&format!("insert into skew values ({x}, true), ({y}, true)")).await;
        lab.everywhere().await;
        let lock = if round % 2 == 0 { "update" } else { "share" };
        let bodies = [(x, y), (y, x)].map(|(mine, other)| {
            format!(
                "select * from skew where id = {other} for {lock}; update skew set on_call = false where id = {mine}"
            )
        });
        meet(
            &lab,
            [round % 3, (round + 1) % 3],
            [&bodies[0], &bodies[1]],
            "repeatable read",
            "public.skew",
            &mut tally,
        )
        .await;
        lab.shows(&format!("select count(*) from skew where id in ({x}, {y}) and on_call"), "1").await;
    }
    lab.check_equal(1).await;
}

/// Transactions that do not block each other in one region do not conflict in two regions either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_collide_commits_in_both_regions() {
    let lab = far_apart(
        "conflicts_none",
        "what does not conflict in one region does not conflict in two",
        "create table t (id int primary key, v int); create table u (id int primary key, v text unique);
         create table parent (id int primary key); create table child (id int primary key, parent int references parent);
         insert into parent values (1000); insert into t values (2000, 0), (2001, 0)",
    )
    .await;
    let pairs = [
        ["insert into child values (1000, 1000)", "insert into child values (1001, 1000)"],
        ["update t set v = 1 where id = 2000", "update t set v = 1 where id = 2001"],
        ["insert into u values (1000, null)", "insert into u values (1001, null)"],
        [
            "select * from t where id = 2000 for key share; insert into t values (3000, 0)",
            "update t set v = 2 where id = 2000",
        ],
    ];
    for (round, bodies) in pairs.iter().enumerate() {
        lab.everywhere().await;
        let sides = [lab.session(round % 3).await, lab.session((round + 1) % 3).await];
        for (side, body) in sides.iter().zip(bodies) {
            side.must(&format!("begin; {body}")).await;
        }
        let results = tokio::join!(sides[0].run("commit"), sides[1].run("commit"));
        for result in [results.0, results.1] {
            if let Err(error) = result {
                assert!(
                    !is(&error, &SqlState::T_R_SERIALIZATION_FAILURE),
                    "{bodies:?} do not collide: {}",
                    told(&error)
                );
                panic!("{bodies:?}: {}", told(&error));
            }
        }
    }
    lab.check_equal(4).await;
}

/// Clients read a value, add to it and write it back: under REPEATABLE READ no update is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_repeatable_read_no_update_is_lost() {
    let lab = far_apart(
        "conflicts_lost_update",
        "a value read, added to in the client and written back in three regions: no update is lost",
        "create table tally (id int primary key, n bigint); insert into tally values (1, 0), (2, 0)",
    )
    .await;
    let until = Instant::now() + duration(6);
    let mut tasks = Vec::new();
    for region in 0..3 {
        for client in 0..2 {
            let conninfo = lab.node(region).conninfo();
            tasks.push(tokio::spawn(async move {
                let mut session = Session::open(&conninfo).await.expect("connect");
                let (mut done, mut lost, id) = (0i64, 0u64, 1 + (region + client) % 2);
                while Instant::now() < until {
                    let attempt = async {
                        session.run("begin isolation level repeatable read").await?;
                        let row = session.query_one(&format!("select n from tally where id = {id}"), &[]).await?;
                        let n: i64 = row.get(0);
                        session.run(&format!("update tally set n = {} where id = {id}", n + 1)).await?;
                        session.run("commit").await
                    };
                    match attempt.await {
                        Ok(()) => done += 1,
                        Err(error) => {
                            lost += 1;
                            match error.as_db_error() {
                                Some(db) => {
                                    assert_eq!(db.code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{}", told(&error))
                                }
                                None => {
                                    let why = session.ended_by().await.expect("a reason");
                                    assert_eq!(why.code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{}", why.message());
                                    session = Session::open(&conninfo).await.expect("connect again");
                                    continue;
                                }
                            }
                            if session.run("rollback").await.is_err() {
                                session = Session::open(&conninfo).await.expect("connect again");
                            }
                        }
                    }
                }
                (done, lost)
            }));
        }
    }
    let (mut done, mut lost) = (0, 0);
    for task in tasks {
        let of_task = task.await.expect("a client");
        (done, lost) = (done + of_task.0, lost + of_task.1);
    }
    println!("conflicts: read, then write: {done} done, {lost} lost");
    assert!(done > 10 && lost > 10, "too little happened to tell anything");
    lab.shows("select sum(n) from tally", &done.to_string()).await;
    lab.check_equal(1).await;
}

/// Goal: what two regions do under LOCK TABLE, or after a look at the parent of a foreign key, excludes each other even
/// if one has been applied where the other one's transaction is open: nothing in it would wait for a lock.
/// Method: each statement in its turn, with all regions up to date in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_only_locked_excludes_others_too() {
    let tables = "create table guard (id int primary key); create table v (n int); create table w (n int);
                  create table loose (code int unique, note text); create table of_loose (code int references loose (code));
                  insert into loose values (1, 'as it was')";
    let lab = start_from("locked_only", "locks without changes of what they lock", builder()).await;
    let (a, b) = (lab.session(0).await, lab.session(1).await);
    a.must(tables).await;
    lab.everywhere().await;
    for mode in ["share row exclusive", "exclusive", "access exclusive"] {
        a.must(&format!("begin; lock table guard in {mode} mode")).await;
        assert_eq!(number(&a, "select count(*) from v").await.unwrap(), 0);
        b.must(&format!("begin; lock table guard in {mode} mode")).await;
        assert_eq!(number(&b, "select count(*) from w").await.unwrap(), 0);
        b.must("insert into v values (1); commit").await;
        lab.everywhere().await;
        a.must("insert into w values (1)").await;
        let error = a.run("commit").await.expect_err("it did not see the other's row");
        assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{mode}: {}", told(&error));
        // What others write under the lock, and a lock that has gone, are no conflict.
        b.must("delete from v").await;
        lab.everywhere().await;
        a.must(&format!("begin; savepoint s; lock table guard in {mode} mode; rollback to s")).await;
        b.must(&format!("begin; lock table guard in {mode} mode; insert into v values (1); commit; delete from v"))
            .await;
        lab.everywhere().await;
        a.must("insert into w values (1); delete from w; commit").await;
        lab.everywhere().await;
    }
    // Below a view the tables are locked too.
    a.must("create view over as select * from guard; create view over_both as select guard.id from over, guard").await;
    lab.everywhere().await;
    for (of_a, of_b) in [("over", "guard"), ("guard", "over_both"), ("over", "over_both")] {
        a.must(&format!("begin; lock table {of_a} in exclusive mode")).await;
        assert_eq!(number(&a, "select count(*) from v").await.unwrap(), 0);
        b.must(&format!("begin; lock table {of_b} in exclusive mode; insert into v values (1); commit")).await;
        lab.everywhere().await;
        a.must("insert into w values (1)").await;
        let error = a.run("commit").await.expect_err("it did not see the other's row");
        assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{of_a}, {of_b}: {}", told(&error));
        b.must("delete from v").await;
        lab.everywhere().await;
    }
    // The child refers to the row as it was before an update; who deletes it as it is now comes first.
    a.must("begin isolation level repeatable read; select from w").await;
    b.must("update loose set note = 'changed since'").await;
    lab.everywhere().await;
    a.must("insert into of_loose values (1)").await;
    b.must("delete from loose").await;
    let committed = a.run("commit").await;
    if committed.is_err() {
        lost(committed, a).await;
    }
    lab.everywhere().await;
    lab.shows("select count(*) from of_loose where code not in (select code from loose)", "0").await;
    // A row lock is under the name that its schema had: who holds one gives way to another name.
    let holder = lab.session(0).await;
    let tables = "create schema ref; create table ref.parent (id int primary key); insert into ref.parent values (1);
                  create table child (id int references ref.parent)";
    b.must(tables).await;
    lab.everywhere().await;
    holder.must("begin; insert into child values (1)").await;
    b.must("alter schema ref rename to renamed").await;
    lab.everywhere().await;
    lost(holder.run("commit").await, holder).await;
    lab.check_equal(7).await;
}
