//! Canonical JSON and content hashes: the one place identity comes from.

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Writes `value` with object keys sorted by code point and no white space, so that equal
/// content is equal text whatever order a server or a model put its keys in.
///
/// Numbers are written as `serde_json` prints them; `1` and `1.0` stay different.
pub fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_unstable();
            out.push('{');
            for (i, key) in keys.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write(&map[key], out);
            }
            out.push('}');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// SHA-256 of `bytes` as 64 lower-case hex digits.
pub fn sha256_hex(bytes: impl AsRef<[u8]>) -> String {
    hex::encode(Sha256::digest(bytes.as_ref()))
}

/// SHA-256 over the canonical JSON of any serialisable value, as 64 hex digits.
///
/// A value that cannot be written as JSON (a map with non-string keys) hashes its error text;
/// no record of this program is such a value.
pub fn content_hash<T: Serialize + ?Sized>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(json) => sha256_hex(canonical(&json)),
        Err(error) => sha256_hex(format!("unserialisable: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn key_order_does_not_matter_but_list_order_does() {
        let a: Value = serde_json::from_str(r#"{"b":[1,2],"a":{"y":null,"x":"é\n"}}"#).unwrap();
        let b: Value = serde_json::from_str(r#"{"a":{"x":"é\n","y":null},"b":[1,2]}"#).unwrap();
        assert_eq!(canonical(&a), r#"{"a":{"x":"é\n","y":null},"b":[1,2]}"#);
        assert_eq!(content_hash(&a), content_hash(&b));
        assert_ne!(content_hash(&json!([1, 2])), content_hash(&json!([2, 1])));
        assert_ne!(content_hash(&json!(1)), content_hash(&json!(1.0)));
    }

    #[test]
    fn known_digest() {
        assert_eq!(sha256_hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
