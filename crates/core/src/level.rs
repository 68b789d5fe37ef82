//! Format levels: which formats of entries and commands a release knows, and which of them a cluster uses.
//!
//! A release knows all levels up to [`KNOWN`].  The level *in force* is a field of the table of members: an operator
//! has it raised once every member's release knows the new one (`onetrip upgrade --finish`), and it never goes down.
//! What a level brings is proposed only while that level is in force, so until then each member can go back to the
//! release that it had before.
//!
//! Invariants:
//! - No entry that needs a level gets into a log while that level is not in force, except for the one that raises it.
//! - A node never takes an entry into its log that needs a level which its release does not know, nor starts from a log
//!   or a checkpoint that contains one.  For releases older than levels that is so because of marks that they refuse:
//!   on messages ([`mark`]), on records of the log, and the version of a checkpoint.
//!
//! A new kind of entry or command, or anything else that an earlier release could not read in the log, gets the next
//! level: [`KNOWN`] rises by one, and [`EntryKind::level`] or [`Change::level`] names it.
//!
//! | level | brings |
//! |---|---|
//! | 0 | what releases before levels know |
//! | 1 | the command that raises the level; operations `C`, `L` and `M` of write sets (`onetrip.format_level`); |
//! |   | statements that the extension carries out otherwise than before: `CREATE UNIQUE INDEX CONCURRENTLY`, |
//! |   | `REINDEX INDEX`, `DETACH PARTITION CONCURRENTLY`; keys of what a transaction has only read |

use crate::consensus::Message;
use crate::entry::{Entry, EntryKind, KIND_AT};
use crate::error::{Error, Result};
use crate::ids::Level;
use crate::members::Change;
use bytes::Bytes;
use raft::eraftpb::{Entry as RaftEntry, EntryType, MessageType};

/// The highest level that this release knows.
pub const KNOWN: Level = Level(1);

/// In a message's `reject_hint`, which appends and proposals do not use: its `request_snapshot` is the level that it
/// needs.  Releases older than levels refuse a message with so high a number.
const MARK: u64 = u64::MAX;

impl EntryKind {
    /// The level that brings it.
    pub fn level(self) -> Level {
        use EntryKind::*;
        match self {
            Transaction | Command | Cancel | Incarnation | Skip | Part | Whole | Prepare | CommitPrepared
            | RollbackPrepared => Level(0),
        }
    }
}

impl Change {
    /// The level that must be known to whoever is to carry it out.
    pub fn level(&self) -> Level {
        match self {
            Change::RaiseLevel(level) => *level,
            Change::AddToken(_)
            | Change::Join { .. }
            | Change::Promote(_)
            | Change::Remove(_)
            | Change::PreferLeader(_)
            | Change::MoveLeader(_)
            | Change::LeaseRegions(_) => Level(0),
        }
    }
}

/// The level that an encoded entry needs.
pub fn of_entry(raw: &Bytes) -> Level {
    match raw.get(KIND_AT).copied().and_then(EntryKind::from_u8) {
        Some(EntryKind::Command) => Entry::command(raw).map_or(Level(0), |command| command.change.level()),
        kind => kind.map_or(Level(0), EntryKind::level),
    }
}

/// Keys of what a transaction has only read.  Looking for them costs a look at every key, so [`of_entry`] does not: it
/// is enough that they are not proposed before, since the entry that raises the level comes first in any log.
const READS: Level = Level(1);

/// Whether an entry may be proposed while this level is in force.
pub fn may_be_proposed(raw: &Bytes, in_force: Level) -> Result<()> {
    let reads = || in_force < READS && Entry::decode(raw.clone()).is_ok_and(|entry| entry.has_reads());
    let needs = of_entry(raw).max(if reads() { READS } else { Level(0) });
    let raises = || Entry::command(raw).is_some_and(|command| matches!(command.change, Change::RaiseLevel(_)));
    match needs <= in_force || raises() {
        true => Ok(()),
        false => Err(Error::NotInForce { needs, in_force }),
    }
}

/// What is no normal entry is raft-rs' own, and has no level.
fn highest(entries: &[RaftEntry]) -> Level {
    let normal = entries.iter().filter(|entry| entry.get_entry_type() == EntryType::EntryNormal);
    normal.map(|entry| of_entry(&entry.data)).max().unwrap_or_default()
}

/// Lets no release take the entries in this message that does not know them.
pub(crate) fn mark(message: &mut Message) {
    if !matches!(message.get_msg_type(), MessageType::MsgAppend | MessageType::MsgPropose) {
        return;
    }
    let needs = highest(&message.entries);
    if needs > Level(0) {
        (message.reject_hint, message.request_snapshot) = (MARK, u64::from(needs.0));
    }
}

/// Removes the mark, if there is one.  `known`: the level that the receiver knows.
pub(crate) fn unmark(message: &mut Message, known: Level) -> Result<()> {
    let says = says(message).unwrap_or_default();
    let needs = says.max(highest(&message.entries));
    if needs > known {
        return Err(Error::Level { needs, known });
    }
    if says > Level(0) {
        (message.reject_hint, message.request_snapshot) = (0, 0);
    }
    Ok(())
}

