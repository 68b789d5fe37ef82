//! Large transactions whose node is gone, while others wait for them.

use crate::world::{voter, World};
use onetrip_core::{Entry, MemberRole, NodeId, TxnId};

/// 10 s, and what it takes until the others have decided what is proposed then.
const ONE_TIME: usize = 500 + 5;

fn txn(node: u32, sequence: u64) -> TxnId {
    TxnId { node: NodeId(node), incarnation: 1, sequence }
}

/// One transaction of node 3 has begun to arrive, thirty more of it wait, and then one of node 2.
fn queue() -> World {
    queue_of(3)
}

/// The same with so many voters.
fn queue_of(voters: u32) -> World {
    let mut w = World::of((1..=voters).map(|id| voter(id, MemberRole::Voter)).collect());
    w.until("node 1 leads", |w| w.leader() == Some(1));
    (1..=31).for_each(|sequence| w.propose(3, Entry::encode_part(&txn(3, 1_000 + sequence), 9, 0, b"begin")));
    w.propose(2, Entry::encode_part(&txn(2, 1_000), 9, 0, b""));
    w.ticks(1);
    assert_eq!(arriving(&w), Some(txn(3, 1_001)));
    w
}

fn arriving(w: &World) -> Option<TxnId> {
    w.nodes[&1].replica.certifier.arriving().map(|arriving| arriving.txn)
}

/// Goal: however much a node had waiting, it holds up the others once.
#[test]
fn a_node_that_is_gone_holds_up_large_transactions_once() {
    let mut w = queue();
    w.crash(3);
    w.ticks(ONE_TIME);
    assert_eq!(arriving(&w), Some(txn(2, 1_000)));
    w.settle();
    // It comes back to the same verdicts.
    w.restart(3);
    w.settle();
}

/// Goal: of a node that others hear of, only the transaction goes that does not get on.  Method: its entries come by
/// another node, since its own would cancel what no session waits for.
#[test]
fn a_node_that_goes_on_keeps_what_it_has_waiting() {
    let mut w = queue();
    w.crash(3);
    for sequence in 1..=5 {
        assert_eq!(arriving(&w), Some(txn(3, 1_001)));
        w.ticks(100);
        w.propose(1, Entry::encode(&txn(3, sequence), &[], b"row"));
    }
    w.ticks(5);
    assert_eq!(arriving(&w), Some(txn(3, 1_002)));
    w.ticks(ONE_TIME);
    assert_eq!(arriving(&w), Some(txn(2, 1_000)));
}

/// Goal: what a node has waiting from before it started anew, it gives up all at once.
#[test]
fn a_node_that_starts_anew_holds_up_large_transactions_once() {
    let mut w = queue();
    w.crash(3);
    w.restart(3);
    w.ticks(100 + 50);
    assert_eq!(arriving(&w), Some(txn(2, 1_000)));
}

/// Goal: a leader that is gone, too, is not in the way of that.
#[test]
fn the_next_leader_cancels_what_a_node_that_is_gone_has_waiting() {
    let mut w = queue_of(5);
    w.crash(3);
    w.ticks(300);
    w.crash(1);
    w.until("another leads", |w| w.leader().is_some());
    w.ticks(ONE_TIME);
    let leader = w.leader().unwrap();
    let arriving = w.nodes[&leader].replica.certifier.arriving();
    assert_eq!(arriving.map(|arriving| arriving.txn), Some(txn(2, 1_000)));
}

/// Goal: a member whose disk stands still does not take that for the silence of others.  Method: as above, more of the
/// transaction comes by another node.
#[test]
fn a_disk_that_stands_still_cancels_nothing() {
    let mut w = queue_of(5);
    w.crash(3);
    w.nodes.get_mut(&2).unwrap().host.disk_hangs = true;
    for offset in 5..8 {
        w.propose(1, Entry::encode_part(&txn(3, 1_001), 9, offset, b"."));
        w.ticks(200);
    }
    w.disk_goes_on(2);
    w.ticks(5);
    assert_eq!(arriving(&w), Some(txn(3, 1_001)));
}

/// Goal: nor does a leader, where nobody can take its place.
#[test]
fn a_leader_whose_disk_stands_still_cancels_nothing() {
    let mut w = World::of(vec![voter(1, MemberRole::Voter)]);
    w.until("node 1 leads", |w| w.leader() == Some(1));
    let replica = w.join(1, MemberRole::Replica, None);
    w.crash(replica);
    w.propose(1, Entry::encode_part(&txn(replica, 1_000), 9, 0, b"begin"));
    w.nodes.get_mut(&1).unwrap().host.disk_hangs = true;
    w.propose(1, Entry::encode_part(&txn(replica, 1_000), 9, 5, b"."));
    w.ticks(ONE_TIME);
    w.disk_goes_on(1);
    w.ticks(5);
    assert_eq!(arriving(&w), Some(txn(replica, 1_000)));
    // Nothing else comes.
    w.ticks(ONE_TIME);
    assert_eq!(arriving(&w), None);
}

/// Goal: a backup needs no majority, also while a large transaction arrives whose end nobody will ever send.
#[test]
fn a_backup_between_the_parts_of_a_transaction_begins_from_the_last_checkpoint() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    let backups = |w: &mut World| {
        w.nodes.get_mut(&2).unwrap().host.backup_waits = true;
        w.ticks(30);
        w.nodes[&2].host.backed_up.clone()
    };
    w.commit(2);
    let first = w.nodes[&2].replica.certifier.decided();
    assert_eq!(backups(&mut w), [first]);
    w.propose(3, Entry::encode_part(&txn(3, 1_000), 9, 0, b"begin"));
    w.ticks(5);
    assert!(w.nodes[&2].replica.certifier.is_between_parts());
    w.crash(1);
    w.crash(3);
    assert_eq!(backups(&mut w), [first, first]);
}
