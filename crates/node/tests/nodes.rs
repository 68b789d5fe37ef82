//! Three real nodes, real sockets, real disks; PostgreSQL is played by the test.

use crate::common::{http, update, wait_for, Cluster};
use anyhow::{bail, ensure, Context, Result};
use onetrip_core::agent::{FromPostgres, OutcomeState, ToPostgres, VerdictFrame, VerdictOutcome};
use onetrip_core::row_locks::{LockAsk, LockSaid};
use onetrip_core::{LockMode, LogIndex, TxnId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Commits one transaction in each region.  Every region's apply worker gets those of the other regions, in log order.
#[tokio::test]
async fn each_region_commits_and_all_get_the_entries_of_the_others_in_order() -> Result<()> {
    let cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let mut workers = Vec::new();
    for i in 0..3 {
        workers.push(cluster.worker(i, LogIndex(0)).await?);
    }
    let mut committed = Vec::new();
    let mut backends = Vec::new();
    for i in 0..3 {
        let mut backend = cluster.backend(i).await?;
        let verdict = backend.commit(1, &[update(i as u64, LogIndex(0))], format!("of {i}").as_bytes()).await?;
        ensure!(verdict.outcome == VerdictOutcome::Commit, "{verdict:?}");
        ensure!(verdict.other == committed.last().copied().unwrap_or(LogIndex(0)), "{verdict:?}");
        committed.push(verdict.at);
        backends.push(backend);
    }
    for (i, worker) in workers.iter_mut().enumerate() {
        for other in (0..3).filter(|o| *o != i) {
            let (at, previous, txn, write_set) = worker.entry().await?;
            ensure!(at == committed[other] && txn == backends[other].txn(1), "{at} {txn}");
            ensure!(previous == other.checked_sub(1).map_or(LogIndex(0), |p| committed[p]));
            ensure!(write_set == format!("of {other}"));
        }
    }
    cluster.stop().await
}

/// Two regions update one row at once, many times over: of each pair exactly one commits, and the other is told
/// which entry of which region it lost to.
#[tokio::test]
async fn of_two_conflicting_transactions_exactly_one_commits() -> Result<()> {
    let cluster = Cluster::start(1.0)?;
    cluster.preferred_leads().await?;
    let (mut a, mut b) = (cluster.backend(1).await?, cluster.backend(2).await?);
    for n in 1..=30 {
        let key = [update(n, LogIndex(0))];
        a.propose(n, &key, b"a").await?;
        b.propose(n, &key, b"b").await?;
        let (va, vb) = (a.verdict().await?, b.verdict().await?);
        let (won, lost, winner) = match va.outcome {
            VerdictOutcome::Commit => (va, vb, "r2"),
            _ => (vb, va, "r3"),
        };
        ensure!(won.outcome == VerdictOutcome::Commit && lost.outcome == VerdictOutcome::Conflict);
        ensure!((lost.other, lost.key, lost.region.as_str()) == (won.at, 0, winner), "{lost:?}");
    }
    cluster.stop().await
}

#[tokio::test]
async fn the_same_transaction_proposed_again_gets_the_same_verdict_and_no_second_entry() -> Result<()> {
    let cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let mut worker = cluster.worker(2, LogIndex(0)).await?;
    let key = [update(7, LogIndex(0))];
    let first = cluster.backend(1).await?.commit(1, &key, b"x").await?;
    let again = cluster.backend(1).await?.commit(1, &key, b"x").await?;
    // Who had it on disk is said once.
    let said = |verdict: &VerdictFrame| (verdict.txn, verdict.outcome, verdict.at, verdict.other);
    ensure!(said(&first) == said(&again), "{first:?} {again:?}");
    // A transaction that has lost already gets the same verdict again, too, and is not in the log.
    let lost = cluster.backend(1).await?.commit(2, &key, b"y").await?;
    ensure!((lost.outcome, lost.at, lost.other) == (VerdictOutcome::Conflict, LogIndex(0), first.at));
    let mut backend = cluster.backend(1).await?;
    ensure!(backend.commit(2, &key, b"y").await? == lost);
    let next = backend.commit(3, &[], b"z").await?;
    ensure!(worker.entry().await?.0 == first.at);
    ensure!(worker.entry().await?.0 == next.at);
    // OUTCOME says so as well.
    let cases = [(1, OutcomeState::Committed, first.at), (2, OutcomeState::NotSoFar, LogIndex(0))];
    for (sequence, want, index) in cases.into_iter().chain([(9, OutcomeState::NotSoFar, LogIndex(0))]) {
        let txn = backend.txn(sequence);
        backend.send(&FromPostgres::Outcome(txn)).await?;
        let answer = backend.receive().await?;
        ensure!(answer == ToPostgres::OutcomeIs { txn, state: want, at: index }, "{answer:?}");
    }
    cluster.stop().await
}

/// An apply worker that connects again and again at the same applied index is reported as a problem, until it gets
/// further.
#[tokio::test]
async fn an_apply_worker_that_gets_no_further_is_a_problem_until_it_does() -> Result<()> {
    let cluster = Cluster::start(1.0)?;
    let committed = cluster.backend(cluster.leader().await?).await?.commit(1, &[], b"x").await?;
    let stuck = || async {
        let status = cluster.status(0).await?;
        let problems = status["problems"].as_array().context("problems")?;
        anyhow::Ok(problems.iter().any(|p| p.as_str().is_some_and(|p| p.contains("comes no further"))))
    };
    wait_for("the entry", || async {
        let (at, ..) = cluster.worker(0, LogIndex(0)).await?.entry().await?;
        ensure!(at == committed.at, "{at}");
        Ok(())
    })
    .await?;
    for _ in 0..2 {
        ensure!(!stuck().await?, "it may have been killed");
        cluster.worker(0, LogIndex(0)).await?.entry().await?;
    }
    // The first worker may have connected before the entry was decided, and is then not counted.
    cluster.worker(0, LogIndex(0)).await?.entry().await?;
    let mut worker = cluster.worker(0, LogIndex(0)).await?;
    worker.entry().await?;
    ensure!(stuck().await?);
    worker.position(committed.at).await?;
    wait_for("it got on", || async {
        ensure!(!stuck().await?);
        Ok(())
    })
    .await?;
    cluster.stop().await
}

/// The backend disconnects between its proposal and the verdict, so the apply worker gets its entry.
#[tokio::test]
async fn an_entry_whose_backend_has_gone_before_the_verdict_goes_to_the_worker() -> Result<()> {
    let cluster = Cluster::start(20.0)?;
    cluster.preferred_leads().await?;
    let mut worker = cluster.worker(1, LogIndex(0)).await?;
    let mut backend = cluster.backend(1).await?;
    backend.propose(1, &[update(1, LogIndex(0))], b"orphan").await?;
    let txn = backend.txn(1);
    wait_for("the proposal", || async {
        let pending = cluster.status(1).await?["pending"].as_u64();
        ensure!(pending == Some(1), "{pending:?}");
        Ok(())
    })
    .await?;
    drop(backend);
    let (_, _, got, write_set) = worker.entry().await?;
    ensure!(got == txn && write_set == "orphan".as_bytes());
    cluster.stop().await
}

/// Rule 2: a backend that disconnects after a verdict of commit makes the worker start over.  Rule 3: the worker then
/// gets everything above its applied index, including the entries of its own region.
#[tokio::test]
async fn a_backend_that_goes_in_doubt_restarts_the_worker_and_done_does_not() -> Result<()> {
    let cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let mut worker = cluster.worker(0, LogIndex(0)).await?;
    let mut other = cluster.backend(1).await?;
    let mut good = cluster.backend(0).await?;
    let first = good.commit(1, &[], b"first").await?;
    let txn = good.txn(1);
    good.send(&FromPostgres::Done(txn)).await?;
    drop(good);
    // The worker still has its connection, and gets the next entry of another region.
    let second = other.commit(1, &[], b"second").await?;
    ensure!(worker.entry().await?.0 == second.at);
    worker.position(first.at).await?;

    let mut bad = cluster.backend(0).await?;
    let third = bad.commit(2, &[], b"third").await?;
    // This PROPOSE implies DONE of the one before, but nothing follows it, so the fourth transaction stays in doubt.
    let fourth = bad.commit(3, &[], b"fourth").await?;
    drop(bad);
    worker.ended().await?;
    let mut worker = cluster.worker(0, first.at).await?;
    for (want, previous) in [(&second, first.at), (&third, second.at), (&fourth, third.at)] {
        let (at, prev, _, _) = worker.entry().await?;
        ensure!((at, prev) == (want.at, previous), "{at} after {prev}");
    }

    // What the worker has passed is visible, so it does not matter how the backend of that transaction ends.
    let mut late = cluster.backend(0).await?;
    let fifth = late.commit(4, &[], b"fifth").await?;
    worker.position(fifth.at).await?;
    wait_for("the position", || async {
        ensure!(cluster.status(0).await?["applied"].as_u64() == Some(fifth.at.0));
        Ok(())
    })
    .await?;
    drop(late);
    let sixth = other.commit(2, &[], b"sixth").await?;
    ensure!(worker.entry().await?.0 == sixth.at);
    cluster.stop().await
}

/// Rule 4: the worker gets 1,024 entries beyond its last POSITION, and not one more.  (The other limit, 64 MiB, is not
/// reached here.)
#[tokio::test]
async fn the_worker_gets_no_more_than_its_credit() -> Result<()> {
    let cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let mut last = LogIndex(0);
    let mut backend = cluster.backend(0).await?;
    for n in 1..=1100 {
        last = backend.commit(n, &[], &[]).await?.at;
    }
    let mut worker = cluster.worker(1, LogIndex(0)).await?;
    let mut at = LogIndex(0);
    for _ in 0..1024 {
        at = worker.entry().await?.0;
    }
    // A busy leader leaves the last entry to its next append, or tick.
    wait_for("the rest to be queued", || async {
        let queued = cluster.status(1).await?["apply_queue"].as_u64();
        ensure!(queued == Some(76), "{queued:?}");
        Ok(())
    })
    .await?;
    worker.position(at).await?;
    while at < last {
        at = worker.entry().await?.0;
    }
    cluster.stop().await
}

/// Goal: what limits an entry limits nothing else that a session sends.
#[tokio::test]
async fn locks_may_take_more_bytes_than_an_entry() -> Result<()> {
    let mut cluster = Cluster::prepare_in(&["r1"], 0.0)?;
    cluster.configs[0].max_entry_bytes = 1024;
    cluster.configs[0].save()?;
    cluster.start_node(0)?;
    cluster.preferred_leads().await?;
    let mut backend = cluster.backend(0).await?;
    let keys = (0..1_000).map(|hash| (hash, LockMode::Update)).collect();
    let ask = LockAsk { txn: backend.txn(1), number: 1, waits: true, keys };
    backend.send(&FromPostgres::Lock { ask, table: "t".into() }).await?;
    match backend.receive().await? {
        ToPostgres::Locked { number: 1, said: LockSaid::Granted { .. }, .. } => {}
        other => bail!("{other:?} instead of the locks"),
    }
    let verdict = backend.commit(1, &[], &[7; 1024]).await?;
    ensure!(verdict.outcome == VerdictOutcome::Refused && verdict.message.contains("max_entry_bytes"), "{verdict:?}");
    cluster.stop().await
}

/// Node 3 is stopped and started again twice, then node 2 once.  Each goes on from its disk, gives the same answers,
/// and feeds its PostgreSQL what that had not applied.
#[tokio::test]
async fn a_restarted_node_goes_on_where_it_was() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let mut backend = cluster.backend(0).await?;
    let key = [update(1, LogIndex(0))];
    let first = backend.commit(1, &key, b"first").await?;
    for n in 2..20 {
        backend.commit(n, &[update(n, first.at)], b"more").await?;
    }
    for (round, restarted) in [(1, 2), (2, 2), (3, 1)] {
        cluster.stop_node(restarted).await?;
        let during = backend.commit(100 + round, &[], b"during").await?;
        cluster.start_node(restarted)?;
        cluster.leader().await?;
        let mut here = cluster.backend(restarted).await?;
        let lost = here.commit(round, &key, b"late").await?;
        ensure!(
            (lost.outcome, lost.other, lost.region.as_str()) == (VerdictOutcome::Conflict, first.at, "r1"),
            "{lost:?}"
        );
        let mut worker = cluster.worker(restarted, LogIndex(0)).await?;
        let mut at = LogIndex(0);
        while at < during.at {
            at = worker.entry().await?.0;
        }
        ensure!(at == during.at);
    }
    cluster.stop().await
}

