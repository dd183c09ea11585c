//! Messages of servers without secrets.

use std::collections::BTreeSet;

use mcpmill_core::text::shown;
use serde_json::{Map, Number, Value};

use super::Secrets;

/// What of a result is given back to the server as it came.
const GIVEN_BACK: [&str; 2] = ["nextCursor", "requestState"];
/// Fields of the protocol. They are no secret even when a secret is such a word.
const FIELDS: [&str; 8] =
    ["message", "supported", "version", "instructions", "description", "inputSchema", "outputSchema", "annotations"];
/// Fields whose values are words of the protocol.
const OF_THE_PROTOCOL: [&str; 5] = ["method", "resultType", "type", "role", "mimeType"];
/// Keywords whose values are names and words that a schema would mean something else without.
const OF_A_SCHEMA: [&str; 14] = [
    "type",
    "required",
    "enum",
    "const",
    "format",
    "pattern",
    "$ref",
    "$dynamicRef",
    "$id",
    "$schema",
    "$anchor",
    "dependentRequired",
    "dependencies",
    "discriminator",
];
/// Keywords whose members are lists of names.
const OF_NAMES: [&str; 2] = ["dependentRequired", "dependencies"];

/// What a value is read as.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// What the protocol has: numbers in it are no secrets.
    Protocol,
    /// What a tool gave: a number in it may be one.
    Result,
    /// The schema of a tool. A secret that is a word or a short number is in many of them by chance, and is left
    /// where a schema means something by it.
    Schema,
}

impl Secrets {
    /// A message of a server without them, but for what the server is to get back. In words: which schemas of
    /// tools had to be altered.
    pub(in crate::mcp) fn message(&self, message: &mut Map<String, Value>) -> BTreeSet<String> {
        let mut told = BTreeSet::new();
        if self.is_empty() {
            return told;
        }
        for (name, field) in message.iter_mut().filter(|(name, _)| *name != "id") {
            match field {
                Value::Object(result) if name == "result" => self.result(result, &mut told),
                Value::Object(error) if name == "error" => {
                    for (name, field) in error {
                        let part = if name == "data" { Part::Result } else { Part::Protocol };
                        self.hide(field, name, part, &mut BTreeSet::new());
                    }
                }
                field => self.hide(field, name, Part::Protocol, &mut BTreeSet::new()),
            }
        }
        told
    }

    fn result(&self, result: &mut Map<String, Value>, told: &mut BTreeSet<String>) {
        for (name, field) in result.iter_mut().filter(|(name, _)| !GIVEN_BACK.contains(&name.as_str())) {
            match field {
                Value::Array(tools) if name == "tools" => tools.iter_mut().for_each(|tool| self.tool(tool, told)),
                field => {
                    let of_a_tool = ["content", "structuredContent"].contains(&name.as_str());
                    let part = if of_a_tool { Part::Result } else { Part::Protocol };
                    self.hide(field, name, part, &mut BTreeSet::new());
                }
            }
        }
    }

    /// A listed tool without them.
    fn tool(&self, tool: &mut Value, told: &mut BTreeSet<String>) {
        let Value::Object(fields) = tool else { return self.hide(tool, "", Part::Protocol, &mut BTreeSet::new()) };
        let mut altered = BTreeSet::new();
        for key in ["inputSchema", "outputSchema"] {
            fields.get_mut(key).into_iter().for_each(|schema| self.hide(schema, key, Part::Schema, &mut altered));
        }
        let schemas = |name: &str| name == "inputSchema" || name == "outputSchema";
        for (name, field) in fields.iter_mut().filter(|(name, _)| !schemas(name)) {
            self.hide(field, name, Part::Result, &mut BTreeSet::new());
        }
        self.names(fields, &mut BTreeSet::new());
        let tool = shown(fields.get("name").and_then(Value::as_str).unwrap_or_default(), 80);
        let names = altered.iter().map(|mark| mark.trim_start_matches('<').trim_end_matches('>'));
        told.extend(names.map(|name| format!("schema of `{tool}` holds the value of `{name}`")));
    }

