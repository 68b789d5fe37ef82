//! Who has which row locks, and who waits for them in line.
//!
//! Invariants:
//! - No two transactions have locks on one key in conflicting modes.
//! - A request gets all of its locks at the same moment, or waits for all of them: it has none while it waits.
//! - A request waits only for a transaction that has a lock in its way, or for an earlier request that wants one; never
//!   behind a request that waits for a lock, on any key, of its own transaction.
//! - Nobody waits for himself by way of others: the request that would close such a circle is turned down.
//! - A transaction has at most one request in line.

use super::{LockAnswer, LockAsk, LockSaid};
use crate::entry::LockMode;
use crate::ids::{LogIndex, NodeId, TxnId};
use std::collections::{BTreeMap, BTreeSet};

/// Locks that are had or wanted, at most.
const LOCKS_MAX: usize = 1 << 20;
/// Keys that are looked at to say who is in line.
const LOOKED_AT_MAX: usize = 20_000;

/// Its place in line.
type Ticket = u64;

struct Hold {
    txn: TxnId,
    /// Of the request that got it.
    number: u64,
    mode: LockMode,
}

#[derive(Default)]
struct Key {
    holds: Vec<Hold>,
    /// With the strongest mode that each wants.
    line: BTreeMap<Ticket, LockMode>,
}

#[derive(Default)]
struct Owner {
    /// Its locks, each by the number of the request that got it and its key: a rollback to a savepoint gives back the
    /// last ones.
    locks: BTreeSet<(u64, u64)>,
    waits: Option<Ticket>,
    /// The last request that was granted.
    granted: Option<u64>,
}

/// A transaction in line, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InLine {
    pub txn: TxnId,
    /// The first lock that it wants and that somebody is in the way of.
    pub key: u64,
    pub mode: LockMode,
    /// Who has that lock, or else wanted it earlier.
    pub behind: TxnId,
}

/// Who is found by following who waits for whom.
#[derive(Default)]
struct Search {
    reached: BTreeSet<TxnId>,
    /// Those of them whose own requests are still to be followed.
    open: BTreeSet<TxnId>,
    /// Requests for one key mostly have the same in their way, so what was found for one is not looked at again.
    looked_at: BTreeMap<(u64, LockMode), LookedAt>,
}

/// What was looked at for requests that want one key in one mode: all locks, and all places in line before `up_to`.
#[derive(Default)]
struct LookedAt {
    up_to: Ticket,
    /// Places that were in nobody's way so far, since they wait for whoever came by.
    passed: BTreeSet<Ticket>,
}

#[derive(Default)]
pub struct LockTable {
    keys: BTreeMap<u64, Key>,
    owners: BTreeMap<TxnId, Owner>,
    line: BTreeMap<Ticket, LockAsk>,
    next: Ticket,
    locks: usize,
    /// Locks and places in line that were looked at.
    #[cfg(test)]
    looks: std::cell::Cell<usize>,
}

/// The entry up to which a region must show the log to see what was committed last under a lock.
pub type ShownAt<'a> = &'a dyn Fn(u64, LockMode) -> LogIndex;

impl LockTable {
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Answers the request, and others that need not wait any more because it takes the place of an earlier one.
    pub fn ask(&mut self, ask: LockAsk, shown_at: ShownAt) -> Vec<LockAnswer> {
        let owner = self.owners.entry(ask.txn).or_default();
        if owner.granted.is_some_and(|granted| granted >= ask.number) {
            return vec![granted(&ask, shown_at)];
        }
        let mut answers = Vec::new();
        if let Some(ticket) = owner.waits {
            let waiting = self.line[&ticket].number;
            if waiting >= ask.number {
                return if waiting == ask.number { vec![answer(&ask, LockSaid::Waiting)] } else { Vec::new() };
            }
            let freed = self.leave_line(ticket);
            answers = self.call_up(&freed, shown_at);
        }
        let said = if self.locks + ask.keys.len() > LOCKS_MAX {
            LockSaid::NoTable
        } else {
            match self.first_in_the_way(&ask, Ticket::MAX) {
                None => {
                    answers.push(granted(&ask, shown_at));
                    self.grant(ask);
                    return answers;
                }
                Some(other) if !ask.waits => LockSaid::Busy { other },
                Some(_) => match self.closes_circle(&ask) {
                    Some(other) => LockSaid::Deadlock { other },
                    None => {
                        answers.push(answer(&ask, LockSaid::Waiting));
                        self.stand_in_line(ask);
                        return answers;
                    }
                },
            }
        };
        answers.push(answer(&ask, said));
        self.forget_if_idle(&ask.txn);
        answers
    }