/// The leader stops.  The others elect a new one and go on, and a transaction that is proposed meanwhile is decided,
/// although its backend sends it only once.  When the old leader is back, leadership returns to its region.
#[tokio::test]
async fn when_the_leader_stops_the_others_go_on_and_it_gets_its_place_back() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let mut backend = cluster.backend(1).await?;
    let before = backend.commit(1, &[], b"before").await?;
    cluster.stop_node(0).await?;
    let after = backend.commit(2, &[], b"after").await?;
    ensure!(after.outcome == VerdictOutcome::Commit && after.other == before.at, "{after:?}");
    ensure!(cluster.leader().await? != 0);
    cluster.start_node(0)?;
    cluster.preferred_leads().await?;
    let third = backend.commit(3, &[], b"third").await?;
    ensure!(third.other == after.at);
    let mut worker = cluster.worker(0, LogIndex(0)).await?;
    for want in [before.at, after.at, third.at] {
        ensure!(worker.entry().await?.0 == want);
    }
    cluster.stop().await
}

/// A node without a connection to a majority decides nothing.  Once it is connected again, what it proposed commits,
/// and only once.
#[tokio::test]
async fn a_cut_off_node_decides_nothing_and_its_proposal_commits_once_when_healed() -> Result<()> {
    let cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let cut = |cut: bool| {
        let cluster = &cluster;
        async move {
            for (at, peer) in [(2, 1), (2, 2), (0, 3), (1, 3)] {
                let body = format!("{{\"peer\": {peer}, \"cut\": {cut}}}");
                http(cluster.configs[at].http, "POST", "/links", &body).await?;
            }
            anyhow::Ok(())
        }
    };
    let mut other = cluster.backend(0).await?;
    let mut worker = cluster.worker(0, LogIndex(0)).await?;
    let mut alone = cluster.backend(2).await?;
    cut(true).await?;
    alone.propose(1, &[], b"alone").await?;
    wait_for("node 3 to miss its leader", || async {
        let status = cluster.status(2).await?;
        ensure!(status["leader"].is_null() && status["pending"] == 1, "{status}");
        Ok(())
    })
    .await?;
    let meanwhile = other.commit(1, &[], b"meanwhile").await?;
    cut(false).await?;
    let verdict = alone.verdict().await?;
    ensure!(verdict.outcome == VerdictOutcome::Commit && verdict.other == meanwhile.at, "{verdict:?}");
    let end = other.commit(2, &[], b"end").await?;
    ensure!(end.other == verdict.at);
    ensure!(worker.entry().await?.0 == verdict.at);
    cluster.stop().await
}

