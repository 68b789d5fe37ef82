//! `GET /status`, `GET /health`, and in a lab `POST /links`.  Loopback only, no password.

use crate::config::NodeConfig;
use crate::guests::Guests;
use crate::inbox::{Event, Inbox};
use crate::postgres::PostgresState;
use crate::status::{report, CoreStatus, StatusReport};
use crate::transport::{LinkSettings, Transport};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use onetrip_core::NodeId;
use serde::Deserialize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::oneshot;

/// Tells the state of the node's PostgreSQL, once there is one.
pub type PostgresWatch = OnceLock<Box<dyn Fn() -> PostgresState + Send + Sync>>;

pub struct Http {
    pub config: Arc<NodeConfig>,
    pub transport: Arc<Transport>,
    pub inbox: Inbox,
    pub postgres: Arc<PostgresWatch>,
}

/// A core thread that takes longer to answer is stuck in its disk.
const PATIENCE: Duration = Duration::from_secs(3);

impl Http {
    pub async fn run(self: Arc<Self>, listener: tokio::net::TcpListener) {
        let mut routes = Router::new().route("/status", get(status)).route("/health", get(health));
        if self.config.lab {
            routes = routes.route("/links", post(links));
        }
        if let Err(e) = axum::serve(Guests::new(listener), routes.with_state(self.clone())).await {
            tracing::error!(region = %self.config.region, node = %self.config.node, "HTTP ended: {e}");
        }
    }

    async fn report(&self) -> Option<StatusReport> {
        let core = ask_core(&self.inbox).await?;
        let postgres = self.postgres.get().map(|watch| watch());
        Some(report(&self.config, core, self.transport.peers(), postgres))
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

const STUCK: (StatusCode, &str) =
    (StatusCode::SERVICE_UNAVAILABLE, "the node does not answer: its disk may be stuck\n");

async fn status(State(http): State<Arc<Http>>) -> Response {
    match http.report().await {
        Some(report) => Json(report).into_response(),
        None => STUCK.into_response(),
    }
}

/// 200 if this node knows a leader and its PostgreSQL takes connections, else 503 and the problems.
async fn health(State(http): State<Arc<Http>>) -> Response {
    let Some(report) = http.report().await else { return STUCK.into_response() };
    let ready = report.postgres.as_ref().is_none_or(|p| p.state == crate::postgres::ServerState::Ready);
    if report.leader.is_some() && ready {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, report.problems.join("\n") + "\n").into_response()
}

/// What is left out stays as it is.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkChange {
    peer: NodeId,
    cut: Option<bool>,
    one_way_ms: Option<f64>,
    jitter_ms: Option<f64>,
    loss: Option<f64>,
    duplicate: Option<f64>,
    mbit_per_s: Option<f64>,
}

/// Changes what happens to frames from this node to a peer; answers with all of the link's settings.
async fn links(State(http): State<Arc<Http>>, Json(change): Json<LinkChange>) -> Response {
    let peer = change.peer;
    let unknown = || (StatusCode::NOT_FOUND, format!("node {peer} is no peer of this node\n")).into_response();
    let Some(now) = http.transport.link_settings(peer) else { return unknown() };
    let settings = LinkSettings {
        cut: change.cut.unwrap_or(now.cut),
        one_way_ms: change.one_way_ms.unwrap_or(now.one_way_ms),
        jitter_ms: change.jitter_ms.unwrap_or(now.jitter_ms),
        loss: change.loss.unwrap_or(now.loss),
        duplicate: change.duplicate.unwrap_or(now.duplicate),
        mbit_per_s: change.mbit_per_s.unwrap_or(now.mbit_per_s),
    };
    if let Err(why) = settings.validate() {
        return (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response();
    }
    match http.transport.set_link(peer, settings) {
        true => Json(settings).into_response(),
        false => unknown(),
    }
}
