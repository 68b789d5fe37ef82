//! A statement that would fail in another region fails at COMMIT in its own region, with a message that says where and
//! why, and no region stands still.

use std::time::{Duration, Instant};

use super::everywhere::stop_worker;
use crate::lab::{builder, number, start, start_prepared, text, told, told_db, until, Lab, Session, SOON};

/// A COMMIT that waited for a region would take as long as `onetrip.rehearse_timeout`, which the test sets to far more
/// than this.
const NOT_WAITED_FOR: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_in_another_region_fails_at_commit() {
    let lab =
        start("rehearsal", "statements that another region cannot carry out: an error at home, none stands still")
            .await;
    let [a, b, c] = lab.sessions().await;
    a.must(
        "create table t (id int primary key, v text);
         create table here (id int) using heap;
         create sequence s;
         create function reads_here(v text) returns text immutable language plpgsql as $$
         begin
             if not exists (select from public.here) then
                 raise 'nothing is here' using detail = 'it was looked for', hint = 'put something there';
             end if;
             return v;
         end $$;
         create function busy_elsewhere(v text) returns text immutable language plpgsql as $$
         begin
             if current_setting('onetrip.region') <> 'a' then
                 raise 'it says that it is busy' using errcode = '55P03';
             end if;
             return v;
         end $$;
         create function shouts_elsewhere(v text) returns text immutable language plpgsql as $$
         begin
             if current_setting('onetrip.region') <> 'a' then
                 raise '%', repeat('x', 10000000) using detail = repeat('y', 10000000);
             end if;
             return v;
         end $$;
         create function chats_elsewhere(v text) returns text immutable language plpgsql as $$
         begin
             if current_setting('onetrip.region') <> 'a' then
                 perform set_config('client_min_messages', 'notice', false);
                 raise notice '%', repeat('x', 10000000);
             end if;
             return v;
         end $$;
         create function reads_file_elsewhere(v text) returns text immutable language plpgsql as $$
         begin
             if current_setting('onetrip.region') <> 'a' then
                 perform pg_read_file('nothing');
             end if;
             return v;
         end $$;
         create function catches(v text) returns text immutable language plpgsql as $$
         begin
             perform 1 / length(left(v, 0));
             return null;
         exception when division_by_zero then
             return v;
         end $$;
         create function waits_elsewhere(v text) returns text immutable language plpgsql as $$
         begin
             if current_setting('onetrip.region') <> 'a' then
                 perform onetrip.wait_for(onetrip.position() + 1);
             end if;
             return v;
         end $$;
         insert into t values (1, 'x')",
    )
    .await;
    lab.everywhere().await;
    a.must("insert into here values (1)").await;
    // Created in a database that is not replicated, so this role and tablespace exist on one server only.
    let local = local_session(&lab, 0).await;
    let folder = tempfile::tempdir_in(lab.node(0).folder()).unwrap();
    std::os::unix::fs::chown(folder.path(), Some(owner(&lab).0), Some(owner(&lab).1)).unwrap();
    local.must("create role only_a").await;
    local.must(&format!("create tablespace only_a location '{}'", folder.path().display())).await;

    let library = onetrip_lab::postgres_bin().join("../lib/moddatetime.so");
    std::fs::copy(library, folder.path().join("only_a.so")).unwrap();
    a.must(&format!("set dynamic_library_path = '{}'", folder.path().display())).await;

    let of_b = "select last_value || ' ' || is_called from s";
    let before = text(&b, of_b).await.unwrap();
    for (statements, code, about) in [
        ("create index on t (reads_here(v))", "P0001", "nothing is here / it was looked for / In region"),
        (
            "begin; select setval('s', 4711); insert into t values (2, 'y'); create index on t (reads_here(v)); commit",
            "P0001",
            "nothing is here",
        ),
        ("create index on t (busy_elsewhere(v))", "55P03", "it says that it is busy"),
        ("create index on t (reads_file_elsewhere(v))", "58P01", "could not open file"),
        ("create index on t (waits_elsewhere(v))", "55000", "cannot wait while an entry is applied"),
        ("create index on t (shouts_elsewhere(v))", "P0001", "xxxx / yyyy"),
        ("grant select on t to only_a", "42704", "role \"only_a\" does not exist"),
        ("alter table t owner to only_a", "42704", "role \"only_a\" does not exist"),
        (
            "create function only_a() returns trigger language c as 'only_a', 'moddatetime'",
            "58P01",
            "could not access file \"only_a\"",
        ),
        ("create table u (id int primary key) tablespace only_a", "42704", "tablespace \"only_a\" does not exist"),
    ] {
        let error = a.refused(statements).await;
        let said = told_db(&error);
        assert_eq!(error.code().code(), code, "{statements}: {said}");
        let told =
            ["b", "c"].iter().any(|r| said.contains(&format!("could not commit: a statement fails in region \"{r}\"")));
        assert!(told && said.contains(about), "{statements}: {said}");
        assert!(error.where_().is_some_and(|w| w.contains("replaying the statement")), "{:?}", error.where_());
        assert_eq!(number(&a, "select count(*) from t").await.unwrap(), 1);
    }
    assert_eq!(text(&b, of_b).await.unwrap(), before, "a rehearsal has moved a sequence");
    // A function that says too much is not tried to its end.
    a.must("create index chats on t (chats_elsewhere(v))").await;
    a.must("drop index chats").await;
    // No region stands still, and the rehearsals have left nothing behind.
    c.must("insert into t values (3, 'z')").await;
    lab.shows("select count(*) || ' ' || (select count(*) from pg_index where indrelid = 't'::regclass) from t", "2 1")
        .await;

    // What b's operator sets for clients neither fails a rehearsal nor stops the worker.
    for setting in ["temp_file_limit = 0", "maintenance_work_mem = '1MB'", "exit_on_error = on"] {
        b.must(&format!("alter system set {setting}")).await;
    }
    b.must("select pg_reload_conf()").await;
    a.must("insert into t select g, repeat('long', 50) || g from generate_series(100, 20000) g").await;
    a.must("create index sorted on t (v, id)").await;
    a.must("create index caught on t (catches(v))").await;
    lab.everywhere().await;
    for setting in ["temp_file_limit", "maintenance_work_mem", "exit_on_error"] {
        b.must(&format!("alter system reset {setting}")).await;
    }
    b.must("select pg_reload_conf()").await;
    a.must("drop index sorted, caught; delete from t where id >= 100").await;

    // Without a rehearsal the statement commits, and then the other regions have to be mended.
    a.must("set onetrip.rehearse = off; grant select on t to only_a").await;
    until("region b stands still", SOON, || async {
        Ok(number(&b, "select count(*) from onetrip.status where failing > applied").await? == 1)
    })
    .await
    .unwrap();
    for region in [1, 2] {
        local_session(&lab, region).await.must("create role only_a").await;
    }
    lab.everywhere().await;
    a.must("create role ordinary").await;
    a.must("set role ordinary").await;
    assert_eq!(a.refused("set onetrip.rehearse = off").await.code().code(), "42501");
    // `onetrip check` names what only one server has.
    let (code, output) = lab.check(&[]).await;
    assert!(code == Some(1) && output.contains("\ntablespace only_a\n"), "{output}");
    local.must("drop tablespace only_a").await;
    lab.check_equal(1).await;
}

