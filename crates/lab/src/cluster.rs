//! A cluster of real nodes with real PostgreSQL servers on this machine, for the demo and for tests.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! let cluster = onetrip_lab::Cluster::builder().start().await?;
//! let client = cluster.connect(0).await?;
//! client.batch_execute("create table t (id int primary key)").await?;
//! cluster.node(1).kill9()?;
//! cluster.node(1).restart().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Invariants: when a cluster is dropped, everything that it started ends, and its folder is removed (kept if
//! `ONETRIP_KEEP` is set).  If the process that owns it dies, its nodes notice that their standard input closes, and
//! stop with their PostgreSQL.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context, Result};
use onetrip_client::{http, ports, Topology};
use tokio::process::Command;

use crate::node_process::Node;
use crate::{plain, postmaster};

const READY_TIMEOUT: Duration = Duration::from_secs(90);
const INIT_TIMEOUT: Duration = Duration::from_secs(120);
const CHECK_TIMEOUT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(25);
/// The command that these clusters run: `onetrip`, with what only tests need.
pub const BINARY: &str = "onetrip-lab";
const FLAT: &str = include_str!("../../../topologies/flat.toml");

pub struct Cluster {
    topology: Topology,
    folder: PathBuf,
    nodes: Vec<Node>,
    /// Whether the folder is removed with the cluster; the demo makes and removes its folder itself.
    remove_folder: bool,
}

/// What to change about one direction of a link between nodes; `None` leaves it as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct LinkChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_way_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<f64>,
    /// The share of frames that are lost, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The share of frames that arrive twice, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicate: Option<f64>,
    /// The bandwidth; 0 means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mbit_per_s: Option<f64>,
}

impl LinkChange {
    /// Undoes every fault: the link is neither cut, nor lossy, nor limited in bandwidth.  Its distance stays.
    pub fn heal() -> LinkChange {
        LinkChange {
            cut: Some(false),
            one_way_ms: None,
            jitter_ms: Some(0.0),
            loss: Some(0.0),
            duplicate: Some(0.0),
            mbit_per_s: Some(0.0),
        }
    }
}

pub struct ClusterBuilder {
    topology: Option<Topology>,
    binary: Option<PathBuf>,
    folder: Option<PathBuf>,
    init_args: Vec<String>,
    postgres_settings: Vec<(String, String)>,
    copied_servers: bool,
}

