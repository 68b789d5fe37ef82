//! Makes PostgreSQL look read-only while there is no majority, if `read_only_without_majority` asks for it: new
//! transactions are then read-only unless they ask otherwise, and drivers that look for a server that can be written
//! pass it by.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::http::Http;
use crate::postgres::Supervisor;

const LOOK_EVERY: Duration = Duration::from_millis(250);
/// An election is no loss of the majority.
const ELECTION_WAIT: Duration = Duration::from_secs(3);

/// Looks for as long as it is polled.
pub(crate) async fn watch(http: Arc<Http>, supervisor: &Supervisor) -> Infallible {
    let mut without_since = None;
    let mut shown = false;
    loop {
        // A node that does not answer is stuck in something else.
        if let Some(leads) = http.has_leader().await {
            without_since = (!leads).then(|| without_since.unwrap_or_else(Instant::now));
            let read_only = without_since.is_some_and(|since| since.elapsed() >= ELECTION_WAIT);
            if shown != read_only {
                match supervisor.look_read_only(read_only) {
                    Ok(()) if read_only => {
                        tracing::warn!("no majority: PostgreSQL looks read-only to new transactions")
                    }
                    Ok(()) => tracing::info!("PostgreSQL takes changes again"),
                    // It is tried again.
                    Err(e) => tracing::debug!("PostgreSQL was not told whether there is a majority: {e}"),
                }
                shown = supervisor.looks_read_only();
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
