//! Changes of the membership: how they are proposed, and how they are carried out in log order.

use super::received::command_of;
use super::Consensus;
use crate::checkpoint::Conf;
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::ids::NodeId;
use crate::members::{Change, Command, MemberRole, Members, Step};
use protobuf::Message as _;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, Entry as RaftEntry, EntryType};
use raft::Storage;
use std::sync::Arc;

impl<S: Storage> Consensus<S> {
    /// A change that takes steps of the Raft configuration is proposed as a configuration entry, so that raft-rs keeps
    /// such changes apart; any other is an ordinary entry.
    pub(super) fn propose_change(&mut self, command: &Command) -> Result<()> {
        let steps = self.members.steps(&command.change);
        if steps.is_empty() {
            return self.propose(Entry::encode_command(command));
        }
        let mut change = conf_change(&steps);
        change.context = command.encode();
        let data = change.write_to_bytes().map_err(|e| Error::malformed("command", e.to_string()))?;
        let mut entry = RaftEntry { data: data.into(), ..Default::default() };
        entry.set_entry_type(EntryType::EntryConfChangeV2);
        if self.raft.leads() && !self.rows_stay(&command.change) {
            return Err(Error::RowsWouldGo);
        }
        if self.removes_me(&entry) {
            self.hand_over();
            return Err(Error::NoLeader);
        }
        self.raft.propose(vec![entry])
    }

    /// Whether enough of the members that stay have the rows, as far as this leader knows ([`Members::rows_stay`]).
    pub(super) fn rows_stay(&self, change: &Change) -> bool {
        let steps = self.members.steps(change);
        let with_rows = self.members.members.iter().filter(|m| m.role == MemberRole::Voter);
        let data_voters = with_rows.filter(|m| m.voter || steps.contains(&Step::Voter(m.id))).map(|m| m.id);
        let (leaving, staying): (Vec<NodeId>, Vec<NodeId>) =
            data_voters.partition(|id| steps.contains(&Step::Out(*id)));
        Members::rows_stay(&leaving, &staying, |id| self.has_rows(id))
    }

    /// It was heard of lately, and what its PostgreSQL shows can be brought on from this log.
    fn has_rows(&self, id: NodeId) -> bool {
        let is_here = id == self.config.id || self.raft.follower(id).is_some_and(|f| f.active);
        let first = self.raft.store().first_index().unwrap_or(u64::MAX);
        is_here && self.positions.get(&id).is_some_and(|shown| shown.0 + 1 >= first)
    }

    /// Whether this entry is a change that would leave too few members with the rows.
    pub(super) fn loses_rows(&self, entry: &RaftEntry) -> bool {
        entry.get_entry_type() == EntryType::EntryConfChangeV2
            && command_of(entry).is_some_and(|command| !self.rows_stay(&command.change))
    }

    /// Whether this entry would remove this node, which leads.  A leader must be a voter, so another member takes over
    /// first, and whoever proposed the change asks again.
    pub(super) fn removes_me(&self, entry: &RaftEntry) -> bool {
        if !self.raft.leads() || entry.get_entry_type() != EntryType::EntryConfChangeV2 {
            return false;
        }
        let Some(command) = command_of(entry) else { return false };
        self.members.steps(&command.change).contains(&Step::Out(self.config.id))
    }

    /// The table of members after this entry, if the entry changes it.  The log is the same on every node, and so is
    /// the answer; an entry that makes no sense changes nothing anywhere.
    pub(super) fn carry_out(&mut self, entry: &RaftEntry) -> Option<Arc<Members>> {
        let mut table;
        match entry.get_entry_type() {
            EntryType::EntryNormal => {
                let command = Entry::command(&entry.data).filter(|c| self.members.steps(&c.change).is_empty())?;
                table = Members::clone(&self.members);
                table.apply(&command).ok()?;
            }
            EntryType::EntryConfChangeV2 if entry.data.is_empty() => {
                // This is how raft-rs leaves a joint configuration.
                let conf = self.raft.apply_conf_change(&ConfChangeV2::default())?;
                table = Members::clone(&self.members);
                table.left_joint();
                self.configured(&conf);
            }
            EntryType::EntryConfChangeV2 => {
                let command = command_of(entry)?;
                let steps = self.members.steps(&command.change);
                table = Members::clone(&self.members);
                table.apply(&command).ok()?;
                if steps.is_empty() {
                    return None;
                }
                // raft-rs refuses this while a joint configuration lasts; the leader lets no such entry in.
                let conf = self.raft.apply_conf_change(&conf_change(&steps))?;
                self.configured(&conf);
            }
            EntryType::EntryConfChange => return None,
        }
        self.members = Arc::new(table);
        self.take_seat();
        Some(self.members.clone())
    }

    fn configured(&mut self, conf: &ConfState) {
        self.conf = Conf::from(conf);
        let conf = &self.conf;
        self.positions.retain(|id, _| conf.contains(*id));
    }
}

fn conf_change(steps: &[Step]) -> ConfChangeV2 {
    let mut change = ConfChangeV2::default();
    for step in steps {
        let (id, kind) = match step {
            Step::Learner(id) => (id, ConfChangeType::AddLearnerNode),
            Step::Voter(id) => (id, ConfChangeType::AddNode),
            Step::Out(id) => (id, ConfChangeType::RemoveNode),
        };
        let mut single = ConfChangeSingle { node_id: u64::from(id.0), ..Default::default() };
        single.set_change_type(kind);
        change.mut_changes().push(single);
    }
    change
}
