//! Files that are complete or absent: written beside their place, synced, renamed.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// The end of the names of files that are being written. One found at start is what a kill left.
pub(crate) const UNFINISHED: &str = ".tmp";

/// A file being written beside its place. Dropped before [`Staged::place`], it leaves nothing.
pub(crate) struct Staged {
    temp: PathBuf,
    target: PathBuf,
    placed: bool,
}

impl Staged {
    /// Starts a file that will stand at `target`; what stands there now stays until it is placed.
    pub fn create(target: &Path) -> io::Result<(Self, File)> {
        let name = target.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
        let mut unfinished = OsString::from(name);
        unfinished.push(UNFINISHED);
        let temp = target.with_file_name(unfinished);
        let file = File::create(&temp)?;
        Ok((Self { temp, target: target.to_owned(), placed: false }, file))
    }

    /// Syncs `file`, which [`Staged::create`] gave out, and puts it in its place.
    pub fn place(mut self, file: File) -> io::Result<()> {
        file.sync_all()?;
        drop(file);
        fs::rename(&self.temp, &self.target)?;
        self.placed = true;
        sync_folder_of(&self.target)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.placed {
            fs::remove_file(&self.temp).ok();
        }
    }
}

/// Replaces the content of `path` as a whole.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (staged, mut file) = Staged::create(path)?;
    file.write_all(bytes)?;
    staged.place(file)
}

/// Makes renames and removals in the folder that holds `path` survive a loss of power.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unplaced_file_leaves_nothing_and_harms_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        write(&path, b"old").unwrap();
        let (staged, mut file) = Staged::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(staged);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }
}
