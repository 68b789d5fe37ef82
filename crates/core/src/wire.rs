//! Reads little-endian fields from bytes that may contain anything.
//!
//! Every read can fail and none panics.  Parts are slices of the input (`Bytes`), not copies.

use crate::error::{Error, Result};
use crate::ids::{LogIndex, NodeId, TxnId};
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// A cursor over one record; `what` names the record in errors.
pub struct Reader {
    what: &'static str,
    bytes: Bytes,
}

impl Reader {
    pub fn new(what: &'static str, bytes: Bytes) -> Self {
        Reader { what, bytes }
    }

    pub fn error(&self, why: impl Into<String>) -> Error {
        Error::malformed(self.what, why)
    }

    fn need(&self, n: usize, field: &'static str) -> Result<()> {
        if self.bytes.len() < n {
            return Err(self.error(format!("ends in `{field}`: {n} bytes needed, {} there", self.bytes.len())));
        }
        Ok(())
    }

    pub fn u8(&mut self, field: &'static str) -> Result<u8> {
        self.need(1, field)?;
        Ok(self.bytes.get_u8())
    }
    pub fn u16(&mut self, field: &'static str) -> Result<u16> {
        self.need(2, field)?;
        Ok(self.bytes.get_u16_le())
    }
    pub fn u32(&mut self, field: &'static str) -> Result<u32> {
        self.need(4, field)?;
        Ok(self.bytes.get_u32_le())
    }
    pub fn u64(&mut self, field: &'static str) -> Result<u64> {
        self.need(8, field)?;
        Ok(self.bytes.get_u64_le())
    }
    pub fn index(&mut self, field: &'static str) -> Result<LogIndex> {
        match LogIndex(self.u64(field)?) {
            index if index <= LogIndex::MAX => Ok(index),
            index => Err(self.error(format!("`{field}` is log index {index}"))),
        }
    }
    pub fn txn(&mut self) -> Result<TxnId> {
        self.need(20, "txn")?;
        Ok(TxnId {
            node: NodeId(self.bytes.get_u32_le()),
            incarnation: self.bytes.get_u64_le(),
            sequence: self.bytes.get_u64_le(),
        })
    }
    pub fn str(&mut self, field: &'static str) -> Result<String> {
        let n = self.u16(field)? as usize;
        let raw = self.take(n, field)?;
        String::from_utf8(raw.to_vec()).map_err(|_| self.error(format!("`{field}` is not UTF-8")))
    }
    pub fn take(&mut self, n: usize, field: &'static str) -> Result<Bytes> {
        self.need(n, field)?;
        Ok(self.bytes.split_to(n))
    }
    pub fn left(&self) -> usize {
        self.bytes.len()
    }
    /// Everything that is left.
    pub fn rest(self) -> Bytes {
        self.bytes
    }
    /// Checks that nothing is left.
    pub fn end(self) -> Result<()> {
        if !self.bytes.is_empty() {
            return Err(self.error(format!("{} bytes too many", self.bytes.len())));
        }
        Ok(())
    }
}

/// A buffer that is read into has grown for a large message.
const LARGE_BUFFER_BYTES: usize = 1 << 20;

/// Once such a buffer is empty, another one takes its place: it would be kept for the next large message, or by the
/// small ones that come into it until then.
pub fn let_large_buffer_go(buf: &mut BytesMut, usual: usize) {
    if buf.is_empty() && buf.capacity() > LARGE_BUFFER_BYTES {
        *buf = BytesMut::with_capacity(usual);
    }
}

pub fn put_txn(out: &mut BytesMut, txn: &TxnId) {
    out.put_u32_le(txn.node.0);
    out.put_u64_le(txn.incarnation);
    out.put_u64_le(txn.sequence);
}

/// A `str` has at most 65,535 bytes; a longer one is cut at the end of a character.
pub fn put_str(out: &mut BytesMut, s: &str) {
    let mut n = s.len().min(usize::from(u16::MAX));
    while !s.is_char_boundary(n) {
        n -= 1;
    }
    out.put_u16_le(n as u16);
    out.put_slice(&s.as_bytes()[..n]);
}
