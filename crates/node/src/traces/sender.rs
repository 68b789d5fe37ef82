//! The thread that puts the parts of traces together and sends them.

use super::spans::{Maker, Noted};
use super::{Ended, Timed, TracesConfig, Watch};
use crate::config::NodeConfig;
use crate::error::{Error, Result};
use crate::postgres::own_session;
use crate::span::spawn_thread;
use async_trait::async_trait;
use axum::http::uri::Authority;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use onetrip_core::LogIndex;
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use opentelemetry_sdk::Resource;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;

const EVERY: Duration = Duration::from_secs(1);
/// How long one part waits for the other.
const WAITS: Duration = Duration::from_secs(10);
/// Parts that wait, and spans in one request, at most.
const PARTS_MAX: usize = 10_000;
const SPANS_AT_ONCE: usize = 1_000;
const COLLECTOR_TAKES: Duration = Duration::from_secs(5);
const SERVER_TAKES: Duration = Duration::from_secs(3);
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(600);
const ANSWER_BYTES_MAX: usize = 64 << 10;

const QUERY: &str = "
SELECT t.number, t.transaction_id, t.entry, (extract(epoch FROM t.ended) * 1000000)::bigint, t.prepare_us, t.verdict_us,
       t.turn_us, t.local_us, t.everywhere_us, t.whole_us, t.bytes, coalesce(r.rolname::text, t.role::text), t.application
  FROM onetrip.traced_commits($1) AS t LEFT JOIN pg_roles AS r ON r.oid = t.role
 ORDER BY t.number";

/// Starts the thread, which ends with what it returns.  `None`: the node makes no traces.
pub(crate) fn start(config: &NodeConfig) -> Result<Option<Watch>> {
    let Some(traces) = &config.traces else { return Ok(None) };
    let (to_sender, timed) = mpsc::channel(PARTS_MAX);
    let sender = Sender::new(config, traces)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Error::Internal(format!("starting the runtime of traces: {e}")))?;
    spawn_thread("onetrip-traces", move || runtime.block_on(sender.run(timed)))?;
    tracing::info!(endpoint = traces.endpoint, every = traces.every(), "commits are traced");
    Ok(Some(Watch::new(config.node, traces.every(), to_sender)))
}

struct Server {
    socket: PathBuf,
    database: String,
    session: Option<tokio_postgres::Client>,
    /// When it started; its numbers begin anew then.
    started: Option<SystemTime>,
    read: i64,
}

/// What has come of one transaction.
struct Parts {
    since: Instant,
    noted: Option<Noted>,
    timed: Option<Timed>,
}

struct Sender {
    maker: Maker,
    exporter: SpanExporter,
    endpoint: String,
    every: u32,
    server: Option<Server>,
    /// By the transaction's id.
    parts: HashMap<String, Parts>,
    complained: HashMap<&'static str, Instant>,
}

impl Sender {
    fn new(config: &NodeConfig, traces: &TracesConfig) -> Result<Sender> {
        let endpoint = traces.endpoint.trim_end_matches('/').to_string();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{endpoint}/v1/traces"))
            .with_timeout(COLLECTOR_TAKES)
            .build();
        let mut exporter = exporter.map_err(|e| Error::Internal(format!("preparing traces: {e}")))?;
        let resource = Resource::builder_empty().with_service_name("onetrip").with_attributes([
            KeyValue::new("service.namespace", config.cluster.clone()),
            KeyValue::new("service.instance.id", crate::tls::node_name(config.node, &config.cluster)),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("onetrip.region", config.region.to_string()),
        ]);
        exporter.set_resource(&resource.build());
        let server = config.postgres.as_ref().map(|postgres| Server {
            socket: config.data_dir.join(format!(".s.PGSQL.{}", postgres.port)),
            database: postgres.database.clone(),
            session: None,
            started: None,
            read: 0,
        });
        let scope = InstrumentationScope::builder("onetrip").with_version(env!("CARGO_PKG_VERSION")).build();
        let database = config.postgres.as_ref().map_or(String::new(), |postgres| postgres.database.clone());
        let maker = Maker { cluster: config.cluster.clone(), database, scope };
        let (parts, complained, every) = (HashMap::new(), HashMap::new(), traces.every());
        Ok(Sender { maker, exporter, endpoint, every, server, parts, complained })
    }

