//! One endpoint: tries, falling back, body caps, and what each try used.

use std::{
    borrow::Cow,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use backon::{BackoffBuilder, ExponentialBuilder};
use mcpmill_core::{
    account::{Cap, Price, Reached},
    edge::{ChatError, ChatErrorKind, ChatModel, ChatReply, ChatRequest, Free, NotSent, Toll},
    record::Usage,
    secrets::is_secret_parameter,
};
use reqwest::StatusCode;
use serde_json::Value;
use tokio::time::{sleep, timeout_at};

use super::{
    ability::{Ability, Binding, BindingCounts, Plan},
    flow::{Ended, Flow, GivenUp, Notes, Slot},
    keys::Keys,
    pause,
    settings::{EndpointError, EndpointSettings},
    shown::Shown,
    wire::{Api, Ask, Fault, Unreadable, Used},
};
use crate::secret::Secret;

/// A reply larger than this is not read.
const LARGEST_REPLY: usize = 16 << 20;
/// A connection that takes longer is none.
const CONNECT: Duration = Duration::from_secs(10);
/// The first pause before another try; doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause of our own accord. One that a provider asks for may be longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Tokens that a provider may add to a request by itself, for instance to explain tools to its model.
const ADDED_TOKENS: u64 = 600;
/// Tries that a busy provider may turn down for each retry there is: they cost nothing, and it is there.
const BUSY_TRIES: usize = 3;

/// A chat model behind an endpoint.
pub struct Endpoint {
    settings: EndpointSettings,
    /// `model@base_url`: names the model in lineage and keys.
    name: String,
    api: Api,
    url: reqwest::Url,
    /// The key, and what the query of the URL holds that is secret.
    keys: Keys,
    client: reqwest::Client,
    flow: Flow,
    ability: Ability,
    /// Whether the host says what a call cost only when it is asked.
    ask_cost: bool,
    /// Whether it was told that the host names costs that cannot be.
    told_cost: AtomicBool,
}

/// A try that brought no reply.
struct Miss {
    kind: ChatErrorKind,
    detail: String,
    raw: Option<String>,
    /// What it used nevertheless.
    usage: Usage,
    ended: Ended,
    /// Whether another try may bring one.
    again: bool,
    /// Whether it says that the provider is down, and nothing of the question.
    down: bool,
}

impl Miss {
    fn new(kind: ChatErrorKind, detail: impl Into<String>) -> Self {
        let (detail, usage, ended) = (detail.into(), Usage::default(), Ended::Refused);
        Self { kind, detail, raw: None, usage, ended, again: false, down: false }
    }

    /// One that every question would meet now.
    fn denied(kind: ChatErrorKind, detail: impl Into<String>) -> Self {
        Self { ended: Ended::Denied, ..Self::new(kind, detail) }
    }

    /// The provider is waited for no more.
    fn given_up(GivenUp(why): GivenUp, raw: Option<String>) -> Self {
        Self { raw, ..Self::new(ChatErrorKind::Unavailable, why) }
    }

    fn not_sent(why: &NotSent) -> Self {
        let ChatError { kind, detail, .. } = ChatError::not_sent("", why);
        Self::new(kind, detail)
    }

    /// One of the provider's, which may pass.
    fn failed(kind: ChatErrorKind, detail: impl Into<String>, overload: bool, pause: Option<Duration>) -> Self {
        Self { ended: Ended::Failed { overload, pause }, again: true, ..Self::new(kind, detail) }
    }
}

/// How far a call is.
struct Call {
    plan: Plan,
    attempts: u32,
    /// Tries that failed, and may not be more than there are retries.
    failed: usize,
    /// Tries that a busy provider turned down.
    busy: usize,
    /// Of all tries.
    usage: Usage,
    /// The first refusal, which stands when no milder way helps.
    refusal: Option<Miss>,
    /// What the endpoint was found not to take, in words.
    learnt: Vec<&'static str>,
}

impl Endpoint {
    /// An endpoint; nothing is sent yet.
    ///
    /// # Errors
    /// The URL is none, or the key has characters no header can carry.
    pub fn new(settings: EndpointSettings) -> Result<Self, EndpointError> {
        let client = reqwest::Client::builder()
            .user_agent(concat!("mcpmill/", env!("CARGO_PKG_VERSION")))
            .default_headers(settings.headers()?)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .timeout(settings.timeout)
            .build()
            .map_err(|e| settings.error(e.without_url().to_string()))?;
        let (name, api) = (settings.name(), settings.api());
        let rungs: &[Binding] = match api {
            Api::OpenAi => &[Binding::Schema, Binding::Tool, Binding::Words],
            // A model that thinks cannot be made to call.
            Api::Anthropic if settings.sampling.thinking() > 0 || settings.extra.contains_key("thinking") => &[Binding::Words],
            Api::Anthropic => &[Binding::Tool, Binding::Words],
        };
        let url = settings.url()?;
        let of_url = url.query_pairs().filter(|(name, _)| is_secret_parameter(name)).map(|(_, value)| Secret::new(value));
        let keys = Keys::new(settings.key.clone().into_iter().chain(of_url));
        Ok(Self {
            flow: Flow::new(&name, settings.bounds()),
            ability: Ability::new(rungs),
            url,
            keys,
            ask_cost: settings.asks_cost(),
            told_cost: AtomicBool::new(false),
            name,
            api,
            client,
            settings,
        })
    }

    /// Tells `notes` what people should know of the provider: that it is down, or does not take a field.
    #[must_use]
    pub fn with_notes(mut self, notes: Notes) -> Self {
        self.flow = self.flow.with_notes(notes);
        self
    }

    /// How often schemas were asked for in which way.
    pub fn bindings(&self) -> BindingCounts {
        self.ability.counts()
    }

    fn body(&self, request: &ChatRequest, plan: Plan, shown: &Shown) -> String {
        let ask = Ask {
            model: &self.settings.model,
            request,
            plan,
            tools: &shown.tools,
            sampling: &self.settings.sampling,
            extra: &self.settings.extra,
            ask_cost: self.ask_cost,
        };
        self.api.body(&ask).to_string()
    }

    /// What one try with this body may use at most: no token is less than a byte.
    fn most(&self, body: &str, request: &ChatRequest) -> Usage {
        self.most_at(self.settings.price, body, request)
    }

    fn most_at(&self, price: Option<Price>, body: &str, request: &ChatRequest) -> Usage {
        let (input_tokens, output_tokens) = (body.len() as u64 + ADDED_TOKENS, self.settings.most_output(request));
        let cost = price.map_or(0.0, |price| price.at_most(input_tokens, output_tokens));
        Usage { input_tokens, output_tokens, cost, ..Usage::default() }
    }

    /// What a try used that says it used `used`, and could use `most`; `price` is for what names no cost of its own.
    fn used(&self, price: Option<Price>, used: Option<Used>, most: Usage) -> Usage {
        let Some(used) = used else { return most };
        if let Some(cost) = used.odd_cost(&most)
            && !self.told_cost.swap(true, Ordering::Relaxed)
        {
            self.flow
                .note(|name| format!("`{name}` says that a call cost ${cost:e}, which cannot be: such calls count by the list"));
        }
        used.at(price.as_ref(), &most)
    }

    /// Sends once; the reply's usage and attempts are those of this try.
    async fn once(&self, request: &ChatRequest, body: String, shown: &Shown) -> Result<ChatReply, Miss> {
        let most = self.most(&body, request);
        let unknown = |miss: Miss| Miss { usage: most, ..miss };
        let response = match self.client.post(self.url.clone()).body(body).send().await {
            Ok(response) => response,
            // Without a connection nothing was sent; else nobody knows how far it got.
            Err(e) if e.is_connect() => return Err(network(&e)),
            Err(e) => return Err(unknown(network(&e))),
        };
        let status = response.status();
        let pause = pause::asked(response.headers(), SystemTime::now());
        let text = self.read(response).await.map_err(|miss| if status.is_success() { unknown(miss) } else { miss });
        if !status.is_success() {
            // A complaint that is cut off is one nevertheless.
            return Err(refused(status, pause, text.ok()));
        }
        let text = text?;
        let unreadable = |why: Fault, usage: Usage| Miss { raw: Some(text.clone()), usage, ..self.unreadable(why) };
        let read = match self.api.reply(&text) {
            Ok(read) => read,
            Err(Unreadable { why, usage }) => {
                // A page is no model's, and nobody pays for it.
                let page = text.trim_start().starts_with('<');
                let usage = if page { Usage::default() } else { self.used(self.settings.price, usage, most) };
                let miss = unreadable(why, usage);
                // It says nothing of the question either; what is no completion may.
                return Err(if page { Miss { kind: ChatErrorKind::Unavailable, ..miss } } else { miss });
            }
        };
        let usage = self.used(self.settings.price, read.used, most);
        let reply = read.into_reply(request, self.api.encoding(), usage, 1).map_err(|why| unreadable(why, usage))?;
        Ok(shown.restore(reply))
    }

    async fn read(&self, mut response: reqwest::Response) -> Result<String, Miss> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| network(&e))? {
            if bytes.len() + chunk.len() > LARGEST_REPLY {
                return Err(Miss::new(ChatErrorKind::Malformed, format!("reply is larger than {LARGEST_REPLY} bytes")));
            }
            bytes.extend_from_slice(&chunk);
        }
        // A page is no reply, whatever its encoding.
        let page = bytes.trim_ascii_start().starts_with(b"<");
        let strict = response.status().is_success() && !page;
        match String::from_utf8(bytes) {
            Ok(text) => Ok(self.without_key(text)),
            Err(e) if strict => {
                let raw = Some(self.without_key(String::from_utf8_lossy(e.as_bytes()).into_owned()));
                let detail = "reply has bytes that are no UTF-8";
                Err(Miss { raw, ..Miss::failed(ChatErrorKind::Provider, detail, false, None) })
            }
            Err(e) => Ok(self.without_key(String::from_utf8_lossy(e.as_bytes()).into_owned())),
        }
    }

    /// A good reply that cannot be read: the provider may be in trouble.
    fn unreadable(&self, why: Fault) -> Miss {
        match why {
            Fault::Failed(detail) | Fault::NoCompletion(detail) => Miss::failed(ChatErrorKind::Provider, detail, false, None),
            Fault::Calls(detail) => Miss::new(ChatErrorKind::Malformed, detail),
        }
    }

    fn error(&self, miss: Miss, call: &Call) -> ChatError {
        let Miss { kind, detail, raw, .. } = miss;
        ChatError { model: self.name.clone(), kind, detail, raw, attempts: call.attempts, usage: call.usage }
    }

    /// What follows a miss: nothing when the call goes on, after its pause.
    async fn after(&self, miss: Miss, probe: bool, request: &ChatRequest, call: &mut Call) -> Result<(), Miss> {
        if miss.kind == ChatErrorKind::Rejected {
            let complaint = miss.raw.as_deref().unwrap_or_default();
            return match self.ability.milder(call.plan, request, complaint) {
                Some((plan, words)) => {
                    call.plan = plan;
                    call.learnt.push(words);
                    call.refusal.get_or_insert(miss);
                    Ok(())
                }
                None => Err(call.refusal.take().unwrap_or(miss)),
            };
        }
        // While the provider is down calls wait for it: its failures are not the question's. One that may have been paid
        // for is counted all the same, so that a call never uses more than it may at most.
        let waits = miss.down && miss.usage == Usage::default() && (probe || self.flow.is_down());
        if let Some(given_up) = self.flow.given_up().filter(|_| miss.again) {
            return Err(Miss::given_up(given_up, miss.raw));
        }
        match miss.kind {
            ChatErrorKind::RateLimited(_) => call.busy += 1,
            _ if !waits => call.failed += 1,
            _ => {}
        }
        let retries = self.settings.retries;
        if !miss.again || call.failed > retries || call.busy > retries * BUSY_TRIES {
            return Err(miss);
        }
        self.flow.retry().await;
        let mut pauses = ExponentialBuilder::default()
            .with_jitter()
            .with_min_delay(FIRST_PAUSE)
            .with_max_delay(LONGEST_PAUSE)
            .without_max_times()
            .build();
        sleep(pauses.nth((call.failed + call.busy).saturating_sub(1)).unwrap_or(LONGEST_PAUSE)).await;
        Ok(())
    }

    /// Waits its turn for a try, and until it may be sent.
    async fn enter(&self, body: &str, request: &ChatRequest, toll: &dyn Toll) -> Result<Slot<'_>, Miss> {
        let estimate = body.len() as u64 / 4 + self.settings.most_output(request);
        let slot = in_time(toll, self.flow.enter(estimate)).await?.map_err(|given_up| Miss::given_up(given_up, None))?;
        in_time(toll, toll.before(self.most(body, request))).await?.map_err(|why| Miss::not_sent(&why))?;
        Ok(slot)
    }

    fn answered(&self, request: &ChatRequest, first: Plan, call: &Call, reply: ChatReply) -> ChatReply {
        if self.ability.learn(request, first, call.plan) && !call.learnt.is_empty() {
            self.flow.note(|name| format!("`{name}` {}: it is asked otherwise", call.learnt.join(", ")));
        }
        ChatReply { usage: call.usage, attempts: call.attempts, ..reply }
    }
}

