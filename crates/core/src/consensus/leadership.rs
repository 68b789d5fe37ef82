//! Who should lead, who may vote, and how long to wait for a leader.
//!
//! ```text
//!   election timeout, in units of `election_ticks`:   1      1.25   1.4  1.5   1.65  1.75  1.9  2.0   2.15
//!                                                     |preferred|    |first|    |second|   |others| |witness|
//! ```
//! The ranges do not overlap, so that voters do not split the vote: a preferred voter stands for election first, a
//! witness last.

use super::raft_node::Follower;
use super::{Config, Consensus, Input, Message};
use crate::ids::{LogIndex, NodeId};
use crate::members::{Change, Command, MemberRole, Members};
use raft::eraftpb::MessageType;
use raft::Storage;
use std::collections::BTreeMap;
use std::ops::Range;

/// After a transfer, none is considered for this many times `transfer_ticks`; and none to a preferred member for as
/// long after its connection broke.
const TRANSFER_PAUSE: usize = 10;
/// A member this close to the commit index may take over: nothing new is proposed while a transfer runs, so it arrives.
const TRANSFER_LAG_MAX: u64 = 1024;
/// A learner whose log and PostgreSQL are this close may vote; and the leader is not moved to where PostgreSQL lags
/// more.
pub const PROMOTE_LAG_MAX: u64 = 10_000;
/// After so many election timeouts without a leader, no member is preferred any more.
const PREFERENCE_TIMEOUTS: usize = 4;
/// raft-rs priorities: a voter refuses a candidate of lower priority whose log is not longer than its own.
const PREFERRED: i64 = 1;
const NOT_PREFERRED: i64 = -1;

pub(super) struct Timing {
    base: usize,
    /// How many ticks make an election timeout.  If more than `base`, raft's clock is slowed down.
    wanted: usize,
    credit: usize,
    to_heartbeat: usize,
    to_transfer: usize,
    /// For so many ticks the leader is not moved to a preferred member, because a connection to one broke.
    not_to_preferred: usize,
    leaderless: usize,
    /// The range of all nodes' election timeouts, and that of this node's.
    pub widest: Range<usize>,
    pub election: Range<usize>,
    /// What this node is in the table of members now.
    preferred: bool,
    witness: bool,
    /// For each snapshot under way, how many ticks ago it left.
    snapshots: BTreeMap<NodeId, usize>,
}

impl Timing {
    pub fn new(config: &Config) -> Timing {
        let base = config.election_ticks;
        Timing {
            base,
            wanted: base,
            credit: 0,
            to_heartbeat: config.heartbeat_ticks,
            to_transfer: config.transfer_ticks,
            not_to_preferred: 0,
            leaderless: 0,
            widest: range(base, 100, 215),
            election: range(base, 100, 215),
            preferred: false,
            witness: false,
            snapshots: BTreeMap::new(),
        }
    }
}

fn range(base: usize, from: usize, to: usize) -> Range<usize> {
    let start = (base * from).div_ceil(100);
    start..(base * to / 100).max(start + 1)
}

impl<S: Storage> Consensus<S> {
    /// Sets how long a follower waits for its leader, in ticks; this follows measured round trips, and is never less
    /// than configured.  Heartbeats keep their pace.
    pub fn set_election_ticks(&mut self, ticks: usize) {
        self.timing.wanted = ticks.max(self.timing.base);
    }

    /// Which members the leader is best at, the best first; of several that the table prefers, the first is taken.
    pub fn set_places(&mut self, places: Vec<NodeId>) {
        self.places = places;
    }

    /// If this node leads, `transferee` takes over as soon as it has the whole log.
    pub fn transfer_to(&mut self, transferee: NodeId) {
        if self.raft.leads() && self.conf.voters.contains(&transferee) {
            self.raft.transfer_to(transferee);
            // So that leadership does not move back at once.
            self.timing.to_transfer = self.config.transfer_ticks * TRANSFER_PAUSE;
        }
    }

