//! The ways in which two pieces of work meet, in one or two sessions, and what may come of it.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use anyhow::{ensure, Result};
use tokio_postgres::Client;

use super::features::Feature;
use crate::plain::connect;
use crate::trial::sql::{self, run_exactly, Failure};

const FEATURE_NOT_SUPPORTED: &str = "0A000";
/// What ends a transaction because of another one: a conflict, a deadlock, a lock that is not to be had.
const LOST: [&str; 3] = ["40001", "40P01", "55P03"];
/// The session was ended because of another transaction.
const EVICTED: &str = " 40001 ";
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

    /// The statements, as they stand in the pieces, each with the session (0 or 1) that runs it.
    pub fn script(self, first: &Feature, second: &Feature) -> Vec<(usize, String)> {
        let of = |feature: &Feature, who: usize| -> Vec<(usize, String)> {
            feature.sql.split(" ;; ").map(|statement| (who, statement.to_string())).collect()
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
            Reversed => [whole(second, 1), whole(first, 0)].concat(),
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
                one(0, "prepare transaction '#Q'"),
                whole(second, 1),
                one(1, "commit prepared '#Q'"),
            ]
            .concat(),
        }
    }

    /// Of two at once, what may be left: what these meetings leave in PostgreSQL.  `Err`: an answer that neither order
    /// explains.
    pub fn orders(
        self,
        said: &[Said],
        plain: &BTreeMap<Meeting, Vec<Said>>,
    ) -> std::result::Result<Vec<Meeting>, String> {
        // COMMIT PREPARED is the first one's, whoever runs it.
        let by = |said: &Said| if said.key.starts_with("commit prepared") { 0 } else { said.who };
        let failed = |who: usize| said.iter().find(|said| by(said) == who && !said.outcome.is_fine());
        let fails = [failed(0), failed(1)];
        let explained = |who: usize, said: &Said| {
            let (alone, after) = [(FirstOnly, Reversed), (SecondOnly, Apart)][who];
            let says =
                |meeting: &Meeting| plain[meeting].iter().any(|other| other.key == said.key && other.alike(said));
            says(&alone) || (fails[1 - who].is_none() && says(&after))
        };
        for said in said {
            let who = by(said);
            // What follows an error is an error; whoever ends a transaction says nothing else.
            let own =
                !["begin", "commit", "commit prepared '#Q'", "prepare transaction '#Q'"].contains(&said.key.as_str());
            let counts = match fails[who] {
                Some(first) => std::ptr::eq(first, said),
                None => own,
            };
            if counts && !said.lost() && !explained(who, said) {
                return Err(format!("an answer that PostgreSQL gives in no order: {said}"));
            }
        }
        let succeeds = |meeting: Meeting| plain[&meeting].iter().all(|said| said.outcome.is_fine());
        match (fails[0].is_none(), fails[1].is_none()) {
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
    pub fn is_fine(&self) -> bool {
        matches!(self, Outcome::Rows(_))
    }

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
    /// The statement as it stands in the piece.
    pub key: String,
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
            // PostgreSQL refuses to prepare some of what Onetrip does, in the same words.
            Outcome::Refused { state, message, file }
                if state == FEATURE_NOT_SUPPORTED && (sql::of_onetrip(file) || self.key.starts_with("prepare ")) =>
            {
                Some(message.split(" / ").next().unwrap_or(message))
            }
            _ => None,
        }
    }

    pub fn lost(&self) -> bool {
        match &self.outcome {
            Outcome::Gone(why) => why.contains(EVICTED),
            outcome => LOST.contains(&outcome.state()),
        }
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

/// A session.  One that was ended answers nothing more until the next meeting.
pub struct Seat {
    conninfo: String,
    prepare: String,
    client: Option<Client>,
    gone: bool,
}

impl Seat {
    pub fn new(conninfo: String, level: &str, way: &str) -> Seat {
        let prepare = format!(
            "{LIMITS}; set default_transaction_isolation = '{level}'; {way}; set session authorization pairs_user"
        );
        Seat { conninfo, prepare, client: None, gone: false }
    }

    /// Forgets whatever the session has of the last meeting, or opens another one.
    pub async fn sit_down(&mut self) -> Result<()> {
        self.gone = false;
        if self.client.is_some() {
            for statement in ["rollback", "close all; deallocate all; discard temp"] {
                self.run(statement).await;
            }
        }
        if self.gone || self.client.is_none() {
            let client = connect(&self.conninfo).await?;
            sql::rows(&client, &self.prepare).await?;
            (self.client, self.gone) = (Some(client), false);
        }
        Ok(())
    }

    pub async fn run(&mut self, statement: &str) -> Outcome {
        let Some(client) = &self.client else { return Outcome::Gone("there is no session any more".to_string()) };
        match run_exactly(client, statement).await {
            Ok(rows) => Outcome::Rows(rows),
            Err(Failure::Refused { state, message, file }) => Outcome::Refused { state, message, file },
            Err(failure) => {
                (self.client, self.gone) = (None, true);
                Outcome::Gone(failure.to_string())
            }
        }
    }

    /// Runs what must succeed.
    pub async fn must(&mut self, statement: &str) -> Result<()> {
        let outcome = self.run(statement).await;
        ensure!(outcome.is_fine(), "{statement}: {outcome:?}");
        Ok(())
    }
}
