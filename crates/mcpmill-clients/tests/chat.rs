//! The chat endpoint against a server on loopback: retries, falling back, secrets, broken replies.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::time::Duration;

use mcpmill_clients::chat::{Endpoint, EndpointSettings, Sampling, Secret};
use mcpmill_core::{
    account::Price,
    edge::{ChatError, ChatErrorKind, ChatModel, ChatReply, ChatRequest, Format, ToolSpec},
    record::Message,
    schema_view::Provider,
};
use serde_json::{Value, json};
use wiremock::{Mock, MockServer, Request, ResponseTemplate, matchers::method};

const KEY: &str = "sk-planted-7f31";

fn settings(base_url: String) -> EndpointSettings {
    EndpointSettings {
        base_url,
        model: "m".into(),
        api: None,
        key: Some(Secret::new(KEY)),
        concurrency: 4,
        requests_per_minute: None,
        tokens_per_minute: None,
        retries: 3,
        timeout: Duration::from_secs(5),
        give_up_after: Duration::from_secs(10),
        price: Some(Price { input: 1.0, output: 2.0, ..Price::default() }),
        sampling: Sampling::default(),
        extra: serde_json::Map::new(),
        tool_schema: None,
    }
}

fn endpoint(server: &MockServer) -> Endpoint {
    Endpoint::new(settings(format!("{}/v1", server.uri()))).unwrap()
}

async fn ask(server: &MockServer) -> Result<ChatReply, ChatError> {
    endpoint(server).chat(&question()).await
}

fn question() -> ChatRequest {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    ChatRequest {
        messages: vec![Message::user("q")],
        tools: vec![],
        format: Format::JsonSchema { name: "x".into(), schema },
        temperature: 0.0,
        top_p: 1.0,
        max_tokens: 5,
        seed: 1,
        prompt_kind: "x".into(),
    }
}

fn good() -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(json!({
        "choices": [{"finish_reason": "stop", "message": {"content": "{\"a\":1}"}}],
        "usage": {"prompt_tokens": 1_000_000, "completion_tokens": 500_000},
    }))
}

#[tokio::test]
async fn a_busy_endpoint_is_asked_again_and_the_cost_is_counted() {
    let server = MockServer::start().await;
    let busy = ResponseTemplate::new(429).insert_header("retry-after", "1");
    Mock::given(method("POST")).respond_with(busy).up_to_n_times(1).mount(&server).await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(503)).up_to_n_times(1).mount(&server).await;
    Mock::given(method("POST")).respond_with(good()).mount(&server).await;
    let reply = ask(&server).await.unwrap();
    assert_eq!((reply.content.as_str(), reply.attempts), ("{\"a\":1}", 3));
    assert!((reply.usage.cost - 2.0).abs() < 1e-9);
    let first: &Request = &server.received_requests().await.unwrap()[0];
    assert_eq!(first.headers["authorization"], format!("Bearer {KEY}").as_str());
}

#[tokio::test]
async fn an_endpoint_without_schemas_is_told_in_words() {
    let server = MockServer::start().await;
    let rule = |request: &Request| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        if body.get("response_format").is_some() || body.get("tool_choice").is_some() {
            ResponseTemplate::new(400).set_body_string("neither response_format nor tool_choice here")
        } else {
            good()
        }
    };
    Mock::given(method("POST")).respond_with(rule).mount(&server).await;
    assert_eq!(ask(&server).await.unwrap().attempts, 3);
    let last: Value = serde_json::from_slice(&server.received_requests().await.unwrap()[2].body).unwrap();
    assert!(last["messages"][0]["content"].as_str().unwrap().contains("\"required\""));
}

