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
//!
//! What contradicts the receiver is found in [`super::raft_node`]; a snapshot is read before raft-rs gets it
//! ([`super::Opened`]).

use super::{Message, MessageType};
use crate::error::{Error, Result};
use crate::ids::LogIndex;
use crate::level;
use crate::members::Command;
use protobuf::Message as _;
use raft::eraftpb::{ConfChangeV2, Entry as RaftEntry, EntryType};

const WHAT: &str = "message of Raft";

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
        if entry.index != index + 1 || entry.term == 0 {
            return refuse(format!("entry {} of term {} after entry {index}", entry.index, entry.term));
        }
        check_terms(entry.index, term, entry.term)?;
        (index, term) = (entry.index, entry.term);
    }
    check_terms(index, term, message.term)
}

/// A proposal has no index and term yet; the leader sets them.
fn check_proposal(entry: &RaftEntry) -> Result<()> {
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
