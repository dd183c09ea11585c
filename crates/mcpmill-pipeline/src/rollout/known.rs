//! Whether the values of a written call were said by somebody: the user, or an answer.

use std::collections::HashSet;

use mcpmill_core::{json::of_text, record::Message, text::clipped};
use serde_json::{Map, Value};

use crate::generate::{
    handles, is_expression,
    values::{invented, placeholder, states},
    words,
};

/// Characters of one answer that values are looked for in.
const READ: usize = 100_000;
/// Texts longer than this need not be copied from what was said word for word.
const COPIED: usize = 120;
/// How deep an answer is looked into for texts that stand escaped in it.
const DEEPEST: usize = 8;

/// Parameters whose texts are written for the purpose, by the last word of their names.
const WRITTEN: [&str; 13] = [
    "content",
    "text",
    "body",
    "message",
    "description",
    "title",
    "note",
    "observation",
    "comment",
    "summary",
    "subject",
    "caption",
    "markdown",
];
/// Words of queries that nobody says.
const SYNTAX: [&str; 36] = [
    "select", "from", "where", "and", "or", "not", "null", "like", "order", "group", "by", "limit", "join", "left", "inner",
    "on", "as", "count", "sum", "avg", "min", "max", "distinct", "desc", "asc", "having", "insert", "into", "values", "update",
    "set", "delete", "is", "in", "between", "round",
];

/// All that was said by the user or answered by a tool. An answer in JSON is there as it stands and by its texts: what
/// is escaped in it can be copied plainly.
pub(crate) fn said(messages: &[Message]) -> Vec<String> {
    let of = |message: &Message| match message {
        Message::User { content } => vec![content.clone()],
        Message::Tool { content, .. } => {
            let mut all = vec![clipped(content, READ)];
            if content.contains('\\') && content.len() <= READ {
                of_text(content).iter().for_each(|value| texts(value, 0, &mut all));
            }
            all
        }
        Message::System { .. } | Message::Assistant { .. } => Vec::new(),
    };
    messages.iter().flat_map(of).collect()
}

fn texts(value: &Value, depth: usize, out: &mut Vec<String>) {
    match value {
        _ if depth > DEEPEST => {}
        Value::String(text) => out.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, depth + 1, out)),
        Value::Object(map) => map.values().for_each(|item| texts(item, depth + 1, out)),
        _ => {}
    }
}

/// The first value of `arguments` that nobody said. Short texts must be said word for word, and so must handles of any
/// length and what the parameter `handed` takes from an answer. Free are the words that the schema lists; a text that is
/// written for the purpose, and a long one, need only make nothing up; of a query the words must be said.
pub(crate) fn from_nowhere(
    arguments: &Map<String, Value>,
    schema: &Value,
    handed: Option<&str>,
    said: &[String],
) -> Option<String> {
    let handles = handles(schema);
    arguments.iter().find_map(|(name, value)| {
        let must = Must { handle: handles.contains(name), handed: handed == Some(name.as_str()) };
        unsaid((name, value), &schema["properties"][name], must, said)
    })
}

/// The value of the parameter that takes what the answers brought, where it is not from them: what only the user said
/// needed no answer, and a longer text has most of its words in common with what was answered.
pub(super) fn not_brought(value: &Value, messages: &[Message]) -> Option<String> {
    let answers = said(&messages.iter().filter(|message| matches!(message, Message::Tool { .. })).cloned().collect::<Vec<_>>());
    let text = match value {
        Value::String(text) => text,
        Value::Number(number) => &number.to_string(),
        Value::Array(items) => return items.iter().find_map(|item| not_brought(item, messages)),
        _ => return None,
    };
    let ends = |text: &str| text.rsplit_once('/').is_some_and(|(_, name)| !name.is_empty() && is_said(name, &answers));
    let brought = is_said(text, &answers) || ends(text) || {
        let known: HashSet<String> = answers.iter().flat_map(|answer| telling(answer)).collect();
        let words: HashSet<String> = telling(text).collect();
        text.chars().count() > COPIED && 2 * words.iter().filter(|word| known.contains(*word)).count() >= words.len()
    };
    (!brought).then(|| clipped(text, COPIED))
}

