//! The agent socket, through which PostgreSQL reaches its node (`docs/agent-protocol.md`).
//!
//! This module reads and checks frames and hands them to the core thread, whose router (`onetrip_core::router`) knows
//! who waits for what.  The core thread writes answers straight into the socket (`send_queue`).
//!
//! Invariants:
//! - Only the node's own uid gets in, and of that only the node's own server.
//! - Of each connection the core thread hears `Opened` first, once HELLO has come, and `Closed` last; in between it
//!   gets only complete frames that are allowed there.  Anything else ends the connection, is logged, and harms nothing
//!   else.
//! - Proposals that are being read, or are open, take at most `proposals_bytes` of memory, or one of the largest; one
//!   that would exceed this is refused before it is read.

mod socket;

use crate::cluster;
use crate::error::{Error, Result};
use crate::http::Http;
use crate::inbox::{Event, Inbox};
use crate::memory::Memory;
use crate::postgres::folder_of;
use crate::send_queue::{NotSent, SendQueue};
use crate::stop::ordered;
use crate::transport::Transport;
use bytes::{Buf, Bytes, BytesMut};
use nix::unistd::Pid;
use onetrip_core::agent::{
    bytes_max, is_large, take_frame, FromPostgres, Rehearsal, Role, ToPostgres, VerdictOutcome, VERSION,
};
use onetrip_core::router::{self, refusal_as, ConnId, Read};
use onetrip_core::{Entry, NodeId, RegionId, TxnId};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};

pub use socket::AgentSocket;

pub type AgentQueue = SendQueue<AgentSocket>;
pub type AgentEvent = router::AgentEvent<AgentQueue>;

/// Logs an event of the router.
pub fn report(event: router::Event) {
    match event {
        router::Event::WorkerConnected { applied, committed, missed } => {
            tracing::info!(index = %applied, %committed, missed, "apply worker connected");
        }
        router::Event::WorkerDisconnected => tracing::info!("apply worker disconnected"),
        router::Event::WorkerStartsOver { at, txn } => {
            tracing::info!(index = %at, %txn, "a backend ended after its verdict; the apply worker starts over");
        }
        router::Event::WorkerLeavesOut { at, left_out } => {
            tracing::info!(index = %at, %left_out, "the apply worker starts over and leaves an entry out");
        }
        router::Event::SecondProposal(txn) => {
            tracing::warn!(%txn, "ended an agent connection: a second proposal while one is open");
        }
        router::Event::NeedsRebuild { applied, problem } => {
            tracing::warn!(index = %applied, "{problem}")
        }
    }
}

impl router::Outbox for AgentQueue {
    /// PostgreSQL would wait for a frame that was lost.  Once its connection has ended it connects again, and says
    /// where it stands.
    fn send<const N: usize>(&self, frame: [Bytes; N]) -> bool {
        let sent = SendQueue::send(self, frame);
        if sent == Err(NotSent::Full) {
            let waiting = self.waiting_bytes();
            tracing::warn!("ended an agent connection: it takes nothing, and {waiting} bytes wait for it");
            SendQueue::close(self);
        }
        sent.is_ok()
    }
    /// An entry may be larger than any bound, and an answer behind it must not be the end of the connection: the worker
    /// would ask again on the next one, behind the same entry.
    fn feed<const N: usize>(&self, entries: Vec<[Bytes; N]>) -> bool {
        self.send_beyond(entries.into_iter().flatten()).is_ok()
    }
    fn feed_bytes_max(&self) -> usize {
        self.bytes_max()
    }
    fn close(&self) {
        SendQueue::close(self);
    }
}

pub struct AgentServer {
    pub me: NodeId,
    pub region: RegionId,
    /// The node's data directory.
    pub folder: PathBuf,
    /// The data folder of its server, if it has one.
    pub data: Option<PathBuf>,
    pub max_entry_bytes: u64,
    pub inbox: Inbox,
    pub transport: Arc<Transport>,
    pub limits: Arc<AgentLimits>,
    /// Knows how the cluster is.
    pub http: Arc<Http>,
    /// Why a process was last taken for one of another server, as the log has it: it tries again and again.
    pub told: Mutex<String>,
}

/// How many connections PostgreSQL has open, and how much memory they and its proposals may take.
#[derive(Default)]
pub struct AgentLimits {
    connections: AtomicUsize,
    connections_max: usize,
    open_bytes: Arc<AtomicU64>,
    open_bytes_max: AtomicU64,
    /// Of a connection: the entries that its worker is sent ahead of its position, and apart from those the answers
    /// that wait.  A client waits for each of its answers, so that these are few and small.
    queue_bytes_max: Arc<AtomicUsize>,
}

