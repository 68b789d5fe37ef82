//! Writes to a socket from any thread: at once and by itself as far as the socket takes it, the rest in the background.
//!
//! It knows bytes and sockets, nothing of what the frames mean.
//!
//! Invariants:
//! - Frames leave whole and in the order of `send`.
//! - `send` never blocks, and writes no more than [`BYTES_AT_ONCE`] itself.  What the socket does not take waits in a
//!   queue.  While that has more bytes than its bound, which may change, further frames are refused; otherwise it takes
//!   a frame of any size.  What comes by `send_beyond` is not refused, and does not count.
//! - Whoever makes a queue runs [`SendQueue::drain`] beside it, or it never empties.

use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// What a queue needs of a socket.
pub trait Socket: Send + Sync + 'static {
    fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize>;
    /// Writes what the socket has taken but holds back, if it is of a kind that does so.
    fn try_flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn writable(&self) -> impl std::future::Future<Output = io::Result<()>> + Send;
    fn shut_down(&self);
}

impl Socket for TcpStream {
    fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        TcpStream::try_write_vectored(self, bufs)
    }
    async fn writable(&self) -> io::Result<()> {
        TcpStream::writable(self).await
    }
    fn shut_down(&self) {
        use std::os::fd::AsRawFd;
        // Wakes whoever reads from it or waits to write.  An error means that it is shut down already.
        let _ = nix::sys::socket::shutdown(self.as_raw_fd(), nix::sys::socket::Shutdown::Both);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    Closed,
    Full,
}

pub struct SendQueue<S> {
    socket: S,
    queue: Mutex<Queue>,
    work: Notify,
    bytes_max: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// Those of them that count.
    counted_bytes: usize,
    closed: bool,
}

struct Chunk {
    bytes: Bytes,
    counts: bool,
}

/// Buffers given to one write.
const CHUNKS_PER_WRITE: usize = 64;
/// Written before others get at the queue: a sender should not have to wait while a large frame goes to a reader that
/// is as fast as this end.
const BYTES_AT_ONCE: usize = 1 << 20;

#[derive(PartialEq, Eq)]
enum Left {
    Nothing,
    /// The socket takes more.
    Some,
    /// The socket is full.
    Full,
}

impl<S: Socket> SendQueue<S> {
    /// `bytes_max`: of what waits; whoever shares it may change it.
    pub fn new(socket: S, bytes_max: Arc<AtomicUsize>) -> Self {
        SendQueue { socket, queue: Mutex::default(), work: Notify::new(), bytes_max }
    }

    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// Sends a frame given in parts.
    pub fn send(&self, parts: impl IntoIterator<Item = Bytes>) -> Result<(), NotSent> {
        let queue = self.lock();
        match queue.counted_bytes > self.bytes_max() && !queue.closed {
            true => Err(NotSent::Full),
            false => self.push(queue, parts, true),
        }
    }

    /// The same for frames of which the caller limits how much waits.
    pub fn send_beyond(&self, parts: impl IntoIterator<Item = Bytes>) -> Result<(), NotSent> {
        self.push(self.lock(), parts, false)
    }

    fn push(
        &self,
        mut queue: MutexGuard<'_, Queue>,
        parts: impl IntoIterator<Item = Bytes>,
        counts: bool,
    ) -> Result<(), NotSent> {
        if queue.closed {
            return Err(NotSent::Closed);
        }
        let was_empty = queue.chunks.is_empty();
        for bytes in parts.into_iter().filter(|p| !p.is_empty()) {
            queue.bytes += bytes.len();
            queue.counted_bytes += if counts { bytes.len() } else { 0 };
            queue.chunks.push_back(Chunk { bytes, counts });
        }
        if was_empty && self.write_some(&mut queue) != Left::Nothing {
            self.work.notify_one();
        }
        Ok(())
    }

    /// How many bytes the socket has not taken yet.
    pub fn waiting_bytes(&self) -> usize {
        self.lock().bytes
    }

    pub fn is_full(&self) -> bool {
        self.lock().counted_bytes > self.bytes_max()
    }

