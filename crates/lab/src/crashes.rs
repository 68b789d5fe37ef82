//! Finds crashes of servers and nodes in their logs.

use crate::trial::sql::shortened;
use crate::{Cluster, Node};

/// What a log says of a crash, one text on each line; the scripts read this file, too.
const MARKS: &str = include_str!("../../../testdata/crash-marks");
pub const LOGS: [&str; 2] = ["node.log", "postgres.log"];

/// The lines of a log that tell of a crash, each with the line after it.
pub fn in_log(text: &str) -> impl Iterator<Item = (&str, &str)> {
    // Most logs have none, and some are long.
    let text = if MARKS.lines().any(|mark| text.contains(mark)) { text } else { "" };
    let next = text.lines().skip(1).chain([""]);
    text.lines().zip(next).filter(|(line, _)| MARKS.lines().any(|mark| line.contains(mark)))
}

/// Whether such a line tells of a process that somebody has killed.
pub fn killed(line: &str) -> bool {
    line.split("terminated by signal ").nth(1).is_some_and(|signal| signal.starts_with("9:"))
}

/// The crashes of nodes and servers, with what they were doing.  A log that cannot be read is listed as well.
pub fn of(cluster: &Cluster) -> Vec<String> {
    cluster.nodes().iter().filter(|node| node.was_started()).flat_map(of_node).collect()
}

fn of_node(node: &Node) -> Vec<String> {
    let logs = LOGS.iter().filter(|log| node.has_postgres() || **log == "node.log");
    let found = logs.flat_map(|log| match node.log(log) {
        Ok(text) => in_log(&text).map(|(line, next)| shortened(line, 300) + " " + &shortened(next, 1500)).collect(),
        Err(why) => vec![format!("{why:#}")],
    });
    found.map(|found| format!("{}: {found}", node.region())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_crash_is_found_and_nothing_else() {
        let log = "LOG:  server process (PID 1) was terminated by signal 7: Bus error
            DETAIL:  Failed process was running: select 1
            LOG:  server process (PID 2) was terminated by signal 9: Killed
            PANIC:  could not write
            TRAP: failed Assert(\"false\")
            thread 'core' (17) panicked at crates/core/src/lib.rs:1:1:
            ERROR:  this is none
            runtime error: element output, says libxslt, and goes on
            ==1==ERROR: AddressSanitizer: heap-buffer-overflow
            fatal runtime error: stack overflow
            adt/int8.c:12:5: runtime error: signed integer overflow
            memory allocation of 8 bytes failed";
        let found: Vec<(&str, &str)> = in_log(log).collect();
        assert!(MARKS.lines().all(|mark| !mark.is_empty()));
        assert_eq!(found.len(), 9);
        assert!(found[0].1.contains("select 1"));
        assert_eq!(found.iter().filter(|(line, _)| killed(line)).count(), 1);
        assert_eq!(found[8].1, "");
    }
}
