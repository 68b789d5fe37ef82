//! Nodes come and go while every region writes, and nothing that was acknowledged is lost.

use crate::lab::{self, ask, number, text, until, Lab, SOON};
use crate::load::Load;

/// Goal: a cluster under load grows from three voters to five and shrinks again, its leader moves and then leaves the
/// cluster, and all regions are equal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn grows_to_five_and_back_under_load() {
    // With certificates, as in production.
    let about = "3 -> 5 -> 3 voters under load, over TLS; the leader moves, and leaves the cluster";
    let mut lab = lab::start_from("grow", about, lab::builder().init_arg("--tls")).await;
    lab.session(0).await.must("create table drawn (id serial primary key, node int)").await;
    let mut load = Load::start(&lab).await;
    draw(&lab, 0).await;

    let d = join(&mut lab, "d", &[]).await;
    load.clients_at(&lab, d);
    load.progress(&lab, &[0, 1, 2, d], "with four voters").await;
    // A second node in a region that has one already.
    let e = join(&mut lab, "a", &[]).await;
    load.clients_at(&lab, e);
    load.progress(&lab, &[0, 1, 2, d, e], "with five voters").await;
    assert_eq!(voters(&lab, e).await, [1, 2, 3, 4, 5]);
    for node in [0, 1, 2, d, e] {
        draw(&lab, node).await;
    }

    lab.move_leader(1, "d").await.unwrap_or_else(|e| panic!("{e:#}"));
    load.progress(&lab, &[0, 1, 2, d, e], "led by the fourth").await;
    // The leader leaves, at the request of another node; then a follower, at its own request.
    let said = lab.leave(0, d, &[]).await.unwrap_or_else(|e| panic!("{e:#}"));
    assert!(said.contains("4 voters are left") && said.contains("3 of them"), "{said}");
    load.progress(&lab, &[0, 1, 2, e], "after the leader has left").await;
    lab.leave(1, 1, &[]).await.unwrap_or_else(|e| panic!("{e:#}"));
    load.progress(&lab, &[0, 2, e], "with three voters again").await;
    assert_eq!(voters(&lab, e).await, [1, 3, 5]);

    // A node that has left and is started again is told so, and does no harm.
    lab.node(1).start().unwrap_or_else(|e| panic!("{e:#}"));
    let status = lab.node(1).wait_ended(SOON).await.unwrap_or_else(|e| panic!("{e:#}"));
    assert!(!status.success());
    let told = lab.node(1).log_tail(3);
    assert!(told.contains("removed from the cluster"), "{told}");

    let status = lab::onetrip(&["status", "--data", &lab.data().display().to_string()]).await.stdout;
    assert!(status.contains("has left") && status.contains("leader"), "{status}");
    let table: Vec<&str> = status.lines().filter(|line| !line.starts_with('!')).collect();
    assert!(table.iter().all(|line| line.chars().count() <= 120), "{status}");

    // Two voters could not bear the loss of either, so this needs --force.
    let refused = format!("{:#}", lab.leave(0, e, &[]).await.expect_err("leaves two voters"));
    assert!(refused.contains("--force") && refused.contains("commits stop when either is lost"), "{refused}");

    for node in [0, 2, e] {
        draw(&lab, node).await;
    }
    load.finish(&lab).await;
    let by_http: Vec<&str> = [0, 2, e].iter().flat_map(|node| ["--http", lab.node(*node).http()]).collect();
    let checked = lab::onetrip(&[&["check"], &by_http[..]].concat()).await;
    assert!(
        checked.code == Some(0) && checked.stdout.contains("in each of a, c, a"),
        "{}{}",
        checked.stdout,
        checked.stderr
    );
    let drawn = number(&lab.session(0).await.client, "select count(*) from drawn").await.unwrap();
    assert_eq!(drawn, 90);
}

