//! A few hot rows, incremented from all regions.

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
             insert into counter select g, 0 from generate_series(0, {}) g;
             create table counted (tag text primary key, id int not null)",
            COUNTERS - 1
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
        let note = format!("insert into counted values ('{}', {id})", client.tag());
        let statements = match random.draw(3) {
            0 => vec![lock, note, count],
            1 => vec![note, count],
            _ => vec![count, note],
        };
        session.transaction(&statements, expected).await.map(Step::Wrote)
    }

    async fn verify(&self, _region: usize, name: &str, session: &mut Session) -> Result<Vec<String>> {
        let mut wrong = self.ledger.compare(Self::NAME, name, &super::tags(session, "counted").await?);
        let rows = session
            .rows("select c.id, c.n, (select count(*) from counted where id = c.id) from counter c where n <> (select count(*) from counted where id = c.id)")
            .await?;
        wrong.extend(
            rows.iter().map(|row| format!("{}: {name}: counter and its increments differ: {row:?}", Self::NAME)),
        );
        Ok(wrong)
    }
}
