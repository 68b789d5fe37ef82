//! What is wrong, in words that say what to do.

use super::{certificate, CoreStatus, Quorum, Surroundings, DISK_SILENT_MAX, ELECTION_MAX, MEMBER_SILENT_MAX};
use crate::config::NodeConfig;
use crate::error::without_errno;
use crate::postgres::{CopyState, PostgresState, ServerState};
use onetrip_core::NodeId;
use serde_json::Value;

const EXPIRES_SOON_DAYS: i64 = (crate::tls::EXPIRES_SOON.as_secs() / 86_400) as i64;
/// Certificates that renew themselves last 45 to 90 days, and are renewed when a third of that is left.
const HTTP_EXPIRES_SOON_DAYS: i64 = 7;
/// PostgreSQL stops three million before the last of 2147 million, and should vacuum from 200 million on.
const IDS_AGE_MAX: u64 = 1_500_000_000;

/// All that is wrong, as far as this node knows.
pub(super) fn all(config: &NodeConfig, core: &CoreStatus, around: &Surroundings, quorum: &Quorum) -> Vec<String> {
    let mut problems = of_members(config, core, around, quorum);
    problems.extend(of_disks(config, core, around));
    problems.extend(of_certificates(around));
    problems.extend(core.router.problem.clone());
    problems.extend(core.archive.iter().flat_map(|a| &a.problem).map(|problem| format!("archive: {problem}")));
    problems.extend(of_postgres(config, core.router.worker_connected, around.postgres.as_ref()));
    problems.extend(around.counts.as_deref().and_then(|counts| ids_run_out(counts.as_ref().ok()?)));
    problems.into_iter().map(without_errno).collect()
}

fn of_members(config: &NodeConfig, core: &CoreStatus, around: &Surroundings, quorum: &Quorum) -> Vec<String> {
    let mut problems = Vec::new();
    let (conf, peers) = (&core.raft.conf, &around.peers);
    if core.raft.leadership.leader.is_none() {
        if quorum.may_fail < 0 {
            problems.push(format!(
                "no leader: {} of {} needed members are reachable; start the others or mend the network",
                quorum.reachable, quorum.majority
            ));
        } else if let Some(leaderless) = core.leaderless.filter(|leaderless| *leaderless > ELECTION_MAX) {
            problems.push(format!(
                "no leader for {} s: an election is under way, and takes longer than it should; see the logs of the voters",
                leaderless.as_secs()
            ));
        }
    } else if quorum.may_fail == 0 && quorum.voters > quorum.reachable {
        problems.push(format!(
            "only {} of {} voters are reachable, as many as a commit needs: if one more fails, commits stop",
            quorum.reachable, quorum.voters
        ));
    }
    for peer in peers.iter().filter(|p| !p.connected) {
        let why = if peer.cut { "the link was cut by hand" } else { peer.trouble.as_deref().unwrap_or("connecting") };
        problems.push(format!(
            "member {} in {} is not connected: {why}; if it has stopped by itself, the end of its log says why, and if it cannot \
             come back, `onetrip token --replaces {}` lets a new one take its place",
            peer.id, peer.region, peer.id
        ));
    }
    for peer in peers.iter().filter(|p| p.connected) {
        if let Some(silent) = core.silent.get(&peer.id).filter(|silent| **silent > MEMBER_SILENT_MAX) {
            problems.push(format!(
                "member {} in {} is connected and has said nothing for {} s: its process or its machine hangs, or nothing comes \
                 through; it does not count towards a majority meanwhile",
                peer.id,
                peer.region,
                silent.as_secs()
            ));
        }
    }
    for (id, matched) in core.raft.matched.iter().filter(|(_, m)| m.next() < core.log_first) {
        // 0 until a new leader has heard from it, which is no reason for alarm.
        if matched.0 > 0 || core.positions.get(id).is_some_and(|p| p.durable.next() < core.log_first) {
            problems.push(format!(
                "member {id} needs log entries from {}, which were cut at {}: it starts over from a copy, by itself, as soon as \
                 it is connected",
                matched.next(),
                core.log_first
            ));
        }
    }
    if conf.is_joint() {
        let both = (&conf.outgoing, &conf.voters);
        problems.push(format!(
            "the voters change from {:?} to {:?}: until that is done, commits need a majority of both",
            ids(both.0),
            ids(both.1)
        ));
    }
    for m in core.members.members.iter().filter(|m| !m.voter && m.role.votes()) {
        let position = if m.id == config.node { core.own } else { core.positions.get(&m.id).copied() };
        let how_far = match position {
            Some(p) => format!("its PostgreSQL is {} entries behind", p.lag_entries),
            None => "its PostgreSQL is not there yet".into(),
        };
        problems.push(format!("member {} in {} does not vote yet, it is catching up: {how_far}", m.id, m.region));
    }
    problems
}

fn of_disks(config: &NodeConfig, core: &CoreStatus, around: &Surroundings) -> Vec<String> {
    let mut problems = Vec::new();
    if core.disk_silent > DISK_SILENT_MAX {
        problems.push(format!(
            "the disk of the log has synced nothing for {} s, and nothing commits in this region until it does: see the kernel's \
             log, and the folder {}",
            core.disk_silent.as_secs(),
            config.data_dir.display()
        ));
    }
    if core.log_bytes > core.log_bytes_max {
        problems.push(log_too_large(config, core.log_bytes >> 20, core.log_bytes_max >> 20));
    }
    for disk in around.disks.iter().filter(|disk| disk.is_low()) {
        problems.push(format!(
            "the disk of the {} has only {} MiB left: make room there, before it is full and this region stops",
            disk.of,
            disk.free_bytes >> 20
        ));
    }
    for of in &around.silent_disks {
        problems.push(format!(
            "the disk of the {of} does not answer, and how much room it has is not known: see the kernel's log, and whether what \
             is mounted there can be reached"
        ));
    }
    problems
}

