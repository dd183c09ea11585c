//! The loop of a model and its tools: ask, run the calls, tell their answers, until the model answers in words or a
//! limit is reached.
//!
//! It does no IO of its own: the model is asked through [`RecordedChat`], tools through a [`ToolBelt`]. What differs
//! between its users is handed in: how an answer becomes text (the belt), what a failed model call is worth (the
//! `retry` of [`Manner`]), whether arguments are checked before a tool sees them, how much of an answer is told.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::{
    edge::{ChatError, ChatErrorKind, ChatReply, ChatRequest, Finish, Format, RecordedChat, Replied, ToolSpec},
    record::{Message, ToolCall, Usage},
    schema::Schema,
    text::clipped,
};

/// Runs the calls of a model.
#[async_trait]
pub trait ToolBelt: Send + Sync {
    /// Runs one call of a tool that was offered. A tool that fails is an answer too.
    ///
    /// # Errors
    /// No call can be run any more, in words: the conversation ends.
    async fn run(&self, call: &ToolCall) -> Result<ToolReply, String>;
}

/// What the model is told of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolReply {
    /// The text of the tool message.
    pub text: String,
    /// Whether the tool failed; for the notes only, the model reads the text.
    pub failed: bool,
}

/// How far a conversation may go. The time is that of the whole conversation; tokens are prompt and generated ones,
/// stored replies too, so that a replay ends where the run did.
#[derive(Clone, Copy, Debug)]
pub struct AgentLimits {
    /// Replies of the model.
    pub turns: u32,
    /// Tokens; reached before the next reply is asked for.
    pub tokens: Option<u64>,
    /// Wall time of all.
    pub time: Option<Duration>,
    /// US dollars; reached before the next reply is asked for.
    pub cost: Option<f64>,
    /// Turns in a row that make the same calls.
    pub repeats: Option<u32>,
    /// Wall time of one reply of the model; a longer one is a failed one.
    pub reply_time: Option<Duration>,
    /// Wall time of one call of a tool; a longer one is told as a failure.
    pub call_time: Option<Duration>,
    /// Characters of an answer that the model is told.
    pub answer_chars: usize,
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self {
            turns: 30,
            tokens: None,
            time: None,
            cost: None,
            repeats: Some(3),
            reply_time: None,
            call_time: Some(Duration::from_secs(60)),
            answer_chars: 20_000,
        }
    }
}

/// What a failed reply is worth: the pause after which it is asked for again, given how many failed in a row, or
/// `None` to end the conversation.
pub type Retry<'a> = dyn Fn(&ChatError, u32) -> Option<Duration> + Sync + 'a;

/// How the model is asked and its calls are run.
#[derive(Clone, Copy)]
pub struct Manner<'a> {
    /// 0 is greedy.
    pub temperature: f64,
    /// Nucleus sampling, 1 for all.
    pub top_p: f64,
    /// Most tokens of one reply.
    pub max_tokens: u32,
    /// Seed of the first turn; every further one has the next.
    pub seed: u64,
    /// The kind of prompt, for caches of common prefixes.
    pub prompt_kind: &'a str,
    /// Whether arguments are held to the schema that was offered before the tool sees them.
    pub checks_arguments: bool,
    /// Whether the calls of one turn run at once; their answers stay in order.
    pub at_once: bool,
    /// What a failed reply is worth; `None` ends the conversation at the first.
    pub retry: Option<&'a Retry<'a>>,
}

/// A conversation to go on with.
pub struct Task<'a> {
    /// The model.
    pub model: &'a RecordedChat,
    /// What runs its calls.
    pub tools: &'a dyn ToolBelt,
    /// The tools it is offered, by the names it knows them under.
    pub offered: &'a [ToolSpec],
    /// What was said so far.
    pub messages: Vec<Message>,
    /// How it is asked.
    pub manner: Manner<'a>,
}

/// A limit of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Replies of the model.
    Turns,
    /// Tokens.
    Tokens,
    /// Wall time.
    Time,
    /// US dollars.
    Cost,
    /// The same calls over and over.
    Repeats,
}

/// How a conversation ended.
#[derive(Clone, Debug)]
pub enum Ended {
    /// The model answered in words. One that was cut off says so in the note of its turn.
    Answer,
    /// A limit was reached.
    Limit(Limit),
    /// The model could not be asked, or its answer was withheld.
    Failed(ChatError),
    /// No call can be run any more.
    ToolsFailed(String),
    /// Stopped from outside.
    Cancelled,
}

/// What happened in one turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurnNote {
    /// Why the reply ended; `None` where none came.
    pub finish: Option<Finish>,
    /// What the reply used, stored or live.
    pub usage: Usage,
    /// Whether it was asked for just now.
    pub live: bool,
    /// Replies that failed before it.
    pub retries: u32,
    /// Calls in it.
    pub calls: u32,
    /// Of these, calls of a tool that was not offered.
    pub unknown: u32,
    /// Calls whose arguments do not keep the schema.
    pub invalid: u32,
    /// Calls that the tool failed on, or did not answer in time.
    pub failed: u32,
    /// Answers of which the model was told a part.
    pub cut: u32,
}

