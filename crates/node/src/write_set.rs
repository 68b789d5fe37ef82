//! What a write set changes, as lines for people to read (`docs/agent-protocol.md`, "Write set").
//!
//! Nothing is decided by it: the node looks into a write set only to print what `onetrip skip` leaves out.  Only
//! PostgreSQL knows the types of values, so it is asked for each row.  One that it cannot read is shown as the bytes
//! that are stored; text in them can be read.

use crate::printable::printable_part;
use bytes::Bytes;
use onetrip_core::wire::Reader;
use onetrip_core::Result;
use std::fmt::Write;

const FORMAT: u8 = 2;
/// Bytes that are shown of a row, or of a changed part of a value.
const VALUE_BYTES_MAX: usize = 1_000;
/// Bytes that are shown of a row that PostgreSQL has read; it cuts each value at `VALUE_BYTES_MAX`.
const ROW_BYTES_MAX: usize = 4_000;
/// Lines that are shown in all.
const LINES_MAX: usize = 10_000;

/// A row, and what is needed to read it: the arguments of `onetrip.row_text()`.
pub struct Row<'a> {
    /// The operations that introduce objects.
    pub objects: &'a [u8],
    /// The operation that introduces its table.
    pub relation: &'a [u8],
    /// The columns that an update has changed.
    pub changed: Option<&'a [u8]>,
    pub row: &'a [u8],
}

struct Relation {
    name: String,
    attributes: usize,
    operation: Bytes,
}

struct Lines<F> {
    objects: Vec<u8>,
    relations: Vec<Relation>,
    lines: Vec<String>,
    left: u64,
    read: F,
}

/// One line for each change.  If the rest cannot be read, a line at the end says so.  `read` asks PostgreSQL for the
/// values of a row.
pub fn lines(write_set: Bytes, read: impl FnMut(&Row) -> Option<String>) -> Vec<String> {
    let mut lines = Lines { objects: Vec::new(), relations: Vec::new(), lines: Vec::new(), left: 0, read };
    if let Err(e) = lines.all("write set", &write_set) {
        lines.lines.push(format!("what follows cannot be read: {e}"));
    }
    if lines.left > 0 {
        lines.lines.push(format!("and {} more", lines.left));
    }
    lines.lines
}

impl<F: FnMut(&Row) -> Option<String>> Lines<F> {
    fn all(&mut self, what: &'static str, write_set: &Bytes) -> Result<()> {
        let mut r = Reader::new(what, write_set.clone());
        if r.left() == 0 {
            return Ok(());
        }
        let format = r.u8("format")?;
        if format != FORMAT {
            return Err(r.error(format!("it is in format {format}")));
        }
        while r.left() > 0 {
            self.operation(write_set, &mut r)?;
        }
        Ok(())
    }

