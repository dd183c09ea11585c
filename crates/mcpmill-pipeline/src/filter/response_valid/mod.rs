//! `response-valid`: is the tool's live answer one to learn from? By structure first; a judge only
//! for what structure leaves open. Never by a list of words.

mod fields;
mod forms;
mod labelled;
mod structure;

use async_trait::async_trait;
use mcpmill_core::{
    naming::alias,
    record::{Ended, Message, ResponseVerdict, SampleKind, Tool, ToolResult, Trajectory, Verdict},
    text::clipped,
};
use serde_json::{Map, Value, json};

pub use labelled::{Half, JudgedResponse, LabelledResponse, LabelledResponses, McpResult, ResponseMarks};
pub(crate) use structure::failing;

use super::{Bench, Case, Filter, Plant};
use crate::{
    ask::{AskFailure, Meter, Question, ask},
    models::{Models, Role},
    prompt::Prompt,
};
use forms::Asked;
use structure::{Found, Shape};

/// The kind's name, by which exports find its verdicts.
pub const RESPONSE_VALID: &str = "response-valid";

/// Characters of a response that the judge is shown.
const SHOWN: usize = 1200;

pub(super) struct ResponseValid {
    pub(super) name: String,
    pub(super) prompt: Prompt,
    pub(super) longest: usize,
    pub(super) models: Result<Models, String>,
}

#[async_trait]
impl Filter for ResponseValid {
    fn name(&self) -> &str {
        &self.name
    }

    fn plants(&self) -> Vec<Plant> {
        vec![Plant::SoftError, Plant::SoftErrorOrder, Plant::HardError, Plant::Empty, Plant::OtherAnswer]
    }

    /// Reasons begin with a type and a colon: `ok: …`, `hard-error: …`; that type is stored with the row.
    async fn judge(&self, case: &Case<'_>, meter: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let Some(trajectory) = case.trajectory else {
            return bench.unjudged("unjudged: there is no trajectory");
        };
        let answers = match answers(trajectory, case) {
            Ok(answers) => answers,
            Err(NoAnswer(kind @ (ResponseVerdict::Unjudged | ResponseVerdict::Refused), why)) => {
                return bench.unjudged(format!("{kind}: {why}"));
            }
            Err(NoAnswer(kind, why)) => return bench.drop(format!("{kind}: {why}")),
        };
        let (mut sure, mut doubts, mut open) = (Vec::new(), Vec::new(), Vec::new());
        for answer in answers {
            match answer.shape(self.longest).found() {
                Found::Bad(kind, why) => return bench.drop(format!("{kind}: {why}")),
                Found::Sure(why) => sure.push(why),
                Found::Open(why) => {
                    doubts.push(why);
                    open.push(answer);
                }
            }
        }
        if open.is_empty() {
            return bench.keep(format!("{}: {}", ResponseVerdict::Ok, sure.join("; ")));
        }
        self.ask_judge(&bench, case, (&open, &doubts), meter).await
    }

    fn response(&self, verdict: &Verdict) -> Option<ResponseVerdict> {
        Some(ResponseVerdict::of_reason(&verdict.reason).unwrap_or(ResponseVerdict::Unjudged))
    }
}

/// Why there is nothing to look at.
struct NoAnswer(ResponseVerdict, String);

/// One answer of a conversation and what it answers.
struct Answer<'a> {
    /// What the user asked for, last before it.
    request: &'a str,
    tool: &'a Tool,
    arguments: &'a Map<String, Value>,
    result: ToolResult,
}

impl Answer<'_> {
    fn shape(&self, longest: usize) -> Shape<'_> {
        Shape {
            result: &self.result,
            asked: Asked { tool: &self.tool.name, arguments: self.arguments },
            output_schema: self.tool.output_schema.as_deref(),
            longest,
        }
    }
}

