//! `make fuzz`: runs LLVM's libFuzzer on the targets of `onetrip_lab::fuzz`.
//!
//! libFuzzer has one target for the life of a process.  So this program runs itself once for each target, with the
//! target's name in [`RUN`] and libFuzzer's arguments; libFuzzer in turn runs the program again when it merges inputs.
//! The program is built with the compiler's coverage counters (see the Makefile); without them libFuzzer ends with an
//! error.

use std::collections::HashSet;
use std::ffi::{c_char, c_int, c_uint, CString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::OnceLock;

use anyhow::{bail, ensure, Context, Result};
use clap::Parser;
use libfuzzer_sys as _;
use onetrip_lab::fuzz::{check, folder, inputs, targets, Counting, Target};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const RUN: &str = "ONETRIP_FUZZ_TARGET";
/// Longer inputs reach nothing new and are slower.
const INPUT_BYTES_MAX: usize = 8192;
/// How many inputs of a target are kept at most.
const KEPT_MAX: usize = 150;
const KEPT_BYTES_MAX: u64 = 16 << 10;
/// An input that takes longer is a failure.
const INPUT_SECONDS_MAX: u32 = 10;
/// The limit for the whole process; the limit for one input is much lower (`onetrip_lab::fuzz`).
const RSS_MB_MAX: u32 = 2048;

/// Search, guided by coverage, for bytes from outside that break the code that reads them
#[derive(Parser)]
struct Args {
    /// Seconds to run, shared by the targets
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only this target
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Run the target on this file only
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
    /// How many targets run at a time [default: one for each core]
    #[arg(long)]
    jobs: Option<usize>,
    /// Afterwards, put the few short inputs that reach the most into testdata/fuzz
    #[arg(long)]
    keep: bool,
    /// Folder for inputs that are found, failures and logs
    #[arg(long, value_name = "DIR", default_value = "target/fuzz")]
    work: PathBuf,
}

fn main() -> ExitCode {
    let done = match std::env::var(RUN) {
        Ok(name) => target(&name).and_then(run_libfuzzer),
        Err(_) => lead(&Args::parse()),
    };
    done.unwrap_or_else(|e| {
        eprintln!("fuzz: {e:#}");
        ExitCode::from(2)
    })
}

fn target(name: &str) -> Result<&'static Target> {
    let names = || targets().map(|t| t.name).collect::<Vec<_>>().join(", ");
    targets().find(|t| t.name == name).with_context(|| format!("there is no target {name}; there are: {}", names()))
}

