//! Load from all three regions at once: the real pgbench, and transfers whose total must be right in every snapshot.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lab::{bounded, duration, number, only_errors, start, told, Lab, Session};
use tokio_postgres::error::SqlState;

const CLIENTS: usize = 8;
const LOST: &str = "40001";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn pgbench_in_all_regions_fails_with_nothing_but_40001() {
    let lab = start("pgbench", "pgbench in all three regions at once, on shared rows; then tpcb-like at scale 1").await;
    shared_rows(&lab).await;
    tpcb(&lab).await;
}

async fn shared_rows(lab: &Lab) {
    lab.session(0)
        .await
        .must("create table counters (id int primary key, n bigint not null); insert into counters select g, 0 from generate_series(1, 1000) g")
        .await;
    lab.everywhere().await;
    let script = "\\set id random(1, 1000)\nupdate counters set n = n + 1 where id = :id;\n";
    let done = run_everywhere(lab, Some(script)).await;
    lab.shows("select sum(n) from counters", &done.to_string()).await;
    lab.check_equal(1).await;
}

async fn tpcb(lab: &Lab) {
    let initialise = pgbench(lab, 1, &["-i", "-s", "1", "-q"]);
    let output = bounded("pgbench -i", initialise).await;
    assert_eq!(output.code, Some(0), "pgbench -i: {}", output.stderr);
    lab.everywhere().await;
    let done = run_everywhere(lab, None).await;
    lab.shows(
        "select (select sum(bbalance) from pgbench_branches) = (select coalesce(sum(delta), 0) from pgbench_history)
            and (select sum(tbalance) from pgbench_tellers) = (select coalesce(sum(delta), 0) from pgbench_history)
            and (select sum(abalance) from pgbench_accounts) = (select coalesce(sum(delta), 0) from pgbench_history)",
        "t",
    )
    .await;
    lab.shows("select count(*) from pgbench_history", &done.to_string()).await;
    lab.shows("select count(*) from pgbench_accounts", "100000").await;
    lab.check_equal(5).await;
}

