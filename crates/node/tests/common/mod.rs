//! Real nodes in one process without PostgreSQL, and a client that speaks the agent protocol in PostgreSQL's place.
#![allow(dead_code)] // each test file uses its part of this

use anyhow::{bail, ensure, Context, Result};
use bytes::{Bytes, BytesMut};
use onetrip_core::agent::{take_frame, FromPostgres, Hello, OutcomeState, Role, ToPostgres, VerdictFrame, VERSION};
use onetrip_core::{Base, Entry, Key, LockMode, LogIndex, MemberRole, Members, NodeId, RegionId, TxnId};
use onetrip_node::config::{KeySeed, Memory};
use onetrip_node::secret::{self, Secret};
use onetrip_node::tls::{self, Authority};
use onetrip_node::{AdminReply, AdminRequest, Member, Node, NodeConfig};
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// How long a test waits for anything at most.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub async fn wait_for<T, F: Future<Output = Result<T>>>(what: &str, mut attempt: impl FnMut() -> F) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(e) if Instant::now() > deadline => return Err(e.context(format!("waiting for {what}"))),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Three nodes in regions r1 (preferred leader), r2 and r3; or as many as a test asks for.
pub struct Cluster {
    pub nodes: Vec<Option<Node>>,
    pub configs: Vec<NodeConfig>,
    pub authority: Authority,
    dir: tempfile::TempDir,
}

impl Cluster {
    pub fn start(one_way_ms: f64) -> Result<Cluster> {
        Cluster::start_in(&["r1", "r2", "r3"], one_way_ms)
    }

    /// The same with a node in each of these regions, which may be named more than once.
    pub fn start_in(regions: &[&str], one_way_ms: f64) -> Result<Cluster> {
        let mut cluster = Cluster::prepare_in(regions, one_way_ms)?;
        for i in 0..regions.len() {
            cluster.start_node(i)?;
        }
        Ok(cluster)
    }

    pub fn prepare(one_way_ms: f64) -> Result<Cluster> {
        Cluster::prepare_in(&["r1", "r2", "r3"], one_way_ms)
    }

    pub fn prepare_in(regions: &[&str], one_way_ms: f64) -> Result<Cluster> {
        let dir = tempfile::tempdir()?;
        let nodes = regions.len() as u32;
        // All listeners are kept open until all ports are known, so that the OS gives different ones.
        let held: Vec<TcpListener> =
            (0..2 * nodes).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<std::io::Result<_>>()?;
        let ports: Vec<SocketAddr> = held.iter().map(|l| l.local_addr()).collect::<std::io::Result<_>>()?;
        let mut configs = Vec::new();
        let authority = Authority::new("test")?;
        let region = |id: u32| RegionId::from(regions[id as usize - 1]);
        for me in 1..=nodes {
            let member = |id: u32| Member {
                id: NodeId(id),
                region: region(id),
                address: ports[id as usize - 1],
                role: MemberRole::Voter,
            };
            let data_dir = dir.path().join(format!("n{me}"));
            std::fs::create_dir(&data_dir)?;
            let others = (1..=nodes).map(region).filter(|other| *other != region(me));
            let (listen, http) = (ports[me as usize - 1], ports[(me + nodes) as usize - 1]);
            let config = NodeConfig {
                preferred_leader: "r1".into(),
                sequence_slot: me,
                max_entry_bytes: 1 << 20,
                lab: true,
                one_way_ms: others.map(|other| (other, one_way_ms)).collect(),
                memory: Memory { proposals_bytes: 8 << 20, ..Memory::default() },
                members: (1..=nodes).map(member).collect(),
                key_seed: KeySeed::of_authority(&authority)?,
                data_dir,
                ..NodeConfig::new("test".into(), NodeId(me), region(me), listen, http)
            };
            config.save()?;
            tls::write_folder(&config.data_dir, &authority, &authority.issue(config.node)?)?;
            configs.push(config);
        }
        Ok(Cluster { nodes: regions.iter().map(|_| None).collect(), configs, authority, dir })
    }

    pub fn start_node(&mut self, i: usize) -> Result<()> {
        // Through the file, as `onetrip start` does.
        self.nodes[i] = Some(Node::start(NodeConfig::load(&self.configs[i].data_dir)?, None)?);
        Ok(())
    }

    pub async fn stop_node(&mut self, i: usize) -> Result<()> {
        Ok(self.nodes[i].take().context("it is not running")?.stop().await?)
    }

    pub async fn stop(mut self) -> Result<()> {
        for i in 0..self.nodes.len() {
            if self.nodes[i].is_some() {
                self.stop_node(i).await?;
            }
        }
        Ok(())
    }

