//! One node: the daemon's replica, on a simulated host (`host`) and a simulated disk.

use crate::agent::{FromNode, Said, ToNode, Wire};
use crate::copies::Heard;
use crate::ctx::{Ctx, InjectedBug, Micros, MS};
use crate::disk::{End, SimLog};
use crate::host::SimHost;
use crate::notices::Overheard;
use crate::poison::{Copying, STILL_AFTER};
use crate::rng::mix;
use crate::trace;
use bytes::Bytes;
use onetrip_core::agent::{Asked, ToPostgres};
use onetrip_core::certifier::Certifier;
use onetrip_core::consensus::{Committed, Config, EntryType, Message, Notice, Opened, Role};
use onetrip_core::placement::Place;
use onetrip_core::replica::{Answer, RebuildFrom, Replica, Report, RequestId, Settings, Stage};
use onetrip_core::router::Router;
use onetrip_core::row_locks::LockMessage;
use onetrip_core::{level, Change, Checkpoint, Conf, EntryId, Level, LogIndex, Members, NodeId, Term};
use raft::{GetEntriesContext, Storage};
use std::collections::BTreeMap;
use std::sync::Arc;

const HEARTBEAT_TICKS: usize = 5;
/// Shorter than some snapshots take to leave on a narrow link.
const SNAPSHOT_TICKS: usize = 50;
/// How often a node asks, as its archive would, whether it knows all that was acknowledged.
const CONFIRM_TICKS: u64 = 64;
/// Short, because the runs are short.
const LEADER_REST_TICKS: u64 = 150;

/// How a disk behaves, seen from outside.
#[derive(Clone, Copy, Default)]
pub struct Trouble {
    pub next_sync_fails: bool,
    pub full_until: Micros,
    pub slow_until: Micros,
}

#[derive(Debug)]
pub enum Arrival {
    Raft(Message),
    Notice(NodeId, Notice),
    /// From whom, and the number of the question.
    Question(NodeId, u64),
    LastEntry(NodeId, u64, EntryId),
    LeaseQuestion(NodeId, u64),
    Promise(NodeId, u64, EntryId),
    /// From whom, and the entry that this node's server is to show.
    Await(NodeId, LogIndex),
    /// About row locks.
    Lock(NodeId, LockMessage),
    /// What a member reports of itself.
    Report(NodeId, Report),
    Unreachable(NodeId),
    /// There is a new connection to this peer; what was sent before may be lost.
    Connected(NodeId),
    /// A peer says that this node was removed from the cluster.
    Removed,
    Agent(ToNode),
    Ask(RequestId, Change),
    /// An operator wants the entry to be left out at which this node's PostgreSQL stands still; `true`: even if
    /// members are away.
    Skip(bool),
    /// The node is to stop in good order.
    Stop,
    /// The checkpoint that was made here has its name; then the name is durable.
    Renamed(Bytes),
    Checkpointed(LogIndex, Conf),
    /// Another node's snapshot has been read by now.
    Snapshot(Message),
    /// Old entries have been read by now.
    Fetched,
    /// A sync beside the node's work, of what was written up to this output of consensus, has come to its end; it began
    /// right after this write.
    Synced(u64, u64),
    Tick(u32),
}

pub enum Departure {
    Raft(Message),
    Notice(NodeId, Notice),
    /// To whom, and the number of the question.
    Question(NodeId, u64),
    LastEntry(NodeId, u64, EntryId),
    LeaseQuestion(NodeId, u64),
    Promise(NodeId, u64, EntryId),
    Await(NodeId, LogIndex),
    /// About row locks.
    Lock(NodeId, LockMessage),
    /// To whom (`None`: everyone).  This is sent in any case, since a connection is always tried again.
    Report(Option<Vec<NodeId>>, Report),
    Agent(FromNode),
    /// A checkpoint, which is written by then if the node lives that long.
    Checkpoint(LogIndex, Conf, Bytes),
    /// A snapshot, which is opened by then if the node lives that long.
    Snapshot(Message),
    /// Old entries, which are read by then if the node lives that long.
    Fetched,
    /// A sync, which ends then if the node lives that long ([`Arrival::Synced`]).
    Synced(u64, u64),
}

