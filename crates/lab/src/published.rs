//! Published latencies of other databases on the demo's update workload, to be shown beside what is measured.
//!
//! The published runs used pgbench with 10 connections for 300 s, with the client in us-east-1, in the providers' own
//! regions; the round trips are those in `topologies/us.toml`.  They are shown only beside a row with the same region,
//! limit and number of clients.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Published {
    pub mean_ms: f64,
    pub tps: f64,
    pub failed_percent: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Beside {
    pub aurora_dsql: Option<Published>,
    pub yugabytedb: Option<Published>,
}

struct Row {
    region: &'static str,
    secondary_index: bool,
    limit_ms: f64,
    beside: Beside,
}

const fn published(mean_ms: f64, tps: f64, failed_percent: f64) -> Option<Published> {
    Some(Published { mean_ms, tps, failed_percent })
}

const fn row(
    region: &'static str,
    secondary_index: bool,
    limit_ms: f64,
    aurora_dsql: Option<Published>,
    yugabytedb: Option<Published>,
) -> Row {
    Row { region, secondary_index, limit_ms, beside: Beside { aurora_dsql, yugabytedb } }
}

const ROWS: [Row; 5] = [
    row("us-east-1", false, 11.0, published(23.0, 433.0, 1.21), published(20.3, 491.0, 0.0)),
    row("us-east-2", false, 20.0, published(37.3, 265.0, 1.65), published(35.3, 283.0, 0.0)),
    row("us-east-1", true, 11.0, published(22.1, 451.0, 1.35), published(35.5, 282.0, 0.0)),
    row("us-east-2", true, 20.0, published(37.8, 262.0, 1.64), published(63.1, 158.0, 0.0)),
    // Aurora DSQL has no endpoint in this region.
    row("us-west-2", true, 112.0, None, published(278.0, 36.0, 0.0)),
];

/// What was published for this row; nothing if the row was measured at another distance or with another number of
/// clients.
pub fn beside(region: &str, secondary_index: bool, limit_ms: f64, clients: usize) -> Beside {
    ROWS.iter()
        .find(|row| {
            row.region == region
                && row.secondary_index == secondary_index
                && (row.limit_ms - limit_ms).abs() < 1e-9
                && clients == 10
        })
        .map_or(Beside::default(), |row| row.beside)
}

/// How long pgbench took to connect its 10 clients, in milliseconds: to Aurora DSQL and to YugabyteDB.
const CONNECTING: [(&str, Option<f64>, Option<f64>); 3] = [
    ("us-east-1", Some(1_683.0), Some(320.0)),
    ("us-east-2", Some(2_665.0), Some(1_129.0)),
    ("us-west-2", None, Some(5_915.0)),
];

/// What was published for connecting to this region, likewise.
pub fn connecting(region: &str, clients: usize) -> (Option<f64>, Option<f64>) {
    let found = CONNECTING.iter().find(|(of, ..)| *of == region && clients == 10);
    found.map_or((None, None), |(_, aurora_dsql, yugabytedb)| (*aurora_dsql, *yugabytedb))
}
