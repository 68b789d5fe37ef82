//! Members come and go in a running cluster of real nodes; PostgreSQL is played by the test.

use std::time::Duration;

use crate::common::{http, update, wait_for, Cluster};
use anyhow::{bail, ensure, Context, Result};
use onetrip_core::agent::VerdictOutcome;
use onetrip_core::{LogIndex, MemberRole, NodeId};
use onetrip_node::{AdminReply, AdminRequest, PostgresConfig};

/// Cuts the links in both directions between node `i` and these members, or restores them.
async fn cut(cluster: &Cluster, i: usize, peers: &[u32], cut: bool) -> Result<()> {
    for peer in peers {
        for (from, to) in [(i, *peer), (*peer as usize - 1, i as u32 + 1)] {
            let body = format!("{{\"peer\": {to}, \"cut\": {cut}}}");
            http(cluster.configs[from].http, "POST", "/links", &body).await?;
        }
    }
    Ok(())
}

async fn secret_hash_of(cluster: &Cluster, id: u32) -> Result<[u8; 32]> {
    let members = cluster.members(0).await?;
    members.get(NodeId(id)).and_then(|m| m.joined).map(|joined| joined.token).context("it came with a token")
}

/// Three nodes grow to five and shrink to three again: a follower and the leader leave, and every node that stays is
/// restarted.  Transactions commit all the while, and all nodes give the same verdicts at the end.
#[tokio::test]
async fn a_cluster_grows_to_five_and_back_while_it_works() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let first = cluster.backend(0).await?.commit(1, &[update(1, LogIndex(0))], b"first").await?;
    for via in [1, 2] {
        let secret = cluster.token(via, MemberRole::Voter, None).await?;
        let new = cluster.join(via, secret, |_| {}).await?;
        let status = cluster.status(new).await?;
        ensure!(status["members"].as_array().is_some_and(|m| m.len() == new + 1), "{status}");
    }
    cluster.voters(&[1, 2, 3, 4, 5]).await?;
    // A token lets one node in; nobody else can use it afterwards.
    let again = AdminRequest::Join {
        secret_hash: secret_hash_of(&cluster, 5).await?,
        region: "x".into(),
        address: "h:1".into(),
        unlike: None,
    };
    let why = cluster.admin(0, again).await.err().context("it was let in")?.to_string();
    ensure!(why.contains("votes already"), "{why}");
    let used = AdminRequest::Join { secret_hash: [7; 32], region: "x".into(), address: "h:1".into(), unlike: None };
    ensure!(cluster.admin(0, used).await.err().context("it was let in")?.to_string().contains("unknown"));
    // The new nodes take transactions and see those of the others.
    let copied = cluster.copied(4).await?;
    ensure!(copied >= first.at, "{copied}");
    let mut worker = cluster.worker(4, copied).await?;
    let second = cluster.backend(3).await?.commit(1, &[update(2, first.at)], b"of the fourth").await?;
    ensure!(second.outcome == VerdictOutcome::Commit && second.other == first.at, "{second:?}");
    let (at, _, txn, _) = worker.entry().await?;
    ensure!(at == second.at && txn.node == NodeId(4));

    // Two of five nodes may be stopped.
    cluster.stop_node(1).await?;
    cluster.stop_node(4).await?;
    let third = cluster.backend(3).await?.commit(2, &[], b"three of five").await?;
    cluster.start_node(1)?;
    cluster.start_node(4)?;

    // A follower is removed, then the leader, each through another node.
    cluster.admin(0, AdminRequest::Remove { node: NodeId(3) }).await?;
    let gone = cluster.nodes[2].as_mut().context("node 3")?.failed().await.expect_err("it goes on").to_string();
    ensure!(gone.contains("removed"), "{gone}");
    cluster.nodes[2] = None;
    cluster.preferred_leads().await?;
    cluster.admin(1, AdminRequest::Remove { node: NodeId(1) }).await?;
    let gone = cluster.nodes[0].as_mut().context("node 1")?.failed().await.expect_err("it goes on").to_string();
    ensure!(gone.contains("removed"), "{gone}");
    cluster.nodes[0] = None;
    cluster.voters(&[2, 4, 5]).await?;
    let fourth = cluster.backend(4).await?.commit(1, &[update(1, third.at)], b"three are left").await?;
    ensure!(fourth.outcome == VerdictOutcome::Commit, "{fourth:?}");

    // All start again from their disks.  A node that was removed is told so, whichever member it asks.
    for i in [1, 3, 4] {
        cluster.stop_node(i).await?;
    }
    for i in [1, 3, 4] {
        cluster.start_node(i)?;
    }
    cluster.voters(&[2, 4, 5]).await?;
    for i in [0, 2] {
        let why = match cluster.start_node(i) {
            // It knows that from its own disk.
            Err(e) => e.to_string(),
            Ok(()) => cluster.nodes[i].as_mut().context("started")?.failed().await.expect_err("it goes on").to_string(),
        };
        ensure!(why.contains("removed"), "{why}");
        cluster.nodes[i] = None;
    }
    for i in [1, 3, 4] {
        let lost = cluster.backend(i).await?.commit(9, &[update(1, first.at)], b"late").await?;
        ensure!((lost.outcome, lost.other) == (VerdictOutcome::Conflict, fourth.at), "{lost:?}");
    }
    let table = cluster.members(1).await?;
    ensure!(table.removed(NodeId(1)) && table.removed(NodeId(3)) && table.tokens.is_empty());
    ensure!(table.preferred_leader.as_str() == "r2", "{}", table.preferred_leader);
    cluster.stop().await
}

