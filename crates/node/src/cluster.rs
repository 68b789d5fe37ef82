//! The whole cluster as one node sees it (`GET /cluster`, docs/status.md): what each member says of itself, and where a
//! member says nothing, what is known of it here.
//!
//! The members are asked when somebody asks this node (by HTTP, or from a session of its PostgreSQL), by the peers'
//! control channel.  Nothing that commits waits for that, and however many ask, the members are asked a few times a
//! second at most.

use crate::http::Http;
use crate::printable::printable;
use crate::status::{millis, CoreStatus, MemberReport, PlaceReport, Quorum, StatusReport};
use crate::transport::STATUS_BYTES_MAX;
use bytes::Bytes;
use onetrip_core::members::AUTO;
use onetrip_core::{Level, LogIndex, MemberRole, NodeId, RegionId};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Changes when a field gets another meaning or goes; a new field does not change it.
const SCHEMA: u32 = 1;
/// How long the members have for their answers.
const PATIENCE: Duration = Duration::from_secs(1);
/// Within this time the same answer is given again.
const GOOD_FOR: Duration = Duration::from_millis(300);

/// What the members said last.
#[derive(Default)]
pub struct Latest {
    reports: Mutex<BTreeMap<NodeId, (Instant, Arc<Value>)>>,
    answer: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
}

#[derive(Serialize)]
struct ClusterReport<'a> {
    schema: u32,
    cluster: String,
    /// The node that was asked.
    node: NodeId,
    region: RegionId,
    /// Milliseconds since 1970, by that node's clock.
    time_ms: u64,
    leader: LeaderReport,
    quorum: Quorum,
    /// The highest that any answer contains.
    decided: LogIndex,
    last_committed: LogIndex,
    members_version: u64,
    /// The format level in force.
    level: Level,
    joint: bool,
    lease_regions: Vec<RegionId>,
    members: Vec<MemberView<'a>>,
    round_trips: Vec<RoundTrip>,
    problems: Vec<Problem>,
}

#[derive(Serialize)]
struct LeaderReport {
    node: Option<NodeId>,
    region: Option<RegionId>,
    leaderless_ms: Option<f64>,
    preferred_region: RegionId,
    /// `auto`, or `operator`.
    preferred_by: &'static str,
    settled: bool,
    why: String,
    places: Option<Vec<PlaceReport>>,
}

/// How a member stands with the node that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Heard {
    /// `report` is what it says now.
    Now,
    /// It is connected, and did not answer in time.
    NoAnswer,
    NotConnected,
}

#[derive(Serialize)]
struct MemberView<'a> {
    id: NodeId,
    region: RegionId,
    address: String,
    role: MemberRole,
    voter: bool,
    leads: bool,
    replaces: Option<NodeId>,
    /// It is the node that was asked.
    asked: bool,
    heard: Heard,
    /// For how long it has said nothing to the node that was asked.
    silent_ms: Option<f64>,
    applied: Option<LogIndex>,
    durable: Option<LogIndex>,
    lag_entries: Option<u64>,
    lag_ms: Option<f64>,
    caught_up: bool,
    /// The least that a COMMIT there can take, wherever the leader is, and with the leader where it is.
    limit_ms: Option<f64>,
    with_leader_ms: Option<f64>,
    /// What it said last of itself (`GET /status`), and how long ago.
    report: Option<&'a Value>,
    report_age_ms: Option<f64>,
}

#[derive(Serialize)]
struct RoundTrip {
    from: NodeId,
    to: NodeId,
    ms: f64,
}

#[derive(Serialize)]
struct Problem {
    text: String,
    /// Who reports it.
    nodes: Vec<NodeId>,
}

/// This node's own report for a peer that asks, small enough for the control channel.
pub async fn own_status(http: &Http) -> Option<Bytes> {
    let (_, report) = http.gather().await?;
    fit(serde_json::to_value(report).ok()?, STATUS_BYTES_MAX)
}

