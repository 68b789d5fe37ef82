//! The table of members, and the steps that change it.
//!
//! The table follows from the log: it starts as the bootstrap table of `onetrip init` and changes only by committed
//! commands, which every node carries out in log order with the same result.  It knows neither Raft nor the network;
//! [`Members::steps`] tells from the table and a command alone how the Raft configuration changes.
//!
//! Invariants:
//! - Members are in the order of their ids; an id is below `next_id` and is never used again.
//! - Every member that is meant to be a voter with a PostgreSQL has a slot of its own, below `stride`.  If `stride` is
//!   1, they all have slot 0.
//! - `version` grows with every change.  A command made for another version changes nothing.
//! - A member that is being replaced stays in the table until the joint configuration has been left
//!   ([`Members::left_joint`]): until then its vote may be needed.

mod codec;

use crate::ids::{Level, LogIndex, NodeId, RegionId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How many members and how many tokens there may be.  With too many tokens, the one that expires first is dropped.
pub const MEMBERS_MAX: usize = 100;
pub const TOKENS_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 255;

/// What a member is meant to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberRole {
    /// Votes and has a PostgreSQL.
    Voter,
    /// Votes and has no PostgreSQL.
    Witness,
    /// Follows with a PostgreSQL for reading, and does not vote.
    Replica,
}

impl MemberRole {
    pub fn votes(self) -> bool {
        self != MemberRole::Replica
    }
    pub fn has_postgres(self) -> bool {
        self != MemberRole::Witness
    }
    pub fn name(self) -> &'static str {
        match self {
            MemberRole::Voter => "voter",
            MemberRole::Witness => "witness",
            MemberRole::Replica => "replica",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub id: NodeId,
    pub region: RegionId,
    /// Where peers reach it, host:port.
    pub address: String,
    pub role: MemberRole,
    /// It votes now.  Before its promotion, a future voter is a learner.
    pub voter: bool,
    /// Its place in the sequences' stride; every voter with a PostgreSQL has one.
    pub slot: Option<u32>,
    /// This member goes when the new one becomes a voter.
    pub replaces: Option<NodeId>,
    /// How it came; `None` for the first members.
    pub joined: Option<Joined>,
}

/// How a node was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Hash of the token.
    pub token: [u8; 32],
    /// Of the [`Change::Join`] that let it in.
    pub attempt: u64,
    /// The token's.  After that nobody takes this member's place with it.
    pub expires_unix_s: u64,
}

/// Permission to join once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// SHA-256 of the secret.
    pub hash: [u8; 32],
    pub role: MemberRole,
    pub replaces: Option<NodeId>,
    /// Compared with the time in [`Change::Join`]; the table itself knows no time.
    pub expires_unix_s: u64,
}

/// Who decides where the leader should be.  In settings and commands it is a word: `auto`, or a region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum PreferredLeader {
    /// The cluster, from measured round trips and from where commits come from (`placement`).
    #[default]
    Auto,
    /// An operator.
    Region(RegionId),
}

/// No region may have this name.
pub const AUTO: &str = "auto";

impl PreferredLeader {
    pub fn allows(&self, region: &RegionId) -> bool {
        match self {
            PreferredLeader::Auto => true,
            PreferredLeader::Region(preferred) => preferred == region,
        }
    }
}

impl From<String> for PreferredLeader {
    fn from(word: String) -> PreferredLeader {
        match word.as_str() {
            AUTO => PreferredLeader::Auto,
            _ => PreferredLeader::Region(RegionId(word)),
        }
    }
}

impl From<&str> for PreferredLeader {
    fn from(word: &str) -> PreferredLeader {
        word.to_owned().into()
    }
}

impl From<PreferredLeader> for String {
    fn from(preferred: PreferredLeader) -> String {
        preferred.to_string()
    }
}

