//! Writing, with every setting pinned.

use std::{fs::File, path::Path};

use arrow_array::RecordBatch;
use parquet::{
    arrow::{ArrowWriter, arrow_writer::ArrowWriterOptions},
    basic::{Compression, ZstdLevel},
    errors::ParquetError,
    file::{
        metadata::KeyValue,
        properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion},
    },
};
use serde::Serialize;

use super::{FileError, FileErrorKind};
use crate::{
    artifact::{Columns, Table},
    codec::Batch,
    durable::Staged,
};

/// Rows in a row group; the last one of a file may have fewer.
pub const ROW_GROUP_ROWS: usize = 10_000;

/// Rows encoded at once. A divisor of [`ROW_GROUP_ROWS`]; page boundaries depend on it.
pub(crate) const BATCH_ROWS: usize = 500;

/// Bytes of rows encoded at once, should rows be large.
pub(crate) const BATCH_BYTES: usize = 64 << 20;

/// Bytes of values after which a row group ends before it has all its rows: the hub's viewer reads whole groups where it
/// must, of 300 MB at most.
pub const ROW_GROUP_BYTES: usize = 128 << 20;

/// Values written between two looks at the size of a page: a page is larger than its limit by so many at most.
const LOOK: usize = 100;

/// How a file is laid out.
#[derive(Clone, Copy)]
pub(crate) enum Layout {
    /// For readers to come: dictionaries and pages of the usual size.
    Artifact,
    /// For a merge that holds many files open: small pages, no dictionaries.
    Part,
}

/// Writes rows to a Parquet file that appears when it is complete.
pub struct Writer {
    arrow: ArrowWriter<File>,
    staged: Staged,
    path: std::path::PathBuf,
    waiting: Batch,
    rows: u64,
    /// Rows and bytes of the row group that is open, as far as rows are pushed one by one.
    group: (usize, usize),
}

impl Writer {
    /// Starts a file; what stands at `path` stays until [`Writer::finish`]. `metadata` are
    /// key-value pairs of the file (a dataset's name and version), in this order.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn create(path: &Path, columns: &Columns, metadata: &[(&str, &str)]) -> Result<Self, FileError> {
        Self::create_as(path, columns, metadata, Layout::Artifact)
    }

    pub(crate) fn create_as(
        path: &Path,
        columns: &Columns,
        metadata: &[(&str, &str)],
        layout: Layout,
    ) -> Result<Self, FileError> {
        let fail = |e| FileError::write(path, parquet_kind(e));
        let properties = properties(metadata, layout).map_err(fail)?;
        // Readers see the Parquet types; the Arrow schema in the footer would only repeat them.
        let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
        let waiting = Batch::new(columns.schema()).map_err(|e| FileError::write(path, e))?;
        let (staged, file) = Staged::create(path).map_err(|e| FileError::write(path, e))?;
        let arrow = ArrowWriter::try_new_with_options(file, columns.schema().clone(), options).map_err(fail)?;
        Ok(Self { arrow, staged, path: path.to_owned(), waiting, rows: 0, group: (0, 0) })
    }

    /// Adds a row: anything serde writes as an object with these columns.
    ///
    /// # Errors
    /// A value does not fit its column, after which nothing can be written any more, or the disk is full.
    pub fn push<R: Serialize + ?Sized>(&mut self, row: &R) -> Result<(), FileError> {
        self.waiting.push(row).map_err(|e| FileError::write(&self.path, e))?;
        self.rows += 1;
        if self.waiting.len() == BATCH_ROWS || self.waiting.bytes() >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Adds rows that are columns already, in the order of this file's.
    pub(crate) fn push_batch(&mut self, batch: &RecordBatch) -> Result<(), FileError> {
        self.flush()?;
        self.rows += batch.num_rows() as u64;
        self.arrow.write(batch).map_err(|e| FileError::write(&self.path, parquet_kind(e)))
    }

    fn flush(&mut self) -> Result<(), FileError> {
        let (rows, bytes) = (self.group.0 + self.waiting.len(), self.group.1 + self.waiting.bytes());
        let batch = self.waiting.finish().map_err(|e| FileError::write(&self.path, e))?;
        let fail = |e| FileError::write(&self.path, parquet_kind(e));
        self.arrow.write(&batch).map_err(fail)?;
        // The batch after that which fills a group belongs to the next one.
        self.group = if rows >= ROW_GROUP_ROWS { (rows - ROW_GROUP_ROWS, 0) } else { (rows, bytes) };
        if self.group.1 >= ROW_GROUP_BYTES {
            self.group = (0, 0);
            self.arrow.flush().map_err(fail)?;
        }
        Ok(())
    }

    /// Writes what waits, syncs and puts the file in its place; returns the number of rows.
    ///
    /// # Errors
    /// As [`Writer::push`], or the file cannot be put in its place; nothing has changed then.
    pub fn finish(mut self) -> Result<u64, FileError> {
        self.flush()?;
        let file = self.arrow.into_inner().map_err(|e| FileError::write(&self.path, parquet_kind(e)))?;
        self.staged.place(file).map_err(|e| FileError::write(&self.path, e))?;
        Ok(self.rows)
    }
}

/// Writes all of `rows` as the file `path`; see [`Writer`]. Returns their number.
///
/// # Errors
/// A value does not fit its column, or the file cannot be written.
pub fn write_all<'a, T: Table>(
    path: &Path,
    rows: impl IntoIterator<Item = &'a T>,
    metadata: &[(&str, &str)],
) -> Result<u64, FileError> {
    let mut writer = Writer::create(path, &T::columns(), metadata)?;
    rows.into_iter().try_for_each(|row| writer.push(row))?;
    writer.finish()
}

fn properties(metadata: &[(&str, &str)], layout: Layout) -> Result<WriterProperties, ParquetError> {
    let pairs: Vec<KeyValue> =
        metadata.iter().map(|(key, value)| KeyValue::new((*key).to_owned(), (*value).to_owned())).collect();
    let pinned = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_created_by("mcpmill".to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_key_value_metadata((!pairs.is_empty()).then_some(pairs));
    Ok(laid_out(pinned, layout).build())
}

fn laid_out(pinned: WriterPropertiesBuilder, layout: Layout) -> WriterPropertiesBuilder {
    match layout {
        Layout::Artifact => pinned
            .set_statistics_enabled(EnabledStatistics::Page)
            .set_dictionary_enabled(true)
            .set_data_page_size_limit(1 << 20)
            .set_write_batch_size(LOOK),
        Layout::Part => pinned
            .set_statistics_enabled(EnabledStatistics::None)
            .set_dictionary_enabled(false)
            .set_data_page_size_limit(64 << 10)
            .set_write_batch_size(32),
    }
}

fn parquet_kind(error: ParquetError) -> FileErrorKind {
    FileErrorKind::Io(std::io::Error::other(error))
}
