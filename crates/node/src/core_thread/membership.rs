//! What a changed table of members means for this node, what was asked of the table, and orders to make PostgreSQL's data
//! folder anew.

use super::admin::{Answer, Settled};
use super::CoreThread;
use crate::error::{Error, Result};
use crate::inbox::AdminReply;
use crate::postgres::RebuildFrom;
use onetrip_core::consensus::Input;
use onetrip_core::Members;
use std::sync::Arc;

impl CoreThread {
    pub(super) fn set_members(&mut self, members: Arc<Members>) {
        tracing::info!(
            region = %self.config.region, node = %self.config.node, index = %self.certifier.decided(), version = members.version,
            voters = ?members.voters().map(|m| m.id.0).collect::<Vec<_>>(), members = members.members.len(), "members"
        );
        self.transport.set_members(&members);
        self.positions.retain(|id, _| members.contains(*id));
        self.members = members;
        self.members_changed = true;
    }

    /// A node that is no member any more has nothing to say.
    pub(super) fn check_membership(&mut self) -> Result<()> {
        let me = self.config.node;
        if self.members.removed(me) && !self.consensus.conf().contains(me) {
            let at = self.certifier.decided();
            return Err(self.removed(format!("this node was removed from the cluster at log index {at}")));
        }
        Ok(())
    }

    /// Whoever asked for it here hears of it before this node ends.
    pub(super) fn removed(&mut self, why: String) -> Error {
        self.admin.removed(self.config.node, &self.members);
        Error::Removed(why)
    }

    /// Goes on with what operators have asked for.
    pub(super) fn administer(&mut self) -> Result<()> {
        let (settled, commands) = self.admin.work(self.tick, &self.members);
        for settled in settled {
            self.settle(settled)?;
        }
        for command in commands {
            self.step(Input::Change(command));
        }
        Ok(())
    }

    pub(super) fn settle(&mut self, settled: Settled) -> Result<()> {
        let (answer, reply): (Answer, _) = match settled {
            Settled::Reply(answer, reply) => (answer, reply),
            Settled::Joined(answer, id) => match self.members.get(id) {
                // Two nodes under one id would vote twice.
                Some(member) if self.transport.peers().iter().any(|p| p.id == id && p.connected) => {
                    (answer, Err(format!("node {id} in {} joined with this token and runs already", member.region)))
                }
                Some(member) => {
                    let (member, members) = (member.clone(), self.members.clone());
                    let checkpoint = self.encoded_checkpoint();
                    (answer, Ok(AdminReply::Joined { member, members, checkpoint }))
                }
                None => (answer, Err(format!("node {id} was removed meanwhile"))),
            },
        };
        // Nobody waiting any more is no harm.
        let _ = answer.send(reply);
        Ok(())
    }

    /// Orders a new data folder when the apply worker cannot be brought on, and takes an order back when it is carried out.
    pub(super) fn follow_rebuild(&mut self) {
        let ordered = *self.rebuild.borrow();
        match ordered {
            // A copy that was ordered shows enough, unless more has been cut meanwhile.
            Some(order) if self.desk.is_unfed() && order.at_least < self.feedable_from() => self.order_rebuild(),
            Some(order) if self.desk.is_fed() && self.desk.applied() >= Some(order.at_least) => {
                self.rebuild.send_replace(None);
                if order.keep_old {
                    self.healing.done(order.at_least);
                }
            }
            Some(_) => {}
            None if self.desk.is_unfed() => self.order_rebuild(),
            None => {}
        }
    }

    pub(super) fn order_rebuild(&self) {
        let at_least = self.feedable_from();
        tracing::warn!(region = %self.config.region, node = %self.config.node, %at_least, "PostgreSQL's data folder has to be made anew");
        self.rebuild.send_replace(Some(RebuildFrom { at_least, keep_old: false }));
    }

    /// Orders a copy of a PostgreSQL that shows the entry which this one cannot apply, and takes the order back when there is
    /// none any more: the old one can at least be read.
    pub(super) fn heal(&mut self) {
        let (region, node) = (&self.config.region, self.config.node);
        let peers = self.transport.peers();
        // A witness shows nothing, whatever it has decided.
        let has_postgres = |id| self.members.get(id).is_some_and(|m| m.role.has_postgres());
        let shows = |id, at| has_postgres(id) && self.positions.get(&id).is_some_and(|p| p.applied >= at);
        let is_shown = |at| peers.iter().any(|p| p.connected && shows(p.id, at));
        let ordered = *self.rebuild.borrow();
        if let Some(order) = ordered {
            if order.keep_old && !is_shown(order.at_least) {
                tracing::warn!(%region, %node, index = %order.at_least, "no other member that can be reached shows the entry any more: PostgreSQL is not copied");
                self.rebuild.send_replace(None);
            }
            return;
        }
        let Some((at, why)) = self.desk.stuck() else { return };
        let at = *at;
        let refused = match self.healing.may_order() {
            Err(why_not) => Some(why_not),
            Ok(()) if !is_shown(at) => Some("no other member that can be reached shows it".to_string()),
            Ok(()) => None,
        };
        match refused {
            None => {
                tracing::warn!(%region, %node, index = %at, why, "PostgreSQL cannot apply an entry: its data folder is made anew");
                self.rebuild.send_replace(Some(RebuildFrom { at_least: at, keep_old: true }));
            }
            Some(why_not) if self.healing.is_news(at, &why_not) => {
                tracing::error!(%region, %node, index = %at, why, "PostgreSQL cannot apply an entry and is not copied anew: {why_not}");
            }
            Some(_) => {}
        }
    }
}
