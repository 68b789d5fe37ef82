//! The text that lets one new node in: `onetrip-join-1.<secret>.<authority>`.
//!
//! `secret` and `authority` are 32 bytes each in base 32 (RFC 4648, lower case, no padding).  The authority is the
//! SHA-256 of the cluster's CA certificate, so that the new node gives its secret only to the right cluster; it is
//! `plain` if the cluster has no certificates.

use crate::secret::{self, Secret};
use std::fmt;
use std::str::FromStr;

const PREFIX: &str = "onetrip-join-1";
const PLAIN: &str = "plain";
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub secret: Secret,
    /// Fingerprint of the cluster's authority; `None` if its nodes talk without TLS.
    pub authority: Option<[u8; 32]>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a token of `onetrip token`: {0}")]
pub struct NotAToken(&'static str);

impl JoinToken {
    /// The hash by which the cluster knows the secret.
    pub fn hash(&self) -> [u8; 32] {
        secret::hash(&self.secret)
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.authority.as_ref().map_or(PLAIN.to_owned(), encode);
        write!(f, "{PREFIX}.{}.{authority}", encode(&self.secret))
    }
}

/// Leaves the secret out, since this text may end up in a log.
impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("authority", &self.authority.as_ref().map(encode)).finish_non_exhaustive()
    }
}

impl FromStr for JoinToken {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<JoinToken, NotAToken> {
        let mut parts = text.trim().split('.');
        let (Some(prefix), Some(secret), Some(authority), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(NotAToken("it should have three parts with dots between them; is it complete?"));
        };
        if prefix != PREFIX {
            return Err(NotAToken("it should begin with onetrip-join-1"));
        }
        let secret = decode(secret).ok_or(NotAToken("its second part is damaged"))?;
        let authority = match authority {
            PLAIN => None,
            text => Some(decode(text).ok_or(NotAToken("its third part is damaged"))?),
        };
        Ok(JoinToken { secret, authority })
    }
}

fn encode(bytes: &[u8; 32]) -> String {
    let mut text = String::with_capacity(52);
    let (mut bits, mut count) = (0u32, 0);
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            text.push(char::from(ALPHABET[(bits >> count) as usize & 31]));
        }
    }
    // 256 bits are 51 letters and one bit.
    text.push(char::from(ALPHABET[(bits << (5 - count)) as usize & 31]));
    text
}

fn decode(text: &str) -> Option<[u8; 32]> {
    if text.len() != 52 {
        return None;
    }
    let mut bytes = [0; 32];
    let (mut bits, mut count, mut at) = (0u32, 0, 0);
    for letter in text.bytes() {
        let value = ALPHABET.iter().position(|a| *a == letter.to_ascii_lowercase())?;
        bits = bits << 5 | value as u32;
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes[at] = (bits >> count) as u8;
            at += 1;
        }
    }
    // The bits left over must be zero, so that each value has one text only.
    (bits & ((1 << count) - 1) == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_token_comes_back_from_its_text(secret: [u8; 32], authority: Option<[u8; 32]>, upper: bool) {
            let token = JoinToken { secret, authority };
            let mut text = token.to_string();
            if upper {
                let at = PREFIX.len();
                text = text[..at].to_owned() + &text[at..].to_uppercase().replace("PLAIN", PLAIN);
            }
            prop_assert_eq!(text.parse::<JoinToken>().unwrap(), token.clone());
            let shown = format!("{token:?}");
            prop_assert!(!shown.contains(&encode(&secret)));
        }

        #[test]
        fn what_is_no_token_is_refused(text in "(onetrip-join-[12]\\.)?[a-z2-7.]{0,120}|.*") {
            if let Ok(token) = text.parse::<JoinToken>() {
                prop_assert_eq!(token.to_string(), text.trim());
            }
        }

        #[test]
        fn a_changed_letter_gives_another_token_or_none(secret: [u8; 32], at in 15usize..119, letter in "[a-z2-7]") {
            let token = JoinToken { secret, authority: Some([7; 32]) };
            let mut text = token.to_string();
            text.replace_range(at..at + 1, &letter);
            if let Ok(other) = text.parse::<JoinToken>() {
                prop_assert_eq!(other.to_string(), text);
            }
        }
    }
}