/// Goal: a dead node is replaced, and a witness and a replica join, all under load; each behaves according to its role.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_node_is_replaced_and_a_witness_and_a_replica_join() {
    let mut lab = lab::start("replace", "a dead node is replaced; a witness and a replica join").await;
    let mut load = Load::start(&lab).await;
    lab.node(2).kill9().expect("kill the node");
    onetrip_lab::postmaster::stop_now(&lab.node(2).postgres_data(), SOON).expect("stop its PostgreSQL");
    std::fs::remove_dir_all(lab.node(2).folder()).expect("lose the disk");
    load.progress(&lab, &[0, 1], "without the third region").await;

    let refused = format!("{:#}", lab.leave(0, 1, &[]).await.expect_err("leaves no majority"));
    assert!(refused.contains("commits would stop") && refused.contains("3 in c"), "{refused}");

    // What is for one server alone does not come with the copy, whichever of the two is copied.
    for donor in [0, 1] {
        let donor = lab.session(donor).await;
        for (setting, value) in [("archive_mode", "on"), ("archive_command", "false"), ("work_mem", "5MB")] {
            donor.must(&format!("alter system set {setting} = '{value}'")).await;
        }
    }
    let c = join(&mut lab, "c", &["--replaces", "c"]).await;
    let copied = "select string_agg(name, ' ') from pg_file_settings where sourcefile like '%/postgresql.auto.conf'";
    let joined = lab.session(c).await;
    assert_eq!(text(&joined, copied).await.unwrap(), "work_mem");
    assert_eq!(text(&joined, "show archive_mode").await.unwrap(), "off");
    load.clients_at(&lab, c);
    load.progress(&lab, &[0, 1, c], "with a new node in the third region").await;
    assert_eq!(voters(&lab, 0).await, [1, 2, 4]);

    let witness = join(&mut lab, "w", &["--role", "witness"]).await;
    assert!(!lab.node(witness).postgres_data().exists(), "a witness has no PostgreSQL");
    let joined = lab.join_in_foreground(0, "r", &["--role", "replica"]).await;
    let (replica, shown) = joined.unwrap_or_else(|e| panic!("{e:#}"));
    assert!(shown.contains("copying the PostgreSQL of") && shown.contains("is a replica now"), "{shown}");
    lab.node(replica).restart().await.unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(voters(&lab, 0).await, [1, 2, 4, 5]);
    load.progress(&lab, &[0, 1, c], "with a witness and a replica").await;

    let reader = lab.session(replica).await;
    let refused = reader.refused("insert into kept values ('never', 9)").await;
    assert_eq!(refused.code().code(), "25006", "{refused:?}");
    drivers_tell_a_replica_from_a_voter(&lab, replica);
    load_balancers_tell_roles_apart(&lab, witness, replica).await;
    lab.everywhere().await;
    assert!(number(&reader.client, "select count(*) from kept").await.unwrap() > 0);

    // With one voter paused, the other two need the witness for a majority.
    lab.node(1).pause().expect("SIGSTOP");
    load.progress(&lab, &[0, c], "with the witness in the majority").await;
    lab.node(1).resume().expect("SIGCONT");
    load.progress(&lab, &[0, 1, c], "all there").await;
    load.finish(&lab).await;
    reads_fresh(&lab, replica).await;
}

/// libpq passes a replica by if it is to find a server that can be written, and takes it if it is to find another.
fn drivers_tell_a_replica_from_a_voter(lab: &Lab, replica: usize) {
    for (attributes, order, found) in [
        ("read-write", [replica, 0], 0),
        ("primary", [replica, 0], 0),
        ("read-only", [0, replica], replica),
        ("standby", [0, replica], replica),
        ("prefer-standby", [0, replica], replica),
        ("any", [replica, 0], replica),
    ] {
        assert_eq!(lab::found_by_libpq(lab, &order, attributes), Some(found), "{attributes}");
    }
}

/// A witness serves no SQL; a replica serves reads.
async fn load_balancers_tell_roles_apart(lab: &Lab, witness: usize, replica: usize) {
    let no_sql = (503, "this node has no PostgreSQL\n".to_string());
    for path in ["/writable", "/readable", "/readable?max_lag=60000"] {
        assert_eq!(ask(lab, witness, path).await.unwrap(), no_sql, "{path}");
    }
    assert_eq!(ask(lab, replica, "/writable").await.unwrap(), (503, "this node is a read replica\n".to_string()));
    for path in ["/readable", "/readable?max_lag=60000"] {
        assert_eq!(ask(lab, replica, path).await.unwrap().0, 200, "{path}");
    }
}

/// The replica asks the voters, and is none itself.
async fn reads_fresh(lab: &Lab, replica: usize) {
    let (writer, reader) = (lab.session(0).await, lab.session(replica).await);
    writer.must("create table seen (id int primary key)").await;
    lab.everywhere().await;
    reader.must("set onetrip.read = fresh").await;
    for id in 1..=50 {
        writer.must(&format!("insert into seen values ({id})")).await;
        assert_eq!(number(&reader.client, "select count(*) from seen").await.unwrap(), id, "the replica misses it");
    }
}

