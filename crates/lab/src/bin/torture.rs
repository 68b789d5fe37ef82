//! `make torture`: runs `onetrip_lab::torture` with the `onetrip-lab` command beside this program.

mod program;

use std::process::ExitCode;

use clap::Parser;
use onetrip_lab::torture::{disk, run, Load, Options};

/// Run a real cluster under every kind of fault, and check that its promises hold
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    common: program::Common,
    /// Only faults whose name contains this; may be given several times
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Inject a bug that the torture must find: fsync does nothing (use with --only "power loss")
    #[arg(long)]
    lying_fsync: bool,
    /// No faults at all
    #[arg(long)]
    calm: bool,
    /// Faults from the beginning
    #[arg(long, conflicts_with = "calm")]
    no_calm: bool,
    /// Only this workload; may be given several times
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// Multiply the usual number of clients by this
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=20))]
    clients: u64,
    /// Clients pause for up to this many milliseconds between transactions
    #[arg(long, default_value_t = 20)]
    pause_ms: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // Before any thread is started.  If this fails, nodes have no disks of their own, and the table says so.
    if let Err(why) = disk::unshare_mounts() {
        eprintln!("torture: {why:#}");
    }
    program::run("torture", &args.common, |place| async move {
        let options = Options {
            duration: place.duration,
            seed: place.seed,
            binary: place.binary,
            folder: place.folder,
            only: args.only,
            lying_fsync: args.lying_fsync,
            calm: args.calm,
            no_calm: args.no_calm,
            load: Load { only: args.workload, clients: args.clients, pause_ms_max: args.pause_ms },
        };
        run(&options).await
    })
}
