//! COMMITs that are answered once every server shows them (`onetrip.ack = applied_everywhere`).
//!
//! ```text
//!   AWAIT ──> "tell me when your server shows it" ──> every other member with a PostgreSQL
//!             its report, as soon as it does      <── half a round trip to each, and back
//!             all show it, or nobody waits for those that do not ──> SHOWN, with the regions that do not
//! ```
//! Nobody waits for a member that is away: it has reported nothing for [`SILENT_AFTER`], or it has no server that could
//! show anything.  Nor for one that stands still: it was asked [`STILL_AFTER`] ago for an entry, and does not show that
//! one yet.  So a region that is in trouble delays those COMMITs that find it so, and none that come later.
//!
//! Invariants:
//! - Who is not named in SHOWN has reported that its server shows the entry.
//! - Nothing is kept of a wait for longer than [`STILL_AFTER`], nor of a member's question for longer than
//!   [`FORGET_TICKS`]: who still waits asks again.

use super::{Host, Replica, Report, Store, SILENT_AFTER};
use crate::ids::{LogIndex, NodeId};
use crate::members::Member;
use crate::router::{ConnId, Outbox};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A member that has not shown an entry this long after it was asked for it stands still.
pub const STILL_AFTER: Duration = Duration::from_secs(5);
/// Members that have not answered are asked again this often.
const ASK_AGAIN_TICKS: u64 = 25;
const FORGET_TICKS: u64 = 4 * ASK_AGAIN_TICKS;

/// A COMMIT that waits until other servers show its entry.
struct Wait {
    conn: ConnId,
    at: LogIndex,
    since: Duration,
}

/// A member waits until the server here shows this entry.
struct Asked {
    at: LogIndex,
    forget_at: u64,
    /// What it was told last.
    told: Option<LogIndex>,
}

#[derive(Default)]
pub(super) struct Everywhere {
    waits: Vec<Wait>,
    /// For which entry each member was asked last.
    asked: BTreeMap<NodeId, LogIndex>,
    ask_again_at: u64,
    /// The entry that each member was asked for and did not show in time.
    still: BTreeMap<NodeId, LogIndex>,
    asked_by: BTreeMap<NodeId, Asked>,
}

/// How a member stands to an entry.
enum Stand {
    Shows,
    Away,
    StandsStill,
    /// It is connected, and its server is going to show the entry soon.
    OnItsWay,
}

impl<S: Store, O: Outbox> Replica<S, O> {
    /// A member wants to be told when the server here shows `at`.
    pub fn awaits(&mut self, peer: NodeId, at: LogIndex) {
        if !self.members.contains(peer) {
            return;
        }
        let forget_at = self.tick + FORGET_TICKS;
        let asked = self.everywhere.asked_by.entry(peer).or_insert(Asked { at, forget_at, told: None });
        (asked.at, asked.forget_at) = (at.max(asked.at), forget_at);
        // If it asks again, the answer may be lost.
        asked.told = None;
    }

    /// What this node reports of itself.
    pub(super) fn own_report<H: Host<Store = S, Outbox = O>>(&self, host: &mut H) -> Report {
        let shown = self.own_position().filter(|(applied, _)| self.can_bring_on(*applied));
        Report { shown, round_trips: host.round_trips() }
    }

