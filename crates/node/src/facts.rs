//! The facts that decide how a PostgreSQL stores values, and so must be alike on all servers of a cluster.
//!
//! Rows travel between regions as the bytes that the heap holds (docs/decisions/2026-11-22-servers-store-alike.md).  A
//! node sends the facts of its PostgreSQL in its hello and when it asks to join; a witness has none.
//! `postgres/facts.rs` finds them out.
//!
//! Invariant: facts that are compared are names and values for a person to read; nothing here knows what any of them
//! means, so that a new one takes only a line where it is found out.

use bytes::{BufMut, BytesMut};
use onetrip_core::wire::{put_str, Reader};
use onetrip_core::RegionId;
use std::collections::{BTreeMap, BTreeSet};

/// A frame with more is refused.
const FACTS_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// PostgreSQL's major version.  Not compared: for a while, the servers of a cluster may have several.  (An aclitem
    /// has 12 bytes in version 15, and 16 bytes from version 16 on.)
    pub version: u16,
    /// Name and value.
    pub alike: BTreeMap<String, String>,
}

impl Facts {
    /// Why servers with these facts cannot be in one cluster, if they cannot.
    pub fn unlike(&self, region: &RegionId, other: &Facts, other_region: &RegionId) -> Option<String> {
        let names: BTreeSet<&String> = self.alike.keys().chain(other.alike.keys()).collect();
        let name = names.into_iter().find(|name| self.alike.get(*name) != other.alike.get(*name))?;
        let value = |facts: &Facts| facts.alike.get(name).cloned().unwrap_or("not known".into());
        Some(format!(
            "the PostgreSQL servers do not store values alike: {name} is {} in {other_region} and {} in {region}; rows travel between \
             regions as they are stored, so the servers of a cluster must be alike in this",
            value(other),
            value(self)
        ))
    }

    pub(crate) fn put(facts: Option<&Facts>, out: &mut BytesMut) {
        // No PostgreSQL has the version 0.
        out.put_u16_le(facts.map_or(0, |f| f.version));
        let Some(facts) = facts else { return };
        assert!(facts.alike.len() <= FACTS_MAX);
        out.put_u8(facts.alike.len() as u8);
        for (name, value) in &facts.alike {
            put_str(out, name);
            put_str(out, value);
        }
    }

    pub(crate) fn read(r: &mut Reader) -> onetrip_core::Result<Option<Facts>> {
        let version = r.u16("PostgreSQL's version")?;
        if version == 0 {
            return Ok(None);
        }
        let count = usize::from(r.u8("number of facts")?);
        if count > FACTS_MAX {
            let why = format!("{count} facts of a PostgreSQL");
            return Err(onetrip_core::Error::Malformed { what: "peer frame", why });
        }
        let mut alike = BTreeMap::new();
        for _ in 0..count {
            alike.insert(r.str("name of a fact")?, r.str("value of a fact")?);
        }
        Ok(Some(Facts { version, alike }))
    }

    /// As a server might have them.
    #[cfg(any(test, feature = "lab"))]
    pub(crate) fn example() -> Facts {
        let alike = [("byte order", "little-endian"), ("maximum data alignment", "8")];
        Facts { version: 15, alike: alike.map(|(name, value)| (name.to_string(), value.to_string())).into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each fact by itself: another value on one side, or none.
    #[test]
    fn whatever_fact_differs_is_named_with_both_values_and_regions() {
        let own = Facts::example();
        let (here, there) = (RegionId::from("here"), RegionId::from("there"));
        assert_eq!(own.unlike(&here, &Facts { version: 18, ..own.clone() }, &there), None, "of another version");
        for (name, value) in &own.alike {
            let mut other = own.clone();
            other.alike.insert(name.clone(), "odd".into());
            let why = own.unlike(&here, &other, &there).expect(name);
            assert!(why.contains(&format!("{name} is odd in there and {value} in here")), "{why}");
            other.alike.remove(name);
            let why = own.unlike(&here, &other, &there).expect(name);
            assert!(why.contains(&format!("{name} is not known in there and {value} in here")), "{why}");
            let why = other.unlike(&there, &own, &here).expect(name);
            assert!(why.contains(&format!("{name} is {value} in here and not known in there")), "{why}");
        }
    }
}
