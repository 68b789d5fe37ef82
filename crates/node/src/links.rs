//! `POST /links`, in a lab: sets what happens to frames on their way to a peer.

use crate::http::Http;
use crate::transport::LinkSettings;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use onetrip_core::NodeId;
use serde::Deserialize;
use std::sync::Arc;

pub fn routes() -> Router<Arc<Http>> {
    Router::new().route("/links", post(links))
}

/// A setting that is absent stays as it is.
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

impl LinkChange {
    fn of(self, now: LinkSettings) -> LinkSettings {
        LinkSettings {
            cut: self.cut.unwrap_or(now.cut),
            one_way_ms: self.one_way_ms.unwrap_or(now.one_way_ms),
            jitter_ms: self.jitter_ms.unwrap_or(now.jitter_ms),
            loss: self.loss.unwrap_or(now.loss),
            duplicate: self.duplicate.unwrap_or(now.duplicate),
            mbit_per_s: self.mbit_per_s.unwrap_or(now.mbit_per_s),
        }
    }
}

/// For the fuzzer.
pub(crate) fn read_change(body: &[u8]) {
    if let Ok(change) = serde_json::from_slice::<LinkChange>(body) {
        let _ = change.of(LinkSettings::default()).validate();
    }
}

/// Changes what happens to frames from this node to a peer; answers with all of the link's settings.
async fn links(State(http): State<Arc<Http>>, Json(change): Json<LinkChange>) -> Response {
    let peer = change.peer;
    let unknown = || (StatusCode::NOT_FOUND, format!("node {peer} is not a peer of this node\n")).into_response();
    let Some(now) = http.transport.link_settings(peer) else { return unknown() };
    let settings = change.of(now);
    if let Err(why) = settings.validate() {
        return (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response();
    }
    match http.transport.set_link(peer, settings) {
        true => Json(settings).into_response(),
        false => unknown(),
    }
}
