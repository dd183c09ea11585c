//! What a process tree uses, read from /proc.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::process::Pid;

use super::held::Held;

/// Time for which one look at the processes of the machine serves all cages.
const SHARED: Duration = Duration::from_millis(100);
/// The private folders that [`super::layout`] keeps in memory.
const IN_MEMORY: [&str; 3] = ["/dev/shm", "/tmp", super::HOME];
/// What the system calls a file system in memory.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;
/// Bytes that the kernel keeps for a file of such a folder, be it empty.
const FILE_BYTES: u64 = 1 << 10;
/// What of `/proc/PID/status` is memory of a process that is not resident: the tables of its pages, what was
/// put aside, and pages of a kind that is counted for itself.
const BESIDES: [&str; 3] = ["VmPTE:", "VmSwap:", "HugetlbPages:"];

/// A process of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    id: u32,
    /// Under which /proc tells of it: another thread's once the first has ended.
    thread: u32,
    resident: u64,
    tasks: u64,
}

impl Seen {
    /// The process `id` and its parent.
    fn now(id: u32) -> Option<(u32, Self)> {
        let first = Stat::of(&format!("/proc/{id}/stat"))?;
        let mut seen = Self { id, thread: id, resident: first.resident, tasks: first.tasks };
        // Nothing is told of a process under a thread that has ended; only the first stays when it ends.
        if first.has_ended() && first.tasks > 1 {
            let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
            let threads = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            let mut living = threads.filter_map(|thread| Some((thread, Stat::of(&format!("/proc/{thread}/stat"))?)));
            if let Some((thread, stat)) = living.find(|(_, stat)| !stat.has_ended()) {
                (seen.thread, seen.resident) = (thread, stat.resident);
            }
        }
        Some((first.parent, seen))
    }

    /// Whether it lives on in threads other than its first, and none of them could be looked at: they follow
    /// one another faster.
    fn dodges(&self) -> bool {
        let leads = Stat::of(&format!("/proc/{}/stat", self.id)).is_some_and(|stat| !stat.has_ended() || stat.tasks < 2);
        !leads && Stat::of(&format!("/proc/{}/stat", self.thread)).is_none_or(|stat| stat.has_ended())
    }

    /// Bytes that belong to it and are not resident.
    fn besides(&self) -> u64 {
        fs::read_to_string(format!("/proc/{}/status", self.thread)).map_or(0, |status| besides(&status))
    }
}

/// The processes of the machine by their parents.
struct Processes(HashMap<u32, Vec<Seen>>);

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
        let mut children: HashMap<u32, Vec<Seen>> = HashMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let Some((parent, seen)) = Seen::now(id) else { continue };
            children.entry(parent).or_default().push(seen);
        }
        Self(children)
    }

    /// Those below `root`.
    fn below(&self, root: u32) -> Vec<Seen> {
        let (mut open, mut all) = (vec![root], Vec::new());
        // Each once, even if an id was reused while reading.
        let mut known = HashSet::from([root]);
        while let Some(parent) = open.pop() {
            for child in self.0.get(&parent).into_iter().flatten().filter(|child| known.insert(child.id)) {
                open.push(child.id);
                all.push(*child);
            }
        }
        all
    }
}

/// What a process tree uses at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Resident bytes, the tables of the pages, and what its files in memory hold.
    pub(super) memory: u64,
    /// Processes and threads.
    pub(super) tasks: u64,
    /// Bytes of files that it holds open or mapped and that no folder lists any more.
    pub(super) unlinked: u64,
    /// Whether it holds files whose size cannot be known.
    pub(super) hides: bool,
    /// Whether it holds memory whose size cannot be known.
    pub(super) hides_memory: bool,
    /// Whether it cannot be looked at: it has more open or mapped than anybody needs, or its threads are never
    /// there when they are looked at.
    pub(super) dodges: bool,
}

