//! What the emulated WAN does to the frames that this node sends on one link: delay, jitter, bandwidth, loss,
//! duplicates, and a cut.
//!
//! Each node shapes what it sends, so the two directions of a link have settings of their own.  Whole frames are shaped
//! before they reach the socket; the byte stream below is never damaged.
//!
//! Invariants:
//! - Frames of one channel leave in the order in which they arrived here, whatever the jitter and whenever the settings
//!   change.  A duplicate follows its original at once.
//! - An unshaped link costs one atomic load.

use crate::config::ONE_WAY_MS_MAX;
use crate::transport::frame::Channel;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// An emulated link holds back at most this much.
const QUEUE_BYTES_MAX: usize = 128 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkSettings {
    /// Nothing passes.  An open connection stays open, and is used again when the link is healed.
    pub cut: bool,
    pub one_way_ms: f64,
    /// A random time between 0 and this, evenly distributed, is added to the delay of each frame.
    pub jitter_ms: f64,
    /// Share of the frames that are lost, 0 to 1.
    pub loss: f64,
    /// Share of the frames that go out twice, 0 to 1.
    pub duplicate: f64,
    /// Bandwidth of each of the link's channels; 0: no limit.
    pub mbit_per_s: f64,
}

impl LinkSettings {
    /// The error says in a sentence what is wrong with them.
    pub fn validate(&self) -> Result<(), String> {
        for (name, value, max) in [
            ("one_way_ms", self.one_way_ms, ONE_WAY_MS_MAX),
            ("jitter_ms", self.jitter_ms, ONE_WAY_MS_MAX),
            ("loss", self.loss, 1.0),
            ("duplicate", self.duplicate, 1.0),
            ("mbit_per_s", self.mbit_per_s, 1e6),
        ] {
            if !(0.0..=max).contains(&value) {
                return Err(format!("`{name}` is {value}, not within 0 to {max}"));
            }
        }
        Ok(())
    }
}

/// What happens to a frame.
#[derive(Debug, PartialEq)]
pub enum Way {
    /// To the socket at once.
    Now,
    /// Into the delay line, `copies` times.
    Delayed { due: Instant, copies: usize },
    /// Lost on the way, as far as the sender can tell.
    Lost,
    /// Too many bytes are delayed already: the sender is told so.
    Full,
}

pub struct Shape {
    /// `false`: every frame goes out at once.
    active: AtomicBool,
    cut: AtomicBool,
    /// Bytes of the frames in the delay line.
    delayed_bytes: AtomicUsize,
    inner: Mutex<Inner>,
}

struct Inner {
    settings: LinkSettings,
    random: u64,
    /// When the last frame of each channel is due.
    last_due: [Option<Instant>; 2],
}

impl Shape {
    pub fn new(settings: LinkSettings, seed: u64) -> Shape {
        let shape = Shape {
            active: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            delayed_bytes: AtomicUsize::new(0),
            inner: Mutex::new(Inner { settings, random: seed, last_due: [None; 2] }),
        };
        shape.set(settings);
        shape
    }

    pub fn set(&self, settings: LinkSettings) {
        let mut inner = self.inner.lock().expect("no code that holds this lock panics");
        inner.settings = settings;
        self.cut.store(settings.cut, Ordering::Relaxed);
        // Frames may still be delayed by earlier settings, so only `way` resets `active`.
        if settings != LinkSettings::default() {
            self.active.store(true, Ordering::Relaxed);
        }
    }

    pub fn settings(&self) -> LinkSettings {
        self.inner.lock().expect("no code that holds this lock panics").settings
    }