impl Cluster {
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder {
            topology: None,
            binary: None,
            folder: None,
            init_args: Vec::new(),
            postgres_settings: Vec::new(),
            copied_servers: false,
        }
    }

    /// A cluster of one node that was made in another way, for example by `onetrip restore`, in `folder`/nodes/REGION.
    /// `folder` is removed with the cluster.
    pub fn of_node(folder: &Path, region: &str, binary: &Path) -> Result<Cluster> {
        let text = format!("preferred_leader = \"{region}\"\n[[region]]\nname = \"{region}\"\n");
        let topology = Topology::parse(&text).map_err(anyhow::Error::msg)?;
        let node = Node::of_folder(folder.join("nodes").join(region), binary)?;
        Ok(Cluster { topology, folder: folder.to_path_buf(), nodes: vec![node], remove_folder: true })
    }

    /// A cluster that `onetrip init` has made in `folder`/nodes, of these regions; each node's command is the one that
    /// `binary` tells.  `folder` is removed with the cluster.
    pub fn of_folder(folder: &Path, regions: &[&str], binary: impl Fn(&str) -> PathBuf) -> Result<Cluster> {
        let text: String = regions.iter().map(|region| format!("[[region]]\nname = \"{region}\"\n")).collect();
        let topology = Topology::parse(&text).map_err(anyhow::Error::msg)?;
        let node = |region: &&str| Node::of_folder(folder.join("nodes").join(region), &binary(region));
        let nodes = regions.iter().map(node).collect::<Result<Vec<_>>>()?;
        Ok(Cluster { topology, folder: folder.to_path_buf(), nodes, remove_folder: true })
    }

    pub fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(crate) fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The folder for `onetrip status --data` and `onetrip check --data`.
    pub fn data(&self) -> PathBuf {
        self.folder.join("nodes")
    }

    pub fn binary(&self) -> &Path {
        self.nodes[0].binary()
    }

    /// A client of the replicated database at node `index`.
    pub async fn connect(&self, index: usize) -> Result<tokio_postgres::Client> {
        self.nodes[index].connect().await
    }

    /// Waits until every running node knows a leader and serves SQL, and the leader is in the preferred region if a
    /// node of that region runs.
    pub async fn wait_ready(&self) -> Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            let mut missing = None;
            for node in self.nodes.iter().filter(|n| n.running()) {
                if let Err(why) = self.node_ready(node).await {
                    missing = Some(format!("{}: {why:#}", node.region()));
                    break;
                }
            }
            let Some(missing) = missing else {
                return Ok(());
            };
            for node in &self.nodes {
                node.check_not_ended()?;
            }
            if Instant::now() >= deadline {
                bail!("the cluster is not ready after {} s; {missing}", READY_TIMEOUT.as_secs());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until every running node says that the cluster is settled: the leader is where it belongs, and no other
    /// place is better.  Returns the place of the leader's region in the topology.
    pub async fn settled(&self) -> Result<usize> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            let mut leaders = Vec::new();
            let mut unsettled = None;
            for node in self.nodes.iter().filter(|n| n.running()) {
                let status = node.status().await?;
                leaders.push(status["leader"]["region"].as_str().unwrap_or_default().to_owned());
                if status["leader_settled"] != true {
                    unsettled = Some(format!("{} says: {}", node.region(), status["leader_places"]));
                }
            }
            leaders.dedup();
            match (&leaders[..], &unsettled) {
                ([leader], None) => return self.topology.region_index(leader).context("find the leader's region"),
                _ if Instant::now() < deadline => tokio::time::sleep(POLL).await,
                _ => bail!(
                    "the leader has not settled after {} s: it is in {leaders:?}; {unsettled:?}",
                    READY_TIMEOUT.as_secs()
                ),
            }
        }
    }

    async fn node_ready(&self, node: &Node) -> Result<()> {
        let status = node.status().await?;
        let leader = &status["leader"];
        let preferred = status["preferred_leader"].as_str().context("its preferred leader")?;
        if leader.is_null() {
            bail!("it knows no leader");
        }
        let preferred_runs = self.nodes.iter().any(|n| n.region() == preferred && n.running());
        if preferred_runs && leader["region"].as_str().is_some_and(|region| region != preferred) {
            bail!("the leader is {leader}, not in {preferred}");
        }
        if !node.has_postgres() {
            return Ok(());
        }
        let state = status["postgres"]["state"].as_str().unwrap_or("unknown");
        if state != "ready" {
            bail!("PostgreSQL is {state} ({})", status["postgres"]["problem"].as_str().unwrap_or("no problem known"));
        }
        if status["apply_worker"] != true {
            bail!("its PostgreSQL's apply worker is not connected");
        }
        let client = node.connect().await?;
        client.simple_query("select onetrip.position()").await.context("ask for the position")?;
        Ok(())
    }

    /// Waits until every running node shows what any of them shows now.
    pub async fn converge(&self) -> Result<()> {
        let running: Vec<&Node> = self.nodes.iter().filter(|n| n.running() && n.has_postgres()).collect();
        let mut clients = Vec::new();
        let mut goal = 0;
        for node in &running {
            let client = node.connect().await?;
            goal = goal.max(position(&client).await?);
            clients.push(client);
        }
        let deadline = Instant::now() + READY_TIMEOUT;
        for (node, client) in running.iter().zip(&clients) {
            loop {
                let at = position(client).await?;
                if at >= goal {
                    break;
                }
                if Instant::now() >= deadline {
                    bail!("{} is at {at} and does not reach {goal}", node.region());
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Ok(())
    }

    /// Fails unless `onetrip check` finds all regions equal.
    pub async fn check(&self) -> Result<()> {
        let mut run = Command::new(self.binary());
        run.args(["check", "--timeout", "60", "--data"]).arg(self.data()).kill_on_drop(true);
        let output = tokio::time::timeout(CHECK_TIMEOUT, run.output());
        let output = output.await.context("onetrip check does not end")?.context("run onetrip check")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "onetrip check: {said}");
        Ok(())
    }

    /// Cuts (or heals) the link between two nodes in both directions.
    pub async fn cut_link(&self, a: usize, b: usize, cut: bool) -> Result<()> {
        for (from, to) in [(a, b), (b, a)] {
            self.set_link(from, to, &LinkChange { cut: Some(cut), ..LinkChange::default() }).await?;
        }
        Ok(())
    }

    /// Changes the link in one direction: what happens to frames that `from` sends to `to`.  A node that is restarted
    /// has the distances of its node.toml again, and no other faults.
    pub async fn set_link(&self, from: usize, to: usize, change: &LinkChange) -> Result<()> {
        let mut body = serde_json::to_value(change)?;
        body["peer"] = self.nodes[to].id().into();
        http::post_json(self.nodes[from].http(), "/links", &body, Duration::from_secs(5)).await?;
        Ok(())
    }

    /// Stops all nodes and their PostgreSQL in order; processes that do not end in time are killed.
    pub async fn stop(&self) -> Result<()> {
        for node in &self.nodes {
            node.ask_to_stop();
        }
        let mut result = Ok(());
        for node in &self.nodes {
            if let Err(why) = node.stop().await {
                result = Err(why);
            }
        }
        result
    }
}

async fn position(client: &tokio_postgres::Client) -> Result<i64> {
    Ok(client.query_one("select onetrip.position()", &[]).await.context("ask for the position")?.get(0))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in &self.nodes {
                eprintln!("--- {}: end of node.log\n{}", node.region(), node.log_tail(20));
                eprintln!("--- {}: end of postgres.log\n{}", node.region(), node.postgres_log_tail(20));
            }
        }
        for node in &self.nodes {
            let _ = node.kill9();
        }
        for node in &self.nodes {
            if let Err(message) = postmaster::stop_now(&node.postgres_data(), Duration::from_secs(20)) {
                eprintln!("{message}");
            }
        }
        if self.remove_folder && std::env::var_os("ONETRIP_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

impl ClusterBuilder {
    /// The topology; by default three regions without distance.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = Some(topology);
        self
    }

    /// The command's executable; by default `ONETRIP_BIN`, else the [`BINARY`] that was built beside the running test.
    pub fn binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = Some(binary.into());
        self
    }

    /// An empty folder, which is kept; by default a new one under /var/tmp, which is removed with the cluster.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// More arguments for `onetrip init`.
    pub fn init_arg(mut self, arg: &str) -> Self {
        self.init_args.push(arg.to_string());
        self
    }

    /// A PostgreSQL setting on every node, as a user would write it in postgresql.conf.
    pub fn postgres_setting(mut self, name: &str, value: &str) -> Self {
        self.postgres_settings.push((name.to_string(), value.to_string()));
        self
    }

    /// Whether the servers are copies of one that is made once for this process, which takes a fraction of the time.
    /// They have the same system identifier then, and a loss of power may take what is in them
    /// (`crates/node/src/postgres/template.rs`).  By default each is made by itself, as a user's is.
    pub fn copied_servers(mut self, copied_servers: bool) -> Self {
        self.copied_servers = copied_servers;
        self
    }

    /// Makes the nodes and starts them; returns when all are ready.
    pub async fn start(self) -> Result<Cluster> {
        let cluster = self.init().await?;
        for node in &cluster.nodes {
            node.start()?;
        }
        cluster.wait_ready().await?;
        Ok(cluster)
    }

    /// Makes the nodes, but starts none.
    pub async fn init(self) -> Result<Cluster> {
        let mut topology = match self.topology {
            Some(topology) => topology,
            None => Topology::parse(FLAT).map_err(anyhow::Error::msg)?,
        };
        fill_ports(&mut topology)?;
        let binary = match self.binary {
            Some(binary) => binary,
            None => find_binary()?,
        };
        let remove_folder = self.folder.is_none();
        let folder = self.folder.unwrap_or_else(new_folder);
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        let data = folder.join("nodes");
        let nodes =
            (0..topology.regions.len()).map(|i| Node::new(i, &topology, &data, &binary)).collect::<Result<Vec<_>>>()?;
        // From here on, dropping the cluster cleans up after a failure.
        let cluster = Cluster { topology, folder, nodes, remove_folder };
        let file = cluster.folder.join("topology.toml");
        std::fs::write(&file, cluster.topology.to_toml()).with_context(|| format!("write {}", file.display()))?;
        let mut init = Command::new(&binary);
        init.args(["init", "--lab", "--topology"]).arg(&file).arg("--data").arg(&data).args(&self.init_args);
        if self.copied_servers {
            let template = TEMPLATE.as_ref().map_err(|why| anyhow!("make a folder for a template: {why:#}"))?;
            init.env("ONETRIP_LAB_TEMPLATE", &template.folder);
        }
        let output = match tokio::time::timeout(INIT_TIMEOUT, init.kill_on_drop(true).output()).await {
            Ok(output) => output.with_context(|| format!("start {}", binary.display()))?,
            Err(_) => bail!("onetrip init did not end within {} s", INIT_TIMEOUT.as_secs()),
        };
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("onetrip: "));
        }
        for node in &cluster.nodes {
            node.add_postgres_settings(&self.postgres_settings)?;
        }
        Ok(cluster)
    }
}

