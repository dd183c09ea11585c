//! What an installer fetches, put aside until its step has gone well.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use mcpmill_core::edge::Bind;

use super::STAGING;
use crate::{
    assets,
    cage::{Cage, WRITTEN, make_overlay, remove_tree},
};

/// Where a step of an installer keeps what it fetches.
pub(super) enum Staging {
    /// The shared cache, read-only, with what is written going to a folder of this server's own.
    Aside { shared: PathBuf, own: PathBuf },
    /// The shared cache itself, where the system cannot do better.
    Shared(PathBuf),
}

impl Staging {
    /// The cache `shared` for one step of the server in `folder`.
    pub(super) async fn new(cage: &Cage, folder: &Path, shared: PathBuf) -> io::Result<Self> {
        let own = folder.join(STAGING);
        fs::create_dir_all(&shared)?;
        remove_tree(&own)?;
        fs::create_dir_all(&own)?;
        if cage.has_overlays(&own).await {
            make_overlay(&own)?;
            return Ok(Self::Aside { shared, own });
        }
        remove_tree(&own)?;
        Ok(Self::Shared(shared))
    }

    pub(super) fn binds(&self, inside: &Path) -> Vec<Bind> {
        let bind = |host: &Path, writable| Bind { host: host.to_owned(), inside: inside.to_owned(), writable };
        match self {
            Self::Aside { shared, own } => vec![bind(shared, false), bind(own, true)],
            Self::Shared(shared) => vec![bind(shared, true)],
        }
    }

    /// Whether others write to the same folder at the same time.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Ends it: what a step that has gone well fetched joins the shared cache, anything else is removed.
    pub(super) async fn end(self, well: bool) -> io::Result<()> {
        let Self::Aside { shared, own } = self else { return Ok(()) };
        let _lock = match well {
            true => Some(assets::lock(shared.with_extension("lock")).await?),
            false => None,
        };
        let ended = tokio::task::spawn_blocking(move || {
            if well {
                join(&own.join(WRITTEN), &shared)?;
            }
            remove_tree(&own)
        });
        ended.await.map_err(io::Error::other)?
    }
}

/// Moves everything below `from` to `to`, which keeps what else it has. Whole folders are moved at once, and
/// links are not followed.
fn join(from: &Path, to: &Path) -> io::Result<()> {
    let mut entries = fs::read_dir(from)?.collect::<io::Result<Vec<_>>>()?;
    // What is pointed at comes before what points at it: others read meanwhile.
    entries.sort_by_key(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"archive"));
    for entry in entries {
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        let there = fs::symlink_metadata(&target).ok();
        let replaces_folder = there.is_some_and(|there| there.is_dir());
        if kind.is_dir() && replaces_folder {
            join(&entry.path(), &target)?;
        } else if kind.is_dir() || (kind.is_file() || kind.is_symlink()) && !replaces_folder {
            fs::rename(entry.path(), target)?;
        }
        // Anything else only marks for the overlay what was removed, and nothing is removed from the cache.
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_new_joins_what_is_there() {
        let root = tempfile::tempdir().unwrap();
        let (from, to, outside) = (root.path().join("from"), root.path().join("to"), root.path().join("outside"));
        for folder in [&from.join("both/new"), &from.join("link"), &to.join("both/old"), &outside] {
            fs::create_dir_all(folder).unwrap();
        }
        for (file, text) in [("both/new/x", "new"), ("both/file", "newer"), ("top", "new")] {
            fs::write(from.join(file), text).unwrap();
        }
        fs::write(to.join("both/file"), "old").unwrap();
        fs::write(to.join("both/old/x"), "old").unwrap();
        fs::write(from.join("link/x"), "new").unwrap();
        fs::write(from.join("both/old"), "a file where a folder was").unwrap();
        symlink(&outside, to.join("link")).unwrap();
        // Nothing is moved to where a link leads.
        assert!(join(&from, &to).is_err() || fs::read_dir(&outside).unwrap().count() == 0);
        fs::remove_file(to.join("link")).unwrap();
        join(&from, &to).unwrap();
        let read = |file: &str| fs::read_to_string(to.join(file)).unwrap();
        assert_eq!((read("both/new/x"), read("both/file"), read("top")), ("new".into(), "newer".into(), "new".into()));
        assert_eq!((read("both/old/x"), read("link/x")), ("old".into(), "new".into()));
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
}
