//! The table and its commands as bytes, and back.
//!
//! | what | bytes |
//! |---|---|
//! | table | its head, u32 n, n × member, u32 n, n × token |
//! | its head | u64 version, u32 beginning, u32 next id, u32 stride, str preferred leader, u8 leader is auto, regions |
//! | regions | u32 n, n × str, those that hold read leases |
//! | member | u32 id, str region, str address, u8 role, u8 voter, 3 × option (u32 slot, u32 replaces, joined) |
//! | joined | 32 bytes hash of the token, u64 attempt, u64 expires |
//! | token | 32 bytes hash, u8 role, option (u32 replaces), u64 expires |
//! | option | u8 0, or u8 1 and the value |
//! | join | 32 bytes hash of the token, u64 attempt, u64 asked, str region, str address |
//! | command | u64 expected version, u8 kind, the fields of that kind |
//! | kind | 1 token, 2 join, 3 promote, 4 remove, 5 prefer leader, 6 move leader, 7 lease regions, 8 raise level |
//!
//! The level in force is not among the bytes of the table: a checkpoint has it (`crate::checkpoint`).

use super::{Change, Command, Joined, Member, MemberRole, Members, PreferredLeader, Token, MEMBERS_MAX, TOKENS_MAX};
use crate::error::Result;
use crate::ids::{Level, NodeId, RegionId};
use crate::wire::{put_str, Reader};
use bytes::{BufMut, Bytes, BytesMut};

impl Members {
    pub fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.version);
        out.put_u32_le(self.beginning);
        out.put_u32_le(self.next_id.0);
        out.put_u32_le(self.stride);
        put_str(out, self.preferred_leader.as_str());
        out.put_u8(u8::from(self.leader_is_auto));
        put_regions(out, &self.lease_regions);
        out.put_u32_le(self.members.len() as u32);
        for m in &self.members {
            out.put_u32_le(m.id.0);
            put_str(out, m.region.as_str());
            put_str(out, &m.address);
            out.put_u8(code_of(m.role));
            out.put_u8(u8::from(m.voter));
            put_option(out, m.slot, |out, slot| out.put_u32_le(slot));
            put_option(out, m.replaces, |out, id| out.put_u32_le(id.0));
            put_option(out, m.joined, put_joined);
        }
        out.put_u32_le(self.tokens.len() as u32);
        for token in &self.tokens {
            put_token(out, token);
        }
    }

    pub fn take(r: &mut Reader) -> Result<Members> {
        let version = r.u64("table version")?;
        let beginning = r.u32("beginning")?;
        let next_id = NodeId(r.u32("next id")?);
        let stride = r.u32("stride")?;
        let (preferred_leader, leader_is_auto) = (RegionId(r.str("preferred leader")?), flag(r)?);
        let lease_regions = take_regions(r)?;
        let (members, tokens) = (Vec::new(), Vec::new());
        let mut table = Members {
            version,
            beginning,
            members,
            preferred_leader,
            leader_is_auto,
            lease_regions,
            next_id,
            stride,
            tokens,
            level: Level(0),
        };
        for _ in 0..count(r, MEMBERS_MAX)? {
            let member = Member {
                id: NodeId(r.u32("member id")?),
                region: RegionId(r.str("region")?),
                address: r.str("address")?,
                role: role(r)?,
                voter: flag(r)?,
                slot: option(r, |r| r.u32("slot"))?,
                replaces: option(r, |r| r.u32("replaces"))?.map(NodeId),
                joined: option(r, joined)?,
            };
            if member.id >= next_id || table.members.last().is_some_and(|last| last.id >= member.id) {
                return Err(r.error(format!("member {} out of order", member.id)));
            }
            table.members.push(member);
        }
        for _ in 0..count(r, TOKENS_MAX)? {
            table.tokens.push(take_token(r)?);
        }
        Ok(table)
    }
}

