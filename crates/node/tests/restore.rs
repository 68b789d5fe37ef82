//! A restored log is decided as it was before, even across a change of the members, and a node goes on from it.

use crate::common::{update, wait_for, Agent, Cluster};
use anyhow::{ensure, Result};
use onetrip_core::agent::{FromPostgres, OutcomeState, Role, VerdictOutcome};
use onetrip_core::{Checkpoint, LogIndex, NodeId, Term, TxnId};
use onetrip_node::archive::{Reader, Stored};
use onetrip_node::restore::{Goal, Restore, RestoreError, Restored, Source};
use onetrip_node::{AdminRequest, ArchiveConfig, Node, NodeConfig};
use std::path::Path;

/// An archive as the only source of entries.
struct Archive(Reader);

#[derive(Debug)]
struct Failed(String);

impl From<RestoreError> for Failed {
    fn from(e: RestoreError) -> Failed {
        Failed(e.to_string())
    }
}

impl Source<Failed> for Archive {
    fn next(&mut self, (last, _): (LogIndex, Term)) -> Result<Option<Stored>, Failed> {
        self.0.entry(last.next()).map_err(|e| Failed(e.to_string()))
    }
    fn quiet_until_ms(&mut self, _: LogIndex) -> Result<u64, Failed> {
        Ok(self.0.end().map_err(|e| Failed(e.to_string()))?.1)
    }
    fn earliest_after(&mut self, at: LogIndex) -> Option<(LogIndex, u64)> {
        self.0.earliest_after(at)
    }
    fn decided_within(&mut self, at: LogIndex) -> (u64, u64) {
        self.0.decided_within(at).unwrap().unwrap()
    }
    fn progress(&mut self, _: LogIndex) {}
}

fn restore(cluster: &Cluster, archive: &Path, folder: &Path, least: LogIndex, goal: Goal) -> Result<Restored, Failed> {
    let config = &cluster.configs[0];
    std::fs::create_dir(folder).unwrap();
    let restore = Restore {
        folder,
        limits: config.limits(),
        region: "r9".into(),
        address: "127.0.0.1:1".into(),
        sequence_slot: 0,
        checkpoint: Checkpoint::bootstrap(config.bootstrap_members(), config.limits()).encode(),
        least,
        goal,
    };
    restore.run(&mut Archive(Reader::open(archive).unwrap()))
}

/// Starts the restored node as a cluster of its own.
fn start(cluster: &Cluster, folder: &Path, restored: &Restored) -> Result<Node> {
    let free = || std::net::TcpListener::bind("127.0.0.1:0")?.local_addr();
    let config = NodeConfig {
        cluster: "restored".into(),
        node: restored.node,
        region: "r9".into(),
        preferred_leader: "r9".into(),
        listen: free()?,
        http: free()?,
        tls: false,
        one_way_ms: Default::default(),
        members: Vec::new(),
        archive: None,
        memory: Default::default(),
        data_dir: folder.to_owned(),
        ..cluster.configs[0].clone()
    };
    config.save()?;
    Ok(Node::start(NodeConfig::load(folder)?, None)?)
}

