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

/// Far longer than anything here takes to come back, and short where it shall not come back.
const LONG: &str = "45s";
const SHORT: &str = "700ms";
/// Long enough for the others to elect a leader: what the one that was cut off had only for itself is then dropped.
const ELECTION: &str = "2500ms";
const STATEMENT_TIMEOUT: Duration = Duration::from_millis(250);

/// All points in the backend, in an order in which one server can hold them at once: who holds the turn keeps it from
/// the others, so `Recorded` comes alone.
const TOGETHER: [Point; 8] =
    [Published, BeforeDone, TurnHeld, TurnWaiting, VerdictReceived, ProposeSent, ProposeHalf, BeforePropose];

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

/// The leader's own node was held: others may have been elected meanwhile, and what it had only for itself is
/// dropped.  So is what reaches a leader that is just handing back to the preferred one, in region 0.
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

    /// What the client may be told, and what must have become of the transaction.  `leader`: the region that led
    /// before.
    fn expected(self, region: usize, leader: usize, point: Point) -> (Vec<Told>, Option<bool>) {
        let undecided_in_node = point.in_node() && point != VerdictSent;
        let goes_on = if may_be_dropped(region, leader, point) { None } else { Some(true) };
        match self {
            Fault::Cancel | Fault::Timeout if point.unproposed() => (vec![aborted("57014")], Some(false)),
            Fault::Terminate if point.unproposed() => (vec![lost("57P01")], Some(false)),
            Fault::Cancel | Fault::Timeout | Fault::Terminate if undecided_in_node => (vec![unknown()], goes_on),
            Fault::Cancel => (vec![Told::Committed], Some(true)),
            // In a procedure the statement goes on after its COMMIT, and then ends as it should.
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
            // Two of three may have it already.
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
            let leader = self.leader().await;
            let how = if fault == Fault::Timeout { How::Procedure(STATEMENT_TIMEOUT) } else { self.how() };
            let mut held = self.hold(region, point, how, LONG).await;
            let pid = held.pid;
            match fault {
                Fault::Cancel => self.lab.session(region).await.must(&format!("select pg_cancel_backend({pid})")).await,
                Fault::Terminate => {
                    self.lab.session(region).await.must(&format!("select pg_terminate_backend({pid})")).await;
                }
                Fault::ClientKilled => held.kill_client(),
                Fault::Timeout => tokio::time::sleep(STATEMENT_TIMEOUT + Duration::from_millis(100)).await,
                _ => unreachable!("the others are no matter of one session"),
            }
            let told = if point.in_node() {
                // Nothing comes from the node until the session has given up.
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
        self.judged(fault, began).await;
    }

    /// All points of the backend at once, then those of the node one by one.
    pub async fn process_fault(&mut self, fault: Fault) {
        let began = std::time::Instant::now();
        // The preferred leader's region and another take turns.
        self.hold_and_break(fault, 0, &TOGETHER).await;
        self.hold_and_break(fault, 1, &[Recorded]).await;
        for (n, point) in Point::NODE.into_iter().enumerate() {
            self.hold_and_break(fault, n % 2, &[point]).await;
        }
        self.judged(fault, began).await;
    }

    async fn hold_and_break(&mut self, fault: Fault, region: usize, points: &[Point]) {
        let timeout = match fault {
            Fault::Partition if region == 0 => ELECTION,
            Fault::Partition => SHORT,
            _ => LONG,
        };
        let leader = self.leader().await;
        // A leader changes in another region than this one.
        let region = if fault == Fault::LeaderChange { (leader + 1) % 3 } else { region };
        let mut held = Vec::new();
        for point in points {
            let how = self.how();
            held.push(self.hold(region, *point, how, timeout).await);
        }
        let told = match fault {
            Fault::BackendKill9 => {
                // Any one will do: PostgreSQL ends them all.  One that was told its verdict has ended already.
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
            _ => unreachable!("that is a matter of one session"),
        };
        self.serves(region).await;
        for (held, told) in held.iter().zip(told) {
            let (expected, must) = fault.expected(region, leader, held.point);
            self.ledger.note(fault.name(), held, told, &expected, must);
        }
    }

    /// SIGTERM ends PostgreSQL first, which waits for its sessions.
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

    /// The leader's node hangs until another one leads.
    async fn change_leader(&mut self, leader: usize, held: &mut [Held]) -> Vec<Told> {
        self.lab.node(leader).pause().expect("SIGSTOP");
        if held[0].point.in_node() {
            // The two that are left elect one between them.
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

    /// Once all regions agree who leads.
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
