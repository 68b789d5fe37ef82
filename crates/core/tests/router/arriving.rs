//! Large transactions that arrive in parts: who gets their bytes, who commits them, and who is told.

use crate::world::{fed, large, router_with, said, verdict, Here, ARRIVAL, PART, ZERO};
use onetrip_core::agent::{Role, ToPostgres, VerdictOutcome};
use onetrip_core::parts::PartSizes;
use onetrip_core::router::{AgentEvent, ConnId};
use onetrip_core::{Entry, LogIndex, NodeId, TxnId};
use std::sync::Arc;

/// Goal: one process commits an entry here, whichever it is and however it ends.  Method: the arrival worker has
/// written a transaction and gets its verdict; then its connection ends, with DONE before that or without.
#[test]
fn who_has_written_what_arrived_commits_it() {
    for is_done in [false, true] {
        let mut here = Here::new();
        here.decides(Entry::encode(&large(2, 1).0, &[], b"small"));
        assert_eq!(fed(&here.apply), [LogIndex(1)]);
        let (txn, raw) = large(2, 2);
        here.written(&raw);
        here.whole(&raw);
        assert_eq!(verdict(&here.arrival), (VerdictOutcome::Commit, LogIndex(4), LogIndex(1)));
        assert_eq!(said(&here.apply), []);
        // The apply worker gets what comes after it.
        here.decides(Entry::encode(&large(2, 3).0, &[], b"small"));
        assert_eq!(fed(&here.apply), [LogIndex(5)]);
        if is_done {
            here.handle(AgentEvent::Done { conn: ARRIVAL, txn });
        }
        here.handle(AgentEvent::Closed { conn: ARRIVAL });
        assert_eq!(said(&here.apply), if is_done { vec![] } else { vec![None] });
        assert_eq!(here.router.is_fed(), is_done);
        if !is_done {
            here.opens_as(ConnId(3), Role::ApplyWorker, LogIndex(1), here.apply.clone());
            here.apply.0.lock().unwrap().remove(0);
            assert_eq!(fed(&here.apply), [LogIndex(4), LogIndex(5)]);
        }
    }
}

/// Goal: a new connection of the arrival worker ends the old one, for which the same holds as if it had ended by
/// itself.
#[test]
fn another_connection_of_the_arrival_worker_ends_the_first() {
    let mut here = Here::new();
    let (_, raw) = large(2, 1);
    here.written(&raw);
    here.whole(&raw);
    said(&here.arrival);
    here.opens_as(ConnId(3), Role::ArrivalWorker, ZERO, Arc::default());
    assert_eq!((said(&here.arrival), said(&here.apply)), (vec![None], vec![None]));
}

/// Goal: what the arrival worker cannot commit the apply worker gets, and what does not commit nobody; the arrival
/// worker is told which.  Method: an arrival worker that has some of the bytes, one that has given up with some of them
/// or with all, and a transaction that loses.
#[test]
fn what_is_not_written_goes_to_the_apply_worker() {
    let cancelled = (VerdictOutcome::Cancelled, LogIndex(3), ZERO);

    let mut here = Here::new();
    let (txn, raw) = large(2, 1);
    here.wants(None, 0);
    here.part(&raw, 0);
    here.part(&raw, 1);
    assert_eq!(said(&here.arrival).len(), 1);
    here.whole(&raw);
    assert_eq!((verdict(&here.arrival), fed(&here.apply)), (cancelled, vec![LogIndex(3)]));
    here.handle(AgentEvent::Closed { conn: ARRIVAL });
    assert!(here.router.is_fed());

    let mut here = Here::new();
    here.written(&raw);
    here.is_done(txn, false);
    here.wants(None, 0);
    here.whole(&raw);
    assert_eq!((said(&here.arrival), fed(&here.apply)), (vec![], vec![LogIndex(3)]));

    // It had asked for more when it gave up.
    let mut here = Here::new();
    here.wants(None, 0);
    here.part(&raw, 0);
    assert_eq!(said(&here.arrival).len(), 1);
    here.wants(Some(txn), PART);
    here.is_done(txn, false);
    here.part(&raw, 1);
    here.whole(&raw);
    assert_eq!((said(&here.arrival), fed(&here.apply)), (vec![], vec![LogIndex(3)]));

    let mut here = Here::new();
    here.written(&raw);
    here.decides(Entry::encode_cancel(&txn));
    assert_eq!((verdict(&here.arrival), fed(&here.apply)), ((VerdictOutcome::Cancelled, ZERO, ZERO), vec![]));
}

/// Goal: an arrival worker that gives up while its verdict is on the way is not waited for.  Method: WRITTEN comes
/// after the verdict, of that transaction or of an earlier one.
#[test]
fn who_gives_up_after_the_verdict_is_closed() {
    for is_this_one in [true, false] {
        let mut here = Here::new();
        let (txn, raw) = large(2, 2);
        here.written(&raw);
        here.whole(&raw);
        said(&here.arrival);
        here.is_done(if is_this_one { txn } else { large(2, 1).0 }, false);
        let ends = || if is_this_one { vec![None] } else { vec![] };
        assert_eq!((said(&here.arrival), said(&here.apply)), (ends(), ends()));
        assert_eq!(here.router.is_fed(), !is_this_one);
    }
}

