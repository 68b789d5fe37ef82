//! Outputs that are written and not durable yet, because the disk syncs them beside the caller's work.
//!
//! Invariants:
//! - What waits for the disk leaves in the order of the outputs, and only when everything that was written up to its
//!   own output is durable.  A follower acknowledges an entry again that an earlier output wrote, so an output that
//!   writes nothing waits too.
//! - Only entries that follow the end of the log are written so ([`super::Persist::may_wait`]).  A term, a vote, a
//!   snapshot, entries that replace others, and the commit index that a change of the configuration waits for are
//!   durable before anything else happens; and so is all that was written before them.
//! - Nobody stands for election meanwhile: the clock of a node that does not lead stands still, and raft-rs takes it
//!   for granted that the log of a node which wins is on its disk.
//! - A leader whose disk is silent for an election timeout hands over, as it would have lost its followers while it
//!   waited for the disk itself: the commits of other regions should not need all the other disks.

use raft::eraftpb::Message;
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Unsynced {
    outputs: VecDeque<Waiting>,
    /// For how many ticks nothing has become durable although something waits for that.
    silent_ticks: usize,
}

struct Waiting {
    number: u64,
    /// It wrote something itself.
    writes: bool,
    send_after: Vec<Message>,
    /// The commit index that it wrote.
    commit: u64,
}

impl Unsynced {
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    pub fn tick(&mut self) {
        self.silent_ticks = if self.is_empty() { 0 } else { self.silent_ticks + 1 };
    }

    pub fn silent_ticks(&self) -> usize {
        self.silent_ticks
    }

    pub fn push(&mut self, number: u64, writes: bool, send_after: Vec<Message>, commit: u64) {
        assert!(writes || !self.is_empty(), "output {number} waits for nothing");
        self.outputs.push_back(Waiting { number, writes, send_after, commit });
    }

    /// Everything up to output `number` is durable.  Moves what may be sent now to the end of `send_after`; returns the
    /// last output that is done with, and the commit index that is durable.  `None`: none was waiting for that.
    pub fn take_to(&mut self, number: u64, send_after: &mut Vec<Message>) -> Option<(u64, u64)> {
        let mut done: Option<(u64, u64)> = None;
        let is_done = |w: &Waiting| w.number <= number || !w.writes;
        while self.outputs.front().is_some_and(is_done) {
            let Some(mut first) = self.outputs.pop_front() else { break };
            self.silent_ticks = 0;
            send_after.append(&mut first.send_after);
            done = Some((first.number, first.commit.max(done.map_or(0, |(_, commit)| commit))));
        }
        done
    }
}
