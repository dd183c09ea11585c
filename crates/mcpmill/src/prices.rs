//! The dated list of what models cost: `eval/prices.toml`.

use std::collections::BTreeMap;

use mcpmill_core::account::Price;
use serde::Deserialize;

use crate::{declarations::Declarations, error::Failure};

/// Where the list is among the declarations.
pub const PATH: &str = "eval/prices.toml";
/// The stem of its name, which the suites of `eval/` lie beside.
pub const ID: &str = "prices";
/// US dollars per million tokens above which a price is taken for a slip.
const DEAREST: f64 = 10_000.0;

/// Prices by model.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    models: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    input: f64,
    output: f64,
    cached: Option<f64>,
    reasoning: Option<f64>,
    batch: Option<f64>,
    as_of: String,
    source: String,
}

/// A price that was found, and how old it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The price.
    pub price: Price,
    /// The day it was listed (`2025-06-01`).
    pub as_of: String,
}

impl Prices {
    /// The list of the declarations.
    ///
    /// # Errors
    /// It cannot be read, or a price of it cannot be one.
    pub fn load(declarations: &Declarations) -> Result<Self, Failure> {
        let text = declarations.text(PATH).unwrap_or("models = {}");
        let fail =
            |why: &str| Failure::usage(format!("failed to read `{PATH}`: {why}")).hint("`mcpmill check` tells all that is wrong");
        match faults(text).first() {
            Some(fault) => Err(fail(fault)),
            None => toml::from_str(text).map_err(|e| fail(e.message())),
        }
    }

    /// The price of a model by the name it has at its endpoint: that name itself, else without the maker before it,
    /// else without a date at its end.
    pub fn find(&self, model: &str) -> Option<Listed> {
        let plain = normal(model);
        let own = plain.rsplit('/').next().unwrap_or_default();
        let names = [model, &plain, own, undated(own)];
        let entry =
            |name: &str| self.models.get(name).or_else(|| self.models.iter().find(|(key, _)| normal(key) == name).map(|e| e.1));
        let entry = names.into_iter().filter(|name| !name.is_empty()).find_map(entry)?;
        let Entry { input, output, cached, reasoning, batch, .. } = *entry;
        Some(Listed { price: Price { input, output, cached, reasoning, batch }, as_of: entry.as_of.clone() })
    }
}

/// What is wrong with a list, for `check`.
pub fn faults(text: &str) -> Vec<String> {
    let prices: Prices = match toml::from_str(text) {
        Ok(prices) => prices,
        Err(e) => return vec![e.message().to_owned()],
    };
    let faults = prices.models.iter().flat_map(|(name, entry)| {
        let Entry { input, output, cached, reasoning, batch, .. } = *entry;
        let price = Price { input, output, cached, reasoning, batch };
        let date = (!is_date(&entry.as_of)).then(|| format!("`as_of` is `{}`, not a day like 2025-06-01", entry.as_of));
        let source = entry.source.trim().is_empty().then(|| "`source` is empty".to_owned());
        let found: Vec<String> = fault(&price).into_iter().chain(date).chain(source).collect();
        found.into_iter().map(move |fault| format!("`{name}`: {fault}"))
    });
    faults.collect()
}

/// What is wrong with a price.
pub fn fault(price: &Price) -> Option<String> {
    let rates =
        [("input", Some(price.input)), ("output", Some(price.output)), ("cached", price.cached), ("reasoning", price.reasoning)];
    let wrong = rates.into_iter().find(|(_, rate)| rate.is_some_and(|rate| !(0.0..=DEAREST).contains(&rate)));
    let share = price.batch.filter(|share| !(0.0..=1.0).contains(share)).map(|share| format!("`batch` is {share}, no share"));
    wrong.map(|(name, rate)| format!("`{name}` is {}, not between 0 and {DEAREST}", rate.unwrap_or_default())).or(share)
}

/// Whether two names are of one model: routers put its maker before it, and makers add the date they mean.
pub fn is_one_model(a: &str, b: &str) -> bool {
    let plain = |name: &str| {
        let own = normal(name.rsplit('/').next().unwrap_or(name));
        undated(&own).to_owned()
    };
    plain(a) == plain(b)
}

