//! Starts the parts of a node in order, and stops them in the reverse order.
//!
//! Invariants:
//! - One node for one data directory at a time (a lock that the kernel releases with the process).
//! - Ports and sockets are taken before the first vote could be given, so a misconfigured node does no harm.

use crate::access::{Access, Door};
use crate::admin::Admin;
use crate::agent::{AgentLimits, AgentServer};
use crate::cluster::{self, Latest};
use crate::config::NodeConfig;
use crate::core_thread::CoreThread;
use crate::error::{Error, Result};
use crate::facts::Facts;
use crate::files;
use crate::http::{Http, PostgresWatch, Recent};
use crate::inbox::{AdminReply, AdminRequest, Event, Inbox};
use crate::no_majority;
use crate::postgres::{self, Counts, Rebuild, RebuildFrom, Supervisor};
use crate::rebuild::OtherMembers;
use crate::space::Disks;
use crate::span;
use crate::tls::HttpTls;
use crate::transport::Transport;
use nix::fcntl::{Flock, FlockArg};
use std::convert::Infallible;
use std::fs::File;
use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{Instrument, Span};

/// A running node without its PostgreSQL.
pub struct Node {
    /// As it was at the start.
    config: Arc<NodeConfig>,
    /// With what has changed since.
    present: NodeConfig,
    inbox: Inbox,
    transport: Arc<Transport>,
    door: Arc<Door>,
    http_tls: Arc<HttpTls>,
    agent_limits: Arc<AgentLimits>,
    http: Arc<Http>,
    postgres: Arc<PostgresWatch>,
    rebuild_orders: watch::Receiver<Option<RebuildFrom>>,
    core: JoinHandle<()>,
    /// `None` once its answer has been taken.
    core_ended: Option<oneshot::Receiver<Result<()>>>,
    io: JoinHandle<()>,
    io_stop: oneshot::Sender<()>,
    delays: Option<JoinHandle<()>>,
    span: Span,
    _lock: Flock<File>,
}

/// Runs a node and its PostgreSQL until `shutdown` resolves or the node fails.  At each message of `reloads` what can
/// change while it runs is read again.
pub async fn run(config: NodeConfig, shutdown: impl Future<Output = ()>, reloads: mpsc::Receiver<()>) -> Result<()> {
    let facts = || config.postgres.as_ref().map(|p| postgres::facts(&p.bin_dir, &config.data_dir)).transpose();
    let facts = span::of(&config).in_scope(facts)?;
    let node = Node::start(config, facts)?;
    let span = node.span.clone();
    run_started(node, shutdown, reloads).instrument(span).await
}

async fn run_started(
    mut node: Node,
    shutdown: impl Future<Output = ()>,
    mut reloads: mpsc::Receiver<()>,
) -> Result<()> {
    let supervisor = match node.config.postgres {
        None => None,
        Some(_) => match Supervisor::start(&node.config, Some(node.rebuild())).await {
            Ok(supervisor) => Some(supervisor),
            Err(e) => {
                node.stop().await?;
                return Err(e.into());
            }
        },
    };
    if let Some(supervisor) = &supervisor {
        // Set once, here.
        let _ = node.postgres.set(Box::new(supervisor.watch()));
        // The node before this one may have left it otherwise.
        if let Err(e) = supervisor.look_read_only(false) {
            tracing::warn!("PostgreSQL has the settings of an earlier node: {e}");
        }
    }
    tokio::pin!(shutdown);
    let result = {
        let looks = look_read_only(&node, supervisor.as_ref());
        tokio::pin!(looks);
        loop {
            tokio::select! {
                () = &mut shutdown => break Ok(()),
                result = node.failed() => break result,
                Some(()) = reloads.recv() => node.reload(supervisor.as_ref()).await,
                never = &mut looks => match never {},
            }
        }
    };
    // PostgreSQL first: what its backends wait for can still be decided while they end.
    if let Some(supervisor) = supervisor {
        match result {
            Ok(()) => supervisor.stop().await,
            Err(_) => supervisor.stop_soon().await,
        }
    }
    match result {
        Ok(()) => node.stop().await,
        Err(e) => {
            tracing::error!("the node stops: {e}");
            Err(e)
        }
    }
}

/// Of the server of a replica, and of one that is not to, nothing is asked.
fn look_read_only<'a>(node: &Node, supervisor: Option<&'a Supervisor>) -> impl Future<Output = Infallible> + use<'a> {
    let postgres = node.config.postgres.as_ref();
    let wanted = postgres.is_some_and(|p| p.read_only_without_majority && !p.read_only);
    let http = node.http.clone();
    async move {
        match supervisor.filter(|_| wanted) {
            Some(supervisor) => no_majority::watch(http, supervisor).await,
            None => std::future::pending().await,
        }
    }
}

impl Node {
    /// `facts`: those of its PostgreSQL, if it is to have one.
    pub fn start(config: NodeConfig, facts: Option<Facts>) -> Result<Node> {
        config.check_runs_here()?;
        let span = span::of(&config);
        span.clone().in_scope(|| Node::start_within(span, Arc::new(config), facts))
    }

