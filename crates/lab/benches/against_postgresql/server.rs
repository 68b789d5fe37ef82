//! PostgreSQL with nothing of ours in it: alone, or with synchronous standbys of which any one has to have each commit.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::{chown, geteuid, Pid, User};
use onetrip_lab::link::ClientLink;
use onetrip_lab::ports::free_ports;
use std::os::unix::process::CommandExt;

const START: Duration = Duration::from_secs(60);

/// In a folder that goes with it.
pub struct Server {
    folder: tempfile::TempDir,
    pub port: u16,
    child: Child,
    /// The way from a standby to its primary.
    _link: Option<ClientLink>,
}

fn as_server_user(program: &str) -> Result<Command> {
    let mut command = Command::new(onetrip_lab::postgres_bin().join(program));
    if geteuid().is_root() {
        let user = User::from_name("postgres")?.context("find the user postgres")?;
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw()).current_dir("/");
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

fn make_folder() -> Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("onetrip-bench-").tempdir_in("/var/tmp")?;
    if let Some(user) = User::from_name("postgres")?.filter(|_| geteuid().is_root()) {
        chown(folder.path(), Some(user.uid), Some(user.gid))?;
    }
    Ok(folder)
}

impl Server {
    pub async fn start() -> Result<Server> {
        let folder = make_folder()?;
        let initdb = ["-U", "postgres", "--encoding=UTF8", "--locale=C.UTF-8", "--auth=trust", "-D"];
        let made = as_server_user("initdb")?.args(initdb).arg(folder.path().join("data")).status()?;
        ensure!(made.success(), "initdb failed");
        Server::serve(folder, None).await
    }

    /// A primary with a standby for each round trip.  COMMIT waits for any one of them.
    pub async fn start_with_standbys(round_trips: &[Duration]) -> Result<(Server, Vec<Server>)> {
        let primary = Server::start().await?;
        let mut standbys = Vec::new();
        for (number, round_trip) in round_trips.iter().enumerate() {
            standbys.push(primary.standby(number, *round_trip).await?);
        }
        let client = primary.connect().await?;
        client.batch_execute("alter system set synchronous_standby_names = 'ANY 1 (*)'").await?;
        client.batch_execute("select pg_reload_conf()").await?;
        let deadline = Instant::now() + START;
        let count = "select count(*) from pg_stat_replication where state = 'streaming' and sync_state = 'quorum'";
        while client.query_one(count, &[]).await?.get::<_, i64>(0) != round_trips.len() as i64 {
            ensure!(Instant::now() < deadline, "the standbys do not stream");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok((primary, standbys))
    }

    async fn standby(&self, number: usize, round_trip: Duration) -> Result<Server> {
        let folder = make_folder()?;
        let any = "127.0.0.1:0".parse()?;
        let link = ClientLink::start(any, ([127, 0, 0, 1], self.port).into(), round_trip)?;
        let primary =
            format!("host=127.0.0.1 port={} user=postgres application_name=standby_{number}", link.address().port());
        let made = as_server_user("pg_basebackup")?
            .args(["-R", "-c", "fast", "-d", &primary, "-D"])
            .arg(folder.path().join("data"))
            .status()?;
        ensure!(made.success(), "pg_basebackup failed");
        Server::serve(folder, Some(link)).await
    }

    async fn serve(folder: tempfile::TempDir, link: Option<ClientLink>) -> Result<Server> {
        let port = free_ports(1)?[0];
        let child = as_server_user("postgres")?
            .arg("-D")
            .arg(folder.path().join("data"))
            .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"])
            .arg(format!("-cunix_socket_directories={}", folder.path().display()))
            .args(["-c", "max_connections=200", "-c", "shared_buffers=128MB", "-c", "synchronous_commit=on"])
            .spawn()?;
        let server = Server { folder, port, child, _link: link };
        let deadline = Instant::now() + START;
        while server.connect().await.is_err() {
            ensure!(Instant::now() < deadline, "plain PostgreSQL did not start");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(server)
    }

    pub async fn connect(&self) -> Result<tokio_postgres::Client> {
        let conninfo = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.port);
        let (client, connection) = tokio_postgres::connect(&conninfo, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    pub fn data(&self) -> PathBuf {
        Path::join(self.folder.path(), "data")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The folder goes after this, so an error has nobody left to tell.
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGQUIT);
        let _ = self.child.wait();
    }
}