#[tokio::test]
async fn errors_name_the_model_and_never_the_key() {
    for (template, kind) in [
        (ResponseTemplate::new(401).set_body_string(format!("bad key {KEY}")), ChatErrorKind::Unauthorised),
        (ResponseTemplate::new(401).set_body_string(KEY.replace('-', r"\\u002d")), ChatErrorKind::Unauthorised),
        (ResponseTemplate::new(200).set_body_string("<html>"), ChatErrorKind::Unavailable),
        (ResponseTemplate::new(402).set_body_string("no credit"), ChatErrorKind::Unavailable),
        (ResponseTemplate::new(404).set_body_string("no such model"), ChatErrorKind::Unavailable),
        (ResponseTemplate::new(413).set_body_string("too long"), ChatErrorKind::Rejected),
        (ResponseTemplate::new(307).insert_header("location", "http://127.0.0.1:1/"), ChatErrorKind::Unavailable),
    ] {
        let server = MockServer::start().await;
        Mock::given(method("POST")).respond_with(template).mount(&server).await;
        let error = ask(&server).await.unwrap_err();
        assert_eq!(error.kind, kind);
        let shown = format!("{error} {error:?} {:?}", endpoint(&server).model());
        assert!(shown.contains("`m@127.0.0.1") && !shown.contains(KEY) && !shown.contains("planted"), "{shown}");
    }
}

#[tokio::test]
async fn an_error_in_a_good_reply_is_the_providers_and_tried_again() {
    let server = MockServer::start().await;
    let upstream = ResponseTemplate::new(200).set_body_json(json!({"error": {"message": "upstream", "code": 502}}));
    Mock::given(method("POST")).respond_with(upstream).up_to_n_times(1).mount(&server).await;
    Mock::given(method("POST")).respond_with(good()).mount(&server).await;
    assert_eq!(ask(&server).await.unwrap().attempts, 2);
}

#[tokio::test]
async fn a_closed_port_is_a_network_error() {
    let closed = Endpoint::new(EndpointSettings { retries: 0, ..settings("http://127.0.0.1:9/v1".into()) }).unwrap();
    assert_eq!(closed.chat(&question()).await.unwrap_err().kind, ChatErrorKind::Network);
}

#[test]
fn a_url_with_a_password_is_refused_without_showing_it() {
    let error = Endpoint::new(settings("http://me:hunter2@host/v1".into())).err().unwrap().to_string();
    assert!(error.contains("without user name") && !error.contains("hunter2"), "{error}");
}

#[tokio::test]
async fn a_providers_view_goes_out_and_the_tools_own_arguments_come_back() {
    let server = MockServer::start().await;
    let call = json!({"id": "c", "function": {"name": "find", "arguments": "{\"text\":\"x\",\"most\":null,\"where\":\"{\\\"a\\\":1}\"}"}});
    let reply = json!({"choices": [{"finish_reason": "tool_calls", "message": {"content": null, "tool_calls": [call]}}]});
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(200).set_body_json(reply)).mount(&server).await;
    let parameters = json!({
        "type": "object",
        "properties": {"text": {"type": "string"}, "most": {"type": "integer"}, "where": {"type": "object"}},
        "required": ["text"],
    });
    let tool = |parameters: Value| ToolSpec { name: "find".into(), description: "finds".into(), parameters };
    let offered = |tool: ToolSpec| ChatRequest { tools: vec![tool], format: Format::Text, ..question() };
    let strict = EndpointSettings { tool_schema: Some(Provider::OpenAiStrict), ..settings(format!("{}/v1", server.uri())) };
    let strict = Endpoint::new(strict).unwrap();

    let reply = strict.chat(&offered(tool(parameters.clone()))).await.unwrap();
    assert_eq!(json!(reply.tool_calls[0].function.arguments), json!({"text": "x", "where": {"a": 1}}));
    let sent: Value = server.received_requests().await.unwrap()[0].body_json().unwrap();
    let function = &sent["tools"][0]["function"];
    assert_eq!(function["strict"], json!(true));
    assert_eq!(function["parameters"]["required"], json!(["text", "most", "where"]));
    assert_eq!(function["parameters"]["additionalProperties"], json!(false));
    let plain = endpoint(&server);
    assert_ne!(plain.model(), strict.model(), "answers under another view are not taken for these");

    let remote = json!({"type": "object", "properties": {"a": {"$ref": "other.json"}}});
    let refused = strict.chat(&offered(tool(remote))).await.unwrap_err();
    assert!(refused.is_final() && refused.detail.contains("`find`"), "{refused:?}");
    assert_eq!(server.received_requests().await.unwrap().len(), 1, "it is not sent without the tool");
}
