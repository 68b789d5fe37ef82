//! `onetrip status`: shows what every reachable node says about itself, side by side.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use onetrip_client::table::render;
use onetrip_core::members::AUTO;
use serde_json::{json, Value};

use crate::nodes::{self, members};

/// Show every node: role, positions, lag, round trips, PostgreSQL, and what is wrong
///
/// Exit code 1 if a node does not answer or reports a problem.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("where").required(true).args(["data", "http"]))]
pub struct StatusArgs {
    /// A node's folder, or the folder that contains the nodes' folders
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// A node's HTTP address (repeat it for more nodes)
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Vec<String>,
    /// Print the nodes' answers as JSON
    #[arg(long)]
    json: bool,
}

/// One node that was asked, and its answer.
struct Answer {
    /// Its number; empty if that is not known before the node answers.  The same goes for its region.
    node: String,
    region: String,
    address: String,
    status: Result<Value>,
}

pub fn run(args: &StatusArgs) -> Result<ExitCode> {
    let targets: Vec<[String; 3]> = match &args.data {
        Some(data) => nodes::in_folder(data)?
            .into_iter()
            .map(|node| [node.node.to_string(), node.region.to_string(), node.http.to_string()])
            .collect(),
        None => args.http.iter().map(|address| [String::new(), String::new(), address.clone()]).collect(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let statuses = runtime.block_on(nodes::statuses(targets.iter().map(|[.., address]| address.clone())));
    let pairs = targets.into_iter().zip(statuses);
    let answers: Vec<Answer> =
        pairs.map(|([node, region, address], status)| Answer { node, region, address, status }).collect();
    let problems = problems(&answers);
    if args.json {
        let nodes: Vec<Value> = answers
            .iter()
            .map(|a| match &a.status {
                Ok(status) => status.clone(),
                Err(e) => json!({ "region": a.region, "http": a.address, "error": format!("{e:#}") }),
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&json!({ "nodes": nodes, "problems": problems }))?);
    } else {
        print!("{}", render(&table(&answers), 3));
        let round_trips = round_trips(&answers);
        if round_trips.len() > 1 {
            print!("\nround trips in ms, as the node on the left measures them\n{}", render(&round_trips, 2));
        }
        print!("{}", place_of_leader(&answers));
        print!("{}", leases(&answers));
        print!("{}", prepared(&answers));
        for problem in &problems {
            println!("! {problem}");
        }
    }
    Ok(ExitCode::from(if problems.is_empty() { 0 } else { 1 }))
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

/// One line for each node that was asked, then one for each member that was not.
fn table(answers: &[Answer]) -> Vec<Vec<String>> {
    let head = ["node", "region", "is", "term", "decided", "applied", "lag", "PostgreSQL", "port", "sessions"];
    let mut lines = vec![head.map(String::from).to_vec()];
    for answer in answers {
        let Ok(status) = &answer.status else {
            let name = if answer.region.is_empty() { &answer.address } else { &answer.region };
            let what = if has_left(answer, answers) { "has left" } else { "no answer" };
            lines.push(vec![answer.node.clone(), name.clone(), what.to_string()]);
            continue;
        };
        lines.push(vec![
            text(&status["node"]),
            text(&status["region"]),
            role(status, &status["node"]),
            text(&status["term"]),
            text(&status["decided"]),
            text(&status["applied"]),
            lag(status),
            text(&status["postgres"]["state"]),
            text(&status["postgres"]["port"]),
            text(&status["backends"]),
        ]);
    }
    for (member, told_by) in not_asked(answers) {
        let role = format!("{}, not asked", role(told_by, &member["id"]));
        lines.push(vec![text(&member["id"]), text(&member["region"]), role]);
    }
    lines
}

/// The node's role, in the words of the column `is`.
fn role(status: &Value, node: &Value) -> String {
    let Some(member) = members(status).find(|m| &m["id"] == node) else {
        return text(&status["role"]);
    };
    let role = text(&member["role"]);
    match (status["leader"]["node"] == *node, role.as_str(), member["voter"] == true) {
        (true, "voter", _) => "leader".into(),
        (true, ..) => format!("leader, {role}"),
        (false, "replica", _) | (false, _, true) => role,
        (false, ..) => format!("joins as {role}"),
    }
}

/// How many entries this node has decided that its PostgreSQL does not show yet, and how long ago the first of them was
/// decided.
fn lag(status: &Value) -> String {
    match (status["lag_entries"].as_u64(), status["lag_ms"].as_f64()) {
        (Some(entries @ 1..), Some(ms)) => format!("{entries} ({ms:.0} ms)"),
        (Some(entries), _) => entries.to_string(),
        _ => String::new(),
    }
}

/// The members in the newest answer that were not asked themselves, each with that answer.
fn not_asked(answers: &[Answer]) -> Vec<(&Value, &Value)> {
    let Some(told) = nodes::newest(answers.iter().map(|a| &a.status)) else { return Vec::new() };
    let asked: Vec<String> =
        answers.iter().map(|a| a.status.as_ref().map_or(a.node.clone(), |s| text(&s["node"]))).collect();
    members(told).filter(|m| !asked.contains(&text(&m["id"]))).map(|m| (m, told)).collect()
}

/// Whether the node is no longer a member, although its folder is still there.
fn has_left(answer: &Answer, answers: &[Answer]) -> bool {
    let told = nodes::newest(answers.iter().map(|a| &a.status));
    !answer.node.is_empty() && told.is_some_and(|told| members(told).all(|m| text(&m["id"]) != answer.node))
}

fn round_trips(answers: &[Answer]) -> Vec<Vec<String>> {
    let answered: Vec<&Value> = answers.iter().filter_map(|a| a.status.as_ref().ok()).collect();
    let mut peers: Vec<u64> = Vec::new();
    for status in &answered {
        peers.extend(status["peers"].as_array().into_iter().flatten().filter_map(|p| p["id"].as_u64()));
    }
    peers.sort_unstable();
    peers.dedup();
    let mut lines = vec![["node".to_string(), "region".to_string()]
        .into_iter()
        .chain(peers.iter().map(|peer| format!("to {peer}")))
        .collect::<Vec<_>>()];
    for status in &answered {
        let mut line = vec![text(&status["node"]), text(&status["region"])];
        for peer in &peers {
            let way = status["peers"].as_array().into_iter().flatten().find(|p| p["id"] == *peer);
            line.push(match way {
                None => String::new(),
                Some(way) if way["connected"] != true => "-".into(),
                Some(way) => way["rtt_ms"].as_f64().map_or("?".into(), |rtt| format!("{rtt:.1}")),
            });
        }
        lines.push(line);
    }
    lines
}

/// Where the leader belongs, who says so, and how long a COMMIT takes with the leader there or elsewhere.
fn place_of_leader(answers: &[Answer]) -> String {
    let Some(told) = nodes::newest(answers.iter().map(|a| &a.status)) else { return String::new() };
    let preferred = text(&told["preferred_leader"]);
    let by = match told["preferred_by"].as_str() {
        Some(AUTO) => "the cluster chooses: auto",
        _ => "an operator has chosen",
    };
    let Some(places) = told["leader_places"].as_array().filter(|places| !places.is_empty()) else {
        return format!("\nthe leader belongs in {preferred} ({by}); not all round trips are measured yet\n");
    };
    let list = |place: &Value| place["commit_ms"].as_array().cloned().unwrap_or_default();
    let of = |origin: &Value| format!("from {} {}", text(&origin["node"]), text(&origin["region"]));
    let head =
        ["leader in".to_string(), "mean".to_string()].into_iter().chain(list(&places[0]).iter().map(of)).collect();
    let ms = |ms: &Value| ms.as_f64().map_or_else(String::new, |ms| format!("{ms:.1}"));
    let mut lines: Vec<Vec<String>> = vec![head];
    for place in places {
        let name = format!("{} {}", text(&place["node"]), text(&place["region"]));
        let all = list(place);
        lines.push([name, ms(&place["mean_ms"])].into_iter().chain(all.iter().map(|o| ms(&o["ms"]))).collect());
    }
    format!(
        "\nthe leader belongs in {preferred} ({by}); a COMMIT takes, in ms of round trips, with the\n{}",
        render(&lines, 1)
    )
}

/// Which regions hold read leases, and where these are in force.
fn leases(answers: &[Answer]) -> String {
    let Some(told) = nodes::newest(answers.iter().map(|a| &a.status)) else { return String::new() };
    let regions: Vec<String> = told["lease_regions"].as_array().into_iter().flatten().map(text).collect();
    if regions.is_empty() {
        return String::new();
    }
    let holders =
        answers.iter().filter_map(|a| a.status.as_ref().ok()).filter(|s| regions.contains(&text(&s["region"])));
    let state = |s: &Value| match s["has_lease"].as_bool() {
        Some(true) => format!("node {} asks nobody", text(&s["node"])),
        _ => format!("node {} asks a majority, until every member answers it", text(&s["node"])),
    };
    let states: Vec<String> = holders.map(state).collect();
    format!("\nread leases belong to {}; {}\n", regions.join(", "), states.join(", "))
}

/// How many transactions are prepared and wait for somebody who ends them.
fn prepared(answers: &[Answer]) -> String {
    let Some(told) = nodes::newest(answers.iter().map(|a| &a.status)) else { return String::new() };
    let (count, since, decided) = (&told["prepared"], &told["prepared_since"], &told["decided"]);
    match count.as_u64() {
        None | Some(0) => String::new(),
        Some(_) => format!(
            "\nprepared transactions: {}, the oldest since log index {} of {}; see onetrip.prepared_xacts\n",
            text(count),
            text(since),
            text(decided)
        ),
    }
}

/// What is wrong and what to do: each problem once, with the nodes that report it.
fn problems(answers: &[Answer]) -> Vec<String> {
    let mut said: Vec<(String, Vec<String>)> = Vec::new();
    for answer in answers {
        match &answer.status {
            Err(_) if has_left(answer, answers) => {}
            Err(e) => {
                let name = match answer.region.as_str() {
                    "" => "a node".to_string(),
                    region => format!("node {} in {region}", answer.node),
                };
                said.push((
                    format!("{name} does not answer at {} ({e:#}): is it started?", answer.address),
                    Vec::new(),
                ));
            }
            Ok(status) => {
                let by = format!("{} ({})", text(&status["node"]), text(&status["region"]));
                for problem in status["problems"].as_array().into_iter().flatten().map(text) {
                    match said.iter_mut().find(|(told, _)| *told == problem) {
                        Some((_, others)) => others.push(by.clone()),
                        None => said.push((problem, vec![by.clone()])),
                    }
                }
            }
        }
    }
    let line = |(problem, by): (String, Vec<String>)| match by.is_empty() {
        true => problem,
        false => format!("node {}: {problem}", by.join(", ")),
    };
    said.into_iter().map(line).collect()
}