    pub async fn admin(&self, i: usize, request: AdminRequest) -> Result<AdminReply> {
        let node = self.nodes[i].as_ref().context("it is not running")?;
        node.admin(request).await.map_err(|why| anyhow::anyhow!("{why}"))
    }

    pub async fn members(&self, i: usize) -> Result<Arc<Members>> {
        match self.admin(i, AdminRequest::Members).await? {
            AdminReply::Members(members) => Ok(members),
            _ => bail!("the answer is not the one to this request"),
        }
    }

    pub async fn token(&self, via: usize, role: MemberRole, replaces: Option<u32>) -> Result<Secret> {
        let replaces = replaces.map(NodeId);
        match self.admin(via, AdminRequest::Token { role, replaces, ttl_s: 60 }).await? {
            AdminReply::Token(secret) => Ok(secret),
            _ => bail!("the answer is not the one to this request"),
        }
    }

    /// Lets a new node join through the node at place `via`, makes its folder and starts it.  Returns its place;
    /// `change` may change its configuration.
    pub async fn join(&mut self, via: usize, secret: Secret, change: impl FnOnce(&mut NodeConfig)) -> Result<usize> {
        let place = self.configs.len();
        let held = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
        let (listen, http) = (held[0].local_addr()?, held[1].local_addr()?);
        let region = RegionId(format!("r{}", place + 1));
        let (secret_hash, address) = (secret::hash(&secret), listen.to_string());
        let request = || {
            let (region, address) = (region.clone(), address.clone());
            AdminRequest::Join { secret_hash, region, address, unlike: None }
        };
        let AdminReply::Joined { member, checkpoint, .. } = self.admin(via, request()).await? else {
            bail!("the answer is not the one to this request");
        };
        ensure!(member.id == NodeId(place as u32 + 1), "{member:?}");
        let data_dir = self.dir.path().join(region.as_str());
        std::fs::create_dir(&data_dir)?;
        let mut config = NodeConfig {
            node: member.id,
            region,
            listen,
            http,
            sequence_slot: member.slot.unwrap_or(0),
            one_way_ms: Default::default(),
            members: vec![],
            data_dir,
            ..self.configs[via].clone()
        };
        change(&mut config);
        config.save()?;
        tls::write_folder(&config.data_dir, &self.authority, &self.authority.issue(config.node)?)?;
        std::fs::write(config.checkpoint_file(), onetrip_core::checkpoint::installed(&checkpoint()))?;
        self.configs.push(config);
        self.nodes.push(None);
        drop(held);
        self.start_node(place)?;
        Ok(place)
    }

    /// Waits until all running nodes say that these ids vote, and no others.
    pub async fn voters(&self, ids: &[u32]) -> Result<()> {
        wait_for(&format!("the voters {ids:?}"), || async {
            for i in (0..self.nodes.len()).filter(|i| self.nodes[*i].is_some()) {
                let status = self.status(i).await?;
                let members = status["members"].as_array().context("members")?;
                let voters: Vec<_> = members.iter().filter(|m| m["voter"] == true).map(|m| &m["id"]).collect();
                ensure!(voters == ids && status["joint"] == false, "node {} says {voters:?}", i + 1);
            }
            Ok(())
        })
        .await
    }

    pub async fn status(&self, i: usize) -> Result<serde_json::Value> {
        let answer = http(self.configs[i].http, "GET", "/status", "").await?;
        Ok(serde_json::from_str(&answer)?)
    }

    /// Waits until all running nodes name the same leader, and returns its place.
    pub async fn leader(&self) -> Result<usize> {
        wait_for("one leader", || async {
            let mut leaders = Vec::new();
            for i in (0..self.nodes.len()).filter(|i| self.nodes[*i].is_some()) {
                leaders.push(self.status(i).await?["leader"]["node"].as_u64().context("no leader")? as usize - 1);
            }
            leaders.dedup();
            ensure!(leaders.len() == 1 && self.nodes[leaders[0]].is_some(), "leaders {leaders:?}");
            Ok(leaders[0])
        })
        .await
    }

    /// Waits until the leader is in r1, where it belongs.
    pub async fn preferred_leads(&self) -> Result<()> {
        wait_for("the preferred leader", || async {
            let leader = self.leader().await?;
            ensure!(leader == 0, "node {} leads", leader + 1);
            Ok(())
        })
        .await
    }

    pub async fn backend(&self, i: usize) -> Result<Agent> {
        Agent::connect(&self.configs[i].data_dir, self.configs[i].node, Role::Backend, LogIndex(0)).await
    }

    /// The lowest index that a copy of PostgreSQL must show so that this node can feed it the rest.
    pub async fn copied(&self, i: usize) -> Result<LogIndex> {
        Ok(LogIndex(self.status(i).await?["log_first"].as_u64().context("log_first")? - 1))
    }

