//! The checkpoint's bytes for a member that lacks more than the log has, read and verified by a thread of their own.
//!
//! Raft asks for a snapshot whenever it would send one, and asks again (at every heartbeat that the member answers) when it is
//! told that there is none yet.  So the first who asks has it read, and whoever asks while it is in memory is given it.
//!
//! Invariants:
//! - At most one is in memory here, and no longer than [`KEPT_FOR`]; what is under way to members shares its bytes.
//! - What is given out was verified, and is newer than nothing that was promised: the caller says what serves.

use super::CheckpointFile;
use crate::error::Result;
use bytes::Bytes;
use onetrip_core::checkpoint::{self, Head};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// For others that ask at nearly the same time, and for one whose connection breaks.
const KEPT_FOR: Duration = Duration::from_secs(10);

pub(super) struct SnapshotReader {
    file: CheckpointFile,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    state: State,
    /// Reads that were begun.
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
    /// Ask again.
    NotYet,
    /// The file was read, and what is in it is of no use; the log says why.
    Useless,
}

impl SnapshotReader {
    pub fn new(file: CheckpointFile) -> SnapshotReader {
        SnapshotReader { file, shared: Arc::default() }
    }

    pub fn file(&self) -> &CheckpointFile {
        &self.file
    }

    /// One that `serves`, if it has been read; else it is read now, if need be.  Never waits.
    pub fn get(&self, serves: impl Fn(&Head) -> bool) -> Snapshot {
        let mut shared = lock(&self.shared);
        match &shared.state {
            State::UnderWay => return Snapshot::NotYet,
            State::Read(head, raw) if serves(head) => return Snapshot::Ready(head.clone(), raw.clone()),
            State::Failed => {
                shared.state = State::None;
                return Snapshot::Useless;
            }
            // An older one, which the log has been cut above or which does not know the member, goes.
            State::None | State::Read(..) => {}
        }
        shared.reads += 1;
        let (file, read, this) = (self.file.clone(), self.shared.clone(), shared.reads);
        shared.state = match crate::span::spawn_thread("onetrip-snapshot", move || work(&file, &read, this)) {
            Ok(_) => State::UnderWay,
            Err(e) => {
                tracing::error!("reading a checkpoint for a member: {e}");
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
    // The panic itself is on standard error; whoever asks would wait for ever.
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
    // Not that of another thread.
    if shared.reads == this {
        shared.state = State::None;
    }
}

/// The file is replaced whole, so what is read is one checkpoint or another.
fn read(file: &CheckpointFile) -> Result<Option<(Head, Bytes)>> {
    let Some(raw) = file.read()? else { return Ok(None) };
    let head = checkpoint::peek(&raw).map_err(|e| file.corrupted(&e))?;
    Ok(Some((head, raw)))
}
