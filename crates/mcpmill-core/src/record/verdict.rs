//! What a filter thinks of a row.

use serde::{Deserialize, Serialize};

/// One filter's judgement of one row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The row that was judged.
    pub subject_id: String,
    /// The filter, by its name in the chain.
    pub filter: String,
    /// Keep, drop, or could not judge.
    pub judgement: Judgement,
    /// Why, in a few words; never empty.
    pub reason: String,
    /// The number that was compared, where there is one.
    pub score: Option<f64>,
    /// What it was compared with.
    pub threshold: Option<f64>,
    /// What the filter saw, as JSON text.
    pub evidence: Option<String>,
}

/// The three states of a judgement. A filter that could not decide says so; it never guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Judgement {
    /// The row passes this filter.
    Keep,
    /// The row fails this filter.
    Drop,
    /// The filter could not decide: a model was missing, or its reply could not be read.
    Unjudged,
}
