//! The wire formats: our requests to JSON, their JSON to our replies.

mod anthropic;
mod openai;
mod used;

use std::collections::BTreeSet;

use mcpmill_core::{
    edge::{ChatReply, ChatRequest, Finish, Format},
    record::{FunctionCall, Message, ToolCall, Usage},
    reply::{self, Encoding, Reading, Repair, arguments},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub(super) use used::Used;

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

    /// How it writes the arguments of calls.
    pub(super) fn encoding(self) -> Encoding {
        match self {
            Self::OpenAi => Encoding::Text,
            Self::Anthropic => Encoding::Object,
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
            Self::OpenAi => openai::reply(value, body),
            Self::Anthropic => anthropic::reply(value, body),
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

/// A call as the model wrote it.
#[derive(Debug, PartialEq)]
pub(super) struct WireCall {
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) arguments: Written,
}

/// Arguments as the model wrote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Not at all, or as `null`.
    Not,
    /// In a string, of which this is the inside.
    Said(String),
    /// As JSON, of which this is the text: its numbers have all their digits.
    Plain(String),
}

impl Written {
    /// What `text`, which is JSON, says of arguments.
    fn of(text: Option<&str>) -> Self {
        match text {
            None | Some("null") => Self::Not,
            Some(text) => serde_json::from_str(text).map_or_else(|_| Self::Plain(text.to_owned()), Self::Said),
        }
    }

    /// Their text.
    fn text(&self) -> &str {
        match self {
            Self::Not => "null",
            Self::Said(text) | Self::Plain(text) => text,
        }
    }

    /// The object they are; `book` says how they are written by the book.
    fn read(&self, book: Encoding) -> Result<Reading<Map<String, Value>>, String> {
        let (value, told) = match self {
            Self::Not => (Value::Null, book),
            Self::Said(text) => (text.as_str().into(), book),
            // Read as text, so that nothing of it is lost without a word.
            Self::Plain(text) => (text.as_str().into(), Encoding::Text),
        };
        arguments(&value, told).map_err(|refused| refused.to_string())
    }
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
    /// The reply to `request`. The call that stands for a bound format becomes content. `book` says how the arguments of
    /// calls are written by the book.
    pub(super) fn into_reply(
        mut self,
        request: &ChatRequest,
        book: Encoding,
        usage: Usage,
        attempts: u32,
    ) -> Result<ChatReply, Fault> {
        let mut repairs = BTreeSet::new();
        if let Format::JsonSchema { name, .. } = &request.format
            && request.tools.is_empty()
            && !self.calls.is_empty()
        {
            self.content = self.forced(name, book, &mut repairs).map_err(Fault::Calls)?;
            self.calls.clear();
        }
        let calls = self.calls.into_iter().enumerate().map(|(index, call)| tool_call(index, call, book, &mut repairs));
        let tool_calls = calls.collect::<Result<_, _>>().map_err(Fault::Calls)?;
        let repairs = repairs.into_iter().collect();
        Ok(ChatReply { content: self.content, tool_calls, finish: self.finish, usage, attempts, repairs })
    }

    /// What the one call of the tool `name` says, as the model wrote it: what is wrong with it is for others to see.
    fn forced(&self, name: &str, book: Encoding, repairs: &mut BTreeSet<Repair>) -> Result<String, String> {
        if let Some(other) = self.calls.iter().find(|call| call.name != name) {
            return Err(format!("the reply calls `{}` in place of `{name}`", mcpmill_core::text::shown(&other.name, 60)));
        }
        let said = self.calls.first().map_or(&Written::Not, |call| &call.arguments);
        let value = said.read(book).ok().map(|read| read.value);
        for other in self.calls.iter().skip(1).map(|call| &call.arguments) {
            let same = other == said || (value.is_some() && other.read(book).ok().map(|read| read.value) == value);
            if !same {
                return Err(format!("the reply calls `{name}` more than once, and differently"));
            }
            repairs.insert(Repair::RepeatedObject);
        }
        if !self.content.trim().is_empty() {
            repairs.insert(match reply::json(&self.content).map(|read| read.value) {
                Ok(Value::Object(beside)) if Some(&beside) == value.as_ref() => Repair::RepeatedObject,
                Ok(Value::Object(_)) => return Err(format!("the reply holds another object beside its call of `{name}`")),
                _ => Repair::SurroundingProse,
            });
        }
        if book == Encoding::Object && matches!(said, Written::Said(_)) {
            repairs.insert(Repair::DoubleEncoding);
        }
        Ok(said.text().to_owned())
    }
}

fn tool_call(index: usize, call: WireCall, book: Encoding, repairs: &mut BTreeSet<Repair>) -> Result<ToolCall, String> {
    let name = call.name;
    let read = call.arguments.read(book);
    let Reading { value: arguments, repairs: more } = read.map_err(|refused| format!("arguments of call `{name}`: {refused}"))?;
    repairs.extend(more);
    let id = call.id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call_{index}"));
    Ok(ToolCall::new(id, FunctionCall { name, arguments }))
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

    fn call(name: &str, arguments: Written) -> WireCall {
        WireCall { id: None, name: name.into(), arguments }
    }

    fn told(
        content: &str,
        calls: Vec<WireCall>,
        request: &ChatRequest,
        book: Encoding,
    ) -> Result<(ChatReply, Vec<Repair>), String> {
        let read = Read { content: content.into(), calls, finish: Finish::Stop, used: None };
        let reply = read.into_reply(request, book, Usage::default(), 1);
        reply.map(|reply| (reply.clone(), reply.repairs)).map_err(|fault| format!("{fault:?}"))
    }

    fn said(text: &str) -> Written {
        Written::Said(text.into())
    }

    fn plain(text: &str) -> Written {
        Written::Plain(text.into())
    }

    #[test]
    fn a_call_that_stands_for_a_format_becomes_content_as_it_was_written() {
        use Repair::{DoubleEncoding, RepeatedObject, SurroundingProse};
        let exact = plain(r#"{"a": 1e2}"#);
        let (a, spaced) = (r#"{"a":"b"}"#, r#"{ "a": "b" }"#);
        for (content, calls, book, kept, repairs) in [
            ("", vec![said("{\"a\": 1")], Encoding::Text, "{\"a\": 1", vec![]),
            ("", vec![exact.clone()], Encoding::Object, r#"{"a": 1e2}"#, vec![]),
            ("", vec![exact.clone()], Encoding::Text, r#"{"a": 1e2}"#, vec![]),
            ("", vec![said(a)], Encoding::Object, a, vec![DoubleEncoding]),
            ("", vec![said(a), said(spaced)], Encoding::Text, a, vec![RepeatedObject]),
            (" \n", vec![said(a)], Encoding::Text, a, vec![]),
            ("I shall do that [now].", vec![said(a)], Encoding::Text, a, vec![SurroundingProse]),
            (spaced, vec![said(a)], Encoding::Text, a, vec![RepeatedObject]),
            ("", vec![Written::Not], Encoding::Text, "null", vec![]),
        ] {
            let calls = calls.into_iter().map(|written| call("x", written)).collect();
            let (reply, named) = told(content, calls, &bound(), book).unwrap();
            assert!(reply.tool_calls.is_empty());
            assert_eq!((reply.content.as_str(), named), (kept, repairs), "{content}");
        }
    }

    #[test]
    fn what_cannot_be_told_apart_is_no_content() {
        let a = || call("x", said(r#"{"a":"b"}"#));
        for (content, calls) in [
            ("", vec![a(), call("x", said(r#"{"a":"c"}"#))]),
            ("", vec![call("y", said(r#"{"a":"b"}"#))]),
            ("", vec![a(), call("y", said(r#"{"a":"b"}"#))]),
            (r#"Or {"a":"c"}"#, vec![a()]),
        ] {
            let error = told(content, calls, &bound(), Encoding::Text).unwrap_err();
            assert!(error.starts_with("Calls") && error.contains("`x`"), "{error}");
        }
    }

    #[test]
    fn calls_without_an_object_are_told() {
        let error = told("", vec![call("t", said("run it"))], &request(Format::Text), Encoding::Text).unwrap_err();
        assert!(error.starts_with("Calls") && error.contains("`t`"), "{error}");
    }

    #[test]
    fn arguments_lose_nothing_without_a_word() {
        let read = |body: &str, api: Api| {
            let read = api.reply(body).unwrap();
            read.into_reply(&request(Format::Text), api.encoding(), Usage::default(), 1)
        };
        let openai = |arguments: &str| {
            let call = format!(r#"{{"function":{{"name":"t","arguments":{arguments}}}}}"#);
            read(&format!(r#"{{"choices":[{{"message":{{"content":null,"tool_calls":[{call}]}}}}]}}"#), Api::OpenAi)
        };
        let anthropic = |input: &str| {
            let block = format!(r#"{{"type":"tool_use","id":"c","name":"t","input":{input}}}"#);
            read(&format!(r#"{{"content":[{{"type":"text","text":"hm"}},{block}]}}"#), Api::Anthropic)
        };
        for tell in [&openai as &dyn Fn(&str) -> Result<ChatReply, Fault>, &anthropic] {
            for lossy in
                [r#"{"n":18446744073709551616000001}"#, r#"{"n":0.12345678901234567890}"#, r#"{"n":1,"n":2}"#, "[1]", "7"]
            {
                assert!(matches!(tell(lossy), Err(Fault::Calls(_))), "{lossy}");
            }
            let reply = tell(r#"{"n":18446744073709551615,"f":-1.5e3}"#).unwrap();
            assert_eq!(reply.tool_calls[0].function.arguments["n"], json!(u64::MAX));
            assert!(reply.repairs.is_empty());
            assert_eq!(tell("null").unwrap().repairs, [Repair::NoArguments]);
        }
        let text = r#""{\"n\":1}""#;
        assert!(openai(text).unwrap().repairs.is_empty(), "by the book");
        assert_eq!(anthropic(text).unwrap().repairs, [Repair::DoubleEncoding]);
    }
}
