//! What somebody asked this node for: changes of the table of members, and entries to be left out of every PostgreSQL.
//! A request is proposed until the table or the log shows that it is done, or for ten seconds, and as long as a large
//! entry may take on its way.
//!
//! Any node takes requests; the leader appends them.  A proposal may be lost, or may reach the log when the table that
//! it was made for has changed.  Then the table's version is a new one, and the next proposal is made for that.

use super::{Host, Replica, Store, SILENT_AFTER};
use crate::certifier::Certifier;
use crate::consensus::Input;
use crate::ids::{LogIndex, NodeId};
use crate::members::{Change, Command, Members, Refused};
use crate::router::{ticks_on_the_way, Outbox};
use bytes::Bytes;
use std::time::Duration;

/// 10 s, and 0.5 s between two proposals for the same table, or of the same entry; for a large entry more.
const PATIENCE_TICKS: u64 = 500;
const AGAIN_TICKS: u64 = 25;
/// A refusal by this node's table counts only after this long: the table may be a little behind.
const REFUSE_TICKS: u64 = 25;
/// With this many requests open, further ones are refused.
const OPEN_MAX: usize = 100;

/// Names a request for the life of the node; the host knows who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    /// The table of members, as this node has it, does not allow the change.
    #[error("{0}")]
    Refused(String),
    /// It may still be done later.
    #[error("this was not decided within 10 s ({0}): is there a leader, and a majority{rows}? Ask again", rows = rows(.0))]
    NotDecided(Change),
    #[error("too many requests are under way")]
    TooMany,
    #[error(
        "it was not decided in time whether log index {0} is left out: is there a leader, and a majority? Ask again"
    )]
    NotLeftOut(LogIndex),
}

fn rows(change: &Change) -> &'static str {
    match change {
        Change::Remove(_) => ", and do the members that stay have the rows",
        _ => "",
    }
}

/// The result of a request: either the table shows the change, or why it does not.
pub type Answer = (RequestId, Change, Result<(), NotDone>);

/// The result of a request to leave an entry out: by which entry it is left out, or why it is not.
pub type LeftOut = (RequestId, LogIndex, Result<LogIndex, NotDone>);

struct Open {
    id: RequestId,
    change: Change,
    /// The members when it was asked for.
    members: Vec<NodeId>,
    give_up_at: u64,
    /// The version of the table for which it was last proposed, and the tick.
    proposed: Option<(u64, u64)>,
}

struct OpenSkip {
    id: RequestId,
    index: LogIndex,
    raw: Bytes,
    give_up_at: u64,
    propose_at: u64,
}

#[derive(Default)]
pub(super) struct Requests {
    open: Vec<Open>,
    answers: Vec<Answer>,
    skips: Vec<OpenSkip>,
    left_out: Vec<LeftOut>,
}

fn ids(members: &Members) -> Vec<NodeId> {
    members.members.iter().map(|member| member.id).collect()
}

impl Requests {
    /// The changes that are to be proposed now, for the first time or again.
    /// `loses_rows` says why a change may not be made although the table allows it.
    fn due(
        &mut self,
        tick: u64,
        members: &Members,
        loses_rows: impl Fn(&Change) -> Result<(), Refused>,
    ) -> Vec<Command> {
        let mut commands = Vec::new();
        for mut open in std::mem::take(&mut self.open) {
            let answer = |open: Open, result| (open.id, open.change, result);
            if open.change.is_shown_by(members) {
                self.answers.push(answer(open, Ok(())));
                continue;
            }
            if tick >= open.give_up_at {
                let why = NotDone::NotDecided(open.change.clone());
                self.answers.push(answer(open, Err(why)));
                continue;
            }
            // Whether all know the level was seen before, and of these.
            if matches!(open.change, Change::RaiseLevel(_)) && open.members != ids(members) {
                let why = "the members have changed since they were asked which release they run; ask again";
                self.answers.push(answer(open, Err(NotDone::Refused(why.into()))));
                continue;
            }
            let command = Command { expected_version: members.version, change: open.change.clone() };
            match members.clone().apply(&command).and_then(|()| loses_rows(&command.change)) {
                Ok(_) => {
                    let last = open.proposed;
                    if last.is_none_or(|(version, at)| version != members.version || at + AGAIN_TICKS <= tick) {
                        open.proposed = Some((members.version, tick));
                        commands.push(command);
                    }
                }
                Err(_) if tick + PATIENCE_TICKS < open.give_up_at + REFUSE_TICKS => {}
                Err(why) => {
                    self.answers.push(answer(open, Err(NotDone::Refused(why.0))));
                    continue;
                }
            }
            self.open.push(open);
        }
        commands
    }

    fn leave_out(&mut self, id: RequestId, index: LogIndex, raw: Bytes, tick: u64) {
        // So that one that was lost can still come a second time.
        let give_up_at = tick + PATIENCE_TICKS + 2 * ticks_on_the_way(&raw);
        self.skips.push(OpenSkip { id, index, raw, give_up_at, propose_at: tick });
    }