/// Why a node stopped in the middle of its work.
pub enum Stop {
    Crashed,
    /// The disk failed, and the node ended before it said anything that depends on what should have been written.
    Disk(&'static str),
    /// It is not a member any more.
    Removed,
    Broken(String),
}

impl From<onetrip_core::Error> for Stop {
    fn from(error: onetrip_core::Error) -> Stop {
        Stop::Broken(error.to_string())
    }
}

pub type Result<T> = std::result::Result<T, Stop>;

/// What a node is besides its replica.
pub struct Body {
    pub id: NodeId,
    pub life: u64,
    /// The format level that its release knows.
    pub release: Level,
    pub said: Said,
    /// The members as this node knows them; and the configuration and the table that the checker saw last.
    pub members: Arc<Members>,
    pub checked: (Conf, Arc<Members>),
    pub copying: Copying,
    pub heard: Heard,
    /// There is a new order to copy PostgreSQL since the world last looked.
    pub rebuild_ordered: bool,
    /// After how many more stages it dies.
    pub fuse: Option<u32>,
    pub trouble: Trouble,
    /// It has become leader during the last stretch of work.
    pub elected: bool,
    /// The node's own clock within one stretch of work.  While it writes, it is ahead of the world's.
    pub clock: Micros,
    /// When the last sync that was begun beside the work will have ended.
    pub syncing_until: Micros,
    /// When it begins, perhaps only once the one before has ended.
    pub sync_begins: Micros,
    pub departures: Vec<(Micros, Departure)>,
    /// When the link to each peer will have sent all that waits on its bulk channel.
    pub sending_until: BTreeMap<NodeId, Micros>,
    /// An operator waits here for an entry to be left out.
    pub skipping: Option<RequestId>,
    /// When each entry was decided in this life.
    pub decided: BTreeMap<LogIndex, Micros>,
    /// Snapshots that have not left yet: until when, and what their receiver had when they were sent.
    pub snapshots_leave: BTreeMap<NodeId, (Micros, Option<LogIndex>)>,
    pub overheard: Overheard,
    pub last_question: u64,
    /// The term and the vote that its disk has.
    pub promised: (u64, u64),
    /// Where it was last.
    pub stage: Stage,
    /// By how much its own clock goes on in a millisecond of the world, in microseconds.
    pub pace: u64,
}

pub struct Node {
    pub id: NodeId,
    pub(crate) replica: Replica<SimLog, Wire>,
    pub body: Body,
    pub busy_until: Micros,
}

impl Node {
    /// Reads what earlier lives have left, and puts it in order, in the daemon's order.  It may die after each step
    /// ([`SimLog::step`]).
    pub fn open(id: NodeId, log: &mut SimLog, ctx: &Ctx) -> Result<Checkpoint> {
        let o = &ctx.options;
        log.step()?;
        if o.bug != Some(InjectedBug::BelieveName) {
            log.sync_folder();
        }
        log.step()?;
        let mut state = match log.checkpoint() {
            Some(raw) => Checkpoint::decode(raw.clone(), o.limits_of(id))?,
            None => Checkpoint::bootstrap(o.members(), o.limits_of(id)),
        };
        if o.bug == Some(InjectedBug::OtherWindow) {
            // Nobody compares.
            state.members.beginning = 0;
        }
        if o.bug == Some(InjectedBug::ForgetReserved) && id == NodeId(1) {
            state.certifier.forget_what_is_reserved();
        }
        if o.bug == Some(InjectedBug::ForgetHeld) && id == NodeId(1) {
            state.certifier.forget_what_is_held();
        }
        if o.bug == Some(InjectedBug::LearnerVotes) && state.installed && !state.conf.votes(id) {
            state.conf.learners.retain(|learner| *learner != id);
            state.conf.voters.push(id);
        }
        // What an earlier life wrote is believed, so it has to be on disk before anything is promised that depends
        // on it.
        if !matches!(o.bug, Some(InjectedBug::BelieveCache | InjectedBug::SyncOnOpen)) {
            log.rewrite();
        }
        log.step()?;
        if o.bug != Some(InjectedBug::BelieveCache) {
            log.sync();
        }
        log.step()?;
        log.marks_first = o.bug == Some(InjectedBug::MarksFirst);
        match Replica::<SimLog, Wire>::put_in_order(&state, log)? {
            Some(why) => Err(Stop::Broken(why)),
            None => Ok(state),
        }
    }

