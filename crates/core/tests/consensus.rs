//! The Raft driver: three of them in one thread, with ticks and messages given by hand and disks in memory.

use bytes::Bytes;
use onetrip_core::certifier::Limits;
use onetrip_core::consensus::{Config, Consensus, EntryType, Input, Message, Notice, Opened, Output, Role};
use onetrip_core::{
    Base, Checkpoint, Entry, Error, Key, LockMode, LogIndex, Member, MemberRole, Members, NodeId, Term, TxnId,
};
use raft::eraftpb::{ConfState, MessageType};
use raft::storage::MemStorage;
use raft::Storage;
use std::collections::VecDeque;

enum Sent {
    Message(Message),
    /// Sender and receiver, counted from 0.
    Notice(usize, usize, Notice),
}

struct World {
    nodes: Vec<Option<Consensus<MemStorage>>>,
    disks: Vec<MemStorage>,
    committed: Vec<Vec<(LogIndex, Bytes)>>,
    wire: VecDeque<Sent>,
    /// A node that neither hears nor is heard.
    cut: Option<u64>,
    /// A node, counted from 0, that syncs only when it is told to; and the last output of its that waits for that.
    slow: Option<usize>,
    unsynced: u64,
}

fn config(id: u32, applied: u64) -> Config {
    Config {
        id: NodeId(id),
        limits: Limits::default(),
        applied: LogIndex(applied),
        level: onetrip_core::level::KNOWN,
        heartbeat_ticks: 2,
        election_ticks: 10,
        transfer_ticks: 5,
        snapshot_ticks: 100,
    }
}

/// The leader belongs with node 1.
fn members() -> Members {
    let member = |id: u32| Member {
        id: NodeId(id),
        region: format!("r{id}").as_str().into(),
        address: format!("host:{id}"),
        role: MemberRole::Voter,
        voter: true,
        slot: Some(id),
        replaces: None,
        joined: None,
    };
    Members::bootstrap((1..=3).map(member).collect(), "r1".into(), 8)
}

fn say(wire: &mut VecDeque<Sent>, i: usize, out: &mut Output) {
    wire.extend(out.send_after.drain(..).map(Sent::Message));
    if let Some(notice) = out.notice {
        wire.extend((0..3).filter(|to| *to != i).map(|to| Sent::Notice(i, to, notice)));
    }
}

/// The next message on the wire.
fn message_of(world: &mut World) -> Message {
    loop {
        match world.wire.pop_front().expect("something was sent") {
            Sent::Message(message) => return message,
            Sent::Notice(..) => {}
        }
    }
}

impl World {
    fn new() -> World {
        let disks: Vec<_> = (0..3).map(|_| MemStorage::new_with_conf_state((vec![1, 2, 3], vec![]))).collect();
        let (nodes, committed, wire) = (vec![], vec![vec![]; 3], VecDeque::new());
        let mut world = World { nodes, disks, committed, wire, cut: None, slow: None, unsynced: 0 };
        for i in 0..3 {
            world.nodes.push(None);
            world.start(i);
        }
        world
    }

    /// Starts a node from its disk; everything is handed out again.
    fn start(&mut self, i: usize) {
        self.committed[i].clear();
        self.nodes[i] = Some(Consensus::new(config(i as u32 + 1, 0), self.disks[i].clone(), members().into()).unwrap());
    }

    /// Does what node `i` has to do, in the order that the driver asks for.
    fn work(&mut self, i: usize) {
        let Some(node) = &mut self.nodes[i] else { return };
        let mut out = Output::default();
        for _ in 0..1000 {
            if !node.poll(&mut out) {
                return;
            }
            if node.leadership().role != Role::Leader {
                assert!(out.send_now.is_empty(), "only a leader may speak before its disk: {:?}", out.send_now);
            }
            self.wire.extend(out.send_now.drain(..).map(Sent::Message));
            let mut keep = |out: &mut Output| {
                self.committed[i].extend(out.committed.drain(..).map(|c| (c.index, c.data)));
            };
            keep(&mut out);
            let persist = out.persist.take();
            let mut is_durable = !node.waits_for_disk();
            if let Some(persist) = persist {
                let mut disk = self.disks[i].wl();
                disk.append(&persist.entries).unwrap();
                disk.set_hardstate(persist.hard_state);
                is_durable = self.slow != Some(i) || !persist.may_wait;
                if !is_durable {
                    self.unsynced = persist.number;
                }
            }
            if is_durable {
                node.persisted(&mut out);
            } else {
                node.written(&mut out);
                assert!(out.send_after.is_empty() && out.notice.is_none());
            }
            keep(&mut out);
            say(&mut self.wire, i, &mut out);
        }
        panic!("node {} has work without end", i + 1);
    }

