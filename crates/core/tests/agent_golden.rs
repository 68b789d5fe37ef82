//! Both directions of the agent protocol against the bytes that the C tests read too (`testdata/agent/`).

use bytes::{Bytes, BytesMut};
use onetrip_core::agent::*;
use onetrip_core::row_locks::{LockAsk, LockSaid, KEYS_MAX};
use onetrip_core::{Base, Entry, Key, LockMode, LogIndex, NodeId, RegionId, TxnId};
use std::path::PathBuf;

const TXN: TxnId = TxnId { node: NodeId(2), incarnation: 0x1122_3344_5566_7788, sequence: 77 };
const WRITE_SET: &[u8] = &[2, 0x52, 1, 2, 0xff];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/agent")
}

fn golden(name: &str) -> Bytes {
    let text = std::fs::read_to_string(folder().join(format!("{name}.hex"))).unwrap();
    let digits: String = text.lines().map(|l| l.split('#').next().unwrap()).collect();
    let digits: Vec<u32> = digits.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).unwrap()).collect();
    assert_eq!(digits.len() % 2, 0);
    digits.chunks(2).map(|d| (d[0] * 16 + d[1]) as u8).collect()
}

fn one_frame(raw: &Bytes) -> Bytes {
    let mut buf = BytesMut::from(&raw[..]);
    let frame = take_frame(&mut buf).unwrap().expect("a whole frame");
    assert!(buf.is_empty());
    frame
}

fn from_postgres() -> Vec<(&'static str, FromPostgres)> {
    let hello = |role, pid, applied, durable| {
        let (applied, durable) = (LogIndex(applied), LogIndex(durable));
        FromPostgres::Hello(Hello { version: 2, role, pid, incarnation: TXN.incarnation, applied, durable })
    };
    let keys = [
        Key { hash: 0xdead_beef_cafe_f00d, mode: LockMode::KeyShare, base: Base(0) },
        Key { hash: 1, mode: LockMode::Share, base: Base(1000) },
        Key { hash: 1 << 63, mode: LockMode::NoKeyUpdate, base: Base(1001) },
        Key { hash: u64::MAX, mode: LockMode::Update, base: Base(0x0102_0304_0506_0708) },
    ];
    vec![
        ("hello_backend", hello(Role::Backend, 4242, TAKES_TIMES, 0)),
        ("hello_apply_worker", hello(Role::ApplyWorker, 4243, 1000, 990)),
        ("hello_arrival_worker", hello(Role::ArrivalWorker, 4244, 0, 0)),
        ("more", FromPostgres::More { txn: Some(TXN), from: 131_072 }),
        ("more_of_next", FromPostgres::More { txn: None, from: 0 }),
        ("written", FromPostgres::Written { txn: TXN, kept: true }),
        ("written_given_up", FromPostgres::Written { txn: TXN, kept: false }),
        ("propose", FromPostgres::Propose(Entry::encode(&TXN, &keys, WRITE_SET))),
        ("propose_empty", FromPostgres::Propose(Entry::encode(&TXN, &[], b""))),
        ("outcome", FromPostgres::Outcome(TXN)),
        ("position", FromPostgres::Position { applied: LogIndex(1000), durable: LogIndex(990) }),
        ("done", FromPostgres::Done(TXN)),
        ("settle", FromPostgres::Settle(TXN)),
        ("look", FromPostgres::Look { number: 8 }),
        ("read", FromPostgres::Read { number: 7, may_ask: true }),
        ("read_alone", FromPostgres::Read { number: 7, may_ask: false }),
        ("await", FromPostgres::Await { at: LogIndex(1006) }),
        (
            "lock",
            FromPostgres::Lock {
                table: "public.t".into(),
                ask: LockAsk {
                    txn: TXN,
                    number: 3,
                    waits: true,
                    keys: vec![(0xdead_beef_cafe_f00d, LockMode::NoKeyUpdate), (1, LockMode::Share)],
                },
            },
        ),
        ("unlock", FromPostgres::Unlock { txn: TXN, from: 3 }),
        ("stuck", FromPostgres::Stuck { at: LogIndex(1001), message: "role \"nowhere\" does not exist".into() }),
        (
            "rehearse",
            FromPostgres::Rehearse {
                txn: TXN,
                rehearsal: Rehearsal {
                    base: LogIndex(1000),
                    timeout_ms: 2000,
                    lock_timeout_ms: 100,
                    write_set: Bytes::from_static(WRITE_SET),
                },
            },
        ),
    ]
}

