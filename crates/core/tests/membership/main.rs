//! Members join, are promoted, are replaced and leave; with snapshots, and restarts in between.

mod arriving;
mod everywhere;
mod leases;
mod liar;
mod notices;
mod reads;
mod row_locks;
mod world;

use bytes::Bytes;
use onetrip_core::certifier::{Limits, Outcome, Verdict};
use onetrip_core::consensus::{Input, Message, Role};
use onetrip_core::members::Change;
use onetrip_core::replica::{Host, NotDone, Report, RequestId};
use onetrip_core::{
    checkpoint, Checkpoint, Entry, EntryId, LogIndex, MemberRole, NodeId, PreferredLeader, Term, TxnId,
};
use raft::eraftpb::{ConfState, Entry as RaftEntry, HardState, MessageType};
use world::{region, voter, wanted, Disk, World, LEADER_REST_TICKS, SNAPSHOT_TICKS};

#[test]
fn a_member_joins_by_token_catches_up_and_votes() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.commit(2);
    // It asks through a follower, which any member allows.
    let id = w.join(3, MemberRole::Voter, None);
    assert_eq!(id, 4);
    w.until("node 4 votes", |w| w.is_voter(4));
    w.commit(4);
    // Without node 3, a majority of four needs the new member.
    w.cut.insert(3);
    w.commit(1);
    w.cut.clear();
    w.settle();
    assert!(w.nodes[&3].members().get(NodeId(4)).unwrap().voter);
}

#[test]
fn a_replica_never_votes() {
    let mut w = World::new();
    w.has_leader();
    let id = w.join(1, MemberRole::Replica, None);
    w.ticks(200);
    w.commit(id);
    assert!(!w.is_voter(id));
    w.cut.extend([2, 3]);
    w.ticks(200);
    assert_eq!(w.leader(), None);
}

#[test]
fn a_dead_member_is_replaced_in_one_step() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.commit(3);
    w.crash(3);
    let id = w.join(2, MemberRole::Voter, Some(3));
    w.until("the new one votes", |w| w.is_voter(4));
    assert!(w.nodes[&1].members().removed(NodeId(3)));
    assert_eq!(w.nodes[&1].replica.consensus.conf().voters, [1, 2, 4].map(NodeId));
    // Two of the three are a majority again.
    w.crash(2);
    w.commit(id);
    w.restart(2);
    w.settle();
}

/// The member to be replaced leads: it hands over first.
#[test]
fn a_leader_is_replaced() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.join(2, MemberRole::Voter, Some(1));
    w.until("the new one votes", |w| {
        w.nodes[&2].members().removed(NodeId(1)) && !w.nodes[&2].replica.consensus.conf().is_joint()
    });
    w.nodes.remove(&1);
    w.commit(4);
    w.settle();
}

/// There is only a witness to hand over to, which itself looks for a leader with a PostgreSQL.
#[test]
fn the_last_leader_with_postgresql_is_replaced() {
    let mut w =
        World::of(vec![voter(1, MemberRole::Voter), voter(2, MemberRole::Voter), voter(3, MemberRole::Witness)]);
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.change(1, Change::Remove(NodeId(2)));
    w.nodes.remove(&2);
    w.join(3, MemberRole::Voter, Some(1));
    w.until("the new one votes alone", |w| {
        w.nodes[&3].members().removed(NodeId(1)) && !w.nodes[&3].replica.consensus.conf().is_joint()
    });
    w.nodes.remove(&1);
    w.until("node 4 leads", |w| w.leader() == Some(4));
    w.commit(4);
}

/// Goal: no change of the membership leaves the cluster without rows, or with one copy of them where there were to be
/// two.
#[test]
fn a_member_with_the_rows_stays_while_too_few_others_have_them() {
    let mut w =
        World::of(vec![voter(1, MemberRole::Voter), voter(2, MemberRole::Voter), voter(3, MemberRole::Witness)]);
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.shown.insert(2, None);
    w.ticks(10);
    for at in [1, 3] {
        assert!(!w.changes(at, &Change::Remove(NodeId(1)), 30), "asked through node {at}");
        assert_eq!(w.leader(), Some(1), "it does not hand over for that");
    }
    // A replacement has to wait too.
    w.join(3, MemberRole::Voter, Some(1));
    w.ticks(500);
    assert!(!w.is_voter(4) && !w.nodes[&3].members().removed(NodeId(1)));
    w.shown.clear();
    w.until("the new one votes", |w| w.nodes[&3].members().removed(NodeId(1)));
    w.nodes.remove(&1);
    w.until("node 2 or 4 leads", |w| w.leader().is_some_and(|id| id != 3));
    // One that has no rows may go while one has them.
    w.shown.insert(2, None);
    w.ticks(50);
    w.change(3, Change::Remove(NodeId(2)));
    w.commit(4);
}

