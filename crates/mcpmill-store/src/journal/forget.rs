//! Failed rows, taken out again so that the next attempt tries them.

use std::collections::HashSet;

use mcpmill_core::record::OutcomeKind;
use serde_json::Value;

use super::{
    Journal, JournalError,
    part::{Piece, READ_ROWS},
};
use crate::{
    artifact::Artifact,
    parquet_file::{Layout, Values, Writer},
};

impl<O: Artifact> Journal<O> {
    /// Forgets the rows that failed: for a stage that gave up on them, so that going on with it
    /// tries them again. Returns how many there were. The run's event log still has each of them.
    ///
    /// A kill on the way leaves some of them in place; they are then simply not tried again.
    ///
    /// # Errors
    /// A part cannot be read or written.
    pub fn forget_failed(self) -> Result<u64, JournalError> {
        self.seal(&mut self.state())?;
        let mut forgotten = 0;
        for number in self.parts.list()?.0 {
            let mut failed = HashSet::new();
            self.parts.load(number, |hash, outcome, rows| {
                if outcome.outcome == OutcomeKind::Failed && rows == 0 {
                    failed.insert(hash.to_owned());
                }
                true
            })?;
            if !failed.is_empty() {
                self.without(number, Piece::Verdicts, &failed)?;
                self.without(number, Piece::Outcomes, &failed)?;
                forgotten += failed.len() as u64;
            }
        }
        Ok(forgotten)
    }

    /// Writes a piece again without the rows of these inputs.
    fn without(&self, number: u32, piece: Piece, inputs: &HashSet<String>) -> Result<(), JournalError> {
        let path = self.parts.piece(number, piece);
        let columns = piece.part_columns::<O>();
        let stays = |row: &Value| !row["input_hash"].as_str().is_some_and(|hash| inputs.contains(hash));
        let write = || {
            let rows: Vec<Value> = Values::open(&path, &columns, READ_ROWS)?.collect::<Result<_, _>>()?;
            let mut writer = Writer::create_as(&path, &columns, &[], Layout::Part)?;
            rows.into_iter().filter(stays).try_for_each(|row| writer.push(&row))?;
            writer.finish()
        };
        write().map(drop).map_err(|e| JournalError::new(&path, e))
    }
}
