//! Parents that come and go, and children that refer to them, in all regions at once.

use anyhow::Result;

use super::{Client, Ledger, Random, Session, Step, Workload};
use crate::torture::session::{Expected, Hangs};

const PARENTS: u64 = 40;
const ORPHANS: &str =
    "select (select count(*) from child where not exists (select from parent where id = child.parent))
            + (select count(*) from ward where not exists (select from parent where id = ward.parent))";

#[derive(Default)]
pub struct Family {
    ledger: Ledger,
}

impl Workload for Family {
    const NAME: &'static str = "family";
    const CLIENTS_PER_REGION: u64 = 2;
    /// foreign_key_violation: the parent does not exist, or still has wards.
    const PROVOKES: &'static [&'static str] = &["23503"];

    fn tables(&self) -> String {
        format!(
            "create table parent (id int primary key, tag text);
             insert into parent select g, 'first' from generate_series(0, {}, 2) g;
             create table child (tag text primary key, parent int not null references parent on delete cascade on update cascade);
             create table ward (tag text primary key, parent int not null references parent deferrable initially deferred)",
            PARENTS - 1
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
        let (id, other, tag) = (random.draw(PARENTS), random.draw(PARENTS), client.tag());
        let statements = match random.draw(12) {
            0..=2 => vec![format!("insert into parent values ({id}, '{tag}') on conflict (id) do nothing")],
            3..=4 => vec![format!("insert into child values ('{tag}', {id})")],
            5 => vec![format!("insert into ward values ('{tag}', {id})")],
            // The constraint is deferred, so the parent may be inserted later in the transaction.
            6 => vec![
                format!("insert into ward values ('{tag}', {id})"),
                format!("insert into parent values ({id}, '{tag}') on conflict (id) do nothing"),
            ],
            7 => vec![format!(
                "update child set parent = {id} where tag = (select min(tag) from child where parent = {other})"
            )],
            8 => vec![format!("delete from ward where parent = {id}"), format!("delete from parent where id = {id}")],
            9 => vec![format!("delete from parent where id = {id}")],
            10 => vec![format!("update parent set tag = '{tag}' where id = {id}")],
            _ => {
                let done = session.transaction(&[ORPHANS.to_string()], expected).await?;
                let orphans = done.answers.first().cloned().flatten();
                let wrong = orphans.filter(|n| n != "0").map(|n| format!("region {}: {n} orphans", client.region));
                return Ok(Step::Read(done, wrong.into_iter().collect()));
            }
        };
        session.transaction(&statements, expected).await.map(Step::Wrote)
    }

    async fn verify(&self, _region: usize, name: &str, session: &mut Session) -> Result<Vec<String>> {
        session.run("set enable_indexscan = off; set enable_indexonlyscan = off; set enable_bitmapscan = off").await?;
        let orphans = session.number(ORPHANS).await?;
        Ok((orphans != 0).then(|| format!("{}: {name}: {orphans} orphans", Self::NAME)).into_iter().collect())
    }
}
