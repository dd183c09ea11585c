use thiserror::Error;

use crate::assets::AssetError;

/// A package could not be installed.
#[derive(Debug, Error)]
#[error("failed to install `{package}`: {kind}")]
pub struct InstallError {
    /// The package, with its version.
    pub package: String,
    /// Why not.
    pub kind: InstallErrorKind,
}

/// Why a package could not be installed.
#[derive(Debug, Error)]
pub enum InstallErrorKind {
    /// There is no interpreter for it.
    #[error("there is no {0} on this machine")]
    NoInterpreter(String),
    /// Nothing may be fetched.
    #[error("it is not in the cache, and nothing may be fetched")]
    Offline,
    /// The installer is not to be had.
    #[error(transparent)]
    Installer(#[from] AssetError),
    /// The cage does not work.
    #[error("{0}")]
    Cage(String),
    /// The installer gave up.
    #[error("{step} ended with {end}")]
    Failed {
        /// What was done (`npm ci`).
        step: &'static str,
        /// How it ended.
        end: String,
        /// The end of what it printed.
        stderr: String,
    },
    /// The lock is for another package, or cannot be read.
    #[error("its lock does not fit: {0}")]
    Lock(String),
    /// It was installed but holds no program to run.
    #[error("{0}")]
    NoProgram(String),
    /// The disk.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl InstallError {
    /// The end of the installer's output.
    pub fn stderr(&self) -> Option<&str> {
        match &self.kind {
            InstallErrorKind::Failed { stderr, .. } => Some(stderr),
            _ => None,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match &self.kind {
            InstallErrorKind::NoInterpreter(what) => Some(format!("install {what} and put it on the PATH")),
            InstallErrorKind::Installer(error) => Some(error.hint()),
            InstallErrorKind::Offline => Some("run once without `--offline`".to_owned()),
            InstallErrorKind::Failed { .. } => {
                Some("check that npm and pip reach their registries (network, proxy, configuration)".to_owned())
            }
            _ => None,
        }
    }
}
