//! The census (`docs/census`) names everything that the server has: types, settings, indexes, constraints, locks.
//!
//! The lists come from the server itself, so with a new version of PostgreSQL or of an extension the test fails and
//! names what the census does not cover yet.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use onetrip_lab::values::{self, catalog::Catalog, effect};

use crate::lab::{number, start, Session};

/// A file of the census: the columns of each line, by the line's first columns.
pub struct Census {
    file: &'static str,
    pub lines: BTreeMap<String, Vec<String>>,
}

impl Census {
    pub fn read(file: &'static str, key_columns: usize) -> Census {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/census").join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let lines = text.lines().skip(1).map(|line| {
            let columns: Vec<String> = line.split('\t').map(str::to_string).collect();
            assert!(columns.iter().all(|column| !column.is_empty()), "{file}: an empty column in {line:?}");
            (columns[..key_columns].join(" "), columns)
        });
        let lines: Vec<_> = lines.collect();
        let count = lines.len();
        let lines: BTreeMap<_, _> = lines.into_iter().collect();
        assert_eq!(lines.len(), count, "{file}: something is named twice");
        Census { file, lines }
    }

    /// The census and the server must have the same names.  `versions` is the column that says for which versions a
    /// line is ("15-" or "15-17"); `extension` is the column with a line's extension, and the extensions that this
    /// server has.
    pub fn covers(
        &self,
        seen: &BTreeSet<String>,
        server: u32,
        versions: usize,
        extension: Option<(usize, &BTreeSet<String>)>,
    ) {
        let unnamed: Vec<&String> = seen.iter().filter(|name| !self.lines.contains_key(*name)).collect();
        assert!(unnamed.is_empty(), "docs/census/{} does not name what this server has: {unnamed:?}", self.file);
        let should = |columns: &Vec<String>| {
            let (first, last) = columns[versions].split_once('-').expect("versions are FIRST- or FIRST-LAST");
            let after = first.parse::<u32>().expect("a version") <= server;
            let before = last.is_empty() || server <= last.parse::<u32>().expect("a version");
            let offered = extension.is_none_or(|(at, offered)| columns[at] == "-" || offered.contains(&columns[at]));
            after && before && offered
        };
        let gone: Vec<&String> = self
            .lines
            .iter()
            .filter(|(name, columns)| !seen.contains(*name) && should(columns))
            .map(|(name, _)| name)
            .collect();
        assert!(gone.is_empty(), "docs/census/{} names what this server does not have: {gone:?}", self.file);
    }

    fn class<'a>(&'a self, name: &str) -> Option<&'a str> {
        self.lines.get(name).map(|columns| columns[1].as_str())
    }
}

async fn list(session: &Session, query: &str) -> Vec<Vec<String>> {
    let messages = session.client.simple_query(query).await.unwrap_or_else(|e| panic!("{query}: {e}"));
    let mut rows = Vec::new();
    for message in messages {
        if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
            rows.push((0..row.len()).map(|i| row.get(i).unwrap_or("").to_string()).collect());
        }
    }
    rows
}

pub async fn names(session: &Session, query: &str) -> BTreeSet<String> {
    list(session, query).await.into_iter().map(|row| row.join(" ")).collect()
}

/// A type's name, without the schema in which this test installs extensions.
const NAME: &str = "regexp_replace(format_type(t.oid, -1), '^public\\.', '')";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_census_names_everything_that_the_server_has() {
    let lab =
        start("census", "types, settings, indexes, constraints and locks of the server are all in the census").await;
    let session = lab.session(0).await;
    values::extensions(&session.client).await.unwrap_or_else(|e| panic!("{e:#}"));
    session.must("set search_path = pg_catalog").await;
    let server = number(&session, "select current_setting('server_version_num')::int / 10000").await.unwrap() as u32;
    let extensions = names(&session, "select extname from pg_extension").await;

    types(&session, server, &extensions).await;
    let census = Census::read("access_methods.tsv", 1);
    let offered: BTreeSet<String> = extensions.clone();
    let seen = names(&session, "select amname from pg_am where amtype = 'i'").await;
    census.covers(&seen, server, 1, None);
    operator_classes(&session, server, &offered).await;
    headers(server);
    settings(&session, server).await;
    what_settings_change(&session).await;
}

