//! A client link: a TCP proxy on loopback that puts a client at a distance from a region.
//!
//! Bytes are delayed by half of the round trip in each direction, in order, with any number of bytes under way.  The
//! first bytes of a new connection are delayed by one more round trip, the time that a TCP handshake takes.
//!
//! ```text
//!   client ──> accepted ──(rtt / 2 later)──> PostgreSQL
//!   client <──(rtt / 2 later)── PostgreSQL
//! ```
//!
//! One thread waits with nanosecond timeouts (`ppoll` without timer slack), because timers of 1 ms would add a tenth to
//! what is measured.  It does not spin, because it shares the processors with the measured servers.
//!
//! Invariants:
//! - bytes leave in the order in which they came, and never before their time;
//! - a direction contains at most about [`QUEUED_BYTES_MAX`]; when it is full, its source is not read;
//! - dropping the link closes every connection and ends the thread.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{ppoll, PollFd, PollFlags};
use nix::sys::time::TimeSpec;

/// More than the bandwidth of a fast client times the longest round trip.
pub const QUEUED_BYTES_MAX: usize = 64 << 20;
const READ_BYTES: usize = 64 << 10;
/// At most this many reads from one socket before the others are served.
const READS_PER_TURN: usize = 16;
/// On loopback a connection is made at once or not at all, and a full backlog must not stop the other connections for
/// long.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const CONNECTIONS_MAX: usize = 1_000;

