//! `node.toml`: what one node must know before it starts.
//!
//! The data directory is the folder of the file.  `load` gives a configuration that has been checked completely; every
//! error names the file and the field.  What belongs to the cluster (members, window, stride) must be the same in the
//! files of all nodes; peers refuse each other if the names of their clusters differ.

use crate::disk::CheckpointFile;
use crate::error::{Error, Result};
pub use crate::memory::Memory;
use crate::secret;
use crate::tls::{self, Authority};
pub use crate::traces::TracesConfig;
use onetrip_core::certifier::Limits;
use onetrip_core::members::AUTO;
use onetrip_core::{checkpoint, Level, MemberRole, Members, NodeId, PreferredLeader, RegionId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

pub const FILE_NAME: &str = "node.toml";
pub(crate) const CHECKPOINT_FILE: &str = "certifier.checkpoint";
/// A longer delay is a typing error rather than a distance on Earth.
pub(crate) const ONE_WAY_MS_MAX: f64 = 10_000.0;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Name of the cluster.  Nodes of another one are refused.
    pub cluster: String,
    /// This node.
    pub node: NodeId,
    pub region: RegionId,
    /// Where peers reach this node, `address:port`.
    pub listen: SocketAddr,
    /// Where the console, `GET /cluster` and the like answer.  If it is not on loopback, callers need a token
    /// (`access`).
    pub http: SocketAddr,
    /// Region in which the leader should be in the beginning, or `auto`: where it is best by measured round trips.
    #[serde(default)]
    pub preferred_leader: PreferredLeader,
    /// Certification window, in committed entries.  A cluster setting: never change it on one node alone.
    #[serde(default = "default_window_entries")]
    pub window_entries: u64,
    /// Sequences step by this much, each node from its own slot.
    #[serde(default = "default_sequence_stride")]
    pub sequence_stride: u32,
    /// This node's place in the stride, from 0.
    #[serde(default)]
    pub sequence_slot: u32,
    /// Largest transaction that is accepted, in bytes of its entry.
    #[serde(default = "default_max_entry_bytes")]
    pub max_entry_bytes: u64,
    /// Allows `POST /links` (cutting links), for tests and demonstrations only: a build without the feature `lab` does
    /// not run with it ([`NodeConfig::check_runs_here`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lab: bool,
    /// Connections between nodes are encrypted, and members recognize each other by certificates in `tls/`.
    #[serde(default = "default_tls")]
    pub tls: bool,
    /// Allows an `http` that others can reach, who then need a token.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub http_anywhere: bool,
    /// `http` speaks TLS, with the node's certificate or with one of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub http_tls: bool,
    /// Files with a certificate (and those that vouch for it) and its key in PEM, for `http` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_certificate: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_key: Option<PathBuf>,
    /// Emulated one-way delay from this node to the members of a region, in milliseconds.  A region that is not listed
    /// is at no distance.  Like `lab`, only for tests and demonstrations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub one_way_ms: BTreeMap<RegionId, f64>,
    /// Absent: the node runs no PostgreSQL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<PostgresConfig>,
    /// Absent: the log is not archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<ArchiveConfig>,
    /// Absent: COMMITs are not traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traces: Option<TracesConfig>,
    /// In bytes.  A log larger than this is cut even if another member still needs it; that member then starts over
    /// from a copy.
    #[serde(default = "default_log_bytes_max")]
    pub log_bytes_max: u64,
    /// The format level with which the cluster begins, the same in the files of all nodes.
    #[serde(default, skip_serializing_if = "is_level_0")]
    pub level: Level,
    /// Goes into the hash of every key, the same on all nodes, for good.
    #[serde(default, skip_serializing_if = "KeySeed::is_none")]
    pub key_seed: KeySeed,
    /// How much memory queues and caches may take.
    #[serde(default, skip_serializing_if = "Memory::is_default")]
    pub memory: Memory,
    /// The members with which the cluster begins.  Once the node has a checkpoint, that says who is a member; a node
    /// that joined has none here.
    #[serde(rename = "member", default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Member>,
    /// Folder of the file; not written into it.
    #[serde(skip)]
    pub data_dir: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    pub id: NodeId,
    pub region: RegionId,
    /// Where this member listens for peers.
    pub address: SocketAddr,
    /// `voter`, or `witness` for one without PostgreSQL.
    #[serde(default = "default_role", skip_serializing_if = "is_default_role")]
    pub role: MemberRole,
}