/// Words that tell texts apart, in lower case: of scripts without spaces every letter is one.
fn telling(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).flat_map(|word| {
        let whole = (word.is_ascii() && word.len() > 2) || (!word.is_ascii() && !word.chars().any(is_ideograph));
        let letters = word.chars().filter(|c| is_ideograph(*c)).map(String::from);
        whole.then(|| word.to_lowercase()).into_iter().chain(letters)
    });
    words.filter(|word| !word.is_empty())
}

fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}')
}

/// How closely the texts of a parameter are held to what was said.
#[derive(Clone, Copy)]
struct Must {
    handle: bool,
    handed: bool,
}

fn unsaid((name, value): (&str, &Value), property: &Value, must: Must, said: &[String]) -> Option<String> {
    if is_listed(property, value) {
        return None;
    }
    match value {
        Value::Number(number) => (!is_said(&number.to_string(), said)).then(|| number.to_string()),
        Value::String(text) => unsaid_text(name, text, must, said),
        Value::Array(items) => items.iter().find_map(|item| unsaid((name, item), &property["items"], must, said)),
        Value::Object(map) => map.iter().find_map(|(key, item)| unsaid((key, item), &property["properties"][key], must, said)),
        Value::Null | Value::Bool(_) => None,
    }
}

/// Whether a path is put together from a folder that was spoken of and what was listed in it: `notes/plan.md` after
/// `[FILE] plan.md` of `notes`.
fn is_joined(path: &str, said: &[String]) -> bool {
    let cuts = path.match_indices('/').filter(|(at, _)| *at > 0);
    let mut parts = cuts.map(|(at, _)| (&path[..at], &path[at + 1..])).filter(|(_, rest)| !rest.is_empty());
    !path.contains(char::is_whitespace) && parts.any(|(folder, rest)| is_said(folder, said) && is_said(rest, said))
}

fn unsaid_text(name: &str, text: &str, must: Must, said: &[String]) -> Option<String> {
    if (is_said(text, said) && !(must.handle && text.trim().is_empty())) || is_joined(text, said) {
        return None;
    }
    let short = text.chars().count() <= COPIED;
    if must.handle || (must.handed && short) {
        return Some(text.to_owned());
    }
    let known: Vec<&str> = said.iter().map(String::as_str).collect();
    let free = !short || words(name).last().is_some_and(|last| WRITTEN.contains(&last.as_str()));
    if free {
        placeholder(text).or_else(|| invented(text, &known))
    } else if is_expression(name, text) {
        let mut words = text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
        words.find(|word| !SYNTAX.contains(&word.to_lowercase().as_str()) && !is_said(word, said)).map(str::to_owned)
    } else {
        Some(text.to_owned())
    }
}

fn is_said(text: &str, said: &[String]) -> bool {
    said.iter().any(|said| states(said, text))
}

