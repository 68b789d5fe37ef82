//! Has this node's PostgreSQL print rows of a write set (`onetrip skip`).

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Statement};

use super::counts::{own_session, why};
use crate::config::NodeConfig;
use crate::write_set::Row;

/// For all rows of a write set.  An operator waits, a minute at most, and for more than this.
const PATIENCE: Duration = Duration::from_secs(10);

/// For a thread that may wait, since it waits for the server.
pub(crate) struct RowTexts {
    runtime: Runtime,
    session: Option<(Client, Statement)>,
    until: Instant,
    /// Why a row could not be printed, of the first one.
    pub failed: Option<String>,
}

impl RowTexts {
    pub fn of(config: &NodeConfig) -> std::io::Result<RowTexts> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut texts = RowTexts { runtime, session: None, until: Instant::now() + PATIENCE, failed: None };
        let begun = texts.runtime.block_on(async { tokio::time::timeout_at(texts.until, begin(config)).await });
        match begun.unwrap_or_else(|_| Err("it does not answer".into())) {
            Ok(session) => texts.session = Some(session),
            Err(why) => texts.failed = Some(why),
        }
        Ok(texts)
    }

    /// `None`: the server cannot read it.
    pub fn of_row(&mut self, row: &Row) -> Option<String> {
        let (client, statement) = self.session.as_ref()?;
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&row.objects, &row.relation, &row.changed, &row.row];
        // Made within the runtime, whose timer it needs.
        let asked = async { tokio::time::timeout_at(self.until, client.query_one(statement, &parameters)).await };
        let why = match self.runtime.block_on(asked) {
            Ok(told) => match told.and_then(|told| told.try_get(0)) {
                Ok(text) => return Some(text),
                Err(e) => why(e),
            },
            Err(_) => {
                self.session = None;
                "it takes too long".into()
            }
        };
        self.failed.get_or_insert(why);
        None
    }
}

async fn begin(config: &NodeConfig) -> Result<(Client, Statement), String> {
    let postgres = config.postgres.as_ref().ok_or("the node has none")?;
    let socket = config.data_dir.join(format!(".s.PGSQL.{}", postgres.port));
    let client = own_session(&socket, &postgres.database, "onetrip skip").await?;
    let types = [Type::BYTEA, Type::BYTEA, Type::BYTEA, Type::BYTEA];
    let statement = client.prepare_typed("SELECT onetrip.row_text($1, $2, $3, $4)", &types).await.map_err(why)?;
    Ok((client, statement))
}
