//! Keeps one PostgreSQL server running: starts or adopts it, restarts it when it ends, shuts it down cleanly, and has
//! its data folder made anew (`rebuild.rs`) when there is none or when that is ordered.
//!
//! The server is a child process in a process group of its own, so that a Ctrl-C meant for the node does not reach it
//! first and the server survives the node.  One task watches it; [`Supervisor::state`] shows what that task knows.

use std::convert::Infallible;
use std::fs::OpenOptions;
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use onetrip_core::LogIndex;
use serde::Serialize;
use tokio::process::{Child, Command};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::hba;
use super::process::{exists, processes_of, read_pid_file, works_in};
use super::rebuild::{self, CopyState, Rebuild};
use super::{file_error, PostgresError, RebuildFrom, Server};
use crate::config::NodeConfig;

/// A first start that takes longer than this (crash recovery) goes on, but nothing waits for it any more.
const FIRST_START_WAIT: Duration = Duration::from_secs(20);
/// Fast shutdown ends sessions and writes a checkpoint, which may take minutes; the packages' unit waits for five.
/// Nobody waits that long in a lab.
const FAST_STOP_WAIT: Duration = Duration::from_secs(if cfg!(feature = "lab") { 20 } else { 240 });
/// The same where somebody waits for the node, to vote again, or for a copy in the place of this server.
const SOON_STOP_WAIT: Duration = Duration::from_secs(20);
const QUICK_STOP_WAIT: Duration = Duration::from_secs(5);
/// Within this time the processes of a server that has died should notice that by themselves, and end.
const ORPHANS_WAIT: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// After a copy that had begun.  Each try has another region's server write a checkpoint.
const COPY_BACKOFF_MAX: Duration = Duration::from_secs(120);
/// A copy that fails is logged only when the wait before the next try is longer than this.
const FIRST_TRIES: Duration = Duration::from_secs(1);
/// So many copies that are of no use are made while an old folder waits that could serve; then it does, and the next is
/// made after this long.
const COPIES_OF_NO_USE: u32 = 3;
const COPY_AGAIN_AFTER: Duration = Duration::from_secs(3600);
/// After a server has run this long, the backoff starts anew.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
const POLL_STARTING: Duration = Duration::from_millis(20);
const LOOK_AT_LOG_EVERY: Duration = Duration::from_secs(5);
const TRIM_LOG_AGAIN_AFTER: Duration = Duration::from_secs(300);
/// An adopted server is not a child process, so the supervisor has to poll to see that it has ended.
const POLL_ADOPTED: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerState {
    Starting,
    Ready,
    /// It ended by itself or could not be started; the next start is under way, or its time has not come yet.
    Restarting,
    /// The data folder is being copied from another member's.
    Copying,
    Stopping,
    Stopped,
}

#[derive(Debug, Clone, Serialize)]
pub struct PostgresState {
    pub state: ServerState,
    pub pid: Option<i32>,
    pub port: u16,
    /// The replicated database.
    pub database: String,
    /// How many times the server has been started again since this node started, after it ended by itself or could not
    /// be started.
    pub restarts: u64,
    /// The copy that is under way: from which member, and how far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyState>,
    /// Why it is not ready, if something is wrong.
    pub problem: Option<String>,
}

impl PostgresState {
    fn of(server: &Server, state: ServerState) -> PostgresState {
        let (port, database) = (server.port, server.database.clone());
        PostgresState { state, pid: None, port, database, restarts: 0, copy: None, problem: None }
    }
}

pub struct Supervisor {
    state: Arc<Mutex<PostgresState>>,
    server: Server,
    /// For how long to wait for a fast shutdown.
    stop: oneshot::Sender<Duration>,
    task: JoinHandle<()>,
}

struct Keeper {
    server: Server,
    state: Arc<Mutex<PostgresState>>,
    rebuild: Option<Rebuild>,
    /// What the last copy showed when it took its place.
    copied: Mutex<Option<LogIndex>>,
    given_up: Mutex<Option<GivenUp>>,
    /// Keeps a second node from running on the same folder; the kernel releases the lock when the node dies.
    _lock: Flock<std::fs::File>,
}

/// An order that is not carried out for the time being: copies are of no use, and the old folder serves again.  It may
/// be withdrawn meanwhile, and come again.
struct GivenUp {
    order: RebuildFrom,
    why: String,
    until: Instant,
}

struct Running {
    pid: Pid,
    /// `None` if the server was adopted.
    child: Option<Child>,
    log_from: u64,
    since: Instant,
}

