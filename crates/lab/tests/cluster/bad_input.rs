//! Bad input causes a clear error and no loss.  The node stays alive; only if its own disk is damaged does it stop,
//! before it could give a wrong answer.

use std::io::{Read, Seek, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::lab::{builder, number, onetrip, start, text, turn, until, Lab, Session, SOON};
use onetrip_core::agent::{FromPostgres, Hello, Role, MAX_FRAME_BYTES, VERSION};
use onetrip_core::entry::{Entry, Key, LockMode};
use onetrip_core::{Base, LogIndex, NodeId, TxnId};
use onetrip_lab::Node;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_topology_is_refused_with_its_name() {
    let _turn =
        turn("bad_topology", "wrong topology files, unknown regions and folders: exit code 2 and a sentence").await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("wrong.toml");
    let data = folder.path().join("data");
    let (shown, data) = (file.display().to_string(), data.display().to_string());
    let missing = folder.path().join("nowhere.toml").display().to_string();
    let output = onetrip(&["init", "--topology", &missing, "--data", &data]).await;
    refused(&output, 2, &[&missing]);
    for (toml, words) in [
        ("", vec!["region"]),
        ("this is not toml", vec!["wrong.toml"]),
        ("[[region]]\nname = 'a'\n[[region]]\nname = 'a'", vec!["\"a\"", "twice"]),
        ("preferred_leader = 'mars'\n[[region]]\nname = 'a'", vec!["mars", "unknown region"]),
        ("[[region]]\nname = 'a'\n[[link]]\nbetween = ['a', 'mars']\nrtt_ms = 1", vec!["mars", "unknown region"]),
        ("[[region]]\nname = 'a'\nspeed = 3", vec!["speed"]),
        ("[[region]]\nname = '../a'", vec!["../a"]),
        ("[[region]]\nname = 'a'\n[[region]]\nname = 'b'\n[[link]]\nbetween = ['a', 'b']\nrtt_ms = -1", vec!["rtt_ms"]),
    ] {
        std::fs::write(&file, toml).expect("write");
        let output = onetrip(&["init", "--topology", &shown, "--data", &data]).await;
        refused(&output, 2, &[&[shown.as_str()], words.as_slice()].concat());
        assert!(!Path::new(&data).join("a").exists(), "a refused init leaves nothing");
    }
    std::fs::write(&file, "[[region]]\nname = 'a'\npeer_port = 4000").expect("write");
    let args = ["init", "--topology", &shown, "--data", &data, "--region", "mars", "--cluster", "x"];
    refused(&onetrip(&args).await, 2, &["mars"]);
    let args = ["init", "--topology", &shown, "--data", &data, "--region", "a", "--cluster", "x"];
    refused(&onetrip(&args).await, 2, &["--ca"]);
    let args = ["init", "--topology", &shown, "--data", &data, "--cluster", "my cluster"];
    refused(&onetrip(&args).await, 2, &["my cluster", "certificate"]);
    refused(&onetrip(&["start", "--data", &data]).await, 2, &["data"]);
    refused(&onetrip(&["status", "--data", folder.path().to_str().expect("text")]).await, 2, &["no node"]);
}

fn refused(output: &crate::lab::Output, code: i32, words: &[&str]) {
    assert_eq!(output.code, Some(code), "{}", output.stderr);
    for word in words {
        assert!(output.stderr.contains(word), "{word:?} is not in: {}", output.stderr);
    }
    assert!(!output.stderr.contains("panicked"), "{}", output.stderr);
}

async fn with_rows(name: &'static str, about: &str) -> Lab {
    let lab = start(name, about).await;
    lab.session(0)
        .await
        .must("create table t (id int primary key, v text); insert into t select g, 'v' from generate_series(1, 500) g")
        .await;
    lab.everywhere().await;
    lab
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_peer_port_harms_nothing() {
    let lab = with_rows("bad_peer", "garbage on the peer port: nodes live, nothing is lost").await;
    garbage_from_a_peer(&lab).await;
    lab.check_equal(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_agent_socket_harms_nothing() {
    let lab = with_rows("bad_agent", "garbage and other users on the agent socket: nodes live, nothing is lost").await;
    garbage_from_an_agent_client(&lab).await;
    another_user_on_the_agent_socket(&lab).await;
    lab.check_equal(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_file_stops_its_node_alone() {
    let lab = with_rows("bad_disk", "a damaged log or node.toml: that node does not start, nothing is lost").await;
    damaged_log(&lab).await;
    damaged_config(&lab).await;
    lab.check_equal(1).await;
}

/// All nodes still run as the same processes, and a write from each region arrives everywhere.
async fn unharmed(lab: &Lab, pids: &[Option<nix::unistd::Pid>]) {
    for (node, pid) in lab.nodes().iter().zip(pids) {
        assert_eq!(node.pid(), *pid, "node {} has ended", node.region());
    }
    for region in 0..3 {
        lab.session(region).await.must("insert into t select coalesce(max(id), 0) + 1, 'after' from t").await;
        lab.everywhere().await;
    }
}

fn pids(lab: &Lab) -> Vec<Option<nix::unistd::Pid>> {
    lab.nodes().iter().map(|node| node.pid()).collect()
}

async fn garbage_from_a_peer(lab: &Lab) {
    let before = pids(lab);
    let mut huge = vec![0xff; 64];
    huge[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let garbage: Vec<Vec<u8>> = vec![
        vec![],
        b"GET / HTTP/1.0\r\n\r\n".to_vec(),
        vec![0; 100_000],
        vec![0xff; 100_000],
        huge,
        noise(7, 300_000),
        noise(8, 3),
    ];
    for node in lab.nodes() {
        let address = peer_address(node.folder());
        for bytes in &garbage {
            let (address, bytes) = (address.clone(), bytes.clone());
            tokio::task::spawn_blocking(move || {
                let mut stream = TcpStream::connect(address).expect("connect to the peer port");
                closes_on(&mut stream, &bytes);
            })
            .await
            .expect("a garbage peer");
        }
        until("the node logs it", SOON, || async {
            let log = node.log_tail(500);
            anyhow::ensure!(log.contains("refused a connection to the peer port"), "{log}");
            Ok(true)
        })
        .await
        .unwrap();
    }
    unharmed(lab, &before).await;
}

/// Writes all of it and waits until the other side closes; it may close before it has read everything.
fn closes_on<S: Read + Write + SetReadTimeout>(stream: &mut S, bytes: &[u8]) {
    stream.limit_reads(Duration::from_secs(30));
    let _ = stream.write_all(bytes);
    stream.no_more();
    let mut rest = Vec::new();
    match stream.take(1 << 20).read_to_end(&mut rest) {
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(e) => panic!("the node neither answers nor closes: {e}"),
    }
}

trait SetReadTimeout {
    fn limit_reads(&self, limit: Duration);
    fn no_more(&self);
}

impl SetReadTimeout for TcpStream {
    fn limit_reads(&self, limit: Duration) {
        self.set_read_timeout(Some(limit)).expect("a read timeout");
    }
    fn no_more(&self) {
        let _ = self.shutdown(std::net::Shutdown::Write);
    }
}

impl SetReadTimeout for UnixStream {
    fn limit_reads(&self, limit: Duration) {
        self.set_read_timeout(Some(limit)).expect("a read timeout");
    }
    fn no_more(&self) {
        let _ = self.shutdown(std::net::Shutdown::Write);
    }
}

fn peer_address(folder: &Path) -> String {
    let text = std::fs::read_to_string(folder.join("node.toml")).expect("node.toml");
    let listen = text.lines().find_map(|line| line.strip_prefix("listen = ")).expect("a listen address");
    listen.trim_matches('"').to_string()
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 40) as u8
        })
        .collect()
}

/// What a well-behaved backend would say first.
fn hello(role: Role) -> Vec<u8> {
    let hello = Hello { version: VERSION, role, pid: 1, incarnation: 77, applied: LogIndex(0), durable: LogIndex(0) };
    FromPostgres::Hello(hello).encode().to_vec()
}

async fn garbage_from_an_agent_client(lab: &Lab) {
    let before = pids(lab);
    let txn = TxnId { node: NodeId(2), incarnation: 77, sequence: 1 };
    let keys = [Key { hash: 1, mode: LockMode::Update, base: Base(0) }];
    let propose = FromPostgres::Propose(Entry::encode(&txn, &keys, b"half of this never comes")).encode().to_vec();
    let mut too_long = ((MAX_FRAME_BYTES + 1) as u32).to_le_bytes().to_vec();
    too_long.push(2);
    let mut wrong_magic = hello(Role::Backend);
    wrong_magic[5] ^= 0xff;
    let mut wrong_version = hello(Role::Backend);
    wrong_version[9] ^= 0xff;
    let malformed = FromPostgres::Propose(bytes_of(&noise(3, 200))).encode().to_vec();
    let garbage: Vec<Vec<u8>> = vec![
        vec![],
        noise(5, 100_000),
        too_long,
        vec![0; 64],
        wrong_magic,
        wrong_version,
        propose.clone(),
        [hello(Role::Backend), noise(6, 50_000)].concat(),
        [hello(Role::Backend), hello(Role::Backend)].concat(),
        [hello(Role::Backend), vec![1, 0, 0, 0, 0x99]].concat(),
        // An entry that is cut off, together with the connection.
        [hello(Role::Backend), propose[..propose.len() - 5].to_vec()].concat(),
        // A whole frame with a malformed entry in it: refused with a verdict.
        [hello(Role::Backend), malformed].concat(),
        // The beginning of another apply worker's Hello, and nothing more.
        hello(Role::ApplyWorker)[..20].to_vec(),
    ];
    for node in lab.nodes() {
        for bytes in &garbage {
            as_the_server_of(node, bytes).await;
        }
        // It got there.
        assert!(node.log_tail(100).contains("the first frame is not HELLO"), "{}", node.log_tail(20));
        assert!(!node.log_tail(100).contains("refused an agent"), "{}", node.log_tail(20));
    }
    unharmed(lab, &before).await;
    let proposed = text(&lab.session(0).await.client, "select onetrip.outcome('2-4d-1')").await.unwrap();
    assert_eq!(proposed, "unknown", "half a proposal was proposed");
}

fn bytes_of(bytes: &[u8]) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(bytes)
}

/// Sends bytes to the agent socket as only the node's server can: as its user, and from its data folder.
async fn as_the_server_of(node: &Node, bytes: &[u8]) {
    let send = "socket(my $s, AF_UNIX, SOCK_STREAM, 0); connect($s, pack_sockaddr_un($ARGV[0])) or die $!; alarm 30; \
                $SIG{PIPE} = 'IGNORE'; local $/; syswrite($s, <STDIN>); shutdown($s, 1); 1 while sysread($s, my $got, 65536)";
    let mut input = tempfile::tempfile().expect("a file");
    input.write_all(bytes).and_then(|()| input.rewind()).expect("write");
    let socket = node.folder().join("agent.sock");
    let mut command = tokio::process::Command::new("perl");
    command.arg("-MSocket").args(["-e", send]).arg(&socket).stdin(input);
    if nix::unistd::geteuid().is_root() {
        // With another group than its own, the node could not look at it.
        let owner = std::fs::metadata(&socket).expect("the agent socket");
        command.uid(owner.uid()).gid(owner.gid());
    }
    let status = command.current_dir(node.postgres_data()).status().await.expect("run perl");
    assert!(status.success(), "the node neither answers nor closes: {status}");
}

/// Another user than the server's is root, so this needs a test that runs as root.
async fn another_user_on_the_agent_socket(lab: &Lab) {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let before = pids(lab);
    let socket = lab.node(1).folder().join("agent.sock");
    let mode = std::fs::metadata(&socket).expect("the agent socket").mode() & 0o777;
    assert_eq!(mode, 0o600);
    tokio::task::spawn_blocking(move || {
        let mut stream = UnixStream::connect(&socket).expect("root may connect");
        closes_on(&mut stream, &hello(Role::ApplyWorker));
    })
    .await
    .expect("another user");
    unharmed(lab, &before).await;
}

/// Verdicts depend on `window_entries`: with another value the same log would lead to other rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_begins_with_another_window_is_kept_out() {
    let _turn = turn("other_window", "a node of a new cluster with another window_entries").await;
    let cluster = builder().init().await.unwrap_or_else(|e| panic!("{e:#}"));
    let node = cluster.node(2);
    let file = node.folder().join("node.toml");
    let good = std::fs::read(&file).expect("read node.toml");
    let text = String::from_utf8_lossy(&good).replace("window_entries = 100000", "window_entries = 1000");
    assert_ne!(text.as_bytes(), good);
    overwrite(&file, text.as_bytes());
    for node in cluster.nodes() {
        node.start().expect("start");
    }
    for index in [0, 1] {
        cluster.node(index).wait_serving(SOON).await.unwrap_or_else(|e| panic!("{e:#}"));
    }
    let a = Session::open(&cluster.node(0).conninfo()).await.unwrap();
    a.must("create table t (id int primary key)").await;
    until("c says why", SOON, || async {
        Ok(node.log_tail(200).contains("has begun with other members, another `window_entries`"))
    })
    .await
    .unwrap();
    node.stop().await.unwrap_or_else(|e| panic!("{e:#}"));
    overwrite(&file, &good);
    node.start().expect("start");
    node.wait_serving(SOON).await.unwrap_or_else(|e| panic!("{e:#}\n{}", node.log_tail(20)));
    a.must("insert into t values (1)").await;
    cluster.converge().await.unwrap_or_else(|e| panic!("{e:#}"));
    let c = Session::open(&node.conninfo()).await.unwrap();
    assert_eq!(number(&c.client, "select count(*) from t").await.unwrap(), 1);
}

/// A damaged log: the node refuses to start and names the file; with the right bytes back it goes on.
async fn damaged_log(lab: &Lab) {
    let node = lab.node(2);
    node.stop().await.unwrap_or_else(|e| panic!("{e:#}"));
    let file = largest_log_file(node.folder());
    let good = std::fs::read(&file).expect("read the log");
    let mut bad = good.clone();
    let middle = bad.len() / 3;
    for byte in &mut bad[middle..middle + 16] {
        *byte ^= 0x5a;
    }
    overwrite(&file, &bad);
    let name = file.file_name().expect("a file").to_str().expect("text").to_string();
    node.start().expect("start");
    let status = node.wait_ended(SOON).await.unwrap_or_else(|e| panic!("{e:#}"));
    assert!(!status.success(), "a node with a damaged log ended with {status}");
    let said = node.log_tail(5);
    assert!(said.contains(&name), "{name} is not named: {said}");
    assert!(!said.contains("panicked"), "{said}");
    // The others take writes without it, and it gets them when its log is whole again.
    lab.session(0).await.must("insert into t values (100000, 'without c')").await;
    overwrite(&file, &good);
    node.stop().await.unwrap_or_else(|e| panic!("{e:#}"));
    node.restart().await.unwrap_or_else(|e| panic!("{e:#}"));
    lab.wait_ready().await.unwrap_or_else(|e| panic!("{e:#}"));
    lab.everywhere().await;
    let rows = number(&lab.session(2).await.client, "select count(*) from t where id = 100000").await.unwrap();
    assert_eq!(rows, 1);
}

fn largest_log_file(folder: &Path) -> PathBuf {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("read a folder").flatten() {
            let path = entry.path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "postgres") {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "log")
                && !["node.log", "postgres.log"].iter().any(|n| path.ends_with(n))
            {
                found.push((entry.metadata().map_or(0, |m| m.len()), path));
            }
        }
    }
    found.into_iter().max().expect("a log file").1
}

