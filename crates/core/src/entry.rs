//! The entry: what is proposed and what the log contains, to the byte (`docs/agent-protocol.md`, "Types").
//!
//! The write set is opaque here.  Decoding checks everything else once; the keys stay where they are and are read in
//! place, because a bulk transaction has hundreds of thousands of them.

use crate::error::Result;
use crate::ids::{Base, LogIndex, NodeId, TxnId};
use crate::members::Command;
use crate::wire::{put_txn, Reader};
use bytes::{BufMut, Bytes, BytesMut};

/// Where in the bytes the kind is: behind the transaction id.
pub(crate) const KIND_AT: usize = 20;
/// Where the keys begin: behind the kind and their number.
const KEYS_AT: usize = KIND_AT + 1 + 4;
/// Bytes of one key, and where in them its mode is.
const KEY_BYTES: usize = 17;
const MODE_AT: usize = 8;
/// In the byte of a key's mode: the entry has only read what the key stands for ([`Entry::taken`]).
pub(crate) const READ: u8 = 4;

/// PostgreSQL's row-lock modes, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LockMode {
    KeyShare = 0,
    Share = 1,
    NoKeyUpdate = 2,
    Update = 3,
}

impl LockMode {
    pub const ALL: [LockMode; 4] = [LockMode::KeyShare, LockMode::Share, LockMode::NoKeyUpdate, LockMode::Update];

    pub fn from_u8(mode: u8) -> Option<LockMode> {
        LockMode::ALL.get(usize::from(mode)).copied()
    }

    /// The matrix of PostgreSQL's row locks (manual, section 13.3.2).  Symmetric.
    pub const fn conflicts_with(self, other: LockMode) -> bool {
        use LockMode::*;
        match (self, other) {
            (KeyShare, Update) | (Update, KeyShare) => true,
            (KeyShare, _) | (_, KeyShare) => false,
            (Share, Share) => false,
            _ => true,
        }
    }
}

/// Something that two transactions can collide on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    pub hash: u64,
    pub mode: LockMode,
    pub base: Base,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    Transaction = 0,
    /// A change of the table of members (`crate::members`): no transaction, no keys, and the command as its write set.
    Command = 1,
    /// Transaction `txn` may not commit any more: unless the log contains it already, this aborts it.
    Cancel = 2,
    /// The PostgreSQL of node `txn.node` has started as `txn.incarnation`; the write set is the incarnation before it.
    /// This aborts whatever that one had not brought into the log by now: nobody is left who could be told otherwise.
    Incarnation = 3,
    /// An earlier entry, of transaction `txn`, is left out everywhere, because no PostgreSQL could apply it.  The write
    /// set is that entry's index.  The keys are that entry's, so that whoever has seen its changes loses against this
    /// one.
    Skip = 4,
    /// Some bytes of transaction `txn`, which is too large to travel in one piece ([`crate::parts`]).
    Part = 5,
    /// Stands for transaction `txn`, all of whose parts are in the log; it names them.
    Whole = 6,
    /// PREPARE TRANSACTION: the keys are held until the transaction is ended.  The first of them is its name.
    Prepare = 7,
    /// COMMIT PREPARED: the only key is the name of what is to be committed, with a base at which its author saw that.
    CommitPrepared = 8,
    /// ROLLBACK PREPARED, likewise.
    RollbackPrepared = 9,
}

impl EntryKind {
    const ALL: [EntryKind; 10] = {
        use EntryKind::*;
        [Transaction, Command, Cancel, Incarnation, Skip, Part, Whole, Prepare, CommitPrepared, RollbackPrepared]
    };

    pub fn from_u8(kind: u8) -> Option<EntryKind> {
        EntryKind::ALL.get(usize::from(kind)).copied()
    }

    pub fn ends_prepared(self) -> bool {
        matches!(self, EntryKind::CommitPrepared | EntryKind::RollbackPrepared)
    }

    /// A backend proposes it, and PostgreSQL gets it if it commits.
    pub fn is_of_backend(self) -> bool {
        use EntryKind::*;
        matches!(self, Transaction | Prepare | CommitPrepared | RollbackPrepared)
    }
}

/// What an [`EntryKind::Part`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Bytes of the whole encoded transaction.
    pub total: u64,
    /// Where in it these bytes belong.
    pub offset: u64,
    /// If there are none, the entry only asks for a place among the transactions that wait to arrive.
    pub bytes: Bytes,
}

/// A decoded entry.  Cloning is cheap: it shares the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub txn: TxnId,
    pub kind: EntryKind,
    keys: Bytes,
    pub write_set: Bytes,
}

