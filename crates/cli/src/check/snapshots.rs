//! Takes a snapshot on each node, all at the same log position.
//!
//! One session on each node asks for the snapshot at position N and waits for it; another session makes log entries
//! until all nodes have reached N.  A node that is already past N refuses, and then a larger N is tried.  A snapshot
//! shows a prefix of the log, so snapshots at the same position must show the same rows.

use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;
use tokio_postgres::Client;

use crate::conninfo::without_secrets;

/// How far N lies ahead of the nodes, at the first try and at most: the log grows while the nodes are asked.
const AHEAD_MIN: i64 = 1;
const AHEAD_MAX: i64 = 8_192;
const ADVANCE_EVERY: Duration = Duration::from_millis(3);

/// A session that reads at the position.
pub struct Reader {
    pub region: String,
    pub client: Client,
    /// Holds the snapshot; it must live as long as the reader.
    _exporter: Client,
}

/// What a query reads the table's rows from, each as a column `r`.  A plan would call functions of the table's owner,
/// which are in its indexes, as the superuser that a reader's session is.
pub fn rows_of(table: &str) -> String {
    format!("(select onetrip.rows_of(null::{table}) as r) as rows")
}

impl Reader {
    /// From here to `end_look` the reader may hold locks.
    pub async fn begin_look(&self) -> Result<()> {
        self.client.batch_execute("savepoint look").await.with_context(|| format!("read in {}", self.region))
    }

    /// Releases the locks, so that DDL from another region need not wait for this session, or end it.
    pub async fn end_look(&self) -> Result<()> {
        let release = self.client.batch_execute("rollback to savepoint look; release savepoint look").await;
        release.with_context(|| format!("read in {}", self.region))
    }
}

/// Values must be printed in the same way on all nodes, whatever the nodes' defaults are.
const SAME_OUTPUT: &str =
    "set local datestyle = 'ISO, YMD'; set local timezone = 'UTC'; set local intervalstyle = 'iso_8601'; \
    set local extra_float_digits = 3; set local bytea_output = 'hex'; \
    set local lc_monetary = 'C'; set local xmloption = 'content'; set local onetrip.show_sequence_shares = on";

pub async fn at_one_position(conninfos: &[String], timeout: Duration) -> Result<(i64, Vec<Reader>)> {
    let deadline = Instant::now() + timeout;
    let mut regions = Vec::new();
    let mut watchers = Vec::new();
    for conninfo in conninfos {
        let client = connect(conninfo).await?;
        let region = client.query_one("select current_setting('onetrip.region')", &[]).await;
        let region: String =
            region.with_context(|| format!("ask {} for its region", without_secrets(conninfo)))?.get(0);
        regions.push(region);
        watchers.push(client);
    }
    let mut ahead = AHEAD_MIN;
    while ahead <= AHEAD_MAX {
        let mut furthest = 0;
        for watcher in &watchers {
            let row = watcher.query_one("select onetrip.position()", &[]).await.context("ask for the position")?;
            furthest = furthest.max(row.get::<_, i64>(0));
        }
        let position = furthest + ahead;
        match export_all(conninfos, &regions, &watchers, position, deadline).await? {
            Some(exported) => {
                let mut readers = Vec::new();
                for ((region, conninfo), (exporter, snapshot)) in regions.iter().zip(conninfos).zip(exported) {
                    readers.push(reader(region, conninfo, exporter, &snapshot).await?);
                }
                return Ok((position, readers));
            }
            None => ahead *= 8,
        }
    }
    bail!("the log grows too fast to take a snapshot at one position on all nodes; try again when the load is lower")
}

pub async fn connect(conninfo: &str) -> Result<Client> {
    let client = crate::conninfo::connect(conninfo, "onetrip check").await?;
    // All regions are compared at one position, whatever the database says.
    let own = "set onetrip.read = local; set onetrip.max_staleness = -1; set onetrip.max_trips = -1;
               set default_transaction_read_only = off";
    client.batch_execute(own).await.context("set how it reads")?;
    Ok(client)
}

/// `None`: a node was already past the position.
async fn export_all(
    conninfos: &[String],
    regions: &[String],
    watchers: &[Client],
    position: i64,
    deadline: Instant,
) -> Result<Option<Vec<(Client, String)>>> {
    let mut exports = JoinSet::new();
    for (node, conninfo) in conninfos.iter().enumerate() {
        let client = connect(conninfo).await?;
        client.batch_execute("begin").await.context("begin")?;
        exports.spawn(async move {
            let row = client.query_one("select onetrip.export_snapshot_at($1)", &[&position]).await;
            (node, row.map(|row| (client, row.get::<_, String>(0))))
        });
    }
    let mut exported: Vec<Option<(Client, String)>> = conninfos.iter().map(|_| None).collect();
    let mut advancing = 0;
    loop {
        tokio::select! {
            biased;
            export = exports.join_next() => match export {
                None => break,
                Some(joined) => {
                    let (node, result) = joined.context("wait for a snapshot")?;
                    match result {
                        Ok(got) => exported[node] = Some(got),
                        Err(e) if e.code() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) => return Ok(None),
                        Err(e) => return Err(e).with_context(|| format!("take a snapshot in {}", regions[node])),
                    }
                }
            },
            () = tokio::time::sleep(ADVANCE_EVERY) => {
                if Instant::now() >= deadline {
                    let late: Vec<&str> =
                        (0..regions.len()).filter(|i| exported[*i].is_none()).map(|i| regions[i].as_str()).collect();
                    bail!(
                        "no snapshot at position {position} in time from {}: if onetrip status shows nothing wrong there, give it \
                         more time (--timeout)",
                        late.join(", ")
                    );
                }
                advancing = advance(watchers, advancing, deadline).await;
            }
        }
    }
    Ok(exported.into_iter().collect())
}

/// Makes one log entry through a node; returns the node through which to make the next.
async fn advance(watchers: &[Client], through: usize, deadline: Instant) -> usize {
    let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(5));
    match tokio::time::timeout(left, watchers[through].batch_execute("select onetrip.advance()")).await {
        Ok(Ok(())) => through,
        // This region cannot commit now, but another may.
        _ => (through + 1) % watchers.len(),
    }
}

async fn reader(region: &str, conninfo: &str, exporter: Client, snapshot: &str) -> Result<Reader> {
    let client = connect(conninfo).await?;
    let begin = format!(
        "begin isolation level repeatable read read only; set transaction snapshot '{}'; {SAME_OUTPUT}",
        snapshot.replace('\'', "''")
    );
    client.batch_execute(&begin).await.with_context(|| format!("read at the snapshot in {region}"))?;
    let asked = client.query_one("select to_regprocedure('onetrip.rows_of(anyelement)') is not null", &[]).await;
    // Those of the first release do not have it.
    if !asked.with_context(|| format!("ask what the server of {region} has"))?.get::<_, bool>(0) {
        bail!(
            "the extension of {region} is of an earlier release, with which the rows of tables cannot be read without \
             calling functions of their owners: finish the upgrade (docs/upgrade.md), whose last step is ALTER EXTENSION \
             onetrip UPDATE, and check again"
        );
    }
    Ok(Reader { region: region.to_string(), client, _exporter: exporter })
}
