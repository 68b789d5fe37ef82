//! A client's session, and the question on which all checks depend: what does the client know after a transaction?
//!
//! Invariant: an end is `Committed` or `NotShownYet` only if the server said so, and `Aborted` only if the server said
//! so or COMMIT was never sent.

use std::fmt;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// A statement that takes longer hangs: no fault lasts that long.
pub const PATIENCE: Duration = Duration::from_secs(90);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The transaction lost against another one, in this region or elsewhere.
pub const LOST: [&str; 2] = ["40001", "40P01"];
/// Errors that faults cause: no node (55000), a server that stops, starts or recovers, too many connections, a full
/// disk.
const UNDER_FAULTS: [&str; 7] = ["55000", "57P01", "57P02", "57P03", "53300", "53100", "58030"];
/// Errors of a COMMIT whose outcome is open: the error says so (08007), or the server stops.
const OPEN: [&str; 4] = ["08007", "57P01", "57P02", "57P03"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Committed,
    /// COMMIT ended with 08007 "committed at N": the transaction's own region may not show it yet.
    NotShownYet,
    /// With the SQLSTATE, or "closed" if the connection ended before COMMIT was sent.
    Aborted(String),
    /// The outcome is open; with the transaction's id if the client knows it.
    Unknown(Option<String>),
}

/// What a client knows after a transaction.
#[derive(Debug)]
pub struct Done {
    pub end: End,
    /// For each statement that got an answer, the first column of its first row.
    pub answers: Vec<Option<String>>,
    /// An error that no transaction of this workload may end with.
    pub unexpected: Option<String>,
}

/// Which errors a client may get without anything being wrong.
#[derive(Clone, Copy)]
pub struct Expected {
    pub under_faults: bool,
    /// SQLSTATEs, or the first characters of SQLSTATEs, that this workload provokes.
    pub provoked: &'static [&'static str],
}

impl Expected {
    fn allows(&self, state: &str) -> bool {
        LOST.contains(&state)
            || self.provoked.iter().any(|allowed| state.starts_with(allowed))
            || (self.under_faults && UNDER_FAULTS.contains(&state))
    }
}

pub struct Session {
    client: Client,
    connection: Option<JoinHandle<Result<(), tokio_postgres::Error>>>,
    pub lost: bool,
    transactions: u64,
}

/// The server does not answer; contains the statement.
#[derive(Debug)]
pub struct Hangs(pub String);

impl fmt::Display for Hangs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no answer within {} s: {}", PATIENCE.as_secs(), self.0)
    }
}

enum Failed {
    Hangs(Hangs),
    Sql(tokio_postgres::Error),
}

impl Session {
    /// `settings`: SQL that the session begins with, which sets the schema for instance.
    pub async fn open(conninfo: &str, settings: &str) -> Result<Session> {
        let conninfo = format!("{conninfo} application_name=torture");
        let connect = tokio_postgres::connect(&conninfo, NoTls);
        let (client, connection) =
            tokio::time::timeout(CONNECT_TIMEOUT, connect).await.context("no answer to the connection attempt")??;
        let mut session = Session { client, connection: Some(tokio::spawn(connection)), lost: false, transactions: 0 };
        session.run(settings).await?;
        Ok(session)
    }