/// Leaves out what grows with the number of members, until it fits.
fn fit(mut report: Value, bytes_max: usize) -> Option<Bytes> {
    for left_out in [
        None,
        Some("leader_places"),
        Some("lock_sessions"),
        Some("lock_line"),
        Some("members"),
        Some("peers"),
        Some("counts"),
    ] {
        if let Some(field) = left_out {
            report[field] = Value::Null;
        }
        let raw = serde_json::to_vec(&report).ok()?;
        if raw.len() <= bytes_max {
            return Some(raw.into());
        }
    }
    None
}

/// The answer to `GET /cluster`; `None`: this node does not answer, since its disk may be stuck.
pub async fn cluster(http: &Http) -> Option<Bytes> {
    let mut last = http.latest.answer.lock().await;
    if let Some((_, told)) = last.as_ref().filter(|(at, _)| at.elapsed() < GOOD_FOR) {
        return Some(told.clone());
    }
    let (own, answers) = tokio::join!(http.gather(), http.transport.ask_statuses(PATIENCE));
    let (core, own) = own?;
    let own_value = serde_json::to_value(&own).ok()?;
    let said = http.latest.take_in(&core, own_value, answers);
    let told: Bytes = serde_json::to_vec(&report(&core, &own, &said)).ok()?.into();
    *last = Some((Instant::now(), told.clone()));
    Some(told)
}

/// What each member says of itself, asked now; those that do not answer in time are missing.
pub async fn reports(http: &Http) -> Option<BTreeMap<NodeId, Arc<Value>>> {
    let (own, answers) = tokio::join!(http.gather(), http.transport.ask_statuses(PATIENCE));
    let (core, own) = own?;
    let said = http.latest.take_in(&core, serde_json::to_value(own).ok()?, answers);
    Some(said.into_iter().filter(|(_, said)| said.now).map(|(id, said)| (id, said.report)).collect())
}

/// What a member said last, how long ago, and whether that was now.
struct Said {
    report: Arc<Value>,
    age: Duration,
    now: bool,
}

impl Latest {
    fn take_in(&self, core: &CoreStatus, own: Value, answers: BTreeMap<NodeId, Bytes>) -> BTreeMap<NodeId, Said> {
        let now = Instant::now();
        let mut reports = self.reports.lock().expect("no code that holds this lock panics");
        let mut fresh: Vec<NodeId> = Vec::new();
        let answers =
            answers.into_iter().filter_map(|(id, raw)| Some((id, serde_json::from_slice::<Value>(&raw).ok()?)));
        let own = own["node"].as_u64().map(|id| (NodeId(id as u32), own));
        for (id, report) in answers.chain(own) {
            // Another node's report under this name would be shown as this member's.
            if report["node"].as_u64() == Some(id.0.into()) {
                reports.insert(id, (now, Arc::new(sound(report))));
                fresh.push(id);
            }
        }
        reports.retain(|id, _| core.members.contains(*id));
        let said = |(id, (at, report)): (&NodeId, &(Instant, Arc<Value>))| {
            (*id, Said { report: report.clone(), age: now - *at, now: fresh.contains(id) })
        };
        reports.iter().map(said).collect()
    }
}

/// The views read some fields as numbers and yes or no (`onetrip.members` and others, in the extension's scripts); `*`
/// is every part of a list or an object.
const READ_AS: [(&[&str], ReadAs); 11] = [
    (&["level_known"], ReadAs::Integer),
    (&["counts", "sessions"], ReadAs::Integer),
    (&["counts", "commits", "*", "count"], ReadAs::Bigint),
    (&["counts", "lost", "*"], ReadAs::Bigint),
    (&["peers", "*", "connected"], ReadAs::Boolean),
    (&["lock_sessions", "*", "pid"], ReadAs::Integer),
    (&["lock_sessions", "*", "waits_for"], ReadAs::Integer),
    (&["lock_sessions", "*", "waiting_ms"], ReadAs::Number),
    (&["lock_line", "*", "key"], ReadAs::Bigint),
    (&["applied"], ReadAs::Bigint),
    (&["lag_ms"], ReadAs::Number),
];

