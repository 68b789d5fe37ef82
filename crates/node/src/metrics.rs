//! `GET /metrics`: the node's status as metrics, in the text format of OpenMetrics, which Prometheus reads.
//!
//! Each metric is in the table of docs/monitoring.md; a test compares the two.

use crate::archive::now_ms;
use crate::postgres::ServerState;
use crate::space::Space;
use crate::status::{MemberReport, StatusReport};
use crate::transport::PeerState;
use onetrip_core::consensus::Role;
use onetrip_core::LogIndex;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::borrow::Cow;
use std::sync::atomic::AtomicU64;

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;

/// What is not known has no sample.
struct Page(Registry);

impl Page {
    fn new(report: &StatusReport) -> Self {
        let label = |name: &'static str, value: &str| (Cow::from(name), Cow::from(value.to_string()));
        let labels = [
            label("cluster", &report.cluster),
            label("region", &report.region.to_string()),
            label("node", &report.node.to_string()),
        ];
        Page(Registry::with_prefix_and_labels("onetrip", labels.into_iter()))
    }

    fn samples(&mut self, name: &str, help: &str, unit: Option<Unit>, samples: impl Iterator<Item = (Labels, f64)>) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in samples {
            family.get_or_create(&labels).set(value);
        }
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, family),
            None => self.0.register(name, help, family),
        }
    }

    fn number(&mut self, name: &str, help: &str, value: impl Into<Option<f64>>) {
        self.samples(name, help, None, value.into().map(|value| (Labels::new(), value)).into_iter());
    }

    fn with_unit(&mut self, name: &str, unit: Unit, help: &str, value: impl Into<Option<f64>>) {
        self.samples(name, help, Some(unit), value.into().map(|value| (Labels::new(), value)).into_iter());
    }

    fn flag(&mut self, name: &str, help: &str, value: impl Into<Option<bool>>) {
        self.number(name, help, value.into().map(f64::from));
    }

    fn index(&mut self, name: &str, help: &str, value: impl Into<Option<LogIndex>>) {
        self.number(name, help, value.into().map(|index| index.0 as f64));
    }

    /// One sample for each member of which the value is known.
    fn of_members(
        &mut self,
        report: &StatusReport,
        (name, unit): (&str, Option<Unit>),
        help: &str,
        value: impl Fn(&MemberReport) -> Option<f64>,
    ) {
        let samples = report.members.iter().filter_map(|m| {
            let labels = vec![("member", m.id.to_string()), ("member_region", m.region.to_string())];
            value(m).map(|value| (labels, value))
        });
        self.samples(name, help, unit, samples);
    }

    /// What was counted of each other member since this node started.
    fn of_peers(
        &mut self,
        report: &StatusReport,
        (name, unit): (&str, Option<Unit>),
        help: &str,
        value: impl Fn(&PeerState) -> u64,
    ) {
        let family = Family::<Labels, Counter>::default();
        for peer in report.peers.iter().map(|peer| &peer.state) {
            let labels = vec![("member", peer.id.to_string()), ("member_region", peer.region.to_string())];
            family.get_or_create(&labels).inc_by(value(peer));
        }
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, family),
            None => self.0.register(name, help, family),
        }
    }
}

fn seconds(ms: f64) -> f64 {
    ms / 1_000.0
}

pub fn text(report: &StatusReport) -> String {
    let mut page = Page::new(report);
    consensus(&mut page, report);
    log(&mut page, report);
    postgres(&mut page, report);
    members(&mut page, report);
    archive(&mut page, report);
    disks(&mut page, report);
    certificates(&mut page, report);
    let mut text = String::new();
    encode(&mut text, &page.0).expect("a String takes all text");
    text
}

fn consensus(page: &mut Page, report: &StatusReport) {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_string())];
    page.samples("build", "1; the label says which version the node runs", None, [(version, 1.0)].into_iter());
    page.number("problems", "How many sentences `problems` of /status has", report.problems.len() as f64);
    page.flag("leads", "Whether this node leads", report.role == Role::Leader);
    page.flag("leader_known", "Whether this node knows a leader", report.leader.is_some());
    page.flag("leader_settled", "Whether the leader is where it belongs", report.leader_settled);
    page.flag("voters_changing", "Whether the voters are changing from one set to another", report.joint);
    page.number("term", "The term", report.term.0 as f64);
    page.number("members_version", "The version of the table of members", report.members_version as f64);
}

fn log(page: &mut Page, report: &StatusReport) {
    page.index("commit_index", "The last entry that is known here to be on a majority", report.commit);
    page.index("decided_index", "The last entry that this node has certified", report.decided);
    page.index("last_committed_index", "The last entry that committed a transaction", report.last_committed);
    page.number(
        "prepared_transactions",
        "Transactions that are prepared and neither committed nor rolled back",
        report.prepared as f64,
    );
    let entries = report.prepared_since.map_or(0, |since| report.decided.0.saturating_sub(since.0));
    page.number("prepared_oldest_entries", "Entries since the oldest of them was prepared", entries as f64);
    page.index("checkpoint_index", "The entry up to which the certifier is saved", report.checkpoint);
    page.index("log_first_index", "The first entry of the log on disk", report.log_first);
    page.index("log_last_index", "The last entry of the log", report.log_last);
    page.with_unit("log", Unit::Bytes, "The size of the log on disk", report.log_bytes as f64);
    let silent = seconds(report.disk_silent_ms.unwrap_or(0.0));
    page.with_unit(
        "disk_silent",
        Unit::Seconds,
        "For how long the log's disk has synced nothing; 0 if it does",
        silent,
    );
}