impl Entry {
    pub fn decode(raw: Bytes) -> Result<Entry> {
        let mut r = Reader::new("entry", raw);
        let txn = r.txn()?;
        let kind = r.u8("kind")?;
        let Some(kind) = EntryKind::from_u8(kind) else { return Err(r.error(format!("unknown kind {kind}"))) };
        let nkeys = r.u32("nkeys")? as usize;
        let keys = r.take(nkeys * KEY_BYTES, "keys")?;
        if let Some(bad) = keys.chunks_exact(KEY_BYTES).position(|k| LockMode::from_u8(k[MODE_AT] & !READ).is_none()) {
            return Err(r.error(format!("key {bad} has lock mode {}", keys[bad * KEY_BYTES + MODE_AT])));
        }
        Ok(Entry { txn, kind, keys, write_set: r.rest() })
    }

    /// The transaction id alone, if the bytes hold at least that.
    pub fn peek_txn(raw: &Bytes) -> Result<TxnId> {
        Reader::new("entry", raw.clone()).txn()
    }

    pub fn encode(txn: &TxnId, keys: &[Key], write_set: &[u8]) -> Bytes {
        Entry::encode_as(EntryKind::Transaction, txn, keys, write_set)
    }

    /// A transaction, or PREPARE TRANSACTION of one, that aborts as well if somebody else has taken one of `reads` in a
    /// conflicting mode ([`Entry::taken`]).
    pub fn encode_serializable(kind: EntryKind, txn: &TxnId, keys: &[Key], reads: &[Key], write_set: &[u8]) -> Bytes {
        let reads = reads.iter().map(|key| (*key, READ));
        let keys: Vec<(Key, u8)> = keys.iter().map(|key| (*key, 0)).chain(reads).collect();
        Entry::encode_with(kind, txn, &keys, &[write_set])
    }

    /// See [`EntryKind::Prepare`].
    pub fn encode_prepare(txn: &TxnId, keys: &[Key], write_set: &[u8]) -> Bytes {
        Entry::encode_as(EntryKind::Prepare, txn, keys, write_set)
    }

    /// See [`EntryKind::CommitPrepared`] and [`EntryKind::RollbackPrepared`].
    pub fn encode_end(txn: &TxnId, commit: bool, name: u64, base: Base, write_set: &[u8]) -> Bytes {
        let kind = if commit { EntryKind::CommitPrepared } else { EntryKind::RollbackPrepared };
        Entry::encode_as(kind, txn, &[Key { hash: name, mode: LockMode::Update, base }], write_set)
    }

    /// See [`EntryKind::Cancel`].
    pub fn encode_cancel(txn: &TxnId) -> Bytes {
        Entry::encode_as(EntryKind::Cancel, txn, &[], b"")
    }

    /// See [`EntryKind::Incarnation`]; `before` is 0 if there was none.
    pub fn encode_incarnation(node: NodeId, incarnation: u64, before: u64) -> Bytes {
        let txn = TxnId { node, incarnation, sequence: 0 };
        Entry::encode_as(EntryKind::Incarnation, &txn, &[], &before.to_le_bytes())
    }

    /// See [`EntryKind::Skip`]; `self` is the entry that is left out, and `index` is where it is in the log.
    pub fn encode_skip(&self, index: LogIndex) -> Bytes {
        let keys: Vec<Key> = self.taken().collect();
        Entry::encode_as(EntryKind::Skip, &self.txn, &keys, &index.0.to_le_bytes())
    }

    /// The index of the entry that this one leaves out.
    pub fn leaves_out(&self) -> Option<LogIndex> {
        let index = <[u8; 8]>::try_from(&self.write_set[..]).ok().filter(|_| self.kind == EntryKind::Skip)?;
        Some(LogIndex(u64::from_le_bytes(index)))
    }

    /// See [`EntryKind::Part`]; `bytes` are those from `offset` on, of `total`.
    pub fn encode_part(txn: &TxnId, total: usize, offset: usize, bytes: &[u8]) -> Bytes {
        let head = [(total as u64).to_le_bytes(), (offset as u64).to_le_bytes()];
        Entry::encode_with(EntryKind::Part, txn, &[], &[&head[0], &head[1], bytes])
    }

    pub fn part(&self) -> Option<Part> {
        if self.kind != EntryKind::Part {
            return None;
        }
        let mut r = Reader::new("part", self.write_set.clone());
        let (total, offset) = (r.u64("total").ok()?, r.u64("offset").ok()?);
        let part = Part { total, offset, bytes: r.rest() };
        part.offset.checked_add(part.bytes.len() as u64).map(|_| part)
    }

