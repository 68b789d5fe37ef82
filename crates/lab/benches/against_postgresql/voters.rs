//! 3, 5 and 7 voters, each a region with a PostgreSQL: throughput without distance, latency in each region with
//! distances.

use anyhow::Result;
use onetrip_lab::page::paragraph;
use onetrip_lab::Topology;

use crate::figure::*;
use crate::stand::{self, Load, Stand};
use crate::{Bench, Section};

/// Voters, and the distances between them.
const TOPOLOGIES: [(usize, &str); 3] = [(3, "us.toml"), (5, "five.toml"), (7, "seven.toml")];
const NEAR_CLIENTS: [usize; 2] = [8, 32];
const FAR_CLIENTS: usize = 10;

/// As many regions as voters, all in one place.
fn flat(voters: usize) -> Result<Topology> {
    let regions = ('a'..).take(voters).map(|name| format!("[[region]]\nname = \"{name}\"\n"));
    let text = format!("preferred_leader = \"a\"\n{}", regions.collect::<String>());
    Topology::parse(&text).map_err(anyhow::Error::msg)
}

async fn near(bench: &Bench, voters: usize) -> Result<Vec<Figure>> {
    let stand = Stand::start(&bench.binary, flat(voters)?, 0, false).await?;
    stand.run_sql(&stand::table()).await?;
    let mut figures = Vec::new();
    for clients in NEAR_CLIENTS {
        let case = voters.to_string();
        let load = Load { region: 0, case, clients, seconds: bench.seconds, script: stand::one_row() };
        figures.extend(stand.compare(&load).await?);
    }
    stand.stop().await?;
    Ok(figures)
}

async fn far(bench: &Bench, voters: usize, topology: &str) -> Result<Vec<Figure>> {
    let stand = Stand::start(&bench.binary, stand::topology(topology)?, 0, false).await?;
    stand.run_sql(&stand::table()).await?;
    let mut figures = Vec::new();
    for region in 0..voters {
        let case = voters.to_string();
        let script = stand::one_row();
        let load = Load { region, case, clients: FAR_CLIENTS, seconds: bench.seconds, script };
        match region {
            // The primary of the PostgreSQL with standbys is in this region only.
            0 => figures.extend(stand.compare(&load).await?),
            _ => figures.push(stand.measure_onetrip(&load).await?),
        }
    }
    stand.stop().await?;
    Ok(figures)
}

pub async fn section(bench: &Bench) -> Result<Section> {
    let (mut in_one_place, mut apart) = (Vec::new(), Vec::new());
    for (voters, topology) in TOPOLOGIES {
        in_one_place.extend(near(bench, voters).await?);
        apart.extend(far(bench, voters, topology).await?);
    }

    let case: Column = ("voters", |f| f.case.clone());
    let mut text = paragraph(
        "Voters, each a region with a PostgreSQL of its own; beside them a PostgreSQL that waits for as many standbys \
         as make a majority with it. Without distance, all servers on this machine:",
    );
    let columns = [case, CLIENTS, SYSTEM, COMMITS, MEAN, P99, P999, CPU, BYTES, PACKETS, COMMITS_BESIDE, CPU_BESIDE];
    text += &format!("\n{}\n", table(&columns, &in_one_place));
    let files: Vec<String> = TOPOLOGIES.iter().map(|(_, file)| format!("topologies/{file}")).collect();
    text += &paragraph(&format!(
        "With the distances of {}, {FAR_CLIENTS} clients in each region in turn. The PostgreSQL with standbys has its \
         primary in the first region of each. *limit* goes by the shortest way, which in published distances may lead \
         through another region.",
        files.join(", ")
    ));
    let columns = [
        case,
        REGION,
        LIMIT,
        SYSTEM,
        COMMITS,
        MIN,
        MEAN,
        P50,
        P99,
        P999,
        MEAN_TO_LIMIT,
        P999_TO_LIMIT,
        BYTES,
        PACKETS,
        LEADER,
    ];
    text += &format!("\n{}", table(&columns, &apart));
    let figures = in_one_place.into_iter().chain(apart).collect();
    Ok(Section { heading: "Voters", text, shown: String::new(), figures, files: vec![] })
}
