//! The ways in which two pieces of work meet, in one or two sessions, and what may come of it.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use tokio_postgres::Client;

use super::features::Feature;
use crate::plain::connect;
use crate::trial::sql::{self, run as run_sql, Failure};

const FEATURE_NOT_SUPPORTED: &str = "0A000";
/// What ends a transaction because of another one: a conflict, a deadlock, a lock that is not to be had.
const LOST: [&str; 4] = ["40001", "40P01", "55P03", GONE];
/// The session was ended because of another transaction.
const GONE: &str = "the session was ended";
const LIMITS: &str = "set statement_timeout = '20s'; set client_min_messages = error";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Meeting {
    /// Nothing, and one of them alone: only in PostgreSQL.
    Nothing,
    FirstOnly,
    SecondOnly,
    /// The second in one region, then the first in another: only in PostgreSQL.
    Reversed,
    /// Both in one transaction.
    Together,
    /// The first is rolled back in the transaction of the second.
    Undone,
    /// The first in one region, then the second in another.
    Apart,
    /// The second in another region while the transaction of the first is open.
    AtOnce,
    /// The same in one region.
    Beside,
    /// The second in another region while the transaction of the first is prepared.
    Prepared,
}

use Meeting::*;

impl Display for Meeting {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Nothing => "nothing",
            FirstOnly => "first only",
            SecondOnly => "second only",
            Reversed => "reversed",
            Together => "together",
            Undone => "undone",
            Apart => "apart",
            AtOnce => "at once",
            Beside => "beside",
            Prepared => "prepared",
        })
    }
}

impl Meeting {
    pub const PLAIN: [Meeting; 7] = [Nothing, FirstOnly, SecondOnly, Reversed, Together, Undone, Apart];
    pub const CLUSTER: [Meeting; 6] = [Together, Undone, Apart, AtOnce, Beside, Prepared];

    pub fn letter(self) -> char {
        match self {
            Nothing => 'n',
            FirstOnly => 'f',
            SecondOnly => 's',
            Reversed => 'r',
            Together => 't',
            Undone => 'u',
            Apart => 'a',
            AtOnce => 'o',
            Beside => 'b',
            Prepared => 'p',
        }
    }

    /// Whether what comes of it follows from the order alone.
    pub fn in_order(self) -> bool {
        !matches!(self, AtOnce | Beside | Prepared)
    }

    pub fn possible(self, first: &Feature, second: &Feature) -> bool {
        match self {
            Nothing | FirstOnly | SecondOnly | Reversed | Apart => true,
            Together | Undone | AtOnce | Beside | Prepared => !first.alone && !second.alone,
        }
    }

    /// The statements, each with the session (0 or 1) that runs it.
    pub fn script(self, first: &Feature, second: &Feature, schema: &str, number: &str) -> Vec<(usize, String)> {
        let of = |feature: &Feature, who: usize| -> Vec<(usize, String)> {
            feature.statements(schema, number).into_iter().map(|statement| (who, statement)).collect()
        };
        let one = |who: usize, statement: &str| vec![(who, statement.to_string())];
        let whole = |feature: &Feature, who: usize| match feature.alone {
            true => of(feature, who),
            false => [one(who, "begin"), of(feature, who), one(who, "commit")].concat(),
        };
        match self {
            Nothing => Vec::new(),
            FirstOnly => whole(first, 0),
            SecondOnly => whole(second, 1),
            Reversed => [whole(second, 0), whole(first, 1)].concat(),
            Apart => [whole(first, 0), whole(second, 1)].concat(),
            Together => [one(0, "begin"), of(first, 0), of(second, 0), one(0, "commit")].concat(),
            Undone => [
                one(0, "begin"),
                one(0, "savepoint undone"),
                of(first, 0),
                one(0, "rollback to undone"),
                of(second, 0),
                one(0, "commit"),
            ]
            .concat(),
            AtOnce | Beside => [one(0, "begin"), of(first, 0), whole(second, 1), one(0, "commit")].concat(),
            Prepared => [
                one(0, "begin"),
                of(first, 0),
                one(0, &format!("prepare transaction '{schema}'")),
                whole(second, 1),
                one(1, &format!("commit prepared '{schema}'")),
            ]
            .concat(),
        }
    }

