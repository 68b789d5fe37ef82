//! Injected bugs in how members learn from notices what is committed: one for each condition under which a notice
//! counts.

use crate::ctx::{Ctx, InjectedBug};
use crate::host::SimHost;
use crate::node::{Arrival, Departure, Node, Result};
use onetrip_core::consensus::{Message, Notice};
use onetrip_core::router::Log;
use onetrip_core::{LogIndex, NodeId, Term};
use raft::eraftpb::{Entry as RaftEntry, MessageType};
use std::collections::BTreeMap;

/// What a node has heard and said, for the bugs that count notices by themselves.
#[derive(Default)]
pub struct Overheard {
    pub heard: BTreeMap<NodeId, Notice>,
    pub said: Option<Notice>,
}

impl SimHost<'_> {
    fn tell_all(&mut self, notice: Notice) {
        for member in self.body.members.members.iter().filter(|m| m.id != self.body.id) {
            self.body.departures.push((self.body.clock, Departure::Notice(member.id, notice)));
        }
    }

    pub fn wrote(&mut self, entries: &[RaftEntry]) {
        if let Some(last) = entries.last().filter(|_| self.ctx.options.bug == Some(InjectedBug::NoticeBeforeSync)) {
            self.tell_all(Notice { term: Term(last.term), index: LogIndex(last.index) });
            // The worst moment to die.
            if self.ctx.rng.one_in(50) {
                self.body.fuse = Some(0);
            }
        }
    }

    pub fn answered(&mut self, message: &Message) {
        let is_promise = message.get_msg_type() == MessageType::MsgAppendResponse && !message.reject;
        if is_promise && self.ctx.options.bug == Some(InjectedBug::NoticeOfLearner) {
            self.tell_all(Notice { term: Term(message.term), index: LogIndex(message.index) });
        }
    }
}

impl Node {
    /// The notice of node `from`, as the bug understands it.
    pub fn misheard(&mut self, mut from: NodeId, mut notice: Notice, ctx: &mut Ctx) -> Arrival {
        let (leadership, conf) = (self.replica.consensus.leadership(), self.replica.consensus.conf());
        match ctx.options.bug {
            Some(InjectedBug::NoticeOfAnyTerm) => notice.term = leadership.term,
            Some(InjectedBug::NoticeOfLearner) if !conf.votes(from) => {
                let mut others = conf.voters.iter().filter(|id| **id != self.id && Some(**id) != leadership.leader);
                from = others.next().copied().unwrap_or(from);
            }
            Some(InjectedBug::NoticeOfOldTerms) => {
                let heard = self.body.overheard.heard.entry(from).or_insert(notice);
                *heard = notice.max(*heard);
            }
            _ => {}
        }
        Arrival::Notice(from, notice)
    }

    /// Called after a stretch of work, before anything is sent.
    pub fn misguided(&mut self, ctx: &mut Ctx) -> Result<()> {
        let last = Log::last_index(self.replica.consensus.log());
        match ctx.options.bug {
            Some(InjectedBug::NoticeOfLastIndex) => {
                let notice = Notice { term: self.replica.consensus.leadership().term, index: last };
                if self.body.overheard.said.replace(notice) != Some(notice) {
                    SimHost { body: &mut self.body, ctx }.tell_all(notice);
                }
            }
            Some(InjectedBug::OldTerm) => {
                let matched = self.replica.consensus.status().matched.into_iter().map(|(_, m)| m).collect();
                self.count_any_term(matched, ctx)?;
            }
            Some(InjectedBug::NoticeOfOldTerms) if !self.is_leader() => {
                let term = self.replica.consensus.leadership().term;
                let said = self.body.overheard.said.filter(|n| n.term == term).map_or(LogIndex::ZERO, |n| n.index);
                let heard = |id: &NodeId| match *id == self.id {
                    true => said,
                    false => {
                        self.body.overheard.heard.get(id).filter(|n| n.term == term).map_or(LogIndex::ZERO, |n| n.index)
                    }
                };
                let matched = self.replica.consensus.conf().voters.iter().map(|id| heard(id).min(said)).collect();
                self.count_any_term(matched, ctx)?;
            }
            _ => {}
        }
        Ok(())
    }
}
