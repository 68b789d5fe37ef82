//! `make demo`: runs a whole cluster on this machine, measures it, and leaves it open to psql until Ctrl-C.
//!
//! ```text
//!   psql, pgbench ──> client link (proxy in this process) ──> PostgreSQL of the region     a client's distance
//!                     node <──> node, delayed in their transport                            the regions' distance
//! ```
//!
//! Each region is a process of `onetrip-lab`, the executable beside this program, with its own PostgreSQL.  However the
//! demo ends, it leaves nothing running: when this process dies, the nodes notice that their standard input closes, and
//! a new demo first ends whatever killed nodes of an earlier one have left running.
//!
//! Exit codes: 0 all is well; 1 the demo failed; 2 it was called wrongly.

mod folder;
mod measure;

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use clap::Parser;
use onetrip_client::postgres;
use onetrip_client::topology::TopologyError;
use onetrip_client::{complain, say};
use onetrip_lab::cluster::BINARY;
use onetrip_lab::link::ClientLink;
use onetrip_lab::{Cluster, Topology};
use onetrip_node::postgres::{become_user, prepare_folder, ROOT_BECOMES};
use tokio::signal::unix::{signal, SignalKind};

use folder::DemoFolder;

const US: &str = include_str!("../../../../../topologies/us.toml");

/// Run three regions on this machine with emulated distances, measure them, and leave them open to psql
///
/// Starts a node and a PostgreSQL for each region, emulates the round trips between the regions and those of a client,
/// runs an update workload with pgbench against each region, and prints a table. Ctrl-C ends everything.
#[derive(Parser)]
#[command(name = "demo")]
struct DemoArgs {
    /// End after the table
    #[arg(long)]
    once: bool,
    /// Length of each measurement, in seconds
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Write the table as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Topology file with the regions and round trips [default: us-east-1, us-east-2 and us-west-2, with 10, 62 and 50
    /// ms]
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Folder for the nodes; made anew at each run
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/onetrip-demo")]
    data: PathBuf,
    /// Number of pgbench's connections
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=150))]
    clients: u64,
    /// Folder of PostgreSQL's programs
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// User to run as, if called by root
    #[arg(long, default_value = ROOT_BECOMES)]
    user: String,
}

/// What the demo is to do, determined before it becomes another user.
struct Plan {
    topology: Topology,
    topology_name: String,
    command: Command,
    bin_dir: PathBuf,
    json: Option<File>,
    clients: usize,
    seconds: u64,
    once: bool,
}

/// The command that the nodes run.  Its file is kept open, because the user that this program becomes may not be able
/// to reach its path.
struct Command {
    path: PathBuf,
    file: File,
}

impl Command {
    fn beside_this() -> Result<Command> {
        let path = match std::env::var_os("ONETRIP_BIN") {
            Some(path) => path.into(),
            None => std::env::current_exe().context("find the running program")?.with_file_name(BINARY),
        };
        let file = File::open(&path).with_context(|| format!("open {}: build it with make demo", path.display()))?;
        Ok(Command { path, file })
    }

    /// The path by which this process and its children can run the command.
    fn executable(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.file.as_raw_fd().to_string())
    }
}

fn main() -> ExitCode {
    match run(DemoArgs::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain!("demo: {error:#}");
            ExitCode::from(if error.is::<TopologyError>() { 2 } else { 1 })
        }
    }
}

