//! Accounts, and the money that moves between them: what every snapshot in every region must show.

use anyhow::Result;

use super::{tags, Client, Ledger, Random, Session, Step};
use crate::torture::session::{Expected, Hangs};

/// What each account begins with.
const EACH: i64 = 1_000;

/// The names of its two tables, and how many accounts there are.
pub struct Bank {
    pub accounts: &'static str,
    pub transfers: &'static str,
    pub count: u64,
}

/// A transfer, to be written as three changes in any order.
pub struct Drawn {
    pub payer: u64,
    pub payee: u64,
    pub amount: u64,
    pub tag: String,
}

impl Bank {
    pub fn tables(&self) -> String {
        let Bank { accounts, transfers, count } = self;
        format!(
            "create table {accounts} (id int primary key, balance bigint not null check (balance >= 0));
             create table {transfers} (tag text primary key, payer int, payee int, amount int);
             insert into {accounts} select g, {EACH} from generate_series(1, {count}) g"
        )
    }

    /// Two different accounts, and an amount that the payer may not have.
    pub fn draw(&self, client: Client, random: &mut Random) -> Drawn {
        let payer = 1 + random.draw(self.count);
        let payee = 1 + (payer + random.draw(self.count - 1)) % self.count;
        Drawn { payer, payee, amount: 1 + random.draw(20), tag: client.tag() }
    }

    pub fn pays(&self, Drawn { payer, amount, .. }: &Drawn) -> String {
        format!("update {} set balance = balance - {amount} where id = {payer}", self.accounts)
    }

    pub fn gets(&self, Drawn { payee, amount, .. }: &Drawn) -> String {
        format!("update {} set balance = balance + {amount} where id = {payee}", self.accounts)
    }

    pub fn notes(&self, Drawn { payer, payee, amount, tag }: &Drawn) -> String {
        format!("insert into {} values ('{tag}', {payer}, {payee}, {amount})", self.transfers)
    }

    /// One statement, and thus one snapshot: the total, and how many accounts disagree with their transfers.
    pub fn look(&self) -> String {
        let Bank { accounts, transfers, .. } = self;
        format!(
            "select (select sum(balance) from {accounts}) || ' ' || (select count(*) from {accounts} a left join
                    (select id, sum(amount) as moved from (select payee as id, amount from {transfers}
                         union all select payer, -amount from {transfers}) one group by id) m using (id)
                 where a.balance <> {EACH} + coalesce(m.moved, 0))"
        )
    }

    /// What a look must show.
    pub fn right(&self) -> String {
        format!("{} 0", self.count as i64 * EACH)
    }

    pub async fn step_look(&self, session: &mut Session, client: Client, expected: Expected) -> Result<Step, Hangs> {
        let done = session.transaction(&[self.look()], expected).await?;
        // If there is no answer, the transaction failed before it saw anything.
        let seen = done.answers.first().cloned().flatten().unwrap_or_else(|| self.right());
        Ok(Step::Read(done, self.wrong(client, &seen)))
    }

    /// What is wrong with what a client has seen.
    pub fn wrong(&self, client: Client, seen: &str) -> Vec<String> {
        let (region, right) = (client.region, self.right());
        let wrong = format!(
            "region {region}: a snapshot shows {seen} (total, accounts that disagree with transfers), not {right}"
        );
        (seen != right).then_some(wrong).into_iter().collect()
    }

    /// What is wrong with what the region `name` shows at rest.
    pub async fn verify(
        &self,
        workload: &str,
        ledger: &Ledger,
        name: &str,
        session: &mut Session,
    ) -> Result<Vec<String>> {
        let mut wrong = ledger.compare(workload, name, &tags(session, self.transfers).await?);
        let shown = session.text(&self.look()).await?;
        if shown != self.right() {
            wrong.push(format!("{workload}: {name}: total and wrong accounts: {shown}"));
        }
        Ok(wrong)
    }
}
