//! What the node does about a server that does not start, or has to be copied: programs stand for PostgreSQL's.

use super::super::donor::{Boxed, Donor, Donors, Stream};
use super::super::{example, write_program};
use super::*;
use onetrip_core::RegionId;
use std::path::PathBuf;
use tempfile::TempDir;

const VERSION: &str = "case \"$*\" in *-V*|*--version*) echo 'postgres (PostgreSQL) 15.20'; exit;; esac\n";
/// Stands for a PostgreSQL that does not start.
const NONSENSE: &str = "echo 'FATAL:  this is nonsense' >&2; exit 1";

struct OneDonor;

impl Donors for OneDonor {
    fn choose(&self, _: Option<LogIndex>) -> Boxed<'_, Result<Vec<Donor>, String>> {
        let donor = Donor { node: onetrip_core::NodeId(1), region: RegionId::from("a") };
        Box::pin(async { Ok(vec![donor]) })
    }

    fn connect(&self, _: onetrip_core::NodeId) -> Boxed<'_, std::io::Result<Box<dyn Stream>>> {
        Box::pin(async { Err(std::io::ErrorKind::ConnectionRefused.into()) })
    }
}

/// A node's folder, and the server in it.
struct Case {
    folder: TempDir,
    server: Server,
}

impl Case {
    /// The script says what the program does, but for its version.
    fn new(postgres: &str) -> Case {
        let folder = tempfile::tempdir().unwrap();
        let bin_dir = folder.path().join("bin");
        std::fs::create_dir(&bin_dir).unwrap();
        let server = Server { bin_dir, ..example(folder.path()) };
        let case = Case { folder, server };
        case.program("postgres", &format!("{VERSION}{postgres}"));
        case
    }

    /// It runs in the node's folder.
    fn program(&self, name: &str, script: &str) {
        let script = format!("cd '{}'\n{script}", self.folder.path().display());
        write_program(&self.server.bin_dir.join(name), &script);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Empty: it is not there.
    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn make_data(&self) {
        std::fs::create_dir(self.server.data()).unwrap();
        self.write("postgres/PG_VERSION", "15\n");
    }

    fn keeper(&self, state: Arc<Mutex<PostgresState>>) -> Keeper {
        let (_lock, server) = (lock_folder(&self.server).unwrap(), self.server.clone());
        Keeper { _lock, server, state, rebuild: None, copied: Mutex::default(), given_up: Mutex::default() }
    }

    async fn start(&self, order: Option<RebuildFrom>) -> Run {
        let (orders, ordered) = watch::channel(order);
        let rebuild = Rebuild { orders: ordered, donors: Arc::new(OneDonor) };
        let supervisor = Supervisor::start_server(self.server.clone(), Some(rebuild)).await.unwrap();
        Run { supervisor, orders }
    }
}

struct Run {
    supervisor: Supervisor,
    orders: watch::Sender<Option<RebuildFrom>>,
}

impl Run {
    async fn until(&self, what: &str, done: impl Fn(PostgresState) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done(self.supervisor.state()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.supervisor.state());
            tokio::time::sleep(POLL_STARTING).await;
        }
    }

    async fn until_it_says(&self, problem: &str) {
        self.until(problem, |state| state.problem.is_some_and(|said| said.contains(problem))).await;
    }
}

fn order(at_least: u64, keep_old: bool) -> Option<RebuildFrom> {
    Some(RebuildFrom { at_least: LogIndex(at_least), keep_old })
}

/// Goal: a database that is larger than the disk neither fills it nor is copied again every few seconds.
#[tokio::test]
async fn a_copy_that_does_not_fit_is_stopped_and_removed_and_the_state_says_so() {
    let case = Case::new("");
    // A petabyte.
    let progress = "0/1099511627776 kB (0%), 0/1 tablespace";
    let copy = format!("mkdir \"$2\"; touch \"$2/PG_VERSION\" made; echo '{progress}' >&2; exec sleep 600");
    case.program("pg_basebackup", &copy);
    let run = case.start(None).await;
    let is_removed = || !case.server.unfinished().try_exists().unwrap();
    run.until("there is no room", |state| {
        let problem = state.problem.unwrap_or_default();
        // It is made and removed again with each try.
        problem.contains("1073741824 MiB and") && problem.contains("for the log") && is_removed()
    })
    .await;
    assert!(case.path("made").exists());
    assert_eq!(run.supervisor.state().state, ServerState::Copying);
    run.supervisor.stop().await;
}

