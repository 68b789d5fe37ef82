//! Members in one thread: ticks and messages by hand, disks in memory, each with its log, its checkpoint and what the
//! log comes to.

use bytes::Bytes;
use onetrip_core::certifier::{Certifier, History, Limits};
use onetrip_core::checkpoint;
use onetrip_core::consensus::{Config, Consensus, Input, Message, Output, Role};
use onetrip_core::decide::decide;
use onetrip_core::members::{Change, Command};
use onetrip_core::{Checkpoint, Conf, Entry, LogIndex, Member, MemberRole, Members, NodeId, Token, TxnId};
use raft::eraftpb::{ConfState, Entry as RaftEntry, EntryType, HardState, MessageType, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

#[derive(Clone, Default)]
pub struct Disk {
    /// Index and term before the first entry.
    pub before: (u64, u64),
    pub entries: Vec<RaftEntry>,
    pub hard_state: HardState,
    pub conf: Conf,
    pub checkpoint: Option<Bytes>,
    pub wants_checkpoint: Cell<bool>,
}

impl Disk {
    fn last(&self) -> u64 {
        self.before.0 + self.entries.len() as u64
    }

    fn append(&mut self, entries: &[RaftEntry]) {
        for entry in entries {
            assert!(entry.index > self.before.0 && entry.index <= self.last() + 1);
            self.entries.truncate((entry.index - self.before.0 - 1) as usize);
            self.entries.push(entry.clone());
        }
    }

    pub fn cut(&mut self, upto: u64) {
        let term = self.term(upto).unwrap();
        self.entries.drain(..(upto - self.before.0) as usize);
        self.before = (upto, term);
    }
}

impl Storage for Disk {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), ConfState::from(&self.conf)))
    }
    fn entries(
        &self,
        low: u64,
        high: u64,
        _: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<RaftEntry>> {
        if low <= self.before.0 {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        let place = |index: u64| (index - self.before.0 - 1) as usize;
        Ok(self.entries[place(low)..place(high)].to_vec())
    }
    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.before.0 {
            return Ok(self.before.1);
        }
        let place = index.checked_sub(self.before.0 + 1).ok_or(raft::Error::Store(StorageError::Compacted))?;
        let entry = self.entries.get(place as usize);
        entry.map(|e| e.term).ok_or(raft::Error::Store(StorageError::Unavailable))
    }
    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.before.0 + 1)
    }
    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }
    fn snapshot(&self, _: u64, to: u64) -> raft::Result<Snapshot> {
        let raw = self.checkpoint.clone().map(|raw| (checkpoint::peek(&raw).unwrap(), raw));
        let Some((head, raw)) = raw.filter(|(head, _)| head.conf.contains(NodeId(to as u32))) else {
            self.wants_checkpoint.set(true);
            return Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        };
        let mut snapshot = Snapshot { data: raw, ..Default::default() };
        (snapshot.mut_metadata().index, snapshot.mut_metadata().term) = (head.index.0, head.term.0);
        snapshot.mut_metadata().set_conf_state(ConfState::from(&head.conf));
        Ok(snapshot)
    }
}

pub struct Node {
    pub consensus: Consensus<Disk>,
    pub certifier: Certifier,
    pub history: History,
    pub members: Arc<Members>,
}

impl Node {
    fn start(id: u32, mut disk: Disk, bootstrap: &Members) -> Node {
        let state = match &disk.checkpoint {
            Some(raw) => Checkpoint::decode(raw.clone(), Limits::default()).unwrap(),
            None => Checkpoint::bootstrap(bootstrap.clone(), Limits::default()),
        };
        let index = state.index();
        if state.installed && disk.term(index.0).ok() != Some(state.term.0) {
            (disk.before, disk.entries) = ((index.0, state.term.0), vec![]);
        }
        disk.conf = state.conf.clone();
        disk.hard_state.commit = disk.hard_state.commit.max(index.0);
        let config = Config {
            id: NodeId(id),
            limits: Limits::default(),
            applied: index,
            heartbeat_ticks: 2,
            election_ticks: 20,
            transfer_ticks: 5,
        };
        let members = Arc::new(state.members);
        let consensus = Consensus::new(config, disk, members.clone()).unwrap();
        Node { consensus, certifier: state.certifier, history: state.history, members }
    }

