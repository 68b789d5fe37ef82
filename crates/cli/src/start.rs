//! `onetrip start`: runs one node in the foreground, with its PostgreSQL.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use onetrip_node::config::{NodeConfig, FILE_NAME};
use onetrip_node::postgres::{become_user, ROOT_BECOMES};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::mpsc;

use crate::init::Unfinished;
use crate::log_line::{self, LogFormat};
use crate::BadUsage;

/// Run a node and its PostgreSQL in the foreground
///
/// SIGTERM or SIGINT (Ctrl-C) shuts down both in order, and so does a closed terminal (not with `nohup`). Logs go to
/// standard error; RUST_LOG chooses how much is logged (default: info).
#[derive(Args)]
pub struct StartArgs {
    /// The node's folder, as `onetrip init` made it: DIR/<region>
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// User to run as, if called by root [default: the user that the node was made with]
    #[arg(long)]
    user: Option<String>,
    /// How a line of the log looks
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    log_format: LogFormat,
    /// Stop when standard input ends, so that the node stops when its parent process dies
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
}

pub fn run(args: &StartArgs) -> Result<ExitCode> {
    // What cannot be looked at is told when it is loaded.
    if !args.data.join(FILE_NAME).try_exists().unwrap_or(true) {
        let regions: Vec<String> = crate::nodes::in_folder(&args.data)
            .map(|nodes| nodes.iter().map(|n| n.data_dir.display().to_string()).collect())
            .unwrap_or_default();
        let hint = match regions.is_empty() {
            true => "make a node there with `onetrip init`".to_string(),
            false => format!("start one of {}", regions.join(", ")),
        };
        return Err(BadUsage(format!("{} contains no {FILE_NAME}: {hint}", args.data.display())).into());
    }
    let config = NodeConfig::load(&args.data)?;
    if config.data_dir.parent().is_some_and(|beside| Unfinished::folders(beside).contains(&config.data_dir)) {
        let why = "`onetrip init` was interrupted before this node was complete: call it again";
        return Err(BadUsage(format!("{}: {why}", args.data.display())).into());
    }
    let configured = config.postgres.as_ref().and_then(|p| p.user.as_deref());
    // Before anything is opened, created or started.
    become_user(args.user.as_deref().or(configured).unwrap_or(ROOT_BECOMES), &config.data_dir)?;
    let (until_stdin_closes, log_format) = (args.until_stdin_closes, args.log_format);
    foreground(config, Foreground { until_stdin_closes, log_format, ..Foreground::default() })
}

#[derive(Default)]
pub struct Foreground {
    pub until_stdin_closes: bool,
    /// Log only warnings and errors unless RUST_LOG asks for more, because progress is shown instead.
    pub quiet: bool,
    pub log_format: LogFormat,
    /// Runs beside the node; when it is done, the node keeps running.
    pub beside: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Runs the node until it is told to stop.  The process runs as the node's user already.
pub fn foreground(config: NodeConfig, how: Foreground) -> Result<ExitCode> {
    crate::keep_files_private();
    log_line::to_stderr(if how.quiet { "warn" } else { "info" }, how.log_format);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let stdin = how.until_stdin_closes;
    let result = runtime.block_on(async move {
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        // A closed terminal stops the node as Ctrl-C does; otherwise its PostgreSQL would keep running without it.  Any
        // other SIGHUP has it read its settings again, and so does each if the node is to outlive its terminal.
        let ends_with_terminal = has_terminal() && !ignores_hangup();
        let mut hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
        let (reload, reloads) = mpsc::channel(1);
        let shutdown = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = async {
                    while hangup.recv().await.is_some() && (!ends_with_terminal || has_terminal()) {
                        // One that waits will read everything anew.
                        let _ = reload.try_send(());
                    }
                } => {}
                () = stdin_closed(), if stdin => {}
            }
        };
        if let Some(beside) = how.beside {
            tokio::spawn(beside);
        }
        onetrip_node::run(config, shutdown, reloads).await?;
        Ok::<_, anyhow::Error>(())
    });
    // A blocked read of standard input must not delay the end of the process, whether the node was stopped or failed.
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

/// Whether this process has a terminal that controls it; one that was closed does not count.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Whether this process was started so, as by `nohup`; to be asked before it handles the signal.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // A bit for each signal, that of number 1 first.
    ignored.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 == 1))
}

async fn stdin_closed() {
    let mut stdin = tokio::io::stdin();
    let mut bytes = [0u8; 64];
    while matches!(stdin.read(&mut bytes).await, Ok(count) if count > 0) {}
}