/// A conversation that has ended.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// All messages, those it began with too. Where the time was up or it was stopped, the last calls may be without
    /// answers.
    pub messages: Vec<Message>,
    /// How it ended.
    pub ended: Ended,
    /// What all replies used.
    pub usage: Usage,
    /// What the live ones used, and live failures.
    pub paid: Usage,
    /// Requests that were sent.
    pub attempts: u32,
    /// One a turn, in order.
    pub turns: Vec<TurnNote>,
}

/// Lets the model and its tools talk until the end.
pub async fn converse(task: Task<'_>, limits: &AgentLimits, cancel: &CancellationToken) -> Conversation {
    let checkers = task.offered.iter().map(|spec| (spec.name.as_str(), Schema::compile(&spec.parameters).ok())).collect();
    let mut talk = Talk {
        model: task.model,
        tools: task.tools,
        offered: task.offered,
        manner: task.manner,
        limits,
        deadline: limits.time.map(|time| Instant::now() + time),
        checkers,
        said: Conversation {
            messages: task.messages,
            ended: Ended::Cancelled,
            usage: Usage::default(),
            paid: Usage::default(),
            attempts: 0,
            turns: Vec::new(),
        },
        same: 0,
    };
    let ended = cancel.run_until_cancelled(talk.until_the_end()).await;
    if let Some(ended) = ended {
        talk.said.ended = ended;
    }
    talk.said
}

/// A conversation while it goes on.
struct Talk<'a> {
    model: &'a RecordedChat,
    tools: &'a dyn ToolBelt,
    offered: &'a [ToolSpec],
    manner: Manner<'a>,
    limits: &'a AgentLimits,
    deadline: Option<Instant>,
    /// By name; a schema that cannot be compiled checks nothing.
    checkers: BTreeMap<&'a str, Option<Schema>>,
    said: Conversation,
    /// Turns in a row that made the same calls as the one before.
    same: u32,
}

/// What becomes of one call.
enum Ran {
    Told(ToolReply),
    Unknown(String),
    Invalid(String),
    Late(Duration),
}

