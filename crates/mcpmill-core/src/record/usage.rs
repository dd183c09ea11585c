//! Tokens and money.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// What calls to models used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// Prompt tokens the provider had cached.
    pub cached_tokens: u64,
    /// Generated tokens that were reasoning.
    pub reasoning_tokens: u64,
    /// US dollars, 0 when no price is known or the model is local.
    pub cost: f64,
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.cached_tokens += other.cached_tokens;
        self.reasoning_tokens += other.reasoning_tokens;
        self.cost += other.cost;
    }
}

impl Usage {
    /// What is used beyond `earlier` of the same count.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_sub(earlier.input_tokens),
            output_tokens: self.output_tokens.saturating_sub(earlier.output_tokens),
            cached_tokens: self.cached_tokens.saturating_sub(earlier.cached_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_sub(earlier.reasoning_tokens),
            cost: (self.cost - earlier.cost).max(0.0),
        }
    }
}