/// Goal: rows on a member that is away, or that no log leads on from, do not count.
#[test]
fn rows_that_may_never_be_seen_again_do_not_count() {
    let mut w =
        World::of(vec![voter(1, MemberRole::Voter), voter(2, MemberRole::Voter), voter(3, MemberRole::Witness)]);
    w.until("node 1 leads", |w| w.leader() == Some(1));
    (0..5).for_each(|_| w.commit(2));
    w.shown.insert(2, Some(LogIndex(1)));
    w.cut_log(1);
    w.ticks(50);
    assert!(!w.changes(3, &Change::Remove(NodeId(1)), 30), "the log begins after what node 2 shows");
    w.shown.clear();
    w.ticks(50);
    w.crash(2);
    w.ticks(200);
    assert!(!w.changes(3, &Change::Remove(NodeId(1)), 30), "node 2 is away");
    w.restart(2);
    w.until("node 1 leads again", |w| w.leader() == Some(1));
    w.ticks(50);
    w.change(3, Change::Remove(NodeId(1)));
}

/// Goal: who asks is told why.
#[test]
fn a_request_that_would_lose_the_rows_is_refused() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.ticks(100);
    w.crash(3);
    w.ticks(200);
    let node = w.nodes.get_mut(&1).unwrap();
    node.replica.ask(RequestId(1), Change::Remove(NodeId(2)), &mut node.host);
    w.ticks(100);
    let answers = w.nodes.get_mut(&1).unwrap().replica.take_answers();
    let [(RequestId(1), _, Err(NotDone::Refused(why)))] = &answers[..] else { panic!("{answers:?}") };
    assert!(why.contains("without node 2: the PostgreSQL of node 3 is away"), "{why}");
    let node = w.nodes.get_mut(&1).unwrap();
    node.replica.ask(RequestId(2), Change::Remove(NodeId(3)), &mut node.host);
    w.ticks(100);
    let answers = w.nodes.get_mut(&1).unwrap().replica.take_answers();
    assert!(matches!(&answers[..], [(RequestId(2), _, Ok(()))]), "{answers:?}");
}

#[test]
fn followers_and_leaders_leave_and_commits_go_on() {
    let mut w = World::new();
    for _ in 0..2 {
        let id = w.join(1, MemberRole::Voter, None);
        w.until("it votes", |w| w.is_voter(id));
    }
    w.until("node 1 leads", |w| w.leader() == Some(1));
    assert_eq!(w.nodes[&1].replica.consensus.conf().voters.len(), 5);
    w.commit(5);
    w.change(2, Change::Remove(NodeId(3)));
    w.nodes.remove(&3);
    w.commit(4);
    // The leader itself leaves, asked through itself.
    w.change(1, Change::Remove(NodeId(1)));
    w.nodes.remove(&1);
    w.has_leader();
    w.commit(2);
    w.settle();
    assert_eq!(w.nodes[&2].replica.consensus.conf().voters, [2, 4, 5].map(NodeId));
    let t = &w.nodes[&2].members();
    assert!(t.removed(NodeId(1)) && t.removed(NodeId(3)));
    // Node 1 was the only one in the region where the leader belonged.
    assert_eq!(t.preferred_leader, region(2));
    w.until("node 2 leads", |w| w.leader() == Some(2));
}

