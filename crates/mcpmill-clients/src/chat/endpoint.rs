//! One endpoint: pace, retries, body caps, and what it can bind.

use std::{
    collections::HashSet,
    num::NonZeroU32,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use backon::{ExponentialBuilder, Retryable};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use mcpmill_core::canonical::content_hash;
use mcpmill_core::edge::{ChatError, ChatErrorKind, ChatModel, ChatReply, ChatRequest, Class, Format};
use mcpmill_core::record::Usage;
use mcpmill_core::schema_view::Provider;
use reqwest::{StatusCode, header};
use serde_json::{Map, Value};
use thiserror::Error;
use tokio::sync::Semaphore;

use super::shown::Shown;
use super::wire::{self, Binding, Price, Unreadable};
use crate::secret::Secret;

/// A reply larger than this is not read.
const LARGEST_REPLY: usize = 16 << 20;
/// A pause longer than this is not waited for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How an endpoint is reached and paced.
#[derive(Clone, Debug)]
pub struct EndpointSettings {
    /// Up to and with the version (`https://host/v1`).
    pub base_url: String,
    /// The model's name at that endpoint.
    pub model: String,
    /// Bearer key, when it wants one.
    pub key: Option<Secret>,
    /// Requests in flight.
    pub concurrency: usize,
    /// Requests a minute, when limited.
    pub requests_per_minute: Option<NonZeroU32>,
    /// Tries after the first.
    pub retries: usize,
    /// Wall time of one request.
    pub timeout: Duration,
    /// US dollars per million prompt tokens.
    pub price_input: f64,
    /// US dollars per million generated tokens.
    pub price_output: f64,
    /// Fields added to every request body.
    pub extra: Map<String, Value>,
    /// Whose rules the schemas of offered tools are made to fit; verbatim without it.
    pub tool_schema: Option<Provider>,
}

/// An endpoint that cannot be set up.
#[derive(Debug, Error)]
#[error("failed to set up endpoint `{base_url}`: {detail}")]
pub struct EndpointError {
    /// The endpoint.
    pub base_url: String,
    /// Why not.
    pub detail: String,
}

/// A chat model behind an OpenAI-compatible endpoint.
pub struct Endpoint {
    settings: EndpointSettings,
    /// `model@base_url`: names the model in lineage and keys.
    name: String,
    url: reqwest::Url,
    client: reqwest::Client,
    limiter: Option<DefaultDirectRateLimiter>,
    slots: Semaphore,
    binding: SchemaBinding,
}

/// What is known of an endpoint's `response_format`. Some have none, some refuse certain schemas.
#[derive(Default)]
struct SchemaBinding {
    /// Set once a schema was accepted: refusals are then the schema's own.
    accepted: AtomicBool,
    /// Hashes of schemas that were refused and answered when told in words.
    refused: Mutex<HashSet<String>>,
}

/// Refusals, with no schema ever accepted, after which an endpoint is taken to have no binding at all.
const REFUSALS: usize = 5;

impl SchemaBinding {
    fn of(&self, request: &ChatRequest) -> Binding {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let none = !self.accepted.load(Ordering::Relaxed) && refused.len() >= REFUSALS;
        if none || schema_hash(request).is_some_and(|hash| refused.contains(&hash)) { Binding::Words } else { Binding::Schema }
    }

    fn refuse(&self, request: &ChatRequest) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).extend(schema_hash(request));
    }
}

fn schema_hash(request: &ChatRequest) -> Option<String> {
    match &request.format {
        Format::JsonSchema { schema, .. } => Some(content_hash(schema)),
        _ => None,
    }
}