/// Goal: the mount point of a disk that is not mounted is not taken for a data folder that is to be copied.
/// Method: a link stands for the mounted disk.
#[tokio::test]
async fn a_folder_on_another_disk_is_not_copied_while_that_disk_is_not_mounted() {
    let case = Case::new("exit 1");
    case.program("pg_basebackup", "touch copied; exit 1");
    std::fs::create_dir(case.path("disk")).unwrap();
    case.write("disk/PG_VERSION", "15\n");
    let data = case.server.data();
    std::os::unix::fs::symlink(case.path("disk"), &data).unwrap();
    let copied = || case.path("copied").exists();
    let says = async |problem: &str| {
        let run = case.start(None).await;
        run.until(problem, |state| {
            assert!(!copied(), "a copy was begun: {state:?}");
            state.problem.is_some_and(|said| said.contains(problem))
        })
        .await;
        run.supervisor.stop().await;
    };
    says("exit status: 1").await;
    std::fs::remove_file(&data).unwrap();
    std::fs::create_dir(&data).unwrap();
    says("is that disk not mounted?").await;
    std::fs::remove_file(case.path("postgres.elsewhere")).unwrap();
    let run = case.start(None).await;
    run.until("a copy is begun", |_| copied()).await;
    run.supervisor.stop().await;
}

/// Goal: a data folder that cannot be looked at is not taken for one that is missing, and does not end the node.
/// Method: what nobody can look at, not even root; with and without an order to make it anew.
#[tokio::test]
async fn a_folder_that_cannot_be_looked_at_is_not_replaced_by_a_copy() {
    for (is_folder, order) in [(false, None), (false, order(1, false)), (true, None), (true, order(1, false))] {
        let case = Case::new(NONSENSE);
        case.program("pg_basebackup", "touch copied; exit 1");
        let problem = if is_folder {
            std::fs::create_dir(case.server.data()).unwrap();
            std::os::unix::fs::symlink("PG_VERSION", case.path("postgres/PG_VERSION")).unwrap();
            "nonsense"
        } else {
            case.write("postgres", "");
            "Not a directory"
        };
        let run = case.start(order).await;
        run.until("it is tried again", |state| {
            assert!(!case.path("copied").exists(), "a copy was begun: {state:?}");
            state.restarts > 2 && state.problem.is_some_and(|said| said.contains(problem))
        })
        .await;
        run.supervisor.stop().await;
    }
}

/// Goal: settings that PostgreSQL cannot start with take the region's rows away, not its vote.
#[tokio::test]
async fn a_server_that_does_not_start_is_tried_again() {
    let case = Case::new(NONSENSE);
    case.make_data();
    let supervisor = Supervisor::start_server(case.server.clone(), None).await.unwrap();
    let run = Run { supervisor, orders: watch::channel(None).0 };
    run.until("it is tried again", |PostgresState { state, restarts, problem, .. }| {
        state == ServerState::Restarting && restarts > 1 && problem.is_some_and(|said| said.contains("nonsense"))
    })
    .await;
    run.supervisor.stop().await;
}

