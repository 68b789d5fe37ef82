//! What a cluster looks like at the moment something goes wrong, written to a file beside its folders before anything
//! is cleaned up.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::session::Session;
use crate::{postmaster, Cluster, Node};

static NUMBER: AtomicU32 = AtomicU32::new(1);
/// The first few files are enough, and each takes seconds to gather.
const FILES_MAX: u32 = 4;
const LOOKS: [&str; 4] = [
    "select * from onetrip.status",
    "select pid, backend_type, state, wait_event_type, wait_event, xact_start, query_start, left(query, 120) from pg_stat_activity order by pid",
    "select pid, locktype, relation::regclass, transactionid, virtualxid, mode, granted from pg_locks where not granted or mode like '%Exclusive%' order by pid",
    "select pid, pg_blocking_pids(pid) from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0",
];

pub async fn gather(cluster: &Cluster, why: &str) {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    if number > FILES_MAX {
        return;
    }
    let mut text = format!("{why}\n");
    for node in cluster.nodes() {
        of_node(node, &mut text).await;
    }
    let file: PathBuf = cluster.data().join(format!("../evidence-{number}.txt"));
    match std::fs::write(&file, text) {
        Ok(()) => eprintln!("torture: {why}: what the regions looked like is in {}", file.display()),
        Err(e) => eprintln!("torture: {why}: the evidence cannot be written: {e}"),
    }
}

async fn of_node(node: &Node, text: &mut String) {
    let _ = writeln!(text, "\n=== {} (node {:?}, PostgreSQL {:?})", node.region(), node.pid(), node.postgres_pid());
    let _ = match node.status().await {
        Ok(status) => writeln!(text, "{status:#}"),
        Err(why) => writeln!(text, "status: {why:#}"),
    };
    // The replicated database may refuse connections at this moment; another database does not.
    let other = node.conninfo().replace("dbname=onetrip", "dbname=postgres");
    for (conninfo, looks) in [(node.conninfo(), &LOOKS[..]), (other, &LOOKS[1..])] {
        let opened = tokio::time::timeout(
            std::time::Duration::from_secs(5),
            Session::open(&conninfo, "set statement_timeout = '3s'"),
        );
        match opened.await {
            Ok(Ok(mut session)) => {
                for look in looks {
                    let _ = writeln!(text, "--- {look}");
                    let _ = match session.rows(look).await {
                        Ok(rows) => rows.iter().try_for_each(|row| {
                            let row: Vec<&str> = row.iter().map(|v| v.as_deref().unwrap_or("")).collect();
                            writeln!(text, "{}", row.join(" | "))
                        }),
                        Err(why) => writeln!(text, "{why:#}"),
                    };
                }
            }
            Ok(Err(why)) => _ = writeln!(text, "connect: {why:#}"),
            Err(_) => _ = writeln!(text, "connect: no answer"),
        }
    }
    for pid in postmaster::processes(&node.postgres_data()) {
        let stack = std::process::Command::new("gdb")
            .args(["-p", &pid.to_string(), "-batch", "-ex", "bt 25"])
            .stdin(std::process::Stdio::null())
            .output();
        if let Ok(stack) = stack {
            let frames = String::from_utf8_lossy(&stack.stdout);
            let frames: Vec<&str> = frames.lines().filter(|line| line.starts_with('#')).collect();
            let title = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let title = String::from_utf8_lossy(&title).replace('\0', " ");
            let _ = writeln!(text, "--- process {pid} {title}\n{}", frames.join("\n"));
        }
    }
    let _ = writeln!(text, "--- end of node.log\n{}", node.log_tail(60));
    let _ = writeln!(text, "--- end of postgres.log\n{}", node.postgres_log_tail(60));
}
