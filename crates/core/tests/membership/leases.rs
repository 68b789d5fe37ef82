//! Read leases while members come, go and start again.

use crate::world::{region, Nobody, World};
use onetrip_core::agent::{Asked, Hello, Role, ToPostgres, VERSION};
use onetrip_core::members::Change;
use onetrip_core::router::{AgentEvent, ConnId, Read};
use onetrip_core::{Entry, LogIndex, MemberRole, NodeId, TxnId};
use std::sync::Arc;

/// Longer than a promise stands, in ticks of 20 ms.
const RUN_OUT: usize = 110;

fn has_lease(w: &World, id: u32) -> bool {
    let node = &w.nodes[&id];
    node.replica.has_lease(&node.host)
}

/// Members 1 to 3; node 1 leads, and the lease of `holder` is in force.
fn leased(w: &mut World, holder: u32) {
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.change(1, Change::LeaseRegions(vec![region(holder)]));
    w.until("the lease is in force", |w| has_lease(w, holder));
    w.settle();
}

fn decided(w: &World, ids: &[u32]) -> Vec<LogIndex> {
    ids.iter().map(|id| w.nodes[id].replica.certifier.decided()).collect()
}

fn propose(w: &mut World, sequence: u64) {
    let txn = TxnId { node: NodeId(1), incarnation: 1, sequence: 1_000 + sequence };
    w.propose(1, Entry::encode(&txn, &[], b"row"));
}

/// Proposes on node 1 while `holder` is cut off: whoever is there knows that it is committed, and decides it once the
/// lease cannot be in force any more.  Then commits go on at once.
fn commits_wait_for(w: &mut World, holder: u32, others: &[u32]) {
    w.cut.insert(holder);
    let before = decided(w, others);
    propose(w, 0);
    let mut waited = 0;
    while decided(w, others) == before {
        let is_committed = w.nodes[&1].replica.consensus.committed() > before[0];
        assert!(is_committed, "the others are a majority");
        w.ticks(1);
        waited += 1;
        assert!(waited < RUN_OUT + 25, "a holder that is silent delays commits once");
    }
    assert!(!has_lease(w, holder), "decided while the lease was in force");
    w.ticks(2 * RUN_OUT);
    let before = decided(w, others);
    propose(w, 1);
    w.ticks(5);
    assert!(decided(w, others).iter().zip(&before).all(|(now, before)| now > before), "delayed again");
    w.cut.clear();
    w.until("the lease is in force again", |w| has_lease(w, holder));
}

#[test]
fn nothing_is_decided_that_the_holder_may_lack() {
    let mut w = World::new();
    leased(&mut w, 3);
    commits_wait_for(&mut w, 3, &[1, 2]);
}

/// A replica is in no majority, and is waited for all the same.
#[test]
fn a_replica_holds_a_lease() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    let replica = w.join(1, MemberRole::Replica, None);
    leased(&mut w, replica);
    commits_wait_for(&mut w, replica, &[1, 2, 3]);
}

/// A lease takes the promise of every member: of one that is away, of one that has come, and of none that has gone.
#[test]
fn a_lease_takes_the_promises_of_all_members() {
    let mut w = World::new();
    leased(&mut w, 3);
    w.cut.insert(2);
    w.ticks(RUN_OUT);
    assert!(!has_lease(&w, 3), "node 2 is away");
    w.cut.clear();
    w.until("node 2 is back", |w| has_lease(w, 3));
    let fourth = w.join(1, MemberRole::Replica, None);
    w.cut.insert(fourth);
    w.until("node 3 knows of it", |w| w.nodes[&3].members().contains(NodeId(fourth)));
    assert!(!has_lease(&w, 3), "the new member has promised nothing");
    w.ticks(RUN_OUT);
    assert!(!has_lease(&w, 3), "the new member is away");
    w.change(1, Change::Remove(NodeId(fourth)));
    w.nodes.remove(&fourth);
    w.until("it is gone", |w| has_lease(w, 3));
}

/// A node that has promised and starts again decides nothing before that has run out, and then goes on; once no region
/// holds a lease, it need not wait.
#[test]
fn a_node_that_starts_waits_for_its_promises() {
    let mut w = World::new();
    leased(&mut w, 3);
    for waits in [true, false] {
        w.crash(2);
        w.commit(1);
        w.restart(2);
        let before = w.nodes[&2].replica.certifier.decided();
        w.ticks(95);
        assert_eq!(w.nodes[&2].replica.certifier.decided() == before, waits);
        w.settle();
        w.change(1, Change::LeaseRegions(Vec::new()));
        w.ticks(RUN_OUT + 30);
        assert!(!has_lease(&w, 3));
    }
}