impl Supervisor {
    /// Starts the server, or adopts the one that an earlier node of this folder left running.  On `Ok` it takes
    /// connections, is still recovering, has ended and is started again, or its data folder is copied from another
    /// member's.  `Err` says why it cannot be tried.
    pub async fn start(config: &NodeConfig, rebuild: Option<Rebuild>) -> Result<Self, PostgresError> {
        Self::start_server(Server::of(config)?, rebuild).await
    }

    /// Without `rebuild` there must be a data folder, and it is never replaced.
    pub async fn start_server(server: Server, rebuild: Option<Rebuild>) -> Result<Self, PostgresError> {
        let state = Arc::new(Mutex::new(PostgresState::of(&server, ServerState::Starting)));
        let lock = lock_folder(&server)?;
        rebuild::tidy(&server).await;
        let there = server.may_be_there();
        if !there && rebuild.is_none() {
            return Err(PostgresError::Refused(format!(
                "there is no PostgreSQL in {}: make one with `onetrip init`",
                server.data().display()
            )));
        }
        server.check()?;
        if there {
            rebuild::note_place(&server.node_folder)?;
        }
        let ordered = rebuild.as_ref().is_some_and(|r| r.orders.borrow().is_some());
        let keeper = Keeper {
            server: server.clone(),
            state: Arc::clone(&state),
            rebuild,
            copied: Mutex::default(),
            given_up: Mutex::default(),
            _lock: lock,
        };
        let running = match there && !ordered {
            true => keeper.first_start().await?,
            false => keeper.adopt(),
        };
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(keeper.keep(running, stopped).in_current_span());
        Ok(Self { state, server, stop, task })
    }

    pub fn state(&self) -> PostgresState {
        lock(&self.state).clone()
    }

    /// Has the server read its settings, `pg_hba.conf` and certificates again.  The error says why not.
    pub fn reload(&self) -> Result<(), String> {
        let state = self.state();
        let pid = state.pid.filter(|_| matches!(state.state, ServerState::Starting | ServerState::Ready));
        let pid = pid.ok_or("PostgreSQL does not run")?;
        kill(Pid::from_raw(pid), Signal::SIGHUP).map_err(|e| e.to_string())
    }

    /// Has the server look read-only to new transactions, or no longer.  An error says why it does not know.
    pub fn look_read_only(&self, read_only: bool) -> Result<(), String> {
        let before = std::mem::replace(&mut *self.server.looks_read_only(), read_only);
        let tell = || match self.server.write_settings(&self.server.data()) {
            Ok(true) => self.reload(),
            Ok(false) => Ok(()),
            Err(e) => Err(e.to_string()),
        };
        // Any other server gets it when it is ready; one that is being started might not handle the signal yet.
        let told = match self.state().state {
            ServerState::Ready => tell(),
            _ => Ok(()),
        };
        told.inspect_err(|_| *self.server.looks_read_only() = before)
    }

    pub fn looks_read_only(&self) -> bool {
        *self.server.looks_read_only()
    }

    /// A function that reads the state and does not borrow the supervisor, for whoever reports the state.
    pub fn watch(&self) -> impl Fn() -> PostgresState + Send + Sync + 'static {
        let state = Arc::clone(&self.state);
        move || lock(&state).clone()
    }

    /// Fast shutdown: PostgreSQL ends its sessions and writes a checkpoint.  If that takes too long, the server is
    /// stopped immediately, and recovers at its next start.
    pub async fn stop(self) {
        self.stop_within(FAST_STOP_WAIT).await;
    }

    /// The same for a node that has failed, and is waited for.
    pub async fn stop_soon(self) {
        self.stop_within(SOON_STOP_WAIT).await;
    }

    async fn stop_within(self, wait: Duration) {
        let _ = self.stop.send(wait);
        if let Err(e) = self.task.await {
            tracing::error!(error = %e, "the supervisor of PostgreSQL failed");
        }
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    // It is whole after each statement that changes it, so a panic elsewhere leaves it readable.
    state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn lock_folder(server: &Server) -> Result<Flock<std::fs::File>, PostgresError> {
    let path = server.node_folder.join("postgres.lock");
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(file_error("open", &path))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| {
        PostgresError::Refused(format!("another node runs on {} already ({e})", server.node_folder.display()))
    })
}

