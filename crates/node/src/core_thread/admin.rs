//! Changes of the membership that somebody asked for: proposed until the table shows them, or for ten seconds.
//!
//! Any node takes them; the leader appends them.  A proposal may be lost, or come too late for the table that it was
//! made for: then the table's version has changed, and the next one is made for the new table.

use crate::inbox::{AdminReply, AdminRequest};
use crate::secret::{self, Secret};
use onetrip_core::members::{Change, Command, Members, Token};
use onetrip_core::{Member, MemberRole, NodeId};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;

/// 10 s, and 0.5 s between two proposals for the same table.
const PATIENCE_TICKS: u64 = 500;
const AGAIN_TICKS: u64 = 25;
const TTL_S_MAX: u64 = 10 * 365 * 86_400;
/// A refusal by this node's table counts only after so long: the table may be a little behind.
const REFUSE_TICKS: u64 = 25;
/// Beyond these a request is refused.
const OPEN_MAX: usize = 100;

pub type Answer = oneshot::Sender<Result<AdminReply, String>>;

enum Wanted {
    Token { token: Token, secret: Secret },
    Join { change: Change, hash: [u8; 32] },
    Remove(NodeId),
    Prefer(Change),
}

struct Open {
    wanted: Wanted,
    answer: Answer,
    give_up_at: u64,
    /// For which version of the table, and when.
    proposed: Option<(u64, u64)>,
}

#[derive(Default)]
pub(super) struct AdminRequests {
    open: Vec<Open>,
}

/// What came of a request.
pub(super) enum Answered {
    Reply(Answer, Result<AdminReply, String>),
    /// The member with that token is there; it needs a checkpoint.
    Joined(Answer, NodeId),
}

impl AdminRequests {
    /// `Some`: answered at once.
    pub fn ask(
        &mut self,
        request: AdminRequest,
        answer: Answer,
        tick: u64,
        members: &Arc<Members>,
    ) -> Option<Answered> {
        let wanted = match wanted(request, members) {
            Ok(Some(wanted)) => wanted,
            Ok(None) => return Some(Answered::Reply(answer, Ok(AdminReply::Members(members.clone())))),
            Err(why) => return Some(Answered::Reply(answer, Err(why))),
        };
        if self.open.len() >= OPEN_MAX {
            return Some(Answered::Reply(answer, Err("too many changes of the membership are under way".into())));
        }
        self.open.push(Open { wanted, answer, give_up_at: tick + PATIENCE_TICKS, proposed: None });
        None
    }

    /// Who can be answered, and what is to be proposed (again).  To be called on each tick and when the table has changed.
    pub fn work(&mut self, tick: u64, members: &Arc<Members>) -> (Vec<Answered>, Vec<Command>) {
        let (mut answered, mut commands) = (Vec::new(), Vec::new());
        for mut open in std::mem::take(&mut self.open) {
            if open.answer.is_closed() {
                continue;
            }
            let change = match open.wanted.left_to_do(members) {
                Ok(change) => change,
                Err(done) => {
                    answered.push(done(open.answer));
                    continue;
                }
            };
            if tick >= open.give_up_at {
                let why = format!(
                    "this was not decided within 10 s ({change}): is there a leader, and a majority? Ask again"
                );
                answered.push(Answered::Reply(open.answer, Err(why)));
                continue;
            }
            let command = Command { expected_version: members.version, change };
            if let Err(why) = Members::clone(members).apply(&command) {
                if tick + PATIENCE_TICKS < open.give_up_at + REFUSE_TICKS {
                    self.open.push(open);
                } else {
                    answered.push(Answered::Reply(open.answer, Err(why.0)));
                }
                continue;
            }
            let is_due =
                open.proposed.is_none_or(|(version, at)| version != members.version || at + AGAIN_TICKS <= tick);
            if is_due {
                open.proposed = Some((members.version, tick));
                commands.push(command);
            }
            self.open.push(open);
        }
        (answered, commands)
    }
}

impl AdminRequests {
    /// This node has left, and may never see that in its own log.
    pub fn removed(&mut self, me: NodeId, members: &Members) {
        let mut left = members.clone();
        if left.contains(me) {
            // A refusal cannot be: it has happened.
            let _ = left.apply(&Command { expected_version: left.version, change: Change::Remove(me) });
        }
        let left = Arc::new(left);
        for open in std::mem::take(&mut self.open) {
            if matches!(open.wanted, Wanted::Remove(id) if id == me) {
                let _ = open.answer.send(Ok(AdminReply::Members(left.clone())));
            }
        }
    }
}

