//! Schemas as the steps need them: which parameters a person can say, what is cut out of a schema, what comes next in
//! rotation.

use std::borrow::Cow;

pub(crate) use mcpmill_core::naming::words;
use mcpmill_core::{
    record::Tool,
    schema::{Schema, required},
};
use serde_json::{Map, Value, json};

use super::{code::names_code, values::Named};
use crate::card::property_names;

/// Required parameters of a tool whose values are thought up before the request is: more is no plain request.
const MOST_SAID: usize = 4;

/// Whether a person would say a value of this parameter as it stands: a text or number or several of them, no code, no
/// word of a list.
pub(super) fn is_said(schema: &Value, name: &str) -> bool {
    let open = |property: &Value| {
        let plain = matches!(property["type"].as_str(), Some("string" | "integer" | "number"));
        plain && property["enum"].is_null() && property["const"].is_null()
    };
    let property = &schema["properties"][name];
    (open(property) || (property["type"] == "array" && open(&property["items"]))) && !names_code(name)
}

/// Whether values of all required parameters can be thought up before the request: few, plain, or lists of plain ones.
pub(super) fn is_plain(tool: &Tool) -> bool {
    // A reference leads out of a schema that is cut up.
    if tool.input_schema.contains("\"$ref\"") {
        return false;
    }
    let schema = tool.schema();
    let needed = required(&schema);
    let plain = |name: &String| {
        let property = &schema["properties"][name];
        let kind = |value: &Value| matches!(value["type"].as_str(), Some("string" | "integer" | "number" | "boolean"));
        kind(property) || (property["type"] == "array" && kind(&property["items"]))
    };
    needed.len() <= MOST_SAID && needed.iter().all(plain)
}

/// Whether a call is told by its required parameters: it has some, or the tool takes none at all. A request for a
/// tool with optional ones only says things that nothing holds.
pub(super) fn is_closed(tool: &Tool) -> bool {
    let schema = tool.schema();
    !required(&schema).is_empty() || property_names(&schema).is_empty()
}

/// Required parameters whose values a person says.
pub(super) fn said(schema: &Value) -> Vec<String> {
    required(schema).into_iter().filter(|name| is_said(schema, name)).collect()
}

/// Names whose values point at something that may not be there.
const POINTS: [&str; 18] = [
    "path",
    "file",
    "filename",
    "folder",
    "directory",
    "id",
    "key",
    "name",
    "url",
    "uri",
    "table",
    "branch",
    "repo",
    "email",
    "date",
    "timezone",
    "code",
    "number",
];

/// Required parameters of which a wrong value can be told from a right one: they name a thing, or have a format.
pub(super) fn breakable(schema: &Value) -> Vec<String> {
    let points = |name: &String| {
        let last = words(name).pop().unwrap_or_default();
        if schema["properties"][name]["type"] == "array" {
            return false;
        }
        POINTS.contains(&last.as_str()) || schema["properties"][name]["format"].is_string()
    };
    said(schema).into_iter().filter(points).collect()
}

/// Verbs of tools that bring things into the world.
const MAKING: [&str; 11] = ["create", "write", "save", "add", "make", "new", "generate", "register", "insert", "init", "export"];

/// Whether a tool makes something, going by its name.
pub(super) fn makes(tool: &Tool) -> bool {
    words(&tool.name).iter().any(|word| MAKING.contains(&word.as_str()))
}

/// `schema` cut to these properties, all of them required.
pub(super) fn only(schema: &Value, parameters: &[String]) -> Value {
    let mut cut = schema.clone();
    if let Some(properties) = cut["properties"].as_object_mut() {
        properties.retain(|name, _| parameters.contains(name));
    }
    // A value is wanted, and `null` is none.
    for (name, property) in cut["properties"].as_object_mut().into_iter().flatten() {
        if !required(schema).contains(name) {
            *property = plain(property).into_owned();
        }
    }
    cut["required"] = json!(parameters);
    cut
}

/// The same, and nothing else is let in: for schemas that stand inside another.
pub(super) fn exactly(schema: &Value, parameters: &[String]) -> Value {
    let properties: Map<String, Value> =
        parameters.iter().map(|name| (name.clone(), schema["properties"][name].clone())).collect();
    json!({ "type": "object", "properties": properties, "required": parameters, "additionalProperties": false })
}