impl Keeper {
    /// Starts the server, and waits until it takes connections, but no longer than [`FIRST_START_WAIT`].
    /// `None`: its data folder is in disorder.  That is told, and the start tried again, by [`Keeper::work`].
    async fn first_start(&self) -> Result<Option<Running>, PostgresError> {
        let mut running = match self.adopt_or_start().await {
            Ok(running) => running,
            Err(e @ (PostgresError::Refused(_) | PostgresError::Program { .. })) => return Err(e),
            Err(_) => return Ok(None),
        };
        let deadline = Instant::now() + FIRST_START_WAIT;
        while !self.ready(&running) && self.ended(&mut running).is_none() && Instant::now() < deadline {
            tokio::time::sleep(POLL_STARTING).await;
        }
        // If it has ended, it is started again: the node is a voter all the same.
        Ok(Some(running))
    }

    async fn keep(self, mut running: Option<Running>, stopped: oneshot::Receiver<Duration>) {
        let asked = tokio::select! {
            biased;
            // A supervisor that is dropped without [`Supervisor::stop`] leaves the server to the next node.
            asked = stopped => asked.ok(),
            never = self.work(&mut running) => match never {},
        };
        if let Some(wait) = asked {
            self.stop(&mut running, wait).await;
        }
    }

    /// The future may be dropped at any await; `running` then says which server runs.
    async fn work(&self, running: &mut Option<Running>) -> Infallible {
        let mut orders = self.rebuild.as_ref().map(|r| r.orders.clone());
        let mut ordered = orders.as_mut().is_some_and(|o| o.borrow_and_update().is_some());
        let mut backoff = BACKOFF_MIN;
        loop {
            if ordered && self.copy_again_at().is_none_or(|at| at <= Instant::now()) {
                *lock(&self.given_up) = None;
            }
            if let (Some(rebuild), Some(orders)) = (&self.rebuild, &mut orders) {
                let is_there = self.server.may_be_there();
                if let Some(why) = self.why_not_copied().filter(|_| ordered && is_there) {
                    // The old folder can at least be read.
                    tracing::error!("PostgreSQL is not copied anew: {why}");
                    lock(&self.state).problem = Some(why);
                    ordered = false;
                }
                if ordered || !is_there {
                    self.stop(running, SOON_STOP_WAIT).await;
                    let given_up = self.remake(rebuild, orders).await;
                    *lock(&self.given_up) = given_up;
                    ordered = false;
                }
            }
            let copy_again_at = self.copy_again_at();
            let end = match running {
                Some(server) => tokio::select! {
                    biased;
                    () = next_order(&mut orders, copy_again_at) => None,
                    why = self.watch(server) => {
                        tracing::error!(pid = %server.pid, why, "PostgreSQL ended by itself");
                        if server.since.elapsed() > HEALTHY_AFTER {
                            backoff = BACKOFF_MIN;
                        }
                        Some(why)
                    }
                },
                None => match self.adopt_or_start().await {
                    Ok(started) => {
                        *running = Some(started);
                        continue;
                    }
                    Err(e) => {
                        tracing::error!(error = %e, "cannot start PostgreSQL");
                        Some(e.to_string())
                    }
                },
            };
            let Some(why) = end else {
                ordered = self.is_ordered();
                if !ordered {
                    // It can only be why the order was not carried out.
                    lock(&self.state).problem = None;
                }
                continue;
            };
            *running = None;
            self.set(ServerState::Restarting, None, Some(why));
            tokio::select! {
                biased;
                () = next_order(&mut orders, copy_again_at) => ordered = self.is_ordered(),
                () = tokio::time::sleep(backoff) => {}
            }
            backoff = (backoff * 2).min(BACKOFF_MAX);
            lock(&self.state).restarts += 1;
        }
    }

