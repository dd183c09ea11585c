//! The wire format: our requests to JSON, their JSON to our replies.

use mcpmill_core::{
    edge::{ChatReply, ChatRequest, Finish, Format},
    record::{Message, ToolCall, Usage},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// How far an endpoint can bind its output to a schema; found out by asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binding {
    /// `response_format: json_schema`.
    Schema,
    /// Nothing: the schema is told in words and the reply is checked by the caller.
    Words,
}

/// The request body; `tools` is what the request offers, in the shape the endpoint takes.
pub(super) fn body(model: &str, request: &ChatRequest, binding: Binding, tools: &[Value], extra: &Map<String, Value>) -> Value {
    let mut messages = serde_json::to_value(&request.messages).unwrap_or_default();
    let mut body = json!({
        "model": model,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
    });
    match (&request.format, binding) {
        (Format::JsonSchema { name, schema }, Binding::Schema) => {
            body["response_format"] = json!({
                "type": "json_schema",
                "json_schema": { "name": name, "schema": schema, "strict": is_strict(schema) },
            });
        }
        (Format::JsonSchema { schema, .. }, Binding::Words) => {
            tell(
                &mut messages,
                &format!("\n\nAnswer with one JSON object that fits this JSON Schema, and nothing else:\n{schema}"),
            );
        }
        (Format::Line(_), _) => tell(&mut messages, "\n\nAnswer with one line of text and nothing else."),
        (Format::Text, _) => {}
    }
    body["messages"] = messages;
    if !tools.is_empty() {
        body["tools"] = Value::Array(tools.to_vec());
    }
    for (key, value) in extra {
        body[key] = value.clone();
    }
    body
}

/// Adds a sentence to the last message.
fn tell(messages: &mut Value, sentence: &str) {
    if let Some(content) = messages.as_array_mut().and_then(|m| m.last_mut()).and_then(|m| m.get_mut("content")) {
        *content = Value::String(content.as_str().unwrap_or_default().to_owned() + sentence);
    }
}

/// Whether a schema keeps the rules of OpenAI's strict mode: every object closed, every property required.
fn is_strict(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => {
            let object = match map.get("properties").and_then(Value::as_object) {
                Some(properties) => {
                    let required = map.get("required").and_then(Value::as_array).map_or(0, Vec::len);
                    map.get("additionalProperties") == Some(&Value::Bool(false)) && required == properties.len()
                }
                None => map.get("type").and_then(Value::as_str) != Some("object"),
            };
            object && map.values().all(is_strict)
        }
        Value::Array(items) => items.iter().all(is_strict),
        _ => true,
    }
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<WireUsage>,
}

#[derive(Deserialize)]
struct Choice {
    message: WireMessage,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct WireMessage {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<WireCall>>,
}

#[derive(Deserialize)]
struct WireCall {
    #[serde(default)]
    id: Option<String>,
    function: WireFunction,
}

#[derive(Deserialize)]
struct WireFunction {
    name: String,
    /// A JSON string by the book, an object from some servers.
    arguments: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
    /// US dollars, where the provider says so.
    cost: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CompletionDetails {
    reasoning_tokens: u64,
}

/// US dollars per million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Price {
    pub(super) input: f64,
    pub(super) output: f64,
}

/// What is wrong with a reply body.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// A gateway says that the provider behind it failed.
    Failed(String),
    /// It is not what a chat endpoint says.
    NoCompletion(String),
    /// The model's calls cannot be read.
    Calls(String),
}

/// Reads a reply body.
pub(super) fn reply(body: &str, price: Price, attempts: u32) -> Result<ChatReply, Unreadable> {
    let value: Value = serde_json::from_str(body).map_err(|e| Unreadable::NoCompletion(format!("reply is no JSON: {e}")))?;
    if !value["error"].is_null() && value["choices"].is_null() {
        return Err(Unreadable::Failed("reply holds an error in place of choices".into()));
    }
    let completion: Completion =
        serde_json::from_value(value).map_err(|e| Unreadable::NoCompletion(format!("reply is no chat completion: {e}")))?;
    let usage = usage(completion.usage.unwrap_or_default(), price);
    let first = completion.choices.into_iter().next();
    let choice = first.ok_or_else(|| Unreadable::NoCompletion("reply has no choices".into()))?;
    let calls = choice.message.tool_calls.unwrap_or_default();
    let tool_calls = calls.into_iter().enumerate().map(|(i, call)| tool_call(i, call)).collect::<Result<_, _>>();
    let tool_calls = tool_calls.map_err(Unreadable::Calls)?;
    let finish = match choice.finish_reason.as_deref() {
        Some("length") => Finish::Length,
        Some("content_filter") => Finish::Filtered,
        _ => Finish::Stop,
    };
    Ok(ChatReply { content: choice.message.content.unwrap_or_default(), tool_calls, finish, usage, attempts })
}

