//! Whether a copy of PostgreSQL that a node orders is needed: judged by what has committed, by what its log has, and by
//! what the server has said, and by nothing that the node has concluded from it.

use crate::agent::ToNode;
use crate::world::World;
use onetrip_core::agent::Role;
use onetrip_core::LogIndex;
use std::collections::BTreeSet;

/// A server that has come so often without getting on, each time after an end, may be copied.
const LIVES: usize = 4;

/// What the apply worker has said in this life of its node.
#[derive(Default)]
pub struct Heard {
    /// What it showed when it came last.
    shows: LogIndex,
    /// In which incarnations it has come and shown that.
    lives: BTreeSet<u64>,
    /// The entry that it cannot apply.
    stuck: Option<LogIndex>,
}

impl Heard {
    pub fn hear(&mut self, frame: &ToNode) {
        match frame {
            ToNode::Hello { hello, .. } if hello.role == Role::ApplyWorker => {
                if hello.applied != self.shows {
                    self.lives.clear();
                }
                self.shows = hello.applied;
                self.lives.insert(hello.incarnation);
            }
            ToNode::Stuck { at, .. } => self.stuck = Some(*at),
            _ => {}
        }
    }
}

impl World {
    /// Node `i` has ordered a copy: there is no PostgreSQL, or something that it lacks is not in the log, or it says
    /// that it does not get on.
    pub(crate) fn check_copy(&mut self, i: usize) {
        let (m, checker) = (&self.machines[i], &mut self.ctx.checker);
        let (Some(node), Some(postgres)) = (&m.node, &m.postgres) else { return };
        let (Some(order), Heard { shows, lives, stuck }) = (node.ordered(), &node.body.heard) else { return };
        let gets_on = !order.keep_old || *stuck != Some(order.at_least) && lives.len() < LIVES;
        if postgres.made && gets_on && checker.lacked(*shows, node.log_first()).is_none() {
            let (id, first, last) = (node.id, node.log_first(), node.replica.consensus.log().last_index());
            let log = format!("the log of its node, {first} to {last}, has what it lacks");
            checker.fail(format!("a needless copy: PostgreSQL {id} shows {shows}, and {log}"));
        }
    }
}
