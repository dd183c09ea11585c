//! What a process tree uses, read from /proc and the disk.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use mcpmill_core::edge::{Limits, ProcessEnd};
use rustix::process::Pid;

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(250);
/// Time for which one look at the processes of the machine serves all cages.
const SHARED: Duration = Duration::from_millis(100);
/// The disk is walked so seldom that walking takes at most this share of the time.
const WALK_SHARE: u32 = 20;
/// Every file counts as at least this much, so that empty files are bounded too.
const LEAST_BLOCK: u64 = 4096;

/// A longer path cannot be looked at in one piece (the system's limit is 4096); nothing that serves a
/// purpose has one.
const LONGEST_PATH: usize = 3500;
/// The private folders that [`super::layout`] keeps in memory.
const IN_MEMORY: [&str; 3] = ["/dev/shm", "/tmp", super::HOME];
/// What the system calls a file system in memory.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// What a tree may use.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    pub(super) memory_bytes: u64,
    pub(super) processes: u32,
    pub(super) folders: Vec<PathBuf>,
    pub(super) disk_bytes: u64,
}

impl Bounds {
    pub(super) fn new(limits: &Limits, folders: Vec<PathBuf>, disk_bytes: u64) -> Self {
        Self { memory_bytes: limits.memory_bytes, processes: limits.processes, folders, disk_bytes }
    }

    /// Returns once the tree below `root` uses more than it may.
    ///
    /// Resident memory is summed over the tree, so pages shared by forked workers count once each;
    /// that errs on the side of the host. Never RLIMIT_AS: V8 reserves gigabytes of addresses.
    pub(super) async fn exceeded(self, root: u32) -> ProcessEnd {
        let before = self.walk().await.0;
        let mut next_walk = Instant::now() + PERIOD;
        loop {
            tokio::time::sleep(PERIOD).await;
            let folders = self.folders.clone();
            let tree = tokio::task::spawn_blocking(move || Usage::of_tree(root, &folders)).await.unwrap_or_default();
            if tree.tasks > u64::from(self.processes) {
                return ProcessEnd::TooManyProcesses;
            }
            if tree.memory > self.memory_bytes {
                return ProcessEnd::OutOfMemory;
            }
            if tree.unlinked > self.disk_bytes {
                return ProcessEnd::TooMuchDisk;
            }
            if Instant::now() >= next_walk {
                let (now, took) = self.walk().await;
                if now.saturating_add(tree.unlinked) > before + self.disk_bytes {
                    return ProcessEnd::TooMuchDisk;
                }
                next_walk = Instant::now() + took * WALK_SHARE;
            }
        }
    }

    async fn walk(&self) -> (u64, Duration) {
        let folders = self.folders.clone();
        let walked = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            let bytes = folders.iter().fold(0, |sum: u64, folder| sum.saturating_add(disk_usage(folder).unwrap_or(u64::MAX)));
            (bytes, start.elapsed())
        });
        walked.await.unwrap_or_default()
    }
}

/// The processes of the machine by their parents, each with its resident bytes and threads.
struct Processes(HashMap<u32, Vec<(u32, u64, u64)>>);

impl Processes {
    /// As they are, or were a moment ago: one look serves all cages, or many of them would look at many
    /// processes all the time.
    fn lately() -> Arc<Self> {
        static LATEST: Mutex<Option<(Instant, Arc<Processes>)>> = Mutex::new(None);
        let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
        match &*latest {
            Some((seen, processes)) if seen.elapsed() < SHARED => Arc::clone(processes),
            _ => Arc::clone(&latest.insert((Instant::now(), Arc::new(Self::now()))).1),
        }
    }

    fn now() -> Self {
        let mut children: HashMap<u32, Vec<(u32, u64, u64)>> = HashMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let stat = fs::read_to_string(entry.path().join("stat")).ok();
            let Some((parent, resident, tasks)) = stat.as_deref().and_then(stat_line) else { continue };
            children.entry(parent).or_default().push((pid, resident, tasks));
        }
        Self(children)
    }
}

/// What a process tree uses at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    /// Resident bytes, and what its files in memory hold.
    memory: u64,
    tasks: u64,
    /// Bytes of files that it holds open and that no folder lists any more.
    unlinked: u64,
}

impl Usage {
    fn of_tree(root: u32, folders: &[PathBuf]) -> Self {
        let processes = Processes::lately();
        let mut sum = Self::default();
        let (mut open, mut all) = (vec![root], Vec::new());
        let mut seen = HashSet::from([root]);
        while let Some(pid) = open.pop() {
            for &(child, resident, tasks) in processes.0.get(&pid).into_iter().flatten() {
                // Once, even if a pid was reused while reading.
                if !seen.insert(child) {
                    continue;
                }
                sum.memory += resident;
                sum.tasks += tasks;
                open.push(child);
                all.push(child);
            }
        }
        let devices = folders.iter().filter_map(|folder| fs::metadata(folder).ok()).map(|meta| meta.dev()).collect();
        let held = held_open(&all, &devices);
        sum.memory += held.memory + all.first().map_or(0, |&first| in_memory_folders(first));
        sum.unlinked = held.disk;
        sum
    }
}

