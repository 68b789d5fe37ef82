//! What the certifier's reservations do for regions at different distances, in a model of time: three regions change
//! two rows as fast as they can.  No threads, no clock: the figures are the same each time.

use onetrip_core::certifier::{Certifier, Decision, Limits, Verdict};
use onetrip_core::{Base, Entry, Key, LockMode, LogIndex, NodeId, TxnId};
use std::collections::BTreeSet;

/// Microseconds from each region to the leader, and from the leader's append until the region has decided the entry.
/// A region between two others, one at 10 ms, and one at 50 ms.
const TO_LEADER: [u64; 3] = [0, 5_000, 25_000];
const TO_DECIDED: [u64; 3] = [10_000, 5_000, 25_000];
/// From the row locks to the proposal, and between two tries.
const WORK: u64 = 1_000;
const PAUSE: u64 = 500;
const FOR: u64 = 60_000_000;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The region has decided the entry.
    Decided(usize, u64),
    Locks(usize),
    /// With this base.
    Proposes(usize, u64),
    Arrives(usize, u64),
}

#[derive(Default)]
struct Region {
    applied: u64,
    /// The index of its entry, once that is in the log, and whether it commits.
    waits: Option<(u64, bool)>,
    done: u64,
    failed: u64,
    tried_since: u64,
    slowest: u64,
}

/// What each region has got done; without `fair`, the certifier forgets each loss at once.
fn run(fair: bool) -> [Region; 3] {
    let mut certifier = Certifier::new(Limits::default());
    let mut regions: [Region; 3] = Default::default();
    let mut events = BTreeSet::new();
    let mut committed = vec![false];
    for region in 0..3 {
        events.insert((region as u64 * 700, Event::Locks(region)));
    }
    while let Some((now, event)) = events.pop_first().filter(|(now, _)| *now < FOR) {
        match event {
            Event::Locks(r) => {
                events.insert((now + WORK, Event::Proposes(r, regions[r].applied)));
            }
            // Evicted: what it locked has been changed since.
            Event::Proposes(r, base) if committed[base as usize + 1..=regions[r].applied as usize].contains(&true) => {
                regions[r].failed += 1;
                events.insert((now + PAUSE, Event::Locks(r)));
            }
            Event::Proposes(r, base) => {
                events.insert((now + TO_LEADER[r], Event::Arrives(r, base)));
            }
            Event::Arrives(r, base) => {
                let index = committed.len() as u64;
                let txn = TxnId { node: NodeId(r as u32 + 1), incarnation: 1, sequence: index };
                let key = |hash, mode| Key { hash, mode, base: Base(base) };
                let keys = [key(1, LockMode::NoKeyUpdate), key(2, LockMode::NoKeyUpdate), key(9, LockMode::Share)];
                let entry = Entry::decode(Entry::encode(&txn, &keys, b"")).unwrap();
                let decision = certifier.certify(LogIndex(index), &entry).unwrap();
                committed.push(matches!(decision, Decision::Decided { verdict: Verdict::Commit, .. }));
                if !fair {
                    certifier.forget_what_is_reserved();
                }
                regions[r].waits = Some((index, committed[index as usize]));
                for (region, wait) in TO_DECIDED.into_iter().enumerate() {
                    events.insert((now + wait, Event::Decided(region, index)));
                }
            }
            Event::Decided(r, index) => {
                let region = &mut regions[r];
                region.applied = index;
                let Some((_, commits)) = region.waits.take_if(|(at, _)| *at == index) else { continue };
                if commits {
                    region.done += 1;
                    region.slowest = region.slowest.max(now - region.tried_since);
                    region.tried_since = now;
                } else {
                    region.failed += 1;
                }
                events.insert((now + PAUSE, Event::Locks(r)));
            }
        }
    }
    for region in &mut regions {
        region.slowest = region.slowest.max(FOR - region.tried_since);
    }
    regions
}

/// Goal: nobody starves, and the others keep most of what they had.  Method: a minute with and without reservations.
#[test]
fn a_far_region_gets_through_and_the_others_keep_most() {
    let (without, with) = (run(false), run(true));
    for (name, regions) in [("without", &without), ("with", &with)] {
        for (at, r) in TO_DECIDED.iter().zip(regions) {
            println!(
                "{name}: {} ms: {} done, {} failed, slowest {} ms",
                at / 1_000,
                r.done,
                r.failed,
                r.slowest / 1_000
            );
        }
    }
    let near = |regions: &[Region; 3]| regions[0].done + regions[1].done;
    assert!(without[2].done < 20, "nobody starves in this model: {}", without[2].done);
    assert!(with[2].done > 100 && with[2].slowest < 1_000_000, "{} in {}", with[2].done, with[2].slowest);
    assert!(near(&with) * 2 > near(&without), "{} instead of {}", near(&with), near(&without));
}
