//! `onetrip init`: makes the folders of a cluster's nodes, each with its node.toml and its PostgreSQL.
//!
//! All or nothing: a call that fails removes what it has made, and what one left that was interrupted is removed by the
//! next; neither touches what was there before.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, Context, Result};
use clap::{Args, ValueEnum};
use nix::fcntl::{Flock, FlockArg};
use onetrip_client::postgres::bin_dir;
use onetrip_client::{ports, say, Topology};
use onetrip_core::{MemberRole, NodeId, RegionId};
use onetrip_node::config::{KeySeed, Member, NodeConfig, PostgresConfig, FILE_NAME};
use onetrip_node::disk::write_whole;
use onetrip_node::postgres::{
    become_user, bootstrap, end_bootstrap_below, prepare_folder, scram_verifier, LetIn, Server, ROOT_BECOMES,
};
use onetrip_node::tls::{self, Authority};

use crate::join_token::first_line;
use crate::lab::LabArgs;
use crate::{place, BadUsage};

/// Make the nodes of a new cluster, each with an empty PostgreSQL
///
/// Reads the regions from a topology file and makes a folder for each in --data. Free ports are chosen where the file
/// names none. If each region has a machine of its own, run this on each machine with its --region and the same
/// --cluster.
#[derive(Args)]
pub struct InitArgs {
    /// Topology file (TOML): regions, their hosts and ports, where the leader belongs
    #[arg(long, value_name = "FILE")]
    topology: PathBuf,
    /// Folder to make the nodes' folders in
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Name of the replicated database [default: the topology's, else onetrip]
    #[arg(long)]
    database: Option<String>,
    /// Make only this region's node
    #[arg(long, requires = "cluster")]
    region: Option<String>,
    /// Name of the cluster, the same for all its nodes [default: a random name]
    #[arg(long)]
    cluster: Option<String>,
    #[command(flatten)]
    sequences: SequenceArgs,
    /// Folder of PostgreSQL's programs [default: ONETRIP_POSTGRES_BIN, else where Debian or `pg_config` has them]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// User to run as, if called by root
    #[arg(long, default_value = ROOT_BECOMES)]
    user: String,
    /// Folder with the cluster's certificate authority, `ca.crt` and `ca.key`, which are made if they do not exist.
    /// Needed with --region: copy the folder to each machine, or the nodes will refuse each other [default: a new
    /// authority, kept in the nodes' folders only]
    #[arg(long, value_name = "DIR")]
    ca: Option<PathBuf>,
    /// The same, but the key stays there and is not put into the nodes' folders: keep that folder offline, and name it
    /// to `onetrip token` and `onetrip certificate`
    #[arg(long, value_name = "DIR", conflicts_with = "ca")]
    authority: Option<PathBuf>,
    /// Whom PostgreSQL lets in: `scram`, whoever runs as the node's user through the Unix socket and others by
    /// password; `trust`, everyone on this machine as any role, for trying things out [default: scram]
    #[arg(long, value_enum, value_name = "METHOD")]
    auth: Option<Auth>,
    /// File whose first line becomes the password of the role postgres; `-` asks for it [default: it has none, and
    /// connects through the Unix socket only]
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Neither encrypt connections between the nodes nor ask for certificates: anyone who can reach their ports has
    /// full control
    #[arg(long, conflicts_with_all = ["tls", "ca", "authority"])]
    no_tls: bool,
    /// Encrypt the connections between the nodes even with --lab
    #[arg(long, hide = true)]
    tls: bool,
    #[command(flatten)]
    lab: LabArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Auth {
    Scram,
    Trust,
}

// How the values of sequences are shared out among the regions of a new cluster.  (A doc comment would become that of
// the commands.)
#[derive(Args)]
pub struct SequenceArgs {
    /// Step in which sequences count, so that no two regions return the same value; at most so many regions can write
    /// at a time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    stride: u32,
    /// Let sequences count 1, 2, 3: only for a cluster in which one region alone writes
    #[arg(long, conflicts_with = "stride")]
    dense_sequences: bool,
}

impl SequenceArgs {
    pub fn stride(&self) -> u32 {
        if self.dense_sequences {
            1
        } else {
            self.stride
        }
    }
}

pub fn run(args: &InitArgs) -> Result<ExitCode> {
    let topology = Topology::load(&args.topology).map_err(|e| BadUsage(e.to_string()))?;
    let bin_dir = bin_dir(args.bin_dir.as_deref())?;
    let data = std::path::absolute(&args.data).context("find the data folder")?;
    let password = args.password_file.as_deref().map(password).transpose()?;
    let mut nodes = plan(args, &topology, &bin_dir, &data)?;
    if let Some(region) = &args.region {
        nodes.retain(|node| node.region.as_str() == region);
        if args.ca.is_none() && args.authority.is_none() && nodes.iter().any(|node| node.tls) {
            let why = "--region needs --ca DIR or --authority DIR, the same folder on each machine, for certificates that the other nodes accept \
                       (or --no-tls)";
            return Err(BadUsage(why.into()).into());
        }
    }
    if let [node] = &nodes[..] {
        place::warn_if_only_here(node.listen, "`host` in the topology");
    }
    Unfinished::check_release(&data)?;
    check_new(&nodes, &Unfinished::folders(&data))?;
    prepare_folder(&data, &args.user)?;
    // As the caller, who may be the only one to read it.
    let authority = authority(args, &nodes)?;
    let key_seed = key_seed(args, authority.as_ref())?;
    nodes.iter_mut().for_each(|node| node.key_seed = key_seed);
    become_user(&args.user, &data)?;
    let mut unfinished = Unfinished::take(&data)?;
    check_new(&nodes, &[])?;
    let cluster = nodes.first().map_or("", |node| node.cluster.as_str());
    let let_in = LetIn {
        trust: args.auth.map_or(args.lab.asked(), |auth| auth == Auth::Trust),
        verifier: password.as_deref().map(|password| scram_verifier(password, cluster)),
    };
    // From here on an error leaves nothing behind: `unfinished` sees to that.
    unfinished.begin(&nodes)?;
    make(&nodes, authority.as_ref(), args.authority.is_some(), &let_in)?;
    unfinished.done(&nodes)?;
    for node in &nodes {
        let port = node.postgres.as_ref().map_or(0, |p| p.port);
        say!(
            "{}: {} (PostgreSQL port {port}); start it with: onetrip start --data {}",
            node.region,
            node.data_dir.display(),
            node.data_dir.display()
        );
    }
    say!("{}", how_to_connect(&nodes, &let_in));
    Ok(ExitCode::SUCCESS)
}

/// `unfinished`: the folders that are going to be removed.
fn check_new(nodes: &[NodeConfig], unfinished: &[PathBuf]) -> Result<()> {
    for node in nodes.iter().filter(|node| !unfinished.contains(&node.data_dir)) {
        let folder = node.data_dir.display();
        if node.data_dir.join(FILE_NAME).exists() {
            bail!("{folder} contains a node already; nothing was changed. Run it with `onetrip start`");
        }
        if node.data_dir.exists() {
            bail!("{folder} exists already; nothing was changed. Choose another folder, or remove that one");
        }
    }
    Ok(())
}

fn password(file: &Path) -> Result<String> {
    let line = first_line(file, "password of the role postgres");
    let line = line.with_context(|| format!("read the password from {}", file.display()))?;
    let password = line.trim_end_matches(['\n', '\r']).to_string();
    if password.is_empty() || password.contains('\0') {
        return Err(BadUsage(format!("--password-file {}: its first line is no password", file.display())).into());
    }
    Ok(password)
}

/// Says how the superuser connects to the first of the nodes, and how others do.
fn how_to_connect(nodes: &[NodeConfig], let_in: &LetIn) -> String {
    let Some((node, postgres)) = nodes.iter().find_map(|node| Some((node, node.postgres.as_ref()?))) else {
        return String::new();
    };
    let command = |host: &str| format!("  psql -h {host} -p {} -U postgres {}", postgres.port, postgres.database);
    if let_in.trust {
        let all = "everyone on this machine may connect, as any role and without a password";
        return format!("Once it runs, {all}:\n{}", command("127.0.0.1"));
    }
    let by_password = match let_in.verifier {
        Some(_) => format!("or with the password:\n{}", command("127.0.0.1")),
        None => {
            "Others need a role with a password (CREATE ROLE app LOGIN PASSWORD ...), and connect to 127.0.0.1.".into()
        }
    };
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten().map_or("its user".into(), |u| u.name);
    let socket = command(&node.data_dir.display().to_string());
    format!("Once it runs, connect to it as {user} or root:\n{socket}\n{by_password}")
}

/// What an `init` that is under way is making, noted in a file beside the nodes' folders, so that one which was
/// interrupted at any point leaves nothing in the way of the next try: a name drawn for this call, and those of the
/// folders.  In each folder a file contains the same name.  Without it the folder is not removed: since the `init` was
/// interrupted, somebody may have made another node there.
pub struct Unfinished {
    data: PathBuf,
    file: Flock<File>,
}

impl Unfinished {
    /// The note beside the folders, and the file in each.
    pub const FILE: &'static str = "init.unfinished";

    /// Removes what an interrupted `init` has left in `data`.  The file is locked while an `init` runs.
    fn take(data: &Path) -> Result<Unfinished> {
        let path = data.join(Self::FILE);
        let open = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
        let file =
            open.with_context(|| format!("cannot write in {}: does it belong to another user?", data.display()))?;
        let Ok(file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            bail!("another `onetrip init` is at work in {}", data.display());
        };
        let unfinished = Unfinished { data: data.to_owned(), file };
        unfinished.remove_nodes();
        unfinished.file.set_len(0).with_context(|| format!("write {}", path.display()))?;
        Ok(unfinished)
    }

    /// The note of an earlier release has no name, only regions, which does not tell whose their folders are by now.
    fn check_release(data: &Path) -> Result<()> {
        let note = std::fs::read_to_string(data.join(Self::FILE)).unwrap_or_default();
        let is_name = |line: &str| {
            line.strip_prefix('c').is_some_and(|hex| hex.len() == 16 && hex.chars().all(|c| c.is_ascii_hexdigit()))
        };
        match note.lines().next() {
            Some(first) if note.contains('\n') && !is_name(first) => bail!(
                "an `onetrip init` of an earlier release was interrupted in {}: remove the folders that {} names unless \
                 they contain a node that is in use, and that file; nothing was changed",
                data.display(),
                Self::FILE
            ),
            _ => Ok(()),
        }
    }

    /// Makes the nodes' folders.
    fn begin(&mut self, nodes: &[NodeConfig]) -> Result<()> {
        let call = random_name()?;
        let names: String = nodes.iter().map(|node| format!("{}\n", node.region)).collect();
        let mut file = &*self.file;
        let noted = file.rewind().and_then(|()| file.write_all(format!("{call}\n{names}").as_bytes()));
        let noted = noted.and_then(|()| file.sync_all());
        noted.with_context(|| format!("write {}", self.data.join(Self::FILE).display()))?;
        for node in nodes {
            let folder = &node.data_dir;
            std::fs::create_dir(folder).with_context(|| format!("make {}", folder.display()))?;
            write_whole(&folder.join(Self::FILE), call.as_bytes())?;
        }
        Ok(())
    }

    /// The folders in `data` that are not complete.
    pub fn folders(data: &Path) -> Vec<PathBuf> {
        folders_of(data, &std::fs::read_to_string(data.join(Self::FILE)).unwrap_or_default())
    }

    fn remove_nodes(&self) {
        // Not by its name, which may be that of another's note by now.
        let (mut file, mut note) = (&*self.file, String::new());
        if file.rewind().and_then(|()| file.read_to_string(&mut note)).is_err() {
            return;
        }
        for folder in folders_of(&self.data, &note) {
            end_bootstrap_below(&folder);
            // The file goes last, so that this can be interrupted as well.
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            for entry in entries.filter(|entry| entry.file_name() != Self::FILE) {
                let _ = std::fs::remove_file(entry.path()).or_else(|_| std::fs::remove_dir_all(entry.path()));
            }
            let _ = std::fs::remove_dir_all(&folder);
        }
    }

    fn done(self, nodes: &[NodeConfig]) -> Result<()> {
        self.file.set_len(0).with_context(|| format!("write {}", self.data.join(Self::FILE).display()))?;
        // From here on they are complete, and what is left of these files means nothing.
        for node in nodes {
            let _ = std::fs::remove_file(node.data_dir.join(Self::FILE));
        }
        Ok(())
    }
}

/// The folders that this note is about: with its name in them, or with nothing in them yet.
fn folders_of(data: &Path, note: &str) -> Vec<PathBuf> {
    // A line that was written in part says nothing.
    let mut lines = note.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let Some(call) = lines.next() else { return Vec::new() };
    let is_name = |name: &&str| {
        let mut parts = Path::new(name).components();
        matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
    };
    let is_of_note = |folder: &PathBuf| {
        let begun = |name: std::ffi::OsString| name.to_string_lossy().starts_with(Unfinished::FILE);
        std::fs::read_to_string(folder.join(Unfinished::FILE)).is_ok_and(|of| of == call)
            || std::fs::read_dir(folder)
                .is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(|entry| begun(entry.file_name()))))
    };
    lines.filter(is_name).map(|name| data.join(name)).filter(is_of_note).collect()
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.remove_nodes();
        let _ = std::fs::remove_file(self.data.join(Self::FILE));
    }
}