    async fn ask(&mut self, sql: &str) -> Result<Vec<SimpleQueryMessage>, Failed> {
        match tokio::time::timeout(PATIENCE, self.client.simple_query(sql)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                self.lost |= error.as_db_error().is_none() || self.client.is_closed();
                Err(Failed::Sql(error))
            }
            Err(_) => {
                self.lost = true;
                Err(Failed::Hangs(Hangs(sql.to_string())))
            }
        }
    }

    pub async fn run(&mut self, sql: &str) -> Result<()> {
        self.rows(sql).await.map(drop)
    }

    /// All rows, values as text.
    pub async fn rows(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        let answer = match self.ask(sql).await {
            Ok(answer) => answer,
            Err(Failed::Sql(error)) => bail!("{sql}: {}", told(&error)),
            Err(Failed::Hangs(hangs)) => bail!("{hangs}"),
        };
        let row = |message: &SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|i| row.get(i).map(str::to_string)).collect()),
            _ => None,
        };
        Ok(answer.iter().filter_map(row).collect())
    }

    pub async fn text(&mut self, sql: &str) -> Result<String> {
        let rows = self.rows(sql).await?;
        let first = rows.first().and_then(|row| row.first()).with_context(|| format!("{sql}: no row"))?;
        Ok(first.clone().unwrap_or_default())
    }

    pub async fn number(&mut self, sql: &str) -> Result<i64> {
        let shown = self.text(sql).await?;
        shown.parse().with_context(|| format!("{sql} gave {shown:?}"))
    }

    /// Runs BEGIN, the statements one by one, and COMMIT.  `Err`: the server does not answer.
    pub async fn transaction(&mut self, statements: &[String], expected: Expected) -> Result<Done, Hangs> {
        self.transactions += 1;
        // About half of the transactions that write ask for their id, with which a client can ask for the outcome even
        // if the connection breaks at COMMIT.
        let writes = statements.iter().any(|s| !s.starts_with("select") && !s.starts_with("set "));
        let id = writes && self.transactions % 2 == 0;
        let mut all: Vec<&str> = statements.iter().map(String::as_str).collect();
        all.extend(id.then_some("select onetrip.current_transaction_id()"));
        let mut done = self.begin(&all, expected).await?;
        if done.end == End::Committed {
            let id = if id { done.answers.pop().flatten() } else { None };
            self.conclude("commit", id, expected, &mut done).await?;
        }
        Ok(done)
    }

    /// Runs BEGIN, the statements one by one, and PREPARE TRANSACTION.  `Committed` means prepared.
    pub async fn prepare(&mut self, statements: &[String], gid: &str, expected: Expected) -> Result<Done, Hangs> {
        let all: Vec<&str> = statements.iter().map(String::as_str).collect();
        let mut done = self.begin(&all, expected).await?;
        if done.end == End::Committed {
            self.conclude(&format!("prepare transaction '{gid}'"), None, expected, &mut done).await?;
        }
        Ok(done)
    }

    /// Runs a statement that is a transaction by itself, which the server may run again if it loses.
    pub async fn alone(&mut self, sql: &str, expected: Expected) -> Result<Done, Hangs> {
        let mut done = Done { end: End::Committed, answers: Vec::new(), unexpected: None };
        self.conclude(sql, None, expected, &mut done).await?;
        Ok(done)
    }

    /// Runs BEGIN and the statements one by one.  The end is `Aborted` if one of them failed, and `Committed` so far
    /// otherwise.
    async fn begin(&mut self, statements: &[&str], expected: Expected) -> Result<Done, Hangs> {
        let mut done = Done { end: End::Committed, answers: Vec::new(), unexpected: None };
        for (number, sql) in ["begin"].iter().chain(statements).enumerate() {
            match self.ask(sql).await {
                // The answer to BEGIN is not for the caller.
                Ok(_) if number == 0 => {}
                Ok(answer) => done.answers.push(first(&answer)),
                Err(Failed::Hangs(hangs)) => return Err(hangs),
                Err(Failed::Sql(error)) => {
                    let state = self.state(&error).await;
                    if let Some(state) = state.as_deref().filter(|s| !expected.allows(s)) {
                        done.unexpected = Some(format!("{state}: {sql}: {}", told(&error)));
                    }
                    done.end = End::Aborted(state.unwrap_or_else(|| "closed".to_string()));
                    self.roll_back().await?;
                    break;
                }
            }
        }
        Ok(done)
    }

    /// Runs COMMIT, or another statement `sql` with which the transaction is decided.  `id`: the transaction's, if the
    /// client has asked for it.
    async fn conclude(
        &mut self,
        sql: &str,
        id: Option<String>,
        expected: Expected,
        done: &mut Done,
    ) -> Result<(), Hangs> {
        match self.ask(sql).await {
            // It is done: the server would answer ROLLBACK only if a statement had failed, and then this is not called.
            Ok(_) => {}
            Err(Failed::Hangs(hangs)) => return Err(hangs),
            Err(Failed::Sql(error)) => {
                let state = self.state(&error).await;
                let open = state.as_deref().is_none_or(|s| OPEN.contains(&s));
                if open {
                    let told_id = error.as_db_error().and_then(|db| transaction_id(db.message()));
                    done.end = match committed_says(&error) {
                        true => End::NotShownYet,
                        false => End::Unknown(told_id.or(id)),
                    };
                    if !expected.under_faults {
                        done.unexpected = Some(format!("{sql} left it open without a fault: {}", told(&error)));
                    }
                } else {
                    let state = state.unwrap_or_default();
                    if !expected.allows(&state) {
                        done.unexpected = Some(format!("{sql} ended with {}", told(&error)));
                    }
                    done.end = End::Aborted(state);
                }
                self.roll_back().await?;
            }
        }
        Ok(())
    }

    async fn roll_back(&mut self) -> Result<(), Hangs> {
        if !self.lost {
            if let Err(Failed::Hangs(hangs)) = self.ask("rollback").await {
                return Err(hangs);
            }
        }
        Ok(())
    }

    /// The SQLSTATE of an error.  If the error has none because the connection is gone: the one that the server sent
    /// when it ended the session, if that shows that the transaction lost.
    async fn state(&mut self, error: &tokio_postgres::Error) -> Option<String> {
        if let Some(db) = error.as_db_error() {
            return Some(db.code().code().to_string());
        }
        let connection = self.connection.take()?;
        let ended = tokio::time::timeout(CONNECT_TIMEOUT, connection).await.ok()?.ok()?;
        let said = ended.err()?.as_db_error()?.code().code().to_string();
        // With these the session was evicted while it was idle.  With any other, COMMIT may have been sent before.
        LOST.contains(&said.as_str()).then_some(said)
    }
}

fn first(answer: &[SimpleQueryMessage]) -> Option<String> {
    answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_string),
        _ => None,
    })
}

/// Whether the error says that the transaction is known to have committed, although COMMIT could not end in its own
/// server.
fn committed_says(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|db| db.message().contains(": committed at "))
}

fn transaction_id(message: &str) -> Option<String> {
    let hex = |part: &str| u64::from_str_radix(part, 16).is_ok();
    let is_id = |word: &&str| match word.split('-').collect::<Vec<_>>()[..] {
        [node, incarnation, sequence] => node.parse::<u32>().is_ok() && hex(incarnation) && hex(sequence),
        _ => false,
    };
    message.split_whitespace().find(is_id).map(str::to_string)
}

/// Severity, SQLSTATE, message, detail and hint on one line.
pub fn told(error: &tokio_postgres::Error) -> String {
    let Some(db) = error.as_db_error() else { return error.to_string() };
    let more = [db.detail(), db.hint()].into_iter().flatten().fold(String::new(), |all, part| all + " / " + part);
    format!("{} {} {}{more}", db.severity(), db.code().code(), db.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_messages() {
        let message = "outcome of transaction 2-9f1c0a77d2e45b60-1a is not known yet";
        assert_eq!(transaction_id(message).as_deref(), Some("2-9f1c0a77d2e45b60-1a"));
        for none in ["", "a-b-c", "1-2", "re-read-only 1-x-2"] {
            assert_eq!(transaction_id(none), None, "{none}");
        }
    }
}
