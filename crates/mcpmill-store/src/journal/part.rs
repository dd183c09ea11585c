//! Parts of a journal: which there are, and how an open one is sealed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use mcpmill_core::record::{Outcome, Verdict};
use serde_json::Value;

use super::{
    JournalError,
    line::{self, Tail},
    remove_if_there,
};
use crate::{
    artifact::{Artifact, Column, Columns, Table},
    durable,
    parquet_file::{Layout, Values, Writer},
};

/// Rows of a sealed part in memory while it is read; a merge reads many at once.
pub(super) const READ_ROWS: usize = 64;

/// The three tables of a part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Piece {
    Rows,
    Outcomes,
    Verdicts,
}

/// By what a piece is sorted. The input's hash decides between equals, so that the order never
/// depends on when a row ended; several verdicts on one row come from one input and stay as given.
pub(super) type Key = (String, String);

impl Piece {
    fn word(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Outcomes => Outcome::NAME,
            Self::Verdicts => Verdict::NAME,
        }
    }

    /// Columns of the finished artifact.
    pub fn columns<O: Artifact>(self) -> Columns {
        match self {
            Self::Rows => O::columns(),
            Self::Outcomes => Outcome::columns(),
            Self::Verdicts => Verdict::columns(),
        }
    }

    /// Columns that only parts have.
    fn extra(self) -> Vec<Column> {
        match self {
            Self::Rows => vec![],
            Self::Outcomes => vec![Column::text("input_hash"), Column::uint("rows")],
            Self::Verdicts => vec![Column::text("input_hash")],
        }
    }

    /// Columns of its file in a part.
    pub fn part_columns<O: Artifact>(self) -> Columns {
        self.columns::<O>().and(self.extra())
    }

    /// The columns that the rows of this piece are sorted by.
    pub fn key_columns<O: Artifact>(self) -> [Option<&'static str>; 2] {
        match self {
            Self::Rows => [Some(O::KEY), None],
            Self::Outcomes => [Some(Outcome::KEY), Some("input_hash")],
            Self::Verdicts => [Some(Verdict::KEY), Some("input_hash")],
        }
    }

    /// What the rows of this piece are sorted by.
    fn key<O: Artifact>(self, row: &Value) -> Key {
        let [first, second] = self.key_columns::<O>();
        let text = |column: Option<&str>| column.and_then(|c| row[c].as_str()).unwrap_or_default().to_owned();
        (text(first), text(second))
    }

    /// Takes out of a part's row what only parts have.
    pub fn strip(self, row: &mut Value) {
        let extra: &[&str] = match self {
            Self::Rows => &[],
            Self::Outcomes => &["input_hash", "rows"],
            Self::Verdicts => &["input_hash"],
        };
        if let Some(map) = row.as_object_mut() {
            extra.iter().for_each(|column| drop(map.remove(*column)));
        }
    }
}

/// The folder of parts.
#[derive(Clone)]
pub(super) struct Parts {
    folder: PathBuf,
}

