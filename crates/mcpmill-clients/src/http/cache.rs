//! Pages on disk, for conditional requests and for work without a network.
//!
//! A file is a zstd stream of one line of JSON and the body. Its name is a hash of what was asked;
//! of keys that is the name of their variable. A file that cannot be read is taken for absent.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::SystemTime,
};

use mcpmill_core::edge::{FetchErrorKind, FetchRequest};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::task::spawn_blocking;

/// More than this of a file is not read beyond what the body may have.
const LARGEST_HEAD: u64 = 64 << 10;
/// The end of an entry's name.
const SUFFIX: &str = ".zst";
/// The start of the name of a file that is being written.
const TEMPORARY: &str = ".page-";

/// What is kept of an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Where it was found in the end.
    pub url: String,
    pub content_type: Option<String>,
    pub next: Option<String>,
    pub etag: Option<String>,
    pub last_modified: Option<String>,
    /// Seconds since 1970.
    pub stored: u64,
    /// SHA-256 of the body; set when it is stored.
    pub digest: String,
    #[serde(skip)]
    pub body: String,
}

/// The folder.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    pub folder: PathBuf,
    /// Bytes a body may have.
    pub largest: u64,
}

impl Cache {
    /// The entry of a name, if there is a sound one.
    pub async fn load(&self, name: &str) -> Option<Entry> {
        let (path, largest) = (self.folder.join(name), self.largest);
        spawn_blocking(move || read(&path, largest)).await.ok().flatten()
    }

    /// Keeps an entry under a name, and gives it back.
    pub async fn store(&self, name: &str, entry: Entry) -> Result<Entry, FetchErrorKind> {
        let (folder, name) = (self.folder.clone(), name.to_owned());
        let stored = spawn_blocking(move || {
            let entry = Entry { digest: hex::encode(Sha256::digest(&entry.body)), ..entry };
            write(&folder, &name, &entry).map(|()| entry)
        });
        finished(stored.await)
    }

    /// Forgets an entry.
    pub async fn remove(&self, name: &str) -> Result<(), FetchErrorKind> {
        let path = self.folder.join(name);
        let removed = spawn_blocking(move || match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        });
        finished(removed.await)
    }

    /// Notes that an entry was of use, so that it is not the next to be evicted.
    pub async fn touch(&self, name: &str) {
        let path = self.folder.join(name);
        // Only the order of eviction depends on it.
        let _ = spawn_blocking(move || File::options().append(true).open(path)?.set_modified(SystemTime::now())).await;
    }

    /// Removes the oldest files until all together have at most so many bytes.
    pub fn prune(&self, largest: u64) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            // A file may go while it is looked at: another process prunes too.
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_file() && is_ours(&entry.file_name().to_string_lossy()) {
                files.push((meta.modified()?, meta.len(), entry.path()));
            }
        }
        files.sort_unstable();
        let mut total: u64 = files.iter().map(|(_, length, _)| length).sum();
        for (_, length, path) in files {
            if total <= largest {
                break;
            }
            match fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => total -= length,
            }
        }
        Ok(())
    }
}

/// The file of what a request asks for.
pub(super) fn name_of(request: &FetchRequest) -> String {
    let keys: Vec<_> = request.keys.iter().map(|key| (&key.header, &key.env, &key.prefix)).collect();
    hash_of(&format!("{:?}", ("page", &request.url, &request.accept, keys)))
}

/// The file of a host's robots.txt.
pub(super) fn name_of_robots(url: &str) -> String {
    hash_of(&format!("{:?}", ("robots", url)))
}

/// Whether a file is an entry, or what a kill left of one. Others in the folder are not ours to remove.
fn is_ours(name: &str) -> bool {
    name.starts_with(TEMPORARY) || name.strip_suffix(SUFFIX).is_some_and(|hash| hash.len() == 64)
}

fn hash_of(text: &str) -> String {
    format!("{}{SUFFIX}", hex::encode(Sha256::digest(text)))
}

fn finished<T>(outcome: Result<io::Result<T>, tokio::task::JoinError>) -> Result<T, FetchErrorKind> {
    outcome.map_err(io::Error::other).flatten().map_err(|e| FetchErrorKind::Cache(e.to_string()))
}

