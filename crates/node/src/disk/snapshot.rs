//! The checkpoint's bytes, for a member that needs entries which are no longer in the log; read and verified by a
//! thread of their own.
//!
//! Raft asks for a snapshot whenever it wants to send one, and asks again (at every heartbeat that the member answers)
//! when it is told that there is none yet.  So the first request starts the read, and those that come while the
//! checkpoint is in memory get it.
//!
//! Invariants:
//! - At most one is in memory here, and no longer than [`KEPT_FOR`]; what is under way to members shares its bytes.
//! - What is given out was verified, and the caller has said that it serves.

use super::CheckpointFile;
use crate::error::Result;
use bytes::Bytes;
use onetrip_core::checkpoint::{self, Head};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Long enough for other members that ask at nearly the same time, and for one whose connection breaks.
const KEPT_FOR: Duration = Duration::from_secs(10);

pub(super) struct SnapshotReader {
    file: CheckpointFile,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    state: State,
    /// How many reads were begun.
    reads: u64,
}

#[derive(Default)]
enum State {
    #[default]
    None,
    UnderWay,
    Read(Arc<Head>, Bytes),
    Failed,
}

pub(super) enum Snapshot {
    Ready(Arc<Head>, Bytes),
    /// It is not read yet: ask again.
    NotYet,
    /// There is no checkpoint, or it could not be read (a log line says why).
    Useless,
}

impl SnapshotReader {
    pub fn new(file: CheckpointFile) -> SnapshotReader {
        SnapshotReader { file, shared: Arc::default() }
    }

    pub fn file(&self) -> &CheckpointFile {
        &self.file
    }

    /// A checkpoint that `serves`, if it has been read; if not, it begins to be read.  Never waits.
    pub fn get(&self, serves: impl Fn(&Head) -> bool) -> Snapshot {
        let mut shared = lock(&self.shared);
        match &shared.state {
            State::UnderWay => return Snapshot::NotYet,
            State::Read(head, raw) if serves(head) => return Snapshot::Ready(head.clone(), raw.clone()),
            State::Failed => {
                shared.state = State::None;
                return Snapshot::Useless;
            }
            // One that does not serve is dropped: the log has been cut above it, or it does not contain the member.
            State::None | State::Read(..) => {}
        }
        shared.reads += 1;
        let (file, read, this) = (self.file.clone(), self.shared.clone(), shared.reads);
        shared.state = match crate::span::spawn_thread("onetrip-snapshot", move || work(&file, &read, this)) {
            Ok(_) => State::UnderWay,
            Err(e) => {
                tracing::error!("cannot begin to read a checkpoint for a member: {e}");
                State::None
            }
        };
        Snapshot::NotYet
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().expect("no code that holds this lock panics")
}

/// The thread's body.
fn work(file: &CheckpointFile, shared: &Mutex<Shared>, this: u64) {
    // The panic itself is on standard error; unless it is caught, whoever asks would wait for ever.
    let state = match std::panic::catch_unwind(|| read(file)) {
        Ok(Ok(Some((head, raw)))) => State::Read(Arc::new(head), raw),
        Ok(Ok(None)) => State::Failed,
        Ok(Err(e)) => {
            tracing::error!("a member needs a checkpoint and this node has none: {e}");
            State::Failed
        }
        Err(_) => {
            tracing::error!("a member needs a checkpoint, and reading this node's failed");
            State::Failed
        }
    };
    let is_read = matches!(state, State::Read(..));
    lock(shared).state = state;
    if !is_read {
        return;
    }
    std::thread::sleep(KEPT_FOR);
    let mut shared = lock(shared);
    // What another thread has read since stays.
    if shared.reads == this {
        shared.state = State::None;
    }
}

/// The file is only ever replaced as a whole, so what is read is one checkpoint, either the old or the new one.
fn read(file: &CheckpointFile) -> Result<Option<(Head, Bytes)>> {
    let Some(raw) = file.read()? else { return Ok(None) };
    let head = checkpoint::peek(&raw).map_err(|e| file.corrupted(&e))?;
    Ok(Some((head, raw)))
}