/// The member's transactions that were not in the log by then can never commit, and whoever asks is told so at once.
#[test]
fn what_comes_late_from_a_removed_member_commits_nothing_anywhere() {
    let mut w = World::new();
    w.has_leader();
    let of_three = |sequence| TxnId { node: NodeId(3), incarnation: 7, sequence };
    w.propose(3, Entry::encode_incarnation(NodeId(3), 7, 0));
    w.propose(3, Entry::encode(&of_three(1), &[], b"in time"));
    w.commit(3);
    w.change(2, Change::Remove(NodeId(3)));
    w.nodes.remove(&3);
    for _ in 0..2 {
        // Twice, because the outcome of an entry stays what it was.
        w.propose(2, Entry::encode(&of_three(2), &[], b"late"));
        w.propose(2, Entry::encode(&of_three(1), &[], b"in time"));
    }
    w.propose(2, Entry::encode_incarnation(NodeId(3), 8, 7));
    w.commit(1);
    w.settle();
    for node in w.nodes.values() {
        let outcome = |sequence| node.replica.certifier.outcome(&of_three(sequence));
        assert!(matches!(outcome(1), Outcome::Decided { verdict: Verdict::Commit, .. }));
        assert!(matches!(outcome(2), Outcome::Decided { verdict: Verdict::NotMember | Verdict::Cancelled, .. }));
        assert!(matches!(outcome(3), Outcome::Decided { verdict: Verdict::Cancelled, .. }));
        assert_eq!(node.replica.certifier.running_incarnation(NodeId(3)), 0);
    }
}

/// Goal: what was under way from a member as it was removed is not kept for ever.
#[test]
fn a_late_report_of_a_removed_member_is_passed_over() {
    let mut w = World::new();
    w.has_leader();
    w.ticks(50);
    w.change(1, Change::Remove(NodeId(3)));
    let node = w.nodes.get_mut(&1).unwrap();
    for peer in [2, 3].map(NodeId) {
        let report = Report { shown: Some((LogIndex(1), LogIndex(1))), ..Report::default() };
        node.replica.report(peer, report, &mut node.host);
    }
    assert_eq!(node.replica.positions().map(|(id, _)| id).collect::<Vec<_>>(), [NodeId(2)]);
}

#[test]
fn the_leader_moves_where_it_is_wanted() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.change(2, Change::PreferLeader(wanted(3)));
    w.until("node 3 leads", |w| w.leader() == Some(3));
    w.commit(1);
}

/// us-east-1, us-east-2 and us-west-2, in microseconds.
const US: [(u32, u32, u32); 3] = [(1, 2, 10_000), (1, 3, 62_000), (2, 3, 50_000)];

/// Goal: a leader whose place the cluster chooses moves to where all members commit in one round trip, once all round
/// trips are measured.  It does not move if an operator has chosen its place, nor again at once.
#[test]
fn the_leader_moves_where_it_is_best() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.measure(&US);
    w.ticks(500);
    assert_eq!(w.leader(), Some(1), "an operator has chosen that");
    w.measure(&US[..2]);
    w.change(3, Change::PreferLeader(PreferredLeader::Auto));
    w.ticks(500);
    assert_eq!(w.leader(), Some(1), "a way is not measured");
    w.measure(&US);
    w.until("node 2 leads", |w| w.leader() == Some(2));
    w.commit(1);
    let settled = |w: &World| w.nodes.values().all(|n| n.replica.leader_is_settled(n.host.now()));
    w.until("all see that it is best there", settled);
    // Now the third region is best, but the leader has just moved.
    w.measure(&[(1, 2, 62_000), (1, 3, 50_000), (2, 3, 10_000)]);
    w.ticks(LEADER_REST_TICKS as usize / 2);
    assert_eq!(w.leader(), Some(2));
    assert!(!settled(&w));
    w.until("node 3 leads", |w| w.leader() == Some(3));
    w.until("all see that it is best there", settled);
    assert!(w.nodes[&1].members().leader_is_auto);
    w.change(2, Change::PreferLeader(wanted(1)));
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.ticks(2 * LEADER_REST_TICKS as usize);
    assert_eq!(w.leader(), Some(1));
    w.commit(1);
}