/// Goal: the apply worker waits for nothing that comes after the entry that it applies, whatever a function of an index
/// calls there.
///
/// Method: each function of onetrip that any role may execute is called in an index, in the other regions only: while
/// they rehearse the statement and, if that succeeds, while they apply it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn no_function_holds_up_another_region() {
    /// Values for arguments of each type, such that a function that waits for something waits for long.
    const ARGUMENTS: [(&str, &str); 9] = [
        ("bigint", "1000000000"),
        ("boolean", "true"),
        ("interval", "interval '1 hour'"),
        ("oid", "'s'::regclass::oid"),
        ("record", "row(1)"),
        ("regclass", "'s'::regclass"),
        ("text", "'increment'"),
        ("text[]", "array['increment']"),
        ("\"char\"", "'a'"),
    ];
    /// More than a rehearsal may take, and less than a client would wait.
    const ENDS: Duration = Duration::from_secs(15);
    let lab = start("rehearsal_calls", "functions of onetrip in an index, called in the other regions only").await;
    let a = lab.session(0).await;
    a.must("create role ordinary; grant create on schema public to ordinary; create publication increment").await;
    let open = lab.session(0).await;
    open.must("begin").await;
    let id = text(&open, "select onetrip.current_transaction_id()").await.unwrap();
    let functions = a
        .query(
            "select p.oid::regprocedure::text, p.proname::text, p.provariadic <> 0,
                    array(select format_type(a, null) from unnest(p.proargtypes) with ordinality u(a, n) order by n)
             from pg_proc p
             where p.pronamespace = 'onetrip'::regnamespace and has_function_privilege('ordinary', p.oid, 'execute')
                 and not 'internal'::regtype = any (p.proargtypes)
                 and not p.prorettype = any ('{trigger,event_trigger}'::regtype[])
             order by 1",
            &[],
        )
        .await
        .unwrap();
    a.must("set role ordinary; create table t (v text primary key); create sequence s; insert into t values ('x')")
        .await;
    let mut waits = None;
    for (n, function) in functions.iter().enumerate() {
        let (name, short, variadic): (String, String, bool) = (function.get(0), function.get(1), function.get(2));
        let types: Vec<String> = function.get(3);
        let argument = |kind: &String| {
            let known = ARGUMENTS.iter().find(|(known, _)| known == kind);
            known.unwrap_or_else(|| panic!("{name}: no value of type {kind}")).1.to_string()
        };
        let mut arguments: Vec<String> = match &*short {
            // Of a transaction of region a that has not been proposed.
            "outcome" => vec![format!("'{id}'")],
            _ => types.iter().map(argument).collect(),
        };
        if let Some(last) = arguments.last_mut().filter(|_| variadic) {
            last.insert_str(0, "variadic ");
        }
        let called = format!("onetrip.{short}({})", arguments.join(", "));
        a.must(&format!(
            "create function calls_{n}(v text) returns text immutable language plpgsql as $$
             begin
                 if current_setting('onetrip.region') <> 'a' then perform from {called}; end if;
                 return v;
             end $$"
        ))
        .await;
        let (begun, index) = (Instant::now(), format!("create index called on t (calls_{n}(v))"));
        let ended = tokio::time::timeout(ENDS, a.run(&index)).await;
        let ended = ended.unwrap_or_else(|_| panic!("{called}: the statement has not ended after {ENDS:?}"));
        let became = ended.as_ref().map_or_else(told, |()| "succeeds".into());
        println!("rehearsal_calls: {called}: {became} ({:.2} s)", begun.elapsed().as_secs_f64());
        // The others apply it, or whatever comes next.
        a.must(if ended.is_ok() {
            "drop index called"
        } else {
            "insert into t values ('y'); delete from t where v = 'y'"
        })
        .await;
        for region in [1, 2] {
            let (session, shown) = (lab.session(region).await, text(&a, "select onetrip.position()").await.unwrap());
            until(&format!("{called}: region {region} applies what follows"), ENDS, || async {
                Ok(text(&session, &format!("select onetrip.position() >= {shown}")).await? == "t")
            })
            .await
            .unwrap();
        }
        if short == "wait_for" {
            waits = ended.err().and_then(|e| e.code().cloned());
        }
    }
    assert!(functions.len() > 20, "{} functions", functions.len());
    assert_eq!(waits.as_ref().map(|code| code.code()), Some("55000"), "wait_for() elsewhere");
}

