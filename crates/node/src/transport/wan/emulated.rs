//! The emulated WAN of a lab: it gives each link its shape, and runs the thread that delays frames.

pub use super::shape::Shape;

use super::delay::DelayLine;
use super::shape::{LinkSettings, Way};
use crate::config::NodeConfig;
use crate::error::Result;
use crate::send_queue::NotSent;
use crate::span;
use crate::transport::frame::{Channel, Encoded};
use crate::transport::link::Link;
use onetrip_core::{NodeId, RegionId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

pub struct Wan {
    /// Whether links can be set by hand.
    lab: bool,
    one_way_ms: BTreeMap<RegionId, f64>,
    delays: Arc<DelayLine>,
}

impl Wan {
    pub fn new(config: &NodeConfig) -> Wan {
        Wan { lab: config.lab, one_way_ms: config.one_way_ms.clone(), delays: Arc::default() }
    }

    /// The shape of a new link.
    pub fn shape(&self, peer: NodeId, region: &RegionId) -> Shape {
        let one_way_ms = self.one_way_ms.get(region).copied().unwrap_or_default();
        let settings = LinkSettings { one_way_ms, ..Default::default() };
        Shape::new(settings, u64::from(peer.0) ^ u64::from(std::process::id()) << 32)
    }

    /// Starts the delay line's thread, if it can be needed.
    pub fn start(&self) -> Result<Option<JoinHandle<()>>> {
        if !self.lab && self.one_way_ms.is_empty() {
            return Ok(None);
        }
        let delays = self.delays.clone();
        span::spawn_thread("onetrip-wan", move || delays.run()).map(Some)
    }

    pub fn stop(&self) {
        self.delays.stop();
    }

    /// `false`: the link's queue is full, or too many bytes are delayed on it.
    pub fn send(&self, link: &Arc<Link>, channel: Channel, frame: Encoded) -> bool {
        match link.shape.way(channel, frame.len()) {
            Way::Now => link.write_now(channel, frame) != Err(NotSent::Full),
            Way::Delayed { due, copies } => {
                for _ in 0..copies {
                    self.delays.push(link.clone(), channel, frame.clone(), due);
                }
                true
            }
            Way::Lost => true,
            Way::Full => false,
        }
    }

    /// `false`: links cannot be set by hand here.
    pub fn set(&self, link: &Link, settings: LinkSettings) -> bool {
        if self.lab {
            link.shape.set(settings);
        }
        self.lab
    }
}
