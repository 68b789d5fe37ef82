//! The network of a world: what nodes send, when it arrives, and from whom the receiver accepts it.

use crate::ctx::{InjectedBug, Micros, MS};
use crate::node::{Arrival, Departure};
use crate::stream::Channel;
use crate::trace;
use crate::world::{Event, World, SOCKET};
use onetrip_core::consensus::{self, Message};
use onetrip_core::NodeId;
use raft::eraftpb::MessageType;

impl World {
    pub(crate) fn depart(&mut self, i: usize, time: Micros, departure: Departure) {
        match departure {
            Departure::Raft(message) => {
                trace!(self.ctx, "n{} says at {time}: {}", i + 1, brief(&message));
                let to = message.to as usize - 1;
                if to < self.machines.len() {
                    self.transmit(i, to, time, &|| Arrival::Raft(Message::clone(&message)));
                }
            }
            Departure::Notice(to, notice) => {
                trace!(self.ctx, "n{} has by {time}: {notice:?}, says it to {to}", i + 1);
                let to = to.0 as usize - 1;
                if to < self.machines.len() {
                    self.transmit(i, to, time, &|| Arrival::Notice(NodeId(i as u32 + 1), notice));
                }
            }
            Departure::Question(to, question) => {
                let to = to.0 as usize - 1;
                if to < self.machines.len() {
                    self.transmit(i, to, time, &|| Arrival::Question(NodeId(i as u32 + 1), question));
                }
            }
            Departure::LastEntry(to, question, last) => {
                trace!(self.ctx, "n{} names {last:?} to {to} by {time}", i + 1);
                let to = to.0 as usize - 1;
                self.transmit(i, to, time, &|| Arrival::LastEntry(NodeId(i as u32 + 1), question, last));
            }
            Departure::LeaseQuestion(to, question) => {
                let to = to.0 as usize - 1;
                if to < self.machines.len() {
                    self.transmit(i, to, time, &|| Arrival::LeaseQuestion(NodeId(i as u32 + 1), question));
                }
            }
            Departure::Promise(to, question, last) => {
                trace!(self.ctx, "n{} promises to {to} by {time}, with {last:?}", i + 1);
                let to = to.0 as usize - 1;
                self.transmit(i, to, time, &|| Arrival::Promise(NodeId(i as u32 + 1), question, last));
            }
            Departure::Await(to, at) => {
                let to = to.0 as usize - 1;
                if to < self.machines.len() {
                    self.transmit(i, to, time, &|| Arrival::Await(NodeId(i as u32 + 1), at));
                }
            }
            Departure::Lock(to, message) => {
                let to = to.0 as usize - 1;
                if to < self.machines.len() {
                    self.transmit(i, to, time, &|| Arrival::Lock(NodeId(i as u32 + 1), message.clone()));
                }
            }
            Departure::Report(only, report) => {
                let is_meant = |to: &usize| only.as_ref().is_none_or(|only| only.contains(&NodeId(*to as u32 + 1)));
                for to in (0..self.machines.len()).filter(|to| *to != i && is_meant(to)) {
                    self.transmit(i, to, time, &|| Arrival::Report(NodeId(i as u32 + 1), report.clone()));
                }
            }
            Departure::Agent(frame) => {
                if let Some(incarnation) = self.machines[i].postgres.as_ref().map(|p| p.incarnation) {
                    self.at(time + SOCKET, Event::ToPostgres(i, incarnation, frame));
                }
            }
            Departure::Snapshot(message) => {
                let life = self.machines[i].life;
                self.at(time, Event::Arrive(i, life, Arrival::Snapshot(message)));
            }
            Departure::Fetched => {
                let life = self.machines[i].life;
                self.at(time, Event::Arrive(i, life, Arrival::Fetched));
            }
            Departure::Synced(number, write) => {
                let life = self.machines[i].life;
                self.at(time, Event::Arrive(i, life, Arrival::Synced(number, write)));
            }
            Departure::Checkpoint(index, conf, raw) => {
                let life = self.machines[i].life;
                self.at(time, Event::Arrive(i, life, Arrival::Renamed(raw)));
                // With this bug what matters happens in between.
                let most = if self.ctx.options.bug == Some(InjectedBug::BelieveName) { 2_000 } else { 200 };
                let synced = time + self.ctx.rng.between(0, most * MS);
                self.at(synced, Event::Arrive(i, life, Arrival::Checkpointed(index, conf)));
            }
        }
    }

    /// The receiver's transport accepts nothing from a node that was removed, and tells it so.  A node that was added
    /// after the receiver's table is accepted.
    pub(crate) fn deliver(&mut self, from: usize, i: usize, arrival: Arrival) {
        let Some(node) = &self.machines[i].node else { return };
        let sender = NodeId(from as u32 + 1);
        if let Arrival::Raft(message) = &arrival {
            trace!(self.ctx, "n{} hears {}", i + 1, brief(message));
            // As in the daemon's transport.
            if let Err(why) = consensus::check(message) {
                return self.ctx.checker.fail(format!("node {sender} to node {}: {why}: {}", i + 1, brief(message)));
            }
            // The receiver would take it for a forgery and break the connection.
            if (message.from, message.to) != (u64::from(sender.0), i as u64 + 1) {
                let why = format!("node {sender} says for another to node {}: {}", i + 1, brief(message));
                return self.ctx.checker.fail(why);
            }
        }
        if node.members().removed(sender) && !matches!(arrival, Arrival::Removed) {
            let now = self.ctx.now;
            self.transmit(i, from, now, &|| Arrival::Removed);
        } else {
            self.machines[i].inbox.push(arrival);
            self.work_soon(i);
        }
    }

    fn transmit(&mut self, from: usize, to: usize, time: Micros, make: &dyn Fn() -> Arrival) {
        if self.ctx.options.streams {
            let arrival = make();
            return self.send_on((from, to), channel_of(&arrival), time, arrival);
        }
        let copies = 1 + u64::from(self.ctx.rng.per_million(self.ctx.options.duplicate_per_million));
        for copy in 0..copies {
            let (o, rng) = (&self.ctx.options, &mut self.ctx.rng);
            let link = &mut self.links[from][to];
            if link.cut_until > time {
                self.ctx.events.add("message cut off");
                return;
            }
            if rng.per_million(o.loss_per_million) {
                self.ctx.faults.add("message lost");
                continue;
            }
            let slow = if link.slow_until > time { 10 } else { 1 };
            let mut arrival = time + link.delay * slow + rng.below(link.delay / 4 + 50);
            if copy > 0 || rng.per_million(o.reorder_per_million) {
                arrival += rng.below(200 * MS);
                self.ctx.faults.add(if copy > 0 { "message duplicated" } else { "message overtaken" });
            } else {
                arrival = arrival.max(link.last_delivery);
                link.last_delivery = arrival;
            }
            self.at(arrival, Event::Deliver(from, to, make()));
        }
    }
}

/// As in the daemon's transport.
fn channel_of(arrival: &Arrival) -> Channel {
    match arrival {
        Arrival::Raft(m) if matches!(m.get_msg_type(), MessageType::MsgAppend | MessageType::MsgSnapshot) => {
            Channel::Bulk
        }
        _ => Channel::Control,
    }
}

fn brief(m: &Message) -> String {
    format!(
        "{:?} {}->{} term {} index {} log term {} commit {} entries {} reject {} hint {}",
        m.get_msg_type(),
        m.from,
        m.to,
        m.term,
        m.index,
        m.log_term,
        m.commit,
        m.entries.len(),
        m.reject,
        m.reject_hint
    )
}
