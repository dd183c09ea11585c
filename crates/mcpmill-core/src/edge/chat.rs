//! Chat models: one request shape for every endpoint and for the embedded model.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::{
    account::Reached,
    edge::{Class, Exchange, ExchangeError, ExchangeKind, NotSent, Paid, Recorder, Toll},
    record::{Message, ToolCall, Usage, Wait},
    reply::Repair,
};

/// What a model is asked. Everything that can change the answer is here, so that its hash is the
/// key under which the answer is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatRequest {
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// Tools the model may call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolSpec>,
    /// What the answer must look like.
    pub format: Format,
    /// 0 is greedy.
    pub temperature: f64,
    /// Nucleus sampling, 1 for all.
    pub top_p: f64,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// Same seed, same answer, where the model can promise that.
    pub seed: u64,
    /// The kind of prompt, for caches of common prefixes; no part of the answer's identity.
    #[serde(skip)]
    pub prompt_kind: String,
}

/// A tool as offered to a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// A name every provider accepts (`[A-Za-z0-9_-]{1,64}`).
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
}

/// What an answer must look like. A model that can bind its decoding does so; for others the
/// caller checks, and a mismatch is a failure like any other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Anything.
    Text,
    /// One line that matches this regular expression as a whole.
    Line(String),
    /// A JSON value that validates against the schema.
    JsonSchema {
        /// A name for the wire format.
        name: String,
        /// The schema.
        schema: Value,
    },
}

/// What a model answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatReply {
    /// Text, empty when there is none.
    pub content: String,
    /// Calls, in order.
    #[serde(default)]
    pub tool_calls: Vec<ToolCall>,
    /// Why it stopped.
    pub finish: Finish,
    /// What it used.
    pub usage: Usage,
    /// Requests it took, retries included.
    #[serde(default = "one")]
    pub attempts: u32,
    /// What had to be repaired in calls: in their arguments, and in those that stand for a bound format.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repairs: Vec<Repair>,
}

fn one() -> u32 {
    1
}

/// Why a model stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// It was done, or wants its tools called.
    Stop,
    /// It reached the token limit: the answer is cut off.
    Length,
    /// The provider withheld the answer.
    Filtered,
}

/// A model that answers chat requests.
#[async_trait]
pub trait ChatModel: Send + Sync {
    /// What names the model in lineage and in keys: provider and model, or file and hash.
    fn model(&self) -> &str;

    /// What one answer may use at most, all tries included; nothing for a model that costs nothing.
    fn at_most(&self, _request: &ChatRequest) -> Usage {
        Usage::default()
    }

    /// One answer.
    ///
    /// # Errors
    /// The endpoint could not be asked, refused, or answered something that is no chat reply.
    async fn chat(&self, request: &ChatRequest) -> Result<ChatReply, ChatError>;

    /// One answer, asking `toll` before every try. A model that makes tries of its own, or lets calls wait for each
    /// other, asks when one is about to be sent; others ask once, for all.
    ///
    /// # Errors
    /// As [`ChatModel::chat`]; also when the toll forbids it.
    async fn chat_paid(&self, request: &ChatRequest, toll: &dyn Toll) -> Result<ChatReply, ChatError> {
        toll.before(self.at_most(request)).await.map_err(|not_sent| ChatError::not_sent(self.model(), &not_sent))?;
        self.chat(request).await
    }
}

/// A model did not answer.
#[derive(Clone, Debug, Error, Serialize, Deserialize)]
#[error("failed to get an answer of model `{model}`: {detail}")]
pub struct ChatError {
    /// The model.
    pub model: String,
    /// What kind of failure it was.
    pub kind: ChatErrorKind,
    /// What happened, in words; never a header or key.
    pub detail: String,
    /// The raw reply, where there was one.
    pub raw: Option<String>,
    /// Requests it took, retries included.
    pub attempts: u32,
    /// What they used nevertheless.
    #[serde(default)]
    pub usage: Usage,
}

/// Kinds of failure of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChatErrorKind {
    /// No connection, or it broke.
    Network,
    /// No answer in time.
    TimedOut,
    /// The provider asked for a pause.
    RateLimited(std::time::Duration),
    /// The provider failed (5xx).
    Provider,
    /// Key missing or refused.
    Unauthorised,
    /// The endpoint does not serve the model: it is down for long, no credit, no such model, another page.
    Unavailable,
    /// The request was refused (400, 413, 422), for instance a format the endpoint does not know.
    Rejected,
    /// The model's reply cannot be read, or is too large.
    Malformed,
    /// Replaying, and the answer was never recorded.
    NotRecorded,
    /// The run may use no more; the question was not asked.
    BudgetReached,
    /// The question was written down for a batch; its answer is still to come.
    Pending,
    /// The embedded model or the store failed.
    Internal,
}

