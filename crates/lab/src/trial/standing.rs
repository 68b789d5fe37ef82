//! At which entry each region is: waits until all regions show the same, and finds regions that are stuck.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};

use super::sql::rows;
use crate::{crashes, Cluster};

/// Every region must show the last index within this time.
const BOUND: Duration = Duration::from_secs(20);
/// An entry that has failed for this long will not succeed any more.
const FAILS: Duration = Duration::from_millis(2_500);
const POLL: Duration = Duration::from_millis(20);

/// A region that makes no progress.
#[derive(Debug)]
pub struct Stuck {
    pub region: usize,
    /// The entry that cannot be applied, if that is the cause.
    pub entry: Option<i64>,
    pub message: String,
}

/// Waits until every region shows what any of them shows now.
pub async fn converge(cluster: &Cluster) -> Result<(), Stuck> {
    let mut goal = None;
    let began = Instant::now();
    let mut failing: BTreeMap<usize, (i64, Instant)> = BTreeMap::new();
    loop {
        let mut applied = Vec::new();
        let mut behind = None;
        for region in 0..cluster.nodes().len() {
            match status(cluster, region).await {
                Ok((at, failed)) => {
                    applied.push(at);
                    match failed {
                        Some((entry, message)) => {
                            let since = failing.entry(region).or_insert((entry, Instant::now()));
                            if since.0 != entry {
                                *since = (entry, Instant::now());
                            }
                            if since.1.elapsed() > FAILS {
                                return Err(Stuck { region, entry: Some(entry), message });
                            }
                        }
                        None => _ = failing.remove(&region),
                    }
                    if goal.is_some_and(|goal| at < goal) {
                        behind = Some((region, format!("it is at {at} and does not reach {goal:?}")));
                    }
                }
                Err(why) => behind = Some((region, format!("{why:#}"))),
            }
        }
        match goal {
            None if applied.len() == cluster.nodes().len() => goal = applied.iter().max().copied(),
            Some(_) if behind.is_none() => return Ok(()),
            _ => {}
        }
        if began.elapsed() > BOUND {
            let (region, message) = behind.unwrap_or((0, "no answer".to_string()));
            return Err(Stuck { region, entry: None, message });
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn status(cluster: &Cluster, region: usize) -> Result<(i64, Option<(i64, String)>)> {
    let client = cluster.connect(region).await?;
    let row = rows(&client, "select applied, failing, failure from onetrip.status").await?;
    let Some([applied, failing, failure]) = row.first().map(Vec::as_slice) else { bail!("onetrip.status has no row") };
    let failing = if failing.is_empty() { None } else { Some((failing.parse()?, failure.clone())) };
    Ok((applied.parse()?, failing))
}

/// Returns when a region cannot apply an entry, or a server has crashed.
pub async fn watch(cluster: &Cluster) {
    let mut failing: BTreeMap<usize, (i64, Instant)> = BTreeMap::new();
    loop {
        for region in 0..cluster.nodes().len() {
            match status(cluster, region).await {
                Ok((_, Some((entry, _)))) => {
                    let since = failing.entry(region).or_insert((entry, Instant::now()));
                    if since.0 != entry {
                        *since = (entry, Instant::now());
                    }
                    if since.1.elapsed() > FAILS {
                        return;
                    }
                }
                _ => _ = failing.remove(&region),
            }
        }
        if !crashes::of(cluster).is_empty() {
            return;
        }
        tokio::time::sleep(10 * POLL).await;
    }
}
