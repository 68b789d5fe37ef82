//! Compares which extensions are installed, and their versions.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use super::snapshots::Reader;
use super::ExtensionVersions;

/// The extensions that are not the same everywhere.
pub async fn different(readers: &[Reader]) -> Result<Vec<ExtensionVersions>> {
    let mut installed: Vec<BTreeMap<String, String>> = Vec::new();
    for reader in readers {
        let rows = reader.client.query("select extname::text, extversion from pg_extension", &[]).await;
        let rows = rows.with_context(|| format!("list the extensions of {}", reader.region))?;
        installed.push(rows.iter().map(|row| (row.get(0), row.get(1))).collect());
    }
    let names: BTreeSet<&String> = installed.iter().flat_map(BTreeMap::keys).collect();
    let versions = names.into_iter().map(|name| ExtensionVersions {
        extension: name.clone(),
        versions: installed.iter().map(|i| i.get(name).cloned()).collect(),
    });
    Ok(versions.filter(|e| e.versions.iter().any(|version| *version != e.versions[0])).collect())
}