    /// The transaction had these locks elsewhere: it gets those that are in nobody's way.
    pub fn claim(&mut self, ask: LockAsk) {
        let LockAsk { txn, number, keys, .. } = ask;
        for key in keys {
            let one = LockAsk { txn, number, waits: false, keys: vec![key] };
            if self.locks < LOCKS_MAX && self.first_in_the_way(&one, Ticket::MAX).is_none() {
                let granted = self.owners.entry(txn).or_default().granted;
                self.grant(one);
                self.owners.entry(txn).or_default().granted = granted;
            }
        }
    }

    /// Takes back what the transaction got or wants by requests from this number on, and answers those who need not
    /// wait any more.
    pub fn release(&mut self, txn: TxnId, from: u64, shown_at: ShownAt) -> Vec<LockAnswer> {
        let Some(owner) = self.owners.get(&txn) else { return Vec::new() };
        let (ticket, mut freed) = (owner.waits, Vec::new());
        if let Some(ticket) = ticket.filter(|ticket| self.line[ticket].number >= from) {
            freed = self.leave_line(ticket);
        }
        for (_, hash) in self.owners.entry(txn).or_default().locks.split_off(&(from, 0)) {
            self.count_a_look();
            let Some(key) = self.keys.get_mut(&hash) else { continue };
            let before = key.holds.len();
            key.holds.retain(|hold| hold.txn != txn || hold.number < from);
            self.locks -= before - key.holds.len();
            freed.push(hash);
        }
        self.forget_if_idle(&txn);
        self.call_up(&freed, shown_at)
    }

    /// Those in line, the first first: so many at most, and none behind those whose requests have very many keys.
    pub fn in_line(&self, at_most: usize) -> Vec<InLine> {
        let (mut found, mut left) = (Vec::new(), LOOKED_AT_MAX);
        for (ticket, ask) in self.line.iter().take(at_most) {
            if ask.keys.len() > left {
                break;
            }
            left -= ask.keys.len();
            let in_the_way = |(key, mode): (u64, LockMode)| {
                let one = LockAsk { keys: vec![(key, mode)], ..*ask };
                let behind = self.first_in_the_way(&one, *ticket)?;
                Some(InLine { txn: ask.txn, key, mode, behind })
            };
            found.extend(ask.keys.iter().copied().find_map(in_the_way));
        }
        found
    }

    /// The transactions of this node that have locks or want some.
    pub fn of(&self, node: NodeId) -> Vec<TxnId> {
        let from = TxnId { node, incarnation: 0, sequence: 0 };
        self.owners.range(from..).map(|(txn, _)| *txn).take_while(|txn| txn.node == node).collect()
    }

    pub fn nodes(&self) -> BTreeSet<NodeId> {
        self.owners.keys().map(|txn| txn.node).collect()
    }

    /// Somebody whose lock, or earlier request, is in the way of this request, if that has this place in line.
    fn first_in_the_way(&self, ask: &LockAsk, ticket: Ticket) -> Option<TxnId> {
        let mut passed = BTreeMap::new();
        for (hash, mode) in &ask.keys {
            let Some(key) = self.keys.get(hash) else { continue };
            for hold in &key.holds {
                self.count_a_look();
                if hold.txn != ask.txn && hold.mode.conflicts_with(*mode) {
                    return Some(hold.txn);
                }
            }
            for (place, _) in key.line.range(..ticket).filter(|(_, wanted)| wanted.conflicts_with(*mode)) {
                self.count_a_look();
                let earlier = &self.line[place];
                let passes = || self.waits_for(*place, earlier, &ask.txn);
                if earlier.txn != ask.txn && !*passed.entry(*place).or_insert_with(passes) {
                    return Some(earlier.txn);
                }
            }
        }
        None
    }

