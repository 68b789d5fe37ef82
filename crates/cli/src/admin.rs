//! Asks a running node on this machine to change the cluster, through the socket in its folder.
//!
//! Anyone who may open that socket (the node's user and root) may change the cluster; there is no other check.

use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context, Result};
use onetrip_client::http;
use onetrip_node::config::NodeConfig;
use serde_json::Value;

use crate::BadUsage;

/// A change waits for a leader and a majority.  The node gives up sooner than this, and says why.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// The node that is asked: the one of the folder `data`, or the first that runs if `data` contains several nodes.
pub struct Admin {
    pub node: NodeConfig,
    socket: String,
}

impl Admin {
    pub fn of(data: &Path) -> Result<Admin> {
        let mut why = anyhow!("no node");
        for node in crate::nodes::in_folder(data)? {
            let socket = node.admin_socket().display().to_string();
            match std::os::unix::net::UnixStream::connect(&socket) {
                Ok(_) => return Ok(Admin { node, socket }),
                Err(e) => why = anyhow!(e).context(format!("connect to {socket}")),
            }
        }
        Err(why.context("no node in that folder can be reached; is it running, and are you its user or root?"))
    }

    pub fn answers(&self) -> bool {
        std::os::unix::net::UnixStream::connect(&self.socket).is_ok()
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value> {
        answer(http::post_json(&self.socket, path, body, TIMEOUT))
    }

    pub fn status(&self) -> Result<Value> {
        answer(http::get_json(&crate::nodes::address(&self.node), "/status", TIMEOUT))
    }

    /// The whole cluster, as this node sees it (docs/status.md).
    pub fn cluster(&self) -> Result<Value> {
        answer(http::get_json(&self.socket, "/cluster", TIMEOUT))
    }

    fn members(&self) -> Result<Vec<Value>> {
        let answer = answer(http::get_json(&self.socket, "/members", TIMEOUT))?;
        Ok(answer["members"].as_array().context("the node's answer contains no members")?.clone())
    }

    /// Where other members reach the peer port of the node that is asked.
    pub fn address(&self) -> Result<String> {
        let members = self.members()?;
        let own = members.iter().find(|m| m["id"] == self.node.node.0);
        Ok(own.and_then(|m| m["address"].as_str()).context("the node is not among the members")?.to_string())
    }

    /// The number of the member that `name` means: `name` is a number, or a region with one member.
    pub fn find(&self, name: &str) -> Result<u32> {
        let members = self.members()?;
        let ids = |named: &dyn Fn(&Value) -> bool| -> Vec<u32> {
            members.iter().filter(|m| named(m)).filter_map(|m| m["id"].as_u64()?.try_into().ok()).collect()
        };
        let found = match name.parse::<u32>() {
            Ok(id) => ids(&|m| m["id"] == id),
            Err(_) => ids(&|m| m["region"] == name),
        };
        match found[..] {
            [id] => Ok(id),
            [] => {
                let all: Vec<String> =
                    members.iter().map(|m| format!("{} in {}", m["id"], m["region"].as_str().unwrap_or("?"))).collect();
                Err(BadUsage(format!("there is no member {name}; there are: {}", all.join(", "))).into())
            }
            _ => Err(BadUsage(format!("{name} has several nodes ({found:?}): give the number of one")).into()),
        }
    }
}

/// Waits for the answer.  If the node refuses, its reason is the whole error message.
fn answer(asking: impl Future<Output = Result<Value>>) -> Result<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    runtime.block_on(asking).map_err(|e| match e.downcast_ref::<http::Refused>() {
        Some(refused) => anyhow!("{}", refused.why),
        None => e,
    })
}

/// Polls until `holds` says yes; after `limit` it fails with the message `otherwise`.
pub fn wait_for(limit: Duration, otherwise: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !holds()? {
        if Instant::now() >= deadline {
            bail!("{otherwise} after {} s; see onetrip status", limit.as_secs());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}