/// Whether the schema itself names the value.
fn is_listed(property: &Value, value: &Value) -> bool {
    property["enum"].as_array().is_some_and(|words| words.contains(value))
        || property.get("const") == Some(value)
        || property.get("default") == Some(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_handed_on_comes_from_the_answers() {
        let answer = |content: &str| Message::Tool { tool_call_id: "c".into(), name: "t".into(), content: content.into() };
        let messages = [
            Message::user("Look for reports on the flood in docs, then send that to Ada."),
            answer("[FILE] flood.md: the river rose by 40 cm on Tuesday and the mill stood still for two days, said the owner."),
            answer("生蚝要先洗干净，然后加姜片。"),
        ];
        for good in [
            "flood.md",
            "docs/flood.md",
            "The river rose by 40 cm on Tuesday. The mill stood still for two days, said the owner. It is in flood.md, the report that was found.",
            "洗干净，然后加姜片",
        ] {
            assert_eq!(not_brought(&json!(good), &messages), None, "{good}");
        }
        for bad in [
            "Ada",
            "Look for reports on the flood in docs, then send that to Ada.",
            "docs/storm.md",
            "This report was made by the water board and contains a lot of information about all the places where people live near water.",
        ] {
            assert!(not_brought(&json!(bad), &messages).is_some(), "{bad}");
        }
        assert_eq!(not_brought(&json!([40, "flood.md"]), &messages), None);
        for bad in [json!(7), json!(["flood.md", "Ada"]), json!("docs/")] {
            assert!(not_brought(&bad, &messages).is_some(), "{bad}");
        }
    }

    fn nowhere(arguments: &Value, handed: Option<&str>) -> Option<String> {
        let said = vec![
            "Put the label billing on it.".to_owned(),
            r#"[{"ticket": 4821, "title": "Double invoice", "customer": "Ada"}]"#.to_owned(),
        ];
        let text = json!({"type": "string"});
        let schema = json!({"properties": {
            "mode": {"enum": ["fast"]}, "path": text, "note": text, "who": text, "size": {"default": 5}, "sql": text,
            "labels": {"type": "array", "items": {"type": "string"}}},
            "required": ["path"]});
        from_nowhere(arguments.as_object().unwrap(), &schema, handed, &said)
    }

    #[test]
    fn a_path_may_be_joined_of_a_folder_and_what_it_lists() {
        let said = ["What is in /home/ada/notes?".to_owned(), "[FILE] plan.md\n[DIR] old".to_owned()];
        let schema = json!({"properties": {"path": {"type": "string"}}, "required": ["path"]});
        let path = |path: &str| from_nowhere(json!({ "path": path }).as_object().unwrap(), &schema, Some("path"), &said);
        for good in ["/home/ada/notes/plan.md", "/home/ada/notes/old", "plan.md"] {
            assert_eq!(path(good), None, "{good}");
        }
        for bad in ["/home/ada/notes/other.md", "/home/bob/plan.md", "/plan.md", "/home/ada/notes/"] {
            assert_eq!(path(bad).as_deref(), Some(bad));
        }
    }

    #[test]
    fn values_come_from_somebody() {
        for good in [
            json!({"ticket": 4821, "labels": ["billing"], "mode": "fast", "deep": true, "size": 5}),
            json!({"note": "Some invoice"}),
            json!({"who": "ada"}),
            json!({"people": [{"note": "a friend", "who": "Ada"}]}),
            json!({"sql": "SELECT title FROM ticket WHERE customer = 'Ada'"}),
            json!({"who": "long words ".repeat(20)}),
        ] {
            assert_eq!(nowhere(&good, Some("ticket")), None, "{good}");
        }
        for (bad, why) in [
            (json!({"ticket": 482}), "482"),
            (json!({"size": 6}), "6"),
            (json!({"note": "see INV-77"}), "INV-77"),
            (json!({"note": "<the note>"}), "the note"),
            (json!({"who": "customers"}), "customers"),
            (json!({"path": "customers"}), "customers"),
            (json!({"path": ""}), ""),
            (json!({"mode": "slow"}), "slow"),
            (json!({"labels": ["billing", "urgent"]}), "urgent"),
            (json!({"people": [{"who": "Bob"}]}), "Bob"),
            (json!({"sql": "SELECT title FROM customers"}), "customers"),
        ] {
            assert_eq!(nowhere(&bad, None).as_deref(), Some(why), "{bad}");
        }
        assert_eq!(nowhere(&json!({"title": "Some invoice"}), Some("title")), Some("Some invoice".into()));
        let path = "long/".repeat(40);
        assert_eq!(nowhere(&json!({ "path": path }), None), Some(path), "a handle is said at any length");
    }

    #[test]
    fn what_is_escaped_in_an_answer_is_said_plainly() {
        let answer = json!({"files": [{"path": "C:\\notes\\a.md"}]}).to_string();
        let messages = [Message::Tool { tool_call_id: "1".into(), name: "t".into(), content: answer }];
        assert!(is_said("C:\\notes\\a.md", &said(&messages)));
    }
}
