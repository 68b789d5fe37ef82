//! Requests of operators and of joining nodes to read or change the table of members, and the answers to them.

use super::CoreThread;
use crate::inbox::{AdminReply, AdminRequest};
use crate::secret::{self, Secret};
use onetrip_core::members::{Change, Command, Members, Token};
use onetrip_core::replica::RequestId;
use onetrip_core::{Member, MemberRole, NodeId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;

const TTL_S_MAX: u64 = 10 * 365 * 86_400;

pub type Answer = oneshot::Sender<Result<AdminReply, String>>;

/// Who waits for the answer to a request.  `secret`: of the token that the request makes.
struct Waiting {
    answer: Answer,
    secret: Option<Secret>,
}

#[derive(Default)]
pub(super) struct AdminRequests {
    /// Number of the last request, whether it is about members or leaves an entry out.
    pub last: u64,
    waiting: BTreeMap<RequestId, Waiting>,
}

impl CoreThread {
    pub(super) fn administer(&mut self, request: AdminRequest, answer: Answer) {
        let (change, secret) = match self.wanted(request) {
            Ok(Some(wanted)) => wanted,
            Ok(None) => return drop(answer.send(Ok(AdminReply::Members(self.replica.members().clone())))),
            Err(why) => return drop(answer.send(Err(why))),
        };
        self.admin.last += 1;
        let id = RequestId(self.admin.last);
        self.admin.waiting.insert(id, Waiting { answer, secret });
        self.replica.ask(id, change, &mut self.host);
        self.answer_requests();
    }

    /// To be called whenever the replica may have answers.
    pub(super) fn answer_requests(&mut self) {
        for (id, change, result) in self.replica.take_answers() {
            let Some(Waiting { answer, secret }) = self.admin.waiting.remove(&id) else { continue };
            let reply = result.map_err(|why| why.to_string()).and_then(|()| self.reply(change, secret));
            // It does no harm if nobody waits any more.
            let _ = answer.send(reply);
        }
        self.answer_skips();
    }

    /// To be called on each tick: withdraws the requests that nobody waits for any more.
    pub(super) fn withdraw_requests(&mut self) {
        let gone = self.admin.waiting.iter().filter(|(_, waiting)| waiting.answer.is_closed()).map(|(id, _)| *id);
        for id in gone.collect::<Vec<_>>() {
            self.admin.waiting.remove(&id);
            self.replica.withdraw(id);
        }
        self.withdraw_skips();
    }

    /// `None`: the request only reads the table.
    fn wanted(&self, request: AdminRequest) -> Result<Option<(Change, Option<Secret>)>, String> {
        let members = self.replica.members();
        Ok(Some(match request {
            AdminRequest::Members => return Ok(None),
            AdminRequest::Token { role, replaces, ttl_s } => {
                if !(1..=TTL_S_MAX).contains(&ttl_s) {
                    return Err(format!("a token is good for 1 second to {} days", TTL_S_MAX / 86_400));
                }
                if role == MemberRole::Replica && replaces.is_some() {
                    return Err("a replica replaces nobody".into());
                }
                can_be_replaced(members, replaces)?;
                let secret = secret::draw().map_err(|e| e.to_string())?;
                let token = Token { hash: secret::hash(&secret), role, replaces, expires_unix_s: now_unix_s() + ttl_s };
                (Change::AddToken(token), Some(secret))
            }
            AdminRequest::Join { secret_hash, region, address, unlike } => {
                // The time of the answer is part of the change: this table may not have the token yet, and the one that
                // the change finds has.
                let asked_unix_s = now_unix_s();
                members.check_expiry(&secret_hash, asked_unix_s).map_err(|why| why.0)?;
                let token = members.tokens.iter().find(|t| t.hash == secret_hash);
                can_be_replaced(members, token.and_then(|t| t.replaces))?;
                let earlier = members.joined_with(&secret_hash);
                // The new node would take the place of one that is running.  One that hangs runs, too.
                if let Some(Member { id, region, .. }) = earlier.filter(|m| !m.voter && self.is_connected(m.id)) {
                    return Err(format!("node {id} in {region} joined with this token and runs already"));
                }
                let role = token.map(|t| t.role).or(earlier.map(|m| m.role));
                if let Some(why) = unlike.filter(|_| role.is_some_and(MemberRole::has_postgres)) {
                    return Err(why);
                }
                let attempt = secret::draw_number().map_err(|e| e.to_string())?;
                (Change::Join { token: secret_hash, attempt, asked_unix_s, region, address }, None)
            }
            AdminRequest::Remove { node } => {
                if !members.contains(node) {
                    return Err(format!("node {node} is no member"));
                }
                (Change::Remove(node), None)
            }
            AdminRequest::PreferLeader(preferred) => (Change::PreferLeader(preferred), None),
            AdminRequest::LeaseRegions(mut regions) => {
                regions.sort_unstable();
                regions.dedup();
                (Change::LeaseRegions(regions), None)
            }
            AdminRequest::RaiseLevel(level) => (Change::RaiseLevel(level), None),
        }))
    }

    fn is_connected(&self, id: NodeId) -> bool {
        self.host.transport.peers().iter().any(|p| p.id == id && p.connected)
    }

    fn reply(&self, change: Change, secret: Option<Secret>) -> Result<AdminReply, String> {
        let members = self.replica.members();
        match (&change, secret) {
            (Change::AddToken(_), Some(secret)) => Ok(AdminReply::Token(secret)),
            (Change::Join { token, attempt, .. }, _) => {
                let Some(member) = members.joined_by(token, *attempt) else {
                    return Err("the node that joined with this token has since been removed or asked again".into());
                };
                let frozen = self.replica.frozen_checkpoint();
                let checkpoint = Box::new(move || frozen.encode());
                Ok(AdminReply::Joined { member: member.clone(), members: members.clone(), checkpoint })
            }
            (Change::Remove(id), _) if members.contains(*id) => {
                // It is this node itself, which will not see its own removal in its log.
                let mut left = Members::clone(members);
                let _ = left.apply(&Command { expected_version: left.version, change });
                Ok(AdminReply::Members(Arc::new(left)))
            }
            _ => Ok(AdminReply::Members(members.clone())),
        }
    }
}

/// The only voter would have to hand the lead over in the same step, and there is nobody who could take it.
fn can_be_replaced(members: &Members, replaced: Option<NodeId>) -> Result<(), String> {
    let is_only = |id: NodeId| members.voters().map(|m| m.id).eq([id]);
    match replaced.filter(|id| is_only(*id)) {
        Some(id) => Err(format!(
            "node {id} is the only voter, and nobody can take its place in one step: let another voter join, without \
             --replaces, and then take node {id} out with onetrip leave"
        )),
        None => Ok(()),
    }
}

/// Used only for the expiry of tokens.
fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