    pub fn checkpoint(&self) -> Bytes {
        let c = &self.consensus;
        assert_eq!(c.applied().0, self.certifier.decided());
        checkpoint::encode(c.applied().1, c.conf(), c.members(), &self.certifier, &self.history)
    }

    pub fn role(&self) -> Role {
        self.consensus.leadership().role
    }
}

pub struct World {
    pub bootstrap: Members,
    pub nodes: BTreeMap<u32, Node>,
    pub stopped: BTreeMap<u32, Disk>,
    pub wire: VecDeque<Message>,
    /// Nodes that neither hear nor are heard.
    pub cut: BTreeSet<u32>,
    /// Raft snapshots that are lost on the way before one arrives.
    pub lose_snapshots: u32,
    pub snapshots: u32,
    /// The log as the first that handed it out saw it.
    log: BTreeMap<u64, (u64, Bytes)>,
    txns: u64,
}

pub fn voter(id: u32, role: MemberRole) -> Member {
    Member {
        id: NodeId(id),
        region: region(id),
        address: format!("host:{id}"),
        role,
        voter: true,
        slot: (role == MemberRole::Voter).then_some(id),
        replaces: None,
        joined_with: None,
    }
}

pub fn region(id: u32) -> onetrip_core::RegionId {
    format!("r{id}").as_str().into()
}

impl World {
    /// Members 1 to 3, the leader belongs with 1.
    pub fn new() -> World {
        World::of((1..=3).map(|id| voter(id, MemberRole::Voter)).collect())
    }

    pub fn of(members: Vec<Member>) -> World {
        let ids: Vec<u32> = members.iter().map(|m| m.id.0).collect();
        let bootstrap = Members::bootstrap(members, region(1), 8);
        let mut world = World {
            bootstrap,
            nodes: BTreeMap::new(),
            stopped: BTreeMap::new(),
            wire: VecDeque::new(),
            cut: BTreeSet::new(),
            lose_snapshots: 0,
            snapshots: 0,
            log: BTreeMap::new(),
            txns: 0,
        };
        for id in ids {
            world.start(id, Disk::default());
        }
        world
    }

    pub fn start(&mut self, id: u32, disk: Disk) {
        self.nodes.insert(id, Node::start(id, disk, &self.bootstrap));
    }

    /// What was not synced is gone.
    pub fn crash(&mut self, id: u32) {
        let node = self.nodes.remove(&id).unwrap();
        self.stopped.insert(id, node.consensus.log().clone());
    }

    pub fn restart(&mut self, id: u32) {
        let disk = self.stopped.remove(&id).unwrap();
        self.start(id, disk);
    }

    /// A checkpoint of all that node `id` has decided becomes durable, and its log is cut.
    pub fn cut_log(&mut self, id: u32) {
        let node = self.nodes.get_mut(&id).unwrap();
        let (raw, upto) = (node.checkpoint(), node.certifier.decided().0);
        let disk = node.consensus.log_mut();
        disk.checkpoint = Some(raw);
        disk.cut(upto);
    }

