//! The command as it is shipped: it works, and it contains nothing that only tests need.  Everything else is tested
//! with `onetrip-lab`, the same command built with the feature `lab` (`crates/lab/tests`).

mod backups;
mod encrypted;
mod made;
mod terminal;

use std::io::BufRead;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use anyhow::{bail, ensure, Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use onetrip_node::config::NodeConfig;
use onetrip_node::tls::Authority;

const REGIONS: [&str; 3] = ["a", "b", "c"];
const SOON: Duration = Duration::from_secs(90);
/// That a process of the server is the first to be killed when memory runs out, and the postmaster is not.
const OOM_ADJUST: &str = "1000";

/// A folder that the servers' user can reach; it is removed at the end.
fn folder() -> Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("onetrip-product-test-").tempdir_in("/var/tmp")?;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    Ok(folder)
}

fn onetrip(args: &[&str], data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onetrip"));
    command.args(args).arg("--data").arg(data).stdin(Stdio::null());
    command
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + SOON;
    while !done()? {
        if Instant::now() >= deadline {
            bail!("{what}: not within {} s", SOON.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A region's node; if the test ends early, node and PostgreSQL end too.
struct Node(Child);

impl Node {
    fn start(data: &Path, log_format: &str) -> Result<Node> {
        let log = std::fs::File::create(data.join("node.log"))?;
        // The node stops when its standard input closes, so it does not outlive this test.
        let mut command = onetrip(&["start", "--until-stdin-closes", "--log-format", log_format], data);
        command.envs([("PG_OOM_ADJUST_FILE", "/proc/self/oom_score_adj"), ("PG_OOM_ADJUST_VALUE", OOM_ADJUST)]);
        let node = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn()?;
        std::fs::write(data.join("node.pid"), node.id().to_string())?;
        Ok(Node(node))
    }

    fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.0.id())?), Signal::SIGTERM)?;
        let mut status = None;
        until("the node ends", || {
            status = self.0.try_wait()?;
            Ok(status.is_some())
        })?;
        ensure!(status.is_some_and(|s| s.success()), "it ended with {status:?}");
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let deadline = Instant::now() + SOON;
        while matches!(self.0.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                let _ = self.0.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Through the socket, as the superuser.
async fn connect(node: &NodeConfig) -> Result<tokio_postgres::Client> {
    connect_as(node, &node.data_dir.display().to_string(), "postgres", "").await
}

async fn connect_as(node: &NodeConfig, host: &str, user: &str, password: &str) -> Result<tokio_postgres::Client> {
    let postgres = node.postgres.as_ref().context("it has a PostgreSQL")?;
    let (port, database) = (postgres.port, &postgres.database);
    let conninfo = format!("host={host} port={port} user={user} dbname={database} password='{password}'");
    let (client, connection) = tokio_postgres::connect(&conninfo, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Goal: three regions that the command makes and starts, with certificates, accept transactions and are equal.
#[tokio::test(flavor = "multi_thread")]
async fn three_regions_serve() -> Result<()> {
    let folder = folder()?;
    let (data, topology) = (folder.path().join("nodes"), folder.path().join("topology.toml"));
    std::fs::write(&topology, REGIONS.map(|name| format!("[[region]]\nname = \"{name}\"\n")).concat())?;
    let password = folder.path().join("password");
    std::fs::write(&password, format!("{PASSWORD}\nnot this\n"))?;
    let mut init = onetrip(&["init"], &data);
    // The lab's command would want this folder.
    init.env("ONETRIP_LAB_TEMPLATE", "/nonexistent");
    let made = init.arg("--topology").arg(&topology).arg("--password-file").arg(&password).output()?;
    ensure!(made.status.success(), "{}", told(&made));
    let socket = format!("psql -h {} -p ", data.join("a").display());
    ensure!(told(&made).contains(&socket) && told(&made).contains("or with the password"), "{}", told(&made));
    let folders: Vec<PathBuf> = REGIONS.map(|name| data.join(name)).to_vec();
    let nodes = folders
        .iter()
        .zip(["text", "json", "text"])
        .map(|(folder, log)| Node::start(folder, log))
        .collect::<Result<Vec<_>>>()?;
    until("all is well", || Ok(onetrip(&["status"], &data).output()?.status.success()))?;
    for (id, folder) in folders.iter().enumerate() {
        let client = connect(&NodeConfig::load(folder)?).await?;
        match id {
            0 => client.batch_execute("create table t (id int primary key)").await?,
            _ => until_shown(&client).await?,
        }
        client.execute("insert into t select $1", &[&(id as i32)]).await?;
    }
    let check = onetrip(&["check"], &data).output()?;
    ensure!(check.status.success() && told(&check).contains("equal"), "{}", told(&check));
    sessions_go_first(&folders[0]).await?;
    who_is_let_in(&folders).await?;
    a_region_joins(&data, &folders[0]).await?;
    settings_are_read_again(&folders[0]).await?;
    one_node_tells_of_all(&folders[1])?;
    nobody_reads(&data, &folders[0])?;
    for node in nodes {
        node.stop()?;
    }
    lines_are_json(&folders[1].join("node.log"), "b")
}

/// Goal: what the unit says of want of memory (`packaging/onetrip@.service.in`) reaches PostgreSQL.
async fn sessions_go_first(folder: &Path) -> Result<()> {
    let session = connect(&NodeConfig::load(folder)?).await?;
    let pid: i32 = session.query_one("select pg_backend_pid()", &[]).await?.get(0);
    let of = |pid: &str| Ok::<_, anyhow::Error>(std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?);
    assert_eq!(of(&pid.to_string())?.trim(), OOM_ADJUST);
    let pid = std::fs::read_to_string(folder.join("postgres/postmaster.pid"))?;
    assert_eq!(of(pid.lines().next().context("a pid")?)?, of("self")?);
    Ok(())
}

const PASSWORD: &str = "pass wörd";

/// Goal: nobody connects over TCP without the role's password, which is the same in all regions, nor through the socket
/// as somebody else; what is asked is encrypted if the client wants that; and the node itself comes in.
async fn who_is_let_in(folders: &[PathBuf]) -> Result<()> {
    let nodes = folders.iter().map(|folder| NodeConfig::load(folder)).collect::<Result<Vec<_>, _>>()?;
    let refused = |answer: Result<tokio_postgres::Client>, code: &str| -> Result<()> {
        let Err(e) = answer else { bail!("it is let in") };
        ensure!(format!("{e:?}").contains(code), "{e:?}");
        Ok(())
    };
    let first = connect(&nodes[0]).await?;
    first.batch_execute("create role app login password 'of app'").await?;
    for node in &nodes {
        connect_as(node, "127.0.0.1", "postgres", PASSWORD).await?;
        let deadline = Instant::now() + SOON;
        while let Err(e) = connect_as(node, "127.0.0.1", "app", "of app").await {
            ensure!(Instant::now() < deadline, "{e:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        refused(connect_as(node, "127.0.0.1", "app", "wrong").await, "password authentication failed")?;
        refused(connect_as(node, "127.0.0.1", "postgres", "").await, "assword")?;
        refused(
            connect_as(node, &node.data_dir.display().to_string(), "app", "of app").await,
            "Peer authentication failed",
        )?;
        let port = node.postgres.as_ref().context("it has one")?.port;
        let psql = |verify: &str, password: &str| {
            let authority = node.data_dir.join("tls/ca.crt");
            let text = std::fs::read(&authority)?;
            let copy = std::env::temp_dir().join(format!("onetrip-product-{}-ca.crt", std::process::id()));
            std::fs::write(&copy, text)?;
            let mut psql = Command::new(node.postgres.as_ref().context("it has one")?.bin_dir.join("psql"));
            psql.arg(format!(
                "host=127.0.0.1 port={port} user=app dbname=onetrip {verify} sslrootcert={}",
                copy.display()
            ));
            psql.args(["-XAtc", "select version from pg_stat_ssl where pid = pg_backend_pid()"]);
            let said = psql.env("PGPASSWORD", password).output()?;
            std::fs::remove_file(&copy)?;
            Ok::<_, anyhow::Error>(told(&said))
        };
        assert_eq!(psql("sslmode=verify-ca", "of app")?, "TLSv1.3\n");
        assert_eq!(psql("sslmode=verify-full", "of app")?, "TLSv1.3\n");
        ensure!(
            psql("sslmode=verify-full host=localhost", "of app")?.contains("does not match host name"),
            "verify-full"
        );
        // A session of the node's own, through the socket.
        let counted = || -> Result<bool> {
            let said = onetrip(&["status", "--json"], &node.data_dir).output()?;
            Ok(told(&said).contains("\"applied_entries\""))
        };
        until("the node asks its server", counted)?;
    }
    Ok(())
}

/// Goal: a new region copies a server that asks for passwords, and asks for the same ones.
async fn a_region_joins(data: &Path, of: &Path) -> Result<()> {
    let token = onetrip(&["token"], of).output()?;
    ensure!(token.status.success(), "{}", told(&token));
    let secret = String::from_utf8(token.stdout.clone())?;
    ensure!(told(&token).matches(secret.trim()).count() == 1, "the secret is shown twice: {}", told(&token));
    let folder = data.join("d");
    let from = NodeConfig::load(of)?.listen.to_string();
    let log = std::fs::File::create(data.join("d.log"))?;
    let mut join = onetrip(&["join", "--from", &from, "--region", "d", "--until-stdin-closes"], &folder);
    let token = String::from_utf8(token.stdout)?.trim().to_string();
    join.env("ONETRIP_TOKEN", &token);
    let node = Node(join.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn()?);
    until("the region has joined", || Ok(onetrip(&["status"], &folder).output()?.status.success()))?;
    let config = NodeConfig::load(&folder)?;
    connect_as(&config, "127.0.0.1", "postgres", PASSWORD).await?;
    connect(&config).await?;
    ensure!(connect_as(&config, "127.0.0.1", "postgres", "").await.is_err(), "it is let in without a password");
    // The folders above it are missing, and whoever calls may be root.
    let backup = data.join("backups/d");
    let made = onetrip(&["backup"], &folder).arg("--to").arg(&backup).output()?;
    ensure!(made.status.success(), "{}", told(&made));
    assert_eq!(std::fs::metadata(&backup)?.mode() & 0o777, 0o700);
    let check = onetrip(&["check"], data).output()?;
    ensure!(check.status.success() && told(&check).contains("equal"), "{}", told(&check));
    let (first, joined) = (connect(&NodeConfig::load(of)?).await?, connect(&config).await?);
    first.batch_execute("begin; insert into t values (-1); prepare transaction 'half done'").await?;
    let deadline = Instant::now() + SOON;
    while joined.query("select from onetrip.prepared_xacts", &[]).await?.is_empty() {
        ensure!(Instant::now() < deadline, "it does not come to know of what is prepared");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let left = onetrip(&["leave"], of).args(["--node", "d"]).output()?;
    ensure!(left.status.success(), "{}", told(&left));
    // What starts nodes again knows by the exit code that this one is none any more; so at each start.
    let mut node = node;
    let mut ended = None;
    until("the node that left ends", || {
        ended = node.0.try_wait()?;
        Ok(ended.is_some())
    })?;
    assert_eq!(ended.and_then(|status| status.code()), Some(3));
    let again = onetrip(&["start"], &folder).output()?;
    ensure!(again.status.code() == Some(3), "{:?}: {}", again.status, told(&again));
    // What is prepared is the cluster's, and this server would not have it.
    let plain = data.join("plain");
    let released = onetrip(&["release"], &folder).arg("--to").arg(&plain).output()?;
    ensure!(
        told(&released).contains("are prepared") && told(&released).contains("'half done';"),
        "{}",
        told(&released)
    );
    ensure!(folder.join("node.toml").exists() && !plain.exists(), "something was changed");
    let released = onetrip(&["release", "--drop-prepared"], &folder).arg("--to").arg(&plain).output()?;
    ensure!(released.status.success() && plain.join("PG_VERSION").exists(), "{}", told(&released));
    first.batch_execute("rollback prepared 'half done'").await?;
    std::fs::remove_dir_all(&plain)?;
    // Its log is not taken for that of a new node.
    let again = onetrip(&["join", "--from", &from, "--region", "d"], &folder).env("ONETRIP_TOKEN", &token).output()?;
    ensure!(told(&again).contains("contains log, which another node has left"), "{}", told(&again));
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// The status that the HTTP port answers with, to a request with this header.
async fn asked_for(config: &NodeConfig, header: &str) -> Result<String> {
    let mut stream = tokio::net::TcpStream::connect(config.http).await?;
    stream.write_all(format!("GET /status HTTP/1.0\r\n{header}\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.split_whitespace().nth(1).context("a status")?.to_string())
}

/// Goal: SIGHUP has the node use a new certificate for peers and in PostgreSQL, `pg_hba.conf` as it is now, other
/// bounds of `node.toml` and a new token of the HTTP port; the log names these, and what takes a restart.
async fn settings_are_read_again(folder: &Path) -> Result<()> {
    let (config, log) = (NodeConfig::load(folder)?, folder.join("node.log"));
    let said = |text: &str| -> Result<bool> { Ok(std::fs::read_to_string(&log)?.contains(text)) };
    let file = folder.join("node.toml");
    let before = std::fs::read_to_string(&file)?;
    std::fs::write(
        &file,
        before
            .replace("log_bytes_max = ", "log_bytes_max = 1")
            .replace("[postgres]", "[memory]\nto_server_bytes = 16777216\n[postgres]\nread_only = true"),
    )?;
    let (token, shown) = (folder.join("http.token"), "0123456789abcdef0123456789abcdef");
    std::fs::write(&token, shown)?;
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600))?;
    // The node does not run as root.
    let owner = std::fs::metadata(folder)?;
    std::os::unix::fs::chown(&token, Some(owner.uid()), Some(owner.gid()))?;
    assert_eq!(asked_for(&config, "X: y").await?, "200", "no token yet");
    let renewed = onetrip(&["certificate"], folder).output()?;
    ensure!(renewed.status.success(), "{}", told(&renewed));
    let hba = folder.join("postgres/pg_hba.conf");
    let rules = std::fs::read_to_string(&hba)?;
    std::fs::write(&hba, format!("host all app 127.0.0.1/32 reject\n{rules}"))?;
    let pid = std::fs::read_to_string(folder.join("node.pid"))?.trim().parse()?;
    kill(Pid::from_raw(pid), Signal::SIGHUP)?;
    until("it has read them", || said("told PostgreSQL to read its settings again"))?;
    for text in ["the node uses: log_bytes_max, memory.to_server_bytes", "restart the node to use: postgres.read_only"]
    {
        ensure!(said(text)?, "{}", std::fs::read_to_string(&log)?);
    }
    assert_eq!(asked_for(&config, "X: y").await?, "401");
    assert_eq!(asked_for(&config, &format!("Authorization: Bearer {shown}")).await?, "200");
    ensure!(said("new connections use the certificates in tls/")?);
    let deadline = Instant::now() + SOON;
    while connect_as(&config, "127.0.0.1", "app", "of app").await.is_ok() {
        ensure!(Instant::now() < deadline, "the rule has no effect");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // What is shown to clients now.
    let port = config.postgres.as_ref().context("it has one")?.port.to_string();
    let shown = Command::new("openssl")
        .args(["s_client", "-starttls", "postgres", "-connect", &format!("127.0.0.1:{port}")])
        .stdin(Stdio::null())
        .output()?;
    let node = std::fs::read_to_string(folder.join("tls/node.crt"))?;
    let line = node.lines().nth(3).context("a certificate")?;
    ensure!(told(&shown).contains(line), "PostgreSQL shows another certificate: {}", told(&shown));
    // A file that is wrong changes nothing.
    std::fs::write(&file, "nonsense")?;
    kill(Pid::from_raw(pid), Signal::SIGHUP)?;
    until("it says so", || said("this node would not start with it"))?;
    assert_eq!(asked_for(&config, "X: y").await?, "401", "the token holds on");
    std::fs::write(&file, before)?;
    std::fs::write(&hba, rules)?;
    std::fs::remove_file(&token)?;
    kill(Pid::from_raw(pid), Signal::SIGHUP)?;
    until("it is as it was", || {
        let log = std::fs::read_to_string(&log)?;
        Ok(log.matches("the node uses: log_bytes_max, memory.to_server_bytes").count() == 2)
    })?;
    assert_eq!(asked_for(&config, "X: y").await?, "200", "no token any more");
    kill(Pid::from_raw(pid), Signal::SIGHUP)?;
    until("nothing has changed", || said("node.toml is as it was"))?;
    another_authority_is_not_read(folder, pid, said)?;
    until("all is well", || Ok(onetrip(&["status"], folder).output()?.status.success()))
}

/// Goal: a node that runs does not begin to show a certificate that all others refuse.
fn another_authority_is_not_read(folder: &Path, pid: i32, said: impl Fn(&str) -> Result<bool>) -> Result<()> {
    let names = ["ca.crt", "ca.key", "node.crt", "node.key"].map(|name| folder.join("tls").join(name));
    let before = names.each_ref().map(std::fs::read);
    let other = folder.join("other-authority");
    let made = onetrip(&["certificate"], folder).arg("--new-authority").arg(&other).output()?;
    ensure!(made.status.success() && told(&made).contains("once all others have"), "{}", told(&made));
    kill(Pid::from_raw(pid), Signal::SIGHUP)?;
    until("it says why", || said("tls/ca.crt is another authority's now"))?;
    for (name, text) in names.iter().zip(before) {
        std::fs::write(name, text?)?;
    }
    std::fs::remove_dir_all(other)?;
    kill(Pid::from_raw(pid), Signal::SIGHUP)?;
    Ok(())
}

/// Goal: a cluster whose authority's key lies in no node's folder, but where the nodes' user cannot read it, lets a
/// region join with a token that lends the key, and renews a certificate with the folder that has it.
#[test]
fn a_region_joins_while_the_authority_is_elsewhere() -> Result<()> {
    let folder = folder()?;
    let (data, topology) = (folder.path().join("nodes"), folder.path().join("topology.toml"));
    // Where only the caller comes, who may be root.
    let closed = folder.path().join("closed");
    std::fs::create_dir(&closed)?;
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700))?;
    let [authority, other] = ["authority", "other"].map(|name| closed.join(name));
    std::fs::write(&topology, "[[region]]\nname = \"a\"\n")?;
    // Not the user that root becomes unless told otherwise; who is not root stays who he is.
    let mut init = onetrip(&["init", "--cluster", "c", "--user", "nobody"], &data);
    let made = init.arg("--topology").arg(&topology).arg("--authority").arg(&authority).output()?;
    ensure!(
        made.status.success() && told(&made).contains("no region can join from another machine"),
        "{}",
        told(&made)
    );
    assert_eq!(std::fs::metadata(authority.join("ca.key"))?.uid(), nix::unistd::geteuid().as_raw());
    let (a, b) = (data.join("a"), data.join("b"));
    ensure!(authority.join("ca.key").exists() && !a.join("tls/ca.key").exists() && a.join("tls/ca.crt").exists());
    let first = Node::start(&a, "text")?;
    until("all is well", || Ok(onetrip(&["status"], &a).output()?.status.success()))?;
    let token = |authority: Option<&Path>| -> Result<(Option<String>, String)> {
        let mut command = onetrip(&["token"], &a);
        let made = command.args(authority.into_iter().flat_map(|dir| [Path::new("--authority"), dir])).output()?;
        let token = String::from_utf8_lossy(&made.stdout).trim().to_string();
        Ok((made.status.success().then_some(token), told(&made)))
    };
    let from = NodeConfig::load(&a)?.listen.to_string();
    let join = |token: Option<String>| -> Result<Command> {
        let join = ["join", "--from", &from, "--region", "b", "--user", "nobody", "--until-stdin-closes"];
        let mut join = onetrip(&join, &b);
        join.env("ONETRIP_TOKEN", token.context("a token")?);
        Ok(join)
    };
    let (without, said) = token(None)?;
    ensure!(said.contains("does not have the authority's key"), "{said}");
    let refused = join(without)?.output()?;
    ensure!(!refused.status.success() && told(&refused).contains("--authority DIR"), "{}", told(&refused));
    ensure!(token(Some(&authority.join("nothing")))?.0.is_none(), "no authority there");
    Authority::load_or_make(&other, "c")?;
    let (foreign, said) = token(Some(&other))?;
    ensure!(foreign.is_none() && said.contains("do not belong together"), "{said}");
    let (lent, said) = token(Some(&authority))?;
    ensure!(!said.contains("does not have"), "{said}");
    let log = std::fs::File::create(data.join("b.log"))?;
    let second = Node(join(lent)?.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn()?);
    until("the region has joined", || {
        let said = onetrip(&["status", "--json"], &b).output()?;
        let cluster: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
        let members = cluster["members"].as_array().cloned().unwrap_or_default();
        let long = |m: &serde_json::Value| m["report"]["authority"]["days_left"].as_i64().is_some_and(|d| d > 7_000);
        Ok(said.status.success() && members.len() == 2 && members.iter().all(long))
    })?;
    ensure!(!b.join("tls/ca.key").exists(), "the key was handed on");
    let renewed = onetrip(&["certificate"], &b).output()?;
    ensure!(!renewed.status.success() && told(&renewed).contains("--authority"), "{}", told(&renewed));
    let before = std::fs::read(b.join("tls/node.crt"))?;
    let renewed = onetrip(&["certificate"], &b).arg("--authority").arg(&authority).output()?;
    ensure!(renewed.status.success(), "{}", told(&renewed));
    ensure!(std::fs::read(b.join("tls/node.crt"))? != before && !b.join("tls/ca.key").exists());
    let files =
        || Ok::<_, anyhow::Error>([std::fs::read(b.join("tls/node.crt"))?, std::fs::read(b.join("tls/ca.crt"))?]);
    let before = files()?;
    let foreign = onetrip(&["certificate"], &b).arg("--authority").arg(&other).output()?;
    ensure!(!foreign.status.success() && told(&foreign).contains("nothing was changed"), "{}", told(&foreign));
    assert_eq!(files()?, before);
    second.stop()?;
    first.stop()
}

fn one_node_tells_of_all(folder: &Path) -> Result<()> {
    let said = onetrip(&["status", "--json"], folder).output()?;
    ensure!(said.status.success(), "{}", told(&said));
    let cluster: serde_json::Value = serde_json::from_slice(&said.stdout)?;
    let regions = cluster["members"].as_array().context("members")?.iter().filter(|m| m["heard"] == "now");
    let regions: Vec<_> = regions.filter_map(|m| m["region"].as_str()).collect();
    assert_eq!((regions.as_slice(), &cluster["schema"], &cluster["node"]), (&REGIONS[..], &1.into(), &2.into()));
    // It goes on until nobody reads it.
    let mut watch = onetrip(&["status", "--json", "--watch", "0.1"], folder).stdout(Stdio::piped()).spawn()?;
    let mut lines = std::io::BufReader::new(watch.stdout.take().context("its output")?).lines();
    for _ in 0..2 {
        let cluster: serde_json::Value = serde_json::from_str(&lines.next().context("a line")??)?;
        ensure!(cluster["members"].as_array().is_some_and(|m| m.len() == 3), "{cluster}");
    }
    drop(lines);
    until("the command ends", || Ok(watch.try_wait()?.is_some()))?;
    ensure!(watch.wait()?.success(), "{:?}", watch.wait()?);
    Ok(())
}

/// The exit code of a command whose output nobody reads, not even its errors.
fn unread(mut command: Command) -> Result<Option<i32>> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    drop((child.stdout.take(), child.stderr.take()));
    Ok(child.wait()?.code())
}

/// Goal: each command does what it was asked to do and ends as it would have, whoever stops reading.
fn nobody_reads(data: &Path, folder: &Path) -> Result<()> {
    let well: [&[&str]; 8] = [
        &["status"],
        &["status", "--json"],
        &["check"],
        &["check", "--json"],
        &["token"],
        &["leases", "--none"],
        &["leader", "--to", "auto"],
        &["certificate"],
    ];
    for command in well {
        // A comparison needs several nodes.
        let of = if command[0] == "check" { data } else { folder };
        let code = unread(onetrip(command, of))?;
        ensure!(code == Some(0), "{command:?} ended with {code:?}");
    }
    let backup = data.join("backup");
    let mut command = onetrip(&["backup"], folder);
    command.arg("--to").arg(&backup);
    let code = unread(command)?;
    ensure!(code == Some(0) && backup.join("manifest.json").is_file(), "backup ended with {code:?}");
    let refused: [&[&str]; 8] = [
        &["status"],
        &["check"],
        &["start"],
        &["leave"],
        &["skip", "1"],
        &["init", "--topology", "/nonexistent"],
        &["join", "--from", "127.0.0.1:1", "--region", "x"],
        &["restore", "--backup", "/nonexistent", "--region", "x"],
    ];
    for command in refused {
        let read = onetrip(command, &data.join("nowhere")).output()?.status.code();
        ensure!(matches!(read, Some(1 | 2)), "{command:?} ended with {read:?}");
        let code = unread(onetrip(command, &data.join("nowhere")))?;
        ensure!(code == read, "{command:?} ended with {code:?}");
    }
    for command in COMMANDS {
        let mut help = Command::new(env!("CARGO_BIN_EXE_onetrip"));
        help.args([command, "--help"]);
        let code = unread(help)?;
        ensure!(code == Some(0), "{command} --help ended with {code:?}");
    }
    Ok(())
}

const COMMANDS: [&str; 13] = [
    "init",
    "start",
    "status",
    "check",
    "backup",
    "restore",
    "token",
    "join",
    "leave",
    "leader",
    "leases",
    "skip",
    "certificate",
];

fn lines_are_json(log: &Path, region: &str) -> Result<()> {
    let text = std::fs::read_to_string(log)?;
    for line in text.lines() {
        let event: serde_json::Value = serde_json::from_str(line).with_context(|| line.to_string())?;
        ensure!(event["message"].is_string() && event["level"].is_string(), "{line}");
        ensure!(event["span"]["region"] == region && event["timestamp"].is_string(), "{line}");
    }
    ensure!(text.lines().any(|line| line.contains("node started")), "{text}");
    Ok(())
}

/// Goal: an `init` that was killed, however far it had come, leaves nothing that is in the way of the next.
#[test]
fn an_interrupted_init_is_not_in_the_way_of_the_next() -> Result<()> {
    let folder = folder()?;
    let (data, topology) = (folder.path().join("nodes"), folder.path().join("topology.toml"));
    std::fs::write(&topology, REGIONS.map(|name| format!("[[region]]\nname = \"{name}\"\n")).concat())?;
    let init = || {
        let mut command = onetrip(&["init"], &data);
        command.arg("--topology").arg(&topology);
        command
    };
    let kill_when = |there: &str| -> Result<()> {
        let mut making = init().stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        until(there, || Ok(data.join(there).exists() || making.try_wait()?.is_some()))?;
        making.kill()?;
        making.wait()?;
        Ok(())
    };
    for there in ["init.unfinished", "a", "b/postgres.unfinished/PG_VERSION", "c/postgres", "a/node.toml"] {
        kill_when(there)?;
        // A node that was complete before the others is none yet.
        if data.join("a/node.toml").exists() && data.join("init.unfinished").exists() {
            let said = onetrip(&["start"], &data.join("a")).output()?;
            ensure!(said.status.code() == Some(2) && told(&said).contains("was interrupted"), "{}", told(&said));
        }
        if !data.join("init.unfinished").exists() {
            // It was quicker.
            std::fs::remove_dir_all(&data)?;
        }
    }
    let made = init().output()?;
    ensure!(made.status.success(), "{}", told(&made));
    let mut left: Vec<String> =
        std::fs::read_dir(&data)?.map(|f| Ok(f?.file_name().to_string_lossy().into_owned())).collect::<Result<_>>()?;
    left.sort_unstable();
    assert_eq!(left, REGIONS);
    // What is complete is never touched.
    let ca = data.with_file_name("authority-of-nobody");
    let again = init().arg("--ca").arg(&ca).output()?;
    ensure!(!again.status.success() && told(&again).contains("nothing was changed"), "{}", told(&again));
    ensure!(!ca.exists(), "an authority was made for nobody");
    ensure!(REGIONS.iter().all(|name| data.join(name).join("node.toml").is_file()));
    let seeds =
        REGIONS.iter().map(|name| Ok(NodeConfig::load(&data.join(name))?.key_seed)).collect::<Result<Vec<_>>>()?;
    ensure!(!seeds[0].is_none() && seeds.iter().all(|seed| *seed == seeds[0]));
    // The note of an earlier release does not tell whose the folders are.
    std::fs::write(data.join("init.unfinished"), "a\nb\n")?;
    let refused = init().output()?;
    ensure!(!refused.status.success() && told(&refused).contains("of an earlier release"), "{}", told(&refused));
    ensure!(data.join("init.unfinished").exists() && data.join("a/node.toml").is_file());
    Ok(())
}

async fn until_shown(client: &tokio_postgres::Client) -> Result<()> {
    let deadline = Instant::now() + SOON;
    while client.query_one("select to_regclass('t') is null", &[]).await?.get(0) {
        ensure!(Instant::now() < deadline, "the table does not arrive");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Goal: a node.toml that asks for what only the lab has is refused with an explanation, and nothing is started.
#[test]
fn emulated_distances_are_refused() -> Result<()> {
    for asks in ["lab = true\n", "[one_way_ms]\nb = 5.0\n"] {
        let folder = folder()?;
        let file = folder.path().join("node.toml");
        let text = format!(
            "cluster = \"test\"\nnode = 1\nregion = \"a\"\nlisten = \"127.0.0.1:1\"\nhttp = \"127.0.0.1:1\"\n\
             preferred_leader = \"a\"\ntls = false\n{asks}[[member]]\nid = 1\nregion = \"a\"\naddress = \"127.0.0.1:1\"\n"
        );
        std::fs::write(&file, text)?;
        let said = onetrip(&["start"], folder.path()).output()?;
        let text = told(&said);
        assert_eq!(said.status.code(), Some(1), "{text}");
        for word in ["node.toml", "`lab`", "`[one_way_ms]`", "built for use", "onetrip-lab"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
    Ok(())
}

/// Goal: a folder that its user cannot reach is not made, and the command says what is in the way.
#[test]
fn a_folder_out_of_reach_is_not_left_behind() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let folder = folder()?;
    let closed = folder.path().join("closed");
    std::fs::create_dir(&closed)?;
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700))?;
    let data = closed.join("node");
    let token = format!("onetrip-join-1.{}.plain", "a".repeat(52));
    let join = ["join", "--from", "127.0.0.1:1", "--region", "x", "--token", &token];
    let said = onetrip(&join, &data).output()?;
    ensure!(told(&said).contains("let that user pass through the folders above it"), "{}", told(&said));
    ensure!(!data.exists(), "it is left behind");
    // Once it may.
    nix::unistd::chown(&closed, None, Some(nix::unistd::User::from_name("nobody")?.context("nobody")?.gid))?;
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o710))?;
    let said = onetrip(&join, &data).args(["--user", "nobody"]).output()?;
    ensure!(told(&said).contains("127.0.0.1:1 cannot be reached"), "{}", told(&said));
    Ok(())
}

/// Goal: the command does not have the lab's options.
#[test]
fn there_is_no_option_for_a_lab() -> Result<()> {
    for command in ["init", "join", "restore"] {
        let said = onetrip(&[command, "--lab"], Path::new("/nonexistent")).output()?;
        assert_eq!(said.status.code(), Some(2), "{}", told(&said));
        assert!(told(&said).contains("unexpected argument '--lab'"), "{}", told(&said));
    }
    Ok(())
}
