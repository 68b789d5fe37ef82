//! Many rows in one statement: plain PostgreSQL, and the leader's region with the distances of topologies/us.toml.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use onetrip_lab::limit::majority_rtt_ms;
use onetrip_lab::{Cluster, Topology};

use crate::repository;
use crate::server::Server;

/// Runs of each statement; the median is reported.
const RUNS: usize = 3;

struct Statement {
    name: &'static str,
    before: &'static str,
    run: &'static str,
}

const STATEMENTS: [Statement; 3] = [
    Statement {
        name: "insert ... select",
        before: "create table big (id int primary key, value text)",
        run: "insert into big select i, 'value ' || i from generate_series(1, 100000) i",
    },
    Statement {
        name: "insert ... select, on conflict do nothing",
        before: "create table big (id int primary key, value text)",
        run: "insert into big select i, 'value ' || i from generate_series(1, 100000) i on conflict do nothing",
    },
    Statement {
        name: "insert ... select, with a row trigger in PL/pgSQL",
        before: "create table big (id int primary key, value text);
                 create or replace function stamp() returns trigger language plpgsql as
                     $$ begin new.value := new.value || '!'; return new; end $$;
                 create trigger stamp before insert on big for each row execute function stamp()",
        run: "insert into big select i, 'value ' || i from generate_series(1, 100000) i",
    },
];

async fn time_statement(client: &tokio_postgres::Client, statement: &Statement) -> Result<(Duration, Option<i64>)> {
    let mut times = Vec::new();
    let mut crossings = None;
    for _ in 0..RUNS {
        client.batch_execute(statement.before).await?;
        let proposals = proposals(client).await?;
        let start = Instant::now();
        client.batch_execute(statement.run).await.with_context(|| statement.name)?;
        times.push(start.elapsed());
        crossings = match (proposals, self::proposals(client).await?) {
            (Some(before), Some(after)) => Some(after - before),
            _ => None,
        };
        client.batch_execute("drop table big").await?;
    }
    times.sort();
    Ok((times[RUNS / 2], crossings))
}

/// How many entries this server has proposed; `None` on plain PostgreSQL.
async fn proposals(client: &tokio_postgres::Client) -> Result<Option<i64>> {
    let known = client.query_one("select to_regclass('onetrip.status') is not null", &[]).await?.get::<_, bool>(0);
    if !known {
        return Ok(None);
    }
    Ok(Some(client.query_one("select proposals from onetrip.status", &[]).await?.get(0)))
}

pub async fn many_rows(binary: &Path) -> Result<()> {
    let plain = Server::start().await?;
    let plain_client = plain.connect().await?;
    let topology = Topology::load(&repository().join("topologies/us.toml"))?;
    let cluster = Cluster::builder().topology(topology).binary(binary).start().await?;
    let leader = cluster.settled().await?;
    let round_trip = majority_rtt_ms(cluster.topology(), leader);
    let client = cluster.connect(leader).await?;

    println!("\n### 100,000 rows in one statement, median of {RUNS}; Onetrip's regions {round_trip} ms apart\n");
    println!("| | plain PostgreSQL ms | Onetrip ms | ratio | crossings |\n|---|---|---|---|---|");
    for statement in &STATEMENTS {
        let (plain_time, _) = time_statement(&plain_client, statement).await?;
        let (time, crossings) = time_statement(&client, statement).await?;
        cluster.converge().await?;
        println!(
            "| {} | {:.0} | {:.0} | {:.2} | {} |",
            statement.name,
            plain_time.as_secs_f64() * 1e3,
            time.as_secs_f64() * 1e3,
            time.as_secs_f64() / plain_time.as_secs_f64(),
            crossings.map_or("?".into(), |n| n.to_string())
        );
    }
    cluster.stop().await
}
