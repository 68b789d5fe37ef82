//! Limits the connections to the HTTP port: anybody on the machine may open some, and they must not take the file
//! descriptors that the node needs for its peers.
//!
//! Invariants: at most [`CONNECTIONS_MAX`] at a time, each for [`STAY_MAX`] at most; others wait in the kernel's queue.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

const CONNECTIONS_MAX: usize = 64;
/// Much longer than any answer takes.
const STAY_MAX: Duration = Duration::from_secs(10);

pub struct BoundedListener {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

pub struct BoundedStream {
    stream: TcpStream,
    until: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl BoundedListener {
    pub fn new(listener: TcpListener) -> BoundedListener {
        BoundedListener { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl axum::serve::Listener for BoundedListener {
    type Io = BoundedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BoundedStream, SocketAddr) {
        let place = self.places.clone().acquire_owned().await.expect("nobody closes it");
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    let until = Box::pin(tokio::time::sleep(STAY_MAX));
                    return (BoundedStream { stream, until, _place: place }, from);
                }
                // Most likely there are no file descriptors left: let other connections end first.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl BoundedStream {
    fn check_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.until.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check_time(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check_time(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn ask(address: SocketAddr) -> io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    /// Silent connections take all the places; once their time is up, an honest request is answered.
    #[tokio::test]
    async fn silent_guests_have_to_go() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = axum::Router::new().route("/", axum::routing::get(|| async { "hello" }));
        tokio::spawn(async move { axum::serve(BoundedListener::new(listener), routes).await });
        assert!(ask(address).await.unwrap().ends_with("hello"));
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS_MAX + 10 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = tokio::time::timeout(3 * STAY_MAX, ask(address)).await.expect("in time").unwrap();
        assert!(answer.ends_with("hello"));
        let mut first = silent.remove(0);
        assert!(matches!(first.read(&mut [0]).await, Ok(0) | Err(_)), "the first was closed");
    }
}
