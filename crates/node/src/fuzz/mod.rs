//! The code that reads bytes from outside, as targets for a fuzzer.  Each takes any bytes, and must neither panic nor
//! use memory out of proportion to its input.  Where it can, it writes again what it could read, and must read the same
//! back.
//!
//! `make fuzz` runs libFuzzer on them, guided by coverage (`crates/lab/src/fuzz.rs`); `crates/lab/tests/fuzz.rs` runs
//! them on the inputs that were kept and on damaged real ones.

mod files;
mod frames;
mod operator;
mod tls;

use onetrip_core::{Member, MemberRole, NodeId, TxnId};

pub struct Target {
    /// Also the name of the folder that contains its kept inputs.
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Real inputs from which the fuzzer starts.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Corrects checksums after damage, so that the code behind the checks is reached as well.
    pub mend: Option<fn(&mut [u8])>,
}

impl Target {
    const fn new(name: &'static str, run: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Target {
        Target { name, run, seeds, mend: None }
    }

    const fn mended(self, mend: fn(&mut [u8])) -> Target {
        Target { mend: Some(mend), ..self }
    }
}

pub const TARGETS: &[Target] = &[
    Target::new("peer-frames", frames::peer_frames, frames::peer_frame_seeds).mended(frames::mend_peer_frame),
    Target::new("agent-frames", frames::agent_frames, frames::agent_frame_seeds),
    Target::new("entries", frames::entries, frames::entry_seeds),
    Target::new("write-sets", frames::write_sets, frames::write_set_seeds),
    Target::new("commands", frames::commands, frames::command_seeds),
    Target::new("tls-records", tls::records, tls::record_seeds),
    Target::new("peer-certificates", tls::peer_certificates, tls::peer_certificate_seeds),
    Target::new("certificate-files", tls::certificate_files, tls::certificate_file_seeds),
    Target::new("checkpoints", files::checkpoints, files::checkpoint_seeds).mended(files::mend_checkpoint),
    Target::new("log-files", files::log_files, files::log_file_seeds).mended(files::mend_log_file),
    Target::new("archive-files", files::archive_files, files::archive_file_seeds).mended(files::mend_log_file),
    Target::new("notes", files::notes, files::note_seeds),
    Target::new("node-toml", operator::node_toml, operator::node_toml_seeds),
    Target::new("join-tokens", operator::join_token, operator::join_token_seeds),
    Target::new("join-replies", operator::join_reply, operator::join_reply_seeds),
    Target::new("orders", operator::orders, operator::order_seeds),
    Target::new("postgres-output", operator::postgres_output, operator::postgres_output_seeds),
];

fn txn() -> TxnId {
    TxnId { node: NodeId(1), incarnation: 7, sequence: 9 }
}

fn member() -> Member {
    Member {
        id: NodeId(1),
        region: "r".into(),
        address: "host:7000".into(),
        role: MemberRole::Voter,
        voter: true,
        slot: Some(0),
        replaces: None,
        joined: Some(onetrip_core::Joined { token: [3; 32], attempt: 7, expires_unix_s: 8 }),
    }
}