/// Goal: a commit does not wait for a holder whose lease has just been taken away, since that goes on saying what it
/// has.  Method: a voter and a replica hold leases; members that have promised decide at once.
#[test]
fn a_lease_that_is_taken_away_delays_nothing() {
    for is_voter in [true, false] {
        let mut w = World::new();
        w.until("node 1 leads", |w| w.leader() == Some(1));
        let holder = if is_voter { 3 } else { w.join(1, MemberRole::Replica, None) };
        leased(&mut w, holder);
        w.change(1, Change::LeaseRegions(Vec::new()));
        let before = decided(&w, &[1, 2]);
        propose(&mut w, 0);
        let after = decided(&w, &[1, 2]);
        assert!(after.iter().zip(&before).all(|(now, before)| now > before), "{is_voter}: {before:?} {after:?}");
    }
}

/// A leader that leads no more is told again what the holder has.
#[test]
fn a_lease_outlasts_a_change_of_leader() {
    let mut w = World::new();
    leased(&mut w, 3);
    w.change(1, Change::PreferLeader(crate::world::wanted(2)));
    w.until("node 2 leads", |w| w.leader() == Some(2));
    w.until("the lease is in force", |w| has_lease(w, 3));
    for _ in 0..50 {
        w.commit(1);
    }
    assert!(has_lease(&w, 3));
}

/// Sends READ on node 3, and returns what it was told by the time it has asked whoever it wants to ask.
fn read(w: &mut World, heard: &Arc<Nobody>, number: u64, may_ask: bool) -> (Vec<ToPostgres>, bool) {
    let node = w.nodes.get_mut(&3).unwrap();
    node.host.questions.clear();
    heard.0.borrow_mut().clear();
    node.replica.agent(AgentEvent::Read(Read { conn: ConnId(1), number, may_ask }), &mut node.host).unwrap();
    node.work().unwrap();
    let told = heard.0.borrow().iter().map(|frame| ToPostgres::decode(frame.slice(4..)).unwrap()).collect();
    (told, !node.host.questions.is_empty())
}

/// Goal: a read that may ask nobody is answered under a lease, and only then; else it is told so, and nothing is sent.
/// Method: node 3, before it has a lease, with it, when the leader is away, and after the lease has run out.
#[test]
fn a_read_that_may_ask_nobody_takes_a_lease() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    let heard: Arc<Nobody> = Arc::default();
    let (role, pid, incarnation, applied, durable) = (Role::Backend, 1, 1, LogIndex::ZERO, LogIndex::ZERO);
    let hello = Hello { version: VERSION, role, pid, incarnation, applied, durable };
    let node = w.nodes.get_mut(&3).unwrap();
    let opened = AgentEvent::Opened { conn: ConnId(1), hello, outbox: heard.clone() };
    node.replica.agent(opened, &mut node.host).unwrap();
    let refused = |number| (vec![ToPostgres::ReadAt { number, at: LogIndex::ZERO, asked: Asked::NotYet }], false);
    assert_eq!(read(&mut w, &heard, 1, false), refused(1));
    leased(&mut w, 3);
    w.commit(1);
    let last = w.nodes[&3].replica.certifier.last_committed();
    let alone = |number| (vec![ToPostgres::ReadAt { number, at: last, asked: Asked::Nobody }], false);
    assert_eq!(read(&mut w, &heard, 2, false), alone(2));
    assert_eq!(read(&mut w, &heard, 3, true), alone(3));
    w.cut.insert(1);
    assert_eq!(read(&mut w, &heard, 4, false), alone(4), "the lease is still in force");
    w.ticks(RUN_OUT);
    assert_eq!(read(&mut w, &heard, 5, false), refused(5));
    let (told, asked) = read(&mut w, &heard, 6, true);
    assert!(told.is_empty() && asked, "{told:?}");
    // Also while as many questions are open as can be, since nobody answers.
    w.cut.insert(2);
    for number in 100..200 {
        assert!(read(&mut w, &heard, number, true).0.is_empty());
    }
    assert_eq!(read(&mut w, &heard, 300, false), refused(300));
}
