//! How well answers are told apart: verdicts on labelled answers of real servers.

use std::collections::BTreeMap;

use futures::{StreamExt, stream};
use mcpmill_core::{
    id::{SampleId, ServerId, TrajectoryId},
    naming::alias,
    record::{
        Ended, FunctionCall, Message, PolicyDecision, ResponseVerdict, Sample, SampleKind, Tool, ToolCall, ToolDraft, ToolResult,
        Trajectory,
    },
    share::Share,
    text::clipped,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{RESPONSE_VALID, ResponseValid};
use crate::{
    ask::Meter,
    filter::{Case, Filter},
    models::Models,
    prompt::Prompt,
};

/// Which of the labelled answers the rules were written by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Half {
    /// These were read while the rules were written.
    Seen,
    /// These were not.
    HeldOut,
}

/// One labelled answer. Further fields of a line are left alone.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct LabelledResponse {
    /// Its name in the set.
    pub id: String,
    /// The server that gave it.
    pub server: String,
    /// The tool's name.
    pub tool: String,
    /// The call's arguments.
    pub arguments: Map<String, Value>,
    /// What the call was made for.
    pub request: String,
    /// What the server declared of its structured content.
    #[serde(default)]
    pub output_schema: Option<Value>,
    /// The answer, as MCP has it.
    pub result: McpResult,
    /// What it is: `ok`, `empty`, `soft-error`, `hard-error` or another verdict.
    pub label: ResponseVerdict,
    /// Which half it belongs to.
    #[serde(default = "held_out")]
    pub half: Half,
}

fn held_out() -> Half {
    Half::HeldOut
}

/// A `CallToolResult`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct McpResult {
    /// Content blocks.
    #[serde(default)]
    pub content: Value,
    /// Structured content.
    #[serde(default)]
    pub structured_content: Option<Value>,
    /// Whether the tool says that it failed.
    #[serde(default)]
    pub is_error: bool,
}

/// Labelled answers.
pub struct LabelledResponses(Vec<LabelledResponse>);

/// What a filter made of a labelled answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedResponse {
    /// Its name in the set.
    pub id: String,
    /// `server/tool`.
    pub tool: String,
    /// Which half it belongs to.
    pub half: Half,
    /// What it is.
    pub label: ResponseVerdict,
    /// What the filter says.
    pub verdict: ResponseVerdict,
    /// Why.
    pub why: String,
    /// Whether a judge was asked.
    pub asked: bool,
}

/// How well a half was told apart.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResponseMarks {
    /// Answers labelled `ok` that were dropped.
    pub false_rejects: Share,
    /// Soft errors and empty answers that were kept.
    pub missed: Share,
    /// The same with those whose `isError` is set.
    pub missed_of_all: Share,
    /// Answers without `isError` that structure alone decided.
    pub by_structure: Share,
    /// Answers that nobody judged; they are no part of the shares above.
    pub unjudged: u64,
}

impl LabelledResponses {
    /// Reads rows, one JSON object a line.
    ///
    /// # Errors
    /// A line that cannot be read, or none at all, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let read = |(at, line): (usize, &str)| serde_json::from_str(line).map_err(|e| format!("line {}: {e}", at + 1));
        let rows = lines.map(read).collect::<Result<Vec<LabelledResponse>, String>>()?;
        if rows.is_empty() { Err("it has no rows".into()) } else { Ok(Self(rows)) }
    }

    /// The rows.
    pub fn rows(&self) -> &[LabelledResponse] {
        &self.0
    }

    /// Judges every row as the step `response-valid` does; without models what structure leaves open is `unjudged`.
    pub async fn judge(
        &self,
        prompt: Prompt,
        models: Result<Models, String>,
        longest: usize,
        at_once: usize,
    ) -> Vec<JudgedResponse> {
        let filter = ResponseValid { name: RESPONSE_VALID.into(), prompt, longest, models };
        let filter = &filter;
        let judged = stream::iter(&self.0).map(|row| async move { row.judged(filter).await });
        judged.buffered(at_once.max(1)).collect().await
    }
}

