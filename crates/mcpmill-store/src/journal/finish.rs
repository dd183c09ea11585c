//! The end of a stage: parts become artifacts, `stage.json` comes last.

use std::{path::Path, thread};

use mcpmill_core::{
    event::Summary,
    record::{Outcome, Verdict},
};

use super::{Journal, JournalError, JournalErrorKind, State, merge::merge, part::Piece, remove_if_there};
use crate::{artifact::Artifact, parquet_file::row_count, run_dir::StageInfo};

impl<O: Artifact> Journal<O> {
    /// Writes the stage's artifacts, sorted, then `stage.json`, then removes the parts. A kill at
    /// any point leaves a stage that can be finished again, or one that is finished.
    ///
    /// # Errors
    /// Two rows have one id, the summary counts other rows than the journal, or a file cannot be
    /// read or written. The journal is kept.
    pub fn finish(self, summary: &Summary) -> Result<StageInfo, JournalError> {
        let counted = {
            let mut state = self.state();
            self.seal(&mut state)?;
            // What is counted is not needed any more, and merging wants the room.
            let State { counted, .. } = std::mem::take(&mut *state);
            counted
        };
        self.agree(summary, &counted)?;
        let numbers = self.parts.list()?.0;
        let merged = |piece, target: &Path| merge::<O>(&self.parts, &numbers, piece, target);
        let (rows, outcomes) = thread::scope(|scope| {
            let outcomes = scope.spawn(|| merged(Piece::Outcomes, &self.stage.table::<Outcome>()));
            let rows = merged(Piece::Rows, &self.stage.table::<O>());
            (rows, outcomes.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        self.same("rows in parts", counted.output_rows, rows?)?;
        self.same("outcomes in parts", counted.input_rows, outcomes?)?;
        let verdicts = self.stage.table::<Verdict>();
        if self.options.verdicts || self.any_verdict(&numbers)? {
            merge::<O>(&self.parts, &numbers, Piece::Verdicts, &verdicts)?;
        } else {
            remove_if_there(&verdicts)?;
        }
        self.stage.finish(summary).map_err(|e| JournalError::new(self.stage.path(), std::io::Error::other(e)))
    }

    fn any_verdict(&self, numbers: &[u32]) -> Result<bool, JournalError> {
        for &number in numbers {
            let path = self.parts.piece(number, Piece::Verdicts);
            if row_count(&path).map_err(|e| JournalError::new(&path, e))? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn agree(&self, told: &Summary, found: &Summary) -> Result<(), JournalError> {
        self.same("input rows", told.input_rows, found.input_rows)?;
        self.same("rows kept", told.kept, found.kept)?;
        self.same("rows dropped", told.dropped, found.dropped)?;
        self.same("rows failed", told.failed, found.failed)?;
        self.same("rows skipped", told.skipped, found.skipped)?;
        self.same("output rows", told.output_rows, found.output_rows)
    }

    fn same(&self, what: &'static str, told: u64, found: u64) -> Result<(), JournalError> {
        if told == found {
            return Ok(());
        }
        Err(JournalError::new(self.stage.path(), JournalErrorKind::Counts { what, told, found }))
    }
}
