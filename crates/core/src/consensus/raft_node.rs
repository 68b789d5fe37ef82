//! raft-rs 0.7.0 behind a narrow type: everything that reaches into it is in this file.
//!
//! raft-rs does not always do what one would expect.  This is what we do about it, what raft-rs does otherwise, and
//! which test would notice:
//!
//! - Appends are never joined ([`RaftNode::new`]); `proposals` joins what they are made of beforehand.  `try_batching`
//!   joins entries to a waiting append that has none, without looking where that append starts; after a rejection in
//!   the same batch a follower then acknowledges positions that it does not have.  Noticed by: the fixed seeds of the
//!   simulation; see `docs/decisions/2026-11-21-no-batched-appends.md`.
//! - No node is in term 0 ([`RaftNode::new`]): raft-rs panics when a member in term 0 refuses a pre-vote, as a
//!   preferred member that starts after the others would.  Noticed by: a test below.
//! - A leader that is not a voter any more steps down ([`RaftNode::apply_conf_change`]): in raft-rs it goes on leading,
//!   and panics when it counts itself.  Noticed by: `tests/membership`, a leader is replaced.
//! - The entry that leaves a joint configuration is sent at once ([`RaftNode::applied`]): raft-rs appends it, but sends
//!   it only with the next one.  Noticed by: `tests/membership`, a dead member is replaced.
//! - A heartbeat that counts on more than the log has is refused ([`RaftNode::step`]): raft-rs panics.  Noticed by: a
//!   test below.
//! - A message that no correct member would send is refused before it gets here (`received`), and one that contradicts
//!   what this node knows is refused in [`RaftNode::step`]: raft-rs panics or believes it.  Noticed by:
//!   `tests/membership/liar.rs`.
//! - Votes are passed over while this node's requests for them have not left, and so is an order to campaign while
//!   entries are not on disk ([`RaftNode::step`]): raft-rs panics when it wins before its log is on disk.  Noticed by:
//!   `tests/membership/liar.rs`.
//! - A leader that hands over votes at once, and its transferee counts that vote once its own is durable (`handover`):
//!   raft-rs drops what it is proposed meanwhile, and has the transferee ask for votes first.  Noticed by:
//!   `tests/consensus.rs`, a leader hands over.
//! - What a new leader is proposed at once goes with its first append ([`RaftNode::extend_first_appends`]): raft-rs
//!   sends an empty entry, and the rest when that is answered.  Noticed by: `tests/consensus.rs`, what comes during a
//!   hand-over.
//! - A leader proposes other members' proposals as its own; other nodes drop them (`proposals`): a raft-rs follower
//!   would hand them on under their first sender's name, which a transport takes for a forgery.  Noticed by: a test
//!   below, and every seed of the simulation.
//! - The caller sends heartbeats ([`RaftNode::ping`]): raft-rs counts its own in the same ticks as elections, which
//!   follow round trips.  Noticed by: `tests/membership`, long round trips.
//! - The election timeout is put into this node's own range: raft-rs draws from one range for all nodes.  Noticed by:
//!   `tests/membership`, the leader moves.
//! - Members learn from notices what is committed (`notices`): raft-rs tells them once the leader has heard from a
//!   majority, with an empty append to each.  Noticed by: `tests/consensus.rs`, a follower hands out.
//! - An answer to a heartbeat frees no place in a full narrow window ([`RaftNode::only_shows_life`]): raft-rs sends one
//!   more message for each answer, which a narrow link cannot carry.  Noticed by: `tests/consensus.rs`, a window.
//! - Followers that are behind have narrow windows (`backlog`): raft-rs sends everything that they lack at once.
//!   Noticed by: `crates/node/tests/membership.rs`, behind a small log.