impl Parts {
    /// Opens or makes the folder, and removes what a kill left half written.
    pub fn open(folder: &Path) -> Result<Self, JournalError> {
        fs::create_dir_all(folder).map_err(|e| JournalError::new(folder, e))?;
        let parts = Self { folder: folder.to_owned() };
        for name in parts.names()? {
            if name.ends_with(durable::UNFINISHED) || name.starts_with("merge-") {
                remove_if_there(&folder.join(name))?;
            }
        }
        Ok(parts)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of a piece of a sealed part.
    pub fn piece(&self, number: u32, piece: Piece) -> PathBuf {
        self.folder.join(format!("{number:05}.{}.parquet", piece.word()))
    }

    fn lines(&self, number: u32) -> PathBuf {
        self.folder.join(format!("{number:05}.jsonl"))
    }

    fn names(&self) -> Result<Vec<String>, JournalError> {
        let fail = |e| JournalError::new(&self.folder, e);
        let entries = fs::read_dir(&self.folder).map_err(fail)?;
        entries.map(|entry| Ok(entry.map_err(fail)?.file_name().to_string_lossy().into_owned())).collect()
    }

    /// Numbers of the sealed and of the open parts, ascending.
    pub fn list(&self) -> Result<(Vec<u32>, Vec<u32>), JournalError> {
        let (mut sealed, mut open) = (BTreeSet::new(), BTreeSet::new());
        for name in self.names()? {
            let Some((number, rest)) = name.split_once('.') else { continue };
            let Ok(number) = number.parse::<u32>() else { continue };
            if rest == "jsonl" {
                open.insert(number)
            } else {
                sealed.insert(number)
            };
        }
        Ok((sealed.difference(&open).copied().collect(), open.into_iter().collect()))
    }

    /// Starts a part.
    pub fn begin(&self, number: u32) -> Result<Tail, JournalError> {
        Tail::open(&self.lines(number), 0, 0)
    }

    /// Opens a part again, with its whole lines given to `note`, which says whether they are new.
    pub fn reopen(&self, number: u32, note: impl FnMut(&str, Outcome, u64) -> bool) -> Result<Tail, JournalError> {
        let (bytes, rows) = self.load_open(number, note)?;
        Tail::open(&self.lines(number), bytes, rows)
    }

    /// Gives the outcomes of the whole lines of an open part to `note`. Returns the bytes and number of these lines.
    pub fn load_open(&self, number: u32, mut note: impl FnMut(&str, Outcome, u64) -> bool) -> Result<(u64, usize), JournalError> {
        let path = self.lines(number);
        let mut rows = 0;
        let bytes = line::read(&path, |line| {
            rows += 1;
            let outcome = serde_json::from_value(line.outcome).map_err(|e| e.to_string())?;
            let new = note(&line.input_hash, outcome, line.rows.len() as u64);
            if new { Ok(()) } else { Err(format!("the input `{}` is here twice", line.input_hash)) }
        })?;
        Ok((bytes, rows))
    }

    /// Gives the outcomes of a sealed part to `note`.
    pub fn load(&self, number: u32, mut note: impl FnMut(&str, Outcome, u64) -> bool) -> Result<(), JournalError> {
        let path = self.piece(number, Piece::Outcomes);
        let damaged = |detail: String| JournalError::new(&path, std::io::Error::new(std::io::ErrorKind::InvalidData, detail));
        let columns = Outcome::columns().and(Piece::Outcomes.extra());
        let values = Values::open(&path, &columns, READ_ROWS).map_err(|e| JournalError::new(&path, e))?;
        for value in values {
            let mut value = value.map_err(|e| JournalError::new(&path, e))?;
            let hash = value["input_hash"].as_str().unwrap_or_default().to_owned();
            let rows = value["rows"].as_u64().unwrap_or_default();
            Piece::Outcomes.strip(&mut value);
            let outcome = serde_json::from_value(value).map_err(|e| damaged(e.to_string()))?;
            if !note(&hash, outcome, rows) {
                return Err(damaged(format!("the input `{hash}` is here twice")));
            }
        }
        Ok(())
    }

    /// Writes the lines of a part as sorted Parquet files, then removes the lines. Done twice it gives the same.
    pub fn seal<O: Artifact>(&self, number: u32) -> Result<(), JournalError> {
        let path = self.lines(number);
        let (mut rows, mut outcomes, mut verdicts) = (Vec::new(), Vec::new(), Vec::new());
        line::read(&path, |line| {
            let hash = line.input_hash;
            let mut outcome = line.outcome;
            outcome["input_hash"] = hash.as_str().into();
            outcome["rows"] = line.rows.len().into();
            outcomes.push(outcome);
            rows.extend(line.rows);
            verdicts.extend(line.verdicts.into_iter().map(|mut verdict| {
                verdict["input_hash"] = hash.as_str().into();
                verdict
            }));
            Ok(())
        })?;
        self.write::<O>(number, Piece::Rows, rows)?;
        self.write::<O>(number, Piece::Outcomes, outcomes)?;
        self.write::<O>(number, Piece::Verdicts, verdicts)?;
        remove_if_there(&path)?;
        durable::sync_folder_of(&path).map_err(|e| JournalError::new(&self.folder, e))
    }

    fn write<O: Artifact>(&self, number: u32, piece: Piece, mut rows: Vec<Value>) -> Result<(), JournalError> {
        // Stable: the verdicts of one input keep their order.
        rows.sort_by_cached_key(|row| piece.key::<O>(row));
        let path = self.piece(number, piece);
        let write = || {
            let mut writer = Writer::create_as(&path, &piece.part_columns::<O>(), &[], Layout::Part)?;
            rows.into_iter().try_for_each(|row| writer.push(&row))?;
            writer.finish()
        };
        write().map(drop).map_err(|e| JournalError::new(&path, e))
    }
}
