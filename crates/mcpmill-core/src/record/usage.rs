//! Tokens and money.

use std::ops::AddAssign;

use serde::{Deserialize, Deserializer, Serialize};

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
    /// US dollars, 0 when no price is known or the model is local. JSON knows no infinity: what was written as `null` is
    /// read as 0.
    #[serde(deserialize_with = "cost")]
    pub cost: f64,
}

fn cost<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or_default())
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.cached_tokens += other.cached_tokens;
        self.reasoning_tokens += other.reasoning_tokens;
        let cost = self.cost + other.cost;
        // A sum that is no number would stay none, whatever is added.
        if cost.is_finite() {
            self.cost = cost;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_stays_a_number() {
        let mut sum = Usage { cost: 1.5, ..Usage::default() };
        for odd in [f64::INFINITY, f64::NAN, f64::NEG_INFINITY] {
            sum += Usage { cost: odd, output_tokens: 1, ..Usage::default() };
        }
        sum += Usage { cost: f64::MAX, ..Usage::default() };
        sum += Usage { cost: f64::MAX, ..Usage::default() };
        assert_eq!((sum.cost, sum.output_tokens), (f64::MAX, 3));
    }

    #[test]
    fn a_cost_that_was_no_number_is_read() {
        let infinite = Usage { cost: f64::INFINITY, input_tokens: 2, ..Usage::default() };
        let read: Usage = serde_json::from_str(&serde_json::to_string(&infinite).unwrap()).unwrap();
        assert_eq!((read.cost, read.input_tokens), (0.0, 2));
        assert_eq!(serde_json::from_str::<Usage>("{}").unwrap(), Usage::default());
    }
}
