//! A few hot rows, for which all regions wait in line at the leader; also in a table without a key, some of whose rows
//! are equal.

use anyhow::Result;

use super::{Client, Ledger, Random, Session, Step, Workload};
use crate::torture::session::{Expected, Hangs};

const COUNTERS: u64 = 6;

#[derive(Default)]
pub struct Counters {
    ledger: Ledger,
}

impl Workload for Counters {
    const NAME: &'static str = "counters";
    const TAGGED: Option<&'static str> = Some("counted");

    fn tables(&self) -> String {
        format!(
            "create table counter (id int primary key, n bigint not null);
             security label for onetrip on table counter is 'locking';
             insert into counter select g, 0 from generate_series(0, {last}) g;
             create table tally (id int, n bigint);
             insert into tally select g, 0 from generate_series(0, {last}) g, generate_series(1, 3);
             create table counted (tag text primary key, id int not null, in_tally bool not null)",
            last = COUNTERS - 1
        )
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    async fn step(
        &self,
        session: &mut Session,
        client: Client,
        random: &mut Random,
        expected: Expected,
    ) -> Result<Step, Hangs> {
        // Mostly a counter of the client's own region, so that not all transactions conflict.
        let id = if random.chance(70) { client.region as u64 % COUNTERS } else { random.draw(COUNTERS) };
        let lock = format!("select n from counter where id = {id} for no key update");
        let count = format!("update counter set n = n + 1 where id = {id}");
        let note = |in_tally: bool| format!("insert into counted values ('{}', {id}, {in_tally})", client.tag());
        // All rows with this id are equal, and stay so.  (To pick one of them by its place would find none if another
        // session changes it meanwhile.)
        let tally = format!("update tally set n = n + 1 where id = {id}");
        let statements = match random.draw(5) {
            0 => vec![lock, note(false), count],
            1 => vec![note(false), count],
            2 => vec![count, note(false)],
            3 => vec![note(true), tally],
            _ => vec![tally, note(true)],
        };
        session.transaction(&statements, expected).await.map(Step::Wrote)
    }

    async fn verify(&self, _region: usize, name: &str, session: &mut Session) -> Result<Vec<String>> {
        let mut wrong = self.ledger.compare(Self::NAME, name, &super::tags(session, "counted").await?);
        let counted = "select count(*) from counted where id = c.id and in_tally =";
        for query in [
            format!("select c.id, c.n, ({counted} false) from counter c where n <> ({counted} false)"),
            format!("select c.id, sum(c.n), ({counted} true) from tally c group by id having sum(n) <> 3 * ({counted} true) or count(*) <> 3 or count(distinct n) <> 1"),
        ] {
            let rows = session.rows(&query).await?;
            wrong.extend(rows.iter().map(|row| format!("{}: {name}: what was counted and how often differ: {row:?}", Self::NAME)));
        }
        Ok(wrong)
    }
}