    /// See [`EntryKind::Whole`]: the CRC-32 of the encoded transaction, and where its parts stand.
    pub fn encode_whole(txn: &TxnId, crc: u32, indexes: &[LogIndex]) -> Bytes {
        let indexes: Vec<u8> = indexes.iter().flat_map(|index| index.0.to_le_bytes()).collect();
        Entry::encode_with(EntryKind::Whole, txn, &[], &[&crc.to_le_bytes(), &indexes])
    }

    pub fn whole(&self) -> Option<(u32, Vec<LogIndex>)> {
        if self.kind != EntryKind::Whole {
            return None;
        }
        let mut r = Reader::new("whole", self.write_set.clone());
        let (crc, mut indexes) = (r.u32("crc").ok()?, Vec::with_capacity(r.left() / 8));
        while r.left() > 0 {
            indexes.push(r.index("part").ok()?);
        }
        Some((crc, indexes))
    }

    pub fn encode_command(command: &Command) -> Bytes {
        Entry::encode_as(EntryKind::Command, &TxnId::default(), &[], &command.encode())
    }

    /// The command in these bytes, if they are an entry of kind `Command`.
    pub fn command(raw: &Bytes) -> Option<Command> {
        // One byte tells, so this costs nothing for transactions.
        if raw.get(KIND_AT) != Some(&(EntryKind::Command as u8)) {
            return None;
        }
        Entry::decode(raw.clone()).and_then(|entry| Command::decode(entry.write_set)).ok()
    }

    fn encode_as(kind: EntryKind, txn: &TxnId, keys: &[Key], write_set: &[u8]) -> Bytes {
        let keys: Vec<(Key, u8)> = keys.iter().map(|key| (*key, 0)).collect();
        Entry::encode_with(kind, txn, &keys, &[write_set])
    }

    fn encode_with(kind: EntryKind, txn: &TxnId, keys: &[(Key, u8)], write_set: &[&[u8]]) -> Bytes {
        let bytes: usize = write_set.iter().map(|piece| piece.len()).sum();
        let mut out = BytesMut::with_capacity(KEYS_AT + keys.len() * KEY_BYTES + bytes);
        put_txn(&mut out, txn);
        out.put_u8(kind as u8);
        out.put_u32_le(u32::try_from(keys.len()).expect("an entry of 1 GiB at most has fewer keys"));
        for (key, read) in keys {
            out.put_u64_le(key.hash);
            out.put_u8(key.mode as u8 | read);
            out.put_u64_le(key.base.0);
        }
        write_set.iter().for_each(|piece| out.put_slice(piece));
        out.freeze()
    }

    /// As it stands in the log, or would if it had not arrived in parts.
    pub fn encoded(&self) -> Bytes {
        let flags = self.keys.chunks_exact(KEY_BYTES).map(|k| k[MODE_AT] & READ);
        let keys: Vec<(Key, u8)> = self.keys().zip(flags).collect();
        Entry::encode_with(self.kind, &self.txn, &keys, &[&self.write_set])
    }

    pub fn key_count(&self) -> usize {
        self.keys.len() / KEY_BYTES
    }

    /// All keys: the entry aborts if any of them has been taken in a conflicting mode since its base.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.keys.chunks_exact(KEY_BYTES).map(key)
    }

    /// The keys that it takes when it commits.  The others stand for what it has only read: nobody aborts because of
    /// those, so readers do not stand in the way of writers that come after them in the log.
    pub fn taken(&self) -> impl Iterator<Item = Key> + '_ {
        self.keys.chunks_exact(KEY_BYTES).filter(|k| k[MODE_AT] & READ == 0).map(key)
    }

    /// Key number `number` is one that it takes.
    pub fn takes(&self, number: u32) -> bool {
        self.keys.get(number as usize * KEY_BYTES + MODE_AT).is_some_and(|mode| mode & READ == 0)
    }

    /// Some keys stand for what it has only read.
    pub fn has_reads(&self) -> bool {
        self.keys.chunks_exact(KEY_BYTES).any(|k| k[MODE_AT] & READ != 0)
    }
}

