//! What physics asks of one commit.

use onetrip_client::Topology;

/// Round trip from a region to the nearest majority of all, the region itself included, ms.
pub fn majority_rtt_ms(topology: &Topology, region: usize) -> f64 {
    let mut rtts: Vec<f64> = (0..topology.regions.len()).map(|other| topology.rtt_ms(region, other)).collect();
    rtts.sort_by(f64::total_cmp);
    // rtts[0] is the region itself; a majority of n are n / 2 + 1 members.
    rtts[topology.regions.len() / 2]
}

/// The client's round trip to the region and that region's to the nearest majority, ms.
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

    /// A link that is left out has no distance, which would be a limit that nobody could reach.
    #[test]
    fn the_shipped_topologies_have_every_link() {
        let cases = [
            (include_str!("../../../topologies/five.toml"), vec![31.0, 34.0, 34.0, 76.0, 91.0]),
            (include_str!("../../../topologies/seven.toml"), vec![76.0, 113.0, 82.0, 76.0, 91.0, 88.0, 166.0]),
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
    fn majority_of_five_is_the_second_nearest_other() {
        let mut text = String::new();
        for name in ["a", "b", "c", "d", "e"] {
            text += &format!("[[region]]\nname = \"{name}\"\n");
        }
        for (other, rtt) in [("b", 40.0), ("c", 10.0), ("d", 30.0), ("e", 20.0)] {
            text += &format!("[[link]]\nbetween = [\"{other}\", \"a\"]\nrtt_ms = {rtt}\n");
        }
        let five = Topology::parse(&text).unwrap();
        assert_eq!(majority_rtt_ms(&five, 0), 20.0);
    }
}