    /// The slow node's disk has everything by now.
    fn sync(&mut self) {
        let i = self.slow.expect("one is slow");
        let (node, mut out) = (self.nodes[i].as_mut().expect("it runs"), Output::default());
        node.synced(self.unsynced, &mut out);
        assert!(!node.waits_for_disk());
        say(&mut self.wire, i, &mut out);
        self.work(i);
        self.deliver();
    }

    fn give(&mut self, i: usize, input: Input) {
        self.nodes[i].as_mut().expect("it runs").step(input).unwrap();
        self.work(i);
    }

    fn deliver(&mut self) {
        for _ in 0..100_000 {
            let Some(sent) = self.wire.pop_front() else { return };
            let (from, to) = match &sent {
                Sent::Message(message) => (message.from as usize - 1, message.to as usize - 1),
                Sent::Notice(from, to, _) => (*from, *to),
            };
            if self.cut.is_some_and(|c| c == from as u64 + 1 || c == to as u64 + 1) {
                continue;
            }
            if let Some(node) = &mut self.nodes[to] {
                let input = match sent {
                    Sent::Message(message) => Input::Message(message),
                    Sent::Notice(_, _, notice) => Input::Notice(NodeId(from as u32 + 1), notice),
                };
                node.step(input).unwrap();
            }
            self.work(to);
        }
        panic!("messages without end");
    }

    fn ticks(&mut self, n: usize) {
        for _ in 0..n {
            for i in 0..3 {
                if let Some(node) = &mut self.nodes[i] {
                    node.step(Input::Tick).unwrap();
                }
                self.work(i);
            }
            self.deliver();
        }
    }

    fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        for _ in 0..500 {
            if done(self) {
                return;
            }
            self.ticks(1);
        }
        panic!("never: {what}");
    }

    fn leads(&self, i: usize) -> bool {
        self.nodes[i].as_ref().is_some_and(|n| n.leadership().role == Role::Leader)
    }

    fn propose(&mut self, i: usize, data: &'static str) -> Result<(), Error> {
        let node = self.nodes[i].as_mut().expect("it runs");
        node.step(Input::Propose(Bytes::from_static(data.as_bytes())))?;
        self.work(i);
        self.deliver();
        Ok(())
    }

    fn texts(&self, i: usize) -> Vec<&str> {
        let all = self.committed[i].iter().enumerate().map(|(n, (index, data))| {
            assert_eq!(index.0, n as u64 + 1, "each index once, in order");
            std::str::from_utf8(data).unwrap()
        });
        all.filter(|t| !t.is_empty()).collect()
    }
}

/// Goal: a node's own copy of an entry counts only when it is durable, and until then it hands nothing out.
/// Method: node 3 is away, so the entry needs both others; one of them writes it, and syncs it later.
#[test]
fn what_is_written_counts_once_it_is_durable() {
    for slow in [0, 1] {
        let mut world = World::new();
        world.until("node 1 leads", |w| w.leads(0));
        world.cut = Some(3);
        world.slow = Some(slow);
        world.propose(0, "one").unwrap();
        world.propose(0, "two").unwrap();
        world.ticks(3);
        assert!(world.leads(0) && world.nodes[slow].as_ref().unwrap().waits_for_disk());
        for i in [0, 1] {
            assert!(world.texts(i).is_empty(), "node {} hands out {:?}", i + 1, world.texts(i));
        }
        assert_eq!(world.nodes[slow].as_ref().unwrap().last_on_disk().index, LogIndex(1));
        world.sync();
        for i in [0, 1] {
            assert_eq!(world.texts(i), ["one", "two"], "node {}", i + 1);
        }
    }
}

/// Goal: a majority does not wait for a slow disk, not even for the leader's.
#[test]
fn two_disks_of_three_are_enough() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    world.slow = Some(0);
    world.propose(0, "one").unwrap();
    world.ticks(3);
    assert_eq!((world.texts(1), world.texts(2)), (vec!["one"], vec!["one"]));
    assert!(world.texts(0).is_empty(), "its own disk does not have it");
    world.sync();
    assert_eq!(world.texts(0), ["one"]);
}

