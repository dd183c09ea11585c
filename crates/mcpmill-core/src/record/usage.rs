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