    /// The request at this place in line wants a lock that the transaction has in its way.
    fn waits_for(&self, place: Ticket, waiting: &LockAsk, txn: &TxnId) -> bool {
        let Some(owner) = self.owners.get(txn).filter(|owner| !owner.locks.is_empty()) else { return false };
        let is_in_the_way = |hash: &u64| {
            self.count_a_look();
            let Some((key, wanted)) = self.keys.get(hash).and_then(|key| Some((key, key.line.get(&place)?))) else {
                return false;
            };
            key.holds.iter().any(|hold| hold.txn == *txn && hold.mode.conflicts_with(*wanted))
        };
        if owner.locks.len() < waiting.keys.len() {
            owner.locks.iter().any(|(_, hash)| is_in_the_way(hash))
        } else {
            waiting.keys.iter().any(|(hash, _)| is_in_the_way(hash))
        }
    }

    fn count_a_look(&self) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
    }

    /// Who waits for the transaction that asks, which would wait, directly or not, for him.
    fn closes_circle(&self, ask: &LockAsk) -> Option<TxnId> {
        let has = &self.owners.get(&ask.txn)?.locks;
        // Mostly nobody waits for what it has, and that is seen sooner than who waits for whom.
        if has.len() <= self.line.len() && !has.iter().any(|(_, hash)| self.is_waited_for(hash, &ask.txn)) {
            return None;
        }
        let mut search = Search { reached: BTreeSet::from([ask.txn]), ..Search::default() };
        self.reach_those_in_the_way(ask, Ticket::MAX, &mut search);
        while let Some(txn) = search.open.pop_first() {
            let Some(ticket) = self.owners.get(&txn).and_then(|owner| owner.waits) else { continue };
            let waiting = &self.line[&ticket];
            if self.waits_for(ticket, waiting, &ask.txn) {
                return Some(txn);
            }
            self.reach_those_in_the_way(waiting, ticket, &mut search);
        }
        None
    }

    /// Somebody in line wants a lock that the transaction, which has one on this key, has in his way.
    fn is_waited_for(&self, hash: &u64, txn: &TxnId) -> bool {
        self.count_a_look();
        self.keys.get(hash).is_some_and(|key| {
            let is_waited_for = |mode: LockMode| key.line.values().any(|wanted| wanted.conflicts_with(mode));
            key.holds.iter().any(|hold| hold.txn == *txn && is_waited_for(hold.mode))
        })
    }

    /// Adds all whose locks, or earlier requests, are in the way of this request, if that has this place in line.
    fn reach_those_in_the_way(&self, ask: &LockAsk, ticket: Ticket, search: &mut Search) {
        let Search { reached, open, looked_at } = search;
        let mut passed = BTreeMap::new();
        for (hash, mode) in &ask.keys {
            let Some(key) = self.keys.get(hash) else { continue };
            let looked_at = looked_at.entry((*hash, *mode)).or_insert_with(|| {
                for hold in key.holds.iter().filter(|hold| hold.mode.conflicts_with(*mode)) {
                    self.count_a_look();
                    if reached.insert(hold.txn) {
                        open.insert(hold.txn);
                    }
                }
                LookedAt::default()
            });
            let behind = looked_at.passed.split_off(&ticket);
            let again = std::mem::replace(&mut looked_at.passed, behind);
            let new = key.line.range(looked_at.up_to..ticket.max(looked_at.up_to));
            let new = new.filter(|(_, wanted)| wanted.conflicts_with(*mode)).map(|(place, _)| *place);
            for place in again.into_iter().chain(new) {
                self.count_a_look();
                let earlier = &self.line[&place];
                if reached.contains(&earlier.txn) {
                    continue;
                }
                let passes = || self.waits_for(place, earlier, &ask.txn);
                if *passed.entry(place).or_insert_with(passes) {
                    looked_at.passed.insert(place);
                } else {
                    reached.insert(earlier.txn);
                    open.insert(earlier.txn);
                }
            }
            looked_at.up_to = looked_at.up_to.max(ticket);
        }
    }

    fn grant(&mut self, ask: LockAsk) {
        let owner = self.owners.entry(ask.txn).or_default();
        owner.granted = Some(ask.number);
        for (hash, mode) in ask.keys {
            let key = self.keys.entry(hash).or_default();
            // A stronger mode is in the way of all that a weaker one is.
            if !key.holds.iter().any(|hold| hold.txn == ask.txn && hold.mode >= mode) {
                key.holds.push(Hold { txn: ask.txn, number: ask.number, mode });
                owner.locks.insert((ask.number, hash));
                self.locks += 1;
            }
        }
    }

    fn stand_in_line(&mut self, ask: LockAsk) {
        let ticket = self.next;
        self.next += 1;
        self.owners.entry(ask.txn).or_default().waits = Some(ticket);
        for (hash, mode) in &ask.keys {
            let line = &mut self.keys.entry(*hash).or_default().line;
            line.entry(ticket).and_modify(|strongest| *strongest = (*strongest).max(*mode)).or_insert(*mode);
        }
        self.locks += ask.keys.len();
        self.line.insert(ticket, ask);
    }

    /// Returns the keys that it wanted.
    fn leave_line(&mut self, ticket: Ticket) -> Vec<u64> {
        let Some(ask) = self.line.remove(&ticket) else { return Vec::new() };
        self.locks -= ask.keys.len();
        if let Some(owner) = self.owners.get_mut(&ask.txn) {
            owner.waits = None;
        }
        let hashes: Vec<u64> = ask.keys.iter().map(|(hash, _)| *hash).collect();
        for hash in &hashes {
            if let Some(key) = self.keys.get_mut(hash) {
                key.line.remove(&ticket);
            }
        }
        hashes
    }

    /// Grants what waits for one of these keys and for nothing else, the earliest first.
    fn call_up(&mut self, freed: &[u64], shown_at: ShownAt) -> Vec<LockAnswer> {
        let lines = freed.iter().filter_map(|hash| self.keys.get(hash));
        let tickets: BTreeSet<Ticket> = lines.flat_map(|key| key.line.keys().copied()).collect();
        let mut answers = Vec::new();
        for ticket in tickets {
            if self.first_in_the_way(&self.line[&ticket], ticket).is_some() {
                continue;
            }
            let ask = self.line[&ticket].clone();
            self.leave_line(ticket);
            answers.push(granted(&ask, shown_at));
            self.grant(ask);
        }
        for hash in freed {
            if self.keys.get(hash).is_some_and(|key| key.holds.is_empty() && key.line.is_empty()) {
                self.keys.remove(hash);
            }
        }
        answers
    }

    fn forget_if_idle(&mut self, txn: &TxnId) {
        if self.owners.get(txn).is_some_and(|owner| owner.locks.is_empty() && owner.waits.is_none()) {
            self.owners.remove(txn);
        }
    }
}

