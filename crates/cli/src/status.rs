//! `onetrip status`: shows the whole cluster as one node sees it, or as several do.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use onetrip_client::table::render;
use onetrip_client::{http, out, say};
use onetrip_core::members::AUTO;
use onetrip_node::without_errno;
use serde_json::{json, Value};

use crate::{nodes, BadUsage};

const TIMEOUT: Duration = Duration::from_secs(5);

/// Show the whole cluster: regions, leader, lag, round trips, versions, disks, and what is wrong
///
/// Any one node is enough: it asks the others. Exit code 1 if a node that was asked does not answer or there is a
/// problem.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("where").required(true).multiple(true).args(["data", "http", "socket"]))]
pub struct StatusArgs {
    /// A node's folder, or the folder that contains the nodes' folders
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// A node's HTTP address (repeat it to ask more nodes); https://ADDRESS:PORT if it speaks TLS
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Vec<String>,
    /// The certificate of the cluster's authority (tls/ca.crt of a node), for https://; otherwise those whom this
    /// system believes count
    #[arg(long, value_name = "FILE", requires = "http")]
    ca: Option<PathBuf>,
    /// The socket admin.sock in a node's folder; for its user and root only
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print it as JSON (docs/status.md); with --watch, one line each time
    #[arg(long)]
    json: bool,
    /// Print it again and again, every 2 seconds or as given, until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
    watch: Option<f64>,
}

/// One node that is asked.
struct Target {
    /// Its number, if that is known beforehand; and its region.
    node: Option<u64>,
    region: String,
    address: String,
}

/// What it answered.
struct Answer<'a> {
    of: &'a Target,
    cluster: Result<Value>,
}

pub fn run(args: &StatusArgs) -> Result<ExitCode> {
    let every = match args.watch {
        Some(s) if !(0.1..=86_400.0).contains(&s) => {
            return Err(BadUsage(format!("--watch {s}: give a number of seconds from 0.1 to 86400")).into())
        }
        every => every.map(Duration::from_secs_f64),
    };
    if let Some(ca) = &args.ca {
        http::use_authority(ca)?;
    }
    let targets = targets(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    runtime.block_on(async {
        loop {
            let answers = ask(&targets).await;
            let cluster = merged(&answers);
            show(&cluster, &answers, args);
            let Some(every) = every.filter(|_| !out::nobody_reads()) else {
                let well = cluster["problems"].as_array().is_some_and(Vec::is_empty);
                return Ok(ExitCode::from(if well { 0 } else { 1 }));
            };
            tokio::time::sleep(every).await;
        }
    })
}

fn targets(args: &StatusArgs) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for node in args.data.iter().map(|data| nodes::in_folder(data)).collect::<Result<Vec<_>>>()?.concat() {
        let (id, region, address) = (u64::from(node.node.0), node.region.to_string(), nodes::address(&node));
        targets.push(Target { node: Some(id), region, address });
    }
    // A path without a slash would be taken for an address.
    let socket = args.socket.iter().map(|socket| std::path::absolute(socket).context("find the socket"));
    let socket = socket.map(|socket| socket.map(|socket| socket.display().to_string())).collect::<Result<Vec<_>>>()?;
    let unknown = |address: &String| Target { node: None, region: String::new(), address: address.clone() };
    targets.extend(args.http.iter().chain(&socket).map(unknown));
    Ok(targets)
}

/// Asks all of them at the same time.
async fn ask(targets: &[Target]) -> Vec<Answer<'_>> {
    let ask = |address: String| tokio::spawn(async move { http::get_json(&address, "/cluster", TIMEOUT).await });
    let asked: Vec<_> = targets.iter().map(|target| (target, ask(target.address.clone()))).collect();
    let mut answers = Vec::new();
    for (of, answer) in asked {
        let cluster = answer.await.context("ask a node").and_then(|answer| answer).and_then(|answer| {
            anyhow::ensure!(answer["members"].is_array(), "this is not the answer of a node");
            Ok(answer)
        });
        answers.push(Answer { of, cluster });
    }
    answers
}

