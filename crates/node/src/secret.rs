//! The secret of a join token.  Only its hash is kept.

use crate::error::{Error, Result};
use crate::tls::sha256;
use ring::rand::{SecureRandom, SystemRandom};

pub type Secret = [u8; 32];

pub fn draw() -> Result<Secret> {
    let mut secret = Secret::default();
    SystemRandom::new().fill(&mut secret).map_err(|_| Error::Internal("the system gives no random bytes".into()))?;
    Ok(secret)
}

/// A random number that nobody has drawn before.
pub(crate) fn draw_number() -> Result<u64> {
    draw().map(|random| u64::from_le_bytes(random[..8].try_into().expect("it has 32 bytes")))
}

pub fn hash(secret: &Secret) -> [u8; 32] {
    sha256(secret)
}