    fn say(&mut self, line: String) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(printable_part(&line));
        } else {
            self.left += 1;
        }
    }

    fn operation(&mut self, write_set: &Bytes, r: &mut Reader) -> Result<()> {
        let at = r.left();
        match r.u8("operation")? {
            b'R' => {
                let name = format!("{}.{}", r.str("schema")?, r.str("name")?);
                let attributes = usize::from(r.u16("attributes")?);
                r.u32("layout")?;
                self.relations.push(Relation { name, attributes, operation: read_since(write_set, at, r) });
            }
            b'O' => {
                object(r)?;
                self.objects.extend(read_since(write_set, at, r));
            }
            b'G' => {
                r.str("role")?;
                settings(r)?;
            }
            b'I' | b'C' => {
                let relation = self.relation(r)?;
                let new = self.row(write_set, r, relation, None)?;
                self.say(format!("INSERT {}: {new}", self.relations[relation].name));
            }
            b'U' => {
                let relation = self.relation(r)?;
                r.u8("mode")?;
                let old = self.row(write_set, r, relation, None)?;
                let changed = r.take(self.relations[relation].attributes.div_ceil(8), "changed columns")?;
                let new = self.row(write_set, r, relation, Some(&changed))?;
                self.say(format!("UPDATE {}: {old} to {new}", self.relations[relation].name));
            }
            b'D' => {
                let relation = self.relation(r)?;
                let old = self.row(write_set, r, relation, None)?;
                self.say(format!("DELETE {}: {old}", self.relations[relation].name));
            }
            b'M' => {
                let relation = self.relation(r)?;
                let old = self.row(write_set, r, relation, None)?;
                self.say(format!("moved away from {}: {old}", self.relations[relation].name));
            }
            b'L' => self.large_object(r)?,
            b'T' => {
                r.u64("time")?;
            }
            b'S' => {
                let length = r.u32("length")? as usize;
                let text = String::from_utf8_lossy(&r.take(length, "statement")?).into_owned();
                let role = r.str("role")?;
                settings(r)?;
                self.say(format!("as {role}: {text}"));
            }
            b'E' => {
                let name = format!("{}.{}", r.str("schema")?, r.str("name")?);
                r.u8("flags")?;
                self.say(format!("emptied {name}"));
            }
            b'N' => {
                let (channel, payload) = (r.str("channel")?, r.str("payload")?);
                self.say(format!("NOTIFY {}: '{}'", channel.escape_debug(), payload.escape_debug()));
            }
            b'Q' => {
                let name = format!("{}.{}", r.str("schema")?, r.str("name")?);
                let value = r.u64("value")? as i64;
                r.u8("flags")?;
                self.say(format!("sequence {name}: {value}"));
            }
            b'P' => {
                let (gid, owner) = (r.str("gid")?, r.str("owner")?);
                r.u64("prepared")?;
                let length = r.u32("length")? as usize;
                self.say(format!("as {owner}: PREPARE TRANSACTION '{}', of:", gid.escape_debug()));
                self.all("prepared write set", &r.take(length, "write set")?)?;
            }
            b'X' => {
                let gid = r.str("gid")?;
                let what = if r.u8("commit")? == 0 { "ROLLBACK" } else { "COMMIT" };
                self.say(format!("{what} PREPARED '{}'", gid.escape_debug()));
            }
            other => return Err(r.error(format!("operation 0x{other:02x} is unknown"))),
        }
        Ok(())
    }

    fn large_object(&mut self, r: &mut Reader) -> Result<()> {
        let kind = r.u8("kind")?;
        let number = r.u32("large object")?;
        match kind {
            b'c' => {
                r.u32("owner")?;
                self.say(format!("large object {number}: created"));
            }
            b'p' => {
                let page = r.u32("page")?;
                let length = r.u32("page length")? as usize;
                let bytes = readable(&r.take(length, "page")?);
                self.say(format!("large object {number}, page {page}: {bytes}"));
            }
            b't' => {
                let page = r.u32("page")?;
                let runs = r.u32("runs")? as usize;
                r.take(runs.saturating_mul(8), "runs")?;
                self.say(format!("large object {number}: cut at page {page}"));
            }
            b'u' => self.say(format!("large object {number}: deleted")),
            other => return Err(r.error(format!("operation 0x{other:02x} on a large object is unknown"))),
        }
        Ok(())
    }

    fn relation(&self, r: &mut Reader) -> Result<usize> {
        let number = usize::from(r.u16("relation")?);
        if number >= self.relations.len() {
            return Err(r.error(format!("relation {number} is not named")));
        }
        Ok(number)
    }

    fn row(&mut self, write_set: &Bytes, r: &mut Reader, relation: usize, changed: Option<&[u8]>) -> Result<String> {
        let at = r.left();
        let relation = &self.relations[relation];
        let stored = row(r, relation.attributes)?;
        if self.lines.len() >= LINES_MAX {
            return Ok(stored);
        }
        let row = read_since(write_set, at, r);
        let asked = Row { objects: &self.objects, relation: &relation.operation, changed, row: &row };
        let Some(mut values) = (self.read)(&asked) else { return Ok(stored) };
        if values.len() > ROW_BYTES_MAX {
            let cut = (0..=ROW_BYTES_MAX).rev().find(|at| values.is_char_boundary(*at)).unwrap_or_default();
            values.truncate(cut);
            values.push_str("...");
        }
        Ok(values)
    }
}

/// What was read of the write set since so many bytes were left.
fn read_since(write_set: &Bytes, left: usize, r: &Reader) -> Bytes {
    write_set.slice(write_set.len() - left..write_set.len() - r.left())
}

fn settings(r: &mut Reader) -> Result<()> {
    for _ in 0..r.u16("count")? {
        r.str("setting")?;
        r.str("value")?;
    }
    Ok(())
}

fn object(r: &mut Reader) -> Result<()> {
    let kind = r.u8("kind")?;
    r.str("schema")?;
    r.str("name")?;
    let bytes = match kind {
        b'e' | b'l' => 4,
        b'f' | b'o' => 4 * usize::from(r.u8("arguments")?),
        _ => 0,
    };
    r.take(bytes, "object")?;
    Ok(())
}

/// The row as it is stored.
fn row(r: &mut Reader, attributes: usize) -> Result<String> {
    let flags = r.u8("row flags")?;
    if flags & 1 != 0 {
        r.take(attributes.div_ceil(8), "bitmap")?;
    }
    let length = r.u32("row length")? as usize;
    let mut text = readable(&r.take(length, "row")?);
    if flags & 4 != 0 {
        names(r)?;
    }
    if flags & 8 != 0 {
        for _ in 0..r.u16("parts")? {
            let column = u32::from(r.u16("column")?) + 1;
            r.take(2, "part")?;
            let length = r.u32("part length")? as usize;
            let value = readable(&r.take(length, "part")?);
            names(r)?;
            // Writing to a string cannot fail.
            let _ = write!(text, ", column {column}: {value}");
        }
    }
    Ok(text)
}

fn names(r: &mut Reader) -> Result<()> {
    let count = r.u32("names")? as usize;
    r.take(count.saturating_mul(8), "names")?;
    Ok(())
}

