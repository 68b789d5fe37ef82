//! kill -9 of a backend, of a whole PostgreSQL and of a node, in each region in turn, under load.

use crate::lab::{number, start, until, Lab};
use crate::load::{Load, BACK, PROGRAM};
use nix::sys::signal::{kill, Signal};
use onetrip_lab::postmaster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_kill9_of_anything() {
    let lab =
        start("kill9", "kill -9 of a backend, a PostgreSQL, a node, in each region, under load; nothing is lost").await;
    let load = Load::start(&lab).await;
    load.progress(&lab, &[0, 1, 2], "at the start").await;
    for victim in [1, 0, 2] {
        backend(&lab, victim).await;
        load.progress(&lab, &[0, 1, 2], &format!("after kill -9 of a backend in region {victim}")).await;

        whole_postgres(&lab, victim);
        load.others_progress(&lab, victim, "kill -9 of a PostgreSQL").await;
        load.progress(&lab, &[victim], &format!("PostgreSQL of region {victim} is to come back")).await;

        lab.node(victim).kill9().expect("kill the node");
        load.others_progress(&lab, victim, "kill -9 of a node").await;
        lab.node(victim).restart().await.unwrap_or_else(|e| panic!("{e:#}"));
        load.progress(&lab, &[0, 1, 2], &format!("node of region {victim} is to come back")).await;

        // Both at once, as when the machine fails.
        lab.node(victim).kill9().expect("kill the node");
        whole_postgres(&lab, victim);
        load.others_progress(&lab, victim, "the loss of a region").await;
        lab.node(victim).restart().await.unwrap_or_else(|e| panic!("{e:#}"));
        load.progress(&lab, &[0, 1, 2], &format!("region {victim} is to come back")).await;
    }
    the_power_fails(&lab, &load).await;
    load.finish(&lab).await;
}

/// Kills all nodes and all servers at once: what was acknowledged must be on disk.
async fn the_power_fails(lab: &Lab, load: &Load) {
    for node in lab.nodes() {
        node.kill9().expect("kill the node");
    }
    for region in 0..3 {
        whole_postgres(lab, region);
    }
    for node in lab.nodes() {
        node.start().unwrap_or_else(|e| panic!("{e:#}"));
    }
    load.progress(lab, &[0, 1, 2], "after a loss of all regions at once").await;
}

/// Kills a backend with SIGKILL, which makes its PostgreSQL end all others and recover.
async fn backend(lab: &Lab, victim: usize) {
    let watcher = lab.session(victim).await;
    let query = &format!("select pid from pg_stat_activity where application_name = '{PROGRAM}' limit 1");
    until("a backend to kill", BACK, || async { Ok(number(&watcher, query).await? > 0) }).await.unwrap();
    let pid = number(&watcher, query).await.expect("a backend to kill");
    kill(nix::unistd::Pid::from_raw(pid as i32), Signal::SIGKILL).expect("kill a backend");
}

/// Kills all processes of a server; the postmaster first, so that it starts no new ones.
pub fn whole_postgres(lab: &Lab, victim: usize) {
    let node = lab.node(victim);
    let processes = postmaster::processes(&node.postgres_data());
    node.kill9_postgres().expect("kill PostgreSQL");
    for pid in processes {
        let _ = kill(pid, Signal::SIGKILL);
    }
}
