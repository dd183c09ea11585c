//! What endpoints of several makers want and say, played by a server on loopback.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use mcpmill_clients::chat::{Api, BindingCounts, Endpoint, EndpointSettings, Sampling, Secret};
use mcpmill_core::{
    account::Price,
    edge::{ChatErrorKind, ChatModel, ChatRequest, Finish, Format, ToolSpec},
    record::{Message, Wait},
};
use serde_json::{Value, json};
use wiremock::{
    Mock, MockServer, Request, ResponseTemplate,
    matchers::{method, path},
};

const KEY: &str = "sk-planted-7f31";

async fn server(route: &str, rule: impl Fn(&Value) -> ResponseTemplate + Send + Sync + 'static) -> MockServer {
    let server = MockServer::start().await;
    let rule = move |request: &Request| rule(&serde_json::from_slice(&request.body).unwrap());
    Mock::given(method("POST")).and(path(route)).respond_with(rule).mount(&server).await;
    server
}

fn settings(server: &MockServer, api: Option<Api>) -> EndpointSettings {
    EndpointSettings {
        base_url: format!("{}/v1", server.uri()),
        model: "m".into(),
        api,
        key: Some(Secret::new(KEY)),
        concurrency: 4,
        requests_per_minute: None,
        tokens_per_minute: None,
        retries: 2,
        timeout: Duration::from_secs(5),
        give_up_after: Duration::from_secs(10),
        price: Some(Price { input: 1.0, output: 2.0, cached: Some(0.1), reasoning: None, batch: None }),
        sampling: Sampling::default(),
        extra: serde_json::Map::new(),
        tool_schema: None,
    }
}

fn question(n: usize) -> ChatRequest {
    let schema = json!({"type": "object", "properties": {"a": {"const": n}}, "required": ["a"]});
    ChatRequest {
        messages: vec![Message::system("s"), Message::user("q")],
        tools: vec![],
        format: Format::JsonSchema { name: "x".into(), schema },
        temperature: 0.5,
        top_p: 1.0,
        max_tokens: 50,
        seed: 1,
        prompt_kind: "x".into(),
    }
}

fn ok(message: &Value) -> ResponseTemplate {
    let body = json!({"choices": [{"finish_reason": "stop", "message": message}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}});
    ResponseTemplate::new(200).set_body_json(body)
}

fn refuse(what: &str) -> ResponseTemplate {
    ResponseTemplate::new(400).set_body_json(json!({"error": {"message": what, "type": "invalid_request_error"}}))
}

async fn sent(server: &MockServer) -> Vec<Value> {
    server.received_requests().await.unwrap().iter().map(|request| request.body_json().unwrap()).collect()
}

#[tokio::test]
async fn a_reasoning_model_is_asked_as_it_wants_and_that_is_remembered() {
    let server = server("/v1/chat/completions", |body| {
        if body.get("max_tokens").is_some() {
            return refuse(
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
            );
        }
        for field in ["temperature", "top_p", "seed"] {
            if body.get(field).is_some() {
                return refuse(&format!("Unsupported value: '{field}' is not supported"));
            }
        }
        ok(&json!({"content": "{\"a\":1}", "reasoning_content": "hm"}))
    })
    .await;
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let notes = Arc::clone(&said);
    let endpoint =
        Endpoint::new(settings(&server, None)).unwrap().with_notes(Arc::new(move |text| notes.lock().unwrap().push(text)));
    let first = endpoint.chat(&question(1)).await.unwrap();
    assert_eq!((first.content.as_str(), first.attempts), ("{\"a\":1}", 5));
    let second = endpoint.chat(&question(2)).await.unwrap();
    assert_eq!(second.attempts, 1);
    assert_eq!(sent(&server).await[5]["max_completion_tokens"], 50);
    let said = said.lock().unwrap();
    assert!(said.len() == 1 && said[0].contains("max_completion_tokens") && said[0].contains("seed"), "{said:?}");
}

#[tokio::test]
async fn a_schema_becomes_a_forced_call_where_there_is_no_response_format() {
    let server = server("/v1/chat/completions", |body| {
        if body.get("response_format").is_some() {
            return refuse("response_format is not supported");
        }
        assert_eq!(body["tool_choice"]["function"]["name"], "x");
        let call = json!({"id": "c", "type": "function", "function": {"name": "x", "arguments": "{\"a\": 1}"}});
        ok(&json!({"content": null, "tool_calls": [call]}))
    })
    .await;
    let endpoint = Endpoint::new(settings(&server, None)).unwrap();
    let reply = endpoint.chat(&question(1)).await.unwrap();
    assert_eq!((reply.content.as_str(), reply.tool_calls.len(), reply.attempts), ("{\"a\": 1}", 0, 2));
    for n in 1..=6 {
        endpoint.chat(&question(n)).await.unwrap();
    }
    assert_eq!(endpoint.bindings(), BindingCounts { schema: 0, tool: 7, words: 0 });
    assert_eq!(sent(&server).await.len(), 2 + 1 + 4 * 2 + 1, "after five schemas it is known to have none");
}

