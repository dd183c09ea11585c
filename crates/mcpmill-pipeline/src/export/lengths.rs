//! How long rows are: words, characters, and tokens where somebody counts them.

use std::collections::{BTreeMap, HashMap};

use mcpmill_core::{
    canonical::sha256_hex,
    record::{ExportRow, Message},
};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;

/// Rows whose lengths are counted; rows come by id, so that these are a draw of all.
const COUNTED: u64 = 5_000;

/// Counts the tokens of a text.
pub trait TokenCounter: Send + Sync {
    /// Whose tokens these are, for people.
    fn name(&self) -> String;

    /// Tokens of `text`, without marks of beginning and end.
    fn count(&self, text: &str) -> u64;
}

/// Lengths of rows.
#[derive(Default)]
pub(super) struct Lengths {
    counter: Option<Box<dyn TokenCounter>>,
    rows: u64,
    /// Rows by length, by what is measured.
    measured: BTreeMap<&'static str, BTreeMap<u64, u64>>,
    /// Tokens of tool definitions by hash: rows offer the same ones over and over.
    tools: HashMap<String, u64>,
}

impl Lengths {
    pub(super) fn new(counter: Option<Box<dyn TokenCounter>>) -> Self {
        Self { counter, ..Self::default() }
    }

    /// Whose tokens are counted.
    pub(super) fn tokenizer(&self) -> Option<String> {
        self.counter.as_ref().map(|counter| counter.name())
    }

    /// Measures a row, unless enough are.
    pub(super) fn add(&mut self, row: &ExportRow) {
        if self.rows == COUNTED {
            return;
        }
        self.rows += 1;
        let said: Vec<String> = row.messages.iter().flat_map(said).collect();
        let mut tell = |what, length: u64| *self.measured.entry(what).or_default().entry(length).or_default() += 1;
        tell("messages_characters", said.iter().map(|text| text.chars().count() as u64).sum());
        tell("messages_words", said.iter().map(|text| text.split_whitespace().count() as u64).sum());
        tell("tools_characters", row.tools.chars().count() as u64);
        if let Some(counter) = &self.counter {
            let messages: u64 = said.iter().map(|text| counter.count(text)).sum();
            let offered: Vec<Value> = serde_json::from_str(&row.tools).unwrap_or_default();
            let known = &mut self.tools;
            let tools: u64 = offered
                .iter()
                .map(ToString::to_string)
                .map(|text| *known.entry(sha256_hex(&text)).or_insert_with(|| counter.count(&text)))
                .sum();
            tell("messages_tokens", messages);
            tell("tools_tokens", tools);
            tell("row_tokens", messages + tools);
        }
    }
}

/// The texts of a message that a template shows: what is said, and what is called with what.
fn said(message: &Message) -> Vec<String> {
    match message {
        Message::System { content } | Message::User { content } | Message::Tool { content, .. } => vec![content.clone()],
        Message::Assistant { content, tool_calls } => {
            let called = tool_calls.iter().flat_map(|call| {
                [call.function.name.clone(), serde_json::to_string(&call.function.arguments).unwrap_or_default()]
            });
            content.iter().cloned().chain(called).collect()
        }
    }
}

/// The rows measured, and of everything measured the median, the length that 95 of 100 rows do not exceed, and the most.
impl Serialize for Lengths {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("rows", &self.rows)?;
        let places = |lengths: &BTreeMap<u64, u64>| [0.5, 0.95, 1.0].map(|place| quantile(lengths, place));
        let measured: BTreeMap<&str, [u64; 3]> = self.measured.iter().map(|(what, of)| (*what, places(of))).collect();
        map.serialize_entry("measured", &measured)?;
        map.end()
    }
}

/// The smallest length that `place` of all, 0 to 1, do not exceed.
fn quantile(lengths: &BTreeMap<u64, u64>, place: f64) -> u64 {
    let all: u64 = lengths.values().sum();
    let wanted = (place * all as f64).ceil() as u64;
    let mut passed = 0;
    for (length, count) in lengths {
        passed += count;
        if passed >= wanted {
            return *length;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Letters;

    impl TokenCounter for Letters {
        fn name(&self) -> String {
            "letters".into()
        }

        fn count(&self, text: &str) -> u64 {
            text.chars().filter(|c| c.is_alphabetic()).count() as u64
        }
    }

    #[test]
    fn lengths_are_of_what_a_template_shows() {
        let row = |content: &str| -> ExportRow {
            let call =
                json!({ "id": "call_1", "type": "function", "function": { "name": "ab", "arguments": "{\"c\":\"d e\"}" } });
            let text = json!({
                "id": "r", "split": "train", "kind": "single", "loss": [], "server": "s", "tool_ids": [], "live": "ok", "lineage": [], "verdicts": [],
                "messages": [{ "role": "user", "content": content }, { "role": "assistant", "content": null, "tool_calls": [call] }],
                "tools": "[{\"a\":1},{\"bc\":2},{\"a\":1}]",
            });
            serde_json::from_value(text).unwrap()
        };
        let mut lengths = Lengths::new(Some(Box::new(Letters)));
        (0..100).for_each(|n| lengths.add(&row(&"x ".repeat(n))));
        let told = json!(lengths);
        assert_eq!((told["rows"].as_u64(), lengths.tokenizer().as_deref()), (Some(100), Some("letters")));
        assert_eq!(told["measured"]["messages_tokens"], json!([49 + 5, 94 + 5, 99 + 5]));
        assert_eq!(told["measured"]["tools_tokens"], json!([4, 4, 4]));
        assert_eq!(told["measured"]["row_tokens"], json!([58, 103, 108]));
        assert_eq!(told["measured"]["messages_words"], json!([49 + 3, 94 + 3, 99 + 3]));
    }
}