/// Routers write points where makers write dashes.
fn normal(name: &str) -> String {
    name.to_ascii_lowercase().replace('.', "-")
}

/// A name without `-2024-08-06`, `-20240806`, `@20240806` or `-latest` at its end.
fn undated(name: &str) -> &str {
    let name = name.strip_suffix("-latest").unwrap_or(name);
    let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '-');
    for length in [10, 8] {
        let Some((before, date)) = name.len().checked_sub(length).and_then(|at| name.split_at_checked(at)) else { continue };
        let real = if length == 10 { is_date(date) } else { digits(date) && !date.contains('-') };
        if let Some(stem) = before.strip_suffix(['-', '@']).filter(|_| real) {
            return stem;
        }
    }
    name
}

fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let number = |part: &str, length: usize| (part.len() == length).then(|| part.parse::<u32>().ok()).flatten();
    matches!(parts[..], [y, m, d] if number(y, 4).is_some()
        && number(m, 2).is_some_and(|m| (1..=12).contains(&m)) && number(d, 2).is_some_and(|d| (1..=31).contains(&d)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn embedded() -> Prices {
        Prices::load(&Declarations::load(Path::new("/nonexistent")).unwrap()).unwrap()
    }

    #[test]
    fn a_model_has_many_names() {
        for (a, b) in [("gpt-4o", "gpt-4o-2024-08-06"), ("openai/GPT-4.1", "gpt-4-1"), ("x-latest", "x-20260102"), ("m", "a/b/m")]
        {
            assert!(is_one_model(a, b) && is_one_model(b, a), "{a} {b}");
        }
        for (a, b) in [("gpt-4o", "gpt-4o-mini"), ("gpt-4o", "claude-opus-x"), ("m-1", "m-2"), ("m", "")] {
            assert!(!is_one_model(a, b), "{a} {b}");
        }
    }

    #[test]
    fn the_embedded_list_is_sound_and_no_two_names_are_alike() {
        let declarations = Declarations::load(Path::new("/nonexistent")).unwrap();
        assert_eq!(faults(declarations.text(PATH).unwrap()), Vec::<String>::new());
        let mut names: Vec<String> = embedded().models.keys().map(|name| normal(name)).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(
            embedded().models.values().all(|entry| entry.input <= entry.output && entry.cached.is_none_or(|c| c < entry.input))
        );
    }

    #[test]
    fn models_are_found_by_all_their_names() {
        let prices = embedded();
        let input = |name: &str| prices.find(name).map(|listed| listed.price.input);
        for name in ["gpt-4o", "openai/gpt-4o", "gpt-4o-2024-08-06", "openai/gpt-4o-2024-08-06"] {
            assert_eq!(input(name), Some(2.5), "{name}");
        }
        for name in [
            "claude-3-5-sonnet-20241022",
            "anthropic/claude-3.5-sonnet",
            "claude-3-5-sonnet-latest",
            "claude-3-5-sonnet@20240620",
        ] {
            assert_eq!(input(name), Some(3.0), "{name}");
        }
        assert_eq!(input("mistral-large-latest"), Some(2.0));
        for name in
            ["gpt-4o-audio", "Qwen/Qwen2.5-7B-Instruct", "qwen2.5:7b", "", "-2024-08-06", "gpt-4o/", "é-latest", "xé20240806"]
        {
            assert_eq!(input(name), None, "{name}");
        }
    }

    #[test]
    fn slips_are_told() {
        let text = "[models]\nm = { input = -1.0, output = 2.0, as_of = \"june\", source = \"\" }\n";
        assert_eq!(faults(text).len(), 3);
        assert!(faults("[models]\nm = { input = 1.0 }\n")[0].contains("output"));
        assert!(
            faults("[models]\nm = { input = nan, output = 1.0, as_of = \"2025-01-01\", source = \"x\" }\n")[0].contains("input")
        );
    }
}