impl ChatError {
    /// A question that was not sent.
    pub fn not_sent(model: &str, why: &NotSent) -> Self {
        let kind = match why {
            NotSent::Budget(_) => ChatErrorKind::BudgetReached,
            NotSent::Store(_) => ChatErrorKind::Internal,
        };
        let (model, detail) = (model.to_owned(), why.to_string());
        Self { model, kind, detail, raw: None, attempts: 0, usage: Usage::default() }
    }

    /// Whether the model answered, and would answer so again: it refused the request, or its reply
    /// cannot be read.
    pub fn is_final(&self) -> bool {
        matches!(self.kind, ChatErrorKind::Rejected | ChatErrorKind::Malformed)
    }

    /// What the question waits for when it says nothing of the question that there is no answer: it will be asked when
    /// the run goes on.
    pub fn waits(&self) -> Option<Wait> {
        match self.kind {
            ChatErrorKind::BudgetReached => Some(Wait::Budget),
            ChatErrorKind::Pending => Some(Wait::Batch),
            ChatErrorKind::Unauthorised | ChatErrorKind::Unavailable => Some(Wait::Model),
            _ => None,
        }
    }

    /// Whether another try makes sense.
    pub fn class(&self) -> Class {
        match self.kind {
            ChatErrorKind::RateLimited(pause) => Class::RateLimited(pause),
            ChatErrorKind::Network | ChatErrorKind::TimedOut | ChatErrorKind::Provider => Class::Transient,
            _ => Class::Permanent,
        }
    }
}

/// A reply, and whether it was paid for just now.
#[derive(Clone, Debug, PartialEq)]
pub struct Replied {
    /// The reply.
    pub reply: ChatReply,
    /// False when it came from the store.
    pub live: bool,
}

/// A model whose every answer goes through the exchange store.
#[derive(Clone)]
pub struct RecordedChat {
    model: Arc<dyn ChatModel>,
    recorder: Arc<Recorder>,
    put_off: Option<Arc<PutOff>>,
}

