//! Folders that a program writes to while we look: nothing here follows a link or goes by a path, so that
//! what it puts in the place of a folder leads nowhere else.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, chmod, fchmod, fstat, openat, renameat, statat, unlinkat},
    io::Errno,
    path::Arg,
};

/// Folders within folders that are looked into; nothing that serves a purpose is deeper.
const DEEPEST: usize = 100;
/// Every file counts as at least this much where no more is said.
const LEAST_BLOCK: u64 = 4096;
/// Reading, writing and entering, for the owner.
const OURS: u32 = 0o700;

/// Bytes a folder takes; 0 when there is none. A folder that was closed to us is opened again, it is ours.
/// `None` when one stays closed or is too deep: what it holds is hidden.
pub(crate) fn disk_usage(folder: &Path) -> Option<u64> {
    disk_usage_within(folder, LEAST_BLOCK, u64::MAX)
}

/// Like [`disk_usage`], with every file counted as at least `least` bytes, and given up as soon as there are
/// more than `most`.
pub(super) fn disk_usage_within(folder: &Path, least: u64, most: u64) -> Option<u64> {
    let mut walk = Walk { least, most, sum: 0 };
    match opened(CWD, folder) {
        Ok(folder) => walk.folder(folder, 0)?,
        Err(Errno::NOENT) => {}
        Err(Errno::NOTDIR | Errno::LOOP) => {
            statat(CWD, folder, AtFlags::SYMLINK_NOFOLLOW).ok().and_then(|meta| walk.add(&meta))?;
        }
        Err(_) => return None,
    }
    Some(walk.sum)
}

struct Walk {
    least: u64,
    most: u64,
    sum: u64,
}

impl Walk {
    fn folder(&mut self, folder: OwnedFd, depth: usize) -> Option<()> {
        self.add(&fstat(&folder).ok()?)?;
        let mut folder = Dir::new(folder).ok()?;
        while let Some(Ok(entry)) = folder.read() {
            let name = entry.file_name();
            if is_itself(name) {
                continue;
            }
            let here = folder.fd().ok()?;
            let Ok(meta) = statat(here, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if FileType::from_raw_mode(meta.st_mode) != FileType::Directory {
                self.add(&meta)?;
                continue;
            }
            if depth == DEEPEST {
                return None;
            }
            match opened(here, name) {
                Ok(inner) => self.folder(inner, depth + 1)?,
                // Gone meanwhile, or something else is there now.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(_) => return None,
            }
        }
        Some(())
    }

    /// `None` once there is more than anybody wants to know.
    fn add(&mut self, meta: &Stat) -> Option<()> {
        let bytes = u64::try_from(meta.st_blocks).unwrap_or_default() * 512;
        self.sum = self.sum.saturating_add(bytes.max(self.least));
        (self.sum <= self.most).then_some(())
    }
}

fn is_itself(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// Opens a folder, and no link to one. Should it be closed to us, it is opened up first: that very folder,
/// whatever bears its name by then.
fn opened(at: impl AsFd, name: impl Arg + Copy) -> rustix::io::Result<OwnedFd> {
    let folder = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(&at, name, folder | OFlags::RDONLY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let held = openat(&at, name, folder | OFlags::PATH, Mode::empty())?;
            chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), Mode::from_raw_mode(OURS))?;
            openat(&held, c".", folder | OFlags::RDONLY, Mode::empty())
        }
        opened => opened,
    }
}

/// Removes a folder whatever a program has done to it: folders it has closed are opened first, and those
/// nested without end are taken apart.
///
/// # Errors
/// It is still there.
pub fn remove_tree(folder: &Path) -> io::Result<()> {
    let root = match opened(CWD, folder) {
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return std::fs::remove_file(folder),
        root => root?,
    };
    let mut removal = Removal { root: root.try_clone()?, aside: Vec::new(), made: 0 };
    removal.empty(root, 0)?;
    while let Some(name) = removal.aside.pop() {
        let inner = opened(&removal.root, name.as_str())?;
        removal.empty(inner, 1)?;
        unlinkat(&removal.root, name.as_str(), AtFlags::REMOVEDIR)?;
    }
    std::fs::remove_dir(folder)
}

struct Removal {
    root: OwnedFd,
    /// Folders that were too deep, now in the root.
    aside: Vec<String>,
    made: usize,
}

