//! The faults, and what a client may be told of each at each point.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use super::cell::{Held, How, Point, Told};
use super::Matrix;
use crate::lab::{until, SOON};

use Point::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Cancel,
    Timeout,
    ClientKilled,
    Terminate,
    BackendKill9,
    PostgresKill9,
    NodeKill9,
    NodeStop,
    Partition,
    LeaderChange,
}

pub const SESSION_FAULTS: [Fault; 4] = [Fault::Cancel, Fault::Timeout, Fault::ClientKilled, Fault::Terminate];

/// A commit timeout far longer than anything here takes to recover.
const LONG: &str = "45s";
/// A commit timeout for what does not recover meanwhile.
const SHORT: &str = "700ms";
/// A commit timeout long enough for the others to elect a leader: then entries that only the old leader has are
/// dropped.
const ELECTION: &str = "2500ms";
const STATEMENT_TIMEOUT: Duration = Duration::from_millis(250);

/// All points in the backend but one, in an order in which sessions of one server can pause at them at the same time.
/// The session at `Recorded` also needs the turn, which only one can hold, so it is paused alone.
const TOGETHER: [Point; 8] =
    [Published, BeforeDone, TurnHeld, TurnWaiting, VerdictReceived, ProposeSent, ProposeHalf, BeforePropose];

const PREPARED: [How; 2] = [How::Prepare, How::CommitPrepared];

/// Sessions that have something to tell the node when they end: what comes behind half of a PROPOSE must not bring the
/// other half along.
const TALKING: [How; 3] = [How::Again, How::Locking, How::Ddl];

fn aborted(code: &str) -> Told {
    Told::Aborted(code.into())
}

fn lost(code: &str) -> Told {
    Told::Lost(code.into())
}

fn unknown() -> Told {
    Told::Unknown(String::new())
}

fn says_committed() -> Told {
    Told::SaysCommitted(String::new())
}

/// If the leader's own node was paused, another leader may have been elected meanwhile, and entries that only the old
/// one has are dropped.  So is a proposal that reaches a leader while it transfers leadership to the preferred
/// leader, in region 0.
fn may_be_dropped(region: usize, leader: usize, point: Point) -> bool {
    (leader == region || leader != 0) && (Received..=Appended).contains(&point)
}

impl Fault {
    pub fn name(self) -> &'static str {
        match self {
            Fault::Cancel => "cancel",
            Fault::Timeout => "statement_timeout",
            Fault::ClientKilled => "client killed",
            Fault::Terminate => "terminate",
            Fault::BackendKill9 => "kill -9 of the backend",
            Fault::PostgresKill9 => "kill -9 of PostgreSQL",
            Fault::NodeKill9 => "kill -9 of the node",
            Fault::NodeStop => "node stopped",
            Fault::Partition => "partition",
            Fault::LeaderChange => "leader change",
        }
    }

    /// What the client may be told, and whether the transaction must have committed (None: either may be).  `leader`:
    /// the region that led before.
    fn expected(self, region: usize, leader: usize, point: Point) -> (Vec<Told>, Option<bool>) {
        let undecided_in_node = point.in_node() && point != VerdictSent;
        let goes_on = if may_be_dropped(region, leader, point) { None } else { Some(true) };
        match self {
            Fault::Cancel | Fault::Timeout if point.unproposed() => (vec![aborted("57014")], Some(false)),
            Fault::Terminate if point.unproposed() => (vec![lost("57P01")], Some(false)),
            Fault::Cancel | Fault::Timeout | Fault::Terminate if undecided_in_node => (vec![unknown()], goes_on),
            Fault::Cancel => (vec![Told::Committed], Some(true)),
            // In a procedure the CALL goes on after its COMMIT, and then may end with the timeout.
            Fault::Timeout => (vec![Told::Committed, lost("57014")], Some(true)),
            Fault::Terminate => (vec![Told::Committed, says_committed()], Some(true)),
            Fault::ClientKilled => (vec![lost(""), Told::Committed], goes_on),
            Fault::BackendKill9 | Fault::PostgresKill9 => {
                let told = if matches!(point, VerdictSent | BeforeDone) {
                    vec![Told::Committed, lost("")]
                } else {
                    vec![lost("")]
                };
                (told, if point.unproposed() { Some(false) } else { goes_on })
            }
            // The backend proposes again, on a new connection.
            Fault::NodeKill9 | Fault::LeaderChange => (vec![Told::Committed], Some(true)),
            Fault::NodeStop if point.unproposed() => (vec![lost("57P01")], Some(false)),
            Fault::NodeStop if undecided_in_node => (vec![unknown()], None),
            Fault::NodeStop => (vec![Told::Committed, says_committed()], Some(true)),
            Fault::Partition if point.unproposed() => (vec![unknown()], None),
            // Two of the three nodes may have it already.
            Fault::Partition if point <= Appended && point.in_node() => (vec![unknown(), Told::Committed], None),
            Fault::Partition => (vec![Told::Committed], Some(true)),
        }
    }
}

