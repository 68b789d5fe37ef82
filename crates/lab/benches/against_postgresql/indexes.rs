//! Secondary indexes: a commit stays one round trip however many there are.

use anyhow::Result;
use onetrip_lab::page::paragraph;

use crate::figure::*;
use crate::stand::{self, Load, Stand};
use crate::{Bench, Section};

const INDEXES: [usize; 4] = [0, 1, 3, 10];
const FAR_CLIENTS: usize = 10;
const NEAR_CLIENTS: usize = 8;

async fn measure(bench: &Bench, topology: &str, clients: usize, alone: bool) -> Result<Vec<Figure>> {
    let stand = Stand::start(&bench.binary, stand::topology(topology)?, 0, alone).await?;
    stand.run_sql(&stand::table()).await?;
    let mut figures = Vec::new();
    let mut there = 0;
    for indexes in INDEXES {
        while there < indexes {
            there += 1;
            stand.run_sql(&format!("create index demo_value_{there} on demo (value)")).await?;
        }
        let script = stand::one_row();
        let load = Load { region: 0, case: indexes.to_string(), clients, seconds: bench.seconds, script };
        figures.extend(stand.compare(&load).await?);
    }
    stand.stop().await?;
    Ok(figures)
}

pub async fn section(bench: &Bench) -> Result<Section> {
    let far = measure(bench, "us.toml", FAR_CLIENTS, false).await?;
    let near = measure(bench, "flat.toml", NEAR_CLIENTS, true).await?;

    let case: Column = ("indexes", |f| f.case.clone());
    let mut text = paragraph(&format!(
        "Secondary indexes, each on the column that the updates change; with the distances of topologies/us.toml, \
         {FAR_CLIENTS} clients in {}:",
        far.first().map_or("", |figure| &figure.region)
    ));
    let columns = [case, SYSTEM, COMMITS, MIN, MEAN, P50, P99, P999, MEAN_TO_LIMIT, CPU, BYTES, PACKETS];
    text += &format!("\n{}\n", table(&columns, &far));
    text += &paragraph(&format!("The same without distance, {NEAR_CLIENTS} clients:"));
    let columns = [case, SYSTEM, COMMITS, MEAN, P99, P999, CPU, BYTES, COMMITS_BESIDE, CPU_BESIDE];
    text += &format!("\n{}", table(&columns, &near));
    let figures = far.into_iter().chain(near).collect();
    Ok(Section { heading: "Indexes", text, shown: String::new(), figures, files: vec![] })
}
