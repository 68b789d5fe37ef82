//! The settings files of a server that becomes a node's: what of the old ones is kept, what is left out, and how the
//! server of a node gets settings of its own again.

use std::collections::BTreeMap;

use onetrip_node::postgres::hba::{BEGIN, END};
use onetrip_node::postgres::{instead_of, is_of_one_server, is_our_library, quoted};

/// What the node decides for its server, and where it looks for what that says; and what a standby of the old server,
/// or one that is recovered from its archive, had use for.  What is for one server alone is left out as well.
const LEFT_OUT: [&str; 12] = [
    "archive_cleanup_command",
    "config_file",
    "default_table_access_method",
    "logging_collector",
    "primary_conninfo",
    "primary_slot_name",
    "promote_trigger_file",
    "recovery_end_command",
    "recovery_min_apply_delay",
    "restore_command",
    "unix_socket_group",
    "unix_socket_permissions",
];

fn is_left_out(name: &str, value: &str) -> bool {
    let name = name.to_ascii_lowercase();
    LEFT_OUT.contains(&name.as_str())
        || is_of_one_server(&name)
        || name.starts_with("onetrip.")
        || name.starts_with("recovery_target")
        || instead_of(&name, value).is_some()
}

/// The new `postgresql.conf`, and what it leaves out, as name and value.
pub fn adopted(from: &str, settings: &BTreeMap<String, String>) -> (String, Vec<(String, String)>) {
    let (left_out, kept): (Vec<_>, Vec<_>) = settings.iter().partition(|(name, value)| is_left_out(name, value));
    let mut text = format!("# Made by `onetrip adopt` from {from}.\n{BEGIN}\ninclude = 'onetrip.conf'\n{END}\n\n");
    text += "# Your settings go below this line.\n";
    for (name, value) in kept {
        text += &format!("{name} = {}\n", quoted(value));
    }
    let own = |(name, value): (&String, &String)| (name.clone(), value.clone());
    (text, left_out.into_iter().map(own).collect())
}

/// Whether `pg_hba.conf` or `pg_ident.conf` is not all that counts: paths in it are relative to its own folder.
pub fn names_other_files(text: &str) -> bool {
    let names = |line: &str| {
        let first = line.split([' ', '\t', ',']).next().unwrap_or_default();
        line.contains('@') || ["include", "include_if_exists", "include_dir"].contains(&first.trim_matches('"'))
    };
    text.lines().map(str::trim_start).any(|line| !line.starts_with('#') && names(line))
}

/// Without what Onetrip has added, and with `instead` in its place.
pub fn without_ours(text: &str, instead: &str) -> String {
    let (mut kept, mut within) = (String::new(), false);
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed == END {
            within = false;
        } else if trimmed == BEGIN || !within && trimmed == "include = 'onetrip.conf'" {
            // The second is what `onetrip init` writes.
            within = trimmed == BEGIN;
            kept += instead;
        } else if !within && !is_ours(trimmed) {
            kept.extend(without_our_library(line).map(|line| line + "\n"));
        }
    }
    kept
}

fn is_ours(line: &str) -> bool {
    line.to_ascii_lowercase().starts_with("onetrip.") || line == "# Onetrip's own settings, written at each start."
}