fn lead(args: &Args) -> Result<ExitCode> {
    let chosen: Vec<&Target> = match &args.target {
        Some(name) => vec![target(name)?],
        None => targets().collect(),
    };
    if let Some(input) = &args.input {
        ensure!(input.is_file(), "{} is not a file", input.display());
        let status = Run::new(chosen[0], args)?.command([input.clone()]).status().context("start libFuzzer")?;
        return Ok(ExitCode::from(u8::from(!status.success())));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.unwrap_or(cores).clamp(1, chosen.len());
    let seconds = (args.seconds * jobs as u64).div_ceil(chosen.len() as u64);
    println!("{:18} {:>11} {:>9} {:>8} {:>7}", "target", "inputs", "a second", "edges", "corpus");
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || -> Result<()> {
        while let Some(target) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let run = Run::new(target, args)?;
            if seconds > 0 && !run.fuzz(seconds)? {
                failed.fetch_add(1, Ordering::Relaxed);
            } else if args.keep {
                run.keep()?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;
    Ok(ExitCode::from(u8::from(failed.into_inner() > 0)))
}

/// One target, and where its files are.
struct Run {
    target: &'static Target,
    program: PathBuf,
    seeds: PathBuf,
    found: PathBuf,
    log: PathBuf,
    /// The beginning of the names of inputs that fail.
    failures: String,
}

impl Run {
    fn new(target: &'static Target, args: &Args) -> Result<Run> {
        let place = |kind: &str| args.work.join(kind).join(target.name);
        let (seeds, found) = (place("seeds"), place("found"));
        for folder in [&seeds, &found, &args.work.join("failures"), &args.work.join("logs"), &folder(target)] {
            fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        }
        for (number, seed) in (target.seeds)().iter().enumerate() {
            fs::write(seeds.join(number.to_string()), seed).context("write a seed")?;
        }
        let failures = format!("{}-", place("failures").display());
        let program = std::env::current_exe().context("find this program")?;
        Ok(Run { target, program, seeds, found, log: place("logs").with_extension("log"), failures })
    }

    fn command(&self, args: impl IntoIterator<Item = PathBuf>) -> Command {
        let mut command = Command::new(&self.program);
        command.env(RUN, self.target.name).args(args);
        command.arg(format!("-timeout={INPUT_SECONDS_MAX}")).arg(format!("-rss_limit_mb={RSS_MB_MAX}"));
        command.arg(format!("-artifact_prefix={}", self.failures)).arg(format!("-max_len={INPUT_BYTES_MAX}"));
        command
    }

    /// The same as [`Run::command`], with all its output in the log.
    fn logged(&self, args: impl IntoIterator<Item = PathBuf>) -> Result<Command> {
        let log = fs::File::create(&self.log).with_context(|| format!("make {}", self.log.display()))?;
        let mut command = self.command(args);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    /// Fuzzes the target.  `false`: it found a failure, and has printed it.
    fn fuzz(&self, seconds: u64) -> Result<bool> {
        let mut command = self.logged([self.found.clone(), folder(self.target), self.seeds.clone()])?;
        command.arg(format!("-max_total_time={seconds}")).args(["-len_control=100", "-print_final_stats=1"]);
        let status = command.status().context("start libFuzzer")?;
        let log = String::from_utf8_lossy(&fs::read(&self.log)?).into_owned();
        let figure = |name: &str| {
            let at = log.rfind(name).map_or("", |at| &log[at + name.len()..]);
            at.split_whitespace().next().unwrap_or("?").to_string()
        };
        println!(
            "{:18} {:>11} {:>9} {:>8} {:>7}",
            self.target.name,
            figure("stat::number_of_executed_units:"),
            figure("stat::average_exec_per_sec:"),
            figure(" cov: "),
            figure(" corp: ").split('/').next().unwrap_or_default()
        );
        if status.success() {
            return Ok(true);
        }
        let told = ["panicked at", "bytes of memory", "ERROR: libFuzzer", "memory allocation of"];
        let lines: Vec<&str> = log.lines().collect();
        let from = lines.iter().position(|line| told.iter().any(|t| line.contains(t))).unwrap_or(0);
        lines[from..].iter().take(4).for_each(|line| println!("    {line}"));
        let Some(input) = log.rsplit_once("Test unit written to ").and_then(|(_, rest)| rest.lines().next()) else {
            bail!("libFuzzer ended with {status}: see {}", self.log.display())
        };
        println!("    the whole log: {}", self.log.display());
        println!("    run it again: make fuzz TARGET={} INPUT={input}", self.target.name);
        println!(
            "    once it is fixed, keep the input, under a name that says what it is, in {}",
            folder(self.target).display()
        );
        Ok(false)
    }

    /// Chooses the inputs to keep.  Those that somebody has given a name stay; the others are chosen anew.
    fn keep(&self) -> Result<()> {
        let (kept, none, reached) =
            (folder(self.target), self.found.with_extension("none"), self.log.with_extension("reached"));
        let _ = fs::remove_dir_all(&none);
        let _ = fs::remove_file(&reached);
        fs::create_dir_all(&none).with_context(|| format!("make {}", none.display()))?;
        let mut command = self.logged([none, kept.clone(), self.seeds.clone(), self.found.clone()])?;
        // libFuzzer writes all edges that each input reaches to a file, no matter how often it reaches them.
        command.args(["-merge=1", "-set_cover_merge=1", "-use_counters=0"]);
        let status = command.arg(format!("-merge_control_file={}", reached.display())).status();
        ensure!(
            status.is_ok_and(|status| status.success()),
            "libFuzzer could not compare inputs: see {}",
            self.log.display()
        );
        let account = fs::read_to_string(&reached).context("read what inputs reach")?;
        let chosen = choose(&account).context("read what inputs reach")?;
        let chosen = chosen.iter().map(|file| Ok((kept.join(file.file_name().expect("a file")), fs::read(file)?)));
        let chosen = chosen.collect::<Result<Vec<_>>>().context("read an input")?;
        for old in inputs(&kept)?.iter().filter(|file| is_hash(file)) {
            fs::remove_file(old).context("remove an old input")?;
        }
        for (file, input) in &chosen {
            fs::write(file, input).context("keep an input")?;
        }
        let bytes: usize = chosen.iter().map(|(_, input)| input.len()).sum();
        println!("{:18} keeps {} inputs, {bytes} bytes", self.target.name, chosen.len());
        Ok(())
    }
}

/// Chooses the inputs to keep from libFuzzer's account of which edges each one reaches.  The account consists of the
/// number of inputs, a line that does not matter here, their files, and lines that begin with a word; a line that
/// begins with `FT` names an input and its edges.
///
/// Inputs that libFuzzer has not named are seeds, or kept anyway.  Of the others, each step takes the one that adds the
/// most edges for its length.
fn choose(account: &str) -> Result<Vec<&Path>> {
    let mut lines = account.lines();
    let count = lines.next().and_then(|count| count.parse().ok()).context("it has no number of inputs")?;
    let files: Vec<&Path> = lines.by_ref().skip(1).take(count).map(Path::new).collect();
    let (mut reached, mut left) = (HashSet::new(), Vec::new());
    for line in lines.filter_map(|line| line.strip_prefix("FT ")) {
        let mut numbers = line.split(' ').map(str::parse);
        let file =
            numbers.next().and_then(Result::ok).and_then(|n: usize| files.get(n)).context("it has another input")?;
        let edges: HashSet<usize> = numbers.collect::<Result<_, _>>().context("it has no number of an edge")?;
        match is_hash(file) {
            true => left.push((*file, fs::metadata(file)?.len(), edges)),
            false => reached.extend(edges),
        }
    }
    let (mut chosen, mut bytes) = (Vec::new(), 0);
    while chosen.len() < KEPT_MAX {
        left.iter_mut().for_each(|(_, _, edges)| edges.retain(|edge| !reached.contains(edge)));
        left.retain(|(_, length, edges)| !edges.is_empty() && bytes + length <= KEPT_BYTES_MAX);
        // A file costs something in addition to its bytes.
        let value = |(_, length, edges): &(&Path, u64, HashSet<usize>)| edges.len() as u64 * 1_000_000 / (length + 32);
        let Some(best) = (0..left.len()).max_by_key(|n| value(&left[*n])) else { break };
        let (file, length, edges) = left.swap_remove(best);
        reached.extend(edges);
        bytes += length;
        chosen.push(file);
    }
    Ok(chosen)
}

/// Whether the file has a name as libFuzzer gives them.
fn is_hash(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.len() == 40 && name.bytes().all(|b| b.is_ascii_hexdigit())
}

extern "C" {
    fn LLVMFuzzerRunDriver(
        argc: *mut c_int,
        argv: *mut *mut *mut c_char,
        run: extern "C" fn(*const u8, usize) -> c_int,
    ) -> c_int;
    fn LLVMFuzzerMutate(data: *mut u8, size: usize, size_max: usize) -> usize;
}

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fn run_libfuzzer(target: &'static Target) -> Result<ExitCode> {
    let _ = TARGET.set(target);
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        tell(what);
        // libFuzzer keeps the input.
        std::process::abort();
    }));
    let args =
        std::env::args().map(CString::new).collect::<Result<Vec<_>, _>>().context("an argument with a zero byte")?;
    let mut pointers: Vec<*mut c_char> = args.iter().map(|arg| arg.as_ptr().cast_mut()).collect();
    let mut count = pointers.len() as c_int;
    pointers.push(std::ptr::null_mut());
    let mut pointers = pointers.as_mut_ptr();
    // SAFETY: like main's arguments, they end with a null pointer and live until the process ends.
    let code = unsafe { LLVMFuzzerRunDriver(&mut count, &mut pointers, run_input) };
    Ok(ExitCode::from(code as u8))
}

extern "C" fn run_input(data: *const u8, size: usize) -> c_int {
    // SAFETY: libFuzzer passes `size` bytes; the pointer may be null only if there are none.
    let bytes = if size == 0 { &[][..] } else { unsafe { std::slice::from_raw_parts(data, size) } };
    if let Err(why) = check(TARGET.get().expect("it was set first"), bytes) {
        panic!("{why}");
    }
    0
}

/// Makes libFuzzer's own changes to an input; then, half of the time, corrects its checksums.
#[no_mangle]
extern "C" fn LLVMFuzzerCustomMutator(data: *mut u8, size: usize, size_max: usize, seed: c_uint) -> usize {
    // SAFETY: the arguments are passed on unchanged.
    let size = unsafe { LLVMFuzzerMutate(data, size, size_max) };
    let mend = TARGET.get().and_then(|target| target.mend).filter(|_| seed % 2 == 0 && size > 0);
    if let Some(mend) = mend {
        // SAFETY: libFuzzer has room for `size_max` bytes there, of which it has just written `size`.
        mend(unsafe { std::slice::from_raw_parts_mut(data, size) });
    }
    size
}
