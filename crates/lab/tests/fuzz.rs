//! Bytes from outside: arbitrary ones and damaged real ones neither panic nor take memory out of proportion.
//!
//! A few hundred of each in `make test`; `make fuzz SECONDS=600` goes on for that long, shared by the targets.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use onetrip_lab::Topology;
use onetrip_node::fuzz::{Target, TARGETS};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, FileFailurePersistence, TestError, TestRunner};

/// What a target may hold at a time: so much, and so many times its input.  (`protobuf` believes a length up to 10 MB before
/// it has seen the bytes; a message of many empty entries unpacks to their structs.)
const BYTES_MAX: usize = 12 << 20;
const TIMES_MAX: usize = 200;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: isize) {
    // A thread that ends frees after its counters are gone.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: hands everything on to the system's allocator.
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

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most that `work` held at a time on this thread.
fn peak_of(work: impl FnOnce()) -> usize {
    let before = HELD.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    work();
    (PEAK.with(Cell::get) - before).max(0) as usize
}

const TOPOLOGIES: Target = Target {
    name: "topologies",
    run: |bytes| {
        if let Ok(topology) = Topology::parse(&String::from_utf8_lossy(bytes)) {
            assert_eq!(Topology::parse(&topology.to_toml()).as_ref(), Ok(&topology));
        }
    },
    seeds: || vec![include_bytes!("../../../topologies/us.toml").to_vec()],
    mend: None,
};

#[derive(Clone, Debug)]
enum Damage {
    Set(Index, u8),
    Flip(Index, u8),
    Number(Index, u64, usize),
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    Repeat(Index, usize, usize),
    End(Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<Index>;
    let special = prop_oneof![Just(0), Just(1), Just(u64::MAX), Just(1 << 31), Just(0xffff_fff0), any::<u64>()];
    prop_oneof![
        (index(), any::<u8>()).prop_map(|(i, b)| Damage::Set(i, b)),
        (index(), 0u8..8).prop_map(|(i, b)| Damage::Flip(i, b)),
        (index(), special, prop_oneof![Just(2usize), Just(4), Just(8)]).prop_map(|(i, n, w)| Damage::Number(i, n, w)),
        (index(), 1usize..40).prop_map(|(i, n)| Damage::Remove(i, n)),
        (index(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(i, b)| Damage::Insert(i, b)),
        (index(), 1usize..60, 1usize..200).prop_map(|(i, n, times)| Damage::Repeat(i, n, times)),
        index().prop_map(Damage::End),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    let place = |i: &Index| i.index(bytes.len() + 1);
    match damage {
        Damage::Set(i, b) => {
            let at = place(i);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = *b;
            }
        }
        Damage::Flip(i, bit) => {
            let at = place(i);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << bit;
            }
        }
        Damage::Number(i, n, width) => {
            let at = place(i);
            if let Some(part) = bytes.get_mut(at..at + width) {
                part.copy_from_slice(&n.to_le_bytes()[..*width]);
            }
        }
        Damage::Remove(i, n) => {
            let at = place(i);
            bytes.drain(at..(at + n).min(bytes.len()));
        }
        Damage::Insert(i, more) => {
            let at = place(i);
            bytes.splice(at..at, more.iter().copied());
        }
        Damage::Repeat(i, n, times) => {
            let at = place(i);
            let part = bytes[at..(at + n).min(bytes.len())].repeat(*times);
            bytes.splice(at..at, part);
        }
        Damage::End(i) => bytes.truncate(place(i)),
    }
}

fn inputs(target: &Target) -> impl Strategy<Value = Vec<u8>> {
    let (seeds, mend) = ((target.seeds)(), target.mend);
    let damaged = (prop::sample::select(seeds), prop::collection::vec(damage(), 0..8), any::<bool>());
    let damaged = damaged.prop_map(move |(mut bytes, all, mended)| {
        all.iter().for_each(|damage| apply(&mut bytes, damage));
        if let Some(mend) = mend.filter(|_| mended) {
            mend(&mut bytes);
        }
        bytes
    });
    prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..2_000), 6 => damaged]
}

/// The error has the shortest input found that shows it.
fn run(target: &Target, cases: u32) -> Result<(), String> {
    let config =
        Config { cases, failure_persistence: Some(Box::new(FileFailurePersistence::Off)), ..Config::default() };
    let result = TestRunner::new(config).run(&inputs(target), |bytes| {
        let peak = peak_of(|| (target.run)(&bytes));
        let bound = BYTES_MAX + TIMES_MAX * bytes.len();
        prop_assert!(peak <= bound, "{} bytes of input took {peak} bytes of memory", bytes.len());
        Ok(())
    });
    result.map_err(|e| match e {
        TestError::Fail(why, bytes) => format!("{}: {why}\ninput: {bytes:02x?}", target.name),
        TestError::Abort(why) => format!("{}: {why}", target.name),
    })
}

#[test]
fn bytes_from_outside_neither_panic_nor_take_much_memory() {
    let seconds = std::env::var("ONETRIP_FUZZ_SECONDS").map_or(0, |s| s.parse().expect("a number of seconds"));
    let targets: Vec<&Target> = TARGETS.iter().chain([&TOPOLOGIES]).collect();
    let share = Duration::from_secs(seconds) / targets.len() as u32;
    for target in targets {
        assert!(!(target.seeds)().is_empty());
        let (start, mut cases) = (Instant::now(), 0u64);
        loop {
            run(target, 256).unwrap_or_else(|why| panic!("{why}"));
            cases += 256;
            if start.elapsed() >= share {
                break;
            }
        }
        println!("{:16} {cases:9} inputs", target.name);
    }
}

/// Is the count awake?
#[test]
fn the_bound_would_notice() {
    assert!(peak_of(|| drop(vec![0u8; 5 << 20])) >= 5 << 20);
    let greedy = Target { name: "greedy", run: |_| drop(vec![1u8; 16 << 20]), seeds: || vec![vec![1]], mend: None };
    assert!(run(&greedy, 1).unwrap_err().contains("bytes of memory"));
}