use super::{Role, COMMITTED_BYTES_MAX, INFLIGHT_MESSAGES_MAX, MESSAGE_BYTES_MAX};
use crate::error::{Error, Result};
use crate::ids::{LogIndex, NodeId, Term};
use raft::eraftpb::{ConfChangeV2, ConfState, Entry as RaftEntry, HardState, Message, MessageType, SnapshotMetadata};
use raft::{
    GetEntriesContext, LightReady, Progress, ProgressState, RawNode, Ready, SnapshotStatus, StateRole, Storage,
};
use std::ops::Range;

/// No cluster holds so many elections while one of its nodes is away.  A node that took over any term from a message
/// could be led to the end of all terms by one of them.
const TERM_JUMP_MAX: u64 = 1 << 32;
/// With this, a voter answers although it hears a leader.
const HANDED_OVER: &[u8] = b"CampaignTransfer";

pub(super) struct RaftNode<S: Storage>(RawNode<S>);

/// What a leader knows of another member.
#[derive(Clone, Copy)]
pub(super) struct Follower {
    pub id: NodeId,
    pub matched: LogIndex,
    /// It has been heard from since raft last counted.
    pub active: bool,
    /// It has answered since anything that was under way to it was lost.
    pub answers: bool,
    pub gets_snapshot: bool,
}

impl Follower {
    fn of(id: NodeId, progress: &Progress) -> Follower {
        Follower {
            id,
            matched: LogIndex(progress.matched),
            active: progress.recent_active,
            answers: progress.state == ProgressState::Replicate,
            gets_snapshot: progress.state == ProgressState::Snapshot,
        }
    }
}

impl<S: Storage> RaftNode<S> {
    /// `election` is the range of all nodes' election timeouts, in ticks.
    pub fn new(id: NodeId, applied: LogIndex, ticks: usize, election: Range<usize>, log: S) -> Result<RaftNode<S>> {
        let config = raft::Config {
            id: u64::from(id.0),
            election_tick: ticks,
            heartbeat_tick: ticks - 1,
            min_election_tick: election.start,
            max_election_tick: election.end,
            applied: applied.0,
            max_size_per_msg: MESSAGE_BYTES_MAX,
            max_inflight_msgs: INFLIGHT_MESSAGES_MAX,
            max_committed_size_per_ready: COMMITTED_BYTES_MAX,
            check_quorum: true,
            pre_vote: true,
            batch_append: false,
            skip_bcast_commit: true,
            ..Default::default()
        };
        // raft-rs's own log lines are dropped: the node reports state changes itself.
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let mut raw = RawNode::new(&config, log, &logger)?;
        if raw.raft.term == 0 {
            raw.raft.become_follower(1, raft::INVALID_ID);
        }
        Ok(RaftNode(raw))
    }

    pub fn store(&self) -> &S {
        self.0.store()
    }

    pub fn store_mut(&mut self) -> &mut S {
        self.0.mut_store()
    }