impl AgentLimits {
    /// `files`: how many the node may have open.  Half of them are left to its log, its peers and whoever asks it.
    pub fn new(memory: &Memory, files: u64) -> AgentLimits {
        let connections_max = usize::try_from(files / 2).unwrap_or(usize::MAX).min(CONNECTIONS_MAX);
        let limits = AgentLimits { connections_max, ..AgentLimits::default() };
        limits.set(memory);
        limits
    }

    /// `false`: there are as many as may be.
    fn admit(&self) -> bool {
        let admitted = self.connections.fetch_add(1, Ordering::Relaxed) < self.connections_max;
        if !admitted {
            self.leave();
        }
        admitted
    }

    fn leave(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// The bounds of the connections that are open change with it.
    pub fn set(&self, memory: &Memory) {
        self.open_bytes_max.store(memory.proposals_bytes, Ordering::Relaxed);
        self.queue_bytes_max.store(memory.to_server_bytes as usize, Ordering::Relaxed);
    }

    fn queue(&self, socket: AgentSocket) -> AgentQueue {
        SendQueue::new(socket, self.queue_bytes_max.clone())
    }
}

/// Whether a process works in `data`, or has ended meanwhile; an error says where it works.
fn works_in(pid: Option<Pid>, data: &Path) -> std::result::Result<(), String> {
    let unseen = |why: &str| format!("whose folder cannot be seen ({why}): the node and its PostgreSQL need the same ");
    let pid = pid.filter(|pid| pid.as_raw() > 0).ok_or_else(|| unseen("it has no pid here") + "pid namespace")?;
    let folder = match folder_of(pid) {
        Ok(folder) => folder,
        // What a session has sent before it ended counts.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(unseen(&e.to_string()) + "user and group"),
    };
    if data.canonicalize().is_ok_and(|data| data == folder) {
        return Ok(());
    }
    let (folder, data) = (folder.display(), data.display());
    Err(format!(
        "of a server in {folder}, and this node's is in {data}: see \"What is in a copy of a data folder\" in \
         docs/operations.md"
    ))
}

/// More than any reasonable `max_connections`.
const CONNECTIONS_MAX: usize = 10_000;

/// The room that one proposal takes, until it is dropped.
struct Room {
    bytes: u64,
    of: Arc<AtomicU64>,
}

impl Room {
    fn take(bytes: u64, of: &Arc<AtomicU64>, max: u64) -> Option<Room> {
        let taken = of.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            held.checked_add(bytes).filter(|sum| *sum <= max)
        });
        taken.ok().map(|_| Room { bytes, of: of.clone() })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

impl AgentServer {
    /// Accepts connections for as long as the runtime exists.
    pub async fn run(self: Arc<Self>, listener: UnixListener) {
        let my_uid = nix::unistd::geteuid().as_raw();
        let mut next = 0;
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(e) => {
                    tracing::warn!("accepting on the agent socket failed: {e}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let pid = match stream.peer_cred() {
                Ok(cred) if cred.uid() == my_uid => cred.pid().map(Pid::from_raw),
                Ok(cred) => {
                    tracing::warn!(uid = cred.uid(), "refused an agent of another user");
                    continue;
                }
                Err(e) => {
                    tracing::warn!("refused an agent of unknown user: {e}");
                    continue;
                }
            };
            if !self.limits.admit() {
                let open = self.limits.connections_max;
                tracing::warn!(
                    "refused an agent connection: {open} are open, and the other files that the node may open are for its log \
                     and its peers; allow it more (LimitNOFILE, ulimit -n) or PostgreSQL fewer connections (max_connections)"
                );
                continue;
            }
            next += 1;
            let server = self.clone();
            tokio::spawn(async move {
                if server.is_of_own_server(pid).await {
                    server.serve(ConnId(next), stream).await;
                }
                server.limits.leave();
            });
        }
    }

    /// Another server may say that it is this node's: a copy of its data folder, which somebody has started, has the
    /// same settings.
    async fn is_of_own_server(&self, pid: Option<Pid>) -> bool {
        let Some(data) = self.data.clone() else { return true };
        // Its disk may hang.
        let looked = tokio::task::spawn_blocking(move || works_in(pid, &data)).await;
        let Err(why) = looked.unwrap_or_else(|e| Err(format!("that could not be looked at: {e}"))) else { return true };
        let mut told = self.told.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if *told != why {
            tracing::warn!("refused an agent {why}");
            *told = why;
        }
        false
    }