fn to_postgres() -> Vec<(&'static str, ToPostgres)> {
    let verdict = |outcome, at, other, key, region: &str, message: &str| {
        ToPostgres::Verdict(VerdictFrame {
            txn: TXN,
            outcome,
            at: LogIndex(at),
            other: LogIndex(other),
            key,
            region: region.into(),
            message: message.into(),
            times: None,
        })
    };
    let in_time = |frame| match frame {
        ToPostgres::Verdict(verdict) => {
            let times = Some(WayTimes { replicate_us: 80_123, certify_us: 45 });
            ToPostgres::Verdict(VerdictFrame { times, ..verdict })
        }
        other => other,
    };
    let refused = "entry is 300000000 bytes, limit 268435456 \u{2013} split it";
    let outcome_is = |state, at| ToPostgres::OutcomeIs { txn: TXN, state, at: LogIndex(at) };
    let skip = |at, previous, flags, write_set: &'static [u8]| ToPostgres::Entry {
        at: LogIndex(at),
        previous: LogIndex(previous),
        flags,
        region: "us-west-2".into(),
        txn: TxnId { node: NodeId(3), incarnation: 10, sequence: 1 },
        write_set: Bytes::from_static(write_set),
    };
    let region = RegionId::from("us-east-2");
    let locked = |said, region: &str| ToPostgres::Locked { number: 3, said, asked: true, region: region.into() };
    vec![
        ("welcome", ToPostgres::Welcome { version: 2, node: NodeId(2), region, committed: LogIndex(1005) }),
        ("verdict_commit", verdict(VerdictOutcome::Commit, 1006, 1004, NO_KEY, "us-east-2", "us-east-2, eu")),
        (
            "verdict_commit_times",
            in_time(verdict(VerdictOutcome::Commit, 1006, 1004, NO_KEY, "us-east-2", "us-east-2, eu")),
        ),
        ("verdict_conflict", verdict(VerdictOutcome::Conflict, 1006, 1003, 3, "us-west-2", "")),
        ("verdict_window", verdict(VerdictOutcome::Window, 1006, 900, 0, "us-east-2", "")),
        ("verdict_refused", verdict(VerdictOutcome::Refused, 0, 0, NO_KEY, "us-east-2", refused)),
        ("verdict_cancelled", verdict(VerdictOutcome::Cancelled, 1006, 0, NO_KEY, "us-east-2", "")),
        ("verdict_full", verdict(VerdictOutcome::Full, 0, 0, NO_KEY, "us-east-2", "no room")),
        ("verdict_reserved", verdict(VerdictOutcome::Reserved, 1006, 1003, 3, "us-west-2", "")),
        ("verdict_held", verdict(VerdictOutcome::Held, 1006, 1003, 3, "us-west-2", "")),
        ("verdict_by_worker", verdict(VerdictOutcome::ByWorker, 1006, 1004, NO_KEY, "us-east-2", "us-east-2, eu")),
        ("outcome_is_not_so_far", outcome_is(OutcomeState::NotSoFar, 0)),
        ("read_at", ToPostgres::ReadAt { number: 7, at: LogIndex(1200), asked: Asked::Others }),
        ("read_at_not_yet", ToPostgres::ReadAt { number: 7, at: LogIndex::ZERO, asked: Asked::NotYet }),
        ("seen", ToPostgres::Seen { number: 8, cluster: Bytes::from_static(b"{\"schema\":1}") }),
        ("locked", locked(LockSaid::Granted { at: LogIndex(1006) }, "")),
        ("locked_busy", locked(LockSaid::Busy { other: TXN }, "eu")),
        ("locked_deadlock", locked(LockSaid::Deadlock { other: TXN }, "eu")),
        ("locked_no_table", locked(LockSaid::NoTable, "")),
        (
            "arriving",
            ToPostgres::Arriving { txn: TXN, total: 300_000, from: 131_072, bytes: Bytes::from_static(WRITE_SET) },
        ),
        ("shown", ToPostgres::Shown { at: LogIndex(1006), missing: String::new() }),
        ("shown_missing", ToPostgres::Shown { at: LogIndex(1006), missing: "\"eu\" is away".into() }),
        ("outcome_is_committed", outcome_is(OutcomeState::Committed, 1006)),
        ("outcome_is_aborted", outcome_is(OutcomeState::Aborted, 1006)),
        ("outcome_is_older_than_kept", outcome_is(OutcomeState::OlderThanKept, 0)),
        ("outcome_is_left_out", outcome_is(OutcomeState::LeftOut, 1008)),
        ("outcome_is_prepared", outcome_is(OutcomeState::Prepared, 1006)),
        (
            "entry",
            ToPostgres::Entry {
                at: LogIndex(1007),
                previous: LogIndex(1006),
                flags: EntryFlags::default(),
                region: "us-west-2".into(),
                txn: TxnId { node: NodeId(3), incarnation: 10, sequence: 1 },
                write_set: Bytes::from_static(WRITE_SET),
            },
        ),
        ("rehearsed", ToPostgres::Rehearsed { txn: TXN, failure: None, untried: "us-west-2 (away)".into() }),
        (
            "rehearsed_failed",
            ToPostgres::Rehearsed {
                txn: TXN,
                failure: Some((
                    "us-west-2".into(),
                    Failure {
                        at: LogIndex(1001),
                        sqlstate: "0A000".into(),
                        message: "extension \"x\" is not available".into(),
                        detail: "d".into(),
                        hint: "h".into(),
                        context: "c".into(),
                    },
                )),
                untried: String::new(),
            },
        ),
        ("entry_left_out", skip(1007, 1006, EntryFlags { left_out: true, leaves_out: false }, b"")),
        (
            "entry_leaves_out",
            skip(1008, 1007, EntryFlags { left_out: false, leaves_out: true }, &[0xef, 3, 0, 0, 0, 0, 0, 0]),
        ),
    ]
}

