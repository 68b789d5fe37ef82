//! Where a restore, or a backup, reads entries from: several logs, of which one log is made that existed.
//!
//! For a restore, the logs are the backup's own, archives, and those of stopped nodes.  Archives contain what was
//! decided, so each entry is taken from them if one has it.  The end of a node's log may never have been decided, and
//! then another node's may contradict it.  What was decided is, as in an election, in the log of the node that any
//! majority would elect: the one whose last entry has the highest term, and of those the longest.  Of another node's
//! log that counts which is surely the same.  Two logs that have an entry of the same index and term are the same up to
//! there; so whenever an entry is taken, the entry before it must have the same term in that log.
//!
//! Nothing is written, and every entry is verified when it is read.

use std::cmp::Reverse;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use nix::fcntl::{Flock, FlockArg};
use onetrip_client::complain;
use onetrip_core::{LogIndex, Term};
use onetrip_node::archive::{ArchiveError, Reader, Stored};
use onetrip_node::config::{NodeConfig, FILE_NAME};
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
    Node(Box<NodeLog>),
}

struct NodeLog {
    log: RaftLog,
    cluster: String,
    /// What follows this entry may be contradicted by the log that is restored.
    upto: LogIndex,
    /// Keeps a stopped node from being started meanwhile.
    _lock: Option<Flock<File>>,
}

impl Entries {
    /// `own` is the log in the backup itself; `logs` are archives, or folders of stopped nodes.
    pub fn open(own: &Path, logs: &[PathBuf]) -> Result<Entries> {
        let mut sources = vec![Source { path: own.to_owned(), kind: Kind::Own(Reader::open(own)?) }];
        let mut nodes = Vec::new();
        for path in logs {
            match path.join(FILE_NAME).is_file() {
                true => nodes.push((path.to_owned(), NodeLog::of_stopped(path)?)),
                false => sources.push(Source { path: path.to_owned(), kind: Kind::Archive(Reader::open(path)?) }),
            }
        }
        nodes.sort_by_key(|(_, node)| Reverse(node.end()));
        for at in 1..nodes.len() {
            let (elected, others) = nodes.split_at_mut(at);
            let node = &mut others[0].1;
            let same = elected.iter().filter_map(|(_, other)| node.same_upto(other)).max();
            node.upto = same.max(Some(LogIndex(node.log.hard_state().commit))).unwrap_or_default();
        }
        sources.extend(nodes.into_iter().map(|(path, node)| Source { path, kind: Kind::Node(Box::new(node)) }));
        Ok(Entries { sources, progress: Progress::new() })
    }

    /// The log of a node that may be running, up to an entry that is committed there, and the node's archive, if it has
    /// one, for entries that are cut from the log meanwhile.
    pub fn of_running(config: &NodeConfig, upto: LogIndex) -> Result<Entries> {
        let path = config.data_dir.clone();
        let log = RaftLog::open_to_read(&path.join("log"), Some(upto)).context("read the node's log")?;
        let node = NodeLog { log, cluster: config.cluster.clone(), upto, _lock: None };
        let mut sources = vec![Source { path, kind: Kind::Node(Box::new(node)) }];
        let archive = config.archive.as_ref().map(|archive| archive.folder.clone());
        if let Some((path, reader)) = archive.and_then(|path| Some((path.clone(), Reader::open(&path).ok()?))) {
            sources.push(Source { path, kind: Kind::Archive(reader) });
        }
        Ok(Entries { sources, progress: Progress::new() })
    }

    /// The logs, each with the name of its cluster.
    pub fn clusters(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.sources.iter().map(|source| {
            let cluster = match &source.kind {
                Kind::Own(reader) | Kind::Archive(reader) => &reader.identity().cluster,
                Kind::Node(node) => &node.cluster,
            };
            (source.path.as_path(), cluster.as_str())
        })
    }

    /// Where the logs of nodes end, the one first whose end is restored.
    pub fn ends(&self) -> impl Iterator<Item = (&Path, LogIndex, Term)> {
        self.sources.iter().filter_map(|source| match &source.kind {
            Kind::Own(_) | Kind::Archive(_) => None,
            Kind::Node(node) => Some((source.path.as_path(), node.end().1, node.end().0)),
        })
    }

