//! Fields of an entry: the first of several places that holds something.

use serde_json::Value;

/// Levels of nesting below which a page's values are taken for nothing: what is kept of them must be readable again.
const DEEPEST: usize = 96;

/// The JSON of a page. What can be mended in it is: a character that is cut in two, or a value that is nested too deeply,
/// spoils its own entry and no other.
///
/// # Errors
/// It is no JSON.
pub(super) fn json(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(text).or_else(|error| {
        let mut value = mcpmill_core::json::read(text.as_bytes()).ok_or(error)?.value;
        cut(&mut value, DEEPEST);
        Ok(value)
    })
}

/// Empties what is nested more deeply.
fn cut(value: &mut Value, levels: usize) {
    match value {
        Value::Array(_) | Value::Object(_) if levels == 0 => *value = Value::Null,
        Value::Array(items) => items.iter_mut().for_each(|item| cut(item, levels - 1)),
        Value::Object(members) => members.values_mut().for_each(|member| cut(member, levels - 1)),
        _ => {}
    }
}

/// The first value at these pointers that is not null.
pub(super) fn value<'a>(entry: &'a Value, pointers: &[String]) -> Option<&'a Value> {
    pointers.iter().filter_map(|pointer| entry.pointer(pointer)).find(|value| !value.is_null())
}

/// The first text at these pointers that is not blank; numbers and booleans count as text.
pub(super) fn text(entry: &Value, pointers: &[String]) -> Option<String> {
    pointers.iter().filter_map(|pointer| entry.pointer(pointer)).find_map(plain)
}

/// Words of a list that are kept, and characters of each.
const MOST_WORDS: usize = 12;
const LONGEST_WORD: usize = 80;

/// The first words at these pointers: one text, a list of texts, or a list of objects with a `name`; each once, in order.
pub(super) fn words(entry: &Value, pointers: &[String]) -> Vec<String> {
    let word = |value: &Value| plain(value).or_else(|| plain(value.get("name")?));
    let of = |value: &Value| -> Vec<String> {
        let items = value.as_array().map_or_else(|| std::slice::from_ref(value), Vec::as_slice);
        let mut words: Vec<String> = Vec::new();
        for word in items.iter().filter_map(word).map(|word| mcpmill_core::text::clipped(&word, LONGEST_WORD)) {
            if words.len() < MOST_WORDS && !words.contains(&word) {
                words.push(word);
            }
        }
        words
    };
    pointers.iter().filter_map(|pointer| entry.pointer(pointer)).map(of).find(|words| !words.is_empty()).unwrap_or_default()
}

/// A scalar as text, trimmed; `None` when it is blank.
pub(super) fn plain(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Bool(flag) => flag.to_string(),
        _ => return None,
    };
    (!text.is_empty()).then_some(text)
}

/// The text of the first of these members.
pub(super) fn member(object: &Value, names: &[&str]) -> Option<String> {
    names.iter().filter_map(|name| object.get(name)).find_map(plain)
}

/// The items of the first of these members that is a list.
pub(super) fn list<'a>(object: &'a Value, names: &[&str]) -> &'a [Value] {
    names.iter().find_map(|name| object.get(name)?.as_array()).map_or(&[], Vec::as_slice)
}

/// Whether one of these members is true.
pub(super) fn flag(object: &Value, names: &[&str]) -> bool {
    names.iter().filter_map(|name| object.get(name)).any(|value| value.as_bool() == Some(true))
}

/// `template` with `{name}` and `{/pointer}` filled from an entry, percent-encoded. A field that is not
/// there is an error that names it.
pub(super) fn fill(template: &str, entry: &Value, name: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (field, tail) = after.split_once('}').ok_or("a brace is not closed")?;
        let value = match field {
            "name" => Some(name.to_owned()),
            pointer if pointer.starts_with('/') => entry.pointer(pointer).and_then(plain),
            // The variable of an address that the user fills in.
            _ => None,
        };
        out.push_str(before);
        match value {
            Some(value) => out.push_str(&encode(&value)),
            None if field.starts_with('/') => return Err(format!("the entry has no `{field}`")),
            None => out.push_str(&format!("{{{field}}}")),
        }
        rest = tail;
    }
    Ok(out + rest)
}

/// Percent-encodes everything but letters, digits and `-._~`: a `/` is `%2F`.
pub(super) fn encode(text: &str) -> String {
    let byte = |b: u8| match b {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(b).to_string(),
        _ => format!("%{b:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// `url` with a query parameter set.
pub(super) fn with_param(url: &str, name: &str, value: &str) -> String {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let others = query.split('&').filter(|pair| !pair.is_empty() && pair.split('=').next() != Some(name));
    let pairs: Vec<String> = others.map(str::to_owned).chain([format!("{name}={}", encode(value))]).collect();
    format!("{base}?{}", pairs.join("&"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_are_filled_and_encoded() {
        let entry = json!({"a": {"slug": "x y"}});
        assert_eq!(
            fill("https://h/{name}/{/a/slug}?u={user}", &entry, "io.x/ä").unwrap(),
            "https://h/io.x%2F%C3%A4/x%20y?u={user}"
        );
        assert!(fill("https://h/{/b}", &entry, "n").unwrap_err().contains("/b"));
        assert_eq!(with_param("https://h/p?a=1&cursor=old", "cursor", "n:1"), "https://h/p?a=1&cursor=n%3A1");
        assert_eq!(with_param("https://h/p", "page", "2"), "https://h/p?page=2");
    }
}