fn default_role() -> MemberRole {
    MemberRole::Voter
}
/// A secret of the cluster's servers: whoever knows it can choose values whose key is that of something else.  0 in a
/// cluster that an earlier release has made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeySeed(u64);

impl KeySeed {
    pub fn draw() -> Result<Self> {
        secret::draw_number().map(Self)
    }

    /// That of a cluster whose nodes are made on machines of their own, which have the authority's key in common.
    pub fn of_authority(authority: &Authority) -> Result<Self> {
        let key = authority.key_pem().ok_or_else(|| Error::Internal("the authority has no key".into()))?;
        let hash = tls::sha256(format!("onetrip key seed\n{key}").as_bytes());
        Ok(Self(u64::from_le_bytes(hash[..8].try_into().expect("it has 32 bytes"))))
    }

    pub fn is_none(&self) -> bool {
        self.0 == 0
    }

    /// By which two members see whether theirs is the same; 0 if there is none.
    pub fn check(self) -> u32 {
        let hash = tls::sha256(&self.0.to_le_bytes());
        if self.is_none() {
            return 0;
        }
        u32::from_le_bytes(hash[..4].try_into().expect("it has 32 bytes"))
    }
}

impl TryFrom<String> for KeySeed {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> std::result::Result<Self, Self::Error> {
        u64::from_str_radix(&text, 16).map(Self)
    }
}

impl From<KeySeed> for String {
    fn from(seed: KeySeed) -> String {
        format!("{:016x}", seed.0)
    }
}

impl std::fmt::Debug for KeySeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeySeed")
    }
}

/// Of `host:port`, if the host is an address and no name.
pub(crate) fn ip_of(address: &str) -> Option<IpAddr> {
    address.parse::<SocketAddr>().ok().map(|address| address.ip())
}

