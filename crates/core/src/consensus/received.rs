//! What a member may say at all, whatever the receiver knows. raft-rs takes much of a message on trust, and panics
//! where it was deceived.
//!
//! What raft-rs does with a wrong message:
//!
//! - A kind that no member sends (reads, requests for a transfer): a leader looks for an entry that is not there; a
//!   follower sends it on with a term, and panics.
//! - Term 0: raft-rs takes the message for one of its own, and panics when it answers with that term.
//! - An index without a term: term 0 is that of entries that raft-rs does not have, so the message matches, and what it
//!   commits is not there.
//! - An entry that does not follow the one before: raft-rs truncates the log at the wrong place, or looks for the entry
//!   there.
//! - An entry of term 0, of an earlier term than the entry before it, or of a later term than the message: as with an
//!   index without a term; or the terms in the log go down.
//! - A number near 2^64: raft-rs adds to it.
//! - A request for a snapshot: raft-rs asks the log for one of that index.
//! - Two bytes for an empty entry, or for a field that no release knows: decoded, each takes more than a hundred.
//!
//! What contradicts the receiver is found in [`super::raft_node`]; a snapshot is read before raft-rs gets it
//! ([`super::Opened`]).

use super::{Message, MessageType};
use crate::error::{Error, Result};
use crate::ids::LogIndex;
use crate::level;
use crate::members::Command;
use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{ConfChangeV2, Entry as RaftEntry, EntryType};

const WHAT: &str = "message of Raft";
/// What may stand in a message again and again: entries, and ids of members.  The most are in an append: a log counts
/// 24 bytes beside each entry's data, and an entry that is not in it yet has 60 at least, so there are 60,000 in
/// `MESSAGE_BYTES_MAX`.
const REPEATED_MAX: usize = 1 << 16;
/// A change of the configuration with its command: some hundred names of regions.
const CHANGE_BYTES_MAX: usize = 64 << 10;

/// Decodes a message of another member, which then goes on using these bytes: beside them it takes no more than what
/// [`REPEATED_MAX`] allows.
pub fn parse(raw: &Bytes) -> Result<Message> {
    match repeated(raw, Of::Message) {
        Some(n) if n <= REPEATED_MAX => {}
        Some(n) => return refuse(format!("{n} entries and ids, {REPEATED_MAX} at most")),
        None => return refuse("it has a field that it cannot have"),
    }
    Message::parse_from_carllerche_bytes(raw).map_err(|e| Error::malformed(WHAT, e.to_string()))
}

#[derive(Clone, Copy)]
enum Of {
    Message,
    Entry,
    Snapshot,
    Metadata,
    ConfState,
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// How often something stands there that may be repeated.  The numbers of fields and values are those of raft-rs'
/// eraftpb.proto; of others, protobuf keeps each.
fn repeated(mut raw: &[u8], of: Of) -> Option<usize> {
    let mut n = 0;
    while !raw.is_empty() {
        let (number, field) = take_field(&mut raw)?;
        n += match (of, number, field) {
            (Of::Message, 7, Field::Bytes(entry)) => 1 + repeated(entry, Of::Entry)?,
            (Of::Message, 9, Field::Bytes(snapshot)) => repeated(snapshot, Of::Snapshot)?,
            (Of::Snapshot, 2, Field::Bytes(metadata)) => repeated(metadata, Of::Metadata)?,
            (Of::Metadata, 1, Field::Bytes(conf)) => repeated(conf, Of::ConfState)?,
            (Of::ConfState, 1..=4, Field::Bytes(ids)) => ids.len(),
            (Of::ConfState, 1..=4, Field::Number(_)) => 1,
            (Of::Message, 1, Field::Number(0..=18)) | (Of::Entry, 1, Field::Number(0..=2)) => 0,
            (Of::Message, 2..=16, _) | (Of::Entry, 2..=6, _) | (Of::Snapshot, 1, _) => 0,
            (Of::Metadata, 2..=3, _) | (Of::ConfState, 5, _) => 0,
            _ => return None,
        };
    }
    Some(n)
}

/// The next field's number, and the field; of the two kinds that the fields of these messages have.
fn take_field<'a>(raw: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    let tag = take_varint(raw)?;
    let field = match tag & 7 {
        0 => Field::Number(take_varint(raw)?),
        2 => {
            let length = usize::try_from(take_varint(raw)?).ok()?;
            let (bytes, rest) = raw.split_at_checked(length)?;
            *raw = rest;
            Field::Bytes(bytes)
        }
        _ => return None,
    };
    Some((tag >> 3, field))
}

