//! `onetrip check`: are all nodes equal at one log position?
//!
//! ```text
//!   snapshots    every node exports a snapshot of the same position            snapshots.rs
//!   extensions   which are installed, and their versions                       extensions.rs
//!   definitions  every row of every catalog, by names                          catalogs.rs, definitions.rs
//!   tables       row counts and checksums; what is local to a region           tables.rs
//!   rows         the first row that differs, in the first table that differs   rows.rs
//!   indexes      rows that an index does not find (with --indexes)             indexes.rs
//! ```
//!
//! It uses only SQL, and changes nothing except that it adds entries to the log.
//!
//! A snapshot shows rows as they were.  But the server prints expressions with the present names, and a table that is
//! truncated or rewritten meanwhile looks empty.  So a difference is looked at again at later positions, and reported
//! only if it is seen each time.

mod catalogs;
mod definitions;
mod extensions;
mod indexes;
mod report;
mod rows;
mod snapshots;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use clap::Args;
use onetrip_client::{complain, http, say};
use onetrip_core::NodeId;
use onetrip_node::config::NodeConfig;
use onetrip_node::tls::node_name;

use crate::conninfo::quoted;
use crate::nodes;
use definitions::Definition;
pub use report::{Difference, ExtensionVersions, Report, TableRows};
use snapshots::Reader;

/// How many times a difference must be seen to be reported.
const LOOKS: usize = 3;
/// How many times a look may fail because what it looks at is dropped or altered meanwhile.
const FAILURES: usize = 5;

/// Compare all definitions, tables and extensions between nodes at one log position
///
/// Compares every row of every system catalog by names, and the number and the checksum of the rows of each replicated
/// table and materialized view, at the same position of the log on every node, while the cluster keeps working. Prints
/// what differs and what each region has, and lists the tables that are local to a region. Exit code 0: equal; 1:
/// different, or the comparison failed.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("where").required(true).args(["data", "connect", "http"]))]
pub struct CheckArgs {
    /// The folder that contains the nodes' folders
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// How to connect to each node's replicated database, such as "host=10.0.0.1 user=postgres dbname=onetrip", also
    /// with sslmode and sslrootcert; a password that is not in it may be in PGPASSWORD
    #[arg(long, value_name = "CONNINFO", num_args = 2..)]
    connect: Vec<String>,
    /// A node's HTTP address (repeat it for each node), https://ADDRESS:PORT if it speaks TLS; the node says where its
    /// PostgreSQL is, which is asked as the role postgres, with the password in PGPASSWORD
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Vec<String>,
    /// The certificate of the cluster's authority (tls/ca.crt of a node): the nodes, and their PostgreSQL, have to show
    /// that they belong to the cluster
    #[arg(long, value_name = "FILE", requires = "http")]
    ca: Option<PathBuf>,
    /// Give up if the nodes do not reach one position within this many seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Also look for rows that an index does not find, in every index of every region
    #[arg(long)]
    indexes: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &CheckArgs) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let conninfos = match (&args.data, &args.connect[..]) {
        (Some(data), _) => runtime.block_on(in_folder(data, args.json))?,
        (None, []) => {
            args.ca.as_deref().map(http::use_authority).transpose()?;
            runtime.block_on(behind_http(&args.http, args.ca.as_deref()))?
        }
        (None, given) => given.to_vec(),
    };
    let mut outcome = runtime.block_on(compare(&conninfos, Duration::from_secs(args.timeout)))?;
    if args.indexes {
        outcome.add_indexes(runtime.block_on(indexes::look_through(&conninfos))?);
    }
    if args.json {
        say!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        onetrip_client::out::text(format_args!("{}", outcome.to_text()));
    }
    Ok(ExitCode::from(if outcome.equal { 0 } else { 1 }))
}

/// How to connect to the members in `data` that have a PostgreSQL.  A node that has left may still have its folder
/// there.
async fn in_folder(data: &Path, quiet: bool) -> Result<Vec<String>> {
    let nodes = nodes::in_folder(data)?;
    let statuses = nodes::statuses(nodes.iter().map(nodes::address)).await;
    // If no node is running, connecting fails later, with an error.
    let members = nodes::newest(&statuses).filter(|s| s["members"].is_array());
    let is_member = |node: &NodeConfig| members.is_none_or(|s| nodes::members(s).any(|m| m["id"] == node.node.0));
    let mut conninfos = Vec::new();
    for node in nodes {
        match &node.postgres {
            Some(_) if !is_member(&node) && quiet => {}
            Some(_) if !is_member(&node) => {
                complain!("node {} in {} is not a member any more: left out", node.node, node.region);
            }
            Some(postgres) => {
                // Its socket, which lets in the node's user and root.
                let folder = node.data_dir.display().to_string();
                conninfos.push(conninfo(&folder, postgres.port, &postgres.database));
            }
            None => {}
        }
    }
    if conninfos.len() < 2 {
        bail!("nodes with a PostgreSQL in {}: {}; a comparison needs two", data.display(), conninfos.len());
    }
    Ok(conninfos)
}