/// Goal: a majority that is lost while the server is being started shows in it as soon as it is ready.  Method:
/// what the node does between writing the settings and the start of the process, with one that a SIGHUP ends.
#[tokio::test]
async fn a_server_that_was_being_started_learns_that_it_is_to_look_read_only() {
    let case = Case::new("");
    let server = case.server.clone();
    std::fs::create_dir(server.data()).unwrap();
    let state = Arc::new(Mutex::new(PostgresState::of(&server, ServerState::Restarting)));
    let (stop, _) = oneshot::channel();
    let task = tokio::spawn(async {});
    let supervisor = Supervisor { state: Arc::clone(&state), server: server.clone(), stop, task };
    let keeper = case.keeper(state);
    server.write_settings(&server.data()).unwrap();
    supervisor.look_read_only(true).unwrap();
    // Whoever runs the tests may ignore SIGHUP, and children would too; one that is handled is theirs again.
    let _handled = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).unwrap();
    let mut child = Command::new("sleep").arg("600").kill_on_drop(true).spawn().unwrap();
    let pid = Pid::from_raw(child.id().unwrap() as i32);
    keeper.set(ServerState::Starting, Some(pid), None);
    case.write("postgres/postmaster.pid", &format!("{pid}\n\n\n\n\n\n\nready\n"));
    assert!(keeper.ready(&Running { pid, child: None, log_from: 0, since: Instant::now() }));
    let settings = case.read("postgres/onetrip.conf");
    assert!(settings.contains("default_transaction_read_only = on\n"), "{settings}");
    let ended = std::os::unix::process::ExitStatusExt::signal(&child.wait().await.unwrap());
    assert_eq!(ended, Some(Signal::SIGHUP as i32));
}

/// Goal: a copy that is not wanted any more is not waited for, and the old server is started.
#[tokio::test]
async fn a_withdrawn_order_ends_the_copy() {
    let case = Case::new("");
    case.program("pg_basebackup", "mkdir \"$2\"; exec sleep 600");
    case.make_data();
    let is_copying = || case.server.unfinished().exists();
    let run = case.start(order(1, true)).await;
    run.until("it is being copied", |_| is_copying()).await;
    run.orders.send(None).unwrap();
    run.until("it is started", |state| state.state != ServerState::Copying && !is_copying()).await;
    run.supervisor.stop().await;
}

/// A server that writes to `served` with each start; copies of it write to `copies`, and show what is in `shows`.
/// Single-user mode fails with the text in `says`, if that is there.
fn with_programs() -> Case {
    let case = Case::new(
        "case \"$*\" in\n\
         *--single*) cat says >&2 && exit 1; echo \"onetrip row 3:$(cat shows)\"; exit;;\n\
         *-C*) exit;;\n\
         esac\n\
         cat postgres/PG_VERSION >> served\n\
         # As PostgreSQL does, whatever signals it was started without.\n\
         exec perl -e '$SIG{INT} = $SIG{QUIT} = sub { exit }; sleep 600'",
    );
    case.program("pg_basebackup", "mkdir \"$2\"; echo copy > \"$2/PG_VERSION\"; echo copy >> copies");
    case.program(
        "pg_controldata",
        "for name in 'Maximum data alignment' 'Database block size' 'Maximum length of identifiers' \
         'Maximum columns in an index' 'Maximum size of a TOAST chunk' 'Size of a large-object chunk' \
         'Float8 argument passing' 'max_prepared_xacts setting'; do echo \"$name:  8\"; done",
    );
    case
}

/// Goal: what this machine lacks does not have a database copied again and again; what is wrong in a copy does.
#[tokio::test]
async fn a_copy_waits_for_what_its_start_lacks() {
    let case = with_programs();
    case.write("says", "PANIC:  could not locate a valid checkpoint record\n");
    let run = case.start(None).await;
    run.until("it is copied again", |_| case.read("copies").lines().count() > 1).await;
    case.write("says", "FATAL:  could not access file \"pg_cron\"\n");
    let says_why = |state: PostgresState| {
        state.problem.is_some_and(|said| said.contains("on the copy") && said.contains("pg_cron"))
    };
    run.until("it says why it is not started", says_why).await;
    let copies = case.read("copies");
    // Some tries.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(says_why(run.supervisor.state()) && case.server.unfinished().exists());
    std::fs::remove_file(case.path("says")).unwrap();
    run.until("it is started", |_| case.read("served") == "copy\n").await;
    assert_eq!(case.read("copies"), copies);
    run.supervisor.stop().await;
}