fn append_to_3(term: u64, after: (u64, u64), entries: std::ops::RangeInclusive<u64>) -> Message {
    let mut append = Message { from: 1, to: 3, term, log_term: after.0, index: after.1, ..Default::default() };
    append.set_msg_type(MessageType::MsgAppend);
    append.entries = entries.map(|index| raft::eraftpb::Entry { index, term, ..Default::default() }).collect();
    append
}

/// Goal: of what a follower is asked to write, only entries that follow its log may wait for the disk; and what it says
/// about an entry waits as long as the entry, also when it is sent the entry again.
#[test]
fn a_follower_acknowledges_nothing_before_its_disk_has_it() {
    let disk = MemStorage::new_with_conf_state((vec![1, 2, 3], vec![]));
    let mut node = Consensus::new(config(3, 0), disk.clone(), members().into()).unwrap();
    let mut out = Output::default();
    let give = |node: &mut Consensus<MemStorage>, out: &mut Output, append: Message, waits: bool| {
        node.step(Input::Message(append)).unwrap();
        assert!(node.poll(out));
        let persist = out.persist.take();
        if let Some(persist) = &persist {
            assert_eq!(persist.may_wait, waits, "{persist:?}");
            let mut disk = disk.wl();
            disk.append(&persist.entries).unwrap();
            disk.set_hardstate(persist.hard_state.clone());
        }
        match waits {
            true => node.written(out),
            false => node.persisted(out),
        }
        let said = out.send_after.iter().map(|m| (m.term, m.index)).collect::<Vec<_>>();
        (persist.map_or(0, |p| p.number), said)
    };
    // A new term is a promise.
    assert_eq!(give(&mut node, &mut out, append_to_3(2, (0, 0), 1..=2), false).1, [(2, 2)]);
    let (first, said) = give(&mut node, &mut out, append_to_3(2, (2, 2), 3..=3), true);
    assert!(said.is_empty() && out.notice.is_none());
    let (second, said) = give(&mut node, &mut out, append_to_3(2, (2, 3), 4..=5), true);
    assert!(said.is_empty());
    let (nothing, said) = give(&mut node, &mut out, append_to_3(2, (2, 2), 3..=5), true);
    assert!(said.is_empty() && nothing == 0 && node.last_on_disk().index == LogIndex(2));
    node.synced(first, &mut out);
    assert_eq!(out.send_after.iter().map(|m| m.index).collect::<Vec<_>>(), [3]);
    assert_eq!(out.notice, Some(Notice { term: Term(2), index: LogIndex(3) }));
    // The same entries are acknowledged once, with those that the last message repeated.
    node.synced(second, &mut out);
    assert_eq!(out.send_after.iter().map(|m| m.index).collect::<Vec<_>>(), [5]);
    assert!(!node.waits_for_disk() && node.last_on_disk().index == LogIndex(5));
    node.synced(second, &mut out);
    assert!(out.send_after.is_empty() && out.notice.is_none());
    assert!(!node.poll(&mut out));
    // Entries that replace others are durable at once, and with them what waited.
    let (_, said) = give(&mut node, &mut out, append_to_3(2, (2, 5), 6..=7), true);
    assert!(said.is_empty());
    assert_eq!(give(&mut node, &mut out, append_to_3(3, (2, 5), 6..=6), false).1, [(2, 7), (3, 6)]);
    assert!(!node.waits_for_disk());
    // Also if the term is no news.
    let mut heartbeat = Message { from: 2, to: 3, term: 4, ..Default::default() };
    heartbeat.set_msg_type(MessageType::MsgHeartbeat);
    give(&mut node, &mut out, heartbeat, false);
    let mut append = append_to_3(4, (2, 5), 6..=8);
    append.from = 2;
    assert_eq!(give(&mut node, &mut out, append, false).1, [(4, 8)]);
    node.synced(u64::MAX, &mut out);
    assert!(out.send_after.is_empty());
}

/// Goal: the others need only one of their disks, not both, when the leader's hangs for long.
#[test]
fn a_leader_whose_disk_hangs_hands_over() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    world.slow = Some(0);
    world.propose(0, "one").unwrap();
    world.ticks(8);
    let status = |w: &World| w.nodes[0].as_ref().unwrap().status();
    assert_eq!((status(&world).leadership.role, status(&world).disk_silent_ticks), (Role::Leader, 8));
    world.until("another node leads", |w| w.leads(1) || w.leads(2));
    assert_eq!((world.texts(1), world.texts(2)), (vec!["one"], vec!["one"]));
    // A new term is a promise, for which it has waited.
    world.ticks(3);
    assert_eq!(world.texts(0), ["one"]);
    assert_eq!(status(&world).leadership.role, Role::Follower);
    world.sync();
    assert_eq!(status(&world).disk_silent_ticks, 0);
}