impl Endpoint {
    /// An endpoint; nothing is sent yet.
    ///
    /// # Errors
    /// The URL is none, or the key has characters no header can carry.
    pub fn new(settings: EndpointSettings) -> Result<Self, EndpointError> {
        let fail = |detail: String| EndpointError { base_url: shown_url(&settings.base_url), detail };
        let joined = format!("{}/chat/completions", settings.base_url.trim_end_matches('/'));
        let url = reqwest::Url::parse(&joined).map_err(|e| fail(e.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || !url.username().is_empty() {
            return Err(fail("want an http or https URL without user name".into()));
        }
        let mut headers = header::HeaderMap::new();
        if let Some(Secret(key)) = &settings.key {
            let mut value = header::HeaderValue::from_str(&format!("Bearer {key}"))
                .map_err(|_| fail("the key has characters that no header can carry".into()))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        let client = reqwest::Client::builder()
            .user_agent(concat!("mcpmill/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .redirect(reqwest::redirect::Policy::none())
            .timeout(settings.timeout)
            .build()
            .map_err(|e| fail(e.without_url().to_string()))?;
        Ok(Self {
            name: name_of(&settings),
            url,
            client,
            limiter: settings.requests_per_minute.map(|n| RateLimiter::direct(Quota::per_minute(n))),
            slots: Semaphore::new(settings.concurrency.max(1)),
            binding: SchemaBinding::default(),
            settings,
        })
    }

    async fn once(&self, request: &ChatRequest, binding: Binding, attempts: u32) -> Result<ChatReply, ChatError> {
        if let Some(limiter) = &self.limiter {
            limiter.until_ready().await;
        }
        let shown = Shown::of(&request.tools, self.settings.tool_schema)
            .map_err(|why| self.error(ChatErrorKind::Rejected, why, None, attempts - 1))?;
        let body = wire::body(&self.settings.model, request, binding, &shown.tools, &self.settings.extra);
        let response = self.client.post(self.url.clone()).json(&body).send().await.map_err(|e| self.network(&e, attempts))?;
        let status = response.status();
        let pause = retry_after(&response);
        let text = self.read(response, attempts).await?;
        if status.is_success() {
            let price = Price { input: self.settings.price_input, output: self.settings.price_output };
            let read = wire::reply(&text, price, attempts).map(|reply| shown.restore(reply));
            return read.map_err(|unreadable| {
                let (kind, detail) = match unreadable {
                    Unreadable::Failed(detail) => (ChatErrorKind::Provider, detail),
                    Unreadable::NoCompletion(detail) => (ChatErrorKind::Unavailable, detail),
                    Unreadable::Calls(detail) => (ChatErrorKind::Malformed, detail),
                };
                self.error(kind, detail, Some(text), attempts)
            });
        }
        let kind = match status {
            StatusCode::TOO_MANY_REQUESTS => ChatErrorKind::RateLimited(pause.unwrap_or(Duration::from_secs(2))),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ChatErrorKind::Unauthorised,
            s if s.is_server_error() || s == StatusCode::REQUEST_TIMEOUT => ChatErrorKind::Provider,
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY => ChatErrorKind::Rejected,
            // Out of credit, no such model, moved elsewhere: says nothing of the question.
            _ => ChatErrorKind::Unavailable,
        };
        Err(self.error(kind, format!("status {}", status.as_u16()), Some(text), attempts))
    }

    async fn read(&self, mut response: reqwest::Response, attempts: u32) -> Result<String, ChatError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.network(&e, attempts))? {
            if bytes.len() + chunk.len() > LARGEST_REPLY {
                let detail = format!("reply is larger than {LARGEST_REPLY} bytes");
                return Err(self.error(ChatErrorKind::Malformed, detail, None, attempts));
            }
            bytes.extend_from_slice(&chunk);
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        // A provider that echoes the key in its complaint must not bring it into outcomes and logs.
        Ok(match &self.settings.key {
            Some(Secret(key)) if key.len() > 5 => text.replace(key.as_str(), "[key]"),
            _ => text,
        })
    }

    fn network(&self, error: &reqwest::Error, attempts: u32) -> ChatError {
        let kind = if error.is_timeout() { ChatErrorKind::TimedOut } else { ChatErrorKind::Network };
        let mut detail = String::new();
        let mut source: Option<&dyn std::error::Error> = Some(error);
        // reqwest's own message names the URL only; the cause says why.
        while let Some(cause) = source {
            detail = cause.to_string();
            source = cause.source();
        }
        self.error(kind, detail, None, attempts)
    }

    fn error(&self, kind: ChatErrorKind, detail: String, raw: Option<String>, attempts: u32) -> ChatError {
        ChatError { model: self.name.clone(), kind, detail, raw, attempts, usage: Usage::default() }
    }
}

#[async_trait]
impl ChatModel for Endpoint {
    fn model(&self) -> &str {
        &self.name
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatReply, ChatError> {
        if wire::is_empty(&request.messages) {
            return Err(self.error(ChatErrorKind::Rejected, "the request has no messages".into(), None, 0));
        }
        let _slot = self.slots.acquire().await.map_err(|e| self.error(ChatErrorKind::Internal, e.to_string(), None, 0))?;
        let attempts = AtomicU32::new(0);
        let binding = self.binding.of(request);
        let bound = matches!(request.format, Format::JsonSchema { .. }) && binding == Binding::Schema;
        match self.persist(request, binding, &attempts).await {
            // An endpoint that cannot follow a schema says 400; where it then answers to words, it is told
            // in words from then on.
            Err(error) if error.kind == ChatErrorKind::Rejected && bound => {
                let told = self.persist(request, Binding::Words, &attempts).await.map_err(|_| error)?;
                self.binding.refuse(request);
                Ok(told)
            }
            outcome => {
                if bound && outcome.is_ok() {
                    self.binding.accepted.store(true, Ordering::Relaxed);
                }
                outcome
            }
        }
    }
}

impl Endpoint {
    /// Asks until there is an answer, a permanent refusal, or no retry left.
    async fn persist(&self, request: &ChatRequest, binding: Binding, attempts: &AtomicU32) -> Result<ChatReply, ChatError> {
        let next = || self.once(request, binding, attempts.fetch_add(1, Ordering::Relaxed) + 1);
        let backoff =
            ExponentialBuilder::default().with_jitter().with_max_times(self.settings.retries).with_max_delay(LONGEST_PAUSE);
        next.retry(backoff)
            .when(|e: &ChatError| !matches!(e.class(), Class::Permanent))
            .adjust(|e, pause| match (e.class(), pause) {
                (Class::RateLimited(asked), Some(pause)) => Some(asked.max(pause).min(LONGEST_PAUSE)),
                (_, pause) => pause,
            })
            .await
    }
}

/// The pause a reply asks for, in whole seconds.
fn retry_after(response: &reqwest::Response) -> Option<Duration> {
    let seconds = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Model, endpoint and, where the requests carry further fields or other schemas, these: all that the answers depend on.
fn name_of(settings: &EndpointSettings) -> String {
    let extra = if settings.extra.is_empty() { String::new() } else { format!("+{}", &content_hash(&settings.extra)[..8]) };
    let view = settings.tool_schema.map(|provider| format!("+{provider}")).unwrap_or_default();
    format!("{}@{}{extra}{view}", settings.model, shown_url(&settings.base_url))
}

/// A base URL without what could be a secret, and without the `/v1` that all have.
fn shown_url(base: &str) -> String {
    match reqwest::Url::parse(base) {
        Ok(url) => {
            let port = url.port().map(|p| format!(":{p}")).unwrap_or_default();
            let path = url.path().trim_end_matches('/');
            format!("{}{port}{}", url.host_str().unwrap_or_default(), path.strip_suffix("/v1").unwrap_or(path))
        }
        Err(_) => base.chars().take(80).collect(),
    }
}
