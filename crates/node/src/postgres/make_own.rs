//! What a copy of a server has that acts by itself, or that only the original may end, is ended in the copy before it
//! serves.
//!
//! That happens in PostgreSQL's single-user mode, which recovers the copy first: one that cannot be started is found
//! out here, and does not take the place of anything.
//!
//! - What PostgreSQL has prepared (PREPARE TRANSACTION) is ended on the original alone, and its locks would stay here
//!   for ever: it is rolled back.
//! - Subscriptions of databases that are not replicated would take turns with the original at one slot of the
//!   publisher, and what one of the two has confirmed the other one never gets: they are disabled.
//!
//! Subscriptions of the replicated database are the extension's concern (`commit/subscription.c`).

use std::collections::BTreeMap;
use std::path::Path;

use onetrip_core::LogIndex;

use super::{control_data, PostgresError, Server, SingleUser, SHOWS};

/// They are in a catalog that all databases of a server share, and run wherever they are.
const RUNS_ELSEWHERE: &str =
    "subenabled AND subdbid <> (SELECT oid FROM pg_database WHERE datname = current_database())";

/// The settings that say how many transactions can be prepared, and with how many locks; and as `pg_controldata` calls
/// them.
const PLACES: [(&str, &str); 5] = [
    ("max_prepared_transactions", "max_prepared_xacts"),
    ("max_locks_per_transaction", "max_locks_per_xact"),
    ("max_connections", "max_connections"),
    ("max_worker_processes", "max_worker_processes"),
    ("max_wal_senders", "max_wal_senders"),
];

/// A copy that is this server's own.
pub struct Own {
    /// What was ended, in words.
    pub ended: Vec<String>,
    /// The index up to which it shows the log; 0 also if it does not know.
    pub shows: LogIndex,
}

impl Server {
    /// `data`: the copy, with the settings that it is going to be started with.  On return it is durable, and needs no
    /// recovery.
    pub fn make_own(&self, data: &Path) -> Result<Own, PostgresError> {
        // What there is to say of the files is said where they are then, when the server is started.
        let (mut settings, _) = self.over_files(data);
        settings.extend(places(&control_data(&self.bin_dir, data)?));
        // Another machine may have less memory than the settings ask for, and little is enough here.
        settings.extend([("shared_buffers", "128MB".to_string()), ("huge_pages", "off".to_string())]);
        let copy = SingleUser { settings: &settings, ..SingleUser::of(&self.bin_dir, data) };

        // Those of the cluster may be shown, too, with 0 as their transaction.
        let of_each = |column| {
            format!("SELECT {column}::text FROM pg_prepared_xacts WHERE transaction <> '0' ORDER BY transaction::text")
        };
        let subscriptions = format!(
            "SELECT quote_ident(subname) || ' in ' || quote_ident(datname) FROM pg_subscription \
             JOIN pg_database d ON d.oid = subdbid WHERE {RUNS_ELSEWHERE} ORDER BY 1"
        );
        let queries = [of_each("database"), of_each("gid"), subscriptions, SHOWS.to_string()];
        let mut rows = copy.rows("recovering the copy", &self.database, &queries)?.into_iter();
        let mut next = || rows.next().unwrap_or_default();
        let (databases, names, subscriptions, shows) = (next(), next(), next(), next());
        let shows = shows.first().and_then(|shows| shows.parse().ok()).map(LogIndex).unwrap_or_default();

        let mut prepared: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (database, name) in databases.into_iter().zip(names) {
            prepared.entry(database).or_default().push(name);
        }
        let mut ended = Vec::new();
        for (database, names) in prepared {
            let statements: Vec<String> = names.iter().map(|name| rollback(name)).collect();
            copy.run("rolling back what the other server has prepared", &database, &statements)?;
            let said = |name| format!("prepared transaction {name:?} of database {database} is rolled back");
            ended.extend(names.iter().map(said));
        }
        if !subscriptions.is_empty() {
            let disable = format!("UPDATE pg_subscription SET subenabled = false WHERE {RUNS_ELSEWHERE}");
            copy.run("disabling subscriptions", &self.database, &[disable])?;
            ended.extend(subscriptions.iter().map(|name| format!("subscription {name} is disabled")));
        }
        Ok(Own { ended, shows })
    }
}

/// Recovery needs as many places for what is prepared, and for its locks, as the other server had.
fn places(control: &BTreeMap<String, String>) -> impl Iterator<Item = (&'static str, String)> + '_ {
    PLACES.iter().filter_map(|(name, called)| Some((*name, control.get(&format!("{called} setting"))?.clone())))
}

fn rollback(name: &str) -> String {
    let escaped = name.replace('\\', r"\\").replace('\'', "''").replace('\n', r"\n");
    format!("ROLLBACK PREPARED E'{escaped}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_has_the_places_of_the_other_server() {
        let control = [("max_locks_per_xact setting", "640"), ("max_connections setting", "9"), ("TimeLineID", "1")];
        let control = control.map(|(name, value)| (name.to_string(), value.to_string())).into();
        let taken: Vec<_> = places(&control).collect();
        assert_eq!(taken, [("max_locks_per_transaction", "640".into()), ("max_connections", "9".into())]);
    }

    #[test]
    fn any_name_is_one_literal_on_one_line() {
        assert_eq!(rollback("it's\n\\n"), r"ROLLBACK PREPARED E'it''s\n\\n'");
    }
}