impl ResponseMarks {
    /// The marks of some verdicts.
    pub fn of<'a>(judged: impl IntoIterator<Item = &'a JudgedResponse>) -> Self {
        let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        let mut unjudged = 0;
        for row in judged {
            let mut count = |name: &'static str, hit: bool| {
                let of = counts.entry(name).or_default();
                *of = (of.0 + u64::from(hit), of.1 + 1);
            };
            if row.label != ResponseVerdict::HardError {
                count("structure", !row.asked);
            }
            let kept = row.verdict == ResponseVerdict::Ok;
            match (row.verdict, row.label) {
                (ResponseVerdict::Unjudged, _) => unjudged += 1,
                (_, ResponseVerdict::Ok) => count("ok", !kept),
                (_, label) => {
                    count("all", kept);
                    if label != ResponseVerdict::HardError {
                        count("failed", kept);
                    }
                }
            }
        }
        let share = |name: &str| counts.get(name).map_or_else(|| Share::of(0, 0), |(hits, n)| Share::of(*hits, *n));
        Self {
            false_rejects: share("ok"),
            missed: share("failed"),
            missed_of_all: share("all"),
            by_structure: share("structure"),
            unjudged,
        }
    }
}

impl JudgedResponse {
    /// Whether an answer was dropped or a failure kept.
    pub fn is_wrong(&self) -> bool {
        let kept = self.verdict == ResponseVerdict::Ok;
        self.verdict != ResponseVerdict::Unjudged && kept != (self.label == ResponseVerdict::Ok)
    }
}

impl LabelledResponse {
    async fn judged(&self, filter: &ResponseValid) -> JudgedResponse {
        let tool = self.tool();
        let result = ToolResult {
            content: self.result.content.clone(),
            structured_content: self.result.structured_content.clone(),
            is_error: self.result.is_error,
        };
        let call = ToolCall::new("call_1", FunctionCall { name: alias(&tool.name), arguments: self.arguments.clone() });
        let messages = vec![Message::user(&self.request), Message::call(call)];
        let answered = Message::Tool { tool_call_id: "call_1".into(), name: alias(&tool.name), content: result.text() };
        let trajectory = Trajectory {
            id: TrajectoryId(self.id.clone()),
            sample_id: SampleId(self.id.clone()),
            messages: messages.iter().cloned().chain([answered]).collect(),
            ended: Ended::Answer,
            cause: None,
            policy: PolicyDecision { allowed: true, rule: "recorded".into(), why: "it was run when the set was made".into() },
            result: serde_json::to_string(&result).ok(),
            response_verdict: None,
            masked: Vec::new(),
            lineage: Vec::new(),
        };
        let sample = Sample {
            id: SampleId(self.id.clone()),
            kind: SampleKind::Single,
            tool_ids: vec![tool.id.clone()],
            withheld: Vec::new(),
            server_ids: vec![tool.server_id.clone()],
            language: "en".into(),
            instruction: self.request.clone(),
            messages,
            lineage: Vec::new(),
        };
        let case = Case { subject: &self.id, sample: &sample, tool: &tool, called: &[&tool], trajectory: Some(&trajectory) };
        let mut meter = Meter::default();
        let verdict = filter.judge(&case, &mut meter).await;
        let (kind, why) = verdict.reason.split_once(": ").unwrap_or((&verdict.reason, ""));
        JudgedResponse {
            id: self.id.clone(),
            tool: format!("{}/{}", self.server, self.tool),
            half: self.half,
            label: self.label,
            verdict: ResponseVerdict::of_reason(kind).unwrap_or(ResponseVerdict::Unjudged),
            why: clipped(why, 200),
            asked: verdict.evidence.is_some() || kind == ResponseVerdict::Unjudged.name(),
        }
    }

    fn tool(&self) -> Tool {
        let draft = ToolDraft {
            name: self.tool.clone(),
            title: None,
            description: None,
            input_schema: json!({ "type": "object" }),
            output_schema: self.output_schema.clone(),
            annotations: None,
        };
        Tool::new(ServerId(self.server.clone()), draft)
    }
}
