//! Syncs the newest segment on a thread of its own, while the core thread goes on.
//!
//! Invariants:
//! - The system reports a failed write to one sync only.  So the core thread syncs a segment itself only when this
//!   thread has nothing to do ([`Syncer::settle`]), and after a failure nothing is synced any more.
//! - What is handed over while a sync is under way is synced by the next one, all at once.
//! - [`Syncer::take_synced`] knows of a sync before `tell` is called for it.

use crate::error::{Error, Result};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) struct Syncer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The last number that [`Syncer::take_synced`] returned.
    reported: u64,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next: Option<Job>,
    is_syncing: bool,
    synced: Synced,
    /// A sync failed, and the thread has ended.
    has_failed: bool,
    /// Why, until somebody has been told.
    failure: Option<Error>,
    end: bool,
}

struct Job {
    file: Arc<File>,
    path: PathBuf,
    number: u64,
    records: u64,
}

/// What the last sync has made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Synced {
    /// What was handed over with this number.
    pub number: u64,
    /// All records before this one.
    pub records: u64,
    pub took: Duration,
}

impl Syncer {
    /// `tell` is called after each sync; [`Syncer::take_synced`] must be called then.
    pub fn start(tell: impl Fn() + Send + 'static) -> Result<Syncer> {
        let shared = Arc::<Shared>::default();
        let own = shared.clone();
        let thread = crate::span::spawn_thread("onetrip-sync", move || own.work(&tell))?;
        Ok(Syncer { shared, thread: Some(thread), reported: 0 })
    }

    /// Has everything synced that has been written to `file`, up to the record before `records`.  Never waits.
    pub fn hand_over(&self, file: Arc<File>, path: PathBuf, number: u64, records: u64) {
        self.shared.lock().next = Some(Job { file, path, number, records });
        self.shared.changed.notify_all();
    }

    /// Waits until everything that was handed over is durable.
    pub fn settle(&self) -> Result<()> {
        let mut state = self.shared.lock();
        while !state.has_failed && (state.next.is_some() || state.is_syncing) {
            state = self.shared.changed.wait(state).expect(NO_PANIC);
        }
        state.check()
    }

    /// What is durable, if that is news.
    pub fn take_synced(&mut self) -> Result<Option<Synced>> {
        let mut state = self.shared.lock();
        state.check()?;
        let is_news = state.synced.number > self.reported;
        self.reported = state.synced.number;
        Ok(is_news.then_some(state.synced))
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.lock().end = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    fn check(&mut self) -> Result<()> {
        match (self.has_failed, self.failure.take()) {
            (false, _) => Ok(()),
            (true, Some(failure)) => Err(failure),
            (true, None) => Err(Error::Internal("an earlier sync of the log failed".into())),
        }
    }
}

const NO_PANIC: &str = "no code that holds this lock panics";

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(NO_PANIC)
    }

    /// The thread's body.
    fn work(&self, tell: &impl Fn()) {
        let mut state = self.lock();
        loop {
            let Some(job) = state.next.take() else {
                if state.end {
                    return;
                }
                state = self.changed.wait(state).expect(NO_PANIC);
                continue;
            };
            state.is_syncing = true;
            drop(state);
            let start = Instant::now();
            let result = job.file.sync_data();
            let took = start.elapsed();
            state = self.lock();
            state.is_syncing = false;
            match result {
                Ok(()) => state.synced = Synced { number: job.number, records: job.records, took },
                Err(e) => (state.has_failed, state.failure) = (true, Some(Error::disk(&job.path, "fsync")(e))),
            }
            self.changed.notify_all();
            drop(state);
            tell();
            state = self.lock();
            if state.has_failed {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn what_is_handed_over_is_durable_when_it_is_told_and_when_it_has_settled() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = Arc::new(File::create(&path).unwrap());
        let (tell, told) = channel();
        let mut syncer = Syncer::start(move || _ = tell.send(())).unwrap();
        syncer.settle().unwrap();
        assert!(syncer.take_synced().unwrap().is_none());
        syncer.hand_over(file.clone(), path.clone(), 3, 9);
        told.recv().unwrap();
        assert_eq!(syncer.take_synced().unwrap().map(|synced| (synced.number, synced.records)), Some((3, 9)));
        assert!(syncer.take_synced().unwrap().is_none());
        (4..50).for_each(|number| syncer.hand_over(file.clone(), path.clone(), number, 2 * number));
        syncer.settle().unwrap();
        assert_eq!(syncer.take_synced().unwrap().map(|synced| (synced.number, synced.records)), Some((49, 98)));
    }

    /// Method: a pipe cannot be synced.
    #[test]
    fn a_failure_is_told_and_nothing_is_durable_after_it() {
        let (_reader, writer) = nix::unistd::pipe().unwrap();
        let file = Arc::new(File::from(writer));
        let (tell, told) = channel();
        let mut syncer = Syncer::start(move || _ = tell.send(())).unwrap();
        syncer.hand_over(file.clone(), "the log".into(), 1, 1);
        told.recv().unwrap();
        let why = syncer.take_synced().unwrap_err().to_string();
        assert!(why.contains("fsync") && why.contains("the log"), "{why}");
        syncer.hand_over(file, "the log".into(), 2, 2);
        assert!(syncer.settle().is_err() && syncer.take_synced().is_err());
    }
}
