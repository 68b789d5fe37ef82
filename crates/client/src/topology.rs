//! A topology: the regions of a cluster, the round trips between them, and how far the measuring client is from each.
//!
//! Invariants after [`Topology::parse`]: there is a region; region names are unique and can name a folder; every link
//! is between two different, known regions, and no two links are between the same two; every round trip is finite and
//! between 0 and 20,000 ms.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Regions without a link between them are 0 ms apart, so a topology of a single place needs no links at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The region whose node should lead, or `auto`, the default: the cluster chooses by measured round trips.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_leader: Option<String>,
    /// The replicated database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    #[serde(default, rename = "region")]
    pub regions: Vec<Region>,
    #[serde(default, rename = "link")]
    pub links: Vec<Link>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    pub name: String,
    /// Round trip from the measuring client to this region, ms.
    #[serde(default)]
    pub client_rtt_ms: f64,
    /// The IP address at which the other nodes reach this one.
    #[serde(default = "loopback")]
    pub host: String,
    /// Ports; a free one is chosen for each that is omitted, but `onetrip init --region` requires every `peer_port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres_port: Option<u16>,
    /// The port on which the demo's client link to this region listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    pub between: [String; 2],
    pub rtt_ms: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    #[error("cannot read the topology file {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("{path} is not a topology: {message}")]
    Invalid { path: String, message: String },
}

/// A longer round trip is a typing error rather than a distance on Earth.
const RTT_MS_MAX: f64 = 20_000.0;

/// Stands for the cluster's own choice; no region may have this name.
const AUTO: &str = "auto";

fn loopback() -> String {
    "127.0.0.1".to_string()
}

impl Topology {
    pub fn load(path: &Path) -> Result<Self, TopologyError> {
        let shown = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|source| TopologyError::Read { path: shown.clone(), source })?;
        Self::parse(&text).map_err(|message| TopologyError::Invalid { path: shown, message })
    }

    /// The error is one line that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let topology: Topology = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_string())?;
        topology.validate()?;
        Ok(topology)
    }

    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a topology holds only strings, numbers and tables of them")
    }

    fn validate(&self) -> Result<(), String> {
        if self.regions.is_empty() {
            return Err("it has no [[region]]".into());
        }
        let mut names = BTreeSet::new();
        for region in &self.regions {
            let name = &region.name;
            let fit = !name.is_empty()
                && name.len() <= 63
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
                && !name.starts_with('-');
            if !fit {
                return Err(format!(
                    "region name {name:?} should be 1 to 63 letters, digits, '-' or '_' (it names a folder)"
                ));
            }
            if name == AUTO {
                return Err(
                    "no region can be called auto: as preferred_leader that means that the cluster chooses".into()
                );
            }
            if !names.insert(name.as_str()) {
                return Err(format!("region {name:?} is listed twice"));
            }
            check_rtt(region.client_rtt_ms, || format!("client_rtt_ms of region {name:?}"))?;
        }
        let mut pairs = BTreeSet::new();
        for link in &self.links {
            let [a, b] = &link.between;
            for end in [a, b] {
                if !names.contains(end.as_str()) {
                    return Err(format!("the link between {a:?} and {b:?} names the unknown region {end:?}"));
                }
            }
            if a == b {
                return Err(format!("a link leads from region {a:?} to itself"));
            }
            if !pairs.insert(if a < b { (a, b) } else { (b, a) }) {
                return Err(format!("the link between {a:?} and {b:?} is listed twice"));
            }
            check_rtt(link.rtt_ms, || format!("rtt_ms between {a:?} and {b:?}"))?;
        }
        if let Some(leader) = &self.preferred_leader {
            if leader != AUTO && !names.contains(leader.as_str()) {
                return Err(format!("preferred_leader names the unknown region {leader:?}"));
            }
        }
        Ok(())
    }

    /// A region, or `auto`.
    pub fn preferred_leader(&self) -> &str {
        self.preferred_leader.as_deref().unwrap_or(AUTO)
    }

    pub fn database(&self) -> &str {
        self.database.as_deref().unwrap_or("onetrip")
    }

    pub fn region_index(&self, name: &str) -> Option<usize> {
        self.regions.iter().position(|r| r.name == name)
    }

    /// Round trip in ms between the regions at these two indexes of `regions`.
    pub fn rtt_ms(&self, a: usize, b: usize) -> f64 {
        let (a, b) = (&self.regions[a].name, &self.regions[b].name);
        self.links
            .iter()
            .find(|l| l.between == [a.clone(), b.clone()] || l.between == [b.clone(), a.clone()])
            .map_or(0.0, |l| l.rtt_ms)
    }
}

fn check_rtt(rtt_ms: f64, what: impl Fn() -> String) -> Result<(), String> {
    if rtt_ms.is_finite() && (0.0..=RTT_MS_MAX).contains(&rtt_ms) {
        Ok(())
    } else {
        Err(format!("{} is {rtt_ms}; it should lie between 0 and {RTT_MS_MAX}", what()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: &str = include_str!("../../../topologies/us.toml");
    const FLAT: &str = include_str!("../../../topologies/flat.toml");

    #[test]
    fn links_have_their_distance_in_both_directions() {
        let us = Topology::parse(US).expect("the shipped topology is valid");
        assert_eq!((us.rtt_ms(0, 2), us.rtt_ms(2, 0), us.rtt_ms(1, 1)), (62.0, 62.0, 0.0));
        assert_eq!(us.preferred_leader(), "auto");
        assert_eq!(Topology::parse("[[region]]\nname = \"a\"").unwrap().preferred_leader(), "auto");
    }

    #[test]
    fn regions_without_links_have_no_distance() {
        let flat = Topology::parse(FLAT).expect("the shipped topology is valid");
        assert_eq!(flat.rtt_ms(0, 2), 0.0);
        assert_eq!(flat.preferred_leader(), "a");
        assert_eq!(flat.database(), "onetrip");
    }

    #[test]
    fn a_topology_survives_writing_and_reading() {
        let us = Topology::parse(US).unwrap();
        assert_eq!(Topology::parse(&us.to_toml()).unwrap(), us);
    }

    #[test]
    fn wrong_topologies_are_refused_with_what_is_wrong() {
        let region = |name: &str| format!("[[region]]\nname = \"{name}\"\n");
        let link = |a: &str, b: &str, rtt: &str| format!("[[link]]\nbetween = [\"{a}\", \"{b}\"]\nrtt_ms = {rtt}\n");
        let ab = region("a") + &region("b");
        let cases = [
            (String::new(), "no [[region]]"),
            (region("a") + &region("a"), "twice"),
            (region("../x"), "names a folder"),
            (region("auto"), "called auto"),
            (region(""), "names a folder"),
            (ab.clone() + &link("a", "x", "1"), "unknown region \"x\""),
            (ab.clone() + &link("a", "a", "1"), "to itself"),
            (ab.clone() + &link("a", "b", "-1"), "between 0 and"),
            (ab.clone() + &link("a", "b", "nan"), "between 0 and"),
            (ab.clone() + &link("a", "b", "1") + &link("b", "a", "2"), "twice"),
            ("preferred_leader = \"z\"\n".to_string() + &ab, "preferred_leader"),
            ("colour = 1\n".to_string() + &ab, "unknown field"),
            ("[[region".to_string(), "TOML"),
        ];
        for (text, expected) in cases {
            let message = Topology::parse(&text).expect_err(&text);
            assert!(message.contains(expected), "{text}: {message}");
        }
    }
}
