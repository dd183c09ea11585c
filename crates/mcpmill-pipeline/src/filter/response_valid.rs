//! `response-valid`: is the tool's live answer one to learn from? By structure first; a judge only
//! for what structure leaves open. Never by a list of words.

use async_trait::async_trait;
use mcpmill_core::{
    naming::alias,
    record::{Ended, Message, SampleKind, Tool, ToolResult, Trajectory, Verdict},
    schema::Schema,
    text::clipped,
};
use serde_json::{Map, Value, json};

use super::{Bench, Case, Filter, Plant};
use crate::{
    ask::{AskFailure, Meter, Question, ask},
    models::{Models, Role},
    prompt::Prompt,
};

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
            Err(Structure::Bad(kind, why)) => return bench.drop(format!("{kind}: {why}")),
            Err(Structure::Broken(why) | Structure::Open(why)) => return bench.unjudged(format!("unjudged: {why}")),
        };
        let mut open = Vec::new();
        for answer in answers {
            match structure(&answer, self.longest) {
                Structure::Bad(kind, why) => return bench.drop(format!("{kind}: {why}")),
                Structure::Broken(why) => return bench.unjudged(format!("unjudged: {why}")),
                Structure::Open(text) => open.push((answer, text)),
            }
        }
        self.ask_judge(&bench, case, &open, meter).await
    }
}

/// What the structure of a response says.
enum Structure {
    Bad(&'static str, String),
    Broken(String),
    Open(String),
}

/// One answer of a conversation and what it answers.
struct Answer<'a> {
    /// What the user asked for, last before it.
    request: &'a str,
    tool: &'a Tool,
    arguments: &'a Map<String, Value>,
    result: ToolResult,
}

/// The answers of a conversation in order, but for those to calls that are not to be learned from.
fn answers<'a>(trajectory: &'a Trajectory, case: &Case<'a>) -> Result<Vec<Answer<'a>>, Structure> {
    let cause = || trajectory.cause.clone().unwrap_or_else(|| "no cause given".into());
    match trajectory.ended {
        Ended::Limit => return Err(Structure::Bad("timed-out", cause())),
        Ended::Failed => return Err(Structure::Bad("server-failed", cause())),
        Ended::Refused => return Err(Structure::Broken("the call was not run".into())),
        Ended::Answer => {}
    }
    let stored = trajectory.result.as_deref().ok_or_else(|| Structure::Broken("no result is stored".into()))?;
    let read =
        if stored.starts_with('[') { serde_json::from_str(stored) } else { serde_json::from_str(stored).map(|one| vec![one]) };
    let results: Vec<ToolResult> = read.map_err(|e| Structure::Broken(format!("stored result cannot be read: {e}")))?;
    let answered: Vec<&str> = trajectory.messages.iter().filter_map(answered_call).collect();
    if answered.len() != results.len() {
        return Err(Structure::Broken(format!("{} results are stored for {} answers", results.len(), answered.len())));
    }
    let learned = answered.into_iter().zip(results).filter_map(|(id, result)| answer(trajectory, case, id, result));
    let learned: Vec<Answer> = learned.collect();
    if learned.is_empty() { Err(Structure::Broken("there is no answer to learn from".into())) } else { Ok(learned) }
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

fn structure(answer: &Answer<'_>, longest: usize) -> Structure {
    let result = &answer.result;
    let text = result.text();
    if result.is_error {
        return Structure::Bad("hard-error", clipped(&text, 200));
    }
    let structured = result.structured_content.as_ref();
    if is_empty(&text, structured) {
        return Structure::Bad("empty", "the answer has no content".into());
    }
    if text.chars().count() > longest {
        return Structure::Bad("too-long", format!("more than {longest} characters"));
    }
    if let Some(fault) = breach(answer.tool, structured) {
        return Structure::Bad("schema-breach", fault);
    }
    if let Some(why) = admitted(result) {
        return Structure::Bad("soft-error", why);
    }
    Structure::Open(text)
}

/// What a tool says of its failure, if it failed: by the flag of the protocol, or by the fields of its answer.
pub(crate) fn failing(result: &ToolResult) -> Option<String> {
    if result.is_error { Some(clipped(&result.text(), 200)) } else { admitted(result) }
}

fn admitted(result: &ToolResult) -> Option<String> {
    says_failure(&result.text()).or_else(|| result.structured_content.as_ref().and_then(admits_failure))
}

fn is_empty(text: &str, structured: Option<&Value>) -> bool {
    let bare = |v: &Value| match v {
        Value::Null => true,
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        Value::String(s) => s.trim().is_empty(),
        _ => false,
    };
    let text = text.trim();
    let no_text = text.is_empty() || serde_json::from_str::<Value>(text).is_ok_and(|v| bare(&v));
    no_text && structured.is_none_or(bare)
}

/// A declared output schema that the structured answer does not keep.
fn breach(tool: &Tool, structured: Option<&Value>) -> Option<String> {
    let declared = mcpmill_core::json::of_text(tool.output_schema.as_deref()?).ok()?;
    let schema = Schema::compile(&declared).ok()?;
    match structured {
        None => Some("an output schema is declared but no structured content came".into()),
        Some(value) => schema.faults(value, 1).into_iter().next(),
    }
}

/// A JSON text whose own fields say that it failed.
fn says_failure(text: &str) -> Option<String> {
    admits_failure(&serde_json::from_str(text.trim()).ok()?)
}

fn admits_failure(value: &Value) -> Option<String> {
    let map = value.as_object()?;
    let told = |v: &Value| clipped(&v.as_str().map_or_else(|| v.to_string(), str::to_owned), 200);
    for key in ["error", "errors", "exception"] {
        match map.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::Array(list)) if list.is_empty() => {}
            Some(Value::Object(fields)) if fields.is_empty() => {}
            Some(Value::String(text)) if text.is_empty() => {}
            Some(found) => return Some(format!("`{key}` is {}", told(found))),
        }
    }
    for key in ["success", "ok"] {
        if map.get(key) == Some(&Value::Bool(false)) {
            return Some(format!("`{key}` is false"));
        }
    }
    None
}

