//! The merge of sorted parts into one sorted file, a bounded number of rows in memory.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs, io,
    path::{Path, PathBuf},
};

use arrow_array::{Array, ArrayRef, RecordBatch, cast::AsArray};
use arrow_schema::ArrowError;
use arrow_select::interleave::interleave_record_batch;

use super::{
    JournalError, JournalErrorKind,
    part::{Key, Parts, Piece, READ_ROWS},
};
use crate::{
    artifact::{Artifact, Columns},
    parquet_file::{BATCH_BYTES, BATCH_ROWS, Batches, FileError, Layout, Writer},
};

/// Files that are open at once, each with about a part's rows unpacked. More parts are first merged into fewer, so
/// that memory does not grow with the run.
/// Few in tests, which then merge over several levels without thousands of files.
const OPEN_FILES: usize = if cfg!(test) { 3 } else { 16 };

/// Merges a piece of all `numbers` into `target` and returns the number of rows.
pub(super) fn merge<O: Artifact>(parts: &Parts, numbers: &[u32], piece: Piece, target: &Path) -> Result<u64, JournalError> {
    let mut files: Vec<PathBuf> = numbers.iter().map(|&number| parts.piece(number, piece)).collect();
    let mut level = 0;
    while files.len() > OPEN_FILES {
        level += 1;
        files = fewer::<O>(parts, &files, piece, level)?;
    }
    let fail = |e| JournalError::new(target, JournalErrorKind::from(e));
    let columns = piece.columns::<O>();
    let mut writer = Writer::create(target, &columns, &[]).map_err(fail)?;
    let mut merged = Merged::open::<O>(&files, piece, &columns).map_err(fail)?;
    while let Some(batch) = merged.batch(target)? {
        if let Some(id) = merged.twice.take().filter(|_| piece == Piece::Rows) {
            return Err(JournalError::new(target, JournalErrorKind::RowTwice { table: O::NAME, id }));
        }
        writer.push_batch(&batch).map_err(fail)?;
    }
    writer.finish().map_err(fail)
}

/// Merges files by the dozen into intermediate ones; those of the level before are removed.
fn fewer<O: Artifact>(parts: &Parts, files: &[PathBuf], piece: Piece, level: u32) -> Result<Vec<PathBuf>, JournalError> {
    let mut fewer = Vec::new();
    for (i, group) in files.chunks(OPEN_FILES).enumerate() {
        let path = parts.folder().join(format!("merge-{piece:?}-{level}-{i}.parquet"));
        let fail = |e| JournalError::new(&path, JournalErrorKind::from(e));
        let columns = piece.part_columns::<O>();
        let mut writer = Writer::create_as(&path, &columns, &[], Layout::Part).map_err(fail)?;
        let mut merged = Merged::open::<O>(group, piece, &columns).map_err(fail)?;
        while let Some(batch) = merged.batch(&path)? {
            writer.push_batch(&batch).map_err(fail)?;
        }
        writer.finish().map_err(fail)?;
        if level > 1 {
            group.iter().for_each(|file| drop(fs::remove_file(file)));
        }
        fewer.push(path);
    }
    Ok(fewer)
}

/// The rows of sorted files in order. They stay in columns: to make values of them and columns again takes longer
/// than all else that becomes of a row.
struct Merged {
    sources: Vec<Source>,
    next: BinaryHeap<Reverse<(Key, usize)>>,
    /// The columns that are written.
    columns: Columns,
    /// The last id, and one that came twice.
    last: Option<String>,
    twice: Option<String>,
}

