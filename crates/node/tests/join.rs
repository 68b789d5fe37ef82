//! A new node joins a running cluster that has certificates, with a token and over a peer port, and is a member like
//! the others.

use crate::common::{update, wait_for, Agent, Cluster};
use anyhow::{bail, ensure, Context, Result};
use onetrip_core::agent::{Role, VerdictOutcome};
use onetrip_core::{checkpoint, LogIndex, MemberRole, NodeId};
use onetrip_node::join::{request_join, JoinRequest, JoinToken};
use onetrip_node::tls::{Authority, FOLDER};
use onetrip_node::{secret, AdminReply, AdminRequest, Node, NodeConfig};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// A node joins with a token through a member that did not make it, is promoted, and commits.  Asking again with the
/// token gives another id until the node votes.  Once the node is removed, nothing lets it back in.
#[tokio::test]
async fn a_node_joins_by_token_and_is_a_member_until_it_is_removed() -> Result<()> {
    let cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let mut first = cluster.backend(0).await?;
    ensure!(first.commit(1, &[update(1, LogIndex(0))], b"before").await?.outcome == VerdictOutcome::Commit);

    let one = cluster.nodes[0].as_ref().context("it runs")?;
    let order = AdminRequest::Token { role: MemberRole::Witness, replaces: None, ttl_s: 60 };
    let AdminReply::Token(secret) = one.admin(order).await.map_err(anyhow::Error::msg)? else { bail!("no token") };
    let authority = Authority::load(&cluster.configs[0].data_dir.join(FOLDER), "test")?.fingerprint();
    let token = JoinToken { secret, authority: Some(authority) };

    let dir = tempfile::tempdir()?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let (listen, http) = (listener.local_addr()?, std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?);
    drop(listener);
    let request = || JoinRequest { region: "r4".into(), address: listen.to_string(), postgres: None };
    // Any member will do, not only the one that issued the token.
    let reply = request_join(&cluster.configs[2].listen.to_string(), &token, request()).await?;
    ensure!(reply.member.id == NodeId(4) && reply.cluster == "test", "{:?}", reply.member);
    let again = request_join(&cluster.configs[1].listen.to_string(), &token, request()).await?;
    ensure!(again.member.id == NodeId(5) && !again.members.contains(NodeId(4)), "{:?}", again.members);
    let reply = again;
    let seed = reply.settings.key_seed;
    ensure!(!seed.is_none() && seed == cluster.configs[0].key_seed, "the key of a row would be another one there");

    let elsewhere = JoinRequest { region: "r4".into(), address: "127.0.0.1:1".into(), postgres: None };
    let refused = request_join(&cluster.configs[1].listen.to_string(), &token, elsewhere).await;
    let refused = refused.err().context("a second node was let in")?.to_string();
    ensure!(refused.contains("this token was used for node 5"), "{refused}");

    let config = NodeConfig {
        node: reply.member.id,
        region: reply.member.region.clone(),
        listen,
        http,
        members: Vec::new(),
        data_dir: dir.path().canonicalize()?,
        ..cluster.configs[0].clone()
    };
    config.save()?;
    std::fs::write(config.checkpoint_file(), checkpoint::installed(&reply.checkpoint))?;
    reply.write_tls(&config)?;
    let mut five = Node::start(NodeConfig::load(&config.data_dir)?, None)?;

    wait_for("node 5 to vote", || async {
        let AdminReply::Members(members) = one.admin(AdminRequest::Members).await.map_err(anyhow::Error::msg)? else {
            bail!("no members")
        };
        ensure!(members.get(NodeId(5)).is_some_and(|m| m.voter), "{members:?}");
        Ok(())
    })
    .await?;
    let refused = request_join(&cluster.configs[1].listen.to_string(), &token, request()).await;
    let refused = refused.err().context("a voter was let in again")?.to_string();
    ensure!(refused.contains("votes already"), "{refused}");
    let mut backend = Agent::connect(&config.data_dir, NodeId(5), Role::Backend, LogIndex(0)).await?;
    let lost = backend.commit(1, &[update(1, LogIndex(0))], b"it knows what came before").await?;
    ensure!(lost.outcome == VerdictOutcome::Conflict, "{lost:?}");
    let won = backend.commit(2, &[update(2, LogIndex(0))], b"from the new node").await?;
    ensure!(won.outcome == VerdictOutcome::Commit, "{won:?}");

    one.admin(AdminRequest::Remove { node: NodeId(5) }).await.map_err(anyhow::Error::msg)?;
    let told = tokio::time::timeout(crate::common::PATIENCE, five.failed()).await?.unwrap_err().to_string();
    ensure!(told.contains("removed"), "{told}");
    let _ = five.stop().await;
    // The folder still contains a valid certificate, but the node's id will never be used again.
    let mut back = Node::start(NodeConfig::load(&config.data_dir)?, None)?;
    let told = tokio::time::timeout(crate::common::PATIENCE, back.failed()).await?.unwrap_err().to_string();
    ensure!(told.contains("removed"), "{told}");
    let _ = back.stop().await;
    let error = request_join(&cluster.configs[0].listen.to_string(), &token, request()).await.err();
    ensure!(error.context("a used token was accepted")?.to_string().contains("used already"));
    cluster.stop().await
}