#[tokio::test]
async fn what_no_form_helps_is_refused_with_the_first_complaint() {
    let server = server("/v1/chat/completions", |body| match body.get("response_format") {
        Some(_) => refuse("the schema is bad"),
        None => refuse("something else"),
    })
    .await;
    let error = Endpoint::new(settings(&server, None)).unwrap().chat(&question(1)).await.unwrap_err();
    assert_eq!((error.kind, error.attempts), (ChatErrorKind::Rejected, 3));
    assert!(error.raw.unwrap().contains("the schema is bad"));
}

#[tokio::test]
async fn anthropic_is_spoken_natively() {
    let server = server("/v1/messages", |body| {
        let content = match &body["tool_choice"] {
            Value::Null => json!([{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": "x"}}]),
            _ => json!([{"type": "tool_use", "id": "t1", "name": "x", "input": {"a": 1}}]),
        };
        let usage = json!({"input_tokens": 100, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 0, "output_tokens": 50});
        ResponseTemplate::new(200).set_body_json(json!({"type": "message", "content": content, "stop_reason": "tool_use", "usage": usage}))
    })
    .await;
    let endpoint = Endpoint::new(settings(&server, Some(Api::Anthropic))).unwrap();
    let bound = endpoint.chat(&question(1)).await.unwrap();
    assert_eq!((bound.content.as_str(), bound.finish), ("{\"a\":1}", Finish::Stop));
    assert_eq!((bound.usage.input_tokens, bound.usage.cached_tokens), (1000, 900));
    assert!((bound.usage.cost - (100.0 + 90.0 + 100.0) / 1e6).abs() < 1e-12);
    let parameters = json!({"type": "object", "properties": {"q": {"type": "string"}}});
    let tool = ToolSpec { name: "find".into(), description: "finds".into(), parameters: parameters.clone() };
    let called = endpoint.chat(&ChatRequest { tools: vec![tool], format: Format::Text, ..question(1) }).await.unwrap();
    assert_eq!(json!(called.tool_calls[0].function.arguments), json!({"q": "x"}));
    assert!(called.content.is_empty() && called.usage.reasoning_tokens > 0);

    let requests = server.received_requests().await.unwrap();
    assert_eq!(
        (&requests[0].headers["x-api-key"], &requests[0].headers["anthropic-version"]),
        (&KEY.parse().unwrap(), &"2023-06-01".parse().unwrap())
    );
    assert!(requests[0].headers.get("authorization").is_none());
    let body: Value = requests[1].body_json().unwrap();
    assert_eq!(body["system"], "s");
    assert_eq!(body["tools"], json!([{"name": "find", "description": "finds", "input_schema": parameters}]));
}

#[tokio::test]
async fn an_overloaded_anthropic_is_asked_again_and_a_refusal_is_told() {
    let server = MockServer::start().await;
    let busy = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    Mock::given(method("POST"))
        .respond_with(ResponseTemplate::new(529).set_body_json(busy))
        .up_to_n_times(1)
        .mount(&server)
        .await;
    let refusal =
        json!({"type": "message", "content": [], "stop_reason": "refusal", "usage": {"input_tokens": 3, "output_tokens": 1}});
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(200).set_body_json(refusal)).mount(&server).await;
    let reply = Endpoint::new(settings(&server, Some(Api::Anthropic))).unwrap().chat(&question(1)).await.unwrap();
    assert_eq!((reply.finish, reply.attempts), (Finish::Filtered, 2));
}

#[tokio::test]
async fn failed_tries_that_were_paid_for_are_in_the_sum_and_never_more_than_the_most() {
    let server = MockServer::start().await;
    let paid = json!({"error": {"message": "upstream"}, "usage": {"prompt_tokens": 7, "completion_tokens": 1, "cost": 0.25}});
    Mock::given(method("POST"))
        .respond_with(ResponseTemplate::new(200).set_body_json(paid))
        .up_to_n_times(2)
        .mount(&server)
        .await;
    Mock::given(method("POST")).respond_with(ok(&json!({"content": "{}"}))).mount(&server).await;
    let endpoint = Endpoint::new(settings(&server, None)).unwrap();
    let reply = endpoint.chat(&question(1)).await.unwrap();
    assert_eq!((reply.attempts, reply.usage.input_tokens, reply.usage.output_tokens), (3, 19, 4));
    assert!((reply.usage.cost - (0.5 + 9.0 / 1e6)).abs() < 1e-9, "the provider's own cost where it names it");
    let most = endpoint.at_most(&question(1));
    let body = server.received_requests().await.unwrap()[0].body.len() as u64;
    assert!(most.input_tokens >= 3 * body && most.output_tokens == 3 * 50 && most.cost > 0.0);

    let calls = json!([{"function": {"name": "t", "arguments": "{"}}]);
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ok(&json!({"tool_calls": calls}))).mount(&server).await;
    let free = ChatRequest { format: Format::Text, ..question(1) };
    let error = Endpoint::new(settings(&server, None)).unwrap().chat(&free).await.unwrap_err();
    assert_eq!((error.kind, error.attempts, error.usage.input_tokens), (ChatErrorKind::Malformed, 1, 5));
}

#[tokio::test]
async fn a_reply_that_says_nothing_of_its_use_counts_at_its_most() {
    let free = ChatRequest { format: Format::Text, ..question(1) };
    for (usage, expected) in [
        (json!({}), None),
        (json!({"prompt_tokens": -5, "completion_tokens": 2}), None),
        (json!({"input_tokens": 5, "output_tokens": "2"}), Some(9.0 / 1e6)),
        (json!({"prompt_tokens": 5, "completion_tokens": 2, "cost": 1e308}), Some(9.0 / 1e6)),
        (json!({"prompt_tokens": 5, "completion_tokens": 2, "cost": 0.5}), Some(0.5)),
    ] {
        let server = MockServer::start().await;
        let body = json!({"choices": [{"message": {"content": "hi"}}], "usage": usage});
        Mock::given(method("POST")).respond_with(ResponseTemplate::new(200).set_body_json(body)).mount(&server).await;
        let endpoint = Endpoint::new(EndpointSettings { retries: 0, ..settings(&server, None) }).unwrap();
        let used = endpoint.chat(&free).await.unwrap().usage;
        match expected {
            Some(cost) => assert!((used.cost - cost).abs() < 1e-12 && used.output_tokens == 2, "{usage} {used:?}"),
            None => assert_eq!(used, endpoint.at_most(&free), "{usage}"),
        }
    }
}

#[tokio::test]
async fn a_reply_with_broken_characters_is_asked_for_again() {
    let server = MockServer::start().await;
    let broken = b"{\"choices\":[{\"message\":{\"content\":\"caf\xe9\"}}]}".to_vec();
    let broken = ResponseTemplate::new(200).set_body_raw(broken, "application/json");
    Mock::given(method("POST")).respond_with(broken).up_to_n_times(1).mount(&server).await;
    Mock::given(method("POST")).respond_with(ok(&json!({"content": "caf\u{e9}"}))).mount(&server).await;
    let endpoint = Endpoint::new(settings(&server, None)).unwrap();
    let reply = endpoint.chat(&ChatRequest { format: Format::Text, ..question(1) }).await.unwrap();
    assert_eq!((reply.content.as_str(), reply.attempts), ("caf\u{e9}", 2));
    assert!(reply.usage.output_tokens == 50 + 2, "the first counts at its most: {:?}", reply.usage);
}

#[tokio::test]
async fn a_pause_beyond_all_patience_is_not_waited_for() {
    let server = MockServer::start().await;
    let busy = ResponseTemplate::new(429).insert_header("retry-after", "86400");
    Mock::given(method("POST")).respond_with(busy).mount(&server).await;
    let error = Endpoint::new(settings(&server, None)).unwrap().chat(&question(1)).await.unwrap_err();
    assert_eq!((error.kind, error.attempts), (ChatErrorKind::Unavailable, 1));
    assert!(error.waits() == Some(Wait::Model) && error.detail.contains("for another 86400 s (status 429), until "), "{error}");
}

#[tokio::test]
async fn a_busy_provider_is_asked_more_often_than_one_that_fails() {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(429)).up_to_n_times(3).mount(&server).await;
    Mock::given(method("POST")).respond_with(ok(&json!({"content": "{}"}))).mount(&server).await;
    let endpoint = Endpoint::new(EndpointSettings { retries: 1, ..settings(&server, None) }).unwrap();
    assert_eq!(endpoint.chat(&question(1)).await.unwrap().attempts, 4);

    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(500)).mount(&server).await;
    let endpoint = Endpoint::new(EndpointSettings { retries: 1, ..settings(&server, None) }).unwrap();
    assert_eq!(endpoint.chat(&question(1)).await.unwrap_err().attempts, 2);
    let broke = json!({"error": {"code": "insufficient_quota", "message": "no credit"}});
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(429).set_body_json(broke)).mount(&server).await;
    let error = Endpoint::new(settings(&server, None)).unwrap().chat(&question(1)).await.unwrap_err();
    assert_eq!((error.kind, error.attempts), (ChatErrorKind::Unavailable, 1));
}

#[tokio::test]
async fn a_call_that_is_dropped_gives_its_place_to_another() {
    let server = MockServer::start().await;
    let slow = ok(&json!({"content": "{}"})).set_delay(Duration::from_secs(3));
    Mock::given(method("POST")).respond_with(slow).up_to_n_times(1).mount(&server).await;
    Mock::given(method("POST")).respond_with(ok(&json!({"content": "{}"}))).mount(&server).await;
    let endpoint = Endpoint::new(EndpointSettings { concurrency: 1, ..settings(&server, None) }).unwrap();
    let dropped = tokio::time::timeout(Duration::from_millis(300), endpoint.chat(&question(1))).await;
    assert!(dropped.is_err());
    let next = tokio::time::timeout(Duration::from_secs(2), endpoint.chat(&question(1))).await;
    assert_eq!(next.unwrap().unwrap().attempts, 1);
}