#[derive(Clone, Copy)]
enum ReadAs {
    Integer,
    Bigint,
    Number,
    Boolean,
}

impl ReadAs {
    fn fits(self, value: &Value) -> bool {
        match self {
            ReadAs::Integer => value.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            ReadAs::Bigint => value.as_i64().is_some(),
            ReadAs::Number => value.is_number(),
            ReadAs::Boolean => value.is_boolean(),
        }
    }
}

/// A member's report without what no node says: whoever shows it, in a view or on a terminal, takes its form on trust.
fn sound(mut report: Value) -> Value {
    fn bound(value: &mut Value) {
        /// In milliseconds it is longer than any node runs, and in bytes larger than any disk.
        const MAX: f64 = 1e16;
        match value {
            Value::Number(n) if n.as_f64().is_none_or(|n| n.abs() > MAX) && n.as_i64().is_none() => {
                *value = Value::Null
            }
            // Among that is the one character that PostgreSQL has no place for.
            Value::String(text) => *text = printable(text),
            Value::Array(all) => all.iter_mut().for_each(bound),
            Value::Object(fields) => fields.values_mut().for_each(bound),
            _ => {}
        }
    }
    fn keep_if_fits(value: &mut Value, path: &[&str], read: ReadAs) {
        match (path, &mut *value) {
            ([], found) if !read.fits(found) => *found = Value::Null,
            (["*", rest @ ..], Value::Array(all)) => all.iter_mut().for_each(|one| keep_if_fits(one, rest, read)),
            (["*", rest @ ..], Value::Object(all)) => all.values_mut().for_each(|one| keep_if_fits(one, rest, read)),
            ([field, rest @ ..], Value::Object(all)) => {
                if let Some(one) = all.get_mut(*field) {
                    keep_if_fits(one, rest, read);
                }
            }
            _ => {}
        }
    }
    bound(&mut report);
    for (path, read) in READ_AS {
        keep_if_fits(&mut report, path, read);
    }
    report
}

fn report<'a>(core: &CoreStatus, own: &StatusReport, said: &'a BTreeMap<NodeId, Said>) -> ClusterReport<'a> {
    let now: BTreeMap<NodeId, &Value> = said.iter().filter(|(_, s)| s.now).map(|(id, s)| (*id, &*s.report)).collect();
    let highest = |field: &str, own: LogIndex| {
        LogIndex(now.values().filter_map(|r| r[field].as_u64()).chain([own.0]).max().unwrap_or_default())
    };
    let members: Vec<MemberView> = own.members.iter().map(|m| view(m, core, own, said, &now)).collect();
    let round_trip = |(&(from, to), d): (&(NodeId, NodeId), &Duration)| RoundTrip { from, to, ms: millis(*d) };
    ClusterReport {
        schema: SCHEMA,
        cluster: own.cluster.clone(),
        node: own.node,
        region: own.region.clone(),
        time_ms: std::time::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_millis() as u64),
        leader: leader(core, own),
        quorum: own.quorum.clone(),
        decided: highest("decided", own.decided),
        last_committed: highest("last_committed", own.last_committed),
        members_version: own.members_version,
        level: own.level,
        joint: own.joint,
        lease_regions: own.lease_regions.clone(),
        problems: problems(&members, &now),
        members,
        round_trips: core.round_trips.iter().map(round_trip).collect(),
    }
}

