use super::*;
use crate::wire::Reader;
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

fn voter(id: u32) -> Member {
    Member {
        id: NodeId(id),
        region: format!("r{id}").as_str().into(),
        address: format!("10.0.0.{id}:1"),
        role: MemberRole::Voter,
        voter: true,
        slot: Some(id - 1),
        replaces: None,
        joined: None,
    }
}

fn three() -> Members {
    Members::bootstrap(vec![voter(3), voter(1), voter(2)], "r1".into(), 4)
}

fn token(n: u8, role: MemberRole, replaces: Option<u32>) -> Change {
    Change::AddToken(Token { hash: [n; 32], role, replaces: replaces.map(NodeId), expires_unix_s: u64::from(n) })
}

fn join(n: u8) -> Change {
    join_again(n, 0)
}

fn join_again(n: u8, attempt: u64) -> Change {
    join_at(n, attempt, 0)
}

fn join_at(n: u8, attempt: u64, asked_unix_s: u64) -> Change {
    Change::Join { token: [n; 32], attempt, asked_unix_s, region: "x".into(), address: format!("10.0.1.{n}:1") }
}

fn go(table: &mut Members, change: Change) -> Result<(), String> {
    let before = table.clone();
    let result = table.apply(&Command { expected_version: table.version, change }).map_err(|e| e.0);
    match &result {
        Ok(()) => assert_eq!(table.version, before.version + 1),
        Err(_) => assert_eq!(*table, before),
    }
    result
}

#[test]
fn a_token_lets_one_member_in_and_it_becomes_a_voter_with_a_free_slot() {
    let mut t = three();
    assert!(go(&mut t, join(1)).unwrap_err().contains("unknown"));
    go(&mut t, token(1, MemberRole::Voter, None)).unwrap();
    assert!(go(&mut t, token(1, MemberRole::Voter, None)).unwrap_err().contains("exists"));
    assert_eq!(t.steps(&join(1)), [Step::Learner(NodeId(4))]);
    go(&mut t, join(1)).unwrap();
    assert!(join(1).is_shown_by(&t) && !join_again(1, 1).is_shown_by(&t));
    let m = t.joined_with(&[1; 32]).unwrap().clone();
    assert_eq!((m.id, m.slot, m.voter, t.next_id), (NodeId(4), Some(3), false, NodeId(5)));
    go(&mut t, Change::Promote(NodeId(4))).unwrap();
    assert!(go(&mut t, Change::Promote(NodeId(4))).unwrap_err().contains("voter already"));
    assert!(go(&mut t, join_again(1, 1)).unwrap_err().contains("votes already"));
    assert_eq!(t.steps(&join_again(1, 1)), [Step::Learner(NodeId(5))]);
    assert_eq!(t.voters().count(), 4);
    // No slot is left for a fifth, but a witness needs none.
    go(&mut t, token(2, MemberRole::Voter, None)).unwrap();
    assert!(go(&mut t, join(2)).unwrap_err().contains("all 4 places"));
    go(&mut t, token(3, MemberRole::Witness, None)).unwrap();
    go(&mut t, join(3)).unwrap();
    assert_eq!(t.get(NodeId(5)).unwrap().slot, None);
    // The slot of one that leaves is free again; its id is not.
    go(&mut t, Change::Remove(NodeId(2))).unwrap();
    go(&mut t, join(2)).unwrap();
    assert_eq!(t.get(NodeId(6)).unwrap().slot, Some(1));
    assert!(t.removed(NodeId(2)) && !t.removed(NodeId(6)) && !t.removed(NodeId(7)));
}

#[test]
fn a_replacement_takes_the_others_place_when_the_joint_configuration_is_left() {
    let mut t = three();
    assert!(go(&mut t, token(1, MemberRole::Voter, Some(9))).unwrap_err().contains("no member"));
    assert!(go(&mut t, token(1, MemberRole::Replica, Some(2))).unwrap_err().contains("replica"));
    go(&mut t, token(1, MemberRole::Voter, Some(2))).unwrap();
    go(&mut t, join(1)).unwrap();
    assert!(go(&mut t, token(2, MemberRole::Voter, Some(2))).unwrap_err().contains("being replaced by node 4"));
    assert_eq!(t.steps(&Change::Promote(NodeId(4))), [Step::Voter(NodeId(4)), Step::Out(NodeId(2))]);
    go(&mut t, Change::Promote(NodeId(4))).unwrap();
    assert!(t.contains(NodeId(2)));
    t.left_joint();
    assert!(t.removed(NodeId(2)));
    assert_eq!(t.get(NodeId(4)).unwrap().replaces, None);
}

