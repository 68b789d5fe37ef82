//! The console and `GET /cluster`; `GET /status` and `/metrics`; `GET /health`, `/writable`, `/readable` and `/leader`
//! for load balancers; in a lab `POST /links`.  Who may ask is decided in `access`.

use crate::access::{guard, Door};
use crate::bounded_listener;
use crate::cluster::{self, Latest};
use crate::config::NodeConfig;
use crate::console;
use crate::inbox::{Event, Inbox};
use crate::postgres::{Counts, PostgresState, ServerState};
use crate::space::Disks;
use crate::status::{report, CoreStatus, StatusReport, Surroundings};
use crate::tls::HttpTls;
use crate::transport::Transport;
use axum::extract::{RawQuery, State};
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use onetrip_core::consensus::Role;
use onetrip_core::MemberRole;
use serde_json::Value;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Tells the state of the node's PostgreSQL, once there is one.
pub type PostgresWatch = OnceLock<Box<dyn Fn() -> PostgresState + Send + Sync>>;

pub struct Http {
    pub access: Arc<Door>,
    pub tls: Arc<HttpTls>,
    pub config: Arc<NodeConfig>,
    pub transport: Arc<Transport>,
    pub inbox: Inbox,
    pub postgres: Arc<PostgresWatch>,
    /// `None`: the node has no PostgreSQL.
    pub counts: Option<Counts>,
    pub disks: Disks,
    pub latest: Latest,
    pub started: Instant,
    /// What was last told to those who need no token.
    pub told: Recent<StatusReport>,
}

/// Whoever needs no token has the core thread asked at most this often.
const TOLD_FOR: Duration = Duration::from_millis(100);

/// A core thread that takes longer to answer is stuck in its disk.
const PATIENCE: Duration = Duration::from_secs(3);

/// An answer, and when it came.  That there was none is one too: who asks next has waited long enough.
pub struct Recent<T>(tokio::sync::Mutex<Option<(Instant, Option<T>)>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent(Default::default())
    }
}

impl<T: Clone> Recent<T> {
    async fn get(&self, good_for: Duration, ask: impl Future<Output = Option<T>>) -> Option<T> {
        let mut told = self.0.lock().await;
        if let Some((_, answer)) = told.as_ref().filter(|(at, _)| at.elapsed() < good_for) {
            return answer.clone();
        }
        let answer = ask.await;
        *told = Some((Instant::now(), answer.clone()));
        answer
    }
}

impl Http {
    pub async fn run(self: Arc<Self>, listener: tokio::net::TcpListener) {
        let routes = Router::new()
            .route("/status", get(status))
            .route("/cluster", get(cluster))
            .route("/metrics", get(metrics))
            .route("/health", get(health))
            .route("/writable", get(writable))
            .route("/readable", get(readable))
            .route("/leader", get(leader))
            .merge(console::routes(self.access.clone()));
        #[cfg(feature = "lab")]
        let routes = if self.config.lab { routes.merge(crate::links::routes()) } else { routes };
        let routes = routes.with_state(self.clone()).layer(from_fn_with_state(self.access.clone(), guard));
        bounded_listener::serve(listener, routes, self.tls.clone()).await;
    }

    /// For those who need no more than what is known without asking anybody.
    async fn report(&self) -> Option<StatusReport> {
        let core = ask_core(&self.inbox).await?;
        Some(report(&self.config, core, self.surroundings(None)))
    }

    /// The same, not older than [`TOLD_FOR`].
    async fn recent_report(&self) -> Option<StatusReport> {
        self.told.get(TOLD_FOR, self.report()).await
    }

    /// Whether this node knows a leader, without which there is no majority here; `None` if it does not answer.
    pub(crate) async fn has_leader(&self) -> Option<bool> {
        self.recent_report().await.map(|report| report.leader.is_some())
    }