    /// The entry after `last`, which was of this term, or `None` if all sources end there.  That a source begins later,
    /// lacks the entry or contradicts `last` is an error only if no other source has the entry.  One that is damaged
    /// before `last`, which another one has, says nothing of where the log ends.
    pub fn after(&mut self, last: (LogIndex, Term)) -> Result<Option<Stored>> {
        let (mut why, mut damaged, mut is_end) = (None, None, false);
        for source in &mut self.sources {
            match source.after(last) {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => is_end |= source.ends_at(last.0),
                Err(e) if source.is_damaged_at(last.0) => damaged = damaged.or(Some((source.path.clone(), e))),
                Err(e) => why = why.or(Some(e)),
            }
        }
        match (why, damaged) {
            (Some(why), _) => Err(why),
            (None, Some((path, _))) if is_end => {
                complain!(
                    "The archive {} is damaged before entry {}, so if it has later ones, they are not restored.",
                    path.display(),
                    last.0
                );
                Ok(None)
            }
            (None, Some((_, e))) => Err(e),
            (None, None) => Ok(None),
        }
    }
}

impl restore::Source<anyhow::Error> for Entries {
    fn next(&mut self, last: (LogIndex, Term)) -> Result<Option<Stored>> {
        self.after(last)
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

    fn earliest_after(&mut self, at: LogIndex) -> Option<(LogIndex, u64)> {
        let found = self.sources.iter().filter_map(|source| match &source.kind {
            Kind::Archive(reader) => reader.earliest_after(at),
            Kind::Own(_) | Kind::Node(_) => None,
        });
        found.min_by_key(|(_, time_ms)| *time_ms)
    }

    fn decided_within(&mut self, at: LogIndex) -> (u64, u64) {
        let (mut from_ms, mut to_ms) = (0, u64::MAX);
        for source in &mut self.sources {
            if let Kind::Archive(reader) = &mut source.kind {
                // One that cannot be read says nothing.
                let (from, to) = reader.decided_within(at).ok().flatten().unwrap_or((0, u64::MAX));
                (from_ms, to_ms) = (from.max(from_ms), to.min(to_ms));
            }
        }
        (from_ms, to_ms)
    }

    fn progress(&mut self, at: LogIndex) {
        self.progress.show("copying the log", None, &format!("entry {at}"));
    }
}

impl Source {
    /// Whether this is its last entry.
    fn ends_at(&mut self, index: LogIndex) -> bool {
        match &mut self.kind {
            Kind::Own(reader) | Kind::Archive(reader) => reader.end().is_ok_and(|(end, _)| end == index),
            Kind::Node(node) => node.upto == index,
        }
    }

    fn is_damaged_at(&mut self, index: LogIndex) -> bool {
        match &mut self.kind {
            Kind::Own(reader) | Kind::Archive(reader) => {
                matches!(reader.entry(index), Err(ArchiveError::Damaged { .. }))
            }
            Kind::Node(_) => false,
        }
    }

    fn after(&mut self, last: (LogIndex, Term)) -> Result<Option<Stored>> {
        let (index, path) = (last.0.next(), &self.path);
        match &mut self.kind {
            Kind::Own(reader) | Kind::Archive(reader) => {
                let Some(mut stored) = reader.entry(index)? else { return Ok(None) };
                if let Some(term) = reader.term_before(index)?.filter(|term| *term != last.1) {
                    bail!("{}", contradiction(&format!("the archive {}", path.display()), term, last));
                }
                if matches!(self.kind, Kind::Own(_)) {
                    stored.time_ms = None;
                }
                Ok(Some(stored))
            }
            Kind::Node(node) => {
                if index > node.upto {
                    return Ok(None);
                }
                let first = node.log.first_index();
                if index < first {
                    bail!(
                        "the log of the node in {} begins at entry {first}, but entry {index} is needed: name an archive \
                         that has it, or take a newer backup",
                        path.display()
                    );
                }
                match node.log.term_at(last.0) {
                    // Entries of a leader that another one has replaced since; a majority never had them.
                    Some(term) if term != last.1 && node.end().0 < last.1 => Ok(None),
                    Some(term) if term != last.1 => {
                        bail!("{}", contradiction(&format!("the log of the node in {}", path.display()), term, last))
                    }
                    _ => Ok(Some(Stored { entry: node.log.entry(index)?, time_ms: None })),
                }
            }
        }
    }
}

fn contradiction(log: &str, term: Term, (index, other): (LogIndex, Term)) -> String {
    format!(
        "in {log} entry {index} is of term {term}, in another log that was given it is of term {other}: these logs do not \
         belong together"
    )
}

impl NodeLog {
    fn of_stopped(path: &Path) -> Result<NodeLog> {
        let _lock = lock_node(path)?;
        let cluster = NodeConfig::load(path)?.cluster;
        let log = RaftLog::open_to_read(&path.join("log"), None);
        let log = log.with_context(|| format!("read the log of the node in {}", path.display()))?;
        Ok(NodeLog { upto: log.last_index(), log, cluster, _lock })
    }