/// A line of `postgresql.conf`, which may name the extension's library beside others; `None` if it names nothing else.
/// A server that loads it and has no node lets nobody in.
fn without_our_library(line: &str) -> Option<String> {
    const NAME: &str = "shared_preload_libraries";
    let as_it_was = Some(line.to_string());
    let (name, rest) = line.trim_start().split_at_checked(NAME.len()).unwrap_or_default();
    if !name.eq_ignore_ascii_case(NAME) || !rest.starts_with([' ', '\t', '=']) {
        return as_it_was;
    }
    let value = rest.trim_start_matches([' ', '\t', '=']);
    let (value, behind) = match value.strip_prefix('\'') {
        Some(value) => value.split_once('\'').unwrap_or((value, "")),
        None => value.split_at(value.find([' ', '\t', '#']).unwrap_or(value.len())),
    };
    let (ours, others): (Vec<_>, Vec<_>) = value.split(',').partition(|name| is_our_library(name));
    match (ours.is_empty(), others.is_empty()) {
        (true, _) => as_it_was,
        (false, true) => None,
        (false, false) => Some(format!("{NAME} = '{}'{behind}", others.join(",").trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetrip_node::postgres::hba::{with_map, with_node};

    #[test]
    fn what_the_node_decides_is_left_out_and_the_rest_is_kept() {
        let settings = [
            ("port", "5433"),
            ("work_mem", "64MB"),
            ("wal_level", "minimal"),
            ("max_wal_senders", "0"),
            ("archive_mode", "on"),
            ("logging_collector", "on"),
            ("recovery_target_time", "x"),
            ("onetrip.region", "x"),
            ("log_line_prefix", "%m\\x\n"),
            ("search_path", "\"$user\", it's"),
        ];
        let settings = settings.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        let (text, left_out) = adopted("x", &settings);
        let kept = "line.\nlog_line_prefix = '%m\\\\x\\n'\nsearch_path = '\"$user\", it''s'\nwork_mem = '64MB'\n";
        assert!(text.ends_with(kept), "{text}");
        let names: Vec<&str> = left_out.iter().map(|(name, _)| name.as_str()).collect();
        let left_out = ["archive_mode", "logging_collector", "max_wal_senders", "onetrip.region", "port"];
        assert_eq!(names, [&left_out[..], &["recovery_target_time", "wal_level"]].concat());
        let back = without_ours(&text, "port = 5433\n");
        assert!(back.matches("\nport = 5433\n").count() == 1 && !back.contains("onetrip.conf"), "{back}");
    }

    /// Goal: a line that rejects somebody is not lost with the file that it is in.
    #[test]
    fn what_names_other_files_is_known() {
        for whole in [
            "local all all peer\n",
            "# include x\n #@x\n",
            "included root postgres\n",
            "host include all ::1/128 trust",
        ] {
            assert!(!names_other_files(whole), "{whole}");
        }
        for other in
            ["local @users all peer", "\n  include_if_exists conf.d/blocked.conf\n", "include_dir\tx", "include \"x\""]
        {
            assert!(names_other_files(other), "{other}");
        }
    }

    #[test]
    fn what_was_added_for_the_node_goes_away_again() {
        for user in ["postgres", "deploy"] {
            let (hba, ident) = ("# TYPE\nlocal all all peer\n", "# MAPNAME\n");
            assert_eq!(without_ours(&with_node(hba), ""), hba);
            assert_eq!(without_ours(&with_map(ident, user), ""), ident);
            assert!(with_node(hba).find("postgres peer") < with_node(hba).find("all all peer"));
        }
    }

    #[test]
    fn the_settings_of_a_made_node_are_taken_out_as_well() {
        let made = "a = 1\n# Onetrip's own settings, written at each start.\ninclude = 'onetrip.conf'\nOnetrip.read = 'fresh'\nb = 2\n";
        assert_eq!(without_ours(made, "port = 1\n"), "a = 1\nport = 1\nb = 2\n");
    }

    #[test]
    fn the_librarys_name_is_taken_out_of_a_list_of_libraries() {
        for (line, left) in [
            ("shared_preload_libraries = 'onetrip'", None),
            ("  Shared_Preload_Libraries onetrip # ours", None),
            ("shared_preload_libraries='onetrip, pgaudit' # both", Some("shared_preload_libraries = 'pgaudit' # both")),
            (
                "shared_preload_libraries = 'a,\"$libdir/onetrip\", \"B\"'",
                Some("shared_preload_libraries = 'a, \"B\"'"),
            ),
            ("shared_preload_libraries = 'a, onetrip'", Some("shared_preload_libraries = 'a'")),
            (
                "shared_preload_libraries = 'onetrip_x, pgaudit'",
                Some("shared_preload_libraries = 'onetrip_x, pgaudit'"),
            ),
            ("#shared_preload_libraries = 'onetrip'", Some("#shared_preload_libraries = 'onetrip'")),
            ("shared_preload_libraries_x = 'onetrip'", Some("shared_preload_libraries_x = 'onetrip'")),
        ] {
            let left = left.map_or(String::new(), |left| format!("{left}\n"));
            assert_eq!(without_ours(&format!("{line}\n"), ""), left);
        }
    }
}