impl Usage {
    /// What the tree below `root` uses. What it hides is not looked for in one of more than `most_tasks`
    /// processes and threads or of more than `most_memory` resident bytes, which ends all the same: that takes
    /// time in which it only grows.
    pub(super) fn of_tree(root: u32, folders: &[PathBuf], most_tasks: u64, most_memory: u64) -> Self {
        let all = Processes::lately().below(root);
        let mut sum = Self::default();
        for process in &all {
            sum.memory += process.resident;
            sum.tasks += process.tasks;
        }
        if sum.tasks > most_tasks || sum.memory > most_memory {
            return sum;
        }
        sum.memory += all.iter().map(Seen::besides).sum::<u64>();
        sum.memory += all.first().map_or(0, |first| in_memory_folders(first.thread));
        if sum.memory > most_memory {
            return sum;
        }
        let threads: Vec<u32> = all.iter().map(|process| process.thread).collect();
        let held = Held::by(&threads, folders);
        sum.memory += held.memory;
        sum.unlinked = held.disk;
        sum.hides = held.unknown;
        sum.hides_memory = held.unknown_memory;
        sum.dodges = held.is_too_much || all.iter().any(Seen::dodges);
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
            sum += space.f_files.saturating_sub(space.f_ffree) * FILE_BYTES;
        }
    }
    sum
}

/// Bytes of memory that all programs of the machine share, `None` when the system does not say.
pub(super) fn shared_memory() -> Option<u64> {
    named_kilobytes(&fs::read_to_string("/proc/meminfo").ok()?, "Shmem:")
}

fn besides(status: &str) -> u64 {
    BESIDES.iter().filter_map(|name| named_kilobytes(status, name)).sum()
}

/// Bytes in the line `name   123 kB`.
fn named_kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// What `/proc/PID/stat` says of a process or a thread.
struct Stat {
    state: char,
    parent: u32,
    resident: u64,
    /// Threads of the process.
    tasks: u64,
}

impl Stat {
    fn of(path: &str) -> Option<Self> {
        Self::read(&fs::read_to_string(path).ok()?)
    }

    /// From the line. The name in parentheses is the program's own and may hold anything.
    fn read(line: &str) -> Option<Self> {
        let (_, rest) = line.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: u32::try_from(number(1)?).ok()?,
            resident: number(21)? * rustix::param::page_size() as u64,
            tasks: number(17)?,
        })
    }

    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// Whether a process is gone, or only waits for somebody to ask how it ended.
pub(super) fn has_ended(process: Pid) -> bool {
    Stat::of(&format!("/proc/{}/stat", process.as_raw_nonzero())).is_none_or(|stat| stat.has_ended())
}

/// Whether a process sleeps until something happens.
pub(super) fn is_waiting(process: i32) -> bool {
    Stat::of(&format!("/proc/{process}/stat")).is_some_and(|stat| stat.state == 'S')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_behind_any_name() {
        let line = "7 (a) b) 3) S 42 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 100 2592000 10 18446744073709551615";
        let stat = Stat::read(line).unwrap();
        assert_eq!((stat.state, stat.parent, stat.tasks), ('S', 42, 3));
        assert_eq!(stat.resident, 10 * rustix::param::page_size() as u64);
        assert!(Stat::read("nonsense").is_none());
    }

    #[test]
    fn processes_stand_below_their_parents() {
        let own = std::process::id();
        let below = Processes::lately().below(std::os::unix::process::parent_id());
        let seen = below.iter().find(|seen| seen.id == own).unwrap();
        assert!(seen.thread == own && seen.resident > 0 && seen.tasks > 0 && !seen.dodges(), "{seen:?}");
        assert!(seen.besides() > 0, "its pages have tables");
    }

    #[test]
    fn what_is_not_resident_is_summed() {
        let status = "Name:\tVmPTE: 9 kB\nVmRSS:\t  500 kB\nVmPTE:\t      48 kB\nVmSwap:\t       2 kB\nHugetlbPages:\t 0 kB\n";
        assert_eq!(besides(status), 50 << 10);
        assert_eq!(besides("State:\tZ (zombie)\n"), 0);
        assert!(shared_memory().is_some());
    }
}
