//! A file of the user's choice, by its address and its hash.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use reqwest::{StatusCode, Url, header};
use thiserror::Error;
use tokio::{fs::OpenOptions, io::AsyncWriteExt, time::sleep};

use super::{
    fetch::{digest, place},
    lock,
};
use crate::secret::Secret;

/// Tries in a row that may bring nothing.
const TRIES: u32 = 4;
/// A connection that brings nothing for this long is dead.
const SILENCE: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(10);
/// Redirects that are followed: hubs send to a storage of theirs.
const REDIRECTS: usize = 5;

/// A file to be fetched.
#[derive(Clone, Debug)]
pub struct Remote {
    url: Url,
    sha256: String,
    most_bytes: u64,
    token: Option<Secret>,
}

/// Why a file cannot be had.
#[derive(Debug, Error)]
#[error("failed to fetch `{file}`: {kind}")]
pub struct DownloadError {
    /// The last part of its address.
    pub file: String,
    /// Why not.
    pub kind: DownloadErrorKind,
}

/// Kinds of failure of a download.
#[derive(Debug, Error)]
pub enum DownloadErrorKind {
    /// The address or the hash is none.
    #[error("{0}")]
    Declared(String),
    /// The host cannot be reached, or hung up.
    #[error("{0}")]
    Network(String),
    /// The host answered with another status than success.
    #[error("status {0}")]
    Status(u16),
    /// It is larger than allowed.
    #[error("it has more than {0} bytes")]
    TooLarge(u64),
    /// It is another file.
    #[error("its SHA-256 is {found}, not {wanted}")]
    Digest {
        /// The digest of what came.
        found: String,
        /// The digest that was declared.
        wanted: String,
    },
    /// The disk.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Remote {
    /// A file by its address, SHA-256 in hex, and most bytes it may have.
    ///
    /// # Errors
    /// The address is no http or https URL of a file, or the hash is none.
    pub fn new(url: &str, sha256: &str, most_bytes: u64) -> Result<Self, DownloadError> {
        let fail = |why: &str| DownloadError { file: clip(url), kind: DownloadErrorKind::Declared(why.into()) };
        let url = Url::parse(url).map_err(|e| fail(&format!("the address is none: {e}")))?;
        if !matches!(url.scheme(), "http" | "https") || !url.username().is_empty() {
            return Err(fail("want an http or https address without user name"));
        }
        let sha256 = sha256.to_ascii_lowercase();
        if sha256.len() != 64 || !sha256.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(fail("want its SHA-256, 64 hexadecimal digits"));
        }
        let remote = Self { url, sha256, most_bytes, token: None };
        if remote.stem().is_empty() { Err(fail("the address names no file")) } else { Ok(remote) }
    }

    /// A file of a model hub, `org/repo/file`, at a revision.
    ///
    /// # Errors
    /// The id or the revision is none; also as [`Remote::new`].
    pub fn hub(base: &str, id: &str, revision: &str, sha256: &str, most_bytes: u64) -> Result<Self, DownloadError> {
        let plain = |part: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            !part.is_empty() && !part.starts_with('.') && part.chars().all(known)
        };
        let fail = |why: &str| DownloadError { file: clip(id), kind: DownloadErrorKind::Declared(why.into()) };
        let parts: Vec<&str> = id.split('/').collect();
        let [org, repo, file @ ..] = parts.as_slice() else { return Err(fail("want `org/repo/file`")) };
        if file.is_empty() || !parts.iter().all(|part| plain(part)) || !plain(revision) {
            return Err(fail("want `org/repo/file` and a revision, of letters, digits, points and dashes"));
        }
        let base = base.trim_end_matches('/');
        Self::new(&format!("{base}/{org}/{repo}/resolve/{revision}/{}", file.join("/")), sha256, most_bytes)
    }

    /// Sends this token with the first request; another host than the first never gets it.
    #[must_use]
    pub fn with_token(mut self, token: Option<Secret>) -> Self {
        self.token = token;
        self
    }

    /// The file's name without its ending.
    pub fn stem(&self) -> String {
        Path::new(&self.file()).file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// SHA-256 in hex.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    fn file(&self) -> String {
        let last = self.url.path_segments().and_then(|mut parts| parts.next_back()).unwrap_or_default();
        // It becomes a file's name: nothing in it may be a path.
        let name: String = last.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
        name.trim_start_matches('.').chars().take(100).collect()
    }

    /// Where the file is, or will be, below `folder`.
    pub fn path(&self, folder: &Path) -> PathBuf {
        folder.join(&self.sha256[..16]).join(self.file())
    }

    /// The file's path below `folder`, fetched if need be. What came before a break is kept, and gone on from.
    ///
    /// # Errors
    /// It cannot be had, or is another file than was declared.
    pub async fn fetch(&self, folder: &Path, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<PathBuf, DownloadError> {
        let path = self.path(folder);
        let fetched = self.fetch_to(&path, progress).await;
        fetched.map(|()| path).map_err(|kind| DownloadError { file: self.file(), kind })
    }

    async fn fetch_to(&self, path: &Path, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<(), DownloadErrorKind> {
        let folder = path.parent().unwrap_or(path);
        let _lock = lock(folder.with_extension("lock")).await?;
        // It only ever gets its name after its digest was checked.
        if path.is_file() {
            return Ok(());
        }
        fs::create_dir_all(folder)?;
        let partial = folder.join("partial");
        self.complete(&partial, progress).await?;
        let found = digest(partial.clone()).await?;
        if found != self.sha256 {
            fs::remove_file(&partial)?;
            return Err(DownloadErrorKind::Digest { found, wanted: self.sha256.clone() });
        }
        Ok(place(&partial, path, false)?)
    }

    /// Fetches until the file is whole; a try that brought something does not count.
    async fn complete(&self, partial: &Path, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<(), DownloadErrorKind> {
        let client = self.client().map_err(|e| DownloadErrorKind::Network(cause(&e)))?;
        let mut in_vain = 0;
        loop {
            let before = length(partial);
            match self.part(&client, partial, before, progress).await {
                Ok(()) => return Ok(()),
                Err(DownloadErrorKind::Network(why)) => {
                    in_vain = if length(partial) > before { 0 } else { in_vain + 1 };
                    if in_vain >= TRIES {
                        return Err(DownloadErrorKind::Network(why));
                    }
                    sleep(Duration::from_millis(250 << in_vain)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn client(&self) -> reqwest::Result<reqwest::Client> {
        let secure = self.url.scheme() == "https";
        let policy = reqwest::redirect::Policy::custom(move |attempt| {
            if attempt.previous().len() > REDIRECTS || (secure && attempt.url().scheme() != "https") {
                attempt.stop()
            } else {
                attempt.follow()
            }
        });
        let agent = concat!("mcpmill/", env!("CARGO_PKG_VERSION"));
        // Compressed bytes could not be gone on from.
        reqwest::Client::builder()
            .user_agent(agent)
            .redirect(policy)
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .no_gzip()
            .build()
    }

    async fn part(
        &self,
        client: &reqwest::Client,
        partial: &Path,
        from: u64,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<(), DownloadErrorKind> {
        let broken = |e: reqwest::Error| DownloadErrorKind::Network(cause(&e));
        let mut request = client.get(self.url.clone());
        if from > 0 {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        if let Some(Secret(token)) = &self.token {
            request = request.bearer_auth(token);
        }
        let mut response = request.send().await.map_err(broken)?;
        let status = response.status();
        let mut done = match status {
            StatusCode::PARTIAL_CONTENT if starts_at(response.headers(), from) => from,
            StatusCode::OK => 0,
            // There is no more: the digest says whether it is whole.
            StatusCode::RANGE_NOT_SATISFIABLE if from > 0 => return Ok(()),
            StatusCode::PARTIAL_CONTENT => return Err(DownloadErrorKind::Network("the host sent another part".into())),
            s if s.is_server_error() || s == StatusCode::TOO_MANY_REQUESTS => {
                return Err(DownloadErrorKind::Network(format!("status {}", s.as_u16())));
            }
            s => return Err(DownloadErrorKind::Status(s.as_u16())),
        };
        let total = done + response.content_length().unwrap_or_default();
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(partial).await?;
        file.set_len(done).await?;
        io_seek(&mut file, done).await?;
        loop {
            let chunk = response.chunk().await;
            let chunk = match chunk {
                Ok(Some(chunk)) => chunk,
                ended => {
                    file.flush().await?;
                    file.sync_all().await?;
                    return ended.map(drop).map_err(broken);
                }
            };
            done += chunk.len() as u64;
            if done.max(total) > self.most_bytes {
                drop(file);
                fs::remove_file(partial)?;
                return Err(DownloadErrorKind::TooLarge(self.most_bytes));
            }
            file.write_all(&chunk).await?;
            progress(done, total.max(done));
        }
    }
}

async fn io_seek(file: &mut tokio::fs::File, to: u64) -> io::Result<()> {
    use tokio::io::AsyncSeekExt;
    file.seek(io::SeekFrom::Start(to)).await.map(drop)
}

/// Whether a part begins where it was asked to.
fn starts_at(headers: &header::HeaderMap, from: u64) -> bool {
    let range = headers.get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok()).unwrap_or_default();
    let start = range.strip_prefix("bytes ").and_then(|range| range.split('-').next());
    start.and_then(|start| start.trim().parse().ok()) == Some(from)
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
}

/// The innermost cause; the outer ones name the address only.
fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

fn clip(text: &str) -> String {
    text.rsplit('/').next().unwrap_or_default().chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef";

    #[test]
    fn hub_ids_become_addresses_and_nothing_else() {
        let remote = Remote::hub("https://hub/", "org/repo/sub/m.Q4.gguf", "main", HASH, 9).unwrap();
        assert_eq!(remote.url.as_str(), "https://hub/org/repo/resolve/main/sub/m.Q4.gguf");
        assert_eq!((remote.stem().as_str(), remote.sha256()), ("m.Q4", HASH.to_lowercase().as_str()));
        assert!(remote.path(Path::new("/c")).ends_with("0123456789abcdef/m.Q4.gguf"));
        for id in ["m.gguf", "org/repo", "org/repo/", "org/../x/m", "org/repo/a?b", "/a/b/c"] {
            assert!(Remote::hub("https://hub", id, "main", HASH, 9).is_err(), "{id}");
        }
        assert!(Remote::hub("https://hub", "a/b/c", "../x", HASH, 9).is_err());
    }

    #[test]
    fn addresses_and_hashes_are_checked() {
        for (url, hash) in
            [("ftp://a/b", HASH), ("https://me@a/b", HASH), ("https://a/", HASH), ("https://a/b", "12"), ("b", HASH)]
        {
            assert!(Remote::new(url, hash, 9).is_err(), "{url} {hash}");
        }
    }
}