/// Goal: bytes are sent once and in order, and never all at once, so that the worker knows of the transaction before
/// there is a verdict about it.
#[test]
fn what_has_arrived_is_sent_bit_by_bit() {
    let mut here = Here::new();
    let (txn, raw) = large(2, 1);
    here.part(&raw, 0);
    here.part(&raw, 1);
    here.wants(None, 1);
    here.wants(Some(txn), PART);
    assert_eq!(said(&here.arrival), []);
    here.wants(None, 0);
    let of = |from: usize, to: usize| {
        let (total, bytes) = (raw.len() as u64, raw.slice(from..to));
        Some(ToPostgres::Arriving { txn, total, from: from as u64, bytes })
    };
    assert_eq!(said(&here.arrival), [of(0, PART)]);
    here.wants(Some(txn), PART + 1);
    assert_eq!(said(&here.arrival), []);
    here.wants(Some(txn), PART);
    assert_eq!(said(&here.arrival), [of(PART, 2 * PART)]);
    here.wants(Some(txn), 2 * PART);
    here.whole(&raw);
    assert_eq!(verdict(&here.arrival), (VerdictOutcome::Commit, LogIndex(3), ZERO));
}

/// Goal: the arrival worker holds nothing that will not be decided.  Method: the PostgreSQL that a transaction comes
/// from starts anew while that arrives; then comes another transaction.
#[test]
fn what_will_not_arrive_is_let_go() {
    let mut here = Here::new();
    here.decides(Entry::encode_incarnation(NodeId(2), 1, 0));
    let (txn, raw) = large(2, 1);
    here.wants(None, 0);
    here.part(&raw, 0);
    here.wants(Some(txn), PART);
    said(&here.arrival);
    here.decides(Entry::encode_incarnation(NodeId(2), 2, 1));
    assert_eq!(verdict(&here.arrival), (VerdictOutcome::Cancelled, ZERO, ZERO));
    here.wants(None, 0);
    let (txn, raw) = (TxnId { incarnation: 2, ..txn }, large(2, 1).1);
    let raw = Entry::encode(&txn, &[], &Entry::decode(raw).unwrap().write_set);
    here.part(&raw, 0);
    let Some(Some(ToPostgres::Arriving { txn: sent, from: 0, .. })) = said(&here.arrival).pop() else {
        panic!("nothing is sent")
    };
    assert_eq!(sent, txn);
}

/// Goal: a session has written what comes from here, and nobody else does.  What is too small is not written early.
#[test]
fn own_and_small_transactions_are_not_written_early() {
    let (_, raw) = large(1, 1);
    let mut here = Here::new();
    here.wants(None, 0);
    assert_eq!((here.part(&raw, 0), here.part(&raw, 1)), (None, None));
    here.whole(&raw);
    assert_eq!((said(&here.arrival), fed(&here.apply)), (vec![], vec![LogIndex(3)]));

    let (txn, raw) = large(2, 1);
    let mut here = Here::new();
    let sizes = PartSizes { written_early: raw.len() + 1, ..PartSizes::default() };
    here.router = router_with(sizes);
    here.opens(Role::ApplyWorker);
    here.opens(Role::ArrivalWorker);
    here.wants(None, 0);
    let notice = Entry::encode_part(&txn, raw.len(), 1, b"");
    assert_eq!((here.part(&raw, 0), here.part(&raw, 1)), (None, Some(notice)));
    here.whole(&raw);
    assert_eq!((said(&here.arrival), fed(&here.apply)), (vec![], vec![LogIndex(3)]));
}

/// Goal: what is left out is not committed by the arrival worker, which then has to begin anew.  Method: an entry
/// leaves out the one that it is to commit, or another one.
#[test]
fn what_is_left_out_is_taken_back_from_the_arrival_worker() {
    for left_out in [1, 4] {
        let mut here = Here::new();
        let small = Entry::encode(&large(2, 1).0, &[], b"small");
        here.decides(small.clone());
        let (_, raw) = large(2, 2);
        here.written(&raw);
        here.whole(&raw);
        assert_eq!((verdict(&here.arrival).1, fed(&here.apply)), (LogIndex(4), vec![LogIndex(1)]));
        let entry = Entry::decode(if left_out == 1 { small } else { raw }).unwrap();
        here.decides(entry.encode_skip(LogIndex(left_out)));
        assert_eq!(said(&here.arrival), if left_out == 4 { vec![None] } else { vec![] });
        // It has been sent the one, and is to get the other.
        assert_eq!(said(&here.apply), [None]);
    }
}
