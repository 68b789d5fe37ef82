//! COMMITs that wait until every server shows them, while members are away or stand still.

use crate::world::{voter, Nobody, World};
use onetrip_core::agent::{take_frame, Hello, Role, ToPostgres, VERSION};
use onetrip_core::router::{AgentEvent, ConnId};
use onetrip_core::{LogIndex, MemberRole};
use std::sync::Arc;

const CONN: ConnId = ConnId(1);
/// More than it takes there and back, and far less than the time between two regular reports.
const AT_ONCE: usize = 3;

struct Session {
    w: World,
    heard: Arc<Nobody>,
}

impl Session {
    fn new(mut w: World) -> Session {
        w.until("node 1 leads", |w| w.leader() == Some(1));
        // So that everybody has heard of everybody.
        w.ticks(50);
        let heard: Arc<Nobody> = Arc::default();
        let (pid, incarnation, applied, durable) = (1, 1, LogIndex::ZERO, LogIndex::ZERO);
        let hello = Hello { version: VERSION, role: Role::Backend, pid, incarnation, applied, durable };
        let opened = AgentEvent::Opened { conn: CONN, hello, outbox: heard.clone() };
        let node = w.nodes.get_mut(&1).unwrap();
        node.replica.agent(opened, &mut node.host).unwrap();
        Session { w, heard }
    }

    /// Commits an entry in region 1, and asks to be told when all show it.
    fn commit(&mut self) -> LogIndex {
        self.w.commit(1);
        let node = self.w.nodes.get_mut(&1).unwrap();
        let at = node.replica.certifier.decided();
        node.replica.agent(AgentEvent::Await { conn: CONN, at }, &mut node.host).unwrap();
        at
    }

    /// What it is told within so many ticks.
    fn told(&mut self, at: LogIndex, ticks: usize) -> Option<String> {
        for _ in 0..ticks {
            self.w.ticks(1);
            for frame in self.heard.0.take() {
                let frame = take_frame(&mut (&frame[..]).into()).unwrap().unwrap();
                if let ToPostgres::Shown { at: shown, missing } = ToPostgres::decode(frame).unwrap() {
                    assert_eq!(shown, at);
                    return Some(missing);
                }
            }
        }
        None
    }

    fn must_hear(&mut self, at: LogIndex, ticks: usize, missing: &str) {
        assert_eq!(self.told(at, ticks).as_deref(), Some(missing));
    }
}

/// Goal: the others tell as soon as they show it, and do not wait until they report anyway.
#[test]
fn the_others_tell_at_once() {
    let mut s = Session::new(World::new());
    for _ in 0..20 {
        let at = s.commit();
        s.must_hear(at, AT_ONCE, "");
    }
}

/// Goal: nobody waits for a member that is away longer than it takes to see that it is; nor for a witness.
#[test]
fn who_is_away_is_named_and_not_waited_for() {
    let mut members: Vec<_> = (1..=4).map(|id| voter(id, MemberRole::Voter)).collect();
    members.push(voter(5, MemberRole::Witness));
    let mut s = Session::new(World::of(members));
    s.w.cut.extend([4, 5]);
    let at = s.commit();
    assert_eq!(s.told(at, 40), None);
    s.must_hear(at, 60, "\"r4\" is away");
    let at = s.commit();
    s.must_hear(at, AT_ONCE, "\"r4\" is away");
    s.w.cut.clear();
    s.w.ticks(100);
    let at = s.commit();
    s.must_hear(at, AT_ONCE, "");
}

/// Goal: a member that stands still delays those who find it so, and none after them, until it goes on.
#[test]
fn who_stands_still_is_waited_for_once() {
    let mut s = Session::new(World::new());
    let at = s.commit();
    s.must_hear(at, AT_ONCE, "");
    s.w.shown.insert(3, Some(at));
    let next = s.commit();
    assert_eq!(s.told(next, 200), None);
    s.must_hear(next, 60, "\"r3\" stands still");
    let later = s.commit();
    s.must_hear(later, AT_ONCE, "\"r3\" stands still");
    // It goes on, and is on its way to the end.
    s.w.shown.insert(3, Some(next));
    s.w.ticks(30);
    let last = s.commit();
    assert_eq!(s.told(last, 40), None);
    s.w.shown.clear();
    s.must_hear(last, 30, "");
    // A server that waits for a copy shows nothing to anybody.
    s.w.shown.insert(3, None);
    s.w.ticks(100);
    let at = s.commit();
    s.must_hear(at, AT_ONCE, "\"r3\" is away");
}

/// Goal: an answer that is lost is asked for again.
#[test]
fn a_lost_question_is_asked_again() {
    let mut s = Session::new(World::new());
    let at = s.commit();
    s.w.cut.insert(3);
    assert_eq!(s.told(at, 2), None);
    s.w.cut.clear();
    s.must_hear(at, 30, "");
}

/// Goal: an entry that is not decided cannot be awaited, so that nobody counts as standing still because of it.
#[test]
fn what_is_not_decided_is_not_awaited() {
    let mut s = Session::new(World::new());
    let node = s.w.nodes.get_mut(&1).unwrap();
    node.replica.agent(AgentEvent::Await { conn: CONN, at: LogIndex(u64::MAX) }, &mut node.host).unwrap();
    assert_eq!(s.told(LogIndex(u64::MAX), 300), None);
    let at = s.commit();
    s.must_hear(at, AT_ONCE, "");
}
