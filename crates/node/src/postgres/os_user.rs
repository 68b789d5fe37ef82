//! The operating system's user that the node and its PostgreSQL run as.
//!
//! PostgreSQL refuses to run as root, and nothing here needs root.  So a node that root starts switches to another user
//! before it opens, makes or starts anything.

use std::os::unix::fs::{chown, MetadataExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::unistd::{
    access, faccessat, getegid, geteuid, getgroups, initgroups, setegid, seteuid, setgid, setgroups, setuid,
    AccessFlags, User,
};

use super::{file_error, PostgresError};

/// The user that a node started by root switches to, unless told otherwise; PostgreSQL's packages create it.
pub const ROOT_BECOMES: &str = "postgres";

fn find(name: &str) -> Result<User, PostgresError> {
    let found = User::from_name(name)
        .map_err(|e| PostgresError::Refused(format!("cannot look up the user {name:?}: {e}")))?
        .ok_or_else(|| {
            PostgresError::Refused(format!("there is no user {name:?} on this machine; name one with --user"))
        })?;
    if found.uid.is_root() {
        return Err(PostgresError::Refused("PostgreSQL does not run as root: name another user with --user".into()));
    }
    Ok(found)
}

/// Makes `folder` if it is missing.  If this process is root, the folder must then belong to `user`, and that user must
/// reach it: one that is new or empty is given to that user, and any other is refused.
pub fn prepare_folder(folder: &Path, user: &str) -> Result<(), PostgresError> {
    let is_root = geteuid().is_root();
    let existed = folder.exists();
    std::fs::create_dir_all(folder).map_err(file_error("make the folder", folder))?;
    if !is_root {
        return Ok(());
    }
    let user = find(user)?;
    let prepared = hand_over(folder, &user, existed).and_then(|()| reaches(&user, folder));
    if prepared.is_err() && !existed {
        let _ = std::fs::remove_dir(folder);
    }
    prepared
}

fn hand_over(folder: &Path, user: &User, existed: bool) -> Result<(), PostgresError> {
    let owner = std::fs::metadata(folder).map_err(file_error("look at", folder))?.uid();
    if owner == user.uid.as_raw() {
        return Ok(());
    }
    let empty = !existed || std::fs::read_dir(folder).map_err(file_error("read", folder))?.next().is_none();
    if !empty {
        return Err(PostgresError::Refused(format!(
            "{} does not belong to the user {}: give it to that user (chown) or choose another folder",
            folder.display(),
            user.name
        )));
    }
    chown(folder, Some(user.uid.as_raw()), Some(user.gid.as_raw())).map_err(file_error("hand over", folder))
}

/// An error if `user` cannot reach the folder.  This process is root, before and after; it has one thread.
fn reaches(user: &User, folder: &Path) -> Result<(), PostgresError> {
    let failed =
        |e: Errno| PostgresError::Refused(format!("cannot find out what the user {} may read: {e}", user.name));
    let (root, group, groups) = (geteuid(), getegid(), getgroups().map_err(failed)?);
    let as_user = || {
        initgroups(&name_of(user), user.gid).and_then(|()| setegid(user.gid)).and_then(|()| seteuid(user.uid))?;
        Ok(faccessat(nix::fcntl::AT_FDCWD, folder, AccessFlags::R_OK | AccessFlags::X_OK, AtFlags::AT_EACCESS).is_ok())
    };
    let reached = as_user();
    seteuid(root).and_then(|()| setegid(group)).and_then(|()| setgroups(&groups)).map_err(failed)?;
    reached.map_err(failed)?.then_some(()).ok_or_else(|| out_of_reach(user, folder))
}

fn out_of_reach(user: &User, folder: &Path) -> PostgresError {
    PostgresError::Refused(format!(
        "the user {} cannot reach {}: let that user pass through the folders above it, or choose another folder",
        user.name,
        folder.display()
    ))
}

fn name_of(user: &User) -> std::ffi::CString {
    std::ffi::CString::new(user.name.as_str()).expect("it came from the system, in which names end with a zero byte")
}

/// If this process is root, it becomes `user` for good, with that user's groups, and it is an error if that user cannot
/// reach `folder`.  If it is not root, nothing happens.
pub fn become_user(user: &str, folder: &Path) -> Result<(), PostgresError> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let user = find(user)?;
    let failed =
        |what: &str, e: Errno| PostgresError::Refused(format!("cannot become the user {} ({what}: {e})", user.name));
    // The groups come first: once the process is no longer root, it cannot change them.
    initgroups(&name_of(&user), user.gid).map_err(|e| failed("initgroups", e))?;
    setgid(user.gid).map_err(|e| failed("setgid", e))?;
    setuid(user.uid).map_err(|e| failed("setuid", e))?;
    if setuid(nix::unistd::Uid::from_raw(0)).is_ok() {
        return Err(PostgresError::Refused(format!("became {} but could become root again", user.name)));
    }
    // The caller's working folder may be closed to this user, and programs that start there would fail.
    let _ = std::env::set_current_dir("/");
    access(folder, AccessFlags::R_OK | AccessFlags::X_OK).map_err(|_| out_of_reach(&user, folder))
}