/// Takes a question, by the key of its exchange, to be answered later, and says where it is now. What is new it takes only
/// when what that may use at most can be set aside.
pub type PutOff = dyn Fn(&str, &ChatRequest, SetAside<'_>) -> Result<String, NotPutOff> + Send + Sync;

/// Sets aside what a question may use at most.
pub type SetAside<'a> = &'a dyn Fn(Usage) -> Result<(), Reached>;

/// Why a question cannot be put off.
#[derive(Clone, Debug, PartialEq)]
pub enum NotPutOff {
    /// The run may use no more.
    Budget(Reached),
    /// It cannot be written down.
    Failed(String),
}

impl RecordedChat {
    /// Records `model` with `recorder`.
    pub fn new(model: Arc<dyn ChatModel>, recorder: Arc<Recorder>) -> Self {
        Self { model, recorder, put_off: None }
    }

    /// Asks nobody: what is not stored is put off.
    #[must_use]
    pub fn putting_off(mut self, put_off: Arc<PutOff>) -> Self {
        self.put_off = Some(put_off);
        self
    }

    /// A question as the exchange store knows it.
    pub fn question(model: &str, request: &ChatRequest) -> Value {
        serde_json::json!({ "model": model, "request": request })
    }

    /// What names the model.
    pub fn model(&self) -> &str {
        self.model.model()
    }

    /// One live answer past the store, to measure how fast the model is. Nothing may use its text.
    ///
    /// # Errors
    /// As [`ChatModel::chat`].
    pub async fn probe(&self, request: &ChatRequest) -> Result<ChatReply, ChatError> {
        self.model.chat(request).await
    }

    /// One answer, stored or live.
    ///
    /// # Errors
    /// As [`ChatModel::chat`]; also when replaying and nothing is recorded.
    pub async fn chat(&self, request: &ChatRequest) -> Result<Replied, ChatError> {
        let fail = |kind, detail: String| {
            let model = self.model().to_owned();
            ChatError { model, kind, detail, raw: None, attempts: 0, usage: Usage::default() }
        };
        let question = Self::question(self.model(), request);
        let settled = |told: &serde_json::Value| told.get("refused").is_none();
        if let Some(put_off) = &self.put_off {
            let stored = self.recorder.stored(ExchangeKind::Chat, &question, self.model(), settled).await;
            return match stored.map_err(|e| fail(ChatErrorKind::Internal, e.to_string()))? {
                Some(reply) => self.told(reply, false),
                None => {
                    let set_aside = |at_most| self.recorder.set_aside(at_most);
                    match put_off(&Exchange::key(ExchangeKind::Chat, &question), request, &set_aside) {
                        Ok(place) => Err(fail(ChatErrorKind::Pending, place)),
                        Err(NotPutOff::Budget(reached)) => Err(fail(ChatErrorKind::BudgetReached, reached.to_string())),
                        Err(NotPutOff::Failed(why)) => Err(fail(ChatErrorKind::Internal, why)),
                    }
                }
            };
        }
        let live = |toll: Arc<dyn Toll>| async move {
            let answer = self.model.chat_paid(request, &*toll).await;
            let (usage, attempts) = match &answer {
                Ok(reply) => (reply.usage, reply.attempts),
                Err(error) => (error.usage, error.attempts),
            };
            let told = match answer {
                Ok(reply) => Ok(serde_json::to_value(&reply)),
                // Also an answer: a replay must meet it again. Another run may ask anew.
                Err(error) if error.is_final() => Ok(serde_json::to_value(Refusal { refused: error })),
                Err(error) => Err(error),
            };
            let told = told.and_then(|told| told.map_err(|e| fail(ChatErrorKind::Internal, e.to_string())));
            Paid { told, usage, attempts }
        };
        let asked = self.recorder.ask_paid(ExchangeKind::Chat, &question, settled, self.model(), live).await;
        let recorded = asked.map_err(|error| match error {
            ExchangeError::Live(error) => error,
            ExchangeError::NotRecorded { .. } => fail(ChatErrorKind::NotRecorded, error.to_string()),
            ExchangeError::Store(error) => fail(ChatErrorKind::Internal, error.to_string()),
        })?;
        self.told(recorded.reply, recorded.live)
    }

    /// What a reply of the store says.
    fn told(&self, stored: Value, live: bool) -> Result<Replied, ChatError> {
        let unreadable = |e: serde_json::Error| ChatError {
            model: self.model().to_owned(),
            kind: ChatErrorKind::Internal,
            detail: format!("stored reply cannot be read: {e}"),
            raw: None,
            attempts: 0,
            usage: Usage::default(),
        };
        if stored.get("refused").is_some() {
            let Refusal { refused } = serde_json::from_value(stored).map_err(unreadable)?;
            return Err(if live { refused } else { ChatError { attempts: 0, usage: Usage::default(), ..refused } });
        }
        Ok(Replied { reply: serde_json::from_value(stored).map_err(unreadable)?, live })
    }
}

/// A refusal as it is recorded: what the store keeps for a question that a model would not answer.
#[derive(Serialize, Deserialize)]
pub struct Refusal {
    /// Why not.
    pub refused: ChatError,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::edge::{Mode, exchange::tests::Memory};

    /// Refuses everything and counts.
    struct Refuses(AtomicU32);

    #[async_trait]
    impl ChatModel for Refuses {
        fn model(&self) -> &str {
            "refuses"
        }

        async fn chat(&self, _: &ChatRequest) -> Result<ChatReply, ChatError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let detail = "too long".to_owned();
            Err(ChatError {
                model: "refuses".into(),
                kind: ChatErrorKind::Rejected,
                detail,
                raw: Some("400".into()),
                attempts: 1,
                usage: Usage::default(),
            })
        }
    }

    #[tokio::test]
    async fn a_refusal_is_met_again_in_replay_and_asked_anew_otherwise() {
        let model = Arc::new(Refuses(AtomicU32::new(0)));
        let store = Arc::new(Memory::default());
        let request = ChatRequest {
            messages: vec![Message::user("q")],
            tools: Vec::new(),
            format: Format::Text,
            temperature: 0.0,
            top_p: 1.0,
            max_tokens: 1,
            seed: 1,
            prompt_kind: String::new(),
        };
        for (mode, asked, attempts) in [(Mode::Reuse, 1, 1), (Mode::Reuse, 2, 1), (Mode::Replay, 2, 0)] {
            let recorder = Arc::new(Recorder::new(store.clone(), mode));
            let error = RecordedChat::new(model.clone(), recorder).chat(&request).await.unwrap_err();
            assert_eq!((error.kind, error.detail.as_str(), error.attempts), (ChatErrorKind::Rejected, "too long", attempts));
            assert_eq!((error.raw.as_deref(), model.0.load(Ordering::Relaxed)), (Some("400"), asked), "{mode:?}");
        }
    }
}