    pub(super) fn tick(&mut self) {
        let timing = &mut self.timing;
        timing.credit += timing.base;
        if timing.credit >= timing.wanted {
            timing.credit -= timing.wanted;
            if self.raft.leads() || !self.waits_for_disk() {
                self.raft.tick();
            }
        }
        self.unsynced.tick();
        if self.disk_is_silent() && self.raft.transferee().is_none() {
            self.hand_over();
        }
        let timing = &mut self.timing;
        timing.leaderless = if self.raft.leader().is_none() { timing.leaderless + 1 } else { 0 };
        timing.to_heartbeat = timing.to_heartbeat.saturating_sub(1);
        if timing.to_heartbeat == 0 {
            timing.to_heartbeat = self.config.heartbeat_ticks;
            self.raft.ping();
        }
        self.look_for_lost_appends();
        self.consider_transfer();
    }

    /// The table of members has changed: works out what this node is in it.
    pub(super) fn take_seat(&mut self) {
        let (me, members, base) = (self.config.id, &self.members, self.timing.base);
        let (preferred, witness) =
            (members.is_preferred(me), members.get(me).is_some_and(|m| m.role == MemberRole::Witness));
        let others = members.voters().filter(|m| m.role == MemberRole::Voter && !members.is_preferred(m.id));
        let election = match others.take_while(|m| m.id != me).count() {
            _ if preferred => range(base, 100, 125),
            _ if witness => range(base, 200, 215),
            0 => range(base, 125, 140),
            1 => range(base, 150, 165),
            _ => range(base, 175, 190),
        };
        (self.timing.preferred, self.timing.witness, self.timing.election) = (preferred, witness, election);
    }

    /// Fits election timeout and priority to what this node is and to what has happened.  To be called after each
    /// input.
    pub(super) fn fit_timing(&mut self) {
        let Timing { preferred, witness, leaderless, wanted, .. } = self.timing;
        // A preferred voter may have entries that newer ones of its peers are to replace.  It refuses those peers, and
        // cannot win itself either, so the preference expires.  In the same way, a leader that steps back could refuse
        // its transferee.
        let preference_expired = leaderless > PREFERENCE_TIMEOUTS * wanted;
        let stepping_back = self.raft.transferee().is_some();
        self.raft.set_priority(match () {
            () if preference_expired || stepping_back || witness => NOT_PREFERRED,
            () if preferred => PREFERRED,
            () => 0,
        });
        // raft-rs has drawn from the range of all nodes; this picks a timeout from the range of this node.
        let (drawn, own) = (self.raft.election_timeout_drawn(), &self.timing.election);
        if !own.contains(&drawn) {
            self.raft.set_election_timeout(own.start + drawn % (own.end - own.start));
        }
    }

    /// At least one message of this type to `peer` has been lost.
    pub(super) fn lost(&mut self, peer: NodeId, what: MessageType) {
        self.raft.unreachable(peer);
        let is_snapshot = what == MessageType::MsgSnapshot;
        if is_snapshot && self.raft.follower(peer).is_some_and(|f| f.gets_snapshot) {
            self.raft.snapshot_lost(peer);
        }
        // A transferee that is gone would keep proposals waiting until the transfer times out.
        if self.raft.transferee() == Some(peer) {
            self.raft.abort_transfer();
        }
        self.may_not_succeed(peer);
        // Nothing else pauses: the member may come and go for days.
        if self.members.is_preferred(peer) {
            self.timing.not_to_preferred = self.config.transfer_ticks * TRANSFER_PAUSE;
        }
    }

