//! What must hold, judged from outside the nodes by what they said and did.
//!
//! It shares no code with the certifier: the history is kept whole and snapshot isolation is checked by its definition,
//! on the keys and bases that the transactions really had, not on those that were proposed.

use crate::prepared::{self, Step};
use crate::rows::{self, Rows};
use bytes::Bytes;
use onetrip_checker::Value;
use onetrip_core::certifier::{Decision, Limits, Outcome, Verdict};
use onetrip_core::{Conf, Entry, EntryKind, Key, LockMode, LogIndex, Members, NodeId, Term, TxnId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One key as a transaction really took it.
#[derive(Clone, Copy, Debug)]
pub struct TrueKey {
    pub hash: u64,
    pub mode: LockMode,
    /// PostgreSQL's applied index when the lock was held.
    pub base: LogIndex,
    /// How many values the row had then.
    pub read: u64,
    /// What a writer appends.
    pub value: Value,
    /// Of a row that a SERIALIZABLE transaction has read, which is not locked: nobody else has to mind it.
    pub only_read: bool,
}

impl TrueKey {
    pub fn writes(&self) -> bool {
        matches!(self.mode, LockMode::NoKeyUpdate | LockMode::Update)
    }
}

/// A transaction that is prepared and not ended.
struct Held {
    index: LogIndex,
    txn: TxnId,
    /// As they were proposed, the name first; and whether each is of what was only read.
    keys: Vec<(Key, bool)>,
    /// Something was left out that it may have seen.
    lost: bool,
}

struct Decided {
    data: Bytes,
    /// The transaction that this entry stands for, if its bytes arrived in parts.
    whole: Option<Bytes>,
    decision: Option<Decision>,
}

#[derive(Default)]
pub struct Checker {
    /// Entries that at least one node has decided; place 0 is log index 1.
    log: Vec<Decided>,
    committed: Vec<LogIndex>,
    taken: BTreeMap<u64, Vec<(LogIndex, LockMode)>>,
    /// How many values each row has after the last committed entry.
    store: BTreeMap<u64, u64>,
    limits: Limits,
    truth: BTreeMap<TxnId, Vec<TrueKey>>,
    committed_txns: BTreeMap<TxnId, LogIndex>,
    aborted_txns: BTreeMap<TxnId, LogIndex>,
    /// For each entry that is no transaction: whose transactions it ended, those of one incarnation, or all of a
    /// node that left.
    ended: BTreeMap<LogIndex, Vec<(NodeId, Option<u64>)>>,
    /// By name; and for each committed entry that prepares or ends a transaction: the one whose rows it writes.
    held: BTreeMap<u64, Held>,
    writes_of: BTreeMap<LogIndex, Option<LogIndex>>,
    /// How many keys a committed entry has taken.
    key_counts: BTreeMap<LogIndex, u64>,
    told_committed: BTreeMap<TxnId, LogIndex>,
    newest_told: LogIndex,
    told_aborted: BTreeMap<TxnId, &'static str>,
    leaders: BTreeMap<Term, NodeId>,
    /// The table of members from each index that changed it, as the first node to decide that index had it.
    tables: BTreeMap<LogIndex, Arc<Members>>,
    /// What an operator asked to leave out; and what was left out, and by which entry.
    asked_to_leave_out: BTreeSet<LogIndex>,
    left_out: BTreeMap<LogIndex, LogIndex>,
    failure: Option<String>,
}

impl Checker {
    pub fn fail(&mut self, why: String) {
        self.failure.get_or_insert(why);
    }

    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    pub fn last_committed(&self) -> LogIndex {
        self.committed.last().copied().unwrap_or(LogIndex::ZERO)
    }

    pub fn log_len(&self) -> LogIndex {
        LogIndex(self.log.len() as u64)
    }

    pub fn committed_count(&self) -> usize {
        self.committed.len()
    }

    /// Every transaction that was ever proposed.
    pub fn txns(&self) -> Vec<TxnId> {
        self.truth.keys().copied().collect()
    }

    pub fn proposes(&mut self, txn: TxnId, keys: Vec<TrueKey>) {
        if self.truth.insert(txn, keys).is_some() {
            self.fail(format!("transaction id {txn} was given out twice"));
        }
    }

    pub fn leads(&mut self, node: NodeId, term: Term) {
        let first = *self.leaders.entry(term).or_insert(node);
        if first != node {
            self.fail(format!("nodes {first} and {node} both lead in term {term}"));
        }
    }

    /// The table and the limits from which the cluster starts.
    pub fn begins_with(&mut self, members: Members, limits: Limits) {
        self.tables.insert(LogIndex::ZERO, Arc::new(members));
        self.limits = limits;
    }

    pub fn newest_members(&self) -> &Arc<Members> {
        self.tables.last_key_value().expect("there is one from the start").1
    }

    /// The entry at `index` made this the table of members.
    pub fn has_members(&mut self, node: NodeId, index: LogIndex, members: &Arc<Members>) {
        if let Some(first) = self.tables.get(&index) {
            if first != members {
                self.fail(format!("node {node} has another table of members at {index} than the first to decide"));
            }
            return;
        }
        let voters = |m: &Members| m.voters().map(|m| m.id).collect::<BTreeSet<NodeId>>();
        let (before, after) = (voters(self.newest_members()), voters(members));
        // So that any two majorities meet.  A replacement takes two such steps, and between them both sets must
        // agree.
        if before.symmetric_difference(&after).count() > 1 {
            self.fail(format!("at {index} the voters go from {before:?} to {after:?} in one step"));
        }
        let gone = self.newest_members().members.iter().map(|m| m.id).filter(|id| !members.contains(*id));
        let gone: Vec<(NodeId, Option<u64>)> = gone.map(|id| (id, None)).collect();
        self.ended.insert(index, gone);
        self.tables.insert(index, members.clone());
    }

    /// A node's Raft configuration fits its table of members, and its table is everybody's table at that index.
    pub fn configured(&mut self, node: NodeId, index: LogIndex, conf: &Conf, members: &Arc<Members>) {
        let known = self.tables.range(..=index).next_back().map(|(_, m)| m);
        if known.is_some_and(|known| known != members) {
            return self.fail(format!("node {node} has another table of members at {index} than the log gives"));
        }
        let ids = |voter: bool| members.members.iter().filter(move |m| m.voter == voter).map(|m| m.id);
        let in_raft = |sets: [&Vec<NodeId>; 2]| sets.into_iter().flatten().copied().collect::<BTreeSet<NodeId>>();
        let fits = in_raft([&conf.voters, &conf.outgoing]) == ids(true).collect()
            && in_raft([&conf.learners, &conf.learners_next]) == ids(false).collect();
        if !fits {
            self.fail(format!("node {node} has {conf:?} at {index}, which is not its table {:?}", members.members));
        }
    }

    /// A node went on from a checkpoint of another one.
    pub fn restored(&mut self, node: NodeId, index: LogIndex) {
        if index > self.log_len() {
            self.fail(format!("node {node} goes on from {index}, which nobody has decided"));
        }
    }

    /// A node counts this entry as decided.
    pub fn holds(&mut self, node: NodeId, index: LogIndex, data: &Bytes) {
        if self.log.get(index.0 as usize - 1).is_some_and(|first| first.data != *data) {
            self.fail(format!("the log is not one: node {node} has another entry at {index} than the first to decide"));
        }
    }

    /// A node gave this index to its certifier.  `decision` is `None` if the entry is no transaction.
    pub fn decides(&mut self, node: NodeId, index: LogIndex, data: &Bytes, decision: Option<Decision>) {
        let place = index.0 as usize - 1;
        if let Some(first) = self.log.get(place) {
            if first.data != *data {
                self.holds(node, index, data);
            } else if first.decision != decision {
                let why = format!("node {node} decides {decision:?} at {index}, the first {:?}", first.decision);
                self.fail(why);
            }
            return;
        }
        if place != self.log.len() {
            self.fail(format!("node {node} decides {index} although nobody decided {}", self.log.len() + 1));
            return;
        }
        let whole = self.put_together(data);
        self.log.push(Decided { data: data.clone(), whole, decision });
        let Some(decision) = decision else { return };
        let entry = match Entry::decode(self.entry_at(index)) {
            Ok(entry) => entry,
            Err(e) => return self.fail(format!("entry {index} was decided but is none: {e}")),
        };
        match decision {
            Decision::Decided { verdict, previous } if verdict.commits() => {
                self.commits(index, previous, &entry);
                match verdict {
                    Verdict::Commit => self.takes(index, &entry),
                    Verdict::Prepared => self.prepares(index, &entry),
                    _ => self.ends_prepared(index, &entry),
                }
                self.committed.push(index);
            }
            Decision::Decided { verdict, .. } => self.aborts(index, verdict, &entry),
            Decision::LeavesOut { left_out, previous } => self.leaves_out(index, left_out, previous, &entry),
            Decision::Part { .. } => {}
            Decision::Duplicate { first } => {
                let again = entry.leaves_out().is_some_and(|left_out| self.left_out.get(&left_out) == Some(&first));
                if again {
                    return;
                }
                if self.decided_at(&entry.txn) != Some(first) && !self.ends(first, &entry.txn) {
                    self.fail(format!("{index} is called a duplicate of {first}, which is not {}", entry.txn));
                }
            }
            Decision::NoTransaction => {
                let before = <[u8; 8]>::try_from(&entry.write_set[..]).map_or(0, u64::from_le_bytes);
                self.ended.entry(index).or_default().push((entry.txn.node, Some(before)));
            }
            Decision::Stale => {
                let is_right = match entry.leaves_out() {
                    Some(left_out) => left_out >= index || self.committed.binary_search(&left_out).is_err(),
                    None => self.may_forget(&entry.txn, index),
                };
                if !is_right {
                    self.fail(format!("{index} is called stale, and {} should be known", entry.txn));
                }
            }
        }
    }

    /// The bytes of a transaction that arrived in parts, put together as the entry that names the parts
    /// says.  Whether all nodes used the same parts shows in what they decide.
    fn put_together(&self, data: &Bytes) -> Option<Bytes> {
        let entry = Entry::decode(data.clone()).ok()?;
        let (mut bytes, (_, parts)) = (Vec::new(), entry.whole()?);
        for index in parts {
            let part = Entry::decode(self.log.get(index.0 as usize - 1)?.data.clone()).ok()?;
            bytes.extend_from_slice(&part.part().filter(|_| part.txn == entry.txn)?.bytes);
        }
        Some(bytes.into())
    }

    fn entry_at(&self, index: LogIndex) -> Bytes {
        let decided = &self.log[index.0 as usize - 1];
        decided.whole.as_ref().unwrap_or(&decided.data).clone()
    }

    fn decided_at(&self, txn: &TxnId) -> Option<LogIndex> {
        self.committed_txns.get(txn).or(self.aborted_txns.get(txn)).copied()
    }

    fn ends(&self, index: LogIndex, txn: &TxnId) -> bool {
        let ended = self.ended.get(&index).map_or(&[][..], Vec::as_slice);
        ended.iter().any(|(node, of)| *node == txn.node && of.is_none_or(|of| of == txn.incarnation))
    }

    /// By this index the log says that the transaction's incarnation is over.
    fn has_ended(&self, txn: &TxnId, by: LogIndex) -> bool {
        let ended = self.ended.range(..=by).flat_map(|(_, whose)| whose);
        ended.into_iter().any(|whose| *whose == (txn.node, Some(txn.incarnation)))
    }

    /// Of the lives of its PostgreSQL, only the last few are remembered.
    fn may_forget_life(&self, txn: &TxnId, by: LogIndex) -> bool {
        let ended = self.ended.range(..=by).flat_map(|(_, whose)| whose);
        let its = ended.filter(|(node, _)| *node == txn.node).map(|(_, of)| *of);
        // Its removal ended the incarnation that was running then.
        let removed = its.clone().any(|of| of.is_none());
        let its = its.flatten();
        // An entry that was proposed again repeats what has ended.
        let mut seen = BTreeSet::from([0]);
        let its: Vec<u64> = its.filter(|of| seen.insert(*of)).collect();
        let kept = self.limits.incarnations;
        let known = &its[its.len().saturating_sub(kept as usize)..];
        known.len() as u64 + u64::from(removed) >= kept && !known.contains(&txn.incarnation)
    }

    /// So much was decided since that it may be forgotten.
    fn may_forget(&self, txn: &TxnId, by: LogIndex) -> bool {
        let all = self.committed_txns.len() + self.aborted_txns.len();
        all as u64 > self.limits.outcomes || self.may_forget_life(txn, by)
    }

    /// The last committed entry whose keys are forgotten.
    fn floor(&self) -> LogIndex {
        let (mut entries, mut keys) = (0, 0);
        let is_forgotten = |index: &&LogIndex| {
            entries += 1;
            keys += self.key_counts.get(*index).copied().unwrap_or(0);
            entries > self.limits.window_entries || keys > self.limits.window_keys
        };
        self.committed.iter().rev().find(is_forgotten).copied().unwrap_or(LogIndex::ZERO)
    }

    fn commits(&mut self, index: LogIndex, previous: LogIndex, entry: &Entry) {
        let txn = entry.txn;
        if previous != self.last_committed() {
            self.fail(format!("{index} is said to follow {previous}, but follows {}", self.last_committed()));
        }
        if let Some(first) = self.committed_txns.insert(txn, index) {
            self.fail(format!("transaction {txn} commits at {first} and at {index}"));
        }
        if let Some(why) = self.told_aborted.get(&txn) {
            let why = format!("transaction {txn} commits at {index}, but its client was told: {why}");
            self.fail(why);
        }
        if !self.truth.contains_key(&txn) {
            self.fail(format!("{index} holds {txn}, which nobody proposed"));
        }
        let members = self.tables.range(..=index).next_back();
        if !members.is_some_and(|(_, members)| members.contains(txn.node)) {
            self.fail(format!("{index} commits {txn} of a node that is no member"));
        }
    }

    /// By this index nobody else has committed what the transaction has locked since, nor does a prepared one hold it.
    /// Who has only read what a prepared one holds comes before it, unless it is to be prepared.
    fn keys_are_free(&mut self, index: LogIndex, txn: TxnId, prepares: bool) {
        let keys = self.truth.get(&txn).cloned().unwrap_or_default();
        for key in &keys {
            let holders = self.held.values().filter(|held| held.txn != txn);
            let meets = |held: &&Held| {
                let theirs = self.truth.get(&held.txn).map_or(&[][..], Vec::as_slice);
                let minds = |k: &TrueKey| !(key.only_read && (k.only_read || !prepares));
                theirs.iter().any(|k| k.hash == key.hash && minds(k) && meet(k.mode, key.mode))
            };
            if let Some(held) = { holders }.find(meets) {
                let why = format!(
                    "{txn} at {index} takes key {}, which {} has held since {}",
                    key.hash, held.txn, held.index
                );
                return self.fail(why);
            }
            let others = self.taken.get(&key.hash).map_or(&[][..], Vec::as_slice);
            let lost_to = others.iter().rev().take_while(|(i, _)| *i > key.base).find(|(_, m)| meet(*m, key.mode));
            if let Some((other, mode)) = lost_to {
                let why = format!(
                    "snapshot isolation: {txn} at {index} had key {} in mode {:?} with base {}, but {other} committed it in mode {mode:?}",
                    key.hash, key.mode, key.base
                );
                return self.fail(why);
            }
        }
    }

    fn prepares(&mut self, index: LogIndex, entry: &Entry) {
        self.keys_are_free(index, entry.txn, true);
        let keys: Vec<(Key, bool)> = (0..).zip(entry.keys()).map(|(number, key)| (key, !entry.takes(number))).collect();
        let Some(name) = keys.first().map(|(key, _)| key.hash) else {
            return self.fail(format!("{index} prepares something without a name"));
        };
        if self.held.insert(name, Held { index, txn: entry.txn, keys, lost: false }).is_some() {
            self.fail(format!("{index} prepares something under a name that is in use"));
        }
        self.writes_of.insert(index, None);
        self.key_counts.insert(index, 0);
    }

    fn ends_prepared(&mut self, index: LogIndex, entry: &Entry) {
        let name = entry.keys().next().map_or(0, |key| key.hash);
        let Some(held) = self.held.remove(&name) else {
            return self.fail(format!("{index} ends what is not prepared"));
        };
        let commits = entry.kind == EntryKind::CommitPrepared;
        if commits && held.lost {
            self.fail(format!("{index} commits what may have seen something that is left out"));
        }
        if commits {
            self.takes_of(index, held.txn);
        }
        self.taken.entry(name).or_default().push((index, LockMode::Update));
        self.writes_of.insert(index, commits.then_some(held.index));
        let taken = held.keys.iter().filter(|(_, read)| !read).count();
        self.key_counts.insert(index, if commits { taken as u64 } else { 1 });
    }

    fn takes(&mut self, index: LogIndex, entry: &Entry) {
        self.key_counts.insert(index, entry.taken().count() as u64);
        self.takes_of(index, entry.txn);
    }

    fn takes_of(&mut self, index: LogIndex, txn: TxnId) {
        self.keys_are_free(index, txn, false);
        let keys = self.truth.get(&txn).cloned().unwrap_or_default();
        for key in keys.iter().filter(|key| !key.only_read) {
            self.taken.entry(key.hash).or_default().push((index, key.mode));
            if key.writes() {
                let now = self.store.entry(key.hash).or_default();
                // A write that is left out by now is counted here all the same.
                if *now != key.read && self.left_out.is_empty() {
                    let why =
                        format!("lost update: {txn} at {index} read {} of key {}, it was {now}", key.read, key.hash);
                    return self.fail(why);
                }
                *now += 1;
            }
        }
    }

    pub fn asks_to_leave_out(&mut self, index: LogIndex) {
        self.asked_to_leave_out.insert(index);
    }

    /// Nothing is left out that nobody asked for, and a transaction that has not seen that an entry is left out must
    /// lose.
    fn leaves_out(&mut self, index: LogIndex, left_out: LogIndex, previous: LogIndex, entry: &Entry) {
        if previous != self.last_committed() {
            self.fail(format!("{index} is said to follow {previous}, but follows {}", self.last_committed()));
        }
        if !self.asked_to_leave_out.contains(&left_out) || self.committed.binary_search(&left_out).is_err() {
            self.fail(format!("{index} leaves out {left_out}, which nobody asked for or which did not commit"));
        }
        if self.left_out.insert(left_out, index).is_some() {
            self.fail(format!("{index} leaves out {left_out} once more"));
        }
        let keys = self.truth.get(&entry.txn).cloned().unwrap_or_default();
        for key in keys.iter().filter(|key| !key.only_read) {
            self.taken.entry(key.hash).or_default().push((index, key.mode));
        }
        for held in self.held.values_mut() {
            let meets = |k: Key| held.keys.iter().any(|(h, _)| h.hash == k.hash && meet(h.mode, k.mode));
            held.lost |= entry.keys().any(meets);
        }
        self.key_counts.insert(index, entry.key_count() as u64);
        self.committed.push(index);
    }

    /// A PostgreSQL that shows this entry, which leaves another one out, equals every other that shows it: it has
    /// left out what the log says by then, except for what was itself left out, and shows all the rest.  It may
    /// already have left out what a later entry leaves out.
    pub fn agrees(&mut self, node: NodeId, at: LogIndex, rows: &Rows, left_out: &BTreeSet<LogIndex>) {
        if let Some(index) = left_out.iter().find(|index| !self.left_out.contains_key(index)) {
            let why = format!("PostgreSQL {node} has left out {index}, which the log does not say");
            self.fail(why);
        }
        let mut said = self.left_out.iter().filter(|(_, by)| **by <= at);
        if let Some((index, _)) = said.find(|(index, by)| left_out.contains(index) == left_out.contains(by)) {
            let why = format!("PostgreSQL {node} has not gone by what the log says at {at} of {index}");
            self.fail(why);
        }
        if rows.lists() != self.rows(at, left_out).lists() {
            self.fail(format!("PostgreSQL {node} has other rows at {at} than the log gives"));
        }
    }

    pub fn has_left_out(&self) -> bool {
        !self.left_out.is_empty()
    }

    pub fn tells_left_out(&mut self, txn: TxnId, by: LogIndex) {
        let at = self.committed_txns.get(&txn);
        if at.and_then(|at| self.left_out.get(at)) != Some(&by) {
            self.fail(format!("{txn} is said to be left out at {by}, where it is not"));
        }
    }

    /// The rows that the log gives up to an index: those of every entry that committed and is not left out.
    fn rows(&self, upto: LogIndex, left_out: &BTreeSet<LogIndex>) -> Rows {
        let mut rows = Rows::default();
        let shown = self.committed.iter().take_while(|index| **index <= upto);
        for index in shown.filter(|index| !left_out.contains(*index)) {
            let of = self.writes_of.get(index).copied().unwrap_or(Some(*index));
            let entry = of.and_then(|of| Entry::decode(self.entry_at(of)).ok());
            if let Some(entry) = entry.filter(|entry| entry.leaves_out().is_none()) {
                rows.write(
                    *index,
                    &match prepared::step(&entry.write_set) {
                        Some(Step::Keep { rows, .. }) => rows,
                        _ => rows::decode(entry.write_set),
                    },
                );
            }
        }
        rows
    }

    /// An abort must have its reason in the log.
    fn aborts(&mut self, index: LogIndex, verdict: Verdict, entry: &Entry) {
        self.aborted_txns.insert(entry.txn, index);
        let is_justified = match verdict {
            Verdict::Commit | Verdict::Prepared | Verdict::Ended | Verdict::NoRoom => false,
            Verdict::Held { by, origin, .. } if entry.kind.ends_prepared() => {
                let held = entry.keys().next().and_then(|name| self.held.get(&name.hash));
                let cannot = held.is_some_and(|held| held.lost && held.index == by && held.txn.node == origin);
                cannot && entry.kind == EntryKind::CommitPrepared
            }
            Verdict::Held { by, key, origin } => {
                let held = self.held.values().find(|held| held.index == by && held.txn.node == origin);
                let wanted = entry.keys().nth(key as usize).filter(|_| !entry.kind.ends_prepared());
                let reads = !entry.takes(key);
                let minds = |read: bool| !(reads && (read || entry.kind != EntryKind::Prepare));
                held.zip(wanted).is_some_and(|(held, wanted)| {
                    let keys = held.keys.iter().filter(|(_, read)| minds(*read));
                    keys.into_iter().any(|(k, _)| k.hash == wanted.hash && meet(k.mode, wanted.mode))
                })
            }
            Verdict::Conflict { other, key, origin } => {
                let of = self.log.get(other.0 as usize - 1).and_then(|d| Entry::peek_txn(&d.data).ok());
                let is_lost = entry.keys().nth(key as usize).is_some_and(|k| {
                    let takers = self.taken.get(&k.hash).map_or(&[][..], Vec::as_slice);
                    other.0 > k.base.0 && takers.iter().any(|(i, mode)| *i == other && meet(*mode, k.mode))
                });
                is_lost && of.is_some_and(|t| t.node == origin)
            }
            Verdict::Reserved { by, key, node } => self.is_reserved(index, by, node, entry, key),
            Verdict::Window { oldest, key } => {
                let base = entry.keys().nth(key as usize).map(|k| k.base);
                oldest.0 == self.floor().0 && base.is_some_and(|base| base < oldest)
            }
            Verdict::Cancelled if entry.kind.ends_prepared() => {
                let name = entry.keys().next();
                name.is_none_or(|name| self.held.get(&name.hash).is_none_or(|held| held.index.0 > name.base.0))
            }
            Verdict::Cancelled => entry.kind == EntryKind::Cancel,
            Verdict::NotMember => !self.newest_members().contains(entry.txn.node),
        };
        if !is_justified {
            self.fail(format!("{index} aborts for {verdict:?}, which the log does not bear out"));
        }
    }

    /// Key number `key` of the entry at `index` is reserved for another node: the entry `by` of that node lost, as two
    /// before it had on the same key, and since then the node has not committed with the key, nor had the time for it.
    fn is_reserved(&self, index: LogIndex, by: LogIndex, node: NodeId, entry: &Entry, key: u32) -> bool {
        let may_be = by < index && node != entry.txn.node && entry.takes(key);
        let Some(wanted) = entry.keys().nth(key as usize).filter(|_| may_be) else {
            return false;
        };
        let Some((loser, lost_on)) = self.loss(by).filter(|(loser, _)| loser.txn.node == node) else { return false };
        let is_kept = |k: &Key| k.hash == lost_on.hash || matches!(k.mode, LockMode::NoKeyUpdate | LockMode::Update);
        let its = loser.taken().filter(|k| is_kept(k) && k.hash == wanted.hash && meet(k.mode, wanted.mode));
        let Some(mode) = its.map(|k| k.mode).max() else { return false };
        let time = (3 * (by.0 - lost_on.base.0)).clamp(10, 1_500);
        let commits = |from: LogIndex, to: LogIndex, hash: u64, mode: LockMode| {
            let between = self.committed.iter().rev().skip_while(move |i| **i >= to).take_while(move |i| **i > from);
            between.filter(move |i| {
                Entry::decode(self.entry_at(**i)).is_ok_and(|entry| {
                    let is_counted = matches!(entry.kind, EntryKind::Transaction | EntryKind::Prepare);
                    let is_own = is_counted && entry.txn.node == node;
                    is_own && entry.taken().any(|k| k.hash == hash && k.mode >= mode)
                })
            })
        };
        let last = commits(LogIndex::ZERO, by, lost_on.hash, LockMode::Update).next();
        let losses = (last.map_or(1, |last| last.0 + 1)..=by.0)
            .filter(|at| self.loss(LogIndex(*at)).is_some_and(|(e, k)| e.txn.node == node && k.hash == lost_on.hash));
        index.0 <= by.0 + time && losses.count() >= 3 && commits(by, index, wanted.hash, mode).next().is_none()
    }

    /// The entry at this index, if it lost because of a conflict, and the key on which it did.
    fn loss(&self, index: LogIndex) -> Option<(Entry, Key)> {
        let decision = self.log.get(index.0 as usize - 1)?.decision;
        let Some(Decision::Decided { verdict: Verdict::Conflict { key, .. }, .. }) = decision else { return None };
        let counts = |entry: &Entry| !entry.kind.ends_prepared() && entry.takes(key);
        let entry = Entry::decode(self.entry_at(index)).ok().filter(counts)?;
        let key = entry.keys().nth(key as usize)?;
        Some((entry, key))
    }

    /// A PostgreSQL that showed everything up to `applied` now shows `at` as well.
    pub fn shows(&mut self, node: NodeId, applied: LogIndex, at: LogIndex) {
        let place = self.committed.partition_point(|i| *i <= applied);
        if self.committed.get(place) != Some(&at) {
            let next = self.committed.get(place);
            self.fail(format!("PostgreSQL {node} goes from {applied} to {at}; the next committed entry is {next:?}"));
        }
    }

    pub fn tells_committed(&mut self, txn: TxnId, at: LogIndex) {
        self.told_committed.insert(txn, at);
        self.newest_told = self.newest_told.max(at);
        if self.committed_txns.get(&txn) != Some(&at) {
            self.fail(format!("{txn} was acknowledged at {at}, where it has not committed"));
        }
    }

    /// The last entry that a client was told of.
    pub fn newest_told(&self) -> LogIndex {
        self.newest_told
    }

    /// A node that has decided up to `decided` takes that for all that was acknowledged when `told` was the newest.
    pub fn confirms(&mut self, node: NodeId, told: LogIndex, decided: LogIndex) {
        if decided < told {
            self.fail(format!("node {node}, at {decided}, takes that for all, but {told} was acknowledged before"));
        }
    }

    pub fn tells_aborted(&mut self, txn: TxnId, why: &'static str) {
        self.told_aborted.insert(txn, why);
        if let Some(at) = self.committed_txns.get(&txn) {
            self.fail(format!("{txn} committed at {at}, but its client was told: {why}"));
        }
    }

    /// A node was asked what became of a transaction.
    pub fn tells_outcome(&mut self, node: NodeId, decided: LogIndex, txn: TxnId, outcome: Outcome) {
        let known = self.decided_at(&txn);
        match outcome {
            Outcome::Decided { at, verdict } if verdict.commits() => self.tells_committed(txn, at),
            Outcome::Decided { at, .. } => {
                self.tells_aborted(txn, "the outcome is abort");
                if known != Some(at) && !self.ends(at, &txn) {
                    self.fail(format!("node {node} says that {txn} aborted at {at}, where it has not"));
                }
            }
            Outcome::Unknown if known.is_some_and(|at| at <= decided) => {
                self.fail(format!("node {node}, at {decided}, does not know {txn} of {known:?}"));
            }
            Outcome::Unknown if self.has_ended(&txn, decided) => {
                self.fail(format!(
                    "node {node}, at {decided}, says of {txn} that it may still come: its PostgreSQL is gone"
                ));
            }
            Outcome::Unknown => {}
            Outcome::OlderThanKept => {
                if !self.may_forget(&txn, decided) {
                    let kept = self.limits.outcomes;
                    self.fail(format!("node {node} has forgotten {txn} though it should know the last {kept}"));
                }
            }
        }
    }

    /// The first committed entry that a PostgreSQL which shows `applied` lacks, and that a log from `first` on
    /// does not have, or not with the parts that count.
    pub fn lacked(&self, applied: LogIndex, first: LogIndex) -> Option<LogIndex> {
        let is_there = |at: LogIndex| at >= first && self.first_part(at).is_none_or(|part| part >= first);
        self.committed[self.committed.partition_point(|i| *i <= applied)..].iter().copied().find(|at| !is_there(*at))
    }

    fn first_part(&self, at: LogIndex) -> Option<LogIndex> {
        let decided = self.log.get(at.0 as usize - 1).filter(|decided| decided.whole.is_some())?;
        Entry::decode(decided.data.clone()).ok()?.whole()?.1.into_iter().min()
    }

    pub fn has_committed(&self, txn: &TxnId) -> bool {
        self.committed_txns.contains_key(txn)
    }

    pub fn told_committed_count(&self) -> usize {
        self.told_committed.len()
    }

    /// At the end, when everything has come to rest, nothing acknowledged may be missing anywhere.  All that was
    /// acknowledged is in the log ([`Checker::tells_committed`]), so each PostgreSQL has to show what the log gives.
    pub fn finished(
        &mut self,
        node: NodeId,
        decided: LogIndex,
        applied: Option<LogIndex>,
        rows: Option<(&Rows, &BTreeSet<LogIndex>)>,
    ) {
        if decided != self.log_len() {
            self.fail(format!("node {node} ends at {decided}, the log at {}", self.log_len()));
        }
        if applied.is_some_and(|a| a != self.last_committed()) {
            self.fail(format!("PostgreSQL {node} ends at {applied:?}, the last commit is {}", self.last_committed()));
        }
        if let Some((rows, left_out)) = rows {
            self.agrees(node, self.last_committed(), rows, left_out);
        }
    }
}

/// Which lock modes conflict, written out once more, independently of the certifier.
fn meet(a: LockMode, b: LockMode) -> bool {
    let (weak, strong) = if a <= b { (a as u8, b as u8) } else { (b as u8, a as u8) };
    matches!((weak, strong), (0, 3) | (1, 2) | (1, 3) | (2, 2) | (2, 3) | (3, 3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Row;
    use onetrip_core::{Base, Member, MemberRole};

    #[test]
    fn the_two_lock_tables_agree() {
        for a in LockMode::ALL {
            for b in LockMode::ALL {
                assert_eq!(meet(a, b), a.conflicts_with(b), "{a:?} {b:?}");
            }
        }
    }

    const KEY: u64 = 7;

    fn txn(sequence: u64) -> TxnId {
        TxnId { node: NodeId(1), incarnation: 1, sequence }
    }

    fn row(value: u64) -> Row {
        Row { hash: KEY, mode: LockMode::Update, count: value, value: Value(value) }
    }

    /// Transactions 1 and 2 have committed at those indexes: the first held a row in share mode, and the second
    /// wrote it.
    fn checker(window_entries: u64) -> Checker {
        let mut checker = Checker::default();
        let member = Member {
            id: NodeId(1),
            region: "r1".into(),
            address: "host:1".into(),
            role: MemberRole::Voter,
            voter: true,
            slot: None,
            replaces: None,
            joined: None,
        };
        let limits = Limits { window_entries, ..Limits::default() };
        checker.begins_with(Members::bootstrap(vec![member], "r1".into(), 8), limits);
        for (n, mode) in [(1, LockMode::Share), (2, LockMode::Update)] {
            let base = LogIndex(n - 1);
            let rows = if n == 2 { rows::encode(&[row(1)]) } else { Bytes::new() };
            let key = TrueKey { hash: KEY, mode, base, read: 0, value: Value(1), only_read: false };
            checker.proposes(txn(n), vec![key]);
            let raw = Entry::encode(&txn(n), &[Key { hash: KEY, mode, base: Base(base.0) }], &rows);
            let decision = Decision::Decided { verdict: Verdict::Commit, previous: base };
            checker.decides(NodeId(1), LogIndex(n), &raw, Some(decision));
        }
        assert_eq!(checker.failure(), None);
        checker
    }

    /// An entry of node `node` with this key gets that verdict.
    fn is_borne_out(window: u64, node: u32, mode: LockMode, base: u64, verdict: Verdict) -> bool {
        let mut checker = checker(window);
        let raw =
            Entry::encode(&TxnId { node: NodeId(node), ..txn(3) }, &[Key { hash: KEY, mode, base: Base(base) }], b"");
        let decision = Decision::Decided { verdict, previous: LogIndex(2) };
        checker.decides(NodeId(1), LogIndex(3), &raw, Some(decision));
        checker.failure().is_none()
    }

    #[test]
    fn an_abort_without_a_reason_is_a_failure() {
        use LockMode::*;
        let lost_to = |other| Verdict::Conflict { other: LogIndex(other), key: 0, origin: NodeId(1) };
        assert!(is_borne_out(9, 1, Share, 1, lost_to(2)));
        assert!(!is_borne_out(9, 1, Share, 2, lost_to(2)), "it has seen that");
        assert!(is_borne_out(9, 1, NoKeyUpdate, 0, lost_to(1)));
        assert!(!is_borne_out(9, 1, KeyShare, 0, lost_to(1)), "these modes do not meet");
        let window = |oldest| Verdict::Window { oldest: Base(oldest), key: 0 };
        assert!(is_borne_out(1, 1, Share, 0, window(1)));
        assert!(!is_borne_out(1, 1, Share, 1, window(1)), "that base is in the window");
        assert!(!is_borne_out(9, 1, Share, 0, window(1)), "the window is longer");
        assert!(is_borne_out(9, 2, Share, 2, Verdict::NotMember));
        assert!(!is_borne_out(9, 1, Share, 2, Verdict::NotMember));
        assert!(!is_borne_out(9, 1, Share, 2, Verdict::Cancelled), "nobody asked for that");
        let mut stale = checker(9);
        stale.decides(NodeId(1), LogIndex(3), &Entry::encode(&txn(3), &[], b""), Some(Decision::Stale));
        assert!(stale.failure().is_some_and(|why| why.contains("stale")));
    }

    #[test]
    fn rows_that_differ_from_the_log_are_a_failure() {
        let shows = |value: Option<u64>, left_out: &[u64]| {
            let (mut checker, mut rows) = (checker(9), Rows::default());
            rows.write(LogIndex(2), &value.map(|value| Row { count: 1, ..row(value) }).into_iter().collect::<Vec<_>>());
            let left_out = left_out.iter().copied().map(LogIndex).collect();
            checker.finished(NodeId(1), LogIndex(2), Some(LogIndex(2)), Some((&rows, &left_out)));
            checker.failure().map(str::to_owned)
        };
        assert_eq!(shows(Some(1), &[]), None);
        assert!(shows(Some(5), &[]).is_some_and(|why| why.contains("other rows")), "as many values, and not the same");
        assert!(shows(None, &[2]).is_some_and(|why| why.contains("which the log does not say")));
    }
}
