//! `onetrip check`: are the tables of all nodes equal at one log position?
//!
//! ```text
//!   snapshots   every node exports a snapshot of the same position      snapshots.rs
//!   extensions  which there are, and of which version               extensions.rs
//!   tables      which tables and columns there are; counts, checksums   tables.rs
//!   rows        the first row that differs in the first such table      rows.rs
//! ```
//!
//! It goes through SQL alone and changes nothing but the log's length.

mod extensions;
mod rows;
mod snapshots;
mod tables;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use clap::Args;
use onetrip_node::config::NodeConfig;
use serde::Serialize;

use crate::nodes;
use snapshots::Reader;

/// Compare every replicated table and extension between nodes at one log position
///
/// Counts and checksums the rows of each table on each node, all at the same position of the log, while the cluster goes on
/// working. Names the first row that differs, and every extension that is not of one version everywhere. Exit code 0: equal; 1: different, or not comparable.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("where").required(true).args(["data", "connect", "http"]))]
pub struct CheckArgs {
    /// The folder that holds the nodes' folders
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// How to connect to each node's replicated database, such as "host=10.0.0.1 user=postgres dbname=onetrip"
    #[arg(long, value_name = "CONNINFO", num_args = 2..)]
    connect: Vec<String>,
    /// A node's HTTP address (repeat it for each node); it says where its PostgreSQL is
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Vec<String>,
    /// Give up if the nodes do not reach one position within this many seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
pub struct Outcome {
    pub equal: bool,
    pub position: i64,
    pub regions: Vec<String>,
    pub tables: Vec<TableRows>,
    /// Tables that are not the same everywhere.
    pub different: Vec<String>,
    /// The first difference, in the first of those tables.
    pub difference: Option<Difference>,
    /// Those that are not the same everywhere.
    pub extensions: Vec<ExtensionVersions>,
}

#[derive(Debug, Serialize)]
pub struct ExtensionVersions {
    pub extension: String,
    /// In the order of the outcome's regions; none: that region lacks it.
    pub versions: Vec<Option<String>>,
}

#[derive(Debug, Serialize)]
pub struct TableRows {
    pub table: String,
    pub rows: i64,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Difference {
    /// A table that one region lacks, or has with other columns.
    Definition { table: String, regions: [String; 2], definitions: [Option<String>; 2] },
    /// A row that one region lacks, or has with other values.
    Row { table: String, key: String, regions: [String; 2], rows: [Option<String>; 2] },
}

pub fn run(args: &CheckArgs) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let conninfos = match (&args.data, &args.connect[..]) {
        (Some(data), _) => runtime.block_on(in_folder(data, args.json))?,
        (None, []) => runtime.block_on(behind_http(&args.http))?,
        (None, given) => given.to_vec(),
    };
    let outcome = runtime.block_on(compare(&conninfos, Duration::from_secs(args.timeout)))?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        print!("{}", outcome.to_text());
    }
    Ok(ExitCode::from(if outcome.equal { 0 } else { 1 }))
}

/// The members of `data` that have a PostgreSQL.  A node that has left lies about for as long as its folder does.
async fn in_folder(data: &Path, quiet: bool) -> Result<Vec<String>> {
    let nodes = nodes::in_folder(data)?;
    let statuses = nodes::statuses(nodes.iter().map(|node| node.http.to_string())).await;
    // None runs: then the error comes from the connection.
    let members = nodes::newest(&statuses).filter(|s| s["members"].is_array());
    let is_member = |node: &NodeConfig| members.is_none_or(|s| nodes::members(s).any(|m| m["id"] == node.node.0));
    let mut conninfos = Vec::new();
    for node in nodes {
        match &node.postgres {
            Some(_) if !is_member(&node) && quiet => {}
            Some(_) if !is_member(&node) => {
                eprintln!("node {} in {} is no member any more: left out", node.node, node.region);
            }
            Some(postgres) => conninfos.push(conninfo("127.0.0.1", postgres.port, &postgres.database)),
            None => {}
        }
    }
    if conninfos.len() < 2 {
        bail!("{} holds {} node with PostgreSQL; two are needed to compare", data.display(), conninfos.len());
    }
    Ok(conninfos)
}

