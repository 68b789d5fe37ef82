//! What a node says of itself (`GET /status`).

mod problems;

use crate::archive::ArchiveReport;
use crate::config::NodeConfig;
use crate::postgres::PostgresState;
use crate::space::Space;
use crate::transport::PeerState;
use onetrip_core::consensus::{Role, Status as RaftStatus};
use onetrip_core::placement::Place;
use onetrip_core::replica::LockSession;
use onetrip_core::router::RouterStatus;
use onetrip_core::row_locks::InLine;
use onetrip_core::{
    level, Level, LockMode, LogIndex, Member, MemberRole, Members, NodeId, PreferredLeader, RegionId, Term, TxnId,
};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use time::OffsetDateTime;
#[cfg(test)]
use {onetrip_core::consensus::Leadership, onetrip_core::Conf};

/// A member that is within one of these counts as having caught up.
const CAUGHT_UP_ENTRIES: u64 = 1_000;
const CAUGHT_UP_TIME: Duration = Duration::from_secs(2);
/// A disk that syncs nothing for longer is a problem.
const DISK_SILENT_MAX: Duration = Duration::from_secs(1);
/// An election that takes longer is a problem.
pub(crate) const ELECTION_MAX: Duration = Duration::from_secs(5);
/// A member that is connected and says nothing for longer is a problem.
const MEMBER_SILENT_MAX: Duration = Duration::from_secs(5);

/// The core thread's part.
#[derive(Clone, Debug)]
pub struct CoreStatus {
    pub raft: RaftStatus,
    /// For how long the log's disk has synced nothing of what was written.
    pub disk_silent: Duration,
    pub decided: LogIndex,
    /// The transaction whose parts arrive, and how many bytes of it have.
    pub arriving: Option<(TxnId, usize)>,
    /// Transactions that are prepared and that nobody has ended, and the entry of the oldest.
    pub prepared: usize,
    pub prepared_since: Option<LogIndex>,
    pub last_committed: LogIndex,
    pub log_first: LogIndex,
    /// A PostgreSQL that shows this can be brought on by this node.
    pub feedable_from: LogIndex,
    pub checkpoint: LogIndex,
    pub log_bytes: u64,
    /// What it may have before it is cut although another member needs it.
    pub log_bytes_max: u64,
    pub members: Arc<Members>,
    /// This node's PostgreSQL, and the others' as they reported it.
    pub own: Option<Position>,
    pub positions: BTreeMap<NodeId, Position>,
    /// For how long other members have not said how far they are, which they do twice a second.
    pub silent: BTreeMap<NodeId, Duration>,
    pub router: RouterStatus,
    /// Places for the leader, the best first; unknown while a round trip has not been measured.
    pub places: Option<Vec<Place>>,
    pub has_lease: bool,
    /// Sessions here with row locks; and on the leader, who waits in line.
    pub lock_sessions: Vec<LockSessionReport>,
    pub lock_line: Vec<InLineReport>,
    pub leader_settled: bool,
    pub archive: Option<ArchiveReport>,
    /// For how long this node has known no leader.
    pub leaderless: Option<Duration>,
    /// The round trips that the members report, the lower value of both ends.
    pub round_trips: BTreeMap<(NodeId, NodeId), Duration>,
}

#[cfg(test)]
impl CoreStatus {
    /// Of a node that knows no leader and has done nothing yet.
    pub fn of(members: Arc<Members>) -> CoreStatus {
        let leadership = Leadership { role: Role::Follower, term: Term(0), leader: None };
        let zero = LogIndex::ZERO;
        let raft = RaftStatus {
            leadership,
            raft_commit: zero,
            last: zero,
            matched: Vec::new(),
            conf: Conf::default(),
            disk_silent_ticks: 0,
        };
        CoreStatus {
            raft,
            disk_silent: Duration::ZERO,
            decided: zero,
            arriving: None,
            prepared: 0,
            prepared_since: None,
            last_committed: zero,
            log_first: LogIndex(1),
            feedable_from: zero,
            checkpoint: zero,
            log_bytes: 0,
            log_bytes_max: 0,
            members,
            own: None,
            positions: BTreeMap::new(),
            silent: BTreeMap::new(),
            router: RouterStatus::default(),
            places: None,
            has_lease: false,
            lock_sessions: Vec::new(),
            lock_line: Vec::new(),
            leader_settled: false,
            archive: None,
            leaderless: None,
            round_trips: BTreeMap::new(),
        }
    }
}

