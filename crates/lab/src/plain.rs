//! A PostgreSQL server without Onetrip, to compare with.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use std::os::unix::process::CommandExt;

use anyhow::{ensure, Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::{chown, geteuid, Pid, User};
use onetrip_client::ports::free_ports;
use tokio_postgres::Client;

const START: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// The server ends with this value; its folder stays.
pub struct Server {
    folder: PathBuf,
    port: u16,
    child: Child,
}

/// A program of PostgreSQL, run as the user `postgres` by root, because the server refuses to run as root.
pub fn as_server_user(program: &str) -> Result<Command> {
    let mut command = Command::new(crate::postgres_bin().join(program));
    if geteuid().is_root() {
        let user = User::from_name("postgres")?.context("find the user postgres")?;
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw()).current_dir("/");
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

/// Gives a folder to the user that the server runs as.
pub fn give(folder: &Path) -> Result<()> {
    if let Some(user) = User::from_name("postgres")?.filter(|_| geteuid().is_root()) {
        chown(folder, Some(user.uid), Some(user.gid))?;
    }
    Ok(())
}

impl Server {
    /// Makes a server in `folder`, which exists and is empty, and starts it with these settings (`name=value`).
    pub async fn start(folder: &Path, settings: &[&str]) -> Result<Server> {
        give(folder)?;
        // As `onetrip init` makes one.
        let initdb =
            ["-U", "postgres", "--encoding=UTF8", "--locale=C.UTF-8", "--data-checksums", "--auth=trust", "-D"];
        let made = as_server_user("initdb")?.args(initdb).arg(folder.join("data")).status()?;
        ensure!(made.success(), "initdb failed");
        Server::serve(folder, settings).await
    }

    /// Starts the server whose data is in `folder`/data.
    pub async fn serve(folder: &Path, settings: &[&str]) -> Result<Server> {
        let port = free_ports(1)?[0];
        let mut command = as_server_user("postgres")?;
        command.arg("-D").arg(folder.join("data")).args(["-p", &port.to_string()]);
        command.arg(format!("-cunix_socket_directories={}", folder.display()));
        for setting in ["listen_addresses=127.0.0.1", "shared_buffers=128MB"].iter().chain(settings) {
            command.args(["-c", setting]);
        }
        let server = Server { folder: folder.to_path_buf(), port, child: command.spawn()? };
        let deadline = Instant::now() + START;
        while server.connect().await.is_err() {
            ensure!(Instant::now() < deadline, "plain PostgreSQL did not start");
            tokio::time::sleep(POLL).await;
        }
        Ok(server)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub fn conninfo(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.port)
    }

    pub async fn connect(&self) -> Result<Client> {
        connect(&self.conninfo()).await
    }
}

/// Connects without TLS; the connection is driven by a task of its own.
pub async fn connect(conninfo: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(conninfo, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whoever made the folder removes it after this, so nobody needs to know of an error.
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGQUIT);
        let _ = self.child.wait();
    }
}
