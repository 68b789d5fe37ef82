//! Values of a sequence and of an identity column, drawn in all regions: no value may be drawn twice.

use anyhow::Result;

use super::{Client, Ledger, Random, Session, Step, Workload};
use crate::torture::session::{Expected, Hangs};

#[derive(Default)]
pub struct Sequences {
    ledger: Ledger,
}

impl Workload for Sequences {
    const NAME: &'static str = "sequences";
    const TAGGED: Option<&'static str> = Some("drawn");

    fn tables(&self) -> String {
        // A value that is drawn twice fails in `item` at once, and is found in `drawn` at the end.
        "create sequence ticket;
         create table drawn (tag text, value bigint);
         create table item (id bigint generated always as identity primary key, tag text)"
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
        session.transaction(&statements, expected).await.map(Step::Wrote)
    }

    async fn verify(&self, _region: usize, name: &str, session: &mut Session) -> Result<Vec<String>> {
        let mut wrong = self.ledger.compare(Self::NAME, name, &super::tags(session, "drawn").await?);
        wrong.extend(self.ledger.compare(Self::NAME, name, &super::tags(session, "item").await?));
        for (table, column) in [("drawn", "value"), ("item", "id")] {
            let rows = session
                .rows(&format!("select {column}, count(*), string_agg(tag, ' ') from {table} group by 1 having count(*) > 1 limit 5"))
                .await?;
            wrong.extend(rows.iter().map(|row| format!("{}: {name}: a value twice in {table}: {row:?}", Self::NAME)));
        }
        Ok(wrong)
    }
}
