//! Device nodes for cages of a mcpmill that runs as root.
//!
//! Bubblewrap shows those of the host. Whoever is root outside owns them, and so could a caged program change
//! their modes, for everybody. It gets nodes of its own instead, one set for each cage, or it could still
//! close them to another.

use std::{
    fs::{self, OpenOptions, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use rustix::{
    fs::{CWD, FileType, Mode, makedev, mknodat},
    process::geteuid,
};
use tempfile::TempDir;

use super::beneath::remove_tree;

/// Name, major and minor number.
pub(super) const NODES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// What the name of a folder of nodes begins with; the process follows.
const PREFIX: &str = "mcpmill-dev-";

/// A folder of nodes; `None` when the host's own are safe, as we are not root, or none can be made here.
pub(super) fn made() -> Option<TempDir> {
    if !geteuid().is_root() {
        return None;
    }
    made_in(place()?).ok()
}

/// Whether programs are shown the host's nodes although it is root who owns them: we are root and may make none.
pub(super) fn are_the_hosts() -> bool {
    geteuid().is_root() && place().is_none()
}

/// The folder that nodes can be made in; tried once.
fn place() -> Option<&'static Path> {
    static PLACE: OnceLock<Option<PathBuf>> = OnceLock::new();
    PLACE.get_or_init(|| places().into_iter().find(|place| made_in(place).is_ok())).as_deref()
}

/// Removes what a mcpmill left that was killed while it started a cage.
pub(super) fn remove_orphans() {
    for entry in places().iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            remove_tree(&entry.path()).ok();
        }
    }
}

/// Where nodes may be made; many systems mount their folders for temporary files without devices.
fn places() -> [PathBuf; 4] {
    [PathBuf::from("/dev/shm"), std::env::temp_dir(), "/var/tmp".into(), "/dev".into()]
}

fn made_in(place: &Path) -> io::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix(&format!("{PREFIX}{}-", std::process::id())).tempdir_in(place)?;
    for (name, major, minor) in NODES {
        let node = folder.path().join(name);
        mknodat(CWD, &node, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(major, minor))?;
        // Whatever is masked.
        fs::set_permissions(&node, Permissions::from_mode(0o666))?;
    }
    OpenOptions::new().write(true).open(folder.path().join("null"))?;
    Ok(folder)
}
