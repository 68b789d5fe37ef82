//! Makes a node's data folder anew: copies the PostgreSQL of another member, which goes on running.
//!
//! Invariants:
//! - The old folder stays in its place until the copy is whole and PostgreSQL has been started on it (`make_own.rs`),
//!   and only then the copy replaces it.  What belongs to the operator of this node (settings, who may connect) stays
//!   as it was here.
//! - A crash between any two steps loses neither the copy nor a folder that is to be kept: the next start finishes what
//!   was begun ([`finish`]).  Folders are renamed first and removed last, which may take minutes.
//!
//! | folder | what it is | what a start does with it |
//! |---|---|---|
//! | `postgres` | the data folder | |
//! | `postgres.unfinished` | a copy under way | removes it |
//! | `postgres.new` | a whole copy | puts it in its place if that is empty, else removes it |
//! | `postgres.keep` | the folder before the copy, to be kept | notes that it is kept, and renames it |
//! | `postgres.kept` | the last that was kept, for the operator | nothing |
//! | `postgres.gone` | to be removed | removes it |
//! | `postgres.gone.1` | the next of these, where that one cannot be removed | nothing |

use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::{pin, Pin};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{kill, Signal};
use onetrip_core::{LogIndex, NodeId, RegionId};
use serde::Serialize;
use tokio::sync::watch;

use super::base_backup::BESIDE_LOG;
use super::donor::{Donors, Door, DOOR_PORT};
use super::{
    file_error, is_there, leave_out_of_copy, may_be_there, processes_of, remove_folder, BaseBackup, CopyProgress,
    PostgresError, RebuildFrom, Server, SETTINGS_FILES,
};

/// What `pg_basebackup` says if it has not reached the donor's server.
const NOT_CONNECTED: &str = "connection to server";

/// `pg_basebackup`, once killed, leaves a process that ends when its connection does, and may make a file until then.
const TRIES_TO_REMOVE: u32 = 50;
const TRY_TO_REMOVE_EVERY: Duration = Duration::from_millis(100);

/// While the settings of a copy cannot be read, or PostgreSQL cannot be started on it.
const TRY_COPY_EVERY: Duration = if cfg!(test) { Duration::from_millis(100) } else { Duration::from_secs(10) };
/// A copy that does not start here is kept for so long, since it may be this machine that lacks something.
const TRY_TO_START_FOR: Duration = Duration::from_secs(3600);

/// What PostgreSQL says if it is the copy that is at fault.
const OF_THE_COPY: [&str; 3] = ["invalid page", "checkpoint record", "WAL ends before"];

/// A file in the node's folder.  Its modification time says when PostgreSQL was last copied because it could not apply
/// an entry.
pub const HEALED_FILE: &str = "healed";

/// In the node's folder: `postgres` was a link or on another disk when the server was last started.
const ELSEWHERE_FILE: &str = "postgres.elsewhere";