/// Goal: a region commits as long as it reaches a majority that reaches each other.  Method: the link between two of
/// three is cut, one of which leads, and later the one between the two that do not.
#[test]
fn a_leader_that_does_not_reach_a_member_goes_to_one_that_does() {
    let ways = [(1, 2, 10_000), (1, 3, 20_000), (2, 3, 20_000)];
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.measure(&ways);
    w.change(3, Change::PreferLeader(PreferredLeader::Auto));
    w.ticks(500);
    assert_eq!(w.leader(), Some(1), "it is best there");
    w.cut_links.insert((1, 2));
    w.measure(&ways[1..]);
    w.until("node 3 leads", |w| w.leader() == Some(3));
    w.commit(1);
    w.commit(2);
    w.ticks(2 * LEADER_REST_TICKS as usize);
    assert_eq!(w.leader(), Some(3), "the link is still cut");
    w.cut_links.clear();
    w.measure(&ways);
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.cut_links.insert((2, 3));
    w.measure(&ways[..2]);
    w.ticks(2 * LEADER_REST_TICKS as usize);
    assert_eq!(w.leader(), Some(1), "it reaches both");
    w.commit(3);
    // A member that nobody reaches draws no leader anywhere.
    w.crash(2);
    w.measure(&ways[1..2]);
    w.ticks(2 * LEADER_REST_TICKS as usize);
    assert_eq!(w.leader(), Some(1));
}

/// While the member where the leader belongs is away, the present leader stays where it is, unless another is better.
#[test]
fn a_leader_comes_back_to_where_it_is_best() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.measure(&US);
    w.change(3, Change::PreferLeader(PreferredLeader::Auto));
    w.until("node 2 leads", |w| w.leader() == Some(2));
    w.ticks(LEADER_REST_TICKS as usize);
    w.crash(2);
    w.until("another leads", |w| w.leader().is_some());
    w.ticks(2 * LEADER_REST_TICKS as usize);
    w.commit(1);
    assert_eq!(w.nodes[&1].members().preferred_leader, region(2));
    w.restart(2);
    w.measure(&US);
    w.until("node 2 leads", |w| w.leader() == Some(2));
    w.commit(1);
}

/// Goal: a member where the leader belongs, and that comes and goes, keeps nobody else waiting.
/// Method: its connection breaks every second while a new member is to vote, and while a witness leads.
#[test]
fn a_preferred_member_that_comes_and_goes_holds_up_nothing_else() {
    let roles = [MemberRole::Voter, MemberRole::Voter, MemberRole::Witness];
    let mut w = World::of((1..=3).zip(roles).map(|(id, role)| voter(id, role)).collect());
    w.until("node 1 leads", |w| w.leader() == Some(1));
    let comes_and_goes = |w: &mut World, what: &str, done: &dyn Fn(&World) -> bool| {
        w.cut.insert(1);
        for _ in 0..100 {
            for node in w.nodes.values_mut() {
                node.step(Input::Lost(NodeId(1), MessageType::MsgSnapshot));
            }
            w.ticks(10);
            if done(w) {
                return w.cut.clear();
            }
        }
        panic!("never: {what}");
    };
    w.nodes.get_mut(&1).unwrap().replica.consensus.transfer_to(NodeId(3));
    w.until("the witness leads", |w| w.leader() == Some(3));
    comes_and_goes(&mut w, "node 2 leads", &|w| w.leader() == Some(2));
    w.until("node 1 leads", |w| w.leader() == Some(1));
    let id = w.join(2, MemberRole::Voter, None);
    comes_and_goes(&mut w, "the new one votes", &|w| w.is_voter(id));
    w.until("node 1 leads again", |w| w.leader() == Some(1));
}

#[test]
fn a_witness_that_leads_hands_over() {
    let mut w =
        World::of(vec![voter(1, MemberRole::Voter), voter(2, MemberRole::Voter), voter(3, MemberRole::Witness)]);
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.nodes.get_mut(&1).unwrap().replica.consensus.transfer_to(NodeId(3));
    w.until("the witness leads", |w| w.leader() == Some(3));
    w.cut.insert(1);
    w.until("node 2 leads", |w| w.leader() == Some(2));
    w.commit(2);
}