impl fmt::Display for PreferredLeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PreferredLeader::Auto => AUTO,
            PreferredLeader::Region(region) => region.as_str(),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    pub version: u64,
    /// CRC-32 of what the log began with: the first table and the certifier's limits (`Checkpoint::bootstrap`).  Nodes
    /// that began differently would come to other verdicts from the same log, or to another place for the leader.
    pub beginning: u32,
    /// In the order of their ids.
    pub members: Vec<Member>,
    /// Where the leader should be.
    pub preferred_leader: RegionId,
    /// Whether the cluster chooses that by itself.
    pub leader_is_auto: bool,
    /// Their members answer fresh reads without asking anybody (`replica::leases`).
    pub lease_regions: Vec<RegionId>,
    pub next_id: NodeId,
    /// Sequences step by this much; it is also the number of slots.
    pub stride: u32,
    pub tokens: Vec<Token>,
    /// The format level in force (`crate::level`).
    #[serde(default)]
    pub level: Level,
}

/// One change of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    AddToken(Token),
    /// Consumes the token; the new member follows as a learner.  If the token has been consumed already, the new member
    /// replaces the one that joined with it, unless that one votes.  It gets a new id, because it need not have what
    /// the other has said that it has.
    Join {
        /// Hash of the token.
        token: [u8; 32],
        /// Drawn anew whenever somebody asks with the token, so that nobody is taken for a member that another answer
        /// created.
        attempt: u64,
        /// When the new node asked, by the clock of the member that it asked.
        asked_unix_s: u64,
        region: RegionId,
        address: String,
    },
    /// A learner that is meant to vote has caught up.
    Promote(NodeId),
    Remove(NodeId),
    /// An operator sets the preferred leader.
    PreferLeader(PreferredLeader),
    /// The leader says where it should be, if the cluster chooses that by itself.  If an operator has chosen, this
    /// moves nothing.
    MoveLeader(RegionId),
    /// An operator says which regions hold read leases.
    LeaseRegions(Vec<RegionId>),
    /// Every member's release knows this format level; from here on it is in force.
    RaiseLevel(Level),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The version of the table that it was made for.
    pub expected_version: u64,
    pub change: Change,
}

/// What a command does to the Raft configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Learner(NodeId),
    Voter(NodeId),
    Out(NodeId),
}

/// Why a command changes nothing, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// What to do about a member whose token lets nobody take its place.
fn otherwise(id: NodeId) -> String {
    format!("take it out with `onetrip leave --node {id}` and ask for a new token")
}

/// Whether somebody who asks again with the token of `earlier` may take its place.
fn check_again(earlier: &Member, region: &RegionId, address: &str) -> Result<(), Refused> {
    let (id, otherwise) = (earlier.id, otherwise(earlier.id));
    if earlier.voter {
        return refused(format!("node {id} joined with this token and votes already; if it is lost, {otherwise}"));
    }
    match *region == earlier.region && address == earlier.address {
        true => Ok(()),
        false => refused(format!(
            "this token was used for node {id} in {} at {}: go on as that one (--region, --listen), or {otherwise}",
            earlier.region, earlier.address
        )),
    }
}

fn is_data_voter(m: &Member) -> bool {
    m.voter && m.role == MemberRole::Voter
}

fn refused<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(why.into()))
}

impl Members {
    /// The table of a new cluster.  `members` may come in any order.  If the cluster chooses the leader's place, that
    /// is with the first voter that has a PostgreSQL until round trips have been measured.
    pub fn bootstrap(mut members: Vec<Member>, preferred: PreferredLeader, stride: u32) -> Members {
        members.sort_by_key(|m| m.id);
        let next_id = NodeId(members.last().map_or(1, |m| m.id.0 + 1));
        let leader_is_auto = preferred == PreferredLeader::Auto;
        let preferred_leader = match preferred {
            PreferredLeader::Region(region) => region,
            PreferredLeader::Auto => {
                let first = members.iter().find(|m| m.role == MemberRole::Voter);
                first.map_or_else(RegionId::default, |m| m.region.clone())
            }
        };
        Members {
            version: 0,
            beginning: 0,
            members,
            preferred_leader,
            leader_is_auto,
            lease_regions: Vec::new(),
            next_id,
            stride,
            tokens: Vec::new(),
            level: Level(0),
        }
    }