    /// More than this may not wait when a frame is to be sent.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// Runs until the queue is closed or the socket fails.
    pub async fn drain(&self) {
        loop {
            self.work.notified().await;
            loop {
                let left = {
                    let mut queue = self.lock();
                    if queue.closed {
                        return;
                    }
                    self.write_some(&mut queue)
                };
                match left {
                    Left::Nothing => break,
                    Left::Some => {
                        tokio::task::yield_now().await;
                        continue;
                    }
                    Left::Full => {}
                }
                if self.socket.writable().await.is_err() {
                    self.close();
                    return;
                }
            }
        }
    }

    /// Drops what was not sent yet, and shuts the socket down in both directions.
    pub fn close(&self) {
        let mut queue = self.lock();
        Self::close_queue(&mut queue);
        self.socket.shut_down();
        self.work.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no code that holds this lock panics")
    }

    fn close_queue(queue: &mut Queue) {
        queue.closed = true;
        queue.chunks.clear();
        (queue.bytes, queue.counted_bytes) = (0, 0);
    }

    /// Writes what the socket takes, up to [`BYTES_AT_ONCE`].
    fn write_some(&self, queue: &mut Queue) -> Left {
        let mut budget = BYTES_AT_ONCE;
        loop {
            let mut room = budget;
            let fitting = |chunk: &'_ Chunk| {
                let len = chunk.bytes.len().min(room);
                room -= len;
                len
            };
            let lens: Vec<usize> = queue.chunks.iter().take(CHUNKS_PER_WRITE).map(fitting).collect();
            let bufs: Vec<IoSlice<'_>> =
                queue.chunks.iter().zip(lens).map(|(c, len)| IoSlice::new(&c.bytes[..len])).collect();
            let written = match bufs.is_empty() {
                true => self.socket.try_flush().map(|()| 0),
                false => self.socket.try_write_vectored(&bufs),
            };
            match written {
                Ok(_) if queue.chunks.is_empty() => return Left::Nothing,
                Ok(mut n) => {
                    queue.bytes -= n;
                    budget -= n;
                    while let Some(front) = queue.chunks.front_mut() {
                        let taken = n.min(front.bytes.len());
                        front.bytes.advance(taken);
                        n -= taken;
                        queue.counted_bytes -= if front.counts { taken } else { 0 };
                        if !front.bytes.is_empty() {
                            break;
                        }
                        queue.chunks.pop_front();
                    }
                    if budget == 0 {
                        return Left::Some;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Left::Full,
                Err(_) => {
                    // The reader of this socket sees the end too, and reports it.
                    Self::close_queue(queue);
                    self.socket.shut_down();
                    return Left::Nothing;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Takes all that it is given, like a reader that is as fast as the writer.
    #[derive(Default)]
    struct Taken(Mutex<Vec<u8>>);

    impl Socket for Taken {
        fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
            let mut taken = self.0.lock().unwrap();
            let before = taken.len();
            bufs.iter().for_each(|buf| taken.extend_from_slice(buf));
            Ok(taken.len() - before)
        }
        async fn writable(&self) -> io::Result<()> {
            Ok(())
        }
        fn shut_down(&self) {}
    }

    #[tokio::test]
    async fn whoever_sends_a_large_frame_writes_little_of_it() {
        let queue = Arc::new(SendQueue::new(Taken::default(), Arc::new(100.into())));
        let (head, data) = (Bytes::from_static(b"head"), Bytes::from(vec![7; 5 << 20]));
        queue.send([head.clone(), data.clone()]).unwrap();
        assert_eq!(queue.socket().0.lock().unwrap().len(), BYTES_AT_ONCE);
        assert_eq!((queue.waiting_bytes(), queue.send([head.clone()])), ((4 << 20) + 4, Err(NotSent::Full)));
        let drain = tokio::spawn({
            let queue = queue.clone();
            async move { queue.drain().await }
        });
        let empty = async {
            while queue.waiting_bytes() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), empty).await.unwrap();
        queue.send([head.clone()]).unwrap();
        assert!(*queue.socket().0.lock().unwrap() == [&head[..], &data, &head].concat());
        queue.close();
        drain.await.unwrap();
    }
}
