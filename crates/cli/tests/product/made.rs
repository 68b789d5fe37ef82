//! What commands leave in the folders of nodes that they make: who may read it, what certificates are for, and what a
//! later command makes of it.

use crate::{folder, onetrip, told, until, Node};
use anyhow::{ensure, Context, Result};
use onetrip_node::config::NodeConfig;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn init(data: &Path, regions: &[&str]) -> Result<Command> {
    let topology = data.with_extension("toml");
    let text: String = regions.iter().map(|name| format!("[[region]]\nname = \"{name}\"\n")).collect();
    std::fs::write(&topology, text)?;
    let mut init = onetrip(&["init"], data);
    init.arg("--topology").arg(topology);
    Ok(init)
}

fn works(output: Output) -> Result<String> {
    ensure!(output.status.success(), "{}", told(&output));
    Ok(String::from_utf8(output.stdout)?)
}

fn is_well(data: &Path) -> Result<bool> {
    Ok(onetrip(&["status"], data).output()?.status.success())
}

/// Goal: where an `init` was interrupted, no other node is made among what it has left, and one that took the place of
/// one that was not finished starts, and outlives the next `init`.
#[test]
fn a_node_in_the_place_of_an_unfinished_one_stays() -> Result<()> {
    let folder = folder()?;
    let data = folder.path().join("nodes");
    let (a, b, note) = (data.join("a"), data.join("b"), data.join("init.unfinished"));
    let mut making = init(&data, &["a", "b"])?.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    until("it makes servers", || {
        Ok(["a", "b"].iter().all(|name| data.join(name).join("postgres.unfinished").exists()))
    })?;
    making.kill()?;
    making.wait()?;
    ensure!(note.exists() && a.exists() && b.exists());
    let token = format!("onetrip-join-1.{}.plain", "a".repeat(52));
    let others: [&[&str]; 2] = [
        &["join", "--from", "127.0.0.1:1", "--region", "a", "--token", &token],
        &["adopt", "--from", "/nonexistent", "--database", "d", "--region", "a"],
    ];
    for other in others {
        let refused = onetrip(other, &a).output()?;
        ensure!(!refused.status.success() && told(&refused).contains("contains init.unfinished"), "{}", told(&refused));
    }
    // What initdb has started may still write there.
    std::fs::rename(&a, folder.path().join("aside"))?;
    let elsewhere = folder.path().join("elsewhere");
    works(init(&elsewhere, &["a"])?.output()?)?;
    std::fs::rename(elsewhere.join("a"), &a)?;
    let node = Node::start(&a, "text")?;
    until("it serves", || is_well(&a))?;
    let refused = init(&data, &["a", "b"])?.output()?;
    ensure!(told(&refused).contains("contains a node already; nothing was changed"), "{}", told(&refused));
    ensure!(is_well(&a)? && b.exists() && note.exists());
    works(init(&data, &["b"])?.output()?)?;
    ensure!(is_well(&a)? && b.join("node.toml").exists() && !note.exists(), "it was touched");
    node.stop()
}

/// The names and addresses that the node's certificate is for.
fn is_for(node: &Path) -> Result<BTreeSet<String>> {
    let mut read = Command::new("openssl");
    read.args(["x509", "-noout", "-ext", "subjectAltName", "-in"]).arg(node.join("tls/node.crt"));
    let said = works(read.output()?)?;
    let names = said.lines().nth(1).context("names")?.trim().to_string();
    Ok(names.split(", ").map(|name| name.split_once(':').map_or(name, |(_, name)| name).to_string()).collect())
}

/// Goal: however a node was made, its certificate is for the addresses by which clients and others reach it, before it
/// is renewed and after, and only the node's user can read its secrets.
#[test]
fn certificates_are_for_the_same_addresses_once_they_are_renewed() -> Result<()> {
    let folder = folder()?;
    let data = folder.path().join("nodes");
    let a = data.join("a");
    works(init(&data, &["a"])?.args(["--cluster", "c"]).output()?)?;
    let node = Node::start(&a, "text")?;
    until("it serves", || is_well(&a))?;
    let check = |node: &Path, addresses: &[&str]| -> Result<()> {
        let mode = std::fs::metadata(node.join("node.toml"))?.mode() & 0o777;
        ensure!(mode == 0o600, "{}: mode {mode:o}", node.display());
        let config = NodeConfig::load(node)?;
        let name = format!("node-{}.{}", config.node, config.cluster);
        let expected: BTreeSet<String> = addresses.iter().map(ToString::to_string).chain([name]).collect();
        assert_eq!(is_for(node)?, expected, "{}", node.display());
        works(onetrip(&["certificate"], node).output()?)?;
        assert_eq!(is_for(node)?, expected, "{}, renewed", node.display());
        Ok(())
    };
    check(&a, &["127.0.0.1"])?;
    let from = NodeConfig::load(&a)?.listen.to_string();
    let places = [
        ("b", "0.0.0.0:7100", "203.0.113.5:7100", &["127.0.0.1", "203.0.113.5"][..]),
        ("d", "127.0.0.2:7100", "203.0.113.6:7100", &["127.0.0.1", "127.0.0.2", "203.0.113.6"]),
        ("e", "127.0.0.3:7100", "db.example:7100", &["127.0.0.1", "127.0.0.3"]),
    ];
    for (region, listen, address, addresses) in places {
        let token = works(onetrip(&["token"], &a).output()?)?;
        let node = data.join(region);
        let mut join = onetrip(&["join", "--prepare-only", "--from", &from, "--region", region], &node);
        join.args(["--listen", listen, "--address", address]).env("ONETRIP_TOKEN", token.trim());
        works(join.output()?)?;
        check(&node, addresses)?;
        works(onetrip(&["leave", "--node", region], &a).output()?)?;
    }
    let (backup, restored) = (folder.path().join("backup"), folder.path().join("restored"));
    works(onetrip(&["backup"], &a).arg("--to").arg(&backup).output()?)?;
    let mut restore = onetrip(&["restore", "--region", "f"], &restored);
    restore.args(["--listen", "0.0.0.0:7100", "--address", "203.0.113.7:7100"]).arg("--backup").arg(&backup);
    works(restore.output()?)?;
    check(&restored, &["127.0.0.1", "203.0.113.7"])?;
    node.stop()
}
