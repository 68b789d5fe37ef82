//! A member that may say anything: what no correct member says is refused where its frame is read, and the rest crashes
//! nobody.

use crate::world::{Disk, End, Node, World};
use bytes::Bytes;
use onetrip_core::certifier::Limits;
use onetrip_core::consensus::{self, Message, Notice, Role};
use onetrip_core::members::{Change, Command};
use onetrip_core::replica::{Report, Store};
use onetrip_core::router::Log;
use onetrip_core::{Checkpoint, Conf, Entry, Error, LogIndex, MemberRole, NodeId, PreferredLeader, Term, TxnId};
use proptest::prelude::*;
use protobuf::Message as _;
use raft::eraftpb::{ConfChangeV2, ConfState, Entry as RaftEntry, EntryType, MessageType};

/// A number that has to do with what the victim knows, or one that has not.
#[derive(Clone, Copy, Debug)]
enum Number {
    Zero,
    Term(i64),
    Committed(i64),
    Last(i64),
    Any(u64),
}

fn number() -> impl Strategy<Value = Number> {
    prop_oneof![
        1 => Just(Number::Zero),
        4 => (-2..3i64).prop_map(Number::Term),
        4 => (-2..3i64).prop_map(Number::Committed),
        4 => (-2..4i64).prop_map(Number::Last),
        1 => prop_oneof![0..30u64, any::<u64>(), Just(u64::MAX), Just(1 << 62)].prop_map(Number::Any),
    ]
}

/// A term that an honest member would use, more often than by chance.
fn term() -> impl Strategy<Value = Number> {
    prop_oneof![8 => (0..3i64).prop_map(Number::Term), 1 => number()]
}

#[derive(Clone, Copy, Debug)]
enum Data {
    Nothing,
    Noise(u64),
    Transaction(u32, u64),
    Incarnation(u32),
    Skip(u64),
    Command,
}

fn data() -> impl Strategy<Value = Data> {
    prop_oneof![
        Just(Data::Nothing),
        any::<u64>().prop_map(Data::Noise),
        (0..5u32, 0..9u64).prop_map(|(node, sequence)| Data::Transaction(node, sequence)),
        (0..5u32).prop_map(Data::Incarnation),
        (0..30u64).prop_map(Data::Skip),
        Just(Data::Command),
    ]
}

#[derive(Clone, Debug)]
struct Said {
    kind: i32,
    term: Number,
    index: Number,
    /// `None`: the term that the victim's log has there.
    log_term: Option<Number>,
    commit: Number,
    commit_term: Number,
    reject: bool,
    hint: Number,
    request_snapshot: Option<Number>,
    /// For each entry: how much higher its term is than the one before, how far its index is off, its type, and its
    /// data.
    entries: Vec<(u8, i64, i32, Data)>,
    transfer: bool,
    priority: i64,
    /// Voters, outgoing, learners and learners next, as bits of their ids; and whether the configuration is left by
    /// itself.
    conf: ([u8; 4], bool),
    /// The snapshot is what its metadata says.
    is_honest: bool,
}

fn said() -> impl Strategy<Value = Said> {
    let entry = (0..3u8, prop_oneof![20 => Just(0), 1 => -2..3i64], prop_oneof![8 => Just(0), 1 => 1..3], data());
    let entries = prop::collection::vec(entry, 0..4);
    let log_term = prop_oneof![3 => Just(None), 1 => number().prop_map(Some)];
    let request = prop_oneof![8 => Just(None), 1 => number().prop_map(Some)];
    // Mostly the types that members send, and now and then any other.
    let kind = prop_oneof![8 => prop::sample::select(vec![3, 3, 3, 4, 5, 6, 7, 7, 8, 9, 14, 17, 18, 2]), 1 => 0..19];
    let set = || prop_oneof![3 => Just(0b1110u8), 1 => 0..64u8];
    let few = || prop_oneof![4 => Just(0u8), 1 => 0..64u8];
    let conf = ((set(), few(), few(), few()).prop_map(|(a, b, c, d)| [a, b, c, d]), any::<bool>());
    let numbers = (term(), number(), number(), number(), number());
    let rest = (entries, log_term, request, any::<[bool; 2]>(), -2..3i64, conf, prop::bool::weighted(0.9));
    (kind, numbers, rest).prop_map(|(kind, numbers, rest)| {
        let (term, index, commit, commit_term, hint) = numbers;
        let (entries, log_term, request_snapshot, [reject, transfer], priority, conf, is_honest) = rest;
        Said {
            kind,
            term,
            index,
            log_term,
            commit,
            commit_term,
            reject,
            hint,
            request_snapshot,
            entries,
            transfer,
            priority,
            conf,
            is_honest,
        }
    })
}

