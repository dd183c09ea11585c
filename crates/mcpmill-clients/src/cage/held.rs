//! What a process tree holds that no folder lists: memory that it shares, and deleted files.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::fs::makedev;

/// Descriptors that are looked at in one tree, and bytes of the lists of what its processes have mapped. A Node
/// server that idles has some 20 and 8 thousand, the Rust compiler at work 11 and 70 thousand.
const MOST_OPEN: usize = 16 << 10;
const MOST_LISTED: usize = 16 << 20;

/// What no folder lists any more: memory files, and deleted ones of a disk.
#[derive(Default)]
pub(super) struct Held {
    /// Where the tree can write to the disk. Other deleted files are in memory folders and counted there.
    devices: HashSet<u64>,
    known: HashSet<(u64, u64)>,
    /// Descriptors and bytes that were looked at.
    open: usize,
    listed: usize,
    /// Bytes of memory.
    pub(super) memory: u64,
    /// Bytes on the disk.
    pub(super) disk: u64,
    /// Whether there are files on the disk whose size cannot be known,
    pub(super) unknown: bool,
    /// and memory of that kind.
    pub(super) unknown_memory: bool,
    /// Whether there was more to look at than is looked at.
    pub(super) is_too_much: bool,
}

impl Held {
    /// What these processes hold, who can write to the disk in `folders`.
    pub(super) fn by(processes: &[u32], folders: &[PathBuf]) -> Self {
        let devices = folders.iter().filter_map(|folder| fs::metadata(folder).ok()).map(|meta| meta.dev()).collect();
        let mut held = Self { devices, ..Self::default() };
        for process in processes {
            held.open(*process);
        }
        // Once all descriptors are known: most of what is mapped is open too.
        for process in processes {
            held.mapped(*process);
        }
        held
    }

    /// What is open in a process.
    fn open(&mut self, process: u32) {
        let folder = format!("/proc/{process}/fd");
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if self.open == MOST_OPEN {
                self.is_too_much = true;
                return;
            }
            self.open += 1;
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let target = target.as_os_str().as_encoded_bytes();
            if target.ends_with(DELETED) {
                if let Ok(meta) = fs::metadata(entry.path()) {
                    self.count(&meta, is_memory(target));
                }
            } else if target.starts_with(b"socket:") {
                let info = Path::new("/proc").join(process.to_string()).join("fdinfo").join(entry.file_name());
                self.unknown |= fs::read_to_string(info).is_ok_and(|info| carries_descriptors(&info));
            }
        }
    }

    /// What a process has mapped, be it one page, and closed.
    fn mapped(&mut self, process: u32) {
        let left = MOST_LISTED - self.listed;
        let mut maps = Vec::new();
        if let Ok(file) = File::open(format!("/proc/{process}/maps")) {
            file.take(left as u64).read_to_end(&mut maps).ok();
        }
        self.listed += maps.len();
        self.is_too_much |= maps.len() == left;
        for line in maps.split(|byte| *byte == b'\n').filter(|line| line.ends_with(DELETED)) {
            let Some(map) = Mapped::read(line) else { continue };
            if self.known.contains(&(map.device, map.inode)) {
                continue;
            }
            match fs::metadata(format!("/proc/{process}/map_files/{}", map.range)) {
                Ok(meta) => self.count(&meta, map.is_memory),
                // Only root may follow these.
                Err(_) if map.is_memory => self.unknown_memory = true,
                Err(_) => self.unknown |= self.devices.contains(&map.device),
            }
        }
    }

    fn count(&mut self, meta: &fs::Metadata, is_memory: bool) {
        if !meta.is_file() || !self.known.insert((meta.dev(), meta.ino())) {
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
/// What the names of memory begin with: that of files in memory, memory that processes share, that of System V,
/// and such in huge pages. No file of a caged program has such a name, as it can make none in the root.
const MEMORY: [&[u8]; 4] = [b"/memfd:", b"/dev/zero (deleted)", b"/SYSV", b"/anon_hugepage"];

fn is_memory(name: &[u8]) -> bool {
    MEMORY.iter().any(|memory| name.starts_with(memory))
}

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
        Some(Self { range, device, inode: fields.next()?.parse().ok()?, is_memory: is_memory(&line[fields_end..]) })
    }
}

/// Whether descriptors wait in a socket for somebody to take them, from its `/proc/PID/fdinfo`.
fn carries_descriptors(info: &str) -> bool {
    let count = info.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.is_some_and(|count| count.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_is_read_behind_any_name() {
        let line = b"7f12a000-7f12b000 rw-s 00000000 fe:01 4711                       /home/u/x /y (deleted)";
        let map = Mapped::read(line).unwrap();
        assert_eq!((map.range, map.device, map.inode, map.is_memory), ("7f12a000-7f12b000", makedev(0xfe, 1), 4711, false));
        assert!(Mapped::read(b"1-2 rw-s 00000000 00:01 9 /memfd:x (deleted)").unwrap().is_memory);
        assert!(Mapped::read(b"1-2 rw-s 00000000 00:01 9 /dev/zero (deleted)").unwrap().is_memory);
        assert!(Mapped::read(b"nonsense (deleted)").is_none());
    }

    #[test]
    fn descriptors_on_their_way_are_seen() {
        assert!(carries_descriptors("pos:\t0\nflags:\t02\nscm_fds: 3\n"));
        assert!(!carries_descriptors("pos:\t0\nscm_fds: 0\n") && !carries_descriptors("pos:\t0\n"));
    }
}
