//! Money that moves between accounts; every snapshot in every region must show the same total.

use anyhow::Result;

use super::{Client, Ledger, Random, Session, Step, Workload};
use crate::torture::session::{Expected, Hangs};

const ACCOUNTS: u64 = 30;
const EACH: i64 = 1_000;
/// One statement, and thus one snapshot: the total, and how many accounts disagree with their transfers.
const LOOK: &str = "select (select sum(balance) from account) || ' ' || (select count(*) from account a left join
            (select id, sum(amount) as moved from (select payee as id, amount from transfer
                 union all select payer, -amount from transfer) one group by id) m using (id)
         where a.balance <> 1000 + coalesce(m.moved, 0))";

#[derive(Default)]
pub struct Transfers {
    ledger: Ledger,
}

fn right() -> String {
    format!("{} 0", ACCOUNTS as i64 * EACH)
}

impl Workload for Transfers {
    const NAME: &'static str = "transfers";
    const TAGGED: Option<&'static str> = Some("transfer");
    const CLIENTS_PER_REGION: u64 = 2;
    /// check_violation: the payer has too little money.
    const PROVOKES: &'static [&'static str] = &["23514"];

    fn tables(&self) -> String {
        format!(
            "create table account (id int primary key, balance bigint not null check (balance >= 0));
             create table transfer (tag text primary key, payer int references account, payee int references account, amount int);
             insert into account select g, {EACH} from generate_series(1, {ACCOUNTS}) g"
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
        if random.chance(25) {
            return self.look(session, client, random, expected).await;
        }
        let payer = 1 + random.draw(ACCOUNTS);
        let payee = 1 + (payer + random.draw(ACCOUNTS - 1)) % ACCOUNTS;
        let amount = 1 + random.draw(20);
        let add = |id: u64, sign: &str| format!("update account set balance = balance {sign} {amount} where id = {id}");
        let note = format!("insert into transfer values ('{}', {payer}, {payee}, {amount})", client.tag());
        // The accounts are locked in any order, so two transactions of one region may deadlock, as in PostgreSQL.
        let mut statements = match random.draw(3) {
            0 => vec![add(payer, "-"), add(payee, "+"), note],
            1 => vec![add(payee, "+"), note, add(payer, "-")],
            _ => vec![
                note,
                format!("update account set balance = balance + case id when {payee} then {amount} else -{amount} end where id in ({payer}, {payee})"),
            ],
        };
        if random.chance(33) {
            statements.insert(0, "set local onetrip.concurrency = locking".to_string());
        }
        session.transaction(&statements, expected).await.map(Step::Wrote)
    }

    async fn verify(&self, _region: usize, name: &str, session: &mut Session) -> Result<Vec<String>> {
        let mut wrong = self.ledger.compare(Self::NAME, name, &super::tags(session, "transfer").await?);
        let shown = session.text(LOOK).await?;
        if shown != right() {
            wrong.push(format!("{}: {name}: total and wrong accounts: {shown}", Self::NAME));
        }
        Ok(wrong)
    }
}

impl Transfers {
    async fn look(
        &self,
        session: &mut Session,
        client: Client,
        random: &mut Random,
        expected: Expected,
    ) -> Result<Step, Hangs> {
        let mut statements = vec![LOOK.to_string()];
        if random.chance(50) {
            // Two statements with one snapshot, whatever the isolation level of the stage.
            statements = vec![
                "set transaction isolation level repeatable read".to_string(),
                "select sum(balance) from account where id % 2 = 0".to_string(),
                "select sum(balance) from account where id % 2 = 1".to_string(),
            ];
        }
        let two = statements.len() > 1;
        let done = session.transaction(&statements, expected).await?;
        let shown: Vec<&String> = done.answers.iter().flatten().collect();
        let total = |text: &&String| text.parse::<i64>().unwrap_or(i64::MIN / 4);
        let seen = match shown[..] {
            [both] if !two => both.clone(),
            [even, odd] => format!("{} 0", total(&even) + total(&odd)),
            // The transaction failed before it saw the totals.
            _ => right(),
        };
        let wrong = (seen != right()).then(|| {
            format!(
                "region {}: a snapshot shows {seen} (total, accounts that disagree with transfers), not {}",
                client.region,
                right()
            )
        });
        Ok(Step::Read(done, wrong.into_iter().collect()))
    }
}
