//! What the other members say of themselves, asked for when somebody wants to see the whole cluster.
//!
//! It goes by the control channel, which nothing large uses, so an answer is bounded; and it never touches the core's
//! events of other peers, so nothing waits for it.

use super::asked::LOOK;
use super::frame::{Channel, Frame};
use super::link::Link;
use super::Transport;
use bytes::Bytes;
use onetrip_core::NodeId;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A larger answer would hold up heartbeats.
pub(crate) const STATUS_BYTES_MAX: usize = 128 << 10;
/// How many answers to peers this node prepares at the same time.
pub(super) const PLACES: usize = 16;

/// Makes this node's own answer; `None`: it cannot now.
pub(crate) type OwnStatus = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Option<Bytes>> + Send>> + Send + Sync>;

impl Transport {
    /// To be called once, before peers are let in.
    pub(crate) fn set_own_status(&self, own: OwnStatus) {
        let _ = self.own_status.set(own);
    }

    /// Asks every member that is connected, and returns the answers that come within `patience`.  A member that does
    /// not answer in time has none.
    pub(crate) async fn ask_statuses(&self, patience: Duration) -> BTreeMap<NodeId, Bytes> {
        let deadline = Instant::now() + patience.max(LOOK);
        let mut question = self.statuses.begin();
        let frame = Frame::AskStatus { id: question.id }.encode();
        for link in self.links() {
            if link.is_connected() && self.send_to(&link, Channel::Control, frame.clone()) {
                question.was_put_to(link);
            }
        }
        let mut answers = BTreeMap::new();
        while let Some((link, answer)) = question.next(deadline).await {
            answers.extend(answer.map(|report| (link.id, report)));
        }
        answers
    }

    /// Answers a peer, in a task of its own.  If all places are taken it does not, and the peer says so.
    pub(super) fn tell_status(self: &Arc<Self>, link: Arc<Link>, id: u64) {
        let Ok(place) = self.status_places.clone().try_acquire_owned() else { return };
        let Some(own) = self.own_status.get().map(|own| own()) else { return };
        let transport = self.clone();
        tokio::spawn(async move {
            let _place = place;
            if let Some(report) = own.await.filter(|report| report.len() <= STATUS_BYTES_MAX) {
                transport.send_to(&link, Channel::Control, Frame::Status { id, report }.encode());
            }
        });
    }
}
