//! Prepares a JSON schema for a small model, which uses every freedom a schema leaves.

use serde_json::{Map, Value, json};

const MAX_STRING: u64 = 300;
const MAX_ITEMS: u64 = 6;
/// Wide enough for a time in milliseconds.
const MAX_NUMBER: f64 = 1e13;
const STEP: f64 = 0.0001;
/// Deeper schemas are left as they are.
const MAX_DEPTH: usize = 64;

/// A narrower copy of a schema, to constrain an answer with; the answer must still be validated against the
/// original.
///
/// Objects with properties admit no others, strings and arrays get a limit, numbers a range and a step (one
/// longitude ran to 160 digits without it), annotations are dropped, and the layout is fixed to one line. Limits
/// that the schema states itself win where they are narrower or would otherwise contradict.
pub fn tighten(schema: &Value) -> Value {
    let mut copy = schema.clone();
    if let Value::Object(root) = &mut copy {
        if root.get("type") == Some(&json!("object")) && !root.contains_key("properties") && closable(root) {
            root.insert("properties".into(), json!({}));
        }
        narrow(root, true, 0);
        let layout = json!({
            "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
            "coerce_one_of": true, "lenient": true,
        });
        root.insert("x-guidance".into(), layout);
    }
    copy
}

/// `close` is false where a neighbouring schema may add properties to the same object.
fn narrow(schema: &mut Map<String, Value>, close: bool, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    for annotation in ["default", "examples", "title", "$schema"] {
        schema.shift_remove(annotation);
    }
    if close && schema.contains_key("properties") && closable(schema) {
        schema.insert("additionalProperties".into(), json!(false));
    }
    if !schema.contains_key("enum") && !schema.contains_key("const") {
        limit_values(schema);
    }
    let has_properties = schema.contains_key("properties");
    for (keyword, value) in schema.iter_mut() {
        let close = match keyword.as_str() {
            "allOf" => false,
            "anyOf" | "oneOf" => close && !has_properties,
            _ => true,
        };
        for part in parts(keyword, value) {
            narrow(part, close, depth + 1);
        }
    }
}

/// The schemas inside a keyword. Not every map is one: a property may well be called `default`.
fn parts<'a>(keyword: &str, value: &'a mut Value) -> Vec<&'a mut Map<String, Value>> {
    let values: Vec<&mut Value> = match (keyword, value) {
        ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(map)) => map.values_mut().collect(),
        ("items" | "prefixItems" | "allOf" | "anyOf" | "oneOf", Value::Array(list)) => list.iter_mut().collect(),
        ("items" | "additionalProperties", value) => vec![value],
        _ => Vec::new(),
    };
    values.into_iter().filter_map(Value::as_object_mut).collect()
}

/// Whether forbidding unnamed properties leaves the object satisfiable.
fn closable(schema: &Map<String, Value>) -> bool {
    let combined = ["allOf", "anyOf", "oneOf", "$ref", "patternProperties", "if"];
    let named = |name: &Value| name.as_str().is_some_and(|name| !schema["properties"][name].is_null());
    let required = schema.get("required").and_then(Value::as_array).map_or(&[][..], |names| names);
    let needs_unnamed = match schema.contains_key("properties") {
        true => !required.iter().all(named),
        false => !required.is_empty() || schema.contains_key("additionalProperties"),
    };
    !needs_unnamed && !combined.iter().any(|keyword| schema.contains_key(*keyword))
}

fn limit_values(schema: &mut Map<String, Value>) {
    if has_type(schema, "string") && !schema.contains_key("format") {
        at_most(schema, "maxLength", "minLength", MAX_STRING);
    }
    if has_type(schema, "array") {
        at_most(schema, "maxItems", "minItems", MAX_ITEMS);
    }
    let number = has_type(schema, "number");
    if number || has_type(schema, "integer") {
        limit_number(schema, number);
    }
}

fn has_type(schema: &Map<String, Value>, name: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(several)) => several.iter().any(|one| one == name),
        _ => false,
    }
}

fn at_most(schema: &mut Map<String, Value>, upper: &str, lower: &str, most: u64) {
    let stated = schema.get(upper).and_then(Value::as_u64).unwrap_or(u64::MAX);
    let least = schema.get(lower).and_then(Value::as_u64).unwrap_or(0);
    if stated > most && least <= most {
        schema.insert(upper.into(), json!(most));
    }
}