/// Goal: a leader does not have its successor wait for a disk that does not answer.
#[test]
fn a_leader_whose_disk_is_silent_hands_over_without_its_vote() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    world.slow = Some(0);
    world.propose(0, "one").unwrap();
    world.ticks(3);
    world.wire.clear();
    world.give(0, Input::HandOver);
    assert!(world.leads(0));
    assert_eq!(message_of(&mut world).get_msg_type(), MessageType::MsgTimeoutNow);
    assert!(world.wire.is_empty());
}

/// Goal: raft-rs panics when a node wins an election before its log is on its disk; such a node does not stand.
#[test]
fn who_waits_for_its_disk_does_not_stand_for_election() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    world.slow = Some(2);
    world.propose(0, "one").unwrap();
    world.cut = Some(3);
    world.ticks(100);
    let role = |w: &World| w.nodes[2].as_ref().unwrap().leadership().role;
    assert_eq!(role(&world), Role::Follower);
    world.sync();
    world.ticks(100);
    assert_eq!(role(&world), Role::Candidate);
}

#[test]
fn the_preferred_member_leads_and_proposals_from_anywhere_commit_in_one_order() {
    let mut world = World::new();
    assert!(matches!(world.propose(1, "too early"), Err(Error::NoLeader)));
    world.until("node 1 leads", |w| w.leads(0));
    for (i, text) in [(0, "a"), (1, "b"), (2, "c"), (0, "d")] {
        world.propose(i, text).unwrap();
    }
    world.ticks(5);
    for i in 0..3 {
        assert_eq!(world.texts(i), ["a", "b", "c", "d"]);
    }
}

#[test]
fn a_lone_leader_commits_nothing_and_the_others_go_on_until_it_is_back_and_leads_again() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    world.propose(0, "before").unwrap();
    world.cut = Some(1);
    world.propose(0, "alone").unwrap();
    world.until("another leads", |w| w.leads(1) || w.leads(2));
    let leader = if world.leads(1) { 1 } else { 2 };
    world.propose(leader, "after").unwrap();
    assert_eq!(world.texts(0), ["before"]);
    world.cut = None;
    world.until("node 1 leads again", |w| w.leads(0));
    world.ticks(5);
    for i in 0..3 {
        assert_eq!(world.texts(i), ["before", "after"]);
    }
}

#[test]
fn a_restarted_node_gets_everything_again_from_its_disk() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    world.propose(0, "a").unwrap();
    world.propose(2, "b").unwrap();
    world.nodes[2] = None;
    world.propose(0, "c").unwrap();
    world.start(2);
    world.until("all again", |w| w.texts(2) == ["a", "b", "c"]);
}

#[test]
fn a_leader_that_hands_over_is_followed_without_an_election_timeout() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    world.nodes[0].as_mut().unwrap().step(Input::HandOver).unwrap();
    world.work(0);
    world.deliver();
    assert!(!world.leads(0) && (world.leads(1) || world.leads(2)));
}

/// Goal: a preferred member that starts after the others refuses their pre-vote in good order.
/// Method: it has never voted; the election timeout of another member passes first.
#[test]
fn a_new_member_may_refuse_a_pre_vote() {
    let mut world = World::new();
    for _ in 0..100 {
        let node = world.nodes[1].as_mut().unwrap();
        node.step(Input::Tick).unwrap();
        world.work(1);
        world.deliver();
    }
    world.until("someone leads", |w| (0..3).any(|i| w.leads(i)));
}

/// Goal: a follower knows of a commit as soon as it can hear that the leader's disk has the entry, before the leader
/// itself knows.
/// Method: what goes to the other follower, and all answers, stay on their way.
#[test]
fn a_follower_hands_out_what_the_leader_and_it_have() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    world.nodes[0].as_mut().unwrap().step(Input::Propose(Bytes::from_static(b"a"))).unwrap();
    world.work(0);
    for sent in std::mem::take(&mut world.wire) {
        match sent {
            Sent::Message(message) if message.to == 2 => world.give(1, Input::Message(message)),
            Sent::Notice(0, 1, notice) => world.give(1, Input::Notice(NodeId(1), notice)),
            _ => {}
        }
    }
    assert_eq!(world.texts(1), ["a"]);
    assert!(world.texts(0).is_empty());
}