fn is_level_0(level: &Level) -> bool {
    *level == Level(0)
}
fn is_default_role(role: &MemberRole) -> bool {
    *role == default_role()
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostgresConfig {
    pub port: u16,
    /// Folder with `postgres` and `initdb`.
    pub bin_dir: PathBuf,
    /// The replicated database.
    #[serde(default = "default_database")]
    pub database: String,
    #[serde(default = "default_listen")]
    pub listen: String,
    /// OS user that the server runs as when the node is started by root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// For a replica: its server takes no changes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// While there is no majority its server is read-only to new transactions, and drivers pass it by.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only_without_majority: bool,
}

impl PostgresConfig {
    /// On loopback, and all else as by default.  `user`: whom it runs as when root starts the node.
    pub fn new(port: u16, bin_dir: PathBuf, database: String, user: String) -> PostgresConfig {
        PostgresConfig {
            port,
            bin_dir,
            database,
            listen: default_listen(),
            user: Some(user),
            read_only: false,
            read_only_without_majority: false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArchiveConfig {
    /// Where the committed log is copied to, for backups: outside of the node's folder, best on another machine's disk.
    pub folder: PathBuf,
}

fn default_window_entries() -> u64 {
    Limits::default().window_entries
}
fn default_sequence_stride() -> u32 {
    8
}
fn default_tls() -> bool {
    true
}
fn default_max_entry_bytes() -> u64 {
    256 << 20
}
fn default_log_bytes_max() -> u64 {
    4 << 30
}
fn default_database() -> String {
    "onetrip".into()
}
fn default_listen() -> String {
    "127.0.0.1".into()
}

impl NodeConfig {
    /// With certificates, and all else as by default: without a PostgreSQL, without members and without a secret.
    pub fn new(cluster: String, node: NodeId, region: RegionId, listen: SocketAddr, http: SocketAddr) -> NodeConfig {
        NodeConfig {
            cluster,
            node,
            region,
            listen,
            http,
            preferred_leader: PreferredLeader::Auto,
            window_entries: default_window_entries(),
            sequence_stride: default_sequence_stride(),
            sequence_slot: 0,
            max_entry_bytes: default_max_entry_bytes(),
            lab: false,
            tls: default_tls(),
            http_anywhere: false,
            http_tls: false,
            http_certificate: None,
            http_key: None,
            one_way_ms: BTreeMap::new(),
            postgres: None,
            archive: None,
            traces: None,
            log_bytes_max: default_log_bytes_max(),
            level: Level(0),
            key_seed: KeySeed::default(),
            memory: Memory::default(),
            members: Vec::new(),
            data_dir: PathBuf::new(),
        }
    }

    /// `path`: the file, or the folder that holds it.
    pub fn load(path: &Path) -> Result<NodeConfig> {
        let file = if path.is_dir() { path.join(FILE_NAME) } else { path.to_owned() };
        let wrong = |why: String| Error::Config { file: file.clone(), why };
        let text = std::fs::read_to_string(&file).map_err(|e| wrong(format!("cannot be read: {e}")))?;
        let mut config = NodeConfig::parse(&text).map_err(wrong)?;
        let folder = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        config.data_dir = folder.canonicalize().map_err(|e| wrong(format!("its folder: {e}")))?;
        Ok(config)
    }

    /// From a file's text; `data_dir` is not set.
    pub(crate) fn parse(text: &str) -> std::result::Result<NodeConfig, String> {
        let config: NodeConfig = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
        config.validate()?;
        Ok(config)
    }

    /// Writes `node.toml` into `data_dir`, which must exist.  Only its owner can read it.
    pub fn save(&self) -> Result<()> {
        let file = self.data_dir.join(FILE_NAME);
        let wrong = |why: String| Error::Config { file: file.clone(), why };
        self.validate().map_err(wrong)?;
        let text = toml::to_string(self).map_err(|e| wrong(e.to_string()))?;
        crate::disk::write_private(&file, text.as_bytes())
    }

    /// `Err`: what is wrong with it, in a sentence.
    pub fn validate(&self) -> std::result::Result<(), String> {
        if self.cluster.is_empty() {
            return Err("`cluster` is empty".into());
        }
        if self.tls {
            tls::check_cluster_name(&self.cluster)?;
        }
        if !self.http.ip().is_loopback() && !self.http_anywhere {
            return Err(format!(
                "`http` is {}, which others may reach: use a loopback address, or allow it with `http_anywhere = true`, and callers \
                 need the token in http.token of the node's folder",
                self.http
            ));
        }
        self.validate_http_tls()?;
        let mut ids: Vec<_> = self.members.iter().map(|m| m.id).collect();
        ids.sort_unstable();
        if let Some(twice) = ids.windows(2).find(|w| w[0] == w[1]) {
            return Err(format!("two members have the id {}", twice[0]));
        }
        if ids.first() == Some(&NodeId(0)) {
            return Err("member ids count from 1".into());
        }
        let mut addresses: Vec<_> = self.members.iter().map(|m| m.address).collect();
        addresses.sort_unstable();
        if let Some(twice) = addresses.windows(2).find(|w| w[0] == w[1]) {
            return Err(format!("two members have the address {}", twice[0]));
        }
        if self.region.as_str().is_empty() || self.region.as_str().len() > 255 {
            return Err("`region`: a region's name has 1 to 255 bytes".into());
        }
        match self.members.iter().find(|m| m.id == self.node) {
            Some(me) if me.region != self.region => {
                return Err(format!("`region` is {}, but member {} is in {}", self.region, me.id, me.region));
            }
            None if !self.members.is_empty() => {
                return Err(format!("no `[[member]]` has this node's id {}", self.node));
            }
            _ => {}
        }
        if let Some((region, ms)) = self.one_way_ms.iter().find(|(_, ms)| !(0.0..=ONE_WAY_MS_MAX).contains(*ms)) {
            return Err(format!("`one_way_ms` of region {region} is {ms}, not within 0 to {ONE_WAY_MS_MAX}"));
        }
        if let Some(m) = self.members.iter().find(|m| m.region.as_str().is_empty() || m.region.as_str().len() > 255) {
            return Err(format!("member {}: a region's name has 1 to 255 bytes", m.id));
        }
        if let Some(m) = self.members.iter().find(|m| m.role == MemberRole::Replica) {
            return Err(format!("member {} is a replica: replicas join later", m.id));
        }
        if self.region.as_str() == AUTO || self.members.iter().any(|m| m.region.as_str() == AUTO) {
            return Err(
                "`region`: no region can be called auto: as `preferred_leader` that means that the cluster chooses"
                    .into(),
            );
        }
        let mut voters = self.members.iter().filter(|m| m.role == MemberRole::Voter);
        if !self.members.is_empty() && !voters.any(|m| self.preferred_leader.allows(&m.region)) {
            let regions: Vec<_> = self.members.iter().map(|m| m.region.as_str()).collect();
            return Err(format!(
                "`preferred_leader` is the unknown region {} (there are: {})",
                self.preferred_leader,
                regions.join(", ")
            ));
        }
        if let Some(archive) = self.archive.as_ref().filter(|a| !a.folder.is_absolute()) {
            return Err(format!("`folder` of `[archive]` is {}, not an absolute path", archive.folder.display()));
        }
        if self.log_bytes_max < 1 << 20 {
            return Err(format!("`log_bytes_max` is {}, below 1 MiB", self.log_bytes_max));
        }
        self.memory.validate()?;
        self.traces.as_ref().map_or(Ok(()), TracesConfig::validate)?;
        if self.window_entries == 0 {
            return Err("`window_entries` must be at least 1".into());
        }
        if self.sequence_slot >= self.sequence_stride.max(1) && self.sequence_stride != 1 {
            return Err(format!(
                "`sequence_slot` {} does not fit in `sequence_stride` {}",
                self.sequence_slot, self.sequence_stride
            ));
        }
        if self.sequence_stride == 0 {
            return Err("`sequence_stride` must be at least 1".into());
        }
        // So an ENTRY or PROPOSE frame has at most 1 GiB, head included.
        if !(1024..=(1 << 30) - 4096).contains(&self.max_entry_bytes) {
            return Err(format!("`max_entry_bytes` is {}, not within 1 KiB to 1 GiB less 4 KiB", self.max_entry_bytes));
        }
        Ok(())
    }

    fn validate_http_tls(&self) -> std::result::Result<(), String> {
        let own = [("http_certificate", &self.http_certificate), ("http_key", &self.http_key)];
        let given = || own.iter().filter_map(|(name, file)| Some((*name, file.as_ref()?)));
        if let Some((name, file)) = given().find(|(_, file)| !file.is_absolute()) {
            return Err(format!("`{name}` is {}, not an absolute path", file.display()));
        }
        match (given().count(), self.http_tls) {
            (1, _) => Err("of `http_certificate` and `http_key` only one is there".into()),
            (2, false) => Err("`http_certificate` is for `http_tls = true`, which is not there".into()),
            (0, true) if !self.tls => {
                Err("`http_tls = true` needs a certificate, and with `tls = false` the node has none: name \
                                           one with `http_certificate` and `http_key`"
                    .into())
            }
            _ => Ok(()),
        }
    }

    /// The settings that are others in `new`, by their names in the file.
    pub fn changes(&self, new: &NodeConfig) -> Vec<String> {
        let settings = |config: &NodeConfig| {
            let mut named = BTreeMap::new();
            // A configuration that was read can be written.
            if let Ok(toml::Value::Table(mut table)) = toml::Value::try_from(config) {
                // A file need not say what is as by default.
                if let Ok(memory) = toml::Value::try_from(config.memory) {
                    table.insert("memory".into(), memory);
                }
                for (name, value) in table {
                    match value {
                        toml::Value::Table(section) => {
                            named.extend(section.into_iter().map(|(field, value)| (format!("{name}.{field}"), value)));
                        }
                        value => {
                            named.insert(name, value);
                        }
                    }
                }
            }
            named
        };
        let (old, new) = (settings(self), settings(new));
        let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        names.into_iter().filter(|name| old.get(*name) != new.get(*name)).cloned().collect()
    }

    /// This configuration, with what of `new` can change while the node runs.
    pub fn with_changes(&self, new: &NodeConfig) -> NodeConfig {
        NodeConfig { log_bytes_max: new.log_bytes_max, memory: new.memory, ..self.clone() }
    }

    /// A build without the feature `lab` cannot emulate distances, and refuses to start if it is asked to.
    pub fn check_runs_here(&self) -> Result<()> {
        if cfg!(feature = "lab") || !self.lab && self.one_way_ms.is_empty() {
            return Ok(());
        }
        let why = "`lab` and `[one_way_ms]` ask for links that are cut by hand and for emulated distances, which this \
                   `onetrip`, built for use, does not have: start the node with `onetrip-lab`, or take both out";
        Err(Error::Config { file: self.data_dir.join(FILE_NAME), why: why.into() })
    }

    pub fn limits(&self) -> Limits {
        Limits { window_entries: self.window_entries, ..Limits::default() }
    }

    pub fn checkpoint_file(&self) -> PathBuf {
        self.data_dir.join(CHECKPOINT_FILE)
    }

    /// Where clients and others can reach this node: its certificate is for these addresses, too.  The member's own one
    /// is in `members`, or in the checkpoint with which the node joined or was restored.
    pub fn addresses(&self) -> Result<Vec<IpAddr>> {
        let file = CheckpointFile::new(self.checkpoint_file());
        let members = match file.read()? {
            Some(raw) => checkpoint::peek(&raw).map_err(|e| file.corrupted(&e))?.members,
            None => self.bootstrap_members(),
        };
        let member = members.get(self.node).and_then(|member| ip_of(&member.address));
        Ok([self.listen.ip(), self.http.ip()].into_iter().chain(member).collect())
    }

    /// The token of the HTTP port, where it asks for one.
    pub fn http_token_file(&self) -> PathBuf {
        self.data_dir.join("http.token")
    }

    pub fn admin_socket(&self) -> PathBuf {
        self.data_dir.join("admin.sock")
    }

    pub fn agent_socket(&self) -> PathBuf {
        self.data_dir.join("agent.sock")
    }

    /// The table of members at the beginning of the log, the same from the files of all nodes.
    pub fn bootstrap_members(&self) -> Members {
        let mut members: Vec<&Member> = self.members.iter().collect();
        members.sort_by_key(|m| m.id);
        let mut slots = 0..;
        let mut slot_of = |role| match role {
            MemberRole::Voter if self.sequence_stride == 1 => Some(0),
            MemberRole::Voter => slots.next(),
            MemberRole::Witness | MemberRole::Replica => None,
        };
        let members = members.into_iter().map(|m| onetrip_core::Member {
            id: m.id,
            region: m.region.clone(),
            address: m.address.to_string(),
            role: m.role,
            voter: m.role.votes(),
            slot: slot_of(m.role),
            replaces: None,
            joined: None,
        });
        let table = Members::bootstrap(members.collect(), self.preferred_leader.clone(), self.sequence_stride);
        Members { level: self.level, ..table }
    }
}