fn answer(ask: &LockAsk, said: LockSaid) -> LockAnswer {
    LockAnswer { txn: ask.txn, number: ask.number, said }
}

fn granted(ask: &LockAsk, shown_at: ShownAt) -> LockAnswer {
    let at = ask.keys.iter().map(|(hash, mode)| shown_at(*hash, *mode)).max().unwrap_or_default();
    answer(ask, LockSaid::Granted { at })
}

#[cfg(test)]
impl LockTable {
    /// Panics if an invariant does not hold.
    fn check(&self) {
        for key in self.keys.values() {
            for (i, a) in key.holds.iter().enumerate() {
                for b in &key.holds[i + 1..] {
                    assert!(a.txn == b.txn || !a.mode.conflicts_with(b.mode), "two have one lock");
                }
            }
        }
        let holds =
            self.keys.iter().flat_map(|(hash, key)| key.holds.iter().map(|hold| (hold.txn, hold.number, *hash)));
        let has = |(txn, owner): (&TxnId, &Owner)| owner.locks.iter().map(|lock| (*txn, lock.0, lock.1)).collect();
        let had: BTreeSet<_> = self.owners.iter().flat_map::<Vec<_>, _>(has).collect();
        assert_eq!(had, holds.collect());
        let held: usize = self.keys.values().map(|key| key.holds.len()).sum();
        assert_eq!(self.locks, held + self.line.values().map(|ask| ask.keys.len()).sum::<usize>());
        for (ticket, ask) in &self.line {
            assert_eq!(self.owners[&ask.txn].waits, Some(*ticket));
            assert!(self.first_in_the_way(ask, *ticket).is_some(), "it waits for nobody");
            // Whoever it waits for waits for somebody who does not wait, in the end.
            let (mut seen, mut open) = (BTreeSet::new(), self.all_in_the_way(ask, *ticket));
            while let Some(txn) = open.pop_first() {
                assert_ne!(txn, ask.txn, "a circle");
                if seen.insert(txn) {
                    if let Some(ticket) = self.owners[&txn].waits {
                        open.extend(self.all_in_the_way(&self.line[&ticket], ticket).difference(&seen));
                    }
                }
            }
        }
        // Whoever asked now for what somebody waits for is told what a search says that saves no look.
        let free = self.owners.iter().filter(|(_, owner)| owner.waits.is_none()).map(|(txn, _)| *txn);
        for (txn, ask) in free.flat_map(|txn| self.line.values().map(move |ask| (txn, ask))) {
            let ask = LockAsk { txn, ..ask.clone() };
            assert_eq!(self.closes_circle(&ask), self.closes_circle_slowly(&ask), "{ask:?}");
        }
    }

