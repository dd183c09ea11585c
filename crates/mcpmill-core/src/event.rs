//! The one ordered stream of what happens in a run. Reporters listen; they never influence it.

use std::collections::BTreeMap;

use serde::Serialize;
use tokio::sync::mpsc;

use crate::{
    account::Accounts,
    record::{Outcome, OutcomeKind, Repairs, Usage},
};

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A stage begins.
    StageStarted {
        /// Its folder (`2-harvest`).
        stage: String,
        /// Rows it will end with an outcome.
        rows: u64,
        /// Of these, rows an earlier attempt has done.
        done: u64,
        /// What these used.
        used: Usage,
    },
    /// A row ended.
    Row {
        /// The stage.
        stage: String,
        /// Its outcome.
        #[serde(flatten)]
        outcome: Outcome,
    },
    /// A stage ended.
    StageFinished {
        /// Its folder.
        stage: String,
        /// What came of it.
        #[serde(flatten)]
        summary: Summary,
    },
    /// A stage is taken over from an earlier attempt as it is.
    StageReused {
        /// Its folder.
        stage: String,
        /// What had come of it.
        #[serde(flatten)]
        summary: Summary,
    },
    /// The work on a run ends, for now or for good.
    RunEnded {
        /// What the run has used in all.
        accounts: Accounts,
    },
    /// Something a person should know.
    Note {
        /// In words.
        text: String,
    },
}

/// The sender's end of the stream.
#[derive(Clone, Debug)]
pub struct Events(mpsc::UnboundedSender<Event>);

impl Events {
    /// A stream and its receiver.
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<Event>) {
        let (tx, rx) = mpsc::unbounded_channel();
        (Self(tx), rx)
    }

    /// Sends; nobody listening is no failure.
    pub fn emit(&self, event: Event) {
        self.0.send(event).ok();
    }

    /// Says something to people.
    pub fn note(&self, text: impl Into<String>) {
        self.emit(Event::Note { text: text.into() });
    }
}

/// The sums of a stage. `kept + dropped + failed + skipped == input_rows`, always.
#[derive(Clone, Debug, Default, PartialEq, Serialize, serde::Deserialize)]
pub struct Summary {
    /// Rows that came in.
    pub input_rows: u64,
    /// Rows that went on.
    pub kept: u64,
    /// Rows taken out.
    pub dropped: u64,
    /// Rows that failed.
    pub failed: u64,
    /// Rows not tried.
    pub skipped: u64,
    /// Rows written.
    pub output_rows: u64,
    /// Calls made again because a kill cut off the first.
    pub repeated: u64,
    /// Tokens and money of the rows' calls, failed ones included; once there are `accounts`, of all that these count.
    #[serde(flatten)]
    pub usage: Usage,
    /// Replies that were repaired, by prompt and rule.
    #[serde(default, skip_serializing_if = "Repairs::is_empty")]
    pub repairs: Repairs,
    /// Steps of evolution that came to nothing, by direction.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub evolve_failed: BTreeMap<String, u64>,
    /// All calls of the stage by account, those of rows that were given up or cut off included; known at its end.
    #[serde(default, skip_serializing_if = "Accounts::is_empty")]
    pub accounts: Accounts,
}

impl Summary {
    /// Closes the sums with what the stage used by account. Rows know nothing of calls that were cut off or given up.
    pub fn settle(&mut self, accounts: Accounts) {
        if !accounts.is_empty() {
            self.usage = accounts.usage();
        }
        self.accounts = accounts;
    }

    /// Counts one outcome and the rows it brought.
    pub fn count(&mut self, outcome: &Outcome, rows: u64) {
        self.input_rows += 1;
        self.output_rows += rows;
        match outcome.outcome {
            OutcomeKind::Kept => self.kept += 1,
            OutcomeKind::Dropped => self.dropped += 1,
            OutcomeKind::Failed => self.failed += 1,
            OutcomeKind::Skipped => self.skipped += 1,
            // No end: the driver never counts one.
            OutcomeKind::Waiting => self.input_rows -= 1,
        }
        self.usage += Usage {
            input_tokens: outcome.input_tokens,
            output_tokens: outcome.output_tokens,
            cost: outcome.cost_usd,
            ..Usage::default()
        };
        for (rule, count) in outcome.repairs.iter().flatten() {
            *self.repairs.entry(rule.clone()).or_default() += count;
        }
        for (direction, causes) in outcome.evolve_failed.iter().flatten() {
            *self.evolve_failed.entry(direction.clone()).or_default() += causes.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Charge;

    #[test]
    fn the_sums_of_a_stage_are_those_of_its_accounts() {
        let of_rows = Usage { input_tokens: 7, cost: 0.5, ..Usage::default() };
        let mut summary = Summary { usage: of_rows, ..Summary::default() };
        summary.settle(Accounts::default());
        assert_eq!(summary.usage, of_rows, "nobody else counted");
        let (mut accounts, usage) = (Accounts::default(), Usage { input_tokens: 9, cost: 0.75, ..Usage::default() });
        accounts.answered(&Charge { account: "m", usage: of_rows, attempts: 1 });
        accounts.cut_off(&Charge { account: "m", usage, attempts: 1 });
        summary.settle(accounts.clone());
        assert_eq!((summary.usage.input_tokens, summary.usage.cost, &summary.accounts), (16, 1.25, &accounts));
    }
}
