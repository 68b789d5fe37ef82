//! `onetrip check` says equal when it is, and where not when it is not.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::lab::{start, Lab};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_a_row_changed_behind_its_back() {
    let lab = start("check_finds", "equal is equal; a row changed in one region's files is found and named").await;
    lab.session(1)
        .await
        .must("create table t (id int primary key, v text); create table s (a int, b text, primary key (b, a)); create table bag (x int)")
        .await;
    lab.everywhere().await;
    for region in 0..3 {
        let rows = format!(
            "insert into t select g * 3 + {region}, 'v' || g from generate_series(1, 1000) g;
             insert into s select g, 'k' || {region} from generate_series(1, 10) g; insert into bag values ({region}), ({region})"
        );
        lab.session(region).await.must(&rows).await;
    }
    lab.check_equal(3).await;
    let (code, output) = lab.check(&[]).await;
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("equal"), "{output}");

    behind_its_back(&lab, 1, "update t set v = 'tampered' where id = 1501").await;
    names_it(&lab, &["public.t", "b", "1501", "tampered"], "public.t").await;
    behind_its_back(&lab, 1, "update t set v = 'v500' where id = 1501").await;
    lab.check_equal(3).await;

    behind_its_back(&lab, 2, "delete from s where a = 7 and b = 'k1'").await;
    names_it(&lab, &["public.s", "c", "k1", "7", "no such row"], "public.s").await;
    behind_its_back(&lab, 2, "insert into s values (7, 'k1')").await;
    lab.check_equal(3).await;

    behind_its_back(&lab, 0, "update bag set x = 99 where ctid = (select min(ctid) from bag)").await;
    names_it(&lab, &["public.bag", "a", "(0)", "no such row"], "public.bag").await;
}

/// Goal: the version that an extension has where it is created is the one that every region gets, with what it requires;
/// `check` tells which region has another one, or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_an_extension_of_another_version() {
    let lab = start("check_extensions", "extensions are of one version everywhere, or check names the regions").await;
    lab.session(1).await.must("create extension earthdistance cascade; create extension citext version '1.5'").await;
    lab.everywhere().await;
    lab.session(2).await.must("alter extension citext update").await;
    lab.check_equal(0).await;
    let installed =
        "select string_agg(extname || coalesce(nullif(extversion, default_version), ''), ' ' order by extname)
                     from pg_extension join pg_available_extensions on name = extname";
    lab.shows(installed, "citext cube earthdistance onetrip plpgsql").await;

    behind_its_back(&lab, 1, "drop extension citext; create extension citext version '1.5'").await;
    behind_its_back(&lab, 2, "drop extension earthdistance").await;
    let (code, output) = lab.check(&[]).await;
    assert_eq!(code, Some(1), "{output}");
    let (citext, earthdistance) =
        output.split_once("\nextension citext\n").expect(&output).1.split_once("extension").unwrap();
    assert!(output.starts_with("different") && citext.contains("  b: version 1.5\n"), "{output}");
    assert!(citext.contains("  a: version") && !citext.contains("  a: version 1.5"), "{output}");
    assert!(earthdistance.contains("  b: version") && earthdistance.contains("  c: not installed"), "{output}");
    let (code, output) = lab.check(&["--json"]).await;
    assert_eq!(code, Some(1), "{output}");
    let report: serde_json::Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!((&report["equal"], &report["different"]), (&false.into(), &serde_json::json!([])), "{output}");
    assert_eq!(report["extensions"][0]["versions"][1], "1.5", "{output}");
    assert_eq!(report["extensions"][1]["versions"][2], serde_json::Value::Null, "{output}");
}

/// Text and JSON both say different, which table, and what each word of `words` says.
async fn names_it(lab: &Lab, words: &[&str], table: &str) {
    let (code, output) = lab.check(&[]).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.starts_with("different"), "{output}");
    for word in words {
        assert!(output.contains(word), "{word} is not in: {output}");
    }
    let (code, output) = lab.check(&["--json"]).await;
    assert_eq!(code, Some(1), "{output}");
    let report: serde_json::Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!(report["equal"], false);
    assert_eq!(report["different"], serde_json::json!([table]));
    assert_eq!(report["difference"]["kind"], "row");
}

/// Stops a node, changes its PostgreSQL's files through a server that knows nothing of Onetrip's way, starts it again.
async fn behind_its_back(lab: &Lab, region: usize, sql: &str) {
    let node = lab.node(region);
    node.stop().await.unwrap_or_else(|e| panic!("{e:#}"));
    let data = node.postgres_data();
    let sql = format!("{}\n", sql.replace('\n', " "));
    let done = tokio::task::spawn_blocking(move || {
        use std::io::Write;
        let mut command = Command::new(onetrip_lab::postgres_bin().join("postgres"));
        command.args(["--single", "-D"]).arg(&data).arg("onetrip").current_dir("/");
        if nix::unistd::geteuid().is_root() {
            use std::os::unix::fs::MetadataExt;
            let owner = std::fs::metadata(&data).expect("the data folder");
            command.uid(owner.uid()).gid(owner.gid());
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start postgres --single");
        child.stdin.take().expect("piped").write_all(sql.as_bytes()).expect("write the statement");
        child.wait_with_output().expect("wait for postgres --single")
    });
    let output = done.await.expect("postgres --single");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("ERROR"), "postgres --single: {said}");
    node.restart().await.unwrap_or_else(|e| panic!("{e:#}"));
    lab.wait_ready().await.unwrap_or_else(|e| panic!("{e:#}"));
}
