//! Statements on a server that does not run: PostgreSQL's single-user mode, in which no socket is open, no background
//! process runs, and neither event triggers nor settings of roles and databases take effect.
//!
//! With the extension's library, there is no shared memory in this mode and nothing is captured.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use super::bootstrap::succeeded;
use super::server::in_english;
use super::{PostgresError, SEARCH_PATH};

/// What begins each line that [`SingleUser::rows`] reads; PostgreSQL prints prompts in between.
const MARK: &str = "onetrip row ";

/// The index up to which the server shows the log, if it has one.
pub const SHOWS: &str = "SELECT (pg_replication_origin_progress('onetrip', true) - '0/0')::bigint::text \
                         FROM pg_replication_origin WHERE roname = 'onetrip'";

#[derive(Debug, Clone, Copy)]
pub struct SingleUser<'a> {
    pub bin_dir: &'a Path,
    pub data: &'a Path,
    /// Where the server's settings are, if that is not in `data`.
    pub config_file: Option<&'a Path>,
    /// The libraries to load, in place of those that the settings name; `None`: those.
    pub libraries: Option<&'a str>,
    /// What counts over the files.
    pub settings: &'a [(&'static str, String)],
}

impl<'a> SingleUser<'a> {
    /// With the settings and libraries that the files in `data` name.
    pub fn of(bin_dir: &'a Path, data: &'a Path) -> SingleUser<'a> {
        SingleUser { bin_dir, data, config_file: None, libraries: None, settings: &[] }
    }

    /// Runs the statements one by one, each in a transaction of its own unless they say BEGIN and COMMIT themselves.
    /// After an error none of the following is run, and what was not committed is rolled back.  Each is put on one
    /// line, since a line is a statement in this mode.  Returns what was printed.
    pub fn run(&self, step: &str, database: &str, statements: &[String]) -> Result<String, PostgresError> {
        let program = self.bin_dir.join("postgres");
        let mut command = in_english(&program);
        command.args(["--single", "-c", "exit_on_error=on"]);
        // What the owner's settings might say otherwise.
        for setting in [
            "log_destination=stderr",
            // The same failure is told in the same words each time.
            "log_line_prefix=",
            "logging_collector=off",
            "default_transaction_read_only=off",
            "default_transaction_isolation=read committed",
            "default_tablespace=",
            "statement_timeout=0",
            "archive_mode=off",
            // Here a commit would wait for ever: only another process finds out that no standby is there.
            "synchronous_standby_names=",
            "lc_messages=C",
            &format!("search_path={SEARCH_PATH}"),
        ] {
            command.args(["-c", setting]);
        }
        if let Some(libraries) = self.libraries {
            command.arg("-c").arg(format!("shared_preload_libraries={libraries}"));
        }
        if let Some(file) = self.config_file {
            command.arg("-c").arg(format!("config_file={}", file.display()));
        }
        for (name, value) in self.settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let mut child = command
            .arg("-D")
            .arg(self.data)
            .arg(database)
            .current_dir(self.data)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| PostgresError::Program { program: program.clone(), source })?;
        let lines: String = statements.iter().map(|s| format!("{}\n", s.replace('\n', " "))).collect();
        let stdin = child.stdin.take();
        // Beside reading: both pipes may be full.  Writing fails if the program has ended already; it says why on its
        // standard error, which is the better message.
        let writer = std::thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(lines.as_bytes())));
        let output = child.wait_with_output().map_err(|source| PostgresError::Program { program, source })?;
        let _ = writer.join();
        succeeded(step, &output)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The rows of each query.  A query gives one column, of type text; rows that are null are left out.
    pub fn rows(&self, step: &str, database: &str, queries: &[String]) -> Result<Vec<Vec<String>>, PostgresError> {
        let copies: Vec<String> = queries
            .iter()
            .enumerate()
            .map(|(n, query)| format!("COPY (SELECT '{MARK}{n}:' || x FROM ({query}) AS t(x)) TO STDOUT"))
            .collect();
        let printed = self.run(step, database, &copies)?;
        let mut rows = vec![Vec::new(); queries.len()];
        for line in printed.lines() {
            let marked = line.split_once(MARK).and_then(|(_, rest)| rest.split_once(':'));
            let Some((number, text)) = marked else { continue };
            if let Some(of_query) = number.parse().ok().and_then(|n: usize| rows.get_mut(n)) {
                of_query.push(unescaped(text));
            }
        }
        Ok(rows)
    }
}

/// What COPY has escaped.
fn unescaped(text: &str) -> String {
    let (mut plain, mut chars) = (String::new(), text.chars());
    while let Some(c) = chars.next() {
        match if c == '\\' { chars.next() } else { None } {
            None => plain.push(c),
            Some('n') => plain.push('\n'),
            Some('t') => plain.push('\t'),
            Some('r') => plain.push('\r'),
            Some(other) => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_copy_escapes_is_read_as_it_was() {
        assert_eq!(unescaped(r"a\tb\nc\\d"), "a\tb\nc\\d");
        assert_eq!(unescaped("plain"), "plain");
    }
}
