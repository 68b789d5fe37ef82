//! Each anomaly in the smallest history that has it, and the most similar history that has none.
//!
//! A line is a transaction: `process from-to level outcome ops`, in which `1+10` appends 10 to list 1 and `1=10,11`
//! reads it.  The level is `rc`, `rr`, `ser` or `fresh` (`rr` that reads fresh); the outcome is `ok`, `found`, `abort`
//! or `?`.  `rest region ops` is what a region shows at the end.

use onetrip_checker::{ClientOutcome, Findings, History, Key, Kind, Level, Op, Process, Time, Txn, Value};

fn op(text: &str) -> Op {
    let number = |s: &str| s.parse::<u64>().unwrap();
    if let Some((key, value)) = text.split_once('+') {
        return Op::Append { key: Key(number(key)), value: Value(number(value)) };
    }
    let (key, list) = text.split_once('=').unwrap();
    let list = list.split(',').filter(|v| !v.is_empty()).map(|v| Value(number(v))).collect();
    Op::Read { key: Key(number(key)), list }
}

fn check(text: &str) -> Findings {
    let mut history = History::default();
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[0] == "rest" {
            let lists = words[2..].iter().map(|w| match op(w) {
                Op::Read { key, list } => (key, list),
                other => panic!("{other:?} at rest"),
            });
            history.at_rest(words[1].into(), lists.collect());
            continue;
        }
        let (from, to) = words[1].split_once('-').unwrap();
        history.push(Txn {
            process: Process(words[0].parse().unwrap()),
            region: "eu".into(),
            level: match words[2] {
                "rc" => Level::ReadCommitted,
                "ser" => Level::Serializable,
                _ => Level::RepeatableRead,
            },
            invoked: Time(from.parse().unwrap()),
            completed: Time(to.parse().unwrap()),
            outcome: match words[3] {
                "ok" => ClientOutcome::Committed,
                "found" => ClientOutcome::FoundCommitted,
                "abort" => ClientOutcome::Aborted,
                "?" => ClientOutcome::Unknown,
                other => panic!("outcome {other}"),
            },
            fresh: words[2] == "fresh",
            ops: words[4..].iter().map(|w| op(w)).collect(),
        });
    }
    history.check()
}

#[track_caller]
fn clean(text: &str) {
    let findings = check(text);
    assert!(findings.is_clean(), "{findings}");
}

/// These kinds are found and no others.
#[track_caller]
fn finds(text: &str, kinds: &[Kind]) -> String {
    let findings = check(text);
    let found: Vec<Kind> = findings.counts.keys().copied().collect();
    let mut kinds = kinds.to_vec();
    kinds.sort_unstable();
    assert_eq!(found, kinds, "{findings}");
    findings.to_string()
}

#[test]
fn writes_in_opposite_orders_are_g0() {
    let text = finds("1 0-9 rc ok 1+10 2+20\n2 0-9 rc ok 1+11 2+21\n3 10-19 rc ok 1=10,11 2=21,20", &[Kind::G0]);
    assert!(text.contains("T1 appended 10 to list 1, T2 then appended 11 (ww)"), "{text}");
    assert!(text.contains("T2 appended 21 to list 2, T1 then appended 20 (ww)"), "{text}");
    clean("1 0-9 rc ok 1+10 2+20\n2 0-9 rc ok 1+11 2+21\n3 10-19 rc ok 1=10,11 2=20,21");
}

#[test]
fn reading_an_aborted_append_is_g1a() {
    let text = finds("1 0-9 rr abort 1+10\n2 0-9 rr ok 1=10", &[Kind::G1a]);
    assert!(text.contains("T2 read 10 in list 1, appended by T1 (process 1, eu), which aborted"), "{text}");
    clean("1 0-9 rr abort 1+10 1=10\n2 0-9 rr ok 1=");
}

#[test]
fn an_unknown_outcome_may_be_either() {
    clean("1 0-9 rr ? 1+10\n2 0-9 rr ok 1=10");
    clean("1 0-9 rr ? 1+10\n2 0-9 rr ok 1=");
    clean("1 0-9 rr ? 1+10\nrest eu");
    // If any of it was seen, all of it has committed.
    finds("1 0-9 rr ? 1+10 2+20\n2 0-9 rr ok 1=10 2=", &[Kind::GSingle]);
    finds("1 0-9 rr ? 1+10 2+20\nrest eu 1=10", &[Kind::LostAppend, Kind::GSingle]);
}