#[tokio::test]
async fn garbage_on_any_port_ends_that_connection_and_nothing_else() -> Result<()> {
    let cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let junk: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 100],
        vec![0; 100],
        [8u32.to_le_bytes().to_vec(), vec![7; 12]].concat(),
    ];
    for bytes in &junk {
        let mut stream = TcpStream::connect(cluster.configs[0].listen).await?;
        stream.write_all(bytes).await?;
        let mut rest = Vec::new();
        // The connection ends or is reset, with at most a TLS alert (type 21) before that, and no answer.
        if tokio::time::timeout(crate::common::PATIENCE, stream.read_to_end(&mut rest)).await?.is_ok() {
            ensure!(rest.is_empty() || (rest[0] == 21 && rest.len() == 7), "{rest:?}");
        }
    }
    // On the agent socket: nonsense in place of a hello, then nonsense after a good hello, then frames that the role
    // may not send.
    let path = cluster.configs[0].agent_socket();
    for bytes in &junk {
        let mut stream = tokio::net::UnixStream::connect(&path).await?;
        stream.write_all(bytes).await?;
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(crate::common::PATIENCE, stream.read_to_end(&mut rest)).await?;
        ensure!(rest.is_empty());
        let mut agent = cluster.backend(0).await?;
        agent.send_raw(bytes).await?;
        agent.ended().await?;
    }
    let mut agent = cluster.backend(0).await?;
    agent.position(LogIndex(1)).await?;
    agent.ended().await?;
    let mut agent = cluster.worker(0, LogIndex(0)).await?;
    agent.propose(1, &[], b"").await?;
    agent.ended().await?;
    // A backend sends half a proposal and disconnects.
    let mut agent = cluster.backend(0).await?;
    let whole = FromPostgres::Propose(onetrip_core::Entry::encode(&agent.txn(5), &[], &[1; 1000])).encode();
    agent.send_raw(&whole[..500]).await?;
    drop(agent);
    // Malformed, foreign and too large entries are refused, and the connection goes on.
    let mut agent = cluster.backend(0).await?;
    let mut bad_kind = FromPostgres::Propose(onetrip_core::Entry::encode(&agent.txn(6), &[], b"")).encode().to_vec();
    bad_kind[25] = 99;
    agent.send_raw(&bad_kind).await?;
    let verdict = agent.verdict().await?;
    ensure!(verdict.outcome == VerdictOutcome::Refused && verdict.message.contains("kind 99"), "{verdict:?}");
    let foreign = TxnId { node: onetrip_core::NodeId(2), ..agent.txn(6) };
    agent.send(&FromPostgres::Propose(onetrip_core::Entry::encode(&foreign, &[], b""))).await?;
    ensure!(agent.verdict().await?.outcome == VerdictOutcome::Refused);
    let verdict = agent.commit(7, &[], &vec![0; 2 << 20]).await?;
    ensure!(verdict.outcome == VerdictOutcome::Refused && verdict.txn == agent.txn(7), "{verdict:?}");
    ensure!(verdict.message.contains("1048576"), "{}", verdict.message);
    let verdict = agent.commit(8, &[], &vec![0; 1 << 19]).await?;
    ensure!(verdict.outcome == VerdictOutcome::Commit, "{verdict:?}");
    // Proposals that never end take up room from their first bytes on.  One more is refused until there is room again.
    let mut endless = Vec::new();
    for _ in 0..9 {
        let mut other = cluster.backend(0).await?;
        let whole =
            FromPostgres::Propose(onetrip_core::Entry::encode(&other.txn(50), &[], &vec![0; 900 << 10])).encode();
        other.send_raw(&whole[..100]).await?;
        endless.push(other);
    }
    let large = vec![0; 900 << 10];
    let sequence = std::cell::Cell::new(60);
    let outcome = || async {
        sequence.set(sequence.get() + 1);
        let mut more = cluster.backend(0).await?;
        anyhow::Ok(more.commit(sequence.get(), &[], &large).await?)
    };
    wait_for("a node without room", || async {
        let verdict = outcome().await?;
        ensure!(verdict.outcome == VerdictOutcome::Full && verdict.message.contains("8388608"), "{verdict:?}");
        Ok(())
    })
    .await?;
    ensure!(agent.commit(9, &[], b"small").await?.outcome == VerdictOutcome::Commit);
    drop(endless);
    wait_for("room again", || async {
        let verdict = outcome().await?;
        ensure!(verdict.outcome == VerdictOutcome::Commit, "{verdict:?}");
        Ok(())
    })
    .await?;
    cluster.stop().await
}

