//! Keeps the model inside a grammar (llguidance): masks what must not follow and inserts what must.

use std::fmt;

use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use toktrie::InferenceCapabilities;

use crate::error::{LoadProblem, LocalError};
use crate::gguf::malformed;
use crate::tokenizer::Vocabulary;

/// What an answer must look like.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Constraint {
    /// Anything.
    #[default]
    None,
    /// The whole answer matches this regular expression (the syntax of the `regex` crate, without anchors).
    Regex(String),
    /// The whole answer is JSON that fits this schema. Pass a schema through [`tighten`](crate::tighten) first and
    /// validate the answer against the original: an answer cut off by the token limit is not JSON.
    JsonSchema(Value),
}

/// Compiles constraints against one vocabulary.
pub(crate) struct Grammars(ParserFactory);

impl Grammars {
    pub(crate) fn new(vocabulary: &Vocabulary) -> Result<Self, LoadProblem> {
        let capabilities = InferenceCapabilities { ff_tokens: true, ..Default::default() };
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&vocabulary.environment(), capabilities, &slices);
        let mut factory = factory.map_err(|error| malformed(format!("its vocabulary: {error}")))?;
        factory.quiet().limits_mut().verbose_errors = false;
        Ok(Grammars(factory))
    }

    /// Starts following a constraint.
    pub(crate) fn guide(&self, constraint: &Constraint) -> Result<Guide, LocalError> {
        let (form, grammar) = match constraint {
            Constraint::None => return Ok(Guide(None)),
            Constraint::Regex(regex) => ("regular expression", TopLevelGrammar::from_regex(regex)),
            Constraint::JsonSchema(schema) => ("JSON schema", TopLevelGrammar::from_json_schema(schema.clone())),
        };
        let matcher = Matcher::new(self.0.create_parser(grammar));
        let bound = Bound { matcher, form };
        bound.check()?;
        Ok(Guide(Some(Box::new(bound))))
    }
}

/// A constraint and how far the answer has come; without a constraint everything is allowed.
pub(crate) struct Guide(Option<Box<Bound>>);

struct Bound {
    matcher: Matcher,
    form: &'static str,
}

impl Guide {
    /// The tokens that must come next, already accepted.
    pub(crate) fn forced(&mut self) -> Result<Vec<u32>, LocalError> {
        let Some(bound) = &mut self.0 else { return Ok(Vec::new()) };
        let tokens = if bound.matcher.is_stopped() { Vec::new() } else { bound.matcher.consume_ff_tokens() };
        bound.check()?;
        Ok(tokens)
    }

    /// Excludes every token that must not come next.
    pub(crate) fn mask(&mut self, logits: &mut [f32]) -> Result<(), LocalError> {
        let Some(Bound { matcher, form }) = self.0.as_deref_mut() else { return Ok(()) };
        let allowed = matcher.compute_mask().map_err(|error| refused(form, error))?;
        allowed.iter_unset_entries(|token| {
            if let Some(logit) = logits.get_mut(token) {
                *logit = f32::NEG_INFINITY;
            }
        });
        Ok(())
    }

    /// Moves past a token.
    pub(crate) fn accept(&mut self, token: u32) -> Result<(), LocalError> {
        let Some(Bound { matcher, form }) = self.0.as_deref_mut() else { return Ok(()) };
        matcher.consume_token(token).map_err(|error| refused(form, error))
    }

    /// Nothing may follow.
    pub(crate) fn finished(&self) -> bool {
        self.0.as_ref().is_some_and(|bound| bound.matcher.is_stopped())
    }
}

impl Bound {
    fn check(&self) -> Result<(), LocalError> {
        match self.matcher.get_error() {
            Some(error) => Err(refused(self.form, error)),
            None => Ok(()),
        }
    }
}

/// llguidance appends parser state and backtraces; the first line says what is wrong.
fn refused(form: &'static str, error: impl fmt::Display) -> LocalError {
    let error = error.to_string();
    let reason = error.lines().next().unwrap_or_default().chars().take(300).collect();
    LocalError::Constraint { form, reason }
}
