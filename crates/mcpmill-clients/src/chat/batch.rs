//! Batches: many questions in a file, answered within a day at a lower price. The lines of providers' files, both ways.

use mcpmill_core::edge::{ChatError, ChatErrorKind, ChatReply, ChatRequest};
use mcpmill_core::record::Usage;
use serde_json::{Value, json};

use super::{
    endpoint::Endpoint,
    raw::{compact, member},
    wire::{Api, Fault},
};

/// Whose files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchShape {
    /// Lines `{custom_id, method, url, body}` and `{custom_id, response: {status_code, body}, error}`.
    OpenAi,
    /// Lines `{custom_id, params}` and `{custom_id, result: {type, message | error}}`.
    Anthropic,
}

impl BatchShape {
    /// Most lines of a file.
    pub fn most_lines(self) -> u64 {
        match self {
            Self::OpenAi => 50_000,
            Self::Anthropic => 100_000,
        }
    }

    /// Most bytes of a file.
    pub fn most_bytes(self) -> u64 {
        match self {
            Self::OpenAi => 200_000_000,
            Self::Anthropic => 256_000_000,
        }
    }

    /// The line that asks `body` under a name of at most 64 characters.
    pub fn line(self, key: &str, body: &Value) -> Value {
        match self {
            Self::OpenAi => json!({ "custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": body }),
            Self::Anthropic => json!({ "custom_id": key, "params": body }),
        }
    }
}

/// A line of a file of answers.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchAnswer {
    /// The name of the question: the key of its exchange.
    pub custom_id: String,
    /// What came back.
    pub told: BatchTold,
}

/// What came back for one question.
#[derive(Clone, Debug, PartialEq)]
pub enum BatchTold {
    /// The text of the body an endpoint would have replied.
    Body(String),
    /// The content alone, made anywhere.
    Content(String),
    /// The request was refused, and may be again.
    Refused(String),
    /// There is no answer, and the question may be asked again: `errored`, `canceled`, `expired` or a status.
    Failed(String),
}

impl BatchAnswer {
    /// Reads a line of OpenAI's, Anthropic's or of a plain file `{custom_id, content}`, whose content is a text or an
    /// object.
    ///
    /// # Errors
    /// It is none of these.
    pub fn read(line: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(line).map_err(|e| format!("no JSON: {e}"))?;
        let custom_id = value["custom_id"].as_str().ok_or("it has no `custom_id`")?.to_owned();
        let told = if value["result"].is_object() {
            anthropic(&value["result"], member(line, "result").unwrap_or_default())?
        } else if value["response"].is_object() || value["error"].is_object() {
            openai(&value, member(line, "response").unwrap_or_default())
        } else if let Some(told) = content(&value["content"], member(line, "content")) {
            told
        } else {
            return Err("it has neither `response`, `result` nor `content`".into());
        };
        Ok(Self { custom_id, told })
    }
}

/// The content alone; an object is the JSON that was asked for, as `text` has it.
fn content(value: &Value, text: Option<&str>) -> Option<BatchTold> {
    match value {
        Value::String(content) => Some(BatchTold::Content(content.clone())),
        Value::Object(_) => text.map(|text| BatchTold::Content(compact(text))),
        _ => None,
    }
}

/// A status as the makers of files write it: `200`, `200.0` or `"200"`.
fn status(value: &Value) -> Option<u64> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    number.filter(|number| number.fract() == 0.0 && (0.0..1000.0).contains(number)).map(|number| number as u64)
}

/// A body as it is written: what is read of it must not be rounded before.
fn body(text: Option<&str>, missing: &str) -> BatchTold {
    match text {
        Some(text) if text.starts_with('{') => BatchTold::Body(text.to_owned()),
        _ => BatchTold::Failed(missing.to_owned()),
    }
}