#[derive(Clone, Debug)]
enum Step {
    Says(Said),
    Notice(Number, Number),
    Report(Number, Number),
    Ticks(usize),
    /// The victim does the work that follows from what it has got.
    Work,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => said().prop_map(Step::Says),
        2 => (term(), number()).prop_map(|(t, i)| Step::Notice(t, i)),
        1 => (number(), number()).prop_map(|(a, d)| Step::Report(a, d)),
        1 => (1..60usize).prop_map(Step::Ticks),
        5 => Just(Step::Work),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..25)
}

struct Victim {
    node: Node,
    world: World,
    id: u32,
    liar: u32,
}

impl Victim {
    fn value(&self, number: Number) -> u64 {
        let status = self.node.replica.consensus.status();
        let (of, more) = match number {
            Number::Zero => return 0,
            Number::Any(n) => return n,
            Number::Term(more) => (status.leadership.term.0, more),
            Number::Committed(more) => (status.raft_commit.0, more),
            Number::Last(more) => (status.last.0, more),
        };
        of.saturating_add_signed(more)
    }

    fn data(&self, data: Data, kind: EntryType) -> Bytes {
        let txn = |node, sequence| TxnId { node: NodeId(node), incarnation: 1, sequence };
        let members = self.node.members();
        let command =
            Command { expected_version: members.version, change: Change::PreferLeader(PreferredLeader::Auto) };
        match data {
            Data::Nothing => Bytes::new(),
            Data::Noise(noise) => Bytes::copy_from_slice(&noise.to_le_bytes()),
            Data::Transaction(node, sequence) => Entry::encode(&txn(node, sequence), &[], b"row"),
            Data::Incarnation(node) => Entry::encode_incarnation(NodeId(node), 1, 2),
            Data::Skip(index) => match Entry::decode(Entry::encode(&txn(1, index), &[], b"row")) {
                Ok(entry) => entry.encode_skip(LogIndex(index)),
                Err(_) => Bytes::new(),
            },
            Data::Command if kind == EntryType::EntryNormal => Entry::encode_command(&command),
            Data::Command => {
                let gone = Command { change: Change::Remove(NodeId(2)), ..command };
                let change = ConfChangeV2 { context: gone.encode(), ..Default::default() };
                change.write_to_bytes().unwrap().into()
            }
        }
    }

    fn message(&self, said: &Said) -> Message {
        let (index, term) = (self.value(said.index), self.value(said.term));
        let there = || self.node.replica.consensus.log().term_at(LogIndex(index)).map_or(1, |t| t.0);
        let log_term = said.log_term.map_or_else(there, |t| self.value(t));
        let mut message = Message {
            from: u64::from(self.liar),
            to: u64::from(self.id),
            term,
            index,
            log_term,
            commit: self.value(said.commit),
            commit_term: self.value(said.commit_term),
            reject: said.reject,
            reject_hint: self.value(said.hint),
            request_snapshot: said.request_snapshot.map_or(0, |n| self.value(n)),
            priority: said.priority,
            ..Default::default()
        };
        message.set_msg_type(protobuf::ProtobufEnum::from_i32(said.kind).unwrap_or(MessageType::MsgHup));
        if said.transfer {
            message.context = Bytes::from_static(b"CampaignTransfer");
        }
        let (mut at, mut of) = (index, log_term);
        for (more, aside, kind, data) in &said.entries {
            (at, of) = (at.wrapping_add(1).saturating_add_signed(*aside), of.saturating_add(u64::from(*more)));
            let mut entry = RaftEntry { index: at, term: of, ..Default::default() };
            entry.set_entry_type(
                [EntryType::EntryNormal, EntryType::EntryConfChangeV2, EntryType::EntryConfChange][*kind as usize],
            );
            entry.data = self.data(*data, entry.get_entry_type());
            message.mut_entries().push(entry);
        }
        if message.get_msg_type() == MessageType::MsgSnapshot {
            let mut state = Checkpoint::bootstrap(self.world.bootstrap.clone(), Limits::default());
            (1..=index.min(60)).for_each(|index| state.certifier.skip(LogIndex(index)).unwrap());
            state.term = Term(log_term);
            let (bits, auto_leave) = said.conf;
            let ids = bits.map(|bits| (0..6).filter(|id| bits >> id & 1 == 1).map(NodeId).collect());
            let [voters, outgoing, learners, learners_next] = ids;
            state.conf = Conf { voters, outgoing, learners, learners_next, auto_leave };
            let snapshot = message.mut_snapshot();
            snapshot.data = state.encode();
            let metadata = snapshot.mut_metadata();
            (metadata.index, metadata.term) = (index, log_term);
            metadata.set_conf_state(ConfState::from(&state.conf));
            if !said.is_honest {
                metadata.mut_conf_state().mut_voters().push(1 << 32 | 1);
            }
        }
        message
    }

