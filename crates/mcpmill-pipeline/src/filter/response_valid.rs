//! `response-valid`: is the tool's live answer one to learn from? By structure first; a judge only
//! for what structure leaves open. Never by a list of words.

use async_trait::async_trait;
use mcpmill_core::{
    naming::alias,
    record::{Ended, Message, ToolResult, Trajectory, Verdict},
    schema::Schema,
    text::clipped,
};
use serde_json::{Value, json};

use super::{Bench, Case, Filter};
use crate::{
    ask::{Meter, Question, ask},
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

    /// Reasons begin with a type and a colon: `ok: …`, `hard-error: …`; that type is stored with the row.
    async fn judge(&self, case: &Case<'_>, meter: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let Some(trajectory) = case.trajectory else {
            return bench.unjudged("unjudged: there is no trajectory");
        };
        match structure(trajectory, case, self.longest) {
            Structure::Bad(kind, why) => bench.drop(format!("{kind}: {why}")),
            Structure::Broken(why) => bench.unjudged(format!("unjudged: {why}")),
            Structure::Open(text) => self.ask_judge(&bench, case, &text, meter).await,
        }
    }
}

/// What the structure of a response says.
enum Structure {
    Bad(&'static str, String),
    Broken(String),
    Open(String),
}

fn structure(trajectory: &Trajectory, case: &Case<'_>, longest: usize) -> Structure {
    let cause = || trajectory.cause.clone().unwrap_or_else(|| "no cause given".into());
    match trajectory.ended {
        Ended::Limit => return Structure::Bad("timed-out", cause()),
        Ended::Failed => return Structure::Bad("server-failed", cause()),
        Ended::Refused => return Structure::Broken("the call was not run".into()),
        Ended::Answer => {}
    }
    let parsed = trajectory.result.as_deref().map(serde_json::from_str::<ToolResult>);
    let result = match parsed {
        Some(Ok(result)) => result,
        Some(Err(error)) => return Structure::Broken(format!("stored result cannot be read: {error}")),
        None => return Structure::Broken("no result is stored".into()),
    };
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
    if let Some(fault) = breach(case, structured) {
        return Structure::Bad("schema-breach", fault);
    }
    if let Some(why) = says_failure(&text).or_else(|| structured.and_then(admits_failure)) {
        return Structure::Bad("soft-error", why);
    }
    Structure::Open(text)
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
fn breach(case: &Case<'_>, structured: Option<&Value>) -> Option<String> {
    let declared = mcpmill_core::json::of_text(case.tool.output_schema.as_deref()?).ok()?;
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
    async fn ask_judge(&self, bench: &Bench<'_>, case: &Case<'_>, text: &str, meter: &mut Meter) -> Verdict {
        let models = match &self.models {
            Ok(models) => models,
            Err(why) => return bench.unjudged(format!("unjudged: no model: {why}")),
        };
        let call = case.sample.messages.iter().flat_map(Message::tool_calls).next();
        let arguments = call.map(|c| Value::Object(c.function.arguments.clone()).to_string()).unwrap_or_default();
        let question = Question {
            prompt: &self.prompt,
            inputs: json!({
                "request": case.sample.instruction,
                "call": format!("{} {arguments}", alias(&case.tool.name)),
                "response": clipped(text, SHOWN),
            }),
            schema: None,
            row: case.subject,
        };
        let judged = ask(models.role(Role::Judge), &question, meter, |reply| {
            let value: Value = serde_json::from_str(reply).map_err(|e| e.to_string())?;
            let ok = value["ok"].as_bool().ok_or("the reply does not say whether it is ok")?;
            Ok((ok, value["why"].as_str().unwrap_or_default().to_owned()))
        })
        .await;
        let evidence = json!({ "judge": models.role(Role::Judge).model() }).to_string();
        match judged {
            Err(failure) => bench.unjudged(format!("unjudged: {}: {}", failure.reason, failure.cause)),
            Ok((true, why)) => Verdict { evidence: Some(evidence), ..bench.keep(format!("ok: {why}")) },
            Ok((false, why)) => Verdict { evidence: Some(evidence), ..bench.drop(format!("soft-error: {why}")) },
        }
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