/// Base types, domains, enums, ranges and pseudo-types by name; arrays and rows by what they are made of.
async fn types(session: &Session, server: u32, extensions: &BTreeSet<String>) {
    let census = Census::read("types.tsv", 1);
    let named = format!(
        "select {NAME} from pg_type t left join pg_class c on c.oid = t.typrelid
         where t.typsubscript <> 'array_subscript_handler'::regproc and (t.typtype <> 'c' or c.relkind = 'c')
             and t.typnamespace <> coalesce((select oid from pg_namespace where nspname = 'onetrip'), 0)"
    );
    let seen = names(session, &named).await;
    census.covers(&seen, server, 2, Some((3, extensions)));
    let rest = format!(
        "with recursive part(whole, oid) as (
             select t.oid, case when t.typsubscript = 'array_subscript_handler'::regproc then t.typelem else a.atttypid end
             from pg_type t left join pg_attribute a on a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
             where (t.typtype = 'c' or t.typsubscript = 'array_subscript_handler'::regproc)
             union
             select p.whole, case when t.typsubscript = 'array_subscript_handler'::regproc then t.typelem else a.atttypid end
             from part p join pg_type t on t.oid = p.oid
                  left join pg_attribute a on a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
             where t.typtype = 'c' or t.typsubscript = 'array_subscript_handler'::regproc)
         select distinct {NAME} from part p join pg_type t on t.oid = p.oid
         where t.typsubscript <> 'array_subscript_handler'::regproc and t.typtype <> 'c'"
    );
    let parts = names(session, &rest).await;
    assert!(parts.len() > 50, "{parts:?}");
    let unnamed: Vec<&String> = parts.iter().filter(|part| !census.lines.contains_key(*part)).collect();
    assert!(unnamed.is_empty(), "docs/census/types.tsv does not name what arrays and rows are made of: {unnamed:?}");
    let classes: BTreeSet<&str> = census.lines.values().map(|columns| columns[1].as_str()).collect();
    assert_eq!(classes, BTreeSet::from(["mapped", "no column", "refused", "stored"]));
}

/// Each operator class, with what the key of a unique index is made of, as far as the server's catalogs tell.
async fn operator_classes(session: &Session, server: u32, extensions: &BTreeSet<String>) {
    let census = Census::read("operator_classes.tsv", 2);
    let query = "
        select m.amname, c.opcname, case when m.amname <> 'btree' then 'none: not unique; an exclusion constraint takes its own key'
            when exists (select from pg_opclass h join pg_am hm on hm.oid = h.opcmethod and hm.amname = 'hash'
                         join pg_amproc p on p.amprocfamily = h.opcfamily and p.amproclefttype = h.opcintype and p.amprocnum = 2
                         where h.opcintype = c.opcintype) then 'value' else 'index' end
        from pg_opclass c join pg_am m on m.oid = c.opcmethod";
    let rows = list(session, query).await;
    let seen = rows.iter().map(|row| row[..2].join(" ")).collect();
    census.covers(&seen, server, 3, Some((4, extensions)));
    for row in rows {
        assert_eq!(census.lines[&row[..2].join(" ")][5], row[2], "key of {} {}", row[0], row[1]);
    }
}