fn take_varint(raw: &mut &[u8]) -> Option<u64> {
    let length = 1 + raw.iter().take(10).position(|byte| byte & 0x80 == 0)?;
    let (bytes, rest) = raw.split_at(length);
    *raw = rest;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f)))
}

/// To be called with every message of another member, before anything else is done with it.  An error means that no
/// correct member sends this, so nothing that the sender says can be trusted.
pub fn check(message: &Message) -> Result<()> {
    let numbers = [message.term, message.index, message.log_term, message.commit, message.commit_term];
    let snapshot = message.get_snapshot().get_metadata();
    let needs = level::says(message);
    if let Some(needs) = needs.filter(|needs| *needs > level::KNOWN) {
        return Err(Error::Level { needs, known: level::KNOWN });
    }
    let hint = if needs.is_some() { 0 } else { message.reject_hint };
    let numbers = numbers.into_iter().chain([hint, snapshot.index, snapshot.term]);
    if let Some(large) = numbers.into_iter().find(|n| *n > LogIndex::MAX.0) {
        return refuse(format!("the number {large}"));
    }
    if message.request_snapshot != 0 && needs.is_none() {
        return refuse("a request for a snapshot");
    }
    let kind = message.get_msg_type();
    match kind {
        MessageType::MsgPropose => return message.entries.iter().try_for_each(check_proposal),
        MessageType::MsgAppend
        | MessageType::MsgAppendResponse
        | MessageType::MsgRequestVote
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse
        | MessageType::MsgHeartbeat
        | MessageType::MsgHeartbeatResponse
        | MessageType::MsgSnapshot
        | MessageType::MsgTimeoutNow => {}
        other => return refuse(format!("{other:?} from another node")),
    }
    if message.term == 0 {
        return refuse(format!("{kind:?} without a term"));
    }
    match kind {
        MessageType::MsgAppend => check_append(message),
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => check_position(message.index, message.log_term),
        MessageType::MsgSnapshot if snapshot.index == 0 => refuse("a snapshot of nothing"),
        MessageType::MsgSnapshot => check_position(snapshot.index, snapshot.term)
            .and_then(|()| check_terms(snapshot.index, snapshot.term, message.term)),
        _ => Ok(()),
    }
}

fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::malformed(WHAT, why))
}

/// There is no term before the first entry, and there is one everywhere else.
fn check_position(index: u64, term: u64) -> Result<()> {
    match (index == 0) == (term == 0) {
        true => Ok(()),
        false => refuse(format!("index {index} with term {term}")),
    }
}

fn check_terms(index: u64, earlier: u64, later: u64) -> Result<()> {
    match earlier <= later {
        true => Ok(()),
        false => refuse(format!("term {later} after term {earlier} at index {index}")),
    }
}

fn check_append(message: &Message) -> Result<()> {
    check_position(message.index, message.log_term)?;
    let (mut index, mut term) = (message.index, message.log_term);
    for entry in message.entries.iter() {
        check_change(entry)?;
        if entry.index != index + 1 || entry.term == 0 {
            return refuse(format!("entry {} of term {} after entry {index}", entry.index, entry.term));
        }
        check_terms(entry.index, term, entry.term)?;
        (index, term) = (entry.index, entry.term);
    }
    check_terms(index, term, message.term)
}

/// Decoded, a change of the configuration may take many times its bytes.
fn check_change(entry: &RaftEntry) -> Result<()> {
    match entry.get_entry_type() == EntryType::EntryNormal || entry.data.len() <= CHANGE_BYTES_MAX {
        true => Ok(()),
        false => refuse(format!("a change of the configuration of {} bytes", entry.data.len())),
    }
}

/// A proposal has no index and term yet; the leader sets them.
fn check_proposal(entry: &RaftEntry) -> Result<()> {
    check_change(entry)?;
    match entry.get_entry_type() {
        EntryType::EntryNormal => Ok(()),
        EntryType::EntryConfChangeV2 if command_of(entry).is_some() => Ok(()),
        other => refuse(format!("a proposal of {other:?} without a command")),
    }
}

