//! Large transactions whose node is gone, while others wait for them.

use crate::world::World;
use onetrip_core::{Entry, NodeId, TxnId};

/// 10 s, and what it takes until the others have decided what is proposed then.
const ONE_TIME: usize = 500 + 5;

fn txn(node: u32, sequence: u64) -> TxnId {
    TxnId { node: NodeId(node), incarnation: 1, sequence }
}

/// One transaction of node 3 has begun to arrive, thirty more of it wait, and then one of node 2.
fn queue() -> World {
    let mut w = World::new();
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
