//! Bytes from outside: inputs that `make fuzz` has found, arbitrary bytes and damaged valid messages neither cause a
//! panic nor take memory out of proportion.

use std::panic::{catch_unwind, AssertUnwindSafe};

use onetrip_lab::fuzz::{check, folder, inputs, peak_of, targets, Counting, Target};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, FileFailurePersistence, TestError, TestRunner};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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

fn damaged_inputs(target: &Target) -> impl Strategy<Value = Vec<u8>> {
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

/// The error contains the shortest input found that causes it.
fn run(target: &Target, cases: u32) -> Result<(), String> {
    let config =
        Config { cases, failure_persistence: Some(Box::new(FileFailurePersistence::Off)), ..Config::default() };
    let result = TestRunner::new(config)
        .run(&damaged_inputs(target), |bytes| check(target, &bytes).map_err(TestCaseError::fail));
    result.map_err(|e| match e {
        TestError::Fail(why, bytes) => format!("{}: {why}\ninput: {bytes:02x?}", target.name),
        TestError::Abort(why) => format!("{}: {why}", target.name),
    })
}

#[test]
fn inputs_that_were_found_neither_panic_nor_take_much_memory() {
    for target in targets() {
        let files = inputs(&folder(target)).unwrap();
        assert!(!files.is_empty(), "no input is kept of {}: make fuzz TARGET={0} ARGS=--keep", target.name);
        for file in files {
            let bytes = std::fs::read(&file).unwrap();
            let checked = catch_unwind(AssertUnwindSafe(|| check(target, &bytes)));
            assert!(matches!(checked, Ok(Ok(()))), "{}: {checked:?}", file.display());
        }
    }
}

#[test]
fn damaged_bytes_neither_panic_nor_take_much_memory() {
    for target in targets() {
        assert!(!(target.seeds)().is_empty());
        run(target, 256).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Goal: the bound on memory notices a target that takes too much.
#[test]
fn the_bound_would_notice() {
    assert!(peak_of(|| drop(vec![0u8; 5 << 20])) >= 5 << 20);
    let greedy = Target { name: "greedy", run: |_| drop(vec![1u8; 16 << 20]), seeds: || vec![vec![1]], mend: None };
    assert!(run(&greedy, 1).unwrap_err().contains("bytes of memory"));
}
