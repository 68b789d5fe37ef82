use super::*;
use proptest::prelude::*;

type Matrix = Vec<Vec<u32>>;

fn id(i: usize) -> NodeId {
    NodeId(i as u32 + 1)
}

/// Each node votes, may lead, and commits as much as its weight says.
fn cluster(weights: &[u64]) -> Cluster {
    let all = || (0..weights.len()).map(id);
    Cluster {
        voters: all().collect(),
        away: Vec::new(),
        candidates: all().map(|id| (id, format!("r{id}").as_str().into())).collect(),
        origins: all().zip(weights.iter().copied()).collect(),
    }
}

fn places(cluster: &Cluster, d: &Matrix) -> Vec<Place> {
    cluster.places(&|a, b| Some(d[a.0 as usize - 1][b.0 as usize - 1])).unwrap()
}

fn three(ab: u32, ac: u32, bc: u32) -> Matrix {
    vec![vec![0, ab, ac], vec![ab, 0, bc], vec![ac, bc, 0]]
}

/// us-east-1, us-east-2 and us-west-2.
fn us() -> Matrix {
    three(10_000, 62_000, 50_000)
}

#[test]
fn the_default_topology_is_led_best_from_us_east_2() {
    let found = places(&cluster(&[0, 0, 0]), &us());
    let us_of = |place: &Place| place.commit_us.iter().map(|(_, us)| *us).collect::<Vec<_>>();
    assert_eq!(found.iter().map(|p| p.node.0).collect::<Vec<_>>(), [2, 1, 3]);
    assert_eq!(us_of(&found[0]), [10_000, 10_000, 50_000]);
    assert_eq!(us_of(&found[1]), [10_000, 10_000, 62_000]);
    // A commit from us-east-1 goes to the leader in the west and back; its own disk is in the majority.
    assert_eq!(us_of(&found[2]), [62_000, 50_000, 50_000]);
    // This holds even when nearly all commits come from where it makes no difference.
    let found = places(&cluster(&[1_000_000, 0, 0]), &us());
    assert_eq!(found[0].node, NodeId(2));
    assert!(is_worth(&found[1], &found[0]) && !is_worth(&found[0], &found[1]));
}

#[test]
fn a_voter_that_is_away_is_in_no_majority() {
    let away = Cluster { away: vec![NodeId(2)], ..cluster(&[1, 1, 1]) };
    let two = Cluster {
        candidates: away.candidates.iter().filter(|c| c.0 != NodeId(2)).cloned().collect(),
        origins: away.origins.iter().filter(|o| o.0 != NodeId(2)).copied().collect(),
        ..away.clone()
    };
    let us_of = |place: &Place| place.commit_us.iter().map(|(_, us)| *us).collect::<Vec<_>>();
    // Nobody asks for the round trips to it.
    let measured = |a: NodeId, b: NodeId| (a.0 != 2 && b.0 != 2).then_some(62_000);
    let found = two.places(&measured).unwrap();
    assert_eq!(us_of(&found[0]), [62_000, 62_000]);
    assert_eq!(us_of(&found[1]), [62_000, 62_000]);
    // Alone it is no majority; and nothing is decided without a round trip that has not been measured.
    let alone = Cluster { away: vec![NodeId(2), NodeId(3)], ..two.clone() };
    assert_eq!(alone.places(&measured), None);
    assert_eq!(cluster(&[1, 1, 1]).places(&measured), None);
    assert_eq!(Cluster { origins: Vec::new(), ..two }.places(&measured), None);
}

#[test]
fn a_small_gain_moves_nothing() {
    // No distance: any difference is noise.
    let near = places(&cluster(&[0, 9, 0]), &three(90, 900, 200));
    assert!(near.iter().all(|from| near.iter().all(|to| !is_worth(from, to))));
    // 4 % of a long distance.
    let far = places(&cluster(&[1, 1, 1]), &three(100_000, 104_000, 102_000));
    assert!(far.iter().all(|from| near.iter().all(|to| !is_worth(from, to) || from.mean_us > to.mean_us)));
    assert!(!is_worth(&far[1], &far[0]));
}

#[test]
fn where_commits_come_from_is_counted_and_forgotten() {
    let mut traffic = Traffic::default();
    for _ in 0..1_000 {
        traffic.committed(NodeId(1));
    }
    traffic.committed(NodeId(2));
    let at_once = traffic.of(NodeId(1));
    assert_eq!((at_once, traffic.of(NodeId(3))), (1_000 * traffic.of(NodeId(2)), 0));
    (0..178).for_each(|_| traffic.forget());
    let half = traffic.of(NodeId(1)) as f64 / at_once as f64;
    assert!((0.49..0.51).contains(&half), "{half}");
    (0..20_000).for_each(|_| traffic.forget());
    assert_eq!(traffic.0.len(), 0);
}

#[test]
fn what_is_better_once_is_not_believed() {
    let (a, b) = (RegionId::from("a"), RegionId::from("b"));
    let mut patience = Patience::default();
    let found: Vec<u32> =
        [Some(&a), Some(&a), Some(&b), None, Some(&b), Some(&b)].map(|region| patience.finds(region)).to_vec();
    assert_eq!(found, [1, 2, 1, 0, 1, 2]);
    patience.belongs(&a, true, (0, 50));
    assert!(!patience.rests(0), "what the table begins with is no move");
    patience.belongs(&b, true, (50, 50));
    patience.belongs(&b, true, (150, 50));
    assert!(patience.rests(99) && !patience.rests(100));
    assert_eq!(patience.finds(Some(&b)), 1);
    // An operator gives the choice back.
    patience.belongs(&b, false, (250, 50));
    patience.belongs(&b, true, (250, 50));
    assert!(!patience.rests(0));
}