    /// `has_postgres` is what its configuration says, and `postgres_is_there` is what is on its disk.
    pub fn start(
        id: NodeId,
        life: u64,
        (state, mut log): (Checkpoint, SimLog),
        has_postgres: bool,
        postgres_is_there: bool,
        ctx: &mut Ctx,
    ) -> Result<Node> {
        let o = &ctx.options;
        log.cuts_between_parts = o.bug == Some(InjectedBug::CutBetweenParts);
        log.gives_no_snapshots = o.bug == Some(InjectedBug::CutWithoutSnapshot);
        let settings = Settings {
            region: ctx.region(id),
            has_postgres,
            checkpoint_entries: o.checkpoint_entries,
            checkpoint_bytes: u64::MAX,
            cut_margin: if o.bug == Some(InjectedBug::NeverCuts) { u64::MAX } else { o.cut_margin },
            log_bytes_max: if o.bug == Some(InjectedBug::NeverCuts) { u64::MAX } else { o.log_entries_max },
            near_bytes: o.near_entries,
            leader_looks: o.leader_looks,
            leader_rest_ticks: LEADER_REST_TICKS,
            still_after: STILL_AFTER,
            parts: o.parts,
            first_question: mix(o.seed ^ mix(u64::from(id.0) << 32 | life)),
        };
        // One that does not know what is in force, or what an earlier life has written, does not start, and the
        // operator puts the later one back.
        let context = GetEntriesContext::empty(false);
        let written =
            Storage::entries(&log, log.first_index().0, log.last_index().0 + 1, None, context).unwrap_or_default();
        let written = written.iter().map(|entry| level::of_entry(&entry.data)).max().unwrap_or_default();
        let release = o.release(id, life).max(written).max(state.members.level).max(ctx.checker.newest_members().level);
        let config = Config {
            id,
            limits: o.limits_of(id),
            applied: state.index(),
            level: if o.bug == Some(InjectedBug::TakesUnknown) { level::KNOWN } else { release },
            heartbeat_ticks: HEARTBEAT_TICKS,
            election_ticks: o.election_ticks,
            transfer_ticks: o.transfer_ticks,
            snapshot_ticks: SNAPSHOT_TICKS,
        };
        trace!(ctx, "n{id} starts, life {life}: log {}..{}, {state:?}", log.first_index(), log.last_index());
        let has_promised = log.promised && ctx.options.bug != Some(InjectedBug::ForgetsPromises);
        // It may also die soon after.
        let fuse = log.dies_in.take();
        let (starts, running) = (log.starts.clone(), state.certifier.running_incarnation(id));
        let members = Arc::new(state.members.clone());
        let mut replica = Replica::new(settings, config, state, log, &starts, has_promised)?;
        replica.consensus.set_message_bytes_max(ctx.options.message_bytes_max);
        if ctx.options.bug == Some(InjectedBug::EarlyWelcome) {
            replica.router = Router::new(id, ctx.region(id), ctx.options.parts, LogIndex::ZERO, &starts, running);
        }
        let body = Body {
            id,
            life,
            release,
            said: Said::default(),
            checked: (Conf::default(), members.clone()),
            members,
            copying: Copying::default(),
            heard: Heard::default(),
            rebuild_ordered: false,
            fuse,
            trouble: Trouble::default(),
            elected: false,
            clock: ctx.now,
            syncing_until: 0,
            sync_begins: 0,
            departures: Vec::new(),
            sending_until: BTreeMap::new(),
            skipping: None,
            decided: BTreeMap::new(),
            snapshots_leave: BTreeMap::new(),
            overheard: Overheard::default(),
            last_question: 0,
            promised: (0, 0),
            stage: Stage::RoundDone,
            pace: ctx.options.pace(id),
        };
        let mut node = Node { id, replica, body, busy_until: ctx.now };
        node.replica.start(postgres_is_there, &mut SimHost { body: &mut node.body, ctx })?;
        Ok(node)
    }

