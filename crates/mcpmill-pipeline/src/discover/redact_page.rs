//! Whole pages without secrets, before they are kept anywhere.

use std::sync::LazyLock;

use mcpmill_core::secrets::{REDACTED, names_a_secret, redact};
use regex::Regex;
use serde_json::Value;

use super::redact::{Door, is_placeholder};

/// JSON in a string in JSON: deeper is text.
const NESTED: usize = 3;
/// Objects whose members are variables or headers by name.
const BY_NAME: [&str; 6] = ["env", "environment", "environmentVariables", "environment_variables", "headers", "config"];

/// A configuration in the text of a page: a variable of a secret's name and its value, as HTML escapes it.
static IN_TEXT: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let quote = r#"(?:"|&quot;|&#34;|\\")"#;
    let name = "[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTHORIZATION)[A-Z0-9_]*";
    Regex::new(&format!(r#"({quote}{name}{quote}\s*:\s*{quote})([^"&<\\]+)"#)).ok()
});

/// A page of a marketplace with its secrets replaced; `None` when it has none. JSON stays JSON.
pub fn redact_page(text: &str) -> Option<String> {
    match serde_json::from_str::<Value>(text) {
        Ok(mut value) => {
            let mut page = Cleaner::default();
            page.value(&mut value, "", 0);
            page.changed.then(|| value.to_string())
        }
        Err(_) => {
            let named = |text: &str| {
                let pattern = IN_TEXT.as_ref()?;
                let kept = |found: &regex::Captures<'_>| match is_placeholder(&found[2]) {
                    true => found[0].to_owned(),
                    false => format!("{}{REDACTED}", &found[1]),
                };
                Some(pattern.replace_all(text, kept).into_owned())
            };
            let clean = named(text).unwrap_or_else(|| text.to_owned());
            let clean = redact(&clean).unwrap_or(clean);
            // In a web page it would be a tag.
            (clean != text).then(|| clean.replace(REDACTED, "&lt;redacted&gt;"))
        }
    }
}

#[derive(Default)]
struct Cleaner {
    changed: bool,
}

impl Cleaner {
    fn value(&mut self, value: &mut Value, under: &str, nested: usize) {
        match value {
            Value::String(text) => self.text(text, nested),
            Value::Array(items) => {
                if matches!(under, "args" | "arguments") {
                    self.args(items);
                }
                items.iter_mut().for_each(|item| self.value(item, under, nested));
            }
            Value::Object(members) => {
                let flag = |key: &str| members.get(key).and_then(Value::as_bool) == Some(true);
                let named =
                    members.get("name").and_then(Value::as_str).is_some_and(|name| names_a_secret(name) && !name.contains('/'));
                let secret = flag("isSecret") || flag("is_secret") || flag("secret") || (named && members.len() < 12);
                for (key, member) in members.iter_mut() {
                    let capitals = key.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
                    let by_name = names_a_secret(key) && (capitals || BY_NAME.contains(&under));
                    match member {
                        Value::String(text) if by_name || (secret && matches!(key.as_str(), "value" | "default")) => {
                            self.hide(text);
                        }
                        member => self.value(member, key, nested),
                    }
                }
            }
            _ => {}
        }
    }

    fn text(&mut self, text: &mut String, nested: usize) {
        if nested < NESTED
            && text.trim_start().starts_with(['{', '['])
            && let Ok(mut inner) = serde_json::from_str::<Value>(text)
        {
            let before = std::mem::take(&mut self.changed);
            self.value(&mut inner, "", nested + 1);
            if self.changed {
                *text = inner.to_string();
            }
            self.changed |= before;
        } else if let Some(clean) = redact(text) {
            *text = clean;
            self.changed = true;
        }
    }

    fn args(&mut self, items: &mut [Value]) {
        let texts: Option<Vec<String>> = items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
        let Some(before) = texts else { return };
        let mut after = before.clone();
        Door::default().args(&mut after);
        if after != before {
            self.changed = true;
            items.iter_mut().zip(after).for_each(|(item, text)| *item = Value::String(text));
        }
    }

    fn hide(&mut self, text: &mut String) {
        if !is_placeholder(text) {
            REDACTED.clone_into(text);
            self.changed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_secret_names_go_wherever_they_stand() {
        let page = json!({ "servers": [{
            "env": { "API_KEY": "hunter2-planted", "LEVEL": "debug", "TOKEN": "${TOKEN}" },
            "headers": { "Authorization": "Basic hunter2-planted" },
            "args": ["--api-key", "hunter2-planted", "--level", "1"],
            "environmentVariables": [{ "name": "PASSWORD_X", "value": "hunter2-planted" }, { "name": "A", "isSecret": true, "default": "hunter2-planted" }],
            "serverConfigs": ["{\"mcpServers\":{\"a\":{\"env\":{\"B_SECRET\":\"hunter2-planted\"}}}}"],
            "keywords": ["mcp"], "tokens": 7, "description": "mail planted@host.example",
        }]});
        let clean = redact_page(&page.to_string()).unwrap();
        assert!(!clean.contains("planted"), "{clean}");
        for kept in ["debug", "${TOKEN}", "--level", "mcp", "PASSWORD_X", "B_SECRET"] {
            assert!(clean.contains(kept), "{kept} in {clean}");
        }
        assert!(serde_json::from_str::<Value>(&clean).is_ok());
        assert_eq!(redact_page(r#"{"a": [1.0, "x"]}"#), None);
    }

    #[test]
    fn web_pages_stay_web_pages() {
        let page = r#"<pre>{&quot;env&quot;:{&quot;API_KEY&quot;: &quot;hunter2-planted&quot;, "MY_TOKEN": "your-token"}}</pre><a href="mailto:planted@host.example">"#;
        let clean = redact_page(page).unwrap();
        assert!(!clean.contains("planted") && clean.contains("&quot;API_KEY&quot;: &quot;&lt;redacted&gt;&quot;"), "{clean}");
        assert!(clean.contains("your-token"), "{clean}");
    }
}
