//! One JSON request to a node, GET or POST: over TCP to a trusted address, over TLS (`https://` before the address), or
//! through a Unix socket (an address that begins with a slash is the socket's path).  A port that others can reach asks
//! for a token: [`use_token`].

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use crate::tls::{self, Trust};

/// A status page is a few kilobytes; whatever sends more than this is not a node.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// The token for addresses that [`use_token`] does not know.
const TOKEN_VARIABLE: &str = "ONETRIP_HTTP_TOKEN";

/// By address.
static TOKENS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Whom `https://` believes; unless it is set, whom this system believes.
static TRUST: Mutex<Option<Trust>> = Mutex::new(None);

/// From now on `https://` believes the nodes of the cluster with this authority, and nobody else.
pub fn use_authority(file: &Path) -> Result<()> {
    let trust = Trust::AnyNameOf(Arc::new(tls::cluster_authority(file)?));
    *TRUST.lock().expect("no code that holds this lock panics") = Some(trust);
    Ok(())
}

fn connector() -> Result<TlsConnector> {
    let trust = TRUST.lock().expect("no code that holds this lock panics").clone();
    let trust = trust.map_or_else(|| Ok(Trust::NameOf(Arc::new(tls::system_authorities()?))), anyhow::Ok)?;
    Ok(TlsConnector::from(Arc::new(tls::client(trust, None)?)))
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way<'a> {
    Socket(&'a str),
    Tcp(&'a str),
    Tls(&'a str),
}

impl<'a> Way<'a> {
    fn to(address: &'a str) -> Way<'a> {
        let place = |rest: &'a str| rest.trim_end_matches('/');
        match (address.strip_prefix("https://"), address.strip_prefix("http://")) {
            (Some(rest), _) => Way::Tls(place(rest)),
            (_, Some(rest)) => Way::Tcp(place(rest)),
            _ if address.contains('/') => Way::Socket(address),
            _ => Way::Tcp(address),
        }
    }
}

/// The name or address of the machine in `host:port`.
pub fn host_of(address: &str) -> &str {
    let (Way::Tcp(place) | Way::Tls(place) | Way::Socket(place)) = Way::to(address);
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// From now on this token is shown to this address.
pub fn use_token(address: &str, token: &str) {
    TOKENS.lock().expect("no code that holds this lock panics").insert(address.into(), token.into());
}

fn token_for(way: Way) -> Option<String> {
    let (Way::Socket(address) | Way::Tcp(address) | Way::Tls(address)) = way;
    let known = TOKENS.lock().expect("no code that holds this lock panics").get(address).cloned();
    let given = || std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
    known.or_else(|| given().filter(|_| !matches!(way, Way::Socket(_))))
}

/// The node answered with an HTTP status other than success.
#[derive(Debug, thiserror::Error)]
#[error("status {status}: {why}")]
pub struct Refused {
    pub status: u16,
    pub why: String,
}

pub async fn get_json(address: &str, path: &str, timeout: Duration) -> Result<Value> {
    within(timeout, address, path, Method::GET, Bytes::new()).await
}

pub async fn post_json(address: &str, path: &str, body: &Value, timeout: Duration) -> Result<Value> {
    within(timeout, address, path, Method::POST, body.to_string().into()).await
}

async fn within(timeout: Duration, address: &str, path: &str, method: Method, body: Bytes) -> Result<Value> {
    let way = Way::to(address);
    let mut request = Request::builder();
    if let Some(token) = token_for(way) {
        request = request.header(AUTHORIZATION, format!("Bearer {}", token.trim()));
    }
    let host = match way {
        Way::Socket(_) => "localhost",
        Way::Tcp(place) | Way::Tls(place) => place,
    };
    let request = request
        .method(method.clone())
        .uri(path)
        .header(HOST, host)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body))
        .context("make a request")?;
    let exchange = async {
        let connect = || format!("connect to {address}");
        let answered = match way {
            Way::Socket(socket) => exchange(UnixStream::connect(socket).await.with_context(connect)?, request).await,
            Way::Tcp(place) => exchange(TcpStream::connect(place).await.with_context(connect)?, request).await,
            Way::Tls(place) => {
                let name = ServerName::try_from(host_of(address).to_string()).with_context(connect)?;
                let stream = TcpStream::connect(place).await.with_context(connect)?;
                exchange(connector()?.connect(name, stream).await.with_context(connect)?, request).await
            }
        };
        let scheme = if matches!(way, Way::Tls(_)) { "https" } else { "http" };
        answered.with_context(|| format!("{method} {scheme}://{host}{path}"))
    };
    match tokio::time::timeout(timeout, exchange).await {
        Ok(result) => result,
        Err(_) => bail!("{address} did not answer within {} ms", timeout.as_millis()),
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Value>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The task's result is not needed: when the connection breaks, the request fails too.  If this future is dropped at
    // the timeout, the task ends because its sender is gone.
    let connection = tokio::spawn(connection);
    let answer = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), RESPONSE_BYTES_MAX).collect().await;
        let body = body.map_err(anyhow::Error::from_boxed).context("read the answer")?.to_bytes();
        if !status.is_success() {
            let why = String::from_utf8_lossy(&body).trim().to_string();
            return Err(Refused { status: status.as_u16(), why }.into());
        }
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).context("the answer is not JSON")
    };
    let result = answer.await;
    connection.abort();
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const PATIENCE: Duration = Duration::from_secs(5);

    /// The result of asking a server that answers with these bytes and closes the connection.
    async fn asked(answer: &'static [u8]) -> Result<Value> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let serve = async {
            let (mut stream, _) = listener.accept().await?;
            let mut request = vec![0; 4096];
            let _ = stream.read(&mut request).await?;
            stream.write_all(answer).await
        };
        let (result, served) = tokio::join!(get_json(&address, "/status", PATIENCE), serve);
        served?;
        result
    }

    #[tokio::test]
    async fn answers_are_read_and_garbage_is_refused() {
        let ok = asked(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\":1}").await.unwrap();
        assert_eq!(ok["a"], 1);
        assert_eq!(asked(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap(), Value::Null);
        let no = asked(b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nnone\n").await.unwrap_err();
        let refused = no.downcast_ref::<Refused>().expect("it said no");
        assert_eq!((refused.status, refused.why.as_str()), (404, "none"));
        for garbage in [
            &b""[..],
            b"\r\n\r\n",
            b"hello",
            b"HTTP/1.1 200 OK\r\n\r\n{",
            b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"a\":1}",
        ] {
            assert!(asked(garbage).await.is_err(), "{garbage:?}");
        }
    }

    #[test]
    fn an_address_says_how_its_node_is_asked() {
        for (address, way, host) in [
            ("10.0.0.1:7101", Way::Tcp("10.0.0.1:7101"), "10.0.0.1"),
            ("http://node.example:7101/", Way::Tcp("node.example:7101"), "node.example"),
            ("https://[::1]:7101", Way::Tls("[::1]:7101"), "::1"),
            ("/srv/onetrip/a/admin.sock", Way::Socket("/srv/onetrip/a/admin.sock"), "/srv/onetrip/a/admin.sock"),
            ("./admin.sock", Way::Socket("./admin.sock"), "./admin.sock"),
        ] {
            assert_eq!((Way::to(address), host_of(address)), (way, host));
        }
    }

    #[tokio::test]
    async fn the_token_of_an_address_is_shown_to_it_and_to_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (known, asked_of) = ("127.0.0.1:1".to_string(), listener.local_addr().unwrap().to_string());
        let request = |address: String, listener: TcpListener| async move {
            let serve = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let n = stream.read(&mut request).await.unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                (String::from_utf8_lossy(&request[..n]).to_lowercase(), listener)
            };
            tokio::join!(get_json(&address, "/status", PATIENCE), serve).1
        };
        use_token(&known, "secret");
        let (sent, listener) = request(asked_of.clone(), listener).await;
        assert!(!sent.contains("secret") && sent.contains(&format!("host: {asked_of}")), "{sent}");
        use_token(&asked_of, "secret");
        let (sent, _) = request(asked_of.clone(), listener).await;
        assert!(sent.contains("authorization: bearer secret"), "{sent}");
    }

    #[tokio::test]
    async fn who_does_not_answer_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let error = get_json(&address, "/status", Duration::from_millis(50)).await.unwrap_err();
        assert!(error.to_string().contains("did not answer within 50 ms"), "{error:#}");
    }
}
