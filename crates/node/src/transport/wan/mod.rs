//! The emulated WAN, in builds with the feature `lab` only: a lab can delay, thin out and cut the links to the peers.
//!
//! A build for use contains none of this: each frame goes to its socket at once, and no link is ever cut by hand.

#[cfg(feature = "lab")]
mod delay;
#[cfg(feature = "lab")]
mod shape;

#[cfg(feature = "lab")]
mod emulated;
#[cfg(feature = "lab")]
pub(super) use emulated::{Shape, Wan};
#[cfg(feature = "lab")]
pub use shape::LinkSettings;

#[cfg(not(feature = "lab"))]
mod none;
#[cfg(not(feature = "lab"))]
pub(super) use none::{Shape, Wan};
