//! What becomes of a fresh read while members come and go.  Questions and answers are carried by hand.

use crate::world::{Node, World};
use onetrip_core::agent::{Hello, Role, VERSION};
use onetrip_core::members::Change;
use onetrip_core::router::{AgentEvent, ConnId, Read};
use onetrip_core::{EntryId, LogIndex, NodeId, Term};
use std::sync::Arc;

const CONN: ConnId = ConnId(1);

fn backend(node: &mut Node) {
    let role = Role::Backend;
    let (pid, incarnation, applied, durable) = (1, 1, LogIndex::ZERO, LogIndex::ZERO);
    let hello = Hello { version: VERSION, role, pid, incarnation, applied, durable };
    let opened = AgentEvent::Opened { conn: CONN, hello, outbox: Arc::default() };
    node.replica.agent(opened, &mut node.host).unwrap();
}

/// Returns the number of the question that this read asks, if it asks one at once.
fn read(node: &mut Node, number: u64) -> Option<u64> {
    node.host.questions.clear();
    node.replica.agent(AgentEvent::Read(Read { conn: CONN, number, may_ask: true }), &mut node.host).unwrap();
    node.work().unwrap();
    node.host.questions.first().map(|(_, question)| *question)
}

fn waits(node: &Node, number: u64) -> bool {
    node.replica.router.waits_for_read(&Read { conn: CONN, number, may_ask: true })
}

/// Goal: a read is answered although those of whom it was asked are no members any more.  Method: node 1 asks nodes 2
/// and 3, which leave without an answer.
#[test]
fn a_read_is_asked_again_of_those_who_vote_now() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.commit(1);
    let node = w.nodes.get_mut(&1).unwrap();
    backend(node);
    assert!(read(node, 1).is_some());
    for leaves in [3, 2] {
        assert!(waits(&w.nodes[&1], 1));
        w.change(1, Change::Remove(NodeId(leaves)));
        w.nodes.remove(&leaves);
    }
    w.ticks(10);
    assert!(!waits(&w.nodes[&1], 1), "a majority of those who vote now is node 1 alone");
}

/// Goal: without a majority, no more is kept and asked than somebody waits for.  Method: a backend gives up again and
/// again, and asks anew.
#[test]
fn what_nobody_waits_for_is_not_asked_again() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    let node = w.nodes.get_mut(&1).unwrap();
    backend(node);
    (1..=1_000).for_each(|number| _ = read(node, number));
    w.ticks(60);
    let node = w.nodes.get_mut(&1).unwrap();
    node.host.questions.clear();
    w.ticks(25);
    let node = &w.nodes[&1];
    assert!(waits(node, 1_000));
    assert_eq!(node.host.questions.len(), 1, "{:?}", node.host.questions);
}

/// Goal: a read waits for what the first majority has named and for nothing else.  Method: another member answers later
/// with an entry that there never is, and so does one that is no voter.
#[test]
fn what_comes_after_the_answers_of_a_majority_holds_up_no_read() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.commit(1);
    let never = EntryId { term: Term(1 << 60), index: LogIndex(1 << 60) };
    // Node 3 takes part in the commitment, and node 2 hears of it later.
    w.cut.insert(2);
    w.commit(3);
    let named = w.nodes[&3].replica.consensus.last_on_disk();
    let node = w.nodes.get_mut(&2).unwrap();
    backend(node);
    let question = read(node, 1).unwrap();
    node.replica.last_entry_of(NodeId(4), question, never);
    node.replica.last_entry_of(NodeId(3), question, named);
    node.replica.last_entry_of(NodeId(1), question, never);
    node.work().unwrap();
    assert!(waits(node, 1), "node 2 has not decided what node 3 named");
    w.cut.clear();
    w.settle();
    assert!(!waits(&w.nodes[&2], 1));
}