/// How often regions b and c have not tried statements of region a.
async fn not_rehearsed(lab: &Lab) -> [u64; 2] {
    let status = lab.node(0).status().await.unwrap();
    [0, 1].map(|peer| status["peers"][peer]["not_rehearsed"].as_u64().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn a_region_that_is_away_or_busy_is_not_waited_for() {
    let lab = start("rehearsal_away", "statements while a region is away, or holds a lock on the table").await;
    let [a, b, c] = lab.sessions().await;
    a.must("create table t (id int primary key, v text)").await;
    lab.everywhere().await;
    a.must("set onetrip.rehearse_timeout = '60s'").await;

    // A reader in region c holds a lock on the table: COMMIT does not wait for it, though the entry has to.
    c.must("begin; select * from t").await;
    in_time(&a, "alter table t add column w int").await;
    c.must("commit").await;
    lab.everywhere().await;
    assert_eq!(not_rehearsed(&lab).await, [0, 1], "c had a lock in the way");

    // Nor does it wait for a transaction that holds the schema lock.
    c.must("begin; create table other (id int primary key)").await;
    in_time(&a, "alter table t add column x int").await;
    let lost = c.refused("commit").await;
    assert_eq!(lost.code().code(), "40001", "{}", told_db(&lost));
    lab.everywhere().await;

    lab.cut_link(0, 2, true).await.unwrap();
    let before = not_rehearsed(&lab).await;
    in_time(&a, "alter table t add column y int").await;
    assert_eq!(not_rehearsed(&lab).await, [before[0], before[1] + 1], "c could not be reached");
    lab.cut_link(0, 2, false).await.unwrap();
    lab.everywhere().await;

    // The node of region c is killed, so no answer will come.
    lab.node(2).kill9().unwrap();
    until("a notices that the node is away, or does not wait for it", SOON, || async {
        let begun = Instant::now();
        a.run("alter table t alter column y set default 1").await?;
        Ok(begun.elapsed() < NOT_WAITED_FOR)
    })
    .await
    .unwrap();
    lab.node(2).start().unwrap();
    lab.shows("select count(*) from pg_attribute where attrelid = 't'::regclass and attnum > 0", "5").await;
    drop(b);
    lab.check_equal(1).await;
}

/// A failure in a region that is ahead says nothing: what this region does not show yet may be its cause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn a_region_that_is_behind_believes_no_failure() {
    let lab = start("rehearsal_behind", "statements in a region that does not show what the others do").await;
    let [a, _, c] = lab.sessions().await;
    a.must("create table t (id int primary key); create table bare (n int); insert into bare values (1)").await;
    let worker = stop_worker(&lab).await;
    a.must("alter table t add column w int").await;
    a.must("update bare set n = 2").await;
    for statements in [
        "alter table t add column w int",
        // In the other regions the row is not there any more.
        "begin; update bare set n = 3; create table u (id int primary key); commit",
    ] {
        let error = c.refused(statements).await;
        let said = told_db(&error);
        assert_eq!(error.code().code(), "40001", "{statements}: {said}");
        assert!(said.contains("could not commit: region \"c\" is behind region"), "{statements}: {said}");
    }
    drop(worker);
    lab.everywhere().await;
    assert_eq!(c.refused("alter table t add column w int").await.code().code(), "42701");
    c.must("begin; update bare set n = 3; create table u (id int primary key); commit").await;
    lab.everywhere().await;
    lab.shows("select n::text from bare", "3").await;
    lab.check_equal(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn a_rehearsal_gives_way_and_a_crash_of_somebody_else_is_no_failure() {
    let lab = start("rehearsal_way", "a rehearsal in the way of a change, and a server that crashes under it").await;
    let [a, b, c] = lab.sessions().await;
    a.must(
        "create table t (id int primary key, v text); create table u (id int primary key);
         create function slow(v text) returns text immutable language plpgsql as $$
         begin
             if current_setting('check_function_bodies') = 'off' then perform pg_sleep(1.5); end if;
             return v;
         end $$;
         insert into t values (1, 'x')",
    )
    .await;
    lab.everywhere().await;
    // Run again, it would see the row.
    a.must("set onetrip.statement_retries = 0").await;
    c.must("begin; insert into t values (2, 'y')").await;
    let index = async { a.run("create index on t (slow(v))").await };
    let change = async {
        until("b rehearses", SOON, || async {
            Ok(number(&b, "select count(*) from pg_stat_activity where wait_event = 'PgSleep'").await? == 1)
        })
        .await
        .unwrap();
        c.must("commit").await;
        let begun = Instant::now();
        until("b shows it", SOON, || async { Ok(number(&b, "select count(*) from t").await? == 2) }).await.unwrap();
        begun.elapsed()
    };
    let (lost, took) = tokio::join!(index, change);
    assert!(lost.is_err(), "it has not seen the row that was first");
    a.must("reset onetrip.statement_retries").await;
    assert!(took < Duration::from_millis(1000), "b showed the row after {took:?}");
    lab.everywhere().await;

    // The server of b ends every session when one of them crashes; the statement is tried there again.
    let victim = lab.session(1).await;
    let pid = victim.pid().await.unwrap();
    let index = async { a.run("create index on t (slow(v))").await };
    let crash = async {
        until("b rehearses", SOON, || async {
            Ok(number(&b, "select count(*) from pg_stat_activity where wait_event = 'PgSleep'").await? == 1)
        })
        .await
        .unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    };
    let (done, ()) = tokio::join!(index, crash);
    done.unwrap_or_else(|e| panic!("{e:?}"));
    lab.wait_ready().await.unwrap();
    lab.everywhere().await;
    lab.check_equal(1).await;
}

/// pg_cron works only where it is preloaded, its launcher runs in every region, and it deletes its rows without going
/// through the access method.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pg_cron_is_refused_until_every_region_preloads_it() {
    let preload = |node: &onetrip_lab::Node| {
        node.add_postgres_settings(&[
            // The node adds onetrip.
            ("shared_preload_libraries".into(), "pg_cron".into()),
            ("cron.database_name".into(), "onetrip".into()),
        ])
    };
    let about = "pg_cron, preloaded in one region, then in all";
    let lab = start_prepared("rehearsal_cron", about, builder(), |cluster| preload(cluster.node(0))).await;
    let a = lab.session(0).await;
    a.must("create table t (id int primary key)").await;
    lab.everywhere().await;
    let error = a.refused("create extension pg_cron").await;
    let said = told_db(&error);
    assert!(said.contains("a statement fails in region") && said.contains("cron.database_name"), "{said}");
    a.must("insert into t values (1)").await;
    lab.everywhere().await;

    for region in [1, 2] {
        preload(lab.node(region)).unwrap();
        lab.node(region).stop().await.unwrap();
        lab.node(region).start().unwrap();
    }
    lab.wait_ready().await.unwrap();
    a.must("create extension pg_cron").await;
    a.must("select cron.schedule('one', '* * * * *', 'insert into t values (2) on conflict do nothing')").await;
    lab.shows("select string_agg(jobname || ' ' || schedule, ',') from cron.job", "one * * * * *").await;
    // A row that it deletes without going through the access method would stay in the other regions, so that is
    // refused; the other regions go on.
    let [_, b, c] = lab.sessions().await;
    let error = b.refused("select cron.unschedule('one')").await;
    let said = told_db(&error);
    assert!(error.code().code() == "0A000" && said.contains("onetrip.new_tables = local"), "{said}");
    c.must("select cron.schedule('two', '0 0 1 1 *', 'select 1')").await;
    c.must("select cron.alter_job(jobid, schedule => '1 0 1 1 *') from cron.job where jobname = 'two'").await;
    a.must("delete from cron.job where jobname = 'one'").await;
    lab.shows("select string_agg(jobname || ' ' || schedule, ',') from cron.job", "two 1 0 1 1 *").await;
    lab.check_equal(3).await;
    // What the hint says: with local tables it may do so.  pg_cron keeps OIDs of its tables in each session.
    a.must("drop extension pg_cron").await;
    lab.everywhere().await;
    let b = lab.session(1).await;
    b.must("set onetrip.new_tables = local; create extension pg_cron; reset onetrip.new_tables").await;
    b.must("select cron.schedule('three', '0 0 1 1 *', 'select 1')").await;
    b.must("select cron.unschedule('three')").await;
    lab.shows("select amname from pg_class c join pg_am a on a.oid = relam where c.oid = 'cron.job'::regclass", "heap")
        .await;
}

async fn in_time(session: &Session, statement: &str) {
    let begun = Instant::now();
    session.must(statement).await;
    let took = begun.elapsed();
    assert!(took < NOT_WAITED_FOR, "{statement} took {took:?}");
}

async fn local_session(lab: &Lab, region: usize) -> Session {
    let conninfo = lab.node(region).conninfo().replace("dbname=onetrip", "dbname=postgres");
    Session::open(&conninfo).await.unwrap()
}

/// The user and group that the servers run as.
fn owner(lab: &Lab) -> (u32, u32) {
    use std::os::unix::fs::MetadataExt;
    let folder = std::fs::metadata(lab.node(0).folder()).unwrap();
    (folder.uid(), folder.gid())
}