    /// What decides between two candidates in an election.
    fn end(&self) -> (Term, LogIndex) {
        let last = self.log.last_index();
        (self.log.term_at(last).unwrap_or_default(), last)
    }

    /// The last entry up to which both logs are surely the same.
    fn same_upto(&self, other: &NodeLog) -> Option<LogIndex> {
        let end = self.log.last_index().min(other.upto).0;
        let begin = self.log.first_index().max(other.log.first_index()).0 - 1;
        (begin..=end).rev().map(LogIndex).find(|index| self.log.term_at(*index) == other.log.term_at(*index))
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

#[cfg(test)]
mod tests {
    use super::*;
    use onetrip_core::NodeId;
    use onetrip_node::archive::{Identity, Previous, Writer};
    use raft::eraftpb::{Entry, HardState};

    /// An entry's place and term.
    type At = (u64, u64);

    struct Logs(tempfile::TempDir);

    impl Logs {
        fn new() -> Logs {
            let logs = Logs(tempfile::tempdir().expect("a folder"));
            logs.archive("own", (0, 0), &[]);
            logs
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn archive(&self, name: &str, before: At, entries: &[At]) {
            self.archive_of(name, before, &[entries]);
        }

        /// Written in several pieces.
        fn archive_of(&self, name: &str, mut before: At, pieces: &[&[At]]) {
            std::fs::create_dir_all(self.path(name)).expect("make it");
            let identity = Identity { format: 1, cluster: "c".into(), node: NodeId(1), region: "r".into() };
            let mut writer = Writer::open(&self.path(name), &identity).expect("open it");
            for entries in pieces {
                writer.append(Previous::new(before.0, before.1), 1, &made(entries)).expect("write it");
                before = entries.last().copied().unwrap_or(before);
            }
            writer.close().expect("close it");
        }

        fn node(&self, name: &str, before: At, entries: &[At], commit: u64) {
            std::fs::create_dir(self.path(name)).expect("make it");
            let config =
                "cluster = \"c\"\nnode = 1\nregion = \"r\"\nlisten = \"127.0.0.1:1\"\nhttp = \"127.0.0.1:2\"\n";
            std::fs::write(self.path(name).join(FILE_NAME), config).expect("write it");
            let mut log = RaftLog::open(&self.path(name).join("log")).expect("open it");
            if before.0 > 0 {
                log.restart(LogIndex(before.0), Term(before.1), None).expect("cut it");
            }
            let promised = HardState { term: 9, commit, ..Default::default() };
            log.append(&made(entries), Some(&promised), true).expect("write it");
            log.close().expect("close it");
        }

        /// What is restored, and what ends it.
        fn restored(&self, logs: &[&str]) -> (Vec<At>, Result<()>) {
            let logs: Vec<PathBuf> = logs.iter().map(|name| self.path(name)).collect();
            let mut entries = Entries::open(&self.path("own"), &logs).expect("open them");
            let mut found: Vec<At> = Vec::new();
            loop {
                let (index, term) = found.last().copied().unwrap_or_default();
                match entries.after((LogIndex(index), Term(term))) {
                    Ok(Some(stored)) => found.push((stored.entry.index, stored.entry.term)),
                    Ok(None) => return (found, Ok(())),
                    Err(e) => return (found, Err(e)),
                }
            }
        }
    }

    fn made(entries: &[At]) -> Vec<Entry> {
        entries.iter().map(|&(index, term)| Entry { index, term, ..Default::default() }).collect()
    }

    const SHARED: [At; 3] = [(1, 1), (2, 1), (3, 1)];
    /// Of a leader of term 1 that was alone; nobody was told that these were committed.
    const ALONE: [At; 3] = [(4, 1), (5, 1), (6, 1)];
    /// Committed under its successor.
    const DECIDED: [At; 2] = [(4, 2), (5, 2)];

    #[test]
    fn the_log_with_the_highest_last_term_is_restored_and_not_the_longest() {
        let logs = Logs::new();
        logs.node("alone", (0, 0), &[&SHARED[..], &ALONE].concat(), 3);
        logs.node("behind", (0, 0), &SHARED, 3);
        logs.node("majority", (0, 0), &[&SHARED[..], &DECIDED].concat(), 3);
        for order in [["alone", "behind", "majority"], ["majority", "alone", "behind"], ["behind", "alone", "majority"]]
        {
            let (found, end) = logs.restored(&order);
            assert_eq!(found, [&SHARED[..], &DECIDED].concat(), "{order:?}");
            end.expect("the log ends");
        }
        // Alone, it is what there is.
        assert_eq!(logs.restored(&["alone", "behind"]).0, [&SHARED[..], &ALONE].concat());
    }

    #[test]
    fn what_an_archive_has_was_decided_and_what_contradicts_it_is_left_out() {
        let logs = Logs::new();
        logs.archive("archive", (0, 0), &[&SHARED[..], &DECIDED[..1]].concat());
        logs.node("alone", (0, 0), &[&SHARED[..], &ALONE].concat(), 3);
        let (found, end) = logs.restored(&["alone", "archive"]);
        assert_eq!(found, [&SHARED[..], &DECIDED[..1]].concat());
        end.expect("the log ends");
        logs.node("majority", (0, 0), &[&SHARED[..], &DECIDED].concat(), 3);
        assert_eq!(logs.restored(&["alone", "archive", "majority"]).0, [&SHARED[..], &DECIDED].concat());
    }

    #[test]
    fn the_beginning_of_another_log_counts_as_far_as_it_is_the_same() {
        let logs = Logs::new();
        logs.node("alone", (0, 0), &[&SHARED[..], &ALONE].concat(), 0);
        logs.node("cut", SHARED[2], &DECIDED, 5);
        let (found, end) = logs.restored(&["alone", "cut"]);
        assert_eq!(found, [&SHARED[..], &DECIDED].concat());
        end.expect("the log ends");
        // Where the other was cut is not known here, so neither what is the same.
        logs.node("cut more", (5, 2), &[(6, 2)], 6);
        let (found, end) = logs.restored(&["alone", "cut more"]);
        assert_eq!(found, []);
        assert!(end.expect_err("entries are missing").to_string().contains("begins at entry 6, but entry 1 is needed"));
        // What a node knows to be committed is the same in all logs.
        logs.node("alone, knows", (0, 0), &[&SHARED[..], &ALONE].concat(), 3);
        let (found, end) = logs.restored(&["alone, knows", "cut more"]);
        assert_eq!(found, SHARED);
        assert!(end.expect_err("entries are missing").to_string().contains("begins at entry 6, but entry 4 is needed"));
    }

    #[test]
    fn logs_that_contradict_each_other_are_not_made_into_one() {
        let logs = Logs::new();
        // It was decided after what only one node has, and does not follow it.
        logs.node("alone", (0, 0), &[&SHARED[..], &ALONE].concat(), 3);
        logs.archive("later", (6, 2), &[(7, 2)]);
        let (found, end) = logs.restored(&["alone", "later"]);
        assert_eq!(found, [&SHARED[..], &ALONE].concat());
        assert!(end.expect_err("they contradict").to_string().contains("entry 6 is of term 2"));
        // A later leader has whatever was decided before.
        logs.archive("archive", (0, 0), &[&SHARED[..], &DECIDED].concat());
        logs.node("foreign", (0, 0), &[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 3)], 6);
        let (found, end) = logs.restored(&["archive", "foreign"]);
        assert_eq!(found, [&SHARED[..], &DECIDED].concat());
        assert!(end.expect_err("they contradict").to_string().contains("do not belong together"));
    }

    #[test]
    fn a_damaged_archive_says_nothing_of_where_another_one_ends() {
        let logs = Logs::new();
        let newest = |name: &str| {
            let files = std::fs::read_dir(logs.path(name)).expect("read it").map(|file| file.expect("read it").path());
            files.filter(|file| file.extension().is_some_and(|e| e != "json")).max().expect("a segment")
        };
        let (first, second, third) = ([(1, 1), (2, 1)], [(3, 1), (4, 1)], [(5, 1)]);
        logs.archive("shorter", (0, 0), &first);
        let end = std::fs::metadata(newest("shorter")).expect("look at it").len();
        for name in ["whole", "damaged"] {
            logs.archive_of(name, (0, 0), &[&first, &second, &third]);
        }
        let file = newest("damaged");
        let mut bytes = std::fs::read(&file).expect("read it");
        bytes[end as usize + 30] ^= 1;
        std::fs::write(&file, bytes).expect("write it");
        let all = [&first[..], &second, &third].concat();
        for order in [["damaged", "whole"], ["whole", "damaged"]] {
            let (found, end) = logs.restored(&order);
            assert_eq!(found, all);
            end.expect("the other one ends there");
        }
        // It may have what the other one lacks.
        for order in [&["damaged"][..], &["damaged", "shorter"]] {
            let (found, end) = logs.restored(order);
            assert_eq!(found, first);
            assert!(end.expect_err("it is damaged").to_string().contains("--to-position 2"), "{order:?}");
        }
    }
}