/// What is known outside of the core thread.
pub struct Surroundings {
    pub peers: Vec<PeerState>,
    pub postgres: Option<PostgresState>,
    /// Seconds since 1970.
    pub certificate_good_until_s: Option<u64>,
    pub authority_good_until_s: Option<u64>,
    pub http_certificate_good_until_s: Option<u64>,
    pub up: Duration,
    pub disks: Vec<Space>,
    /// What the disks are needed for that do not say how much room they have.
    pub silent_disks: Vec<&'static str>,
    /// What PostgreSQL has counted, if it was asked; or why it does not tell.
    pub counts: Option<Arc<Result<Value, String>>>,
}

/// How far a PostgreSQL is, and how far it was behind what had been decided here when it reported that.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    pub applied: LogIndex,
    pub durable: LogIndex,
    pub lag_entries: u64,
    /// How long ago the first entry that it did not show had been decided.
    pub lag: Duration,
    pub heard: Instant,
}

/// How many bytes of a transaction the log has so far.
#[derive(Clone, Debug, Serialize)]
pub struct Arriving {
    pub transaction: String,
    pub bytes: usize,
}

#[derive(Clone, Debug, Serialize)]
pub struct StatusReport {
    pub cluster: String,
    /// Of this program.
    pub version: &'static str,
    /// The format level in force, and the highest that this program knows.
    pub level: Level,
    pub level_known: Level,
    /// The highest that the library knows which this node's PostgreSQL has loaded, if it was asked; one that is older
    /// than levels knows none.
    pub level_of_library: Option<Level>,
    pub up_s: f64,
    pub node: NodeId,
    pub region: RegionId,
    pub role: Role,
    pub term: Term,
    pub leader: Option<Leader>,
    /// Raft commit index.
    pub commit: LogIndex,
    pub log_first: LogIndex,
    pub log_last: LogIndex,
    pub log_bytes: u64,
    /// For how long the log's disk has synced nothing of what was written, if that is a problem.  Nothing commits in
    /// this region meanwhile.
    pub disk_silent_ms: Option<f64>,
    /// The last log index that this node has certified.
    pub decided: LogIndex,
    /// A transaction of more than 1 MiB that arrives in parts.
    pub arriving: Option<Arriving>,
    /// Transactions that are prepared and that nobody has ended, and the entry of the oldest.
    pub prepared: usize,
    pub prepared_since: Option<LogIndex>,
    /// The last committed transaction.
    pub last_committed: LogIndex,
    pub checkpoint: LogIndex,
    /// Of PostgreSQL; absent until its apply worker has reported it.
    pub applied: Option<LogIndex>,
    pub durable: Option<LogIndex>,
    /// How far this node's PostgreSQL is behind what is decided here.
    pub lag_entries: Option<u64>,
    pub lag_ms: Option<f64>,
    pub apply_worker: bool,
    /// The entry that PostgreSQL cannot apply, however long it tries.
    pub stuck_at: Option<LogIndex>,
    /// The log has been cut above what PostgreSQL shows, or that one has forgotten its position: nothing but a copy
    /// brings it on.
    #[serde(skip)]
    pub needs_copy: bool,
    /// Entries that wait for the apply worker's credit.
    pub apply_queue: usize,
    pub backends: usize,
    pub pending: usize,
    pub peers: Vec<PeerReport>,
    /// All members, this node too, by id.
    pub members: Vec<MemberReport>,
    /// Version of the table of members.
    pub members_version: u64,
    pub preferred_leader: RegionId,
    /// `auto`, or the region that an operator has chosen.
    pub preferred_by: PreferredLeader,
    /// The regions that hold read leases; and whether this node could answer a fresh read now without asking anybody.
    pub lease_regions: Vec<RegionId>,
    pub has_lease: bool,
    /// Sessions of this node with row locks at the leader (`onetrip.concurrency = locking`), those that wait in line
    /// first; and on the leader, who waits for which lock behind whom.  The first hundred of each.
    pub lock_sessions: Vec<LockSessionReport>,
    pub lock_line: Vec<InLineReport>,
    /// The leader is where it belongs, and if the cluster chooses that, no other place is better.
    pub leader_settled: bool,
    /// How long a COMMIT takes with the leader in each place, by measured round trips; the best first.  Absent while a
    /// round trip has not been measured.
    pub leader_places: Option<Vec<PlaceReport>>,
    /// The Raft configuration is changing from one set of voters to another.
    pub joint: bool,
    pub quorum: Quorum,
    pub postgres: Option<PostgresState>,
    /// What PostgreSQL has counted since it started; absent where it was not asked.
    pub counts: Option<Value>,
    /// Why it was asked and did not tell.
    pub no_counts: Option<String>,
    pub archive: Option<ArchiveReport>,
    pub certificate: Option<Certificate>,
    /// That of the cluster's authority.
    pub authority: Option<Certificate>,
    /// The HTTP port's own, if it has one.
    pub http_certificate: Option<Certificate>,
    pub disks: Vec<Space>,
    pub problems: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockSessionReport {
    pub transaction: String,
    pub pid: Option<u32>,
    /// Locks that it has.
    pub has: usize,
    /// If it waits in line: for so many locks of rows of this table, and for how long.
    pub waits_for: Option<usize>,
    pub table: Option<String>,
    pub waiting_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InLineReport {
    pub transaction: String,
    /// As in `onetrip.pending_keys()`.
    pub key: i64,
    pub mode: &'static str,
    pub behind: String,
}

impl LockSessionReport {
    pub fn of(session: LockSession, tick: Duration) -> LockSessionReport {
        let (waits_for, table, waiting_ms) = match session.waits {
            Some((table, locks, ticks)) => (Some(locks), Some(table), Some(ticks * tick.as_millis() as u64)),
            None => (None, None, None),
        };
        LockSessionReport {
            transaction: session.txn.to_string(),
            pid: session.pid,
            has: session.has,
            waits_for,
            table,
            waiting_ms,
        }
    }
}

impl From<InLine> for InLineReport {
    fn from(line: InLine) -> InLineReport {
        let mode = match line.mode {
            LockMode::KeyShare => "KEY SHARE",
            LockMode::Share => "SHARE",
            LockMode::NoKeyUpdate => "NO KEY UPDATE",
            LockMode::Update => "UPDATE",
        };
        InLineReport { transaction: line.txn.to_string(), key: line.key as i64, mode, behind: line.behind.to_string() }
    }
}

/// How many voters may fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Quorum {
    pub voters: usize,
    /// How many of them this node hears, itself included if it votes.
    pub reachable: usize,
    /// How many a commit needs.
    pub majority: usize,
    /// How many of those that are reachable may fail, and commits go on; below zero: so many are missing.  While the
    /// voters change, the lower value of both sets.
    pub may_fail: i64,
}

/// How long one is good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Certificate {
    /// The last day (UTC) on which peers accept it all day.
    pub last_day: String,
    pub days_left: i64,
    #[serde(skip)]
    pub left_s: i64,
}