/// `text` is that of the response.
fn openai(value: &Value, text: &str) -> BatchTold {
    let response = &value["response"];
    let shown = |value: &Value| mcpmill_core::text::shown(&value.to_string(), 300);
    match status(&response["status_code"]) {
        Some(200..=299) => body(member(text, "body"), "no body"),
        // Nobody says that it failed, and there is an answer.
        None if response["status_code"].is_null() && value["error"].is_null() && response["body"].is_object() => {
            body(member(text, "body"), "no body")
        }
        Some(status @ (400 | 413 | 422)) => BatchTold::Refused(format!("status {status}: {}", shown(&response["body"]))),
        Some(status) => BatchTold::Failed(format!("status {status}")),
        None => match value["error"]["code"].as_str() {
            // What OpenAI says of a batch that ran out of time.
            Some("batch_expired") => BatchTold::Failed("expired".into()),
            Some("batch_cancelled") => BatchTold::Failed("canceled".into()),
            code => BatchTold::Failed(code.unwrap_or("errored").to_owned()),
        },
    }
}

/// `text` is that of the result.
fn anthropic(result: &Value, text: &str) -> Result<BatchTold, String> {
    let kind = result["type"].as_str().unwrap_or_default().to_owned();
    Ok(match kind.as_str() {
        "succeeded" => body(member(text, "message"), "no message"),
        "errored" => {
            // The error stands in an envelope of its own kind `error`.
            let error = if result["error"]["error"].is_object() { &result["error"]["error"] } else { &result["error"] };
            let what = error["type"].as_str().unwrap_or("errored");
            let said = mcpmill_core::text::shown(error["message"].as_str().unwrap_or_default(), 300);
            if matches!(what, "invalid_request_error" | "invalid_request" | "request_too_large") {
                BatchTold::Refused(format!("{what}: {said}"))
            } else {
                BatchTold::Failed(what.to_owned())
            }
        }
        "canceled" | "expired" => BatchTold::Failed(kind),
        _ => return Err(format!("its result is of the unknown type `{}`", mcpmill_core::text::shown(&kind, 40))),
    })
}

impl Endpoint {
    /// Whose files this endpoint's batches are.
    pub fn batch_shape(&self) -> BatchShape {
        match self.api() {
            Api::OpenAi => BatchShape::OpenAi,
            Api::Anthropic => BatchShape::Anthropic,
        }
    }

    /// The line of a batch file that asks what [`mcpmill_core::edge::ChatModel::chat`] would send, without sending it.
    ///
    /// # Errors
    /// The request cannot be shown to the provider.
    pub fn batch_line(&self, request: &ChatRequest, key: &str) -> Result<Value, ChatError> {
        let refused = |why: String| self.batch_error(ChatErrorKind::Rejected, why, None);
        if request.messages.is_empty() {
            return Err(refused("the request has no messages".into()));
        }
        Ok(self.batch_shape().line(key, &self.unsent(request).map_err(refused)?))
    }

    /// The reply to `request` whose body came with a batch. What it cost is what a batch costs.
    ///
    /// # Errors
    /// The body is no reply: that of a model whose calls cannot be read, which is final, or none of a model at all.
    pub fn batch_reply(&self, request: &ChatRequest, body: &str) -> Result<ChatReply, ChatError> {
        self.received(request, body).map_err(|(why, usage)| {
            let (kind, detail) = match why {
                Fault::Calls(detail) => (ChatErrorKind::Malformed, detail),
                Fault::Failed(detail) => (ChatErrorKind::Provider, detail),
                Fault::NoCompletion(detail) => (ChatErrorKind::Unavailable, detail),
            };
            ChatError { usage, ..self.batch_error(kind, detail, Some(body.to_owned())) }
        })
    }

    /// The refusal of a request that came with a batch.
    pub fn batch_refusal(&self, why: String) -> ChatError {
        self.batch_error(ChatErrorKind::Rejected, why, None)
    }