#[test]
fn the_last_voter_with_postgresql_cannot_leave_and_the_leader_always_belongs_somewhere() {
    let mut t = three();
    go(&mut t, token(1, MemberRole::Witness, None)).unwrap();
    go(&mut t, join(1)).unwrap();
    go(&mut t, Change::Promote(NodeId(4))).unwrap();
    assert!(go(&mut t, Change::PreferLeader("x".into())).unwrap_err().contains("no voter with PostgreSQL"));
    go(&mut t, Change::PreferLeader("r2".into())).unwrap();
    assert!(t.is_preferred(NodeId(2)) && !t.is_preferred(NodeId(1)));
    go(&mut t, Change::Remove(NodeId(2))).unwrap();
    assert_eq!(t.preferred_leader.as_str(), "r1");
    assert!(!t.leader_is_auto);
    go(&mut t, Change::Remove(NodeId(1))).unwrap();
    assert!(go(&mut t, Change::Remove(NodeId(3))).unwrap_err().contains("last voter"));
    assert!(go(&mut t, Change::Remove(NodeId(1))).unwrap_err().contains("no member"));
    let late = Command { expected_version: 0, change: Change::Remove(NodeId(4)) };
    assert!(t.apply(&late).unwrap_err().0.contains("changed meanwhile"));
}

/// Goal: either an operator or the cluster decides where the leader belongs, and the other one's word changes nothing.
#[test]
fn the_cluster_moves_its_leader_only_where_no_operator_has_chosen() {
    let mut t = Members::bootstrap(vec![voter(3), voter(2)], PreferredLeader::Auto, 4);
    assert_eq!((t.preferred_leader.as_str(), t.preferred()), ("r2", PreferredLeader::Auto));
    let moves = |region: &str| Change::MoveLeader(region.into());
    go(&mut t, moves("r3")).unwrap();
    assert!(go(&mut t, moves("r9")).unwrap_err().contains("no voter"));
    assert!(t.is_preferred(NodeId(3)) && moves("r3").is_shown_by(&t));
    go(&mut t, Change::PreferLeader("r2".into())).unwrap();
    assert_eq!(t.preferred(), "r2".into());
    go(&mut t, moves("r3")).unwrap();
    assert!(t.is_preferred(NodeId(2)) && !t.leader_is_auto);
    let auto = Change::PreferLeader("auto".into());
    assert!(!auto.is_shown_by(&t));
    go(&mut t, auto.clone()).unwrap();
    assert!(auto.is_shown_by(&t) && t.is_preferred(NodeId(2)) && !Change::PreferLeader("r2".into()).is_shown_by(&t));
    go(&mut t, token(1, MemberRole::Voter, None)).unwrap();
    let joins =
        Change::Join { token: [1; 32], attempt: 0, asked_unix_s: 0, region: AUTO.into(), address: "10.0.1.1:1".into() };
    assert!(go(&mut t, joins).unwrap_err().contains("called auto"));
}

fn leases(ids: impl Iterator<Item = u32>) -> Change {
    Change::LeaseRegions(ids.map(|id| format!("r{id}").as_str().into()).collect())
}

/// Goal: leases belong to regions with a PostgreSQL, as long as there is one.
#[test]
fn read_leases_belong_to_regions_that_can_read() {
    let mut t = three();
    assert!(go(&mut t, leases([2, 9].into_iter())).unwrap_err().contains("region r9 has no PostgreSQL"));
    assert!(!t.holds_lease(NodeId(2)));
    go(&mut t, leases([2, 3].into_iter())).unwrap();
    assert!(!t.holds_lease(NodeId(1)) && t.holds_lease(NodeId(2)) && t.holds_lease(NodeId(3)));
    go(&mut t, Change::Remove(NodeId(2))).unwrap();
    assert!(leases([3].into_iter()).is_shown_by(&t), "{:?}", t.lease_regions);
    go(&mut t, leases([].into_iter())).unwrap();
    assert!(!t.holds_lease(NodeId(3)));
}

/// Two answers to one token make two members, and the second removes the first; what the first was to replace stays.
#[test]
fn who_asks_again_with_a_token_gets_another_number() {
    let mut t = three();
    go(&mut t, token(1, MemberRole::Voter, Some(2))).unwrap();
    go(&mut t, join(1)).unwrap();
    let first = t.get(NodeId(4)).unwrap().clone();
    assert_eq!(t.steps(&join_again(1, 1)), [Step::Out(NodeId(4)), Step::Learner(NodeId(5))]);
    go(&mut t, join_again(1, 1)).unwrap();
    assert!(t.removed(NodeId(4)) && !join(1).is_shown_by(&t) && join_again(1, 1).is_shown_by(&t));
    let joined = Joined { token: [1; 32], attempt: 1, expires_unix_s: 1 };
    assert_eq!(*t.joined_with(&[1; 32]).unwrap(), Member { id: NodeId(5), joined: Some(joined), ..first });
    let elsewhere =
        Change::Join { token: [1; 32], attempt: 2, asked_unix_s: 0, region: "y".into(), address: "10.0.1.1:1".into() };
    assert!(go(&mut t, elsewhere).unwrap_err().contains("was used for node 5 in x at 10.0.1.1:1"));
    go(&mut t, Change::Promote(NodeId(5))).unwrap();
    t.left_joint();
    assert!(t.removed(NodeId(2)) && t.voters().count() == 3);
}

