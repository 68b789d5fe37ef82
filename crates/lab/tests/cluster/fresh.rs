//! Fresh reads see what was acknowledged in other regions, and ask for it only once in a transaction.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lab::{apart, builder, number, start_from, text, until, Lab, Session, SOON};
use crate::large_objects::{FastPath, Value};

const COMMIT_TIMEOUT_MS: u64 = 1_500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_read_sees_what_was_acknowledged_elsewhere() {
    let lab = start_from(
        "fresh",
        "what region a acknowledged, region c shows to whoever reads fresh, however it reads",
        builder().topology(apart(20)),
    )
    .await;
    let a = lab.session(0).await;
    a.must(
        "create table t (id int primary key);
         create function seen() returns bigint stable language sql as 'select count(*) from t';
         create function seen_by_loop() returns bigint stable language plpgsql as
             $$ begin return (select count(*) from t); end $$",
    )
    .await;
    lab.everywhere().await;
    let c = lab.session(2).await;
    c.must("prepare seen as select count(*) from t").await;
    for _ in 0..10 {
        // From now on its plan is kept.
        c.must("execute seen").await;
    }
    c.must("set onetrip.read = fresh").await;
    let ways = [
        "select count(*) from t",
        "execute seen",
        "select seen()",
        "select seen_by_loop()",
        "begin; declare k cursor for select count(*) from t; fetch k; commit",
        "begin isolation level repeatable read; select count(*) from t; commit",
        "begin; create temp table copied on commit drop as select * from t; select count(*) from copied; commit",
        "begin; savepoint s; select count(*) from t; rollback to s; select count(*) from t; commit",
    ];
    let mut rows = 0;
    for round in 0..10 {
        for way in ways {
            rows += 1;
            a.must(&format!("insert into t values ({rows})")).await;
            assert_eq!(number(&c, way).await.unwrap(), rows, "{way}, round {round}");
        }
    }
    one_statement_sees_one_state(&lab).await;
    rows += 2;
    large_objects(&lab).await;
    let (answer, copied) = copy(&lab).await;
    assert_eq!(copied, rows, "{answer}");
    waits_for_what_it_cannot_have_yet(&lab, rows).await;
    what_was_planned_before_is_not_run(&lab).await;
    no_older_than_allowed(&lab).await;
    without_a_majority(&lab, rows).await;
    for_the_whole_database(&lab).await;
    lab.check_equal(1).await;
}

/// The sessions of the cluster's own work go on as they are.
async fn for_the_whole_database(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("alter database onetrip set onetrip.read = fresh").await;
    lab.everywhere().await;
    a.must("alter table t add column later int default 1").await;
    let c = lab.session(2).await;
    assert_eq!(text(&c, "show onetrip.read").await.unwrap(), "fresh");
    c.must("select later from t").await;
}

/// What is shown while a statement runs, a function that is not volatile does not see: it uses the same snapshot.
async fn one_statement_sees_one_state(lab: &Lab) {
    let [a, _, c] = lab.sessions().await;
    a.must(
        "create function sees_the_same() returns boolean stable language plpgsql as $$
             declare before bigint := (select count(*) from t);
             begin
                 perform pg_advisory_lock(700);
                 return before = (select count(*) from t);
             end $$",
    )
    .await;
    lab.everywhere().await;
    let statements = [
        "select 1 / (before = (select 0 * count(*) from pg_advisory_lock(700)) + seen())::int
             from (select count(*) as before from t) one",
        "select 1 / sees_the_same()::int",
    ];
    for statement in statements {
        c.must("select pg_advisory_lock(700)").await;
        let fresh = lab.session(2).await;
        fresh.must("set onetrip.read = fresh").await;
        let reading = fresh.must(statement);
        let committing = async {
            let waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted";
            until("it waits in the midst of the statement", SOON, || async { Ok(number(&c, waiting).await? > 0) })
                .await
                .unwrap();
            let shown = number(&c, "select count(*) from t").await.unwrap();
            a.must("insert into t select least(min(id), 0) - 100 from t").await;
            lab.everywhere().await;
            assert_eq!(number(&c, "select count(*) from t").await.unwrap(), shown + 1);
            c.must("select pg_advisory_unlock(700)").await;
        };
        tokio::join!(reading, committing);
    }
}

