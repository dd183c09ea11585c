//! Artifacts on disk: Parquet files, the journal of a running stage, the run directory and the
//! store of exchanges with the outside world.
//!
//! This crate alone knows Arrow, Parquet and SQLite; none of their types leaves it. What it holds to:
//!
//! - A file is complete or absent: everything that is replaced is written beside its place, synced
//!   and renamed.
//! - A row that ended survives a kill of the process; a stage that did not end never looks finished.
//! - Equal rows are equal bytes, whatever order they ended in and however often the run was killed.
//! - Bytes from disk may be foreign or damaged: they end in an error that names the file, not in a panic.

pub mod artifact;
mod codec;
mod durable;
pub mod exchanges;
mod hash;
pub mod journal;
pub mod parquet_file;
pub mod run_dir;

pub use codec::{CodecError, CodecErrorKind};
pub use hash::file_hash;
