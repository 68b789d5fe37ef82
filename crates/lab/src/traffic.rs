//! How much TCP connections have carried, by the kernel's own counters (`ss -i`, from iproute2).
//!
//! On this machine both ends of a connection are sockets, and each counts what it has sent.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{ensure, Context, Result};

/// What was sent, in all directions together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    pub bytes: u64,
    /// Segments with data; acknowledgements alone do not count.
    pub packets: u64,
    /// Those of the direction, from one process to another, that has the most of them.
    pub busiest: u64,
}

/// What each socket has sent, by its own address and its peer's.
#[derive(Debug, Default)]
pub struct Sockets(BTreeMap<(String, String), Socket>);

#[derive(Debug, Clone, Copy, Default)]
struct Socket {
    bytes: u64,
    packets: u64,
    /// The process that has it, if this user may know that.
    process: Option<u32>,
}

impl Sockets {
    /// The sockets of connections that have one of `ports` at either end.
    pub fn of(ports: &BTreeSet<u16>) -> Result<Sockets> {
        let output = Command::new("ss").arg("-tinpHO").output().context("start ss: install iproute2")?;
        ensure!(output.status.success(), "ss failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(Sockets::parse(&String::from_utf8_lossy(&output.stdout), ports))
    }

    /// Lines of "state recv-q send-q address peer", then words of which some are `name:value`.
    fn parse(text: &str, ports: &BTreeSet<u16>) -> Sockets {
        let mut sockets = BTreeMap::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (Some(own), Some(peer)) = (words.get(3), words.get(4)) else { continue };
            if [own, peer].iter().all(|end| port(end).is_none_or(|port| !ports.contains(&port))) {
                continue;
            }
            // `ss` leaves out what is 0.
            let value = |name: &str| {
                words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix(':')?.parse().ok()).unwrap_or(0)
            };
            // users:(("onetrip",pid=123,fd=4))
            let process = line.split_once("pid=").and_then(|(_, rest)| rest.split([',', ')']).next()?.parse().ok());
            let socket = Socket { bytes: value("bytes_sent"), packets: value("data_segs_out"), process };
            sockets.insert((own.to_string(), peer.to_string()), socket);
        }
        Sockets(sockets)
    }

    /// What these sockets have sent since `earlier`; connections that have ended meanwhile are not counted.
    pub fn since(&self, earlier: &Sockets) -> Traffic {
        let mut sum = Traffic::default();
        let mut directions = BTreeMap::<_, u64>::new();
        for (ends, now) in &self.0 {
            let before = earlier.0.get(ends).copied().unwrap_or_default();
            let packets = now.packets.saturating_sub(before.packets);
            sum.bytes += now.bytes.saturating_sub(before.bytes);
            sum.packets += packets;
            let other = self.0.get(&(ends.1.clone(), ends.0.clone())).and_then(|socket| socket.process);
            // Of processes that are not known each socket is a direction.
            let direction = now.process.zip(other).ok_or(ends);
            *directions.entry(direction).or_default() += packets;
        }
        sum.busiest = directions.into_values().max().unwrap_or(0);
        sum
    }
}

/// The port in `address:port`.
fn port(end: &str) -> Option<u16> {
    end.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn only_what_was_sent_since_then_on_these_ports_counts() {
        let ports = BTreeSet::from([7100]);
        let one = r#"users:(("onetrip",pid=12,fd=3))"#;
        let other = r#"users:(("onetrip",pid=13,fd=5))"#;
        let earlier =
            format!("ESTAB 0 0 127.0.0.1:7100 127.0.0.1:40 {one} cubic bytes_sent:100 segs_out:9 data_segs_out:3\n");
        let now = format!(
            "ESTAB 0 0 127.0.0.1:7100 127.0.0.1:40 {one} cubic bytes_sent:150 segs_out:19 data_segs_out:4\n\
                   ESTAB 0 0 127.0.0.1:40 127.0.0.1:7100 {other} cubic bytes_sent:7 data_segs_out:1\n\
                   ESTAB 0 0 127.0.0.1:7100 127.0.0.1:42 {one} cubic bytes_sent:3 data_segs_out:2\n\
                   ESTAB 0 0 127.0.0.1:42 127.0.0.1:7100 {other} cubic\n\
                   ESTAB 0 0 127.0.0.1:41 127.0.0.1:7100 cubic rtt:0.1\n\
                   ESTAB 0 0 127.0.0.1:41 127.0.0.1:5432 cubic bytes_sent:1000 data_segs_out:10\n\
                   LISTEN 0 128 127.0.0.1:7100 0.0.0.0:*\n"
        );
        let sent = Sockets::parse(&now, &ports).since(&Sockets::parse(&earlier, &ports));
        assert_eq!(sent, Traffic { bytes: 60, packets: 4, busiest: 3 }, "two connections, and three of one's packets");
    }

    /// Goal: the output of the installed `ss` is what this file reads.
    #[test]
    fn a_real_connection_is_counted() {
        if Command::new("ss").arg("-V").output().is_err() {
            eprintln!("not checked: there is no ss here");
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ports = BTreeSet::from([listener.local_addr().unwrap().port()]);
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        let before = Sockets::of(&ports).unwrap();
        client.write_all(&[7; 5_000]).unwrap();
        server.read_exact(&mut [0; 5_000]).unwrap();
        server.write_all(&[7]).unwrap();
        client.read_exact(&mut [0]).unwrap();
        let sent = Sockets::of(&ports).unwrap().since(&before);
        assert_eq!(sent.bytes, 5_001);
        assert!((2..10).contains(&sent.packets), "{sent:?}");
        // Both ends belong to this process, so all of it is one direction.
        assert_eq!(sent.busiest, sent.packets);
    }
}
