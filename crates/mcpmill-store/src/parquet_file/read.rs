//! Reading, one batch at a time.

use std::{
    fs::File,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    vec,
};

use arrow_array::RecordBatch;
use parquet::arrow::{
    ProjectionMask,
    arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder},
};
use serde_json::Value;

use super::{FileError, FileErrorKind};
use crate::{
    artifact::{Columns, Table},
    codec::{decode, mismatch},
};

/// Rows held in memory.
const BATCH_ROWS: usize = 256;

/// The rows of a file, in order; an error is the last item.
pub struct Rows<T> {
    values: Values,
    read: u64,
    failed: bool,
    record: PhantomData<fn() -> T>,
}

impl<T: Table> Rows<T> {
    /// Opens a file. Columns it has beyond those of `T` are not read.
    ///
    /// # Errors
    /// No such file, no Parquet file, or a column is missing or of another type.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        Ok(Self { values: Values::open(path, &T::columns(), BATCH_ROWS)?, read: 0, failed: false, record: PhantomData })
    }
}

impl<T: Table> Iterator for Rows<T> {
    type Item = Result<T, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let record = self.values.next()?.and_then(|value| {
            serde_json::from_value(value).map_err(|e| {
                let kind = FileErrorKind::Record { row: self.read, table: T::NAME, detail: e.to_string() };
                FileError::read(&self.values.batches.path, kind)
            })
        });
        self.read += 1;
        self.failed = record.is_err();
        Some(record)
    }
}

/// All rows of a file at once.
///
/// # Errors
/// As [`Rows::open`], or a row that is no record of `T`.
pub fn read_all<T: Table>(path: &Path) -> Result<Vec<T>, FileError> {
    Rows::open(path)?.collect()
}

/// The number of rows, from the footer.
///
/// # Errors
/// No such file, or no Parquet file.
pub fn row_count(path: &Path) -> Result<u64, FileError> {
    let (_, footer) = footer(path)?;
    Ok(footer.metadata().file_metadata().num_rows().try_into().unwrap_or(0))
}

/// The key-value pairs of a file, in order.
///
/// # Errors
/// No such file, or no Parquet file.
pub fn metadata(path: &Path) -> Result<Vec<(String, String)>, FileError> {
    let (_, footer) = footer(path)?;
    let pairs = footer.metadata().file_metadata().key_value_metadata().map(Vec::as_slice).unwrap_or_default();
    Ok(pairs.iter().map(|pair| (pair.key.clone(), pair.value.clone().unwrap_or_default())).collect())
}

/// The rows of a file in columns, some at a time.
pub(crate) struct Batches {
    path: PathBuf,
    columns: Columns,
    batches: Option<ParquetRecordBatchReader>,
}

impl Batches {
    /// Opens a file; `batch_rows` of its rows are in memory at a time.
    pub fn open(path: &Path, columns: &Columns, batch_rows: usize) -> Result<Self, FileError> {
        let (file, footer) = footer(path)?;
        let expected = columns.schema().fields();
        mismatch(expected, footer.schema().fields()).map_err(|e| FileError::read(path, e))?;
        let wanted: Vec<usize> = expected.iter().filter_map(|field| footer.schema().index_of(field.name()).ok()).collect();
        let batches = guarded(path, || {
            let mask = ProjectionMask::roots(footer.parquet_schema(), wanted);
            ParquetRecordBatchReaderBuilder::new_with_metadata(file, footer)
                .with_projection(mask)
                .with_batch_size(batch_rows)
                .build()
        })?;
        Ok(Self { path: path.to_owned(), columns: columns.clone(), batches: Some(batches) })
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Taken out and put back only on success, so that nothing follows an error.
        let mut batches = self.batches.take()?;
        let batch = guarded(&self.path, || batches.next().transpose()).transpose()?;
        if batch.is_ok() {
            self.batches = Some(batches);
        }
        Some(batch)
    }
}

/// The rows of a file as JSON objects.
pub(crate) struct Values {
    batches: Batches,
    batch: vec::IntoIter<Value>,
}

impl Values {
    /// As [`Batches::open`].
    pub fn open(path: &Path, columns: &Columns, batch_rows: usize) -> Result<Self, FileError> {
        Ok(Self { batches: Batches::open(path, columns, batch_rows)?, batch: Vec::new().into_iter() })
    }
}

impl Iterator for Values {
    type Item = Result<Value, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(value) = self.batch.next() {
                return Some(Ok(value));
            }
            let Batches { path, columns, .. } = &self.batches;
            let (path, schema) = (path.clone(), columns.schema().clone());
            let rows = match self.batches.next()? {
                Ok(batch) => decode(&schema, &batch).map_err(|e| FileError::read(&path, e)),
                Err(error) => Err(error),
            };
            match rows {
                Ok(rows) => self.batch = rows.into_iter(),
                Err(error) => {
                    self.batches.batches = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

fn footer(path: &Path) -> Result<(File, ArrowReaderMetadata), FileError> {
    let file = File::open(path).map_err(|e| FileError::read(path, e))?;
    // The Arrow schema other writers embed may ask for types (large strings, views) this crate does not read.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let footer = guarded(path, || ArrowReaderMetadata::load(&file, options))?;
    Ok((file, footer))
}

/// Damaged bytes make the Parquet reader fail, and in places panic; both are one error here.
fn guarded<T, E: std::error::Error>(path: &Path, read: impl FnOnce() -> Result<T, E>) -> Result<T, FileError> {
    let said = match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the reader gave up".to_owned(),
    };
    Err(FileError::read(path, FileErrorKind::Parquet(said)))
}

#[cfg(test)]
pub(crate) fn row_groups(path: &Path) -> Vec<i64> {
    use parquet::file::metadata::RowGroupMetaData;
    footer(path).unwrap().1.metadata().row_groups().iter().map(RowGroupMetaData::num_rows).collect()
}

#[cfg(test)]
pub(crate) fn created_by(path: &Path) -> String {
    footer(path).unwrap().1.metadata().file_metadata().created_by().unwrap_or_default().to_owned()
}
