//! OpenAI's chat completions, and what others made of them.

use mcpmill_core::edge::{Finish, Format};
use serde_json::{Value, json};

use super::{Api, Ask, FORCED_SAYS, Fault, Read, Unreadable, Used, WireCall, Written, forced, messages};
use crate::chat::{
    ability::Binding,
    raw::{items, member},
};

pub(super) fn body(ask: &Ask<'_>) -> Value {
    let (request, sampling, fields) = (ask.request, ask.sampling, ask.plan.fields);
    let mut body = json!({ "model": ask.model });
    if !fields.no_temperature {
        body["temperature"] = json!(sampling.temperature.unwrap_or(request.temperature));
    }
    if !fields.no_top_p {
        body["top_p"] = json!(sampling.top_p.unwrap_or(request.top_p));
    }
    let most = if fields.completion_tokens { "max_completion_tokens" } else { "max_tokens" };
    body[most] = json!(sampling.max_tokens.unwrap_or(request.max_tokens));
    if !fields.no_seed {
        body["seed"] = json!(sampling.seed.unwrap_or(request.seed));
    }
    if let Some(effort) = &sampling.reasoning_effort {
        body["reasoning_effort"] = json!(effort);
    }
    if let (Format::JsonSchema { name, schema }, Binding::Schema) = (&request.format, ask.plan.binding) {
        body["response_format"] = json!({
            "type": "json_schema",
            "json_schema": { "name": name, "schema": schema, "strict": is_strict(schema) },
        });
    }
    body["messages"] = json!(messages(ask));
    if !ask.tools.is_empty() {
        body["tools"] = json!(ask.tools);
    } else if let Some((name, schema)) = forced(ask) {
        let function = json!({ "name": name, "description": FORCED_SAYS, "parameters": schema });
        body["tools"] = json!([{ "type": "function", "function": function }]);
        body["tool_choice"] = json!({ "type": "function", "function": { "name": name } });
    }
    if ask.ask_cost {
        body["usage"] = json!({ "include": true });
    }
    body
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

/// The reply that `body` is, which was read from `text`.
pub(super) fn reply(mut body: Value, text: &str) -> Result<Read, Unreadable> {
    let used = body.get("usage").and_then(|usage| Used::read(usage, Api::OpenAi, 0.0));
    let fail = |why| Unreadable { why, usage: used };
    let gateway = |error: &Value| {
        let said = error["message"].as_str().or_else(|| error.as_str()).unwrap_or_default();
        Fault::Failed(format!("reply holds an error: {}", said.chars().take(200).collect::<String>()))
    };
    if !body["error"].is_null() && body["choices"].is_null() {
        return Err(fail(gateway(&body["error"])));
    }
    let none = |what: &str| fail(Fault::NoCompletion(format!("reply is no chat completion: it has no {what}")));
    let first = body.get_mut("choices").and_then(Value::as_array_mut).and_then(|choices| choices.first_mut());
    let mut choice = first.map(Value::take).ok_or_else(|| none("choices"))?;
    if choice["finish_reason"] == "error" || !choice["error"].is_null() {
        return Err(fail(gateway(&choice["error"])));
    }
    let mut message = choice["message"].take();
    if !message.is_object() {
        return Err(none("message"));
    }
    let refused = message["refusal"].as_str().is_some_and(|refusal| !refusal.is_empty());
    let finish = match choice["finish_reason"].as_str() {
        Some("length" | "max_tokens" | "model_length") => Finish::Length,
        Some("content_filter") => Finish::Filtered,
        _ if refused => Finish::Filtered,
        _ => Finish::Stop,
    };
    let calls = match message["tool_calls"].take() {
        Value::Null => Vec::new(),
        Value::Array(calls) => {
            let texts = calls_of(text);
            let calls = calls.iter().enumerate().map(|(place, value)| call(value, texts.get(place)?));
            calls.collect::<Option<_>>().ok_or_else(|| none("readable calls"))?
        }
        _ => return Err(none("readable calls")),
    };
    let content = said(message["content"].take()).ok_or_else(|| none("readable content"))?;
    Ok(Read { content, calls, finish, used })
}

/// Content is text, nothing, or parts of which the text is kept; reasoning is not content.
fn said(content: Value) -> Option<String> {
    match content {
        Value::Null => Some(String::new()),
        Value::String(text) => Some(text),
        Value::Array(parts) => {
            let part = |part: &Value| part["text"].as_str().filter(|_| part["type"] == "text").map(str::to_owned);
            Some(parts.iter().filter_map(part).collect())
        }
        _ => None,
    }
}

/// The texts of the calls of a reply.
fn calls_of(text: &str) -> Vec<&str> {
    let first = member(text, "choices").and_then(|choices| items(choices).into_iter().next());
    let message = first.and_then(|choice| member(choice, "message"));
    message.and_then(|message| member(message, "tool_calls")).map(items).unwrap_or_default()
}

fn call(call: &Value, text: &str) -> Option<WireCall> {
    let id = call.get("id").and_then(Value::as_str).map(str::to_owned);
    let name = call.get("function")?.get("name")?.as_str()?.to_owned();
    let arguments = member(text, "function").and_then(|function| member(function, "arguments"));
    Some(WireCall { id, name, arguments: Written::of(arguments) })
}

#[cfg(test)]
mod tests {
    use mcpmill_core::{account::Price, record::Usage, reply::Encoding};

    use super::*;
    use crate::chat::{
        ability::{Fields, Plan},
        settings::Sampling,
        wire::{
            Api,
            tests::{body, bound, request, schema},
        },
    };

    fn plan(binding: Binding) -> Plan {
        Plan { binding, fields: Fields::default() }
    }

    fn read(body: &Value) -> Result<Read, Unreadable> {
        Api::OpenAi.reply(&body.to_string())
    }

    #[test]
    fn a_schema_is_bound_or_a_tools_or_told() {
        let none = Sampling::default();
        let bind = |binding| body(Api::OpenAi, &bound(), plan(binding), &none);
        let first = bind(Binding::Schema);
        assert_eq!(first["response_format"]["json_schema"]["strict"], json!(true));
        assert_eq!(first["response_format"]["json_schema"]["schema"], schema());
        assert_eq!(first["messages"][1], json!({"role":"user","content":"u"}));
        let second = bind(Binding::Tool);
        assert!(second.get("response_format").is_none());
        assert_eq!(second["tools"][0]["function"]["parameters"], schema());
        assert_eq!(second["tool_choice"]["function"]["name"], "x");
        let third = bind(Binding::Words);
        assert!(third.get("response_format").is_none() && third.get("tools").is_none());
        assert!(third["messages"][1]["content"].as_str().unwrap().contains("\"required\""));
    }

    #[test]
    fn settings_replace_what_the_request_says_and_fields_go_where_they_are_not_taken() {
        let sampling =
            Sampling { max_tokens: Some(900), reasoning_effort: Some("low".into()), seed: Some(3), ..Sampling::default() };
        let sent = body(Api::OpenAi, &request(Format::Text), plan(Binding::Words), &sampling);
        assert_eq!((&sent["max_tokens"], &sent["seed"], &sent["temperature"]), (&json!(900), &json!(3), &json!(0.5)));
        assert_eq!(sent["reasoning_effort"], "low");
        let fields = Fields { completion_tokens: true, no_temperature: true, no_top_p: true, no_seed: true };
        let sent = body(Api::OpenAi, &request(Format::Text), Plan { binding: Binding::Words, fields }, &Sampling::default());
        let keys: Vec<&String> = sent.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["model", "max_completion_tokens", "messages"]);
    }

    #[test]
    fn open_schemas_are_not_called_strict() {
        assert!(!is_strict(&json!({"type":"object"})));
        assert!(!is_strict(&json!({"type":"object","properties":{"a":{}},"additionalProperties":false})));
    }

    #[test]
    fn reads_calls_usage_and_cost() {
        let calls = json!([{"id":"c","function":{"name":"t","arguments":"{\"a\":1}"}},{"function":{"name":"u","arguments":{}}}]);
        let usage = json!({"prompt_tokens":1000,"completion_tokens":500,"prompt_tokens_details":{"cached_tokens":3},
            "completion_tokens_details":{"reasoning_tokens":7}});
        let read = read(
            &json!({"choices":[{"finish_reason":"tool_calls","message":{"content":null,"tool_calls":calls}}],"usage":usage}),
        );
        let read = read.unwrap();
        let price = Price { input: 1.0, output: 2.0, ..Price::default() };
        let usage = read.used.unwrap().at(Some(&price), &Usage::default());
        assert_eq!((usage.cached_tokens, usage.reasoning_tokens, usage.cost), (3, 7, 0.002));
        let reply = read.into_reply(&request(Format::Text), Encoding::Text, usage, 1).unwrap();
        assert_eq!(reply.tool_calls[0].function.arguments["a"], json!(1));
        assert_eq!((reply.tool_calls[1].id.as_str(), reply.finish), ("call_1", Finish::Stop));
    }

    #[test]
    fn shapes_of_others_are_read() {
        // OpenRouter: an error in a choice, and the cost it took.
        let error = json!({"choices":[{"finish_reason":"error","error":{"message":"upstream"}}],"usage":{"cost":0.5,"prompt_tokens":2,"completion_tokens":0}});
        let error = read(&error).unwrap_err();
        assert!(matches!(error.why, Fault::Failed(why) if why.contains("upstream")));
        assert_eq!(error.usage.unwrap().at(None, &Usage::default()).cost, 0.5);
        // DeepSeek: reasoning beside the content, and its own word for cached tokens.
        let message = json!({"content":"a","reasoning_content":"b","reasoning":"c"});
        let usage = json!({"prompt_tokens":9,"completion_tokens":1,"prompt_cache_hit_tokens":4});
        let deepseek = read(&json!({"choices":[{"finish_reason":"length","message":message}],"usage":usage})).unwrap();
        assert_eq!((deepseek.content.as_str(), deepseek.finish), ("a", Finish::Length));
        assert_eq!(deepseek.used.unwrap().at(None, &Usage::default()).cached_tokens, 4);
        // Mistral: content in parts.
        let parts = json!([{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"a"}]);
        let mistral = read(&json!({"choices":[{"message":{"content":parts}}]})).unwrap();
        assert_eq!((mistral.content.as_str(), mistral.used), ("a", None));
        // OpenAI: a refusal.
        let refusal = json!({"choices":[{"finish_reason":"stop","message":{"content":null,"refusal":"I cannot"}}],"usage":null});
        assert_eq!(read(&refusal).unwrap().finish, Finish::Filtered);
    }
}
