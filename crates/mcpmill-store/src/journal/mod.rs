//! The journal of a running stage: ended rows survive a kill, and however often that happens the
//! finished files are the same bytes.
//!
//! ```text
//! <stage>/parts/00000.rows.parquet      a sealed part: sorted, three files
//!               00000.outcomes.parquet  with each input's hash and row count
//!               00000.verdicts.parquet
//!               00001.jsonl             the open part, one line an ended row
//! ```
//!
//! A full part is sealed by a thread, while rows go on to end in the next one.
//!
//! A part whose `.jsonl` is there is not sealed, whatever else is there of it: its Parquet files are
//! written again from the lines. So a kill between any two steps of sealing loses and doubles
//! nothing. A last line without its line feed was cut off by a kill; it is removed, and that row,
//! which nobody was told is kept, is done again.

mod finish;
mod forget;
mod line;
mod merge;
mod part;
mod seen;

use std::{
    collections::HashSet,
    fs, io,
    marker::PhantomData,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use mcpmill_core::{
    drive::{Done, Sink, SinkError},
    event::Summary,
    record::{Outcome, OutcomeKind, Verdict},
    text::clipped,
};
use thiserror::Error;

use self::{line::Tail, part::Parts, seen::Seen};
use crate::{artifact::Artifact, parquet_file::FileError, run_dir::StageDir};

/// Characters of a failure's cause that stay in memory.
const CAUSE_CHARACTERS: usize = 300;

/// How a journal is kept.
#[derive(Clone, Copy, Debug)]
pub struct JournalOptions {
    /// Ended rows in a part. The finished files do not depend on it.
    pub part_rows: usize,
    /// Whether the stage gives verdicts: `verdicts.parquet` is then written even when it is empty.
    pub verdicts: bool,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self { part_rows: 2000, verdicts: false }
    }
}

/// Keeps the ended rows of one stage, whose output rows are `O`.
pub struct Journal<O> {
    stage: StageDir,
    options: JournalOptions,
    parts: Parts,
    state: Mutex<State>,
    output: PhantomData<fn() -> O>,
}

/// What of the journal is in memory.
#[derive(Default)]
struct State {
    /// Ends of earlier attempts: by input hash the outcome without its raw reply, and the number of rows it brought.
    seen: Seen,
    /// Digests of the inputs that ended in this process; what they came to is in the parts. Eight bytes a row.
    ended: HashSet<u64>,
    /// What all ends come to.
    counted: Summary,
    /// The number of the open part.
    number: u32,
    /// Its file, once a row has ended in it.
    tail: Option<Tail>,
    /// The part before, while it is sealed.
    sealing: Option<JoinHandle<Result<(), JournalError>>>,
}

impl State {
    fn note(&mut self, input_hash: &str, mut outcome: Outcome, rows: u64) -> bool {
        outcome.raw = None;
        outcome.cause = match outcome.outcome {
            OutcomeKind::Failed => outcome.cause.map(|cause| clipped(&cause, CAUSE_CHARACTERS)),
            _ => None,
        };
        self.counted.count(&outcome, rows);
        self.seen.insert(input_hash, outcome, rows)
    }

    /// Waits until the part before is sealed.
    fn sealed(&mut self) -> Result<(), JournalError> {
        let Some(sealing) = self.sealing.take() else { return Ok(()) };
        sealing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl<O: Artifact> Journal<O> {
    /// Opens the journal of a stage with all that earlier attempts left, mended where a kill came between.
    ///
    /// # Errors
    /// The folder cannot be used, or a line or part is damaged; the message names file and line.
    pub fn open(stage: StageDir, options: JournalOptions) -> Result<Self, JournalError> {
        let parts = Parts::open(&stage.path().join("parts"))?;
        let mut state = State::default();
        let (sealed, open) = parts.list()?;
        for &number in &sealed {
            parts.load(number, |hash, outcome, rows| state.note(hash, outcome, rows))?;
        }
        let highest = sealed.last().max(open.last()).copied();
        for &number in &open {
            let tail = parts.reopen(number, |hash, outcome, rows| state.note(hash, outcome, rows))?;
            // A part below others is open when a kill came before it was sealed.
            if Some(number) < highest || tail.rows >= options.part_rows.max(1) {
                drop(tail);
                parts.seal::<O>(number)?;
            } else {
                state.tail = Some(tail);
            }
        }
        state.number = highest.map_or(0, |number| if state.tail.is_some() { number } else { number + 1 });
        Ok(Self { stage, options, parts, state: Mutex::new(state), output: PhantomData })
    }

    /// Rows that have ended.
    pub fn ended(&self) -> u64 {
        self.state().counted.input_rows
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change to the state is one insertion or assignment: it is whole even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, input_hash: &str, done: Done<O>) -> Result<(), JournalError> {
        if let Some(field) = not_finite(&done.outcome, &done.verdicts) {
            return Err(JournalError::new(self.stage.path(), JournalErrorKind::NotFinite { field }));
        }
        let line = line::write(input_hash, &done).map_err(|e| JournalError::new(self.stage.path(), e))?;
        let mut state = self.state();
        let digest = seen::digest(input_hash);
        if state.seen.contains(input_hash) || (state.ended.contains(&digest) && self.find(&mut state, input_hash)?.is_some()) {
            let input = done.outcome.input_id;
            return Err(JournalError::new(self.stage.path(), JournalErrorKind::InputTwice { input }));
        }
        let number = state.number;
        let tail = match &mut state.tail {
            Some(tail) => tail,
            none => none.insert(self.parts.begin(number)?),
        };
        tail.append(&line)?;
        let full = tail.rows >= self.options.part_rows.max(1);
        state.ended.insert(digest);
        state.counted.count(&done.outcome, done.rows.len() as u64);
        if full { self.begin_sealing(&mut state) } else { Ok(()) }
    }

    /// Seals the open part while others go on; one at a time, so that no more than two wait.
    fn begin_sealing(&self, state: &mut State) -> Result<(), JournalError> {
        state.sealed()?;
        if state.tail.take().is_some() {
            let (parts, number) = (self.parts.clone(), state.number);
            let seal = thread::Builder::new().name("journal".into()).spawn(move || parts.seal::<O>(number));
            state.sealing = Some(seal.map_err(|e| JournalError::new(self.parts.folder(), e))?);
            state.number += 1;
        }
        Ok(())
    }

    /// Seals the open part, and waits for it.
    fn seal(&self, state: &mut State) -> Result<(), JournalError> {
        self.begin_sealing(state)?;
        state.sealed()
    }

    /// The end of an input by what is on the disk: for the rare input whose digest is known.
    fn find(&self, state: &mut State, input_hash: &str) -> Result<Option<(Outcome, u64)>, JournalError> {
        state.sealed()?;
        let mut found = None;
        let mut look = |hash: &str, outcome: Outcome, rows: u64| {
            if hash == input_hash {
                found = Some((outcome, rows));
            }
            true
        };
        let (sealed, open) = self.parts.list()?;
        sealed.into_iter().try_for_each(|number| self.parts.load(number, &mut look))?;
        open.into_iter().try_for_each(|number| self.parts.load_open(number, &mut look).map(drop))?;
        Ok(found)
    }
}

impl<O> Drop for Journal<O> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // What went wrong is found again when the journal is opened.
        state.sealing.take().map(JoinHandle::join);
    }
}