/// Of a transaction of `total` bytes, of which these first ones have arrived: the number of its keys, and those from
/// number `from` on, as far as they have arrived, and whether each was only read (`None`: it is no key, and the bytes
/// are no entry).  `None` if that number has not arrived or cannot be right.
pub(crate) fn arrived_keys(
    bytes: &[u8],
    total: u64,
    from: usize,
) -> Option<(usize, impl Iterator<Item = Option<(Key, bool)>> + '_)> {
    let count = u32::from_le_bytes(bytes.get(KIND_AT + 1..KEYS_AT)?.try_into().ok()?) as usize;
    let fits = (KEYS_AT + count * KEY_BYTES) as u64 <= total;
    let end = bytes.len().min(KEYS_AT + count * KEY_BYTES);
    let arrived = bytes.get(KEYS_AT + from * KEY_BYTES..end).filter(|_| fits)?.chunks_exact(KEY_BYTES);
    let of = |raw: &[u8]| LockMode::from_u8(raw[MODE_AT] & !READ).map(|_| (key(raw), raw[MODE_AT] & READ != 0));
    Some((count, arrived.map(of)))
}

fn key(raw: &[u8]) -> Key {
    Key {
        hash: u64::from_le_bytes(raw[0..8].try_into().expect("8 bytes of a 17-byte chunk")),
        mode: LockMode::from_u8(raw[MODE_AT] & !READ).expect("checked by decode"),
        base: Base(u64::from_le_bytes(raw[9..17].try_into().expect("8 bytes of a 17-byte chunk"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn txn() -> TxnId {
        TxnId { node: NodeId(7), incarnation: 9, sequence: 11 }
    }

    #[test]
    fn an_entry_comes_back_as_it_was_written() {
        let keys = [
            Key { hash: 1, mode: LockMode::Update, base: Base(5) },
            Key { hash: u64::MAX, mode: LockMode::KeyShare, base: Base(0) },
        ];
        let e = Entry::decode(Entry::encode(&txn(), &keys, b"rows")).unwrap();
        assert_eq!((e.txn, e.key_count()), (txn(), 2));
        assert_eq!(e.keys().collect::<Vec<_>>(), keys);
        assert_eq!(&e.write_set[..], b"rows");
    }

    #[test]
    fn a_skip_has_transaction_and_keys_of_what_it_leaves_out() {
        let key = Key { hash: 1, mode: LockMode::Update, base: Base(5) };
        let left_out = Entry::decode(Entry::encode(&txn(), &[key], b"rows")).unwrap();
        let skip = Entry::decode(left_out.encode_skip(LogIndex(17))).unwrap();
        assert_eq!((skip.txn, skip.kind, skip.leaves_out()), (txn(), EntryKind::Skip, Some(LogIndex(17))));
        assert_eq!(skip.keys().collect::<Vec<_>>(), [key]);
        assert_eq!(left_out.leaves_out(), None);
    }

    #[test]
    fn what_was_only_read_is_not_taken_and_not_left_out() {
        let key = |hash| Key { hash, mode: LockMode::Share, base: Base(5) };
        for kind in [EntryKind::Transaction, EntryKind::Prepare] {
            let raw = Entry::encode_serializable(kind, &txn(), &[key(1)], &[key(2), key(1)], b"rows");
            let entry = Entry::decode(raw.clone()).unwrap();
            assert_eq!((entry.kind, entry.has_reads(), entry.encoded()), (kind, true, raw));
            assert_eq!(entry.keys().collect::<Vec<_>>(), [key(1), key(2), key(1)]);
            assert_eq!(entry.taken().collect::<Vec<_>>(), [key(1)]);
            assert_eq!([0, 1, 2, 3].map(|number| entry.takes(number)), [true, false, false, false]);
            let skip = Entry::decode(entry.encode_skip(LogIndex(17))).unwrap();
            assert_eq!(skip.keys().collect::<Vec<_>>(), [key(1)]);
        }
    }

    #[test]
    fn an_unknown_mode_or_kind_is_an_error() {
        let key = Key { hash: 1, mode: LockMode::Share, base: Base(5) };
        let good = Entry::encode(&txn(), &[key], b"");
        let mut bad = good.to_vec();
        bad[25 + MODE_AT] = 8;
        assert!(Entry::decode(bad.into()).is_err());
        let mut bad = good.to_vec();
        bad[KIND_AT] = 200;
        assert!(Entry::decode(bad.into()).is_err());
    }

    proptest! {
        /// No bytes make decoding panic, and every cut of a good entry inside its head or keys is an error.
        #[test]
        fn decoding_survives_any_bytes(raw in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..59) {
            let _ = Entry::decode(raw.into());
            let key = Key { hash: 1, mode: LockMode::Share, base: Base(5) };
            let good = Entry::encode(&txn(), &[key, key], b"");
            prop_assert_eq!(good.len(), 59);
            prop_assert!(Entry::decode(good.slice(..cut)).is_err());
        }
    }
}
