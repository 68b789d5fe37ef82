//! Are all regions equal, according to PostgreSQL's own tools too?  `onetrip check` compares rows and definitions;
//! `pg_dump` and `pg_dumpall -g` must print the same statements in every region, in any order.

use std::collections::BTreeMap;

use anyhow::{bail, Context, Result};
use tokio::process::Command;

use crate::{postgres_bin, Cluster};

/// Describes what differs; `None` if nothing does.
pub async fn compare(cluster: &Cluster) -> Result<Option<String>> {
    if let Err(why) = cluster.check().await {
        return Ok(Some(format!("{why:#}")));
    }
    for (what, program, arguments) in [
        ("pg_dump", "pg_dump", &["--schema-only", "--dbname=onetrip"][..]),
        ("pg_dumpall -g", "pg_dumpall", &["--globals-only", "--no-role-passwords"][..]),
    ] {
        let mut first: Option<BTreeMap<String, usize>> = None;
        for node in cluster.nodes() {
            let dump = dump(program, arguments, &node.conninfo()).await?;
            let parts = parts(&dump);
            match &first {
                None => first = Some(parts),
                Some(first) => {
                    if let Some(part) = differing(first, &parts) {
                        return Ok(Some(format!("{what} of region {}: {part}", node.region())));
                    }
                }
            }
        }
    }
    Ok(None)
}

pub(crate) async fn dump(program: &str, arguments: &[&str], conninfo: &str) -> Result<String> {
    let value = |key: &str| {
        conninfo.split(' ').find_map(|part| part.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default().to_string()
    };
    let mut command = Command::new(postgres_bin().join(program));
    command.args(arguments).args(["--host", &value("host"), "--port", &value("port"), "--username", "postgres"]);
    let output = command.output().await.with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The statements of a dump, each with how often it is there.
pub(crate) fn parts(dump: &str) -> BTreeMap<String, usize> {
    let mut parts = BTreeMap::new();
    for part in dump.split("\n\n") {
        let text: Vec<&str> = part.lines().filter(|line| !line.starts_with("--")).collect();
        let text = text.join("\n").trim().to_string();
        // `\restrict` has another random key in each dump.
        if !text.is_empty() && !text.starts_with("\\restrict") && !text.starts_with("\\unrestrict") {
            *parts.entry(text).or_default() += 1;
        }
    }
    parts
}

pub(crate) fn differing(one: &BTreeMap<String, usize>, other: &BTreeMap<String, usize>) -> Option<String> {
    let only = |here: &BTreeMap<String, usize>, there: &BTreeMap<String, usize>| {
        here.iter().find(|(part, count)| there.get(*part) != Some(count)).map(|(part, _)| part.clone())
    };
    let (here, there) = (only(one, other), only(other, one));
    if here.is_none() && there.is_none() {
        return None;
    }
    Some(format!("the first region has {:?}; it has {:?}", here.unwrap_or_default(), there.unwrap_or_default()))
}