/// One of three nodes is dead.  A new one takes its place in one step, and then another one may be stopped.
#[tokio::test]
async fn a_dead_member_is_replaced() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    cluster.stop_node(1).await?;
    let secret = cluster.token(2, MemberRole::Voter, Some(2)).await?;
    let new = cluster.join(2, secret, |_| {}).await?;
    cluster.voters(&[1, 3, 4]).await?;
    cluster.stop_node(0).await?;
    let verdict = cluster.backend(new).await?.commit(1, &[], b"two of three").await?;
    ensure!(verdict.outcome == VerdictOutcome::Commit);
    let gone = match cluster.start_node(1) {
        Err(e) => e.to_string(),
        Ok(()) => cluster.nodes[1].as_mut().context("started")?.failed().await.expect_err("it goes on").to_string(),
    };
    ensure!(gone.contains("removed"), "{gone}");
    cluster.nodes[1] = None;
    cluster.stop().await
}

/// A member is stopped while both others are replaced.  When it starts again it knows neither of the new ones, and its
/// vote still counts.
#[tokio::test]
async fn a_member_comes_back_to_others_that_it_does_not_know() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    cluster.stop_node(2).await?;
    for (via, old) in [(0, 2), (3, 1)] {
        let secret = cluster.token(via, MemberRole::Voter, Some(old)).await?;
        cluster.join(via, secret, |_| {}).await?;
        let place = old as usize - 1;
        let gone = cluster.nodes[place].as_mut().context("it runs")?.failed().await.expect_err("it goes on");
        ensure!(gone.to_string().contains("removed"), "{gone}");
        cluster.nodes[place] = None;
    }
    cluster.voters(&[3, 4, 5]).await?;
    cluster.start_node(2)?;
    cluster.voters(&[3, 4, 5]).await?;
    cluster.stop_node(3).await?;
    let verdict = cluster.backend(2).await?.commit(1, &[], b"two of three").await?;
    ensure!(verdict.outcome == VerdictOutcome::Commit, "{verdict:?}");
    cluster.stop().await
}