    /// Handles everything that has come in, and then does all the work that follows from it.
    pub fn work(&mut self, arrivals: Vec<Arrival>, ctx: &mut Ctx) -> Result<()> {
        self.body.clock = ctx.now;
        let first = self.log_first();
        let result = self.all_work(arrivals, ctx);
        self.body.answer();
        self.busy_until = self.body.clock;
        if self.log_first() > first {
            ctx.events.add("log cut");
        }
        result
    }

    fn all_work(&mut self, arrivals: Vec<Arrival>, ctx: &mut Ctx) -> Result<()> {
        for arrival in arrivals {
            self.handle(arrival, ctx)?;
        }
        self.replica.advance(&mut SimHost { body: &mut self.body, ctx })?;
        if self.replica.consensus.log().wants_reading() {
            ctx.events.add("old entries read beside");
            self.body.departures.push((self.body.clock + ctx.rng.between(0, 50 * MS), Departure::Fetched));
        }
        self.left_out(ctx);
        self.misguided(ctx)
    }

    fn handle(&mut self, arrival: Arrival, ctx: &mut Ctx) -> Result<()> {
        let arrival = match arrival {
            Arrival::Notice(peer, notice) => self.misheard(peer, notice, ctx),
            Arrival::LastEntry(peer, _, last) if ctx.options.bug == Some(InjectedBug::AnyAnswer) => {
                Arrival::LastEntry(peer, self.body.last_question, last)
            }
            other => other,
        };
        if let Arrival::Agent(frame) = &arrival {
            self.body.heard.hear(frame);
        }
        let (replica, host) = (&mut self.replica, &mut SimHost { body: &mut self.body, ctx });
        match arrival {
            Arrival::Raft(message) => replica.message(message, host)?,
            Arrival::Notice(peer, notice) => replica.notice(peer, notice, host),
            Arrival::Await(peer, at) => replica.awaits(peer, at),
            Arrival::Lock(peer, message) => replica.lock_message(peer, message, host),
            Arrival::Question(peer, question) => replica.question(peer, question, host),
            Arrival::LastEntry(peer, question, last) => replica.last_entry_of(peer, question, last),
            Arrival::LeaseQuestion(peer, question) => {
                replica.lease_question(peer, question, host)?;
                if host.ctx.options.bug == Some(InjectedBug::BreaksPromises) {
                    replica.consensus.release(peer);
                }
            }
            Arrival::Promise(_, question, last) if host.ctx.options.bug == Some(InjectedBug::OneSpeaksForAll) => {
                let members = host.body.members.clone();
                members.members.iter().for_each(|m| replica.promise_of(m.id, question, last));
            }
            Arrival::Promise(peer, question, last) => replica.promise_of(peer, question, last),
            Arrival::Unreachable(peer) => {
                host.body.snapshots_leave.remove(&peer);
                replica.unreachable(peer, host);
            }
            Arrival::Connected(peer) => replica.connected(peer, host)?,
            Arrival::Ask(id, change) => replica.ask(id, change, host),
            Arrival::Skip(force) => self.leave_out(force, ctx)?,
            Arrival::Stop => replica.stop(host),
            Arrival::Removed => return Err(Stop::Removed),
            Arrival::Report(peer, report) => replica.report(peer, report, host),
            Arrival::Agent(ToNode::Read { conn, number, may_ask: false })
                if host.ctx.options.bug == Some(InjectedBug::AnswersAlone) && !replica.has_lease(host) =>
            {
                let at = replica.certifier.last_committed();
                let answer = ToPostgres::ReadAt { number, at, asked: Asked::Nobody }.encode();
                host.body.said.lock().expect("one thread").push(FromNode { conn, frame: Some(answer) });
            }
            Arrival::Agent(ToNode::Read { conn, number, .. })
                if host.ctx.options.bug == Some(InjectedBug::AsksAnyway) =>
            {
                let event = ToNode::Read { conn, number, may_ask: true }.for_router(&host.body.said);
                replica.agent(event, host)?;
            }
            Arrival::Agent(frame) => {
                if matches!(frame, ToNode::Read { .. }) && replica.has_lease(host) {
                    host.ctx.events.add("fresh read under a lease");
                }
                let event = frame.for_router(&host.body.said);
                replica.agent(event, host)?;
            }
            Arrival::Renamed(raw) => {
                host.check_room("disk full at a checkpoint")?;
                replica.consensus.log_mut().rename_checkpoint(raw);
            }
            Arrival::Checkpointed(index, conf) => {
                replica.consensus.log_mut().sync_folder();
                replica.checkpointed(index, &conf, host)?;
            }
            Arrival::Snapshot(message) => {
                let opened = Opened::open(message, replica.consensus.limits());
                replica.opened(opened, host);
            }
            Arrival::Fetched => replica.fetched(host),
            Arrival::Synced(number, write) => {
                host.end_sync(replica.consensus.log_mut(), write)?;
                replica.synced(number, host)?;
            }
            Arrival::Tick(times) => {
                // Not in most runs: mistakes with reads are to be found by reads as well.
                if host.ctx.options.seed % 8 == 0 && replica.ticks() % CONFIRM_TICKS == 0 {
                    replica.confirm(host.ctx.checker.newest_told().0);
                }
                (0..times).try_for_each(|_| replica.tick(host))?
            }
        }
        Ok(())
    }

