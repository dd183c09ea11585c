//! One answer: what the model reads first, then token by token within the constraint.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::chat::Turn;
use crate::constraint::{Constraint, Guide};
use crate::engine::Engine;
use crate::error::LocalError;
use crate::prefix::chunk_ends;
use crate::sample::Sampler;

/// A request for one answer.
#[derive(Debug, Clone)]
pub struct Generation {
    /// The conversation so far. Without a leading system turn the model's own default is used.
    pub messages: Vec<Turn>,
    /// What the answer must look like.
    pub constraint: Constraint,
    /// The answer's longest length in tokens; the context may end it earlier.
    pub max_tokens: usize,
    /// 0 always takes the likeliest token; higher is more varied.
    pub temperature: f64,
    /// Only the likeliest tokens that together have this share of the probability are drawn; 1 admits all.
    pub top_p: f64,
    /// Equal requests with equal seeds get equal answers. Without meaning at temperature 0.
    pub seed: u64,
    /// The kind of prompt. Requests of one kind that begin alike share the work on their common turns; the answer
    /// is the same with and without it.
    pub prefix_slot: Option<String>,
    /// Raised by another thread to give the generation up.
    pub cancel: Arc<AtomicBool>,
}

impl Default for Generation {
    fn default() -> Self {
        Generation {
            messages: Vec::new(),
            constraint: Constraint::None,
            max_tokens: 256,
            temperature: 0.,
            top_p: 1.,
            seed: 0,
            prefix_slot: None,
            cancel: Arc::default(),
        }
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model closed its turn, or the constraint admits nothing more.
    Stop,
    /// The token limit or the context was reached; a constrained answer is likely to be incomplete.
    Length,
}

/// An answer and what it cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// The answer.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the rendered conversation.
    pub prompt_tokens: usize,
    /// How many of them were computed by earlier requests.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub output_tokens: usize,
    /// How many of them the constraint left no choice about.
    pub forced_tokens: usize,
}

/// An answer in the making. It knows its own tokens only; the keys and values of the model are the caller's.
pub(crate) struct Answer {
    request: Generation,
    guide: Guide,
    sampler: Sampler,
    prompt_tokens: usize,
    tokens: Vec<u32>,
    forced: usize,
    /// Tokens the answer may have.
    room: usize,
    /// How many of its tokens the model has read.
    read: usize,
}

/// What the model reads before it writes.
pub(crate) struct Beginning {
    /// The prompt and what the answer must begin with.
    pub tokens: Vec<u32>,
    /// Where its chunks end, see [`chunk_ends`].
    pub ends: Vec<usize>,
}

impl Answer {
    /// Renders the prompt and starts to follow the constraint. The answer may be complete already, see
    /// [`Answer::end`].
    pub(crate) fn begin(engine: &Engine, request: Generation) -> Result<(Answer, Beginning), LocalError> {
        let prompt = engine.chat.render(&request.messages, &engine.vocabulary)?;
        let prompt_tokens = prompt.tokens.len();
        if prompt_tokens >= engine.max_context {
            return Err(LocalError::PromptTooLong { tokens: prompt_tokens, limit: engine.max_context - 1 });
        }
        let mut answer = Answer {
            guide: engine.grammars.guide(&request.constraint)?,
            sampler: Sampler::new(request.temperature, request.top_p, request.seed),
            prompt_tokens,
            tokens: Vec::new(),
            forced: 0,
            room: request.max_tokens.min(engine.max_context - prompt_tokens),
            read: 0,
            request,
        };
        answer.push_forced()?;
        answer.read = answer.tokens.len();
        let mut tokens = prompt.tokens;
        tokens.extend(&answer.tokens);
        let ends = chunk_ends(&prompt.turns, tokens.len());
        Ok((answer, Beginning { tokens, ends }))
    }

    /// Takes the next token by its scores, and what must follow it. `Some` if that ends the answer, else there are
    /// [`Answer::unread`] tokens.
    pub(crate) fn choose(&mut self, engine: &Engine, scores: &mut [f32]) -> Result<Option<Finish>, LocalError> {
        if self.cancelled() {
            return Err(LocalError::Cancelled);
        }
        self.guide.mask(scores)?;
        let Some(token) = self.sampler.pick(scores).filter(|token| !engine.vocabulary.is_control(*token)) else {
            return Ok(Some(Finish::Stop));
        };
        self.read = self.tokens.len();
        self.guide.accept(token)?;
        self.tokens.push(token);
        self.push_forced()?;
        Ok(self.end())
    }

    /// The tokens that the model must read before it can go on.
    pub(crate) fn unread(&self) -> &[u32] {
        &self.tokens[self.read..]
    }

    /// The caller's flag.
    pub(crate) fn cancel(&self) -> &AtomicBool {
        &self.request.cancel
    }

    pub(crate) fn cancelled(&self) -> bool {
        self.request.cancel.load(Ordering::Relaxed)
    }

    /// The kind of prompt.
    pub(crate) fn prefix_slot(&self) -> Option<&str> {
        self.request.prefix_slot.as_deref()
    }

    /// The answer in its final form; `cached` of the tokens of its beginning were known.
    pub(crate) fn finished(&self, engine: &Engine, finish: Finish, cached: usize) -> Generated {
        Generated {
            text: engine.vocabulary.decode(&self.tokens),
            finish,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: cached.min(self.prompt_tokens),
            output_tokens: self.tokens.len(),
            forced_tokens: self.forced,
        }
    }

    /// Makes the next step of the model fail.
    #[cfg(test)]
    pub(crate) fn add_impossible_token(&mut self) {
        self.tokens.push(u32::MAX);
    }

    /// Appends what must follow, as far as there is room.
    fn push_forced(&mut self) -> Result<(), LocalError> {
        let forced = self.guide.forced()?;
        self.forced += forced.len().min(self.room.saturating_sub(self.tokens.len()));
        self.tokens.extend(forced);
        Ok(())
    }

    /// Whether the answer is complete or full; cuts what does not fit.
    pub(crate) fn end(&mut self) -> Option<Finish> {
        if self.tokens.len() > self.room {
            self.tokens.truncate(self.room);
            return Some(Finish::Length);
        }
        if self.guide.finished() {
            return Some(Finish::Stop);
        }
        (self.tokens.len() == self.room).then_some(Finish::Length)
    }
}
