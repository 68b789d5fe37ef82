//! A connection of the agent socket.

use crate::send_queue::Socket;
use bytes::BytesMut;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

/// Bytes read at once: room for a few proposals.
const ROOM_MIN: usize = 4 << 10;
const ROOM: usize = 8 << 10;
const ROOM_MAX: usize = 64 << 10;

/// It waits for events of its input only.  A Unix socket that also waits for those of its output, as tokio's own do, is
/// woken each time that the other end has read something; here that would be once for each commit.
pub struct AgentSocket(AsyncFd<UnixStream>);

fn register(stream: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    // SAFETY: the stream has one descriptor, and keeps it open until it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(stream, interest) }?)
}

impl AgentSocket {
    pub fn new(stream: tokio::net::UnixStream) -> io::Result<AgentSocket> {
        Ok(AgentSocket(register(stream.into_std()?, Interest::READABLE)?))
    }

    /// Waits for input and appends it to `buf`.  0: the other end has closed.  Loses nothing when it is cancelled.
    pub async fn read(&self, buf: &mut BytesMut) -> io::Result<usize> {
        if buf.capacity() - buf.len() < ROOM_MIN {
            buf.reserve(ROOM);
        }
        loop {
            let mut ready = self.0.readable().await?;
            let (at, room) = (buf.len(), (buf.capacity() - buf.len()).min(ROOM_MAX));
            buf.resize(at + room, 0);
            let read = self.0.get_ref().read(&mut buf[at..]);
            buf.truncate(at + read.as_ref().map_or(0, |n| *n));
            match read {
                Ok(n) => {
                    // That was all: the next input is a new event.  The event that the other end has closed stays.
                    if n < room {
                        ready.clear_ready();
                    }
                    return Ok(n);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => ready.clear_ready(),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl Socket for AgentSocket {
    fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.get_ref().write_vectored(bufs)
    }

    /// Rarely needed: the other end normally reads what it is sent.
    async fn writable(&self) -> io::Result<()> {
        let output = register(self.0.get_ref().try_clone()?, Interest::WRITABLE)?;
        output.writable().await.map(|_| ())
    }

    fn shut_down(&self) {
        // Wakes whoever reads from it or waits to write.  An error means that it is shut down already.
        let _ = self.0.get_ref().shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::send_queue::SendQueue;
    use bytes::Bytes;
    use std::sync::Arc;
    use std::time::Duration;

    fn pair() -> (UnixStream, AgentSocket) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (theirs, AgentSocket::new(tokio::net::UnixStream::from_std(ours).unwrap()).unwrap())
    }

    async fn within<T>(what: impl std::future::Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(60), what).await.expect("it comes to rest")
    }

    #[tokio::test]
    async fn what_is_sent_comes_whole_and_then_the_end() {
        let (mut theirs, ours) = pair();
        let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        let all = sent.clone();
        let writer = std::thread::spawn(move || {
            theirs.write_all(&all[..1]).unwrap();
            std::thread::sleep(Duration::from_millis(10));
            // The end comes right behind the last bytes.
            theirs.write_all(&all[1..]).unwrap();
        });
        let mut buf = BytesMut::new();
        while within(ours.read(&mut buf)).await.unwrap() > 0 {}
        writer.join().unwrap();
        assert!(buf == sent);
        assert_eq!(within(ours.read(&mut buf)).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_queue_that_the_other_end_is_slow_to_read_empties() {
        let (mut theirs, ours) = pair();
        let queue = Arc::new(SendQueue::new(ours, Arc::new(usize::MAX.into())));
        let drain = tokio::spawn({
            let queue = queue.clone();
            async move { queue.drain().await }
        });
        let frame = Bytes::from(vec![7; 3_000_000]);
        (0..3).for_each(|_| queue.send([frame.clone()]).unwrap());
        assert!(queue.waiting_bytes() > 0);
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; 9_000_000];
            theirs.read_exact(&mut all).unwrap();
            assert!(all.iter().all(|b| *b == 7));
            theirs
        });
        within(tokio::task::spawn_blocking(|| reader.join().unwrap())).await.unwrap();
        assert_eq!(queue.waiting_bytes(), 0);
        queue.close();
        within(drain).await.unwrap();
    }
}
