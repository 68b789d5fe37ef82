//! What operators have asked of the table of members.

use super::admin::{Answer, Answered};
use super::CoreThread;
use crate::inbox::AdminReply;
use onetrip_core::consensus::Input;

impl CoreThread {
    /// Goes on with what operators have asked for.
    pub(super) fn administer(&mut self) {
        let (answered, commands) = self.host.admin.work(self.replica.ticks(), self.replica.members());
        for answered in answered {
            self.answer(answered);
        }
        for command in commands {
            self.replica.step(Input::Change(command), &mut self.host);
        }
    }

    pub(super) fn answer(&mut self, answered: Answered) {
        let members = self.replica.members();
        let (answer, reply): (Answer, _) = match answered {
            Answered::Reply(answer, reply) => (answer, reply),
            Answered::Joined(answer, id) => match members.get(id) {
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