fn usage(wire: WireUsage, price: Price) -> Usage {
    let computed = (wire.prompt_tokens as f64 * price.input + wire.completion_tokens as f64 * price.output) / 1e6;
    Usage {
        input_tokens: wire.prompt_tokens,
        output_tokens: wire.completion_tokens,
        cached_tokens: wire.prompt_tokens_details.unwrap_or_default().cached_tokens,
        reasoning_tokens: wire.completion_tokens_details.unwrap_or_default().reasoning_tokens,
        cost: wire.cost.unwrap_or(computed),
    }
}

fn tool_call(index: usize, call: WireCall) -> Result<ToolCall, String> {
    let name = call.function.name;
    let arguments = match call.function.arguments {
        Value::String(text) if text.trim().is_empty() => Map::new(),
        Value::String(text) => {
            serde_json::from_str(&text).map_err(|e| format!("arguments of call `{name}` are no JSON object: {e}"))?
        }
        Value::Object(map) => map,
        other => return Err(format!("arguments of call `{name}` are {other}, not an object")),
    };
    let id = call.id.unwrap_or_else(|| format!("call_{index}"));
    Ok(ToolCall::new(id, mcpmill_core::record::FunctionCall { name, arguments }))
}

/// Whether a conversation carries text at all; an empty one is refused before it is sent.
pub(super) fn is_empty(messages: &[Message]) -> bool {
    messages.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(format: Format) -> ChatRequest {
        ChatRequest {
            messages: vec![Message::system("s"), Message::user("u")],
            tools: Vec::new(),
            format,
            temperature: 0.0,
            top_p: 1.0,
            max_tokens: 9,
            seed: 7,
            prompt_kind: String::new(),
        }
    }

    #[test]
    fn a_schema_is_bound_or_told() {
        let schema = json!({"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false});
        let format = Format::JsonSchema { name: "x".into(), schema: schema.clone() };
        let bound = body("m", &request(format.clone()), Binding::Schema, &[json!("tool")], &Map::new());
        assert_eq!(bound["response_format"]["json_schema"]["strict"], json!(true));
        assert_eq!(bound["response_format"]["json_schema"]["schema"], schema);
        assert_eq!(bound["tools"], json!(["tool"]));
        assert_eq!(bound["messages"][1], json!({"role":"user","content":"u"}));
        let told = body("m", &request(format), Binding::Words, &[], &Map::new());
        assert!(told.get("response_format").is_none() && told.get("tools").is_none());
        assert!(told["messages"][1]["content"].as_str().unwrap().contains("\"required\""));
    }

    #[test]
    fn open_schemas_are_not_called_strict() {
        assert!(!is_strict(&json!({"type":"object"})));
        assert!(!is_strict(&json!({"type":"object","properties":{"a":{}},"additionalProperties":false})));
    }

    #[test]
    fn reads_calls_usage_and_cost() {
        let text = r#"{"choices":[{"finish_reason":"tool_calls","message":{"content":null,"tool_calls":[
            {"id":"c","function":{"name":"t","arguments":"{\"a\":1}"}},{"function":{"name":"u","arguments":{}}}]}}],
            "usage":{"prompt_tokens":1000,"completion_tokens":500,"prompt_tokens_details":{"cached_tokens":3}}}"#;
        let reply = reply(text, Price { input: 1.0, output: 2.0 }, 1).unwrap();
        assert_eq!(reply.tool_calls.len(), 2);
        assert_eq!(reply.tool_calls[0].function.arguments["a"], json!(1));
        assert_eq!(reply.tool_calls[1].id, "call_1");
        assert_eq!((reply.usage.cached_tokens, reply.usage.cost), (3, 0.002));
        assert_eq!(reply.finish, Finish::Stop);
    }

    #[test]
    fn broken_replies_say_what_is_wrong() {
        assert!(matches!(reply("<html>", Price::default(), 1), Err(Unreadable::NoCompletion(_))));
        assert!(matches!(reply(r#"{"choices":[]}"#, Price::default(), 1), Err(Unreadable::NoCompletion(_))));
        assert!(matches!(reply(r#"{"error":{"code":502}}"#, Price::default(), 1), Err(Unreadable::Failed(_))));
        let prose = r#"{"choices":[{"message":{"tool_calls":[{"function":{"name":"t","arguments":"run it"}}]}}]}"#;
        assert!(matches!(reply(prose, Price::default(), 1), Err(Unreadable::Calls(why)) if why.contains("`t`")));
    }
}
