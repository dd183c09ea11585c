//! What became of an input row. Every row of every stage has exactly one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{record::Usage, reply::Repair};

/// How often replies to a prompt were repaired by a rule, by prompt and rule (`instruct: code-fence`).
pub type Repairs = BTreeMap<String, u64>;

/// Why steps of evolution came to nothing, by direction: the request stayed as it was before them.
pub type EvolveFailed = BTreeMap<String, Vec<String>>;

/// Counts repairs of one reply to `prompt`.
pub fn count_repairs(counts: &mut Repairs, prompt: &str, repairs: &[Repair]) {
    for repair in repairs {
        *counts.entry(format!("{prompt}: {}", repair.as_str())).or_default() += 1;
    }
}

/// The end of one input row in one stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The row.
    pub input_id: String,
    /// What became of it.
    pub outcome: OutcomeKind,
    /// Why, as a short fixed word (`below-threshold`, `install-failed`); empty for a plain `kept`.
    pub reason: String,
    /// The cause in words, where something failed.
    pub cause: Option<String>,
    /// The raw reply that could not be used.
    pub raw: Option<String>,
    /// Calls to the outside world that were made, retries included.
    pub attempts: u32,
    /// Wall seconds.
    pub seconds: f64,
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// US dollars.
    pub cost_usd: f64,
    /// Replies that had to be repaired before they were used; `None` where there are none.
    #[serde(default)]
    pub repairs: Option<Repairs>,
    /// Steps of evolution that came to nothing; `None` where there are none.
    #[serde(default)]
    pub evolve_failed: Option<EvolveFailed>,
    /// What a row without an end waits for; never written down.
    #[serde(skip)]
    pub wait: Option<Wait>,
}

/// What a row without an end waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The answers of a batch.
    Batch,
    /// More money, tokens or time.
    Budget,
    /// A model that is down or turns calls away.
    Model,
}

impl Outcome {
    /// An outcome with no cost yet; the driver fills in the seconds.
    pub fn new(input_id: impl Into<String>, outcome: OutcomeKind, reason: impl Into<String>) -> Self {
        Self {
            input_id: input_id.into(),
            outcome,
            reason: reason.into(),
            cause: None,
            raw: None,
            attempts: 0,
            seconds: 0.0,
            input_tokens: 0,
            output_tokens: 0,
            cost_usd: 0.0,
            repairs: None,
            evolve_failed: None,
            wait: None,
        }
    }

    /// The row went on.
    pub fn kept(input_id: impl Into<String>) -> Self {
        Self::new(input_id, OutcomeKind::Kept, "")
    }

    /// The row was taken out on purpose.
    pub fn dropped(input_id: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(input_id, OutcomeKind::Dropped, reason)
    }

    /// The row could not be worked on.
    pub fn failed(input_id: impl Into<String>, reason: impl Into<String>, cause: impl Into<String>) -> Self {
        let mut outcome = Self::new(input_id, OutcomeKind::Failed, reason);
        outcome.cause = Some(cause.into());
        outcome
    }

    /// The row was not tried.
    pub fn skipped(input_id: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(input_id, OutcomeKind::Skipped, reason)
    }

    /// The row has no end yet.
    pub fn waiting(input_id: impl Into<String>, wait: Wait, cause: impl Into<String>) -> Self {
        let outcome = Self::new(input_id, OutcomeKind::Waiting, "waiting");
        Self { cause: Some(cause.into()), wait: Some(wait), ..outcome }
    }

    /// Adds what model calls used.
    pub fn with_usage(mut self, usage: Usage, attempts: u32) -> Self {
        self.input_tokens += usage.input_tokens;
        self.output_tokens += usage.output_tokens;
        self.cost_usd += usage.cost;
        self.attempts += attempts;
        self
    }

    /// Adds the steps of evolution that came to nothing.
    pub fn with_evolve_failed(mut self, failed: EvolveFailed) -> Self {
        if !failed.is_empty() {
            self.evolve_failed = Some(failed);
        }
        self
    }

    /// Adds what was repaired.
    pub fn with_repairs(mut self, repairs: Repairs) -> Self {
        if !repairs.is_empty() {
            let counts = self.repairs.get_or_insert_default();
            repairs.into_iter().for_each(|(rule, count)| *counts.entry(rule).or_default() += count);
        }
        self
    }
}

/// The four ends of a row, and what is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutcomeKind {
    /// It went on.
    Kept,
    /// It was taken out, with a reason.
    Dropped,
    /// It could not be worked on, with a cause.
    Failed,
    /// It was not tried, with a reason.
    Skipped,
    /// It is no end: the row waits for what is not there yet, see [`Wait`]. Never written down;
    /// the row is worked on again when the stage goes on.
    Waiting,
}

impl OutcomeKind {
    /// The word used in artifacts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Dropped => "dropped",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Waiting => "waiting",
        }
    }
}
