//! Stop points: named places where a test can pause the node or end it.  They exist only in builds with the feature
//! `lab`.
//!
//! The node stops at a point if there is a file `stop/POINT` in its folder.  The file says `wait` (until it is gone) or
//! `die` (end the process at once, as kill -9 would).  With `after N` behind that, the first N hits pass.  Each hit
//! adds a byte to `stop/POINT.hits`, from which a test knows that the node has arrived.
//!
//! Only a process that finds the folder `stop` when it first comes to such a place looks for files, so that nodes of
//! measurements do not.

use std::path::Path;

#[cfg(not(feature = "lab"))]
#[inline(always)]
pub fn stop_point(_folder: &Path, _point: &str) {}

/// Whether a test wants the node to behave differently here.
#[cfg(not(feature = "lab"))]
#[inline(always)]
pub fn ordered(_folder: &Path, _point: &str) -> bool {
    false
}

#[cfg(feature = "lab")]
fn is_watched(folder: &Path) -> bool {
    static IS_WATCHED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *IS_WATCHED.get_or_init(|| folder.join("stop").is_dir())
}

#[cfg(feature = "lab")]
pub fn ordered(folder: &Path, point: &str) -> bool {
    is_watched(folder) && folder.join("stop").join(point).exists()
}

#[cfg(feature = "lab")]
pub fn stop_point(folder: &Path, point: &str) {
    use std::io::Write;
    use std::time::{Duration, Instant};

    if !is_watched(folder) {
        return;
    }
    let file = folder.join("stop").join(point);
    let Ok(order) = std::fs::read_to_string(&file) else { return };
    let hits = file.with_extension("hits");
    let counted = std::fs::OpenOptions::new().create(true).append(true).open(&hits).and_then(|mut f| {
        f.write_all(b".")?;
        f.metadata()
    });
    let hit = counted.expect("a test's folder can be written").len();
    let passes = order.split_once(" after ").map_or(0, |(_, n)| n.trim().parse().expect("a number after `after`"));
    if hit <= passes {
        return;
    }
    if order.starts_with("die") {
        // SAFETY: it ends the process and runs none of its code.
        unsafe { libc::_exit(137) };
    }
    // A test that has died must not leave a node that hangs.
    let end = Instant::now() + Duration::from_secs(120);
    while file.exists() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
}