/// The orders to make the data folder anew, and the members from which it can be copied.
#[derive(Clone)]
pub struct Rebuild {
    pub orders: watch::Receiver<Option<RebuildFrom>>,
    pub donors: Arc<dyn Donors>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CopyState {
    pub node: NodeId,
    pub region: RegionId,
    #[serde(flatten)]
    pub progress: CopyProgress,
}

/// Copies from the first donor from which that succeeds.  Returns the index up to which the copy shows the log: what
/// the donor showed when the copy ended, which may be hours after the donor was chosen.  `None`: the order was
/// withdrawn before the copy was whole.
pub(super) async fn copy(
    server: &Server,
    donors: &Arc<dyn Donors>,
    order: Option<RebuildFrom>,
    withdrawn: impl Future<Output = ()>,
    mut report: impl FnMut(CopyState, Option<String>),
) -> Result<Option<LogIndex>, PostgresError> {
    if let Some(why) = in_the_way(&server.node_folder) {
        return Err(PostgresError::Refused(why));
    }
    let candidates = donors.choose(order.map(|order| order.at_least)).await.map_err(PostgresError::Refused)?;
    let mut withdrawn = pin!(withdrawn);
    let (mut last_error, mut has_begun, mut of_no_use) = (None, false, false);
    for donor in candidates {
        tracing::info!(donor = %donor.node, donor_region = %donor.region, "copying PostgreSQL's folder");
        let mut state = CopyState {
            node: donor.node,
            region: donor.region.clone(),
            progress: CopyProgress { done_kb: 0, total_kb: 0, tablespaces: 1, tablespaces_done: 0 },
        };
        report(state.clone(), None);
        let door = Door::open(&server.node_folder, Arc::clone(donors), donor.node)?;
        let backup = BaseBackup {
            bin_dir: server.bin_dir.clone(),
            socket_dir: server.node_folder.clone(),
            port: DOOR_PORT,
            to: server.unfinished(),
        };
        let copied = tokio::select! {
            biased;
            () = &mut withdrawn => None,
            copied = backup.run_within(BESIDE_LOG, |progress| {
                state.progress = progress;
                report(state.clone(), None);
            }) => Some(copied),
        };
        drop(door);
        match copied {
            Some(Ok(())) => {
                let may_wait = !could_serve(server, order);
                let tell = |why| report(state.clone(), Some(why));
                let shows = match try_to_make_own(server, may_wait, withdrawn.as_mut(), tell).await {
                    Ok(Made::Own(shows)) => shows,
                    Ok(Made::Withdrawn) => {
                        remove_unfinished(server).await?;
                        return Ok(None);
                    }
                    Ok(Made::OfNoUse(e)) => {
                        remove_unfinished(server).await?;
                        tracing::error!(donor = %donor.node, "the copy of PostgreSQL's folder cannot be started: {e}");
                        (last_error, of_no_use) = (Some((donor, e)), true);
                        continue;
                    }
                    Err(e) => {
                        remove_unfinished(server).await?;
                        return Err(PostgresError::Copy(e.to_string()));
                    }
                };
                let keep_old = order.is_some_and(|order| order.keep_old);
                let places = Places::of(server);
                beside("putting the copy in its place", move || {
                    swap(&places, keep_old, &mut || Ok(()))?;
                    // The copy is in its place; what is left does no harm but take room until the next copy.
                    places.remove_gone(&mut || Ok(())).map(|_| ())
                })
                .await
                .map_err(|e| PostgresError::Copy(e.to_string()))?;
                return Ok(Some(shows));
            }
            failed => {
                if let Err(e) = remove_unfinished(server).await {
                    tracing::warn!("what there is of a copy takes room until the next try: {e}");
                }
                let Some(Err(e)) = failed else { return Ok(None) };
                if matches!(e, PostgresError::NoRoom { .. }) {
                    // Others' are as large.
                    return Err(e);
                }
                tracing::warn!(donor = %donor.node, "cannot copy PostgreSQL's folder: {e}");
                has_begun |= matches!(&e, PostgresError::Step { reason, .. } if !reason.starts_with(NOT_CONNECTED));
                last_error = Some((donor, e));
            }
        }
    }
    Err(match last_error {
        Some((donor, e)) => {
            let why = format!("cannot copy the PostgreSQL of node {} in {}: {e}", donor.node, donor.region);
            match (of_no_use, has_begun) {
                (true, _) => PostgresError::OfNoUse(why),
                (false, true) => PostgresError::Copy(why),
                (false, false) => PostgresError::Refused(why),
            }
        }
        None => PostgresError::Refused("no member's PostgreSQL can be copied".into()),
    })
}

/// What has become of a whole copy that is not in its place yet.
enum Made {
    /// This node's own; PostgreSQL has been started on it, and shows the log up to this index.
    Own(LogIndex),
    OfNoUse(PostgresError),
    /// Nobody wants it any more.
    Withdrawn,
}

/// Makes a whole copy this node's own, and tries again while it is this machine that lacks something.  `may_wait`: also
/// if PostgreSQL does not start on it; `tell`: why it is not done yet.
async fn try_to_make_own(
    server: &Server,
    may_wait: bool,
    mut withdrawn: Pin<&mut impl Future<Output = ()>>,
    mut tell: impl FnMut(String),
) -> Result<Made, PostgresError> {
    let (mut said, mut give_up_at) = (String::new(), None);
    loop {
        let why = match own_settings(server).await {
            Ok(()) => match make_own(server).await {
                Ok(shows) => return Ok(Made::Own(shows)),
                Err(e) if may_wait && !is_of_the_copy(&e) => {
                    let now = Instant::now();
                    if now >= *give_up_at.get_or_insert(now + TRY_TO_START_FOR) {
                        return Ok(Made::OfNoUse(e));
                    }
                    not_started(server, &e)
                }
                Err(e) => return Ok(Made::OfNoUse(e)),
            },
            Err(PostgresError::Refused(why)) => why,
            Err(e) => return Err(e),
        };
        if said != why {
            tracing::error!("{why}");
            said.clone_from(&why);
        }
        tell(why);
        if tokio::time::timeout(TRY_COPY_EVERY, &mut withdrawn).await.is_ok() {
            return Ok(Made::Withdrawn);
        }
    }
}

/// Whether the old folder can at least be read while nothing is copied.
pub(super) fn could_serve(server: &Server, order: Option<RebuildFrom>) -> bool {
    order.is_some_and(|order| order.keep_old) && server.may_be_there()
}

/// Whether it is the copy that is at fault, and not what this machine has.
fn is_of_the_copy(e: &PostgresError) -> bool {
    match e {
        PostgresError::Step { reason, .. } => OF_THE_COPY.iter().any(|said| reason.contains(said)),
        // `pg_control` is damaged.
        PostgresError::Refused(_) => true,
        _ => false,
    }
}

fn not_started(server: &Server, e: &PostgresError) -> String {
    format!(
        "PostgreSQL is copied, but cannot be started on the copy in {}: {e}; put that right while this node runs, which \
         tries again every {} s, and makes another copy after {} minutes",
        server.unfinished().display(),
        TRY_COPY_EVERY.as_secs(),
        TRY_TO_START_FOR.as_secs() / 60
    )
}

/// Whether there is a PostgreSQL, or one that will be there again when its disk is mounted.
pub(crate) fn has_server(node_folder: &Path) -> bool {
    may_be_there(&node_folder.join("postgres/PG_VERSION")) || may_be_there(&node_folder.join(ELSEWHERE_FILE))
}

/// Notes whether the data folder, which is there, is elsewhere: when that disk is not mounted, the folder below it
/// looks like one of the node's own that is to be filled.
pub(super) fn note_place(node_folder: &Path) -> Result<(), PostgresError> {
    let note = node_folder.join(ELSEWHERE_FILE);
    // If it cannot be looked at now, the note stays as it is.
    let Ok(elsewhere) = is_elsewhere(node_folder) else { return Ok(()) };
    match (elsewhere, is_there(&note)?) {
        (true, false) => crate::disk::write_whole(&note, b"postgres is a link, or on a disk of its own\n")
            .map_err(|e| PostgresError::Refused(e.to_string())),
        (false, true) => fs::remove_file(&note).map_err(file_error("remove", &note)),
        _ => Ok(()),
    }
}

fn is_elsewhere(node_folder: &Path) -> io::Result<bool> {
    let found = match fs::symlink_metadata(node_folder.join("postgres")) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?,
    };
    Ok(found.is_symlink() || found.dev() != fs::metadata(node_folder)?.dev())
}