/// The nodes that answer there say themselves where their PostgreSQL is.
async fn behind_http(addresses: &[String]) -> Result<Vec<String>> {
    let mut conninfos = Vec::new();
    for (address, status) in addresses.iter().zip(nodes::statuses(addresses.to_vec()).await) {
        let status = status?;
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
        let place = || {
            Some((u16::try_from(status["postgres"]["port"].as_u64()?).ok()?, status["postgres"]["database"].as_str()?))
        };
        match place() {
            Some((port, database)) => conninfos.push(conninfo(host, port, database)),
            None => eprintln!("the node at {address} has no PostgreSQL: left out"),
        }
    }
    if conninfos.len() < 2 {
        bail!("{} nodes with PostgreSQL; two are needed to compare", conninfos.len());
    }
    Ok(conninfos)
}

fn conninfo(host: &str, port: u16, database: &str) -> String {
    format!("host={} port={port} user=postgres dbname={}", quoted(host), quoted(database))
}

fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

pub async fn compare(conninfos: &[String], timeout: Duration) -> Result<Outcome> {
    let (position, readers) = snapshots::at_one_position(conninfos, timeout).await?;
    let regions: Vec<String> = readers.iter().map(|r| r.region.clone()).collect();
    let mut outcome = Outcome {
        equal: false,
        position,
        regions,
        tables: Vec::new(),
        different: Vec::new(),
        difference: None,
        extensions: extensions::different(&readers).await?,
    };
    let mut catalogs = Vec::new();
    for reader in &readers {
        catalogs.push(tables::catalog(reader).await?);
    }
    let names: std::collections::BTreeSet<&String> = catalogs.iter().flat_map(|c| c.keys()).collect();
    for name in names {
        let definitions: Vec<Option<String>> =
            catalogs.iter().map(|c| c.get(name).map(|t| t.columns.clone())).collect();
        if let Some(other) = (1..readers.len()).find(|i| definitions[*i] != definitions[0]) {
            outcome.different.push(name.clone());
            outcome.difference.get_or_insert_with(|| Difference::Definition {
                table: name.clone(),
                regions: pair(&readers, other),
                definitions: [definitions[0].clone(), definitions[other].clone()],
            });
            continue;
        }
        let table = &catalogs[0][name];
        let sums = tables::checksums(&readers, table).await?;
        outcome.tables.push(TableRows { table: name.clone(), rows: sums[0].rows });
        let Some(other) = (1..readers.len()).find(|i| sums[*i] != sums[0]) else { continue };
        outcome.different.push(name.clone());
        if outcome.difference.is_none() {
            outcome.difference = Some(rows::first_difference([&readers[0], &readers[other]], table).await?);
        }
    }
    outcome.equal = outcome.different.is_empty() && outcome.extensions.is_empty();
    Ok(outcome)
}

fn pair(readers: &[Reader], other: usize) -> [String; 2] {
    [readers[0].region.clone(), readers[other].region.clone()]
}

impl Outcome {
    fn to_text(&self) -> String {
        let rows: i64 = self.tables.iter().map(|t| t.rows).sum();
        let regions = self.regions.join(", ");
        if self.equal {
            let tables = self.tables.len();
            return format!("equal at position {}: {tables} tables, {rows} rows in each of {regions}\n", self.position);
        }
        let extensions = self.extensions.iter().map(|e| format!("extension {}", e.extension));
        let different: Vec<String> = self.different.iter().cloned().chain(extensions).collect();
        let mut text = format!("different at position {} ({regions}): {}\n", self.position, different.join(", "));
        match &self.difference {
            Some(Difference::Definition { table, regions, definitions }) => {
                text += &format!("first difference: the definition of {table}\n");
                for (region, definition) in regions.iter().zip(definitions) {
                    text += &format!("  {region}: {}\n", definition.as_deref().unwrap_or("no such table"));
                }
            }
            Some(Difference::Row { table, key, regions, rows }) => {
                text += &format!("first difference: table {table}, row {key}\n");
                for (region, row) in regions.iter().zip(rows) {
                    text += &format!("  {region}: {}\n", row.as_deref().unwrap_or("no such row"));
                }
            }
            None => {}
        }
        for different in &self.extensions {
            text += &format!("extension {}\n", different.extension);
            for (region, version) in self.regions.iter().zip(&different.versions) {
                let version = version.as_ref().map_or("not installed".to_string(), |v| format!("version {v}"));
                text += &format!("  {region}: {version}\n");
            }
        }
        text
    }
}
