//! What every part of a run shares: the time, the source of chance, the checkers, the options, the trace.

use crate::checker::Checker;
use crate::disk::End;
use crate::poison::Poison;
use crate::rng::{mix, Rng};
use crate::session::Question;
use onetrip_checker::{ClientOutcome, History, Time, Txn};
use onetrip_core::agent::OutcomeState;
use onetrip_core::certifier::Limits;
use onetrip_core::parts::PartSizes;
use onetrip_core::{level, Checkpoint, Level, LogIndex, Member, MemberRole, Members, NodeId, RegionId, TxnId};
use std::collections::{BTreeMap, BTreeSet};

/// Simulated microseconds since the start of the run.
pub type Micros = u64;

pub const MS: Micros = 1_000;
pub const SECOND: Micros = 1_000_000;

/// A node that dies soon after it has begun to start has taken fewer steps than this; to be open takes it 4 to 6.
const STARTS_IN: u32 = 12;

/// A bug that is injected to see whether the simulation finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedBug {
    /// What consensus wants durable is written but not synced.
    SkipSync,
    /// What is synced beside the node's work counts as durable as soon as it is written.
    WrittenIsDurable,
    /// A key's base is what the node has decided, not what PostgreSQL has applied.
    HighBase,
    /// The strongest lock mode is proposed as the weakest.
    ForgetMode,
    /// A leader takes an entry as committed because a majority has it, whatever its term.
    OldTerm,
    /// A backend commits as soon as it has its verdict, without waiting for its turn.
    EarlyTurn,
    /// A failed fsync is ignored.
    IgnoreSyncError,
    /// What an earlier life wrote, and perhaps never synced, is believed.
    BelieveCache,
    /// What an earlier life wrote is synced, but not written again.  After a sync that failed, that writes nothing.
    SyncOnOpen,
    /// A checkpoint is believed although an earlier life may not have made its name durable.
    BelieveName,
    /// A node that is asked for a fresh read names the last entry that it has decided, not the last one on its disk.
    NamesDecided,
    /// A node without a lease answers a read for which it may not ask others with what it has decided.
    AnswersAlone,
    /// Every read is taken for one for which others may be asked.
    AsksAnyway,
    /// Who is asked to tell when its server shows an entry tells when it has decided it.
    TellsDecided,
    /// A question for fresh reads is not asked again, although it or its answers may be lost.
    AsksOnce,
    /// Every answer counts for the last question asked.
    AnyAnswer,
    /// Clocks differ by more than read leases allow for.
    ClocksDrift,
    /// Entries are decided whatever was promised to the holders of read leases.
    BreaksPromises,
    /// A node that starts does not wait until the promises of its earlier life have run out.
    ForgetsPromises,
    /// The promise of one member passes for that of all.
    OneSpeaksForAll,
    /// A promise comes without the last entry on the disk of who made it.
    PromiseNamesNothing,
    /// The apply worker is welcomed before the node knows how much of its log is committed.
    EarlyWelcome,
    /// Clients are told that a transaction has aborted as long as it is not in the log.
    GuessOutcome,
    /// Under REPEATABLE READ, each statement reads what is visible when it runs.
    LateSnapshot,
    /// Under SERIALIZABLE, nothing says what was read.
    ForgetReads,
    /// Under SERIALIZABLE, what was read counts as read at COMMIT.
    LateReads,
    /// PREPARE TRANSACTION does not say what was read.
    PreparedHoldsNoReads,
    /// A snapshot is installed without emptying the log that it replaces.
    SnapshotKeepsLog,
    /// A node that starts marks an installed checkpoint before it has emptied the log for it.
    MarksFirst,
    /// A new member counts itself as a voter from the start.
    LearnerVotes,
    /// One node commits entries of nodes that are no longer members.
    AcceptNonMember,
    /// All nodes do that.
    AllAcceptNonMember,
    /// A new term and a vote are written but not synced.
    PromiseNotSynced,
    /// No checkpoint is ever made.
    NeverCheckpoints,
    /// The log is never cut.
    NeverCuts,
    /// The log is cut although members need it, and nobody is given a snapshot.
    CutWithoutSnapshot,
    /// A PostgreSQL that shows an entry which was left out goes on all the same.
    ShowsLeftOut,
    /// The entry that leaves another one out does not take that entry's keys.
    SkipTakesNothing,
    /// A notice is sent before the sync that it speaks of.
    NoticeBeforeSync,
    /// Every notice is taken for one of the receiver's own term.
    NoticeOfAnyTerm,
    /// A follower sends the end of its log instead of what matched.
    NoticeOfLastIndex,
    /// A learner sends notices, and they count like a voter's.
    NoticeOfLearner,
    /// Notices of this term are counted for entries of earlier terms.
    NoticeOfOldTerms,
    /// The log is cut between the parts of a transaction and the entry that names them.
    CutBetweenParts,
    /// One node takes a part that arrives again for the next part.
    RepeatPart,
    /// The arrival worker writes rows before its PostgreSQL shows the bases of their keys.
    WritesBeforeBase,
    /// The arrival worker commits as soon as it has its verdict, without waiting for its turn.
    ArrivedTakesNoTurn,
    /// An arrival worker that had to roll back says that all is written, and commits what is left.
    CommitsGivenUp,
    /// An arrival worker that has rolled back takes no notice of a verdict of commit.
    IgnoresVerdict,
    /// One node goes on from its checkpoint without what is reserved.
    ForgetReserved,
    /// One node goes on from its checkpoint without what prepared transactions hold.
    ForgetHeld,
    /// PREPARE TRANSACTION is proposed without the keys of what was only locked.
    HoldsHalf,
    /// A node whose release does not know a format level takes an entry that needs it.
    TakesUnknown,
    /// One node begins with another window, and nobody compares (`Members::beginning`).
    OtherWindow,
}