/// What cannot be looked at is not missing.
fn unknown(data: &Path, e: &io::Error) -> String {
    format!(
        "{} cannot be looked at ({e}), and no copy takes its place: mend what is in the way, or if its server is lost, move it \
         away, and another member's is copied",
        data.display()
    )
}

/// Why no copy can be renamed to the data folder.
pub(crate) fn in_the_way(node_folder: &Path) -> Option<String> {
    let (data, note) = (node_folder.join("postgres"), node_folder.join(ELSEWHERE_FILE));
    let looked = || Ok((data.join("PG_VERSION").try_exists()?, note.try_exists()?, is_elsewhere(node_folder)?));
    let (has_server, was_elsewhere, elsewhere) = match looked() {
        Ok(looked) => looked,
        Err(e) => return Some(unknown(&data, &e)),
    };
    if was_elsewhere && !has_server {
        return Some(format!(
            "there is no PostgreSQL in {}, which was a link or on a disk of its own: is that disk not mounted? If its server \
             is lost, remove {}, and another member's is copied",
            data.display(),
            note.display()
        ));
    }
    elsewhere.then(|| {
        format!(
            "{} is a symbolic link or on another disk than the node's folder, so a copy of another member's cannot take its \
             place: stop the node, and move the whole node's folder to that disk, or `postgres` into the node's folder",
            data.display()
        )
    })
}

