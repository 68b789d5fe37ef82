//! Finds the first row that differs between two nodes: reads both sides in key order, a portion at a time, and merges
//! them.

use std::cmp::Ordering;
use std::collections::VecDeque;

use anyhow::{Context, Result};

use super::snapshots::{rows_of, Reader};
use super::tables::Table;
use super::Difference;

const PORTION_ROWS: usize = 500;

/// Key columns as text, the whole row as text, and a hash of each column's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    key: Vec<String>,
    text: String,
    hashes: Vec<i64>,
}

/// One side, read through a cursor.
struct Side<'a> {
    reader: &'a Reader,
    table: &'a Table,
    rows: VecDeque<Row>,
    ended: bool,
}

pub async fn first_difference(readers: [&Reader; 2], table: &Table) -> Result<Difference> {
    let mut sides = [Side::open(readers[0], table).await?, Side::open(readers[1], table).await?];
    let difference = loop {
        let rows = [sides[0].next().await?, sides[1].next().await?];
        let order = match (&rows[0], &rows[1]) {
            // The checksums differed, but no row does: reading some row twice gave two answers.
            (None, None) => {
                let key = "(unknown: the rows look alike now, so a row changed between two reads)".to_string();
                break difference(table, readers, key, [None, None]);
            }
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) if a == b => continue,
            (Some(a), Some(b)) => a.key.cmp(&b.key),
        };
        let [a, b] = rows;
        let (a, b) = match order {
            Ordering::Less => (a, None),
            Ordering::Greater => (None, b),
            Ordering::Equal => (a, b),
        };
        let key = a.as_ref().or(b.as_ref()).map_or(String::new(), |row| shown_key(table, row));
        break difference(table, readers, key, [a, b]);
    };
    for side in &sides {
        side.reader.end_look().await?;
    }
    Ok(difference)
}

fn difference(table: &Table, readers: [&Reader; 2], key: String, rows: [Option<Row>; 2]) -> Difference {
    let columns = match &rows {
        [Some(a), Some(b)] => {
            let hashes = a.hashes.iter().zip(&b.hashes).zip(&table.column_names);
            hashes.filter(|((a, b), _)| a != b).map(|(_, column)| column.clone()).collect()
        }
        _ => Vec::new(),
    };
    let regions = [readers[0].region.clone(), readers[1].region.clone()];
    Difference::Row { table: table.name.clone(), key, regions, columns, rows: rows.map(|row| row.map(|row| row.text)) }
}

fn shown_key(table: &Table, row: &Row) -> String {
    if table.key.is_empty() {
        return row.text.clone();
    }
    format!("({}) = ({})", table.key.join(", "), row.key.join(", "))
}

/// By the output function of its type.  A cast may be a function of the type's owner, which this superuser is not to
/// call.
fn as_text(value: &str) -> String {
    format!("pg_catalog.format('%s', {value})")
}

impl<'a> Side<'a> {
    async fn open(reader: &'a Reader, table: &'a Table) -> Result<Side<'a>> {
        // In byte order, because that is how Rust compares strings.  Without a primary key the whole row is the key.
        let whole = vec!["r".to_string()];
        let columns: Vec<String> =
            if table.key.is_empty() { whole } else { table.key.iter().map(|column| format!("(r).{column}")).collect() };
        let keys: Vec<String> = columns.iter().map(|c| format!("{} collate \"C\"", as_text(c))).collect();
        let keys = keys.join(", ");
        let query = format!(
            "declare check_rows no scroll cursor for
             select {keys}, {}, onetrip.column_hashes(r) from {} order by {keys}, onetrip.row_hash(r)",
            as_text("r"),
            rows_of(&table.name)
        );
        reader.begin_look().await?;
        reader
            .client
            .batch_execute(&query)
            .await
            .with_context(|| format!("read {} in {}", table.name, reader.region))?;
        Ok(Side { reader, table, rows: VecDeque::new(), ended: false })
    }

    async fn next(&mut self) -> Result<Option<Row>> {
        if self.rows.is_empty() && !self.ended {
            let fetch = format!("fetch {PORTION_ROWS} from check_rows");
            let rows = self.reader.client.query(&fetch, &[]).await;
            let rows = rows.with_context(|| format!("read {} in {}", self.table.name, self.reader.region))?;
            self.ended = rows.len() < PORTION_ROWS;
            self.rows.extend(rows.iter().map(|row| {
                let keys = row.len() - 2;
                Row { key: (0..keys).map(|i| row.get(i)).collect(), text: row.get(keys), hashes: row.get(keys + 1) }
            }));
        }
        Ok(self.rows.pop_front())
    }
}