fn run(args: DemoArgs) -> Result<()> {
    let (topology, topology_name) = match &args.topology {
        Some(file) => (Topology::load(file)?, file.display().to_string()),
        None => (Topology::parse(US).map_err(anyhow::Error::msg)?, "us".to_string()),
    };
    let command = Command::beside_this()?;
    let bin_dir = postgres::bin_dir(args.bin_dir.as_deref())?;
    if !bin_dir.join("pgbench").is_file() {
        bail!("there is no pgbench in {}: install it, or name PostgreSQL's folder with --bin-dir", bin_dir.display());
    }
    // The file is made with the caller's rights.
    let json = match &args.json {
        Some(path) => Some(File::create(path).with_context(|| format!("write {}", path.display()))?),
        None => None,
    };
    let data = std::path::absolute(&args.data).context("find the data folder")?;
    prepare_folder(&data, &args.user)?;
    become_user(&args.user, &data)?;
    let folder = DemoFolder::take(&data)?;
    let plan = Plan {
        topology,
        topology_name,
        command,
        bin_dir,
        json,
        clients: usize::try_from(args.clients)?,
        seconds: args.seconds,
        once: args.once,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(async {
        let mut ctrl_c = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let mut hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
        let asked_to_end = async move {
            tokio::select! {
                _ = ctrl_c.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        };
        show(plan, &folder, asked_to_end).await
    })?;
    folder.remove_nodes()
}

async fn show(plan: Plan, folder: &DemoFolder, asked_to_end: impl std::future::Future<Output = ()>) -> Result<()> {
    tokio::pin!(asked_to_end);
    let regions: Vec<&str> = plan.topology.regions.iter().map(|r| r.name.as_str()).collect();
    say(&format!("making {} regions: {}", regions.len(), regions.join(", ")));
    let starting = Cluster::builder()
        .topology(plan.topology.clone())
        .binary(plan.command.executable())
        .folder(folder.path())
        .init_arg("--bin-dir")
        .init_arg(&plan.bin_dir.display().to_string())
        .start();
    // Dropping `starting` ends whatever was started.
    let cluster = tokio::select! {
        cluster = starting => cluster?,
        () = &mut asked_to_end => return Ok(()),
    };
    let result = tokio::select! {
        result = use_cluster(plan, folder, &cluster) => result,
        () = &mut asked_to_end => Ok(()),
    };
    say("stopping");
    let stopped = cluster.stop().await;
    result.and(stopped)
}

async fn use_cluster(mut plan: Plan, folder: &DemoFolder, cluster: &Cluster) -> Result<()> {
    let links = client_links(&plan.topology, cluster)?;
    let ports: Vec<u16> = links.iter().map(|link| link.address().port()).collect();
    say("all regions are ready");
    let console = console_of(cluster);
    say(&format!("watch it in a browser: {console}"));
    let report = measure::measure(&plan, folder, cluster, &ports).await?;
    say!("\n{}", report.to_text());
    if let Some(file) = &mut plan.json {
        file.write_all(report.to_json().as_bytes()).context("write the JSON file")?;
    }
    if plan.once {
        return Ok(());
    }
    let data = cluster.data();
    say!("Open to psql, each region as the client sees it:");
    for (region, port) in plan.topology.regions.iter().zip(&ports) {
        say!(
            "  psql -h 127.0.0.1 -p {port} -U postgres {:<12} # {}, {} ms away",
            plan.topology.database(),
            region.name,
            region.client_rtt_ms
        );
    }
    say!("and from inside the region, without the client's distance:");
    for node in cluster.nodes() {
        say!(
            "  psql -h 127.0.0.1 -p {} -U postgres {:<12} # {}",
            node.postgres_port(),
            plan.topology.database(),
            node.region()
        );
    }
    println!("See it in a browser: {console}");
    // Lines that can be pasted into a shell, wherever the executable is.
    let command = plan.command.path.display();
    say!("Look at the cluster:\n  {command} status --data {0}\n  {command} check --data {0}", data.display());
    say!("Ctrl-C ends it.");
    watch(cluster, &plan.command.path).await
}

/// Any node's will do; this is the first one's.
fn console_of(cluster: &Cluster) -> String {
    format!("http://{}/", cluster.node(0).http())
}

/// Until Ctrl-C: says once that a node has ended or that its PostgreSQL fails, and once that they are back.
async fn watch(cluster: &Cluster, command: &Path) -> Result<()> {
    let mut said: Vec<Option<String>> = cluster.nodes().iter().map(|_| None).collect();
    loop {
        for (node, said) in cluster.nodes().iter().zip(&mut said) {
            let trouble = if !node.running() {
                Some(format!(
                    "the node of {} has ended; start it again with: {} start --data {}",
                    node.region(),
                    command.display(),
                    node.folder().display()
                ))
            } else {
                match node.status().await {
                    Ok(status) => status["postgres"]["problem"].as_str().map(|problem| {
                        format!("PostgreSQL of {} is {}: {problem}", node.region(), status["postgres"]["state"])
                    }),
                    Err(e) => Some(format!("the node of {} does not answer: {e:#}", node.region())),
                }
            };
            if trouble != *said {
                match &trouble {
                    Some(trouble) => say(trouble),
                    None => say(&format!("{} works again", node.region())),
                }
                *said = trouble;
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn client_links(topology: &Topology, cluster: &Cluster) -> Result<Vec<ClientLink>> {
    topology
        .regions
        .iter()
        .zip(cluster.nodes())
        .map(|(region, node)| {
            let listen = SocketAddr::from(([127, 0, 0, 1], region.client_port.unwrap_or(0)));
            let target = SocketAddr::from(([127, 0, 0, 1], node.postgres_port()));
            let rtt = Duration::from_secs_f64(region.client_rtt_ms / 1_000.0);
            ClientLink::start(listen, target, rtt)
                .with_context(|| format!("the client link of {} cannot listen on {listen}", region.name))
        })
        .collect()
}

/// Prints progress to standard error; the table and the psql lines go to standard output.
fn say(what: &str) {
    complain!("demo: {what}");
}
