//! Training samples and how they came to be.

use serde::{Deserialize, Serialize};

use crate::{
    id::{SampleId, ServerId, ToolId},
    record::{Message, Row},
};

/// One instruction and the conversation that answers it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Hash of the tool, the kind and the place in the plan.
    pub id: SampleId,
    /// What kind of conversation it is.
    pub kind: SampleKind,
    /// Tools that are called, in order.
    pub tool_ids: Vec<ToolId>,
    /// Their servers.
    pub server_ids: Vec<ServerId>,
    /// What the user asks, after the last revision.
    pub instruction: String,
    /// The conversation as it will be exported.
    pub messages: Vec<Message>,
    /// Every revision of the instruction, oldest first.
    pub lineage: Vec<Revision>,
}

impl Row for Sample {
    fn row_id(&self) -> &str {
        self.id.as_str()
    }
}

/// Kinds of conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleKind {
    /// One instruction, one call.
    Single,
}

impl SampleKind {
    /// The word used in artifacts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Single => "single",
        }
    }
}

/// One step in the making of an instruction or call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revision {
    /// `instruct`, `slots`, `weave`, `evolve`, `call`, or the name of a repair made in code.
    pub step: String,
    /// SHA-256 of the prompt file, `None` for a step made in code.
    pub prompt: Option<String>,
    /// The model that wrote it, `None` for a step made in code.
    pub model: Option<String>,
    /// SHA-256 of the text it started from, `None` for the first.
    pub parent: Option<String>,
    /// What came out.
    pub text: String,
}