/// Method: the log is cut while a member is away.  What the member lacks comes as a snapshot, even if the first one is
/// lost, with or without a sign of that.
#[test]
fn a_member_behind_the_cut_gets_a_snapshot() {
    for (lost, sign) in [(0, false), (1, true), (1, false)] {
        let mut w = World::new();
        w.until("node 1 leads", |w| w.leader() == Some(1));
        w.commit(3);
        w.cut.insert(3);
        for at in [1, 2, 1] {
            w.commit(at);
        }
        w.change(1, Change::PreferLeader(wanted(2)));
        w.until("node 2 leads", |w| w.leader() == Some(2));
        w.cut_log(1);
        w.cut_log(2);
        w.commit(1);
        w.lose_snapshots = lost;
        w.cut.clear();
        if sign {
            w.until("a snapshot is lost", |w| w.lose_snapshots == 0);
            let leader = w.has_leader();
            w.nodes.get_mut(&leader).unwrap().step(Input::Lost(NodeId(3), MessageType::MsgSnapshot));
        }
        w.settle();
        assert_eq!(w.snapshots, 1);
        w.commit(3);
        // It starts again from what it now has on disk.
        w.crash(3);
        w.commit(2);
        w.restart(3);
        w.commit(3);
        w.settle();
    }
}

/// Another member has joined while `away` was away: its log lacks what that one lacks.
fn joined_meanwhile(away: u32, entries: usize) -> (World, u32) {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.commit(away);
    w.cut.insert(away);
    (0..entries).for_each(|_| w.propose(1, Bytes::from_static(b"one of many")));
    w.commit(5 - away);
    let id = w.join(1, MemberRole::Voter, None);
    w.until("it votes", |w| w.is_voter(id));
    (w, id)
}

fn hand_over(w: &mut World) {
    w.nodes.get_mut(&1).unwrap().step(Input::HandOver);
    w.work(1);
    w.deliver();
}

/// Goal: a member that comes back is sent the entries that the others have kept for it, and its server need not be
/// copied.  Method: the leader belongs with a member that has joined meanwhile; it comes to lead all the same, once it
/// lacks nothing that anybody needs, or once the log of those before it begins no earlier.
#[test]
fn the_leader_keeps_its_place_while_only_its_log_has_what_a_member_needs() {
    for cut in [false, true] {
        let (mut w, id) = joined_meanwhile(3, 4);
        w.change(2, Change::PreferLeader(wanted(id)));
        w.ticks(500);
        assert_eq!(w.leader(), Some(1));
        if cut {
            w.cut_log(1);
            w.until("the new one leads", |w| w.leader() == Some(id));
        }
        w.cut.clear();
        w.until("the new one leads", |w| w.leader() == Some(id));
        w.settle();
        assert_eq!(w.snapshots, u32::from(cut));
    }
}

/// Goal: the same when a leader stops.  Method: the log of the new member is the furthest.
#[test]
fn a_leader_that_stops_hands_over_to_one_that_has_what_a_member_needs() {
    let (mut w, _) = joined_meanwhile(2, 4);
    w.ticks(50);
    w.cut.insert(3);
    w.propose(1, Bytes::from_static(b"another"));
    w.cut.remove(&3);
    hand_over(&mut w);
    assert_eq!(w.leader(), Some(3));
}

/// Goal: a leader that stops does not wait for one that is far behind, however early its log begins.  Method: it is
/// heard, and nothing of the log reaches it; the only other one that is there has joined meanwhile.
#[test]
fn a_leader_that_stops_hands_over_to_nobody_who_is_far_behind() {
    let (mut w, id) = joined_meanwhile(2, 1500);
    w.lose_appends.insert(2);
    w.cut = [3].into();
    w.ticks(100);
    hand_over(&mut w);
    assert_eq!(w.leader(), Some(id));
}

/// Goal: who is away for long, or for good, does not keep the leader in its place.  Method: the leader has started
/// meanwhile, so that it knows nothing of that one, and its log begins before all others.
#[test]
fn a_member_of_which_nothing_is_known_is_in_nobodys_way() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.commit(3);
    w.cut.insert(3);
    w.commit(2);
    w.crash(1);
    w.restart(1);
    w.until("node 1 leads again", |w| w.leader() == Some(1));
    w.cut_log(2);
    w.change(2, Change::PreferLeader(wanted(2)));
    w.until("node 2 leads", |w| w.leader() == Some(2));
}

