//! Causes the planned faults in a running cluster, and undoes them.
//!
//! Faults overlap: each is undone when its time is up, whichever other faults last then.  [`Faults::heal`] undoes all
//! of them and starts whatever is not running.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use super::disk::Disk;
use super::evidence;
use super::extra_node::ExtraNode;
use super::plan::Fault;
use super::session::Session;
use super::shim::Clock;
use crate::cluster::LinkChange;
use crate::{postmaster, Cluster, Node};

/// A node whose disk is full notices it at its next write, which comes within this time.
const NOTICES: Duration = Duration::from_secs(10);
/// How long moving the leader may take.
const MOVING: Duration = Duration::from_secs(15);
/// A node that was started or resumed answers within this time.
const ANSWERS: Duration = Duration::from_secs(60);
/// How often nodes are started during one heal: a node that still ends then does so for a reason that no heal removes.
const STARTS: u32 = 3;
const POLL: Duration = Duration::from_millis(20);

pub struct Faults {
    // In the order in which they must be dropped: the disks after the nodes that use them.
    extra_node: ExtraNode,
    cluster: Arc<Cluster>,
    /// One for each region, or none at all; then the record says why.
    disks: Vec<Disk>,
    clocks: Vec<Clock>,
    held: Vec<(Instant, Undo)>,
}

#[derive(Debug, Clone)]
enum Undo {
    Start(usize),
    Continue(Vec<Pid>),
    Links,
    Space(usize),
    StartExtraNode,
}

/// Whether a fault was caused.
pub enum Done {
    Yes,
    /// It was not possible at this moment, for this reason.
    NotNow(String),
}

impl Faults {
    pub fn new(cluster: Arc<Cluster>, disks: Vec<Disk>, clocks: Vec<Clock>) -> Faults {
        let extra_node = ExtraNode::new(Arc::clone(&cluster));
        Faults { extra_node, cluster, disks, clocks, held: Vec::new() }
    }

    /// Whether this kind of fault can be caused on this machine.
    pub fn can(&self, fault: &Fault) -> bool {
        match fault {
            Fault::PowerLoss { .. } | Fault::PowerLossEverywhere | Fault::FullDisk { .. } => !self.disks.is_empty(),
            Fault::ClockJump { .. } => !self.clocks.is_empty(),
            _ => true,
        }
    }

    /// Causes a fault.  `Err`: something did not behave as it must, which is a finding.
    pub async fn inflict(&mut self, fault: &Fault, lasts: Duration) -> Result<Done> {
        let until = Instant::now() + lasts;
        let cluster = Arc::clone(&self.cluster);
        let regions = cluster.nodes().len();
        match *fault {
            Fault::KillBackend { region } => {
                let Some(pid) = self.backend(region).await else { return not_now("no backend") };
                let _ = kill(pid, Signal::SIGKILL);
            }
            Fault::KillPostgres { region } => {
                if cluster.node(region).kill9_postgres().is_err() {
                    return not_now("PostgreSQL is not running");
                }
            }
            Fault::KillNode { region } => self.kill(until, &[region], false)?,
            Fault::KillRegion { region } => self.kill(until, &[region], true)?,
            Fault::KillEverything => self.kill(until, &(0..regions).collect::<Vec<_>>(), true)?,
            Fault::StopNode { region } => {
                if !cluster.node(region).running() {
                    return not_now("the node is not running");
                }
                // A paused process does not react to the signal.
                self.resume_all();
                self.held.push((until, Undo::Start(region)));
                let why = cluster.node(region).stop().await.err().map(|e| format!("{e:#}"));
                // Under faults a node may not end in time and have to be killed.  That is no finding, as long as it
                // ends.
                if let Some(why) = why {
                    eprintln!("torture: {why}");
                }
            }
            Fault::PauseBackend { region } => {
                let Some(pid) = self.backend(region).await else { return not_now("no backend") };
                self.pause(until, vec![pid]);
            }
            Fault::PausePostgres { region } => {
                self.pause(until, postmaster::processes(&cluster.node(region).postgres_data()));
            }
            Fault::PauseNode { region } => {
                let Some(pid) = cluster.node(region).pid() else { return not_now("the node is not running") };
                self.pause(until, vec![pid]);
            }
            Fault::CutOff { region } => self.cut(until, |a, b| a == region || b == region).await,
            Fault::CutPair { a, b } => self.cut(until, |x, y| (x, y) == (a, b) || (y, x) == (a, b)).await,
            Fault::CutOneWay { from, to } => self.cut(until, |a, b| (a, b) == (from, to)).await,
            Fault::CutAll => self.cut(until, |_, _| true).await,
            Fault::Ring { backwards } => {
                let step = if backwards { regions - 1 } else { 1 };
                self.cut(until, |a, b| (a + step) % regions != b).await;
            }
            Fault::Deaf { region, mute } => {
                self.cut(until, |a, b| if mute { a == region } else { b == region }).await;
            }
            Fault::SlowLinks { one_way_ms, jitter_ms } => {
                let (one_way_ms, jitter_ms) = (Some(one_way_ms as f64), Some(jitter_ms as f64));
                self.links(until, |_, _| true, LinkChange { one_way_ms, jitter_ms, ..Default::default() }).await;
            }
            Fault::LossyLinks { percent } => {
                let loss = Some(percent as f64 / 100.0);
                self.links(until, |_, _| true, LinkChange { loss, duplicate: loss, ..Default::default() }).await;
            }
            Fault::NarrowLink { a, b, mbit_per_s } => {
                let change = LinkChange { mbit_per_s: Some(mbit_per_s as f64), ..Default::default() };
                self.links(until, |x, y| (x, y) == (a, b) || (y, x) == (a, b), change).await;
            }
            Fault::MoveLeader { region } => return self.move_leader(region).await,
            Fault::PowerLoss { region } => self.power_loss(until, &[region])?,
            Fault::PowerLossEverywhere => self.power_loss(until, &(0..regions).collect::<Vec<_>>())?,
            Fault::FullDisk { region } => return self.full_disk(region, until).await,
            Fault::ClockJump { region, ms } => self.clocks[region].set(ms)?,
            // Without a majority, or without the node that is asked, these fail.  It is enough that they end.
            Fault::Join { asked, role } => return done(self.extra_node.join(asked, role).await),
            Fault::Leave { asked } => return done(self.extra_node.leave(asked).await),
            Fault::KillExtraNode => {
                if let Err(why) = self.extra_node.kill() {
                    return done(Err(why));
                }
                self.held.push((until, Undo::StartExtraNode));
            }
        }
        Ok(Done::Yes)
    }

