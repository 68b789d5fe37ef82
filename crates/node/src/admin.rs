//! The admin socket: a Unix socket in the node's folder through which operators change the cluster.
//!
//! What it must not know: how a change gets into the log.  It asks the core thread, which answers once the change is
//! committed, and it adds what an operator should be told: what the change means, and when it would be unwise.
//!
//! Invariant: only this node's user and root get in (mode 0600, and the peer's credentials).

use crate::cluster;
use crate::config::NodeConfig;
use crate::http::{self, Http};
use crate::inbox::{AdminReply, AdminRequest, Event, Inbox};
use crate::postgres::is_own_user;
use crate::status::is_there;
use crate::transport::{PeerState, Transport};
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use onetrip_core::members::Change;
use onetrip_core::{level, Level, LogIndex, Member, MemberRole, Members, NodeId, PreferredLeader, RegionId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;

/// How long servers have to say which library they have loaded.
const LIBRARIES_TELL_WITHIN: Duration = Duration::from_secs(10);
/// A key is lent for so much longer than the token is valid that nobody is refused for want of it.
const LENT_LONGER: Duration = Duration::from_secs(60);

type Answer<T> = std::result::Result<Json<T>, (StatusCode, String)>;

pub struct Admin {
    pub config: Arc<NodeConfig>,
    pub transport: Arc<Transport>,
    pub inbox: Inbox,
    pub http: Arc<Http>,
}

/// Accepts only connections of this user and of root, also of those who connect before the socket's mode is set.
struct OwnUser(UnixListener);

impl axum::serve::Listener for OwnUser {
    type Io = UnixStream;
    type Addr = ();

    async fn accept(&mut self) -> (UnixStream, ()) {
        loop {
            match self.0.accept().await {
                Ok((stream, _)) if is_own_user(&stream) => return (stream, ()),
                Ok((stream, _)) => {
                    let uid = stream.peer_cred().map_or(-1, |peer| i64::from(peer.uid()));
                    tracing::warn!(uid, "refused a connection of another user to the admin socket");
                }
                // Most likely there are no file descriptors left: let other connections end first.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenOrder {
    role: MemberRole,
    replaces: Option<NodeId>,
    ttl_s: u64,
    /// The key of the cluster's authority, lent to this node while the token is valid.
    authority_key: Option<String>,
}

#[derive(Serialize)]
struct TokenMade {
    token: String,
    /// Whether a node can join through this one.
    issues: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaveOrder {
    node: NodeId,
    /// Even if the cluster cannot lose another voter after that.
    force: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaderOrder {
    /// `auto`: the cluster chooses.
    region: PreferredLeader,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeasesOrder {
    regions: Vec<RegionId>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SkipOrder {
    index: LogIndex,
    /// Even while a member that may show it cannot be reached.
    force: bool,
}

#[derive(Serialize)]
struct Skipped {
    by: LogIndex,
    transaction: String,
    region: RegionId,
    kept: String,
    changes: Vec<String>,
}

/// Which part of the log a backup needs: what comes after this entry.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Retained {
    /// `None` in a request: after a checkpoint that is then made, whose index is the answer.
    index: Option<LogIndex>,
}

/// What a change means, in a sentence.
#[derive(Serialize)]
struct Done {
    means: String,
}

/// Reads a body as each kind of request, for the fuzzer.
#[cfg(feature = "lab")]
pub(crate) fn read_orders(body: &[u8]) {
    let _ = serde_json::from_slice::<TokenOrder>(body);
    let _ = serde_json::from_slice::<LeaveOrder>(body);
    let _ = serde_json::from_slice::<LeaderOrder>(body);
    let _ = serde_json::from_slice::<LeasesOrder>(body);
    let _ = serde_json::from_slice::<SkipOrder>(body);
    let _ = serde_json::from_slice::<Retained>(body);
}

impl Admin {
    pub async fn run(self: Arc<Self>, listener: UnixListener) {
        let node = self.config.node;
        let routes = Router::new()
            .route("/token", post(token))
            .route("/leave", post(leave))
            .route("/leader", post(leader))
            .route("/leases", post(leases))
            .route("/skip", post(skip))
            .route("/upgrade", post(upgrade))
            .route("/members", get(members))
            .route("/retain", post(retain))
            .with_state(self.clone())
            // What the HTTP port tells everybody on this machine.
            .route("/cluster", get(http::cluster).with_state(self.http.clone()))
            .route("/status", get(http::status).with_state(self.http.clone()));
        if let Err(e) = axum::serve(OwnUser(listener), routes).await {
            tracing::error!(%node, "the admin socket ended: {e}");
        }
    }

    async fn ask(&self, request: AdminRequest) -> std::result::Result<AdminReply, (StatusCode, String)> {
        let (answer, answered) = oneshot::channel();
        self.inbox.send(Event::Admin(request, answer)).await;
        // The core thread bounds the wait; if it is gone the node is ending.
        match answered.await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(why)) => Err((StatusCode::CONFLICT, why)),
            Err(_) => Err((StatusCode::SERVICE_UNAVAILABLE, "the node is stopping".into())),
        }
    }

    async fn members(&self) -> std::result::Result<Arc<Members>, (StatusCode, String)> {
        members_of(self.ask(AdminRequest::Members).await?)
    }

    /// For how long each other member has said nothing.
    async fn silent(&self) -> std::result::Result<BTreeMap<NodeId, Duration>, (StatusCode, String)> {
        http::ask_core(&self.inbox).await.map(|core| core.silent).ok_or((http::STUCK.0, http::STUCK.1.trim().into()))
    }
}

fn members_of(reply: AdminReply) -> std::result::Result<Arc<Members>, (StatusCode, String)> {
    match reply {
        AdminReply::Members(members) => Ok(members),
        _ => Err((StatusCode::INTERNAL_SERVER_ERROR, "the core thread answered another question".into())),
    }
}

async fn token(State(admin): State<Arc<Admin>>, Json(order): Json<TokenOrder>) -> Answer<TokenMade> {
    let TokenOrder { role, replaces, ttl_s, authority_key } = order;
    let tls = admin.transport.tls();
    let whole = match (authority_key, &tls) {
        (Some(key), Some(tls)) => Some(tls.with_key(&key).map_err(|e| (StatusCode::CONFLICT, e.to_string()))?),
        _ => None,
    };
    let secret = match admin.ask(AdminRequest::Token { role, replaces, ttl_s }).await? {
        AdminReply::Token(secret) => secret,
        other => return members_of(other).and(Err((StatusCode::INTERNAL_SERVER_ERROR, String::new()))),
    };
    if let (Some(whole), Some(tls)) = (whole, &tls) {
        tls.lend(whole, Instant::now() + Duration::from_secs(ttl_s) + LENT_LONGER);
        tracing::info!(ttl_s, "the key of the cluster's authority is lent to this node");
    }
    let issues = tls.is_none_or(|tls| tls.issuer().is_some());
    Ok(Json(TokenMade { token: admin.transport.join_token(secret).to_string(), issues }))
}

/// Has the log retained for a minute.
async fn retain(State(admin): State<Arc<Admin>>, Json(order): Json<Retained>) -> Answer<Retained> {
    let (answer, answered) = oneshot::channel();
    admin.inbox.send(Event::Retain(order.index, answer)).await;
    match answered.await {
        Ok(index) => Ok(Json(Retained { index: Some(index) })),
        Err(_) => Err((StatusCode::SERVICE_UNAVAILABLE, "the node is stopping".into())),
    }
}

async fn leave(State(admin): State<Arc<Admin>>, Json(order): Json<LeaveOrder>) -> Answer<Done> {
    let members = admin.members().await?;
    let (silent, peers) = (admin.silent().await?, admin.transport.peers());
    let reachable = |id| is_there(id, admin.config.node, &silent, &peers);
    if let Some(why) = unwise(&members, order.node, reachable, order.force) {
        return Err((StatusCode::CONFLICT, why));
    }
    let members = members_of(admin.ask(AdminRequest::Remove { node: order.node }).await?)?;
    Ok(Json(Done { means: means(&members) }))
}

async fn leader(State(admin): State<Arc<Admin>>, Json(order): Json<LeaderOrder>) -> Answer<Done> {
    let members = members_of(admin.ask(AdminRequest::PreferLeader(order.region)).await?)?;
    Ok(Json(Done { means: means(&members) }))
}

async fn leases(State(admin): State<Arc<Admin>>, Json(order): Json<LeasesOrder>) -> Answer<Done> {
    let members = members_of(admin.ask(AdminRequest::LeaseRegions(order.regions)).await?)?;
    Ok(Json(Done { means: Change::LeaseRegions(members.lease_regions.clone()).to_string() }))
}

/// Raises the format level to the highest that every member knows, its node and the library that its server has loaded.
/// This node must reach each of them now, and so know which release it runs.
async fn upgrade(State(admin): State<Arc<Admin>>) -> Answer<Done> {
    let refused = |why| (StatusCode::CONFLICT, why);
    let members = admin.members().await?;
    let (silent, peers) = (admin.silent().await?, admin.transport.peers());
    let level = to_raise(&members, admin.config.node, &silent, &peers).map_err(refused)?;
    if level > members.level {
        admin.check_libraries(&members, level).await.map_err(refused)?;
        let ids = |members: &Members| members.members.iter().map(|member| member.id).collect::<Vec<_>>();
        let now = admin.members().await?;
        if ids(&now) != ids(&members) {
            return Err(refused("the members have changed meanwhile; ask again".into()));
        }
        admin.ask(AdminRequest::RaiseLevel(level)).await?;
        return Ok(Json(Done {
            means: format!("format level {level} is in force; earlier releases cannot join any more"),
        }));
    }
    Ok(Json(Done { means: format!("format level {level} is in force already, and no member knows a higher one") }))
}

impl Admin {
    /// Whether every server has loaded a library that knows this level.  Those that do not tell at once are asked
    /// again: they may be busy.
    async fn check_libraries(&self, members: &Members, level: Level) -> std::result::Result<(), String> {
        let deadline = tokio::time::Instant::now() + LIBRARIES_TELL_WITHIN;
        loop {
            let reports = cluster::reports(&self.http).await.unwrap_or_default();
            let checked = libraries_know(members, level, |id| reports.get(&id).map(|report| &**report));
            match checked {
                Err(NotAll::Silent(_)) if tokio::time::Instant::now() < deadline => {}
                checked => return checked.map_err(|why| why.to_string()),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Why a level cannot be raised although every node knows it.
#[derive(Debug, thiserror::Error)]
enum NotAll {
    #[error("{0} must be restarted first: its PostgreSQL has loaded the library of an earlier release. Where the new one is \
             installed, stopping and starting the node loads it")]
    Older(String),
    #[error(
        "it is not known which library the PostgreSQL of {0} has loaded, since it does not say: see `onetrip status`"
    )]
    Silent(String),
}

fn libraries_know<'a>(
    members: &Members,
    level: Level,
    report: impl Fn(NodeId) -> Option<&'a Value>,
) -> std::result::Result<(), NotAll> {
    let (mut older, mut silent) = (Vec::new(), Vec::new());
    for m in members.members.iter().filter(|m| m.role.has_postgres()) {
        match report(m.id).and_then(|report| report["level_of_library"].as_u64()) {
            None => silent.push(format!("node {} in {}", m.id, m.region)),
            Some(known) if known < u64::from(level.0) => older.push(format!("node {} in {}", m.id, m.region)),
            Some(_) => {}
        }
    }
    match (older.is_empty(), silent.is_empty()) {
        (false, _) => Err(NotAll::Older(older.join(" and "))),
        (true, false) => Err(NotAll::Silent(silent.join(" and "))),
        (true, true) => Ok(()),
    }
}

/// The highest level that every member knows, or who does not.
fn to_raise(
    members: &Members,
    me: NodeId,
    silent: &BTreeMap<NodeId, Duration>,
    peers: &[PeerState],
) -> std::result::Result<Level, String> {
    let others = members.members.iter().filter(|m| m.id != me);
    let (mut least, mut behind, mut away) = (level::KNOWN, Vec::new(), Vec::new());
    for m in others {
        let peer = peers.iter().find(|p| p.id == m.id).filter(|_| is_there(m.id, me, silent, peers));
        match peer.and_then(|p| p.level) {
            None => away.push(format!("node {} in {}", m.id, m.region)),
            Some(known) => {
                least = least.min(known);
                if known < level::KNOWN {
                    behind.push(format!("node {} in {}", m.id, m.region));
                }
            }
        }
    }
    if !away.is_empty() {
        return Err(format!(
            "not every member can be reached from this node, so it is not known which release they run ({}): start them, or take \
             out with `onetrip leave` who will not come back",
            away.join(", ")
        ));
    }
    if least <= members.level && !behind.is_empty() {
        return Err(format!("{} must be upgraded first: an earlier release runs there", behind.join(" and ")));
    }
    Ok(least)
}

async fn skip(State(admin): State<Arc<Admin>>, Json(order): Json<SkipOrder>) -> Answer<Skipped> {
    let (answer, answered) = oneshot::channel();
    admin.inbox.send(Event::Skip { index: order.index, force: order.force, answer }).await;
    match answered.await {
        Ok(Ok(left_out)) => Ok(Json(Skipped {
            by: left_out.by,
            transaction: left_out.txn.to_string(),
            region: left_out.region,
            kept: left_out.kept.display().to_string(),
            changes: left_out.changes,
        })),
        Ok(Err(why)) => Err((StatusCode::CONFLICT, why)),
        Err(_) => Err((StatusCode::SERVICE_UNAVAILABLE, "the node is stopping".into())),
    }
}

async fn members(State(admin): State<Arc<Admin>>) -> Answer<Members> {
    // Tokens are nobody's business, not even as hashes.
    let members = admin.members().await?;
    Ok(Json(Members { tokens: Vec::new(), ..Members::clone(&members) }))
}

/// Why `leaving` should not be removed, if it should not.
fn unwise(members: &Members, leaving: NodeId, reachable: impl Fn(NodeId) -> bool, force: bool) -> Option<String> {
    if !members.get(leaving).is_some_and(|m| m.voter) {
        return None;
    }
    let left: Vec<&Member> = members.voters().filter(|m| m.id != leaving).collect();
    let majority = left.len() / 2 + 1;
    let there = left.iter().filter(|m| reachable(m.id)).count();
    if left.is_empty() {
        return Some(format!("node {leaving} is the last voter: the cluster would be gone"));
    }
    if there < majority {
        let away: Vec<String> =
            left.iter().filter(|m| !reachable(m.id)).map(|m| format!("{} in {}", m.id, m.region)).collect();
        return Some(format!(
            "without node {leaving} only {there} of the {majority} voters that a majority needs can be reached (away: node {}), \
             and commits would stop: start those, or take them out first",
            away.join(", node ")
        ));
    }
    (left.len() < 3 && !force).then(|| {
        format!(
            "it is not done without --force: {} (a dead node is better replaced: onetrip token --replaces {leaving})",
            means_for(&left)
        )
    })
}

fn means(members: &Members) -> String {
    means_for(&members.voters().collect::<Vec<_>>())
}

/// How many losses so many voters can bear, in a sentence.
fn means_for(voters: &[&Member]) -> String {
    let names: Vec<String> = voters.iter().map(|m| format!("{} in {}", m.id, m.region)).collect();
    let names = names.join(", ");
    match voters.len() {
        1 => format!("one voter is left (node {names}), and its loss loses the database"),
        2 => format!("two voters are left (node {names}), and commits stop when either is lost"),
        n => format!(
            "{n} voters are left (node {names}), and commits go on as long as {} of them are connected",
            n / 2 + 1
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(voters: u32) -> Members {
        let member = |id| Member {
            id: NodeId(id),
            region: RegionId::from(format!("r{id}").as_str()),
            address: format!("10.0.0.{id}:7100"),
            role: MemberRole::Voter,
            voter: id <= voters,
            slot: Some(id),
            replaces: None,
            joined: None,
        };
        Members::bootstrap((1..=voters + 1).map(member).collect(), "r1".into(), 8)
    }

    fn peer(id: u32, connected: bool, level: Option<u16>) -> PeerState {
        PeerState {
            id: NodeId(id),
            region: "r".into(),
            connected,
            rtt_ms: None,
            rtt_least: None,
            rtt_median: None,
            postgres_version: None,
            level: level.map(Level),
            sent_bytes: 0,
            relayed_bytes: 0,
            not_rehearsed: 0,
            trouble: None,
            cut: false,
        }
    }

    fn silent(hang: &[u32]) -> BTreeMap<NodeId, Duration> {
        hang.iter().map(|id| (NodeId(*id), Duration::from_secs(6))).collect()
    }

    /// Goal: the level is raised only if every member is known to know it.
    #[test]
    fn a_level_is_raised_when_every_member_knows_it() {
        let members = members(2);
        let raise = |peers: &[PeerState]| to_raise(&members, NodeId(1), &BTreeMap::new(), peers);
        let known = Some(level::KNOWN.0);
        assert_eq!(raise(&[peer(2, true, known), peer(3, true, known)]), Ok(level::KNOWN));
        let away = raise(&[peer(2, true, known), peer(3, false, known)]).unwrap_err();
        assert!(away.contains("(node 3 in r3)"), "{away}");
        assert!(
            raise(&[peer(2, true, known)]).is_err() && raise(&[peer(2, true, None), peer(3, true, known)]).is_err()
        );
        let behind = raise(&[peer(2, true, Some(0)), peer(3, true, known)]).unwrap_err();
        assert!(behind.contains("node 2 in r2 must be upgraded first"), "{behind}");
        let hangs = to_raise(&members, NodeId(1), &silent(&[3]), &[peer(2, true, known), peer(3, true, known)]);
        assert!(hangs.unwrap_err().contains("(node 3 in r3)"));
        // A later release knows more than this one.
        assert_eq!(raise(&[peer(2, true, Some(9)), peer(3, true, known)]), Ok(level::KNOWN));
    }

    /// Goal: a server with an older library, or one that says nothing or nonsense, is named.
    #[test]
    fn a_level_is_raised_when_every_server_has_loaded_what_knows_it() {
        let members = members(2);
        let judged = |said: [Option<Value>; 3]| {
            let said: Vec<Option<Value>> =
                said.into_iter().map(|level| Some(serde_json::json!({ "level_of_library": level? }))).collect();
            let judged = libraries_know(&members, Level(1), |id| said[id.0 as usize - 1].as_ref());
            judged.err().map_or_else(String::new, |why| why.to_string())
        };
        let level = |level: u64| Some(Value::from(level));
        assert_eq!(judged([level(1), level(1), level(9)]), "");
        let older = judged([level(1), level(0), None]);
        assert!(older.contains("node 2 in r2 must be restarted first"), "{older}");
        for nonsense in [None, Some(Value::Null), Some("1".into()), Some(1.5.into())] {
            let silent = judged([level(1), level(1), nonsense]);
            assert!(silent.contains("the PostgreSQL of node 3 in r3 has loaded"), "{silent}");
        }
    }

    fn refusal(voters: u32, leaving: u32, away: &[u32], force: bool) -> String {
        unwise(&members(voters), NodeId(leaving), |id| !away.contains(&id.0), force).unwrap_or_default()
    }

    /// Goal: a voter that hangs, and so stays connected, does not count towards the majority that is left.
    #[test]
    fn leaving_is_refused_when_commits_would_wait_for_those_that_hang() {
        let peers: Vec<PeerState> = (2..=5).map(|id| peer(id, true, None)).collect();
        let refusal = |hang: &[u32]| {
            unwise(&members(5), NodeId(3), |id| is_there(id, NodeId(1), &silent(hang), &peers), false)
                .unwrap_or_default()
        };
        assert_eq!((refusal(&[]), refusal(&[5])), Default::default());
        assert!(refusal(&[4, 5]).contains("only 2 of the 3 voters"), "{}", refusal(&[4, 5]));
    }

    #[test]
    fn leaving_is_refused_when_commits_would_stop_and_must_be_meant_when_they_soon_could() {
        assert_eq!(refusal(5, 5, &[], false), "");
        assert_eq!(refusal(5, 5, &[1, 5], false), "", "three of four are there");
        assert!(refusal(5, 5, &[1, 2], true).contains("only 2 of the 3 voters"), "a majority of four is three");
        assert!(refusal(3, 1, &[3], true).contains("away: node 3 in r3"));
        assert!(refusal(3, 1, &[], false).contains("--force") && refusal(3, 1, &[], true).is_empty());
        assert!(refusal(2, 1, &[], false).contains("one voter is left"));
        assert!(refusal(1, 1, &[], true).contains("last voter"));
        // A member that does not vote can always leave.
        assert_eq!(refusal(3, 4, &[1, 2, 3], false), "");
    }
}
