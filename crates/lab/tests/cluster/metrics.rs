//! `GET /metrics`: what Prometheus sees is what the page, the alarms and the dashboard name.

use crate::lab::{ask, builder, number, start_prepared, until, Lab, SOON};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Samples by name and labels, and the names of all metrics.
struct Scrape {
    samples: BTreeMap<String, f64>,
    names: BTreeSet<String>,
}

impl Scrape {
    async fn of(lab: &Lab, region: usize) -> anyhow::Result<Scrape> {
        let (status, text) = ask(lab, region, "/metrics").await?;
        anyhow::ensure!(status == 200 && text.ends_with("# EOF\n"), "{status} {text}");
        let (mut samples, mut names) = (BTreeMap::new(), BTreeSet::new());
        for line in text.lines() {
            if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
                names.insert(name.to_string() + if kind == "counter" { "_total" } else { "" });
            } else if !line.starts_with('#') {
                let (sample, value) = line.rsplit_once(' ').expect("a value");
                anyhow::ensure!(samples.insert(sample.to_string(), value.parse()?).is_none(), "{sample} comes twice");
            }
        }
        Ok(Scrape { samples, names })
    }

    /// The only sample with this name and this text among its labels.
    fn get(&self, name: &str, label: &str) -> Option<f64> {
        let has = |sample: &&String| sample.starts_with(&format!("{name}{{")) && sample.contains(label);
        let mut found = self.samples.keys().filter(has);
        let sample = found.next()?;
        assert_eq!(found.next(), None, "{name} has two");
        Some(self.samples[sample])
    }
}

fn page(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The words in a text that are names of metrics.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("onetrip_")).map(str::to_string).collect()
}

/// Goal: metrics say what is, and no page names one that does not exist.  Method: three real nodes with work done, one
/// of them paused; the values against what PostgreSQL says, the names against the files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_true_and_the_pages_name_them() {
    let about = "GET /metrics: values, and names in the page, the alarms and the dashboard";
    let lab = start_prepared("metrics", about, builder(), crate::backup::archive).await;
    let a = lab.session(0).await;
    a.must("create table t (id int primary key); insert into t select generate_series(1, 100)").await;
    lab.everywhere().await;
    until("all nodes to tell the same story", SOON, || async {
        let mut leads = 0.0;
        for region in 0..3 {
            let scrape = Scrape::of(&lab, region).await?;
            let get = |name| scrape.get(name, "");
            let session = lab.session(region).await;
            let position = number(&session, "select onetrip.position()").await? as f64;
            let own = format!("region=\"{}\",node=\"{}\"", lab.node(region).region(), lab.node(region).id());
            anyhow::ensure!(scrape.get("onetrip_applied_index", &own) == Some(position), "position {position}");
            anyhow::ensure!(get("onetrip_leader_known") == Some(1.0) && get("onetrip_problems") == Some(0.0));
            anyhow::ensure!(get("onetrip_apply_worker") == Some(1.0) && get("onetrip_postgres_ready") == Some(1.0));
            anyhow::ensure!(get("onetrip_lag_entries") == Some(0.0) && get("onetrip_lag_seconds") == Some(0.0));
            anyhow::ensure!(get("onetrip_postgres_restarts_total") == Some(0.0) && get("onetrip_stuck") == Some(0.0));
            anyhow::ensure!(get("onetrip_log_bytes") > Some(0.0));
            // Two of the nodes have an archive.
            anyhow::ensure!(get("onetrip_archived_index").is_some() == (region < 2));
            anyhow::ensure!(get("onetrip_archive_lag_seconds").is_some() == (region < 2));
            anyhow::ensure!(get("onetrip_archive_problem").unwrap_or(0.0) == 0.0);
            anyhow::ensure!(scrape.get("onetrip_disk_free_bytes", "disk=\"PostgreSQL\"") > Some(0.0));
            leads += get("onetrip_leads").unwrap_or_default();
            for other in (0..3).filter(|other| *other != region) {
                let member =
                    format!("member=\"{}\",member_region=\"{}\"", lab.node(other).id(), lab.node(other).region());
                let of = |name| scrape.get(name, &member);
                anyhow::ensure!(of("onetrip_member_connected") == Some(1.0) && of("onetrip_member_voter") == Some(1.0));
                anyhow::ensure!(of("onetrip_member_round_trip_seconds").is_some_and(|s| s > 0.0 && s < 5.0));
                anyhow::ensure!(of("onetrip_member_applied_index") == Some(position), "{member} is not there yet");
            }
        }
        Ok(leads == 1.0)
    })
    .await
    .unwrap();
    names_are_those_of_the_pages(&Scrape::of(&lab, 0).await.unwrap());
    queries_give_what_they_declare(&lab).await;
    let paused = format!("member=\"{}\"", lab.node(2).id());
    lab.node(2).pause().expect("SIGSTOP");
    until("a paused node to be missed", SOON, || async {
        let scrape = Scrape::of(&lab, 0).await?;
        let problems = scrape.get("onetrip_problems", "") > Some(0.0);
        // Its kernel keeps the connections, so that alone does not show it.
        Ok(problems && scrape.get("onetrip_member_silent_seconds", &paused) > Some(5.0))
    })
    .await
    .unwrap();
    let health = ask(&lab, 0, "/status").await.unwrap().1;
    assert!(health.contains("member 3 in c is connected and has said nothing for"), "{health}");
    lab.node(2).resume().expect("SIGCONT");
    until("the node that goes on to be heard", SOON, || async {
        Ok(Scrape::of(&lab, 0).await?.get("onetrip_problems", "") == Some(0.0))
    })
    .await
    .unwrap();
    lab.check_equal(1).await;
}