    fn kill(&mut self, until: Instant, regions: &[usize], with_postgres: bool) -> Result<()> {
        for region in regions {
            self.cluster.node(*region).kill9()?;
            self.held.push((until, Undo::Start(*region)));
        }
        for region in regions.iter().filter(|_| with_postgres) {
            let node = self.cluster.node(*region);
            let processes = postmaster::processes(&node.postgres_data());
            // The postmaster first, so that it does not restart the others.
            let _ = node.kill9_postgres();
            for pid in processes {
                let _ = kill(pid, Signal::SIGKILL);
            }
        }
        Ok(())
    }

    fn pause(&mut self, until: Instant, pids: Vec<Pid>) {
        for pid in &pids {
            let _ = kill(*pid, Signal::SIGSTOP);
        }
        self.held.push((until, Undo::Continue(pids)));
    }

    fn resume_all(&mut self) {
        for (_, undo) in &self.held {
            if let Undo::Continue(pids) = undo {
                resume(pids);
            }
        }
    }

    async fn cut(&mut self, until: Instant, which: impl Fn(usize, usize) -> bool) {
        self.links(until, which, LinkChange { cut: Some(true), ..Default::default() }).await;
    }

    /// Changes links.  The links of a node that does not answer stay as they are.
    async fn links(&mut self, until: Instant, which: impl Fn(usize, usize) -> bool, change: LinkChange) {
        self.held.push((until, Undo::Links));
        for (from, to) in self.pairs().filter(|(from, to)| which(*from, *to)) {
            self.set_link(from, to, &change).await;
        }
    }

    /// Returns whether the node has changed its link.
    async fn set_link(&self, from: usize, to: usize, change: &LinkChange) -> bool {
        let told = tokio::time::timeout(Duration::from_secs(2), self.cluster.set_link(from, to, change));
        self.cluster.node(from).running() && matches!(told.await, Ok(Ok(())))
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let regions = self.cluster.nodes().len();
        (0..regions * regions).map(move |i| (i / regions, i % regions)).filter(|(from, to)| from != to)
    }

    /// Heals all links; returns those that could not be healed, because their node does not answer.
    async fn heal_links(&self) -> Vec<(usize, usize)> {
        let mut left = Vec::new();
        for (from, to) in self.pairs() {
            let one_way_ms = Some(self.cluster.topology().rtt_ms(from, to) / 2.0);
            if !self.set_link(from, to, &LinkChange { one_way_ms, ..LinkChange::heal() }).await {
                left.push((from, to));
            }
        }
        left
    }

    async fn move_leader(&mut self, region: usize) -> Result<Done> {
        let name = self.cluster.node(region).region();
        let moving = self.cluster.move_leader(region, name);
        done(tokio::time::timeout(MOVING, moving).await.unwrap_or_else(|_| bail!("no answer")))
    }

    fn power_loss(&mut self, until: Instant, regions: &[usize]) -> Result<()> {
        for region in regions {
            self.disks[*region].freeze()?;
        }
        for region in regions {
            self.disks[*region].power_off()?;
        }
        self.kill(until, regions, true)?;
        for region in regions {
            self.disks[*region].power_on()?;
            self.disks[*region].free()?;
        }
        Ok(())
    }

