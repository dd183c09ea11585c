//! Rows in Parquet files: equal rows give equal bytes, files are complete or absent, and reading
//! takes memory for one batch only.

mod read;
mod write;

use std::{
    io,
    path::{Path, PathBuf},
};

use thiserror::Error;

pub(crate) use read::{Batches, Values};
pub use read::{Rows, metadata, read_all, row_count};
pub(crate) use write::{BATCH_BYTES, BATCH_ROWS, Layout};
pub use write::{ROW_GROUP_BYTES, ROW_GROUP_ROWS, Writer, write_all};

use crate::codec::CodecError;

/// A Parquet file could not be read or written.
#[derive(Debug, Error)]
#[error("failed to {action} `{}`: {kind}", .path.display())]
pub struct FileError {
    /// `read` or `write`.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What went wrong.
    pub kind: FileErrorKind,
}

impl FileError {
    fn read(path: &Path, kind: impl Into<FileErrorKind>) -> Self {
        Self { action: "read", path: path.to_owned(), kind: kind.into() }
    }

    fn write(path: &Path, kind: impl Into<FileErrorKind>) -> Self {
        Self { action: "write", path: path.to_owned(), kind: kind.into() }
    }
}

/// What can go wrong with a Parquet file.
#[derive(Debug, Error)]
pub enum FileErrorKind {
    /// The file system said no.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is no Parquet file, or is damaged.
    #[error("the file is damaged or is no Parquet file: {0}")]
    Parquet(String),
    /// A column is missing, of another type, or does not take a value.
    #[error(transparent)]
    Column(#[from] CodecError),
    /// The columns are there but make no record.
    #[error("row {row} is no record of `{table}`: {detail}")]
    Record {
        /// Counted from 0.
        row: u64,
        /// The table.
        table: &'static str,
        /// What serde said.
        detail: String,
    },
}

#[cfg(test)]
mod tests {
    use std::fs;

    use mcpmill_core::record::{Outcome, Sample, ServerRecord, Tool};
    use serde_json::json;

    use super::*;
    use crate::{
        artifact::{Column, Columns, Table},
        codec::samples::Dice,
    };

    fn samples(n: u64) -> Vec<Sample> {
        let mut dice = Dice::new(7);
        (0..n).map(|_| dice.sample()).collect()
    }

    #[test]
    fn many_rows_come_back_over_row_groups_and_batches() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samples.parquet");
        let rows = samples(ROW_GROUP_ROWS as u64 + 777);
        write_all(&path, &rows, &[]).unwrap();
        assert_eq!(read_all::<Sample>(&path).unwrap(), rows);
        assert_eq!(row_count(&path).unwrap(), rows.len() as u64);
        assert_eq!(read::row_groups(&path), [ROW_GROUP_ROWS as i64, 777]);
    }

    #[test]
    fn bytes_depend_on_the_rows_alone() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|n| dir.path().join(n));
        let rows = samples(2000);
        write_all(&a, &rows, &[]).unwrap();
        let mut writer = Writer::create(&b, &Sample::columns(), &[]).unwrap();
        rows.iter().for_each(|row| writer.push(row).unwrap());
        assert_eq!(writer.finish().unwrap(), 2000);
        write_all(&c, &rows[1..], &[]).unwrap();
        assert_eq!(fs::read(&a).unwrap(), fs::read(&b).unwrap());
        assert_ne!(fs::read(&a).unwrap(), fs::read(&c).unwrap());
    }

    #[test]
    fn no_rows_are_a_file_too_and_metadata_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tools.parquet");
        write_all::<Tool>(&path, &[], &[("dataset", "mcp"), ("version", "0.1.0")]).unwrap();
        assert_eq!(read_all::<Tool>(&path).unwrap(), []);
        let pairs = metadata(&path).unwrap();
        assert_eq!(pairs, [("dataset".to_owned(), "mcp".to_owned()), ("version".into(), "0.1.0".into())]);
        assert_eq!(read::created_by(&path), "mcpmill");
    }

    #[test]
    fn a_failed_write_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        fs::write(&path, "old").unwrap();
        let mut writer = Writer::create(&path, &Columns::new([Column::text("a")]), &[]).unwrap();
        let message = writer.push(&json!({"a": 1})).unwrap_err().to_string();
        assert!(message.contains("x.parquet") && message.contains("column `a`"), "{message}");
        let message = writer.finish().unwrap_err().to_string();
        assert!(message.contains("a row was refused before"), "{message}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn reading_names_file_and_column() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("servers.parquet");
        let columns = Columns::new(ServerRecord::columns().names().filter(|n| *n != "launch").map(Column::text));
        Writer::create(&path, &columns, &[]).unwrap().finish().unwrap();
        let error = read_all::<ServerRecord>(&path).unwrap_err();
        let expected = format!("failed to read `{}`: failed to convert column `launch`: the column is missing", path.display());
        assert_eq!(error.to_string(), expected);
        write_all::<Outcome>(&path, &[], &[]).unwrap();
        assert!(matches!(read_all::<ServerRecord>(&path).unwrap_err().kind, FileErrorKind::Column(_)));
    }

    #[test]
    fn a_row_that_is_no_record_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samples.parquet");
        let mut writer = Writer::create(&path, &Sample::columns(), &[]).unwrap();
        writer.push(&samples(1)[0]).unwrap();
        writer.push(&json!({"id": "smp_x"})).unwrap();
        writer.finish().unwrap();
        let mut rows = Rows::<Sample>::open(&path).unwrap();
        assert!(rows.next().unwrap().is_ok());
        let error = rows.next().unwrap().unwrap_err();
        assert!(matches!(error.kind, FileErrorKind::Record { row: 1, table: "samples", .. }), "{error}");
        assert!(rows.next().is_none(), "nothing follows an error");
    }

    #[test]
    fn columns_may_be_added_and_reordered_by_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tools.parquet");
        let mut names: Vec<String> = Tool::columns().names().map(str::to_owned).collect();
        names.reverse();
        names.push("stars".into());
        let mut writer = Writer::create(&path, &Columns::new(names.iter().map(|n| Column::text(n))), &[]).unwrap();
        let tool = Dice::new(5).tool();
        let mut value = serde_json::to_value(&tool).unwrap();
        value["stars"] = json!("5");
        writer.push(&value).unwrap();
        writer.finish().unwrap();
        assert_eq!(read_all::<Tool>(&path).unwrap(), [tool]);
    }

    /// Cuts, overwrites and inverts everywhere; whatever is read, it is an error or rows.
    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samples.parquet");
        write_all(&path, &samples(3), &[]).unwrap();
        let whole = fs::read(&path).unwrap();
        let mut failed = 0;
        let mut attempt = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            failed += usize::from(read_all::<Sample>(&path).is_err());
        };
        // Every third byte: enough to meet damage that makes the Parquet reader itself panic.
        for at in (0..whole.len()).step_by(3) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            attempt(&bytes);
            if at % 8 == 0 {
                attempt(&whole[..at]);
            }
        }
        assert!(failed > whole.len() / 12, "{failed} of {}", whole.len());
        fs::write(&path, "PAR1 but not really").unwrap();
        let message = read_all::<Sample>(&path).unwrap_err().to_string();
        assert!(message.contains("samples.parquet"), "{message}");
    }
}