impl Matrix {
    /// One cell after the other; regions take turns.
    pub async fn session_fault(&mut self, fault: Fault) {
        let began = std::time::Instant::now();
        for (n, point) in Point::BACKEND.into_iter().chain(Point::NODE).enumerate() {
            let region = n % 2;
            let how = if fault == Fault::Timeout { How::Procedure(STATEMENT_TIMEOUT) } else { self.how() };
            self.break_session(fault, region, point, how).await;
        }
        for (n, point) in Point::PREPARED.into_iter().chain(Point::NODE).enumerate() {
            if fault != Fault::Timeout {
                self.break_session(fault, n % 2, point, PREPARED[n / 2 % 2]).await;
            }
        }
        for (n, how) in TALKING.into_iter().enumerate() {
            if fault != Fault::Timeout {
                self.break_session(fault, n % 2, ProposeHalf, how).await;
            }
        }
        self.judged(fault, began).await;
    }

    async fn break_session(&mut self, fault: Fault, region: usize, point: Point, how: How) {
        let leader = self.leader().await;
        let mut held = self.hold(region, point, how, LONG).await;
        let pid = held.pid;
        match fault {
            Fault::Cancel => self.lab.session(region).await.must(&format!("select pg_cancel_backend({pid})")).await,
            Fault::Terminate => {
                self.lab.session(region).await.must(&format!("select pg_terminate_backend({pid})")).await;
            }
            Fault::ClientKilled => held.kill_client(),
            Fault::Timeout => tokio::time::sleep(STATEMENT_TIMEOUT + Duration::from_millis(100)).await,
            _ => unreachable!("the others are not faults of one session"),
        }
        let told = if point.in_node() {
            // The node stays paused until the session has given up.
            let told = held.told().await;
            held.release();
            told
        } else {
            held.release();
            held.told().await
        };
        let told = match told {
            Told::Aborted(code) if fault == Fault::Timeout && !point.unproposed() => lost(&code),
            told => told,
        };
        let (expected, must) = fault.expected(region, leader, point);
        self.ledger.note(fault.name(), &held, told, &expected, must);
    }

    /// All points of the backend at once, then those of the node one by one.
    pub async fn process_fault(&mut self, fault: Fault) {
        let began = std::time::Instant::now();
        // Partly in the preferred leader's region, partly in another one.
        let mut together: Vec<(Point, Option<How>)> = TOGETHER.into_iter().map(|point| (point, None)).collect();
        for how in PREPARED {
            together.extend(Point::PREPARED.into_iter().map(|point| (point, Some(how))));
        }
        self.hold_and_break(fault, 0, &together).await;
        self.hold_and_break(fault, 1, &[(Recorded, None)]).await;
        for (n, point) in Point::NODE.into_iter().enumerate() {
            self.hold_and_break(fault, n % 2, &[(point, None)]).await;
            if n % 3 == fault as usize % 3 {
                self.hold_and_break(fault, n % 2, &[(point, Some(PREPARED[n / 3 % 2]))]).await;
            }
        }
        self.judged(fault, began).await;
    }