    /// The injected bug of the Raft paper's figure 8.
    pub fn count_any_term(&mut self, mut matched: Vec<LogIndex>, ctx: &mut Ctx) -> Result<()> {
        let status = self.replica.consensus.status();
        matched.sort_unstable();
        let Some(majority) = matched.get((matched.len().max(1) - 1) / 2).copied() else { return Ok(()) };
        for index in self.replica.certifier.decided().0 + 1..=majority.min(status.last).0 {
            let Some(entry) = self.replica.consensus.log().entry(LogIndex(index)).cloned() else { break };
            if entry.term < status.leadership.term.0 {
                ctx.events.add("entry of an old term counted");
                // The worst moment to die.  If it were left to chance, too many seeds would be needed.
                self.body.fuse = self.body.fuse.or(Some(ctx.rng.below(4) as u32));
            }
            let (index, kind) = (LogIndex(index), EntryType::EntryNormal);
            let committed = Committed { index, term: Term(entry.term), kind, data: entry.data, members: None };
            self.replica.certify(vec![committed], &mut SimHost { body: &mut self.body, ctx })?;
        }
        Ok(())
    }

    /// Ends a node that was told to stop: writes a last checkpoint, and closes the log.
    pub fn close(&mut self) {
        let certifier = &self.replica.certifier;
        let last = certifier.decided() > LogIndex::ZERO && !certifier.is_between_parts();
        let checkpoint = last.then(|| self.replica.encoded_checkpoint());
        let log = self.replica.consensus.log_mut();
        checkpoint.into_iter().for_each(|raw| log.save_checkpoint(raw));
        log.sync();
    }

    /// What is left of the disk if the node ends now.
    pub fn end(self, end: End, ctx: &mut Ctx) -> SimLog {
        self.replica.consensus.log().after(end, &mut ctx.rng)
    }

    pub fn certifier(&self) -> &Certifier {
        &self.replica.certifier
    }

    /// The last checkpoint that is durable.
    pub fn checkpoint(&self) -> LogIndex {
        self.replica.checkpoint()
    }

    pub fn log_first(&self) -> LogIndex {
        self.replica.consensus.log().first_index()
    }

    pub fn members(&self) -> &Arc<Members> {
        self.replica.members()
    }

    pub fn encoded_checkpoint(&self) -> Bytes {
        self.replica.encoded_checkpoint()
    }

    pub fn take_answers(&mut self) -> Vec<Answer> {
        self.replica.take_answers()
    }

    /// PostgreSQL is to be copied.
    pub fn ordered(&self) -> Option<RebuildFrom> {
        self.replica.ordered()
    }

    /// The leader is where it belongs, and no other place is better, as far as this node knows.
    pub fn leader_is_settled(&self, now: Micros) -> bool {
        self.replica.leader_is_settled(self.body.time(now))
    }

    pub fn leader_goes_to_and_fro(&self) -> bool {
        self.replica.leader_goes_to_and_fro()
    }

    pub fn places(&self, now: Micros) -> Option<Vec<Place>> {
        self.replica.places(self.body.time(now))
    }

    pub fn is_leader(&self) -> bool {
        self.replica.leadership().is_some_and(|l| l.role == Role::Leader)
    }
}