    async fn run(mut self, mut timed: mpsc::Receiver<Timed>) {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                next = timed.recv() => match next {
                    Some(next) => self.took(next),
                    None => break,
                },
                _ = tick.tick() => self.round().await,
            }
        }
    }

    fn parts_of(&mut self, txn: String) -> Option<&mut Parts> {
        if self.parts.len() >= PARTS_MAX && !self.parts.contains_key(&txn) {
            return None;
        }
        Some(self.parts.entry(txn).or_insert_with(|| Parts { since: Instant::now(), noted: None, timed: None }))
    }

    fn took(&mut self, timed: Timed) {
        if let Some(parts) = self.parts_of(timed.txn.to_string()) {
            parts.timed = Some(timed);
        }
    }

    async fn round(&mut self) {
        if let Err(why) = self.read_server().await {
            self.complain("server", format_args!("what PostgreSQL has noted of traced COMMITs cannot be read: {why}"));
        }
        let mut spans = Vec::new();
        self.parts.retain(|txn, Parts { since, noted, timed }| {
            let ended = timed.as_ref().map(|timed| timed.ended);
            // What has lost is noted by nobody else.
            let is_whole = noted.is_some() && timed.is_some() || ended.is_some_and(|ended| ended != Ended::Committed);
            if !is_whole && since.elapsed() < WAITS {
                return true;
            }
            spans.extend(self.maker.spans(txn, noted.as_ref(), timed.as_ref()));
            false
        });
        while !spans.is_empty() {
            let rest = spans.split_off(spans.len().min(SPANS_AT_ONCE));
            if let Err(why) = self.send(std::mem::replace(&mut spans, rest)).await {
                let endpoint = self.endpoint.clone();
                return self
                    .complain("collector", format_args!("traces are lost: {endpoint} does not take them: {why}"));
            }
        }
    }

    async fn send(&self, spans: Vec<SpanData>) -> std::result::Result<(), String> {
        let sent = tokio::time::timeout(COLLECTOR_TAKES, self.exporter.export(spans)).await;
        sent.map_err(|_| "it does not answer".to_string())?.map_err(|e| e.to_string())
    }

    async fn read_server(&mut self) -> std::result::Result<(), String> {
        let Some(server) = &mut self.server else { return Ok(()) };
        let read = tokio::time::timeout(SERVER_TAKES, server.read(self.every)).await;
        let read = read.unwrap_or_else(|_| Err("it takes too long to answer".into()));
        match read {
            Ok(noted) => {
                for (txn, noted) in noted {
                    if let Some(parts) = self.parts_of(txn) {
                        parts.noted = Some(noted);
                    }
                }
                Ok(())
            }
            Err(why) => {
                server.session = None;
                Err(why)
            }
        }
    }

    fn complain(&mut self, about: &'static str, what: std::fmt::Arguments) {
        let said = self.complained.get(about).is_some_and(|said| said.elapsed() < SAY_AGAIN_AFTER);
        if !said {
            tracing::warn!("{what}");
            self.complained.insert(about, Instant::now());
        }
    }
}

impl Server {
    /// What it has noted since the last time.
    async fn read(&mut self, every: u32) -> std::result::Result<Vec<(String, Noted)>, String> {
        let why = |e: tokio_postgres::Error| e.as_db_error().map_or_else(|| e.to_string(), |e| e.message().to_string());
        if self.session.is_none() {
            // It may not have started yet, or be stopped.
            if !self.socket.exists() {
                return Ok(Vec::new());
            }
            let session = own_session(&self.socket, &self.database, "onetrip traces").await?;
            let ask = "SELECT pg_postmaster_start_time(), coalesce(current_setting('onetrip.trace_every', true), '')";
            let row = session.query_one(ask, &[]).await.map_err(why)?;
            let (started, own): (SystemTime, String) = (row.get(0), row.get(1));
            if self.started.replace(started) != Some(started) {
                self.read = 0;
            }
            if own != every.to_string() {
                return Err(format!(
                    "it was started with other [traces] than the node: restart it ({own:?}, not {every})"
                ));
            }
            self.session = Some(session);
        }
        let session = self.session.as_ref().ok_or("it has no session")?;
        let rows = session.query(QUERY, &[&self.read]).await.map_err(why)?;
        let mut noted = Vec::with_capacity(rows.len());
        for row in rows {
            self.read = row.get(0);
            let us = |at: usize| Duration::from_micros(u64::try_from(row.get::<_, i64>(at)).unwrap_or_default());
            noted.push((
                row.get(1),
                Noted {
                    entry: LogIndex(u64::try_from(row.get::<_, i64>(2)).unwrap_or_default()),
                    ended: SystemTime::UNIX_EPOCH + us(3),
                    prepare: us(4),
                    verdict: us(5),
                    turn: us(6),
                    local: us(7),
                    everywhere: row.get::<_, Option<i64>>(8).map(|_| us(8)),
                    whole: us(9),
                    bytes: row.get(10),
                    role: row.get(11),
                    application: row.get(12),
                },
            ));
        }
        Ok(noted)
    }
}

/// One request, on a connection of its own.
#[derive(Debug)]
struct Client;

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> std::result::Result<Response<Bytes>, HttpError> {
        let (mut parts, body) = request.into_parts();
        let authority: Authority = parts.uri.authority().cloned().ok_or("a request to nowhere")?;
        parts.headers.insert(axum::http::header::HOST, authority.as_str().parse()?);
        parts.uri = parts.uri.path().parse()?;
        let place = (authority.host().trim_matches(['[', ']']), authority.port_u16().unwrap_or(80));
        let stream = tokio::net::TcpStream::connect(place).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let answer = async {
            let answer = sender.send_request(Request::from_parts(parts, Full::new(body))).await?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        let answer = answer.await;
        connection.abort();
        answer
    }
}