    /// The same with what PostgreSQL has counted.
    pub(crate) async fn gather(&self) -> Option<(CoreStatus, StatusReport)> {
        let ready = self.postgres.get().is_some_and(|watch| watch().state == ServerState::Ready);
        let counts = async {
            match self.counts.as_ref().filter(|_| ready) {
                Some(counts) => Some(counts.now().await),
                None => None,
            }
        };
        let (core, counts) = tokio::join!(ask_core(&self.inbox), counts);
        let core = core?;
        Some((core.clone(), report(&self.config, core, self.surroundings(counts))))
    }

    fn surroundings(&self, counts: Option<Arc<Result<Value, String>>>) -> Surroundings {
        Surroundings {
            peers: self.transport.peers(),
            postgres: self.postgres.get().map(|watch| watch()),
            certificate_good_until_s: self.transport.tls().map(|tls| tls.good_until_s()),
            authority_good_until_s: self.transport.tls().map(|tls| tls.authority().good_until_s()),
            http_certificate_good_until_s: self.tls.good_until_s(),
            up: self.started.elapsed(),
            disks: self.disks.now(),
            silent_disks: self.disks.silent(),
            counts,
        }
    }
}

/// What the core thread knows now; `None`: it does not answer.
pub(crate) async fn ask_core(inbox: &Inbox) -> Option<CoreStatus> {
    let (answer, answered) = oneshot::channel();
    let ask = async {
        inbox.send(Event::Status(answer)).await;
        answered.await.ok()
    };
    tokio::time::timeout(PATIENCE, ask).await.ok()?
}

pub(crate) const STUCK: (StatusCode, &str) =
    (StatusCode::SERVICE_UNAVAILABLE, "the node does not answer: its disk may be stuck\n");

pub(crate) async fn status(State(http): State<Arc<Http>>) -> Response {
    match http.gather().await {
        Some((_, report)) => Json(report).into_response(),
        None => STUCK.into_response(),
    }
}

pub(crate) async fn cluster(State(http): State<Arc<Http>>) -> Response {
    match cluster::cluster(&http).await {
        // The console asks every second, and a connection lasts ten: so it never ends in the middle of an answer.
        Some(json) => ([(CONTENT_TYPE, "application/json"), (CONNECTION, "close")], json).into_response(),
        None => STUCK.into_response(),
    }
}

async fn metrics(State(http): State<Arc<Http>>) -> Response {
    match http.report().await {
        Some(report) => ([(CONTENT_TYPE, crate::metrics::CONTENT_TYPE)], crate::metrics::text(&report)).into_response(),
        None => STUCK.into_response(),
    }
}

/// 200 if this node knows a leader, its PostgreSQL takes connections and can be brought on, and its disk answers, else
/// 503 and the problems.
async fn health(State(http): State<Arc<Http>>) -> Response {
    let Some(report) = http.recent_report().await else { return STUCK.into_response() };
    let ready = report.postgres.as_ref().is_none_or(|p| p.state == crate::postgres::ServerState::Ready);
    if report.leader.is_some() && ready && !report.needs_copy && report.disk_silent_ms.is_none() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, report.problems.join("\n") + "\n").into_response()
}

