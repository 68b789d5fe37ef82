//! The census of statements (`docs/census/statements.tsv`): every tag that the server gives to a statement is named there, with an
//! example, and the example does what its class says.

use crate::census::Census;
use crate::lab::{number, start, told_db, Session};

/// PostgreSQL's own word for what no majority would carry out.
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

/// Runs the example; the error says what it did instead.
async fn follows(session: &Session, class: &str, example: &str) -> Result<(), String> {
    let statements: Vec<&str> = example.split(" ;; ").collect();
    // What comes before only makes what it is about.
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
        "travels" | "rows" | "contents" if after > before => Ok(()),
        _ => Err(format!("the log went from {before} to {after}")),
    }
}
