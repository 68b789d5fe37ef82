//! The workloads that run while faults happen.  Each has an invariant that any wrong commit, lost commit or
//! inconsistent snapshot would break, and checks it while it runs, at the end, or both.
//!
//! | workload | what must hold |
//! |---|---|
//! | transfers | the total is the same in every snapshot, and balances agree with the transfers |
//! | lists | no anomaly that the isolation level forbids, by the cycles of appends and reads |
//! | inserts | a unique value exists once; acknowledged rows are there, also in a table without a key |
//! | family | no child without its parent, in any snapshot |
//! | sequences | no value twice, also of a sequence that is too short to be interleaved |
//! | prepared | what is prepared is there until it is ended, takes effect as decided, once, and holds its rows |
//! | counters | a counter equals its increments; acknowledged increments are there, aborted ones are not |
//! | ddl | all regions agree at the end, after changes of columns and indexes, TRUNCATE and bulk changes |

mod bank;
mod counters;
mod ddl;
mod family;
mod inserts;
mod lists;
mod prepared;
mod sequences;
mod transfers;

use std::future::Future;
use std::sync::Arc;

use anyhow::Result;

use super::ledger::Ledger;
use super::random::Random;
use super::session::{Done, End, Expected, Hangs, Session};
use super::stage::Stage;

pub use counters::Counters;
pub use ddl::Ddl;
pub use family::Family;
pub use inserts::Inserts;
pub use lists::Lists;
pub use prepared::Prepared;
pub use sequences::Sequences;
pub use transfers::Transfers;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

impl Isolation {
    pub const ALL: [Isolation; 3] = [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable];

    pub fn name(self) -> &'static str {
        match self {
            Isolation::ReadCommitted => "read committed",
            Isolation::RepeatableRead => "repeatable read",
            Isolation::Serializable => "serializable",
        }
    }

    pub fn short(self) -> &'static str {
        match self {
            Isolation::ReadCommitted => "rc",
            Isolation::RepeatableRead => "rr",
            Isolation::Serializable => "ser",
        }
    }
}

/// The client that does a step.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    pub region: usize,
    /// Counts the clients of this workload in all regions.
    pub number: u64,
    /// Counts the steps of this client.
    pub step: u64,
}

impl Client {
    /// The tag of this step's transaction; no two steps of a workload have the same.
    pub fn tag(&self) -> String {
        format!("{}-{}-{}", self.region, self.number, self.step)
    }
}

/// What kind of transaction a step was.
pub enum Step {
    /// It may have changed something.
    Wrote(Done),
    /// It may have changed something, of which the workload itself tells its ledger.
    Noted(Done),
    /// It only read; the strings say what is wrong with what it saw.
    Read(Done, Vec<String>),
}

pub trait Workload: Send + Sync + 'static {
    const NAME: &'static str;
    const CLIENTS_PER_REGION: u64 = 1;
    /// SQLSTATEs that its statements provoke, besides those of conflicts with other transactions.
    const PROVOKES: &'static [&'static str] = &[];

    /// A table that contains the tag of every committed step that wrote.
    const TAGGED: Option<&'static str> = None;

    /// SQL that creates its tables, in the schema of the stage.
    fn tables(&self) -> String;

    fn ledger(&self) -> &Ledger;

    /// Runs one transaction.
    fn step(
        &self,
        session: &mut Session,
        client: Client,
        random: &mut Random,
        expected: Expected,
    ) -> impl Future<Output = Result<Step, Hangs>> + Send;

    /// Called at rest, before anything is checked: ends what the clients have left open, and returns what is wrong.
    fn settle(&self, _session: &mut Session) -> impl Future<Output = Result<Vec<String>>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Called at rest, once for each region; returns what is wrong with what the region shows.
    fn verify(
        &self,
        region: usize,
        name: &str,
        session: &mut Session,
    ) -> impl Future<Output = Result<Vec<String>>> + Send;

    /// Called after all regions were verified; returns what is wrong with the whole history.
    fn verdict(&self, _isolation: Isolation) -> Vec<String> {
        Vec::new()
    }
}

/// The tags that a table contains, read without an index.
async fn tags(session: &mut Session, table: &str) -> Result<Vec<String>> {
    session.run("set enable_indexscan = off; set enable_indexonlyscan = off; set enable_bitmapscan = off").await?;
    let rows = session.rows(&format!("select tag from {table}")).await?;
    Ok(rows.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect())
}

/// Runs one client of a workload until the stage ends.  It reconnects whenever it has to, and asks other regions for
/// open outcomes.
pub async fn client<W: Workload>(workload: Arc<W>, stage: Arc<Stage>, mut client: Client, mut random: Random) {
    let expected = Expected { under_faults: stage.under_faults(), provoked: W::PROVOKES };
    let mut session: Option<Session> = None;
    while !stage.stopping() {
        let Some(open) = session.as_mut().filter(|s| !s.lost) else {
            session = None;
            match stage.session(client.region).await {
                Ok(mut new) => {
                    stage.sees_its_own(&*workload, client, &mut new).await;
                    session = Some(new);
                }
                Err(why) => stage.no_session(client.region, &why).await,
            }
            continue;
        };
        client.step += 1;
        let (done, wrote) = match workload.step(open, client, &mut random, expected).await {
            Ok(Step::Wrote(done)) => {
                workload.ledger().note(&client.tag(), done.end.clone());
                (done, true)
            }
            Ok(Step::Noted(done)) => (done, true),
            Ok(Step::Read(done, wrong)) => {
                stage.wrong(W::NAME, wrong);
                (done, false)
            }
            Err(hangs) => {
                stage.hangs(W::NAME, client.region, &hangs).await;
                session = None;
                continue;
            }
        };
        if let Some(unexpected) = &done.unexpected {
            stage.wrong(W::NAME, vec![format!("region {}: {unexpected}", client.region)]);
        }
        stage.count(W::NAME, client.region, wrote, &done.end);
        if let End::Unknown(Some(_)) = done.end {
            stage.ask_elsewhere(&*workload, client, &mut random).await;
        }
        stage.think(&mut random).await;
    }
}