    fn all_in_the_way(&self, ask: &LockAsk, ticket: Ticket) -> BTreeSet<TxnId> {
        let mut found = BTreeSet::new();
        for (hash, mode) in &ask.keys {
            let Some(key) = self.keys.get(hash) else { continue };
            found.extend(key.holds.iter().filter(|hold| hold.mode.conflicts_with(*mode)).map(|hold| hold.txn));
            let earlier = key.line.range(..ticket).filter(|(_, wanted)| wanted.conflicts_with(*mode));
            let earlier = earlier.map(|(place, _)| (*place, &self.line[place]));
            let in_the_way = earlier.filter(|(place, earlier)| !self.waits_for(*place, earlier, &ask.txn));
            found.extend(in_the_way.map(|(_, earlier)| earlier.txn));
        }
        found.remove(&ask.txn);
        found
    }

    fn closes_circle_slowly(&self, ask: &LockAsk) -> Option<TxnId> {
        let (mut seen, mut open) = (BTreeSet::new(), self.all_in_the_way(ask, Ticket::MAX));
        while let Some(txn) = open.pop_first() {
            if !seen.insert(txn) {
                continue;
            }
            let Some(ticket) = self.owners.get(&txn).and_then(|owner| owner.waits) else { continue };
            let next = self.all_in_the_way(&self.line[&ticket], ticket);
            if next.contains(&ask.txn) {
                return Some(txn);
            }
            open.extend(next.difference(&seen));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn txn(n: u64) -> TxnId {
        TxnId { node: NodeId(1 + n as u32 % 3), incarnation: 1, sequence: n }
    }

    fn ask(n: u64, number: u64, keys: &[u64]) -> LockAsk {
        let keys = keys.iter().map(|hash| (*hash, LockMode::NoKeyUpdate)).collect();
        LockAsk { txn: txn(n), number, waits: true, keys }
    }

    const AT: ShownAt = &|hash, _| LogIndex(hash);

    fn said(answers: &[LockAnswer]) -> Vec<(u64, LockSaid)> {
        answers.iter().map(|answer| (answer.txn.sequence, answer.said)).collect()
    }

    const GRANTED_7: LockSaid = LockSaid::Granted { at: LogIndex(7) };

    #[test]
    fn who_comes_first_has_the_lock_and_the_others_get_it_in_line() {
        let mut table = LockTable::default();
        assert_eq!(said(&table.ask(ask(1, 1, &[7]), AT)), [(1, GRANTED_7)]);
        for n in 2..5 {
            assert_eq!(said(&table.ask(ask(n, 1, &[7]), AT)), [(n, LockSaid::Waiting)]);
        }
        // Asked again, it keeps its place.
        assert_eq!(said(&table.ask(ask(2, 1, &[7]), AT)), [(2, LockSaid::Waiting)]);
        assert_eq!(said(&table.ask(ask(1, 1, &[7]), AT)), [(1, GRANTED_7)]);
        for n in 1..4 {
            assert_eq!(said(&table.release(txn(n), 0, AT)), [(n + 1, GRANTED_7)]);
        }
        assert_eq!(said(&table.release(txn(4), 0, AT)), []);
        assert!(table.is_empty() && table.keys.is_empty() && table.locks == 0);
    }

    #[test]
    fn a_request_for_several_has_all_or_none() {
        let mut table = LockTable::default();
        table.ask(ask(1, 1, &[1]), AT);
        assert_eq!(said(&table.ask(ask(2, 1, &[1, 2]), AT)), [(2, LockSaid::Waiting)]);
        // 2 does not have key 2, but is earlier in line for it.
        assert_eq!(said(&table.ask(ask(3, 1, &[2]), AT)), [(3, LockSaid::Waiting)]);
        assert_eq!(said(&table.release(txn(1), 0, AT)), [(2, LockSaid::Granted { at: LogIndex(2) })]);
        assert_eq!(said(&table.release(txn(2), 0, AT)), [(3, LockSaid::Granted { at: LogIndex(2) })]);
    }

    #[test]
    fn the_request_that_closes_a_circle_is_turned_down() {
        let mut table = LockTable::default();
        for n in 1..4 {
            table.ask(ask(n, 1, &[n]), AT);
        }
        assert_eq!(said(&table.ask(ask(1, 2, &[2]), AT)), [(1, LockSaid::Waiting)]);
        assert_eq!(said(&table.ask(ask(2, 2, &[3]), AT)), [(2, LockSaid::Waiting)]);
        assert_eq!(said(&table.ask(ask(3, 2, &[1]), AT)), [(3, LockSaid::Deadlock { other: txn(2) })]);
        // It still has what it had, until it ends.
        assert_eq!(said(&table.release(txn(3), 0, AT)), [(2, LockSaid::Granted { at: LogIndex(3) })]);
    }

    #[test]
    fn a_stronger_lock_passes_those_that_wait_for_its_owner() {
        let mut table = LockTable::default();
        let share = |n, number, mode| LockAsk { txn: txn(n), number, waits: true, keys: vec![(7, mode)] };
        table.ask(share(1, 1, LockMode::Share), AT);
        assert_eq!(said(&table.ask(ask(2, 1, &[7]), AT)), [(2, LockSaid::Waiting)]);
        assert_eq!(said(&table.ask(share(1, 2, LockMode::Update), AT)), [(1, GRANTED_7)]);
        // With two of them, the second one cannot pass.
        let mut table = LockTable::default();
        table.ask(share(1, 1, LockMode::Share), AT);
        table.ask(share(3, 1, LockMode::Share), AT);
        assert_eq!(said(&table.ask(share(1, 2, LockMode::Update), AT)), [(1, LockSaid::Waiting)]);
        let deadlock = LockSaid::Deadlock { other: txn(1) };
        assert_eq!(said(&table.ask(share(3, 2, LockMode::Update), AT)), [(3, deadlock)]);
    }

    /// Also by way of another key than the one that it wants now.
    #[test]
    fn nobody_stands_behind_a_request_that_waits_for_his_own_locks() {
        let mut table = LockTable::default();
        table.ask(ask(1, 1, &[1]), AT);
        assert_eq!(said(&table.ask(ask(2, 1, &[1, 2]), AT)), [(2, LockSaid::Waiting)]);
        assert_eq!(said(&table.ask(ask(1, 2, &[2]), AT)), [(1, LockSaid::Granted { at: LogIndex(2) })]);
        table.check();
        assert_eq!(said(&table.release(txn(1), 0, AT)), [(2, LockSaid::Granted { at: LogIndex(2) })]);
    }

    /// Requests for many keys cost about as much as they have keys, whoever else is in line for them.
    #[test]
    fn large_requests_for_the_same_keys_are_cheap() {
        let all: Vec<u64> = (0..10_000).collect();
        let mut table = LockTable::default();
        let cost = |table: &mut LockTable, of: &mut dyn FnMut(&mut LockTable)| {
            table.looks.set(0);
            of(table);
            assert!(table.looks.get() < 20 * all.len(), "{} looks", table.looks.get());
        };
        table.ask(ask(0, 1, &[9_999]), AT);
        for n in 1..10 {
            cost(&mut table, &mut |table| {
                assert_eq!(said(&table.ask(ask(n, 1, &all), AT)), [(n, LockSaid::Waiting)]);
            });
        }
        for n in 0..9 {
            cost(&mut table, &mut |table| {
                let next = (n + 1, LockSaid::Granted { at: LogIndex(9_999) });
                assert_eq!(said(&table.release(txn(n), 0, AT)), [next]);
            });
        }
        // Who has many locks passes those who wait for the last of them.
        table.ask(ask(10, 1, &[9_999, 10_000]), AT);
        cost(&mut table, &mut |table| {
            let granted = (9, LockSaid::Granted { at: LogIndex(10_000) });
            assert_eq!(said(&table.ask(ask(9, 2, &[10_000]), AT)), [granted]);
        });
    }

    /// Also if each has a lock of its own that somebody could wait for.
    #[test]
    fn a_request_in_a_long_line_is_cheap() {
        const LINE: u64 = 1_000;
        let mut table = LockTable::default();
        let cost = |table: &mut LockTable, asks: LockAsk, expected: LockSaid, at_most: usize| {
            table.looks.set(0);
            let asker = asks.txn.sequence;
            assert_eq!(said(&table.ask(asks, AT)), [(asker, expected)]);
            assert!(table.looks.get() <= at_most, "{} looks for {asker}", table.looks.get());
        };
        // Two of them have what the others wait for.
        let (one, other) = (0, LINE);
        for n in 0..2 * LINE {
            table.ask(ask(n, 1, &[10 + n]), AT);
        }
        table.ask(ask(one, 2, &[1]), AT);
        table.ask(ask(other, 2, &[2]), AT);
        for n in (1..LINE).chain(LINE + 1..2 * LINE) {
            cost(&mut table, ask(n, 2, &[1 + n / LINE]), LockSaid::Waiting, 10);
        }
        // Nor is all looked at that somebody has who has more than there are in line.
        let many: Vec<u64> = (5_000..15_000).collect();
        table.ask(ask(5_000, 1, &many), AT);
        cost(&mut table, ask(5_000, 2, &[1]), LockSaid::Waiting, 5 * LINE as usize);
        // Both have a line behind them, so there might be a circle: nobody in line is looked at more often for that.
        cost(&mut table, ask(one, 3, &[2]), LockSaid::Waiting, 5 * LINE as usize);
        cost(&mut table, ask(other, 3, &[1]), LockSaid::Deadlock { other: txn(one) }, 10 * LINE as usize);
    }

    #[test]
    fn who_does_not_wait_is_told_who_is_in_the_way() {
        let mut table = LockTable::default();
        table.ask(ask(1, 1, &[7]), AT);
        let hasty = LockAsk { waits: false, ..ask(2, 1, &[7]) };
        assert_eq!(said(&table.ask(hasty, AT)), [(2, LockSaid::Busy { other: txn(1) })]);
        assert!(table.of(NodeId(3)).is_empty());
    }

    #[test]
    fn a_savepoint_gives_back_what_came_after_it() {
        let mut table = LockTable::default();
        table.ask(ask(1, 1, &[1]), AT);
        table.ask(ask(1, 2, &[2]), AT);
        table.ask(ask(2, 1, &[2]), AT);
        table.ask(ask(3, 1, &[1]), AT);
        assert_eq!(said(&table.release(txn(1), 2, AT)), [(2, LockSaid::Granted { at: LogIndex(2) })]);
        assert_eq!(said(&table.release(txn(1), 0, AT)), [(3, LockSaid::Granted { at: LogIndex(1) })]);
    }

    /// However much the transaction had before.
    #[test]
    fn a_savepoint_costs_what_came_after_it() {
        let mut table = LockTable::default();
        (0..10_000).for_each(|n| _ = table.ask(ask(1, n, &[n]), AT));
        table.looks.set(0);
        assert!(table.release(txn(1), 9_990, AT).is_empty());
        assert_eq!((table.looks.get(), table.locks), (10, 9_990));
        table.check();
    }

    #[test]
    fn a_claim_takes_what_is_free_and_waits_for_nothing() {
        let mut table = LockTable::default();
        table.ask(ask(2, 1, &[2]), AT);
        table.claim(ask(1, 1, &[1, 2]));
        assert_eq!(said(&table.ask(ask(3, 1, &[1]), AT)), [(3, LockSaid::Waiting)]);
        assert!(table.release(txn(2), 0, AT).is_empty());
        // A later request of the same number was never granted here.
        assert_eq!(said(&table.ask(ask(1, 1, &[2]), AT)), [(1, LockSaid::Granted { at: LogIndex(2) })]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Ask { n: u64, waits: bool, keys: Vec<(u64, LockMode)> },
        Again(u64),
        Claim(u64, u64),
        Release(u64, u64),
        End(u64),
        NodeGone(u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let mode = (0u8..4).prop_map(|mode| LockMode::from_u8(mode).unwrap());
        let keys = prop::collection::vec((0u64..5, mode), 1..4);
        let step = prop_oneof![
            8 => (0u64..8, prop::bool::weighted(0.9), keys).prop_map(|(n, waits, keys)| Step::Ask { n, waits, keys }),
            2 => (0u64..8).prop_map(Step::Again),
            1 => (0u64..8, 0u64..5).prop_map(|(n, key)| Step::Claim(n, key)),
            2 => (0u64..8, 0u64..20).prop_map(|(n, from)| Step::Release(n, from)),
            4 => (0u64..8).prop_map(Step::End),
            1 => (1u32..4).prop_map(Step::NodeGone),
        ];
        prop::collection::vec(step, 1..80)
    }

    proptest! {
        /// The invariants hold after each step; and if all who wait for nobody end, one after the other, everybody
        /// gets what he waited for.
        #[test]
        fn whatever_comes_in_whatever_order(steps in steps()) {
            let mut table = LockTable::default();
            let mut number = 0;
            let mut last: BTreeMap<u64, LockAsk> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Ask { n, waits, keys } => {
                        number += 1;
                        let asked = LockAsk { txn: txn(n), number, waits, keys };
                        last.insert(n, asked.clone());
                        let answers = table.ask(asked, AT);
                        prop_assert_eq!(answers.iter().filter(|answer| answer.number == number).count(), 1);
                    }
                    Step::Again(n) => {
                        if let Some(again) = last.get(&n) {
                            table.ask(again.clone(), AT);
                        }
                    }
                    Step::Claim(n, key) => {
                        number += 1;
                        table.claim(ask(n, number, &[key]));
                    }
                    Step::Release(n, from) => drop(table.release(txn(n), from, AT)),
                    Step::End(n) => {
                        last.remove(&n);
                        table.release(txn(n), 0, AT);
                        prop_assert!(!table.owners.contains_key(&txn(n)));
                    }
                    Step::NodeGone(node) => {
                        for gone in table.of(NodeId(node)) {
                            table.release(gone, 0, AT);
                        }
                        prop_assert!(!table.nodes().contains(&NodeId(node)));
                    }
                }
                table.check();
            }
            while !table.is_empty() {
                let runs = table.owners.iter().find(|(_, owner)| owner.waits.is_none()).map(|(txn, _)| *txn);
                let runs = runs.expect("somebody does not wait");
                table.release(runs, 0, AT);
                table.check();
            }
            prop_assert!(table.keys.is_empty() && table.line.is_empty() && table.locks == 0);
        }

        /// Requests for one lock that all are in each other's way are granted in the order in which they came.
        #[test]
        fn the_line_is_fair(ends in prop::collection::vec(0usize..100, 30)) {
            let mut table = LockTable::default();
            let (mut inside, mut expected) = (None, std::collections::VecDeque::new());
            for (n, end) in ends.into_iter().enumerate() {
                let n = n as u64;
                match table.ask(ask(n, 1, &[7]), AT)[..] {
                    [LockAnswer { said: LockSaid::Granted { .. }, .. }] => inside = Some(n),
                    _ => expected.push_back(n),
                }
                if end < 40 {
                    let next = inside.map(|n| said(&table.release(txn(n), 0, AT))).unwrap_or_default();
                    inside = expected.pop_front();
                    prop_assert_eq!(next, inside.map(|n| (n, GRANTED_7)).into_iter().collect::<Vec<_>>());
                }
            }
        }
    }
}
