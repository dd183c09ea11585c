//! The open part of a journal: a file of JSON lines that only grows.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

use mcpmill_core::{
    drive::Done,
    record::{Outcome, Verdict},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{JournalError, JournalErrorKind};

/// One ended row as it is read back.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    pub input_hash: String,
    pub outcome: Value,
    pub rows: Vec<Value>,
    pub verdicts: Vec<Value>,
}

#[derive(Serialize)]
struct LineRef<'a, O> {
    input_hash: &'a str,
    outcome: &'a Outcome,
    rows: &'a [O],
    verdicts: &'a [Verdict],
}

/// The line of an ended row, line feed included.
pub(super) fn write<O: Serialize>(input_hash: &str, done: &Done<O>) -> serde_json::Result<Vec<u8>> {
    let Done { outcome, rows, verdicts } = done;
    let mut line = serde_json::to_vec(&LineRef { input_hash, outcome, rows, verdicts })?;
    line.push(b'\n');
    Ok(line)
}

/// Gives every whole line to `each`, which says what is wrong with it. Returns the bytes they take;
/// what is left of the file was cut off by a kill.
pub(super) fn read(path: &Path, mut each: impl FnMut(Line) -> Result<(), String>) -> Result<u64, JournalError> {
    let mut reader = BufReader::new(File::open(path).map_err(|e| JournalError::new(path, e))?);
    let (mut bytes, mut number) = (0, 0);
    let mut text = Vec::new();
    loop {
        text.clear();
        reader.read_until(b'\n', &mut text).map_err(|e| JournalError::new(path, e))?;
        if text.last() != Some(&b'\n') {
            return Ok(bytes);
        }
        number += 1;
        let line = serde_json::from_slice(&text).map_err(|e| e.to_string());
        line.and_then(&mut each).map_err(|detail| JournalError::new(path, JournalErrorKind::Line { line: number, detail }))?;
        bytes += text.len() as u64;
    }
}

/// The end of the file, where lines are added.
pub(super) struct Tail {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Lines in the file.
    pub rows: usize,
    /// Set when half a line could not be taken back; nothing may follow it.
    broken: bool,
}

impl Tail {
    /// Opens `path`, which holds `rows` lines in `bytes`, and cuts off what follows them.
    pub fn open(path: &Path, bytes: u64, rows: usize) -> Result<Self, JournalError> {
        let open = || {
            let file = File::options().create(true).append(true).open(path)?;
            file.set_len(bytes)?;
            Ok(file)
        };
        let file = open().map_err(|e: io::Error| JournalError::new(path, e))?;
        Ok(Self { path: path.to_owned(), file, bytes, rows, broken: false })
    }

    /// Adds a line in one write. If that fails (the disk is full) the file is as before.
    pub fn append(&mut self, line: &[u8]) -> Result<(), JournalError> {
        if self.broken {
            return Err(JournalError::new(&self.path, io::Error::other("an earlier write ended half way")));
        }
        if let Err(e) = self.file.write_all(line) {
            self.broken = self.file.set_len(self.bytes).is_err();
            return Err(JournalError::new(&self.path, e));
        }
        self.bytes += line.len() as u64;
        self.rows += 1;
        Ok(())
    }
}

#[cfg(test)]
impl Tail {
    /// Makes every write fail, and taking it back too.
    pub fn deny_writes(&mut self, path: &Path) {
        self.file = File::open(path).unwrap_or_else(|e| panic!("{e}"));
    }
}
