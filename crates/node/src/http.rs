//! `GET /status`, `GET /health`, and in a lab `POST /links`.  There is no password, so the port is on loopback unless
//! `http_anywhere` is set.

use crate::bounded_listener::BoundedListener;
use crate::config::NodeConfig;
use crate::inbox::{Event, Inbox};
use crate::postgres::PostgresState;
use crate::status::{report, CoreStatus, StatusReport};
use crate::transport::Transport;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
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
        let routes = Router::new().route("/status", get(status)).route("/health", get(health));
        #[cfg(feature = "lab")]
        let routes = if self.config.lab { routes.merge(crate::links::routes()) } else { routes };
        if let Err(e) = axum::serve(BoundedListener::new(listener), routes.with_state(self.clone())).await {
            tracing::error!("HTTP ended: {e}");
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
