//! The demo's workload: single-row updates by pgbench against each region, without and with a secondary index.

use anyhow::{Context, Result};
use onetrip_lab::limit::limit_ms;
use onetrip_lab::pgbench::Pgbench;
use onetrip_lab::report::{Report, Row};
use onetrip_lab::{Cluster, Node};

use super::{folder::DemoFolder, say, Plan};

const ROWS: u32 = 1_000;
const SCRIPT: &str = "\\set id random(1, 1000)\n\\set new_value random(1, 1000000)\n\
                      update demo set value = :new_value where id = :id;\n";

/// Runs the workload against each region, through the client links that listen on `ports`.
pub async fn measure(plan: &Plan, folder: &DemoFolder, cluster: &Cluster, ports: &[u16]) -> Result<Report> {
    let topology = &plan.topology;
    say("waiting until the leader is in the best place");
    let leader = cluster.settled().await?;
    say(&format!("the leader is in {}", topology.regions[leader].name));
    let client = cluster.connect(leader).await?;
    let load = format!(
        "create table demo (id int primary key, value int);
         insert into demo select i, i from generate_series(1, {ROWS}) i"
    );
    client.batch_execute(&load).await.context("make the table")?;
    cluster.converge().await?;
    let mut rows = Vec::new();
    for secondary_index in [false, true] {
        if secondary_index {
            // DDL on a table fails if it has not seen a write from another region.
            cluster.converge().await?;
            client.batch_execute("create index on demo (value)").await.context("make the index")?;
            cluster.converge().await?;
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
            // This region must show what the last measurement wrote, or the first updates would conflict with it.
            cluster.converge().await?;
            let measured = match pgbench.run().await {
                Ok(measured) => measured,
                Err(e) => return Err(explained(e, cluster.node(number)).await),
            };
            rows.push(Row::new(&region.name, secondary_index, limit_ms(topology, number), plan.clients, measured));
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

/// Explains an error of pgbench: its cause is usually that a node or a server has ended.
async fn explained(error: anyhow::Error, node: &Node) -> anyhow::Error {
    let region = node.region();
    if !node.running() {
        return anyhow::anyhow!("the node of {region} ended while it was measured: {}", node.log_tail(1));
    }
    match node.status().await {
        Ok(status) if status["postgres"]["restarts"] != 0 || status["postgres"]["state"] != "ready" => {
            let log = node.folder().join("postgres.log");
            anyhow::anyhow!("PostgreSQL of {region} ended while it was measured (its log: {})", log.display())
        }
        _ => error.context(format!("measure {region}")),
    }
}
