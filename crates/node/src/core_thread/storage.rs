//! Opens the checkpoint and the log as earlier lives of the node left them.

use crate::config::NodeConfig;
use crate::disk::{sync_dir, CheckpointFile, RaftLog};
use crate::error::{Error, Result};
use onetrip_core::replica::Replica;
use onetrip_core::Checkpoint;

/// Both are verified, and fit together.
pub(super) fn open(config: &NodeConfig) -> Result<(CheckpointFile, Checkpoint, RaftLog)> {
    // The files in it were synced before they got their names; the names themselves may not have been.
    sync_dir(&config.data_dir)?;
    let file = CheckpointFile::new(config.checkpoint_file());
    file.forget_prepared()?;
    let found = match file.load(config.limits())? {
        Some(found) => found,
        None if config.members.is_empty() => {
            let why =
                "it names no `[[member]]` and there is no checkpoint: `onetrip init` or `onetrip join` makes a node";
            return Err(Error::Config { file: config.data_dir.join(crate::config::FILE_NAME), why: why.into() });
        }
        None => Checkpoint::bootstrap(config.bootstrap_members(), config.limits()),
    };
    let folder = config.data_dir.join("log");
    let mut log = RaftLog::open_limited(&folder, config.log_bytes_max)?;
    log.keep_checkpoints_in(file.clone());
    match Replica::<RaftLog, crate::agent::AgentQueue>::put_in_order(&found, &mut log)? {
        Some(why) => Err(Error::Corrupted { file: folder, why }),
        None => Ok((file, found, log)),
    }
}
