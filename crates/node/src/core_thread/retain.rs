//! A backup needs the log from a checkpoint on.  The log is retained there until the backup has copied it.
//!
//! A retention that is not renewed ends by itself, so a backup that died retains nothing for long.  A log larger than
//! `log_bytes_max` is cut all the same, and the backup finds out.

use onetrip_core::LogIndex;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// 60 s.
const RETAIN_TICKS: u64 = 3_000;

pub type RetainAnswer = oneshot::Sender<LogIndex>;

#[derive(Default)]
pub(super) struct Retained {
    /// Entries above this index stay in the log until this tick.
    from: BTreeMap<LogIndex, u64>,
    /// Backups that wait for a checkpoint to start from.
    waiting: Vec<RetainAnswer>,
}

impl Retained {
    pub fn ask(&mut self, answer: RetainAnswer) {
        self.waiting.push(answer);
    }

    pub fn wants_checkpoint(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A checkpoint up to `index` is durable: the log is retained from there on for each backup that waited.
    pub fn checkpointed(&mut self, index: LogIndex, tick: u64) {
        for answer in std::mem::take(&mut self.waiting) {
            if answer.send(index).is_ok() {
                self.from.insert(index, tick + RETAIN_TICKS);
            }
        }
    }

    pub fn renew(&mut self, index: LogIndex, tick: u64) {
        self.from.insert(index, tick + RETAIN_TICKS);
    }

    /// The lowest index that is retained.
    pub fn least(&mut self, tick: u64) -> Option<LogIndex> {
        self.from.retain(|_, until| *until > tick);
        self.from.keys().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_retained_for_as_long_as_somebody_renews() {
        let mut retained = Retained::default();
        let (answer, mut answered) = oneshot::channel();
        retained.ask(answer);
        // It is gone before its answer comes: nothing is retained for it.
        retained.ask(oneshot::channel().0);
        assert!(retained.wants_checkpoint());
        assert_eq!(retained.least(0), None);
        retained.checkpointed(LogIndex(70), 10);
        assert!(!retained.wants_checkpoint());
        assert_eq!(answered.try_recv(), Ok(LogIndex(70)));
        assert_eq!(retained.least(10), Some(LogIndex(70)));
        retained.renew(LogIndex(50), 20);
        retained.renew(LogIndex(70), 20 + RETAIN_TICKS / 2);
        assert_eq!(retained.least(20 + RETAIN_TICKS - 1), Some(LogIndex(50)));
        assert_eq!(retained.least(20 + RETAIN_TICKS), Some(LogIndex(70)));
        assert_eq!(retained.least(20 + 2 * RETAIN_TICKS), None);
    }
}
