//! The wire formats: our requests to JSON, their JSON to our replies.

mod anthropic;
mod openai;

use std::collections::BTreeSet;

use mcpmill_core::{
    account::Price,
    edge::{ChatReply, ChatRequest, Finish, Format},
    record::{Message, ToolCall, Usage},
    reply::{Encoding, Reading, Repair, arguments},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ability::{Binding, Plan};
use super::settings::Sampling;

/// What an endpoint speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// OpenAI's chat completions, as vLLM, llama.cpp server, Ollama, SGLang, OpenRouter and many others speak them.
    OpenAi,
    /// Anthropic's Messages.
    Anthropic,
}

/// One request as it goes out.
pub(super) struct Ask<'a> {
    /// The model's name at its endpoint.
    pub(super) model: &'a str,
    /// What is asked.
    pub(super) request: &'a ChatRequest,
    /// How.
    pub(super) plan: Plan,
    /// What the request offers, in OpenAI's shape.
    pub(super) tools: &'a [Value],
    /// What the user's settings say in place of the request.
    pub(super) sampling: &'a Sampling,
    /// Fields laid over the body.
    pub(super) extra: &'a Map<String, Value>,
    /// Whether the host says what a call cost only when it is asked.
    pub(super) ask_cost: bool,
}

impl Api {
    /// What the host of an address is known to speak.
    pub fn of_url(base_url: &str) -> Self {
        let url = reqwest::Url::parse(base_url).ok();
        match url.as_ref().and_then(reqwest::Url::host_str) {
            Some("api.anthropic.com") => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }

    /// The path of the one call there is, below the base URL.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::OpenAi => "chat/completions",
            Self::Anthropic => "messages",
        }
    }

    /// The request body.
    pub(super) fn body(self, ask: &Ask<'_>) -> Value {
        let mut body = match self {
            Self::OpenAi => openai::body(ask),
            Self::Anthropic => anthropic::body(ask),
        };
        for (key, value) in ask.extra {
            body[key] = value.clone();
        }
        body
    }

    /// Reads the body of a good reply. Its usage has no cost where the provider names none.
    pub(super) fn reply(self, body: &str) -> Result<Read, Unreadable> {
        let fail = |why| Unreadable { why, usage: None };
        let value: Value = serde_json::from_str(body).map_err(|e| fail(Fault::NoCompletion(format!("reply is no JSON: {e}"))))?;
        match self {
            Self::OpenAi => openai::reply(value),
            Self::Anthropic => anthropic::reply(value),
        }
    }
}

/// What a good reply says.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) content: String,
    pub(super) calls: Vec<WireCall>,
    pub(super) finish: Finish,
    /// What it used, where it says so.
    pub(super) used: Option<Used>,
}

/// What a reply says it used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Used {
    /// All but the cost.
    tokens: Usage,
    /// US dollars, where the provider names them.
    cost: Option<f64>,
}

impl Used {
    /// With the cost: the provider's own, else by price.
    pub(super) fn at(self, price: Option<&Price>) -> Usage {
        let cost = self.cost.or_else(|| Some(price?.of(&self.tokens))).unwrap_or_default();
        Usage { cost, ..self.tokens }
    }
}

/// A call as the model wrote it.
#[derive(Debug, PartialEq)]
pub(super) struct WireCall {
    pub(super) id: Option<String>,
    pub(super) name: String,
    /// A JSON string by OpenAI's book, an object from others.
    pub(super) arguments: Value,
}

/// A reply body that cannot be read, and what it used nevertheless, where it says so.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) why: Fault,
    pub(super) usage: Option<Used>,
}

/// What is wrong with a reply body.
#[derive(Debug, PartialEq)]
pub(super) enum Fault {
    /// A gateway says that the provider behind it failed.
    Failed(String),
    /// It is not what a chat endpoint says.
    NoCompletion(String),
    /// The model's calls cannot be read.
    Calls(String),
}

impl Read {
    /// The reply to `request`. The call that stands for a bound format becomes content.
    pub(super) fn into_reply(mut self, request: &ChatRequest, usage: Usage, attempts: u32) -> Result<ChatReply, Fault> {
        let bound = matches!(request.format, Format::JsonSchema { .. }) && request.tools.is_empty();
        if bound && !self.calls.is_empty() {
            // As the model wrote it: what is wrong with it is for others to see.
            self.content = match self.calls.swap_remove(0).arguments {
                Value::String(text) => text,
                other => other.to_string(),
            };
            self.calls.clear();
        }
        let mut repairs = BTreeSet::new();
        let calls = self.calls.into_iter().enumerate().map(|(index, call)| tool_call(index, call, &mut repairs));
        let tool_calls = calls.collect::<Result<_, _>>().map_err(Fault::Calls)?;
        let repairs = repairs.into_iter().collect();
        Ok(ChatReply { content: self.content, tool_calls, finish: self.finish, usage, attempts, repairs })
    }
}