    pub(super) fn work_awaits<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        self.answer_members(host);
        let begun = self.router.take_awaits();
        if begun.is_empty() && self.everywhere.waits.is_empty() {
            return;
        }
        let now = host.now();
        self.everywhere.waits.extend(begun.into_iter().map(|(conn, at)| Wait { conn, at, since: now }));
        self.note_who_stands_still(now);
        self.answer_waits(now);
        self.ask_members(now, host);
    }

    /// Reports to the members that wait for the server here, as soon as it shows more.
    fn answer_members<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        if self.everywhere.asked_by.is_empty() {
            return;
        }
        let (tick, members) = (self.tick, &self.members);
        self.everywhere.asked_by.retain(|peer, asked| asked.forget_at > tick && members.contains(*peer));
        let Some((applied, _)) = self.own_position() else { return };
        let news = self.everywhere.asked_by.iter().filter(|(_, asked)| asked.told.is_none_or(|told| told < applied));
        let to: Vec<NodeId> = news.map(|(peer, _)| *peer).collect();
        if to.is_empty() {
            return;
        }
        let report = self.own_report(host);
        host.send_report(Some(&to), &report);
        self.everywhere.asked_by.retain(|_, asked| {
            asked.told = Some(applied);
            asked.at > applied
        });
    }

    /// The other members whose servers are to show what is awaited.
    fn other_servers(&self) -> impl Iterator<Item = &Member> {
        self.members.members.iter().filter(|m| m.id != self.id && m.role.has_postgres())
    }

    /// Those of them that have reported lately.
    pub(super) fn servers_not_away(&self, now: Duration) -> Vec<NodeId> {
        let heard = |id: &NodeId| self.heard_within(*id, now, SILENT_AFTER).is_some();
        self.other_servers().map(|m| m.id).filter(heard).collect()
    }

    fn stand(&self, member: NodeId, at: LogIndex, now: Duration) -> Stand {
        let shown = self.positions.get(&member);
        if shown.is_some_and(|shown| shown.applied >= at) {
            return Stand::Shows;
        }
        match self.heard_within(member, now, SILENT_AFTER) {
            None => Stand::Away,
            Some(_) if self.everywhere.still.contains_key(&member) => Stand::StandsStill,
            Some(_) => Stand::OnItsWay,
        }
    }

    fn note_who_stands_still(&mut self, now: Duration) {
        let mut still = std::mem::take(&mut self.everywhere.still);
        let shows = |id: &NodeId, at: LogIndex| self.positions.get(id).is_some_and(|shown| shown.applied >= at);
        still.retain(|id, at| self.members.contains(*id) && !shows(id, *at));
        for wait in self.everywhere.waits.iter().filter(|wait| wait.since + STILL_AFTER <= now) {
            let late = self.other_servers().filter(|m| !shows(&m.id, wait.at));
            late.for_each(|m| {
                still.entry(m.id).or_insert(wait.at);
            });
        }
        self.everywhere.still = still;
    }

    fn answer_waits(&mut self, now: Duration) {
        let waits = std::mem::take(&mut self.everywhere.waits);
        for wait in waits {
            let mut missing = BTreeSet::new();
            let all = self.other_servers().all(|member| {
                let why = match self.stand(member.id, wait.at, now) {
                    Stand::Shows => return true,
                    Stand::OnItsWay => return false,
                    Stand::Away => "is away",
                    Stand::StandsStill => "stands still",
                };
                missing.insert(format!("\"{}\" {why}", member.region));
                true
            });
            if all {
                let missing: Vec<String> = missing.into_iter().collect();
                self.router.answer_await(wait.conn, wait.at, missing.join(", "));
            } else {
                // Even if its session has given up: who does not show it in time stands still.
                self.everywhere.waits.push(wait);
            }
        }
    }

    /// Asks for the newest entry that is awaited: who shows that shows the others.
    fn ask_members<H: Host<Store = S, Outbox = O>>(&mut self, now: Duration, host: &mut H) {
        let Some(at) = self.everywhere.waits.iter().map(|wait| wait.at).max() else { return };
        if self.everywhere.ask_again_at <= self.tick {
            self.everywhere.ask_again_at = self.tick + ASK_AGAIN_TICKS;
            self.everywhere.asked.clear();
        }
        let is_asked = |id: NodeId| self.everywhere.asked.get(&id).is_some_and(|asked| *asked >= at);
        let waited_for = |id: NodeId| matches!(self.stand(id, at, now), Stand::OnItsWay);
        let to = self.other_servers().map(|m| m.id).filter(|id| !is_asked(*id) && waited_for(*id));
        let to: Vec<NodeId> = to.collect();
        if !to.is_empty() {
            self.tell_who_waits(&to, host);
            host.send_await(&to, at);
            self.everywhere.asked.extend(to.into_iter().map(|id| (id, at)));
        }
    }
}