/// Everything that is drawn once per run.
#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    pub voters: u32,
    /// The voter with the highest number has no PostgreSQL.
    pub witness: bool,
    /// Voters in each region but the last.
    pub in_region: u32,
    pub preferred: u32,
    /// The cluster chooses where the leader is, beginning with that place.
    pub leader_is_auto: bool,
    pub leader_looks: u32,
    pub election_ticks: usize,
    pub transfer_ticks: usize,
    /// Election timeouts grow with the round trips, by up to this factor.
    pub patience: u64,
    pub message_bytes_max: u64,
    pub parts: PartSizes,
    pub limits: Limits,
    pub checkpoint_entries: u64,
    pub cut_margin: u64,
    /// A longer log is cut even if another member needs it.
    pub log_entries_max: u64,
    /// A member that lacks more than this is sent it bit by bit.
    pub near_entries: u64,
    /// How likely the operator is to change the membership, each time he looks.
    pub operate_per_million: u64,
    pub one_way_ms_max: u64,
    /// Nodes are connected by streams, which break as a whole.
    pub streams: bool,
    /// How fast a node can send appends and snapshots to another one; 0: without limit.
    pub bytes_per_ms: u64,
    pub loss_per_million: u64,
    pub duplicate_per_million: u64,
    pub reorder_per_million: u64,
    pub sync_us_max: u64,
    /// The log is synced beside the node's work.
    pub syncs_beside: bool,
    /// How many nodes may lose their disks for good; never a majority.
    pub losses_max: usize,
    pub clients: usize,
    pub keys: u64,
    pub fault_every_ms: u64,
    pub election_fault_per_million: u64,
    pub commit_timeout: Micros,
    pub safety: Micros,
    /// How likely an entry is to be one that some PostgreSQL cannot apply.
    pub poison_per_million: u64,
    /// Nodes come with this release and with the one before, which knows no format levels.
    pub two_releases: bool,
    /// Half of the fresh reads may ask nobody (`onetrip.max_trips = 0`).
    pub reads_alone: bool,
    /// Transactions that are not READ COMMITTED are SERIALIZABLE, instead of REPEATABLE READ.
    pub serializable: bool,
    /// These regions hold read leases from the start, by bits.
    pub lease_regions: u64,
    pub bug: Option<InjectedBug>,
}