fn of_certificates(around: &Surroundings) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(good) = around.certificate_good_until_s.map(certificate).filter(|c| c.days_left < EXPIRES_SOON_DAYS) {
        problems.push(format!(
            "this node's certificate is good until {}, and no peer accepts it after that: renew it with `onetrip certificate`, \
             and reload the node",
            good.last_day
        ));
    }
    if let Some(good) = around.authority_good_until_s.map(certificate).filter(|c| c.days_left < EXPIRES_SOON_DAYS) {
        problems.push(format!(
            "the certificate of the cluster's authority is good until {}: make a new one with `onetrip certificate --new-authority`",
            good.last_day
        ));
    }
    let of_http = around.http_certificate_good_until_s.map(certificate);
    if let Some(good) = of_http.filter(|c| c.days_left < HTTP_EXPIRES_SOON_DAYS) {
        problems.push(format!(
            "the certificate of the HTTP port is good until {}: renew it, and reload the node",
            good.last_day
        ));
    }
    problems
}

fn of_postgres(config: &NodeConfig, has_worker: bool, postgres: Option<&PostgresState>) -> Option<String> {
    let starting = || Some("PostgreSQL is starting, and takes no clients yet".to_string());
    let Some(postgres) = postgres else {
        // The node has just started.
        return config.postgres.as_ref().and_then(|_| starting());
    };
    match &postgres.problem {
        Some(problem) => Some(format!("PostgreSQL: {problem}")),
        None if postgres.state == ServerState::Ready && !has_worker => {
            Some("PostgreSQL's apply worker is not connected: nothing of other regions is applied; see its log".into())
        }
        None if postgres.state == ServerState::Starting => starting(),
        None if postgres.state == ServerState::Copying => {
            let from = |copy: &CopyState| format!(" from member {} in {}", copy.node, copy.region);
            let from = postgres.copy.as_ref().map_or(String::new(), from);
            Some(format!("PostgreSQL is being copied{from}, and takes no clients until that is done"))
        }
        None => None,
    }
}

fn log_too_large(config: &NodeConfig, mib: u64, mib_max: u64) -> String {
    let why = match config.postgres {
        Some(_) => format!(
            "this node's own PostgreSQL still needs it; what keeps that from going on is among the problems, or in \
             postgres.log in {}",
            config.data_dir.display()
        ),
        None => "too few voters' PostgreSQL have the rows on disk, and this witness keeps the log until a majority has: see which \
                 of them are behind (`onetrip status`), and mend or replace them"
            .into(),
    };
    format!("the log has {mib} MiB, more than log_bytes_max ({mib_max} MiB): {why}")
}

fn ids_run_out(counts: &Value) -> Option<String> {
    let used = counts["ids_age"].as_u64().filter(|used| *used >= IDS_AGE_MAX)?;
    // It does not change with each transaction.
    let (used, of) = (used / 100_000_000, i32::MAX as u64 / 100_000_000);
    Some(format!(
        "PostgreSQL has used {used}00 million of {of}00 million transaction ids or MultiXactIds since a database was vacuumed, \
         and with the last of them this region stops: `SELECT datname, age(datfrozenxid), mxid_age(datminmxid) FROM \
         pg_database` says which database, and a VACUUM in it mends it once nothing old holds it up (prepared transactions, \
         replication slots, sessions)"
    ))
}

fn ids(ids: &[NodeId]) -> Vec<u32> {
    ids.iter().map(|id| id.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PostgresConfig;
    use crate::postgres::CopyProgress;

    fn config() -> NodeConfig {
        let port = |port| ([127, 0, 0, 1], port).into();
        NodeConfig::new("orders".into(), NodeId(3), "c".into(), port(1), port(2))
    }

    #[test]
    fn a_witness_blames_no_server_of_its_own() {
        let mut config = config();
        let witness = log_too_large(&config, 5000, 4096);
        assert!(witness.contains("5000 MiB") && !witness.contains("own PostgreSQL"), "{witness}");
        config.postgres = Some(PostgresConfig::new(5432, "/bin".into(), "onetrip".into(), "postgres".into()));
        assert!(log_too_large(&config, 5000, 4096).contains("own PostgreSQL"));
    }

    #[test]
    fn a_server_that_takes_no_clients_is_a_problem() {
        let told = |state, from: Option<u32>, has_worker| {
            let progress = CopyProgress { done_kb: 0, total_kb: 0, tablespaces: 1, tablespaces_done: 0 };
            let copy = from.map(|id| CopyState { node: NodeId(id), region: "d".into(), progress });
            let (pid, port, database, restarts, problem) = (None, 5432, "onetrip".to_string(), 0, None);
            let postgres = PostgresState { state, pid, port, database, restarts, copy, problem };
            of_postgres(&config(), has_worker, Some(&postgres)).unwrap_or_default()
        };
        let copied = told(ServerState::Copying, Some(4), false);
        assert!(copied.contains("being copied from member 4 in d, and takes no clients"), "{copied}");
        assert!(told(ServerState::Copying, None, false).contains("being copied, and"));
        assert!(told(ServerState::Starting, None, false).contains("is starting"));
        assert!(told(ServerState::Ready, None, false).contains("apply worker"));
        assert_eq!(told(ServerState::Ready, None, true), "");
    }

    #[test]
    fn ids_that_run_out_are_told_in_time() {
        let told = |age: Value| ids_run_out(&serde_json::json!({ "ids_age": age }));
        assert_eq!((told(1_499_999_999_u64.into()), told(Value::Null)), (None, None));
        assert!(told(1_512_345_678.into()).unwrap().contains("1500 million of 2100 million"));
    }
}
