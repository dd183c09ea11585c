//! The merge of sorted parts into one sorted file, a bounded number of rows in memory.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    JournalError, JournalErrorKind,
    part::{Key, Parts, Piece, READ_ROWS},
};
use crate::{
    artifact::Artifact,
    parquet_file::{FileError, Layout, Values, Writer},
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
    let mut writer = Writer::create(target, &piece.columns::<O>(), &[]).map_err(fail)?;
    let mut last: Option<String> = None;
    for row in Merged::open::<O>(&files, piece).map_err(fail)? {
        let mut row = row.map_err(fail)?;
        if piece == Piece::Rows {
            let (id, _) = piece.key::<O>(&row);
            if last.as_ref() == Some(&id) {
                return Err(JournalError::new(target, JournalErrorKind::RowTwice { table: O::NAME, id }));
            }
            last = Some(id);
        }
        piece.strip(&mut row);
        writer.push_value(row).map_err(fail)?;
    }
    writer.finish().map_err(fail)
}

/// Merges files by the dozen into intermediate ones; those of the level before are removed.
fn fewer<O: Artifact>(parts: &Parts, files: &[PathBuf], piece: Piece, level: u32) -> Result<Vec<PathBuf>, JournalError> {
    let mut merged = Vec::new();
    for (i, group) in files.chunks(OPEN_FILES).enumerate() {
        let path = parts.folder().join(format!("merge-{piece:?}-{level}-{i}.parquet"));
        let fail = |e| JournalError::new(&path, JournalErrorKind::from(e));
        let mut writer = Writer::create_as(&path, &piece.part_columns::<O>(), &[], Layout::Part).map_err(fail)?;
        for row in Merged::open::<O>(group, piece).map_err(fail)? {
            writer.push_value(row.map_err(fail)?).map_err(fail)?;
        }
        writer.finish().map_err(fail)?;
        if level > 1 {
            group.iter().for_each(|file| drop(fs::remove_file(file)));
        }
        merged.push(path);
    }
    Ok(merged)
}

/// The rows of sorted files in order.
struct Merged {
    sources: Vec<(Values, Option<Value>)>,
    next: BinaryHeap<Reverse<(Key, usize)>>,
    key: Box<dyn Fn(&Value) -> Key>,
}

impl Merged {
    fn open<O: Artifact>(files: &[PathBuf], piece: Piece) -> Result<Self, FileError> {
        let columns = piece.part_columns::<O>();
        let sources: Result<Vec<_>, FileError> =
            files.iter().map(|file| Ok((Values::open(file, &columns, READ_ROWS)?, None))).collect();
        let mut merged = Self { sources: sources?, next: BinaryHeap::new(), key: Box::new(move |row| piece.key::<O>(row)) };
        for source in 0..files.len() {
            merged.advance(source)?;
        }
        Ok(merged)
    }

    /// Takes the next row of a source, and returns the one that was taken before.
    fn advance(&mut self, source: usize) -> Result<Option<Value>, FileError> {
        let (values, head) = &mut self.sources[source];
        let before = head.take();
        *head = values.next().transpose()?;
        if let Some(row) = head {
            self.next.push(Reverse(((self.key)(row), source)));
        }
        Ok(before)
    }
}

impl Iterator for Merged {
    type Item = Result<Value, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse((_, source)) = self.next.pop()?;
        self.advance(source).transpose()
    }
}