impl Options {
    pub fn draw(seed: u64, bug: Option<InjectedBug>) -> Options {
        let mut rng = Rng::new(mix(seed));
        let is_of_reads =
            matches!(bug, Some(InjectedBug::ForgetReads | InjectedBug::LateReads | InjectedBug::PreparedHoldsNoReads));
        let voters = match rng.one_in(3) {
            // A cluster that is restored begins so.
            true if bug.is_none() && mix(seed ^ 28) % 4 == 0 => 1,
            true if mix(seed ^ 13) % 4 == 0 => 7,
            true => 5,
            false => 3,
        };
        let calm = rng.one_in(4);
        let network = |r: &mut Rng, n| if calm || r.one_in(3) { 0 } else { r.below(n) };
        let mut o = Options {
            seed,
            voters,
            witness: rng.one_in(2) && voters > 1,
            in_region: 1 + u32::from(mix(seed ^ 14) % 4 == 0),
            preferred: rng.between(1, u64::from(voters)) as u32,
            leader_is_auto: mix(seed ^ 11) % 2 == 0,
            leader_looks: 1 + (mix(seed ^ 12) % 4) as u32,
            election_ticks: rng.between(20, 50) as usize,
            transfer_ticks: 25,
            patience: if rng.one_in(2) { 1 } else { 3 },
            message_bytes_max: *[1, 300, 1 << 20, 1 << 20].get(rng.below(4) as usize).expect("below 4"),
            parts: PartSizes {
                whole_max: *[usize::MAX, usize::MAX, 80, 150].get(mix(seed ^ 15) as usize % 4).expect("below 4"),
                part: 20 + mix(seed ^ 16) as usize % 100,
                under_way: 1 + mix(seed ^ 17) as usize % 300,
                written_early: match mix(seed ^ 26) % 3 {
                    _ if bug.is_some() => usize::MAX,
                    0 => usize::MAX,
                    1 => 0,
                    _ => 120,
                },
            },
            limits: Limits {
                window_entries: rng.between(20, 3_000),
                window_keys: rng.between(100, 10_000),
                outcomes: rng.between(500, 5_000),
                incarnations: rng.between(2, 20),
            },
            checkpoint_entries: rng.between(10, 400),
            cut_margin: *[5, 20, 200].get(rng.below(3) as usize).expect("below 3"),
            log_entries_max: *[30, 200, 1_000, 10_000].get(rng.below(4) as usize).expect("below 4"),
            near_entries: *[5, 50, 1_000].get(seed as usize % 3).expect("below 3"),
            operate_per_million: *[0, 20_000, 100_000, 300_000].get(rng.below(4) as usize).expect("below 4"),
            one_way_ms_max: rng.between(1, 80),
            streams: mix(seed ^ 9) % 2 == 0,
            bytes_per_ms: *[0, 0, 50, 500].get(mix(seed ^ 10) as usize % 4).expect("below 4"),
            loss_per_million: network(&mut rng, 50_000),
            duplicate_per_million: network(&mut rng, 50_000),
            reorder_per_million: network(&mut rng, 100_000),
            sync_us_max: rng.between(100, 10_000),
            syncs_beside: mix(seed ^ 18) % 2 == 0,
            losses_max: if rng.one_in(4) { (voters as usize - 1) / 2 } else { 0 },
            clients: rng.between(1, 6) as usize,
            keys: rng.between(3, 60),
            fault_every_ms: rng.between(200, 4_000),
            election_fault_per_million: *[0, 0, 100_000, 600_000].get(rng.below(4) as usize).expect("below 4"),
            commit_timeout: rng.between(2, 10) * SECOND,
            safety: rng.between(10, 40) * SECOND,
            poison_per_million: *[0, 0, 0, 5_000].get(rng.below(4) as usize).expect("below 4"),
            two_releases: bug == Some(InjectedBug::TakesUnknown) || bug.is_none() && mix(seed ^ 22) % 3 == 0,
            reads_alone: bug.is_none() && mix(seed ^ 24) % 3 == 0
                || matches!(bug, Some(InjectedBug::AnswersAlone | InjectedBug::AsksAnyway)),
            serializable: bug.is_none() && mix(seed ^ 25) % 2 == 0 || is_of_reads,
            lease_regions: if mix(seed ^ 19) % 3 == 0 { mix(seed ^ 20) } else { 0 },
            bug,
        };
        let is_of_leases = matches!(
            bug,
            Some(
                InjectedBug::ClocksDrift
                    | InjectedBug::BreaksPromises
                    | InjectedBug::ForgetsPromises
                    | InjectedBug::OneSpeaksForAll
                    | InjectedBug::PromiseNamesNothing
            )
        );
        // A release without format levels knows no keys of what was only read.
        o.serializable &= !o.two_releases;
        if bug.is_some() {
            o.lease_regions = if is_of_leases { 1 << (mix(seed ^ 20) % 3) } else { 0 };
        }
        if is_of_leases {
            // Leases that are in force, and members that come and go faster than these run out.
            (o.voters, o.witness, o.in_region, o.one_way_ms_max) = (3, false, 1, 20);
            (o.election_ticks, o.patience, o.fault_every_ms, o.operate_per_million) = (20, 1, 200, 0);
            (o.keys, o.clients, o.poison_per_million, o.losses_max) = (o.keys.min(10), 6, 0, 0);
            o.parts.whole_max = usize::MAX;
        }
        if bug == Some(InjectedBug::ClocksDrift) {
            // Who waits for a COMMIT while cut off does not read.
            o.commit_timeout = 200 * MS;
        }
        if matches!(bug, Some(InjectedBug::ShowsLeftOut | InjectedBug::SkipTakesNothing)) {
            (o.poison_per_million, o.keys) = (100_000, o.keys.min(10));
        }
        if bug == Some(InjectedBug::SkipTakesNothing) {
            // What the window still knows of an entry is taken again by itself.
            o.limits.window_entries = 20;
        }
        if let Some(InjectedBug::CutBetweenParts | InjectedBug::RepeatPart) = bug {
            // Large transactions wait for each other.  If there were more of them, they would wait longer than their
            // clients do.
            let written_early = usize::MAX;
            o.parts = PartSizes { whole_max: 100, part: 15, under_way: 60, written_early };
            (o.clients, o.one_way_ms_max) = (3, 20);
            (o.checkpoint_entries, o.log_entries_max, o.cut_margin) = (5, 10, 0);
        }
        if let Some(
            InjectedBug::WritesBeforeBase
            | InjectedBug::ArrivedTakesNoTurn
            | InjectedBug::CommitsGivenUp
            | InjectedBug::IgnoresVerdict,
        ) = bug
        {
            o.parts = PartSizes { whole_max: 80, part: 50, under_way: 300, written_early: 0 };
        }
        if bug == Some(InjectedBug::WritesBeforeBase) {
            // Servers that are behind.
            (o.keys, o.poison_per_million) = (o.keys.min(10), 20_000);
        }
        if bug == Some(InjectedBug::BelieveName) {
            (o.checkpoint_entries, o.fault_every_ms) = (3, 50);
        }
        if bug == Some(InjectedBug::WrittenIsDurable) {
            o.syncs_beside = true;
        }
        if matches!(bug, Some(InjectedBug::ForgetReserved | InjectedBug::ForgetHeld)) {
            (o.keys, o.checkpoint_entries, o.fault_every_ms) = (3, 10, 500);
        }
        if bug == Some(InjectedBug::OtherWindow) {
            o.limits.window_entries = 20;
        }
        if let Some(InjectedBug::OldTerm | InjectedBug::NoticeOfOldTerms | InjectedBug::NoticeOfLastIndex) = bug {
            // This needs leaders that come and go while entries travel one by one, and links that carry that.
            (o.voters, o.preferred, o.witness, o.message_bytes_max, o.bytes_per_ms) = (5, 5, false, 1, 0);
            o.leader_is_auto = false;
            (o.election_ticks, o.fault_every_ms, o.clients, o.operate_per_million) = (20, 500, 6, 0);
            (o.checkpoint_entries, o.log_entries_max, o.losses_max) = (u64::MAX, u64::MAX, 0);
            o.election_fault_per_million = 1_000_000;
        }
        if o.parts.whole_max != usize::MAX {
            // Large transactions wait for each other, and should not wait longer than their clients do.
            o.clients = o.clients.min(if o.voters == 3 { 3 } else { 1 });
            o.commit_timeout = o.commit_timeout.max(5 * SECOND);
            if bug.is_none() {
                // A few keys are many then, and have a table of their own.
                o.limits.window_keys = o.limits.window_keys.min(300);
            }
        }
        if o.writes_early() {
            // Each of them takes longer.
            o.commit_timeout = 12 * SECOND;
        }
        if o.bytes_per_ms > 0 {
            // If the log were shorter than what is added while a snapshot travels, a member that needs one would
            // never catch up.
            o.log_entries_max = o.log_entries_max.max(2_000);
        }
        if o.message_bytes_max == 1 {
            // A few messages under way would be only a few entries.
            o.near_entries = u64::MAX;
        }
        o
    }
}