fn fill_ports(topology: &mut Topology) -> Result<()> {
    let mut free = ports::free_ports(3 * topology.regions.len())?.into_iter();
    for region in &mut topology.regions {
        for port in [&mut region.peer_port, &mut region.http_port, &mut region.postgres_port] {
            let free = free.next();
            *port = port.or(free);
        }
    }
    Ok(())
}

fn new_folder() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    PathBuf::from(format!("/var/tmp/onetrip-lab-{}-{number}", std::process::id()))
}

/// A folder of this process's for [`ClusterBuilder::copied_servers`].
struct Template {
    folder: PathBuf,
    /// Removes the folder as soon as its standard input closes, which is when this process has ended in whatever way.
    _remover: Child,
}

static TEMPLATE: LazyLock<Result<Template>> = LazyLock::new(|| {
    let folder = PathBuf::from(format!("/var/tmp/onetrip-lab-{}-template", std::process::id()));
    std::fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
    let mut remover = std::process::Command::new("sh");
    remover.args(["-c", "cat; rm -rf \"$0\""]).arg(&folder);
    // Ctrl-C on the terminal does not reach it.
    remover.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let template = Template { _remover: remover.spawn().context("start sh")?, folder };
    // `onetrip init` becomes this user.
    plain::give(&template.folder)?;
    Ok(template)
});

fn find_binary() -> Result<PathBuf> {
    if let Some(binary) = std::env::var_os("ONETRIP_BIN") {
        return Ok(binary.into());
    }
    let own = std::env::current_exe().context("find the running executable")?;
    // A test is target/PROFILE/deps/test-xyz, one folder below target/PROFILE/onetrip-lab.
    own.ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(BINARY))
        .find(|path| path.is_file())
        .context("no onetrip-lab executable here; build it first or set ONETRIP_BIN")
}
