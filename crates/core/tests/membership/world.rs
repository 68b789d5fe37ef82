//! Members in one thread: ticks and messages are given by hand, and each replica runs on a host with a disk in memory.

use bytes::Bytes;
use onetrip_core::certifier::{Certifier, CommittedIndexes, Decision, Limits};
use onetrip_core::checkpoint::{self, Frozen};
use onetrip_core::consensus::{self, Committed, Config, Consensus, Input, Leadership, Message, Notice, Opened, Role};
use onetrip_core::decide::decide;
use onetrip_core::members::{Change, Command};
use onetrip_core::parts::PartSizes;
use onetrip_core::replica::{Host, RebuildFrom, Replica, Report, Settings, Stage, Store};
use onetrip_core::router::{Log, Outbox};
use onetrip_core::row_locks::LockMessage;
use onetrip_core::{
    Checkpoint, Conf, Entry, EntryId, Error, LogIndex, Member, MemberRole, Members, NodeId, PreferredLeader, Term,
    Token, TxnId,
};
use raft::eraftpb::{ConfState, Entry as RaftEntry, EntryType, HardState, MessageType, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Default)]
pub struct Disk {
    /// Index and term before the first entry.
    pub before: (u64, u64),
    pub entries: Vec<RaftEntry>,
    pub hard_state: HardState,
    pub conf: Conf,
    pub checkpoint: Option<Bytes>,
    pub wants_checkpoint: Cell<bool>,
    /// There may be promises that read leases rest on.
    pub promised: bool,
}

