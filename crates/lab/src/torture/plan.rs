//! Which fault comes next.  It is drawn from the seed alone and does not depend on what happens, so that a seed repeats
//! its faults.

use std::time::Duration;

use super::random::Random;

#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    KillBackend {
        region: usize,
    },
    KillPostgres {
        region: usize,
    },
    KillNode {
        region: usize,
    },
    KillRegion {
        region: usize,
    },
    KillEverything,
    StopNode {
        region: usize,
    },
    PauseBackend {
        region: usize,
    },
    PausePostgres {
        region: usize,
    },
    PauseNode {
        region: usize,
    },
    CutOff {
        region: usize,
    },
    CutPair {
        a: usize,
        b: usize,
    },
    CutOneWay {
        from: usize,
        to: usize,
    },
    /// No region reaches any other.
    CutAll,
    /// Each region reaches only the next one.
    Ring {
        backwards: bool,
    },
    /// One region receives from all others but reaches none (`mute`), or the other way round.
    Deaf {
        region: usize,
        mute: bool,
    },
    SlowLinks {
        one_way_ms: u64,
        jitter_ms: u64,
    },
    LossyLinks {
        percent: u64,
    },
    NarrowLink {
        a: usize,
        b: usize,
        mbit_per_s: u64,
    },
    MoveLeader {
        region: usize,
    },
    PowerLoss {
        region: usize,
    },
    PowerLossEverywhere,
    FullDisk {
        region: usize,
    },
    ClockJump {
        region: usize,
        ms: i64,
    },
    Join {
        asked: usize,
        role: usize,
    },
    Leave {
        asked: usize,
    },
    KillExtraNode,
}

/// Every kind of fault; the table at the end lists all of them, so that it also shows which never happened.
pub const KINDS: [&str; 26] = [
    "kill -9 of a backend",
    "kill -9 of a PostgreSQL",
    "kill -9 of a node",
    "kill -9 of node and PostgreSQL",
    "kill -9 of everything",
    "stop of a node (SIGTERM)",
    "pause of a backend",
    "pause of a PostgreSQL",
    "pause of a node",
    "partition: a region alone",
    "partition: one link",
    "partition: one way",
    "partition: everybody alone",
    "partition: ring",
    "partition: deaf or mute",
    "slow links",
    "lossy links",
    "narrow link",
    "leader moved",
    "power loss of a region",
    "power loss everywhere",
    "full disk",
    "clock jump",
    "a node joins",
    "a node leaves",
    "kill -9 of the node that joined",
];

impl Fault {
    pub fn kind(&self) -> &'static str {
        let index = match self {
            Fault::KillBackend { .. } => 0,
            Fault::KillPostgres { .. } => 1,
            Fault::KillNode { .. } => 2,
            Fault::KillRegion { .. } => 3,
            Fault::KillEverything => 4,
            Fault::StopNode { .. } => 5,
            Fault::PauseBackend { .. } => 6,
            Fault::PausePostgres { .. } => 7,
            Fault::PauseNode { .. } => 8,
            Fault::CutOff { .. } => 9,
            Fault::CutPair { .. } => 10,
            Fault::CutOneWay { .. } => 11,
            Fault::CutAll => 12,
            Fault::Ring { .. } => 13,
            Fault::Deaf { .. } => 14,
            Fault::SlowLinks { .. } => 15,
            Fault::LossyLinks { .. } => 16,
            Fault::NarrowLink { .. } => 17,
            Fault::MoveLeader { .. } => 18,
            Fault::PowerLoss { .. } => 19,
            Fault::PowerLossEverywhere => 20,
            Fault::FullDisk { .. } => 21,
            Fault::ClockJump { .. } => 22,
            Fault::Join { .. } => 23,
            Fault::Leave { .. } => 24,
            Fault::KillExtraNode => 25,
        };
        KINDS[index]
    }
}

/// One fault of the plan.
#[derive(Debug, Clone)]
pub struct Planned {
    pub fault: Fault,
    /// How long it lasts before it is undone.
    pub lasts: Duration,
    /// How long until the next fault: often shorter than `lasts`, so that faults overlap.
    pub pause: Duration,
}

