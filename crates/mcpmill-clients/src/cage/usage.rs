//! What a process tree uses, read from /proc.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::{fs::makedev, process::Pid};

/// Time for which one look at the processes of the machine serves all cages.
const SHARED: Duration = Duration::from_millis(100);
/// The private folders that [`super::layout`] keeps in memory.
const IN_MEMORY: [&str; 3] = ["/dev/shm", "/tmp", super::HOME];
/// What the system calls a file system in memory.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

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
pub(super) struct Usage {
    /// Resident bytes, and what its files in memory hold.
    pub(super) memory: u64,
    /// Processes and threads.
    pub(super) tasks: u64,
    /// Bytes of files that it holds open or mapped and that no folder lists any more.
    pub(super) unlinked: u64,
    /// Whether it holds files whose size cannot be known.
    pub(super) hides: bool,
}

impl Usage {
    /// What the tree below `root` uses. What it hides is not looked for in one of more than `most` processes and
    /// threads, which ends all the same: that takes time in which a storm of them only grows.
    pub(super) fn of_tree(root: u32, folders: &[PathBuf], most: u64) -> Self {
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
        if sum.tasks > most {
            return sum;
        }
        let devices = folders.iter().filter_map(|folder| fs::metadata(folder).ok()).map(|meta| meta.dev()).collect();
        let mut held = Held { devices, ..Held::default() };
        for process in &all {
            held.open(*process);
        }
        // Once all descriptors are known: most of what is mapped is open too.
        for process in &all {
            held.mapped(*process);
        }
        sum.memory += held.memory + all.first().map_or(0, |&first| in_memory_folders(first));
        sum.unlinked = held.disk;
        sum.hides = held.unknown;
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

/// What no folder lists any more: memory files, and deleted ones of a disk.
#[derive(Default)]
struct Held {
    /// Where the tree can write to the disk. Other deleted files are in memory folders and counted there.
    devices: HashSet<u64>,
    seen: HashSet<(u64, u64)>,
    memory: u64,
    disk: u64,
    unknown: bool,
}

impl Held {
    /// What is open in a process.
    fn open(&mut self, process: u32) {
        let folder = format!("/proc/{process}/fd");
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let target = target.as_os_str().as_encoded_bytes();
            if target.ends_with(DELETED) {
                if let Ok(meta) = fs::metadata(entry.path()) {
                    self.count(&meta, target.starts_with(MEMORY_FILE));
                }
            } else if target.starts_with(b"socket:") {
                let info = Path::new("/proc").join(process.to_string()).join("fdinfo").join(entry.file_name());
                self.unknown |= fs::read_to_string(info).is_ok_and(|info| carries_descriptors(&info));
            }
        }
    }

    /// What a process has mapped, be it one page, and closed.
    fn mapped(&mut self, process: u32) {
        let maps = fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
        for line in maps.split(|byte| *byte == b'\n').filter(|line| line.ends_with(DELETED)) {
            let Some(map) = Mapped::read(line) else { continue };
            if self.seen.contains(&(map.device, map.inode)) {
                continue;
            }
            match fs::metadata(format!("/proc/{process}/map_files/{}", map.range)) {
                Ok(meta) => self.count(&meta, map.is_memory),
                // Only root may follow these.
                Err(_) => self.unknown |= self.devices.contains(&map.device),
            }
        }
    }

    fn count(&mut self, meta: &fs::Metadata, is_memory: bool) {
        if !meta.is_file() || !self.seen.insert((meta.dev(), meta.ino())) {
            return;
        }
        let bytes = meta.blocks() * 512;
        if is_memory {
            self.memory += bytes;
        } else if self.devices.contains(&meta.dev()) {
            self.disk += bytes;
        }
    }
}

/// What stands behind the name of a file that no folder lists.
const DELETED: &[u8] = b" (deleted)";
/// What stands before the name of a file in memory.
const MEMORY_FILE: &[u8] = b"/memfd:";

/// A line of `/proc/PID/maps`.
struct Mapped<'a> {
    range: &'a str,
    device: u64,
    inode: u64,
    is_memory: bool,
}

impl<'a> Mapped<'a> {
    fn read(line: &'a [u8]) -> Option<Self> {
        // The name is the program's own and may hold anything.
        let fields_end = line.iter().position(|byte| *byte == b'/')?;
        let fields = std::str::from_utf8(&line[..fields_end]).ok()?;
        let mut fields = fields.split_ascii_whitespace();
        let range = fields.next()?;
        let (major, minor) = fields.nth(2)?.split_once(':')?;
        let number = |text| u32::from_str_radix(text, 16).ok();
        let device = makedev(number(major)?, number(minor)?);
        Some(Self { range, device, inode: fields.next()?.parse().ok()?, is_memory: line[fields_end..].starts_with(MEMORY_FILE) })
    }
}

/// Whether descriptors wait in a socket for somebody to take them, from its `/proc/PID/fdinfo`.
fn carries_descriptors(info: &str) -> bool {
    let count = info.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.is_some_and(|count| count.trim() != "0")
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
    fn a_mapped_file_is_read_behind_any_name() {
        let line = b"7f12a000-7f12b000 rw-s 00000000 fe:01 4711                       /home/u/x /y (deleted)";
        let map = Mapped::read(line).unwrap();
        assert_eq!((map.range, map.device, map.inode, map.is_memory), ("7f12a000-7f12b000", makedev(0xfe, 1), 4711, false));
        assert!(Mapped::read(b"1-2 rw-s 00000000 00:01 9 /memfd:x (deleted)").unwrap().is_memory);
        assert!(Mapped::read(b"nonsense (deleted)").is_none());
    }

    #[test]
    fn descriptors_on_their_way_are_seen() {
        assert!(carries_descriptors("pos:\t0\nflags:\t02\nscm_fds: 3\n"));
        assert!(!carries_descriptors("pos:\t0\nscm_fds: 0\n") && !carries_descriptors("pos:\t0\n"));
    }
}