/// Goal: a copy of hundreds of gigabytes is not made again for an order that it meets, whether that came while it was
/// made or before its server could say so.
#[tokio::test]
async fn a_copy_that_shows_enough_at_its_end_is_the_last() {
    let case = with_programs();
    case.program(
        "pg_basebackup",
        "mkdir \"$2\"; echo copy >> copies; while [ ! -e shows ]; do sleep 0.1; done; echo copy > \"$2/PG_VERSION\"",
    );
    case.make_data();
    let run = case.start(order(1, false)).await;
    run.until("it is being copied", |_| !case.read("copies").is_empty()).await;
    run.orders.send(order(7, false)).unwrap();
    case.write("shows", "8");
    run.until("the copy is started", |_| case.read("served") == "copy\n").await;
    run.orders.send(order(8, false)).unwrap();
    // It would begin at once.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((case.read("copies"), case.read("served")), ("copy\n".into(), "copy\n".into()));
    case.write("shows", "9");
    run.orders.send(order(9, false)).unwrap();
    run.until("it is copied again", |_| case.read("served") == "copy\ncopy\n").await;
    assert_eq!(case.read("copies"), "copy\ncopy\n");
    run.supervisor.stop().await;
}

/// Goal: a region that stands still and can be read is not down for copies that cannot be started, nor if the order
/// is renewed.
#[tokio::test]
async fn a_copy_that_cannot_be_started_does_not_take_the_place_of_the_old_folder() {
    const WHY: &str = "FATAL:  this copy is nonsense";
    let case = with_programs();
    case.write("says", WHY);
    case.make_data();
    let run = case.start(order(1, true)).await;
    run.until("the old server is started", |_| case.read("served") == "15\n").await;
    let pid = run.supervisor.state().pid.unwrap();
    case.write("postgres/postmaster.pid", &format!("{pid}\n\n\n\n\n\n\nready\n"));
    run.until_it_says(WHY).await;
    assert!(!case.server.unfinished().exists() && !case.path("postgres.kept").exists());
    run.orders.send(None).unwrap();
    run.until("nothing is to be copied", |state| state.problem.is_none()).await;
    run.orders.send(order(1, true)).unwrap();
    run.until_it_says(WHY).await;
    assert_eq!(run.supervisor.state().pid, Some(pid));
    assert_eq!(case.read("copies"), "copy\n".repeat(3));
    assert_eq!(case.read("served"), "15\n");
    // Another one is carried out.
    run.orders.send(order(2, true)).unwrap();
    run.until("it is copied", |_| case.read("copies").lines().count() > 3).await;
    run.supervisor.stop().await;
}

/// Goal: what keeps the log from being shortened is not tried, and logged, ten times a second.
#[tokio::test]
async fn a_log_that_cannot_be_shortened_is_left_alone_for_a_while() {
    let case = Case::new("");
    let server = &case.server;
    std::fs::File::create(server.log()).unwrap().set_len(65 << 20).unwrap();
    let in_the_way = case.path("postgres.log.1");
    std::fs::create_dir_all(in_the_way.join("x")).unwrap();
    let keeper = case.keeper(Arc::new(Mutex::new(PostgresState::of(server, ServerState::Ready))));
    let began = Instant::now();
    let mut trim_at = began;
    keeper.trim_log(&mut trim_at).await;
    assert!(trim_at >= began + TRIM_LOG_AGAIN_AFTER);
    std::fs::remove_dir_all(&in_the_way).unwrap();
    keeper.trim_log(&mut trim_at).await;
    assert!(server.log_end() > 0, "its time has not come");
    trim_at = began;
    keeper.trim_log(&mut trim_at).await;
    assert!(server.log_end() == 0 && in_the_way.is_file());
}

#[test]
fn a_copy_that_had_begun_is_tried_again_after_minutes_and_any_other_after_seconds() {
    let no_room = PostgresError::NoRoom { folder: "/".into(), needs_bytes: 1, log_bytes: 1 };
    let longest = |e: &PostgresError| (0..30).fold(BACKOFF_MIN, |backoff, _| longer(backoff, e));
    assert_eq!(longest(&no_room), COPY_BACKOFF_MAX);
    assert_eq!(longest(&PostgresError::Copy("it broke off".into())), COPY_BACKOFF_MAX);
    assert_eq!(longest(&PostgresError::Refused("no donor".into())), BACKOFF_MAX);
    assert_eq!(longer(BACKOFF_MIN, &no_room), 2 * BACKOFF_MIN);
}
