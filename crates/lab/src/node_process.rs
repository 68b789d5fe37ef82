//! One node of a [`crate::Cluster`]: its process, its PostgreSQL, its files and its ports.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use onetrip_client::{http, Topology};
use serde_json::Value;

use crate::postmaster;

/// A node and its PostgreSQL that do not stop within this time are killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(45);
const PAUSE_TIMEOUT: Duration = Duration::from_secs(10);
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

pub struct Node {
    id: u32,
    /// A witness has none.
    has_postgres: bool,
    place: Place,
    binary: PathBuf,
    environment: Mutex<Vec<(String, String)>>,
    child: Mutex<Option<Child>>,
}

/// Where a node is and how it is reached.
struct Place {
    region: String,
    folder: PathBuf,
    peer: String,
    http: String,
    postgres_port: u16,
    database: String,
}

impl Node {
    pub(crate) fn new(index: usize, topology: &Topology, data: &Path, binary: &Path) -> Result<Self> {
        let region = &topology.regions[index];
        let place = Place {
            region: region.name.clone(),
            folder: data.join(&region.name),
            peer: format!("{}:{}", region.host, region.peer_port.context("peer_port is not set")?),
            http: format!("127.0.0.1:{}", region.http_port.context("http_port is not set")?),
            postgres_port: region.postgres_port.context("postgres_port is not set")?,
            database: topology.database().to_string(),
        };
        Ok(Self::at(u32::try_from(index + 1)?, true, place, binary))
    }

    /// A node whose folder exists; its node.toml says what it is.
    pub(crate) fn of_folder(folder: PathBuf, binary: &Path) -> Result<Self> {
        let file = folder.join("node.toml");
        let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let config: toml::Table = text.parse().with_context(|| format!("read {}", file.display()))?;
        let text = |name: &str| {
            let value = config.get(name).and_then(toml::Value::as_str);
            value.map(str::to_string).with_context(|| format!("{} has no {name}", file.display()))
        };
        let id = config.get("node").and_then(toml::Value::as_integer).context("node.toml has no node")?;
        let postgres = config.get("postgres");
        let port = postgres.and_then(|p| p.get("port")).and_then(toml::Value::as_integer).unwrap_or(0);
        let database = postgres.and_then(|p| p.get("database")).and_then(toml::Value::as_str).unwrap_or("onetrip");
        let place = Place {
            region: text("region")?,
            peer: text("listen")?,
            http: text("http")?,
            postgres_port: u16::try_from(port)?,
            database: database.to_string(),
            folder,
        };
        let (id, has_postgres) = (u32::try_from(id)?, postgres.is_some());
        Ok(Self::at(id, has_postgres, place, binary))
    }

