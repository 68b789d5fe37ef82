//! One node's part in the cluster: it takes part in consensus, writes the log, decides entries and answers PostgreSQL.
//!
//! ```text
//!   events ──> consensus.step ──> poll ──> send now ──> log + sync ──> persisted ──> send after
//!                                   └──> committed entries ──> certifier ──> router ──> verdicts, entries
//! ```
//!
//! It knows no clock, socket, file or thread: those belong to its [`Host`], which is the daemon or the simulation.  A
//! host hands in everything that has happened ([`Replica::agent`], [`Replica::message`], [`Replica::tick`] ...) and
//! then calls [`Replica::advance`], which does all the work that follows.  So one sync covers all of it, and nothing
//! waits for a timer.
//!
//! Invariants:
//! - What consensus wants durable is durable before anything that depends on it leaves the node.
//! - Every committed index is decided once, in order.
//! - Nothing more is done after an error from the host, nor when the log says that this node was removed, nor when a
//!   leader counts on entries that this node's log does not have.
//!
//! | module | what |
//! |---|---|
//! | [`host`] | what it needs from the outside world |
//! | `storage` | log and checkpoints: how they are opened, written and cut |
//! | `positions` | how far each PostgreSQL is, and how far apart the members are |
//! | `leader_place` | where the leader should be, and how it is moved there |
//! | `reads` | fresh reads: what a server must show |
//! | [`leases`] | read leases: what makes a fresh read need nobody |
//! | `everywhere` | COMMITs that wait until every server shows them |
//! | `row_locks` | row locks that sessions ask for, and the table that the leader keeps |
//! | `requests` | what somebody asked for: changes of the membership, entries to be left out |
//! | `rebuild` | when PostgreSQL is to be copied anew; which entry may be left out |

mod everywhere;
pub mod host;
mod leader_place;
pub mod leases;
mod positions;
mod reads;
mod rebuild;
mod requests;
mod row_locks;
mod storage;

use everywhere::Everywhere;
pub use everywhere::STILL_AFTER;
use host::ends;
pub use host::{Host, Stage, Store};
use leases::Leases;
use positions::Ways;
pub use positions::{Report, Shown, SILENT_AFTER};
use reads::Reads;
use rebuild::Looks;
pub use rebuild::RebuildFrom;
use requests::Requests;
pub use requests::{Answer, LeftOut, NotDone, RequestId};
pub use row_locks::LockSession;
use row_locks::RowLocks;
use storage::Snapshots;

use crate::certifier::{Certifier, CommittedIndexes, Decision, Verdict};
use crate::consensus::{Committed, Config, Consensus, Input, Leadership, Message, Notice, Output, Role};
use crate::entry::Entry;
use crate::error::Error;
use crate::ids::{LogIndex, NodeId, RegionId, TxnId};
use crate::members::Members;
use crate::parts::PartSizes;
use crate::placement::{Patience, Traffic};
use crate::router::{AgentEvent, Context, Outbox, Router, Way};
use crate::Checkpoint;
use bytes::Bytes;
use raft::eraftpb::{EntryType, MessageType};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How often the members report their positions to each other.
const POSITION_TICKS: u64 = 25;
/// How often consensus is told where the part near the end of the log begins.
const NEAR_TICKS: u64 = 5;
/// A leader with so many notices in a tick is about to send the next append.
const BUSY_NOTICES: u64 = 8;
/// A transaction of which no further part has arrived for this long is cancelled by the leader, after 10 s, or by the
/// node that it comes from, after 2 s, if nobody there waits for it any more.  If nothing else of that node has been
/// decided for as long, all that it has waiting is cancelled too: each would otherwise hold up the other regions for as
/// long again.
const ARRIVING_TICKS: u64 = 500;
const ABANDONED_TICKS: u64 = 100;
/// The cancellation is proposed again this often.
const CANCEL_TICKS: u64 = 50;
/// More rounds than this in one [`Replica::advance`] mean that consensus never comes to rest.
const ROUNDS_MAX: usize = 100_000;

