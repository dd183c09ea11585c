//! Choices of a model in tool selection.

use serde::{Deserialize, Serialize};

use crate::{
    id::{SampleId, ToolId},
    record::Row,
};

/// What a model chose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The row's sample.
    pub sample_id: SampleId,
    /// Its split.
    pub split: String,
    /// How many tools were offered.
    pub candidates: u64,
    /// The right tools.
    pub answers: Vec<ToolId>,
    /// The chosen tool; absent when the reply could not be read or names none that was offered.
    pub chosen: Option<ToolId>,
    /// Whether it is right.
    pub correct: bool,
    /// Why there is no choice.
    pub parse_failure: Option<String>,
}

impl Row for Prediction {
    fn row_id(&self) -> &str {
        self.sample_id.as_str()
    }
}
