//! The disposable folders of one server: its world, and a place for its state.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use mcpmill_core::edge::{Bind, WorldSpec};
use tempfile::TempDir;

use crate::cage::{STATE, WORLD};

/// Made for one connection and removed with it.
pub(super) struct World {
    root: TempDir,
}

impl World {
    /// The files of `spec` in a fresh folder below `scratch`.
    pub(super) fn new(spec: &WorldSpec, scratch: &Path) -> io::Result<Self> {
        fs::create_dir_all(scratch)?;
        // The process in the name tells `mcpmill clean` which worlds are nobody's any more.
        let prefix = format!("world-{}-", std::process::id());
        let root = tempfile::Builder::new().prefix(&prefix).tempdir_in(scratch)?;
        let world = Self { root };
        fs::create_dir(world.folder())?;
        fs::create_dir(world.state())?;
        if let Some(path) = spec.stray() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{path}` is no path inside the world")));
        }
        for (path, content) in &spec.files {
            let target = world.folder().join(path);
            fs::create_dir_all(target.parent().unwrap_or(&target))?;
            fs::write(target, content)?;
        }
        Ok(world)
    }

    /// The world on the host.
    pub(super) fn folder(&self) -> PathBuf {
        self.root.path().join("work")
    }

    /// Where a package of the server's own would be; not there until it is made.
    pub(super) fn package(&self) -> PathBuf {
        self.root.path().join("package")
    }

    fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    pub(super) fn binds(&self) -> [Bind; 2] {
        let bind = |host, inside: &str| Bind { host, inside: inside.into(), writable: true };
        [bind(self.folder(), WORLD), bind(self.state(), STATE)]
    }

    pub(super) fn into_folder(self) -> TempDir {
        self.root
    }
}

/// Whether this is one of the two that [`placed`] fills in.
pub(super) fn is_placed(hole: &str) -> bool {
    matches!(hole, "${WORLD}" | "${STATE}")
}

/// `text` with `${WORLD}` and `${STATE}` replaced by the folders as the server sees them.
pub(super) fn placed(text: &str) -> String {
    text.replace("${WORLD}", WORLD).replace("${STATE}", STATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(path: &str) -> WorldSpec {
        WorldSpec { files: [(path.to_owned(), "content".to_owned())].into(), ..WorldSpec::default() }
    }

    #[test]
    fn files_stay_inside() {
        let scratch = tempfile::tempdir().unwrap();
        let world = World::new(&spec("a/b.txt"), scratch.path()).unwrap();
        assert_eq!(fs::read_to_string(world.folder().join("a/b.txt")).unwrap(), "content");
        for path in ["../b", "/b", "", "a/../../b", "."] {
            assert!(World::new(&spec(path), scratch.path()).is_err(), "{path}");
        }
        drop(world);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn placeholders() {
        assert_eq!(placed("--db=${STATE}/x.db ${WORLD}"), "--db=/home/user/.state/x.db /home/user/work");
    }
}