/// One answer out of all: that of the node which sees most, with what each other one that answered says of itself, and
/// everybody's problems.
fn merged(answers: &[Answer]) -> Value {
    let all = || answers.iter().filter_map(|a| a.cluster.as_ref().ok());
    let sees = |c: &&Value| (c["quorum"]["reachable"].as_u64(), c["decided"].as_u64());
    let mut cluster = all().max_by_key(sees).cloned().unwrap_or_else(|| json!({ "members": [], "problems": [] }));
    let known = |m: &Value| (m["asked"] == true, m["heard"] == "now", m["report"].is_object());
    for member in list_mut(&mut cluster["members"]) {
        let views = all().flat_map(|c| list(&c["members"])).filter(|m| m["id"] == member["id"]);
        if let Some(view) = views.max_by_key(|m| known(m)).filter(|view| known(view) > known(member)) {
            *member = view.clone();
        }
    }
    let mut problems: Vec<Value> = Vec::new();
    for problem in all().flat_map(|c| list(&c["problems"])) {
        match problems.iter_mut().find(|p| p["text"] == problem["text"]) {
            Some(known) => {
                let new: Vec<Value> =
                    list(&problem["nodes"]).filter(|n| !list(&known["nodes"]).any(|k| k == *n)).cloned().collect();
                list_mut(&mut known["nodes"]).extend(new);
            }
            None => problems.push(problem.clone()),
        }
    }
    for answer in answers {
        let Err(e) = &answer.cluster else { continue };
        if has_left(answer.of, &cluster) {
            continue;
        }
        let name = match answer.of.node {
            None => "a node".to_string(),
            Some(node) => format!("node {node} in {}", answer.of.region),
        };
        let text = format!("{name} does not answer at {} ({e:#}): is it started?", answer.of.address);
        let text = without_errno(text);
        problems.push(json!({ "text": text, "nodes": [] }));
    }
    cluster["problems"] = problems.into();
    cluster
}