/// A property without the `null` beside its type: `Optional[...]` of Python is `anyOf` with it.
pub(super) fn plain(property: &Value) -> Cow<'_, Value> {
    if let Some(kinds) = property["type"].as_array() {
        let mut kinds = kinds.iter().filter(|kind| *kind != "null");
        if let (Some(kind), None) = (kinds.next(), kinds.next()) {
            let mut plain = property.clone();
            plain["type"] = kind.clone();
            return Cow::Owned(plain);
        }
    }
    for either in ["anyOf", "oneOf"] {
        let Some(branches) = property[either].as_array() else { continue };
        let mut open = branches.iter().filter(|branch| branch["type"] != "null");
        if let (Some(Value::Object(branch)), None) = (open.next(), open.next()) {
            let mut plain = property.as_object().cloned().unwrap_or_default();
            plain.remove(either);
            plain.extend(branch.clone());
            return Cow::Owned(Value::Object(plain));
        }
    }
    Cow::Borrowed(property)
}

/// The words by which a truth value is said: those of its name and of its description that mean something.
pub(super) fn spoken(schema: &Value, name: &str) -> Vec<String> {
    let described = schema["properties"][name]["description"].as_str().unwrap_or_default();
    name_words(name).into_iter().chain(telling(described.split_whitespace().flat_map(words), 4)).collect()
}

/// The words of a name that mean something.
fn name_words(name: &str) -> Vec<String> {
    telling(words(name).into_iter(), 3)
}

fn telling(all: impl Iterator<Item = String>, least: usize) -> Vec<String> {
    all.filter(|word| word.chars().count() >= least && !SMALL_WORDS.contains(&word.as_str())).collect()
}

/// A truth value as it is put into a request, `None` where its name says nothing.
pub(super) fn truth(name: &str) -> Option<Named> {
    let told = name_words(name);
    (!told.is_empty()).then(|| Named { words: told, ..Named::new(name, words(name).join(" ")) })
}

/// Words of descriptions that stand in any request.
const SMALL_WORDS: [&str; 36] = [
    "the", "and", "for", "has", "whether", "true", "false", "with", "when", "this", "that", "only", "also", "from", "into",
    "default", "should", "will", "have", "been", "them", "they", "then", "than", "each", "some", "enable", "enabled", "disable",
    "value", "optional", "return", "show", "your", "what", "which",
];

/// Optional parameters that can be woven into a request: texts, numbers, words of a list, several of them, and with
/// `truths` those that are switched on.
pub(super) fn optional(schema: &Value, truths: bool) -> Vec<String> {
    let needed = required(schema);
    let scalar = |property: &Value| {
        property["enum"].is_array() || matches!(property["type"].as_str(), Some("string" | "integer" | "number"))
    };
    let fits = |name: &String| {
        let property = plain(&schema["properties"][name]);
        let several = property["type"] == "array" && scalar(&property["items"]);
        scalar(&property) || several || (truths && is_truth(&property) && truth(name).is_some())
    };
    property_names(schema).into_iter().filter(|name| !needed.contains(name) && fits(name)).collect()
}

/// Whether a property, without its `null`, is true or false.
pub(super) fn is_truth(property: &Value) -> bool {
    property["type"] == "boolean"
}

/// The value that the `turn`th sample with the parameter `name` has: the words of a list one after the other; of a
/// number every other value that lies at an edge. `None` leaves it to the model.
pub(super) fn value_in_turn(name: &str, property: &Value, turn: usize) -> Option<Value> {
    let property = plain(property);
    if let Some(words) = property["enum"].as_array() {
        let said: Vec<&Value> =
            words.iter().filter(|word| word.as_str().is_some_and(|w| !w.trim().is_empty()) || word.is_number()).collect();
        return said.get(turn % said.len().max(1)).map(|word| (*word).clone());
    }
    match property["type"].as_str() {
        Some("array") if property["items"]["enum"].is_array() => {
            value_in_turn(name, &property["items"], turn).map(|word| json!([word]))
        }
        Some("integer" | "number") => {
            let edges = edges(name, &property, turn);
            // One turn in as many is the model's.
            (turn % (edges.len() + 1)).checked_sub(1).and_then(|at| edges.get(at).cloned())
        }
        _ => None,
    }
}

/// Bounds further out than this say how a number is stored, not what it means.
const FARTHEST: f64 = 1e9;

/// What counts or names things is never none of them, nor less, even where no schema says so.
const COUNTS: [&str; 34] = [
    "limit", "count", "page", "size", "id", "number", "port", "year", "month", "day", "hour", "minute", "second", "week",
    "width", "height", "length", "max", "top", "depth", "timeout", "quantity", "age", "line", "row", "column", "level", "radius",
    "amount", "price", "total", "num", "step", "duration",
];

