//! Stand-ins for the edges of the world, for tests of one stage.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use mcpmill_core::{
    account::{Accounts, Charge},
    drive::{Context, Done, Sink, SinkError},
    edge::{
        ChatError, ChatErrorKind, ChatModel, ChatReply, ChatRequest, Exchange, Exchanges, Fetch, FetchError, FetchErrorKind,
        FetchRequest, Finish, Mode, Page, RecordedChat, Recorder, StoreError, Stored,
    },
    event::Events,
    record::{Outcome, Usage},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// A store that remembers in memory; all of it is the run's own.
#[derive(Default)]
pub struct Remembering {
    kept: Mutex<HashMap<String, Exchange>>,
    /// Nothing that is put into it is kept.
    forgets: bool,
}

impl Remembering {
    /// A store that forgets everything.
    pub fn nothing() -> Self {
        Self { forgets: true, ..Self::default() }
    }

    /// All that is kept.
    pub fn kept(&self) -> Vec<Exchange> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Forgets what `which` says, as a kill before it was written would.
    pub fn forget(&self, which: impl Fn(&Exchange) -> bool) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, exchange| !which(exchange));
    }
}

#[async_trait]
impl Exchanges for Remembering {
    fn get(&self, key: &str) -> Result<Option<Stored>, StoreError> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kept.get(key).map(|exchange| Stored { exchange: exchange.clone(), own: true }))
    }

    async fn begin(&self, _: &str, _: &Charge<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn put(&self, exchange: &Exchange, _: &Charge<'_>) -> Result<(), StoreError> {
        if !self.forgets {
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(exchange.key.clone(), exchange.clone());
        }
        Ok(())
    }

    async fn abandon(&self, _: &str, _: &Charge<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn repeated(&self) -> Result<u64, StoreError> {
        Ok(0)
    }

    fn accounts(&self) -> Result<Accounts, StoreError> {
        Ok(Accounts::default())
    }
}

/// What a scripted model answers: a text, or `None` when it is down.
type Script = dyn Fn(&ChatRequest) -> Option<String> + Send + Sync;

/// A model that answers by a function, and keeps what it was asked.
pub struct Scripted {
    script: Box<Script>,
    asked: Mutex<Vec<ChatRequest>>,
}

impl Scripted {
    /// A model that answers by `script`; `None` is a provider that is down.
    pub fn new(script: impl Fn(&ChatRequest) -> Option<String> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { script: Box::new(script), asked: Mutex::default() })
    }

    /// The kinds of prompts it was asked, in order.
    pub fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.iter().map(|request| request.prompt_kind.clone()).collect()
    }

    /// Itself behind a recorder that keeps nothing.
    pub fn recorded(self: &Arc<Self>) -> RecordedChat {
        RecordedChat::new(Arc::clone(self) as Arc<dyn ChatModel>, recorder())
    }
}

#[async_trait]
impl ChatModel for Scripted {
    fn model(&self) -> &str {
        "scripted"
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatReply, ChatError> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
        match (self.script)(request) {
            Some(content) => {
                let usage = Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() };
                Ok(ChatReply { content, tool_calls: Vec::new(), finish: Finish::Stop, usage, attempts: 1, repairs: Vec::new() })
            }
            None => Err(ChatError {
                model: "scripted".into(),
                kind: ChatErrorKind::Network,
                detail: "no answer".into(),
                raw: None,
                attempts: 1,
                usage: Usage::default(),
            }),
        }
    }
}

/// A recorder that keeps nothing.
pub fn recorder() -> Arc<Recorder> {
    Arc::new(Recorder::new(Arc::new(Remembering::nothing()), Mode::Reuse))
}

/// What a stage is told about its surroundings, with nobody listening.
pub fn context(stage: &str) -> Context {
    Context { stage: stage.into(), events: Events::channel().0, cancel: CancellationToken::new(), recorder: recorder() }
}

/// Keeps what a stage ends with.
pub struct Kept<O>(Mutex<Vec<Done<O>>>);

impl<O> Default for Kept<O> {
    fn default() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

impl<O> Kept<O> {
    /// All ends, in the order they came.
    pub fn ends(self) -> Vec<Done<O>> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<O: Send> Sink<O> for Kept<O> {
    fn seen(&self, _: &str) -> Option<(Outcome, u64)> {
        None
    }

    fn accept(&self, _: &str, done: Done<O>) -> Result<(), SinkError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(done);
        Ok(())
    }
}

/// Pages by their address, as a site would serve them, and what was asked.
#[derive(Default)]
pub struct Pages {
    pages: Mutex<HashMap<String, Result<Page, FetchErrorKind>>>,
    asked: Mutex<Vec<FetchRequest>>,
}

impl Pages {
    /// The pages of a fixture: `index` is the text of its `pages.json`, an object of addresses and files;
    /// `read` gives the text of a file.
    ///
    /// # Panics
    /// The index is no such object.
    pub fn fixture(index: &str, read: impl Fn(&str) -> String) -> Self {
        let index: HashMap<String, Value> = serde_json::from_str(index).expect("pages.json maps addresses to files");
        let pages = Self::default();
        for (url, saved) in &index {
            // A page whose header named the next one is saved with that address.
            match (saved.as_str(), saved["file"].as_str(), saved["next"].as_str()) {
                (Some(file), ..) => pages.serve(url, &read(file)),
                (None, Some(file), Some(next)) => pages.serve_linked(url, &read(file), next),
                _ => panic!("pages.json says of {url} neither a file nor a file with a link"),
            }
        }
        pages
    }

    /// Serves a body at an address, in place of what was there.
    pub fn serve(&self, url: &str, body: &str) {
        let page = Page { url: url.to_owned(), body: body.to_owned(), ..Page::default() };
        self.put(url, Ok(page));
    }

    /// Serves a body whose `Link` header names the next page.
    pub fn serve_linked(&self, url: &str, body: &str, next: &str) {
        let page = Page { url: url.to_owned(), body: body.to_owned(), next: Some(next.to_owned()), ..Page::default() };
        self.put(url, Ok(page));
    }

    /// Fails at an address.
    pub fn fail(&self, url: &str, kind: FetchErrorKind) {
        self.put(url, Err(kind));
    }

    fn put(&self, url: &str, answer: Result<Page, FetchErrorKind>) {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner).insert(url.to_owned(), answer);
    }

    /// The addresses that were asked for, in order.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|request| request.url.clone()).collect()
    }
}

#[async_trait]
impl Fetch for Pages {
    async fn fetch(&self, request: &FetchRequest) -> Result<Page, FetchError> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = pages.get(&request.url).cloned().unwrap_or(Err(FetchErrorKind::NotFound(404)));
        answer.map_err(|kind| FetchError { url: request.url.clone(), kind })
    }
}