#[test]
fn reading_the_middle_of_a_transaction_is_g1b() {
    finds("1 0-9 rc ok 1+10 1+11\n2 0-9 rc ok 1=10\n3 10-19 rc ok 1=10,11", &[Kind::G1b, Kind::GSingle]);
    clean("1 0-9 rc ok 1+10 1=10 1+11\n2 0-9 rc ok 1=\n3 10-19 rc ok 1=10,11");
}

#[test]
fn two_that_saw_each_other_are_g1c() {
    let text = finds("1 0-9 rc ok 1+10 2=20\n2 0-9 rc ok 2+20 1=10", &[Kind::G1c]);
    assert!(text.contains("T2 read 10 in list 1, which T1 appended (wr)"), "{text}");
    // Through the statements of READ COMMITTED: T1 read after it wrote, yet what it read depends on that write.
    finds("1 0-9 rc ok 1+10 2=20\n2 0-9 rc ok 1=10\n2 10-19 rc ok 2+20", &[Kind::G1c]);
}

#[test]
fn read_skew_is_for_repeatable_read_only() {
    let with = |level| format!("1 0-9 rr ok 1+10 2+20\n2 0-9 {level} ok 1= 2=20");
    let text = finds(&with("rr"), &[Kind::GSingle]);
    assert!(text.contains("T2 read list 1 without 10, which T1 appended (rw)"), "{text}");
    clean(&with("rc"));
    // A later statement sees no less than an earlier one.
    finds("1 0-9 rr ok 1+10 2+20\n2 0-9 rc ok 2=20 1=", &[Kind::GSingle]);
}

#[test]
fn a_transaction_that_aborted_had_a_snapshot_too() {
    finds("1 0-9 rr ok 1+10 2+20\n2 0-9 rr abort 1= 2=20", &[Kind::GSingle]);
}

#[test]
fn a_lost_update_is_for_repeatable_read_only() {
    let with = |level| format!("1 0-9 {level} ok 1= 1+10\n2 0-9 {level} ok 1= 1+11\n3 10-19 rr ok 1=10,11");
    finds(&with("rr"), &[Kind::LostUpdate]);
    clean(&with("rc"));
}

#[test]
fn write_skew_is_allowed_unless_all_of_it_is_serializable() {
    let with = |one, other, outcome| {
        format!("1 0-9 {one} ok 1= 2+20\n2 0-9 {other} {outcome} 2= 1+10\n3 10-19 rr ok 1=10 2=20")
    };
    for (one, other) in [("rr", "rr"), ("rr", "ser"), ("ser", "rc")] {
        clean(&with(one, other, "ok"));
    }
    for outcome in ["ok", "found", "?"] {
        let text = finds(&with("ser", "ser", outcome), &[Kind::G2]);
        assert!(text.contains("T1 read list 1 without 10, which T2 appended (rw)"), "{text}");
    }
    clean("1 0-9 ser ok 1= 2+20\n2 0-9 ser abort 2= 1+10\n3 10-19 rr ok 1= 2=20");
}

#[test]
fn a_reader_can_make_a_cycle_of_what_is_none_without_it() {
    // T1 does not see T2; T3 sees T2 and not T1.
    let with =
        |reader| format!("1 0-9 ser ok 1= 2+20\n2 0-9 ser ok 1+10\n3 0-9 {reader} ok 1=10 2=\n4 10-19 rr ok 1=10 2=20");
    finds(&with("ser"), &[Kind::G2]);
    clean(&with("rr"));
}

#[test]
fn readers_that_see_two_writes_in_opposite_order_are_a_long_fork() {
    let with =
        |level| format!("1 0-9 rr ok 1+10\n2 0-9 rr ok 2+20\n3 0-9 {level} ok 1=10 2=\n4 0-9 {level} ok 2=20 1=");
    let text = finds(&with("rr"), &[Kind::LongFork]);
    assert!(text.contains("a cycle of 4 transactions"), "{text}");
    // Under READ COMMITTED too, because a later statement sees no less than an earlier one of its transaction.
    finds(&with("rc"), &[Kind::LongFork]);
    clean("1 0-9 rr ok 1+10\n2 0-9 rr ok 2+20\n3 0-9 rc ok 1=10 2=\n4 0-9 rc ok 1= 2=20\n");
}

#[test]
fn a_circle_with_rw_edges_apart_is_g_sib() {
    // Like the long fork, with one more transaction on the way.
    let text = "1 0-9 rr ok 1+10\n2 0-9 rr ok 2+20\n3 0-9 rr ok 1=10 2=\n4 0-9 rr ok 2=20 3+30\n5 0-9 rr ok 3=30 1=";
    finds(text, &[Kind::GSIb]);
}

