//! What discover has of the world: pages behind the exchange store, and files of the user's.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use mcpmill_core::{
    canonical::sha256_hex,
    edge::{ExchangeError, ExchangeKind, Fetch, FetchError, FetchErrorKind, FetchRequest, Page, Recorder},
    secrets::redact_url,
};
use mcpmill_pipeline::discover::Files;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    error::{Exit, Failure},
    fixtures::{INDEX, Saved},
};

/// Bytes of a file of the user's.
const LARGEST_FILE: u64 = 16 << 20;
/// Files of a folder, and levels below it.
const MOST_FILES: usize = 200_000;
const DEEPEST: usize = 12;

/// Pages that go through the exchange store: a run asks for a page once, however often it is killed, and a
/// replay asks nobody. A page that could not be had is recorded too, for replay only: a crawl that went another
/// way for it goes that way again.
pub struct RecordedFetch {
    inner: Arc<dyn Fetch>,
    recorder: Arc<Recorder>,
}

impl RecordedFetch {
    /// Records what `inner` brings.
    pub fn new(inner: Arc<dyn Fetch>, recorder: Arc<Recorder>) -> Self {
        Self { inner, recorder }
    }
}

#[async_trait]
impl Fetch for RecordedFetch {
    async fn fetch(&self, request: &FetchRequest) -> Result<Page, FetchError> {
        let fail = |kind| FetchError { url: request.url.clone(), kind };
        let unreadable = |e: serde_json::Error| fail(FetchErrorKind::Cache(e.to_string()));
        let live = || async {
            Ok::<_, FetchError>(match self.inner.fetch(request).await {
                Ok(page) => json!(page),
                Err(failed) => json!(Failed { failed }),
            })
        };
        let settled = |told: &Value| told.get("failed").is_none();
        match self.recorder.ask(ExchangeKind::Fetch, &json!(request), settled, live).await {
            Ok(recorded) if settled(&recorded.reply) => serde_json::from_value(recorded.reply).map_err(unreadable),
            Ok(recorded) => Err(serde_json::from_value::<Failed>(recorded.reply).map_or_else(unreadable, |told| told.failed)),
            Err(ExchangeError::Live(error)) => Err(error),
            Err(ExchangeError::NotRecorded { .. }) => Err(fail(FetchErrorKind::Offline)),
            Err(error @ ExchangeError::Store(_)) => Err(fail(FetchErrorKind::Cache(error.to_string()))),
        }
    }
}

/// A failure as it is recorded.
#[derive(Serialize, Deserialize)]
struct Failed {
    failed: FetchError,
}

/// Saves every page, without secrets, in the form of a fixture: `pages.json` names the file of every
/// address.
pub struct SavedPages {
    inner: Arc<dyn Fetch>,
    folder: PathBuf,
    saved: Mutex<BTreeMap<String, Saved>>,
}

impl SavedPages {
    /// Saves into `folder`, which is made.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(inner: Arc<dyn Fetch>, folder: &Path) -> Result<Self, Failure> {
        let fail = |e: io::Error| Failure::new(Exit::Usage, format!("failed to make `{}`: {e}", folder.display()));
        fs::create_dir_all(folder).map_err(fail)?;
        Ok(Self { inner, folder: folder.to_owned(), saved: Mutex::default() })
    }

    fn save(&self, request: &FetchRequest, page: &Page) -> io::Result<()> {
        let ending = match page.content_type.as_deref() {
            Some("application/json") => "json",
            Some("text/html") => "html",
            Some("application/xml" | "text/xml") => "xml",
            _ => "txt",
        };
        let name = format!("{}.{ending}", &sha256_hex(&request.url)[..16]);
        // The crawler has cleaned the page itself.
        fs::write(self.folder.join(&name), &page.body)?;
        let page = match &page.next {
            Some(next) => Saved::Linked { file: name, next: redact_url(next) },
            None => Saved::Plain(name),
        };
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        saved.insert(redact_url(&request.url), page);
        fs::write(self.folder.join(INDEX), format!("{:#}\n", json!(*saved)))
    }
}

#[async_trait]
impl Fetch for SavedPages {
    async fn fetch(&self, request: &FetchRequest) -> Result<Page, FetchError> {
        let page = self.inner.fetch(request).await?;
        let failed = |e: io::Error| FetchError { url: request.url.clone(), kind: FetchErrorKind::Cache(e.to_string()) };
        self.save(request, &page).map_err(failed)?;
        Ok(page)
    }
}

/// The user's files. Links are not followed: a checkout may hold one that leads out of it.
pub struct DiskFiles;

impl Files for DiskFiles {
    fn list(&self, folder: &str) -> Result<Vec<String>, String> {
        let root = Path::new(folder);
        let (mut files, mut open) = (Vec::new(), vec![(root.to_owned(), 0)]);
        while let Some((path, depth)) = open.pop() {
            let entries = fs::read_dir(&path).map_err(|e| format!("`{}`: {e}", path.display()))?;
            for entry in entries.flatten() {
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() && depth < DEEPEST && entry.file_name() != ".git" {
                    open.push((entry.path(), depth + 1));
                } else if kind.is_file()
                    && let Some(name) = entry.path().strip_prefix(root).ok().and_then(Path::to_str)
                {
                    files.push(name.to_owned());
                }
                if files.len() > MOST_FILES {
                    return Err(format!("`{folder}` holds more than {MOST_FILES} files"));
                }
            }
        }
        Ok(files)
    }

    fn read(&self, path: &str) -> Result<String, String> {
        let fail = |e: io::Error| format!("`{path}`: {e}");
        let meta = fs::metadata(path).map_err(fail)?;
        if !meta.is_file() || meta.len() > LARGEST_FILE {
            return Err(format!("`{path}` is no file of at most {} MB", LARGEST_FILE >> 20));
        }
        fs::read_to_string(path).map_err(fail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_listed_without_links() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/.git")).unwrap();
        fs::write(folder.path().join("a/x.json"), "{}").unwrap();
        fs::write(folder.path().join("a/.git/config"), "").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("a/link")).unwrap();
        let root = folder.path().to_str().unwrap();
        assert_eq!(DiskFiles.list(root).unwrap(), ["a/x.json"]);
        assert_eq!(DiskFiles.read(&format!("{root}/a/x.json")).unwrap(), "{}");
        assert!(DiskFiles.read(root).is_err());
    }
}