/// One file, and how far it is read.
struct Source {
    batches: Batches,
    /// Names of the columns it is sorted by.
    key: [Option<&'static str>; 2],
    batch: Option<RecordBatch>,
    row: usize,
    /// Where the batch is among those that the rows being collected are in.
    place: Option<usize>,
}

impl Source {
    /// Stands at the next row, and returns its key; `None` at the end of the file.
    fn advance(&mut self) -> Result<Option<Key>, FileError> {
        self.row += 1;
        while self.batch.as_ref().is_none_or(|batch| self.row >= batch.num_rows()) {
            (self.row, self.place) = (0, None);
            self.batch = self.batches.next().transpose()?;
            if self.batch.is_none() {
                return Ok(None);
            }
        }
        let text = |column: Option<&str>| {
            let texts = self.batch.as_ref()?.column_by_name(column?)?.as_string_opt::<i32>()?;
            texts.is_valid(self.row).then(|| texts.value(self.row).to_owned())
        };
        Ok(Some((text(self.key[0]).unwrap_or_default(), text(self.key[1]).unwrap_or_default())))
    }
}

impl Merged {
    fn open<O: Artifact>(files: &[PathBuf], piece: Piece, columns: &Columns) -> Result<Self, FileError> {
        let (all, key) = (piece.part_columns::<O>(), piece.key_columns::<O>());
        let mut merged = Self { sources: Vec::new(), next: BinaryHeap::new(), columns: columns.clone(), last: None, twice: None };
        for file in files {
            let batches = Batches::open(file, &all, READ_ROWS)?;
            merged.sources.push(Source { batches, key, batch: None, row: 0, place: None });
            merged.advance(merged.sources.len() - 1)?;
        }
        Ok(merged)
    }

    fn advance(&mut self, source: usize) -> Result<(), FileError> {
        if let Some(key) = self.sources[source].advance()? {
            self.next.push(Reverse((key, source)));
        }
        Ok(())
    }

    /// The next rows, as many as are written at once; `target` names the file in errors.
    fn batch(&mut self, target: &Path) -> Result<Option<RecordBatch>, JournalError> {
        let fail = |e| JournalError::new(target, JournalErrorKind::from(e));
        let failed = |e: ArrowError| JournalError::new(target, io::Error::other(e));
        let (mut batches, mut rows, mut bytes) = (Vec::new(), Vec::new(), 0);
        self.sources.iter_mut().for_each(|source| source.place = None);
        while rows.len() < BATCH_ROWS && bytes < BATCH_BYTES {
            let Some(Reverse(((id, _), from))) = self.next.pop() else { break };
            let source = &mut self.sources[from];
            if let Some(batch) = &source.batch {
                let place = *source.place.get_or_insert(batches.len());
                if place == batches.len() {
                    batches.push(project(batch, &self.columns).map_err(failed)?);
                }
                bytes += batches[place].columns().iter().map(|column| text_bytes(column, source.row)).sum::<usize>();
                rows.push((place, source.row));
            }
            if self.last.as_ref() == Some(&id) {
                self.twice.get_or_insert_with(|| id.clone());
            }
            self.last = Some(id);
            self.advance(from).map_err(fail)?;
        }
        if rows.is_empty() {
            return Ok(None);
        }
        let batches: Vec<&RecordBatch> = batches.iter().collect();
        interleave_record_batch(&batches, &rows).map(Some).map_err(failed)
    }
}

/// The columns of a batch that are written, in their order.
fn project(batch: &RecordBatch, columns: &Columns) -> Result<RecordBatch, ArrowError> {
    let places: Result<Vec<usize>, ArrowError> = columns.names().map(|name| batch.schema().index_of(name)).collect();
    batch.project(&places?)
}

/// Roughly the bytes that a row takes in a column.
fn text_bytes(column: &ArrayRef, row: usize) -> usize {
    if let Some(texts) = column.as_string_opt::<i32>() {
        texts.value_length(row) as usize
    } else if let Some(lists) = column.as_list_opt::<i32>() {
        let items = lists.value_offsets();
        (items[row] as usize..items[row + 1] as usize).map(|item| text_bytes(lists.values(), item)).sum()
    } else if let Some(group) = column.as_struct_opt() {
        group.columns().iter().map(|member| text_bytes(member, row)).sum()
    } else {
        8
    }
}