/// They are read by functions, which need no query that the executor runs.
async fn large_objects(lab: &Lab) {
    let [a, _, c] = lab.sessions().await;
    a.must("select lo_from_bytea(700, '0000')").await;
    a.must("create procedure is_same(seen bytea, expected text) language plpgsql as $$ begin if seen <> expected::bytea then raise 'sees %', seen; end if; end $$").await;
    lab.everywhere().await;
    let function = number(&c, "select 'lo_get(oid)'::regprocedure::oid::bigint").await.unwrap() as u32;
    let mut fast_path = FastPath::open(lab, 2).await;
    fast_path.query("set onetrip.read = fresh; set onetrip.commit_timeout = '60s'").await;
    c.must("set onetrip.read = fresh; set onetrip.commit_timeout = '60s'").await;
    let ways = [
        // What PL/pgSQL evaluates by itself, arguments of CALL, a query; last of all the protocol's function call.
        "do $$ begin if lo_get(700) <> 'expected'::bytea then raise 'sees an older one'; end if; end $$",
        "begin; savepoint s; do $$ begin if lo_get(700) <> 'expected'::bytea then raise 'sees an older one'; end if; end $$; commit",
        "call is_same(lo_get(700), 'expected')",
        "begin; savepoint s; call is_same(lo_get(700), 'expected'); commit",
        "do $$ begin perform from (select lo_get(700) as seen) t where seen <> 'expected'; if found then raise 'sees an older one'; end if; end $$",
        "select 1 / (x = 'expected')::int from xmltable('/a' passing xmlparse(document '<a>' || convert_from(lo_get(700), 'UTF8') || '</a>') columns x text path '.')",
        "select from generate_series(1, 2) limit 1 / (lo_get(700) = 'expected'::bytea)::int",
    ];
    for round in 0..=ways.len() {
        // Region c does not get this before it is connected again.
        lab.cut_link(0, 2, true).await.unwrap_or_else(|e| panic!("{e:#}"));
        let expected = format!("{:04}", round + 1);
        a.must(&format!("select lo_put(700, 0, '{expected}')")).await;
        let reading = async {
            match ways.get(round) {
                Some(way) => c.must(&way.replace("expected", &expected)).await,
                None => {
                    assert_eq!(fast_path.call(function, &[Value::Oid(700)]).await, Ok(expected.clone().into_bytes()))
                }
            }
        };
        let connecting = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            lab.cut_link(0, 2, false).await.unwrap_or_else(|e| panic!("{e:#}"));
        };
        tokio::join!(reading, connecting);
    }
}

/// COPY of a table does not run through the executor.
async fn copy(lab: &Lab) -> (String, i64) {
    let answer = crate::lab::psql(lab, 2, "set onetrip.read = fresh; copy t to stdout;").await;
    let rows = answer.lines().filter(|line| line.trim().parse::<i64>().is_ok()).count();
    (answer, rows as i64)
}

/// Region c gets no entries, because its link to the leader is cut; region b knows what there is.
async fn waits_for_what_it_cannot_have_yet(lab: &Lab, rows: i64) {
    lab.cut_link(0, 2, true).await.unwrap_or_else(|e| panic!("{e:#}"));
    let a = lab.session(0).await;
    a.must("insert into t values (-1)").await;
    let local = lab.session(2).await;
    let shown = number(&local, "select count(*) from t").await.unwrap();
    let fresh = lab.session(2).await;
    fresh.must("set onetrip.read = fresh; set onetrip.commit_timeout = '60s'").await;
    let read = tokio::spawn(async move { number(&fresh, "select count(*) from t").await.unwrap() });
    if shown == rows {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let shown = number(&local, "select count(*) from t").await.unwrap();
        assert!(shown > rows || !read.is_finished(), "it did not wait");
    }
    // This invalidates the plan of the fresh read, but its meaning stays.
    local.must("analyze t").await;
    lab.cut_link(0, 2, false).await.unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(crate::lab::bounded("the fresh read", read).await.unwrap(), rows + 1);
    // The same by hand: the position of one region, waited for in another.
    a.must("insert into t values (-2)").await;
    let position = number(&a, "select onetrip.position()").await.unwrap();
    assert!(number(&local, &format!("select onetrip.wait_for({position})")).await.unwrap() >= position);
    assert_eq!(number(&local, "select count(*) from t").await.unwrap(), rows + 2);
    let late = local.refused(&format!("select onetrip.wait_for({position} + 1000000, '100 ms')")).await;
    assert_eq!(late.code().code(), "55000", "{late:?}");
}

