//! A disk for each node's folder: an ext4 image on a loop device, which can be full and can lose power.
//!
//! Power loss is a feature of ext4: `EXT4_IOC_SHUTDOWN` without flushing the journal stops the file system at once.
//! What was written but not synced is gone when it is mounted again, and what was synced is there.  [`self_test`] shows
//! both before any node relies on it.
//!
//! This needs root.  The mounts are in a mount namespace of the caller ([`unshare_mounts`]), so that they disappear
//! when its processes have ended.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use nix::fcntl::{fallocate, FallocateFlags};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use crate::postmaster::all_threads_stopped;

/// The image is sparse: only what is written takes space.
const IMAGE_BYTES: u64 = 3 << 30;
const UMOUNT_TIMEOUT: Duration = Duration::from_secs(20);
const FREEZE_TIMEOUT: Duration = Duration::from_secs(20);
const BALLAST: &str = ".ballast";

// include/uapi/linux/ext4.h (Linux 6.x); older kernels have it in fs/ext4/ext4.h.
nix::ioctl_read!(ext4_shutdown, b'X', 125, u32);
const NO_LOG_FLUSH: u32 = 2;

pub struct Disk {
    image: PathBuf,
    folder: PathBuf,
}

/// From now on only this process and its children see the mounts that they make.  Call it before any thread is started.
pub fn unshare_mounts() -> Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).context("enter a mount namespace")?;
    run("mount", &["--make-rprivate", "/"])
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program).args(args).output().with_context(|| format!("start {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

impl Disk {
    /// Makes a new image and mounts it over `folder`; the contents of the folder move into it.
    pub fn new(image: &Path, folder: &Path) -> Result<Disk> {
        let file = File::create(image).with_context(|| format!("make {}", image.display()))?;
        file.set_len(IMAGE_BYTES)?;
        // Without blocks reserved for root, and with a journal so small that it is often reused.
        run("mkfs.ext4", &["-q", "-F", "-m", "0", "-J", "size=32", "-E", "lazy_itable_init=1", path(image)?])?;
        let disk = Disk { image: image.to_path_buf(), folder: folder.to_path_buf() };
        let aside = folder.with_extension("aside");
        std::fs::rename(folder, &aside).with_context(|| format!("set {} aside", folder.display()))?;
        std::fs::create_dir(folder)?;
        disk.mount()?;
        // -T also copies the owner and the mode of the folder itself.
        run("cp", &["-a", "-T", path(&aside)?, path(folder)?])?;
        run("sync", &["-f", path(folder)?])?;
        std::fs::remove_dir_all(&aside)?;
        Ok(disk)
    }

    fn mount(&self) -> Result<()> {
        run("mount", &["-o", "loop,noatime", path(&self.image)?, path(&self.folder)?])
    }

    fn unmount(&self) -> Result<()> {
        let deadline = Instant::now() + UMOUNT_TIMEOUT;
        loop {
            let Err(why) = run("umount", &[path(&self.folder)?]) else { return Ok(()) };
            if Instant::now() > deadline {
                bail!("{why:#}; used by {:?}", self.users());
            }
            self.kill_users();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops every process that has the disk open, so that no sync is under way when the power fails: a sync that
    /// overlaps with the shutdown may succeed although ext4 has not written what it promised (it loses the conversion
    /// of unwritten extents).  A thread that waits for the disk stops when the disk has answered.
    pub fn freeze(&self) -> Result<()> {
        let deadline = Instant::now() + FREEZE_TIMEOUT;
        loop {
            let users = self.users();
            if users.iter().all(|pid| all_threads_stopped(*pid)) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "processes {users:?} do not stop");
            for pid in users {
                let _ = kill(pid, Signal::SIGSTOP);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Turns the power off: nothing more reaches the disk.  The processes still run; the caller kills them.
    pub fn power_off(&self) -> Result<()> {
        let folder = File::open(&self.folder).with_context(|| format!("open {}", self.folder.display()))?;
        let mut flags = NO_LOG_FLUSH;
        // SAFETY: an ioctl that reads one u32 through the pointer (the direction in its name is historical).
        unsafe { ext4_shutdown(folder.as_raw_fd(), &mut flags) }
            .with_context(|| format!("EXT4_IOC_SHUTDOWN on {}", self.folder.display()))?;
        Ok(())
    }

    /// After [`Disk::power_off`]: kills every process that still has the disk open, and mounts the disk as a boot
    /// would.
    pub fn power_on(&self) -> Result<()> {
        self.kill_users();
        self.unmount()?;
        self.mount()
    }

    /// The processes whose working folder is on the disk, or that have files of it open.
    fn users(&self) -> Vec<Pid> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let below = |link: PathBuf| std::fs::read_link(link).is_ok_and(|target| target.starts_with(&self.folder));
        let me = Pid::this();
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw))
            .filter(|pid| *pid != me)
            .filter(|pid| {
                let proc = PathBuf::from(format!("/proc/{pid}"));
                below(proc.join("cwd"))
                    || std::fs::read_dir(proc.join("fd")).is_ok_and(|fds| fds.flatten().any(|fd| below(fd.path())))
            })
            .collect()
    }

    fn kill_users(&self) {
        for pid in self.users() {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }

    /// Takes all the space that is left.
    pub fn fill(&self) -> Result<()> {
        let ballast = self.folder.join(BALLAST);
        let file = OpenOptions::new().create(true).append(true).open(&ballast).context("make the ballast")?;
        // Smaller and smaller pieces, until not even a block is left.
        let mut piece = 1i64 << 30;
        let mut size = file.metadata()?.len() as i64;
        while piece >= 4096 {
            match fallocate(&file, FallocateFlags::empty(), size, piece) {
                Ok(()) => size += piece,
                Err(nix::errno::Errno::ENOSPC) => piece /= 2,
                Err(e) => return Err(e).context("fill the disk"),
            }
        }
        Ok(())
    }

    pub fn free(&self) -> Result<()> {
        match std::fs::remove_file(self.folder.join(BALLAST)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).context("free the disk"),
            _ => Ok(()),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(why) = self.unmount() {
            eprintln!("torture: {why:#}");
        }
        // The loop device disappears with its last mount; the image still contains what was in the folder.
    }
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("the path {} is not valid UTF-8", path.display()))
}

/// Shows that power loss drops what was not synced and keeps what was.  The error says why disks cannot be used here.
pub fn self_test(folder: &Path) -> Result<()> {
    let mounted = folder.join("power-test");
    std::fs::create_dir_all(&mounted)?;
    let image = folder.join("power-test.ext4");
    let disk = Disk::new(&image, &mounted)?;
    let write = |name: &str, bytes: &[u8]| -> Result<File> {
        let mut file = OpenOptions::new().create(true).append(true).open(mounted.join(name))?;
        file.write_all(bytes)?;
        Ok(file)
    };
    write("synced", b"kept")?.sync_all()?;
    File::open(&mounted)?.sync_all()?;
    write("synced", b" and lost")?;
    write("unsynced", b"lost")?;
    disk.power_off()?;
    disk.power_on()?;
    let synced = std::fs::read(mounted.join("synced")).context("what was synced is gone")?;
    ensure!(synced == b"kept", "after a loss of power the file reads {:?}", String::from_utf8_lossy(&synced));
    let unsynced = std::fs::read(mounted.join("unsynced")).unwrap_or_default();
    ensure!(unsynced.is_empty(), "a loss of power does not drop what was not synced");
    disk.fill()?;
    let full = write("full", &[0; 1 << 16]).map(drop);
    ensure!(full.is_err(), "a full disk accepts more data");
    disk.free()?;
    write("full", &[0; 1 << 16])?;
    drop(disk);
    std::fs::remove_file(&image)?;
    std::fs::remove_dir(&mounted)?;
    Ok(())
}
