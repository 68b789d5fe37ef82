//! Columns, indexes, defaults and whole tables that come and go while rows are written; TRUNCATE, cascades and bulk
//! changes.
//!
//! A statement may fail, for instance because a column does not exist any more.  What counts is that all regions agree
//! at the end, which `onetrip check` finds out.

use anyhow::Result;

use super::{Client, Ledger, Random, Session, Step, Workload};
use crate::torture::session::{Expected, Hangs};

const ROWS: u64 = 5_000;

#[derive(Default)]
pub struct Ddl {
    ledger: Ledger,
}

impl Workload for Ddl {
    const NAME: &'static str = "ddl";
    const CLIENTS_PER_REGION: u64 = 2;
    /// Names that do not exist or exist already, violated constraints, and objects that others depend on or use.
    const PROVOKES: &'static [&'static str] = &["42", "23", "2BP01", "55006"];

    fn tables(&self) -> String {
        "create table bulk (id int primary key, v text, u int unique);
         create table shape (id int primary key, v int);
         create table part (id int primary key, bulk int references bulk on delete cascade);
         create table pieces (id int, v int, primary key (id)) partition by range (id);
         create table pieces_low partition of pieces for values from (0) to (2500);
         create table pieces_high partition of pieces for values from (2500) to (5000)"
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
        let (n, region) = (random.draw(ROWS), client.region);
        let statement = match random.draw(20) {
            0 => format!("insert into bulk select g, repeat('x', {n}), null from generate_series({n}, {n} + 300) g on conflict (id) do update set v = excluded.v || '+'"),
            1 => format!("delete from bulk where id between {n} and {n} + 200"),
            2 => format!("update bulk set u = {n} where id = (select min(id) from bulk where id > {n})"),
            3 => format!("insert into part select {n}, min(id) from bulk having min(id) is not null on conflict (id) do update set bulk = excluded.bulk"),
            4 => "alter table shape add column if not exists extra int default 7".to_string(),
            5 => "alter table shape drop column if exists extra".to_string(),
            6..=8 => format!("insert into shape (id, v) values ({n}, 1) on conflict (id) do update set v = shape.v + 1"),
            9 if n < 500 => "truncate shape".to_string(),
            9 => format!("savepoint s; delete from bulk where id = {n}; rollback to s; update bulk set v = 'after' where id = {n}"),
            10 => "create index if not exists shape_v on shape (v)".to_string(),
            11 => "drop index if exists shape_v".to_string(),
            // `counter` is a table that another workload writes all the time.
            12 => "create index if not exists counter_n on counter (n)".to_string(),
            13 => "drop index if exists counter_n".to_string(),
            14 => format!("create table if not exists extra_{region} (id int primary key, v text); insert into extra_{region} values ({n}, 'made') on conflict do nothing"),
            15 => format!("drop table if exists extra_{}", (region + 1) % 3),
            16 => format!("insert into pieces values ({n}, {region}) on conflict (id) do update set v = pieces.v + 1"),
            17 if n < 1_000 => "truncate pieces_low".to_string(),
            17 => "alter table pieces add column if not exists w int; alter table pieces drop column if exists w".to_string(),
            18 => format!("lock table shape in exclusive mode; update shape set v = v + 1 where id = {n}"),
            _ => format!("alter table shape alter column v set default {n}"),
        };
        // A statement by itself is run again by the server when it loses.
        if random.chance(35) && !statement.contains(';') && !statement.starts_with("lock") {
            return session.alone(&statement, expected).await.map(Step::Wrote);
        }
        let mut statements = vec![statement];
        if random.chance(30) {
            statements.push(format!(
                "insert into shape (id, v) values ({n}, 2) on conflict (id) do update set v = shape.v + 1"
            ));
        }
        session.transaction(&statements, expected).await.map(Step::Wrote)
    }

    async fn verify(&self, _region: usize, _name: &str, _session: &mut Session) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}
