//! Which versions of the protocol between nodes a release speaks, and which format level it knows.
//!
//! Both ends of a connection say this, and then use the lowest version that is the highest of either.  Version 13 is 12
//! with exactly that.
//!
//! A hello has the layout of version 12, and says that it is one, so that a node of that version lets the caller in.
//! It has no room for more; what the caller speaks stands in the last bytes of its relay key, which such a node takes
//! as they are.  The answer to a hello that has it says the same of the other end.

use crate::secret::Secret;
use bytes::{BufMut, BytesMut};
use onetrip_core::wire::Reader;
use onetrip_core::{level, Level};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Speaks {
    /// Versions of the protocol between nodes.
    pub least: u16,
    pub most: u16,
    pub level: Level,
}

const MARK: [u8; 6] = *b"speaks";
/// Where in a relay key the mark is.  What is before it is secret: 160 bits.
const MARK_AT: usize = 20;

impl Speaks {
    /// This release.
    pub const OWN: Speaks = Speaks { least: 12, most: 13, level: level::KNOWN };

    /// A release that knows one version and no levels.
    pub const fn only(version: u16) -> Speaks {
        Speaks { least: version, most: version, level: Level(0) }
    }

    /// The version that both know, or why there is none.
    pub fn agree(self, other: Speaks) -> Result<u16, String> {
        let version = self.most.min(other.most);
        match version >= self.least.max(other.least) {
            true => Ok(version),
            false => Err(format!(
                "it speaks {}, this node {}: upgrade one release at a time (docs/upgrade.md)",
                other.versions(),
                self.versions()
            )),
        }
    }

    fn versions(self) -> String {
        match self.least == self.most {
            true => format!("version {} of the protocol between nodes", self.most),
            false => format!("versions {} to {} of the protocol between nodes", self.least, self.most),
        }
    }

    pub fn put(self, out: &mut BytesMut) {
        out.put_u16_le(self.least);
        out.put_u16_le(self.most);
        out.put_u16_le(self.level.0);
    }

    pub fn read(r: &mut Reader) -> onetrip_core::Result<Speaks> {
        let (least, most, level) = (r.u16("least version")?, r.u16("highest version")?, Level(r.u16("level")?));
        match least <= most {
            true => Ok(Speaks { least, most, level }),
            false => Err(r.error(format!("versions {least} to {most}"))),
        }
    }

    pub fn hide_in(self, key: &mut Secret) {
        let mut hidden = BytesMut::from(&MARK[..]);
        self.put(&mut hidden);
        key[MARK_AT..].copy_from_slice(&hidden);
    }

    /// In a hello of this version with this relay key.
    pub fn of_hello(version: u16, key: &Secret) -> Speaks {
        let hidden = key[MARK_AT..].strip_prefix(&MARK).map(bytes::Bytes::copy_from_slice);
        let said = hidden.and_then(|rest| Speaks::read(&mut Reader::new("hello", rest)).ok());
        said.filter(|said| said.least <= version && said.most > 12).unwrap_or(Speaks::only(version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_releases_speak_the_lower_version_or_say_why_not() {
        let of = |least, most| Speaks { least, most, level: Level(0) };
        assert_eq!(of(12, 13).agree(of(12, 13)), Ok(13));
        assert_eq!(of(12, 13).agree(Speaks::only(12)), Ok(12));
        assert_eq!(Speaks::only(12).agree(of(12, 15)), Ok(12));
        let why = of(12, 13).agree(of(14, 15)).unwrap_err();
        assert!(why.contains("versions 14 to 15") && why.contains("this node versions 12 to 13"), "{why}");
        let why = of(13, 14).agree(Speaks::only(12)).unwrap_err();
        assert!(why.contains("it speaks version 12 "), "{why}");
    }

    #[test]
    fn a_hello_of_version_12_can_say_more() {
        let mut key = [7; 32];
        assert_eq!(Speaks::of_hello(12, &key), Speaks::only(12));
        Speaks::OWN.hide_in(&mut key);
        assert_eq!((Speaks::of_hello(12, &key), key[..MARK_AT].to_vec()), (Speaks::OWN, vec![7; MARK_AT]));
        // A key that looks as if.
        Speaks { least: 14, ..Speaks::OWN }.hide_in(&mut key);
        assert_eq!(Speaks::of_hello(12, &key), Speaks::only(12));
    }

    /// Goal: whatever a hello says, it is refused, or a version is agreed on that this release speaks.
    #[test]
    fn what_a_hello_cannot_mean_is_refused_or_bounded() {
        let edges = [0, 1, 11, 12, 13, 14, u16::MAX - 1, u16::MAX];
        let mut agreed = 0;
        for (version, least) in edges.iter().flat_map(|version| edges.iter().map(move |least| (*version, *least))) {
            for (most, level) in edges.iter().flat_map(|most| edges.iter().map(move |level| (*most, *level))) {
                let mut key = [0; 32];
                Speaks { least, most, level: Level(level) }.hide_in(&mut key);
                let said = Speaks::of_hello(version, &key);
                assert!(said.least <= said.most && said.least <= version, "{said:?}");
                if let Ok(together) = Speaks::OWN.agree(said) {
                    let speak = |one: Speaks| (one.least..=one.most).contains(&together);
                    assert!(speak(Speaks::OWN) && speak(said), "{said:?}: {together}");
                    agreed += 1;
                }
            }
        }
        assert!(agreed > 100, "{agreed}");
    }
}
