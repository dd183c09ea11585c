//! What happened when a sample's call was run on a live server.

use serde::{Deserialize, Serialize};

use crate::{
    id::{SampleId, TrajectoryId},
    record::{Message, ResponseVerdict, Revision, Row},
};

/// A sample's conversation with the tool's real answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// Hash of the sample and its call.
    pub id: TrajectoryId,
    /// The sample that was run.
    pub sample_id: SampleId,
    /// The conversation including the answer.
    pub messages: Vec<Message>,
    /// How it ended.
    pub ended: Ended,
    /// Why the failure happened, when it did, or why the conversation ended before its plan did.
    pub cause: Option<String>,
    /// What the policy decided about running the call.
    pub policy: PolicyDecision,
    /// The tool's answer as MCP sent it (`CallToolResult` as JSON text); of several answers a list, in the order of the
    /// tool messages.
    pub result: Option<String>,
    /// What the response filter made of it; absent before that filter.
    pub response_verdict: Option<ResponseVerdict>,
    /// Places in `messages` of what is not to be learned from, such as a call that was wrong.
    #[serde(default)]
    pub masked: Vec<u32>,
    /// Every turn that was written while it was run, and by whom, in their order; they follow those of the sample.
    #[serde(default)]
    pub lineage: Vec<Revision>,
}

impl Row for Trajectory {
    fn row_id(&self) -> &str {
        self.id.as_str()
    }
}

/// How a trajectory ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// The tool answered.
    Answer,
    /// The time limit was reached.
    Limit,
    /// The server or the protocol failed.
    Failed,
    /// The policy did not let it run.
    Refused,
}

/// Whether a call may run live, and which rule said so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyDecision {
    /// True when the call was run.
    pub allowed: bool,
    /// The rule: a pattern of the settings, or `read-only`, `disposable-world`, `anywhere`, `may-change`.
    pub rule: String,
    /// Why the rule holds, for people.
    #[serde(default)]
    pub why: String,
}
