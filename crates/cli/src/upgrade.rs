//! `onetrip upgrade`: which releases the members run, and the end of an upgrade.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use onetrip_client::say;
use onetrip_client::table::render;
use onetrip_node::EXTENSION_VERSION;
use serde_json::{json, Value};

use crate::admin::Admin;

/// Show which release each member runs, or end an upgrade of all of them
///
/// Members are upgraded one after the other, and until the upgrade is ended each can go back to the release that it
/// had. With `--finish`, once every member runs the new release, the cluster begins to use what only that release
/// knows; earlier ones cannot run in it any more.
#[derive(Args)]
pub struct UpgradeArgs {
    /// A running node's folder, or a folder that contains such folders
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Raise the format level to the highest that every member's release knows
    #[arg(long)]
    finish: bool,
}

pub fn run(args: &UpgradeArgs) -> Result<ExitCode> {
    let admin = Admin::of(&args.data)?;
    if args.finish {
        let done = admin.post("/upgrade", &json!({}))?;
        say!("{}", done["means"].as_str().context("the node's answer says nothing")?);
        return Ok(ExitCode::SUCCESS);
    }
    say!("{}", shown(&admin.cluster()?));
    Ok(ExitCode::SUCCESS)
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.as_u64().map_or_else(String::new, |n| n.to_string()), String::from)
}

/// What a member says, if it says it now.
struct Release {
    name: String,
    knows: Option<u64>,
    /// What the library knows that its server has loaded, if it has a server that says so.
    library: Option<u64>,
    extension: Option<String>,
}

fn release(m: &Value) -> Release {
    let report = Some(&m["report"]).filter(|_| m["heard"] == "now");
    // Releases before levels know none.
    let knows = report.filter(|r| r.is_object()).map(|r| r["level_known"].as_u64().unwrap_or(0));
    let extension = report.and_then(|r| r["counts"]["extension"].as_str()).map(String::from);
    let library = report.and_then(|r| r["level_of_library"].as_u64());
    Release { name: format!("node {} in {}", m["id"], text(&m["region"])), knows, library, extension }
}

fn shown(cluster: &Value) -> String {
    let members = cluster["members"].as_array().map(Vec::as_slice).unwrap_or_default();
    let head = ["node", "region", "onetrip", "PostgreSQL", "extension", "knows level", "library"];
    let mut lines = vec![head.map(String::from).to_vec()];
    for m in members {
        let report = &m["report"];
        let version = text(&report["counts"]["version"]);
        lines.push(vec![
            text(&m["id"]),
            text(&m["region"]),
            if m["heard"] == "now" { text(&report["version"]) } else { "no answer".into() },
            version.split_whitespace().next().unwrap_or_default().to_owned(),
            text(&report["counts"]["extension"]),
            release(m).knows.map_or_else(String::new, |level| level.to_string()),
            release(m).library.map_or_else(String::new, |level| level.to_string()),
        ]);
    }
    let releases: Vec<Release> = members.iter().map(release).collect();
    format!("{}\n{}", render(&lines, 4), what_next(cluster["level"].as_u64().unwrap_or(0), &releases))
}

/// What is in force, what could be, and what is in the way.
fn what_next(level: u64, releases: &[Release]) -> String {
    let names = |some: Vec<&Release>| some.iter().map(|r| r.name.as_str()).collect::<Vec<_>>().join(", ");
    let highest = releases.iter().filter_map(|r| r.knows).max().unwrap_or(level);
    let away: Vec<&Release> = releases.iter().filter(|r| r.knows.is_none()).collect();
    let behind: Vec<&Release> = releases.iter().filter(|r| r.knows.is_some_and(|known| known < highest)).collect();
    let not_loaded: Vec<&Release> =
        releases.iter().filter(|r| r.library.is_some_and(|known| known < highest)).collect();
    let mut lines = vec![format!("format level {level} is in force")];
    if !away.is_empty() {
        lines.push(format!("not known, because they do not answer: {}", names(away)));
    } else if highest <= level {
        lines.push("nothing is to be finished: no member's release knows a higher level".into());
    } else if behind.is_empty() && !not_loaded.is_empty() {
        lines.push(format!(
            "every node knows level {highest}, but the PostgreSQL of {} has loaded an older library: stop and start the node there",
            names(not_loaded)
        ));
    } else if behind.is_empty() {
        lines.push(format!(
            "every member knows level {highest}: `onetrip upgrade --finish` brings it into force, and there is no way back to an \
             earlier release after that"
        ));
    } else {
        lines.push(format!("still to be upgraded before level {highest} can come into force: {}", names(behind)));
    }
    let old = |r: &&Release| r.extension.as_deref().is_some_and(|version| version != EXTENSION_VERSION);
    if releases.iter().any(|r| old(&r)) && highest <= level {
        lines.push(format!(
            "the extension's objects are older than this release: ALTER EXTENSION onetrip UPDATE TO '{EXTENSION_VERSION}' in one \
             region, as a superuser, updates them in all"
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn releases(known: &[Option<u64>]) -> Vec<Release> {
        let of = |(id, knows): (usize, &Option<u64>)| {
            let extension = Some(EXTENSION_VERSION.to_owned());
            Release { name: format!("node {}", id + 1), knows: *knows, library: *knows, extension }
        };
        known.iter().enumerate().map(of).collect()
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let next = |level, known: &[Option<u64>]| what_next(level, &releases(known));
        assert!(next(0, &[Some(0), Some(0)]).contains("nothing is to be finished"));
        assert!(next(0, &[Some(1), Some(0)]).contains("before level 1 can come into force: node 2"));
        assert!(next(0, &[Some(1), None]).contains("do not answer: node 2"));
        assert!(next(0, &[Some(1), Some(1)]).contains("`onetrip upgrade --finish`"));
        assert!(next(1, &[Some(1), Some(1)]).contains("nothing is to be finished"));
    }

    #[test]
    fn a_server_that_was_not_restarted_is_named() {
        let mut releases = releases(&[Some(1), Some(1), Some(1)]);
        (releases[0].library, releases[2].library) = (None, Some(0));
        let next = what_next(0, &releases);
        assert!(
            next.contains("the PostgreSQL of node 3 has loaded an older library") && !next.contains("--finish"),
            "{next}"
        );
    }

    /// The objects are updated last, since the update needs the new files in every region.
    #[test]
    fn an_older_extension_is_to_be_updated_once_the_upgrade_is_finished() {
        let mut releases = releases(&[Some(1), Some(1)]);
        releases[1].extension = Some("0.1".into());
        assert!(what_next(1, &releases).contains("ALTER EXTENSION onetrip UPDATE TO"));
        assert!(!what_next(0, &releases).contains("ALTER EXTENSION"));
    }
}
