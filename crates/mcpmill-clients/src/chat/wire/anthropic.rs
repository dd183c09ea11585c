//! Anthropic's Messages.

use mcpmill_core::{edge::Finish, record::Message};
use serde_json::{Value, json};

use super::{Api, Ask, FORCED_SAYS, Fault, Read, Unreadable, Used, WireCall, Written, forced, messages};
use crate::chat::{
    ability::Binding,
    raw::{items, member},
};

pub(super) fn body(ask: &Ask<'_>) -> Value {
    let (request, sampling) = (ask.request, ask.sampling);
    let budget = sampling.thinking();
    let most = sampling.max_tokens.unwrap_or(request.max_tokens);
    let mut body = json!({ "model": ask.model, "max_tokens": most.saturating_add(budget) });
    if budget > 0 {
        // Thinking models sample as they please.
        body["thinking"] = json!({ "type": "enabled", "budget_tokens": budget });
    } else {
        if !ask.plan.fields.no_temperature {
            body["temperature"] = json!(sampling.temperature.unwrap_or(request.temperature).min(1.0));
        }
        // Some models take only one of the two.
        let top_p = sampling.top_p.unwrap_or(request.top_p);
        if !ask.plan.fields.no_top_p && top_p < 1.0 {
            body["top_p"] = json!(top_p);
        }
    }
    let (system, turns) = turns(messages(ask));
    if !system.is_empty() {
        body["system"] = json!(system);
    }
    body["messages"] = json!(turns);
    if let Some((name, schema)) = forced(ask) {
        body["tools"] = json!([{ "name": name, "description": FORCED_SAYS, "input_schema": schema }]);
        body["tool_choice"] = json!({ "type": "tool", "name": name });
    } else if !ask.tools.is_empty() {
        let tool = |tool: &Value| {
            let function = &tool["function"];
            json!({ "name": function["name"], "description": function["description"], "input_schema": function["parameters"] })
        };
        body["tools"] = ask.tools.iter().map(tool).collect();
    }
    debug_assert!(ask.plan.binding != Binding::Schema, "there is no such rung here");
    body
}

/// The system's words, and turns that alternate: what a tool answered is the user's.
fn turns(messages: Vec<Message>) -> (String, Vec<Value>) {
    let (mut system, mut turns): (String, Vec<(&str, Vec<Value>)>) = (String::new(), Vec::new());
    for message in messages {
        let (role, blocks) = match message {
            Message::System { content } => {
                if !system.is_empty() {
                    system.push_str("\n\n");
                }
                system.push_str(&content);
                continue;
            }
            Message::User { content } => ("user", text(&content)),
            Message::Tool { tool_call_id, content, .. } => {
                let result = json!({ "type": "tool_result", "tool_use_id": id(&tool_call_id), "content": content });
                ("user", vec![result])
            }
            Message::Assistant { content, tool_calls } => {
                let mut blocks = text(content.as_deref().unwrap_or_default());
                blocks.extend(tool_calls.into_iter().map(|call| {
                    let function = call.function;
                    json!({ "type": "tool_use", "id": id(&call.id), "name": function.name, "input": function.arguments })
                }));
                ("assistant", blocks)
            }
        };
        match turns.last_mut() {
            Some((last, before)) if *last == role => before.extend(blocks),
            _ => turns.push((role, blocks)),
        }
    }
    let turns = turns.into_iter().filter(|(_, blocks)| !blocks.is_empty());
    (system, turns.map(|(role, blocks)| json!({ "role": role, "content": blocks })).collect())
}

/// A text block; an empty one is not taken.
fn text(content: &str) -> Vec<Value> {
    if content.trim().is_empty() { Vec::new() } else { vec![json!({ "type": "text", "text": content })] }
}