/// The command in a change of the configuration.
pub(super) fn command_of(entry: &RaftEntry) -> Option<Command> {
    let change = ConfChangeV2::parse_from_carllerche_bytes(&entry.data).ok()?;
    Command::decode(change.context).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what members send is read as it was, and nothing that takes much memory for few bytes is.
    /// Method: a message with all that a message may have; then many of each thing that may be repeated, and what no
    /// release writes.
    #[test]
    fn a_message_is_read_unless_it_would_take_much_memory() {
        let entry = |index, data: &'static [u8]| {
            let data = Bytes::from_static(data);
            let mut entry = RaftEntry { index, term: 3, context: data.clone(), data, ..Default::default() };
            entry.set_entry_type(EntryType::EntryConfChangeV2);
            entry
        };
        let mut message = Message { from: 1, to: 2, term: 300, index: 1 << 40, reject: true, ..Default::default() };
        (message.log_term, message.commit, message.commit_term, message.priority) = (1, 2, 3, -1);
        (message.reject_hint, message.request_snapshot, message.deprecated_priority) = (u64::MAX, 1, 9);
        message.context = Bytes::from_static(b"context");
        message.set_msg_type(MessageType::MsgReadIndexResp);
        message.set_entries(vec![entry(1, b"one"), RaftEntry::default(), entry(1 << 33, &[7; 300])].into());
        let snapshot = message.mut_snapshot();
        snapshot.data = Bytes::from_static(&[1; 1_000]);
        (snapshot.mut_metadata().index, snapshot.mut_metadata().term) = (1 << 20, 8);
        let conf = snapshot.mut_metadata().mut_conf_state();
        (conf.voters, conf.learners, conf.auto_leave) = (vec![1, 2, 300], vec![4], true);
        (conf.voters_outgoing, conf.learners_next) = (vec![5], vec![6]);
        let raw = |message: &Message| Bytes::from(message.write_to_bytes().unwrap());
        let whole = raw(&message);
        assert_eq!(repeated(&whole, Of::Message), Some(3 + 6));
        assert_eq!(parse(&whole).unwrap(), message);
        for end in 0..whole.len() {
            let _ = parse(&whole.slice(..end));
        }

        message.set_entries(vec![RaftEntry::default(); REPEATED_MAX - 6].into());
        assert_eq!(parse(&raw(&message)).unwrap(), message);
        message.mut_entries().push(RaftEntry::default());
        assert!(parse(&raw(&message)).unwrap_err().to_string().contains("65537 entries and ids"));
        // The ids in one piece, which is how others may write them.
        let packed = [&[0x4a, 8, 0x12, 6, 0x0a, 4, 0x0a, 2, 1, 2][..], &whole].concat();
        assert_eq!(repeated(&packed, Of::Message), Some(3 + 6 + 2));
        // A field that there is not, one that has another kind of value, a value that there is not; and the same in an
        // entry.
        for wrong in [&[0x88, 1, 0][..], &[0x15, 0, 0, 0, 0], &[0x08, 19], &[0x3a, 2, 0x38, 0], &[0x3a, 2, 0x08, 3]] {
            let why = parse(&Bytes::from([&whole, wrong].concat())).unwrap_err().to_string();
            assert!(why.contains("it has a field that it cannot have"), "{wrong:?}: {why}");
        }
    }

    #[test]
    fn a_change_of_the_configuration_is_short() {
        let mut message = Message { term: 1, ..Default::default() };
        message.set_msg_type(MessageType::MsgAppend);
        let mut append = |kind, bytes: usize| {
            let mut entry = RaftEntry { index: 1, term: 1, data: vec![0; bytes].into(), ..Default::default() };
            entry.set_entry_type(kind);
            message.set_entries(vec![entry].into());
            check(&message)
        };
        append(EntryType::EntryNormal, CHANGE_BYTES_MAX + 1).unwrap();
        append(EntryType::EntryConfChangeV2, CHANGE_BYTES_MAX).unwrap();
        append(EntryType::EntryConfChangeV2, CHANGE_BYTES_MAX + 1).unwrap_err();
    }
}