    /// If this node leads, the best voter takes over: one that is active, then one with a PostgreSQL, then one that is
    /// near and whose log has what others lack, then the one whose log is furthest.
    pub(super) fn hand_over(&mut self) {
        if !self.raft.leads() {
            return;
        }
        let candidates = self.conf.voters.iter().filter(|id| **id != self.config.id).filter_map(|id| {
            let transferee = self.raft.follower(*id)?;
            // Activity is counted anew once per election timeout, so at times no follower is active.  Of equals, the
            // lowest id.
            let is_data_voter = self.members.is_data_voter(*id);
            // One that is far behind takes over nothing in time, however far back its log begins.
            let could = !transferee.gets_snapshot && self.could_take_over(*id);
            let is_there = (transferee.active, is_data_voter, could, transferee.answers);
            Some((is_there, transferee.matched, u32::MAX - id.0, *id))
        });
        if let Some((.., transferee)) = candidates.max() {
            self.transfer_to(transferee);
        }
    }

    /// An answer to a heartbeat has an `index` that raft-rs does not use: it is where the sender's log begins; 0 if its
    /// release does not say so.
    pub(super) fn say_beginning(&self, message: &mut Message) {
        if message.get_msg_type() == MessageType::MsgHeartbeatResponse {
            message.index = self.raft.store().first_index().unwrap_or_default();
        }
    }

    pub(super) fn hear_beginning(&mut self, message: &Message) {
        let is_answer =
            message.get_msg_type() == MessageType::MsgHeartbeatResponse && message.term == self.raft.term().0;
        if is_answer && self.raft.leads() {
            self.begins.insert(NodeId(message.from as u32), LogIndex(message.index));
        }
    }

    /// Whether that member's log goes back as far as any other member needs which this leader's own log could bring on.
    /// One that lacks entries from before its leader's log gets a snapshot, and its PostgreSQL has to be copied.
    fn has_what_others_lack(&self, id: NodeId) -> bool {
        let Some(begins) = self.begins.get(&id).copied() else { return false };
        let first = LogIndex(self.raft.store().first_index().unwrap_or(u64::MAX));
        // What it has acknowledged says exactly how far its log goes.  What it shows does not: it counts entries behind
        // the last committed one.  One of which this leader knows nothing is in nobody's way: logs begin where their
        // segments do, and one that does not come back would keep the leader here for ever.
        let shows = |f: Follower| self.positions.get(&f.id).copied().unwrap_or_default();
        let has = |f: Follower| if f.matched > LogIndex::ZERO { f.matched } else { shows(f) };
        let has_rows = |id| self.members.get(id).is_some_and(|m| m.role.has_postgres());
        let others = self.raft.followers().filter(|f| f.id != id && f.id != self.config.id && has_rows(f.id));
        let mut needed = others.map(has).filter(|has| *has > LogIndex::ZERO).map(|has| has.next());
        needed.all(|from| from < first || from >= begins)
    }

    /// Whether that member's log is near enough to this leader's for a transfer, and goes back as far as is needed.  A
    /// node that does not lead cannot know, and says yes.
    pub fn could_take_over(&self, id: NodeId) -> bool {
        !self.raft.leads() || self.is_near(id) && self.has_what_others_lack(id)
    }

    fn is_near(&self, id: NodeId) -> bool {
        let committed = self.raft.committed().0;
        self.raft.follower(id).is_some_and(|follower| follower.matched.0 + TRANSFER_LAG_MAX >= committed)
    }

