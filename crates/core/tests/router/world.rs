//! A router and what is around it: connections that keep what was sent, logs in memory, and a node with its workers.

use bytes::{Bytes, BytesMut};
use onetrip_core::agent::{take_frame, Hello, Role, ToPostgres, VerdictOutcome, VERSION};
use onetrip_core::certifier::{Certifier, CommittedIndexes, Limits};
use onetrip_core::consensus::Committed;
use onetrip_core::decide::decide;
use onetrip_core::parts::PartSizes;
use onetrip_core::router::{AgentEvent, ConnId, Context, Log, Outbox, Router, Way};
use onetrip_core::{
    Base, Entry, Error, Key, LockMode, LogIndex, Member, MemberRole, Members, NodeId, RegionId, Term, TxnId,
};
use raft::eraftpb::EntryType;
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Frames; `None` is the end of the connection.
#[derive(Default)]
pub struct Wire(pub Mutex<Vec<Option<ToPostgres>>>);

impl Outbox for Wire {
    fn send<const N: usize>(&self, frame: [Bytes; N]) -> bool {
        let frame = take_frame(&mut BytesMut::from(&frame.concat()[..])).unwrap().unwrap();
        self.0.lock().unwrap().push(Some(ToPostgres::decode(frame).unwrap()));
        true
    }
    fn feed_bytes_max(&self) -> usize {
        FEED_BYTES_MAX
    }
    fn close(&self) {
        self.0.lock().unwrap().push(None);
    }
}

pub const FEED_BYTES_MAX: usize = 1_000;

pub struct NoLog;

impl Log for NoLog {
    type Error = Error;
    fn readable_from(&self, _: impl Fn(LogIndex) -> bool) -> LogIndex {
        LogIndex(3)
    }
    fn last_index(&self) -> LogIndex {
        LogIndex(2)
    }
    fn read(&self, _: LogIndex) -> Result<Bytes, Error> {
        panic!("nothing is read")
    }
}

/// At tick 0.
pub fn at_start<'a, L>(
    certifier: &'a Certifier,
    committed_indexes: &'a mut CommittedIndexes,
    log: &'a L,
    members: &'a Members,
) -> Context<'a, L> {
    Context { certifier, committed_indexes, log, members, tick: 0, now: Duration::ZERO }
}

/// Of node 1.
pub fn router() -> Router<Wire> {
    router_with(PartSizes::default())
}

/// The same, with these sizes.
pub fn router_with(sizes: PartSizes) -> Router<Wire> {
    Router::new(NodeId(1), "r1".into(), sizes, ZERO, &[], 0)
}

/// A router with the connection of one backend.
pub fn with_a_backend(context: &mut Context<'_, NoLog>) -> (Router<Wire>, ConnId, Arc<Wire>) {
    let (mut router, conn, wire) = (router(), ConnId(1), Arc::new(Wire::default()));
    let hello = Hello { version: VERSION, role: Role::Backend, pid: 1, incarnation: 1, applied: ZERO, durable: ZERO };
    router.handle(AgentEvent::Opened { conn, hello, outbox: wire.clone() }, context).unwrap();
    (router, conn, wire)
}

/// A log from index 1 on.
#[derive(Default)]
pub struct Entries {
    pub raw: Vec<Bytes>,
    pub reads: Cell<usize>,
}

impl Log for Entries {
    type Error = Error;
    fn readable_from(&self, _: impl Fn(LogIndex) -> bool) -> LogIndex {
        LogIndex(1)
    }
    fn last_index(&self) -> LogIndex {
        LogIndex(self.raw.len() as u64)
    }
    fn read(&self, at: LogIndex) -> Result<Bytes, Error> {
        self.reads.set(self.reads.get() + 1);
        Ok(self.raw[at.0 as usize - 1].clone())
    }
}

pub const APPLY: ConnId = ConnId(1);
pub const ARRIVAL: ConnId = ConnId(2);
pub const ZERO: LogIndex = LogIndex::ZERO;
pub const PART: usize = 41;

/// Node 1 with its apply worker and its arrival worker, and a log in which large transactions arrive.
pub struct Here {
    pub certifier: Certifier,
    pub committed_indexes: CommittedIndexes,
    pub members: Arc<Members>,
    pub log: Entries,
    pub tick: u64,
    pub now: Duration,
    pub router: Router<Wire>,
    pub apply: Arc<Wire>,
    pub arrival: Arc<Wire>,
}

impl Here {
    pub fn new() -> Here {
        let member = |id: u32, role| Member {
            id: NodeId(id),
            region: RegionId(format!("r{id}")),
            address: format!("host:{id}"),
            role,
            voter: true,
            slot: None,
            replaces: None,
            joined: None,
        };
        let members = [(1, MemberRole::Voter), (2, MemberRole::Voter), (3, MemberRole::Witness)];
        let members = members.map(|(id, role)| member(id, role)).to_vec();
        let sizes = PartSizes { whole_max: PART, part: PART, written_early: 0, ..PartSizes::default() };
        let mut here = Here {
            certifier: Certifier::new(Limits::default()),
            committed_indexes: CommittedIndexes::default(),
            members: Arc::new(Members::bootstrap(members, "r1".into(), 4)),
            log: Entries::default(),
            tick: 0,
            now: Duration::ZERO,
            router: router_with(sizes),
            apply: Arc::default(),
            arrival: Arc::default(),
        };
        here.opens(Role::ApplyWorker);
        here.opens(Role::ArrivalWorker);
        here
    }