    /// Takes a message from another member; one that comes too early or too late is passed over.
    pub fn step(&mut self, message: Message) -> Result<()> {
        let (last, leads) = (self.last(), self.leads());
        if message.term > self.term().0 + TERM_JUMP_MAX {
            return contradicts(
                &message,
                format!("it speaks of term {}, and this node is in {}", message.term, self.term()),
            );
        }
        let is_current = Term(message.term) >= self.term();
        match message.get_msg_type() {
            // raft-rs would send it on under the name of its first proposer, which a transport takes for a forgery.
            MessageType::MsgPropose => return Ok(()),
            // A leader ignores heartbeats of its own term.
            MessageType::MsgHeartbeat if is_current && !(leads && Term(message.term) == self.term()) => {
                let counted_on = LogIndex(message.commit);
                if counted_on > last {
                    return Err(Error::LostLog { counted_on, last });
                }
            }
            MessageType::MsgAppendResponse
                if is_current && leads && !message.reject && LogIndex(message.index) > last =>
            {
                return contradicts(
                    &message,
                    format!("it has entry {}, and this leader's log ends at {last}", message.index),
                );
            }
            MessageType::MsgSnapshot if is_current => {
                let (index, term) =
                    (message.get_snapshot().get_metadata().index, message.get_snapshot().get_metadata().term);
                if LogIndex(index) == self.committed() && !self.0.raft.raft_log.match_term(index, term) {
                    return contradicts(
                        &message,
                        format!("a snapshot of entry {index} in term {term}, which is committed in another"),
                    );
                }
            }
            // No member can have heard the question yet: it waits for the disk.
            MessageType::MsgRequestVoteResponse | MessageType::MsgRequestPreVoteResponse if self.asks_for_votes() => {
                return Ok(())
            }
            // It has this node's vote already, whichever of the two is to be preferred.
            MessageType::MsgRequestVote if Term(message.term) == self.term() && self.0.raft.vote == message.from => {
                self.set_priority(i64::MIN);
            }
            // A leader sends this only once it has heard that all of this node's log is on disk.
            MessageType::MsgTimeoutNow if self.persisted() != last => return Ok(()),
            _ => {}
        }
        match self.0.step(message) {
            // A leader that is handing over takes no proposals.
            Ok(()) | Err(raft::Error::ProposalDropped) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether its requests for votes have not left yet.
    pub fn asks_for_votes(&self) -> bool {
        let is_request =
            |m: &Message| matches!(m.get_msg_type(), MessageType::MsgRequestVote | MessageType::MsgRequestPreVote);
        self.0.raft.msgs.iter().any(is_request)
    }

    /// If `answer` is a follower's answer to a heartbeat and the follower's window is full, takes it: the follower is
    /// alive, but gets nothing more for that.  `false`: it is something else.
    pub fn only_shows_life(&mut self, answer: &Message) -> bool {
        let raft = &mut self.0.raft;
        let is_answer = answer.get_msg_type() == MessageType::MsgHeartbeatResponse;
        if !is_answer || raft.state != StateRole::Leader || answer.term != raft.term {
            return false;
        }
        let follower = raft.mut_prs().get_mut(answer.from);
        match follower.filter(|f| f.state == ProgressState::Replicate && f.ins.full()) {
            Some(follower) => {
                follower.recent_active = true;
                true
            }
            None => false,
        }
    }

    /// Whether there is a leader that is not handing over, as far as this node knows.
    pub fn takes_proposals(&self) -> bool {
        self.leader().is_some() && self.transferee().is_none()
    }

    /// Proposes all or nothing, in one message.
    pub fn propose(&mut self, entries: Vec<RaftEntry>) -> Result<()> {
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.0.raft.id;
        message.entries = entries.into();
        match self.0.step(message) {
            Err(raft::Error::ProposalDropped) => Err(Error::NoLeader),
            other => Ok(other?),
        }
    }

    /// A member whose log the leader does not know gets one append, and the next one when it has answered.  To be
    /// called after proposing, with where the log ended before: such an append that has not left yet, and ends there,
    /// gets the new entries too.
    pub fn extend_first_appends(&mut self, last: LogIndex) {
        let raft = &mut self.0.raft;
        let is_first = |m: &Message| {
            m.get_msg_type() == MessageType::MsgAppend
                && m.index + m.entries.len() as u64 == last.0
                && raft.prs().get(m.to).is_some_and(|member| member.state == ProgressState::Probe)
        };
        let first: Vec<usize> = (0..raft.msgs.len()).filter(|i| is_first(&raft.msgs[*i])).collect();
        if first.is_empty() {
            return;
        }
        let new = raft.raft_log.unstable_entries().iter().filter(|entry| entry.index > last.0);
        let (new, bytes_max) = (new.cloned().collect::<Vec<RaftEntry>>(), raft.max_msg_size as usize);
        for i in first {
            let append = &mut raft.msgs[i];
            let mut bytes: usize = append.entries.iter().map(|entry| entry.data.len()).sum();
            for entry in &new {
                bytes += entry.data.len();
                if bytes > bytes_max {
                    break;
                }
                append.mut_entries().push(entry.clone());
            }
        }
    }

    pub fn tick(&mut self) {
        self.0.tick();
    }

    /// Sends a heartbeat to all, if this node leads.
    pub fn ping(&mut self) {
        self.0.ping();
    }

    // ---- what it asks for ----

    pub fn has_ready(&self) -> bool {
        self.0.has_ready()
    }

    pub fn ready(&mut self) -> Ready {
        self.0.ready()
    }

    pub fn advance_append(&mut self, ready: Ready) -> LightReady {
        self.0.advance_append(ready)
    }

    /// The ready's entries can be read from the log, and are not durable yet.
    pub fn advance_append_async(&mut self, ready: Ready) {
        self.0.advance_append_async(ready);
    }

    pub fn on_persist_ready(&mut self, number: u64) {
        self.0.on_persist_ready(number);
    }

    pub fn hard_state(&self) -> HardState {
        self.0.raft.hard_state()
    }

    /// Entries have been handed out up to here.
    pub fn applied(&mut self, index: LogIndex) {
        let raft = &mut self.0.raft;
        let before = raft.raft_log.last_index();
        raft.commit_apply(index.0);
        if raft.raft_log.last_index() > before {
            raft.bcast_append();
        }
    }

    /// Carries out a change of the configuration; `None`: raft-rs refuses it.
    pub fn apply_conf_change(&mut self, change: &ConfChangeV2) -> Option<ConfState> {
        let conf = self.0.apply_conf_change(change).ok()?;
        let raft = &mut self.0.raft;
        let votes = conf.voters.contains(&raft.id) || conf.voters_outgoing.contains(&raft.id);
        if raft.state == StateRole::Leader && !votes {
            let term = raft.term;
            raft.become_follower(term, raft::INVALID_ID);
        }
        Some(conf)
    }

    /// Whether it would install a snapshot with this index and term.
    pub fn lacks(&self, snapshot: &SnapshotMetadata) -> bool {
        let log = &self.0.raft.raft_log;
        snapshot.index > log.committed && !log.match_term(snapshot.index, snapshot.term)
    }

    /// The index and term of the snapshot that it is about to install.
    pub fn to_install(&self) -> Option<(LogIndex, Term)> {
        let metadata = self.0.snap()?.get_metadata();
        Some((LogIndex(metadata.index), Term(metadata.term)))
    }

    // ---- who it is ----

    pub fn role(&self) -> Role {
        match self.0.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        }
    }

    pub fn leads(&self) -> bool {
        self.0.raft.state == StateRole::Leader
    }

    pub fn term(&self) -> Term {
        Term(self.0.raft.term)
    }

    pub fn leader(&self) -> Option<NodeId> {
        let leader = self.0.raft.leader_id;
        (leader != raft::INVALID_ID).then_some(NodeId(leader as u32))
    }

    pub fn committed(&self) -> LogIndex {
        LogIndex(self.0.raft.raft_log.committed)
    }

    pub fn last(&self) -> LogIndex {
        LogIndex(self.0.raft.raft_log.last_index())
    }

    /// Up to which index this node's disk has the log.
    pub fn persisted(&self) -> LogIndex {
        LogIndex(self.0.raft.raft_log.persisted)
    }

    pub fn term_at(&self, index: LogIndex) -> Option<Term> {
        self.0.raft.raft_log.term(index.0).ok().map(Term)
    }

    /// A majority has the log up to `index`, and so has this node (`notices`).
    pub fn commit_to(&mut self, index: LogIndex) {
        assert!(index <= self.persisted(), "{index} is committed and not on this disk");
        self.0.raft.raft_log.commit_to(index.0);
    }

    pub fn changes_configuration(&self) -> bool {
        self.0.raft.has_pending_conf()
    }

    // ---- elections ----

    /// A voter refuses a candidate of lower priority whose log is not longer than its own.
    pub fn set_priority(&mut self, priority: i64) {
        self.0.raft.set_priority(priority);
    }

    pub fn election_timeout_drawn(&self) -> usize {
        self.0.raft.randomized_election_timeout()
    }

    pub fn set_election_timeout(&mut self, ticks: usize) {
        self.0.raft.set_randomized_election_timeout(ticks);
    }

    /// Whether raft began to count so long ago that every active member has been heard from since.
    pub fn knows_who_is_active(&self) -> bool {
        self.0.raft.election_elapsed >= self.0.raft.election_timeout() / 2
    }

    /// Hands over to that voter as soon as it has the whole log.
    pub fn transfer_to(&mut self, to: NodeId) {
        self.0.transfer_leader(u64::from(to.0));
    }

    pub fn transferee(&self) -> Option<NodeId> {
        self.0.raft.lead_transferee.map(|id| NodeId(id as u32))
    }

    pub fn abort_transfer(&mut self) {
        self.0.raft.abort_leader_transfer();
    }

    /// Whom this leader has ordered to campaign, because it has the whole log; the order has not left yet.
    pub fn has_ordered_to_campaign(&self) -> Option<NodeId> {
        let transferee = self.transferee().filter(|_| self.leads())?;
        let orders = |m: &Message| m.get_msg_type() == MessageType::MsgTimeoutNow && m.to == u64::from(transferee.0);
        let has_all = |id: &NodeId| self.follower(*id).is_some_and(|follower| follower.matched == self.last());
        Some(transferee).filter(|_| self.0.raft.msgs.iter().any(orders)).filter(has_all)
    }

    /// This leader gives its place up and votes for a voter that has all of its log, as if that one had asked.
    pub fn vote_for(&mut self, transferee: NodeId) {
        let (id, term, last) = (self.0.raft.id, self.term(), self.last());
        let log_term = self.0.raft.raft_log.last_term();
        let mut request = Message { from: u64::from(transferee.0), to: id, term: term.0 + 1, ..Default::default() };
        request.set_msg_type(MessageType::MsgRequestVote);
        (request.index, request.log_term, request.priority) = (last.0, log_term, i64::MAX);
        // A leader asks for a vote in this way only when it hands over; otherwise nobody is heard who leads.
        request.context = HANDED_OVER.into();
        self.0.step(request).expect("raft answers every request for a vote");
        assert!(
            !self.leads() && self.0.raft.vote == u64::from(transferee.0),
            "a leader that hands over votes for its transferee"
        );
    }

    /// Whether it stands for election, after the pre-vote or without one.
    pub fn campaigns(&self) -> bool {
        self.0.raft.state == StateRole::Candidate
    }

    /// Sends proposals to a node that is about to lead, as its own.
    pub fn send_proposals(&mut self, to: NodeId, entries: Vec<RaftEntry>) {
        let mut message =
            Message { from: self.0.raft.id, to: u64::from(to.0), entries: entries.into(), ..Default::default() };
        message.set_msg_type(MessageType::MsgPropose);
        self.0.raft.msgs.push(message);
    }

    // ---- the others, as a leader knows them ----

    pub fn follower(&self, id: NodeId) -> Option<Follower> {
        self.0.raft.prs().get(u64::from(id.0)).map(|progress| Follower::of(id, progress))
    }

    /// All members of the configuration, including this node.
    pub fn followers(&self) -> impl Iterator<Item = Follower> + '_ {
        self.0.raft.prs().iter().map(|(id, progress)| Follower::of(NodeId(*id as u32), progress))
    }

