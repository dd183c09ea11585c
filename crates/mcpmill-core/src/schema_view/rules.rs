//! What providers take, as they document it; read on 2026-11-30.
//!
//! - OpenAI strict: the guide "Structured model outputs", section "Supported schemas" (baseline of
//!   February 2026): a root object that is no `anyOf`, every property required, `additionalProperties: false`,
//!   no `allOf`, `not`, `dependentRequired`, `dependentSchemas`, `if`, `then`, `else`; at most 5,000 properties, 10 levels,
//!   120,000 characters of names and values, 1,000 enum values, 15,000 characters in an enum of more than 250.
//! - OpenAI without strict: no list of keywords; the API refuses a root that is not `type: object` with
//!   `properties`, root `oneOf`, `anyOf`, `allOf`, `enum`, `not`, and arrays without `items`.
//! - Gemini: the `Schema` object of the API reference (a subset of OpenAPI 3.0): no references, no `oneOf`, `allOf`, `const`
//!   or `additionalProperties`; `enum` and its values are text; one `type`, with `nullable`; the API takes the formats `enum` and
//!   `date-time` of text, `float` and `double` of numbers, `int32` and `int64` of integers; objects have properties.
//! - Anthropic: the tool use reference and the notes on MCP tools in "Self-hosted sandboxes": root `type: object` without
//!   `oneOf`, `anyOf`, `allOf`; no references; property names `[A-Za-z0-9_.-]{1,64}`; valid under JSON Schema 2020-12.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Provider;

/// Nodes of a view; the largest of 13,000 real schemas has some thousand.
pub(super) const MOST_NODES: usize = 20_000;

/// Properties of a strict schema.
pub(super) const STRICT_PROPERTIES: usize = 5_000;
/// Enum values of a strict schema.
pub(super) const STRICT_ENUM_VALUES: usize = 1_000;
/// Characters of names and enum values of a strict schema.
pub(super) const STRICT_TEXT: usize = 120_000;
/// Values of a text enum beyond which its characters are counted.
pub(super) const STRICT_LARGE_ENUM: usize = 250;
/// Characters of such an enum.
pub(super) const STRICT_ENUM_TEXT: usize = 15_000;

/// Levels of objects and arrays that a view has. OpenAI counts ten and does not say whether arrays
/// are among them; here they are. For the others it is what bounds the walk.
pub(super) fn levels(provider: Provider) -> usize {
    if provider == Provider::OpenAiStrict { 10 } else { 48 }
}

const STRICT: [&str; 19] = [
    "type",
    "title",
    "description",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "anyOf",
    "enum",
    "const",
    "pattern",
    "format",
    "multipleOf",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minItems",
    "maxItems",
];

/// `const` is taken as an `enum` of one.
const GEMINI: [&str; 21] = [
    "type",
    "title",
    "description",
    "properties",
    "required",
    "items",
    "anyOf",
    "enum",
    "format",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "default",
    "nullable",
    "const",
];

/// Keywords that only make sense in a document of its own or refer elsewhere.
const OF_DOCUMENTS: [&str; 10] = [
    "$schema",
    "$id",
    "$anchor",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
    "$vocabulary",
    "$defs",
    "definitions",
];

/// Whether a provider takes a keyword below the root.
pub(super) fn takes(provider: Provider, keyword: &str) -> bool {
    match provider {
        Provider::OpenAiStrict => STRICT.contains(&keyword),
        Provider::Gemini => GEMINI.contains(&keyword),
        Provider::OpenAi | Provider::Anthropic => !OF_DOCUMENTS.contains(&keyword),
    }
}

/// Whether a value of `format` is taken for a type.
pub(super) fn takes_format(provider: Provider, kind: &str, format: &str) -> bool {
    match provider {
        Provider::OpenAiStrict => {
            matches!(format, "date-time" | "time" | "date" | "duration" | "email" | "hostname" | "ipv4" | "ipv6" | "uuid")
        }
        Provider::Gemini => matches!(
            (kind, format),
            ("string", "enum" | "date-time") | ("number", "float" | "double") | ("integer", "int32" | "int64")
        ),
        Provider::OpenAi | Provider::Anthropic => true,
    }
}

/// Whether a regular expression is taken: OpenAI's grammar has no look-around and no back-references.
pub(super) fn takes_pattern(provider: Provider, pattern: &str) -> bool {
    let beyond = ["(?=", "(?!", "(?<=", "(?<!"].iter().any(|p| pattern.contains(p))
        || pattern.as_bytes().windows(2).any(|w| w[0] == b'\\' && matches!(w[1], b'1'..=b'9'));
    provider != Provider::OpenAiStrict || !beyond
}

/// Whether `value` is what JSON Schema 2020-12 wants of a keyword; a wrong one makes the whole schema invalid.
pub(super) fn is_well_formed(keyword: &str, value: &Value) -> bool {
    let is_type = |v: &Value| {
        let name = v.as_str().unwrap_or_default();
        matches!(name, "null" | "boolean" | "object" | "array" | "number" | "integer" | "string")
    };
    let is_set = |v: &Value, each: &dyn Fn(&Value) -> bool| {
        v.as_array().is_some_and(|list| {
            let mut seen = BTreeSet::new();
            list.iter().all(|x| each(x) && seen.insert(x.as_str()))
        })
    };
    match keyword {
        "type" => is_type(value) || (is_set(value, &is_type) && value != &Value::Array(Vec::new())),
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => value.is_number(),
        "multipleOf" => value.as_f64().is_some_and(|n| n > 0.0),
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" | "minContains"
        | "maxContains" => value.as_f64().is_some_and(|n| n >= 0.0 && n.fract() == 0.0),
        "required" => is_set(value, &Value::is_string),
        "enum" => value.as_array().is_some_and(|list| !list.is_empty()),
        "pattern" | "format" | "title" | "description" | "$comment" => value.is_string(),
        "uniqueItems" | "deprecated" | "readOnly" | "writeOnly" | "nullable" => value.is_boolean(),
        "examples" => value.is_array(),
        "dependentRequired" => value.as_object().is_some_and(|m| m.values().all(|v| is_set(v, &Value::is_string))),
        _ => true,
    }
}