    /// Likewise, the entries that leave others out.
    fn due_skips(&mut self, tick: u64, certifier: &Certifier) -> Vec<Bytes> {
        let mut entries = Vec::new();
        for mut open in std::mem::take(&mut self.skips) {
            if let Some(by) = certifier.was_left_out_by(open.index) {
                self.left_out.push((open.id, open.index, Ok(by)));
                continue;
            }
            if tick >= open.give_up_at {
                self.left_out.push((open.id, open.index, Err(NotDone::NotLeftOut(open.index))));
                continue;
            }
            if tick >= open.propose_at {
                open.propose_at = tick + AGAIN_TICKS + ticks_on_the_way(&open.raw);
                entries.push(open.raw.clone());
            }
            self.skips.push(open);
        }
        entries
    }
}

impl<S: Store, O: Outbox> Replica<S, O> {
    /// The answer comes from [`Replica::take_answers`].
    pub fn ask<H: Host<Store = S, Outbox = O>>(&mut self, id: RequestId, change: Change, host: &mut H) {
        if self.requests.open.len() >= OPEN_MAX {
            return self.requests.answers.push((id, change, Err(NotDone::TooMany)));
        }
        let (members, give_up_at) = (ids(&self.members), self.tick + PATIENCE_TICKS);
        self.requests.open.push(Open { id, change, members, give_up_at, proposed: None });
        self.work_requests(host);
    }

    /// Has `index` left out of every PostgreSQL, by the entry `raw` ([`crate::Entry::encode_skip`]).  The caller has
    /// asked [`Replica::why_not_left_out`] before.  The answer comes from [`Replica::take_left_out`].
    pub fn leave_out<H: Host<Store = S, Outbox = O>>(
        &mut self,
        id: RequestId,
        index: LogIndex,
        raw: Bytes,
        host: &mut H,
    ) {
        if self.requests.skips.len() >= OPEN_MAX {
            return self.requests.left_out.push((id, index, Err(NotDone::TooMany)));
        }
        self.requests.leave_out(id, index, raw, self.tick);
        self.work_requests(host);
    }

    pub fn take_left_out(&mut self) -> Vec<LeftOut> {
        std::mem::take(&mut self.requests.left_out)
    }

    /// Nobody waits for this request any more.
    pub fn withdraw(&mut self, id: RequestId) {
        self.requests.open.retain(|open| open.id != id);
        self.requests.skips.retain(|open| open.id != id);
    }

    pub fn take_answers(&mut self) -> Vec<Answer> {
        // A new member gets a checkpoint of this moment.
        let waits = |change: &Change| self.certifier.is_between_parts() && matches!(change, Change::Join { .. });
        let answers = std::mem::take(&mut self.requests.answers);
        let (later, now) = answers.into_iter().partition(|(_, change, result)| result.is_ok() && waits(change));
        self.requests.answers = later;
        now
    }

    /// This node has left the cluster, and may never see that in its own log.
    pub fn has_left(&mut self) {
        let mut answers = std::mem::take(&mut self.requests.answers);
        self.requests.open.retain(|open| {
            let is_this = open.change == Change::Remove(self.id);
            if is_this {
                answers.push((open.id, open.change.clone(), Ok(())));
            }
            !is_this
        });
        self.requests.answers = answers;
    }

    /// To be called on each tick, and when the table has changed.
    pub(super) fn work_requests<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        let now = host.now();
        let mut requests = std::mem::take(&mut self.requests);
        let due = requests.due(self.tick, &self.members, |change| self.keeps_rows(change, now));
        self.requests = requests;
        for command in due {
            self.step(Input::Change(command), host);
        }
        for raw in self.requests.due_skips(self.tick, &self.certifier) {
            self.step(Input::Propose(raw), host);
        }
    }

    /// The leader looks again, and knows better which rows its log leads on from.
    fn keeps_rows(&self, change: &Change, now: Duration) -> Result<(), Refused> {
        let Change::Remove(leaving) = *change else { return Ok(()) };
        let has_rows = |id: NodeId| match id == self.id {
            true => self.own_position().is_some_and(|(applied, _)| self.can_bring_on(applied)),
            false => self.heard_within(id, now, SILENT_AFTER).is_some(),
        };
        let data_voters = self.members.voters().map(|m| m.id).filter(|id| self.members.is_data_voter(*id));
        let (leaving, staying): (Vec<NodeId>, Vec<NodeId>) = data_voters.partition(|id| *id == leaving);
        if Members::rows_stay(&leaving, &staying, has_rows) {
            return Ok(());
        }
        let without: Vec<String> = staying.iter().filter(|id| !has_rows(**id)).map(|id| format!("node {id}")).collect();
        Err(Refused(format!(
            "the rows would be on too few members without node {}: the PostgreSQL of {} is away or does not have them; \
             wait until `onetrip status` shows that it has caught up, or remove that node first",
            leaving[0],
            without.join(" and of ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certifier::Limits;

    /// Goal: what leaves out an entry of many keys is given the time for its way, before it is proposed again and
    /// before it is given up.
    #[test]
    fn a_large_entry_is_not_proposed_again_before_it_can_have_arrived() {
        let certifier = Certifier::new(Limits::default());
        let mut requests = Requests::default();
        requests.leave_out(RequestId(1), LogIndex(7), vec![0; 50 << 20].into(), 0);
        let proposed = (0..901).filter(|tick| !requests.due_skips(*tick, &certifier).is_empty());
        assert_eq!(proposed.collect::<Vec<u64>>(), [0, 225, 450, 675]);
        assert_eq!(requests.left_out, [(RequestId(1), LogIndex(7), Err(NotDone::NotLeftOut(LogIndex(7))))]);
    }
}