#[async_trait]
impl ChatModel for Endpoint {
    fn model(&self) -> &str {
        &self.name
    }

    fn at_most(&self, request: &ChatRequest) -> Usage {
        let Ok(shown) = Shown::of(&request.tools, self.settings.tool_schema) else { return Usage::default() };
        // No form is longer than that in words.
        let plan = Plan { binding: Binding::Words, ..self.ability.plan(request) };
        let one = self.most(&self.body(request, plan, &shown), request);
        let tries = 1 + self.settings.retries as u64;
        Usage {
            input_tokens: one.input_tokens.saturating_mul(tries),
            output_tokens: one.output_tokens.saturating_mul(tries),
            cost: one.cost * tries as f64,
            ..Usage::default()
        }
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatReply, ChatError> {
        self.chat_paid(request, &Free).await
    }

    async fn chat_paid(&self, request: &ChatRequest, toll: &dyn Toll) -> Result<ChatReply, ChatError> {
        let first = self.ability.plan(request);
        let (usage, learnt) = (Usage::default(), Vec::new());
        let mut call = Call { plan: first, attempts: 0, failed: 0, busy: 0, usage, refusal: None, learnt };
        if request.messages.is_empty() {
            return Err(self.error(Miss::new(ChatErrorKind::Rejected, "the request has no messages"), &call));
        }
        let shown = Shown::of(&request.tools, self.settings.tool_schema)
            .map_err(|why| self.error(Miss::new(ChatErrorKind::Rejected, why), &call))?;
        self.flow.begin();
        let mut raw = None;
        loop {
            let body = self.body(request, call.plan, &shown);
            let entered = self.enter(&body, request, toll).await;
            // What the provider said last, where it said something.
            let mut slot = entered.map_err(|miss| self.error(Miss { raw: raw.take(), ..miss }, &call))?;
            let probe = slot.is_probe();
            call.attempts += 1;
            let miss = match slot.send(self.once(request, body, &shown)).await {
                Ok(reply) => {
                    call.usage += reply.usage;
                    slot.end(Ended::Answered(reply.usage.input_tokens + reply.usage.output_tokens), "");
                    return Ok(self.answered(request, first, &call, reply));
                }
                Err(miss) => miss,
            };
            slot.end(miss.ended, &miss.detail);
            call.usage += miss.usage;
            raw.clone_from(&miss.raw);
            let missed = toll.missed(miss.usage).await.map_err(|why| Miss::not_sent(&why));
            let again = async {
                missed?;
                in_time(toll, self.after(miss, probe, request, &mut call)).await?
            };
            again.await.map_err(|miss| self.error(miss, &call))?;
        }
    }
}

/// Waits no longer than the run may ask.
async fn in_time<T>(toll: &dyn Toll, waiting: impl Future<Output = T>) -> Result<T, Miss> {
    let Some(until) = toll.until() else { return Ok(waiting.await) };
    let late = |_| Miss::not_sent(&NotSent::Budget(Reached(Cap::Time)));
    timeout_at(until.into(), waiting).await.map_err(late)
}

/// What batches need of an endpoint.
impl Endpoint {
    /// The body of a request that is not sent here.
    pub(super) fn unsent(&self, request: &ChatRequest) -> Result<Value, String> {
        let shown = Shown::of(&request.tools, self.settings.tool_schema)?;
        serde_json::from_str(&self.body(request, self.ability.plan(request), &shown)).map_err(|e| e.to_string())
    }