/// Overwrites a file in place, so that it keeps its owner.
fn overwrite(file: &Path, bytes: &[u8]) {
    let mut open = std::fs::OpenOptions::new().write(true).truncate(true).open(file).expect("open the log");
    open.write_all(bytes).expect("write the log");
}

async fn damaged_config(lab: &Lab) {
    let node = lab.node(1);
    node.stop().await.unwrap_or_else(|e| panic!("{e:#}"));
    let file = node.folder().join("node.toml");
    let good = std::fs::read(&file).expect("read node.toml");
    for bad in ["region = 'mars'\n", "node = \"two\"\n"] {
        let text = String::from_utf8_lossy(&good);
        let key = bad.split(' ').next().expect("a word");
        let changed: String = text
            .lines()
            .map(|line| if line.starts_with(&format!("{key} =")) { bad.to_string() } else { format!("{line}\n") })
            .collect();
        assert_ne!(changed, text);
        overwrite(&file, changed.as_bytes());
        let output = onetrip(&["start", "--data", &node.folder().display().to_string()]).await;
        assert!(output.code == Some(1) || output.code == Some(2), "{:?} {}", output.code, output.stderr);
        assert!(output.stderr.contains("node.toml"), "{}", output.stderr);
    }
    overwrite(&file, &good);
    node.restart().await.unwrap_or_else(|e| panic!("{e:#}"));
    lab.wait_ready().await.unwrap_or_else(|e| panic!("{e:#}"));
}