/// Draws the faults.  Each kind comes once, in an order that the seed determines, before any kind comes again.
pub struct Plan {
    random: Random,
    regions: usize,
    /// Numbers of the kinds to draw from, shuffled.
    bag: Vec<usize>,
    only: Vec<usize>,
}

impl Plan {
    /// `only`: draw only kinds whose name contains one of these; empty for all.
    pub fn new(random: Random, regions: usize, only: &[String]) -> Plan {
        let wanted = |kind: &&str| only.is_empty() || only.iter().any(|part| kind.contains(part.as_str()));
        let only = (0..KINDS.len()).filter(|index| wanted(&KINDS[*index])).collect();
        Plan { random, regions, bag: Vec::new(), only }
    }

    pub fn draw(&mut self) -> Planned {
        if self.bag.is_empty() {
            self.bag = self.only.clone();
            for last in (1..self.bag.len()).rev() {
                self.bag.swap(last, self.random.index(last + 1));
            }
        }
        let kind = self.bag.pop().expect("a plan has at least one kind");
        let fault = self.fault(kind);
        let lasts = Duration::from_millis(match self.random.draw(20) {
            // Longer than a small log reaches back, and longer than a COMMIT waits.
            0 => 10_000,
            1..=3 => 4_100,
            _ => 100 + self.random.draw(2_500),
        });
        let pause = Duration::from_millis(self.random.draw(1_500));
        Planned { fault, lasts, pause }
    }

    fn fault(&mut self, kind: usize) -> Fault {
        let random = &mut self.random;
        let region = random.index(self.regions);
        let other = (region + 1 + random.index(self.regions - 1)) % self.regions;
        let coin = random.chance(50);
        match kind {
            0 => Fault::KillBackend { region },
            1 => Fault::KillPostgres { region },
            2 => Fault::KillNode { region },
            3 => Fault::KillRegion { region },
            4 => Fault::KillEverything,
            5 => Fault::StopNode { region },
            6 => Fault::PauseBackend { region },
            7 => Fault::PausePostgres { region },
            8 => Fault::PauseNode { region },
            9 => Fault::CutOff { region },
            10 => Fault::CutPair { a: region, b: other },
            11 => Fault::CutOneWay { from: region, to: other },
            12 => Fault::CutAll,
            13 => Fault::Ring { backwards: coin },
            14 => Fault::Deaf { region, mute: coin },
            15 => Fault::SlowLinks { one_way_ms: 5 + random.draw(60), jitter_ms: random.draw(40) },
            16 => Fault::LossyLinks { percent: 1 + random.draw(20) },
            17 => Fault::NarrowLink { a: region, b: other, mbit_per_s: 1 + random.draw(20) },
            18 => Fault::MoveLeader { region },
            19 => Fault::PowerLoss { region },
            20 => Fault::PowerLossEverywhere,
            21 => Fault::FullDisk { region },
            23 => Fault::Join { asked: region, role: random.index(3) },
            24 => Fault::Leave { asked: region },
            25 => Fault::KillExtraNode,
            _ => {
                let far = [1_000, 60_000, 3_600_000, 86_400_000][random.index(4)];
                Fault::ClockJump { region, ms: (1 + random.draw(far) as i64) * if coin { 1 } else { -1 } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_faults_and_every_kind_comes() {
        let faults = |seed: u64| -> Vec<Fault> {
            let mut plan = Plan::new(Random::new(seed), 3, &[]);
            (0..KINDS.len()).map(|_| plan.draw().fault).collect()
        };
        assert_eq!(faults(7), faults(7));
        assert_ne!(faults(7), faults(8));
        let mut kinds: Vec<&str> = faults(7).iter().map(Fault::kind).collect();
        kinds.sort_unstable();
        let mut all = KINDS;
        all.sort_unstable();
        assert_eq!(kinds, all);
    }

    #[test]
    fn a_plan_can_be_limited_to_some_kinds() {
        let mut plan = Plan::new(Random::new(1), 3, &["partition".to_string()]);
        assert!((0..50).all(|_| plan.draw().fault.kind().starts_with("partition")));
    }
}
