//! The census of statements (`docs/census/statements.tsv`) names every command tag of the server with an example, and
//! the example does what its class says.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::census::Census;
use crate::lab::{number, start, told_db, Session};

/// SQLSTATE feature_not_supported, with which statements that cannot be replicated are refused.
const REFUSED: &str = "0A000";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_statement_does_what_the_census_says() {
    let lab =
        start("statements", "an example of every command tag: travels, stays, or is refused, as the census says").await;
    let session = lab.session(1).await;
    let server = number(&session, "select current_setting('server_version_num')::int / 10000").await.unwrap() as u32;
    let census = Census::read("statements.tsv", 1);
    let tags = crate::census::header("tcop/cmdtaglist.h")
        .lines()
        .filter_map(|line| line.strip_prefix("PG_CMDTAG(")?.split('"').nth(1).map(str::to_string))
        .collect();
    census.covers(&tags, server, 2, None);

    let mut wrong = Vec::new();
    for (tag, columns) in &census.lines {
        let (class, example) = (columns[1].as_str(), columns[3].as_str());
        if class == "no statement" {
            continue;
        }
        if let Err(why) = follows(&session, class, example).await {
            wrong.push(format!("{tag} ({class}): {why}"));
            let _ = session.run("rollback").await;
        }
    }
    assert!(wrong.is_empty(), "docs/census/statements.tsv:\n{}", wrong.join("\n"));
    lab.everywhere().await;
    lab.check_equal(30).await;
}

/// Runs the example; the error says what it did that its class does not allow.
async fn follows(session: &Session, class: &str, example: &str) -> Result<(), String> {
    let statements: Vec<&str> = example.split(" ;; ").collect();
    // The statements before only create what the example needs.
    let begins = |s: &&str| s.starts_with("begin") || s.starts_with("start transaction");
    let first = statements.iter().position(begins).unwrap_or(statements.len() - 1);
    for statement in &statements[..first] {
        session.run(statement).await.map_err(|e| format!("{statement}: {e:?}"))?;
    }
    let position = async || number(session, "select onetrip.position()").await.map_err(|e| format!("{e:#}"));
    let before = position().await?;
    for statement in &statements[first..] {
        match (class, session.run(statement).await) {
            (_, Ok(())) => {}
            ("refused", Err(e)) => {
                let Some(said) = e.as_db_error() else { return Err(format!("{statement}: {e}")) };
                let _ = session.run("rollback").await;
                return match said.code().code() == REFUSED && said.hint().is_some() {
                    true => Ok(()),
                    false => Err(format!("{statement}: {}", told_db(said))),
                };
            }
            (_, Err(e)) => return Err(format!("{statement}: {}", e.as_db_error().map_or(e.to_string(), told_db))),
        }
    }
    let after = position().await?;
    match class {
        "local" if after == before => Ok(()),
        "travels" | "rows" | "contents" | "sent" if after > before => Ok(()),
        _ => Err(format!("the log went from {before} to {after}")),
    }
}

/// Does a message match a template of the extension's source, with any text in place of each `%s`?
fn says(message: &str, template: &str) -> bool {
    let parts: Vec<&str> = template.split("%s").collect();
    let mut rest = message;
    for (i, part) in parts.iter().enumerate() {
        let found = if i == 0 { rest.starts_with(part).then_some(0) } else { rest.find(part) };
        let Some(at) = found else { return false };
        rest = &rest[at + part.len()..];
    }
    parts[parts.len() - 1].is_empty() || rest.is_empty()
}

/// The texts of the messages with which the extension's source refuses something as 0A000.
fn refusals_in_source() -> BTreeSet<String> {
    let mut paths = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../extension/src")];
    let mut found = BTreeSet::new();
    while let Some(file) = paths.pop() {
        if file.is_dir() {
            paths.extend(std::fs::read_dir(&file).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        if file.extension().is_none_or(|kind| kind != "c") {
            continue;
        }
        let source = std::fs::read_to_string(&file).unwrap();
        let literal_after = |at: usize, before: &str| -> Option<String> {
            let rest = &source[at..];
            let end = rest.find(';')?;
            let begin = rest[..end].find(before)? + before.len();
            let rest = rest[begin..].trim_start().strip_prefix('"')?;
            Some(rest[..rest.match_indices('"').find(|(i, _)| !rest[..*i].ends_with('\\'))?.0].replace("\\\"", "\""))
        };
        found
            .extend(source.match_indices("(OT_ERR_NOT_REPLICATED)").filter_map(|(at, _)| literal_after(at, "errmsg(")));
        let cannot = |what| format!("cannot replicate {what}");
        for call in ["ot_ddl_refuse(", "what = "] {
            if call == "what = " && !source.contains("ot_ddl_refuse(what") {
                continue;
            }
            for (at, _) in source.match_indices(call) {
                let literal = literal_after(at, call).or_else(|| literal_after(at, &format!("{call}psprintf(")));
                found.extend(literal.map(cannot));
            }
        }
    }
    found
}

/// The extension refuses nothing that the census does not name, and the table in docs/limits.md is that of the census.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refusal_is_one_of_the_census() {
    let lab = start("refusals", "an example of everything that is refused with 0A000, with a way round").await;
    let session = lab.session(1).await;
    let census = Census::read("refusals.tsv", 1);
    let named: BTreeSet<String> = census.lines.values().map(|columns| columns[2].clone()).collect();
    assert_eq!(refusals_in_source(), named, "left: extension/src; right: docs/census/refusals.tsv");

    let mut wrong = Vec::new();
    for columns in census.lines.values() {
        let (template, example) = (columns[2].as_str(), columns[3].as_str());
        if example == "-" {
            continue;
        }
        match refused_with(&session, example).await {
            Ok(message) if says(message.split_once("\": ").map_or(message.as_str(), |(_, said)| said), template) => {}
            Ok(message) => wrong.push(format!("{example}: {message}")),
            Err(why) => wrong.push(format!("{example}: {why}")),
        }
        session.run("rollback; discard temp").await.unwrap();
    }
    assert!(wrong.is_empty(), "docs/census/refusals.tsv:\n{}", wrong.join("\n"));

    let limits = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/limits.md");
    let limits = std::fs::read_to_string(limits).unwrap();
    let table: BTreeSet<&str> = limits
        .split("| refused | instead |\n|---|---|\n")
        .nth(1)
        .expect("the table")
        .lines()
        .take_while(|l| l.starts_with('|'))
        .collect();
    let lines: Vec<String> = census.lines.values().map(|c| format!("| {} | {} |", c[0], c[4])).collect();
    assert_eq!(
        table,
        lines.iter().map(String::as_str).collect(),
        "left: docs/limits.md; right: docs/census/refusals.tsv"
    );
    lab.everywhere().await;
}

/// Runs an example, whose last statement must be refused; returns the message.
async fn refused_with(session: &Session, example: &str) -> Result<String, String> {
    let statements: Vec<&str> = example.split(" ;; ").collect();
    let (last, before) = statements.split_last().expect("one at least");
    for statement in before {
        session.run(statement).await.map_err(|e| format!("{statement}: {e:?}"))?;
    }
    let error = session.run(last).await.err().ok_or("it was not refused")?;
    let said = error.as_db_error().ok_or("the connection ended")?;
    match said.code().code() == REFUSED && said.hint().is_some() {
        true => Ok(said.message().to_string()),
        false => Err(told_db(said)),
    }
}
