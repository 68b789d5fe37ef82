//! What is read of a certificate that TLS itself does not tell.

use ring::digest::{digest, SHA256, SHA384, SHA512};

/// The end of a certificate's validity, in seconds since 1970 (RFC 5280, 4.1).
pub fn not_after(certificate: &[u8]) -> Option<u64> {
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xa0;
    let within = |bytes| value(bytes).filter(|(tag, ..)| *tag == SEQUENCE).map(|(_, within, _)| within);
    let mut rest = within(within(certificate)?)?;
    if let (VERSION, _, after) = value(rest)? {
        rest = after;
    }
    // The serial number, the algorithm, the issuer.
    for _ in 0..3 {
        rest = value(rest)?.2;
    }
    let (_, _, rest) = value(within(rest)?)?;
    let (tag, text, _) = value(rest)?;
    let digits = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let number = |from: usize, len: usize| digits.get(from..from + len)?.parse::<u16>().ok();
    let (year, rest) = match (tag, digits.len()) {
        (0x17, 12) => (number(0, 2).map(|year| year + if year < 50 { 2000 } else { 1900 })?, 2),
        (0x18, 14) => (number(0, 4)?, 4),
        _ => return None,
    };
    let part = |place: usize| number(rest + 2 * place, 2).and_then(|n| u8::try_from(n).ok());
    let day = time::Date::from_calendar_date(i32::from(year), part(0)?.try_into().ok()?, part(1)?).ok()?;
    let at = day.with_hms(part(2)?, part(3)?, part(4)?).ok()?.assume_utc();
    u64::try_from(at.unix_timestamp()).ok()
}

/// What a login over TLS may be bound to (`tls-server-end-point`, RFC 5929): the hash of the server's certificate, by
/// the hash function of its signature.  `None`: that names none that is known here.
pub fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
    const ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03];
    let (_, within, _) = value(certificate)?;
    let (_, _, algorithm) = value(within)?;
    let (_, algorithm, _) = value(algorithm)?;
    let (_, oid, _) = value(algorithm)?;
    let (last, family) = oid.split_last()?;
    let hash = match (family, last) {
        // MD5 and SHA-1 count as SHA-256.
        (RSA, 4 | 5 | 11) | (ECDSA, 2) => &SHA256,
        (RSA, 12) | (ECDSA, 3) => &SHA384,
        (RSA, 13) | (ECDSA, 4) => &SHA512,
        _ => return None,
    };
    Some(digest(hash, certificate).as_ref().to_vec())
}

/// The first value in DER: its tag, its contents, and what follows.
fn value(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (len, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (len.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(len)?;
    Some((tag, contents, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::Authority;
    use onetrip_core::NodeId;
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::CertificateDer;

    #[test]
    fn a_login_is_bound_to_the_hash_that_the_signature_uses() {
        let issued = Authority::new("a").unwrap().issue(NodeId(1)).unwrap();
        let certificate = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
        assert_eq!(end_point(&certificate).unwrap(), crate::tls::sha256(&certificate));
        // ecdsa-with-SHA256 becomes ecdsa-with-SHA384, and something that nobody knows.
        let oid = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
        let at = certificate.windows(oid.len()).rposition(|part| part == oid).unwrap() + oid.len() - 1;
        for (last, len) in [(3, Some(48)), (4, Some(64)), (9, None)] {
            let mut other = certificate.to_vec();
            other[at] = last;
            assert_eq!(end_point(&other).map(|hash| hash.len()), len);
        }
        for len in 0..certificate.len() {
            let _ = end_point(&certificate[..len]);
        }
    }
}
