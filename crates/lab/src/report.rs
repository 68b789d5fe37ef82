//! The demo's table: one row for each region and set of indexes, as text for people and as JSON for programs.

use onetrip_client::table;
use serde::{Deserialize, Serialize};

use crate::pgbench::Measurement;
use crate::published::{self, Beside, Published};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    pub workload: String,
    pub topology: String,
    pub clients: usize,
    pub seconds: u64,
    pub rows: Vec<Row>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub connected_to: String,
    pub secondary_index: bool,
    /// The client's round trip plus the region's round trip to the nearest majority.
    pub limit_ms: f64,
    /// The mean latency divided by `limit_ms`; `None` if the topology has no distance.
    pub ratio_to_limit: Option<f64>,
    pub measured: Measurement,
    pub published: Beside,
}

impl Row {
    pub fn new(region: &str, secondary_index: bool, limit_ms: f64, clients: usize, measured: Measurement) -> Self {
        Self {
            connected_to: region.to_string(),
            secondary_index,
            limit_ms,
            ratio_to_limit: (limit_ms > 0.0).then(|| measured.mean_ms / limit_ms),
            published: published::beside(region, secondary_index, limit_ms, clients),
            measured,
        }
    }
}

impl Report {
    pub fn to_json(&self) -> String {
        let mut text =
            serde_json::to_string_pretty(self).expect("a report holds only numbers, strings and lists of them");
        text.push('\n');
        text
    }

    pub fn to_text(&self) -> String {
        let beside = self.rows.iter().any(|row| row.published != Beside::default());
        let mut head = vec!["connected to", "indexes", "tps", "mean ms", "p99 ms", "limit ms", "ratio", "failed"];
        if beside {
            head.extend(["DSQL ms", "YugabyteDB ms"]);
        }
        let mut lines = vec![head.into_iter().map(String::from).collect()];
        for row in &self.rows {
            let m = &row.measured;
            let mut line = vec![
                row.connected_to.clone(),
                if row.secondary_index { "+ one secondary" } else { "primary key" }.to_string(),
                format!("{:.0}", m.tps),
                format!("{:.1}", m.mean_ms),
                format!("{:.1}", m.p99_ms),
                format!("{:.0}", row.limit_ms),
                row.ratio_to_limit.map_or("-".to_string(), |r| format!("{r:.2}")),
                format!("{:.2} %", m.failed_percent),
            ];
            if beside {
                let published = |p: &Option<Published>| p.map_or("-".to_string(), |p| format!("{:.1}", p.mean_ms));
                line.extend([published(&row.published.aurora_dsql), published(&row.published.yugabytedb)]);
            }
            lines.push(line);
        }
        let mut text = table::render(&lines, 2);
        text += "\nlimit: the client's round trip plus one to the nearest majority.  ratio: mean over limit.\n";
        if beside {
            text +=
                "DSQL, YugabyteDB: published mean latencies of Aurora DSQL and YugabyteDB on this workload, measured\n\
                     in their providers' own regions at these distances; the other figures are of this machine.\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(mean_ms: f64) -> Measurement {
        Measurement {
            transactions: 100,
            failed: 1,
            failed_percent: 0.99,
            tps: 500.0,
            min_ms: mean_ms / 2.0,
            mean_ms,
            p50_ms: mean_ms,
            p99_ms: 2.0 * mean_ms,
            p999_ms: 3.0 * mean_ms,
            max_ms: 4.0 * mean_ms,
            initial_connection_ms: None,
        }
    }

    #[test]
    fn published_figures_stand_only_beside_the_same_distances() {
        let same = Row::new("us-east-1", false, 11.0, 10, measured(12.1));
        assert_eq!(same.published.aurora_dsql.unwrap().mean_ms, 23.0);
        assert!((same.ratio_to_limit.unwrap() - 1.1).abs() < 1e-9);
        for other in [
            Row::new("us-east-1", false, 12.0, 10, measured(12.1)),
            Row::new("us-east-1", false, 11.0, 20, measured(12.1)),
            Row::new("eu-west-1", false, 11.0, 10, measured(12.1)),
        ] {
            assert_eq!(other.published, Beside::default());
        }
        assert_eq!(Row::new("a", false, 0.0, 10, measured(1.0)).ratio_to_limit, None);
    }
}