#[derive(Clone, Debug)]
pub struct Settings {
    pub region: RegionId,
    pub has_postgres: bool,
    /// A checkpoint is made after this many entries, or this many bytes of entries.
    pub checkpoint_entries: u64,
    pub checkpoint_bytes: u64,
    /// This many entries stay in the log although no member should need them: Raft may still read them for an append.
    pub cut_margin: u64,
    /// A log larger than this ([`Store::bytes`]) is cut even where another member still needs it.
    pub log_bytes_max: u64,
    /// A member that lacks no more of the log than this is sent all of it at once.
    pub near_bytes: u64,
    /// The leader is moved when another place has been better at `leader_looks` looks in a row, one every
    /// [`POSITION_TICKS`], and no sooner than `leader_rest_ticks` after its last move.
    pub leader_looks: u32,
    pub leader_rest_ticks: u64,
    /// A PostgreSQL that has not shown the next entry this long after that entry was decided does not get on by itself.
    pub still_after: Duration,
    pub parts: PartSizes,
    /// The number of the first question for fresh reads: so that answers to an earlier life of this node, which may
    /// still arrive, are not taken for answers to this one, it is drawn at random.
    pub first_question: u64,
}

pub struct Replica<S: Store, O> {
    pub id: NodeId,
    settings: Settings,
    pub consensus: Consensus<S>,
    pub certifier: Certifier,
    pub committed_indexes: CommittedIndexes,
    pub router: Router<O>,
    members: Arc<Members>,
    /// How far the other members' PostgreSQL are, as last reported.
    positions: BTreeMap<NodeId, Shown>,
    /// Round trips of each member, including this one.
    ways: BTreeMap<NodeId, Ways>,
    traffic: Traffic,
    patience: Patience,
    /// The index of the last durable one.
    checkpoint: LogIndex,
    checkpoint_under_way: bool,
    /// A checkpoint is due and waits, because a transaction is arriving in parts.
    checkpoint_waits: bool,
    /// How much of which transaction has arrived, and since which tick nothing more has.
    arriving: (Option<(TxnId, usize)>, u64),
    /// The node that it comes from, whether it is this one and nobody here knows of it; and since which tick that is so
    /// and nothing of that node has been decided.
    silent: (Option<(NodeId, bool)>, u64),
    snapshots: Snapshots,
    bytes_since_checkpoint: u64,
    /// The order to make PostgreSQL's data folder anew, if there is one.
    rebuild: Option<RebuildFrom>,
    looks: Looks,
    requests: Requests,
    reads: Reads,
    leases: Leases,
    everywhere: Everywhere,
    row_locks: RowLocks,
    /// The table has changed since the requests were last worked on.
    members_changed: bool,
    leadership: Option<Leadership>,
    /// Somebody has not been told of this node's last notice ([`Replica::tell`]).
    owes_notice: bool,
    /// As leader: up to where there are transactions of each member which it has not been told are on this disk.
    proposers: BTreeMap<NodeId, LogIndex>,
    /// How often it told as leader in the tick before this one, and in this one.
    told: (u64, u64),
    tick: u64,
    /// Messages for which the peer's queue was full; Raft is told at the next opportunity.
    not_sent: Vec<(NodeId, MessageType)>,
    out: Output,
}

/// From the entry on, the configuration or the table of members may be another one.
fn changes_conf(entry: &Committed) -> bool {
    entry.members.is_some() || entry.kind != EntryType::EntryNormal
}

/// The context of `$replica`, now; it borrows all that it needs, but not the router.
macro_rules! context {
    ($replica:ident, $host:ident) => {
        Context {
            certifier: &$replica.certifier,
            committed_indexes: &mut $replica.committed_indexes,
            log: $replica.consensus.log(),
            members: &$replica.members,
            tick: $replica.tick,
            now: $host.now(),
        }
    };
}

