//! Runs statements given as text, returns answers as text, and limits how long a statement is waited for.

use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{bail, Result};
use tokio_postgres::{Client, SimpleQueryMessage};

/// Statements have a timeout in the server; this one is for a server that does not answer at all.
const PATIENCE: Duration = Duration::from_secs(300);

/// The source files of the extension.  The file that raised an error tells whether the error is the extension's,
/// PostgreSQL's, or another extension's.  (PostgreSQL has a `sequence.c` too.)
const OWN: &[&str] = &[
    "access_method.c",
    "agent.c",
    "apply.c",
    "apply_fault.c",
    "apply_large_object.c",
    "apply_operations.c",
    "apply_row.c",
    "arrival.c",
    "ask.c",
    "bill.c",
    "capture.c",
    "catalog_digest.c",
    "commit.c",
    "commit_times.c",
    "conflicts.c",
    "contents.c",
    "crossings.c",
    "ddl.c",
    "ddl_alike.c",
    "ddl_apply.c",
    "ddl_bounds.c",
    "ddl_call.c",
    "ddl_check.c",
    "ddl_child.c",
    "ddl_classify.c",
    "ddl_concurrently.c",
    "ddl_detach.c",
    "ddl_detach_entry.c",
    "ddl_event_trigger.c",
    "ddl_extension.c",
    "ddl_function.c",
    "ddl_index.c",
    "ddl_large_object.c",
    "ddl_lock.c",
    "ddl_make_way.c",
    "ddl_new_table.c",
    "ddl_objects.c",
    "ddl_order.c",
    "ddl_reindex.c",
    "ddl_results.c",
    "ddl_setting.c",
    "ddl_share.c",
    "ddl_subscription.c",
    "ddl_temporary.c",
    "ddl_text.c",
    "describe_key.c",
    "detach_users.c",
    "elsewhere.c",
    "everywhere.c",
    "evict.c",
    "eviction.c",
    "find_row.c",
    "fresh.c",
    "held_locks.c",
    "index_check.c",
    "jobs.c",
    "large_object.c",
    "last_commit.c",
    "left_out.c",
    "lock_ahead.c",
    "locking_table.c",
    "look.c",
    "move_subscription.c",
    "notify.c",
    "object_name.c",
    "oid_counts.c",
    "onetrip.c",
    "origin.c",
    "outcome.c",
    "own_id.c",
    "own_locks.c",
    "own_tables.c",
    "position.c",
    "prepared.c",
    "prepared_here.c",
    "process.c",
    "proposal.c",
    "reads.c",
    "rehearse.c",
    "rehearse_here.c",
    "rel_info.c",
    "retry.c",
    "role_counts.c",
    "row_fits.c",
    "row_hash.c",
    "row_image.c",
    "row_lock.c",
    "row_places.c",
    "row_text.c",
    "rows_of.c",
    "sequence.c",
    "sequence_position.c",
    "sequence_reshare.c",
    "sequence_share.c",
    "sequence_shown.c",
    "sequence_used.c",
    "session.c",
    "session_settings.c",
    "settings.c",
    "shared_memory.c",
    "show_own.c",
    "slots.c",
    "sql_worker.c",
    "stop_point.c",
    "stored_type.c",
    "subscription.c",
    "subscription_elsewhere.c",
    "table_counts.c",
    "temporary_function.c",
    "traced.c",
    "trips.c",
    "turn.c",
    "unread.c",
    "unseen.c",
    "user_context.c",
    "verdict.c",
    "whole_row.c",
    "wire.c",
    "worker_status.c",
    "write_set.c",
    "write_set_keys.c",
    "write_set_notes.c",
];

pub fn of_onetrip(file: &str) -> bool {
    OWN.contains(&file.rsplit('/').next().unwrap_or(file))
}

