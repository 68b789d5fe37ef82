//! What a node says of itself (`GET /status`), and what is wrong with it in words that tell what to do.

use crate::agent::DeskStatus;
use crate::archive::ArchiveReport;
use crate::config::NodeConfig;
use crate::postgres::{PostgresState, ServerState};
use crate::transport::PeerState;
use onetrip_core::consensus::{Role, Status as RaftStatus};
use onetrip_core::{LogIndex, NodeId, RegionId, Term};
use serde::Serialize;
use std::collections::BTreeMap;

/// The core thread's part.
#[derive(Clone, Debug)]
pub struct CoreStatus {
    pub raft: RaftStatus,
    pub decided: LogIndex,
    pub last_committed: LogIndex,
    pub log_first: LogIndex,
    pub checkpoint: LogIndex,
    /// As the other members reported it.
    pub durable_of: BTreeMap<NodeId, LogIndex>,
    pub desk: DeskStatus,
    pub archive: Option<ArchiveReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct StatusReport {
    pub cluster: String,
    pub node: NodeId,
    pub region: RegionId,
    pub role: Role,
    pub term: Term,
    pub leader: Option<Leader>,
    /// Raft commit index.
    pub commit: LogIndex,
    pub log_first: LogIndex,
    pub log_last: LogIndex,
    /// The last log index that this node has certified.
    pub decided: LogIndex,
    /// The last committed transaction.
    pub last_committed: LogIndex,
    pub checkpoint: LogIndex,
    /// Of PostgreSQL; absent until its apply worker has said so.
    pub applied: Option<LogIndex>,
    pub durable: Option<LogIndex>,
    pub apply_worker: bool,
    /// Entries that wait for the apply worker's credit.
    pub apply_queue: usize,
    pub backends: usize,
    pub pending: usize,
    pub peers: Vec<PeerReport>,
    pub postgres: Option<PostgresState>,
    pub archive: Option<ArchiveReport>,
    pub problems: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Leader {
    pub node: NodeId,
    pub region: RegionId,
}

#[derive(Clone, Debug, Serialize)]
pub struct PeerReport {
    #[serde(flatten)]
    pub state: PeerState,
    /// On the leader: how far its log is known to match.
    #[serde(rename = "match")]
    pub matched: Option<LogIndex>,
    pub durable: Option<LogIndex>,
}

pub fn report(
    config: &NodeConfig,
    core: CoreStatus,
    peers: Vec<PeerState>,
    postgres: Option<PostgresState>,
) -> StatusReport {
    let problems = problems(config, &core, &peers, postgres.as_ref());
    let leadership = core.raft.leadership;
    let matched: BTreeMap<_, _> = core.raft.matched.iter().copied().collect();
    let peers = peers.into_iter().map(|state| PeerReport {
        matched: matched.get(&state.id).copied(),
        durable: core.durable_of.get(&state.id).copied(),
        state,
    });
    StatusReport {
        cluster: config.cluster.clone(),
        node: config.node,
        region: config.region.clone(),
        role: leadership.role,
        term: leadership.term,
        leader: leadership
            .leader
            .map(|node| Leader { node, region: config.region_of(node).cloned().unwrap_or_default() }),
        commit: core.raft.raft_commit,
        log_first: core.log_first,
        log_last: core.raft.last,
        decided: core.decided,
        last_committed: core.last_committed,
        checkpoint: core.checkpoint,
        applied: core.desk.applied,
        durable: core.desk.durable,
        apply_worker: core.desk.worker_connected,
        apply_queue: core.desk.worker_queue,
        backends: core.desk.backends,
        pending: core.desk.pending,
        peers: peers.collect(),
        postgres,
        archive: core.archive,
        problems,
    }
}

fn problems(
    config: &NodeConfig,
    core: &CoreStatus,
    peers: &[PeerState],
    postgres: Option<&PostgresState>,
) -> Vec<String> {
    let mut problems = Vec::new();
    if core.raft.leadership.leader.is_none() {
        let reachable = 1 + peers.iter().filter(|p| p.connected).count();
        let majority = config.members.len() / 2 + 1;
        problems.push(if reachable < majority {
            format!("no leader: {reachable} of {majority} needed members are reachable; start the others or mend the network")
        } else {
            "no leader: an election is under way".into()
        });
    }
    for peer in peers.iter().filter(|p| !p.connected) {
        let why = if peer.cut { "the link was cut by hand" } else { peer.trouble.as_deref().unwrap_or("connecting") };
        problems.push(format!("member {} in {} is not connected: {why}", peer.id, peer.region));
    }
    for (id, matched) in core.raft.matched.iter().filter(|(_, m)| m.next() < core.log_first) {
        // 0 until a new leader has heard from it, which is no reason for alarm.
        if matched.0 > 0 || core.durable_of.get(id).is_some_and(|d| d.next() < core.log_first) {
            problems.push(format!(
                "member {id} needs log entries from {}, which were cut at {}: it must be made anew from another node",
                matched.next(),
                core.log_first
            ));
        }
    }
    problems.extend(core.desk.problem.clone());
    problems.extend(core.archive.iter().flat_map(|a| &a.problem).map(|problem| format!("archive: {problem}")));
    if let Some(postgres) = postgres {
        if let Some(problem) = &postgres.problem {
            problems.push(format!("PostgreSQL: {problem}"));
        } else if postgres.state == ServerState::Ready && !core.desk.worker_connected {
            problems.push(
                "PostgreSQL's apply worker is not connected: nothing of other regions is applied; see its log".into(),
            );
        }
    }
    problems
}
