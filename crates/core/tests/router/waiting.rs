//! Large transactions that go out: who is waited for, how long, and who says that it need not be.

use crate::world::{large, said, Here, Wire, ARRIVAL, PART, ZERO};
use bytes::Bytes;
use onetrip_core::agent::{Role, ToPostgres, VerdictOutcome};
use onetrip_core::certifier::Outcome;
use onetrip_core::parts::{Arriving, PartSizes, Progress};
use onetrip_core::router::{AgentEvent, ConnId};
use onetrip_core::{Base, Entry, Key, LockMode, LogIndex, MemberRole, Members, NodeId};
use std::sync::Arc;
use std::time::Duration;

/// Goal: the origin's node hears that this server need not be waited for once it need not, even if a proposal is lost.
#[test]
fn that_a_server_need_not_be_waited_for_is_proposed_once_it_is_so() {
    let (txn, raw) = large(2, 1);
    let notice = Some(Entry::encode_part(&txn, raw.len(), 1, b""));
    for kept in [true, false] {
        let mut here = Here::new();
        here.wants(None, 0);
        here.part(&raw, 0);
        assert_eq!(here.wants(Some(txn), PART), None);
        if !kept {
            assert_eq!(here.is_done(txn, kept), None, "it is not whole");
            assert_eq!(here.part(&raw, 1), notice);
        } else {
            assert_eq!(here.part(&raw, 1), None, "it is not written");
            assert_eq!(here.is_done(txn, kept), notice);
        }
        here.tick += 49;
        assert_eq!(here.feeds(), None);
        here.tick += 1;
        assert_eq!(here.feeds(), notice);
        assert_eq!(here.feeds(), None);
        // Nobody took it.
        here.router.not_taken(notice.as_ref().unwrap(), here.tick);
        here.tick += 4;
        assert_eq!(here.feeds(), None);
        here.tick += 1;
        assert_eq!(here.feeds(), notice);
        // Its way into the log, which another node's notice has taken before.
        let of = |node| Entry::encode_part(&txn, raw.len(), node, b"");
        here.tick += 50;
        assert_eq!(here.decides(of(2)), notice);
        here.tick += 50;
        assert_eq!(here.decides(of(1)), None);
        let arriving = here.certifier.arriving().unwrap();
        assert_eq!([1, 2, 3].map(|node| arriving.is_written(NodeId(node))), [true, true, false]);
    }

    // Nobody is there who could write it.
    let mut here = Here::new();
    here.handle(AgentEvent::Closed { conn: ARRIVAL });
    assert_eq!((here.part(&raw, 0), here.part(&raw, 1)), (None, notice));

    // Nobody waits for a witness.
    let mut here = Here::new();
    let mut members = Members::clone(&here.members);
    members.members[0].role = MemberRole::Witness;
    here.members = Arc::new(members);
    here.handle(AgentEvent::Closed { conn: ARRIVAL });
    assert_eq!((here.part(&raw, 0), here.part(&raw, 1)), (None, None));
}

/// Goal: a large transaction waits for the servers that write it while it arrives, and not for ever.
#[test]
fn the_end_of_a_large_transaction_waits_for_those_who_write_it() {
    let (txn, raw) = large(1, 1);
    let sizes = PartSizes { whole_max: 10, part: PART, under_way: 1 << 20, written_early: 0 };
    let arrived = || {
        let mut arriving = Arriving::new(txn);
        for (at, from) in [(1, 0), (2, PART)] {
            let part = Entry::encode_part(&txn, raw.len(), from, &raw[from..raw.len().min(from + PART)]);
            assert!(arriving.add(LogIndex(at), &Entry::decode(part).unwrap()));
        }
        arriving
    };
    let note = |arriving: &mut Arriving, node| {
        let notice = arriving.encode_written(NodeId(node));
        arriving.note_written(&Entry::decode(notice).unwrap());
    };
    let whole = [Entry::encode_whole(&txn, crc32fast::hash(&raw), &[LogIndex(1), LogIndex(2)])];
    let (ms, servers) = (Duration::from_millis, [NodeId(2), NodeId(3)]);

    let (mut arriving, mut progress) = (arrived(), Progress::new(&sizes, None));
    assert!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(500), &servers).is_empty());
    note(&mut arriving, 3);
    assert!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(600), &servers).is_empty());
    note(&mut arriving, 2);
    assert_eq!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(700), &servers), whole);
    assert!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(800), &servers).is_empty(), "once is enough");
    progress.again();
    assert_eq!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(900), &servers), whole);

    // Those who say nothing are waited for from when all is there, however often it is proposed again.
    let (arriving, mut progress) = (arrived(), Progress::new(&sizes, None));
    assert_eq!(progress.next(&txn, &raw, None, &sizes, ms(0), &servers).len(), 2);
    assert!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(5_000), &servers).is_empty());
    progress.again();
    assert!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(5_999), &servers).is_empty());
    assert_eq!(progress.late, []);
    assert_eq!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(6_000), &servers), whole);
    assert_eq!(progress.late, servers);

    // Nobody is waited for who is away, nor for what is too small or has been proposed before.
    let mut progress = Progress::new(&sizes, Some(raw.len()));
    assert_eq!(progress.next(&txn, &raw, Some(&arrived()), &sizes, ms(0), &servers), whole);
    let mut progress = Progress::new(&sizes, None);
    assert_eq!(progress.next(&txn, &raw, Some(&arrived()), &sizes, ms(0), &[]), whole);
    let (mut progress, sizes) = (Progress::new(&sizes, None), PartSizes { written_early: raw.len() + 1, ..sizes });
    assert_eq!(progress.next(&txn, &raw, Some(&arrived()), &sizes, ms(0), &servers), whole);
}