impl Options {
    /// The limits, as this node's configuration has them.
    pub fn limits_of(&self, id: NodeId) -> Limits {
        match self.bug {
            Some(InjectedBug::OtherWindow) if id == NodeId(2) => Limits { window_entries: 2, ..self.limits },
            _ => self.limits,
        }
    }

    /// The format level that the release knows which a node runs in this life, if nothing keeps it from starting.
    pub fn release(&self, id: NodeId, life: u64) -> Level {
        let is_old = self.two_releases && mix(self.seed ^ mix(u64::from(id.0) << 32 | life) ^ 23) % 4 == 0;
        if is_old {
            Level(0)
        } else {
            level::KNOWN
        }
    }

    /// After how many steps of its start or its work a node dies that begins this life, if soon; and how.
    pub fn start_fault(&self, id: NodeId, life: u64) -> (Option<u32>, End) {
        let drawn = mix(self.seed ^ mix(u64::from(id.0) << 32 | life) ^ 29);
        let dies = matches!(self.bug, None | Some(InjectedBug::MarksFirst)) && drawn % 8 == 0;
        let end = if drawn >> 3 & 1 == 0 { End::Power } else { End::Process };
        (dies.then_some((drawn >> 8) as u32 % STARTS_IN), end)
    }

    /// How fast the clock of a node goes, per mille.  Read leases allow for what is drawn here, and for no more.
    pub fn pace(&self, id: NodeId) -> u64 {
        let drawn = mix(self.seed ^ mix(u64::from(id.0) << 32 | 21));
        match self.bug {
            Some(InjectedBug::ClocksDrift) => [200, 1_800][drawn as usize % 2],
            _ if self.lease_regions == 0 => 1_000,
            _ => [950, 1_000, 1_050][drawn as usize % 3],
        }
    }

