//! Who is told at once what a member's disk has.

use crate::world::{voter, Sent, World};
use bytes::Bytes;
use onetrip_core::consensus::Input;
use onetrip_core::members::{Change, MemberRole};
use onetrip_core::{Entry, NodeId, TxnId};
use std::collections::BTreeSet;

fn ready(mut w: World) -> World {
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.commit(1);
    w.settle();
    w.told.clear();
    w
}

fn transaction() -> (TxnId, Bytes) {
    let txn = TxnId { node: NodeId(1), incarnation: 1, sequence: 77 };
    (txn, Entry::encode(&txn, &[], b"row"))
}

/// Goal: two followers of three voters do not tell each other what the leader tells both.
#[test]
fn followers_do_not_repeat_what_the_leader_says() {
    let mut w = ready(World::new());
    for at in [1, 2, 3] {
        w.commit(at);
    }
    assert_eq!(w.told, BTreeSet::from([(1, 2), (1, 3)]));
}

/// Goal: what a majority of disks has is decided within a tick although the leader does not say so any more.  Method:
/// its notice is lost, and it is not heard from then on.
#[test]
fn followers_tell_each_other_what_the_leader_does_not_say() {
    let mut w = ready(World::new());
    let (txn, raw) = transaction();
    let leader = w.nodes.get_mut(&1).unwrap();
    leader.step(Input::Propose(raw));
    w.work(1);
    w.wire.retain(|sent| !matches!(sent, Sent::Notice(..)));
    w.deliver();
    let knows = |w: &World, id| {
        let outcome = w.nodes[&id].replica.certifier.outcome(&txn);
        matches!(outcome, onetrip_core::certifier::Outcome::Decided { .. })
    };
    assert!(knows(&w, 1) && !knows(&w, 2) && !knows(&w, 3));
    w.cut.insert(1);
    w.ticks(1);
    assert!(knows(&w, 2) && knows(&w, 3));
}

/// Goal: a leader that is busy tells those at once whose transactions it has on its disk; the others learn it from its
/// next append, and if there is none, at its next tick.
#[test]
fn a_busy_leader_tells_who_waits() {
    let mut w = ready(World::new());
    let decided = |w: &World, id| w.nodes[&id].replica.certifier.decided();
    let propose = |w: &mut World, at: u32, sequence| {
        let txn = TxnId { node: NodeId(at), incarnation: 1, sequence };
        w.nodes.get_mut(&at).unwrap().step(Input::Propose(Entry::encode(&txn, &[], b"row")));
        w.work(at);
        w.deliver();
    };
    for sequence in 0..10 {
        propose(&mut w, 1, 100 + sequence);
    }
    w.ticks(1);
    w.told.clear();

    propose(&mut w, 1, 200);
    assert!(w.told.is_empty(), "{:?}", w.told);
    assert!(decided(&w, 2) < decided(&w, 1));
    propose(&mut w, 2, 201);
    assert_eq!(w.told, BTreeSet::from([(1, 2)]));
    assert!(decided(&w, 2) == decided(&w, 1) && decided(&w, 3) < decided(&w, 1));
    w.ticks(1);
    assert_eq!(decided(&w, 3), decided(&w, 1));

    // Who asks for a fresh read is told first.
    for sequence in 0..10 {
        propose(&mut w, 1, 300 + sequence);
    }
    w.ticks(1);
    propose(&mut w, 1, 400);
    assert!(decided(&w, 3) < decided(&w, 1));
    w.told.clear();
    let leader = w.nodes.get_mut(&1).unwrap();
    leader.replica.question(NodeId(3), 5, &mut leader.host);
    w.work(1);
    w.deliver();
    assert_eq!(w.told, BTreeSet::from([(1, 3)]));
    assert_eq!(decided(&w, 3), decided(&w, 1));
    w.ticks(1);

    // Nothing came in that tick.
    w.ticks(1);
    w.told.clear();
    propose(&mut w, 1, 202);
    assert_eq!(w.told, BTreeSet::from([(1, 2), (1, 3)]));
}

/// Goal: who may need others than the leader is told at once: members that do not vote, everybody while a region may
/// hold read leases, everybody in a larger cluster.
#[test]
fn others_are_told_at_once() {
    let mut w = ready(World::new());
    let replica = w.join(1, MemberRole::Replica, None);
    w.until("the replica is there", |w| w.nodes[&replica].members().contains(NodeId(replica)));
    w = ready(w);
    w.commit(1);
    assert_eq!(w.told, BTreeSet::from([(1, 2), (1, 3), (1, replica), (2, replica), (3, replica)]));

    let mut w = ready(World::new());
    w.change(1, Change::LeaseRegions(vec![crate::world::region(2)]));
    w.told.clear();
    w.commit(1);
    assert!(w.told.contains(&(2, 3)) && w.told.contains(&(3, 2)), "{:?}", w.told);

    let mut w = ready(World::of((1..=5).map(|id| voter(id, MemberRole::Voter)).collect()));
    w.commit(1);
    assert!(w.told.contains(&(2, 3)) && w.told.contains(&(5, 4)), "{:?}", w.told);
}
