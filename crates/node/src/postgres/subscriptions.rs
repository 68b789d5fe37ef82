//! Subscriptions of the databases that are not replicated, in a copy of a server.
//!
//! They are in a catalog that all databases of a server share, and run wherever they are.  A copy and its original
//! would take turns at the same slot of the publisher, and what one of them has confirmed the other never gets.  Those of
//! the replicated database are the extension's concern (`commit/subscription.c`).

use std::path::Path;

use super::{PostgresError, Server, SingleUser};

impl Server {
    /// Disables them in `copy`, a data folder on which no server has run yet.  Returns their names.
    pub fn disable_subscriptions(&self, copy: &Path) -> Result<Vec<String>, PostgresError> {
        // What its settings say may not be enough for its position in the log.
        let settings = self.over_files(copy);
        let offline = SingleUser { settings: &settings, ..SingleUser::of(&self.bin_dir, copy) };
        let elsewhere = "subenabled AND subdbid <> (SELECT oid FROM pg_database WHERE datname = current_database())";
        let names = format!(
            "SELECT quote_ident(subname) || ' in ' || quote_ident(datname) FROM pg_subscription \
             JOIN pg_database d ON d.oid = subdbid WHERE {elsewhere} ORDER BY 1"
        );
        let names = offline.rows("looking for subscriptions", &self.database, &[names])?.concat();
        if !names.is_empty() {
            let disable = format!("UPDATE pg_subscription SET subenabled = false WHERE {elsewhere}");
            offline.run("disabling subscriptions", &self.database, &[disable])?;
        }
        Ok(names)
    }
}
