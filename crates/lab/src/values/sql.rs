//! Statements as text, with answers as text, and no statement that is waited for without end.

use std::time::Duration;

use anyhow::{bail, Result};
use tokio_postgres::{Client, SimpleQueryMessage};

/// Statements have a timeout in the server; this is for a server that does not answer at all.
const PATIENCE: Duration = Duration::from_secs(300);

/// How a statement ended that did not succeed.
#[derive(Debug, Clone)]
pub enum Failure {
    /// SQLSTATE, message, the file of the server's source.
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

pub async fn run(client: &Client, sql: &str) -> Result<Vec<Vec<String>>, Failure> {
    let answer = match tokio::time::timeout(PATIENCE, client.simple_query(sql)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            return Err(match error.as_db_error() {
                Some(db) if !client.is_closed() => {
                    let mut message = db.message().to_string();
                    for more in [db.detail(), db.hint()].into_iter().flatten() {
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
    let mut rows = Vec::new();
    for message in answer {
        if let SimpleQueryMessage::Row(row) = message {
            // What is no UTF-8, after a change of client_encoding, is not shown.
            let shown = |i| match row.try_get(i) {
                Ok(value) => value.unwrap_or("").to_string(),
                Err(_) => "(not UTF-8)".to_string(),
            };
            rows.push((0..row.len()).map(shown).collect());
        }
    }
    Ok(rows)
}

/// Rows of a query that must succeed.
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