/// A replica follows the log and takes no changes; a witness votes, but cannot be the preferred leader.
#[tokio::test]
async fn replicas_follow_and_witnesses_vote() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let secret = cluster.token(0, MemberRole::Replica, None).await?;
    let replica = cluster.join(0, secret, |_| {}).await?;
    let secret = cluster.token(0, MemberRole::Witness, None).await?;
    cluster.join(1, secret, |_| {}).await?;
    cluster.voters(&[1, 2, 3, 5]).await?;
    let refused = cluster.backend(replica).await?.commit(1, &[], b"x").await?;
    ensure!(refused.outcome == VerdictOutcome::Refused && refused.message.contains("replica"), "{refused:?}");
    let mut worker = cluster.worker(replica, cluster.copied(replica).await?).await?;
    let verdict = cluster.backend(1).await?.commit(1, &[], b"x").await?;
    ensure!(worker.entry().await?.0 == verdict.at);
    // Another region is preferred for the leader, and leadership moves there.
    cluster.admin(replica, AdminRequest::PreferLeader("r3".into())).await?;
    wait_for("the leader in r3", || async {
        ensure!(cluster.leader().await? == 2);
        Ok(())
    })
    .await?;
    let nowhere = cluster.admin(0, AdminRequest::PreferLeader("r5".into())).await;
    ensure!(nowhere.err().context("a witness's region was accepted")?.to_string().contains("no voter with PostgreSQL"));
    // Three of the four voters are left, and one of them is the witness.
    cluster.stop_node(0).await?;
    cluster.backend(1).await?.commit(2, &[], b"with the witness").await?;
    cluster.stop().await
}

/// A member is cut off until the others have cut their logs because of their size.  It starts over from a checkpoint of
/// theirs, certifies as they do, and orders its PostgreSQL to be made anew; a worker that lacks entries from before the
/// checkpoint is fed nothing.
#[tokio::test]
async fn a_member_that_fell_behind_a_small_log_starts_over() -> Result<()> {
    let mut cluster = Cluster::prepare(0.0)?;
    for config in &mut cluster.configs {
        (config.window_entries, config.log_bytes_max) = (300, 2 << 20);
        config.save()?;
    }
    for i in 0..3 {
        cluster.start_node(i)?;
    }
    cluster.preferred_leads().await?;
    let mut backend = cluster.backend(0).await?;
    let first = backend.commit(1, &[update(1, LogIndex(0))], b"").await?;
    let worker = cluster.worker(2, LogIndex(0)).await?;
    cut(&cluster, 2, &[1, 2], true).await?;
    let mut last = first.clone();
    for n in 2..=2_500 {
        last = backend.commit(n, &[update(n, last.at)], &[n as u8; 3_000]).await?;
    }
    wait_for("the cut", || async {
        for i in 0..2 {
            let status = cluster.status(i).await?;
            ensure!(status["log_first"].as_u64() > Some(1_000), "{status}");
        }
        Ok(())
    })
    .await?;
    cut(&cluster, 2, &[1, 2], false).await?;
    wait_for("the snapshot", || async {
        let status = cluster.status(2).await?;
        ensure!(
            status["decided"].as_u64() >= Some(last.at.0) && status["log_first"].as_u64() > Some(1_000),
            "{status}"
        );
        Ok(())
    })
    .await?;
    let mut here = cluster.backend(2).await?;
    let lost = here.commit(1, &[update(2_000, LogIndex(last.at.0 - 200))], b"").await?;
    ensure!(lost.outcome == VerdictOutcome::Window || lost.outcome == VerdictOutcome::Commit, "{lost:?}");
    drop(worker);
    ensure!(cluster.worker(2, LogIndex(1)).await.is_err(), "it is fed entries that the log no longer has");
    let orders = cluster.nodes[2].as_ref().context("node 3")?.rebuild_orders();
    let ordered = wait_for("an order", || async { orders.borrow().context("no order") }).await?;
    ensure!(ordered.at_least > LogIndex(1_000), "{ordered:?}");
    // As long as nobody carries the order out, the server's rows stay as they are.
    let health = || http(cluster.configs[2].http, "GET", "/health", "");
    let said = wait_for("the node to be ill", || async { health().await.err().context("it is healthy") }).await?;
    let sick = said.to_string();
    ensure!(sick.contains("503") && sick.contains("its data folder must be made anew"), "{sick}");
    // A copy that shows at least that much is fed what follows.
    let mut worker = cluster.worker(2, ordered.at_least.max(LogIndex(last.at.0 - 50))).await?;
    worker.entry().await?;
    wait_for("the order to be taken back", || async {
        ensure!(orders.borrow().is_none());
        Ok(())
    })
    .await?;
    wait_for("the node to be healthy", health).await?;
    // The member goes on from its disk as well.
    cluster.stop_node(2).await?;
    let during = backend.commit(5_000, &[update(9, last.at)], b"").await?;
    cluster.start_node(2)?;
    let lost = cluster.backend(2).await?.commit(2, &[update(9, last.at)], b"").await?;
    ensure!((lost.outcome, lost.other) == (VerdictOutcome::Conflict, during.at), "{lost:?}");
    cluster.stop().await
}

