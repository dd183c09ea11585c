//! Making room: installations that nobody has used for long, and what installers keep.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{BUILD_CACHE, READY, STAGING, used};
use crate::{
    assets,
    cage::{disk_usage, remove_tree},
};

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Installations.
    pub installations: usize,
    /// Bytes of everything removed.
    pub bytes: u64,
}

/// Removes installations below `cache` that were not used since `unused_since`, and those that were
/// never finished, but for those in use. Locks stay: the same is installed again when it is needed.
///
/// # Errors
/// A folder cannot be read or removed.
pub async fn prune_installations(cache: &Path, unused_since: SystemTime) -> io::Result<Pruned> {
    let mut pruned = Pruned::default();
    for kind in ["servers", "environments"] {
        for folder in folders(&cache.join(kind))? {
            // Whoever installs holds the same lock.
            let _lock = assets::lock(folder.with_extension("lock")).await.map_err(io::Error::other)?;
            let last = fs::metadata(folder.join(READY)).and_then(|meta| meta.modified()).ok();
            let parts = [folder.join("prefix"), folder.join(BUILD_CACHE), folder.join(STAGING)];
            if last.is_some_and(|last| last >= unused_since) || !parts.iter().any(|part| part.exists()) {
                continue;
            }
            // A server that runs, or one that is about to start.
            let mark = fs::File::create(used(&folder))?;
            if mark.try_lock().is_err() {
                continue;
            }
            pruned.installations += 1;
            fs::remove_file(folder.join(READY)).ok();
            mark.unlock()?;
            for part in parts {
                pruned.bytes += disk_usage(&part).unwrap_or_default();
                remove_tree(&part)?;
            }
        }
    }
    Ok(pruned)
}

/// Removes what npm and uv keep of packages below `cache`; they fetch it again.
///
/// # Errors
/// A folder cannot be removed.
pub fn prune_packages(cache: &Path) -> io::Result<Pruned> {
    let mut pruned = Pruned::default();
    for folder in ["npm", "uv"].map(|name| cache.join(name)) {
        pruned.bytes += disk_usage(&folder).unwrap_or_default();
        remove_tree(&folder)?;
    }
    Ok(pruned)
}

fn folders(below: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(below) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_is_unused_or_unfinished_goes_and_locks_stay() {
        let cache = tempfile::tempdir().unwrap();
        let install = |name: &str, ready: Option<u64>| {
            let folder = cache.path().join("servers").join(name);
            fs::create_dir_all(folder.join("prefix/node_modules")).unwrap();
            fs::create_dir_all(folder.join("lock")).unwrap();
            fs::create_dir_all(folder.join(BUILD_CACHE)).unwrap();
            if let Some(days) = ready {
                let file = fs::File::create(folder.join(READY)).unwrap();
                file.set_modified(SystemTime::now() - Duration::from_secs(days * 86_400)).unwrap();
            }
            folder
        };
        let (fresh, old, half) = (install("fresh", Some(1)), install("old", Some(40)), install("half", None));
        let since = SystemTime::now() - Duration::from_secs(30 * 86_400);
        let pruned = prune_installations(cache.path(), since).await.unwrap();
        assert_eq!(pruned.installations, 2);
        assert!(pruned.bytes > 0);
        assert!(fresh.join("prefix").exists() && !old.join("prefix").exists() && !half.join("prefix").exists());
        assert!(old.join("lock").exists() && !old.join(BUILD_CACHE).exists() && fresh.join(BUILD_CACHE).exists());
        assert_eq!(prune_installations(cache.path(), since).await.unwrap(), Pruned::default());

        let running = fs::File::create(used(&fresh)).unwrap();
        running.lock_shared().unwrap();
        let now = SystemTime::now() + Duration::from_secs(1);
        assert_eq!(prune_installations(cache.path(), now).await.unwrap(), Pruned::default());
        assert!(fresh.join("prefix").exists() && fresh.join(READY).exists());
        running.unlock().unwrap();
        assert_eq!(prune_installations(cache.path(), now).await.unwrap().installations, 1);
        assert_eq!(prune_packages(cache.path()).unwrap(), Pruned::default());
    }
}
