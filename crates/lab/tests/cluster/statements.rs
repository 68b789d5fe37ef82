//! The census of statements (`docs/census/statements.tsv`) names every command tag of the server with an example, and
//! the example does what its class says.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio_postgres::{AsyncMessage, NoTls};

use crate::census::{names, Census};
use crate::lab::{bounded, number, start, text, told_db, Lab, Session};

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
    what_all_databases_have_in_common(&lab, &census).await;

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

/// The shared catalogs, and which rows of each are the same in all regions: those of roles, tablespaces, parameters and
/// the replicated database.
const SHARED: &[(&str, &str)] = &[
    ("pg_auth_members", "true"),
    ("pg_authid", "true"),
    ("pg_database", "datname = 'onetrip'"),
    ("pg_db_role_setting", "setdatabase in (0, (select oid from pg_database where datname = 'onetrip'))"),
    ("pg_parameter_acl", "true"),
    ("pg_replication_origin", "false"),
    ("pg_shdepend", "false"),
    (
        "pg_shdescription",
        "classoid <> 'pg_database'::regclass or objoid = (select oid from pg_database where datname = 'onetrip')",
    ),
    (
        "pg_shseclabel",
        "classoid <> 'pg_database'::regclass or objoid = (select oid from pg_database where datname = 'onetrip')",
    ),
    ("pg_subscription", "false"),
    ("pg_tablespace", "true"),
];

/// What the census has no example of, since the tag is that of another kind of object.
const OF_SHARED: &[&str] = &[
    "alter database onetrip owner to pg_monitor",
    "alter database onetrip connection limit 50",
    "alter role all in database onetrip set work_mem = '5MB'",
    "alter role all set work_mem = '5MB'",
    "comment on database onetrip is 'x'",
    "comment on role postgres is 'x'",
    "comment on tablespace pg_default is 'x'",
    "grant connect on database onetrip to pg_monitor",
    "revoke connect on database onetrip from public",
    "grant create on tablespace pg_default to pg_monitor",
    "grant set on parameter log_min_messages to pg_monitor",
    "alter tablespace pg_default owner to pg_monitor",
    "create role e_1 ;; alter role e_1 rename to e_2",
    "create role e_1 ;; alter database onetrip owner to e_1 ;; reassign owned by e_1 to postgres",
    "create role e_1 ;; alter tablespace pg_default owner to e_1 ;; reassign owned by e_1 to postgres",
    "create role e_1 ;; grant connect on database onetrip to e_1 ;; drop owned by e_1",
    "create role e_1 ;; grant create on tablespace pg_default to e_1 ;; drop owned by e_1",
    "create role e_1 ;; grant set on parameter log_min_messages to e_1 ;; drop owned by e_1",
];

/// A statement in another database that changes what all regions have alike says that the change stays on this server.
async fn what_all_databases_have_in_common(lab: &Lab, census: &Census) {
    let conninfo = lab.node(1).conninfo().replace("dbname=onetrip", "dbname=postgres");
    let (client, mut connection) = tokio_postgres::connect(&conninfo, NoTls).await.unwrap();
    let warnings: Arc<Mutex<usize>> = Arc::default();
    let counted = warnings.clone();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if matches!(message, AsyncMessage::Notice(notice) if notice.message().ends_with("stays on this server")) {
                *counted.lock().unwrap() += 1;
            }
        }
    });
    let run = async |sql: &str| bounded(sql, client.batch_execute(sql)).await;
    let shared = names(
        &Session::open(&conninfo).await.unwrap(),
        "select relname from pg_class where relisshared and relkind = 'r'",
    )
    .await;
    assert_eq!(shared, SHARED.iter().map(|(catalog, _)| catalog.to_string()).collect());
    let rows: Vec<String> = SHARED
        .iter()
        .map(|(catalog, which)| {
            format!("select (to_jsonb(t) - '{{datfrozenxid,datminmxid}}'::text[])::text as row from {catalog} t where {which}")
        })
        .collect();
    let rows = format!("select md5(string_agg(row, ',' order by row)) from ({}) s", rows.join(" union all "));

    let (mut changed, mut wrong) = (BTreeSet::new(), Vec::new());
    let examples = census.lines.values().map(|columns| columns[3].as_str());
    let examples = examples.filter(|example| *example != "-" && !example.split(" ;; ").any(|s| begins(&s)));
    for example in examples.chain(OF_SHARED.iter().copied()) {
        let statements: Vec<&str> = example.split(" ;; ").collect();
        let (last, before) = statements.split_last().expect("one at least");
        run("begin").await.unwrap();
        for statement in before {
            let _ = run(statement).await;
        }
        // After an error there is nothing to see.
        if let Ok(rows_before) = text(&client, &rows).await {
            *warnings.lock().unwrap() = 0;
            if run(last).await.is_ok() && text(&client, &rows).await.is_ok_and(|after| after != rows_before) {
                changed.insert(example);
                if *warnings.lock().unwrap() == 0 {
                    wrong.push(example);
                }
            }
        }
        run("rollback").await.unwrap();
    }
    assert!(wrong.is_empty(), "in another database, without a warning: {wrong:#?}");
    let unchanged: Vec<_> = OF_SHARED.iter().filter(|example| !changed.contains(*example)).collect();
    assert!(unchanged.is_empty(), "changed nothing: {unchanged:#?}");
    assert!(changed.len() > OF_SHARED.len() + 5, "{changed:?}");
}

fn begins(statement: &&str) -> bool {
    statement.starts_with("begin") || statement.starts_with("start transaction")
}

/// Runs the example; the error says what it did that its class does not allow.
async fn follows(session: &Session, class: &str, example: &str) -> Result<(), String> {
    let statements: Vec<&str> = example.split(" ;; ").collect();
    // The statements before only create what the example needs.
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
