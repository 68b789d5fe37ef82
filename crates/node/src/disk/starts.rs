//! The incarnations in which this node's PostgreSQL has run and which may not be in the log yet.
//!
//! A transaction of a past incarnation that is recorded nowhere would never get an outcome, so an incarnation is
//! durable here before the node welcomes PostgreSQL.  One line: the incarnations, oldest first, and a CRC-32 of them,
//! all in hexadecimal.

use super::write_whole;
use crate::error::{Error, Result};
use std::path::PathBuf;

pub struct StartsFile {
    path: PathBuf,
}

impl StartsFile {
    pub fn new(path: PathBuf) -> StartsFile {
        StartsFile { path }
    }

    pub fn load(&self) -> Result<Vec<u64>> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(Error::Disk { file: self.path.clone(), what: "read", source }),
        };
        parse(&text).ok_or_else(|| Error::Corrupted { file: self.path.clone(), why: "it is damaged".into() })
    }

    /// Durable on return.
    pub fn save(&self, starts: &[u64]) -> Result<()> {
        write_whole(&self.path, format(starts).as_bytes())
    }
}

fn format(starts: &[u64]) -> String {
    let body: String = starts.iter().map(|start| format!("{start:x} ")).collect();
    format!("{body}{:08x}\n", crc32fast::hash(body.as_bytes()))
}

fn parse(text: &str) -> Option<Vec<u64>> {
    let line = text.strip_suffix('\n')?;
    let (body, crc) = line.split_at(line.rfind(' ').map_or(0, |at| at + 1));
    if u32::from_str_radix(crc, 16).ok()? != crc32fast::hash(body.as_bytes()) {
        return None;
    }
    body.split_terminator(' ').map(|start| u64::from_str_radix(start, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_come_back_and_any_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let file = StartsFile::new(dir.path().join("starts"));
        assert_eq!(file.load().unwrap(), [0; 0]);
        for starts in [&[][..], &[7], &[7, u64::MAX, 0]] {
            file.save(starts).unwrap();
            assert_eq!(file.load().unwrap(), starts);
        }
        let good = std::fs::read(&file.path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&file.path, &bad).unwrap();
            assert!(file.load().is_err(), "byte {at}");
        }
    }
}
