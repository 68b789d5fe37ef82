//! The emulated WAN: keeps each frame until it is due, then writes it.
//!
//! It is one thread, whose waits are precise: tokio's timers work in steps of 1 ms, a tenth of a round trip in the lab,
//! while a condition variable with a timer slack of 1 ns is late by some tens of microseconds.
//!
//! Frames of one channel of a link keep their order: `shape` gives them times that never decrease, and of equal times
//! the earlier arrival goes first.  Any number of frames can be under way at once.

use crate::transport::frame::{Channel, Encoded};
use crate::transport::link::Link;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct DelayLine {
    delayed: Mutex<Delayed>,
    changed: Condvar,
}

#[derive(Default)]
struct Delayed {
    frames: BinaryHeap<Reverse<DelayedFrame>>,
    arrivals: u64,
    stopped: bool,
}

struct DelayedFrame {
    due: Instant,
    arrival: u64,
    link: Arc<Link>,
    channel: Channel,
    frame: Encoded,
}

impl DelayedFrame {
    fn write(self) {
        let bytes = self.frame.len();
        // A cut link also loses what is under way.
        if !self.link.shape.is_cut() {
            let _ = self.link.write_now(self.channel, self.frame);
        }
        self.link.shape.left(bytes);
    }
}

impl PartialEq for DelayedFrame {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for DelayedFrame {}
impl PartialOrd for DelayedFrame {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for DelayedFrame {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.arrival).cmp(&(other.due, other.arrival))
    }
}

impl DelayLine {
    pub fn push(&self, link: Arc<Link>, channel: Channel, frame: Encoded, due: Instant) {
        let mut delayed = self.delayed.lock().expect("no code that holds this lock panics");
        let arrival = delayed.arrivals;
        delayed.arrivals += 1;
        let is_next = delayed.frames.peek().is_none_or(|Reverse(first)| due < first.due);
        delayed.frames.push(Reverse(DelayedFrame { due, arrival, link, channel, frame }));
        if is_next {
            self.changed.notify_one();
        }
    }

    pub fn stop(&self) {
        let mut delayed = self.delayed.lock().expect("no code that holds this lock panics");
        delayed.stopped = true;
        delayed.frames.clear();
        self.changed.notify_one();
    }

    /// The thread's body; returns after `stop`.
    pub fn run(&self) {
        // Without this the kernel may prolong each wait by 50 µs.  If the call fails, delays are merely less exact.
        let _ = nix::sys::prctl::set_timerslack(1);
        let mut delayed = self.delayed.lock().expect("no code that holds this lock panics");
        while !delayed.stopped {
            let now = Instant::now();
            let wait = match delayed.frames.peek() {
                None => Duration::from_secs(3600),
                Some(Reverse(first)) => first.due.saturating_duration_since(now),
            };
            if !wait.is_zero() {
                delayed = self.changed.wait_timeout(delayed, wait).expect("no code that holds this lock panics").0;
                continue;
            }
            let Some(Reverse(due)) = delayed.frames.pop() else { continue };
            drop(delayed);
            due.write();
            delayed = self.delayed.lock().expect("no code that holds this lock panics");
        }
    }
}