/// Puts this node's own settings into the copy.  An error if PostgreSQL cannot read them there: they may include files
/// that the copy does not have, and as long as the old folder is in its place these are not lost.
async fn own_settings(server: &Server) -> Result<(), PostgresError> {
    let (data, unfinished, server) = (server.data(), server.unfinished(), server.clone());
    beside("reading the settings", move || {
        take_own_files(&data, &unfinished, &mut || Ok(()))?;
        leave_out_donors(&data, &unfinished)?;
        // What the donor's node has decided may be in it, and this node's is not there before the start.
        server.write_settings(&unfinished)?;
        let mut command = server.command_of_setting(&unfinished, "port");
        command.stdin(Stdio::null());
        let output = command.output().map_err(|source| PostgresError::Program { program: server.program("postgres"), source })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        Err(PostgresError::Refused(format!(
            "PostgreSQL is copied, but cannot read this node's settings in the copy: {said}: put right {}, or put what it \
             includes into {}; until then the old folder stays",
            data.join(SETTINGS_FILES[0]).display(),
            unfinished.display()
        )))
    })
    .await
}

/// See `make_own.rs`.  Returns the index up to which the copy shows the log.
async fn make_own(server: &Server) -> Result<LogIndex, PostgresError> {
    let (unfinished, server) = (server.unfinished(), server.clone());
    beside("recovering a copy", move || {
        let own = server.make_own(&unfinished)?;
        own.ended.iter().for_each(|what| tracing::warn!("the donor's alone, in the copy: {what}"));
        Ok(own.shows)
    })
    .await
}

/// Removes what there is of a copy that has failed.
async fn remove_unfinished(server: &Server) -> Result<(), PostgresError> {
    let unfinished = server.unfinished();
    beside("removing a copy", move || {
        // What an earlier life of the node has left recovering it.
        processes_of(&unfinished).into_iter().for_each(|pid| _ = kill(pid, Signal::SIGKILL));
        for _ in 1..TRIES_TO_REMOVE {
            match remove_folder(&unfinished) {
                Ok(()) => return Ok(()),
                Err(_) => std::thread::sleep(TRY_TO_REMOVE_EVERY),
            }
        }
        remove_folder(&unfinished)
    })
    .await
}

/// Does what may take a while, such as to remove a large folder.
async fn beside<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Result<T, PostgresError> + Send + 'static,
) -> Result<T, PostgresError> {
    let span = tracing::Span::current();
    let done = tokio::task::spawn_blocking(move || span.in_scope(work)).await;
    done.map_err(|e| PostgresError::Refused(format!("{what} failed: {e}")))?
}

/// Finishes what a crash has cut short, and removes what there is of a copy; to be called before the server is started.
/// An error is logged: it does no harm but take room until the next copy.
pub(super) async fn tidy(server: &Server) {
    let (places, unfinished) = (Places::of(server), server.unfinished());
    if let Err(e) = beside("finishing a copy", move || finish(&places, &mut || Ok(()))).await {
        tracing::warn!("{e}");
    }
    if unfinished.exists() {
        tracing::info!("removing a copy of PostgreSQL that was not finished: {}", unfinished.display());
        if let Err(e) = remove_unfinished(server).await {
            tracing::warn!("{e}");
        }
    }
}

/// What the folders are called; see above.
struct Places {
    node_folder: PathBuf,
    data: PathBuf,
    unfinished: PathBuf,
    new: PathBuf,
    keep: PathBuf,
    kept: PathBuf,
    gone: PathBuf,
    /// What earlier releases called the folder before the copy, whether it was to be kept or not.
    old: PathBuf,
}

/// Called before each change, so that a test can end there.
type Step<'a> = &'a mut dyn FnMut() -> Result<(), PostgresError>;