async fn pgbench(lab: &Lab, region: usize, args: &[&str]) -> crate::lab::Output {
    let node = lab.node(region);
    let output = tokio::process::Command::new(onetrip_lab::postgres_bin().join("pgbench"))
        .args(["-h", "127.0.0.1", "-U", "postgres", "-p", &node.postgres_port().to_string()])
        .args(args)
        .arg("onetrip")
        .kill_on_drop(true)
        .output()
        .await
        .expect("run pgbench");
    crate::lab::Output {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs pgbench with 8 clients in each region; returns how many transactions it says were done.
///
/// When an idle transaction is evicted, its client loses the connection, and pgbench does not connect again: so pgbench
/// runs for a few seconds at a time.  Every error that a server reports to it must be 40001.
async fn run_everywhere(lab: &Lab, script: Option<&str>) -> u64 {
    let folder = lab.data().join("pgbench");
    std::fs::create_dir_all(&folder).expect("make a folder");
    let file = folder.join("script.sql");
    std::fs::write(&file, script.unwrap_or_default()).expect("write the script");
    let file = file.display().to_string();
    let deadline = Instant::now() + duration(30);
    let region = |region: usize| {
        let file = file.clone();
        async move {
            let mut total = (0, 0, 0);
            while Instant::now() < deadline {
                let left = deadline.duration_since(Instant::now()).as_secs_f64().ceil().clamp(1.0, 5.0);
                let (clients, seconds) = (CLIENTS.to_string(), left.to_string());
                let mut args = vec!["-n", "-c", &clients, "-j", "1", "-T", &seconds, "--failures-detailed"];
                if script.is_some() {
                    args.extend(["-f", &file]);
                }
                let output = bounded("pgbench", pgbench(lab, region, &args)).await;
                let aborted = output
                    .stderr
                    .lines()
                    .filter(|line| line.contains(": client ") && line.contains(" aborted "))
                    .count();
                // Exit code 2: some clients ended early; the servers' logs tell why.
                assert!(
                    output.code == Some(0) || (output.code == Some(2) && aborted > 0),
                    "pgbench in region {region}: {:?} {}{}",
                    output.code,
                    output.stdout,
                    output.stderr
                );
                total.0 += after(&output.stdout, "transactions actually processed: ");
                total.1 += after(&output.stdout, "number of failed transactions: ");
                total.2 += aborted;
            }
            println!("pgbench: region {region}: {} done, {} failed, {} sessions evicted", total.0, total.1, total.2);
            assert!(total.0 > 0, "region {region} did nothing");
            (total.0, total.1 + total.2 as u64)
        }
    };
    let done = <[_; 3]>::from(tokio::join!(region(0), region(1), region(2)));
    for (region, (_, lost)) in done.iter().enumerate() {
        // A statement that is run again is logged as well, or not.
        only_errors(lab, region, "pgbench", LOST, usize::from(*lost > 0));
    }
    done.iter().map(|(done, _)| done).sum()
}

fn after(text: &str, label: &str) -> u64 {
    let digits: Option<String> =
        text.split(label).nth(1).map(|rest| rest.chars().take_while(char::is_ascii_digit).collect());
    digits.and_then(|d| d.parse().ok()).unwrap_or_else(|| panic!("pgbench did not say {label:?}: {text}"))
}

const ACCOUNTS: i64 = 40;
const EACH: i64 = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_keep_their_total_in_every_snapshot() {
    let lab = start(
        "transfers",
        "money moves between accounts from all regions; every snapshot anywhere shows the same total",
    )
    .await;
    lab.session(0)
        .await
        .must(&format!(
            "create table account (id int primary key, balance bigint not null check (balance >= 0));
             create table transfer (id bigserial primary key, payer int references account, payee int references account, amount int);
             insert into account select g, {EACH} from generate_series(1, {ACCOUNTS}) g"
        ))
        .await;
    lab.everywhere().await;
    let until = Instant::now() + duration(20);
    let committed = Arc::new(AtomicU64::new(0));
    let mut workers = Vec::new();
    for region in 0..3 {
        for worker in 0..3u64 {
            let conninfo = lab.node(region).conninfo();
            let committed = Arc::clone(&committed);
            workers.push(tokio::spawn(async move {
                move_money(&conninfo, worker + 10 * region as u64, until, &committed).await
            }));
        }
    }
    let mut readers = Vec::new();
    for region in 0..3 {
        let session = lab.session(region).await;
        readers.push(tokio::spawn(async move { watch_total(region, &session, until).await }));
    }
    let mut lost = 0;
    for worker in workers {
        lost += worker.await.expect("a worker");
    }
    let mut looked = 0;
    for reader in readers {
        looked += reader.await.expect("a reader");
    }
    let committed = committed.load(Ordering::Relaxed);
    println!("transfers: {committed} committed, {lost} lost to another region, {looked} totals read");
    assert!(committed > 50 && looked > 50, "too little happened to tell anything");
    lab.shows("select count(*) from transfer", &committed.to_string()).await;
    lab.shows(
        &format!(
            "select count(*) from account where balance <> {EACH}
                 + (select coalesce(sum(amount), 0) from transfer where payee = account.id)
                 - (select coalesce(sum(amount), 0) from transfer where payer = account.id)"
        ),
        "0",
    )
    .await;
    lab.check_equal(2).await;
}

/// Returns how often it lost to another region.
async fn move_money(conninfo: &str, seed: u64, until: Instant, committed: &AtomicU64) -> u64 {
    let mut session = Session::open(conninfo).await.expect("connect");
    let (mut lost, mut random) = (0, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut draw = move |below: i64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 33) as i64 % below
    };
    while Instant::now() < until {
        let payer = 1 + draw(ACCOUNTS);
        let payee = 1 + (payer + draw(ACCOUNTS - 1)) % ACCOUNTS;
        let amount = 1 + draw(20);
        // Always in the same order, so that two transfers of one region do not deadlock.
        let (first, second) = (payer.min(payee), payer.max(payee));
        let sign = |id: i64| if id == payer { -amount } else { amount };
        let result = async {
            session.run("begin").await?;
            session.run(&format!("update account set balance = balance + {} where id = {first}", sign(first))).await?;
            session
                .run(&format!("update account set balance = balance + {} where id = {second}", sign(second)))
                .await?;
            session
                .run(&format!("insert into transfer (payer, payee, amount) values ({payer}, {payee}, {amount})"))
                .await?;
            session.run("commit").await
        }
        .await;
        match result {
            Ok(()) => {
                committed.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                match error.code() {
                    Some(&SqlState::T_R_SERIALIZATION_FAILURE) => lost += 1,
                    Some(&SqlState::CHECK_VIOLATION) => {}
                    Some(_) => panic!("a transfer failed: {}", told(&error)),
                    None => {
                        let why = session.ended_by().await.expect("a reason");
                        assert_eq!(why.code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{}", why.message());
                        lost += 1;
                        session = Session::open(conninfo).await.expect("connect again");
                        continue;
                    }
                }
                if session.run("rollback").await.is_err() {
                    session = Session::open(conninfo).await.expect("connect again");
                }
            }
        }
    }
    lost
}

async fn watch_total(region: usize, session: &Session, until: Instant) -> u64 {
    let mut looked = 0;
    while Instant::now() < until {
        let total = number(session, "select sum(balance) from account").await.expect("read the total");
        assert_eq!(total, ACCOUNTS * EACH, "region {region}: a snapshot shows half a transfer");
        // Two statements, one snapshot.
        session.must("begin isolation level repeatable read read only").await;
        let in_accounts = number(session, &format!("select sum(balance - {EACH}) from account where id % 2 = 0")).await;
        let moved = number(
            session,
            "select coalesce(sum(case when payee % 2 = 0 then amount else 0 end - case when payer % 2 = 0 then amount else 0 end), 0) from transfer",
        )
        .await;
        session.must("commit").await;
        assert_eq!(
            in_accounts.expect("read"),
            moved.expect("read"),
            "region {region}: transfers and balances disagree"
        );
        looked += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    looked
}