/// Goal: a node whose PostgreSQL stores values differently cannot join, and a member that gets such a PostgreSQL
/// cannot connect to the others; a witness may have any.  Method: a `pg_controldata` that reports another size of
/// TOAST chunks, as that of another build would.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgresql_that_stores_values_otherwise_does_not_take_part() {
    let lab = lab::start("unlike", "a PostgreSQL built differently does not take part").await;
    lab.session(2).await.must("create table t (id int primary key)").await;
    let otherwise = built_otherwise(&lab);
    let odd = otherwise.display().to_string();
    let data = lab.data().join("d").display().to_string();
    let ports = onetrip_lab::ports::free_ports(3).expect("ports");
    let [http, port] = [ports[1], ports[2]].map(|port| port.to_string());
    let listen = format!("127.0.0.1:{}", ports[0]);
    let token = lab.data().join("token");
    std::fs::write(&token, lab.token(0, &[]).await.expect("a token") + "\n").expect("write the token");
    let token = token.display().to_string();
    let mut ask = vec![
        "join",
        "--from",
        lab.node(1).peer(),
        "--token-file",
        &token,
        "--region",
        "d",
        "--data",
        &data,
        "--listen",
        &listen,
    ];
    ask.extend(["--http", &http, "--port", &port, "--prepare-only", "--bin-dir"]);
    let refused = lab::onetrip(&[&ask[..], &[&odd]].concat()).await;
    let why = "maximum size of a TOAST chunk is 2036 in d and 1996 in b";
    assert!(refused.code == Some(1) && refused.stderr.contains(why), "{}", refused.stderr);
    assert_eq!(voters(&lab, 0).await, [1, 2, 3]);
    // The refused node has not used up its token.
    let real = onetrip_lab::postgres_bin().display().to_string();
    let let_in = lab::onetrip(&[&ask[..], &[&real]].concat()).await;
    assert_eq!(let_in.code, Some(0), "{}", let_in.stderr);

    let witness = lab.token(0, &["--role", "witness"]).await.expect("a token");
    let data = lab.data().join("w").display().to_string();
    let let_in = lab::onetrip(
        &[
            &["join", "--from", lab.node(1).peer(), "--token", &witness, "--region", "w", "--data", &data][..],
            &["--prepare-only", "--bin-dir", &odd],
        ]
        .concat(),
    )
    .await;
    assert_eq!(let_in.code, Some(0), "{}", let_in.stderr);

    let file = lab.node(2).folder().join("node.toml");
    let text = std::fs::read_to_string(&file).expect("node.toml");
    let changed = text.replace(&format!("bin_dir = \"{real}\""), &format!("bin_dir = \"{odd}\""));
    assert_ne!(changed, text, "node.toml has a bin_dir");
    lab.node(2).stop().await.unwrap_or_else(|e| panic!("{e:#}"));
    std::fs::write(&file, changed).expect("write node.toml");
    lab.node(2).start().expect("start the node");
    for (region, why) in [
        (0, "maximum size of a TOAST chunk is 1996 in a and 2036 in c"),
        (2, "maximum size of a TOAST chunk is 2036 in c and 1996 in a"),
    ] {
        until("both sides to say why", SOON, || async {
            let said = lab.node(region).status().await?["problems"].to_string();
            anyhow::ensure!(said.contains(why), "{said}");
            Ok(true)
        })
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
    }
    lab.session(0).await.must("insert into t values (1)").await;
    lab.node(2).stop().await.unwrap_or_else(|e| panic!("{e:#}"));
    std::fs::write(&file, text).expect("write node.toml");
    lab.node(2).start().expect("start the node");
    lab.wait_ready().await.unwrap_or_else(|e| panic!("{e:#}"));
    lab.shows("select count(*)::text from t", "1").await;
}

/// A folder with the programs of PostgreSQL, except for a `pg_controldata` that reports another size of TOAST chunks.
fn built_otherwise(lab: &Lab) -> std::path::PathBuf {
    use std::os::unix::fs::{symlink, PermissionsExt};
    let real = onetrip_lab::postgres_bin();
    let folder = lab.data().with_file_name("bin");
    std::fs::create_dir(&folder).expect("make a folder");
    for program in std::fs::read_dir(&real).expect("the programs").flatten() {
        symlink(program.path(), folder.join(program.file_name())).expect("link a program");
    }
    let tells = folder.join("pg_controldata");
    std::fs::remove_file(&tells).expect("a link");
    let real = real.join("pg_controldata");
    let script = format!("#!/bin/sh\n{} \"$@\" | sed '/TOAST chunk/s/1996/2036/'\n", real.display());
    std::fs::write(&tells, script).expect("write a script");
    std::fs::set_permissions(&tells, std::fs::Permissions::from_mode(0o755)).expect("make it a program");
    folder
}