/// Goal: a snapshot that keeps getting lost is sent once in each span, and not twice because a heartbeat is answered
/// just then.
#[test]
fn a_snapshot_is_given_the_same_time_again() {
    for after in 0..2 {
        let mut w = World::new();
        w.until("node 1 leads", |w| w.leader() == Some(1));
        w.cut.insert(3);
        w.commit(1);
        w.cut_log(1);
        w.ticks(after);
        w.cut.clear();
        w.lose_snapshots = u32::MAX;
        // Node 3 refuses this append, and the leader answers with a snapshot.
        w.propose(1, Bytes::from_static(b"another"));
        for spans in 0..4 {
            w.ticks(SNAPSHOT_TICKS + 10);
            let sent = u32::MAX - w.lose_snapshots;
            assert!((1..=spans + 2).contains(&sent), "{sent} in {spans}");
        }
        w.lose_snapshots = 0;
        w.settle();
    }
}

/// Method: the snapshot is lost while its sender still sees it leaving; so it is sent again only when that has ended.
#[test]
fn a_snapshot_that_is_still_leaving_is_not_taken_as_lost() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.commit(3);
    w.cut.insert(3);
    w.commit(1);
    [1, 2].into_iter().for_each(|id| w.cut_log(id));
    w.commit(1);
    w.lose_snapshots = 1;
    w.nodes.get_mut(&1).unwrap().host.sending.insert(NodeId(3));
    w.cut.clear();
    w.until("it is sent", |w| w.lose_snapshots == 0);
    w.ticks(5 * SNAPSHOT_TICKS);
    assert_eq!((w.leader(), w.snapshots), (Some(1), 0));
    w.nodes.get_mut(&1).unwrap().host.sending.clear();
    w.ticks(SNAPSHOT_TICKS / 2);
    assert_eq!(w.snapshots, 0);
    w.settle();
    assert_eq!(w.snapshots, 1);
}

/// The present checkpoint does not contain the new member, which is behind the cut; so a newer one is made for it.
#[test]
fn a_learner_behind_the_cut_gets_a_checkpoint_that_knows_it() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    w.commit(1);
    w.cut_log(1);
    let old = w.nodes[&1].checkpoint();
    let id = w.join(1, MemberRole::Voter, None);
    w.nodes.remove(&id);
    w.commit(2);
    for id in 1..=3 {
        w.cut_log(id);
        w.nodes.get_mut(&id).unwrap().replica.consensus.log_mut().checkpoint = Some(old.clone());
    }
    w.start(id, Disk { checkpoint: Some(onetrip_core::checkpoint::installed(&old)), ..Disk::default() });
    w.until("it votes", |w| w.is_voter(4));
    assert_eq!(w.snapshots, 1);
    w.settle();
}

/// Nodes crash at each step of a replacement, alone or all at once, and lose what was not synced.
#[test]
fn a_replacement_survives_crashes_at_every_step() {
    for all in [false, true] {
        for at in 0..40 {
            let mut w = World::new();
            w.until("node 1 leads", |w| w.leader() == Some(1));
            w.commit(1);
            if at % 2 == 0 {
                w.cut_log(2);
            }
            w.crash(3);
            w.join(1, MemberRole::Voter, Some(3));
            w.ticks(at);
            let joint = w.nodes[&1].replica.consensus.conf().is_joint();
            let ids: Vec<u32> = w.nodes.keys().copied().collect();
            for id in ids.into_iter().filter(|id| all || *id == 1 + (at as u32 % 2)) {
                if joint {
                    // A checkpoint in the middle of the joint configuration.
                    let node = w.nodes.get_mut(&id).unwrap();
                    let raw = node.checkpoint();
                    node.replica.consensus.log_mut().checkpoint = Some(raw);
                }
                w.crash(id);
            }
            w.wire.clear();
            for id in w.stopped.keys().copied().filter(|id| *id != 3).collect::<Vec<_>>() {
                w.restart(id);
            }
            w.until("the new one votes", |w| w.is_voter(4) && w.nodes[&1].members().removed(NodeId(3)));
            w.commit(4);
            w.settle();
            assert_eq!(w.nodes[&1].replica.consensus.conf().voters, [1, 2, 4].map(NodeId));
        }
    }
}