/// Bytes in the private folders of the cage around a process, which are memory. Read through its own
/// view of the mounts; none when it has no cage.
fn in_memory_folders(process: u32) -> u64 {
    let own = Path::new("/proc").join(process.to_string());
    let mounts = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    if mounts(&own) == mounts(Path::new("/proc/self")) {
        return 0;
    }
    let mut sum = 0;
    for folder in IN_MEMORY {
        let path = own.join("root").join(folder.trim_start_matches('/'));
        if rustix::fs::statfs(&path).is_ok_and(|found| found.f_type == TMPFS)
            && let Ok(space) = rustix::fs::statvfs(&path)
        {
            sum += space.f_blocks.saturating_sub(space.f_bfree) * space.f_frsize;
        }
    }
    sum
}

/// Bytes behind descriptors whose files no folder lists: memory files, and deleted ones of a disk.
#[derive(Default)]
struct Held {
    memory: u64,
    disk: u64,
}

/// Looks through the descriptors of `processes`; of deleted files only those on `devices` count, others
/// are in memory folders and counted there.
fn held_open(processes: &[u32], devices: &HashSet<u64>) -> Held {
    let (mut held, mut seen) = (Held::default(), HashSet::new());
    for process in processes {
        let folder = format!("/proc/{process}/fd");
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let target = target.as_os_str().as_encoded_bytes();
            if !target.ends_with(b" (deleted)") {
                continue;
            }
            let Ok(meta) = fs::metadata(entry.path()) else { continue };
            if !meta.is_file() || !seen.insert((meta.dev(), meta.ino())) {
                continue;
            }
            let bytes = meta.blocks() * 512;
            if target.starts_with(b"/memfd:") {
                held.memory += bytes;
            } else if devices.contains(&meta.dev()) {
                held.disk += bytes;
            }
        }
    }
    held
}

/// Parent, resident bytes and threads from a line of `/proc/PID/stat`. The name in parentheses is
/// the program's own and may hold anything.
fn stat_line(line: &str) -> Option<(u32, u64, u64)> {
    let (_, rest) = line.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let pages = number(21)?;
    Some((u32::try_from(number(1)?).ok()?, pages * rustix::param::page_size() as u64, number(17)?))
}

/// Whether a process is gone, or only waits for somebody to ask how it ended.
pub(super) fn has_ended(process: Pid) -> bool {
    state(process.as_raw_nonzero().get()).is_none_or(|state| matches!(state, 'Z' | 'X'))
}

/// Whether a process sleeps until something happens.
pub(super) fn is_waiting(process: i32) -> bool {
    state(process) == Some('S')
}

fn state(process: i32) -> Option<char> {
    let line = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    line.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Bytes a folder takes, links not followed; 0 when there is none. A folder that was closed to us is opened
/// again, it is ours. `None` when one stays closed, or a path is too long to be looked at: what it holds is hidden.
pub(crate) fn disk_usage(folder: &Path) -> Option<u64> {
    let mut sum: u64 = 0;
    let mut open = vec![folder.to_owned()];
    while let Some(path) = open.pop() {
        if path.as_os_str().len() > LONGEST_PATH {
            return None;
        }
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        sum = sum.saturating_add((meta.blocks() * 512).max(LEAST_BLOCK));
        if !meta.is_dir() {
            continue;
        }
        match fs::read_dir(&path).or_else(|_| reopened(&path)) {
            Ok(entries) => open.extend(entries.flatten().map(|entry| entry.path())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(_) => return None,
        }
    }
    Some(sum)
}

fn reopened(path: &Path) -> std::io::Result<fs::ReadDir> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    fs::read_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_behind_any_name() {
        let line = "7 (a) b) 3) S 42 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 100 2592000 10 18446744073709551615";
        let (parent, resident, tasks) = stat_line(line).unwrap();
        assert_eq!((parent, tasks), (42, 3));
        assert_eq!(resident, 10 * rustix::param::page_size() as u64);
        assert!(stat_line("nonsense").is_none());
    }

    #[test]
    fn processes_stand_below_their_parents() {
        let processes = Processes::lately();
        let siblings = &processes.0[&std::os::unix::process::parent_id()];
        let own = siblings.iter().find(|(pid, ..)| *pid == std::process::id()).unwrap();
        assert!(own.1 > 0 && own.2 > 0, "{own:?}");
    }

    #[test]
    fn empty_files_count() {
        let folder = tempfile::tempdir().unwrap();
        let before = disk_usage(folder.path()).unwrap();
        for i in 0..10 {
            fs::write(folder.path().join(i.to_string()), "").unwrap();
        }
        assert!(disk_usage(folder.path()).unwrap() >= before + 10 * LEAST_BLOCK);
    }
}