    async fn serve(&self, conn: ConnId, stream: UnixStream) {
        let socket = match AgentSocket::new(stream) {
            Ok(socket) => socket,
            Err(e) => return tracing::warn!(conn = conn.0, "an agent connection could not be served: {e}"),
        };
        let outbox = Arc::new(self.limits.queue(socket));
        let result = tokio::select! {
            result = self.read(conn, &outbox) => result,
            () = outbox.drain() => Ok(()),
        };
        if let Err(why) = result {
            tracing::warn!(conn = conn.0, "ended an agent connection: {why}");
        }
        outbox.close();
        self.inbox.send(Event::Agent(AgentEvent::Closed { conn })).await;
    }

    /// Reads until the connection ends; an error says what PostgreSQL did wrong.
    async fn read(&self, conn: ConnId, outbox: &Arc<AgentQueue>) -> Result<()> {
        let mut input = Input { outbox, buf: BytesMut::with_capacity(8 << 10), room: None };
        let hello = tokio::time::timeout(HELLO_TIMEOUT, input.frame(self)).await;
        let hello = match hello {
            Err(_) => return Err(wrong("no HELLO came")),
            Ok(frame) => match frame? {
                None => return Ok(()),
                Some(FromPostgres::Hello(hello)) => hello,
                Some(_) => return Err(wrong("the first frame is not HELLO")),
            },
        };
        if hello.version != VERSION {
            return Err(wrong(&format!("it speaks version {}, this node {VERSION}", hello.version)));
        }
        let role = hello.role;
        let (is_worker, is_backend) = (role == Role::ApplyWorker, role == Role::Backend);
        self.send(AgentEvent::Opened { conn, hello, outbox: outbox.clone() }).await;
        while let Some(frame) = input.frame(self).await? {
            let event = match frame {
                FromPostgres::Propose(raw) if is_backend => match self.check(&raw) {
                    Ok(txn) => {
                        let permit = input.room.take().map(|room| Box::new(room) as _);
                        AgentEvent::Propose { conn, txn, raw, permit }
                    }
                    Err(why) => {
                        input.room = None;
                        let txn = Entry::peek_txn(&raw)?;
                        let _ = outbox.send([self.refusal(VerdictOutcome::Refused, txn, why)]);
                        continue;
                    }
                },
                FromPostgres::Rehearse { txn, rehearsal } if is_backend => {
                    self.rehearse(txn, rehearsal, input.room.take(), outbox.clone());
                    continue;
                }
                FromPostgres::Look { number } if is_backend => {
                    self.look(number, outbox.clone());
                    continue;
                }
                FromPostgres::Outcome(txn) => AgentEvent::Outcome { conn, txn },
                FromPostgres::Settle(txn) => AgentEvent::Settle { conn, txn },
                FromPostgres::Read { number, may_ask } => AgentEvent::Read(Read { conn, number, may_ask }),
                FromPostgres::Await { at } => AgentEvent::Await { conn, at },
                FromPostgres::Lock { ask, table } if is_backend && ask.txn.node == self.me => {
                    AgentEvent::Lock { conn, ask, table }
                }
                FromPostgres::Unlock { txn, from } if is_backend => AgentEvent::Unlock { conn, txn, from },
                FromPostgres::Position { applied, durable } if is_worker => {
                    AgentEvent::Position { conn, applied, durable }
                }
                FromPostgres::Stuck { at, message } if is_worker => AgentEvent::Stuck { conn, at, message },
                FromPostgres::Done(txn) if !is_worker => AgentEvent::Done { conn, txn },
                FromPostgres::More { txn, from } if role == Role::ArrivalWorker => AgentEvent::More { conn, txn, from },
                FromPostgres::Written { txn, kept } if role == Role::ArrivalWorker => {
                    AgentEvent::Written { conn, txn, kept }
                }
                other => return Err(wrong(&format!("{} may not come here", name_of(&other)))),
            };
            self.send(event).await;
        }
        Ok(())
    }