/// Goal: the only voter, which needs no votes of others, leads once in a term.
/// Method: it starts again, is elected, and dies before it has written that; whatever it has said arrives.
#[test]
fn an_only_voter_says_nothing_in_a_term_that_its_disk_lacks() {
    let mut w = World::of(vec![voter(1, MemberRole::Voter)]);
    w.has_leader();
    let replica = w.join(1, MemberRole::Replica, None);
    w.commit(replica);
    w.crash(1);
    w.restart(1);
    for _ in 0..100 {
        w.work(1);
        w.nodes.get_mut(&1).unwrap().tick().unwrap();
        if w.nodes[&1].role() == Role::Leader {
            break;
        }
    }
    w.nodes.get_mut(&1).unwrap().host.dies_before_write = true;
    w.propose(1, Bytes::from_static(b"what the first life as leader has proposed"));
    assert!(!w.nodes.contains_key(&1));
    w.restart(1);
    w.commit(1);
    w.settle();
}

/// Goal: a member that is to replace the only voter, which nobody can, keeps no other from voting.
#[test]
fn an_only_voter_is_replaced_once_there_is_another() {
    let mut w = World::of(vec![voter(1, MemberRole::Voter)]);
    w.has_leader();
    let heir = w.join(1, MemberRole::Voter, Some(1));
    w.ticks(500);
    assert!(!w.is_voter(heir));
    w.commit(1);
    let other = w.join(1, MemberRole::Voter, None);
    w.until("the other one votes", |w| w.is_voter(other));
    w.until("the only one is replaced", |w| w.is_voter(heir) && w.nodes[&other].members().removed(NodeId(1)));
    w.commit(heir);
}

/// Goal: nobody elects a leader in a configuration that is over.  Method: nodes 1 and 2 leave one after the other.
/// Their disks have all of it, except what need not be synced.  Then they start again without the others.
#[test]
fn those_who_left_cannot_go_on_by_themselves() {
    let mut w = World::new();
    for _ in 0..2 {
        let id = w.join(1, MemberRole::Voter, None);
        w.until("it votes", |w| w.is_voter(id));
    }
    w.change(3, Change::Remove(NodeId(1)));
    w.crash(1);
    w.change(3, Change::Remove(NodeId(2)));
    w.crash(2);
    w.commit(3);
    w.cut.extend([3, 4, 5]);
    w.restart(1);
    w.restart(2);
    w.ticks(500);
    assert_eq!(w.leader(), None);
}

/// Goal: preference never keeps two voters from electing one of them.  Method: the preferred voter has a longer log and
/// the other a newer one, as a leader that crashed in between would leave them.
#[test]
fn a_preferred_voter_with_a_stale_log_does_not_stop_an_election() {
    let mut w = World::new();
    let entry = |index, term| RaftEntry { index, term, ..Default::default() };
    let disk = |entries: Vec<RaftEntry>, term| {
        let hard_state = HardState { term, ..Default::default() };
        Disk { entries, hard_state, ..Disk::default() }
    };
    w.start(1, disk(vec![entry(1, 1), entry(2, 1), entry(3, 1)], 2));
    w.start(2, disk(vec![entry(1, 1), entry(2, 2)], 2));
    w.nodes.remove(&3);
    let leader = w.has_leader();
    assert_eq!(leader, 2);
    w.commit(2);
}

/// When a leader steps back, another one wins at once, although the leader refused others while it was preferred.
#[test]
fn a_preferred_leader_lets_its_heir_win() {
    // This has to work at every moment of the leader's count of who is active.
    for after in 0..25 {
        let mut w = World::new();
        w.until("node 1 leads", |w| w.leader() == Some(1));
        w.ticks(after);
        w.nodes.get_mut(&1).unwrap().replica.consensus.step(Input::HandOver).unwrap();
        w.ticks(3);
        assert!(matches!(w.leader(), Some(2 | 3)), "{after}");
    }
}

