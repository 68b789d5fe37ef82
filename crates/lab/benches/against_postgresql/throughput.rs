//! Commits a second by the number of clients, without distance and with it, and what each costs in CPU, bytes and
//! packets.

use anyhow::Result;
use onetrip_lab::page::{self, paragraph};

use crate::figure::*;
use crate::stand::{self, Load, Stand};
use crate::{Bench, Section};

const LOADS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The numbers of clients that the README shows.
const SHOWN: [usize; 2] = [8, 32];

async fn measure(bench: &Bench, topology: &str, alone: bool) -> Result<Vec<Vec<Figure>>> {
    let mut stand = Stand::start(&bench.binary, stand::topology(topology)?, 0, alone).await?;
    stand.run_sql(&stand::table()).await?;
    if alone {
        stand.add_publisher(&stand::table()).await?;
    }
    let mut rounds = Vec::new();
    for clients in LOADS {
        let case = topology.to_string();
        let load = Load { region: 0, case, clients, seconds: bench.seconds, script: stand::one_row() };
        rounds.push(stand.compare(&load).await?);
    }
    stand.stop().await?;
    Ok(rounds)
}

pub async fn section(bench: &Bench) -> Result<Section> {
    let near = measure(bench, "flat.toml", true).await?;
    // For a PostgreSQL alone there is no distance.
    let far = measure(bench, "us.toml", false).await?;

    let columns = [CLIENTS, SYSTEM, COMMITS, MEAN, P99, P999, CPU, BYTES, PACKETS, BUSIEST, COMMITS_BESIDE, CPU_BESIDE];
    let mut text = paragraph(
        "One-row updates by the number of clients, without distance. All servers share the processors of this machine \
         with pgbench. CPU, bytes and packets are those of all servers of a system, for each commit, and the packets of \
         the direction between two of them that has the most. \"Logical\" is PostgreSQL's own logical replication, whose \
         subscribers carry out changes of rows as Onetrip's regions do, with as many of them synchronous. The last two \
         columns are commits a second and CPU over those of the PostgreSQL with standbys.",
    );
    text += &format!("\n{}\n", table(&columns, near.iter().flatten()));
    let region = far.iter().flatten().next().map_or(String::new(), |figure| figure.region.clone());
    text += &paragraph(&format!(
        "The same with the distances of topologies/us.toml and the clients in {region}, where the primary is too:"
    ));
    text += &format!("\n{}", table(&columns, far.iter().flatten()));
    let shown = shown(&near);
    Ok(Section {
        heading: "Clients",
        text,
        shown,
        figures: near.into_iter().chain(far).flatten().collect(),
        files: vec![],
    })
}

fn shown(rounds: &[Vec<Figure>]) -> String {
    let mut text = paragraph(
        "Where CPU decides: without distance, with all servers of a system and the clients on the processors of this \
         machine, one-row updates:",
    );
    let mut lines = vec![["clients", "", "commits/s", "mean ms", "CPU µs for each"].map(String::from).to_vec()];
    for figure in rounds.iter().flatten().filter(|figure| SHOWN.contains(&figure.clients)) {
        lines.push(vec![
            figure.clients.to_string(),
            figure.system.clone(),
            format!("{:.0}", figure.measured.tps),
            format!("{:.2}", figure.measured.mean_ms),
            format!("{:.0}", figure.cpu_us),
        ]);
    }
    text += &format!("\n{}", page::table(&lines));
    text
}