impl ResponseValid {
    /// Asks about every answer, until one is not usable.
    async fn ask_judge(&self, bench: &Bench<'_>, case: &Case<'_>, open: &[(Answer<'_>, String)], meter: &mut Meter) -> Verdict {
        let models = match &self.models {
            Ok(models) => models,
            Err(why) => return bench.unjudged(format!("unjudged: no model: {why}")),
        };
        let evidence = json!({ "judge": models.role(Role::Judge).model() }).to_string();
        let mut reasons = Vec::new();
        for (answer, text) in open {
            match self.one(models, case, (answer, text), meter).await {
                Err(failure) => return bench.unjudged(format!("unjudged: {}: {}", failure.reason, failure.cause)),
                Ok((true, why)) => reasons.push(why),
                Ok((false, why)) => {
                    return Verdict { evidence: Some(evidence), ..bench.drop(format!("soft-error: {why}")) };
                }
            }
        }
        Verdict { evidence: Some(evidence), ..bench.keep(format!("ok: {}", reasons.join("; "))) }
    }

    async fn one(
        &self,
        models: &Models,
        case: &Case<'_>,
        (answer, text): (&Answer<'_>, &str),
        meter: &mut Meter,
    ) -> Result<(bool, String), AskFailure> {
        let arguments = Value::Object(answer.arguments.clone());
        let question = Question {
            prompt: &self.prompt,
            inputs: json!({
                "request": answer.request,
                "call": format!("{} {arguments}", alias(&answer.tool.name)),
                "response": clipped(text, SHOWN),
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
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn failures_are_seen_in_fields_not_in_words() {
        assert!(says_failure(r#"{"error":"fetch failed"}"#).unwrap().contains("fetch failed"));
        assert!(says_failure(r#"{"success":false}"#).is_some());
        for good in [r#"{"error":null,"rows":1}"#, r#"{"errors":[]}"#, "The error rate fell to 2 %", r#"{"note":"error: none"}"#]
        {
            assert_eq!(says_failure(good), None, "{good}");
        }
    }

    #[test]
    fn empty_is_what_carries_nothing() {
        for (text, structured) in [("", None), (" [] ", None), ("{}", Some(json!([]))), ("null", Some(Value::Null))] {
            assert!(is_empty(text, structured.as_ref()), "{text}");
        }
        assert!(!is_empty("0", None));
        assert!(!is_empty("", Some(&json!({"n": 0}))));
    }
}
