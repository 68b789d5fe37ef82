//! What people write and what programs print.

use super::member;
use crate::config::NodeConfig;
use crate::join::{ClusterSettings, JoinReply, JoinToken};
use bytes::Bytes;
use onetrip_core::{Member, Members};

pub(super) fn node_toml(bytes: &[u8]) {
    let _ = NodeConfig::parse(&String::from_utf8_lossy(bytes));
}

pub(super) fn node_toml_seeds() -> Vec<Vec<u8>> {
    let text = "cluster = \"test\"\nnode = 1\nregion = \"a\"\nlisten = \"127.0.0.1:7001\"\nhttp = \"127.0.0.1:8001\"\n\
                preferred_leader = \"a\"\nlab = true\ntls = false\n[postgres]\nport = 5433\nbin_dir = \"/bin\"\n\
                [one_way_ms]\na = 5.0\n[[member]]\nid = 1\nregion = \"a\"\naddress = \"127.0.0.1:7001\"\n";
    vec![text.as_bytes().to_vec()]
}

pub(super) fn join_token(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(token) = text.parse::<JoinToken>() {
        assert_eq!(token.to_string().parse(), Ok(token));
    }
}

pub(super) fn join_token_seeds() -> Vec<Vec<u8>> {
    let token = |authority| JoinToken { secret: [9; 32], authority }.to_string().into_bytes();
    vec![token(None), token(Some([200; 32]))]
}

pub(super) fn join_reply(bytes: &[u8]) {
    if let Ok(reply) = JoinReply::decode(bytes) {
        let again = reply.encode();
        assert_eq!(JoinReply::decode(&again).expect("just written").encode(), again);
    }
}

pub(super) fn join_reply_seeds() -> Vec<Vec<u8>> {
    // Without `joined`, since the hash of a token is long in JSON.
    let member = Member { joined: None, ..member() };
    let reply = JoinReply {
        members: Members::bootstrap(vec![member.clone()], "r".into(), 8),
        member,
        cluster: "c".into(),
        settings: ClusterSettings {
            window_entries: 1,
            sequence_stride: 8,
            max_entry_bytes: 1 << 20,
            key_seed: Default::default(),
            database: Some("onetrip".into()),
        },
        tls: None,
        checkpoint: Bytes::new(),
    };
    vec![reply.encode().to_vec()]
}

/// Bodies of requests to `admin.sock` and, in a lab, to the HTTP port.
pub(super) fn orders(bytes: &[u8]) {
    crate::admin::read_orders(bytes);
    crate::links::read_change(bytes);
}

pub(super) fn order_seeds() -> Vec<Vec<u8>> {
    let orders = [
        r#"{"role":"voter","replaces":2,"ttl_s":3600}"#,
        r#"{"node":3,"force":false}"#,
        r#"{"region":"a"}"#,
        r#"{"regions":["a","b"]}"#,
        r#"{"index":17,"force":true}"#,
        r#"{"index":null}"#,
        r#"{"peer":2,"cut":true,"one_way_ms":40,"jitter_ms":5,"loss":0.5,"duplicate":0.1,"mbit_per_s":100}"#,
    ];
    orders.map(|order| order.as_bytes().to_vec()).to_vec()
}

/// The output of PostgreSQL's programs, and the text files that the server writes.
pub(super) fn postgres_output(bytes: &[u8]) {
    crate::postgres::read_output(bytes);
}

pub(super) fn postgres_output_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "waiting for checkpoint\n    0/22871 kB (0%), 0/1 tablespace\r 4021/22871 kB (17%), 0/1 tablespace\n\
         pg_basebackup: error: could not receive data: a/b\npg_basebackup: removing data directory\n",
        "123\n/data\n1700000000\n5432\n/run\n127.0.0.1\n 1 2\nready\n",
        "2026-11-22 01:00:00 UTC [1] LOG:  x\n2026-11-22 01:00:00 UTC [1] FATAL:  configuration file \"f\" contains errors\nHINT:  h\n",
        "Maximum data alignment:               8\nDatabase block size:                  8192\n\
         Maximum length of identifiers:        64\nMaximum columns in an index:          32\n\
         Maximum size of a TOAST chunk:        1996\nSize of a large-object chunk:         2048\n\
         Float8 argument passing:              by value\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}
