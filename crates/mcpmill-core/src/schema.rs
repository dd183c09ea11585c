//! JSON Schema: whether arguments fit what a tool declares.

use serde_json::Value;
use thiserror::Error;

/// A compiled schema.
pub struct Schema(jsonschema::Validator);

/// The schema itself cannot be used; 13 of 13,000 real tools declare such.
#[derive(Debug, Error)]
#[error("schema cannot be compiled: {0}")]
pub struct SchemaError(String);

impl Schema {
    /// Compiles a schema. `$ref`s to other documents are not followed.
    ///
    /// # Errors
    /// The schema is not valid JSON Schema.
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        jsonschema::validator_for(schema).map(Self).map_err(|e| SchemaError(e.to_string()))
    }

    /// Compiles a schema so that formats (`date`, `email`, `uuid`, …) are held to, whatever its draft says of them; those
    /// that the schema's own defaults and examples break are not.
    ///
    /// # Errors
    /// As [`Schema::compile`].
    pub fn strict(schema: &Value) -> Result<Self, SchemaError> {
        let mut honest = schema.clone();
        without_broken_formats(&mut honest, 0);
        let built = jsonschema::options().should_validate_formats(true).build(&honest);
        built.map(Self).map_err(|e| SchemaError(e.to_string()))
    }

    /// What is wrong with `instance`, one sentence a fault, at most `most`; empty when it validates.
    pub fn faults(&self, instance: &Value, most: usize) -> Vec<String> {
        self.0
            .iter_errors(instance)
            .take(most)
            .map(|error| {
                let at = error.instance_path().to_string();
                let at = if at.is_empty() { "arguments".to_owned() } else { format!("`{at}`") };
                format!("{at}: {error}")
            })
            .collect()
    }

    /// Whether `instance` validates.
    pub fn accepts(&self, instance: &Value) -> bool {
        self.0.is_valid(instance)
    }
}

/// How deep a schema is looked into for formats.
const DEEPEST: usize = 64;

/// Takes out formats that values which the schema itself gives do not have: the server does not hold to them either.
fn without_broken_formats(schema: &mut Value, depth: usize) {
    match schema {
        Value::Object(map) if depth < DEEPEST => {
            if let Some(format) = map.get("format").filter(|format| format.is_string()) {
                let alone = serde_json::json!({ "format": format });
                let check = jsonschema::options().should_validate_formats(true).build(&alone);
                let listed = ["examples", "enum"].into_iter().filter_map(|name| map.get(name)?.as_array()).flatten();
                let mut own = listed.chain(["default", "example", "const"].into_iter().filter_map(|name| map.get(name)));
                if check.is_ok_and(|check| own.any(|value| !check.is_valid(value))) {
                    map.remove("format");
                }
            }
            map.values_mut().for_each(|inner| without_broken_formats(inner, depth + 1));
        }
        Value::Array(items) if depth < DEEPEST => items.iter_mut().for_each(|inner| without_broken_formats(inner, depth + 1)),
        _ => {}
    }
}

/// What is wrong with a schema under JSON Schema 2020-12, whatever draft it names; `None` when nothing is.
pub fn fault_2020_12(schema: &Value) -> Option<String> {
    jsonschema::draft202012::meta::validate(schema).err().map(|e| e.to_string())
}

/// Names of the required properties of an object schema, in the server's order.
pub fn required(schema: &Value) -> Vec<String> {
    let names = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    names.iter().filter_map(|n| n.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn faults_name_the_place() {
        let schema = Schema::compile(&json!({"type":"object","properties":{"n":{"type":"integer"}},"required":["p"]})).unwrap();
        let faults = schema.faults(&json!({"n": "x"}), 9);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults.iter().any(|f| f.contains("/n")), "{faults:?}");
        assert!(schema.accepts(&json!({"p": 1})));
    }

    #[test]
    fn formats_are_held_to_but_for_those_the_schema_breaks_itself() {
        for (format, good, bad) in [
            ("date", "2026-03-03", "3 March"),
            ("date-time", "2026-03-03T10:00:00Z", "2026-03-03"),
            ("time", "10:00:00Z", "ten"),
            ("email", "ada@example.com", "ada"),
            ("uri", "https://example.com/a", "example"),
            ("uuid", "3e4666bf-d5e5-4aa7-b8ce-cefe41c7568a", "3e4666bf"),
            ("ipv4", "192.0.2.1", "192.0.2.256"),
            ("ipv6", "2001:db8::1", "2001:zz"),
            ("hostname", "mill.example", "-mill-"),
            ("regex", "^a+$", "(a"),
        ] {
            // Draft 7 does not know `uuid`.
            let drafts = ["https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"];
            for draft in drafts.into_iter().take(if format == "uuid" { 1 } else { 2 }) {
                let of = |more: Value| json!({"$schema": draft, "properties": {"a": {"type": "string", "format": format, "default": more}}});
                let schema = Schema::strict(&of(json!(good))).unwrap();
                assert!(schema.accepts(&json!({"a": good})) && !schema.accepts(&json!({"a": bad})), "{format}");
                assert!(Schema::strict(&of(json!(bad))).unwrap().accepts(&json!({"a": bad})), "{format}");
            }
        }
        let unknown = Schema::strict(&json!({"properties": {"a": {"format": "colour"}}})).unwrap();
        assert!(unknown.accepts(&json!({"a": "x"})));
    }

    #[test]
    fn a_broken_schema_is_an_error_not_a_panic() {
        assert!(Schema::compile(&json!({"type": "any"})).is_err());
    }

    #[test]
    fn deep_schemas_and_such_that_name_themselves_do_not_overflow() {
        let deep = (0..500).fold(json!({"type": "string"}), |items, _| json!({"items": items}));
        let (nested, wrong) = (0..500).fold((json!("x"), json!(1)), |(a, b), _| (json!([a]), json!([b])));
        let schema = Schema::compile(&deep).unwrap();
        assert!(schema.accepts(&nested) && !schema.accepts(&wrong));
        assert_eq!(fault_2020_12(&deep), None);
        let itself = json!({"type": "object", "properties": {"child": {"$ref": "#"}, "loop": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}});
        let child = (0..200).fold(json!({}), |child, _| json!({"child": child, "loop": null}));
        assert!(Schema::compile(&itself).unwrap().accepts(&child));
    }

    #[test]
    fn what_stands_elsewhere_is_not_fetched() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        for place in [format!("http://{}/schema.json", listener.local_addr().unwrap()), "file:///etc/hostname".into()] {
            let schema = json!({"type": "object", "properties": {"a": {"$ref": place}}});
            assert!(Schema::compile(&schema).is_err(), "{place}");
        }
        assert!(listener.accept().is_err(), "nobody came");
    }

    #[test]
    fn look_around_patterns_compile() {
        let schema = Schema::compile(&json!({"type":"string","pattern":"^(?!foo).*$"})).unwrap();
        assert!(schema.accepts(&json!("bar")));
        assert!(!schema.accepts(&json!("food")));
    }
}