fn answer(refused: Option<String>) -> Response {
    match refused {
        None => "ok\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

/// 200 if a client's transaction can be expected to commit here, else 503 and why not; with `?max_lag=` as for
/// [`readable`], too.
async fn writable(State(http): State<Arc<Http>>, RawQuery(query): RawQuery) -> Response {
    let window = http.config.window_entries;
    within(&http, query, |report, max_lag| not_writable(report, window).or_else(|| too_old(report, max_lag))).await
}

fn not_writable(report: &StatusReport, window_entries: u64) -> Option<String> {
    if report.members.iter().any(|m| m.id == report.node && m.role == MemberRole::Replica) {
        return Some("this node is a read replica".into());
    }
    let stuck =
        || report.stuck_at.map(|at| format!("PostgreSQL cannot apply entry {at}, so nothing later commits here"));
    let disk =
        || report.disk_silent_ms.map(|ms| format!("the disk of the log has synced nothing for {:.0} s", ms / 1e3));
    let no_leader = || report.leader.is_none().then(|| "no leader: there is no majority here now".into());
    let behind = || beyond_window(report.lag_entries, window_entries);
    not_serving(report).or_else(stuck).or_else(disk).or_else(no_leader).or_else(behind)
}

/// Not all entries count in the certifier's window, so this may say so a little early.
fn beyond_window(lag_entries: Option<u64>, window_entries: u64) -> Option<String> {
    let behind = lag_entries.filter(|behind| *behind > window_entries)?;
    Some(format!(
        "PostgreSQL is {behind} entries behind, more than window_entries ({window_entries}): what begins now is too old to commit"
    ))
}

/// 200 if a client can read here; with `?max_lag=` (milliseconds), only if what it reads is not older than that as far
/// as this node knows, which takes a leader.
async fn readable(State(http): State<Arc<Http>>, RawQuery(query): RawQuery) -> Response {
    within(&http, query, |report, max_lag| not_serving(report).or_else(|| too_old(report, max_lag))).await
}

/// The answer to a question that may end with `?max_lag=`.
async fn within(
    http: &Http,
    query: Option<String>,
    refused: impl FnOnce(&StatusReport, Option<f64>) -> Option<String>,
) -> Response {
    let max_lag = match query.as_deref().map(|query| query.strip_prefix("max_lag=").and_then(|ms| ms.parse().ok())) {
        Some(None) => {
            return (StatusCode::BAD_REQUEST, "give a number of milliseconds, as in ?max_lag=500\n").into_response()
        }
        given => given.flatten(),
    };
    http.recent_report().await.map_or_else(|| STUCK.into_response(), |report| answer(refused(&report, max_lag)))
}

fn too_old(report: &StatusReport, max_lag: Option<f64>) -> Option<String> {
    let max_lag = max_lag?;
    match (&report.leader, report.lag_ms) {
        (None, _) => Some("no leader: how old the rows here are is not known".to_string()),
        (_, None) => Some("how old the rows here are is not known yet".to_string()),
        (_, Some(lag)) => (lag > max_lag).then(|| format!("the rows here are {lag:.0} ms old, {max_lag} are allowed")),
    }
}

fn not_serving(report: &StatusReport) -> Option<String> {
    let Some(postgres) = &report.postgres else { return Some("this node has no PostgreSQL".into()) };
    if postgres.state != crate::postgres::ServerState::Ready {
        return Some("PostgreSQL does not take connections".into());
    }
    (!report.apply_worker || report.applied.is_none()).then(|| "the apply worker does not run".into())
}

/// 200 if this node leads, else 503 and who does.
async fn leader(State(http): State<Arc<Http>>) -> Response {
    let Some(report) = http.recent_report().await else { return STUCK.into_response() };
    let leader = report.leader.filter(|leader| leader.node != report.node);
    answer(match (report.role, leader) {
        (Role::Leader, _) => None,
        (_, Some(leader)) => Some(format!("node {} in {} leads", leader.node, leader.region)),
        (_, None) => Some("no leader".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_region_whose_transactions_would_be_too_old_is_not_writable() {
        assert_eq!((beyond_window(None, 10), beyond_window(Some(10), 10)), (None, None));
        assert!(beyond_window(Some(11), 10).unwrap().contains("11 entries behind"));
    }

    /// Goal: of those who ask while there is no answer, one waits for it.
    #[tokio::test]
    async fn that_there_is_no_answer_is_told_to_all_who_wait() {
        let (told, asked) = (Recent::<u8>::default(), Cell::new(0));
        let ask = |answer| {
            asked.set(asked.get() + 1);
            async move {
                tokio::task::yield_now().await;
                answer
            }
        };
        let day = Duration::from_secs(86_400);
        let get = || told.get(day, async { ask(None).await });
        assert_eq!(tokio::join!(get(), get(), get()), (None, None, None));
        assert_eq!(asked.get(), 1);
        assert_eq!(told.get(Duration::ZERO, async { ask(Some(7)).await }).await, Some(7));
        assert_eq!((get().await, asked.get()), (Some(7), 2));
    }
}
