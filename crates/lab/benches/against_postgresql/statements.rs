//! Many rows in one statement, with the distances of topologies/us.toml.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use onetrip_lab::limit::majority_rtt_ms;
use onetrip_lab::page::{self, paragraph};

use crate::stand::{self, Stand};
use crate::{Bench, Section};

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

pub async fn section(bench: &Bench) -> Result<Section> {
    let stand = Stand::start(&bench.binary, stand::topology("us.toml")?, 0, true).await?;
    let clients = stand.clients().await?;
    let mut head = vec![String::new()];
    head.extend(clients.iter().map(|(name, _)| format!("{name} ms")));
    head.push("crossings".into());
    let mut lines = vec![head];
    for statement in &STATEMENTS {
        let mut line = vec![statement.name.to_string()];
        let mut crossings = None;
        for (_, client) in &clients {
            let (time, proposals) = time_statement(client, statement).await?;
            stand.converge().await?;
            line.push(format!("{:.0}", time.as_secs_f64() * 1e3));
            crossings = proposals.or(crossings);
        }
        line.push(crossings.map_or("?".into(), |n| n.to_string()));
        lines.push(line);
    }
    let about = format!(
        "100,000 rows in one statement, a client in {}, {:.0} ms from the nearest majority; medians of {RUNS}. \
         *crossings* counts what Onetrip's region sent to the others:",
        stand.region_name(0),
        majority_rtt_ms(stand.cluster.topology(), 0)
    );
    stand.stop().await?;
    let text = format!("{}\n{}", paragraph(&about), page::table(&lines));
    Ok(Section { heading: "Statements", shown: text.clone(), text, figures: vec![], files: vec![] })
}
