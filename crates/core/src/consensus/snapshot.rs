//! Snapshots that bring a whole new state.  Decoding one takes long, so it is done beside all other work.

use super::{Consensus, Message};
use crate::certifier::Limits;
use crate::checkpoint::{Checkpoint, Conf};
use crate::error::{Error, Result};
use bytes::Bytes;
use raft::eraftpb::MessageType;
use raft::Storage;

/// A message that brings a snapshot, and the checkpoint decoded from it.
#[derive(Debug)]
pub struct Opened {
    message: Message,
    checkpoint: Box<Checkpoint>,
}

impl Opened {
    /// Decodes bytes from a peer.  `limits` are those of the cluster.
    pub fn open(mut message: Message, limits: Limits) -> Result<Opened> {
        let snapshot = message.get_snapshot();
        let metadata = snapshot.get_metadata();
        let checkpoint = Box::new(Checkpoint::decode(snapshot.data.clone(), limits)?);
        let says = (checkpoint.index().0, checkpoint.term.0, &checkpoint.conf);
        if says != (metadata.index, metadata.term, &Conf::from(metadata.get_conf_state())) {
            return Err(Error::malformed("snapshot", "it is not the checkpoint that it says it is"));
        }
        if !checkpoint.conf.is_sound() {
            return Err(Error::malformed("snapshot", format!("the configuration {:?}", checkpoint.conf)));
        }
        // raft-rs would take ids of 64 bits, and any number of them, so it gets those that were checked.
        message.mut_snapshot().mut_metadata().set_conf_state((&checkpoint.conf).into());
        Ok(Opened { message, checkpoint })
    }

    /// The checkpoint's bytes.
    pub fn data(&self) -> &Bytes {
        &self.message.get_snapshot().data
    }
}

impl<S: Storage> Consensus<S> {
    pub fn limits(&self) -> Limits {
        self.config.limits
    }

    /// Whether this message brings a snapshot that raft would install: then it has to be opened first.
    pub fn lacks(&self, message: &Message) -> bool {
        message.get_msg_type() == MessageType::MsgSnapshot && self.raft.lacks(message.get_snapshot().get_metadata())
    }

    pub(super) fn receive_snapshot(&mut self, Opened { message, checkpoint }: Opened) -> Result<()> {
        let (needs, known) = (checkpoint.members.level, self.config.level);
        if needs > known {
            return Err(Error::Level { needs, known });
        }
        self.raft.step(message)?;
        // Raft may pass it over, even while it is about to install an earlier one.
        if self.raft.to_install() == Some((checkpoint.index(), checkpoint.term)) {
            self.incoming = Some(checkpoint);
        }
        Ok(())
    }
}