/// Goal: a node that needs entries which the others have cut from their logs, and one whose PostgreSQL is gone, recover
/// by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_fell_behind_the_log_rejoins_by_itself() {
    let lab = lab::start_with("fallen", "behind the log's cut; a deleted data folder", |cluster| {
        for node in cluster.nodes() {
            let file = node.folder().join("node.toml");
            let text = std::fs::read_to_string(&file).expect("node.toml");
            let changed: String = text
                .lines()
                .map(|line| match line.starts_with("log_bytes_max") {
                    true => format!("log_bytes_max = {LOG_BYTES_MAX}\n"),
                    false => format!("{line}\n"),
                })
                .collect();
            assert_ne!(changed, text, "node.toml has a log_bytes_max");
            std::fs::write(&file, changed).expect("node.toml");
        }
    })
    .await;
    lab.session(0).await.must("create table drawn (id serial primary key, node int)").await;
    let load = Load::start(&lab).await;
    for node in 0..3 {
        draw(&lab, node).await;
    }
    lab.session(0).await.must("create table filler (id int primary key, v text)").await;
    lab.node(2).kill9().expect("kill the node");
    onetrip_lab::postmaster::stop_now(&lab.node(2).postgres_data(), SOON).expect("stop its PostgreSQL");
    let behind = log_first(&lab, 0).await;
    let writer = lab.session(0).await;
    for round in 0..200 {
        writer
            .must(&format!(
                "insert into filler select {round} * 100 + g, (select string_agg(md5(g::text || i), '') from generate_series(1, 100) i)
                   from generate_series(1, 99) g"
            ))
            .await;
        if log_first(&lab, 0).await > behind && log_first(&lab, 1).await > behind && round * 300_000 > 2 * LOG_BYTES_MAX
        {
            break;
        }
    }
    until("the others have cut their logs", SOON, || async {
        Ok(log_first(&lab, 0).await > behind && log_first(&lab, 1).await > behind)
    })
    .await
    .unwrap();
    lab.node(2).start().unwrap_or_else(|e| panic!("{e:#}"));
    lab.wait_joined(2).await.unwrap_or_else(|e| panic!("{e:#}"));
    load.progress(&lab, &[0, 1, 2], "after it fell behind").await;

    lab.node(1).stop().await.unwrap_or_else(|e| panic!("{e:#}"));
    std::fs::remove_dir_all(lab.node(1).postgres_data()).expect("lose the data folder");
    lab.node(1).start().unwrap_or_else(|e| panic!("{e:#}"));
    lab.wait_joined(1).await.unwrap_or_else(|e| panic!("{e:#}"));
    load.progress(&lab, &[0, 1, 2], "after its data folder was gone").await;
    // A node whose data folder is a copy of another node's still draws its own values from sequences.
    for node in 0..3 {
        draw(&lab, node).await;
    }
    load.finish(&lab).await;
}

const LOG_BYTES_MAX: u64 = 8 << 20;

async fn join(lab: &mut Lab, region: &str, token_args: &[&str]) -> usize {
    println!("a node joins in {region} {token_args:?}");
    lab.join(0, region, token_args).await.unwrap_or_else(|e| panic!("{e:#}"))
}

/// The numbers of the voters, as a node sees them.
async fn voters(lab: &Lab, asked: usize) -> Vec<u64> {
    let status = lab.node(asked).status().await.unwrap_or_else(|e| panic!("{e:#}"));
    let members = status["members"].as_array().expect("members").iter();
    members.filter(|m| m["voter"] == true).filter_map(|m| m["id"].as_u64()).collect()
}

async fn log_first(lab: &Lab, asked: usize) -> u64 {
    let status = lab.node(asked).status().await.unwrap_or_else(|e| panic!("{e:#}"));
    status["log_first"].as_u64().expect("log_first")
}

/// Draws ten values from the sequence; a value that another node gave out already is an error.
async fn draw(lab: &Lab, node: usize) {
    let session = lab.session(node).await;
    for _ in 0..10 {
        session.must(&format!("insert into drawn (node) values ({node})")).await;
    }
}