impl Command {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(128);
        out.put_u64_le(self.expected_version);
        match &self.change {
            Change::AddToken(token) => {
                out.put_u8(1);
                put_token(&mut out, token);
            }
            Change::Join { token, attempt, asked_unix_s, region, address } => {
                out.put_u8(2);
                out.put_slice(token);
                out.put_u64_le(*attempt);
                out.put_u64_le(*asked_unix_s);
                put_str(&mut out, region.as_str());
                put_str(&mut out, address);
            }
            Change::Promote(id) => {
                out.put_u8(3);
                out.put_u32_le(id.0);
            }
            Change::Remove(id) => {
                out.put_u8(4);
                out.put_u32_le(id.0);
            }
            Change::PreferLeader(preferred) => {
                out.put_u8(5);
                put_str(&mut out, &preferred.to_string());
            }
            Change::MoveLeader(region) => {
                out.put_u8(6);
                put_str(&mut out, region.as_str());
            }
            Change::LeaseRegions(regions) => {
                out.put_u8(7);
                put_regions(&mut out, regions);
            }
            Change::RaiseLevel(level) => {
                out.put_u8(8);
                out.put_u16_le(level.0);
            }
        }
        out.freeze()
    }

    pub fn decode(raw: Bytes) -> Result<Command> {
        let mut r = Reader::new("command", raw);
        let expected_version = r.u64("expected version")?;
        let change = match r.u8("command kind")? {
            1 => Change::AddToken(take_token(&mut r)?),
            2 => Change::Join {
                token: hash(&mut r)?,
                attempt: r.u64("attempt")?,
                asked_unix_s: r.u64("asked")?,
                region: RegionId(r.str("region")?),
                address: r.str("address")?,
            },
            3 => Change::Promote(NodeId(r.u32("member id")?)),
            4 => Change::Remove(NodeId(r.u32("member id")?)),
            5 => Change::PreferLeader(PreferredLeader::from(r.str("region")?)),
            6 => Change::MoveLeader(RegionId(r.str("region")?)),
            7 => Change::LeaseRegions(take_regions(&mut r)?),
            8 => Change::RaiseLevel(Level(r.u16("level")?)),
            other => return Err(r.error(format!("unknown kind {other}"))),
        };
        r.end()?;
        Ok(Command { expected_version, change })
    }
}

fn code_of(role: MemberRole) -> u8 {
    match role {
        MemberRole::Voter => 0,
        MemberRole::Witness => 1,
        MemberRole::Replica => 2,
    }
}

fn role(r: &mut Reader) -> Result<MemberRole> {
    match r.u8("role")? {
        0 => Ok(MemberRole::Voter),
        1 => Ok(MemberRole::Witness),
        2 => Ok(MemberRole::Replica),
        other => Err(r.error(format!("role {other}"))),
    }
}

fn flag(r: &mut Reader) -> Result<bool> {
    match r.u8("flag")? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(r.error(format!("flag {other}"))),
    }
}

fn put_option<T>(out: &mut BytesMut, value: Option<T>, put: impl Fn(&mut BytesMut, T)) {
    out.put_u8(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

fn option<T>(r: &mut Reader, take: impl Fn(&mut Reader) -> Result<T>) -> Result<Option<T>> {
    flag(r)?.then(|| take(r)).transpose()
}

fn hash(r: &mut Reader) -> Result<[u8; 32]> {
    let raw = r.take(32, "hash")?;
    Ok(raw[..].try_into().expect("32 bytes were taken"))
}

fn put_joined(out: &mut BytesMut, joined: Joined) {
    out.put_slice(&joined.token);
    out.put_u64_le(joined.attempt);
    out.put_u64_le(joined.expires_unix_s);
}

fn joined(r: &mut Reader) -> Result<Joined> {
    Ok(Joined { token: hash(r)?, attempt: r.u64("attempt")?, expires_unix_s: r.u64("expires")? })
}

fn count(r: &mut Reader, most: usize) -> Result<usize> {
    let n = r.u32("count")? as usize;
    if n > most {
        return Err(r.error(format!("{n} elements announced, {most} at most")));
    }
    Ok(n)
}

fn put_regions(out: &mut BytesMut, regions: &[RegionId]) {
    out.put_u32_le(regions.len() as u32);
    regions.iter().for_each(|region| put_str(out, region.as_str()));
}

fn take_regions(r: &mut Reader) -> Result<Vec<RegionId>> {
    (0..count(r, MEMBERS_MAX)?).map(|_| Ok(RegionId(r.str("region")?))).collect()
}

fn put_token(out: &mut BytesMut, token: &Token) {
    out.put_slice(&token.hash);
    out.put_u8(code_of(token.role));
    put_option(out, token.replaces, |out, id| out.put_u32_le(id.0));
    out.put_u64_le(token.expires_unix_s);
}

fn take_token(r: &mut Reader) -> Result<Token> {
    Ok(Token {
        hash: hash(r)?,
        role: role(r)?,
        replaces: option(r, |r| r.u32("replaces"))?.map(NodeId),
        expires_unix_s: r.u64("expires")?,
    })
}