/// While region a writes and region c gets nothing for a while, reads there with a bound of 300 ms see all that was
/// acknowledged that long before; those without one do not.
async fn no_older_than_allowed(lab: &Lab) {
    const BOUND: Duration = Duration::from_millis(300);
    const COUNT: &str = "select count(*) from counted_up";
    const ASKED: &str = "select count from onetrip.crossings where cause = 'fresh read'";
    let a = lab.session(0).await;
    a.must("create table counted_up (n int primary key)").await;
    lab.everywhere().await;
    // When each row was acknowledged.
    let acknowledged = Mutex::new(Vec::new());
    let must_see = || {
        let before = Instant::now() - BOUND;
        acknowledged.lock().unwrap().iter().filter(|at| **at < before).count() as i64
    };
    let began = Instant::now();
    let goes_on = || began.elapsed() < Duration::from_secs(5);
    let writes = async {
        while goes_on() {
            let n = acknowledged.lock().unwrap().len();
            a.must(&format!("insert into counted_up values ({n})")).await;
            acknowledged.lock().unwrap().push(Instant::now());
        }
    };
    let cuts = async {
        for cut in [true, false] {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            lab.cut_link(0, 2, cut).await.unwrap_or_else(|e| panic!("{e:#}"));
        }
    };
    let session = lab.session(2).await;
    let locals = async {
        let (mut too_old, mut reads) = (0, 0);
        while goes_on() {
            let least = must_see();
            too_old += usize::from(number(&session, COUNT).await.unwrap() < least);
            reads += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        (too_old, reads)
    };
    // One that comes now and then finds answers that the other still waits to see.
    let bounded = [lab.session(2).await, lab.session(2).await];
    for session in &bounded {
        session.must("set onetrip.max_staleness = '300ms'; set onetrip.commit_timeout = '60s'").await;
    }
    let [one, other] = &bounded;
    let before = number(one, ASKED).await.unwrap();
    let reads = async |session: &Session, pause: Duration| {
        let mut reads = 0;
        while goes_on() {
            let least = must_see();
            let seen = number(session, COUNT).await.unwrap();
            assert!(seen >= least, "{seen} of {least} rows after {:?}", began.elapsed());
            reads += 1;
            tokio::time::sleep(pause).await;
        }
        reads
    };
    let ((), (), (too_old, locals), one_read, other_read) =
        tokio::join!(writes, cuts, locals, reads(one, Duration::ZERO), reads(other, Duration::from_millis(130)));
    let (asked, reads) = (number(one, ASKED).await.unwrap() - before, one_read + other_read);
    println!("{reads} reads within {BOUND:?} asked {asked} times; {too_old} of {locals} local ones were older");
    assert!(too_old > 0, "the local reads were never older than that, so this shows nothing");
    assert!((3..=40).contains(&asked) && asked * 4 < reads, "{reads} reads asked {asked} times");
}

/// What region a changes while queries of region c wait, their plans do not know.
async fn what_was_planned_before_is_not_run(lab: &Lab) {
    const OUTDATED: [&str; 5] = [
        "select count(*) from parted",
        "execute counted",
        "select answer() from t limit 1",
        // Any function that has changed may have been computed for the plan.
        "select answer_of_loop() from t limit 1",
        "select max(parted.id) from parted, t",
    ];
    // CALL asks before the procedure is planned.
    const RIGHT: &str = "call count_in_turn(0)";
    let a = lab.session(0).await;
    a.must(
        "create table parted (id int primary key) partition by list (id);
         create table parted_1 partition of parted for values in (1);
         create table parted_2 (id int primary key);
         insert into parted values (1);
         insert into parted_2 values (2);
         create function answer() returns bigint immutable language sql as 'select 1::bigint';
         create function answer_of_loop() returns bigint language plpgsql as $$ begin return answer(); end $$;
         create procedure count_in_turn(inout rows bigint) language sql
             as 'select count(*) from t; select count(*) from parted'",
    )
    .await;
    lab.everywhere().await;
    let mut sessions = Vec::new();
    for query in OUTDATED.into_iter().chain([RIGHT]) {
        let c = lab.session(2).await;
        c.must("set onetrip.read = fresh; set onetrip.commit_timeout = '60s'").await;
        c.must("set plan_cache_mode = force_generic_plan; prepare counted as select count(*) from parted").await;
        assert_eq!(number(&c, query).await.unwrap(), 1, "{query}");
        sessions.push((c, query));
    }
    lab.cut_link(0, 2, true).await.unwrap_or_else(|e| panic!("{e:#}"));
    a.must(
        "alter table parted attach partition parted_2 for values in (2);
         create or replace function answer() returns bigint immutable language sql as 'select 2::bigint'",
    )
    .await;
    let count = sessions.len() as i64;
    let reads: Vec<_> = sessions
        .into_iter()
        .map(|(c, query)| {
            tokio::spawn(async move {
                let answer = number(&c, query).await;
                (c, query, answer)
            })
        })
        .collect();
    let local = lab.session(2).await;
    let waiting = "select count(*) from pg_stat_activity
        where state = 'active' and wait_event is not null and pid <> pg_backend_pid()
        and backend_type = 'client backend'";
    let all_wait = async || Ok::<_, anyhow::Error>(number(&local, waiting).await? == count);
    until("all fresh reads wait", SOON, all_wait).await.unwrap();
    lab.cut_link(0, 2, false).await.unwrap_or_else(|e| panic!("{e:#}"));
    for read in reads {
        let (c, query, answer) = crate::lab::bounded("the fresh read", read).await.unwrap();
        if OUTDATED.contains(&query) {
            let error = format!("{:#}", answer.expect_err(query));
            assert!(error.contains("could not read fresh"), "{query}: {error}");
        } else {
            assert_eq!(answer.unwrap(), 2, "{query}");
        }
        assert_eq!(number(&c, query).await.unwrap(), 2, "{query}, once more");
    }
}

async fn without_a_majority(lab: &Lab, rows: i64) {
    let c = lab.session(2).await;
    c.must(&format!("set onetrip.read = fresh; set onetrip.commit_timeout = {COMMIT_TIMEOUT_MS}")).await;
    for other in [0, 1] {
        lab.node(other).pause().expect("SIGSTOP");
    }
    let refused = c.refused("select count(*) from t").await;
    assert_eq!(refused.code().code(), "55000", "{refused:?}");
    // Whoever asks only the catalogs, or reads locally, needs nobody.
    c.must("select count(*) from pg_class").await;
    c.must("select 1 + 1").await;
    let local = lab.session(2).await;
    assert_eq!(number(&local, "select count(*) from t").await.unwrap(), rows + 2);
    c.must("set statement_timeout = '200ms'").await;
    let cancelled = c.refused("select count(*) from t").await;
    assert_eq!(cancelled.code().code(), "57014", "{cancelled:?}");
    c.must("reset statement_timeout").await;
    for other in [0, 1] {
        lab.node(other).resume().expect("SIGCONT");
    }
    let read = async || Ok::<_, anyhow::Error>(counts(&c).await == Some(rows + 2));
    until("fresh reads are answered again", SOON, read).await.unwrap();
}

async fn counts(session: &Session) -> Option<i64> {
    number(session, "select count(*) from t").await.ok()
}
