//! Changes of the table of members that somebody asked this node for: proposed until the table shows them, or for ten
//! seconds.
//!
//! Any node takes them; the leader appends them.  A proposal may be lost, or come too late for the table that it was
//! made for: then the table's version has changed, and the next one is made for the new table.

use super::{Host, Replica, Store};
use crate::consensus::Input;
use crate::members::{Change, Command, Members};
use crate::router::Outbox;

/// 10 s, and 0.5 s between two proposals for the same table.
const PATIENCE_TICKS: u64 = 500;
const AGAIN_TICKS: u64 = 25;
/// A refusal by this node's table counts only after so long: the table may be a little behind.
const REFUSE_TICKS: u64 = 25;
/// Beyond these a request is refused.
const OPEN_MAX: usize = 100;

/// Names a request for the life of the node; its driver knows who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    /// By this node's table.
    #[error("{0}")]
    Refused(String),
    /// It may be done later all the same.
    #[error("this was not decided within 10 s ({0}): is there a leader, and a majority? Ask again")]
    NotDecided(Change),
    #[error("too many changes of the membership are under way")]
    TooMany,
}

/// What came of a request: the table shows it, or why it does not.
pub type Answer = (RequestId, Change, Result<(), NotDone>);

struct Open {
    id: RequestId,
    change: Change,
    give_up_at: u64,
    /// For which version of the table, and when.
    proposed: Option<(u64, u64)>,
}

#[derive(Default)]
pub(super) struct Requests {
    open: Vec<Open>,
    answers: Vec<Answer>,
}

impl Requests {
    /// What is to be proposed (again).
    fn due(&mut self, tick: u64, members: &Members) -> Vec<Command> {
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
            let command = Command { expected_version: members.version, change: open.change.clone() };
            match members.clone().apply(&command) {
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
}

impl<S: Store, O: Outbox> Replica<S, O> {
    /// The answer comes by [`Replica::take_answers`].
    pub fn ask<H: Host<Store = S, Outbox = O>>(&mut self, id: RequestId, change: Change, host: &mut H) {
        if self.requests.open.len() >= OPEN_MAX {
            return self.requests.answers.push((id, change, Err(NotDone::TooMany)));
        }
        self.requests.open.push(Open { id, change, give_up_at: self.tick + PATIENCE_TICKS, proposed: None });
        self.work_requests(host);
    }

    /// Nobody waits for it any more.
    pub fn withdraw(&mut self, id: RequestId) {
        self.requests.open.retain(|open| open.id != id);
    }

    pub fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.requests.answers)
    }

    /// This node has left, and may never see that in its own log.
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

    /// To be called on each tick and when the table has changed.
    pub(super) fn work_requests<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        for command in self.requests.due(self.tick, &self.members) {
            self.step(Input::Change(command), host);
        }
    }
}
