//! The demo's workload: single-row updates by pgbench against each region, without and with a secondary index.

use anyhow::{Context, Result};
use onetrip_lab::pgbench::Pgbench;
use onetrip_lab::report::{Report, Row};
use onetrip_lab::Cluster;

use super::{folder::DemoFolder, say, Plan};

const ROWS: u32 = 1_000;
const SCRIPT: &str = "\\set id random(1, 1000)\n\\set new_value random(1, 1000000)\n\
                      update demo set value = :new_value where id = :id;\n";

/// `ports`: where each region's client link listens.
pub async fn measure(plan: &Plan, folder: &DemoFolder, cluster: &Cluster, ports: &[u16]) -> Result<Report> {
    let topology = &plan.topology;
    let leader = topology.region_index(topology.preferred_leader()).context("find the preferred leader")?;
    let client = cluster.connect(leader).await?;
    let load = format!(
        "create table demo (id int primary key, value int);
         insert into demo select i, i from generate_series(1, {ROWS}) i"
    );
    client.batch_execute(&load).await.context("make the table")?;
    cluster.settle().await?;
    let mut rows = Vec::new();
    for secondary_index in [false, true] {
        if secondary_index {
            client.batch_execute("create index on demo (value)").await.context("make the index")?;
            cluster.settle().await?;
        }
        for (number, region) in topology.regions.iter().enumerate() {
            let kind = if secondary_index { "with a secondary index" } else { "primary key only" };
            say(&format!("measuring {} for {} s, {kind}", region.name, plan.seconds));
            let pgbench = Pgbench {
                program: plan.bin_dir.join("pgbench"),
                host: "127.0.0.1".to_string(),
                port: ports[number],
                user: "postgres".to_string(),
                database: topology.database().to_string(),
                clients: plan.clients,
                threads: 2,
                seconds: plan.seconds,
                script: Some(SCRIPT.to_string()),
                folder: folder.scratch(&format!("{}-{}", region.name, u8::from(secondary_index)))?,
            };
            let measured = pgbench.run().await.with_context(|| format!("measure {}", region.name))?;
            rows.push(Row::new(&region.name, secondary_index, topology.limit_ms(number), plan.clients, measured));
        }
    }
    Ok(Report {
        workload: format!("update of one random row of {ROWS}, autocommit"),
        topology: plan.topology_name.clone(),
        clients: plan.clients,
        seconds: plan.seconds,
        rows,
    })
}