fn limit_number(schema: &mut Map<String, Value>, fractional: bool) {
    let bound = |one: &str, other: &str| schema.get(one).or(schema.get(other)).and_then(Value::as_f64);
    let lowest = bound("minimum", "exclusiveMinimum");
    let highest = bound("maximum", "exclusiveMaximum");
    if highest.is_none() && lowest.is_none_or(|lowest| lowest < MAX_NUMBER) {
        schema.insert("maximum".into(), json!(MAX_NUMBER as i64));
    }
    if lowest.is_none() && highest.is_none_or(|highest| highest > -MAX_NUMBER) {
        schema.insert("minimum".into(), json!(-MAX_NUMBER as i64));
    }
    // Bounds finer than the step, such as 0 < x < 0.00001, keep their freedom.
    let fits = |bound: Option<f64>| bound.is_none_or(|bound| ((bound / STEP).round() * STEP - bound).abs() < 1e-12);
    if fractional && !schema.contains_key("multipleOf") && fits(lowest) && fits(highest) {
        schema.insert("multipleOf".into(), json!(STEP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares what `tighten` makes of a schema, apart from the layout it adds at the root.
    fn check(schema: &Value, expected: &Value) {
        let mut tightened = tighten(schema);
        let layout = tightened.as_object_mut().unwrap().shift_remove("x-guidance").unwrap();
        assert_eq!(layout["whitespace_flexible"], false);
        assert_eq!(&tightened, expected);
    }

    #[test]
    fn objects_are_closed_and_annotations_dropped() {
        check(
            &json!({"$schema": "x", "title": "T", "type": "object", "required": ["a"],
                "properties": {"a": {"type": "boolean", "default": true}, "title": {"type": "null"}}}),
            &json!({"type": "object", "required": ["a"],
                "properties": {"a": {"type": "boolean"}, "title": {"type": "null"}},
                "additionalProperties": false}),
        );
    }

    #[test]
    fn a_tool_without_parameters_takes_none() {
        check(&json!({"type": "object"}), &json!({"type": "object", "properties": {}, "additionalProperties": false}));
        let open = json!({"type": "object", "additionalProperties": {"type": "boolean"}});
        check(&open, &open);
    }

    #[test]
    fn limits_are_added_only_where_they_narrow() {
        check(
            &json!({"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 99}),
            &json!({"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 6}),
        );
        check(&json!({"type": ["string", "null"], "minLength": 400}), &json!({"type": ["string", "null"], "minLength": 400}));
        check(&json!({"type": "string", "enum": ["x"]}), &json!({"type": "string", "enum": ["x"]}));
    }

    #[test]
    fn numbers_get_a_range_and_a_step() {
        let most = MAX_NUMBER as i64;
        check(&json!({"type": "number"}), &json!({"type": "number", "maximum": most, "minimum": -most, "multipleOf": 0.0001}));
        check(&json!({"type": "integer", "minimum": 1}), &json!({"type": "integer", "minimum": 1, "maximum": most}));
        check(
            &json!({"type": "number", "minimum": 0.00001, "maximum": 1}),
            &json!({"type": "number", "minimum": 0.00001, "maximum": 1}),
        );
    }

    #[test]
    fn combined_objects_stay_open() {
        let schema = json!({"allOf": [{"properties": {"a": {"type": "null"}}}, {"properties": {"b": {"type": "null"}}}]});
        check(&schema, &schema);
        let branches = json!({"type": "object", "properties": {"a": {"type": "null"}}, "anyOf": [{"properties": {"b": {}}}]});
        check(&branches, &branches);
    }

    #[test]
    fn alternatives_of_their_own_are_closed() {
        check(
            &json!({"anyOf": [{"properties": {"a": {"type": "null"}}}, {"type": "null"}]}),
            &json!({"anyOf": [{"properties": {"a": {"type": "null"}}, "additionalProperties": false}, {"type": "null"}]}),
        );
    }

    #[test]
    fn required_but_unnamed_properties_keep_the_object_open() {
        let schema = json!({"type": "object", "required": ["z"], "properties": {"a": {"type": "null"}}});
        check(&schema, &schema);
    }

    #[test]
    fn other_values_pass_through() {
        assert_eq!(tighten(&json!(true)), json!(true));
    }
}