#[test]
fn frames_from_postgres_are_the_golden_bytes_both_ways() {
    for (name, value) in from_postgres() {
        let raw = golden(name);
        assert_eq!(value.encode(), raw, "encoding {name}");
        assert_eq!(FromPostgres::decode(one_frame(&raw)).unwrap(), value, "decoding {name}");
    }
}

#[test]
fn frames_to_postgres_are_the_golden_bytes_both_ways() {
    for (name, value) in to_postgres() {
        let raw = golden(name);
        assert_eq!(value.encode(), raw, "encoding {name}");
        assert_eq!(ToPostgres::decode(one_frame(&raw)).unwrap(), value, "decoding {name}");
    }
}

#[test]
fn every_golden_file_is_read_by_a_test_here() {
    let mut known: Vec<_> = from_postgres().iter().map(|x| x.0).chain(to_postgres().iter().map(|x| x.0)).collect();
    let mut there: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .filter_map(|f| f.unwrap().file_name().to_str()?.strip_suffix(".hex").map(str::to_owned))
        .collect();
    known.sort_unstable();
    there.sort_unstable();
    assert_eq!(known, there);
}

/// Cutting a good frame's body short anywhere, or adding a byte, is an error, except where a write set may have any
/// length; a VERDICT without its times is a good one.
#[test]
fn a_cut_or_padded_frame_is_an_error() {
    let open_ended =
        ["propose", "propose_empty", "entry", "entry_left_out", "entry_leaves_out", "rehearse", "seen", "arriving"];
    let all = from_postgres().into_iter().map(|(n, f)| (n, f.encode(), true));
    let all = all.chain(to_postgres().into_iter().map(|(n, f)| (n, f.encode(), false)));
    let without_times = one_frame(&golden("verdict_commit"));
    for (name, raw, from_pg) in all.filter(|x| !open_ended.contains(&x.0)) {
        let body = one_frame(&raw);
        let padded: Bytes = body.iter().copied().chain([0]).collect();
        for bad in (0..body.len()).map(|n| body.slice(..n)).chain([padded]) {
            if bad == without_times {
                assert_eq!(name, "verdict_commit_times");
                continue;
            }
            let failed = if from_pg { FromPostgres::decode(bad).is_err() } else { ToPostgres::decode(bad).is_err() };
            assert!(failed, "{name}");
        }
    }
}

#[test]
fn a_frame_length_of_zero_or_above_one_gibibyte_is_an_error() {
    for length in [0u32, (1 << 30) + 1, u32::MAX] {
        assert!(take_frame(&mut BytesMut::from(&length.to_le_bytes()[..])).is_err());
    }
    assert!(take_frame(&mut BytesMut::from(&[5u8, 0, 0][..])).unwrap().is_none());
}

/// A node takes a longer frame for garbage and closes the connection, and the session would ask again without end.
#[test]
fn the_largest_frame_of_each_type_is_within_its_bound() {
    let keys = vec![(u64::MAX, LockMode::Update); KEYS_MAX];
    // Two names of 63 bytes.
    let longest = "x".repeat(2 * 63 + 1);
    let lock = FromPostgres::Lock { ask: LockAsk { txn: TXN, number: u64::MAX, waits: true, keys }, table: longest };
    let stuck = FromPostgres::Stuck { at: LogIndex(u64::MAX), message: "x".repeat(255) };
    let all = from_postgres().into_iter().map(|(_, frame)| frame).chain([lock, stuck]);
    for frame in all {
        let raw = one_frame(&frame.encode());
        assert!(raw.len() <= bytes_max(raw[0]), "a frame of type 0x{:02x} has {} bytes", raw[0], raw.len());
    }
}
