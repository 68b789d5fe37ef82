//! Free TCP ports of this machine.
//!
//! Ports are chosen below the range that the kernel uses for outgoing connections, if there is room below it (otherwise
//! from 61,000 up).  From inside that range, a client's connection could be given the port of a server that was killed,
//! and the server could not be started again.

use std::collections::hash_map::RandomState;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

const TRIES_MAX: usize = 2_000;
/// The ports that this process has given out: whoever asked for one may not listen on it yet, or not at the moment.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// `count` ports on 127.0.0.1 that nobody listens on now, and that were not returned before.
pub fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let ephemeral_from = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|text| text.split_whitespace().next().and_then(|word| word.parse::<u16>().ok()))
        .unwrap_or(32_768);
    let (from, until) = if ephemeral_from > 12_000 { (10_000, ephemeral_from) } else { (61_000, 65_535) };
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    // All listeners stay open until the last port is found.
    let mut held = Vec::with_capacity(count);
    for _ in 0..TRIES_MAX {
        if held.len() == count {
            break;
        }
        let port = from + (RandomState::new().build_hasher().finish() % u64::from(until - from)) as u16;
        if given.contains(&port) {
            continue;
        }
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            given.insert(port);
            held.push(listener);
        }
    }
    if held.len() < count {
        return Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("found only {} of {count} free ports between {from} and {until}", held.len()),
        ));
    }
    held.iter().map(|l| l.local_addr().map(|a| a.port())).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn free_ports_are_different_and_free() {
        let mut ports = super::free_ports(20).unwrap();
        for port in &ports {
            std::net::TcpListener::bind(("127.0.0.1", *port)).unwrap();
        }
        ports.extend(super::free_ports(20).unwrap());
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 40);
    }
}