/// Goal: what waits together leaves together: proposals, appends, acknowledgements.
#[test]
fn many_proposals_make_one_message_to_the_leader_one_append_and_one_acknowledgement() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    world.ticks(5);
    let texts: Vec<String> = (0..40).map(|n| format!("of {n}")).collect();
    for (i, raw) in texts.iter().map(|text| Bytes::from(text.clone().into_bytes())).enumerate() {
        world.nodes[i % 2].as_mut().unwrap().step(Input::Propose(raw)).unwrap();
    }
    // The follower's proposals go to the leader, which has not handed its own to Raft yet.
    world.work(1);
    let Some(Sent::Message(forwarded)) = world.wire.pop_front() else { panic!("no proposal") };
    assert_eq!((forwarded.get_msg_type(), forwarded.entries.len()), (MessageType::MsgPropose, 20));
    assert!(world.wire.is_empty());
    world.give(0, Input::Message(forwarded));
    let appends = world.wire.iter().filter_map(|sent| match sent {
        Sent::Message(m) if m.get_msg_type() == MessageType::MsgAppend => Some((m.to, m.entries.len())),
        _ => None,
    });
    let appends: Vec<_> = appends.collect();
    assert_eq!(appends, [(2, 40), (3, 40)]);
    world.deliver();
    for i in 0..3 {
        assert_eq!(world.texts(i).len(), 40);
    }
}

/// Goal: what is proposed again because its way takes long is in the log once: a transaction, and what cancels it or
/// leaves it out.
/// Method: the leader gets it three times: from itself, from a follower, and after it is committed.
#[test]
fn a_leader_puts_a_transaction_into_the_log_once() {
    let txn = TxnId { node: NodeId(2), incarnation: 1, sequence: 1 };
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    is_logged_once(&mut world, Entry::encode_cancel(&txn));
    // The one does not stand for the other, and nothing that no node can read stands for what they can.
    world.until("node 1 leads", |w| w.leads(0));
    world.give(0, Input::Propose(unreadable(&txn)));
    let entry = Entry::encode(&txn, &[], b"rows");
    is_logged_once(&mut world, entry.clone());
    let entry = Entry::decode(entry).unwrap();
    is_logged_once(&mut world, entry.encode_skip(LogIndex(7)));
    is_logged_once(&mut world, entry.encode_skip(LogIndex(8)));
}

/// It says that it has a key, and there is none.
fn unreadable(txn: &TxnId) -> Bytes {
    let key = Key { hash: 1, mode: LockMode::Update, base: Base(0) };
    let raw = Entry::encode(txn, &[key], b"");
    assert!(Entry::decode(raw.slice(..raw.len() - 1)).is_err());
    raw.slice(..raw.len() - 1)
}

fn is_logged_once(world: &mut World, raw: Bytes) {
    world.until("node 1 leads", |w| w.leads(0));
    for i in [0, 1] {
        world.nodes[i].as_mut().unwrap().step(Input::Propose(raw.clone())).unwrap();
        world.work(i);
    }
    world.deliver();
    world.give(1, Input::Propose(raw.clone()));
    world.deliver();
    let times = |w: &World| w.committed[0].iter().filter(|(_, data)| *data == raw).count();
    assert_eq!(times(world), 1);
    // Another leader does not know what this one has logged.
    world.give(0, Input::HandOver);
    world.deliver();
    world.until("another leads", |w| w.leads(1) || w.leads(2));
    let leader = if world.leads(1) { 1 } else { 2 };
    world.give(leader, Input::Propose(raw.clone()));
    world.deliver();
    assert_eq!(times(world), 2);
}

/// Goal: a leader that hands over spares its transferee the election: its vote follows the order to campaign.
/// Method: nothing that the transferee sends arrives anywhere, so it leads by these two votes or not at all.
#[test]
fn a_leader_that_hands_over_votes_for_its_transferee() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    let term = world.nodes[0].as_ref().unwrap().leadership().term;
    world.give(0, Input::HandOver);
    assert!(!world.leads(0));
    let promised = world.disks[0].initial_state().unwrap().hard_state;
    assert_eq!((promised.term, promised.vote), (term.0 + 1, 2), "the vote left before it was durable");
    let (order, vote) = (message_of(&mut world), message_of(&mut world));
    assert_eq!((order.get_msg_type(), order.to, order.term), (MessageType::MsgTimeoutNow, 2, term.0));
    assert_eq!((vote.get_msg_type(), vote.to, vote.term), (MessageType::MsgRequestVoteResponse, 2, term.0 + 1));
    assert!(world.wire.is_empty() && !vote.reject);
    world.give(1, Input::Message(order));
    world.give(1, Input::Message(vote));
    assert!(world.leads(1));
}

