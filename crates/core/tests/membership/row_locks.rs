//! Row locks at the leader, over the replicas' own messages: who has them when sessions, nodes and leaders end.

use crate::world::{Nobody, World};
use onetrip_core::agent::{take_frame, Hello, Role, ToPostgres, VERSION};
use onetrip_core::router::{AgentEvent, ConnId};
use onetrip_core::row_locks::{LockAsk, LockMessage, LockSaid};
use onetrip_core::{Base, Entry, Key, LockMode, LogIndex, NodeId, TxnId};
use std::sync::Arc;

const ROW: u64 = 77;
/// More than it takes there and back.
const AT_ONCE: usize = 3;
const NOBODY: LogIndex = LogIndex::ZERO;

/// One transaction, in a session of this node.
struct Session {
    node: u32,
    conn: ConnId,
    txn: TxnId,
    heard: Arc<Nobody>,
}

impl Session {
    fn new(w: &mut World, node: u32, number: u64) -> Session {
        let (conn, heard): (_, Arc<Nobody>) = (ConnId(number), Arc::default());
        let hello = Hello {
            version: VERSION,
            role: Role::Backend,
            pid: 1,
            incarnation: 1,
            applied: LogIndex::ZERO,
            durable: LogIndex::ZERO,
        };
        let txn = TxnId { node: NodeId(node), incarnation: 1, sequence: 1_000 + number };
        let session = Session { node, conn, txn, heard };
        session.says(w, AgentEvent::Opened { conn, hello, outbox: session.heard.clone() });
        session
    }

    fn says(&self, w: &mut World, event: AgentEvent<Nobody>) {
        let node = w.nodes.get_mut(&self.node).unwrap();
        node.replica.agent(event, &mut node.host).unwrap();
        w.work(self.node);
    }

    fn asks(&self, w: &mut World, number: u64, row: u64) {
        let keys = vec![(row, LockMode::NoKeyUpdate)];
        let ask = LockAsk { txn: self.txn, number, waits: true, keys };
        self.says(w, AgentEvent::Lock { conn: self.conn, ask, table: "public.t".into() });
    }

    fn unlocks(&self, w: &mut World, from: u64) {
        self.says(w, AgentEvent::Unlock { conn: self.conn, txn: self.txn, from });
    }

    fn ends(&self, w: &mut World) {
        self.says(w, AgentEvent::Closed { conn: self.conn });
    }

    /// Its transaction changes the row, and is decided everywhere.
    fn commits(&self, w: &mut World) -> LogIndex {
        let base = w.nodes[&self.node].replica.certifier.decided();
        let key = Key { hash: ROW, mode: LockMode::NoKeyUpdate, base: Base(base.0) };
        w.propose(self.node, Entry::encode(&self.txn, &[key], b"row"));
        w.ticks(10);
        w.nodes[&self.node].replica.certifier.last_committed()
    }

    /// The answer to this request within so many ticks.
    fn hears(&self, w: &mut World, number: u64, ticks: usize) -> Option<(LockSaid, bool)> {
        for tick in 0..=ticks {
            for frame in self.heard.0.take() {
                let frame = take_frame(&mut (&frame[..]).into()).unwrap().unwrap();
                if let ToPostgres::Locked { number: of, said, asked, .. } = ToPostgres::decode(frame).unwrap() {
                    assert_eq!(of, number);
                    return Some((said, asked));
                }
            }
            if tick < ticks {
                w.ticks(1);
            }
        }
        None
    }

    fn must_get(&self, w: &mut World, number: u64, ticks: usize, at: LogIndex) {
        let asked = w.leader() != Some(self.node);
        assert_eq!(self.hears(w, number, ticks), Some((LockSaid::Granted { at }, asked)));
    }
}

fn world() -> World {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.ticks(50);
    w
}

/// Goal: at the leader the answer is there at once, elsewhere after one round trip; the next one gets the lock as soon
/// as the entry is decided, and is told which entry that is.
#[test]
fn the_next_one_is_told_what_the_last_one_committed() {
    let mut w = world();
    let (first, second, third) = (Session::new(&mut w, 1, 1), Session::new(&mut w, 2, 2), Session::new(&mut w, 3, 3));
    first.asks(&mut w, 1, ROW);
    first.must_get(&mut w, 1, 0, NOBODY);
    second.asks(&mut w, 1, ROW);
    third.asks(&mut w, 1, ROW);
    assert_eq!(second.hears(&mut w, 1, 100), None);
    let at = first.commits(&mut w);
    second.must_get(&mut w, 1, AT_ONCE, at);
    assert_eq!(third.hears(&mut w, 1, AT_ONCE), None);
    second.unlocks(&mut w, 0);
    third.must_get(&mut w, 1, AT_ONCE, at);
    // It waits for nobody now, and who comes later learns the same.
    third.ends(&mut w);
    w.ticks(AT_ONCE);
    let fourth = Session::new(&mut w, 2, 4);
    fourth.asks(&mut w, 1, ROW);
    fourth.must_get(&mut w, 1, AT_ONCE, at);
}

