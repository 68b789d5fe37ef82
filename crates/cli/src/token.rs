//! `onetrip token`: makes a token with which one more node may join.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::admin::Admin;
use onetrip_client::{complain, say};
use onetrip_node::tls::Authority;

/// Make a token with which one node can join the cluster, once
///
/// Prints the token. Give it to `onetrip join` on the new machine. Anyone who has it can become a member, so treat it
/// like a password. Any running node can make the token: run this on the node's own machine, as its user or root.
#[derive(Args)]
pub struct TokenArgs {
    /// A running node's folder, or a folder that contains such folders
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// What the new node is to be
    #[arg(long, value_enum, default_value_t = Role::Voter)]
    role: Role,
    /// The dead node that the new one replaces: its number, or its region if that has only one node
    #[arg(long, value_name = "NODE")]
    replaces: Option<String>,
    /// The folder with the key of the cluster's authority, if that is kept elsewhere: the node is lent the key, in its
    /// memory only, until the token expires
    #[arg(long, value_name = "DIR")]
    authority: Option<PathBuf>,
    /// How long the token can be used, in minutes
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=10_080))]
    valid: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Has a PostgreSQL, accepts any transaction, counts for the majority
    Voter,
    /// Counts for the majority and keeps the log; has no PostgreSQL
    Witness,
    /// Has a read-only PostgreSQL; never counts for the majority, so it slows nobody down
    Replica,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Voter => "voter",
            Role::Witness => "witness",
            Role::Replica => "replica",
        }
    }
}

pub fn run(args: &TokenArgs) -> Result<ExitCode> {
    let admin = Admin::of(&args.data)?;
    let replaces = args.replaces.as_deref().map(|node| admin.find(node)).transpose()?;
    let from = admin.address()?;
    let key = args.authority.as_ref().map(|folder| Authority::load(folder, &admin.node.cluster)).transpose()?;
    let key = key.and_then(|authority| authority.key_pem());
    let body =
        json!({ "role": args.role.name(), "replaces": replaces, "ttl_s": args.valid * 60, "authority_key": key });
    let answer = admin.post("/token", &body)?;
    let token = answer["token"].as_str().context("the node's answer contains no token")?;
    say!("{token}");
    // By default the new node would listen where no other machine reaches it.
    let listen = if admin.node.listen.ip().is_loopback() { "" } else { " --listen IP:PORT" };
    complain!(
        "One {} can join with it, once, within {} min. On the new machine, with the token in a file that only its owner \
         reads:\n  onetrip join --from {from} --token-file FILE --region REGION --data DIR{listen}",
        args.role.name(),
        args.valid,
    );
    if answer["issues"] == false {
        complain!(
            "That node does not have the authority's key: name one that has it, or make the token with --authority."
        );
    }
    Ok(ExitCode::SUCCESS)
}