pub struct ClientLink {
    address: SocketAddr,
    /// Closed to end the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl ClientLink {
    /// Listens on `listen` (port 0: any free port) and forwards to `target`, at a round trip of `rtt`.
    pub fn start(listen: SocketAddr, target: SocketAddr, rtt: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = UnixStream::pair()?;
        let thread = std::thread::Builder::new().name(format!("link-{}", address.port())).spawn(move || {
            // Otherwise the kernel adds up to 50 µs to each wait.
            let _ = nix::sys::prctl::set_timerslack(1);
            Proxy { listener, stopped, target, rtt, connections: Vec::new() }.run();
        })?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ClientLink {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Proxy {
    listener: TcpListener,
    stopped: UnixStream,
    target: SocketAddr,
    rtt: Duration,
    connections: Vec<Connection>,
}

/// `ends[0]` is the client, `ends[1]` the server; `flows[i]` leads from `ends[i]` to the other end.
struct Connection {
    ends: [TcpStream; 2],
    flows: [Flow; 2],
    /// When the handshake would have been over.
    open_at: Instant,
}

#[derive(Default)]
struct Flow {
    /// The chunks under way, each with the time when it is due; an empty chunk is the end of the stream.
    queue: VecDeque<(Instant, Vec<u8>)>,
    queued_bytes: usize,
    /// How many bytes of the first chunk have been written to the sink.
    written: usize,
    source_ended: bool,
    sink_ended: bool,
    sink_full: bool,
}

impl Proxy {
    fn run(mut self) {
        let mut buffer = vec![0u8; READ_BYTES];
        loop {
            let now = Instant::now();
            let mut deadline: Option<Instant> = None;
            self.connections.retain_mut(|connection| match connection.deliver(now) {
                Ok(next) => {
                    deadline = [deadline, next].into_iter().flatten().min();
                    !connection.finished()
                }
                Err(_) => false,
            });
            let Some(ready) = self.wait(now, deadline) else {
                return;
            };
            for (index, revents) in ready.into_iter().enumerate() {
                for (end, revents) in revents.into_iter().enumerate() {
                    let connection = &mut self.connections[index];
                    if revents.contains(PollFlags::POLLOUT) {
                        connection.flows[1 - end].sink_full = false;
                    }
                    let readable = PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR;
                    if revents.intersects(readable) {
                        connection.take_in(end, &mut buffer, self.rtt / 2);
                    }
                }
            }
            self.accept();
        }
    }

    /// What happened to each connection's two ends, or `None` when the link is to end.
    fn wait(&self, now: Instant, deadline: Option<Instant>) -> Option<Vec<[PollFlags; 2]>> {
        let mut fds = vec![
            PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
        ];
        let mut places = Vec::new();
        for (index, connection) in self.connections.iter().enumerate() {
            for end in 0..2 {
                let events = connection.wanted(end, now);
                // An end from which nothing is wanted is not polled: its hang-up would be reported over and over.
                if !events.is_empty() {
                    places.push((index, end));
                    fds.push(PollFd::new(connection.ends[end].as_fd(), events));
                }
            }
        }
        let timeout = deadline.map(|at| TimeSpec::from_duration(at.saturating_duration_since(Instant::now())));
        match ppoll(&mut fds, timeout, None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return None,
        }
        let revents = |fd: &PollFd| fd.revents().unwrap_or(PollFlags::empty());
        if !revents(&fds[0]).is_empty() {
            return None;
        }
        let mut ready = vec![[PollFlags::empty(); 2]; self.connections.len()];
        for (place, fd) in places.iter().zip(&fds[2..]) {
            ready[place.0][place.1] = revents(fd);
        }
        Some(ready)
    }

    fn accept(&mut self) {
        while self.connections.len() < CONNECTIONS_MAX {
            let Ok((client, _)) = self.listener.accept() else {
                return;
            };
            // If no server listens there, the client sees its connection close.
            if let Ok(connection) = Connection::open(client, self.target, self.rtt) {
                self.connections.push(connection);
            }
        }
    }
}

impl Connection {
    fn open(client: TcpStream, target: SocketAddr, rtt: Duration) -> io::Result<Self> {
        let server = TcpStream::connect_timeout(&target, CONNECT_TIMEOUT)?;
        for end in [&client, &server] {
            end.set_nodelay(true)?;
            end.set_nonblocking(true)?;
        }
        Ok(Self { ends: [client, server], flows: Default::default(), open_at: Instant::now() + rtt })
    }

    fn wanted(&self, end: usize, now: Instant) -> PollFlags {
        let mut events = PollFlags::empty();
        let out = &self.flows[end];
        if !out.source_ended && out.queued_bytes < QUEUED_BYTES_MAX && now >= self.open_at {
            events |= PollFlags::POLLIN;
        }
        if self.flows[1 - end].sink_full {
            events |= PollFlags::POLLOUT;
        }
        events
    }

    fn take_in(&mut self, end: usize, buffer: &mut [u8], delay: Duration) {
        let flow = &mut self.flows[end];
        for _ in 0..READS_PER_TURN {
            if flow.source_ended || flow.queued_bytes >= QUEUED_BYTES_MAX {
                return;
            }
            match self.ends[end].read(buffer) {
                Ok(count) => {
                    flow.source_ended = count == 0;
                    flow.queued_bytes += count;
                    flow.queue.push_back((Instant::now() + delay, buffer[..count].to_vec()));
                    if count < buffer.len() {
                        return;
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // The other end sees a reset as the end of the stream, after everything that came before it.
                Err(_) => {
                    flow.source_ended = true;
                    flow.queue.push_back((Instant::now() + delay, Vec::new()));
                    return;
                }
            }
        }
    }

    /// Writes the chunks that are due, and returns when the next is due.  After an error the connection is of no more
    /// use.
    fn deliver(&mut self, now: Instant) -> io::Result<Option<Instant>> {
        let mut next = (now < self.open_at).then_some(self.open_at);
        for end in 0..2 {
            let flow = &mut self.flows[end];
            let sink = &mut self.ends[1 - end];
            while let Some((due, chunk)) = flow.queue.front() {
                if *due > now {
                    next = Some(next.map_or(*due, |at: Instant| at.min(*due)));
                    break;
                }
                if flow.sink_full {
                    break;
                }
                if chunk.is_empty() {
                    flow.sink_ended = true;
                    let _ = sink.shutdown(Shutdown::Write);
                    flow.queue.pop_front();
                    continue;
                }
                match sink.write(&chunk[flow.written..]) {
                    Ok(count) => flow.written += count,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => flow.sink_full = true,
                    Err(e) => return Err(e),
                }
                if flow.written == chunk.len() {
                    flow.queued_bytes -= chunk.len();
                    flow.written = 0;
                    flow.queue.pop_front();
                }
            }
        }
        Ok(next)
    }

    fn finished(&self) -> bool {
        self.flows.iter().all(|flow| flow.sink_ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it gets.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut reader = stream.try_clone().unwrap();
                    let mut writer = stream;
                    let _ = io::copy(&mut reader, &mut writer);
                    let _ = writer.shutdown(Shutdown::Write);
                });
            }
        });
        address
    }

    fn link(target: SocketAddr, rtt: Duration) -> ClientLink {
        ClientLink::start("127.0.0.1:0".parse().unwrap(), target, rtt).unwrap()
    }

    #[test]
    fn an_answer_takes_the_round_trip_and_little_more() {
        let rtt = Duration::from_millis(8);
        let link = link(echo(), rtt);
        let mut stream = TcpStream::connect(link.address()).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut byte = [7u8];
        let mut times: Vec<Duration> = Vec::new();
        for _ in 0..41 {
            let start = Instant::now();
            stream.write_all(&byte).unwrap();
            stream.read_exact(&mut byte).unwrap();
            times.push(start.elapsed());
        }
        assert!(times[0] >= rtt * 2, "the first carries the handshake: {:?}", times[0]);
        times.sort();
        assert!(times[0] >= rtt, "never early: {:?}", times[0]);
        assert!(times[20] < rtt + Duration::from_millis(2), "median {:?}", times[20]);
    }

    #[test]
    fn many_bytes_pass_whole_in_order_and_side_by_side() {
        let rtt = Duration::from_millis(20);
        let link = link(echo(), rtt);
        let mut stream = TcpStream::connect(link.address()).unwrap();
        let mut reader = stream.try_clone().unwrap();
        let sent: Vec<u8> = (0..8u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let copy = sent.clone();
        let start = Instant::now();
        let writer = std::thread::spawn(move || {
            stream.write_all(&copy).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        reader.read_to_end(&mut received).unwrap();
        writer.join().unwrap();
        assert!(received == sent, "the bytes came back as they were sent");
        // One chunk for each round trip would take 128 × 20 ms.
        assert!(start.elapsed() < Duration::from_secs(2), "took {:?}", start.elapsed());
    }

    #[test]
    fn without_a_server_the_client_sees_the_end() {
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let link = link(nobody, Duration::from_millis(1));
        let mut stream = TcpStream::connect(link.address()).unwrap();
        let mut bytes = Vec::new();
        // The client gets the end of the stream or a reset, but does not wait forever.
        let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
        match stream.read_to_end(&mut bytes) {
            Ok(count) => assert_eq!(count, 0),
            Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
        }
    }

    #[test]
    fn dropping_the_link_ends_its_connections() {
        let link = link(echo(), Duration::from_millis(1));
        let mut stream = TcpStream::connect(link.address()).unwrap();
        let mut byte = [1u8];
        stream.write_all(&byte).unwrap();
        stream.read_exact(&mut byte).unwrap();
        drop(link);
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        match stream.read(&mut byte) {
            Ok(count) => assert_eq!(count, 0),
            Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
        }
    }
}
