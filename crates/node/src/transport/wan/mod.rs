//! The emulated WAN, in builds with the feature `lab` only: what a lab makes of the links to the peers.
//!
//! In a build for use each frame goes to its socket at once, no link is ever cut by hand, and nothing is left of all this.

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
