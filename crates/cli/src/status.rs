//! `onetrip status`: what every reachable node says of itself, side by side.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use onetrip_lab::{http, report};
use serde_json::{json, Value};

/// Show every node: role, positions, lag, round trips, PostgreSQL, and what is wrong
///
/// Exit code 1 if a node does not answer or reports a problem.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("where").required(true).args(["data", "http"]))]
pub struct StatusArgs {
    /// A node's folder, or the folder that holds the nodes' folders
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// A node's HTTP address (repeat it for more nodes)
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Vec<String>,
    /// Print what the nodes answer as JSON
    #[arg(long)]
    json: bool,
}

const TIMEOUT: Duration = Duration::from_secs(5);

/// One node: what it was asked as, and what it answered.
struct Answer {
    region: String,
    address: String,
    status: Result<Value>,
}

pub fn run(args: &StatusArgs) -> Result<ExitCode> {
    let targets: Vec<(String, String)> = match &args.data {
        Some(data) => crate::nodes::in_folder(data)?
            .into_iter()
            .map(|node| (node.region.to_string(), node.http.to_string()))
            .collect(),
        None => args.http.iter().map(|address| (String::new(), address.clone())).collect(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let answers = runtime.block_on(async {
        let asked: Vec<_> = targets
            .into_iter()
            .map(|(region, address)| {
                tokio::spawn(async move {
                    let status = http::get_json(&address, "/status", TIMEOUT).await;
                    Answer { region, address, status }
                })
            })
            .collect();
        let mut answers = Vec::new();
        for answer in asked {
            answers.push(answer.await.context("ask a node")?);
        }
        Ok::<_, anyhow::Error>(answers)
    })?;
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
        print!("{}", report::render(&table(&answers), 2));
        for problem in &problems {
            println!("! {problem}");
        }
    }
    Ok(ExitCode::from(if problems.is_empty() { 0 } else { 1 }))
}

fn table(answers: &[Answer]) -> Vec<Vec<String>> {
    let head = [
        "region",
        "role",
        "term",
        "log",
        "decided",
        "applied",
        "durable",
        "lag",
        "PostgreSQL",
        "port",
        "backends",
        "round trips ms",
    ];
    let mut lines = vec![head.map(String::from).to_vec()];
    for answer in answers {
        let Ok(status) = &answer.status else {
            let name = if answer.region.is_empty() { &answer.address } else { &answer.region };
            lines.push(vec![name.clone(), "no answer".to_string()]);
            continue;
        };
        let text = |value: &Value| match value {
            Value::Null => String::new(),
            Value::String(s) => s.clone(),
            other => other.to_string(),
        };
        // Entries that this node has decided and its PostgreSQL does not show yet.
        let lag = match (status["last_committed"].as_u64(), status["applied"].as_u64()) {
            (Some(decided), Some(applied)) => decided.saturating_sub(applied).to_string(),
            _ => String::new(),
        };
        let round_trips: Vec<String> = status["peers"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|peer| {
                let rtt = peer["rtt_ms"].as_f64().map_or("-".to_string(), |rtt| format!("{rtt:.1}"));
                format!("{} {rtt}", text(&peer["region"]))
            })
            .collect();
        lines.push(vec![
            text(&status["region"]),
            text(&status["role"]),
            text(&status["term"]),
            text(&status["commit"]),
            text(&status["decided"]),
            text(&status["applied"]),
            text(&status["durable"]),
            lag,
            text(&status["postgres"]["state"]),
            text(&status["postgres"]["port"]),
            text(&status["backends"]),
            round_trips.join(", "),
        ]);
    }
    lines
}

/// What is wrong and what to do, each with its region.
fn problems(answers: &[Answer]) -> Vec<String> {
    let mut problems = Vec::new();
    for answer in answers {
        match &answer.status {
            Err(e) => {
                let name = if answer.region.is_empty() { "a node" } else { &answer.region };
                problems.push(format!("{name} does not answer at {} ({e:#}): is it started?", answer.address));
            }
            Ok(status) => {
                let region = status["region"].as_str().unwrap_or(&answer.address);
                for problem in status["problems"].as_array().into_iter().flatten() {
                    problems.push(format!("{region}: {}", problem.as_str().unwrap_or_default()));
                }
            }
        }
    }
    problems
}