    /// The reply in a body that was received elsewhere, or why it is none and what it used nevertheless. What names no
    /// cost of its own is told at the price of a batch.
    pub(super) fn received(&self, request: &ChatRequest, body: &str) -> Result<ChatReply, (Fault, Usage)> {
        let most = self.batch_most(request);
        let usage = |used| self.used(self.batch_price(), used, most);
        let shown = Shown::of(&request.tools, self.settings.tool_schema).map_err(|why| (Fault::Calls(why), most))?;
        let read = self.api.reply(body).map_err(|unreadable| (unreadable.why, usage(unreadable.usage)))?;
        let usage = usage(read.used);
        let reply = read.into_reply(request, self.api.encoding(), usage, 1).map_err(|why| (why, usage))?;
        Ok(shown.restore(reply))
    }

    /// What a request of a batch may use at most, at the price of a batch.
    pub fn batch_most(&self, request: &ChatRequest) -> Usage {
        let most = |body: Value| self.most_at(self.batch_price(), &body.to_string(), request);
        self.unsent(request).map_or_else(|_| Usage::default(), most)
    }

    fn batch_price(&self) -> Option<Price> {
        self.settings.price.map(|price| price.of_batch())
    }

    pub(super) fn api(&self) -> Api {
        self.api
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The address of `path`, which stands beside the one for chats.
    pub(super) fn beside(&self, path: &str) -> reqwest::Url {
        let mut url = self.url.clone();
        let root = url.path().strip_suffix(self.api.path()).unwrap_or("/").to_owned();
        url.set_path(&format!("{root}{path}"));
        url
    }

    /// A text of the provider's without the keys, should it say them back: they must not come into outcomes and logs.
    pub(super) fn without_key(&self, text: String) -> String {
        match self.keys.clean(&text) {
            Cow::Owned(clean) => clean,
            Cow::Borrowed(_) => text,
        }
    }

    /// What must not be said back.
    pub(super) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Sends what goes with every request: the key and the like.
    pub(super) fn client(&self) -> &reqwest::Client {
        &self.client
    }
}

/// A reply with another status than success.
fn refused(status: StatusCode, pause: Option<Duration>, raw: Option<String>) -> Miss {
    let detail = format!("status {}", status.as_u16());
    let says = |words: &str| raw.as_deref().is_some_and(|raw| raw.contains(words));
    let miss = match status {
        // A pause brings no money.
        StatusCode::TOO_MANY_REQUESTS if says("insufficient_quota") => Miss::denied(ChatErrorKind::Unavailable, detail),
        StatusCode::TOO_MANY_REQUESTS => {
            let kind = ChatErrorKind::RateLimited(pause.unwrap_or_default());
            Miss { ended: Ended::Busy(pause), again: true, ..Miss::new(kind, detail) }
        }
        // A router that lets a moderator read the question first.
        StatusCode::FORBIDDEN if says("moderation") || says("flagged") => Miss::new(ChatErrorKind::Rejected, detail),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Miss::denied(ChatErrorKind::Unauthorised, detail),
        StatusCode::BAD_REQUEST
        | StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::UNPROCESSABLE_ENTITY
        | StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS => Miss::new(ChatErrorKind::Rejected, detail),
        // A router that has no provider for one of the fields.
        StatusCode::NOT_FOUND if says("No endpoints found") => Miss::new(ChatErrorKind::Rejected, detail),
        StatusCode::INTERNAL_SERVER_ERROR | StatusCode::REQUEST_TIMEOUT => {
            Miss::failed(ChatErrorKind::Provider, detail, false, pause)
        }
        // What stands before the model says that the model is not there.
        status if status.is_server_error() => Miss { down: true, ..Miss::failed(ChatErrorKind::Provider, detail, true, pause) },
        // Out of credit, no such model, moved elsewhere: says nothing of the question.
        _ => Miss::denied(ChatErrorKind::Unavailable, detail),
    };
    Miss { raw, ..miss }
}

fn network(error: &reqwest::Error) -> Miss {
    let mut detail = String::new();
    let mut source: Option<&dyn std::error::Error> = Some(error);
    // reqwest's own message names the URL only; the cause says why.
    while let Some(cause) = source {
        detail = cause.to_string();
        source = cause.source();
    }
    // An answer that takes long may be the question's doing.
    let late = error.is_timeout() && !error.is_connect();
    let kind = if error.is_timeout() { ChatErrorKind::TimedOut } else { ChatErrorKind::Network };
    Miss { down: !late, ..Miss::failed(kind, detail, late, None) }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::Map;

    use super::*;
    use crate::chat::Sampling;

    /// An endpoint with a key, for what batches need.
    pub(in crate::chat) fn endpoint(base_url: &str, api: Api) -> Endpoint {
        let settings = EndpointSettings {
            base_url: base_url.into(),
            model: "m".into(),
            api: Some(api),
            key: Some(Secret::new("a-key-of-tests")),
            concurrency: 1,
            requests_per_minute: None,
            tokens_per_minute: None,
            retries: 0,
            timeout: Duration::from_secs(5),
            give_up_after: Duration::from_secs(5),
            price: Some(Price { input: 1.0, output: 2.0, ..Price::default() }),
            sampling: Sampling::default(),
            extra: Map::new(),
            tool_schema: None,
        };
        Endpoint::new(settings).unwrap()
    }
}