/// The timeout grows with the round trips, and the heartbeats keep their pace.
#[test]
fn long_round_trips_make_followers_patient() {
    let mut w = World::new();
    w.until("node 1 leads", |w| w.leader() == Some(1));
    for id in 2..=3 {
        w.nodes.get_mut(&id).unwrap().host.election_ticks = 200;
    }
    w.ticks(50);
    assert_eq!(w.leader(), Some(1));
    w.cut.insert(1);
    w.ticks(180);
    assert_eq!(w.leader(), None);
    w.ticks(200);
    assert!(w.leader().is_some());
    assert_eq!(w.nodes[&w.leader().unwrap()].role(), Role::Leader);
}

/// Goal: a node keeps no more than two snapshots that are not installed, and installs the newest in the end.
/// Method: three arrive before the first is opened.
#[test]
fn of_the_snapshots_that_come_while_one_is_opened_the_last_is_next() {
    let mut w = World::new();
    let bootstrap = w.bootstrap.clone();
    let snapshot = |index| {
        let mut state = Checkpoint::bootstrap(bootstrap.clone(), Limits::default());
        (1..=index).for_each(|at| state.certifier.skip(LogIndex(at)).unwrap());
        state.term = Term(1);
        let mut message = Message { from: 1, to: 3, term: 2, ..Default::default() };
        message.set_msg_type(MessageType::MsgSnapshot);
        message.mut_snapshot().data = state.encode();
        let metadata = message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (index, 1);
        message.mut_snapshot().mut_metadata().set_conf_state(ConfState::from(&state.conf));
        message
    };
    let node = w.nodes.get_mut(&3).unwrap();
    [10, 20, 30].into_iter().for_each(|index| node.replica.message(snapshot(index), &mut node.host).unwrap());
    let mut installed = Vec::new();
    while let Some(opened) = node.host.opening.take() {
        node.replica.advance(&mut node.host).unwrap();
        assert!(node.host.opening.is_none(), "one at a time");
        node.replica.opened(opened, &mut node.host);
        if installed.is_empty() {
            // What was prepared for the one that is about to be installed must not be touched.
            node.replica.message(snapshot(40), &mut node.host).unwrap();
            assert!(node.host.opening.is_none(), "one at a time");
        }
        node.replica.advance(&mut node.host).unwrap();
        installed.push(node.replica.certifier.decided());
    }
    assert_eq!(installed, [LogIndex(10), LogIndex(40)]);
}

/// Goal: a voter that is about to install a snapshot and is asked for the last entry on its disk (`Replica::question`)
/// names none that is older than what it had, and goes on.  Method: the question comes after the snapshot has been
/// opened, and before the work that follows from that; the voter knows what is committed, or has just started and does
/// not.
#[test]
fn a_voter_that_is_about_to_install_a_snapshot_names_nothing_older() {
    for starts_again in [false, true] {
        let mut w = World::new();
        w.until("node 1 leads", |w| w.leader() == Some(1));
        (1..=3).for_each(|at| w.commit(at));
        w.cut.insert(2);
        (0..5).for_each(|_| w.commit(1));
        w.cut_log(1);
        let leader = &w.nodes[&1].replica;
        let (term, raw) = (leader.consensus.leadership().term.0, leader.encoded_checkpoint());
        let newest = leader.consensus.last_on_disk();
        if starts_again {
            w.crash(2);
            w.restart(2);
        }
        let node = w.nodes.get_mut(&2).unwrap();
        node.work().unwrap();
        let before = node.replica.consensus.last_on_disk();
        assert!(before > EntryId::default() && before < newest, "{before:?}, {newest:?}");
        let mut message = Message { from: 1, to: 2, term, ..Message::default() };
        message.set_msg_type(MessageType::MsgSnapshot);
        let head = checkpoint::peek(&raw).unwrap();
        message.mut_snapshot().data = raw;
        let metadata = message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (head.index.0, head.term.0);
        metadata.set_conf_state(ConfState::from(&head.conf));
        node.replica.message(message, &mut node.host).unwrap();
        let opened = node.host.opening.take().unwrap();
        node.replica.opened(opened, &mut node.host);
        node.replica.question(NodeId(1), 7, &mut node.host);
        node.work().unwrap();
        node.replica.question(NodeId(1), 8, &mut node.host);
        let [(_, 7, first), (_, 8, second)] = node.host.named[..] else { panic!("{:?}", node.host.named) };
        assert!(first >= before, "it had {before:?}, and named {first:?}");
        assert_eq!(second, newest);
    }
}