    pub fn opens(&mut self, role: Role) {
        let (conn, outbox) = match role {
            Role::ApplyWorker => (APPLY, self.apply.clone()),
            _ => (ARRIVAL, self.arrival.clone()),
        };
        self.opens_as(conn, role, ZERO, outbox.clone());
        said(&outbox);
    }

    pub fn opens_as(&mut self, conn: ConnId, role: Role, applied: LogIndex, outbox: Arc<Wire>) {
        let hello = Hello { version: VERSION, role, pid: 1, incarnation: 1, applied, durable: applied };
        self.handle(AgentEvent::Opened { conn, hello, outbox });
    }

    pub fn with<T>(&mut self, act: impl FnOnce(&mut Router<Wire>, &mut Context<'_, Entries>) -> T) -> T {
        let mut context = Context {
            certifier: &self.certifier,
            committed_indexes: &mut self.committed_indexes,
            log: &self.log,
            members: &self.members,
            tick: self.tick,
            now: self.now,
        };
        act(&mut self.router, &mut context)
    }

    pub fn handle(&mut self, event: AgentEvent<Wire>) -> Option<Bytes> {
        self.with(|router, context| router.handle(event, context).unwrap())
    }

    /// The arrival worker asks for bytes.  Returns what the node proposes.
    pub fn wants(&mut self, txn: Option<TxnId>, from: usize) -> Option<Bytes> {
        self.handle(AgentEvent::More { conn: ARRIVAL, txn, from: from as u64 });
        self.feeds()
    }

    pub fn is_done(&mut self, txn: TxnId, kept: bool) -> Option<Bytes> {
        self.handle(AgentEvent::Written { conn: ARRIVAL, txn, kept });
        self.feeds()
    }

    pub fn feeds(&mut self) -> Option<Bytes> {
        self.with(|router, context| router.feed_arrival_worker(context))
    }

    /// What the node proposes of the transactions that come from here.  The server of node 2 is not away.
    pub fn parts(&mut self) -> Vec<Bytes> {
        self.with(|router, context| router.parts_to_propose(&[NodeId(2)], context))
    }

    pub fn shows(&mut self, applied: u64) {
        let applied = LogIndex(applied);
        self.handle(AgentEvent::Position { conn: APPLY, applied, durable: applied });
    }

    /// The next entry of the log.  Returns what the node proposes.
    pub fn decides(&mut self, raw: Bytes) -> Option<Bytes> {
        self.log.raw.push(raw.clone());
        let (index, term, kind) = (self.log.last_index(), Term(1), EntryType::EntryNormal);
        let committed = Committed { index, term, kind, data: raw, members: None };
        let decided = decide(&committed, &mut self.certifier, &mut self.committed_indexes, &mut self.members).unwrap();
        let (txn, decision) = decided.unwrap();
        self.with(|router, context| {
            router.decided(index, txn, decision, Way::default(), context);
            router.feed_worker(context).unwrap();
        });
        self.feeds()
    }

    /// Part number `number` of a transaction.
    pub fn part(&mut self, raw: &Bytes, number: usize) -> Option<Bytes> {
        let (from, to) = (number * PART, raw.len().min((number + 1) * PART));
        self.decides(Entry::encode_part(&Entry::peek_txn(raw).unwrap(), raw.len(), from, &raw[from..to]))
    }

    /// The entry that stands for a transaction all of which has arrived.
    pub fn whole(&mut self, raw: &Bytes) {
        let indexes = self.certifier.arriving().unwrap().indexes.clone();
        self.decides(Entry::encode_whole(&Entry::peek_txn(raw).unwrap(), crc32fast::hash(raw), &indexes));
    }

    /// A transaction arrives, and the arrival worker gets and writes all of it; it is not decided.
    pub fn written(&mut self, raw: &Bytes) {
        let txn = Entry::peek_txn(raw).unwrap();
        self.wants(None, 0);
        self.part(raw, 0);
        self.wants(Some(txn), PART);
        self.part(raw, 1);
        self.is_done(txn, true);
        let arrived = said(&self.arrival);
        let of = |from: usize, to: usize| {
            let (total, bytes) = (raw.len() as u64, raw.slice(from..to));
            Some(ToPostgres::Arriving { txn, total, from: from as u64, bytes })
        };
        assert_eq!(arrived, [of(0, PART), of(PART, raw.len())]);
    }
}

pub fn said(wire: &Wire) -> Vec<Option<ToPostgres>> {
    std::mem::take(&mut *wire.0.lock().unwrap())
}

/// The only thing that was said is a verdict: its outcome, its place, and the committed entry before that.
pub fn verdict(wire: &Wire) -> (VerdictOutcome, LogIndex, LogIndex) {
    match &said(wire)[..] {
        [Some(ToPostgres::Verdict(verdict))] => (verdict.outcome, verdict.at, verdict.other),
        other => panic!("{other:?}"),
    }
}

pub fn fed(wire: &Wire) -> Vec<LogIndex> {
    let at = |frame| match frame {
        Some(ToPostgres::Entry { at, .. }) => at,
        other => panic!("{other:?}"),
    };
    said(wire).into_iter().map(at).collect()
}

/// A transaction of so many bytes that it takes two parts.
pub fn large(node: u32, sequence: u64) -> (TxnId, Bytes) {
    let txn = TxnId { node: NodeId(node), incarnation: 1, sequence };
    let key = Key { hash: 7, mode: LockMode::KeyShare, base: Base(0) };
    let raw = Entry::encode(&txn, &[key], &[sequence as u8; 40]);
    assert_eq!(raw.len(), 2 * PART);
    (txn, raw)
}