    /// Makes the data folder anew, as often as it takes until it shows what the last order asks for, or until the order
    /// is withdrawn.  If copies are of no use, and the old folder could serve, that is given up.
    async fn remake(&self, rebuild: &Rebuild, orders: &mut watch::Receiver<Option<RebuildFrom>>) -> Option<GivenUp> {
        let (mut backoff, mut of_no_use) = (BACKOFF_MIN, 0);
        self.set(ServerState::Copying, None, None);
        loop {
            let order = *orders.borrow_and_update();
            if self.is_withdrawn(order) {
                return None;
            }
            let report = |copy, problem| {
                let mut state = lock(&self.state);
                state.copy = Some(copy);
                state.problem = problem;
            };
            let result =
                rebuild::copy(&self.server, &rebuild.donors, order, self.withdrawn(orders.clone()), report).await;
            lock(&self.state).copy = None;
            match result {
                Ok(None) => tracing::info!("the order to copy PostgreSQL's folder was withdrawn"),
                Ok(Some(shows)) => {
                    tracing::info!(index = %shows, "PostgreSQL's folder is made anew");
                    *lock(&self.copied) = Some(shows);
                    // An order that has come in the meantime may ask for more than that.
                    let met = orders.borrow_and_update().is_none_or(|order| order.at_least <= shows);
                    if met {
                        return None;
                    }
                }
                Err(e) => {
                    // At first, the other members may not have reported their positions yet.
                    if backoff > FIRST_TRIES {
                        tracing::error!(error = %e, "cannot make PostgreSQL's folder anew");
                    }
                    of_no_use += u32::from(matches!(e, PostgresError::NoRoom { .. } | PostgresError::OfNoUse(_)));
                    let could_serve = order.filter(|_| rebuild::could_serve(&self.server, order));
                    if let Some(order) = could_serve.filter(|_| of_no_use >= COPIES_OF_NO_USE) {
                        let why = format!("{e}; the old folder serves again, and the next try is within an hour");
                        tracing::error!("PostgreSQL is not copied anew: {why}");
                        return Some(GivenUp { order, why, until: Instant::now() + COPY_AGAIN_AFTER });
                    }
                    lock(&self.state).problem = Some(e.to_string());
                    tokio::select! {
                        Ok(()) = orders.changed() => {}
                        () = tokio::time::sleep(backoff) => {}
                    }
                    backoff = longer(backoff, &e);
                }
            }
        }
    }

    fn is_withdrawn(&self, order: Option<RebuildFrom>) -> bool {
        order.is_none() && self.server.may_be_there()
    }