    /// Who decides where the leader should be; if that is an operator, also where.
    pub fn preferred(&self) -> PreferredLeader {
        match self.leader_is_auto {
            true => PreferredLeader::Auto,
            false => PreferredLeader::Region(self.preferred_leader.clone()),
        }
    }

    pub fn get(&self, id: NodeId) -> Option<&Member> {
        self.members.binary_search_by_key(&id, |m| m.id).ok().map(|place| &self.members[place])
    }

    fn get_mut(&mut self, id: NodeId) -> Option<&mut Member> {
        self.members.binary_search_by_key(&id, |m| m.id).ok().map(|place| &mut self.members[place])
    }

    pub fn contains(&self, id: NodeId) -> bool {
        self.get(id).is_some()
    }

    pub fn region_of(&self, id: NodeId) -> Option<&RegionId> {
        self.get(id).map(|m| &m.region)
    }

    pub fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|m| m.voter)
    }

    /// It was a member and is not one any more.
    pub fn removed(&self, id: NodeId) -> bool {
        id < self.next_id && !self.contains(id)
    }

    /// A voter with a PostgreSQL.
    pub fn is_data_voter(&self, id: NodeId) -> bool {
        self.get(id).is_some_and(is_data_voter)
    }

    /// It has a PostgreSQL in a region that holds read leases.
    pub fn holds_lease(&self, id: NodeId) -> bool {
        self.get(id).is_some_and(|m| m.role.has_postgres() && self.lease_regions.contains(&m.region))
    }

    /// A voter with a PostgreSQL, in the region where the leader should be, that is not about to be replaced.
    pub fn is_preferred(&self, id: NodeId) -> bool {
        let stays = self.members.iter().all(|m| m.replaces != Some(id));
        stays && self.get(id).is_some_and(|m| is_data_voter(m) && m.region == self.preferred_leader)
    }

    /// Up to this index, the rows survive the loss of any minority of the voters, judging by what the voters'
    /// PostgreSQLs have durably: some member of every majority has them.  If there are too few PostgreSQLs for that, it
    /// is what all of them have.
    pub fn rows_safe_to(&self, durable: impl Fn(NodeId) -> Option<LogIndex>) -> LogIndex {
        let holders_needed = self.voters().count().div_ceil(2);
        let of = |m: &Member| durable(m.id).unwrap_or_default();
        let mut all: Vec<LogIndex> = self.voters().filter(|m| is_data_voter(m)).map(of).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.truncate(holders_needed);
        all.last().copied().unwrap_or_default()
    }

    /// Whether the rows stay on enough data voters when those of `leaving` have gone.  If one of these has them, two
    /// that stay must have them, or all if fewer stay; otherwise one.
    pub fn rows_stay(leaving: &[NodeId], staying: &[NodeId], has_rows: impl Fn(NodeId) -> bool) -> bool {
        let needed = match leaving.iter().any(|id| has_rows(*id)) {
            true => staying.len().min(2),
            false => leaving.len().min(1),
        };
        staying.iter().filter(|id| has_rows(**id)).count() >= needed
    }

    pub fn joined_with(&self, token: &[u8; 32]) -> Option<&Member> {
        self.came_with(token).map(|(member, _)| member)
    }

    /// The member that this answer to the token has made, unless it is gone by now.
    pub fn joined_by(&self, token: &[u8; 32], attempt: u64) -> Option<&Member> {
        self.came_with(token).filter(|(_, joined)| joined.attempt == attempt).map(|(member, _)| member)
    }

    fn came_with(&self, token: &[u8; 32]) -> Option<(&Member, Joined)> {
        self.members.iter().find_map(|m| m.joined.filter(|joined| joined.token == *token).map(|joined| (m, joined)))
    }

    /// Refuses a token that has expired at this time, whether or not a member joined with it.
    pub fn check_expiry(&self, token: &[u8; 32], asked_unix_s: u64) -> Result<(), Refused> {
        match self.came_with(token) {
            Some((Member { id, .. }, joined)) if joined.expires_unix_s < asked_unix_s => refused(format!(
                "node {id} joined with this token, which has expired; if it is lost, {}",
                otherwise(*id)
            )),
            None if self.tokens.iter().any(|t| t.hash == *token && t.expires_unix_s < asked_unix_s) => {
                refused("this token has expired; ask for a new one with `onetrip token`")
            }
            _ => Ok(()),
        }
    }

    /// What `change` would do to the Raft configuration of this table: nothing, for most changes.
    pub fn steps(&self, change: &Change) -> Vec<Step> {
        match change {
            Change::AddToken(_)
            | Change::PreferLeader(_)
            | Change::MoveLeader(_)
            | Change::LeaseRegions(_)
            | Change::RaiseLevel(_) => Vec::new(),
            Change::Join { token, .. } => {
                let earlier = self.joined_with(token).filter(|m| !m.voter);
                earlier.map(|m| Step::Out(m.id)).into_iter().chain([Step::Learner(self.next_id)]).collect()
            }
            Change::Promote(id) => {
                let replaced = self.get(*id).and_then(|m| m.replaces).filter(|old| self.contains(*old));
                std::iter::once(Step::Voter(*id)).chain(replaced.map(Step::Out)).collect()
            }
            Change::Remove(id) => vec![Step::Out(*id)],
        }
    }

    /// Carries out a command, with the same result on every node.  A refusal changes nothing.
    pub fn apply(&mut self, command: &Command) -> Result<(), Refused> {
        if command.expected_version != self.version {
            return refused(format!(
                "the table of members has changed meanwhile (version {}, expected {})",
                self.version, command.expected_version
            ));
        }
        match &command.change {
            Change::AddToken(token) => self.add_token(token)?,
            Change::Join { token, attempt, asked_unix_s, region, address } => {
                self.check_expiry(token, *asked_unix_s)?;
                *self = self.with(token, *attempt, region, address)?;
            }
            Change::Promote(id) => self.promote(*id)?,
            Change::Remove(id) => self.remove(*id)?,
            Change::PreferLeader(PreferredLeader::Auto) => self.leader_is_auto = true,
            Change::PreferLeader(PreferredLeader::Region(region)) => {
                self.check_may_lead(region)?;
                (self.preferred_leader, self.leader_is_auto) = (region.clone(), false);
            }
            Change::MoveLeader(region) => {
                self.check_may_lead(region)?;
                if self.leader_is_auto {
                    self.preferred_leader = region.clone();
                }
            }
            Change::LeaseRegions(regions) => {
                regions.iter().try_for_each(|region| self.check_may_read(region))?;
                self.lease_regions = regions.clone();
            }
            Change::RaiseLevel(level) if *level <= self.level => {
                return refused(format!("format level {} is in force already", self.level));
            }
            Change::RaiseLevel(level) => self.level = *level,
        }
        self.version += 1;
        Ok(())
    }

    fn check_may_lead(&self, region: &RegionId) -> Result<(), Refused> {
        match self.members.iter().any(|m| m.role == MemberRole::Voter && &m.region == region) {
            true => Ok(()),
            false => refused(format!("region {region} has no voter with PostgreSQL")),
        }
    }

    fn check_may_read(&self, region: &RegionId) -> Result<(), Refused> {
        match self.members.iter().any(|m| m.role.has_postgres() && &m.region == region) {
            true => Ok(()),
            false => refused(format!("region {region} has no PostgreSQL that could read")),
        }
    }

    fn add_token(&mut self, token: &Token) -> Result<(), Refused> {
        if self.tokens.iter().any(|t| t.hash == token.hash) || self.joined_with(&token.hash).is_some() {
            return refused("this token exists already");
        }
        self.check_replaced(token.replaces, token.role)?;
        if self.tokens.len() >= TOKENS_MAX {
            if let Some(first) = (0..self.tokens.len()).min_by_key(|i| self.tokens[*i].expires_unix_s) {
                self.tokens.remove(first);
            }
        }
        self.tokens.push(token.clone());
        Ok(())
    }

    fn check_replaced(&self, replaces: Option<NodeId>, role: MemberRole) -> Result<(), Refused> {
        let Some(old) = replaces else { return Ok(()) };
        if !role.votes() {
            return refused("a replica cannot replace a member: remove the old member with `onetrip leave` instead");
        }
        if !self.contains(old) {
            return refused(format!("node {old}, which is to be replaced, is no member"));
        }
        if let Some(other) = self.members.iter().find(|m| m.replaces == Some(old)) {
            return refused(format!("node {old} is being replaced by node {} already", other.id));
        }
        Ok(())
    }

    /// This table with a new member.
    fn with(&self, token: &[u8; 32], attempt: u64, region: &RegionId, address: &str) -> Result<Members, Refused> {
        let mut table = self.clone();
        let (role, replaces, expires_unix_s) = match self.came_with(token) {
            Some((earlier, joined)) => {
                check_again(earlier, region, address)?;
                table.members.retain(|m| m.id != earlier.id);
                (earlier.role, earlier.replaces, joined.expires_unix_s)
            }
            None => {
                let Some(place) = self.tokens.iter().position(|t| t.hash == *token) else {
                    return refused(
                        "this token is unknown or was used already; ask for a new one with `onetrip token`",
                    );
                };
                let token = table.tokens.remove(place);
                (token.role, token.replaces, token.expires_unix_s)
            }
        };
        for (what, text) in [("region's name", region.as_str()), ("address", address)] {
            if text.is_empty() || text.len() > NAME_BYTES_MAX {
                return refused(format!("a {what} has 1 to {NAME_BYTES_MAX} bytes"));
            }
        }
        if region.as_str() == AUTO {
            return refused("no region can be called auto: as a preferred leader that means that the cluster chooses");
        }
        table.check_replaced(replaces, role)?;
        if let Some(m) = table.members.iter().find(|m| m.address == address && Some(m.id) != replaces) {
            return refused(format!("node {} in {} already has the address {address}", m.id, m.region));
        }
        if table.members.len() >= MEMBERS_MAX || table.next_id.0 == u32::MAX {
            return refused(format!("a cluster has {MEMBERS_MAX} members at most"));
        }
        let slot = match role {
            MemberRole::Voter => Some(table.free_slot()?),
            MemberRole::Witness | MemberRole::Replica => None,
        };
        let (id, region, address) = (table.next_id, region.clone(), address.to_owned());
        let joined = Some(Joined { token: *token, attempt, expires_unix_s });
        table.members.push(Member { id, region, address, role, voter: false, slot, replaces, joined });
        table.next_id = NodeId(id.0 + 1);
        table.tidy();
        Ok(table)
    }

    fn free_slot(&self) -> Result<u32, Refused> {
        // With a stride of 1 no slot is needed: sequences are dense, and their keys conflict instead.
        if self.stride == 1 {
            return Ok(0);
        }
        let free = (0..self.stride).find(|slot| self.members.iter().all(|m| m.slot != Some(*slot)));
        free.ok_or_else(|| {
            Refused(format!("all {} places in the sequences' stride are taken; remove a member first", self.stride))
        })
    }

    fn promote(&mut self, id: NodeId) -> Result<(), Refused> {
        let Some(member) = self.get_mut(id) else {
            return refused(format!("node {id} is no member"));
        };
        if member.voter || !member.role.votes() {
            return refused(format!("node {id} is {}", if member.voter { "a voter already" } else { "a replica" }));
        }
        let replaced = member.replaces;
        member.voter = true;
        let lasts = self.members.iter().any(|m| is_data_voter(m) && Some(m.id) != replaced);
        if !lasts {
            self.get_mut(id).expect("just found").voter = false;
            return refused(format!("node {id} has no PostgreSQL and would replace the last voter with one"));
        }
        Ok(())
    }

    fn remove(&mut self, id: NodeId) -> Result<(), Refused> {
        let Some(member) = self.get(id) else {
            return refused(format!("node {id} is no member"));
        };
        if is_data_voter(member) && !self.members.iter().any(|m| m.id != id && is_data_voter(m)) {
            return refused(format!("node {id} is the last voter with PostgreSQL; the cluster would be lost with it"));
        }
        self.members.retain(|m| m.id != id);
        self.tidy();
        Ok(())
    }

    /// The joint configuration has been left: whoever was replaced is gone.
    pub fn left_joint(&mut self) {
        let replaced: Vec<NodeId> = self.voters().filter_map(|m| m.replaces).collect();
        self.members.retain(|m| !replaced.contains(&m.id));
        self.tidy();
        self.version += 1;
    }

    /// Removes whatever names a member or a region that is gone; the leader's place moves if no data voter is left
    /// there.
    fn tidy(&mut self) {
        let ids: Vec<NodeId> = self.members.iter().map(|m| m.id).collect();
        let gone = |id: &mut NodeId| !ids.contains(id);
        for member in &mut self.members {
            member.replaces.take_if(gone);
        }
        for token in &mut self.tokens {
            token.replaces.take_if(gone);
        }
        let regions: Vec<&RegionId> =
            self.members.iter().filter(|m| m.role.has_postgres()).map(|m| &m.region).collect();
        self.lease_regions.retain(|region| regions.contains(&region));
        let data = |m: &&Member| m.role == MemberRole::Voter;
        if !self.members.iter().filter(data).any(|m| m.region == self.preferred_leader) {
            if let Some(other) = self.members.iter().filter(data).max_by_key(|m| (m.voter, u32::MAX - m.id.0)) {
                self.preferred_leader = other.region.clone();
            }
        }
    }
}

