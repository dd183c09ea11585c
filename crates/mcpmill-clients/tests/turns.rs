//! Calls that wait their turn: they cost nothing yet, and wait no longer than the run may ask.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use mcpmill_clients::chat::{Endpoint, EndpointSettings, Sampling};
use mcpmill_core::{
    account::{Accounts, Budget, Caps, Charge, Price},
    edge::{
        ChatErrorKind, ChatModel, ChatRequest, Exchange, Exchanges, Format, Mode, RecordedChat, Recorder, StoreError, Stored,
    },
    record::{Message, Usage, Wait},
};
use serde_json::json;
use wiremock::{Mock, MockServer, ResponseTemplate, matchers::method};

/// Notes of calls in flight, by key.
#[derive(Default)]
struct Notes(Mutex<HashMap<String, Usage>>);

#[async_trait]
impl Exchanges for Notes {
    fn get(&self, _: &str) -> Result<Option<Stored>, StoreError> {
        Ok(None)
    }

    async fn begin(&self, key: &str, at_most: &Charge<'_>) -> Result<(), StoreError> {
        assert!(self.0.lock().unwrap().insert(key.into(), at_most.usage).is_none(), "begun once");
        Ok(())
    }

    async fn note(&self, key: &str, at_most: &Charge<'_>) -> Result<(), StoreError> {
        assert!(self.0.lock().unwrap().insert(key.into(), at_most.usage).is_some(), "begun before");
        Ok(())
    }

    async fn put(&self, exchange: &Exchange, _: &Charge<'_>) -> Result<(), StoreError> {
        self.0.lock().unwrap().remove(&exchange.key);
        Ok(())
    }

    async fn abandon(&self, key: &str, _: &Charge<'_>) -> Result<(), StoreError> {
        self.0.lock().unwrap().remove(key);
        Ok(())
    }

    fn repeated(&self) -> Result<u64, StoreError> {
        Ok(0)
    }

    fn accounts(&self) -> Result<Accounts, StoreError> {
        Ok(Accounts::default())
    }
}

fn endpoint(server: &MockServer) -> Arc<Endpoint> {
    let settings = EndpointSettings {
        base_url: format!("{}/v1", server.uri()),
        model: "m".into(),
        api: None,
        key: None,
        concurrency: 2,
        requests_per_minute: None,
        tokens_per_minute: None,
        retries: 4,
        timeout: Duration::from_secs(20),
        give_up_after: Duration::from_secs(60),
        price: Some(Price { input: 1.0, output: 2.0, ..Price::default() }),
        sampling: Sampling::default(),
        extra: serde_json::Map::new(),
        tool_schema: None,
    };
    Arc::new(Endpoint::new(settings).unwrap())
}

fn question(seed: u64) -> ChatRequest {
    ChatRequest {
        messages: vec![Message::user("q")],
        tools: vec![],
        format: Format::Text,
        temperature: 0.0,
        top_p: 1.0,
        max_tokens: 50,
        seed,
        prompt_kind: "x".into(),
    }
}

fn good() -> ResponseTemplate {
    let reply = json!({"choices": [{"finish_reason": "stop", "message": {"content": "a"}}]});
    ResponseTemplate::new(200).set_body_json(reply)
}

#[tokio::test]
async fn what_waits_its_turn_is_not_noted_and_what_is_sent_counts_one_try() {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(good().set_delay(Duration::from_secs(15))).mount(&server).await;
    let (endpoint, notes) = (endpoint(&server), Arc::new(Notes::default()));
    let all = endpoint.at_most(&question(0));
    let chat = RecordedChat::new(endpoint, Arc::new(Recorder::new(notes.clone(), Mode::Reuse)));
    let calls: Vec<_> = (0..10)
        .map(|seed| {
            let chat = chat.clone();
            tokio::spawn(async move { chat.chat(&question(seed)).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(600)).await;
    let noted: Vec<Usage> = notes.0.lock().unwrap().values().copied().collect();
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    assert_eq!(noted.len(), 2, "two are sent, eight wait");
    assert!(noted.iter().all(|most| most.output_tokens == 50 && most.cost > 0.0 && most.cost * 4.0 < all.cost), "{noted:?}");
}

#[tokio::test]
async fn a_call_between_two_tries_counts_what_it_has_used() {
    let server = MockServer::start().await;
    let busy = ResponseTemplate::new(429).insert_header("retry-after", "30");
    Mock::given(method("POST")).respond_with(busy).mount(&server).await;
    let notes = Arc::new(Notes::default());
    let chat = RecordedChat::new(endpoint(&server), Arc::new(Recorder::new(notes.clone(), Mode::Reuse)));
    let call = tokio::spawn(async move { chat.chat(&question(1)).await });
    tokio::time::sleep(Duration::from_millis(600)).await;
    let noted: Vec<Usage> = notes.0.lock().unwrap().values().copied().collect();
    call.abort();
    assert_eq!(noted, [Usage::default()], "what a busy provider turned down costs nothing");
}

#[tokio::test]
async fn no_call_waits_longer_than_the_run_may_ask() {
    let server = MockServer::start().await;
    let busy = ResponseTemplate::new(429).insert_header("retry-after", "30");
    Mock::given(method("POST")).respond_with(busy).up_to_n_times(1).mount(&server).await;
    Mock::given(method("POST")).respond_with(good()).mount(&server).await;
    let start = Instant::now();
    let budget = Budget::new(Caps { until: Some(start + Duration::from_secs(1)), ..Caps::default() }, Usage::default());
    let notes = Arc::new(Notes::default());
    let recorder = Arc::new(Recorder::new(notes.clone(), Mode::Reuse).with_budget(budget));
    let chat = RecordedChat::new(endpoint(&server), Arc::clone(&recorder));
    let (first, second) = (question(1), question(2));
    let later = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        chat.chat(&second).await
    };
    let (one, two) = tokio::join!(chat.chat(&first), later);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    for (error, attempts) in [(one.unwrap_err(), 1), (two.unwrap_err(), 0)] {
        assert_eq!((error.kind, error.waits(), error.attempts), (ChatErrorKind::BudgetReached, Some(Wait::Budget), attempts));
    }
    assert!(recorder.exhausted().is_some() && notes.0.lock().unwrap().is_empty());
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
}