    /// Resolves when the old folder is to serve again.
    async fn withdrawn(&self, mut orders: watch::Receiver<Option<RebuildFrom>>) {
        loop {
            let order = *orders.borrow_and_update();
            if self.is_withdrawn(order) {
                return;
            }
            if orders.changed().await.is_err() {
                // The core thread is gone and the node is ending.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Why an order that is in force is not carried out, although this server runs.
    fn why_not_copied(&self) -> Option<String> {
        let given_up = || self.of_given_up(|given_up| given_up.why.clone());
        let why = || rebuild::in_the_way(&self.server.node_folder).or_else(given_up);
        self.is_ordered().then(why).flatten()
    }

    /// When the order that is in force is carried out again, if it is given up.
    fn copy_again_at(&self) -> Option<Instant> {
        self.of_given_up(|given_up| given_up.until)
    }

    fn of_given_up<T>(&self, what: impl FnOnce(&GivenUp) -> T) -> Option<T> {
        let order = self.order()?;
        lock(&self.given_up).as_ref().filter(|given_up| given_up.order == order).map(what)
    }

    fn order(&self) -> Option<RebuildFrom> {
        self.rebuild.as_ref().and_then(|rebuild| *rebuild.orders.borrow())
    }

    /// An order of which the server is ahead may have come before its apply worker could say so.
    fn is_ordered(&self) -> bool {
        let is_met = |order: RebuildFrom| !order.keep_old && Some(order.at_least) <= *lock(&self.copied);
        self.order().is_some_and(|order| !is_met(order))
    }

    fn set(&self, state: ServerState, pid: Option<Pid>, problem: Option<String>) {
        let not_copied = self.why_not_copied().filter(|_| state == ServerState::Ready);
        let mut shared = lock(&self.state);
        shared.state = state;
        shared.pid = pid.map(Pid::as_raw);
        shared.problem = problem.or(not_copied);
    }

    /// The server that an earlier node of this folder left running.
    fn adopt(&self) -> Option<Running> {
        let data = self.server.data();
        let file = read_pid_file(&data).filter(|file| works_in(file.pid, &data))?;
        tracing::info!(pid = %file.pid, "adopted the running PostgreSQL");
        self.set(ServerState::Starting, Some(file.pid), None);
        // It goes on writing to its log; only what it logs from now on can explain its end.
        let log_from = self.server.log_end();
        Some(Running { pid: file.pid, child: None, log_from, since: Instant::now() })
    }

    async fn adopt_or_start(&self) -> Result<Running, PostgresError> {
        if let Some(running) = self.adopt() {
            return Ok(running);
        }
        let data = self.server.data();
        if let Some(file) = read_pid_file(&data) {
            self.clear_what_died(&file.pid).await?;
        }
        self.server.write_settings(&data)?;
        hba::write_map(&data)?;
        self.check_port()?;
        self.spawn()
    }

    /// The server of this folder died without cleaning up.  Its other processes must be gone before the next server can
    /// start, and a process that has been given its process id since must not be taken for it.
    async fn clear_what_died(&self, recorded: &Pid) -> Result<(), PostgresError> {
        let data = self.server.data();
        let deadline = Instant::now() + ORPHANS_WAIT;
        loop {
            let left = processes_of(&data);
            if left.is_empty() {
                break;
            }
            if Instant::now() >= deadline {
                for pid in &left {
                    let _ = kill(*pid, Signal::SIGKILL);
                }
                tracing::warn!(?left, "killed what a dead PostgreSQL had left");
                tokio::time::sleep(POLL_STARTING).await;
                break;
            }
            tokio::time::sleep(POLL_STARTING).await;
        }
        // PostgreSQL itself removes a lock file whose process is gone.  It cannot tell that the process id belongs to
        // another process by now, or to a zombie that nothing reaps (in a container without init).
        if exists(*recorded) && processes_of(&data).is_empty() {
            let socket_lock = self.server.node_folder.join(format!(".s.PGSQL.{}.lock", self.server.port));
            for path in [data.join("postmaster.pid"), socket_lock] {
                match std::fs::remove_file(&path) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                        return Err(file_error("remove the stale lock", &path)(e));
                    }
                    _ => {}
                }
            }
            tracing::warn!(pid = %recorded, "removed stale locks: their process is not PostgreSQL");
        }
        Ok(())
    }

    fn check_port(&self) -> Result<(), PostgresError> {
        let Server { listen, port, .. } = &self.server;
        for address in listen.split(',').map(str::trim).filter(|a| !a.is_empty()) {
            let address = if address == "*" { "0.0.0.0" } else { address };
            if let Err(e) = TcpListener::bind((address, *port)) {
                let why = match e.kind() {
                    std::io::ErrorKind::AddrInUse => "it is in use by another program".to_string(),
                    _ => e.to_string(),
                };
                return Err(PostgresError::Refused(format!(
                    "PostgreSQL cannot listen on {address}:{port}: {why}; end that program or set another port in node.toml"
                )));
            }
        }
        Ok(())
    }

    fn spawn(&self) -> Result<Running, PostgresError> {
        let log_from = self.server.rotate_log();
        let path = self.server.log();
        let log = OpenOptions::new().create(true).append(true).open(&path).map_err(file_error("open", &path))?;
        let again = log.try_clone().map_err(file_error("open", &path))?;
        let mut command = Command::from(self.server.command_of_server());
        let (settings, warnings) = self.server.over_files(&self.server.data());
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        for (name, value) in settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command
            .arg("-D")
            .arg(self.server.data())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(again)
            .process_group(0)
            .kill_on_drop(false);
        let child = command
            .spawn()
            .map_err(|source| PostgresError::Program { program: self.server.program("postgres"), source })?;
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .map(Pid::from_raw)
            .expect("a child that was not waited for has a process id");
        tracing::info!(%pid, port = self.server.port, "started PostgreSQL");
        self.set(ServerState::Starting, Some(pid), None);
        Ok(Running { pid, child: Some(child), log_from, since: Instant::now() })
    }

    /// Whether the server takes connections.  If it does, notes that in the state.
    fn ready(&self, running: &Running) -> bool {
        let ready = read_pid_file(&self.server.data()).is_some_and(|f| f.pid == running.pid && f.status == "ready");
        if ready && lock(&self.state).state != ServerState::Ready {
            tracing::info!(pid = %running.pid, "PostgreSQL is ready");
            self.set(ServerState::Ready, Some(running.pid), None);
            self.settle_settings(running.pid);
        }
        ready
    }

    /// Since the server's settings were written, it may have been told to look otherwise, before there was anybody to
    /// tell ([`Supervisor::look_read_only`]).
    fn settle_settings(&self, pid: Pid) {
        let told = match self.server.write_settings(&self.server.data()) {
            Ok(true) => kill(pid, Signal::SIGHUP).map_err(|e| e.to_string()),
            Ok(false) => Ok(()),
            Err(e) => Err(e.to_string()),
        };
        if let Err(e) = told {
            tracing::warn!("PostgreSQL may have older settings than it is to have: {e}");
        }
    }

    /// Why the server ended, if it has.
    fn ended(&self, running: &mut Running) -> Option<String> {
        let status = match &mut running.child {
            Some(child) => match child.try_wait() {
                Ok(Some(status)) => status.to_string(),
                Ok(None) => return None,
                Err(e) => e.to_string(),
            },
            None if works_in(running.pid, &self.server.data()) => return None,
            None => "it was not this node's child".to_string(),
        };
        Some(self.why(running, &status))
    }

    fn why(&self, running: &Running, status: &str) -> String {
        match self.server.reason_in_log(running.log_from) {
            Some(reason) => format!("{reason} [{status}]"),
            None => status.to_string(),
        }
    }

    /// Returns when the server has ended, with the reason.  Cancel-safe.
    async fn watch(&self, running: &mut Running) -> String {
        let mut trim_at = Instant::now() + LOOK_AT_LOG_EVERY;
        loop {
            if let Some(why) = self.ended(running) {
                return why;
            }
            if !self.ready(running) {
                tokio::time::sleep(POLL_STARTING).await;
                continue;
            }
            match &mut running.child {
                Some(child) => match tokio::time::timeout(LOOK_AT_LOG_EVERY, child.wait()).await {
                    Ok(ended) => {
                        let status = ended.map_or_else(|e| e.to_string(), |s| s.to_string());
                        return self.why(running, &status);
                    }
                    Err(_) => self.trim_log(&mut trim_at).await,
                },
                None => {
                    tokio::time::sleep(POLL_ADOPTED).await;
                    self.trim_log(&mut trim_at).await;
                }
            }
        }
    }

    async fn trim_log(&self, at: &mut Instant) {
        if Instant::now() < *at {
            return;
        }
        let server = self.server.clone();
        let trimmed = tokio::task::spawn_blocking(move || server.trim_log()).await;
        let trimmed = trimmed.unwrap_or_else(|e| Err(std::io::Error::other(e)));
        *at = Instant::now() + if trimmed.is_ok() { LOOK_AT_LOG_EVERY } else { TRIM_LOG_AGAIN_AFTER };
        if let Err(e) = trimmed {
            tracing::warn!("cannot shorten {}: {e}", self.server.log().display());
        }
    }

    /// Stops the server, if one runs.
    async fn stop(&self, running: &mut Option<Running>, wait: Duration) {
        let Some(server) = running else {
            return self.set(ServerState::Stopped, None, None);
        };
        self.set(ServerState::Stopping, Some(server.pid), None);
        for (signal, wait) in [(Signal::SIGINT, wait), (Signal::SIGQUIT, QUICK_STOP_WAIT)] {
            if self.ended(server).is_none() {
                let _ = kill(server.pid, signal);
            }
            let deadline = Instant::now() + wait;
            while Instant::now() < deadline {
                if self.ended(server).is_some() && processes_of(&self.server.data()).is_empty() {
                    tracing::info!(pid = %server.pid, "PostgreSQL has stopped");
                    *running = None;
                    return self.set(ServerState::Stopped, None, None);
                }
                tokio::time::sleep(POLL_STARTING).await;
            }
            tracing::warn!(pid = %server.pid, "PostgreSQL did not stop on {signal}");
        }
        for pid in processes_of(&self.server.data()) {
            let _ = kill(pid, Signal::SIGKILL);
        }
        if let Some(child) = &mut server.child {
            let _ = child.wait().await;
        }
        *running = None;
        self.set(ServerState::Stopped, None, Some("it had to be killed; it recovers at its next start".into()));
    }
}

/// The wait before the next try to copy, after one that failed.
fn longer(backoff: Duration, e: &PostgresError) -> Duration {
    let has_begun = matches!(e, PostgresError::NoRoom { .. } | PostgresError::Copy(_) | PostgresError::OfNoUse(_));
    let most = if has_begun { COPY_BACKOFF_MAX } else { BACKOFF_MAX };
    (backoff * 2).min(most)
}

/// Resolves when the order has changed, or is to be carried out again.
async fn next_order(orders: &mut Option<watch::Receiver<Option<RebuildFrom>>>, again_at: Option<Instant>) {
    let changed = async {
        let Some(orders) = orders else { return std::future::pending().await };
        // If there is no sender any more, the core thread is gone and the node is ending.
        if orders.changed().await.is_err() {
            std::future::pending().await
        }
    };
    match again_at {
        Some(at) => tokio::select! {
            () = changed => {}
            () = tokio::time::sleep_until(at.into()) => {}
        },
        None => changed.await,
    }
}

#[cfg(test)]
mod tests;