/// The nodes that answer there say themselves where their PostgreSQL is.  With `ca`, the cluster's authority has to
/// vouch for it as for the node.
async fn behind_http(addresses: &[String], ca: Option<&Path>) -> Result<Vec<String>> {
    let mut conninfos = Vec::new();
    for (address, status) in addresses.iter().zip(nodes::statuses(addresses.to_vec()).await) {
        let status = status?;
        let host = http::host_of(address);
        let postgres = &status["postgres"];
        let port = postgres["port"].as_u64().and_then(|port| u16::try_from(port).ok());
        let (Some(port), Some(database)) = (port, postgres["database"].as_str()) else {
            complain!("the node at {address} has no PostgreSQL: left out");
            continue;
        };
        let (Some(ca), Some(node), Some(cluster)) = (ca, status["node"].as_u64(), status["cluster"].as_str()) else {
            conninfos.push(conninfo(host, port, database));
            continue;
        };
        let mut found = tokio::net::lookup_host((host, port)).await.with_context(|| format!("look up {host}"))?;
        let ip = found.next().with_context(|| format!("{host} has no address"))?.ip();
        // A server has the node's certificate, which need not be for its address.
        let name = node_name(NodeId(u32::try_from(node).context("the node's number")?), cluster);
        let ca = quoted(&ca.display().to_string());
        let place = conninfo(&name, port, database);
        conninfos.push(format!("{place} hostaddr={ip} sslmode=verify-full sslrootcert={ca}"));
    }
    if conninfos.len() < 2 {
        bail!("nodes with a PostgreSQL: {}; a comparison needs two", conninfos.len());
    }
    Ok(conninfos)
}

fn conninfo(host: &str, port: u16, database: &str) -> String {
    format!("host={} port={port} user=postgres dbname={}", quoted(host), quoted(database))
}

pub async fn compare(conninfos: &[String], timeout: Duration) -> Result<Report> {
    let (mut looks, mut failures) = (Vec::<Look>::new(), 0);
    loop {
        let (position, readers) = snapshots::at_one_position(conninfos, timeout).await?;
        match look(&readers, looks.last()).await {
            Ok(seen) => looks.push(seen),
            Err(error) if failures < FAILURES && error.chain().any(|e| e.is::<tokio_postgres::Error>()) => {
                failures += 1;
                continue;
            }
            Err(error) => return Err(error),
        }
        let last = looks.last().context("looked at least once")?;
        if last.is_equal() || looks.len() == LOOKS {
            let difference = match last.different.first() {
                Some((table, other)) => {
                    let sides = [&readers[0], &readers[*other]];
                    Some(rows::first_difference(sides, &last.tables[table]).await?)
                }
                None => None,
            };
            let local = tables::local(&readers).await?;
            let regions = readers.iter().map(|r| r.region.clone()).collect();
            return Report::new(position, regions, looks, difference, local);
        }
    }
}

/// What was seen at one position.
struct Look {
    extensions: Vec<ExtensionVersions>,
    definitions: Vec<Definition>,
    /// The number of rows of each catalog.
    catalogs: BTreeMap<String, usize>,
    tables: BTreeMap<String, tables::Table>,
    rows: Vec<TableRows>,
    /// Tables whose rows differ, each with the first region whose rows are not those of the first region.
    different: Vec<(String, usize)>,
}

impl Look {
    fn is_equal(&self) -> bool {
        self.extensions.is_empty() && self.definitions.is_empty() && self.different.is_empty()
    }
}

/// Compares everything, or, if there was a look before, only what differed in that one.
async fn look(readers: &[Reader], before: Option<&Look>) -> Result<Look> {
    let extensions = extensions::different(readers).await?;
    let without: BTreeSet<String> = extensions.iter().map(|e| e.extension.clone()).collect();
    let mut seen = Look {
        extensions,
        definitions: Vec::new(),
        catalogs: BTreeMap::new(),
        tables: BTreeMap::new(),
        rows: Vec::new(),
        different: Vec::new(),
    };
    if before.is_none_or(|before| !before.definitions.is_empty()) {
        let compared = definitions::compare(readers, &without).await?;
        let again = |d: &Definition| before.is_none_or(|b| b.definitions.iter().any(|other| other.is_about_what(d)));
        seen.definitions = compared.different.into_iter().filter(again).collect();
        seen.catalogs = compared.catalogs;
    }
    let mut catalogs = Vec::new();
    for reader in readers {
        catalogs.push(tables::catalog(reader).await?);
    }
    for (name, table) in std::mem::take(&mut catalogs[0]) {
        // A table that a region lacks, or has with other columns, is a difference of definitions.
        let alike = catalogs[1..].iter().all(|c| c.get(&name).is_some_and(|t| t.columns == table.columns));
        if !alike || !before.is_none_or(|before| before.different.iter().any(|(table, _)| *table == name)) {
            continue;
        }
        let sums = tables::checksums(readers, &table).await?;
        if name == tables::LARGE_OBJECTS && sums.iter().all(|sum| sum.rows == 0) {
            continue;
        }
        seen.rows.push(TableRows { table: name.clone(), rows: sums[0].rows, materialized_view: table.is_view });
        if let Some(other) = (1..readers.len()).find(|i| sums[*i] != sums[0]) {
            seen.different.push((name.clone(), other));
            seen.tables.insert(name, table);
        }
    }
    Ok(seen)
}
