//! How messages are written.

use mcpmill_core::record::{Message, ToolCall};
use serde_json::{Map, Value, json};

use super::{Form, Profile, cut::Turn};

/// A message in OpenAI's shape.
pub fn openai(profile: &Profile, turn: &Turn<'_>) -> Value {
    let mut written = Map::new();
    match turn.message {
        Message::System { content } => said(&mut written, "system", content),
        Message::User { content } => said(&mut written, "user", content),
        Message::Assistant { content, tool_calls } => {
            said(&mut written, "assistant", content.as_deref().unwrap_or_default());
            if profile.null_content && content.as_ref().is_none_or(String::is_empty) {
                written.insert("content".into(), Value::Null);
            }
            if !tool_calls.is_empty() {
                written.insert("tool_calls".into(), tool_calls.iter().map(|call| openai_call(profile, call)).collect());
            }
            flag(profile, turn, &mut written);
        }
        Message::Tool { tool_call_id, name, content } => {
            said(&mut written, "tool", content);
            written.insert("tool_call_id".into(), tool_call_id.as_str().into());
            if profile.tool_names {
                written.insert("name".into(), name.as_str().into());
            }
        }
    }
    Value::Object(written)
}

fn openai_call(profile: &Profile, call: &ToolCall) -> Value {
    let arguments = Value::Object(call.function.arguments.clone());
    let arguments = if profile.arguments == Form::Text { arguments.to_string().into() } else { arguments };
    json!({ "id": call.id, "type": "function", "function": { "name": call.function.name, "arguments": arguments } })
}

/// A message where each call is one of its own.
pub fn tool_call(profile: &Profile, turn: &Turn<'_>) -> Vec<Value> {
    let Message::Assistant { content, tool_calls } = turn.message else {
        let mut written = Map::new();
        match turn.message {
            Message::Tool { content, .. } => said(&mut written, "tool_response", content),
            Message::System { content } => said(&mut written, "system", content),
            Message::User { content } | Message::Assistant { content: Some(content), .. } => {
                said(&mut written, "user", content);
            }
            Message::Assistant { content: None, .. } => {}
        }
        return vec![Value::Object(written)];
    };
    let text = content.iter().filter(|text| !text.is_empty() || tool_calls.is_empty()).map(|text| ("assistant", text.clone()));
    let calls = tool_calls.iter().map(|call| ("tool_call", plain_call(call).to_string()));
    text.chain(calls)
        .map(|(role, content)| {
            let mut written = Map::new();
            said(&mut written, role, &content);
            flag(profile, turn, &mut written);
            Value::Object(written)
        })
        .collect()
}

/// Turns as `from` and `value`, in strict alternation: answers to parallel calls are one turn.
///
/// # Errors
/// The format cannot say it.
pub fn sharegpt(profile: &Profile, turns: &[Turn<'_>]) -> Result<Value, &'static str> {
    let mut written: Vec<(&'static str, String)> = Vec::new();
    for turn in turns {
        match turn.message {
            Message::System { content } if written.is_empty() => written.push(("system", content.clone())),
            Message::System { .. } => return Err("a system turn that is not the first"),
            Message::User { content } => written.push(("human", content.clone())),
            Message::Assistant { content, tool_calls } if tool_calls.is_empty() => {
                written.push(("gpt", content.clone().unwrap_or_default()));
            }
            Message::Assistant { content, tool_calls } => {
                written.push(("function_call", called(profile, content.as_deref().unwrap_or_default(), tool_calls)?));
            }
            Message::Tool { content, .. } => match written.last_mut() {
                Some(("observation", answers)) => {
                    answers.push_str(&profile.joint);
                    answers.push_str(content);
                }
                _ => written.push(("observation", content.clone())),
            },
        }
    }
    let talk = written.iter().filter(|(from, _)| *from != "system");
    let is_ours = |from: &str| matches!(from, "gpt" | "function_call");
    if talk.enumerate().any(|(at, (from, _))| is_ours(from) != (at % 2 == 1)) {
        return Err("two turns of one side");
    }
    Ok(written.into_iter().map(|(from, value)| json!({ "from": from, "value": value })).collect())
}

/// Calls as one text: an object, or a list of several.
fn called(profile: &Profile, text: &str, calls: &[ToolCall]) -> Result<String, &'static str> {
    let json = match calls {
        [call] => plain_call(call).to_string(),
        calls => calls.iter().map(plain_call).collect::<Value>().to_string(),
    };
    match &profile.call_marks {
        _ if text.is_empty() => Ok(json),
        Some([open, close]) => Ok(format!("{text}\n{open}{json}{close}")),
        None => Err("text beside a call"),
    }
}

fn plain_call(call: &ToolCall) -> Value {
    json!({ "name": call.function.name, "arguments": call.function.arguments })
}

fn said(written: &mut Map<String, Value>, role: &str, content: &str) {
    written.insert("role".into(), role.into());
    written.insert("content".into(), content.into());
}

fn flag(profile: &Profile, turn: &Turn<'_>, written: &mut Map<String, Value>) {
    if let Some(mask) = &profile.mask {
        let value = if turn.learned { &mask.learned } else { &mask.masked };
        written.insert(mask.field.clone(), value.clone());
    }
}
