//! The records that travel between stages. Field names are the column names of the artifacts.

mod exam;
mod export;
mod message;
mod outcome;
mod prediction;
mod response;
mod sample;
mod server;
mod tool;
mod trajectory;
mod twin;
mod usage;
mod verdict;

pub use exam::{Exam, ExamEnd};
pub use export::{ExportRow, Split};
pub use message::{FunctionCall, Message, ToolCall, ToolCallKind};
pub use outcome::{EvolveFailed, Outcome, OutcomeKind, Repairs, Wait, count_repairs};
pub use prediction::Prediction;
pub use response::ResponseVerdict;
pub use sample::{Revision, Sample, SampleKind};
pub use server::{EnvVar, HarvestOutcome, Launch, ServerRecord, Source};
pub use tool::{Tool, ToolDraft, ToolResult};
pub use trajectory::{Ended, PolicyDecision, Trajectory};
pub use twin::Twin;
pub use usage::Usage;
pub use verdict::{Judgement, Verdict};

/// A record that is the input or output row of a stage.
pub trait Row: Send + 'static {
    /// The id that names this row in outcomes and verdicts.
    fn row_id(&self) -> &str;
}

/// Keeps JSON text as a string in artifacts and on the wire while the program holds a value.
///
/// Parquet would otherwise union the keys of all rows and invent nulls (architecture: "JSON strings").
pub(crate) mod json_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _, ser::Error as _};
    use serde_json::{Map, Value};

    pub fn serialize<S: Serializer>(map: &Map<String, Value>, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&serde_json::to_string(map).map_err(S::Error::custom)?)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Map<String, Value>, D::Error> {
        let text = String::deserialize(d)?;
        serde_json::from_str(&text).map_err(|e| D::Error::custom(format!("arguments are no JSON object: {e}")))
    }
}