    /// `Err`: the node ends, in good order.
    fn step(&mut self, step: &Step) -> Result<(), End> {
        let from = NodeId(self.liar);
        match step {
            Step::Says(said) => {
                let message = self.message(said);
                if consensus::check(&message).is_ok() {
                    self.node.replica.message(message, &mut self.node.host)?;
                }
            }
            Step::Notice(term, index) => {
                let notice = Notice { term: Term(self.value(*term)), index: LogIndex(self.value(*index)) };
                self.node.replica.notice(from, notice, &mut self.node.host);
            }
            Step::Report(applied, durable) => {
                // Limited as when a frame is read.
                let index = |n| LogIndex(self.value(n)).min(LogIndex::MAX);
                let report = Report { shown: Some((index(*applied), index(*durable))), ..Report::default() };
                self.node.replica.report(from, report, &mut self.node.host);
            }
            Step::Ticks(n) => {
                for _ in 0..*n {
                    self.node.tick()?;
                    self.node.work()?;
                }
            }
            Step::Work => self.node.work()?,
            Step::Restart => {
                let disk: Disk = self.node.replica.consensus.log().clone();
                self.world.start(self.id, disk);
                self.node = self.world.nodes.remove(&self.id).unwrap();
            }
        }
        Ok(())
    }
}

const STATES: [&str; 7] = ["fresh", "follower", "leader", "candidate", "after a snapshot", "replica", "alone"];

/// Node `id` of a world in that state, and the member that lies to it.
fn victim(state: &str) -> Victim {
    let mut w = World::new();
    let (mut id, mut liar) = (2, 3);
    if state != "fresh" {
        w.until("node 1 leads", |w| w.leader() == Some(1));
        (1..=3).for_each(|at| w.commit(at));
    }
    match state {
        "leader" => id = 1,
        "candidate" => {
            w.cut.insert(2);
            w.until("node 2 asks for votes", |w| w.nodes[&2].role() == Role::Candidate);
        }
        "after a snapshot" => {
            w.crash(2);
            (0..5).for_each(|_| w.commit(1));
            [1, 3].into_iter().for_each(|id| w.cut_log(id));
            w.restart(2);
            w.until("node 2 has it", |w| w.snapshots > 0);
            w.settle();
        }
        "replica" => {
            id = w.join(1, MemberRole::Replica, None);
            w.ticks(100);
        }
        "alone" => {
            // It is the only voter; the other member is a replica.
            (id, liar) = (1, w.join(1, MemberRole::Replica, None));
            w.change(1, Change::Remove(NodeId(3)));
            w.change(1, Change::Remove(NodeId(2)));
        }
        _ => {}
    }
    let node = w.nodes.remove(&id).unwrap();
    Victim { node, world: w, id, liar }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    /// Goal: no message of a member ends a node, in any state, except in good order.  Method: the numbers are close to
    /// what the node knows, since with random ones no message would get far.
    #[test]
    fn a_liar_ends_nobody(state in prop::sample::select(STATES.to_vec()), steps in steps()) {
        let mut victim = victim(state);
        for step in &steps {
            match victim.step(step) {
                Ok(()) => {}
                // It is told that it has acknowledged more than it has, or the log says that it is not a member any
                // more.
                Err(End::Removed | End::Error(Error::LostLog { .. })) => break,
                Err(why) => return Err(TestCaseError::fail(format!("{why:?}"))),
            }
        }
        prop_assert!(victim.node.replica.consensus.log().last_index() <= LogIndex::MAX);
    }
}
