//! `onetrip certificate`: makes a new certificate for a node, signed by the authority in the node's folder.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{bail, Context, Result};
use clap::Args;
use onetrip_client::say;
use onetrip_node::postgres::{become_user, ROOT_BECOMES};
use onetrip_node::tls::{self, Authority};
use onetrip_node::NodeConfig;

/// Renew a node's certificate
///
/// Replaces tls/node.crt and tls/node.key in the node's folder; the new certificate is valid for ten years from now.
/// The node reads them when it starts, and at SIGHUP.
#[derive(Args)]
pub struct CertificateArgs {
    /// The node's folder
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Replace the cluster's authority with the one in this folder, which is made if it does not exist. Do this for
    /// every node while all nodes are stopped: nodes with the old authority and nodes with the new one refuse each
    /// other
    #[arg(long, value_name = "DIR")]
    new_authority: Option<PathBuf>,
    /// The folder with the key of the cluster's authority, if that is kept elsewhere; it is not copied
    #[arg(long, value_name = "DIR", conflicts_with = "new_authority")]
    authority: Option<PathBuf>,
    /// User to run as, if called by root [default: the user that the node was made with]
    #[arg(long)]
    user: Option<String>,
}

pub fn run(args: &CertificateArgs) -> Result<ExitCode> {
    let data = std::path::absolute(&args.data).context("find the node's folder")?;
    let folder = data.join(tls::FOLDER);
    let node = NodeConfig::load(&data)?;
    if !node.tls {
        bail!("{} has `tls = false`: it needs no certificate", data.display());
    }
    // As the caller, who may be the only one to read it.
    let given = match (&args.new_authority, &args.authority) {
        (Some(new), _) => Some(Authority::load_or_make(new, &node.cluster)?),
        (None, Some(elsewhere)) => {
            let (given, own) =
                (Authority::load(elsewhere, &node.cluster)?, Authority::of_node(&folder, &node.cluster)?);
            if given.fingerprint() != own.fingerprint() {
                let why = "has another authority than tls/ca.crt of the node, whose peers would refuse it: name the \
                           folder with that one's key (--new-authority is for all nodes at once, while they are stopped)";
                bail!("{} {why}; nothing was changed", elsewhere.display());
            }
            Some(given)
        }
        (None, None) => None,
    };
    let configured = node.postgres.as_ref().and_then(|p| p.user.as_deref());
    become_user(args.user.as_deref().or(configured).unwrap_or(ROOT_BECOMES), &data)?;
    let authority = match given {
        Some(given) => given,
        None => Authority::load_for_node(&folder, &node.cluster)?,
    };
    let issued = authority.issue_at(node.node, &node.addresses()?);
    let issued = issued.context("name the folder that has the key with --authority")?;
    // A node without the key does not get it.
    let kept = if Authority::key_is_in(&folder) {
        authority
    } else {
        Authority::without_key(&node.cluster, authority.certificate_pem())?
    };
    tls::write_folder(&data, &kept, &issued)?;
    let then = match &args.new_authority {
        Some(_) => "start the node once all others have a certificate of this authority",
        None => "reload the node (SIGHUP) or restart it",
    };
    say!("node {}: new certificate in {}; {then}", node.node, data.join(tls::FOLDER).display());
    Ok(ExitCode::SUCCESS)
}