#[test]
fn what_a_session_had_or_wanted_ends_with_it() {
    let mut w = world();
    let sessions: Vec<Session> = (1..=4).map(|n| Session::new(&mut w, 1 + n as u32 % 3, n)).collect();
    for session in &sessions {
        session.asks(&mut w, 1, ROW);
        w.ticks(AT_ONCE);
    }
    sessions[0].must_get(&mut w, 1, 0, NOBODY);
    sessions[1].ends(&mut w);
    sessions[2].unlocks(&mut w, 1);
    w.ticks(AT_ONCE);
    sessions[0].ends(&mut w);
    sessions[3].must_get(&mut w, 1, AT_ONCE, NOBODY);
    assert_eq!(sessions[2].hears(&mut w, 1, 100), None);
}

#[test]
fn deadlocks_are_found_across_nodes() {
    let mut w = world();
    let (one, other) = (Session::new(&mut w, 2, 1), Session::new(&mut w, 3, 2));
    one.asks(&mut w, 1, 1);
    other.asks(&mut w, 1, 2);
    one.must_get(&mut w, 1, AT_ONCE, NOBODY);
    other.must_get(&mut w, 1, AT_ONCE, NOBODY);
    one.asks(&mut w, 2, 2);
    w.ticks(AT_ONCE);
    other.asks(&mut w, 2, 1);
    let said = other.hears(&mut w, 2, AT_ONCE);
    assert_eq!(said, Some((LockSaid::Deadlock { other: one.txn }, true)));
    other.unlocks(&mut w, 0);
    one.must_get(&mut w, 2, AT_ONCE, NOBODY);
}

/// Goal: a region that is cut off keeps nobody waiting, and its own sessions go on without locks.
#[test]
fn who_is_not_heard_loses_his_locks() {
    let mut w = world();
    let (away, stays) = (Session::new(&mut w, 3, 1), Session::new(&mut w, 2, 2));
    away.asks(&mut w, 1, ROW);
    away.must_get(&mut w, 1, AT_ONCE, NOBODY);
    stays.asks(&mut w, 1, ROW);
    assert_eq!(stays.hears(&mut w, 1, 500), None, "whoever is heard keeps them, however long");
    w.cut.insert(3);
    away.asks(&mut w, 2, ROW + 1);
    stays.must_get(&mut w, 1, 200, NOBODY);
    assert_eq!(away.hears(&mut w, 2, 300).map(|(said, _)| said), Some(LockSaid::NoTable));
}

/// Goal: an end that the leader did not hear of is made good.
#[test]
fn the_end_of_a_transaction_may_be_lost() {
    let mut w = world();
    let (one, still_there, next) = (Session::new(&mut w, 3, 1), Session::new(&mut w, 3, 2), Session::new(&mut w, 2, 3));
    one.asks(&mut w, 1, ROW);
    one.must_get(&mut w, 1, AT_ONCE, NOBODY);
    still_there.asks(&mut w, 1, ROW + 1);
    still_there.must_get(&mut w, 1, AT_ONCE, NOBODY);
    next.asks(&mut w, 1, ROW);
    w.ticks(AT_ONCE);
    w.cut.insert(3);
    one.unlocks(&mut w, 0);
    w.deliver();
    w.cut.clear();
    next.must_get(&mut w, 1, 30, NOBODY);
}

/// Goal: the end of a savepoint that the leader did not hear of is made good, and only that.
#[test]
fn the_end_of_a_savepoint_may_be_lost() {
    let mut w = world();
    let (one, next, last) = (Session::new(&mut w, 3, 1), Session::new(&mut w, 2, 2), Session::new(&mut w, 1, 3));
    for number in 1..=2 {
        one.asks(&mut w, number, ROW + number);
        one.must_get(&mut w, number, AT_ONCE, NOBODY);
    }
    next.asks(&mut w, 1, ROW + 2);
    last.asks(&mut w, 1, ROW + 1);
    w.ticks(AT_ONCE);
    w.cut.insert(3);
    one.unlocks(&mut w, 2);
    w.deliver();
    w.cut.clear();
    let node = w.nodes.get_mut(&3).unwrap();
    node.replica.connected(NodeId(1), &mut node.host).unwrap();
    w.work(3);
    next.must_get(&mut w, 1, AT_ONCE, NOBODY);
    assert_eq!(last.hears(&mut w, 1, 100), None, "that one it still has");
}