/// Goal: where the vote is lost, or not understood, the transferee asks for it and gets it, also from a member that
/// would rather lead itself.
#[test]
fn a_leader_that_has_voted_for_its_transferee_says_so_again() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    world.cut = Some(3);
    world.give(0, Input::HandOver);
    let (order, _vote) = (message_of(&mut world), message_of(&mut world));
    world.give(1, Input::Message(order));
    world.deliver();
    assert!(world.leads(1));
}

/// Goal: a leader does not give its place up for a member that may be dead.
#[test]
fn a_leader_does_not_vote_for_who_does_not_answer() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    world.ticks(5);
    world.give(0, Input::Lost(NodeId(2), MessageType::MsgSnapshot));
    world.nodes[0].as_mut().unwrap().transfer_to(NodeId(2));
    world.give(0, Input::Lost(NodeId(3), MessageType::MsgSnapshot));
    assert_eq!(message_of(&mut world).get_msg_type(), MessageType::MsgTimeoutNow);
    assert!(world.leads(0) && world.wire.is_empty());
}

/// Goal: no vote counts before the candidate's own is durable, or it could vote for somebody else after a restart.
/// Method: the order and the vote arrive together.
#[test]
fn a_transferee_counts_the_vote_once_its_own_is_durable() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    world.give(0, Input::HandOver);
    let (order, vote) = (message_of(&mut world), message_of(&mut world));
    let (node, mut out) = (world.nodes[1].as_mut().unwrap(), Output::default());
    node.step(Input::Message(order)).unwrap();
    node.step(Input::Message(vote)).unwrap();
    assert!(node.poll(&mut out) && out.send_now.is_empty());
    let persist = out.persist.take().unwrap();
    assert!(!persist.may_wait && persist.hard_state.vote == 2);
    assert_eq!(node.leadership().role, Role::Candidate);
    node.persisted(&mut out);
    assert_eq!(node.leadership().role, Role::Leader);
}

/// Goal: what is proposed while a leader hands over reaches the next one by itself, and gets into the log once.
/// Method: the transferee lacks something, so this takes a while; one proposal comes before the vote and one after it.
#[test]
fn what_comes_during_a_hand_over_goes_to_the_transferee() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    world.cut = Some(3);
    world.nodes[0].as_mut().unwrap().step(Input::Propose(Bytes::from_static(b"first"))).unwrap();
    world.work(0);
    world.give(0, Input::HandOver);
    assert!(world.leads(0), "the transferee has not acknowledged the first one");
    let raws = [1, 2].map(|n| Entry::encode(&TxnId { node: NodeId(3), incarnation: 1, sequence: n }, &[], b"rows"));
    let forwarded = |raw: &Bytes| {
        let mut message = Message { from: 3, to: 1, ..Default::default() };
        message.set_msg_type(MessageType::MsgPropose);
        message.mut_entries().push(raft::eraftpb::Entry { data: raw.clone(), ..Default::default() });
        Input::Message(message)
    };
    world.give(0, forwarded(&raws[0]));
    // Until the vote leaves.
    while world.leads(0) {
        let Some(Sent::Message(message)) = world.wire.pop_front() else { continue };
        if message.to != 3 {
            world.give(message.to as usize - 1, Input::Message(message));
        }
    }
    world.give(0, forwarded(&raws[1]));
    // What was kept goes with the transferee's first append, without waiting for an answer to it.
    while !world.leads(1) {
        let message = message_of(&mut world);
        if message.to == 2 {
            world.give(1, Input::Message(message));
        }
    }
    let has_it =
        |m: &Message| m.get_msg_type() == MessageType::MsgAppend && m.entries.iter().any(|e| e.data == raws[0]);
    let appends = world.wire.iter().filter(|sent| matches!(sent, Sent::Message(m) if has_it(m))).count();
    assert_eq!(appends, 2, "one to each of the others");
    world.deliver();
    for raw in &raws {
        assert_eq!(world.committed[0].iter().filter(|(_, data)| data == raw).count(), 1);
    }
}

