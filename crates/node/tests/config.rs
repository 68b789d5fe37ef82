//! `node.toml`: a configuration that is saved is read back the same, and an error message names what is wrong in one.

use onetrip_node::NodeConfig;

const GOOD: &str = r#"
cluster = "test"
node = 2
region = "b"
listen = "127.0.0.1:7002"
http = "127.0.0.1:8002"
preferred_leader = "a"

[postgres]
port = 5433
bin_dir = "/usr/lib/postgresql/15/bin"

[one_way_ms]
a = 5.0

[[member]]
id = 1
region = "a"
address = "127.0.0.1:7001"

[[member]]
id = 2
region = "b"
address = "127.0.0.1:7002"
"#;

fn load(text: &str) -> Result<NodeConfig, String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("node.toml"), text).unwrap();
    NodeConfig::load(dir.path()).map_err(|e| e.to_string())
}

#[test]
fn a_configuration_comes_back_as_it_was_saved() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = load(GOOD).unwrap();
    config.data_dir = dir.path().canonicalize().unwrap();
    config.save().unwrap();
    assert_eq!(NodeConfig::load(&dir.path().join("node.toml")).unwrap(), config);
    assert_eq!(config.postgres.unwrap().database, "onetrip");
}

/// Goal: whoever may pass through the node's folder, to connect to its PostgreSQL, does not read its secret.
#[test]
fn only_its_user_reads_a_configuration() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let mut config = load(GOOD).unwrap();
    config.data_dir = dir.path().to_owned();
    config.save().unwrap();
    let mode = || std::fs::metadata(dir.path().join("node.toml")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    std::fs::set_permissions(dir.path().join("node.toml"), PermissionsExt::from_mode(0o644)).unwrap();
    config.save().unwrap();
    assert_eq!(mode(), 0o600);
}

#[test]
fn each_mistake_is_named() {
    let cases = [
        ("node = 2", "node = 3", "no `[[member]]` has this node's id 3"),
        ("region = \"b\"\nlisten", "region = \"c\"\nlisten", "member 2 is in b"),
        ("preferred_leader = \"a\"", "preferred_leader = \"x\"", "unknown region x (there are: a, b)"),
        ("id = 1", "id = 2", "two members have the id 2"),
        ("127.0.0.1:7001", "127.0.0.1:7002", "two members have the address"),
        ("127.0.0.1:7001", "localhost", "invalid socket address"),
        ("a = 5.0", "a = -1.0", "`one_way_ms` of region a is -1"),
        ("one_way_ms", "one_way", "unknown field `one_way`"),
        ("cluster = \"test\"", "", "missing field `cluster`"),
        ("node = 2", "node = 2\nlog_bytes_max = 1000", "`log_bytes_max` is 1000"),
        ("[postgres]", "[memory]\nfrom_peers_bytes = 1000\n[postgres]", "`from_peers_bytes` of `[memory]` is 1000"),
        ("[postgres]", "[memory]\nfrom_peers = 1000\n[postgres]", "unknown field `from_peers`"),
        ("cluster = \"test\"", "cluster = \"my test\"", "cannot be used in a certificate"),
        ("http = \"127.0.0.1:8002\"", "http = \"0.0.0.0:8002\"", "`http_anywhere = true`"),
        ("node = 2", "node = 2\nhttp_certificate = \"/a\"\nhttp_key = \"/b\"", "`http_tls = true`, which is not there"),
        ("node = 2", "node = 2\nhttp_tls = true\nhttp_key = \"/b\"", "only one is there"),
        ("node = 2", "node = 2\nhttp_tls = true\nhttp_key = \"b\"", "`http_key` is b, not an absolute path"),
        ("node = 2", "node = 2\nhttp_tls = true\ntls = false", "with `tls = false` the node has none"),
    ];
    for (from, to, want) in cases {
        let error = load(&GOOD.replacen(from, to, 1)).expect_err(to);
        assert!(error.contains(want), "{to}: {error}");
        assert!(error.contains("node.toml"), "{error}");
    }
    assert!(NodeConfig::load(std::path::Path::new("/nonexistent/node.toml")).unwrap_err().to_string().contains("read"));
}
