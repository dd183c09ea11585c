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
