//! A transaction that nobody will propose any more gets an outcome, which is the same in each region and does not
//! change.

use crate::common::{update, wait_for, Agent, Cluster, INCARNATION};
use anyhow::{bail, ensure, Result};
use onetrip_core::agent::{FromPostgres, OutcomeState, Role, ToPostgres, VerdictOutcome};
use onetrip_core::{LogIndex, TxnId};

/// Waits until every region gives this final answer.
async fn all_say(backends: &mut [Agent], txn: TxnId, want: (OutcomeState, LogIndex)) -> Result<()> {
    for backend in backends {
        loop {
            let said = backend.outcome(FromPostgres::Outcome(txn)).await?;
            if said == want {
                break;
            }
            ensure!(said.0 == OutcomeState::NotSoFar, "{txn} is {said:?} and should be {want:?}");
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// A transaction that another region settles before it is proposed is aborted everywhere, and when it is proposed after
/// all it does not commit.  One that is settled after it has committed stays committed.
#[tokio::test]
async fn a_settled_transaction_is_aborted_unless_it_was_in_the_log_before() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let mut backends = Vec::new();
    for i in 0..3 {
        backends.push(cluster.backend(i).await?);
    }
    let (early, late) = (backends[1].txn(1), backends[1].txn(2));
    let settled = backends[2].outcome(FromPostgres::Settle(early)).await?;
    ensure!(settled.0 == OutcomeState::Aborted, "{settled:?}");
    all_say(&mut backends, early, settled).await?;
    let verdict = backends[1].commit(1, &[update(7, LogIndex(0))], b"x").await?;
    ensure!(verdict.outcome == VerdictOutcome::Cancelled && verdict.at == settled.1, "{verdict:?}");
    // The cancelled transaction took no key.
    let verdict = backends[1].commit(2, &[update(7, LogIndex(0))], b"y").await?;
    ensure!(verdict.outcome == VerdictOutcome::Commit, "{verdict:?}");
    let committed = (OutcomeState::Committed, verdict.at);
    all_say(&mut backends, late, committed).await?;
    ensure!(backends[0].outcome(FromPostgres::Settle(late)).await? == committed);
    drop(backends);
    // The outcomes are still the same after every node has been restarted.
    for i in 0..3 {
        cluster.stop_node(i).await?;
    }
    let mut backends = Vec::new();
    for i in 0..3 {
        cluster.start_node(i)?;
    }
    for i in 0..3 {
        backends.push(cluster.backend(i).await?);
    }
    all_say(&mut backends, early, settled).await?;
    all_say(&mut backends, late, committed).await?;
    cluster.stop().await
}

/// A backend asks to have a transaction settled while there is no majority; it gets the outcome once there is one.
#[tokio::test]
async fn a_settlement_without_a_majority_is_decided_once_there_is_one() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    for i in [1, 2] {
        cluster.stop_node(i).await?;
    }
    let mut backend = cluster.backend(0).await?;
    let txn = backend.txn(5);
    backend.send(&FromPostgres::Settle(txn)).await?;
    let mut other = cluster.backend(0).await?;
    ensure!(other.outcome(FromPostgres::Outcome(txn)).await?.0 == OutcomeState::NotSoFar);
    cluster.start_node(1)?;
    let settled = match backend.receive().await? {
        ToPostgres::OutcomeIs { state, at, .. } => (state, at),
        other => bail!("{other:?} instead of an outcome"),
    };
    ensure!(settled.0 == OutcomeState::Aborted, "{settled:?}");
    all_say(&mut [other, cluster.backend(1).await?], txn, settled).await?;
    cluster.stop().await
}

/// Goal: an apply worker gets both an entry that is larger than all that may wait for it, and the answer to a question
/// that it asks before it reads that.  It asks on every connection while an outcome is open.
#[tokio::test]
async fn a_question_behind_a_large_entry_is_answered() -> Result<()> {
    let mut cluster = Cluster::prepare_in(&["r1"], 0.0)?;
    let config = &mut cluster.configs[0];
    config.max_entry_bytes = 128 << 20;
    config.memory.to_server_bytes = 8 << 20;
    config.save()?;
    cluster.start_node(0)?;
    cluster.preferred_leads().await?;
    let mut backend = cluster.backend(0).await?;
    let large = vec![7; 100 << 20];
    let verdict = backend.commit(1, &[], &large).await?;
    let mut worker = cluster.worker(0, LogIndex(0)).await?;
    let open = worker.txn(2);
    worker.send(&FromPostgres::Outcome(open)).await?;
    // By the time that another connection has its answer, the node has most likely looked at the question.
    backend.outcome(FromPostgres::Outcome(open)).await?;
    let (at, _, _, write_set) = worker.entry().await?;
    ensure!(at == verdict.at && write_set == large);
    match worker.receive().await? {
        ToPostgres::OutcomeIs { txn, state: OutcomeState::NotSoFar, .. } => ensure!(txn == open),
        other => bail!("{other:?} instead of an outcome"),
    }
    cluster.stop().await
}

/// Once a PostgreSQL has been started anew, what its earlier incarnation had not proposed is aborted, and what that had
/// committed stays committed.
#[tokio::test]
async fn a_new_incarnation_ends_what_the_earlier_one_left_open() -> Result<()> {
    let cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let (folder, node) = (&cluster.configs[1].data_dir, cluster.configs[1].node);
    let worker = |incarnation| Agent::connect_as(folder, node, Role::ApplyWorker, LogIndex(0), incarnation);
    let first = worker(INCARNATION).await?;
    let mut backend = cluster.backend(1).await?;
    let (committed, open) = (backend.txn(1), backend.txn(2));
    let verdict = backend.commit(1, &[], b"x").await?;
    ensure!(backend.outcome(FromPostgres::Outcome(open)).await?.0 == OutcomeState::NotSoFar);
    drop((first, backend));
    let _second = worker(INCARNATION + 1).await?;
    let mut asked = [cluster.backend(0).await?, cluster.backend(1).await?, cluster.backend(2).await?];
    let mut ended = None;
    for backend in &mut asked {
        let backend = tokio::sync::Mutex::new(backend);
        let said = wait_for("the end of the first incarnation", || async {
            let said = backend.lock().await.outcome(FromPostgres::Outcome(open)).await?;
            ensure!(said.0 == OutcomeState::Aborted, "{said:?}");
            Ok(said)
        })
        .await?;
        ensure!(*ended.get_or_insert(said) == said, "{said:?} and {ended:?}");
    }
    all_say(&mut asked, committed, (OutcomeState::Committed, verdict.at)).await?;
    // Nothing is known yet of the transactions of the present incarnation.
    let now = TxnId { incarnation: INCARNATION + 1, ..open };
    ensure!(asked[0].outcome(FromPostgres::Outcome(now)).await?.0 == OutcomeState::NotSoFar);
    cluster.stop().await
}

/// The same holds for an incarnation that the log has never heard of, because its node had no leader and was restarted
/// as well.
#[tokio::test]
async fn an_incarnation_that_came_and_went_without_a_leader_leaves_nothing_open() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    for i in [0, 2] {
        cluster.stop_node(i).await?;
    }
    let (folder, node) = (cluster.configs[1].data_dir.clone(), cluster.configs[1].node);
    let worker = |incarnation| Agent::connect_as(&folder, node, Role::ApplyWorker, LogIndex(0), incarnation);
    let first = worker(INCARNATION).await?;
    let open = cluster.backend(1).await?.txn(1);
    drop(first);
    cluster.stop_node(1).await?;
    for i in 0..3 {
        cluster.start_node(i)?;
    }
    let _second = worker(INCARNATION + 1).await?;
    let backend = tokio::sync::Mutex::new(cluster.backend(0).await?);
    wait_for("the end of the first incarnation", || async {
        let said = backend.lock().await.outcome(FromPostgres::Outcome(open)).await?;
        ensure!(said.0 == OutcomeState::Aborted, "{said:?}");
        Ok(())
    })
    .await?;
    cluster.stop().await
}
