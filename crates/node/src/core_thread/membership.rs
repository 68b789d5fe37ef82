//! What operators have asked of the table of members.

use super::admin::{Answer, Settled};
use super::CoreThread;
use crate::inbox::AdminReply;
use onetrip_core::consensus::Input;

impl CoreThread {
    /// Goes on with what operators have asked for.
    pub(super) fn administer(&mut self) {
        let (settled, commands) = self.host.admin.work(self.replica.ticks(), self.replica.members());
        for settled in settled {
            self.settle(settled);
        }
        for command in commands {
            self.replica.step(Input::Change(command), &mut self.host);
        }
    }

    pub(super) fn settle(&mut self, settled: Settled) {
        let members = self.replica.members();
        let (answer, reply): (Answer, _) = match settled {
            Settled::Reply(answer, reply) => (answer, reply),
            Settled::Joined(answer, id) => match members.get(id) {
                // Two nodes under one id would vote twice.
                Some(member) if self.host.transport.peers().iter().any(|p| p.id == id && p.connected) => {
                    (answer, Err(format!("node {id} in {} joined with this token and runs already", member.region)))
                }
                Some(member) => {
                    let (member, members) = (member.clone(), members.clone());
                    let checkpoint = self.replica.encoded_checkpoint();
                    (answer, Ok(AdminReply::Joined { member, members, checkpoint }))
                }
                None => (answer, Err(format!("node {id} was removed meanwhile"))),
            },
        };
        // Nobody waiting any more is no harm.
        let _ = answer.send(reply);
    }
}
