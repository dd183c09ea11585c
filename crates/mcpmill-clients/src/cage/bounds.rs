//! The bounds of a process tree, and the watchdog that sees to them.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use mcpmill_core::edge::{Limits, ProcessEnd};

use super::{
    beneath::disk_usage_within,
    usage::{Usage, shared_memory},
};

/// Time between two looks at the processes.
const PERIOD: Duration = Duration::from_millis(250);
/// Time between two looks at how full the disk is, which costs next to nothing.
const GLANCE: Duration = Duration::from_millis(50);
/// The disk is walked so seldom that walking takes at most this share of the time,
const WALK_SHARE: u32 = 20;
/// and at most this one when the disk fills: it may be this tree that fills it.
const HURRIED_SHARE: u32 = 3;
/// The part of its bound that the disk may lose before it is walked at once.
const HURRY: u64 = 8;
/// Every file counts as at least this much: a bound on bytes is then one on the number of files, and a walk
/// has an end.
const LEAST_FILE: u64 = 16 << 10;
/// Looks in a row at which something is hidden before that counts: descriptors may be on their way, and a
/// process may be about to end.
const HIDDEN_LOOKS: u64 = 4;

/// What a tree may use.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    memory_bytes: u64,
    processes: u32,
    folders: Vec<PathBuf>,
    disk_bytes: u64,
}

/// What one half of the watchdog tells the other.
#[derive(Default)]
struct Seen {
    /// Bytes on the disk that no folder lists any more.
    unlinked: AtomicU64,
    /// Looks in a row at which the tree held files of a size that cannot be known.
    hidden: AtomicU64,
}

impl Bounds {
    pub(super) fn new(limits: &Limits, folders: Vec<PathBuf>, disk_bytes: u64) -> Self {
        Self { memory_bytes: limits.memory_bytes, processes: limits.processes, folders, disk_bytes }
    }

    /// Returns once the tree below `root` uses more than it may. Neither half waits for the other: a long
    /// walk of the disk must not keep memory from being looked at.
    ///
    /// Resident memory is summed over the tree, so pages shared by forked workers count once each;
    /// that errs on the side of the host. Never RLIMIT_AS: V8 reserves gigabytes of addresses.
    pub(super) async fn exceeded(self, root: u32) -> ProcessEnd {
        let seen = Seen::default();
        tokio::select! {
            end = self.by_processes(root, &seen) => end,
            end = self.by_disk(&seen) => end,
        }
    }

    async fn by_processes(&self, root: u32, seen: &Seen) -> ProcessEnd {
        let at_first = shared_memory();
        let (mut hidden_memory, mut dodged) = (0, 0);
        loop {
            tokio::time::sleep(PERIOD).await;
            let (folders, most_tasks, most_memory) = (self.folders.clone(), u64::from(self.processes), self.memory_bytes);
            let look = move || Usage::of_tree(root, &folders, most_tasks, most_memory);
            let tree = tokio::task::spawn_blocking(look).await.unwrap_or_default();
            if tree.tasks > most_tasks {
                return ProcessEnd::TooManyProcesses;
            }
            if tree.memory > most_memory {
                return ProcessEnd::OutOfMemory;
            }
            if tree.unlinked > self.disk_bytes {
                return ProcessEnd::TooMuchDisk;
            }
            seen.unlinked.store(tree.unlinked, Ordering::Relaxed);
            let again = |looks: u64, now: bool| if now { looks + 1 } else { 0 };
            seen.hidden.store(again(seen.hidden.load(Ordering::Relaxed), tree.hides), Ordering::Relaxed);
            hidden_memory = again(hidden_memory, tree.hides_memory);
            dodged = again(dodged, tree.dodges);
            let hides = hidden_memory >= HIDDEN_LOOKS && has_grown(at_first, most_memory);
            if hides || dodged >= HIDDEN_LOOKS {
                return ProcessEnd::OutOfMemory;
            }
        }
    }

    async fn by_disk(&self, seen: &Seen) -> ProcessEnd {
        let (Some(before), mut took) = self.walk(u64::MAX).await else { return ProcessEnd::TooMuchDisk };
        let at_first = self.free().await;
        let (mut free, mut walked) = (at_first, Instant::now());
        loop {
            tokio::time::sleep(GLANCE).await;
            let now = self.free().await;
            // Somebody else may have filled the disk; only together the two say something.
            let hides = seen.hidden.load(Ordering::Relaxed) >= HIDDEN_LOOKS;
            if hides && now.saturating_add(self.disk_bytes) < at_first {
                return ProcessEnd::TooMuchDisk;
            }
            let fills = now.saturating_add(self.disk_bytes / HURRY) < free;
            let due = if fills { took * HURRIED_SHARE } else { PERIOD.max(took * WALK_SHARE) };
            if walked.elapsed() < due {
                continue;
            }
            free = now;
            let most = before.saturating_add(self.disk_bytes).saturating_sub(seen.unlinked.load(Ordering::Relaxed));
            let (used, time) = self.walk(most).await;
            if used.is_none() {
                return ProcessEnd::TooMuchDisk;
            }
            (took, walked) = (time, Instant::now());
        }
    }

    /// Bytes in all folders, `None` when they are more than `most` or cannot be known, and the time it took.
    async fn walk(&self, most: u64) -> (Option<u64>, Duration) {
        let folders = self.folders.clone();
        let walked = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            let all = folders.iter().try_fold(0_u64, |sum, folder| {
                let one = disk_usage_within(folder, LEAST_FILE, most.saturating_sub(sum))?;
                Some(sum.saturating_add(one))
            });
            (all, start.elapsed())
        });
        walked.await.unwrap_or_default()
    }

    /// Bytes that are free where the folders are, each counted for itself.
    async fn free(&self) -> u64 {
        let folders = self.folders.clone();
        let free = move || folders.iter().map(|folder| free_bytes(folder)).fold(0, u64::saturating_add);
        tokio::task::spawn_blocking(free).await.unwrap_or_default()
    }
}

/// Whether the memory that all programs share has grown by more than `most` since it was `at_first`. Somebody
/// else may have made it grow, so that it only says something of a tree that hides some.
fn has_grown(at_first: Option<u64>, most: u64) -> bool {
    at_first.zip(shared_memory()).is_some_and(|(first, now)| now > first.saturating_add(most))
}

fn free_bytes(folder: &Path) -> u64 {
    rustix::fs::statvfs(folder).map_or(0, |space| space.f_bfree.saturating_mul(space.f_frsize))
}