#[test]
fn a_process_sees_what_was_acknowledged_to_it() {
    let with = |outcome| format!("1 0-9 rr {outcome} 1+10\n1 10-19 rr ok 1=\n2 20-29 rr ok 1=10");
    let text = finds(&with("ok"), &[Kind::GSingle]);
    assert!(text.contains("T2 ran after T1 in process 1 (session)"), "{text}");
    clean(&with("found"));
    clean(&with("?"));
    // Nor does a process go back to an older state.
    finds("1 0-9 rr ok 1+10\n2 0-9 rr ok 1=10\n2 10-19 rr ok 1=", &[Kind::GSingle]);
}

#[test]
fn a_fresh_read_sees_what_was_acknowledged_anywhere() {
    let with = |level| format!("1 0-9 rr ok 1+10\n2 10-19 {level} ok 1=\n3 10-29 rr ok 1=10");
    let text = finds(&with("fresh"), &[Kind::StaleRead]);
    assert!(text.contains("T1 was acknowledged before T2, which reads fresh, began (real time)"), "{text}");
    clean(&with("rr"));
    // The append was still running when the fresh read began.
    clean("1 0-10 rr ok 1+10\n2 10-19 fresh ok 1=\n3 10-29 rr ok 1=10");
    // Nobody has seen the append at all.
    finds("1 0-9 rr ok 1+10\n2 10-19 fresh ok 1=", &[Kind::StaleRead]);
    // Another transaction had already seen the append.
    finds("1 0-99 rr ok 1+10\n2 0-9 rr ok 1=10\n3 10-19 fresh ok 1=", &[Kind::StaleRead]);
    // With other fresh reads that began in between.
    finds("1 0-9 rr ok 1+10\n3 10-19 fresh ok 1=10\n4 11-19 fresh ok 2=\n5 20-29 fresh ok 1=", &[Kind::StaleRead]);
}

#[test]
fn writes_follow_real_time() {
    finds("1 0-9 rr ok 1+10\n2 10-19 rr ok 1+11\n3 20-29 rr ok 1=11,10", &[Kind::WriteOrder]);
    clean("1 0-10 rr ok 1+10\n2 10-19 rr ok 1+11\n3 20-29 rr ok 1=11,10");
}

#[test]
fn lists_speak_for_themselves() {
    finds("1 0-9 rr ok 1=7", &[Kind::Garbage]);
    finds("1 0-9 rr ok 1+10\n2 0-9 rr ok 1=10,10", &[Kind::DuplicateAppend]);
    finds("1 0-9 rr ok 1+10\n2 0-9 rr ok 1+11\n3 10-19 rr ok 1=10\n4 10-19 rr ok 1=11,10", &[Kind::Incompatible]);
    finds("1 0-9 rr ok 1+10 1+11\n2 10-19 rr ok 1=11,10", &[Kind::G1b, Kind::Incompatible]);
    finds("1 0-9 rr ok 1+10\n2 0-9 rr ok 1+10", &[Kind::Malformed]);
    finds("1 0-9 rr ok 1=\n1 5-12 rr ok 1=", &[Kind::Malformed]);
}

#[test]
fn a_transaction_sees_its_own_appends() {
    finds("1 0-9 rc ok 1+10 1=", &[Kind::Internal]);
    finds("1 0-9 rr ok 1+10\n2 0-9 rr ok 1= 1=10", &[Kind::Internal, Kind::GSingle]);
    clean("1 0-9 rr ok 1+10\n2 0-9 rc ok 1= 1=10 1+11 1=10,11");
    // A transaction whose later appends nobody has read is not a cycle of one.
    clean("1 0-9 rr ok 1= 1+10 1=10 1+11 2+20\n2 10-19 rr ok 2=20");
}

#[test]
fn what_committed_is_there_at_the_end_in_every_region() {
    clean("1 0-9 rr ok 1+10 2+20\nrest eu 1=10 2=20\nrest us 1=10 2=20");
    let text = finds("1 0-9 rr ok 1+10 2+20\nrest eu 1=10 2=20\nrest us 1=10", &[Kind::LostAppend, Kind::GSingle]);
    assert!(text.contains("at the end, list 2 lacks [20] in us"), "{text}");
    let text = finds("1 0-9 rr found 1+10\nrest eu\nrest us", &[Kind::LostAppend]);
    assert!(text.contains("T1 (process 1, eu) appended 10 to list 1: it is gone"), "{text}");
    finds("1 0-9 rr abort 1+10\nrest eu 1=10", &[Kind::G1a]);
}