/// A node with one changed byte in its log or its checkpoint does not start, and says which file is damaged.
#[tokio::test]
async fn a_node_with_a_damaged_log_or_checkpoint_refuses_to_start() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let mut backend = cluster.backend(0).await?;
    for n in 1..10 {
        backend.commit(n, &[], &[5; 300]).await?;
    }
    cluster.stop_node(2).await?;
    let dir = cluster.configs[2].data_dir.clone();
    for file in [dir.join("log/0000000000000000.log"), dir.join("certifier.checkpoint")] {
        let good = std::fs::read(&file)?;
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 0x40;
        std::fs::write(&file, &bad)?;
        let error = cluster.start_node(2).expect_err("it must not start").to_string();
        ensure!(error.contains(file.file_name().and_then(|n| n.to_str()).context("name")?), "{error}");
        ensure!(error.contains("does not start"), "{error}");
        std::fs::write(&file, &good)?;
    }
    cluster.start_node(2)?;
    backend.commit(10, &[], b"").await?;
    cluster.stop().await
}

#[tokio::test]
async fn a_second_node_on_one_folder_and_a_taken_port_are_refused() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    let second = onetrip_node::Node::start(cluster.configs[0].clone(), None);
    ensure!(second.err().context("it started")?.to_string().contains("another node"));
    cluster.stop_node(0).await?;
    let taken = tokio::net::TcpListener::bind(cluster.configs[0].http).await?;
    let error = cluster.start_node(0).expect_err("the port is taken").to_string();
    ensure!(error.contains(&cluster.configs[0].http.to_string()), "{error}");
    drop(taken);
    cluster.start_node(0)?;
    cluster.stop().await
}

