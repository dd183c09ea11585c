//! What a call is held to: it has every value that the request was made to state, and none that nobody said.

use mcpmill_core::schema::required;
use serde_json::{Map, Value};

use super::{
    code, forms,
    values::{self, Named, invented, placeholder, states},
};
use crate::card::word;

/// How deep a schema is looked into.
const DEEPEST: usize = 8;

/// A request, and the tool that is called for it.
pub(crate) struct Held<'a> {
    /// The schema of the tool's arguments.
    pub(crate) schema: &'a Value,
    /// The request as it stands.
    pub(crate) request: &'a str,
    /// Values that were put into it on purpose.
    pub(crate) stated: &'a [Named],
    /// Whether it is written in the language of the schema's names.
    pub(crate) english: bool,
}

impl Held<'_> {
    /// Takes out optional arguments that the request does not state. A truth value is stated where a word of its
    /// parameter is; in another language than the parameter's nobody can tell, and what is `true` stays.
    pub(super) fn pruned(&self, arguments: &Map<String, Value>) -> Map<String, Value> {
        let needed = required(self.schema);
        let stated = values::prune(arguments, &needed, self.request);
        let keep = |name: &String, value: &Value| match value {
            Value::Bool(on) if !needed.contains(name) => {
                if self.english {
                    values::says_any(self.request, &forms::spoken(self.schema, name))
                } else {
                    *on
                }
            }
            Value::String(text) if !stated.contains_key(name) => self.says_word(name, text),
            _ => stated.contains_key(name),
        };
        arguments.iter().filter(|(name, value)| keep(name, value)).map(|(n, v)| (n.clone(), v.clone())).collect()
    }

    /// Whether a word of a list stands in the request with spaces for its joints: `most_recent`.
    fn says_word(&self, name: &str, text: &str) -> bool {
        let listed = forms::plain(&self.schema["properties"][name])["enum"].is_array();
        listed && !text.trim().is_empty() && states(self.request, &text.replace(['_', '-'], " "))
    }

    /// What is wrong with a call, naming the parameter and the value.
    pub(super) fn fault(&self, arguments: &Map<String, Value>) -> Option<String> {
        if let Some(lost) = self.stated.iter().find(|value| !has(arguments, value)) {
            return Some(format!("`{}` is not `{}`, as the request states", lost.name, lost.text));
        }
        let properties = &self.schema["properties"];
        arguments.iter().find_map(|(name, value)| self.unsaid(name, value, &properties[name]))
    }

    /// A value that is neither in the request nor one that the schema itself names.
    fn unsaid(&self, name: &str, value: &Value, property: &Value) -> Option<String> {
        if self.is_listed(value, property, 0) {
            return None;
        }
        let found = match value {
            Value::Null | Value::Bool(_) => None,
            Value::Number(number) => (!states(self.request, &number.to_string())).then(|| number.to_string()),
            Value::String(text) => self.unsaid_text(name, text),
            Value::Array(items) => {
                let inner = self.open(property);
                return items.iter().find_map(|item| self.unsaid(name, item, &inner["items"]));
            }
            Value::Object(map) => {
                let inner = self.open(property);
                return map.iter().find_map(|(key, item)| self.unsaid(key, item, &inner["properties"][key]));
            }
        };
        found.map(|value| format!("`{}` holds `{value}`, which the request does not state", word(name)))
    }

    fn unsaid_text(&self, name: &str, text: &str) -> Option<String> {
        if text.trim().is_empty() {
            return Some(text.to_owned());
        }
        if code::is_expression(name, text) || states(self.request, text) {
            return None;
        }
        if values::is_short(text) {
            return Some(text.to_owned());
        }
        // A long text is written for the request, not copied from it.
        placeholder(text).or_else(|| invented(text, &[self.request]))
    }

    /// A property without references and without the `null` beside its type.
    pub(crate) fn open(&self, property: &Value) -> Value {
        let mut now = property;
        for _ in 0..DEEPEST {
            match now["$ref"].as_str().and_then(|path| self.schema.pointer(path.strip_prefix('#')?)) {
                Some(next) => now = next,
                None => break,
            }
        }
        forms::plain(now).into_owned()
    }

    /// Whether the schema names the value itself: a word of a list, a constant, the default.
    pub(crate) fn is_listed(&self, value: &Value, property: &Value, depth: usize) -> bool {
        if property["default"] == *value && !value.is_null() {
            return true;
        }
        let property = self.open(property);
        let named = property["const"] == *value || property["default"] == *value;
        let listed = property["enum"].as_array().is_some_and(|words| words.contains(value));
        let branches = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|of| property[of].as_array()).flatten();
        (named && !value.is_null())
            || listed
            || (depth < DEEPEST && branches.into_iter().any(|b| self.is_listed(value, b, depth + 1)))
    }
}