    /// Fills a disk.  The node must log the reason and end, because it must not vote for what it cannot persist.  It is
    /// started again when the disk has space again.
    async fn full_disk(&mut self, region: usize, until: Instant) -> Result<Done> {
        // If it were started only now, it would find the disk full at its start.
        self.start(region)?;
        let node = self.cluster.node(region);
        self.disks[region].fill()?;
        self.held.push((until + NOTICES, Undo::Space(region)));
        self.held.push((until + NOTICES, Undo::Start(region)));
        let deadline = Instant::now() + NOTICES;
        while node.running() {
            if Instant::now() > deadline {
                // It had nothing to write, or there was room in files that it had allocated before.
                return Ok(Done::Yes);
            }
            tokio::time::sleep(POLL).await;
        }
        let said = node.log_tail(30);
        ensure!(
            said.contains("No space left on device") || said.contains("os error 28"),
            "the disk of {} is full; its node ended without saying so: {}",
            node.region(),
            node.log_tail(3)
        );
        Ok(Done::Yes)
    }

    /// Undoes the faults whose time is up.
    pub async fn undo_due(&mut self) -> Result<()> {
        let now = Instant::now();
        let (due, held) = std::mem::take(&mut self.held).into_iter().partition(|(until, _)| *until <= now);
        self.held = held;
        self.undo(due).await
    }

    async fn undo(&mut self, due: Vec<(Instant, Undo)>) -> Result<()> {
        let mut links = false;
        for (_, undo) in due {
            match undo {
                Undo::Start(region) => self.start(region)?,
                Undo::Continue(pids) => resume(&pids),
                Undo::Links => links = true,
                Undo::Space(region) => self.disks[region].free()?,
                Undo::StartExtraNode => self.extra_node.start()?,
            }
        }
        if links {
            // `heal_links` heals all links, so other faults of links end together with this one.
            self.held.retain(|(_, undo)| !matches!(undo, Undo::Links));
            // The links of a paused node are healed at the next rest.
            let _ = self.heal_links().await;
        }
        Ok(())
    }

    fn start(&self, region: usize) -> Result<()> {
        let node = self.cluster.node(region);
        if node.running() {
            return Ok(());
        }
        node.start()
    }

    /// Undoes all faults and waits until everything runs.  `Err`: something does not, which is a finding; the evidence
    /// is gathered.
    pub async fn heal(&mut self) -> Result<()> {
        let result = self.undo_all().await;
        if let Err(why) = &result {
            evidence::gather(&self.cluster, &format!("{why:#}")).await;
        }
        result
    }

    async fn undo_all(&mut self) -> Result<()> {
        let held = std::mem::take(&mut self.held);
        self.undo(held).await?;
        for clock in &self.clocks {
            clock.set(0)?;
        }
        // A node whose disk was full may be about to end, and has to be started again then.
        for start in 1.. {
            let ready = self.all_ready().await;
            if self.cluster.nodes().iter().all(Node::running) || start == STARTS {
                ready?;
                break;
            }
        }
        self.extra_node.reconcile().await
    }

    async fn all_ready(&self) -> Result<()> {
        for region in 0..self.cluster.nodes().len() {
            self.start(region)?;
        }
        // A node that was just started does not listen yet.
        let deadline = Instant::now() + ANSWERS;
        loop {
            let left = self.heal_links().await;
            if left.is_empty() {
                return self.cluster.wait_ready().await;
            }
            self.cluster.nodes().iter().try_for_each(Node::check_not_ended)?;
            ensure!(Instant::now() < deadline, "nodes do not answer: their links {left:?} cannot be healed");
            tokio::time::sleep(POLL).await;
        }
    }

    /// A random backend: of a client's session, or a background worker of the extension.
    async fn backend(&self, region: usize) -> Option<Pid> {
        let ask = async {
            let mut session =
                Session::open(&self.cluster.node(region).conninfo(), "set statement_timeout = '2s'").await.ok()?;
            session
                .number(
                    "select pid from pg_stat_activity where application_name = 'torture' and pid <> pg_backend_pid()
                         or backend_type like 'onetrip%' order by random() limit 1",
                )
                .await
                .ok()
        };
        let pid = tokio::time::timeout(Duration::from_secs(2), ask).await.ok()??;
        i32::try_from(pid).ok().map(Pid::from_raw)
    }
}

fn done(result: Result<()>) -> Result<Done> {
    match result {
        Ok(()) => Ok(Done::Yes),
        Err(why) => not_now(&format!("{why:#}")),
    }
}

fn not_now(why: &str) -> Result<Done> {
    Ok(Done::NotNow(why.to_string()))
}

fn resume(pids: &[Pid]) {
    for pid in pids {
        let _ = kill(*pid, Signal::SIGCONT);
    }
}