/// Goal: what reaches a leader while it hands over gets into no log yet; if that fails, into its own.
#[test]
fn what_comes_during_a_hand_over_that_fails_is_proposed_after_it() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    let raw = Entry::encode(&TxnId { node: NodeId(2), incarnation: 1, sequence: 1 }, &[], b"rows");
    world.cut = Some(3);
    world.propose(0, "what node 3 lacks").unwrap();
    // The leader hands over to a node that does not hear it.
    world.nodes[0].as_mut().unwrap().transfer_to(NodeId(3));
    world.work(0);
    let mut forwarded = Message { from: 2, to: 1, ..Default::default() };
    forwarded.set_msg_type(MessageType::MsgPropose);
    forwarded.mut_entries().push(raft::eraftpb::Entry { data: raw.clone(), ..Default::default() });
    world.give(0, Input::Message(forwarded));
    world.deliver();
    let times = |w: &World| w.committed[0].iter().filter(|(_, data)| *data == raw).count();
    assert_eq!(times(&world), 0);
    world.give(0, Input::Lost(NodeId(3), MessageType::MsgSnapshot));
    world.deliver();
    assert_eq!(times(&world), 1);
}

/// Goal: a proposal is given back if it was gathered and the leader has gone before it leaves.
#[test]
fn a_proposal_that_no_leader_takes_any_more_comes_back() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    let node = world.nodes[0].as_mut().unwrap();
    node.step(Input::Propose(Bytes::from_static(b"late"))).unwrap();
    let mut of_later_term = Message { from: 2, to: 1, term: node.leadership().term.0 + 1, ..Default::default() };
    of_later_term.set_msg_type(MessageType::MsgAppendResponse);
    node.step(Input::Message(of_later_term)).unwrap();
    let mut out = Output::default();
    assert!(node.poll(&mut out));
    assert_eq!(out.not_taken, [Bytes::from_static(b"late")]);
    node.persisted(&mut out);
}

/// Goal: what follows a change of the configuration is not counted with the voters of before.
/// Method: all three say that they have such a change and an entry behind it; this node has carried out neither.
#[test]
fn notices_do_not_count_past_a_change_of_the_configuration() {
    let entry = |index, kind| {
        let mut entry = raft::eraftpb::Entry { index, term: 2, ..Default::default() };
        entry.set_entry_type(kind);
        entry
    };
    let disk = MemStorage::new_with_conf_state((vec![1, 2, 3], vec![]));
    let mut node = Consensus::new(config(3, 0), disk.clone(), members().into()).unwrap();
    let mut append = Message { from: 1, to: 3, term: 2, ..Default::default() };
    append.set_msg_type(MessageType::MsgAppend);
    let kinds = [EntryType::EntryNormal, EntryType::EntryConfChangeV2, EntryType::EntryNormal];
    append.entries = (1..).zip(kinds).map(|(index, kind)| entry(index, kind)).collect();
    let notice = Notice { term: Term(2), index: LogIndex(3) };
    node.step(Input::Notice(NodeId(1), notice)).unwrap();
    node.step(Input::Notice(NodeId(2), notice)).unwrap();
    node.step(Input::Message(append)).unwrap();
    let mut out = Output::default();
    assert!(node.poll(&mut out));
    assert_eq!(node.status().raft_commit, LogIndex(0), "its own disk has nothing");
    disk.wl().append(&out.persist.take().unwrap().entries).unwrap();
    node.persisted(&mut out);
    assert_eq!(out.notice, Some(notice));
    assert_eq!(node.status().raft_commit, LogIndex(2));
}

/// Goal: who starts again knows what was committed when its last entry was written.  Otherwise it could begin in a
/// configuration that is several changes old.
/// Method: the commit index moves alone, which need not be written, and then an entry comes.
#[test]
fn an_entry_is_written_with_the_commit_index() {
    let disk = MemStorage::new_with_conf_state((vec![1, 2, 3], vec![]));
    let mut node = Consensus::new(config(3, 0), disk.clone(), members().into()).unwrap();
    let mut out = Output::default();
    let write = |node: &mut Consensus<MemStorage>, out: &mut Output| {
        assert!(node.poll(out));
        if let Some(persist) = out.persist.take() {
            disk.wl().append(&persist.entries).unwrap();
            disk.wl().set_hardstate(persist.hard_state);
        }
        node.persisted(out);
    };
    let commit = || disk.initial_state().unwrap().hard_state.commit;
    node.step(Input::Message(append_to_3(2, (0, 0), 1..=2))).unwrap();
    write(&mut node, &mut out);
    node.step(Input::Notice(NodeId(1), Notice { term: Term(2), index: LogIndex(2) })).unwrap();
    write(&mut node, &mut out);
    assert_eq!((node.status().raft_commit, commit()), (LogIndex(2), 0));
    node.step(Input::Message(append_to_3(2, (2, 2), 3..=3))).unwrap();
    write(&mut node, &mut out);
    assert_eq!(commit(), 2);
}