    fn at(id: u32, has_postgres: bool, place: Place, binary: &Path) -> Self {
        let binary = binary.to_path_buf();
        Self { id, has_postgres, place, binary, environment: Mutex::default(), child: Mutex::new(None) }
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn region(&self) -> &str {
        &self.place.region
    }

    /// Where the other nodes reach it.
    pub fn peer(&self) -> &str {
        &self.place.peer
    }

    pub fn has_postgres(&self) -> bool {
        self.has_postgres
    }

    /// The folder with node.toml.
    pub fn folder(&self) -> &Path {
        &self.place.folder
    }

    pub fn postgres_data(&self) -> PathBuf {
        self.place.folder.join("postgres")
    }

    pub fn postgres_port(&self) -> u16 {
        self.place.postgres_port
    }

    pub fn http(&self) -> &str {
        &self.place.http
    }

    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    /// The connection string for psql and `onetrip check --connect`.
    pub fn conninfo(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname={}", self.place.postgres_port, self.place.database)
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Sets additional environment variables for the next start; the node's PostgreSQL inherits them.
    pub fn set_environment(&self, environment: Vec<(String, String)>) {
        *self.environment.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = environment;
    }

    /// Starts the process; does not wait until it is ready.
    pub fn start(&self) -> Result<()> {
        let mut child = self.child();
        if child.as_mut().is_some_and(|c| matches!(c.try_wait(), Ok(None))) {
            bail!("node {} is running already", self.place.region);
        }
        let log = self.open_log()?;
        let started = Command::new(&self.binary)
            // Lists of processes show this name; the demo's own path would tell a reader nothing.
            .arg0("onetrip")
            .arg("start")
            .arg("--until-stdin-closes")
            .arg("--data")
            .arg(&self.place.folder)
            .envs(self.environment.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).iter().cloned())
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C on the terminal reaches only the process that owns the cluster, which stops the nodes in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {}", self.binary.display()))?;
        std::fs::write(self.place.folder.join("node.pid"), format!("{}\n", started.id()))?;
        *child = Some(started);
        Ok(())
    }

    fn open_log(&self) -> Result<File> {
        let path = self.place.folder.join("node.log");
        OpenOptions::new().create(true).append(true).open(&path).with_context(|| format!("open {}", path.display()))
    }

    /// Starts it again and waits until it knows a leader and serves SQL.
    pub async fn restart(&self) -> Result<()> {
        self.start()?;
        self.wait_serving(Duration::from_secs(90)).await
    }

    /// Waits until the node knows a leader and its PostgreSQL accepts connections.
    pub async fn wait_serving(&self, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            self.check_not_ended()?;
            let why = match self.status().await {
                Ok(status) if status["leader"].is_null() => "it knows no leader".to_string(),
                Ok(_) if !self.has_postgres => return Ok(()),
                Ok(_) => match self.connect().await {
                    Ok(_) => return Ok(()),
                    Err(e) => format!("{e:#}"),
                },
                Err(e) => format!("{e:#}"),
            };
            if Instant::now() >= deadline {
                bail!("node {} does not serve after {} s: {why}", self.place.region, timeout.as_secs());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    pub fn pid(&self) -> Option<Pid> {
        let mut child = self.child();
        let child = child.as_mut()?;
        match child.try_wait() {
            Ok(None) => i32::try_from(child.id()).ok().map(Pid::from_raw),
            _ => None,
        }
    }

    pub fn running(&self) -> bool {
        self.pid().is_some()
    }

    /// Fails, with the end of the log, if the process was started and has ended by itself.
    pub(crate) fn check_not_ended(&self) -> Result<()> {
        if let Some(child) = self.child().as_mut() {
            if let Some(status) = child.try_wait()? {
                bail!("node {} ended ({status}): {}", self.place.region, self.log_tail(1));
            }
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().with_context(|| format!("node {} is not running", self.place.region))?;
        kill(pid, signal).with_context(|| format!("send {signal} to node {}", self.place.region))
    }

    /// Sends SIGKILL to the node; its PostgreSQL keeps running without it.
    pub fn kill9(&self) -> Result<()> {
        if let Some(mut child) = self.child().take() {
            let _ = child.kill();
            child.wait()?;
        }
        Ok(())
    }

    /// Sends SIGSTOP: the node hangs, and its connections stay open.  Returns when its last thread has stopped: on a
    /// busy machine the threads keep running until one of them has been scheduled and receives the signal.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        let pid = self.pid().with_context(|| format!("node {} has ended", self.region()))?;
        let deadline = Instant::now() + PAUSE_TIMEOUT;
        while !postmaster::all_threads_stopped(pid) {
            if Instant::now() >= deadline {
                bail!("node {} still runs {} s after SIGSTOP", self.region(), PAUSE_TIMEOUT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Sends SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    pub(crate) fn ask_to_stop(&self) {
        let _ = self.signal(Signal::SIGTERM);
    }

    /// Sends SIGTERM, and waits until the node and its PostgreSQL have ended.  If they do not end in time, kills both
    /// and returns an error.
    pub async fn stop(&self) -> Result<()> {
        self.ask_to_stop();
        let deadline = Instant::now() + STOP_TIMEOUT;
        let mut late = false;
        loop {
            if !self.running() {
                break;
            }
            if Instant::now() >= deadline {
                self.kill9()?;
                late = true;
                break;
            }
            tokio::time::sleep(POLL).await;
        }
        *self.child() = None;
        let left_alone = postmaster::postmaster(&self.postgres_data()).is_some();
        postmaster::stop_now(&self.postgres_data(), Duration::from_secs(20)).map_err(anyhow::Error::msg)?;
        if late {
            bail!("node {} did not stop within {} s and was killed", self.place.region, STOP_TIMEOUT.as_secs());
        }
        if left_alone {
            bail!("PostgreSQL of {} was left without its node and was stopped", self.place.region);
        }
        Ok(())
    }

    /// Waits until the process ends by itself.
    pub async fn wait_ended(&self, timeout: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(child) = self.child().as_mut() {
                if let Some(status) = child.try_wait()? {
                    return Ok(status);
                }
            } else {
                bail!("node {} was not started", self.place.region);
            }
            if Instant::now() >= deadline {
                bail!("node {} still runs after {} s", self.place.region, timeout.as_secs());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The postmaster of its PostgreSQL.
    pub fn postgres_pid(&self) -> Option<Pid> {
        postmaster::postmaster(&self.postgres_data())
    }

    /// Sends SIGKILL to the postmaster of its PostgreSQL; the server's other processes notice that and end.
    pub fn kill9_postgres(&self) -> Result<()> {
        let pid = self.postgres_pid().with_context(|| format!("PostgreSQL of {} is not running", self.place.region))?;
        kill(pid, Signal::SIGKILL).with_context(|| format!("kill PostgreSQL of {}", self.place.region))
    }

    pub async fn status(&self) -> Result<Value> {
        http::get_json(&self.place.http, "/status", STATUS_TIMEOUT).await
    }

    /// A client of the replicated database here.
    pub async fn connect(&self) -> Result<tokio_postgres::Client> {
        let conninfo = self.conninfo();
        let connecting = tokio_postgres::connect(&conninfo, tokio_postgres::NoTls);
        let (client, connection) = tokio::time::timeout(CONNECT_TIMEOUT, connecting)
            .await
            .with_context(|| format!("PostgreSQL of {} does not answer", self.place.region))?
            .with_context(|| format!("connect to PostgreSQL of {}", self.place.region))?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Appends settings to postgresql.conf, as a user would.
    pub fn add_postgres_settings(&self, settings: &[(String, String)]) -> Result<()> {
        let path = self.postgres_data().join("postgresql.conf");
        let mut file =
            OpenOptions::new().append(true).open(&path).with_context(|| format!("open {}", path.display()))?;
        for (name, value) in settings {
            writeln!(file, "{name} = '{}'", value.replace('\'', "''"))?;
        }
        Ok(())
    }

    /// Whether its process was ever started.
    pub(crate) fn was_started(&self) -> bool {
        self.place.folder.join("node.pid").exists()
    }

    /// All of `node.log` or `postgres.log`.
    pub fn log(&self, name: &str) -> Result<String> {
        let path = self.place.folder.join(name);
        let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.place.folder.join("node.log"), lines)
    }

    pub fn postgres_log_tail(&self, lines: usize) -> String {
        tail(&self.place.folder.join("postgres.log"), lines)
    }
}

fn tail(path: &Path, lines: usize) -> String {
    let text = std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
