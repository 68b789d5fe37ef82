//! The same interface in a build for use, where nothing is emulated.

use crate::config::NodeConfig;
use crate::error::Result;
use crate::send_queue::NotSent;
use crate::transport::frame::{Channel, Encoded};
use crate::transport::link::Link;
use onetrip_core::{NodeId, RegionId};
use std::sync::Arc;
use std::thread::JoinHandle;

pub struct Wan;

pub struct Shape;

impl Shape {
    pub fn is_cut(&self) -> bool {
        false
    }

    pub fn is_full(&self) -> bool {
        false
    }

    pub fn has_delayed(&self) -> bool {
        false
    }
}

impl Wan {
    pub fn new(_config: &NodeConfig) -> Wan {
        Wan
    }

    pub fn shape(&self, _peer: NodeId, _region: &RegionId) -> Shape {
        Shape
    }

    pub fn start(&self) -> Result<Option<JoinHandle<()>>> {
        Ok(None)
    }

    pub fn stop(&self) {}

    /// `false`: the link's queue is full.
    pub fn send(&self, link: &Arc<Link>, channel: Channel, frame: Encoded) -> bool {
        link.write_now(channel, frame) != Err(NotSent::Full)
    }
}