/// Goal: the next leader learns who has what and who waits.
#[test]
fn a_new_leader_is_told() {
    let mut w = world();
    let (first, second) = (Session::new(&mut w, 2, 1), Session::new(&mut w, 3, 2));
    first.asks(&mut w, 1, ROW);
    first.must_get(&mut w, 1, AT_ONCE, NOBODY);
    second.asks(&mut w, 1, ROW);
    w.ticks(AT_ONCE);
    w.crash(1);
    w.until("another one leads", |w| w.leader().is_some_and(|leader| leader != 1));
    assert_eq!(second.hears(&mut w, 1, 200), None, "the lock is not free");
    let at = first.commits(&mut w);
    assert!(matches!(second.hears(&mut w, 1, 30), Some((LockSaid::Granted { at: told }, _)) if told == at));
}

/// Goal: nor does a leader forget what it is told early, or grant what it may be told yet.
/// Method: the leadership goes to a node with a holder, and back to the node where both wait.
#[test]
fn a_leadership_that_moves_takes_the_locks_along() {
    for new in [2, 3] {
        let mut w = world();
        let holders = [Session::new(&mut w, 2, 1), Session::new(&mut w, 3, 2)];
        let waiters = [Session::new(&mut w, 1, 3), Session::new(&mut w, 1, 4)];
        for (holder, row) in holders.iter().zip([ROW, ROW + 1]) {
            holder.asks(&mut w, 1, row);
            holder.must_get(&mut w, 1, AT_ONCE, NOBODY);
        }
        for (waiter, row) in waiters.iter().zip([ROW, ROW + 1]) {
            waiter.asks(&mut w, 1, row);
        }
        w.nodes.get_mut(&1).unwrap().replica.consensus.transfer_to(NodeId(new));
        w.work(1);
        w.until("it leads", |w| w.leader() == Some(new));
        w.until("node 1 leads again", |w| w.leader() == Some(1));
        for waiter in &waiters {
            assert_eq!(waiter.hears(&mut w, 1, 200), None, "the lock is not free");
        }
        holders.iter().for_each(|holder| holder.unlocks(&mut w, 0));
        for waiter in &waiters {
            waiter.must_get(&mut w, 1, AT_ONCE, NOBODY);
        }
    }
}

/// Goal: a node that is away makes others wait for a moment only.
#[test]
fn a_new_leader_does_not_wait_for_who_is_away() {
    let mut w = world();
    let (away, asks) = (Session::new(&mut w, 1, 1), Session::new(&mut w, 2, 2));
    away.asks(&mut w, 1, ROW);
    away.must_get(&mut w, 1, 0, NOBODY);
    w.cut.insert(1);
    w.until("another one leads", |w| w.leader().is_some());
    asks.asks(&mut w, 1, ROW);
    asks.must_get(&mut w, 1, 40, NOBODY);
}

/// Goal: without a leader a session does not wait for ever.
#[test]
fn without_a_leader_it_goes_on_without_locks() {
    let mut w = world();
    let session = Session::new(&mut w, 3, 1);
    w.crash(1);
    w.crash(2);
    session.asks(&mut w, 1, ROW);
    assert_eq!(session.hears(&mut w, 1, 300).map(|(said, _)| said), Some(LockSaid::NoTable));
}

/// Goal: a follower may decide an entry before the leader does, and must not make it free the locks too early.
#[test]
fn a_transaction_is_named_for_a_while_after_its_decision() {
    let mut w = world();
    let session = Session::new(&mut w, 2, 1);
    session.asks(&mut w, 1, ROW);
    session.must_get(&mut w, 1, AT_ONCE, NOBODY);
    session.commits(&mut w);
    let node = w.nodes.get_mut(&2).unwrap();
    let mut named_within = |ticks: usize| {
        let mut named = false;
        for _ in 0..ticks {
            node.tick().unwrap();
            node.work().unwrap();
            let mut said = node.host.lock_messages.drain(..);
            named |= said.any(|(_, m)| matches!(m, LockMessage::Present(txns) if txns == [session.txn]));
        }
        named
    };
    assert!(named_within(30));
    named_within(100);
    assert!(!named_within(60), "not for ever");
}
