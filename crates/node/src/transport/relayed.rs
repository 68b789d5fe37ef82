//! An append on its way through a relay: its head, which is each follower's own, its entries, which may be those of the
//! frame before, and a tag by which the follower knows that all of it is from the sender that the head names.
//!
//! A connection proves only who the relay is.  So each node gives each other one a key, in its hello, that nobody else
//! gets; the tag is a MAC under it over the head and the entries' digest.  It also shows if a relay has put a head and
//! other entries together.

use super::error::{PeerError, Result};
use super::speaks::Speaks;
use crate::secret::Secret;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use onetrip_core::consensus::{self, Message};
use onetrip_core::wire::Reader;
use onetrip_core::NodeId;
use protobuf::Message as _;
use raft::eraftpb::MessageType;
use ring::hmac;

const TAG_BYTES: usize = 16;
const WHAT: &str = "relayed append";

#[derive(Clone, Debug, PartialEq)]
pub struct Relayed {
    tag: [u8; TAG_BYTES],
    /// The message without its entries.
    pub head: Bytes,
    /// The encoded entries.  `None`: those of the last such frame of this connection that had any.
    pub entries: Option<Bytes>,
}

/// Entries as they are sent, and their digest.
#[derive(Clone)]
pub struct Entries {
    pub bytes: Bytes,
    digest: [u8; 32],
}

/// A node's keys for all others.
pub struct Keys(hmac::Key);

impl Keys {
    pub fn new(secret: &Secret) -> Keys {
        Keys(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The key for what this node sends to `to`.
    pub fn to(&self, to: NodeId) -> Secret {
        let signed = hmac::sign(&self.0, &to.0.to_le_bytes());
        let mut key: Secret = signed.as_ref().try_into().expect("SHA-256 has 32 bytes");
        Speaks::OWN.hide_in(&mut key);
        key
    }
}

fn malformed(why: impl ToString) -> PeerError {
    onetrip_core::Error::Malformed { what: WHAT, why: why.to_string() }.into()
}

/// What the tag is made of.
fn tagged(key: &Secret, head: &[u8], digest: &[u8; 32]) -> [u8; TAG_BYTES] {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    context.update(head);
    context.update(digest);
    context.sign().as_ref()[..TAG_BYTES].try_into().expect("SHA-256 has 32 bytes")
}

impl Entries {
    /// Takes them out of the message.  `last`: what was sent before.  True: there are some, and their bytes are the
    /// same.
    pub fn take(message: &mut Message, last: Option<&Entries>) -> (Entries, bool) {
        let message = Message { entries: std::mem::take(&mut message.entries), ..Message::default() };
        let bytes = Bytes::from(message.write_to_bytes().expect("writing to memory"));
        match last.filter(|last| last.bytes == bytes) {
            Some(last) => (last.clone(), !bytes.is_empty()),
            None => (Entries { digest: crate::tls::sha256(&bytes), bytes }, false),
        }
    }
}

impl Relayed {
    /// `head` is the message without `entries`; they travel with it unless `same`.
    pub fn new(key: &Secret, head: &Message, entries: &Entries, same: bool) -> Relayed {
        let head = Bytes::from(head.write_to_bytes().expect("writing to memory"));
        let tag = tagged(key, &head, &entries.digest);
        Relayed { tag, head, entries: (!same).then(|| entries.bytes.clone()) }
    }

    /// Fills in the entries, or notes them in `last`.
    pub fn complete(&mut self, last: &mut Bytes) {
        match &self.entries {
            None => self.entries = Some(last.clone()),
            Some(entries) if !entries.is_empty() => last.clone_from(entries),
            Some(_) => {}
        }
    }

    /// Who the head says it is from, and who it is for.
    pub fn ends(&self) -> Result<(NodeId, NodeId)> {
        let head = consensus::parse(&self.head)?;
        let id = |id: u64| u32::try_from(id).map(NodeId).map_err(malformed);
        match head.get_msg_type() {
            MessageType::MsgAppend => Ok((id(head.from)?, id(head.to)?)),
            other => Err(malformed(format!("{other:?}"))),
        }
    }

    /// The whole message.  `None`: whoever has made this `key` has not made the tag, or for other entries.
    pub fn open(&self, key: &Secret) -> Result<Option<Message>> {
        let entries = self.entries.clone().unwrap_or_default();
        let tag = tagged(key, &self.head, &crate::tls::sha256(&entries));
        // As fast for any wrong tag.
        if tag.iter().zip(self.tag).fold(0, |unlike, (one, other)| unlike | one ^ other) != 0 {
            return Ok(None);
        }
        let (mut message, mut other) = (consensus::parse(&self.head)?, consensus::parse(&entries)?);
        let entries = other.take_entries();
        if !message.entries.is_empty() || other != Message::default() {
            return Err(malformed("head and entries are mixed"));
        }
        message.entries = entries;
        consensus::check(&message)?;
        Ok(Some(message))
    }

    pub fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.entries.is_some()));
        out.put_slice(&self.tag);
        out.put_u32_le(self.head.len() as u32);
        out.put_slice(&self.head);
        out.put_slice(self.entries.as_deref().unwrap_or_default());
    }

    pub fn read(mut r: Reader) -> Result<Relayed> {
        let has_entries = match r.u8("mark of the entries")? {
            0 => false,
            1 => true,
            other => return Err(malformed(format!("the mark {other}"))),
        };
        let tag = r.take(TAG_BYTES, "tag")?.as_ref().try_into().expect("so many bytes were taken");
        let length = r.u32("head's length")? as usize;
        let head = r.take(length, "head")?;
        let entries = r.rest();
        match has_entries || !entries.has_remaining() {
            true => Ok(Relayed { tag, head, entries: has_entries.then_some(entries) }),
            false => Err(malformed("entries that are not announced")),
        }
    }
}