    fn start_within(span: Span, config: Arc<NodeConfig>, facts: Option<Facts>) -> Result<Node> {
        let files = files::raise_limit();
        let lock = lock_data_dir(&config)?;
        let (inbox, events) = Inbox::new(config.memory.from_peers_bytes);
        let transport = Transport::new(&config, facts, inbox.clone())?;
        // A port that is taken is found before the log is read, which may take long; nothing listens until it is read.
        drop((listen(config.listen, "the peer port")?, listen(config.http, "the HTTP port")?));
        let door = Door::new(Access::of(&config)?);
        let http_tls = Arc::new(HttpTls::of(&config)?);
        let (rebuild, rebuild_orders) = watch::channel(None);
        let core = CoreThread::open(config.clone(), transport.clone(), inbox.clone(), rebuild)?;
        let peers = listen(config.listen, "the peer port")?;
        let http = listen(config.http, "the HTTP port")?;
        let agents = listen_here(&config.agent_socket())?;
        let operators = listen_here(&config.admin_socket())?;

        let postgres = Arc::new(PostgresWatch::new());
        let pages = Arc::new(Http {
            access: door.clone(),
            tls: http_tls.clone(),
            config: config.clone(),
            transport: transport.clone(),
            inbox: inbox.clone(),
            postgres: postgres.clone(),
            counts: Counts::of(&config),
            disks: Disks::watch(&config)?,
            latest: Latest::default(),
            started: Instant::now(),
            told: Recent::default(),
        });
        let own = Arc::downgrade(&pages);
        transport.set_own_status(Box::new(move || {
            let own = own.clone();
            Box::pin(async move { cluster::own_status(&*own.upgrade()?).await })
        }));
        let agent_limits = Arc::new(AgentLimits::new(&config.memory, files));
        let server = AgentServer {
            me: config.node,
            region: config.region.clone(),
            folder: config.data_dir.clone(),
            data: config.postgres.is_some().then(|| config.data_dir.join("postgres")),
            max_entry_bytes: config.max_entry_bytes,
            inbox: inbox.clone(),
            transport: transport.clone(),
            limits: agent_limits.clone(),
            http: pages.clone(),
            told: Default::default(),
        };
        let http_pages = pages.clone();
        let admin =
            Admin { config: config.clone(), transport: transport.clone(), inbox: inbox.clone(), http: pages.clone() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Error::Internal(format!("starting the io runtime: {e}")))?;
        let registered = {
            let _inside = runtime.enter();
            let register = || -> std::io::Result<_> {
                Ok((
                    tokio::net::TcpListener::from_std(peers)?,
                    tokio::net::TcpListener::from_std(http)?,
                    tokio::net::UnixListener::from_std(agents)?,
                    tokio::net::UnixListener::from_std(operators)?,
                ))
            };
            register().map_err(|source| Error::Listen { what: "registering sockets".into(), source })?
        };
        let delays = transport.start_delays()?;
        let (io_stop, io_stopped) = oneshot::channel::<()>();
        let (tell_end, core_ended) = oneshot::channel();
        let io_transport = transport.clone();
        let io = span::spawn_thread("onetrip-io", move || {
            let (peers, http, agents, operators) = registered;
            runtime.spawn(io_transport.run(peers));
            runtime.spawn(pages.run(http));
            runtime.spawn(Arc::new(server).run(agents));
            runtime.spawn(Arc::new(admin).run(operators));
            // It returns when the node is stopped, or was dropped.
            let _ = runtime.block_on(io_stopped);
            // A resolver that does not answer is not waited for.
            runtime.shutdown_background();
        })?;
        let core = span::spawn_thread("onetrip-core", move || {
            let mut core = core;
            let run = std::panic::AssertUnwindSafe(|| core.run(&events));
            let result = std::panic::catch_unwind(run).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                let broken = || Error::Internal(format!("an invariant is broken: {text}"));
                Err(core.take_damage().unwrap_or_else(broken))
            });
            drop(core);
            // Nobody listening means that the node was dropped.
            let _ = tell_end.send(result);
        })?;
        tracing::info!(listen = %config.listen, http = %config.http, "node started");
        let core_ended = Some(core_ended);
        Ok(Node {
            present: (*config).clone(),
            config,
            inbox,
            transport,
            door,
            http_tls,
            agent_limits,
            http: http_pages,
            postgres,
            rebuild_orders,
            core,
            core_ended,
            io,
            io_stop,
            delays,
            span,
            _lock: lock,
        })
    }

    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// Reads again what can change while the node runs: bounds in node.toml, the token of the HTTP port, certificates,
    /// and PostgreSQL's own files.  The log says what of node.toml has changed, and what of that takes a restart.
    async fn reload(&mut self, supervisor: Option<&Supervisor>) {
        match NodeConfig::load(&self.config.data_dir) {
            Ok(new) => self.use_changes(&new).await,
            Err(e) => tracing::error!("node.toml cannot be used, and this node would not start with it: {e}"),
        }
        match Access::of(&self.config) {
            Ok(access) => self.door.set(access),
            Err(e) => tracing::error!("the HTTP port asks for the same as before: {e}"),
        }
        match self.transport.reload_tls(&self.config) {
            Ok(()) if self.config.tls => tracing::info!("new connections use the certificates in tls/"),
            Ok(()) => {}
            Err(e) => tracing::error!("the certificates stay as they were: {e}"),
        }
        match self.http_tls.reload(&self.config) {
            Ok(()) if self.config.http_tls => {
                tracing::info!("new connections to the HTTP port get its present certificate")
            }
            Ok(()) => {}
            Err(e) => tracing::error!("the certificate of the HTTP port stays as it was: {e}"),
        }
        match supervisor.map(Supervisor::reload) {
            Some(Ok(())) => {
                tracing::info!("told PostgreSQL to read its settings again; postgres.log says what changed")
            }
            Some(Err(why)) => tracing::warn!("PostgreSQL did not read its settings again: {why}"),
            None => {}
        }
    }

    async fn use_changes(&mut self, new: &NodeConfig) {
        let present = self.present.with_changes(new);
        let (used, left) = (self.present.changes(&present), present.changes(new));
        let NodeConfig { log_bytes_max, memory, .. } = present;
        self.inbox.set_bytes_max(memory.from_peers_bytes);
        self.transport.set_queue_bytes_max(memory.to_each_peer_bytes as usize);
        self.agent_limits.set(&memory);
        self.inbox.send(Event::Bounds { log_bytes_max, memory }).await;
        self.present = present;
        if used.is_empty() && left.is_empty() {
            tracing::info!("node.toml is as it was");
        }
        if !used.is_empty() {
            tracing::info!("node.toml has changed; the node uses: {}", used.join(", "));
        }
        if !left.is_empty() {
            tracing::warn!("node.toml has changed; restart the node to use: {}", left.join(", "));
        }
    }

    /// Orders to make PostgreSQL's data folder anew.
    pub fn rebuild_orders(&self) -> watch::Receiver<Option<RebuildFrom>> {
        self.rebuild_orders.clone()
    }

    /// Where orders to make PostgreSQL's data folder anew come from, and who finds members to copy it from.
    fn rebuild(&self) -> Rebuild {
        let donors =
            OtherMembers { config: self.config.clone(), transport: self.transport.clone(), inbox: self.inbox.clone() };
        Rebuild { orders: self.rebuild_orders(), donors: Arc::new(donors) }
    }

    /// Asks the core thread for a change of the membership, or for the table.
    pub async fn admin(&self, request: AdminRequest) -> std::result::Result<AdminReply, String> {
        let (answer, answered) = oneshot::channel();
        self.inbox.send(Event::Admin(request, answer)).await;
        answered.await.unwrap_or(Err("the node is stopping".into()))
    }

    /// Resolves when the node cannot go on, with the reason.
    pub async fn failed(&mut self) -> Result<()> {
        match self.core_result().await {
            Ok(()) => Err(Error::Internal("the core thread ended by itself".into())),
            Err(e) => Err(e),
        }
    }

    async fn core_result(&mut self) -> Result<()> {
        let Some(ended) = &mut self.core_ended else {
            return Err(Error::Internal("the core thread had failed before".into()));
        };
        let result = ended.await.unwrap_or_else(|_| Err(Error::Internal("the core thread is gone".into())));
        self.core_ended = None;
        result
    }

    /// Decides what is in the inbox, writes a checkpoint, closes the log, and ends all threads.
    pub async fn stop(mut self) -> Result<()> {
        self.inbox.send(Event::Stop).await;
        let result = self.core_result().await;
        let _ = self.io_stop.send(());
        self.transport.stop_delays();
        for thread in [Some(self.core), Some(self.io), self.delays].into_iter().flatten() {
            // They have been told to end and wait for nothing else.
            if thread.join().is_err() {
                return Err(Error::Internal("a thread of the node panicked".into()));
            }
        }
        for socket in [self.config.agent_socket(), self.config.admin_socket()] {
            let _ = std::fs::remove_file(socket);
        }
        result
    }
}

fn lock_data_dir(config: &NodeConfig) -> Result<Flock<File>> {
    let file = config.data_dir.join("node.lock");
    let opened = File::options().create(true).truncate(false).write(true).open(&file);
    let opened = opened.map_err(Error::disk(&file, "opening"))?;
    Flock::lock(opened, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| Error::Listen {
        what: format!("{}: another node runs on this folder", config.data_dir.display()),
        source: errno.into(),
    })
}

fn listen(address: SocketAddr, what: &str) -> Result<std::net::TcpListener> {
    let listen = || {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|source| Error::Listen { what: format!("{what} {address}"), source })
}

/// Makes a socket for this user and root.  A file left by an earlier life of the node is replaced; the caller holds the
/// data directory's lock.
fn listen_here(path: &Path) -> Result<std::os::unix::net::UnixListener> {
    let listen = || {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = std::os::unix::net::UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|source| Error::Listen { what: format!("the socket {}", path.display()), source })
}
