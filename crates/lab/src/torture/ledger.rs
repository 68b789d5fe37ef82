//! What clients were told about each of their transactions, and whether the database agrees.
//!
//! Each transaction that changes something has a tag and also writes it into a table, so that it can be found there if
//! it committed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::session::{End, Session};

/// How many missing or surplus transactions a finding names.
const NAMED: usize = 5;
/// At rest every outcome is final within this time.
const FINAL: Duration = Duration::from_secs(30);

#[derive(Default)]
pub struct Ledger {
    attempts: Mutex<BTreeMap<String, Attempt>>,
}

#[derive(Debug, Clone)]
pub struct Attempt {
    pub end: End,
    /// The final answer of `onetrip.outcome`; true if it committed.
    pub later: Option<bool>,
}

impl Attempt {
    /// Whether it committed; `None` if that is still open.
    pub fn committed(&self) -> Option<bool> {
        match &self.end {
            End::Committed | End::NotShownYet => Some(true),
            End::Aborted(_) => Some(false),
            End::Unknown(_) => self.later,
        }
    }
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Attempt>> {
        self.attempts.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn note(&self, tag: &str, end: End) {
        self.lock().insert(tag.to_string(), Attempt { end, later: None });
    }

    pub fn get(&self, tag: &str) -> Option<Attempt> {
        self.lock().get(tag).cloned()
    }

    pub fn all(&self) -> BTreeMap<String, Attempt> {
        self.lock().clone()
    }

    /// Asks `session` what became of a transaction that was left open.
    pub async fn ask(&self, tag: &str, session: &mut Session) -> Result<()> {
        let Some(Attempt { end: End::Unknown(Some(id)), later: None, .. }) = self.get(tag) else { return Ok(()) };
        let answer = session.text(&format!("select onetrip.outcome('{id}')")).await?;
        if let Some(attempt) = self.lock().get_mut(tag) {
            attempt.later = verdict(&answer);
        }
        Ok(())
    }

    /// At rest: checks that all regions give the same final answer about each open transaction, and that an answer from
    /// before still holds.  A transaction whose id is not known stays open.  `since`: when everything had come to rest.
    pub async fn resolve(&self, sessions: &mut [Session], since: Instant) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        let deadline = since + FINAL;
        for (tag, attempt) in self.all() {
            let End::Unknown(Some(id)) = &attempt.end else { continue };
            let last = loop {
                let mut answers = BTreeSet::new();
                for session in sessions.iter_mut() {
                    answers.insert(session.text(&format!("select onetrip.outcome('{id}')")).await?);
                }
                let first = answers.first().cloned().unwrap_or_default();
                match verdict(&first) {
                    Some(committed) if answers.len() == 1 => break Some(committed),
                    // A region may be a moment behind.
                    _ if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(50)).await,
                    _ => {
                        wrong.push(format!("the outcome of {id} ({tag}) at rest: {answers:?}"));
                        break None;
                    }
                }
            };
            if attempt.later.is_some() && attempt.later != last {
                wrong.push(format!("the outcome of {id} ({tag}) was committed {:?}, now {last:?}", attempt.later));
            }
            if let Some(attempt) = self.lock().get_mut(&tag) {
                attempt.later = last;
            }
        }
        Ok(wrong)
    }

    /// Compares what clients were told with the tags that a region shows.
    pub fn compare(&self, what: &str, region: &str, shown: &[String]) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut times: HashMap<&str, u32> = HashMap::new();
        for tag in shown {
            *times.entry(tag).or_default() += 1;
        }
        let attempts = self.lock();
        let mut complain = |problem: &str, tags: Vec<&str>| {
            if !tags.is_empty() {
                let named = &tags[..tags.len().min(NAMED)];
                wrong.push(format!("{what}: {region} {problem}: {} transactions, such as {named:?}", tags.len()));
            }
        };
        let with = |committed: bool, shown: bool| {
            let wanted = |(tag, attempt): (&'_ String, &Attempt)| {
                attempt.committed() == Some(committed) && times.contains_key(tag.as_str()) == shown
            };
            attempts.iter().filter(|(tag, attempt)| wanted((tag, attempt))).map(|(tag, _)| tag.as_str()).collect()
        };
        complain("lacks what was acknowledged", with(true, false));
        complain("shows what was reported as aborted", with(false, true));
        complain("shows twice", times.iter().filter(|(_, n)| **n > 1).map(|(tag, _)| *tag).collect());
        complain(
            "shows what nobody has sent",
            times.keys().filter(|tag| !attempts.contains_key(**tag)).copied().collect(),
        );
        wrong
    }
}

/// Reads an answer of `onetrip.outcome`; `None`: not known yet, or forgotten.
fn verdict(answer: &str) -> Option<bool> {
    match answer {
        "aborted" => Some(false),
        committed if committed.starts_with("committed at ") => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_surplus_doubled_and_foreign_transactions_are_found() {
        let ledger = Ledger::default();
        ledger.note("kept", End::Committed);
        ledger.note("open", End::Unknown(None));
        ledger.note("lost", End::Aborted("40001".into()));
        let shows = |tags: &[&str]| {
            ledger.compare("w", "a", &tags.iter().map(|t| t.to_string()).collect::<Vec<_>>()).join("\n")
        };
        assert_eq!(shows(&["kept"]), "");
        assert_eq!(shows(&["kept", "open"]), "");
        assert!(shows(&["open"]).contains("acknowledged: 1 transactions, such as [\"kept\"]"));
        assert!(shows(&["kept", "lost"]).contains("reported as aborted"));
        assert!(shows(&["kept", "kept"]).contains("twice"));
        assert!(shows(&["kept", "stranger"]).contains("nobody has sent"));
    }

    #[test]
    fn answers_are_read() {
        assert_eq!(verdict("committed at 17"), Some(true));
        assert_eq!(verdict("aborted"), Some(false));
        assert_eq!(verdict("unknown"), None);
        assert_eq!(verdict("forgotten"), None);
    }
}
