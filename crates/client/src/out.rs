//! What a command says, to standard output ([`say!`](crate::say)) and standard error ([`complain!`](crate::complain)).
//!
//! Whoever reads it may stop reading at any time (`| head`).  Then the rest goes nowhere, and the command does what it
//! was asked to do and ends with the exit code that it would have had: a check that found a difference must not end
//! well because of `head`, nor a backup halfway.  `println!` would panic, so clippy refuses it here.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

static NOBODY_READS: AtomicBool = AtomicBool::new(false);
static FAILED: AtomicBool = AtomicBool::new(false);

/// A line on standard output.
#[macro_export]
macro_rules! say {
    ($($what:tt)*) => { $crate::out::line(format_args!($($what)*)) };
}

/// A line on standard error.
#[macro_export]
macro_rules! complain {
    ($($what:tt)*) => { $crate::out::error_line(format_args!($($what)*)) };
}

pub fn line(what: Arguments) {
    text(format_args!("{what}\n"));
}

/// The same without an end of line.
pub fn text(what: Arguments) {
    let mut out = std::io::stdout().lock();
    match out.write_fmt(what).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::BrokenPipe => NOBODY_READS.store(true, Ordering::Relaxed),
        Err(e) => {
            if !FAILED.swap(true, Ordering::Relaxed) {
                error_line(format_args!("onetrip: cannot write the output: {e}"));
            }
        }
    }
}

pub fn error_line(what: Arguments) {
    error_text(format_args!("{what}\n"));
}

/// If this fails, there is nobody to tell.
pub fn error_text(what: Arguments) {
    let _ = std::io::stderr().lock().write_fmt(what);
}

/// Nobody reads standard output any more.
pub fn nobody_reads() -> bool {
    NOBODY_READS.load(Ordering::Relaxed)
}

/// Standard output could not be written, and not because nobody reads it (a full disk).
pub fn failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}