    pub fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// If the answer is `Delayed`, the frame's bytes are counted until [`Shape::left`] subtracts them.
    pub fn way(&self, channel: Channel, bytes: usize) -> Way {
        if !self.active.load(Ordering::Relaxed) {
            return Way::Now;
        }
        let mut inner = self.inner.lock().expect("no code that holds this lock panics");
        let settings = inner.settings;
        if settings.cut {
            return Way::Lost;
        }
        let delayed = self.delayed_bytes();
        if settings == LinkSettings::default() && delayed == 0 {
            self.active.store(false, Ordering::Relaxed);
            return Way::Now;
        }
        if delayed > QUEUE_BYTES_MAX {
            return Way::Full;
        }
        if inner.draw() < settings.loss {
            return Way::Lost;
        }
        let copies = if inner.draw() < settings.duplicate { 2 } else { 1 };
        let delay = settings.one_way_ms + settings.jitter_ms * inner.draw();
        let mut due = Instant::now() + Duration::from_secs_f64(delay / 1000.0);
        if let Some(last) = inner.last_due[channel as usize] {
            due = due.max(last);
        }
        if settings.mbit_per_s > 0.0 {
            due += Duration::from_secs_f64((copies * bytes) as f64 * 8.0 / (settings.mbit_per_s * 1e6));
        }
        inner.last_due[channel as usize] = Some(due);
        self.delayed_bytes.fetch_add(copies * bytes, Ordering::Relaxed);
        Way::Delayed { due, copies }
    }

    fn delayed_bytes(&self) -> usize {
        self.delayed_bytes.load(Ordering::Relaxed)
    }

    pub fn is_full(&self) -> bool {
        self.delayed_bytes() > QUEUE_BYTES_MAX
    }

    pub fn has_delayed(&self) -> bool {
        self.delayed_bytes() > 0
    }

    /// Called after a delayed frame was given to the socket.  If it were called before, a frame that is sent at once
    /// could overtake it.
    pub fn left(&self, bytes: usize) {
        self.delayed_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Inner {
    /// A random number from 0 to below 1, evenly distributed (splitmix64).
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_and_new_settings_keep_the_order() {
        let shape = Shape::new(LinkSettings { one_way_ms: 5.0, jitter_ms: 50.0, ..Default::default() }, 1);
        let mut last = Instant::now();
        for i in 0..1000 {
            if i == 500 {
                shape.set(LinkSettings::default());
            }
            let Way::Delayed { due, copies: 1 } = shape.way(Channel::Bulk, 10) else {
                panic!("frame {i} is not delayed")
            };
            assert!(due >= last, "frame {i}");
            last = due;
        }
        shape.left(1000 * 10);
        assert_eq!(shape.way(Channel::Bulk, 10), Way::Now, "nothing is delayed any more");
    }

    #[test]
    fn frames_are_lost_and_doubled_as_often_as_told() {
        let shape = Shape::new(LinkSettings { loss: 0.3, duplicate: 0.2, ..Default::default() }, 7);
        let (mut lost, mut twice) = (0, 0);
        for _ in 0..10_000 {
            match shape.way(Channel::Control, 1) {
                Way::Lost => lost += 1,
                Way::Delayed { copies, .. } => {
                    shape.left(copies);
                    twice += copies - 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!((2_700..3_300).contains(&lost), "{lost} lost");
        assert!((1_200..1_600).contains(&twice), "{twice} doubled of {}", 10_000 - lost);
    }

    #[test]
    fn a_narrow_link_spreads_frames_and_refuses_what_does_not_fit() {
        let shape = Shape::new(LinkSettings { mbit_per_s: 8.0, ..Default::default() }, 1);
        let start = Instant::now();
        let mut dues = Vec::new();
        while let Way::Delayed { due, .. } = shape.way(Channel::Bulk, 1 << 20) {
            dues.push(due);
        }
        assert_eq!(dues.len(), 1 + (QUEUE_BYTES_MAX >> 20), "then it is full");
        let seconds = dues[dues.len() - 1].duration_since(start).as_secs_f64();
        assert!((130.0..150.0).contains(&seconds), "129 MiB at 1 MB/s took {seconds} s");
        shape.set(LinkSettings { cut: true, ..Default::default() });
        assert_eq!(shape.way(Channel::Bulk, 1), Way::Lost);
    }

    #[test]
    fn impossible_settings_are_refused() {
        for bad in [
            LinkSettings { loss: 1.5, ..Default::default() },
            LinkSettings { one_way_ms: -1.0, ..Default::default() },
            LinkSettings { jitter_ms: f64::NAN, ..Default::default() },
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
        assert!(LinkSettings::default().validate().is_ok());
    }
}
