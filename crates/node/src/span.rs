//! Whose a log line is: all that a node's threads and tasks log is within its span, which has the fields `region` and `node`.
//!
//! The node's runtime for sockets has one thread, which is in the span, and with it are all tasks there; tasks on the caller's
//! runtime take it along (`in_current_span`).

use crate::config::NodeConfig;
use crate::error::{Error, Result};
use std::thread::JoinHandle;
use tracing::Span;

/// The span's target, of its own: a filter of log lines that shall show whose they are lets `onetrip_node::span=error` pass.
pub const TARGET: &str = "onetrip_node::span";

/// Of the highest level, for it to be there whatever level of lines is asked for.
pub(crate) fn of(config: &NodeConfig) -> Span {
    tracing::error_span!(target: TARGET, "node", region = %config.region, node = %config.node)
}

/// A thread within the span of whoever starts it.
pub(crate) fn spawn_thread<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let span = Span::current();
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || span.in_scope(body));
    thread.map_err(|e| Error::Internal(format!("starting a thread: {e}")))
}
