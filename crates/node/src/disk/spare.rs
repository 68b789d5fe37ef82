//! The next segment's file, written with zeros and synced by a thread of its own while the present segment is in use.
//!
//! A record that is written into it changes neither the file's length nor which blocks it has, so the record's
//! fdatasync neither waits for metadata of the file system nor depends on it.  The thread also cuts earlier segments to
//! the length of their records.
//!
//! Invariants:
//! - A spare is used only in the life of the node that made it; one that an earlier life left is removed
//!   ([`Spare::remove_leftover`]).
//! - It does not get a segment's name before the first record of that segment is in it, durably.
//! - Having none is no error: without one, zeros are written ahead piece by piece while the segment grows.
//! - The thread leaves the disk to others half of the time, and does not outlive its `Spare`.

use super::segment::{set_aside, write_zeros, ZEROS_BYTES};
use crate::error::{Error, Result};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const FILE: &str = "spare";
/// After a failure, which is most likely a full disk.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(5);

pub(super) struct Spare {
    path: PathBuf,
    state: State,
    stop: Arc<AtomicBool>,
    /// Files to be cut, and the length of each.
    excess: Vec<(File, u64)>,
    /// The last try failed, and that has been logged.
    failed: bool,
}

enum State {
    None {
        try_at: Option<Instant>,
    },
    /// The thread returns `None` if it was stopped.
    UnderWay(JoinHandle<Result<Option<File>>>, u64),
    Ready(File, u64),
}

