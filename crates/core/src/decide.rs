//! Decides one committed log entry.  Every node does it in the same way.
//!
//! An entry of a node that is not a member at that index commits nothing, whoever let it into the log.

use crate::certifier::{Certifier, CommittedIndexes, Decision};
use crate::consensus::Committed;
use crate::entry::{Entry, EntryKind};
use crate::error::Result;
use crate::ids::TxnId;
use crate::members::Members;
use std::sync::Arc;

/// The entry's transaction and the decision on it; `None` if the entry contains none.  `members` becomes the table
/// after this entry.
pub fn decide(
    committed: &Committed,
    certifier: &mut Certifier,
    committed_indexes: &mut CommittedIndexes,
    members: &mut Arc<Members>,
) -> Result<Option<(TxnId, Decision)>> {
    let index = committed.index;
    // Bytes that are not a valid entry are passed over on every node, since all see the same bytes.
    let Some(entry) = committed.transaction().and_then(|raw| Entry::decode(raw.clone()).ok()) else {
        certifier.skip(index)?;
        if let Some(after) = &committed.members {
            for gone in members.members.iter().filter(|m| !after.contains(m.id)) {
                certifier.end(gone.id);
            }
            *members = after.clone();
        }
        return Ok(None);
    };
    let entry = certifier.put_together(entry);
    let is_member = members.contains(entry.txn.node);
    let decision = match entry.kind {
        EntryKind::Part if is_member => certifier.take_part(index, &entry)?,
        kind if !is_member && (kind.is_of_backend() || kind == EntryKind::Whole) => certifier.refuse(index, &entry)?,
        EntryKind::Incarnation | EntryKind::Part if !is_member => {
            certifier.skip(index)?;
            return Ok(None);
        }
        // A transaction can be cancelled or left out even if its node is not a member any more.
        _ => certifier.certify(index, &entry)?,
    };
    let commits = match decision {
        Decision::Decided { verdict, .. } => verdict.commits(),
        Decision::LeavesOut { .. } => true,
        _ => false,
    };
    if commits {
        committed_indexes.push(index);
    }
    Ok(Some((entry.txn, decision)))
}
