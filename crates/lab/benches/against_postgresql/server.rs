//! PostgreSQL without Onetrip: alone, with synchronous standbys, or with synchronous subscribers.  A commit waits for
//! as many of the others as make a majority of all servers together with the primary.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use nix::unistd::Pid;
use onetrip_lab::link::ClientLink;
use onetrip_lab::{plain, postmaster};
use tokio_postgres::types::PgLsn;

const START: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// How long standbys that are slower than their primary may take to reach the end of its WAL.
const CONVERGE: Duration = Duration::from_secs(90);

pub struct Postgres {
    pub name: String,
    primary: Server,
    /// Standbys, which copy pages, or subscribers, which carry out changes of rows.
    others: Vec<Server>,
    subscribe: bool,
}

impl Postgres {
    /// Starts a primary with a standby for each round trip; without any, a server alone.
    pub async fn start(round_trips: &[Duration]) -> Result<Postgres> {
        let primary = Server::start(&SETTINGS).await?;
        let mut others = Vec::new();
        for (number, round_trip) in round_trips.iter().enumerate() {
            others.push(primary.standby(number, *round_trip).await?);
        }
        if others.is_empty() {
            return Ok(Postgres { name: "PostgreSQL".into(), primary, others, subscribe: false });
        }
        let name = format!("PostgreSQL, ANY {} of {}", others.len().div_ceil(2), others.len());
        let started = Postgres { name, primary, others, subscribe: false };
        started.wait_for_others().await?;
        Ok(started)
    }

    /// Starts a server and its subscribers, without distance.  Each runs `sql` first, which gives the same rows each
    /// time.
    pub async fn start_publisher(subscribers: usize, sql: &str) -> Result<Postgres> {
        let name = format!("PostgreSQL, logical, ANY {} of {subscribers}", subscribers.div_ceil(2));
        let primary = Server::start(&[SETTINGS.as_slice(), &["wal_level=logical"]].concat()).await?;
        let client = primary.connect(primary.server.port()).await?;
        client.batch_execute(&format!("{sql}; create publication everything for all tables")).await?;
        let mut others = Vec::new();
        for number in 0..subscribers {
            let other = Server::start(&SETTINGS).await?;
            let client = other.connect(other.server.port()).await?;
            client.batch_execute(sql).await?;
            // A change counts as flushed at once only if the subscriber's own commits wait for their flush.
            let subscription = format!(
                "create subscription subscriber_{number} connection '{}' publication everything
                 with (copy_data = false, synchronous_commit = on)",
                primary.server.conninfo()
            );
            client.batch_execute(&subscription).await?;
            others.push(other);
        }
        let started = Postgres { name, primary, others, subscribe: true };
        started.wait_for_others().await?;
        Ok(started)
    }

    /// From now on a commit waits for as many of the others as make a majority with the primary.
    async fn wait_for_others(&self) -> Result<()> {
        let client = self.connect().await?;
        let waits_for = self.others.len().div_ceil(2);
        let names = format!("alter system set synchronous_standby_names = 'ANY {waits_for} (*)'");
        client.batch_execute(&names).await?;
        client.batch_execute("select pg_reload_conf()").await?;
        let deadline = Instant::now() + START;
        let count = "select count(*) from pg_stat_replication where state = 'streaming' and sync_state = 'quorum'";
        while client.query_one(count, &[]).await?.get::<_, i64>(0) != self.others.len() as i64 {
            ensure!(Instant::now() < deadline, "the others do not stream");
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    pub fn has_standbys(&self) -> bool {
        !self.others.is_empty() && !self.subscribe
    }

    /// The port of the server that takes writes.
    pub fn port(&self) -> u16 {
        self.primary.server.port()
    }

    pub async fn connect(&self) -> Result<tokio_postgres::Client> {
        self.primary.connect(self.primary.server.port()).await
    }

    /// Connects to the primary through the link of a standby; `None` if there is no distance between them.
    pub async fn connect_from(&self, standby: usize) -> Result<Option<tokio_postgres::Client>> {
        match self.others.get(standby).and_then(|standby| standby.link.as_ref()) {
            Some(link) => self.primary.connect(link.address().port()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Every process of every server.
    pub fn processes(&self) -> Vec<Pid> {
        let servers = std::iter::once(&self.primary).chain(&self.others);
        servers.flat_map(|server| postmaster::processes(&server.server.data())).collect()
    }

    /// The port at one end of each replication connection.
    pub async fn replication_ports(&self) -> Result<BTreeSet<u16>> {
        let ports = "select client_port from pg_stat_replication";
        let rows = self.connect().await?.query(ports, &[]).await?;
        rows.iter().map(|row| Ok(u16::try_from(row.get::<_, i32>(0))?)).collect()
    }

    /// Waits until every other server shows what the primary shows now.
    pub async fn converge(&self) -> Result<()> {
        let client = self.connect().await?;
        let end: PgLsn = client.query_one("select pg_current_wal_lsn()", &[]).await?.get(0);
        let reached = "select count(*) from pg_stat_replication where replay_lsn >= $1";
        let deadline = Instant::now() + CONVERGE;
        while client.query_one(reached, &[&end]).await?.get::<_, i64>(0) != self.others.len() as i64 {
            ensure!(Instant::now() < deadline, "another server does not reach the end of its primary's WAL");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

/// A server in a folder that is removed after it.
struct Server {
    server: plain::Server,
    _folder: tempfile::TempDir,
    /// The link from a standby to its primary, if there is a distance.
    link: Option<ClientLink>,
}

const SETTINGS: [&str; 2] = ["max_connections=200", "synchronous_commit=on"];

fn make_folder() -> Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("onetrip-bench-").tempdir_in("/var/tmp")?;
    plain::give(folder.path())?;
    Ok(folder)
}

impl Server {
    async fn start(settings: &[&str]) -> Result<Server> {
        let folder = make_folder()?;
        let server = plain::Server::start(folder.path(), settings).await?;
        Ok(Server { server, _folder: folder, link: None })
    }

    async fn standby(&self, number: usize, round_trip: Duration) -> Result<Server> {
        let folder = make_folder()?;
        let primary = SocketAddr::from(([127, 0, 0, 1], self.server.port()));
        let link = match round_trip {
            // There is no link between Onetrip's nodes in one place either.
            Duration::ZERO => None,
            _ => Some(ClientLink::start("127.0.0.1:0".parse()?, primary, round_trip)?),
        };
        let port = link.as_ref().map_or(self.server.port(), |link| link.address().port());
        let primary = format!("host=127.0.0.1 port={port} user=postgres application_name=standby_{number}");
        let made = plain::as_server_user("pg_basebackup")?
            .args(["-R", "-c", "fast", "-d", &primary, "-D"])
            .arg(folder.path().join("data"))
            .status()?;
        ensure!(made.success(), "pg_basebackup failed");
        let server = plain::Server::serve(folder.path(), &SETTINGS).await?;
        Ok(Server { server, _folder: folder, link })
    }

    /// Connects through the server's own port, or through that of a link to it.
    async fn connect(&self, port: u16) -> Result<tokio_postgres::Client> {
        plain::connect(&format!("host=127.0.0.1 port={port} user=postgres dbname=postgres")).await
    }
}