impl Talk<'_> {
    async fn until_the_end(&mut self) -> Ended {
        loop {
            if let Some(limit) = self.reached() {
                return Ended::Limit(limit);
            }
            self.said.turns.push(TurnNote::default());
            let reply = match self.reply().await {
                Ok(reply) => reply,
                Err(ended) => return ended,
            };
            let calls = reply.tool_calls.clone();
            let content = Some(reply.content).filter(|text| !text.is_empty() || calls.is_empty());
            self.repeated(&calls);
            self.said.messages.push(Message::Assistant { content, tool_calls: calls.clone() });
            if calls.is_empty() {
                return Ended::Answer;
            }
            if let Err(ended) = self.run_all(&calls).await {
                return ended;
            }
        }
    }

    /// The limit that lets no further reply be asked for.
    fn reached(&self) -> Option<Limit> {
        let Usage { input_tokens, output_tokens, cost, .. } = self.said.usage;
        let limits = self.limits;
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            Some(Limit::Time)
        } else if limits.repeats.is_some_and(|most| self.same >= most.max(1)) {
            Some(Limit::Repeats)
        } else if self.said.turns.len() >= limits.turns as usize {
            Some(Limit::Turns)
        } else if limits.tokens.is_some_and(|most| input_tokens + output_tokens >= most) {
            Some(Limit::Tokens)
        } else if limits.cost.is_some_and(|most| cost >= most) {
            Some(Limit::Cost)
        } else {
            None
        }
    }

    /// Counts turns in a row that make the same calls.
    fn repeated(&mut self, calls: &[ToolCall]) {
        let before = self.said.messages.iter().rev().map(Message::tool_calls).find(|calls| !calls.is_empty()).unwrap_or_default();
        let same = !calls.is_empty() && before.iter().map(|call| &call.function).eq(calls.iter().map(|call| &call.function));
        self.same = if same { self.same + 1 } else { 0 };
    }

    fn note(&mut self) -> &mut TurnNote {
        if self.said.turns.is_empty() {
            self.said.turns.push(TurnNote::default());
        }
        let last = self.said.turns.len() - 1;
        &mut self.said.turns[last]
    }

    /// The next reply, asked for again as often as the manner says.
    async fn reply(&mut self) -> Result<ChatReply, Ended> {
        let turn = self.said.turns.len() as u64 - 1;
        let request = ChatRequest {
            messages: self.said.messages.clone(),
            tools: self.offered.to_vec(),
            format: Format::Text,
            temperature: self.manner.temperature,
            top_p: self.manner.top_p,
            max_tokens: self.manner.max_tokens,
            seed: self.manner.seed.wrapping_add(turn),
            prompt_kind: self.manner.prompt_kind.to_owned(),
        };
        loop {
            let error = match self.ask(&request).await? {
                Ok(Replied { reply, live }) => return self.replied(reply, live),
                Err(error) => error,
            };
            self.said.paid += error.usage;
            self.said.attempts += error.attempts;
            self.note().retries += 1;
            let failed = self.note().retries;
            let pause = self.manner.retry.and_then(|retry| retry(&error, failed)).ok_or(Ended::Failed(error))?;
            let until = Instant::now() + pause;
            if self.deadline.is_some_and(|deadline| deadline <= until) {
                return Err(Ended::Limit(Limit::Time));
            }
            sleep_until(until).await;
        }
    }

    /// One try. A reply that takes too long is a failed one; past the end of all it ends the conversation.
    async fn ask(&self, request: &ChatRequest) -> Result<Result<Replied, ChatError>, Ended> {
        let Some((until, whole)) = self.until(self.limits.reply_time) else { return Ok(self.model.chat(request).await) };
        match timeout_at(until, self.model.chat(request)).await {
            Ok(answer) => Ok(answer),
            Err(_) if whole => Err(Ended::Limit(Limit::Time)),
            Err(_) => Ok(Err(self.error(ChatErrorKind::TimedOut, "no reply in time"))),
        }
    }

    fn error(&self, kind: ChatErrorKind, detail: &str) -> ChatError {
        let model = self.model.model().to_owned();
        ChatError { model, kind, detail: detail.to_owned(), raw: None, attempts: 0, usage: Usage::default() }
    }

    /// When something that may take `most` has to be done, and whether that is the end of all.
    fn until(&self, most: Option<Duration>) -> Option<(Instant, bool)> {
        let own = most.map(|most| Instant::now() + most);
        match (own, self.deadline) {
            (Some(own), Some(deadline)) if own < deadline => Some((own, false)),
            (_, Some(deadline)) => Some((deadline, true)),
            (own, None) => own.map(|own| (own, false)),
        }
    }

    fn replied(&mut self, reply: ChatReply, live: bool) -> Result<ChatReply, Ended> {
        self.said.usage += reply.usage;
        if live {
            self.said.paid += reply.usage;
            self.said.attempts += reply.attempts;
        }
        let calls = u32::try_from(reply.tool_calls.len()).unwrap_or(u32::MAX);
        let (finish, usage) = (reply.finish, reply.usage);
        let note = self.note();
        *note = TurnNote { finish: Some(finish), usage, live, calls, retries: note.retries, ..TurnNote::default() };
        if finish == Finish::Filtered {
            return Err(Ended::Failed(self.error(ChatErrorKind::Rejected, "the provider withheld the answer")));
        }
        Ok(reply)
    }

    /// Runs the calls of a turn, and tells their answers in order.
    async fn run_all(&mut self, calls: &[ToolCall]) -> Result<(), Ended> {
        if self.manner.at_once {
            let all = futures::future::join_all(calls.iter().map(|call| self.run(call))).await;
            for (call, ran) in calls.iter().zip(all) {
                self.tell(call, ran?);
            }
        } else {
            for call in calls {
                let ran = self.run(call).await?;
                self.tell(call, ran);
            }
        }
        Ok(())
    }

    async fn run(&self, call: &ToolCall) -> Result<Ran, Ended> {
        let Some(checker) = self.checkers.get(call.function.name.as_str()) else {
            let known: Vec<&str> = self.checkers.keys().copied().collect();
            return Ok(Ran::Unknown(clipped(&known.join(", "), self.limits.answer_chars)));
        };
        if let Some(checker) = checker.as_ref().filter(|_| self.manner.checks_arguments) {
            let faults = checker.faults(&Value::Object(call.function.arguments.clone()), 3);
            if !faults.is_empty() {
                return Ok(Ran::Invalid(faults.join("; ")));
            }
        }
        let ran = match self.until(self.limits.call_time) {
            None => self.tools.run(call).await,
            Some((until, whole)) => match timeout_at(until, self.tools.run(call)).await {
                Ok(ran) => ran,
                Err(_) if whole => return Err(Ended::Limit(Limit::Time)),
                Err(_) => return Ok(Ran::Late(self.limits.call_time.unwrap_or_default())),
            },
        };
        ran.map(Ran::Told).map_err(Ended::ToolsFailed)
    }

    fn tell(&mut self, call: &ToolCall, ran: Ran) {
        let name = &call.function.name;
        let most = self.limits.answer_chars;
        let note = self.note();
        let text = match ran {
            Ran::Told(reply) => {
                note.failed += u32::from(reply.failed);
                reply.text
            }
            Ran::Unknown(known) => {
                note.unknown += 1;
                format!("Error: there is no tool `{}`; there are {known}", clipped(name, 100))
            }
            Ran::Invalid(faults) => {
                note.invalid += 1;
                format!("Error: the arguments do not fit: {faults}")
            }
            Ran::Late(time) => {
                note.failed += 1;
                format!("Error: no answer within {} s", time.as_secs_f64())
            }
        };
        let length = text.chars().count();
        let content = if length > most {
            note.cut += 1;
            format!("{}\n(cut: the first {most} of {length} characters)", clipped(&text, most))
        } else {
            text
        };
        self.said.messages.push(Message::Tool { tool_call_id: call.id.clone(), name: name.clone(), content });
    }
}

#[cfg(test)]
mod tests;
