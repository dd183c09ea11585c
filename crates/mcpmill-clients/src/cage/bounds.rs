//! What a process tree uses, read from /proc and the disk.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use mcpmill_core::edge::{Limits, ProcessEnd};
use rustix::process::Pid;

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(250);
/// The disk is walked so seldom that walking takes at most this share of the time.
const WALK_SHARE: u32 = 20;
/// Every file counts as at least this much, so that empty files are bounded too.
const LEAST_BLOCK: u64 = 4096;

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
            let tree = tokio::task::spawn_blocking(move || Usage::of_tree(root)).await.unwrap_or_default();
            if tree.tasks > u64::from(self.processes) {
                return ProcessEnd::TooManyProcesses;
            }
            if tree.resident > self.memory_bytes {
                return ProcessEnd::OutOfMemory;
            }
            if Instant::now() >= next_walk {
                let (now, took) = self.walk().await;
                if now > before + self.disk_bytes {
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
            let bytes = folders.iter().map(|folder| disk_usage(folder)).sum();
            (bytes, start.elapsed())
        });
        walked.await.unwrap_or_default()
    }
}

/// What a process tree uses at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    resident: u64,
    tasks: u64,
}

impl Usage {
    fn of_tree(root: u32) -> Self {
        let mut children: HashMap<u32, Vec<(u32, Self)>> = HashMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let Some((parent, usage)) = fs::read_to_string(entry.path().join("stat")).ok().as_deref().and_then(stat) else {
                continue;
            };
            children.entry(parent).or_default().push((pid, usage));
        }
        let mut sum = Self::default();
        let mut open = vec![root];
        while let Some(pid) = open.pop() {
            // Taken out, so that a process counts once even if a pid was reused while reading.
            for (child, usage) in children.remove(&pid).unwrap_or_default() {
                sum.resident += usage.resident;
                sum.tasks += usage.tasks;
                open.push(child);
            }
        }
        sum
    }
}

/// Parent, resident bytes and threads from a line of `/proc/PID/stat`. The name in parentheses is
/// the program's own and may hold anything.
fn stat(line: &str) -> Option<(u32, Usage)> {
    let (_, rest) = line.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let pages = number(21)?;
    Some((u32::try_from(number(1)?).ok()?, Usage { resident: pages * rustix::param::page_size() as u64, tasks: number(17)? }))
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

/// Bytes a folder takes, links not followed.
fn disk_usage(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;

    let mut sum = 0;
    let mut open = vec![folder.to_owned()];
    while let Some(path) = open.pop() {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        sum += (meta.blocks() * 512).max(LEAST_BLOCK);
        if meta.is_dir() {
            open.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_behind_any_name() {
        let line = "7 (a) b) 3) S 42 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 100 2592000 10 18446744073709551615";
        let (parent, usage) = stat(line).unwrap();
        assert_eq!((parent, usage.tasks), (42, 3));
        assert_eq!(usage.resident, 10 * rustix::param::page_size() as u64);
        assert!(stat("nonsense").is_none());
    }

    #[test]
    fn empty_files_count() {
        let folder = tempfile::tempdir().unwrap();
        let before = disk_usage(folder.path());
        for i in 0..10 {
            fs::write(folder.path().join(i.to_string()), "").unwrap();
        }
        assert!(disk_usage(folder.path()) >= before + 10 * LEAST_BLOCK);
    }
}