fn view<'a>(
    m: &MemberReport,
    core: &CoreStatus,
    own: &StatusReport,
    said: &'a BTreeMap<NodeId, Said>,
    now: &BTreeMap<NodeId, &Value>,
) -> MemberView<'a> {
    let heard = match (now.contains_key(&m.id), m.connected) {
        (true, _) => Heard::Now,
        (false, true) => Heard::NoAnswer,
        (false, false) => Heard::NotConnected,
    };
    // Of its own position a member knows best.
    let itself = now.get(&m.id);
    // Of one that is cut off, the member that has decided most knows best.
    let of_others = |field: &'static str| {
        let others = now.values().flat_map(|r| r["members"].as_array().into_iter().flatten());
        others.filter(|o| o["id"].as_u64() == Some(m.id.0.into())).filter_map(move |o| o[field].as_f64())
    };
    let index = |field: &'static str, here: Option<LogIndex>| {
        let told = of_others(field).reduce(f64::max).map(|index| LogIndex(index as u64));
        itself.and_then(|r| r[field].as_u64()).map(LogIndex).or(here).or(told)
    };
    let applied = index("applied", m.applied);
    let of_itself = |field: &str| itself.and_then(|r| r[field].as_f64());
    let lag_ms = of_itself("lag_ms").or_else(|| of_others("lag_ms").chain(m.lag_ms).reduce(f64::max));
    let committed = now.values().filter_map(|r| r["last_committed"].as_u64()).chain([own.last_committed.0]).max();
    let lag_entries = applied.map(|applied| committed.unwrap_or_default().saturating_sub(applied.0));
    let place = own.leader_places.iter().flatten().find(|p| own.leader.as_ref().is_some_and(|l| l.node == p.node));
    let with_leader = place.and_then(|p| p.commit_ms.iter().find(|c| c.node == m.id)).map(|c| c.ms);
    MemberView {
        id: m.id,
        region: m.region.clone(),
        address: m.address.clone(),
        role: m.role,
        voter: m.voter,
        leads: m.leads,
        replaces: m.replaces,
        asked: m.this_node,
        heard,
        silent_ms: m.silent_ms,
        applied,
        durable: index("durable", m.durable),
        lag_entries,
        lag_ms: if lag_entries == Some(0) { Some(0.0) } else { lag_ms },
        caught_up: m.caught_up,
        limit_ms: m.role.has_postgres().then(|| limit(m.id, core)).flatten().map(millis),
        with_leader_ms: with_leader,
        report: said.get(&m.id).map(|s| &*s.report),
        report_age_ms: said.get(&m.id).map(|s| millis(s.age)),
    }
}

/// The least that a COMMIT from this member can take: the round trip to the nearest majority of the voters.
fn limit(member: NodeId, core: &CoreStatus) -> Option<Duration> {
    let voters = &core.raft.conf.voters;
    let way = |to: &NodeId| match *to == member {
        true => Some(Duration::ZERO),
        false => core.round_trips.get(&(member.min(*to), member.max(*to))).copied(),
    };
    let mut ways: Vec<Duration> = voters.iter().filter_map(way).collect();
    ways.sort_unstable();
    ways.get(voters.len() / 2).copied()
}

fn leader(core: &CoreStatus, own: &StatusReport) -> LeaderReport {
    let by_operator = own.preferred_by.to_string() != AUTO;
    let leads = own.leader.as_ref();
    let places = own.leader_places.as_ref();
    let at = places.and_then(|all| all.iter().find(|p| leads.is_some_and(|l| l.node == p.node)));
    let other = places.and_then(|all| all.iter().find(|p| leads.is_some_and(|l| l.region != p.region)));
    let why = match (leads, at) {
        (None, _) if own.quorum.may_fail < 0 => "there is no majority".to_string(),
        (None, _) => "an election is under way".to_string(),
        (Some(l), _) if l.region != own.preferred_leader => {
            format!("it belongs in {} and is in {} until a member there can take over", own.preferred_leader, l.region)
        }
        (Some(_), _) if by_operator => format!("an operator has chosen {}", own.preferred_leader),
        (Some(_), None) => "the cluster chose its place; not all round trips are measured now".to_string(),
        (Some(l), Some(at)) => match other {
            Some(other) => format!(
                "a COMMIT takes {:.1} ms on average with the leader in {}, and {:.1} ms with it in {}",
                at.mean_ms, l.region, other.mean_ms, other.region
            ),
            None => format!("a COMMIT takes {:.1} ms on average with the leader in {}", at.mean_ms, l.region),
        },
    };
    LeaderReport {
        node: leads.map(|l| l.node),
        region: leads.map(|l| l.region.clone()),
        leaderless_ms: core.leaderless.map(millis),
        preferred_region: own.preferred_leader.clone(),
        preferred_by: if by_operator { "operator" } else { AUTO },
        settled: own.leader_settled,
        why,
        places: own.leader_places.clone(),
    }
}

