//! The result of `onetrip check`, as text and as JSON.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use onetrip_node::printable_part;
use serde::Serialize;

use super::definitions::Definition;
use super::indexes::Indexes;
use super::tables::Local;
use super::Look;

/// At most this many differences are printed as text; `--json` has all of them.
const SHOWN: usize = 40;
const SHOWN_LOCAL: usize = 20;

#[derive(Debug, Serialize)]
pub struct Report {
    pub equal: bool,
    pub position: i64,
    pub regions: Vec<String>,
    pub tables: Vec<TableRows>,
    /// Tables whose rows are not the same everywhere.
    pub different: Vec<String>,
    /// The first difference, in the first of those tables.
    pub difference: Option<Difference>,
    /// Extensions that are not the same everywhere.
    pub extensions: Vec<ExtensionVersions>,
    /// Definitions that differ between regions, or are missing in some.
    pub definitions: Vec<Definition>,
    /// How many rows of each catalog were compared.
    pub catalogs: BTreeMap<String, usize>,
    /// What each region has for itself, so that it was not compared.
    pub local: Vec<Local>,
    /// Only with `--indexes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub indexes: Option<Indexes>,
}

#[derive(Debug, Serialize)]
pub struct ExtensionVersions {
    pub extension: String,
    /// In the order of the report's regions; `None`: that region lacks the extension.
    pub versions: Vec<Option<String>>,
}

#[derive(Debug, Serialize)]
pub struct TableRows {
    pub table: String,
    pub rows: i64,
    pub materialized_view: bool,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Difference {
    /// A row that one region lacks, or that has other values there; if both have it, `columns` says in which columns.
    Row { table: String, key: String, regions: [String; 2], columns: Vec<String>, rows: [Option<String>; 2] },
}

impl Report {
    pub(super) fn new(
        position: i64,
        regions: Vec<String>,
        mut looks: Vec<Look>,
        difference: Option<Difference>,
        local: Vec<Local>,
    ) -> Result<Report> {
        let last = looks.pop().context("looked at least once")?;
        let equal = last.is_equal();
        // Only the first look is at everything.
        let (catalogs, tables) = match looks.into_iter().next() {
            Some(first) => (first.catalogs, first.rows),
            None => (last.catalogs, last.rows),
        };
        let different = last.different.into_iter().map(|(table, _)| table).collect();
        let (extensions, definitions) = (last.extensions, last.definitions);
        Ok(Report {
            equal,
            position,
            regions,
            tables,
            different,
            difference,
            extensions,
            definitions,
            catalogs,
            local,
            indexes: None,
        })
    }

    pub(super) fn add_indexes(&mut self, indexes: Indexes) {
        self.equal = self.equal && indexes.damaged.is_empty();
        self.indexes = Some(indexes);
    }

    pub fn to_text(&self) -> String {
        let regions = self.regions.join(", ");
        let mut text = if self.equal {
            let rows: i64 = self.tables.iter().map(|t| t.rows).sum();
            let definitions: usize = self.catalogs.values().sum();
            format!(
                "equal at position {}: {} tables, {rows} rows, {definitions} rows of catalogs in each of {regions}\n",
                self.position,
                self.tables.len()
            )
        } else {
            format!("different at position {} ({regions}): {}\n", self.position, self.summary())
        };
        if let Some(Difference::Row { table, key, regions, columns, rows }) = &self.difference {
            text += &printable_part(&format!("first difference: table {table}, row {key}"));
            if !columns.is_empty() {
                text += &printable_part(&format!(", in {}", columns.join(", ")));
            }
            text += "\n";
            for (region, row) in regions.iter().zip(rows) {
                text += &format!("  {region}: {}\n", printable_part(row.as_deref().unwrap_or("no such row")));
            }
            if rows[0].is_some() && rows[0] == rows[1] {
                text += "  (the values look alike, but are stored as different bytes)\n";
            }
        }
        for different in &self.extensions {
            let versions = different.versions.iter();
            let version = |v: &Option<String>| v.as_ref().map_or("not installed".into(), |v| format!("version {v}"));
            text += &self.by_region(&format!("extension {}", different.extension), versions.map(version));
        }
        for definition in self.definitions.iter().take(SHOWN) {
            let what = match &definition.column {
                Some(column) => format!("{}: {}.{column}", definition.object, definition.catalog),
                None => definition.object.clone(),
            };
            let value = |v: &Option<String>| v.clone().unwrap_or("not there".into());
            text += &self.by_region(&what, definition.values.iter().map(value));
        }
        if self.definitions.len() > SHOWN {
            text += &format!("and {} more; --json prints all\n", self.definitions.len() - SHOWN);
        }
        text += &self.indexes.as_ref().map_or(String::new(), Indexes::to_text);
        text + &self.local_text()
    }

    fn summary(&self) -> String {
        let mut parts = self.different.clone();
        parts.extend(self.extensions.iter().map(|e| format!("extension {}", e.extension)));
        match self.definitions.len() {
            0 => {}
            1 => parts.push("1 definition".to_string()),
            n => parts.push(format!("{n} definitions")),
        }
        match self.indexes.as_ref().map_or(0, |indexes| indexes.damaged.len()) {
            0 => {}
            1 => parts.push("1 index".to_string()),
            n => parts.push(format!("{n} indexes")),
        }
        printable_part(&parts.join(", "))
    }

    fn by_region(&self, what: &str, values: impl Iterator<Item = String>) -> String {
        let mut text = format!("{}\n", printable_part(what));
        for (region, value) in self.regions.iter().zip(values) {
            text += &format!("  {region}: {}\n", printable_part(&value));
        }
        text
    }

    fn local_text(&self) -> String {
        if self.local.is_empty() {
            return String::new();
        }
        let mut text = "not compared, since each region has its own:\n".to_string();
        for local in self.local.iter().take(SHOWN_LOCAL) {
            text += &format!("  {}", printable_part(&local.what));
            if local.regions.len() < self.regions.len() {
                text += &format!(", in {}", local.regions.join(", "));
            }
            text += "\n";
        }
        if self.local.len() > SHOWN_LOCAL {
            text += &format!("  and {} more; --json names them\n", self.local.len() - SHOWN_LOCAL);
        }
        text
    }
}
