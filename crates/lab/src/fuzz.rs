//! The fuzz targets, and what every input must show: a target neither panics nor uses memory out of proportion.
//!
//! `make fuzz` (`bin/fuzz.rs`) searches for inputs, guided by coverage.  Those worth keeping are in `testdata/fuzz`, in
//! a folder for each target, and `tests/fuzz.rs` runs them.  A program that calls [`check`] must use [`Counting`] as
//! its allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};

pub use onetrip_node::fuzz::Target;

use crate::Topology;

/// How much memory a target may use at a time: this many bytes, plus [`TIMES_MAX`] times the length of its input.
/// (`protobuf` believes a length of up to 10 MB before it has seen the bytes, and a message of many empty entries is
/// unpacked into a struct for each.)
const BYTES_MAX: usize = 12 << 20;
const TIMES_MAX: usize = 200;

const OF_THE_LAB: &[Target] = &[
    Target { name: "backup-manifests", run: onetrip_cli::fuzz::run, seeds: onetrip_cli::fuzz::seeds, mend: None },
    Target {
        name: "topologies",
        run: |bytes| {
            if let Ok(topology) = Topology::parse(&String::from_utf8_lossy(bytes)) {
                assert_eq!(Topology::parse(&topology.to_toml()).as_ref(), Ok(&topology));
            }
        },
        seeds: || {
            let texts = [include_str!("../../../topologies/us.toml"), include_str!("../../../topologies/flat.toml")];
            texts.map(|text| text.as_bytes().to_vec()).to_vec()
        },
        mend: None,
    },
];

pub fn targets() -> impl Iterator<Item = &'static Target> {
    onetrip_node::fuzz::TARGETS.iter().chain(OF_THE_LAB)
}

/// The folder with a target's inputs.
pub fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/fuzz").join(target.name)
}

/// The inputs in a folder, sorted by name; none if the folder does not exist.
pub fn inputs(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = match std::fs::read_dir(folder) {
        Ok(files) => files.map(|file| Ok(file?.path())).collect::<io::Result<Vec<_>>>()?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(e),
    };
    files.sort();
    Ok(files)
}

/// Runs a target.  The error says that it used too much memory.
pub fn check(target: &Target, bytes: &[u8]) -> Result<(), String> {
    let peak = peak_of(|| (target.run)(bytes));
    if peak > BYTES_MAX + TIMES_MAX * bytes.len() {
        return Err(format!("{}: {} bytes of input took {peak} bytes of memory", target.name, bytes.len()));
    }
    Ok(())
}

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The most memory that `work` used at a time on this thread, in bytes.
pub fn peak_of(work: impl FnOnce()) -> usize {
    let before = HELD.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    work();
    (PEAK.with(Cell::get) - before).max(0) as usize
}

/// The system's allocator, with a count of the memory that each thread uses.
pub struct Counting;

fn count(bytes: isize) {
    // A thread that ends still frees memory after its counters are gone.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        System.alloc(layout)
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        System.dealloc(ptr, layout)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        System.alloc_zeroed(layout)
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        System.realloc(ptr, layout, size)
    }
}