fn names_are_those_of_the_pages(scrape: &Scrape) {
    // This cluster has no certificates, and no backup was made of it.
    let absent = ["onetrip_certificate_left_seconds", "onetrip_backup_age_seconds"].map(str::to_string);
    let known: BTreeSet<String> = scrape.names.iter().cloned().chain(absent).collect();
    let documented = page("monitoring.md");
    let listed: BTreeSet<String> = documented
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .flat_map(|line| names(line).into_iter().next())
        .collect();
    assert_eq!(listed, known, "the table of docs/monitoring.md");
    for (file, least) in [("monitoring/alerts.yml", 10), ("monitoring/dashboard.json", 8)] {
        let named = names(&page(file));
        assert!(named.len() >= least, "{file} names {named:?}");
        assert_eq!(named.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new(), "{file}");
    }
    serde_json::from_str::<serde_json::Value>(&page("monitoring/dashboard.json")).expect("JSON");
}

/// The queries for an exporter run as the role that the page has for it, and their columns are the declared ones.
async fn queries_give_what_they_declare(lab: &Lab) {
    let session = lab.session(0).await;
    session.must("create role exporter in role pg_monitor").await;
    session.must("set role exporter").await;
    let file = page("monitoring/queries.yml");
    let mut found = 0;
    for block in file.split("  query: |\n").skip(1) {
        let (query, declared) = block.split_once("  metrics:\n").expect("metrics");
        let declared =
            declared.lines().filter_map(|line| line.strip_prefix("    - ")).map(|line| line.trim_end_matches(':'));
        let statement = session.prepare(query).await.unwrap_or_else(|e| panic!("{query}: {e:?}"));
        let columns: Vec<&str> = statement.columns().iter().map(|column| column.name()).collect();
        assert_eq!(columns, declared.collect::<Vec<_>>(), "{query}");
        let rows = session.query(&statement, &[]).await.unwrap_or_else(|e| panic!("{query}: {e:?}"));
        assert!(!rows.is_empty(), "{query} gave no row");
        found += 1;
    }
    assert!(found >= 6);
    session.must("reset role; drop role exporter").await;
}