    /// Runs beside the core thread, since a rehearsal decides nothing.
    fn rehearse(&self, txn: TxnId, rehearsal: Rehearsal, room: Option<Room>, outbox: Arc<AgentQueue>) {
        let transport = self.transport.clone();
        tokio::spawn(async move {
            let said = transport.rehearse(rehearsal).await;
            let untried = said.untried.join("; ");
            // The proposal that follows needs it.
            drop(room);
            // It does no harm if the backend has gone.
            let _ = outbox.send([ToPostgres::Rehearsed { txn, failure: said.failure, untried }.encode()]);
        });
    }

    /// Beside the core thread too.
    fn look(&self, number: u64, outbox: Arc<AgentQueue>) {
        let http = self.http.clone();
        tokio::spawn(async move {
            let cluster = cluster::cluster(&http).await.unwrap_or_default();
            let _ = outbox.send([ToPostgres::Seen { number, cluster }.encode()]);
        });
    }

    async fn send(&self, event: AgentEvent) {
        self.inbox.send(Event::Agent(event)).await;
    }

    fn check(&self, raw: &Bytes) -> std::result::Result<TxnId, String> {
        let entry = Entry::decode(raw.clone()).map_err(|e| e.to_string())?;
        if entry.txn.node != self.me {
            return Err(format!("transaction {} does not belong to node {}", entry.txn, self.me));
        }
        if !entry.kind.is_of_backend() {
            return Err(format!("a backend may not propose an entry of kind {:?}", entry.kind));
        }
        if ordered(&self.folder, "refuse") {
            return Err("a test wants proposals refused".into());
        }
        Ok(entry.txn)
    }

    fn refusal(&self, outcome: VerdictOutcome, txn: TxnId, message: String) -> Bytes {
        refusal_as(outcome, txn, &self.region, message)
    }

    fn open_bytes_max(&self) -> u64 {
        self.limits.open_bytes_max.load(Ordering::Relaxed).max(self.max_entry_bytes + 1)
    }
}

fn name_of(frame: &FromPostgres) -> &'static str {
    match frame {
        FromPostgres::Hello(_) => "HELLO",
        FromPostgres::Propose(_) => "PROPOSE",
        FromPostgres::Outcome(_) => "OUTCOME",
        FromPostgres::Settle(_) => "SETTLE",
        FromPostgres::Read { .. } => "READ",
        FromPostgres::Await { .. } => "AWAIT",
        FromPostgres::Lock { .. } => "LOCK",
        FromPostgres::Unlock { .. } => "UNLOCK",
        FromPostgres::Position { .. } => "POSITION",
        FromPostgres::Stuck { .. } => "STUCK",
        FromPostgres::Done(_) => "DONE",
        FromPostgres::Rehearse { .. } => "REHEARSE",
        FromPostgres::Look { .. } => "LOOK",
        FromPostgres::More { .. } => "MORE",
        FromPostgres::Written { .. } => "WRITTEN",
    }
}

fn wrong(why: &str) -> Error {
    Error::Core(onetrip_core::Error::Malformed { what: "agent conversation", why: why.into() })
}

/// Reads frames from a socket.
struct Input<'a> {
    outbox: &'a Arc<AgentQueue>,
    buf: BytesMut,
    /// What the large frame that is being read takes.
    room: Option<Room>,
}

