//! The engine as a `ChatModel`, so that the line knows no difference between it and an endpoint.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use mcpmill_core::{
    edge::{ChatError, ChatErrorKind, ChatModel, ChatReply, ChatRequest, Finish as ChatFinish, Format},
    record::{Message, Usage},
};
use tokio::sync::oneshot;

use crate::{Constraint, Finish, Generated, Generation, LoadOptions, LocalError, LocalModel, Role, Turn, tighten};

/// The embedded model behind the trait of all chat models. Calls at the same time are answered in lockstep.
pub struct EmbeddedModel {
    name: String,
    model: LocalModel,
}

impl EmbeddedModel {
    /// Loads a GGUF file; `name` names the model in lineage and keys. Takes a second or two.
    ///
    /// # Errors
    /// As [`LocalModel::load`].
    pub fn load(name: &str, path: &Path, options: &LoadOptions) -> Result<Self, LocalError> {
        Ok(Self { name: name.to_owned(), model: LocalModel::load(path, options)? })
    }

    fn error(&self, kind: ChatErrorKind, detail: String) -> ChatError {
        ChatError { model: self.name.clone(), kind, detail, raw: None, attempts: 1, usage: Usage::default() }
    }

    /// One generation. When the caller goes away it is given up.
    async fn generate(&self, mut generation: Generation) -> Result<Generated, Refused> {
        let cancel = Arc::new(AtomicBool::new(false));
        generation.cancel = Arc::clone(&cancel);
        let _given_up = RaiseOnDrop(cancel);
        let (reply, answer) = oneshot::channel();
        self.model.submit(generation, Box::new(move |generated| drop(reply.send(generated))));
        let gone = |_| Refused::Other(self.error(ChatErrorKind::Internal, "the thread of the model is gone".into()));
        let generated = answer.await.map_err(gone)?;
        generated.map_err(|error| {
            let kind = match error {
                LocalError::Constraint { .. } => {
                    return Refused::Constraint(self.error(ChatErrorKind::Rejected, error.to_string()));
                }
                LocalError::PromptTooLong { .. } => ChatErrorKind::Rejected,
                _ => ChatErrorKind::Internal,
            };
            Refused::Other(self.error(kind, error.to_string()))
        })
    }
}

/// Why there is no answer.
enum Refused {
    /// The constraint cannot be followed; without it there may be an answer.
    Constraint(ChatError),
    /// Anything else.
    Other(ChatError),
}

impl From<Refused> for ChatError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Constraint(error) | Refused::Other(error) => error,
        }
    }
}

/// Raises its flag when it is dropped: the generation of a cancelled future stops at the next token.
struct RaiseOnDrop(Arc<AtomicBool>);

impl Drop for RaiseOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[async_trait]
impl ChatModel for EmbeddedModel {
    fn model(&self) -> &str {
        &self.name
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatReply, ChatError> {
        if !request.tools.is_empty() {
            return Err(self.error(ChatErrorKind::Rejected, "the embedded model is asked by prompt, not with tools".into()));
        }
        let generation = generation(request);
        let generated = match self.generate(generation.clone()).await {
            // A schema that no grammar can follow is left to the caller's check.
            Err(Refused::Constraint(_)) => self.generate(Generation { constraint: Constraint::None, ..generation }).await?,
            generated => generated?,
        };
        let finish = match generated.finish {
            Finish::Stop => ChatFinish::Stop,
            Finish::Length => ChatFinish::Length,
        };
        let usage = Usage {
            input_tokens: generated.prompt_tokens as u64,
            output_tokens: generated.output_tokens as u64,
            cached_tokens: generated.cached_tokens as u64,
            ..Usage::default()
        };
        Ok(ChatReply { content: generated.text, tool_calls: Vec::new(), finish, usage, attempts: 1, repairs: Vec::new() })
    }
}

fn generation(request: &ChatRequest) -> Generation {
    let constraint = match &request.format {
        Format::Text => Constraint::None,
        Format::Line(line) => Constraint::Regex(line.clone()),
        Format::JsonSchema { schema, .. } => Constraint::JsonSchema(tighten(schema)),
    };
    Generation {
        messages: request.messages.iter().map(turn).collect(),
        constraint,
        max_tokens: request.max_tokens as usize,
        temperature: request.temperature,
        top_p: request.top_p,
        seed: request.seed,
        prefix_slot: Some(request.prompt_kind.clone()).filter(|kind| !kind.is_empty()),
        cancel: Arc::default(),
    }
}

fn turn(message: &Message) -> Turn {
    let (role, content) = match message {
        Message::System { content } => (Role::System, content.clone()),
        Message::User { content } => (Role::User, content.clone()),
        Message::Assistant { content, .. } => (Role::Assistant, content.clone().unwrap_or_default()),
        Message::Tool { content, .. } => (Role::User, content.clone()),
    };
    Turn { role, content }
}