/// Values at the edges of what a number may be: its bounds, zero, something below.
fn edges(name: &str, property: &Value, turn: usize) -> Vec<Value> {
    let mut all: Vec<Value> = ["minimum", "maximum"]
        .into_iter()
        .filter_map(|bound| property.get(bound))
        .filter(|bound| bound.as_f64().is_some_and(|n| n.abs() <= FARTHEST))
        .cloned()
        .collect();
    if !words(name).iter().any(|word| COUNTS.contains(&word.as_str())) {
        all.extend([json!(0), json!(-1 - (turn as i64 / 5) % 20)]);
    }
    let accepts = Schema::compile(property);
    all.retain(|value| accepts.as_ref().is_ok_and(|schema| schema.accepts(value)));
    let known = all.clone();
    let mut at = 0;
    all.retain(|value| {
        at += 1;
        !known[..at - 1].iter().any(|before| before.as_f64() == value.as_f64())
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::tests::tool;

    #[test]
    fn says_what_a_person_can_say() {
        let schema = json!({"type": "object", "properties": {
            "city": {"type": "string"}, "unit": {"type": "string", "enum": ["c", "f"]}, "sql": {"type": "string"},
            "note_id": {"type": "integer"}, "paths": {"type": "array", "items": {"type": "string"}}, "deep": {"type": "object"}, "days": {"type": "integer"}, "loud": {"type": "boolean"}},
            "required": ["city", "unit", "sql", "note_id"]});
        assert_eq!(said(&schema), ["city", "note_id"]);
        let mut listed = schema.clone();
        listed["required"] = json!(["paths"]);
        assert_eq!((said(&listed), breakable(&listed)), (vec!["paths".to_owned()], vec![]));
        assert_eq!(breakable(&schema), ["note_id"]);
        assert_eq!(optional(&schema, false), ["paths", "days"]);
        assert_eq!(optional(&schema, true), ["paths", "days", "loud"]);
        let python = json!({"properties": {"topic": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}, "old": {"type": ["integer", "null"]},
            "odd": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "is_a": {"type": "boolean"}}});
        assert_eq!(optional(&python, true), ["topic", "tags", "old"]);
        assert_eq!(only(&python, &["topic".to_owned()])["properties"]["topic"]["type"], "string");
        assert!(is_plain(&tool("t", "d", schema.clone())));
        let mut nested = schema;
        nested["required"] = json!(["deep"]);
        assert!(!is_plain(&tool("t", "d", nested)));
        assert!(is_closed(&tool("t", "d", json!({}))));
        assert!(!is_closed(&tool("t", "d", json!({"properties": {"a": {"type": "string"}}}))));
        assert!(!is_plain(&tool("t", "d", json!({"properties": {"a": {"$ref": "#/$defs/a"}}}))));
    }

    #[test]
    fn values_come_in_turn() {
        let words = json!({"enum": ["a", "", null, "b"]});
        let of = |name: &str, property: &Value, turns: usize| -> Vec<Value> {
            (0..turns).map(|turn| value_in_turn(name, property, turn).unwrap_or_default()).collect()
        };
        assert_eq!(json!(of("a", &words, 3)), json!(["a", "b", "a"]));
        let bounded = json!({"type": "integer", "minimum": 0, "maximum": 50});
        assert_eq!(json!(of("a", &bounded, 4)), json!([null, 0, 50, null]), "the least is zero, and comes once");
        let free = json!({"anyOf": [{"type": "number"}, {"type": "null"}]});
        assert_eq!(json!(of("offset", &free, 3)), json!([null, 0, -1]));
        assert_eq!(json!(of("page_size", &free, 3)), json!([null, null, null]), "nobody asks for -1 pages");
        let above = json!({"type": "integer", "exclusiveMinimum": 0, "maximum": 9_007_199_254_740_991_u64});
        assert_eq!(json!(of("offset", &above, 3)), json!([null, null, null]));
        let listed = json!({"type": "array", "items": {"enum": ["a", "b"]}});
        assert_eq!(json!(of("kinds", &listed, 2)), json!([["a"], ["b"]]));
        assert_eq!(value_in_turn("a", &json!({"type": "string"}), 1), None);
        assert_eq!(value_in_turn("a", &json!({"enum": []}), 0), None);
    }
}