/// An id as the API takes it.
fn id(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

/// The reply that `body` is, which was read from `text`.
pub(super) fn reply(mut body: Value, text: &str) -> Result<Read, Unreadable> {
    let used = |body: &Value, thinking| Used::read(body.get("usage")?, Api::Anthropic, thinking);
    if !body["error"].is_null() {
        let said: String = body["error"]["message"].as_str().unwrap_or_default().chars().take(200).collect();
        return Err(Unreadable { why: Fault::Failed(format!("reply holds an error: {said}")), usage: used(&body, 0.0) });
    }
    let Value::Array(blocks) = body.get_mut("content").map(Value::take).unwrap_or_default() else {
        let why = Fault::NoCompletion("reply is no message: it has no content blocks".into());
        return Err(Unreadable { why, usage: used(&body, 0.0) });
    };
    let (mut content, mut calls, mut thought) = (String::new(), Vec::new(), 0);
    let texts = member(text, "content").map(items).unwrap_or_default();
    for (place, block) in blocks.iter().enumerate() {
        match block["type"].as_str() {
            Some("text") => content.push_str(block["text"].as_str().unwrap_or_default()),
            Some("tool_use") => calls.push(WireCall {
                id: block["id"].as_str().map(str::to_owned),
                name: block["name"].as_str().unwrap_or_default().to_owned(),
                arguments: Written::of(texts.get(place).and_then(|text| member(text, "input"))),
            }),
            Some("thinking") => thought += block["thinking"].as_str().map_or(0, str::len),
            // Encrypted: of about this length.
            Some("redacted_thinking") => thought += block["data"].as_str().map_or(0, str::len),
            _ => {}
        }
    }
    let finish = match body["stop_reason"].as_str() {
        Some("max_tokens" | "model_context_window_exceeded") => Finish::Length,
        Some("refusal") => Finish::Filtered,
        _ => Finish::Stop,
    };
    let said = content.len() + calls.iter().map(|call| call.name.len() + call.arguments.text().len()).sum::<usize>();
    let share = thought as f64 / (thought + said).max(1) as f64;
    Ok(Read { content, calls, finish, used: used(&body, share) })
}

#[cfg(test)]
mod tests {
    use mcpmill_core::{
        edge::Format,
        record::{FunctionCall, ToolCall, Usage},
    };

    use super::*;
    use crate::chat::{
        ability::{Fields, Plan},
        settings::Sampling,
        wire::{
            Api,
            tests::{bound, request, schema},
        },
    };

    fn body(request: &mcpmill_core::edge::ChatRequest, binding: Binding, sampling: &Sampling) -> Value {
        super::super::tests::body(Api::Anthropic, request, Plan { binding, fields: Fields::default() }, sampling)
    }

    #[test]
    fn a_conversation_becomes_system_and_alternating_blocks() {
        let call = |n: &str| {
            let arguments = json!({"n": n}).as_object().unwrap().clone();
            ToolCall::new(format!("call.{n}"), FunctionCall { name: "t".into(), arguments })
        };
        let answer = |n: &str| Message::Tool { tool_call_id: format!("call.{n}"), name: "t".into(), content: "ok".into() };
        let mut asked = request(Format::Text);
        asked.messages.push(Message::Assistant { content: Some(String::new()), tool_calls: vec![call("1"), call("2")] });
        asked.messages.extend([answer("1"), answer("2"), Message::user("and?")]);
        let sent = body(&asked, Binding::Words, &Sampling::default());
        assert_eq!(sent["system"], "s");
        let turns = sent["messages"].as_array().unwrap();
        assert_eq!(turns.iter().map(|turn| turn["role"].as_str().unwrap()).collect::<Vec<_>>(), ["user", "assistant", "user"]);
        assert_eq!(turns[1]["content"][0], json!({"type":"tool_use","id":"call_1","name":"t","input":{"n":"1"}}));
        assert_eq!(turns[2]["content"][1], json!({"type":"tool_result","tool_use_id":"call_2","content":"ok"}));
        assert_eq!(turns[2]["content"][2], json!({"type":"text","text":"and?"}));
        assert!(sent.get("seed").is_none() && sent.get("top_p").is_none());
    }

    #[test]
    fn a_schema_is_a_forced_tool_or_told() {
        let sent = body(&bound(), Binding::Tool, &Sampling::default());
        assert_eq!(sent["tools"], json!([{"name":"x","description":FORCED_SAYS,"input_schema":schema()}]));
        assert_eq!(sent["tool_choice"], json!({"type":"tool","name":"x"}));
        let told = body(&bound(), Binding::Words, &Sampling::default());
        assert!(
            told.get("tools").is_none() && told["messages"][0]["content"][0]["text"].as_str().unwrap().contains("\"required\"")
        );
    }

    #[test]
    fn thinking_has_tokens_of_its_own() {
        let sampling = Sampling { reasoning_effort: Some("low".into()), ..Sampling::default() };
        let sent = body(&request(Format::Text), Binding::Words, &sampling);
        assert_eq!(sent["thinking"]["budget_tokens"], json!(sampling.thinking()));
        assert_eq!(sent["max_tokens"], json!(9 + sampling.thinking()));
        assert!(sent.get("temperature").is_none());
    }

    #[test]
    fn replies_keep_thinking_out_of_the_content_and_count_it() {
        let blocks = json!([{"type":"thinking","thinking":"aaaaaaaa","signature":"x"},{"type":"text","text":"bb"},
            {"type":"text","text":"cc"},{"type":"tool_use","id":"t1","name":"go","input":{}}]);
        let usage = json!({"input_tokens":10,"cache_read_input_tokens":5,"cache_creation_input_tokens":2,"output_tokens":16});
        let body = json!({"type":"message","content":blocks,"stop_reason":"tool_use","usage":usage});
        let read = Api::Anthropic.reply(&body.to_string()).unwrap();
        assert_eq!((read.content.as_str(), read.finish, read.calls.len()), ("bbcc", Finish::Stop, 1));
        let usage = read.used.unwrap().at(None, &Usage::default());
        assert_eq!((usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens), (17, 5, 16, 8));
    }

    #[test]
    fn stop_reasons_are_told_apart() {
        for (reason, finish) in [("max_tokens", Finish::Length), ("refusal", Finish::Filtered), ("end_turn", Finish::Stop)] {
            let body = json!({"content":[],"stop_reason":reason});
            assert_eq!(Api::Anthropic.reply(&body.to_string()).unwrap().finish, finish);
        }
    }
}