/// The text of one of the server's header files.
pub fn header(file: &str) -> String {
    let config = std::process::Command::new(onetrip_lab::postgres_bin().join("pg_config"))
        .arg("--includedir-server")
        .output()
        .expect("run pg_config");
    let path = PathBuf::from(String::from_utf8_lossy(&config.stdout).trim()).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The kinds of constraints and locks are listed in the server's header files.
fn headers(server: u32) {
    let constraints: BTreeSet<String> = header("catalog/pg_constraint.h")
        .lines()
        .filter_map(|line| line.strip_prefix("#define CONSTRAINT_"))
        .filter_map(|rest| rest.split_whitespace().next())
        .map(str::to_string)
        .collect();
    assert!(constraints.len() >= 6, "{constraints:?}");
    Census::read("constraints.tsv", 1).covers(&constraints, server, 1, None);
    let words = |text: &str| -> Vec<String> {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(str::to_string).collect()
    };
    let mut locks: BTreeSet<String> = BTreeSet::new();
    for word in words(&header("storage/lock.h")) {
        // The names of the macros that fill a tag begin with SET_.
        if word.starts_with("LOCKTAG_") && word != "LOCKTAG_LAST_TYPE" {
            locks.insert(word);
        }
    }
    for line in header("storage/lockdefs.h").lines() {
        let mut words = line.split_whitespace();
        if let (Some("#define"), Some(name), Some(value)) = (words.next(), words.next(), words.next()) {
            if name.ends_with("Lock") && name != "NoLock" && value.parse::<u32>().is_ok() {
                locks.insert(name.to_string());
            }
        }
    }
    assert!(locks.len() >= 19, "{locks:?}");
    Census::read("locks.tsv", 1).covers(&locks, server, 2, None);
}

/// All settings that a session can change; those of extensions have a dot and are covered by one line.
async fn settings(session: &Session, server: u32) {
    let census = Census::read("settings.tsv", 1);
    let mut seen = names(
        session,
        "select case when name ~ '[.]' then '*.*' else name end from pg_settings where context in ('user', 'superuser')",
    )
    .await;
    seen.insert("*.*".to_string());
    census.covers(&seen, server, 2, None);
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../extension/src/capture/session_settings.c");
    let source = std::fs::read_to_string(source).unwrap();
    for (list, class) in [
        ("Setting settings[]", "travels"),
        ("statement_settings[]", "travels with statements"),
        ("widest[][2]", "widest"),
    ] {
        let list = source.split_once(&format!("{list} = {{\n")).expect("the list").1.split_once("\n};").unwrap().0;
        let sent: BTreeSet<&str> =
            list.lines().filter_map(|line| line.split('"').nth(1)).filter(|name| !name.contains('.')).collect();
        let named = census.lines.iter().filter(|(name, columns)| columns[1] == class && *name != "*.*");
        let named: BTreeSet<&str> = named.map(|(name, _)| name.as_str()).collect();
        assert_eq!(sent, named, "{class}; left: session_settings.c; right: docs/census/settings.tsv");
    }
}

/// Finds by experiment which settings change what an immutable function returns: all of them must travel.
async fn what_settings_change(session: &Session) {
    let census = Census::read("settings.tsv", 1);
    let catalog = Catalog::read(&session.client).await.unwrap_or_else(|e| panic!("{e:#}"));
    let effects = effect::of_settings(&session.client, &catalog, 1, 600).await.unwrap_or_else(|e| panic!("{e:#}"));
    println!("census: {} settings tried, of these change a result: {:#?}", effects.tried.len(), effects.found);
    for (setting, effect) in &effects.found {
        let class = census.class(setting).unwrap_or("not named");
        assert_eq!(class, "travels", "{setting} changes what an immutable function gives: {effect:?}");
    }
    // The experiment does find known effects.
    for known in ["bytea_output", "extra_float_digits", "IntervalStyle"] {
        assert!(effects.found.contains_key(known), "{known} was not seen to change a result");
    }
    assert!(effects.tried.len() > 100, "{:?}", effects.tried);
}

/// Goal: every catalog of the server, and every column of it, is compared by `onetrip check`, or the census says why
/// not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_compares_every_catalog_but_those_of_the_census() {
    let lab = start("census_catalogs", "every catalog is compared, or left out for a reason").await;
    let session = lab.session(0).await;
    let server = number(&session, "select current_setting('server_version_num')::int / 10000").await.unwrap() as u32;
    let census = Census::read("catalogs.tsv", 2);
    let all = "select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
               where c.relkind = 'r' and c.relnamespace = 'pg_catalog'::regnamespace";
    let columns = list(&session, all).await;
    let (code, output) = lab.check(&["--json"]).await;
    assert_eq!(code, Some(0), "{output}");
    let report: serde_json::Value = serde_json::from_str(&output).expect("JSON");
    let compared: BTreeSet<String> = report["catalogs"].as_object().expect("counts").keys().cloned().collect();
    let (mut left_out, mut unnamed) = (BTreeSet::new(), BTreeSet::new());
    for column in &columns {
        let catalog = &column[0];
        for name in [format!("{catalog} *"), column.join(" ")] {
            if census.lines.contains_key(&name) {
                left_out.insert(name);
            }
        }
        if compared.contains(catalog) == left_out.contains(&format!("{catalog} *")) {
            unnamed.insert(catalog);
        }
    }
    assert!(unnamed.is_empty(), "neither compared nor left out for a reason, or both: {unnamed:?}");
    census.covers(&left_out, server, 2, None);
    // `onetrip check` has read every column that is not left out: it fails at a type that it does not know.
    assert!(compared.len() > 50 && left_out.len() < columns.len() / 10, "{compared:?} {left_out:?}");
}

/// What the census says of each type is what happens to its values.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn values_of_every_type_arrive_or_are_refused_as_the_census_says() {
    let _turn =
        crate::lab::turn("census values", "values of every type arrive, or are refused, as the census says").await;
    let census = Census::read("types.tsv", 1);
    let folder = PathBuf::from(format!("/var/tmp/onetrip-census-{}", std::process::id()));
    let trial = onetrip_lab::trial::Options {
        duration: Duration::from_secs(600),
        seed: 1,
        round: None,
        binary: crate::lab::binary(),
        folder: folder.clone(),
        explore: true,
        findings: None,
    };
    let options = values::Options { trial, sweep: true, census: true, only: Vec::new() };
    let report = values::run(&options).await.unwrap_or_else(|e| panic!("{e:#}"));
    println!("{}", report.table());
    if report.held() {
        let _ = std::fs::remove_dir_all(&folder);
    }
    let mut wrong: Vec<String> =
        report.findings.iter().map(|f| format!("{}: {}: {}", f.type_name, f.what, f.message)).collect();
    // Values of some types are made only inside an index (gtrgm), or only by functions that random trials rarely call.
    let (mut tried, mut never) = (0, Vec::new());
    for (name, columns) in &census.lines {
        let full = match report.types.contains(name) {
            true => name.clone(),
            false => format!("public.{name}"),
        };
        let stored = report.stored.contains(&full);
        match &*columns[1] {
            "stored" | "mapped" if report.types.contains(&full) && !stored => {
                let why = report.refused.get(&full).or(report.no_column.get(&full));
                never.push(format!("{name}: {why:?}"));
                tried += 1;
            }
            "stored" | "mapped" if stored => tried += 1,
            "refused" if stored => wrong.push(format!("{name}: a value of it was stored")),
            _ => {}
        }
    }
    println!("types of which no value was stored:\n{}", never.join("\n"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(never.len() * 4 < tried, "of {} of {tried} types no value was stored", never.len());
}
