//! `mcpServers` blocks, wherever they stand: in a configuration, in the code of a page, in a string.

use mcpmill_core::{
    record::EnvVar,
    secrets::names_a_secret,
    template::{Form, Hole, fill, is_variable},
};
use serde_json::Value;

use super::{Draft, none, remote};
use crate::discover::pick;

/// Strings of an entry that are searched for a block.
const MOST_STRINGS: usize = 2_000;
/// Levels of an entry that are searched for a block that is no string.
const NESTED: usize = 4;

pub(super) fn map(entry: &Value, draft: &mut Draft) {
    let found = object(entry, NESTED).or_else(|| {
        let mut texts = Vec::new();
        strings(entry, &mut texts);
        texts.into_iter().find_map(search)
    });
    match found {
        Some(config) => (draft.launch, draft.env) = (config.launch, config.env),
        None => draft.launch = none(&draft.name),
    }
}

/// The first server of a block that stands in the entry as it is, some levels down at most.
fn object(entry: &Value, levels: usize) -> Option<Draft> {
    let inner = |value: &Value| levels.checked_sub(1).and_then(|levels| object(value, levels));
    match entry {
        Value::Object(members) => {
            let here = members.get("mcpServers").and_then(|block| configs(block).into_iter().next());
            here.or_else(|| members.values().find_map(inner))
        }
        Value::Array(items) => items.iter().find_map(inner),
        _ => None,
    }
}

/// The servers of the object under `mcpServers`, `servers` or `mcp.servers`.
pub(in crate::discover) fn configs(block: &Value) -> Vec<Draft> {
    block.as_object().into_iter().flatten().map(|(name, form)| config(name, form)).collect()
}

fn config(name: &str, form: &Value) -> Draft {
    let mut draft = Draft::named(name);
    let variables = |member: &str| -> Vec<EnvVar> {
        let members = form.get(member).and_then(Value::as_object).into_iter().flatten();
        members.map(|(name, value)| variable(name, value)).collect()
    };
    draft.env = variables("env");
    if let Some(url) = pick::member(form, &["url", "serverUrl", "httpUrl"]) {
        let kind = pick::member(form, &["type", "transport"]);
        let kind = kind.unwrap_or_else(|| if url.trim_end_matches('/').ends_with("/sse") { "sse" } else { "http" }.to_owned());
        draft.launch = remote(&kind, &url, variables("headers"));
    } else if let Some(command) = pick::member(form, &["command"]) {
        let args: Vec<String> = pick::list(form, &["args"]).iter().filter_map(pick::plain).collect();
        draft.launch = mcpmill_core::launch::normalised(&command, &args);
    }
    draft
}

/// A value in braces or after `your` is none, but for what names variables, which harvest fills: `${LEVEL:-1}`. Under
/// a secret's name nothing else stays.
fn variable(name: &str, value: &Value) -> EnvVar {
    let value = pick::plain(value);
    let named = |hole: &Hole<'_>| if hole.form == Form::Dollar { String::new() } else { hole.written.to_owned() };
    let blank = |v: &String| fill(v, named).contains(['<', '{']) || v.to_lowercase().starts_with("your");
    let secret = names_a_secret(name);
    let required = secret || value.as_ref().is_none_or(blank);
    let kept = |v: &String| if secret { is_variable(v, false) } else { !blank(v) };
    EnvVar { name: name.to_owned(), value: value.filter(kept), secret, required }
}

fn strings<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
    match value {
        Value::String(text) if out.len() < MOST_STRINGS && text.contains("mcpServers") => out.push(text),
        Value::Array(items) => items.iter().for_each(|item| strings(item, out)),
        Value::Object(members) => members.values().for_each(|item| strings(item, out)),
        _ => {}
    }
}

/// The first server of the first block in a text, which may be HTML-escaped once or twice.
fn search(text: &str) -> Option<Draft> {
    let mut text = text.to_owned();
    for _ in 0..3 {
        if let Some(found) = blocks(&text) {
            return Some(found);
        }
        text = unescape(&text);
    }
    None
}

fn blocks(text: &str) -> Option<Draft> {
    let places = text.match_indices("mcpServers").take(20);
    places
        .filter_map(|(at, word)| {
            let after = &text[at + word.len()..];
            let open = after.find('{').filter(|open| *open < 12)?;
            let object = strip_comments(balanced(&after[open..])?);
            configs(&serde_json::from_str(&object).ok()?).into_iter().next()
        })
        .next()
}