async fn outcome(agent: &mut Agent, txn: TxnId) -> Result<(OutcomeState, LogIndex)> {
    agent.outcome(FromPostgres::Outcome(txn)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_log_is_decided_as_it_was_and_goes_on() -> Result<()> {
    let mut cluster = Cluster::prepare(0.0)?;
    let folder = tempfile::tempdir()?;
    let archive = folder.path().join("archive");
    std::fs::create_dir(&archive)?;
    cluster.configs[0].archive = Some(ArchiveConfig { folder: archive.clone() });
    cluster.configs[0].save()?;
    for i in 0..3 {
        cluster.start_node(i)?;
    }
    cluster.preferred_leads().await?;

    // Transactions that commit and that abort, from a member that stays and from one that leaves.
    let (mut a, mut c) = (cluster.backend(0).await?, cluster.backend(2).await?);
    let mut decided = Vec::new();
    for n in 1..=10 {
        let own = a.commit(n, &[update(n, LogIndex(0))], b"from a").await?;
        // So many keys that its node does not see at once that it has lost.
        let others = (0..1_000).map(|k| update(10_000 * n + k, LogIndex(0)));
        let keys: Vec<_> = [update(n, LogIndex(0))].into_iter().chain(others).collect();
        let late = c.commit(n, &keys, b"from c").await?;
        assert_eq!((own.outcome, late.outcome), (VerdictOutcome::Commit, VerdictOutcome::Conflict));
        decided.push((a.txn(n), OutcomeState::Committed, own.at));
        decided.push((c.txn(n), OutcomeState::Aborted, late.at));
    }
    let with_c = c.commit(11, &[update(200, LogIndex(0))], b"from c").await?;
    decided.push((c.txn(11), OutcomeState::Committed, with_c.at));
    let node = cluster.nodes[0].as_ref().expect("it runs");
    node.admin(AdminRequest::Remove { node: NodeId(3) }).await.map_err(anyhow::Error::msg)?;
    let last = a.commit(11, &[update(201, LogIndex(0))], b"without c").await?;
    decided.push((a.txn(11), OutcomeState::Committed, last.at));
    wait_for("the archive", || async {
        let archived = cluster.status(0).await?["archive"]["archived"].as_u64();
        ensure!(archived >= Some(last.at.0), "archived: {archived:?}");
        Ok(())
    })
    .await?;

    let end = folder.path().join("end");
    let restored = restore(&cluster, &archive, &end, last.at, Goal::End).expect("restored");
    // The ids 1 to 3 are in use in the original cluster.
    assert_eq!(restored.node, NodeId(4));
    assert!(restored.index >= last.at && restored.time_ms.is_some(), "{restored:?}");
    let node = start(&cluster, &end, &restored)?;
    let mut agent = Agent::connect(&end, restored.node, Role::Backend, LogIndex(0)).await?;
    for (txn, state, at) in &decided {
        let found = outcome(&mut agent, *txn).await?;
        assert_eq!(found, (*state, *at), "{txn}");
    }
    // The same keys are taken as before, and the log goes on.
    let late = agent.commit(1, &[update(200, LogIndex(0))], b"late").await?;
    assert_eq!((late.outcome, late.other), (VerdictOutcome::Conflict, with_c.at));
    let fresh = agent.commit(2, &[update(200, last.at)], b"fresh").await?;
    assert!(fresh.outcome == VerdictOutcome::Commit && fresh.at > restored.index, "{fresh:?}");
    node.stop().await?;

    // Up to a position before the change of the members.
    let early = folder.path().join("early");
    let at = decided[9].2;
    let restored = restore(&cluster, &archive, &early, LogIndex(1), Goal::Position(at)).expect("restored");
    assert_eq!((restored.node, restored.index), (NodeId(4), at));
    let node = start(&cluster, &early, &restored)?;
    let mut agent = Agent::connect(&early, restored.node, Role::Backend, LogIndex(0)).await?;
    assert_eq!(outcome(&mut agent, decided[9].0).await?, (OutcomeState::Aborted, at));
    assert_ne!(outcome(&mut agent, decided[10].0).await?.0, OutcomeState::Committed);
    node.stop().await?;

    let refused =
        |name: &str, least, goal| restore(&cluster, &archive, &folder.path().join(name), least, goal).unwrap_err().0;
    let far = LogIndex(last.at.0 + 1_000);
    assert!(refused("far", LogIndex(1), Goal::Position(far)).contains("is beyond it"));
    assert!(refused("late", LogIndex(1), Goal::Time(u64::MAX)).contains("is complete only until"));
    assert!(refused("short", far, Goal::End).contains("the backup is damaged"));
    cluster.nodes[2] = None;
    cluster.stop().await
}
