//! Finds the tables and materialized views whose rows are compared, and computes their checksums.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;

use super::snapshots::{rows_of, Reader};

#[derive(Debug, Clone)]
pub struct Table {
    /// Schema and name, quoted where SQL needs it.
    pub name: String,
    /// Every column with its type, in order: only rows with the same columns can be compared.
    pub columns: String,
    /// The primary key's columns, quoted; empty without one.
    pub key: Vec<String>,
    /// The names of all columns, not quoted.
    pub column_names: Vec<String>,
    pub is_view: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Checksum {
    pub rows: i64,
    /// The sum of a 64-bit hash of each row's bytes, so that the order of rows does not matter.
    pub sum: String,
}

/// Compared as a table is, if there are any.
pub const LARGE_OBJECTS: &str = "pg_catalog.pg_largeobject";

const CATALOG: &str = "
select format('%I.%I', n.nspname, c.relname),
       coalesce((select string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' order by a.attnum)
                 from pg_attribute a
                 where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped), '(no columns)'),
       array(select format('%I', a.attname)
             from pg_index i, unnest(i.indkey::int2[]) with ordinality k(attnum, place), pg_attribute a
             where i.indrelid = c.oid and i.indisprimary and a.attrelid = c.oid and a.attnum = k.attnum
             order by k.place),
       array(select a.attname::text from pg_attribute a
             where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum),
       c.relkind = 'm'
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_am am on am.oid = c.relam
where c.relpersistence = 'p' and (c.relkind = 'r' and am.amname = 'onetrip' or c.relkind = 'm' and c.relispopulated)
    or c.oid = 'pg_largeobject'::regclass";

pub async fn catalog(reader: &Reader) -> Result<BTreeMap<String, Table>> {
    let rows =
        reader.client.query(CATALOG, &[]).await.with_context(|| format!("list the tables of {}", reader.region))?;
    Ok(rows
        .iter()
        .map(|row| {
            let table = Table {
                name: row.get(0),
                columns: row.get(1),
                key: row.get(2),
                column_names: row.get(3),
                is_view: row.get(4),
            };
            (table.name.clone(), table)
        })
        .collect())
}

/// The checksums of one table on every node, which compute them at the same time.
pub async fn checksums(readers: &[Reader], table: &Table) -> Result<Vec<Checksum>> {
    let mut asked = Vec::new();
    for reader in readers {
        asked.push(checksum(reader, table));
    }
    join_all(asked).await.into_iter().collect()
}

async fn checksum(reader: &Reader, table: &Table) -> Result<Checksum> {
    let rows = rows_of(&table.name);
    let query = format!("select count(*), coalesce(sum(onetrip.row_hash(r)), 0)::text from {rows}");
    reader.begin_look().await?;
    let row = reader.client.query_one(&query, &[]).await;
    let row = row.with_context(|| format!("sum up {} in {}", table.name, reader.region))?;
    reader.end_look().await?;
    Ok(Checksum { rows: row.get(0), sum: row.get(1) })
}

/// Something whose contents belong to one region and are not replicated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Local {
    /// For example "unlogged table public.t".
    pub what: String,
    pub regions: Vec<String>,
}

const LOCAL: &str = "
select case when c.relpersistence = 't' then 'temporary ' when c.relpersistence = 'u' then 'unlogged ' else '' end
       || case c.relkind when 'r' then 'table ' when 'f' then 'foreign table ' when 'S' then 'sequence ' else 'materialized view ' end
       || format('%I.%I', n.nspname, c.relname)
       || case when c.relkind = 'r' and c.relpersistence = 'p' then format(' (access method %s)', am.amname) else '' end
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
left join pg_am am on am.oid = c.relam
where c.oid >= 16384
    and (c.relkind = 'r' and (c.relpersistence <> 'p' or am.amname <> 'onetrip') or c.relkind = 'f'
         or c.relkind in ('m', 'S') and c.relpersistence = 'u')";

/// Reported only if not every region has it.
const CLUSTERED: &str = "
select format('mark of CLUSTER on index %I.%I', n.nspname, c.relname)
from pg_index i join pg_class c on c.oid = i.indexrelid join pg_namespace n on n.oid = c.relnamespace
where i.indisclustered and c.relpersistence <> 't'";

pub async fn local(readers: &[Reader]) -> Result<Vec<Local>> {
    let mut all = by_region(readers, LOCAL).await?;
    let marks = by_region(readers, CLUSTERED).await?;
    all.extend(marks.into_iter().filter(|(_, regions)| regions.len() < readers.len()));
    Ok(all.into_iter().map(|(what, regions)| Local { what, regions }).collect())
}

async fn by_region(readers: &[Reader], query: &str) -> Result<BTreeMap<String, Vec<String>>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for reader in readers {
        let rows = reader.client.query(query, &[]).await;
        for row in rows.with_context(|| format!("list what is local in {}", reader.region))? {
            all.entry(row.get(0)).or_default().push(reader.region.clone());
        }
    }
    Ok(all)
}

/// Runs all futures at the same time, and returns their outputs in order.
pub async fn join_all<F: std::future::Future>(futures: Vec<F>) -> Vec<F::Output> {
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
