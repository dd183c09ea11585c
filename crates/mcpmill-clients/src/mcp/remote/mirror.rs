//! Arguments that a tool of 2026-07-28 wants in headers too, so that those in between can route its calls.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::transport::header_text;

/// The key of a property's schema that names its header.
const KEY: &str = "x-mcp-header";

/// Arguments of one tool that also go into headers.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Mirrored(Vec<(Vec<String>, HeaderName)>);

impl Mirrored {
    /// What a tool's schema wants. `Err` says what is wrong with it: then the tool must not be called.
    pub(super) fn of(schema: &Value) -> Result<Self, String> {
        let mut mirrored = Self::default();
        mirrored.gather(schema, &mut Vec::new())?;
        // Found elsewhere (below `items`, in a branch), no argument can be told by it.
        if uses(schema) != mirrored.0.len() {
            return Err(format!("has `{KEY}` where no property is"));
        }
        Ok(mirrored)
    }

    fn gather(&mut self, schema: &Value, path: &mut Vec<String>) -> Result<(), String> {
        let Some(properties) = schema["properties"].as_object() else { return Ok(()) };
        for (property, schema) in properties {
            path.push(property.clone());
            if let Some(name) = schema.as_object().and_then(|fields| fields.get(KEY)) {
                let name = header(name, schema)?;
                if self.0.iter().any(|(_, known)| *known == name) {
                    return Err(format!("has `{KEY}` twice with one name"));
                }
                self.0.push((path.clone(), name));
            }
            self.gather(schema, path)?;
            path.pop();
        }
        Ok(())
    }

    /// The headers for these arguments. What is absent or null has none.
    pub(super) fn headers(&self, arguments: &Value) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (path, name) in &self.0 {
            let text = match path.iter().try_fold(arguments, |value, part| value.get(part)) {
                Some(Value::String(text)) => header_text(text),
                Some(value @ (Value::Bool(_) | Value::Number(_))) => value.to_string(),
                _ => continue,
            };
            if let Ok(mut value) = HeaderValue::from_str(&text) {
                value.set_sensitive(true);
                headers.insert(name.clone(), value);
            }
        }
        headers
    }
}

/// The header of one property, when it may have one.
fn header(name: &Value, schema: &Value) -> Result<HeaderName, String> {
    if !matches!(schema["type"].as_str(), Some("string" | "integer" | "boolean")) {
        return Err(format!("has `{KEY}` at a property that is no text, whole number or boolean"));
    }
    let name = name.as_str().filter(|name| !name.is_empty());
    let name = name.and_then(|name| HeaderName::from_bytes(format!("mcp-param-{name}").as_bytes()).ok());
    name.ok_or_else(|| format!("has `{KEY}` with a name that no header can have"))
}

/// How often a schema says it, as a word of its own: names of properties and values are none.
fn uses(schema: &Value) -> usize {
    match schema {
        Value::Array(parts) => parts.iter().map(uses).sum(),
        Value::Object(fields) => fields.iter().map(|(key, part)| used(key, part)).sum(),
        _ => 0,
    }
}

fn used(key: &str, part: &Value) -> usize {
    match (key, part) {
        (KEY, _) => 1,
        ("properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas", Value::Object(named)) => {
            named.values().map(uses).sum()
        }
        ("default" | "const" | "enum" | "examples" | "required" | "dependentRequired", _) => 0,
        _ => uses(part),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mirrored(properties: impl Into<Value>) -> Result<Mirrored, String> {
        let properties: Value = properties.into();
        Mirrored::of(&json!({"type": "object", "properties": properties}))
    }

    #[test]
    fn arguments_go_into_headers_as_they_are_named() {
        let mirrored = mirrored(json!({
            "region": {"type": "string", "x-mcp-header": "Region"},
            "count": {"type": "integer", "x-mcp-header": "Count"},
            "x-mcp-header": {"type": "string", "default": {"x-mcp-header": 1}},
            "place": {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}},
            "quiet": {"type": "boolean", "x-mcp-header": "Quiet"},
        }))
        .unwrap();
        let place = json!({"city": "Ulm"});
        let given = json!({"region": "Grüße", "count": 3, "place": place, "quiet": null, "x-mcp-header": "x"});
        let headers = mirrored.headers(&given);
        let text = |name: &str| headers[name].to_str().unwrap().to_owned();
        assert_eq!(headers.len(), 3);
        assert_eq!(text("mcp-param-region"), "=?base64?R3LDvMOfZQ==?=");
        assert_eq!((text("mcp-param-count"), text("mcp-param-city")), ("3".to_owned(), "Ulm".to_owned()));
        assert_eq!(mirrored.headers(&json!({"place": "Ulm"})).len(), 0);
        assert_eq!(mirrored.headers(&json!(7)).len(), 0);
    }

    #[test]
    fn tools_that_name_none_that_can_be_are_told() {
        let text = |name: Value| json!({"type": "string", "x-mcp-header": name});
        for name in [json!(""), json!("a b"), json!("a:b"), json!("é"), json!("a\tb"), json!(1)] {
            assert!(mirrored(json!({"a": text(name.clone())})).unwrap_err().contains("no header can have"), "{name}");
        }
        let twice = json!({"a": text(json!("Region")), "b": text(json!("region"))});
        assert!(mirrored(twice).unwrap_err().contains("twice"));
        for kind in ["number", "object", "array", "null"] {
            assert!(mirrored(json!({"a": {"type": kind, "x-mcp-header": "A"}})).is_err(), "{kind}");
        }
        assert!(mirrored(json!({"a": {"type": "array", "items": text(json!("A"))}})).is_err());
        assert!(Mirrored::of(&json!({"x-mcp-header": "A"})).is_err());
        assert_eq!(Mirrored::of(&json!(true)), Ok(Mirrored::default()));
    }
}