fn read(path: &Path, largest: u64) -> Option<Entry> {
    let decoder = zstd::Decoder::new(File::open(path).ok()?).ok()?;
    let mut text = String::new();
    decoder.take(LARGEST_HEAD + largest).read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once('\n')?;
    let entry: Entry = serde_json::from_str(head).ok()?;
    (entry.digest == hex::encode(Sha256::digest(body))).then(|| Entry { body: body.to_owned(), ..entry })
}

fn write(folder: &Path, name: &str, entry: &Entry) -> io::Result<()> {
    let head = serde_json::to_string(entry)?;
    if head.len() as u64 > LARGEST_HEAD {
        // It could not be read back. Headers of such length are nobody's honest ones.
        return Ok(());
    }
    let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(folder)?;
    let mut encoder = zstd::Encoder::new(&mut file, zstd::DEFAULT_COMPRESSION_LEVEL)?;
    encoder.write_all(head.as_bytes())?;
    encoder.write_all(b"\n")?;
    encoder.write_all(entry.body.as_bytes())?;
    encoder.finish()?;
    file.persist(folder.join(name)).map_err(|e| e.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn cache(largest: u64) -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache { folder: folder.path().to_owned(), largest };
        (folder, cache)
    }

    fn entry(body: &str) -> Entry {
        Entry { url: "https://example.com/".into(), etag: Some("\"1\"".into()), stored: 7, body: body.into(), ..Entry::default() }
    }

    #[tokio::test]
    async fn what_was_stored_comes_back_and_damage_is_absence() {
        let (folder, cache) = cache(1000);
        assert_eq!(cache.load("a").await, None);
        cache.store("a", entry("body\nof two lines")).await.unwrap();
        let back = cache.load("a").await.unwrap();
        assert_eq!((back.body.as_str(), back.etag.as_deref(), back.stored), ("body\nof two lines", Some("\"1\""), 7));
        let path = folder.path().join("a");
        let sound = fs::read(&path).unwrap();
        for at in 0..sound.len() {
            let mut damaged = sound.clone();
            damaged[at] ^= 0x20;
            fs::write(&path, &damaged).unwrap();
            assert!(cache.load("a").await.is_none_or(|entry| entry.body == back.body), "byte {at}");
            fs::write(&path, &sound[..at]).unwrap();
            assert_eq!(cache.load("a").await, None, "cut at {at}");
        }
        cache.remove("a").await.unwrap();
        cache.remove("a").await.unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_bomb_on_disk_is_not_unpacked() {
        let (_folder, cache) = cache(1000);
        cache.store("a", entry(&"x".repeat(10 << 20))).await.unwrap();
        assert_eq!(cache.load("a").await, None);
    }

    #[tokio::test]
    async fn the_oldest_are_evicted_and_use_makes_young() {
        let (folder, cache) = cache(1000);
        let [a, b, c] = ["a", "b", "c"].map(hash_of);
        for (name, age) in [(&a, 300), (&b, 200), (&c, 100)] {
            cache.store(name, entry("body")).await.unwrap();
            let file = File::options().append(true).open(folder.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        }
        fs::write(folder.path().join("notes.zst"), "the user's own").unwrap();
        cache.touch(&a).await;
        let each = fs::metadata(folder.path().join(&a)).unwrap().len();
        cache.prune(each * 3).unwrap();
        assert!(cache.load(&b).await.is_some());
        cache.prune(each * 2).unwrap();
        assert_eq!(
            [cache.load(&a).await.is_some(), cache.load(&b).await.is_some(), cache.load(&c).await.is_some()],
            [true, false, true]
        );
        cache.prune(0).unwrap();
        assert!(folder.path().join("notes.zst").exists() && !folder.path().join(&a).exists());
    }

    #[test]
    fn the_name_depends_on_all_that_is_asked() {
        let plain = FetchRequest { url: "https://example.com/".into(), ..FetchRequest::default() };
        let other = FetchRequest { accept: Some("text/html".into()), ..plain.clone() };
        assert_ne!(name_of(&plain), name_of(&other));
        assert_eq!(name_of(&plain), name_of(&FetchRequest { per_minute: Some(3), ..plain.clone() }));
        assert_ne!(name_of(&plain), name_of_robots(&plain.url));
    }
}