fn certificate(good_until_s: u64) -> Certificate {
    let left = time::Duration::seconds(good_until_s as i64) - (OffsetDateTime::now_utc() - OffsetDateTime::UNIX_EPOCH);
    // The last second of a day that is complete.
    let until = OffsetDateTime::from_unix_timestamp(good_until_s as i64 + 1).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let last = until.date().previous_day().unwrap_or(until.date());
    let last_day = format!("{:04}-{:02}-{:02}", last.year(), u8::from(last.month()), last.day());
    Certificate { last_day, days_left: left.whole_days(), left_s: left.whole_seconds() }
}

#[derive(Clone, Debug, Serialize)]
pub struct PlaceReport {
    pub node: NodeId,
    pub region: RegionId,
    /// Weighted by where commits came from lately.
    pub mean_ms: f64,
    pub commit_ms: Vec<CommitReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct CommitReport {
    pub node: NodeId,
    pub region: RegionId,
    pub ms: f64,
}

fn place_report(place: &Place, members: &Members) -> PlaceReport {
    let ms = |us: u64| us as f64 / 1_000.0;
    let of = |&(node, us): &(NodeId, u64)| {
        let region = members.region_of(node).cloned().unwrap_or_default();
        CommitReport { node, region, ms: ms(us) }
    };
    let (node, region, mean_ms) = (place.node, place.region.clone(), ms(place.mean_us));
    PlaceReport { node, region, mean_ms, commit_ms: place.commit_us.iter().map(of).collect() }
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

/// One row of the table of members, with what is known of it here.
#[derive(Clone, Debug, Serialize)]
pub struct MemberReport {
    pub id: NodeId,
    pub region: RegionId,
    pub address: String,
    /// What it is meant to be.
    pub role: MemberRole,
    /// It votes.  A member that is meant to vote and does not is catching up.
    pub voter: bool,
    pub slot: Option<u32>,
    pub replaces: Option<NodeId>,
    pub leads: bool,
    pub this_node: bool,
    pub connected: bool,
    pub rtt_ms: Option<f64>,
    /// For how long it has said nothing, if it has ever said something to this node and is not this node.
    pub silent_ms: Option<f64>,
    /// Of its PostgreSQL.
    pub applied: Option<LogIndex>,
    pub durable: Option<LogIndex>,
    pub lag_entries: Option<u64>,
    pub lag_ms: Option<f64>,
    /// It shows nearly all, and votes if it is meant to.
    pub caught_up: bool,
}

fn member_report(m: &Member, config: &NodeConfig, core: &CoreStatus, peers: &[PeerReport]) -> MemberReport {
    let this_node = m.id == config.node;
    let peer = peers.iter().find(|p| p.state.id == m.id);
    let position = if this_node { core.own } else { core.positions.get(&m.id).copied() };
    let near = position.is_some_and(|p| p.lag_entries <= CAUGHT_UP_ENTRIES || p.lag <= CAUGHT_UP_TIME);
    MemberReport {
        id: m.id,
        region: m.region.clone(),
        address: m.address.clone(),
        role: m.role,
        voter: m.voter,
        slot: m.slot,
        replaces: m.replaces,
        leads: core.raft.leadership.leader == Some(m.id),
        this_node,
        connected: this_node || peer.is_some_and(|p| p.state.connected),
        rtt_ms: peer.and_then(|p| p.state.rtt_ms),
        silent_ms: core.silent.get(&m.id).copied().map(millis),
        applied: position.map(|p| p.applied),
        durable: position.map(|p| p.durable),
        lag_entries: position.map(|p| p.lag_entries),
        lag_ms: position.map(|p| millis(p.lag)),
        caught_up: near && m.voter == m.role.votes(),
    }
}

pub(crate) fn millis(d: Duration) -> f64 {
    d.as_secs_f64() * 1000.0
}

/// Whether a member counts as reachable: one that hangs stays connected.  `silent`: [`CoreStatus::silent`].
pub(crate) fn is_there(id: NodeId, me: NodeId, silent: &BTreeMap<NodeId, Duration>, peers: &[PeerState]) -> bool {
    let is_silent = silent.get(&id).is_some_and(|silent| *silent > MEMBER_SILENT_MAX);
    id == me || peers.iter().any(|p| p.id == id && p.connected) && !is_silent
}

fn quorum(config: &NodeConfig, core: &CoreStatus, peers: &[PeerState]) -> Quorum {
    let conf = &core.raft.conf;
    let of = |voters: &Vec<NodeId>| {
        let reachable = voters.iter().filter(|id| is_there(**id, config.node, &core.silent, peers)).count();
        let majority = voters.len() / 2 + 1;
        Quorum { voters: voters.len(), reachable, majority, may_fail: reachable as i64 - majority as i64 }
    };
    let sets = [&conf.voters, &conf.outgoing].into_iter().filter(|voters| !voters.is_empty());
    let least = sets.map(of).min_by_key(|quorum| quorum.may_fail);
    least.unwrap_or(Quorum { voters: 0, reachable: 0, majority: 1, may_fail: -1 })
}

pub fn report(config: &NodeConfig, core: CoreStatus, around: Surroundings) -> StatusReport {
    let quorum = quorum(config, &core, &around.peers);
    let problems = problems::all(config, &core, &around, &quorum);
    let Surroundings { peers, postgres, up, disks, counts, .. } = around;
    let (counts, no_counts) = match counts.as_deref() {
        Some(Ok(counts)) => (Some(counts.clone()), None),
        Some(Err(why)) => (None, Some(why.clone())),
        None => (None, None),
    };
    let leadership = core.raft.leadership;
    let matched: BTreeMap<_, _> = core.raft.matched.iter().copied().collect();
    let peers = peers.into_iter().map(|state| PeerReport {
        matched: matched.get(&state.id).copied(),
        durable: core.positions.get(&state.id).map(|p| p.durable),
        state,
    });
    let peers: Vec<PeerReport> = peers.collect();
    let members = core.members.members.iter().map(|m| member_report(m, config, &core, &peers)).collect();
    StatusReport {
        cluster: config.cluster.clone(),
        version: env!("CARGO_PKG_VERSION"),
        level: core.members.level,
        level_known: level::KNOWN,
        level_of_library: counts.as_ref().and_then(|c| c["level_known"].as_u64()?.try_into().ok()).map(Level),
        up_s: up.as_secs_f64(),
        node: config.node,
        region: config.region.clone(),
        role: leadership.role,
        term: leadership.term,
        leader: leadership
            .leader
            .map(|node| Leader { node, region: core.members.region_of(node).cloned().unwrap_or_default() }),
        commit: core.raft.raft_commit,
        log_first: core.log_first,
        log_last: core.raft.last,
        log_bytes: core.log_bytes,
        disk_silent_ms: (core.disk_silent > DISK_SILENT_MAX).then_some(millis(core.disk_silent)),
        decided: core.decided,
        arriving: core.arriving.map(|(txn, bytes)| Arriving { transaction: txn.to_string(), bytes }),
        last_committed: core.last_committed,
        checkpoint: core.checkpoint,
        applied: core.router.applied,
        durable: core.router.durable,
        lag_entries: core.own.map(|p| p.lag_entries),
        lag_ms: core.own.map(|p| millis(p.lag)),
        apply_worker: core.router.worker_connected,
        stuck_at: core.router.stuck_at,
        needs_copy: core.router.needs_copy,
        apply_queue: core.router.worker_queue,
        backends: core.router.backends,
        pending: core.router.pending,
        peers,
        members,
        members_version: core.members.version,
        preferred_leader: core.members.preferred_leader.clone(),
        preferred_by: core.members.preferred(),
        lease_regions: core.members.lease_regions.clone(),
        has_lease: core.has_lease,
        lock_sessions: core.lock_sessions.clone(),
        lock_line: core.lock_line.clone(),
        prepared: core.prepared,
        prepared_since: core.prepared_since,
        leader_settled: core.leader_settled,
        leader_places: core.places.map(|all| all.iter().map(|place| place_report(place, &core.members)).collect()),
        joint: core.raft.conf.is_joint(),
        quorum,
        postgres,
        counts,
        no_counts,
        archive: core.archive,
        certificate: around.certificate_good_until_s.map(certificate),
        authority: around.authority_good_until_s.map(certificate),
        http_certificate: around.http_certificate_good_until_s.map(certificate),
        disks,
        problems,
    }
}
