//! The HTTP port and PostgreSQL with TLS, as the command sees them.

use crate::{connect, folder, onetrip, told, until, Node, PASSWORD, REGIONS};
use anyhow::{ensure, Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use onetrip_node::config::NodeConfig;
use onetrip_node::tls::Authority;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Writes a file that only the user who has `like` can read.
fn write_like(like: &Path, file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text)?;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600))?;
    let owner = std::fs::metadata(like)?;
    Ok(std::os::unix::fs::chown(file, Some(owner.uid()), Some(owner.gid()))?)
}

/// A command that asks nodes over the network.
struct Asking(Command);

impl Asking {
    fn new(args: &[&str], http: &[String]) -> Asking {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onetrip"));
        command.args(args).args(http.iter().flat_map(|address| ["--http", address]));
        command.env("PGPASSWORD", PASSWORD).env_remove("SSL_CERT_FILE");
        Asking(command)
    }

    fn ca(mut self, file: &Path) -> Asking {
        self.0.arg("--ca").arg(file);
        self
    }

    /// With a system that believes this authority.
    fn system(mut self, file: &Path) -> Asking {
        self.0.env("SSL_CERT_FILE", file);
        self
    }

    fn token(mut self, token: &str) -> Asking {
        self.0.env("ONETRIP_HTTP_TOKEN", token);
        self
    }

    fn works(mut self) -> Result<()> {
        let said = self.0.output()?;
        ensure!(said.status.success(), "{:?}: {}", self.0, told(&said));
        Ok(())
    }

    fn fails(mut self, why: &str) -> Result<()> {
        let said = self.0.output()?;
        ensure!(!said.status.success() && told(&said).contains(why), "{:?}: {}", self.0, told(&said));
        Ok(())
    }
}