/// The answers of a conversation in order, but for those to calls that are not to be learned from.
fn answers<'a>(trajectory: &'a Trajectory, case: &Case<'a>) -> Result<Vec<Answer<'a>>, NoAnswer> {
    let cause = || trajectory.cause.clone().unwrap_or_else(|| "no cause given".into());
    let broken = |why: String| NoAnswer(ResponseVerdict::Unjudged, why);
    match trajectory.ended {
        Ended::Limit => return Err(NoAnswer(ResponseVerdict::TimedOut, cause())),
        Ended::Failed => return Err(NoAnswer(ResponseVerdict::ServerFailed, cause())),
        Ended::Refused => return Err(NoAnswer(ResponseVerdict::Refused, "the call was not run".into())),
        Ended::Answer => {}
    }
    let stored = trajectory.result.as_deref().ok_or_else(|| broken("no result is stored".into()))?;
    let read =
        if stored.starts_with('[') { serde_json::from_str(stored) } else { serde_json::from_str(stored).map(|one| vec![one]) };
    let results: Vec<ToolResult> = read.map_err(|e| broken(format!("stored result cannot be read: {e}")))?;
    let answered: Vec<&str> = trajectory.messages.iter().filter_map(answered_call).collect();
    if answered.len() != results.len() {
        return Err(broken(format!("{} results are stored for {} answers", results.len(), answered.len())));
    }
    let learned = answered.into_iter().zip(results).filter_map(|(id, result)| answer(trajectory, case, id, result));
    let learned: Vec<Answer> = learned.collect();
    if learned.is_empty() { Err(broken("there is no answer to learn from".into())) } else { Ok(learned) }
}

/// The call a message answers.
fn answered_call(message: &Message) -> Option<&str> {
    match message {
        Message::Tool { tool_call_id, .. } => Some(tool_call_id),
        _ => None,
    }
}

/// An answer with its call; `None` where the call is masked or stands nowhere.
fn answer<'a>(trajectory: &'a Trajectory, case: &Case<'a>, id: &str, result: ToolResult) -> Option<Answer<'a>> {
    let calls = |message: &'a Message| message.tool_calls().iter().find(|call| call.id == id);
    let (at, call) = trajectory.messages.iter().enumerate().find_map(|(at, message)| Some((at, calls(message)?)))?;
    let masked = u32::try_from(at).is_ok_and(|at| trajectory.masked.contains(&at));
    let asked = trajectory.messages[..at].iter().rev().find_map(|message| match message {
        Message::User { content } => Some(content.as_str()),
        _ => None,
    });
    let request = asked.filter(|_| case.sample.kind == SampleKind::MultiTurn).unwrap_or(&case.sample.instruction);
    let tool = case.called.iter().find(|tool| alias(&tool.name) == call.function.name).copied().unwrap_or(case.tool);
    (!masked).then_some(Answer { request, tool, arguments: &call.function.arguments, result })
}

impl ResponseValid {
    /// Asks about every answer, until one is not usable.
    async fn ask_judge(
        &self,
        bench: &Bench<'_>,
        case: &Case<'_>,
        (open, doubts): (&[Answer<'_>], &[String]),
        meter: &mut Meter,
    ) -> Verdict {
        let models = match &self.models {
            Ok(models) => models,
            Err(why) => return bench.unjudged(format!("unjudged: no model: {why}")),
        };
        let evidence = json!({ "judge": models.role(Role::Judge).model(), "doubts": doubts }).to_string();
        let mut reasons = Vec::new();
        for answer in open {
            match self.one(models, case, answer, meter).await {
                Err(failure) => return bench.unjudged(format!("unjudged: {}: {}", failure.reason, failure.cause)),
                Ok((true, why)) => reasons.push(why),
                Ok((false, why)) => {
                    return Verdict { evidence: Some(evidence), ..bench.drop(format!("{}: {why}", ResponseVerdict::SoftError)) };
                }
            }
        }
        Verdict { evidence: Some(evidence), ..bench.keep(format!("{}: {}", ResponseVerdict::Ok, reasons.join("; "))) }
    }

    async fn one(
        &self,
        models: &Models,
        case: &Case<'_>,
        answer: &Answer<'_>,
        meter: &mut Meter,
    ) -> Result<(bool, String), AskFailure> {
        let arguments = Value::Object(answer.arguments.clone());
        let question = Question {
            prompt: &self.prompt,
            inputs: json!({
                "request": answer.request,
                "call": format!("{} {arguments}", alias(&answer.tool.name)),
                "response": clipped(&answer.result.text(), SHOWN),
            }),
            schema: None,
            row: case.subject,
        };
        ask(models.role(Role::Judge), &question, meter, |reply| {
            let value: Value = serde_json::from_str(reply).map_err(|e| e.to_string())?;
            let ok = value["ok"].as_bool().ok_or("the reply does not say whether it is ok")?;
            Ok((ok, value["why"].as_str().unwrap_or_default().to_owned()))
        })
        .await
    }
}

#[cfg(test)]
mod tests;