    fn batch_error(&self, kind: ChatErrorKind, detail: String, raw: Option<String>) -> ChatError {
        ChatError { model: self.name().to_owned(), kind, detail, raw, attempts: 1, usage: Usage::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_shapes_of_their_providers() {
        let body = json!({"model": "m", "messages": []});
        assert_eq!(
            BatchShape::OpenAi.line("k", &body),
            json!({"custom_id": "k", "method": "POST", "url": "/v1/chat/completions", "body": body})
        );
        assert_eq!(BatchShape::Anthropic.line("k", &body), json!({"custom_id": "k", "params": body}));
        assert!(BatchShape::OpenAi.most_lines() < BatchShape::Anthropic.most_lines());
    }

    #[test]
    fn a_line_asks_what_would_be_sent_and_its_reply_costs_half() {
        use mcpmill_core::{
            edge::{ChatModel, Format},
            record::Message,
        };

        let endpoint = crate::chat::endpoint::tests::endpoint("http://127.0.0.1:9/v1", Api::OpenAi);
        let mut request = ChatRequest {
            messages: vec![Message::user("hi")],
            tools: Vec::new(),
            format: Format::Text,
            temperature: 0.0,
            top_p: 1.0,
            max_tokens: 9,
            seed: 7,
            prompt_kind: String::new(),
        };
        let line = endpoint.batch_line(&request, "k").unwrap();
        assert_eq!(
            (&line["custom_id"], &line["body"]["messages"][0]["content"], &line["body"]["seed"]),
            (&json!("k"), &json!("hi"), &json!(7))
        );
        let usage = json!({"prompt_tokens": 1_000_000, "completion_tokens": 500_000});
        let body = json!({"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}], "usage": usage});
        let reply = endpoint.batch_reply(&request, &body.to_string()).unwrap();
        assert_eq!((reply.content.as_str(), reply.usage.cost), ("yes", 1.0));
        let mut own = body.clone();
        own["usage"]["cost"] = json!(0.75);
        assert_eq!(endpoint.batch_reply(&request, &own.to_string()).unwrap().usage.cost, 0.75, "the provider knows its price");
        let most = endpoint.batch_most(&request);
        assert!(most.cost > 0.0 && (most.cost * 2.0 - endpoint.at_most(&request).cost).abs() < 1e-12, "{most:?}");
        for told in [r#"{"x":1}"#, r#"{"error":{"message":"down"}}"#, "null"] {
            let error = endpoint.batch_reply(&request, told).unwrap_err();
            assert!(!error.is_final() && error.usage == most, "{told} {error:?}");
        }
        let unsaid = json!({"choices": [{"message": {"content": "yes"}}], "usage": {}}).to_string();
        assert_eq!(endpoint.batch_reply(&request, &unsaid).unwrap().usage, most, "nobody says what it used");

        let anthropic = crate::chat::endpoint::tests::endpoint("http://127.0.0.1:9", Api::Anthropic);
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let bound = ChatRequest { format: Format::JsonSchema { name: "x".into(), schema }, ..request.clone() };
        let line = anthropic.batch_line(&bound, "k").unwrap();
        assert_eq!((&line["custom_id"], &line["params"]["tool_choice"]["name"]), (&json!("k"), &json!("x")), "{line}");
        let call = json!({"type": "tool_use", "id": "t", "name": "x", "input": {"a": 1}});
        let message = json!({"type": "message", "role": "assistant", "content": [call], "stop_reason": "tool_use",
            "usage": {"input_tokens": 1_000_000, "output_tokens": 500_000}});
        let reply = anthropic.batch_reply(&bound, &message.to_string()).unwrap();
        assert_eq!((reply.content.as_str(), reply.usage.cost), (r#"{"a":1}"#, 1.0));
        request.messages.clear();
        assert!(endpoint.batch_line(&request, "k").unwrap_err().is_final());
    }

    #[test]
    fn answers_of_all_shapes_are_read() {
        let told = |value: Value| BatchAnswer::read(&value.to_string()).map(|answer| answer.told);
        let failed = |word: &str| Ok(BatchTold::Failed(word.into()));
        let ok = json!({"id": "r", "custom_id": "k", "response": {"status_code": 200, "body": {"choices": []}}, "error": null});
        assert_eq!(told(ok), Ok(BatchTold::Body(r#"{"choices":[]}"#.into())));
        let refused = json!({"custom_id": "k", "response": {"status_code": 400, "body": {"error": "no"}}, "error": null});
        assert!(matches!(told(refused), Ok(BatchTold::Refused(why)) if why.contains("status 400")));
        assert_eq!(told(json!({"custom_id": "k", "response": {"status_code": 503, "body": {}}})), failed("status 503"));
        assert_eq!(told(json!({"custom_id": "k", "response": null, "error": {"code": "batch_expired"}})), failed("expired"));
        for code in [json!("200"), json!(200.0), json!(" 201 "), json!(null)] {
            let line = json!({"custom_id": "k", "response": {"status_code": code, "body": {"choices": []}}, "error": null});
            assert_eq!(told(line), Ok(BatchTold::Body(r#"{"choices":[]}"#.into())), "{code}");
        }
        assert_eq!(told(json!({"custom_id": "k", "response": {"body": {"a": 1}}})), Ok(BatchTold::Body(r#"{"a":1}"#.into())));
        assert_eq!(told(json!({"custom_id": "k", "response": {"body": "text"}})), failed("errored"));
        assert_eq!(told(json!({"custom_id": "k", "response": {"body": {}}, "error": {"code": "x"}})), failed("x"));
        for (code, word) in
            [(json!("503"), "status 503"), (json!(429.0), "status 429"), (json!("up"), "errored"), (json!(200.5), "errored")]
        {
            assert_eq!(told(json!({"custom_id": "k", "response": {"status_code": code, "body": {}}})), failed(word), "{code}");
        }
        let refused = json!({"custom_id": "k", "response": {"status_code": "422", "body": {"error": "no"}}});
        assert!(matches!(told(refused), Ok(BatchTold::Refused(why)) if why.contains("status 422")));
        let message = json!({"content": [{"type": "text", "text": "hi"}]});
        let ok = json!({"custom_id": "k", "result": {"type": "succeeded", "message": message}});
        assert_eq!(told(ok), Ok(BatchTold::Body(message.to_string())));
        assert_eq!(told(json!({"custom_id": "k", "result": {"type": "succeeded"}})), failed("no message"));
        assert_eq!(told(json!({"custom_id": "k", "response": {"status_code": 200, "body": null}})), failed("no body"));
        let long = r#"{"custom_id":"k","response":{"status_code":200,"body":{"n": 18446744073709551616000001}}}"#;
        let body = BatchTold::Body(r#"{"n": 18446744073709551616000001}"#.into());
        assert_eq!(BatchAnswer::read(long).unwrap().told, body, "nothing is rounded");
        for word in ["canceled", "expired"] {
            assert_eq!(told(json!({"custom_id": "k", "result": {"type": word}})), failed(word));
        }
        let error = |kind: &str| json!({"custom_id": "k", "result": {"type": "errored", "error": {"type": "error", "error": {"type": kind, "message": "m"}}}});
        assert_eq!(told(error("overloaded_error")), failed("overloaded_error"));
        assert!(matches!(told(error("invalid_request_error")), Ok(BatchTold::Refused(_))));
        assert_eq!(told(json!({"custom_id": "k", "content": "hi"})), Ok(BatchTold::Content("hi".into())));
        let object = r#"{"custom_id":"k","content": {"a b" : "c \" d { \\" , "n": [18446744073709551616000001, 1.0] } }"#;
        let compact = r#"{"a b":"c \" d { \\","n":[18446744073709551616000001,1.0]}"#;
        assert_eq!(BatchAnswer::read(object).unwrap().told, BatchTold::Content(compact.into()), "nothing is rounded");
        for bad in
            [json!({"content": "hi"}), json!({"custom_id": "k"}), json!({"custom_id": "k", "result": {"type": "odd"}}), json!(1)]
        {
            assert!(told(bad.clone()).is_err(), "{bad}");
        }
    }
}
