//! Looks for rows that an index does not find.  Each region is checked by itself, so no position of the log is needed.
//!
//! B-trees are checked by amcheck.  Its extension need not be created, only its library must be installed: a temporary
//! function makes the library callable and goes away with the session.  Other indexes, and B-trees where amcheck is not
//! installed, are checked by `onetrip.rows_not_in_index()`.  Each index is checked in a transaction of its own, so that
//! locks are held only briefly.

use anyhow::{Context, Result};
use onetrip_node::printable_part;
use serde::Serialize;
use tokio_postgres::error::SqlState;
use tokio_postgres::Client;

use super::snapshots::connect;
use super::tables::join_all;

#[derive(Debug, Default, Serialize)]
pub struct Indexes {
    /// The number of indexes that were checked, in all regions together.
    pub looked_through: usize,
    pub damaged: Vec<Damaged>,
    /// Indexes of a kind that cannot be checked.
    pub left_out: Vec<String>,
    /// Regions where amcheck is not installed.
    pub without_amcheck: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Damaged {
    pub index: String,
    pub region: String,
    pub what: String,
}

const INDEXES: &str = "
select format('%I.%I', n.nspname, c.relname), am.amname::text
from pg_catalog.pg_index i
join pg_catalog.pg_class c on c.oid = i.indexrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
join pg_catalog.pg_am am on am.oid = c.relam
where c.relkind = 'i' and c.relpersistence <> 't' and i.indisvalid and am.amname <> 'onetrip_large_object'
order by 1";

const AMCHECK: &str = "
create function pg_temp.onetrip_check_btree(index pg_catalog.regclass, heapallindexed pg_catalog.bool) returns pg_catalog.void
language c strict as '$libdir/amcheck', 'bt_index_check'";

impl Indexes {
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for damaged in &self.damaged {
            let (index, what) = (printable_part(&damaged.index), printable_part(&damaged.what));
            text += &format!("index {index} in {}: {what}\n", damaged.region);
            text += &format!("  mend it there with: REINDEX INDEX {index}\n");
        }
        text += &format!("{} indexes looked through\n", self.looked_through);
        if !self.left_out.is_empty() {
            text += &format!("indexes that cannot be looked through: {}\n", printable_part(&self.left_out.join(", ")));
        }
        if !self.without_amcheck.is_empty() {
            let regions = self.without_amcheck.join(", ");
            text += &format!("amcheck is not installed, so B-trees were only checked for missing rows: {regions}\n");
        }
        text
    }
}

pub async fn look_through(conninfos: &[String]) -> Result<Indexes> {
    let mut all = Indexes::default();
    for found in join_all(conninfos.iter().map(|conninfo| of_region(conninfo)).collect()).await {
        let found = found?;
        all.looked_through += found.looked_through;
        all.damaged.extend(found.damaged);
        all.left_out.extend(found.left_out);
        all.without_amcheck.extend(found.without_amcheck);
    }
    all.left_out.sort();
    all.left_out.dedup();
    Ok(all)
}

async fn of_region(conninfo: &str) -> Result<Indexes> {
    let client = connect(conninfo).await?;
    let row = client.query_one("select current_setting('onetrip.region')", &[]).await;
    let region: String = row.context("ask a node for its region")?.get(0);
    let mut found = Indexes::default();
    let amcheck = match client.batch_execute(AMCHECK).await {
        Ok(()) => true,
        Err(e) if e.code() == Some(&SqlState::UNDEFINED_FILE) => {
            found.without_amcheck.push(region.clone());
            false
        }
        Err(e) => return Err(e).with_context(|| format!("call amcheck in {region}")),
    };
    let indexes = client.query(INDEXES, &[]).await.with_context(|| format!("list the indexes of {region}"))?;
    for row in indexes {
        let (index, method): (String, String) = (row.get(0), row.get(1));
        let looked = match amcheck && method == "btree" {
            true => by_amcheck(&client, &index).await,
            false => by_rows(&client, &index).await,
        };
        match looked {
            Ok(None) => found.left_out.push(format!("{index} ({method})")),
            Ok(Some(None)) => found.looked_through += 1,
            Ok(Some(Some(what))) => found.damaged.push(Damaged { index, region: region.clone(), what }),
            // The index was dropped meanwhile.
            Err(e) if is_gone(&e) => {}
            Err(e) => match e.as_db_error() {
                Some(db) => {
                    let what = format!("it cannot be looked through: {}", db.message());
                    found.damaged.push(Damaged { index, region: region.clone(), what });
                }
                None => return Err(e).with_context(|| format!("look through {index} in {region}")),
            },
        }
    }
    Ok(found)
}

fn is_gone(error: &tokio_postgres::Error) -> bool {
    [&SqlState::UNDEFINED_TABLE, &SqlState::UNDEFINED_OBJECT].iter().any(|code| error.code() == Some(code))
}

/// `None`: the index was not checked; `Some(None)`: it is sound; `Some(Some(..))`: what is wrong.
type Looked = Result<Option<Option<String>>, tokio_postgres::Error>;

async fn by_amcheck(client: &Client, index: &str) -> Looked {
    let text = index.replace('\'', "''");
    let query = format!("select pg_temp.onetrip_check_btree('{text}'::pg_catalog.regclass, true)");
    match client.batch_execute(&query).await {
        Ok(()) => Ok(Some(None)),
        Err(e) => match e.as_db_error() {
            Some(db) if *db.code() == SqlState::INDEX_CORRUPTED || *db.code() == SqlState::DATA_CORRUPTED => {
                Ok(Some(Some([Some(db.message()), db.detail()].into_iter().flatten().collect::<Vec<_>>().join("; "))))
            }
            _ => Err(e),
        },
    }
}

async fn by_rows(client: &Client, index: &str) -> Looked {
    let text = index.replace('\'', "''");
    let query = format!("select onetrip.rows_not_in_index('{text}'::pg_catalog.regclass)");
    let lacking: Option<i64> = client.query_one(&query, &[]).await?.get(0);
    Ok(lacking.map(|rows| (rows > 0).then(|| format!("it does not find {rows} rows of its table"))))
}