    async fn hold_and_break(&mut self, fault: Fault, region: usize, points: &[(Point, Option<How>)]) {
        let timeout = match fault {
            Fault::Partition if region == 0 => ELECTION,
            Fault::Partition => SHORT,
            _ => LONG,
        };
        let leader = self.leader().await;
        // The leader that changes must be in another region than the sessions.
        let region = if fault == Fault::LeaderChange { (leader + 1) % 3 } else { region };
        // Nothing can be prepared any more once a session holds the turn.
        let mut rows = Vec::new();
        for (_, how) in points {
            let how = how.unwrap_or_else(|| self.how());
            rows.push((self.row(region, how).await, how));
        }
        let mut held = Vec::new();
        for ((row, how), (point, _)) in rows.into_iter().zip(points) {
            held.push(Held::start(&self.lab, row, region, *point, how, timeout).await);
        }
        let told = match fault {
            Fault::BackendKill9 => {
                // Any backend will do, since PostgreSQL then ends all of them.  At `VerdictSent` the session of the
                // COMMIT may have ended already.
                let session = self.lab.session(region).await;
                let bystander = self.lab.session(region).await;
                let pid = if held[0].point == VerdictSent { session.pid().await.expect("a pid") } else { held[0].pid };
                kill(Pid::from_raw(pid), Signal::SIGKILL).expect("kill a backend");
                until("PostgreSQL ends all sessions", SOON, || async { Ok(bystander.is_closed()) })
                    .await
                    .unwrap_or_else(|e| panic!("{e:#}"));
                let told = all_told(&mut held).await;
                release(&mut held);
                told
            }
            Fault::PostgresKill9 => {
                self.kill9_postgres(region);
                let told = all_told(&mut held).await;
                release(&mut held);
                told
            }
            Fault::NodeKill9 => {
                self.lab.node(region).kill9().expect("kill the node");
                release(&mut held);
                self.lab.node(region).start().unwrap_or_else(|e| panic!("{e:#}"));
                all_told(&mut held).await
            }
            Fault::NodeStop => self.stop_node(region, &mut held).await,
            Fault::Partition => {
                self.cut_off(region, true).await;
                release(&mut held);
                let told = all_told(&mut held).await;
                self.cut_off(region, false).await;
                told
            }
            Fault::LeaderChange => self.change_leader(leader, &mut held).await,
            _ => unreachable!("the others are faults of one session"),
        };
        self.serves(region).await;
        for (held, told) in held.iter().zip(told) {
            let (expected, must) = fault.expected(region, leader, held.point);
            self.ledger.note(fault.name(), held, told, &expected, must);
        }
    }

    /// Sends SIGTERM to the node, which stops PostgreSQL first; that waits for its sessions to end.
    async fn stop_node(&mut self, region: usize, held: &mut [Held]) -> Vec<Told> {
        let node = self.lab.node(region);
        kill(node.pid().expect("it runs"), Signal::SIGTERM).expect("SIGTERM");
        until("PostgreSQL takes no more sessions", SOON, || async {
            // It says that it is shutting down, or is gone already.
            Ok(node.connect().await.is_err())
        })
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
        let told = if held[0].point.in_node() {
            let told = all_told(held).await;
            release(held);
            told
        } else {
            release(held);
            all_told(held).await
        };
        let status = node.wait_ended(SOON).await.unwrap_or_else(|e| panic!("{e:#}"));
        assert!(status.success(), "a stopped node ended with {status}");
        node.start().unwrap_or_else(|e| panic!("{e:#}"));
        told
    }

    /// Pauses the leader's node until another one leads.
    async fn change_leader(&mut self, leader: usize, held: &mut [Held]) -> Vec<Told> {
        self.lab.node(leader).pause().expect("SIGSTOP");
        if held[0].point.in_node() {
            // This node is one of the two that are left to elect a leader.
            release(held);
        }
        until("another node leads", SOON, || async { Ok(self.leader_at((leader + 2) % 3).await? != leader) })
            .await
            .unwrap_or_else(|e| panic!("{e:#}"));
        release(held);
        let told = all_told(held).await;
        self.lab.node(leader).resume().expect("SIGCONT");
        told
    }

    async fn leader_at(&self, region: usize) -> anyhow::Result<usize> {
        let leader = self.lab.node(region).status().await?["leader"]["node"].as_u64().context("it knows no leader")?;
        Ok(leader as usize - 1)
    }

    /// The region that leads, once all regions agree on it.
    async fn leader(&self) -> usize {
        let leader = std::sync::atomic::AtomicUsize::new(0);
        until("one leader", SOON, || async {
            leader.store(self.leader_at(0).await?, Relaxed);
            let others = (self.leader_at(1).await?, self.leader_at(2).await?);
            Ok(others == (leader.load(Relaxed), leader.load(Relaxed)))
        })
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
        leader.load(Relaxed)
    }

    async fn judged(&mut self, fault: Fault, began: std::time::Instant) {
        self.ledger.judge(&self.lab).await;
        println!("outcomes: {} in {:.1} s; {}", fault.name(), began.elapsed().as_secs_f64(), self.ledger.summary());
    }
}

fn release(held: &mut [Held]) {
    for one in held {
        one.release();
    }
}

async fn all_told(held: &mut [Held]) -> Vec<Told> {
    let mut told = Vec::new();
    for one in held {
        told.push(one.told().await);
    }
    told
}