fn plan(args: &InitArgs, topology: &Topology, bin_dir: &Path, data: &Path) -> Result<Vec<NodeConfig>> {
    let count = topology.regions.len();
    let stride = args.sequences.stride();
    if stride != 1 && count > stride as usize {
        return Err(BadUsage(format!("{count} regions need a --stride of {count} or more")).into());
    }
    if let Some(region) = &args.region {
        if topology.region_index(region).is_none() {
            return Err(BadUsage(format!("{} has no region {region:?}", args.topology.display())).into());
        }
        if let Some(missing) = topology.regions.iter().find(|r| r.peer_port.is_none()) {
            let why =
                format!("region {:?} needs a peer_port, so that the nodes on other machines know it", missing.name);
            return Err(BadUsage(why).into());
        }
    }
    let mut free = ports::free_ports(3 * count)?.into_iter();
    let mut port = |given: Option<u16>| given.or_else(|| free.next()).context("no free port is left");
    let mut places = Vec::new();
    for region in &topology.regions {
        let host: IpAddr = region.host.parse().map_err(|_| {
            BadUsage(format!("host of region {:?} is {:?}, not an IP address", region.name, region.host))
        })?;
        places.push((host, port(region.peer_port)?, port(region.http_port)?, port(region.postgres_port)?));
    }
    let cluster = match &args.cluster {
        Some(cluster) => cluster.clone(),
        None => random_name()?,
    };
    let tls = args.tls || !(args.lab.asked() || args.no_tls);
    if tls {
        tls::check_cluster_name(&cluster).map_err(BadUsage)?;
    }
    let database = args.database.clone().unwrap_or_else(|| topology.database().to_string());
    if database.is_empty() || database.len() > 63 || ["postgres", "template0", "template1"].contains(&database.as_str())
    {
        return Err(BadUsage(format!("{database:?} cannot be the replicated database: choose another name")).into());
    }
    let id = |index: usize| Ok::<_, std::num::TryFromIntError>(NodeId(u32::try_from(index + 1)?));
    let mut nodes = Vec::new();
    for (index, region) in topology.regions.iter().enumerate() {
        let mut members = Vec::new();
        let mut one_way_ms = BTreeMap::new();
        for (other, place) in places.iter().enumerate() {
            let rtt_ms = topology.rtt_ms(index, other);
            if args.lab.asked() && rtt_ms > 0.0 {
                one_way_ms.insert(RegionId::from(topology.regions[other].name.as_str()), rtt_ms / 2.0);
            }
            members.push(Member {
                id: id(other)?,
                region: RegionId::from(topology.regions[other].name.as_str()),
                address: SocketAddr::new(place.0, place.1),
                role: MemberRole::Voter,
            });
        }
        let (host, peer_port, http_port, postgres_port) = places[index];
        let region = RegionId::from(region.name.as_str());
        let (listen, http) = (SocketAddr::new(host, peer_port), SocketAddr::new([127, 0, 0, 1].into(), http_port));
        nodes.push(NodeConfig {
            preferred_leader: topology.preferred_leader().into(),
            sequence_stride: stride,
            sequence_slot: if stride == 1 { 0 } else { u32::try_from(index)? },
            lab: args.lab.asked(),
            tls,
            one_way_ms,
            postgres: Some(PostgresConfig::new(
                postgres_port,
                bin_dir.to_path_buf(),
                database.clone(),
                args.user.clone(),
            )),
            members,
            level: onetrip_core::level::KNOWN,
            data_dir: data.join(region.as_str()),
            ..NodeConfig::new(cluster.clone(), id(index)?, region, listen, http)
        });
    }
    Ok(nodes)
}