    /// What is under way to this member may be lost.
    pub fn unreachable(&mut self, id: NodeId) {
        self.0.report_unreachable(u64::from(id.0));
    }

    /// The log now has entries that it refused before.
    pub fn fetched(&mut self, question: GetEntriesContext) {
        self.0.on_entries_fetched(question);
    }

    pub fn snapshot_lost(&mut self, id: NodeId) {
        self.0.report_snapshot(u64::from(id.0), SnapshotStatus::Failure);
    }

    /// How many append messages may be under way to this member.  If there are more, nothing is sent until enough are
    /// answered.
    pub fn set_window(&mut self, id: NodeId, messages: usize) {
        self.0.raft.adjust_max_inflight_msgs(u64::from(id.0), messages);
    }

    pub fn message_bytes_max(&self) -> usize {
        self.0.raft.max_msg_size as usize
    }

    pub fn set_message_bytes_max(&mut self, bytes: u64) {
        self.0.raft.max_msg_size = bytes;
    }
}

fn contradicts(message: &Message, why: String) -> Result<()> {
    Err(Error::Contradicts { from: NodeId(message.from as u32), why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use raft::storage::MemStorage;

    fn node(id: u32) -> RaftNode<MemStorage> {
        let log = MemStorage::new_with_conf_state((vec![1, 2, 3], vec![]));
        RaftNode::new(NodeId(id), LogIndex::ZERO, 10, 10..20, log).unwrap()
    }

    fn message(kind: MessageType, from: u64, term: u64) -> Message {
        let mut message = Message { from, to: 1, term, ..Default::default() };
        message.set_msg_type(kind);
        message
    }

    /// raft-rs panics here if a member in term 0 has the higher priority.
    #[test]
    fn a_member_that_never_voted_refuses_a_pre_vote() {
        let mut node = node(1);
        assert_eq!(node.term(), Term(1));
        node.set_priority(1);
        node.step(message(MessageType::MsgRequestPreVote, 2, 2)).unwrap();
        let answers = node.ready().take_persisted_messages();
        assert!(answers.iter().any(|m| m.get_msg_type() == MessageType::MsgRequestPreVoteResponse && m.reject));
    }

    #[test]
    fn a_heartbeat_that_counts_on_more_than_there_is_is_an_error() {
        let mut node = node(1);
        let heartbeat = Message { commit: 5, ..message(MessageType::MsgHeartbeat, 2, 1) };
        let lost = node.step(heartbeat.clone()).unwrap_err();
        assert!(matches!(lost, Error::LostLog { counted_on: LogIndex(5), last: LogIndex(0) }), "{lost}");
        // A heartbeat of an old leader is not even looked at.
        node.step(message(MessageType::MsgHeartbeat, 2, 3)).unwrap();
        node.step(heartbeat).unwrap();
    }

    #[test]
    fn a_term_that_no_cluster_reaches_is_not_taken_over() {
        let mut node = node(1);
        let refused = node.step(message(MessageType::MsgHeartbeat, 2, 2 + TERM_JUMP_MAX)).unwrap_err();
        assert!(matches!(refused, Error::Contradicts { .. }), "{refused}");
        assert_eq!(node.term(), Term(1));
        node.step(message(MessageType::MsgHeartbeat, 2, 1 + TERM_JUMP_MAX)).unwrap();
        assert_eq!(node.term(), Term(1 + TERM_JUMP_MAX));
    }

    #[test]
    fn a_proposal_of_another_goes_no_further() {
        let mut node = node(1);
        node.step(message(MessageType::MsgHeartbeat, 2, 1)).unwrap();
        assert_eq!(node.leader(), Some(NodeId(2)));
        let _ = node.ready().take_persisted_messages();
        let mut propose = message(MessageType::MsgPropose, 3, 0);
        propose.mut_entries().push(RaftEntry::default());
        node.step(propose).unwrap();
        assert!(node.0.raft.msgs.is_empty(), "{:?}", node.0.raft.msgs);
        node.propose(vec![RaftEntry::default()]).unwrap();
        assert_eq!(node.0.raft.msgs.len(), 1);
    }
}
