//! Each fault at each point of a COMMIT: what the client is told agrees with what is in the database of each region,
//! and `onetrip.outcome` gives the same final answer everywhere, even after every process was restarted.
//!
//! Needs an extension with stop points: `make test-outcomes`.  A cell is a fault at a point.  `faults` says what
//! happens and what the client may be told, `special` contains the cells that need more than one fault, and `ledger` is
//! the oracle.

mod cell;
mod faults;
mod ledger;
mod special;

use std::time::Duration;

use nix::sys::signal::{kill, Signal};
use onetrip_lab::postmaster;

use crate::lab::{start_with, Lab};
use crate::no_majority::transaction_id;
use cell::{Held, How, Point};
use faults::{Fault, SESSION_FAULTS};
use ledger::Ledger;

const BACK: Duration = Duration::from_secs(60);

pub struct Matrix {
    lab: Lab,
    ledger: Ledger,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make test-outcomes builds an extension with stop points"]
async fn what_the_client_was_told_agrees_with_every_region_for_each_fault_at_each_point() {
    let about = "each fault at each point of a COMMIT; one outcome everywhere, as the client was told";
    let lab = start_with("outcomes", about, cell::make_folders).await;
    lab.session(0)
        .await
        .must(
            "create table t (id int primary key, v text);
             create table here (id int) using heap;
             create table counted (id int primary key, n int);
             insert into counted values (1, 0);
             create procedure write_and_commit(id int) language plpgsql as
             $$ begin insert into t values (id, ''); commit; end $$;
             create procedure write_and_commit_all(ids int[]) language plpgsql as
             $$ begin for i in 1 .. cardinality(ids) loop call write_and_commit(ids[i]); end loop; end $$",
        )
        .await;
    lab.everywhere().await;
    // A server that has crashed shows only its flushed commits until its node has sent it the later entries again;
    // after a checkpoint the table is always there.
    for region in 0..3 {
        lab.session(region).await.must("checkpoint").await;
    }
    let mut matrix = Matrix { lab, ledger: Ledger::default() };
    let began = std::time::Instant::now();
    let only = std::env::var("ONETRIP_OUTCOMES").unwrap_or_default();
    for fault in SESSION_FAULTS {
        if only.is_empty() || only == fault.name() {
            matrix.session_fault(fault).await;
        }
    }
    for fault in [
        Fault::BackendKill9,
        Fault::PostgresKill9,
        Fault::NodeKill9,
        Fault::NodeStop,
        Fault::Partition,
        Fault::LeaderChange,
    ] {
        if only.is_empty() || only == fault.name() {
            matrix.process_fault(fault).await;
        }
    }
    if only.is_empty() || only == "special" {
        matrix.special().await;
    }
    matrix.restart_everything().await;
    matrix.ledger.judge_again(&matrix.lab).await;
    println!("outcomes: {} in {:.0} s", matrix.ledger.summary(), began.elapsed().as_secs_f64());
    matrix.lab.check_equal(1).await;
}

impl Matrix {
    async fn hold(&mut self, region: usize, point: Point, how: How, commit_timeout: &str) -> Held {
        let row = self.row(region, how).await;
        Held::start(&self.lab, row, region, point, how, commit_timeout).await
    }

    /// A row for a COMMIT.
    async fn row(&mut self, region: usize, how: How) -> u32 {
        let row = self.ledger.next_row();
        if how == How::CommitPrepared {
            cell::prepare(&self.lab, row, region).await;
        }
        row
    }

    /// Half of the sessions note their transaction id before COMMIT.
    fn how(&self) -> How {
        match self.ledger.rows % 2 {
            0 => How::Noted,
            _ => How::Unnoted,
        }
    }

    async fn serves(&self, region: usize) {
        self.lab.node(region).wait_serving(BACK).await.unwrap_or_else(|e| panic!("{e:#}"));
    }

    async fn all_ready(&self) {
        self.lab.wait_ready().await.unwrap_or_else(|e| panic!("{e:#}"));
    }

    /// Kills all processes of a server; the postmaster first, so that it starts no new ones.
    fn kill9_postgres(&self, region: usize) {
        let node = self.lab.node(region);
        let processes = postmaster::processes(&node.postgres_data());
        node.kill9_postgres().expect("kill PostgreSQL");
        for pid in processes {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }

    async fn cut_off(&self, region: usize, cut: bool) {
        for other in (0..3).filter(|r| *r != region) {
            self.lab.cut_link(region, other, cut).await.unwrap_or_else(|e| panic!("{e:#}"));
        }
    }

    /// Kills all nodes and servers, as a loss of power would, and starts them again.
    async fn restart_everything(&self) {
        for region in 0..3 {
            self.lab.node(region).kill9().expect("kill the node");
            self.kill9_postgres(region);
        }
        for node in self.lab.nodes() {
            node.start().unwrap_or_else(|e| panic!("{e:#}"));
        }
        self.all_ready().await;
    }
}
