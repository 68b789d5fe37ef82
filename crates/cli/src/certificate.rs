//! `onetrip certificate`: a new certificate for a node, from the authority that the node keeps.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{bail, Context, Result};
use clap::Args;
use onetrip_node::postgres::{become_user, ROOT_BECOMES};
use onetrip_node::tls::{self, Authority};
use onetrip_node::NodeConfig;

/// Renew a node's certificate
///
/// Writes tls/node.crt and tls/node.key in the node's folder anew, good for ten years from now. The node reads them when it
/// starts.
#[derive(Args)]
pub struct CertificateArgs {
    /// The node's folder
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Replace the cluster's authority by the one in this folder, which is made if it is not there. Do it on every node while
    /// all are stopped: the old and the new refuse each other
    #[arg(long, value_name = "DIR")]
    new_authority: Option<PathBuf>,
    /// User that root becomes
    #[arg(long, default_value = ROOT_BECOMES)]
    user: String,
}

pub fn run(args: &CertificateArgs) -> Result<ExitCode> {
    let data = std::path::absolute(&args.data).context("find the node's folder")?;
    become_user(&args.user, &data)?;
    let node = NodeConfig::load(&data)?;
    if !node.tls {
        bail!("{} has `tls = false`: it needs no certificate", data.display());
    }
    let authority = match &args.new_authority {
        Some(folder) => Authority::load_or_make(folder, &node.cluster)?,
        None => Authority::load(&data.join(tls::FOLDER), &node.cluster)?,
    };
    tls::write_folder(&data, &authority, &authority.issue(node.node)?)?;
    println!("node {}: new certificate in {}; restart the node", node.node, data.join(tls::FOLDER).display());
    Ok(ExitCode::SUCCESS)
}