fn tool_call(index: usize, call: WireCall, repairs: &mut BTreeSet<Repair>) -> Result<ToolCall, String> {
    let name = call.name;
    let read = arguments(&call.arguments, Encoding::Text);
    let Reading { value: arguments, repairs: more } = read.map_err(|refused| format!("arguments of call `{name}`: {refused}"))?;
    repairs.extend(more);
    let id = call.id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call_{index}"));
    Ok(ToolCall::new(id, mcpmill_core::record::FunctionCall { name, arguments }))
}

/// Tokens of a number of a reply: none of a negative one, and never so many that sums overflow.
fn tokens(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_f64().map(|n| n.max(0.0) as u64)).unwrap_or_default().min(1 << 40)
}

/// The messages of a request, with what the plan tells in words.
fn messages(ask: &Ask<'_>) -> Vec<Message> {
    let mut messages = ask.request.messages.clone();
    let sentence = match (&ask.request.format, ask.plan.binding) {
        (Format::JsonSchema { schema, .. }, Binding::Words) => {
            format!("\n\nAnswer with one JSON object that fits this JSON Schema, and nothing else:\n{schema}")
        }
        (Format::Line(_), _) => "\n\nAnswer with one line of text and nothing else.".to_owned(),
        _ => return messages,
    };
    match messages.last_mut() {
        Some(Message::System { content } | Message::User { content } | Message::Tool { content, .. }) => {
            content.push_str(&sentence);
        }
        Some(Message::Assistant { content, .. }) => content.get_or_insert_default().push_str(&sentence),
        None => {}
    }
    messages
}

/// The tool that stands for a format, when the plan says so: name, and schema of its arguments.
fn forced<'a>(ask: &Ask<'a>) -> Option<(&'a str, &'a Value)> {
    match (&ask.request.format, ask.plan.binding) {
        (Format::JsonSchema { name, schema }, Binding::Tool) => Some((name, schema)),
        _ => None,
    }
}

const FORCED_SAYS: &str = "Takes the answer.";

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in crate::chat) fn request(format: Format) -> ChatRequest {
        ChatRequest {
            messages: vec![Message::system("s"), Message::user("u")],
            tools: Vec::new(),
            format,
            temperature: 0.5,
            top_p: 1.0,
            max_tokens: 9,
            seed: 7,
            prompt_kind: String::new(),
        }
    }

    pub(in crate::chat) fn schema() -> Value {
        json!({"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false})
    }

    pub(in crate::chat) fn bound() -> ChatRequest {
        request(Format::JsonSchema { name: "x".into(), schema: schema() })
    }

    /// The body of a request by an API under a plan.
    pub(in crate::chat) fn body(api: Api, request: &ChatRequest, plan: Plan, sampling: &Sampling) -> Value {
        let extra = Map::new();
        api.body(&Ask { model: "m", request, plan, tools: &[], sampling, extra: &extra, ask_cost: false })
    }

    #[test]
    fn broken_replies_say_what_is_wrong() {
        for api in [Api::OpenAi, Api::Anthropic] {
            for text in ["<html>", "{}", "", r#"{"choices":[]}"#, "[1]", "\"x\""] {
                assert!(matches!(api.reply(text).unwrap_err().why, Fault::NoCompletion(_)), "{api:?} {text}");
            }
            let failed = r#"{"type":"error","error":{"type":"overloaded_error","message":"busy","code":502}}"#;
            assert!(matches!(api.reply(failed).unwrap_err().why, Fault::Failed(why) if why.contains("busy")), "{api:?}");
        }
    }

    #[test]
    fn a_call_that_stands_for_a_format_becomes_content_as_it_was_written() {
        for (arguments, content) in [(json!("{\"a\": 1"), "{\"a\": 1"), (json!({"a": "b"}), r#"{"a":"b"}"#)] {
            let call = WireCall { id: None, name: "x".into(), arguments };
            let read = Read { content: String::new(), calls: vec![call], finish: Finish::Stop, used: None };
            let reply = read.into_reply(&bound(), Usage::default(), 1).unwrap();
            assert!(reply.tool_calls.is_empty());
            assert_eq!(reply.content, content);
        }
    }

    #[test]
    fn calls_without_an_object_are_told() {
        let call = WireCall { id: None, name: "t".into(), arguments: json!("run it") };
        let read = Read { content: String::new(), calls: vec![call], finish: Finish::Stop, used: None };
        let fault = read.into_reply(&request(Format::Text), Usage::default(), 1).unwrap_err();
        assert!(matches!(fault, Fault::Calls(why) if why.contains("`t`")));
    }

    #[test]
    fn numbers_of_a_reply_are_bounded() {
        assert_eq!((tokens(&json!(-3)), tokens(&json!(2.0)), tokens(&json!("x")), tokens(&Value::Null)), (0, 2, 0, 0));
        assert_eq!(tokens(&json!(u64::MAX)), 1 << 40);
    }
}
