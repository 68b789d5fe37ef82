//! Where a restore, or a backup, reads entries from: several logs, one after the other.
//!
//! For a restore, the first log is the backup's own; the others are archives and logs of stopped nodes.  Each entry is
//! taken from the first log that has it.  Nothing is written, and every entry is verified when it is read.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use nix::fcntl::{Flock, FlockArg};
use onetrip_core::LogIndex;
use onetrip_node::archive::{Reader, Stored};
use onetrip_node::config::FILE_NAME;
use onetrip_node::disk::RaftLog;
use onetrip_node::restore;

use crate::progress::Progress;

pub struct Entries {
    sources: Vec<Source>,
    progress: Progress,
}

struct Source {
    path: PathBuf,
    kind: Kind,
}

enum Kind {
    /// The log in the backup itself.  Its times say only when the backup was made.
    Own(Reader),
    Archive(Reader),
    /// The log of a node.  If the node is stopped, the lock keeps it from being started meanwhile.
    Node {
        log: Box<RaftLog>,
        _lock: Option<Flock<File>>,
    },
}

impl Entries {
    /// `own` is the log in the backup itself; `logs` are archives, or folders of stopped nodes.
    pub fn open(own: &Path, logs: &[PathBuf]) -> Result<Entries> {
        let own = Source { path: own.to_owned(), kind: Kind::Own(Reader::open(own)?) };
        let others = logs.iter().map(|path| Source::open(path)).collect::<Result<Vec<_>>>()?;
        let sources = std::iter::once(own).chain(others).collect();
        Ok(Entries { sources, progress: Progress::new() })
    }

    /// The log of a node that may be running, up to an entry that is committed there, and the node's archive, if it has
    /// one, for entries that are cut from the log meanwhile.
    pub fn of_running(node: &Path, upto: LogIndex, archive: Option<&Path>) -> Result<Entries> {
        let log = RaftLog::open_to_read(&node.join("log"), Some(upto)).context("read the node's log")?;
        let mut sources = vec![Source { path: node.to_owned(), kind: Kind::Node { log: Box::new(log), _lock: None } }];
        if let Some((path, reader)) = archive.and_then(|path| Some((path, Reader::open(path).ok()?))) {
            sources.push(Source { path: path.to_owned(), kind: Kind::Archive(reader) });
        }
        Ok(Entries { sources, progress: Progress::new() })
    }

    /// The archives among the sources, each with the name of its cluster.
    pub fn clusters(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.sources.iter().filter_map(|source| match &source.kind {
            Kind::Own(reader) | Kind::Archive(reader) => {
                Some((source.path.as_path(), reader.identity().cluster.as_str()))
            }
            Kind::Node { .. } => None,
        })
    }

    /// The entry at `index`, or `None` if all sources end before it.  That a source begins later or lacks the entry is
    /// an error only if no other source has it.
    pub fn get(&mut self, index: LogIndex) -> Result<Option<Stored>> {
        let mut why = None;
        for source in &mut self.sources {
            match source.get(index) {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(e) => why = why.or(Some(e)),
            }
        }
        match why {
            Some(why) => Err(why),
            None => Ok(None),
        }
    }
}

impl restore::Source<anyhow::Error> for Entries {
    fn next(&mut self, index: LogIndex) -> Result<Option<Stored>> {
        self.get(index)
    }

    /// The latest time until which an archive that ends at `last` is complete; 0 if none ends there.
    fn quiet_until_ms(&mut self, last: LogIndex) -> Result<u64> {
        let mut until = 0;
        for source in &mut self.sources {
            if let Kind::Own(reader) | Kind::Archive(reader) = &mut source.kind {
                let (end, time_ms) = reader.end()?;
                until = if end == last { time_ms.max(until) } else { until };
            }
        }
        Ok(until)
    }

    fn progress(&mut self, at: LogIndex) {
        self.progress.show("copying the log", None, &format!("entry {at}"));
    }
}

impl Source {
    fn open(path: &Path) -> Result<Source> {
        let kind = match path.join(FILE_NAME).is_file() {
            true => {
                let _lock = lock_node(path)?;
                let log = RaftLog::open_to_read(&path.join("log"), None);
                let log = log.with_context(|| format!("read the log of the node in {}", path.display()))?;
                Kind::Node { log: Box::new(log), _lock }
            }
            false => Kind::Archive(Reader::open(path)?),
        };
        Ok(Source { path: path.to_owned(), kind })
    }

    fn get(&mut self, index: LogIndex) -> Result<Option<Stored>> {
        match &mut self.kind {
            Kind::Own(reader) => Ok(reader.entry(index)?.map(|stored| Stored { time_ms: None, ..stored })),
            Kind::Archive(reader) => Ok(reader.entry(index)?),
            Kind::Node { log, .. } => {
                if index > log.last_index() {
                    return Ok(None);
                }
                if index < log.first_index() {
                    bail!(
                        "the log of the node in {} begins at entry {}, but entry {index} is needed: name an archive that has it, or \
                         take a newer backup",
                        self.path.display(),
                        log.first_index()
                    );
                }
                Ok(Some(Stored { entry: log.entry(index)?, time_ms: None }))
            }
        }
    }
}

/// Makes sure that the node is stopped and stays so: a running node would write to its log while it is read.
fn lock_node(folder: &Path) -> Result<Option<Flock<File>>> {
    let path = folder.join("node.lock");
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).with_context(|| format!("open {}", path.display())),
    };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err(_) => bail!("the node in {} is running: stop it first, so that its log does not change", folder.display()),
    }
}
