//! Transactions on Onetrip with tokio-postgres: run again when they lose, and never twice when they have not.

use std::error::Error;
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls, Transaction};

/// Statements that have no name (`query_typed`, `execute_typed`) work behind a pool of transactions, too; a named one
/// belongs to a session of the server.
struct Database {
    /// All regions, the nearest one first; the first that can be written is taken.
    url: String,
    client: Option<Client>,
}

impl Database {
    async fn connect(&mut self) -> &mut Client {
        self.client = self.client.take().filter(|client| !client.is_closed());
        while self.client.is_none() {
            match tokio_postgres::connect(&self.url, NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    self.client = Some(client);
                }
                // An election, or a region that starts again.
                Err(_) => pause(100).await,
            }
        }
        self.client.as_mut().expect("the loop has ended")
    }

    /// Whether the transaction has committed, from any region: settles it, since its own may be gone or cut off.
    async fn committed(&mut self, id: &str) -> Result<bool, Box<dyn Error>> {
        let question = "SELECT onetrip.outcome($1, settle => true)";
        loop {
            let answer = self.connect().await.query_typed_one(question, &[(&id, Type::TEXT)]).await;
            match answer.map(|row| row.get::<_, String>(0)) {
                Ok(answer) if answer.starts_with("committed") => return Ok(true),
                Ok(answer) if answer == "aborted" => return Ok(false),
                Ok(answer) if answer == "unknown" => {}
                // Left out, or forgotten: final, and for a person to judge.
                Ok(answer) => return Err(format!("transaction {id}: {answer}").into()),
                // A wrong question, or it is not granted.
                Err(error) if error.code().is_some_and(|code| matches!(&code.code()[..2], "22" | "42")) => {
                    return Err(error.into())
                }
                // The connection is gone; or there is no majority here, and another region can tell.
                Err(_) => self.client = None,
            }
            pause(100).await;
        }
    }

    /// Runs `work` as one transaction, until it has committed once.
    async fn run<W>(&mut self, work: W) -> Result<(), Box<dyn Error>>
    where
        W: AsyncFn(&Transaction<'_>) -> Result<(), tokio_postgres::Error>,
    {
        loop {
            let mut id = None;
            let attempt = async {
                let transaction = self.connect().await.transaction().await?;
                // For what became of a COMMIT that gets no answer.  Its COMMIT crosses regions even if it only reads.
                let row = transaction.query_typed_one("SELECT onetrip.current_transaction_id()", &[]).await?;
                id = Some(row.get::<_, String>(0));
                work(&transaction).await?;
                transaction.commit().await
            };
            let Err(error) = attempt.await else { return Ok(()) };
            match error.code() {
                // Lost to another transaction: nothing happened.
                Some(code) if *code == SqlState::T_R_SERIALIZATION_FAILURE => {}
                Some(code) if *code == SqlState::T_R_DEADLOCK_DETECTED => {}
                // Nor here: the region has no majority any more, and another one has.
                Some(code) if *code == SqlState::READ_ONLY_SQL_TRANSACTION => self.client = None,
                // 08007: the outcome is open; the others: the connection is gone.
                Some(code) if !code.code().starts_with("08") && !code.code().starts_with("57P") => {
                    return Err(error.into())
                }
                code => {
                    if code.is_none_or(|code| code.code() != "08007") {
                        self.client = None;
                    }
                    if let Some(id) = id {
                        if self.committed(&id).await? {
                            return Ok(());
                        }
                    }
                }
            }
            pause(u64::from(std::process::id()) % 20).await;
        }
    }
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

async fn transfer(transaction: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
    transaction.execute_typed("UPDATE account SET balance = balance - 1 WHERE id = 1", &[]).await?;
    transaction.execute_typed("UPDATE account SET balance = balance + 1 WHERE id = 2", &[]).await?;
    transaction.execute_typed("INSERT INTO transfer VALUES ('rust')", &[]).await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("ONETRIP_URL")?;
    let count: u32 = std::env::args().nth(1).ok_or("how many?")?.parse()?;
    let mut database = Database { url, client: None };
    for n in 1..=count {
        database.run(transfer).await?;
        println!("{n}");
    }
    let count = "SELECT count(*) FROM transfer WHERE by = 'rust'";
    println!("{}", database.connect().await.query_typed_one(count, &[]).await?.get::<_, i64>(0));
    Ok(())
}