impl Disk {
    fn last(&self) -> u64 {
        self.before.0 + self.entries.len() as u64
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

impl Log for Disk {
    type Error = Error;
    fn readable_from(&self, _: impl Fn(LogIndex) -> bool) -> LogIndex {
        LogIndex(self.before.0 + 1)
    }
    fn last_index(&self) -> LogIndex {
        LogIndex(self.last())
    }
    fn read(&self, at: LogIndex) -> Result<Bytes, Error> {
        Ok(self.entries[(at.0 - self.before.0 - 1) as usize].data.clone())
    }
}

impl Store for Disk {
    fn term_at(&self, index: LogIndex) -> Option<Term> {
        self.term(index.0).ok().map(Term)
    }
    fn stand_on(&mut self, index: LogIndex, conf: &Conf) {
        self.conf = conf.clone();
        self.hard_state.commit = self.hard_state.commit.max(index.0);
    }
    fn append(&mut self, entries: &[RaftEntry], hard_state: Option<&HardState>) -> Result<(), Error> {
        for entry in entries {
            assert!(entry.index > self.before.0 && entry.index <= self.last() + 1);
            self.entries.truncate((entry.index - self.before.0 - 1) as usize);
            self.entries.push(entry.clone());
        }
        if let Some(hs) = hard_state {
            self.hard_state = hs.clone();
        }
        Ok(())
    }
    fn install_checkpoint(&mut self, _index: LogIndex, raw: &Bytes) -> Result<(), Error> {
        self.checkpoint = Some(checkpoint::installed(raw));
        Ok(())
    }
    fn restart(&mut self, index: LogIndex, term: Term, _: Option<&HardState>) -> Result<(), Error> {
        (self.before, self.entries) = ((index.0, term.0), vec![]);
        Ok(())
    }
    /// The checkpoint stays marked as installed, so that each start repairs the log again.
    fn mark_log_in_order(&mut self) -> Result<(), Error> {
        Ok(())
    }
    fn checkpointed(&mut self, _: LogIndex, _: &Conf) {}
    fn wants_checkpoint(&self) -> bool {
        self.wants_checkpoint.take()
    }
    /// Entries are never refused here, so none are fetched.
    fn take_fetched(&mut self) -> Vec<GetEntriesContext> {
        Vec::new()
    }

    /// The tests cut by hand.
    fn cut(&mut self, _: LogIndex) -> Result<(), Error> {
        Ok(())
    }
    fn bytes(&self) -> u64 {
        0
    }
    fn index_leaving(&self, entries: u64) -> LogIndex {
        LogIndex(self.last().saturating_sub(entries))
    }
}

/// An outbox to nobody, who keeps what comes.
#[derive(Default)]
pub struct Nobody(pub RefCell<Vec<Bytes>>);

impl Outbox for Nobody {
    fn send<const N: usize>(&self, frame: [Bytes; N]) -> bool {
        self.0.borrow_mut().push(frame.concat().into());
        true
    }
    fn feed_bytes_max(&self) -> usize {
        64 << 20
    }
    fn close(&self) {}
}

#[derive(Debug)]
pub enum End {
    /// The node is not a member any more.
    Removed,
    Crashed,
    Error(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> End {
        End::Error(error)
    }
}

/// Keeps what a member sends and writes, and looks at it.
#[derive(Default)]
pub struct TestHost {
    ticks: u64,
    said: Vec<Message>,
    notices: Vec<(NodeId, Notice)>,
    reports: Vec<(Option<Vec<NodeId>>, Report)>,
    /// Who was asked for a report as soon as it shows which entry.
    pub awaited: Vec<(Vec<NodeId>, LogIndex)>,
    pub lock_messages: Vec<(NodeId, LockMessage)>,
    /// Questions for fresh reads: whom it asked, and the number.
    pub questions: Vec<(Vec<NodeId>, u64)>,
    /// Answers to questions for fresh reads: whom, which, and what it named.
    pub named: Vec<(NodeId, u64, EntryId)>,
    /// The same for read leases.
    lease_questions: Vec<(Vec<NodeId>, u64)>,
    promises: Vec<(NodeId, u64, EntryId)>,
    last_notice: Option<Notice>,
    /// The link to these is narrow, and what was sent last is still leaving.
    pub sending: BTreeSet<NodeId>,
    /// The round trips that it measures.
    pub round_trips: Vec<(NodeId, u32)>,
    checkpoints: Vec<(LogIndex, Conf, Bytes)>,
    /// A backup waits for a checkpoint.
    pub backup_waits: bool,
    /// The checkpoints that backups have begun from.
    pub backed_up: Vec<LogIndex>,
    pub opening: Option<Result<Opened, Error>>,
    handed_out: Vec<Committed>,
    snapshots: u32,
    pub election_ticks: usize,
    leads: bool,
    /// It dies before it writes the next time.
    pub dies_before_write: bool,
    /// What it writes from now on becomes durable when the disk goes on ([`World::disk_goes_on`]).
    pub disk_hangs: bool,
    unsynced: Option<u64>,
    has_written: bool,
    durable_term: u64,
    durable_commit: u64,
}

impl Host for TestHost {
    type Error = End;
    type Store = Disk;
    type Outbox = Nobody;

    fn now(&self) -> Duration {
        Duration::from_millis(20 * self.ticks)
    }
    fn stage(&mut self, stage: Stage) -> Result<(), End> {
        match stage {
            Stage::Persisted => self.has_written = true,
            Stage::RoundDone => self.has_written = false,
            Stage::BeforeWrite if self.dies_before_write => return Err(End::Crashed),
            _ => {}
        }
        Ok(())
    }
    fn send(&mut self, message: Message) -> bool {
        assert!(self.leads || self.has_written, "only a leader may speak before its disk");
        // What a member would say in a later term is no promise.
        let is_promise = message.get_msg_type() != MessageType::MsgRequestPreVoteResponse;
        let lacks_term = message.term > self.durable_term && is_promise && !self.has_written;
        assert!(!lacks_term, "its disk has term {}: {message:?}", self.durable_term);
        self.said.push(message);
        true
    }
    fn is_sending(&mut self, to: NodeId) -> bool {
        self.sending.contains(&to)
    }
    fn send_notice(&mut self, to: &[NodeId], notice: Notice) {
        let is_repeated = self.last_notice.replace(notice) == Some(notice);
        assert!(self.has_written || is_repeated, "a notice is a promise about the disk");
        self.notices.extend(to.iter().map(|to| (*to, notice)));
    }
    fn send_question(&mut self, to: &[NodeId], question: u64) {
        self.questions.push((to.to_vec(), question));
    }
    fn send_last_entry(&mut self, to: NodeId, question: u64, last: EntryId) {
        self.named.push((to, question, last));
    }
    fn send_lease_question(&mut self, to: &[NodeId], question: u64) {
        self.lease_questions.push((to.to_vec(), question));
    }
    fn send_promise(&mut self, to: NodeId, question: u64, last: EntryId) {
        self.promises.push((to, question, last));
    }
    fn save_promised(&mut self, disk: &mut Disk, promised: bool) -> Result<(), End> {
        disk.promised = promised;
        Ok(())
    }
    fn send_await(&mut self, to: &[NodeId], at: LogIndex) {
        self.awaited.push((to.to_vec(), at));
    }
    fn send_lock_message(&mut self, to: NodeId, message: LockMessage) {
        self.lock_messages.push((to, message));
    }
    fn send_report(&mut self, to: Option<&[NodeId]>, own: &Report) {
        self.reports.push((to.map(<[NodeId]>::to_vec), own.clone()));
    }
    fn round_trips(&mut self) -> Vec<(NodeId, u32)> {
        self.round_trips.clone()
    }
    fn election_ticks(&mut self, _: &Members) -> usize {
        self.election_ticks
    }
    fn save_starts(&mut self, _: &mut Disk, _: Vec<u64>) -> Result<(), End> {
        Ok(())
    }
    fn append(&mut self, disk: &mut Disk, entries: &[RaftEntry], hs: Option<&HardState>) -> Result<(), End> {
        disk.append(entries, hs)?;
        (self.durable_term, self.durable_commit) = (disk.hard_state.term, disk.hard_state.commit);
        Ok(())
    }
    fn begin_append(
        &mut self,
        disk: &mut Disk,
        entries: &[RaftEntry],
        hs: Option<&HardState>,
        number: u64,
    ) -> Result<bool, End> {
        self.append(disk, entries, hs)?;
        self.unsynced = Some(number).filter(|_| self.disk_hangs);
        Ok(!self.disk_hangs)
    }
    fn install_checkpoint(&mut self, disk: &mut Disk, at: (LogIndex, Term), raw: &Bytes) -> Result<(), End> {
        self.snapshots += 1;
        Ok(disk.install_checkpoint(at.0, raw)?)
    }
    fn write_checkpoint(&mut self, checkpoint: Frozen) -> Result<(), End> {
        self.checkpoints.push((checkpoint.index(), checkpoint.conf().clone(), checkpoint.encode()));
        Ok(())
    }
    fn wants_checkpoint(&self) -> bool {
        self.backup_waits
    }
    fn checkpointed(&mut self, index: LogIndex, _: u64) {
        if std::mem::take(&mut self.backup_waits) {
            self.backed_up.push(index);
        }
    }
    fn open_snapshot(&mut self, message: Message, limits: Limits) -> Result<(), End> {
        assert!(self.opening.is_none(), "one at a time");
        self.opening = Some(Opened::open(message, limits));
        Ok(())
    }
    fn rebuild(&mut self, _: Option<RebuildFrom>) {}
    fn may_heal(&self) -> Result<(), String> {
        Err("there is no PostgreSQL".into())
    }
    fn not_healed(&mut self, _: LogIndex, _: &str, _: String) {}
    fn decide(
        &mut self,
        entry: &Committed,
        certifier: &mut Certifier,
        committed_indexes: &mut CommittedIndexes,
        members: &mut Arc<Members>,
    ) -> Result<Option<(TxnId, Decision)>, Error> {
        if entry.kind != EntryType::EntryNormal {
            assert!(self.durable_commit >= entry.index.0, "carried out before its commitment was durable");
        }
        self.handed_out.push(entry.clone());
        decide(entry, certifier, committed_indexes, members)
    }
    fn looks(&mut self, consensus: &mut Consensus<Disk>, _: u64) {
        self.leads = consensus.leadership().role == Role::Leader;
    }
    fn has_leader(&mut self, _: Leadership, _: &Members, _: LogIndex) {}
    fn has_members(&mut self, _: &Arc<Members>, _: LogIndex) {}
    fn restored(&mut self, _: &Checkpoint) {}
    fn removed(&mut self, _: LogIndex) -> End {
        End::Removed
    }
}

pub struct Node {
    pub replica: Replica<Disk, Nobody>,
    pub host: TestHost,
}

impl Node {
    fn start(id: u32, mut disk: Disk, bootstrap: &Members) -> Node {
        let state = match &disk.checkpoint {
            Some(raw) => Checkpoint::decode(raw.clone(), Limits::default()).unwrap(),
            None => Checkpoint::bootstrap(bootstrap.clone(), Limits::default()),
        };
        assert_eq!(Replica::<Disk, Nobody>::put_in_order(&state, &mut disk).unwrap(), None);
        let config = Config {
            id: NodeId(id),
            limits: Limits::default(),
            applied: state.index(),
            level: onetrip_core::level::KNOWN,
            heartbeat_ticks: 2,
            election_ticks: 20,
            transfer_ticks: 5,
            snapshot_ticks: SNAPSHOT_TICKS,
        };
        let settings = Settings {
            region: region(id),
            has_postgres: false,
            checkpoint_entries: u64::MAX,
            checkpoint_bytes: u64::MAX,
            cut_margin: 0,
            log_bytes_max: u64::MAX,
            near_bytes: 1,
            leader_looks: 4,
            leader_rest_ticks: LEADER_REST_TICKS,
            parts: PartSizes::default(),
            first_question: 0,
            still_after: Duration::from_secs(5),
        };
        let HardState { term: durable_term, commit: durable_commit, .. } = disk.hard_state;
        let mut host = TestHost { durable_term, durable_commit, ..TestHost::default() };
        let promised = disk.promised;
        let mut replica = Replica::new(settings, config, state, disk, &[], promised).unwrap();
        replica.start(false, &mut host).unwrap();
        Node { replica, host }
    }

    pub fn checkpoint(&self) -> Bytes {
        self.replica.encoded_checkpoint()
    }

    pub fn members(&self) -> &Arc<Members> {
        self.replica.members()
    }

    pub fn step(&mut self, input: Input) {
        self.replica.step(input, &mut self.host);
    }

    pub fn role(&self) -> Role {
        self.replica.consensus.leadership().role
    }

    pub fn tick(&mut self) -> Result<(), End> {
        self.host.ticks += 1;
        self.replica.tick(&mut self.host)
    }

    /// Does all the work that follows from what it was given.  What it sends reaches nobody.
    pub fn work(&mut self) -> Result<(), End> {
        self.replica.advance(&mut self.host)?;
        while let Some(opened) = self.host.opening.take() {
            self.replica.opened(opened, &mut self.host);
            self.replica.advance(&mut self.host)?;
        }
        self.host.said.clear();
        self.host.notices.clear();
        self.host.reports.clear();
        self.host.awaited.clear();
        self.host.handed_out.clear();
        Ok(())
    }
}

/// What is under way from one node to another.
pub enum Sent {
    Message(Message),
    Notice(NodeId, NodeId, Notice),
    Report(NodeId, NodeId, Report),
    LeaseQuestion(NodeId, NodeId, u64),
    Promise(NodeId, NodeId, u64, EntryId),
    Await(NodeId, NodeId, LogIndex),
    Lock(NodeId, NodeId, LockMessage),
}

/// 10 s.
pub const LEADER_REST_TICKS: u64 = 500;
/// 2 s.
pub const SNAPSHOT_TICKS: usize = 100;

pub struct World {
    pub bootstrap: Members,
    pub nodes: BTreeMap<u32, Node>,
    pub stopped: BTreeMap<u32, Disk>,
    pub wire: VecDeque<Sent>,
    /// Nodes that neither hear nor are heard.
    pub cut: BTreeSet<u32>,
    /// Links that let nothing through, the lower end first.
    pub cut_links: BTreeSet<(u32, u32)>,
    /// What the others hear of a node's PostgreSQL, if it does not show all; `None`: it waits for a copy.
    pub shown: BTreeMap<u32, Option<LogIndex>>,
    /// How many Raft snapshots are lost on the way before one arrives.
    pub lose_snapshots: u32,
    /// To these nothing of the log gets through.
    pub lose_appends: BTreeSet<u32>,
    pub snapshots: u32,
    /// Who has told whom what its disk has.
    pub told: BTreeSet<(u32, u32)>,
    /// The log, as the first node that handed it out saw it.
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
        joined: None,
    }
}

/// The preferred leader is in the region of this member.
pub fn wanted(id: u32) -> PreferredLeader {
    PreferredLeader::Region(region(id))
}

pub fn region(id: u32) -> onetrip_core::RegionId {
    format!("r{id}").as_str().into()
}

impl World {
    /// Members 1 to 3; the leader belongs with node 1.
    pub fn new() -> World {
        World::of((1..=3).map(|id| voter(id, MemberRole::Voter)).collect())
    }

    pub fn of(members: Vec<Member>) -> World {
        let ids: Vec<u32> = members.iter().map(|m| m.id.0).collect();
        let bootstrap = Members::bootstrap(members, wanted(1), 8);
        let mut world = World {
            bootstrap,
            nodes: BTreeMap::new(),
            stopped: BTreeMap::new(),
            wire: VecDeque::new(),
            cut: BTreeSet::new(),
            cut_links: BTreeSet::new(),
            shown: BTreeMap::new(),
            lose_snapshots: 0,
            lose_appends: BTreeSet::new(),
            snapshots: 0,
            told: BTreeSet::new(),
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

    /// What was not synced is lost.  A node that was removed has ended by itself.
    pub fn crash(&mut self, id: u32) {
        match self.nodes.remove(&id) {
            Some(node) => _ = self.stopped.insert(id, node.replica.consensus.log().clone()),
            None => assert!(self.stopped.contains_key(&id), "node {id} never was"),
        }
    }

    pub fn restart(&mut self, id: u32) {
        let disk = self.stopped.remove(&id).unwrap();
        self.start(id, disk);
    }

    pub fn disk_goes_on(&mut self, id: u32) {
        let Node { replica, host } = self.nodes.get_mut(&id).unwrap();
        host.disk_hangs = false;
        if let Some(number) = host.unsynced.take() {
            replica.synced(number, host).unwrap();
        }
        self.work(id);
        self.deliver();
    }

    /// A checkpoint of all that node `id` has decided becomes durable, and its log is cut.
    pub fn cut_log(&mut self, id: u32) {
        let node = self.nodes.get_mut(&id).unwrap();
        let (raw, upto) = (node.checkpoint(), node.replica.certifier.decided().0);
        let disk = node.replica.consensus.log_mut();
        disk.checkpoint = Some(raw);
        disk.cut(upto);
    }

    /// Does all the work that follows from what node `id` has been given.
    pub fn work(&mut self, id: u32) {
        let others = self.others(id);
        let Some(Node { replica, host }) = self.nodes.get_mut(&id) else { return };
        let mut ended = replica.advance(host);
        while let Some(opened) = host.opening.take() {
            replica.opened(opened, host);
            ended = ended.and_then(|()| replica.advance(host));
        }
        for (index, conf, raw) in std::mem::take(&mut host.checkpoints) {
            replica.consensus.log_mut().checkpoint = Some(raw);
            replica.checkpointed(index, &conf, host).unwrap();
        }
        self.snapshots += std::mem::take(&mut host.snapshots);
        self.wire.extend(host.said.drain(..).map(Sent::Message));
        self.told.extend(host.notices.iter().map(|(to, _)| (id, to.0)));
        self.wire.extend(host.notices.drain(..).map(|(to, notice)| Sent::Notice(NodeId(id), to, notice)));
        for (to, question) in host.lease_questions.drain(..) {
            self.wire.extend(to.into_iter().map(|to| Sent::LeaseQuestion(NodeId(id), to, question)));
        }
        let promises = host.promises.drain(..);
        self.wire.extend(promises.map(|(to, question, last)| Sent::Promise(NodeId(id), to, question, last)));
        for (to, at) in host.awaited.drain(..) {
            self.wire.extend(to.into_iter().map(|to| Sent::Await(NodeId(id), to, at)));
        }
        let locks = host.lock_messages.drain(..);
        self.wire.extend(locks.map(|(to, message)| Sent::Lock(NodeId(id), to, message)));
        for (only, mut report) in host.reports.drain(..) {
            if let Some(shown) = self.shown.get(&id) {
                report.shown = shown.map(|at| (at, at));
            }
            let meant = others.iter().filter(|to| only.as_ref().is_none_or(|only| only.contains(to)));
            let to_each = meant.map(|to| Sent::Report(NodeId(id), *to, report.clone()));
            self.wire.extend(to_each);
        }
        for entry in host.handed_out.drain(..) {
            let seen = (entry.term.0, entry.data.clone());
            let first = self.log.entry(entry.index.0).or_insert_with(|| seen.clone());
            assert_eq!(*first, seen, "one log: entry {} at node {id}", entry.index);
        }
        match ended {
            Ok(()) => {}
            Err(End::Removed | End::Crashed) => self.crash(id),
            Err(End::Error(why)) => panic!("node {id}: {why}"),
        }
    }

    fn others(&self, id: u32) -> Vec<NodeId> {
        self.nodes.keys().filter(|other| **other != id).map(|other| NodeId(*other)).collect()
    }

    /// From now on both ends measure these round trips, in microseconds.
    pub fn measure(&mut self, round_trips: &[(u32, u32, u32)]) {
        for (id, node) in &mut self.nodes {
            let own = round_trips.iter().filter_map(|(a, b, us)| match (a == id, b == id) {
                (true, _) => Some((NodeId(*b), *us)),
                (_, true) => Some((NodeId(*a), *us)),
                _ => None,
            });
            node.host.round_trips = own.collect();
        }
    }

    pub fn deliver(&mut self) {
        for _ in 0..100_000 {
            let Some(sent) = self.wire.pop_front() else { return };
            let (from, to) = match &sent {
                Sent::Message(message) => (message.from as u32, message.to as u32),
                Sent::Notice(from, to, _)
                | Sent::Report(from, to, _)
                | Sent::Await(from, to, _)
                | Sent::Lock(from, to, _)
                | Sent::LeaseQuestion(from, to, _)
                | Sent::Promise(from, to, ..) => (from.0, to.0),
            };
            let link_is_cut = self.cut_links.contains(&(from.min(to), from.max(to)));
            if link_is_cut || self.cut.contains(&from) || self.cut.contains(&to) {
                continue;
            }
            let is_append = matches!(&sent, Sent::Message(m) if m.get_msg_type() == MessageType::MsgAppend);
            if is_append && self.lose_appends.contains(&to) {
                continue;
            }
            let is_snapshot = matches!(&sent, Sent::Message(m) if m.get_msg_type() == MessageType::MsgSnapshot);
            if is_snapshot && self.lose_snapshots > 0 {
                self.lose_snapshots -= 1;
                continue;
            }
            if let Some(node) = self.nodes.get_mut(&to) {
                match sent {
                    Sent::Message(message) => {
                        consensus::check(&message).unwrap();
                        node.replica.message(message, &mut node.host).unwrap();
                    }
                    Sent::Notice(from, _, notice) => node.step(Input::Notice(from, notice)),
                    Sent::Await(from, _, at) => node.replica.awaits(from, at),
                    Sent::Lock(from, _, message) => node.replica.lock_message(from, message, &mut node.host),
                    Sent::Report(from, _, report) => node.replica.report(from, report, &mut node.host),
                    Sent::LeaseQuestion(from, _, question) => {
                        node.replica.lease_question(from, question, &mut node.host).unwrap();
                    }
                    Sent::Promise(from, _, question, last) => node.replica.promise_of(from, question, last),
                }
                self.work(to);
            }
        }
        panic!("messages without end");
    }

    pub fn ticks(&mut self, n: usize) {
        for _ in 0..n {
            let ids: Vec<u32> = self.nodes.keys().copied().collect();
            let positions: Vec<_> = self.nodes.iter().map(|(id, n)| (*id, n.replica.certifier.decided())).collect();
            for id in ids {
                let Some(node) = self.nodes.get_mut(&id) else { continue };
                for (of, applied) in positions.iter().filter(|(of, _)| !self.cut.contains(of)) {
                    let shown = self.shown.get(of).copied().unwrap_or(Some(*applied));
                    node.step(Input::Position(NodeId(*of), shown));
                }
                node.host.ticks += 1;
                node.replica.tick(&mut node.host).unwrap();
                self.work(id);
            }
            self.deliver();
            let terms =
                self.nodes.values().filter(|n| n.role() == Role::Leader).map(|n| n.replica.consensus.leadership().term);
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

    /// Changes the table through node `at`, asking again as a node does, until all nodes that are not cut off show it.
    pub fn change(&mut self, at: u32, change: Change) {
        assert!(self.changes(at, &change, 300), "never decided: {change}");
    }

    /// The same; `false`: so many tries have changed nothing.
    pub fn changes(&mut self, at: u32, change: &Change, tries: usize) -> bool {
        let before = self.nodes[&at].members().version;
        for _ in 0..tries {
            if self.nodes.get(&at).is_none_or(|n| n.members().version > before) {
                self.ticks(10);
                return true;
            }
            let node = self.nodes.get_mut(&at).unwrap();
            let command = Command { expected_version: node.members().version, change: change.clone() };
            node.step(Input::Change(command));
            self.work(at);
            self.deliver();
            self.ticks(5);
        }
        false
    }

    /// A new member with the next id joins through `at` and starts from a checkpoint of that node.
    pub fn join(&mut self, at: u32, role: MemberRole, replaces: Option<u32>) -> u32 {
        let id = self.nodes[&at].members().next_id.0;
        let hash = [id as u8; 32];
        let replaces = replaces.map(NodeId);
        self.change(at, Change::AddToken(Token { hash, role, replaces, expires_unix_s: 0 }));
        self.change(
            at,
            Change::Join {
                token: hash,
                attempt: u64::from(id),
                asked_unix_s: 0,
                region: region(id),
                address: format!("host:{id}"),
            },
        );
        let raw = checkpoint::installed(&self.nodes[&at].checkpoint());
        self.start(id, Disk { checkpoint: Some(raw), ..Disk::default() });
        id
    }

    pub fn is_voter(&self, id: u32) -> bool {
        let mut running = self.nodes.iter().filter(|(n, _)| !self.cut.contains(n)).map(|(_, n)| n);
        running.all(|n| n.replica.consensus.conf().votes(NodeId(id)) && !n.replica.consensus.conf().is_joint())
    }

    pub fn propose(&mut self, at: u32, raw: Bytes) {
        let node = self.nodes.get_mut(&at).unwrap();
        node.step(Input::Propose(raw));
        self.work(at);
        self.deliver();
    }

    /// Proposes a transaction through `at`, and waits until all nodes that run and can be heard have decided it.
    pub fn commit(&mut self, at: u32) {
        self.txns += 1;
        let txn = TxnId { node: NodeId(at), incarnation: 1, sequence: self.txns };
        let raw = Entry::encode(&txn, &[], b"row");
        for _ in 0..300 {
            let node = self.nodes.get_mut(&at).unwrap();
            node.step(Input::Propose(raw.clone()));
            self.work(at);
            self.deliver();
            let heard = |w: &World, id: &u32| !w.cut.contains(id) && w.nodes[&at].members().contains(NodeId(*id));
            let all = |w: &World| {
                let mut heard = w.nodes.iter().filter(|(id, _)| heard(w, id));
                heard.all(|(_, n)| {
                    matches!(n.replica.certifier.outcome(&txn), onetrip_core::certifier::Outcome::Decided { .. })
                })
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

    /// Waits until all nodes that run are at the same index with the same state.
    pub fn settle(&mut self) {
        self.until("all at one place", |w| {
            let at: BTreeSet<LogIndex> = w.nodes.values().map(|n| n.replica.certifier.decided()).collect();
            at.len() == 1
        });
        let states: BTreeSet<Bytes> = self.nodes.values().map(strip_history).collect();
        assert_eq!(states.len(), 1, "one state");
    }
}

/// Without the committed indexes, which differ from node to node.
fn strip_history(node: &Node) -> Bytes {
    let c = &node.replica.consensus;
    checkpoint::freeze(c.applied().1, c.conf(), c.members(), &node.replica.certifier, &CommittedIndexes::default())
        .encode()
}
