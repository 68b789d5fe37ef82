//! How long one commit takes at least, by the distances alone.

use onetrip_client::Topology;

/// The round trip from a region to the nearest majority of all regions, which includes the region itself, in ms.
pub fn majority_rtt_ms(topology: &Topology, region: usize) -> f64 {
    let mut rtts = shortest_rtts_ms(topology, region);
    rtts.sort_by(f64::total_cmp);
    // rtts[0] is the region itself; a majority of n are n / 2 + 1 members.
    rtts[topology.regions.len() / 2]
}

/// The round trip to each region in ms, through other regions where that is shorter than the direct link: real networks
/// have such links, and with a leader on the way a commit takes less time than the direct link would.
fn shortest_rtts_ms(topology: &Topology, region: usize) -> Vec<f64> {
    let regions = topology.regions.len();
    let mut rtts: Vec<f64> = (0..regions).map(|other| topology.rtt_ms(region, other)).collect();
    // A shortest way has at most as many links as there are other regions.
    for _ in 1..regions {
        for (via, to) in (0..regions).flat_map(|via| (0..regions).map(move |to| (via, to))) {
            rtts[to] = rtts[to].min(rtts[via] + topology.rtt_ms(via, to));
        }
    }
    rtts
}

/// The client's round trip to the region, plus the region's round trip to the nearest majority, in ms.
pub fn limit_ms(topology: &Topology, region: usize) -> f64 {
    topology.regions[region].client_rtt_ms + majority_rtt_ms(topology, region)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: &str = include_str!("../../../topologies/us.toml");
    const FLAT: &str = include_str!("../../../topologies/flat.toml");

    #[test]
    fn limits_are_client_round_trip_plus_nearest_majority() {
        let us = Topology::parse(US).expect("the shipped topology is valid");
        let limits: Vec<f64> = (0..3).map(|region| limit_ms(&us, region)).collect();
        assert_eq!(limits, [11.0, 20.0, 112.0]);
        let flat = Topology::parse(FLAT).expect("the shipped topology is valid");
        assert_eq!(limit_ms(&flat, 2), 0.0);
    }

    /// A link that the file leaves out has a distance of 0, and the limit would be impossible to reach.
    #[test]
    fn the_shipped_topologies_have_every_link() {
        let cases = [
            (include_str!("../../../topologies/five.toml"), vec![31.0, 34.0, 34.0, 76.0, 89.0]),
            (include_str!("../../../topologies/seven.toml"), vec![76.0, 107.0, 82.0, 76.0, 89.0, 88.0, 166.0]),
        ];
        for (text, expected) in cases {
            let topology = Topology::parse(text).unwrap();
            let regions = topology.regions.len();
            assert_eq!(topology.links.len(), regions * (regions - 1) / 2);
            let limits: Vec<f64> = (0..regions).map(|region| majority_rtt_ms(&topology, region)).collect();
            assert_eq!(limits, expected);
        }
    }

    #[test]
    fn a_way_through_another_region_may_be_shorter() {
        let region = |name: &str| format!("[[region]]\nname = \"{name}\"\n");
        let link = |a: &str, b: &str, rtt: u32| format!("[[link]]\nbetween = [\"{a}\", \"{b}\"]\nrtt_ms = {rtt}\n");
        let three =
            region("a") + &region("b") + &region("c") + &link("a", "b", 5) + &link("b", "c", 5) + &link("a", "c", 90);
        assert_eq!(shortest_rtts_ms(&Topology::parse(&three).unwrap(), 0), [0.0, 5.0, 10.0]);
    }

    #[test]
    fn majority_of_five_is_the_second_nearest_other() {
        let mut text = String::new();
        for name in ["a", "b", "c", "d", "e"] {
            text += &format!("[[region]]\nname = \"{name}\"\n");
        }
        for (other, rtt) in [("b", 40.0), ("c", 10.0), ("d", 30.0), ("e", 20.0)] {
            text += &format!("[[link]]\nbetween = [\"{other}\", \"a\"]\nrtt_ms = {rtt}\n");
        }
        for (number, one) in ["b", "c", "d", "e"].iter().enumerate() {
            for other in &["b", "c", "d", "e"][..number] {
                text += &format!("[[link]]\nbetween = [\"{other}\", \"{one}\"]\nrtt_ms = 60\n");
            }
        }
        let five = Topology::parse(&text).unwrap();
        assert_eq!(majority_rtt_ms(&five, 0), 20.0);
    }
}
