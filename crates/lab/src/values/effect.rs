//! Does a setting change the results of immutable functions?  To find out, the server computes random expressions under
//! the setting's usual value and under others.

use std::collections::BTreeMap;

use anyhow::Result;
use tokio_postgres::Client;

use super::catalog::Catalog;
use super::expression::Generator;
use crate::torture::random::Random;
use crate::trial::sql::{quoted, rows, run};

/// What to try for settings that are neither enumerations, booleans nor numbers.
const VALUES: [(&str, &[&str]); 8] = [
    ("DateStyle", &["SQL, DMY", "German"]),
    ("TimeZone", &["America/St_Johns", "<x>-15:59:59"]),
    ("timezone_abbreviations", &["Australia", "India"]),
    ("default_text_search_config", &["pg_catalog.german", "pg_catalog.simple"]),
    ("lc_messages", &["C"]),
    ("lc_monetary", &["C.UTF-8"]),
    ("lc_numeric", &["C.UTF-8"]),
    ("lc_time", &["C.UTF-8"]),
];
/// Settings that are not tried, because they end sessions or make statements fail on purpose.
const LEFT_ALONE: [&str; 12] = [
    "exit_on_error",
    "default_transaction_read_only",
    "transaction_read_only",
    "transaction_isolation",
    "transaction_deferrable",
    "default_transaction_isolation",
    "statement_timeout",
    "idle_session_timeout",
    "idle_in_transaction_session_timeout",
    "lock_timeout",
    "max_stack_depth",
    "temp_file_limit",
];

#[derive(Debug)]
pub struct Effect {
    pub value: String,
    pub expression: String,
    pub before: String,
    pub after: String,
}

pub struct Effects {
    /// Settings of which another value was tried.
    pub tried: Vec<String>,
    pub found: BTreeMap<String, Effect>,
}

/// Finds the settings that a session can change and that change the result of one of `count` expressions, each with an
/// example.
pub async fn of_settings(client: &Client, catalog: &Catalog, seed: u64, count: usize) -> Result<Effects> {
    let expressions = expressions(client, catalog, seed, count).await?;
    let usual = results(client, &expressions).await?;
    let mut effects = Effects { tried: Vec::new(), found: BTreeMap::new() };
    let settings = "select name, vartype, setting, coalesce(array_to_string(enumvals, ','), ''), coalesce(min_val, ''), coalesce(max_val, '')
                    from pg_settings where context in ('user', 'superuser') and name !~ '[.]' order by 1";
    for row in rows(client, settings).await? {
        let [name, kind, now, choices, low, high] = &row[..] else { continue };
        if LEFT_ALONE.contains(&name.as_str()) {
            continue;
        }
        let values: Vec<String> = match &**kind {
            "bool" => vec![if now == "on" { "off" } else { "on" }.to_string()],
            "enum" => choices.split(',').filter(|choice| choice != now).map(str::to_string).collect(),
            "integer" | "real" => vec![low.clone(), high.clone()],
            _ => {
                let listed = VALUES.iter().find(|(setting, _)| setting == name);
                listed.map_or(Vec::new(), |(_, values)| values.iter().map(|v| v.to_string()).collect())
            }
        };
        for value in values {
            if run(client, &format!("set {name} = {}", quoted(&value))).await.is_err() {
                continue;
            }
            effects.tried.push(name.clone());
            let now = results(client, &expressions).await;
            rows(client, "reset all").await?;
            let now = now?;
            // What changes by itself is no effect of the setting: a snapshot; how much less one text is than another,
            // which glibc's memcmp() answers differently at the end of a page.
            let mut changed = None;
            for at in (0..usual.len()).filter(|&at| usual[at] != now[at]) {
                let without = results(client, &expressions[at..=at]).await?;
                rows(client, &format!("set {name} = {}", quoted(&value))).await?;
                let with = results(client, &expressions[at..=at]).await;
                rows(client, "reset all").await?;
                if without[0] == usual[at] && with?[0] == now[at] {
                    changed = Some(at);
                    break;
                }
            }
            if let Some(at) = changed {
                let effect = Effect {
                    value,
                    expression: expressions[at].clone(),
                    before: usual[at].clone(),
                    after: now[at].clone(),
                };
                effects.found.entry(name.clone()).or_insert(effect);
            }
        }
    }
    effects.tried.dedup();
    Ok(effects)
}

/// Draws expressions, and keeps those that succeed and give the same value twice.
async fn expressions(client: &Client, catalog: &Catalog, seed: u64, count: usize) -> Result<Vec<String>> {
    let mut generator = Generator::new(catalog, Random::new(seed));
    let mut good = Vec::new();
    // Most expressions fail, so the number of attempts is limited.
    for _ in 0..20 * count {
        if good.len() >= count {
            break;
        }
        let Some(expression) = generator.immutable_value() else { continue };
        if expression.contains("null::") || expression.contains("clock_timestamp") || expression.contains("(select") {
            continue;
        }
        // Each runs in a query of its own, because some already fail when they are planned.  The result must be small,
        // because it is shown.
        let once = format!("select (x)::text from (select {expression} as x) as s where length((x)::text) < 2000");
        let (Ok(one), Ok(two)) = (run(client, &once).await, run(client, &once).await) else { continue };
        if !one.is_empty() && one == two {
            good.push(expression);
        }
    }
    Ok(good)
}

async fn results(client: &Client, expressions: &[String]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for some in expressions.chunks(100) {
        let columns: Vec<String> = some.iter().map(|expression| format!("({expression})::text")).collect();
        let together = format!("select {}", columns.join(", "));
        match run(client, &together).await {
            Ok(rows) => all.extend(rows.concat()),
            // One of them fails under this setting.  Run them one by one to find out which.
            Err(_) => {
                for column in &columns {
                    all.push(match run(client, &format!("select {column}")).await {
                        Ok(rows) => rows.concat().concat(),
                        Err(failure) => failure.to_string(),
                    });
                }
            }
        }
    }
    Ok(all)
}