    /// `value`, which stands under `key`; the marks of what was found in it go into `found`.
    fn hide(&self, value: &mut Value, key: &str, part: Part, found: &mut BTreeSet<String>) {
        match value {
            Value::String(text) => {
                let words: &[&str] = if part == Part::Schema { &OF_A_SCHEMA } else { &OF_THE_PROTOCOL };
                let hidden = self.text(text, words.contains(&key));
                found.extend(hidden.iter().map(|one| self.forms[one.form].mark.clone()));
            }
            Value::Number(number) if part != Part::Protocol => {
                if let Some(mark) = self.number(number, part == Part::Schema) {
                    found.insert(mark.to_owned());
                    *value = Value::String(mark.to_owned());
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide(item, key, part, found)),
            Value::Object(fields) => {
                let lists_names = part == Part::Schema && OF_NAMES.contains(&key);
                for (name, field) in fields.iter_mut() {
                    let key = if lists_names && field.is_array() { key } else { name };
                    self.hide(field, key, part, found);
                }
                self.names(fields, found);
            }
            _ => {}
        }
    }

    /// The names of members without them, unless they are plain words: somebody looks members up by these.
    fn names(&self, fields: &mut Map<String, Value>, found: &mut BTreeSet<String>) {
        let hidden = |name: &str| if FIELDS.contains(&name) { Vec::new() } else { self.found(name, true) };
        let all: Vec<_> = fields.keys().flat_map(|name| hidden(name)).collect();
        if all.is_empty() {
            return;
        }
        found.extend(all.iter().map(|one| self.forms[one.form].mark.clone()));
        let named = std::mem::take(fields).into_iter();
        fields.extend(named.map(|(name, field)| (self.without(&name, &hidden(&name), 0), field)));
    }

    /// What stands for a number that is a secret as a whole.
    fn number(&self, number: &Number, but_plain: bool) -> Option<&str> {
        let text = number.to_string();
        match self.found(&text, but_plain).as_slice() {
            [whole] if whole.range == (0..text.len()) => Some(&self.forms[whole.form].mark),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secrets(all: &[(&str, &str)]) -> Secrets {
        Secrets::new(&all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    /// The message without secrets, and what is told of its schemas.
    #[track_caller]
    fn clean(all: &Secrets, message: Value) -> (Value, Vec<String>) {
        let Value::Object(mut message) = message else { panic!() };
        let told = all.message(&mut message);
        (Value::Object(message), told.into_iter().collect())
    }

    fn listed(schema: &Value) -> Value {
        json!({"result": {"tools": [{"name": "login", "inputSchema": schema}]}})
    }

    #[test]
    fn values_are_hidden_wherever_they_stand_and_the_rest_stays() {
        let all = secrets(&[("A_KEY", "s3cret-value"), ("B", "x"), ("PIN", "87654321")]);
        let schema = json!({"properties": {"of s3cret-value": {"default": ["s3cret-value", 87_654_321]}}, "a": 1.0});
        let (message, told) = clean(&all, listed(&schema));
        let hidden = json!({"properties": {"of <A_KEY>": {"default": ["<A_KEY>", "<PIN>"]}}, "a": 1.0});
        assert_eq!(message["result"]["tools"][0], json!({"name": "login", "inputSchema": hidden}));
        let holds = ["A_KEY", "PIN"].map(|name| format!("schema of `login` holds the value of `{name}`"));
        assert_eq!(told, holds);
        let given =
            json!({"result": {"content": [{"type": "text", "text": "s3cret-value"}], "structuredContent": {"n": 87_654_321}}});
        let (message, _) = clean(&all, given);
        assert_eq!(
            message["result"],
            json!({"content": [{"type": "text", "text": "<A_KEY>"}], "structuredContent": {"n": "<PIN>"}})
        );
    }

    #[test]
    fn schemas_mean_the_same_where_a_secret_is_a_word_or_a_short_number() {
        let all = secrets(&[("RW_DB_PASSWORD", "password"), ("RW_PIN", "123456"), ("MODE", "object")]);
        let schema = json!({
            "type": "object",
            "properties": {
                "password": {"type": "string", "format": "password", "enum": ["password", "object"]},
                "count": {"type": "integer", "maximum": 123_456, "default": 123_456},
            },
            "required": ["password"],
            "dependentRequired": {"count": ["password"]},
        });
        assert_eq!(clean(&all, listed(&schema)), (listed(&schema), vec![]));
        let (message, told) = clean(&all, listed(&json!({"properties": {"password": {"description": "a password, Password"}}})));
        let schema = json!({"properties": {"password": {"description": "a <RW_DB_PASSWORD>, Password"}}});
        assert_eq!((message, told), (listed(&schema), vec!["schema of `login` holds the value of `RW_DB_PASSWORD`".to_owned()]));
        // What a tool gave is no schema.
        let (message, _) = clean(&all, json!({"result": {"structuredContent": {"enum": "password", "pin": 123_456}}}));
        assert_eq!(message["result"]["structuredContent"], json!({"enum": "<RW_DB_PASSWORD>", "pin": "<RW_PIN>"}));
    }

    #[test]
    fn what_a_server_gets_back_stays_in_its_messages() {
        let all = secrets(&[("K", "s3cret-value"), ("D", "description")]);
        let text = json!({
            "id": "s3cret-value",
            "result": {
                "nextCursor": "s3cret-value",
                "tools": [{"name": "of s3cret-value", "description": "a description", "inputSchema": {"s3cret-value": 1}}],
            },
        });
        let Value::Object(mut message) = text else { panic!() };
        all.message(&mut message);
        assert_eq!(
            Value::Object(message).to_string(),
            r#"{"id":"s3cret-value","result":{"nextCursor":"s3cret-value","tools":[{"name":"of <K>","description":"a <D>","inputSchema":{"<K>":1}}]}}"#
        );
    }

    #[test]
    fn words_of_the_protocol_stay() {
        let all = secrets(&[("A", "complete"), ("B", "notifications"), ("C", "123456")]);
        for message in [
            json!({"result": {"resultType": "complete", "ttlMs": 123_456}}),
            json!({"method": "notifications/message", "params": {"progress": 123_456}}),
        ] {
            assert_eq!(clean(&all, message.clone()).0, message);
        }
    }
}