/// Whether this is a source file of the server itself, and not of some extension: the server's executable contains the
/// names of its files, because its errors name them.
pub fn of_server(file: &str) -> bool {
    static PROGRAM: LazyLock<Vec<u8>> =
        LazyLock::new(|| std::fs::read(crate::postgres_bin().join("postgres")).unwrap_or_default());
    let name = file.rsplit('/').next().unwrap_or(file);
    let wanted = format!("{name}\0");
    let named = |at: usize| at > 0 && [b'/', 0].contains(&PROGRAM[at - 1]);
    !name.is_empty()
        && PROGRAM.windows(wanted.len()).enumerate().any(|(at, part)| part == wanted.as_bytes() && named(at))
}

/// How a statement failed.
#[derive(Debug, Clone)]
pub enum Failure {
    /// The server refused it: with this SQLSTATE; with this message, detail, hint and context, separated by " / "; from
    /// this source file.
    Refused {
        state: String,
        message: String,
        file: String,
    },
    /// The connection is gone.
    Lost(String),
    Hangs,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Refused { state, message, .. } => write!(f, "{state} {message}"),
            Failure::Lost(why) => write!(f, "the connection was lost: {why}"),
            Failure::Hangs => write!(f, "no answer within {} s", PATIENCE.as_secs()),
        }
    }
}

/// The rows, as text; null is an empty one.
pub async fn run(client: &Client, sql: &str) -> Result<Vec<Vec<String>>, Failure> {
    Ok(answer(client, sql).await?.into_iter().filter_map(|message| row(&message, "")).collect())
}

/// Everything that the server answers: rows, in which null is `\N`, and how many rows each statement was about.
pub async fn run_exactly(client: &Client, sql: &str) -> Result<Vec<Vec<String>>, Failure> {
    let said = answer(client, sql).await?.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::CommandComplete(rows) => Some(vec![format!("{rows} rows")]),
        message => row(&message, "\\N"),
    });
    Ok(said.collect())
}

fn row(message: &SimpleQueryMessage, null: &str) -> Option<Vec<String>> {
    let SimpleQueryMessage::Row(row) = message else { return None };
    // After a change of client_encoding a value may not be UTF-8, and is not shown.
    let shown = |i| match row.try_get(i) {
        Ok(value) => value.unwrap_or(null).to_string(),
        Err(_) => "(not UTF-8)".to_string(),
    };
    Some((0..row.len()).map(shown).collect())
}

async fn answer(client: &Client, sql: &str) -> Result<Vec<SimpleQueryMessage>, Failure> {
    let answer = match tokio::time::timeout(PATIENCE, client.simple_query(sql)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            return Err(match error.as_db_error() {
                Some(db) if !client.is_closed() => {
                    let mut message = db.message().to_string();
                    for more in [db.detail(), db.hint(), db.where_()].into_iter().flatten() {
                        message += " / ";
                        message += more;
                    }
                    let (state, file) = (db.code().code().to_string(), db.file().unwrap_or("").to_string());
                    Failure::Refused { state, message, file }
                }
                Some(db) => Failure::Lost(format!("{} {}", db.code().code(), db.message())),
                None => Failure::Lost(error.to_string()),
            })
        }
        Err(_) => return Err(Failure::Hangs),
    };
    Ok(answer)
}

/// The rows of a query that must succeed.
pub async fn rows(client: &Client, sql: &str) -> Result<Vec<Vec<String>>> {
    match run(client, sql).await {
        Ok(rows) => Ok(rows),
        Err(failure) => bail!("{failure}, at {}", shortened(sql, 300)),
    }
}

pub fn quoted(text: &str) -> String {
    match text.contains('\\') {
        true => format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''")),
        false => format!("'{}'", text.replace('\'', "''")),
    }
}

pub fn shortened(text: &str, length: usize) -> String {
    match text.char_indices().nth(length) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_extension_are_known() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../extension/src");
        let mut folders = vec![std::path::PathBuf::from(folder)];
        let mut all = Vec::new();
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|kind| kind == "c") {
                    all.push(path.file_name().unwrap().to_str().unwrap().to_string());
                }
            }
        }
        all.sort();
        assert_eq!(all, OWN);
        assert!(of_onetrip("src/capture/capture.c") && !of_onetrip("nodeModifyTable.c"));
        assert!(of_server("nodeModifyTable.c") && !of_server("lwgeom_pg.c") && !of_server("Table.c") && !of_server(""));
    }
}
