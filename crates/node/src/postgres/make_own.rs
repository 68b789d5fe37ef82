//! What a copy of another server has that acts by itself, or that only that server may end, is ended in the copy before
//! it serves.
//!
//! That happens in PostgreSQL's single-user mode, which recovers the copy first: one that cannot be started is found
//! out here, and does not take the place of anything.
//!
//! | what | why it does not stay | what becomes of it |
//! |---|---|---|
//! | what PostgreSQL has prepared (PREPARE TRANSACTION) | that server ends it there alone; here its locks would stay for ever | it is rolled back |

use std::collections::BTreeMap;
use std::path::Path;

use super::{control_data, PostgresError, Server, SingleUser};

impl Server {
    /// `data`: the copy, with the settings that it is going to be started with.  Returns what was ended, in words.  On
    /// return it is durable, and needs no recovery.
    pub fn make_own(&self, data: &Path) -> Result<Vec<String>, PostgresError> {
        // Recovery needs as many places as the other server had, and this one may be set to have none.
        let control = control_data(&self.bin_dir, data)?;
        let places = control.get("max_prepared_xacts setting").cloned().unwrap_or_default();
        let mut settings = self.over_files(data);
        settings.push(("max_prepared_transactions", places));
        // Another machine may have less memory than the settings ask for, and little is enough here.
        settings.extend([("shared_buffers", "128MB".to_string()), ("huge_pages", "off".to_string())]);
        let copy = SingleUser { settings: &settings, ..SingleUser::of(&self.bin_dir, data) };

        // Those of the cluster may be shown, too, with 0 as their transaction.
        let of_each = |column| {
            format!("SELECT {column}::text FROM pg_prepared_xacts WHERE transaction <> '0' ORDER BY transaction::text")
        };
        let mut rows = copy.rows("recovering the copy", &self.database, &["gid", "database"].map(of_each))?;
        let (databases, names) = (rows.pop().unwrap_or_default(), rows.pop().unwrap_or_default());
        let mut prepared: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (database, name) in databases.into_iter().zip(names) {
            prepared.entry(database).or_default().push(name);
        }
        let mut ended = Vec::new();
        for (database, names) in prepared {
            let statements: Vec<String> = names.iter().map(|name| rollback(name)).collect();
            copy.run("rolling back what the other server has prepared", &database, &statements)?;
            ended.extend(names.into_iter().map(|name| format!("prepared transaction {name:?} of database {database}")));
        }
        Ok(ended)
    }
}

fn rollback(name: &str) -> String {
    let escaped = name.replace('\\', r"\\").replace('\'', "''").replace('\n', r"\n");
    format!("ROLLBACK PREPARED E'{escaped}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_one_literal_on_one_line() {
        assert_eq!(rollback("it's\n\\n"), r"ROLLBACK PREPARED E'it''s\n\\n'");
    }
}