/// Whether a call holds a value where the request states it: in the argument of that name.
fn has(arguments: &Map<String, Value>, wanted: &Named) -> bool {
    fn within(name: &str, value: &Value, wanted: &Named) -> bool {
        match value {
            Value::Object(map) => map.iter().any(|(key, item)| within(key, item, wanted)),
            Value::Array(items) => items.iter().any(|item| within(name, item, wanted)),
            _ if word(name) != wanted.name => false,
            Value::String(text) => states(text, &wanted.text),
            Value::Bool(on) => *on && wanted.is_truth(),
            other => states(&other.to_string(), &wanted.text),
        }
    }
    arguments.iter().any(|(name, value)| within(name, value, wanted))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "required": ["city", "days"], "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["celsius", "most_warm"]},
            "page": {"type": "integer", "default": 1}, "hourly": {"type": "boolean", "description": "Every hour"},
            "query": {"type": "string"}, "zip_code": {"type": "string"}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "places": {"type": "array", "items": {"$ref": "#/$defs/place"}}},
            "$defs": {"place": {"type": "object", "properties": {"name": {"type": "string"}, "kind": {"enum": ["town", "lake"]}}}}})
    }

    fn of(request: &str, arguments: &Value) -> (Value, Option<String>) {
        let schema = schema();
        let named = |name: &str, text: &str| Named::new(name, text);
        let stated = [named("city", "Bergamo"), named("days", "3")];
        let held = Held { schema: &schema, request, stated: &stated, english: true };
        let kept = held.pruned(arguments.as_object().unwrap());
        let fault = held.fault(&kept);
        (Value::Object(kept), fault)
    }

    const REQUEST: &str = "What will the weather in Bergamo be over the next 3 days?";

    #[test]
    fn a_stated_value_stands_in_its_argument() {
        assert_eq!(of(REQUEST, &json!({"city": "Bergamo", "days": 3})).1, None);
        for (arguments, name) in [
            (json!({"city": "Bergamo", "days": 4}), "days"),
            (json!({"city": "Lecco", "days": 3}), "city"),
            (json!({"city": "3", "days": 3}), "city"),
        ] {
            let fault = of(REQUEST, &arguments).1.unwrap();
            assert!(fault.contains(&format!("`{name}`")), "{fault}");
        }
    }

    #[test]
    fn what_nobody_said_is_pruned_or_refused() {
        let noise = json!({"city": "Bergamo", "days": 3, "page": 1, "hourly": true, "unit": "celsius", "query": "rain", "zip_code": "24121", "note": "x"});
        assert_eq!(of(REQUEST, &noise), (json!({"city": "Bergamo", "days": 3}), None));
        let said = format!("{REQUEST} Every hour, and the most warm unit.");
        let (kept, fault) = of(&said, &json!({"city": "Bergamo", "days": 3, "hourly": false, "unit": "most_warm"}));
        assert_eq!((kept, fault), (json!({"city": "Bergamo", "days": 3, "hourly": false, "unit": "most_warm"}), None));

        let schema = schema();
        let held = Held { schema: &schema, request: "Go to Lake Como.", stated: &[], english: true };
        for (arguments, value) in [
            (json!({"zip_code": "24121"}), "24121"),
            (json!({"query": "other things"}), "other things"),
            (json!({"page": 2}), "2"),
            (json!({"places": [{"name": "Lake Como", "kind": "lake"}, {"name": "Lecco", "kind": "town"}]}), "Lecco"),
            (json!({"note": format!("{} See INV-77.", "As was said before. ".repeat(10))}), "INV-77"),
        ] {
            let fault = held.fault(arguments.as_object().unwrap()).unwrap();
            assert!(fault.contains(&format!("`{value}`")), "{fault}");
        }
        for good in [
            json!({"page": 1, "hourly": true, "unit": "celsius"}),
            json!({"query": "name = 'x' OR age > 7"}),
            json!({"places": [{"name": "Lake Como", "kind": "lake"}], "note": null}),
            json!({"note": "As was said before. ".repeat(10)}),
        ] {
            assert_eq!(held.fault(good.as_object().unwrap()), None, "{good}");
        }
    }
}