type Done = Box<dyn FnOnce(Answer) -> Answered>;

impl Wanted {
    /// The change that is still wanted of this table, or the answer if there is none.
    fn left_to_do(&self, members: &Arc<Members>) -> Result<Change, Done> {
        let reply = |reply: AdminReply| -> Done { Box::new(|answer| Answered::Reply(answer, Ok(reply))) };
        match self {
            Wanted::Token { token, secret } if members.tokens.contains(token) => Err(reply(AdminReply::Token(*secret))),
            Wanted::Token { token, .. } => Ok(Change::AddToken(token.clone())),
            Wanted::Join { change, hash } => match members.joined_with(hash) {
                Some(member) => {
                    let id = member.id;
                    match already_used(member, change) {
                        Some(why) => Err(Box::new(move |answer| Answered::Reply(answer, Err(why)))),
                        None => Err(Box::new(move |answer| Answered::Joined(answer, id))),
                    }
                }
                None => Ok(change.clone()),
            },
            Wanted::Remove(id) if members.removed(*id) => Err(reply(AdminReply::Members(members.clone()))),
            Wanted::Remove(id) => Ok(Change::Remove(*id)),
            Wanted::Prefer(Change::PreferLeader(region)) if *region == members.preferred_leader => {
                Err(reply(AdminReply::Members(members.clone())))
            }
            Wanted::Prefer(change) => Ok(change.clone()),
        }
    }
}

/// Why `member`, which came with this token, is not who asks now.  Two nodes of one number, or one that has forgotten what it
/// voted for, could lose what was acknowledged.
fn already_used(member: &Member, asked: &Change) -> Option<String> {
    let id = member.id;
    let otherwise = format!("take it out with `onetrip leave --node {id}` and ask for a new token");
    match asked {
        _ if member.voter => {
            Some(format!("node {id} joined with this token and votes already; if it is lost, {otherwise}"))
        }
        Change::Join { region, address, .. } if *region != member.region || *address != member.address => {
            Some(format!(
                "this token was used for node {id} in {} at {}: go on as that one (--region, --listen), or {otherwise}",
                member.region, member.address
            ))
        }
        _ => None,
    }
}

/// `None`: only the table is asked for.
fn wanted(request: AdminRequest, members: &Members) -> Result<Option<Wanted>, String> {
    Ok(Some(match request {
        AdminRequest::Members => return Ok(None),
        AdminRequest::Token { role, replaces, ttl_s } => {
            if !(1..=TTL_S_MAX).contains(&ttl_s) {
                return Err(format!("a token is good for 1 second to {} days", TTL_S_MAX / 86_400));
            }
            if role == MemberRole::Replica && replaces.is_some() {
                return Err("a replica replaces nobody".into());
            }
            let secret = secret::draw().map_err(|e| e.to_string())?;
            let token = Token { hash: secret::hash(&secret), role, replaces, expires_unix_s: now_unix_s() + ttl_s };
            Wanted::Token { token, secret }
        }
        AdminRequest::Join { secret_hash, region, address, unlike } => {
            let token = members.tokens.iter().find(|t| t.hash == secret_hash);
            if token.is_some_and(|t| t.expires_unix_s < now_unix_s()) {
                return Err("this token has expired; ask for a new one with `onetrip token`".into());
            }
            let role = token.map(|t| t.role).or_else(|| members.joined_with(&secret_hash).map(|m| m.role));
            if let Some(why) = unlike.filter(|_| role.is_some_and(MemberRole::has_postgres)) {
                return Err(why);
            }
            Wanted::Join { change: Change::Join { token: secret_hash, region, address }, hash: secret_hash }
        }
        AdminRequest::Remove { node } => {
            if !members.contains(node) {
                return Err(format!("node {node} is no member"));
            }
            Wanted::Remove(node)
        }
        AdminRequest::PreferLeader { region } => Wanted::Prefer(Change::PreferLeader(region)),
    }))
}

/// Nothing but the end of a token hangs on it.
fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
