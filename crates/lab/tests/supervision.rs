//! A node and its PostgreSQL: either may die, and both come back to the same place.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use onetrip_client::ports::free_ports;
use onetrip_lab::plain::as_server_user;
use onetrip_lab::{postmaster, Cluster, Node};

async fn cluster() -> Result<Cluster> {
    Cluster::builder().binary(env!("CARGO_BIN_EXE_onetrip-lab")).copied_servers(true).start().await
}

/// Waits until `node` serves through a server process that `is_right`.
async fn wait_server(node: &Node, is_right: impl Fn(nix::unistd::Pid) -> bool) -> Result<tokio_postgres::Client> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if node.postgres_pid().is_some_and(&is_right) {
            if let Ok(client) = node.connect().await {
                return Ok(client);
            }
        }
        if Instant::now() >= deadline {
            bail!("PostgreSQL of {} does not come back: {}", node.region(), node.postgres_log_tail(3));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn count(client: &tokio_postgres::Client) -> Result<i64> {
    Ok(client.query_one("select count(*) from t", &[]).await?.get(0))
}

/// Goal: a server killed with SIGKILL is started again by its node and shows what the others committed meanwhile.
#[tokio::test]
async fn a_killed_postgresql_is_started_again_and_catches_up() -> Result<()> {
    let cluster = cluster().await?;
    let writer = cluster.connect(0).await?;
    writer.batch_execute("create table t (id int primary key); insert into t values (1)").await?;
    cluster.converge().await?;
    let killed = cluster.node(1).postgres_pid().context("it runs")?;
    cluster.node(1).kill9_postgres()?;
    writer.batch_execute("insert into t values (2)").await?;
    let again = wait_server(cluster.node(1), |pid| pid != killed).await?;
    cluster.converge().await?;
    assert_eq!(count(&again).await?, 2);
    let status = cluster.node(1).status().await?;
    assert_eq!(status["postgres"]["restarts"], 1, "{status}");
    cluster.stop().await
}

/// Goal: a server that is killed while its node waits for its first start is started again; the node does not end.
#[tokio::test]
async fn a_postgresql_killed_during_its_first_start_is_started_again() -> Result<()> {
    let cluster = cluster().await?;
    let node = cluster.node(1);
    for _ in 0..3 {
        node.kill9()?;
        let killed = node.postgres_pid().context("it runs")?;
        node.kill9_postgres()?;
        node.start()?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while node.postgres_pid().is_none_or(|pid| pid == killed) {
            anyhow::ensure!(Instant::now() < deadline, "PostgreSQL is not started");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        node.kill9_postgres()?;
        wait_server(node, |_| true).await?;
        assert!(node.running(), "{}", node.log_tail(3));
    }
    cluster.stop().await
}

/// Goal: a node killed with SIGKILL leaves its PostgreSQL running; the node started again in that folder adopts the
/// same server.
#[tokio::test]
async fn a_node_started_again_adopts_the_postgresql_that_runs() -> Result<()> {
    let cluster = cluster().await?;
    let writer = cluster.connect(0).await?;
    writer.batch_execute("create table t (id int primary key)").await?;
    cluster.converge().await?;
    let server = cluster.node(2).postgres_pid().context("it runs")?;
    cluster.node(2).kill9()?;
    let reader = cluster.connect(2).await?;
    assert_eq!(count(&reader).await?, 0, "local reads go on without a node");
    writer.batch_execute("insert into t values (1)").await?;
    cluster.node(2).restart().await?;
    cluster.converge().await?;
    assert_eq!(cluster.node(2).postgres_pid(), Some(server));
    assert_eq!(count(&reader).await?, 1, "the old session sees the new row");
    cluster.stop().await
}

/// Goal: stopping ends every process; after a new start the nodes go on where they stopped.
#[tokio::test]
async fn stopped_nodes_leave_no_process_and_start_again() -> Result<()> {
    let cluster = cluster().await?;
    let writer = cluster.connect(0).await?;
    writer.batch_execute("create table t (id int primary key); insert into t values (1)").await?;
    cluster.stop().await?;
    for node in cluster.nodes() {
        assert_eq!(postmaster::processes(&node.postgres_data()), []);
        node.start()?;
    }
    cluster.wait_ready().await?;
    cluster.converge().await?;
    for node in cluster.nodes() {
        assert_eq!(count(&node.connect().await?).await?, 1);
    }
    cluster.stop().await
}

/// Goal: every line that a node logs names its region and node, whichever thread logs it, and also when it is about
/// the node's server.
#[tokio::test]
async fn each_line_of_the_log_says_whose_it_is() -> Result<()> {
    let cluster = cluster().await?;
    cluster.connect(0).await?.batch_execute("create table t (id int primary key)").await?;
    cluster.converge().await?;
    cluster.stop().await?;
    for node in cluster.nodes() {
        let (log, whose) = (node.log_tail(1000), format!(" region={} node={}", node.region(), node.id()));
        let others: Vec<&str> = log.lines().filter(|line| !line.contains(&whose)).collect();
        assert!(others.is_empty(), "lines without{whose}: {others:#?}");
        for part in ["core_thread", "agent", "transport", "transport::link", "postgres::supervisor", "node"] {
            assert!(log.contains(&format!(" INFO onetrip_node::{part}: ")), "{part} logs nothing: {log}");
        }
    }
    Ok(())
}

/// Goal: a data folder that PostgreSQL cannot start on takes the region's rows away, not its vote.
/// Method: without this vote there is no majority.
#[tokio::test]
async fn a_damaged_data_folder_leaves_the_vote() -> Result<()> {
    let cluster = cluster().await?;
    let writer = cluster.connect(0).await?;
    writer.batch_execute("create table t (id int primary key)").await?;
    cluster.converge().await?;
    let node = cluster.node(1);
    node.stop().await?;
    let control = node.postgres_data().join("global/pg_control");
    let whole = std::fs::read(&control)?;
    let mut flipped = whole.clone();
    flipped[100] ^= 1;
    for (damaged, shown) in [(&whole[..100], "pg_control"), (&flipped, "incorrect checksum in control file")] {
        std::fs::write(&control, damaged)?;
        node.start()?;
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let status = node.status().await.unwrap_or_default();
            let problems = status["problems"].to_string();
            if !status["leader"].is_null() && problems.contains(shown) {
                break;
            }
            anyhow::ensure!(Instant::now() < deadline && node.running(), "{problems}: {}", node.log_tail(5));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        cluster.node(2).kill9()?;
        let commits = writer.batch_execute("insert into t values ((select count(*) from t))");
        tokio::time::timeout(Duration::from_secs(60), commits).await??;
        cluster.node(2).restart().await?;
        node.stop().await?;
    }
    std::fs::write(&control, whole)?;
    node.restart().await?;
    cluster.converge().await?;
    assert_eq!(count(&node.connect().await?).await?, 2);
    cluster.stop().await
}

/// Goal: a port that is in use already is reported in one line that names it.
#[tokio::test]
async fn a_port_in_use_is_said_in_one_line() -> Result<()> {
    let cluster = Cluster::builder().binary(env!("CARGO_BIN_EXE_onetrip-lab")).copied_servers(true).init().await?;
    let node = cluster.node(0);
    let _holder = TcpListener::bind(("127.0.0.1", node.postgres_port()))?;
    node.start()?;
    let status = node.wait_ended(Duration::from_secs(30)).await?;
    assert_eq!(status.code(), Some(1));
    let last = node.log_tail(1);
    let port = node.postgres_port().to_string();
    assert!(last.starts_with("onetrip: ") && last.contains(&port) && last.contains("in use"), "{last}");
    Ok(())
}

/// Goal: what its owner has set leaves a region's server neither without its position in the log, which would have its
/// data folder replaced, nor without its workers, and does not make it another region's.
#[tokio::test]
async fn settings_that_a_server_cannot_serve_with_do_not_count() -> Result<()> {
    let cluster = cluster().await?;
    let writer = cluster.connect(0).await?;
    writer.batch_execute("create table t (id int primary key); create table here (id int) using heap").await?;
    cluster.converge().await?;
    let node = cluster.node(1);
    node.connect().await?.batch_execute("insert into here values (1)").await?;
    let settings = [
        ("max_replication_slots", "0"),
        ("max_worker_processes", "2"),
        ("max_wal_senders", "0"),
        ("wal_level", "minimal"),
        ("onetrip.sequence_slot", "0"),
        ("onetrip.node_id", "1"),
    ];
    node.add_postgres_settings(&settings.map(|(name, value)| (name.to_string(), value.to_string())))?;
    let killed = node.postgres_pid().context("it runs")?;
    node.kill9_postgres()?;
    writer.batch_execute("insert into t values (1)").await?;
    let again = wait_server(node, |pid| pid != killed).await?;
    cluster.converge().await?;
    assert_eq!(count(&again).await?, 1);
    let query =
        "select count(*) || ' ' || current_setting('onetrip.sequence_slot') || ' ' || current_setting('wal_level') \
                 from here";
    assert_eq!(again.query_one(query, &[]).await?.get::<_, String>(0), "1 1 replica");
    cluster.stop().await
}

/// Goal: a server that has lost its position in the log is copied from another region's, and what it alone had is kept.
#[tokio::test]
async fn a_server_that_has_lost_its_position_is_kept() -> Result<()> {
    let cluster = cluster().await?;
    let writer = cluster.connect(0).await?;
    writer.batch_execute("create table t (id int primary key); create table here (id int) using heap").await?;
    cluster.converge().await?;
    let node = cluster.node(1);
    node.connect().await?.batch_execute("insert into here values (1)").await?;
    for donor in [0, 2] {
        let create = "create subscription s connection 'port=1' publication p with (connect = false, slot_name = s)";
        let local = local_database(cluster.node(donor)).await?;
        local.batch_execute(create).await?;
        local.batch_execute("alter subscription s enable").await?;
    }
    // All of it is safe there, so the node does not keep what it would have to be fed again.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let status = node.status().await?;
        if status["durable"].as_u64() >= status["last_committed"].as_u64() {
            break;
        }
        anyhow::ensure!(Instant::now() < deadline, "not all is safe on disk: {status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let lose = "select pg_replication_origin_drop('onetrip'), pg_replication_origin_create('onetrip')";
    node.connect().await?.batch_execute(lose).await?;
    node.kill9_postgres()?;
    let kept = node.folder().join("postgres.kept/PG_VERSION");
    while !kept.is_file() {
        anyhow::ensure!(Instant::now() < deadline, "{}", node.log_tail(5));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(node.log_tail(1000).contains("below what it had safe on disk before"), "{}", node.log_tail(20));
    writer.batch_execute("insert into t values (1)").await?;
    let again = wait_server(node, |_| true).await?;
    cluster.converge().await?;
    assert_eq!(count(&again).await?, 1);
    // It would take turns with the donor's at the publisher.
    for (region, enabled) in [true, false, true].into_iter().enumerate() {
        let row = local_database(cluster.node(region))
            .await?
            .query_one("select subenabled from pg_subscription", &[])
            .await?;
        assert_eq!(row.get::<_, bool>(0), enabled, "region {region}");
    }
    nobody_elses_server_is_the_nodes(&cluster, node).await?;
    cluster.stop().await
}

/// A server on what is kept, or on another copy of the node's folder, has that node's settings, and is not its server.
async fn nobody_elses_server_is_the_nodes(cluster: &Cluster, node: &Node) -> Result<()> {
    let (kept, copy) = (node.folder().join("postgres.kept"), node.folder().join("copied"));
    node.stop().await?;
    let copied = std::process::Command::new("cp").arg("-a").args([&node.postgres_data(), &copy]).status()?;
    anyhow::ensure!(copied.success(), "cp failed");
    node.restart().await?;
    cluster.converge().await?;
    let server = node.postgres_pid();
    let client = node.connect().await?;
    for folder in [&copy, &kept] {
        let port = free_ports(1)?[0].to_string();
        let mut other = as_server_user("postgres")?.arg("-D").arg(folder).args(["-p", &port]).spawn()?;
        let refused = format!("refused an agent of a server in {}, ", folder.display());
        let is_told = || node.log_tail(usize::MAX).contains(&refused);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_told() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // A server that is taken for the node's ends what the sessions of the real one want to commit.
        let goes_on = client.batch_execute("insert into t select max(id) + 1 from t").await;
        postmaster::stop_now(folder, Duration::from_secs(20)).map_err(anyhow::Error::msg)?;
        other.wait()?;
        goes_on?;
        assert!(is_told(), "{}", node.log_tail(20));
        assert_eq!(node.postgres_pid(), server);
    }
    cluster.converge().await?;
    // As docs/operations.md has it.
    let port = free_ports(1)?[0];
    let settings = [
        "shared_preload_libraries=",
        "max_logical_replication_workers=0",
        "archive_mode=off",
        "synchronous_standby_names=",
        "logging_collector=off",
    ];
    let mut kept_server = as_server_user("postgres")?
        .arg("-D")
        .arg(&kept)
        .args(["-p", &port.to_string()])
        .args(settings.iter().flat_map(|setting| ["-c", setting]))
        .spawn()?;
    let (deadline, conninfo) = (Instant::now() + Duration::from_secs(60), conninfo_at(node, port));
    let client = loop {
        match onetrip_lab::plain::connect(&conninfo).await {
            Err(_) if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(50)).await,
            connected => break connected,
        }
    };
    let here = async { anyhow::Ok(client?.query_one("select count(*) from here", &[]).await?.get::<_, i64>(0)) }.await;
    postmaster::stop_now(&kept, Duration::from_secs(20)).map_err(anyhow::Error::msg)?;
    kept_server.wait()?;
    assert_eq!(here?, 1);
    Ok(())
}

fn conninfo_at(node: &Node, port: u16) -> String {
    node.conninfo().replace(&format!("port={}", node.postgres_port()), &format!("port={port}"))
}

async fn local_database(node: &Node) -> Result<tokio_postgres::Client> {
    onetrip_lab::plain::connect(&node.conninfo().replace("dbname=onetrip", "dbname=postgres")).await
}

/// Goal: a region whose database takes no connections applies what the others commit, also after a restart.
#[tokio::test]
async fn a_database_that_takes_no_connections_goes_on() -> Result<()> {
    let cluster = cluster().await?;
    let writer = cluster.connect(0).await?;
    writer.batch_execute("create table t (id int primary key)").await?;
    cluster.converge().await?;
    let node = cluster.node(1);
    let allow = async |allow: bool| {
        let statement = format!("alter database onetrip allow_connections {allow}");
        local_database(node).await?.batch_execute(&statement).await.context("ALTER DATABASE")
    };
    allow(false).await?;
    let killed = node.postgres_pid().context("it runs")?;
    node.kill9_postgres()?;
    writer.batch_execute("insert into t values (1)").await?;
    let committed = cluster.node(0).status().await?["last_committed"].as_u64();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let status = node.status().await?;
        let is_ready = node.postgres_pid().is_some_and(|pid| pid != killed) && status["postgres"]["state"] == "ready";
        if is_ready && status["applied"].as_u64() >= committed {
            break;
        }
        anyhow::ensure!(Instant::now() < deadline, "it does not go on: {}", node.postgres_log_tail(5));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    allow(true).await?;
    assert_eq!(count(&node.connect().await?).await?, 1);
    cluster.stop().await
}