impl Spare {
    pub fn new(dir: &Path) -> Spare {
        let (state, stop) = (State::None { try_at: None }, Arc::default());
        Spare { path: dir.join(FILE), state, stop, excess: Vec::new(), failed: false }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    #[cfg(test)]
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(..))
    }

    /// Removes what an earlier life left: it may be half written, or a segment whose first record was not synced.
    pub fn remove_leftover(&self) -> Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::disk(&self.path, "removing the file")(e)),
            _ => Ok(()),
        }
    }

    /// Nothing is appended to this file any more: it will be cut to this length.
    pub fn cut_later(&mut self, excess: Option<(File, u64)>) {
        self.excess.extend(excess);
    }

    /// Has a spare of so many bytes made, if there is none.  To be called again and again; never waits.
    pub fn prepare(&mut self, bytes: u64) {
        match &self.state {
            State::None { try_at } if try_at.is_none_or(|at| at <= Instant::now()) => self.begin(bytes),
            State::UnderWay(thread, _) if thread.is_finished() => self.collect(),
            _ => {}
        }
    }

    /// The spare, with its length, if it is ready.
    pub fn take(&mut self) -> Option<(File, u64)> {
        if matches!(&self.state, State::UnderWay(thread, _) if thread.is_finished()) {
            self.collect();
        }
        match std::mem::replace(&mut self.state, State::None { try_at: None }) {
            State::Ready(file, bytes) => Some((file, bytes)),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// To be called when the log is closed.
    pub fn close(&mut self) -> Result<()> {
        self.end();
        for (file, bytes) in self.excess.drain(..) {
            file.set_len(bytes).and_then(|()| file.sync_all()).map_err(Error::disk(&self.path, "cutting a segment"))?;
        }
        self.remove_leftover()
    }

    fn begin(&mut self, bytes: u64) {
        let (path, stop, excess) = (self.path.clone(), self.stop.clone(), std::mem::take(&mut self.excess));
        let work = move || {
            for (file, bytes) in excess {
                // If this fails, whoever opens the log next does it.
                let _ = file.set_len(bytes);
            }
            let made = make(&path, bytes, &stop);
            if !matches!(made, Ok(Some(_))) {
                // On a full disk others need the room more; what cannot be removed is overwritten by the next try.
                let _ = std::fs::remove_file(&path);
            }
            made
        };
        match crate::span::spawn_thread("onetrip-spare", work) {
            Ok(thread) => self.state = State::UnderWay(thread, bytes),
            Err(e) => self.has_failed(&e),
        }
    }

    /// Takes what the thread has made, once it has ended.
    fn collect(&mut self) {
        let State::UnderWay(thread, bytes) = std::mem::replace(&mut self.state, State::None { try_at: None }) else {
            return;
        };
        match thread.join() {
            Ok(Ok(Some(file))) => {
                self.state = State::Ready(file, bytes);
                self.failed = false;
            }
            Ok(Ok(None)) => {}
            Ok(Err(e)) => self.has_failed(&e),
            Err(_) => self.has_failed(&Error::Internal("the thread that makes it panicked".into())),
        }
    }

    fn has_failed(&mut self, error: &Error) {
        self.state = State::None { try_at: Some(Instant::now() + TRY_AGAIN_AFTER) };
        if !std::mem::replace(&mut self.failed, true) {
            tracing::warn!("the next segment of the log cannot be prepared, which is tried again: {error}");
        }
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let State::UnderWay(thread, _) = std::mem::replace(&mut self.state, State::None { try_at: None }) {
            let _ = thread.join();
        }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.end();
    }
}

fn make(path: &Path, bytes: u64, stop: &AtomicBool) -> Result<Option<File>> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path);
    let file = file.map_err(Error::disk(path, "creating the file"))?;
    set_aside(&file, path, bytes)?;
    let mut at = 0;
    while at < bytes {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (upto, start) = (bytes.min(at + ZEROS_BYTES), Instant::now());
        write_zeros(&file, at, upto).map_err(Error::disk(path, "write"))?;
        file.sync_data().map_err(Error::disk(path, "fsync"))?;
        at = upto;
        std::thread::sleep(start.elapsed());
    }
    file.sync_all().map_err(Error::disk(path, "fsync"))?;
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_for(spare: &mut Spare, what: fn(&State) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !what(&spare.state) {
            assert!(Instant::now() < deadline, "nothing has come of it");
            spare.prepare(5_000);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_spare_that_cannot_be_made_is_tried_again_and_not_before_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut spare = Spare::new(dir.path());
        std::fs::create_dir(&spare.path).unwrap();
        wait_for(&mut spare, |state| matches!(state, State::None { try_at: Some(_) }));
        assert!(spare.failed && spare.take().is_none());
        std::fs::remove_dir(&spare.path).unwrap();
        spare.prepare(5_000);
        assert!(matches!(&spare.state, State::None { try_at: Some(_) }) && !spare.path.exists());
        spare.state = State::None { try_at: Some(Instant::now()) };
        wait_for(&mut spare, |state| matches!(state, State::Ready(..)));
        assert!(!spare.failed);
        let (file, bytes) = spare.take().unwrap();
        assert_eq!((file.metadata().unwrap().len(), bytes), (5_000, 5_000));
        assert!(std::fs::read(&spare.path).unwrap().iter().all(|b| *b == 0));
    }

    #[test]
    fn one_that_is_not_taken_goes_when_the_log_is_closed_and_segments_get_their_length() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("segment")).unwrap();
        file.set_len(9_000).unwrap();
        for close_while_it_is_made in [true, false] {
            let mut spare = Spare::new(dir.path());
            spare.cut_later(Some((file.try_clone().unwrap(), if close_while_it_is_made { 8_000 } else { 7_000 })));
            spare.prepare(64 << 20);
            if !close_while_it_is_made {
                wait_for(&mut spare, |state| matches!(state, State::Ready(..)));
                assert_eq!(file.metadata().unwrap().len(), 7_000);
            }
            spare.close().unwrap();
            assert!(!spare.path.exists());
        }
        let mut spare = Spare::new(dir.path());
        spare.cut_later(Some((file.try_clone().unwrap(), 6_000)));
        spare.close().unwrap();
        assert_eq!(file.metadata().unwrap().len(), 6_000);
    }
}