/// The cluster's certificate authority, if its nodes use certificates.
fn authority(args: &InitArgs, nodes: &[NodeConfig]) -> Result<Option<Authority>> {
    let Some(node) = nodes.iter().find(|node| node.tls) else { return Ok(None) };
    let Some(folder) = args.ca.as_ref().or(args.authority.as_ref()) else {
        return Ok(Some(Authority::new(&node.cluster)?));
    };
    Ok(Some(Authority::load_or_make(folder, &node.cluster)?))
}

/// Without certificates, nodes that are made on machines of their own have no secret in common.
fn key_seed(args: &InitArgs, authority: Option<&Authority>) -> Result<KeySeed> {
    match authority {
        Some(authority) => Ok(KeySeed::of_authority(authority)?),
        None if args.region.is_some() => Ok(KeySeed::default()),
        None => Ok(KeySeed::draw()?),
    }
}

/// Makes the nodes in parallel, because each takes most of its time for initdb.
fn make(nodes: &[NodeConfig], authority: Option<&Authority>, keep_key: bool, let_in: &LetIn) -> Result<()> {
    std::thread::scope(|scope| {
        let made: Vec<_> =
            nodes.iter().map(|node| (node, scope.spawn(move || make_one(node, authority, keep_key, let_in)))).collect();
        made.into_iter().try_for_each(|(node, thread)| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("making the node of region {} ended with a panic", node.region),
        })
    })
}

/// `keep_key`: the authority's key is not put into the node's folder.
fn make_one(node: &NodeConfig, authority: Option<&Authority>, keep_key: bool, let_in: &LetIn) -> Result<()> {
    let folder = &node.data_dir;
    if let Some(authority) = authority {
        let issued = authority.issue_at(node.node, &node.addresses()?)?;
        match keep_key {
            true => {
                let certificate = Authority::without_key(&node.cluster, authority.certificate_pem())?;
                tls::write_folder(folder, &certificate, &issued)?;
            }
            false => tls::write_folder(folder, authority, &issued)?,
        }
    }
    bootstrap(&Server::of(node)?, let_in)?;
    // Last: a folder with a node.toml is a complete node.
    node.save()?;
    Ok(())
}

pub fn random_name() -> Result<String> {
    let mut bytes = [0u8; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut bytes))
        .context("choose a random name for the cluster")?;
    // A name that consists of digits only would not be valid in a certificate.
    Ok(bytes.iter().fold("c".to_owned(), |name, b| format!("{name}{b:02x}")))
}