    /// Of two at once, what may be left: what these meetings leave in PostgreSQL.  `Err`: an answer that neither order
    /// explains.
    pub fn orders(self, said: &[Said], plain: &BTreeMap<Meeting, Vec<Said>>) -> Result<Vec<Meeting>, String> {
        let decides = |said: &&Said| said.statement.starts_with("commit prepared");
        let of = |who: usize| said.iter().filter(move |said| said.who == who && !decides(said));
        let failed = |who: usize| {
            let of_prepared = said.iter().filter(decides).filter(|_| who == 0);
            of(who).chain(of_prepared).find(|said| !matches!(said.outcome, Outcome::Rows(_)))
        };
        let (first, second) = (failed(0), failed(1));
        // One that fails must have lost, or fail in PostgreSQL alone or after the other one.
        for (failed, alone, after) in [(first, FirstOnly, Reversed), (second, SecondOnly, Apart)] {
            let Some(failed) = failed.filter(|failed| !failed.lost()) else { continue };
            let known = |meeting: Meeting| {
                plain[&meeting]
                    .iter()
                    .any(|said| said.statement == failed.statement && said.outcome.state() == failed.outcome.state())
            };
            if !known(alone) && !known(after) {
                return Err(format!("an error that PostgreSQL has in no order: {failed}"));
            }
        }
        let succeeds = |meeting: Meeting| plain[&meeting].iter().all(|said| matches!(said.outcome, Outcome::Rows(_)));
        match (first.is_none(), second.is_none()) {
            (true, true) => {
                let orders: Vec<Meeting> = [Apart, Reversed].into_iter().filter(|order| succeeds(*order)).collect();
                if orders.is_empty() {
                    return Err("both were committed, which they are in PostgreSQL in no order".to_string());
                }
                Ok(orders)
            }
            (true, false) => Ok(vec![FirstOnly]),
            (false, true) => Ok(vec![SecondOnly]),
            (false, false) => Ok(vec![Nothing]),
        }
    }
}

#[derive(Debug)]
pub enum Outcome {
    Rows(Vec<Vec<String>>),
    Refused { state: String, message: String, file: String },
    Gone(String),
}

impl Outcome {
    pub fn state(&self) -> &str {
        match self {
            Outcome::Rows(_) => "",
            Outcome::Refused { state, .. } => state,
            Outcome::Gone(_) => GONE,
        }
    }
}

/// A statement of a session, and what came of it.
#[derive(Debug)]
pub struct Said {
    pub who: usize,
    pub statement: String,
    pub outcome: Outcome,
}

impl Said {
    /// Whether this is the same answer.
    pub fn alike(&self, other: &Said) -> bool {
        match (&self.outcome, &other.outcome) {
            (Outcome::Rows(rows), Outcome::Rows(others)) => rows == others,
            (one, other) => one.state() == other.state(),
        }
    }

    pub fn own_refusal(&self) -> Option<&str> {
        match &self.outcome {
            Outcome::Refused { state, message, file } if state == FEATURE_NOT_SUPPORTED && sql::of_onetrip(file) => {
                Some(message.split(" / ").next().unwrap_or(message))
            }
            _ => None,
        }
    }

    pub fn lost(&self) -> bool {
        LOST.contains(&self.outcome.state())
    }
}

impl Display for Said {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} -> ", self.who, self.statement)?;
        match &self.outcome {
            Outcome::Rows(rows) if rows.is_empty() => write!(f, "done"),
            Outcome::Rows(rows) => write!(f, "{rows:?}"),
            Outcome::Refused { state, message, .. } => write!(f, "{state} {message}"),
            Outcome::Gone(why) => write!(f, "gone: {why}"),
        }
    }
}

/// A session that is opened again when it was ended.
pub struct Seat {
    conninfo: String,
    prepare: String,
    client: Option<Client>,
}

impl Seat {
    pub fn new(conninfo: String, level: &str, way: &str) -> Seat {
        let prepare = format!(
            "{LIMITS}; set default_transaction_isolation = '{level}'; {way}; set session authorization pairs_user"
        );
        Seat { conninfo, prepare, client: None }
    }

    pub async fn run(&mut self, statement: &str) -> Outcome {
        if self.client.is_none() {
            match connect(&self.conninfo).await {
                Ok(client) => match run_sql(&client, &self.prepare).await {
                    Ok(_) => self.client = Some(client),
                    Err(failure) => return Outcome::Gone(failure.to_string()),
                },
                Err(why) => return Outcome::Gone(format!("{why:#}")),
            }
        }
        let Some(client) = &self.client else { return Outcome::Gone("no session".to_string()) };
        match run_sql(client, statement).await {
            Ok(rows) => Outcome::Rows(rows),
            Err(Failure::Refused { state, message, file }) => Outcome::Refused { state, message, file },
            Err(failure) => {
                self.client = None;
                Outcome::Gone(failure.to_string())
            }
        }
    }

    /// Forgets whatever the session has of a meeting.
    pub async fn leave(&mut self) {
        for statement in ["rollback", "close all; deallocate all; discard temp"] {
            self.run(statement).await;
        }
    }
}
