//! A connection between nodes, with TLS or without: as a stream, and as the socket below a
//! [`crate::send_queue::SendQueue`].

use crate::send_queue::Socket;
use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::rustls::ClientConnection;
use tokio_rustls::TlsStream;

pub enum PeerStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

macro_rules! either {
    ($self:ident, $stream:ident => $body:expr) => {
        match $self.get_mut() {
            PeerStream::Plain(stream) => {
                let $stream = Pin::new(stream);
                $body
            }
            PeerStream::Tls(stream) => {
                let $stream = Pin::new(&mut **stream);
                $body
            }
        }
    };
}

impl AsyncRead for PeerStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_write(cx, buf))
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_flush(cx))
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_shutdown(cx))
    }
}

impl PeerStream {
    pub fn tcp(&self) -> &TcpStream {
        match self {
            PeerStream::Plain(stream) => stream,
            PeerStream::Tls(tls) => tls.get_ref().0,
        }
    }

    /// Turns the stream into a socket to which any thread can write frames.  Only for a connection that this node
    /// dialled.
    pub fn into_socket(self) -> PeerSocket {
        match self {
            PeerStream::Plain(stream) => PeerSocket { stream, tls: None },
            PeerStream::Tls(tls) => match *tls {
                TlsStream::Client(tls) => {
                    let (stream, mut connection) = tls.into_inner();
                    connection.set_buffer_limit(Some(ENCRYPT_BYTES));
                    PeerSocket { stream, tls: Some(Mutex::new(connection)) }
                }
                TlsStream::Server(_) => unreachable!("nodes write to what they dialled"),
            },
        }
    }
}

/// How many bytes TLS encrypts at a time, and so may keep in addition to what the send queue keeps.
const ENCRYPT_BYTES: usize = 256 << 10;

pub struct PeerSocket {
    stream: TcpStream,
    tls: Option<Mutex<ClientConnection>>,
}

impl PeerSocket {
    /// Resolves when the peer has closed the connection, or sends data on it, which a peer never does on a connection
    /// that this node dialled.
    pub async fn ended(&self) {
        let mut bytes = [0; 4096];
        loop {
            if self.stream.readable().await.is_err() {
                return;
            }
            match self.stream.try_read(&mut bytes) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Ok(n) if n > 0 && self.is_housekeeping(&bytes[..n]) => {}
                _ => return,
            }
        }
    }

    /// Whether these bytes are only messages of TLS itself, such as a change of keys.
    fn is_housekeeping(&self, mut bytes: &[u8]) -> bool {
        let Some(tls) = &self.tls else { return false };
        let mut tls = lock(tls);
        while !bytes.is_empty() {
            let taken = tls.read_tls(&mut bytes).is_ok_and(|n| n > 0);
            match tls.process_new_packets() {
                Ok(state) if taken && state.plaintext_bytes_to_read() == 0 && !state.peer_has_closed() => {}
                _ => return false,
            }
        }
        // If the socket is full, TLS's answer leaves with the next frame.
        !matches!(self.flush(&mut tls), Err(e) if e.kind() != io::ErrorKind::WouldBlock)
    }

    #[cfg(test)]
    pub fn refresh_keys(&self) {
        let mut tls = lock(self.tls.as_ref().expect("with TLS"));
        tls.refresh_traffic_keys().expect("the handshake is over");
    }

    /// Writes to the socket what is already encrypted.
    fn flush(&self, tls: &mut ClientConnection) -> io::Result<()> {
        while tls.wants_write() {
            if tls.write_tls(&mut TryWrite(&self.stream))? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

fn lock(tls: &Mutex<ClientConnection>) -> MutexGuard<'_, ClientConnection> {
    tls.lock().expect("no code that holds this lock panics")
}

impl Socket for PeerSocket {
    fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return self.stream.try_write_vectored(bufs) };
        let mut tls = lock(tls);
        self.flush(&mut tls)?;
        let n = tls.writer().write_vectored(bufs)?;
        if n == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        match self.flush(&mut tls) {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            _ => Ok(n),
        }
    }

    fn try_flush(&self) -> io::Result<()> {
        self.tls.as_ref().map_or(Ok(()), |tls| self.flush(&mut lock(tls)))
    }

    async fn writable(&self) -> io::Result<()> {
        self.stream.writable().await
    }

    fn shut_down(&self) {
        self.stream.shut_down();
    }
}

struct TryWrite<'a>(&'a TcpStream);

impl Write for TryWrite<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.try_write(buf)
    }
    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(bufs)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