    /// A leader outside the preferred region hands over to a member there that is alive and lacks nothing of the log
    /// except what is under way, nor what another member needs; a witness hands over to any voter with a PostgreSQL
    /// that lacks no more than what is under way.  Raft gives up a transfer that has not succeeded after an election
    /// timeout.  The next try waits longer, so that a member that keeps failing does not stop proposals again and
    /// again.
    fn consider_transfer(&mut self) {
        let timing = &mut self.timing;
        if !self.raft.leads() {
            // A new leader first finds out who is alive.
            timing.to_transfer = timing.to_transfer.max(self.config.transfer_ticks * 2);
            timing.snapshots.clear();
            self.begins.clear();
            return;
        }
        timing.to_transfer = timing.to_transfer.saturating_sub(1);
        timing.not_to_preferred = timing.not_to_preferred.saturating_sub(1);
        self.look_for_lost_snapshots();
        // At each election timeout raft forgets who is active.  Looks that always came right after that would never
        // find anybody.
        if self.timing.to_transfer > 0 || !self.raft.knows_who_is_active() {
            return;
        }
        self.timing.to_transfer = self.config.transfer_ticks;
        let (raft, members, me) = (&self.raft, &self.members, self.config.id);
        let is_active = |id: &&NodeId| raft.follower(**id).is_some_and(|f| f.active);
        let voters = &self.conf.voters;
        let may_move = self.timing.not_to_preferred == 0;
        let able = voters.iter().filter(is_active).filter(|id| self.could_take_over(**id));
        let preferred = able.filter(|id| may_move && members.is_preferred(**id));
        let place = |id: &&NodeId| self.places.iter().position(|place| place == *id).unwrap_or(usize::MAX);
        let preferred = preferred.min_by_key(place);
        if let Some(transferee) = preferred.copied().filter(|_| !members.is_preferred(me)) {
            return self.transfer_to(transferee);
        }
        let any = voters.iter().filter(is_active).find(|id| self.is_near(**id) && members.is_data_voter(**id));
        let any = any.copied().filter(|_| !members.is_data_voter(me));
        // A change that is under way comes first: the transferee may be about to be replaced, and would only hand back.
        let is_under_way = self.consider_promotion();
        if let Some(transferee) = any.filter(|_| !is_under_way) {
            self.transfer_to(transferee);
        }
    }

    /// A learner that is meant to vote becomes a voter once its log and PostgreSQL have caught up.  Returns whether a
    /// change of the configuration is under way now.
    fn consider_promotion(&mut self) -> bool {
        let raft = &self.raft;
        if raft.changes_configuration() || self.conf.is_joint() {
            return true;
        }
        let committed = raft.committed().0;
        let near = |index: u64| index + PROMOTE_LAG_MAX >= committed;
        let caught_up = self.members.members.iter().filter(|m| {
            !m.voter
                && m.role.votes()
                && raft.follower(m.id).is_some_and(|f| f.active && near(f.matched.0))
                && self.positions.get(&m.id).is_some_and(|applied: &LogIndex| near(applied.0))
                && self.rows_stay(&Change::Promote(m.id))
        });
        // An only voter has nobody to hand over to, and would try for ever.
        let alone = self.conf.voters.iter().eq([&self.config.id]);
        let caught_up = caught_up.filter(|m| !alone || m.replaces != Some(self.config.id));
        let version = self.members.version;
        let mut commands = caught_up.map(|m| Command { expected_version: version, change: Change::Promote(m.id) });
        // A command that the table refuses does not keep the others waiting.
        if let Some(command) = commands.find(|command| Members::clone(&self.members).apply(command).is_ok()) {
            // If it is not taken now, the next look comes soon.
            let _ = self.take(Input::Change(command));
            return true;
        }
        false
    }

    /// The members to which this leader is sending a snapshot.
    pub fn snapshots_under_way(&self) -> Vec<NodeId> {
        match self.raft.leads() {
            true => self.raft.followers().filter(|f| f.gets_snapshot).map(|f| f.id).collect(),
            false => Vec::new(),
        }
    }

    /// The snapshot for this member has not left yet, or is certainly on its way.  To be called before each tick for
    /// which that is so: then the snapshot does not count as lost, however long it takes.
    pub fn snapshot_moves(&mut self, id: NodeId) {
        self.timing.snapshots.insert(id, 0);
    }

    fn look_for_lost_snapshots(&mut self) {
        let under_way = self.snapshots_under_way();
        self.timing.snapshots.retain(|id, _| under_way.contains(id));
        for id in under_way {
            let ticks = self.timing.snapshots.entry(id).or_default();
            *ticks += 1;
            if *ticks > self.config.snapshot_ticks {
                // The next one may be under way before this is looked at again.
                *ticks = 0;
                self.raft.snapshot_lost(id);
            }
        }
    }
}