impl Removal {
    fn empty(&mut self, folder: OwnedFd, depth: usize) -> io::Result<()> {
        let mode = fstat(&folder)?.st_mode;
        if mode & OURS != OURS {
            fchmod(&folder, Mode::from_raw_mode(OURS))?;
        }
        let mut folder = Dir::new(folder)?;
        while let Some(entry) = folder.read() {
            let entry = entry?;
            let (name, here) = (entry.file_name(), folder.fd()?);
            // What was put aside from below is emptied when it is its turn.
            if is_itself(name) || depth == 0 && self.aside.iter().any(|aside| aside.as_bytes() == name.to_bytes()) {
                continue;
            }
            match unlinkat(here, name, AtFlags::empty()) {
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(Errno::NOENT) | Ok(()) => continue,
                Err(error) => return Err(error.into()),
            }
            let inner = opened(here, name)?;
            if depth == DEEPEST {
                // To be moved it must be writable.
                fchmod(&inner, Mode::from_raw_mode(OURS))?;
                self.put_aside(here, name)?;
                continue;
            }
            self.empty(inner, depth + 1)?;
            unlinkat(here, name, AtFlags::REMOVEDIR)?;
        }
        Ok(())
    }

    fn put_aside(&mut self, at: impl AsFd, name: &CStr) -> io::Result<()> {
        loop {
            self.made += 1;
            let aside = format!(".mcpmill-removes-{}", self.made);
            match renameat(&at, name, &self.root, aside.as_str()) {
                Ok(()) => self.aside.push(aside),
                // A program has thought of the same name.
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => continue,
                Err(error) => return Err(error.into()),
            }
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
        sync::atomic::{AtomicBool, Ordering},
    };

    use rustix::fs::{RenameFlags, mkdirat, renameat_with};

    use super::*;

    fn close(path: &Path) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn empty_files_count() {
        let folder = tempfile::tempdir().unwrap();
        let before = disk_usage(folder.path()).unwrap();
        for i in 0..10 {
            fs::write(folder.path().join(i.to_string()), "").unwrap();
        }
        assert!(disk_usage(folder.path()).unwrap() >= before + 10 * LEAST_BLOCK);
        assert_eq!(disk_usage_within(folder.path(), 1 << 20, u64::MAX), Some(11 << 20));
        assert_eq!(disk_usage_within(folder.path(), 1 << 20, 8 << 20), None);
        assert_eq!(disk_usage(&folder.path().join("absent")), Some(0));
        assert_eq!(disk_usage(&folder.path().join("1")), Some(LEAST_BLOCK));
    }

    #[test]
    fn links_lead_nowhere() {
        let root = tempfile::tempdir().unwrap();
        let (inside, outside) = (root.path().join("inside"), root.path().join("outside"));
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("big"), vec![1; 1 << 20]).unwrap();
        symlink(&outside, inside.join("link")).unwrap();
        assert!(disk_usage(&inside).unwrap() < 1 << 20);
        remove_tree(&inside).unwrap();
        assert!(!inside.exists() && outside.join("big").exists());
        symlink(&outside, &inside).unwrap();
        remove_tree(&inside).unwrap();
        assert!(!inside.is_symlink() && outside.join("big").exists());
    }

    /// A program that swaps a closed folder for a link to somebody's file, over and over.
    #[test]
    fn a_folder_that_becomes_a_link_changes_no_mode_outside() {
        let root = tempfile::tempdir().unwrap();
        let (inside, victim) = (root.path().join("inside"), root.path().join("victim"));
        fs::create_dir(&inside).unwrap();
        fs::write(&victim, "").unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o444)).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let at = fs::File::open(&inside).unwrap();
                mkdirat(&at, "a", Mode::empty()).unwrap();
                symlink(&victim, inside.join("b")).unwrap();
                while !done.load(Ordering::Relaxed) {
                    renameat_with(&at, "a", &at, "b", RenameFlags::EXCHANGE).ok();
                }
            });
            for _ in 0..3000 {
                disk_usage(&inside);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(mode(&victim), 0o444);
        remove_tree(&inside).unwrap();
        assert_eq!(mode(&victim), 0o444);
    }

    #[test]
    fn closed_folders_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let world = root.path().join("world");
        fs::create_dir_all(world.join("a/b")).unwrap();
        fs::write(world.join("a/b/file"), "x").unwrap();
        for closed in ["a/b", "a"] {
            close(&world.join(closed));
        }
        remove_tree(&world).unwrap();
        assert!(!world.exists());
        remove_tree(&world).unwrap();
    }

    #[test]
    fn folders_nested_without_end_are_hidden_and_removed() {
        let root = tempfile::tempdir().unwrap();
        let world = root.path().join("world");
        fs::create_dir_all(world.join(".mcpmill-removes-1/taken")).unwrap();
        let mut at = opened(CWD, &world).unwrap();
        for depth in 0..5 * DEEPEST {
            assert!(depth != DEEPEST / 2 || disk_usage(&world).is_some());
            mkdirat(&at, "d", Mode::from_raw_mode(OURS)).unwrap();
            let inner = opened(&at, "d").unwrap();
            if depth % 7 == 0 {
                fchmod(&inner, Mode::empty()).unwrap();
            }
            at = inner;
        }
        assert_eq!(disk_usage(&world), None);
        remove_tree(&world).unwrap();
        assert!(!world.exists());
    }
}
