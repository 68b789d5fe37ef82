//! One line about work that takes long.  On a terminal the line is overwritten; elsewhere a new line is printed every
//! few seconds.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const BAR_CELLS: usize = 30;
/// One less than the 80 columns that any terminal has.
const COLUMNS: usize = 79;
/// Without a terminal a line is printed when the step changes, and this often within a step.
const LINE_EVERY: Duration = Duration::from_secs(5);

pub struct Progress {
    terminal: bool,
    step: String,
    last: Option<Instant>,
}

impl Progress {
    pub fn new() -> Progress {
        Progress { terminal: std::io::stderr().is_terminal(), step: String::new(), last: None }
    }

    /// `part`: how much of the step is done, from 0 to 1, if that is known; `detail` is printed after it.
    pub fn show(&mut self, step: &str, part: Option<f64>, detail: &str) {
        let new_step = self.step != step;
        if !self.terminal && !new_step && self.last.is_some_and(|at| at.elapsed() < LINE_EVERY) {
            return;
        }
        self.step = step.to_string();
        self.last = Some(Instant::now());
        let line = line(step, part, detail);
        let mut stderr = std::io::stderr().lock();
        // The work goes on even if nobody reads standard error any more.
        let _ = match self.terminal {
            // A line that wraps could not be overwritten.
            true => write!(stderr, "\r\x1b[K{}", line.chars().take(COLUMNS).collect::<String>()),
            false => writeln!(stderr, "{line}"),
        };
        let _ = stderr.flush();
    }

    /// Prints the last line; what is printed next begins on a new line.
    pub fn end(&mut self, text: &str) {
        let start = if self.terminal { "\r\x1b[K" } else { "" };
        let _ = writeln!(std::io::stderr(), "{start}{text}");
        self.step.clear();
        self.last = None;
    }
}

fn line(step: &str, part: Option<f64>, detail: &str) -> String {
    let Some(part) = part else { return format!("{step} {detail}").trim_end().to_string() };
    let part = part.clamp(0.0, 1.0);
    let full = (part * BAR_CELLS as f64) as usize;
    let bar = format!("{}{}", "#".repeat(full), ".".repeat(BAR_CELLS - full));
    format!("{step} [{bar}] {:3.0}% {detail}", part * 100.0).trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_from_nothing_to_whole() {
        assert_eq!(line("copying", Some(0.0), ""), format!("copying [{}]   0%", ".".repeat(30)));
        assert_eq!(
            line("copying", Some(0.5), "of 2 GB"),
            format!("copying [{}{}]  50% of 2 GB", "#".repeat(15), ".".repeat(15))
        );
        assert_eq!(line("copying", Some(7.0), ""), format!("copying [{}] 100%", "#".repeat(30)));
        assert_eq!(line("waiting", None, "for a leader"), "waiting for a leader");
        assert_eq!(line("waiting", None, ""), "waiting");
    }
}