    /// Some transactions are written while they arrive.
    pub fn writes_early(&self) -> bool {
        self.parts.whole_max != usize::MAX && self.parts.written_early != usize::MAX
    }

    /// The first table of members, which all nodes begin with.
    pub fn members(&self) -> Members {
        let region = |id: u32| RegionId::from(format!("r{}", (id - 1) / self.in_region + 1).as_str());
        let member = |id: u32| Member {
            id: NodeId(id),
            region: region(id),
            address: format!("host:{id}"),
            role: if self.witness && id == self.voters { MemberRole::Witness } else { MemberRole::Voter },
            voter: true,
            slot: (!(self.witness && id == self.voters)).then_some(id - 1),
            replaces: None,
            joined: None,
        };
        let preferred = region(self.preferred);
        let mut members = Members::bootstrap((1..=self.voters).map(member).collect(), preferred.as_str().into(), 16);
        members.leader_is_auto = self.leader_is_auto;
        // As `onetrip init` makes a cluster; one whose releases differ begins with what all know.
        if !self.two_releases {
            members.level = level::KNOWN;
        }
        let regions: BTreeSet<RegionId> =
            members.members.iter().filter(|m| m.role.has_postgres()).map(|m| m.region.clone()).collect();
        members.lease_regions =
            (0..).zip(regions).filter(|(n, _)| self.lease_regions >> n & 1 == 1).map(|(_, r)| r).collect();
        match self.bug {
            Some(InjectedBug::OtherWindow) => members,
            _ => Checkpoint::bootstrap(members, self.limits).members,
        }
    }
}

