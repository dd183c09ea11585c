//! Training samples and how they came to be.

use serde::{Deserialize, Serialize};

use crate::{
    id::{SampleId, ServerId, ToolId},
    record::{Message, Row},
};

/// One instruction and the conversation that answers it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Hash of the first tool, the kind and the place in the plan.
    pub id: SampleId,
    /// What kind of conversation it is.
    pub kind: SampleKind,
    /// Tools that are called, in order, those of the turns to come included; none where no tool fits.
    pub tool_ids: Vec<ToolId>,
    /// Tools that the instruction asks for and that must not be offered beside it: where no tool fits.
    #[serde(default)]
    pub withheld: Vec<ToolId>,
    /// Their servers, those of withheld tools too, each once.
    pub server_ids: Vec<ServerId>,
    /// The language of the turns, as ISO 639-1 names it.
    #[serde(default = "english")]
    pub language: String,
    /// What the user asks, after the last revision.
    pub instruction: String,
    /// The conversation as it will be exported.
    pub messages: Vec<Message>,
    /// Every revision of the instruction, oldest first.
    pub lineage: Vec<Revision>,
}

impl Sample {
    /// The tools that the instruction is about: those that are called, then those that are withheld.
    pub fn about(&self) -> impl Iterator<Item = &ToolId> {
        self.tool_ids.iter().chain(&self.withheld)
    }
}

/// The language of what does not say.
pub(super) fn english() -> String {
    "en".into()
}

impl Row for Sample {
    fn row_id(&self) -> &str {
        self.id.as_str()
    }
}

/// Kinds of conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleKind {
    /// One instruction, one call.
    Single,
    /// One instruction, several calls of one turn that do not need each other.
    Parallel,
    /// One instruction, calls one after the other, each with what the one before brought.
    Chain,
    /// Several instructions, each answered with calls, the later ones with the earlier in mind.
    MultiTurn,
    /// None of the offered tools fits: the answer says so and calls nothing.
    NoTool,
    /// A required value is missing: the answer asks for it, the next turn gives it.
    Ask,
    /// A call fails, and the next one mends it.
    Recover,
}

impl SampleKind {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Single, Self::Parallel, Self::Chain, Self::MultiTurn, Self::NoTool, Self::Ask, Self::Recover];

    /// The word used in artifacts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Parallel => "parallel",
            Self::Chain => "chain",
            Self::MultiTurn => "multi-turn",
            Self::NoTool => "no-tool",
            Self::Ask => "ask",
            Self::Recover => "recover",
        }
    }
}

/// One step in the making of an instruction or call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revision {
    /// `instruct`, `slots`, `weave`, `evolve:` with its operator, a kind of conversation, `call`, or the name of a
    /// repair made in code.
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