impl<S: Store, O: Outbox> Replica<S, O> {
    /// Goes on from what earlier lives of the node left behind: `state` is the checkpoint and `store` the log, in order
    /// with each other ([`Replica::put_in_order`]); `starts` and `has_promised` are what [`Host::save_starts`] and
    /// [`Host::save_promised`] were last given.
    pub fn new(
        settings: Settings,
        config: Config,
        state: Checkpoint,
        store: S,
        starts: &[u64],
        has_promised: bool,
    ) -> crate::Result<Replica<S, O>> {
        let (needs, known) = (state.members.level, config.level);
        if needs > known {
            return Err(Error::Level { needs, known });
        }
        let (id, checkpoint, (_, last)) = (config.id, state.index(), ends(&store));
        let members = Arc::new(state.members);
        let running = state.certifier.running_incarnation(id);
        Ok(Replica {
            id,
            router: Router::new(id, settings.region.clone(), settings.parts, last, starts, running),
            reads: Reads::new(settings.first_question),
            leases: Leases::new(has_promised),
            settings,
            consensus: Consensus::new(config, store, members.clone())?,
            certifier: state.certifier,
            committed_indexes: state.committed_indexes,
            members,
            positions: BTreeMap::new(),
            ways: BTreeMap::new(),
            traffic: Traffic::default(),
            patience: Patience::default(),
            checkpoint,
            checkpoint_under_way: false,
            checkpoint_waits: false,
            arriving: (None, 0),
            silent: (None, 0),
            snapshots: Snapshots::default(),
            bytes_since_checkpoint: 0,
            rebuild: None,
            looks: Looks::default(),
            requests: Requests::default(),
            everywhere: Everywhere::default(),
            row_locks: RowLocks::default(),
            members_changed: false,
            leadership: None,
            owes_notice: false,
            proposers: BTreeMap::new(),
            told: (0, 0),
            tick: 0,
            not_sent: Vec::new(),
            out: Output::default(),
        })
    }

    /// From now on these are [`Settings::log_bytes_max`] and [`Settings::checkpoint_bytes`].
    pub fn set_log_bytes(&mut self, log_bytes_max: u64, checkpoint_bytes: u64) {
        self.settings.log_bytes_max = log_bytes_max;
        self.settings.checkpoint_bytes = checkpoint_bytes;
    }

    /// To be called once, before anything else.  `postgres_is_there`: PostgreSQL's data folder exists.
    pub fn start<H: Host<Store = S, Outbox = O>>(
        &mut self,
        postgres_is_there: bool,
        host: &mut H,
    ) -> Result<(), H::Error> {
        host.looks(&mut self.consensus, self.tick);
        self.start_leases(host);
        self.set_members(self.members.clone(), host)?;
        if self.settings.has_postgres && !postgres_is_there {
            self.order_rebuild(host);
        }
        Ok(())
    }

    /// Takes a message from a peer whose identity the host has checked.
    pub fn message<H: Host<Store = S, Outbox = O>>(&mut self, message: Message, host: &mut H) -> Result<(), H::Error> {
        if self.is_bound(host) {
            return Ok(());
        }
        if self.consensus.lacks(&message) {
            return self.open_snapshot(message, host);
        }
        let result = self.consensus.step(Input::Message(message));
        host.looks(&mut self.consensus, self.tick);
        match result {
            Ok(()) => {}
            Err(e @ Error::LostLog { .. }) => return Err(e.into()),
            Err(e) => host.ignored(e),
        }
        Ok(())
    }

    /// Takes a notice of what a peer's disk has, which came on that peer's own connection.
    pub fn notice<H: Host<Store = S, Outbox = O>>(&mut self, peer: NodeId, notice: Notice, host: &mut H) {
        self.step(Input::Notice(peer, notice), host);
    }

    /// The connection to a peer broke; what was on its way may be lost.
    pub fn unreachable<H: Host<Store = S, Outbox = O>>(&mut self, peer: NodeId, host: &mut H) {
        self.step(Input::Lost(peer, MessageType::MsgSnapshot), host);
    }

    /// There is a new connection to a peer; what was sent before may be lost.
    pub fn connected<H: Host<Store = S, Outbox = O>>(&mut self, peer: NodeId, host: &mut H) -> Result<(), H::Error> {
        if self.consensus.leadership().leader == Some(peer) {
            self.row_locks.tell_leader_again();
            return self.propose_again(true, host);
        }
        if let Some(notice) = self.consensus.last_notice() {
            host.send_notice(&[peer], notice);
        }
        Ok(())
    }