/// Leaders that disagree for ever move the leader less and less often; a move that comes later is as free as ever.
#[test]
fn going_to_and_fro_becomes_rare() {
    let regions = [RegionId("a".into()), RegionId("b".into())];
    let mut patience = Patience::default();
    let (mut tick, mut moves, mut rested) = (0, 0, Vec::new());
    patience.belongs(&regions[0], true, (0, 50));
    while tick < 20_000 {
        tick += 1;
        if !patience.rests(tick) {
            moves += 1;
            rested.push(tick);
            patience.belongs(&regions[moves % 2], true, (tick, 50));
        }
    }
    let rests: Vec<u64> = rested.windows(2).map(|w| w[1] - w[0]).collect();
    assert_eq!(rests[..8], [50, 100, 200, 400, 800, 1_600, 3_200, 3_200]);
    assert!(patience.goes_to_and_fro(tick));
    let long_after = patience.not_before + 50;
    moves += 1;
    patience.belongs(&regions[moves % 2], true, (long_after, 50));
    assert!(!patience.rests(long_after + 50) && !patience.goes_to_and_fro(long_after));
}

fn matrix(n: usize) -> impl Strategy<Value = Matrix> {
    proptest::collection::vec(1u32..200_000, n * n).prop_map(move |raw| {
        let of = |a: usize, b: usize| if a == b { 0 } else { raw[a.min(b) * n + a.max(b)] };
        (0..n).map(|a| (0..n).map(|b| of(a, b)).collect()).collect()
    })
}

/// Straight from the definition: a message takes every path, and trying finds the time when a majority has been heard
/// from.
fn by_hand(d: &Matrix, origin: usize, leader: usize) -> u64 {
    let n = d.len();
    let half = |a: usize, b: usize| u64::from(d[a][b]);
    let reaches = |v: usize| half(origin, leader) + half(leader, v);
    let mut heard: Vec<u64> = (0..n).map(|v| reaches(v) + half(v, origin)).collect();
    heard.sort_unstable();
    let time = (0..n).map(|k| heard[k]).find(|at| heard.iter().filter(|h| *h <= at).count() > n / 2).unwrap();
    time.max(if origin == leader { 0 } else { reaches(origin) }) / 2
}

proptest! {
    /// For any three places, whether or not the direct way is the shortest: from the place that is chosen, every region
    /// commits in one round trip to its nearest neighbour, wherever commits come from; and from there no move is worth
    /// it.
    #[test]
    fn with_three_voters_one_place_serves_all(d in matrix(3), weights in proptest::collection::vec(0u64..1_000, 3)) {
        let found = places(&cluster(&weights), &d);
        for (origin, us) in &found[0].commit_us {
            let me = origin.0 as usize - 1;
            let nearest = (0..3).filter(|other| *other != me).map(|other| d[me][other]).min().unwrap();
            prop_assert_eq!(*us, u64::from(nearest));
        }
        let (a, b) = [(0, 1), (0, 2), (1, 2)].into_iter().min_by_key(|(a, b)| d[*a][*b]).unwrap();
        let third = 3 - a - b;
        let end = if d[third][a] <= d[third][b] { a } else { b };
        let at_end = found.iter().find(|place| place.node == id(end)).unwrap();
        prop_assert_eq!(&at_end.commit_us, &found[0].commit_us);
        prop_assert!(found.iter().all(|place| !is_worth(&found[0], place)));
    }

    /// With any number of voters, the chosen place has the lowest cost of all, by the definition.
    #[test]
    fn the_chosen_place_is_the_best_of_all(
        (d, weights) in prop_oneof![Just(3usize), Just(5), Just(7), Just(4)].prop_flat_map(|n| (matrix(n), proptest::collection::vec(100u64..1_000, n))),
    ) {
        let found = places(&cluster(&weights), &d);
        for place in &found {
            for (origin, us) in &place.commit_us {
                prop_assert_eq!(*us, by_hand(&d, origin.0 as usize - 1, place.node.0 as usize - 1));
            }
        }
        let n = d.len();
        let cost = |leader: usize| (0..n).map(|o| by_hand(&d, o, leader) * weights[o].max(weights.iter().sum::<u64>() / 20)).sum::<u64>();
        let least = (0..n).map(cost).min().unwrap();
        let chosen = cost(found[0].node.0 as usize - 1);
        // The mean is in whole microseconds.
        prop_assert!(chosen - least <= weights.iter().sum::<u64>() * 2, "{} {}", chosen, least);
    }

    /// Whoever makes only moves that are worth it comes to rest.
    #[test]
    fn moves_do_not_go_around(d in matrix(5), weights in proptest::collection::vec(0u64..1_000, 5)) {
        let found = places(&cluster(&weights), &d);
        for a in &found {
            for b in found.iter().filter(|b| is_worth(a, b)) {
                prop_assert!(!is_worth(b, a));
                prop_assert!(found.iter().all(|c| !(is_worth(b, c) && is_worth(c, a))));
            }
        }
    }
}
