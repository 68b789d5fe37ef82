//! What Onetrip's software costs beside plain PostgreSQL on the same machine, in one run.
//!
//! Two questions, each answered by a table (Markdown, so that it can be kept in docs/measurements/):
//! 1. Throughput without any distance: 8 clients update random rows, on plain PostgreSQL with synchronous_commit=on, and in one
//!    region of three that all run on this machine.  The three PostgreSQLs and three nodes share its cores with the
//!    clients, so the ratio is a floor for what machines of their own would show.
//! 2. 100,000 rows in one statement: from plain PostgreSQL, and in the leader's region with the distances of topologies/us.toml, where
//!    each is one crossing.
//!
//! `cargo bench -p onetrip-lab` (or `make bench`); `-- --seconds 10` sets the length of each throughput measurement.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::{Pid, User};
use onetrip_lab::limit::majority_rtt_ms;
use onetrip_lab::pgbench::{Measurement, Pgbench};
use onetrip_lab::ports::free_ports;
use onetrip_lab::{Cluster, Topology};
use std::os::unix::process::CommandExt;

const CLIENTS: usize = 8;
const UPDATE: &str = "\\set id random(1, 1000)\n\\set new_value random(1, 1000000)\n\
                      update demo set value = :new_value where id = :id;\n";
const TABLE: &str = "create table demo (id int primary key, value int);
                     insert into demo select i, i from generate_series(1, 1000) i";
/// Runs of each statement; the median is reported.
const RUNS: usize = 3;

struct Statement {
    name: &'static str,
    before: &'static str,
    run: &'static str,
}

const STATEMENTS: [Statement; 3] = [
    Statement {
        name: "insert ... select",
        before: "create table big (id int primary key, value text)",
        run: "insert into big select i, 'value ' || i from generate_series(1, 100000) i",
    },
    Statement {
        name: "insert ... select, on conflict do nothing",
        before: "create table big (id int primary key, value text)",
        run: "insert into big select i, 'value ' || i from generate_series(1, 100000) i on conflict do nothing",
    },
    Statement {
        name: "insert ... select, with a row trigger in PL/pgSQL",
        before: "create table big (id int primary key, value text);
                 create or replace function stamp() returns trigger language plpgsql as
                     $$ begin new.value := new.value || '!'; return new; end $$;
                 create trigger stamp before insert on big for each row execute function stamp()",
        run: "insert into big select i, 'value ' || i from generate_series(1, 100000) i",
    },
];

/// A server with nothing of ours in it, in a folder that goes with it.
struct PlainPostgres {
    /// Removed when the server is.
    _folder: tempfile::TempDir,
    port: u16,
    child: Child,
}

fn as_server_user(program: &str) -> Result<Command> {
    let mut command = Command::new(onetrip_lab::postgres_bin().join(program));
    if nix::unistd::geteuid().is_root() {
        let user = User::from_name("postgres")?.context("find the user postgres")?;
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw()).current_dir("/");
    }
    Ok(command)
}

impl PlainPostgres {
    async fn start() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("onetrip-bench-").tempdir_in("/var/tmp")?;
        if let Some(user) = User::from_name("postgres")?.filter(|_| nix::unistd::geteuid().is_root()) {
            nix::unistd::chown(folder.path(), Some(user.uid), Some(user.gid))?;
        }
        let data = folder.path().join("data");
        let made = as_server_user("initdb")?
            .args(["-U", "postgres", "--encoding=UTF8", "--locale=C.UTF-8", "--auth=trust", "-D"])
            .arg(&data)
            .stdout(Stdio::null())
            .status()?;
        ensure!(made.success(), "initdb failed");
        let port = free_ports(1)?[0];
        let child = as_server_user("postgres")?
            .arg("-D")
            .arg(&data)
            .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"])
            .arg(format!("-cunix_socket_directories={}", folder.path().display()))
            .args(["-c", "max_connections=200", "-c", "shared_buffers=128MB", "-c", "synchronous_commit=on"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let server = PlainPostgres { _folder: folder, port, child };
        let deadline = Instant::now() + Duration::from_secs(30);
        while server.connect().await.is_err() {
            ensure!(Instant::now() < deadline, "plain PostgreSQL did not start");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(server)
    }

    async fn connect(&self) -> Result<tokio_postgres::Client> {
        connect(&format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.port)).await
    }
}

impl Drop for PlainPostgres {
    fn drop(&mut self) {
        // The folder goes after this, so an error has nobody left to tell.
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGQUIT);
        let _ = self.child.wait();
    }
}

