//! Who makes a backup needs the log from a checkpoint on, until it has copied it: for so long the log is not cut there.
//!
//! A hold that is not renewed ends by itself, so a backup that died holds nothing for long.  Beyond `log_bytes_max` the log is
//! cut all the same, and the backup finds out.

use onetrip_core::LogIndex;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// 60 s.
const HOLD_TICKS: u64 = 3_000;

pub type HoldAnswer = oneshot::Sender<LogIndex>;

#[derive(Default)]
pub(super) struct Holds {
    /// Entries above this one stay, until that tick.
    held: BTreeMap<LogIndex, u64>,
    /// They want a new checkpoint first.
    waiting: Vec<HoldAnswer>,
}

impl Holds {
    pub fn ask(&mut self, answer: HoldAnswer) {
        self.waiting.push(answer);
    }

    pub fn wants_checkpoint(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A checkpoint up to `index` is durable: the log is kept from there on for whoever waited.
    pub fn checkpointed(&mut self, index: LogIndex, tick: u64) {
        for answer in std::mem::take(&mut self.waiting) {
            if answer.send(index).is_ok() {
                self.held.insert(index, tick + HOLD_TICKS);
            }
        }
    }

    pub fn renew(&mut self, index: LogIndex, tick: u64) {
        self.held.insert(index, tick + HOLD_TICKS);
    }

    /// The lowest index that is held.
    pub fn least(&mut self, tick: u64) -> Option<LogIndex> {
        self.held.retain(|_, until| *until > tick);
        self.held.keys().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_held_for_as_long_as_somebody_renews() {
        let mut holds = Holds::default();
        let (answer, mut answered) = oneshot::channel();
        holds.ask(answer);
        // Gone before its answer: nothing is held for it.
        holds.ask(oneshot::channel().0);
        assert!(holds.wants_checkpoint());
        assert_eq!(holds.least(0), None);
        holds.checkpointed(LogIndex(70), 10);
        assert!(!holds.wants_checkpoint());
        assert_eq!(answered.try_recv(), Ok(LogIndex(70)));
        assert_eq!(holds.least(10), Some(LogIndex(70)));
        holds.renew(LogIndex(50), 20);
        holds.renew(LogIndex(70), 20 + HOLD_TICKS / 2);
        assert_eq!(holds.least(20 + HOLD_TICKS - 1), Some(LogIndex(50)));
        assert_eq!(holds.least(20 + HOLD_TICKS), Some(LogIndex(70)));
        assert_eq!(holds.least(20 + 2 * HOLD_TICKS), None);
    }
}