/// The level that a message says it needs, if it is marked.
pub(crate) fn says(message: &Message) -> Option<Level> {
    let may_be = matches!(message.get_msg_type(), MessageType::MsgAppend | MessageType::MsgPropose);
    let level = u16::try_from(message.request_snapshot).ok().filter(|level| *level > 0);
    level.filter(|_| may_be && message.reject_hint == MARK).map(Level)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Command;
    use crate::{consensus, Base, Key, LockMode, LogIndex, TxnId};
    use protobuf::ProtobufEnum;

    fn raise(level: u16) -> Bytes {
        Entry::encode_command(&Command { expected_version: 3, change: Change::RaiseLevel(Level(level)) })
    }

    fn message(kind: MessageType, data: Bytes) -> Message {
        let mut message = Message { from: 1, to: 2, ..Message::default() };
        message.set_msg_type(kind);
        message.mut_entries().push(RaftEntry { data, ..RaftEntry::default() });
        if kind == MessageType::MsgAppend {
            (message.term, message.entries[0].term, message.entries[0].index) = (1, 1, 1);
        }
        message
    }

    /// Goal: no release takes what it does not know, and what it knows arrives as it was sent.
    #[test]
    fn a_message_says_which_level_it_needs() {
        for kind in [MessageType::MsgAppend, MessageType::MsgPropose] {
            for level in 1..=KNOWN.0 + 1 {
                let plain = message(kind, raise(level));
                let mut marked = plain.clone();
                mark(&mut marked);
                // This is what releases without levels check.
                assert!(marked.reject_hint > crate::LogIndex::MAX.0);
                assert_eq!(consensus::check(&marked).is_ok(), level <= KNOWN.0, "level {level}");
                let mut back = marked.clone();
                assert!(matches!(unmark(&mut back, Level(level - 1)), Err(Error::Level { .. })));
                unmark(&mut back, Level(level)).unwrap();
                assert_eq!(back, plain);
                // One whose sender has forgotten the mark.
                assert!(unmark(&mut plain.clone(), Level(level - 1)).is_err());
            }
            let plain = message(kind, Entry::encode_cancel(&TxnId::default()));
            let mut same = plain.clone();
            mark(&mut same);
            unmark(&mut same, Level(0)).unwrap();
            assert_eq!(same, plain);
        }
    }

    /// Goal: whatever a member writes where the mark is, a message is refused, or arrives without a mark and with
    /// nothing that is not known here.
    #[test]
    fn a_false_mark_is_refused_or_gone() {
        let edges = [0, 1, 2, 65_535, 65_536, 65_537, LogIndex::MAX.0, LogIndex::MAX.0 + 1, MARK - 1, MARK];
        let entries = [Vec::new(), vec![raise(0)], vec![raise(1)], vec![raise(2)], vec![raise(u16::MAX)]];
        let (mut refused, mut taken) = (0, 0);
        for kind in MessageType::values() {
            for (hint, snapshot) in edges.iter().flat_map(|hint| edges.iter().map(move |snapshot| (*hint, *snapshot))) {
                for data in &entries {
                    let mut message = Message { from: 1, to: 2, term: 1, ..Message::default() };
                    message.set_msg_type(*kind);
                    (message.reject_hint, message.request_snapshot) = (hint, snapshot);
                    for (at, data) in data.iter().enumerate() {
                        let (index, data) = (at as u64 + 1, data.clone());
                        message.mut_entries().push(RaftEntry { term: 1, index, data, ..RaftEntry::default() });
                    }
                    if consensus::check(&message).and_then(|()| unmark(&mut message, KNOWN)).is_err() {
                        refused += 1;
                        continue;
                    }
                    taken += 1;
                    assert!(message.reject_hint <= LogIndex::MAX.0 && message.request_snapshot == 0, "{message:?}");
                    assert!(highest(&message.entries) <= KNOWN, "{message:?}");
                }
            }
        }
        assert!(refused > 1_000 && taken > 10, "{refused} refused, {taken} taken");
    }

    /// Goal: a change of the configuration is not taken for an entry that needs a level, whatever its bytes are.
    #[test]
    fn only_normal_entries_have_a_level() {
        let mut change = message(MessageType::MsgPropose, raise(9));
        change.entries[0].set_entry_type(EntryType::EntryConfChangeV2);
        let mut marked = change.clone();
        mark(&mut marked);
        assert_eq!(marked, change);
        unmark(&mut marked, Level(0)).unwrap();
    }

    /// The library has a number of its own, since C cannot read this one.
    #[test]
    fn the_library_of_this_release_knows_the_same_level() {
        let header = include_str!("../../../extension/src/base/base.h");
        let defined = header.lines().find_map(|line| line.strip_prefix("#define OT_FORMAT_LEVEL_KNOWN"));
        assert_eq!(defined.map(str::trim), Some(KNOWN.to_string().as_str()));
    }

    #[test]
    fn only_a_raise_comes_before_its_level() {
        may_be_proposed(&raise(1), Level(0)).unwrap();
        may_be_proposed(&Entry::encode_cancel(&TxnId::default()), Level(0)).unwrap();
        let key = Key { hash: 1, mode: LockMode::Share, base: Base(0) };
        let read = Entry::encode_serializable(EntryKind::Transaction, &TxnId::default(), &[key], &[key], b"");
        may_be_proposed(&Entry::encode(&TxnId::default(), &[key], b""), Level(0)).unwrap();
        assert!(may_be_proposed(&read, Level(0)).is_err());
        may_be_proposed(&read, Level(1)).unwrap();
        assert_eq!(of_entry(&raise(7)), Level(7));
        assert_eq!(of_entry(&Bytes::from_static(b"short")), Level(0));
        let kinds = (0..=u8::MAX).filter_map(EntryKind::from_u8);
        assert!(kinds.map(EntryKind::level).all(|level| level <= KNOWN), "a level that this release does not know");
    }
}