impl Places {
    fn of(server: &Server) -> Places {
        let named = |name: &str| server.node_folder.join(name);
        Places {
            node_folder: server.node_folder.clone(),
            data: server.data(),
            unfinished: server.unfinished(),
            new: named("postgres.new"),
            keep: named("postgres.keep"),
            kept: named("postgres.kept"),
            gone: named("postgres.gone"),
            old: named("postgres.old"),
        }
    }

    fn rename(&self, from: &Path, to: &Path, step: Step) -> Result<(), PostgresError> {
        step()?;
        fs::rename(from, to).map_err(file_error("rename", from))?;
        sync_folder(&self.node_folder)
    }

    /// Returns whether it is gone: somebody may have made a file in it his own, which must not hold up a copy.
    fn remove_gone(&self, step: Step) -> Result<bool, PostgresError> {
        if may_be_there(&self.gone) {
            step()?;
        }
        let result = remove_folder(&self.gone);
        if let Err(e) = &result {
            tracing::warn!("{e}");
        }
        Ok(result.is_ok())
    }

    /// A folder of which a part may have been removed has another name than one that is whole.
    fn discard(&self, folder: &Path, step: Step) -> Result<(), PostgresError> {
        if self.remove_gone(step)? {
            return self.rename(folder, &self.gone, step);
        }
        let names = (1..).map(|n| self.gone.with_extension(format!("gone.{n}")));
        let other = names.into_iter().find(|name| !name.exists()).expect("there are more names than folders");
        self.rename(folder, &other, step)?;
        tracing::warn!("{} takes room and is not needed any more: remove it by hand", other.display());
        Ok(())
    }
}

/// Puts the copy, which is whole, in the place of the old folder.  An old folder that is kept stays until another one
/// is kept.
fn swap(places: &Places, keep_old: bool, step: Step) -> Result<(), PostgresError> {
    let Places { data, unfinished, new, keep, old, .. } = places;
    finish(places, step)?;
    if !is_there(data)? && is_there(old)? {
        // A crash came between two renames of an earlier release.
        places.rename(old, data, step)?;
    }
    take_own_files(data, unfinished, step)?;
    sync_folder(unfinished)?;
    places.rename(unfinished, new, step)?;
    match (is_there(data)?, keep_old) {
        (true, true) => places.rename(data, keep, step)?,
        (true, false) => places.discard(data, step)?,
        (false, _) => {}
    }
    places.rename(new, data, step)?;
    settle(places, step)
}

fn take_own_files(data: &Path, unfinished: &Path, step: Step) -> Result<(), PostgresError> {
    for name in SETTINGS_FILES {
        let (own, copy) = (data.join(name), unfinished.join(name));
        if is_there(&own)? {
            step()?;
            fs::copy(&own, &copy).map_err(file_error("copy", &own))?;
            fs::File::open(&copy).and_then(|f| f.sync_all()).map_err(file_error("sync", &copy))?;
        }
    }
    Ok(())
}

/// Where this node has no settings of its own, the donor's are here, with what is for that server alone.
fn leave_out_donors(data: &Path, unfinished: &Path) -> Result<(), PostgresError> {
    for name in &SETTINGS_FILES[..2] {
        if is_there(&data.join(name))? {
            continue;
        }
        let left_out = leave_out_of_copy(&unfinished.join(name))?;
        if !left_out.is_empty() {
            tracing::warn!("left out of the donor's {name}, as that server's alone: {}", left_out.join(", "));
        }
    }
    Ok(())
}

/// What a crash has left of [`swap`] is done.
fn finish(places: &Places, step: Step) -> Result<(), PostgresError> {
    let Places { data, new, old, .. } = places;
    match (is_there(new)?, is_there(data)?) {
        (true, false) => places.rename(new, data, step)?,
        (true, true) => places.discard(new, step)?,
        (false, _) => {}
    }
    settle(places, step)?;
    if is_there(old)? && is_there(data)? {
        tracing::warn!(
            "{} is from a copy that an earlier release did not finish, and may be the only place of tables that this server \
             alone had: look into it, then remove it",
            old.display()
        );
    }
    places.remove_gone(step).map(|_| ())
}

