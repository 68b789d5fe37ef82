//! Money that moves between accounts; every snapshot in every region must show the same total.

use anyhow::Result;

use super::bank::{Bank, Drawn};
use super::{Client, Ledger, Random, Session, Step, Workload};
use crate::torture::session::{Expected, Hangs};

const BANK: Bank = Bank { accounts: "account", transfers: "transfer", count: 30 };

#[derive(Default)]
pub struct Transfers {
    ledger: Ledger,
}

impl Workload for Transfers {
    const NAME: &'static str = "transfers";
    const TAGGED: Option<&'static str> = Some("transfer");
    const CLIENTS_PER_REGION: u64 = 2;
    /// check_violation: the payer has too little money.
    const PROVOKES: &'static [&'static str] = &["23514"];

    fn tables(&self) -> String {
        let tables = BANK.tables();
        format!(
            "{tables};
             alter table transfer add foreign key (payer) references account, add foreign key (payee) references account"
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
        let drawn = BANK.draw(client, random);
        let (pays, gets, notes) = (BANK.pays(&drawn), BANK.gets(&drawn), BANK.notes(&drawn));
        // The accounts are locked in any order, so two transactions of one region may deadlock, as in PostgreSQL.
        let mut statements = match random.draw(3) {
            0 => vec![pays, gets, notes],
            1 => vec![gets, notes, pays],
            _ => {
                let Drawn { payer, payee, amount, .. } = drawn;
                vec![
                    notes,
                    format!("update account set balance = balance + case id when {payee} then {amount} else -{amount} end where id in ({payer}, {payee})"),
                ]
            }
        };
        if random.chance(33) {
            statements.insert(0, "set local onetrip.concurrency = locking".to_string());
        }
        session.transaction(&statements, expected).await.map(Step::Wrote)
    }

    async fn verify(&self, _region: usize, name: &str, session: &mut Session) -> Result<Vec<String>> {
        BANK.verify(Self::NAME, &self.ledger, name, session).await
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
        if random.chance(50) {
            return BANK.step_look(session, client, expected).await;
        }
        // Two statements with one snapshot, whatever the isolation level of the stage.
        let statements = [
            "set transaction isolation level repeatable read".to_string(),
            "select sum(balance) from account where id % 2 = 0".to_string(),
            "select sum(balance) from account where id % 2 = 1".to_string(),
        ];
        let done = session.transaction(&statements, expected).await?;
        let shown: Vec<&String> = done.answers.iter().flatten().collect();
        let total = |text: &&String| text.parse::<i64>().unwrap_or(i64::MIN / 4);
        let seen = match shown[..] {
            [even, odd] => format!("{} 0", total(&even) + total(&odd)),
            // The transaction failed before it saw the totals.
            _ => BANK.right(),
        };
        Ok(Step::Read(done, BANK.wrong(client, &seen)))
    }
}
