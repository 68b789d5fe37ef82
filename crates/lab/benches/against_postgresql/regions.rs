//! Clients in each region in turn: how near is a commit to the limit, the round trip to the nearest majority?

use anyhow::Result;
use onetrip_lab::page::{self, paragraph};
use onetrip_lab::scatter::{self, Panel, Series};

use crate::figure::*;
use crate::stand::{self, Load, Stand};
use crate::{Bench, Section};

const IN_EACH: usize = 10;
/// How many times longer than other measurements these are: a p99.9 needs many commits.
const LONGER: u64 = 4;
const SCATTER: &str = "commit-latency.svg";

pub async fn section(bench: &Bench) -> Result<Section> {
    let stand = Stand::start(&bench.binary, stand::topology("us.toml")?, 0, false).await?;
    let home = stand.region_name(0).to_string();
    stand.run_sql(&stand::table()).await?;
    let distances = stand.distances().await?;
    let seconds = bench.seconds * LONGER;
    let mut rounds = Vec::new();
    for region in 0..stand.cluster.nodes().len() {
        let load = Load { region, case: String::new(), clients: IN_EACH, seconds, script: stand::one_row() };
        rounds.push(stand.compare(&load).await?);
    }
    stand.stop().await?;

    let columns = [
        REGION,
        LIMIT,
        SYSTEM,
        COMMITS,
        MIN,
        MEAN,
        P50,
        P99,
        P999,
        MAX,
        MEAN_TO_LIMIT,
        P999_TO_LIMIT,
        CPU,
        BYTES,
        PACKETS,
        LEADER,
    ];
    let mut text = paragraph(&format!(
        "Clients in each region in turn, {IN_EACH} of them, one-row updates, {seconds} s for each line. Onetrip's \
         clients use the PostgreSQL of their own region. The PostgreSQL with standbys takes writes in {home} alone: \
         clients in other regions go there, over the same distance. *limit* is the round trip to the nearest majority, by the \
         shortest way."
    ));
    text +=
        &format!("\n{}\n![latency of each commit over time]({SCATTER})\n\n", table(&columns, rounds.iter().flatten()));
    text += &paragraph(
        "In the scatter each point is a transaction, of which COMMIT is nearly all; the slowest hundredth of each \
         system is there, and of the others as many as fit. The distances, as the nodes and a client on each \
         standby's link measured them:",
    );
    text += &format!("\n{}", page::table(&distances));
    let shown = shown(&rounds, &home);
    let svg = scatter::svg(&rounds.iter().map(|round| panel(round)).collect::<Vec<_>>())?;
    let figures = rounds.into_iter().flatten().collect();
    Ok(Section { heading: "Regions", text, shown, figures, files: vec![(SCATTER, svg)] })
}

fn panel(round: &[Figure]) -> Panel {
    // Onetrip is the last in a round; in reverse order it has the first colour.
    let series = round.iter().rev().map(|f| Series { name: f.system.clone(), commits: f.commits.clone() });
    let first = round.first();
    Panel {
        title: first.map_or(String::new(), |f| format!("clients in {}", f.region)),
        limit_ms: first.map_or(0.0, |f| f.limit_ms),
        series: series.collect(),
    }
}

fn shown(rounds: &[Vec<Figure>], home: &str) -> String {
    let mut text = paragraph(&format!(
        "Clients in each region in turn, beside a PostgreSQL that waits for any one of two synchronous standbys (ANY \
         1) and takes writes in {home} only; *limit* is the round trip to the nearest majority, and the times are in ms:"
    ));
    let head = ["clients in", "limit", "Onetrip, mean", "ratio", "p99.9", "ANY 1, mean", "ratio", "p99.9"];
    let mut lines = vec![head.map(String::from).to_vec()];
    for round in rounds {
        let [any, onetrip] = &round[..] else { continue };
        let mut line = vec![onetrip.region.clone(), format!("{:.0}", onetrip.limit_ms)];
        for figure in [onetrip, any] {
            let m = &figure.measured;
            line.extend([format!("{:.1}", m.mean_ms), figure.to_limit(m.mean_ms), format!("{:.1}", m.p999_ms)]);
        }
        lines.push(line);
    }
    text += &format!("\n{}", page::table(&lines));
    text
}