/// Goal: an order that no token can be made of is refused, and lends no key.
#[tokio::test]
async fn a_token_that_would_be_good_for_ever_is_refused() -> Result<()> {
    let mut cluster = Cluster::prepare_in(&["r1"], 0.0)?;
    let folder = cluster.configs[0].data_dir.clone();
    std::fs::remove_file(folder.join(FOLDER).join("ca.key"))?;
    cluster.start_node(0)?;
    cluster.preferred_leads().await?;
    let ask = async |ttl_s: u64, key: Option<String>| -> Result<String> {
        let order =
            serde_json::json!({"role": "voter", "replaces": null, "ttl_s": ttl_s, "authority_key": key}).to_string();
        let mut stream = UnixStream::connect(folder.join("admin.sock")).await?;
        let head = "POST /token HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json";
        stream.write_all(format!("{head}\r\nContent-Length: {}\r\n\r\n{order}", order.len()).as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    };
    let refused = ask(u64::MAX, cluster.authority.key_pem()).await?;
    ensure!(refused.contains("a token is good for 1 second to 3650 days"), "{refused:?}");
    let order = AdminRequest::Token { role: MemberRole::Voter, replaces: Some(NodeId(1)), ttl_s: 60 };
    let refused = cluster.admin(0, order).await.err().context("its only voter was to be replaced")?.to_string();
    ensure!(refused.contains("node 1 is the only voter"), "{refused}");
    let made = ask(60, None).await?;
    ensure!(made.contains("\"issues\":false"), "{made}");
    let made = ask(60, cluster.authority.key_pem()).await?;
    ensure!(made.contains("\"issues\":true"), "{made}");
    cluster.stop().await
}

/// Goal: whoever finds the token of a read replica after its time cannot take the replica's place, though that never
/// votes and does not run.
#[tokio::test]
async fn a_used_token_expires() -> Result<()> {
    let cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let valid = Duration::from_secs(5);
    let order = AdminRequest::Token { role: MemberRole::Replica, replaces: None, ttl_s: valid.as_secs() };
    let AdminReply::Token(secret) = cluster.admin(0, order).await? else { bail!("no token") };
    let made = Instant::now();
    let join = |via| {
        let (secret_hash, address) = (secret::hash(&secret), "10.0.0.4:7000".to_owned());
        cluster.admin(via, AdminRequest::Join { secret_hash, region: "r4".into(), address, unlike: None })
    };
    for via in [1, 2] {
        join(via).await.with_context(|| format!("through node {} after {:?}", via + 1, made.elapsed()))?;
    }
    // Whole seconds are compared.
    tokio::time::sleep((valid + Duration::from_secs(2)).saturating_sub(made.elapsed())).await;
    for via in 0..3 {
        let refused = join(via).await.err().context("an expired token let somebody in")?.to_string();
        ensure!(refused.contains("node 5 joined with this token, which has expired"), "{refused}");
    }
    cluster.stop().await
}