    /// The log has read what raft wanted to send ([`Store::take_fetched`]).
    pub fn fetched<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        for question in self.consensus.log_mut().take_fetched() {
            self.step(Input::Fetched(question), host);
        }
    }

    /// Something came from PostgreSQL.
    pub fn agent<H: Host<Store = S, Outbox = O>>(
        &mut self,
        event: AgentEvent<O>,
        host: &mut H,
    ) -> Result<(), H::Error> {
        if let Some(starts) = self.router.starts_with(&event) {
            host.save_starts(self.consensus.log_mut(), starts)?;
            host.stage(Stage::StartsSaved)?;
        }
        let raw = self.router.handle(event, &mut context!(self, host))?;
        match raw {
            Some(raw) => {
                host.stage(Stage::Received)?;
                self.propose(raw, host)?;
            }
            None => host.stage(Stage::Answered)?,
        }
        self.follow_rebuild(host);
        Ok(())
    }

    /// Hands an input to consensus.  It is no fault of this node if Raft refuses it (a message that is stale or from a
    /// node that is not a member) or if there is no leader to take it.
    pub fn step<H: Host<Store = S, Outbox = O>>(&mut self, input: Input, host: &mut H) {
        let result = self.consensus.step(input);
        host.looks(&mut self.consensus, self.tick);
        if let Err(e) = result {
            host.ignored(e);
        }
    }

    fn propose<H: Host<Store = S, Outbox = O>>(&mut self, raw: Bytes, host: &mut H) -> Result<(), H::Error> {
        let result = self.consensus.step(Input::Propose(raw.clone()));
        host.looks(&mut self.consensus, self.tick);
        match result {
            Ok(()) => {}
            Err(Error::NoLeader) => self.router.not_taken(&raw, self.tick),
            Err(e) => host.ignored(e),
        }
        host.stage(Stage::Proposed)
    }

    /// Proposes again what PostgreSQL waits for: what is due or, with `all`, everything.
    fn propose_again<H: Host<Store = S, Outbox = O>>(&mut self, all: bool, host: &mut H) -> Result<(), H::Error> {
        self.router.resend(self.tick, all).into_iter().try_for_each(|raw| self.propose(raw, host))
    }

    /// Proposes the next parts of large transactions.  True: there were some.
    fn propose_parts<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) -> Result<bool, H::Error> {
        let servers = match self.router.has_large() {
            true => self.servers_not_away(host.now()),
            false => Vec::new(),
        };
        let mut parts = self.router.parts_to_propose(&servers, &context!(self, host));
        parts.extend(self.router.feed_arrival_worker(&context!(self, host)));
        let are_there = !parts.is_empty();
        parts.into_iter().try_for_each(|raw| self.propose(raw, host))?;
        Ok(are_there)
    }

    /// The node that a large transaction comes from may be gone for good, while others wait, and checkpoints too.
    /// Others than the leader may be behind, and would take that for the node's silence.  All count, so that the next
    /// leader need not begin anew.
    fn cancel_what_stopped_arriving<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) -> Result<(), H::Error> {
        let now = self.certifier.arriving().map(|arriving| (arriving.txn, arriving.len()));
        let Leadership { role, leader, .. } = self.consensus.leadership();
        // What comes meanwhile is not decided here.
        let hears_nothing = leader.is_none() || self.consensus.disk_is_silent();
        // What the router knows of it, it cancels itself.
        let is_abandoned = |txn: &TxnId| txn.node == self.id && !self.router.is_large(txn);
        let silent = now.map(|(txn, _)| (txn.node, is_abandoned(&txn)));
        if now != self.arriving.0 || hears_nothing {
            self.arriving = (now, self.tick);
        }
        if silent != self.silent.0 || hears_nothing {
            self.silent = (silent, self.tick);
        }
        let may_judge = |(txn, _): &(TxnId, usize)| role == Role::Leader || is_abandoned(txn);
        let Some((txn, _)) = now.filter(may_judge) else { return Ok(()) };
        let most = if is_abandoned(&txn) { ABANDONED_TICKS } else { ARRIVING_TICKS };
        let is_silent = self.tick >= self.silent.1 + most;
        if !is_silent && self.tick < self.arriving.1 + most {
            return Ok(());
        }
        let same = self.certifier.waiting().filter(|next| is_silent && next.node == txn.node);
        let same = same.filter(|next| next.node != self.id || is_abandoned(next));
        let stopped: Vec<TxnId> = std::iter::once(txn).chain(same).collect();
        self.arriving.1 += CANCEL_TICKS;
        self.silent.1 += CANCEL_TICKS;
        stopped.iter().try_for_each(|txn| self.propose(Entry::encode_cancel(txn), host))
    }

    pub fn tick<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) -> Result<(), H::Error> {
        if self.is_bound(host) {
            return Ok(());
        }
        self.tick += 1;
        self.told = (self.told.1, 0);
        self.tell_the_others(host);
        self.work_leases(host)?;
        if self.tick % NEAR_TICKS == 0 {
            self.consensus.set_near(self.consensus.log().index_leaving(self.settings.near_bytes));
        }
        for member in self.consensus.snapshots_under_way() {
            if host.is_sending(member) {
                self.consensus.snapshot_moves(member);
            }
        }
        self.step(Input::Tick, host);
        self.propose_again(false, host)?;
        self.cancel_what_stopped_arriving(host)?;
        self.work_requests(host);
        if self.tick % POSITION_TICKS != 0 {
            return Ok(());
        }
        self.looks.look(host.now(), self.certifier.decided(), self.settings.still_after);
        let report = self.own_report(host);
        let own = report.shown.map(|(applied, _)| self.shows(applied));
        self.step(Input::Position(self.id, own), host);
        let round_trips = report.round_trips.iter().copied().collect();
        self.ways.insert(self.id, Ways { round_trips, heard: host.now() });
        host.send_report(None, &report);
        self.place_leader(host);
        self.heal(host);
        self.consensus.set_election_ticks(host.election_ticks(&self.members));
        self.cut(host)?;
        self.consider_checkpoint(host)
    }

    /// Does everything that consensus has to do.
    pub fn advance<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) -> Result<(), H::Error> {
        if self.is_bound(host) {
            return Ok(());
        }
        loop {
            for (peer, what) in std::mem::take(&mut self.not_sent) {
                self.step(Input::Lost(peer, what), host);
            }
            // This ends: each round persists or hands on something, and nothing new comes in meanwhile.
            let mut out = std::mem::take(&mut self.out);
            let mut rounds = 0;
            loop {
                let has_work = self.consensus.poll(&mut out);
                host.looks(&mut self.consensus, self.tick);
                out.not_taken.drain(..).for_each(|raw| self.router.not_taken(&raw, self.tick));
                if !has_work {
                    break;
                }
                self.round(&mut out, host)?;
                rounds += 1;
                assert!(rounds < ROUNDS_MAX, "consensus has work without end");
            }
            self.out = out;
            if let Some(message) = self.snapshots.next() {
                self.message(message, host)?;
                continue;
            }
            self.router.let_worker_in(&mut context!(self, host))?;
            // Before the next large transaction begins to arrive.
            if self.checkpoint_waits {
                self.consider_checkpoint(host)?;
            }
            let proposes_parts = self.propose_parts(host)?;
            self.hand_events(host);
            host.stage(Stage::Answered)?;
            self.follow_rebuild(host);
            let members_changed = std::mem::take(&mut self.members_changed);
            if members_changed {
                self.work_requests(host);
            }
            self.work_reads(host);
            self.work_awaits(host);
            self.work_row_locks(host);
            if !self.notice_leader(host)? && !members_changed && !proposes_parts {
                return Ok(());
            }
        }
    }

    fn round<H: Host<Store = S, Outbox = O>>(&mut self, out: &mut Output, host: &mut H) -> Result<(), H::Error> {
        self.send(std::mem::take(&mut out.send_now), host)?;
        self.certify(std::mem::take(&mut out.committed), host)?;
        host.stage(Stage::BeforeWrite)?;
        if self.consensus.leadership().leader == Some(self.id) {
            let entries = out.persist.iter().flat_map(|persist| &persist.entries);
            let proposed = entries.filter_map(|e| Some((Entry::peek_txn(&e.data).ok()?.node, LogIndex(e.index))));
            self.proposers.extend(proposed);
        }
        if self.persist(out.persist.take(), host)? {
            self.consensus.persisted(out);
            self.say_what_is_durable(out, host)?;
        } else {
            self.consensus.written(out);
            host.looks(&mut self.consensus, self.tick);
        }
        if let Some(state) = out.restored.take() {
            self.restored(*state, host)?;
            host.stage(Stage::Restored)?;
        }
        self.certify(std::mem::take(&mut out.committed), host)?;
        host.round_done(&self.consensus);
        host.stage(Stage::RoundDone)
    }

    fn send<H: Host<Store = S, Outbox = O>>(&mut self, messages: Vec<Message>, host: &mut H) -> Result<(), H::Error> {
        for message in messages {
            host.stage(Stage::BeforeSend)?;
            let (to, what) = (NodeId(message.to as u32), message.get_msg_type());
            if !host.send(message) {
                // Its queue is full: Raft goes back to probing, which sends little.
                self.not_sent.push((to, what));
            }
        }
        Ok(())
    }

    /// Tells everyone but the leader, which learns it from a follower's answers anyway, and those to whom the leader
    /// says enough.  A busy leader leaves out those who have nothing in it: its next append tells them.
    fn tell<H: Host<Store = S, Outbox = O>>(&mut self, notice: Notice, host: &mut H) -> Result<(), H::Error> {
        let leader = self.consensus.leadership().leader;
        let mut others = self.others_but(leader);
        let all = others.len();
        self.told.1 += u64::from(leader == Some(self.id));
        let is_busy = self.told.0 >= BUSY_NOTICES;
        let may_wait = |leader, id| {
            let waits = leader == self.id && (!is_busy || self.proposers.contains_key(&id));
            !waits && self.consensus.leader_says_enough(leader, id)
        };
        others.retain(|id| !leader.is_some_and(|leader| may_wait(leader, *id)));
        self.owes_notice |= others.len() < all;
        self.proposers.retain(|_, index| *index > notice.index);
        host.stage(Stage::BeforeSend)?;
        host.send_notice(&others, notice);
        Ok(())
    }

    /// Tells the others too, if the leader has not said yet that its own disk has as much: it may be slow, or gone.  A
    /// leader does not ask whether an append has told them.
    fn tell_the_others<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        if !std::mem::take(&mut self.owes_notice) {
            return;
        }
        let leader = self.consensus.leadership().leader;
        let is_said =
            |notice: &Notice| leader.is_some_and(|id| id != self.id && self.consensus.said_to_have(id) >= notice.index);
        if let Some(notice) = self.consensus.last_notice().filter(|notice| !is_said(notice)) {
            host.send_notice(&self.others_but(leader), notice);
        }
    }

    /// For those who wait for what others have committed, and may have been left out ([`Replica::tell`]): to be called
    /// before what makes them wait is sent to them.
    pub(super) fn tell_who_waits<H: Host<Store = S, Outbox = O>>(&mut self, who: &[NodeId], host: &mut H) {
        if let Some(notice) = self.consensus.last_notice().filter(|_| self.owes_notice) {
            host.send_notice(who, notice);
        }
    }

    fn others_but(&self, leader: Option<NodeId>) -> Vec<NodeId> {
        let others = self.members.members.iter().map(|m| m.id).filter(|id| *id != self.id && Some(*id) != leader);
        others.collect()
    }

    /// Decides committed entries, and passes on what follows from them.
    pub fn certify<H: Host<Store = S, Outbox = O>>(
        &mut self,
        committed: Vec<Committed>,
        host: &mut H,
    ) -> Result<(), H::Error> {
        let known = host.now();
        let mut committed = committed.into_iter();
        while let Some(entry) = committed.next() {
            self.bytes_since_checkpoint += entry.data.len() as u64;
            if entry.transaction().is_some() {
                host.stage(Stage::Committed)?;
            }
            let decided = host.decide(&entry, &mut self.certifier, &mut self.committed_indexes, &mut self.members)?;
            if let Some(members) = entry.members {
                self.set_members(members, host)?;
            }
            let Some((txn, decision)) = decided else { continue };
            host.stage(Stage::Certified)?;
            if !matches!(decision, Decision::Part { .. }) {
                self.traffic.committed(txn.node);
            }
            if matches!(decision, Decision::Decided { .. }) {
                self.end_row_locks(txn, host);
            }
            // Other nodes cancel it, and say with parts without bytes what their servers have written of it.
            let comes_from_it = match decision {
                Decision::Part { counts } => counts,
                Decision::Decided { verdict, .. } => verdict != Verdict::Cancelled,
                _ => decision == Decision::NoTransaction,
            };
            if comes_from_it && self.silent.0 == Some((txn.node, false)) {
                self.silent.1 = self.tick;
            }
            let way = match self.router.is_pending(&txn) {
                true => Way { held_by: self.held_by(entry.index), committed: known },
                false => Way::default(),
            };
            self.router.decided(entry.index, txn, decision, way, &context!(self, host));
            host.stage(Stage::Told)?;
            // If large transactions follow each other closely, what is handed out at once ends between parts each time.
            if self.checkpoint_waits && !committed.as_slice().iter().any(changes_conf) {
                self.begin_checkpoint(entry.term, host)?;
            }
        }
        self.router.feed_worker(&context!(self, host))?;
        host.stage(Stage::Fed)
    }

    /// The regions of the voters whose disks are known here to have the entry at `at`, for people.
    fn held_by(&self, at: LogIndex) -> String {
        let mut regions: Vec<&str> = Vec::new();
        for id in self.consensus.holders(at) {
            let region = self.members.region_of(id).map_or("", RegionId::as_str);
            if !regions.contains(&region) {
                regions.push(region);
            }
        }
        regions.join(", ")
    }

    fn set_members<H: Host<Store = S, Outbox = O>>(
        &mut self,
        members: Arc<Members>,
        host: &mut H,
    ) -> Result<(), H::Error> {
        // The log may have been written by a later release.
        let (needs, known) = (members.level, self.consensus.level());
        if needs > known {
            return Err(Error::Level { needs, known }.into());
        }
        host.has_members(&members, self.certifier.decided());
        self.positions.retain(|id, _| members.contains(*id));
        self.ways.retain(|id, _| members.contains(*id));
        let rest = (self.tick, self.settings.leader_rest_ticks);
        self.patience.belongs(&members.preferred_leader, members.leader_is_auto, rest);
        self.members = members;
        self.members_changed = true;
        // A node that was removed and is in no configuration any more has nothing left to do.
        match self.members.removed(self.id) && !self.consensus.conf().contains(self.id) {
            true => Err(host.removed(self.certifier.decided())),
            false => Ok(()),
        }
    }

    /// After a change of leader or term, proposals under way may be lost, so all are sent again at once.  Returns
    /// whether they were.
    fn notice_leader<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) -> Result<bool, H::Error> {
        let now = self.consensus.leadership();
        if self.leadership == Some(now) {
            return Ok(false);
        }
        let before = self.leadership.replace(now);
        host.has_leader(now, &self.members, self.certifier.decided());
        let same_leader = before.is_some_and(|b| b.leader == now.leader && b.term == now.term);
        if now.leader.is_none() || same_leader {
            return Ok(false);
        }
        self.propose_again(true, host)?;
        Ok(true)
    }

    fn hand_events<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        self.router.take_events().into_iter().for_each(|event| host.router_event(event));
    }

    /// The node is to stop in good order: from now on proposals are refused, and if it leads, it hands over, which
    /// spares the others an election timeout.
    pub fn stop<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        self.router.stop();
        self.step(Input::HandOver, host);
    }

    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// Who led when it last looked.
    pub fn leadership(&self) -> Option<Leadership> {
        self.leadership
    }

    /// Ticks since the start.
    pub fn ticks(&self) -> u64 {
        self.tick
    }
}
