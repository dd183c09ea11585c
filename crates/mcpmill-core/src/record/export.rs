//! Rows as they are published.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    id::{SampleId, ToolId},
    record::{Message, PolicyDecision, Revision, Row, SampleKind, Verdict, sample::english},
};

/// One row of a published dataset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportRow {
    /// The sample's id.
    pub id: SampleId,
    /// The conversation, with the tool's answer where it was run live.
    pub messages: Vec<Message>,
    /// Whether a turn is to be learned from, one for each message: assistant turns, but for masked ones.
    pub loss: Vec<bool>,
    /// The offered tools: a JSON list of OpenAI tool definitions.
    pub tools: String,
    /// Kind of conversation.
    pub kind: SampleKind,
    /// The language of the turns, as ISO 639-1 names it.
    #[serde(default = "english")]
    pub language: String,
    /// Name of the server; of several all, joined by [`ExportRow::AND`].
    pub server: String,
    /// Its version; absent where there are several.
    pub server_version: Option<String>,
    /// Tools that are called, in order.
    pub tool_ids: Vec<ToolId>,
    /// Tools that are asked for and not offered.
    #[serde(default)]
    pub withheld: Vec<ToolId>,
    /// The server's licence; of several servers with different ones all, as an SPDX expression.
    pub licence: Option<String>,
    /// What came of the live run: `ok`, `refused`, `not_run`, `failed`, `unjudged`.
    pub live: String,
    /// What the policy decided about running its calls; absent where none were to be run.
    #[serde(default)]
    pub policy: Option<PolicyDecision>,
    /// How the instruction came to be.
    pub lineage: Vec<Revision>,
    /// What the filters said.
    pub verdicts: Vec<Verdict>,
    /// Which split it is in.
    pub split: Split,
}

impl ExportRow {
    /// Stands between the names of several servers.
    pub const AND: &'static str = " + ";

    /// The names of its servers.
    pub fn servers(&self) -> impl Iterator<Item = &str> {
        self.server.split(Self::AND)
    }
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
