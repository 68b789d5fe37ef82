//! Rows with a tag that no other client uses, and with unique values for which all clients compete.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use super::{Client, Ledger, Random, Session, Step, Workload};
use crate::torture::session::{End, Expected, Hangs};

/// How many values clients compete for at a time.
const WANTED: u64 = 4;

#[derive(Default)]
pub struct Inserts {
    ledger: Ledger,
    next: AtomicU64,
}

impl Workload for Inserts {
    const NAME: &'static str = "inserts";
    const TAGGED: Option<&'static str> = Some("kept");
    const CLIENTS_PER_REGION: u64 = 2;
    /// unique_violation: another transaction has the value.
    const PROVOKES: &'static [&'static str] = &["23505"];

    fn tables(&self) -> String {
        "create table kept (tag text primary key, value bigint unique, region int);
         create table once (tag text, note text)"
            .to_string()
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
        let (tag, region) = (client.tag(), client.region);
        let value = self.next.load(Ordering::Relaxed) + random.draw(WANTED);
        let wide = if random.chance(5) { 9_000 } else { random.draw(40) };
        let done = session
            .transaction(
                &[
                    format!("insert into kept values ('{tag}', {value}, {region})"),
                    format!("insert into once values ('{tag}', repeat('x', {wide}))"),
                ],
                expected,
            )
            .await?;
        // The value is taken now, by this transaction or by another one.
        if matches!(done.end, End::Committed | End::NotShownYet) || done.end == End::Aborted("23505".into()) {
            self.next.fetch_max(value + 1, Ordering::Relaxed);
        }
        Ok(Step::Wrote(done))
    }

    async fn verify(&self, _region: usize, name: &str, session: &mut Session) -> Result<Vec<String>> {
        let mut wrong = self.ledger.compare(Self::NAME, name, &super::tags(session, "kept").await?);
        wrong.extend(self.ledger.compare(Self::NAME, name, &super::tags(session, "once").await?));
        let twice = session.rows("select value, count(*) from kept group by 1 having count(*) > 1 limit 5").await?;
        wrong.extend(twice.iter().map(|row| format!("{}: {name}: a unique value twice: {row:?}", Self::NAME)));
        Ok(wrong)
    }
}