    fn work(&mut self, id: u32) {
        let mut out = Output::default();
        for _ in 0..1000 {
            let Some(node) = self.nodes.get_mut(&id) else { return };
            if node.consensus.log().wants_checkpoint.take() {
                let raw = node.checkpoint();
                node.consensus.log_mut().checkpoint = Some(raw);
            }
            if !node.consensus.poll(&mut out) {
                return;
            }
            if node.role() != Role::Leader {
                assert!(out.send_now.is_empty(), "only a leader may speak before its disk");
            }
            self.wire.extend(out.send_now.drain(..));
            self.hand_on(id, &mut out);
            let node = self.nodes.get_mut(&id).unwrap();
            if let Some(persist) = out.persist.take() {
                let disk = node.consensus.log_mut();
                if let Some(snapshot) = persist.snapshot {
                    disk.checkpoint = Some(checkpoint::installed(&snapshot.data));
                    (disk.before, disk.entries) = ((snapshot.index.0, snapshot.term.0), vec![]);
                    self.snapshots += 1;
                }
                // Nothing that need not be synced survives here.
                if persist.must_sync {
                    disk.append(&persist.entries);
                    if let Some(hs) = persist.hard_state {
                        disk.hard_state = hs;
                    }
                }
            }
            node.consensus.persisted(&mut out);
            self.wire.extend(out.send_after.drain(..));
            if let Some(state) = out.restored.take() {
                (node.members, node.certifier, node.history) = (state.members.into(), state.certifier, state.history);
            }
            self.hand_on(id, &mut out);
        }
        panic!("node {id} has work without end");
    }

    fn hand_on(&mut self, id: u32, out: &mut Output) {
        let node = self.nodes.get_mut(&id).unwrap();
        for entry in out.committed.drain(..) {
            let seen = (entry.term.0, entry.data.clone());
            let first = self.log.entry(entry.index.0).or_insert_with(|| seen.clone());
            assert_eq!(*first, seen, "one log: entry {} at node {id}", entry.index);
            if entry.kind != EntryType::EntryNormal {
                let commit = node.consensus.log().hard_state.commit;
                assert!(commit >= entry.index.0, "carried out before its commitment was durable");
            }
            decide(&entry, &mut node.certifier, &mut node.history, &mut node.members).unwrap();
            if let Some(members) = &entry.members {
                assert_eq!(members, &node.members);
            }
        }
    }

    pub fn deliver(&mut self) {
        for _ in 0..100_000 {
            let Some(message) = self.wire.pop_front() else { return };
            let (from, to) = (message.from as u32, message.to as u32);
            if self.cut.contains(&from) || self.cut.contains(&to) {
                continue;
            }
            if message.get_msg_type() == MessageType::MsgSnapshot && self.lose_snapshots > 0 {
                self.lose_snapshots -= 1;
                continue;
            }
            if let Some(node) = self.nodes.get_mut(&to) {
                let _ = node.consensus.step(Input::Message(message));
                self.work(to);
            }
        }
        panic!("messages without end");
    }

    pub fn ticks(&mut self, n: usize) {
        for _ in 0..n {
            let ids: Vec<u32> = self.nodes.keys().copied().collect();
            let positions: Vec<_> = self.nodes.iter().map(|(id, n)| (*id, n.certifier.decided())).collect();
            for id in ids {
                let node = self.nodes.get_mut(&id).unwrap();
                for (of, applied) in positions.iter().filter(|(of, _)| !self.cut.contains(of)) {
                    node.consensus.step(Input::Position(NodeId(*of), *applied)).unwrap();
                }
                node.consensus.step(Input::Tick).unwrap();
                self.work(id);
            }
            self.deliver();
            let terms = self.nodes.values().filter(|n| n.role() == Role::Leader).map(|n| n.consensus.leadership().term);
            let terms: Vec<_> = terms.collect();
            assert_eq!(terms.len(), terms.iter().collect::<BTreeSet<_>>().len(), "two leaders in one term: {terms:?}");
        }
    }

    pub fn until(&mut self, what: &str, mut done: impl FnMut(&World) -> bool) {
        for _ in 0..3000 {
            if done(self) {
                return;
            }
            self.ticks(1);
        }
        panic!("never: {what}");
    }