/// A node that is to have a PostgreSQL but has no data folder orders a copy at once, which must show at least what the
/// node cannot feed it.  A copy that is ahead of what this node has decided is welcomed as soon as the node has caught
/// up.
#[tokio::test]
async fn a_joining_node_orders_a_copy_and_takes_one_that_is_ahead() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let before = cluster.backend(0).await?.commit(1, &[], b"before").await?;
    let secret = cluster.token(0, MemberRole::Voter, None).await?;
    let postgres = PostgresConfig {
        port: 1,
        bin_dir: "/nowhere".into(),
        database: "onetrip".into(),
        listen: "127.0.0.1".into(),
        user: None,
        read_only: false,
        read_only_without_majority: false,
    };
    let new = cluster
        .join(0, secret, |config| {
            config.postgres = Some(postgres);
            // The worker is this process, and a node takes only those that work in its server's folder.
            let here = std::env::current_dir().expect("the folder of the test");
            std::fs::create_dir_all(&config.data_dir).expect("the node's folder");
            std::os::unix::fs::symlink(here, config.data_dir.join("postgres")).expect("its server's folder");
        })
        .await?;
    wait_for("the learner to be connected", || async {
        let status = cluster.status(0).await?;
        let members = status["members"].as_array().context("members")?;
        ensure!(members.iter().any(|m| m["id"] == 4 && m["connected"] == true), "{status}");
        Ok(())
    })
    .await?;
    // It is running, so nobody else who has its token can take its place.
    let (secret_hash, address) = (onetrip_node::secret::hash(&secret), cluster.configs[new].listen.to_string());
    let again = AdminRequest::Join { secret_hash, region: "r4".into(), address, unlike: None };
    let why = cluster.admin(0, again).await.err().context("it was let in again")?.to_string();
    ensure!(why.contains("runs already"), "{why}");
    let orders = cluster.nodes[new].as_ref().context("node 4")?.rebuild_orders();
    let ordered = orders.borrow().context("no order")?;
    ensure!(ordered.at_least >= before.at, "{ordered:?}");
    // It does not vote until its PostgreSQL is there.
    wait_for("a problem that says so", || async {
        let status = cluster.status(0).await?;
        let said = status["problems"].to_string();
        ensure!(said.contains("does not vote yet") && said.contains("not there yet"), "{said}");
        Ok(())
    })
    .await?;
    cut(&cluster, new, &[1, 2, 3], true).await?;
    let ahead = cluster.backend(0).await?.commit(2, &[], b"ahead").await?;
    let (waits, heals) = tokio::join!(cluster.worker(new, ahead.at), async {
        wait_for("the worker to wait", || async {
            let said = cluster.status(new).await?["problems"].to_string();
            ensure!(said.contains("this node's log ends"), "{said}");
            Ok(())
        })
        .await?;
        cut(&cluster, new, &[1, 2, 3], false).await
    });
    heals?;
    let mut worker = waits?;
    cluster.voters(&[1, 2, 3, 4]).await?;
    ensure!(orders.borrow().is_none());
    let next = cluster.backend(0).await?.commit(3, &[], b"next").await?;
    ensure!(worker.entry().await?.0 == next.at);
    cluster.stop().await
}