/// Goal: where the HTTP port and PostgreSQL speak nothing but TLS, every command works, and believes nobody whom it was
/// not told to believe.  Method: `a` and `b` show their nodes' certificates, `c` one of another authority.
#[tokio::test(flavor = "multi_thread")]
async fn commands_work_where_everything_is_encrypted() -> Result<()> {
    let folder = folder()?;
    let (data, topology) = (folder.path().join("nodes"), folder.path().join("topology.toml"));
    std::fs::write(&topology, REGIONS.map(|name| format!("[[region]]\nname = \"{name}\"\n")).concat())?;
    let password = folder.path().join("password");
    std::fs::write(&password, PASSWORD)?;
    let mut init = onetrip(&["init", "--cluster", "secret"], &data);
    let made = init.arg("--topology").arg(&topology).arg("--password-file").arg(&password).output()?;
    ensure!(made.status.success(), "{}", told(&made));
    let folders: Vec<PathBuf> = REGIONS.map(|name| data.join(name)).to_vec();
    let (other, shown, key) = (folder.path().join("other.crt"), data.join("c/http.crt"), data.join("c/http.key"));
    let show = |authority: &Authority| -> Result<()> {
        let issued = authority.issue_at(onetrip_core::NodeId(9), &[HERE])?;
        write_like(&folders[2], &shown, &issued.certificate)?;
        write_like(&folders[2], &key, &issued.key)
    };
    let company = Authority::new("company")?;
    std::fs::write(&other, company.certificate_pem())?;
    show(&company)?;
    write_like(&folders[2], &data.join("c/http.token"), TOKEN)?;
    for folder in &folders {
        let file = folder.join("node.toml");
        let own = match folder == &folders[2] {
            true => format!("http_certificate = {shown:?}\nhttp_key = {key:?}\n"),
            false => String::new(),
        };
        std::fs::write(&file, format!("http_tls = true\n{own}{}", std::fs::read_to_string(&file)?))?;
    }
    let nodes = folders.iter().map(|folder| Node::start(folder, "text")).collect::<Result<Vec<_>>>()?;
    until("all is well", || Ok(onetrip(&["status"], &data).output()?.status.success()))?;
    let configs = folders.iter().map(|folder| NodeConfig::load(folder)).collect::<Result<Vec<_>, _>>()?;
    for config in &configs {
        let file = config.data_dir.join("postgres/pg_hba.conf");
        std::fs::write(&file, format!("hostnossl all all all reject\n{}", std::fs::read_to_string(&file)?))?;
        let server = connect(config).await?;
        server.batch_execute("select pg_reload_conf()").await?;
    }
    connect(&configs[0]).await?.batch_execute("create table t (id int primary key)").await?;

    let http: Vec<String> = configs.iter().map(|config| format!("https://{}", config.http)).collect();
    let (ca, status) = (folders[0].join("tls/ca.crt"), |of: usize| Asking::new(&["status"], &http[of..=of]));
    status(0).ca(&ca).works()?;
    status(0).system(&ca).works()?;
    status(0).fails("certificate")?;
    status(0).system(&other).fails("invalid peer certificate")?;
    status(0).ca(&folders[0].join("tls/node.crt")).fails("is not the certificate of a cluster's authority")?;
    status(2).ca(&ca).token(TOKEN).fails("invalid peer certificate")?;
    status(2).system(&other).fails("show the token")?;
    status(2).system(&other).token(TOKEN).works()?;
    let by_name = [http[2].replace("127.0.0.1", "localhost")];
    Asking::new(&["status"], &by_name).system(&other).token(TOKEN).fails("not valid for name")?;
    Asking::new(&["status"], &[configs[0].http.to_string()]).fails("this port speaks TLS: ask https://")?;

    Asking::new(&["check"], &http[..2]).ca(&ca).works()?;
    Asking::new(&["check"], &http[..2]).system(&ca).works()?;
    let check = |options: &str| {
        let place = |config: &NodeConfig| {
            let port = config.postgres.as_ref().map_or(0, |postgres| postgres.port);
            format!("port={port} user=postgres dbname=onetrip {options}")
        };
        let places: Vec<String> = configs.iter().map(place).collect();
        let mut asking = Asking::new(&["check", "--connect"], &[]);
        asking.0.args(places);
        asking
    };
    let (ca, other) = (ca.display(), other.display());
    check("host=127.0.0.1").works()?;
    check(&format!("host=127.0.0.1 sslmode=verify-full sslrootcert={ca}")).works()?;
    check(&format!("host=localhost sslmode=verify-ca sslrootcert={ca}")).works()?;
    check("host=127.0.0.1 sslmode=require channel_binding=require").works()?;
    check("host=127.0.0.1 sslmode=allow").works()?;
    check("host=127.0.0.1 sslmode=disable").fails("pg_hba.conf rejects connection")?;
    check(&format!("host=localhost sslmode=verify-full sslrootcert={ca}")).fails("not valid for name")?;
    check(&format!("host=127.0.0.1 sslmode=require sslrootcert={other}")).fails("invalid peer certificate")?;
    let mut by_environment = check("host=127.0.0.1");
    by_environment.0.env("PGSSLMODE", "verify-ca").env("PGSSLROOTCERT", format!("{other}"));
    by_environment.fails("invalid peer certificate")?;

    // Another authority's, then a file that is none.
    let renewed = folder.path().join("renewed.crt");
    let newer = Authority::new("company")?;
    std::fs::write(&renewed, newer.certificate_pem())?;
    show(&newer)?;
    status(2).system(&renewed).token(TOKEN).fails("invalid peer certificate")?;
    let pid = Pid::from_raw(std::fs::read_to_string(folders[2].join("node.pid"))?.trim().parse()?);
    let reload = |says: &str| -> Result<()> {
        kill(pid, Signal::SIGHUP)?;
        until(says, || Ok(std::fs::read_to_string(folders[2].join("node.log"))?.contains(says)))
    };
    reload("new connections to the HTTP port get its present certificate")?;
    status(2).system(&renewed).token(TOKEN).works()?;
    std::fs::write(&shown, "nonsense")?;
    reload("the certificate of the HTTP port stays as it was")?;
    status(2).system(&renewed).token(TOKEN).works()?;
    nodes.into_iter().try_for_each(Node::stop).context("stop them")
}
