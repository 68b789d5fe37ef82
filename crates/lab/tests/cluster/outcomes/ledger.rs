//! All COMMITs of the matrix, what their clients were told, and what became of them.
//!
//! The oracle: what a client was told agrees with what is in the database of each region; `onetrip.outcome` gives the
//! same final answer in each, and keeps it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::cell::{self, Held, How, Told};
use crate::lab::{number, text, until, Lab};

const FINAL: Duration = Duration::from_secs(40);

pub struct Line {
    row: u32,
    how: How,
    what: String,
    id: Option<String>,
    told: Told,
    /// Whether it must commit or must not, where the point leaves no choice.
    must: Option<bool>,
    /// Whether it has committed; known once it is judged.
    committed: Option<bool>,
}

#[derive(Default)]
pub struct Ledger {
    pub lines: Vec<Line>,
    pub rows: u32,
}

impl Ledger {
    pub fn next_row(&mut self) -> u32 {
        self.rows += 1;
        self.rows
    }

    /// Notes what a client was told.  `expected`: which kinds of answers it may get here.
    pub fn note(&mut self, fault: &str, held: &Held, told: Told, expected: &[Told], must: Option<bool>) {
        let what = format!("{fault} at {:?} in region {} ({:?}, row {})", held.point, held.region, held.how, held.row);
        let is = |kind: &Told| match (kind, &told) {
            (Told::Aborted(a), Told::Aborted(b)) => a == b,
            (Told::Lost(a), Told::Lost(b)) => a.is_empty() || a == b,
            (kind, told) => std::mem::discriminant(kind) == std::mem::discriminant(told),
        };
        assert!(expected.iter().any(is), "{what}: the client was told {told:?}, expected {expected:?}");
        let id = match &told {
            Told::Unknown(id) | Told::SaysCommitted(id) => {
                assert!(held.id.as_ref().is_none_or(|noted| noted == id), "{what}: {:?} and {id}", held.id);
                Some(id.clone())
            }
            _ => held.id.clone(),
        };
        self.lines.push(Line { row: held.row, how: held.how, what, id, told, must, committed: None });
    }

    /// Judges the COMMITs that were not judged before.  Every region must be serving.
    pub async fn judge(&mut self, lab: &Lab) {
        let open: Vec<usize> = (0..self.lines.len()).filter(|i| self.lines[*i].committed.is_none()).collect();
        self.look(lab, &open, false).await;
    }

    /// Judges all COMMITs again after everything was restarted: the answers must be the same as before.
    pub async fn judge_again(&mut self, lab: &Lab) {
        let all: Vec<usize> = (0..self.lines.len()).collect();
        self.look(lab, &all, true).await;
    }

    async fn look(&mut self, lab: &Lab, which: &[usize], again: bool) {
        let mut answers: Vec<BTreeMap<u32, String>> = Vec::new();
        let sessions = lab.sessions().await;
        for session in &sessions {
            let mut said = BTreeMap::new();
            let asked: Vec<String> = which
                .iter()
                .filter_map(|i| self.lines[*i].id.as_ref().map(|id| format!("({}, '{id}')", self.lines[*i].row)))
                .collect();
            if !asked.is_empty() {
                let ask = format!(
                    "select string_agg(n || '=' || onetrip.outcome(id), ',') from (values {}) v (n, id)",
                    asked.join(", ")
                );
                let said = &mut said;
                until("every outcome is final", FINAL, || async {
                    let all = text(session, &ask).await?;
                    anyhow::ensure!(!all.contains("unknown"), "{all}");
                    Ok(true)
                })
                .await
                .unwrap_or_else(|e| panic!("{e:#}"));
                for one in text(session, &ask).await.expect("outcomes").split(',') {
                    let (row, outcome) = one.split_once('=').expect("row=outcome");
                    said.insert(row.parse().expect("a row"), outcome.to_string());
                }
            }
            answers.push(said);
        }
        // Everything that is decided must be shown everywhere before rows are counted.
        sessions[0].must("select onetrip.advance()").await;
        lab.everywhere().await;
        self.end_prepared(lab, which).await;
        let mut present = Vec::new();
        for session in &sessions {
            let rows =
                text(session, "select coalesce(string_agg(id::text, ',' order by id), '') from t").await.unwrap();
            present.push(rows.split(',').filter(|r| !r.is_empty()).map(|r| r.parse().unwrap()).collect::<Vec<u32>>());
            let doubled = number(session, "select count(*) - count(distinct id) from t").await.unwrap();
            assert_eq!(doubled, 0, "rows are there twice");
        }
        for i in which {
            let line = &mut self.lines[*i];
            let committed = present[0].contains(&line.row);
            for region in 0..3 {
                assert_eq!(present[region].contains(&line.row), committed, "{}: differs in region {region}", line.what);
                if let Some(outcome) = answers[region].get(&line.row) {
                    assert_eq!(Some(outcome), answers[0].get(&line.row), "{}: regions disagree", line.what);
                    let fits = match committed {
                        true if line.how == How::Prepare => outcome.starts_with("prepared at "),
                        true => outcome.starts_with("committed at "),
                        false => outcome == "aborted",
                    };
                    assert!(fits, "{}: outcome {outcome}, row there: {committed}", line.what);
                }
            }
            match &line.told {
                Told::Committed | Told::SaysCommitted(_) => assert!(committed, "{}: acknowledged and lost", line.what),
                Told::Aborted(code) => assert!(!committed, "{}: told {code}, and committed", line.what),
                Told::Unknown(_) | Told::Lost(_) => {}
            }
            if let Some(must) = line.must {
                assert_eq!(committed, must, "{}, told {:?}", line.what, line.told);
            }
            if again {
                assert_eq!(line.committed, Some(committed), "{}: changed by a restart", line.what);
            }
            line.committed = Some(committed);
        }
    }

    /// Ends in another region what is prepared.  Afterwards the row of a PREPARE TRANSACTION is there if it was
    /// prepared, and that of a COMMIT PREPARED if that was done.
    async fn end_prepared(&self, lab: &Lab, which: &[usize]) {
        let listed =
            lab.shows_alike("select coalesce(string_agg(gid, ',' order by gid), '') from onetrip.prepared_xacts").await;
        for gid in listed.split(',').filter(|gid| !gid.is_empty()) {
            let line = which.iter().map(|i| &self.lines[*i]).find(|line| cell::gid(line.row) == gid);
            let line = line.unwrap_or_else(|| panic!("{gid} is prepared, and should not be: {listed}"));
            let verb = if line.how == How::Prepare { "commit" } else { "rollback" };
            lab.session(2).await.must(&format!("{verb} prepared '{gid}'")).await;
        }
        lab.everywhere().await;
    }

    pub fn summary(&self) -> String {
        let mut told: BTreeMap<&str, usize> = BTreeMap::new();
        for line in &self.lines {
            let kind = match line.told {
                Told::Committed => "committed",
                Told::Aborted(_) => "aborted",
                Told::Unknown(_) => "unknown",
                Told::SaysCommitted(_) => "ended, committed",
                Told::Lost(_) => "connection lost",
            };
            *told.entry(kind).or_default() += 1;
        }
        let committed = self.lines.iter().filter(|l| l.committed == Some(true)).count();
        format!("{} cells, told {told:?}, {committed} committed", self.lines.len())
    }
}