async fn connect(conninfo: &str) -> Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(conninfo, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn update_workload(port: u16, database: &str, seconds: u64, folder: &Path) -> Result<Measurement> {
    std::fs::create_dir_all(folder)?;
    let pgbench = Pgbench {
        program: onetrip_lab::postgres_bin().join("pgbench"),
        host: "127.0.0.1".into(),
        port,
        user: "postgres".into(),
        database: database.into(),
        clients: CLIENTS,
        threads: 2,
        seconds,
        script: Some(UPDATE.into()),
        folder: folder.to_owned(),
    };
    pgbench.run().await
}

fn print_throughput(name: &str, m: &Measurement, plain: &Measurement) {
    println!(
        "| {name} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} % | {:.2} |",
        m.tps,
        m.mean_ms,
        m.p99_ms,
        m.p999_ms,
        m.failed_percent,
        m.tps / plain.tps
    );
}

async fn throughput(binary: &Path, seconds: u64) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let plain = PlainPostgres::start().await?;
    plain.connect().await?.batch_execute(TABLE).await?;
    // Before and after the others, since a shared machine changes its speed.
    let first = update_workload(plain.port, "postgres", seconds, &scratch.path().join("plain-1")).await?;

    let topology = Topology::load(&repository().join("topologies/flat.toml"))?;
    let cluster = Cluster::builder().topology(topology).binary(binary).start().await?;
    let leader = cluster.settled().await?;
    cluster.connect(leader).await?.batch_execute(TABLE).await?;
    cluster.converge().await?;
    let follower = (leader + 1) % cluster.nodes().len();
    let mut measured = Vec::new();
    for (name, node) in [("leader's region", leader), ("another region", follower)] {
        let port = cluster.node(node).postgres_port();
        let m = update_workload(port, "onetrip", seconds, &scratch.path().join(name)).await?;
        cluster.converge().await?;
        measured.push((name, m));
    }
    cluster.stop().await?;
    let second = update_workload(plain.port, "postgres", seconds, &scratch.path().join("plain-2")).await?;

    println!("\n### {CLIENTS} clients, one-row updates of 1,000 rows, no distance, {seconds} s each\n");
    println!("Onetrip runs with two other regions on the same machine.\n");
    println!("| | tps | mean ms | p99 ms | p99.9 ms | failed | tps / plain |\n|---|---|---|---|---|---|---|");
    print_throughput("plain PostgreSQL, synchronous_commit=on", &first, &first);
    for (name, m) in &measured {
        print_throughput(&format!("Onetrip, {name}"), m, &first);
    }
    print_throughput("plain PostgreSQL again", &second, &first);
    Ok(())
}

async fn time_statement(client: &tokio_postgres::Client, statement: &Statement) -> Result<(Duration, Option<i64>)> {
    let mut times = Vec::new();
    let mut crossings = None;
    for _ in 0..RUNS {
        client.batch_execute(statement.before).await?;
        let proposals = proposals(client).await?;
        let start = Instant::now();
        client.batch_execute(statement.run).await.with_context(|| statement.name)?;
        times.push(start.elapsed());
        crossings = match (proposals, self::proposals(client).await?) {
            (Some(before), Some(after)) => Some(after - before),
            _ => None,
        };
        client.batch_execute("drop table big").await?;
    }
    times.sort();
    Ok((times[RUNS / 2], crossings))
}

/// How many entries this server has proposed; `None` on plain PostgreSQL.
async fn proposals(client: &tokio_postgres::Client) -> Result<Option<i64>> {
    let known = client.query_one("select to_regclass('onetrip.status') is not null", &[]).await?.get::<_, bool>(0);
    if !known {
        return Ok(None);
    }
    Ok(Some(client.query_one("select proposals from onetrip.status", &[]).await?.get(0)))
}

async fn many_rows(binary: &Path) -> Result<()> {
    let plain = PlainPostgres::start().await?;
    let plain_client = plain.connect().await?;
    let topology = Topology::load(&repository().join("topologies/us.toml"))?;
    let cluster = Cluster::builder().topology(topology).binary(binary).start().await?;
    let leader = cluster.settled().await?;
    let round_trip = majority_rtt_ms(cluster.topology(), leader);
    let client = cluster.connect(leader).await?;

    println!("\n### 100,000 rows in one statement, median of {RUNS}; Onetrip's regions {round_trip} ms apart\n");
    println!("| | plain PostgreSQL ms | Onetrip ms | ratio | crossings |\n|---|---|---|---|---|");
    for statement in &STATEMENTS {
        let (plain_time, _) = time_statement(&plain_client, statement).await?;
        let (time, crossings) = time_statement(&client, statement).await?;
        cluster.converge().await?;
        println!(
            "| {} | {:.0} | {:.0} | {:.2} | {} |",
            statement.name,
            plain_time.as_secs_f64() * 1e3,
            time.as_secs_f64() * 1e3,
            time.as_secs_f64() / plain_time.as_secs_f64(),
            crossings.map_or("?".into(), |n| n.to_string())
        );
    }
    cluster.stop().await
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let seconds = match args.iter().position(|a| a == "--seconds") {
        Some(at) => args.get(at + 1).context("--seconds takes a number")?.parse().context("read --seconds")?,
        None => 10,
    };
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_onetrip-lab"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        throughput(&binary, seconds).await?;
        many_rows(&binary).await
    })
}
