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

pub fn hash(secret: &Secret) -> [u8; 32] {
    sha256(secret)
}