/// A node crashed after it had stored a checkpoint of another node and before it had emptied its own log.  It repairs
/// that when it starts.  From then on it depends on its log again, and does not start if the log is lost.
#[tokio::test]
async fn a_crash_in_the_middle_of_starting_over_is_repaired_and_a_lost_log_is_not() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    cluster.backend(1).await?.commit(1, &[], b"all have this").await?;
    cluster.stop_node(2).await?;
    for n in 2..=20 {
        cluster.backend(1).await?.commit(n, &[], b"two have this").await?;
    }
    // A clean stop leaves a checkpoint of everything that was decided.
    cluster.stop_node(1).await?;
    let theirs = std::fs::read(cluster.configs[1].checkpoint_file())?;
    std::fs::write(cluster.configs[2].checkpoint_file(), onetrip_core::checkpoint::installed(&theirs))?;
    cluster.start_node(1)?;
    cluster.start_node(2)?;
    let mut here = cluster.backend(2).await?;
    let verdict = here.commit(1, &[], b"after").await?;
    ensure!(verdict.outcome == VerdictOutcome::Commit && verdict.other > LogIndex(20), "{verdict:?}");
    let status = cluster.status(2).await?;
    ensure!(status["log_first"].as_u64() > Some(20), "{status}");
    cluster.stop_node(2).await?;
    std::fs::rename(cluster.configs[2].data_dir.join("log"), cluster.configs[2].data_dir.join("lost"))?;
    let refused = cluster.start_node(2).expect_err("it started without its log").to_string();
    ensure!(refused.contains("does not start"), "{refused}");
    cluster.stop().await
}

/// Before its first checkpoint a node has nothing else that says how long its log was.  It does not take a folder
/// without a log, such as that of a disk that is not mounted, for a new node's, and it writes nothing there.
#[tokio::test]
async fn a_node_that_finds_its_logs_folder_empty_does_not_start() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    cluster.backend(2).await?.commit(1, &[], b"it has voted for this").await?;
    cluster.stop_node(2).await?;
    let dir = cluster.configs[2].data_dir.clone();
    let (log, lost) = (dir.join("log"), dir.join("lost"));
    std::fs::rename(&log, &lost)?;
    std::fs::create_dir(&log)?;
    std::fs::remove_file(cluster.configs[2].checkpoint_file())?;
    let notes = ["log.claimed", "starts", "promised"];
    for name in notes.iter().filter(|name| dir.join(name).exists()) {
        std::fs::rename(dir.join(name), lost.join(name))?;
    }
    ensure!(lost.join("log.claimed").exists());
    // A witness has only the first; an earlier release has left one of the others.
    for name in notes {
        std::fs::write(dir.join(name), "")?;
        let refused = cluster.start_node(2).err().context("it started without its log")?.to_string();
        ensure!(refused.contains("may not be mounted") && refused.contains("does not start"), "{refused}");
        ensure!(std::fs::read_dir(&log)?.next().is_none());
        std::fs::remove_file(dir.join(name))?;
    }
    std::fs::remove_dir(&log)?;
    std::fs::rename(&lost, &log)?;
    cluster.start_node(2)?;
    cluster.backend(2).await?.commit(2, &[], b"it has its log again").await?;
    cluster.stop().await
}

/// The members in the checkpoint count, not those in `node.toml`.  A node that has no checkpoint, and whose `node.toml`
/// names no members, says how nodes are made.
#[tokio::test]
async fn a_node_without_members_and_checkpoint_does_not_start() -> Result<()> {
    let mut cluster = Cluster::prepare(0.0)?;
    cluster.configs[0].members.clear();
    cluster.configs[0].save()?;
    let refused = cluster.start_node(0).expect_err("it started without members").to_string();
    ensure!(refused.contains("onetrip join"), "{refused}");
    Ok(())
}

/// A read replica never votes, so its token would open a join again for ever, whenever the replica is away.
#[tokio::test]
async fn a_used_token_expires_too() -> Result<()> {
    let cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let order = AdminRequest::Token { role: MemberRole::Replica, replaces: None, ttl_s: 3 };
    let AdminReply::Token(secret) = cluster.admin(0, order).await? else { bail!("no token") };
    let again = || AdminRequest::Join {
        secret_hash: onetrip_node::secret::hash(&secret),
        region: "far".into(),
        address: "h:1".into(),
        unlike: None,
    };
    for id in [4, 5] {
        let AdminReply::Joined { member, .. } = cluster.admin(1, again()).await? else { bail!("not let in") };
        ensure!(member.id == NodeId(id), "{member:?}");
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    for via in 0..3 {
        let why = cluster.admin(via, again()).await.err().context("it was let in")?.to_string();
        ensure!(why.contains("expired"), "{why}");
    }
    ensure!(cluster.members(0).await?.get(NodeId(5)).is_some());
    cluster.stop().await
}