/// Goal: the checkpoint that replaces this node's state is the one that raft installs.
/// Method: in one batch, one snapshot comes from the leader, and a newer one from an earlier leader, which raft passes
/// over.
#[test]
fn a_snapshot_that_raft_passes_over_does_not_replace_the_one_that_it_installs() {
    let snapshot = |from, term, index| {
        let mut state = Checkpoint::bootstrap(members(), Limits::default());
        (1..=index).for_each(|at| state.certifier.skip(LogIndex(at)).unwrap());
        state.term = Term(1);
        let mut message = Message { from, to: 3, term, ..Default::default() };
        message.set_msg_type(MessageType::MsgSnapshot);
        message.mut_snapshot().data = state.encode();
        let metadata = message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (index, 1);
        metadata.set_conf_state(ConfState::from(&state.conf));
        message
    };
    let disk = MemStorage::new_with_conf_state((vec![1, 2, 3], vec![]));
    let mut node = Consensus::new(config(3, 0), disk.clone(), members().into()).unwrap();
    let opened = |message| Input::Snapshot(Opened::open(message, Limits::default()).unwrap());
    node.step(opened(snapshot(1, 3, 10))).unwrap();
    let _ = node.step(opened(snapshot(2, 2, 20)));
    let mut out = Output::default();
    assert!(node.poll(&mut out));
    let installed = out.persist.as_ref().and_then(|p| p.snapshot.as_ref()).unwrap();
    assert_eq!(installed.index, LogIndex(10));
    let mut on_disk = raft::eraftpb::Snapshot::default();
    on_disk.mut_metadata().index = 10;
    on_disk.mut_metadata().term = 1;
    on_disk.mut_metadata().set_conf_state((vec![1, 2, 3], vec![]).into());
    disk.wl().apply_snapshot(on_disk).unwrap();
    node.persisted(&mut out);
    assert_eq!(out.restored.unwrap().index(), LogIndex(10));
    assert_eq!(node.applied().0, LogIndex(10));
}

/// Goal: a follower that answers only heartbeats is sent no more than its window; once it answers, it catches up.
/// Method: it lacks a hundred entries, one in each message; for a while its answers to appends are lost.
#[test]
fn a_window_stays_full_until_appends_are_answered() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    world.cut = Some(3);
    for _ in 0..100 {
        world.propose(0, "a").unwrap();
    }
    world.cut = None;
    let leader = world.nodes[0].as_mut().unwrap();
    leader.set_message_bytes_max(1);
    leader.set_near(leader.status().last);
    leader.step(Input::Lost(NodeId(3), MessageType::MsgSnapshot)).unwrap();
    let mut sent = 0;
    for _ in 0..100 {
        for i in 0..3 {
            world.give(i, Input::Tick);
        }
        while let Some(one) = world.wire.pop_front() {
            match one {
                Sent::Message(m) if m.from == 3 && m.get_msg_type() == MessageType::MsgAppendResponse && sent > 1 => {}
                Sent::Message(m) => {
                    sent += usize::from(m.to == 3 && !m.entries.is_empty());
                    world.give(m.to as usize - 1, Input::Message(m));
                }
                Sent::Notice(from, to, notice) => world.give(to, Input::Notice(NodeId(from as u32 + 1), notice)),
            }
        }
    }
    assert!((16..=18).contains(&sent), "{sent} appends are under way");
    world.until("node 3 has all", |w| w.texts(2).len() == 100);
    assert!(world.leads(0));
}

/// Goal: a follower goes on although its answers were lost with a connection, and its leader does not hear of that.
/// Method: it lacks little, but as many messages as may be under way. The third node is cut off, so nothing else helps.
#[test]
fn a_full_window_of_a_follower_that_lacks_little_opens_again() {
    let mut world = World::new();
    world.until("node 1 leads", |w| w.leads(0));
    world.ticks(5);
    world.cut = Some(2);
    for _ in 0..4200 {
        let leader = world.nodes[0].as_mut().unwrap();
        leader.step(Input::Propose(Bytes::from_static(b"a"))).unwrap();
        world.work(0);
        while let Some(sent) = world.wire.pop_front() {
            match sent {
                Sent::Message(m) if m.to == 3 => world.give(2, Input::Message(m)),
                // The answers are lost.
                _ => {}
            }
        }
    }
    world.until("node 3 has all", |w| w.texts(2).len() == 4200);
    assert!(world.leads(0));
}