/// The node is no longer a member, although its folder is still there.
fn has_left(target: &Target, cluster: &Value) -> bool {
    let mut members = list(&cluster["members"]).peekable();
    members.peek().is_some() && target.node.is_some_and(|id| members.all(|m| m["id"] != id))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn list_mut(value: &mut Value) -> &mut Vec<Value> {
    if !value.is_array() {
        *value = json!([]);
    }
    value.as_array_mut().expect("it is one now")
}

fn show(cluster: &Value, answers: &[Answer], args: &StatusArgs) {
    if args.json {
        let text = match args.watch {
            Some(_) => cluster.to_string(),
            None => format!("{cluster:#}"),
        };
        return say!("{text}");
    }
    // On a terminal the last one is overwritten.
    let before = match (args.watch, std::io::stdout().is_terminal()) {
        (Some(_), true) => "\x1b[H\x1b[2J",
        _ => "",
    };
    let after = if args.watch.is_some() && before.is_empty() { "\n" } else { "" };
    let tables = [members(cluster, answers), commits(cluster), machines(cluster), round_trips(cluster)];
    let text = [head(cluster)].into_iter().chain(tables).chain([
        leader(cluster),
        leases(cluster),
        prepared(cluster),
        jobs(cluster),
        upgrade(cluster),
    ]);
    let text: Vec<String> = text.filter(|part| !part.is_empty()).collect();
    out::text(format_args!("{before}{}{}{after}", text.join("\n"), problems(cluster)));
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

fn ms(value: &Value) -> String {
    value.as_f64().map_or_else(String::new, |ms| format!("{ms:.1}"))
}

/// In whole units, so that a person can compare.
fn bytes(value: &Value) -> String {
    match value.as_u64() {
        None => String::new(),
        Some(n) if n < 10 << 20 => format!("{} KiB", n >> 10),
        Some(n) if n < 10 << 30 => format!("{} MiB", n >> 20),
        Some(n) => format!("{} GiB", n >> 30),
    }
}

/// Of a time that has passed.
fn age(value: &Value) -> String {
    match value.as_f64().map(|ms| ms / 1_000.0) {
        None => String::new(),
        Some(s) if s < 1.0 => format!("{:.0} ms", s * 1_000.0),
        Some(s) if s < 120.0 => format!("{s:.0} s"),
        Some(s) if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        Some(s) if s < 172_800.0 => format!("{:.0} h", s / 3_600.0),
        Some(s) => format!("{:.0} days", s / 86_400.0),
    }
}

fn head(cluster: &Value) -> String {
    let quorum = &cluster["quorum"];
    let Some(may_fail) = quorum["may_fail"].as_i64() else { return String::new() };
    let margin = match may_fail {
        n if n < 0 => format!("{} too few: nothing commits", -n),
        0 => "none of them may fail".to_string(),
        n => format!("{n} of them may fail"),
    };
    format!(
        "cluster {}, as node {} in {} sees it: {} of {} voters are reachable, {margin}\n",
        text(&cluster["cluster"]),
        text(&cluster["node"]),
        text(&cluster["region"]),
        text(&quorum["reachable"]),
        text(&quorum["voters"])
    )
}

/// One line for each member, then one for each node that was asked in vain and is none.
fn members(cluster: &Value, answers: &[Answer]) -> String {
    let head = ["node", "region", "is", "term", "decided", "applied", "lag", "PostgreSQL", "port", "sessions"];
    let mut lines = vec![head.map(String::from).to_vec()];
    for m in list(&cluster["members"]) {
        let report = &m["report"];
        let now = |value: &Value| if m["heard"] == "now" { text(value) } else { String::new() };
        lines.push(vec![
            text(&m["id"]),
            text(&m["region"]),
            role(m),
            now(&report["term"]),
            now(&report["decided"]),
            text(&m["applied"]),
            lag(m),
            now(&report["postgres"]["state"]),
            text(&report["postgres"]["port"]),
            now(&report["counts"]["sessions"]),
        ]);
    }
    for answer in answers.iter().filter(|a| a.cluster.is_err()) {
        let (node, region) = (answer.of.node.map_or(String::new(), |id| id.to_string()), answer.of.region.clone());
        match list(&cluster["members"]).any(|m| answer.of.node.is_some_and(|id| m["id"] == id)) {
            true => {}
            false if has_left(answer.of, cluster) => lines.push(vec![node, region, "has left".into()]),
            false if answer.of.node.is_none() => {
                lines.push(vec![node, answer.of.address.clone(), "no answer".into()]);
            }
            false => lines.push(vec![node, region, "no answer".into()]),
        }
    }
    render(&lines, 3)
}

fn role(m: &Value) -> String {
    let role = text(&m["role"]);
    let is = match (m["leads"] == true, role.as_str(), m["voter"] == true) {
        (true, "voter", _) => "leader".into(),
        (true, ..) => format!("leader, {role}"),
        (false, "replica", _) | (false, _, true) => role,
        (false, ..) => format!("joins as {role}"),
    };
    match m["heard"].as_str() {
        Some("now") => is,
        Some("no_answer") => format!("{is}, no answer"),
        _ => match m["silent_ms"].is_null() {
            true => format!("{is}, away"),
            false => format!("{is}, away for {}", age(&m["silent_ms"])),
        },
    }
}

fn lag(m: &Value) -> String {
    match (m["lag_entries"].as_u64(), m["lag_ms"].as_f64()) {
        (Some(entries @ 1..), Some(_)) => format!("{entries} ({})", age(&m["lag_ms"])),
        (Some(entries), _) => entries.to_string(),
        _ => String::new(),
    }
}

/// What clients of each region get.
fn commits(cluster: &Value) -> String {
    let head = ["node", "region", "commits", "lost", "mean ms", "p50", "p99", "least possible", "with this leader"];
    let mut lines = vec![head.map(String::from).to_vec()];
    for m in list(&cluster["members"]).filter(|m| m["report"]["counts"].is_object()) {
        let counts = &m["report"]["counts"];
        let whole = list(&counts["commits"]).find(|c| c["part"] == "whole").unwrap_or(&Value::Null);
        let lost: u64 = counts["lost"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum();
        lines.push(vec![
            text(&m["id"]),
            text(&m["region"]),
            whole["count"].as_u64().unwrap_or(0).to_string(),
            lost.to_string(),
            ms(&whole["mean_ms"]),
            ms(&whole["p50_ms"]),
            ms(&whole["p99_ms"]),
            ms(&m["limit_ms"]),
            ms(&m["with_leader_ms"]),
        ]);
    }
    match lines.len() {
        1 => String::new(),
        _ => format!("COMMITs since each PostgreSQL started\n{}", render(&lines, 2)),
    }
}

fn machines(cluster: &Value) -> String {
    let head = ["node", "region", "onetrip", "PostgreSQL", "log", "WAL", "disk free", "archive", "certificate until"];
    let mut lines = vec![head.map(String::from).to_vec()];
    for m in list(&cluster["members"]).filter(|m| m["report"].is_object()) {
        let report = &m["report"];
        let version = text(&report["counts"]["version"]);
        let free = list(&report["disks"]).filter_map(|d| d["free_bytes"].as_u64()).min();
        let archive = match report["archive"]["lag_entries"].as_u64() {
            None => String::new(),
            Some(0) => "complete".into(),
            Some(_) if report["archive"]["age_ms"].is_null() => "empty".into(),
            Some(_) => format!("{} old", age(&report["archive"]["age_ms"])),
        };
        lines.push(vec![
            text(&m["id"]),
            text(&m["region"]),
            text(&report["version"]),
            version.split_whitespace().next().unwrap_or_default().to_string(),
            bytes(&report["log_bytes"]),
            bytes(&report["counts"]["wal_bytes"]),
            free.map_or(String::new(), |n| bytes(&n.into())),
            archive,
            good_until(report),
        ]);
    }
    match lines.len() {
        1 => String::new(),
        _ => render(&lines, 4),
    }
}

/// The authority may end before the node's own certificate.
fn good_until(report: &Value) -> String {
    let days = |of: &str| report[of]["days_left"].as_i64();
    match (days("certificate"), days("authority")) {
        (Some(own), Some(authority)) if authority < own => {
            format!("{} (authority)", text(&report["authority"]["last_day"]))
        }
        _ => text(&report["certificate"]["last_day"]),
    }
}

fn round_trips(cluster: &Value) -> String {
    let members: Vec<&Value> = list(&cluster["members"]).collect();
    if members.len() < 2 {
        return String::new();
    }
    let to = members.iter().map(|m| format!("to {}", m["id"]));
    let mut lines = vec![["node".to_string(), "region".to_string()].into_iter().chain(to).collect::<Vec<_>>()];
    for from in &members {
        let mut line = vec![text(&from["id"]), text(&from["region"])];
        for to in &members {
            let (a, b) = (from["id"].as_u64().min(to["id"].as_u64()), from["id"].as_u64().max(to["id"].as_u64()));
            let measured = list(&cluster["round_trips"]).find(|r| r["from"].as_u64() == a && r["to"].as_u64() == b);
            line.push(measured.map_or_else(String::new, |r| ms(&r["ms"])));
        }
        lines.push(line);
    }
    format!("round trips in ms, as the members measured them last\n{}", render(&lines, 2))
}

/// Where the leader belongs, who says so, and how long a COMMIT takes with the leader there or elsewhere.
fn leader(cluster: &Value) -> String {
    let leader = &cluster["leader"];
    if !leader.is_object() {
        return String::new();
    }
    let preferred = text(&leader["preferred_region"]);
    let by = match leader["preferred_by"].as_str() {
        Some(AUTO) => "the cluster chooses: auto",
        _ => "an operator has chosen",
    };
    let is = match leader["region"].as_str() {
        Some(region) => format!("leader: node {} in {region}; {}", text(&leader["node"]), text(&leader["why"])),
        None => format!("no leader; {}", text(&leader["why"])),
    };
    let Some(places) = leader["places"].as_array().filter(|places| !places.is_empty()) else {
        return format!("{is}\nthe leader belongs in {preferred} ({by}); not all round trips are measured yet\n");
    };
    let of = |origin: &Value| format!("from {} {}", text(&origin["node"]), text(&origin["region"]));
    let head = ["leader in".to_string(), "mean".to_string()].into_iter();
    let mut lines: Vec<Vec<String>> = vec![head.chain(list(&places[0]["commit_ms"]).map(of)).collect()];
    for place in places {
        let name = format!("{} {}", text(&place["node"]), text(&place["region"]));
        let all = list(&place["commit_ms"]).map(|o| ms(&o["ms"]));
        lines.push([name, ms(&place["mean_ms"])].into_iter().chain(all).collect());
    }
    format!(
        "{is}\nthe leader belongs in {preferred} ({by}); a COMMIT takes, in ms of round trips, with the\n{}",
        render(&lines, 1)
    )
}

/// Which regions hold read leases, and where these are in force.
fn leases(cluster: &Value) -> String {
    let regions: Vec<String> = list(&cluster["lease_regions"]).map(text).collect();
    if regions.is_empty() {
        return String::new();
    }
    let holders = list(&cluster["members"]).filter(|m| m["heard"] == "now" && regions.contains(&text(&m["region"])));
    let state = |m: &Value| match m["report"]["has_lease"].as_bool() {
        Some(true) => format!("node {} asks nobody", text(&m["id"])),
        _ => format!("node {} asks a majority, until every member answers it", text(&m["id"])),
    };
    let states: Vec<String> = holders.map(state).collect();
    format!("read leases belong to {}; {}\n", regions.join(", "), states.join(", "))
}

/// How many transactions are prepared and wait for somebody who ends them, as the member tells that has decided most.
fn prepared(cluster: &Value) -> String {
    let reports = list(&cluster["members"]).map(|m| &m["report"]);
    let Some(told) = reports.max_by_key(|report| report["decided"].as_u64()) else { return String::new() };
    let (count, since, decided) = (&told["prepared"], &told["prepared_since"], &told["decided"]);
    match count.as_u64() {
        None | Some(0) => String::new(),
        Some(_) => format!(
            "prepared transactions: {}, the oldest since log index {} of {}; see onetrip.prepared_xacts\n",
            text(count),
            text(since),
            text(decided)
        ),
    }
}

/// What is left to do of jobs, in each region.
fn jobs(cluster: &Value) -> String {
    let of = |m: &Value| {
        let region = text(&m["region"]);
        let line = move |j: &Value| {
            let what = ["statement", "index", "state", "progress"].map(|field| text(&j[field])).join(" ");
            format!("job in {region}: {}\n", what.trim_end())
        };
        list(&m["report"]["counts"]["jobs"]).map(line).collect::<String>()
    };
    list(&cluster["members"]).map(of).collect()
}

/// Whether members run several releases, or all know more than is in force.
fn upgrade(cluster: &Value) -> String {
    let reports = || list(&cluster["members"]).filter(|m| m["heard"] == "now").map(|m| &m["report"]);
    let mut versions: Vec<String> = reports().map(|report| text(&report["version"])).collect();
    versions.sort_unstable();
    versions.dedup();
    let level = cluster["level"].as_u64().unwrap_or(0);
    let knows_more = reports().any(|report| report["level_known"].as_u64().is_some_and(|known| known > level));
    match (&versions[..], knows_more) {
        ([] | [_], false) => String::new(),
        ([] | [_], true) => {
            format!("an upgrade is not finished: format level {level} is in force; see onetrip upgrade\n")
        }
        _ => format!("an upgrade is under way: the members run {}; see onetrip upgrade\n", versions.join(" and ")),
    }
}

/// What is wrong and what to do, with the nodes that report it.
fn problems(cluster: &Value) -> String {
    let region = |id: &Value| {
        let member = list(&cluster["members"]).find(|m| m["id"] == *id);
        format!("{} ({})", text(id), member.map_or(String::new(), |m| text(&m["region"])))
    };
    let line = |p: &Value| match list(&p["nodes"]).map(region).collect::<Vec<_>>() {
        by if by.is_empty() => format!("! {}\n", text(&p["text"])),
        by => format!("! node {}: {}\n", by.join(", "), text(&p["text"])),
    };
    list(&cluster["problems"]).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(id: u64, asked: bool, heard: &str, applied: u64) -> Value {
        json!({ "id": id, "region": format!("r{id}"), "role": "voter", "voter": true, "asked": asked, "heard": heard,
                "applied": applied, "report": {} })
    }

    /// Two halves of a cluster that is cut: each node's own word counts, and the larger half's view of the rest.
    #[test]
    fn of_several_answers_each_member_is_shown_as_it_says_itself() {
        let target = |node, region: &str| Target { node, region: region.into(), address: "127.0.0.1:1".into() };
        let (one, three, gone) = (target(Some(1), "r1"), target(Some(3), "r3"), target(Some(4), "r4"));
        let problem = |text: &str, nodes: &[u64]| json!({ "text": text, "nodes": nodes });
        let most = json!({ "quorum": { "reachable": 2, "may_fail": 0, "voters": 3 }, "decided": 9, "problems": [problem("x", &[1])],
            "members": [view(1, true, "now", 9), view(2, false, "now", 8), view(3, false, "not_connected", 4)] });
        let least = json!({ "quorum": { "reachable": 1, "may_fail": -1, "voters": 3 }, "decided": 5,
            "problems": [problem("x", &[3]), problem("y", &[3])],
            "members": [view(1, false, "not_connected", 1), view(2, false, "not_connected", 1), view(3, true, "now", 5)] });
        let answers = [
            Answer { of: &three, cluster: Ok(least) },
            Answer { of: &one, cluster: Ok(most) },
            Answer { of: &gone, cluster: Err(anyhow::anyhow!("refused")) },
        ];
        let cluster = merged(&answers);
        let applied: Vec<u64> = list(&cluster["members"]).filter_map(|m| m["applied"].as_u64()).collect();
        assert_eq!(applied, [9, 8, 5]);
        assert_eq!(cluster["problems"], json!([problem("x", &[3, 1]), problem("y", &[3])]));
        assert!(head(&cluster).contains("2 of 3 voters are reachable, none of them may fail"), "{}", head(&cluster));
        assert!(members(&cluster, &answers).contains("has left"), "its folder is there, and it is no member");
        // Nobody answers: then that is the problem.
        let cluster = merged(&answers[2..]);
        assert!(problems(&cluster).contains("node 4 in r4 does not answer at 127.0.0.1:1"), "{}", problems(&cluster));
        assert!(members(&cluster, &answers[2..]).contains("no answer"));
    }
}
