//! Says from which node a log line is: all that a node's threads and tasks log is within its span, which has the fields
//! `region` and `node`.
//!
//! The node's runtime for sockets has one thread, which is in the span, and so are all its tasks; tasks on the caller's
//! runtime take the span along (`in_current_span`).

use crate::config::NodeConfig;
use crate::error::{Error, Result};
use std::thread::JoinHandle;
use tracing::Span;

/// The span has a target of its own: a filter of log lines must let `onetrip_node::span=error` pass, or the lines do
/// not say from which node they are.
pub const TARGET: &str = "onetrip_node::span";

/// The span has the highest level, so that it is there whatever level of log lines is asked for.
pub(crate) fn of(config: &NodeConfig) -> Span {
    tracing::error_span!(target: TARGET, "node", region = %config.region, node = %config.node)
}

/// Starts a thread within the caller's span.
pub(crate) fn spawn_thread<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let span = Span::current();
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || span.in_scope(body));
    thread.map_err(|e| Error::Internal(format!("starting a thread: {e}")))
}
