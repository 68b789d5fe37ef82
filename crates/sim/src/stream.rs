//! Connections between nodes as TCP gives them, two for each direction.  What is sent on one arrives in order, or the
//! connection breaks and all that had not arrived is lost; then the sender hears of it and dials again.
//!
//! Only in some runs: in the others each message by itself is late, lost or duplicated, which the protocol has to
//! stand as well.

use crate::ctx::{Micros, MS, SECOND};
use crate::node::Arrival;
use crate::world::{Event, World};
use onetrip_core::NodeId;

/// A receiver that acknowledges nothing for this long counts as gone.
const SILENCE: Micros = 3 * SECOND;

/// As in the daemon's transport.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Channel {
    Control,
    Bulk,
}

const CHANNELS: [Channel; 2] = [Channel::Control, Channel::Bulk];

#[derive(Clone, Default)]
pub(crate) struct Stream {
    /// Messages of the connection that was made last.
    number: u64,
    up: bool,
    dialling: bool,
    last_delivery: Micros,
}

pub(crate) enum OnStream {
    Deliver(Arrival),
    Break,
    Dial,
}

impl World {
    fn stream(&mut self, from: usize, to: usize, channel: Channel) -> &mut Stream {
        &mut self.links[from][to].streams[channel as usize]
    }

    pub(crate) fn send_on(&mut self, (from, to): (usize, usize), channel: Channel, time: Micros, arrival: Arrival) {
        let o = &self.ctx.options;
        let breaks = self.ctx.rng.per_million(o.loss_per_million);
        let link = &mut self.links[from][to];
        let stream = &mut link.streams[channel as usize];
        if !stream.up {
            return self.ctx.events.add("message to a connection that is not there");
        }
        let number = stream.number;
        if breaks {
            self.ctx.faults.add("connection broken");
            return self.break_stream(from, to, channel);
        }
        if link.cut_until > time + SILENCE {
            return self.at(time + SILENCE, Event::Stream(from, to, channel, number, OnStream::Break));
        }
        let slow = if link.slow_until > time { 10 } else { 1 };
        let mut at = time.max(link.cut_until) + link.delay * slow + self.ctx.rng.below(link.delay / 4 + 50);
        if matches!(channel, Channel::Bulk) && self.ctx.rng.one_in(4) {
            at += self.ctx.rng.below(link.delay * 4);
        }
        stream.last_delivery = stream.last_delivery.max(at);
        let at = stream.last_delivery;
        self.at(at, Event::Stream(from, to, channel, number, OnStream::Deliver(arrival)));
    }

    pub(crate) fn on_stream(&mut self, (from, to): (usize, usize), channel: Channel, number: u64, what: OnStream) {
        let is_this_one = self.stream(from, to, channel).number == number;
        match what {
            OnStream::Deliver(arrival) if is_this_one => self.deliver(from, to, arrival),
            OnStream::Deliver(_) => self.ctx.events.add("message lost with its connection"),
            OnStream::Break if is_this_one => self.break_stream(from, to, channel),
            OnStream::Break => {}
            OnStream::Dial => self.dial(from, to, channel),
        }
    }

    /// What is under way on the connection is lost.
    fn break_stream(&mut self, from: usize, to: usize, channel: Channel) {
        let stream = self.stream(from, to, channel);
        stream.number += 1;
        if std::mem::take(&mut stream.up) {
            self.tell(from, Arrival::Unreachable(NodeId(to as u32 + 1)), 50 * MS);
            self.dial_later(from, to, channel);
        }
    }

    fn tell(&mut self, i: usize, what: Arrival, within: Micros) {
        let (time, life) = (self.ctx.now + self.ctx.rng.below(within), self.machines[i].life);
        self.at(time, Event::Arrive(i, life, what));
    }

    fn dial_later(&mut self, from: usize, to: usize, channel: Channel) {
        let wait = self.ctx.rng.between(20 * MS, SECOND);
        let time = self.ctx.now + wait;
        let stream = self.stream(from, to, channel);
        if !std::mem::replace(&mut stream.dialling, true) {
            let number = stream.number;
            self.at(time, Event::Stream(from, to, channel, number, OnStream::Dial));
        }
    }

    fn dial(&mut self, from: usize, to: usize, channel: Channel) {
        let is_cut = self.links[from][to].cut_until > self.ctx.now;
        let (caller, called) = (self.machines[from].node.is_some(), self.machines[to].node.is_some());
        let stream = self.stream(from, to, channel);
        stream.dialling = false;
        if stream.up || !caller {
            return;
        }
        if is_cut || !called {
            return self.dial_later(from, to, channel);
        }
        *stream = Stream { number: stream.number + 1, up: true, ..Stream::default() };
        self.ctx.events.add("connection made");
        self.tell(from, Arrival::Connected(NodeId(to as u32 + 1)), MS);
    }

    /// Node `i` has started.
    pub(crate) fn dial_all(&mut self, i: usize) {
        for peer in (0..self.machines.len()).filter(|peer| *peer != i) {
            for channel in CHANNELS {
                self.dial_later(i, peer, channel);
                // This one was dialled for the last time before the node started.
                self.dial_later(peer, i, channel);
            }
        }
    }

    /// The process of node `i` has ended: what it has sent may still arrive, but what was sent to it will not.
    pub(crate) fn hang_up(&mut self, i: usize) {
        for peer in (0..self.machines.len()).filter(|peer| *peer != i) {
            for channel in CHANNELS {
                self.stream(i, peer, channel).up = false;
                self.break_stream(peer, i, channel);
            }
        }
    }
}
