//! Which tables there are, and what their rows sum up to.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::snapshots::Reader;

#[derive(Debug, Clone)]
pub struct Table {
    /// Schema and name, quoted where SQL needs it.
    pub name: String,
    /// Every column with its type, in order.
    pub columns: String,
    /// The primary key's columns, quoted; empty without one.
    pub key: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Checksum {
    pub rows: i64,
    /// Sum of a 64-bit hash of each row's text: the order of rows does not matter.
    pub sum: String,
}

const CATALOG: &str = "
select format('%I.%I', n.nspname, c.relname),
       coalesce((select string_agg(format('%I %s%s', a.attname, format_type(a.atttypid, a.atttypmod),
                                          case when a.attnotnull then ' not null' else '' end), ', ' order by a.attnum)
                 from pg_attribute a
                 where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped), '(no columns)'),
       array(select format('%I', a.attname)
             from pg_index i, unnest(i.indkey::int2[]) with ordinality k(attnum, place), pg_attribute a
             where i.indrelid = c.oid and i.indisprimary and a.attrelid = c.oid and a.attnum = k.attnum
             order by k.place)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_am am on am.oid = c.relam
where c.relkind = 'r' and c.relpersistence = 'p' and am.amname = 'onetrip'";

pub async fn catalog(reader: &Reader) -> Result<BTreeMap<String, Table>> {
    let rows =
        reader.client.query(CATALOG, &[]).await.with_context(|| format!("list the tables of {}", reader.region))?;
    Ok(rows
        .iter()
        .map(|row| {
            let table = Table { name: row.get(0), columns: row.get(1), key: row.get(2) };
            (table.name.clone(), table)
        })
        .collect())
}

/// Of one table on every node, side by side.
pub async fn checksums(readers: &[Reader], table: &Table) -> Result<Vec<Checksum>> {
    let query = format!(
        "select count(*), coalesce(sum(hashtextextended((r.*)::text, 0)::numeric), 0)::text from only {} as r",
        table.name
    );
    let mut asked = Vec::new();
    for reader in readers {
        asked.push(checksum(reader, &query, table));
    }
    join_all(asked).await.into_iter().collect()
}

async fn checksum(reader: &Reader, query: &str, table: &Table) -> Result<Checksum> {
    let row = reader
        .client
        .query_one(query, &[])
        .await
        .with_context(|| format!("sum up {} in {}", table.name, reader.region))?;
    Ok(Checksum { rows: row.get(0), sum: row.get(1) })
}

/// All at once: polls each future in turn until every one is done.
async fn join_all<F: std::future::Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(|f| (Box::pin(f), None)).collect();
    std::future::poll_fn(|context| {
        let mut pending = false;
        for (future, output) in &mut futures {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(done) => *output = Some(done),
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            std::task::Poll::Pending
        } else {
            std::task::Poll::Ready(())
        }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}
