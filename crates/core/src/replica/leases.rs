//! Read leases: a region that holds one answers its fresh reads without asking anybody.
//!
//! ```text
//!   holder ──> "promise me ..." ──> every other member
//!          <── the last entry on its disk, and the promise: until SPAN from now it decides
//!              nothing of which the holder has not said that it has it
//! ```
//! `docs/decisions/2026-11-24-read-leases.md` has the argument.
//!
//! Invariants:
//! - While a promise stands, nothing is decided here of which its holder has not said that it is on its disk
//!   (`consensus::promised`).
//! - What a promise comes with is not older than anything that this node had decided before, in any of its lives.
//! - A life that may be bound by promises of an earlier one decides nothing until they have run out.
//! - A promise is relied on for less time than it stands, however the two clocks differ within `DRIFT_MAX_PERCENT`.
//! - A lease takes the promises of all other members in the table of the moment.

use super::{Host, Replica, Store};
use crate::ids::{EntryId, LogIndex, NodeId};
use crate::router::Outbox;
use std::collections::BTreeMap;
use std::time::Duration;

/// For how long a promise stands, by the clock of who made it.
pub const SPAN: Duration = Duration::from_millis(2000);
/// For how long it is relied on, by the clock of the holder, from when it asked.
pub const RELIED_ON: Duration = Duration::from_millis(1800);
/// By how much a clock may be faster or slower than true time.
pub const DRIFT_MAX_PERCENT: u32 = 5;
const _: () = {
    let (faster, slower) = (100 + DRIFT_MAX_PERCENT as u128, 100 - DRIFT_MAX_PERCENT as u128);
    assert!(RELIED_ON.as_millis() * faster < SPAN.as_millis() * slower);
};
/// How often a holder asks, and so the time in which it must say that it has what was committed.
const ASK_TICKS: u64 = 25;

#[derive(Default)]
pub(super) struct Leases {
    /// As one who promises: until when to whom, and what was committed here when it asked last.
    promises: BTreeMap<NodeId, Duration>,
    asked: BTreeMap<NodeId, LogIndex>,
    /// The disk says that there may be promises.
    is_saved: bool,
    /// Promises of an earlier life may stand until then.
    bound_until: Option<Duration>,
    /// As a holder: when each question left, as long as a promise in answer to it may stand; and of each member, what
    /// its promise came with and until when this relies on it.
    asking: BTreeMap<u64, Duration>,
    held: BTreeMap<NodeId, (EntryId, Duration)>,
}

impl Leases {
    /// `has_promised`: as the disk says ([`Host::save_promised`]).
    pub fn new(has_promised: bool) -> Leases {
        Leases { is_saved: has_promised, ..Leases::default() }
    }
}

impl<S: Store, O: Outbox> Replica<S, O> {
    pub(super) fn start_leases<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        self.leases.bound_until = self.leases.is_saved.then(|| host.now() + SPAN);
    }

    /// An earlier life may have promised something that still stands: this one is as good as not there yet.
    pub(super) fn is_bound<H: Host<Store = S, Outbox = O>>(&mut self, host: &H) -> bool {
        self.leases.bound_until.take_if(|until| *until <= host.now());
        self.leases.bound_until.is_some()
    }

    /// A member asks for a promise.  It gets one if it has said by now that it has what was committed when it asked the
    /// last time: one that has fallen behind would delay every commit again and again.
    pub fn lease_question<H: Host<Store = S, Outbox = O>>(
        &mut self,
        peer: NodeId,
        question: u64,
        host: &mut H,
    ) -> Result<(), H::Error> {
        if !self.members.holds_lease(peer) {
            return Ok(());
        }
        let before = self.leases.asked.insert(peer, self.consensus.committed());
        if before.is_none_or(|before| self.consensus.said_to_have(peer) < before) {
            return Ok(());
        }
        if !self.leases.is_saved {
            host.save_promised(self.consensus.log_mut(), true)?;
            self.leases.is_saved = true;
        }
        self.leases.promises.insert(peer, host.now() + SPAN);
        self.consensus.promise(peer);
        host.send_promise(peer, question, self.consensus.last_on_disk());
        Ok(())
    }

    /// A member has promised, in answer to this question, and names the last entry on its disk.
    pub fn promise_of(&mut self, peer: NodeId, question: u64, last: EntryId) {
        let Some(asked) = self.leases.asking.get(&question) else { return };
        let until = *asked + RELIED_ON;
        let held = self.leases.held.entry(peer).or_insert((last, until));
        if until > held.1 {
            *held = (last, until);
        }
    }

    /// If this node holds a lease at this moment: the newest of the entries that the promises came with.
    pub(super) fn lease<H: Host<Store = S, Outbox = O>>(&self, host: &H) -> Option<EntryId> {
        if !self.members.holds_lease(self.id) {
            return None;
        }
        let now = host.now();
        let others = self.members.members.iter().map(|m| m.id).filter(|id| *id != self.id);
        let mut newest = self.consensus.last_on_disk();
        for other in others {
            let (named, _) = self.leases.held.get(&other).filter(|(_, until)| *until > now)?;
            newest = newest.max(*named);
        }
        Some(newest)
    }

    /// Whether this node could answer a fresh read at this moment without asking; for `GET /status`.
    pub fn has_lease<H: Host<Store = S, Outbox = O>>(&self, host: &H) -> bool {
        self.lease(host).is_some()
    }

    /// To be called on each tick.
    pub(super) fn work_leases<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) -> Result<(), H::Error> {
        let now = host.now();
        let (members, consensus) = (&self.members, &mut self.consensus);
        self.leases.promises.retain(|holder, until| {
            // Whoever was removed knows that, or holds no lease.
            let stands = *until > now && members.contains(*holder);
            if !stands {
                consensus.release(*holder);
            }
            stands
        });
        if self.tick % ASK_TICKS != 0 {
            return Ok(());
        }
        let Leases { promises, asked, is_saved, asking, held, .. } = &mut self.leases;
        asked.retain(|holder, _| members.holds_lease(*holder));
        if *is_saved && promises.is_empty() && members.lease_regions.is_empty() {
            host.save_promised(consensus.log_mut(), false)?;
            *is_saved = false;
        }
        // Promises in answer to these stand for `SPAN` from when they were made.
        asking.retain(|_, asked| *asked + 2 * SPAN > now);
        held.retain(|_, (_, until)| *until > now);
        if members.holds_lease(self.id) {
            let number = self.reads.number();
            self.leases.asking.insert(number, now);
            let others = members.members.iter().map(|m| m.id).filter(|id| *id != self.id).collect::<Vec<_>>();
            // A notice may have been lost, and somebody may have led until now and have been told nothing.
            if let Some(notice) = self.consensus.last_notice() {
                host.send_notice(&others, notice);
            }
            host.send_lease_question(&others, number);
        }
        // A region whose lease is taken away is waited for until the last promise has run out.
        self.consensus.set_waited_for(!self.leases.asking.is_empty());
        Ok(())
    }
}
