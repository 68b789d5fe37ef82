//! What PostgreSQL stores of a password (RFC 5803), made here because each node of a new cluster makes its own server,
//! and all of them have to store the same.

use std::num::NonZeroU32;

use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use ring::{digest, hmac, pbkdf2};

/// PostgreSQL's default (`SCRAM_SHA_256_DEFAULT_ITERATIONS`).
const ITERATIONS: NonZeroU32 = NonZeroU32::new(4096).unwrap();

/// The salt comes from the cluster's name, which is drawn for it: the machines of `onetrip init --region` have nothing
/// else in common.
pub fn scram_verifier(password: &str, cluster: &str) -> String {
    let salt = &super::super::tls::sha256(format!("salt of the superuser's password\n{cluster}").as_bytes())[..16];
    verifier(password, salt)
}

fn verifier(password: &str, salt: &[u8]) -> String {
    // As PostgreSQL does it: what cannot be normalized is taken as it is.
    let normal = stringprep::saslprep(password).unwrap_or(password.into());
    let mut salted = [0u8; 32];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ITERATIONS, salt, normal.as_bytes(), &mut salted);
    let key = hmac::Key::new(hmac::HMAC_SHA256, &salted);
    let stored = digest::digest(&digest::SHA256, hmac::sign(&key, b"Client Key").as_ref());
    let server = hmac::sign(&key, b"Server Key");
    let [salt, stored, server] = [salt, stored.as_ref(), server.as_ref()].map(|bytes| STANDARD.encode(bytes));
    format!("SCRAM-SHA-256${ITERATIONS}:{salt}${stored}:{server}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What PostgreSQL 15.20 stored for these passwords, with the salts that it drew.
    #[test]
    fn it_is_what_postgresql_stores() {
        for (password, stored) in STORED {
            let salt = stored.split([':', '$']).nth(2).unwrap();
            assert_eq!(verifier(password, &STANDARD.decode(salt).unwrap()), *stored);
        }
        assert_eq!(scram_verifier("x", "a"), scram_verifier("x", "a"));
        assert_ne!(scram_verifier("x", "a"), scram_verifier("x", "b"));
    }

    const STORED: &[(&str, &str)] = &[
        (
            "secret",
            "SCRAM-SHA-256$4096:wzV3Ec2v43ppfWDE+98gMA==$RkxqOd+MNUH5/2iYTEjF/pdFnA06WRUGh5kBfqZGi3w=:RmFxh2ty2oC58XwK463550P7RFlZRJij1I7+bJLhN4c=",
        ),
        (
            "Größe ① и more",
            "SCRAM-SHA-256$4096:7K5A91NRyOnn09tYxtmv0g==$DYtVSjRSr7swdsHU2dE6VWkIb9VolTr7hToIuvcsWsk=:4GGCU4pC1y84kHG2qVl1xqB0+XBCQjgDDqpFtb+5T8w=",
        ),
        (
            "tab\tkept",
            "SCRAM-SHA-256$4096:dp3HfkwBC+RmKn60szmelg==$5/fbBbhahQEj/wVHhuovN+/o8Zp8WJplIbmBZ4RPbJQ=:V6hWr9d3+0go7wPSgvUkhcUGf6YUQFgGuxFbyb5iggI=",
        ),
    ];
}