impl Ctx {
    /// The region of a node, as its own configuration says.
    pub fn region(&self, id: NodeId) -> RegionId {
        self.regions.get(&id).cloned().unwrap_or_default()
    }

    /// A client is told what became of a transaction.
    pub fn answered(&mut self, txn: TxnId, state: OutcomeState, at: LogIndex) {
        let outcome = match state {
            OutcomeState::NotSoFar => return,
            OutcomeState::Committed | OutcomeState::Prepared => {
                self.checker.tells_committed(txn, at);
                ClientOutcome::FoundCommitted
            }
            OutcomeState::Aborted => {
                self.checker.tells_aborted(txn, "the outcome is abort");
                ClientOutcome::Aborted
            }
            OutcomeState::OlderThanKept => ClientOutcome::Unknown,
            OutcomeState::LeftOut => {
                self.checker.tells_left_out(txn, at);
                ClientOutcome::Unknown
            }
        };
        let Some(place) = self.questions.iter().position(|q| q.txn == txn) else { return };
        let mut record = self.questions.swap_remove(place).record;
        (record.outcome, record.completed) = (outcome, Time(self.now));
        self.history.push(record);
    }
}

/// Counts of faults and events, by kind.
#[derive(Clone, Debug, Default)]
pub struct Stats(pub BTreeMap<&'static str, u64>);

impl Stats {
    pub fn add(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub fn merge(&mut self, other: &Stats) {
        for (what, n) in &other.0 {
            *self.0.entry(what).or_default() += n;
        }
    }
}

pub struct Ctx {
    pub now: Micros,
    /// When all faults ended.
    pub healed: Option<Micros>,
    pub rng: Rng,
    pub checker: Checker,
    /// What clients did and saw.
    pub history: History,
    /// Clients that have got no answer yet.
    pub questions: Vec<Question>,
    /// Transactions that were to be prepared, and that no client knows to have ended.
    pub prepared: BTreeMap<TxnId, Txn>,
    pub regions: BTreeMap<NodeId, RegionId>,
    /// A session has just been told that all servers show this entry.
    pub shown_everywhere: Option<LogIndex>,
    /// How long each way between two nodes takes.
    pub delays: BTreeMap<(NodeId, NodeId), Micros>,
    pub next_process: u64,
    pub next_value: u64,
    /// Entries that some PostgreSQL cannot apply.
    pub poison: BTreeMap<TxnId, Poison>,
    /// The highest format level that an entry in some log needs: one that was to raise it, and was refused, needs it
    /// too.
    pub written: Level,
    pub options: Options,
    pub faults: Stats,
    pub events: Stats,
    pub trace: Option<Vec<u8>>,
}

/// Adds a line to the trace.  The arguments are not evaluated if no trace is kept.
#[macro_export]
macro_rules! trace {
    ($ctx:expr, $($arg:tt)*) => {
        if let Some(trace) = &mut $ctx.trace {
            use std::io::Write;
            let _ = write!(trace, "{:>10} ", $ctx.now).and_then(|()| writeln!(trace, $($arg)*));
        }
    };
}
