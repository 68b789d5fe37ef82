//! Where a new node listens, and where others reach it: for the commands that make one node.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use onetrip_client::{complain, ports};

use crate::BadUsage;

// A doc comment would become that of the commands.
#[derive(Args)]
pub struct PlaceArgs {
    /// Where this node listens for the others [default: 127.0.0.1 and a free port]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Where the others can reach it [default: --listen]
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// PostgreSQL's port [default: a free one; an adopted server keeps its own]
    #[arg(long)]
    pub port: Option<u16>,
    /// Port of `onetrip status`, on 127.0.0.1 [default: a free one]
    #[arg(long, value_name = "PORT")]
    http: Option<u16>,
    /// Folder of PostgreSQL's programs [default: as for `onetrip init`]
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
}

pub struct Place {
    pub listen: SocketAddr,
    /// Where the others reach it.
    pub address: String,
    by_default: bool,
    pub http: SocketAddr,
    /// PostgreSQL's port.
    pub port: u16,
}

impl PlaceArgs {
    /// Chooses a free port wherever none is given.
    pub fn choose(&self) -> Result<Place> {
        let mut free = ports::free_ports(3)?.into_iter();
        let mut port = |given: Option<u16>| given.or_else(|| free.next()).context("no free port is left");
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        let listen = self.listen.map_or_else(|| port(None).map(|port| SocketAddr::new(loopback, port)), Ok)?;
        let address = match &self.address {
            Some(address) => address.clone(),
            None if listen.ip().is_unspecified() => {
                return Err(BadUsage(format!(
                "--listen {listen} stands for every address: say with --address where the others can reach this node"
            ))
                .into())
            }
            None => listen.to_string(),
        };
        let by_default = self.listen.is_none() && self.address.is_none();
        let http = SocketAddr::new(loopback, port(self.http)?);
        Ok(Place { listen, address, by_default, http, port: port(self.port)? })
    }
}

impl Place {
    pub fn warn_if_only_here(&self) {
        if self.by_default {
            warn_if_only_here(self.listen, "--listen IP:PORT");
        }
    }
}

/// `named_by`: where the caller could have named another address.
pub fn warn_if_only_here(listen: SocketAddr, named_by: &str) {
    if listen.ip().is_loopback() {
        complain!(
            "warning: the node listens on {listen}, which no other machine can reach, so no region can join from another \
             machine; its address cannot be changed later, and is named by {named_by}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(listen: &str, address: Option<&str>) -> Result<Place> {
        let listen = Some(listen.parse().unwrap());
        PlaceArgs { listen, address: address.map(String::from), port: Some(1), http: None, bin_dir: None }.choose()
    }

    #[test]
    fn a_node_that_listens_everywhere_must_say_where_it_is() {
        for everywhere in ["0.0.0.0:7100", "[::]:7100"] {
            assert!(given(everywhere, None).err().unwrap().to_string().contains("--address"));
            assert_eq!(given(everywhere, Some("db.example:7100")).unwrap().address, "db.example:7100");
        }
        let place = given("10.0.4.10:7100", None).unwrap();
        assert_eq!((place.address.as_str(), place.port), ("10.0.4.10:7100", 1));
    }
}
