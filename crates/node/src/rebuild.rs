//! Whose PostgreSQL this node copies when its own has to be made anew: the nearest member that shows enough.

use crate::config::NodeConfig;
use crate::http::ask_core;
use crate::inbox::Inbox;
use crate::postgres::{Boxed, Donor, Donors, Stream};
use crate::status::{is_there, CoreStatus};
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
            choose(&core, &self.transport.peers(), &self.config, at_least)
        })
    }

    fn connect(&self, donor: NodeId) -> Boxed<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move { Ok(Box::new(self.transport.postgres_tunnel(donor).await?) as Box<dyn Stream>) })
    }
}

fn choose(
    core: &CoreStatus,
    peers: &[PeerState],
    config: &NodeConfig,
    at_least: Option<LogIndex>,
) -> Result<Vec<Donor>, String> {
    // A copy that shows this much can be brought up to date from this node's log.
    let at_least = at_least.unwrap_or(core.feedable_from);
    let there = |id| is_there(id, config.node, &core.silent, peers);
    let peer = |id| peers.iter().find(|p| p.id == id).filter(|_| there(id));
    let mut found = Vec::new();
    let mut others = Vec::new();
    for member in core.members.members.iter().filter(|m| m.id != config.node && m.role.has_postgres()) {
        let name = format!("node {} in {}", member.id, member.region);
        match (peer(member.id), core.positions.get(&member.id).map(|p| p.applied)) {
            (Some(peer), Some(shows)) if shows >= at_least => found.push(peer),
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
    found.sort_by(|a, b| {
        let near = |p: &PeerState| p.region != config.region;
        near(a).cmp(&near(b)).then(rtt(a).total_cmp(&rtt(b))).then(a.id.cmp(&b.id))
    });
    Ok(found.into_iter().map(|p| Donor { node: p.id, region: p.region.clone() }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Position;
    use onetrip_core::{Member, MemberRole, Members, PreferredLeader};
    use std::time::{Duration, Instant};

    /// Goal: a copy can be brought on, and no donor that would do is passed over.  Method: this node no longer knows
    /// what was committed up to 500; its log, which is kept for another member, begins long before; or, in an idle
    /// cluster, after the last entry that changed rows.
    #[test]
    fn without_an_order_a_donor_shows_as_much_as_this_node_can_bring_on() {
        let port = |port| ([127, 0, 0, 1], port).into();
        let config = NodeConfig::new("c".into(), NodeId(1), "r1".into(), port(1), port(2));
        let member = |id: u32| Member {
            id: NodeId(id),
            region: format!("r{id}").as_str().into(),
            address: String::new(),
            role: MemberRole::Voter,
            voter: true,
            slot: Some(id),
            replaces: None,
            joined: None,
        };
        let members = Arc::new(Members::bootstrap((1..=4).map(member).collect(), PreferredLeader::Auto, 8));
        let peer = |id: u32| PeerState {
            id: NodeId(id),
            region: format!("r{id}").as_str().into(),
            connected: true,
            rtt_ms: Some(f64::from(id)),
            rtt_least: None,
            rtt_median: None,
            postgres_version: None,
            sent_bytes: 0,
            relayed_bytes: 0,
            not_rehearsed: 0,
            level: None,
            trouble: None,
            cut: false,
        };
        let peers: Vec<PeerState> = (2..=4).map(peer).collect();
        let position = |id: u32, index| {
            let (at, lag) = (LogIndex(index), Duration::ZERO);
            (NodeId(id), Position { applied: at, durable: at, lag_entries: 0, lag, heard: Instant::now() })
        };
        for log_first in [100, 700] {
            let core = CoreStatus {
                log_first: LogIndex(log_first),
                feedable_from: LogIndex(500),
                last_committed: LogIndex(600),
                positions: [position(2, 300), position(3, 500), position(4, 600)].into(),
                ..CoreStatus::of(members.clone())
            };
            let chosen = |at_least: Option<u64>| -> Vec<u32> {
                choose(&core, &peers, &config, at_least.map(LogIndex)).unwrap().iter().map(|d| d.node.0).collect()
            };
            assert_eq!((chosen(None), chosen(Some(600))), (vec![3, 4], vec![4]), "the log begins at {log_first}");
            let why = choose(&core, &peers, &config, Some(LogIndex(601))).unwrap_err();
            assert!(why.contains("log index 601: node 2 in r2 stands at 300, "), "{why}");
        }
    }
}