/// From a brace to the one that closes it, strings left alone.
pub(in crate::discover) fn balanced(text: &str) -> Option<&str> {
    let (mut depth, mut quoted, mut escaped) = (0u32, false, false);
    for (at, byte) in text.bytes().enumerate().take(200_000) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' if !quoted => depth += 1,
            b'}' if !quoted => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return text.get(..=at);
                }
            }
            _ => {}
        }
    }
    None
}

/// The five entities of code in pages.
pub(in crate::discover) fn unescape(text: &str) -> String {
    let quotes = [
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#x22;", "\""),
        ("&#39;", "'"),
        ("&#x27;", "'"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&#x2F;", "/"),
        ("&nbsp;", " "),
    ];
    quotes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to)).replace("&amp;", "&")
}

/// JSON without comments and trailing commas.
pub(in crate::discover) fn strip_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('\\', _) if quoted => {
                out.push(c);
                out.extend(chars.next());
            }
            ('"', _) => {
                quoted = !quoted;
                out.push(c);
            }
            ('/', Some('/')) if !quoted => while chars.next_if(|c| *c != '\n').is_some() {},
            ('/', Some('*')) if !quoted => {
                let mut last = chars.next();
                for c in chars.by_ref() {
                    if last == Some('*') && c == '/' {
                        break;
                    }
                    last = Some(c);
                }
            }
            ('}' | ']', _) if !quoted => {
                if out.trim_end().ends_with(',') {
                    out.truncate(out.trim_end().len() - 1);
                }
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use mcpmill_core::record::Launch;
    use serde_json::json;

    use super::*;

    #[test]
    fn blocks_are_found_plain_escaped_and_in_strings() {
        let plain = r#"{"mcpServers": {"parcel": {"command": "npx", "args": ["-y", "parcel-mcp@1.2.0", "a } b"], "env": {"PARCEL_KEY": "k"},}}}"#;
        let once = plain.replace('"', "&quot;");
        let twice = once.replace('&', "&amp;");
        for text in [plain.to_owned(), once, twice] {
            let mut draft = Draft::named("x");
            map(&json!({"a": [format!("<pre>{text}</pre>")]}), &mut draft);
            assert!(serde_json::to_string(&draft.launch).unwrap().contains("a } b"), "{text}");
            assert_eq!((draft.env[0].value.as_deref(), draft.env[0].secret), (None, true));
        }
        let drafts = configs(&json!({"a": {"url": "https://h.example/mcp", "headers": {
            "X-Api-Key": "${MY_KEY}", "Authorization": "Bearer ${input:token}", "Cookie": "k"
        }}}));
        let Launch::StreamableHttp { headers, .. } = &drafts[0].launch else { panic!() };
        let values: Vec<Option<&str>> = headers.iter().map(|header| header.value.as_deref()).collect();
        assert_eq!(values, [Some("${MY_KEY}"), Some("Bearer ${input:token}"), None]);
        assert!(headers.iter().all(|header| header.secret && header.required));
        let mut draft = Draft::named("x");
        map(&json!({"config": [{"mcpServers": {"p": {"command": "npx", "args": ["-y", "p-mcp"]}}}]}), &mut draft);
        assert!(serde_json::to_string(&draft.launch).unwrap().contains("p-mcp"));
        let mut draft = Draft::named("x");
        map(&json!({"a": "mcpServers {{{ broken"}), &mut draft);
        assert_eq!(draft.launch, none("x"));
    }

    #[test]
    fn values_that_name_variables_stay_and_those_to_be_replaced_go() {
        for (name, value, kept) in [
            ("LEVEL", "${MY_LEVEL}", true),
            ("HOST", "http://${RW_HOST:-localhost}:${PORT}", true),
            ("LEVEL", "${MY_LEVEL} <level>", false),
            ("LEVEL", "{level}", false),
            ("LEVEL", "your level", false),
            ("API_KEY", "${MY_KEY}", true),
            ("API_KEY", "${MY_KEY:-hunter2}", false),
        ] {
            let variable = variable(name, &json!(value));
            assert_eq!(variable.value.as_deref(), kept.then_some(value), "{value}");
            assert_eq!(variable.required, name == "API_KEY" || !kept, "{value}");
        }
    }

    #[test]
    fn comments_and_trailing_commas_go_and_strings_stay() {
        let text = "{ // first\n \"a\": \"http://x/*y*/\", /* second */ \"b\": [1, 2, ], }";
        let value: Value = serde_json::from_str(&strip_comments(text)).unwrap();
        assert_eq!(value, json!({"a": "http://x/*y*/", "b": [1, 2]}));
    }
}
