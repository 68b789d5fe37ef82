//! The connections to the HTTP port: anybody on the machine may open some, and they must not take the file descriptors
//! that the node needs for its peers.
//!
//! Invariants: at most [`CONNECTIONS_MAX`] at a time, each for [`STAY_MAX`] at most, a handshake of TLS included.  One
//! more closes another ([`Places`]), so that a load balancer is answered whatever others do.

use crate::places::Places;
use crate::tls::HttpTls;
use axum::http::StatusCode;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

const CONNECTIONS_MAX: usize = 64;
/// Much longer than any answer takes.
const STAY_MAX: Duration = Duration::from_secs(10);
/// The first byte of a client that speaks TLS: a record with a handshake (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;

/// Answers until its task ends.
pub async fn serve(listener: TcpListener, routes: Router, tls: Arc<HttpTls>) {
    serve_for(STAY_MAX, listener, routes, tls).await;
}

async fn serve_for(stay_max: Duration, listener: TcpListener, routes: Router, tls: Arc<HttpTls>) {
    let places = Arc::new(Places::new(CONNECTIONS_MAX));
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let (routes, tls, all) = (routes.clone(), tls.clone(), places.clone());
                places.admit(Some(from.ip()), |number| {
                    let serve = async move {
                        // Why a stranger's connection breaks is of no interest.
                        let _ = tokio::time::timeout(stay_max, welcome(stream, routes, &tls)).await;
                        all.leave(number);
                    };
                    tokio::spawn(serve).abort_handle()
                });
            }
            // Most likely there are no file descriptors left: let other connections end first.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn welcome(stream: TcpStream, routes: Router, tls: &HttpTls) -> io::Result<()> {
    let Some(acceptor) = tls.acceptor() else { return converse(stream, routes).await };
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
        let why = (StatusCode::BAD_REQUEST, "this port speaks TLS: ask https://\n");
        return converse(stream, Router::new().fallback(move || async move { why })).await;
    }
    converse(acceptor.accept(stream).await?, routes).await
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, routes: Router) -> io::Result<()> {
    let service = TowerToHyperService::new(routes);
    http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn ask(address: SocketAddr) -> io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    async fn listen(stay_max: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = axum::Router::new().route("/", axum::routing::get(|| async { "hello" }));
        tokio::spawn(serve_for(stay_max, listener, routes, Arc::new(HttpTls::none())));
        address
    }

    #[tokio::test]
    async fn a_silent_guest_has_to_go() {
        let mut silent = TcpStream::connect(listen(Duration::from_millis(10)).await).await.unwrap();
        assert!(matches!(silent.read(&mut [0]).await, Ok(0) | Err(_)));
    }

    /// Silent connections take all the places, and none of them is closed for its silence.
    #[tokio::test]
    async fn a_request_is_answered_however_many_are_silent() {
        let address = listen(Duration::from_secs(86_400)).await;
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS_MAX + 10 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = tokio::time::timeout(Duration::from_secs(60), ask(address)).await.expect("in time").unwrap();
        assert!(answer.ends_with("hello"));
        assert!(matches!(silent[0].read(&mut [0]).await, Ok(0) | Err(_)), "the first was closed");
        let last = silent.last_mut().unwrap();
        last.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        last.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("hello"), "the last was not");
    }
}
