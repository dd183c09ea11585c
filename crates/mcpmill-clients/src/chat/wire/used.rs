//! What replies say they used.

use mcpmill_core::{account::Price, record::Usage};
use serde_json::Value;

use super::Api;

/// No context is longer: a count beyond it is none.
const MOST_TOKENS: u64 = 1 << 24;
/// How often the most that a call may cost by the list a provider may say it cost.
const MOST_TIMES: f64 = 100.0;
/// US dollars that a call may cost whatever the list says.
const MOST_COST: f64 = 1.0;

/// What a reply says it used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::chat) struct Used {
    /// All but the cost.
    tokens: Usage,
    /// US dollars, where the provider names them; perhaps none that can be.
    cost: Option<f64>,
}

impl Used {
    /// What the `usage` of a reply says in the words of `api`, or else in those of the other. `None` unless it counts what
    /// went in and what came out. Where reasoning has no count it is the share `thinking` of what came out.
    pub(super) fn read(usage: &Value, api: Api, thinking: f64) -> Option<Self> {
        usage.as_object()?;
        let openai = || count(&usage["prompt_tokens"]);
        // What came from a cache or went into one is left out of Anthropic's.
        let cached = ["cache_read_input_tokens", "cache_creation_input_tokens"];
        let anthropic = || {
            let cached = cached.iter().map(|name| if usage[name].is_null() { Some(0) } else { count(&usage[name]) });
            Some(count(&usage["input_tokens"])? + cached.sum::<Option<u64>>()?)
        };
        let (said, written) = (|| count(&usage["completion_tokens"]), || count(&usage["output_tokens"]));
        let (input, output) = match api {
            Api::OpenAi => (openai().or_else(anthropic)?, said().or_else(written)?),
            Api::Anthropic => (anthropic().or_else(openai)?, written().or_else(said)?),
        };
        let most = |values: &[&Value]| values.iter().filter_map(|value| count(value)).max();
        let hits = [
            &usage["prompt_tokens_details"]["cached_tokens"],
            &usage["input_tokens_details"]["cached_tokens"],
            &usage["prompt_cache_hit_tokens"],
            &usage["cache_read_input_tokens"],
        ];
        let reasoning =
            [&usage["completion_tokens_details"]["reasoning_tokens"], &usage["output_tokens_details"]["reasoning_tokens"]];
        let tokens = Usage {
            input_tokens: input,
            output_tokens: output,
            cached_tokens: most(&hits).unwrap_or_default(),
            reasoning_tokens: most(&reasoning).unwrap_or((output as f64 * thinking).round() as u64),
            cost: 0.0,
        };
        Some(Self { tokens, cost: number(&usage["cost"]) })
    }

    /// With the cost: the provider's own where it can be, else by price. `most` is what the call could use at most.
    pub(in crate::chat) fn at(self, price: Option<&Price>, most: &Usage) -> Usage {
        let own = self.cost.filter(|_| self.odd_cost(most).is_none());
        let cost = own.or_else(|| Some(price?.of(&self.tokens))).unwrap_or_default();
        Usage { cost, ..self.tokens }
    }

    /// The cost that the provider names, where no call that could use `most` can have cost that.
    pub(in crate::chat) fn odd_cost(&self, most: &Usage) -> Option<f64> {
        self.cost.filter(|cost| !(0.0..=MOST_COST.max(most.cost * MOST_TIMES)).contains(cost))
    }
}

/// A number, perhaps in a string.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())
}

/// A count of tokens, perhaps in a string.
fn count(value: &Value) -> Option<u64> {
    let count = number(value).filter(|number| (0.0..=MOST_TOKENS as f64).contains(number));
    count.map(|count| count.round() as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tokens(usage: &Value) -> Option<(u64, u64, u64)> {
        let read = |api| {
            let used = Used::read(usage, api, 0.0)?.at(None, &Usage::default());
            Some((used.input_tokens, used.output_tokens, used.cached_tokens))
        };
        assert_eq!(read(Api::OpenAi), read(Api::Anthropic), "{usage}");
        read(Api::OpenAi)
    }

    #[test]
    fn counts_are_read_in_the_words_of_either_api_and_from_strings() {
        for (usage, expected) in [
            (json!({"prompt_tokens": 7, "completion_tokens": 2}), (7, 2, 0)),
            (json!({"prompt_tokens": "7", "completion_tokens": " 2 "}), (7, 2, 0)),
            (json!({"prompt_tokens": 7.0, "completion_tokens": 2.0, "prompt_tokens_details": {"cached_tokens": 3}}), (7, 2, 3)),
            (json!({"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 2}), (7, 2, 2)),
            (json!({"input_tokens": 7, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 3}}), (7, 2, 3)),
            (json!({"prompt_tokens": -1, "input_tokens": 7, "completion_tokens": null, "output_tokens": 2}), (7, 2, 0)),
        ] {
            assert_eq!(tokens(&usage), Some(expected), "{usage}");
        }
    }

    #[test]
    fn what_counts_nothing_is_not_nothing() {
        for usage in [
            json!({}),
            json!(null),
            json!([1, 2]),
            json!({"prompt_tokens": 7}),
            json!({"completion_tokens": 7}),
            json!({"prompt_tokens": -7, "completion_tokens": 2}),
            json!({"prompt_tokens": "seven", "completion_tokens": "two"}),
            json!({"prompt_tokens": "NaN", "completion_tokens": 2}),
            json!({"prompt_tokens": 7, "completion_tokens": u64::MAX}),
            json!({"input_tokens": 7, "output_tokens": 2, "cache_read_input_tokens": -9}),
            json!({"total_tokens": 9, "cost": 0.1}),
        ] {
            assert_eq!(tokens(&usage), None, "{usage}");
        }
    }

    #[test]
    fn a_cost_that_cannot_be_is_counted_by_the_list() {
        let price = Price { input: 1.0, output: 2.0, ..Price::default() };
        let most = Usage { cost: 0.05, ..Usage::default() };
        let usage = |cost: Value| json!({"prompt_tokens": 1_000, "completion_tokens": 500, "cost": cost});
        for (cost, counted) in [(json!(4.9), 4.9), (json!("0.25"), 0.25), (json!(0), 0.0), (json!(null), 0.002)] {
            let used = Used::read(&usage(cost), Api::OpenAi, 0.0).unwrap();
            assert_eq!((used.at(Some(&price), &most).cost, used.odd_cost(&most)), (counted, None));
        }
        for cost in [json!(1e308), json!(-0.5), json!(5.1), json!("inf"), json!("NaN")] {
            let used = Used::read(&usage(cost.clone()), Api::OpenAi, 0.0).unwrap();
            assert_eq!(used.at(Some(&price), &most).cost, 0.002, "{cost}");
            assert!(used.odd_cost(&most).is_some(), "{cost}");
            assert_eq!(used.at(None, &Usage::default()).cost, 0.0, "{cost}");
        }
    }
}