fn readable(bytes: &[u8]) -> String {
    let cut = bytes.len().min(VALUE_BYTES_MAX);
    let more = if cut < bytes.len() { "..." } else { "" };
    format!("'{}{more}'", bytes[..cut].escape_ascii())
}

/// A row of a table with two columns, the second NULL; then what one statement, and an UPDATE of a part, look like.
#[cfg(any(test, feature = "lab"))]
pub(crate) fn example() -> Vec<u8> {
    let str = |s: &str| [&(s.len() as u16).to_le_bytes()[..], s.as_bytes()].concat();
    let table = [b"R".to_vec(), str("public"), str("t"), vec![2, 0], vec![9; 4]].concat();
    let row = [vec![1, 1], 3u32.to_le_bytes().to_vec(), b"\x05ab".to_vec()].concat();
    let part = [vec![1, 0, 1, 0], 2u32.to_le_bytes().to_vec(), b"zz".to_vec(), vec![0; 4]].concat();
    let changed = [vec![9, 2], 0u32.to_le_bytes().to_vec(), vec![1, 0], part].concat();
    let statement = "drop table u";
    let statement = [
        b"S".to_vec(),
        (statement.len() as u32).to_le_bytes().to_vec(),
        statement.into(),
        str("joe"),
        vec![1, 0],
        str("a"),
        str("b"),
    ];
    let emptied = [b"E".to_vec(), str("public"), str("m"), vec![1]].concat();
    let notify = [b"N".to_vec(), str("news"), str("a\nb")].concat();
    let page = [b"Lp\x07\0\0\0\x02\0\0\0\x01\0\0\0x".to_vec(), b"Lt\x07\0\0\0\x02\0\0\0\0\0\0\0".to_vec()].concat();
    let insert = [b"I\0\0".to_vec(), row.clone()].concat();
    let update = [b"U\0\0\x02".to_vec(), row, vec![2], changed].concat();
    [vec![FORMAT, b'T'], vec![0; 8], notify, statement.concat(), emptied, page, table, insert, update].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stored(write_set: Vec<u8>) -> Vec<String> {
        lines(write_set.into(), |_| None)
    }

    #[test]
    fn changes_are_shown_one_on_a_line() {
        assert_eq!(
            stored(example()),
            [
                r"NOTIFY news: 'a\nb'",
                "as joe: drop table u",
                "emptied public.m",
                "large object 7, page 2: 'x'",
                "large object 7: cut at page 2",
                r"INSERT public.t: '\x05ab'",
                r"UPDATE public.t: '\x05ab' to '', column 2: 'zz'"
            ]
        );
    }

    /// Goal: PostgreSQL gets what it needs to read each row, and what it says is shown, within bounds.
    #[test]
    fn postgresql_is_asked_for_the_values_of_rows() {
        let object = b"On\0\0\x01\0s";
        let mut write_set = example();
        write_set.splice(1..1, *object);
        let mut asked = Vec::new();
        let shown = lines(write_set.into(), |row| {
            assert_eq!((row.objects, &row.relation[..9]), (&object[..], &b"R\x06\0public"[..]));
            assert_eq!(row.relation.len(), 18);
            asked.push((row.changed.map(<[u8]>::to_vec), row.row.len()));
            Some(if asked.len() < 3 { format!("row {}", asked.len()) } else { "\u{e9}".repeat(ROW_BYTES_MAX) })
        });
        assert_eq!(asked, [(None, 9), (None, 9), (Some(vec![2]), 22)]);
        assert_eq!(shown[5], "INSERT public.t: row 1");
        assert_eq!(shown[6], format!("UPDATE public.t: row 2 to {}...", "\u{e9}".repeat(ROW_BYTES_MAX / 2)));
    }

    /// Goal: whoever wrote the entry does not decide what a terminal does with it, or what looks like a line of its
    /// own.
    #[test]
    fn nothing_in_a_change_is_for_the_terminal() {
        let str = |s: &str| [&(s.len() as u16).to_le_bytes()[..], s.as_bytes()].concat();
        let text = "drop table \u{1b}[2K\nlog index 7";
        let length = (text.len() as u32).to_le_bytes().to_vec();
        let statement = [vec![FORMAT, b'S'], length, text.into(), str("joe"), vec![0, 0]].concat();
        let emptied = [b"E".to_vec(), str("a\rb"), str("m\u{9b}2J"), vec![1]].concat();
        assert_eq!(
            stored([statement, emptied].concat()),
            ["as joe: drop table \u{fffd}[2K\n    log index 7", "emptied a\u{fffd}b.m\u{fffd}2J"]
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_shown_as_far_as_they_can_be_read(raw in proptest::collection::vec(any::<u8>(), 0..200), cut in any::<proptest::sample::Index>()) {
            let _ = stored(raw);
            let good = example();
            let _ = stored(good[..cut.index(good.len())].to_vec());
        }
    }
}