    pub fn leader(&self) -> Option<u32> {
        let mut leaders = self.nodes.iter().filter(|(id, n)| n.role() == Role::Leader && !self.cut.contains(id));
        leaders.next().map(|(id, _)| *id)
    }

    pub fn has_leader(&mut self) -> u32 {
        self.until("a leader", |w| w.leader().is_some());
        self.leader().unwrap()
    }

    /// Changes the table through node `at`, asking again as a node does, until everyone who is not cut off shows it.
    pub fn change(&mut self, at: u32, change: Change) {
        let before = self.nodes[&at].members.version;
        for _ in 0..300 {
            if self.nodes.get(&at).is_none_or(|n| n.members.version > before) {
                return self.ticks(10);
            }
            let node = self.nodes.get_mut(&at).unwrap();
            let command = Command { expected_version: node.members.version, change: change.clone() };
            let _ = node.consensus.step(Input::Change(command));
            self.work(at);
            self.deliver();
            self.ticks(5);
        }
        panic!("never decided: {change}");
    }

    /// A new member with the next id joins through `at` and starts from a checkpoint of it.
    pub fn join(&mut self, at: u32, role: MemberRole, replaces: Option<u32>) -> u32 {
        let id = self.nodes[&at].members.next_id.0;
        let hash = [id as u8; 32];
        let replaces = replaces.map(NodeId);
        self.change(at, Change::AddToken(Token { hash, role, replaces, expires_unix_s: 0 }));
        self.change(at, Change::Join { token: hash, region: region(id), address: format!("host:{id}") });
        let raw = checkpoint::installed(&self.nodes[&at].checkpoint());
        self.start(id, Disk { checkpoint: Some(raw), ..Disk::default() });
        id
    }

    pub fn is_voter(&self, id: u32) -> bool {
        let mut running = self.nodes.iter().filter(|(n, _)| !self.cut.contains(n)).map(|(_, n)| n);
        running.all(|n| n.consensus.conf().votes(NodeId(id)) && !n.consensus.conf().is_joint())
    }

    pub fn propose(&mut self, at: u32, raw: Bytes) {
        let node = self.nodes.get_mut(&at).unwrap();
        node.consensus.step(Input::Propose(raw)).unwrap();
        self.work(at);
        self.deliver();
    }

    /// One transaction through `at` is decided by everyone who runs and is heard.
    pub fn commit(&mut self, at: u32) {
        self.txns += 1;
        let txn = TxnId { node: NodeId(at), incarnation: 1, sequence: self.txns };
        let raw = Entry::encode(&txn, &[], b"row");
        for _ in 0..300 {
            let node = self.nodes.get_mut(&at).unwrap();
            let _ = node.consensus.step(Input::Propose(raw.clone()));
            self.work(at);
            self.deliver();
            let heard = |w: &World, id: &u32| !w.cut.contains(id) && w.nodes[&at].members.contains(NodeId(*id));
            let all = |w: &World| {
                let mut heard = w.nodes.iter().filter(|(id, _)| heard(w, id));
                heard
                    .all(|(_, n)| matches!(n.certifier.outcome(&txn), onetrip_core::certifier::Outcome::Decided { .. }))
            };
            for _ in 0..10 {
                if all(self) {
                    return;
                }
                self.ticks(1);
            }
        }
        panic!("never decided: a transaction of node {at}");
    }

    /// All who run stand at the same place with the same state.
    pub fn settle(&mut self) {
        self.until("all at one place", |w| {
            let at: BTreeSet<LogIndex> = w.nodes.values().map(|n| n.certifier.decided()).collect();
            at.len() == 1
        });
        let states: BTreeSet<Bytes> = self.nodes.values().map(strip_history).collect();
        assert_eq!(states.len(), 1, "one state");
    }
}

/// The history is each node's own.
fn strip_history(node: &Node) -> Bytes {
    let c = &node.consensus;
    checkpoint::encode(c.applied().1, c.conf(), c.members(), &node.certifier, &History::default())
}