/// Goal: who was waited for in vain delays no other transaction for a minute.  Method: node 2 never says anything.
#[test]
fn who_was_waited_for_in_vain_is_not_waited_for_again() {
    let mut here = Here::new();
    here.opens_as(ConnId(3), Role::Backend, ZERO, Arc::default());
    for (n, waits) in [(1, true), (2, false), (3, true)] {
        let (txn, raw) = large(1, n);
        let propose = AgentEvent::Propose { conn: ConnId(3), txn, raw: raw.clone(), permit: None };
        assert_eq!(here.handle(propose), None);
        let parts = here.parts();
        assert_eq!(parts.len(), 2);
        parts.into_iter().for_each(|part| assert_eq!(here.decides(part), None));
        let mut whole = here.parts();
        if waits {
            assert_eq!(whole, [] as [Bytes; 0]);
            here.now += Duration::from_secs(1);
            whole = here.parts();
        }
        here.decides(whole.remove(0));
        here.shows(3 * n);
        here.tick += 2_999 * u64::from(n > 1) + 1;
    }
}

/// Goal: nobody is waited for while the server here does not get on, for which the session that waits may be the
/// reason. Method: nothing happens for long; then something is committed, and the server shows it or not.
#[test]
fn a_server_that_does_not_get_on_waits_for_nobody() {
    for gets_on in [true, false] {
        let mut here = Here::new();
        here.opens_as(ConnId(3), Role::Backend, ZERO, Arc::default());
        here.decides(Entry::encode(&large(2, 1).0, &[], b""));
        here.shows(1);
        let (txn, raw) = large(1, 1);
        here.handle(AgentEvent::Propose { conn: ConnId(3), txn, raw, permit: None });
        here.parts().into_iter().for_each(|part| assert_eq!(here.decides(part), None));
        here.tick += 1_000;
        assert_eq!(here.parts().len(), 0);
        here.decides(Entry::encode(&large(2, 2).0, &[], b""));
        assert_eq!(here.parts().len(), 0, "it has had no time");
        here.tick += 9;
        assert_eq!(here.parts().len(), 0);
        if gets_on {
            here.shows(4);
        }
        here.tick += 1;
        assert_eq!(here.parts().len(), usize::from(!gets_on));
    }
}

/// Goal: a large transaction that has lost holds up nobody until its last part has travelled.
///
/// Method: between two of its parts another node commits a key of it, or another key; the server here does not get on,
/// or it does.  There are few of its keys or many.
#[test]
fn what_loses_while_it_travels_is_told_if_the_server_here_waits() {
    let key = |hash| Key { hash, mode: LockMode::Update, base: Base(0) };
    for many in [false, true] {
        for (taken, gets_on, is_told) in [(7, false, true), (8, false, false), (7, true, false)] {
            let (mut here, wire) = (Here::new(), Arc::<Wire>::default());
            here.opens_as(ConnId(3), Role::Backend, ZERO, wire.clone());
            said(&wire);
            let txn = large(1, 1).0;
            let keys: Vec<Key> = (1_000..if many { 2_000 } else { 1_001 }).chain([7]).map(key).collect();
            let raw = Entry::encode(&txn, &keys, &[1; 2 * PART]);
            let propose = AgentEvent::Propose { conn: ConnId(3), txn, raw: raw.clone(), permit: None };
            assert_eq!(here.handle(propose), None);
            let parts = here.parts();
            here.decides(parts[0].clone());
            here.decides(Entry::encode(&large(2, 1).0, &[key(taken)], b""));
            assert_eq!((here.parts(), said(&wire)), (vec![], vec![]), "it may get on");
            if gets_on {
                here.shows(2);
            }
            here.tick += 10;
            let ends = match many {
                false => Entry::encode(&txn, &keys, b""),
                true => Entry::encode_cancel(&txn),
            };
            assert_eq!(here.parts(), if is_told { vec![ends.clone()] } else { vec![] });
            if !is_told {
                assert_eq!(said(&wire), []);
                continue;
            }
            let told = said(&wire);
            let [Some(ToPostgres::Verdict(verdict))] = &told[..] else { panic!("{told:?}") };
            let place = (verdict.at, verdict.other, verdict.key, verdict.region.0.as_str());
            assert_eq!((verdict.txn, verdict.outcome), (txn, VerdictOutcome::Conflict));
            assert_eq!(place, (ZERO, LogIndex(2), keys.len() as u32 - 1, "r2"));
            assert!(!here.router.is_pending(&txn));
            // The rest of it is on its way; or the end is lost, and asked for again.
            here.decides(parts[1].clone());
            assert_eq!(here.parts(), [] as [Bytes; 0]);
            here.tick += 100;
            assert_eq!(here.parts(), [Entry::encode_cancel(&txn)]);
            here.decides(ends);
            assert!(matches!(here.certifier.outcome(&txn), Outcome::Decided { verdict, .. } if !verdict.commits()));
            here.tick += 100;
            assert_eq!((here.parts(), here.router.has_large()), (vec![], false));
            assert_eq!(said(&wire), []);
        }
    }
}