fn postgres(page: &mut Page, report: &StatusReport) {
    let server = report.postgres.as_ref();
    page.flag("postgres_ready", "Whether PostgreSQL takes connections", server.map(|p| p.state == ServerState::Ready));
    let restarts = Family::<Labels, Counter>::default();
    if let Some(server) = server {
        restarts.get_or_create(&Labels::new()).inc_by(server.restarts);
    }
    page.0.register(
        "postgres_restarts",
        "How often PostgreSQL was started again since the node started, also where that failed",
        restarts,
    );
    page.flag("apply_worker", "Whether the apply worker runs", server.map(|_| report.apply_worker));
    page.flag("stuck", "Whether PostgreSQL cannot apply an entry", server.map(|_| report.stuck_at.is_some()));
    page.index("applied_index", "The last entry that PostgreSQL shows", report.applied);
    page.index("durable_index", "The last entry that PostgreSQL has safely on disk", report.durable);
    page.number("lag_entries", "Entries that PostgreSQL does not show yet", report.lag_entries.map(|n| n as f64));
    page.with_unit("lag", Unit::Seconds, "How old the first of them is", report.lag_ms.map(seconds));
    page.number("apply_queue_entries", "Entries that wait for the apply worker", report.apply_queue as f64);
    page.number("backends", "Sessions that have asked this node for something", report.backends as f64);
    page.number("pending_commits", "COMMITs that wait for their verdict", report.pending as f64);
}

fn members(page: &mut Page, report: &StatusReport) {
    let flag = |value: bool| Some(f64::from(value));
    page.of_members(report, ("member_connected", None), "Whether this node is connected to it", |m| flag(m.connected));
    page.of_members(report, ("member_voter", None), "Whether it votes", |m| flag(m.voter));
    page.of_members(report, ("member_caught_up", None), "Whether it shows nearly all", |m| flag(m.caught_up));
    page.of_members(report, ("member_round_trip", Some(Unit::Seconds)), "The shortest of the last seconds", |m| {
        m.rtt_ms.map(seconds)
    });
    page.of_members(report, ("member_silent", Some(Unit::Seconds)), "For how long it has said nothing", |m| {
        m.silent_ms.map(seconds)
    });
    page.of_members(report, ("member_applied_index", None), "The last entry that its PostgreSQL shows", |m| {
        m.applied.map(|index| index.0 as f64)
    });
    page.of_members(report, ("member_lag_entries", None), "Entries that its PostgreSQL does not show yet", |m| {
        m.lag_entries.map(|n| n as f64)
    });
    page.of_members(report, ("member_lag", Some(Unit::Seconds)), "How old the first of them is", |m| {
        m.lag_ms.map(seconds)
    });
    let bytes = Some(Unit::Bytes);
    page.of_peers(report, ("member_sent", bytes.clone()), "Frames that were sent to it", |peer| peer.sent_bytes);
    page.of_peers(report, ("member_relayed", bytes), "Those that this node has handed on to it for others", |peer| {
        peer.relayed_bytes
    });
    let help = "How often it has not tried statements of this region before they were committed";
    page.of_peers(report, ("member_not_rehearsed", None), help, |peer| peer.not_rehearsed);
}

fn archive(page: &mut Page, report: &StatusReport) {
    let archive = report.archive.as_ref();
    page.index("archived_index", "The last entry that is safe in the archive", archive.map(|a| a.archived));
    page.number(
        "archive_lag_entries",
        "Entries that are decided and not archived yet",
        archive.map(|a| a.lag_entries as f64),
    );
    let age_ms = archive.and_then(|a| a.age_ms);
    page.with_unit("archive_lag", Unit::Seconds, "How old what it lacks may be", age_ms.map(|ms| seconds(ms as f64)));
    page.flag("archive_problem", "Whether the archive has a problem", archive.map(|a| a.problem.is_some()));
    let finished_ms = archive.and_then(|a| a.last_backup.as_ref()?.finished_ms);
    let age = finished_ms.map(|ms| seconds(now_ms().saturating_sub(ms) as f64));
    page.with_unit("backup_age", Unit::Seconds, "How long ago the last base backup was made", age);
}

fn disks(page: &mut Page, report: &StatusReport) {
    let mut of_disks = |name, help, value: fn(&Space) -> u64| {
        let sample = |disk: &Space| (vec![("disk", disk.of.to_string())], value(disk) as f64);
        page.samples(name, help, Some(Unit::Bytes), report.disks.iter().map(sample));
    };
    of_disks("disk_free", "What is free on the disk that is needed for this", |disk| disk.free_bytes);
    of_disks("disk_size", "The size of that disk", |disk| disk.total_bytes);
}

fn certificates(page: &mut Page, report: &StatusReport) {
    let all = [("node", &report.certificate), ("authority", &report.authority), ("http", &report.http_certificate)];
    let left = all.into_iter().filter_map(|(of, certificate)| {
        certificate.as_ref().map(|certificate| (vec![("of", of.to_string())], certificate.left_s as f64))
    });
    page.samples("certificate_left", "For how long it is valid", Some(Unit::Seconds), left);
}