impl<O: Artifact> Sink<O> for Journal<O> {
    fn seen(&self, input_hash: &str) -> Option<(Outcome, u64)> {
        let mut state = self.state();
        if state.ended.contains(&seen::digest(input_hash)) {
            // A disk that cannot be read shows when the row is to be kept.
            return self.find(&mut state, input_hash).ok().flatten();
        }
        state.seen.get(input_hash)
    }

    fn accept(&self, input_hash: &str, done: Done<O>) -> Result<(), SinkError> {
        self.keep(input_hash, done).map_err(|e| SinkError(e.to_string()))
    }
}

/// JSON has no NaN and no infinity: serde writes null, and the line could not be read again.
fn not_finite(outcome: &Outcome, verdicts: &[Verdict]) -> Option<&'static str> {
    if !outcome.seconds.is_finite() {
        return Some("seconds");
    }
    if !outcome.cost_usd.is_finite() {
        return Some("cost_usd");
    }
    verdicts.iter().find_map(|verdict| match (verdict.score, verdict.threshold) {
        (Some(score), _) if !score.is_finite() => Some("score"),
        (_, Some(threshold)) if !threshold.is_finite() => Some("threshold"),
        _ => None,
    })
}

/// The journal cannot be used.
#[derive(Debug, Error)]
#[error("failed to use the journal `{}`: {kind}", .path.display())]
pub struct JournalError {
    /// The file or folder.
    pub path: PathBuf,
    /// What went wrong.
    pub kind: JournalErrorKind,
}

impl JournalError {
    fn new(path: &Path, kind: impl Into<JournalErrorKind>) -> Self {
        Self { path: path.to_owned(), kind: kind.into() }
    }
}

/// What can go wrong with a journal.
#[derive(Debug, Error)]
pub enum JournalErrorKind {
    /// The file system said no.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line that was written whole cannot be read.
    #[error("line {line} is damaged: {detail}; without that line its row is done again")]
    Line {
        /// Counted from 1.
        line: u64,
        /// What is wrong.
        detail: String,
    },
    /// A part or finished file cannot be read or written.
    #[error(transparent)]
    File(#[from] Box<FileError>),
    /// A record serde cannot write.
    #[error("a row cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A number that is not finite.
    #[error("`{field}` of a row is not a finite number")]
    NotFinite {
        /// The field of the outcome or verdict.
        field: &'static str,
    },
    /// The same input was worked on twice.
    #[error("the input `{input}` ended twice")]
    InputTwice {
        /// Its id.
        input: String,
    },
    /// A stage made two rows of one id.
    #[error("two rows of `{table}` have the id `{id}`")]
    RowTwice {
        /// The artifact.
        table: &'static str,
        /// The id.
        id: String,
    },
    /// The summary speaks of other rows than those that are here.
    #[error("the summary counts {told} {what}, the journal {found}")]
    Counts {
        /// Which number.
        what: &'static str,
        /// In the summary.
        told: u64,
        /// Here.
        found: u64,
    },
}

impl From<FileError> for JournalErrorKind {
    fn from(error: FileError) -> Self {
        Self::File(Box::new(error))
    }
}

fn remove_if_there(path: &Path) -> Result<(), JournalError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(JournalError::new(path, e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