/// A token is good until it expires, also for whoever asks again with it.  The time is that of the answer, so every
/// table comes to the same.
#[test]
fn a_token_expires_for_the_first_node_and_for_each_that_asks_again() {
    let mut t = three();
    go(&mut t, token(5, MemberRole::Replica, None)).unwrap();
    assert!(go(&mut t, join_at(5, 0, 6)).unwrap_err().contains("this token has expired; ask for a new one"));
    go(&mut t, join_at(5, 0, 5)).unwrap();
    go(&mut t, join_at(5, 1, 5)).unwrap();
    let why = go(&mut t, join_at(5, 2, 6)).unwrap_err();
    assert!(why.contains("node 5 joined with this token, which has expired"), "{why}");
    assert!(why.contains("onetrip leave --node 5"), "{why}");
    assert!(t.check_expiry(&[5; 32], 6).is_err() && t.check_expiry(&[5; 32], 5).is_ok());
    assert!(t.check_expiry(&[6; 32], u64::MAX).is_ok(), "nobody knows that token");
    assert_eq!(t.joined_by(&[5; 32], 1).map(|m| m.id), Some(NodeId(5)));
}

/// Any minority may be lost: with five voters three must have the rows, with three two.
#[test]
fn rows_are_safe_where_every_majority_has_them() {
    let durable = |id: NodeId| (id.0 != 3).then_some(LogIndex(u64::from(id.0) * 10));
    let mut t = three();
    assert_eq!(t.rows_safe_to(durable), LogIndex(10));
    // Only two have a PostgreSQL: both must have the rows.
    t.members[2].role = MemberRole::Witness;
    assert_eq!(t.rows_safe_to(|_| Some(LogIndex(7))), LogIndex(7));
    assert_eq!(t.rows_safe_to(durable), LogIndex(10));
    // Only one has a PostgreSQL, so there is no other to wait for.
    t.members[0].role = MemberRole::Witness;
    assert_eq!(t.rows_safe_to(durable), LogIndex(20));
}

fn encoded(t: &Members) -> Bytes {
    let mut out = BytesMut::new();
    t.put(&mut out);
    out.freeze()
}

fn change() -> impl Strategy<Value = Change> {
    let role = prop_oneof![Just(MemberRole::Voter), Just(MemberRole::Witness), Just(MemberRole::Replica)];
    prop_oneof![
        (0u8..9, role, proptest::option::of(1u32..9)).prop_map(|(n, role, old)| token(n, role, old)),
        (0u8..9, 0u64..9, 0u64..9).prop_map(|(n, attempt, asked)| join_at(n, attempt, asked)),
        (1u32..9).prop_map(|id| Change::Promote(NodeId(id))),
        (1u32..9).prop_map(|id| Change::Remove(NodeId(id))),
        (1u32..9).prop_map(|id| Change::PreferLeader(format!("r{id}").as_str().into())),
        (1u32..9).prop_map(|id| Change::MoveLeader(format!("r{id}").as_str().into())),
        Just(Change::PreferLeader(PreferredLeader::Auto)),
        proptest::collection::btree_set(1u32..5, 0..3).prop_map(|ids| leases(ids.into_iter())),
    ]
}

proptest! {
    /// Whatever is asked, the table keeps its invariants; table and commands come back from bytes as they were.
    #[test]
    fn the_table_keeps_its_invariants_and_survives_its_encoding(changes in proptest::collection::vec(change(), 0..60)) {
        let mut t = three();
        for change in changes {
            let command = Command { expected_version: t.version, change };
            prop_assert_eq!(&Command::decode(command.encode()).unwrap(), &command);
            let joint = t.steps(&command.change).len() > 1;
            if go(&mut t, command.change).is_ok() && joint {
                t.left_joint();
            }
            prop_assert!(t.members.windows(2).all(|w| w[0].id < w[1].id) && t.members.iter().all(|m| m.id < t.next_id));
            prop_assert!(t.voters().any(|m| m.role == MemberRole::Voter));
            let mut slots: Vec<u32> = t.members.iter().filter_map(|m| m.slot).collect();
            slots.sort_unstable();
            prop_assert!(slots.windows(2).all(|w| w[0] < w[1]) && slots.iter().all(|s| *s < t.stride));
            prop_assert!(t.members.iter().all(|m| m.slot.is_some() == (m.role == MemberRole::Voter)));
            prop_assert!(t.members.iter().all(|m| m.replaces.is_none_or(|old| t.contains(old))));
            let mut r = Reader::new("table", encoded(&t));
            prop_assert_eq!(&Members::take(&mut r).unwrap(), &t);
            r.end().unwrap();
        }
    }

    #[test]
    fn decoding_survives_any_bytes(raw in proptest::collection::vec(any::<u8>(), 0..300), at in any::<proptest::sample::Index>(), with in any::<u8>()) {
        let _ = Command::decode(raw.clone().into());
        let _ = Members::take(&mut Reader::new("table", raw.into()));
        let mut bad = encoded(&three()).to_vec();
        let at = at.index(bad.len());
        bad[at] = with;
        let _ = Members::take(&mut Reader::new("table", bad.clone().into()));
        bad.truncate(at);
        prop_assert!(Members::take(&mut Reader::new("table", bad.into())).is_err());
    }
}
