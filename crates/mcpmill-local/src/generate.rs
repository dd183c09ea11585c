//! One answer: render, prefill, then token by token within the constraint.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::chat::Turn;
use crate::constraint::{Constraint, Guide};
use crate::engine::Engine;
use crate::error::LocalError;
use crate::prefix::{Slot, chunk_ends};
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

/// An answer in the making.
struct Answer<'a> {
    engine: &'a Engine,
    request: &'a Generation,
    guide: Guide,
    sampler: Sampler,
    tokens: Vec<u32>,
    forced: usize,
    /// Tokens the answer may have.
    room: usize,
}

/// Produces one answer in a slot that is the caller's for the time being.
pub(crate) fn generate(engine: &Engine, request: &Generation, slot: &mut Slot) -> Result<Generated, LocalError> {
    let prompt = engine.chat.render(&request.messages, &engine.vocabulary)?;
    let prompt_tokens = prompt.tokens.len();
    if prompt_tokens >= engine.max_context {
        return Err(LocalError::PromptTooLong { tokens: prompt_tokens, limit: engine.max_context - 1 });
    }
    let mut answer = Answer {
        engine,
        request,
        guide: engine.grammars.guide(&request.constraint)?,
        sampler: Sampler::new(request.temperature, request.top_p, request.seed),
        tokens: Vec::new(),
        forced: 0,
        room: request.max_tokens.min(engine.max_context - prompt_tokens),
    };
    let mut sequence = prompt.tokens;
    let mut cached_tokens = 0;
    answer.push_forced()?;
    let mut finish = answer.end();
    if finish.is_none() {
        sequence.extend(&answer.tokens);
        let ends = chunk_ends(&prompt.turns, sequence.len());
        let (hidden, cached) = slot.prefill(&engine.model, &sequence, &ends, &request.cancel)?;
        cached_tokens = cached.min(prompt_tokens);
        finish = Some(answer.decode(slot, hidden)?);
    }
    Ok(Generated {
        text: engine.vocabulary.decode(&answer.tokens),
        finish: finish.unwrap_or(Finish::Stop),
        prompt_tokens,
        cached_tokens,
        output_tokens: answer.tokens.len(),
        forced_tokens: answer.forced,
    })
}

impl Answer<'_> {
    fn decode(&mut self, slot: &mut Slot, mut hidden: candle_core::Tensor) -> Result<Finish, LocalError> {
        loop {
            if self.request.cancel.load(Ordering::Relaxed) {
                return Err(LocalError::Cancelled);
            }
            let mut logits = self.engine.model.logits(&hidden)?;
            self.guide.mask(&mut logits)?;
            let Some(token) = self.sampler.pick(&logits).filter(|token| !self.engine.vocabulary.is_control(*token)) else {
                return Ok(Finish::Stop);
            };
            let start = self.tokens.len();
            self.guide.accept(token)?;
            self.tokens.push(token);
            self.push_forced()?;
            if let Some(finish) = self.end() {
                return Ok(finish);
            }
            hidden = self.engine.model.step(&mut [(&mut slot.kv, &self.tokens[start..])])?;
        }
    }

    /// Appends what must follow, as far as there is room.
    fn push_forced(&mut self) -> Result<(), LocalError> {
        let forced = self.guide.forced()?;
        self.forced += forced.len().min(self.room.saturating_sub(self.tokens.len()));
        self.tokens.extend(forced);
        Ok(())
    }

    /// Whether the answer is complete or full; cuts what does not fit.
    fn end(&mut self) -> Option<Finish> {
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
