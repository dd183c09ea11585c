//! Rows as they are published.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    id::{SampleId, ToolId},
    record::{Message, Revision, Row, SampleKind, Verdict},
};

/// One row of a published dataset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportRow {
    /// The sample's id.
    pub id: SampleId,
    /// The conversation, with the tool's answer where it was run live.
    pub messages: Vec<Message>,
    /// The offered tools: a JSON list of OpenAI tool definitions.
    pub tools: String,
    /// Kind of conversation.
    pub kind: SampleKind,
    /// Name of the server.
    pub server: String,
    /// Its version.
    pub server_version: Option<String>,
    /// Tools that are called, in order.
    pub tool_ids: Vec<ToolId>,
    /// The server's licence.
    pub licence: Option<String>,
    /// What came of the live run: `ok`, `refused`, `not_run`, `failed`, `unjudged`.
    pub live: String,
    /// How the instruction came to be.
    pub lineage: Vec<Revision>,
    /// What the filters said.
    pub verdicts: Vec<Verdict>,
    /// Which split it is in.
    pub split: Split,
}

impl Row for ExportRow {
    fn row_id(&self) -> &str {
        self.id.as_str()
    }
}

/// The splits of a dataset. Names have underscores: the hub's loader refuses hyphens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// For training.
    Train,
    /// Held-out instructions of tools that are trained on.
    SeenTool,
    /// Tools that are not trained on, of servers that are.
    UnseenTool,
    /// Servers that are not trained on.
    UnseenServer,
}

impl Split {
    /// All splits, in the order of a card.
    pub const ALL: [Self; 4] = [Self::Train, Self::SeenTool, Self::UnseenTool, Self::UnseenServer];

    /// The word used in file names and columns.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::SeenTool => "seen_tool",
            Self::UnseenTool => "unseen_tool",
            Self::UnseenServer => "unseen_server",
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
