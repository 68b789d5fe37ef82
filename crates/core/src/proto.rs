//! A look at protobuf bytes before they are parsed.
//!
//! The `protobuf` crate that raft-rs needs skips unknown groups by calling itself for each level, without a limit
//! (RUSTSEC-2024-0437): a few kilobytes of nested groups from a peer would overflow the stack and kill the node.  Raft's
//! messages have no groups, so bytes with one are refused here, at every level at which the parser would look.

use crate::error::{Error, Result};

/// A field that holds a message, and which of that message's fields do.
pub struct Nested {
    field: u64,
    inside: &'static [Nested],
}

/// `eraftpb.Message`: entries; snapshot, its metadata, their conf state.
pub const MESSAGE: &[Nested] = &[
    Nested { field: 7, inside: &[] },
    Nested { field: 9, inside: &[Nested { field: 2, inside: &[Nested { field: 1, inside: &[] }] }] },
];

/// `eraftpb.ConfChangeV2`: its changes.
pub const CONF_CHANGE_V2: &[Nested] = &[Nested { field: 2, inside: &[] }];

/// Refuses groups, and what is cut short.  Costs a few steps for each field, whatever its size.
pub fn check(mut bytes: &[u8], nested: &[Nested]) -> Result<()> {
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        // The parser would take its low half, and so see another field than this does.
        if tag > u64::from(u32::MAX) {
            return Err(malformed("a field with an impossible number"));
        }
        match tag & 7 {
            0 => {
                varint(&mut bytes)?;
            }
            1 => {
                take(&mut bytes, 8)?;
            }
            2 => {
                let length = varint(&mut bytes)?;
                let part = take(&mut bytes, length)?;
                if let Some(known) = nested.iter().find(|n| n.field == tag >> 3) {
                    check(part, known.inside)?;
                }
            }
            5 => {
                take(&mut bytes, 4)?;
            }
            other => return Err(malformed(&format!("a field of wire type {other}"))),
        }
    }
    Ok(())
}

fn varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for place in 0..10 {
        let Some((byte, rest)) = bytes.split_first() else { break };
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(malformed("a number without end"))
}

fn take<'a>(bytes: &mut &'a [u8], length: u64) -> Result<&'a [u8]> {
    if length > bytes.len() as u64 {
        return Err(malformed("a field longer than what is there"));
    }
    let (part, rest) = bytes.split_at(length as usize);
    *bytes = rest;
    Ok(part)
}

fn malformed(why: &str) -> Error {
    Error::malformed("protobuf message", why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use protobuf::Message as _;
    use raft::eraftpb::{ConfChangeV2, Entry, Message};

    /// `field` holding `inside`.
    fn wrap(field: u8, inside: &[u8]) -> Vec<u8> {
        let mut out = vec![field << 3 | 2];
        let mut length = inside.len();
        while length >= 0x80 {
            out.push(length as u8 | 0x80);
            length >>= 7;
        }
        out.push(length as u8);
        out.extend_from_slice(inside);
        out
    }

    #[test]
    fn nested_groups_are_refused_at_every_level_that_is_parsed() {
        // Group 20, opened again and again.
        let groups = [0xa3, 0x01].repeat(1_000_000);
        for bytes in [
            groups.clone(),
            wrap(7, &groups),
            wrap(9, &groups),
            wrap(9, &wrap(2, &groups)),
            wrap(9, &wrap(2, &wrap(1, &groups))),
        ] {
            assert!(check(&bytes, MESSAGE).is_err());
        }
        assert!(check(&groups, CONF_CHANGE_V2).is_err());
        // Field 7 for a reader of 32 bits.
        let hidden = [&[0xba, 0x80, 0x80, 0x80, 0x10], &wrap(7, &groups)[1..]].concat();
        assert!(check(&hidden, MESSAGE).is_err());
        assert!(check(&wrap(2, &groups), CONF_CHANGE_V2).is_err());
    }

    proptest! {
        /// What raft-rs writes passes, with any bytes in its entries.
        #[test]
        fn real_messages_pass(data in proptest::collection::vec(any::<u8>(), 0..200), n in any::<u64>(), voters in proptest::collection::vec(any::<u64>(), 0..5)) {
            let mut message = Message { term: n, index: n, ..Default::default() };
            message.mut_entries().push(Entry { data: data.clone().into(), context: data.into(), index: n, ..Default::default() });
            message.mut_snapshot().mut_metadata().mut_conf_state().set_voters(voters);
            prop_assert!(check(&message.write_to_bytes().unwrap(), MESSAGE).is_ok());
        }

        /// What passes can be parsed or is refused, but nothing else happens.
        #[test]
        fn what_passes_is_safe_to_parse(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if check(&bytes, MESSAGE).is_ok() {
                let _ = Message::parse_from_bytes(&bytes);
            }
            if check(&bytes, CONF_CHANGE_V2).is_ok() {
                let _ = ConfChangeV2::parse_from_bytes(&bytes);
            }
        }
    }
}