/// Each problem once, with all who report it.
fn problems(members: &[MemberView], now: &BTreeMap<NodeId, &Value>) -> Vec<Problem> {
    let mut problems: Vec<Problem> = Vec::new();
    for (id, report) in now {
        for text in report["problems"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            match problems.iter_mut().find(|p| p.text == text) {
                Some(problem) => problem.nodes.push(*id),
                None => problems.push(Problem { text: text.to_string(), nodes: vec![*id] }),
            }
        }
    }
    let asked = members.iter().find(|m| m.asked).map(|m| m.id);
    for m in members.iter().filter(|m| m.heard == Heard::NoAnswer) {
        let text = format!(
            "member {} in {} is connected and did not say how it is within {} ms: it may be busy, or its disk stuck; what is \
             shown of it is what is known elsewhere",
            m.id,
            m.region,
            PATIENCE.as_millis()
        );
        problems.push(Problem { text, nodes: asked.into_iter().collect() });
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_report_that_is_too_large_loses_what_grows_with_the_members_and_keeps_the_rest() {
        let list = |n: usize| Value::from(vec!["x"; n]);
        let report =
            json!({"node": 1, "leader_places": list(1000), "members": list(100), "peers": list(10), "term": 7});
        let whole = serde_json::to_vec(&report).unwrap().len();
        let left = |bytes_max| serde_json::from_slice::<Value>(&fit(report.clone(), bytes_max).unwrap()).unwrap();
        assert_eq!(left(whole), report);
        let smaller = left(whole - 1);
        assert!(smaller["leader_places"].is_null() && smaller["members"].is_array(), "{smaller}");
        let smallest = left(200);
        assert!(smallest["members"].is_null() && smallest["peers"].is_array() && smallest["term"] == 7, "{smallest}");
        assert_eq!(fit(report.clone(), 10), None);
    }

    /// Goal: a member that goes bad makes no view fail, and writes nothing to anybody's terminal.
    #[test]
    fn what_no_node_says_is_left_out() {
        let false_report = json!({
            "version": "0.2\u{1b}[2J\u{0}", "level_known": 4_000_000_000_u64, "applied": u64::MAX, "lag_ms": "soon",
            "counts": {"sessions": 1.5, "commits": [{"part": "whole", "count": "many"}], "lost": {"evicted": [], "too_old": 3}},
            "peers": [{"id": 2, "connected": "yes"}, 7], "lock_sessions": {"x": {"pid": -1, "waits_for": 1e300}},
            "problems": ["a\nb"],
        });
        let left = json!({
            "version": "0.2\u{fffd}[2J\u{fffd}", "level_known": null, "applied": null, "lag_ms": null,
            "counts": {"sessions": null, "commits": [{"part": "whole", "count": null}], "lost": {"evicted": null, "too_old": 3}},
            "peers": [{"id": 2, "connected": null}, 7], "lock_sessions": {"x": {"pid": -1, "waits_for": null}},
            "problems": ["a\nb"],
        });
        assert_eq!(sound(false_report), left);
        assert_eq!(sound(left.clone()), left);
    }
}
