//! `make torture`: the torture of `onetrip_lab::torture` on the `onetrip-lab` command that lies beside this program.

mod program;

use std::process::ExitCode;

use clap::Parser;
use onetrip_lab::torture::{disk, run, Load, Options};

/// Real clusters under every kind of fault: does what was promised hold?
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    common: program::Common,
    /// Only faults whose name has this in it; may be given several times
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// An injected bug, to see it found: fsync does nothing (use with --only "power loss")
    #[arg(long)]
    lying_fsync: bool,
    /// No faults at all
    #[arg(long)]
    calm: bool,
    /// Only this workload; may be given several times
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// Times the usual number of clients
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=20))]
    clients: u64,
    /// Clients pause for up to this many milliseconds between transactions
    #[arg(long, default_value_t = 20)]
    pause_ms: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // Before any thread.  Without it there are no disks of our own, which the table says.
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
            load: Load { only: args.workload, clients: args.clients, pause_ms_max: args.pause_ms },
        };
        run(&options).await
    })
}
