//! The user's keys: put into headers, and kept out of everything else.

use std::collections::HashMap;

use mcpmill_core::edge::{FetchErrorKind, FetchRequest};
use reqwest::{
    Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};

use crate::secret::Secret;

/// Shorter values are no secrets, and would be found everywhere.
const SHORTEST: usize = 6;
/// What stands for a key in a text.
const MARK: &str = "[key]";

/// Values of key variables.
pub(super) struct Keys {
    values: HashMap<String, Secret>,
    /// All spellings of all values, the longest first.
    spellings: Vec<Secret>,
}

impl Keys {
    pub fn new(values: &HashMap<String, Secret>) -> Self {
        let long = values.values().map(|Secret(value)| value.trim()).filter(|value| value.len() >= SHORTEST);
        let mut spellings: Vec<String> = long.flat_map(|value| [value.to_owned(), in_query(value), in_json(value)]).collect();
        spellings.sort_unstable_by_key(|spelling| std::cmp::Reverse(spelling.len()));
        spellings.dedup();
        Self { values: values.clone(), spellings: spellings.into_iter().map(Secret::new).collect() }
    }

    /// The headers with the keys that a request names.
    pub fn headers(&self, request: &FetchRequest) -> Result<HeaderMap, FetchErrorKind> {
        let mut headers = HeaderMap::new();
        for key in &request.keys {
            let value = self.values.get(&key.env).map(|Secret(value)| value.trim()).filter(|value| !value.is_empty());
            let value = value.ok_or_else(|| FetchErrorKind::NoKey(key.env.clone()))?;
            let unfit =
                || FetchErrorKind::BadUrl(format!("the key in `{}` cannot be sent in a header `{}`", key.env, key.header));
            let name = HeaderName::from_bytes(key.header.as_bytes()).map_err(|_| unfit())?;
            let mut value = HeaderValue::from_str(&format!("{}{value}", key.prefix)).map_err(|_| unfit())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(headers)
    }

    /// A text without any key. A host that echoes one must not bring it to the disk or into a log.
    pub fn scrub(&self, text: String) -> String {
        let clean = |text: String, Secret(key): &Secret| if text.contains(key) { text.replace(key, MARK) } else { text };
        self.spellings.iter().fold(text, clean)
    }
}

fn in_query(value: &str) -> String {
    let Ok(mut url) = Url::parse("http://localhost/") else { return value.to_owned() };
    url.query_pairs_mut().append_key_only(value);
    url.query().unwrap_or(value).to_owned()
}

fn in_json(value: &str) -> String {
    serde_json::Value::from(value).to_string().trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_taken_out_in_every_spelling() {
        let key = |value: &str| Secret::new(value);
        let keys = Keys::new(&HashMap::from([
            ("A".to_owned(), key("s3cr\"t/+=x")),
            ("B".to_owned(), key("abcdef")),
            ("C".to_owned(), key("abcdefgh\n")),
            ("D".to_owned(), key("e")),
        ]));
        let text = r#"s3cr"t/+=x s3cr%22t%2F%2B%3Dx "s3cr\"t/+=x" abcdefgh abcdef e"#;
        assert_eq!(keys.scrub(text.into()), r#"[key] [key] "[key]" [key] [key] e"#);
    }
}