impl Change {
    /// Whether, according to this table, it has happened; by this or by another command.
    pub fn is_shown_by(&self, members: &Members) -> bool {
        match self {
            Change::AddToken(token) => members.tokens.contains(token),
            Change::Join { token, attempt, .. } => members.joined_by(token, *attempt).is_some(),
            Change::Promote(id) => members.get(*id).is_some_and(|m| m.voter),
            Change::Remove(id) => members.removed(*id),
            Change::PreferLeader(preferred) => members.preferred() == *preferred,
            Change::MoveLeader(region) => members.preferred_leader == *region,
            Change::LeaseRegions(regions) => members.lease_regions == *regions,
            Change::RaiseLevel(level) => members.level >= *level,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::AddToken(token) => write!(f, "a token for a {}", token.role.name()),
            Change::Join { region, address, .. } => write!(f, "a node at {address} in {region} joins"),
            Change::Promote(id) => write!(f, "node {id} becomes a voter"),
            Change::Remove(id) => write!(f, "node {id} leaves"),
            Change::PreferLeader(PreferredLeader::Auto) => write!(f, "the cluster chooses where the leader belongs"),
            Change::PreferLeader(PreferredLeader::Region(region)) => write!(f, "the leader belongs in {region}"),
            Change::MoveLeader(region) => write!(f, "the leader moves to {region}"),
            Change::LeaseRegions(regions) if regions.is_empty() => write!(f, "no region holds a read lease"),
            Change::LeaseRegions(regions) => {
                let names: Vec<&str> = regions.iter().map(RegionId::as_str).collect();
                write!(f, "read leases are held in {}", names.join(", "))
            }
            Change::RaiseLevel(level) => write!(f, "format level {level} comes into force"),
        }
    }
}

#[cfg(test)]
mod tests;
