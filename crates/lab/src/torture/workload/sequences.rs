//! Values of a sequence and of an identity column, drawn in all regions: no value may be drawn twice.  Nor may a value
//! of a short sequence, which has not one for each region, until ALTER SEQUENCE lets it begin again.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

use super::{Client, Ledger, Random, Session, Step, Workload};
use crate::torture::session::{End, Expected, Hangs};

#[derive(Default)]
pub struct Sequences {
    ledger: Ledger,
    /// The last transaction of somebody found the short sequence at its end.
    exhausted: AtomicBool,
}

impl Workload for Sequences {
    const NAME: &'static str = "sequences";
    const TAGGED: Option<&'static str> = Some("drawn");
    /// sequence_generator_limit_exceeded: all values of the short one are drawn.
    const PROVOKES: &'static [&'static str] = &["2200H"];

    fn tables(&self) -> String {
        // A value that is drawn twice fails in `item` at once, and is found in `drawn` at the end.
        "create sequence ticket;
         create table drawn (tag text, value bigint);
         create table item (id bigint generated always as identity primary key, tag text);
         create sequence few maxvalue 7;
         create table lap (n int);
         insert into lap values (1);
         create table drawn_few (tag text, value text)"
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
        let tag = client.tag();
        if self.exhausted.swap(false, Ordering::Relaxed) {
            let statements = [
                format!("insert into drawn values ('{tag}', nextval('ticket'))"),
                format!("insert into item (tag) values ('{tag}')"),
                "update lap set n = n + 1".to_string(),
                "alter sequence few restart".to_string(),
            ];
            return session.transaction(&statements, expected).await.map(Step::Wrote);
        }
        let mut statements = vec![
            format!("insert into drawn values ('{tag}', nextval('ticket'))"),
            format!("insert into item (tag) values ('{tag}')"),
        ];
        if random.chance(20) {
            // A value whose insert is rolled back leaves a gap; it must not be drawn again.
            statements.insert(
                1,
                "savepoint s; insert into drawn values ('gap', nextval('ticket')); rollback to savepoint s".into(),
            );
        }
        if random.chance(20) {
            // Whoever lets the sequence begin again changes the row that is locked here.
            statements.push("select n from lap for share".into());
            statements.push(format!("insert into drawn_few select '{tag}', n || ' ' || nextval('few') from lap"));
        }
        let done = session.transaction(&statements, expected).await?;
        if done.end == End::Aborted("2200H".into()) {
            self.exhausted.store(true, Ordering::Relaxed);
        }
        Ok(Step::Wrote(done))
    }

    async fn verify(&self, _region: usize, name: &str, session: &mut Session) -> Result<Vec<String>> {
        let mut wrong = self.ledger.compare(Self::NAME, name, &super::tags(session, "drawn").await?);
        wrong.extend(self.ledger.compare(Self::NAME, name, &super::tags(session, "item").await?));
        let few = super::tags(session, "drawn_few").await?;
        let of_nobody = few.iter().filter(|tag| self.ledger.get(tag).and_then(|a| a.committed()) == Some(false));
        wrong.extend(of_nobody.map(|tag| format!("{}: {name}: {tag} was aborted, and is in drawn_few", Self::NAME)));
        for (table, column) in [("drawn", "value"), ("item", "id"), ("drawn_few", "value")] {
            let rows = session
                .rows(&format!("select {column}, count(*), string_agg(tag, ' ') from {table} group by 1 having count(*) > 1 limit 5"))
                .await?;
            wrong.extend(rows.iter().map(|row| format!("{}: {name}: a value twice in {table}: {row:?}", Self::NAME)));
        }
        Ok(wrong)
    }
}