/// Has the folder that is to be kept take the place of the last one that was.
fn settle(places: &Places, step: Step) -> Result<(), PostgresError> {
    let Places { keep, kept, .. } = places;
    if !is_there(keep)? {
        return Ok(());
    }
    write_healed(places);
    if is_there(kept)? {
        places.discard(kept, step)?;
    }
    places.rename(keep, kept, step)?;
    tracing::warn!("the data folder of the PostgreSQL that could not apply an entry is kept: {}", kept.display());
    Ok(())
}

/// Notes that PostgreSQL was copied now ([`HEALED_FILE`]).  This is done only once the copy is in its place, so that a
/// copy that a restart of the node cut short does not count, nor does an order that was withdrawn because the old
/// server got further by itself.
fn write_healed(places: &Places) {
    let file = places.node_folder.join(HEALED_FILE);
    if let Err(e) = fs::write(&file, "PostgreSQL was copied when this file was written\n") {
        tracing::warn!("cannot write {}, so PostgreSQL may be copied more than once an hour: {e}", file.display());
    }
}

/// A rename is durable once its folder is synced.
pub fn sync_folder(folder: &std::path::Path) -> Result<(), PostgresError> {
    fs::File::open(folder).and_then(|f| f.sync_all()).map_err(file_error("sync", folder))
}

#[cfg(test)]
mod tests {
    use super::super::{example, write_program, Supervisor};
    use super::*;

    /// As many changes as `put` and `finish` make at most.
    const SWAP_CHANGES: usize = 7;
    const FINISH_CHANGES: usize = 5;

