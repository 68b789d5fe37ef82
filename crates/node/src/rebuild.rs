//! Whose PostgreSQL this node copies when its own has to be made anew: the nearest member that shows enough.

use crate::config::NodeConfig;
use crate::http::ask_core;
use crate::inbox::Inbox;
use crate::postgres::{Boxed, Donor, Donors, Stream};
use crate::status::is_there;
use crate::transport::{PeerState, Transport};
use onetrip_core::{LogIndex, NodeId};
use std::io;
use std::sync::Arc;

pub struct OtherMembers {
    pub config: Arc<NodeConfig>,
    pub transport: Arc<Transport>,
    pub inbox: Inbox,
}

impl Donors for OtherMembers {
    fn choose(&self, at_least: Option<LogIndex>) -> Boxed<'_, Result<Vec<Donor>, String>> {
        Box::pin(async move {
            let core = ask_core(&self.inbox).await.ok_or("the node does not answer: its disk may be stuck")?;
            // A copy that shows this much can be brought up to date from this node's log.
            let below = LogIndex(core.log_first.0.saturating_sub(1));
            let at_least = at_least.unwrap_or(below.min(core.last_committed));
            let peers = self.transport.peers();
            let there = |id| is_there(id, self.config.node, &core.silent, &peers);
            let peer = |id| peers.iter().find(|p: &&PeerState| p.id == id).filter(|_| there(id));
            let mut found = Vec::new();
            let mut others = Vec::new();
            for member in core.members.members.iter().filter(|m| m.id != self.config.node && m.role.has_postgres()) {
                let name = format!("node {} in {}", member.id, member.region);
                match (peer(member.id), core.positions.get(&member.id).map(|p| p.applied)) {
                    (Some(peer), Some(shows)) if shows >= at_least => found.push((peer, shows)),
                    (Some(_), Some(shows)) => others.push(format!("{name} stands at {shows}")),
                    (Some(_), None) => others.push(format!("{name} has not said where it stands")),
                    (None, _) => others.push(format!("{name} cannot be reached")),
                }
            }
            if found.is_empty() {
                let others = if others.is_empty() { "there is no other".to_string() } else { others.join(", ") };
                return Err(format!("no other member's PostgreSQL shows log index {at_least}: {others}"));
            }
            let rtt = |p: &PeerState| p.rtt_ms.unwrap_or(f64::INFINITY);
            found.sort_by(|(a, _), (b, _)| {
                let near = |p: &PeerState| p.region != self.config.region;
                near(a).cmp(&near(b)).then(rtt(a).total_cmp(&rtt(b))).then(a.id.cmp(&b.id))
            });
            Ok(found.into_iter().map(|(p, shows)| Donor { node: p.id, region: p.region.clone(), shows }).collect())
        })
    }

    fn connect(&self, donor: NodeId) -> Boxed<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move { Ok(Box::new(self.transport.postgres_tunnel(donor).await?) as Box<dyn Stream>) })
    }
}
