//! Rows in a transaction, from 1 to 100,000: a commit stays one round trip.

use anyhow::Result;
use onetrip_lab::page::paragraph;

use crate::figure::*;
use crate::stand::{self, Load, Stand, ROWS};
use crate::{Bench, Section};

const SIZES: [u32; 6] = [1, 10, 100, 1_000, 10_000, 100_000];

pub async fn section(bench: &Bench) -> Result<Section> {
    let stand = Stand::start(&bench.binary, stand::topology("us.toml")?, 0, true).await?;
    stand.run_sql(&stand::table()).await?;
    let mut figures = Vec::new();
    for size in SIZES {
        let script = format!(
            "\\set first random(1, {})\nupdate demo set value = value + 1 where id between :first and :first + {};\n",
            ROWS - size + 1,
            size - 1
        );
        let load = Load { region: 0, case: size.to_string(), clients: 1, seconds: bench.seconds, script };
        figures.extend(stand.compare(&load).await?);
    }
    stand.stop().await?;

    let mut text = paragraph(&format!(
        "Rows that one transaction updates, one client in {}, distances of topologies/us.toml, limit {:.0} ms. What a \
         PostgreSQL alone takes is the statement; what the others take beyond it is their COMMIT and what they \
         capture. CPU is for each row.",
        figures.first().map_or("", |figure| &figure.region),
        figures.first().map_or(0.0, |figure| figure.limit_ms)
    ));
    let case: Column = ("rows", |f| f.case.clone());
    let cpu_each: Column = ("CPU µs a row", |f| of_row(f, f.cpu_us, 2));
    let bytes_each: Column = ("bytes a row", |f| of_row(f, f.bytes, 0));
    let columns = [case, SYSTEM, COMMITS, MIN, MEAN, P50, P99, MAX, cpu_each, bytes_each, PACKETS];
    text += &format!("\n{}", table(&columns, &figures));
    Ok(Section { heading: "Rows", text, shown: String::new(), figures, files: vec![] })
}

fn of_row(figure: &Figure, of_commit: f64, digits: usize) -> String {
    let rows = figure.case.parse().unwrap_or(1.0);
    format!("{:.digits$}", of_commit / rows)
}
