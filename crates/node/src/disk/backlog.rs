//! Old entries for members that are behind, read and verified by a thread of their own.
//!
//! Raft asks for the entries that it wants to send.  If they are not in memory, it is told that they are not available
//! yet.  The thread reads them; then the core thread tells Raft, which asks again at once.  So a member that comes back
//! costs the core thread the copying of one message at a time, and no wait for the disk.
//!
//! Invariants:
//! - What is given out was read from where the log says that these entries are *now*: if other entries have taken their
//!   place since it was read, those are in other bytes of a segment.
//! - Whoever was refused is told, or asks again by itself (Raft does, at every heartbeat that the member answers).

use super::segment::{Slot, SlotReader};
use crate::error::{Error, Result};
use bytes::Bytes;
use raft::GetEntriesContext;
use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// So many askers are remembered for one read; any others ask again by themselves.
const ASKERS_MAX: usize = 8;

pub(super) struct BacklogReader {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
    done: Arc<Mutex<Vec<Done>>>,
    under_way: RefCell<Vec<(u64, Vec<GetEntriesContext>)>>,
    /// Read, and not asked for again yet.
    there: RefCell<Vec<There>>,
}

/// Entries from index `low` on.
struct Job {
    low: u64,
    places: Vec<(Slot, Arc<SlotReader>)>,
}

struct Done {
    low: u64,
    slots: Vec<Slot>,
    data: Result<Vec<Bytes>>,
}

struct There {
    read: Done,
    asked: usize,
}

impl BacklogReader {
    /// `tell` is called when something has been read; [`BacklogReader::take_fetched`] must be called then.
    pub fn start(tell: impl Fn() + Send + 'static) -> Result<BacklogReader> {
        let (jobs, work) = std::sync::mpsc::channel();
        let done = Arc::<Mutex<Vec<Done>>>::default();
        let results = done.clone();
        let thread = crate::span::spawn_thread("onetrip-backlog", move || read_all(&work, &results, &tell))?;
        Ok(BacklogReader { jobs, thread, done, under_way: RefCell::default(), there: RefCell::default() })
    }

    /// The data of the entries at `places`, from index `low` on, if they have been read.  `None`: they will be read.
    /// Never waits.
    pub fn get<'a>(
        &self,
        low: u64,
        places: impl Iterator<Item = (&'a Slot, &'a Arc<SlotReader>)> + Clone,
        context: GetEntriesContext,
    ) -> Option<Result<Vec<Bytes>>> {
        if self.thread.is_finished() {
            // It panicked, which has been printed.
            return Some(Err(Error::Internal("the thread that reads old entries of the log has ended".into())));
        }
        if let Some(data) = self.take(low, places.clone().map(|(slot, _)| slot)) {
            return Some(data);
        }
        let mut under_way = self.under_way.borrow_mut();
        match under_way.iter_mut().find(|(other, _)| *other == low) {
            Some((_, askers)) if askers.len() < ASKERS_MAX => askers.push(context),
            Some(_) => {}
            None => {
                let places = places.map(|(slot, file)| (*slot, file.clone())).collect();
                _ = self.jobs.send(Job { low, places });
                under_way.push((low, vec![context]));
            }
        }
        None
    }

    fn take<'a>(&self, low: u64, now: impl Iterator<Item = &'a Slot>) -> Option<Result<Vec<Bytes>>> {
        let mut there = self.there.borrow_mut();
        let at = there.iter().position(|t| t.read.low == low)?;
        // They may be fewer than are asked for now: the log has grown, or a message may be longer.
        let is_same = there[at].read.slots.iter().eq(now.take(there[at].read.slots.len()));
        there[at].asked -= 1;
        if is_same && there[at].asked > 0 && there[at].read.data.is_ok() {
            return there[at].read.data.as_ref().ok().cloned().map(Ok);
        }
        let read = there.swap_remove(at).read;
        is_same.then_some(read.data)
    }

    /// Returns who can be told to ask again.  Forgets what was read before, and not asked for since the last call.
    pub fn take_fetched(&self) -> Vec<GetEntriesContext> {
        let done = std::mem::take(&mut *self.done.lock().expect("no code that holds this lock panics"));
        let (mut there, mut under_way) = (self.there.borrow_mut(), self.under_way.borrow_mut());
        there.clear();
        let mut told = Vec::new();
        for read in done {
            let Some(at) = under_way.iter().position(|(low, _)| *low == read.low) else { continue };
            let (_, askers) = under_way.swap_remove(at);
            there.push(There { read, asked: askers.len() });
            told.extend(askers);
        }
        told
    }
}

/// The thread's body.
fn read_all(work: &Receiver<Job>, done: &Mutex<Vec<Done>>, tell: &impl Fn()) {
    while let Ok(Job { low, places }) = work.recv() {
        let data = places.iter().map(|(slot, file)| file.read(slot)).collect();
        let slots = places.into_iter().map(|(slot, _)| slot).collect();
        done.lock().expect("no code that holds this lock panics").push(Done { low, slots, data });
        tell();
    }
}
