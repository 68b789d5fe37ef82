//! The few lines of HTTP that the lab and the command need: one GET or POST of JSON to a node, on a trusted address or through
//! a Unix socket (an address with a slash in it is its path).

use std::time::Duration;

use anyhow::{bail, Context, Result};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// A status page is a few kilobytes; more than this is not a node.
const RESPONSE_BYTES_MAX: u64 = 16 << 20;

/// The node answered, and said no.
#[derive(Debug, thiserror::Error)]
#[error("status {status}: {why}")]
pub struct Refused {
    pub status: u16,
    pub why: String,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub async fn get_json(address: &str, path: &str, timeout: Duration) -> Result<Value> {
    request_json("GET", address, path, None, timeout).await
}

pub async fn post_json(address: &str, path: &str, body: &Value, timeout: Duration) -> Result<Value> {
    request_json("POST", address, path, Some(body.to_string()), timeout).await
}

async fn request_json(
    method: &str,
    address: &str,
    path: &str,
    body: Option<String>,
    timeout: Duration,
) -> Result<Value> {
    let exchange = async {
        let connected: std::io::Result<Box<dyn Stream>> = match address.contains('/') {
            true => UnixStream::connect(address).await.map(|s| Box::new(s) as _),
            false => TcpStream::connect(address).await.map(|s| Box::new(s) as _),
        };
        let mut stream = connected.with_context(|| format!("connect to {address}"))?;
        let body = body.unwrap_or_default();
        // HTTP/1.0: the answer ends with the connection and is never chunked.
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: node\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(RESPONSE_BYTES_MAX).read_to_end(&mut answer).await?;
        parse_answer(&answer).with_context(|| format!("{method} http://{address}{path}"))
    };
    match tokio::time::timeout(timeout, exchange).await {
        Ok(result) => result,
        Err(_) => bail!("{address} did not answer within {} ms", timeout.as_millis()),
    }
}

fn parse_answer(answer: &[u8]) -> Result<Value> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").context("the answer is not HTTP")?;
    let head = String::from_utf8_lossy(&answer[..end]);
    let body = &answer[end + 4..];
    let status: u16 =
        head.split_whitespace().nth(1).and_then(|word| word.parse().ok()).context("the answer is not HTTP")?;
    if !(200..300).contains(&status) {
        return Err(Refused { status, why: String::from_utf8_lossy(body).trim().to_string() }.into());
    }
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(body).context("the answer is not JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_and_garbage_is_refused() {
        let ok = parse_answer(b"HTTP/1.0 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\":1}").unwrap();
        assert_eq!(ok["a"], 1);
        assert!(parse_answer(b"HTTP/1.0 404 Not Found\r\n\r\nno").unwrap_err().to_string().contains("404"));
        for garbage in [&b""[..], b"\r\n\r\n", b"hello", b"HTTP/1.0 200 OK\r\n\r\n{"] {
            assert!(parse_answer(garbage).is_err());
        }
    }
}
