//! The store of exchanges with the outside world, in SQLite: shared by all runs and by processes
//! that work at the same time, and written as a file to be replayed elsewhere.

mod checkpoint;
mod export;
mod pack;
mod prune;
mod sqlite;
mod tables;
mod writer;

use std::{
    io,
    path::{Path, PathBuf},
};

use mcpmill_core::edge::{ExchangeKind, StoreError};
use thiserror::Error;

pub use export::{ExchangeFile, Limits};
pub use prune::Pruned;
pub use sqlite::{Check, Imported, KindStats, SqliteExchanges};

/// Which exchanges to write out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All of the store.
    All,
    /// Those the run of this store recorded or was given.
    OfRun,
}

/// A store or file of exchanges cannot be used.
#[derive(Debug, Error)]
#[error("failed to use the exchanges in `{}`: {kind}", .path.display())]
pub struct ExchangesError {
    /// The store or file.
    pub path: PathBuf,
    /// What went wrong.
    pub kind: ExchangesErrorKind,
}

impl ExchangesError {
    fn new(path: &Path, kind: impl Into<ExchangesErrorKind>) -> Self {
        Self { path: path.to_owned(), kind: kind.into() }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match &self.kind {
            ExchangesErrorKind::Io(e) if e.kind() == io::ErrorKind::NotFound => {
                Some("`exchange_store` and `cache import` name a file that is there")
            }
            ExchangesErrorKind::Format { .. } => Some("use the version of mcpmill that made it, or another `cache` folder"),
            ExchangesErrorKind::Foreign | ExchangesErrorKind::Damaged(_) => {
                Some("move the file away; replies recorded in it will be asked for again")
            }
            ExchangesErrorKind::Refused { .. } => Some("export another run, or run the stage that asked for it again"),
            ExchangesErrorKind::ReadOnly(_) => {
                Some("a file of exchanges serves `mode = \"replay\"`; name a store for other modes")
            }
            _ => None,
        }
    }
}

impl From<ExchangesError> for StoreError {
    fn from(error: ExchangesError) -> Self {
        Self(error.to_string())
    }
}

/// What can go wrong with a store or file of exchanges.
#[derive(Debug, Error)]
pub enum ExchangesErrorKind {
    /// The file system said no.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// SQLite said no.
    #[error("{0}")]
    Sqlite(String),
    /// The file is no database, or its pages or bodies are damaged.
    #[error("the file is damaged: {0}")]
    Damaged(String),
    /// The file is a database of something else.
    #[error("the file is a database of another program")]
    Foreign,
    /// The file was made by another version.
    #[error("its format is {found}, this version reads {known}")]
    Format {
        /// Format of the file.
        found: i64,
        /// The format this version knows.
        known: i64,
    },
    /// A line of an exported file cannot be used.
    #[error("line {line}: {detail}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// What is wrong.
        detail: String,
    },
    /// An exported file is larger than is allowed.
    #[error("more than {0} bytes unpacked")]
    TooLarge(u64),
    /// An exchange that must not be handed on.
    #[error("the exchange `{key}` is not handed on: {why}")]
    Refused {
        /// Its key.
        key: String,
        /// Why not.
        why: String,
    },
    /// The file is only read.
    #[error("the file is only read, {} exchanges cannot be added", .0.as_str())]
    ReadOnly(ExchangeKind),
}

impl From<rusqlite::Error> for ExchangesErrorKind {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match error.sqlite_error_code() {
            Some(DatabaseCorrupt | NotADatabase) => Self::Damaged(error.to_string()),
            _ => Self::Sqlite(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