impl Input<'_> {
    /// The next frame; `None` at the end of the connection.  A large one for which there is no room is passed over and
    /// refused here, without ever being in memory as a whole.
    async fn frame(&mut self, server: &AgentServer) -> Result<Option<FromPostgres>> {
        loop {
            if self.buf.len() >= 5 {
                let length = u32::from_le_bytes([self.buf[0], self.buf[1], self.buf[2], self.buf[3]]) as usize;
                let is_large = is_large(self.buf[4]);
                if length > bytes_max(self.buf[4]) {
                    return Err(wrong(&format!("a frame of type 0x{:02x} with length {length}", self.buf[4])));
                }
                let refused = if is_large && length as u64 > server.max_entry_bytes + 1 {
                    let (size, limit) = (length - 1, server.max_entry_bytes);
                    let why = format!(
                        "the transaction's entry has {size} bytes, and max_entry_bytes in node.toml is {limit}: split it, or raise \
                         that limit on every node"
                    );
                    Some((VerdictOutcome::Refused, why))
                } else if is_large && self.room.is_none() {
                    let max = server.open_bytes_max();
                    self.room = Room::take(length as u64, &server.limits.open_bytes, max);
                    self.room.is_none().then(|| {
                        let open = server.limits.open_bytes.load(Ordering::Relaxed);
                        let why =
                            format!("open proposals of its server take {open} bytes, and at most {max} are allowed");
                        (VerdictOutcome::Full, why)
                    })
                } else {
                    None
                };
                if let Some((outcome, why)) = refused {
                    if !self.pass_over(server, length, outcome, why).await? {
                        return Ok(None);
                    }
                    continue;
                }
            }
            if let Some(frame) = take_frame(&mut self.buf)? {
                return Ok(Some(FromPostgres::decode(frame)?));
            }
            if !self.more().await {
                return Ok(None);
            }
        }
    }

    async fn pass_over(
        &mut self,
        server: &AgentServer,
        length: usize,
        outcome: VerdictOutcome,
        message: String,
    ) -> Result<bool> {
        while self.buf.len() < 25 {
            if !self.more().await {
                return Ok(false);
            }
        }
        let txn = Entry::peek_txn(&Bytes::copy_from_slice(&self.buf[5..25]))?;
        let mut left = 4 + length;
        loop {
            let n = left.min(self.buf.len());
            self.buf.advance(n);
            left -= n;
            if left == 0 {
                break;
            }
            if !self.more().await {
                return Ok(false);
            }
        }
        let _ = self.outbox.send([server.refusal(outcome, txn, message)]);
        Ok(true)
    }

    async fn more(&mut self) -> bool {
        self.outbox.socket().read(&mut self.buf).await.is_ok_and(|n| n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetrip_core::router::Outbox;
    use std::io::Read;
    use std::os::unix::net::UnixStream as StdStream;

    #[test]
    fn connections_leave_half_of_the_files_to_the_rest_of_the_node() {
        for (files, connections_max) in [(4, 2), (1 << 20, CONNECTIONS_MAX), (u64::MAX, CONNECTIONS_MAX)] {
            let limits = AgentLimits::new(&Memory::default(), files);
            assert!((0..connections_max).all(|_| limits.admit()), "{files}");
            assert!(!limits.admit() && !limits.admit(), "{files}");
            limits.leave();
            assert!(limits.admit() && !limits.admit(), "{files}");
        }
    }

    #[test]
    fn a_process_is_looked_for_in_its_own_folder() {
        let (here, other) = (std::env::current_dir().unwrap(), tempfile::tempdir().unwrap());
        let me = Some(Pid::this());
        assert_eq!(works_in(me, &here), Ok(()));
        let why = works_in(me, other.path()).unwrap_err();
        assert!(why.starts_with(&format!("of a server in {}, ", here.display())), "{why}");
        // No process has this id (`/proc/sys/kernel/pid_max` is 2^22 at most).
        assert_eq!(works_in(Some(Pid::from_raw(i32::MAX)), &here), Ok(()), "it has ended");
        assert!(works_in(Some(Pid::from_raw(0)), &here).unwrap_err().contains("pid namespace"));
    }

    const MIB: Bytes = Bytes::from_static(&[7; 1 << 20]);

    /// A connection that nobody empties.
    fn connection(limits: &AgentLimits) -> (StdStream, AgentQueue) {
        let (theirs, ours) = StdStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (theirs, limits.queue(AgentSocket::new(UnixStream::from_std(ours).unwrap()).unwrap()))
    }

    /// Goal: nothing is lost on the way to PostgreSQL without its noticing.  Method: more answers wait for it than may.
    #[tokio::test]
    async fn a_connection_that_loses_a_frame_ends() {
        let (mut theirs, queue) = connection(&AgentLimits::new(&Memory::default(), 1 << 20));
        let full = queue.bytes_max() >> 20;
        assert!((0..=full).all(|_| Outbox::send(&queue, [MIB])));
        assert!((0..full).any(|_| !Outbox::send(&queue, [MIB])) && !Outbox::feed(&queue, vec![[MIB]]));
        theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        theirs.read_to_end(&mut Vec::new()).expect("its end");
    }

    /// Goal: a connection takes what its worker is sent ahead of its position, also after a reload.
    #[tokio::test]
    async fn what_a_reload_allows_finds_room_in_the_connection_that_is_open() {
        let limits = AgentLimits::new(&Memory::default(), 1 << 20);
        let (_theirs, queue) = connection(&limits);
        for to_server_bytes in [1 << 30, 8 << 20] {
            limits.set(&Memory { to_server_bytes, ..Memory::default() });
            assert_eq!(queue.feed_bytes_max() as u64, to_server_bytes);
            assert!(Outbox::feed(&queue, vec![[MIB]; 256]) && Outbox::send(&queue, [MIB]));
        }
    }
}