/// With a short window, checkpoints are frequent.  The log is cut below one only when every PostgreSQL is past it, and
/// a node that restarts from a checkpoint and the rest of the log certifies as the others do.
#[tokio::test]
async fn the_log_is_cut_below_what_every_postgres_has_and_a_restart_goes_on_from_the_checkpoint() -> Result<()> {
    let mut cluster = Cluster::prepare(0.0)?;
    for config in &mut cluster.configs {
        config.window_entries = 300;
        config.save()?;
    }
    for i in 0..3 {
        cluster.start_node(i)?;
    }
    cluster.preferred_leads().await?;
    // These workers report no position of their own accord, so that no node may cut its log.
    let mut workers = Vec::new();
    for i in 0..3 {
        workers.push(cluster.worker(i, LogIndex(0)).await?);
    }
    let mut backend = cluster.backend(0).await?;
    let first = backend.commit(1, &[update(1, LogIndex(0))], b"").await?;
    let mut last = first.clone();
    for n in 2..=2500 {
        last = backend.commit(n, &[update(n, last.at)], &vec![n as u8; 60_000]).await?;
    }
    wait_for("checkpoints", || async {
        for i in 0..3 {
            let status = cluster.status(i).await?;
            ensure!(status["checkpoint"].as_u64() > Some(2_200) && status["log_first"] == 1, "{status}");
        }
        Ok(())
    })
    .await?;
    for worker in &mut workers {
        worker.position(last.at).await?;
    }
    // A segment is full after some 1,100 of these entries, and 1,000 stay in any case.
    wait_for("the cut", || async {
        for i in 0..3 {
            let status = cluster.status(i).await?;
            ensure!(status["log_first"].as_u64() > Some(1), "{status}");
        }
        Ok(())
    })
    .await?;
    cluster.stop_node(1).await?;
    let during = backend.commit(5_000, &[update(9, last.at)], b"").await?;
    cluster.start_node(1)?;
    let mut other = cluster.backend(1).await?;
    let lost = other.commit(1, &[update(9, last.at)], b"").await?;
    ensure!((lost.outcome, lost.other) == (VerdictOutcome::Conflict, during.at), "{lost:?}");
    let old = other.commit(2, &[update(9, first.at)], b"").await?;
    ensure!(old.outcome == VerdictOutcome::Window && old.other > first.at, "{old:?}");
    cluster.stop().await
}