    fn folder(path: &Path, which: &str) {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("pg_hba.conf"), which).unwrap();
        fs::write(path.join("PG_VERSION"), which).unwrap();
    }

    /// As the copy is put in its place outside of tests.
    fn put(places: &Places, keep_old: bool, step: Step) -> Result<(), PostgresError> {
        swap(places, keep_old, step)?;
        places.remove_gone(step).map(|_| ())
    }

    fn read(path: &Path, name: &str) -> Option<String> {
        fs::read_to_string(path.join(name)).ok()
    }

    fn which(path: &Path) -> Option<String> {
        read(path, "PG_VERSION")
    }

    /// A crash before the change with this number, counted from 0.
    fn crash_at(change: usize) -> impl FnMut() -> Result<(), PostgresError> {
        let mut left = change;
        move || {
            left = left.checked_sub(1).ok_or(PostgresError::Refused("crash".into()))?;
            Ok(())
        }
    }

    /// A crash also cuts short what removes a folder, which may have removed the file that says which one it is.
    fn is_crash(places: &Places, result: Result<(), PostgresError>) -> bool {
        let is_crash = match result {
            Ok(()) => false,
            Err(PostgresError::Refused(why)) if why == "crash" => true,
            Err(e) => panic!("{e}"),
        };
        if is_crash && places.gone.exists() {
            let _ = fs::remove_file(places.gone.join("PG_VERSION"));
        }
        is_crash
    }

    /// Goal: the operator's files outlive a copy, also one that an earlier release was interrupted at.
    #[test]
    fn the_operators_files_stay_and_a_kept_folder_is_replaced_by_the_next() {
        let node_folder = tempfile::tempdir().unwrap();
        let places = Places::of(&example(node_folder.path()));
        folder(&places.data, "own");
        for (round, keep_old) in [false, true, false, true, false].into_iter().enumerate() {
            folder(&places.unfinished, &format!("copy {round}"));
            if round == 2 {
                fs::rename(&places.data, &places.old).unwrap();
            }
            if round == 4 {
                // An operator has set the folder aside, and left these files in its place (docs/operations.md).
                fs::remove_file(places.data.join("PG_VERSION")).unwrap();
            }
            put(&places, keep_old, &mut || Ok(())).unwrap();
            assert_eq!(read(&places.data, "pg_hba.conf").unwrap(), "own", "round {round}");
            assert_eq!(which(&places.data), Some(format!("copy {round}")));
            assert!(!places.old.exists() && !places.gone.exists());
        }
        assert_eq!(which(&places.kept).unwrap(), "copy 2");
    }

    /// Goal: wherever a crash interrupts a copy's way into its place, and wherever others interrupt the starts that
    /// finish it, there is a whole data folder, and the folder that is to be kept is there.
    ///
    /// Method: a crash before each change that `put` makes, and after each of them one before each change that
    /// `finish` makes.  The last start is not interrupted.
    #[test]
    fn a_crash_loses_neither_the_copy_nor_what_is_to_be_kept() {
        let (mut crashes, mut in_place) = (0, 0);
        for (keep_old, kept_before, at, again_at) in cases() {
            let node_folder = tempfile::tempdir().unwrap();
            let places = Places::of(&example(node_folder.path()));
            let case = format!("keep {keep_old}, kept before {kept_before}, crashes at {at} and {again_at}");
            folder(&places.data, "own");
            folder(&places.unfinished, "copy");
            if kept_before {
                folder(&places.kept, "kept before");
            }
            if is_crash(&places, put(&places, keep_old, &mut crash_at(at))) {
                crashes += 1;
                let again = is_crash(&places, finish(&places, &mut crash_at(again_at)));
                assert!(at < SWAP_CHANGES && !(again && again_at == FINISH_CHANGES), "{case}");
                finish(&places, &mut || Ok(())).unwrap();
            }
            let copied = which(&places.data).as_deref() == Some("copy");
            in_place += usize::from(copied);
            assert!(copied || which(&places.data).as_deref() == Some("own"), "{case}");
            assert_eq!(read(&places.data, "pg_hba.conf").unwrap(), "own", "{case}");
            let kept = match (copied && keep_old, kept_before) {
                (true, _) => Some("own"),
                (false, true) => Some("kept before"),
                (false, false) => None,
            };
            assert_eq!(which(&places.kept).as_deref(), kept, "{case}");
            assert_eq!(node_folder.path().join(HEALED_FILE).exists(), copied && keep_old, "{case}");
            for left in [&places.new, &places.keep, &places.gone] {
                assert!(!left.exists(), "{case}: {}", left.display());
            }
            // The copy that was lost is made again.
            folder(&places.unfinished, "second copy");
            put(&places, false, &mut || Ok(())).unwrap();
            assert_eq!(which(&places.data).unwrap(), "second copy", "{case}");
            assert_eq!(which(&places.kept).as_deref(), kept, "{case}");
        }
        assert!(crashes > 100 && in_place > 100, "{crashes} crashes; after {in_place} the copy was in its place");
    }

    /// Goal: a copy that could not be put in its place is not begun.
    #[test]
    fn a_link_cannot_be_replaced_by_a_copy() {
        let node_folder = tempfile::tempdir().unwrap();
        let data = node_folder.path().join("postgres");
        assert_eq!(in_the_way(node_folder.path()), None);
        fs::create_dir(&data).unwrap();
        assert_eq!(in_the_way(node_folder.path()), None);
        fs::rename(&data, node_folder.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", &data).unwrap();
        assert!(in_the_way(node_folder.path()).unwrap().contains("is a symbolic link or on another disk"));
    }

    /// Goal: a file of the operator's that cannot be read is not lost with the folder that it is in.
    #[test]
    fn no_copy_takes_the_place_of_what_cannot_be_read() {
        let node_folder = tempfile::tempdir().unwrap();
        let places = Places::of(&example(node_folder.path()));
        folder(&places.data, "own");
        folder(&places.unfinished, "copy");
        let settings = places.data.join("postgresql.conf");
        // Nobody can read it, not even root.
        std::os::unix::fs::symlink(&settings, &settings).unwrap();
        assert!(put(&places, false, &mut || Ok(())).unwrap_err().to_string().contains("postgresql.conf"));
        assert_eq!(which(&places.data).unwrap(), "own");
        fs::remove_file(&settings).unwrap();
        put(&places, false, &mut || Ok(())).unwrap();
        assert_eq!(which(&places.data).unwrap(), "copy");
    }

    /// Goal: however the note of where the folder is comes to be written, nothing with the name of a copy is touched.
    #[test]
    fn a_note_is_no_copy() {
        let node_folder = tempfile::tempdir().unwrap();
        let path = |name: &str| node_folder.path().join(name);
        fs::create_dir(path("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", path("postgres")).unwrap();
        let names = ["unfinished", "new", "keep", "kept", "gone", "old"].map(|end| path(&format!("postgres.{end}")));
        names.iter().for_each(|name| fs::write(name, "other").unwrap());
        note_place(node_folder.path()).unwrap();
        assert!(path(ELSEWHERE_FILE).exists());
        names.iter().for_each(|name| assert_eq!(fs::read_to_string(name).ok().as_deref(), Some("other"), "{name:?}"));
    }

    /// Goal: while PostgreSQL cannot read this node's settings in the copy, the old folder is there, with what they
    /// include.
    #[tokio::test]
    async fn settings_that_cannot_be_read_in_the_copy_are_said_before_it_takes_the_place() {
        let node_folder = tempfile::tempdir().unwrap();
        let bin_dir = node_folder.path().join("bin");
        fs::create_dir(&bin_dir).unwrap();
        let script = "case \"$*\" in *-V*|*--version*) echo 'postgres (PostgreSQL) 15.20'; exit;; esac\n\
                      [ -f \"$4/conf.d\" ] || { echo \"FATAL: no $4/conf.d\" >&2; exit 1; }";
        write_program(&bin_dir.join("postgres"), script);
        let server = Server { bin_dir, ..example(node_folder.path()) };
        folder(&server.data(), "own");
        folder(&server.unfinished(), "copy");
        fs::write(server.data().join("postgresql.conf"), "include 'conf.d'").unwrap();
        let why = own_settings(&server).await.unwrap_err().to_string();
        assert!(why.contains("FATAL: no") && why.contains("until then the old folder stays"), "{why}");
        assert_eq!(which(&server.data()).unwrap(), "own");
        fs::write(server.unfinished().join("conf.d"), "").unwrap();
        own_settings(&server).await.unwrap();
        assert_eq!(read(&server.unfinished(), "postgresql.conf").unwrap(), "include 'conf.d'");
    }

    /// Goal: what cannot be removed, because somebody has made it his own, holds up no copy.
    #[test]
    fn what_cannot_be_removed_is_left_beside() {
        let node_folder = tempfile::tempdir().unwrap();
        let places = Places::of(&example(node_folder.path()));
        folder(&places.data, "own");
        // Nor can a folder be renamed to it.
        fs::write(&places.gone, "no folder").unwrap();
        for round in 0..2 {
            folder(&places.unfinished, &format!("copy {round}"));
            put(&places, false, &mut || Ok(())).unwrap();
            assert_eq!(which(&places.data), Some(format!("copy {round}")));
        }
        assert_eq!(fs::read_to_string(&places.gone).unwrap(), "no folder");
        let beside = |n: u32| which(&places.gone.with_extension(format!("gone.{n}")));
        assert_eq!((beside(1), beside(2)), (Some("own".into()), Some("copy 0".into())));
    }

    fn cases() -> impl Iterator<Item = (bool, bool, usize, usize)> {
        let flags = [(false, false), (false, true), (true, false), (true, true)].into_iter();
        let crashes = || (0..=SWAP_CHANGES).flat_map(|at| (0..=FINISH_CHANGES).map(move |again| (at, again)));
        flags.flat_map(move |(keep, kept)| crashes().map(move |(at, again)| (keep, kept, at, again)))
    }

    /// Goal: what an interrupted copy has written does not keep the server from starting on a full disk.
    #[tokio::test]
    async fn a_start_removes_an_unfinished_copy_and_finishes_a_whole_one() {
        let node_folder = tempfile::tempdir().unwrap();
        let server = example(node_folder.path());
        let places = Places::of(&server);
        // There is no such program as the server, which it finds out last.
        let start = || async { assert!(Supervisor::start_server(server.clone(), None).await.is_err()) };
        folder(&places.data, "own");
        folder(&places.unfinished, "half");
        start().await;
        assert!(!places.unfinished.exists());
        assert_eq!(which(&places.data).unwrap(), "own");
        fs::rename(&places.data, &places.keep).unwrap();
        folder(&places.new, "copy");
        start().await;
        assert_eq!((which(&places.data).unwrap(), which(&places.kept).unwrap()), ("copy".into(), "own".into()));
    }
}