    pub async fn worker(&self, i: usize, applied: LogIndex) -> Result<Agent> {
        Agent::connect(&self.configs[i].data_dir, self.configs[i].node, Role::ApplyWorker, applied).await
    }
}

/// Sends one request, and returns the body of the answer, which must have status 200.
pub async fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no body")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{head}: {body}");
    Ok(body.to_owned())
}

/// Plays one connection of PostgreSQL.
pub struct Agent {
    stream: UnixStream,
    buf: BytesMut,
    pub node: NodeId,
    pub welcomed_at: LogIndex,
}

pub const INCARNATION: u64 = 0xabc;

pub fn update(hash: u64, base: LogIndex) -> Key {
    Key { hash, mode: LockMode::Update, base: Base(base.0) }
}

impl Agent {
    pub async fn connect(data_dir: &Path, node: NodeId, role: Role, applied: LogIndex) -> Result<Agent> {
        Agent::connect_as(data_dir, node, role, applied, INCARNATION).await
    }

    pub async fn connect_as(
        data_dir: &Path,
        node: NodeId,
        role: Role,
        applied: LogIndex,
        incarnation: u64,
    ) -> Result<Agent> {
        let stream = UnixStream::connect(data_dir.join("agent.sock")).await?;
        let mut agent = Agent { stream, buf: BytesMut::new(), node, welcomed_at: LogIndex(0) };
        let hello = Hello { version: VERSION, role, pid: 1, incarnation, applied, durable: applied };
        agent.send(&FromPostgres::Hello(hello)).await?;
        match agent.receive().await? {
            ToPostgres::Welcome { committed, .. } => agent.welcomed_at = committed,
            other => bail!("{other:?} instead of a welcome"),
        }
        Ok(agent)
    }

    pub fn txn(&self, sequence: u64) -> TxnId {
        TxnId { node: self.node, incarnation: INCARNATION, sequence }
    }

    pub async fn send(&mut self, frame: &FromPostgres) -> Result<()> {
        self.send_raw(&frame.encode()).await
    }

    pub async fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes).await?)
    }

    pub async fn propose(&mut self, sequence: u64, keys: &[Key], write_set: &[u8]) -> Result<()> {
        let entry = Entry::encode(&self.txn(sequence), keys, write_set);
        self.send(&FromPostgres::Propose(entry)).await
    }

    pub async fn verdict(&mut self) -> Result<VerdictFrame> {
        match self.receive().await? {
            ToPostgres::Verdict(verdict) => Ok(verdict),
            other => bail!("{other:?} instead of a verdict"),
        }
    }

    pub async fn commit(&mut self, sequence: u64, keys: &[Key], write_set: &[u8]) -> Result<VerdictFrame> {
        self.propose(sequence, keys, write_set).await?;
        self.verdict().await
    }

    pub async fn position(&mut self, applied: LogIndex) -> Result<()> {
        self.send(&FromPostgres::Position { applied, durable: applied }).await
    }

    /// The answer to OUTCOME or SETTLE (`ask`).
    pub async fn outcome(&mut self, ask: FromPostgres) -> Result<(OutcomeState, LogIndex)> {
        self.send(&ask).await?;
        match self.receive().await? {
            ToPostgres::OutcomeIs { state, at, .. } => Ok((state, at)),
            other => bail!("{other:?} instead of an outcome"),
        }
    }

    /// The next ENTRY: its index, that of the entry before it, the transaction and the write set.
    pub async fn entry(&mut self) -> Result<(LogIndex, LogIndex, TxnId, Bytes)> {
        match self.receive().await? {
            ToPostgres::Entry { at, previous, txn, write_set, .. } => Ok((at, previous, txn, write_set)),
            other => bail!("{other:?} instead of an entry"),
        }
    }

    pub async fn receive(&mut self) -> Result<ToPostgres> {
        match tokio::time::timeout(PATIENCE, self.next()).await? {
            Ok(Some(frame)) => Ok(frame),
            Ok(None) => bail!("the node closed the connection"),
            Err(e) => Err(e),
        }
    }

    /// Waits until the connection ends; it is an error if a frame comes before that.
    pub async fn ended(&mut self) -> Result<()> {
        match tokio::time::timeout(PATIENCE, self.next()).await? {
            Ok(Some(frame)) => bail!("{frame:?} instead of the end"),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    async fn next(&mut self) -> Result<Option<ToPostgres>> {
        loop {
            if let Some(frame) = take_frame(&mut self.buf)? {
                return Ok(Some(ToPostgres::decode(frame)?));
            }
            if self.stream.read_buf(&mut self.buf).await? == 0 {
                return Ok(None);
            }
        }
    }
}
